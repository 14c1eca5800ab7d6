//! SEND and RECEIVE: the receiver says where messages go, and both sides get a completion.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, RecvWr, SendWr, WcOpcode, WcStatus};
use bareverbs_testing::{Faults, connect, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut end_a, mut end_b] = connect(&mut a, &mut b)?;
    let mut outbox = a.register(4096, Access::empty())?;
    let inbox = b.register(4096, Access::LOCAL_WRITE)?;

    // Room for two messages of up to 64 bytes. Receives are used in the order in which they are posted.
    end_b.qp.recv.post(&RecvWr { wr_id: 0, sges: &[inbox.sge(0, 64)] })?;
    end_b.qp.recv.post(&RecvWr { wr_id: 1, sges: &[inbox.sge(64, 64)] })?;

    let messages = ["from a region", "inline"];
    // The first lies in a region; the second is copied into the request, which is faster for a few bytes.
    outbox.write(0, messages[0].as_bytes())?;
    end_a.qp.send.post(&SendWr::send(&[outbox.sge(0, messages[0].len() as u32)]).id(10))?;
    end_a.qp.send.post(&SendWr::send(messages[1].as_bytes()).id(11))?;

    for (number, message) in (0..).zip(messages) {
        let received = end_b.wait()?;
        assert_eq!((received.wr_id, received.opcode, received.status), (number, WcOpcode::Recv, WcStatus::Success));
        let mut bytes = vec![0; received.byte_len as usize];
        inbox.read(64 * number as usize, &mut bytes)?;
        assert_eq!(bytes, message.as_bytes());
        let sent = end_a.wait()?;
        assert_eq!((sent.wr_id, sent.opcode, sent.status), (10 + number, WcOpcode::Send, WcStatus::Success));
    }
    println!("2 messages received: {messages:?}");
    Ok(())
}
