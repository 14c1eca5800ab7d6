//! Shared receive queues: receive memory pools (RMP), as drivers of interface step 1 make them.
//!
//! Older interface steps have CREATE_SRQ instead. A device with such a step is said to have no shared receive queues.

use bareverbs::backend::SrqSizes;
use bareverbs::platform::Platform;
use bareverbs::{DeviceAttr, SrqCap};
use bareverbs_mlx5_spec::{
    ARM_XRC_SRQ, ArmXrcSrqIn, Buffer, CmdOpcode, CreateRmpIn, CreateXrcSrqIn, DS_UNIT, ModifyRmpIn, QueryRmpIn, QueryRmpOut,
    QueryXrcSrqIn, QueryXrcSrqOut, Rmpc, Wq, XrcSrqc, cmd, rmp_bitmask, rmpc_state, wq_type,
};

use crate::dma::arena::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
use crate::object::Object;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::ring::open_ring;

/// Fewest units of a WQE: the link and one data segment.
const MIN_UNITS: u32 = 2;

/// Returns the 16-byte units of a WQE with so many SGEs.
fn units(max_sge: u32) -> u32 {
    max_sge.saturating_add(1).next_power_of_two().max(MIN_UNITS)
}

/// Returns the sizes of a shared receive queue. One place is kept back, as in every driver of such a list.
pub(crate) fn srq_sizes(cap: &SrqCap, attr: &DeviceAttr) -> Result<SrqSizes, Error> {
    for (requested, limit) in [(cap.max_wr, attr.max_srq_wr), (cap.max_sge, attr.max_srq_sge)] {
        if requested > limit {
            return Err(Error::LimitExceeded { limit });
        }
    }
    let slots = (cap.max_wr + 1).next_power_of_two().max(MIN_UNITS);
    Ok(SrqSizes { slots, cap: SrqCap { max_wr: slots - 1, max_sge: units(cap.max_sge) - 1 } })
}

impl<P: Platform> Driver<P> {
    pub(crate) fn create_srq(&mut self, pd: &Object, sizes: &SrqSizes) -> Result<(Object, Mlx5RecvRing<P>), Error> {
        self.make_srq(sizes, |this, memory, units| {
            let mut input = Buffer::zeroed();
            let mut view = input.view_mut();
            let mut context = view.sub(CreateRmpIn::CTX);
            context.set(Rmpc::STATE, rmpc_state::READY);
            context
                .sub(Rmpc::WQ)
                .set(Wq::WQ_TYPE, wq_type::LINKED_LIST)
                .set(Wq::PD, pd.number)
                .set(Wq::LOG_WQ_STRIDE, (units * DS_UNIT as u32).trailing_zeros())
                .set(Wq::LOG_WQ_SZ, sizes.slots.trailing_zeros())
                .set64(Wq::DBR_ADDR, this.commands.arena.addr(memory.record));
            this.commands.make::<cmd::CreateRmp, cmd::DestroyRmp>(input.view(), memory)
        })
    }

    /// Creates an XRC shared receive queue in a domain, with its ring. Its completions carry `user_index` (Linux
    /// `create_xrc_srq_cmd`).
    pub(crate) fn create_xrc_srq(
        &mut self,
        [pd, xrcd, cqn, user_index]: [u32; 4],
        sizes: &SrqSizes,
    ) -> Result<(Object, Mlx5RecvRing<P>), Error> {
        self.make_srq(sizes, |this, memory, units| {
            let record = this.commands.arena.addr(memory.record);
            let mut input = Buffer::zeroed();
            let mut view = input.view_mut();
            view.sub(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY)
                .set(XrcSrqc::LOG_XRC_SRQ_SIZE, sizes.slots.trailing_zeros())
                .set(XrcSrqc::LOG_RQ_STRIDE, units.trailing_zeros())
                .set(XrcSrqc::XRCD, xrcd)
                .set(XrcSrqc::CQN, cqn)
                .set(XrcSrqc::USER_INDEX, user_index)
                .set(XrcSrqc::PD, pd)
                .set(XrcSrqc::DB_RECORD_ADDR_H, (record >> 32) as u32)
                .set(XrcSrqc::DB_RECORD_ADDR_L, record as u32 >> 2);
            this.commands.make::<cmd::CreateXrcSrq, cmd::DestroyXrcSrq>(input.view(), memory)
        })
    }

    /// Makes a queue with its ring in memory of its own. `create` executes the command, for WQEs of so many units.
    fn make_srq(
        &mut self,
        sizes: &SrqSizes,
        create: impl FnOnce(&mut Self, ObjectMemory, u32) -> Result<Object, Error>,
    ) -> Result<(Object, Mlx5RecvRing<P>), Error> {
        let units = units(sizes.cap.max_sge);
        let bytes = sizes.slots as usize * units as usize * DS_UNIT;
        self.in_memory(bytes, true, |this, memory| {
            // The ring first: without it, a queue of the device would be leaked.
            let ring = open_ring(&this.commands.machine.memory, memory.ring.at(), bytes, memory.record)?;
            let srq = create(this, memory, units)?;
            log_event!(debug, "shared receive queue {:x}: {} slots of {} segments", srq.number, sizes.slots, units - 1);
            let ring = Mlx5RecvRing { ring, fence: this.commands.machine.fence.clone(), units };
            Ok((srq, ring))
        })
    }

    pub(crate) fn arm_srq(&mut self, srq: &Object, limit: u32) -> Result<(), Error> {
        if srq.is_destroyed_by(CmdOpcode::DestroyXrcSrq) {
            return self.commands.perform::<cmd::ArmXrcSrq>(|input| {
                input.set(ArmXrcSrqIn::OP_MOD, ARM_XRC_SRQ).set(ArmXrcSrqIn::XRC_SRQN, srq.number).set(ArmXrcSrqIn::LWM, limit)
            });
        }
        self.commands.perform::<cmd::ModifyRmp>(|input| {
            let mut context = input.sub(ModifyRmpIn::CTX);
            context.set(Rmpc::STATE, rmpc_state::READY).sub(Rmpc::WQ).set(Wq::LWM, limit);
            input
                .set(ModifyRmpIn::RMP_STATE, rmpc_state::READY)
                .set(ModifyRmpIn::RMPN, srq.number)
                .set64(ModifyRmpIn::BITMASK, rmp_bitmask::LWM)
        })
    }

    pub(crate) fn query_srq(&mut self, srq: &Object) -> Result<u32, Error> {
        if srq.is_destroyed_by(CmdOpcode::DestroyXrcSrq) {
            let output = self.commands.query::<cmd::QueryXrcSrq>(|input| input.set(QueryXrcSrqIn::XRC_SRQN, srq.number))?;
            return Ok(output.view().sub(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY).get(XrcSrqc::LWM));
        }
        let output = self.commands.query::<cmd::QueryRmp>(|input| input.set(QueryRmpIn::RMPN, srq.number))?;
        Ok(output.view().sub(QueryRmpOut::RMP_CONTEXT).sub(Rmpc::WQ).get(Wq::LWM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(max_wr: u32, max_sge: u32) -> Result<SrqSizes, Error> {
        let attr = DeviceAttr { max_srq_wr: 32_767, max_srq_sge: 31, ..DeviceAttr::default() };
        srq_sizes(&SrqCap { max_wr, max_sge }, &attr)
    }

    /// A WQE is a link of 16 bytes and a data segment of 16 bytes for each SGE (PRM, shared receive queue WQE), rounded up to a power of
    /// two; as many as slots, less one.
    #[test]
    fn a_queue_has_room_for_what_is_asked_and_one_place_more() {
        for ((max_wr, max_sge), (slots, got_wr, got_sge)) in [
            ((1, 0), (2, 1, 1)),
            ((1, 1), (2, 1, 1)),
            ((2, 2), (4, 3, 3)),
            ((7, 3), (8, 7, 3)),
            ((8, 4), (16, 15, 7)),
            ((32_767, 31), (32_768, 32_767, 31)),
        ] {
            let cap = SrqCap { max_wr: got_wr, max_sge: got_sge };
            assert_eq!(sizes(max_wr, max_sge), Ok(SrqSizes { slots, cap }), "{max_wr} {max_sge}");
        }
        assert_eq!(sizes(32_768, 1), Err(Error::LimitExceeded { limit: 32_767 }));
        assert_eq!(sizes(1, 32), Err(Error::LimitExceeded { limit: 31 }));
        assert_eq!(sizes(u32::MAX, u32::MAX), Err(Error::LimitExceeded { limit: 32_767 }));
    }

    /// Each number of requests and of SGEs that a device has: one slot more than requests, one unit more than SGEs, powers of two.
    #[test]
    fn every_queue_has_the_least_power_of_two_that_is_enough() {
        let least = |wanted: u32| {
            let mut size = 2;
            while size < wanted {
                size += size;
            }
            size
        };
        for max_wr in (1..=32_767).step_by(if cfg!(miri) { 4099 } else { 1 }) {
            for max_sge in if max_wr < 64 { &[0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 30, 31][..] } else { &[1, 31] } {
                let slots = least(max_wr + 1);
                let cap = SrqCap { max_wr: slots - 1, max_sge: least(max_sge + 1) - 1 };
                assert_eq!(sizes(max_wr, *max_sge), Ok(SrqSizes { slots, cap }), "{max_wr} {max_sge}");
            }
        }
    }

    #[test]
    fn a_device_without_pools_has_none() {
        assert!(srq_sizes(&SrqCap { max_wr: 1, max_sge: 0 }, &DeviceAttr::default()).is_err());
    }
}
