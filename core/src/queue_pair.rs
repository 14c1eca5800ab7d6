//! Queue pairs: made, moved through their states, looked up, destroyed.

use crate::parts::{Cq, Parts, Qp};
use crate::ring::Ring;
use crate::say::say;
use crate::send::{OpSet, longest_message, transport_flags};
use crate::table::TableView;
use crate::transition;
use crate::{
    Access, AddressVector, CqHandle, CreateQpError, DestroyQpError, DeviceAttr, ModifyQpError, PdHandle, Provider, QpAttr,
    QpAttrMask, QpCap, QpHandle, QpRequest, QpState, QpType, Qpn, QueryQpError, kind,
};

/// A queue pair to make (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdHandle,
    /// Transport.
    pub qp_type: QpType,
    /// Queue for completions of sends.
    pub send_cq: CqHandle,
    /// Queue for completions of receives; may be the same.
    pub recv_cq: CqHandle,
    /// Least capacities.
    pub cap: QpCap,
    /// Whether every send gives a completion, signaled or not.
    pub sq_sig_all: bool,
}

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpInfo {
    /// Number.
    pub qpn: Qpn,
    /// Transport.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Protection domain.
    pub pd: PdHandle,
    /// Queue for completions of sends.
    pub send_cq: CqHandle,
    /// Queue for completions of receives.
    pub recv_cq: CqHandle,
    /// Capacities. A send that takes several blocks of the ring takes the place of as many short ones.
    pub cap: QpCap,
    /// Whether every send gives a completion.
    pub sq_sig_all: bool,
    /// Every attribute set since RESET.
    pub attr: QpAttr,
    /// Send blocks in flight.
    pub send_blocks: u32,
    /// Receives in flight.
    pub recvs: u32,
}

impl<P: Provider> Qp<P> {
    pub(crate) fn info(&self) -> QpInfo {
        QpInfo {
            qpn: self.qpn,
            qp_type: self.qp_type,
            state: self.state,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
            attr: QpAttr { state: self.state, cur_state: self.state, ..self.attr },
            send_blocks: self.send.in_flight(),
            recvs: self.recv.in_flight(),
        }
    }
}

impl<P: Provider> Parts<'_, P> {
    pub(crate) fn create_qp(&mut self, init: &QpInit) -> Result<QpHandle, CreateQpError<P::Error>> {
        let first = self.first_generation();
        let pd = self.pds.get_mut(init.pd).ok_or(CreateQpError::StalePd)?;
        let send_cq = self.cqs.get(init.send_cq).ok_or(CreateQpError::StaleCq)?;
        let recv_cq = self.cqs.get(init.recv_cq).ok_or(CreateQpError::StaleCq)?;
        let device = self.provider.device_attr();
        let max = most(device, self.ring_sizes);
        if exceeds(&init.cap, &max) {
            return Err(CreateQpError::Capacity { max });
        }
        let ops = OpSet::of(init.qp_type, device);
        let handle = self.qps.vacancy(first).ok_or(CreateQpError::Full)?;
        let request = QpRequest {
            qp_type: init.qp_type,
            pd: &pd.inner,
            send_cq: &send_cq.inner,
            recv_cq: &recv_cq.inner,
            cap: init.cap,
            // Leads a completion to the slot without a search.
            cookie: u32::from(handle.index()),
        };
        let mut made = self.provider.create_qp(&request).map_err(CreateQpError::Device)?;
        let ring = |length: u32| length.is_power_of_two() && length <= 1 << 15;
        // Without requests of one kind there may be no ring for them at all.
        let send_ring = ring(made.send_blocks) || (made.send_blocks == 0 && init.cap.max_send_wr == 0);
        let recv_ring = ring(made.recv_entries) || (made.recv_entries == 0 && init.cap.max_recv_wr == 0);
        if !send_ring || !recv_ring {
            self.provider.destroy_qp(&mut made.qp).map_err(CreateQpError::Device)?;
            return Err(CreateQpError::ForeignRings { send: made.send_blocks, recv: made.recv_entries });
        }
        let send = Ring::new(made.send_blocks.min(self.ring_sizes.0));
        let recv = Ring::new(made.recv_entries.min(self.ring_sizes.1));
        let mut cap = made.cap;
        cap.max_send_wr = cap.max_send_wr.min(send.limit());
        cap.max_recv_wr = cap.max_recv_wr.min(recv.limit());
        pd.users = pd.users.saturating_add(1);
        use_cq(self.cqs, init.send_cq, 1);
        use_cq(self.cqs, init.recv_cq, 1);
        let qp = Qp {
            send,
            recv,
            announced: 0,
            state: QpState::Reset,
            sq_sig_all: init.sq_sig_all,
            ops,
            flags: transport_flags(init.qp_type),
            pd: init.pd,
            max_message: longest_message(self.provider),
            cap,
            qpn: made.qpn,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            pending: 0,
            inner: made.qp,
            qp_type: init.qp_type,
            attr: QpAttr::default(),
        };
        self.qps.occupy(handle, qp);
        Ok(handle)
    }

    pub(crate) fn modify_qp(
        &mut self,
        handle: QpHandle,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyQpError<P::Error>> {
        let device = self.provider.device_attr();
        let qp = self.qps.get_mut(handle).ok_or(ModifyQpError::Stale)?;
        let from = assumed_state(qp.qp_type, qp.state, attr, mask)
            .ok_or(ModifyQpError::CurState { assumed: attr.cur_state, actual: qp.state })?;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        let rule = transition::rule(qp.qp_type, from, to).ok_or(ModifyQpError::Transition { from, to })?;
        let missing = rule.required.difference(mask);
        let forbidden = mask.difference(rule.required | rule.optional | QpAttrMask::STATE);
        if !missing.is_empty() || !forbidden.is_empty() {
            return Err(ModifyQpError::Attributes { from, to, missing, forbidden });
        }
        if let Some(attribute) = out_of_range(device, attr, mask) {
            return Err(ModifyQpError::Value { attribute });
        }
        let mut all = merged(&qp.attr, attr, mask);
        all.state = to;
        all.cur_state = from;
        self.provider.modify_qp(&mut qp.inner, from, &all, mask).map_err(ModifyQpError::Device)?;
        say!(debug, "queue pair {:?}: {:?} to {:?}", handle, from, to);
        qp.state = to;
        qp.attr = all;
        if to == QpState::Reset {
            qp.attr = QpAttr::default();
            qp.send = Ring::new(qp.send.limit());
            qp.recv = Ring::new(qp.recv.limit());
            qp.announced = 0;
            let (send_cq, recv_cq, qpn) = (qp.send_cq, qp.recv_cq, qp.qpn);
            self.forget_binds(|record| record.qp == handle);
            self.clean(send_cq, recv_cq, qpn).map_err(ModifyQpError::Clean)?;
        }
        Ok(())
    }

    pub(crate) fn query_qp(&mut self, handle: QpHandle) -> Result<QpInfo, QueryQpError<P::Error>> {
        let qp = self.qps.get_mut(handle).ok_or(QueryQpError::Stale)?;
        let (state, rq_psn, sq_psn) = self.provider.query_qp(&qp.inner).map_err(QueryQpError::Device)?;
        qp.state = state;
        let info = qp.info();
        Ok(QpInfo { attr: QpAttr { rq_psn, sq_psn, ..info.attr }, ..info })
    }

    pub(crate) fn destroy_qp(&mut self, handle: QpHandle) -> Result<(), DestroyQpError<P::Error>> {
        let qp = self.qps.get_mut(handle).ok_or(DestroyQpError::Stale)?;
        self.provider.destroy_qp(&mut qp.inner).map_err(DestroyQpError::Device)?;
        let (pd, send_cq, recv_cq, qpn) = (qp.pd, qp.send_cq, qp.recv_cq, qp.qpn);
        self.forget_binds(|record| record.qp == handle);
        self.qps.remove(handle);
        self.leave_pd(pd);
        let cleaned = self.clean(send_cq, recv_cq, qpn);
        use_cq(self.cqs, send_cq, -1);
        use_cq(self.cqs, recv_cq, -1);
        cleaned.map_err(DestroyQpError::Clean)
    }

    /// Takes the completions of a queue pair out of its queues.
    fn clean(&mut self, send_cq: CqHandle, recv_cq: CqHandle, qpn: Qpn) -> Result<(), P::Error> {
        let mut result = Ok(());
        for (handle, again) in [(send_cq, false), (recv_cq, recv_cq == send_cq)] {
            if let (Some(cq), false) = (self.cqs.get_mut(handle), again) {
                result = result.and(self.provider.clean_cq(&mut cq.inner, qpn));
            }
        }
        result
    }
}

/// One work queue more or fewer completes into a queue.
fn use_cq<P: Provider>(cqs: &mut TableView<kind::Cq, Cq<P>>, handle: CqHandle, change: i32) {
    if let Some(cq) = cqs.get_mut(handle) {
        cq.users = cq.users.saturating_add_signed(change);
    }
}

/// The most that a queue pair can have here.
fn most(device: &DeviceAttr, (send, recv): (u32, u32)) -> QpCap {
    QpCap {
        max_send_wr: device.max_qp_wr.min(send),
        max_recv_wr: device.max_qp_wr.min(recv),
        max_send_sge: device.max_sge,
        max_recv_sge: device.max_sge,
        max_inline_data: device.max_inline_data,
    }
}

fn exceeds(cap: &QpCap, max: &QpCap) -> bool {
    cap.max_send_wr > max.max_send_wr
        || cap.max_recv_wr > max.max_recv_wr
        || cap.max_send_sge > max.max_send_sge
        || cap.max_recv_sge > max.max_recv_sge
        || cap.max_inline_data > max.max_inline_data
}

/// State that a modify starts from. A caller may know before this library that the send queue of an unreliable queue pair
/// is in error; anything else that it assumes must be so. `None` if it is not.
fn assumed_state(qp_type: QpType, state: QpState, attr: &QpAttr, mask: QpAttrMask) -> Option<QpState> {
    if !mask.contains(QpAttrMask::CUR_STATE) || attr.cur_state == state {
        return Some(state);
    }
    let unreliable = matches!(qp_type, QpType::Uc | QpType::Ud);
    let unnoticed = unreliable && attr.cur_state == QpState::Sqe && matches!(state, QpState::Rts | QpState::Sqd);
    if unnoticed { Some(QpState::Sqe) } else { None }
}

/// Rights that incoming requests of a queue pair may be given. LOCAL_WRITE says nothing here and is customary.
const QP_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The first attribute of `mask` whose value cannot be.
fn out_of_range(device: &DeviceAttr, attr: &QpAttr, mask: QpAttrMask) -> Option<QpAttrMask> {
    let port = |port: u8| port >= 1 && port <= device.phys_port_cnt;
    // A path without a port of its own uses the queue pair's.
    let path = |av: &AddressVector| {
        av.sl < 16 && av.grh.is_none_or(|grh| grh.flow_label < 1 << 20) && (av.port_num == 0 || port(av.port_num))
    };
    let checks = [
        (QpAttrMask::ACCESS_FLAGS, QP_ACCESS.contains(attr.access)),
        (QpAttrMask::PORT, port(attr.port_num)),
        (QpAttrMask::AV, path(&attr.av)),
        (QpAttrMask::ALT_PATH, path(&attr.alt_av) && attr.alt_timeout < 32),
        (QpAttrMask::TIMEOUT, attr.timeout < 32),
        (QpAttrMask::RETRY_CNT, attr.retry_cnt < 8),
        (QpAttrMask::RNR_RETRY, attr.rnr_retry < 8),
        (QpAttrMask::RQ_PSN, attr.rq_psn.get() < 1 << 24),
        (QpAttrMask::SQ_PSN, attr.sq_psn.get() < 1 << 24),
        (QpAttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= device.max_qp_init_rd_atom),
        (QpAttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= device.max_qp_rd_atom),
        (QpAttrMask::MIN_RNR_TIMER, attr.min_rnr_timer < 32),
        (QpAttrMask::DEST_QPN, attr.dest_qpn.get() < 1 << 24),
    ];
    checks.into_iter().find(|&(attribute, fits)| mask.contains(attribute) && !fits).map(|(attribute, _)| attribute)
}

/// `old` with those attributes of `new` that `mask` names.
fn merged(old: &QpAttr, new: &QpAttr, mask: QpAttrMask) -> QpAttr {
    let mut all = *old;
    macro_rules! take {
        ($($flag:ident: $($field:ident),+;)+) => {
            $(if mask.contains(QpAttrMask::$flag) { $(all.$field = new.$field;)+ })+
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        ACCESS_FLAGS: access;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: av;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        ALT_PATH: alt_av, alt_pkey_index, alt_timeout;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state;
        DEST_QPN: dest_qpn;
    }
    all
}
