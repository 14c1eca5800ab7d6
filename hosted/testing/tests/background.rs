//! Time that passes by itself.

use std::thread;
use std::time::{Duration, Instant};

use bareverbs::platform::Clock;
use bareverbs::{Access, Completion, SendWr, WcStatus};
use bareverbs_testing::{Faults, Probability, WaitError, connect, pair};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

#[test]
fn time_passes_as_long_as_the_guard_lives() {
    let [a, _b] = pair(Faults::none()).unwrap();
    let world = a.network().world();
    let running = a.network().run_in_background().unwrap();
    assert!(a.network().run_in_background().is_err(), "one at a time");
    let (start, real) = (world.now(), Instant::now());
    while world.now().since(start) < Duration::from_millis(20) {
        thread::sleep(Duration::from_millis(1));
        assert!(real.elapsed() < Duration::from_secs(60), "{:?}", world.now().since(start));
    }
    assert!(world.now().since(start) <= real.elapsed() + Duration::from_millis(2), "not faster than the machine's");
    drop(running);
    let end = world.now();
    thread::sleep(Duration::from_millis(5));
    assert_eq!(world.now(), end);
    drop(a.network().run_in_background().unwrap());
}

#[test]
fn a_loop_that_sleeps_gets_its_completions_though_frames_are_lost() {
    let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(100))).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let target = b.register(64, OPEN).unwrap();
    let _running = a.network().run_in_background().unwrap();
    for _ in 0..20 {
        qa.qp.send.post(&SendWr::write(target.remote(0), b"x")).unwrap();
        let mut done = [Completion::EMPTY];
        while qa.cq.poll(&mut done).unwrap() == 0 {
            thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(done.map(|done| done.status), [WcStatus::Success]);
    }
}

/// Nobody does his part: a program without an end, if waits had none.
#[test]
fn a_wait_ends_though_nobody_posts() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let waiter = a.waiter().timeout(Duration::from_millis(50));
    let _running = a.network().run_in_background().unwrap();
    let start = a.host.clock().now();
    let ended = waiter.wait(&mut qa.cq);
    assert!(matches!(ended, Err(WaitError::Overdue(_))), "{ended:?}");
    assert!(a.host.clock().now().since(start) < Duration::from_secs(5), "the wait does not move time");
}
