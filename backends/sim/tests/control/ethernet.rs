//! A device with an Ethernet port: capabilities, context of the port, registers, addresses of RoCE. The offsets are those of
//! `mlx5_ifc.h`.

use bareverbs_sim::{DeviceConfig, LinkSpeed, LinkWidth, PortKind};

use crate::host::*;

const BAD_OP: u8 = 2;
const BAD_PARAM: u8 = 3;
const BAD_INPUT_LEN: u8 = 0x50;
/// Commands of an Ethernet port: opcode, length of the input, room for the output.
const COMMANDS: [(u16, usize, usize); 5] =
    [(0x750, 16, 16), (0x754, 16, 272), (0x755, 512, 16), (0x760, 16, 48), (0x761, 48, 16)];
/// Events of a change of the port.
const PORT_CHANGE: u64 = 1 << 9;

fn ethernet() -> DeviceConfig {
    plain().with_ethernet()
}

fn capabilities(host: &mut Host, page: u32) -> Vec<u8> {
    host.ok(&input(0x100, 16, &[(4, page << 1)]), 4112)[16..].to_vec()
}

/// Reads or writes a register with these dwords.
fn register(host: &mut Host, id: u32, write: bool, dwords: &[(usize, u32)]) -> (u8, Vec<u8>) {
    let mut bytes = input(0x805, 16 + 64, &[(4, u32::from(!write)), (8, id)]);
    for (at, value) in dwords {
        bytes[16 + at..16 + at + 4].copy_from_slice(&value.to_be_bytes());
    }
    let (status, output) = host.command(&bytes, 16 + 64);
    (status, output[16..].to_vec())
}

/// PAOS with `ase`: 1 up, 2 down.
fn set_admin(host: &mut Host, status: u32) {
    assert_eq!(register(host, 0x5006, true, &[(0, 1 << 16 | status << 8), (4, 1 << 31)]).0, 0);
}

fn context(host: &mut Host, list: u32) -> Vec<u8> {
    host.ok(&input(0x754, 16, &[(12, list << 24)]), 16 + 256 + 8 * 8)[16..].to_vec()
}

/// MODIFY_NIC_VPORT_CONTEXT of the fields in `select`, with a list behind the context.
fn modify(host: &mut Host, select: u32, dwords: &[(usize, u32)], list: &[u64]) -> u8 {
    let mut bytes = input(0x755, 512, &[(12, select)]);
    for (at, value) in dwords {
        bytes[256 + at..256 + at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes.extend(list.iter().flat_map(|entry| entry.to_be_bytes()));
    host.command(&bytes, 16).0
}

#[test]
fn the_capabilities_say_what_the_port_is() {
    for (config, is_ethernet) in [(plain(), 0), (ethernet(), 1)] {
        let mut host = Host::running(config);
        let general = capabilities(&mut host, 0);
        // port_type, num_ports, ib_virt, vport_group_manager, eswitch_manager; roce; sizes of the lists.
        assert_eq!(be32(&general, 52) >> 8 & 3, is_ethernet);
        assert_eq!(be32(&general, 52) & 0xff, 1);
        assert_eq!(be32(&general, 52) >> 29 & 1, 1 - is_ethernet, "no virtual ports of InfiniBand");
        assert_eq!((be32(&general, 52) >> 31, be32(&general, 52) >> 24 & 1), (0, 0));
        assert_eq!(be32(&general, 64) >> 2 & 1, is_ethernet);
        assert_eq!(be32(&general, 124) & 0x1f1f1f, if is_ethernet == 1 { 0x070707 } else { 0 });
        assert_eq!(be32(&general, 68) >> 3 & 1, 1, "xrc");
        // l3_type IPv4 and IPv6, roce_version 2, ports, entries of the table.
        let roce = capabilities(&mut host, 4);
        let expected = if is_ethernet == 1 { [6 << 16 | 4, 4791, 0xffff_c000, 128] } else { [0; 4] };
        assert_eq!([16, 20, 24, 28].map(|at| be32(&roce, at)), expected);
    }
}

#[test]
fn each_kind_of_port_refuses_the_commands_of_the_other() {
    let (mut subnet, mut ethernet) = (Host::running(plain()), Host::running(ethernet()));
    for (opcode, len, room) in COMMANDS {
        assert_eq!(subnet.command(&input(opcode, len, &[]), room).0, BAD_OP, "{opcode:#x}");
        assert_eq!(ethernet.command(&input(opcode, len, &[]), room).0, 0, "{opcode:#x}");
    }
    for (opcode, len, room) in [(0x762, 16, 528), (0x763, 528, 16), (0x764, 16, 32), (0x50d, 272, 272)] {
        assert_eq!(ethernet.command(&input(opcode, len, &[]), room).0, BAD_OP, "{opcode:#x}");
    }
    // PCAP, PVLC of a subnet; PFCC of Ethernet.
    let status = |host: &mut Host, id| register(host, id, false, &[(0, 1 << 16)]).0;
    assert_eq!([0x5001, 0x500f, 0x5007].map(|id| status(&mut subnet, id)), [0, 0, BAD_PARAM]);
    assert_eq!([0x5001, 0x500f, 0x5007].map(|id| status(&mut ethernet, id)), [BAD_PARAM, BAD_PARAM, 0]);
    // The only P_Key.
    let pkey = ethernet.ok(&input(0x765, 16, &[]), 20);
    assert_eq!(be32(&pkey, 16), 0xffff);
    // Another function's port.
    for (opcode, len, room) in &COMMANDS[..3] {
        for who in [1 << 31, 1] {
            assert_eq!(ethernet.command(&input(*opcode, *len, &[(8, who)]), *room).0, BAD_PARAM, "{opcode:#x}");
        }
    }
}

#[test]
fn the_context_has_address_and_identity() {
    let mac = [2, 3, 4, 5, 6, 0xfe];
    let config = DeviceConfig { port: PortKind::Ethernet { mac }, node_guid: 0x0102_0304_0506_0708, ..ethernet() };
    let (mut host, mut other) = (Host::running(config), Host::running(ethernet()));
    for (host, mac) in [(&mut host, mac), (&mut other, [0, 2, 0xc9, 0, 7, 0])] {
        let context = context(host, 0);
        assert_eq!((&context[0xf4..0xf6], &context[0xf6..0xfc]), (&[0, 0][..], &mac[..]));
        assert_eq!((be16(&context, 38), be32(&context, 0), be32(&context, 240)), (1522, 0, 0));
    }
    assert_eq!(context(&mut host, 0)[0x38..0x40], 0x0102_0304_0506_0708_u64.to_be_bytes());
}

#[test]
fn the_driver_sets_what_it_selects_and_nothing_else() {
    let mut host = Host::running(ethernet());
    // roce_en bit 1, addresses bit 2, promisc bit 4, mtu bit 6.
    assert_eq!(modify(&mut host, 1 << 6, &[(36, 9022), (0, 1), (240, 7 << 29)], &[]), 0);
    let read = context(&mut host, 0);
    assert_eq!((be16(&read, 38), be32(&read, 0), be32(&read, 240)), (9022, 0, 0));
    assert_eq!(modify(&mut host, 1 << 4 | 1 << 1, &[(0, 1), (240, 5 << 29)], &[]), 0);
    let read = context(&mut host, 0);
    assert_eq!((be16(&read, 38), be32(&read, 0) & 1, be32(&read, 240) >> 29), (9022, 1, 5));
    // Three lists of their own.
    let lists: [&[u64]; 3] = [&[0x0002_c900_0007, 0x0200_0000_0001], &[0x3333_0000_0001], &[0, 5, 4094]];
    for (kind, list) in lists.iter().enumerate() {
        let which = (kind as u32) << 24 | list.len() as u32;
        assert_eq!(modify(&mut host, 1 << 2, &[(240, which)], list), 0);
    }
    for (kind, list) in lists.iter().enumerate() {
        let read = context(&mut host, kind as u32);
        assert_eq!(be32(&read, 240) & 0x0700_0fff, (kind as u32) << 24 | list.len() as u32);
        assert_eq!(be32(&read, 240) >> 29, 5, "still promiscuous");
        let entries: Vec<u64> = (0..list.len())
            .map(|at| u64::from(be32(&read, 256 + at * 8)) << 32 | u64::from(be32(&read, 260 + at * 8)))
            .collect();
        assert_eq!(entries, *list);
    }
    // An empty list, and what is no list.
    assert_eq!(modify(&mut host, 1 << 2, &[(240, 1 << 24)], &[]), 0);
    assert_eq!(be32(&context(&mut host, 1), 240) & 0xfff, 0);
    assert_eq!(modify(&mut host, 1 << 2, &[(240, 3 << 24)], &[]), BAD_PARAM);
    assert_eq!(modify(&mut host, 1 << 2, &[(240, 129)], &[0; 129]), BAD_PARAM);
    assert_eq!(modify(&mut host, 1 << 2, &[(240, 2)], &[0]), BAD_INPUT_LEN);
    assert_eq!(be32(&context(&mut host, 0), 240) & 0xfff, 2, "refused, nothing changed");
    assert_eq!(host.command(&input(0x754, 16, &[(12, 3 << 24)]), 272).0, BAD_PARAM);
    // GUIDs, permanent address and affiliation are not its own.
    for bit in [3, 8, 9, 13] {
        assert_eq!(modify(&mut host, 1 << bit, &[], &[]), BAD_PARAM, "bit {bit}");
    }
    // TEARDOWN_HCA and INIT_HCA.
    host.ok(&input(0x103, 16, &[]), 16);
    host.ok(&input(0x102, 32, &[]), 16);
    let read = context(&mut host, 0);
    assert_eq!((be16(&read, 38), be32(&read, 0), be32(&read, 240)), (1522, 0, 0));
}

#[test]
fn the_link_follows_the_driver_and_the_cable() {
    let mut host = Host::running(ethernet());
    let uar = host.uar();
    let eq = host.eq(uar, 0x10_0000, 4, PORT_CHANGE, 0);
    host.arm_eq(uar, eq, 0);
    // Administrative state, state.
    let state = |host: &mut Host| host.ok(&input(0x750, 16, &[]), 16)[15];
    // Speed in use: of the older mask and of the extended one.
    let speed = |host: &mut Host| {
        let ptys = register(host, 0x5004, false, &[(0, 1 << 16 | 4)]).1;
        (be32(&ptys, 36), be32(&ptys, 32), ptys[3])
    };
    let event = |host: &Host, index: usize| {
        let entry = host.bytes(0x10_0000 + index * 64, 64);
        (entry[1], entry[3], entry[63] & 1)
    };
    assert_eq!((state(&mut host), speed(&mut host)), (0x11, (0, 1 << 12, 4)));
    set_admin(&mut host, 2);
    assert_eq!((state(&mut host), speed(&mut host), event(&host, 0)), (0, (0, 0, 4), (9, 1, 0)));
    host.device.set_link(false);
    set_admin(&mut host, 1);
    assert_eq!(state(&mut host), 0x10, "no cable");
    host.device.set_link(true);
    assert_eq!((state(&mut host), speed(&mut host), event(&host, 1)), (0x11, (0, 1 << 12, 4), (9, 4, 0)));
    assert_eq!(event(&host, 2).2, 1, "no more events: nobody waits for a subnet manager");
}

#[test]
fn the_speed_is_that_of_the_cable() {
    for (width, speed, legacy, extended) in [
        (LinkWidth::X1, LinkSpeed::Qdr, 13, None),
        (LinkWidth::X1, LinkSpeed::Edr, 28, None),
        (LinkWidth::X4, LinkSpeed::Qdr, 6, None),
        (LinkWidth::X2, LinkSpeed::Edr, 31, None),
        (LinkWidth::X4, LinkSpeed::Edr, 20, None),
        (LinkWidth::X4, LinkSpeed::Hdr, 0, Some(12)),
        (LinkWidth::X4, LinkSpeed::Ndr, 0, Some(15)),
    ] {
        let mut host = Host::running(DeviceConfig { link_width: width, link_speed: speed, ..ethernet() });
        let ptys = register(&mut host, 0x5004, false, &[(0, 1 << 16 | 4)]).1;
        let expected = (if extended.is_some() { 0 } else { 1 << legacy }, extended.map_or(0, |bit| 1 << bit));
        assert_eq!((be32(&ptys, 12), be32(&ptys, 8)), expected, "capability");
        assert_eq!((be32(&ptys, 36), be32(&ptys, 32)), expected, "in use");
        assert_eq!(be32(&ptys, 4) >> 28, 1, "negotiated");
    }
}

#[test]
fn any_mtu_up_to_the_maximum() {
    let mut host = Host::running(ethernet());
    let read = |host: &mut Host| {
        let pmtu = register(host, 0x5003, false, &[(0, 1 << 16)]).1;
        [4, 8, 12].map(|at| be16(&pmtu, at))
    };
    assert_eq!(read(&mut host), [10_000, 1522, 1522]);
    for mtu in [90, 1522, 4222, 9022, 10_000] {
        assert_eq!(register(&mut host, 0x5003, true, &[(0, 1 << 16), (8, mtu << 16)]).0, 0);
        assert_eq!(read(&mut host), [10_000, mtu as u16, mtu as u16]);
    }
    for mtu in [0, 89, 10_001, 0xffff] {
        assert_eq!(register(&mut host, 0x5003, true, &[(0, 1 << 16), (8, mtu << 16)]).0, BAD_PARAM);
    }
    assert_eq!(read(&mut host), [10_000, 10_000, 10_000]);
}

/// Status of INIT2RTR_QP of a queue pair with a path MTU of this code.
fn connects(host: &mut Host, mtu: u32) -> u8 {
    let uar = host.uar();
    let number = |output: &[u8]| be32(output, 8) & 0xff_ffff;
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let eq = host.eq(uar, 0x10_0000, 4, 0, 0);
    let mut cq =
        input(0x400, 272, &[(16 + 12, 4 << 24 | uar), (16 + 20, eq), (16 + 56, (BASE >> 32) as u32), (16 + 60, 0x12_1000)]);
    cq.extend((BASE + 0x12_0000).to_be_bytes());
    let cqn = number(&host.ok(&cq, 16));
    // RC with a send queue alone.
    let context = [(24 + 4, pd), (24 + 8, 4 << 11), (24 + 12, uar), (24 + 124, cqn), (24 + 156, cqn), (24 + 172, 3 << 24)];
    let mut qp = input(0x500, 272, &context);
    qp[24 + 160..24 + 168].copy_from_slice(&(BASE + 0x13_1000).to_be_bytes());
    qp.extend((BASE + 0x13_0000).to_be_bytes());
    let qpn = number(&host.ok(&qp, 16));
    host.ok(&input(0x502, 272, &[(8, qpn)]), 16);
    let path = 24 + 24;
    host.command(&input(0x503, 272, &[(8, qpn), (24 + 8, mtu << 29 | 30 << 24), (path + 4, 2)]), 16).0
}

/// An InfiniBand port holds a connection to the MTU that it has now. An Ethernet port holds it to the greatest that it can have: RoCE
/// takes no notice of the MTU of the network interface, and loses packets that are longer (see `a_frame_longer_than_the_mtu…`).
#[test]
fn the_path_mtu_of_a_connection_is_held_against_that_of_the_port() {
    let mut subnet = Host::running(plain());
    for (mtu, most) in [(4096, 5), (2048, 4), (256, 1), (1024, 3)] {
        assert_eq!(register(&mut subnet, 0x5003, true, &[(0, 1 << 16), (8, mtu << 16)]).0, 0);
        for path in 1..=5 {
            assert_eq!(connects(&mut subnet, path) == 0, path <= most, "MTU {mtu}, path MTU {path}");
        }
    }
    for (hardware, most) in [(10_000, 5), (4096 + 118, 5), (4096 + 117, 4), (1522, 3), (90, 1)] {
        let mut host = Host::running(DeviceConfig { mtu: hardware, ..ethernet() });
        modify(&mut host, 1 << 1, &[(0, 1)], &[]);
        set_address(&mut host, 0, &[(8, 0xffff), (12, 0x0a00_0001), (16, 0x0200), (20, 0x1234_5678), (24, 2)]);
        // The first MTU, and the smallest.
        for mtu in [hardware.min(1522), 90] {
            assert_eq!(register(&mut host, 0x5003, true, &[(0, 1 << 16), (8, u32::from(mtu) << 16)]).0, 0);
            for path in 1..=5 {
                assert_eq!(connects(&mut host, path) == 0, path <= most, "hardware {hardware}, MTU {mtu}, path MTU {path}");
            }
        }
    }
}

/// SET_ROCE_ADDRESS: dwords of `roce_addr_layout`.
fn set_address(host: &mut Host, index: u32, dwords: &[(usize, u32)]) -> u8 {
    let mut bytes = input(0x761, 48, &[(8, index << 16)]);
    for (at, value) in dwords {
        bytes[16 + at..16 + at + 4].copy_from_slice(&value.to_be_bytes());
    }
    host.command(&bytes, 16).0
}

/// QUERY_ROCE_ADDRESS: the dwords behind the status.
fn address(host: &mut Host, index: u32) -> (u8, [u32; 8]) {
    let (status, output) = host.command(&input(0x760, 16, &[(8, index << 16)]), 48);
    (status, core::array::from_fn(|dword| be32(&output, 16 + 4 * dword)))
}

#[test]
fn an_address_of_roce_is_read_as_it_was_set() {
    let mut host = Host::running(ethernet());
    let ipv4 = [(8, 0xffff), (12, 0x0a00_0001), (16, 0x0200), (20, 0x1234_5678), (24, 2)];
    let ipv6 = [(0, 0xfe80_0000), (12, 0x0102_0304), (16, 1 << 28 | 5 << 16 | 0x0201), (20, 0x9abc_def0), (24, 1 << 8 | 2)];
    assert_eq!((set_address(&mut host, 3, &ipv4), set_address(&mut host, 127, &ipv6)), (0, 0));
    assert_eq!(address(&mut host, 3), (0, [0, 0, 0xffff, 0x0a00_0001, 0x0200, 0x1234_5678, 2, 0]));
    assert_eq!(address(&mut host, 127), (0, [0xfe80_0000, 0, 0, 0x0102_0304, 0x1005_0201, 0x9abc_def0, 0x102, 0]));
    assert_eq!(address(&mut host, 4), (0, [0; 8]), "never set");
    assert_eq!(set_address(&mut host, 3, &[]), 0);
    assert_eq!(address(&mut host, 3), (0, [0; 8]), "emptied");
    assert_eq!(address(&mut host, 128).0, BAD_PARAM);
}

#[test]
fn addresses_of_roce_are_of_a_known_kind_and_place() {
    let mut host = Host::running(ethernet());
    let ipv4 = [(8, 0xffff), (12, 0x0a00_0001), (16, 0x0200), (20, 1), (24, 2)];
    let ipv6 = [(0, 0xfe80_0000), (12, 1), (16, 1 << 28 | 5 << 16 | 0x0200), (20, 1), (24, 1 << 8 | 2)];
    for index in [0, 1, 127] {
        assert_eq!((set_address(&mut host, index, &ipv4), set_address(&mut host, index, &ipv6)), (0, 0));
        assert_eq!(set_address(&mut host, index, &[]), 0, "emptied");
    }
    assert_eq!(set_address(&mut host, 128, &ipv4), BAD_PARAM);
    assert_eq!(set_address(&mut host, 0, &[(12, 1), (24, 2 << 8 | 2)]), BAD_PARAM, "neither IPv4 nor IPv6");
    assert_eq!(set_address(&mut host, 0, &[(12, 1), (24, 0)]), BAD_PARAM, "RoCE version 1");
}
