//! Queue pairs of two hosts, connected.

use bareverbs::backend::Provider;
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, GlobalRoute, LinkLayer, Mtu, PortAttr, Psn, Qkey, QpAttr, QpCap,
    QpHandle, QpInit, QpType, QueuePair, RecvQueue, SharedReceives, SrqHandle, Verbs,
};

use crate::error::failed;
use crate::{Driver, Error, Node, WaitError, Waiter};

/// Hop limit of packets on an Ethernet wire: that of Linux (`net.ipv6.conf.default.hop_limit`).
const HOP_LIMIT: u8 = 64;

/// How two queue pairs are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Transport: RC, UC, or UD. A UD queue pair has no peer: the two ends are only brought to RTS, and each send names its destination.
    pub qp_type: QpType,
    /// Room for requests on each side.
    pub cap: QpCap,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN of each direction: from the first end, from the second.
    pub psn: (Psn, Psn),
    /// Local ACK timeout code: 4.096 µs * 2^timeout.
    pub timeout: u8,
    /// Retries without answer.
    pub retry_cnt: u8,
    /// Retries while the peer has no receive posted, 7 for ever.
    pub rnr_retry: u8,
    /// How long the peer has to wait before each of them, as the code of an RNR NAK: 1 is 10 µs, 12 is 640 µs, 20 is 10.24 ms (IBTA
    /// table 45).
    pub min_rnr_timer: u8,
    /// Q_Key of both ends, if they are UD.
    pub qkey: Qkey,
    /// Remote rights of both ends.
    pub access: Access,
}

impl Default for Connection {
    /// RC, 64 requests of 4 SGEs or 128 bytes inline each way, all rights. A peer that does not answer is given up after some 10 ms, one
    /// that has no receive posted after some 60 ms. A program of several threads, in which a receive may be posted later than that,
    /// sets `rnr_retry` to 7.
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 128 },
            mtu: Mtu::Mtu1024,
            psn: (Psn::new(0x10_0000), Psn::new(0x20_0000)),
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 6,
            min_rnr_timer: 20,
            qkey: Qkey::new(0x1111_1111),
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        }
    }
}

/// One end of a connection; with [`SharedReceives`], one that takes its receives from a shared receive queue.
#[derive(Debug)]
pub struct End<R = RecvQueue<'static, Driver>> {
    /// The queue pair. Every send has a completion.
    pub qp: QueuePair<'static, Driver, R>,
    /// All completions of the queue pair: it has room for them.
    pub cq: CompletionQueue<'static, Driver>,
    waiter: Waiter,
}

impl<R> End<R> {
    /// Waits for the next completion of the queue pair. Look at its status first: a request that failed is a completion too.
    ///
    /// # Errors
    /// [`WaitError`]: no completion came in time, or the poll failed.
    pub fn wait(&mut self) -> Result<Completion, WaitError> {
        self.waiter.wait(&mut self.cq)
    }

    /// Returns the queue pair and its completion queue: to be destroyed, or used by threads of their own.
    pub fn into_parts(self) -> (QueuePair<'static, Driver, R>, CompletionQueue<'static, Driver>) {
        (self.qp, self.cq)
    }
}

/// Creates a queue pair on each node and connects the two, as [`Connection::default`] says. Two queue pairs of one node are connected by
/// hand: each goes to RTS ([`Verbs::modify_qp_to_rts`]) with [`path_to`] the node itself.
///
/// # Errors
/// A table is full, or a device does not answer, or refuses.
pub fn connect(a: &mut Node, b: &mut Node) -> Result<[End; 2], Error> {
    connect_with(a, b, &Connection::default())
}

/// Creates a queue pair on each node and connects the two.
///
/// ```
/// use bareverbs::{QpType, Mtu};
/// use bareverbs_testing::{Connection, Faults, connect_with, pair};
///
/// let [mut a, mut b] = pair(Faults::none())?;
/// let unreliable = Connection { qp_type: QpType::Uc, mtu: Mtu::Mtu256, ..Connection::default() };
/// let [_qa, _qb] = connect_with(&mut a, &mut b, &unreliable)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A table is full, the device cannot do what is asked for, or it does not answer.
pub fn connect_with(a: &mut Node, b: &mut Node, connection: &Connection) -> Result<[End; 2], Error> {
    let (end_a, end_b) = (create(a, connection)?, create(b, connection)?);
    join((&mut a.verbs, end_a.qp.handle()), (&mut b.verbs, end_b.qp.handle()), connection)?;
    Ok([end_a, end_b])
}

/// Creates a queue pair on each node and connects the two, as [`Connection::default`] says. That of `b` takes its receives from a shared
/// receive queue of `b`. Called again, it makes one more pair that does.
///
/// ```
/// use bareverbs::{SrqCap, SrqInit};
/// use bareverbs_testing::{Faults, connect_with_srq, pair};
///
/// let [mut a, mut b] = pair(Faults::none())?;
/// let srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
/// let (_first, _second) = (connect_with_srq(&mut a, &mut b, srq.handle())?, connect_with_srq(&mut a, &mut b, srq.handle())?);
/// assert_eq!(b.verbs.srq_info(srq.handle())?.queue_pairs, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The handle is stale, a table is full, or a device does not answer, or refuses.
pub fn connect_with_srq(a: &mut Node, b: &mut Node, srq: SrqHandle) -> Result<(End, End<SharedReceives>), Error> {
    let connection = Connection::default();
    let end_a = create(a, &connection)?;
    let Connection { qp_type, cap, .. } = connection;
    let sizes = b.verbs.ring_sizes(qp_type, &cap).map_err(failed)?;
    let shared = b.verbs.srq_info(srq).map_err(failed)?.cap.max_wr;
    let cq = b.verbs.create_cq(sizes.send_blocks.saturating_add(shared)).map_err(failed)?;
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd: b.pd, qp_type, send_cq, recv_cq, cap, sq_sig_all: true };
    let qp = b.verbs.create_qp_with_srq(&init, srq).map_err(failed)?;
    let end_b = End { qp, cq, waiter: b.waiter() };
    join((&mut a.verbs, end_a.qp.handle()), (&mut b.verbs, end_b.qp.handle()), &connection)?;
    Ok((end_a, end_b))
}

fn create(node: &mut Node, connection: &Connection) -> Result<End, Error> {
    let Connection { qp_type, cap, .. } = *connection;
    let sizes = node.verbs.ring_sizes(qp_type, &cap).map_err(failed)?;
    let cq = node.verbs.create_cq(sizes.send_blocks.saturating_add(sizes.recv_entries)).map_err(failed)?;
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let qp = node.verbs.create_qp(&QpInit { pd: node.pd, qp_type, send_cq, recv_cq, cap, sq_sig_all: true }).map_err(failed)?;
    Ok(End { qp, cq, waiter: node.waiter() })
}

/// Connects two queue pairs in RESET, of any provider and transport. Between machines, LID, QPN and PSN go over another connection
/// first; here both ends are in one process.
///
/// # Errors
/// A handle is stale, or a device does not answer, or refuses.
pub fn join<A, B>(
    (a, qp_a): (&mut Verbs<'_, A>, QpHandle),
    (b, qp_b): (&mut Verbs<'_, B>, QpHandle),
    connection: &Connection,
) -> Result<(), Error>
where
    A: Provider<Error: Send + Sync + 'static>,
    B: Provider<Error: Send + Sync + 'static>,
{
    let (psn_a, psn_b) = connection.psn;
    let attr_a = attributes(b, qp_b, connection, psn_b, psn_a)?;
    let attr_b = attributes(a, qp_a, connection, psn_a, psn_b)?;
    a.modify_qp_to_rts(qp_a, &attr_a).map_err(failed)?;
    b.modify_qp_to_rts(qp_b, &attr_b).map_err(failed)
}

/// Returns the path to a peer's port 1: its LID, or of an Ethernet port its GID 0 and its MAC address. Between machines these go over
/// another connection first.
///
/// # Errors
/// The device does not answer.
pub fn path_to<P: Provider<Error: Send + Sync + 'static>>(peer: &mut Verbs<'_, P>) -> Result<AddressVector, Error> {
    let PortAttr { link_layer, lid, mac, .. } = peer.query_port(1).map_err(failed)?;
    let path = AddressVector { port_num: 1, ..AddressVector::default() };
    Ok(match link_layer {
        LinkLayer::InfiniBand => AddressVector { dlid: lid, ..path },
        LinkLayer::Ethernet => {
            let dgid = peer.query_gid(1, 0).map_err(failed)?;
            let route = GlobalRoute { dgid, hop_limit: HOP_LIMIT, ..GlobalRoute::default() };
            AddressVector { grh: Some(route), dmac: Some(mac), ..path }
        }
    })
}

/// Returns the attributes of a queue pair whose peer is this one.
fn attributes<P: Provider<Error: Send + Sync + 'static>>(
    peer: &mut Verbs<'_, P>,
    qp: QpHandle,
    connection: &Connection,
    rq_psn: Psn,
    sq_psn: Psn,
) -> Result<QpAttr, Error> {
    Ok(QpAttr {
        access: connection.access,
        port_num: 1,
        av: path_to(peer)?,
        path_mtu: connection.mtu,
        dest_qpn: peer.qp_info(qp).map_err(failed)?.qpn,
        rq_psn,
        sq_psn,
        timeout: connection.timeout,
        retry_cnt: connection.retry_cnt,
        rnr_retry: connection.rnr_retry,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: connection.min_rnr_timer,
        qkey: connection.qkey,
        ..QpAttr::default()
    })
}
