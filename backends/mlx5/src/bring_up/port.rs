//! The InfiniBand port: context, GIDs, P_Keys, link.

use bareverbs::{Gid, Guid, Lid, Mtu, PhysState, Platform, PortAttr, PortState};
use bareverbs_mlx5_spec::{
    AccessRegisterIn, Buffer, CmdOpcode, HcaVportContext, Layout, PmtuReg, PtysReg, QueryHcaVportContextIn,
    QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut, QueryHcaVportPkeyIn, QueryHcaVportPkeyOut, REGISTER_READ,
    REGISTER_WRITE, RegisterHostEndianness, RegisterId, Sub, View, ViewMut, cmd,
};

use crate::driver::Driver;
use crate::error::{Error, PackedError};

/// Bytes of the header of ACCESS_REG.
const REGISTER_HEADER: usize = AccessRegisterIn::SIZE;
/// Bytes of the longest register that the driver reads or writes.
const MAX_REGISTER: usize = PtysReg::SIZE;
/// [`PtysReg::PROTO_MASK`] of InfiniBand.
const PROTO_IB: u32 = 1;
/// Megabits a second of one lane for each bit of [`PtysReg::IB_PROTO_OPER`]: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR.
const LANE_MBPS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
/// Lanes for each bit of [`PtysReg::IB_LINK_WIDTH_OPER`].
const LANES: [u8; 5] = [1, 2, 4, 8, 12];

impl<P: Platform> Driver<P> {
    /// Queries the context of a port.
    pub(crate) fn port_context(&mut self, port: u8, output: &mut Buffer<QueryHcaVportContextOut>) -> Result<(), PackedError> {
        self.check_port(port)?;
        let mut input = Buffer::zeroed();
        input.view_mut().set(QueryHcaVportContextIn::PORT_NUM, u32::from(port));
        self.commands.command::<cmd::QueryHcaVportContext>(input.view(), output.view_mut())
    }

    fn check_port(&self, port: u8) -> Result<(), PackedError> {
        if (1..=self.caps.ports).contains(&port) { Ok(()) } else { Err(Error::NoPort { port }.pack()) }
    }

    /// Executes ACCESS_REG: reads or writes the register whose bytes follow the header in `message`. The output replaces them.
    fn access_register(&mut self, mode: u32, id: RegisterId, message: &mut [u8]) -> Result<(), PackedError> {
        let mut input = [0; REGISTER_HEADER + MAX_REGISTER];
        for (to, from) in input.iter_mut().zip(message.iter()) {
            *to = *from;
        }
        let mut view = ViewMut::<AccessRegisterIn>::of(&mut input);
        view.set(AccessRegisterIn::OP_MOD, mode).set(AccessRegisterIn::REGISTER_ID, id.code());
        let (head, len) = (input.get(..message.len()).unwrap_or_default(), message.len());
        self.commands.execute(CmdOpcode::AccessReg, head, message, len)
    }

    /// Sets the host's byte order in the firmware.
    pub(crate) fn set_host_endianness(&mut self) -> Result<(), PackedError> {
        let mut message = [0; REGISTER_HEADER + RegisterHostEndianness::SIZE];
        let big_endian = u32::from(cfg!(target_endian = "big"));
        ViewMut::of(&mut message).sub(register()).set(RegisterHostEndianness::HE, big_endian);
        self.access_register(REGISTER_WRITE, RegisterId::HostEndianness, &mut message)
    }

    /// Queries the state of a port.
    pub(crate) fn query_port(&mut self, port: u8) -> Result<PortAttr, PackedError> {
        let mut context = Buffer::zeroed();
        self.port_context(port, &mut context)?;
        let context = context.view().sub(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        let mut mtu = [0; REGISTER_HEADER + PmtuReg::SIZE];
        ViewMut::of(&mut mtu).sub(register()).set(PmtuReg::LOCAL_PORT, u32::from(port));
        self.access_register(REGISTER_READ, RegisterId::Pmtu, &mut mtu)?;
        let mtu = View::of(&mtu).sub(register());
        let mut speed = [0; REGISTER_HEADER + PtysReg::SIZE];
        let mut view = ViewMut::of(&mut speed);
        view.sub(register()).set(PtysReg::LOCAL_PORT, u32::from(port)).set(PtysReg::PROTO_MASK, PROTO_IB);
        self.access_register(REGISTER_READ, RegisterId::Ptys, &mut speed)?;
        let speed = View::of(&speed).sub(register());
        let lanes = pick(&LANES, speed.get(PtysReg::IB_LINK_WIDTH_OPER));
        let lane = pick(&LANE_MBPS, speed.get(PtysReg::IB_PROTO_OPER));
        Ok(PortAttr {
            state: match context.get(HcaVportContext::VPORT_STATE) {
                2 => PortState::Init,
                3 => PortState::Armed,
                4 => PortState::Active,
                _ => PortState::Down,
            },
            phys_state: PhysState::from_encoding(context.get(HcaVportContext::PORT_PHYSICAL_STATE) as u8),
            max_mtu: mtu_of(mtu.get(PmtuReg::MAX_MTU)),
            active_mtu: mtu_of(mtu.get(PmtuReg::OPER_MTU)),
            gid_tbl_len: self.caps.gids,
            pkey_tbl_len: self.caps.pkeys,
            lid: Lid::new(context.get(HcaVportContext::LID) as u16),
            sm_lid: Lid::new(context.get(HcaVportContext::SM_LID) as u16),
            lmc: context.get(HcaVportContext::LMC) as u8,
            active_width: lanes,
            active_speed_gbps: lane.saturating_mul(u32::from(lanes)) / 1000,
            port_guid: Guid(context.get64(HcaVportContext::PORT_GUID)),
            cap_mask: context.get(HcaVportContext::CAP_MASK1),
        })
    }

    /// Queries an entry of a port's GID table.
    pub(crate) fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, PackedError> {
        self.check_entry(port, index, self.caps.gids)?;
        let mut input = Buffer::<QueryHcaVportGidIn>::zeroed();
        let (port, index) = (u32::from(port), u32::from(index));
        input.view_mut().set(QueryHcaVportGidIn::PORT_NUM, port).set(QueryHcaVportGidIn::GID_INDEX, index);
        let mut output = [0; QueryHcaVportGidOut::SIZE + 16];
        let entries = ViewMut::<QueryHcaVportGidOut>::of(&mut output);
        self.commands.command::<cmd::QueryHcaVportGid>(input.view(), entries)?;
        Ok(Gid(output.last_chunk().copied().unwrap_or_default()))
    }

    /// Queries an entry of a port's P_Key table.
    pub(crate) fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, PackedError> {
        self.check_entry(port, index, self.caps.pkeys)?;
        let mut input = Buffer::<QueryHcaVportPkeyIn>::zeroed();
        let (port, index) = (u32::from(port), u32::from(index));
        input.view_mut().set(QueryHcaVportPkeyIn::PORT_NUM, port).set(QueryHcaVportPkeyIn::PKEY_INDEX, index);
        let mut output = [0; QueryHcaVportPkeyOut::SIZE + 4];
        let entries = ViewMut::<QueryHcaVportPkeyOut>::of(&mut output);
        self.commands.command::<cmd::QueryHcaVportPkey>(input.view(), entries)?;
        Ok(u32::from_be_bytes(output.last_chunk().copied().unwrap_or_default()) as u16)
    }

    /// Checks that a port has a table of `count` entries with entry `index`.
    fn check_entry(&self, port: u8, index: u16, count: u16) -> Result<(), PackedError> {
        self.check_port(port)?;
        if index < count { Ok(()) } else { Err(Error::LimitExceeded { limit: u32::from(count).saturating_sub(1) }.pack()) }
    }
}

/// Returns the register behind the header of ACCESS_REG.
const fn register<L>() -> Sub<AccessRegisterIn, L> {
    AccessRegisterIn::REGISTER_DATA.as_sub()
}

/// Returns the entry of a table for the lowest bit that is set.
fn pick<T: Copy + Default>(table: &[T], bits: u32) -> T {
    table.get(bits.trailing_zeros() as usize).copied().unwrap_or_default()
}

/// Returns the greatest MTU of at most `bytes`, and the least one for fewer: PMTU of a port that is down may be 0. Linux too
/// takes any value (`mlx5_query_hca_port` of its `mlx5_ib`).
fn mtu_of(bytes: u32) -> Mtu {
    let mtus = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    mtus.into_iter().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Mtu::Mtu256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_that_infiniband_lacks_is_the_next_lower_one() {
        // 0: of a port that is down. 1500 and 10240: of Ethernet.
        let sizes =
            [(0, 256), (255, 256), (256, 256), (1500, 1024), (2048, 2048), (4096, 4096), (10_240, 4096), (0xffff, 4096)];
        for (bytes, mtu) in sizes {
            assert_eq!(mtu_of(bytes).bytes(), mtu, "{bytes}");
        }
    }
}
