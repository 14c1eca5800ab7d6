//! RDMA WRITE: one host writes into the memory of another, whose processor has no part in it.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, Payload, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_examples::{completion, connect, devices};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let [end_a, end_b] = connect(&mut a, &mut b)?;

    // A region owns its buffer as long as the device may use it.
    let text = b"hello, peer";
    let mut source = a.verbs.reg_mr(end_a.pd, a.buffer(4096), Access::empty())?;
    source.write(0, text)?;
    let target = b.verbs.reg_mr(end_b.pd, b.buffer(4096), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // From the start of `source` to byte 100 of `target`. The peer must know the address and the key of `target`.
    let payload = Payload::Sges(&[source.sge(0, text.len() as u32)]);
    let op = SendOp::Write { payload, remote: target.remote(100) };
    a.verbs.post_send(end_a.qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op })?;
    let done = completion(&mut a, end_a.cq)?;
    assert_eq!((done.wr_id, done.status), (1, WcStatus::Success));

    let mut written = [0; 11];
    target.read(100, &mut written)?;
    assert_eq!(&written, text);
    println!("{} bytes written to the peer: {}", written.len(), str::from_utf8(&written)?);

    // The buffers come back.
    a.verbs.dereg_mr(source)?;
    b.verbs.dereg_mr(target)?;
    Ok(())
}
