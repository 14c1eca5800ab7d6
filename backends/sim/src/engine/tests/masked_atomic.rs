//! Masked atomics that one of the two ends does not do. No driver here posts them then: these are raw WQEs.

use bareverbs_mlx5_spec::{CmdOpcode, CqeSyndrome, Qpc, opt_param};

use super::harness::*;

/// ATOMIC_MASKED_FA of 5 on the four bytes at `target`; the old value goes to `result`.
fn post_addition(host: &mut Host, qp: &mut TestQp, target: (u64, u32), result: (u64, u32)) {
    let at = qp.sq + (u64::from(qp.posted) & ((1 << qp.log_sq) - 1)) * 64;
    let body = [raddr(target.0, target.1), words(&[5, 0, 0, 0]), data(result.0, 4, result.1)].concat();
    let mut head = host.write_send(qp, 0x15, SIGNALED, 0, &body);
    // The modifier: extended, four bytes.
    head[0] = 8;
    host.write(at, &head);
    let qpn = qp.qpn;
    assert!(host.with(|engine, ctx| engine.ring_send(ctx, qpn, head)));
}

fn set_mode(host: &mut Host, qpn: u32, mode: u32) {
    host.modify(qpn, CmdOpcode::Rts2RtsQp, opt_param::RAE, |qpc| {
        qpc.set(Qpc::RAE, 1).set(Qpc::ATOMIC_MODE, mode);
    })
    .unwrap();
}

fn without(host: &mut Host) {
    let config = crate::engine::EngineConfig { extended_atomics: false, ..host.engine.config().clone() };
    host.engine.configure(config);
}

#[test]
fn a_masked_atomic_needs_both_ends_and_the_mode_of_the_queue_pair() {
    type Change = fn(&mut Pair<crate::wire::PerfectWire>);
    let cases: [(Change, Option<CqeSyndrome>); 6] = [
        (|pair| set_mode(&mut pair.b, pair.qb.qpn, 3), None),
        // The mode is of what comes in.
        (|pair| (set_mode(&mut pair.a, pair.qa.qpn, 1), set_mode(&mut pair.b, pair.qb.qpn, 5)).1, None),
        (|pair| (set_mode(&mut pair.b, pair.qb.qpn, 3), without(&mut pair.a)).1, Some(CqeSyndrome::LocalQpOp)),
        (|pair| (set_mode(&mut pair.b, pair.qb.qpn, 3), without(&mut pair.b)).1, Some(CqeSyndrome::RemoteInvalReq)),
        (|pair| set_mode(&mut pair.b, pair.qb.qpn, 1), Some(CqeSyndrome::RemoteInvalReq)),
        (|_| (), Some(CqeSyndrome::RemoteInvalReq)),
    ];
    for (number, (change, syndrome)) in cases.into_iter().enumerate() {
        let mut pair = Pair::new();
        change(&mut pair);
        let (result, target) = pair.buffers(4096);
        pair.b.write(target.0, &[7, 0, 0, 0, 9, 9, 9, 9]);
        post_addition(&mut pair.a, &mut pair.qa, target, result);
        pair.run();
        let done = pair.a.poll(&mut pair.qa.send).unwrap();
        let (opcode, found, value) = match syndrome {
            None => (0, 0, 12),
            Some(syndrome) => (13, syndrome.code() as u8, 7),
        };
        assert_eq!(done.opcode(), opcode, "{number}");
        assert!(syndrome.is_none() || done.syndrome() == found, "{number}: {:#x}", done.syndrome());
        assert_eq!(pair.b.read(target.0, 8), [value, 0, 0, 0, 9, 9, 9, 9], "{number}");
        // What the requester refuses does not reach the peer.
        let reached = syndrome == Some(CqeSyndrome::RemoteInvalReq);
        assert_eq!(pair.b.state(pair.qb.qpn) == 6, reached, "{number}");
    }
}
