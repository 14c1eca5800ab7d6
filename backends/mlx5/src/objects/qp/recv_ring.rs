//! The ring of receives of one queue pair, or of one shared receive queue.

use bareverbs::Sge;
use bareverbs::backend::RecvRing;
use bareverbs::platform::{DmaFence, DmaMemory, DmaRing, Platform, RingView};
use bareverbs_mlx5_spec::{WqeSrqNextSeg, be_word};

use super::segment::{data, put_receive};
use crate::log::format_as;

/// The ring of receives of one queue pair, or of one shared receive queue.
pub struct Mlx5RecvRing<P: Platform> {
    pub(crate) ring: <P::Memory as DmaMemory>::Ring,
    pub(crate) fence: P::Fence,
    /// 16-byte units of an entry: data segments, after the link of a shared receive queue.
    pub(crate) units: u32,
}

format_as!([P: Platform] Mlx5RecvRing<P>, "Mlx5RecvRing({} bytes an entry)", |this| this.units * 16);

impl<P: Platform> RecvRing for Mlx5RecvRing<P> {
    #[inline(always)]
    fn put(&mut self, at: u32, sges: &[Sge]) {
        let ring = self.ring.view();
        // Almost all receives: one segment, and room for one.
        if let ([sge], 1) = (sges, self.units)
            && sge.length != 0
        {
            return ring.put_pair(at, data(sge));
        }
        let unit = at.wrapping_mul(self.units);
        put_receive(ring, unit, unit.wrapping_add(self.units), sges);
    }

    /// Receives have no register: the device polls the record.
    #[inline(always)]
    fn ring(&mut self, end: u32) {
        self.fence.publish();
        self.ring.view().record(false, (end & 0xffff).to_be());
    }

    fn reset(&mut self) {}
}

/// A linked list of receives.
impl<P: Platform> bareverbs::backend::SrqRing for Mlx5RecvRing<P> {
    fn put(&mut self, at: u16, next: u16, sges: &[Sge]) {
        let ring = self.ring.view();
        let unit = u32::from(at).wrapping_mul(self.units);
        ring.put_pair(unit, [be_word(WqeSrqNextSeg::NEXT_WQE_INDEX.place(next.into()), 0), 0]);
        put_receive(ring, unit.wrapping_add(1), unit.wrapping_add(self.units), sges);
    }

    fn ring(&mut self, end: u32) {
        RecvRing::ring(self, end);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use bareverbs::Lkey;
    use bareverbs::backend::SrqRing;

    use super::*;
    use crate::ring::open_ring;
    use crate::tests::mock::{MockPlatform, Part, machine};

    const RING: usize = 0x2000;
    const RECORD: usize = 0x1000;

    /// Each place of shared rings of each small shape, by `struct mlx5_wqe_srq_next_seg` of rdma-core's `wqe.h` (the index of the next one in bytes
    /// 2 and 3) and data segments behind it, of which key 0x100 without bytes ends the list.
    #[test]
    fn a_shared_receive_is_a_link_and_segments_at_its_place() {
        for units in [2, 4, 8, 32_u32] {
            for slots in [2, 4, 16_u32] {
                let (machine, shared) = machine();
                let bytes = (units * slots * 16) as usize;
                let ring = open_ring(&Part(shared.clone()), RING, bytes.max(64), RECORD).unwrap();
                let mut ring: Mlx5RecvRing<MockPlatform> = Mlx5RecvRing { ring, fence: machine.fence, units };
                for at in 0..slots as u16 {
                    for count in 0..units {
                        shared.borrow_mut().memory[RING..].fill(0xee);
                        let mut expected: Vec<u8> = shared.borrow().memory[RING..].to_vec();
                        let sge = |n: u32| Sge { addr: 0x1000 + u64::from(n), length: n + 1, lkey: Lkey::new(0xa1b2_c3d4) };
                        let sges: Vec<Sge> = (0..count).map(sge).collect();
                        let next = 0xfe00 + at;
                        SrqRing::put(&mut ring, at, next, &sges);
                        let mut entry = std::vec![0, 0];
                        entry.extend(next.to_be_bytes());
                        entry.resize(16, 0);
                        for sge in &sges {
                            entry.extend(
                                [&sge.length.to_be_bytes()[..], &[0xa1, 0xb2, 0xc3, 0xd4], &sge.addr.to_be_bytes()].concat(),
                            );
                        }
                        if count < units - 1 {
                            entry.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                        }
                        expected[usize::from(at) * units as usize * 16..][..entry.len()].copy_from_slice(&entry);
                        assert!(shared.borrow().memory[RING..] == expected, "{count} at {at} of {slots} with {units}");
                        shared.borrow_mut().log.clear();
                    }
                }
                for end in [0, 1, 0xffff, 0x1_0000, 0x1_0001, u32::MAX] {
                    SrqRing::ring(&mut ring, end);
                    assert_eq!(shared.borrow().memory[RECORD..RECORD + 4], ((end % (1 << 16)).to_be_bytes()));
                }
            }
        }
    }
}
