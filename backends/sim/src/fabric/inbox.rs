//! Frames that wait for a device, in a lane for each source.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bareverbs::Instant;

use crate::wire::PortId;

/// Most frames that wait for a device, of all sources together.
pub const MOST_FRAMES: usize = 4096;
/// Most bytes of memory that they take.
pub const MOST_BYTES: usize = 8 << 20;
/// A source may have so many frames waiting, however many sources there are.
const FEWEST_FRAMES: usize = 128;
const FEWEST_BYTES: usize = 512 << 10;

/// How long a full lane may hold its source back before its frames are discarded: 4.096 microseconds times 2 to the 15th.
pub const LIFETIME: Duration = Duration::from_nanos(4096 << 15);

/// Most frames of each of so many sources that wait for a device.
pub(super) fn share(sources: usize) -> usize {
    (MOST_FRAMES / sources.max(1)).max(FEWEST_FRAMES)
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may be sent.
    Pass,
    /// It must wait for room, until then at most.
    Wait(Instant),
    /// It is lost.
    Discard,
}

/// The frames of one source.
#[derive(Debug, Default)]
struct Lane {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Since when the source finds no room.
    full: Option<Instant>,
    /// The source waits for room.
    waited_for: bool,
    /// The device did not take the frames in time, and has taken none since: what comes is discarded.
    closed: bool,
}

#[derive(Debug, Default)]
struct Lanes {
    /// The uplink's, then those of the ports.
    lanes: Vec<Lane>,
    /// The lane from which the next frame is taken.
    next: usize,
    /// What each may hold.
    most_frames: usize,
    most_bytes: usize,
    discarded: u64,
}

/// The frames for one device.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    lanes: Mutex<Lanes>,
    /// There is something to take, or a lane to open again.
    attention: AtomicBool,
}

impl Inbox {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides the room among so many sources.
    pub(super) fn divide(&self, sources: usize) {
        let mut lanes = self.lanes();
        lanes.lanes.resize_with(sources, Lane::default);
        lanes.most_frames = share(sources);
        lanes.most_bytes = (MOST_BYTES / sources.max(1)).max(FEWEST_BYTES);
    }

    pub(super) fn has_frames(&self) -> bool {
        self.attention.load(Ordering::SeqCst)
    }

    pub(super) fn discarded(&self) -> u64 {
        self.lanes().discarded
    }

    /// Whether a frame that takes `len` bytes of memory may be sent while `in_flight` others of its source are on the wire.
    pub(super) fn admit(&self, source: Source, len: usize, in_flight: usize, now: Instant) -> Admission {
        let mut lanes = self.lanes();
        let Lanes { lanes, most_frames, most_bytes, discarded, .. } = &mut *lanes;
        let Some(lane) = lanes.get_mut(source.lane()) else { return Admission::Discard };
        if lane.closed {
            *discarded += 1;
            return Admission::Discard;
        }
        if lane.frames.len() + in_flight < *most_frames && lane.bytes + len <= *most_bytes {
            return Admission::Pass;
        }
        let until = lane.full.get_or_insert(now).after(LIFETIME);
        if until > now {
            lane.waited_for = true;
            return Admission::Wait(until);
        }
        *discarded += lane.frames.len() as u64 + 1;
        *lane = Lane { closed: true, ..Lane::default() };
        self.attention.store(true, Ordering::SeqCst);
        Admission::Discard
    }

    /// Takes a frame from the wire; `true` if it is in. One for a group needs room; so does one that the wire made of another.
    pub(super) fn push(&self, source: Source, frame: Vec<u8>, group: bool) -> bool {
        let mut lanes = self.lanes();
        let Lanes { lanes, most_frames, most_bytes, discarded, .. } = &mut *lanes;
        let Some(lane) = lanes.get_mut(source.lane()) else { return false };
        // What is admitted has room here, but for copies.
        let most = if group { *most_frames } else { *most_frames * 2 };
        let too_long = group && lane.bytes + frame.capacity() > *most_bytes;
        if lane.closed || lane.frames.len() >= most || too_long {
            *discarded += 1;
            return false;
        }
        lane.bytes += frame.capacity();
        lane.frames.push_back(frame);
        self.attention.store(true, Ordering::SeqCst);
        true
    }

    /// Takes up to `most` frames, one of each source in turn, and calls `room` for each source that waited for room and has it
    /// now.
    pub(super) fn take(&self, into: &mut VecDeque<Vec<u8>>, most: usize, mut room: impl FnMut(Source)) {
        if !self.has_frames() {
            return;
        }
        let mut lanes = self.lanes();
        let Lanes { lanes, next, most_frames, most_bytes, .. } = &mut *lanes;
        let count = lanes.len();
        let (mut taken, mut empty) = (0, 0);
        while taken < most && empty < count {
            if *next >= count {
                *next = 0;
            }
            match lanes.get_mut(*next).and_then(|lane| lane.frames.pop_front().map(|frame| (lane, frame))) {
                Some((lane, frame)) => {
                    lane.bytes -= frame.capacity();
                    into.push_back(frame);
                    (taken, empty) = (taken + 1, 0);
                }
                None => empty += 1,
            }
            *next += 1;
        }
        for (number, lane) in lanes.iter_mut().enumerate() {
            lane.closed = false;
            if lane.frames.len() <= *most_frames / 2 && lane.bytes <= *most_bytes / 2 {
                lane.full = None;
                if std::mem::take(&mut lane.waited_for) {
                    room(Source::of_lane(number));
                }
            }
        }
        if lanes.iter().all(|lane| lane.frames.is_empty()) {
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
    fn lane(self) -> usize {
        match self {
            Self::Uplink => 0,
            Self::Port(port) => port.0.saturating_add(1),
        }
    }

    fn of_lane(lane: usize) -> Self {
        lane.checked_sub(1).map_or(Self::Uplink, |port| Self::Port(PortId(port)))
    }
}
