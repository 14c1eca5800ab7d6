//! Bytes of the command interface, by `mlx5_ifc.h` and Linux `struct mlx5_cmd_layout` and `struct mlx5_cmd_prot_block`.

use core::cell::RefCell;
use core::ops::ControlFlow;
use std::rc::Rc;
use std::vec::Vec;

use bareverbs_mlx5_spec::{CmdOpcode, EQE, UAR_PAGE, cmd};

use super::*;
use crate::driver::{BringUpState, Driver};
use crate::object::Object;
use crate::tests::mock::{DEVICE_ADDR, Done, MockPlatform, Shared, started};

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

#[test]
fn an_entry_and_its_chains_lie_as_published() {
    let (mut driver, shared) = started();
    shared.borrow_mut().device = Some(std::boxed::Box::new(|memory, at, _| {
        if at == 0x18 {
            // Output in the second block, then return the slot.
            memory[4096 + 1024..][..4].copy_from_slice(&[0xca, 0xfe, 0xba, 0xbe]);
            memory[63] &= !1;
        }
    }));
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let mut input = [0u8; 16 + 512 + 8];
    for (index, byte) in input.iter_mut().enumerate() {
        *byte = index as u8;
    }
    let mut output = [0u8; 16 + 512 + 4];
    {
        let len = output.len();
        commands.execute(CmdOpcode::QueryMkey, &input, &mut output, len)
    }
    .unwrap();
    assert_eq!(output[16 + 512..], [0xca, 0xfe, 0xba, 0xbe]);

    let state = shared.borrow();
    let entry = &state.memory[..64];
    assert_eq!(entry[0..4], [7, 0, 0, 0], "type");
    assert_eq!(entry[4..8], 536u32.to_be_bytes(), "input length");
    assert_eq!(entry[8..16], (DEVICE_ADDR + 4096 + 8 * 1024).to_be_bytes(), "input mailbox");
    assert_eq!(entry[16..20], [0x02, 0x01, 2, 3], "opcode and the first of the input");
    assert_eq!(entry[20..32], input[4..16]);
    assert_eq!(entry[48..56], (DEVICE_ADDR + 4096).to_be_bytes(), "output mailbox");
    assert_eq!(entry[56..60], 532u32.to_be_bytes(), "output length");
    assert_eq!((entry[60], entry[62]), (1, 0), "token, reserved");
    let sent = state.log.iter().find_map(|done| match done {
        Done::Store(0, bytes) if bytes.len() == 64 => Some(bytes.clone()),
        _ => None,
    });
    let sent = sent.unwrap();
    assert_eq!((xor(&sent), sent[63]), (0xff, 1), "signed, owned by the device");

    let first = &state.memory[3 * 4096..3 * 4096 + 576];
    let second = &state.memory[3 * 4096 + 1024..3 * 4096 + 1024 + 576];
    assert_eq!(first[..512], input[16..528]);
    assert_eq!(second[..8], input[528..536]);
    assert_eq!(first[560..568], (DEVICE_ADDR + 3 * 4096 + 1024).to_be_bytes(), "next");
    assert_eq!(second[560..568], [0; 8], "no next");
    assert_eq!((&first[568..572], &second[568..572]), (&[0, 0, 0, 0][..], &[0, 0, 0, 1][..]), "block numbers");
    for block in [first, second] {
        assert_eq!(block[573], 1, "token");
        assert_eq!(xor(&block[512..575]), 0xff, "control signature");
        assert_eq!(xor(block), 0xff, "signature");
    }
    let at = |what: &Done| state.log.iter().position(|done| done == what).unwrap();
    let doorbell = at(&Done::Register(0x18, [0, 0, 0, 1].to_vec()));
    assert_eq!(state.log[doorbell - 1], Done::Release, "everything is written before the doorbell");
    assert!(state.log[doorbell..].contains(&Done::Acquire), "and nothing is read before the owner bit");
}

#[test]
fn after_the_first_command_without_answer_nothing_is_sent_written_or_freed() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let seen = answer_all(&shared, 0);
    let memory = commands.allocate_memory(2, true).unwrap();
    commands.function = 3;
    commands.give_pages(3, 2, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(*seen.borrow(), [(3, CmdOpcode::ManagePages.code() as u16, 3)], "in the last slot");
    shared.borrow_mut().device = None;
    let reason = Error::CommandTimeout { opcode: CmdOpcode::QueryIssi.code() as u16 };
    assert_eq!(commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112), Err(reason));
    let (free, now) = (commands.arena.free_pages(), commands.machine.clock.now());
    let log = shared.borrow().log.len();
    // An answer after the deadline changes nothing.
    for answered in [false, true] {
        if answered {
            shared.borrow_mut().memory[32..48].fill(0);
            shared.borrow_mut().memory[63] = 0;
            answer_all(&shared, 0);
        }
        assert_eq!(commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112), Err(reason));
        assert_eq!(commands.execute_with(CmdOpcode::CreateMkey, &[0; 272], (4000, &mut |_| 0)), Err(reason));
        assert_eq!(commands.destroy(&Object::of::<cmd::DestroyQp>(5, memory)), Err(reason));
        assert_eq!(commands.allocate_memory(1, true).map(|_| ()), Err(reason));
        assert_eq!(commands.give_pages(3, 1, &mut |_, _| ControlFlow::Continue(())), Err(reason));
        assert_eq!(commands.reclaim_all(Duration::from_secs(5)), Err(reason));
        assert_eq!(commands.serve_page_requests(), Err(reason));
        commands.free_memory(memory);
    }
    assert_eq!(shared.borrow().log[log..], [], "neither registers nor memory are written");
    assert_eq!((commands.arena.free_pages(), commands.held), (free, 2));
    assert!(commands.machine.clock.now().since(now) < Duration::from_micros(100), "none waits");
}

#[test]
fn the_lower_half_of_the_queue_address_tells_a_reset() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    shared.borrow_mut().device = None;
    commands.set_queue_address(DEVICE_ADDR).unwrap();
    // A device that takes the upper half from its register, and shows it no more.
    shared.borrow_mut().registers[0x10..0x14].fill(0);
    assert_eq!(commands.check_device(), Ok(()));
    shared.borrow_mut().registers[0x14..0x18].fill(0);
    assert_eq!(commands.check_device(), Err(Error::DeviceReset));
    // An address without a lower half looks like that of a device that was reset: nothing is concluded from it.
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    shared.borrow_mut().device = None;
    commands.set_queue_address(1 << 32).unwrap();
    assert_eq!(commands.check_device(), Ok(()));
}

#[test]
fn a_call_that_ended_by_unwinding_had_no_answer() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    shared.borrow_mut().device = Some(std::boxed::Box::new(|_, at, _| assert_ne!(at, 0x18, "the doorbell")));
    let call = || commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
    // The device executes it after all, and whatever it writes is not the answer to the next.
    answer_all(&shared, 0);
    let result = commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 16], 16);
    assert_eq!(result, Err(Error::CommandTimeout { opcode: CmdOpcode::AllocPd.code() as u16 }));
}

#[test]
fn what_the_device_answers_becomes_an_error_value() {
    let (mut driver, shared) = started();
    let answer = |own: u8, status: u8| {
        let hook = move |memory: &mut [u8], at: usize, _: &[u8]| {
            if at == 0x18 {
                memory[32] = status;
                memory[36..40].copy_from_slice(&[0, 0, 0x12, 0x34]);
                memory[63] = own;
            }
        };
        shared.borrow_mut().device = Some(std::boxed::Box::new(hook));
    };
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let opcode = CmdOpcode::AllocPd.code() as u16;
    answer(0, 5);
    let result = commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
    assert_eq!(result, Err(Error::CommandStatus { opcode, status: 5, syndrome: 0x1234 }));
    // The seven bits above the owner (Linux `cmd_status_to_err`, `deliv_status_to_str`).
    for status in 1..0x80 {
        answer(status << 1, 0);
        let result = commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
        assert_eq!(result, Err(Error::CommandDelivery { opcode, status }));
    }

    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    shared.borrow_mut().registers.fill(0xff);
    let result = commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
    assert_eq!(result, Err(Error::DeviceGone));
}

#[test]
fn an_interface_that_somebody_turned_off_is_a_reset() {
    // `nic_interface`: full driver, disabled, minimal driver, software reset (`mlx5_ifc.h`, Linux `health.c`).
    for (state, is_reset) in [(0, false), (1, true), (2, false), (7, true)] {
        let (mut driver, shared) = started();
        let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
        commands.set_queue_address(0x5000).unwrap();
        assert_eq!(commands.check_device(), Ok(()));
        shared.borrow_mut().registers[0x14..0x18].copy_from_slice(&(0x5000u32 | state << 8).to_be_bytes());
        let expected = if is_reset { Err(Error::DeviceReset) } else { Ok(()) };
        assert_eq!(commands.check_device(), expected, "state {state}");
        assert_eq!(commands.check_alive(), expected, "state {state}");
    }
}

#[test]
fn longer_timeouts_of_the_card_are_taken_up_to_ten_minutes() {
    const MINUTES: u32 = 2 << 29;
    // cmd_q_init_to at 0xffc, cmd_exec_to at 0xff8 (Linux `device.h`); a card without the first tells none.
    for (init, command, expected) in [
        (0, 0, [0, 60_000]),
        (0, MINUTES | 5, [0, 60_000]),
        (500, 61_000, [500, 61_000]),
        (1 << 29 | 7, 59_999, [7_000, 60_000]),
        (MINUTES | 3, MINUTES | 2, [180_000, 120_000]),
        (3 << 29 | 1, 0x7fff_ffff, [600_000, 600_000]),
        (5, u32::MAX, [5, 60_000]),
        (u32::MAX, u32::MAX, [0, 60_000]),
    ] {
        let (mut driver, shared) = started();
        let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
        shared.borrow_mut().registers[0xffc..0x1000].copy_from_slice(&init.to_be_bytes());
        shared.borrow_mut().registers[0xff8..0xffc].copy_from_slice(&command.to_be_bytes());
        commands.timeout = Duration::from_secs(60);
        let taken = [commands.take_timeouts(), commands.timeout];
        assert_eq!(taken, expected.map(Duration::from_millis), "{init:#x}, {command:#x}");
    }
}

/// Lets every command end from now on with this status, and notes its slot, opcode and first dword after 8 bytes.
fn answer_all(shared: &Shared, status: u8) -> Rc<RefCell<Vec<(usize, u16, u32)>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let note = seen.clone();
    shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, value| {
        if at == 0x18 {
            let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize;
            let entry = &mut memory[slot * 64..slot * 64 + 64];
            let opcode = u16::from_be_bytes([entry[16], entry[17]]);
            note.borrow_mut().push((slot, opcode, u32::from_be_bytes(entry[24..28].try_into().unwrap())));
            entry[32..48].fill(0);
            entry[32] = status;
            entry[63] = 0;
        }
    }));
    seen
}

#[test]
fn a_long_list_lies_in_whatever_pages_are_free() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    // Every other page is free, so that no two lie together; the mailboxes that stay come first.
    answer_all(&shared, 0);
    commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112).unwrap();
    assert_eq!(commands.arena.pages(PageUse::Mailboxes).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let ranges: Vec<_> = core::iter::from_fn(|| commands.arena.allocate(1).ok()).collect();
    for range in ranges.iter().step_by(2) {
        commands.arena.free(*range);
    }
    let free = commands.arena.free_pages();
    let sent = Rc::new(RefCell::new(Vec::new()));
    let copy = sent.clone();
    shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, value| {
        if at == 0x18 {
            let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize;
            let mut pointer = u64::from_be_bytes(memory[slot * 64 + 8..slot * 64 + 16].try_into().unwrap());
            let mut number = 0u32;
            while pointer != 0 {
                let block = &memory[(pointer - DEVICE_ADDR) as usize..][..576];
                assert_eq!((block[568..572].try_into().unwrap(), xor(block)), (number.to_be_bytes(), 0xff));
                copy.borrow_mut().extend_from_slice(&block[..512]);
                pointer = u64::from_be_bytes(block[560..568].try_into().unwrap());
                number += 1;
            }
            memory[slot * 64 + 32..slot * 64 + 48].fill(0);
            memory[slot * 64 + 63] = 0;
        }
    }));
    let len = 9 * 4 * 64;
    let list: Vec<u64> = (0..len as u64).map(|n| n.wrapping_mul(0x0123_4567_89ab_cdef)).collect();
    let created = commands.execute_with(CmdOpcode::CreateMkey, &[7; 272], (len, &mut |index| list[index]));
    assert_eq!(created, Ok(0));
    let expected: Vec<u8> = [7; 256].into_iter().chain(list.iter().flat_map(|entry| entry.to_be_bytes())).collect();
    assert_eq!(sent.borrow()[..expected.len()], expected[..]);
    assert!(sent.borrow()[expected.len()..].iter().all(|byte| *byte == 0), "zeros after the end");
    assert_eq!(commands.arena.free_pages(), free);
    // One page more than there are, with the two that stay for inputs.
    let len = (free as usize + 3) * 4 * 64;
    let created = commands.execute_with(CmdOpcode::CreateMkey, &[7; 272], (len, &mut |_| 0));
    assert!(matches!(created, Err(Error::ArenaFull { .. })), "{created:?}");
    assert_eq!(commands.arena.free_pages(), free);
}

#[test]
fn another_function_gets_no_pages() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    commands.page_requests = Some(empty_queue(commands));
    commands.function = 3;
    let seen = answer_all(&shared, 0);
    let mut go = |_, _| ControlFlow::Continue(());
    assert_eq!(commands.give_pages(0x107, 5, &mut go), Err(Error::ForeignPages { function: 0x107 }));
    // MANAGE_PAGES with op_mod 0 (bytes 6 to 7) and its function_id (10 to 11): the pages cannot be given.
    assert_eq!(seen.borrow().len(), 1);
    assert_eq!(shared.borrow().memory[3 * 64 + 22..3 * 64 + 28], [0, 0, 0, 0, 1, 7]);
    assert_eq!((commands.machine.pages.allocated.count_ones(), commands.held), (0, 0));
    commands.give_pages(3, 5, &mut go).unwrap();
    assert_eq!((commands.machine.pages.allocated.count_ones(), commands.held), (5, 5));
}

#[test]
fn too_few_pages_are_refused_before_the_first_is_given() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    answer_all(&shared, 0);
    let mut go = |_, _| ControlFlow::Continue(());
    commands.function = 7;
    commands.give_pages(7, 60, &mut go).unwrap();
    let cases = [(u32::MAX, 5, 4), (u32::MAX, 1_000_000, 4), (64, 5, 4), (60, 1, 4)];
    // At the startup there is no queue of requests, and the firmware is not notified. Later it is, and may refuse that.
    for (case, (limit, wanted, available)) in cases.into_iter().cycle().take(3 * cases.len()).enumerate() {
        let requested = case >= cases.len();
        if requested && commands.page_requests.is_none() {
            commands.page_requests = Some(empty_queue(commands));
        }
        let status = if case >= 2 * cases.len() { 3 } else { 0 };
        let seen = answer_all(&shared, status);
        (commands.page_limit, commands.held) = (limit, 60);
        let refused = commands.give_pages(7, wanted, &mut go);
        let allowed = limit - 60;
        let reason = if wanted > allowed {
            Error::PageLimit { wanted, allowed: allowed.into() }
        } else {
            Error::TooFewPages { wanted, available: available.into() }
        };
        assert_eq!(refused, Err(reason));
        // MANAGE_PAGES with op_mod 0: the pages cannot be given.
        let notice = (3, CmdOpcode::ManagePages.code() as u16, 7);
        assert_eq!(*seen.borrow(), if requested { std::vec![notice] } else { std::vec![] });
        assert!(!requested || shared.borrow().memory[3 * 64 + 22..3 * 64 + 24] == [0, 0]);
        assert_eq!((commands.machine.pages.allocated.count_ones(), commands.held), (60, 60));
    }
    // Nothing is reserved before the hook is called: a source may take its time.
    (commands.page_limit, commands.held) = (u32::MAX, 0);
    let seen = answer_all(&shared, 0);
    let stopped = commands.give_pages(7, 1_000_000, &mut |given, wanted| {
        assert_eq!((given, wanted), (0, 1_000_000));
        ControlFlow::Break(())
    });
    assert_eq!((stopped, seen.borrow().len()), (Err(Error::Stopped), 0));
    // A refused command gives none either.
    (commands.page_limit, commands.held) = (u32::MAX, 0);
    answer_all(&shared, 5);
    assert!(commands.give_pages(7, 2, &mut go).is_err());
    assert_eq!((commands.machine.pages.allocated.count_ones(), commands.held), (60, 0));
    // If the notice has no answer, the device is lost, and that is the reason.
    shared.borrow_mut().device = None;
    let lost = Error::CommandTimeout { opcode: CmdOpcode::ManagePages.code() as u16 };
    assert_eq!(commands.give_pages(7, 5, &mut go), Err(lost));
}

#[test]
fn no_more_pages_are_asked_back_than_the_firmware_has() {
    for (offered, asked) in [(-1_i32, 1), (-5, 5), (-6, 5), (i32::MIN, 5)] {
        let (mut driver, shared) = started();
        let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
        answer_all(&shared, 0);
        commands.give_pages(0, 5, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let eq = empty_queue(commands);
        // A page request (type 0xb): function_id in bytes 34 to 35, num_pages in 36 to 39 (`mlx5_ifc.h`, `pages_req_event`).
        let mut entry = [0; EQE];
        entry[1] = 0xb;
        entry[36..40].copy_from_slice(&offered.to_be_bytes());
        commands.machine.memory.write(eq.object.memory.ring.at(), &entry).unwrap();
        commands.page_requests = Some(eq);
        let counts = Rc::new(RefCell::new(Vec::new()));
        let note = counts.clone();
        shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, _| {
            if at == 0x18 {
                // MANAGE_PAGES in the last slot: input_num_entries in bytes 12 to 15 of the input. None is returned.
                note.borrow_mut().push(u32::from_be_bytes(memory[3 * 64 + 28..3 * 64 + 32].try_into().unwrap()));
                memory[3 * 64 + 32..3 * 64 + 48].fill(0);
                memory[3 * 64 + 63] = 0;
            }
        }));
        commands.serve_page_requests().unwrap();
        assert_eq!(*counts.borrow(), [asked], "{offered}");
    }
}

#[test]
fn pages_that_a_lost_device_may_have_are_not_free() {
    let (mut driver, _) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let lost = Error::CommandTimeout { opcode: CmdOpcode::ManagePages.code() as u16 };
    assert_eq!(commands.give_pages(0, 2, &mut |_, _| ControlFlow::Continue(())), Err(lost));
    assert_eq!((commands.machine.pages.allocated.count_ones(), commands.held), (2, 2));
}

/// What a device may still use: the memory if it does not answer or is not turned off, the pages that it has.
#[test]
fn a_reset_is_needed_as_long_as_the_device_may_use_memory() {
    let (mut driver, _) = started();
    let driver: &mut Driver<MockPlatform> = &mut driver;
    assert!(!driver.needs_reset());
    driver.commands.held = 1;
    assert!(driver.needs_reset());
    driver.commands.held = 0;
    assert!(!driver.needs_reset());
    for state in [(true, false), (false, true), (true, true)] {
        driver.state = BringUpState { enabled: state.0, initialized: state.1, ..BringUpState::default() };
        assert!(driver.needs_reset(), "{state:?}");
    }
    driver.state = BringUpState::default();
    assert!(!driver.needs_reset());
    driver.commands.dead = Some(Error::DeviceGone);
    assert!(driver.needs_reset());
}

/// Returns an event queue of 64 entries with none in it, in a page of its own.
fn empty_queue(commands: &mut CommandInterface<MockPlatform>) -> Eq<MockPlatform> {
    let memory = commands.allocate_memory(1, false).unwrap();
    for index in 0..64 {
        commands.machine.memory.write(memory.ring.at() + index * EQE + EQE - 1, &[1]).unwrap();
    }
    Eq::open(&commands.machine, 4 * UAR_PAGE, memory, 6, 0).unwrap()
}

#[test]
fn firmware_that_wants_a_negative_number_of_pages_gets_none() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let opcodes = Rc::new(RefCell::new(Vec::new()));
    let note = opcodes.clone();
    shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, _| {
        if at == 0x18 {
            note.borrow_mut().push(u16::from_be_bytes([memory[16], memory[17]]));
            memory[32..48].fill(0);
            memory[44..48].copy_from_slice(&(-3_i32).to_be_bytes());
            memory[63] = 0;
        }
    }));
    assert_eq!(commands.give_startup_pages(2, &mut |_, _| panic!("nothing is given")), Ok(()));
    assert_eq!((opcodes.borrow().clone(), commands.held), (std::vec![CmdOpcode::QueryPages.code() as u16], 0));
}

/// A read of a register stops the processor until the device answers: ten times a second is enough to see that it is gone.
#[test]
fn a_command_under_way_looks_at_the_device_ten_times_a_second() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    commands.check_device().unwrap();
    let reads_of_a_look = shared.borrow().reads;
    commands.timeout = Duration::from_millis(950);
    shared.borrow_mut().reads = 0;
    let lost = Error::CommandTimeout { opcode: CmdOpcode::QueryIssi.code() as u16 };
    assert_eq!(commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112), Err(lost));
    // After each 100 ms, and at the end.
    assert_eq!(shared.borrow().reads, 10 * reads_of_a_look);
}

/// A probe is sent while the counter stands still and none is under way, and its answer is looked for: ten seconds long, and nobody waits.
#[test]
fn a_probe_waits_for_nothing() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    commands.timeout = Duration::from_secs(60);
    let sent = || shared.borrow().log.iter().filter(|done| matches!(done, Done::Register(0x18, _))).count();
    commands.probe(false).unwrap();
    assert_eq!(sent(), 0, "the counter moves");
    let start = commands.machine.clock.now();
    for _ in 0..10 {
        commands.probe(true).unwrap();
    }
    assert_eq!(sent(), 1, "one is under way");
    assert!(commands.machine.clock.now().since(start) < Duration::from_millis(1));
    // QUERY_ISSI, and its answer, with a status of a device that does not know it.
    assert_eq!(shared.borrow().memory[16..18], [1, 0x0a]);
    shared.borrow_mut().memory[32] = 2;
    shared.borrow_mut().memory[63] = 0;
    commands.probe(false).unwrap();
    assert_eq!(sent(), 1);
    commands.probe(true).unwrap();
    assert_eq!(sent(), 2);
    for (seconds, expected) in [(9, Ok(())), (1, Err(Error::CommandTimeout { opcode: 0x10a }))] {
        shared.borrow_mut().now += seconds * 1_000_000_000;
        assert_eq!(commands.probe(true), expected, "{seconds} s later");
    }
    assert_eq!(sent(), 2);
}
