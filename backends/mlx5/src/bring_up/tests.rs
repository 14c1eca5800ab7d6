//! Devices that say anything: the driver ends, without panic, and accounts for every page.

use bareverbs::{
    Access, CheckedOp, Clock, DataPath, MrRequest, MwType, OffsetMap, Provider, QpAttr, QpAttrMask, QpCap, QpRequest, QpState,
    QpType, Sge,
};

use crate::mock::{DEVICE_ADDR, MockPlatform, PAGES, machine};
use crate::{Config, Error, Mlx5, Step};

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

    /// A byte, small or zero more often than not: what is all noise is refused at the first look.
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

/// All verbs once, whatever comes of them.
fn use_it(driver: &mut Mlx5<MockPlatform, PAGES>) {
    let _ = (driver.query_port(1), driver.query_gid(1, 0), driver.query_pkey(1, 0), driver.health());
    let Ok(mut pd) = driver.alloc_pd() else { return };
    let map = OffsetMap::default();
    let request = MrRequest { addr: 0x1000, length: 0x3000, access: Access::LOCAL_WRITE, key: 1, map: &map };
    let mr = driver.create_mr(&pd, &request);
    let mw = driver.create_mw(&pd, MwType::Type1);
    if let Ok((mut cq, _, _)) = driver.create_cq(16) {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let request = QpRequest { qp_type: QpType::Rc, pd: &pd, send_cq: &cq, recv_cq: &cq, cap, cookie: 3 };
        if let Ok(mut made) = driver.create_qp(&request) {
            let mask = QpAttrMask::from_bits_retain(!0);
            for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Reset] {
                let attr = QpAttr { state, ..QpAttr::default() };
                let _ = driver.modify_qp(&mut made.qp, QpState::Reset, &attr, mask);
            }
            let sge = [Sge { addr: 0x1000, length: 8, ..Sge::default() }];
            let op = CheckedOp::Send(bareverbs::Payload::Sges(&sge));
            let _ = driver.encode_send(&mut made.qp, 0, &op, bareverbs::SendFlags::empty(), true);
            let _ = (driver.commit_send(&mut made.qp, 1), driver.query_qp(&made.qp), driver.destroy_qp(&mut made.qp));
        }
        for _ in 0..64 {
            let _ = (driver.poll(&mut cq), driver.poll_event());
        }
        let _ = (driver.commit_cq(&mut cq), driver.arm_cq(&mut cq, true), driver.clean_cq(&mut cq, bareverbs::Qpn::new(5)));
        let _ = driver.destroy_cq(&mut cq);
    }
    if let Ok((mut mr, _, _)) = mr {
        let _ = driver.destroy_mr(&mut mr);
    }
    if let Ok((mut mw, _)) = mw {
        let _ = driver.destroy_mw(&mut mw);
    }
    let _ = driver.dealloc_pd(&mut pd);
}

#[test]
fn a_device_may_answer_anything() {
    let mut came_up = 0;
    for seed in 1..=4000u64 {
        let (machine, shared) = machine();
        {
            let mut state = shared.borrow_mut();
            state.registers[4..8].copy_from_slice(&[0, 5, 0, 0]);
            state.registers[0x17] = 0x56;
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            state.device = Some(std::boxed::Box::new(move |memory, at, value| {
                if at == 0x18 {
                    let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize & 31;
                    // The queue is the first page of the arena.
                    answer(&mut random, memory, slot * 64);
                    let opcode = u16::from_be_bytes([memory[slot * 64 + 16], memory[slot * 64 + 17]]);
                    // Mostly no pages, and a UAR that lies in the BAR: to see more than the first steps.
                    if opcode == 0x107 && random.below(8) != 0 {
                        memory[slot * 64 + 44..slot * 64 + 48].copy_from_slice(&[0, 0, 0, (seed % 4) as u8]);
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
        let config = Config {
            command_timeout: core::time::Duration::from_micros(50),
            reclaim_timeout: core::time::Duration::from_micros(50),
            async_events: 64,
            completion_events: 64,
            ..Config::DEFAULT
        };
        match Mlx5::<MockPlatform, PAGES>::bring_up(machine, &config) {
            Ok(mut driver) => {
                came_up += 1;
                use_it(&mut driver);
                let stats = driver.statistics();
                let sum = stats.pages_free + stats.pages_held + stats.pages_lost + stats.pages_used;
                assert_eq!(sum as usize, PAGES, "seed {seed}: every page is in one place: {stats:?}");
                let report = match driver.teardown() {
                    Ok((_, report)) => report,
                    Err((error, _)) => error.report,
                };
                assert!(report.pages_back <= report.pages_given, "seed {seed}");
            }
            Err((error, _)) => assert!(error.pages_kept as usize <= PAGES, "seed {seed}: {error:?}"),
        }
    }
    assert!(came_up > 50, "{came_up}: the noise is too loud to test more than the first steps");
}

#[test]
fn a_device_that_reads_as_all_ones_is_refused_at_once() {
    let (machine, shared) = machine();
    shared.borrow_mut().registers.fill(0xff);
    let Err((error, machine)) = Mlx5::<MockPlatform, PAGES>::bring_up(machine, &Config::DEFAULT) else { panic!("it is gone") };
    assert_eq!((error.step, error.cause), (Step::WaitBoot, Error::DeviceGone));
    let took = machine.clock.now().since(bareverbs::Instant::from_nanos(0));
    assert!(took < core::time::Duration::from_millis(1), "{took:?}");
}
