//! Capabilities of the device: queried, set, and checked.

use bareverbs::platform::Platform;
use bareverbs::{Access, CqModeration, DeviceAttr, MaskedAtomics, MwType2, SrqCap};
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
/// What the fields of a completion queue's context take (Linux `MLX5_MAX_CQ_COUNT`, `MLX5_MAX_CQ_PERIOD`).
const MAX_MODERATION: CqModeration = CqModeration { count: 0xffff, period: 0xfff };
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

/// What the driver makes of the capabilities. What it takes as it is, it reads where it matters ([`Driver::capability`](crate::driver::Driver::capability)), and the limits of
/// the verbs are in the attributes of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    /// Shared receive queues are receive memory pools: the interface step is 1. Known before the others.
    pub(crate) pools: bool,
    pub(crate) max_send_wqe: u32,
    /// The port is an Ethernet port; asked through [`Self::is_ethernet`].
    pub(crate) ethernet: bool,
    /// Every path from the port needs a global route, as the port said last.
    pub(crate) grh_required: bool,
    pub(crate) gids: u16,
    pub(crate) pkeys: u16,
    /// Completions carry the user index.
    pub(crate) user_index: bool,
    /// The time stamps that contexts of queue pairs ask for.
    pub(crate) qp_time_stamps: u32,
    /// 1 if the device orders relaxed: writes, reads.
    pub(crate) relaxed: [u32; 2],
}

impl Capabilities {
    /// Returns whether the port is an Ethernet port. A driver without the feature `roce` has none, which the compiler knows.
    pub(crate) const fn is_ethernet(&self) -> bool {
        ROCE && self.ethernet
    }
}

/// Returns the time stamps that contexts ask for on a device with these formats: a card with a real-time clock refuses those of another.
pub(crate) const fn time_stamps(formats: u32) -> u32 {
    if formats == 0 { ts_format::FREE_RUNNING } else { ts_format::DEFAULT }
}

/// The start of the output of QUERY_HCA_CAP and of the input of SET_HCA_CAP: 16 bytes, then the page as far as it has fields.
pub(crate) type Page = [u8; QueryHcaCapOut::CAPABILITY.offset() + CAPABILITY];

const _: () = assert!(QueryHcaCapOut::CAPABILITY.offset() == SetHcaCapIn::CAPABILITY.offset());

/// Returns the capabilities in a page.
const fn capabilities<M, L: Layout>() -> Sub<M, L> {
    assert!(L::SIZE <= CAPABILITY);
    QueryHcaCapOut::CAPABILITY.as_sub().within()
}

pub(crate) fn view<L: Layout>(page: &Page) -> View<'_, L> {
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
        // Somebody may have turned it off for this function (`devlink dev param set … enable_roce`); Linux sets it too (`handle_hca_cap`).
        let may_turn_on = greatest.is_set(CmdHcaCap::ROCE_RW_SUPPORTED) && greatest.is_set(CmdHcaCap::ROCE);
        let roce = current.is_set(CmdHcaCap::ROCE) || ROCE && may_turn_on;
        let has_roce = current.get(CmdHcaCap::PORT_TYPE) == ETHERNET && roce;
        let has_atomics = current.is_set(CmdHcaCap::ATOMIC);
        ViewMut::<CmdIn>::of(&mut page)
            .sub(capabilities())
            .set(CmdHcaCap::PKEY_TABLE_SIZE, 0)
            .set(CmdHcaCap::ROCE, roce.into())
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
    /// Queries whether flow tables lead to queues for frames, and how much of a frame's headers a WQE
    /// must contain ([`WqeInlineCap`](bareverbs_mlx5_spec::WqeInlineCap)).
    // Not inlined: the page is on the stack only here.
    #[inline(never)]
    pub(crate) fn query_frame_capabilities(&mut self) -> Result<Option<u32>, Error> {
        const TABLES: usize = QueryHcaCapOut::CAPABILITY.offset() + FlowTableNicCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE.offset();
        let mut page = [0; size_of::<Page>()];
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
    // Not inlined: the page is on the stack only here.
    #[inline(never)]
    pub(crate) fn query<P: Platform>(
        &mut self,
        commands: &mut CommandInterface<P>,
        general: &mut Page,
        attr: &mut DeviceAttr,
    ) -> Result<(), Error> {
        let mut page = [0; size_of::<Page>()];
        commands.query_page(CapabilityType::General, CURRENT, general)?;
        let general = view::<CmdHcaCap>(general);
        let (mut atomics, mut masked_atomics) = (false, MaskedAtomics::default());
        if general.is_set(CmdHcaCap::ATOMIC) {
            commands.query_page(CapabilityType::Atomic, CURRENT, &mut page)?;
            let atomic = view::<AtomicCaps>(&page);
            let (operations, sizes) = (atomic.get(AtomicCaps::ATOMIC_OPERATIONS), atomic.get(AtomicCaps::ATOMIC_SIZE_QP));
            atomics = operations & ATOMIC_OPERATIONS == ATOMIC_OPERATIONS
                && sizes & ATOMIC_8_BYTES != 0
                && atomic.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE) == ATOMIC_HOST_ENDIANNESS;
            if atomics && operations & MASKED_OPERATIONS == MASKED_OPERATIONS {
                masked_atomics = MaskedAtomics { four: sizes & ATOMIC_4_BYTES != 0, eight: true };
            }
        }
        let log = |field: Field<CmdHcaCap>, most: u32| general.get(field).min(most);
        // Older firmware has the last alone, as long as relaxed ordering is on in the PCI configuration.
        let [write, read, old_read] =
            [CmdHcaCap::RELAXED_ORDERING_WRITE, CmdHcaCap::RELAXED_ORDERING_READ, CmdHcaCap::RELAXED_ORDERING_READ_PCI_ENABLED]
                .map(|field| general.get(field));
        *self = Self {
            max_send_wqe: log(CmdHcaCap::MAX_WQE_SZ_SQ, MAX_SEND_WQE) & !15,
            ethernet: false,
            gids: 8 << log(CmdHcaCap::GID_TABLE_SIZE, 4),
            pkeys: 128 << log(CmdHcaCap::PKEY_TABLE_SIZE, 5),
            user_index: general.get(CmdHcaCap::CQE_VERSION) == 1,
            qp_time_stamps: time_stamps(general.get(CmdHcaCap::SQ_TS_FORMAT)),
            relaxed: [write, read | old_read],
            ..*self
        };
        match general.get(CmdHcaCap::PORT_TYPE) {
            INFINIBAND => {}
            ETHERNET if ROCE => {
                if !general.is_set(CmdHcaCap::ROCE) {
                    return Err(Error::NoRoce);
                }
                commands.query_page(CapabilityType::Roce, CURRENT, &mut page)?;
                let roce = view::<RoceCap>(&page);
                if roce.get(RoceCap::ROCE_VERSION) & 1 << ROCE_VERSION_2 == 0 {
                    return Err(Error::NoRoce);
                }
                // Paths name an entry by eight bits.
                self.gids = roce.get(RoceCap::ROCE_ADDRESS_TABLE_SIZE).min(1 << 8) as u16;
                (self.ethernet, self.pkeys) = (true, 1);
                // Linux's `mlx5_get_qp_default_ts` asks the same two.
                self.qp_time_stamps = time_stamps(roce.get(RoceCap::QP_TS_FORMAT));
            }
            port_type => return Err(Error::PortType { port_type: port_type as u8 }),
        }
        let [max_send_units, max_recv_units] =
            [self.max_send_wqe.saturating_sub(CONNECTED_HEAD), log(CmdHcaCap::MAX_WQE_SZ_RQ, 2048)]
                .map(|bytes| bytes / DS_UNIT as u32);
        // Of a device with interface step 1 alone. A WQE has a link before its data segments, and is a power of two of bytes.
        let log_srq = if self.pools { log(CmdHcaCap::LOG_MAX_SRQ_SZ, 15) } else { 0 };
        let srq = match max_recv_units.checked_ilog2() {
            Some(log @ 1..) if log_srq != 0 => SrqCap { max_wr: (1 << log_srq) - 1, max_sge: (1 << log) - 1 },
            _ => SrqCap::default(),
        };
        // A request that binds changes every right of a key, that of atomics too, and leaves its list. Functions whose firmware admits less
        // than that (restricted UMR of virtual functions) have none: such a request would end their queue pair.
        let restricted = [CmdHcaCap::UMR_MODIFY_ATOMIC_DISABLED, CmdHcaCap::UMR_INDIRECT_MKEY_DISABLED];
        let windows = general.is_set(CmdHcaCap::IMAICL) && !restricted.into_iter().any(|field| general.is_set(field));
        log_event!(debug, "windows {}, atomics {}", windows, atomics);
        let count = |field| 1u32 << log(field, 24);
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ZERO_BASED;
        access.set(Access::REMOTE_ATOMIC, atomics);
        access.set(Access::MW_BIND, windows);
        access.set(Access::RELAXED_ORDERING, self.relaxed != [0; 2]);
        let log_region = general.get(CmdHcaCap::LOG_MAX_MRW_SZ);
        *attr = DeviceAttr {
            max_mr_size: if (1..64).contains(&log_region) { 1 << log_region } else { u64::MAX },
            page_size_cap: u64::MAX << general.get(CmdHcaCap::LOG_PG_SZ).clamp(12, 31) & u64::from(u32::MAX),
            max_qp: count(CmdHcaCap::LOG_MAX_QP).min(MAX_QPS),
            max_qp_wr: 1 << log(CmdHcaCap::LOG_MAX_QP_SZ, 15),
            max_sge: max_send_units.min(max_recv_units),
            max_srq: if srq.max_wr == 0 { 0 } else { count(CmdHcaCap::LOG_MAX_SRQ).min(MAX_SRQS) },
            max_srq_wr: srq.max_wr,
            max_srq_sge: srq.max_sge,
            max_cq: count(CmdHcaCap::LOG_MAX_CQ).min(MAX_CQS),
            max_cqe: 1 << log(CmdHcaCap::LOG_MAX_CQ_SZ, 22),
            max_cq_moderation: if general.is_set(CmdHcaCap::CQ_MODERATION) { MAX_MODERATION } else { CqModeration::default() },
            max_mr: count(CmdHcaCap::LOG_MAX_MKEY),
            max_mw: if windows { count(CmdHcaCap::LOG_MAX_MKEY) } else { 0 },
            max_mw_size: if windows { 1 << 31 } else { 0 },
            mw_type_2: if windows { MwType2::B } else { MwType2::None },
            max_pd: count(CmdHcaCap::LOG_MAX_PD),
            max_qp_rd_atom: 1 << general.get(CmdHcaCap::LOG_MAX_RA_RES_QP).min(7),
            max_qp_init_rd_atom: 1 << general.get(CmdHcaCap::LOG_MAX_RA_REQ_QP).min(7),
            atomics,
            masked_atomics,
            access,
            max_inline_data: self.max_send_wqe.saturating_sub(CONNECTED_HEAD + INLINE_HEAD),
            max_msg_size: 1 << log(CmdHcaCap::LOG_MAX_MSG, 31),
            phys_port_cnt: PORT,
            ..*attr
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::vec::Vec;

    use super::*;
    use crate::dma::arena::PageUse;
    use crate::driver::Driver;
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, PAGES, opcode_of, respond, started};

    /// Queries the capabilities of a device of whose general page these bits are set: the dword that begins at a byte, and a bit of it.
    fn with(bits: &'static [(usize, u32)]) -> Driver<MockPlatform, [PageUse; PAGES]> {
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
        driver.caps.pools = true;
        query(&mut driver);
        driver
    }

    fn query(driver: &mut Driver<MockPlatform>) {
        driver.caps.query(&mut driver.commands, &mut driver.general, &mut driver.attr).unwrap();
    }

    /// Linux's `mlx5_get_qp_default_ts`: a device that names no format has free-running time stamps, which are 0; the default is 1.
    #[test]
    fn time_stamps_are_the_default_of_a_device_that_has_formats() {
        assert_eq!([0, 1, 2, 3].map(time_stamps), [0, 1, 1, 1]);
    }

    /// By `cmd_hca_cap` of `mlx5_ifc.h`: relaxed_ordering_read_pci_enabled is bit 22 of the dword at 28, relaxed_ordering_read bit 21 of that
    /// at 100.
    #[test]
    fn reads_are_ordered_relaxed_by_old_and_new_firmware() {
        let relaxed = [&[][..], &[(28, 22)], &[(100, 21)]].map(|bits| with(bits).caps.relaxed);
        assert_eq!(relaxed, [[0, 0], [0, 1], [0, 1]]);
    }

    /// imaicl is bit 14 of the dword at 68; umr_modify_atomic_disabled and umr_indirect_mkey_disabled are the bits 23 and 22 of that at 64. A
    /// function with one of these refuses requests that bind (Linux `umr_check_mkey_mask`, `umr_can_use_indirect_mkey`).
    #[test]
    fn a_function_with_restricted_key_changes_has_no_windows() {
        const IMAICL: (usize, u32) = (68, 14);
        for (bits, has_windows) in [
            (&[IMAICL][..], true),
            (&[], false),
            (&[IMAICL, (64, 23)], false),
            (&[IMAICL, (64, 22)], false),
            (&[IMAICL, (64, 24)], true),
        ] {
            let attr = with(bits).attr;
            let offered = (attr.max_mw != 0, attr.max_mw_size != 0, attr.mw_type_2, attr.access.contains(Access::MW_BIND));
            let type_2 = if has_windows { MwType2::B } else { MwType2::None };
            assert_eq!(offered, (has_windows, has_windows, type_2, has_windows), "{bits:?}");
        }
    }

    /// By `cmd_hca_cap` of `mlx5_ifc.h`: roce is bit 2 of the dword at 64, roce_rw_supported bit 30 of that at 116, port_type the bits 9 and 8 of
    /// that at 52, and 1 is Ethernet. The query of the greatest values has an even `op_mod`.
    #[cfg(feature = "roce")]
    #[test]
    fn roce_that_was_turned_off_is_turned_on_where_that_may_be() {
        for (greatest, is_writable, current, set) in
            [(1, 1, 0, true), (1, 0, 0, false), (0, 1, 0, false), (1, 0, 1, true), (1, 1, 1, true), (0, 0, 0, false)]
        {
            let (mut driver, shared) = started();
            let written = Rc::new(RefCell::new(Vec::new()));
            let note = written.clone();
            respond(&shared, move |input, output| match opcode_of(input) {
                0x100 => {
                    let page = &mut output[16..];
                    let is_current = input[7] & 1 == 1;
                    page[52 + 2] = 1;
                    page[64 + 3] = if is_current { current } else { greatest } << 2;
                    page[116] = if is_current { 0 } else { is_writable << 6 };
                }
                0x109 => note.borrow_mut().push(input[16 + 64 + 3] & 4 != 0),
                opcode => panic!("{opcode:#x}"),
            });
            let case = (greatest, is_writable, current);
            let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
            assert_eq!(commands.set_general_capabilities(), Ok((false, set)), "{case:?}");
            assert_eq!(*written.borrow(), [set], "{case:?}");
        }
    }

    /// cq_moderation is bit 29 of the dword at 68.
    #[test]
    fn a_device_moderates_where_it_says_so() {
        let max = |bits| with(bits).attr.max_cq_moderation;
        assert_eq!((max(&[]), max(&[(68, 29)])), (CqModeration::default(), CqModeration { count: 65535, period: 4095 }));
    }

    /// max_wqe_sz_rq is the lower half of the dword at 84, log_max_srq_sz the upper byte of that at 16: receives of 512 bytes have room for
    /// a link and 31 SGEs, and one place of a queue stays free.
    #[test]
    fn shared_receive_queues_are_those_of_interface_step_1() {
        const OFFERED: &[(usize, u32)] = &[(84, 9), (16, 24), (16, 25), (16, 26), (16, 27)];
        let limits = |attr: &DeviceAttr| (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge);
        let mut driver = with(OFFERED);
        assert_eq!(limits(&driver.attr), (1, 32_767, 31));
        driver.caps.pools = false;
        query(&mut driver);
        assert_eq!(limits(&driver.attr), (0, 0, 0));
        for lacking in [&OFFERED[..1], &OFFERED[1..]] {
            assert_eq!(limits(&with(lacking).attr), (0, 0, 0), "{lacking:?}");
        }
    }

    /// By `atomic_caps` of `mlx5_ifc.h`: the byte order is the two upper bits of byte 8, the operations are at 18 and the sizes at 22.
    /// Compare-and-swap, fetch-and-add and both with masks are the bits 0 to 3, four and eight bytes the bits 2 and 3.
    #[test]
    fn atomics_are_both_operations_on_eight_bytes_in_the_order_of_the_host() {
        let atomics = |order: u8, operations: u16, sizes: u16| {
            let (mut driver, shared) = started();
            respond(&shared, move |input, output| {
                let page = &mut output[16..];
                // General capabilities, of which `atomic` is bit 1 of the dword at 64, and those of atomics.
                match input[7] >> 1 {
                    0 => page[67] = 2,
                    3 => {
                        page[8] = order << 6;
                        page[18..20].copy_from_slice(&operations.to_be_bytes());
                        page[22..24].copy_from_slice(&sizes.to_be_bytes());
                    }
                    other => panic!("page {other}"),
                }
            });
            query(&mut driver);
            let MaskedAtomics { four, eight } = driver.attr.masked_atomics;
            assert_eq!(driver.attr.access.contains(Access::REMOTE_ATOMIC), driver.attr.atomics);
            (driver.attr.atomics, four, eight)
        };
        for operations in 0..=15 {
            for sizes in 0..=31 {
                let both = operations & 1 == 1 && operations & 2 == 2 && sizes & 8 == 8;
                let masked = both && operations & 4 == 4 && operations & 8 == 8;
                assert_eq!(
                    atomics(1, operations, sizes),
                    (both, masked && sizes & 4 == 4, masked),
                    "{operations:#x} {sizes:#x}"
                );
                // Big-endian, whatever the host's is.
                assert_eq!(atomics(0, operations, sizes), (false, false, false));
            }
        }
    }

    /// Queries a device with these dwords, by their bytes, in its general page and in that of RoCE (4).
    fn of_dwords(general: &'static [(usize, u32)], roce: &'static [(usize, u32)]) -> Result<(Capabilities, DeviceAttr), Error> {
        let (mut driver, shared) = started();
        respond(&shared, move |input, output| {
            let dwords = match input[7] {
                1 => general,
                9 => roce,
                other => panic!("op_mod {other}"),
            };
            for (at, value) in dwords {
                output[16 + at..][..4].copy_from_slice(&value.to_be_bytes());
            }
        });
        driver.caps.pools = true;
        driver.caps.query(&mut driver.commands, &mut driver.general, &mut driver.attr)?;
        Ok((driver.caps, driver.attr))
    }

    /// By `cmd_hca_cap` of `mlx5_ifc.h`. WQEs of 512 bytes have 30 data segments behind 32 bytes, and inline data behind four more.
    #[test]
    fn limits_of_the_verbs_are_those_of_the_card() {
        const CARD: &[(usize, u32)] = &[
            // log_max_srq_sz, log_max_qp_sz, log_max_qp.
            (16, 10 << 24 | 13 << 16 | 5),
            // log_max_srq.
            (20, 4 << 16),
            // log_max_cq_sz, log_max_cq.
            (24, 12 << 16 | 6),
            // log_max_mkey.
            (28, 20 << 16),
            // log_max_mrw_sz.
            (32, 40 << 16),
            // log_max_ra_req_qp, log_max_ra_res_qp.
            (40, 3 << 16 | 4),
            // gid_table_size, pkey_table_size.
            (44, 2),
            (48, 3),
            // log_max_msg, cqe_version.
            (56, 30 << 24),
            (60, 1),
            // imaicl, log_pg_sz.
            (68, 1 << 14),
            (72, 14),
            // max_wqe_sz_sq, max_wqe_sz_rq, log_max_pd, sq_ts_format.
            (80, 512),
            (84, 512),
            (100, 9 << 16),
            (136, 1 << 30),
        ];
        let (caps, attr) = of_dwords(CARD, &[]).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ZERO_BASED;
        let expected = DeviceAttr {
            max_mr_size: 1 << 40,
            page_size_cap: 0xffff_c000,
            max_qp: 32,
            max_qp_wr: 8192,
            max_sge: 30,
            max_srq: 16,
            max_srq_wr: 1023,
            max_srq_sge: 31,
            max_cq: 64,
            max_cqe: 4096,
            max_mr: 1 << 20,
            max_mw: 1 << 20,
            max_mw_size: 1 << 31,
            mw_type_2: MwType2::B,
            max_pd: 512,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 8,
            access: access | Access::MW_BIND,
            max_inline_data: 476,
            max_msg_size: 1 << 30,
            phys_port_cnt: 1,
            ..DeviceAttr::default()
        };
        assert_eq!(attr, expected);
        assert_eq!((caps.max_send_wqe, caps.gids, caps.pkeys, caps.user_index, caps.ethernet), (512, 32, 1024, true, false));
        assert_eq!((caps.qp_time_stamps, caps.relaxed), (1, [0, 0]));
        // One that offers nothing.
        let (caps, attr) = of_dwords(&[], &[]).unwrap();
        let least = DeviceAttr {
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            max_qp: 1,
            max_qp_wr: 1,
            max_cq: 1,
            max_cqe: 1,
            max_mr: 1,
            max_pd: 1,
            max_qp_rd_atom: 1,
            max_qp_init_rd_atom: 1,
            access,
            max_msg_size: 1,
            phys_port_cnt: 1,
            ..DeviceAttr::default()
        };
        assert_eq!(attr, least);
        assert_eq!((caps.max_send_wqe, caps.gids, caps.pkeys, caps.user_index, caps.qp_time_stamps), (0, 8, 128, false, 0));
    }

    /// No field makes a shift too far, or a number beyond what the driver has room for: 2048 doorbell records, of which 128 are for completion
    /// queues and 64 for shared receive queues, and WQEs of 63 units.
    #[test]
    fn limits_of_the_verbs_are_those_of_the_driver_too() {
        const ONES: u32 = u32::MAX;
        const CARD: &[(usize, u32)] = &[
            (16, ONES),
            (20, ONES),
            (24, ONES),
            (28, ONES),
            (32, ONES),
            (40, ONES),
            (44, ONES),
            (48, ONES),
            (56, ONES),
            (60, ONES),
            (68, ONES),
            (72, ONES),
            (80, ONES),
            (84, ONES),
            (100, ONES),
        ];
        let (caps, attr) = of_dwords(CARD, &[]).unwrap();
        let expected = DeviceAttr {
            max_mr_size: u64::MAX,
            page_size_cap: 0x8000_0000,
            max_qp: 2048 - 128 - 64,
            max_qp_wr: 32_768,
            max_sge: 61,
            max_srq: 64,
            max_srq_wr: 32_767,
            max_srq_sge: 127,
            max_cq: 128,
            max_cqe: 1 << 22,
            max_cq_moderation: CqModeration { count: 65_535, period: 4095 },
            max_mr: 1 << 24,
            max_mw: 1 << 24,
            max_mw_size: 1 << 31,
            mw_type_2: MwType2::B,
            max_pd: 1 << 24,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            access: Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::ZERO_BASED
                | Access::MW_BIND
                | Access::RELAXED_ORDERING,
            max_inline_data: 972,
            max_msg_size: 1 << 31,
            phys_port_cnt: 1,
            ..DeviceAttr::default()
        };
        assert_eq!(attr, expected);
        // A version of completions that is not known is not used.
        assert_eq!((caps.max_send_wqe, caps.gids, caps.pkeys, caps.user_index, caps.relaxed), (1008, 128, 4096, false, [1, 1]));
        // Regions of up to 2^63 bytes; 64 is no shift.
        for (log, size) in [(1, 2), (63, 1 << 63), (64, u64::MAX), (0, u64::MAX)] {
            let card: Vec<(usize, u32)> = std::vec![(32, log << 16)];
            assert_eq!(of_dwords(card.leak(), &[]).unwrap().1.max_mr_size, size, "{log}");
        }
    }

    /// port_type is the bits 9 and 8 of the dword at 52, roce bit 2 of that at 64. By `roce_cap`: roce_version is the last byte of the dword at
    /// 16, of which bit 2 is RoCEv2, roce_address_table_size is at 30, qp_ts_format the two lowest bits of the first dword.
    #[cfg(feature = "roce")]
    #[test]
    fn an_ethernet_port_carries_roce_v2() {
        const PORT: &[(usize, u32)] = &[(52, 1 << 8), (64, 1 << 2)];
        let (caps, _) = of_dwords(PORT, &[(16, 5), (28, 16)]).unwrap();
        assert_eq!((caps.ethernet, caps.gids, caps.pkeys, caps.qp_time_stamps), (true, 16, 1, 0));
        let (caps, _) = of_dwords(PORT, &[(0, 2), (16, 4), (28, 256)]).unwrap();
        assert_eq!((caps.ethernet, caps.gids, caps.pkeys, caps.qp_time_stamps), (true, 256, 1, 1));
        let (caps, _) = of_dwords(PORT, &[(16, 4), (28, 0xffff)]).unwrap();
        assert_eq!(caps.gids, 256, "paths name an entry by eight bits");
        assert_eq!(of_dwords(PORT, &[(16, 0xfb)]).map(drop), Err(Error::NoRoce), "another version");
        assert_eq!(of_dwords(&PORT[..1], &[(16, 4)]).map(drop), Err(Error::NoRoce));
        assert_eq!(of_dwords(&[(52, 2 << 8)], &[]).map(drop), Err(Error::PortType { port_type: 2 }));
        assert_eq!(of_dwords(&[(52, 3 << 8)], &[]).map(drop), Err(Error::PortType { port_type: 3 }));
    }

    type Sets = Rc<RefCell<Vec<Vec<u8>>>>;

    /// Returns a device with a page of maximum and of current values, and the inputs of SET_HCA_CAP (0x109) that it executes.
    fn settable(maximum: [u8; 256], current: [u8; 256]) -> (Driver<MockPlatform, [PageUse; PAGES]>, Sets) {
        let (driver, shared) = started();
        let sets = Sets::default();
        let note = sets.clone();
        respond(&shared, move |input, output| match opcode_of(input) {
            0x100 => output[16..272].copy_from_slice(if input[7] & 1 == 0 { &maximum } else { &current }),
            0x109 => note.borrow_mut().push(input.to_vec()),
            other => panic!("{other:#x}"),
        });
        (driver, sets)
    }

    /// What Linux's `handle_hca_cap` changes of the current capabilities is changed, and nothing else: pkey_table_size at 50, log_max_qp in the
    /// five lowest bits of 19, cmdif_checksum in the two highest of 66, log_uar_page_sz at 146.
    #[test]
    fn general_capabilities_are_set_with_few_changes() {
        for (port_type, atomic, roce, log_max_qp) in [(1, 2, 4, 24), (1, 0, 4, 11), (1, 2, 0, 7), (0, 2, 4, 12), (2, 0, 0, 1)] {
            let mut current = [0xff; 256];
            current[54] = 0xfc | port_type;
            current[67] = 0xf9 | atomic | roce;
            let mut maximum = [0; 256];
            maximum[19] = log_max_qp;
            let (mut driver, sets) = settable(maximum, current);
            let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
            assert_eq!(commands.set_general_capabilities(), Ok((atomic != 0, roce != 0 && port_type == 1)));
            current[50..52].fill(0);
            current[19] = 0xe0 | log_max_qp.min(11);
            current[66] = 0x3f;
            current[146..148].fill(0);
            let mut expected = std::vec![1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            expected.extend(current);
            expected.resize(16 + 4096, 0);
            assert_eq!(*sets.borrow(), [expected]);
        }
    }

    /// Atomics in the host's byte order are mode 1, in the two highest bits of byte 8, and offered by bit 1 of that (`atomic_caps`); source ports
    /// by the driver are bit 3 of byte 0 (`roce_cap`). The page's number is in op_mod from bit 1 on.
    #[test]
    fn a_mode_is_set_where_it_is_offered_and_not_set_yet() {
        let page = |at: usize, value: u8| {
            let mut page = [0x24; 256];
            page[at] = value;
            page
        };
        for (at, offered, [off, on], number) in [(8, 2, [0x0d, 0x4d], 3 << 1), (0, 8, [0x10, 0x18], 4 << 1)] {
            for (maximum, current, expected) in
                [(0xff, off, Some(on)), (offered, off, Some(on)), (!offered, off, None), (0xff, on, None), (!offered, on, None)]
            {
                let (mut driver, sets) = settable(page(at, maximum), page(at, current));
                let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
                if at == 8 { commands.set_atomic_capabilities() } else { commands.set_roce_capabilities() }.unwrap();
                let expected = expected.map(|value| {
                    let mut input = std::vec![1, 9, 0, 0, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0, 0];
                    input.extend(page(at, value));
                    input.resize(16 + 4096, 0);
                    input
                });
                assert_eq!(*sets.borrow(), Vec::from_iter(expected), "{at} {maximum:#x} {current:#x}");
            }
        }
    }
}
