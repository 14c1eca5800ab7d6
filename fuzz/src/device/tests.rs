//! Generated inputs without a fuzzer: the same ones each time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arbitrary::{Arbitrary as _, Unstructured};
use bareverbs_sim::wire::Random;

use super::{Act, Setup, play};

/// Inputs, acts of each, and bytes that an act is made of.
const INPUTS: u64 = 3_000;
const ACTS: usize = 12;
const BYTES: usize = 64;
/// Failing inputs that are shown.
const MAX_SHOWN: usize = 5;

fn acts(seed: u64) -> Vec<Act> {
    let mut random = Random::new(seed);
    let mut act = || {
        let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        Act::arbitrary(&mut Unstructured::new(&bytes))
    };
    (0..ACTS).filter_map(|_| act().ok()).collect()
}

/// Returns what is wrong after the generated input of a seed; each setup has its turn.
fn failure(seed: u64) -> Option<String> {
    let (setup, acts) = (Setup::from_byte(seed as u8 & 0xf), acts(seed));
    let shown = format!("input {seed}, {setup:?}, {acts:?}");
    let panicked = catch_unwind(AssertUnwindSafe(|| play(&setup, acts))).err()?;
    let message = panicked.downcast_ref::<String>().map(String::as_str).or(panicked.downcast_ref::<&str>().copied());
    Some(format!("{}\n    {shown}", message.unwrap_or("a panic without a message")))
}

#[test]
fn generated_acts_leave_well_behaved_guests_alone() {
    let failures: Vec<String> = (0..INPUTS).filter_map(failure).take(MAX_SHOWN).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
