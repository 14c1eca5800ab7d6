//! XRC: one connection reaches every shared receive queue of the peer's domain, each with a completion queue of its own.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, QpCap, QpInit, QpType, RecvWr, Refused, SendWr, SrqCap, SrqInit};
use bareverbs_testing::{Connection, Faults, join, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;

    // The receiver: a domain with a target, and two queues as two programs of this host would have them.
    let domain = b.verbs.alloc_xrcd()?;
    let target = b.verbs.create_xrc_recv_qp(&domain)?;
    let inbox = b.register(1024, Access::LOCAL_WRITE)?;
    let mut programs = Vec::new();
    for place in 0..2 {
        let mut cq = b.verbs.create_cq(16)?;
        let init = SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } };
        let mut srq = b.verbs.create_xrc_srq(&init, &domain, &mut cq)?;
        for wr_id in place * 8..place * 8 + 8 {
            srq.post(&RecvWr { wr_id, sges: &[inbox.sge(wr_id * 64, 64)] })?;
        }
        // The sender must know this number, as it must know that of the target.
        programs.push((b.verbs.srq_info(srq.handle())?.srqn, srq, cq));
    }

    // The sender. Devices want a domain for it too.
    let of_sender = a.verbs.alloc_xrcd()?;
    let mut send_cq = a.verbs.create_cq(64)?;
    let cap = QpCap { max_send_wr: 16, max_send_sge: 1, max_inline_data: 16, ..QpCap::default() };
    let (pd, cq) = (a.pd, send_cq.handle());
    let init = QpInit { pd, qp_type: QpType::XrcSend, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
    let mut initiator = a.verbs.create_xrc_send_qp(&init, &of_sender)?;
    join((&mut a.verbs, initiator.handle()), (&mut b.verbs, target.handle()), &Connection::default())?;

    for number in 0..6_u8 {
        let (srqn, _, cq) = programs.get_mut(usize::from(number % 2)).ok_or("two programs")?;
        initiator.send.post(&SendWr::send(&[number]).id(number.into()).to_srq(*srqn))?;
        a.waiter().wait(&mut send_cq)?.result()?;
        let done = b.waiter().wait(cq)?;
        let mut byte = [0];
        inbox.read(done.wr_id as usize * 64, &mut byte)?;
        assert_eq!((byte, done.qp), ([number], target.handle()));
    }
    println!("6 messages through one target, for two queues in turn");

    // The domain goes last.
    b.verbs.destroy_qp(target).map_err(Refused::into_error)?;
    for (_, srq, _) in programs {
        b.verbs.destroy_srq(srq).map_err(Refused::into_error)?;
    }
    b.verbs.dealloc_xrcd(domain).map_err(Refused::into_error)?;
    Ok(())
}
