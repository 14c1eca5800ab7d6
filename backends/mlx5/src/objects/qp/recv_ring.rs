//! The receive ring of one queue pair.

use bareverbs::{DmaFence, DmaMemory, DmaRing, Platform, RingView, Sge};

use super::segment::{data, put_receive};
use crate::log::format_as;

/// The receive ring of one queue pair.
pub struct Mlx5RecvRing<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    fence: P::Fence,
    /// Data segments of an entry.
    units: u32,
}

format_as!([P: Platform] Mlx5RecvRing<P>, "Mlx5RecvRing({} bytes an entry)", |this| this.units * 16);

impl<P: Platform> Mlx5RecvRing<P> {
    pub(crate) fn new(ring: <P::Memory as DmaMemory>::Ring, fence: P::Fence, units: u32) -> Self {
        Self { ring, fence, units }
    }
}

impl<P: Platform> bareverbs::RecvRing for Mlx5RecvRing<P> {
    #[inline(always)]
    fn put(&mut self, at: u32, sges: &[Sge]) {
        let ring = self.ring.view();
        // Almost all receives: one segment, and room for one.
        if let ([sge], 1) = (sges, self.units)
            && sge.length != 0
        {
            let [head, start] = data(sge);
            ring.put_word(at.wrapping_mul(2), head);
            ring.put_word(at.wrapping_mul(2).wrapping_add(1), start);
            return;
        }
        let word = at.wrapping_mul(self.units).wrapping_mul(2);
        put_receive(ring, word, word.wrapping_add(self.units.wrapping_mul(2)), sges);
    }

    /// Receives have no register: the device polls the record.
    #[inline(always)]
    fn ring(&mut self, end: u32) {
        self.fence.publish();
        self.ring.view().record(false, (end & 0xffff).to_be());
    }

    fn reset(&mut self) {}
}
