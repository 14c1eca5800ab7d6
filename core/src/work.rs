//! Work requests and their completions as the caller sees them.

use core::fmt;

use crate::{Access, DeviceLoss, KeyTag, Lkey, MrHandle, MwHandle, QpHandle, Qpn, Rkey, SendFlags};

/// A piece of a registered region: address, length, key (`ibv_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sge {
    /// First byte, in the address space of the region.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// What a request sends, or where it puts what it reads.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Payload<'a> {
    /// Pieces of registered regions.
    Sges(&'a [Sge]),
    /// Bytes copied into the request now (implies `SendFlags::INLINE`); the buffer is free when the call returns.
    Inline(&'a [u8]),
}

/// Where in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Remote {
    /// Address, or offset in a zero-based window or region.
    pub addr: u64,
    /// Key of the region or window.
    pub rkey: Rkey,
}

impl Remote {
    /// Of an operation that has none.
    pub const NONE: Self = Self { addr: 0, rkey: Rkey::new(0) };
}

/// What a type 2 bind work request binds (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BindInfo {
    /// Region to bind to; ignored when `length` is 0.
    pub mr: MrHandle,
    /// First byte of the window.
    pub addr: u64,
    /// Length in bytes; 0 unbinds.
    pub length: u64,
    /// Remote rights, and `ZERO_BASED`.
    pub access: Access,
}

/// The operation of a send request, with what only it needs.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SendOp<'a> {
    /// SEND.
    Send {
        /// Message.
        payload: Payload<'a>,
    },
    /// SEND_WITH_IMM.
    SendWithImm {
        /// Message.
        payload: Payload<'a>,
        /// Immediate data in network byte order.
        imm: [u8; 4],
    },
    /// SEND_WITH_INV: the peer invalidates a window.
    SendWithInv {
        /// Message.
        payload: Payload<'a>,
        /// Key of the peer's window.
        rkey: Rkey,
    },
    /// RDMA_WRITE.
    Write {
        /// Message.
        payload: Payload<'a>,
        /// Where to.
        remote: Remote,
    },
    /// RDMA_WRITE_WITH_IMM.
    WriteWithImm {
        /// Message.
        payload: Payload<'a>,
        /// Where to.
        remote: Remote,
        /// Immediate data in network byte order.
        imm: [u8; 4],
    },
    /// RDMA_READ.
    Read {
        /// Where to put what is read.
        sges: &'a [Sge],
        /// Where from.
        remote: Remote,
    },
    /// ATOMIC_CMP_AND_SWP on 8 bytes.
    CompareSwap {
        /// Where to put the old value: 8 bytes, in the machine's byte order.
        sge: Sge,
        /// Which 8 bytes, aligned to 8.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// ATOMIC_FETCH_AND_ADD on 8 bytes.
    FetchAdd {
        /// Where to put the old value: 8 bytes, in the machine's byte order.
        sge: Sge,
        /// Which 8 bytes, aligned to 8.
        remote: Remote,
        /// What to add.
        add: u64,
    },
    /// BIND_MW of a type 2 window.
    BindMw {
        /// The window.
        mw: MwHandle,
        /// Tag of its new key.
        tag: KeyTag,
        /// Where to.
        info: BindInfo,
    },
    /// LOCAL_INV of a type 2 window.
    LocalInv {
        /// Key of the window.
        rkey: Rkey,
    },
}

/// A send request (`ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Flags.
    pub flags: SendFlags,
    /// Operation.
    pub op: SendOp<'a>,
}

/// A receive request (`ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where to put the message.
    pub sges: &'a [Sge],
}

/// What a completion completes (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WcOpcode {
    /// SEND of any kind.
    Send,
    /// RDMA_WRITE of any kind.
    RdmaWrite,
    /// RDMA_READ.
    RdmaRead,
    /// Compare-and-swap.
    CompSwap,
    /// Fetch-and-add.
    FetchAdd,
    /// Bind of a window.
    BindMw,
    /// Local invalidate.
    LocalInv,
    /// Receive of a SEND.
    Recv,
    /// Receive taken by an RDMA_WRITE_WITH_IMM.
    RecvRdmaWithImm,
}

/// How it ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WcStatus {
    /// Done.
    Success,
    /// A message longer than the receive, or a length that the operation does not have.
    LocLenErr,
    /// The request itself is malformed.
    LocQpOpErr,
    /// Key, domain or range of a local SGE.
    LocProtErr,
    /// Flushed: the queue pair is in error.
    WrFlushErr,
    /// A bind was refused.
    MwBindErr,
    /// A response that makes no sense.
    BadRespErr,
    /// Local access refused.
    LocAccessErr,
    /// The peer calls the request invalid.
    RemInvReqErr,
    /// The peer refuses the access.
    RemAccessErr,
    /// The peer failed.
    RemOpErr,
    /// The peer does not answer.
    RetryExcErr,
    /// The peer has no receive posted.
    RnrRetryExcErr,
    /// The peer aborted.
    RemAbortErr,
    /// Anything else.
    GeneralErr,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => {
                "local length error: the message is longer than the receive, or has a length that the operation lacks"
            }
            Self::LocQpOpErr => "local queue pair operation error: the request is malformed",
            Self::LocProtErr => "local protection error: key, protection domain or range of an SGE",
            Self::WrFlushErr => "flushed: the queue pair is in the error state; an earlier completion has the cause",
            Self::MwBindErr => "the bind of the memory window was refused",
            Self::BadRespErr => "the peer's response makes no sense",
            Self::LocAccessErr => "local access error: the region does not allow it",
            Self::RemInvReqErr => "the peer calls the request invalid: check its receives, its access flags and the length",
            Self::RemAccessErr => "the peer refuses the access: check rkey, address, length and access flags",
            Self::RemOpErr => "the peer failed to do the operation",
            Self::RetryExcErr => "the peer does not answer: check its state, LID, queue pair number and PSN",
            Self::RnrRetryExcErr => "the peer has no receive posted",
            Self::RemAbortErr => "the peer aborted the operation",
            Self::GeneralErr => "general error",
        })
    }
}

/// Why a request failed: what [`Completion::result`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct WcError {
    /// How it ended, never [`WcStatus::Success`].
    pub status: WcStatus,
    /// The device's own code beside it.
    pub vendor_err: u8,
    /// Why the device is lost, if the request was flushed because of that.
    pub loss: Option<DeviceLoss>,
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.loss {
            Some(loss) => write!(f, "flushed: the device is lost, {loss}"),
            None => write!(f, "{} (vendor error {:#x})", self.status, self.vendor_err),
        }
    }
}

impl core::error::Error for WcError {}

/// What came with a completed receive, or why a request was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WcData {
    /// Nothing.
    None,
    /// Immediate data in network byte order.
    Imm([u8; 4]),
    /// The key that the peer had invalidated.
    Invalidated(Rkey),
    /// Nothing: the request was flushed because the device is lost. Only with [`WcStatus::WrFlushErr`].
    Lost(DeviceLoss),
}

/// A completion (`ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Completion {
    /// Of the request.
    pub wr_id: u64,
    /// Which queue pair.
    pub qp: QpHandle,
    /// Its number.
    pub qpn: Qpn,
    /// What.
    pub opcode: WcOpcode,
    /// How it ended; of what is below, only `vendor_err` and [`WcData::Lost`] say something if not by [`WcStatus::Success`].
    pub status: WcStatus,
    /// The device's own code beside an error, 0 otherwise.
    pub vendor_err: u8,
    /// Bytes received, or bytes of the payload that was sent, read or swapped.
    pub byte_len: u32,
    /// Immediate data or invalidated key, or that the device is lost.
    pub data: WcData,
}

impl Completion {
    /// Of nothing: what an array to poll into is filled with.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        qp: QpHandle::NONE,
        qpn: Qpn::new(0),
        opcode: WcOpcode::Send,
        status: WcStatus::GeneralErr,
        vendor_err: 0,
        byte_len: 0,
        data: WcData::None,
    };

    /// Returns whether the request succeeded, as a result.
    ///
    /// # Errors
    /// The status of a request that failed, with the device's own code.
    pub const fn result(&self) -> Result<(), WcError> {
        match self.status {
            WcStatus::Success => Ok(()),
            status => Err(WcError { status, vendor_err: self.vendor_err, loss: self.loss() }),
        }
    }

    /// Returns why the device is lost, if the request was flushed because of that.
    pub const fn loss(&self) -> Option<DeviceLoss> {
        match self.data {
            WcData::Lost(loss) => Some(loss),
            _ => None,
        }
    }
}
