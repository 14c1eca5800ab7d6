//! A port whose queue pairs use up each turn is managed nevertheless.

use bareverbs::platform::{DmaMemory, Instant};
use bareverbs_sim::packet::{
    Bth, Deth, Lrh, Opcode, Operation, Packet, Place, SUBNET_LANE, SUBNET_QPN, Transport, destination,
};

use crate::host::*;

const LID: u16 = 7;
const QUEUE_PAIRS: u64 = 8;
/// Of each queue pair.
const WRITES: u32 = 8;
/// Where the completion queue is, of 64 entries.
const CQ: u64 = 0x12_0000;
/// Bytes of each write: a turn.
const WRITE_LEN: u32 = 1 << 20;

fn number(output: &[u8]) -> u32 {
    be32(output, 8)
}

/// Posts writes of reliable queue pairs to themselves.
fn write_to_themselves(host: &mut Host) {
    let uar = host.uar();
    let eqn = host.eq(uar, 0x11_0000, 4, 0, 0);
    let mut cq = input(0x400, 272, &[(16 + 12, 6 << 24 | uar), (16 + 20, eqn)]);
    cq[16 + 56..16 + 64].copy_from_slice(&(BASE + 0x13_0000).to_be_bytes());
    cq.extend((BASE + CQ).to_be_bytes());
    let cqn = number(&host.ok(&cq, 16));
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    // All rights, for any queue pair, to all addresses.
    let key = [(16, 0x1f << 10), (16 + 4, 0xffff_ff00), (16 + 12, 1 << 31 | pd)];
    let key = number(&host.ok(&input(0x200, 272, &key), 16)) << 8;
    let mut doorbells = Vec::new();
    for n in 0..QUEUE_PAIRS {
        let (record, ring, buffer) = (0x13_0040 + n * 64, 0x14_0000 + n * 4096, BASE + 0x40_0000);
        let dwords = [(24 + 4, pd), (24 + 8, 4 << 11), (24 + 12, uar), (24 + 124, cqn), (24 + 172, 3 << 24)];
        let mut qp = input(0x500, 272, &dwords);
        qp[24 + 160..24 + 168].copy_from_slice(&(BASE + record).to_be_bytes());
        qp.extend((BASE + ring).to_be_bytes());
        let qpn = number(&host.ok(&qp, 16));
        host.ok(&input(0x502, 272, &[(8, qpn), (24 + 144, 7 << 13)]), 16);
        let path = [(24 + 8, 5 << 29 | 30 << 24), (24 + 20, qpn), (24 + 28, LID.into())];
        host.ok(&input(0x503, 272, &[&[(8, qpn)][..], &path].concat()), 16);
        host.ok(&input(0x504, 272, &[(8, qpn), (24 + 112, 7 << 16 | 7 << 13)]), 16);
        for index in 0..WRITES {
            // Control, remote address, data: RDMA write, 3 units of 16 bytes, with a completion.
            let [high, low] = [(buffer >> 32) as u32, buffer as u32];
            let wqe = [index << 8 | 8, qpn << 8 | 3, 8, 0, high, low, key, 0, WRITE_LEN, key, high, low];
            let wqe: Vec<u8> = wqe.iter().flat_map(|dword| dword.to_be_bytes()).collect();
            host.memory.write((ring + u64::from(index) * 64) as usize, &wqe).unwrap();
        }
        host.memory.write(record as usize + 4, &WRITES.to_be_bytes()).unwrap();
        doorbells.push([((WRITES - 1) << 8 | 8).to_be_bytes(), (qpn << 8 | 3).to_be_bytes()].concat());
    }
    doorbells.iter().for_each(|doorbell| host.device.bar_write(u64::from(uar) * 4096 + 0x800, doorbell));
}

/// Returns how many of the completion queue's entries the device has written: they name a queue pair.
fn completions(host: &Host) -> usize {
    host.bytes(CQ as usize, 64 * 64).chunks(64).filter(|entry| be32(entry, 56) & 0xff_ffff != 0).count()
}

/// SubnGet(NodeInfo) from a port with this LID.
fn question(slid: u16) -> Vec<u8> {
    let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
    let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: SUBNET_QPN, ack_req: false, psn: 0 };
    let mut packet = Packet::new(Lrh { vl: SUBNET_LANE, sl: 0, dlid: LID, slid }, bth);
    packet.transport.deth = Some(Deth { qkey: 0, source_qpn: SUBNET_QPN });
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, 1, 1, 1]);
    mad[17] = 0x11;
    packet.transport.payload = mad.into();
    packet.encode()
}

/// One turn; the frames of subnet management that left.
fn turn(host: &mut Host) -> usize {
    host.run(1000);
    std::iter::from_fn(|| host.device.transmit()).filter(|frame| frame[0] >> 4 == SUBNET_LANE).count()
}

#[test]
fn agents_answer_while_queue_pairs_use_up_the_turn() {
    let mut host = Host::running(plain());
    write_to_themselves(&mut host);
    for _ in 0..4 {
        turn(&mut host);
    }
    for _ in 0..8 {
        host.device.receive(&question(1));
        assert_eq!(turn(&mut host), 1);
    }
    assert!(host.device.next_due().is_some_and(|due| due <= Instant::from_nanos(host.now)), "the port is still busy");
}

#[test]
fn questions_without_end_leave_a_part_of_the_turn_to_queue_pairs() {
    let mut host = Host::running(plain());
    write_to_themselves(&mut host);
    let question = question(1);
    let mut turns = 0;
    while completions(&host) < 64 {
        while host.device.may_receive() {
            host.device.receive(&question);
        }
        assert!(turn(&mut host) > 0);
        turns += 1;
        // An eighth of a megabyte in each.
        assert!(turns < 64 * 9, "queue pairs make no progress");
    }
}

#[test]
fn questions_without_end_leave_room_for_another_source() {
    let mut host = Host::running(plain());
    let answered = |host: &mut Host, slid: u16| {
        host.run(1000);
        std::iter::from_fn(|| host.device.transmit()).any(|frame| destination(&frame) == Some(slid))
    };
    let mut waits = Vec::new();
    for _ in 0..50 {
        let flood = |host: &mut Host, from_manager: Option<usize>| {
            let mut sent = 0;
            while host.device.may_receive() {
                host.device.receive(&question(if from_manager == Some(sent) { 3 } else { 1 }));
                sent += 1;
            }
        };
        // Its request comes in the middle of the others.
        flood(&mut host, Some(500));
        let mut wait = 0;
        while wait < 100 && !answered(&mut host, 3) {
            flood(&mut host, None);
            wait += 1;
        }
        waits.push(wait);
    }
    assert!(waits.iter().all(|&wait| wait < 5), "{waits:?}");
}
