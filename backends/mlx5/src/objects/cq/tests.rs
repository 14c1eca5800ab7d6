//! Completions by known bytes (`mlx5_cqe64` and `mlx5_err_cqe` of rdma-core's `mlx5dv.h`), and the owner bit at the wraps.

use std::vec::Vec;

use super::*;
use crate::dma::arena::PageUse;
use crate::mock::{Done, MockPlatform, PAGES, Shared, driver};

type Mock = Driver<MockPlatform, [PageUse; PAGES]>;

const RING: usize = 0x3000;
const RECORD: usize = 0x2000;

/// A queue of 16 entries whose consumer stands at `consumer`, all entries as the device left them a round ago.
fn made(consumer: u32) -> (Mock, Cq, Shared) {
    let (mut driver, shared) = driver();
    driver.cqs.queues.push(0x77).unwrap();
    driver.uar = crate::dma::uar::Uar::at(4, 0, false);
    let arena: &mut crate::dma::arena::Arena = &mut driver.arena;
    let run = arena.allocate(1).unwrap();
    for back in 1..=16 {
        put(&shared, consumer.wrapping_sub(back), 0, 0xdead, 0xbeef);
    }
    let cq = Cq {
        cqn: 0x77,
        ring: RING,
        mask: 15,
        log_size: 4,
        consumer,
        record: RECORD,
        user_index: true,
        run,
        destroy: Default::default(),
    };
    (driver, cq, shared)
}

/// The device writes entry `index`.
fn put(shared: &Shared, index: u32, opcode: u8, qpn: u32, counter: u16) {
    let mut entry = [0u8; 64];
    entry[32..36].copy_from_slice(&(0xff00_0000 | (qpn + 1)).to_be_bytes());
    entry[36..40].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    entry[44..48].copy_from_slice(&1234u32.to_be_bytes());
    entry[54] = 0x99;
    entry[55] = 0x13;
    entry[56..60].copy_from_slice(&(0x0800_0000 | qpn).to_be_bytes());
    entry[60..62].copy_from_slice(&counter.to_be_bytes());
    entry[63] = opcode << 4 | ((index >> 4) & 1) as u8;
    let at = RING + (index & 15) as usize * 64;
    shared.borrow_mut().memory[at..at + 64].copy_from_slice(&entry);
}

#[test]
fn every_kind_of_entry() {
    let (mut driver, mut cq, shared) = made(0);
    let expected = |kind, data| RawCompletion {
        qpn: Qpn::new(0x12_3456),
        cookie: Some(0x12_3457),
        kind,
        index: 0xfedc,
        status: WcStatus::Success,
        vendor_err: 0,
        byte_len: 1234,
        data,
    };
    let imm = WcData::Imm([0xde, 0xad, 0xbe, 0xef]);
    let kinds = [
        (0, RawKind::Send, WcData::None),
        (1, RawKind::RecvRdmaWithImm, imm),
        (2, RawKind::Recv, WcData::None),
        (3, RawKind::Recv, imm),
        (4, RawKind::Recv, WcData::Invalidated(Rkey::new(0xdead_beef))),
    ];
    for (index, (opcode, kind, data)) in kinds.into_iter().enumerate() {
        assert_eq!(driver.poll_cq(&mut cq), Ok(None));
        put(&shared, index as u32, opcode, 0x12_3456, 0xfedc);
        assert_eq!(driver.poll_cq(&mut cq), Ok(Some(expected(kind, data))));
    }
    for (index, (opcode, kind)) in [(13, RawKind::Send), (14, RawKind::Recv)].into_iter().enumerate() {
        put(&shared, 5 + index as u32, opcode, 0x12_3456, 0xfedc);
        let error =
            RawCompletion { status: WcStatus::RemAccessErr, vendor_err: 0x99, byte_len: 0, ..expected(kind, WcData::None) };
        assert_eq!(driver.poll_cq(&mut cq), Ok(Some(error)));
    }
    for (index, opcode) in [5u8, 6, 7, 12].into_iter().enumerate() {
        put(&shared, 7 + index as u32, opcode, 0x12_3456, 0);
        assert_eq!(driver.poll_cq(&mut cq), Err(Error::BadCompletion { cqn: 0x77, opcode }));
    }
    put(&shared, 11, 15, 0x12_3456, 0);
    assert_eq!(driver.poll_cq(&mut cq), Ok(None), "opcode 15 is no entry");
    cq.user_index = false;
    put(&shared, 11, 0, 0x12_3456, 0);
    assert_eq!(driver.poll_cq(&mut cq).unwrap().unwrap().cookie, None);
}

#[test]
fn owner_and_record_are_right_at_every_wrap() {
    for start in [0u32, 15, 16, 31, 0xff_fff8, 0xffff_fff8] {
        let (mut driver, mut cq, shared) = made(start);
        for step in 0..40u32 {
            let index = start.wrapping_add(step);
            assert_eq!(driver.poll_cq(&mut cq), Ok(None), "{index:#x}");
            put(&shared, index, 0, 5, step as u16);
            let completion = driver.poll_cq(&mut cq).unwrap().unwrap();
            assert_eq!(u32::from(completion.index), step);
            driver.update_consumer_index(&cq).unwrap();
            let record = shared.borrow().memory[RECORD..RECORD + 4].to_vec();
            assert_eq!(record, (index.wrapping_add(1) & 0xff_ffff).to_be_bytes());
        }
    }
}

#[test]
fn the_copy_is_read_after_the_owner_and_the_index_is_told_after_the_copy() {
    let (mut driver, mut cq, shared) = made(0);
    put(&shared, 0, 0, 5, 0);
    shared.borrow_mut().log.clear();
    driver.poll_cq(&mut cq).unwrap();
    driver.update_consumer_index(&cq).unwrap();
    assert_eq!(shared.borrow().log, [Done::Acquire, Done::Release, Done::Store(RECORD, std::vec![0, 0, 0, 1])]);
}

#[test]
fn an_arm_carries_index_kind_and_the_number_of_events() {
    let (mut driver, cq, shared) = made(0x0123_4567);
    let armed = |driver: &mut Mock, solicited| -> Vec<Done> {
        shared.borrow_mut().log.clear();
        driver.arm(&cq, solicited).unwrap();
        shared.borrow().log.clone()
    };
    let arm = |high: u32| {
        let low = 0x77u32;
        std::vec![
            Done::Store(RECORD + 4, high.to_be_bytes().to_vec()),
            Done::Release,
            Done::Register(4 * 4096 + 0x20, [high.to_be_bytes(), low.to_be_bytes()].concat()),
        ]
    };
    assert_eq!(armed(&mut driver, false), arm(0x0023_4567));
    assert_eq!(armed(&mut driver, true), arm(0x0123_4567), "armed twice without an event in between: the same number");
    for count in 1..6u32 {
        assert!(driver.cqs.event(0x77).is_some());
        assert_eq!(armed(&mut driver, false), arm((count & 3) << 28 | 0x23_4567));
    }
    assert_eq!(driver.cqs.event(0x78), None, "no such queue");
}

#[test]
fn cleaning_takes_one_queue_pair_out_and_keeps_the_order_of_the_others() {
    for start in [0u32, 9, 0xffff_fff9] {
        let (mut driver, mut cq, shared) = made(start);
        for step in 0..16u32 {
            put(&shared, start.wrapping_add(step), 0, if step % 3 == 0 { 5 } else { 6 }, step as u16);
        }
        driver.clean(&mut cq, 5).unwrap();
        assert_eq!(cq.consumer, start.wrapping_add(6));
        let left: Vec<u16> =
            core::iter::from_fn(|| driver.poll_cq(&mut cq).unwrap()).map(|completion| completion.index).collect();
        assert_eq!(left, [1, 2, 4, 5, 7, 8, 10, 11, 13, 14]);
        let record = shared.borrow().memory[RECORD..RECORD + 4].to_vec();
        assert_eq!(record, (start.wrapping_add(6) & 0xff_ffff).to_be_bytes());
        put(&shared, start.wrapping_add(16), 0, 6, 99);
        assert_eq!(driver.poll_cq(&mut cq).unwrap().unwrap().index, 99);
    }
}
