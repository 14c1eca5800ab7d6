//! Attacks of a guest on other ports with its own device, as any program in it could try. They are management datagrams, other
//! partitions, the connections of others, and frames that no queue pair accepts.

use arbitrary::Arbitrary;
use bareverbs::platform::DmaMemory as _;

use super::guest::{BASE, FIRST_PSN, Guest, LEN, Neighbor, Path, QKEY, input};
use super::guest_objects::pick;
use super::mad::{MAD, Mad, PKEY_TABLE, PORT_INFO, PortInfo};
use super::pair::DESTINATION;
use super::subnet_manager::GID_PREFIX;

/// Indices of its queue pairs for a connection and for datagrams.
const CONNECTION: usize = 0;
const DATAGRAMS: usize = 2;
/// Where its datagrams lie.
const DATAGRAM: usize = LEN - 0x1000;
/// MAD_IFC, and the operation that checks no M_Key (Linux `MLX5_MAD_IFC_IGNORE_MKEY`).
const MAD_IFC: u16 = 0x50d;
const IGNORE_M_KEY: u32 = 1;
/// Queue keys of datagrams: that of the guests, of general management, of subnet management.
const QKEYS: [u32; 3] = [QKEY, 0x8001_0000, 0];
/// Indices within the P_Key table, at its end and beyond it.
const PKEY_INDICES: [u16; 8] = [0, 1, 2, 0x7f, 0x80, 0x3ff, 0x8000, 0xffff];
/// A queue pair that no port has.
const NO_QPN: u32 = 0xab_cdef;
/// Bit of [`Way::QueuePair`]'s P_Key index.
const FROM_MANAGER: u8 = 0x80;
/// Services of queue pairs 0 and 1.
const MANAGERS: [u32; 2] = [7, 8];
/// RTS2RTS_QP, and the bit for the queue key in its mask.
const RTS2RTS: u16 = 0x505;
const OPTIONAL_QKEY: u32 = 1 << 5;
/// Datagrams that one act sends.
const MAX_REPEATS: u8 = 32;

/// How a management datagram goes.
#[derive(Arbitrary, Debug)]
pub enum Way {
    /// By MAD_IFC, to its own port; with or without a check of the M_Key.
    Command { ignore_key: bool },
    /// From an ordinary queue pair for datagrams, to queue pair 0 or 1 of a port; with the highest bit of `pkey_index` from its own
    /// queue pair 0 or 1, as its kernel could.
    QueuePair { port: u8, general: bool, pkey_index: u8 },
}

/// A management datagram.
#[derive(Arbitrary, Debug)]
pub struct ManagementDatagram {
    pub(super) way: Way,
    pub(super) directed: bool,
    pub(super) get: bool,
    /// PortInfo, the P_Key table, or any attribute.
    pub(super) attribute: u8,
    /// The LID that it gives: of a port on the wire, or any.
    pub(super) lid: u8,
    /// The partition that it makes it a member of.
    pub(super) partition: u8,
    pub(super) m_key: u8,
    pub(super) state: u8,
}

/// Datagrams to a stranger.
#[derive(Arbitrary, Debug)]
pub struct StrangeDatagram {
    port: u8,
    /// Queue pair: one of the stranger, a special one, or none.
    queue: u8,
    pkey_index: u8,
    qkey: u8,
    /// With a global route: from this index of the GID table, to a GID that is anything.
    route: Option<(u8, u8)>,
    len: u16,
    repeats: u8,
}

/// A connection to a queue pair that is connected to somebody else, and a WRITE on it.
#[derive(Arbitrary, Debug)]
pub struct Intrusion {
    port: u8,
    psn: u8,
    pkey_index: u8,
    unreliable: bool,
    len: u16,
}

impl Guest {
    fn neighbor(&self, port: u8) -> Option<Neighbor> {
        pick(&self.neighbors, port)
    }

    /// Returns the LID of a neighbor, its own, the permissive one, one that no port has.
    fn target_lid(&self, port: u8) -> u16 {
        match port % 8 {
            0..=4 => self.neighbor(port).map_or(self.lid, |neighbor| neighbor.lid),
            5 => self.lid,
            6 => 0xffff,
            _ => u16::from(port) << 8,
        }
    }

    /// Takes its queue pair for datagrams to RTS with another P_Key index, and sends.
    fn send_datagram(&mut self, av: [u8; 48], pkey_index: u8, bytes: &[u8], repeats: u8) {
        self.send_datagram_from(DATAGRAMS, QKEY, av, pkey_index, bytes, repeats);
    }

    /// Returns the place of its queue pair 0 or 1, which is made if there is room.
    fn manager(&mut self, general: bool) -> Option<usize> {
        let [subnet, general_services] = MANAGERS;
        let service = if general { general_services } else { subnet };
        let made = self.managers.iter().find(|(of, _)| *of == service).map(|(_, qpn)| *qpn);
        let qpn = match made {
            Some(qpn) => qpn,
            None => self.create_queue_pair(service, &[])?,
        };
        if made.is_none() {
            self.managers.push((service, qpn));
        }
        self.qps.iter().position(|qp| qp.0 == qpn)
    }

    /// Takes a queue pair for datagrams to RTS, and sends.
    fn send_datagram_from(&mut self, index: usize, qkey: u32, av: [u8; 48], pkey_index: u8, bytes: &[u8], repeats: u8) {
        let Some(&(qpn, ..)) = self.qps.get(index) else { return };
        self.reset_queue_pair(qpn);
        let pkey_index = PKEY_INDICES[usize::from(pkey_index) % PKEY_INDICES.len()];
        self.connect_to(qpn, &Path { dlid: self.lid, dest_qpn: qpn, pkey_index, timeout: 0, retries: 0, psn: FIRST_PSN });
        if qkey != QKEY {
            self.command(input(RTS2RTS, 272, &[(8, qpn), (16, OPTIONAL_QKEY), (24 + 0xa8, qkey)]), 16);
        }
        let _ = self.memory.write(DATAGRAM, bytes);
        let mut body = av.to_vec();
        body.extend((bytes.len() as u32).to_be_bytes());
        body.extend(self.key.to_be_bytes());
        body.extend((BASE + DATAGRAM as u64).to_be_bytes());
        for _ in 0..=repeats % MAX_REPEATS {
            self.send(index as u8, 0x0a, 8, 0, &body);
        }
    }

    /// Returns an address vector of a datagram (`mlx5_av`).
    fn address(qkey: u32, qpn: u32, lid: u16) -> [u8; 48] {
        let mut av = [0; 48];
        av[..4].copy_from_slice(&qkey.to_be_bytes());
        av[8..12].copy_from_slice(&(1 << 31 | qpn).to_be_bytes());
        av[14..16].copy_from_slice(&lid.to_be_bytes());
        av
    }

    /// Sends a management datagram.
    pub fn send_management(&mut self, attack: &ManagementDatagram) {
        let (attribute, modifier) = match attack.attribute % 4 {
            0 | 1 => (PORT_INFO, 1),
            2 => (PKEY_TABLE, 0),
            _ => (u16::from(attack.attribute), u32::from(attack.state)),
        };
        let data = if attribute == PKEY_TABLE {
            let partition = 0x8000 | u16::from(attack.partition % 4);
            std::array::from_fn(|at| if at < 4 { partition.to_be_bytes()[at % 2] } else { 0 })
        } else {
            let prefix = if attack.partition & 4 == 0 { GID_PREFIX } else { 0xfe80 << 48 };
            let lid = self.target_lid(attack.lid);
            let (m_key, protection) = (u64::from(attack.m_key & 8), attack.m_key >> 6);
            PortInfo { m_key, protection, gid_prefix: prefix, lid, sm_lid: self.lid, state: attack.state % 5 }.bytes()
        };
        // No port has one of these M_Keys, but 0.
        let m_key = u64::from(attack.m_key & 7);
        let mad = Mad { directed: attack.directed, set: !attack.get, attribute, modifier, m_key, data };
        match attack.way {
            Way::Command { ignore_key } => {
                let mut bytes = input(MAD_IFC, 16, &[(4, if ignore_key { IGNORE_M_KEY } else { 0 }), (8, 1)]);
                bytes.extend(mad.bytes());
                self.command(bytes, 16 + MAD);
            }
            Way::QueuePair { port, general, pkey_index } => {
                let (qkey, qpn) = if general { (QKEYS[1], 1) } else { (QKEYS[2], 0) };
                let av = Self::address(qkey, qpn, self.target_lid(port));
                // Where the M_Key is 0, its kernel may manage other ports (SECURITY.md).
                if pkey_index & FROM_MANAGER == 0 || (self.open_key && !general) {
                    self.send_datagram(av, pkey_index, &mad.bytes(), 0);
                } else if let Some(index) = self.manager(general) {
                    self.send_datagram_from(index, qkey, av, pkey_index, &mad.bytes(), 0);
                }
            }
        }
    }

    /// Sends datagrams to a stranger.
    pub fn send_to_stranger(&mut self, attack: &StrangeDatagram) {
        let Some(neighbor) = self.neighbor(attack.port) else { return };
        let [connected, datagram, limited] = neighbor.qpns;
        let qpn = [limited, datagram, connected, 0, 1, 0xff_ffff, NO_QPN, limited][usize::from(attack.queue % 8)];
        let qkey = QKEYS[usize::from(attack.qkey) % QKEYS.len()];
        let mut av = Self::address(qkey, qpn, self.target_lid(attack.port));
        if let Some((index, gid)) = attack.route {
            // Bit 30 of the word at byte 28 is GRH, bits 27..20 the index of the source GID.
            av[28..32].copy_from_slice(&(1 << 30 | u32::from(index) << 20 | 64).to_be_bytes());
            av[32..48].fill(gid);
        }
        let bytes = vec![attack.len as u8; usize::from(attack.len) % 4096];
        self.send_datagram(av, attack.pkey_index, &bytes, attack.repeats);
    }

    /// Connects to a queue pair of another guest and writes.
    pub fn intrude(&mut self, attack: &Intrusion) {
        let index = if attack.unreliable { 1 } else { CONNECTION };
        let (Some(neighbor), Some(&(qpn, ..))) = (self.neighbor(attack.port), self.qps.get(index)) else { return };
        self.reset_queue_pair(qpn);
        let pkey_index = PKEY_INDICES[usize::from(attack.pkey_index) % PKEY_INDICES.len()];
        let [dest_qpn, ..] = neighbor.qpns;
        let psn = FIRST_PSN + u32::from(attack.psn);
        self.connect_to(qpn, &Path { dlid: neighbor.lid, dest_qpn, pkey_index, timeout: 6, retries: 1, psn });
        let mut body = (BASE + DESTINATION as u64).to_be_bytes().to_vec();
        body.extend(neighbor.key.to_be_bytes());
        body.extend([0; 4]);
        body.extend(u32::from(attack.len).to_be_bytes());
        body.extend(self.key.to_be_bytes());
        body.extend(BASE.to_be_bytes());
        self.send(index as u8, 0x08, 8, 0, &body);
    }
}
