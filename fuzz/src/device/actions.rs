//! What a hostile guest and its network do.

use arbitrary::Arbitrary;
use bareverbs::platform::DmaMemory as _;
use bareverbs_mlx5_spec::{CmdOpcode, RegisterId};
use bareverbs_sim::packet::{
    Aeth, Bth, Deth, Grh, Lrh, Opcode, Operation, Packet, Place, Reth, SUBNET_LANE, SUBNET_QPN, Syndrome, Transport,
};

use super::attack::{Intrusion, ManagementDatagram, StrangeDatagram};
use super::guest::{BASE, Guest, LEN, QUEUES, RECORDS, SERVICES, input};
use super::guest_objects::{Change, Key, pick};
use super::request::{KeyChange, Request};

/// Queue pair of an [`Act::Packet`] that is a datagram for the agents of the port instead.
const MANAGEMENT: u8 = 0xfe;

/// One thing that happens.
#[derive(Arbitrary, Debug)]
pub enum Act {
    /// Configuration space is written.
    Config(u16, u32),
    /// BAR0 is written: page, byte of it, and four or eight bytes.
    Bar(u16, u16, u64, bool),
    /// BAR0 and configuration space are read.
    Read(u32),
    /// Host memory changes.
    Memory(u32, Vec<u8>),
    /// Time passes, in units of a microsecond.
    Advance(u16),
    /// A command: which, for whom, dwords at places in its first kilobyte, bytes of input and of output, pages listed.
    Command(u8, u8, Vec<(u8, u32)>, u16, u16, u8),
    /// A request on one of the queue pairs: opcode, flags, what follows the control segment.
    Send(u8, u8, u8, u32, Vec<u8>),
    /// A receive on one of the queue pairs.
    Receive(u8, [u8; 32]),
    /// The doorbell record of a queue pair says anything.
    Record(u8, u64),
    /// A frame that is a packet: opcode, queue pair, sequence number, keys and addresses, payload.
    Packet(u8, u8, u8, u64, u32, u16, bool),
    /// A frame that is anything.
    Frame(Vec<u8>),
    /// The cable, the slot, and the reset that a host asks for.
    Event(u8),
    /// All memory is gone after this many accesses of the device.
    Unmap(u16),
    /// The memory ends at this byte.
    Truncate(u32),
    /// The memory is there again.
    Restore,
    /// A key is made.
    Key(Key),
    /// A request changes a key.
    KeyChange(KeyChange),
    /// A request that a program could make.
    Request(Request),
    /// A receive that a program could post.
    PostReceive(u8, [(u8, u16, u16); 2]),
    /// A WQE of a shared receive queue: its key, place and length.
    PostShared(u8, u8, u16, u16),
    /// Another object is made: kind, and what of it.
    Create(u8, u8),
    /// Something that there is changes.
    Change(Change),
    /// A response to a request of a queue pair: opcode, queue pair, sequence number, syndrome, bytes.
    Response(u8, u8, u8, u8, u16),
    /// An access through the gateway in configuration space: space, address, data, whether it is written.
    Gateway(u8, u32, u32, bool),
    /// ACCESS_REG: which register, whether it is written, its first bytes.
    Register(u8, bool, [u8; 16]),
    /// A management datagram that the guest sends.
    Management(ManagementDatagram),
    /// Datagrams to another guest.
    StrangeDatagram(StrangeDatagram),
    /// A connection to a queue pair of another guest.
    Intrusion(Intrusion),
}

/// Registers of the vendor-specific capability in configuration space: control, semaphore, address, data.
const GATEWAY: [usize; 4] = [0xb4, 0xbc, 0xc0, 0xc4];
/// In the address register: data goes to the device.
const GATEWAY_WRITE: u32 = 1 << 31;

impl Guest {
    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    fn packet(&mut self, opcode: u8, which: u8, psn: u8, addr: u64, rkey: u32, len: u16, global: bool) {
        let qpn = self.qps.get(usize::from(which) % SERVICES.len()).map_or(u32::from(which), |qp| qp.0);
        let silence = Opcode { transport: Transport::Rc, operation: Operation::Acknowledge };
        let bth = Bth {
            opcode: Opcode::from_bits(opcode).unwrap_or(silence),
            solicited: false,
            migreq: true,
            pkey: 0xffff,
            dest_qpn: if which == 0xff { 0xff_ffff } else { qpn },
            ack_req: psn & 1 != 0,
            psn: psn.into(),
        };
        let dlid = if which == 0xff { 0xc001 } else { self.lid };
        let mut packet = Packet::new(Lrh { dlid, slid: self.lid, ..Lrh::default() }, bth);
        packet.link.infiniband_mut().expect("an InfiniBand packet").grh =
            global.then(|| Grh { dgid: [0xff; 16], ..Grh::default() });
        packet.transport.deth = Some(Deth { qkey: 1, source_qpn: qpn });
        packet.transport.reth = Some(Reth {
            addr: addr % (2 * LEN as u64) + BASE,
            rkey: if rkey & 1 == 0 { self.key } else { rkey },
            len: rkey >> 8,
        });
        packet.transport.invalidate = Some(rkey);
        packet.transport.xrc_srqn = Some(rkey & 0xff);
        packet.transport.payload = vec![psn; usize::from(len) % 4097].into();
        self.device.receive(&packet.encode());
    }

    /// Sends a response: of a read, an acknowledgement or NAK, of an atomic.
    fn response(&mut self, opcode: u8, which: u8, psn: u8, syndrome: u8, len: u16) {
        // RC and XRC: read responses first, middle, last, only; acknowledgement; response of an atomic.
        let kinds = [0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12].map(|kind: u8| [kind, 0xa0 | kind]);
        let bits = kinds[usize::from(opcode) % kinds.len()][usize::from(opcode >> 7)];
        let Some(opcode) = Opcode::from_bits(bits) else { return };
        let qpn = pick(&self.qps, which).map_or(0, |qp| qp.0);
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: qpn, ack_req: false, psn: psn.into() };
        let mut packet = Packet::new(Lrh { dlid: self.lid, slid: self.lid, ..Lrh::default() }, bth);
        packet.transport.aeth = Some(Aeth { syndrome: Syndrome::from_bits(syndrome), msn: u32::from(psn) + 1 });
        packet.transport.atomic_ack = Some(u64::from(len));
        packet.transport.payload = vec![psn; usize::from(len) % 4097].into();
        self.device.receive(&packet.encode());
    }

    /// Makes one access through the gateway, with the semaphore taken.
    fn gateway(&mut self, space: u8, address: u32, data: u32, write: bool) {
        const SPACES: [u32; 6] = [0x2, 0x1, 0x3, 0x7, 0xa, 0];
        let [control, semaphore, place, bytes] = GATEWAY;
        let mut set = |at: usize, value: u32| self.device.config_write(at, &value.to_le_bytes());
        set(semaphore, 1);
        set(control, SPACES[usize::from(space) % SPACES.len()]);
        set(bytes, data);
        // Semaphores and the registers of commands have low addresses; the mailbox is at 0x10_0000.
        let address = [address % 64, 0x10_0000 + address % 0x480, address % 0x4000, 0][usize::from(space >> 6)];
        set(place, address | if write { GATEWAY_WRITE } else { 0 });
        let mut read = [0; 4];
        self.device.config_read(bytes, &mut read);
    }

    /// Sends a MAD to the agents of the port: class, method and attribute that they know, or any; hops and data that are
    /// anything.
    fn datagram(&mut self, psn: u8, addr: u64, rkey: u32, len: u16) {
        let [class, attribute, ..] = rkey.to_be_bytes();
        let mut mad = vec![0; 256];
        mad[..4].copy_from_slice(&[1, [1, 0x81, 4, class][usize::from(class % 4)], 1, 1 + (psn >> 1 & 1)]);
        mad[6..8].copy_from_slice(&addr.to_be_bytes()[..2]);
        mad[17] = [0x15, 0x16, 0x12, 0x1d, attribute][usize::from(attribute % 5)];
        mad[20..24].copy_from_slice(&u32::from(len >> 12).to_be_bytes());
        for (at, byte) in mad.iter_mut().enumerate().skip(64) {
            *byte = addr.rotate_left(at as u32 * 11 + u32::from(len)) as u8;
        }
        let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let dest_qpn = u32::from(psn & 1);
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn, ack_req: false, psn: 0 };
        let lid = self.device.lid();
        // On a managed subnet, what comes on the lane of subnet management comes from the manager, which is no attacker.
        let vl = if dest_qpn == SUBNET_QPN && !self.device.config().managed { SUBNET_LANE } else { 0 };
        let lrh = Lrh { vl, dlid: if psn & 4 == 0 { lid } else { 0xffff }, slid: lid, ..Lrh::default() };
        let mut packet = Packet::new(lrh, bth);
        packet.transport.deth = Some(Deth { qkey: 0x8001_0000, source_qpn: dest_qpn });
        packet.transport.payload = mad.into();
        self.device.receive(&packet.encode());
    }

    /// Does it.
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Config(at, value) => self.device.config_write(usize::from(at) % 4096, &value.to_le_bytes()),
            Act::Bar(page, at, value, wide) => {
                let offset = u64::from(page % 16) * 4096 + u64::from(at % 4096);
                let bytes = value.to_be_bytes();
                self.device.bar_write(offset, if wide { &bytes } else { &bytes[..4] });
            }
            Act::Read(at) => {
                let mut bytes = [0; 8];
                self.device.bar_read(at.into(), &mut bytes);
                self.device.config_read(at as usize % 4096, &mut bytes[..4]);
            }
            Act::Memory(at, bytes) => {
                let at = at as usize % LEN;
                let _ = self.memory.write(at, &bytes[..bytes.len().min(LEN - at)]);
            }
            Act::Advance(micros) => self.run(u64::from(micros) * 1000),
            Act::Command(which, uid, dwords, len, out_len, pages) => {
                let opcode = CmdOpcode::ALL[usize::from(which) % CmdOpcode::ALL.len()].code() as u16;
                let len = 16 + usize::from(len) % 600;
                let mut bytes = input(opcode, len, &[]);
                bytes[3] = uid % 4;
                for (at, value) in dwords {
                    let at = 4 + usize::from(at) * 4;
                    if let Some(place) = bytes.get_mut(at..at + 4) {
                        place.copy_from_slice(&value.to_be_bytes());
                    }
                }
                for page in 0..u64::from(pages) {
                    bytes.extend((BASE + QUEUES as u64 + page * 4096).to_be_bytes());
                }
                self.command(bytes, 8 + usize::from(out_len) % 5000);
            }
            Act::Send(which, opcode, flags, immediate, body) => self.send(which, opcode, flags, immediate, &body),
            Act::Receive(which, wqe) => self.receive(which, wqe),
            Act::Record(which, value) => {
                let at = RECORDS + usize::from(which) % 6 * 64;
                let _ = self.memory.write(at, &value.to_be_bytes());
            }
            Act::Packet(_, MANAGEMENT, psn, addr, rkey, len, _) => self.datagram(psn, addr, rkey, len),
            Act::Packet(opcode, which, psn, addr, rkey, len, global) => {
                self.packet(opcode, which, psn, addr, rkey, len, global);
            }
            Act::Frame(bytes) => self.device.receive(&bytes),
            Act::Unmap(accesses) => self.reachable.unmap_after(accesses.into()),
            Act::Truncate(end) => self.reachable.truncate(BASE + u64::from(end) % LEN as u64),
            Act::Restore => self.reachable.restore(),
            Act::Key(key) => self.create_key(&key),
            Act::KeyChange(change) => self.change_key(&change),
            Act::Request(request) => self.request(&request),
            Act::PostReceive(which, pieces) => self.post_receive(which, pieces),
            Act::PostShared(which, key, at, len) => self.post_shared(which, key, at, len),
            Act::Create(kind, what) => self.create(kind, what),
            Act::Change(change) => self.change(&change),
            Act::Response(opcode, which, psn, syndrome, len) => self.response(opcode, which, psn, syndrome, len),
            Act::Gateway(space, address, data, write) => self.gateway(space, address, data, write),
            Act::Register(which, write, bytes) => {
                let register = RegisterId::ALL[usize::from(which) % RegisterId::ALL.len()].code();
                let mut input = input(0x805, 16 + 256, &[(4, u32::from(!write)), (8, register)]);
                input[16..32].copy_from_slice(&bytes);
                self.command(input, 16 + 256);
            }
            Act::Management(attack) => self.send_management(&attack),
            Act::StrangeDatagram(attack) => self.send_to_stranger(&attack),
            Act::Intrusion(attack) => self.intrude(&attack),
            Act::Event(what) => match what % 8 {
                0 => self.device.reset(),
                1 => self.device.set_link(false),
                2 => self.device.set_link(true),
                3 => self.device.set_removed(true),
                4 => self.device.set_removed(false),
                _ => self.device.enable_function(),
            },
        }
    }
}
