//! Every recorded command once more, on a fresh device of the same configuration.
//!
//! The commands name pages of a guest that is gone. They stay as they are: the device has memory at every address here, zero
//! until it is written.

use std::collections::HashMap;

use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, CmdOut, CmdStatus, View};
use bareverbs_serve::record::{Entry, Line};
use bareverbs_tests::LoneDevice;

use crate::{NEW, OLD, USER_SPACE, lines};

/// What must be the same again: status and syndrome, and in an output of 16 bytes what it names (the number of an object,
/// a count of pages).
fn answer(output: &[u8]) -> Vec<u8> {
    let mut answer = output[..8].to_vec();
    answer[1..4].fill(0);
    if output.len() == 16 {
        answer.extend(&output[8..12]);
    }
    answer
}

/// `kept`: pages that the driver leaves with the firmware.
fn replay(recording: &[Line], least: usize, kept: usize) {
    let mut hosts: HashMap<&str, LoneDevice> = HashMap::new();
    let mut commands = 0;
    for line in recording {
        match &line.entry {
            Entry::Device(config) => {
                hosts.insert(&line.device, LoneDevice::new(config.as_ref().clone()));
            }
            Entry::Command { slot, input, output } => {
                let opcode = View::<CmdIn>::new(input).unwrap().get(CmdIn::OPCODE);
                let name = CmdOpcode::from_code(opcode).map_or("unknown", CmdOpcode::name);
                let status = View::<CmdOut>::new(output).unwrap().get(CmdOut::STATUS);
                assert_eq!(CmdStatus::from_code(status), Some(CmdStatus::Ok), "line {}: {name} succeeded", line.number);
                let got = hosts.get_mut(line.device.as_str()).unwrap().run(*slot, input, output.len());
                assert_eq!(answer(&got), answer(output), "line {}: {name} on {}", line.number, line.device);
                commands += 1;
            }
            Entry::Mark(_) | Entry::Item { .. } => {}
        }
    }
    assert!(commands >= least, "{commands} commands");
    for (name, host) in hosts {
        let counts = host.counts();
        assert_eq!((counts.engine.qps, counts.engine.cqs, counts.engine.mkeys, counts.pds), (0, 0, 0, 0), "left on {name}");
        assert_eq!((counts.eqs, counts.uars, counts.pages_held, counts.pages_lost), (0, 0, kept, 0), "left on {name}");
    }
}

#[test]
fn a_fresh_device_answers_the_commands_of_linux_6_12_the_same() {
    replay(&lines(NEW), 500, 0);
}

#[test]
fn a_fresh_device_answers_the_commands_of_linux_6_1_the_same() {
    replay(&lines(OLD), 500, 0);
}

#[test]
fn a_fresh_device_answers_the_commands_of_libmlx5_the_same() {
    // It does not ask for its pages: they go with the process.
    replay(&lines(USER_SPACE), 60, 58);
}
