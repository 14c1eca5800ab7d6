//! Two well-behaved guests that exchange messages over the wire, and check each byte and each completion.

use bareverbs::platform::DmaMemory as _;

use super::guest::{BASE, FIRST_PSN, LEN, Path};
use super::well_behaved_guest::{CONNECTED, Cqe, WellBehavedGuest};

/// Where the guests write from, where the peer's WRITE goes and where its SEND goes.
const SOURCE: usize = LEN - 0x4000;
pub const DESTINATION: usize = LEN - 0x3000;
const INBOX: usize = LEN - 0x2000;
/// Bytes of a WRITE and of a SEND: three packets and one.
const WRITE_LEN: usize = 2500;
const SEND_LEN: usize = 600;
/// 65 µs: short, for wires that lose frames.
const TIMEOUT: u8 = 4;
/// Retries without answer; without receive, without end.
const RETRIES: u8 = 7;
/// Opcodes of requests, and of completions.
const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;
const REQUESTER: u8 = 0;
const RESPONDER: u8 = 2;
/// A completion is wanted.
const SIGNALED: u8 = 8;

/// The guests. The first writes and receives, the second sends.
pub struct Pair {
    pub guests: [WellBehavedGuest; 2],
    round: u32,
    completions: [Vec<Cqe>; 2],
}

/// Returns bytes that are others in each round.
fn pattern(round: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at ^ at >> 8).wrapping_add(round.wrapping_mul(7)) as u8).collect()
}

impl Pair {
    /// Connects the guests with each other, with the P_Key at index 0.
    pub fn new(mut guests: [WellBehavedGuest; 2]) -> Self {
        let ends = guests.each_ref().map(|guest| (guest.guest.lid, guest.qpn(CONNECTED)));
        for (guest, (own, peer)) in guests.iter_mut().zip([(ends[0], ends[1]), (ends[1], ends[0])]) {
            let path =
                Path { dlid: peer.0, dest_qpn: peer.1, pkey_index: 0, timeout: TIMEOUT, retries: RETRIES, psn: FIRST_PSN };
            guest.guest.connect_to(own.1, &path);
            assert_eq!(guest.guest.status(), 0, "two guests are connected");
        }
        Self { guests, round: 0, completions: Default::default() }
    }

    /// Posts the messages of a round: a WRITE one way and a SEND the other.
    pub fn post(&mut self) {
        self.round += 1;
        let [first, second] = &mut self.guests;
        first.post_receive(CONNECTED, INBOX, 0x1000);
        let peer_key = second.guest.key;
        let write = pattern(self.round, WRITE_LEN);
        let mut remote = (BASE + DESTINATION as u64).to_be_bytes().to_vec();
        remote.extend(peer_key.to_be_bytes());
        remote.extend([0; 4]);
        Self::post_message(first, WRITE, &remote, &write);
        Self::post_message(second, SEND, &[], &pattern(self.round + 1, SEND_LEN));
    }

    /// Posts a request with these bytes; `remote` is its remote address segment.
    fn post_message(guest: &mut WellBehavedGuest, opcode: u8, remote: &[u8], bytes: &[u8]) {
        guest.guest.memory.write(SOURCE, bytes).expect("its own memory");
        let mut body = remote.to_vec();
        body.extend((bytes.len() as u32).to_be_bytes());
        body.extend(guest.guest.key.to_be_bytes());
        body.extend((BASE + SOURCE as u64).to_be_bytes());
        guest.guest.send(CONNECTED as u8, opcode, SIGNALED, 0, &body);
    }

    /// Takes completions. Whether all of the round are there.
    pub fn poll(&mut self) -> bool {
        for (guest, completions) in self.guests.iter_mut().zip(&mut self.completions) {
            completions.extend(std::iter::from_fn(|| guest.poll()));
        }
        self.completions.each_ref().map(Vec::len) >= [2, 1] && !self.completions[1].is_empty()
    }

    /// Checks the messages of the round: the completions are those of the pair and no others, and each byte has arrived.
    pub fn check_messages(&mut self) {
        let [first, second] = &self.guests;
        let [own, peer] = [first.qpn(CONNECTED), second.qpn(CONNECTED)];
        let [mut at_first, at_second] = std::mem::take(&mut self.completions);
        at_first.sort();
        let kinds = |found: &[Cqe]| found.iter().map(|cqe| (cqe.opcode, cqe.qpn)).collect::<Vec<_>>();
        assert_eq!(kinds(&at_first), [(REQUESTER, own), (RESPONDER, own)], "completions of {}: {at_first:x?}", self.round);
        assert_eq!(kinds(&at_second), [(REQUESTER, peer)], "completions of {}: {at_second:x?}", self.round);
        assert_eq!(at_first[1].byte_count as usize, SEND_LEN, "length of a SEND");
        for (guest, place, sent) in
            [(second, DESTINATION, pattern(self.round, WRITE_LEN)), (first, INBOX, pattern(self.round + 1, SEND_LEN))]
        {
            let mut arrived = vec![0; sent.len()];
            guest.guest.memory.read(place, &mut arrived).expect("its own memory");
            assert!(arrived == sent, "bytes of round {} between well-behaved guests", self.round);
        }
    }

    /// Checks that nothing has arrived but what the guests sent, and what each guest checks.
    pub fn check(&mut self) {
        for guest in &mut self.guests {
            let stray = guest.poll();
            assert_eq!(stray, None, "a completion of no request");
            guest.check();
        }
    }
}
