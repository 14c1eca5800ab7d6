//! The driver on a device that lies, by inputs of a generator: what the fuzz target of this name does with inputs that are searched for.

use bareverbs_tests::lying_device::{Outcome, play};
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

/// The seeds of the fuzz target. Those whose name begins with `honest` have no lie in them: what they post completes, and all ends well.
#[test]
fn the_seeds_of_the_fuzz_target_break_no_promise() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/lying_device");
    let (mut honest, mut lying) = (0, 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let outcome = play(&std::fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("honest") {
            assert!(outcome.is_up && outcome.is_down && outcome.lies == 0, "{name}: {outcome:?}");
            assert!(outcome.completions > 0 || name == "honest_all_made", "{name}: {outcome:?}");
            honest += 1;
        } else {
            lying += 1;
        }
    }
    assert!(honest >= 10 && lying >= 15, "{honest} and {lying}");
}
