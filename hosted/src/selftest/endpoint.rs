//! One end of the connection: its memory and its verbs objects, on a device that may carry the other end too.

use std::collections::VecDeque;

use anyhow::{Context as _, Result, bail};
use bareverbs::{
    Access, AddressVector, Completion, CqHandle, DmaBuffer as _, Lid, MwBind, MwHandle, MwType, OutOfRange, PdHandle, Psn,
    QpAttr, QpAttrMask, QpCap, QpHandle, QpInit, QpState, QpType, Qpn, RecvWr, Region, Remote, Rkey, SendFlags, Sge,
};

use crate::data_pattern::Pattern;
use crate::device::{Device, Host};

/// Bit of a `wr_id` that marks a receive.
const RECEIVE: u64 = 1 << 63;
/// Reads and atomics outstanding at once.
const READS: u8 = 8;

/// Codes of the times after which a requester sends again.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryTimes {
    /// Local ACK timeout: 4.096 µs · 2^code.
    ack_timeout: u8,
    /// After an RNR NAK (IBTA table 45).
    rnr_timer: u8,
}

impl RetryTimes {
    /// About half a millisecond of the devices' time, and 10 µs: a simulated wire is short, and may lose packets.
    pub(super) const SIMULATED: Self = Self { ack_timeout: 7, rnr_timer: 1 };
    /// 67 ms and 0.64 ms, as the tools of rdma-core have them.
    pub(super) const CARD: Self = Self { ack_timeout: 14, rnr_timer: 12 };
}

/// Where things lie in a side's region: slots to send from, slots to receive into, slots for the peer, results of atomics.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferLayout {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Messages in flight at most.
    pub(super) slots: usize,
}

impl BufferLayout {
    /// Bytes of all slots of one kind.
    const MAX_BYTES: usize = 4 << 20;

    pub(super) fn new(size: usize) -> Self {
        let stride = size.next_multiple_of(64);
        Self { size, slots: (Self::MAX_BYTES / stride).clamp(1, 32) }
    }

    fn slot(self, kind: usize, index: usize) -> usize {
        (kind * self.slots + index % self.slots) * self.size.next_multiple_of(64)
    }

    /// Bytes to send.
    pub(super) fn tx(self, index: usize) -> usize {
        self.slot(0, index)
    }

    /// Bytes that arrive here.
    pub(super) fn rx(self, index: usize) -> usize {
        self.slot(1, index)
    }

    /// Bytes that the peer reads and writes.
    pub(super) fn exposed(self, index: usize) -> usize {
        self.slot(2, index)
    }

    /// The 8 bytes that the peer's atomics work on.
    pub(super) fn counter(self) -> usize {
        self.slot(3, 0)
    }

    /// Where results of atomics go.
    pub(super) fn result(self, index: usize) -> usize {
        self.counter() + 64 + 8 * (index % self.slots)
    }

    /// Bytes that a window shows the peer: from the first exposed slot over the counter.
    pub(super) fn window(self) -> usize {
        self.counter() + 8 - self.exposed(0)
    }

    fn total(self) -> usize {
        (self.result(self.slots - 1) + 8).next_multiple_of(4096)
    }
}

/// What the two ends agree on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) mtu: bareverbs::Mtu,
    pub(super) times: RetryTimes,
    /// Whether both devices do atomics.
    pub(super) atomics: bool,
}

impl Connection {
    fn access(self) -> Access {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        if self.atomics { access | Access::REMOTE_ATOMIC } else { access }
    }
}

/// One end of the connection.
pub(super) struct Endpoint<H: Host> {
    pub(super) name: String,
    pub(super) layout: BufferLayout,
    pub(super) lid: Lid,
    pub(super) qpn: Qpn,
    pub(super) qp: QpHandle,
    pub(super) region: Region<H::Buffer>,
    /// Receives taken so far: the next one lies in that slot.
    pub(super) received: usize,
    connection: Connection,
    pd: PdHandle,
    cq: CqHandle,
    taken: VecDeque<Completion>,
    scratch: Vec<u8>,
}

impl<H: Host> Endpoint<H> {
    /// Makes domain, region, completion queue and queue pair.
    pub(super) fn new(
        name: &str,
        device: &mut Device<H>,
        lid: Lid,
        layout: BufferLayout,
        connection: Connection,
    ) -> Result<Self> {
        let verbs = &mut device.verbs;
        let pd = verbs.alloc_pd().context("alloc_pd")?;
        let access = Access::LOCAL_WRITE | Access::MW_BIND | connection.access();
        let buffer = device.host.buffer(layout.total())?;
        let region = verbs.reg_mr(pd, buffer, access).map_err(|refused| refused.error).context("reg_mr")?;
        let cq = verbs.create_cq(256).context("create_cq")?;
        let requests = layout.slots as u32;
        let cap = QpCap {
            max_send_wr: requests.max(4),
            max_recv_wr: requests,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 32,
        };
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
        let qp = verbs.create_qp(&init).context("create_qp")?;
        let qpn = verbs.qp(qp)?.qpn;
        let scratch = vec![0; layout.size];
        Ok(Self {
            name: name.into(),
            layout,
            lid,
            qpn,
            qp,
            region,
            received: 0,
            connection,
            pd,
            cq,
            taken: VecDeque::new(),
            scratch,
        })
    }

    /// Whether atomics are possible between the ends.
    pub(super) const fn has_atomics(&self) -> bool {
        self.connection.atomics
    }

    /// Takes the queue pair from RESET to RTS towards `peer`, and posts a receive for each slot.
    pub(super) fn connect(&mut self, device: &mut Device<H>, peer: (Lid, Qpn), psns: (Psn, Psn)) -> Result<()> {
        use QpAttrMask as Mask;
        let Connection { mtu, times, .. } = self.connection;
        let most = device.verbs.query_device();
        let (initiator, target) = (most.max_qp_init_rd_atom, most.max_qp_rd_atom);
        let mut attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            access: self.connection.access(),
            av: AddressVector { dlid: peer.0, port_num: 1, ..AddressVector::default() },
            path_mtu: mtu,
            dest_qpn: peer.1,
            sq_psn: psns.0,
            rq_psn: psns.1,
            max_rd_atomic: READS.min(initiator).min(target),
            max_dest_rd_atomic: READS.min(target),
            min_rnr_timer: times.rnr_timer,
            timeout: times.ack_timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let steps = [
            (QpState::Init, Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS),
            (
                QpState::Rtr,
                Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
            ),
            (QpState::Rts, Mask::SQ_PSN | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC),
        ];
        for (state, mask) in steps {
            attr.state = state;
            self.modify(device, &attr, Mask::STATE | mask)?;
            if state == QpState::Init {
                self.received = 0;
                (0..self.layout.slots).try_for_each(|slot| self.post_receive(device, slot))?;
            }
        }
        Ok(())
    }

    /// Takes the queue pair back to RESET.
    pub(super) fn reset(&mut self, device: &mut Device<H>) -> Result<()> {
        self.modify(device, &QpAttr { state: QpState::Reset, ..QpAttr::default() }, QpAttrMask::STATE)?;
        self.taken.clear();
        Ok(())
    }

    fn modify(&self, device: &mut Device<H>, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let (name, state) = (&self.name, attr.state);
        device.verbs.modify_qp(self.qp, attr, mask).with_context(|| format!("modify_qp of {name} to {state:?}"))
    }

    /// A byte of the region, as the peer names it through a window with key `rkey`.
    pub(super) const fn remote(&self, at: usize, rkey: Rkey) -> Remote {
        Remote { rkey, ..self.region.remote(at as u64) }
    }

    /// Bytes of the region, for a request.
    pub(super) const fn sge(&self, at: usize, len: usize) -> Sge {
        self.region.sge(at as u64, len as u32)
    }

    /// Posts a receive into a slot.
    pub(super) fn post_receive(&self, device: &mut Device<H>, slot: usize) -> Result<()> {
        let slot = slot % self.layout.slots;
        let sges = [self.sge(self.layout.rx(slot), self.layout.size)];
        device.verbs.post_recv(self.qp, &RecvWr { wr_id: RECEIVE | slot as u64, sges: &sges }).context("post_recv")
    }

    /// Writes `len` bytes of a pattern into the region.
    pub(super) fn fill(&mut self, at: usize, len: usize, pattern: Pattern) -> Result<()> {
        let bytes = self.scratch.get_mut(..len).context("a message longer than its slot")?;
        pattern.fill(bytes);
        Ok(self.write(at, len)?)
    }

    fn write(&mut self, at: usize, len: usize) -> Result<(), OutOfRange> {
        let bytes = self.scratch.get(..len).ok_or(OutOfRange { offset: at, len })?;
        self.region.write(at, bytes)
    }

    /// Compares `len` bytes of the region with a pattern.
    pub(super) fn verify(&mut self, at: usize, len: usize, pattern: Pattern) -> Result<()> {
        let bytes = self.scratch.get_mut(..len).context("a message longer than its slot")?;
        self.region.read(at, bytes)?;
        match pattern.differs(bytes) {
            None => Ok(()),
            Some((byte, want, have)) => bail!("byte {byte} at {} is {have:#04x} instead of {want:#04x}", self.name),
        }
    }

    /// Eight bytes of the region, in the machine's byte order.
    pub(super) fn load(&self, at: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.region.read(at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Sets eight bytes of the region.
    pub(super) fn store(&mut self, at: usize, value: u64) -> Result<()> {
        Ok(self.region.write(at, &value.to_ne_bytes())?)
    }

    /// The next completion, if one is there.
    pub(super) fn poll(&mut self, device: &mut Device<H>) -> Result<Option<Completion>> {
        if self.taken.is_empty() {
            let mut completions = [Completion::EMPTY; 32];
            let taken = device.verbs.poll_cq(self.cq, &mut completions).context("poll_cq")?;
            self.taken.extend(completions.into_iter().take(taken));
        }
        Ok(self.taken.pop_front())
    }

    /// Whether a completion is that of the receive in the next slot; counts it, gives the slot.
    pub(super) fn take_receive(&mut self, completion: &Completion) -> Result<usize> {
        let slot = self.received % self.layout.slots;
        if completion.wr_id != RECEIVE | slot as u64 {
            bail!("a completion of request {:#x} instead of the receive in slot {slot}", completion.wr_id);
        }
        self.received += 1;
        Ok(slot)
    }

    /// Makes a type 1 window; gives it and its key.
    pub(super) fn alloc_window(&self, device: &mut Device<H>) -> Result<(MwHandle, Rkey)> {
        let window = device.verbs.alloc_mw(self.pd, MwType::Type1).context("alloc_mw")?;
        Ok((window, device.verbs.mw(window)?.rkey))
    }

    /// Posts a bind of a window to everything that the peer may reach, or (`unbind`) to nothing; gives the new key.
    pub(super) fn bind(&self, device: &mut Device<H>, window: MwHandle, wr_id: u64, unbind: bool) -> Result<Rkey> {
        let bind = MwBind {
            wr_id,
            flags: SendFlags::SIGNALED,
            mr: self.region.handle(),
            addr: self.region.remote(self.layout.exposed(0) as u64).addr,
            length: if unbind { 0 } else { self.layout.window() as u64 },
            access: self.connection.access(),
        };
        device.verbs.bind_mw(self.qp, window, &bind).context("bind_mw")
    }

    /// Destroys every object.
    pub(super) fn destroy(self, device: &mut Device<H>, window: Option<MwHandle>) -> Result<()> {
        let verbs = &mut device.verbs;
        verbs.destroy_qp(self.qp).context("destroy_qp")?;
        verbs.destroy_cq(self.cq).context("destroy_cq")?;
        if let Some(window) = window {
            verbs.dealloc_mw(window).context("dealloc_mw")?;
        }
        verbs.dereg_mr(self.region).map_err(|refused| refused.error).context("dereg_mr")?;
        verbs.dealloc_pd(self.pd).context("dealloc_pd")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap() {
        for size in [1, 8, 64, 100, 4096, 1 << 20] {
            let layout = BufferLayout::new(size);
            let mut places: Vec<(usize, usize)> = (0..layout.slots)
                .flat_map(|slot| [layout.tx(slot), layout.rx(slot), layout.exposed(slot)].map(|at| (at, at + size)))
                .chain([(layout.counter(), layout.counter() + 8)])
                .chain((0..layout.slots).map(|slot| (layout.result(slot), layout.result(slot) + 8)))
                .collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{size}");
            assert!(places.last().unwrap().1 <= layout.total() && layout.counter().is_multiple_of(8));
            let window = layout.exposed(0)..layout.exposed(0) + layout.window();
            assert!(window.contains(&(layout.counter() + 7)) && !window.contains(&layout.rx(layout.slots - 1)));
        }
    }
}
