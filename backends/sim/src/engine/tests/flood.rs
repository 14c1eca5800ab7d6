//! A peer that sends all that the port takes does not stop the work of its host.

use std::time::Duration;

use super::budget::{ACCESSES, BYTES};
use super::harness::*;
use crate::engine::{Engine, PageSource};
use crate::packet::{Bth, Deth, Lrh, Opcode, Operation, Packet, Place, Transport};
use crate::step::StepContext;
use bareverbs_mlx5_spec::{CmdOpcode, Cqc, Mkc, Qpc, QpcSt, View, ViewMut};

const QKEY: u32 = 0x1111_2222;
const WRITE: u8 = 0x08;

/// A host with a datagram queue pair that anyone may send to, and such a datagram.
struct Flooded {
    host: Host,
    frame: Vec<u8>,
}

impl Flooded {
    fn new() -> Self {
        let mut host = Host::new(1);
        let target = host.qp_of(QpcSt::Ud, 4, 4, 6);
        for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
            host.modify(target.qpn, opcode, 0, |qpc| {
                qpc.set(Qpc::Q_KEY, QKEY).set(Qpc::MTU, 5).set(Qpc::LOG_MSG_MAX, 12);
            })
            .unwrap();
        }
        let lrh = Lrh { dlid: 1, slid: 2, ..Lrh::default() };
        let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let dest_qpn = target.qpn;
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn, ack_req: false, psn: 0 };
        let mut packet = Packet::new(lrh, bth);
        packet.transport.deth = Some(Deth { qkey: QKEY, source_qpn: 2 });
        let frame = packet.encode();
        Self { host, frame }
    }

    /// Returns a queue pair connected to itself that has `count` writes to do.
    fn writer_to_itself(&mut self, count: u32) -> TestQp {
        let host = &mut self.host;
        let at = host.alloc(4096);
        let key = host.mkey(at, 4096, 0x1f);
        let mut qp = host.qp(2, 7, 8);
        host.connect(qp.qpn, 1, qp.qpn, Link { mtu: 5, timeout: 0, ..Link::default() });
        (0..count).for_each(|_| host.post_send(&mut qp, WRITE, SIGNALED, 0, &[raddr(at, key), data(at, 8, key)].concat()));
        qp
    }

    /// One turn with as many frames from outside as [`Device::may_receive`](crate::Device::may_receive) allows.
    fn turn(&mut self) {
        let frame = &self.frame;
        let mut taken = 0;
        let cost = self.host.cost(|engine, ctx| {
            while !ctx.meter.is_half_spent() {
                ctx.meter.count(1);
                engine.receive(ctx, frame);
                taken += 1;
            }
            engine.advance(ctx);
        });
        assert!(taken > 0, "and frames from outside have their part");
        assert!(cost.0 <= ACCESSES && cost.1 <= BYTES, "{cost:?}");
        self.host.now = self.host.now.after(Duration::from_micros(1));
    }
}

#[test]
fn messages_to_the_own_port_arrive() {
    let mut flooded = Flooded::new();
    let mut qp = flooded.writer_to_itself(100);
    for _ in 0..20 {
        flooded.turn();
    }
    let done = std::iter::from_fn(|| flooded.host.poll(&mut qp.send)).map(|cqe| (cqe.counter(), cqe.opcode()));
    assert!(done.eq((0..100).map(|counter| (counter, 0))));
}

#[test]
fn frames_to_the_own_port_do_not_fill_up_what_keeps_others_from_sending() {
    let mut flooded = Flooded::new();
    let mut writers: Vec<TestQp> = (0..16).map(|_| flooded.writer_to_itself(128)).collect();
    let mut qp = flooded.host.qp(2, 4, 6);
    flooded.host.connect(qp.qpn, 9, 9, Link { timeout: 0, ..Link::default() });
    for _ in 0..200 {
        flooded.turn();
    }
    flooded.host.post_send(&mut qp, 0x0a, 0, 0, &inline(b"hello"));
    for _ in 0..10 {
        flooded.turn();
    }
    assert!(flooded.host.engine.transmit().is_some());
    for writer in &mut writers {
        let done = std::iter::from_fn(|| flooded.host.poll(&mut writer.send)).count();
        assert_eq!(done, 128);
    }
}

#[test]
fn events_held_back_by_moderation_are_raised() {
    let mut flooded = Flooded::new();
    let mut writers: Vec<TestQp> = (0..16).map(|_| flooded.writer_to_itself(128)).collect();
    let mut qp = flooded.host.qp(2, 6, 6);
    flooded.host.connect(qp.qpn, 9, 9, Link::default());
    let mut cqc = [0; 64];
    ViewMut::<Cqc>::of(&mut cqc).set(Cqc::CQ_PERIOD, 3).set(Cqc::CQ_MAX_COUNT, 100);
    flooded.host.engine.moderate_cq(qp.send.cqn, 3, View::of(&cqc)).unwrap();
    for _ in 0..10 {
        flooded.host.arm(&qp.send, false);
        flooded.host.post_send(&mut qp, 0, SIGNALED, 0, &[]);
        for _ in 0..20 {
            flooded.turn();
        }
        assert_eq!(flooded.host.events().len(), 1);
        while flooded.host.poll(&mut qp.send).is_some() {}
        writers.iter_mut().for_each(|writer| while flooded.host.poll(&mut writer.send).is_some() {});
    }
}

/// A packet may cost as much as a turn: its bytes go to as many places.
#[test]
fn costly_packets_to_the_own_port_do_not_keep_others_from_sending() {
    let mut host = Host::new(1);
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    // Keys of one byte each, so that no two are neighbours.
    let list = |byte: u64| words(&[1, key, (at >> 32) as u32, (at + (byte * 2 + 1) % 4096) as u32]);
    let list: Vec<u8> = (0..4096).flat_map(list).collect();
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::of(&mut mkc);
    set_rights(&mut view, 0x1f);
    view.set(Mkc::ACCESS_MODE_1_0, 2)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::PD, PD)
        .set64(Mkc::LEN, 4096)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 4096);
    let create =
        |engine: &mut Engine, ctx: &mut StepContext<'_>| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&list));
    let scattered = host.with(create).unwrap() << 8;
    let write = [raddr(0, scattered), data(at, 4096, key)].concat();
    for _ in 0..16 {
        let mut qp = host.qp(2, 7, 8);
        host.connect(qp.qpn, 1, qp.qpn, Link { mtu: 5, timeout: 0, ..Link::default() });
        (0..100).for_each(|_| host.post_send(&mut qp, WRITE, 0, 0, &write));
    }
    let turn = |host: &mut Host| {
        let (accesses, bytes) = host.cost(|engine, ctx| engine.advance(ctx));
        // And one such packet.
        assert!(accesses <= ACCESSES + 4096 && bytes <= BYTES, "{accesses} {bytes}");
        host.now = host.now.after(Duration::from_micros(1));
    };
    (0..5).for_each(|_| turn(&mut host));
    let mut qp = host.qp(2, 4, 6);
    host.connect(qp.qpn, 9, 9, Link { timeout: 0, ..Link::default() });
    host.post_send(&mut qp, 0x0a, 0, 0, &inline(b"hello"));
    let mut turns = 0;
    while host.engine.transmit().is_none() {
        turn(&mut host);
        turns += 1;
        assert!(turns <= 20, "the others keep it from its turn");
    }
}
