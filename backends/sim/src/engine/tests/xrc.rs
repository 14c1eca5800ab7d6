//! Targets of extended reliable connections, and shared receive queues that end before they do.

use super::super::{EngineEvent, PageSource, SrqKind, SrqSpec};
use super::harness::*;
use crate::packet::{Bth, Lrh, Opcode, Operation, Packet, Place, Reth, Transport};
use crate::registry::Resource;
use bareverbs_mlx5_spec::{Ads, CmdOpcode, EventType, Qpc, QpcSt, View, ViewMut, rq_type};

const XRCD: u32 = 8;
/// Domain of the shared receive queues, and of another.
const SHARED_PD: u32 = PD + 1;
const OTHER_PD: u32 = PD - 1;
const FIRST: u32 = 0xff_ffff;
const MTU: usize = 256;

/// A target; the test is its peer.
struct Target {
    host: Host,
    qpn: u32,
    psn: u32,
}

impl Target {
    fn new() -> Self {
        let mut host = Host::new(1);
        host.engine.registry_mut().insert_named(Resource::xrcd(XRCD));
        let dbr = host.alloc(8);
        let mut qpc = [0; 232];
        ViewMut::<Qpc>::new(&mut qpc)
            .unwrap()
            .set(Qpc::ST, QpcSt::Xrc.code())
            .set(Qpc::PD, PD)
            .set(Qpc::NO_SQ, 1)
            .set(Qpc::RQ_TYPE, rq_type::SRQ)
            .set(Qpc::XRCD, XRCD)
            .set64(Qpc::DBR_ADDR, dbr);
        let qpn = host.engine.create_qp(View::new(&qpc).unwrap(), PageSource::Listed(&[]), None).unwrap();
        host.modify(qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
            qpc.set(Qpc::RRE, 1).set(Qpc::RWE, 1);
        })
        .unwrap();
        host.modify(qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
            qpc.set(Qpc::MTU, 1).set(Qpc::REMOTE_QPN, 0x1234).set(Qpc::NEXT_RCV_PSN, FIRST).set(Qpc::LOG_RRA_MAX, 2);
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 2);
        })
        .unwrap();
        Self { host, qpn, psn: FIRST }
    }

    fn spec(pd: u32, cqn: u32, dbr: u64) -> SrqSpec {
        SrqSpec {
            kind: SrqKind::Xrc,
            log_size: 4,
            log_stride: 6,
            log_page_size: 0,
            page_offset: 0,
            dbr_addr: dbr,
            pd,
            xrcd: XRCD,
            cqn,
            user_index: 0x55,
            limit: 0,
        }
    }

    /// Returns a shared receive queue with receives of `key` at `at`.
    fn srq(&mut self, cq: &TestCq, at: u64, key: u32) -> u32 {
        self.srq_with(cq, at, key, 0x55)
    }

    fn srq_with(&mut self, cq: &TestCq, at: u64, key: u32, user_index: u32) -> u32 {
        let (ring, dbr) = (self.host.alloc(64 << 4), self.host.alloc(8));
        let list = Host::list(ring, 64 << 4);
        let spec = SrqSpec { user_index, ..Self::spec(SHARED_PD, cq.cqn, dbr) };
        let srqn = self.host.engine.create_srq(spec, PageSource::Listed(&list), None).unwrap();
        for index in 0..4_u32 {
            let receive = [words(&[index + 1, 0, 0, 0]), data(at, 1024, key), words(&[0, 0x100, 0, 0])].concat();
            self.host.write(ring + u64::from(index) * 64, &receive);
        }
        self.host.write(dbr, &4_u32.to_be_bytes());
        srqn
    }

    /// Destroys a shared receive queue; another one, of another domain and with another completion queue, gets its number.
    fn replace(&mut self, srqn: u32, cq: &TestCq) {
        let (ring, dbr) = (self.host.alloc(64 << 4), self.host.alloc(8));
        let list = Host::list(ring, 64 << 4);
        let engine = &mut self.host.engine;
        engine.destroy_srq(srqn, SrqKind::Xrc).unwrap();
        loop {
            let next = engine.create_srq(Self::spec(OTHER_PD, cq.cqn, dbr), PageSource::Listed(&list), None).unwrap();
            if next == srqn {
                return;
            }
            engine.destroy_srq(next, SrqKind::Xrc).unwrap();
        }
    }

    fn request(&mut self, operation: Operation, srqn: u32, reth: Option<Reth>, len: usize) {
        let lrh = Lrh { dlid: 1, slid: 2, ..Lrh::default() };
        let opcode = Opcode { transport: Transport::Xrc, operation };
        let psn = self.psn;
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: self.qpn, ack_req: true, psn };
        let mut packet = Packet::new(lrh, bth);
        (packet.transport.xrc_srqn, packet.transport.reth, packet.transport.payload) =
            (Some(srqn), reth, vec![0xab; len].into());
        let frame = packet.encode();
        self.host.with(|engine, ctx| engine.receive(ctx, &frame));
        self.psn = (self.psn + 1) & 0xff_ffff;
    }

    /// Returns the opcode and AETH syndrome of each answer.
    fn answers(&mut self) -> Vec<(u8, u8)> {
        self.host.with(|engine, ctx| engine.advance(ctx));
        std::iter::from_fn(|| self.host.engine.transmit()).map(|frame| (frame[8], frame[20])).collect()
    }

    fn failed(&mut self, event: EventType) -> bool {
        let event = EngineEvent::Qp { event, qpn: self.qpn };
        self.host.state(self.qpn) == 6 && self.host.events().contains(&event)
    }
}

#[test]
fn a_message_completes_in_the_queue_that_it_names() {
    let mut target = Target::new();
    let (mut cq, at) = (target.host.cq(4), target.host.alloc(4096));
    let key = target.host.mkey_of(SHARED_PD, at, 4096, 0x1f);
    let srqn = target.srq(&cq, at, key);
    target.request(Operation::Send(Place::First), srqn, None, MTU);
    target.request(Operation::Send(Place::Last), srqn, None, 7);
    assert_eq!(target.answers().last().map(|answer| answer.1), Some(0x1f));
    let got = target.host.poll(&mut cq).unwrap();
    assert_eq!((got.opcode(), got.byte_cnt(), got.user_index()), (2, MTU as u32 + 7, 0x55));
}

/// Linux's kernel asks for it, and looks the queue up by the number that the completion then has (`handle_responder`).
#[test]
fn a_queue_with_completions_of_version_0_is_named_by_its_number() {
    let mut target = Target::new();
    let (mut cq, at) = (target.host.cq(4), target.host.alloc(4096));
    let key = target.host.mkey_of(SHARED_PD, at, 4096, 0x1f);
    let srqn = target.srq_with(&cq, at, key, 0xff_ffff);
    target.request(Operation::Send(Place::Only), srqn, None, 7);
    target.answers();
    let got = target.host.poll(&mut cq).unwrap();
    assert_eq!((got.opcode(), got.byte_cnt(), got.user_index()), (2, 7, srqn));
}

#[test]
fn a_message_whose_queue_ends_completes_in_no_other_of_that_number() {
    for reused in [false, true] {
        let mut target = Target::new();
        let (mut cq, mut other, at) = (target.host.cq(4), target.host.cq(4), target.host.alloc(4096));
        let key = target.host.mkey_of(SHARED_PD, at, 4096, 0x1f);
        let srqn = target.srq(&cq, at, key);
        target.request(Operation::Send(Place::First), srqn, None, MTU);
        if reused {
            target.replace(srqn, &other);
        } else {
            target.host.engine.destroy_srq(srqn, SrqKind::Xrc).unwrap();
        }
        target.request(Operation::Send(Place::Last), srqn, None, 7);
        // An acknowledgement of the first packet, and a NAK: invalid request, or remote access error.
        let (nak, event) = if reused { (0x61, EventType::WqInvalReqError) } else { (0x62, EventType::WqAccessError) };
        assert_eq!(target.answers().last().map(|answer| answer.1), Some(nak), "reused: {reused}");
        assert!(target.host.poll(&mut cq).is_none() && target.host.poll(&mut other).is_none(), "reused: {reused}");
        assert!(target.failed(event), "reused: {reused}");
    }
}

#[test]
fn a_flush_completes_nothing_of_a_queue_that_ended() {
    let mut target = Target::new();
    let (mut cq, at) = (target.host.cq(4), target.host.alloc(4096));
    let key = target.host.mkey_of(SHARED_PD, at, 4096, 0x1f);
    let srqn = target.srq(&cq, at, key);
    target.request(Operation::Send(Place::First), srqn, None, MTU);
    target.host.engine.destroy_srq(srqn, SrqKind::Xrc).unwrap();
    target.host.modify(target.qpn, CmdOpcode::Qp2Err, 0, |_| {}).unwrap();
    target.answers();
    assert!(target.host.poll(&mut cq).is_none());
}

#[test]
fn a_read_reads_nothing_of_the_domain_of_a_queue_that_ended() {
    for reused in [false, true] {
        let mut target = Target::new();
        let (cq, at) = (target.host.cq(4), target.host.alloc(4096));
        let key = target.host.mkey_of(SHARED_PD, at, 4096, 0x1f);
        let srqn = target.srq(&cq, at, key);
        let reth = Reth { addr: at, rkey: key, len: 2 * MTU as u32 };
        target.request(Operation::ReadRequest, srqn, Some(reth), 0);
        if reused {
            target.replace(srqn, &cq);
        } else {
            target.host.engine.destroy_srq(srqn, SrqKind::Xrc).unwrap();
        }
        // An acknowledgement packet of the service, and in it a NAK: remote access.
        assert_eq!(target.answers(), [(5 << 5 | 0x11, 0x62)], "reused: {reused}");
    }
}
