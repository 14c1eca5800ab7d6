//! Capability pages: what the device can do at most, and what the driver chose.

use bareverbs_mlx5_spec::{
    AtomicCaps, CapabilityType, CmdHcaCap, CmdStatus, DeviceMemCap, Field, FlowTableNicCap, FlowTablePropLayout, Layout,
    PerProtocolNetworkingOffloadCaps, Place, PortType, ROCE_VERSION_2, RoceCap, UdpHeader, View, ViewMut, roce_l3_type,
    uctx_cap,
};

use crate::audit::Finding;
use crate::config::DeviceConfig;
use crate::engine::{
    FIRST_SOURCE_PORT, LOG_MAX_ALIGNMENT, LOG_MAX_COUNTER_QUERY, LOG_MAX_DESTINATIONS, LOG_MAX_GROUPS, LOG_MAX_KLMS,
    LOG_MAX_QUEUE_TABLE, LOG_MAX_RULE_COUNTERS, LOG_MAX_TABLE_SIZE, LOG_MAX_WQ_SIZE, MAX_LEVEL, MAX_MEMBERS, ROCE_ADDRESSES,
};
use crate::firmware::nic_vport::LOG_MAX_LIST;
use crate::limits::LOG_MIN_ALLOCATION;
use crate::registers::bar0::{DEVICE_MEMORY_SIZE, DEVICE_MEMORY_START};
use crate::registers::init_segment::TIMER_KHZ;
use crate::registry::{
    LOG_MAX_CONTEXTS, LOG_MAX_FLOW_COUNTERS, LOG_MAX_NIC_QUEUES, LOG_MAX_NIC_TABLES, LOG_MAX_UMEMS, LOG_MAX_XRCDS,
    MAX_COUNTER_SETS,
};
use crate::step::StepContext;

/// Bytes of the pages that exist here.
const PAGE: usize = 256;
/// The last page that drivers know of (Linux `enum mlx5_cap_type`).
const LAST_PAGE: u32 = 0x28;
/// [`CmdHcaCap::CMDIF_CHECKSUM`]: signatures on commands and on mailbox blocks, both ways.
const CHECKSUM_ALL: u32 = 3;
/// [`AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE`]: operands in host byte order in memory.
const HOST_ENDIANNESS: u32 = 1;
/// [`PerProtocolNetworkingOffloadCaps::WQE_INLINE_MODE`]: no header has to lie in the WQE (Linux
/// `MLX5_CAP_INLINE_MODE_NOT_REQUIRED`).
const NO_INLINE: u32 = 2;

#[derive(Clone, Debug)]
struct Pair {
    most: Vec<u8>,
    current: Vec<u8>,
}

impl Pair {
    fn new<L: Layout>(fill: impl FnOnce(&mut ViewMut<'_, L>)) -> Self {
        let mut most = vec![0; PAGE.max(L::SIZE)];
        if let Some(mut page) = ViewMut::<L>::new(&mut most) {
            fill(&mut page);
        }
        Self { current: most.clone(), most }
    }

    fn current<L: Layout>(&self, field: Field<L>) -> u32 {
        View::new(&self.current).map_or(0, |page| page.get(field))
    }
}

/// The capability pages.
#[derive(Clone, Debug)]
pub(crate) struct Capabilities {
    general: Pair,
    atomic: Pair,
    atomics: bool,
    device_memory: Pair,
    /// What an Ethernet port has.
    roce: Option<Pair>,
    offloads: Option<Pair>,
    flow_tables: Option<Pair>,
}

/// Reports bits of `page` that no field of its layout covers. Returns whether each field is at most what `most` allows.
fn check(ctx: &mut StepContext<'_>, info: bareverbs_mlx5_spec::LayoutInfo, page: &[u8], most: &[u8]) -> bool {
    let dword =
        |bytes: &[u8], at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    let mut fits = true;
    let mut known = [0_u32; PAGE / 4];
    for field in info.fields {
        match field.place {
            Place::Bits(bits) => {
                fits &= bits.take(dword(page, bits.dword)) <= bits.take(dword(most, bits.dword));
                if let Some(known) = known.get_mut(bits.dword / 4) {
                    *known |= bits.mask();
                }
            }
            place => {
                let (at, len) = place.bytes();
                fits &= page.get(at..at + len) <= most.get(at..at + len);
                known.iter_mut().skip(at / 4).take(len / 4).for_each(|bits| *bits = u32::MAX);
            }
        }
    }
    for (i, bits) in known.iter().enumerate() {
        if dword(page, i * 4) & !bits != 0 {
            ctx.audit.report(Finding::ReservedBits { layout: info.name, offset: i * 4 });
        }
    }
    fits
}

impl Capabilities {
    pub(crate) fn new(config: &DeviceConfig) -> Self {
        let limits = &config.limits;
        let is_ethernet = config.mac().is_some();
        let mut general = Pair::new::<CmdHcaCap>(|cap| {
            cap.set(CmdHcaCap::LOG_MAX_SRQ_SZ, limits.log_max_srq_size.into())
                .set(CmdHcaCap::LOG_MAX_QP_SZ, limits.log_max_qp_size.into())
                .set(CmdHcaCap::LOG_MAX_QP, limits.log_max_qp.into())
                .set(CmdHcaCap::LOG_MAX_SRQ, limits.log_max_srq.into())
                .set(CmdHcaCap::LOG_MAX_CQ_SZ, limits.log_max_cq_size.into())
                .set(CmdHcaCap::LOG_MAX_CQ, limits.log_max_cq.into())
                .set(CmdHcaCap::LOG_MAX_EQ_SZ, limits.log_max_eq_size.into())
                .set(CmdHcaCap::LOG_MAX_MKEY, limits.log_max_mkey.into())
                .set(CmdHcaCap::LOG_MAX_EQ, limits.log_max_eq.into())
                .set(CmdHcaCap::MAX_NUM_EQS, 1 << limits.log_max_eq)
                .set(CmdHcaCap::LOG_MAX_KLM_LIST_SIZE, LOG_MAX_KLMS)
                .set(CmdHcaCap::LOG_MAX_MRW_SZ, 64)
                .set(CmdHcaCap::MAX_INDIRECTION, 4)
                .set(CmdHcaCap::FIXED_BUFFER_SIZE, 1)
                .set(CmdHcaCap::RELAXED_ORDERING_WRITE, config.relaxed_ordering.write.into())
                .set(CmdHcaCap::RELAXED_ORDERING_READ_PCI_ENABLED, config.relaxed_ordering.read_pci_enabled.into())
                .set(CmdHcaCap::RELAXED_ORDERING_READ, config.relaxed_ordering.read.into())
                .set(CmdHcaCap::LOG_MAX_RA_REQ_QP, limits.log_max_reads.into())
                .set(CmdHcaCap::LOG_MAX_RA_RES_QP, limits.log_max_reads.into())
                .set(CmdHcaCap::IB_VIRT, (config.ib_virt && !is_ethernet).into())
                .set(CmdHcaCap::PORT_TYPE, if is_ethernet { PortType::Ethernet } else { PortType::InfiniBand }.code())
                .set(CmdHcaCap::DEVICE_MEMORY, 1)
                .set(CmdHcaCap::VPORT_COUNTERS, 1)
                .set(CmdHcaCap::LOCAL_CA_ACK_DELAY, 15)
                .set(CmdHcaCap::NUM_PORTS, 1)
                .set(CmdHcaCap::LOG_MAX_MSG, limits.log_max_msg.into())
                .set(CmdHcaCap::CQE_VERSION, 1)
                .set(CmdHcaCap::UMR_MODIFY_ENTITY_SIZE_DISABLED, (!config.umr).into())
                .set(CmdHcaCap::UMR_MODIFY_ATOMIC_DISABLED, config.restricted_umr.into())
                .set(CmdHcaCap::UMR_INDIRECT_MKEY_DISABLED, config.restricted_umr.into())
                .set(CmdHcaCap::NUM_VHCA_PORTS, config.vhca_ports.into())
                .set(CmdHcaCap::CMDIF_CHECKSUM, if config.command_checksum { CHECKSUM_ALL } else { 0 })
                .set(CmdHcaCap::ATOMIC, config.atomics.into())
                .set(CmdHcaCap::CQ_OI, 1)
                .set(CmdHcaCap::CQ_RESIZE, 1)
                .set(CmdHcaCap::CQ_MODERATION, 1)
                .set(CmdHcaCap::CQ_PERIOD_MODE_MODIFY, 1)
                .set(CmdHcaCap::CQ_PERIOD_START_FROM_CQE, 1)
                .set(CmdHcaCap::IMAICL, 1)
                .set(CmdHcaCap::QKV, 1)
                .set(CmdHcaCap::PKV, 1)
                .set(CmdHcaCap::XRC, 1)
                .set(CmdHcaCap::UD, 1)
                .set(CmdHcaCap::UC, 1)
                .set(CmdHcaCap::RC, 1)
                .set(CmdHcaCap::LOG_PG_SZ, 12)
                .set(CmdHcaCap::BF, config.blue_flame.into())
                .set(CmdHcaCap::LOG_BF_REG_SIZE, 9)
                .set(CmdHcaCap::MAX_WQE_SZ_SQ, 1024)
                .set(CmdHcaCap::MAX_WQE_SZ_RQ, 512)
                .set(CmdHcaCap::MAX_QP_MCG, MAX_MEMBERS as u32)
                .set(CmdHcaCap::LOG_MAX_MCG, LOG_MAX_GROUPS)
                .set(CmdHcaCap::BLOCK_LB_MC, 1)
                .set(CmdHcaCap::LOG_MAX_PD, limits.log_max_pd.into())
                // Without sets of counters Linux shows none of what queue pairs met (`hw_counters`, `rdma statistic`).
                .set(CmdHcaCap::MAX_QP_CNT, MAX_COUNTER_SETS)
                .set(CmdHcaCap::OUT_OF_SEQ_CNT, 1)
                .set(CmdHcaCap::RETRANSMISSION_Q_COUNTERS, 1)
                .set(CmdHcaCap::MODIFY_RQ_COUNTER_SET_ID, 1)
                .set(CmdHcaCap::LOG_MAX_XRCD, LOG_MAX_XRCDS)
                .set(CmdHcaCap::LOG_MAX_UCTX, if config.devx { LOG_MAX_CONTEXTS } else { 0 })
                .set(CmdHcaCap::LOG_MAX_UMEM, if config.devx { LOG_MAX_UMEMS } else { 0 })
                .set(CmdHcaCap::UMEM_UID_0, config.devx.into())
                .set(CmdHcaCap::UCTX_CAP, if config.devx { uctx_cap::RAW_TX } else { 0 })
                .set(CmdHcaCap::DEVICE_FREQUENCY_MHZ, TIMER_KHZ / 1000)
                .set(CmdHcaCap::DEVICE_FREQUENCY_KHZ, TIMER_KHZ)
                .set(CmdHcaCap::SQ_TS_FORMAT, config.real_time_clock.into())
                .set(CmdHcaCap::RQ_TS_FORMAT, config.real_time_clock.into())
                .set(CmdHcaCap::PAGE_REQUEST_DISABLE, (config.pages.chunk == 0).into());
            if is_ethernet {
                cap.set(CmdHcaCap::ROCE, 1)
                    .set(CmdHcaCap::ETH_NET_OFFLOADS, 1)
                    .set(CmdHcaCap::NIC_FLOW_TABLE, 1)
                    .set(CmdHcaCap::LOG_MAX_RQ, LOG_MAX_NIC_QUEUES)
                    .set(CmdHcaCap::LOG_MAX_SQ, LOG_MAX_NIC_QUEUES)
                    .set(CmdHcaCap::LOG_MAX_TIR, LOG_MAX_NIC_QUEUES)
                    .set(CmdHcaCap::LOG_MAX_TIS, LOG_MAX_NIC_QUEUES)
                    .set(CmdHcaCap::LOG_MAX_RMP, LOG_MAX_NIC_QUEUES)
                    .set(CmdHcaCap::LOG_MAX_RQT, LOG_MAX_NIC_TABLES)
                    .set(CmdHcaCap::LOG_MAX_RQT_SIZE, LOG_MAX_QUEUE_TABLE)
                    .set(CmdHcaCap::LOG_MAX_WQ_SZ, LOG_MAX_WQ_SIZE)
                    .set(CmdHcaCap::LOG_MAX_STRIDE_SZ_RQ, 9)
                    .set(CmdHcaCap::LOG_MAX_STRIDE_SZ_SQ, 6)
                    .set(CmdHcaCap::LOG_MAX_TRANSPORT_DOMAIN, LOG_MAX_XRCDS)
                    .set(CmdHcaCap::LOG_MAX_CURRENT_UC_LIST, LOG_MAX_LIST)
                    .set(CmdHcaCap::LOG_MAX_CURRENT_MC_LIST, LOG_MAX_LIST)
                    .set(CmdHcaCap::LOG_MAX_VLAN_LIST, LOG_MAX_LIST)
                    .set(CmdHcaCap::MAX_FLOW_COUNTER_15_0, 1 << LOG_MAX_FLOW_COUNTERS)
                    .set(CmdHcaCap::LOG_MAX_FLOW_COUNTER_BULK, LOG_MAX_COUNTER_QUERY);
            }
        });
        if let Some(log) = config.initial_log_max_qp
            && let Some(mut page) = ViewMut::<CmdHcaCap>::new(&mut general.current)
        {
            page.set(CmdHcaCap::LOG_MAX_QP, log.min(limits.log_max_qp).into());
        }
        let mut atomic = Pair::new::<AtomicCaps>(|cap| {
            cap.set(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, HOST_ENDIANNESS)
                .set(AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, 1)
                // Compare-and-swap and fetch-and-add, on eight bytes; with masks on four bytes too.
                .set(AtomicCaps::ATOMIC_OPERATIONS, if config.extended_atomics { 0b1111 } else { 0b11 })
                .set(AtomicCaps::ATOMIC_SIZE_QP, if config.extended_atomics { 1 << 3 | 1 << 2 } else { 1 << 3 });
        });
        if let Some(mut page) = ViewMut::<AtomicCaps>::new(&mut atomic.current) {
            page.set(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, 0);
        }
        let device_memory = Pair::new::<DeviceMemCap>(|cap| {
            cap.set(DeviceMemCap::MEMIC, 1)
                .set(DeviceMemCap::LOG_MIN_MEMIC_ALLOC_SIZE, LOG_MIN_ALLOCATION)
                .set(DeviceMemCap::LOG_MAX_MEMIC_ADDR_ALIGNMENT, LOG_MAX_ALIGNMENT)
                .set64(DeviceMemCap::MEMIC_BAR_START_ADDR, DEVICE_MEMORY_START)
                .set(DeviceMemCap::MEMIC_BAR_SIZE, DEVICE_MEMORY_SIZE as u32)
                .set(DeviceMemCap::MAX_MEMIC_SIZE, DEVICE_MEMORY_SIZE as u32);
        });
        let roce = is_ethernet.then(|| {
            Pair::new::<RoceCap>(|cap| {
                cap.set(RoceCap::QP_TS_FORMAT, config.real_time_clock.into())
                    .set(RoceCap::L3_TYPE, 1 << 1 << roce_l3_type::IPV4 | 1 << 1 << roce_l3_type::IPV6)
                    .set(RoceCap::ROCE_VERSION, 1 << ROCE_VERSION_2)
                    .set(RoceCap::R_ROCE_DEST_UDP_PORT, UdpHeader::ROCE_V2)
                    .set(RoceCap::R_ROCE_MIN_SRC_UDP_PORT, FIRST_SOURCE_PORT.into())
                    .set(RoceCap::R_ROCE_MAX_SRC_UDP_PORT, u16::MAX.into())
                    .set(RoceCap::ROCE_ADDRESS_TABLE_SIZE, ROCE_ADDRESSES as u32);
            })
        });
        let offloads = is_ethernet.then(|| {
            Pair::new::<PerProtocolNetworkingOffloadCaps>(|cap| {
                cap.set(PerProtocolNetworkingOffloadCaps::CSUM_CAP, 1)
                    .set(PerProtocolNetworkingOffloadCaps::VLAN_CAP, 1)
                    .set(PerProtocolNetworkingOffloadCaps::SELF_LB_EN_MODIFIABLE, 1)
                    .set(PerProtocolNetworkingOffloadCaps::MAX_LSO_CAP, 16)
                    .set(PerProtocolNetworkingOffloadCaps::WQE_INLINE_MODE, NO_INLINE)
                    .set(PerProtocolNetworkingOffloadCaps::RSS_IND_TBL_CAP, 8);
            })
        });
        let flow_tables = is_ethernet.then(|| {
            Pair::new::<FlowTableNicCap>(|cap| {
                cap.sub(FlowTableNicCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE)
                    .set(FlowTablePropLayout::FT_SUPPORT, 1)
                    // With these four the driver names the first table, and rules change all at once.
                    .set(FlowTablePropLayout::FLOW_MODIFY_EN, 1)
                    .set(FlowTablePropLayout::MODIFY_ROOT, 1)
                    .set(FlowTablePropLayout::IDENTIFIED_MISS_TABLE_MODE, 1)
                    .set(FlowTablePropLayout::FLOW_TABLE_MODIFY, 1)
                    .set(FlowTablePropLayout::LOG_MAX_FT_SIZE, LOG_MAX_TABLE_SIZE)
                    .set(FlowTablePropLayout::MAX_FT_LEVEL, MAX_LEVEL)
                    .set(FlowTablePropLayout::LOG_MAX_FT_NUM, LOG_MAX_NIC_TABLES)
                    .set(FlowTablePropLayout::LOG_MAX_DESTINATION, LOG_MAX_DESTINATIONS)
                    .set(FlowTablePropLayout::LOG_MAX_FLOW, 20)
                    .set(FlowTablePropLayout::FLOW_COUNTER, 1)
                    .set(FlowTablePropLayout::LOG_MAX_FLOW_COUNTER, LOG_MAX_RULE_COUNTERS);
            })
        });
        Self { general, atomic, atomics: config.atomics, device_memory, roce, offloads, flow_tables }
    }

    fn pair(&mut self, page: u32) -> Result<(&mut Pair, bareverbs_mlx5_spec::LayoutInfo), CmdStatus> {
        match CapabilityType::from_code(page) {
            Some(CapabilityType::General) => Ok((&mut self.general, CmdHcaCap::INFO)),
            Some(CapabilityType::Atomic) if self.atomics => Ok((&mut self.atomic, AtomicCaps::INFO)),
            _ => Err(CmdStatus::BadParam),
        }
    }

    /// Returns the page that QUERY_HCA_CAP's `op_mod` asks for; one in which the device has nothing is all zero.
    pub(crate) fn query(&self, op_mod: u32) -> Result<&[u8], CmdStatus> {
        let page = op_mod >> 1;
        let pair = match CapabilityType::from_code(page) {
            Some(CapabilityType::General) => Some(&self.general),
            Some(CapabilityType::Atomic) if self.atomics => Some(&self.atomic),
            Some(CapabilityType::DeviceMemory) => Some(&self.device_memory),
            Some(CapabilityType::Roce) => self.roce.as_ref(),
            Some(CapabilityType::EthernetOffloads) => self.offloads.as_ref(),
            Some(CapabilityType::FlowTable) => self.flow_tables.as_ref(),
            _ => None,
        };
        match pair {
            Some(pair) => Ok(if op_mod & 1 != 0 { &pair.current } else { &pair.most }),
            None if page <= LAST_PAGE => Ok(&[0; PAGE]),
            None => Err(CmdStatus::BadParam),
        }
    }

    /// Takes the page that SET_HCA_CAP's `op_mod` names; refused if it asks for more than there is.
    pub(crate) fn set(&mut self, ctx: &mut StepContext<'_>, op_mod: u32, page: &[u8]) -> Result<(), CmdStatus> {
        let (pair, info) = self.pair(op_mod >> 1)?;
        let page = page.get(..PAGE).ok_or(CmdStatus::BadInputLen)?;
        if !check(ctx, info, page, &pair.most) {
            return Err(CmdStatus::BadParam);
        }
        if info.name == AtomicCaps::INFO.name {
            // Nothing but the mode can be chosen there; drivers leave the rest of the page empty.
            let mode = View::<AtomicCaps>::new(page).map_or(0, |page| page.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE));
            if let Some(mut current) = ViewMut::<AtomicCaps>::new(&mut pair.current) {
                current.set(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, mode);
            }
        } else {
            pair.current = page.to_vec();
        }
        Ok(())
    }

    /// Returns a field of the general page in force.
    pub(crate) fn general(&self, field: Field<CmdHcaCap>) -> u32 {
        self.general.current(field)
    }

    /// Returns whether atomics treat memory as host-endian numbers.
    pub(crate) fn atomic_host_endian(&self) -> bool {
        self.atomic.current(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE) == HOST_ENDIANNESS
    }
}
