//! The InfiniBand port: context, GIDs, P_Keys, link.

use bareverbs::{Gid, Guid, Lid, Mtu, Platform, PortAttr, PortState};
use bareverbs_mlx5_spec::{
    AccessRegisterIn, AccessRegisterOut, CmdOpcode, HcaVportContext, Layout, PmtuReg, PtysReg, QueryHcaVportContextIn,
    QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut, QueryHcaVportPkeyIn, QueryHcaVportPkeyOut, REGISTER_READ,
    REGISTER_WRITE, RegisterHostEndianness, RegisterId, View, ViewMut,
};

use crate::driver::Driver;
use crate::error::Error;

/// Bytes of the header of ACCESS_REG.
const REGISTER_HEADER: usize = AccessRegisterIn::SIZE;
/// [`PtysReg::PROTO_MASK`] of InfiniBand.
const PROTO_IB: u32 = 1;
/// Megabits a second of one lane for each bit of [`PtysReg::IB_PROTO_OPER`]: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR.
const LANE_MBPS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
/// Lanes for each bit of [`PtysReg::IB_LINK_WIDTH_OPER`].
const LANES: [u8; 5] = [1, 2, 4, 8, 12];

impl<P: Platform> Driver<P> {
    /// Context of a port.
    pub(crate) fn port_context(&mut self, port: u8) -> Result<[u8; HcaVportContext::SIZE], Error> {
        self.check_port(port)?;
        let mut input = [0; QueryHcaVportContextIn::SIZE];
        ViewMut::<QueryHcaVportContextIn>::of(&mut input).set(QueryHcaVportContextIn::PORT_NUM, u32::from(port));
        let mut output = [0; QueryHcaVportContextOut::SIZE];
        self.command(CmdOpcode::QueryHcaVportContext, &input, &mut output)?;
        Ok(output.last_chunk().copied().unwrap_or([0; HcaVportContext::SIZE]))
    }

    fn check_port(&self, port: u8) -> Result<(), Error> {
        if (1..=self.caps.ports).contains(&port) { Ok(()) } else { Err(Error::NoPort { port }) }
    }

    /// Reads the register `id` into `register`, whose fields that choose an instance are set.
    fn read_register<const N: usize, const M: usize>(&mut self, id: RegisterId, register: &mut [u8; N]) -> Result<(), Error> {
        const { assert!(M == N + REGISTER_HEADER, "header and register") };
        let mut input = [0; M];
        if let Some(place) = input.last_chunk_mut() {
            *place = *register;
        }
        set_register_header(&mut input, REGISTER_READ, id);
        let mut output = [0; M];
        self.command(CmdOpcode::AccessReg, &input, &mut output)?;
        *register = output.last_chunk().copied().unwrap_or([0; N]);
        Ok(())
    }

    /// Tells the firmware the byte order of this host.
    pub(crate) fn set_host_endianness(&mut self) -> Result<(), Error> {
        let mut register = [0; RegisterHostEndianness::SIZE];
        ViewMut::<RegisterHostEndianness>::of(&mut register)
            .set(RegisterHostEndianness::HE, u32::from(cfg!(target_endian = "big")));
        let mut input = [0; REGISTER_HEADER + RegisterHostEndianness::SIZE];
        if let Some(place) = input.last_chunk_mut() {
            *place = register;
        }
        set_register_header(&mut input, REGISTER_WRITE, RegisterId::HostEndianness);
        let mut output = [0; AccessRegisterOut::SIZE + RegisterHostEndianness::SIZE];
        self.command(CmdOpcode::AccessReg, &input, &mut output)
    }

    /// State of a port.
    pub(crate) fn query_port(&mut self, port: u8) -> Result<PortAttr, Error> {
        let context = self.port_context(port)?;
        let context = View::<HcaVportContext>::of(&context);
        let mut mtu = [0; PmtuReg::SIZE];
        ViewMut::<PmtuReg>::of(&mut mtu).set(PmtuReg::LOCAL_PORT, u32::from(port));
        self.read_register::<_, { REGISTER_HEADER + PmtuReg::SIZE }>(RegisterId::Pmtu, &mut mtu)?;
        let mtu = View::<PmtuReg>::of(&mtu);
        let mut speed = [0; PtysReg::SIZE];
        ViewMut::<PtysReg>::of(&mut speed).set(PtysReg::LOCAL_PORT, u32::from(port)).set(PtysReg::PROTO_MASK, PROTO_IB);
        self.read_register::<_, { REGISTER_HEADER + PtysReg::SIZE }>(RegisterId::Ptys, &mut speed)?;
        let speed = View::<PtysReg>::of(&speed);
        let lanes = pick(&LANES, speed.get(PtysReg::IB_LINK_WIDTH_OPER));
        let lane = pick(&LANE_MBPS, speed.get(PtysReg::IB_PROTO_OPER));
        Ok(PortAttr {
            state: match context.get(HcaVportContext::VPORT_STATE) {
                2 => PortState::Init,
                3 => PortState::Armed,
                4 => PortState::Active,
                _ => PortState::Down,
            },
            max_mtu: mtu_of(mtu.get(PmtuReg::MAX_MTU))?,
            active_mtu: mtu_of(mtu.get(PmtuReg::OPER_MTU))?,
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

    /// Entry of a port's GID table.
    pub(crate) fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, Error> {
        self.check_port(port)?;
        if index >= self.caps.gids {
            return Err(Error::LimitExceeded { requested: u64::from(index), limit: u64::from(self.caps.gids) - 1 });
        }
        let mut input = [0; QueryHcaVportGidIn::SIZE];
        ViewMut::<QueryHcaVportGidIn>::of(&mut input)
            .set(QueryHcaVportGidIn::PORT_NUM, u32::from(port))
            .set(QueryHcaVportGidIn::GID_INDEX, u32::from(index));
        let mut output = [0; QueryHcaVportGidOut::SIZE + 16];
        self.command(CmdOpcode::QueryHcaVportGid, &input, &mut output)?;
        Ok(Gid(output.last_chunk().copied().unwrap_or_default()))
    }

    /// Entry of a port's P_Key table.
    pub(crate) fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, Error> {
        self.check_port(port)?;
        if index >= self.caps.pkeys {
            return Err(Error::LimitExceeded { requested: u64::from(index), limit: u64::from(self.caps.pkeys) - 1 });
        }
        let mut input = [0; QueryHcaVportPkeyIn::SIZE];
        ViewMut::<QueryHcaVportPkeyIn>::of(&mut input)
            .set(QueryHcaVportPkeyIn::PORT_NUM, u32::from(port))
            .set(QueryHcaVportPkeyIn::PKEY_INDEX, u32::from(index));
        let mut output = [0; QueryHcaVportPkeyOut::SIZE + 4];
        self.command(CmdOpcode::QueryHcaVportPkey, &input, &mut output)?;
        Ok(u32::from_be_bytes(output.last_chunk().copied().unwrap_or_default()) as u16)
    }
}

fn set_register_header<const N: usize>(input: &mut [u8; N], mode: u32, id: RegisterId) {
    ViewMut::<AccessRegisterIn>::of(input).set(AccessRegisterIn::OP_MOD, mode).set(AccessRegisterIn::REGISTER_ID, id.code());
}

/// The entry of a table for the lowest bit that is set.
fn pick<T: Copy + Default>(table: &[T], bits: u32) -> T {
    table.get(bits.trailing_zeros() as usize).copied().unwrap_or_default()
}

fn mtu_of(bytes: u32) -> Result<Mtu, Error> {
    let mtu = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096].into_iter().find(|mtu| mtu.bytes() == bytes);
    mtu.ok_or(Error::BadAnswer { opcode: CmdOpcode::AccessReg.code() as u16, value: bytes })
}
