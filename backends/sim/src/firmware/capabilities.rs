//! Capability pages: what the device can do at most, and what the driver chose.

use bareverbs_mlx5_spec::{
    AtomicCaps, CapabilityType, CmdHcaCap, CmdStatus, DeviceMemCap, Field, Layout, Place, View, ViewMut, uctx_cap,
};

use crate::audit::Finding;
use crate::config::DeviceConfig;
use crate::engine::{LOG_MAX_ALIGNMENT, LOG_MAX_GROUPS, LOG_MAX_KLMS, MAX_MEMBERS};
use crate::limits::LOG_MIN_ALLOCATION;
use crate::registers::bar0::{DEVICE_MEMORY_SIZE, DEVICE_MEMORY_START};
use crate::registers::init_segment::TIMER_KHZ;
use crate::registry::{LOG_MAX_CONTEXTS, LOG_MAX_UMEMS, LOG_MAX_XRCDS};
use crate::step::StepContext;

/// Bytes of the pages that exist here.
const PAGE: usize = 256;
/// The last page that drivers know of (Linux `enum mlx5_cap_type`).
const LAST_PAGE: u32 = 0x28;
/// [`CmdHcaCap::CMDIF_CHECKSUM`]: signatures on commands and on mailbox blocks, both ways.
const CHECKSUM_ALL: u32 = 3;
/// [`AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE`]: operands in host byte order in memory.
const HOST_ENDIANNESS: u32 = 1;

#[derive(Clone, Debug)]
struct Pair {
    most: Vec<u8>,
    current: Vec<u8>,
}

impl Pair {
    fn new<L: Layout>(fill: impl FnOnce(&mut ViewMut<'_, L>)) -> Self {
        let mut most = vec![0; PAGE];
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
                .set(CmdHcaCap::LOG_MAX_RA_REQ_QP, limits.log_max_reads.into())
                .set(CmdHcaCap::LOG_MAX_RA_RES_QP, limits.log_max_reads.into())
                .set(CmdHcaCap::IB_VIRT, config.ib_virt.into())
                .set(CmdHcaCap::DEVICE_MEMORY, 1)
                .set(CmdHcaCap::VPORT_COUNTERS, 1)
                .set(CmdHcaCap::LOCAL_CA_ACK_DELAY, 15)
                .set(CmdHcaCap::NUM_PORTS, 1)
                .set(CmdHcaCap::LOG_MAX_MSG, limits.log_max_msg.into())
                .set(CmdHcaCap::CQE_VERSION, 1)
                .set(CmdHcaCap::UMR_MODIFY_ENTITY_SIZE_DISABLED, (!config.umr).into())
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
                .set(CmdHcaCap::LOG_MAX_XRCD, LOG_MAX_XRCDS)
                .set(CmdHcaCap::LOG_MAX_UCTX, if config.devx { LOG_MAX_CONTEXTS } else { 0 })
                .set(CmdHcaCap::LOG_MAX_UMEM, if config.devx { LOG_MAX_UMEMS } else { 0 })
                .set(CmdHcaCap::UMEM_UID_0, config.devx.into())
                .set(CmdHcaCap::UCTX_CAP, if config.devx { uctx_cap::RAW_TX } else { 0 })
                .set(CmdHcaCap::DEVICE_FREQUENCY_MHZ, TIMER_KHZ / 1000)
                .set(CmdHcaCap::DEVICE_FREQUENCY_KHZ, TIMER_KHZ)
                .set(CmdHcaCap::PAGE_REQUEST_DISABLE, (config.pages.chunk == 0).into());
        });
        if let Some(log) = config.initial_log_max_qp
            && let Some(mut page) = ViewMut::<CmdHcaCap>::new(&mut general.current)
        {
            page.set(CmdHcaCap::LOG_MAX_QP, log.min(limits.log_max_qp).into());
        }
        let mut atomic = Pair::new::<AtomicCaps>(|cap| {
            cap.set(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, HOST_ENDIANNESS)
                .set(AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, 1)
                // Compare-and-swap and fetch-and-add, on eight bytes.
                .set(AtomicCaps::ATOMIC_OPERATIONS, 0b11)
                .set(AtomicCaps::ATOMIC_SIZE_QP, 1 << 3);
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
        Self { general, atomic, atomics: config.atomics, device_memory }
    }

    fn pair(&mut self, page: u32) -> Result<(&mut Pair, bareverbs_mlx5_spec::LayoutInfo), CmdStatus> {
        match CapabilityType::from_code(page) {
            Some(CapabilityType::General) => Ok((&mut self.general, CmdHcaCap::INFO)),
            Some(CapabilityType::Atomic) if self.atomics => Ok((&mut self.atomic, AtomicCaps::INFO)),
            _ => Err(CmdStatus::BadParam),
        }
    }

    /// Returns the page that QUERY_HCA_CAP's `op_mod` asks for; one in which the device has nothing is all zero.
    pub(crate) fn query(&mut self, op_mod: u32) -> Result<&[u8], CmdStatus> {
        let page = op_mod >> 1;
        if page == CapabilityType::DeviceMemory.code() {
            // Nothing of it can be chosen.
            return Ok(&self.device_memory.most);
        }
        match self.pair(page) {
            Ok((pair, _)) => Ok(if op_mod & 1 != 0 { &pair.current } else { &pair.most }),
            Err(_) if page <= LAST_PAGE => Ok(&[0; PAGE]),
            Err(status) => Err(status),
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
