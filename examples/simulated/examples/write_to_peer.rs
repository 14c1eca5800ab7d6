//! RDMA WRITE: one host writes into the memory of another, whose processor has no part in it.

use std::error::Error;

use bareverbs::{Access, Completion, DmaBuffer, Payload, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_examples::{connect, devices, relax, reliable};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let (pd_a, pd_b) = (a.verbs.alloc_pd()?, b.verbs.alloc_pd()?);
    let (cq_a, cq_b) = (a.verbs.create_cq(32)?, b.verbs.create_cq(32)?);
    let qp_a = a.verbs.create_qp(&reliable(pd_a, cq_a))?;
    let qp_b = b.verbs.create_qp(&reliable(pd_b, cq_b))?;
    connect(&mut a, qp_a, &mut b, qp_b)?;

    // A region owns its buffer as long as the device may use it.
    let text = b"hello, peer";
    let mut source = a.verbs.reg_mr(pd_a, a.buffer(4096), Access::empty())?;
    source.write(0, text)?;
    let target = b.verbs.reg_mr(pd_b, b.buffer(4096), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // From the start of `source` to byte 100 of `target`. Address and key of `target` are what the peer must know.
    let payload = Payload::Sges(&[source.sge(0, text.len() as u32)]);
    let op = SendOp::Write { payload, remote: target.remote(100) };
    a.verbs.post_send(qp_a, &SendWr { wr_id: 1, flags: SendFlags::empty(), op })?;

    let mut done = [Completion::EMPTY];
    while a.verbs.poll_cq(cq_a, &mut done)? == 0 {
        relax(&a.host);
    }
    let [done] = done;
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
