//! What the port counts, as commands show it.

use crate::host::{Host, be16, be32, input, plain};

/// PPCNT: port 1, a group, cleared or not; the counters.
fn ppcnt(host: &mut Host, group: u32, clear: bool) -> Vec<u8> {
    let bytes = input(0x805, 16 + 256, &[(4, 1), (8, 0x5008), (16, 1 << 16 | group), (20, u32::from(clear) << 31)]);
    let out = host.ok(&bytes, 16 + 256);
    assert_eq!(be32(&out, 16) & 0x3f, group);
    out[24..].to_vec()
}

#[test]
fn errors_and_traffic_of_the_port() {
    let mut host = Host::running(plain());
    // Linux's mlx5_ifc.h: LinkDowned in byte 3, PortRcvErrors in bytes 4 and 5 of group 0x20; packets received, low half, in
    // dword 124 of group 0x21, and data in words of four bytes in dword 108.
    host.device.set_link(false);
    host.device.set_link(true);
    host.device.receive(&[0; 30]);
    host.device.receive(&[0; 40]);
    let errors = ppcnt(&mut host, 0x20, true);
    assert_eq!((errors[3], be16(&errors, 4)), (1, 2));
    let errors = ppcnt(&mut host, 0x20, false);
    assert_eq!((errors[3], be16(&errors, 4)), (0, 0), "cleared");
    let traffic = ppcnt(&mut host, 0x21, false);
    assert_eq!((be32(&traffic, 124), be32(&traffic, 108)), (0, 0), "neither was a packet");
    assert!(ppcnt(&mut host, 0, false).iter().all(|byte| *byte == 0), "no Ethernet");
    let other = input(0x805, 16 + 256, &[(4, 1), (8, 0x5008), (16, 2 << 16 | 0x20)]);
    assert_eq!(host.command(&other, 16 + 256).0, 3, "no such port");
}

#[test]
fn a_question_for_an_agent_is_traffic() {
    let mut host = Host::running(plain());
    // An LRH to LID 7 from LID 9 on lane 15, a UD SEND to queue pair 0 with 256 bytes: Get(NodeInfo).
    let mut frame = vec![0xf0, 2, 0, 7, 0, 72, 0, 9];
    frame.extend([0x64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend([1, 1, 1, 1]);
    frame.resize(28 + 16, 0);
    frame.extend([0, 0x11]);
    frame.resize(28 + 256, 0);
    // CRC-32 of all this with ones for the lane and for byte 4 of the BTH.
    frame.extend([35, 78, 219, 47]);
    host.device.receive(&frame);
    host.run(1000);
    let traffic = ppcnt(&mut host, 0x21, false);
    // 288 bytes with the ICRC.
    assert_eq!((be32(&traffic, 124), be32(&traffic, 108), be32(&traffic, 164)), (1, 72, 1));
}

#[test]
fn counts_begin_anew_with_the_driver() {
    let mut host = Host::running(plain());
    host.device.set_link(false);
    assert_eq!(ppcnt(&mut host, 0x20, false)[3], 1);
    host.ok(&input(0x103, 16, &[]), 16);
    host.ok(&input(0x102, 32, &[]), 16);
    assert_eq!(ppcnt(&mut host, 0x20, false)[3], 0, "after TEARDOWN_HCA");
    host.ok(&input(0x103, 16, &[]), 16);
    host.ok(&input(0x105, 16, &[]), 16);
    host.ok(&input(0x104, 16, &[]), 16);
    host.ok(&input(0x102, 32, &[]), 16);
    assert_eq!(ppcnt(&mut host, 0x20, false)[3], 0, "after DISABLE_HCA, with the cable out as before");
}

/// What makes Linux show the counters of queue pairs (`mlx5_ib_counters_init`, `mlx5_ib_alloc_counters`), and as many sets as it says.
#[test]
fn sets_of_counters_are_offered() {
    for config in [plain(), plain().with_ethernet()] {
        let mut host = Host::running(config);
        let general = host.ok(&input(0x100, 16, &[(4, 1)]), 4112)[16..].to_vec();
        // out_of_seq_cnt, retransmission_q_counters, modify_rq_counter_set_id; max_qp_cnt.
        let dword = be32(&general, 48);
        assert_eq!((dword >> 31, dword >> 29 & 1, dword >> 27 & 1, dword >> 16 & 0x3ff), (1, 1, 1, 255));
        for _ in 0..255 {
            host.ok(&input(0x771, 16, &[]), 16);
        }
        assert_eq!(host.command(&input(0x771, 16, &[]), 16).0, 8, "no more of them");
    }
}
