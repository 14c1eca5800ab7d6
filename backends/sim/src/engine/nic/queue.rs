//! Send and receive queues for frames: what they are, and their states.

use bareverbs_mlx5_spec::{
    CmdStatus, CqeOpcode, CqeSyndrome, DS_UNIT, Layout, QpDoorbellRecord, QueueState, Rqc, Sqc, View, ViewMut, WQEBB, Wq,
    WqeCtrlSeg, WqeOpcode, ce, ether_type,
};

use super::frame::{self, Headers};
use crate::config::{MAX_ETHERNET_FRAME, MIN_ETHERNET_FRAME};
use crate::engine::cq::{Completion, FrameCompletion, Source};
use crate::engine::memory::key::{Access, Right};
use crate::engine::memory::message::{gather, scatter};
use crate::engine::memory::page_source::PageSource;
use crate::engine::qp::context::vendor;
use crate::engine::resources::QpStep;
use crate::engine::ring::{Pages, Ring};
use crate::host_memory::read_array;
use crate::registry::{ObjectKind, Resource};
use crate::step::StepContext;
use crate::trace::Record;
use crate::wqe_decode::{DataSegment, FrameWqe, blocks, decode_frame_receive};

/// Greatest logarithm of entries of a queue (`log_max_wq_sz`).
pub(crate) const LOG_MAX_WQ_SIZE: u32 = 15;
/// Bytes of the longest message that is cut into frames (`max_lso_cap`), and frames of one at most: Linux's smallest segment has
/// 48 bytes (`tcp_min_snd_mss`).
const MAX_MESSAGE: u64 = 1 << 16;
const MAX_FRAMES: u64 = 2048;
/// Bytes of a context, without the list of its pages.
pub(in crate::engine) const CONTEXT: usize = Rqc::SIZE;

/// A buffer that a command names: its pages, the doorbell record's address, and the user memory of that.
pub(crate) struct QueueMemory<'a> {
    pub(crate) pages: PageSource<'a>,
    /// Bytes of a page as a power of two counted from 4096, and where the first begins in 64ths of it.
    pub(crate) log_page_size: u32,
    pub(crate) page_offset: u32,
    pub(crate) dbr_addr: u64,
    pub(crate) record: Option<u32>,
}

/// A receive queue.
#[derive(Debug)]
pub(in crate::engine) struct ReceiveQueue {
    /// WQEs taken.
    pub(in crate::engine) taken: u16,
    pub(in crate::engine) context: [u8; CONTEXT],
    pub(in crate::engine) state: QueueState,
    pub(in crate::engine) ring: Ring,
    pub(in crate::engine) dbr_addr: u64,
}

/// A send queue.
#[derive(Debug)]
pub(in crate::engine) struct SendQueue {
    pub(in crate::engine) sqn: u32,
    /// Transport domain of what it sends, if it has a TIS.
    pub(in crate::engine) domain: Option<u32>,
    pub(in crate::engine) context: [u8; CONTEXT],
    pub(in crate::engine) state: QueueState,
    pub(in crate::engine) ring: Ring,
    pub(in crate::engine) dbr_addr: u64,
    /// Blocks taken, and blocks posted as the record said when the doorbell rang.
    pub(in crate::engine) taken: u16,
    pub(in crate::engine) posted: u16,
}

/// Reads and checks the work queue of a context: its buffer, for entries of this many bytes at least.
pub(in crate::engine) fn plan(
    wq: View<'_, Wq>,
    memory: QueueMemory<'_>,
    log_stride: std::ops::RangeInclusive<u32>,
) -> Result<(Ring, u64, u64, Vec<Resource>), CmdStatus> {
    let (log_size, stride) = (wq.get(Wq::LOG_WQ_SZ), wq.get(Wq::LOG_WQ_STRIDE));
    let is_known = wq.get(Wq::WQ_TYPE) == bareverbs_mlx5_spec::WQ_CYCLIC && log_stride.contains(&stride);
    if !is_known || log_size > LOG_MAX_WQ_SIZE || !memory.dbr_addr.is_multiple_of(4) {
        return Err(CmdStatus::BadParam);
    }
    let QueueMemory { pages, log_page_size, page_offset, dbr_addr, record } = memory;
    let plan = Pages::plan(pages, log_page_size, page_offset, 1 << (log_size + stride))?;
    // Queues whose WQEs name no memory have no protection domain: Linux's receive queue that drops all (`mlx5e_open_drop_rq`),
    // and the send queue of its test of write combining (`create_wc_sq`).
    let pd = Some(wq.get(Wq::PD)).filter(|pd| *pd != 0);
    let mut uses: Vec<Resource> = pd.map(Resource::pd).into_iter().collect();
    uses.extend(plan.umem());
    uses.extend(record.map(Resource::umem));
    let list_memory = plan.memory();
    Ok((Ring::new(plan.pages(), 0, log_size, stride), dbr_addr, list_memory, uses))
}

pub(in crate::engine) fn counter_set(context: View<'_, Rqc>) -> Option<Resource> {
    let set = context.get(Rqc::COUNTER_SET_ID);
    (set != 0).then(|| Resource::new(ObjectKind::CounterSet, set))
}

impl ReceiveQueue {
    /// Returns the number of its set of counters, 0 for none.
    pub(in crate::engine) fn counter_set(&self) -> u8 {
        self.view().get(Rqc::COUNTER_SET_ID) as u8
    }

    pub(in crate::engine) fn view(&self) -> View<'_, Rqc> {
        View::of(&self.context)
    }
}

impl SendQueue {
    pub(in crate::engine) fn view(&self) -> View<'_, Sqc> {
        View::of(&self.context)
    }

    pub(in crate::engine) fn enter(&mut self, state: QueueState) {
        if state == QueueState::Reset {
            (self.taken, self.posted) = (0, 0);
        }
        self.state = state;
        if let Some(mut context) = ViewMut::<Sqc>::new(&mut self.context) {
            context.set(Sqc::STATE, state.code());
        }
    }

    /// Takes what the host has posted.
    pub(in crate::engine) fn post(&mut self, ctx: &StepContext<'_>) {
        // A record that cannot be read says nothing new.
        if let Ok(record) = read_array::<8>(ctx.memory, self.dbr_addr) {
            self.posted = View::<QpDoorbellRecord>::of(&record).get(QpDoorbellRecord::SEND_COUNTER) as u16;
        }
    }

    fn complete(&self, step: &mut QpStep<'_, '_>, index: u16, opcode: u32, error: Option<CqeSyndrome>) {
        let context = self.view();
        let completion = Completion {
            opcode: if error.is_some() { CqeOpcode::ReqErr } else { CqeOpcode::Req },
            qpn: self.sqn,
            user_index: if step.shared.config.cqe_version == 0 { 0 } else { context.get(Sqc::USER_INDEX) },
            wqe_counter: index,
            send_opcode: opcode as u8,
            byte_cnt: 0,
            immediate: 0,
            solicited: false,
            source: Source::default(),
            error: error.map(|syndrome| (syndrome, vendor(syndrome))),
            frame: None,
        };
        // A queue without a completion queue cannot tell anybody.
        let _ = step.shared.cqs.write(step.ctx, context.get(Sqc::CQN), &completion, &mut step.shared.events);
    }

    /// Takes the next WQE and does it; the frames that it sends go to `sent`. Returns `false` if there is none.
    pub(in crate::engine) fn run(&mut self, step: &mut QpStep<'_, '_>, sent: &mut Vec<Vec<u8>>) -> bool {
        if self.state == QueueState::Reset || self.taken == self.posted {
            return false;
        }
        let index = self.taken;
        let mut bytes = vec![0; WQEBB];
        let mut read = self.ring.read(step.ctx.memory, u32::from(index), &mut bytes);
        let Some(control) = View::<WqeCtrlSeg>::new(&bytes) else { return false };
        let (opcode, ds) = (control.get(WqeCtrlSeg::OPCODE), control.get(WqeCtrlSeg::DS));
        let wants_entry = control.get(WqeCtrlSeg::CE) == ce::ALWAYS;
        let posted = self.posted.wrapping_sub(index).min(u16::try_from(self.ring.entries()).unwrap_or(u16::MAX));
        let size = blocks(ds as u8).min(posted).max(1);
        self.taken = index.wrapping_add(size);
        if self.state == QueueState::Error {
            self.complete(step, index, opcode, Some(CqeSyndrome::WrFlush));
            return true;
        }
        if size > 1 && read.is_ok() {
            bytes.resize(usize::from(size) * WQEBB, 0);
            read = self.ring.read(step.ctx.memory, u32::from(index), &mut bytes);
        }
        bytes.truncate((ds as usize * DS_UNIT).clamp(16, usize::from(size) * WQEBB));
        step.ctx.trace(Record::SendWqe { qpn: self.sqn, index, bytes: &bytes });
        let outcome = match (read, WqeOpcode::from_code(opcode)) {
            (Ok(()), Some(WqeOpcode::Nop)) => Ok(()),
            (Ok(()), Some(opcode @ (WqeOpcode::Send | WqeOpcode::Tso))) => {
                self.frames(step, &bytes, opcode == WqeOpcode::Tso).map(|frames| sent.extend(frames))
            }
            _ => Err(CqeSyndrome::LocalQpOp),
        };
        match outcome {
            Ok(()) if wants_entry => self.complete(step, index, opcode, None),
            Ok(()) => {}
            Err(syndrome) => {
                self.enter(QueueState::Error);
                self.complete(step, index, opcode, Some(syndrome));
            }
        }
        true
    }

    /// Returns the frames that a WQE sends.
    fn frames(&self, step: &mut QpStep<'_, '_>, wqe: &[u8], is_cut: bool) -> Result<Vec<Vec<u8>>, CqeSyndrome> {
        let wqe = FrameWqe::decode(wqe).map_err(|error| {
            step.ctx.note(|| format!("WQE of SQ {:#x}: {error}", self.sqn));
            error.syndrome()
        })?;
        let len: u64 = wqe.data.iter().map(DataSegment::len).sum();
        let most = if is_cut { MAX_MESSAGE } else { MAX_ETHERNET_FRAME as u64 };
        if len > most || is_cut && len.div_ceil(u64::from(wqe.segment_size).max(1)) > MAX_FRAMES {
            return Err(CqeSyndrome::LocalLength);
        }
        let access = Access { right: Right::LocalRead, pd: self.view().sub(Sqc::WQ).get(Wq::PD), qpn: self.sqn };
        let message = gather(step, access, &wqe.data, 0, len as usize).map_err(|_| CqeSyndrome::LocalProt)?;
        let mut frames = if is_cut {
            frame::segment(&wqe.headers, &message, wqe.segment_size.into()).ok_or(CqeSyndrome::LocalQpOp)?
        } else {
            vec![[wqe.headers.as_slice(), &message].concat()]
        };
        for frame in &mut frames {
            // Addresses and type, at least.
            if !(frame::ADDRESSES + 2..=MAX_ETHERNET_FRAME).contains(&frame.len()) {
                return Err(CqeSyndrome::LocalLength);
            }
            frame::fill_checksums(frame, wqe.header_checksum, wqe.transport_checksum);
            frame.resize(frame.len().max(MIN_ETHERNET_FRAME), 0);
        }
        Ok(frames)
    }
}

/// What becomes of a frame at a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Taken {
    Yes,
    /// No WQE was posted, or a shorter one.
    NoBuffer,
    /// The queue takes nothing.
    No,
}

impl ReceiveQueue {
    /// Puts a frame into the next WQE and completes it.
    pub(in crate::engine) fn take(
        &mut self,
        step: &mut QpStep<'_, '_>,
        rqn: u32,
        frame: &[u8],
        headers: &Headers,
        (hash, flow_tag): ((u32, u8), u32),
    ) -> Taken {
        if self.state != QueueState::Ready {
            return Taken::No;
        }
        let record = read_array::<4>(step.ctx.memory, self.dbr_addr).map_or(0, u32::from_be_bytes);
        let (index, posted) = (self.taken, record as u16);
        if posted == index {
            return Taken::NoBuffer;
        }
        let mut wqe = vec![0; self.ring.stride()];
        let read = self.ring.read(step.ctx.memory, u32::from(index), &mut wqe);
        let list = if read.is_ok() { decode_frame_receive(&wqe) } else { Vec::new() };
        // A tag is taken out unless the queue wants it where it is.
        let tag = headers.tag.filter(|(kind, _)| *kind == ether_type::VLAN && !self.view().is_set(Rqc::VSD));
        let cut = if tag.is_some() { frame::TAG } else { 0 };
        let (before, after) = frame.split_at_checked(frame::ADDRESSES).unwrap_or_default();
        let after = after.get(cut..).unwrap_or_default();
        let len = before.len() + after.len();
        if list.iter().map(|pointer| pointer.len).sum::<u64>() < len as u64 {
            return Taken::NoBuffer;
        }
        self.taken = index.wrapping_add(1);
        step.ctx.trace(Record::RecvWqe { qpn: rqn, index, bytes: &wqe });
        let access = Access { right: Right::LocalWrite, pd: self.view().sub(Rqc::WQ).get(Wq::PD), qpn: rqn };
        let mut put = |at: usize, bytes: &[u8]| scatter(step, access, list.iter().copied(), at as u64, bytes);
        let put = put(0, before).and_then(|()| put(before.len(), after));
        let error = put.err().map(|_| (CqeSyndrome::LocalProt, vendor(CqeSyndrome::LocalProt)));
        if error.is_some() {
            self.state = QueueState::Error;
            if let Some(mut context) = ViewMut::<Rqc>::new(&mut self.context) {
                context.set(Rqc::STATE, QueueState::Error.code());
            }
        }
        let [header_is_right, transport_is_right] = headers.ip.map_or([false; 2], |ip| frame::checksums_are_right(frame, &ip));
        let completion = Completion {
            opcode: if error.is_some() { CqeOpcode::RespErr } else { CqeOpcode::RespSend },
            qpn: rqn,
            user_index: if step.shared.config.cqe_version == 0 { 0 } else { self.view().get(Rqc::USER_INDEX) },
            wqe_counter: index,
            send_opcode: 0,
            byte_cnt: len as u32,
            immediate: 0,
            solicited: false,
            source: Source::default(),
            frame: error.is_none().then(|| FrameCompletion {
                hash,
                sum: headers.ip.map_or(0, |ip| frame::packet_sum(frame, &ip)),
                right: 1 | u8::from(header_is_right) << 1 | u8::from(transport_is_right) << 2,
                kinds: headers.kinds(),
                tag: tag.map(|(_, control)| control),
                flow_tag,
            }),
            error,
        };
        let _ = step.shared.cqs.write(step.ctx, self.view().get(Rqc::CQN), &completion, &mut step.shared.events);
        Taken::Yes
    }
}

/// Returns the next state of a queue, from the one that a command says it is in.
pub(in crate::engine) fn next_state(now: QueueState, from: u32, to: u32) -> Result<QueueState, CmdStatus> {
    let to = QueueState::from_code(to).ok_or(CmdStatus::BadParam)?;
    if now.code() != from {
        return Err(CmdStatus::BadResState);
    }
    // Out of an error the way is through reset.
    let is_way = !matches!((now, to), (QueueState::Error, QueueState::Ready) | (QueueState::Reset, QueueState::Error));
    if is_way { Ok(to) } else { Err(CmdStatus::BadParam) }
}
