//! A memory window opens part of a region to the peer for a while: once it is bound elsewhere, the old key opens nothing.

use std::error::Error;

use bareverbs::{
    Access, Completion, CqHandle, DmaBuffer, MwBind, MwType, Payload, Remote, SendFlags, SendOp, SendWr, WcStatus,
};
use bareverbs_examples::{Node, connect, devices, relax, reliable};

fn wait(node: &mut Node, cq: CqHandle) -> Result<WcStatus, Box<dyn Error>> {
    let mut done = [Completion::EMPTY];
    while node.verbs.poll_cq(cq, &mut done)? == 0 {
        relax(&node.host);
    }
    let [done] = done;
    Ok(done.status)
}

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let (pd_a, pd_b) = (a.verbs.alloc_pd()?, b.verbs.alloc_pd()?);
    let (cq_a, cq_b) = (a.verbs.create_cq(32)?, b.verbs.create_cq(32)?);
    let qp_a = a.verbs.create_qp(&reliable(pd_a, cq_a))?;
    let qp_b = b.verbs.create_qp(&reliable(pd_b, cq_b))?;
    connect(&mut a, qp_a, &mut b, qp_b)?;

    // The region itself gives the peer nothing.
    let page = b.verbs.reg_mr(pd_b, b.buffer(4096), Access::LOCAL_WRITE | Access::MW_BIND)?;
    let mw = b.verbs.alloc_mw(pd_b, MwType::Type1)?;
    let start = page.remote(0).addr;
    let (mr, access, flags) = (page.handle(), Access::REMOTE_WRITE, SendFlags::empty());
    let first = MwBind { wr_id: 1, flags, mr, addr: start, length: 64, access };
    // A bind is a request of its own: it gives the key at once, and a completion when it is done.
    let old = b.verbs.bind_mw(qp_b, mw, &first)?;
    assert_eq!(wait(&mut b, cq_b)?, WcStatus::Success);
    let mut write = |addr, rkey, text: &[u8]| {
        let op = SendOp::Write { payload: Payload::Inline(text), remote: Remote { addr, rkey } };
        a.verbs.post_send(qp_a, &SendWr { wr_id: 2, flags, op })?;
        wait(&mut a, cq_a)
    };
    assert_eq!(write(start, old, b"first")?, WcStatus::Success);

    // Bound to the next 64 bytes, the window has another key.
    let new = b.verbs.bind_mw(qp_b, mw, &MwBind { addr: start + 64, ..first })?;
    assert_eq!(wait(&mut b, cq_b)?, WcStatus::Success);
    assert_eq!(write(start + 64, new, b"second")?, WcStatus::Success);
    assert_eq!(write(start, old, b"third")?, WcStatus::RemAccessErr); // This ends the connection.

    let (mut head, mut next) = ([0; 5], [0; 6]);
    page.read(0, &mut head)?;
    page.read(64, &mut next)?;
    assert_eq!((&head, &next), (b"first", b"second"));
    println!("written through the window with keys {old} and {new}; then {old} was refused");
    Ok(())
}
