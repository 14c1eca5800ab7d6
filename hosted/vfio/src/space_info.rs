//! What the kernel says of an I/O address space: the addresses that the IOMMU translates, its smallest page, how many mappings there
//! may be.
#![expect(unsafe_code, reason = "the answers come by ioctl")]

use std::io;
use std::os::fd::AsRawFd;

use iommufd_bindings::iommufd::{IOMMUFD_CMD_IOAS_IOVA_RANGES, IOMMUFD_TYPE, iommu_ioas_iova_ranges, iommu_iova_range};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_TYPE,
};
use vmm_sys_util::ioctl::{ioctl_with_mut_ptr, ioctl_with_mut_ref};
use vmm_sys_util::ioctl_io_nr;

ioctl_io_nr!(VFIO_IOMMU_GET_INFO, VFIO_TYPE as u32, VFIO_BASE + 12);
ioctl_io_nr!(IOMMU_IOAS_IOVA_RANGES, IOMMUFD_TYPE as u32, IOMMUFD_CMD_IOAS_IOVA_RANGES);

/// `VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL` of linux/vfio.h (Linux 5.10), which the bindings lack.
const CAP_DMA_AVAIL: u16 = 3;
/// Bytes of `struct vfio_iommu_type1_info`.
const HEADER: usize = 24;
/// Most bytes that an answer may have: 4,000 ranges.
const MOST: usize = 64 << 10;

/// Most ranges that iommufd may name.
const MOST_RANGES: usize = 4096;

/// What the kernel says of an I/O address space. What it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceInfo {
    /// First and last addresses of the ranges that can be mapped.
    pub(crate) ranges: Option<Vec<(u64, u64)>>,
    /// Bytes of the smallest page of the IOMMU, a power of two.
    pub(crate) page: Option<u64>,
    /// How many more mappings there may be.
    pub(crate) mappings: Option<u32>,
}

/// What the kernel answers of the ranges of an I/O address space.
struct RangesAnswer {
    /// How many ranges there are.
    count: usize,
    /// Bytes of the smallest page.
    page: u64,
    /// Why it wrote no ranges; EMSGSIZE if there are more than it was given room for.
    error: Option<io::Error>,
}

impl SpaceInfo {
    /// Asks a VFIO container whose IOMMU is set (`VFIO_IOMMU_GET_INFO`).
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn of_container(container: &impl AsRawFd) -> io::Result<Self> {
        Self::of_words(|words| {
            // SAFETY: the kernel writes `argsz` bytes at most, which the words have.
            let done = unsafe { ioctl_with_mut_ptr(container, VFIO_IOMMU_GET_INFO(), words.as_mut_ptr()) };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }

    /// Reads what `ask` writes to words whose first field (`argsz`) has their size.
    fn of_words(mut ask: impl FnMut(&mut [u64]) -> io::Result<()>) -> io::Result<Self> {
        let mut words = vec![0; HEADER / 8];
        // The first call says how many bytes there are; they may become more until the next one.
        for _ in 0..4 {
            let len = (words.len() * 8) as u32;
            put_argsz(&mut words, len);
            ask(&mut words)?;
            let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
            let wanted = u32_at(&bytes, 0).unwrap_or(0) as usize;
            if wanted <= bytes.len() || wanted > MOST {
                return Ok(Self::parse(&bytes));
            }
            words = vec![0; wanted.div_ceil(8)];
        }
        Err(io::Error::other("the description of the I/O address space grows"))
    }

    /// Asks an I/O address space of iommufd, to which a device is attached (`IOMMU_IOAS_IOVA_RANGES`).
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn of_ioas(iommufd: &impl AsRawFd, ioas_id: u32) -> io::Result<Self> {
        Self::of_ranges(|ranges| {
            let mut asked = iommu_ioas_iova_ranges {
                size: size_of::<iommu_ioas_iova_ranges>() as u32,
                ioas_id,
                num_iovas: ranges.len() as u32,
                allowed_iovas: ranges.as_mut_ptr().addr() as u64,
                ..Default::default()
            };
            // SAFETY: the kernel writes to the structure, and to as many ranges as it names, which the slice has.
            let done = unsafe { ioctl_with_mut_ref(iommufd, IOMMU_IOAS_IOVA_RANGES(), &mut asked) };
            let error = if done == 0 { None } else { Some(io::Error::last_os_error()) };
            RangesAnswer { count: asked.num_iovas as usize, page: asked.out_iova_alignment, error }
        })
    }

    /// Reads the ranges that `ask` writes.
    fn of_ranges(mut ask: impl FnMut(&mut [iommu_iova_range]) -> RangesAnswer) -> io::Result<Self> {
        let mut ranges = vec![iommu_iova_range::default(); 16];
        for _ in 0..4 {
            let RangesAnswer { count, page, error } = ask(&mut ranges);
            let Some(error) = error else {
                let found = ranges.iter().take(count).map(|range| (range.start, range.last));
                let page = Some(page).filter(|page| page.is_power_of_two());
                return Ok(Self { ranges: Some(ordered(found.collect())), page, mappings: None });
            };
            let is_short = error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error());
            if !is_short || count <= ranges.len() || count > MOST_RANGES {
                return Err(error);
            }
            ranges.resize(count, iommu_iova_range::default());
        }
        Err(io::Error::other("the ranges of the I/O address space grow"))
    }

    /// Reads `struct vfio_iommu_type1_info` and the chain of its capabilities. What is out of bounds or malformed is left out.
    fn parse(bytes: &[u8]) -> Self {
        let flags = u32_at(bytes, 4).unwrap_or(0);
        let sizes = u64_at(bytes, 8).filter(|sizes| flags & VFIO_IOMMU_INFO_PGSIZES != 0 && *sizes != 0);
        let mut info = Self { page: sizes.map(|sizes| 1 << sizes.trailing_zeros()), ..Self::default() };
        if flags & VFIO_IOMMU_INFO_CAPS == 0 {
            return info;
        }
        let mut at = u32_at(bytes, 16).unwrap_or(0) as usize;
        // Each capability has a header of 8 bytes, so that a chain with more of them goes round in a circle.
        for _ in 0..bytes.len() / 8 {
            if at < HEADER {
                break;
            }
            let (Some(id), Some(next)) = (u16_at(bytes, at), u32_at(bytes, at.saturating_add(4))) else { break };
            match id {
                id if u32::from(id) == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => info.ranges = ranges_at(bytes, at),
                CAP_DMA_AVAIL => info.mappings = u32_at(bytes, at.saturating_add(8)),
                _ => {}
            }
            at = next as usize;
        }
        info
    }

    /// Returns the ranges that cannot be mapped: all others. Without an answer these are the addresses that some IOMMU does not
    /// translate: below 4 GiB, where the reserved regions of platforms are, and from 2^38 on (the smallest mode of RISC-V).
    pub(crate) fn holes(&self) -> Vec<(u64, u64)> {
        let assumed = [(1 << 32, (1 << 38) - 1)];
        let mut holes = Vec::new();
        // The first address behind the ranges so far; `None` behind the last one.
        let mut next = Some(0);
        for (first, last) in self.ranges.as_deref().unwrap_or(&assumed) {
            let Some(start) = next else { break };
            if start < *first {
                holes.push((start, first - 1));
            }
            next = last.checked_add(1).map(|after| after.max(start));
        }
        holes.extend(next.map(|start| (start, u64::MAX)));
        holes
    }
}

/// Returns the ranges of the capability at `at` (`struct vfio_iommu_type1_info_cap_iova_range`). `None` if it has fewer than it says.
fn ranges_at(bytes: &[u8], at: usize) -> Option<Vec<(u64, u64)>> {
    let count = u32_at(bytes, at.checked_add(8)?)? as usize;
    let start = at.checked_add(16)?;
    let listed = bytes.get(start..start.checked_add(count.checked_mul(16)?)?)?;
    Some(ordered(listed.chunks_exact(16).filter_map(|range| Some((u64_at(range, 0)?, u64_at(range, 8)?))).collect()))
}

/// Returns the ranges that have an address, in order.
fn ordered(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(first, last)| first <= last);
    ranges.sort_unstable();
    ranges
}

/// Writes the first field of the structure, its size in bytes.
fn put_argsz(words: &mut [u64], len: u32) {
    let [a, b, c, d] = len.to_ne_bytes();
    if let Some(word) = words.first_mut() {
        *word = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What Linux answers for VT-d of 39 bits, by the layouts of linux/vfio.h: three capabilities in the kernel's order (migration,
    /// mappings left, ranges), the window of MSI at 0xfee00000 left out.
    const VTD: [u8; 120] = [
        120, 0, 0, 0, 3, 0, 0, 0, // argsz, flags: page sizes and capabilities
        0, 0x10, 0x20, 0x40, 0, 0, 0, 0, // 4 KiB, 2 MiB, 1 GiB
        24, 0, 0, 0, 0, 0, 0, 0, // offset of the first capability
        2, 0, 1, 0, 56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // migration
        0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, //
        3, 0, 1, 0, 72, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, // 65,535 mappings left
        1, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, // two ranges
        0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xdf, 0xfe, 0, 0, 0, 0, //
        0, 0, 0xf0, 0xfe, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0,
    ];

    /// Returns the answer with the bytes at `at` replaced.
    fn with(at: usize, bytes: &[u8]) -> SpaceInfo {
        let mut answer = VTD;
        answer[at..at + bytes.len()].copy_from_slice(bytes);
        SpaceInfo::parse(&answer)
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_answer_of_the_kernel_is_read() {
        let info = SpaceInfo::parse(&VTD);
        let ranges = vec![(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];
        assert_eq!(info, SpaceInfo { ranges: Some(ranges), page: Some(4096), mappings: Some(65535) });
        assert_eq!(info.holes(), [(0xfee0_0000, 0xfeef_ffff), (0x80_0000_0000, u64::MAX)]);
        // Pages of 64 KiB, no flag of capabilities, no flag of page sizes.
        assert_eq!(with(8, &[0, 0, 1, 0]).page, Some(65536));
        assert_eq!(with(4, &[1]), SpaceInfo { page: Some(4096), ..SpaceInfo::default() });
        assert_eq!(with(4, &[2]).page, None);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_malformed_chain_is_left_out() {
        // More ranges than bytes, a capability behind the end, a circle, a capability inside the header.
        assert_eq!(with(80, &[3]).ranges, None);
        assert_eq!(with(80, &[0xff, 0xff, 0xff, 0xff]).ranges, None);
        assert_eq!(with(60, &[120]).ranges, None);
        let circle = with(76, &[24]);
        assert_eq!((circle.ranges.map(|ranges| ranges.len()), circle.mappings), (Some(2), Some(65535)));
        assert_eq!(with(16, &[4]), SpaceInfo { page: Some(4096), ..SpaceInfo::default() });
        // A range that ends before it starts has no address.
        assert_eq!(with(88 + 7, &[1]).ranges, Some(vec![(0xfef0_0000, 0x7f_ffff_ffff)]));
        for len in 0..VTD.len() {
            let short = SpaceInfo::parse(&VTD[..len]);
            assert!(short.ranges.is_none(), "{len} bytes");
        }
    }

    /// A file that is neither a container nor an iommufd refuses the question.
    #[test]
    fn a_refusal_of_the_kernel_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let refusals = [SpaceInfo::of_container(&file), SpaceInfo::of_ioas(&file, 1)].map(|answer| answer.unwrap_err());
        assert!(
            refusals.iter().all(|error| error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error())),
            "{refusals:?}"
        );
    }

    /// `vfio_iommu_type1_get_info` writes what fits into `argsz` bytes, and into `argsz` how many there are.
    #[cfg(target_endian = "little")]
    #[test]
    fn a_container_is_asked_again_until_its_answer_fits() {
        let mut sizes = Vec::new();
        let mut kernel = |words: &mut [u64], answer: &[u8]| {
            let room = words[0] as u32 as usize;
            assert_eq!(room, 8 * words.len());
            sizes.push(room);
            // What does not fit is left out but for the header, which then names no capability.
            let mut bytes = if room < answer.len() { [&answer[..16], &[0; 8]].concat() } else { answer.to_vec() };
            bytes[..4].copy_from_slice(&(answer.len() as u32).to_ne_bytes());
            bytes.resize(room, 0);
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().unwrap());
            }
            Ok(())
        };
        let full = SpaceInfo::of_words(|words| kernel(words, &VTD)).unwrap();
        assert_eq!(full, SpaceInfo::parse(&VTD));
        // An answer without capabilities, and one whose size is no multiple of eight.
        let bare = SpaceInfo::of_words(|words| kernel(words, &VTD[..HEADER])).unwrap();
        assert_eq!(bare, SpaceInfo { page: Some(4096), ..SpaceInfo::default() });
        let odd = [&VTD[..], &[0; 4]].concat();
        assert_eq!(SpaceInfo::of_words(|words| kernel(words, &odd)).unwrap(), full);
        // The largest answer that is taken, and one byte more, of which the header is.
        let mut large = VTD.to_vec();
        large.resize(MOST, 0);
        assert_eq!(SpaceInfo::of_words(|words| kernel(words, &large)).unwrap(), full);
        large.push(0);
        assert_eq!(SpaceInfo::of_words(|words| kernel(words, &large)).unwrap(), bare);
        assert_eq!(sizes, [HEADER, 120, HEADER, HEADER, 128, HEADER, MOST, HEADER]);
        // One that never fits.
        let grows = |words: &mut [u64]| {
            let len = 8 * words.len() as u32 + 1;
            put_argsz(words, len);
            Ok(())
        };
        assert!(SpaceInfo::of_words(grows).unwrap_err().to_string().contains("grows"));
    }

    /// `iommufd_ioas_iova_ranges` fails with EMSGSIZE if there are more ranges than room, and says how many there are.
    #[test]
    fn an_address_space_is_asked_again_until_its_ranges_fit() {
        let ranges = |count: u64| (0..count).map(|n| (n << 20, (n << 20) + 0xffff)).collect::<Vec<_>>();
        let answer = |room: &mut [iommu_iova_range], have: &[(u64, u64)], page| {
            for (place, (start, last)) in room.iter_mut().zip(have) {
                (place.start, place.last) = (*start, *last);
            }
            let fits = have.len() <= room.len();
            RangesAnswer { count: have.len(), page, error: (!fits).then(|| rustix::io::Errno::MSGSIZE.into()) }
        };
        for count in [0, 1, 16, 17, MOST_RANGES as u64] {
            let mut calls = 0;
            let info = SpaceInfo::of_ranges(|room| {
                calls += 1;
                answer(room, &ranges(count), 4096)
            });
            assert_eq!(info.unwrap(), SpaceInfo { ranges: Some(ranges(count)), page: Some(4096), mappings: None });
            assert_eq!(calls, if count <= 16 { 1 } else { 2 }, "{count} ranges");
        }
        assert_eq!(SpaceInfo::of_ranges(|room| answer(room, &ranges(1), 4095)).unwrap().page, None);
        let too_many = SpaceInfo::of_ranges(|room| answer(room, &ranges(MOST_RANGES as u64 + 1), 4096)).unwrap_err();
        assert_eq!(too_many.raw_os_error(), Some(rustix::io::Errno::MSGSIZE.raw_os_error()));
        // A shortage of what was enough, and another error with a count, which is asked no further question.
        for errno in [rustix::io::Errno::MSGSIZE, rustix::io::Errno::NOENT] {
            let mut calls = 0;
            let refused = SpaceInfo::of_ranges(|room| {
                calls += 1;
                let count = if errno == rustix::io::Errno::MSGSIZE { room.len() } else { room.len() + 1 };
                RangesAnswer { count, page: 4096, error: Some(errno.into()) }
            });
            assert_eq!((refused.unwrap_err().raw_os_error(), calls), (Some(errno.raw_os_error()), 1));
        }
        let grows = SpaceInfo::of_ranges(|room| answer(room, &ranges(room.len() as u64 + 1), 4096)).unwrap_err();
        assert!(grows.to_string().contains("grow"), "{grows}");
    }

    #[test]
    fn holes_are_all_other_addresses() {
        let holes = |ranges: &[(u64, u64)]| SpaceInfo { ranges: Some(ranges.to_vec()), ..SpaceInfo::default() }.holes();
        assert_eq!(holes(&[]), [(0, u64::MAX)]);
        assert_eq!(holes(&[(0, u64::MAX)]), []);
        assert_eq!(holes(&[(0, 9), (5, 7), (20, u64::MAX)]), [(10, 19)]);
        assert_eq!(holes(&[(0, u64::MAX), (5, 7)]), []);
        assert_eq!(holes(&[(5, 9), (10, 19)]), [(0, 4), (20, u64::MAX)]);
        assert_eq!(SpaceInfo::default().holes(), [(0, 0xffff_ffff), (1 << 38, u64::MAX)]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..256), offset in 0..64u32) {
            let info = SpaceInfo::parse(&bytes);
            prop_assert!(info.ranges.is_none_or(|ranges| ranges.iter().all(|(first, last)| first <= last)));
            // With the flags set and a chain that begins near the header.
            if bytes.len() >= HEADER {
                bytes[4..8].copy_from_slice(&3u32.to_ne_bytes());
                bytes[16..20].copy_from_slice(&offset.to_ne_bytes());
                let info = SpaceInfo::parse(&bytes);
                let mut last_end = 0;
                for (first, last) in info.holes() {
                    prop_assert!(first <= last && (first == 0 || first > last_end));
                    last_end = last;
                }
            }
        }

        #[test]
        fn a_hole_and_a_range_have_no_address_in_common(edges in prop::collection::btree_set(any::<u64>(), 0..20)) {
            let edges: Vec<u64> = edges.into_iter().collect();
            let ranges: Vec<_> = edges.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let holes = SpaceInfo { ranges: Some(ranges.clone()), ..SpaceInfo::default() }.holes();
            let sum: u128 = ranges.iter().chain(&holes).map(|(first, last)| u128::from(last - first) + 1).sum();
            prop_assert_eq!(sum, 1 << 64);
            prop_assert!(holes.iter().all(|(a, b)| ranges.iter().all(|(c, d)| b < c || a > d)));
        }
    }
}
