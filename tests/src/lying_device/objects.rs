//! The objects of a driver on the lying device, and how each is made, connected and destroyed.

use core::time::Duration;

use bareverbs::{
    Access, AddressVector, CompletionQueue, CqModeration, Destination, FastMr, Gid, GidEntry, GlobalRoute, Lid, LinkLayer,
    Lkey, Mac, MrChange, MwHandle, MwType, NoReceives, PdHandle, Qkey, QpAttr, QpAttrMask, QpCap, QpHandle, QpInit, QpState,
    QpType, Qpn, QueuePair, Refused, Region, Remote, Rkey, SendQueue, Sge, SharedReceiveQueue, SharedReceives, SrqCap, SrqInit,
    Srqn, Verbs, XrcDomain,
};
use bareverbs_mlx5::Mlx5;
use bareverbs_sim::in_process::{SimBuffer, SimPlatform};

use super::ledger::{Ledger, Owner, Side};
use super::memory::Memory;
use super::outcome::Done;
use crate::{ALL_ACCESS, Connection, rc_steps};

/// The driver, with a small arena: one is made for each input.
pub(super) type Driver = Mlx5<SimPlatform, 512>;

pub(super) const PDS: usize = 4;
pub(super) const MRS: usize = 8;
pub(super) const MWS: usize = 6;
pub(super) const CQS: usize = 5;
pub(super) const QPS: usize = 10;
pub(super) const SRQS: usize = 3;

pub(super) const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 32 };
const QKEY: Qkey = Qkey::new(0x1234);
/// Bytes of the longest message.
pub(super) const MESSAGE: usize = 256;

/// A queue pair, by where its receives are from.
pub(super) enum Pair<'s> {
    Own(QueuePair<'s, Driver>),
    Shared(QueuePair<'s, Driver, SharedReceives>),
    Xrc(QueuePair<'s, Driver, NoReceives>),
}

impl<'s> Pair<'s> {
    pub(super) fn handle(&self) -> QpHandle {
        match self {
            Self::Own(qp) => qp.handle(),
            Self::Shared(qp) => qp.handle(),
            Self::Xrc(qp) => qp.handle(),
        }
    }

    pub(super) fn send(&mut self) -> &mut SendQueue<'s, Driver> {
        match self {
            Self::Own(qp) => &mut qp.send,
            Self::Shared(qp) => &mut qp.send,
            Self::Xrc(qp) => &mut qp.send,
        }
    }
}

/// Everything that lives.
pub(super) struct Objects<'s> {
    pub(super) verbs: Verbs<'s, Driver>,
    pub(super) memory: Memory,
    pub(super) ledger: Ledger,
    lid: Lid,
    /// Address of an Ethernet port.
    pub(super) mac: Option<Mac>,
    pub(super) pds: Vec<PdHandle>,
    pub(super) regions: Vec<Region<'s, SimBuffer>>,
    pub(super) windows: Vec<MwHandle>,
    pub(super) fast: Vec<FastMr>,
    pub(super) cqs: Vec<CompletionQueue<'s, Driver>>,
    pub(super) pairs: Vec<Pair<'s>>,
    pub(super) srqs: Vec<SharedReceiveQueue<'s, Driver>>,
    pub(super) domains: Vec<XrcDomain<Driver>>,
    pub(super) to: Option<Destination>,
    /// Calls that the driver refused or the device failed.
    pub(super) refused: u64,
    pub(super) done: Done,
}

impl<'s> Objects<'s> {
    pub(super) fn new(verbs: Verbs<'s, Driver>, memory: Memory) -> Self {
        let (ledger, lid) = (Ledger::default(), Lid::new(1));
        let (pds, regions, windows, fast, cqs) = Default::default();
        let (pairs, srqs, domains) = Default::default();
        let (mac, to, refused, done) = (None, None, 0, Done::default());
        Self { verbs, memory, ledger, lid, mac, pds, regions, windows, fast, cqs, pairs, srqs, domains, to, refused, done }
    }

    /// Reads the port's addresses. An Ethernet port gets its first GID.
    pub(super) fn read_port(&mut self) {
        let Ok(port) = self.verbs.query_port(1) else { return };
        self.lid = port.lid;
        if port.link_layer == LinkLayer::Ethernet {
            self.mac = Some(port.mac);
            self.write_gid(0, Some(&GidEntry::link_local(port.mac)));
        }
    }

    /// Sets an entry of the GID table, or empties it.
    pub(super) fn write_gid(&mut self, index: u16, entry: Option<&GidEntry>) {
        let done = match entry {
            Some(entry) => self.verbs.set_gid(1, index, entry),
            None => self.verbs.delete_gid(1, index),
        };
        self.done.gids += u64::from(self.note(done).is_some());
    }

    /// Returns the path from the port to itself.
    fn path(&self) -> AddressVector {
        let path = AddressVector { port_num: 1, ..AddressVector::default() };
        match self.mac {
            None => AddressVector { dlid: self.lid, ..path },
            Some(mac) => {
                let route = GlobalRoute { dgid: Gid::link_local(mac), hop_limit: 64, ..GlobalRoute::default() };
                AddressVector { grh: Some(route), dmac: Some(mac), ..path }
            }
        }
    }

    /// Drops each queue.
    pub(super) fn into_verbs(self) -> Verbs<'s, Driver> {
        self.verbs
    }

    /// Counts a refusal, and returns what there is.
    pub(super) fn note<T, E>(&mut self, result: Result<T, E>) -> Option<T> {
        self.refused += u64::from(result.is_err());
        result.ok()
    }

    pub(super) fn region(&self, at: usize) -> Option<&Region<'s, SimBuffer>> {
        self.regions.get(at.checked_rem(self.regions.len())?)
    }

    /// Returns an SGE of a region, and a name for a peer, as far as there are regions.
    pub(super) fn sge(&self, region: usize, at: usize) -> Sge {
        let made = self.region(region).map(|region| region.sge((at % 1024) as u64, (at % MESSAGE) as u32));
        made.unwrap_or(Sge { addr: 0, length: 0, lkey: Lkey::new(0) })
    }

    pub(super) fn remote(&self, region: usize, at: usize) -> Remote {
        self.region(region).map_or(Remote { addr: 0, rkey: Rkey::new(0x100) }, |region| region.remote((at % 128 * 8) as u64))
    }

    fn pd(&self, at: usize) -> Option<PdHandle> {
        self.pds.get(at.checked_rem(self.pds.len())?).copied()
    }

    pub(super) fn make_pd(&mut self) {
        let made = self.verbs.alloc_pd();
        let made = self.note(made);
        self.pds.extend(made);
    }

    pub(super) fn make_region(&mut self, pd: usize) {
        let Some(pd) = self.pd(pd) else { return };
        let made = self.verbs.reg_mr(pd, self.memory.buffer(self.regions.len()), ALL_ACCESS);
        let made = self.note(made.map_err(|refused| refused.error));
        self.regions.extend(made);
    }

    /// Changes rights, domain or buffer of a region.
    pub(super) fn change_region(&mut self, at: usize, how: u8) {
        let Some(at) = at.checked_rem(self.regions.len()) else { return };
        let number = usize::from(how >> 4);
        let access = if how & 1 == 0 { ALL_ACCESS } else { Access::LOCAL_WRITE | Access::ZERO_BASED };
        let change = MrChange { access: (how & 2 != 0).then_some(access), pd: self.pd(number).filter(|_| how & 4 != 0) };
        let region = self.regions.swap_remove(at);
        let changed = if how & 8 == 0 {
            self.verbs.rereg_mr(region, &change).map_err(|refused| refused.returned)
        } else {
            let changed = self.verbs.rereg_mr_buffer(region, self.memory.buffer(number), &change);
            changed.map(|(region, _)| region).map_err(|refused| refused.returned.map(|(region, _)| region))
        };
        let (done, refused) = (u64::from(changed.is_ok()), u64::from(changed.is_err()));
        (self.done.changed_regions, self.refused) = (self.done.changed_regions + done, self.refused + refused);
        match changed {
            Ok(region) => self.regions.push(region),
            Err(returned) => self.regions.extend(returned),
        }
    }

    /// Changes when events of a completion queue come.
    pub(super) fn moderate(&mut self, cq: usize, moderation: CqModeration) {
        let done = self.verbs.modify_cq(self.cqs[cq].handle(), moderation);
        self.done.moderations += u64::from(self.note(done).is_some());
    }

    /// Puts a queue pair into a multicast group, or takes it out.
    pub(super) fn join(&mut self, pair: usize, group: u8, leave: bool) {
        let handle = self.pairs[pair].handle();
        let gid = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, group]);
        let is_done = if leave {
            let done = self.verbs.detach_mcast(handle, &gid);
            self.note(done).is_some()
        } else {
            let done = self.verbs.attach_mcast(handle, &gid);
            self.note(done).is_some()
        };
        self.done.groups += u64::from(is_done);
    }

    pub(super) fn make_window(&mut self, pd: usize, kind: MwType) {
        let Some(pd) = self.pd(pd) else { return };
        let made = self.verbs.alloc_mw(pd, kind);
        let made = self.note(made);
        self.windows.extend(made);
    }

    pub(super) fn make_fast(&mut self, pd: usize) {
        let Some(pd) = self.pd(pd) else { return };
        let made = self.verbs.alloc_fast_mr(pd, 4);
        let made = self.note(made);
        self.fast.extend(made);
    }

    pub(super) fn make_cq(&mut self, entries: u32) {
        let made = self.verbs.create_cq(entries);
        let made = self.note(made);
        self.cqs.extend(made);
    }

    /// Makes a queue pair that completes into the queue at `cq`.
    pub(super) fn make_pair(&mut self, qp_type: QpType, cq: usize) {
        let Some(pd) = self.pd(0) else { return };
        let Some(cq) = cq.checked_rem(self.cqs.len()).map(|at| self.cqs[at].handle()) else { return };
        let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
        let made = self.verbs.create_qp(&init);
        let made = self.note(made);
        self.pairs.extend(made.map(Pair::Own));
    }

    pub(super) fn make_srq(&mut self) {
        let Some(pd) = self.pd(0) else { return };
        let made = self.verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr: 15, max_sge: 1 } });
        let made = self.note(made);
        self.srqs.extend(made);
    }

    pub(super) fn make_sharing_pair(&mut self, cq: usize, srq: usize, qp_type: QpType) {
        let (Some(pd), Some(cq)) = (self.pd(0), cq.checked_rem(self.cqs.len())) else { return };
        let Some(srq) = srq.checked_rem(self.srqs.len()).map(|at| self.srqs[at].handle()) else { return };
        let cq = self.cqs[cq].handle();
        let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
        let made = self.verbs.create_qp_with_srq(&init, srq);
        let made = self.note(made);
        self.pairs.extend(made.map(Pair::Shared));
    }

    pub(super) fn make_domain(&mut self) {
        let made = self.verbs.alloc_xrcd();
        let made = self.note(made);
        self.domains.extend(made);
    }

    pub(super) fn make_xrc_srq(&mut self, cq: usize) {
        let (Some(pd), Some(domain)) = (self.pd(0), self.domains.first()) else { return };
        let Some(cq) = cq.checked_rem(self.cqs.len()) else { return };
        let init = SrqInit { pd, cap: SrqCap { max_wr: 15, max_sge: 1 } };
        let made = self.verbs.create_xrc_srq(&init, domain, &mut self.cqs[cq]);
        let made = self.note(made);
        self.srqs.extend(made);
    }

    pub(super) fn make_xrc_pair(&mut self, cq: usize) {
        let (Some(pd), Some(domain)) = (self.pd(0), self.domains.first()) else { return };
        let Some(cq) = cq.checked_rem(self.cqs.len()).map(|at| self.cqs[at].handle()) else { return };
        let init = QpInit { pd, qp_type: QpType::XrcSend, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
        let made = [self.verbs.create_xrc_send_qp(&init, domain), self.verbs.create_xrc_recv_qp(domain)];
        for made in made {
            let made = self.note(made);
            self.pairs.extend(made.map(Pair::Xrc));
        }
    }

    /// Returns the number of a shared receive queue.
    pub(super) fn srqn(&self, at: usize) -> Option<Srqn> {
        let srq = self.srqs.get(at.checked_rem(self.srqs.len())?)?;
        self.verbs.srq_info(srq.handle()).ok().map(|info| info.srqn)
    }

    /// Connects a queue pair to another one, or to itself.
    pub(super) fn connect(&mut self, at: usize, peer: usize) {
        let Some(at) = at.checked_rem(self.pairs.len()) else { return };
        let handle = self.pairs[at].handle();
        let peer = self.pairs[peer % self.pairs.len()].handle();
        self.reset(at);
        let dest_qpn = self.verbs.qp_info(peer).map_or(Qpn::new(1), |info| info.qpn);
        let connection = Connection { timeout: 4, retry_cnt: 1, ..Connection::default() };
        let [_, _, (attr, _)] = rc_steps(&connection, self.lid, dest_qpn, 5, 5);
        let attr = QpAttr {
            qkey: QKEY,
            av: self.path(),
            access: connection.access & (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC),
            ..attr
        };
        let done = self.verbs.modify_qp_to_rts(handle, &attr);
        self.note(done);
        if self.to.is_none()
            && let Some(pd) = self.pd(0)
        {
            let ah = self.verbs.create_ah(pd, &self.path());
            self.to = self.note(ah).map(|ah| Destination { ah, remote_qpn: Qpn::new(1), remote_qkey: QKEY });
        }
    }

    /// Resets a queue pair.
    pub(super) fn reset(&mut self, at: usize) {
        let handle = self.pairs[at].handle();
        let done = match &mut self.pairs[at] {
            Pair::Own(qp) => self.verbs.reset_qp(qp),
            Pair::Shared(qp) => self.verbs.reset_qp(qp),
            Pair::Xrc(qp) => self.verbs.reset_qp(qp),
        };
        if self.note(done).is_some() {
            self.ledger.forget(handle);
        }
    }

    pub(super) fn fail(&mut self, at: usize) {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let done = self.verbs.modify_qp(self.pairs[at].handle(), &attr, QpAttrMask::STATE);
        self.note(done);
    }

    /// Drains a side of a queue pair.
    pub(super) fn drain(&mut self, at: usize, side: Side, cq: usize) {
        let (Some(cq), timeout) = (cq.checked_rem(self.cqs.len()), Duration::from_millis(5)) else { return };
        let (cq, ledger, handle) = (&mut self.cqs[cq], &mut self.ledger, self.pairs[at].handle());
        let ended = match (&mut self.pairs[at], side) {
            (Pair::Own(qp), Side::Recv) => self.verbs.drain_rq(&mut qp.recv, cq, timeout, |done| ledger.completed(&done)),
            (Pair::Shared(qp), Side::Recv) => {
                self.verbs.drain_qp_with_srq(qp, cq, timeout, |done| ledger.completed(&done), |_| ())
            }
            (Pair::Xrc(_), Side::Recv) => return,
            (pair, Side::Send) => self.verbs.drain_sq(pair.send(), cq, timeout, |done| ledger.completed(&done)),
        };
        if ended.is_err() && side == Side::Send {
            self.ledger.marked(handle);
        }
        self.note(ended);
    }

    /// Returns the side of a queue pair whose request has a completion.
    pub(super) fn owner(&self, at: usize, side: Side) -> Owner {
        Owner::Pair(self.pairs[at].handle(), side)
    }

    pub(super) fn destroy_pair(&mut self, at: usize) {
        let pair = self.pairs.swap_remove(at);
        let handle = pair.handle();
        let kept = match pair {
            Pair::Own(qp) => self.verbs.destroy_qp(qp).err().map(|refused| refused.returned.map(Pair::Own)),
            Pair::Shared(qp) => self.verbs.destroy_qp(qp).err().map(|refused| refused.returned.map(Pair::Shared)),
            Pair::Xrc(qp) => self.verbs.destroy_qp(qp).err().map(|refused| refused.returned.map(Pair::Xrc)),
        };
        match kept {
            None => self.ledger.forget(handle),
            Some(returned) => {
                self.refused += 1;
                self.pairs.push(returned.expect("a queue pair that is not destroyed comes back"));
            }
        }
    }

    /// Destroys something of a kind: the one at `at`.
    pub(super) fn destroy(&mut self, kind: u8, at: usize) {
        match kind % 8 {
            0 if !self.pairs.is_empty() => self.destroy_pair(at % self.pairs.len()),
            1 if !self.cqs.is_empty() => {
                let cq = self.cqs.swap_remove(at % self.cqs.len());
                if let Err(Refused { returned, .. }) = self.verbs.destroy_cq(cq) {
                    self.refused += 1;
                    self.cqs.extend(returned);
                }
            }
            2 if !self.srqs.is_empty() => {
                let srq = self.srqs.swap_remove(at % self.srqs.len());
                if let Err(Refused { returned, .. }) = self.verbs.destroy_srq(srq) {
                    self.refused += 1;
                    self.srqs.extend(returned);
                }
            }
            3 if !self.regions.is_empty() => {
                let region = self.regions.swap_remove(at % self.regions.len());
                if let Err(Refused { returned, .. }) = self.verbs.dereg_mr(region) {
                    self.refused += 1;
                    self.regions.extend(returned);
                }
            }
            4 if !self.windows.is_empty() => {
                let at = at % self.windows.len();
                let done = self.verbs.dealloc_mw(self.windows[at]);
                if self.note(done).is_some() {
                    self.windows.swap_remove(at);
                }
            }
            5 if !self.fast.is_empty() => {
                let at = at % self.fast.len();
                let done = self.verbs.dealloc_fast_mr(self.fast[at]);
                if self.note(done).is_some() {
                    self.fast.swap_remove(at);
                }
            }
            6 if !self.domains.is_empty() => {
                let domain = self.domains.swap_remove(at % self.domains.len());
                if let Err(Refused { returned, .. }) = self.verbs.dealloc_xrcd(domain) {
                    self.refused += 1;
                    self.domains.extend(returned);
                }
            }
            7 if !self.pds.is_empty() => {
                let at = at % self.pds.len();
                let done = self.verbs.dealloc_pd(self.pds[at]);
                if self.note(done).is_some() {
                    self.pds.swap_remove(at);
                }
            }
            _ => {}
        }
    }
}
