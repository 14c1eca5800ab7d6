//! The subnet manager of a managed subnet: gives each port its LID, P_Keys and M_Key by subnet management packets over the
//! wire.

use bareverbs_sim::Device;
use bareverbs_sim::packet::{
    Bth, Deth, Lrh, Opcode, Operation, PERMISSIVE_LID, Packet, Place, SUBNET_LANE, SUBNET_QPN, Transport,
};

use super::guest::Guest;
use super::mad::{Mad, PKEY_TABLE, PORT_INFO, PortInfo};

/// LID of the manager, at a port that is not simulated.
pub const MANAGER_LID: u16 = 0xbf00;
/// GID prefix of the subnet (IBTA 4.1.1: not the link-local one).
pub const GID_PREFIX: u64 = 0xfec0_0000_0000_0007;
/// M_Key of a protected subnet.
pub const M_KEY: u64 = 0x7b31_95c4_e02d_a86f;
/// `M_KeyProtectBits` of a protected subnet: without the key nothing is read or written (IBTA 14.2.4.1).
const PROTECTED: u8 = 2;
/// The default partition, of which every port is a limited member.
pub const DEFAULT_LIMITED: u16 = 0x7fff;

const ARMED: u8 = 3;
const ACTIVE: u8 = 4;

/// The manager, with the M_Key that it gives to ports.
#[derive(Clone, Copy, Debug)]
pub struct SubnetManager {
    pub m_key: u64,
}

impl SubnetManager {
    /// Makes a port active, with its LID and as a full member of `partition`.
    pub fn configure(&self, guest: &mut Guest, partition: u16) {
        let info = PortInfo {
            m_key: self.m_key,
            protection: if self.m_key == 0 { 0 } else { PROTECTED },
            gid_prefix: GID_PREFIX,
            lid: guest.lid,
            sm_lid: MANAGER_LID,
            state: ARMED,
        };
        let mut pkeys = [0; 64];
        pkeys[..2].copy_from_slice(&(0x8000 | partition).to_be_bytes());
        pkeys[2..4].copy_from_slice(&DEFAULT_LIMITED.to_be_bytes());
        for (attribute, modifier, m_key, data) in [
            (PKEY_TABLE, 0, 0, pkeys),
            (PORT_INFO, 1, 0, info.bytes()),
            (PORT_INFO, 1, self.m_key, PortInfo { state: ACTIVE, ..info }.bytes()),
        ] {
            let mad = Mad { directed: true, set: true, attribute, modifier, m_key, data };
            Self::send(&mut guest.device, &mad);
            guest.run(1000);
        }
        assert!(guest.device.link_is_up() && guest.device.lid() == guest.lid, "a port was not configured");
    }

    /// Sends a packet to the port at the other end of the cable.
    fn send(device: &mut Device, mad: &Mad) {
        let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let lrh = Lrh { vl: SUBNET_LANE, dlid: PERMISSIVE_LID, slid: MANAGER_LID, ..Lrh::default() };
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: SUBNET_QPN, ack_req: false, psn: 0 };
        let mut packet = Packet::new(lrh, bth);
        packet.transport.deth = Some(Deth { qkey: 0, source_qpn: SUBNET_QPN });
        packet.transport.payload = mad.bytes().to_vec().into();
        device.receive(&packet.encode());
    }
}
