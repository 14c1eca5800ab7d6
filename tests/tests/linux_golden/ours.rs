//! This project's driver, doing what the recorded tools did, and recorded in the same way.

use bareverbs::{Access, Mtu, Payload, QpAttr, QpAttrMask, QpCap, QpInit, QpType, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_serve::SharedBuffer as Buffer;
use bareverbs_serve::record::{Line, Recording, parse};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{Host, World, WorldConfig};
use bareverbs_tests::{Connection, End, Node, Pair, Region, instant, rc_steps, signaled, to_rts, uc_steps};

/// The parameters of a tool, from its source or its manual page.
struct Tool {
    mark: &'static str,
    qp_type: QpType,
    cap: QpCap,
    /// Of the completion queue.
    entries: u32,
    /// Rights of the region.
    access: Access,
    /// Rights of the peer on the queue pair.
    peer: Access,
    mtu: Mtu,
    /// Reads and atomics outstanding, in both directions.
    reads: u8,
    len: usize,
}

/// The pingpongs: 500 receives, one send, no rights for the peer.
const PINGPONG: Tool = Tool {
    mark: "rc_pingpong",
    qp_type: QpType::Rc,
    cap: QpCap { max_send_wr: 1, max_recv_wr: 500, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
    entries: 501,
    access: Access::LOCAL_WRITE,
    peer: Access::empty(),
    mtu: Mtu::Mtu1024,
    reads: 1,
    len: 4096,
};

/// perftest, bandwidth: as deep as there are requests, a buffer of twice the message.
const PERFTEST: Tool = Tool {
    mark: "",
    cap: QpCap { max_send_wr: 5, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
    access: Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
    peer: Access::REMOTE_WRITE,
    mtu: Mtu::Mtu4096,
    entries: 5,
    len: 8192,
    ..PINGPONG
};

/// perftest, latency of short messages: they are inline.
const LATENCY: QpCap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 128 };

struct Fixture {
    pair: Pair,
    recording: Recording,
}

/// A tool at work: a queue pair and a region on either node.
struct Work {
    ends: (End, End),
    regions: (Region, Region),
}

impl Fixture {
    fn open(&mut self, tool: &Tool) -> Work {
        self.recording.mark(tool.mark);
        let mut sides = [&mut self.pair.a, &mut self.pair.b].map(|node| {
            let pd = node.verbs.alloc_pd().unwrap();
            let region = node.region(pd, tool.len, tool.access);
            let cq = node.verbs.create_cq(tool.entries).unwrap();
            let init = QpInit { pd, qp_type: tool.qp_type, send_cq: cq, recv_cq: cq, cap: tool.cap, sq_sig_all: false };
            let qp = node.verbs.create_qp(&init).unwrap();
            let qpn = node.verbs.qp_info(qp).unwrap().qpn;
            (End { pd, cq, qp, qpn }, region)
        });
        sides.reverse();
        let [(end_b, region_b), (end_a, region_a)] = sides;
        self.connect(tool, end_a, end_b);
        Work { ends: (end_a, end_b), regions: (region_a, region_b) }
    }

    fn connect(&mut self, tool: &Tool, a: End, b: End) {
        let connection = Connection { mtu: tool.mtu, timeout: 14, rnr_retry: 7, access: tool.peer, ..Connection::default() };
        for (node, end, peer) in [(&mut self.pair.a, a, b), (&mut self.pair.b, b, a)] {
            let lid = node.verbs.query_port(1).unwrap().lid;
            let other = bareverbs::Lid::new(3 - lid.get());
            let steps = if tool.qp_type == QpType::Uc { uc_steps } else { rc_steps };
            let steps: [(QpAttr, QpAttrMask); 3] = steps(&connection, other, peer.qpn, 0x1111, 0x1111).map(|(attr, mask)| {
                let reads = tool.reads;
                (QpAttr { min_rnr_timer: 12, max_rd_atomic: reads, max_dest_rd_atomic: reads, ..attr }, mask)
            });
            to_rts(node, end.qp, &steps);
        }
    }

    /// Posts requests on the second node, one after the other.
    fn send(&mut self, work: &Work, requests: &[SendOp<'_>]) {
        for (number, op) in requests.iter().enumerate() {
            self.pair.b.verbs.post_send(work.ends.1.qp, &signaled(number as u64, *op)).unwrap();
            assert_eq!(self.pair.b.completions(work.ends.1.cq, 1)[0].status, WcStatus::Success);
        }
    }

    /// Posts a request twice on the second node; only the last is signaled.
    fn stream(&mut self, work: &Work, op: SendOp<'_>) {
        self.pair.b.verbs.post_send(work.ends.1.qp, &SendWr { wr_id: 0, flags: SendFlags::empty(), op }).unwrap();
        self.send(work, &[op]);
    }

    /// Receives messages on the first node.
    fn receive(&mut self, work: &Work, count: usize, len: usize) {
        for number in 0..count {
            let sges = [work.regions.0.sge(0, len)];
            self.pair.a.verbs.post_recv(work.ends.0.qp, &RecvWr { wr_id: number as u64, sges: &sges }).unwrap();
        }
    }

    fn close(&mut self, work: Work) {
        let Work { ends, regions } = work;
        for (node, end, region) in [(&mut self.pair.a, ends.0, regions.0), (&mut self.pair.b, ends.1, regions.1)] {
            node.verbs.destroy_qp(end.qp).unwrap();
            node.verbs.destroy_cq(end.cq).unwrap();
            node.verbs.dereg_mr_raw(region.mr).unwrap();
            node.verbs.dealloc_pd(end.pd).unwrap();
        }
    }

    fn pingpong(&mut self, tool: &Tool, events: bool) {
        let work = self.open(tool);
        if events {
            self.pair.b.verbs.req_notify_cq(work.ends.1.cq, false).unwrap();
        }
        self.receive(&work, 2, tool.len);
        let sges = [work.regions.1.sge(0, tool.len)];
        self.send(&work, &[SendOp::Send { payload: Payload::Sges(&sges) }; 2]);
        if events {
            assert!(self.pair.b.event(Some).is_some());
        }
        self.close(work);
    }

    fn perftest(&mut self, tool: &Tool, request: impl Fn(&Work) -> [SendOp<'_>; 2]) {
        let work = self.open(tool);
        if tool.mark == "ib_send_lat" {
            self.receive(&work, 2, 64);
        }
        self.send(&work, &request(&work));
        self.close(work);
    }
}

/// Returns everything that [`crate::NEW`] has and this driver can do, under the same marks.
pub(crate) fn recording() -> Vec<Line> {
    let buffer = Buffer::default();
    let recording = Recording::new(Box::new(buffer.clone()));
    let world = World::new(WorldConfig::default());
    let hosts: [Host; 2] = [1, 2].map(|lid| {
        let config = DeviceConfig { umr: false, ..instant(lid) };
        let host = world.add(config.clone()).unwrap();
        let tracer = recording.tracer(&format!("lid{lid}"), &config);
        host.with_device(|device| device.set_tracer(Some(Box::new(tracer))));
        host
    });
    recording.mark("probe");
    let [a, b] = hosts.map(Node::new);
    let mut fixture = Fixture { pair: Pair { world, a, b }, recording: recording.clone() };

    recording.mark("ibv_devinfo");
    fixture.pair.a.verbs.query_gid(1, 0).unwrap();
    fixture.pair.a.verbs.query_pkey(1, 0).unwrap();
    fixture.pingpong(&PINGPONG, false);
    fixture.pingpong(&Tool { mark: "rc_pingpong-events", ..PINGPONG }, true);
    fixture.pingpong(&Tool { mark: "uc_pingpong", qp_type: QpType::Uc, ..PINGPONG }, false);

    let inline = Payload::Inline(&[0x5a; 64]);
    fixture.perftest(
        &Tool {
            mark: "ib_send_lat",
            cap: QpCap { max_recv_wr: 5, ..LATENCY },
            entries: 6,
            access: Access::LOCAL_WRITE,
            ..PERFTEST
        },
        |_| [SendOp::Send { payload: inline }; 2],
    );
    fixture.perftest(&Tool { mark: "ib_write_lat", cap: LATENCY, entries: 1, ..PERFTEST }, |work| {
        [SendOp::Write { payload: inline, remote: work.regions.0.remote(0) }; 2]
    });
    one_sided(&mut fixture);

    recording.mark("unload");
    let Fixture { pair: Pair { a, b, .. }, .. } = fixture;
    for node in [a, b] {
        assert!(node.into_driver().teardown().is_ok());
    }
    recording.finish().unwrap();
    let text = String::from_utf8(buffer.bytes()).unwrap();
    parse(&text).unwrap()
}

fn one_sided(fixture: &mut Fixture) {
    let work = fixture.open(&Tool { mark: "ib_write_bw", ..PERFTEST });
    let (sges, remote) = ([work.regions.1.sge(0, 4096)], work.regions.0.remote(0));
    fixture.stream(&work, SendOp::Write { payload: Payload::Sges(&sges), remote });
    fixture.close(work);

    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let work = fixture.open(&Tool { mark: "ib_read_bw", access, peer: access - Access::LOCAL_WRITE, reads: 16, ..PERFTEST });
    let (sges, remote) = ([work.regions.1.sge(0, 4096)], work.regions.0.remote(0));
    fixture.stream(&work, SendOp::Read { sges: &sges, remote });
    fixture.close(work);

    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let work =
        fixture.open(&Tool { mark: "ib_atomic_bw-add", access, peer: access - Access::LOCAL_WRITE, reads: 16, ..PERFTEST });
    let (sge, remote) = (work.regions.1.sge(0, 8), work.regions.0.remote(0));
    fixture.stream(&work, SendOp::FetchAdd { sge, remote, add: 1 });
    fixture.close(work);

    let work =
        fixture.open(&Tool { mark: "ib_atomic_bw-swap", access, peer: access - Access::LOCAL_WRITE, reads: 16, ..PERFTEST });
    let (sge, remote) = (work.regions.1.sge(0, 8), work.regions.0.remote(0));
    fixture.stream(&work, SendOp::CompareSwap { sge, remote, compare: 0, swap: 0 });
    fixture.close(work);
}
