//! Capabilities of the device: queried, set, and checked.

use bareverbs::{Access, DeviceAttr, MaskedAtomics, Platform, SrqCap};
use bareverbs_mlx5_spec::{
    AtomicCaps, Buffer, CapabilityType, CmdHcaCap, CmdIn, CmdOpcode, CmdOut, DS_UNIT, Field, Layout, PortType, QueryHcaCapIn,
    QueryHcaCapOut, ROCE_VERSION_2, RoceCap, SetHcaCapIn, Sub, View, ViewMut, ts_format,
};

#[cfg(feature = "ethernet")]
use bareverbs_mlx5_spec::{FlowTableNicCap, FlowTablePropLayout, PerProtocolNetworkingOffloadCaps};

use crate::command::CommandInterface;
use crate::config::ROCE;
use crate::dma::arena::MAX_RECORDS;
use crate::error::Error;
use crate::log::log_event;

/// The port of a function: ConnectX-4 and later have one each.
pub(crate) const PORT: u8 = 1;

/// Bytes of a capability page that carry fields.
const CAPABILITY: usize = 256;
/// [`AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE`]: 8-byte atomics in the host's byte order.
const ATOMIC_HOST_ENDIANNESS: u32 = 1;
/// Bits of [`AtomicCaps::ATOMIC_OPERATIONS`]: compare-and-swap and fetch-and-add.
const ATOMIC_OPERATIONS: u32 = 1 | 1 << 1;
/// The same with masks (UCX `UCT_IB_MLX5_ATOMIC_OPS_MASKED_CMP_SWAP`, `_MASKED_FETCH_ADD`).
const MASKED_OPERATIONS: u32 = 1 << 2 | 1 << 3;
/// Bit of [`AtomicCaps::ATOMIC_SIZE_QP`]: 4 bytes.
const ATOMIC_4_BYTES: u32 = 1 << 2;
/// Bit of [`AtomicCaps::ATOMIC_SIZE_QP`]: 8 bytes.
const ATOMIC_8_BYTES: u32 = 1 << 3;
/// log2 of the queue pairs requested from the firmware, which takes memory for each of them whether it is created or not. No
/// more than [`MAX_QPS`] can be created.
const LOG_MAX_QP: u32 = MAX_QPS.next_power_of_two().trailing_zeros();
/// Maximum number of queue pairs. Each has a doorbell record, as has each completion queue and each shared receive queue.
const MAX_QPS: u32 = MAX_RECORDS as u32 - MAX_CQS - MAX_SRQS;
const MAX_CQS: u32 = 128;
const MAX_SRQS: u32 = 64;
/// Bytes of the longest send WQE that the field `ds` can express.
const MAX_SEND_WQE: u32 = 1008;

/// Bytes before the payload of a request on a connected queue pair: control segment and remote address segment.
pub(crate) const CONNECTED_HEAD: u32 = 32;
pub(crate) const INLINE_HEAD: u32 = 4;

/// [`CmdHcaCap::PORT_TYPE`] of each kind of port.
const INFINIBAND: u32 = PortType::InfiniBand.code();
const ETHERNET: u32 = PortType::Ethernet.code();

/// Bit 0 of [`QueryHcaCapIn::OP_MOD`]: which values of a capability page.
const MAXIMUM: u32 = 0;
const CURRENT: u32 = 1;

/// The current capabilities that the driver uses, each limited to possible values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    pub(crate) log_max_qp_sz: u32,
    pub(crate) log_max_cq_sz: u32,
    pub(crate) log_max_srq_sz: u32,
    /// Shared receive queues are receive memory pools: the interface step is 1. Kept by [`Self::query`].
    pub(crate) pools: bool,
    pub(crate) log_max_msg: u32,
    pub(crate) max_send_wqe: u32,
    pub(crate) max_recv_wqe: u32,
    /// The port is an Ethernet port; asked through [`Self::is_ethernet`].
    pub(crate) ethernet: bool,
    /// The function has virtual ports, which commands of their own are about.
    pub(crate) ib_virt: bool,
    /// Every path from the port needs a global route, as the port said last.
    pub(crate) grh_required: bool,
    pub(crate) gids: u16,
    /// Most addresses in the multicast list of an Ethernet port.
    pub(crate) stations: usize,
    /// 1 if local loopback can be disabled: of unicast, of multicast.
    pub(crate) loopback: [u32; 2],
    pub(crate) pkeys: u16,
    pub(crate) stat_rates: u32,
    /// Completions carry the user index.
    pub(crate) user_index: bool,
    /// 8-byte atomics in the host's byte order; until [`Self::query`], whether the device has atomics at all.
    pub(crate) atomics: bool,
    /// The time stamps that contexts of queue pairs, send queues and receive queues ask for.
    pub(crate) qp_time_stamps: u32,
    #[cfg(feature = "ethernet")]
    pub(crate) sq_time_stamps: u32,
    #[cfg(feature = "ethernet")]
    pub(crate) rq_time_stamps: u32,
    pub(crate) windows: bool,
    /// Automatic path migration.
    pub(crate) apm: bool,
    /// Extended reliable connections, with completions that say of which shared receive queue they are.
    pub(crate) xrc: bool,
    pub(crate) relaxed_write: bool,
    pub(crate) relaxed_read: bool,
    pub(crate) page_requests: bool,
    pub(crate) blue_flame: Option<u32>,
}

impl Capabilities {
    /// Returns whether the port is an Ethernet port. A driver without the feature `roce` has none, which the compiler knows.
    pub(crate) const fn is_ethernet(&self) -> bool {
        ROCE && self.ethernet
    }

    /// Returns the bytes of half a BlueFlame register, 0 if the device has none of a possible size.
    pub(crate) const fn blue_flame_half(&self) -> usize {
        match self.blue_flame {
            Some(log) if log >= 7 && log <= 9 => 1 << (log - 1),
            _ => 0,
        }
    }

    /// Returns the most SGEs that a request may have.
    pub(crate) fn max_sge(&self) -> u32 {
        (self.max_send_wqe.saturating_sub(CONNECTED_HEAD) / DS_UNIT as u32).min(self.max_recv_wqe / DS_UNIT as u32)
    }

    /// Returns the bytes of the longest inline payload.
    pub(crate) fn max_inline(&self) -> u32 {
        self.max_send_wqe.saturating_sub(CONNECTED_HEAD + INLINE_HEAD)
    }

    /// Returns the maximum capacities of a shared receive queue; no requests if the device has none that this driver knows.
    pub(crate) fn srq_cap(&self) -> SrqCap {
        let log = if self.pools { self.log_max_srq_sz } else { 0 };
        // A WQE has a link before its data segments, and is a power of two of bytes.
        let units = self.max_recv_wqe.checked_ilog2().map_or(0, |log| (1 << log) / DS_UNIT as u32);
        if log == 0 || units < 2 {
            return SrqCap::default();
        }
        SrqCap { max_wr: (1 << log) - 1, max_sge: units - 1 }
    }
}

/// Returns the time stamps that contexts ask for on a device with these formats: a card with a real-time clock refuses those of another.
const fn time_stamps(formats: u32) -> u32 {
    if formats == 0 { ts_format::FREE_RUNNING } else { ts_format::DEFAULT }
}

/// The start of the output of QUERY_HCA_CAP and of the input of SET_HCA_CAP: 16 bytes, then the page as far as it has fields.
type Page = [u8; QueryHcaCapOut::CAPABILITY.offset() + CAPABILITY];

const _: () = assert!(QueryHcaCapOut::CAPABILITY.offset() == SetHcaCapIn::CAPABILITY.offset());

/// Returns the capabilities in a page.
const fn capabilities<M, L: Layout>() -> Sub<M, L> {
    assert!(L::SIZE <= CAPABILITY);
    QueryHcaCapOut::CAPABILITY.as_sub().within()
}

fn view<L: Layout>(page: &Page) -> View<'_, L> {
    View::<CmdOut>::of(page).sub(capabilities())
}

impl<P: Platform> CommandInterface<P> {
    fn query_page(&mut self, page: CapabilityType, values: u32, output: &mut Page) -> Result<(), Error> {
        let mut input = Buffer::zeroed();
        input.view_mut().set(QueryHcaCapIn::OP_MOD, page.code() << 1 | values);
        self.execute(CmdOpcode::QueryHcaCap, input.as_bytes(), output, QueryHcaCapOut::SIZE)
    }

    fn set_page(&mut self, kind: CapabilityType, page: &mut Page) -> Result<(), Error> {
        // The output of the query begins with a status.
        for byte in page.iter_mut().take(SetHcaCapIn::CAPABILITY.offset()) {
            *byte = 0;
        }
        ViewMut::<CmdIn>::of(page).set(CmdIn::OP_MOD, kind.code() << 1);
        self.execute_with(CmdOpcode::SetHcaCap, page, ((SetHcaCapIn::SIZE - page.len()) / 8, &mut |_| 0)).map(|_| ())
    }

    /// Sets the general capabilities: the current ones with the changes that the driver needs. As Linux does, it turns the signatures of
    /// commands off. Returns whether the device has atomics, and whether the port is an Ethernet port with RoCE.
    // Not inlined: the pages are on the stack only here.
    #[inline(never)]
    pub(crate) fn set_general_capabilities(&mut self) -> Result<(bool, bool), Error> {
        let (mut page, mut greatest) = ([0; size_of::<Page>()], [0; size_of::<Page>()]);
        self.query_page(CapabilityType::General, CURRENT, &mut page)?;
        self.query_page(CapabilityType::General, MAXIMUM, &mut greatest)?;
        let greatest = view::<CmdHcaCap>(&greatest);
        let current = view::<CmdHcaCap>(&page);
        let has_roce = current.get(CmdHcaCap::PORT_TYPE) == ETHERNET && current.is_set(CmdHcaCap::ROCE);
        let has_atomics = current.is_set(CmdHcaCap::ATOMIC);
        ViewMut::<CmdIn>::of(&mut page)
            .sub(capabilities())
            .set(CmdHcaCap::PKEY_TABLE_SIZE, 0)
            .set(CmdHcaCap::LOG_MAX_QP, greatest.get(CmdHcaCap::LOG_MAX_QP).min(LOG_MAX_QP))
            .set(CmdHcaCap::CMDIF_CHECKSUM, 0)
            .set(CmdHcaCap::LOG_UAR_PAGE_SZ, 0);
        self.set_page(CapabilityType::General, &mut page)?;
        Ok((has_atomics, has_roce))
    }

    /// Sets 8-byte atomics to the host's byte order, if the device supports that (Linux `handle_hca_cap_atomic`).
    pub(crate) fn set_atomic_capabilities(&mut self) -> Result<(), Error> {
        let mode = (AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, ATOMIC_HOST_ENDIANNESS);
        self.set_if_offered(CapabilityType::Atomic, AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, mode)
    }

    /// Lets the driver choose UDP source ports on an Ethernet port, if the card does not yet and can (Linux `handle_hca_cap_roce`).
    pub(crate) fn set_roce_capabilities(&mut self) -> Result<(), Error> {
        let field = RoceCap::SW_R_ROCE_SRC_UDP_PORT;
        self.set_if_offered(CapabilityType::Roce, field, (field, 1))
    }

    /// Sets a field of a capability page to a value, unless it has that or the device does not offer it.
    // Not inlined: the page is on the stack only here.
    #[inline(never)]
    fn set_if_offered<L: Layout>(
        &mut self,
        kind: CapabilityType,
        offered: Field<L>,
        (field, value): (Field<L>, u32),
    ) -> Result<(), Error> {
        let page = &mut [0; size_of::<Page>()];
        self.query_page(kind, MAXIMUM, page)?;
        if !view(page).is_set(offered) {
            return Ok(());
        }
        self.query_page(kind, CURRENT, page)?;
        if view(page).get(field) == value {
            return Ok(());
        }
        ViewMut::<CmdIn>::of(page).sub(capabilities()).set(field, value);
        self.set_page(kind, page)
    }
}

#[cfg(feature = "ethernet")]
impl<P: Platform> CommandInterface<P> {
    /// Queries whether the port has queues for frames with flow tables that lead to them, and how much of a frame's headers a WQE
    /// must contain ([`WqeInlineCap`](bareverbs_mlx5_spec::WqeInlineCap)).
    // Not inlined: the pages are on the stack only here.
    #[inline(never)]
    pub(crate) fn query_frame_capabilities(&mut self) -> Result<Option<u32>, Error> {
        const TABLES: usize = QueryHcaCapOut::CAPABILITY.offset() + FlowTableNicCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE.offset();
        let mut page = [0; size_of::<Page>()];
        self.query_page(CapabilityType::General, CURRENT, &mut page)?;
        let general = view::<CmdHcaCap>(&page);
        if !general.is_set(CmdHcaCap::ETH_NET_OFFLOADS) || !general.is_set(CmdHcaCap::NIC_FLOW_TABLE) {
            return Ok(None);
        }
        self.query_page(CapabilityType::FlowTable, CURRENT, &mut page)?;
        let tables = page.get(TABLES..).and_then(View::<FlowTablePropLayout>::new);
        if !tables.is_some_and(|tables| tables.is_set(FlowTablePropLayout::FT_SUPPORT)) {
            return Ok(None);
        }
        self.query_page(CapabilityType::EthernetOffloads, CURRENT, &mut page)?;
        let offloads = view::<PerProtocolNetworkingOffloadCaps>(&page);
        Ok(Some(offloads.get(PerProtocolNetworkingOffloadCaps::WQE_INLINE_MODE)))
    }
}

impl Capabilities {
    /// Queries the current capabilities, and sets the attributes that follow from them.
    // Not inlined: the pages are on the stack only here.
    #[inline(never)]
    pub(crate) fn query<P: Platform>(
        &mut self,
        commands: &mut CommandInterface<P>,
        attr: &mut DeviceAttr,
    ) -> Result<(), Error> {
        let (mut page, mut atomic) = ([0; size_of::<Page>()], [0; size_of::<Page>()]);
        commands.query_page(CapabilityType::General, CURRENT, &mut page)?;
        let general = view::<CmdHcaCap>(&page);
        let (mut atomics, mut masked_atomics) = (false, MaskedAtomics::default());
        if general.is_set(CmdHcaCap::ATOMIC) {
            commands.query_page(CapabilityType::Atomic, CURRENT, &mut atomic)?;
            let atomic = view::<AtomicCaps>(&atomic);
            let (operations, sizes) = (atomic.get(AtomicCaps::ATOMIC_OPERATIONS), atomic.get(AtomicCaps::ATOMIC_SIZE_QP));
            atomics = operations & ATOMIC_OPERATIONS == ATOMIC_OPERATIONS
                && sizes & ATOMIC_8_BYTES != 0
                && atomic.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE) == ATOMIC_HOST_ENDIANNESS;
            if atomics && operations & MASKED_OPERATIONS == MASKED_OPERATIONS {
                masked_atomics = MaskedAtomics { four: sizes & ATOMIC_4_BYTES != 0, eight: true };
            }
        }
        let log = |field: Field<CmdHcaCap>, most: u32| general.get(field).min(most);
        let mut caps = Self {
            pools: self.pools,
            log_max_qp_sz: log(CmdHcaCap::LOG_MAX_QP_SZ, 15),
            log_max_cq_sz: log(CmdHcaCap::LOG_MAX_CQ_SZ, 22),
            log_max_srq_sz: log(CmdHcaCap::LOG_MAX_SRQ_SZ, 15),
            log_max_msg: log(CmdHcaCap::LOG_MAX_MSG, 31),
            max_send_wqe: log(CmdHcaCap::MAX_WQE_SZ_SQ, MAX_SEND_WQE) & !15,
            max_recv_wqe: log(CmdHcaCap::MAX_WQE_SZ_RQ, 2048),
            ib_virt: general.is_set(CmdHcaCap::IB_VIRT),
            gids: 8 << log(CmdHcaCap::GID_TABLE_SIZE, 4),
            pkeys: 128 << log(CmdHcaCap::PKEY_TABLE_SIZE, 5),
            stat_rates: general.get(CmdHcaCap::STAT_RATE_SUPPORT),
            user_index: general.get(CmdHcaCap::CQE_VERSION) == 1,
            atomics,
            qp_time_stamps: time_stamps(general.get(CmdHcaCap::SQ_TS_FORMAT)),
            #[cfg(feature = "ethernet")]
            sq_time_stamps: time_stamps(general.get(CmdHcaCap::SQ_TS_FORMAT)),
            #[cfg(feature = "ethernet")]
            rq_time_stamps: time_stamps(general.get(CmdHcaCap::RQ_TS_FORMAT)),
            windows: general.is_set(CmdHcaCap::IMAICL),
            apm: general.is_set(CmdHcaCap::APM),
            xrc: general.is_set(CmdHcaCap::XRC),
            relaxed_write: general.is_set(CmdHcaCap::RELAXED_ORDERING_WRITE),
            // Older firmware has the second alone, as long as relaxed ordering is on in the PCI configuration.
            relaxed_read: general.is_set(CmdHcaCap::RELAXED_ORDERING_READ)
                || general.is_set(CmdHcaCap::RELAXED_ORDERING_READ_PCI_ENABLED),
            page_requests: !general.is_set(CmdHcaCap::PAGE_REQUEST_DISABLE),
            blue_flame: general.is_set(CmdHcaCap::BF).then(|| general.get(CmdHcaCap::LOG_BF_REG_SIZE)),
            // What is no capability, or of another page.
            ..Self::default()
        };
        match general.get(CmdHcaCap::PORT_TYPE) {
            INFINIBAND => {}
            ETHERNET if ROCE => {
                if !general.is_set(CmdHcaCap::ROCE) {
                    return Err(Error::NoRoce);
                }
                commands.query_page(CapabilityType::Roce, CURRENT, &mut atomic)?;
                let roce = view::<RoceCap>(&atomic);
                if roce.get(RoceCap::ROCE_VERSION) & 1 << ROCE_VERSION_2 == 0 {
                    return Err(Error::NoRoce);
                }
                // Paths name an entry by eight bits.
                caps.gids = roce.get(RoceCap::ROCE_ADDRESS_TABLE_SIZE).min(1 << 8) as u16;
                (caps.ethernet, caps.pkeys) = (true, 1);
                caps.stations = 1 << log(CmdHcaCap::LOG_MAX_CURRENT_MC_LIST, 15);
                caps.loopback =
                    [CmdHcaCap::DISABLE_LOCAL_LB_UC, CmdHcaCap::DISABLE_LOCAL_LB_MC].map(|field| general.get(field));
                // Linux's `mlx5_get_qp_default_ts` asks the same two.
                caps.qp_time_stamps = time_stamps(roce.get(RoceCap::QP_TS_FORMAT));
            }
            port_type => return Err(Error::PortType { port_type: port_type as u8 }),
        }
        let srq = caps.srq_cap();
        log_event!(debug, "windows {}, atomics {}", caps.windows, caps.atomics);
        let count = |field| 1u32 << log(field, 24);
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ZERO_BASED;
        access.set(Access::REMOTE_ATOMIC, caps.atomics);
        access.set(Access::MW_BIND, caps.windows);
        access.set(Access::RELAXED_ORDERING, caps.relaxed_write || caps.relaxed_read);
        let log_region = general.get(CmdHcaCap::LOG_MAX_MRW_SZ);
        *self = caps;
        *attr = DeviceAttr {
            max_mr_size: if (1..64).contains(&log_region) { 1 << log_region } else { u64::MAX },
            page_size_cap: u64::MAX << general.get(CmdHcaCap::LOG_PG_SZ).clamp(12, 31) & u64::from(u32::MAX),
            max_qp: count(CmdHcaCap::LOG_MAX_QP).min(MAX_QPS),
            max_qp_wr: 1 << caps.log_max_qp_sz,
            max_sge: caps.max_sge(),
            max_srq: if srq.max_wr == 0 { 0 } else { count(CmdHcaCap::LOG_MAX_SRQ).min(MAX_SRQS) },
            max_srq_wr: srq.max_wr,
            max_srq_sge: srq.max_sge,
            max_cq: count(CmdHcaCap::LOG_MAX_CQ).min(MAX_CQS),
            max_cqe: 1 << caps.log_max_cq_sz,
            max_mr: count(CmdHcaCap::LOG_MAX_MKEY),
            max_mw: if caps.windows { count(CmdHcaCap::LOG_MAX_MKEY) } else { 0 },
            max_mw_size: if caps.windows { 1 << 31 } else { 0 },
            max_pd: count(CmdHcaCap::LOG_MAX_PD),
            max_qp_rd_atom: 1 << general.get(CmdHcaCap::LOG_MAX_RA_RES_QP).min(7),
            max_qp_init_rd_atom: 1 << general.get(CmdHcaCap::LOG_MAX_RA_REQ_QP).min(7),
            atomics: caps.atomics,
            masked_atomics,
            access,
            max_inline_data: caps.max_inline(),
            max_msg_size: 1 << caps.log_max_msg,
            phys_port_cnt: PORT,
            ..*attr
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, started};

    /// Queries the capabilities of a device of whose general page these bits are set: the dword that begins at a byte, and a bit of it.
    fn with(bits: &'static [(usize, u32)]) -> Capabilities {
        let (mut driver, shared) = started();
        shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, _| {
            if at == 0x18 {
                let output = (u64::from_be_bytes(memory[48..56].try_into().unwrap()) - DEVICE_ADDR) as usize;
                for (dword, bit) in bits {
                    memory[output + dword + 3 - (*bit / 8) as usize] |= 1 << (bit % 8);
                }
                memory[32..48].fill(0);
                memory[63] = 0;
            }
        }));
        let driver: &mut Driver<MockPlatform> = &mut driver;
        let Driver { caps, commands, attr, .. } = driver;
        caps.query(commands, attr).unwrap();
        *caps
    }

    /// Half a register of 128, 256 or 512 bytes; a device with one of another size has none.
    #[test]
    fn half_a_blue_flame_register_is_what_a_request_is_copied_to() {
        let half = |blue_flame| Capabilities { blue_flame, ..Capabilities::default() }.blue_flame_half();
        assert_eq!([None, Some(7), Some(8), Some(9)].map(half), [0, 64, 128, 256]);
        for log in (0..=u32::from(u8::MAX)).filter(|log| !(7..=9).contains(log)) {
            assert_eq!(half(Some(log)), 0, "{log}");
        }
    }

    /// By `cmd_hca_cap` of `mlx5_ifc.h`: relaxed_ordering_read_pci_enabled is bit 22 of the dword at 28, relaxed_ordering_read bit 21 of that
    /// at 100.
    #[test]
    fn reads_are_ordered_relaxed_by_old_and_new_firmware() {
        assert_eq!([&[][..], &[(28, 22)], &[(100, 21)]].map(|bits| with(bits).relaxed_read), [false, true, true]);
    }

    /// apm is bit 17 of the dword at 68, disable_local_lb_uc and _mc bits 30 and 29 of that at 124, log_max_current_mc_list 12 to 8 of it.
    /// An Ethernet port has bit 8 of the dword at 52 (port_type) and bit 2 of that at 64 (roce), RoCEv2 bit 2 of that at 16 of the page of RoCE.
    #[cfg(feature = "roce")]
    #[test]
    fn port_capabilities_are_read() {
        let caps = with(&[(52, 8), (64, 2), (16, 2), (68, 17), (124, 30), (124, 8), (124, 10)]);
        assert_eq!((caps.apm, caps.loopback, caps.stations), (true, [1, 0], 32));
        let caps = with(&[(52, 8), (64, 2), (16, 2), (124, 29)]);
        assert_eq!((caps.apm, caps.loopback, caps.stations), (false, [0, 1], 1));
    }
}
