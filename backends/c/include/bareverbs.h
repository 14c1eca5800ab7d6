// The verbs of bareverbs for C: RDMA on a ConnectX without an operating system and without a heap.
//
// Every function returns 0 or more, or an errno of below (BV_EINVAL and the others) with a minus sign. The functions of one device may be
// called from any thread, one at a time: a call during another one on the same device changes nothing and returns -BV_EBUSY. What
// pointers must be stands under "Safety"; everything else is checked.
//
// Generated from backends/c/src, do not edit: cargo test -p bareverbs-c --test header -- --ignored
//
// SPDX-License-Identifier: MIT OR Apache-2.0


#ifndef BAREVERBS_H
#define BAREVERBS_H

#include <stddef.h>
#include <stdint.h>

// Protection domains that a device has room for.
#define BV_MAX_PD 4

// Memory regions that a device has room for.
#define BV_MAX_MR 32

// Completion queues that a device has room for.
#define BV_MAX_CQ 8

// Queue pairs that a device has room for.
#define BV_MAX_QP 8

// XRC domains that a device has room for.
#define BV_MAX_XRCD 4

// Shared receive queues that a device has room for, those of XRC among them.
#define BV_MAX_SRQ 4

// Receives of a shared receive queue, at most.
#define BV_MAX_SRQ_RECV 127

// Address handles that a device has room for.
#define BV_MAX_AH 64

// Blocks of the send ring of a queue pair, at most: a request takes one for each 64 bytes of it.
#define BV_MAX_SEND_BLOCKS 128

// Receives of a queue pair, at most.
#define BV_MAX_RECV 128

// Completions that one call of bv_poll_cq returns, at most.
#define BV_MAX_POLL 16

// Bytes that suffice for the storage of a device on every machine. bv_storage_size says how many of them this one needs.
#define BV_STORAGE_SIZE 65536

// An alignment in bytes that suffices for the storage on every machine.
#define BV_STORAGE_ALIGN 64

// Bytes of memory for queues and commands that the platform gives (bv_platform.memory).
#define BV_MEMORY_SIZE 1048576

// Errno: not in the same protection domain.
#define BV_EPERM 1

// Errno: the device failed, or is lost.
#define BV_EIO 5

// Errno: try again later.
#define BV_EAGAIN 11

// Errno: no room in a table, or in the device.
#define BV_ENOMEM 12

// Errno: a right is missing.
#define BV_EACCES 13

// Errno: the device does not see the memory.
#define BV_EFAULT 14

// Errno: still in use, or another call is running.
#define BV_EBUSY 16

// Errno: the device is gone, or not up.
#define BV_ENODEV 19

// Errno: an argument or a number is invalid.
#define BV_EINVAL 22

// Errno: the queue is full.
#define BV_ENOSPC 28

// Errno: out of range.
#define BV_ERANGE 34

// Errno: the device wrote an invalid completion.
#define BV_EBADMSG 74

// Errno: the device cannot do that.
#define BV_EOPNOTSUPP 95

// Errno: the queue pair is in another state.
#define BV_ENOTCONN 107

// Errno: no answer, or no usable port, in time.
#define BV_ETIMEDOUT 110

// Right: the local queue pairs may write.
#define BV_ACCESS_LOCAL_WRITE 1

// Right: the peer may write; needs BV_ACCESS_LOCAL_WRITE.
#define BV_ACCESS_REMOTE_WRITE 2

// Right: the peer may read.
#define BV_ACCESS_REMOTE_READ 4

// Right: the peer may do atomics; needs BV_ACCESS_LOCAL_WRITE.
#define BV_ACCESS_REMOTE_ATOMIC 8

// Addresses in the region are offsets from its start.
#define BV_ACCESS_ZERO_BASED 32

// The device may reorder its accesses.
#define BV_ACCESS_RELAXED_ORDERING 1048576

// Transport: reliable connection.
#define BV_QPT_RC 2

// Transport: unreliable connection.
#define BV_QPT_UC 3

// State of a queue pair: just made.
#define BV_QPS_RESET 0

// State of a queue pair: receives may be posted.
#define BV_QPS_INIT 1

// State of a queue pair: ready to receive.
#define BV_QPS_RTR 2

// State of a queue pair: ready to send.
#define BV_QPS_RTS 3

// State of a queue pair: send queue drained or draining.
#define BV_QPS_SQD 4

// State of a queue pair: send queue in error.
#define BV_QPS_SQE 5

// State of a queue pair: in error, every request is flushed.
#define BV_QPS_ERR 6

// Attribute of bv_modify_qp: qp_state.
#define BV_QP_STATE 1

// Attribute of bv_modify_qp: access.
#define BV_QP_ACCESS_FLAGS 8

// Attribute of bv_modify_qp: pkey_index.
#define BV_QP_PKEY_INDEX 16

// Attribute of bv_modify_qp: port_num.
#define BV_QP_PORT 32

// Attribute of bv_modify_qp: qkey.
#define BV_QP_QKEY 64

// Attribute of bv_modify_qp: the path (dlid, sl, dmac, is_global and what it says is used).
#define BV_QP_AV 128

// Attribute of bv_modify_qp: path_mtu.
#define BV_QP_PATH_MTU 256

// Attribute of bv_modify_qp: timeout.
#define BV_QP_TIMEOUT 512

// Attribute of bv_modify_qp: retry_cnt.
#define BV_QP_RETRY_CNT 1024

// Attribute of bv_modify_qp: rnr_retry.
#define BV_QP_RNR_RETRY 2048

// Attribute of bv_modify_qp: rq_psn.
#define BV_QP_RQ_PSN 4096

// Attribute of bv_modify_qp: max_rd_atomic.
#define BV_QP_MAX_QP_RD_ATOMIC 8192

// Attribute of bv_modify_qp: min_rnr_timer.
#define BV_QP_MIN_RNR_TIMER 32768

// Attribute of bv_modify_qp: sq_psn.
#define BV_QP_SQ_PSN 65536

// Attribute of bv_modify_qp: max_dest_rd_atomic.
#define BV_QP_MAX_DEST_RD_ATOMIC 131072

// Attribute of bv_modify_qp: dest_qp_num.
#define BV_QP_DEST_QPN 1048576

// Link layer of a port: InfiniBand. Paths name the peer by its LID.
#define BV_LINK_LAYER_INFINIBAND 1

// Link layer of a port: Ethernet (RoCEv2). Paths name the peer by its GID and its MAC address.
#define BV_LINK_LAYER_ETHERNET 2

// State of a port: no link.
#define BV_PORT_DOWN 1

// State of a port: link, but not configured.
#define BV_PORT_INIT 2

// State of a port: configured.
#define BV_PORT_ARMED 3

// State of a port: in use.
#define BV_PORT_ACTIVE 4

// Request: RDMA WRITE.
#define BV_WR_RDMA_WRITE 0

// Request: RDMA WRITE with immediate data, which takes a receive of the peer.
#define BV_WR_RDMA_WRITE_WITH_IMM 1

// Request: SEND.
#define BV_WR_SEND 2

// Request: SEND with immediate data.
#define BV_WR_SEND_WITH_IMM 3

// Request: RDMA READ.
#define BV_WR_RDMA_READ 4

// Request: compare-and-swap of 8 bytes.
#define BV_WR_ATOMIC_CMP_AND_SWP 5

// Request: fetch-and-add of 8 bytes.
#define BV_WR_ATOMIC_FETCH_AND_ADD 6

// Flag of a request: it waits for the reads and atomics before it.
#define BV_SEND_FENCE 1

// Flag of a request: it gives a completion. Matters only if the queue pair was made without sq_sig_all.
#define BV_SEND_SIGNALED 2

// Flag of a request: the completion at the peer is a solicited one.
#define BV_SEND_SOLICITED 4

// Flag of a request: its bytes are those of inline_data, copied by the call. It has no SGEs.
#define BV_SEND_INLINE 8

// What completed: SEND of any kind.
#define BV_WC_SEND 0

// What completed: RDMA WRITE of any kind.
#define BV_WC_RDMA_WRITE 1

// What completed: RDMA READ.
#define BV_WC_RDMA_READ 2

// What completed: compare-and-swap.
#define BV_WC_COMP_SWAP 3

// What completed: fetch-and-add.
#define BV_WC_FETCH_ADD 4

// What completed: bind of a window.
#define BV_WC_BIND_MW 5

// What completed: local invalidate.
#define BV_WC_LOCAL_INV 6

// What completed: receive of a SEND.
#define BV_WC_RECV 128

// What completed: receive taken by an RDMA WRITE with immediate data.
#define BV_WC_RECV_RDMA_WITH_IMM 129

// Flag of a completion: the datagram came with a global route, which the receive begins with.
#define BV_WC_GRH 1

// Flag of a completion: imm_data says something.
#define BV_WC_WITH_IMM 2

// Flag of a completion: imm_data is the key that the peer had invalidated, as a number.
#define BV_WC_WITH_INV 8

// Flag of a completion: it was flushed because the device is lost.
#define BV_WC_DEVICE_LOST 65536

// How it ended: done.
#define BV_WC_SUCCESS 0

// How it ended: a message longer than the receive, or a length that the operation does not have.
#define BV_WC_LOC_LEN_ERR 1

// How it ended: the request itself is malformed.
#define BV_WC_LOC_QP_OP_ERR 2

// How it ended: key, domain or range of a local SGE.
#define BV_WC_LOC_PROT_ERR 4

// How it ended: flushed, since the queue pair is in error.
#define BV_WC_WR_FLUSH_ERR 5

// How it ended: a bind was refused.
#define BV_WC_MW_BIND_ERR 6

// How it ended: a response that makes no sense.
#define BV_WC_BAD_RESP_ERR 7

// How it ended: local access refused.
#define BV_WC_LOC_ACCESS_ERR 8

// How it ended: the peer calls the request invalid.
#define BV_WC_REM_INV_REQ_ERR 9

// How it ended: the peer refuses the access.
#define BV_WC_REM_ACCESS_ERR 10

// How it ended: the peer failed.
#define BV_WC_REM_OP_ERR 11

// How it ended: the peer does not answer.
#define BV_WC_RETRY_EXC_ERR 12

// How it ended: the peer has no receive posted.
#define BV_WC_RNR_RETRY_EXC_ERR 13

// How it ended: the peer aborted.
#define BV_WC_REM_ABORT_ERR 16

// How it ended: anything else.
#define BV_WC_GENERAL_ERR 21

// Bytes before the message in each receive of a queue pair for datagrams: the global route header, if the datagram came with one, and
// otherwise undefined. On an Ethernet port the IP header: of IPv6 from the first byte, of IPv4 from byte 20 on.
#define BV_GRH_BYTES 40

// The queue pair number of every multicast group (bv_send_wr.remote_qpn).
#define BV_MULTICAST_QPN 16777215

// Barrier: earlier writes to memory come before later writes to registers and memory, as the device sees them.
#define BV_BARRIER_RELEASE 1

// Barrier: earlier reads of memory come before later reads of it.
#define BV_BARRIER_ACQUIRE 2

// Barrier: earlier writes to registers leave the CPU's write-combining buffers.
#define BV_BARRIER_FLUSH 3

// Flag of bv_config: the function is a virtual one.
#define BV_CONFIG_VIRTUAL_FUNCTION 1

// Event: a completion came into an armed completion queue.
#define BV_EVENT_COMPLETION 1

// Event: a completion queue overran or broke; code is the device's syndrome.
#define BV_EVENT_CQ_ERR 2

// Event: the first message came to a queue pair in RTR.
#define BV_EVENT_COMM_EST 3

// Event: the send queue of a queue pair is drained.
#define BV_EVENT_SQ_DRAINED 4

// Event: the last receive of a queue pair in error is done.
#define BV_EVENT_QP_LAST_WQE_REACHED 5

// Event: a queue pair broke; it is in error.
#define BV_EVENT_QP_FATAL 6

// Event: an invalid request came in; the queue pair is in error.
#define BV_EVENT_QP_REQ_ERR 7

// Event: an incoming request violated access rights; the queue pair is in error.
#define BV_EVENT_QP_ACCESS_ERR 8

// Event: a port went up.
#define BV_EVENT_PORT_ACTIVE 9

// Event: a port went down.
#define BV_EVENT_PORT_ERR 10

// Event: LID, P_Key table, GID table or subnet manager of a port changed.
#define BV_EVENT_PORT_CHANGE 11

// Event: the device is lost; code is its health syndrome.
#define BV_EVENT_DEVICE_FATAL 12

// Event: some events may be lost. Query the states of queue pairs and ports.
#define BV_EVENT_EVENTS_LOST 13

// Event: one of an object that is not there any more, or of a type that this library does not know. Also a path migration of a
// queue pair: code 1, it uses its alternate path; 7, it could not.
#define BV_EVENT_OTHER 14

// Event: fewer receives than its limit are left in a shared receive queue (bv_arm_srq).
#define BV_EVENT_SRQ_LIMIT_REACHED 15

// Event: a shared receive queue broke.
#define BV_EVENT_SRQ_ERR 16

// A device, in the storage that bv_init was given.
typedef struct bv_device bv_device;

// A machine with one device: its registers, its memory, its time. bv_bring_up copies it.
//
// Each callback gets `context`. It returns normally, and calls no function of this library on the same device (such a call
// returns -BV_EBUSY). Offsets of registers are below registers_size, whatever the device says.
typedef struct bv_platform {
  // The first argument of each callback; the library does nothing else with it.
  void *context;
  // Bytes of BAR0 of the device. The program enables the function and its bus mastering before the bring-up.
  size_t registers_size;
  // Reads the four bytes at a byte offset of BAR0, a multiple of 4, as the CPU loads them: the library turns byte orders.
  uint32_t (*read32)(void *context, size_t offset);
  // Writes the four bytes at a byte offset of BAR0, a multiple of 4, as the CPU stores them.
  void (*write32)(void *context, size_t offset, uint32_t value);
  // Writes the eight bytes at a byte offset of BAR0, a multiple of 8, as the CPU stores them. NULL on a machine that has no
  // such access: then two calls of write32 do it.
  void (*write64)(void *context, size_t offset, uint64_t value);
  // Orders accesses, as its second argument says (BV_BARRIER_RELEASE and the others). NULL: by the instructions of this CPU,
  // for registers that are mapped uncached and memory that is coherent.
  void (*barrier)(void *context, uint32_t barrier);
  // Returns the nanoseconds since some start. They must go on, or waits of the library do not end.
  uint64_t (*now)(void *context);
  // Pauses between two looks at the device, in a wait that ends at `deadline` (in the time of `now`) at the latest. NULL:
  // the library spins.
  void (*wait)(void *context, uint64_t deadline);
  // Memory for queues and commands: BV_MEMORY_SIZE bytes, aligned to 4096, contiguous for the device.
  void *memory;
  // Bytes of it, BV_MEMORY_SIZE or more.
  size_t memory_size;
  // Its address for the device, a multiple of 4096.
  uint64_t memory_device_addr;
  // Allocates a page of 4096 bytes for the firmware of the device, and writes its address for the device, a multiple of
  // 4096. Returns 0, or anything else if there is none. A card wants thousands.
  int32_t (*page_alloc)(void *context, uint64_t *device_addr);
  // Frees the page at this address for the device. Returns 0, or anything else if no page there is allocated: the address
  // comes from the device.
  int32_t (*page_free)(void *context, uint64_t device_addr);
  // Frees every page. A bring-up begins with it: a device that was reset has none.
  void (*page_free_all)(void *context);
  // Says where the byte at an address of a buffer lies for the device (`device_addr`), and how many bytes from there on are
  // contiguous for it (`len`, more than 0). Returns 0, or anything else if the device does not see it. NULL: the device's
  // addresses are the CPU's.
  int32_t (*extent)(void *context, uint64_t addr, uint64_t *device_addr, uint64_t *len);
} bv_platform;

// Options of a bring-up. A member that is 0 has its default.
typedef struct bv_config {
  // BV_CONFIG_VIRTUAL_FUNCTION, or 0.
  uint32_t flags;
  // Milliseconds that the firmware may take to boot; 120 seconds by default.
  uint32_t boot_timeout_ms;
  // Milliseconds that a command may take; 60 seconds by default.
  uint32_t command_timeout_ms;
  // Pages of 4096 bytes that the firmware gets at most; 262144 (1 GiB) by default.
  uint32_t firmware_pages;
} bv_config;

// What a device has.
typedef struct bv_device_attr {
  // GUID of the node.
  uint64_t node_guid;
  // Maximum length of a region in bytes.
  uint64_t max_mr_size;
  // Firmware version: major, minor, sub-minor.
  uint16_t fw_ver[3];
  // Ports.
  uint16_t phys_port_cnt;
  // Vendor (IEEE OUI).
  uint32_t vendor_id;
  // SGEs of one request.
  uint32_t max_sge;
  // Completions of one queue.
  uint32_t max_cqe;
  // Maximum inline payload in bytes.
  uint32_t max_inline_data;
  // Reads and atomics outstanding as target, one queue pair.
  uint32_t max_qp_rd_atom;
  // Reads and atomics outstanding as initiator, one queue pair.
  uint32_t max_qp_init_rd_atom;
  // 1 if 8-byte atomics are done.
  uint32_t atomics;
} bv_device_attr;

// What a port has.
typedef struct bv_port_attr {
  // GUID.
  uint64_t port_guid;
  // State: BV_PORT_DOWN and the others.
  uint32_t state;
  // Physical state (IBTA 14.2.5.6, PortInfo:PortPhysicalState): 5 is a link.
  uint32_t phys_state;
  // Greatest MTU, as its code: 1 for 256 bytes to 5 for 4096.
  uint32_t max_mtu;
  // MTU in use.
  uint32_t active_mtu;
  // Number of GIDs.
  uint32_t gid_tbl_len;
  // Number of P_Keys.
  uint32_t pkey_tbl_len;
  // Rate in gigabits a second.
  uint32_t active_speed_gbps;
  // Capability mask (PortInfo:CapabilityMask).
  uint32_t port_cap_flags;
  // LID.
  uint16_t lid;
  // LID of the subnet manager.
  uint16_t sm_lid;
  // Number of low LID bits that select a path.
  uint8_t lmc;
  // Lanes.
  uint8_t active_width;
  // 1 if every path from the port needs a global route (bv_qp_attr.is_global).
  uint8_t grh_required;
  // BV_LINK_LAYER_INFINIBAND or BV_LINK_LAYER_ETHERNET.
  uint8_t link_layer;
  // MAC address of an Ethernet port, first byte first on the wire; zeros of an InfiniBand port.
  uint8_t mac[6];
} bv_port_attr;

// A protection domain.
typedef struct bv_pd {
  // Names it; 0 names none.
  uint64_t number;
} bv_pd;

// A memory region.
typedef struct bv_mr {
  // Names it; 0 names none.
  uint64_t number;
  // Key for SGEs.
  uint32_t lkey;
  // Key for the peer.
  uint32_t rkey;
} bv_mr;

// A completion queue.
typedef struct bv_cq {
  // Names it; 0 names none.
  uint64_t number;
  // Completions that it has room for.
  uint32_t cqe;
} bv_cq;

// A queue pair to make.
typedef struct bv_qp_init {
  // Protection domain.
  struct bv_pd pd;
  // Queue for completions of sends.
  struct bv_cq send_cq;
  // Queue for completions of receives; may be the same.
  struct bv_cq recv_cq;
  // Transport: BV_QPT_RC or BV_QPT_UC; bv_create_ud_qp and bv_create_xrc_send_qp ignore it.
  uint32_t qp_type;
  // 1 if every send gives a completion, 0 if only those with BV_SEND_SIGNALED.
  uint32_t sq_sig_all;
  // Send requests in flight, at least.
  uint32_t max_send_wr;
  // Receives in flight, at least.
  uint32_t max_recv_wr;
  // SGEs of a send, at least.
  uint32_t max_send_sge;
  // SGEs of a receive, at least.
  uint32_t max_recv_sge;
  // Bytes of an inline payload, at least.
  uint32_t max_inline_data;
} bv_qp_init;

// A queue pair.
typedef struct bv_qp {
  // Names it; 0 names none.
  uint64_t number;
  // Its number on the wire, which the peer needs.
  uint32_t qp_num;
} bv_qp;

// A shared receive queue, also one of an XRC domain.
typedef struct bv_srq {
  // Names it; 0 names none.
  uint64_t number;
  // Its number on the wire, which the peer needs (bv_send_wr.remote_srqn).
  uint32_t srq_num;
} bv_srq;

// Attributes of a queue pair.
typedef struct bv_qp_attr {
  // State to go to (BV_QPS_RESET and the others; bv_modify_qp_to_rts ignores it).
  uint32_t qp_state;
  // Rights that requests of the peer may use.
  uint32_t access;
  // The peer's queue pair.
  uint32_t dest_qp_num;
  // First PSN expected, 24 bits.
  uint32_t rq_psn;
  // First PSN sent, 24 bits.
  uint32_t sq_psn;
  // Code of the path MTU: 1 for 256 bytes to 5 for 4096.
  uint32_t path_mtu;
  // Flow label of the global route, 20 bits.
  uint32_t flow_label;
  // Q_Key of a UD queue pair: datagrams with another Q_Key are dropped.
  uint32_t qkey;
  // Index of the P_Key.
  uint16_t pkey_index;
  // The peer's LID.
  uint16_t dlid;
  // Port, from 1.
  uint8_t port_num;
  // Service level, 4 bits.
  uint8_t sl;
  // Local ACK timeout: 4.096 µs · 2^timeout, 0 for none, 5 bits.
  uint8_t timeout;
  // Retries before the connection is broken, 3 bits.
  uint8_t retry_cnt;
  // Retries after RNR NAK, 3 bits, 7 for ever.
  uint8_t rnr_retry;
  // Code of the time that the peer waits after our RNR NAK, 5 bits (IBTA table 45).
  uint8_t min_rnr_timer;
  // Reads and atomics outstanding as initiator.
  uint8_t max_rd_atomic;
  // Reads and atomics outstanding as target.
  uint8_t max_dest_rd_atomic;
  // 1 if packets carry a global route: the members below and flow_label.
  uint8_t is_global;
  // Index of our GID.
  uint8_t sgid_index;
  // Hop limit.
  uint8_t hop_limit;
  // Traffic class.
  uint8_t traffic_class;
  // The peer's GID, in network byte order.
  uint8_t dgid[16];
  // Ethernet port: the MAC address of the peer, or of the router to it, first byte first on the wire. Zeros on an InfiniBand port.
  uint8_t dmac[6];
} bv_qp_attr;

// What a queue pair is now.
typedef struct bv_qp_info {
  // State: BV_QPS_RESET and the others.
  uint32_t qp_state;
  // In BV_QPS_SQD: 1 while sends that had begun are not done yet, else 0.
  uint32_t sq_draining;
  // Its number on the wire.
  uint32_t qp_num;
  // Next PSN expected.
  uint32_t rq_psn;
  // Next PSN sent.
  uint32_t sq_psn;
  // Send requests in flight that it has room for.
  uint32_t max_send_wr;
  // Receives in flight that it has room for.
  uint32_t max_recv_wr;
  // SGEs of a send.
  uint32_t max_send_sge;
  // SGEs of a receive.
  uint32_t max_recv_sge;
  // Bytes of an inline payload.
  uint32_t max_inline_data;
  // Send blocks in flight.
  uint32_t send_blocks;
  // Receives in flight.
  uint32_t recvs;
} bv_qp_info;

// An XRC domain.
typedef struct bv_xrcd {
  // Names it; 0 names none.
  uint64_t number;
} bv_xrcd;

// A shared receive queue to make.
typedef struct bv_srq_init {
  // Protection domain of the memory of its receives, and of the keys of XRC requests that name it.
  struct bv_pd pd;
  // XRC domain. bv_create_srq ignores it.
  struct bv_xrcd xrcd;
  // Queue for its completions, with room for each of its receives. bv_create_srq ignores it: each receive completes where the queue
  // pair that took it says.
  struct bv_cq cq;
  // Receives in flight, at least.
  uint32_t max_wr;
  // SGEs of a receive, at least.
  uint32_t max_sge;
} bv_srq_init;

// A piece of a registered region.
typedef struct bv_sge {
  // First byte, in the address space of the region.
  uint64_t addr;
  // Length in bytes.
  uint32_t length;
  // Key of the region.
  uint32_t lkey;
} bv_sge;

// A receive request.
typedef struct bv_recv_wr {
  // Returned in the completion.
  uint64_t wr_id;
  // Where to put the message.
  const struct bv_sge *sg_list;
  // Number of pieces.
  uint32_t num_sge;
} bv_recv_wr;

// An address handle: a port, or a multicast group, that datagrams go to.
typedef struct bv_ah {
  // Names it; 0 names none.
  uint64_t number;
} bv_ah;

// A send request.
typedef struct bv_send_wr {
  // Returned in the completion.
  uint64_t wr_id;
  // Pieces of regions: what is sent, or where that goes to which is read. Atomics have one, of 8 bytes.
  const struct bv_sge *sg_list;
  // With BV_SEND_INLINE: what is sent. Free when the call returns.
  const void *inline_data;
  // RDMA and atomics: the peer's address, or offset in a zero-based region.
  uint64_t remote_addr;
  // Atomics: the value that is compared, or added.
  uint64_t compare_add;
  // Compare-and-swap: the new value.
  uint64_t swap;
  // RDMA and atomics: the key of the peer's region.
  uint32_t rkey;
  // Number of pieces.
  uint32_t num_sge;
  // With BV_SEND_INLINE: bytes of inline_data.
  uint32_t inline_length;
  // Operation: BV_WR_RDMA_WRITE and the others.
  uint32_t opcode;
  // BV_SEND_SIGNALED and the others.
  uint32_t send_flags;
  // Immediate data, in network byte order.
  uint32_t imm_data;
  // Of an initiator of XRC: number of the peer's shared receive queue, in whose protection domain rkey is (bv_srq.srq_num). Requests that
  // take no receive name one too.
  uint32_t remote_srqn;
  // Datagrams: the queue pair that it goes to, 24 bits; BV_MULTICAST_QPN for a group.
  uint32_t remote_qpn;
  // Datagrams: the Q_Key of that queue pair. If the highest bit is set, the datagram has that of its own queue pair.
  uint32_t remote_qkey;
  // Datagrams: the port, or the group.
  struct bv_ah ah;
} bv_send_wr;

// A completion.
typedef struct bv_wc {
  // Of the request.
  uint64_t wr_id;
  // The number of its queue pair, as in bv_qp.
  uint64_t qp;
  // The number of its queue pair on the wire.
  uint32_t qp_num;
  // How it ended: BV_WC_SUCCESS and the others. If it failed, of the members below only vendor_err and BV_WC_DEVICE_LOST say
  // something, and byte_len of the marker of a drain (bv_drain_sq).
  uint32_t status;
  // What completed: BV_WC_SEND and the others.
  uint32_t opcode;
  // The device's own code beside an error, 0 otherwise.
  uint32_t vendor_err;
  // Bytes received, or bytes of the payload that was sent, read or swapped.
  uint32_t byte_len;
  // Immediate data in network byte order, with BV_WC_WITH_IMM.
  uint32_t imm_data;
  // BV_WC_WITH_IMM and the others.
  uint32_t wc_flags;
  // Receive of a datagram, as each member below: the queue pair that sent it. Zeros in other completions.
  uint32_t src_qp;
  // LID of the port that sent it; 0 on an Ethernet port.
  uint16_t slid;
  // P_Key that it came with; 0 with BV_WC_WITH_IMM.
  uint16_t pkey;
  // VLAN that it came in; 0 without one, and on an InfiniBand port.
  uint16_t vlan;
  // Service level; on an Ethernet port the priority of its VLAN tag.
  uint8_t sl;
  // Low 7 bits of the LID that it was sent to.
  uint8_t dlid_path_bits;
} bv_wc;

// The address of a port, or of a multicast group.
typedef struct bv_ah_attr {
  // Flow label of the global route, 20 bits.
  uint32_t flow_label;
  // LID, of a group its MLID; 0 on an Ethernet port.
  uint16_t dlid;
  // Port of this device that datagrams leave by, from 1.
  uint8_t port_num;
  // Service level, 4 bits.
  uint8_t sl;
  // Low bits of our LID, 7 bits.
  uint8_t src_path_bits;
  // 1 if datagrams carry a global route: the members below and flow_label.
  uint8_t is_global;
  // Index of our GID.
  uint8_t sgid_index;
  // Hop limit.
  uint8_t hop_limit;
  // Traffic class.
  uint8_t traffic_class;
  // The GID, in network byte order.
  uint8_t dgid[16];
  // Ethernet port: the MAC address of the port, or of the router to it, first byte first on the wire. Zeros on an InfiniBand port.
  uint8_t dmac[6];
} bv_ah_attr;

// An event.
typedef struct bv_event {
  // The number of the queue pair, completion queue or shared receive queue that it is of, as in bv_qp, bv_cq and bv_srq; 0 if of none.
  uint64_t object;
  // What: BV_EVENT_COMPLETION and the others.
  uint32_t event_type;
  // The port that it is of; 0 if of none.
  uint32_t port;
  // The device's own code, where the type says so; 0 otherwise.
  uint32_t code;
} bv_event;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the bytes of storage that a device needs.
size_t bv_storage_size(void);

// Returns the alignment in bytes of the storage of a device.
size_t bv_storage_align(void);

// Makes a device that is not up in `size` bytes of storage, and writes where it is. The physical device is not touched.
//
// Errors: there is no device yet that could have a text, the number is all. BV_EINVAL, a pointer is NULL, or `device` is
// not aligned. BV_EFAULT, the storage is not aligned to bv_storage_align. BV_ENOMEM, it has fewer bytes than bv_storage_size.
//
// # Safety
// The storage is readable and writable and used for nothing else, until no call on the device follows. It was no device
// before, or that one is not up. `device` is writable.
int32_t bv_init(void *storage,
                size_t size,
                struct bv_device **device);

// Brings a device up: resets nothing, but initializes the firmware, which takes seconds on a card. `config` may be NULL.
//
// Errors: BV_EINVAL, a pointer is NULL, or a member of the platform is missing or too small. BV_EBUSY, the device is up
// already. Any other: the device failed, and bv_strerror_detail says in which step. The device is not up then, and the call
// may be repeated. If bv_needs_reset returns 1, the memory and the pages must not be used for anything else before the device
// was reset.
//
// # Safety
// `device` is of bv_init. Until bv_take_down has returned and bv_needs_reset returns 0, or the device was reset:
// - The registers that the callbacks access are those of BAR0 of one device, at the offset given and at no other.
// - `memory` is `memory_size` readable and writable bytes, contiguous for the device, coherent with it, and nobody else's.
// - A page that `page_alloc` returns is used for nothing else until it is freed.
// - The barriers order accesses as they say.
// - What `context` points to, and the callbacks, stay, and each callback may be called by each thread that calls a function.
int32_t bv_bring_up(struct bv_device *device,
                    const struct bv_platform *platform,
                    const struct bv_config *config);

// Takes a device down. Every object of it is destroyed with it, and its number names nothing from here on. The device may be
// brought up again.
//
// Errors: BV_ENODEV, the device is not up. Any other: the device did not do it. It is down all the same.
//
// # Safety
// `device` is of bv_init.
int32_t bv_take_down(struct bv_device *device);

// Returns 1 if a device that is not up may still use its memory, its pages, and buffers that were registered: they must stay
// untouched until the device was reset. 0 otherwise.
//
// # Safety
// `device` is of bv_init.
int32_t bv_needs_reset(struct bv_device *device);

// Does what the device needs from time to time: gives its firmware pages, and checks its health. Writes when to call it next,
// in the time of bv_platform.now; `next` may be NULL. A program that never calls it waits for ever on a card that was removed.
//
// Errors: the device is lost. Each completion queue then returns what was posted as flushed.
//
// # Safety
// `device` is of bv_init; `next` is writable or NULL.
int32_t bv_maintain(struct bv_device *device,
                    uint64_t *next);

// Writes the attributes of a device that is up.
//
// Errors: BV_ENODEV, the device is not up. BV_EINVAL, a pointer is NULL.
//
// # Safety
// `device` is of bv_init; `attr` is writable.
int32_t bv_query_device(struct bv_device *device, struct bv_device_attr *attr);

// Writes the attributes of a port, from 1.
//
// Errors: BV_EINVAL, there is no such port. Others: the device does not answer.
//
// # Safety
// `device` is of bv_init; `attr` is writable.
int32_t bv_query_port(struct bv_device *device, uint8_t port, struct bv_port_attr *attr);

// Waits until a port, from 1, is active and has a LID, and writes its attributes. After a reset of a card that takes seconds:
// 60000 milliseconds are a good timeout.
//
// Errors: BV_ETIMEDOUT, it is not usable in time: bv_strerror_detail says what is missing. Others as of bv_query_port.
//
// # Safety
// `device` is of bv_init; `attr` is writable.
int32_t bv_wait_active(struct bv_device *device,
                       uint8_t port,
                       uint32_t timeout_ms,
                       struct bv_port_attr *attr);

// Writes the 16 bytes of an entry of a port's GID table, in network byte order.
//
// Errors: BV_EINVAL, there is no such port or entry. Others: the device does not answer.
//
// # Safety
// `device` is of bv_init; `gid` is 16 writable bytes.
int32_t bv_query_gid(struct bv_device *device, uint8_t port, uint16_t index, uint8_t *gid);

// Sets an entry of the GID table of an Ethernet port: the 16 bytes of an IP address in network byte order (one of IPv4 as
// ::ffff:a.b.c.d), the 6 bytes of a MAC address, which is that of the port (bv_port_attr.mac), and a VLAN from 1 to 4094, or 0 for
// none. Paths name the entry by bv_qp_attr.sgid_index, and queue pairs that use it send with its new values from then on.
//
// The verbs answer no ARP and no neighbor solicitation: the peer's MAC address is given with the path (bv_qp_attr.dmac).
//
// Errors: BV_EINVAL, there is no such port or entry, or an address or the VLAN is impossible. BV_EOPNOTSUPP, the port is an
// InfiniBand port. Others: the device did not do it, and the entry is as before.
//
// # Safety
// `device` is of bv_init; `gid` is 16 and `mac` 6 readable bytes.
int32_t bv_set_gid(struct bv_device *device,
                   uint8_t port,
                   uint16_t index,
                   const uint8_t *gid,
                   const uint8_t *mac,
                   uint16_t vlan);

// Empties an entry of the GID table of an Ethernet port. What queue pairs send through it is lost until it is set again.
//
// Errors: as of bv_set_gid.
//
// # Safety
// `device` is of bv_init.
int32_t bv_delete_gid(struct bv_device *device,
                      uint8_t port,
                      uint16_t index);

// Makes a protection domain.
//
// Errors: BV_ENOMEM, there are BV_MAX_PD.
//
// # Safety
// `device` is of bv_init; `pd` is writable.
int32_t bv_alloc_pd(struct bv_device *device, struct bv_pd *pd);

// Destroys a protection domain.
//
// Errors: BV_EINVAL, the number names none. BV_EBUSY, something belongs to it.
//
// # Safety
// `device` is of bv_init.
int32_t bv_dealloc_pd(struct bv_device *device, struct bv_pd pd);

// Registers `length` bytes at `addr`, with the rights of `access` (BV_ACCESS_LOCAL_WRITE and the others; local read is always
// on). Where they lie for the device says bv_platform.extent. SGEs and the peer name a byte by its address, or, with
// BV_ACCESS_ZERO_BASED, by its offset.
//
// Errors: BV_EINVAL, NULL, a length of 0, unknown or impossible rights, or a number that names no protection domain.
// BV_ENOMEM, there are BV_MAX_MR, or the device has no room. BV_EFAULT, the device does not see all of the bytes.
// BV_EOPNOTSUPP, the device lacks a right.
//
// # Safety
// `device` is of bv_init; `mr` is writable. The bytes stay where they are, are not const, and are used for nothing that must
// not see the device write them, until bv_dereg_mr has returned 0 for the region, or bv_take_down has returned and
// bv_needs_reset returns 0. The same holds after BV_EIO and BV_ETIMEDOUT from here: a device that did not answer may have
// registered them.
int32_t bv_reg_mr(struct bv_device *device,
                  struct bv_pd pd,
                  void *addr,
                  size_t length,
                  uint32_t access,
                  struct bv_mr *mr);

// Deregisters a region: the device does not use its bytes any more.
//
// Errors: BV_EINVAL, the number names none. Others: the device did not do it, and the region is as before.
//
// # Safety
// `device` is of bv_init.
int32_t bv_dereg_mr(struct bv_device *device, struct bv_mr mr);

// Makes a completion queue of at least `entries`. A queue that is full when a completion comes is broken for ever: it needs an
// entry for each request that may be in flight, BV_MAX_SEND_BLOCKS + BV_MAX_RECV for each queue pair at most.
//
// Errors: BV_EINVAL, 0 entries or more than the device has. BV_ENOMEM, there are BV_MAX_CQ, or no memory is left for it.
//
// # Safety
// `device` is of bv_init; `cq` is writable.
int32_t bv_create_cq(struct bv_device *device,
                     uint32_t entries,
                     struct bv_cq *cq);

// Gives a completion queue at least `entries` entries, more or fewer than it has, and writes how many into `cq`. Completions that wait in
// it stay, in their order, and its queue pairs complete into it meanwhile. The memory of both sizes is taken during the call.
//
// Errors: BV_EINVAL, the number is stale, 0 entries or more than the device has, or fewer than completions that wait. BV_ENOMEM, no memory is
// left for it. Others: the device did not do it. The queue is as before, unless the device is lost.
//
// # Safety
// `device` is of bv_init; `cq` is readable and writable.
int32_t bv_resize_cq(struct bv_device *device,
                     struct bv_cq *cq,
                     uint32_t entries);

// Destroys a completion queue.
//
// Errors: BV_EINVAL, the number names none. BV_EBUSY, queue pairs complete into it. Others: the device did not do it, and the
// queue is as before.
//
// # Safety
// `device` is of bv_init.
int32_t bv_destroy_cq(struct bv_device *device,
                      struct bv_cq cq);

// Makes a queue pair, in the state RESET.
//
// Errors: BV_EINVAL, a number is stale, or a capacity exceeds the device's. BV_ENOMEM, there are BV_MAX_QP, a capacity exceeds
// BV_MAX_SEND_BLOCKS or BV_MAX_RECV, or no memory is left. BV_EAGAIN, completions of an earlier queue pair are not polled yet.
//
// # Safety
// `device` is of bv_init; `init` is readable and `qp` writable.
int32_t bv_create_qp(struct bv_device *device,
                     const struct bv_qp_init *init,
                     struct bv_qp *qp);

// Makes a queue pair, in the state RESET, that takes its receives from a shared receive queue (bv_create_srq): bv_post_srq_recv posts
// them, and bv_post_recv none. What `init` says about receives is ignored, and qp_type is BV_QPT_RC. A receive completes where recv_cq
// says, which needs room for each of the shared queue.
//
// Errors: as of bv_create_qp; BV_EINVAL also if the number names no such queue, or one of XRC.
//
// # Safety
// `device` is of bv_init; `init` is readable and `qp` writable.
int32_t bv_create_qp_with_srq(struct bv_device *device,
                              const struct bv_qp_init *init,
                              struct bv_srq srq,
                              struct bv_qp *qp);

// Takes a queue pair from RESET to RTS, with the attributes that its transport requires.
//
// Errors: BV_EINVAL, the number is stale, or an attribute is invalid: the queue pair is as before. Others: the device refuses a
// transition, and the queue pair is in the state before that one; bv_modify_qp leads back to RESET.
//
// # Safety
// `device` is of bv_init; `attr` is readable.
int32_t bv_modify_qp_to_rts(struct bv_device *device,
                            struct bv_qp qp,
                            const struct bv_qp_attr *attr);

// Changes the attributes of a queue pair that `mask` names (BV_QP_STATE and the others). RESET (BV_QP_STATE alone)
// discards what was posted. Its completions that wait in a completion queue are discarded when that is polled.
//
// Errors: BV_EINVAL, the number is stale, or an attribute or the transition is invalid. Others: the device did not do it. The queue pair
// is as before.
//
// # Safety
// `device` is of bv_init; `attr` is readable.
int32_t bv_modify_qp(struct bv_device *device,
                     struct bv_qp qp,
                     const struct bv_qp_attr *attr,
                     uint32_t mask);

// Writes what a queue pair is now, as the device says.
//
// Errors: BV_EINVAL, the number is stale. Others: the device does not answer.
//
// # Safety
// `device` is of bv_init; `info` is writable.
int32_t bv_query_qp(struct bv_device *device, struct bv_qp qp, struct bv_qp_info *info);

// Destroys a queue pair with all that is posted: no completion of it is given afterwards.
//
// Errors: BV_EINVAL, the number names none. BV_EBUSY, it is in a multicast group. Others: the device did not do it, and the queue pair is
// as before.
//
// # Safety
// `device` is of bv_init.
int32_t bv_destroy_qp(struct bv_device *device,
                      struct bv_qp qp);

// Makes an XRC domain: requests that arrive at a target of it (bv_create_xrc_recv_qp) take from its shared receive queues, and from no
// others. An initiator (bv_create_xrc_send_qp) needs a domain of its own device too, which need not have a queue.
//
// Errors: BV_ENOMEM, there are BV_MAX_XRCD. BV_EOPNOTSUPP, the device has no XRC. Others: the device did not do it.
//
// # Safety
// `device` is of bv_init; `xrcd` is writable.
int32_t bv_alloc_xrcd(struct bv_device *device,
                      struct bv_xrcd *xrcd);

// Destroys an XRC domain.
//
// Errors: BV_EINVAL, the number names none. BV_EBUSY, queues are in it. Others: the device did not do it, and the domain is as
// before.
//
// # Safety
// `device` is of bv_init.
int32_t bv_dealloc_xrcd(struct bv_device *device,
                        struct bv_xrcd xrcd);

// Makes a shared receive queue of an XRC domain. Peers name it in each request by srq_num.
//
// A completion of it has the target by which the message came as its queue pair.
//
// Errors: BV_EINVAL, a number is stale, or a capacity exceeds the device's. BV_ENOMEM, there are BV_MAX_SRQ, max_wr exceeds
// BV_MAX_SRQ_RECV, or no memory is left. Others: the device did not do it.
//
// # Safety
// `device` is of bv_init; `init` is readable and `srq` writable.
int32_t bv_create_xrc_srq(struct bv_device *device,
                          const struct bv_srq_init *init,
                          struct bv_srq *srq);

// Makes a shared receive queue, from which several queue pairs take their receives (bv_create_qp_with_srq). Each receive completes where
// the queue pair that took it completes its receives, in any order. In `init` xrcd and cq are ignored.
//
// Errors: BV_EINVAL, the protection domain's number is stale, or a capacity exceeds the device's. BV_ENOMEM, there are BV_MAX_SRQ, max_wr
// exceeds BV_MAX_SRQ_RECV, or no memory is left. BV_EAGAIN, completions of an earlier XRC one are not polled yet. Others: the device
// did not do it.
//
// # Safety
// `device` is of bv_init; `init` is readable and `srq` writable.
int32_t bv_create_srq(struct bv_device *device,
                      const struct bv_srq_init *init,
                      struct bv_srq *srq);

// Makes an initiator of XRC, in the state RESET: it sends to the shared receive queues of its peer's domain, each request to the
// one that it names (bv_send_wr.remote_srqn). Its peer is a target. Of `init`, qp_type and what is about receives are ignored;
// `xrcd` is any domain of this device.
//
// Errors: as of bv_create_qp; BV_EINVAL also if the number names no domain.
//
// # Safety
// `device` is of bv_init; `init` is readable and `qp` writable.
int32_t bv_create_xrc_send_qp(struct bv_device *device,
                              const struct bv_qp_init *init,
                              struct bv_xrcd xrcd,
                              struct bv_qp *qp);

// Makes a target of XRC, in the state RESET: it receives for the shared receive queues of its domain, whichever a request names,
// and has no completions of its own. Its peer is an initiator. RTR suffices for it, and nothing can be posted to it.
//
// Errors: BV_EINVAL, the number names no domain. BV_ENOMEM, there are BV_MAX_QP. Others: the device did not do it.
//
// # Safety
// `device` is of bv_init; `qp` is writable.
int32_t bv_create_xrc_recv_qp(struct bv_device *device,
                              struct bv_xrcd xrcd,
                              struct bv_qp *qp);

// Asks for BV_EVENT_SRQ_LIMIT_REACHED when fewer than `limit` receives are left in a shared receive queue, once.
//
// Errors: BV_EINVAL, the number is stale, or the limit is greater than the queue. Others: the device did not do it.
//
// # Safety
// `device` is of bv_init.
int32_t bv_arm_srq(struct bv_device *device, struct bv_srq srq, uint32_t limit);

// Posts `count` receives to a shared receive queue up to the first that is refused, with a doorbell for each, and writes how many
// were posted: the index of the one that was refused. `posted` may be NULL.
//
// Errors: BV_EINVAL, a stale number, the number of SGEs or a key. BV_ENOSPC, the queue is full. BV_EPERM, BV_EACCES, BV_ERANGE,
// BV_EIO as of bv_post_send.
//
// # Safety
// As of bv_post_send.
int32_t bv_post_srq_recv(struct bv_device *device,
                         struct bv_srq srq,
                         const struct bv_recv_wr *wrs,
                         size_t count,
                         size_t *posted);

// Destroys a shared receive queue with all that is posted: no completion of it is given afterwards.
//
// Errors: BV_EINVAL, the number names none. BV_EBUSY, queue pairs take their receives from it. Others: the device did not do it, and the
// queue is as before.
//
// # Safety
// `device` is of bv_init.
int32_t bv_destroy_srq(struct bv_device *device,
                       struct bv_srq srq);

// Posts `count` sends up to the first that is refused, with one doorbell, and writes how many were posted: the index of the
// one that was refused. `posted` may be NULL.
//
// Errors: BV_EINVAL, a stale number, an opcode, a flag, the number of SGEs, a key, the length of inline data or the alignment
// of an atomic, or a datagram that is longer than the port's MTU. BV_ENOTCONN, the queue pair cannot send. BV_ENOSPC, the queue is full:
// poll. BV_EPERM, an SGE or an address handle of another protection domain. BV_EACCES, a region lacks BV_ACCESS_LOCAL_WRITE. BV_ERANGE, an SGE outside of its region. BV_EIO, the
// device is lost.
//
// # Safety
// `device` is of bv_init; `wrs` is `count` readable requests, whose pointers are to `num_sge` pieces and to `inline_length`
// bytes; `posted` is writable or NULL. Nobody writes the requests, pieces and inline bytes during the call. The peer may see
// the bytes of a region from here on, and the device may write them, until the completion was polled: until then they are the
// device's.
int32_t bv_post_send(struct bv_device *device,
                     struct bv_qp qp,
                     const struct bv_send_wr *wrs,
                     size_t count,
                     size_t *posted);

// Posts `count` receives up to the first that is refused, with a doorbell for each, and writes how many were posted: the index
// of the one that was refused.
// `posted` may be NULL.
//
// Errors: BV_EINVAL, a stale number, the number of SGEs or a key. BV_EOPNOTSUPP, the queue pair has no receives of its own (XRC,
// or a shared receive queue).
// BV_ENOTCONN, it takes none in its state. BV_ENOSPC, the queue is full. BV_EPERM, BV_EACCES, BV_ERANGE, BV_EIO as of bv_post_send.
//
// # Safety
// As of bv_post_send.
int32_t bv_post_recv(struct bv_device *device,
                     struct bv_qp qp,
                     const struct bv_recv_wr *wrs,
                     size_t count,
                     size_t *posted);

// Takes up to `count` completions, BV_MAX_POLL at most, and returns how many: 0 if none is there.
//
// Errors: BV_EINVAL, the number is stale. BV_EBADMSG, the device wrote a completion that fits nothing; the others are still
// there. BV_EIO, the queue overran, or the device is lost and every request was returned.
//
// # Safety
// `device` is of bv_init; `wcs` is `count` writable completions.
int32_t bv_poll_cq(struct bv_device *device,
                   struct bv_cq cq,
                   struct bv_wc *wcs,
                   size_t count);

// Arms a completion queue: its next completion gives BV_EVENT_COMPLETION, and an interrupt. With `solicited_only` 1 the next
// solicited one, or the next that failed.
//
// Errors: BV_EINVAL, the number is stale. BV_EIO, the queue is broken or the device is lost.
//
// # Safety
// `device` is of bv_init.
int32_t bv_req_notify_cq(struct bv_device *device,
                         struct bv_cq cq,
                         uint32_t solicited_only);

// Makes a queue pair for datagrams, in the state RESET. It has no peer: each send names its destination (bv_send_wr.ah, remote_qpn and
// remote_qkey), and is a SEND of one packet (bv_port_attr.active_mtu). Each receive begins with BV_GRH_BYTES bytes, which byte_len
// counts, and its completion says where it came from (bv_wc.src_qp and others). bv_modify_qp_to_rts needs port_num, pkey_index, qkey and
// sq_psn. Of `init`, qp_type is ignored.
//
// Errors: as of bv_create_qp.
//
// # Safety
// `device` is of bv_init; `init` is readable and `qp` writable.
int32_t bv_create_ud_qp(struct bv_device *device,
                        const struct bv_qp_init *init,
                        struct bv_qp *qp);

// Makes an address handle for the datagrams of a protection domain's queue pairs. A request that is posted needs it no more.
//
// Errors: BV_EINVAL, the protection domain's number is stale, or a part of the address is out of range or does not fit the port's link
// layer. BV_ENOMEM, there are BV_MAX_AH. Others: the device has no such address.
//
// # Safety
// `device` is of bv_init; `attr` is readable and `ah` writable.
int32_t bv_create_ah(struct bv_device *device,
                     struct bv_pd pd,
                     const struct bv_ah_attr *attr,
                     struct bv_ah *ah);

// Destroys an address handle.
//
// Errors: BV_EINVAL, the number names none.
//
// # Safety
// `device` is of bv_init.
int32_t bv_destroy_ah(struct bv_device *device, struct bv_ah ah);

// Writes the address of the sender of the datagram of this completion, for an answer through a port, from 1. `grh` is the beginning of
// the receive; it may be NULL if wc_flags has no BV_WC_GRH. `sgid_index` is the index of the GID that the datagram was sent to. On an
// Ethernet port the caller adds the MAC address (bv_ah_attr.dmac): the completion does not have it.
//
// Errors: BV_EINVAL, a pointer is NULL or not aligned. There is no device that could have a text.
//
// # Safety
// `wc` is readable and `attr` writable; `grh` is BV_GRH_BYTES readable bytes, or NULL.
int32_t bv_init_ah_from_wc(uint8_t port_num,
                           uint8_t sgid_index,
                           const struct bv_wc *wc,
                           const uint8_t *grh,
                           struct bv_ah_attr *attr);

// Gives a queue pair for datagrams a copy of what is sent to a multicast group, whose GID is 16 bytes in network byte order. A second
// attachment to the same group changes nothing. On an InfiniBand port somebody joins the group at the subnet manager.
//
// Errors: BV_EINVAL, the number is stale, the queue pair is none for datagrams, or the GID is none of a group. BV_ENOMEM, it is in as many
// groups as it can. Others: the device did not do it.
//
// # Safety
// `device` is of bv_init; `gid` is 16 readable bytes.
int32_t bv_attach_mcast(struct bv_device *device,
                        struct bv_qp qp,
                        const uint8_t *gid);

// Ends what bv_attach_mcast began.
//
// Errors: BV_EINVAL, the number is stale, or the queue pair is not in the group. Others: the device did not do it.
//
// # Safety
// `device` is of bv_init; `gid` is 16 readable bytes.
int32_t bv_detach_mcast(struct bv_device *device, struct bv_qp qp, const uint8_t *gid);

// Moves a queue pair to ERR and waits until each send that was posted is done or flushed; returns how many there were. Then the device
// uses the memory of none of them. `give`, unless NULL, gets what comes out of the completion queue meanwhile, of other queue pairs too,
// without the sources of datagrams. The completion queue needs an entry for one request more.
//
// Errors: BV_EINVAL, the number is stale. BV_ETIMEDOUT, not all are done in time: the call may be repeated. If it is not,
// one poll of the queue returns the marker of the drain, which is no request of yours: BV_WC_RDMA_WRITE, flushed, with wr_id and byte_len of all ones.
// Others: the device did not do it, is lost, or wrote a completion that fits nothing.
//
// # Safety
// `device` is of bv_init. `give` is NULL or returns normally; it may be called with `context`, and a completion that is readable during
// its call.
int32_t bv_drain_sq(struct bv_device *device,
                    struct bv_qp qp,
                    uint32_t timeout_ms,
                    void (*give)(void *context, const struct bv_wc *wc),
                    void *context);

// Moves a queue pair to ERR and waits until each receive that was posted is done or flushed; returns how many there were. Then the device
// writes into the memory of none of them. `give` is that of bv_drain_sq.
//
// Errors: as of bv_drain_sq. BV_EOPNOTSUPP, the queue pair has no receives of its own.
//
// # Safety
// As of bv_drain_sq.
int32_t bv_drain_rq(struct bv_device *device,
                    struct bv_qp qp,
                    uint32_t timeout_ms,
                    void (*give)(void *context, const struct bv_wc *wc),
                    void *context);

// Takes the next event. Returns 1 if there was one, which is written, and 0 if there was none. A loop until 0 ends.
//
// Errors: the device is lost, or wrote something that is no event.
//
// # Safety
// `device` is of bv_init; `event` is writable.
int32_t bv_poll_event(struct bv_device *device, struct bv_event *event);

// Writes the text of the last call on the device that failed, with its facts, and a NUL behind it, into `size` bytes. Empty if
// none failed. Returns the bytes of the whole text without the NUL, as snprintf does: a text that is longer than the buffer is
// cut. Before bv_init and during another call there is no text.
//
// # Safety
// `device` is of bv_init or NULL; `text` is `size` writable bytes, or NULL with `size` 0.
size_t bv_strerror_detail(struct bv_device *device,
                          char *text,
                          size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BAREVERBS_H */
