//! A region for fast registration, as the model knows it.

use bareverbs::{Access, FastMr, FastReg, FastRegion, PdHandle, Remote, Rkey, SendFlags, Sge, Verbs};
use bareverbs_testing::Driver;

use crate::hosts::Memory;
use crate::program::{UNIT, UNITS};

pub(crate) struct Fast {
    pub(crate) mr: FastMr,
    pub(crate) rkey: Rkey,
    pub(crate) registered: Option<Registered>,
}

/// What is registered: units of a region, one after another in any order.
pub(crate) struct Registered {
    region: FastRegion,
    pub(crate) memory: usize,
    units: Vec<usize>,
    pub(crate) access: Access,
}

impl Fast {
    pub(crate) fn new(verbs: &mut Verbs<'_, Driver>, pd: PdHandle) -> Self {
        let mr = verbs.alloc_fast_mr(pd, UNITS as u32).expect("a region for fast registration");
        let rkey = verbs.fast_mr_info(mr).expect("just created").rkey;
        Self { mr, rkey, registered: None }
    }

    /// Returns the pieces of some units.
    pub(crate) fn pieces(memory: &Memory<'_>, units: &[usize]) -> Vec<Sge> {
        units.iter().map(|unit| memory.region.sge((unit * UNIT) as u64, UNIT as u32)).collect()
    }

    /// Returns a registration of these pieces.
    pub(crate) fn request<'a>(&self, wr_id: u64, sges: &'a [Sge], access: Access) -> FastReg<'a> {
        FastReg { wr_id, flags: SendFlags::SIGNALED, tag: self.rkey.tag().next(), sges, access }
    }

    pub(crate) fn open(&mut self, region: FastRegion, memory: usize, units: Vec<usize>, access: Access) {
        self.rkey = region.rkey();
        self.registered = Some(Registered { region, memory, units, access });
    }

    pub(crate) fn is_over(&self, memory: usize) -> bool {
        self.registered.as_ref().is_some_and(|of| of.memory == memory)
    }

    /// Compares it with what the verbs say.
    pub(crate) fn compare(&self, verbs: &Verbs<'_, Driver>, memory: &[Memory<'_>]) -> Result<(), String> {
        let info = verbs.fast_mr_info(self.mr).expect("it exists");
        let found = info.registered.map(|of| (of.mr, of.length, of.access));
        let must = self.registered.as_ref().map(|of| (memory[of.memory].region.handle(), of.region.len(), of.access));
        if (info.rkey, found) == (self.rkey, must) {
            return Ok(());
        }
        Err(format!("the registration is {info:?}, and must have {:?} and {must:?}", self.rkey))
    }
}

impl Registered {
    /// Returns where byte `at` of the region is in the range, if its unit is registered.
    fn place(&self, at: usize) -> Option<u64> {
        let index = self.units.iter().position(|unit| *unit == at / UNIT)?;
        Some((index * UNIT + at % UNIT) as u64)
    }

    pub(crate) fn remote(&self, at: usize) -> Option<Remote> {
        self.place(at).map(|place| self.region.remote(place))
    }

    pub(crate) fn sge(&self, at: usize) -> Option<Sge> {
        self.place(at).map(|place| self.region.sge(place, 0))
    }
}
