//! The core's platform traits by the callbacks of a program.

use core::ffi::c_void;
use core::ptr::NonNull;

use bareverbs::platform::{
    AddressMap, Clock, DmaFence, Doorbell, Extent, Instant, Machine, OutOfRange, PageSource, Platform, Registers, TooFewPages,
    WordRegister,
};
use bareverbs_mmio::{CpuFence, MappedMemory};

use crate::argument::Argument;
use crate::platform::bv_platform;
use crate::{BV_BARRIER_ACQUIRE, BV_BARRIER_FLUSH, BV_BARRIER_RELEASE, BV_MEMORY_SIZE};

/// A machine in C.
#[derive(Debug)]
pub(crate) enum CMachine {}

// SAFETY: the program promised to `bv_bring_up` what each part needs of it.
unsafe impl Platform for CMachine {
    type Registers = CRegisters;
    type Memory = MappedMemory;
    type Pages = CPages;
    type Fence = CFence;
    type Clock = CClock;
}

/// Writes registers.
#[derive(Clone, Copy)]
struct Writer {
    context: *mut c_void,
    write32: unsafe extern "C" fn(*mut c_void, usize, u32),
    write64: Option<unsafe extern "C" fn(*mut c_void, usize, u64)>,
}

impl Writer {
    fn write32(&self, offset: usize, value: u32) {
        // SAFETY: the offset was checked; the program promised the callback to `bv_bring_up`.
        unsafe { (self.write32)(self.context, offset, value) }
    }

    fn write64(&self, offset: usize, value: u64) {
        match self.write64 {
            // SAFETY: as above.
            Some(write64) => unsafe { write64(self.context, offset, value) },
            None => {
                let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
                self.write32(offset, u32::from_ne_bytes([a, b, c, d]));
                self.write32(offset.wrapping_add(4), u32::from_ne_bytes([e, f, g, h]));
            }
        }
    }
}

/// BAR0.
pub(crate) struct CRegisters {
    writer: Writer,
    read32: unsafe extern "C" fn(*mut c_void, usize) -> u32,
    size: usize,
}

impl CRegisters {
    /// Checks that `count` registers of `width` bytes are there, aligned to that.
    fn check(&self, offset: usize, width: usize, count: usize) -> Result<(), OutOfRange> {
        let out = OutOfRange { offset, len: count.saturating_mul(width), size: self.size };
        let end = count.checked_mul(width).and_then(|len| offset.checked_add(len)).ok_or(out)?;
        if count != 0 && offset.is_multiple_of(width) && end <= self.size { Ok(()) } else { Err(out) }
    }
}

impl Registers for CRegisters {
    type Doorbell = CDoorbell;
    type Word = CWord;

    fn len(&self) -> usize {
        self.size
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.check(offset, 4, 1)?;
        // SAFETY: the offset was checked; the program promised the callback to `bv_bring_up`.
        Ok(unsafe { (self.read32)(self.writer.context, offset) })
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.check(offset, 4, 1)?;
        self.writer.write32(offset, value);
        Ok(())
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<CDoorbell, OutOfRange> {
        self.check(offset, 8, count)?;
        Ok(CDoorbell { writer: self.writer, offset, count })
    }

    fn word(&self, offset: usize) -> Result<CWord, OutOfRange> {
        self.check(offset, 4, 1)?;
        Ok(CWord { writer: self.writer, offset })
    }
}

/// Registers of eight bytes.
pub(crate) struct CDoorbell {
    writer: Writer,
    offset: usize,
    count: usize,
}

impl Doorbell for CDoorbell {
    fn write(&self, index: usize, value: u64) {
        let index = index.checked_rem(self.count).unwrap_or(0);
        self.writer.write64(self.offset.wrapping_add(index.wrapping_mul(8)), value);
    }
}

/// A register of four bytes.
pub(crate) struct CWord {
    writer: Writer,
    offset: usize,
}

impl WordRegister for CWord {
    fn write(&self, value: u32) {
        self.writer.write32(self.offset, value);
    }
}

/// Order of accesses.
#[derive(Clone, Copy)]
pub(crate) struct CFence {
    context: *mut c_void,
    barrier: Option<unsafe extern "C" fn(*mut c_void, u32)>,
}

impl CFence {
    #[inline(always)]
    fn order(&self, which: u32, own: impl FnOnce(CpuFence)) {
        match self.barrier {
            // SAFETY: the program promised the callback to `bv_bring_up`.
            Some(barrier) => unsafe { barrier(self.context, which) },
            None => own(CpuFence::UNCACHED),
        }
    }
}

impl DmaFence for CFence {
    #[inline(always)]
    fn release(&self) {
        self.order(BV_BARRIER_RELEASE, |fence| fence.release());
    }

    #[inline(always)]
    fn publish(&self) {
        self.order(BV_BARRIER_RELEASE, |fence| fence.publish());
    }

    #[inline(always)]
    fn acquire(&self) {
        self.order(BV_BARRIER_ACQUIRE, |fence| fence.acquire());
    }

    #[inline(always)]
    fn read_before_write(&self) {
        match self.barrier {
            Some(_) => {
                self.acquire();
                self.release();
            }
            None => CpuFence::UNCACHED.read_before_write(),
        }
    }

    #[inline(always)]
    fn flush(&self) {
        self.order(BV_BARRIER_FLUSH, |fence| fence.flush());
    }
}

/// Time.
pub(crate) struct CClock {
    context: *mut c_void,
    now: unsafe extern "C" fn(*mut c_void) -> u64,
    wait: Option<unsafe extern "C" fn(*mut c_void, u64)>,
}

impl Clock for CClock {
    fn now(&self) -> Instant {
        // SAFETY: the program promised the callback to `bv_bring_up`.
        Instant::from_nanos(unsafe { (self.now)(self.context) })
    }

    fn relax(&self, deadline: Instant) {
        match self.wait {
            // SAFETY: as above.
            Some(wait) => unsafe { wait(self.context, deadline.as_nanos()) },
            None => core::hint::spin_loop(),
        }
    }
}

/// Pages for the firmware.
pub(crate) struct CPages {
    context: *mut c_void,
    alloc: unsafe extern "C" fn(*mut c_void, *mut u64) -> i32,
    free: unsafe extern "C" fn(*mut c_void, u64) -> i32,
    free_all: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: the program promised to `bv_bring_up` that a page is nothing else's until it is freed.
unsafe impl PageSource for CPages {
    fn reserve(&mut self, _: u32) -> Result<(), TooFewPages> {
        // The program allocates page by page: one that is missing shows then.
        Ok(())
    }

    fn allocate(&mut self) -> Option<u64> {
        let mut device_addr = 0;
        // SAFETY: the program promised the callback to `bv_bring_up`; the address is that of a local variable.
        let result = unsafe { (self.alloc)(self.context, &raw mut device_addr) };
        (result == 0).then_some(device_addr)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        // SAFETY: as above.
        unsafe { (self.free)(self.context, device_addr) == 0 }
    }

    fn free_all(&mut self) {
        // SAFETY: as above.
        unsafe { (self.free_all)(self.context) }
    }
}

/// Where buffers lie for the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CMap {
    context: *mut c_void,
    extent: Option<unsafe extern "C" fn(*mut c_void, u64, *mut u64, *mut u64) -> i32>,
}

impl CMap {
    /// Returns the map of a machine that is there no more.
    pub(crate) const NONE: Self = Self { context: core::ptr::null_mut(), extent: None };
}

impl AddressMap for CMap {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let Some(extent) = self.extent else { return Some(Extent { device_addr: addr, len: u64::MAX - addr }) };
        let (mut device_addr, mut len) = (0, 0);
        // SAFETY: the program promised the callback to `bv_bring_up`; the addresses are those of local variables.
        let result = unsafe { extent(self.context, addr, &raw mut device_addr, &raw mut len) };
        // The core refuses an empty one.
        (result == 0).then_some(Extent { device_addr, len })
    }
}

/// Returns the machine of a program, and where its buffers lie.
///
/// # Safety
/// As of `bv_bring_up`.
pub(crate) unsafe fn machine(platform: &bv_platform) -> Result<(Machine<CMachine>, CMap), Argument> {
    let context = platform.context;
    let write32 = platform.write32.ok_or(Argument::Null("write32"))?;
    let read32 = platform.read32.ok_or(Argument::Null("read32"))?;
    let now = platform.now.ok_or(Argument::Null("now"))?;
    let alloc = platform.page_alloc.ok_or(Argument::Null("page_alloc"))?;
    let free = platform.page_free.ok_or(Argument::Null("page_free"))?;
    let free_all = platform.page_free_all.ok_or(Argument::Null("page_free_all"))?;
    let memory = NonNull::new(platform.memory).ok_or(Argument::Null("memory"))?;
    if !memory.addr().get().is_multiple_of(4096) {
        return Err(Argument::Misaligned("memory"));
    }
    if !platform.memory_device_addr.is_multiple_of(4096) {
        return Err(Argument::Misaligned("memory_device_addr"));
    }
    if platform.memory_size < BV_MEMORY_SIZE || isize::try_from(platform.memory_size).is_err() {
        return Err(Argument::Size("memory"));
    }
    let writer = Writer { context, write32, write64: platform.write64 };
    let machine = Machine {
        registers: CRegisters { writer, read32, size: platform.registers_size },
        // SAFETY: aligned; the rest was promised to `bv_bring_up`.
        memory: unsafe { MappedMemory::new(memory.cast(), platform.memory_size, platform.memory_device_addr) },
        pages: CPages { context, alloc, free, free_all },
        fence: CFence { context, barrier: platform.barrier },
        clock: CClock { context, now, wait: platform.wait },
    };
    Ok((machine, CMap { context, extent: platform.extent }))
}
