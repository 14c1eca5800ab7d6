//! The Ethernet port: context, state, MTU, RoCE, and its GIDs, which are IP addresses.
//!
//! The order of the commands is that of Linux (`mlx5_core`, then the network interface, then `mlx5_ib`).

use bareverbs::platform::Platform;
use bareverbs::{Gid, GidEntry, GlobalRoute, Guid, LinkLayer, Mac, PhysState, PortAttr, PortState};
use bareverbs_mlx5_spec::{
    Buffer, CmdHcaCap, CmdOpcode, ModifyNicVportContextIn, ModifyNicVportFieldSelect, NicVportContext, PTYS_ETHERNET, PaosReg,
    PmtuReg, PtysReg, QueryNicVportContextOut, QueryRoceAddressIn, QueryRoceAddressOut, QueryVportStateOut, REGISTER_READ,
    REGISTER_WRITE, ROCE_VERSION_2, RegisterId, RoceAddrLayout, SetRoceAddressIn, cmd, nic_vport_list, roce_l3_type,
};

use super::caps::PORT;
use super::port::{check_entry, check_port, mtu_of, pick, unless_refused};
use crate::command::CommandInterface;
use crate::driver::Driver;
use crate::error::Error;

/// Bytes of a frame around its data: header, VLAN tag, frame check sequence. An MTU of the card counts them.
const FRAME_OVERHEAD: u32 = 14 + 4 + 4;
/// Bytes of a packet beside its payload: IPv6, UDP, BTH, XRC, AtomicETH, ICRC. So Linux counts them (`iboe_get_mtu`).
const PACKET_OVERHEAD: u32 = 40 + 8 + 12 + 4 + 28 + 4;
/// [`PaosReg::ADMIN_STATUS`] and [`PaosReg::OPER_STATUS`] of a port that is up.
const UP: u32 = 1;

/// Gigabits a second for each bit of [`PtysReg::ETH_PROTO_OPER`] (Linux `enum mlx5e_link_mode`).
const GIGABITS: [u16; 32] =
    [1, 1, 10, 10, 10, 20, 40, 40, 56, 0, 0, 0, 10, 10, 10, 40, 40, 0, 50, 0, 100, 100, 100, 100, 0, 1, 10, 25, 25, 25, 50, 50];
/// Lanes for each of these bits.
const LANES: [u8; 32] = [1, 1, 4, 4, 1, 2, 4, 4, 4, 0, 0, 0, 1, 1, 1, 4, 4, 0, 2, 0, 4, 4, 4, 4, 1, 1, 1, 1, 1, 1, 2, 2];
/// The same for each bit of [`PtysReg::EXT_ETH_PROTO_OPER`] (`enum mlx5e_ext_link_mode`).
const EXTENDED_GIGABITS: [u16; 21] = [0, 1, 0, 5, 10, 40, 25, 50, 50, 100, 100, 100, 200, 200, 200, 400, 400, 400, 0, 800, 800];
const EXTENDED_LANES: [u8; 21] = [1, 1, 0, 1, 1, 4, 1, 2, 1, 4, 2, 1, 4, 2, 1, 8, 4, 2, 0, 8, 4];

impl<P: Platform> CommandInterface<P> {
    /// Sets one of the port's lists of addresses.
    #[inline(never)]
    fn set_address_list(&mut self, kind: u32, list: &[(Mac, u16)]) -> Result<(), Error> {
        let mut input = Buffer::<ModifyNicVportContextIn>::zeroed();
        let mut view = input.view_mut();
        view.sub(ModifyNicVportContextIn::FIELD_SELECT).set(ModifyNicVportFieldSelect::ADDRESSES_LIST, 1);
        view.sub(ModifyNicVportContextIn::NIC_VPORT_CONTEXT)
            .set(NicVportContext::ALLOWED_LIST_TYPE, kind)
            .set(NicVportContext::ALLOWED_LIST_SIZE, list.len() as u32);
        let entry = &mut |index: usize| {
            let [a, b, c, d, e, f] = list.get(index).map_or([0; 6], |(mac, _)| mac.0);
            u64::from_be_bytes([0, 0, a, b, c, d, e, f])
        };
        self.execute_with(CmdOpcode::ModifyNicVportContext, input.as_bytes(), (list.len(), entry)).map(|_| ())
    }
}

impl<P: Platform> Driver<P> {
    /// Reads the greatest and the operational MTU of the port; zeros if the firmware refuses.
    fn read_mtus(&mut self) -> Result<[u32; 2], Error> {
        let mtu = self.access_register(REGISTER_READ, RegisterId::Pmtu, |register| register.set(PmtuReg::LOCAL_PORT, 1))?;
        Ok([PmtuReg::MAX_MTU, PmtuReg::OPER_MTU].map(|field| mtu.view().get(field)))
    }

    /// Queries the context of the port, and the greatest and the operational MTU: that of the context for both if the firmware does
    /// not let the port's be read.
    fn context_and_mtus(&mut self) -> Result<(Buffer<QueryNicVportContextOut>, [u32; 2]), Error> {
        let output = self.commands.query::<cmd::QueryNicVportContext>(|input| input)?;
        let mtus = self.read_mtus()?;
        let own = output.view().sub(QueryNicVportContextOut::NIC_VPORT_CONTEXT).get(NicVportContext::MTU);
        Ok((output, if mtus == [0; 2] { [own; 2] } else { mtus }))
    }

    /// Queries the GUIDs of the node and of the system that it is part of, and the port's MAC address, which must be one: a virtual
    /// function has none before its physical function has given it one.
    #[inline(never)]
    pub(super) fn query_ethernet_node(&mut self) -> Result<[Guid; 2], Error> {
        let context = self.commands.query::<cmd::QueryNicVportContext>(|input| input)?;
        let context = context.view().sub(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        let [_, _, a, b, c, d, e, f] = context.get64(NicVportContext::PERMANENT_ADDRESS).to_be_bytes();
        self.mac = Mac([a, b, c, d, e, f]);
        if self.mac == Mac::default() {
            return Err(Error::NoMacAddress);
        }
        Ok([NicVportContext::NODE_GUID, NicVportContext::SYSTEM_IMAGE_GUID].map(|field| Guid(context.get64(field))))
    }

    /// Sets the MTU, lets the port carry RoCE, and turns it on. The physical function alone does what is the whole card's.
    ///
    /// MTU and state of the port, and the MTU of the function, may be refused, as in Linux (`mlx5e_nic_enable`, `mlx5e_set_mtu`,
    /// `mlx5e_modify_admin_state`).
    #[inline(never)]
    pub(super) fn enable_ethernet_port(&mut self) -> Result<(), Error> {
        let is_physical = !self.config.virtual_function;
        let wanted = u32::from(self.config.ethernet_mtu).saturating_add(FRAME_OVERHEAD);
        let mtu = match self.read_mtus()? {
            [0, _] => wanted,
            [most, _] => wanted.min(most),
        };
        if is_physical {
            self.access_register(REGISTER_WRITE, RegisterId::Pmtu, |register| {
                register.set(PmtuReg::LOCAL_PORT, 1).set(PmtuReg::ADMIN_MTU, mtu)
            })?;
        }
        let result = self.commands.perform::<cmd::ModifyNicVportContext>(|input| {
            input.sub(ModifyNicVportContextIn::FIELD_SELECT).set(ModifyNicVportFieldSelect::MTU, 1);
            input.sub(ModifyNicVportContextIn::NIC_VPORT_CONTEXT).set(NicVportContext::MTU, mtu);
            input
        });
        unless_refused(result)?;
        self.set_roce(true)?;
        if is_physical {
            self.access_register(REGISTER_WRITE, RegisterId::Paos, |register| {
                register.set(PaosReg::LOCAL_PORT, 1).set(PaosReg::ADMIN_STATUS, UP).set(PaosReg::ASE, 1)
            })?;
        }
        Ok(())
    }

    /// Lets the port carry RoCE, or no longer.
    ///
    /// Its lists of addresses begin and end with it: the card's switch gives a virtual function what is to addresses of its lists, not
    /// what is to its permanent address (Linux `esw_update_vport_addr_list`). Linux goes on without the lists if they are refused.
    pub(super) fn set_roce(&mut self, enable: bool) -> Result<(), Error> {
        let own: &[_] = if enable { &[(self.mac, 1)] } else { &[] };
        unless_refused(self.commands.set_address_list(nic_vport_list::UNICAST, own))?;
        if !self.stations.is_empty() {
            self.stations.clear();
            unless_refused(self.commands.set_address_list(nic_vport_list::MULTICAST, &[]))?;
        }
        // Local loopback stays enabled: queue pairs of one port may be connected (Linux `mlx5_ib_enable_lb`).
        let [unicast, multicast] =
            [CmdHcaCap::DISABLE_LOCAL_LB_UC, CmdHcaCap::DISABLE_LOCAL_LB_MC].map(|field| self.capability(field));
        self.commands.perform::<cmd::ModifyNicVportContext>(|input| {
            input
                .sub(ModifyNicVportContextIn::FIELD_SELECT)
                .set(ModifyNicVportFieldSelect::ROCE_EN, 1)
                .set(ModifyNicVportFieldSelect::DISABLE_UC_LOCAL_LB, unicast)
                .set(ModifyNicVportFieldSelect::DISABLE_MC_LOCAL_LB, multicast);
            input.sub(ModifyNicVportContextIn::NIC_VPORT_CONTEXT).set(NicVportContext::ROCE_EN, enable.into());
            input
        })?;
        self.state.roce = enable;
        Ok(())
    }

    /// Counts one more user of an address in the port's multicast list, or one less. What the list has no room for comes in by
    /// [`Self::admit_groups`] alone.
    pub(crate) fn list_station(&mut self, station: Mac, is_more: bool) -> Result<(), Error> {
        let most = 1 << self.capability(CmdHcaCap::LOG_MAX_CURRENT_MC_LIST).min(15);
        let known = self.stations.iter().position(|(known, _)| *known == station);
        if let Some((_, users)) = known.and_then(|index| self.stations.get_mut(index)) {
            *users = if is_more { users.saturating_add(1) } else { users.saturating_sub(1) };
            if *users != 0 {
                return Ok(());
            }
            self.stations.retain(|(_, users)| *users != 0);
        } else if !is_more || self.stations.len() >= most || self.stations.push((station, 1)).is_err() {
            return Ok(());
        }
        let result = self.commands.set_address_list(nic_vport_list::MULTICAST, &self.stations);
        if is_more && result.is_err() {
            self.stations.pop();
        }
        result
    }

    /// Lets frames of all multicast groups in, or of none. The switch ignores it for a virtual function that is not trusted.
    pub(crate) fn admit_groups(&mut self, all: bool) -> Result<(), Error> {
        self.commands.perform::<cmd::ModifyNicVportContext>(|input| {
            input.sub(ModifyNicVportContextIn::FIELD_SELECT).set(ModifyNicVportFieldSelect::PROMISC, 1);
            let mut context = input.sub(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
            context.set(NicVportContext::PROMISC_MC, all.into());
            context.set(NicVportContext::PROMISC_ALL, self.promiscuous.into());
            input
        })
    }

    /// Queries what the queues for frames depend on: the MTU of the port as of a network interface, and how much of a frame's headers
    /// the vport wants in its WQE ([`InlineMode`](bareverbs_mlx5_spec::InlineMode)).
    #[cfg(feature = "ethernet")]
    #[inline(never)]
    pub(crate) fn query_frame_port(&mut self) -> Result<(u32, u32), Error> {
        let (context, [_, mtu]) = self.context_and_mtus()?;
        let context = context.view().sub(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        Ok((mtu.saturating_sub(FRAME_OVERHEAD), context.get(NicVportContext::MIN_WQE_INLINE_MODE)))
    }

    #[inline(never)]
    pub(super) fn query_ethernet_port(&mut self) -> Result<PortAttr, Error> {
        let (context, mtus) = self.context_and_mtus()?;
        let context = context.view().sub(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        let [max_mtu, active_mtu] = mtus.map(|bytes| mtu_of(bytes.saturating_sub(FRAME_OVERHEAD + PACKET_OVERHEAD)));
        let state = self.commands.query::<cmd::QueryVportState>(|input| input)?;
        let is_up = state.view().get(QueryVportStateOut::STATE) == UP;
        let paos = self.access_register(REGISTER_READ, RegisterId::Paos, |register| register.set(PaosReg::LOCAL_PORT, 1))?;
        let paos = paos.view();
        // Neither is zero, unless the firmware refuses to tell: then nothing says that the port is switched off.
        let phys_state = match (paos.get(PaosReg::OPER_STATUS), paos.get(PaosReg::ADMIN_STATUS)) {
            (UP, _) => PhysState::LinkUp,
            (0, 0) if is_up => PhysState::LinkUp,
            (_, UP | 0) => PhysState::Polling,
            _ => PhysState::Disabled,
        };
        let speed = self.access_register(REGISTER_READ, RegisterId::Ptys, |register| {
            register.set(PtysReg::LOCAL_PORT, 1).set(PtysReg::PROTO_MASK, PTYS_ETHERNET)
        })?;
        let speed = speed.view();
        // A card that has extended rates tells no others (Linux `mlx5_port_query_eth_proto`).
        let (gigabits, lanes) = if speed.get(PtysReg::EXT_ETH_PROTO_CAPABILITY) != 0 {
            let mode = speed.get(PtysReg::EXT_ETH_PROTO_OPER);
            (pick(&EXTENDED_GIGABITS, mode), pick(&EXTENDED_LANES, mode))
        } else {
            let mode = speed.get(PtysReg::ETH_PROTO_OPER);
            (pick(&GIGABITS, mode), pick(&LANES, mode))
        };
        Ok(PortAttr {
            link_layer: LinkLayer::Ethernet,
            state: if is_up { PortState::Active } else { PortState::Down },
            phys_state,
            max_mtu,
            active_mtu,
            gid_tbl_len: self.caps.gids,
            pkey_tbl_len: self.caps.pkeys,
            active_width: lanes,
            active_speed_gbps: gigabits.into(),
            mac: self.mac,
            port_guid: Guid(context.get64(NicVportContext::PORT_GUID)),
            grh_required: true,
            ..PortAttr::default()
        })
    }

    /// Queries an entry of the GID table; zeros if it is empty.
    pub(super) fn query_roce_gid(&mut self, index: u16) -> Result<Gid, Error> {
        check_entry(index, self.caps.gids)?;
        let port = self.roce_port();
        let output = self.commands.query::<cmd::QueryRoceAddress>(|input| {
            input.set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, index.into()).set(QueryRoceAddressIn::VHCA_PORT_NUM, port)
        })?;
        let entry = output.view().sub(QueryRoceAddressOut::ROCE_ADDRESS);
        Ok(Gid(entry.bytes(RoceAddrLayout::SOURCE_L3_ADDRESS).try_into().unwrap_or_default()))
    }

    /// Returns the port that commands about the GID table name: 0 where a function has no ports of its own (Linux `mlx5_core_roce_gid_set`).
    fn roce_port(&self) -> u32 {
        if self.capability(CmdHcaCap::NUM_VHCA_PORTS) == 0 { 0 } else { PORT.into() }
    }

    /// Checks that the entry of the GID table that a route names is set and an address of the peer's kind, as Linux does
    /// (`rdma_get_gid_attr`, `rdma_resolve_ip`): a card may send from an empty one, and takes the peer's for one of the entry's kind. A card
    /// that refuses the query, which Linux's own driver does not send, says nothing of its table.
    pub(crate) fn check_source(&mut self, route: &GlobalRoute) -> Result<(), Error> {
        let index = route.sgid_index;
        match self.query_roce_gid(index.into()) {
            Ok(gid) if gid == Gid::default() => Err(Error::NoGid { index }),
            Ok(gid) if gid.is_ipv4() != route.dgid.is_ipv4() => Err(Error::GidFamily { index }),
            Err(error) if !error.is_refusal() => Err(error),
            _ => Ok(()),
        }
    }

    /// Sets an entry of the GID table, or empties it.
    pub(crate) fn set_gid(&mut self, port: u8, index: u16, entry: Option<&GidEntry>) -> Result<(), Error> {
        check_port(port)?;
        check_entry(index, self.caps.gids)?;
        let port = self.roce_port();
        self.commands.perform::<cmd::SetRoceAddress>(|input| {
            if let Some(GidEntry { gid, mac, vlan }) = entry {
                let [a, b, c, d, e, f] = mac.0;
                let l3_type = if gid.is_ipv4() { roce_l3_type::IPV4 } else { roce_l3_type::IPV6 };
                input
                    .sub(SetRoceAddressIn::ROCE_ADDRESS)
                    .set_bytes(RoceAddrLayout::SOURCE_L3_ADDRESS, &gid.0)
                    .set(RoceAddrLayout::VLAN_VALID, vlan.is_some().into())
                    .set(RoceAddrLayout::VLAN_ID, vlan.unwrap_or_default().into())
                    .set(RoceAddrLayout::SOURCE_MAC_47_32, u16::from_be_bytes([a, b]).into())
                    .set(RoceAddrLayout::SOURCE_MAC_31_0, u32::from_be_bytes([c, d, e, f]))
                    .set(RoceAddrLayout::ROCE_L3_TYPE, l3_type)
                    .set(RoceAddrLayout::ROCE_VERSION, ROCE_VERSION_2);
            }
            input.set(SetRoceAddressIn::ROCE_ADDRESS_INDEX, index.into()).set(SetRoceAddressIn::VHCA_PORT_NUM, port)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::mock::{MockPlatform, Shared, acknowledge, offer, opcode_of, respond, started};

    /// disable_uc_local_lb and disable_mc_local_lb are the bits 11 and 10 of field_select, the dword at 12 of the input (`mlx5_ifc.h`);
    /// the input begins at 16 of the entry.
    #[test]
    fn a_port_lets_its_own_packets_in_where_the_card_can_be_told() {
        // disable_local_lb_uc and _mc are the bits 30 and 29 of the dword at 124 of the capabilities.
        for (loopback, selected) in [(3 << 29, 0xc), (1 << 30, 8), (1 << 29, 4), (0, 0)] {
            let (mut driver, shared) = started();
            acknowledge(&shared);
            let driver: &mut Driver<MockPlatform> = &mut driver;
            offer(&mut driver.general, 124, loopback);
            driver.set_roce(true).unwrap();
            assert_eq!(shared.borrow().memory[16 + 14] & 0xc, selected, "{loopback:?}");
            // The values are the bits 2 and 1 of the first dword of the context, which begins at 256 of the input.
            let pointer = u64::from_be_bytes(shared.borrow().memory[8..16].try_into().unwrap());
            let mailbox = (pointer - crate::tests::mock::DEVICE_ADDR) as usize;
            assert_eq!(shared.borrow().memory[mailbox + 256 + 3 - 16] & 6, 0, "{loopback:?}: not left out");
        }
    }

    /// num_vhca_ports is the second lowest byte of the dword at 192 of the capabilities; vhca_port_num the lower half of byte 11 of both commands.
    #[cfg(feature = "roce")]
    #[test]
    fn the_table_of_gids_is_that_of_the_port_where_functions_have_ports() {
        for (ports, named) in [(0, 0), (1, 1), (2, 1)] {
            let (mut driver, shared) = started();
            let seen = std::rc::Rc::new(core::cell::RefCell::new(std::vec::Vec::new()));
            let note = seen.clone();
            respond(&shared, move |input, _| note.borrow_mut().push((opcode_of(input), input[11] & 15)));
            let driver: &mut Driver<MockPlatform> = &mut driver;
            offer(&mut driver.general, 192, ports << 8);
            driver.caps.gids = 2;
            driver.set_gid(PORT, 1, None).unwrap();
            driver.query_roce_gid(1).unwrap();
            assert_eq!(*seen.borrow(), [(0x761, named), (0x760, named)], "{ports}");
        }
    }

    /// Status 2 is BAD_OP: the card has no such command. Only the device that is lost keeps a path from being used then.
    #[cfg(feature = "roce")]
    #[test]
    fn a_path_may_be_used_on_a_card_that_does_not_tell_its_gids() {
        let (mut driver, shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        driver.caps.gids = 2;
        let route = GlobalRoute { sgid_index: 1, ..GlobalRoute::default() };
        respond(&shared, |_, _| ());
        assert_eq!(driver.check_source(&route), Err(Error::NoGid { index: 1 }));
        respond(&shared, |_, output| output[0] = 2);
        assert_eq!(driver.check_source(&route), Ok(()));
        shared.borrow_mut().device = None;
        shared.borrow_mut().registers.fill(0xff);
        assert_eq!(driver.check_source(&route), Err(Error::DeviceGone));
    }

    #[cfg(feature = "roce")]
    #[test]
    fn no_more_addresses_are_listed_than_the_card_has_room_for() {
        let (mut driver, shared) = started();
        acknowledge(&shared);
        let driver: &mut Driver<MockPlatform> = &mut driver;
        // log_max_current_mc_list, the bits 12 to 8 of the dword at 124 of the capabilities.
        offer(&mut driver.general, 124, 1 << 8);
        let mut commands = [0; 4];
        for (station, sent) in (0..).zip(&mut commands) {
            driver.list_station(Mac([1, 0, 0x5e, 0, 0, station]), true).unwrap();
            *sent = driver.commands.stats.commands;
        }
        assert_eq!(commands, [1, 2, 2, 2]);
        // allowed_list_size, the bits 11 to 0 of the dword at 240 of the context, which begins at 256 of the input.
        let pointer = u64::from_be_bytes(shared.borrow().memory[8..16].try_into().unwrap());
        let mailbox = (pointer - crate::tests::mock::DEVICE_ADDR) as usize;
        assert_eq!(shared.borrow().memory[mailbox + 256 + 240 + 3 - 16], 2);
    }

    /// What the firmware says of a port: bytes of its registers by their numbers, of its context, and whether it is up.
    #[derive(Clone, Copy, Default)]
    struct Port {
        paos: [u8; 4],
        mtus: [u16; 2],
        /// ext_eth_proto_capability, ext_eth_proto_oper, eth_proto_oper.
        rates: [u32; 3],
        own_mtu: u16,
        inline_mode: u8,
        is_up: bool,
    }

    /// By `paos_reg`, `pmtu_reg`, `ptys_reg`, `nic_vport_context` and `query_vport_state_out` of `mlx5_ifc.h`.
    fn tell(shared: &Shared, port: Port) {
        respond(shared, move |input, output| match (opcode_of(input), u16::from_be_bytes([input[10], input[11]])) {
            (0x750, _) => output[15] = u8::from(port.is_up),
            (0x754, _) => {
                output[16] = port.inline_mode;
                output[16 + 0x26..][..2].copy_from_slice(&port.own_mtu.to_be_bytes());
                output[16 + 0x30..][..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
            }
            (0x805, 0x5003) => {
                output[16 + 4..][..2].copy_from_slice(&port.mtus[0].to_be_bytes());
                output[16 + 12..][..2].copy_from_slice(&port.mtus[1].to_be_bytes());
            }
            (0x805, 0x5004) => {
                for (at, value) in [8, 32, 36].into_iter().zip(port.rates) {
                    output[16 + at..][..4].copy_from_slice(&value.to_be_bytes());
                }
            }
            (0x805, 0x5006) => output[16..20].copy_from_slice(&port.paos),
            (opcode, register) => panic!("{opcode:#x} {register:#x}"),
        });
    }

    /// The administrative state is the lower half of byte 2 of PAOS, the operational one that of byte 3: 1 is up, 2 down. Zeros are of a
    /// firmware that refuses to tell.
    #[test]
    fn a_port_without_link_waits_for_one_unless_it_is_switched_off() {
        for (admin, oper, is_up, expected) in [
            (1, 1, true, PhysState::LinkUp),
            (1, 1, false, PhysState::LinkUp),
            (2, 1, true, PhysState::LinkUp),
            (0, 0, true, PhysState::LinkUp),
            (0, 0, false, PhysState::Polling),
            (1, 2, false, PhysState::Polling),
            (1, 0, true, PhysState::Polling),
            (0, 2, true, PhysState::Polling),
            (2, 2, false, PhysState::Disabled),
            (4, 2, true, PhysState::Disabled),
            (2, 0, true, PhysState::Disabled),
        ] {
            let (mut driver, shared) = started();
            tell(&shared, Port { paos: [0, 1, admin, oper], is_up, ..Port::default() });
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let port = driver.query_ethernet_port().unwrap();
            assert_eq!(port.phys_state, expected, "{admin} {oper} {is_up}");
            assert_eq!(port.state, if is_up { PortState::Active } else { PortState::Down });
            assert_eq!((port.port_guid, port.grh_required), (Guid(0x0102_0304_0506_0708), true));
        }
    }

    /// Rates by the numbers of Linux's `enum mlx5e_link_mode` and `enum mlx5e_ext_link_mode`.
    #[test]
    fn a_card_with_extended_rates_is_believed_in_those_alone() {
        let rate = |rates| {
            let (mut driver, shared) = started();
            tell(&shared, Port { rates, ..Port::default() });
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let port = driver.query_ethernet_port().unwrap();
            (port.active_speed_gbps, port.active_width)
        };
        // 1000BASE-KX, 10GBASE-CR, 40GBASE-CR4, 50GBASE-CR2, 100GBASE-CR4, 25GBASE-CR.
        for (bit, gigabits, lanes) in [(1, 1, 1), (12, 10, 1), (6, 40, 4), (30, 50, 2), (20, 100, 4), (27, 25, 1)] {
            assert_eq!(rate([0, 1 << 9, 1 << bit]), (gigabits, lanes), "{bit}");
        }
        // 10GBASE-R, 40GBASE-R4, 25GBASE-R, 50 on two lanes and on one, 100 on four, two and one, 200 on four, 400 on eight.
        let extended = [
            (4, 10, 1),
            (5, 40, 4),
            (6, 25, 1),
            (7, 50, 2),
            (8, 50, 1),
            (9, 100, 4),
            (10, 100, 2),
            (11, 100, 1),
            (12, 200, 4),
            (15, 400, 8),
        ];
        for (bit, gigabits, lanes) in extended {
            assert_eq!(rate([1 << bit, 1 << bit, 1 << 1]), (gigabits, lanes), "extended {bit}");
        }
        assert_eq!(rate([1, 0, 1 << 12]), (0, 0), "no link");
    }

    /// An MTU of the card counts 22 bytes more than that of a network interface, and a path MTU needs 96 of those for headers. If the port's
    /// may not be read, that of the context is taken.
    #[test]
    fn the_mtu_is_that_of_the_port_or_else_of_the_context() {
        for (mtus, own_mtu, expected, greatest, active) in [
            ([9022, 4214], 1522, 4192, 4096, 4096),
            ([9022, 4213], 1522, 4191, 4096, 2048),
            ([0, 0], 1522, 1500, 1024, 1024),
            ([0, 0], 8, 0, 256, 256),
        ] {
            let (mut driver, shared) = started();
            tell(&shared, Port { mtus, own_mtu, inline_mode: 2, ..Port::default() });
            let driver: &mut Driver<MockPlatform> = &mut driver;
            #[cfg(feature = "ethernet")]
            assert_eq!(driver.query_frame_port(), Ok((expected, 2)), "{mtus:?}");
            let port = driver.query_ethernet_port().unwrap();
            assert_eq!([port.max_mtu.bytes(), port.active_mtu.bytes()], [greatest, active], "{mtus:?} {expected}");
        }
    }

    /// MODIFY_NIC_VPORT_CONTEXT (0x755) ends with the addresses, from 512 on, of eight bytes each, the last six of which are one.
    #[cfg(feature = "roce")]
    #[test]
    fn an_address_is_listed_as_long_as_it_has_users() {
        let (mut driver, shared) = started();
        let lists = std::rc::Rc::new(core::cell::RefCell::new(std::vec::Vec::new()));
        let note = lists.clone();
        respond(&shared, move |input, _| {
            assert_eq!(opcode_of(input), 0x755);
            note.borrow_mut().push(input[512..].chunks(8).map(|entry| entry[7]).collect::<std::vec::Vec<_>>());
        });
        let driver: &mut Driver<MockPlatform> = &mut driver;
        offer(&mut driver.general, 124, 4 << 8);
        let [one, other] = [1, 2].map(|last| Mac([1, 0, 0x5e, 0, 0, last]));
        for (station, is_more, list) in [
            (one, true, Some(&[1][..])),
            (other, true, Some(&[1, 2])),
            (one, true, None),
            (one, true, None),
            (one, false, None),
            (other, false, Some(&[1])),
            (one, false, None),
            (one, false, Some(&[])),
            (one, false, None),
            (one, true, Some(&[1])),
        ] {
            driver.list_station(station, is_more).unwrap();
            assert_eq!(lists.borrow_mut().pop().as_deref(), list, "{station:?} {is_more}");
        }
    }
}
