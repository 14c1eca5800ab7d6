//! Requests over the loopback of a port: what CPU and device see of each other.

use bareverbs::error::{CreateQpError, DeviceError};
use core::fmt;
use core::time::Duration;

use bareverbs::backend::Provider;
use bareverbs::error::Errno;
use bareverbs::platform::{Clock, Instant};
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, DmaBuffer, Event, GlobalRoute, LinkLayer, PortState, QpAttr, QpCap,
    QpInit, QpType, QueuePair, RecvWr, Region, SendWr, Verbs, WcStatus,
};

use crate::pattern;

/// What [`check_traffic`] is to do.
pub struct Traffic<'a> {
    /// The port, from 1. It is active; an Ethernet port has its address as GID 0.
    pub port: u8,
    /// Requests: some hundreds go round every ring several times.
    pub requests: u32,
    /// For each completion, event and interrupt.
    pub timeout: Duration,
    /// Says how many interrupts of the device came so far, if each request is to raise one. The interrupt handler only counts them: the check
    /// takes the events, and has the interrupt handler of the verbs for that. Without it no interrupts are expected.
    pub interrupts: Option<&'a mut dyn FnMut() -> u32>,
}

impl fmt::Debug for Traffic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, requests, timeout, interrupts } = self;
        write!(f, "Traffic({requests} requests on port {port}, {timeout:?} each, interrupts: {})", interrupts.is_some())
    }
}

/// What [`check_traffic`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficReport {
    /// Requests.
    pub requests: u32,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Completion events.
    pub events: u32,
}

/// A call of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named as the method")]
pub enum Step {
    QueryPort,
    QueryGid,
    AllocPd,
    RegMr,
    CreateCq,
    CreateQp,
    ModifyQpToRts,
    ReqNotify,
    PostSend,
    PostRecv,
    Poll,
    PollEvent,
    Maintain,
    DestroyQp,
    DestroyCq,
    DeregMr,
    DeallocPd,
}

/// What is wrong with a platform on which requests go over the loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrafficFault {
    /// The buffer is too short.
    Short {
        /// Its bytes.
        len: u64,
    },
    /// The port is not active.
    Port {
        /// Its state.
        state: PortState,
    },
    /// A call failed.
    Refused {
        /// The call.
        step: Step,
        /// Its errno.
        errno: Errno,
    },
    /// A copy of bytes of the buffer was refused.
    Copy {
        /// Where.
        at: usize,
    },
    /// No completion came: the device does not see the request or its doorbell, or the CPU not the completion.
    NoCompletion {
        /// Which request, from 0.
        request: u32,
    },
    /// A request failed: the device has seen another one than was posted, or another address.
    Status {
        /// Which request, from 0.
        request: u32,
        /// Its status.
        status: WcStatus,
        /// The device's code.
        vendor_err: u32,
    },
    /// A byte is not there when the completion is: the device saw another one before the request, or the CPU sees another one after it.
    Differs {
        /// Which request, from 0.
        request: u32,
        /// Where in the buffer.
        at: usize,
        /// What it must be.
        expected: u8,
        /// What it is.
        found: u8,
    },
    /// A byte beside those of a request changed.
    Beside {
        /// Which request, from 0.
        request: u32,
        /// Where in the buffer.
        at: usize,
    },
    /// No event came for a completion.
    NoEvent {
        /// Which request, from 0.
        request: u32,
    },
    /// No interrupt came for an event.
    NoInterrupt {
        /// Which request, from 0.
        request: u32,
    },
}

impl fmt::Display for TrafficFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { len } => write!(f, "a buffer of {len} bytes: {LEAST} at least"),
            Self::Port { state } => write!(f, "the port is {state:?}, not active"),
            Self::Refused { step, errno } => write!(f, "{step:?} failed: {errno:?}"),
            Self::Copy { at } => write!(f, "a copy at byte {at} of the buffer was refused"),
            Self::NoCompletion { request } => write!(
                f,
                "request {request} does not complete: the device does not see it or its doorbell, or the CPU not the completion"
            ),
            Self::Status { request, status, vendor_err } => {
                write!(f, "request {request} ended with {status:?} (vendor error {vendor_err:#x})")
            }
            Self::Differs { request, at, expected, found } => {
                write!(f, "byte {at} is {found:#04x} when request {request} is done, and must be {expected:#04x}")
            }
            Self::Beside { request, at } => write!(f, "byte {at}, beside those of request {request}, changed"),
            Self::NoEvent { request } => write!(f, "no event came for request {request}, whose completion had come"),
            Self::NoInterrupt { request } => write!(f, "no interrupt came for request {request}, whose completion had come"),
        }
    }
}

impl core::error::Error for TrafficFault {}

/// Bytes of the shortest buffer.
const LEAST: u64 = 1024;
/// Lengths of requests, in turn: parts of a word, of a cache line, of a page, and more than a packet.
const LENGTHS: [usize; 10] = [8, 1, 64, 7, 100, 1024, 4095, 4096, 9001, 60_000];

/// Sends requests over the loopback of a port: RDMA WRITE, RDMA READ, and SEND to a receive, each from one half of `buffer` to the other.
/// Each byte is compared when the completion has come, and each completion has an event, or an interrupt.
///
/// It makes a protection domain, a region, a completion queue and a queue pair, and destroys them; of a failure they are left. Rings of 16
/// requests each way are needed. `buffer` has 1024 bytes at least; longer ones are better.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_traffic<'s, P: Provider, B: DmaBuffer + 'static, C: Clock>(
    verbs: &mut Verbs<'s, P>,
    clock: &C,
    buffer: B,
    traffic: Traffic<'_>,
) -> Result<(B, TrafficReport), TrafficFault> {
    let len = buffer.len();
    if len < LEAST {
        return Err(TrafficFault::Short { len });
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let path = path_to_itself(verbs, traffic.port)?;
    let pd = verbs.alloc_pd().map_err(|error| refused(Step::AllocPd, error.errno()))?;
    let region = verbs.reg_mr(pd, buffer, access).map_err(|error| refused(Step::RegMr, error.error.errno()))?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let create_qp = |error: CreateQpError<P::Error>| refused(Step::CreateQp, error.errno());
    let sizes = verbs.ring_sizes(QpType::Rc, &cap).map_err(create_qp)?;
    let entries = sizes.send_blocks.saturating_add(sizes.recv_entries);
    let cq = verbs.create_cq(entries).map_err(|error| refused(Step::CreateCq, error.errno()))?;
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
    let qp = verbs.create_qp(&init).map_err(create_qp)?;
    let dest_qpn = verbs.qp_info(qp.handle()).map_err(|error| refused(Step::CreateQp, error.errno()))?.qpn;
    let attr = QpAttr {
        port_num: traffic.port,
        access,
        av: path,
        dest_qpn,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    verbs.modify_qp_to_rts(qp.handle(), &attr).map_err(|error| refused(Step::ModifyQpToRts, error.errno()))?;
    let half = (usize::try_from(len).unwrap_or(usize::MAX) / 2) & !63;
    let report = TrafficReport::default();
    let mut run = Run { verbs, clock, region, cq, qp, traffic, half, report };
    run.all()?;
    let Run { verbs, region, cq, qp, report, .. } = run;
    verbs.destroy_qp(qp).map_err(|error| refused(Step::DestroyQp, error.error.errno()))?;
    verbs.destroy_cq(cq).map_err(|error| refused(Step::DestroyCq, error.error.errno()))?;
    let buffer = verbs.dereg_mr(region).map_err(|error| refused(Step::DeregMr, error.error.errno()))?;
    verbs.dealloc_pd(pd).map_err(|error| refused(Step::DeallocPd, error.errno()))?;
    Ok((buffer, report))
}

const fn refused(step: Step, errno: Errno) -> TrafficFault {
    TrafficFault::Refused { step, errno }
}

/// Returns the path from a port to itself.
fn path_to_itself<P: Provider>(verbs: &mut Verbs<'_, P>, port: u8) -> Result<AddressVector, TrafficFault> {
    let attr = verbs.query_port(port).map_err(|error| refused(Step::QueryPort, error.errno()))?;
    if attr.state != PortState::Active {
        return Err(TrafficFault::Port { state: attr.state });
    }
    let path = AddressVector { port_num: port, ..AddressVector::default() };
    Ok(match attr.link_layer {
        LinkLayer::InfiniBand => AddressVector { dlid: attr.lid, ..path },
        LinkLayer::Ethernet => {
            let dgid = verbs.query_gid(port, 0).map_err(|error| refused(Step::QueryGid, error.errno()))?;
            let route = GlobalRoute { dgid, hop_limit: 64, ..GlobalRoute::default() };
            AddressVector { grh: Some(route), dmac: Some(attr.mac), ..path }
        }
    })
}

/// The check while it runs.
struct Run<'v, 't, 's, P: Provider, B, C> {
    verbs: &'v mut Verbs<'s, P>,
    clock: &'v C,
    region: Region<'s, B>,
    cq: CompletionQueue<'s, P>,
    qp: QueuePair<'s, P>,
    traffic: Traffic<'t>,
    /// Bytes of a half of the buffer.
    half: usize,
    report: TrafficReport,
}

impl<P: Provider, B: DmaBuffer, C: Clock> Run<'_, '_, '_, P, B, C> {
    fn all(&mut self) -> Result<(), TrafficFault> {
        for request in 0..self.traffic.requests {
            // The kinds of requests and the lengths have no divisor in common: each meets each.
            let wanted = LENGTHS.get(request as usize % LENGTHS.len()).copied().unwrap_or(1);
            let len = wanted.min(self.half);
            let at = (request as usize).wrapping_mul(37) % self.half.wrapping_sub(len).wrapping_add(1);
            self.one(request, at, len)?;
        }
        Ok(())
    }

    /// Moves `len` bytes from `at` to the same place in the other half.
    fn one(&mut self, request: u32, at: usize, len: usize) -> Result<(), TrafficFault> {
        let target = self.half.wrapping_add(at);
        self.fill(request, at, len)?;
        let beside = [
            target.checked_sub(1).filter(|at| *at >= self.half),
            Some(target.wrapping_add(len)).filter(|at| *at < 2 * self.half),
        ];
        let before = [self.byte(beside[0])?, self.byte(beside[1])?];
        let interrupts = self.traffic.interrupts.as_mut().map_or(0, |count| count());
        self.cq.req_notify(false).map_err(|error| refused(Step::ReqNotify, error.errno()))?;
        let (from, into) = (self.region.sge(at as u64, len as u32), self.region.sge(target as u64, len as u32));
        let (here, there) = (self.region.remote(at as u64), self.region.remote(target as u64));
        let id = u64::from(request);
        let (sends, receives) = ([from], [into]);
        let (wr, completions) = match request % 3 {
            0 => (SendWr::write(there, &sends), 1),
            1 => (SendWr::read(here, &receives), 1),
            _ => {
                let wr = RecvWr { wr_id: id, sges: &receives };
                self.qp.recv.post(&wr).map_err(|error| refused(Step::PostRecv, error.errno()))?;
                (SendWr::send(&sends), 2)
            }
        };
        self.qp.send.post(&wr.id(id)).map_err(|error| refused(Step::PostSend, error.errno()))?;
        self.complete(request, completions)?;
        self.compare(request, at, len)?;
        for (at, before) in beside.into_iter().zip(before) {
            if self.byte(at)? != before {
                return Err(TrafficFault::Beside { request, at: at.unwrap_or_default() });
            }
        }
        self.event(request)?;
        self.interrupt(request, interrupts)?;
        self.report.requests = self.report.requests.saturating_add(1);
        self.report.bytes = self.report.bytes.saturating_add(len as u64);
        Ok(())
    }

    fn fill(&mut self, request: u32, from: usize, len: usize) -> Result<(), TrafficFault> {
        for at in (from..from.wrapping_add(len)).step_by(64) {
            let mut bytes = [0; 64];
            let piece = bytes.get_mut(..64.min(from.wrapping_add(len).wrapping_sub(at))).unwrap_or_default();
            pattern::fill(request, at, piece);
            self.region.write(at, piece).map_err(|_| TrafficFault::Copy { at })?;
        }
        Ok(())
    }

    fn compare(&self, request: u32, from: usize, len: usize) -> Result<(), TrafficFault> {
        for at in (from..from.wrapping_add(len)).step_by(64) {
            let mut bytes = [0; 64];
            let piece = bytes.get_mut(..64.min(from.wrapping_add(len).wrapping_sub(at))).unwrap_or_default();
            let target = self.half.wrapping_add(at);
            self.region.read(target, piece).map_err(|_| TrafficFault::Copy { at: target })?;
            if let Some((at, expected, found)) = pattern::first_wrong(request, at, piece) {
                return Err(TrafficFault::Differs { request, at: self.half.wrapping_add(at), expected, found });
            }
        }
        Ok(())
    }

    fn byte(&self, at: Option<usize>) -> Result<u8, TrafficFault> {
        let (Some(at), mut byte) = (at, [0]) else { return Ok(0) };
        self.region.read(at, &mut byte).map_err(|_| TrafficFault::Copy { at })?;
        Ok(byte[0])
    }

    /// Waits for so many completions, all of which must be successes.
    fn complete(&mut self, request: u32, completions: usize) -> Result<(), TrafficFault> {
        let deadline = self.clock.now().after(self.traffic.timeout);
        let (mut due, mut left) = (self.clock.now(), completions);
        while left != 0 {
            let mut done = [Completion::EMPTY; 2];
            let found = self.cq.poll(&mut done).map_err(|error| refused(Step::Poll, error.errno()))?;
            for Completion { status, vendor_err, .. } in done.iter().take(found) {
                if *status != WcStatus::Success {
                    return Err(TrafficFault::Status { request, status: *status, vendor_err: (*vendor_err).into() });
                }
            }
            left = left.saturating_sub(found);
            if found == 0 {
                self.pause(deadline, &mut due)?.then_some(()).ok_or(TrafficFault::NoCompletion { request })?;
            }
        }
        Ok(())
    }

    /// Pauses until the next look, and does what is due for the device; `false` after the deadline.
    fn pause(&mut self, deadline: Instant, due: &mut Instant) -> Result<bool, TrafficFault> {
        let now = self.clock.now();
        if now >= *due {
            *due = self.verbs.maintain().map_err(|error| refused(Step::Maintain, DeviceError::errno(&error)))?;
        }
        if now >= deadline {
            return Ok(false);
        }
        self.clock.relax((*due).min(deadline));
        Ok(true)
    }

    /// Waits for the event of the completion queue.
    fn event(&mut self, request: u32) -> Result<(), TrafficFault> {
        let deadline = self.clock.now().after(self.traffic.timeout);
        let mut due = self.clock.now();
        loop {
            match self.verbs.poll_event().map_err(|error| refused(Step::PollEvent, error.errno()))? {
                Some(Event::Completion(cq)) if cq == self.cq.handle() => break,
                Some(_) => {}
                None => self.pause(deadline, &mut due)?.then_some(()).ok_or(TrafficFault::NoEvent { request })?,
            }
        }
        self.report.events = self.report.events.saturating_add(1);
        Ok(())
    }

    /// Waits for an interrupt after so many.
    fn interrupt(&mut self, request: u32, before: u32) -> Result<(), TrafficFault> {
        let deadline = self.clock.now().after(self.traffic.timeout);
        let mut due = self.clock.now();
        while self.traffic.interrupts.as_mut().is_some_and(|count| count() == before) {
            self.pause(deadline, &mut due)?.then_some(()).ok_or(TrafficFault::NoInterrupt { request })?;
        }
        Ok(())
    }
}
