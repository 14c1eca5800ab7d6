//! Posting of receive requests.

use crate::parts::{Mr, Qp};
use crate::region::check_sge;
use crate::ring::place;
use crate::table::TableView;
use crate::{Access, DataPath, PostRecvError, QpState, RecvWr, kind};

/// The receive queue of one queue pair, open for posting.
pub(crate) struct RecvQueue<'a, P: DataPath> {
    pub(crate) provider: &'a mut P,
    pub(crate) qp: &'a mut Qp<P>,
    /// `wr_id` of each receive.
    pub(crate) entries: &'a mut [u64],
    pub(crate) mrs: &'a TableView<kind::Mr, Mr<P>>,
    pub(crate) slot_mask: u32,
}

/// Whether a queue pair of this state takes receives.
#[inline]
const fn can_receive(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Err)
}

impl<P: DataPath> RecvQueue<'_, P> {
    /// Whether the state lets receives be posted at all.
    #[inline]
    pub(crate) fn ready(&self) -> Result<(), PostRecvError<P::Error>> {
        if can_receive(self.qp.state) { Ok(()) } else { Err(PostRecvError::NotReady { state: self.qp.state }) }
    }

    /// Posts a receive without telling the device.
    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError<P::Error>> {
        let max = self.qp.cap.max_recv_sge;
        if wr.sges.len() > max as usize {
            return Err(PostRecvError::SgeCount { count: wr.sges.len(), max });
        }
        for (index, sge) in wr.sges.iter().enumerate() {
            if let Err(fault) = check_sge(self.mrs, self.slot_mask, self.qp.pd, Access::LOCAL_WRITE, sge) {
                return Err(PostRecvError::Sge { index, lkey: sge.lkey, fault });
            }
        }
        if self.qp.recv.free() == 0 {
            return Err(PostRecvError::QueueFull);
        }
        let at = self.qp.recv.head();
        self.provider.encode_recv(&mut self.qp.inner, at, wr.sges).map_err(PostRecvError::Device)?;
        let size = self.entries.len();
        if let Some(entry) = self.entries.get_mut(place(at, size)) {
            *entry = wr.wr_id;
        }
        self.qp.recv.advance(1);
        Ok(())
    }

    /// Tells the device.
    #[inline]
    pub(crate) fn commit(&mut self) -> Result<(), PostRecvError<P::Error>> {
        self.provider.commit_recv(&mut self.qp.inner, self.qp.recv.head()).map_err(PostRecvError::Commit)
    }
}
