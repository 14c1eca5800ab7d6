//! The statics that the verbs work in.

use bareverbs::storage::{QpRings, Storage};
use static_cell::{ConstStaticCell, StaticCell};

use crate::machine::{ProbeDriver, ProbeRings, ProbeTables};

static RINGS: [ProbeRings; 2] = [const { QpRings::new() }; 2];

/// The tables, made by the compiler: no copy of them is ever on a stack.
pub static TABLES: ConstStaticCell<ProbeTables> = {
    let [first, second] = &RINGS;
    ConstStaticCell::new(Storage::new([first.view(), second.view()]))
};

/// Where the driver is made and stays.
pub static DRIVER: StaticCell<Option<ProbeDriver>> = StaticCell::new();
