//! Datagrams: a queue pair without a peer sends to any port, and an answer goes back by what the completion says.

use std::error::Error;

use bareverbs::{Access, AddressVector, Completion, Destination, DmaBuffer, GlobalRoute, Qkey, QpType, RecvWr, SendWr, Source};
use bareverbs_testing::{Connection, End, Faults, connect_with, pair, path_to};

/// Both ends know it: a queue pair drops a datagram with another one.
const QKEY: Qkey = Qkey::new(0x1357);
/// In front of each message the device leaves room for a global route.
const AREA: usize = GlobalRoute::AREA;

/// Waits for the next completion, with its source if it is of a receive.
fn next(end: &mut End) -> Result<(Completion, Option<Source>), Box<dyn Error>> {
    loop {
        if let Some(next) = end.cq.completions().with_source().next() {
            return Ok(next?);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    // Nothing is connected: both queue pairs are in RTS and have a Q_Key.
    let datagrams = Connection { qp_type: QpType::Ud, qkey: QKEY, ..Connection::default() };
    let [mut end_a, mut end_b] = connect_with(&mut a, &mut b, &datagrams)?;
    let inboxes = [a.register(256, Access::LOCAL_WRITE)?, b.register(256, Access::LOCAL_WRITE)?];
    for (end, inbox) in [(&mut end_a, &inboxes[0]), (&mut end_b, &inboxes[1])] {
        end.qp.recv.post(&RecvWr { wr_id: 0, sges: &[inbox.sge(0, AREA as u32 + 64)] })?;
    }

    // A destination is a port (the address handle), a queue pair there, and its Q_Key. Between machines, LID and number are
    // exchanged by something else first.
    let ah = a.verbs.create_ah(a.pd, &path_to(&mut b.verbs)?)?;
    let remote_qpn = b.verbs.qp_info(end_b.qp.handle())?.qpn;
    end_a.qp.send.post(&SendWr::send_to(&Destination { ah, remote_qpn, remote_qkey: QKEY }, b"who is there?"))?;
    next(&mut end_a)?.0.result()?;

    let (received, source) = next(&mut end_b)?;
    let mut question = vec![0; received.byte_len as usize - AREA];
    inboxes[1].read(AREA, &mut question)?;

    // The answer goes to where the question came from.
    let source = source.ok_or("a receive has a source")?;
    let back: AddressVector = source.reply(1);
    let to = Destination { ah: b.verbs.create_ah(b.pd, &back)?, remote_qpn: source.src_qp, remote_qkey: QKEY };
    end_b.qp.send.post(&SendWr::send_to(&to, b"host b"))?;
    let mut answer = vec![0; next(&mut end_a)?.0.byte_len as usize - AREA];
    inboxes[0].read(AREA, &mut answer)?;
    println!("{} {}", String::from_utf8(question)?, String::from_utf8(answer)?);
    Ok(())
}
