//! User access regions: the pages of the BAR with the doorbells.

use bareverbs_mlx5_spec::{
    CqArm, EqDoorbell, SendDoorbell, UAR_BLUEFLAME, UAR_CQ_ARM, UAR_EQ_ARM, UAR_EQ_UPDATE, UAR_PAGE, View,
};

use crate::audit::Finding;
use crate::firmware::Firmware;
use crate::registry::{FIRST_SQN, ObjectKind, Resource};
use crate::step::StepContext;
use crate::trace::Record;

/// A send doorbell lies at the start of a BlueFlame buffer; what follows in the buffer is a copy of the WQE.
const BLUEFLAME_BUFFER: usize = 256;

/// First half of a doorbell of eight bytes that a host writes in two accesses of four.
#[derive(Clone, Copy, Debug)]
struct Half {
    uar: u32,
    offset: usize,
    bytes: [u8; 4],
}

/// The doorbells of all pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doorbells {
    half: Option<Half>,
}

impl Doorbells {
    /// Takes a write to page `uar` at byte `offset` of it.
    pub(crate) fn write(&mut self, firmware: &mut Firmware, ctx: &mut StepContext<'_>, uar: u32, offset: usize, bytes: &[u8]) {
        ctx.trace(Record::Doorbell { uar, offset, bytes });
        if !firmware.engine.registry().contains(Resource::uar(uar)) {
            ctx.audit.report(Finding::UnknownDoorbell { uar, offset, number: 0 });
            return;
        }
        match offset {
            UAR_EQ_ARM | UAR_EQ_UPDATE => match View::<EqDoorbell>::new(bytes) {
                Some(bell) => {
                    let (eqn, ci) = (bell.get(EqDoorbell::EQN), bell.get(EqDoorbell::CONSUMER_INDEX));
                    if is_foreign(firmware, Resource::eq(eqn), uar) {
                        ctx.audit.report(Finding::ForeignDoorbell { uar, offset, number: eqn });
                    } else if !firmware.eqs.doorbell(ctx, eqn, ci, offset == UAR_EQ_ARM) {
                        ctx.audit.report(Finding::UnknownDoorbell { uar, offset, number: eqn });
                    }
                }
                None => ctx.audit.report(Finding::MalformedDoorbell { uar, offset, len: bytes.len() }),
            },
            _ => {
                if let Some((offset, eight)) = self.gather(ctx, uar, offset, bytes) {
                    Self::ring(firmware, ctx, uar, offset, eight);
                }
            }
        }
    }

    /// Returns the eight bytes at the place of a doorbell, once they are all there. The rest of a BlueFlame copy is left aside:
    /// the WQE lies in memory too.
    fn gather(&mut self, ctx: &mut StepContext<'_>, uar: u32, offset: usize, bytes: &[u8]) -> Option<(usize, [u8; 8])> {
        let second = |at: usize| at == UAR_CQ_ARM + 4 || (at >= UAR_BLUEFLAME && at % BLUEFLAME_BUFFER == 4);
        let first = offset == UAR_CQ_ARM || (offset >= UAR_BLUEFLAME && offset.is_multiple_of(BLUEFLAME_BUFFER));
        if first {
            if let Some(eight) = bytes.first_chunk() {
                return Some((offset, *eight));
            }
            if let Ok(bytes) = bytes.try_into() {
                self.half = Some(Half { uar, offset, bytes });
                return None;
            }
        } else if second(offset) && bytes.len() == 4 {
            let half = self.half.take()?;
            if half.uar == uar && half.offset + 4 == offset {
                let mut eight = [0; 8];
                for (to, from) in eight.iter_mut().zip(half.bytes.iter().chain(bytes)) {
                    *to = *from;
                }
                return Some((half.offset, eight));
            }
        } else if offset >= UAR_BLUEFLAME && offset + bytes.len() <= UAR_PAGE {
            return None;
        }
        ctx.audit.report(Finding::MalformedDoorbell { uar, offset, len: bytes.len() });
        None
    }

    fn ring(firmware: &mut Firmware, ctx: &mut StepContext<'_>, uar: u32, offset: usize, eight: [u8; 8]) {
        let arm = (offset == UAR_CQ_ARM).then(|| View::<CqArm>::of(&eight));
        let queue = match arm {
            Some(arm) => Resource::cq(arm.get(CqArm::CQN)),
            None => match SendDoorbell::from_be_word(u64::from_ne_bytes(eight)).qpn {
                sqn @ FIRST_SQN.. => Resource::new(ObjectKind::Sq, sqn),
                qpn => Resource::qp(qpn),
            },
        };
        let number = queue.number;
        if is_foreign(firmware, queue, uar) {
            ctx.audit.report(Finding::ForeignDoorbell { uar, offset, number });
            return;
        }
        let known = match arm {
            Some(arm) => firmware.engine.arm_cq(ctx, number, arm),
            None => firmware.engine.ring_send(ctx, number, eight),
        };
        if !known {
            ctx.audit.report(Finding::UnknownDoorbell { uar, offset, number });
        }
    }
}

/// Returns whether a queue is rung in another page than its context names. Devices leave that alone: a program has its own
/// pages mapped and no others, so this keeps it from the queues of others.
fn is_foreign(firmware: &Firmware, queue: Resource, uar: u32) -> bool {
    let registry = firmware.engine.registry();
    registry.contains(queue) && !registry.refers(queue, Resource::uar(uar))
}
