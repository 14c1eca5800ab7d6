//! The port of a function without virtual ports (`ib_virt`): its subnet management agent is asked, by MAD_IFC.
//!
//! Linux does the same (`mlx5_use_mad_ifc` of `main.c`, `mad.c` of its `mlx5_ib`).

use core::time::Duration;

use bareverbs::platform::{Clock as _, Platform};
use bareverbs::{Gid, Guid, Lid, PhysState, PortAttr};
use bareverbs_mlx5_spec::{
    Buffer, CmdOpcode, GUIDS_PER_BLOCK, Layout, MAD_BUSY, MadIfcIn, MadIfcOut, NodeInfo, PKEYS_PER_BLOCK, PortInfo,
    SMP_BASE_VERSION, SMP_CLASS_VERSION, SMP_GET, SMP_GET_RESP, SMP_LID_ROUTED, Smp, Sub, SubnetAttribute, View, mad_ifc,
};

use super::caps::PORT;
use super::port::{check_entry, mtu_of_code, pick, state_of};
use crate::driver::Driver;
use crate::error::Error;

/// Megabits a second of one lane for each bit of [`PortInfo::LINK_SPEED_ACTIVE`]: SDR, DDR, QDR.
const LANE_MBPS: [u32; 3] = [2_500, 5_000, 10_000];
/// Megabits a second of one lane for each bit of [`PortInfo::LINK_SPEED_EXT_ACTIVE`]: FDR, EDR, HDR, NDR.
const EXTENDED_LANE_MBPS: [u32; 4] = [14_000, 25_000, 50_000, 100_000];
/// Lanes for each bit of [`PortInfo::LINK_WIDTH_ACTIVE`].
const LANES: [u8; 5] = [1, 4, 8, 12, 2];

/// Time until an agent that is busy is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How often it is asked again: for one second. IBTA leaves both to who asks (13.4.7).
const BUSY_RETRIES: u32 = 50;

type Answer = Buffer<MadIfcOut>;

impl<P: Platform> Driver<P> {
    /// Asks the agent of the port for an attribute.
    fn smp(&mut self, attribute: SubnetAttribute, modifier: u32) -> Result<Answer, Error> {
        let mut input = Buffer::<MadIfcIn>::zeroed();
        let mut view = input.view_mut();
        // Nobody sent this packet, to whom a trap about a wrong key could go (Linux `mlx5_MAD_IFC`).
        view.set(MadIfcIn::OP_MOD, mad_ifc::IGNORE_M_KEY | mad_ifc::IGNORE_B_KEY).set(MadIfcIn::PORT, u32::from(PORT));
        view.sub(MadIfcIn::MAD.as_sub::<Smp>())
            .set(Smp::BASE_VERSION, SMP_BASE_VERSION)
            .set(Smp::MGMT_CLASS, SMP_LID_ROUTED)
            .set(Smp::CLASS_VERSION, SMP_CLASS_VERSION)
            .set(Smp::METHOD, SMP_GET)
            .set(Smp::ATTRIBUTE, attribute.code())
            .set(Smp::MODIFIER, modifier);
        let mut retries = BUSY_RETRIES;
        loop {
            let mut output = Answer::zeroed();
            self.commands.execute(CmdOpcode::MadIfc, input.as_bytes(), output.as_bytes_mut(), MadIfcOut::SIZE)?;
            let answer = output.view().sub(MadIfcOut::RESPONSE_MAD_PACKET.as_sub::<Smp>());
            for (field, expected) in [(Smp::METHOD, SMP_GET_RESP), (Smp::ATTRIBUTE, attribute.code())] {
                let value = answer.get(field);
                if value != expected {
                    return Err(Error::BadAnswer { opcode: CmdOpcode::MadIfc.code() as u16, value });
                }
            }
            let status = answer.get(Smp::STATUS) as u16;
            match (status, retries.checked_sub(1)) {
                (0, _) => return Ok(output),
                (status, Some(left)) if status & MAD_BUSY != 0 => retries = left,
                (status, _) => return Err(Error::MadStatus { attribute: attribute.code() as u16, status }),
            }
            let clock = &self.commands.machine.clock;
            let end = clock.now().after(BUSY_PAUSE);
            while clock.now() < end {
                clock.relax(end);
            }
        }
    }

    /// Queries the GUIDs of the node and of the system that it is part of. The capacity of its partition tables is that of each port
    /// from now on (IBTA volume 1, 14.2.5.3, PartitionCap).
    pub(super) fn query_node_by_smp(&mut self) -> Result<[Guid; 2], Error> {
        let node = self.smp(SubnetAttribute::NodeInfo, 0)?;
        let node = attribute::<NodeInfo>(&node);
        self.caps.pkeys = node.get(NodeInfo::PARTITION_CAP) as u16;
        Ok([NodeInfo::NODE_GUID, NodeInfo::SYSTEM_IMAGE_GUID].map(|field| Guid(node.get64(field))))
    }

    #[inline(never)]
    pub(super) fn query_port_by_smp(&mut self) -> Result<PortAttr, Error> {
        let node = self.smp(SubnetAttribute::NodeInfo, 0)?;
        let port_guid = Guid(attribute::<NodeInfo>(&node).get64(NodeInfo::PORT_GUID));
        let info = self.smp(SubnetAttribute::PortInfo, PORT.into())?;
        let info = attribute::<PortInfo>(&info);
        let lanes = pick(&LANES, info.get(PortInfo::LINK_WIDTH_ACTIVE));
        let lane = match info.get(PortInfo::LINK_SPEED_EXT_ACTIVE) {
            0 => pick(&LANE_MBPS, info.get(PortInfo::LINK_SPEED_ACTIVE)),
            extended => pick(&EXTENDED_LANE_MBPS, extended),
        };
        Ok(PortAttr {
            state: state_of(info.get(PortInfo::PORT_STATE)),
            phys_state: PhysState::from_encoding(info.get(PortInfo::PORT_PHYSICAL_STATE) as u8),
            max_mtu: mtu_of_code(info.get(PortInfo::MTU_CAP)),
            active_mtu: mtu_of_code(info.get(PortInfo::NEIGHBOR_MTU)),
            gid_tbl_len: info.get(PortInfo::GUID_CAP) as u16,
            pkey_tbl_len: self.caps.pkeys,
            lid: Lid::new(info.get(PortInfo::LID) as u16),
            sm_lid: Lid::new(info.get(PortInfo::SM_LID) as u16),
            lmc: info.get(PortInfo::LMC) as u8,
            active_width: lanes,
            active_speed_gbps: lane.saturating_mul(u32::from(lanes)) / 1000,
            port_guid,
            cap_mask: info.get(PortInfo::CAPABILITY_MASK),
            // PortInfo does not tell. A function without virtual ports answers zeros where Linux looks for it.
            grh_required: false,
            ..PortAttr::default()
        })
    }

    /// Queries an entry of a port's GID table, which PortInfo has the length of (GUIDCap): the prefix of the subnet, and a GUID of the
    /// port.
    #[inline(never)]
    pub(super) fn query_gid_by_smp(&mut self, index: u16) -> Result<Gid, Error> {
        let info = self.smp(SubnetAttribute::PortInfo, PORT.into())?;
        let info = attribute::<PortInfo>(&info);
        check_entry(index, info.get(PortInfo::GUID_CAP) as u16)?;
        let prefix = info.get64(PortInfo::GID_PREFIX);
        let (block, at) = (usize::from(index) / GUIDS_PER_BLOCK, usize::from(index) % GUIDS_PER_BLOCK);
        let guids = self.smp(SubnetAttribute::GuidInfo, block as u32)?;
        let guid = entry(&guids, at).map_or(0, u64::from_be_bytes);
        Ok(Gid((u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes()))
    }

    pub(super) fn query_pkey_by_smp(&mut self, index: u16) -> Result<u16, Error> {
        let (block, at) = (usize::from(index) / PKEYS_PER_BLOCK, usize::from(index) % PKEYS_PER_BLOCK);
        let pkeys = self.smp(SubnetAttribute::PKeyTable, block as u32)?;
        Ok(entry(&pkeys, at).map_or(0, u16::from_be_bytes))
    }
}

fn attribute<L: Layout>(answer: &Answer) -> View<'_, L> {
    const PACKET: Sub<MadIfcOut, Smp> = MadIfcOut::RESPONSE_MAD_PACKET.as_sub();
    answer.view().sub(PACKET.sub(Smp::DATA.as_sub::<L>()))
}

/// Returns entry `at` of an attribute that is a table.
fn entry<const N: usize>(answer: &Answer, at: usize) -> Option<[u8; N]> {
    let packet = answer.view().sub(MadIfcOut::RESPONSE_MAD_PACKET.as_sub::<Smp>());
    packet.bytes(Smp::DATA).as_chunks().0.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::mock::{MockPlatform, respond, started};

    #[test]
    fn an_answer_to_another_question_is_refused() {
        // NodeInfo is 0x11, GetResp 0x81 (IBTA 14.2.5, 13.4.5).
        for (method, attribute, wrong) in
            [(0x81, 0x11, None), (1, 0x11, Some(1)), (0, 0x11, Some(0)), (0x81, 0x15, Some(0x15)), (0x81, 0x1100, Some(0x1100))]
        {
            let (mut driver, shared) = started();
            shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, _| {
                if at == 0x18 {
                    // The packet is the first mailbox of the output: method at 3, attribute at 16.
                    memory[4096 + 3] = method;
                    memory[4096 + 16..4096 + 18].copy_from_slice(&u16::to_be_bytes(attribute));
                    memory[63] &= !1;
                }
            }));
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let opcode = CmdOpcode::MadIfc.code() as u16;
            let expected = wrong.map(|value| Error::BadAnswer { opcode, value });
            assert_eq!(driver.smp(SubnetAttribute::NodeInfo, 0).err(), expected, "{method:#x} {attribute:#x}");
        }
    }

    /// P_KeyTable (0x16) has 32 P_Keys in a block, GUIDInfo (0x14) eight GUIDs, and the modifier names the block (IBTA 14.2.5.5, 14.2.5.7).
    /// PortInfo (0x15) has GidPrefix at 8 and GUIDCap at 50. Data of a packet begin at 64.
    #[test]
    fn an_entry_of_a_table_is_in_its_block() {
        let (mut driver, shared) = started();
        respond(&shared, |input, output| {
            let (asked, answer) = (&input[16..], &mut output[16..]);
            answer[..24].copy_from_slice(&asked[..24]);
            answer[3] = 0x81;
            let block = u32::from_be_bytes(asked[20..24].try_into().unwrap());
            let data = &mut answer[64..128];
            match asked[17] {
                0x16 => data
                    .chunks_mut(2)
                    .zip(32 * block..)
                    .for_each(|(place, n)| place.copy_from_slice(&(0x8000 | n as u16).to_be_bytes())),
                0x14 => data
                    .chunks_mut(8)
                    .zip(8 * u64::from(block)..)
                    .for_each(|(place, n)| place.copy_from_slice(&n.to_be_bytes())),
                0x15 => {
                    data[8..16].copy_from_slice(&[0xfe, 0xc0, 0, 0, 0, 0, 0, 7]);
                    data[50] = 200;
                }
                other => panic!("attribute {other:#x}"),
            }
        });
        let driver: &mut Driver<MockPlatform> = &mut driver;
        for index in 0..300 {
            assert_eq!(driver.query_pkey_by_smp(index), Ok(0x8000 | index));
        }
        for index in 0..200_u16 {
            let gid = 0xfec0_0000_0000_0007_u128 << 64 | u128::from(index);
            assert_eq!(driver.query_gid_by_smp(index), Ok(Gid(gid.to_be_bytes())));
        }
        assert_eq!(driver.query_gid_by_smp(200), Err(Error::NoEntry { entries: 200 }));
    }

    /// The status is at 4 of a packet, and bit 0 of it is busy (IBTA 13.4.7).
    #[test]
    fn a_busy_agent_is_asked_again_for_a_second() {
        for (busy, then, asks, refused) in [
            (0, 0, 1, None),
            (3, 0, 4, None),
            (50, 0, 51, None),
            (51, 0, 51, Some(1)),
            (0, 0x1c, 1, Some(0x1c)),
            (2, 0x0c, 3, Some(0x0c)),
        ] {
            let (mut driver, shared) = started();
            let asked = std::rc::Rc::new(core::cell::Cell::new(0_u16));
            let note = asked.clone();
            respond(&shared, move |input, output| {
                output[16..40].copy_from_slice(&input[16..40]);
                output[16 + 3] = 0x81;
                output[16 + 5] = if note.get() < busy { 1 } else { then };
                note.set(note.get() + 1);
            });
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let start = driver.commands.machine.clock.now();
            let expected = refused.map(|status| Error::MadStatus { attribute: 0x11, status });
            assert_eq!(driver.smp(SubnetAttribute::NodeInfo, 0).err(), expected, "{busy} {then:#x}");
            assert_eq!(asked.get(), asks, "{busy} {then:#x}");
            let took = driver.commands.machine.clock.now().since(start).as_millis();
            assert_eq!(took / 20, u128::from(asks - 1), "20 ms before each but the first");
        }
    }
}
