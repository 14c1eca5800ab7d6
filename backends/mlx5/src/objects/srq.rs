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
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::vec::Vec;

    use super::*;
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, respond, started};

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

    /// Returns a command of so many bytes with these fields, by their places.
    fn command(len: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = std::vec![0; len];
        for (at, field) in fields {
            bytes[*at..][..field.len()].copy_from_slice(field);
        }
        bytes
    }

    /// By `create_rmp_in`, `rmpc` and `wq` of `mlx5_ifc.h`: the context is at 32, with the state (1 is ready) in the upper half of byte 1, and the
    /// work queue at 48 of it. By `create_xrc_srq_in` and `xrc_srqc`: the context is at 16. Both end with their pages.
    #[test]
    fn a_queue_is_the_bytes_of_its_structure() {
        for (max_wr, max_sge, log_slots, log_units) in [(1, 1, 1, 1), (7, 3, 3, 2), (255, 1, 8, 1), (100, 30, 7, 5)] {
            let sizes = sizes(max_wr, max_sge).unwrap();
            for is_xrc in [false, true] {
                let (mut driver, shared) = started();
                let driver: &mut Driver<MockPlatform> = &mut driver;
                let sent = Rc::new(RefCell::new(Vec::new()));
                let note = sent.clone();
                respond(&shared, move |input, output| {
                    *note.borrow_mut() = input.to_vec();
                    output[8..12].copy_from_slice(&0x12_3456_u32.to_be_bytes());
                });
                let pd = Object::of::<cmd::DeallocPd>(0x0a_0b0c, ObjectMemory::default());
                let (srq, ring) = if is_xrc {
                    driver.create_xrc_srq([0x0a_0b0c, 0x01_0203, 0x04_0506, 0x07_0809], &sizes).unwrap()
                } else {
                    driver.create_srq(&pd, &sizes).unwrap()
                };
                assert_eq!((srq.number, ring.units), (0x12_3456, 1 << log_units));
                let record = (DEVICE_ADDR + srq.memory.record as u64).to_be_bytes();
                let mut expected = if is_xrc {
                    let fields: &[(usize, &[u8])] = &[
                        (0, &[7, 5]),
                        (16, &[log_slots, 0, 0, 0, log_units, 1, 2, 3, 0, 4, 5, 6]),
                        (16 + 17, &[7, 8, 9]),
                        (16 + 25, &[0x0a, 0x0b, 0x0c]),
                        (16 + 40, &record),
                    ];
                    command(272, fields)
                } else {
                    // wq_type 0 is a linked list (`MLX5_WQ_TYPE_LINKED_LIST`).
                    let fields: &[(usize, &[u8])] = &[
                        (0, &[9, 0x0c]),
                        (32 + 1, &[1 << 4]),
                        (80 + 9, &[0x0a, 0x0b, 0x0c]),
                        (80 + 16, &record),
                        (80 + 33, &[log_units + 4, 0, log_slots]),
                    ];
                    command(272, fields)
                };
                let pages = (16_u64 << log_units << log_slots).div_ceil(4096);
                let first = DEVICE_ADDR + srq.memory.ring.at() as u64;
                expected.extend((0..pages).flat_map(|page| (first + 4096 * page).to_be_bytes()));
                assert_eq!(*sent.borrow(), expected, "{max_wr} {max_sge} {is_xrc}");
            }
        }
    }

    /// The limit is `lwm`: of a pool at 6 of the work queue, and named by bit 0 of the bitmask at 16 of MODIFY_RMP (0x90d); of an XRC queue at 14 of
    /// ARM_XRC_SRQ (0x708, op_mod 1), and at 28 of its context.
    #[test]
    fn a_limit_is_set_and_read_where_the_kind_of_queue_has_it() {
        let pool = Object::of::<cmd::DestroyRmp>(0x12_3456, ObjectMemory::default());
        let xrc = Object::of::<cmd::DestroyXrcSrq>(0x12_3456, ObjectMemory::default());
        let number: (usize, &[u8]) = (9, &[0x12, 0x34, 0x56]);
        for (srq, [arm, query], place) in [
            (
                pool,
                [
                    command(272, &[(0, &[9, 0x0d]), (8, &[1 << 4]), number, (23, &[1]), (33, &[1 << 4]), (86, &[0xab, 0xcd])]),
                    command(16, &[(0, &[9, 0x0f]), number]),
                ],
                86,
            ),
            (
                xrc,
                [command(16, &[(0, &[7, 8]), (7, &[1]), number, (14, &[0xab, 0xcd])]), command(16, &[(0, &[7, 7]), number])],
                44,
            ),
        ] {
            let (mut driver, shared) = started();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let sent = Rc::new(RefCell::new(Vec::new()));
            let note = sent.clone();
            respond(&shared, move |input, output| {
                note.borrow_mut().push(input.to_vec());
                if let Some(limit) = output.get_mut(place..place + 2) {
                    limit.copy_from_slice(&[0x98, 0x76]);
                }
            });
            driver.arm_srq(&srq, 0xabcd).unwrap();
            assert_eq!(driver.query_srq(&srq), Ok(0x9876));
            assert_eq!(*sent.borrow(), [arm, query]);
        }
    }
}
