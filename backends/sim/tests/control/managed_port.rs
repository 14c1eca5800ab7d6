//! A port that a subnet manager configures: what its own host cannot change, whatever it asks the firmware for.

use std::time::Duration;

use bareverbs_sim::DeviceConfig;
use bareverbs_sim::wire::{Destination, PerfectWire, PortId, Wire as _};

use crate::host::*;

const KEY: u64 = 0x1234_5678_9abc_def0;
/// Status of a datagram with a field that has no valid value (IBTA table 115).
const INVALID_FIELD: u16 = 7 << 2;
/// Status of a command whose datagram got no answer.
const DISCARDED: u8 = 0x30;

fn managed(lid: u16) -> Host {
    Host::running(DeviceConfig { managed: true, lid, ..plain() })
}

/// Who sends a datagram through MAD_IFC: one who has this key of the manager, or the driver, whose datagrams need none (bit 0
/// of the modifier, Linux `MLX5_MAD_IFC_IGNORE_MKEY`).
#[derive(Clone, Copy)]
enum Sender {
    WithKey(u64),
    IgnoringKey,
}

/// MAD_IFC for the port's agent: Get (1) or Set (2) of an attribute with this modifier; status of the command, datagram.
fn ask(host: &mut Host, sender: Sender, method: u8, attribute: u8, modifier: u8, data: &[u8]) -> (u8, Vec<u8>) {
    let (op_mod, key) = match sender {
        Sender::WithKey(key) => (0, key),
        Sender::IgnoringKey => (1, 0),
    };
    let mut bytes = input(0x50d, 272, &[(4, op_mod), (8, 1)]);
    let mad = &mut bytes[16..];
    mad[..4].copy_from_slice(&[1, 1, 1, method]);
    (mad[17], mad[23]) = (attribute, modifier);
    mad[24..32].copy_from_slice(&key.to_be_bytes());
    mad[64..64 + data.len()].copy_from_slice(data);
    let (status, output) = host.command(&bytes, 272);
    (status, output[16..].to_vec())
}

/// Set(PortInfo) with a LID and a key that protects from reading; status of command and datagram.
fn set_lid(host: &mut Host, sender: Sender, lid: u16, new_key: u64) -> (u8, u16) {
    let mut info = [0; 64];
    info[..8].copy_from_slice(&new_key.to_be_bytes());
    info[8..16].copy_from_slice(&(0xfe80_u64 << 48).to_be_bytes());
    info[16..18].copy_from_slice(&lid.to_be_bytes());
    info[34] = 3 << 6;
    let (status, mad) = ask(host, sender, 2, 0x15, 1, &info);
    (status, be16(&mad, 4))
}

/// Set(P_KeyTable) of the first block; status of the command.
fn set_pkey(host: &mut Host, sender: Sender, pkey: u16) -> u8 {
    ask(host, sender, 2, 0x16, 0, &pkey.to_be_bytes()).0
}

fn first_pkey(host: &mut Host) -> u32 {
    be32(&host.ok(&input(0x765, 16, &[]), 20), 16)
}

#[test]
fn only_the_key_of_the_manager_opens_a_port_to_its_own_host() {
    let mut host = managed(7);
    assert_eq!(set_lid(&mut host, Sender::WithKey(0), 9, KEY), (0, 0), "no key yet, so anyone may be the manager");
    for sender in [Sender::IgnoringKey, Sender::WithKey(0), Sender::WithKey(KEY + 1)] {
        assert_eq!(set_lid(&mut host, sender, 3, 0).0, DISCARDED);
        assert_eq!(set_pkey(&mut host, sender, 0x8001), DISCARDED);
    }
    assert_eq!((host.device.lid(), first_pkey(&mut host)), (9, 0xffff));
    // The driver reads without the key, and does not learn it.
    let read = |host: &mut Host, sender| {
        let (status, mad) = ask(host, sender, 1, 0x15, 1, &[]);
        (status, be16(&mad, 64 + 16), u64::from_be_bytes(mad[64..72].try_into().unwrap()))
    };
    assert_eq!(read(&mut host, Sender::WithKey(0)).0, DISCARDED);
    assert_eq!(read(&mut host, Sender::IgnoringKey), (0, 9, 0));
    assert_eq!(read(&mut host, Sender::WithKey(KEY)), (0, 9, KEY));
    // A manager on this host.
    assert_eq!(set_lid(&mut host, Sender::WithKey(KEY), 3, KEY), (0, 0));
    assert_eq!(set_pkey(&mut host, Sender::WithKey(KEY), 0x8001), 0);
    assert_eq!((host.device.lid(), first_pkey(&mut host)), (3, 0x8001));
}

#[test]
fn a_guest_does_not_take_the_lid_of_another() {
    let (mut thief, mut victim) = (managed(1), managed(2));
    let mut wire = PerfectWire::new(Duration::ZERO);
    wire.attach(thief.device.identity());
    wire.attach(victim.device.identity());
    // Without a key every host manages its own port.
    let none = Sender::WithKey(0);
    assert_eq!((set_lid(&mut thief, none, 1, 0), set_lid(&mut victim, none, 2, 0)), ((0, 0), (0, 0)));
    let to_victim = |wire: &PerfectWire| wire.destination(PortId(1), &[0, 0, 0, 2, 0]);
    for sender in [none, Sender::IgnoringKey] {
        assert_eq!(set_lid(&mut thief, sender, 2, 0), (0, INVALID_FIELD));
        assert_eq!(to_victim(&wire), Destination::Port(PortId(1)));
        assert_eq!((thief.device.lid(), victim.device.lid()), (1, 2));
    }
    assert_eq!(thief.device.take_unsupported(), ["LID 0x2 at two ports is not supported"]);
    // Nor while the victim's function is down.
    victim.device.reset();
    assert_eq!(set_lid(&mut thief, none, 2, 0), (0, INVALID_FIELD));
    assert_eq!(to_victim(&wire), Destination::Port(PortId(1)));
}

#[test]
fn what_a_manager_set_survives_the_reset_of_the_function() {
    let mut host = managed(7);
    assert_eq!(set_lid(&mut host, Sender::WithKey(0), 9, KEY), (0, 0));
    assert_eq!(set_pkey(&mut host, Sender::WithKey(KEY), 0x8001), 0);
    host.device.reset();
    host.device.enable_function();
    host.run(1_000_000);
    host.attach_queue();
    host.ok(&input(0x104, 16, &[]), 16);
    host.ok(&input(0x102, 32, &[]), 16);
    assert_eq!((host.device.lid(), first_pkey(&mut host)), (9, 0x8001));
    assert!(!host.device.link_is_up(), "but its manager has to activate it anew");
    assert_eq!(set_lid(&mut host, Sender::WithKey(0), 3, 0).0, DISCARDED);
    assert_eq!(set_lid(&mut host, Sender::WithKey(KEY), 3, KEY), (0, 0));
}

#[test]
fn guids_are_not_the_drivers_to_change() {
    for managed in [false, true] {
        let mut host = Host::running(DeviceConfig { managed, ..plain() });
        let before = host.ok(&input(0x762, 16, &[]), 528)[16 + 0x28..16 + 0x40].to_vec();
        // Bits of `field_select`: the port's GUID, the node's.
        for select in [1, 2, 3] {
            let mut set = input(0x763, 528, &[(16, select)]);
            set[16 + 0x28..16 + 0x40].fill(0x55);
            assert_eq!(host.command(&set, 16).0, 3, "{select}");
        }
        assert_eq!(host.ok(&input(0x762, 16, &[]), 528)[16 + 0x28..16 + 0x40], before);
    }
}
