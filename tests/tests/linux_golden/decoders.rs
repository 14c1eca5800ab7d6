//! The device's decoder and the printers take everything that was recorded.

use std::collections::HashMap;

use bareverbs_decode::send::Transport;
use bareverbs_decode::{Decoded, Severity, command, completion, event, receive, send};
use bareverbs_mlx5_spec::{CmdOpcode, CreateQpIn, CreateQpOut, Qpc, QpcSt, View};
use bareverbs_serve::record::{Entry, Kind, Line};
use bareverbs_sim::wqe_decode::{SendWqe, WqeService, decode_receive};

use crate::{NEW, OLD, UMR, USER_SPACE, lines};

/// Transport of each queue pair of each device, learnt from the commands.
#[derive(Default)]
struct Transports(HashMap<(String, u32), Transport>);

impl Transports {
    fn learn(&mut self, device: &str, input: &[u8], output: &[u8]) {
        if command::opcode(input) != Some(CmdOpcode::CreateQp.code()) {
            return;
        }
        let service = View::<CreateQpIn>::new(input).unwrap().sub(CreateQpIn::QPC).get(Qpc::ST);
        let transport = match QpcSt::from_code(service) {
            Some(QpcSt::Uc) => Transport::Uc,
            Some(QpcSt::Ud | QpcSt::Qp0 | QpcSt::Qp1) => Transport::Ud,
            Some(QpcSt::Xrc) => Transport::Xrc,
            _ => Transport::Rc,
        };
        let qpn = View::<CreateQpOut>::new(output).unwrap().get(CreateQpOut::QPN);
        self.0.insert((device.into(), qpn), transport);
    }

    fn of(&self, device: &str, qpn: u32) -> Transport {
        self.0.get(&(device.into(), qpn)).copied().unwrap_or_default()
    }
}

/// Asserts that the printer finds nothing wrong.
fn clean(decoded: &[Decoded], line: usize) {
    for one in decoded {
        let wrong: Vec<_> = one.findings.iter().filter(|finding| finding.severity > Severity::Note).collect();
        assert!(wrong.is_empty(), "line {line}: {}: {wrong:?}", one.title);
        assert!(!one.to_string().is_empty());
    }
}

fn decode_all(recording: &[Line]) -> usize {
    let mut transports = Transports::default();
    let mut wqes = 0;
    for line in recording {
        match &line.entry {
            Entry::Command { input, output, .. } => {
                transports.learn(&line.device, input, output);
                clean(&[command::decode_input(input)], line.number);
                let opcode = CmdOpcode::from_code(command::opcode(input).unwrap()).unwrap();
                clean(&[command::decode_output(opcode, u16::from_be_bytes([input[6], input[7]]), output)], line.number);
            }
            Entry::Item { kind: Kind::Send, queue, index, bytes } => {
                wqes += 1;
                let transport = transports.of(&line.device, *queue);
                let service = match transport {
                    Transport::Ud => WqeService::Datagram,
                    Transport::Xrc => WqeService::Xrc,
                    Transport::Rc | Transport::Uc => WqeService::Connected,
                };
                let wqe = SendWqe::decode(bytes, service).unwrap_or_else(|error| panic!("line {}: {error}", line.number));
                assert_eq!((wqe.qpn, u32::from(wqe.index)), (*queue, *index), "line {}", line.number);
                clean(&send::decode_all(bytes, transport), line.number);
            }
            Entry::Item { kind: Kind::Recv, bytes, .. } => {
                wqes += 1;
                assert!(decode_receive(bytes).is_ok(), "line {}", line.number);
                clean(&[receive::decode(bytes, false)], line.number);
            }
            Entry::Item { kind: Kind::Cqe, bytes, .. } => clean(&completion::decode_all(bytes), line.number),
            Entry::Item { kind: Kind::Eqe, bytes, .. } => clean(&event::decode_all(bytes), line.number),
            Entry::Item { kind: Kind::Doorbell, .. } | Entry::Device(_) | Entry::Mark(_) => {}
        }
    }
    wqes
}

#[test]
fn decoders_take_what_linux_6_12_sent() {
    assert!(decode_all(&lines(NEW)) > 50);
}

#[test]
fn decoders_take_what_linux_6_1_sent() {
    assert!(decode_all(&lines(OLD)) > 50);
}

#[test]
fn decoders_take_the_umr_of_linux_6_12() {
    assert!(decode_all(&lines(UMR)) > 20);
}

#[test]
fn decoders_take_what_libmlx5_sent_by_itself() {
    assert!(decode_all(&lines(USER_SPACE)) > 2);
}
