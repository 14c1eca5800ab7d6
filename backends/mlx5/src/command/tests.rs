//! Bytes of the command interface, by `mlx5_ifc.h` and Linux `struct mlx5_cmd_layout` and `struct mlx5_cmd_prot_block`.

use std::vec::Vec;

use bareverbs_mlx5_spec::CmdOpcode;

use super::*;
use crate::dma::arena::PageUse;
use crate::mock::{DEVICE_ADDR, Done, MockPlatform, started};

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

#[test]
fn an_entry_and_its_chains_lie_as_published() {
    let (mut driver, shared) = started();
    shared.borrow_mut().device = Some(std::boxed::Box::new(|memory, at, _| {
        if at == 0x18 {
            // Answer in the second output block, then give the slot back.
            memory[4096 + (8 + 1) * 1024..][..4].copy_from_slice(&[0xca, 0xfe, 0xba, 0xbe]);
            memory[63] &= !1;
        }
    }));
    let view: &mut Driver<MockPlatform> = &mut driver;
    let mut input = [0u8; 16 + 512 + 8];
    for (index, byte) in input.iter_mut().enumerate() {
        *byte = index as u8;
    }
    let mut output = [0u8; 16 + 512 + 4];
    view.command(CmdOpcode::QueryMkey, &input, &mut output).unwrap();
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
    let view: &mut Driver<MockPlatform> = &mut driver;
    let opcode = CmdOpcode::QueryIssi.code() as u16;
    for _ in 0..3 {
        let result = view.command(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112]);
        assert_eq!(result, Err(Error::CommandTimeout { opcode }));
    }
    assert_eq!(view.command(CmdOpcode::QueryIssi, &[0; 16], &mut [0; 112]), Err(Error::NoCommandSlot));
    assert_eq!(view.arena.count(PageUse::Lost), 3 * 4, "the buffers of three commands");
    let doorbells: Vec<Done> =
        shared.borrow().log.iter().filter(|done| matches!(done, Done::Register(0x18, _))).cloned().collect();
    assert_eq!(doorbells, [1u8, 2, 4].map(|bit| Done::Register(0x18, [0, 0, 0, bit].to_vec())));
    assert_eq!(view.commands.queue.slot(Lane::Pages), Some(3));
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
    let view: &mut Driver<MockPlatform> = &mut driver;
    let opcode = CmdOpcode::AllocPd.code() as u16;
    answer(0, 5);
    let result = view.command(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16]);
    assert_eq!(result, Err(Error::CommandStatus { opcode, status: 5, syndrome: 0x1234 }));
    answer(2 << 1, 0);
    let result = view.command(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16]);
    assert_eq!(result, Err(Error::CommandDelivery { opcode, status: 2 }));
    view.signatures_checked = true;
    answer(0, 0);
    let result = view.command(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16]);
    assert_eq!(result, Err(Error::CommandSignature { opcode }));
    shared.borrow_mut().registers.fill(0xff);
    shared.borrow_mut().device = None;
    let result = view.command(CmdOpcode::AllocPd, &[0; 16], &mut [0; 16]);
    assert_eq!(result, Err(Error::DeviceGone));
}
