//! The port of either kind. Here is the InfiniBand port: context, GIDs, P_Keys, link. A function with virtual ports (`ib_virt`) is
//! asked by commands of its own, another by subnet management packets (`smp.rs`). The Ethernet port is in `ethernet.rs`.
//!
//! The driver uses port 1. A function of a ConnectX-4 or later has no other, since a card has a function for each port.

use bareverbs::platform::Platform;
use bareverbs::{AddressVector, Gid, Guid, Lid, Mtu, PhysState, PortAttr, PortState};
use bareverbs_mlx5_spec::{
    AccessRegisterIn, Buffer, CmdHcaCap, CmdOpcode, HcaVportContext, Layout, PmtuReg, PtysReg, QueryHcaVportContextIn,
    QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut, REGISTER_READ, REGISTER_WRITE, RegisterHostEndianness,
    RegisterId, ViewMut, cmd,
};

use super::caps::PORT;
use crate::command::{Fill, copy};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;

const REGISTER_HEADER: usize = AccessRegisterIn::SIZE;
/// Bytes of the longest register that the driver reads or writes.
const MAX_REGISTER: usize = PtysReg::SIZE;
/// [`PtysReg::PROTO_MASK`] of InfiniBand.
const PROTO_IB: u32 = 1;
/// Megabits a second of one lane for each bit of [`PtysReg::IB_PROTO_OPER`]: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR.
const LANE_MBPS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
/// The only P_Key of an Ethernet port (IBTA volume 1, A17).
const DEFAULT_PKEY: u16 = 0xffff;
/// Lanes for each bit of [`PtysReg::IB_LINK_WIDTH_OPER`].
const LANES: [u8; 5] = [1, 2, 4, 8, 12];

impl<P: Platform> Driver<P> {
    /// Queries the GUIDs of the node and of the system that it is part of.
    pub(crate) fn query_node(&mut self) -> Result<[Guid; 2], Error> {
        if self.caps.is_ethernet() {
            return self.query_ethernet_node();
        }
        if self.capability(CmdHcaCap::IB_VIRT) == 0 {
            return self.query_node_by_smp();
        }
        let context = self.port_context()?;
        let context = context.view().sub(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        Ok([HcaVportContext::NODE_GUID, HcaVportContext::SYSTEM_IMAGE_GUID].map(|field| Guid(context.get64(field))))
    }

    /// Queries the context of the port, and remembers whether its paths need a global route.
    #[inline(never)]
    fn port_context(&mut self) -> Result<Buffer<QueryHcaVportContextOut>, Error> {
        let port = u32::from(PORT);
        let output =
            self.commands.query::<cmd::QueryHcaVportContext>(|input| input.set(QueryHcaVportContextIn::PORT_NUM, port))?;
        let context = output.view().sub(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        self.caps.grh_required = context.is_set(HcaVportContext::GRH_REQUIRED);
        Ok(output)
    }

    /// Checks that a path has a global route if the port needs one. Linux (`rdma_check_ah_attr`) and libmlx5 (`mlx5_create_ah`)
    /// refuse other paths too: nothing would tell why their packets are lost.
    pub(crate) fn check_route(&self, path: &AddressVector) -> Result<(), Error> {
        if self.caps.grh_required && path.grh.is_none() { Err(Error::GrhRequired) } else { Ok(()) }
    }

    /// Reads or writes a register of the port (ACCESS_REG) of which `fill` sets fields, and returns what the card says of it. If the
    /// firmware refuses, other fields are zero: that of a restricted host or of a virtual function may.
    #[inline(always)]
    pub(super) fn access_register<R: Layout>(
        &mut self,
        mode: u32,
        id: RegisterId,
        fill: impl Fill<R>,
    ) -> Result<Buffer<R>, Error> {
        let mut register = Buffer::zeroed();
        fill(&mut register.view_mut());
        let result = self.access_bytes(mode, id, register.as_bytes_mut());
        unless_refused(result)?;
        Ok(register)
    }

    fn access_bytes(&mut self, mode: u32, id: RegisterId, bytes: &mut [u8]) -> Result<(), Error> {
        let mut input = [0; REGISTER_HEADER + MAX_REGISTER];
        ViewMut::<AccessRegisterIn>::of(&mut input)
            .set(AccessRegisterIn::OP_MOD, mode)
            .set(AccessRegisterIn::REGISTER_ID, id.code());
        copy(input.get_mut(REGISTER_HEADER..).unwrap_or_default(), bytes);
        let len = REGISTER_HEADER.saturating_add(bytes.len());
        let mut output = [0; REGISTER_HEADER + MAX_REGISTER];
        let (head, answer) = (input.get(..len).unwrap_or_default(), output.get_mut(..len).unwrap_or_default());
        self.commands.execute(CmdOpcode::AccessReg, head, answer, len)?;
        copy(bytes, answer.get(REGISTER_HEADER..).unwrap_or_default());
        Ok(())
    }

    /// Sets the host's byte order in the firmware.
    #[inline(never)]
    pub(crate) fn set_host_endianness(&mut self) -> Result<(), Error> {
        let mut register = Buffer::zeroed();
        register.view_mut().set(RegisterHostEndianness::HE, u32::from(cfg!(target_endian = "big")));
        self.access_bytes(REGISTER_WRITE, RegisterId::HostEndianness, register.as_bytes_mut())
    }

    pub(crate) fn query_port(&mut self, port: u8) -> Result<PortAttr, Error> {
        check_port(port)?;
        if self.caps.is_ethernet() {
            return self.query_ethernet_port();
        }
        if self.capability(CmdHcaCap::IB_VIRT) == 0 {
            return self.query_port_by_smp();
        }
        let context = self.port_context()?;
        let context = context.view().sub(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        let port = u32::from(port);
        let mtu = self.access_register(REGISTER_READ, RegisterId::Pmtu, |register| register.set(PmtuReg::LOCAL_PORT, port))?;
        let speed = self.access_register(REGISTER_READ, RegisterId::Ptys, |register| {
            register.set(PtysReg::LOCAL_PORT, port).set(PtysReg::PROTO_MASK, PROTO_IB)
        })?;
        let (mtu, speed) = (mtu.view(), speed.view());
        let lanes = pick(&LANES, speed.get(PtysReg::IB_LINK_WIDTH_OPER));
        let lane = pick(&LANE_MBPS, speed.get(PtysReg::IB_PROTO_OPER));
        Ok(PortAttr {
            state: state_of(context.get(HcaVportContext::VPORT_STATE)),
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
            grh_required: context.is_set(HcaVportContext::GRH_REQUIRED),
            ..PortAttr::default()
        })
    }

    pub(crate) fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, Error> {
        check_port(port)?;
        if self.caps.is_ethernet() {
            return self.query_roce_gid(index);
        }
        if self.capability(CmdHcaCap::IB_VIRT) == 0 {
            return self.query_gid_by_smp(index);
        }
        check_entry(index, self.caps.gids)?;
        Ok(Gid(self.query_entry(CmdOpcode::QueryHcaVportGid, index)?))
    }

    pub(crate) fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, Error> {
        check_port(port)?;
        check_entry(index, self.caps.pkeys)?;
        if self.caps.is_ethernet() {
            return Ok(DEFAULT_PKEY);
        }
        if self.capability(CmdHcaCap::IB_VIRT) == 0 {
            return self.query_pkey_by_smp(index);
        }
        // A table of 32-bit entries, of which a P_Key is the lower half.
        Ok(u32::from_be_bytes(self.query_entry(CmdOpcode::QueryHcaVportPkey, index)?) as u16)
    }

    /// Queries an entry of a table of the port, at most 16 bytes long. It follows the output. Every command of a table has one layout.
    fn query_entry<const N: usize>(&mut self, opcode: CmdOpcode, index: u16) -> Result<[u8; N], Error> {
        const HEAD: usize = QueryHcaVportGidOut::SIZE;
        let mut input = Buffer::<QueryHcaVportGidIn>::zeroed();
        input.view_mut().set(QueryHcaVportGidIn::PORT_NUM, PORT.into()).set(QueryHcaVportGidIn::GID_INDEX, index.into());
        let mut output = [0; HEAD + 16];
        let whole = output.get_mut(..HEAD + N).unwrap_or_default();
        self.commands.execute(opcode, input.as_bytes(), whole, HEAD + N)?;
        Ok(whole.last_chunk().copied().unwrap_or([0; N]))
    }
}

/// Passes a result on unless the firmware refused the command: what it was for can be done without.
#[inline(never)]
pub(super) fn unless_refused(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_refusal() => {
            log_event!(warn, "the firmware refuses what the port can do without: {:?}", error);
            Ok(())
        }
        result => result,
    }
}

pub(super) fn check_port(port: u8) -> Result<(), Error> {
    if port == PORT { Ok(()) } else { Err(Error::NoPort { port }) }
}

pub(crate) fn check_entry(index: u16, count: u16) -> Result<(), Error> {
    if index < count { Ok(()) } else { Err(Error::NoEntry { entries: count }) }
}

/// Returns the entry of a table for the lowest bit that is set.
pub(super) fn pick<T: Copy + Default>(table: &[T], bits: u32) -> T {
    table.get(bits.trailing_zeros() as usize).copied().unwrap_or_default()
}

/// Returns the state of a port (IBTA 14.2.5.6, PortState).
pub(super) fn state_of(code: u32) -> PortState {
    match code {
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        _ => PortState::Down,
    }
}

/// Returns the greatest MTU of at most `bytes`, and the least one for fewer: PMTU of a port that is down may be 0. Linux too
/// takes any value (`mlx5_query_hca_port` of its `mlx5_ib`).
pub(super) fn mtu_of(bytes: u32) -> Mtu {
    let mtus = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    mtus.into_iter().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Mtu::Mtu256)
}

/// Returns the MTU of InfiniBand's code, 1 to 5 for 256 to 4096 bytes; the least one for another code, as of a port that is down.
pub(super) fn mtu_of_code(code: u32) -> Mtu {
    mtu_of(if code <= 5 { 128 << code } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 14.2.5.6: 1 is Down, 0 no change of state, which no port has.
    #[test]
    fn states_are_those_of_the_architecture() {
        let states = [0, 1, 2, 3, 4, 5, 15].map(state_of);
        let [down, init, armed, active] = [PortState::Down, PortState::Init, PortState::Armed, PortState::Active];
        assert_eq!(states, [down, down, init, armed, active, down, down]);
    }

    #[test]
    fn an_entry_behind_the_table_is_refused_with_the_length_of_that() {
        assert!(check_entry(0, 1).is_ok() && check_entry(127, 128).is_ok());
        for (index, count) in [(1, 1), (128, 128), (u16::MAX, 128), (0, 0)] {
            let refused = check_entry(index, count);
            assert!(matches!(refused, Err(Error::NoEntry { entries }) if entries == count), "{index} of {count}: {refused:?}");
        }
    }

    #[test]
    fn an_mtu_that_infiniband_lacks_is_the_next_lower_one() {
        // 0: of a port that is down. 1500 and 10240: of Ethernet.
        let sizes =
            [(0, 256), (255, 256), (256, 256), (1500, 1024), (2048, 2048), (4096, 4096), (10_240, 4096), (0xffff, 4096)];
        for (bytes, mtu) in sizes {
            assert_eq!(mtu_of(bytes).bytes(), mtu, "{bytes}");
        }
        for (code, mtu) in [(0, 256), (1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096), (6, 256), (15, 256), (u32::MAX, 256)]
        {
            assert_eq!(mtu_of_code(code).bytes(), mtu, "{code}");
        }
    }
}
