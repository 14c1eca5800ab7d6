//! The ring on simulated devices: on any wire, with any seed, and when a side dies.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by it")]

use bareverbs::error::{PollCqError, PostRecvError};
use bareverbs::{Access, WcStatus};
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_testing::{Driver, Faults, Node, WireFaults, connect, pair};
use message_ring::{Error, Receiver, SLOT, SLOTS, Sender};

type Ends = (Sender<'static, Driver, SimBuffer>, Receiver<'static, Driver, SimBuffer>);

fn ring(a: &mut Node, b: &mut Node) -> Result<Ends, Box<dyn std::error::Error>> {
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (count, slots) = (a.register(8, open)?, b.register(SLOT * SLOTS as usize, open)?);
    let [qa, qb] = connect(a, b)?;
    let (to_slots, to_count) = (slots.remote(0), count.remote(0));
    Ok((Sender::new(qa.qp, qa.cq, count, to_slots)?, Receiver::new(qb.qp, qb.cq, slots, to_count)?))
}

/// The `number`th message: of another length and content each.
fn message(number: u64) -> Vec<u8> {
    (0..number % (SLOT as u64 + 1)).map(|at| (number * 7 + at) as u8).collect()
}

/// Sends `count` messages and receives them. `Err`: what each side ended with, and how many messages had arrived.
fn run(a: &mut Node, b: &mut Node, count: u64) -> Result<(), (Option<Error>, Option<Error>, u64)> {
    let (mut sender, mut receiver) = ring(a, b).expect("a ring");
    let (mut sent, mut received) = (0, 0);
    let (mut send_error, mut receive_error) = (None, None);
    // Simulated time: many times what the retries take.
    let end = a.network().world().now().after(std::time::Duration::from_secs(10));
    while received < count && a.network().world().now() < end && (send_error.is_none() || receive_error.is_none()) {
        match sender.send(&message(sent)) {
            Ok(()) => sent += 1,
            Err(Error::Full) => a.network().world().advance(std::time::Duration::from_micros(10)),
            // The cause; what follows is flushed.
            Err(error) => send_error = send_error.or(Some(error)),
        }
        let mut bytes = [0; SLOT];
        match receiver.receive(&mut bytes) {
            Ok(Some(length)) => {
                assert_eq!(bytes[..length], message(received), "message {received}");
                received += 1;
            }
            Ok(None) if send_error.is_some() => a.network().world().advance(std::time::Duration::from_millis(1)),
            Ok(None) => {}
            Err(error) => receive_error = receive_error.or(Some(error)),
        }
        // What finds a device that is gone.
        let _ = (a.verbs.maintain(), b.verbs.maintain());
    }
    if received == count { Ok(()) } else { Err((send_error, receive_error, received)) }
}

#[test]
fn every_message_arrives_once_and_in_order_on_any_wire() {
    for seed in 0..10 {
        let [mut a, mut b] = pair(Faults::wire(WireFaults::all(30)).seed(seed)).expect("two hosts");
        let done = run(&mut a, &mut b, 300);
        assert!(done.is_ok(), "seed {seed}: {done:?}");
        assert!(a.network().world().wire_stats().lost > 5 && a.findings().is_empty() && b.findings().is_empty());
    }
}

#[test]
fn a_peer_that_is_cut_off_ends_the_ring() {
    let [mut a, mut b] = pair(Faults::none()).expect("two hosts");
    run(&mut a, &mut b, 20).expect("a whole wire");
    a.network().cut(&a, &b);
    let (sender, _, received) = run(&mut a, &mut b, 20).expect_err("nothing arrives");
    let Some(Error::Connection(error)) = sender else { panic!("{sender:?}") };
    assert_eq!((error.status, received), (WcStatus::RetryExcErr, 0));
}

/// Each doorbell of the receiver is a write to its device.
#[test]
fn a_receiver_that_dies_at_any_write_leaves_a_sender_that_knows() {
    let mut survivors = 0;
    for writes in (20..80).step_by(3) {
        let [mut a, mut b] = pair(Faults::none()).expect("two hosts");
        b.remove_after(writes);
        let (mut sender, mut receiver) = match ring(&mut a, &mut b) {
            Ok(ends) => ends,
            // It died before the ring was there.
            Err(_) => continue,
        };
        let mut bytes = [0; SLOT];
        let mut last = None;
        for number in 0..200 {
            match sender.send(&message(number)) {
                Ok(()) => {}
                Err(Error::Full) => a.network().world().advance(std::time::Duration::from_millis(1)),
                Err(error) => {
                    last = Some(error);
                    break;
                }
            }
            // It does not know that its device is gone.
            let _ = receiver.receive(&mut bytes);
        }
        assert!(matches!(last, Some(Error::Connection(_))), "{writes}: {last:?}");
        // It looks at the health of its device every two seconds.
        a.network().world().advance(std::time::Duration::from_secs(3));
        assert!(b.verbs.maintain().is_err(), "{writes}");
        let end = (0..200).find_map(|_| receiver.receive(&mut bytes).err());
        let is_known = matches!(
            end,
            Some(
                Error::Connection(_)
                    | Error::Poll(PollCqError::DeviceLost { .. })
                    | Error::Receive(PostRecvError::DeviceLost { .. })
            )
        );
        assert!(is_known, "{writes}: {end:?}");
        survivors += 1;
    }
    assert!(survivors > 5, "{survivors}");
}
