//! The steps of a program on the lying device, and the lies between them.

use core::net::Ipv4Addr;
use core::time::Duration;

use bareverbs::error::PollCqError;
use bareverbs::{
    Access, Binding, Completion, ConnectedOp, CqModeration, FastReg, GidEntry, KeyTag, Mac, MaskedOp, MaskedWr, MwType,
    Payload, QpType, RecvWr, Rkey, SendFlags, SendOp, SendWr, Type1Bind,
};
use bareverbs_sim::fault::Fault;

use super::input::Input;
use super::lab::Lab;
use super::ledger::{Owner, Side};
use super::lies::Lie;
use super::mode;
use super::objects::{Objects, Pair};

/// Kinds of steps.
pub(super) const STEPS: u8 = 24;
/// Requests at most in all: an input of a megabyte says no more than one of these.
const REQUESTS: usize = 2000;

/// Opcodes of the commands that a lie may be about: all that the driver sends. Seeds name them by their place.
pub(super) const OPCODES: [u16; 73] = [
    0x100, 0x104, 0x107, 0x108, 0x200, 0x202, 0x301, 0x302, 0x400, 0x401, 0x403, 0x500, 0x501, 0x502, 0x503, 0x504, 0x507,
    0x50a, 0x50b, 0x705, 0x706, 0x762, 0x800, 0x802, 0x805, 0x80e, 0x101, 0x102, 0x103, 0x105, 0x109, 0x10a, 0x10b, 0x201,
    0x707, 0x708, 0x764, 0x765, 0x801, 0x803, 0x806, 0x807, 0x80f, 0x90c, 0x90d, 0x90e, 0x90f, 0x750, 0x754, 0x755, 0x760,
    0x761, 0x816, 0x817, 0x900, 0x902, 0x904, 0x905, 0x906, 0x908, 0x909, 0x90a, 0x912, 0x914, 0x92f, 0x930, 0x931, 0x933,
    0x934, 0x936, 0x938, 0x402, 0x50e,
];

/// Lets the device lie: by its next writes, by an output, or by a fault.
pub(super) fn lie(lab: &Lab, input: &mut Input<'_>) {
    for _ in 0..1 + input.below(4) {
        let kind = input.byte();
        let opcode = OPCODES[input.below(OPCODES.len())];
        let lie = match kind % 8 {
            0..3 => Lie::Invert { from_end: input.byte(), bits: input.dword() },
            3 => Lie::Lost,
            4 => Lie::Stale,
            5 => Lie::Filled { byte: input.byte() },
            _ => {
                // The numbers of completion queues are small.
                let cqn = u32::from(input.byte() % 16);
                let fault = match kind / 8 % 16 {
                    // Of any command or of one, anywhere or in the first words, where most of the fields are.
                    0..5 => {
                        let offset = if kind & 0x80 == 0 { cqn * 4 } else { input.word().into() };
                        let opcode = (kind % 8 == 6).then_some(opcode);
                        Fault::CorruptOutput { opcode, offset, mask: input.dword() }
                    }
                    5 => Fault::CommandStatus { opcode, status: 1 + input.byte() % 16, syndrome: 1 },
                    6 => Fault::EventType { event_type: input.byte() },
                    7 => Fault::StuckCommand { opcode },
                    8 => Fault::DropCqe { cqn },
                    9 => Fault::RepeatCqe { cqn },
                    10 => Fault::WrongOwner { cqn },
                    11 => Fault::ForeignQpn { cqn, qpn: (input.byte() % 32).into() },
                    12 => Fault::WrongWqeCounter { cqn, counter: (input.byte() % 32).into() },
                    13 => Fault::CqeOpcode { cqn, opcode: input.byte() % 16 },
                    14 => Fault::LostInterrupt { vector: (cqn % 4) as u16 },
                    _ => Fault::DeliveryStatus { opcode, status: 1 + input.byte() % 16 },
                };
                lab.host.with_device(|device| device.faults_mut().arm(fault));
                continue;
            }
        };
        let pass = input.byte();
        lab.lies.lock().unwrap().push(if pass < 224 { pass % 16 } else { pass }, lie);
    }
}

/// Makes some of everything, connected: the first of each kind is there before the first step.
pub(super) fn prepare(objects: &mut Objects<'_>, lab: &Lab, mode: u8) {
    let mark = lab.mark();
    objects.read_port();
    if objects.mac.is_some() {
        objects.open_frames();
    }
    objects.make_pd();
    objects.make_region(0);
    objects.make_region(0);
    objects.make_window(0, MwType::Type1);
    objects.make_window(0, MwType::Type2);
    objects.make_fast(0);
    for _ in 0..3 {
        objects.make_cq(60);
    }
    objects.make_pair(QpType::Rc, 0);
    objects.make_pair(QpType::Rc, 1);
    objects.make_pair(if mode & mode::UC == 0 { QpType::Ud } else { QpType::Uc }, 1);
    objects.make_srq();
    objects.make_sharing_pair(0, 0, QpType::Rc);
    objects.make_domain();
    objects.make_xrc_srq(2);
    objects.make_xrc_pair(2);
    for (at, peer) in [(0, 1), (1, 0), (2, 2), (3, 3), (4, 5), (5, 4)] {
        objects.connect(at, peer);
    }
    lab.check(mark, "the first objects");
}

fn send(objects: &mut Objects<'_>, at: usize, input: &mut Input<'_>) {
    let (kind, a, b) = (input.byte(), usize::from(input.word()), usize::from(input.word()));
    let flags = if kind & 0x40 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
    let wr_id = objects.ledger.next_id();
    let (sges, remote) = ([objects.sge(a >> 12, a)], objects.remote(b >> 12, b));
    let inline = [kind; 32];
    let payload = if kind & 0x80 == 0 { Payload::Sges(&sges) } else { Payload::Inline(&inline[..b % 33]) };
    let word = bareverbs::Sge { length: 8, ..sges[0] };
    let imm = [1, 2, 3, kind];
    let mr = objects.region(a >> 12).map(bareverbs::Region::handle);
    let (addr, length) = (remote.addr, (a % 512) as u64);
    // A key that the peer may have: of a window, a registration, or a region.
    let rkey = match b % 3 {
        0 => objects.windows.get(b % 2).and_then(|mw| objects.verbs.mw_info(*mw).ok()).map(|info| info.rkey),
        1 => objects.fast.first().and_then(|fast| objects.verbs.fast_mr_info(*fast).ok()).map(|info| info.rkey),
        _ => None,
    };
    let rkey = rkey.unwrap_or(Rkey::new(b as u32));
    let (window, rights) = (objects.windows.get(a % 2).copied(), Access::REMOTE_WRITE | Access::REMOTE_READ);
    let fast = objects.fast.first().copied();
    let to = objects.to.map(|to| {
        let peer = &objects.pairs[b % objects.pairs.len()];
        let remote_qpn = objects.verbs.qp_info(peer.handle()).map_or(to.remote_qpn, |info| info.qpn);
        bareverbs::Destination { remote_qpn, ..to }
    });
    let srqn = objects.srqn(b >> 13);
    let owner = objects.owner(at, Side::Send);
    let pair = &mut objects.pairs[at];
    let connected = match kind % 16 {
        0 | 1 => SendOp::Send { payload },
        2 => SendOp::SendWithImm { payload, imm },
        3 => SendOp::Write { payload, remote },
        4 => SendOp::WriteWithImm { payload, remote, imm },
        5 => SendOp::Read { sges: &sges, remote },
        6 => SendOp::CompareSwap { sge: word, remote, compare: 0, swap: 7 },
        7 => SendOp::FetchAdd { sge: word, remote, add: 1 },
        _ => SendOp::Write { payload: Payload::Inline(&inline[..1]), remote },
    };
    let op = match (kind % 16, window, mr, fast, &to) {
        (8, ..) => SendOp::SendWithInv { payload, rkey },
        (9, ..) => SendOp::LocalInv { rkey },
        (10, Some(mw), Some(mr), ..) => {
            SendOp::BindMw { mw, tag: KeyTag(kind), binding: Binding { mr, addr, length, access: rights } }
        }
        (11, Some(mw), Some(mr), ..) => {
            let bound = pair.send().bind_type1(mw, &Type1Bind { wr_id, flags, mr, addr, length, access: rights });
            posted(objects, bound, owner);
            return;
        }
        (12, _, _, Some(fast), _) => {
            let reg = FastReg { wr_id, flags, tag: KeyTag(kind), sges: &sges, access: Access::LOCAL_WRITE | rights };
            let registered = pair.send().post_reg_mr(fast, &reg);
            posted(objects, registered, owner);
            return;
        }
        (13, _, _, _, Some(to)) => SendOp::SendTo { to, payload },
        (14, _, _, _, Some(to)) => SendOp::SendToWithImm { to, payload, imm },
        _ => match (srqn, &*pair) {
            (Some(srqn), Pair::Xrc(_)) => SendOp::ToSrq { srqn, op: ConnectedOp(&connected) },
            _ => connected,
        },
    };
    let done = pair.send().post(&SendWr { wr_id, flags, op });
    posted(objects, done, owner);
}

fn send_masked(objects: &mut Objects<'_>, at: usize, input: &mut Input<'_>) {
    let (kind, a, b) = (input.byte(), usize::from(input.word()), usize::from(input.word()));
    let (low, high) = (a as u32, b as u64);
    let op = match kind % 4 {
        0 => MaskedOp::CompareSwap4 { compare: 0, compare_mask: low, swap: 7, swap_mask: u32::MAX },
        1 => MaskedOp::CompareSwap8 { compare: 0, compare_mask: high, swap: 7, swap_mask: u64::MAX },
        2 => MaskedOp::FetchAdd4 { add: 1, boundary: low },
        _ => MaskedOp::FetchAdd8 { add: 1, boundary: high },
    };
    let flags = if kind & 0x40 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
    let (sge, remote) = (objects.sge(a >> 12, a), objects.remote(b >> 12, b));
    let sge = bareverbs::Sge { length: op.size(), ..sge };
    let wr = MaskedWr { wr_id: objects.ledger.next_id(), flags, op, remote, sge };
    let owner = objects.owner(at, Side::Send);
    let done = match (objects.srqn(b >> 13), &mut objects.pairs[at]) {
        (Some(srqn), Pair::Xrc(qp)) => qp.send.post_masked_to_srq(&wr, srqn),
        (_, pair) => pair.send().post_masked(&wr),
    };
    if objects.note(done).is_some() {
        objects.ledger.posted_masked(owner);
    }
}

fn posted<T, E>(objects: &mut Objects<'_>, result: Result<T, E>, owner: Owner) {
    if objects.note(result).is_some() {
        objects.ledger.posted(owner);
    }
}

fn receive(objects: &mut Objects<'_>, at: usize, place: usize) {
    let (wr_id, sges) = (objects.ledger.next_id(), [objects.sge(place >> 4, place * 16)]);
    let wr = RecvWr { wr_id, sges: &sges };
    let owner = objects.owner(at, Side::Recv);
    if let Pair::Own(qp) = &mut objects.pairs[at] {
        let done = qp.recv.post(&wr);
        posted(objects, done, owner);
    } else if let Some(srq) = at.checked_rem(objects.srqs.len()) {
        let done = objects.srqs[srq].post(&wr);
        posted(objects, done, Owner::Shared);
    }
}

/// Polls a queue once, and checks what is in it.
fn poll(objects: &mut Objects<'_>, at: usize, way: u8) -> Result<usize, PollCqError> {
    let cq = &mut objects.cqs[at];
    if way & 1 == 0 {
        let mut out = [Completion::EMPTY; 16];
        let out = &mut out[..1 + usize::from(way >> 1) % 16];
        let taken = cq.poll(out)?;
        out[..taken].iter().for_each(|done| objects.ledger.completed(done));
        return Ok(taken);
    }
    let (mut items, mut last) = (0, Ok(()));
    for item in cq.completions() {
        items += 1;
        match item {
            Ok(done) => objects.ledger.completed(&done),
            Err(error) => last = Err(error),
        }
        // Each entry of the ring gives one item, and a lost device one for each request.
        assert!(items < 4096, "an iterator without an end, at {last:?}");
        if matches!(last, Err(PollCqError::DeviceLost { .. } | PollCqError::Broken { .. })) {
            break;
        }
    }
    last.map(|()| items)
}

/// Polls each queue until it is empty.
fn poll_all(objects: &mut Objects<'_>) {
    for at in 0..objects.cqs.len() {
        let (mut errors, mut polls) = (0, 0);
        while errors < 200 {
            polls += 1;
            assert!(polls < 4096, "completions without an end");
            match poll(objects, at, 30) {
                Ok(0) => break,
                Ok(_) => {}
                Err(PollCqError::DeviceLost { .. } | PollCqError::Broken { .. }) => break,
                Err(_) => errors += 1,
            }
        }
    }
}

fn events(objects: &mut Objects<'_>) {
    for taken in 0.. {
        // All queues of events together have some hundred entries.
        assert!(taken < 2000, "events without an end");
        match objects.verbs.poll_event() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => {
                objects.refused += 1;
                break;
            }
        }
    }
}

fn query(objects: &mut Objects<'_>, at: usize, kind: u8) {
    let pair = objects.pairs.get(at).map(Pair::handle);
    let srq = at.checked_rem(objects.srqs.len()).map(|at| objects.srqs[at].handle());
    let failed = match (kind % 6, pair, srq) {
        (0, Some(pair), _) => objects.verbs.query_qp(pair).is_err(),
        (1, _, Some(srq)) => objects.verbs.query_srq(srq).is_err(),
        (2, _, Some(srq)) => objects.verbs.arm_srq(srq, (kind % 16).into()).is_err(),
        (3, ..) => objects.verbs.query_port(1).is_err(),
        (4, ..) => objects.verbs.query_gid(1, 0).is_err(),
        _ => objects.verbs.query_pkey(1, 0).is_err(),
    };
    objects.refused += u64::from(failed);
}

fn make(objects: &mut Objects<'_>, kind: u8, at: usize) {
    match kind % 12 {
        0 => objects.make_pd(),
        1 => objects.make_region(at),
        2 => objects.make_window(at, if at.is_multiple_of(2) { MwType::Type1 } else { MwType::Type2 }),
        3 => objects.make_fast(at),
        4 => objects.make_cq(4 + at as u32),
        5 => objects.make_pair(QpType::Rc, at),
        6 => objects.make_pair(QpType::Uc, at),
        7 => objects.make_pair(QpType::Ud, at),
        8 => objects.make_srq(),
        9 => objects.make_sharing_pair(at, at, if at.is_multiple_of(2) { QpType::Rc } else { QpType::Ud }),
        10 => objects.make_domain(),
        _ => {
            objects.make_xrc_srq(at);
            objects.make_xrc_pair(at);
        }
    }
}

/// Does one step.
pub(super) fn step(objects: &mut Objects<'_>, lab: &Lab, step: u8, input: &mut Input<'_>) {
    let at = usize::from(input.byte());
    let pair = at.checked_rem(objects.pairs.len());
    let cq = at.checked_rem(objects.cqs.len());
    let full = objects.ledger.len() >= REQUESTS;
    match (step % STEPS, pair, cq) {
        (0..2, ..) => lie(lab, input),
        (2..5, Some(pair), _) if !full => send(objects, pair, input),
        (5 | 6, Some(pair), _) if !full => receive(objects, pair, input.byte().into()),
        (7, _, Some(cq)) => {
            let polled = poll(objects, cq, input.byte());
            objects.note(polled);
        }
        (8, ..) => events(objects),
        (9 | 10, ..) => lab.host.world().advance(Duration::from_micros(1 << (at % 10))),
        (11, ..) => make(objects, input.byte(), at),
        (12, ..) => objects.destroy(input.byte(), at),
        (13, Some(pair), _) => match input.byte() % 4 {
            0 => objects.reset(pair),
            1 => objects.fail(pair),
            _ => objects.connect(pair, input.byte().into()),
        },
        (14, _, Some(cq)) => {
            let entries = 1 + u32::from(input.byte());
            let done = objects.verbs.resize_cq(&mut objects.cqs[cq], entries);
            objects.note(done);
        }
        (15, Some(pair), _) => {
            let side = if input.byte().is_multiple_of(2) { Side::Send } else { Side::Recv };
            objects.drain(pair, side, input.byte().into());
        }
        (16, Some(pair), _) => query(objects, pair, input.byte()),
        (17, ..) => {
            let done = objects.verbs.maintain();
            objects.note(done);
            if let Some(cq) = cq {
                let done = objects.cqs[cq].req_notify(at > 127);
                objects.note(done);
            }
        }
        (18, ..) => objects.change_region(at, input.byte()),
        (19, _, Some(cq)) => objects.moderate(cq, CqModeration { count: input.word(), period: input.word() }),
        (20, Some(pair), _) if !full => send_masked(objects, pair, input),
        (21, Some(pair), _) => {
            let kind = input.byte();
            objects.join(pair, kind >> 1, kind & 1 != 0);
        }
        (22, ..) => {
            let (index, mac) = (u16::from(input.byte() % 20), objects.mac.unwrap_or(Mac([2, 0, 0, 0, 0, 1])));
            let address = Ipv4Addr::new(192, 0, 2, at as u8);
            let entry = match at % 4 {
                0 => None,
                1 => Some(GidEntry::link_local(mac)),
                2 => Some(GidEntry::new(address, mac)),
                _ => Some(GidEntry { vlan: Some(100), ..GidEntry::new(address, mac) }),
            };
            objects.write_gid(index, entry.as_ref());
        }
        (23, ..) => objects.frame_step(lab, input.byte(), at * 4),
        _ => {}
    }
}

/// Lets everything come to rest, and destroys what there is: the device may refuse each of it.
pub(super) fn end(objects: &mut Objects<'_>, lab: &Lab, mode: u8) {
    lab.host.world().advance(Duration::from_millis(2));
    events(objects);
    poll_all(objects);
    if mode & mode::KEPT == 0 {
        for kind in 0..8 {
            for _ in 0..12 {
                objects.destroy(kind, 0);
            }
        }
    }
    poll_all(objects);
}
