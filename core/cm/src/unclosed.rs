//! What a [`Carrier`](crate::Carrier) is made of while it is not whole: half opened, or half closed.

use bareverbs::backend::Provider;
use bareverbs::error::{DeregMrError, DestroyCqError, DestroyQpError};
use bareverbs::{CompletionQueue, CqHandle, DmaBuffer, QpHandle, QueuePair, Refused, Region, Verbs};

/// What is left of a [`Carrier`](crate::Carrier) that was not opened or not closed. Nothing of it is in use: [`Self::close`] destroys it, and
/// may be called again until it does.
#[must_use = "what is dropped stays on the device, and its buffer is lost"]
#[derive(Debug)]
pub struct Unclosed<'s, P: Provider, B> {
    pub(crate) qp: Option<QueuePair<'s, P>>,
    pub(crate) cq: Option<CompletionQueue<'s, P>>,
    pub(crate) memory: Memory<'s, B>,
}

#[derive(Debug)]
pub(crate) enum Memory<'s, B> {
    Registered(Region<'s, B>),
    /// Before it is registered, and after.
    Free(B),
}

/// Why a [`Carrier`](crate::Carrier) was not closed. What is behind it in the order of this list is left too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CloseError<E> {
    /// The queue pair was not destroyed.
    Qp(DestroyQpError<E>),
    /// The completion queue was not destroyed: queue pairs of the program complete into it, or the interrupt handler is taken.
    Cq(DestroyCqError<E>),
    /// The buffer was not deregistered.
    Region(DeregMrError<E>),
}

impl<E: bareverbs::error::DeviceError> core::fmt::Display for CloseError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Qp(error) => error.fmt(f),
            Self::Cq(error) => error.fmt(f),
            Self::Region(error) => error.fmt(f),
        }
    }
}

impl<E: bareverbs::error::DeviceError> core::error::Error for CloseError<E> {}

impl<'s, P: Provider, B: DmaBuffer + 'static> Unclosed<'s, P, B> {
    /// Returns a buffer alone.
    pub(crate) const fn of(buffer: B) -> Self {
        Self { qp: None, cq: None, memory: Memory::Free(buffer) }
    }

    /// Returns the handle of the queue pair, if it is left.
    pub fn qp(&self) -> Option<QpHandle> {
        self.qp.as_ref().map(QueuePair::handle)
    }

    /// Returns the handle of the completion queue, if it is left.
    pub fn cq(&self) -> Option<CqHandle> {
        self.cq.as_ref().map(CompletionQueue::handle)
    }

    /// Destroys what is left, in the order of [`CloseError`], and gives the buffer back.
    ///
    /// # Errors
    ///
    /// [`CloseError`], as [`Carrier::close`](crate::Carrier::close) has it. What is left then comes back: less than before, or the same.
    #[expect(clippy::result_large_err, reason = "the queues themselves are given back")]
    pub fn close(mut self, verbs: &mut Verbs<'s, P>) -> Result<B, Refused<Self, CloseError<P::Error>>> {
        if let Some(qp) = self.qp.take()
            && let Err(refused) = verbs.destroy_qp(qp)
        {
            self.qp = refused.returned;
            return Err(Refused { error: CloseError::Qp(refused.error), returned: Some(self) });
        }
        if let Some(cq) = self.cq.take()
            && let Err(refused) = verbs.destroy_cq(cq)
        {
            self.cq = refused.returned;
            return Err(Refused { error: CloseError::Cq(refused.error), returned: Some(self) });
        }
        match self.memory {
            Memory::Free(buffer) => Ok(buffer),
            Memory::Registered(region) => verbs.dereg_mr(region).map_err(|refused| {
                let left = |region| Self { qp: None, cq: None, memory: Memory::Registered(region) };
                Refused { error: CloseError::Region(refused.error), returned: refused.returned.map(left) }
            }),
        }
    }

    /// Destroys as much as there is after `error`.
    pub(crate) fn undo<E>(self, verbs: &mut Verbs<'s, P>, error: E) -> Refused<Self, E> {
        let returned = match self.close(verbs) {
            Ok(buffer) => Some(Self::of(buffer)),
            // The first error is the one to report.
            Err(refused) => refused.returned,
        };
        Refused { error, returned }
    }
}
