//! Two hosts find each other by connection management, over a wire that loses every tenth packet: request, reply, a write, release.

use std::error::Error;
use std::time::Duration;

use bareverbs::platform::{Clock, Instant};
use bareverbs::{
    Access, CompletionQueue, DmaBuffer, Gid, Guid, Mac, Psn, QpAttr, QpCap, QpInit, QpType, QueuePair, SendWr, WcStatus,
};
use bareverbs_cm::{
    Accept, Attributes, Carrier, Config, ConnectRequest, ConnectionId, Endpoint, Event, Mad, Path, PortSpace, ServiceId,
};
use bareverbs_testing::{Driver, Faults, Node, Probability, SimBuffer, pair};

const SERVICE: ServiceId = PortSpace::Tcp.service_id(7174);

/// A host: its QP1, what it says there, and the queue pair to be connected.
struct Side {
    node: Node,
    carrier: Carrier<'static, Driver, SimBuffer>,
    endpoint: Endpoint<4, 1, 1>,
    qp: QueuePair<'static, Driver>,
    cq: CompletionQueue<'static, Driver>,
}

/// What this program does something about.
#[derive(PartialEq)]
enum Happened {
    Requested(ConnectionId),
    Replied(Attributes),
    Established,
    Disconnected,
}

/// A carrier asks for it on Ethernet ports only: a link-local address is made of the MAC address.
fn mac_of(gid: Gid) -> Option<Mac> {
    gid.link_local_mac()
}

/// Returns what of an event the program needs; the event borrows its private data from the datagram.
fn happened(event: &Event<'_>) -> Option<Happened> {
    Some(match *event {
        Event::Requested { id, .. } => Happened::Requested(id),
        Event::Replied { attributes, .. } => Happened::Replied(attributes),
        Event::Established { .. } => Happened::Established,
        Event::Disconnected { .. } => Happened::Disconnected,
        _ => return None,
    })
}

impl Side {
    fn new(mut node: Node, guid: u64) -> Result<Self, Box<dyn Error>> {
        let buffer = node.host.memory(Carrier::<Driver, SimBuffer>::BYTES).whole();
        let carrier = Carrier::open(&mut node.verbs, node.pd, 1, buffer).map_err(|refused| refused.error)?;
        let cq = node.verbs.create_cq(64)?;
        let (pd, send_cq, recv_cq) = (node.pd, cq.handle(), cq.handle());
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let qp = node.verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
        Ok(Self { node, carrier, endpoint: Endpoint::new(Config::new(Guid(guid))), qp, cq })
    }

    fn now(&self) -> Instant {
        self.node.host.clock().now()
    }

    /// Takes one datagram, lets time do its work, and sends what there is to say: also when nothing has happened, for a message that was
    /// not answered is repeated without an event. The random number makes IDs that a stranger does not guess.
    fn step(&mut self, random: u64) -> Result<Option<Happened>, Box<dyn Error>> {
        let (mut mad, now): (Mad, _) = ([0; 256], self.now());
        let from = self.carrier.receive(&mut mad)?;
        let received = from.and_then(|from| happened(&self.endpoint.receive(now, random, &from, &mad)?));
        let happened = received.or_else(|| happened(&self.endpoint.advance(now)?));
        self.carrier.transmit(&mut self.node.verbs, &mut self.endpoint, mac_of)?;
        Ok(happened)
    }

    /// Takes the queue pair to RTS. Where packets go is in the messages; which rights the peer has is ours to say.
    fn connect(&mut self, attributes: &Attributes) -> Result<(), Box<dyn Error>> {
        let av = self.carrier.address(&attributes.rtr.path, mac_of)?;
        let attr = QpAttr { access: Access::REMOTE_WRITE, ..attributes.qp_attr(av) };
        Ok(self.node.verbs.modify_qp_to_rts(self.qp.handle(), &attr)?)
    }
}

/// Steps both hosts until the first or the second (0, 1) has something to report.
fn next(sides: &mut [Side; 2], of: usize) -> Result<Happened, Box<dyn Error>> {
    let end = sides[0].now().after(Duration::from_secs(60));
    while sides[0].now() < end {
        for (number, side) in sides.iter_mut().enumerate() {
            if let Some(happened) = side.step(0x5eed)?
                && number == of
            {
                return Ok(happened);
            }
        }
        sides[0].node.host.clock().relax(Instant::default());
    }
    Err("nothing happened in a minute".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [a, b] = pair(Faults::none().loss(Probability::per_mille(100)).seed(4))?;
    let mut sides = [Side::new(a, 1)?, Side::new(b, 2)?];
    sides[1].endpoint.listen(SERVICE)?;
    let target = sides[1].node.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // The client: with LIDs on an InfiniBand port, with `global` and GIDs on an Ethernet port. The answer may take 67 ms.
    let [local_lid, remote_lid] = [sides[0].node.verbs.query_port(1)?.lid, sides[1].node.verbs.query_port(1)?.lid];
    let path = Path { local_lid, remote_lid, packet_life_time: 8, ..Path::default() };
    let (now, qpn) = (sides[0].now(), sides[0].node.verbs.qp_info(sides[0].qp.handle())?.qpn);
    let request = ConnectRequest::new(SERVICE, path, qpn, Psn::new(0x1000));
    let request = ConnectRequest { remote_cm_response_timeout: 14, private_data: b"let me in", ..request };
    let connection = sides[0].endpoint.connect(now, 0x1234_5678, &request)?;

    // The server accepts, and is in RTS before its reply leaves: the next step transmits it.
    let Happened::Requested(id) = next(&mut sides, 1)? else { return Err("no request".into()) };
    let (now, qpn) = (sides[1].now(), sides[1].node.verbs.qp_info(sides[1].qp.handle())?.qpn);
    let attributes = sides[1].endpoint.accept(now, id, &Accept::new(qpn, Psn::new(0x2000)))?;
    sides[1].connect(&attributes)?;
    let Happened::Replied(attributes) = next(&mut sides, 0)? else { return Err("no reply".into()) };
    sides[0].connect(&attributes)?;
    sides[0].endpoint.ready(connection, b"")?;
    assert!(next(&mut sides, 1)? == Happened::Established);

    sides[0].qp.send.post(&SendWr::write(target.remote(0), "connected by 3 messages"))?;
    let waiter = sides[0].node.waiter();
    assert_eq!(waiter.wait(&mut sides[0].cq)?.status, WcStatus::Success);
    let mut bytes = [0; 23];
    target.read(0, &mut bytes)?;

    let now = sides[0].now();
    sides[0].endpoint.disconnect(now, connection, b"")?;
    assert!(next(&mut sides, 1)? == Happened::Disconnected);
    println!("{}, {} frames of CM and RC lost", str::from_utf8(&bytes)?, sides[0].node.network().world().wire_stats().lost);
    Ok(())
}
