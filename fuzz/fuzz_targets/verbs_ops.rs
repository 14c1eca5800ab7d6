//! Lists of verbs on a simulated device that is wired to itself, against a model of sets and one array of bytes. Each call ends
//! with the errno of the model, and each request with its status. Memory has the bytes of the model, and when all is destroyed
//! the device has nothing left.
#![no_main]

use std::cell::RefCell;

use bareverbs_fuzz::harness::Harness;
use bareverbs_fuzz::model::Step;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static HARNESS: RefCell<Harness> = RefCell::new(Harness::new());
}

fuzz_target!(|steps: Vec<Step>| {
    HARNESS.with_borrow_mut(|harness| harness.run(&steps[..steps.len().min(64)]));
});
