//! A guest that sends and receives frames, and checks each byte.

use bareverbs::platform::DmaMemory as _;

use super::end::{BLOCK, BUFFER, BUFFERS, ENTRIES, FrameEnd, SOURCE, segment};
use crate::device::guest::BASE;

/// Ethernet type of its frames (IEEE 802, for experiments), and bytes of addresses and type.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const HEADER: usize = 14;
/// Opcodes of completions: a send, a frame that came.
const SENT: u8 = 0;
const CAME: u8 = 2;
/// A frame, sent: opcode, and that a completion is wanted.
const SEND: u8 = 0x0a;
const SIGNALED: u8 = 8;

/// The guest, and what came from the other one.
pub struct Station {
    pub end: FrameEnd,
    /// Rounds whose frame came.
    rounds: Vec<u32>,
    sent: u64,
    completed: u64,
    received: u16,
}

/// Returns the frame of a round.
fn frame(from: [u8; 6], to: [u8; 6], round: u32) -> Vec<u8> {
    let len = 46 + (round as usize * 97) % 1440;
    let mut frame = [&to[..], &from, &ETHER_TYPE, &round.to_be_bytes()].concat();
    frame.extend((4..len).map(|at| (at as u32 ^ at as u32 >> 8).wrapping_mul(31).wrapping_add(round.wrapping_mul(7)) as u8));
    frame
}

impl Station {
    pub fn new(end: FrameEnd) -> Self {
        Self { end, rounds: Vec::new(), sent: 0, completed: 0, received: 0 }
    }

    /// Sends the frame of a round.
    pub fn send(&mut self, to: [u8; 6], round: u32) {
        let bytes = frame(self.end.mac, to, round);
        self.end.guest.memory.write(SOURCE, &bytes).expect("its own memory");
        let body = [[0; 16], segment(bytes.len() as u32, self.end.guest.key, BASE + SOURCE as u64)].concat();
        const { assert!(16 + 32 <= BLOCK) };
        self.end.post_send(0, SEND, 3, SIGNALED, &body);
        self.sent += 1;
    }

    /// Takes what has come, and gives its buffers back.
    pub fn take(&mut self) {
        while let Some(entry) = self.end.poll(0) {
            assert_eq!(entry[63] >> 4, SENT, "a send of a well-behaved guest");
            self.completed += 1;
        }
        while let Some(entry) = self.end.poll(1) {
            assert_eq!(entry[63] >> 4, CAME, "a receive of a well-behaved guest");
            let word = |at: usize| u32::from_be_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            let (len, index) = (word(44) as usize, (word(60) >> 16) as u16);
            assert_eq!(index, self.received, "the receive queue is used in order");
            self.received = self.received.wrapping_add(1);
            let buffer = usize::from(index) % (usize::from(ENTRIES) - 1);
            assert!((HEADER..=BUFFER).contains(&len), "a frame of {len} bytes");
            let mut bytes = vec![0; len];
            self.end.guest.memory.read(BUFFERS + buffer * BUFFER, &mut bytes).expect("its own memory");
            self.examine(&bytes);
            let wqe = self.end.buffer(buffer);
            self.end.post_receive(0, &wqe);
        }
    }

    /// A frame of the other well-behaved guest has the bytes of its round; one that says that it is this guest's own is nobody's. All
    /// others are the attacker's.
    fn examine(&mut self, bytes: &[u8]) {
        let mac = self.end.mac;
        let (to, from): ([u8; 6], [u8; 6]) = (bytes[..6].try_into().expect("six"), bytes[6..12].try_into().expect("six"));
        assert!(to == mac || to[0] & 1 != 0, "a frame for {to:x?}");
        assert_ne!(from, mac, "a frame of its own");
        if Some(&from) == self.end.neighbors.first() {
            let round = u32::from_be_bytes(bytes[14..18].try_into().expect("four"));
            assert!(bytes == frame(from, to, round), "the bytes of round {round}");
            if to == mac {
                self.rounds.push(round);
            }
        }
    }

    /// Whether the frame of a round has come.
    pub fn has_got(&self, round: u32) -> bool {
        self.rounds.contains(&round)
    }

    /// Each send has ended, and the link is up.
    pub fn check(&mut self) {
        assert_eq!(self.completed, self.sent, "sends of a well-behaved guest");
        assert!(self.end.guest.device.link_is_up(), "the port of a well-behaved guest");
        self.rounds.clear();
    }
}
