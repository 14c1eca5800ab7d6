//! What another program may send over a wire that joins the Ethernet: a stream of bytes, and in it frames.
//!
//! Two well-behaved hosts exchange messages over RoCEv2 at the same switch, and the first has queue pairs for the station at the other
//! end of the wire. Its bytes come in pieces of any length. Nothing panics, no step takes long, and the frames are the same in
//! whatever pieces they come. The two hosts get all their messages and nothing else as long as the station sends from no address of
//! theirs. If the ports are bound to their addresses, whatever it sends from.
//!
//! The first byte of an input chooses: bit 0, frames of RoCEv2 are for queue pairs that are there, and their checksums are right; bit 1,
//! the ports are bound. The second is the length of the pieces. Addresses are those of a run with Linux: its card, and rdma_rxe.

use std::net::Ipv4Addr;
use std::time::Duration;

use bareverbs::platform::Clock as _;
use bareverbs::storage::QpRings;
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, DmaBuffer as _, GidEntry, GlobalRoute, Mac, Mtu, PdHandle, Psn, Qkey,
    QpAttr, QpCap, QpInit, QpType, Qpn, QueuePair, RecvWr, Region, SendWr, Verbs, WcOpcode, WcStatus, storage,
};
use bareverbs_mlx5::Mlx5;
use bareverbs_serve::{FrameStream, FrameTooLong};
use bareverbs_sim::fabric::{ForeignAddress, Uplink};
use bareverbs_sim::in_process::{Host, SimBuffer, SimPlatform, World, WorldConfig};
use bareverbs_sim::wire::PortId;
use bareverbs_sim::{DeviceConfig, MAX_ETHERNET_FRAME, MIN_ETHERNET_FRAME};
use bareverbs_testing::{Connection, bring_up, driver_config, join};

use crate::step_time::bounded;

/// Frames of an input that are sent; the rest is ignored.
const MAX_FRAMES: usize = 64;
/// Frames between two messages of the hosts.
const BETWEEN: usize = 8;
/// The station at the other end of the wire, and the addresses of IPv4 of both ends.
const STATION: [u8; 6] = [0x52, 0x54, 0, 0, 1, 2];
const STATION_IP: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
const CARD_IP: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 1);
/// Entry of the GID table with the address of IPv4.
const IPV4: u8 = 1;
/// Queue key of `ibv_ud_pingpong`.
const QKEY: u32 = 0x1111_1111;
/// Bytes that the station may reach, and those of a message.
const OPEN: usize = 8192;
const MESSAGE: usize = 600;
/// Bytes of a WRITE.
const PIECE: usize = 60;
/// Receives of each queue pair for the station.
const RECEIVES: u64 = 16;
/// PSNs that a frame for such a queue pair may have: those around the next ones.
const PSNS: u8 = 0x3f;
/// Bytes of a header of Ethernet, IPv4 without options, UDP, and the base header of the transport; of the check behind it.
const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
const BTH: usize = 12;
const ICRC: usize = 4;

/// A cable from which nobody takes anything.
struct Deaf;

impl Uplink for Deaf {
    fn send(&self, _: PortId, _: Vec<u8>) -> bool {
        true
    }
}

/// The driver of a host, and its tables: a protection domain, 4 regions, 4 completion queues, 4 queue pairs.
type Driver = Mlx5<SimPlatform, 256>;
type Tables<'s> = storage!['s, Driver; pds: 1, mrs: 4, mws: 1, cqs: 4, qps: 4];
type Rings = QpRings<64, 32>;
/// How long a message may take in simulated time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A host with a queue pair that is connected to the other host.
struct Station<'s> {
    host: Host,
    verbs: Verbs<'s, Driver>,
    pd: PdHandle,
    qp: QueuePair<'s, Driver>,
    cq: CompletionQueue<'s, Driver>,
    /// Where messages go to.
    inbox: Region<'s, SimBuffer>,
}

impl<'s> Station<'s> {
    fn new(host: Host, tables: &'s mut Tables<'_>) -> Self {
        let mut verbs = bring_up(&host, &driver_config(&host), tables).expect("a device");
        let pd = verbs.alloc_pd().expect("room");
        let cq = verbs.create_cq(128).expect("room");
        let qp = verbs.create_qp(&init(pd, &cq, QpType::Rc)).expect("room");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let inbox = verbs.reg_mr(pd, host.memory(MESSAGE).whole(), rights).map_err(|refused| refused.error).expect("room");
        Self { host, verbs, pd, qp, cq, inbox }
    }

    /// Waits for a WRITE to be done.
    fn wait(&mut self, round: u8) {
        let clock = self.host.clock();
        let start = clock.now();
        let mut done = [Completion::EMPTY];
        while self.cq.poll(&mut done).expect("its own") == 0 {
            assert!(clock.now().since(start) < TIMEOUT, "no completion in round {round}");
            clock.relax(start);
        }
        assert_eq!((done[0].status, done[0].opcode), (WcStatus::Success, WcOpcode::RdmaWrite), "round {round}");
    }
}

/// Returns what a queue pair of a host is created with.
fn init(pd: PdHandle, cq: &CompletionQueue<'_, Driver>, qp_type: QpType) -> QpInit {
    let cap = QpCap { max_send_wr: 8, max_recv_wr: RECEIVES as u32, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    QpInit { pd, qp_type, send_cq: cq.handle(), recv_cq: cq.handle(), cap, sq_sig_all: true }
}

/// A queue pair for the station at the wire.
struct Open<'s> {
    qp: QueuePair<'s, Driver>,
    _cq: CompletionQueue<'s, Driver>,
    qpn: u32,
}

struct Lan<'s> {
    stations: [Station<'s>; 2],
    /// What the station at the wire may reach.
    open: Region<'s, SimBuffer>,
    queue_pairs: Vec<Open<'s>>,
    wire: PortId,
    round: u8,
}

/// Creates a queue pair for the station at the wire, with receives into `open`.
fn open_queue_pair<'s>(card: &mut Station<'s>, qp_type: QpType, open: &Region<'s, SimBuffer>) -> Open<'s> {
    let cq = card.verbs.create_cq(64).expect("room");
    let mut qp = card.verbs.create_qp(&init(card.pd, &cq, qp_type)).expect("room");
    let dgid = GidEntry::new(STATION_IP, Mac(STATION)).gid;
    let route = GlobalRoute { dgid, sgid_index: IPV4, hop_limit: 64, ..GlobalRoute::default() };
    let to_station = AddressVector { port_num: 1, grh: Some(route), dmac: Some(Mac(STATION)), ..AddressVector::default() };
    let attr = QpAttr {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        port_num: 1,
        av: to_station,
        path_mtu: Mtu::Mtu1024,
        dest_qpn: Qpn::new(0x11),
        qkey: Qkey::new(QKEY),
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        ..QpAttr::default()
    };
    card.verbs.modify_qp_to_rts(qp.handle(), &attr).expect("its own device");
    for wr_id in 0..RECEIVES {
        qp.recv.post(&RecvWr { wr_id, sges: &[open.sge(0, OPEN as u32)] }).expect("room");
    }
    let qpn = card.verbs.qp_info(qp.handle()).expect("its own").qpn.get();
    Open { qp, _cq: cq, qpn }
}

impl<'s> Lan<'s> {
    fn new(world: &World, mut stations: [Station<'s>; 2], bound: bool) -> Self {
        let [card, other] = &mut stations;
        join((&mut card.verbs, card.qp.handle()), (&mut other.verbs, other.qp.handle()), &Connection::default())
            .expect("connected");
        let mac = card.verbs.query_port(1).expect("its own").mac;
        card.verbs.set_gid(1, IPV4.into(), &GidEntry::new(CARD_IP, mac)).expect("a free entry");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let open = card.verbs.reg_mr(card.pd, card.host.memory(OPEN).whole(), rights).map_err(|refused| refused.error);
        let open = open.expect("room");
        let mut queue_pairs: Vec<Open<'s>> =
            [QpType::Rc, QpType::Uc, QpType::Ud].into_iter().map(|kind| open_queue_pair(card, kind, &open)).collect();
        // What the station may answer.
        if let Some(connected) = queue_pairs.first_mut() {
            connected.qp.send.post(&SendWr::send(&[1; 40])).expect("room");
            connected.qp.send.post(&SendWr::write(open.remote(0), &[2; 8])).expect("room");
        }
        let wire = world.add_cable(Box::new(Deaf));
        if bound {
            world.bind(card.host.port(), &[], &[CARD_IP.into()]).expect("nobody else's");
            world.bind(other.host.port(), &[], &[]).expect("nobody else's");
            world.bind(wire, &[STATION], &[STATION_IP.into()]).expect("nobody else's");
        }
        Self { stations, open, queue_pairs, wire, round: 0 }
    }

    /// Has each host send the other one a message, and checks each byte and that nothing else has come.
    fn exchange(&mut self) {
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        let [first, second] = &mut self.stations;
        for from in [0, 1] {
            let (sender, receiver) = if from == 0 { (&mut *first, &mut *second) } else { (&mut *second, &mut *first) };
            let bytes: Vec<u8> = (0..MESSAGE).map(|at| (at as u8) ^ from ^ round).collect();
            // Inline data has a limit, so in pieces.
            for (number, piece) in bytes.chunks(PIECE).enumerate() {
                let remote = receiver.inbox.remote((number * PIECE) as u64);
                sender.qp.send.post(&SendWr::write(remote, piece)).expect("room");
                sender.wait(round);
            }
            let mut arrived = vec![0; MESSAGE];
            receiver.inbox.read(0, &mut arrived).expect("its own memory");
            assert!(arrived == bytes, "the bytes of round {round}");
        }
        for station in &mut self.stations {
            assert_eq!(station.cq.poll(&mut [Completion::EMPTY]).expect("its own"), 0, "a completion of no request");
        }
    }

    /// Makes a frame of RoCEv2 one for a queue pair that is there.
    fn aim(&self, frame: &mut [u8]) {
        let Some(transport) = transport(frame) else { return };
        let remote = self.open.remote(0);
        // Opcode, flags, P_Key, reserved byte, destination, flags, PSN.
        if let Some([_, _, _, _, _, a, b, c, _, high, middle, low]) = frame.get_mut(transport..transport + BTH) {
            let place = usize::from(*c) % (self.queue_pairs.len() + 1);
            if let Some(open) = self.queue_pairs.get(place) {
                [_, *a, *b, *c] = open.qpn.to_be_bytes();
            }
            (*high, *middle, *low) = (0, 0, *low & PSNS);
        }
        // Address and key of a WRITE, a READ or an atomic.
        let is_remote = matches!(frame.get(transport).map(|opcode| opcode & 0x1f), Some(6 | 10..=12 | 0x13 | 0x14));
        if is_remote && let Some([address @ .., k0, k1, k2, k3]) = frame.get_mut(transport + BTH..transport + BTH + 12) {
            let offset = address.iter().rev().take(2).fold(0, |sum, byte| sum << 8 | u64::from(*byte)) % (OPEN as u64 + 64);
            address.copy_from_slice(&(remote.addr + offset).to_be_bytes());
            [*k0, *k1, *k2, *k3] = remote.rkey.get().to_be_bytes();
        }
    }
}

/// Returns where the base header of a whole packet of RoCEv2 over IPv4 is.
fn transport(frame: &[u8]) -> Option<usize> {
    let is_roce = frame.get(12..15)? == [8, 0, 0x45] && frame.get(23) == Some(&17) && frame.get(36..38)? == [0x12, 0xb7];
    let end = ETHERNET + usize::from(u16::from_be_bytes(frame.get(16..18)?.try_into().ok()?));
    let at = ETHERNET + IP + UDP;
    (is_roce && end >= at + BTH + ICRC && end <= frame.len()).then_some(at)
}

/// Writes the checksum of IPv4 and the invariant CRC of a packet of RoCEv2 (IBTA volume 1, annex A17).
fn repair(frame: &mut [u8]) {
    let Some(transport) = transport(frame) else { return };
    let end = ETHERNET + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    // No fragment.
    (frame[20], frame[21]) = (0x40, 0);
    let length = (end - ETHERNET - IP) as u16;
    frame[38..40].copy_from_slice(&length.to_be_bytes());
    frame[24..26].fill(0);
    let sum: u32 = frame[ETHERNET..ETHERNET + IP].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    frame[24..26].copy_from_slice(&(!folded as u16).to_be_bytes());
    let mut covered = [&[0xff; 8], &frame[ETHERNET..end - ICRC]].concat();
    // Type of service, time to live, checksums, and the byte of the base header that changes on the way.
    for at in [1, 8, 10, 11, IP + 6, IP + 7, transport - ETHERNET + 4] {
        covered[8 + at] = 0xff;
    }
    frame[end - ICRC..end].copy_from_slice(&crc32fast::hash(&covered).to_le_bytes());
}

/// Takes a stream apart, in pieces of this length.
fn frames(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Result<(), FrameTooLong>) {
    let (mut taker, mut found) = (FrameStream::default(), Vec::new());
    for mut piece in stream.chunks(piece) {
        while !piece.is_empty() {
            match taker.take(&mut piece) {
                Ok(frame) => found.extend(frame),
                Err(error) => return (found, Err(error)),
            }
        }
        let Some((have, len)) = taker.begun() else { continue };
        assert!(have < len && len <= FrameStream::MAX_LENGTH + 4 || have == 4 && len == 4, "{have} of {len}");
    }
    (found, Ok(()))
}

/// Plays an input.
pub fn play(input: &[u8]) {
    let &[setup, piece, ref stream @ ..] = input else { return };
    let (repaired, bound) = (setup & 1 != 0, setup & 2 != 0);
    let (found, end) = frames(stream, usize::from(piece) + 1);
    let (whole, end_of_whole) = frames(stream, usize::MAX);
    assert_eq!((&found, end), (&whole, end_of_whole), "in other pieces");
    let world = World::new(WorldConfig::default());
    let hosts = [1, 2].map(|lid| world.add(DeviceConfig::with_lid(lid).with_ethernet()).expect("two hosts"));
    let rings: [[Rings; 4]; 2] = Default::default();
    let [mut first_tables, mut second_tables] = rings.each_ref().map(|rings| Box::new(Tables::new(QpRings::views(rings))));
    let [first, second] = hosts;
    let stations = [Station::new(first, &mut first_tables), Station::new(second, &mut second_tables)];
    let mut lan = Lan::new(&world, stations, bound);
    lan.exchange();
    let mut is_stolen = false;
    let sent = found.into_iter().filter(|frame| (ETHERNET..=MAX_ETHERNET_FRAME).contains(&frame.len())).take(MAX_FRAMES);
    for (number, mut frame) in sent.enumerate() {
        frame.resize(frame.len().max(MIN_ETHERNET_FRAME), 0);
        if repaired {
            lan.aim(&mut frame);
            repair(&mut frame);
        }
        let foreign = bounded("a frame", || world.arrive_at(lan.wire, frame)).foreign;
        is_stolen |= foreign.is_some_and(|ForeignAddress { is_refused, .. }| !is_refused);
        assert!(!bound || !is_stolen, "{foreign:?} is refused");
        bounded("what a frame causes", || world.work());
        if number % BETWEEN == BETWEEN - 1 && !is_stolen {
            lan.exchange();
        }
    }
    if !is_stolen {
        lan.exchange();
    }
    // A region that is dropped alone keeps its memory: the device may still write there.
    let Lan { stations, open, .. } = lan;
    let mut open = Some(open);
    for mut station in stations {
        station.host.with_device(|device| drop(format!("{:?} {:?}", device.counts(), device.stats())));
        for region in [open.take(), Some(station.inbox)].into_iter().flatten() {
            assert!(station.verbs.dereg_mr(region).is_ok(), "its own region");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_streams_leave_well_behaved_hosts_alone() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/joined_wire");
        let seeds: Vec<Vec<u8>> =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(seeds.len() >= 10);
        let mut random = bareverbs_sim::wire::Random::new(1);
        for round in 0..300_usize {
            let mut input = seeds[round % seeds.len()].clone();
            input[0] = (round / seeds.len()) as u8;
            for _ in 0..random.next() % 8 {
                let at = random.next() as usize % input.len();
                input[at] = random.next() as u8;
            }
            play(&input);
        }
    }
}
