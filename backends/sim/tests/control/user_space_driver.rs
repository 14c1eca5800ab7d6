//! What libmlx5 sends when it drives the device itself, over VFIO, and Linux's driver does not.

use bareverbs_sim::HcaState;

use crate::host::{Host, be16, be32, input, plain};

const BAD_INPUT_LEN: u8 = 0x50;
const BAD_PACKET: u8 = 0x30;

#[test]
fn init_hca_in_its_first_length() {
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(host.command(&input(0x102, 12, &[]), 16).0, BAD_INPUT_LEN);
    host.ok(&input(0x102, 16, &[]), 16);
    assert_eq!(host.device.state(), HcaState::Running);
}

#[test]
fn a_write_that_does_not_enable_the_update_reads_the_state() {
    let mut host = Host::running(plain());
    // PAOS: local port 1; administrative state in bits 11..8 of the first dword, the enable in bit 31 of the second.
    let paos = |first, second| input(0x805, 32, &[(8, 0x5006), (16, first), (20, second)]);
    let state = |out: &[u8]| be32(out, 16);
    assert_eq!(state(&host.ok(&paos(0x0001_0000, 0), 32)), 0x0001_0101);
    assert_eq!(state(&host.ok(&paos(0x0001_0200, 0), 32)), 0x0001_0101, "not enabled");
    assert_eq!(state(&host.ok(&paos(0x0001_0200, 1 << 31), 32)), 0x0001_0202);
}

#[test]
fn a_key_whose_pages_might_be_absent_and_are_not() {
    let mut host = Host::running(plain());
    let pd = be32(&host.ok(&input(0x800, 16, &[]), 16), 8);
    let dwords = [(12, 1 << 31), (16, 1 << 10), (16 + 4, 0xffff_ff00), (16 + 12, 1 << 31 | pd)];
    host.ok(&input(0x200, 272, &dwords), 16);
}

#[test]
fn the_ports_agent_answers_datagrams() {
    let mut host = Host::running(plain());
    // Get(PortInfo) of port 1: versions 1, class 1, method 1, attribute 0x15.
    let mut ask = input(0x50d, 272, &[(4, 3), (8, 1), (16, 0x0101_0101), (32, 0x15 << 16), (36, 1)]);
    let out = host.ok(&ask, 272);
    assert_eq!((out[16 + 3], be16(&out, 16 + 4)), (0x81, 0));
    let info = &out[16 + 64..];
    assert_eq!((be16(info, 16), info[32] & 15), (7, 4), "LID, active");
    // A class without an agent.
    ask[17] = 3;
    assert_eq!(host.command(&ask, 272).0, BAD_PACKET);
    ask[11] = 2;
    assert_ne!(host.command(&ask, 272).0, 0, "no such port");
}
