//! The decoders as processes: known bytes, errors of invalid ones, and exit status.
//!
//! The bytes are written by hand from the offsets of rdma-core's `providers/mlx5/mlx5dv.h` and `wqe.h`.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bareverbs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the standard output of a decoding that ends with `status`.
fn decode(args: &[&str], status: i32) -> String {
    let output = bareverbs(args);
    assert_eq!(output.status.code(), Some(status), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// opmod, index and opcode; queue pair and ds; fm_ce_se at byte 11; imm.
fn ctrl(opcode: u8, ds: u8, fm_ce_se: u8, imm: u32) -> String {
    format!("000007{opcode:02x} 0000 4b{ds:02x} 00000000 {imm:08x}").replace("00000000 ", &format!("000000{fm_ce_se:02x} "))
}

const RADDR: &str = "0000000000001000 00002233 00000000";
const DATA: &str = "00000040 00004455 0000000000002000";

/// A bind as rdma-core builds it: 192 bytes, ds 12, three blocks. The mkey context has the fields of the mask.
fn bind() -> String {
    let umr = "80000000 0004 0000 00000000 203c2041 00000000".to_string() + &"0".repeat(56);
    // Access: a, rw, rr and lw in the byte at 2; then queue pair 0xffffff and the new tag, start and len.
    let mkc = "00 00 78 00 ffffff 24 0000000000000000 0000000000003000 0000000000001000".to_string() + &"0".repeat(64);
    let klm = "00001000 00004455 0000000000003000".to_string() + &"0".repeat(96);
    format!("{} {umr} {mkc} {klm}", ctrl(0x25, 12, 8, 0x0000_2223))
}

#[test]
fn an_rdma_write_is_decoded_field_by_field() {
    let got = decode(&["wqe", "decode", &ctrl(0x08, 3, 8, 0), RADDR, DATA], 0);
    for line in [
        "RDMA_WRITE, block 0x7 of queue pair 0x4b, 3 units (48 bytes) in 1 block",
        "0x0000   7..0  opcode                       0x8                RDMA_WRITE",
        "0x0000  23..8  wqe_idx                      0x7",
        "0x0004  31..8  qpn                          0x4b",
        "0x0008   3..2  ce                           0x2                completion",
        "0x0010         raddr                        0x1000",
        "0x0018         rkey                         0x2233",
        "0x0020         byte_count                   0x40",
        "0x0024         lkey                         0x4455",
        "0x0028         addr                         0x2000",
        "nothing wrong with it",
    ] {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
}

#[test]
fn a_valid_bind_is_decoded_without_errors() {
    let got = decode(&["wqe", "decode", &bind()], 0);
    for line in [
        "UMR, block 0x7 of queue pair 0x4b, 12 units (192 bytes) in 3 blocks",
        "len|start_addr|mkey_7_0|lw|rr|rw|a|free",
        "0x0050         start_addr                   0x3000",
        "0x0058         len                          0x1000",
        "KLM 0 (mlx5_klm)",
        "nothing wrong with it",
    ] {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
}

#[test]
fn a_bind_that_covers_less_than_its_length_is_wrong() {
    let short = bind().replace("00001000 00004455", "00000800 00004455");
    assert!(decode(&["wqe", "decode", &short], 1).contains("len is 0x1000, and the translations cover 0x800 bytes"));
    let unmasked = bind().replace("203c2041", "203c2040");
    let got = decode(&["wqe", "decode", &unmasked], 0);
    assert!(got.contains("len is 0x1000 here, and mkey_mask leaves it as it was"), "{got}");
}

#[test]
fn a_masked_atomic_is_decoded_by_its_size() {
    let remote = "0000000000001004 00002233 00000000";
    let operands = "11121314 01020304 00ff00ff f0f0f0f0";
    let four = "00000004 00004455 0000000000002000";
    let got = decode(&["wqe", "decode", "08000514 00004b04 00000008 00000000", remote, operands, four], 0);
    for line in [
        "ATOMIC_MASKED_CS",
        "swap                         0x11121314",
        "compare_mask                 0xf0f0f0f0",
        "nothing wrong",
    ] {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
    // Eight bytes have operands of 32, a result of as many, and an address that is a multiple.
    let got = decode(&["wqe", "decode", "09000514 00004b05 00000008 00000000", remote, operands, operands, four], 1);
    for line in ["0x0010  error: an atomic works on 8 bytes aligned to 8", "0x0040  error: the result of an atomic is 8 bytes"]
    {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
    let got = decode(&["wqe", "decode", "00000515 00004b04 00000008 00000000", remote, operands, four], 1);
    assert!(got.contains("0x0010  error: opmod 0x0 is that of no atomic on 4 or 8 bytes"), "{got}");
}

#[test]
fn errors_name_the_byte() {
    let remote_odd = "0000000000001004 00002233 00000000";
    let atomic = "0000000000000001 0000000000000002";
    let result = "00000004 00004455 0000000000002000";
    let cases: &[(&[&str], &str)] = &[
        (&[&ctrl(0x08, 4, 8, 0), RADDR, DATA], "0x0007  error: ds says 4 units (64 bytes), but only 48 bytes are here"),
        (&[&ctrl(0x08, 0, 8, 0)], "0x0007  error: ds is 0"),
        (&[&ctrl(0x77, 1, 8, 0)], "0x0003  error: opcode 0x77 is unknown"),
        (&[&ctrl(0x10, 1, 8, 0)], "0x0010  error: RDMA_READ needs a remote address segment of 16 bytes here, and 0 are left"),
        (
            &[&ctrl(0x0a, 2, 8, 0), "80000010 00000000 00000000 00000000"],
            "error: byte_count says 16 inline bytes, and the WQE has 12",
        ),
        (&[&ctrl(0x10, 3, 8, 0), RADDR, "80000004 00000000 00000000 00000000"], "RDMA_READ cannot put what it reads inline"),
        (&[&ctrl(0x11, 4, 8, 0), remote_odd, atomic, result], "0x0010  error: an atomic works on 8 bytes aligned to 8"),
        (&[&ctrl(0x11, 4, 8, 0), remote_odd, atomic, result], "0x0030  error: the result of an atomic is 8 bytes"),
        (&[&ctrl(0x08, 3, 0xa8, 0), RADDR, DATA], "0x000b  error: fence mode 5 does not exist"),
        (&[&ctrl(0x01, 2, 8, 0), DATA], "0x000c  error: SEND_INVAL names key 0"),
        (&[&ctrl(0x00, 2, 8, 0), DATA], "0x0010  error: 16 bytes after the last segment of NOP"),
        (&[&ctrl(0x08, 2, 8, 0), "fffffffffffffff0 00002233 00000000"], "note: nothing is moved"),
    ];
    for (bytes, wanted) in cases {
        let args: Vec<&str> = ["wqe", "decode"].iter().chain(*bytes).copied().collect();
        let status = i32::from(!wanted.contains("note"));
        let got = decode(&args, status);
        assert!(got.contains(wanted), "no {wanted:?} in\n{got}");
    }
}

#[test]
fn reserved_bits_and_empty_data_segments_are_warnings() {
    let reserved = "0000000000001000 00002233 00000001";
    let got = decode(&["wqe", "decode", &ctrl(0x08, 3, 8, 0), reserved, "00000000 00004455 0000000000002000"], 0);
    assert!(got.contains("0x001f  warning: reserved bits 0x01 of mlx5_wqe_raddr_seg are set"), "{got}");
    assert!(got.contains("0x0020  warning: byte_count 0 stands for 2^31 bytes"), "{got}");
}

#[test]
fn the_transport_determines_the_segments() {
    let av = "00000011 00000000 80000123 00000002".to_string() + &"0".repeat(64);
    let bytes = format!("{} {av} {DATA}", ctrl(0x0a, 5, 8, 0));
    let got = decode(&["wqe", "decode", "--transport", "ud", &bytes], 0);
    assert!(got.contains("dqp                          0x123") && got.contains("rlid                         0x2"), "{got}");
    let got = decode(&["wqe", "decode", "--transport", "ud", &ctrl(0x08, 3, 8, 0), RADDR, DATA], 1);
    assert!(got.contains("RDMA_WRITE is not done by a UD queue pair"), "{got}");
    let got = decode(&["wqe", "decode", "--transport", "uc", &ctrl(0x10, 3, 8, 0), RADDR, DATA], 1);
    assert!(got.contains("RDMA_READ is not done by a UC queue pair"), "{got}");
}

#[test]
fn a_ring_is_decoded_wqe_by_wqe() {
    let block = format!("{} {RADDR} {DATA} {}", ctrl(0x08, 3, 8, 0), "0".repeat(32));
    let got = decode(&["wqe", "decode", "--json", &format!("{block} {} {block}", bind())], 0);
    let all: Value = serde_json::from_str(&got).unwrap();
    let at: Vec<_> = all.as_array().unwrap().iter().map(|wqe| wqe["offset"].as_u64().unwrap()).collect();
    assert_eq!(at, [0, 64, 256]);
    assert_eq!(all[0]["sections"][2]["fields"][1]["name"], "lkey");
    assert_eq!(all[0]["sections"][2]["fields"][1]["value"], 0x4455);
}

#[test]
fn receives_completions_events_and_commands_are_decoded() {
    let list = format!("{DATA} 00000000 00000100 0000000000000000");
    let got = decode(&["wqe", "decode", "--receive", &list], 0);
    assert!(got.contains("receive: 64 bytes in 1 data segment") && got.contains("end of the list"), "{got}");

    // Error entry: vendor syndrome at 54, syndrome at 55, opcode and queue pair at 56, counter at 60, opcode in byte 63.
    let cqe = "0".repeat(104) + "00008813 0800004b 0007 00 d0";
    let got = decode(&["cqe", "decode", &cqe], 0);
    assert!(got.contains("REQ_ERR, queue pair 0x4b, WQE 0x7, REMOTE_ACCESS_ERR (vendor 0x88)"), "{got}");

    // Type at 1, number of the completion queue at 56.
    let eqe = "0".repeat(112) + "00000400 00000000";
    let got = decode(&["eqe", "decode", &eqe], 0);
    assert!(got.contains("COMP\n") && got.contains("cq_number                    0x400"), "{got}");

    let got = decode(&["command", "decode", "05010000 00000000 0000004b 00000000"], 0);
    assert!(got.contains("DESTROY_QP input, 16 bytes") && got.contains("0x4b"), "{got}");
    let got = decode(&["command", "decode", "--output-of", "alloc_pd", "0f000000 0000abcd 00000000 00000000"], 0);
    assert!(got.contains("ALLOC_PD output, 16 bytes, NO_RES_ERR") && got.contains("0xabcd"), "{got}");
}

#[test]
fn bytes_come_from_files_and_standard_input_too() {
    let folder = std::env::temp_dir().join(format!("bareverbs-decode-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let raw = folder.join("wqe.bin");
    let mut bytes = vec![0, 0, 7, 0, 0, 0, 0x4b, 1];
    bytes.resize(64, 0);
    std::fs::write(&raw, &bytes).unwrap();
    let got = decode(&["wqe", "decode", "--file", raw.to_str().unwrap()], 0);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(got.starts_with("NOP, block 0x7 of queue pair 0x4b"), "{got}");

    let mut child = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["wqe", "decode", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"00000000: 0000 0700 0000 4b01 0000 0000 0000 0000  ......K.........\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(&output.stdout).starts_with("NOP, block 0x7"), "{}", text(&output.stdout));
}

/// An error completion, and a WQE of the Ethernet driver, in the format of dmesg.
#[test]
fn the_output_of_dmesg_is_decoded() {
    let decode = |what: &str, text: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
            .args([what, "decode", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        self::text(&child.wait_with_output().unwrap().stdout)
    };
    let shown = decode(
        "cqe",
        "[  881.102841] infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe\n\
         [  881.102845] 00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
         [  881.102846] 00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
         [  881.102847] 00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
         [  881.102848] 00000030: 00 00 00 00 00 00 88 13 08 00 00 4b 00 07 00 d2\n",
    );
    assert!(shown.starts_with("REQ_ERR, queue pair 0x4b, WQE 0x7, REMOTE_ACCESS_ERR (vendor 0x88)"), "{shown}");
    let shown = decode(
        "wqe",
        "Nov 23 05:11:02 host kernel: WQE DUMP: WQ size 1024 WQ cur size 0, WQE index 0x7, len: 16\n\
         Nov 23 05:11:02 host kernel: 00000000: 00 00 07 00 00 00 4b 01 00 00 00 00 00 00 00 00\n",
    );
    assert!(shown.starts_with("NOP, block 0x7 of queue pair 0x4b"), "{shown}");
    let zeros: String = (0..3).map(|at| format!("<4>[ 1.0] {:08x}: {}\n", 16 * at, ["00"; 16].join(" "))).collect();
    let last = "<4>[ 1.0] 00000030: 00 00 00 00 00 00 00 00 00 00 04 00 00 00 00 00\n";
    let shown = decode("eqe", &format!("mlx5_core 0000:01:00.0: an event\n{zeros}{last}"));
    assert!(shown.starts_with("COMP\n"), "{shown}");
}

#[test]
fn mistakes_on_the_command_line_are_status_2_and_named() {
    for (args, wanted) in [
        (&["wqe", "decode", "0g"] as &[&str], "line 1: 'g' is not a hexadecimal digit"),
        (&["wqe", "decode", "000"], "3 hexadecimal digits are not whole bytes"),
        (&["wqe", "decode", "--file", "/nonexistent/wqe"], "/nonexistent/wqe: No such file"),
        (&["wqe", "decode", "-"], "no bytes to decode"),
        (&["wqe", "decode"], "required"),
        (&["wqe", "encode"], "unrecognized subcommand"),
        (&["command", "decode", "--output-of", "PLEASE", "00"], "PLEASE: no such command"),
        (&["--loss", "50"], "not between 0 and 20 per cent"),
        (&["--mtu", "1500"], "invalid value '1500'"),
        (&["--messages", "0"], "0 is not in"),
    ] {
        let output = bareverbs(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let message = text(&output.stderr);
        assert!(message.contains(wanted), "{args:?}: {message}");
    }
}

#[test]
fn the_uid_of_a_user_context_is_not_a_reserved_field() {
    // QUERY_HCA_CAP of user context 5, as Linux passes it on for libmlx5.
    let shown = decode(&["command", "decode", "01000005 00000001 00000000 00000000"], 0);
    assert!(shown.contains("uid") && !shown.contains("reserved"), "{shown}");
}

#[test]
fn an_output_may_be_shorter_than_its_layout_and_an_input_may_not() {
    // Kernel 6.1 has room for 272 of the 464 bytes of QUERY_QP.
    let zeros = "00".repeat(272);
    let shown = decode(&["command", "decode", "--output-of", "QUERY_QP", &zeros], 0);
    assert!(shown.contains("had room for 272"), "{shown}");
    decode(&["command", "decode", "0500 0000 0000 0000"], 1);
}
