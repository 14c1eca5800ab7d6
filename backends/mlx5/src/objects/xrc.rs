//! XRC domains and their queue pairs.
//!
//! A device wants more of them than IBTA has: an initiator is in a domain, and either end names a shared receive queue and a completion
//! queue, a target a protection domain too. Linux has such objects of its own, which do nothing (`mlx5_ib_dev_res_init`); here each domain
//! has.

use bareverbs::{Platform, QpCap, RingSizes, SrqCap, SrqSizes, Xrcdn};
use bareverbs_mlx5_spec::{QpcSt, View, cmd, rq_type};

use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, Feature, PackedError};
use crate::log::{format_as, log_event};
use crate::objects::cq::Cq;
use crate::objects::pd::Pd;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::objects::qp::send_ring::Mlx5SendRing;
use crate::objects::qp::{Qp, Receives};
use crate::objects::srq::Srq;

/// The shared receive queue of a domain to which nobody posts.
const UNUSED: SrqSizes = SrqSizes { places: 2, cap: SrqCap { max_wr: 1, max_sge: 1 } };
/// User index of that queue: of no queue of the verbs.
const NO_SRQ: u32 = 0xff_ffff;

/// An XRC domain of this backend, with what queue pairs name that need no more: a protection domain without a region, a completion queue, a
/// shared receive queue.
pub struct Xrcd {
    number: u32,
    /// Those that are there, in the order in which they were made.
    pd: Option<Pd>,
    cq: Option<Cq>,
    srq: Option<Srq>,
}

numbered!(Xrcd, "Xrcd({:x})", xrcdn -> Xrcdn);

impl Xrcd {
    /// Returns protection domain, completion queue and shared receive queue.
    fn unused(&self) -> Result<[u32; 3], PackedError> {
        match self {
            Self { pd: Some(pd), cq: Some(cq), srq: Some(srq), .. } => Ok([pd.number, cq.cqn().get(), srq.srqn().get()]),
            _ => Err(Error::NotInitialized.pack()),
        }
    }
}

impl<P: Platform> Driver<P> {
    pub(crate) fn alloc_xrcd(&mut self) -> Result<Xrcd, PackedError> {
        let caps = &self.caps;
        if !(caps.xrc && caps.user_index && caps.pools) {
            return Err(Error::Unsupported { feature: Feature::Transport }.pack());
        }
        let number = self.commands.create::<cmd::AllocXrcd>(View::zeros(), ObjectMemory::NONE)?;
        let mut domain = Xrcd { number, pd: None, cq: None, srq: None };
        match self.fill_xrcd(&mut domain) {
            Ok(()) => {
                log_event!(debug, "XRC domain {:x}", number);
                Ok(domain)
            }
            Err(error) => {
                // What the device keeps then keeps its memory. The first error is the one to report.
                let _ = self.dealloc_xrcd(&mut domain);
                Err(error)
            }
        }
    }

    fn fill_xrcd(&mut self, domain: &mut Xrcd) -> Result<(), PackedError> {
        let pd = domain.pd.insert(self.alloc_pd()?).number;
        let cq = domain.cq.insert(self.create_cq(1, self.config.cqe_size)?.0).cqn().get();
        domain.srq = Some(self.create_xrc_srq([pd, domain.number, cq, NO_SRQ], &UNUSED)?.0);
        Ok(())
    }

    /// Destroys a domain. If the device refuses in the middle, it goes on there the next time.
    pub(crate) fn dealloc_xrcd(&mut self, domain: &mut Xrcd) -> Result<(), PackedError> {
        if let Some(srq) = &mut domain.srq {
            self.destroy_srq(srq)?;
            domain.srq = None;
        }
        if let Some(cq) = &mut domain.cq {
            self.destroy_cq(cq)?;
            domain.cq = None;
        }
        if let Some(pd) = &mut domain.pd {
            self.dealloc_pd(pd)?;
            domain.pd = None;
        }
        self.commands.destroy::<cmd::DeallocXrcd>(domain.number, ObjectMemory::NONE)
    }

    /// Creates an initiator or, without its protection domain and completion queue, a target, in RESET. What it names besides is as Linux
    /// has it (`create_xrc_tgt_qp`, and the XRC initiators of `create_user_qp`).
    pub(crate) fn create_xrc_qp(
        &mut self,
        domain: &Xrcd,
        initiator: Option<(&Pd, &Cq)>,
        sizes: &RingSizes,
        cookie: u32,
    ) -> Result<(Qp, Mlx5SendRing<P>, Mlx5RecvRing<P>), PackedError> {
        let [pd, cq, srqn] = domain.unused()?;
        let (numbers, rq_type) = match initiator {
            Some((pd, send_cq)) => ([pd.number, send_cq.cqn().get(), cq], rq_type::NONE),
            None => ([pd, cq, cq], rq_type::SRQ),
        };
        let receives = Receives { rq_type, srqn, xrcd: domain.number };
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..sizes.cap };
        self.create_qp_of(QpcSt::Xrc, numbers, Some(receives), &cap, cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bring_up::caps::Capabilities;
    use crate::tests::mock::{MockPlatform, started};

    #[test]
    fn a_device_that_lacks_a_part_of_xrc_is_asked_for_nothing() {
        let (mut driver, _shared) = started();
        let view: &mut Driver<MockPlatform> = &mut driver;
        let all = Capabilities { xrc: true, user_index: true, pools: true, ..Capabilities::default() };
        for caps in [
            Capabilities { xrc: false, ..all },
            Capabilities { user_index: false, ..all },
            Capabilities { pools: false, ..all },
        ] {
            view.caps = caps;
            let refused = view.alloc_xrcd().map(drop).map_err(Error::from);
            assert_eq!(refused, Err(Error::Unsupported { feature: Feature::Transport }));
        }
    }
}
