//! A machine for unit tests: bytes, a log of accesses, and a clock that advances at each read.

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;
use std::vec::Vec;

use bareverbs::platform::{
    Clock, DmaFence, DmaMemory, DmaRing, Doorbell, Instant, Machine, OutOfRange, PageSource, Platform, Registers, RingLayout,
    RingToken, RingView, TooFewPages, WordRegister,
};
use bareverbs_mlx5_spec::UAR_PAGE;

use crate::Config;
use crate::bring_up::caps::Page;
use crate::command::{CommandInterface, CommandQueue};
use crate::dma::arena::PageUse;
use crate::dma::uar::FIRST_UAR_PAGE;
use crate::driver::Driver;

/// An access. Values are as stored in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Store(usize, Vec<u8>),
    Register(usize, Vec<u8>),
    Release,
    Publish,
    Acquire,
    ReadBeforeWrite,
    Flush,
}

type Hook = std::boxed::Box<dyn FnMut(&mut [u8], usize, &[u8])>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) memory: Vec<u8>,
    pub(crate) registers: Vec<u8>,
    pub(crate) log: Vec<Done>,
    pub(crate) now: u64,
    /// Registers that were written, and when.
    pub(crate) written: Vec<(usize, u64)>,
    /// How often registers were read.
    pub(crate) reads: usize,
    /// The device: gets the memory and each register write.
    pub(crate) device: Option<Hook>,
}

pub(crate) type Shared = Rc<RefCell<State>>;

#[derive(Clone)]
pub(crate) struct Part(pub(crate) Shared);

pub(crate) struct MockPlatform;

// SAFETY: no device reaches anything here.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for MockPlatform {
    type Registers = Part;
    type Memory = Part;
    type Pages = MockPages;
    type Fence = Part;
    type Clock = Part;
}

/// Device address of the memory.
pub(crate) const DEVICE_ADDR: u64 = 0x12_3456_7000;

/// Fails a test if the driver uses an offset that is no register (PRM "Initialization Segment", "UAR Page Format"): between
/// them lie the MSI-X table and its pending bits.
impl Registers for Part {
    type Doorbell = MockRegister;
    type Word = MockRegister;

    fn doorbell(&self, offset: usize, count: usize) -> Result<MockRegister, OutOfRange> {
        let at = offset % UAR_PAGE;
        assert!(at == 0x20 && count == 1 || at >= 0x800 && at + 8 * count <= UAR_PAGE, "no doorbell at {offset:#x}");
        assert!(offset >= FIRST_UAR_PAGE * UAR_PAGE && at.is_multiple_of(8), "no doorbell at {offset:#x}");
        Ok(MockRegister { part: self.clone(), offset, count })
    }

    fn word(&self, offset: usize) -> Result<MockRegister, OutOfRange> {
        assert!(offset >= FIRST_UAR_PAGE * UAR_PAGE && matches!(offset % UAR_PAGE, 0x40 | 0x48), "no register at {offset:#x}");
        Ok(MockRegister { part: self.clone(), offset, count: 1 })
    }

    fn len(&self) -> usize {
        self.0.borrow().registers.len()
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        let readable =
            matches!(offset, 0x0 | 0x4 | 0x10 | 0x14 | 0x1fc | 0x200..0x240 | 0xff8 | 0xffc | 0x1000 | 0x1004 | 0x1010);
        assert!(readable, "no register to be read at {offset:#x}");
        let mut state = self.0.borrow_mut();
        state.reads += 1;
        let bytes =
            state.registers.get(offset..offset + 4).ok_or(OutOfRange { offset, len: 4, size: state.registers.len() })?;
        Ok(u32::from_ne_bytes(bytes.try_into().unwrap()))
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        assert!(matches!(offset, 0x10 | 0x14 | 0x18), "no register to be written at {offset:#x}");
        self.write_register(offset, &value.to_ne_bytes())
    }
}

/// A doorbell register.
pub(crate) struct MockRegister {
    part: Part,
    offset: usize,
    count: usize,
}

impl Doorbell for MockRegister {
    fn write(&self, index: usize, value: u64) {
        self.part.write_register(self.offset + 8 * (index % self.count), &value.to_ne_bytes()).unwrap();
    }
}

impl WordRegister for MockRegister {
    fn write(&self, value: u32) {
        self.part.write_register(self.offset, &value.to_ne_bytes()).unwrap();
    }
}

/// A ring in the memory.
pub(crate) struct MockRing {
    part: Part,
    span: RingLayout,
}

impl MockRing {
    fn at(&self, word: u32) -> usize {
        self.span.ring() + word as usize * 8 % self.span.len()
    }
}

impl DmaRing for MockRing {
    type View<'a> = &'a Self;

    fn view(&self) -> &Self {
        self
    }
}

impl RingView for &MockRing {
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        let at = self.at(block.wrapping_mul(8));
        self.part.clone().store(at, words).unwrap();
    }

    fn put_word(self, word: u32, value: u64) {
        let at = self.at(word);
        self.part.clone().store(at, &[value]).unwrap();
    }

    fn word(self, word: u32) -> u64 {
        DmaMemory::load::<1>(&self.part, self.at(word)).unwrap()[0]
    }

    fn record(self, second: bool, value: u32) {
        let at = self.span.doorbell_record() + 4 * usize::from(second);
        self.part.clone().store_u32(at, value).unwrap();
    }
}

impl Part {
    fn write_register(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        let mut state = self.0.borrow_mut();
        state.log.push(Done::Register(offset, bytes.to_vec()));
        let now = state.now;
        state.written.push((offset, now));
        let State { registers, memory, device, .. } = &mut *state;
        let out = OutOfRange { offset, len: bytes.len(), size: registers.len() };
        let place = registers.get_mut(offset..offset + bytes.len()).ok_or(out)?;
        place.copy_from_slice(bytes);
        if let Some(device) = device {
            device(memory, offset, bytes);
        }
        Ok(())
    }
}

// SAFETY: no device reaches the memory but a test's own closure, and every access is checked.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl DmaMemory for Part {
    type Ring = MockRing;

    fn ring(&self, _: RingToken, span: &RingLayout) -> Result<MockRing, OutOfRange> {
        if span.end() > DmaMemory::len(self) {
            return Err(OutOfRange { offset: span.ring(), len: span.len(), size: DmaMemory::len(self) });
        }
        Ok(MockRing { part: self.clone(), span: *span })
    }

    fn len(&self) -> usize {
        self.0.borrow().memory.len()
    }

    fn device_addr(&self) -> u64 {
        DEVICE_ADDR
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let state = self.0.borrow();
        let out = OutOfRange { offset: at, len: into.len(), size: state.memory.len() };
        into.copy_from_slice(state.memory.get(at..at + into.len()).ok_or(out)?);
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let mut state = self.0.borrow_mut();
        state.log.push(Done::Store(at, from.to_vec()));
        let out = OutOfRange { offset: at, len: from.len(), size: state.memory.len() };
        let place = state.memory.get_mut(at..at + from.len()).ok_or(out)?;
        place.copy_from_slice(from);
        Ok(())
    }

    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let out = OutOfRange { offset: at, len: 1, size: DmaMemory::len(self) };
        self.0.borrow().memory.get(at).copied().ok_or(out)
    }

    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        self.write(at, &value.to_ne_bytes())
    }

    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.read(at + 8 * index, &mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(words)
    }

    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write(at, &bytes)
    }
}

impl DmaFence for Part {
    fn release(&self) {
        self.0.borrow_mut().log.push(Done::Release);
    }

    fn publish(&self) {
        self.0.borrow_mut().log.push(Done::Publish);
    }

    fn read_before_write(&self) {
        self.0.borrow_mut().log.push(Done::ReadBeforeWrite);
    }

    fn acquire(&self) {
        self.0.borrow_mut().log.push(Done::Acquire);
    }

    fn flush(&self) {
        self.0.borrow_mut().log.push(Done::Flush);
    }
}

impl Clock for Part {
    fn now(&self) -> Instant {
        let mut state = self.0.borrow_mut();
        state.now += 1000;
        Instant::from_nanos(state.now)
    }
}

/// Pages for the firmware, at addresses of no memory: bit n for the page at `FIRMWARE_ADDR + n * 4096`.
#[derive(Default)]
pub(crate) struct MockPages {
    pub(crate) allocated: u64,
}

/// Address of the first page for the firmware.
pub(crate) const FIRMWARE_ADDR: u64 = 0x77_0000_0000;

// SAFETY: no device reaches the pages.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl PageSource for MockPages {
    fn reserve(&mut self, wanted: u32) -> Result<(), TooFewPages> {
        let available = self.allocated.count_zeros();
        if wanted <= available { Ok(()) } else { Err(TooFewPages { wanted, available }) }
    }

    fn allocate(&mut self) -> Option<u64> {
        let page = u64::from(self.allocated.trailing_ones());
        self.allocated |= 1u64.checked_shl(page as u32)?;
        Some(FIRMWARE_ADDR + page * 4096)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        let page = device_addr.wrapping_sub(FIRMWARE_ADDR) / 4096;
        let bit = if device_addr.is_multiple_of(4096) && page < 64 { 1 << page } else { 0 };
        let was = self.allocated & bit != 0;
        self.allocated &= !bit;
        was
    }

    fn free_all(&mut self) {
        self.allocated = 0;
    }
}

/// Pages of the arena.
pub(crate) const PAGES: usize = 32;

/// Returns a machine and its state.
pub(crate) fn machine() -> (Machine<MockPlatform>, Shared) {
    let shared = Shared::default();
    shared.borrow_mut().memory = std::vec![0; PAGES * 4096];
    shared.borrow_mut().registers = std::vec![0; 0x10000];
    let part = || Part(shared.clone());
    (Machine { registers: part(), memory: part(), pages: MockPages::default(), fence: part(), clock: part() }, shared)
}

/// Returns a driver that has not accessed its device, and its machine.
pub(crate) fn driver() -> (Driver<MockPlatform, [PageUse; PAGES]>, Shared) {
    let (machine, shared) = machine();
    let config = Config { command_timeout: Duration::from_millis(1), ..Config::DEFAULT };
    (Driver::new(machine, config), shared)
}

/// Returns a driver with a command queue of four slots in page 0.
pub(crate) fn started() -> (Driver<MockPlatform, [PageUse; PAGES]>, Shared) {
    let (mut driver, shared) = driver();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let range = commands.arena.allocate(1).unwrap();
    commands.queue = CommandQueue::new(range.at(), 2, 6);
    (driver, shared)
}

/// Sets a dword of the general capabilities of the device, which begins at this byte of the page.
pub(crate) fn offer(general: &mut Page, dword: usize, value: u32) {
    // The output that the page is in has 16 bytes before it.
    general[16 + dword..][..4].copy_from_slice(&value.to_be_bytes());
}

/// Makes the device complete every command with success and zeros.
pub(crate) fn acknowledge(shared: &Shared) {
    shared.borrow_mut().device = Some(std::boxed::Box::new(|memory, at, value| {
        if at == 0x18 {
            let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize;
            memory[slot * 64 + 32..slot * 64 + 48].fill(0);
            memory[slot * 64 + 63] = 0;
        }
    }));
}

/// Makes the device execute every command with success by `answer`, which gets the whole input, and the whole output to be set. Where they
/// lie is by Linux's `struct mlx5_cmd_layout` and `struct mlx5_cmd_prot_block`.
pub(crate) fn respond(shared: &Shared, mut answer: impl FnMut(&[u8], &mut [u8]) + 'static) {
    shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, value| {
        if at != 0x18 {
            return;
        }
        let entry = 64 * u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize;
        let len = |memory: &[u8], at: usize| u32::from_be_bytes(memory[entry + at..][..4].try_into().unwrap()) as usize;
        let pieces = |memory: &[u8], first: usize, pointer: usize, len: usize| {
            let mut pieces = std::vec![(entry + first, len.min(16))];
            let mut left = len.saturating_sub(16);
            let mut pointer = u64::from_be_bytes(memory[entry + pointer..][..8].try_into().unwrap());
            while left != 0 {
                let block = (pointer - DEVICE_ADDR) as usize;
                pieces.push((block, left.min(512)));
                left -= left.min(512);
                pointer = u64::from_be_bytes(memory[block + 560..][..8].try_into().unwrap());
            }
            pieces
        };
        let (asked, answered) = (pieces(memory, 16, 8, len(memory, 4)), pieces(memory, 32, 48, len(memory, 56)));
        let input: Vec<u8> = asked.iter().flat_map(|(at, len)| memory[*at..][..*len].to_vec()).collect();
        let mut output = std::vec![0; len(memory, 56)];
        answer(&input, &mut output);
        let mut rest = &output[..];
        for (at, len) in answered {
            memory[at..][..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
        }
        memory[entry + 63] = 0;
    }));
}

/// Returns the opcode of a command's input.
pub(crate) fn opcode_of(input: &[u8]) -> u16 {
    u16::from_be_bytes([input[0], input[1]])
}
