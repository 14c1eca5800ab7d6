//! Datagrams over a queue pair with the service of QP1: what an [`Endpoint`] transmits goes out, what comes in is for it to receive.

use bareverbs::backend::Provider;
use bareverbs::error::{
    CreateAhError, CreateCqError, CreateQpError, DeviceError, ModifyQpError, NotifyCqError, PollCqError, PostRecvError,
    PostSendError, QueryError, RegMrError,
};
use bareverbs::platform::OutOfRange;
use bareverbs::{
    Access, AddressVector, CompletionQueue, CqHandle, Destination, DmaBuffer, Gid, LinkLayer, Mac, PdHandle, Qkey, QpAttr,
    QpCap, QpHandle, QpInit, QpType, QueuePair, RecvWr, Refused, Region, SendWr, Verbs, WcStatus,
};

use crate::endpoint::Endpoint;
use crate::message::{MAD_BYTES, Mad};
use crate::path::{Address, GlobalRoute, PathAddress, Source};
use crate::unclosed::{CloseError, Memory, Unclosed};

/// Bytes before the datagram in each receive.
const AREA: usize = bareverbs::GlobalRoute::AREA;
/// Bytes of a receive.
const RECEIVE_BYTES: usize = AREA + MAD_BYTES;
/// Distance of the receives in the buffer.
const RECEIVE_STRIDE: usize = RECEIVE_BYTES.next_multiple_of(64);
/// Receives that are posted: datagrams that may come between two looks. One that finds no receive is lost, and repeated by its sender.
const RECEIVES: usize = 32;
/// Datagrams that may be on their way out.
const SENDS: usize = 8;
/// Marks the completions of sends.
const SEND: u64 = 1 << 32;
/// GIDs of the port that datagrams may come to: the first of its table.
const GIDS: usize = 16;
/// Hop limit on an Ethernet port where a path has none: that of Linux (`net.ipv6.conf.default.hop_limit`).
const HOP_LIMIT: u8 = 64;

/// QP1 of a port, with memory for the datagrams: carries what one or several [`Endpoint`]s say.
///
/// It waits for nothing. A program that sleeps arms the completion queue ([`Self::req_notify`]) and is woken by its event
/// ([`Event::Completion`](bareverbs::Event::Completion) of [`Self::cq`]).
///
/// - [`Self::transmit`] sends what an endpoint has to say, as far as there is room: after each call of the endpoint.
/// - [`Self::receive`] gives one datagram and where it came from.
/// - [`Self::address`] is the address vector of a connection's path.
///
/// Datagrams have the partition of index 0 of the port. On an Ethernet port no completion says which MAC address a datagram came from:
/// a function of the caller knows those of its peers ([`Gid::link_local_mac`] those of link-local addresses).
///
/// Requests to the agents of the port that a device hands to QP1, such as those for performance counters, are not answered.
#[derive(Debug)]
pub struct Carrier<'s, P: Provider, B> {
    qp: QueuePair<'s, P>,
    cq: CompletionQueue<'s, P>,
    region: Region<'s, B>,
    pd: PdHandle,
    port_num: u8,
    link_layer: LinkLayer,
    partition_key: u16,
    gids: [Gid; GIDS],
    /// Sends posted and completed since the queue pair left RESET.
    posted: usize,
    completed: usize,
}

/// Why a [`Carrier`] was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum OpenError<E> {
    /// The buffer has less than [`Carrier::BYTES`].
    Buffer {
        /// Its length in bytes.
        length: usize,
    },
    /// The port does not say what it is.
    Port(QueryError<E>),
    /// The buffer was not registered.
    Region(RegMrError<E>),
    /// There is no completion queue.
    Cq(CreateCqError<E>),
    /// There is no queue pair.
    Qp(CreateQpError<E>),
    /// The queue pair does not start.
    Start(CarrierError<E>),
}

/// Why a [`Carrier`] did not do what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CarrierError<E> {
    /// The completion queue is broken, or has an invalid completion, or the device is lost.
    Poll(PollCqError),
    /// A request failed, and the queue pair does nothing more until [`Carrier::restart`].
    Stopped {
        /// Status of the request.
        status: WcStatus,
    },
    /// As many datagrams as fit are on their way: [`Carrier::receive`] makes room.
    Full,
    /// The MAC address of a peer is not known.
    NoMac {
        /// The peer.
        gid: Gid,
    },
    /// The port does not have the GID that a path comes from, or not among its first 16.
    NoGid {
        /// The GID.
        gid: Gid,
    },
    /// A datagram is of another partition than the first of the port.
    Partition {
        /// P_Key of the datagram.
        partition_key: u16,
    },
    /// A path has no address.
    Address(CreateAhError<E>),
    /// A datagram was not sent.
    Send(PostSendError),
    /// A receive was not posted.
    Receive(PostRecvError),
    /// The queue pair changed no state.
    Modify(ModifyQpError<E>),
    /// The buffer is shorter than it was.
    Buffer(OutOfRange),
}

impl<E: DeviceError> core::fmt::Display for CarrierError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Poll(error) => error.fmt(f),
            Self::Stopped { status } => write!(f, "a request of QP1 failed with {status:?}"),
            Self::Full => f.write_str("too many datagrams are on their way"),
            Self::NoMac { gid } => write!(f, "the MAC address of {} is not known", gid.ip()),
            Self::NoGid { gid } => write!(f, "{} is none of the first {GIDS} GIDs of the port", gid.ip()),
            Self::Partition { partition_key } => write!(f, "{partition_key:#06x} is not the first partition of the port"),
            Self::Address(error) => error.fmt(f),
            Self::Send(error) => error.fmt(f),
            Self::Receive(error) => error.fmt(f),
            Self::Modify(error) => error.fmt(f),
            Self::Buffer(error) => error.fmt(f),
        }
    }
}

impl<E: DeviceError> core::error::Error for CarrierError<E> {}

impl<E: DeviceError> core::fmt::Display for OpenError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Buffer { length } => write!(f, "a buffer of {length} bytes is too small"),
            Self::Port(error) => error.fmt(f),
            Self::Region(error) => error.fmt(f),
            Self::Cq(error) => error.fmt(f),
            Self::Qp(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
        }
    }
}

impl<E: DeviceError> core::error::Error for OpenError<E> {}

/// What a [`Carrier`] asks of the storage of its verbs: one queue pair with these capacities, one completion queue, one region.
pub const CARRIER_CAP: QpCap =
    QpCap { max_send_wr: SENDS as u32, max_recv_wr: RECEIVES as u32, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

impl<'s, P: Provider, B: DmaBuffer + 'static> Carrier<'s, P, B> {
    /// Bytes of memory that it needs.
    pub const BYTES: usize = RECEIVES * RECEIVE_STRIDE + SENDS * MAD_BYTES;

    /// Creates QP1 of a port (from 1), whose partitions and GIDs are set. From now on it takes datagrams.
    ///
    /// # Errors
    ///
    /// The buffer is too small, a table is full, or the device refuses. What was made is destroyed again, and [`Unclosed::close`] gives the
    /// buffer back; it destroys too what was not, because the interrupt handler is taken, say. Nothing comes back if the device may use the buffer.
    #[expect(clippy::result_large_err, clippy::type_complexity, reason = "the queues themselves are given back")]
    pub fn open(
        verbs: &mut Verbs<'s, P>,
        pd: PdHandle,
        port_num: u8,
        buffer: B,
    ) -> Result<Self, Refused<Unclosed<'s, P, B>, OpenError<P::Error>>> {
        let refuse = |error, buffer| Err(Refused { error, returned: Some(Unclosed::of(buffer)) });
        if buffer.len() < Self::BYTES as u64 {
            let length = buffer.len() as usize;
            return refuse(OpenError::Buffer { length }, buffer);
        }
        let (link_layer, partition_key, gids) = match identity(verbs, port_num) {
            Ok(identity) => identity,
            Err(error) => return refuse(OpenError::Port(error), buffer),
        };
        let region = verbs.reg_mr(pd, buffer, Access::LOCAL_WRITE).map_err(|refused| Refused {
            error: OpenError::Region(refused.error),
            returned: refused.returned.map(Unclosed::of),
        })?;
        let left = |cq, region| Unclosed { qp: None, cq, memory: Memory::Registered(region) };
        let cq = match completion_queue(verbs) {
            Ok(cq) => cq,
            Err(error) => return Err(left(None, region).undo(verbs, error)),
        };
        let qp = match queue_pair(verbs, pd, cq.handle()) {
            Ok(qp) => qp,
            Err(error) => return Err(left(Some(cq), region).undo(verbs, error)),
        };
        let (posted, completed) = (0, 0);
        let mut carrier = Self { qp, cq, region, pd, port_num, link_layer, partition_key, gids, posted, completed };
        match carrier.start(verbs) {
            Ok(()) => Ok(carrier),
            Err(error) => Err(carrier.into_unclosed().undo(verbs, OpenError::Start(error))),
        }
    }

    /// Takes the queue pair from RESET to RTS, with all receives posted.
    fn start(&mut self, verbs: &mut Verbs<'s, P>) -> Result<(), CarrierError<P::Error>> {
        let attr = QpAttr { port_num: self.port_num, qkey: Qkey::GENERAL_SERVICES, ..QpAttr::default() };
        verbs.modify_qp_to_rts(self.qp.handle(), &attr).map_err(CarrierError::Modify)?;
        (self.posted, self.completed) = (0, 0);
        (0..RECEIVES).try_for_each(|slot| self.post_receive(slot))
    }

    /// Starts the queue pair anew after [`CarrierError::Stopped`]. What was on its way is lost, as on a wire.
    ///
    /// # Errors
    ///
    /// The device refuses, or is lost.
    pub fn restart(&mut self, verbs: &mut Verbs<'s, P>) -> Result<(), CarrierError<P::Error>> {
        verbs.reset_qp(&mut self.qp).map_err(CarrierError::Modify)?;
        // It leaves RESET when its completion queue was found empty.
        while let Some(next) = self.cq.completions().next() {
            next.map_err(CarrierError::Poll)?;
        }
        self.start(verbs)
    }

    /// Reads the GIDs of the port again: after [`Verbs::set_gid`], or a change of the port.
    ///
    /// # Errors
    ///
    /// The device does not answer.
    pub fn read_gids(&mut self, verbs: &mut Verbs<'s, P>) -> Result<(), QueryError<P::Error>> {
        (_, self.partition_key, self.gids) = identity(verbs, self.port_num)?;
        Ok(())
    }

    /// Returns the handle of the queue pair, for events and attributes of it.
    pub const fn qp(&self) -> QpHandle {
        self.qp.handle()
    }

    /// Returns the handle of the completion queue, for events of it. Completions of other queue pairs there are dropped.
    pub const fn cq(&self) -> CqHandle {
        self.cq.handle()
    }

    /// Asks for an event when [`Self::receive`] has something to do. What came before gives none: call [`Self::receive`] once more.
    ///
    /// # Errors
    ///
    /// The device is lost.
    pub fn req_notify(&mut self) -> Result<(), NotifyCqError> {
        self.cq.req_notify(false)
    }

    /// Returns whether [`Self::receive`] may have something to do; if not, the task of `cx` is woken when it may
    /// ([`CompletionQueue::poll_ready`]).
    #[cfg(feature = "multicore")]
    pub fn poll_ready(&mut self, cx: &mut core::task::Context<'_>) -> core::task::Poll<()> {
        self.cq.poll_ready(cx)
    }

    /// Returns the next datagram of 256 bytes, in `mad`, and where it came from; `None` if there is none. Others are dropped.
    ///
    /// # Errors
    ///
    /// [`CarrierError::Poll`], [`CarrierError::Stopped`], [`CarrierError::Receive`].
    pub fn receive(&mut self, mad: &mut Mad) -> Result<Option<Source>, CarrierError<P::Error>> {
        // One look at each completion that there may be.
        for _ in 0..RECEIVES + SENDS {
            let Some(next) = self.cq.completions().with_source().next() else { return Ok(None) };
            let (done, source) = next.map_err(CarrierError::Poll)?;
            if let Some(loss) = done.loss() {
                return Err(CarrierError::Poll(PollCqError::DeviceLost { loss }));
            }
            if done.qp != self.qp.handle() {
                continue;
            }
            if done.status != WcStatus::Success {
                return Err(CarrierError::Stopped { status: done.status });
            }
            if done.wr_id & SEND != 0 {
                self.completed = self.completed.wrapping_add(1);
                continue;
            }
            // Below `RECEIVES`: its own requests alone have come this far.
            let slot = done.wr_id as usize % RECEIVES;
            let mut bytes = [0; RECEIVE_BYTES];
            let read = self.region.read(slot * RECEIVE_STRIDE, &mut bytes);
            self.post_receive(slot)?;
            read.map_err(CarrierError::Buffer)?;
            let Some(source) = source.filter(|_| done.byte_len as usize == RECEIVE_BYTES) else { continue };
            let (Some(area), Some(datagram)) = (bytes.first_chunk::<AREA>(), bytes.last_chunk::<MAD_BYTES>()) else { continue };
            *mad = *datagram;
            return Ok(Some(source_of(&source, area)));
        }
        Ok(None)
    }

    /// Sends what an endpoint has to say, until that is nothing or there is no more room: then [`Self::receive`] makes some. `mac_of`
    /// knows the MAC addresses of peers; it is asked on Ethernet ports alone.
    ///
    /// # Errors
    ///
    /// The first datagram that could not be sent, after all others were tried. It is lost as if on the wire: what it was for is
    /// repeated, or times out.
    pub fn transmit<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize>(
        &mut self,
        verbs: &mut Verbs<'s, P>,
        endpoint: &mut Endpoint<CONNECTIONS, SERVICES, QUERIES>,
        mac_of: impl Fn(Gid) -> Option<Mac>,
    ) -> Result<(), CarrierError<P::Error>> {
        let mut result = Ok(());
        let mut mad = [0; MAD_BYTES];
        while self.has_room()
            && let Some(to) = endpoint.transmit(&mut mad)
        {
            let sent = self.send(verbs, &to, &mad, &mac_of);
            result = result.and(sent);
        }
        result
    }

    fn has_room(&self) -> bool {
        self.posted.wrapping_sub(self.completed) < SENDS
    }

    /// Sends one datagram. `mac_of` is as for [`Self::transmit`].
    ///
    /// # Errors
    ///
    /// [`CarrierError::Full`], or what is wrong with the address.
    pub fn send(
        &mut self,
        verbs: &mut Verbs<'s, P>,
        to: &Address,
        mad: &Mad,
        mac_of: impl Fn(Gid) -> Option<Mac>,
    ) -> Result<(), CarrierError<P::Error>> {
        if !self.has_room() {
            return Err(CarrierError::Full);
        }
        // Bit 15 is full membership, which the receiver may have and we may not (IBTA volume 1, 10.9.3).
        let partition_key = to.partition_key;
        if (partition_key ^ self.partition_key) & 0x7fff != 0 {
            return Err(CarrierError::Partition { partition_key });
        }
        let av = self.address(&to.path, mac_of)?;
        let ah = verbs.create_ah(self.pd, &av).map_err(CarrierError::Address)?;
        let at = RECEIVES * RECEIVE_STRIDE + self.posted % SENDS * MAD_BYTES;
        self.region.write(at, mad).map_err(CarrierError::Buffer)?;
        let destination = Destination { ah, remote_qpn: to.qpn, remote_qkey: Qkey::GENERAL_SERVICES };
        let sges = [self.region.sge(at as u64, MAD_BYTES as u32)];
        self.qp.send.post(&SendWr::send_to(&destination, &sges).id(SEND)).map_err(CarrierError::Send)?;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Returns the address vector of a path from this port: for datagrams, and for the queue pair of a connection
    /// ([`RtrAttributes::path`](crate::RtrAttributes::path)). It has no static rate: packets go out as fast as the link. `mac_of` is as
    /// for [`Self::transmit`].
    ///
    /// # Errors
    ///
    /// [`CarrierError::NoGid`], [`CarrierError::NoMac`].
    pub fn address(
        &self,
        path: &PathAddress,
        mac_of: impl Fn(Gid) -> Option<Mac>,
    ) -> Result<AddressVector, CarrierError<P::Error>> {
        let port_num = self.port_num;
        let Some(GlobalRoute { source_gid, destination_gid, flow_label, hop_limit, traffic_class }) = path.grh else {
            return Ok(AddressVector { dlid: path.dlid, sl: path.sl, port_num, ..AddressVector::default() });
        };
        let found = (0u8..).zip(&self.gids).find(|(_, gid)| **gid == source_gid && source_gid != Gid::default());
        let (sgid_index, _) = found.ok_or(CarrierError::NoGid { gid: source_gid })?;
        let flow_label = flow_label & 0xf_ffff;
        let grh = bareverbs::GlobalRoute { dgid: destination_gid, flow_label, sgid_index, hop_limit, traffic_class };
        if self.link_layer == LinkLayer::InfiniBand {
            return Ok(AddressVector { dlid: path.dlid, sl: path.sl, port_num, grh: Some(grh), ..AddressVector::default() });
        }
        // A LID has no meaning there, and a service level is the priority of a VLAN tag (annex A17).
        let dmac = mac_of(destination_gid).ok_or(CarrierError::NoMac { gid: destination_gid })?;
        let hop_limit = if hop_limit == 0 { HOP_LIMIT } else { hop_limit };
        let grh = bareverbs::GlobalRoute { hop_limit, ..grh };
        Ok(AddressVector { sl: path.sl & 7, port_num, grh: Some(grh), dmac: Some(dmac), ..AddressVector::default() })
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), CarrierError<P::Error>> {
        let sges = [self.region.sge((slot * RECEIVE_STRIDE) as u64, RECEIVE_BYTES as u32)];
        self.qp.recv.post(&RecvWr { wr_id: slot as u64, sges: &sges }).map_err(CarrierError::Receive)
    }

    /// Destroys QP1, and gives the buffer back.
    ///
    /// ```
    /// # use bareverbs::backend::Provider;
    /// # use bareverbs::{DmaBuffer, Refused, Verbs};
    /// # use bareverbs_cm::{Carrier, CloseError};
    /// # fn end<'s, P: Provider, B: DmaBuffer + 'static>(verbs: &mut Verbs<'s, P>, carrier: Carrier<'s, P, B>) -> Option<B> {
    /// let handler = verbs.take_interrupt_handler().ok();
    /// match carrier.close(verbs) {
    ///     Ok(buffer) => Some(buffer),
    ///     // The interrupt handler may have events of the completion queue.
    ///     Err(Refused { error: CloseError::Cq(_), returned: Some(left) }) => {
    ///         drop(handler);
    ///         left.close(verbs).ok()
    ///     }
    ///     Err(refused) => panic!("{}", refused.error),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CloseError`]: queue pair, completion queue and region are destroyed in this order, up to the first that is not. That one and those
    /// behind it come back, to be closed again when its reason is gone. Nothing comes back if the device may use the buffer.
    #[expect(clippy::result_large_err, clippy::type_complexity, reason = "the queues themselves are given back")]
    pub fn close(self, verbs: &mut Verbs<'s, P>) -> Result<B, Refused<Unclosed<'s, P, B>, CloseError<P::Error>>> {
        self.into_unclosed().close(verbs)
    }

    fn into_unclosed(self) -> Unclosed<'s, P, B> {
        let Self { qp, cq, region, .. } = self;
        Unclosed { qp: Some(qp), cq: Some(cq), memory: Memory::Registered(region) }
    }
}

/// Returns what a port is: its link layer, its first partition, its first GIDs.
fn identity<P: Provider>(
    verbs: &mut Verbs<'_, P>,
    port_num: u8,
) -> Result<(LinkLayer, u16, [Gid; GIDS]), QueryError<P::Error>> {
    let port = verbs.query_port(port_num)?;
    let partition_key = verbs.query_pkey(port_num, 0)?;
    let mut gids = [Gid::default(); GIDS];
    for (index, gid) in (0..port.gid_tbl_len).zip(&mut gids) {
        *gid = verbs.query_gid(port_num, index)?;
    }
    Ok((port.link_layer, partition_key, gids))
}

/// Creates the completion queue.
fn completion_queue<'s, P: Provider>(verbs: &mut Verbs<'s, P>) -> Result<CompletionQueue<'s, P>, OpenError<P::Error>> {
    let sizes = verbs.ring_sizes(QpType::Gsi, &CARRIER_CAP).map_err(OpenError::Qp)?;
    verbs.create_cq(sizes.send_blocks.saturating_add(sizes.recv_entries)).map_err(OpenError::Cq)
}

/// Creates the queue pair.
fn queue_pair<'s, P: Provider>(
    verbs: &mut Verbs<'s, P>,
    pd: PdHandle,
    cq: CqHandle,
) -> Result<QueuePair<'s, P>, OpenError<P::Error>> {
    let init = QpInit { pd, qp_type: QpType::Gsi, send_cq: cq, recv_cq: cq, cap: CARRIER_CAP, sq_sig_all: true };
    verbs.create_qp(&init).map_err(OpenError::Qp)
}

/// Returns where a datagram came from, by its completion and what precedes it in the buffer.
fn source_of(source: &bareverbs::Source, area: &[u8; AREA]) -> Source {
    let grh = source.grh.then(|| {
        let bareverbs::GlobalRoute { dgid, flow_label, traffic_class, .. } = bareverbs::GlobalRoute::reply(area, 0);
        // An IP header of version 4 ends with its destination, in the place of the last bytes of a GID.
        let destination_gid = match area.last_chunk::<4>() {
            Some(ipv4) if dgid.is_ipv4() => core::net::Ipv4Addr::from(*ipv4).into(),
            _ => Gid(area.last_chunk().copied().unwrap_or_default()),
        };
        GlobalRoute { source_gid: dgid, destination_gid, flow_label, hop_limit: 0, traffic_class }
    });
    let bareverbs::Source { slid, sl, src_qp, pkey, .. } = *source;
    Source { lid: slid, sl, qpn: src_qp, partition_key: pkey.unwrap_or_default(), grh }
}
