//! What a hostile guest does with its queues for frames and its flow tables.

use arbitrary::Arbitrary;
use bareverbs::platform::DmaMemory as _;

use super::end::{FrameEnd, Leading, SOURCE, segment};
use crate::device;
use crate::device::guest::{BASE, LEN, input};

/// A frame, or many, that a WQE sends.
#[derive(Arbitrary, Debug)]
pub struct Send {
    /// Send queue.
    pub which: u8,
    /// SEND, TSO, NOP, anything.
    pub opcode: u8,
    /// Asks for a completion, and for checksums.
    pub flags: u8,
    /// Bytes of a segment.
    pub mss: u16,
    /// Destination: a neighbor, broadcast, its own address, a multicast group.
    pub to: u8,
    /// Headers behind the addresses, and how many bytes the WQE says that they have.
    pub headers: Vec<u8>,
    pub size: Option<u16>,
    /// Key, place and length of each piece.
    pub pieces: Vec<(u8, u16, u16)>,
    /// Segments that the WQE says that it has, if not those that it has.
    pub segments: Option<u8>,
}

/// What is made, ended or modified.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Domain,
    Tis,
    CompletionQueue,
    SendQueue,
    ReceiveQueue,
    QueueTable,
    Tir,
    Table,
    Counter,
}

/// One thing that happens.
#[derive(Arbitrary, Debug)]
pub enum Act {
    /// Anything that a guest can do to its device.
    Device(device::Act),
    /// A WQE of a send queue.
    Send(Send),
    /// Bytes behind the control segment of a WQE: which queue, opcode, flags.
    Wqe(u8, u8, u8, Vec<u8>),
    /// A receive WQE: its pieces.
    Receive(u8, Vec<(u8, u16, u16)>),
    /// The doorbell record of a send queue, or of a receive queue, says anything.
    Record(bool, u8, u32),
    /// A doorbell for any queue.
    Ring(u32, u32),
    /// Something is made, of these.
    Make(Kind, [u8; 4]),
    /// Something ends.
    End(Kind, u8),
    /// A send queue, or a receive queue, goes from one state to another.
    State(bool, u8, u8, u8),
    /// A group of rules: table, first, last, what is enabled, mask.
    Group(u8, u8, u8, u8, Vec<u8>),
    /// A rule: group, place, action, value, destinations.
    Rule(u8, u8, u8, Vec<u8>, Vec<(bool, u8)>, bool),
    /// A group or a rule ends.
    Remove(bool, u8),
    /// Another table is the root.
    Root(u8),
    /// The table behind another one.
    Miss(u8, u8),
    /// The list of a table of queues changes.
    Queues(u8, Vec<u8>),
    /// Which frames the port takes: field select, flags, addresses.
    Filter(u32, u8, Vec<[u8; 6]>),
    /// The entries of a completion queue are taken.
    Poll(u8),
    /// What is sent later has these bytes.
    Fill(u16, Vec<u8>),
}

fn pick<T: Copy>(list: &[T], which: u8) -> Option<T> {
    list.get(usize::from(which) % list.len().max(1)).copied()
}

/// Opcodes of WQEs.
const OPCODES: [u8; 3] = [0x0a, 0x0e, 0x00];
/// Destroys each kind, by its place.
const DESTROY: [u16; 9] = [0x817, 0x914, 0x401, 0x906, 0x90a, 0x918, 0x902, 0x931, 0x93a];

impl FrameEnd {
    fn number(&self, kind: Kind, which: u8) -> u32 {
        let queues = |list: &[super::end::Queue]| pick(list, which).map(|queue| queue.number);
        match kind {
            Kind::Domain => pick(&self.domains, which),
            Kind::Tis => pick(&self.tiss, which),
            Kind::CompletionQueue => pick(&self.completions, which).map(|queue| queue.number),
            Kind::SendQueue => queues(&self.send_queues),
            Kind::ReceiveQueue => queues(&self.receive_queues),
            Kind::QueueTable => pick(&self.queue_tables, which),
            Kind::Tir => pick(&self.tirs, which),
            Kind::Table => pick(&self.tables, which),
            Kind::Counter => pick(&self.counters, which),
        }
        // Of nothing that there is.
        .unwrap_or_else(|| which.into())
    }

    fn make(&mut self, kind: Kind, [a, b, c, d]: [u8; 4]) {
        match kind {
            Kind::Domain => {
                let made = self.create(input(0x816, 16, &[]));
                self.domains.extend(made);
            }
            Kind::Tis => self.create_tis(self.number(Kind::Domain, a)),
            Kind::CompletionQueue => self.create_cq(u32::from(a & 7)),
            Kind::SendQueue => {
                let tis = (b & 1 == 0).then(|| self.number(Kind::Tis, b >> 1));
                self.create_send_queue(self.number(Kind::CompletionQueue, a), tis, u32::from(c & 7), u32::from(d & 3));
            }
            Kind::ReceiveQueue => {
                self.create_receive_queue(
                    self.number(Kind::CompletionQueue, a),
                    u32::from(b & 7),
                    u32::from(c % 13),
                    d & 1 != 0,
                );
            }
            Kind::QueueTable => {
                let queues: Vec<u32> = [b, c, d].map(|which| self.number(Kind::ReceiveQueue, which)).to_vec();
                self.create_queue_table(&queues[..usize::from(a) % 4]);
            }
            Kind::Tir => {
                let direct = a & 1 == 0;
                let to = self.number(if direct { Kind::ReceiveQueue } else { Kind::QueueTable }, a >> 1);
                let (function, loopback) = (u32::from(b & 3), u32::from(b >> 2 & 3));
                self.create_tir(&Leading { direct, to, function, fields: u32::from(c) | u32::from(d) << 24, loopback });
            }
            Kind::Table => {
                let miss = (b & 1 != 0).then(|| self.number(Kind::Table, b >> 1));
                self.create_table(u32::from(a), u32::from(c % 18), miss);
            }
            Kind::Counter => self.allocate_counter(),
        }
    }

    fn end(&mut self, kind: Kind, which: u8) {
        let number = self.number(kind, which);
        let at = if kind == Kind::Table { 20 } else { 8 };
        let len = if kind == Kind::Table { 64 } else { 16 };
        self.guest.command(input(DESTROY[kind as usize], len, &[(at, number)]), 16);
    }

    fn pieces(&self, pieces: &[(u8, u16, u16)]) -> Vec<u8> {
        let piece = |(key, at, len): &(u8, u16, u16)| {
            // Long ones too.
            let len = u32::from(*len) << if key & 0x40 == 0 { 0 } else { 4 };
            segment(len, self.guest.key(key & 0xbf), BASE + (SOURCE as u64 + u64::from(*at) * 4) % LEN as u64)
        };
        pieces.iter().take(8).flat_map(piece).collect()
    }

    fn addresses(&self, to: u8) -> [u8; 12] {
        let destination = match to & 3 {
            0 => pick(&self.neighbors, to >> 2).unwrap_or_default(),
            1 => [0xff; 6],
            2 => self.mac,
            _ => [1, 0, 0x5e, 0, 0, to],
        };
        let source = if to & 0x80 == 0 { self.mac } else { pick(&self.neighbors, to >> 3).unwrap_or_default() };
        let mut addresses = [0; 12];
        addresses[..6].copy_from_slice(&destination);
        addresses[6..].copy_from_slice(&source);
        addresses
    }

    fn send(&mut self, send: &Send) {
        let addresses = self.addresses(send.to);
        let mut headers = addresses.to_vec();
        headers.extend(send.headers.iter().take(200));
        let mut body = vec![0; 12];
        body[4] = send.flags & 0xc0;
        body[6..8].copy_from_slice(&send.mss.to_be_bytes());
        if send.headers.is_empty() {
            // The addresses are in memory.
            let _ = self.guest.memory.write(SOURCE, &addresses);
            body.extend([0; 4]);
        } else {
            body.extend(send.size.unwrap_or(headers.len() as u16).to_be_bytes());
            body.extend(headers);
            body.resize(body.len().next_multiple_of(16), 0);
        }
        body.extend(self.pieces(&send.pieces));
        let segments = send.segments.unwrap_or((1 + body.len().div_ceil(16)) as u8);
        let opcode = pick(&OPCODES, send.opcode & 0x7f).filter(|_| send.opcode & 0x80 == 0).unwrap_or(send.opcode);
        let which = usize::from(send.which) % self.send_queues.len().max(1);
        self.post_send(which, opcode, segments, send.flags & 0x0f, &body);
    }

    /// Does it.
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Device(act) => self.guest.act(act),
            Act::Send(send) => self.send(&send),
            Act::Wqe(which, opcode, flags, body) => {
                let body = &body[..body.len().min(1008)];
                let which = usize::from(which) % self.send_queues.len().max(1);
                self.post_send(which, opcode, (1 + body.len().div_ceil(16)) as u8, flags, body);
            }
            Act::Receive(which, pieces) => {
                let mut wqe = self.pieces(&pieces);
                wqe.extend(segment(0, 0x100, 0));
                let which = usize::from(which) % self.receive_queues.len().max(1);
                self.post_receive(which, &wqe);
            }
            Act::Record(sends, which, value) => self.set_record(sends, which, value),
            Act::Ring(high, low) => {
                let doorbell = u64::from(high) << 32 | u64::from(low);
                self.guest.device.bar_write(u64::from(self.guest.uar) * 4096 + 0x800, &doorbell.to_be_bytes());
            }
            Act::Make(kind, of) => self.make(kind, of),
            Act::End(kind, which) => self.end(kind, which),
            Act::State(sends, which, from, to) => {
                let (from, to) = (u32::from(from & 3), u32::from(to & 3));
                if sends {
                    self.set_send_state(self.number(Kind::SendQueue, which), from, to);
                } else {
                    self.set_receive_state(self.number(Kind::ReceiveQueue, which), from, to);
                }
            }
            Act::Group(table, first, last, enable, mask) => {
                let table = self.number(Kind::Table, table);
                self.create_group(table, (first.into(), last.into()), enable.into(), &mask);
            }
            Act::Rule(group, index, action, value, destinations, counted) => {
                let (table, group) = pick(&self.groups, group).unwrap_or((1, 1));
                let to = |(is_table, which): &(bool, u8)| {
                    if *is_table { (1, self.number(Kind::Table, *which)) } else { (2, self.number(Kind::Tir, *which)) }
                };
                let destinations: Vec<(u32, u32)> = destinations.iter().take(300).map(to).collect();
                let counters: Vec<u32> = self.counters.iter().copied().take(usize::from(counted)).collect();
                self.set_rule(table, group, index.into(), u32::from(action & 15), &value, &destinations, &counters);
            }
            Act::Remove(is_group, which) => {
                if is_group {
                    let Some((table, group)) = pick(&self.groups, which) else { return };
                    self.guest.command(input(0x934, 64, &[(20, table), (24, group)]), 16);
                } else {
                    let Some((table, index)) = pick(&self.rules, which) else { return };
                    self.guest.command(input(0x938, 64, &[(20, table), (32, index)]), 16);
                }
            }
            Act::Root(which) => self.set_root(self.number(Kind::Table, which)),
            Act::Miss(which, miss) => {
                let (table, miss) = (self.number(Kind::Table, which), self.number(Kind::Table, miss));
                self.guest.command(input(0x93c, 64, &[(12, 1), (20, table), (24, 1 << 24), (28, miss)]), 16);
            }
            Act::Queues(which, queues) => {
                let table = self.number(Kind::QueueTable, which);
                let list: Vec<u32> = queues.iter().map(|which| self.number(Kind::ReceiveQueue, *which)).collect();
                let len = list.len() as u32;
                // The bit mask, and in the context the numbers of queues.
                let mut bytes = input(0x917, 272, &[(8, table), (20, 1), (32 + 20, len), (32 + 24, len)]);
                bytes.extend(list.iter().flat_map(|rqn| rqn.to_be_bytes()));
                self.guest.command(bytes, 16);
            }
            Act::Filter(select, flags, addresses) => {
                let count = addresses.len() as u32;
                let flags = u32::from(flags);
                let mut bytes =
                    input(0x755, 512, &[(12, select & 0x7f), (256 + 240, flags << 29 | (flags >> 3 & 7) << 24 | count)]);
                bytes.extend(addresses.iter().flat_map(|address| [&[0; 2][..], address].concat()));
                self.guest.command(bytes, 16);
            }
            Act::Poll(which) => {
                let which = usize::from(which) % self.completions.len().max(1);
                while self.poll(which).is_some() {}
            }
            Act::Fill(at, bytes) => {
                let at = SOURCE + usize::from(at) % 0x4000;
                let _ = self.guest.memory.write(at, &bytes[..bytes.len().min(0x1000)]);
            }
        }
    }
}
