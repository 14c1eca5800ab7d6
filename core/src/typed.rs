//! Send requests that cannot express what their transport lacks.
//!
//! A [`Wr`] is built by constructors that exist only where the transport has the operation, and takes only flags that fit;
//! a [`TypedQp`] accepts only requests of its own transport. What is left to check when a request is posted depends on
//! numbers: keys, lengths, room.
//!
//! An unreliable connection reads nothing and does no atomics:
//!
//! ```compile_fail,E0277
//! # use bareverbs::typed::{Uc, Wr};
//! # use bareverbs::{Remote, Rkey};
//! let wr = Wr::<Uc>::read(1, &[], Remote { addr: 0, rkey: Rkey::new(0) });
//! ```
//!
//! ```compile_fail,E0277
//! # use bareverbs::typed::{Uc, Wr};
//! # use bareverbs::{Remote, Rkey, Sge};
//! let wr = Wr::<Uc>::fetch_add(1, Sge::default(), Remote { addr: 0, rkey: Rkey::new(0) }, 1);
//! ```
//!
//! nor can it be fenced:
//!
//! ```compile_fail,E0277
//! # use bareverbs::typed::{Uc, Wr};
//! # use bareverbs::Payload;
//! let wr = Wr::<Uc>::send(1, Payload::Sges(&[])).fenced();
//! ```
//!
//! A datagram has no remote memory:
//!
//! ```compile_fail,E0277
//! # use bareverbs::typed::{Ud, Wr};
//! # use bareverbs::{Payload, Remote, Rkey};
//! let wr = Wr::<Ud>::write(1, Payload::Sges(&[]), Remote { addr: 0, rkey: Rkey::new(0) });
//! ```
//!
//! An RDMA write completes nothing at the peer, so it cannot be solicited:
//!
//! ```compile_fail,E0599
//! # use bareverbs::typed::{Rc, Wr};
//! # use bareverbs::{Payload, Remote, Rkey};
//! let wr = Wr::<Rc>::write(1, Payload::Sges(&[]), Remote { addr: 0, rkey: Rkey::new(0) }).solicited();
//! ```
//!
//! What the transport has compiles:
//!
//! ```
//! # use bareverbs::typed::{Rc, Uc, Wr};
//! # use bareverbs::{Payload, Remote, Rkey};
//! let remote = Remote { addr: 0, rkey: Rkey::new(0) };
//! let read = Wr::<Rc>::read(1, &[], remote).fenced().signaled();
//! let write = Wr::<Uc>::write_with_imm(2, Payload::Inline(b"hello"), remote, [0, 0, 0, 1]).solicited();
//! ```

use core::marker::PhantomData;

use crate::log::format_as;
use crate::{
    BindInfo, KeyTag, MwHandle, Payload, PostSendError, Provider, QpHandle, QpState, QpType, Remote, Rkey, SendBatch,
    SendBatchError, SendFlags, SendOp, SendWr, Sge, Verbs,
};

mod sealed {
    pub trait Sealed {}
}

/// A transport, as a type.
pub trait Transport: sealed::Sealed {
    /// The transport, as a value.
    const TYPE: QpType;
}

/// A transport with a peer: messages, RDMA writes and windows.
pub trait Connected: Transport {}

/// A transport that acknowledges: reads, atomics and fences too.
pub trait Reliable: Connected {}

macro_rules! transports {
    ($($(#[$meta:meta])* $name:ident: $($kind:ident),+;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl Transport for $name {
            const TYPE: QpType = QpType::$name;
        }

        transports!(@kinds $name: $($kind),+);
    )+};
    (@kinds $name:ident: Transport $(, $kind:ident)*) => { $(impl $kind for $name {})* };
}

transports! {
    /// Reliable connection.
    Rc: Transport, Connected, Reliable;
    /// Unreliable connection.
    Uc: Transport, Connected;
    /// Unreliable datagram. It has no request yet: a datagram names its destination by an address handle.
    Ud: Transport;
    /// Initiator of an extended reliable connection.
    XrcSend: Transport, Connected, Reliable;
}

/// A request whose completion at the peer can be a solicited one.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Solicitable {}

/// A request that completes nothing at the peer.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Unsolicitable {}

/// A send request for transport `T`. `N` is [`Solicitable`] or [`Unsolicitable`].
#[derive(Clone, Copy)]
pub struct Wr<'a, T, N = Unsolicitable> {
    wr: SendWr<'a>,
    kind: PhantomData<fn() -> (T, N)>,
}

format_as!([T: Transport, N] Wr<'_, T, N>, "Wr({:?}, {:?})", |this| T::TYPE, this.wr);

impl<'a, T: Transport, N> Wr<'a, T, N> {
    const fn new(wr_id: u64, op: SendOp<'a>) -> Self {
        Self { wr: SendWr { wr_id, flags: SendFlags::empty(), op }, kind: PhantomData }
    }

    const fn with(mut self, flag: SendFlags) -> Self {
        self.wr.flags = self.wr.flags.union(flag);
        self
    }

    /// Asks for a completion; needed only if the queue pair was made without `sq_sig_all`.
    #[must_use]
    pub const fn signaled(self) -> Self {
        self.with(SendFlags::SIGNALED)
    }

    /// Waits for the reads and atomics before it.
    #[must_use]
    pub const fn fenced(self) -> Self
    where
        T: Reliable,
    {
        self.with(SendFlags::FENCE)
    }

    /// Returns the request without its type.
    pub const fn untyped(&self) -> &SendWr<'a> {
        &self.wr
    }
}

impl<T: Transport> Wr<'_, T, Solicitable> {
    /// Makes the peer's completion a solicited one.
    #[must_use]
    pub const fn solicited(self) -> Self {
        self.with(SendFlags::SOLICITED)
    }
}

impl<'a, T: Transport> Wr<'a, T> {
    /// Creates a SEND.
    pub const fn send(wr_id: u64, payload: Payload<'a>) -> Wr<'a, T, Solicitable>
    where
        T: Connected,
    {
        Wr::new(wr_id, SendOp::Send { payload })
    }

    /// Creates a SEND_WITH_IMM; `imm` in network byte order.
    pub const fn send_with_imm(wr_id: u64, payload: Payload<'a>, imm: [u8; 4]) -> Wr<'a, T, Solicitable>
    where
        T: Connected,
    {
        Wr::new(wr_id, SendOp::SendWithImm { payload, imm })
    }

    /// Creates a SEND_WITH_INV of the peer's type 2 window with key `rkey`.
    pub const fn send_with_inv(wr_id: u64, payload: Payload<'a>, rkey: Rkey) -> Wr<'a, T, Solicitable>
    where
        T: Connected,
    {
        Wr::new(wr_id, SendOp::SendWithInv { payload, rkey })
    }

    /// Creates an RDMA_WRITE.
    pub const fn write(wr_id: u64, payload: Payload<'a>, remote: Remote) -> Self
    where
        T: Connected,
    {
        Self::new(wr_id, SendOp::Write { payload, remote })
    }

    /// Creates an RDMA_WRITE_WITH_IMM; `imm` in network byte order.
    pub const fn write_with_imm(wr_id: u64, payload: Payload<'a>, remote: Remote, imm: [u8; 4]) -> Wr<'a, T, Solicitable>
    where
        T: Connected,
    {
        Wr::new(wr_id, SendOp::WriteWithImm { payload, remote, imm })
    }

    /// Creates an RDMA_READ into `sges`.
    pub const fn read(wr_id: u64, sges: &'a [Sge], remote: Remote) -> Self
    where
        T: Reliable,
    {
        Self::new(wr_id, SendOp::Read { sges, remote })
    }

    /// Creates an ATOMIC_CMP_AND_SWP; `sge` gets the old value.
    pub const fn compare_swap(wr_id: u64, sge: Sge, remote: Remote, compare: u64, swap: u64) -> Self
    where
        T: Reliable,
    {
        Self::new(wr_id, SendOp::CompareSwap { sge, remote, compare, swap })
    }

    /// Creates an ATOMIC_FETCH_AND_ADD; `sge` gets the old value.
    pub const fn fetch_add(wr_id: u64, sge: Sge, remote: Remote, add: u64) -> Self
    where
        T: Reliable,
    {
        Self::new(wr_id, SendOp::FetchAdd { sge, remote, add })
    }

    /// Creates a BIND_MW of a type 2 window; `tag` is that of its new key.
    pub const fn bind_mw(wr_id: u64, mw: MwHandle, tag: KeyTag, info: BindInfo) -> Self
    where
        T: Connected,
    {
        Self::new(wr_id, SendOp::BindMw { mw, tag, info })
    }

    /// Creates a LOCAL_INV of a type 2 window.
    pub const fn local_inv(wr_id: u64, rkey: Rkey) -> Self
    where
        T: Connected,
    {
        Self::new(wr_id, SendOp::LocalInv { rkey })
    }
}

/// A queue pair of a known transport that was ready to send when the value was created. It can break at any time, so posting
/// still checks the state.
#[derive(Clone, Copy)]
pub struct TypedQp<T> {
    handle: QpHandle,
    transport: PhantomData<fn() -> T>,
}

format_as!([T: Transport] TypedQp<T>, "TypedQp({:?}, {:?})", |this| T::TYPE, this.handle);

impl<T> TypedQp<T> {
    /// Returns the handle without its type.
    pub const fn handle(&self) -> QpHandle {
        self.handle
    }
}

/// Why a queue pair is not one that the type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TypedQpError {
    /// The handle is stale.
    Stale,
    /// It has another transport.
    Transport {
        /// The one that it has.
        qp_type: QpType,
    },
    /// It does not send in its state.
    NotReady {
        /// The state.
        state: QpState,
    },
}

impl TypedQpError {
    /// Returns the errno that the verbs give for it.
    pub const fn errno(&self) -> crate::Errno {
        match self {
            Self::Stale | Self::Transport { .. } => crate::Errno::Einval,
            Self::NotReady { .. } => crate::Errno::Enotconn,
        }
    }
}

impl core::fmt::Display for TypedQpError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Stale => f.write_str("the queue pair's handle is stale"),
            Self::Transport { qp_type } => write!(f, "the queue pair is of type {qp_type:?}"),
            Self::NotReady { state } => write!(f, "a queue pair in {state:?} does not send"),
        }
    }
}

impl core::error::Error for TypedQpError {}

/// A batch that takes requests of one transport only, from [`Verbs::typed_send_batch`]. The doorbell rings when it is dropped.
pub struct TypedSendBatch<'a, P: Provider, T> {
    batch: SendBatch<'a, P>,
    transport: PhantomData<fn() -> T>,
}

format_as!([P: Provider, T: Transport] TypedSendBatch<'_, P, T>, "TypedSendBatch({:?}, {:?})", |this| T::TYPE, this.batch);

impl<P: Provider, T: Transport> TypedSendBatch<'_, P, T> {
    /// Posts a request, as [`SendBatch::post`] does.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post<N>(&mut self, wr: &Wr<'_, T, N>) -> Result<(), PostSendError> {
        self.batch.post(&wr.wr)
    }

    /// Rings the doorbell, as [`SendBatch::ring`] does.
    #[inline]
    pub fn ring(&mut self) {
        self.batch.ring();
    }
}

impl<P: Provider> Verbs<'_, P> {
    /// Returns a queue pair that is ready to send, as one of transport `T`.
    ///
    /// # Errors
    /// The handle is stale, or the queue pair is not such a one.
    pub fn typed<T: Transport>(&self, handle: QpHandle) -> Result<TypedQp<T>, TypedQpError> {
        let info = self.qp(handle).map_err(|_| TypedQpError::Stale)?;
        if info.qp_type != T::TYPE {
            return Err(TypedQpError::Transport { qp_type: info.qp_type });
        }
        if !crate::send_queue::can_send(info.state) {
            return Err(TypedQpError::NotReady { state: info.state });
        }
        Ok(TypedQp { handle, transport: PhantomData })
    }

    /// Posts a request that fits the transport, as [`Verbs::post_send`] does.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post<T: Transport, N>(&mut self, qp: TypedQp<T>, wr: &Wr<'_, T, N>) -> Result<(), PostSendError> {
        self.post_send(qp.handle, &wr.wr)
    }

    /// Opens a batch for requests that fit the transport, as [`Verbs::send_batch`] does.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn typed_send_batch<T: Transport>(&mut self, qp: TypedQp<T>) -> Result<TypedSendBatch<'_, P, T>, SendBatchError> {
        Ok(TypedSendBatch { batch: self.send_batch(qp.handle)?, transport: PhantomData })
    }
}
