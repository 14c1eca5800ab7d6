//! Numbers of objects, and the constants of the interface. Those that the verbs of Linux have too are as in
//! `infiniband/verbs.h`.

use bareverbs::error::Errno;
use bareverbs::{Access, Destination, GlobalRoute, QpAttrMask, SendFlags};

/// Protection domains that a device has room for.
pub const BV_MAX_PD: usize = 4;
/// Memory regions that a device has room for.
pub const BV_MAX_MR: usize = 32;
/// Completion queues that a device has room for.
pub const BV_MAX_CQ: usize = 8;
/// Queue pairs that a device has room for.
pub const BV_MAX_QP: usize = 8;
/// XRC domains that a device has room for.
pub const BV_MAX_XRCD: usize = 4;
/// Shared receive queues that a device has room for, those of XRC among them.
pub const BV_MAX_SRQ: usize = 4;
/// Receives of a shared receive queue, at most.
pub const BV_MAX_SRQ_RECV: usize = 127;
/// Address handles that a device has room for.
pub const BV_MAX_AH: usize = 64;
/// Blocks of the send ring of a queue pair, at most: a request takes one for each 64 bytes of it.
pub const BV_MAX_SEND_BLOCKS: usize = 128;
/// Receives of a queue pair, at most.
pub const BV_MAX_RECV: usize = 128;
/// Completions that one call of bv_poll_cq returns, at most.
pub const BV_MAX_POLL: usize = 16;
/// Bytes that suffice for the storage of a device on every machine. bv_storage_size says how many of them this one needs.
pub const BV_STORAGE_SIZE: usize = 65536;
/// An alignment in bytes that suffices for the storage on every machine.
pub const BV_STORAGE_ALIGN: usize = 64;
/// Bytes of memory for queues and commands that the platform gives (bv_platform.memory).
pub const BV_MEMORY_SIZE: usize = 1048576;

/// Errno: not in the same protection domain.
pub const BV_EPERM: i32 = 1;
/// Errno: the device failed, or is lost.
pub const BV_EIO: i32 = 5;
/// Errno: try again later.
pub const BV_EAGAIN: i32 = 11;
/// Errno: no room in a table, or in the device.
pub const BV_ENOMEM: i32 = 12;
/// Errno: a right is missing.
pub const BV_EACCES: i32 = 13;
/// Errno: the device does not see the memory.
pub const BV_EFAULT: i32 = 14;
/// Errno: still in use, or another call is running.
pub const BV_EBUSY: i32 = 16;
/// Errno: the device is gone, or not up.
pub const BV_ENODEV: i32 = 19;
/// Errno: an argument or a number is invalid.
pub const BV_EINVAL: i32 = 22;
/// Errno: the queue is full.
pub const BV_ENOSPC: i32 = 28;
/// Errno: out of range.
pub const BV_ERANGE: i32 = 34;
/// Errno: the device wrote an invalid completion.
pub const BV_EBADMSG: i32 = 74;
/// Errno: the device cannot do that.
pub const BV_EOPNOTSUPP: i32 = 95;
/// Errno: the queue pair is in another state.
pub const BV_ENOTCONN: i32 = 107;
/// Errno: no answer, or no usable port, in time.
pub const BV_ETIMEDOUT: i32 = 110;

/// Right: the local queue pairs may write.
pub const BV_ACCESS_LOCAL_WRITE: u32 = 1;
/// Right: the peer may write; needs BV_ACCESS_LOCAL_WRITE.
pub const BV_ACCESS_REMOTE_WRITE: u32 = 2;
/// Right: the peer may read.
pub const BV_ACCESS_REMOTE_READ: u32 = 4;
/// Right: the peer may do atomics; needs BV_ACCESS_LOCAL_WRITE.
pub const BV_ACCESS_REMOTE_ATOMIC: u32 = 8;
/// Addresses in the region are offsets from its start.
pub const BV_ACCESS_ZERO_BASED: u32 = 32;
/// The device may reorder its accesses.
pub const BV_ACCESS_RELAXED_ORDERING: u32 = 1048576;

/// Transport: reliable connection.
pub const BV_QPT_RC: u32 = 2;
/// Transport: unreliable connection.
pub const BV_QPT_UC: u32 = 3;

/// State of a queue pair: just made.
pub const BV_QPS_RESET: u32 = 0;
/// State of a queue pair: receives may be posted.
pub const BV_QPS_INIT: u32 = 1;
/// State of a queue pair: ready to receive.
pub const BV_QPS_RTR: u32 = 2;
/// State of a queue pair: ready to send.
pub const BV_QPS_RTS: u32 = 3;
/// State of a queue pair: send queue drained or draining.
pub const BV_QPS_SQD: u32 = 4;
/// State of a queue pair: send queue in error.
pub const BV_QPS_SQE: u32 = 5;
/// State of a queue pair: in error, every request is flushed.
pub const BV_QPS_ERR: u32 = 6;

/// Attribute of bv_modify_qp: qp_state.
pub const BV_QP_STATE: u32 = 1;
/// Attribute of bv_modify_qp: access.
pub const BV_QP_ACCESS_FLAGS: u32 = 8;
/// Attribute of bv_modify_qp: pkey_index.
pub const BV_QP_PKEY_INDEX: u32 = 16;
/// Attribute of bv_modify_qp: port_num.
pub const BV_QP_PORT: u32 = 32;
/// Attribute of bv_modify_qp: qkey.
pub const BV_QP_QKEY: u32 = 64;
/// Attribute of bv_modify_qp: the path (dlid, sl, dmac, is_global and what it says is used).
pub const BV_QP_AV: u32 = 128;
/// Attribute of bv_modify_qp: path_mtu.
pub const BV_QP_PATH_MTU: u32 = 256;
/// Attribute of bv_modify_qp: timeout.
pub const BV_QP_TIMEOUT: u32 = 512;
/// Attribute of bv_modify_qp: retry_cnt.
pub const BV_QP_RETRY_CNT: u32 = 1024;
/// Attribute of bv_modify_qp: rnr_retry.
pub const BV_QP_RNR_RETRY: u32 = 2048;
/// Attribute of bv_modify_qp: rq_psn.
pub const BV_QP_RQ_PSN: u32 = 4096;
/// Attribute of bv_modify_qp: max_rd_atomic.
pub const BV_QP_MAX_QP_RD_ATOMIC: u32 = 8192;
/// Attribute of bv_modify_qp: min_rnr_timer.
pub const BV_QP_MIN_RNR_TIMER: u32 = 32768;
/// Attribute of bv_modify_qp: sq_psn.
pub const BV_QP_SQ_PSN: u32 = 65536;
/// Attribute of bv_modify_qp: max_dest_rd_atomic.
pub const BV_QP_MAX_DEST_RD_ATOMIC: u32 = 131072;
/// Attribute of bv_modify_qp: dest_qp_num.
pub const BV_QP_DEST_QPN: u32 = 1048576;

/// Link layer of a port: InfiniBand. Paths name the peer by its LID.
pub const BV_LINK_LAYER_INFINIBAND: u8 = 1;
/// Link layer of a port: Ethernet (RoCEv2). Paths name the peer by its GID and its MAC address.
pub const BV_LINK_LAYER_ETHERNET: u8 = 2;

/// State of a port: no link.
pub const BV_PORT_DOWN: u32 = 1;
/// State of a port: link, but not configured.
pub const BV_PORT_INIT: u32 = 2;
/// State of a port: configured.
pub const BV_PORT_ARMED: u32 = 3;
/// State of a port: in use.
pub const BV_PORT_ACTIVE: u32 = 4;

/// Request: RDMA WRITE.
pub const BV_WR_RDMA_WRITE: u32 = 0;
/// Request: RDMA WRITE with immediate data, which takes a receive of the peer.
pub const BV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
/// Request: SEND.
pub const BV_WR_SEND: u32 = 2;
/// Request: SEND with immediate data.
pub const BV_WR_SEND_WITH_IMM: u32 = 3;
/// Request: RDMA READ.
pub const BV_WR_RDMA_READ: u32 = 4;
/// Request: compare-and-swap of 8 bytes.
pub const BV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
/// Request: fetch-and-add of 8 bytes.
pub const BV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;

/// Flag of a request: it waits for the reads and atomics before it.
pub const BV_SEND_FENCE: u32 = 1;
/// Flag of a request: it gives a completion. Matters only if the queue pair was made without sq_sig_all.
pub const BV_SEND_SIGNALED: u32 = 2;
/// Flag of a request: the completion at the peer is a solicited one.
pub const BV_SEND_SOLICITED: u32 = 4;
/// Flag of a request: its bytes are those of inline_data, copied by the call. It has no SGEs.
pub const BV_SEND_INLINE: u32 = 8;

/// What completed: SEND of any kind.
pub const BV_WC_SEND: u32 = 0;
/// What completed: RDMA WRITE of any kind.
pub const BV_WC_RDMA_WRITE: u32 = 1;
/// What completed: RDMA READ.
pub const BV_WC_RDMA_READ: u32 = 2;
/// What completed: compare-and-swap.
pub const BV_WC_COMP_SWAP: u32 = 3;
/// What completed: fetch-and-add.
pub const BV_WC_FETCH_ADD: u32 = 4;
/// What completed: bind of a window.
pub const BV_WC_BIND_MW: u32 = 5;
/// What completed: local invalidate.
pub const BV_WC_LOCAL_INV: u32 = 6;
/// What completed: receive of a SEND.
pub const BV_WC_RECV: u32 = 128;
/// What completed: receive taken by an RDMA WRITE with immediate data.
pub const BV_WC_RECV_RDMA_WITH_IMM: u32 = 129;

/// Flag of a completion: the datagram came with a global route, which the receive begins with.
pub const BV_WC_GRH: u32 = 1;
/// Flag of a completion: imm_data says something.
pub const BV_WC_WITH_IMM: u32 = 2;
/// Flag of a completion: imm_data is the key that the peer had invalidated, as a number.
pub const BV_WC_WITH_INV: u32 = 8;
/// Flag of a completion: it was flushed because the device is lost.
pub const BV_WC_DEVICE_LOST: u32 = 65536;

/// How it ended: done.
pub const BV_WC_SUCCESS: u32 = 0;
/// How it ended: a message longer than the receive, or a length that the operation does not have.
pub const BV_WC_LOC_LEN_ERR: u32 = 1;
/// How it ended: the request itself is malformed.
pub const BV_WC_LOC_QP_OP_ERR: u32 = 2;
/// How it ended: key, domain or range of a local SGE.
pub const BV_WC_LOC_PROT_ERR: u32 = 4;
/// How it ended: flushed, since the queue pair is in error.
pub const BV_WC_WR_FLUSH_ERR: u32 = 5;
/// How it ended: a bind was refused.
pub const BV_WC_MW_BIND_ERR: u32 = 6;
/// How it ended: a response that makes no sense.
pub const BV_WC_BAD_RESP_ERR: u32 = 7;
/// How it ended: local access refused.
pub const BV_WC_LOC_ACCESS_ERR: u32 = 8;
/// How it ended: the peer calls the request invalid.
pub const BV_WC_REM_INV_REQ_ERR: u32 = 9;
/// How it ended: the peer refuses the access.
pub const BV_WC_REM_ACCESS_ERR: u32 = 10;
/// How it ended: the peer failed.
pub const BV_WC_REM_OP_ERR: u32 = 11;
/// How it ended: the peer does not answer.
pub const BV_WC_RETRY_EXC_ERR: u32 = 12;
/// How it ended: the peer has no receive posted.
pub const BV_WC_RNR_RETRY_EXC_ERR: u32 = 13;
/// How it ended: the peer aborted.
pub const BV_WC_REM_ABORT_ERR: u32 = 16;
/// How it ended: anything else.
pub const BV_WC_GENERAL_ERR: u32 = 21;

/// Bytes before the message in each receive of a queue pair for datagrams: the global route header, if the datagram came with one, and
/// otherwise undefined. On an Ethernet port the IP header: of IPv6 from the first byte, of IPv4 from byte 20 on.
pub const BV_GRH_BYTES: usize = 40;
/// The queue pair number of every multicast group (bv_send_wr.remote_qpn).
pub const BV_MULTICAST_QPN: u32 = 0xff_ffff;

/// Barrier: earlier writes to memory come before later writes to registers and memory, as the device sees them.
pub const BV_BARRIER_RELEASE: u32 = 1;
/// Barrier: earlier reads of memory come before later reads of it.
pub const BV_BARRIER_ACQUIRE: u32 = 2;
/// Barrier: earlier writes to registers leave the CPU's write-combining buffers.
pub const BV_BARRIER_FLUSH: u32 = 3;

/// Flag of bv_config: the function is a virtual one.
pub const BV_CONFIG_VIRTUAL_FUNCTION: u32 = 1;

/// Event: a completion came into an armed completion queue.
pub const BV_EVENT_COMPLETION: u32 = 1;
/// Event: a completion queue overran or broke; code is the device's syndrome.
pub const BV_EVENT_CQ_ERR: u32 = 2;
/// Event: the first message came to a queue pair in RTR.
pub const BV_EVENT_COMM_EST: u32 = 3;
/// Event: the send queue of a queue pair is drained.
pub const BV_EVENT_SQ_DRAINED: u32 = 4;
/// Event: the last receive of a queue pair in error is done.
pub const BV_EVENT_QP_LAST_WQE_REACHED: u32 = 5;
/// Event: a queue pair broke; it is in error.
pub const BV_EVENT_QP_FATAL: u32 = 6;
/// Event: an invalid request came in; the queue pair is in error.
pub const BV_EVENT_QP_REQ_ERR: u32 = 7;
/// Event: an incoming request violated access rights; the queue pair is in error.
pub const BV_EVENT_QP_ACCESS_ERR: u32 = 8;
/// Event: a port went up.
pub const BV_EVENT_PORT_ACTIVE: u32 = 9;
/// Event: a port went down.
pub const BV_EVENT_PORT_ERR: u32 = 10;
/// Event: LID, P_Key table, GID table or subnet manager of a port changed.
pub const BV_EVENT_PORT_CHANGE: u32 = 11;
/// Event: the device is lost; code is its health syndrome.
pub const BV_EVENT_DEVICE_FATAL: u32 = 12;
/// Event: some events may be lost. Query the states of queue pairs and ports.
pub const BV_EVENT_EVENTS_LOST: u32 = 13;
/// Event: one of an object that is not there any more, or of a type that this library does not know. Also a path migration of a
/// queue pair: code 1, it uses its alternate path; 7, it could not.
pub const BV_EVENT_OTHER: u32 = 14;
/// Event: fewer receives than its limit are left in a shared receive queue (bv_arm_srq).
pub const BV_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
/// Event: a shared receive queue broke.
pub const BV_EVENT_SRQ_ERR: u32 = 16;

/// A protection domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_pd {
    /// Names it; 0 names none.
    pub number: u64,
}

/// A memory region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_mr {
    /// Names it; 0 names none.
    pub number: u64,
    /// Key for SGEs.
    pub lkey: u32,
    /// Key for the peer.
    pub rkey: u32,
}

/// A completion queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_cq {
    /// Names it; 0 names none.
    pub number: u64,
    /// Completions that it has room for.
    pub cqe: u32,
}

/// A queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_qp {
    /// Names it; 0 names none.
    pub number: u64,
    /// Its number on the wire, which the peer needs.
    pub qp_num: u32,
}

/// An address handle: a port, or a multicast group, that datagrams go to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_ah {
    /// Names it; 0 names none.
    pub number: u64,
}

/// An XRC domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_xrcd {
    /// Names it; 0 names none.
    pub number: u64,
}

/// A shared receive queue, also one of an XRC domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_srq {
    /// Names it; 0 names none.
    pub number: u64,
    /// Its number on the wire, which the peer needs (bv_send_wr.remote_srqn).
    pub srq_num: u32,
}

/// Each constant that the verbs have too is theirs.
const _: () = {
    macro_rules! same {
        ($($constant:ident = $value:expr;)+) => { $(assert!($constant == $value);)+ };
    }
    same! {
        BV_EPERM = Errno::Eperm.number();
        BV_EIO = Errno::Eio.number();
        BV_EAGAIN = Errno::Eagain.number();
        BV_ENOMEM = Errno::Enomem.number();
        BV_EACCES = Errno::Eacces.number();
        BV_EFAULT = Errno::Efault.number();
        BV_EBUSY = Errno::Ebusy.number();
        BV_ENODEV = Errno::Enodev.number();
        BV_EINVAL = Errno::Einval.number();
        BV_ENOSPC = Errno::Enospc.number();
        BV_ERANGE = Errno::Erange.number();
        BV_EBADMSG = Errno::Ebadmsg.number();
        BV_EOPNOTSUPP = Errno::Eopnotsupp.number();
        BV_ENOTCONN = Errno::Enotconn.number();
        BV_ETIMEDOUT = Errno::Etimedout.number();
        BV_ACCESS_LOCAL_WRITE = Access::LOCAL_WRITE.bits();
        BV_ACCESS_REMOTE_WRITE = Access::REMOTE_WRITE.bits();
        BV_ACCESS_REMOTE_READ = Access::REMOTE_READ.bits();
        BV_ACCESS_REMOTE_ATOMIC = Access::REMOTE_ATOMIC.bits();
        BV_ACCESS_ZERO_BASED = Access::ZERO_BASED.bits();
        BV_ACCESS_RELAXED_ORDERING = Access::RELAXED_ORDERING.bits();
        BV_SEND_FENCE = SendFlags::FENCE.bits();
        BV_SEND_SIGNALED = SendFlags::SIGNALED.bits();
        BV_SEND_SOLICITED = SendFlags::SOLICITED.bits();
        BV_SEND_INLINE = SendFlags::INLINE.bits();
        BV_QP_STATE = QpAttrMask::STATE.bits();
        BV_QP_ACCESS_FLAGS = QpAttrMask::ACCESS_FLAGS.bits();
        BV_QP_PKEY_INDEX = QpAttrMask::PKEY_INDEX.bits();
        BV_QP_PORT = QpAttrMask::PORT.bits();
        BV_QP_QKEY = QpAttrMask::QKEY.bits();
        BV_QP_AV = QpAttrMask::AV.bits();
        BV_QP_PATH_MTU = QpAttrMask::PATH_MTU.bits();
        BV_QP_TIMEOUT = QpAttrMask::TIMEOUT.bits();
        BV_QP_RETRY_CNT = QpAttrMask::RETRY_CNT.bits();
        BV_QP_RNR_RETRY = QpAttrMask::RNR_RETRY.bits();
        BV_QP_RQ_PSN = QpAttrMask::RQ_PSN.bits();
        BV_QP_MAX_QP_RD_ATOMIC = QpAttrMask::MAX_QP_RD_ATOMIC.bits();
        BV_QP_MIN_RNR_TIMER = QpAttrMask::MIN_RNR_TIMER.bits();
        BV_QP_SQ_PSN = QpAttrMask::SQ_PSN.bits();
        BV_QP_MAX_DEST_RD_ATOMIC = QpAttrMask::MAX_DEST_RD_ATOMIC.bits();
        BV_QP_DEST_QPN = QpAttrMask::DEST_QPN.bits();
        BV_GRH_BYTES = GlobalRoute::AREA;
        BV_MULTICAST_QPN = Destination::MULTICAST_QPN.get();
    }
};
