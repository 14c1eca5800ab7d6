//! Requests: posted as lists.

use bareverbs::error::{BadWr, PostRecvError};
use bareverbs::{
    AddressHandle, Destination, Lkey, Payload, Qkey, Qpn, RecvWr, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, Srqn,
};

use crate::argument::{Argument, Output, slice};
use crate::call::{on_verbs, qp_of};
use crate::device::{Names, bv_device};
use crate::failure::Failure;
use crate::numbered::Numbered;
use crate::{
    BV_MAX_AH, BV_SEND_INLINE, BV_WR_ATOMIC_CMP_AND_SWP, BV_WR_ATOMIC_FETCH_AND_ADD, BV_WR_RDMA_READ, BV_WR_RDMA_WRITE,
    BV_WR_RDMA_WRITE_WITH_IMM, BV_WR_SEND, BV_WR_SEND_WITH_IMM, bv_ah, bv_qp,
};

/// A piece of a registered region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_sge {
    /// First byte, in the address space of the region.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// A send request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bv_send_wr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Pieces of regions: what is sent, or where that goes to which is read. Atomics have one, of 8 bytes.
    pub sg_list: *const bv_sge,
    /// With BV_SEND_INLINE: what is sent. Free when the call returns.
    pub inline_data: *const core::ffi::c_void,
    /// RDMA and atomics: the peer's address, or offset in a zero-based region.
    pub remote_addr: u64,
    /// Atomics: the value that is compared, or added.
    pub compare_add: u64,
    /// Compare-and-swap: the new value.
    pub swap: u64,
    /// RDMA and atomics: the key of the peer's region.
    pub rkey: u32,
    /// Number of pieces.
    pub num_sge: u32,
    /// With BV_SEND_INLINE: bytes of inline_data.
    pub inline_length: u32,
    /// Operation: BV_WR_RDMA_WRITE and the others.
    pub opcode: u32,
    /// BV_SEND_SIGNALED and the others.
    pub send_flags: u32,
    /// Immediate data, in network byte order.
    pub imm_data: u32,
    /// Of an initiator of XRC: number of the peer's shared receive queue, in whose protection domain rkey is (bv_srq.srq_num). Requests that
    /// take no receive name one too.
    pub remote_srqn: u32,
    /// Datagrams: the queue pair that it goes to, 24 bits; BV_MULTICAST_QPN for a group.
    pub remote_qpn: u32,
    /// Datagrams: the Q_Key of that queue pair. If the highest bit is set, the datagram has that of its own queue pair.
    pub remote_qkey: u32,
    /// Datagrams: the port, or the group.
    pub ah: bv_ah,
}

/// A receive request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bv_recv_wr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where to put the message.
    pub sg_list: *const bv_sge,
    /// Number of pieces.
    pub num_sge: u32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<bv_sge>() == size_of::<Sge>() && align_of::<bv_sge>() == align_of::<Sge>());
    assert!(offset_of!(bv_sge, addr) == offset_of!(Sge, addr));
    assert!(offset_of!(bv_sge, length) == offset_of!(Sge, length));
    assert!(offset_of!(bv_sge, lkey) == offset_of!(Sge, lkey) && size_of::<Lkey>() == 4);
};

/// Returns the pieces of a request.
///
/// # Safety
/// Unless `count` is 0 or the pointer NULL, as many pieces are there, which nobody writes as long as the slice is used.
#[inline(always)]
pub(crate) unsafe fn sges<'a>(first: *const bv_sge, count: u32) -> Result<&'a [Sge], Argument> {
    // SAFETY: as promised; both types have the same members at the same places, which is checked above.
    unsafe { slice(first.cast::<Sge>(), count as usize, "sg_list") }
}

/// Returns the request of the verbs.
///
/// # Safety
/// The pointers of the request are as `bv_post_send` says, as long as the result is used.
#[inline(always)]
unsafe fn send_wr(wr: &bv_send_wr) -> Result<SendWr<'_>, Argument> {
    let inline = wr.send_flags & BV_SEND_INLINE != 0;
    let takes_inline = matches!(wr.opcode, BV_WR_SEND | BV_WR_SEND_WITH_IMM | BV_WR_RDMA_WRITE | BV_WR_RDMA_WRITE_WITH_IMM);
    if inline && (wr.num_sge != 0 || !takes_inline) {
        return Err(Argument::Value("send_flags", wr.send_flags.into()));
    }
    // SAFETY: as promised.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge) }?;
    let payload = if inline {
        // SAFETY: as promised.
        Payload::Inline(unsafe { slice(wr.inline_data.cast::<u8>(), wr.inline_length as usize, "inline_data") }?)
    } else {
        Payload::Sges(sges)
    };
    let remote = Remote { addr: wr.remote_addr, rkey: Rkey::new(wr.rkey) };
    let imm = wr.imm_data.to_ne_bytes();
    let one = || match *sges {
        [sge] => Ok(sge),
        _ => Err(Argument::Value("num_sge", wr.num_sge.into())),
    };
    let op = match wr.opcode {
        BV_WR_RDMA_WRITE => SendOp::Write { payload, remote },
        BV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm { payload, remote, imm },
        BV_WR_SEND => SendOp::Send { payload },
        BV_WR_SEND_WITH_IMM => SendOp::SendWithImm { payload, imm },
        BV_WR_RDMA_READ => SendOp::Read { sges, remote },
        BV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap { sge: one()?, remote, compare: wr.compare_add, swap: wr.swap },
        BV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { sge: one()?, remote, add: wr.compare_add },
        other => return Err(Argument::Value("opcode", other.into())),
    };
    // The payload says that it is inline.
    let flags = SendFlags::from_bits_retain(wr.send_flags & !BV_SEND_INLINE);
    Ok(SendWr { wr_id: wr.wr_id, flags, op })
}

/// Returns where a datagram goes.
#[inline(never)]
fn destination(ahs: &mut Numbered<AddressHandle, BV_MAX_AH>, wr: &bv_send_wr) -> Result<Destination, Argument> {
    let ah = *ahs.get(wr.ah.number)?;
    Ok(Destination { ah, remote_qpn: Qpn::new(wr.remote_qpn), remote_qkey: Qkey::new(wr.remote_qkey) })
}

/// Posts a list by `post`, which counts what it has posted, and writes the count. `posted` may be NULL.
///
/// # Safety
/// `posted` is writable or NULL.
#[inline(always)]
pub(crate) unsafe fn post_list(
    posted: *mut usize,
    post: impl FnOnce(&mut usize) -> Result<(), Failure>,
) -> Result<i32, Failure> {
    // SAFETY: as promised.
    let posted = if posted.is_null() { None } else { Some(unsafe { Output::new(posted, "posted") }?) };
    let mut done = 0;
    let result = post(&mut done);
    if let Some(posted) = posted {
        posted.set(done);
    }
    result.map(|()| 0)
}

/// Posts receives up to the first that is refused, and counts them.
///
/// # Safety
/// The pointers of the requests are to `num_sge` pieces each, which nobody writes during the call.
// Not inlined: one for both kinds of queues.
#[inline(never)]
pub(crate) unsafe fn post_receives(
    wrs: &[bv_recv_wr],
    done: &mut usize,
    post: &mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostRecvError>,
) -> Result<(), Failure> {
    for (index, wr) in wrs.iter().enumerate() {
        // SAFETY: as promised.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) }?;
        post(&RecvWr { wr_id: wr.wr_id, sges }).map_err(|error| BadWr { index, error })?;
        *done = index.wrapping_add(1);
    }
    Ok(())
}

/// Posts `count` sends up to the first that is refused, with one doorbell, and writes how many were posted: the index of the
/// one that was refused. `posted` may be NULL.
///
/// Errors: BV_EINVAL, a stale number, an opcode, a flag, the number of SGEs, a key, the length of inline data or the alignment
/// of an atomic, or a datagram that is longer than the port's MTU. BV_ENOTCONN, the queue pair cannot send. BV_ENOSPC, the queue is full:
/// poll. BV_EPERM, an SGE or an address handle of another protection domain. BV_EACCES, a region lacks BV_ACCESS_LOCAL_WRITE. BV_ERANGE, an SGE outside of its region. BV_EIO, the
/// device is lost.
///
/// # Safety
/// `device` is of bv_init; `wrs` is `count` readable requests, whose pointers are to `num_sge` pieces and to `inline_length`
/// bytes; `posted` is writable or NULL. Nobody writes the requests, pieces and inline bytes during the call. The peer may see
/// the bytes of a region from here on, and the device may write them, until the completion was polled: until then they are the
/// device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_post_send(
    device: *mut bv_device,
    qp: bv_qp,
    wrs: *const bv_send_wr,
    count: usize,
    posted: *mut usize,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            post_list(posted, |done| {
                let wrs = slice(wrs, count, "wrs")?;
                let (send, names) = qp_of(up.qps, qp)?.send();
                let mut batch = send.batch();
                for (index, c) in wrs.iter().enumerate() {
                    let wr = send_wr(c)?;
                    // A number that was forgotten is refused, as if none were named.
                    let result = if names == Names::SharedQueue && c.remote_srqn != 0 {
                        batch.post(&wr.to_srq(Srqn::new(c.remote_srqn)))
                    } else if names == Names::Destination {
                        let to = destination(up.ahs, c)?;
                        let op = match wr.op {
                            SendOp::Send { payload } => SendOp::SendTo { to: &to, payload },
                            SendOp::SendWithImm { payload, imm } => SendOp::SendToWithImm { to: &to, payload, imm },
                            _ => return Err(Argument::Value("opcode", c.opcode.into()).into()),
                        };
                        batch.post(&SendWr { op, ..wr })
                    } else {
                        batch.post(&wr)
                    };
                    result.map_err(|error| BadWr { index, error })?;
                    *done = index.wrapping_add(1);
                }
                Ok(())
            })
        })
    }
}

/// Posts `count` receives up to the first that is refused, with a doorbell for each, and writes how many were posted: the index
/// of the one that was refused.
/// `posted` may be NULL.
///
/// Errors: BV_EINVAL, a stale number, the number of SGEs or a key. BV_EOPNOTSUPP, the queue pair has no receives of its own (XRC,
/// or a shared receive queue).
/// BV_ENOTCONN, it takes none in its state. BV_ENOSPC, the queue is full. BV_EPERM, BV_EACCES, BV_ERANGE, BV_EIO as of bv_post_send.
///
/// # Safety
/// As of bv_post_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_post_recv(
    device: *mut bv_device,
    qp: bv_qp,
    wrs: *const bv_recv_wr,
    count: usize,
    posted: *mut usize,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            post_list(posted, |done| {
                let wrs = slice(wrs, count, "wrs")?;
                let queue = qp_of(up.qps, qp)?.recv().ok_or(Argument::NoReceives)?;
                post_receives(wrs, done, &mut |wr| queue.post(wr))
            })
        })
    }
}
