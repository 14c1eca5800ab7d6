//! The driver on a device that lies, by inputs of a generator: what the fuzz target of this name does with inputs that are searched for.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_tests::lying_device::{Done, Outcome, opcodes_of_lies, play};
use bareverbs_tests::pattern;

/// Says which input it was that failed.
struct Played(u8, u64);

impl Drop for Played {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in mode {} with seed {}", self.0, self.1);
        }
    }
}

/// Plays inputs, the same ones each time, and returns what came of all of them.
fn play_all(seeds: std::ops::Range<u64>, mode: u8, len: usize) -> Vec<Outcome> {
    let one = |seed| {
        let mut input = pattern(seed, len);
        input[0] = mode;
        let _played = Played(mode, seed);
        play(&input)
    };
    seeds.map(one).collect()
}

fn sum(outcomes: &[Outcome], of: impl Fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(of).sum()
}

/// The lies begin when the device is up and has queues: modes are even.
#[test]
fn a_device_that_lies_about_its_queues_breaks_no_promise() {
    let outcomes: Vec<Outcome> = (0..8).step_by(2).flat_map(|mode| play_all(1..60, mode, 600)).collect();
    assert!(outcomes.iter().all(|outcome| outcome.is_up));
    // The inputs do what they are for: there are requests that complete, lies, and devices that are given up and that are not.
    let (completions, lies) = (sum(&outcomes, |outcome| outcome.completions), sum(&outcomes, |outcome| outcome.lies));
    let down = sum(&outcomes, |outcome| outcome.is_down.into());
    assert!(completions > 500 && lies > 400, "{completions} completions, {lies} lies");
    assert!((20..outcomes.len() as u64 - 20).contains(&down), "{down} of {}", outcomes.len());
}

#[test]
fn a_device_that_lies_from_the_beginning_breaks_no_promise() {
    let outcomes: Vec<Outcome> = (1..8).step_by(2).flat_map(|mode| play_all(1..60, mode, 200)).collect();
    let up = sum(&outcomes, |outcome| outcome.is_up.into());
    assert!((20..outcomes.len() as u64 - 20).contains(&up), "{up} of {} came up", outcomes.len());
}

/// The same with an Ethernet port, frames, and completions of either size.
#[test]
fn a_device_with_an_ethernet_port_that_lies_breaks_no_promise() {
    for from_the_beginning in [0, 1] {
        let modes = (8..32).step_by(2).filter(|mode| mode & 8 != 0);
        let outcomes: Vec<Outcome> = modes.flat_map(|mode| play_all(1..25, mode | from_the_beginning, 500)).collect();
        let (up, lies) = (sum(&outcomes, |outcome| outcome.is_up.into()), sum(&outcomes, |outcome| outcome.lies));
        let completions = sum(&outcomes, |outcome| outcome.completions);
        let frames = sum(&outcomes, |outcome| outcome.done.frames_received);
        let counts = format!("{up} of {} came up, {lies} lies, {completions} completions, {frames} frames", outcomes.len());
        assert!(up > 100 && lies > 400 && completions > 300 && (frames > 10 || from_the_beginning != 0), "{counts}");
    }
}

/// The seeds of the fuzz target. Those whose name begins with `honest` have no lie in them: what they post completes, and all ends well. Where no
/// queue pair is reset, no window is used and nothing is drained, it completes with success.
/// All together send each command that a lie can be about.
#[test]
fn the_seeds_of_the_fuzz_target_break_no_promise() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/lying_device");
    let (mut honest, mut lying) = (0, 0);
    let (mut opcodes, mut done) = (BTreeSet::<u16>::new(), BTreeMap::new());
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let outcome = play(&std::fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_str().unwrap();
        opcodes.extend(&outcome.opcodes);
        if name.starts_with("honest") {
            assert!(outcome.is_up && outcome.is_down && outcome.lies == 0, "{name}: {outcome:?}");
            assert!(outcome.completions > 0 || name == "honest_all_made", "{name}: {outcome:?}");
            let fails = ["honest_states", "honest_drain", "honest_reset_with_binds", "honest_windows"].contains(&name);
            assert!(fails || outcome.successes == outcome.completions, "{name}: {outcome:?}");
            let is_large = cfg!(feature = "large-completions") && name.starts_with("honest_large_completions");
            assert_eq!(outcome.large_completions, is_large, "{name}");
            honest += 1;
            done.insert(name.to_owned(), outcome.done);
        } else {
            lying += 1;
        }
    }
    assert!(honest >= 20 && lying >= 33, "{honest} and {lying}");
    let expected = [
        ("honest_masked_atomics", Done { masked_atomics: 10, ..Done::default() }),
        ("honest_changed_regions", Done { changed_regions: 7, masked_atomics: 4, ..Done::default() }),
        ("honest_moderation", Done { moderations: 3, ..Done::default() }),
        ("honest_groups", Done { groups: 4, ..Done::default() }),
        ("honest_ethernet", Done { gids: 5, groups: 4, masked_atomics: 4, ..Done::default() }),
        ("honest_frames", Done { gids: 1, frames_sent: 8, frames_received: 16, ..Done::default() }),
        ("honest_large_completions", Done { masked_atomics: 4, ..Done::default() }),
        ("honest_large_completions_on_ethernet", Done { gids: 1, frames_sent: 4, frames_received: 8, ..Done::default() }),
    ];
    for (name, expected) in expected {
        assert_eq!(done.get(name), Some(&expected), "{name}");
    }
    let unsent: Vec<_> = opcodes_of_lies().iter().filter(|opcode| !opcodes.contains(opcode)).collect();
    assert!(unsent.is_empty(), "no seed sends them: {unsent:#x?}");
}
