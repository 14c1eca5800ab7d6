//! One device whose send queue, receive queue, completion queue, control path and interrupt handler each have a thread.
//! Meanwhile queue pairs break and are created again.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant as WallClock};

use bareverbs::error::{CreateQpError, DestroyCqError, DestroyQpError, ModifyQpError, PostRecvError, PostSendError};
use bareverbs::platform::{Clock, Instant};
use bareverbs::{
    Completion, CompletionQueue, Event, InterruptHandler, Payload, QpAttrMask, QpHandle, QpInit, QpState, QpType, RecvQueue,
    RecvWr, Remote, SendOp, SendQueue, WcStatus,
};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{Host, World, WorldConfig};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, Driver, End, Node, Rdma, Region, pattern, rc_steps, refused, signaled, to_state,
    without_rnr_limit,
};

/// The control path, for several threads.
struct SharedVerbs(Mutex<Rdma>);

impl SharedVerbs {
    fn lock(&self) -> MutexGuard<'_, Rdma> {
        self.0.lock().unwrap()
    }
}

/// Generations: queue pairs that the stream of messages uses, one after the other.
const GENERATIONS: u64 = 8;
/// Messages of each.
const MESSAGES: u64 = 500;
/// Sends in flight, and receives posted.
const DEPTH: u64 = 16;
const LEN: usize = 120;
/// Sends that are tried behind the one that breaks the queue pair.
const BEHIND: u64 = 5;
/// Longest wait for another thread; a loaded machine may delay one for seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The thread that waits for a completion: the upper four bits of its identifier. Below are the generation (28 bits) and the
/// number.
#[derive(Clone, Copy)]
enum Of {
    Send,
    Recv,
    Control,
}

fn id(of: Of, generation: u64, number: u64) -> u64 {
    (of as u64) << 60 | generation << 32 | number
}

fn message(generation: u64, number: u64) -> Vec<u8> {
    pattern(generation << 32 | number, LEN)
}

fn slot(number: u64) -> usize {
    (number % DEPTH) as usize * LEN
}

fn take<T>(from: &Receiver<T>, what: &str) -> T {
    from.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Stops the threads that run until `stop` is set, also when the thread that would set it fails.
struct Ending<'a> {
    stop: &'a AtomicBool,
    parked: Thread,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.parked.unpark();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Sends each completion to the thread that waits for it, and sleeps while there is none.
fn poll(
    mut queue: CompletionQueue<'static, Driver>,
    routes: &[Sender<Completion>; 3],
    stop: &AtomicBool,
) -> CompletionQueue<'static, Driver> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut some = [Completion::EMPTY; 8];
    loop {
        let count = queue.poll(&mut some).unwrap();
        for completion in &some[..count] {
            // A receiver that waits for nothing more is dropped.
            let _ = routes[(completion.wr_id >> 60) as usize].send(*completion);
        }
        while count == 0 && queue.poll_ready(&mut context).is_pending() {
            if stop.load(Ordering::Acquire) {
                return queue;
            }
            let asleep = WallClock::now();
            thread::park_timeout(TIMEOUT);
            assert!(asleep.elapsed() < TIMEOUT, "the thread was not woken");
        }
    }
}

/// Sends the messages of each generation, breaks its queue pair, and gives the queue back when every send has completed.
fn send(
    queues: &Receiver<SendQueue<'static, Driver>>,
    back: &Sender<SendQueue<'static, Driver>>,
    done: &Receiver<Completion>,
    mut from: Region,
    good: Remote,
) {
    for (generation, mut queue) in (0..).zip(queues) {
        let (mut posted, mut completed) = (0, 0);
        while completed < MESSAGES {
            let mut batch = queue.batch();
            while posted < MESSAGES && posted < completed + DEPTH {
                from.buffer.write(slot(posted), &message(generation, posted));
                let sges = [from.sge(slot(posted), LEN)];
                let op = SendOp::Send { payload: Payload::Sges(&sges) };
                batch.post(&signaled(id(Of::Send, generation, posted), op)).unwrap();
                posted += 1;
            }
            drop(batch);
            let completion = take(done, "a send completes");
            assert_eq!((completion.wr_id, completion.status), (id(Of::Send, generation, completed), WcStatus::Success));
            completed += 1;
        }
        let wrong = SendOp::Write { payload: Payload::Inline(b"x"), remote: Remote { addr: 0, ..good } };
        queue.post(&signaled(id(Of::Send, generation, posted), wrong)).unwrap();
        posted += 1;
        for _ in 0..BEHIND {
            match queue.post(&signaled(id(Of::Send, generation, posted), SendOp::Send { payload: Payload::Inline(b"late") })) {
                Ok(()) => posted += 1,
                Err(error) => assert_eq!(error, PostSendError::NotReady { state: QpState::Err }),
            }
        }
        for number in completed..posted {
            let completion = take(done, "a send that fails completes");
            let status = if number == MESSAGES { WcStatus::RemAccessErr } else { WcStatus::WrFlushErr };
            assert_eq!((completion.wr_id, completion.status), (id(Of::Send, generation, number), status));
        }
        back.send(queue).unwrap();
    }
}

/// Receives the messages of each generation, and gives the queue back when every receive has completed.
fn receive(
    queues: &Receiver<RecvQueue<'static, Driver>>,
    back: &Sender<RecvQueue<'static, Driver>>,
    done: &Receiver<Completion>,
    to: &Region,
) {
    for (generation, mut queue) in (0..).zip(queues) {
        let mut post = |number| {
            let sges = [to.sge(slot(number), LEN)];
            queue.post(&RecvWr { wr_id: id(Of::Recv, generation, number), sges: &sges })
        };
        for number in 0..DEPTH {
            post(number).unwrap();
        }
        let (mut posted, mut completed, mut received) = (DEPTH, 0, 0);
        while completed < posted {
            let completion = take(done, "a receive completes");
            assert_eq!(completion.wr_id, id(Of::Recv, generation, completed));
            completed += 1;
            if completion.status == WcStatus::Success {
                assert_eq!(completion.byte_len as usize, LEN);
                let bytes = to.buffer.read(slot(received), LEN);
                assert!(
                    bytes == message(generation, received),
                    "message {received} of generation {generation} is not what was sent"
                );
                received += 1;
                match post(posted) {
                    Ok(()) => posted += 1,
                    Err(error) => assert_eq!(error, PostRecvError::NotReady { state: QpState::Err }),
                }
            } else {
                assert_eq!(completion.status, WcStatus::WrFlushErr);
            }
        }
        assert_eq!(received, MESSAGES, "all of generation {generation}");
        back.send(queue).unwrap();
    }
}

/// Lets the device work, and does what its interrupts ask for.
fn interrupts(
    host: &Host,
    mut handler: InterruptHandler<'static, Driver>,
    stop: &AtomicBool,
) -> InterruptHandler<'static, Driver> {
    let clock = host.clock();
    let mut woken = 0;
    while !stop.load(Ordering::Acquire) {
        clock.relax(Instant::default());
        for vector in host.take_interrupts() {
            woken += handler.on_interrupt(vector).completions;
        }
    }
    assert!(woken > 0);
    handler
}

/// The control path: makes queue pairs, breaks them, resets them, destroys them.
struct Control<'a> {
    verbs: &'a SharedVerbs,
    end: End,
    remote: Remote,
    done: Receiver<Completion>,
    /// Completions of its own requests so far.
    seen: HashSet<u64>,
    /// Events that no [`Control::wait_event`] has asked for yet.
    events: Vec<Event>,
    next: u64,
}

impl Control<'_> {
    fn create(&self) -> QpHandle {
        let End { pd, cq, .. } = self.end;
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
        let start = WallClock::now();
        loop {
            let made = { self.verbs.lock().create_qp(&init) };
            match made {
                Ok(qp) => return qp,
                // The places of queue pairs that are gone are free once their completions are polled.
                Err(error) => assert_eq!(error, CreateQpError::Draining),
            }
            assert!(start.elapsed() < TIMEOUT, "stale completions were not polled");
            thread::yield_now();
        }
    }

    fn modify(&self, qp: QpHandle, attr: &bareverbs::QpAttr, mask: QpAttrMask) {
        let start = WallClock::now();
        // Completions from before the RESET may have to be polled first.
        while let Err(error) = self.verbs.lock().modify_qp(qp, attr, mask) {
            assert_eq!(error, ModifyQpError::Draining);
            assert!(start.elapsed() < TIMEOUT, "stale completions were not polled");
            thread::yield_now();
        }
    }

    fn connect(&self, first: QpHandle, second: QpHandle) {
        let lid = self.verbs.lock().query_port(1).unwrap().lid;
        for (qp, peer) in [(first, second), (second, first)] {
            let dest = self.verbs.lock().qp_info(peer).unwrap().qpn;
            for (attr, mask) in rc_steps(&Connection { timeout: 14, ..without_rnr_limit() }, lid, dest, 7, 7) {
                self.modify(qp, &attr, mask);
            }
        }
    }

    fn post(&mut self, qp: QpHandle, remote: Remote) -> u64 {
        self.next += 1;
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote };
        let wr_id = id(Of::Control, 0, self.next);
        self.verbs.lock().post_send(qp, &signaled(wr_id, op)).unwrap();
        wr_id
    }

    /// Waits for a completion, and returns its status. Those of requests whose queue pair was destroyed may come before, each
    /// once.
    fn wait(&mut self, wr_id: u64) -> WcStatus {
        loop {
            let completion = take(&self.done, "a request of the control path completes");
            assert!(self.seen.insert(completion.wr_id), "twice: {completion:?}");
            if completion.wr_id == wr_id {
                return completion.status;
            }
        }
    }

    fn wait_event(&mut self, event: Event) {
        let start = WallClock::now();
        loop {
            while let Some(event) = { self.verbs.lock().poll_event().unwrap() } {
                self.events.push(event);
            }
            if let Some(index) = self.events.iter().position(|pending| *pending == event) {
                self.events.remove(index);
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "no {event:?} in {:?}", self.events);
            thread::yield_now();
        }
    }

    /// Creates a queue pair, breaks it, and destroys it.
    fn churn(&mut self, round: u64) {
        let (near, far) = (self.create(), self.create());
        self.connect(near, far);
        let wrong = Remote { addr: 0, ..self.remote };
        let failing = self.post(near, wrong);
        if !round.is_multiple_of(3) {
            assert_eq!(self.wait(failing), WcStatus::RemAccessErr);
            assert_eq!(self.verbs.lock().qp_info(near).unwrap().state, QpState::Err);
            self.wait_event(Event::QpAccessError(far));
        }
        if round % 3 == 1 {
            for qp in [near, far] {
                self.modify(qp, &to_state(QpState::Reset), QpAttrMask::STATE);
            }
            self.connect(near, far);
            let good = self.post(near, self.remote);
            assert_eq!(self.wait(good), WcStatus::Success);
        }
        // In a round of the third kind the request is still on its way.
        self.verbs.lock().destroy_qp(near).unwrap();
        self.verbs.lock().destroy_qp(far).unwrap();
    }
}

#[test]
fn every_queue_in_its_own_thread_while_queue_pairs_come_and_go() {
    // Long steps would end a thread's waits while the scheduler holds up the others.
    let max_step = Duration::from_micros(1);
    let world = World::new(WorldConfig { max_step, ..WorldConfig::default() });
    let mut node = Node::new(world.add(DeviceConfig::with_lid(1)).unwrap());
    let pd = node.verbs.alloc_pd().unwrap();
    let (from, to) = (node.region(pd, 4096, ALL_ACCESS), node.region(pd, 4096, ALL_ACCESS));
    let spare = node.region(pd, 64, ALL_ACCESS);
    let remote = spare.remote(0);
    let cq = node.verbs.create_cq(1024).unwrap();
    let queue = node.verbs.take_cq(cq);
    let handler = node.verbs.take_interrupt_handler().unwrap();
    let (host, verbs) = (node.host.clone(), SharedVerbs(Mutex::new(node.verbs)));
    let stop = AtomicBool::new(false);
    let (send_route, sends) = channel();
    let (recv_route, recvs) = channel();
    let (control_route, controls) = channel();
    let (to_sender, send_queues) = channel();
    let (to_receiver, recv_queues) = channel();
    let (send_back, used_sends) = channel();
    let (recv_back, used_recvs) = channel();
    thread::scope(|scope| {
        let (stop, host, verbs, to) = (&stop, &host, &verbs, &to);
        let poller = scope.spawn(move || poll(queue, &[send_route, recv_route, control_route], stop));
        let ending = Ending { stop, parked: poller.thread().clone() };
        let interrupts = scope.spawn(move || interrupts(host, handler, stop));
        let sender = scope.spawn(move || send(&send_queues, &send_back, &sends, from, remote));
        let receiver = scope.spawn(move || receive(&recv_queues, &recv_back, &recvs, to));
        scope.spawn(move || {
            // Housekeeping, from yet another thread.
            while !stop.load(Ordering::Acquire) {
                verbs.lock().maintain().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let end = End { pd, cq, qp: QpHandle::NONE, qpn: bareverbs::Qpn::new(0) };
        let mut control = Control { verbs, end, remote, done: controls, seen: HashSet::new(), events: Vec::new(), next: 0 };
        let mut round = 0;
        for _ in 0..GENERATIONS {
            let (near, far) = (control.create(), control.create());
            control.connect(near, far);
            to_sender.send(verbs.lock().take_send(near)).unwrap();
            to_receiver.send(verbs.lock().take_recv(far)).unwrap();
            refused!(verbs.lock().destroy_qp(near), Ebusy, DestroyQpError::Owned);
            let (mut used_send, mut used_recv) = (None, None);
            let start = WallClock::now();
            while used_send.is_none() || used_recv.is_none() {
                assert!(start.elapsed() < 2 * TIMEOUT, "the stream stands still");
                assert!(!poller.is_finished() && !interrupts.is_finished(), "a thread ended");
                round += 1;
                control.churn(round);
                used_send = used_send.or_else(|| used_sends.try_recv().ok());
                used_recv = used_recv.or_else(|| used_recvs.try_recv().ok());
            }
            control.wait_event(Event::QpAccessError(far));
            verbs.lock().keep_send(used_send.unwrap());
            verbs.lock().keep_recv(used_recv.unwrap());
            verbs.lock().destroy_qp(near).unwrap();
            verbs.lock().destroy_qp(far).unwrap();
        }
        drop((to_sender, to_receiver));
        sender.join().unwrap();
        receiver.join().unwrap();
        assert!(round >= GENERATIONS, "{round} rounds");
        let unexpected = control.events.iter().filter(|event| !matches!(event, Event::Stray(_) | Event::Completion(_)));
        assert_eq!(unexpected.count(), 0, "{:?}", control.events);
        refused!(verbs.lock().destroy_cq(cq), Ebusy, DestroyCqError::Owned);
        drop(ending);
        verbs.lock().keep_cq(poller.join().unwrap());
        drop(interrupts.join().unwrap());
    });
    let mut node = Node { host, verbs: verbs.0.into_inner().unwrap() };
    assert!(node.poll(cq).is_empty());
    node.verbs.destroy_cq(cq).unwrap();
    for region in [to.mr, spare.mr] {
        node.verbs.dereg_mr_raw(region).unwrap();
    }
    node.assert_no_findings();
    let Ok((_, report)) = node.into_driver().teardown() else { panic!("teardown") };
    assert_eq!((report.pages_kept, report.cqs_left), (0, 0));
}
