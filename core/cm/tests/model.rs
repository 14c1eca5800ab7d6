//! Endpoints on a wire that loses, repeats, reorders and delays, with programs that accept, reject, delay, ignore, disconnect and
//! die. A ledger knows what each side was told.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panic")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs::{Guid, Lid, Mtu, Psn, Qpn};
use bareverbs_cm::*;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

type Node = Endpoint<8, 1, 2>;

const SERVICE: ServiceId = PortSpace::Tcp.service_id(1);
/// Packet lifetime of the paths: 268 ms, more than the wire ever takes.
const LIFE: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Established,
    Ended,
}

/// What a program knows of a connection.
#[derive(Clone, Debug)]
struct Known {
    qpn: Qpn,
    psn: Psn,
    /// As target, as initiator: what the program said.
    depths: (u8, u8),
    /// Queue pair of the peer as the connection was requested with.
    client_qpn: Option<Qpn>,
    attributes: Option<Attributes>,
    stage: Stage,
    ended_at: Option<u64>,
}

#[derive(Clone, Debug)]
enum Act {
    Arrive { to: usize, from: usize, mad: Box<Mad> },
    Accept { node: usize, life: u32, id: ConnectionId },
    Disconnect { node: usize, life: u32, id: ConnectionId },
    Connect { node: usize },
    Die { node: usize },
}

#[derive(Clone, Copy, Default)]
struct Wire {
    lose: u64,
    repeat: u64,
    /// Longest delay in milliseconds; delays differ, so datagrams overtake each other.
    delay: u64,
    deaths: u64,
}

#[derive(Default, Debug)]
struct Counts {
    established: u64,
    rejected: u64,
    timed_out_req: u64,
    unanswered: u64,
    stale: u64,
    closed: u64,
    /// Datagrams that were sent more than once.
    repeated: u64,
}

struct World {
    random: Random,
    wire: Wire,
    now: u64,
    nodes: Vec<Node>,
    /// How often a node has died.
    lives: Vec<u32>,
    known: Vec<HashMap<ConnectionId, Known>>,
    acts: BTreeMap<(u64, u64), Act>,
    order: u64,
    qpns: Vec<u32>,
    /// What programs of servers do not answer.
    ignoring: bool,
    counts: Counts,
    sent: HashSet<(usize, Mad)>,
}

const MS: u64 = 1_000_000;

fn config(node: usize) -> Config {
    Config {
        half_open: 4,
        half_open_per_peer: 3,
        shortest_wait: Duration::from_millis(4),
        longest_wait: Duration::from_secs(4),
        longest_exchange: Duration::from_secs(60),
        ..Config::new(Guid(node as u64))
    }
}

fn lid(node: usize) -> Lid {
    Lid::new(node as u16 + 1)
}

impl World {
    fn new(seed: u64, nodes: usize, wire: Wire) -> Self {
        let mut world = Self {
            random: Random(seed),
            wire,
            now: 0,
            nodes: Vec::new(),
            lives: vec![0; nodes],
            known: vec![HashMap::new(); nodes],
            acts: BTreeMap::new(),
            order: 0,
            qpns: vec![0; nodes],
            ignoring: false,
            counts: Counts::default(),
            sent: HashSet::new(),
        };
        for node in 0..nodes {
            let mut endpoint = Node::new(config(node));
            endpoint.listen(SERVICE).unwrap();
            world.nodes.push(endpoint);
        }
        world
    }

    fn at(&mut self, time: u64, act: Act) {
        self.order += 1;
        self.acts.insert((time, self.order), act);
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn qpn(&mut self, node: usize) -> Qpn {
        self.qpns[node] += 1;
        Qpn::new((node as u32 + 1) << 16 | self.qpns[node])
    }

    fn connect(&mut self, node: usize) {
        let peer = (node + 1 + self.random.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len();
        let path =
            Path { local_lid: lid(node), remote_lid: lid(peer), packet_life_time: LIFE, mtu: Mtu::Mtu2048, ..Path::default() };
        let (qpn, psn) = (self.qpn(node), Psn::new(self.random.next() as u32 & 0xff_ffff));
        let depths = (self.random.below(20) as u8, self.random.below(20) as u8);
        let request = ConnectRequest {
            responder_resources: depths.0,
            initiator_depth: depths.1,
            // 134 ms, and with the lifetime of packets 671 ms.
            remote_cm_response_timeout: 15,
            local_cm_response_timeout: 15,
            ..ConnectRequest::new(SERVICE, path, qpn, psn)
        };
        let (now, random) = (self.instant(), self.random.next());
        match self.nodes[node].connect(now, random, &request) {
            Ok(id) => {
                let known =
                    Known { qpn, psn, depths, client_qpn: None, attributes: None, stage: Stage::Opening, ended_at: None };
                assert!(self.known[node].insert(id, known).is_none());
            }
            Err(error) => assert_eq!(error, CmError::TableFull { capacity: 8 }),
        }
        self.settle(node);
    }

    /// Transmits what waits, and checks that nothing is left to do at this time.
    fn settle(&mut self, node: usize) {
        let now = self.instant();
        let mut events = 0;
        while let Some(event) = self.nodes[node].advance(now) {
            events += 1;
            assert!(events < 100, "advance does not end");
            self.handle(node, event);
        }
        assert!(self.nodes[node].next_deadline().is_none_or(|deadline| deadline > now), "a deadline stays in the past");
        let mut mad = [0; MAD_BYTES];
        let mut sent = 0;
        while let Some(to) = self.nodes[node].transmit(&mut mad) {
            sent += 1;
            assert!(sent < 50, "transmit does not end");
            self.counts.repeated += u64::from(!self.sent.insert((node, mad)));
            assert_eq!(to.qpn, Qpn::GENERAL_SERVICES);
            let peer = usize::from(to.path.dlid.get()) - 1;
            if self.random.percent(self.wire.lose) {
                continue;
            }
            let copies = 1 + u64::from(self.random.percent(self.wire.repeat));
            for _ in 0..copies {
                let delay = self.random.below(self.wire.delay * MS + 1) + 1000;
                self.at(self.now + delay, Act::Arrive { to: peer, from: node, mad: Box::new(mad) });
            }
        }
    }

    fn ended(&mut self, node: usize, id: ConnectionId) {
        let now = self.now;
        let known = self.known[node].get_mut(&id).unwrap();
        assert_ne!(known.stage, Stage::Ended, "it ended twice");
        known.stage = Stage::Ended;
        known.ended_at = Some(now);
    }

    fn handle(&mut self, node: usize, event: Event<'_>) {
        let now = self.instant();
        let life = self.lives[node];
        match event {
            Event::Requested { id, request, from } => {
                let client = usize::from(from.lid.get()) - 1;
                let twice = self.known[node]
                    .values()
                    .any(|known| known.client_qpn == Some(request.local_qpn) && known.stage != Stage::Ended);
                assert!(!twice, "one request made two connections");
                assert_eq!((from.lid, request.primary.local_port_lid), (lid(client), lid(client)));
                let known = Known {
                    qpn: Qpn::new(0),
                    psn: Psn::new(0),
                    depths: (0, 0),
                    client_qpn: Some(request.local_qpn),
                    attributes: None,
                    stage: Stage::Opening,
                    ended_at: None,
                };
                assert!(self.known[node].insert(id, known).is_none());
                match self.random.below(10) {
                    0 => self.reject(node, id),
                    1 if self.ignoring => {}
                    2..=4 => {
                        // 18: a second and more. It is accepted within that time.
                        self.nodes[node].delay(now, id, 18, b"wait").unwrap();
                        let later = self.now + 900 * MS;
                        self.at(later, Act::Accept { node, life, id });
                    }
                    _ => self.accept(node, id),
                }
            }
            Event::Replied { id, attributes, .. } => {
                self.check(node, id, &attributes);
                let known = self.known[node].get_mut(&id).unwrap();
                assert_eq!(known.stage, Stage::Opening);
                known.attributes = Some(attributes);
                if self.random.percent(5) {
                    self.reject(node, id);
                    return;
                }
                self.nodes[node].ready(id, b"").unwrap();
                self.establish(node, id);
            }
            Event::Established { id, .. } => self.establish(node, id),
            Event::Delayed { id, .. } => assert_eq!(self.known[node][&id].stage, Stage::Opening),
            Event::Rejected { id, .. } => {
                self.counts.rejected += 1;
                self.ended(node, id);
            }
            Event::TimedOut { id, message } => {
                self.counts.timed_out_req += u64::from(message == Unanswered::Req);
                self.ended(node, id);
            }
            Event::Disconnected { id, cause, .. } => {
                self.counts.unanswered += u64::from(cause == Cause::Unanswered);
                self.counts.stale += u64::from(cause == Cause::Stale);
                self.ended(node, id);
            }
            Event::Closed { id, qpn } => {
                self.counts.closed += 1;
                let known = self.known[node].remove(&id).unwrap();
                assert_eq!((known.stage, known.qpn), (Stage::Ended, qpn));
                if let (Some(ended), Some(_)) = (known.ended_at, known.attributes) {
                    // As long as a packet and its acknowledgement may be under way.
                    assert!(self.now - ended >= 2 * timeout(LIFE).as_nanos() as u64, "its number is free too early");
                }
            }
            _ => panic!("{event:?}"),
        }
    }

    fn establish(&mut self, node: usize, id: ConnectionId) {
        self.counts.established += 1;
        let known = self.known[node].get_mut(&id).unwrap();
        assert_eq!(known.stage, Stage::Opening);
        known.stage = Stage::Established;
        if self.random.percent(50) {
            let (life, time) = (self.lives[node], self.now + self.random.below(5000) * MS);
            self.at(time, Act::Disconnect { node, life, id });
        }
    }

    fn reject(&mut self, node: usize, id: ConnectionId) {
        let now = self.instant();
        match self.nodes[node].reject(now, id, RejectReason::ConsumerReject, &[], b"no") {
            Ok(()) => self.ended(node, id),
            Err(error) => assert_eq!(error, CmError::NotTransmitted),
        }
    }

    fn accept(&mut self, node: usize, id: ConnectionId) {
        let now = self.instant();
        let (qpn, psn) = (self.qpn(node), Psn::new(self.random.next() as u32 & 0xff_ffff));
        let depths = (self.random.below(20) as u8, self.random.below(20) as u8);
        let accept = Accept { responder_resources: depths.0, initiator_depth: depths.1, ..Accept::new(qpn, psn) };
        let Ok(attributes) = self.nodes[node].accept(now, id, &accept) else { return };
        let known = self.known[node].get_mut(&id).unwrap();
        (known.qpn, known.psn, known.depths, known.attributes) = (qpn, psn, depths, Some(attributes));
        assert_eq!(Some(attributes.rtr.dest_qpn), known.client_qpn);
    }

    /// The client's attributes are the mirror of the server's.
    fn check(&self, node: usize, id: ConnectionId, client: &Attributes) {
        if self.wire.deaths > 0 {
            // Numbers are given twice.
            return;
        }
        let ours = &self.known[node][&id];
        let server = self.known.iter().flat_map(HashMap::values).find(|known| known.qpn == client.rtr.dest_qpn);
        // Its server may be dead, or have given up.
        let Some((known, server)) = server.and_then(|known| Some((known, known.attributes?))) else { return };
        assert_eq!((client.rtr.rq_psn, server.rtr.rq_psn), (ours.psn, known.psn));
        assert_eq!((client.rts.sq_psn, server.rts.sq_psn), (known.psn, ours.psn));
        assert_eq!((client.rtr.dest_qpn, server.rtr.dest_qpn), (known.qpn, ours.qpn));
        assert_eq!(client.rtr.path_mtu, server.rtr.path_mtu);
        // As many reads at a time as both said: no side starts more than the other takes.
        assert_eq!(client.rts.max_rd_atomic, ours.depths.1.min(known.depths.0));
        assert_eq!(server.rts.max_rd_atomic, known.depths.1.min(ours.depths.0));
        assert_eq!(client.rtr.max_dest_rd_atomic, server.rts.max_rd_atomic);
        assert_eq!(server.rtr.max_dest_rd_atomic, client.rts.max_rd_atomic);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Arrive { to, from, mad } => {
                let source = Source { lid: lid(from), qpn: Qpn::GENERAL_SERVICES, ..Source::default() };
                let (now, random) = (self.instant(), self.random.next());
                if let Some(event) = self.nodes[to].receive(now, random, &source, &mad) {
                    self.handle(to, event);
                }
                self.settle(to);
            }
            Act::Accept { node, life, id } if self.lives[node] == life => {
                if self.known[node].get(&id).is_some_and(|known| known.stage == Stage::Opening) {
                    self.accept(node, id);
                }
                self.settle(node);
            }
            Act::Disconnect { node, life, id } if self.lives[node] == life => {
                self.disconnect(node, id);
                self.settle(node);
            }
            Act::Connect { node } => self.connect(node),
            Act::Die { node } => {
                self.lives[node] += 1;
                self.known[node].clear();
                // It begins with the same numbers again: its peers believe them to be connected.
                self.qpns[node] = 0;
                self.nodes[node] = Node::new(config(node));
                self.nodes[node].listen(SERVICE).unwrap();
            }
            Act::Accept { .. } | Act::Disconnect { .. } => {}
        }
    }

    fn disconnect(&mut self, node: usize, id: ConnectionId) {
        let now = self.instant();
        if self.known[node].get(&id).is_some_and(|known| known.stage == Stage::Established) {
            // It may be on its way out already.
            match self.nodes[node].disconnect(now, id, b"bye") {
                Ok(()) | Err(CmError::WrongState) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Lets everything happen until `end`.
    fn run_until(&mut self, end: u64) {
        loop {
            let deadlines =
                self.nodes.iter().enumerate().filter_map(|(node, endpoint)| Some((endpoint.next_deadline()?, node)));
            let deadline = deadlines.min().map(|(deadline, node)| (deadline.as_nanos(), node));
            let act = self.acts.keys().next().copied();
            match (act, deadline) {
                (Some((time, order)), deadline) if time <= end && deadline.is_none_or(|(deadline, _)| time <= deadline) => {
                    self.now = self.now.max(time);
                    let act = self.acts.remove(&(time, order)).unwrap();
                    self.act(act);
                }
                (_, Some((deadline, node))) if deadline <= end => {
                    self.now = self.now.max(deadline);
                    self.settle(node);
                }
                _ => break,
            }
        }
        self.now = end;
    }

    fn established(&self) -> Vec<HashSet<(Qpn, Qpn)>> {
        let of = |known: &HashMap<ConnectionId, Known>| {
            let established = known.values().filter(|known| known.stage == Stage::Established);
            established.map(|known| (known.qpn, known.attributes.unwrap().rtr.dest_qpn)).collect()
        };
        self.known.iter().map(of).collect()
    }
}

const SECOND: u64 = 1000 * MS;

/// Runs programs for 100 s, lets everything settle, and ends every connection.
fn run(seed: u64, wire: Wire, ignoring: bool) -> Counts {
    let mut world = World::new(seed, 3, wire);
    world.ignoring = ignoring;
    for _ in 0..60 {
        let (time, node) = (world.random.below(100 * SECOND), world.random.below(3) as usize);
        world.at(time, Act::Connect { node });
    }
    for _ in 0..wire.deaths {
        let (time, node) = (world.random.below(100 * SECOND), world.random.below(3) as usize);
        world.at(time, Act::Die { node });
    }
    world.run_until(300 * SECOND);

    // Nothing is being opened any more: each connection is established on both sides, or ended.
    let all: HashSet<(Qpn, Qpn)> = world.established().into_iter().flatten().collect();
    for known in world.known.iter().flat_map(HashMap::values) {
        assert_ne!(known.stage, Stage::Opening, "seed {seed}: it neither opens nor ends: {known:?}");
    }
    if wire.deaths == 0 {
        for (ours, theirs) in &all {
            assert!(all.contains(&(*theirs, *ours)), "seed {seed}: one side alone is connected: {ours} {theirs}");
        }
    }
    for node in 0..3 {
        let ids: Vec<ConnectionId> = world.known[node].keys().copied().collect();
        for id in ids {
            world.disconnect(node, id);
        }
        world.settle(node);
    }
    world.run_until(500 * SECOND);
    for node in 0..3 {
        assert_eq!((world.nodes[node].connections(), world.known[node].len()), (0, 0), "seed {seed}");
        assert_eq!(world.nodes[node].next_deadline(), None);
    }
    world.counts
}

#[test]
fn on_a_good_wire_everything_is_answered() {
    for seed in 0..40 {
        let counts = run(seed, Wire { delay: 20, ..Wire::default() }, false);
        assert!(counts.established > 30, "seed {seed}: {counts:?}");
        assert_eq!((counts.timed_out_req, counts.unanswered), (0, 0), "seed {seed}: {counts:?}");
        assert_eq!(counts.repeated, 0, "seed {seed}: nothing needs to be repeated: {counts:?}");
    }
}

#[test]
fn on_a_bad_wire_both_sides_agree_and_everything_ends() {
    for seed in 0..150 {
        let counts = run(seed, Wire { lose: 20, repeat: 20, delay: 200, deaths: 0 }, false);
        assert!(counts.established > 30, "seed {seed}: {counts:?}");
        assert_eq!((counts.timed_out_req, counts.unanswered), (0, 0), "seed {seed}: {counts:?}");
    }
}

#[test]
fn with_peers_that_die_and_programs_that_ignore_everything_ends() {
    let (mut unanswered, mut stale) = (0, 0);
    for seed in 0..150 {
        let counts = run(seed, Wire { lose: 10, repeat: 10, delay: 200, deaths: 12 }, true);
        assert!(counts.established > 20 && counts.closed > 20, "seed {seed}: {counts:?}");
        unanswered += counts.timed_out_req + counts.rejected;
        stale += counts.stale;
    }
    assert!(unanswered > 100 && stale > 20, "{unanswered} {stale}");
}

/// The wire goes dead for good in the middle: the bound of everything is in time, not in luck.
#[test]
fn on_a_dead_wire_everything_ends_in_bounded_time() {
    for seed in 0..30 {
        let mut world = World::new(seed, 3, Wire { delay: 50, ..Wire::default() });
        for _ in 0..40 {
            let (time, node) = (world.random.below(10 * SECOND), world.random.below(3) as usize);
            world.at(time, Act::Connect { node });
        }
        world.run_until(5 * SECOND);
        world.wire.lose = 100;
        world.run_until(20 * SECOND);
        for node in 0..3 {
            let ids: Vec<ConnectionId> = world.known[node].keys().copied().collect();
            for id in ids {
                world.disconnect(node, id);
            }
            world.settle(node);
        }
        // The longest exchange is 60 s: that of opening, and that of disconnecting.
        world.run_until(150 * SECOND);
        for node in 0..3 {
            let ids: Vec<ConnectionId> = world.known[node].keys().copied().collect();
            for id in ids {
                world.disconnect(node, id);
            }
            world.settle(node);
        }
        world.run_until(220 * SECOND);
        assert!(world.nodes.iter().all(|node| node.connections() == 0), "seed {seed}");
    }
}
