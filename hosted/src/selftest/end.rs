//! One end of the self-test's connection: its slots, its receives in order, and its memory window.

use std::collections::VecDeque;

use anyhow::{Context as _, Result, bail};
use bareverbs::{
    Access, AddressVector, Completion, Gid, GlobalRoute, Lid, LinkLayer, Mac, MwHandle, MwType, PortAttr, Psn, QpAttr, QpCap,
    QpHandle, QpType, Qpn, Remote, Rkey, SendFlags, Type1Bind,
};

use super::buffer_layout::BufferLayout;
use crate::data_pattern::Pattern;
use crate::device::{Device, Endpoint, Host};

/// Port of each device.
pub(super) const PORT: u8 = 1;

/// Bit of a `wr_id` that marks a receive.
const RECEIVE: u64 = 1 << 63;
/// Maximum number of reads and atomics outstanding.
const READS: u8 = 8;

/// Codes of the retry timers of a requester.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryTimes {
    /// Local ACK timeout: 4.096 µs · 2^code.
    ack_timeout: u8,
    /// Minimum RNR timer (IBTA table 45).
    rnr_timer: u8,
}

impl RetryTimes {
    /// About half a millisecond of the devices' time, and 10 µs: a simulated wire has little delay, and may lose packets.
    pub(super) const SIMULATED: Self = Self { ack_timeout: 7, rnr_timer: 1 };
    /// 67 ms and 0.64 ms, as in the tools of rdma-core.
    pub(super) const CARD: Self = Self { ack_timeout: 14, rnr_timer: 12 };
}

/// Parameters of the connection, which both ends share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) mtu: bareverbs::Mtu,
    pub(super) times: RetryTimes,
    /// Whether both devices support atomics.
    pub(super) atomics: bool,
    /// Whether the server has memory windows.
    pub(super) windows: bool,
}

impl Connection {
    fn access(self) -> Access {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        if self.atomics { access | Access::REMOTE_ATOMIC } else { access }
    }
}

/// Where an end is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    lid: Lid,
    gid: Gid,
    /// MAC address of an Ethernet port.
    mac: Option<Mac>,
    /// Whether its port needs a global route on every path.
    grh_required: bool,
    qpn: Qpn,
}

impl Address {
    /// Returns the path to a peer: with a global route if either port needs one, since a queue pair that sends with one takes none
    /// without it (IBTA volume 1, 9.6.1.2).
    fn path_to(&self, peer: &Self) -> AddressVector {
        let is_global = self.grh_required || peer.grh_required;
        let grh = is_global.then(|| GlobalRoute { dgid: peer.gid, hop_limit: 1, ..GlobalRoute::default() });
        AddressVector { dlid: peer.lid, grh, dmac: peer.mac, ..AddressVector::default() }
    }
}

/// One end of the connection.
pub(super) struct SelftestEnd<H: Host> {
    pub(super) name: String,
    pub(super) layout: BufferLayout,
    pub(super) address: Address,
    pub(super) qp: QpHandle,
    pub(super) endpoint: Endpoint<H>,
    /// Number of receives completed, which determines the slot of the next one.
    pub(super) received: usize,
    connection: Connection,
    taken: VecDeque<Completion>,
}

/// Returns GID 0 of port 1, which is the link-local address of an Ethernet port: a card may refuse the query there.
///
/// # Errors
/// A query failed.
pub(super) fn first_gid<H: Host>(device: &mut Device<H>, port: &PortAttr) -> Result<Gid> {
    match port.link_layer {
        LinkLayer::Ethernet => Ok(Gid::link_local(port.mac)),
        LinkLayer::InfiniBand => device.verbs.query_gid(PORT, 0).context("query_gid 0 of port 1"),
    }
}

impl<H: Host> SelftestEnd<H> {
    /// Creates the protection domain, region, completion queue and queue pair.
    ///
    /// # Errors
    /// The device refuses an object.
    pub(super) fn new(
        name: &str,
        device: &mut Device<H>,
        lid: Lid,
        layout: BufferLayout,
        connection: Connection,
    ) -> Result<Self> {
        let mut access = Access::LOCAL_WRITE | connection.access();
        access.set(Access::MW_BIND, connection.windows);
        let mut endpoint = Endpoint::new(device, layout.total(), access)?;
        let cq = endpoint.create_cq(device, 256)?;
        let requests = layout.slots as u32;
        let cap = QpCap {
            max_send_wr: requests.max(4),
            max_recv_wr: requests,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 32,
        };
        let qp = endpoint.create_qp(device, QpType::Rc, (cq, cq), cap)?;
        let port = device.verbs.query_port(PORT).context("query_port")?;
        let mac = (port.link_layer == LinkLayer::Ethernet).then_some(port.mac);
        let gid = first_gid(device, &port)?;
        let address = Address { lid, gid, mac, grh_required: port.grh_required, qpn: device.verbs.qp_info(qp)?.qpn };
        Ok(Self { name: name.into(), layout, address, qp, endpoint, received: 0, connection, taken: VecDeque::new() })
    }

    /// Returns whether both devices support atomics.
    pub(super) const fn has_atomics(&self) -> bool {
        self.connection.atomics
    }

    /// Takes the queue pair from RESET to RTS towards `peer`, and posts a receive for each slot. The peer must not send before
    /// both ends are connected.
    ///
    /// # Errors
    /// The device refuses a transition or a receive.
    pub(super) fn connect(&mut self, device: &mut Device<H>, peer: &Address, psns: (Psn, Psn)) -> Result<()> {
        let Connection { mtu, times, .. } = self.connection;
        let most = device.verbs.query_device();
        let (initiator, target) = (most.max_qp_init_rd_atom, most.max_qp_rd_atom);
        let attr = QpAttr {
            port_num: PORT,
            access: self.connection.access(),
            av: self.address.path_to(peer),
            path_mtu: mtu,
            dest_qpn: peer.qpn,
            sq_psn: psns.0,
            rq_psn: psns.1,
            max_rd_atomic: READS.min(initiator).min(target),
            max_dest_rd_atomic: READS.min(target),
            min_rnr_timer: times.rnr_timer,
            timeout: times.ack_timeout,
            ..QpAttr::default()
        };
        self.endpoint.connect(device, 0, &attr).with_context(|| self.name.clone())?;
        self.received = 0;
        (0..self.layout.slots).try_for_each(|slot| self.post_receive(slot))
    }

    /// Takes the queue pair to RESET.
    ///
    /// # Errors
    /// The device refuses the transition.
    pub(super) fn reset(&mut self, device: &mut Device<H>) -> Result<()> {
        self.endpoint.reset(device, 0).with_context(|| self.name.clone())?;
        self.taken.clear();
        Ok(())
    }

    /// Returns the remote address of a byte of the region through a window with key `rkey`.
    pub(super) const fn remote(&self, at: usize, rkey: Rkey) -> Remote {
        Remote { rkey, ..self.endpoint.region.remote(at as u64) }
    }

    /// Posts a receive into a slot.
    ///
    /// # Errors
    /// The queue is full.
    pub(super) fn post_receive(&mut self, slot: usize) -> Result<()> {
        let slot = slot % self.layout.slots;
        self.endpoint.post_receive(0, RECEIVE | slot as u64, self.layout.rx(slot), self.layout.size)
    }

    /// Compares `len` bytes of the region with a pattern.
    ///
    /// # Errors
    /// A byte differs.
    pub(super) fn verify(&mut self, at: usize, len: usize, pattern: Pattern) -> Result<()> {
        self.endpoint.verify(at, len, pattern).with_context(|| self.name.clone())
    }

    /// Returns the next completion, if there is one.
    ///
    /// # Errors
    /// The queue is broken.
    pub(super) fn poll(&mut self) -> Result<Option<Completion>> {
        if self.taken.is_empty() {
            let mut completions = [Completion::EMPTY; 32];
            let taken = self.endpoint.cq(0)?.poll(&mut completions);
            let taken = taken.with_context(|| format!("poll_cq of {}", self.name))?;
            self.taken.extend(completions.into_iter().take(taken));
        }
        Ok(self.taken.pop_front())
    }

    /// Counts the completion of the receive in the next slot. Returns the slot.
    ///
    /// # Errors
    /// The completion is of another request.
    pub(super) fn take_receive(&mut self, completion: &Completion) -> Result<usize> {
        let slot = self.received % self.layout.slots;
        if completion.wr_id != RECEIVE | slot as u64 {
            bail!("a completion of request {:#x} instead of the receive in slot {slot}", completion.wr_id);
        }
        self.received += 1;
        Ok(slot)
    }

    /// Returns whether the server has memory windows.
    pub(super) const fn has_windows(&self) -> bool {
        self.connection.windows
    }

    /// Returns the key of the region.
    pub(super) const fn key(&self) -> Rkey {
        self.endpoint.region.remote(0).rkey
    }

    /// Allocates a type 1 memory window. Returns it and its rkey.
    ///
    /// # Errors
    /// The device refuses.
    pub(super) fn alloc_window(&self, device: &mut Device<H>) -> Result<(MwHandle, Rkey)> {
        let window = device.verbs.alloc_mw(self.endpoint.pd(), MwType::Type1);
        let window = window.with_context(|| format!("alloc_mw of {}", self.name))?;
        Ok((window, device.verbs.mw_info(window)?.rkey))
    }

    /// Posts a bind of a window to the exposed slots and the counter, or with `unbind` to no bytes. Returns the new rkey.
    ///
    /// # Errors
    /// The bind is refused.
    pub(super) fn bind(&mut self, window: MwHandle, wr_id: u64, unbind: bool) -> Result<Rkey> {
        let bind = Type1Bind {
            wr_id,
            flags: SendFlags::SIGNALED,
            mr: self.endpoint.region.handle(),
            addr: self.endpoint.region.remote(self.layout.exposed(0) as u64).addr,
            length: if unbind { 0 } else { self.layout.window() as u64 },
            access: self.connection.access(),
        };
        self.endpoint.qp(0)?.send().bind_type1(window, &bind).with_context(|| format!("bind_mw of {}", self.name))
    }

    /// Destroys all verbs objects. The window is deallocated before the region to which it was bound.
    ///
    /// # Errors
    /// The device refuses.
    pub(super) fn destroy(mut self, device: &mut Device<H>, window: Option<MwHandle>) -> Result<()> {
        self.endpoint.destroy_queues(device)?;
        if let Some(window) = window {
            device.verbs.dealloc_mw(window).context("dealloc_mw")?;
        }
        self.endpoint.destroy(device)
    }
}
