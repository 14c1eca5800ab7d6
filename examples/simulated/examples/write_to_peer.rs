//! RDMA WRITE: one host writes into the memory of another, whose processor has no part in it.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, SendWr, WcStatus};
use bareverbs_testing::{Faults, connect, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut end_a, _end_b] = connect(&mut a, &mut b)?;

    // A region owns its buffer as long as the device may use it.
    let text = b"hello, peer";
    let mut source = a.register(4096, Access::empty())?;
    source.write(0, text)?;
    let target = b.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // From the start of `source` to byte 100 of `target`. The peer must know the address and the key of `target`.
    end_a.qp.send.post(&SendWr::write(target.remote(100), &[source.sge(0, text.len() as u32)]).id(1))?;
    let done = end_a.wait()?;
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
