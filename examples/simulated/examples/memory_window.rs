//! A memory window opens part of a region to the peer for a while: once it is bound elsewhere, the old key opens nothing.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, MwType, Remote, SendFlags, SendWr, Type1Bind, WcStatus};
use bareverbs_testing::{Faults, connect, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut end_a, mut end_b] = connect(&mut a, &mut b)?;

    // The region alone gives the peer no access.
    let page = b.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    let mw = b.verbs.alloc_mw(b.pd, MwType::Type1)?;
    let start = page.remote(0).addr;
    let (mr, access, flags) = (page.handle(), Access::REMOTE_WRITE, SendFlags::empty());
    let first = Type1Bind { wr_id: 1, flags, mr, addr: start, length: 64, access };
    // A bind is a request: it returns the key at once, and a completion when it is done.
    let old = end_b.qp.send.bind_type1(mw, &first)?;
    assert_eq!(end_b.wait()?.status, WcStatus::Success);
    let mut write = |addr, rkey, text: &[u8]| -> Result<WcStatus, Box<dyn Error>> {
        end_a.qp.send.post(&SendWr::write(Remote { addr, rkey }, text).id(2))?;
        Ok(end_a.wait()?.status)
    };
    assert_eq!(write(start, old, b"first")?, WcStatus::Success);

    // Bound to the next 64 bytes, the window has another key.
    let new = end_b.qp.send.bind_type1(mw, &Type1Bind { addr: start + 64, ..first })?;
    assert_eq!(end_b.wait()?.status, WcStatus::Success);
    assert_eq!(write(start + 64, new, b"second")?, WcStatus::Success);
    assert_eq!(write(start, old, b"third")?, WcStatus::RemAccessErr); // This ends the connection.

    let (mut head, mut next) = ([0; 5], [0; 6]);
    page.read(0, &mut head)?;
    page.read(64, &mut next)?;
    assert_eq!((&head, &next), (b"first", b"second"));
    println!("written through the window with keys {old} and {new}; then {old} was refused");
    Ok(())
}
