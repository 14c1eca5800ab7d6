//! What a port tells its subnet manager by itself (IBTA 13.4.9, 14.2.5.1), and how often.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::packet::{
    Bth, Deth, Grh, InfiniBandLink, Lrh, Opcode, Operation, Packet, Place, SUBNET_LANE, SUBNET_QPN, Transport,
};

use crate::host::*;

const KEY: u64 = 0x1234_5678_9abc_def0;
/// The manager's port, the port's own, and a stranger's.
const MANAGER: u16 = 3;
const LID: u16 = 9;
const STRANGER: u16 = 5;
/// 4.096 microseconds times 2 to the 18th, the subnet timeout that PortInfo says.
const INTERVAL: Duration = Duration::from_nanos(4096 << 18);

/// Returns the link part of a packet, to be changed.
fn infiniband<'a>(packet: &'a mut Packet<'_>) -> &'a mut InfiniBandLink {
    packet.link.infiniband_mut().unwrap()
}

/// Returns a datagram of subnet management for the port: method, attribute and modifier, and the key.
fn datagram(slid: u16, class: u8, method: u8, attribute: u16, modifier: u32, key: u64) -> Packet<'static> {
    let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
    let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: SUBNET_QPN, ack_req: false, psn: 0 };
    let mut packet = Packet::new(Lrh { vl: SUBNET_LANE, sl: 0, dlid: 0xffff, slid }, bth);
    packet.transport.deth = Some(Deth { qkey: 0, source_qpn: SUBNET_QPN });
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, class, 1, method]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[24..32].copy_from_slice(&key.to_be_bytes());
    packet.transport.payload = mad.into();
    packet
}

/// Set(PortInfo) by the manager: LIDs, key with the greatest protection, state (0 leaves it).
fn port_info(state: u8) -> Packet<'static> {
    let mut set = datagram(MANAGER, 1, 2, 0x15, 1, KEY);
    let info = &mut set.transport.payload.to_mut()[64..];
    info[..8].copy_from_slice(&KEY.to_be_bytes());
    info[8..16].copy_from_slice(&(0xfe80_u64 << 48).to_be_bytes());
    info[16..18].copy_from_slice(&LID.to_be_bytes());
    info[18..20].copy_from_slice(&MANAGER.to_be_bytes());
    info[32] = state;
    info[34] = 3 << 6;
    set
}

/// Gives the port a packet; what it sends for it.
fn give(host: &mut Host, packet: &Packet<'_>) -> Vec<Vec<u8>> {
    host.device.receive(&packet.encode());
    sent(host)
}

fn sent(host: &mut Host) -> Vec<Vec<u8>> {
    host.run(1);
    std::iter::from_fn(|| host.device.transmit()).collect()
}

/// What the port sends after a while.
fn later(host: &mut Host, duration: Duration) -> Vec<Vec<u8>> {
    host.wait(duration);
    sent(host)
}

/// A port whose manager has made it active.
fn active() -> Host {
    let mut host = Host::running(DeviceConfig { managed: true, lid: LID, ..plain() });
    for state in [0, 3, 4] {
        assert_eq!(give(&mut host, &port_info(state)).len(), 1, "its answer");
    }
    assert!(host.device.link_is_up());
    host
}

/// The only frame is a trap for the manager; its datagram.
fn trap(frames: &[Vec<u8>]) -> Vec<u8> {
    let [frame] = frames else { panic!("{} frames", frames.len()) };
    let packet = Packet::decode(frame).unwrap();
    assert_eq!(packet.link, Lrh { vl: SUBNET_LANE, sl: 0, dlid: MANAGER, slid: LID }.into());
    assert_eq!((packet.transport.bth.dest_qpn, packet.transport.deth), (0, Some(Deth { qkey: 0, source_qpn: 0 })));
    let mad = packet.transport.payload.into_owned();
    // SubnTrap(Notice) of class 1, without an M_Key: generic, security, channel adapter; by this port.
    assert_eq!((mad.len(), &mad[..4], be16(&mad, 16), &mad[24..32]), (256, &[1, 1, 1, 5][..], 2, &[0; 8][..]));
    assert_eq!((be32(&mad, 64), be16(&mad, 70)), (0x8200_0001, LID));
    mad
}

fn number(mad: &[u8]) -> u16 {
    be16(mad, 68)
}

/// SubnTrapRepress of a trap.
fn repress(trap: &[u8], key: u64) -> Packet<'static> {
    let mut packet = datagram(MANAGER, 1, 7, 2, 0, key);
    let mad = packet.transport.payload.to_mut();
    mad[8..16].copy_from_slice(&trap[8..16]);
    mad[64..].copy_from_slice(&trap[64..]);
    packet
}

#[test]
fn a_manager_learns_who_tries_a_wrong_key() {
    let mut host = active();
    let mad = trap(&give(&mut host, &datagram(STRANGER, 1, 2, 0x16, 0x0102_0304, 0xbad)));
    assert_eq!((number(&mad), be16(&mad, 64 + 12), mad[64 + 16], be16(&mad, 64 + 18)), (256, STRANGER, 2, 0x16));
    // The key that was tried is not in it: it may be the manager's, and the trap goes to whom the host made the manager.
    assert_eq!((be32(&mad, 64 + 20), &mad[64 + 24..64 + 32]), (0x0102_0304, &[0; 8][..]));
    assert_eq!(mad[64 + 33], 0, "by no directed route");
    // By one of two hops, from outside the subnet: the way that it came.
    let mut host = active();
    let mut directed = datagram(STRANGER, 0x81, 1, 0x11, 0, 0xbad);
    let request = directed.transport.payload.to_mut();
    (request[6], request[7]) = (2, 2);
    request[32..34].copy_from_slice(&0xffff_u16.to_be_bytes());
    request[193] = 7;
    let mad = trap(&give(&mut host, &directed));
    assert_eq!((be16(&mad, 64 + 14), mad[64 + 33], &mad[64 + 34..64 + 37]), (0xffff, 0x80 | 2, &[0, 7, 0][..]));
}

/// A program of the guest itself, by MAD_IFC.
#[test]
fn a_manager_learns_of_a_wrong_key_of_the_host() {
    let mut host = active();
    let mut command = input(0x50d, 272, &[(8, 1)]);
    command[16..16 + 256].copy_from_slice(&datagram(0, 1, 1, 0x15, 1, 0xbad).transport.payload);
    assert_eq!(host.command(&command, 272).0, 0x30);
    let mad = trap(&sent(&mut host));
    assert_eq!((number(&mad), be16(&mad, 64 + 12)), (256, LID));
}

/// A datagram to queue pair 1 of the host, with this P_Key and Q_Key.
fn to_general(pkey: u16, qkey: u32) -> Packet<'static> {
    let mut packet = datagram(STRANGER, 3, 1, 1, 0, 0);
    infiniband(&mut packet).lrh = Lrh { vl: 0, sl: 2, dlid: LID, slid: STRANGER };
    (packet.transport.bth.dest_qpn, packet.transport.bth.pkey) = (1, pkey);
    packet.transport.deth = Some(Deth { qkey, source_qpn: 0x77 });
    let gid = |guid: u8| [&[0xfe, 0x80][..], &[0; 13], &[guid]].concat().try_into().unwrap();
    infiniband(&mut packet).grh = Some(Grh { sgid: gid(5), dgid: gid(0), ..Grh::default() });
    packet
}

/// Gives the host a queue pair 1 that receives.
fn general_qp(host: &mut Host) {
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
    let mut cq = input(0x400, 272, &[(16 + 12, 4 << 24 | uar), (16 + 20, eqn)]);
    cq[16 + 56..16 + 64].copy_from_slice(&(BASE + 0x12_0000).to_be_bytes());
    cq.extend((BASE + 0x11_0000).to_be_bytes());
    let cqn = be32(&host.ok(&cq, 16), 8);
    let pd = be32(&host.ok(&input(0x800, 16, &[]), 16), 8);
    let sizes = 1 << 19 | 4 << 11;
    let dwords = [(24, 8 << 16), (24 + 4, pd), (24 + 8, sizes), (24 + 12, uar), (24 + 124, cqn), (24 + 156, cqn)];
    let mut qp = input(0x500, 272, &dwords);
    qp[24 + 160..24 + 168].copy_from_slice(&(BASE + 0x12_0040).to_be_bytes());
    qp.extend((BASE + 0x13_0000).to_be_bytes());
    let qpn = be32(&host.ok(&qp, 16), 8);
    host.ok(&input(0x502, 272, &[(8, qpn), (24 + 0xa8, 0x8001_0000)]), 16);
    host.ok(&input(0x503, 272, &[(8, qpn), (24 + 8, 5 << 29 | 12 << 24)]), 16);
}

#[test]
fn a_manager_learns_of_wrong_partitions_and_queue_keys() {
    for (pkey, qkey, trapped, key) in [(0x8777, 0x8001_0000, 257, 0x8777), (0xffff, 0xbad, 258, 0xbad)] {
        let mut host = active();
        general_qp(&mut host);
        let mut packet = to_general(pkey, qkey);
        let gid = host.device.config().gid();
        infiniband(&mut packet).grh.as_mut().unwrap().dgid = gid;
        let mad = trap(&give(&mut host, &packet));
        assert_eq!((number(&mad), be16(&mad, 64 + 12), be16(&mad, 64 + 14)), (trapped, STRANGER, LID));
        assert_eq!([16, 20, 24].map(|at| be32(&mad, 64 + at)), [key, 2 << 28 | 0x77, 1]);
        assert_eq!((mad[64 + 43], &mad[64 + 44..64 + 60]), (5, &gid[..]));
    }
}

#[test]
fn a_trap_is_repeated_until_the_manager_has_it() {
    let mut host = active();
    let wrong = datagram(STRANGER, 1, 2, 0x16, 0, 0xbad);
    let first = trap(&give(&mut host, &wrong));
    // However often it happens, not before the subnet's timeout.
    assert!((0..100).all(|_| give(&mut host, &wrong).is_empty()));
    assert!(later(&mut host, INTERVAL / 2).is_empty());
    let due = host.device.next_due().unwrap();
    assert!(due > Instant::from_nanos(host.now) && due <= Instant::from_nanos(host.now).after(INTERVAL), "it wakes for it");
    assert_eq!(trap(&later(&mut host, INTERVAL)), first, "the same once more");
    // Repressed by the manager or by who has the key, and only this one.
    let mut by_stranger = repress(&first, 0xbad);
    infiniband(&mut by_stranger).lrh.slid = STRANGER;
    assert!(give(&mut host, &by_stranger).is_empty());
    let mut other = first.clone();
    other[15] ^= 1;
    assert!(give(&mut host, &repress(&other, KEY)).is_empty());
    assert_eq!(trap(&later(&mut host, INTERVAL)), first);
    // opensm copies the key of the trap, which is 0.
    assert!(give(&mut host, &repress(&first, 0)).is_empty());
    assert!(later(&mut host, 10 * INTERVAL).is_empty());
    assert_eq!(host.device.next_due(), None);
    // The next violation is another trap.
    let second = trap(&give(&mut host, &wrong));
    assert_ne!(second[8..16], first[8..16]);
    // Nobody represses it: it ends by itself.
    let repeats = (0..100).filter(|_| !later(&mut host, INTERVAL).is_empty()).count();
    assert_eq!(repeats, 7);
}

#[test]
fn traps_of_several_kinds_take_turns() {
    let mut host = active();
    general_qp(&mut host);
    let mut packet = to_general(0x8777, 0x8001_0000);
    infiniband(&mut packet).grh = None;
    let mut numbers = vec![number(&trap(&give(&mut host, &packet)))];
    assert!(give(&mut host, &datagram(STRANGER, 1, 2, 0x16, 0, 0xbad)).is_empty(), "not at once");
    numbers.extend((0..3).map(|_| number(&trap(&later(&mut host, INTERVAL)))));
    assert_eq!(numbers, [257, 257, 256, 257]);
}

#[test]
fn a_port_without_a_manager_sends_no_trap() {
    // Not managed.
    let mut host = Host::running(plain());
    general_qp(&mut host);
    let mut packet = to_general(0x8777, 0x8001_0000);
    packet.link = Lrh { vl: 0, sl: 2, dlid: 7, slid: STRANGER }.into();
    assert!(give(&mut host, &packet).is_empty());
    assert_eq!(host.device.next_due(), None);
    // Not active: the key is there, but the manager has not come that far.
    let mut host = Host::running(DeviceConfig { managed: true, lid: LID, ..plain() });
    assert_eq!(give(&mut host, &port_info(0)).len(), 1);
    let wrong = datagram(STRANGER, 1, 2, 0x16, 0, 0xbad);
    assert!(give(&mut host, &wrong).is_empty());
    for state in [3, 4] {
        assert_eq!(give(&mut host, &port_info(state)).len(), 1, "its answer, and no trap of what was before");
    }
    assert!(later(&mut host, INTERVAL).is_empty());
}

/// A guest does not get around the least time between two traps.
#[test]
fn a_reset_makes_traps_no_more_frequent() {
    let mut host = active();
    let wrong = datagram(STRANGER, 1, 2, 0x16, 0, 0xbad);
    trap(&give(&mut host, &wrong));
    host.device.reset();
    host.device.enable_function();
    host.run(1_000_000);
    host.attach_queue();
    host.ok(&input(0x104, 16, &[]), 16);
    host.ok(&input(0x102, 32, &[]), 16);
    for state in [3, 4] {
        assert_eq!(give(&mut host, &port_info(state)).len(), 1);
    }
    assert!(give(&mut host, &wrong).is_empty());
    trap(&later(&mut host, INTERVAL));
}
