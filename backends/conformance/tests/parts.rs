//! Each check finds what it is for: a part of a machine that is right passes, and one that is wrong in one way is named.
#![expect(clippy::indexing_slicing, reason = "a test fails by it")]
#![expect(unsafe_code, reason = "the traits are unsafe to implement")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bareverbs::DmaBuffer;
use bareverbs::platform::{
    AddressMap, Clock, DmaFence, DmaMemory, DmaRing, Doorbell, Extent, Instant, Machine, OutOfRange, PageSource, Platform,
    Registers, RingLayout, RingToken, RingView, TooFewPages, WordRegister,
};
use bareverbs_conformance::{
    BufferFault, Call, ClockFault, MachineFault, MemoryFault, PageFault, RegisterCall, RegisterFault, check_buffer,
    check_clock, check_clock_against, check_machine, check_memory, check_pages, check_registers,
};

/// What is wrong with a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// What no memory has.
    Never,
    Short,
    Misaligned,
    Wraps,
    ReadBeyond,
    WriteBeyond,
    ReadU8Beyond,
    StoreU32Beyond,
    StoreU32Unaligned,
    LoadBeyond,
    LoadUnaligned,
    StoreBeyond,
    RingBeyond,
    LastByteRefused,
    /// The upper half is the lower one once more: an address line is not connected.
    Mirror,
    /// A copy drops what comes after its last whole word.
    TailDropped,
    /// A copy writes whole words.
    WholeWords,
    /// A write that is refused has written what fits.
    RefusedInPart,
    ReadU8OfWord,
    /// A word is turned round.
    StoreU32Swapped,
    StoreU32Wide,
    StoreSwapped,
    LoadSwapped,
    PutWordNotRound,
    PutPairSwapped,
    PutPairNotRound,
    PutWide,
    PutNotRound,
    WordNotRound,
    BlockWordOfFirst,
    RecordFirstOnly,
    RecordWide,
}

const LEN: usize = 8192;

#[derive(Clone, Debug)]
struct TestMemory {
    bytes: Rc<RefCell<Vec<u8>>>,
    wrong: Wrong,
}

impl TestMemory {
    fn new(wrong: Wrong) -> Self {
        // What is beyond the end, for calls that accept it.
        Self { bytes: Rc::new(RefCell::new(vec![0xee; 2 * LEN])), wrong }
    }

    fn check(&self, at: usize, len: usize, align: usize, beyond: Wrong, unaligned: Wrong) -> Result<(), OutOfRange> {
        let size = self.len();
        let inside = at.checked_add(len).is_some_and(|end| end <= size);
        let spared = (self.wrong == beyond && at < size) || (self.wrong == unaligned && inside);
        let refused = self.wrong == Wrong::LastByteRefused && at.wrapping_add(len) == size;
        let good = inside && at.is_multiple_of(align) && !refused;
        if good || spared { Ok(()) } else { Err(OutOfRange { offset: at, len, size }) }
    }

    fn place(&self, at: usize) -> usize {
        if self.wrong == Wrong::Mirror { at % (LEN / 2) } else { at }
    }

    fn get(&self, at: usize) -> u8 {
        self.bytes.borrow()[self.place(at)]
    }

    fn set(&self, at: usize, byte: u8) {
        let at = self.place(at);
        self.bytes.borrow_mut()[at] = byte;
    }

    fn get_word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|index| self.get(at + index)))
    }

    fn set_word(&self, at: usize, value: u64) {
        value.to_ne_bytes().into_iter().enumerate().for_each(|(index, byte)| self.set(at + index, byte));
    }
}

// SAFETY: no device reaches it.
unsafe impl DmaMemory for TestMemory {
    type Ring = TestRing;

    fn len(&self) -> usize {
        if self.wrong == Wrong::Short { 2048 } else { LEN }
    }

    fn device_addr(&self) -> u64 {
        match self.wrong {
            Wrong::Misaligned => 0x10_0800,
            Wrong::Wraps => 0xffff_ffff_ffff_f000,
            _ => 0x10_0000,
        }
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(at, into.len(), 1, Wrong::ReadBeyond, Wrong::Never)?;
        into.iter_mut().enumerate().for_each(|(index, byte)| *byte = self.get(at + index));
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let checked = self.check(at, from.len(), 1, Wrong::WriteBeyond, Wrong::Never);
        if checked.is_err() && !(self.wrong == Wrong::RefusedInPart && at < LEN) {
            return checked;
        }
        let mut from = from.to_vec();
        match self.wrong {
            Wrong::TailDropped => from.truncate(((at + from.len()) & !7).saturating_sub(at)),
            Wrong::WholeWords => from.resize((at + from.len()).next_multiple_of(8) - at, 0),
            _ => {}
        }
        from.iter().enumerate().for_each(|(index, byte)| self.set(at + index, *byte));
        checked
    }

    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        self.check(at, 1, 1, Wrong::ReadU8Beyond, Wrong::Never)
            .or_else(|error| if self.wrong == Wrong::ReadU8Beyond && at == LEN { Ok(()) } else { Err(error) })?;
        Ok(self.get(if self.wrong == Wrong::ReadU8OfWord { at & !7 } else { at }))
    }

    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        self.check(at, 4, 4, Wrong::Never, Wrong::StoreU32Unaligned)
            .or_else(|error| if self.wrong == Wrong::StoreU32Beyond && at == LEN { Ok(()) } else { Err(error) })?;
        let value = if self.wrong == Wrong::StoreU32Swapped { value.swap_bytes() } else { value };
        value.to_ne_bytes().into_iter().enumerate().for_each(|(index, byte)| self.set(at + index, byte));
        if self.wrong == Wrong::StoreU32Wide {
            (4..8).for_each(|index| self.set(at + index, 0xff));
        }
        Ok(())
    }

    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        self.check(at, 8 * N, 8, Wrong::LoadBeyond, Wrong::LoadUnaligned)?;
        let word = |index| self.get_word(at + 8 * index);
        Ok(std::array::from_fn(|index| if self.wrong == Wrong::LoadSwapped { word(index).swap_bytes() } else { word(index) }))
    }

    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        self.check(at, 8 * N, 8, Wrong::StoreBeyond, Wrong::Never)?;
        for (index, word) in words.iter().enumerate() {
            self.set_word(at + 8 * index, if self.wrong == Wrong::StoreSwapped { word.swap_bytes() } else { *word });
        }
        Ok(())
    }

    fn ring(&self, _: RingToken, layout: &RingLayout) -> Result<TestRing, OutOfRange> {
        if layout.end() > self.len() && self.wrong != Wrong::RingBeyond {
            return Err(OutOfRange { offset: layout.ring(), len: layout.len(), size: self.len() });
        }
        Ok(TestRing { memory: self.clone(), layout: *layout })
    }
}

#[derive(Debug)]
struct TestRing {
    memory: TestMemory,
    layout: RingLayout,
}

impl TestRing {
    fn word_at(&self, word: u32, wrong: Wrong) -> usize {
        let words = self.layout.len() / 8 * if self.memory.wrong == wrong { 2 } else { 1 };
        self.layout.ring() + word as usize % words * 8
    }
}

impl DmaRing for TestRing {
    type View<'a> = &'a Self;

    fn view(&self) -> &Self {
        self
    }
}

impl RingView for &TestRing {
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        let first = self.word_at(block.wrapping_mul(8), Wrong::PutNotRound);
        words.iter().enumerate().for_each(|(index, word)| self.memory.set_word(first + 8 * index, *word));
        if self.memory.wrong == Wrong::PutWide {
            (N..8).for_each(|index| self.memory.set_word(first + 8 * index, 0));
        }
    }

    fn put_word(self, word: u32, value: u64) {
        self.memory.set_word(self.word_at(word, Wrong::PutWordNotRound), value);
    }

    fn put_pair(self, pair: u32, [first, second]: [u64; 2]) {
        let words = if self.memory.wrong == Wrong::PutPairSwapped { [second, first] } else { [first, second] };
        let at = self.word_at(pair.wrapping_mul(2), Wrong::PutPairNotRound);
        words.iter().enumerate().for_each(|(index, word)| self.memory.set_word(at + 8 * index, *word));
    }

    fn word(self, word: u32) -> u64 {
        self.memory.get_word(self.word_at(word, Wrong::WordNotRound))
    }

    fn block_word(self, block: u32, word: usize) -> u64 {
        let word = if self.memory.wrong == Wrong::BlockWordOfFirst { 0 } else { word };
        self.memory.get_word(self.word_at(block.wrapping_mul(8).wrapping_add(word as u32 & 7), Wrong::Never))
    }

    fn record(self, second: bool, value: u32) {
        let wide = self.memory.wrong == Wrong::RecordWide;
        let at = self.layout.doorbell_record() + if second && self.memory.wrong != Wrong::RecordFirstOnly { 4 } else { 0 };
        value.to_ne_bytes().into_iter().enumerate().for_each(|(index, byte)| self.memory.set(at + index, byte));
        if wide {
            self.memory.set(self.layout.doorbell_record() + 8, 0x77);
        }
    }
}

#[test]
fn memory_that_is_wrong_is_named() {
    use MemoryFault::{Accepted, Differs, Misaligned, Refused, Short, Wraps};
    // Which fault a wrong memory must be found to have, by the call that it is about.
    let differs = |call: Call| move |fault: MemoryFault| matches!(fault, Differs { call: of, .. } if of == call);
    let accepted = |call: Call| move |fault: MemoryFault| matches!(fault, Accepted { call: of, .. } if of == call);
    type Found = Box<dyn Fn(MemoryFault) -> bool>;
    let cases: Vec<(Wrong, Found)> = vec![
        (Wrong::Short, Box::new(|fault| fault == Short { len: 2048 })),
        (Wrong::Misaligned, Box::new(|fault| fault == Misaligned { device_addr: 0x10_0800 })),
        (Wrong::Wraps, Box::new(|fault| matches!(fault, Wraps { .. }))),
        (Wrong::ReadBeyond, Box::new(|fault| fault == Accepted { call: Call::Read, at: LEN - 1, len: 2 })),
        (Wrong::WriteBeyond, Box::new(|fault| fault == Accepted { call: Call::Write, at: LEN - 1, len: 2 })),
        (Wrong::ReadU8Beyond, Box::new(accepted(Call::ReadU8))),
        (Wrong::StoreU32Beyond, Box::new(accepted(Call::StoreU32))),
        (Wrong::StoreU32Unaligned, Box::new(accepted(Call::StoreU32))),
        (Wrong::LoadBeyond, Box::new(accepted(Call::Load))),
        (Wrong::LoadUnaligned, Box::new(|fault| fault == Accepted { call: Call::Load, at: 1, len: 8 })),
        (Wrong::StoreBeyond, Box::new(accepted(Call::Store))),
        (Wrong::RingBeyond, Box::new(accepted(Call::Ring))),
        (Wrong::LastByteRefused, Box::new(|fault| matches!(fault, Refused { call: Call::Write, .. }))),
        (Wrong::Mirror, Box::new(differs(Call::Write))),
        (Wrong::TailDropped, Box::new(differs(Call::Write))),
        (Wrong::WholeWords, Box::new(differs(Call::Write))),
        (Wrong::RefusedInPart, Box::new(differs(Call::Write))),
        (Wrong::ReadU8OfWord, Box::new(differs(Call::ReadU8))),
        (Wrong::StoreU32Swapped, Box::new(differs(Call::StoreU32))),
        (Wrong::StoreU32Wide, Box::new(differs(Call::StoreU32))),
        (Wrong::StoreSwapped, Box::new(differs(Call::Store))),
        (Wrong::LoadSwapped, Box::new(differs(Call::Load))),
        (Wrong::PutWordNotRound, Box::new(differs(Call::PutWord))),
        (Wrong::PutPairSwapped, Box::new(differs(Call::PutPair))),
        (Wrong::PutPairNotRound, Box::new(differs(Call::PutPair))),
        (Wrong::PutWide, Box::new(differs(Call::Put))),
        (Wrong::PutNotRound, Box::new(differs(Call::Put))),
        (Wrong::WordNotRound, Box::new(differs(Call::Word))),
        (Wrong::BlockWordOfFirst, Box::new(differs(Call::BlockWord))),
        (Wrong::RecordFirstOnly, Box::new(differs(Call::Record))),
        (Wrong::RecordWide, Box::new(differs(Call::Record))),
    ];
    assert_eq!(check_memory(&mut TestMemory::new(Wrong::Nothing)), Ok(()));
    for (wrong, is_found) in cases {
        let fault = check_memory(&mut TestMemory::new(wrong)).expect_err(&format!("{wrong:?} was not found"));
        assert!(is_found(fault), "{wrong:?} gave {fault:?}");
        assert!(!fault.to_string().is_empty());
    }
}

/// What is wrong with registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrongRegisters {
    Nothing,
    /// What no registers have.
    Never,
    Short,
    ReadRefused,
    ReadUnaligned,
    ReadBeyond,
    WriteBeyond,
    WordBeyond,
    WordUnaligned,
    LastWordRefused,
    LastDoorbellRefused,
    DoorbellBeyond,
    DoorbellUnaligned,
    DoorbellsWithoutOne,
    /// The end is computed with an addition that comes round.
    Overflow,
}

struct TestRegisters {
    wrong: WrongRegisters,
}

struct Nowhere;

impl Doorbell for Nowhere {
    fn write(&self, _: usize, _: u64) {}
}

impl WordRegister for Nowhere {
    fn write(&self, _: u32) {}
}

impl TestRegisters {
    fn check(
        &self,
        (offset, len, align): (usize, usize, usize),
        beyond: WrongRegisters,
        unaligned: WrongRegisters,
    ) -> Result<(), OutOfRange> {
        let size = self.len();
        let inside = match self.wrong {
            WrongRegisters::Overflow => offset.wrapping_add(len) <= size,
            wrong if wrong == beyond => offset <= size,
            _ => offset.checked_add(len).is_some_and(|end| end <= size),
        };
        let aligned = offset.is_multiple_of(align) || self.wrong == unaligned;
        if inside && aligned { Ok(()) } else { Err(OutOfRange { offset, len, size }) }
    }
}

impl Registers for TestRegisters {
    type Doorbell = Nowhere;
    type Word = Nowhere;

    fn len(&self) -> usize {
        if self.wrong == WrongRegisters::Short { 64 } else { 0x4000 }
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        if self.wrong == WrongRegisters::ReadRefused {
            return Err(OutOfRange { offset, len: 4, size: self.len() });
        }
        self.check((offset, 4, 4), WrongRegisters::ReadBeyond, WrongRegisters::ReadUnaligned).map(|()| 0)
    }

    fn write32(&mut self, offset: usize, _: u32) -> Result<(), OutOfRange> {
        self.check((offset, 4, 4), WrongRegisters::WriteBeyond, WrongRegisters::Never)
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<Nowhere, OutOfRange> {
        let out = OutOfRange { offset, len: count.saturating_mul(8), size: self.len() };
        let last = self.wrong == WrongRegisters::LastDoorbellRefused && offset + 8 * count == self.len();
        if last || count == 0 && self.wrong != WrongRegisters::DoorbellsWithoutOne {
            return Err(out);
        }
        let len = count.checked_mul(8).ok_or(out)?;
        self.check((offset, len, 8), WrongRegisters::DoorbellBeyond, WrongRegisters::DoorbellUnaligned).map(|()| Nowhere)
    }

    fn word(&self, offset: usize) -> Result<Nowhere, OutOfRange> {
        if self.wrong == WrongRegisters::LastWordRefused && offset + 4 == self.len() {
            return Err(OutOfRange { offset, len: 4, size: self.len() });
        }
        self.check((offset, 4, 4), WrongRegisters::WordBeyond, WrongRegisters::WordUnaligned).map(|()| Nowhere)
    }
}

#[test]
fn registers_that_are_wrong_are_named() {
    use RegisterCall::{Doorbell, Read32, Word, Write32};
    let accepted = |call| move |fault| matches!(fault, RegisterFault::Accepted { call: of, .. } if of == call);
    let refused = |call| move |fault| matches!(fault, RegisterFault::Refused { call: of, .. } if of == call);
    type Found = Box<dyn Fn(RegisterFault) -> bool>;
    let cases: Vec<(WrongRegisters, Found)> = vec![
        (WrongRegisters::Short, Box::new(|fault| fault == RegisterFault::Short { len: 64 })),
        (WrongRegisters::ReadRefused, Box::new(refused(Read32))),
        (WrongRegisters::ReadUnaligned, Box::new(accepted(Read32))),
        (WrongRegisters::ReadBeyond, Box::new(accepted(Read32))),
        (WrongRegisters::WriteBeyond, Box::new(accepted(Write32))),
        (WrongRegisters::WordBeyond, Box::new(accepted(Word))),
        (WrongRegisters::WordUnaligned, Box::new(accepted(Word))),
        (WrongRegisters::LastWordRefused, Box::new(refused(Word))),
        (WrongRegisters::LastDoorbellRefused, Box::new(refused(Doorbell))),
        (WrongRegisters::DoorbellBeyond, Box::new(accepted(Doorbell))),
        (WrongRegisters::DoorbellUnaligned, Box::new(accepted(Doorbell))),
        (WrongRegisters::DoorbellsWithoutOne, Box::new(accepted(Doorbell))),
        (WrongRegisters::Overflow, Box::new(|fault| matches!(fault, RegisterFault::Accepted { .. }))),
    ];
    assert_eq!(check_registers(&mut TestRegisters { wrong: WrongRegisters::Nothing }), Ok(()));
    for (wrong, is_found) in cases {
        let fault = check_registers(&mut TestRegisters { wrong }).expect_err(&format!("{wrong:?} was not found"));
        assert!(is_found(fault), "{wrong:?} gave {fault:?}");
        assert!(!fault.to_string().is_empty());
    }
}

/// A clock on which `step` nanoseconds pass at each look, and `pause` in each pause.
struct TestClock {
    now: Cell<u64>,
    step: i64,
    /// From the 40th look on.
    later_step: i64,
    looks: Cell<u32>,
    pause: u64,
}

impl TestClock {
    fn new(step: i64, later_step: i64, pause: u64) -> Self {
        Self { now: Cell::new(1_000_000), step, later_step, looks: Cell::new(0), pause }
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        self.looks.set(self.looks.get() + 1);
        let step = if self.looks.get() < 40 { self.step } else { self.later_step };
        self.now.set(self.now.get().wrapping_add_signed(step));
        Instant::from_nanos(self.now.get())
    }

    fn relax(&self, _: Instant) {
        self.now.set(self.now.get() + self.pause);
    }
}

#[test]
fn a_clock_that_is_wrong_is_named() {
    assert_eq!(check_clock(&TestClock::new(100, 100, 0)).unwrap().step, Duration::from_nanos(100));
    assert!(check_clock(&TestClock::new(0, 0, 5_000)).is_ok(), "time that passes in pauses alone");
    assert!(matches!(check_clock(&TestClock::new(100, -100, 0)), Err(ClockFault::Back { .. })));
    assert!(matches!(check_clock(&TestClock::new(0, 0, 0)), Err(ClockFault::Stopped { .. })));
    let overslept = check_clock(&TestClock::new(100, 100, 3_000_000_000)).unwrap_err();
    assert!(matches!(overslept, ClockFault::Overslept { by } if by.as_secs() == 2), "{overslept:?}");
    assert!(!overslept.to_string().is_empty());
    let second = Duration::from_secs(1);
    let right = TestClock::new(100_000, 100_000, 0);
    // Both are looked at: on the other one ten times as often, but only the first and the last look of this one counts.
    struct Ticks<'c>(&'c TestClock, u64, u64);
    impl Clock for Ticks<'_> {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.now.get() / self.1 * self.2)
        }
    }
    assert_eq!(check_clock_against(&Ticks(&right, 1, 1), &right, second), Ok(()));
    let slow = check_clock_against(&Ticks(&right, 100, 1), &right, second);
    assert!(matches!(slow, Err(ClockFault::Rate { .. })), "ticks of 100 ns: {slow:?}");
    assert!(matches!(check_clock_against(&Ticks(&right, 4, 5), &right, second), Err(ClockFault::Rate { .. })));
    let stopped = TestClock::new(0, 0, 0);
    assert!(matches!(check_clock_against(&Ticks(&stopped, 1, 1), &right, second), Err(ClockFault::Rate { .. })));
}

/// What is wrong with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrongPages {
    Nothing,
    None,
    Misaligned,
    Twice,
    TwiceAtTheEnd,
    PromisesMore,
    Contradicts,
    BreaksReservation,
    DoesNotFree,
    FreesUnknown,
    FreesTwice,
    FreesByPage,
    Loses,
    FreeAllDoesNothing,
    FreeAllLosesOne,
}

struct TestPages {
    wrong: WrongPages,
    held: Vec<bool>,
    base: u64,
    /// Pages that are gone for ever.
    lost: usize,
    scribble: Option<TestMemory>,
}

impl TestPages {
    fn new(wrong: WrongPages) -> Self {
        Self {
            wrong,
            held: vec![false; if wrong == WrongPages::None { 0 } else { 40 }],
            base: 0x20_0000,
            lost: 0,
            scribble: None,
        }
    }

    fn left(&self) -> u32 {
        (self.held.iter().filter(|held| !**held).count().saturating_sub(self.lost)) as u32
    }
}

// SAFETY: no device reaches them.
unsafe impl PageSource for TestPages {
    fn reserve(&mut self, wanted: u32) -> Result<(), TooFewPages> {
        let available = self.left();
        let promised = self.wrong == WrongPages::PromisesMore && wanted == 1;
        if wanted <= available || promised {
            return Ok(());
        }
        let available = if self.wrong == WrongPages::Contradicts { 3 } else { available };
        Err(TooFewPages { wanted, available })
    }

    fn allocate(&mut self) -> Option<u64> {
        if self.left() == 0 || self.wrong == WrongPages::BreaksReservation && self.left() == 35 {
            return None;
        }
        let index = self.held.iter().position(|held| !held)?;
        self.held[index] = true;
        if let Some(memory) = &self.scribble {
            memory.set(5000, 0);
            memory.set(5001, 1);
        }
        let index = match self.wrong {
            WrongPages::Twice if index == 7 => 6,
            WrongPages::TwiceAtTheEnd if index == 39 => 38,
            _ => index,
        };
        let offset = if self.wrong == WrongPages::Misaligned && index == 20 { 512 } else { 0 };
        Some(self.base + index as u64 * 4096 + offset)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        let index = (device_addr.wrapping_sub(self.base) / 4096) as usize;
        if self.wrong == WrongPages::FreesUnknown && index >= self.held.len() {
            return true;
        }
        let whole = device_addr.is_multiple_of(4096) || self.wrong == WrongPages::FreesByPage;
        let Some(held) = self.held.get_mut(index).filter(|_| whole) else { return false };
        if self.wrong == WrongPages::DoesNotFree && index == 9 {
            return false;
        }
        let was = std::mem::replace(held, false);
        if was && self.wrong == WrongPages::Loses && index == 11 {
            self.lost += 1;
        }
        was || self.wrong == WrongPages::FreesTwice
    }

    fn free_all(&mut self) {
        match self.wrong {
            WrongPages::FreeAllDoesNothing => {}
            WrongPages::FreeAllLosesOne if self.held.iter().all(|held| *held) => self.held[1..].fill(false),
            _ => self.held.fill(false),
        }
    }
}

#[test]
fn pages_that_are_wrong_are_named() {
    type Found = fn(PageFault) -> bool;
    let cases: [(WrongPages, Found); 14] = [
        (WrongPages::None, |fault| fault == PageFault::None),
        (WrongPages::Misaligned, |fault| fault == PageFault::Misaligned { device_addr: 0x21_4200 }),
        (WrongPages::Twice, |fault| fault == PageFault::Twice { device_addr: 0x20_6000 }),
        (WrongPages::TwiceAtTheEnd, |fault| fault == PageFault::Twice { device_addr: 0x22_6000 }),
        (WrongPages::PromisesMore, |fault| fault == PageFault::Promised { wanted: 1 }),
        (WrongPages::Contradicts, |fault| fault == PageFault::Contradiction { wanted: 1, available: 3 }),
        (WrongPages::BreaksReservation, |fault| fault == PageFault::Broken { reserved: 16, allocated: 5 }),
        (WrongPages::DoesNotFree, |fault| fault == PageFault::NotFreed { device_addr: 0x20_9000 }),
        (WrongPages::FreesUnknown, |fault| matches!(fault, PageFault::Freed { .. })),
        (WrongPages::FreesTwice, |fault| matches!(fault, PageFault::Freed { .. })),
        (WrongPages::FreesByPage, |fault| matches!(fault, PageFault::Freed { device_addr } if device_addr % 4096 == 1)),
        (WrongPages::Loses, |fault| fault == PageFault::Lost { before: 40, after: 39 }),
        (WrongPages::FreeAllDoesNothing, |fault| fault == PageFault::Freed { device_addr: 0x20_0000 }),
        (WrongPages::FreeAllLosesOne, |fault| matches!(fault, PageFault::Freed { .. } | PageFault::Lost { .. })),
    ];
    assert_eq!(check_pages(&mut TestPages::new(WrongPages::Nothing), &mut [0; 64]), Ok(()));
    assert_eq!(check_pages(&mut TestPages::new(WrongPages::Nothing), &mut [0; 10]), Ok(()), "fewer than there are");
    for (wrong, is_found) in cases {
        let fault = check_pages(&mut TestPages::new(wrong), &mut [0; 64]).expect_err(&format!("{wrong:?} was not found"));
        assert!(is_found(fault), "{wrong:?} gave {fault:?}");
        assert!(!fault.to_string().is_empty());
    }
}

/// What is wrong with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrongBuffer {
    Nothing,
    Empty,
    ReadBeyond,
    LastByteRefused,
    Mirror,
    NoExtent,
    EmptyExtent,
    OverlappingExtents,
    ExtentTooLong,
    ExtentBeyondTheEnd,
}

struct TestBuffer {
    wrong: WrongBuffer,
    bytes: Vec<u8>,
}

const BUFFER: usize = 3 * 4096;
const BUFFER_ADDR: u64 = 0x7000_0000;

impl AddressMap for TestBuffer {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let offset = addr.checked_sub(BUFFER_ADDR).filter(|offset| *offset < BUFFER as u64)?;
        let (page, within) = (offset / 4096, offset % 4096);
        // Pages apart, in another order.
        let frame = match self.wrong {
            WrongBuffer::OverlappingExtents => [7, 7, 7],
            WrongBuffer::ExtentBeyondTheEnd => [9, (1 << 52) - 1, 7],
            _ => [9, 3, 7],
        }[page as usize];
        let left = 4096 - within;
        let len = match self.wrong {
            WrongBuffer::NoExtent if page == 1 => return None,
            WrongBuffer::EmptyExtent if page == 2 => 0,
            WrongBuffer::ExtentTooLong => BUFFER as u64 - offset,
            WrongBuffer::ExtentBeyondTheEnd if page == 1 => left + 1,
            _ => left,
        };
        Some(Extent { device_addr: frame * 4096 + within, len })
    }
}

// SAFETY: no device reaches it.
unsafe impl DmaBuffer for TestBuffer {
    fn addr(&self) -> u64 {
        BUFFER_ADDR
    }

    fn len(&self) -> u64 {
        if self.wrong == WrongBuffer::Empty { 0 } else { BUFFER as u64 }
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let out = OutOfRange { offset: at, len: into.len(), size: BUFFER };
        let end = at.checked_add(into.len()).ok_or(out)?;
        if end > BUFFER && self.wrong != WrongBuffer::ReadBeyond || end == BUFFER && self.wrong == WrongBuffer::LastByteRefused
        {
            return Err(out);
        }
        let half = self.wrong == WrongBuffer::Mirror;
        into.iter_mut().enumerate().for_each(|(index, byte)| {
            let at = at + index;
            *byte = self.bytes[if half { at % (BUFFER / 2) } else { at }];
        });
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let out = OutOfRange { offset: at, len: from.len(), size: BUFFER };
        if at.checked_add(from.len()).is_none_or(|end| end > BUFFER) {
            return Err(out);
        }
        let half = self.wrong == WrongBuffer::Mirror;
        for (index, byte) in from.iter().enumerate() {
            let at = at + index;
            self.bytes[if half { at % (BUFFER / 2) } else { at }] = *byte;
        }
        Ok(())
    }
}

#[test]
fn a_buffer_that_is_wrong_is_named() {
    let buffer = |wrong| TestBuffer { wrong, bytes: vec![0; 2 * BUFFER] };
    type Found = fn(BufferFault) -> bool;
    let cases: [(WrongBuffer, Found); 9] = [
        (WrongBuffer::Empty, |fault| fault == BufferFault::Length { len: 0 }),
        (WrongBuffer::ReadBeyond, |fault| fault == BufferFault::Accepted { at: BUFFER, len: 1 }),
        (WrongBuffer::LastByteRefused, |fault| matches!(fault, BufferFault::Refused { .. })),
        (WrongBuffer::Mirror, |fault| matches!(fault, BufferFault::Differs { .. })),
        (WrongBuffer::NoExtent, |fault| fault == BufferFault::Unmapped { addr: BUFFER_ADDR + 4096 }),
        (WrongBuffer::EmptyExtent, |fault| fault == BufferFault::Unmapped { addr: BUFFER_ADDR + 8192 }),
        (WrongBuffer::OverlappingExtents, |fault| {
            fault == BufferFault::Overlap { addr: BUFFER_ADDR + 4096, other: BUFFER_ADDR }
        }),
        (WrongBuffer::ExtentTooLong, |fault| matches!(fault, BufferFault::Overlap { .. })),
        (WrongBuffer::ExtentBeyondTheEnd, |fault| matches!(fault, BufferFault::Wraps { .. })),
    ];
    assert_eq!(check_buffer(&mut buffer(WrongBuffer::Nothing)), Ok(()));
    for (wrong, is_found) in cases {
        let fault = check_buffer(&mut buffer(wrong)).expect_err(&format!("{wrong:?} was not found"));
        assert!(is_found(fault), "{wrong:?} gave {fault:?}");
        assert!(!fault.to_string().is_empty());
    }
}

#[derive(Clone)]
struct NoFence;

impl DmaFence for NoFence {
    fn release(&self) {}
    fn acquire(&self) {}
    fn flush(&self) {}
}

struct TestPlatform;

// SAFETY: there is no device.
unsafe impl Platform for TestPlatform {
    type Registers = TestRegisters;
    type Memory = TestMemory;
    type Pages = TestPages;
    type Fence = NoFence;
    type Clock = TestClock;
}

fn machine(memory: Wrong, pages: TestPages, registers: WrongRegisters) -> Machine<TestPlatform> {
    Machine {
        registers: TestRegisters { wrong: registers },
        memory: TestMemory::new(memory),
        pages,
        fence: NoFence,
        clock: TestClock::new(100, 100, 0),
    }
}

#[test]
fn a_machine_whose_parts_do_not_fit_together_is_named() {
    let pages = || TestPages::new(WrongPages::Nothing);
    let mut scratch = [0; 64];
    assert_eq!(check_machine(&mut machine(Wrong::Nothing, pages(), WrongRegisters::Nothing), &mut scratch), Ok(()));
    let memory = check_machine(&mut machine(Wrong::Mirror, pages(), WrongRegisters::Nothing), &mut scratch);
    assert!(matches!(memory, Err(MachineFault::Memory(_))));
    let registers = check_machine(&mut machine(Wrong::Nothing, pages(), WrongRegisters::Short), &mut scratch);
    assert!(matches!(registers, Err(MachineFault::Registers(_))));
    let lost =
        check_machine(&mut machine(Wrong::Nothing, TestPages::new(WrongPages::Loses), WrongRegisters::Nothing), &mut scratch);
    assert!(matches!(lost, Err(MachineFault::Pages(_))));
    // The pages end in the memory's second page, 0x10_1000.
    let within = TestPages { base: 0x10_1000 - 20 * 4096, ..pages() };
    let overlap = check_machine(&mut machine(Wrong::Nothing, within, WrongRegisters::Nothing), &mut scratch);
    assert_eq!(overlap, Err(MachineFault::PageInMemory { device_addr: 0x10_0000 }));
    // The source keeps what it knows in the memory of the queues.
    let mut one = machine(Wrong::Nothing, pages(), WrongRegisters::Nothing);
    one.pages.scribble = Some(one.memory.clone());
    let changed = check_machine(&mut one, &mut scratch);
    assert!(matches!(changed, Err(MachineFault::MemoryChanged(MemoryFault::Differs { at: 5000 | 5001, .. }))), "{changed:?}");
    let mut stopped = machine(Wrong::Nothing, pages(), WrongRegisters::Nothing);
    stopped.clock = TestClock::new(0, 0, 0);
    let stopped = check_machine(&mut stopped, &mut scratch).unwrap_err();
    assert!(matches!(stopped, MachineFault::Clock(_)) && stopped.to_string().starts_with("clock: "));
}
