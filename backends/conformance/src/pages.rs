//! Pages for the firmware: each is one page, and nobody else's.

use core::fmt;

use bareverbs::platform::PageSource;

/// What is wrong with a [`PageSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageFault {
    /// It has no page.
    None,
    /// The address of a page is no multiple of 4096.
    Misaligned {
        /// The address.
        device_addr: u64,
    },
    /// A page was allocated twice without being freed between.
    Twice {
        /// Its address.
        device_addr: u64,
    },
    /// Fewer pages could be allocated than were reserved.
    Broken {
        /// Pages that were reserved.
        reserved: u32,
        /// Pages that could be allocated.
        allocated: u32,
    },
    /// More pages were reserved than there are.
    Promised {
        /// Pages that were reserved.
        wanted: u32,
    },
    /// The error of a reservation says that there are as many as were wanted.
    Contradiction {
        /// Pages wanted.
        wanted: u32,
        /// Pages that are left, as it says.
        available: u32,
    },
    /// A page that is allocated is not freed.
    NotFreed {
        /// Its address.
        device_addr: u64,
    },
    /// An address at which no page is allocated was freed: it comes from the device, which may lie.
    Freed {
        /// The address.
        device_addr: u64,
    },
    /// Not as many pages could be allocated after all were freed as before.
    Lost {
        /// Pages before.
        before: u32,
        /// Pages after.
        after: u32,
    },
}

impl fmt::Display for PageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => f.write_str("the source has no page"),
            Self::Misaligned { device_addr } => write!(f, "the page at {device_addr:#x} does not begin at a multiple of 4096"),
            Self::Twice { device_addr } => write!(f, "the page at {device_addr:#x} was allocated twice"),
            Self::Broken { reserved, allocated } => {
                write!(f, "{reserved} pages were reserved, and {allocated} could be allocated")
            }
            Self::Promised { wanted } => write!(f, "{wanted} pages could be reserved, and not one allocated"),
            Self::Contradiction { wanted, available } => write!(f, "{wanted} pages were refused, though {available} are left"),
            Self::NotFreed { device_addr } => write!(f, "the page at {device_addr:#x} is allocated and was not freed"),
            Self::Freed { device_addr } => write!(f, "a page at {device_addr:#x} was freed, where none is allocated"),
            Self::Lost { before, after } => write!(f, "there were {before} pages, and after all were freed {after}"),
        }
    }
}

impl core::error::Error for PageFault {}

const PAGE: u64 = 4096;

/// Reserves and allocates pages, one after the other, up to as many as `held` has places. Returns how many.
fn take<S: PageSource>(pages: &mut S, held: &mut [u64]) -> Result<usize, PageFault> {
    for (count, place) in held.iter_mut().enumerate() {
        match pages.reserve(1) {
            Ok(()) => {}
            Err(error) if error.available >= 1 => {
                return Err(PageFault::Contradiction { wanted: 1, available: error.available });
            }
            Err(_) => return Ok(count),
        }
        let Some(device_addr) = pages.allocate() else { return Err(PageFault::Promised { wanted: 1 }) };
        if !device_addr.is_multiple_of(PAGE) {
            return Err(PageFault::Misaligned { device_addr });
        }
        *place = device_addr;
    }
    Ok(held.len())
}

/// Returns an error if a page is there twice; sorts them.
fn check_distinct(held: &mut [u64]) -> Result<(), PageFault> {
    held.sort_unstable();
    let twice = held.windows(2).find_map(|pair| (pair.first() == pair.last()).then_some(*pair.first()?));
    twice.map_or(Ok(()), |device_addr| Err(PageFault::Twice { device_addr }))
}

/// Frees pages in another order than they were allocated in, each once and once too often.
fn give_back<S: PageSource>(pages: &mut S, held: &[u64]) -> Result<(), PageFault> {
    let (odd, even) = ([1, 3, 5, 7], [0, 2, 4, 6]);
    for device_addr in [odd, even].into_iter().flat_map(|offsets| {
        held.chunks(8)
            .rev()
            .flat_map(move |chunk| offsets.into_iter().filter_map(move |offset: usize| chunk.get(offset).copied()))
    }) {
        if pages.free(device_addr | 1) {
            return Err(PageFault::Freed { device_addr: device_addr | 1 });
        }
        if !pages.free(device_addr) {
            return Err(PageFault::NotFreed { device_addr });
        }
        if pages.free(device_addr) {
            return Err(PageFault::Freed { device_addr });
        }
    }
    Ok(())
}

/// Checks pages: that they are apart, that what was reserved can be allocated, until there are none, and that they come back. `scratch`
/// has a place for each page that is tried: with more than the source has, its end is tried too. Afterwards all are free.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_pages<S: PageSource>(pages: &mut S, scratch: &mut [u64]) -> Result<(), PageFault> {
    pages.free_all();
    let wanted = (scratch.len() / 2).clamp(1, 16) as u32;
    // Several at a time, as a driver does it.
    if pages.reserve(wanted).is_ok() {
        let some = scratch.get_mut(..wanted as usize).unwrap_or_default();
        for (allocated, place) in (0..).zip(&mut *some) {
            let Some(device_addr) = pages.allocate() else { return Err(PageFault::Broken { reserved: wanted, allocated }) };
            *place = device_addr;
        }
        check_distinct(some)?;
        pages.free_all();
        if let Some(device_addr) = some.iter().copied().find(|device_addr| pages.free(*device_addr)) {
            return Err(PageFault::Freed { device_addr });
        }
    }
    let before = take(pages, scratch)?;
    let held = scratch.get_mut(..before).unwrap_or_default();
    let (Some(first), Some(last)) = (held.first().copied(), held.last().copied()) else { return Err(PageFault::None) };
    check_distinct(held)?;
    // One that is given back is the next one, or another that nobody has.
    if !pages.free(first) {
        return Err(PageFault::NotFreed { device_addr: first });
    }
    if let Some(at) = held.iter().position(|device_addr| *device_addr == first) {
        let place = held.get_mut(at..).unwrap_or_default().get_mut(..1).unwrap_or_default();
        if take(pages, place)? != 1 {
            return Err(PageFault::Lost { before: before as u32, after: before.saturating_sub(1) as u32 });
        }
    }
    check_distinct(held)?;
    give_back(pages, held)?;
    let after = take(pages, held)?;
    if after != before {
        return Err(PageFault::Lost { before: before as u32, after: after as u32 });
    }
    check_distinct(held)?;
    pages.free_all();
    // Neither what was freed, nor what never was.
    for device_addr in [first, last, !(PAGE - 1), u64::MAX] {
        if pages.free(device_addr) {
            return Err(PageFault::Freed { device_addr });
        }
    }
    let after = take(pages, held)?;
    pages.free_all();
    if after == before { Ok(()) } else { Err(PageFault::Lost { before: before as u32, after: after as u32 }) }
}
