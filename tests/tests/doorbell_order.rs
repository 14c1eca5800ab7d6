//! The order of memory, fences and doorbells, as recorded where the driver touches them.
//!
//! The rule is rdma-core's (`providers/mlx5/qp.c`, `cq.c`): WQE, `udma_to_device_barrier`, doorbell record,
//! `mmio_wc_start`, register; for arming: record, barrier, register; and for completions: owner byte,
//! `udma_from_device_barrier`, the rest, consumer index.

use bareverbs::platform::{Clock, Instant, Machine};
use bareverbs::{Access as Rights, Completion, Payload, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus};
use bareverbs_mlx5::{Config, EthernetConfig, Mlx5};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{Access, Host, OrderLog, RecordedPlatform, SimPlatform, World, WorldConfig};
use bareverbs_tests::{CAP, Connection, Node, instant, pattern, rc_steps};

type Recorded = Mlx5<RecordedPlatform<SimPlatform>, 1024>;
type Rdma = bareverbs_tests::KeptVerbs<Recorded>;

/// One device connected to itself, with everything that its driver does recorded.
struct Fixture {
    host: Host,
    log: OrderLog,
    verbs: Rdma,
    qp: bareverbs::QpHandle,
    cq: bareverbs::CqHandle,
    sge: Sge,
    rkey: bareverbs::Rkey,
}

/// Brings a device up by a driver whose accesses are recorded.
fn recorded(host: &Host, blue_flame: bool) -> (OrderLog, Rdma) {
    let log = OrderLog::default();
    let machine = Machine {
        registers: log.record(host.registers()),
        memory: log.record(host.memory(Recorded::ARENA)),
        pages: host.pages(u32::MAX),
        fence: log.record(host.fence()),
        clock: host.clock(),
    };
    let config = Config { blue_flame, ..Config::DEFAULT };
    let driver = Recorded::bring_up(machine, &config).map_err(|(error, _)| error).unwrap();
    (log, bareverbs_tests::verbs(driver))
}

impl Fixture {
    fn new(blue_flame: bool) -> Self {
        let world = World::new(WorldConfig::default());
        let host = world.add(DeviceConfig { blue_flame, ..instant(1) }).unwrap();
        let (log, mut verbs) = recorded(&host, blue_flame);
        let pd = verbs.alloc_pd().unwrap();
        let bytes = host.memory(8192);
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let region = verbs.reg_mr(pd, bytes.whole(), rights).unwrap();
        let cq = verbs.create_cq(256).unwrap();
        let init = bareverbs::QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
        let qp = verbs.create_qp(&init).unwrap();
        let qpn = verbs.qp_info(qp).unwrap().qpn;
        for (attr, mask) in rc_steps(&Connection::default(), bareverbs::Lid::new(1), qpn, 7, 7) {
            verbs.modify_qp(qp, &attr, mask).unwrap();
        }
        log.take();
        Self { host, log, verbs, qp, cq, sge: region.sge(0, 64), rkey: region.rkey() }
    }

    fn write<'a>(&self, sges: &'a [Sge]) -> SendOp<'a> {
        let remote = bareverbs::Remote { addr: self.sge.addr + 4096, rkey: self.rkey };
        SendOp::Write { payload: Payload::Sges(sges), remote }
    }

    fn wait(&mut self) -> Completion {
        let mut one = [Completion::EMPTY];
        while self.verbs.poll_cq(self.cq, &mut one).unwrap() == 0 {
            Clock::relax(&self.host.clock(), Instant::default());
        }
        one[0]
    }
}

/// Splits a record into what was written before it was published and everything from there.
fn before_publish(log: &[Access]) -> (&[Access], &[Access]) {
    log.split_at(log.iter().position(|access| *access == Access::Publish).expect("a publish"))
}

#[test]
fn wqe_then_publish_then_record_then_release_then_doorbell() {
    for blue_flame in [false, true] {
        let mut fixture = Fixture::new(blue_flame);
        for round in 1..=300_u32 {
            let sges = [fixture.sge];
            let op = fixture.write(&sges);
            fixture.verbs.post_send(fixture.qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }).unwrap();
            let log = fixture.log.take();
            let (wqe, rest) = before_publish(&log);
            let [Access::Write { at, .. }, ..] = wqe else { panic!("the WQE comes first: {wqe:?}") };
            let bytes: usize = wqe.iter().map(|access| if let Access::Write { len, .. } = access { *len } else { 9999 }).sum();
            assert!((48..=64).contains(&bytes), "control, address and data segment, and nothing else: {wqe:?}");
            assert!(at % 64 == 0, "a WQE starts at a block");
            let [Access::Publish, Access::Store32 { value, .. }, Access::Release, tail @ ..] = rest else {
                panic!("publish, record, release: {rest:?}")
            };
            assert_eq!(u32::from_be(*value), round & 0xffff, "the record counts blocks");
            let doorbells: Vec<_> = tail.iter().filter(|access| matches!(access, Access::Register64 { .. })).collect();
            let Some(Access::Register64 { at: register, value }) = doorbells.first() else { panic!("a doorbell: {tail:?}") };
            let value = u64::from_be(*value);
            assert_eq!((value >> 40) & 0xffff, u64::from(round - 1), "index of the WQE");
            assert_eq!(value >> 32 & 0xff, 8, "opcode RDMA_WRITE");
            assert_eq!(value & 0x3f, 3, "48 bytes");
            assert!(register % 4096 >= 0x800, "in the BlueFlame part of the page");
            if !blue_flame {
                assert_eq!(tail.len(), 1, "one doorbell and nothing after it: {tail:?}");
            } else {
                assert_eq!(tail.last(), Some(&Access::Flush), "{tail:?}");
            }
            assert_eq!(fixture.wait().status, WcStatus::Success);
            fixture.log.take();
        }
        let findings = fixture.host.with_device(|device| device.audit().findings().to_vec());
        assert!(findings.is_empty(), "{findings:?}");
    }
}

#[test]
fn a_batch_has_one_record_and_one_doorbell() {
    let mut fixture = Fixture::new(true);
    let sges = [fixture.sge];
    let op = fixture.write(&sges);
    let mut queue = fixture.verbs.send_batch(fixture.qp);
    for _ in 0..32 {
        queue.post(&SendWr { wr_id: 1, flags: SendFlags::empty(), op }).unwrap();
    }
    queue.post(&SendWr { wr_id: 2, flags: SendFlags::SIGNALED, op }).unwrap();
    queue.ring();
    let log = fixture.log.take();
    queue.ring();
    drop(queue);
    assert_eq!(fixture.log.take(), [], "nothing new, no doorbell");
    let (wqes, rest) = before_publish(&log);
    assert!(wqes.iter().all(|access| matches!(access, Access::Write { .. })), "{wqes:?}");
    assert!(
        matches!(rest, [Access::Publish, Access::Store32 { .. }, Access::Release, Access::Register64 { .. }, ..]),
        "{rest:?}"
    );
    assert_eq!(rest.iter().filter(|access| matches!(access, Access::Register64 { .. })).count(), 1, "{rest:?}");
    fixture.verbs.send_batch(fixture.qp).ring();
    fixture.verbs.ring_send_queue(fixture.qp);
    assert_eq!(fixture.log.take(), [], "nor later");
    assert_eq!(fixture.wait().wr_id, 2);
}

#[test]
fn receives_have_a_record_and_no_doorbell() {
    let mut fixture = Fixture::new(true);
    let sges = [fixture.sge];
    fixture.verbs.post_recv(fixture.qp, &RecvWr { wr_id: 1, sges: &sges }).unwrap();
    let log = fixture.log.take();
    let (wqe, rest) = before_publish(&log);
    assert!(!wqe.is_empty() && wqe.iter().all(|access| matches!(access, Access::Write { .. })), "{wqe:?}");
    let [Access::Publish, Access::Store32 { value, .. }] = rest else { panic!("{rest:?}") };
    assert_eq!(u32::from_be(*value), 1);
}

#[test]
fn owner_then_acquire_then_the_rest_then_the_consumer_index() {
    let mut fixture = Fixture::new(false);
    let sges = [fixture.sge];
    let mut none = [Completion::EMPTY];
    assert_eq!(fixture.verbs.poll_cq(fixture.cq, &mut none), Ok(0));
    let empty = fixture.log.take();
    let [Access::Read { at: owner, len: 8 }, ref again @ ..] = empty[..] else { panic!("{empty:?}") };
    assert!(
        again.len() < 2 && again.iter().all(|access| *access == Access::Read { at: owner, len: 8 }),
        "an empty queue costs looks at one word of the entry, and no fence: {empty:?}"
    );

    let op = fixture.write(&sges);
    fixture.verbs.post_send(fixture.qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }).unwrap();
    for _ in 0..100 {
        Clock::relax(&fixture.host.clock(), Instant::default());
    }
    fixture.log.take();
    assert_eq!(fixture.verbs.poll_cq(fixture.cq, &mut none), Ok(1));
    let log = fixture.log.take();
    let owner = log.iter().position(|access| matches!(access, Access::Read8 { .. } | Access::Read { .. })).unwrap();
    let fence = log.iter().position(|access| *access == Access::Acquire).unwrap();
    let body = log.iter().rposition(|access| matches!(access, Access::Read { .. })).unwrap();
    let [.., Access::ReadBeforeWrite, Access::Store32 { value, .. }] = log[..] else { panic!("{log:?}") };
    assert_eq!(u32::from_be(value), 1, "the consumer index");
    let doorbell = log.iter().position(|access| matches!(access, Access::Store32 { .. })).unwrap();
    assert!(owner < fence && fence < body && body < doorbell && doorbell == log.len() - 1, "{log:?}");
    assert!(!log.iter().any(|access| matches!(access, Access::Register64 { .. } | Access::Register32 { .. })), "{log:?}");
}

#[test]
fn arming_tells_the_record_before_the_register() {
    let mut fixture = Fixture::new(false);
    fixture.verbs.req_notify_cq(fixture.cq, false).unwrap();
    let log = fixture.log.take();
    let [.., Access::Store32 { .. }, Access::Release, Access::Register64 { at, .. }] = log[..] else { panic!("{log:?}") };
    assert_eq!(at % 4096, 0x20);
}

/// Bytes of an entry of the completion queues for frames.
const ENTRY: usize = 64;
/// Frames of each of the two queues.
const FRAMES: u16 = 4;

/// Queues for frames whose driver is recorded, and a station to talk to.
struct Frames {
    world: World,
    log: OrderLog,
    verbs: Rdma,
    peer: Node,
}

impl Frames {
    fn new(blue_flame: bool) -> Self {
        let world = World::new(WorldConfig::default());
        let host = world.add(DeviceConfig { blue_flame, ..instant(1).with_ethernet() }).unwrap();
        let mut peer = Node::new(world.add(instant(2).with_ethernet()).unwrap());
        let (log, mut verbs) = recorded(&host, blue_flame);
        let config = EthernetConfig { send_frames: FRAMES, receive_frames: FRAMES, ..EthernetConfig::DEFAULT };
        verbs.direct().open_ethernet(&config).unwrap();
        peer.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
        log.take();
        Self { world, log, verbs, peer }
    }

    fn pass(&self) {
        self.world.advance(core::time::Duration::from_millis(1));
    }
}

fn broadcast(payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], payload].concat()
}

#[test]
fn a_frame_and_its_wqe_then_publish_then_record_then_release_then_doorbell() {
    for blue_flame in [false, true] {
        let mut frames = Frames::new(blue_flame);
        for round in 1..=20_u32 {
            frames.verbs.direct().ethernet().unwrap().send(&broadcast(&pattern(round.into(), 100))).unwrap();
            let mut log = frames.log.take();
            if round > 1 {
                // The completion of the frame before it.
                let taken: Vec<Access> = log.drain(..4).collect();
                let [Access::Read { len: 8, .. }, Access::Acquire, Access::ReadBeforeWrite, Access::Store32 { value, .. }] =
                    taken[..]
                else {
                    panic!("owner, acquire, a fence, consumer index: {taken:?}")
                };
                assert_eq!(u32::from_be(value), round - 1, "the consumer index");
            }
            let (written, rest) = before_publish(&log);
            assert!(written.len() > 1 && written.iter().all(|access| matches!(access, Access::Write { .. })), "{written:?}");
            let [Access::Publish, Access::Store32 { value, .. }, Access::Release, tail @ ..] = rest else {
                panic!("publish, record, release: {rest:?}")
            };
            let blocks = u32::from_be(*value);
            let doorbell = tail.iter().find(|access| matches!(access, Access::Register64 { .. }));
            let Some(Access::Register64 { value, .. }) = doorbell else { panic!("a doorbell: {tail:?}") };
            assert!(u64::from_be(*value) >> 40 & 0xffff < u64::from(blocks), "a WQE that the record counts");
            if blue_flame {
                assert_eq!(tail.last(), Some(&Access::Flush), "{tail:?}");
            } else {
                assert_eq!(tail.len(), 1, "one doorbell and nothing after it: {tail:?}");
            }
            frames.pass();
        }
    }
}

/// The device may write the next frame into a buffer from the moment its record says so: the frame is copied before.
#[test]
fn owner_then_acquire_then_entry_and_frame_then_the_indices() {
    let mut frames = Frames::new(false);
    let mut bytes = [0; 1518];
    assert_eq!(frames.verbs.direct().ethernet().unwrap().receive(&mut bytes), Ok(None));
    let log = frames.log.take();
    assert!(matches!(log[..], [Access::Read { len: 8, .. }]), "an empty queue costs one look, and no fence: {log:?}");
    for round in 1..=20_u16 {
        let sent = broadcast(&pattern(round.into(), 200));
        frames.peer.verbs.direct().ethernet().unwrap().send(&sent).unwrap();
        frames.pass();
        frames.log.take();
        let received = frames.verbs.direct().ethernet().unwrap().receive(&mut bytes).unwrap().unwrap();
        assert_eq!(bytes[..received.len], sent);
        let log = frames.log.take();
        let [
            Access::Read { at: owner, len: 8 },
            Access::Acquire,
            ref rest @ ..,
            Access::Read { len, .. },
            Access::ReadBeforeWrite,
            Access::Store32 { value: consumer, .. },
            Access::Publish,
            Access::Store32 { value: posted, .. },
        ] = log[..]
        else {
            panic!("owner, acquire, entry, frame, a fence, consumer index, publish, record: {log:?}")
        };
        let lies_in_entry = |access: &Access| matches!(access, Access::Read { at, len: 8 } if at / ENTRY == owner / ENTRY);
        assert!(!rest.is_empty() && rest.iter().all(lies_in_entry), "the rest of the entry: {rest:?}");
        assert_eq!(len, sent.len());
        assert_eq!((u32::from_be(consumer), u32::from_be(posted)), (round.into(), (round + FRAMES).into()));
    }
}
