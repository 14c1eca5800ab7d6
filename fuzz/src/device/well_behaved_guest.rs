//! A guest on the same wire that works correctly and expects the same of its device: registers, commands, the state of its
//! port.

use bareverbs::platform::DmaMemory as _;
use bareverbs_mlx5_spec::{HcaVportContext, Layout as _, QueryHcaVportContextOut, View};
use bareverbs_sim::DeviceConfig;

use super::guest::{BASE, Guest, LEN, Neighbor, Path, QUEUE, QUEUES, RECORDS, SERVICES, input};
use super::mad::{Mad, PORT_INFO};

/// Index of its datagram queue pair, in its own partition.
const DATAGRAM: usize = 2;
/// Index of the queue pair that is connected to its peer.
pub const CONNECTED: usize = SERVICES.len();
/// Index of the datagram queue pair in the default partition, where it is a limited member.
pub const LIMITED_DATAGRAM: usize = CONNECTED + 1;
/// Place of the default partition in a P_Key table that a manager has written.
const DEFAULT_PARTITION: u16 = 1;
/// Its completion queue, after the event queue.
const CQ: usize = QUEUES + QUEUE;
const CQ_ENTRIES: u32 = 64;
/// Where datagrams of strangers would go: the last page of its memory.
const LISTENER: usize = LEN - 0x1000;
/// Turns of its device, a microsecond each, in which a command has to be done.
const MAX_COMMAND_TURNS: usize = 16;
/// Bytes of a command's entry, and the place of status and owner in it.
const ENTRY: usize = 64;
const STATUS: usize = 32;

const QUERY_HCA_VPORT_CONTEXT: u16 = 0x762;
const QUERY_HCA_VPORT_GID: u16 = 0x764;
const QUERY_HCA_VPORT_PKEY: u16 = 0x765;
const MAD_IFC: u16 = 0x50d;
const ALLOC_PD: u16 = 0x800;
const DEALLOC_PD: u16 = 0x801;
/// Entries of the P_Key table that are compared.
const PKEYS: usize = 32;

/// The configuration of a port, as its guest reads it. Counters of violations are left out: anybody may cause them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState {
    lid: u16,
    sm_lid: u32,
    state: u32,
    physical_state: u32,
    guids: [u64; 3],
    gid: Vec<u8>,
    pkeys: Vec<u8>,
    /// M_Key, protection bits and lease period of PortInfo.
    management_key: (Vec<u8>, u8, Vec<u8>),
}

/// An entry of the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cqe {
    /// Who completed: the requester (0), the responder with a SEND (2), either with an error (13, 14).
    pub opcode: u8,
    pub qpn: u32,
    pub byte_count: u32,
}

/// The guest, its device, and what it did.
pub struct WellBehavedGuest {
    pub guest: Guest,
    identity: [u8; 16],
    m_key: u64,
    port: Option<PortState>,
    /// A protection domain that it makes and destroys in turn.
    spare_pd: u32,
    commands: u32,
    completions: u32,
}

impl WellBehavedGuest {
    /// Creates a guest whose port is not configured yet if it has a manager.
    pub fn new(config: DeviceConfig) -> Self {
        let mut guest = Guest::new(config, false);
        // No completion yet: as a driver leaves them.
        guest.memory.write(CQ, &[0xf1; CQ_ENTRIES as usize * 64]).expect("its own memory");
        guest.create_queue_pair(0, &[]).expect("room for a queue pair");
        let limited = guest.create_queue_pair(SERVICES[DATAGRAM], &[]).expect("room for a queue pair");
        let path = Path { dlid: guest.lid, dest_qpn: limited, pkey_index: DEFAULT_PARTITION, timeout: 0, retries: 0, psn: 0 };
        guest.connect_to(limited, &path);
        let mut identity = [0; 16];
        guest.device.bar_read(0, &mut identity);
        Self { guest, identity, m_key: 0, port: None, spare_pd: 0, commands: 0, completions: 0 }
    }

    /// Returns the number of its queue pair at `index`.
    pub fn qpn(&self, index: usize) -> u32 {
        self.guest.qps[index].0
    }

    /// Returns what an attacker knows of it.
    pub fn as_neighbor(&self) -> Neighbor {
        let qpns = [CONNECTED, DATAGRAM, LIMITED_DATAGRAM].map(|index| self.qpn(index));
        Neighbor { lid: self.guest.lid, qpns, key: self.guest.key }
    }

    /// Takes the present configuration of the port for the right one. `m_key` is the manager's.
    pub fn remember_port(&mut self, m_key: u64) {
        self.m_key = m_key;
        self.port = Some(self.read_port());
    }

    /// Posts receives that no datagram may use: no member of its partitions sends any.
    pub fn listen(&mut self) {
        for index in [DATAGRAM, LIMITED_DATAGRAM] {
            self.post_receive(index, LISTENER, 4096);
        }
    }

    /// Posts a receive of `len` bytes at `place` of its memory.
    pub fn post_receive(&mut self, index: usize, place: usize, len: u32) {
        // The second pointer ends the list.
        let mut wqe = [0; 32];
        for (to, from) in
            wqe.as_chunks_mut::<16>().0.iter_mut().zip([(len, self.guest.key, BASE + place as u64), (0, 0x100, 0)])
        {
            to[..4].copy_from_slice(&from.0.to_be_bytes());
            to[4..8].copy_from_slice(&from.1.to_be_bytes());
            to[8..].copy_from_slice(&from.2.to_be_bytes());
        }
        self.guest.receive(index as u8, wqe);
    }

    /// Checks registers, a command, and the configuration of the port.
    pub fn check(&mut self) {
        let mut identity = [0; 16];
        self.guest.device.bar_read(0, &mut identity);
        assert_eq!(identity, self.identity, "the initialization segment of a well-behaved guest");
        assert!(self.guest.device.link_is_up(), "the port of a well-behaved guest");
        let port = self.read_port();
        assert_eq!(Some(&port), self.port.as_ref(), "the port of a well-behaved guest");
        // A protection domain comes and goes.
        if self.commands.is_multiple_of(2) {
            self.command(input(ALLOC_PD, 16, &[]), 16);
            self.spare_pd = self.guest.number();
        } else {
            let pd = self.spare_pd;
            self.command(input(DEALLOC_PD, 16, &[(8, pd)]), 16);
        }
        self.commands += 1;
    }

    fn read_port(&mut self) -> PortState {
        let context = self.command(input(QUERY_HCA_VPORT_CONTEXT, 16, &[]), QueryHcaVportContextOut::SIZE);
        let context = View::<QueryHcaVportContextOut>::new(&context).expect("a whole output");
        let context = context.sub(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        let guids = [HcaVportContext::SYSTEM_IMAGE_GUID, HcaVportContext::NODE_GUID, HcaVportContext::PORT_GUID];
        let (lid, sm_lid) = (context.get(HcaVportContext::LID), context.get(HcaVportContext::SM_LID));
        let state = context.get(HcaVportContext::PORT_STATE);
        let physical_state = context.get(HcaVportContext::PORT_PHYSICAL_STATE);
        let guids = guids.map(|guid| context.get64(guid));
        assert_eq!(lid, u32::from(self.guest.device.lid()), "the LID of a well-behaved guest");
        let gid = self.command(input(QUERY_HCA_VPORT_GID, 16, &[]), 32).split_off(16);
        // Index 0xffff is the whole table.
        let pkeys = self.command(input(QUERY_HCA_VPORT_PKEY, 16, &[(12, 0xffff)]), 16 + 128 * 4);
        let pkeys = pkeys[16..16 + PKEYS * 4].to_vec();
        let mut request = input(MAD_IFC, 16, &[(8, 1)]);
        let get = Mad { directed: false, set: false, attribute: PORT_INFO, modifier: 1, m_key: self.m_key, data: [0; 64] };
        request.extend(get.bytes());
        let answer = self.command(request, 16 + 256).split_off(16);
        let info = Mad::data(&answer);
        let management_key = (info[..8].to_vec(), info[34] >> 6, info[26..28].to_vec());
        PortState { lid: lid as u16, sm_lid, state, physical_state, guids, gid, pkeys, management_key }
    }

    /// Executes a command, which must succeed, and returns its output.
    fn command(&mut self, bytes: Vec<u8>, out_len: usize) -> Vec<u8> {
        let opcode = u16::from_be_bytes([bytes[0], bytes[1]]);
        self.guest.command(bytes, out_len);
        let mut entry = [0; ENTRY];
        for _ in 0..MAX_COMMAND_TURNS {
            self.guest.memory.read(0, &mut entry).expect("its own memory");
            if entry[ENTRY - 1] & 1 == 0 {
                break;
            }
            self.guest.run(1000);
        }
        assert_eq!((entry[ENTRY - 1] & 1, entry[STATUS]), (0, 0), "owner and status of command {opcode:#x}");
        self.guest.output(out_len)
    }

    /// Returns the next completion, if there is one.
    pub fn poll(&mut self) -> Option<Cqe> {
        let (entry, owner) = (self.completions % CQ_ENTRIES, (self.completions / CQ_ENTRIES % 2) as u8);
        let mut cqe = [0; 64];
        self.guest.memory.read(CQ + entry as usize * 64, &mut cqe).expect("its own memory");
        if cqe[63] & 1 != owner || cqe[63] >> 4 == 0xf {
            return None;
        }
        self.completions += 1;
        // The consumer index.
        self.guest.memory.write(RECORDS, &(self.completions & 0xff_ffff).to_be_bytes()).expect("its own memory");
        let word = |at: usize| u32::from_be_bytes([cqe[at], cqe[at + 1], cqe[at + 2], cqe[at + 3]]);
        Some(Cqe { opcode: cqe[63] >> 4, qpn: word(56) & 0xff_ffff, byte_count: word(44) })
    }
}
