//! Devices with random output: the driver ends without panic and accounts for every page.

use std::boxed::Box;

use bareverbs::backend::Provider;
use bareverbs::platform::{Clock, Machine, OffsetMap};
use bareverbs::storage::QpRings;
use bareverbs::{
    Access, AddressVector, Lid, MwType, Payload, QpAttr, QpCap, QpInit, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Type1Bind, Verbs, storage,
};

use crate::tests::mock::{DEVICE_ADDR, MockPlatform, PAGES, machine};
use crate::{Config, Error, Mlx5, Step};

type Driver = Mlx5<MockPlatform, PAGES>;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns a byte that is mostly small or zero: pure noise is refused at the first check.
    fn byte(&mut self) -> u8 {
        match self.below(8) {
            0 => self.next() as u8,
            1 => self.below(16) as u8,
            _ => 0,
        }
    }
}

/// Writes any output to the blocks of the command at `entry`, then its first bytes and the owner.
fn answer(random: &mut Random, memory: &mut [u8], entry: usize) {
    let mut pointer = u64::from_be_bytes(memory[entry + 48..entry + 56].try_into().unwrap());
    for _ in 0..16 {
        let at = pointer.wrapping_sub(DEVICE_ADDR) as usize;
        if pointer == 0 || at.saturating_add(576) > memory.len() {
            break;
        }
        memory[at..at + 512].iter_mut().for_each(|byte| *byte = random.byte());
        pointer = u64::from_be_bytes(memory[at + 560..at + 568].try_into().unwrap());
    }
    memory[entry + 32..entry + 48].iter_mut().for_each(|byte| *byte = random.byte());
    if random.below(16) != 0 {
        memory[entry + 32] = 0;
    }
    memory[entry + 63] = if random.below(64) == 0 { random.next() as u8 } else { 0 };
}

/// Calls all verbs once, and ignores their results.
fn use_it<P: Provider>(verbs: &mut Verbs<'_, P>) {
    let _ = (verbs.query_port(1), verbs.query_gid(1, 0), verbs.query_pkey(1, 0), verbs.maintain());
    let Ok(pd) = verbs.alloc_pd() else { return };
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
    // SAFETY: the mock device is a closure that reaches the arena alone, whatever it receives.
    #[expect(unsafe_code, reason = "the numbers name no memory")]
    let mr = unsafe { verbs.reg_mr_raw(pd, 0x1000, 0x3000, access, &OffsetMap::default()) };
    let mw = verbs.alloc_mw(pd, MwType::Type1);
    if let Ok(mut cq) = verbs.create_cq(16) {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq.handle(), recv_cq: cq.handle(), cap, sq_sig_all: true };
        if let Ok(mut qp) = verbs.create_qp(&init) {
            let av = AddressVector { dlid: Lid::new(1), ..AddressVector::default() };
            let attr = QpAttr { port_num: 1, av, ..QpAttr::default() };
            let _ = (verbs.modify_qp_to_rts(qp.handle(), &attr), verbs.query_qp(qp.handle()));
            let lkey = mr.ok().and_then(|mr| verbs.mr_info(mr).ok()).map_or_else(Default::default, |info| info.lkey);
            let sges = [Sge { addr: 0x1000, length: 8, lkey }];
            let op = SendOp::Send { payload: Payload::Sges(&sges) };
            let _ = qp.send.post(&SendWr { wr_id: 1, flags: SendFlags::empty(), op });
            let _ = qp.recv.post(&RecvWr { wr_id: 2, sges: &sges });
            if let (Ok(mr), Ok(mw)) = (mr, mw) {
                let flags = SendFlags::empty();
                let bind = Type1Bind { wr_id: 3, flags, mr, addr: 0x1000, length: 64, access: Access::REMOTE_READ };
                let _ = qp.send.bind_type1(mw, &bind);
            }
            let _ = cq.req_notify(true);
            for _ in 0..64 {
                let _ = (cq.completions().take(4).count(), verbs.poll_event());
            }
            let _ = verbs.reset_qp(&mut qp);
            let _ = verbs.destroy_qp(qp);
        }
        let _ = verbs.destroy_cq(cq);
    }
    if let Ok(mw) = mw {
        let _ = verbs.dealloc_mw(mw);
    }
    if let Ok(mr) = mr {
        let _ = verbs.dereg_mr_raw(mr);
    }
    let _ = verbs.dealloc_pd(pd);
}

/// Returns a machine whose device answers with noise.
fn noisy(seed: u64) -> Machine<MockPlatform> {
    let (machine, shared) = machine();
    {
        let mut state = shared.borrow_mut();
        state.registers[4..8].copy_from_slice(&[0, 5, 0, 0]);
        state.registers[0x17] = 0x56;
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        state.device = Some(Box::new(move |memory, at, value| {
            if at == 0x18 {
                let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize & 31;
                // The queue is the first page of the arena.
                answer(&mut random, memory, slot * 64);
                let opcode = u16::from_be_bytes([memory[slot * 64 + 16], memory[slot * 64 + 17]]);
                // Mostly no pages, and a UAR that lies in the BAR: to see more than the first steps.
                if opcode == 0x107 && random.below(8) != 0 {
                    memory[slot * 64 + 44..slot * 64 + 48].copy_from_slice(&[0, 0, 0, (seed % 4) as u8]);
                }
                // Mostly the header of an answer to what the agent of the port is asked.
                if opcode == 0x50d && random.below(8) != 0 {
                    let block = |at: usize| {
                        let pointer: [u8; 8] = memory[slot * 64 + at..slot * 64 + at + 8].try_into().unwrap();
                        u64::from_be_bytes(pointer).wrapping_sub(DEVICE_ADDR) as usize
                    };
                    let (asked, answer) = (block(8), block(48));
                    memory.copy_within(asked..asked + 24, answer);
                    memory[answer + 3] = 0x81;
                }
                if opcode == 0x802 && random.below(8) != 0 {
                    memory[slot * 64 + 40..slot * 64 + 44].copy_from_slice(&[0, 0, 0, 5]);
                }
            }
            // Events and completions, too, where and whatever they be.
            for _ in 0..random.below(4) {
                let at = 0x1000 + random.below((memory.len() - 0x1000) as u64 / 64) as usize * 64;
                memory[at..at + 64].iter_mut().for_each(|byte| *byte = random.byte());
            }
        }));
    }
    machine
}

/// Short waits and queues.
const SHORT: Config = Config {
    command_timeout: core::time::Duration::from_micros(50),
    reclaim_timeout: core::time::Duration::from_micros(50),
    async_events: 64,
    completion_events: 64,
    ..Config::DEFAULT
};

#[test]
fn a_device_may_answer_anything() {
    let mut came_up = 0;
    static RINGS: QpRings<16, 16> = QpRings::new();
    let mut storage = Box::new(<storage![Driver; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new([RINGS.view()]));
    for seed in 1..=4000u64 {
        match Driver::bring_up(noisy(seed), &SHORT) {
            Ok(driver) => {
                came_up += 1;
                let mut verbs = Verbs::new(driver, &mut *storage);
                use_it(&mut verbs);
                let Ok(driver) = verbs.into_provider() else { panic!("a queue is taken") };
                let stats = driver.statistics();
                let sum = stats.pages_free + stats.pages_used;
                assert_eq!(sum as usize, PAGES, "seed {seed}: every page is in one place: {stats:?}");
                let report = match driver.teardown() {
                    Ok((_, report)) => report,
                    Err((error, _)) => error.report,
                };
                assert!(report.pages_back <= report.pages_given, "seed {seed}");
            }
            Err((error, _)) => assert!(error.pages_kept <= 64, "seed {seed}: {error:?}"),
        }
    }
    assert!(came_up > 50, "{came_up}: the noise is too loud to test more than the first steps");
}

#[test]
fn a_driver_may_be_made_where_it_stays() {
    let mut came_up = 0;
    static RINGS: QpRings<16, 16> = QpRings::new();
    for seed in 1..=400u64 {
        let mut place = None;
        match Driver::bring_up_in(&mut place, noisy(seed), &SHORT) {
            Ok(driver) => {
                came_up += 1;
                let mut storage = <storage![&mut Driver; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new([RINGS.view()]);
                let mut verbs = Verbs::new(driver, &mut storage);
                use_it(&mut verbs);
                let Ok(driver) = verbs.into_provider() else { panic!("a queue is taken") };
                let _ = driver.teardown_in_place();
            }
            Err(error) => assert!(error.pages_kept <= 64, "seed {seed}: {error:?}"),
        }
        // It is down: teardown only returns the machine.
        let driver = place.take().expect("up or not, it is there");
        let machine = driver.teardown().map_or_else(|(_, machine)| machine, |(machine, _)| machine);
        assert!(machine.clock.now() > bareverbs::platform::Instant::from_nanos(0), "seed {seed}: the one that was used");
    }
    assert!(came_up > 5, "{came_up}: the noise is too loud to test more than the first steps");
}

#[test]
fn a_device_that_reads_as_all_ones_has_the_time_of_the_boot() {
    let (machine, shared) = machine();
    shared.borrow_mut().registers.fill(0xff);
    let config = Config { boot_timeout: core::time::Duration::from_millis(10), ..Config::DEFAULT };
    let Err((error, machine)) = Driver::bring_up(machine, &config) else { panic!("it is gone") };
    assert_eq!((error.step, error.cause), (Step::WaitBoot, Error::DeviceGone));
    let took = machine.clock.now().since(bareverbs::platform::Instant::from_nanos(0));
    assert!(took >= config.boot_timeout, "{took:?}");
}

#[test]
fn a_bar_that_is_mapped_in_part_is_refused_before_any_access() {
    let (machine, shared) = machine();
    shared.borrow_mut().registers.truncate(4096);
    shared.borrow_mut().device = Some(Box::new(|_, at, _| panic!("a register is written: {at:#x}")));
    let Err((error, _machine)) = Driver::bring_up(machine, &SHORT) else { panic!("it was brought up") };
    assert_eq!((error.step, error.cause), (Step::CheckArena, Error::BarTooSmall { have: 4096 }));
    let text = std::format!("{error}");
    assert!(text.contains("BAR0 has 4096 bytes, the initialization segment alone has 16396: map all"), "{text}");
    shared.borrow_mut().device = None;
}

/// Bit 23 of the dword at 0x1fc of the initialization segment (`mlx5_ifc.h`: `embedded_cpu`).
#[test]
fn the_function_of_a_cards_own_processor_is_refused_before_any_command() {
    let (machine, shared) = machine();
    {
        let mut state = shared.borrow_mut();
        state.registers[4..8].copy_from_slice(&[0, 5, 0, 0]);
        state.registers[0x17] = 0x56;
        state.registers[0x1fd] = 0x80;
        state.device = Some(Box::new(|_, at, _| panic!("a register is written: {at:#x}")));
    }
    let Err((error, _machine)) = Driver::bring_up(machine, &SHORT) else { panic!("it was brought up") };
    assert_eq!((error.step, error.cause), (Step::SetCommandQueue, Error::EmbeddedCpu));
    assert!(std::format!("{error}").contains("use the function that the host sees"), "{error}");
    shared.borrow_mut().device = None;
}

/// The low byte of the dword at 0x14 of the initialization segment has both logarithms (`mlx5_ifc.h`).
#[test]
fn a_command_queue_has_two_to_32_entries_in_one_page() {
    for byte in 0..=255_u8 {
        let (machine, shared) = machine();
        shared.borrow_mut().registers[4..8].copy_from_slice(&[0, 5, 0, 0]);
        shared.borrow_mut().registers[0x17] = byte;
        let (log_size, log_stride) = (byte >> 4, byte & 15);
        let Err((error, _machine)) = Driver::bring_up(machine, &SHORT) else { panic!("it was brought up") };
        let fits = (2..=32).contains(&(1_u32 << log_size)) && log_stride >= 6 && 1_u32 << (log_size + log_stride) <= 4096;
        assert_eq!(error.cause != Error::CommandQueue { log_size, log_stride }, fits, "{byte:#x}: {error}");
    }
}

/// The lower half of the queue's address is at 0x14, the doorbell of commands at 0x18.
#[test]
fn the_first_command_comes_ten_milliseconds_after_the_address_of_its_queue() {
    let (machine, shared) = machine();
    shared.borrow_mut().registers[4..8].copy_from_slice(&[0, 5, 0, 0]);
    shared.borrow_mut().registers[0x17] = 0x56;
    let Err((error, _machine)) = Driver::bring_up(machine, &SHORT) else { panic!("it was brought up") };
    assert_eq!(error.step, Step::EnableHca);
    let written = shared.borrow().written.clone();
    let [.., (0x14, addressed), (0x18, rung)] = written[..] else { panic!("{written:x?}") };
    assert!((10_000_000..10_100_000).contains(&(rung - addressed)), "{} ns", rung - addressed);
}
