//! Bytes of the command interface, by `mlx5_ifc.h` and Linux `struct mlx5_cmd_layout` and `struct mlx5_cmd_prot_block`.

use core::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use bareverbs_mlx5_spec::{Buffer, CmdOpcode, cmd};

use super::object::Object;
use super::*;

use crate::dma::object_memory::ObjectMemory;
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
            memory[4096 + (8 + 1) * 1024..][..4].copy_from_slice(&[0xca, 0xfe, 0xba, 0xbe]);
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
    assert_eq!(entry[8..16], (DEVICE_ADDR + 4096).to_be_bytes(), "input mailbox");
    assert_eq!(entry[16..20], [0x02, 0x01, 2, 3], "opcode and the first of the input");
    assert_eq!(entry[20..32], input[4..16]);
    assert_eq!(entry[48..56], (DEVICE_ADDR + 4096 + 8 * 1024).to_be_bytes(), "output mailbox");
    assert_eq!(entry[56..60], 532u32.to_be_bytes(), "output length");
    assert_eq!((entry[60], entry[62]), (1, 0), "token, reserved");
    let sent = state.log.iter().find_map(|done| match done {
        Done::Store(0, bytes) if bytes.len() == 64 => Some(bytes.clone()),
        _ => None,
    });
    let sent = sent.unwrap();
    assert_eq!((xor(&sent), sent[63]), (0xff, 1), "signed, owned by the device");

    let first = &state.memory[4096..4096 + 576];
    let second = &state.memory[5120..5120 + 576];
    assert_eq!(first[..512], input[16..528]);
    assert_eq!(second[..8], input[528..536]);
    assert_eq!(first[560..568], (DEVICE_ADDR + 5120).to_be_bytes(), "next");
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
fn a_slot_without_answer_is_not_used_again_and_the_last_one_is_kept_for_pages() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let opcode = CmdOpcode::QueryIssi.code() as u16;
    for _ in 0..3 {
        let result = commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112);
        assert_eq!(result, Err(Error::CommandTimeout { opcode }.pack()));
    }
    assert_eq!(commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112), Err(Error::NoCommandSlot.pack()));
    assert_eq!(commands.arena.leaked_pages(), 3 * 4, "the buffers of three commands");
    let doorbells: Vec<Done> =
        shared.borrow().log.iter().filter(|done| matches!(done, Done::Register(0x18, _))).cloned().collect();
    assert_eq!(doorbells, [1u8, 2, 4].map(|bit| Done::Register(0x18, [0, 0, 0, bit].to_vec())));
    assert_eq!(commands.queue.reserve(CommandClass::Pages), Some(3));
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
    assert_eq!(result, Err(Error::CommandStatus { opcode, status: 5, syndrome: 0x1234 }.pack()));
    answer(2 << 1, 0);
    let result = commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
    assert_eq!(result, Err(Error::CommandDelivery { opcode, status: 2 }.pack()));
    commands.signatures = true;
    answer(0, 0);
    let result = commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
    assert_eq!(result, Err(Error::CommandSignature { opcode }.pack()));
    shared.borrow_mut().registers.fill(0xff);
    shared.borrow_mut().device = None;
    let result = commands.execute(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16], 16);
    assert_eq!(result, Err(Error::DeviceGone.pack()));
}

/// Completes the slot as the device does, with success and this number of an object.
fn answer_late(shared: &Shared, slot: usize, number: u32) {
    let memory = &mut shared.borrow_mut().memory;
    memory[slot * 64 + 32..slot * 64 + 48].fill(0);
    memory[slot * 64 + 40..slot * 64 + 44].copy_from_slice(&number.to_be_bytes());
    memory[slot * 64 + 63] = 0;
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
fn a_late_answer_gives_slot_and_mailboxes_back() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let free = commands.arena.free_pages();
    let opcode = CmdOpcode::QueryIssi.code() as u16;
    for _ in 0..3 {
        let result = commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112);
        assert_eq!(result, Err(Error::CommandTimeout { opcode }.pack()));
    }
    assert_eq!((commands.lost_slots(), commands.arena.leaked_pages()), (3, 12));
    answer_late(&shared, 1, 0);
    let seen = answer_all(&shared, 0);
    commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112).unwrap();
    assert_eq!(*seen.borrow(), [(1, opcode, 0)], "in the slot that came back");
    assert_eq!((commands.lost_slots(), commands.arena.leaked_pages()), (2, 8));
    answer_late(&shared, 0, 0);
    answer_late(&shared, 2, 0);
    commands.destroy_orphans();
    assert_eq!((commands.lost_slots(), commands.arena.leaked_pages()), (0, 0));
    assert_eq!(commands.arena.free_pages(), free - 4, "all but the preallocated mailboxes");
}

#[test]
fn an_object_that_was_created_late_is_destroyed_again_and_its_memory_comes_back() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let create = |commands: &mut CommandInterface<MockPlatform>| {
        let memory = commands.allocate_memory(2, true).unwrap();
        let error =
            commands.create_object(CmdOpcode::CreateQp, CmdOpcode::DestroyQp, &[0; 16], 0, &mut |_| 0, memory).unwrap_err();
        assert_eq!(Error::from(error), Error::CommandTimeout { opcode: CmdOpcode::CreateQp.code() as u16 });
        commands.release_memory(memory, error);
    };
    let free = commands.arena.free_pages();
    create(commands);
    assert_eq!((commands.arena.leaked_pages(), commands.arena.free_pages()), (2, free - 3));
    answer_late(&shared, 0, 0x12_3456);
    let seen = answer_all(&shared, 0);
    commands.destroy_orphans();
    assert_eq!(*seen.borrow(), [(0, CmdOpcode::DestroyQp.code() as u16, 0x12_3456)]);
    assert_eq!(commands.arena.free_pages(), free, "ring and doorbell record");

    // The same, and the device refuses to destroy it: the ring stays out of use.
    shared.borrow_mut().device = None;
    create(commands);
    answer_late(&shared, 0, 0x77);
    let seen = answer_all(&shared, 6);
    commands.destroy_orphans();
    assert_eq!((seen.borrow().len(), commands.arena.leaked_pages()), (1, 2));

    // The same, and the DESTROY command completes late, too.
    shared.borrow_mut().device = None;
    create(commands);
    assert_eq!(commands.arena.leaked_pages(), 4);
    answer_late(&shared, 0, 0x88);
    commands.destroy_orphans();
    assert_eq!((commands.lost_slots(), commands.arena.leaked_pages()), (1, 4));
    answer_late(&shared, 0, 0);
    commands.destroy_orphans();
    assert_eq!((commands.lost_slots(), commands.arena.leaked_pages()), (0, 2));

    // A late refusal creates nothing: nothing is to be destroyed.
    create(commands);
    shared.borrow_mut().memory[32] = 8;
    shared.borrow_mut().memory[63] = 0;
    let seen = answer_all(&shared, 0);
    commands.destroy_orphans();
    assert_eq!((seen.borrow().len(), commands.arena.leaked_pages()), (0, 2));
}

#[test]
fn a_late_answer_to_destroy_counts_for_who_tries_again() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let opcode = CmdOpcode::DestroyQp.code() as u16;
    let mut object = Object::new(5);
    let timeout = Err(Error::CommandTimeout { opcode }.pack());
    assert_eq!(commands.destroy::<cmd::DestroyQp>(&mut object, ObjectMemory::NONE), timeout);
    assert_eq!(
        commands.destroy::<cmd::DestroyQp>(&mut object, ObjectMemory::NONE),
        timeout,
        "waited for again, not sent again"
    );
    assert_eq!(commands.lost_slots(), 1);
    // It was carried out. By then the number may be another object's, which is to be left alone.
    answer_late(&shared, 0, 0);
    let seen = answer_all(&shared, 0);
    assert_eq!(commands.destroy::<cmd::DestroyQp>(&mut object, ObjectMemory::NONE), Ok(()));
    assert_eq!(*seen.borrow(), []);
    assert_eq!((object.pending, commands.lost_slots()), (None, 0));

    // It was refused, late: the object is still there, and destroyed by the next attempt.
    let mut object = Object::new(6);
    shared.borrow_mut().device = None;
    assert_eq!(commands.destroy::<cmd::DestroyQp>(&mut object, ObjectMemory::NONE), timeout);
    shared.borrow_mut().memory[32] = 6;
    shared.borrow_mut().memory[63] = 0;
    let seen = answer_all(&shared, 0);
    assert_eq!(commands.destroy::<cmd::DestroyQp>(&mut object, ObjectMemory::NONE), Ok(()));
    assert_eq!(*seen.borrow(), [(0, opcode, 6)]);
}

#[test]
fn a_long_list_lies_in_whatever_pages_are_free() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    // Every other page is free, so that no two lie together; the preallocated mailboxes come first.
    assert!(commands.execute(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112], 112).is_err());
    let preallocated = commands.preallocated(CommandClass::Regular).unwrap().0;
    assert_eq!(preallocated.pages(), 4);
    let ranges: Vec<PageRange> = core::iter::from_fn(|| commands.arena.allocate(1).ok()).collect();
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
    let mut input = Buffer::zeroed();
    input.as_bytes_mut().fill(7);
    let created = commands.create_with_list::<cmd::CreateMkey>(input.view(), len, &mut |index| list[index]);
    assert_eq!(created, Ok(0));
    let expected: Vec<u8> = [7; 256].into_iter().chain(list.iter().flat_map(|entry| entry.to_be_bytes())).collect();
    assert_eq!(sent.borrow()[..expected.len()], expected[..]);
    assert!(sent.borrow()[expected.len()..].iter().all(|byte| *byte == 0), "zeros after the end");
    assert_eq!(commands.arena.free_pages(), free);
    // One page more than there are.
    let len = (free as usize + 1) * 4 * 64;
    let created = commands.create_with_list::<cmd::CreateMkey>(input.view(), len, &mut |_| 0);
    assert!(matches!(created.map_err(Error::from), Err(Error::ArenaFull { .. })), "{created:?}");
    assert_eq!(commands.arena.free_pages(), free);
}

#[test]
fn pages_go_through_another_slot_after_one_had_no_answer() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let opcode = CmdOpcode::ManagePages.code() as u16;
    let give = |commands: &mut CommandInterface<MockPlatform>| commands.give_pages(3, 2);
    let free = commands.arena.free_pages();
    assert_eq!(give(commands), Err(Error::CommandTimeout { opcode }.pack()));
    assert_eq!((commands.arena.firmware_pages(), commands.arena.leaked_pages()), (0, 3), "two pages and the mailboxes");
    let seen = answer_all(&shared, 0);
    assert_eq!(give(commands), Ok(()));
    assert_eq!(*seen.borrow(), [(2, opcode, 3)], "the next slot, for function 3");
    assert_eq!((commands.arena.firmware_pages(), commands.stats.pages_given), (2, 2));
    // The firmware took the first two after all.
    answer_late(&shared, 3, 0);
    commands.destroy_orphans();
    assert_eq!((commands.arena.firmware_pages(), commands.arena.leaked_pages(), commands.stats.pages_given), (4, 0, 4));
    assert_eq!(commands.arena.free_pages(), free - 5, "four pages, and the mailboxes");
    assert_eq!(commands.lost_slots(), 0);
}

#[test]
fn pages_that_came_back_late_are_free() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let given: Vec<u64> = (0..2).map(|_| commands.arena.allocate_firmware_page(0).unwrap()).collect();
    let result = commands.reclaim_pages(0, 2);
    assert!(matches!(result.map_err(Error::from), Err(Error::CommandTimeout { .. })));
    let free = commands.arena.free_pages();
    // The output lies at the address in the entry of slot 3: two addresses.
    let pointer = u64::from_be_bytes(shared.borrow().memory[3 * 64 + 48..3 * 64 + 56].try_into().unwrap());
    let at = (pointer - DEVICE_ADDR) as usize;
    for (index, addr) in given.iter().enumerate() {
        shared.borrow_mut().memory[at + 8 * index..at + 8 * index + 8].copy_from_slice(&addr.to_be_bytes());
    }
    answer_late(&shared, 3, 2);
    commands.destroy_orphans();
    assert_eq!((commands.arena.firmware_pages(), commands.stats.pages_back, commands.arena.free_pages()), (0, 2, free + 3));
}

#[test]
fn pages_are_asked_back_for_each_function_that_has_some() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let seen = Rc::new(RefCell::new(Vec::new()));
    let note = seen.clone();
    // A firmware that returns a page of a function only to a request for that function's (`manage_pages_in`: op_mod in bytes
    // 6 to 7, function_id in 10 to 11, input_num_entries in 12 to 15).
    let mut pages: Vec<(u16, u64)> = Vec::new();
    shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, value| {
        if at != 0x18 {
            return;
        }
        let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize;
        let entry: [u8; 64] = memory[slot * 64..slot * 64 + 64].try_into().unwrap();
        let block = |at: usize| (u64::from_be_bytes(entry[at..at + 8].try_into().unwrap()) - DEVICE_ADDR) as usize;
        let function = u16::from_be_bytes([entry[26], entry[27]]);
        let count = u32::from_be_bytes(entry[28..32].try_into().unwrap()) as usize;
        let mut returned = 0;
        if entry[23] == 1 {
            let list = &memory[block(8)..][..8 * count];
            pages.extend(list.chunks(8).map(|addr| (function, u64::from_be_bytes(addr.try_into().unwrap()))));
        } else {
            note.borrow_mut().push((function, count));
            let theirs: Vec<usize> = (0..pages.len()).rev().filter(|index| pages[*index].0 == function).take(count).collect();
            for (place, index) in theirs.iter().enumerate() {
                let addr = pages.remove(*index).1.to_be_bytes();
                memory[block(48) + 8 * place..][..8].copy_from_slice(&addr);
            }
            returned = theirs.len() as u32;
        }
        memory[slot * 64 + 32..slot * 64 + 48].fill(0);
        memory[slot * 64 + 40..slot * 64 + 44].copy_from_slice(&returned.to_be_bytes());
        memory[slot * 64 + 63] = 0;
    }));
    for (function, count) in [(0, 2), (3, 5), (0x107, 1)] {
        commands.give_pages(function, count).unwrap();
    }
    assert_eq!(commands.arena.firmware_pages(), 8);
    assert_eq!(commands.reclaim_all(Duration::from_secs(5)), Ok(()));
    assert_eq!((commands.arena.firmware_pages(), commands.stats.pages_back), (0, 8));
    assert_eq!(*seen.borrow(), [(0, 2), (3, 5), (0x107, 1)]);
}

#[test]
fn as_many_late_objects_as_slots_are_destroyed_again() {
    let (mut driver, shared) = started();
    let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
    let range = commands.arena.allocate(1).unwrap();
    commands.start(range, 5, 6);
    let at = range.at();
    for _ in 0..31 {
        let Ok(memory) = commands.allocate_memory(1, false) else { break };
        commands.create_object(CmdOpcode::CreateCq, CmdOpcode::DestroyCq, &[0; 16], 0, &mut |_| 0, memory).unwrap_err();
        if commands.arena.free_pages() == 0 {
            break;
        }
    }
    let lost = commands.lost_slots();
    assert!(lost > 20);
    for slot in 0..lost as usize {
        let entry = &mut shared.borrow_mut().memory[at + slot * 64..at + slot * 64 + 64];
        entry[32..48].fill(0);
        entry[43] = slot as u8;
        entry[63] = 0;
    }
    let destroyed = Rc::new(RefCell::new(std::collections::BTreeSet::new()));
    let note = destroyed.clone();
    shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, register, value| {
        if register == 0x18 {
            let slot = u32::from_be_bytes(value.try_into().unwrap()).trailing_zeros() as usize;
            let entry = &mut memory[at + slot * 64..at + slot * 64 + 64];
            assert_eq!(entry[16..18], [0x04, 0x01], "DESTROY_CQ");
            note.borrow_mut().insert(u32::from_be_bytes(entry[24..28].try_into().unwrap()));
            entry[32..48].fill(0);
            entry[63] = 0;
        }
    }));
    commands.destroy_orphans();
    assert_eq!(*destroyed.borrow(), (0..lost).collect());
    assert_eq!((commands.lost_slots(), commands.arena.leaked_pages()), (0, 0));
}

#[test]
fn pages_stay_out_of_use_after_a_late_answer_that_cannot_be_trusted() {
    for (signed, status, expected) in [(false, 0, (2, 0, 0)), (false, 8, (0, 0, 2)), (true, 0, (0, 2, 0))] {
        let (mut driver, shared) = started();
        let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
        let free = commands.arena.free_pages();
        let result = commands.give_pages(0, 2);
        assert!(matches!(result.map_err(Error::from), Err(Error::CommandTimeout { .. })));
        commands.signatures = signed;
        shared.borrow_mut().memory[3 * 64 + 32] = status;
        shared.borrow_mut().memory[3 * 64 + 63] = 0;
        commands.destroy_orphans();
        let arena: &Arena = &commands.arena;
        let freed = arena.free_pages() + 2 - free;
        assert_eq!((arena.firmware_pages(), arena.leaked_pages(), freed), expected, "signed {signed}, status {status}");
    }
}
