//! The queues for frames while they work: WQEs, completions, doorbells. Every value from the device is checked.

use bareverbs::backend::{CqReader as _, CqRing as _, Peek, RecvRing as _, SendRing as _, SendWriter as _};
use bareverbs::platform::{DmaMemory, Platform};
use bareverbs::{Lkey, Mac, SendFlags, Sge};
use bareverbs_mlx5_spec::{Cqe, CqeOpcode, DS_UNIT, ErrCqe, WQEBB, WqeEthSeg, WqeOpcode, be_word, eth_checksum, frame_ok};

use super::config::Checksums;
use super::error::{FrameError, FrameQueueFault};
use super::made::FrameObjects;
use crate::command::copy;
use crate::objects::cq::ring::{Mlx5CqReader, Mlx5CqRing};
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::objects::qp::segment::{data, word_of};
use crate::objects::qp::send_ring::Mlx5SendRing;

/// Bytes of an Ethernet header without a tag.
pub(crate) const HEADER: usize = 14;
/// Bytes of an Ethernet header with a VLAN tag.
pub(crate) const TAGGED_HEADER: usize = HEADER + 4;
/// Bytes of the shortest frame without its check sequence (IEEE 802.3); a shorter one is filled up.
const SHORTEST: usize = 60;

/// Counters of the queues since they were opened. They wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EthernetStatistics {
    /// Frames posted to the device.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that were received and taken.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Received frames of an impossible length.
    pub dropped_frames: u64,
}

/// What the device found right in a received frame. What is not said here may be right too: check it in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Verified {
    /// The IP header: of IPv4 its checksum.
    pub header: bool,
    /// The checksum of TCP or UDP.
    pub transport: bool,
}

/// A frame that was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Received {
    /// Its bytes, without the check sequence. A VLAN tag is where it was on the wire.
    pub len: usize,
    /// What the device found right.
    pub verified: Verified,
}

pub(crate) struct SendQueue<P: Platform> {
    pub(crate) ring: Mlx5SendRing<P>,
    pub(crate) cq: Mlx5CqRing<P>,
    /// Where its frames lie.
    pub(crate) buffers: usize,
    /// Frames that may wait, a power of two.
    pub(crate) frames: u32,
    /// Bytes of a frame that its WQE has.
    pub(crate) inline: usize,
    /// Blocks written, and the block after the last that is known to be done.
    pub(crate) written: u32,
    pub(crate) done_block: u16,
    /// Frames posted, and frames done.
    pub(crate) posted: u32,
    pub(crate) done: u32,
}

pub(crate) struct ReceiveQueue<P: Platform> {
    pub(crate) ring: Mlx5RecvRing<P>,
    pub(crate) cq: Mlx5CqRing<P>,
    /// Where its frames lie.
    pub(crate) buffers: usize,
    /// Frames that have room, a power of two.
    pub(crate) frames: u32,
    /// Frames taken. That many WQEs and [`Self::frames`] more are posted.
    pub(crate) taken: u16,
}

/// Both queues, and what they share.
pub(crate) struct FrameInterface<P: Platform> {
    pub(crate) objects: FrameObjects,
    pub(crate) send: SendQueue<P>,
    pub(crate) receive: ReceiveQueue<P>,
    pub(crate) mac: Mac,
    pub(crate) mtu: usize,
    /// Bytes from buffer to buffer.
    pub(crate) stride: usize,
    pub(crate) lkey: Lkey,
    /// Device address of the first byte of the arena.
    pub(crate) base: u64,
    pub(crate) fault: Option<FrameQueueFault>,
    pub(crate) statistics: EthernetStatistics,
}

impl<P: Platform> FrameInterface<P> {
    /// Returns the bytes of the longest frame, with a tag.
    pub(crate) const fn max_frame(&self) -> usize {
        self.mtu + TAGGED_HEADER
    }

    /// Takes the completions of sent frames; of as many as wait, so that it ends.
    pub(crate) fn reap(&mut self) {
        let SendQueue { cq, written, done_block, posted, done, .. } = &mut self.send;
        let (mut entry, mut taken) = (cq.reader(), false);
        while self.fault.is_none() && posted != done {
            self.fault = match entry.peek() {
                Peek::Empty => break,
                Peek::Success { recv: false, index, .. } => {
                    let under_way = (*written as u16).wrapping_sub(*done_block);
                    if index.wrapping_sub(*done_block) < under_way {
                        *done_block = index.wrapping_add(1);
                        *done = done.wrapping_add(1);
                        None
                    } else {
                        Some(FrameQueueFault::Order { index })
                    }
                }
                _ => Some(fault_of(&entry)),
            };
            entry.advance();
            taken = true;
        }
        if taken {
            entry.publish_consumer_index();
        }
    }

    /// Returns whether there is room for a frame to send.
    pub(crate) const fn has_room(&self) -> bool {
        self.send.posted.wrapping_sub(self.send.done) < self.send.frames
    }

    pub(crate) fn send(&mut self, memory: &mut P::Memory, frame: &[u8], checksums: Checksums) -> Result<(), FrameError> {
        let limit = self.max_frame();
        if !(HEADER..=limit).contains(&frame.len()) {
            return Err(FrameError::Length { limit });
        }
        self.reap();
        if let Some(fault) = self.fault {
            return Err(FrameError::Fault(fault));
        }
        if !self.has_room() {
            return Err(FrameError::Full);
        }
        // Bytes of an earlier frame must not go to this one's peer.
        let mut filled = [0; SHORTEST];
        let frame = if frame.len() < SHORTEST {
            copy(&mut filled, frame);
            &filled
        } else {
            frame
        };
        let send = &mut self.send;
        let buffer = send.buffers + (send.posted & (send.frames - 1)) as usize * self.stride;
        memory.write(buffer, frame).map_err(|error| FrameError::Device(error.into()))?;
        send.put(frame, self.lkey, self.base.wrapping_add(buffer as u64), checksums);
        let statistics = &mut self.statistics;
        statistics.sent_frames = statistics.sent_frames.wrapping_add(1);
        statistics.sent_bytes = statistics.sent_bytes.wrapping_add(frame.len() as u64);
        Ok(())
    }

    /// Copies the next frame into `into`, which has room for the longest, and posts its buffer again. Ends after as many frames of
    /// impossible lengths as the queue has buffers.
    pub(crate) fn receive(&mut self, memory: &P::Memory, into: &mut [u8]) -> Result<Option<Received>, FrameError> {
        let need = self.max_frame();
        if into.len() < need {
            return Err(FrameError::Buffer { need });
        }
        let Self { receive: ReceiveQueue { ring, cq, buffers, frames, taken }, stride, fault, statistics, .. } = self;
        let mut entry = cq.reader();
        for _ in 0..*frames {
            if fault.is_some() {
                break;
            }
            *fault = match entry.peek() {
                Peek::Empty => break,
                // A compressed entry stands for several; the queue has compression off.
                Peek::Success { recv: true, index, .. } if entry.get(Cqe::FORMAT) == 0 => {
                    (index != *taken).then_some(FrameQueueFault::Order { index })
                }
                _ => Some(fault_of(&entry)),
            };
            if fault.is_some() {
                break;
            }
            let (len, found) = (entry.get(Cqe::BYTE_CNT) as usize, entry.get(Cqe::HDS_IP_EXT));
            let place = into.get_mut(..len).filter(|_| (HEADER..=need).contains(&len));
            let received = if let Some(place) = place {
                let buffer = *buffers + (u32::from(*taken) & (*frames - 1)) as usize * *stride;
                memory.read(buffer, place).map_err(|error| FrameError::Device(error.into()))?;
                statistics.received_frames = statistics.received_frames.wrapping_add(1);
                statistics.received_bytes = statistics.received_bytes.wrapping_add(len as u64);
                let verified = Verified { header: found & frame_ok::L3 != 0, transport: found & frame_ok::L4 != 0 };
                Some(Received { len, verified })
            } else {
                statistics.dropped_frames = statistics.dropped_frames.wrapping_add(1);
                None
            };
            entry.advance();
            entry.publish_consumer_index();
            *taken = taken.wrapping_add(1);
            ring.ring(u32::from(*taken).wrapping_add(*frames));
            if received.is_some() {
                return Ok(received);
            }
        }
        self.fault.map_or(Ok(None), |fault| Err(FrameError::Fault(fault)))
    }
}

impl<P: Platform> SendQueue<P> {
    /// Writes the WQE of a frame at device address `addr`, and rings. The bytes of the frame that lie in it begin in the last two bytes
    /// of the Ethernet segment.
    fn put(&mut self, frame: &[u8], lkey: Lkey, addr: u64, checksums: Checksums) {
        let (inline, rest) = frame.split_at_checked(self.inline).unwrap_or((frame, &[]));
        let (start, more) = inline.split_at_checked(2).unwrap_or_default();
        let more_units = more.len().div_ceil(DS_UNIT);
        let units = 2 + more_units + usize::from(!rest.is_empty());
        let mut flags = if checksums.header { eth_checksum::HEADER } else { 0 };
        if checksums.transport {
            flags |= eth_checksum::TRANSPORT;
        }
        let start = start.first_chunk().map_or(0, |start| u16::from_be_bytes(*start));
        let size = WqeEthSeg::INLINE_HDR_SZ.place(inline.len() as u32) | WqeEthSeg::INLINE_HDR_START.place(start.into());
        let mut writer = self.ring.writer();
        let mut word = self.written.wrapping_mul((WQEBB / 8) as u32);
        let control = writer.control(WqeOpcode::Send, self.written, units as u32, SendFlags::SIGNALED, 0);
        writer.put_words(&mut word, &control);
        writer.put_words(&mut word, &[be_word(0, WqeEthSeg::CS_FLAGS.place(flags)), be_word(0, size)]);
        for at in (0..more_units * DS_UNIT).step_by(8) {
            writer.put_words(&mut word, &[word_of(more, at)]);
        }
        if !rest.is_empty() {
            let addr = addr.wrapping_add(inline.len() as u64);
            writer.put_words(&mut word, &data(&Sge { addr, length: rest.len() as u32, lkey }));
        }
        self.written = self.written.wrapping_add(units.div_ceil(WQEBB / DS_UNIT) as u32);
        self.posted = self.posted.wrapping_add(1);
        writer.ring(self.written);
    }
}

/// Returns why an entry that completes no frame ends its queue.
fn fault_of<P: Platform>(entry: &Mlx5CqReader<'_, P>) -> FrameQueueFault {
    let opcode = entry.get(Cqe::OPCODE);
    let (syndrome, vendor) = (entry.get(ErrCqe::SYNDROME) as u8, entry.get(ErrCqe::VENDOR_ERR_SYND) as u8);
    match CqeOpcode::from_code(opcode) {
        Some(CqeOpcode::ReqErr) => FrameQueueFault::Send { syndrome, vendor },
        Some(CqeOpcode::RespErr) => FrameQueueFault::Receive { syndrome, vendor },
        _ => FrameQueueFault::Completion { opcode: opcode as u8 },
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use bareverbs::platform::{Machine, Registers};
    use bareverbs_mlx5_spec::{CQE, InlineMode};

    use super::super::config::inline_bytes;
    use super::*;
    use crate::config::CqeSize;
    use crate::dma::uar::SendDoorbell;
    use crate::objects::cq::ring::{RingSize, Shape};
    use crate::ring::open_ring;
    use crate::tests::mock::{MockPlatform, Part, machine};

    /// By `mlx5_wqe_ctrl_seg` and `mlx5_wqe_eth_seg` of rdma-core's `mlx5dv.h`: qpn_ds at 4, fm_ce_se at 11, cs_flags at 20, inline_hdr_sz
    /// at 28, inline_hdr_start at 30; more headers follow in units of 16 bytes, then the data segment: byte_count, lkey, addr.
    #[test]
    fn a_wqe_is_the_bytes_of_its_structures() {
        let frame: Vec<u8> = (1..=200).collect();
        let made = |len: usize, inline: InlineMode, checksums| {
            let (machine, shared) = machine();
            let mut send = interface(&machine).send;
            (send.inline, send.written) = (inline_bytes(inline), 0x1234);
            send.put(&frame[..len], Lkey::new(0x0a0b_0c0d), 0x1122_3344_5566_7780, checksums);
            let bytes = shared.borrow().memory[..192].to_vec();
            bytes[..usize::from(bytes[7]) * 16].to_vec()
        };
        let control = |units: u8| [0, 0x12, 0x34, 0x0a, 0x45, 0x67, 0x89, units, 0, 0, 0, 8, 0, 0, 0, 0].to_vec();
        let data = |len: u8, at: u8| [0, 0, 0, len, 0xa, 0xb, 0xc, 0xd, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x80 + at];
        let mut expected = control(3);
        expected.extend([0; 16]);
        expected.extend(data(100, 0));
        assert_eq!(made(100, InlineMode::None, Checksums::NONE), expected);
        expected[16 + 4] = 0xc0;
        assert_eq!(made(100, InlineMode::None, Checksums::ALL), expected);
        // 18 bytes: two behind the size, 16 in the next unit.
        let mut expected = control(4);
        expected.extend([0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 18, 1, 2]);
        expected.extend(3..=18);
        expected.extend(data(82, 18));
        assert_eq!(made(100, InlineMode::L2, Checksums { header: true, transport: false }), expected);
        // A frame that lies in its WQE, filled up to a unit.
        let mut expected = control(2 + 4);
        expected.extend([0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 60, 1, 2]);
        expected.extend((3..=60).chain([0; 6]));
        assert_eq!(made(60, InlineMode::Ip, Checksums { header: false, transport: true }), expected);
        // Three blocks, full.
        let mut expected = control(12);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 146, 1, 2]);
        expected.extend(3..=146);
        expected.extend(data(54, 146 - 128));
        expected[12 * 16 - 1] = 0x12;
        expected[12 * 16 - 2] = 0x78;
        assert_eq!(made(200, InlineMode::TcpUdp, Checksums::NONE), expected);
    }

    const FRAMES: u32 = 4;
    const STRIDE: usize = 1536;
    const SEND_CQ: usize = 0x2000;
    const RECEIVE_CQ: usize = 0x3000;
    const BUFFERS: usize = 0x4000;

    fn queue(machine: &Machine<MockPlatform>, at: usize, record: usize) -> Mlx5CqRing<MockPlatform> {
        let ring = open_ring(&machine.memory, at, 8 * CQE, record).unwrap();
        let doorbell = machine.registers.doorbell(4 * 4096 + 0x20, 1).unwrap();
        let size = RingSize::new(3, CqeSize::Bytes64);
        let shape = Shape { cqn: 7, size, user_index: false, combining: false, ethernet: true };
        Mlx5CqRing::new(ring, doorbell, machine.fence.clone(), shape)
    }

    fn send_ring(machine: &Machine<MockPlatform>, blocks: usize) -> Mlx5SendRing<MockPlatform> {
        let doorbell = SendDoorbell::open(&machine.registers, 4, 0, false).unwrap();
        let ring = open_ring(&machine.memory, 0, blocks * WQEBB, 0x1040).unwrap();
        Mlx5SendRing::new(ring, doorbell, Part::clone(&machine.fence), 0x45_6789)
    }

    fn interface(machine: &Machine<MockPlatform>) -> FrameInterface<MockPlatform> {
        let ring = |at, len, record| open_ring(&machine.memory, at, len, record).unwrap();
        let fence = Part::clone(&machine.fence);
        FrameInterface {
            objects: FrameObjects::default(),
            send: SendQueue {
                ring: send_ring(machine, 4),
                cq: queue(machine, SEND_CQ, 0x1000),
                buffers: BUFFERS,
                frames: FRAMES,
                inline: 0,
                written: 0,
                done_block: 0,
                posted: 0,
                done: 0,
            },
            receive: ReceiveQueue {
                ring: Mlx5RecvRing { ring: ring(0x1800, FRAMES as usize * DS_UNIT, 0x10c0), fence, units: 1 },
                cq: queue(machine, RECEIVE_CQ, 0x1080),
                buffers: BUFFERS + FRAMES as usize * STRIDE,
                frames: FRAMES,
                taken: 0,
            },
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            stride: STRIDE,
            lkey: Lkey::new(0x100),
            base: 0,
            fault: None,
            statistics: EthernetStatistics::default(),
        }
    }

    /// Writes the completion with this counter of a queue of eight, as the device does.
    fn complete(shared: &crate::tests::mock::Shared, cq: usize, counter: u64, opcode: u8, index: u16, len: u32) {
        let entry = &mut shared.borrow_mut().memory[cq + (counter % 8) as usize * CQE..][..CQE];
        entry.fill(0);
        entry[44..48].copy_from_slice(&len.to_be_bytes());
        entry[60..62].copy_from_slice(&index.to_be_bytes());
        entry[63] = opcode << 4 | (counter / 8 % 2) as u8;
    }

    /// Frames whose WQEs have one block or three, about the wraps of every counter, beside a queue of those that wait: as many as there are
    /// buffers are taken, each is where its counter says, and completions are believed in their order alone.
    #[test]
    fn sent_frames_take_their_places_in_turn() {
        for (inline, blocks) in [(InlineMode::None, 1_u64), (InlineMode::TcpUdp, 3)] {
            for before in (0..=40).step_by(if cfg!(miri) { 19 } else { 1 }) {
                let (mut machine, shared) = machine();
                let mut queues = interface(&machine);
                let (first_block, first_frame, first_entry) =
                    ((1_u64 << 32) - before, (1_u64 << 32) - before, (1_u64 << 32) - before / 2);
                (queues.send.ring, queues.send.inline) = (send_ring(&machine, 16), inline_bytes(inline));
                (queues.send.written, queues.send.done_block) = (first_block as u32, first_block as u16);
                (queues.send.posted, queues.send.done) = (first_frame as u32, first_frame as u32);
                queues.send.cq.start_at(first_entry as u32);
                // The round before, and none behind it.
                for n in 0..8 {
                    complete(&shared, SEND_CQ, first_entry - 1 - n, 0, 0xdead, 0);
                }
                let mut waiting = std::collections::VecDeque::new();
                let (mut block, mut frame, mut entry, mut state) = (first_block, first_frame, first_entry, before as u32);
                for n in 0..80_u8 {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let bytes = [n; 200];
                    let sent = queues.send(&mut machine.memory, &bytes, Checksums::NONE);
                    if waiting.len() < FRAMES as usize {
                        assert_eq!(sent, Ok(()), "{before} before the wraps");
                        let at = (block % 16) as usize * WQEBB;
                        let head = shared.borrow().memory[at..at + 8].to_vec();
                        let [high, low] = (block as u16).to_be_bytes();
                        assert_eq!((head[1], head[2], usize::from(head[7]).div_ceil(4) as u64), (high, low, blocks));
                        let buffer = BUFFERS + (frame % u64::from(FRAMES)) as usize * STRIDE;
                        assert_eq!(shared.borrow().memory[buffer..][..200], bytes);
                        waiting.push_back(block as u16);
                        (block, frame) = (block + blocks, frame + 1);
                        let record = shared.borrow().memory[0x1044..0x1048].to_vec();
                        assert_eq!(record, ((block % (1 << 16)) as u32).to_be_bytes());
                    } else {
                        assert_eq!(sent, Err(FrameError::Full));
                    }
                    assert_eq!(queues.send.posted.wrapping_sub(queues.send.done) as usize, waiting.len());
                    // Full now and then, also when the next one comes.
                    for _ in 0..if waiting.len() == FRAMES as usize { state >> 30 } else { state >> 31 } {
                        let Some(index) = waiting.pop_front() else { break };
                        complete(&shared, SEND_CQ, entry, 0, index, 0);
                        entry += 1;
                        queues.reap();
                    }
                    assert_eq!(queues.has_room(), waiting.len() < FRAMES as usize);
                    let consumer = shared.borrow().memory[0x1000..0x1004].to_vec();
                    assert!(entry == first_entry || consumer == ((entry % (1 << 24)) as u32).to_be_bytes());
                    shared.borrow_mut().log.clear();
                }
                assert_eq!(queues.fault, None);
            }
        }
    }

    /// With each number of frames under way, about the wrap of the index and off it: a completion names a block of those, or is none.
    #[test]
    fn a_completion_names_a_block_that_is_under_way() {
        let (machine, shared) = machine();
        for first in [0_u32, 5, (1 << 16) - 5, (1 << 16) - 2, (1 << 16) - 1] {
            for frames in 1..=FRAMES {
                let mut indices: Vec<u32> = (0..40).map(|n| (first + (1 << 16) - 20 + n) % (1 << 16)).collect();
                indices.extend((0..1 << 16).step_by(if cfg!(miri) { 9973 } else { 61 }));
                for index in indices {
                    let mut queues = interface(&machine);
                    (queues.send.written, queues.send.done_block) = (first + 3 * frames, first as u16);
                    queues.send.posted = frames;
                    complete(&shared, SEND_CQ, 0, 0, index as u16, 0);
                    // The same again is under way no more; with one frame nobody looks.
                    complete(&shared, SEND_CQ, 1, 0, index as u16, 0);
                    // The next is of the round before.
                    complete(&shared, SEND_CQ, 2, 15, 0, 0);
                    queues.reap();
                    let under_way = (first..first + 3 * frames).any(|block| block % (1 << 16) == index);
                    let fault = (!under_way || frames > 1).then_some(FrameQueueFault::Order { index: index as u16 });
                    assert_eq!(queues.fault, fault, "{index:#x} of {frames} frames from {first:#x}");
                    shared.borrow_mut().log.clear();
                }
            }
        }
    }

    /// Frames about the wraps of every counter are taken from the buffers in turn, which are posted again, and any other index than the next
    /// is a fault.
    #[test]
    fn received_frames_come_from_their_places_in_turn() {
        for before in (0..=24).step_by(if cfg!(miri) { 19 } else { 1 }) {
            let (machine, shared) = machine();
            let mut queues = interface(&machine);
            let (first, first_entry) = ((1_u64 << 16) - before, (1_u64 << 32) - before / 2);
            queues.receive.taken = first as u16;
            queues.receive.cq.start_at(first_entry as u32);
            for n in 0..8 {
                complete(&shared, RECEIVE_CQ, first_entry - 1 - n, 2, 0xdead, 100);
            }
            let mut into = [0; 1600];
            for n in 0..60_u64 {
                assert_eq!(queues.receive(&machine.memory, &mut into), Ok(None), "{before}");
                let place = (first + n) % u64::from(FRAMES);
                let buffer = BUFFERS + (u64::from(FRAMES) + place) as usize * STRIDE;
                shared.borrow_mut().memory[buffer..buffer + 100].fill(n as u8);
                complete(&shared, RECEIVE_CQ, first_entry + n, 2, (first + n) as u16, 100);
                let taken = queues.receive(&machine.memory, &mut into).unwrap();
                assert_eq!(taken.map(|received| received.len), Some(100));
                assert_eq!(into[..100], [n as u8; 100]);
                let record = shared.borrow().memory[0x10c0..0x10c4].to_vec();
                assert_eq!(record, (((first + n + 1 + u64::from(FRAMES)) % (1 << 16)) as u32).to_be_bytes());
                shared.borrow_mut().log.clear();
            }
            for wrong in [1_u16, 2, 0x8000, u16::MAX] {
                let index = queues.receive.taken.wrapping_add(wrong);
                complete(&shared, RECEIVE_CQ, first_entry + 60, 2, index, 100);
                let fault = FrameQueueFault::Order { index };
                assert_eq!(queues.receive(&machine.memory, &mut into), Err(FrameError::Fault(fault)));
                queues.fault = None;
                queues.receive.cq.start_at((first_entry + 60) as u32);
            }
        }
    }

    /// Numbers of xorshift (Marsaglia 2003).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    /// Entries of any bytes, often made so that they look good: nothing panics, a call takes no more entries than there are frames, no byte
    /// behind a frame is written, and a fault stays.
    #[test]
    fn whatever_a_device_writes_frames_stay_inside_and_calls_end() {
        let (mut machine, shared) = machine();
        let mut random = Random(0x1234_5678_9abc_def1);
        let (mut received, mut faults, mut dropped) = (0, 0, 0);
        for _ in 0..if cfg!(miri) { 20 } else { 4000 } {
            let mut queues = interface(&machine);
            for _ in 0..8 {
                for cq in [SEND_CQ, RECEIVE_CQ] {
                    let mut memory = shared.borrow_mut();
                    for index in 0..8 {
                        let entry = &mut memory.memory[cq + index * CQE..][..CQE];
                        entry.fill_with(|| random.next() as u8);
                        let choice = random.next();
                        if choice & 7 != 0 {
                            // A kind that frames have, in this round of the ring, without compression.
                            let (opcode, consumer) = if cq == SEND_CQ {
                                (0, queues.send.cq.position().1)
                            } else {
                                (2, queues.receive.cq.position().1)
                            };
                            let place = (index as u32).wrapping_sub(consumer) & 7;
                            entry[63] = opcode << 4 | (consumer.wrapping_add(place) >> 3 & 1) as u8;
                            let counter = queues.receive.taken.wrapping_add(place as u16);
                            entry[60..62].copy_from_slice(&if cq == SEND_CQ { 0 } else { counter }.to_be_bytes());
                        }
                        if choice & 0x30 != 0 {
                            let len = (random.next() % 1700) as u32;
                            entry[44..48].copy_from_slice(&len.to_be_bytes());
                        }
                    }
                }
                let frame = std::vec![0x55; (random.next() % 1600) as usize];
                let sent = queues.send(&mut machine.memory, &frame, Checksums::ALL);
                assert!(sent.is_ok() || queues.fault.is_some() || !(14..=1518).contains(&frame.len()) || !queues.has_room());
                let before = queues.receive.cq.position().1;
                let mut into = [0xee; 1600];
                let taken = queues.receive(&machine.memory, &mut into);
                assert!(queues.receive.cq.position().1.wrapping_sub(before) <= FRAMES, "bounded work");
                let len = match taken {
                    Ok(Some(Received { len, .. })) => {
                        received += 1;
                        assert!((14..=1518).contains(&len));
                        len
                    }
                    Ok(None) => 0,
                    Err(error) => {
                        let fault = queues.fault.unwrap();
                        assert_eq!(error, FrameError::Fault(fault));
                        assert_eq!(queues.receive(&machine.memory, &mut into), Err(error), "it stays");
                        assert_eq!(queues.send(&mut machine.memory, &[0; 60], Checksums::NONE), Err(FrameError::Fault(fault)));
                        faults += 1;
                        0
                    }
                };
                assert!(into[len..].iter().all(|byte| *byte == 0xee), "behind the frame");
            }
            dropped += queues.statistics.dropped_frames;
        }
        assert!(cfg!(miri) || received > 1000 && faults > 1000 && dropped > 100, "{received} {faults} {dropped}");
    }

    /// IEEE 802.3: a frame has 60 bytes before its check sequence. What fills it up is zeros, not bytes of an earlier frame.
    #[test]
    fn a_short_frame_is_filled_up_with_zeros() {
        for len in 14..=64 {
            let (mut machine, shared) = machine();
            shared.borrow_mut().memory[BUFFERS..BUFFERS + STRIDE].fill(0xee);
            let mut queues = interface(&machine);
            let frame = std::vec![0x55; len];
            queues.send(&mut machine.memory, &frame, Checksums::NONE).unwrap();
            let sent = len.max(60);
            let mut expected = frame.clone();
            expected.resize(sent, 0);
            let memory = shared.borrow().memory.clone();
            assert_eq!(memory[BUFFERS..][..sent], expected, "{len}");
            // byte_count of the data segment, the third of the WQE.
            assert_eq!(memory[32..36], (sent as u32).to_be_bytes(), "{len}");
            assert_eq!((queues.statistics.sent_frames, queues.statistics.sent_bytes), (1, sent as u64));
        }
    }

    /// Format 0 of an entry is that of one frame; 3 is compressed, and stands for several (rdma-core `mlx5dv.h`, `MLX5_CQE_FORMAT`; bits 3
    /// and 2 of the last byte).
    #[test]
    fn a_compressed_completion_is_a_fault() {
        for format in 0..=3_u8 {
            let (machine, shared) = machine();
            let mut queues = interface(&machine);
            complete(&shared, RECEIVE_CQ, 0, 2, 0, 100);
            complete(&shared, RECEIVE_CQ, 1, 15, 0, 0);
            shared.borrow_mut().memory[RECEIVE_CQ + 63] |= format << 2;
            let taken = queues.receive(&machine.memory, &mut [0; 1600]).map(|received| received.map(|received| received.len));
            let fault = FrameQueueFault::Completion { opcode: 2 };
            assert_eq!(taken, if format == 0 { Ok(Some(100)) } else { Err(FrameError::Fault(fault)) }, "{format}");
        }
    }

    /// With an MTU of 1500 the longest frame, with a tag, has 1518 bytes.
    #[test]
    fn a_buffer_of_the_longest_frame_is_enough() {
        for (room, is_enough) in [(0, false), (1517, false), (1518, true), (1519, true)] {
            let (machine, shared) = machine();
            let mut queues = interface(&machine);
            complete(&shared, RECEIVE_CQ, 0, 2, 0, 1518);
            complete(&shared, RECEIVE_CQ, 1, 15, 0, 0);
            let taken =
                queues.receive(&machine.memory, &mut std::vec![0; room]).map(|received| received.map(|received| received.len));
            assert_eq!(taken, if is_enough { Ok(Some(1518)) } else { Err(FrameError::Buffer { need: 1518 }) }, "{room}");
        }
    }
}
