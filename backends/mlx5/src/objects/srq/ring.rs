//! The ring of one shared receive queue: a linked list of receive WQEs.

use bareverbs::{DmaFence, DmaMemory, DmaRing, Platform, RingView, Sge};
use bareverbs_mlx5_spec::{WqeSrqNextSeg, be_word};

use crate::log::format_as;
use crate::objects::qp::segment::put_receive;

/// The ring of one shared receive queue.
pub struct Mlx5SrqRing<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    fence: P::Fence,
    /// 16-byte units of a WQE: the link, and data segments.
    units: u32,
}

format_as!([P: Platform] Mlx5SrqRing<P>, "Mlx5SrqRing({} bytes an entry)", |this| this.units * 16);

impl<P: Platform> Mlx5SrqRing<P> {
    pub(crate) fn new(ring: <P::Memory as DmaMemory>::Ring, fence: P::Fence, units: u32) -> Self {
        Self { ring, fence, units }
    }
}

impl<P: Platform> bareverbs::SrqRing for Mlx5SrqRing<P> {
    fn put(&mut self, at: u16, next: u16, sges: &[Sge]) {
        let ring = self.ring.view();
        let word = u32::from(at).wrapping_mul(self.units).wrapping_mul(2);
        ring.put_word(word, be_word(WqeSrqNextSeg::NEXT_WQE_INDEX.place(next.into()), 0));
        ring.put_word(word.wrapping_add(1), 0);
        put_receive(ring, word.wrapping_add(2), word.wrapping_add(self.units.wrapping_mul(2)), sges);
    }

    /// Receives have no register: the device polls the record.
    fn ring(&mut self, end: u32) {
        self.fence.publish();
        self.ring.view().record(false, (end & 0xffff).to_be());
    }
}
