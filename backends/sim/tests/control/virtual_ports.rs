//! A function with virtual ports (`ib_virt`), whose port is queried by commands of its own, and one without, by MAD_IFC alone.

use bareverbs_sim::DeviceConfig;

use crate::host::*;

/// Status of a command that the device does not have.
const BAD_OP: u8 = 2;
/// Commands about virtual ports: opcode, length of the input, room for the output.
const COMMANDS: [(u16, usize, usize); 3] = [(0x763, 528, 16), (0x764, 16, 32), (0x765, 16, 20)];

fn without() -> Host {
    Host::running(DeviceConfig { ib_virt: false, ..plain() })
}

/// Get of an attribute with this modifier, as Linux asks its own port (`mlx5_MAD_IFC`); status of the datagram, attribute.
fn get(host: &mut Host, attribute: u8, modifier: u8) -> (u16, Vec<u8>) {
    let mut bytes = input(0x50d, 272, &[(4, 3), (8, 1)]);
    bytes[16..20].copy_from_slice(&[1, 1, 1, 1]);
    (bytes[16 + 17], bytes[16 + 23]) = (attribute, modifier);
    let answer = host.ok(&bytes, 272);
    assert_eq!((&answer[16..20], &answer[32..40]), (&[1, 1, 1, 0x81][..], &bytes[32..40]));
    (be16(&answer, 16 + 4), answer[16 + 64..][..64].to_vec())
}

#[test]
fn the_capability_tells_which() {
    for (mut host, expected) in [(Host::running(plain()), 1), (without(), 0)] {
        let capabilities = host.ok(&input(0x100, 16, &[(4, 1)]), 4112);
        assert_eq!(be32(&capabilities, 16 + 52) >> 29 & 1, expected);
        // Linux sends this one to every InfiniBand port (`mlx5_port_immutable`).
        let context = host.ok(&input(0x762, 16, &[]), 528);
        assert_eq!(context[16..].iter().any(|byte| *byte != 0), expected == 1);
        for (opcode, len, room) in COMMANDS {
            let status = host.command(&input(opcode, len, &[]), room).0;
            assert_eq!(status, if expected == 1 { 0 } else { BAD_OP }, "{opcode:#x}");
        }
    }
}

#[test]
fn the_agent_says_of_the_port_what_the_commands_say() {
    let (mut with, mut without) = (Host::running(plain()), without());
    let context = with.ok(&input(0x762, 16, &[]), 528);
    let context = &context[16..];
    let (status, info) = get(&mut without, 0x15, 1);
    // The state of link and port, the LID, that of the subnet manager.
    assert_eq!((status, info[33] >> 4, info[32] & 0xf), (0, context[34] >> 4, context[35] & 0xf));
    assert_eq!((be16(&info, 16), be16(&info, 18)), (be16(context, 0x60), be16(context, 0x64)));
    assert_eq!((be16(&info, 16), be16(&info, 18)), (7, 1));
    let (status, node) = get(&mut without, 0x11, 0);
    assert_eq!(status, 0);
    // System, node and port.
    assert_eq!(
        (&node[4..12], &node[12..20], &node[20..28]),
        (&context[0x28..0x30], &context[0x38..0x40], &context[0x30..0x38])
    );
    let gid = with.ok(&input(0x764, 16, &[]), 32);
    let (status, guids) = get(&mut without, 0x14, 0);
    assert_eq!((status, &gid[16..24], &gid[24..32]), (0, &info[8..16], &guids[..8]));
    let pkey = with.ok(&input(0x765, 16, &[]), 20);
    let (status, pkeys) = get(&mut without, 0x16, 0);
    assert_eq!((status, be32(&pkey, 16), be16(&pkeys, 0)), (0, 0xffff, 0xffff));
    // Status 7 of the modifier: blocks of 32 P_Keys and of 8 GUIDs that there are not.
    assert_eq!((get(&mut without, 0x16, 4).0, get(&mut without, 0x14, 1).0), (7 << 2, 7 << 2));
}

/// Linux sets `IsCommunicationManagementSupported` so (`mlx5_set_port_caps`).
#[test]
fn pcap_sets_capabilities_that_a_driver_may_choose() {
    let mut host = without();
    let before = be32(&get(&mut host, 0x15, 1).1, 20);
    let mut write = input(0x805, 36, &[(8, 0x5001), (20, 0xffff_ffff)]);
    write[17] = 1;
    let answer = host.ok(&write, 36);
    let after = be32(&get(&mut host, 0x15, 1).1, 20);
    assert_eq!((before & 0x0001_0000, after & 0x0001_0000, be32(&answer, 20)), (0, 0x0001_0000, after));
    assert_ne!(after, u32::MAX, "not all are the driver's to choose");
    write[17] = 2;
    assert_eq!(host.command(&write, 36).0, 3, "no port 2");
}
