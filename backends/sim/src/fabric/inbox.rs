//! Frames that wait for a device, in a queue for each source.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bareverbs::platform::Instant;

use crate::wire::{Frame, PortId};

/// Maximum frames that wait for a device, of all sources together.
pub const MAX_FRAMES: usize = 4096;
/// Maximum bytes of memory that they take.
pub const MAX_BYTES: usize = 8 << 20;
/// Frames and bytes that each source may have waiting, however many sources there are.
const MIN_FRAMES: usize = 128;
const MIN_BYTES: usize = 512 << 10;

/// How long a full queue may hold its source back before the source's frames are discarded: 4.096 microseconds times 2 to the
/// 15th.
pub const LIFETIME: Duration = Duration::from_nanos(4096 << 15);

/// Returns the maximum frames of each of `sources` sources that wait for a device.
pub(super) fn share(sources: usize) -> usize {
    (MAX_FRAMES / sources.max(1)).max(MIN_FRAMES)
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// It may be sent.
    Pass,
    /// It must wait for room, until then at most.
    Wait(Instant),
    /// It is lost.
    Discard,
}

/// What a frame does that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowControl {
    /// It waits, and its source with it.
    Waits,
    /// It is discarded.
    None,
}

/// The frames of one source.
#[derive(Debug, Default)]
struct SourceQueue {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Since when the source finds no room.
    full: Option<Instant>,
    /// The source waits for room.
    waited_for: bool,
    /// The device did not take the frames in time, and has taken none since: what comes is discarded.
    closed: bool,
}

#[derive(Debug, Default)]
struct Queues {
    /// The uplink's, then those of the ports.
    queues: Vec<SourceQueue>,
    /// The queue from which the next frame is taken.
    next: usize,
    /// What each may have waiting.
    max_frames: usize,
    max_bytes: usize,
    discarded: u64,
}

/// The frames for one device.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queues: Mutex<Queues>,
    /// There is something to take, or a queue to open again.
    attention: AtomicBool,
}

impl Inbox {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides the room among `sources` sources.
    pub(super) fn divide(&self, sources: usize) {
        let mut queues = self.queues();
        queues.queues.resize_with(sources, SourceQueue::default);
        queues.max_frames = share(sources);
        queues.max_bytes = (MAX_BYTES / sources.max(1)).max(MIN_BYTES);
    }

    pub(super) fn has_frames(&self) -> bool {
        self.attention.load(Ordering::SeqCst)
    }

    pub(super) fn discarded(&self) -> u64 {
        self.queues().discarded
    }

    /// Returns whether a frame that takes `len` bytes of memory may be sent while `in_flight` others of its source are on the
    /// wire.
    pub(super) fn reserve(&self, source: Source, len: usize, in_flight: usize, flow: FlowControl, now: Instant) -> Reservation {
        let mut queues = self.queues();
        let Queues { queues, max_frames, max_bytes, discarded, .. } = &mut *queues;
        let Some(queue) = queues.get_mut(source.index()) else { return Reservation::Discard };
        if queue.closed {
            *discarded += 1;
            return Reservation::Discard;
        }
        if queue.frames.len() + in_flight < *max_frames && queue.bytes + len <= *max_bytes {
            return Reservation::Pass;
        }
        if flow == FlowControl::None {
            *discarded += 1;
            return Reservation::Discard;
        }
        let until = queue.full.get_or_insert(now).after(LIFETIME);
        if until > now {
            queue.waited_for = true;
            return Reservation::Wait(until);
        }
        *discarded += queue.frames.len() as u64 + 1;
        *queue = SourceQueue { closed: true, ..SourceQueue::default() };
        self.attention.store(true, Ordering::SeqCst);
        Reservation::Discard
    }

    /// Takes a frame from the wire. Returns `true` if it is in. One for a group needs room; so does one that the wire made of
    /// another.
    pub(super) fn push(&self, source: Source, frame: Frame, group: bool) -> bool {
        let mut queues = self.queues();
        let Queues { queues, max_frames, max_bytes, discarded, .. } = &mut *queues;
        let Some(queue) = queues.get_mut(source.index()) else { return false };
        // What is reserved has room here, but for what the wire duplicates.
        let most = if group { *max_frames } else { *max_frames * 2 };
        let too_long = group && queue.bytes + frame.capacity() > *max_bytes;
        if queue.closed || queue.frames.len() >= most || too_long {
            *discarded += 1;
            return false;
        }
        queue.bytes += frame.capacity();
        queue.frames.push_back(frame);
        self.attention.store(true, Ordering::SeqCst);
        true
    }

    /// Takes up to `most` frames, one of each source in turn, and calls `room` for each source that waited for room and has it
    /// now.
    pub(super) fn take(&self, into: &mut VecDeque<Frame>, most: usize, mut room: impl FnMut(Source)) {
        if !self.has_frames() {
            return;
        }
        let mut queues = self.queues();
        let Queues { queues, next, max_frames, max_bytes, .. } = &mut *queues;
        let count = queues.len();
        let (mut taken, mut empty) = (0, 0);
        while taken < most && empty < count {
            if *next >= count {
                *next = 0;
            }
            match queues.get_mut(*next).and_then(|queue| queue.frames.pop_front().map(|frame| (queue, frame))) {
                Some((queue, frame)) => {
                    queue.bytes -= frame.capacity();
                    into.push_back(frame);
                    (taken, empty) = (taken + 1, 0);
                }
                None => empty += 1,
            }
            *next += 1;
        }
        for (number, queue) in queues.iter_mut().enumerate() {
            queue.closed = false;
            if queue.frames.len() <= *max_frames / 2 && queue.bytes <= *max_bytes / 2 {
                queue.full = None;
                if std::mem::take(&mut queue.waited_for) {
                    room(Source::of_index(number));
                }
            }
        }
        if queues.iter().all(|queue| queue.frames.is_empty()) {
            self.attention.store(false, Ordering::SeqCst);
        }
    }
}

/// Who sends to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Uplink,
    Port(PortId),
}

impl Source {
    fn index(self) -> usize {
        match self {
            Self::Uplink => 0,
            Self::Port(port) => port.0.saturating_add(1),
        }
    }

    fn of_index(index: usize) -> Self {
        index.checked_sub(1).map_or(Self::Uplink, |port| Self::Port(PortId(port)))
    }
}
