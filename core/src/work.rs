//! Work requests and their completions as the caller sees them.

use core::fmt;

use crate::error::DeviceLoss;
use crate::{Access, Destination, KeyTag, Lkey, MrHandle, MwHandle, QpHandle, Qpn, Rkey, SendFlags, Srqn};

/// A piece of a registered region: address, length, key (`ibv_sge`), laid out in memory as that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(C)]
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
    /// Address 0 and key 0, for an operation without a remote address.
    pub const NONE: Self = Self { addr: 0, rkey: Rkey::new(0) };
}

/// What a window is bound to, or what a BIND_MW of a type 2 window binds it to (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Binding {
    /// Region; ignored when `length` is 0.
    pub mr: MrHandle,
    /// First byte, in the address space of the region; ignored when `length` is 0.
    pub addr: u64,
    /// Length in bytes; 0 in a request unbinds.
    pub length: u64,
    /// Remote rights, and `ZERO_BASED`; ignored when `length` is 0.
    pub access: Access,
}

/// The operation of a send request, with what only it needs.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
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
    /// SEND_WITH_INV: the peer's type 2 window or fast registration ([`SendQueue::post_reg_mr`](crate::SendQueue::post_reg_mr)) ends.
    SendWithInv {
        /// Message.
        payload: Payload<'a>,
        /// Key of the peer's window or registration.
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
        binding: Binding,
    },
    /// LOCAL_INV: ends a type 2 window or a fast registration ([`SendQueue::post_reg_mr`](crate::SendQueue::post_reg_mr)).
    LocalInv {
        /// Key of the window or registration.
        rkey: Rkey,
    },
    /// SEND of a datagram.
    SendTo {
        /// Where to.
        to: &'a Destination,
        /// Message, one packet at most.
        payload: Payload<'a>,
    },
    /// SEND_WITH_IMM of a datagram.
    SendToWithImm {
        /// Where to.
        to: &'a Destination,
        /// Message, one packet at most.
        payload: Payload<'a>,
        /// Immediate data in network byte order.
        imm: [u8; 4],
    },
    /// An operation of an XRC initiator.
    ToSrq {
        /// Number of the shared receive queue at the peer.
        srqn: Srqn,
        /// The operation.
        op: ConnectedOp<'a>,
    },
}

/// What an XRC initiator requests: a send, write, read or atomic of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectedOp<'a>(pub &'a SendOp<'a>);

/// Not derived: a type that contains itself would have to be one before it is.
#[cfg(feature = "defmt")]
impl defmt::Format for ConnectedOp<'_> {
    fn format(&self, f: defmt::Formatter<'_>) {
        self.0.format(f);
    }
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

impl<'a> From<&'a [Sge]> for Payload<'a> {
    #[inline(always)]
    fn from(sges: &'a [Sge]) -> Self {
        Self::Sges(sges)
    }
}

impl<'a, const N: usize> From<&'a [Sge; N]> for Payload<'a> {
    #[inline(always)]
    fn from(sges: &'a [Sge; N]) -> Self {
        Self::Sges(sges)
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline(always)]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    #[inline(always)]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Inline(bytes)
    }
}

impl<'a> From<&'a Sge> for Payload<'a> {
    #[inline(always)]
    fn from(sge: &'a Sge) -> Self {
        Self::Sges(core::slice::from_ref(sge))
    }
}

impl<'a> From<&'a str> for Payload<'a> {
    #[inline(always)]
    fn from(text: &'a str) -> Self {
        Self::Inline(text.as_bytes())
    }
}

#[cfg(feature = "alloc")]
impl<'a> From<&'a alloc::vec::Vec<Sge>> for Payload<'a> {
    #[inline(always)]
    fn from(sges: &'a alloc::vec::Vec<Sge>) -> Self {
        Self::Sges(sges)
    }
}

#[cfg(feature = "alloc")]
impl<'a> From<&'a alloc::vec::Vec<u8>> for Payload<'a> {
    #[inline(always)]
    fn from(bytes: &'a alloc::vec::Vec<u8>) -> Self {
        Self::Inline(bytes)
    }
}

impl<'a> SendWr<'a> {
    /// Creates a request of this operation, with `wr_id` 0 and without flags. Without [`SendFlags::SIGNALED`] it has a completion only if it
    /// fails, or if its queue pair completes each ([`QpInit::sq_sig_all`](crate::QpInit::sq_sig_all)): see [`Self::signaled`].
    #[inline(always)]
    pub const fn new(op: SendOp<'a>) -> Self {
        Self { wr_id: 0, flags: SendFlags::empty(), op }
    }

    /// Creates a SEND.
    /// ```
    /// # use bareverbs::{Access, RecvWr, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let inbox = b.register(128, Access::LOCAL_WRITE)?;
    /// # for wr_id in 0..2 {
    /// #     qb.qp.recv.post(&RecvWr { wr_id, sges: &[inbox.sge(64 * wr_id, 64)] })?;
    /// # }
    /// # let region = a.register(64, Access::empty())?;
    /// // Bytes of the program, which are free when the call returns; and bytes of a region, which the device reads later.
    /// qa.qp.send.post(&SendWr::send(b"hello"))?;
    /// qa.qp.send.post(&SendWr::send(&[region.sge(0, 64)]))?;
    /// # for length in [5, 64] {
    /// #     assert_eq!(qb.wait()?.byte_len, length);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn send(payload: impl Into<Payload<'a>>) -> Self {
        Self::new(SendOp::Send { payload: payload.into() })
    }

    /// Creates a SEND_WITH_IMM; `imm` in network byte order.
    #[inline(always)]
    pub fn send_with_imm(payload: impl Into<Payload<'a>>, imm: [u8; 4]) -> Self {
        Self::new(SendOp::SendWithImm { payload: payload.into(), imm })
    }

    /// Creates a SEND_WITH_INV: it ends the peer's type 2 window or fast registration
    /// ([`SendQueue::post_reg_mr`](crate::SendQueue::post_reg_mr)) with key `rkey`.
    #[inline(always)]
    pub fn send_with_inv(payload: impl Into<Payload<'a>>, rkey: Rkey) -> Self {
        Self::new(SendOp::SendWithInv { payload: payload.into(), rkey })
    }

    /// Creates a SEND of a datagram. It is one packet, which the MTU limits; no peer acknowledges it.
    /// ```
    /// # use bareverbs::{Access, Destination, DmaBuffer, GlobalRoute, Qkey, QpType, RecvWr, SendWr};
    /// # use bareverbs_testing::{Connection, Faults, connect_with, pair, path_to};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let qkey = Qkey::new(0x1357);
    /// # let datagrams = Connection { qp_type: QpType::Ud, qkey, ..Connection::default() };
    /// # let [mut qa, mut qb] = connect_with(&mut a, &mut b, &datagrams)?;
    /// # let inbox = b.register(128, Access::LOCAL_WRITE)?;
    /// # qb.qp.recv.post(&RecvWr { wr_id: 7, sges: &[inbox.sge(0, 128)] })?;
    /// # let remote_qpn = b.verbs.qp_info(qb.qp.handle())?.qpn;
    /// let ah = a.verbs.create_ah(a.pd, &path_to(&mut b.verbs)?)?;
    /// let to = Destination { ah, remote_qpn, remote_qkey: qkey };
    /// qa.qp.send.post(&SendWr::send_to(&to, b"hello"))?;
    /// // Of the peer's receive the first 40 bytes are for a global route.
    /// assert_eq!(qb.wait()?.byte_len, 40 + 5);
    /// let mut bytes = [0; 5];
    /// inbox.read(GlobalRoute::AREA, &mut bytes)?;
    /// assert_eq!(&bytes, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn send_to(to: &'a Destination, payload: impl Into<Payload<'a>>) -> Self {
        Self::new(SendOp::SendTo { to, payload: payload.into() })
    }

    /// Creates a SEND_WITH_IMM of a datagram; `imm` in network byte order.
    #[inline(always)]
    pub fn send_to_with_imm(to: &'a Destination, payload: impl Into<Payload<'a>>, imm: [u8; 4]) -> Self {
        Self::new(SendOp::SendToWithImm { to, payload: payload.into(), imm })
    }

    /// Creates an RDMA_WRITE.
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// qa.qp.send.post(&SendWr::write(target.remote(8), b"hello"))?;
    /// qa.wait()?.result()?;
    /// let mut bytes = [0; 5];
    /// target.read(8, &mut bytes)?;
    /// assert_eq!(&bytes, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn write(remote: Remote, payload: impl Into<Payload<'a>>) -> Self {
        Self::new(SendOp::Write { payload: payload.into(), remote })
    }

    /// Creates an RDMA_WRITE_WITH_IMM; `imm` in network byte order.
    /// ```
    /// # use bareverbs::{Access, RecvWr, SendWr, WcData};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// // The peer learns of the write by a receive, which need not have memory.
    /// qb.qp.recv.post(&RecvWr { wr_id: 1, sges: &[] })?;
    /// qa.qp.send.post(&SendWr::write_with_imm(target.remote(0), b"hello", 7_u32.to_be_bytes()))?;
    /// let done = qb.wait()?;
    /// assert_eq!((done.byte_len, done.data), (5, WcData::Imm([0, 0, 0, 7])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn write_with_imm(remote: Remote, payload: impl Into<Payload<'a>>, imm: [u8; 4]) -> Self {
        Self::new(SendOp::WriteWithImm { payload: payload.into(), remote, imm })
    }

    /// Creates an RDMA_READ into `sges`.
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let mut source = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// # source.write(0, b"of the peer")?;
    /// let here = a.register(64, Access::LOCAL_WRITE)?;
    /// qa.qp.send.post(&SendWr::read(source.remote(0), &[here.sge(0, 11)]))?;
    /// qa.wait()?.result()?;
    /// let mut bytes = [0; 11];
    /// here.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"of the peer");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn read(remote: Remote, sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Read { sges, remote })
    }

    /// Creates an ATOMIC_CMP_AND_SWP; `sge` gets the old value.
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let word = b.register(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    /// # let old = a.register(8, Access::LOCAL_WRITE)?;
    /// // Takes a lock: 1 where 0 was. It was free if 0 comes back.
    /// qa.qp.send.post(&SendWr::compare_swap(word.remote(0), old.sge(0, 8), 0, 1))?;
    /// qa.wait()?.result()?;
    /// let mut before = [0xff; 8];
    /// old.read(0, &mut before)?;
    /// assert_eq!(u64::from_ne_bytes(before), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn compare_swap(remote: Remote, sge: Sge, compare: u64, swap: u64) -> Self {
        Self::new(SendOp::CompareSwap { sge, remote, compare, swap })
    }

    /// Creates an ATOMIC_FETCH_AND_ADD; `sge` gets the old value.
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let word = b.register(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    /// # let old = a.register(8, Access::LOCAL_WRITE)?;
    /// // Each draw gives a number that no other has.
    /// for number in 0..3 {
    ///     qa.qp.send.post(&SendWr::fetch_add(word.remote(0), old.sge(0, 8), 1))?;
    ///     qa.wait()?.result()?;
    ///     let mut before = [0xff; 8];
    ///     old.read(0, &mut before)?;
    ///     assert_eq!(u64::from_ne_bytes(before), number);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn fetch_add(remote: Remote, sge: Sge, add: u64) -> Self {
        Self::new(SendOp::FetchAdd { sge, remote, add })
    }

    /// Creates a BIND_MW of a type 2 window; `tag` is that of its new key. One of type 1 is bound by
    /// [`SendQueue::bind_type1`](crate::SendQueue::bind_type1).
    ///
    /// ```
    /// # use bareverbs::{Access, Binding, MwType, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let region = a.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mw = a.verbs.alloc_mw(a.pd, MwType::Type2)?;
    /// let rkey = a.verbs.mw_info(mw)?.rkey;
    /// // Another tag each time: a peer that kept the old key is refused.
    /// let rkey = rkey.with_tag(rkey.tag().next());
    /// let target = region.remote(0);
    /// let binding = Binding { mr: region.handle(), addr: target.addr, length: 64, access: Access::REMOTE_WRITE };
    /// qa.qp.send.post(&SendWr::bind_mw(mw, rkey.tag(), binding))?;
    /// qa.wait()?.result()?;
    /// qb.qp.send.post(&SendWr::write(bareverbs::Remote { rkey, ..target }, b"through the window"))?;
    /// qb.wait()?.result()?;
    /// qa.qp.send.post(&SendWr::local_inv(rkey))?;
    /// qa.wait()?.result()?;
    /// assert_eq!(a.verbs.mw_info(mw)?.binding, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn bind_mw(mw: MwHandle, tag: KeyTag, binding: Binding) -> Self {
        Self::new(SendOp::BindMw { mw, tag, binding })
    }

    /// Creates a LOCAL_INV of a type 2 window or of a fast registration ([`SendQueue::post_reg_mr`](crate::SendQueue::post_reg_mr)).
    /// ```
    /// # use bareverbs::{Access, Binding, KeyTag, MwType, Remote, SendWr, WcStatus};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let region = a.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// # let mw = a.verbs.alloc_mw(a.pd, MwType::Type2)?;
    /// # let (mr, addr) = (region.handle(), region.remote(0).addr);
    /// # let binding = Binding { mr, addr, length: 64, access: Access::REMOTE_WRITE };
    /// # qa.qp.send.post(&SendWr::bind_mw(mw, KeyTag(0x42), binding))?;
    /// # qa.wait()?.result()?;
    /// let rkey = a.verbs.mw_info(mw)?.rkey;
    /// qa.qp.send.post(&SendWr::local_inv(rkey))?;
    /// qa.wait()?.result()?;
    /// // The peer has the key still, and may do nothing with it.
    /// qb.qp.send.post(&SendWr::write(Remote { addr, rkey }, b"late"))?;
    /// assert_eq!(qb.wait()?.status, WcStatus::RemAccessErr);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn local_inv(rkey: Rkey) -> Self {
        Self::new(SendOp::LocalInv { rkey })
    }

    /// Returns the request as one of an XRC initiator to a shared receive queue of its peer. Each but a bind and an invalidation names
    /// one. It also says in which protection domain the peer's memory is (IBTA A14.3.1). It borrows this request:
    ///
    /// ```
    /// # use bareverbs::{SendWr, Srqn};
    /// # let srqn_of_peer = Srqn::new(0x48);
    /// let wr = SendWr::send(b"hello").id(7);
    /// let to_srq = wr.to_srq(srqn_of_peer);
    /// assert_eq!(to_srq.wr_id, 7);
    /// ```
    #[must_use]
    #[inline(always)]
    pub const fn to_srq(&'a self, srqn: Srqn) -> Self {
        Self { wr_id: self.wr_id, flags: self.flags, op: SendOp::ToSrq { srqn, op: ConnectedOp(&self.op) } }
    }

    /// Returns the request with a number that its completion returns.
    #[must_use]
    #[inline(always)]
    pub const fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// Returns the request with these flags too.
    #[must_use]
    #[inline(always)]
    pub const fn with(self, flags: SendFlags) -> Self {
        Self { flags: self.flags.union(flags), ..self }
    }

    /// Returns the request that gives a completion ([`SendFlags::SIGNALED`]).
    #[must_use]
    #[inline(always)]
    pub const fn signaled(self) -> Self {
        self.with(SendFlags::SIGNALED)
    }

    /// Returns the request that waits for the reads and atomics before it ([`SendFlags::FENCE`]).
    #[must_use]
    #[inline(always)]
    pub const fn fenced(self) -> Self {
        self.with(SendFlags::FENCE)
    }

    /// Returns the request whose completion at the peer is a solicited one ([`SendFlags::SOLICITED`]).
    #[must_use]
    #[inline(always)]
    pub const fn solicited(self) -> Self {
        self.with(SendFlags::SOLICITED)
    }
}

/// What a masked atomic does. It returns the value that there was. Numbers are in the byte order of the machine, here and there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MaskedOp {
    /// On four bytes: stores those bits of `swap` that `swap_mask` has, if the value equals `compare` in those bits that `compare_mask` has.
    CompareSwap4 {
        /// Expected value.
        compare: u32,
        /// Which bits of it count.
        compare_mask: u32,
        /// New value.
        swap: u32,
        /// Which bits of it are stored.
        swap_mask: u32,
    },
    /// Compares and swaps under masks, as [`Self::CompareSwap4`] does, on eight bytes.
    CompareSwap8 {
        /// Expected value.
        compare: u64,
        /// Which bits of it count.
        compare_mask: u64,
        /// New value.
        swap: u64,
        /// Which bits of it are stored.
        swap_mask: u64,
    },
    /// On four bytes: adds field by field. A bit of `boundary` is the highest of a field, and nothing is carried out of it.
    FetchAdd4 {
        /// Addends.
        add: u32,
        /// The highest bits of the fields; that of the whole number need not be among them.
        boundary: u32,
    },
    /// Adds field by field, as [`Self::FetchAdd4`] does, on eight bytes.
    FetchAdd8 {
        /// Addends.
        add: u64,
        /// The highest bits of the fields.
        boundary: u64,
    },
}

impl MaskedOp {
    /// Returns the bytes that it works on.
    pub const fn size(&self) -> u32 {
        match self {
            Self::CompareSwap4 { .. } | Self::FetchAdd4 { .. } => 4,
            Self::CompareSwap8 { .. } | Self::FetchAdd8 { .. } => 8,
        }
    }

    pub(crate) const fn completion(&self) -> WcOpcode {
        match self {
            Self::CompareSwap4 { .. } | Self::CompareSwap8 { .. } => WcOpcode::CompSwap,
            Self::FetchAdd4 { .. } | Self::FetchAdd8 { .. } => WcOpcode::FetchAdd,
        }
    }
}

/// A masked atomic: [`SendQueue::post_masked`](crate::SendQueue::post_masked).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MaskedWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// FENCE and SIGNALED.
    pub flags: SendFlags,
    /// The operation.
    pub op: MaskedOp,
    /// Which bytes, aligned to as many.
    pub remote: Remote,
    /// Where to put the old value: as many bytes.
    pub sge: Sge,
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
#[non_exhaustive]
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
    /// Registration.
    RegMr,
    /// Receive of a SEND.
    Recv,
    /// Receive taken by an RDMA_WRITE_WITH_IMM.
    RecvRdmaWithImm,
}

/// How it ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
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

/// What `ibv_wc_status_str` prints.
impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local QP operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "Work Request Flushed Error",
            Self::MwBindErr => "memory management operation error",
            Self::BadRespErr => "bad response error",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote invalid request error",
            Self::RemAccessErr => "remote access error",
            Self::RemOpErr => "remote operation error",
            Self::RetryExcErr => "transport retry counter exceeded",
            Self::RnrRetryExcErr => "RNR retry counter exceeded",
            Self::RemAbortErr => "aborted error",
            Self::GeneralErr => "general error",
        })
    }
}

impl WcStatus {
    /// Returns what it means and where to look. Empty where the name says all that is known.
    const fn remedy(self) -> &'static str {
        match self {
            Self::LocLenErr => ": the message is longer than the receive, or has a length that the operation lacks",
            Self::LocQpOpErr => ": the request is malformed",
            Self::LocProtErr => ": key, protection domain or range of an SGE",
            Self::WrFlushErr => {
                ": the queue pair is in the error state; an earlier completion has the cause, or an event (poll_event)"
            }
            Self::MwBindErr => ": the bind of the memory window was refused",
            Self::BadRespErr => ": the peer's response makes no sense",
            Self::LocAccessErr => ": the region does not allow it",
            Self::RemInvReqErr => ": the peer calls it invalid; check its receives, its access flags and the length",
            Self::RemAccessErr => ": the peer refuses the access; check rkey, address, length and access flags",
            Self::RemOpErr => ": the peer failed to do the operation",
            Self::RetryExcErr => ": the peer does not answer; check its state, LID, queue pair number and PSN",
            Self::RnrRetryExcErr => ": the peer has no receive posted",
            Self::Success | Self::RemAbortErr | Self::GeneralErr => "",
        }
    }
}

/// Why a request failed: what [`Completion::result`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
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
            None => write!(f, "{}{} (vendor error {:#x})", self.status, self.status.remedy(), self.vendor_err),
        }
    }
}

impl core::error::Error for WcError {}

/// What came with a completed receive, or why a request was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct Completion {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Handle of the queue pair.
    pub qp: QpHandle,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Operation that completed.
    pub opcode: WcOpcode,
    /// How it ended; of what is below, only `vendor_err` and [`WcData::Lost`] say something if not by [`WcStatus::Success`], and
    /// `byte_len` of the marker of a drain ([`Verbs::drain_sq`](crate::Verbs::drain_sq)).
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
    /// ```
    /// # use bareverbs::{SendWr, WcStatus};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # b.remove();
    /// qa.qp.send.post(&SendWr::send(b"anybody?"))?;
    /// let error = qa.wait()?.result().unwrap_err();
    /// assert_eq!(error.status, WcStatus::RetryExcErr);
    /// assert!(error.to_string().starts_with("transport retry counter exceeded: "));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
