use super::*;
use crate::stats::{FrameTraffic, Traffic};
use bareverbs_mlx5_spec::PortChange;

fn ask_of(config: &DeviceConfig, cleared: &mut Cleared, stats: EngineStats, question: &[u8; MAD]) -> Option<[u8; MAD]> {
    answer(agents(&mut Port::new(config), config, stats, cleared), question, true)
}

fn agents<'a>(port: &'a mut Port, config: &'a DeviceConfig, stats: EngineStats, cleared: &'a mut Cleared) -> Agents<'a> {
    Agents { port, config, stats, cleared, asker: 9, now: Instant::default() }
}

/// Returns a question by the bytes of IBTA 13.4.2: version, class, class version, method; attribute and modifier at 16 and 20.
fn question(class: u8, method: u8, attribute: u16, modifier: u32) -> [u8; MAD] {
    let mut question = [0; MAD];
    question[..4].copy_from_slice(&[1, class, 1, method]);
    question[8..16].copy_from_slice(&7_u64.to_be_bytes());
    question[16..18].copy_from_slice(&attribute.to_be_bytes());
    question[20..24].copy_from_slice(&modifier.to_be_bytes());
    question
}

fn ask(config: &DeviceConfig, class: u8, method: u8, attribute: u16, modifier: u32) -> Option<[u8; MAD]> {
    ask_of(config, &mut Cleared::default(), EngineStats::default(), &question(class, method, attribute, modifier))
}

#[test]
fn a_port_reports_its_identity() {
    let config = DeviceConfig::instant(0x0102);
    let info = ask(&config, 1, 1, 0x15, 1).unwrap();
    assert_eq!((info[3], &info[4..6], &info[8..16]), (0x81, &[0, 0][..], &[0, 0, 0, 0, 0, 0, 0, 7][..]));
    // LID; active, link up; 4x; QDR shown, HDR (4) in the place of extended speeds; MTU 4096 (5).
    assert_eq!((&info[64 + 16..64 + 18], info[64 + 32] & 15, info[64 + 33] >> 4), (&[1, 2][..], 4, 5));
    assert_eq!((info[64 + 31], info[64 + 35] >> 4, info[64 + 62] >> 4), (2, 4, 4));
    assert_eq!((info[64 + 36] >> 4, info[64 + 41] & 15), (5, 5));
    let node = ask(&config, 1, 1, 0x11, 0).unwrap();
    assert_eq!(node[64..68], [1, 1, 1, 1]);
    assert_eq!(node[64 + 12..64 + 20], config.node_guid.to_be_bytes());
    assert_eq!(node[64 + 30..64 + 32], config.pci_device_id.to_be_bytes());
    assert_eq!(node[64 + 36..64 + 40], [1, 0, 0x02, 0xc9]);
    assert!(ask(&config, 1, 1, 0x10, 0).unwrap()[64..].starts_with(b"bareverbs simulated device"));
    assert_eq!(ask(&config, 1, 1, 0x16, 0).unwrap()[64..68], [0xff, 0xff, 0, 0]);
    assert_eq!(ask(&config, 1, 1, 0x14, 0).unwrap()[64..72], config.port_guid.to_be_bytes());
    // The upper half of the partition table's modifier is a switch's port; the uppermost bit of PortInfo's says that the
    // manager knows extended speeds. Every service level uses virtual lane 0.
    assert_eq!(ask(&config, 1, 1, 0x16, 1 << 16).unwrap()[64..68], [0xff, 0xff, 0, 0]);
    assert_eq!(ask(&config, 1, 1, 0x15, 1 << 31 | 1).unwrap()[4..6], [0, 0]);
    assert_eq!(ask(&config, 1, 1, 0x17, 0x101).unwrap()[4..6], [0, 0]);
}

#[test]
fn what_it_cannot_answer_gets_a_status() {
    let config = DeviceConfig::instant(1);
    let status =
        |class, method, attribute, modifier| ask(&config, class, method, attribute, modifier).map(|mad| [mad[4], mad[5]]);
    assert_eq!(status(1, 2, 0x15, 1), Some([0, 12]), "a port that waits for no manager");
    assert_eq!(status(1, 2, 0x16, 0), Some([0, 12]), "a port that waits for no manager");
    assert_eq!(status(1, 2, 0x10, 0), Some([0, 12]), "it cannot be set");
    assert_eq!(status(1, 3, 0x15, 1), Some([0, 8]));
    assert_eq!(status(1, 1, 0x19, 0), Some([0, 12]));
    assert_eq!(status(1, 1, 0x15, 2), Some([0, 28]));
    assert_eq!(status(1, 1, 0x16, 4), Some([0, 28]));
    assert_eq!(status(1, 1, 0x14, 1 << 16), Some([0, 28]), "the modifier of GUIDInfo is all block");
    assert_eq!(status(0x81, 1, 0x11, 0), Some([0x80, 0]), "back along the path");
    assert_eq!(status(1, 0x81, 0x15, 1), None, "an answer");
    assert_eq!(status(3, 1, 0x12, 1), None, "another class");
}

const NO_FRAMES: FrameTraffic = {
    let none = Traffic { packets: 0, octets: 0 };
    FrameTraffic { unicast: none, multicast: none, broadcast: none }
};

const STATS: EngineStats = EngineStats {
    sent: Traffic { packets: 10, octets: 4000 },
    sent_multicast: Traffic { packets: 1, octets: 400 },
    received: Traffic { packets: 20, octets: 1 << 40 },
    received_multicast: Traffic { packets: 2, octets: 0 },
    frames_sent: NO_FRAMES,
    frames_received: NO_FRAMES,
    frames_for_others: NO_FRAMES.unicast,
    notifications_sent: 0,
    notifications_received: 0,
    dropped: 0,
    malformed: 3,
    subnet_management_dropped: 1 << 20,
    retries: 0,
    sequence_errors: 0,
    receiver_not_ready: 0,
    duplicates: 0,
    pkey_violations: 5,
    qkey_violations: 1 << 16,
};

fn word_at(mad: &[u8; MAD], at: usize) -> u32 {
    u32::from_be_bytes(mad[at..at + 4].try_into().unwrap())
}

fn long_at(mad: &[u8; MAD], at: usize) -> u64 {
    u64::from_be_bytes(mad[at..at + 8].try_into().unwrap())
}

#[test]
fn counters_are_read_and_cleared_one_by_one() {
    let config = DeviceConfig::instant(1);
    let mut cleared = Cleared::default();
    let mut ask = |method, attribute, choice: u16| {
        let mut question = question(4, method, attribute, 0);
        question[64 + 1] = 1;
        question[64 + 2..64 + 4].copy_from_slice(&choice.to_be_bytes());
        ask_of(&config, &mut cleared, STATS, &question).unwrap()
    };
    // IBTA 16.1.3.5: data sent and received at 24 and 28, in words of 4 bytes; packets at 32 and 36. They stop at their end.
    let counters = ask(1, 0x12, 0);
    assert_eq!((counters[3], &counters[4..6]), (0x81, &[0, 0][..]));
    assert_eq!([24, 28, 32, 36].map(|at| word_at(&counters, 64 + at)), [1100, u32::MAX, 11, 22]);
    // 16.1.4.11: the same with 64 bits from 8 on, then packets to one port and to groups.
    let wide = |mad: &[u8; MAD]| [8, 16, 24, 32, 40, 48, 56, 64].map(|at| long_at(mad, 64 + at));
    assert_eq!(wide(&ask(1, 0x1d, 0)), [1100, 1 << 38, 11, 22, 10, 20, 1, 2]);
    // Bit 14 is the packets sent of the short ones, bit 7 the packets received for groups of the wide ones.
    assert_eq!(word_at(&ask(2, 0x12, 1 << 14), 64 + 32), 0);
    assert_eq!(wide(&ask(2, 0x1d, 1 << 7)), [1100, 1 << 38, 0, 22, 10, 20, 1, 0]);
}

#[test]
fn errors_are_counted_and_cleared_as_well() {
    let config = DeviceConfig::instant(1);
    let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
    for _ in 0..300 {
        port.set_cable(false, Instant::default());
        port.set_cable(true, Instant::default());
    }
    (0..7).for_each(|_| port.discard(&[]));
    let mut ask = |method, choice: u16| {
        let mut question = question(4, method, 0x12, 0);
        question[64 + 1] = 1;
        question[64 + 2..64 + 4].copy_from_slice(&choice.to_be_bytes());
        let answer = answer(agents(&mut port, &config, STATS, &mut cleared), &question, true).unwrap();
        // IBTA 16.1.3.5: LinkDowned at 7, PortRcvErrors at 8, PortXmitDiscards at 14, VL15Dropped at 22. They stop at their
        // end.
        (answer[64 + 7], [8, 14, 22].map(|at| u16::from_be_bytes([answer[64 + at], answer[64 + at + 1]])))
    };
    assert_eq!(ask(1, 0), (255, [3, 7, 0xffff]));
    // Bit 2 is LinkDowned, bit 3 PortRcvErrors.
    assert_eq!(ask(2, 1 << 2 | 1 << 3), (0, [0, 7, 0xffff]));
}

#[test]
fn violations_are_reported_in_port_info_until_a_manager_clears_them() {
    let config = DeviceConfig { managed: true, ..DeviceConfig::instant(1) };
    let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
    let mut ask = |question: &[u8; MAD]| {
        let answer = answer(agents(&mut port, &config, STATS, &mut cleared), question, true).unwrap();
        // IBTA 14.2.5.6: of the management key, partitions and queue keys.
        [44, 46, 48].map(|at| u16::from_be_bytes([answer[64 + at], answer[64 + at + 1]]))
    };
    assert_eq!(ask(&question(1, 1, 0x15, 1)), [0, 5, 0xffff]);
    let mut set = question(1, 2, 0x15, 1);
    set[64 + 17] = 9;
    set[64 + 44..64 + 50].copy_from_slice(&[0xff, 0xff, 0, 0, 0xff, 0xff]);
    assert_eq!(ask(&set), [0, 0, 0xffff], "0 clears, nothing else does");
}

/// Sets the management key, how it protects (IBTA 14.2.5.6: two bits at 34) and its lease in seconds (at 26).
fn set_key(key: u64, protection: u8, lease: u16) -> [u8; MAD] {
    let mut set = question(1, 2, 0x15, 1);
    set[64..64 + 8].copy_from_slice(&key.to_be_bytes());
    set[64 + 17] = 9;
    set[64 + 26..64 + 28].copy_from_slice(&lease.to_be_bytes());
    set[64 + 34] = protection << 6;
    set
}

/// The question from who has this management key (14.2.1: at 24).
fn with_key(mut question: [u8; MAD], key: u64) -> [u8; MAD] {
    question[24..32].copy_from_slice(&key.to_be_bytes());
    question
}

#[test]
fn the_management_key_protects_as_the_manager_wants() {
    let config = DeviceConfig { managed: true, ..DeviceConfig::instant(1) };
    let get = question(1, 1, 0x15, 1);
    for (protection, stranger_reads, shown) in [(0, true, 0x77), (1, true, 0), (2, false, 0), (3, false, 0)] {
        let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
        let mut ask = |question: &[u8; MAD], check| answer(agents(&mut port, &config, STATS, &mut cleared), question, check);
        assert!(ask(&set_key(0x77, protection, 0), true).is_some(), "the first that sets it");
        assert!(ask(&set_key(0, 0, 0), true).is_none(), "a stranger sets nothing");
        let read = ask(&get, true);
        assert_eq!(read.map(|mad| long_at(&mad, 64)), stranger_reads.then_some(shown), "protection {protection}");
        let mine = ask(&with_key(get, 0x77), true).unwrap();
        assert_eq!(long_at(&mine, 64), 0x77);
        assert_eq!(mine[64 + 34] >> 6, protection);
        let violations = u16::from_be_bytes([mine[64 + 44], mine[64 + 45]]);
        assert_eq!(violations, if stranger_reads { 1 } else { 2 });
        let host_reads = ask(&get, false).map(|mad| long_at(&mad, 64));
        assert_eq!(host_reads, Some(if protection == 0 { 0x77 } else { 0 }), "the host may read without");
        assert!(ask(&set_key(0, 0, 0), false).is_none(), "and set nothing");
        assert!(ask(&with_key(set_key(0, 0, 0), 0x77), true).is_some());
        assert!(ask(&get, true).is_some(), "no key, no protection");
    }
}

#[test]
fn a_dead_manager_loses_its_protection_but_not_its_key() {
    let config = DeviceConfig { managed: true, ..DeviceConfig::instant(1) };
    let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
    let mut at = |seconds: u64, question: &[u8; MAD]| {
        let now = Instant::from_nanos(seconds * 1_000_000_000);
        answer(Agents { now, ..agents(&mut port, &config, STATS, &mut cleared) }, question, true)
    };
    let get = question(1, 1, 0x15, 1);
    assert!(at(0, &set_key(0x77, 3, 10)).is_some());
    assert!(at(100, &get).is_none(), "the lease begins with a violation");
    assert!(at(109, &with_key(get, 0x77)).is_some(), "its owner is there");
    assert!(at(111, &get).is_none(), "so it begins anew");
    assert!(at(120, &get).is_none());
    assert_eq!(at(121, &get).map(|mad| (long_at(&mad, 64), mad[64 + 34] >> 6)), Some((0x77, 0)), "10 s later");
    assert!(at(122, &set_key(0, 0, 0)).is_none(), "not without the key");
}

#[test]
fn the_host_sees_that_the_lease_has_ended() {
    let config = DeviceConfig { managed: true, ..DeviceConfig::instant(1) };
    let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
    let mut at = |seconds: u64, question: &[u8; MAD], check| {
        let now = Instant::from_nanos(seconds * 1_000_000_000);
        answer(Agents { now, ..agents(&mut port, &config, STATS, &mut cleared) }, question, check)
    };
    let get = question(1, 1, 0x15, 1);
    assert!(at(0, &set_key(0x77, 3, 10), true).is_some());
    assert!(at(100, &get, true).is_none());
    let shown = [109, 110].map(|seconds| at(seconds, &get, false).map(|mad| (long_at(&mad, 64), mad[64 + 34] >> 6)));
    assert_eq!(shown, [Some((0, 3)), Some((0x77, 0))]);
}

#[test]
fn a_port_with_a_configured_key_is_protected_from_the_start() {
    let config = DeviceConfig { managed: true, m_key: 0x77, ..DeviceConfig::instant(1) };
    let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
    let mut ask =
        |port: &mut Port, question: &[u8; MAD], check| answer(agents(port, &config, STATS, &mut cleared), question, check);
    let get = question(1, 1, 0x15, 1);
    let mut pkeys = question(1, 2, 0x16, 0);
    pkeys[64..66].copy_from_slice(&0x8001_u16.to_be_bytes());
    for stranger in [set_key(0xbad, 3, 0), with_key(set_key(0xbad, 3, 0), 0xbad), pkeys] {
        for check in [true, false] {
            assert!(ask(&mut port, &stranger, check).is_none(), "neither from the wire nor from its own host");
        }
    }
    assert!(ask(&mut port, &get, true).is_none());
    assert_eq!((port.identity().lid(), port.identity().pkey(0)), (0, 0xffff));
    // A reset of the function does not open it.
    let mut port = port.restarted(&config);
    assert!(ask(&mut port, &set_key(0xbad, 3, 0), true).is_none());
    // Its manager has the key.
    assert!(ask(&mut port, &with_key(set_key(0x77, 2, 0), 0x77), true).is_some());
    assert_eq!(port.identity().lid(), 9);
    let unmanaged = DeviceConfig { managed: false, ..config.clone() };
    let mut port = Port::new(&unmanaged);
    assert!(answer(agents(&mut port, &unmanaged, STATS, &mut Cleared::default()), &get, true).is_some());
}

#[test]
fn a_locked_port_is_released_to_the_manager_of_its_start() {
    for (m_key, manager) in [(0, 0), (0x77, 0x77)] {
        let config = DeviceConfig { managed: true, m_key, ..DeviceConfig::instant(1) };
        let (mut port, mut cleared) = (Port::new(&config), Cleared::default());
        let mut ask =
            |port: &mut Port, question: &[u8; MAD]| answer(agents(port, &config, STATS, &mut cleared), question, true);
        // Somebody locks it, without end.
        assert!(ask(&mut port, &with_key(set_key(0xbad, 3, 0), manager)).is_some());
        let set = with_key(set_key(manager, 0, 0), manager);
        assert!(ask(&mut port, &set).is_none());
        let mut port = port.restarted(&config);
        assert!(ask(&mut port, &set).is_none(), "a reset does not help");
        port.release_management_key(&config);
        assert_eq!(ask(&mut port, &set_key(0, 0, 0)).is_some(), m_key == 0, "nor is it everybody's");
        assert!(ask(&mut port, &set).is_some());
    }
}

#[test]
fn a_performance_manager_reads_the_capabilities() {
    let config = DeviceConfig::instant(1);
    // ClassPortInfo: versions, IsExtendedWidthSupported (bit 9).
    assert_eq!(ask(&config, 4, 1, 0x01, 0).unwrap()[64..68], [1, 1, 2, 0]);
    let status = |method, attribute| ask(&config, 4, method, attribute, 0).map(|mad| [mad[4], mad[5]]);
    assert_eq!(status(1, 0x12), Some([0, 28]), "port 0");
    assert_eq!(status(1, 0x10), Some([0, 12]), "samples");
    assert_eq!(status(2, 0x01), Some([0, 8]));
}

#[test]
fn a_directed_route_ends_here_and_leads_back() {
    let config = DeviceConfig::instant(1);
    let from_wire = |question: &[u8; MAD]| {
        let (mut cleared, mut port) = (Cleared::default(), Port::new(&config));
        answer_from_wire(agents(&mut port, &config, STATS, &mut cleared), question)
    };
    // IBTA 14.2.1.2: hop pointer and hop count at 6 and 7, the return path at 192.
    let mut question = question(0x81, 1, 0x11, 0);
    question[6..8].copy_from_slice(&[1, 1]);
    let answer = from_wire(&question).unwrap();
    assert_eq!((&answer[4..8], answer[193]), (&[0x80, 0, 1, 1][..], 1));
    assert!(is_request(&question, true) && !is_request(&question, false));
    question[7] = 2;
    assert_eq!(from_wire(&question), None, "to a port behind this one");
    question[6..8].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(from_wire(&question), None, "longer than any route");
    assert_eq!(from_wire(&answer), None, "on its way back");
}

#[test]
fn what_no_agent_answers_is_for_the_host() {
    for (class, method, attribute, subnet) in [
        (1, 1, 0x20, true),
        (1, 0x81, 0x11, true),
        (1, 5, 0x11, true),
        (3, 1, 1, false),
        (4, 1, 0x12, true),
        (1, 1, 0x11, false),
    ] {
        assert!(!is_request(&question(class, method, attribute, 0), subnet), "{class} {method} {attribute}");
    }
    assert!(is_request(&question(4, 2, 0x12, 0), false) && is_request(&question(1, 2, 0x15, 0), true));
}

#[test]
fn a_subnet_manager_configures_the_port() {
    let config = DeviceConfig { managed: true, ..DeviceConfig::instant(9) };
    let mut port = Port::new(&config);
    assert_eq!((port.identity().lid(), port.is_up(), port.is_active()), (0, true, false));
    let set = |port: &mut Port, lid: u16, state: u8, reregister: u8| {
        let mut question = question(1, 2, 0x15, 1);
        // IBTA 14.2.5.6: prefix at 8, LID at 16, the manager's at 18, state in the low half of 32, the reregistration at 51.
        question[64 + 8..64 + 16].copy_from_slice(&0xfec0_0000_0000_0007_u64.to_be_bytes());
        question[64 + 16..64 + 18].copy_from_slice(&lid.to_be_bytes());
        question[64 + 18..64 + 20].copy_from_slice(&3_u16.to_be_bytes());
        question[64 + 32] = state;
        question[64 + 51] = reregister;
        let mut cleared = Cleared::default();
        let answer = answer(agents(port, &config, STATS, &mut cleared), &question, true).unwrap();
        (answer[5], answer[64 + 17], answer[64 + 19], answer[64 + 32] & 15)
    };
    assert_eq!(set(&mut port, 0x21, 4, 0).0, 28, "from Init to Active");
    assert_eq!(port.take_changes(), []);
    assert_eq!(set(&mut port, 0x21, 0, 0), (0, 0x21, 3, 2));
    assert_eq!(port.take_changes(), [PortChange::Lid, PortChange::Guid]);
    assert_eq!(set(&mut port, 0x21, 3, 0), (0, 0x21, 3, 3));
    assert_eq!((port.is_active(), port.take_changes()), (false, vec![]));
    assert_eq!(set(&mut port, 0x21, 4, 0x80), (0, 0x21, 3, 4));
    assert_eq!(port.take_changes(), [PortChange::Active, PortChange::ClientReregister]);
    assert_eq!(
        (port.identity().lid(), port.is_active(), port.identity().gid(0).unwrap()[..8].to_vec()),
        (0x21, true, vec![0xfe, 0xc0, 0, 0, 0, 0, 0, 7])
    );
    assert_eq!(set(&mut port, 0xc000, 0, 0).0, 28, "a group's LID");
    // The cable is pulled and put in: configured anew.
    port.set_cable(false, Instant::default());
    port.set_cable(true, Instant::default());
    assert_eq!(port.take_changes(), [PortChange::Down, PortChange::Initialized]);
    assert!(!port.is_active());
}

#[test]
fn a_subnet_manager_sets_the_partition_table() {
    let config = DeviceConfig { managed: true, ..DeviceConfig::instant(1) };
    let mut port = Port::new(&config);
    // The upper half of the modifier is a switch's port, and an adapter ignores it: `smpquery pkeys LID 1` sets it.
    let mut question = question(1, 2, 0x16, 1 << 16 | 1);
    question[64..68].copy_from_slice(&[0x80, 1, 0x7f, 0xff]);
    let mut cleared = Cleared::default();
    let answer = answer(agents(&mut port, &config, STATS, &mut cleared), &question, true).unwrap();
    assert_eq!((answer[5], &answer[64..68]), (0, &[0x80, 1, 0x7f, 0xff][..]));
    assert_eq!([0, 32, 33].map(|index| port.identity().pkey(index)), [0xffff, 0x8001, 0x7fff]);
    assert_eq!(port.take_changes(), [PortChange::Pkey]);
}
