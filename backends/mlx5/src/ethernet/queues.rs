//! The queues for frames while they work: WQEs, completions, doorbells. Every value from the device is checked.

use bareverbs::{DmaFence, DmaMemory, Mac, Machine, OutOfRange, Platform, Registers};
use bareverbs_mlx5_spec::{
    CQE, CqDoorbellRecord, Cqe, CqeOpcode, DS_UNIT, ErrCqe, Field, WQEBB, WqeCtrlSeg, WqeDataSeg, WqeEthSeg, WqeOpcode,
    be_word, ce, eth_checksum, fm, frame_ok,
};

use super::config::{Checksums, InlineHeaders};
use super::error::{FrameQueueFault, ReceiveFrameError, SendFrameError};
use super::made::FrameObjects;
use crate::dma::uar::SendDoorbell;
use crate::error::{Error, PackedError};
use crate::ring::owner_matches;

/// Bytes of an Ethernet header without a tag.
pub(crate) const HEADER: usize = 14;
/// Bytes of an Ethernet header with a VLAN tag.
pub(crate) const TAGGED_HEADER: usize = HEADER + 4;
/// Bytes of the shortest frame without its check sequence (IEEE 802.3); a shorter one is filled up.
const SHORTEST: usize = 60;
/// Bytes of a receive WQE: one data segment.
pub(crate) const RECEIVE_WQE: usize = DS_UNIT;
/// Most blocks of a send WQE: control, Ethernet and data segment with the longest headers.
const MAX_BLOCKS: usize = (2 * DS_UNIT + (InlineHeaders::Transport.bytes() - 2).next_multiple_of(DS_UNIT) + DS_UNIT) / WQEBB;
const WORDS: usize = WQEBB / 8;
/// The word of an entry that the device writes last.
const LAST: usize = Cqe::OWNER.word();

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

/// A completion queue of one of the two queues.
#[derive(Debug)]
pub(crate) struct FrameCq {
    pub(crate) at: usize,
    pub(crate) record: usize,
    pub(crate) log_size: u32,
    pub(crate) consumer: u32,
}

struct Entry([u64; CQE / 8]);

impl Entry {
    fn get<L>(&self, field: Field<L>) -> u32 {
        field.take_word(u64::from_be(self.0.get(field.word()).copied().unwrap_or_default()))
    }
}

impl FrameCq {
    /// Takes the next entry, if the device has written one.
    fn take<P: Platform>(&mut self, machine: &mut Machine<P>) -> Result<Option<Entry>, OutOfRange> {
        let mask = (1 << self.log_size) - 1;
        let at = self.at + (self.consumer & mask) as usize * CQE;
        let [last] = machine.memory.load(at + LAST * 8)?;
        let last = u64::from_be(last);
        if Cqe::OPCODE.take_word(last) == CqeOpcode::Invalid.code()
            || !owner_matches(Cqe::OWNER, last, self.consumer, self.log_size)
        {
            return Ok(None);
        }
        machine.fence.acquire();
        let entry = Entry(machine.memory.load(at)?);
        self.consumer = self.consumer.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Tells the device which entries it may write.
    fn publish<P: Platform>(&self, machine: &mut Machine<P>) -> Result<(), OutOfRange> {
        machine.fence.read_before_write();
        machine.memory.store_u32(self.record, CqDoorbellRecord::CONSUMER_INDEX.place(self.consumer).to_be())
    }
}

pub(crate) struct SendQueue<P: Platform> {
    pub(crate) number: u32,
    pub(crate) doorbell: SendDoorbell<<P::Registers as Registers>::Doorbell>,
    pub(crate) cq: FrameCq,
    pub(crate) ring: usize,
    pub(crate) blocks: u32,
    pub(crate) record: usize,
    /// Where its frames lie.
    pub(crate) buffers: usize,
    /// Frames that may wait, a power of two.
    pub(crate) frames: u32,
    pub(crate) inline: usize,
    /// Blocks written, and the block after the last that is known to be done.
    pub(crate) written: u16,
    pub(crate) done_block: u16,
    /// Frames posted, and frames done.
    pub(crate) posted: u32,
    pub(crate) done: u32,
}

#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) cq: FrameCq,
    pub(crate) record: usize,
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
    pub(crate) receive: ReceiveQueue,
    pub(crate) mac: Mac,
    pub(crate) mtu: usize,
    /// Bytes from buffer to buffer.
    pub(crate) stride: usize,
    pub(crate) lkey: u32,
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
    pub(crate) fn reap(&mut self, machine: &mut Machine<P>) -> Result<(), OutOfRange> {
        let send = &mut self.send;
        let mut taken = false;
        while self.fault.is_none() && send.posted != send.done {
            let Some(entry) = send.cq.take(machine)? else { break };
            taken = true;
            let (opcode, index) = (entry.get(Cqe::OPCODE), entry.get(Cqe::WQE_COUNTER) as u16);
            self.fault = match CqeOpcode::from_code(opcode) {
                Some(CqeOpcode::Req) => {
                    let under_way = send.written.wrapping_sub(send.done_block);
                    if index.wrapping_sub(send.done_block) < under_way {
                        send.done_block = index.wrapping_add(1);
                        send.done = send.done.wrapping_add(1);
                        None
                    } else {
                        Some(FrameQueueFault::Order { index })
                    }
                }
                Some(CqeOpcode::ReqErr) => Some(FrameQueueFault::Send {
                    syndrome: entry.get(ErrCqe::SYNDROME) as u8,
                    vendor: entry.get(ErrCqe::VENDOR_ERR_SYND) as u8,
                }),
                _ => Some(FrameQueueFault::Completion { opcode: opcode as u8 }),
            };
        }
        if taken { send.cq.publish(machine) } else { Ok(()) }
    }

    /// Returns whether there is room for a frame to send.
    pub(crate) const fn has_room(&self) -> bool {
        self.send.posted.wrapping_sub(self.send.done) < self.send.frames
    }

    pub(crate) fn send(&mut self, machine: &mut Machine<P>, frame: &[u8], checksums: Checksums) -> Result<(), SendFrameError> {
        let limit = self.max_frame();
        if !(HEADER..=limit).contains(&frame.len()) {
            return Err(SendFrameError::Length { limit });
        }
        self.reap(machine).map_err(|error| SendFrameError::Device(lost(error)))?;
        if let Some(fault) = self.fault {
            return Err(SendFrameError::Fault(fault));
        }
        if !self.has_room() {
            return Err(SendFrameError::Full);
        }
        self.put(machine, frame, checksums).map_err(|error| SendFrameError::Device(lost(error)))
    }

    /// Writes a frame and its WQE, and rings.
    fn put(&mut self, machine: &mut Machine<P>, frame: &[u8], checksums: Checksums) -> Result<(), OutOfRange> {
        let send = &mut self.send;
        let buffer = send.buffers + (send.posted & (send.frames - 1)) as usize * self.stride;
        machine.memory.write(buffer, frame)?;
        let len = frame.len().max(SHORTEST);
        if len > frame.len() {
            // Bytes of an earlier frame must not go to this one's peer.
            let zeros = [0; SHORTEST];
            machine.memory.write(buffer + frame.len(), zeros.get(frame.len()..).unwrap_or_default())?;
        }
        let (words, units) = wqe(
            frame,
            &Sent {
                sqn: send.number,
                index: send.written,
                len,
                inline: send.inline.min(len),
                lkey: self.lkey,
                addr: self.base.wrapping_add(buffer as u64),
                checksums,
            },
        );
        let blocks = units.div_ceil(WQEBB / DS_UNIT);
        for (index, block) in words.iter().take(blocks).enumerate() {
            let place = u32::from(send.written).wrapping_add(index as u32) & (send.blocks - 1);
            machine.memory.store(send.ring + place as usize * WQEBB, block)?;
        }
        send.written = send.written.wrapping_add(blocks as u16);
        send.posted = send.posted.wrapping_add(1);
        let statistics = &mut self.statistics;
        statistics.sent_frames = statistics.sent_frames.wrapping_add(1);
        statistics.sent_bytes = statistics.sent_bytes.wrapping_add(len as u64);
        machine.fence.publish();
        machine.memory.store_u32(send.record + 4, u32::from(send.written).to_be())?;
        let [[first, ..], ..] = words;
        if send.doorbell.combining {
            machine.fence.release();
            send.doorbell.copy(0, first);
            machine.fence.flush();
            send.doorbell.switch_half();
        } else {
            machine.fence.release_uncached();
            send.doorbell.ring(first);
        }
        Ok(())
    }

    /// Copies the next frame into `into`, which has room for the longest. Ends after as many frames of impossible lengths as the queue
    /// has buffers.
    pub(crate) fn receive(&mut self, machine: &mut Machine<P>, into: &mut [u8]) -> Result<Option<Received>, ReceiveFrameError> {
        let need = self.max_frame();
        if into.len() < need {
            return Err(ReceiveFrameError::Buffer { need });
        }
        for _ in 0..self.receive.frames {
            if let Some(fault) = self.fault {
                return Err(ReceiveFrameError::Fault(fault));
            }
            let taken = self.take(machine, into).map_err(|error| ReceiveFrameError::Device(lost(error)))?;
            match taken {
                Taken::Nothing => break,
                Taken::Frame(received) => return Ok(Some(received)),
                Taken::Dropped => {}
            }
        }
        self.fault.map_or(Ok(None), |fault| Err(ReceiveFrameError::Fault(fault)))
    }

    /// Takes the next completion of a received frame, and posts its buffer again.
    fn take(&mut self, machine: &mut Machine<P>, into: &mut [u8]) -> Result<Taken, OutOfRange> {
        let (max_frame, receive) = (self.max_frame(), &mut self.receive);
        let Some(entry) = receive.cq.take(machine)? else { return Ok(Taken::Nothing) };
        let (opcode, index) = (entry.get(Cqe::OPCODE), entry.get(Cqe::WQE_COUNTER) as u16);
        let fault = match CqeOpcode::from_code(opcode) {
            // A compressed entry stands for several; the queue has compression off.
            Some(CqeOpcode::RespSend) if entry.get(Cqe::FORMAT) == 0 => {
                (index != receive.taken).then_some(FrameQueueFault::Order { index })
            }
            Some(CqeOpcode::RespErr) => Some(FrameQueueFault::Receive {
                syndrome: entry.get(ErrCqe::SYNDROME) as u8,
                vendor: entry.get(ErrCqe::VENDOR_ERR_SYND) as u8,
            }),
            _ => Some(FrameQueueFault::Completion { opcode: opcode as u8 }),
        };
        if fault.is_some() {
            self.fault = fault;
            return Ok(Taken::Dropped);
        }
        let len = entry.get(Cqe::BYTE_CNT) as usize;
        let place = into.get_mut(..len).filter(|_| (HEADER..=max_frame).contains(&len));
        let statistics = &mut self.statistics;
        let taken = if let Some(place) = place {
            let buffer = receive.buffers + (u32::from(receive.taken) & (receive.frames - 1)) as usize * self.stride;
            machine.memory.read(buffer, place)?;
            statistics.received_frames = statistics.received_frames.wrapping_add(1);
            statistics.received_bytes = statistics.received_bytes.wrapping_add(len as u64);
            let found = entry.get(Cqe::HDS_IP_EXT);
            let verified = Verified { header: found & frame_ok::L3 != 0, transport: found & frame_ok::L4 != 0 };
            Taken::Frame(Received { len, verified })
        } else {
            statistics.dropped_frames = statistics.dropped_frames.wrapping_add(1);
            Taken::Dropped
        };
        receive.cq.publish(machine)?;
        receive.taken = receive.taken.wrapping_add(1);
        self.post(machine)?;
        Ok(taken)
    }

    /// Tells the device of every receive WQE that is free.
    pub(crate) fn post(&self, machine: &mut Machine<P>) -> Result<(), OutOfRange> {
        let posted = self.receive.taken.wrapping_add(self.receive.frames as u16);
        machine.fence.publish();
        machine.memory.store_u32(self.receive.record, u32::from(posted).to_be())
    }
}

/// What a send WQE is about.
#[derive(Clone, Copy, Debug)]
struct Sent {
    sqn: u32,
    /// Index of the first block.
    index: u16,
    /// Bytes of the frame, at least [`SHORTEST`], and how many of them lie in the WQE.
    len: usize,
    inline: usize,
    lkey: u32,
    /// Device address of the frame.
    addr: u64,
    checksums: Checksums,
}

/// Returns the blocks of a frame's WQE and its 16-byte units. The bytes of the frame that lie in it begin in the last two bytes of
/// the Ethernet segment.
fn wqe(frame: &[u8], sent: &Sent) -> ([[u64; WORDS]; MAX_BLOCKS], usize) {
    const INLINE_AT: usize = 2 * DS_UNIT - 2;
    let Sent { sqn, index, len, inline, lkey, addr, checksums } = *sent;
    let mut bytes = [0; MAX_BLOCKS * WQEBB];
    for (to, from) in bytes.iter_mut().skip(INLINE_AT).zip(frame.iter().take(inline)) {
        *to = *from;
    }
    let mut words = [[0; WORDS]; MAX_BLOCKS];
    let places = words.as_flattened_mut();
    for (to, from) in places.iter_mut().zip(bytes.as_chunks().0) {
        *to = u64::from_ne_bytes(*from);
    }
    let data = 2 + inline.saturating_sub(2).div_ceil(DS_UNIT);
    let units = if len > inline { data + 1 } else { data };
    let control = WqeCtrlSeg::be_words(
        WqeCtrlSeg::opcode_dword(WqeOpcode::Send, index.into()),
        WqeCtrlSeg::qpn_dword(sqn, units as u32),
        WqeCtrlSeg::flags_dword(fm::NONE, ce::ALWAYS, false),
        0,
    );
    let mut flags = if checksums.header { eth_checksum::HEADER } else { 0 };
    if checksums.transport {
        flags |= eth_checksum::TRANSPORT;
    }
    let ethernet = [be_word(0, WqeEthSeg::CS_FLAGS.place(flags)), be_word(0, WqeEthSeg::INLINE_HDR_SZ.place(inline as u32))];
    for (to, from) in places.iter_mut().zip(control.into_iter().chain(ethernet)) {
        *to |= from;
    }
    if len > inline {
        let segment = WqeDataSeg::be_words((len - inline) as u32, lkey, addr.wrapping_add(inline as u64));
        for (to, from) in places.iter_mut().skip(2 * data).zip(segment) {
            *to = from;
        }
    }
    (words, units)
}

/// What became of a completion.
enum Taken {
    /// There was none.
    Nothing,
    Frame(Received),
    /// Its frame has an impossible length, or the queue has ended.
    Dropped,
}

fn lost(error: OutOfRange) -> Error {
    Error::from(PackedError::from(error))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::dma::uar::Uar;
    use crate::tests::mock::{MockPlatform, machine};

    /// By `mlx5_wqe_ctrl_seg` and `mlx5_wqe_eth_seg` of rdma-core's `mlx5dv.h`: qpn_ds at 4, fm_ce_se at 11, cs_flags at 20, inline_hdr_sz
    /// at 28, inline_hdr_start at 30; more headers follow in units of 16 bytes, then the data segment: byte_count, lkey, addr.
    #[test]
    fn a_wqe_is_the_bytes_of_its_structures() {
        let frame: Vec<u8> = (1..=200).collect();
        let made = |len: usize, inline: InlineHeaders, checksums| {
            let inline = inline.bytes().min(len);
            let (lkey, addr) = (0x0a0b_0c0d, 0x1122_3344_5566_7780);
            let sent = Sent { sqn: 0x45_6789, index: 0x1234, len, inline, lkey, addr, checksums };
            let (words, units) = wqe(&frame[..len], &sent);
            let bytes: Vec<u8> = words.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes[..units * 16].to_vec()
        };
        let control = |units: u8| [0, 0x12, 0x34, 0x0a, 0x45, 0x67, 0x89, units, 0, 0, 0, 8, 0, 0, 0, 0].to_vec();
        let data = |len: u8, at: u8| [0, 0, 0, len, 0xa, 0xb, 0xc, 0xd, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x80 + at];
        let mut expected = control(3);
        expected.extend([0; 16]);
        expected.extend(data(100, 0));
        assert_eq!(made(100, InlineHeaders::None, Checksums::NONE), expected);
        expected[16 + 4] = 0xc0;
        assert_eq!(made(100, InlineHeaders::None, Checksums::ALL), expected);
        // 18 bytes: two behind the size, 16 in the next unit.
        let mut expected = control(4);
        expected.extend([0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 18, 1, 2]);
        expected.extend(3..=18);
        expected.extend(data(82, 18));
        assert_eq!(made(100, InlineHeaders::L2, Checksums { header: true, transport: false }), expected);
        // A frame that lies in its WQE, filled up to a unit.
        let mut expected = control(2 + 4);
        expected.extend([0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 60, 1, 2]);
        expected.extend((3..=60).chain([0; 6]));
        assert_eq!(made(60, InlineHeaders::Ip, Checksums { header: false, transport: true }), expected);
        // Three blocks, full.
        let mut expected = control(12);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 146, 1, 2]);
        expected.extend(3..=146);
        expected.extend(data(54, 146 - 128));
        expected[12 * 16 - 1] = 0x12;
        expected[12 * 16 - 2] = 0x78;
        assert_eq!(made(200, InlineHeaders::Transport, Checksums::NONE), expected);
    }

    const FRAMES: u32 = 4;
    const STRIDE: usize = 1536;
    const SEND_CQ: usize = 0x2000;
    const RECEIVE_CQ: usize = 0x3000;
    const BUFFERS: usize = 0x4000;

    fn queue(at: usize, record: usize) -> FrameCq {
        FrameCq { at, record, log_size: 3, consumer: 0 }
    }

    fn interface(machine: &Machine<MockPlatform>) -> FrameInterface<MockPlatform> {
        let doorbell = Uar::at(4, 0, false).send_doorbell(&machine.registers).unwrap();
        FrameInterface {
            objects: FrameObjects::default(),
            send: SendQueue {
                number: 5,
                doorbell,
                cq: queue(SEND_CQ, 0x1000),
                ring: 0,
                blocks: 4,
                record: 0x1040,
                buffers: BUFFERS,
                frames: FRAMES,
                inline: 0,
                written: 0,
                done_block: 0,
                posted: 0,
                done: 0,
            },
            receive: ReceiveQueue {
                cq: queue(RECEIVE_CQ, 0x1080),
                record: 0x10c0,
                buffers: BUFFERS + FRAMES as usize * STRIDE,
                frames: FRAMES,
                taken: 0,
            },
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            stride: STRIDE,
            lkey: 0x100,
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
        for (inline, blocks) in [(InlineHeaders::None, 1_u64), (InlineHeaders::Transport, 3)] {
            for before in (0..=40).step_by(if cfg!(miri) { 19 } else { 1 }) {
                let (mut machine, shared) = machine();
                let mut queues = interface(&machine);
                let (first_block, first_frame, first_entry) =
                    ((1_u64 << 16) - before, (1_u64 << 32) - before, (1_u64 << 32) - before / 2);
                (queues.send.blocks, queues.send.inline) = (16, inline.bytes());
                (queues.send.written, queues.send.done_block) = (first_block as u16, first_block as u16);
                (queues.send.posted, queues.send.done) = (first_frame as u32, first_frame as u32);
                queues.send.cq.consumer = first_entry as u32;
                // The round before, and none behind it.
                for n in 0..8 {
                    complete(&shared, SEND_CQ, first_entry - 1 - n, 0, 0xdead, 0);
                }
                let mut waiting = std::collections::VecDeque::new();
                let (mut block, mut frame, mut entry, mut state) = (first_block, first_frame, first_entry, before as u32);
                for n in 0..80_u8 {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let bytes = [n; 200];
                    let sent = queues.send(&mut machine, &bytes, Checksums::NONE);
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
                        assert_eq!(sent, Err(SendFrameError::Full));
                    }
                    assert_eq!(queues.send.posted.wrapping_sub(queues.send.done) as usize, waiting.len());
                    // Full now and then, also when the next one comes.
                    for _ in 0..if waiting.len() == FRAMES as usize { state >> 30 } else { state >> 31 } {
                        let Some(index) = waiting.pop_front() else { break };
                        complete(&shared, SEND_CQ, entry, 0, index, 0);
                        entry += 1;
                        queues.reap(&mut machine).unwrap();
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
        let (mut machine, shared) = machine();
        for first in [0_u32, 5, (1 << 16) - 5, (1 << 16) - 2, (1 << 16) - 1] {
            for frames in 1..=FRAMES {
                let mut indices: Vec<u32> = (0..40).map(|n| (first + (1 << 16) - 20 + n) % (1 << 16)).collect();
                indices.extend((0..1 << 16).step_by(if cfg!(miri) { 9973 } else { 61 }));
                for index in indices {
                    let mut queues = interface(&machine);
                    (queues.send.written, queues.send.done_block) = ((first + 3 * frames) as u16, first as u16);
                    queues.send.posted = frames;
                    complete(&shared, SEND_CQ, 0, 0, index as u16, 0);
                    // The same again is under way no more; with one frame nobody looks.
                    complete(&shared, SEND_CQ, 1, 0, index as u16, 0);
                    // The next is of the round before.
                    complete(&shared, SEND_CQ, 2, 15, 0, 0);
                    queues.reap(&mut machine).unwrap();
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
            let (mut machine, shared) = machine();
            let mut queues = interface(&machine);
            let (first, first_entry) = ((1_u64 << 16) - before, (1_u64 << 32) - before / 2);
            queues.receive.taken = first as u16;
            queues.receive.cq.consumer = first_entry as u32;
            for n in 0..8 {
                complete(&shared, RECEIVE_CQ, first_entry - 1 - n, 2, 0xdead, 100);
            }
            let mut into = [0; 1600];
            for n in 0..60_u64 {
                assert_eq!(queues.receive(&mut machine, &mut into), Ok(None), "{before}");
                let place = (first + n) % u64::from(FRAMES);
                let buffer = BUFFERS + (u64::from(FRAMES) + place) as usize * STRIDE;
                shared.borrow_mut().memory[buffer..buffer + 100].fill(n as u8);
                complete(&shared, RECEIVE_CQ, first_entry + n, 2, (first + n) as u16, 100);
                let taken = queues.receive(&mut machine, &mut into).unwrap();
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
                assert_eq!(queues.receive(&mut machine, &mut into), Err(ReceiveFrameError::Fault(fault)));
                queues.fault = None;
                queues.receive.cq.consumer = (first_entry + 60) as u32;
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
                            let (opcode, consumer) =
                                if cq == SEND_CQ { (0, queues.send.cq.consumer) } else { (2, queues.receive.cq.consumer) };
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
                let sent = queues.send(&mut machine, &frame, Checksums::ALL);
                assert!(sent.is_ok() || queues.fault.is_some() || !(14..=1518).contains(&frame.len()) || !queues.has_room());
                let before = queues.receive.cq.consumer;
                let mut into = [0xee; 1600];
                let taken = queues.receive(&mut machine, &mut into);
                assert!(queues.receive.cq.consumer.wrapping_sub(before) <= FRAMES, "bounded work");
                let len = match taken {
                    Ok(Some(Received { len, .. })) => {
                        received += 1;
                        assert!((14..=1518).contains(&len));
                        len
                    }
                    Ok(None) => 0,
                    Err(error) => {
                        let fault = queues.fault.unwrap();
                        assert_eq!(error, ReceiveFrameError::Fault(fault));
                        assert_eq!(queues.receive(&mut machine, &mut into), Err(error), "it stays");
                        assert_eq!(queues.send(&mut machine, &[0; 60], Checksums::NONE), Err(SendFrameError::Fault(fault)));
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
}
