//! Protection domains.

use bareverbs::{Pdn, Platform};
use bareverbs_mlx5_spec::{AllocPdIn, AllocPdOut, CmdOpcode, DeallocPdIn, DeallocPdOut, Layout, View, ViewMut};

use crate::driver::Driver;
use crate::error::Error;

/// A protection domain of this backend.
#[derive(Debug)]
pub struct Pd {
    pub(crate) number: u32,
}

impl Pd {
    /// Number.
    pub const fn pdn(&self) -> Pdn {
        Pdn::new(self.number)
    }
}

impl<P: Platform> Driver<P> {
    /// Makes a domain.
    pub(crate) fn alloc_pd(&mut self) -> Result<Pd, Error> {
        let mut output = [0; AllocPdOut::SIZE];
        self.command(CmdOpcode::AllocPd, &[0; AllocPdIn::SIZE], &mut output)?;
        Ok(Pd { number: View::<AllocPdOut>::of(&output).get(AllocPdOut::PD) })
    }

    /// Destroys a domain.
    pub(crate) fn dealloc_pd(&mut self, pd: &Pd) -> Result<(), Error> {
        let mut input = [0; DeallocPdIn::SIZE];
        ViewMut::<DeallocPdIn>::of(&mut input).set(DeallocPdIn::PD, pd.number);
        self.command(CmdOpcode::DeallocPd, &input, &mut [0; DeallocPdOut::SIZE])
    }
}
