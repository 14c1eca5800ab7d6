//! Moderation of completion events: when they come, and how many.

use core::time::Duration;

use bareverbs::error::{Errno, ModifyCqError};
use bareverbs::platform::Instant;
use bareverbs::{Access, Completion, CqHandle, CqModeration, Event, Remote, SendWr};
use bareverbs_mlx5::Error;
use bareverbs_testing::{End, Fault, Faults, Node, connect, pair};

/// A connected queue pair whose writes of one byte complete, and its host.
struct Fixture {
    host: Node,
    _peer: Node,
    end: End,
    target: Remote,
    other: CqHandle,
}

fn fixture() -> Fixture {
    let [mut host, mut peer] = pair(Faults::none()).unwrap();
    let [end, other] = connect(&mut host, &mut peer).unwrap();
    let target = peer.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap().remote(0);
    while host.verbs.poll_event().unwrap().is_some() {}
    Fixture { host, end, target, other: other.cq.handle(), _peer: peer }
}

impl Fixture {
    fn moderate(&mut self, count: u16, period: u16) {
        self.host.verbs.modify_cq(self.end.cq.handle(), CqModeration { count, period }).unwrap();
    }

    fn arm(&mut self) {
        self.end.cq.req_notify(false).unwrap();
    }

    fn post(&mut self) {
        self.end.qp.send.post(&SendWr::write(self.target, b"x").signaled()).unwrap();
    }

    fn wait(&self, micros: u64) {
        self.host.network().world().advance(Duration::from_micros(micros));
    }

    /// Returns how many completions came.
    fn take(&mut self) -> usize {
        let mut out = [Completion::EMPTY; 64];
        self.end.cq.poll(&mut out).unwrap()
    }

    /// Returns how many events of the queue came.
    fn events(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.host.verbs.poll_event().unwrap() {
            assert_eq!(event, Event::Completion(self.end.cq.handle()));
            count += 1;
        }
        count
    }

    /// Posts and lets a completion come, so often. Arms the queue again after each event; returns at which completions events came.
    fn run(&mut self, completions: usize) -> Vec<usize> {
        let mut came = Vec::new();
        self.arm();
        for n in 1..=completions {
            self.post();
            self.wait(50);
            match self.events() {
                0 => {}
                1 => {
                    came.push(n);
                    self.take();
                    self.arm();
                }
                more => panic!("{more} events"),
            }
        }
        self.take();
        came
    }

    /// Lets a completion come, takes it, and waits for its event. Returns when each came.
    fn completion_and_event(&mut self) -> [Instant; 2] {
        self.post();
        while self.take() == 0 {
            self.wait(1);
        }
        let completion = self.now();
        while self.events() == 0 {
            self.wait(1);
            assert!(self.now() < completion.after(Duration::from_millis(20)), "no event");
        }
        [completion, self.now()]
    }

    fn now(&self) -> Instant {
        self.host.network().world().now()
    }
}

/// Calls of the program take a few microseconds too.
fn is_after(at: Instant, from: Instant, micros: u64) -> bool {
    let after = |micros| from.after(Duration::from_micros(micros));
    after(micros - 5) <= at && at <= after(micros + 5)
}

// contract: cq-moderation
#[test]
fn an_event_comes_with_the_count_of_completions() {
    let mut fixture = fixture();
    assert_eq!(fixture.run(5), [1, 2, 3, 4, 5], "not moderated");
    fixture.moderate(4, 4095);
    assert_eq!(fixture.run(42), [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]);
    fixture.moderate(0, 0);
    // Two were left of the last event's round; an event that waits comes when moderation ends, and no other one for them.
    assert_eq!(fixture.events(), 1);
    assert_eq!(fixture.run(5), [1, 2, 3, 4, 5], "off again");
    // Either alone moderates nothing.
    for (count, period) in [(4, 0), (0, 1000)] {
        fixture.moderate(count, period);
        assert_eq!(fixture.run(5), [1, 2, 3, 4, 5], "{count} {period}");
    }
    assert_eq!(fixture.host.findings(), []);
}

// contract: cq-moderation
#[test]
fn an_event_comes_when_the_period_is_over() {
    let mut fixture = fixture();
    fixture.moderate(1000, 700);
    fixture.arm();
    let [completion, first] = fixture.completion_and_event();
    assert!(is_after(first, completion, 700), "the first event of the queue: {completion:?} {first:?}");
    // The next one is 700 µs after that, whenever its completion comes.
    fixture.arm();
    fixture.wait(300);
    let [_, second] = fixture.completion_and_event();
    assert!(is_after(second, first, 700), "{first:?} {second:?}");
    // It is over already: no wait at all.
    fixture.wait(5000);
    fixture.arm();
    let [completion, third] = fixture.completion_and_event();
    assert_eq!(third, completion);
    // One event for all that came meanwhile.
    fixture.arm();
    (0..20).for_each(|_| fixture.post());
    fixture.wait(650);
    assert_eq!((fixture.events(), fixture.take()), (0, 20));
    fixture.wait(100);
    assert_eq!(fixture.events(), 1);
    fixture.wait(5000);
    assert_eq!(fixture.events(), 0);
    assert_eq!(fixture.host.findings(), []);
}

// contract: cq-moderation
#[test]
fn a_queue_that_is_armed_over_completions_and_one_of_another_size() {
    let mut fixture = fixture();
    fixture.moderate(3, 4000);
    fixture.post();
    fixture.wait(50);
    fixture.arm();
    assert_eq!((fixture.events(), fixture.take()), (1, 1), "what waits when the queue is armed is not held back");
    fixture.host.verbs.resize_cq(&mut fixture.end.cq, 512).unwrap();
    assert_eq!(fixture.run(7), [3, 6], "a resize keeps the moderation");
}

// contract: cq-moderation-refused
#[test]
fn what_the_device_does_not_have_is_refused() {
    let mut fixture = fixture();
    let max = fixture.host.verbs.query_device().max_cq_moderation;
    assert_eq!(max, CqModeration { count: 65535, period: 4095 });
    fixture.moderate(2, 4095);
    let cq = fixture.end.cq.handle();
    for period in [4096, 65535] {
        let asked = CqModeration { count: 1, period };
        let error = fixture.host.verbs.modify_cq(cq, asked).unwrap_err();
        assert_eq!((error, error.errno()), (ModifyCqError::Moderation { asked, max }, Errno::Einval));
    }
    let gone = fixture.host.verbs.create_cq(4).unwrap();
    let stale = gone.handle();
    fixture.host.verbs.destroy_cq(gone).map_err(|refused| refused.error).unwrap();
    for handle in [stale, fixture.other] {
        let error = fixture.host.verbs.modify_cq(handle, max).unwrap_err();
        assert_eq!((error, error.errno()), (ModifyCqError::Stale, Errno::Einval));
    }
    assert_eq!(fixture.run(5), [2, 4], "as before");
    fixture.moderate(max.count, max.period);
    assert_eq!(fixture.events(), 1, "that of the fifth");
    assert_eq!(fixture.run(40), []);
    // The device refuses, and it is as before.
    fixture.host.arm(Fault::CommandStatus { opcode: 0x403, status: 3, syndrome: 0 });
    let error = fixture.host.verbs.modify_cq(cq, CqModeration::default()).unwrap_err();
    assert!(matches!(error, ModifyCqError::Device(Error::CommandStatus { .. })), "{error}");
    assert_eq!(fixture.run(5), []);
    fixture.host.remove();
    assert_eq!(fixture.host.verbs.modify_cq(cq, max).unwrap_err().errno(), Errno::Enodev);
}
