//! A memory window opens part of a region to the peer for a while: once it is bound elsewhere, the old key opens nothing.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, MwBind, MwType, Payload, Remote, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_examples::{completion, connect, devices};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let [end_a, end_b] = connect(&mut a, &mut b)?;

    // The region alone gives the peer no access.
    let page = b.verbs.reg_mr(end_b.pd, b.buffer(4096), Access::LOCAL_WRITE | Access::MW_BIND)?;
    let mw = b.verbs.alloc_mw(end_b.pd, MwType::Type1)?;
    let start = page.remote(0).addr;
    let (mr, access, flags) = (page.handle(), Access::REMOTE_WRITE, SendFlags::empty());
    let first = MwBind { wr_id: 1, flags, mr, addr: start, length: 64, access };
    // A bind is a request: it returns the key at once, and a completion when it is done.
    let old = b.verbs.bind_mw(end_b.qp, mw, &first)?;
    assert_eq!(completion(&mut b, end_b.cq)?.status, WcStatus::Success);
    let mut write = |addr, rkey, text: &[u8]| -> Result<WcStatus, Box<dyn Error>> {
        let op = SendOp::Write { payload: Payload::Inline(text), remote: Remote { addr, rkey } };
        a.verbs.post_send(end_a.qp, &SendWr { wr_id: 2, flags, op })?;
        Ok(completion(&mut a, end_a.cq)?.status)
    };
    assert_eq!(write(start, old, b"first")?, WcStatus::Success);

    // Bound to the next 64 bytes, the window has another key.
    let new = b.verbs.bind_mw(end_b.qp, mw, &MwBind { addr: start + 64, ..first })?;
    assert_eq!(completion(&mut b, end_b.cq)?.status, WcStatus::Success);
    assert_eq!(write(start + 64, new, b"second")?, WcStatus::Success);
    assert_eq!(write(start, old, b"third")?, WcStatus::RemAccessErr); // This ends the connection.

    let (mut head, mut next) = ([0; 5], [0; 6]);
    page.read(0, &mut head)?;
    page.read(64, &mut next)?;
    assert_eq!((&head, &next), (b"first", b"second"));
    println!("written through the window with keys {old} and {new}; then {old} was refused");
    Ok(())
}
