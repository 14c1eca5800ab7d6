//! Fast registration: a server lends scattered buffers to its client for one operation, as one range, and the client's answer
//! ends that.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, FastReg, KeyTag, RecvWr, Remote, Rkey, SendFlags, SendWr, WcData, WcStatus};
use bareverbs_testing::{Faults, connect, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut client, mut server] = pair(Faults::none())?;
    let [mut to_server, mut to_client] = connect(&mut client, &mut server)?;

    // Registered once, with the right to bind: nobody else reaches it yet.
    let pool = server.register(1 << 16, Access::LOCAL_WRITE | Access::MW_BIND)?;
    let mr = server.verbs.alloc_fast_mr(server.pd, 16)?;
    let inbox = server.register(64, Access::LOCAL_WRITE)?;
    to_client.qp.recv.post(&RecvWr { wr_id: 1, sges: &[inbox.sge(0, 64)] })?;
    let offer = client.register(16, Access::LOCAL_WRITE)?;
    to_server.qp.recv.post(&RecvWr { wr_id: 2, sges: &[offer.sge(0, 16)] })?;

    // Three buffers of the pool, one range for the peer. The send that says so waits for the registration.
    let pieces = [pool.sge(3000, 10), pool.sge(50_001, 5), pool.sge(16, 5)];
    let (tag, flags, access) = (KeyTag(1), SendFlags::empty(), Access::REMOTE_WRITE);
    let mut batch = to_client.qp.send.batch();
    let range = batch.post_reg_mr(mr, &FastReg { wr_id: 3, flags, tag, sges: &pieces, access })?;
    let Remote { addr, rkey } = range.remote(0);
    batch.post(&SendWr::send(&[addr.to_be_bytes(), u64::from(rkey.get()).to_be_bytes()].concat()[..]))?;
    drop(batch);
    to_server.wait()?.result()?;

    // The client writes, and its answer invalidates the key.
    let (mut told_addr, mut told_key) = ([0; 8], [0; 8]);
    offer.read(0, &mut told_addr)?;
    offer.read(8, &mut told_key)?;
    let remote = Remote { addr: u64::from_be_bytes(told_addr), rkey: Rkey::new(u64::from_be_bytes(told_key) as u32) };
    to_server.qp.send.post(&SendWr::write(remote, b"scattered over three"))?;
    to_server.qp.send.post(&SendWr::send_with_inv(b"done", remote.rkey))?;
    for _ in 0..2 {
        to_server.wait()?.result()?;
    }
    // Before it came the completions of the two requests.
    let done = [to_client.wait()?, to_client.wait()?, to_client.wait()?];
    assert_eq!((done[2].wr_id, done[2].data), (1, WcData::Invalidated(rkey)));
    let (mut first, mut second, mut third) = ([0; 10], [0; 5], [0; 5]);
    pool.read(3000, &mut first)?;
    pool.read(50_001, &mut second)?;
    pool.read(16, &mut third)?;
    println!("{:?} lies in three buffers", str::from_utf8(&[&first[..], &second, &third].concat())?);

    // It opens nothing any more, and may be registered again.
    to_server.qp.send.post(&SendWr::write(remote, b"too late"))?;
    assert_eq!(to_server.wait()?.status, WcStatus::RemAccessErr);
    server.verbs.dealloc_fast_mr(mr)?;
    server.verbs.dereg_mr(pool).map_err(|refused| refused.error)?;
    Ok(())
}
