//! What a subnet manager changes of a port while a program uses it: each change is an event, and what is queried then is new.

use std::time::Duration;

use bareverbs::platform::Clock;
use bareverbs::{Event, PortAttr, PortState};
use bareverbs_ib_spec::{PKEYS_PER_BLOCK, SubnetAttribute};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_tests::{Driver, Node, driver_config, instant, machine, verbs};

/// Bytes of a management datagram (IBTA 13.4.2), and of the headers before it in a packet without a global route.
const MAD: usize = 256;
const HEADERS: usize = 8 + 12 + 8;

/// Returns the packet of a SubnSet(attribute) with a directed route of one hop, as the other end of the cable sends it. The places are those of IBTA 5.2 (headers), 13.4.2 and 14.2.1.2 (datagram), not those of a table of this project.
fn subn_set(attribute: SubnetAttribute, modifier: u32, data: &[u8]) -> Vec<u8> {
    // Virtual lane 15, a BTH next, to the permissive LID; then the length in words of four bytes, with the ICRC.
    let words = (HEADERS + MAD + 4) as u16 / 4;
    let mut packet = vec![0xf0, 2, 0xff, 0xff];
    packet.extend(words.to_be_bytes());
    packet.extend(INFO.sm_lid.to_be_bytes());
    // UD SEND Only in the default partition, to queue pair 0, PSN 0; queue key 0, from queue pair 0.
    packet.extend([0x64, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend([0; 8]);
    // Version 1, class 0x81 (directed route) in version 1, Set; no status; hop pointer and hop count.
    let mut mad = vec![1, 0x81, 1, 2, 0, 0, 1, 1];
    mad.extend(7_u64.to_be_bytes());
    mad.extend((attribute as u16).to_be_bytes());
    mad.extend([0; 2]);
    mad.extend(modifier.to_be_bytes());
    // No management key; no part of the route is by LID.
    mad.extend([0; 8]);
    mad.extend([0xff; 4]);
    mad.resize(64, 0);
    mad.extend(data);
    mad.resize(MAD, 0);
    packet.extend(mad);
    let sum = icrc(&packet);
    packet.extend(sum);
    packet
}

/// The ICRC of a packet without a global route, bit by bit (IBTA 7.8.1).
fn icrc(packet: &[u8]) -> [u8; 4] {
    let mut bytes = packet.to_vec();
    // The virtual lane, and the byte behind the P_Key.
    bytes[0] |= 0xf0;
    bytes[8 + 4] = 0xff;
    let mut sum = u32::MAX;
    for bit in bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1))) {
        sum = if (sum ^ bit) & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    }
    (!sum).to_le_bytes()
}

/// What a subnet manager writes into PortInfo.
#[derive(Clone, Copy)]
struct PortInfo {
    gid_prefix: u64,
    lid: u16,
    sm_lid: u16,
    /// `PortState`: 0 leaves it, 1 Down, 3 Armed, 4 Active.
    state: u8,
    client_reregister: bool,
}

impl PortInfo {
    /// Its bytes by IBTA 14.2.5.6, table 146.
    fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[8..16].copy_from_slice(&self.gid_prefix.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.lid.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.sm_lid.to_be_bytes());
        bytes[32] = self.state;
        bytes[51] = u8::from(self.client_reregister) << 7;
        bytes
    }
}

/// A managed port, with the driver and the verbs above it.
struct Managed {
    node: Node,
}

impl Managed {
    /// Brings up a device whose port waits for its subnet manager: with virtual ports, or one that is asked by datagrams.
    fn new(ib_virt: bool) -> Self {
        let config = DeviceConfig { managed: true, ib_virt, ..instant(9) };
        let host = World::new(WorldConfig::default()).add(config).unwrap();
        let driver = Driver::bring_up(machine(&host), &driver_config(&host)).map_err(|(error, _)| error).unwrap();
        let mut managed = Self { node: Node { host, verbs: verbs(driver) } };
        managed.events();
        managed
    }

    /// Sends a Set over the cable and takes the port's answer, which must say that it is done.
    fn set(&self, attribute: SubnetAttribute, modifier: u32, data: &[u8]) {
        let packet = subn_set(attribute, modifier, data);
        let now = self.node.host.clock().now();
        let answer = self.node.host.with_device(|device| {
            device.receive(&packet);
            device.advance(now);
            device.transmit().expect("an answer")
        });
        // GetResp, and no status but the bit of the direction (IBTA 14.2.1.2).
        assert_eq!((answer[HEADERS + 3], &answer[HEADERS + 4..HEADERS + 6]), (0x81, &[0x80, 0][..]), "{attribute:?}");
    }

    fn set_info(&self, info: PortInfo) {
        self.set(SubnetAttribute::PortInfo, 1, &info.bytes());
    }

    /// Writes a block of the table of P_Keys, from its first entry on.
    fn set_pkeys(&self, block: u32, pkeys: &[u16]) {
        let bytes: Vec<u8> = pkeys.iter().flat_map(|pkey| pkey.to_be_bytes()).collect();
        self.set(SubnetAttribute::PKeyTable, block, &bytes);
    }

    /// Takes the events that are waiting.
    fn events(&mut self) -> Vec<Event> {
        self.node.host.world().advance(Duration::from_millis(1));
        std::iter::from_fn(|| self.node.verbs.poll_event().unwrap()).collect()
    }

    fn port(&mut self) -> PortAttr {
        self.node.verbs.query_port(1).unwrap()
    }

    fn pkeys(&mut self, indices: [u16; 4]) -> [u16; 4] {
        indices.map(|index| self.node.verbs.query_pkey(1, index).unwrap())
    }

    /// Takes the port to Active as a sweep does.
    fn activate(&mut self, info: PortInfo) {
        for state in [0, 3, 4] {
            self.set_info(PortInfo { state, ..info });
        }
    }
}

const INFO: PortInfo = PortInfo { gid_prefix: 0xfe80 << 48, lid: 0x21, sm_lid: 3, state: 0, client_reregister: false };

/// A sweep: LID and manager, then Armed, of which no event says anything, then Active.
// contract: events-port-managed
#[test]
fn a_sweep_gives_a_lid_and_then_the_port_is_active() {
    for ib_virt in [true, false] {
        let mut managed = Managed::new(ib_virt);
        assert_eq!(managed.port().state, PortState::Init);
        managed.set_info(INFO);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        let port = managed.port();
        assert_eq!((port.lid.get(), port.sm_lid.get(), port.state), (0x21, 3, PortState::Init), "{ib_virt}");
        managed.set_info(PortInfo { state: 3, ..INFO });
        assert_eq!((managed.events(), managed.port().state), (vec![], PortState::Armed), "{ib_virt}");
        managed.set_info(PortInfo { state: 4, ..INFO });
        assert_eq!((managed.events(), managed.port().is_usable()), (vec![Event::PortActive(1)], true), "{ib_virt}");
        // A sweep that finds everything as it was changes nothing.
        managed.set_info(INFO);
        assert_eq!((managed.events(), managed.port().is_usable()), (vec![], true), "{ib_virt}");
        managed.node.assert_no_findings();
    }
}

// contract: events-port-managed
#[test]
fn a_change_of_the_pkey_table_is_an_event_and_the_new_keys_are_queried() {
    for ib_virt in [true, false] {
        let mut managed = Managed::new(ib_virt);
        managed.activate(INFO);
        managed.events();
        let second = PKEYS_PER_BLOCK as u16;
        assert_eq!(managed.pkeys([0, 1, 2, second]), [0xffff, 0, 0, 0], "{ib_virt}");
        // Two partitions more, as a full member and as a limited one.
        managed.set_pkeys(0, &[0xffff, 0x8012, 0x0034]);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        assert_eq!(managed.pkeys([0, 1, 2, second]), [0xffff, 0x8012, 0x0034, 0], "{ib_virt}");
        managed.set_pkeys(1, &[0x8056]);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        assert_eq!(managed.pkeys([0, 1, 2, second]), [0xffff, 0x8012, 0x0034, 0x8056], "{ib_virt}");
        // Out of one of them.
        managed.set_pkeys(0, &[0xffff, 0, 0x0034]);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        assert_eq!(managed.pkeys([0, 1, 2, second]), [0xffff, 0, 0x0034, 0x8056], "{ib_virt}");
        assert!(managed.port().is_usable(), "{ib_virt}");
        managed.node.assert_no_findings();
    }
}

/// Another manager takes over, and gives other LIDs and another prefix, each with an event of its own.
// contract: events-port-managed
#[test]
fn another_manager_another_lid_and_another_prefix_are_events() {
    for ib_virt in [true, false] {
        let mut managed = Managed::new(ib_virt);
        managed.activate(INFO);
        managed.events();
        let mut info = PortInfo { sm_lid: 5, ..INFO };
        managed.set_info(info);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        let port = managed.port();
        assert_eq!((port.lid.get(), port.sm_lid.get(), port.state), (0x21, 5, PortState::Active), "{ib_virt}");

        info.lid = 0x22;
        managed.set_info(info);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        let port = managed.port();
        assert_eq!((port.lid.get(), port.sm_lid.get(), port.is_usable()), (0x22, 5, true), "{ib_virt}");

        info.gid_prefix = 0xfec0_0000_0000_0007;
        managed.set_info(info);
        assert_eq!(managed.events(), [Event::PortChanged(1)], "{ib_virt}");
        let gid = managed.node.verbs.query_gid(1, 0).unwrap();
        assert_eq!((&gid.0[..8], managed.port().lid.get()), (&info.gid_prefix.to_be_bytes()[..], 0x22), "{ib_virt}");

        // A manager that has lost its records wants them again (ClientReregister): nothing that is queried has changed.
        managed.set_info(PortInfo { client_reregister: true, ..info });
        assert_eq!((managed.events(), managed.port()), (vec![Event::PortChanged(1)], port), "{ib_virt}");
        managed.node.assert_no_findings();
    }
}

// contract: events-port-managed
#[test]
fn a_manager_takes_the_port_down_and_up_again() {
    for ib_virt in [true, false] {
        let mut managed = Managed::new(ib_virt);
        managed.activate(INFO);
        managed.events();
        managed.set_info(PortInfo { state: 1, ..INFO });
        assert_eq!(managed.events(), [Event::PortDown(1)], "{ib_virt}");
        assert_eq!(managed.port().state, PortState::Init, "{ib_virt}: the link trains again, and waits for the manager");
        managed.activate(INFO);
        assert_eq!((managed.events(), managed.port().is_usable()), (vec![Event::PortActive(1)], true), "{ib_virt}");
        managed.node.assert_no_findings();
    }
}
