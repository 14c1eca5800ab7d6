//! XRC domains and their queue pairs.
//!
//! A device wants more of them than IBTA has: an initiator is in a domain, and either end names a shared receive queue and a completion
//! queue, a target a protection domain too. Linux has one of each, which do nothing, in a domain of their own, so that no peer reaches the
//! shared receive queue by its number (`mlx5_ib_dev_res_init`). They are made here with the first domain, and end with the last.

use bareverbs::backend::SrqSizes;
use bareverbs::platform::Platform;
use bareverbs::storage::RingSizes;
use bareverbs::{QpType, SrqCap};
use bareverbs_mlx5_spec::{CmdHcaCap, View, cmd, rq_type};

use crate::dma::arena::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, Feature};
use crate::log::log_event;
use crate::object::Object;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::objects::qp::send_ring::Mlx5SendRing;
use crate::objects::qp::{NO_USER_INDEX, Qp};

/// The shared receive queue to which nobody posts.
const UNUSED: SrqSizes = SrqSizes { slots: 2, cap: SrqCap { max_wr: 1, max_sge: 1 } };

impl<P: Platform> Driver<P> {
    pub(crate) fn alloc_xrcd(&mut self) -> Result<Object, Error> {
        if self.capability(CmdHcaCap::XRC) == 0 || !self.caps.user_index || !self.caps.pools {
            return Err(Error::Unsupported { feature: Feature::Xrc });
        }
        let mut domain = self.commands.make::<cmd::AllocXrcd, cmd::DeallocXrcd>(View::zeros(), ObjectMemory::default())?;
        self.xrcds = self.xrcds.wrapping_add(1);
        if let Err(error) = self.fill_unused() {
            // The first error is the one to report.
            let _ = self.dealloc_xrcd(&mut domain);
            return Err(error);
        }
        log_event!(debug, "XRC domain {:x}", domain.number);
        Ok(domain)
    }

    /// Returns the numbers of domain, protection domain, completion queue and shared receive queue of nobody, 0 for what is not there.
    fn unused_numbers(&self) -> [u32; 4] {
        let mut numbers = [0; 4];
        for (place, object) in numbers.iter_mut().zip(&self.unused) {
            *place = object.number;
        }
        numbers
    }

    /// Makes those that are not there.
    #[inline(never)]
    fn fill_unused(&mut self) -> Result<(), Error> {
        while !self.unused.is_full() {
            let [domain, pd, cq, _] = self.unused_numbers();
            let object = match self.unused.len() {
                0 => self.commands.make::<cmd::AllocXrcd, cmd::DeallocXrcd>(View::zeros(), ObjectMemory::default())?,
                1 => self.alloc_pd()?,
                2 => self.create_cq(1, self.config.cqe_size)?.0,
                _ => self.create_xrc_srq([pd, domain, cq, NO_USER_INDEX], &UNUSED)?.0,
            };
            // The bound of the loop is the list's capacity.
            let _ = self.unused.push(object);
        }
        Ok(())
    }

    /// Ends them, the last first, as far as the device does.
    fn end_unused(&mut self) -> Result<(), Error> {
        while let Some(object) = self.unused.last().copied() {
            self.end(&object)?;
            self.unused.pop();
        }
        Ok(())
    }

    pub(crate) fn dealloc_xrcd(&mut self, domain: &mut Object) -> Result<(), Error> {
        self.end(domain)?;
        self.xrcds = self.xrcds.saturating_sub(1);
        if self.xrcds == 0 {
            // What the device keeps serves the next domain.
            let _ = self.end_unused();
        }
        Ok(())
    }

    /// Creates an initiator or, without its protection domain and completion queue, a target, in RESET. What it names besides is as Linux
    /// has it (`create_xrc_tgt_qp`, and the XRC initiators of `create_user_qp`).
    pub(crate) fn create_xrc_qp(
        &mut self,
        domain: &Object,
        initiator: Option<(&Object, &Object)>,
        sizes: &RingSizes,
        cookie: u32,
    ) -> Result<(Qp, Mlx5SendRing<P>, Mlx5RecvRing<P>), Error> {
        let [_, pd, cq, srqn] = self.unused_numbers();
        let (numbers, rq_type) = match initiator {
            Some((pd, send_cq)) => ([pd.number, send_cq.number, cq], rq_type::NONE),
            None => ([pd, cq, cq], rq_type::SRQ),
        };
        self.create_qp(QpType::XrcSend, numbers, [rq_type, srqn, domain.number], sizes, cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bring_up::caps::Capabilities;
    use crate::tests::mock::{MockPlatform, offer, started};

    #[test]
    fn a_device_that_lacks_a_part_of_xrc_is_asked_for_nothing() {
        let (mut driver, _shared) = started();
        let view: &mut Driver<MockPlatform> = &mut driver;
        let all = Capabilities { user_index: true, pools: true, ..Capabilities::default() };
        // xrc is bit 3 of the dword at 68 of the page (`cmd_hca_cap` of `mlx5_ifc.h`).
        for (xrc, caps) in
            [(0, all), (1 << 3, Capabilities { user_index: false, ..all }), (1 << 3, Capabilities { pools: false, ..all })]
        {
            offer(&mut view.general, 68, xrc);
            view.caps = caps;
            let refused = view.alloc_xrcd().map(drop);
            assert_eq!(refused, Err(Error::Unsupported { feature: Feature::Xrc }));
        }
    }
}
