//! SEND and RECEIVE: the receiver says where messages go, and both sides get a completion.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, Payload, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use bareverbs_examples::{completion, connect, devices};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let [end_a, end_b] = connect(&mut a, &mut b)?;
    let mut outbox = a.verbs.reg_mr(end_a.pd, a.buffer(4096), Access::empty())?;
    let inbox = b.verbs.reg_mr(end_b.pd, b.buffer(4096), Access::LOCAL_WRITE)?;

    // Room for two messages of up to 64 bytes. Receives are used in the order in which they are posted.
    b.verbs.post_recv(end_b.qp, &RecvWr { wr_id: 0, sges: &[inbox.sge(0, 64)] })?;
    b.verbs.post_recv(end_b.qp, &RecvWr { wr_id: 1, sges: &[inbox.sge(64, 64)] })?;

    let messages = ["from a region", "inline"];
    // The first lies in a region; the second is copied into the request, which is faster for a few bytes.
    outbox.write(0, messages[0].as_bytes())?;
    let op = SendOp::Send { payload: Payload::Sges(&[outbox.sge(0, messages[0].len() as u32)]) };
    a.verbs.post_send(end_a.qp, &SendWr { wr_id: 10, flags: SendFlags::empty(), op })?;
    let op = SendOp::Send { payload: Payload::Inline(messages[1].as_bytes()) };
    a.verbs.post_send(end_a.qp, &SendWr { wr_id: 11, flags: SendFlags::empty(), op })?;

    for (number, message) in (0..).zip(messages) {
        let received = completion(&mut b, end_b.cq)?;
        assert_eq!((received.wr_id, received.opcode, received.status), (number, WcOpcode::Recv, WcStatus::Success));
        let mut bytes = vec![0; received.byte_len as usize];
        inbox.read(64 * number as usize, &mut bytes)?;
        assert_eq!(bytes, message.as_bytes());
        let sent = completion(&mut a, end_a.cq)?;
        assert_eq!((sent.wr_id, sent.opcode, sent.status), (10 + number, WcOpcode::Send, WcStatus::Success));
    }
    println!("2 messages received: {messages:?}");
    Ok(())
}
