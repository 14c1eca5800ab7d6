//! The life of a queue pair: transitions and queries.

use bareverbs::backend::QueriedQp;
use bareverbs::platform::{DmaMemory, Platform};
use bareverbs::{Access, AddressVector, Mtu, PathMigState, Psn, QpAttr, QpAttrMask, QpState};
use bareverbs_mlx5_spec::{
    Ads, Buffer, CmdHcaCap, CmdOpcode, Layout, Qp2rstIn, Qp2rstOut, Qpc, QpcSt, QpcState, QueryQpIn, QueryQpOut, Rst2initQpIn,
    Rst2initQpOut, ViewMut, cmd, opt_param, pm_state,
};

use super::{Qp, roce, state_of};
use crate::bring_up::caps::PORT;
use crate::driver::Driver;
use crate::error::{Error, Feature};

/// [`Qpc::ATOMIC_MODE`]: IBTA, and with masks on up to eight bytes (Linux `get_atomic_mode`).
const ATOMIC_MODE_IB: u32 = 1;
const ATOMIC_MODE_8B: u32 = 3;
/// [`Qpc::LOG_ACK_REQ_FREQ`] that Linux sets.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// [`Qpc::LOG_MSG_MAX`] of a datagram: 4096 bytes.
const UD_LOG_MSG_MAX: u32 = 12;
/// The same of a management datagram: 256 bytes.
const MANAGEMENT_LOG_MSG_MAX: u32 = 8;
/// Difference between a static rate of the verbs and that of the device's path.
const RATE_OFFSET: u32 = 5;
/// Greatest static rate of the verbs: 800 Gb/s.
const MAX_RATE: u8 = 23;

/// Returns log2 of a number of outstanding reads, rounded up.
const fn log_up(count: u8) -> u32 {
    (count as u32).next_power_of_two().trailing_zeros()
}

fn command(from: QpState, to: QpState) -> Option<CmdOpcode> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    Some(match (from, to) {
        (_, Reset) => CmdOpcode::Qp2Rst,
        (_, Err) => CmdOpcode::Qp2Err,
        (Reset, Init) => CmdOpcode::Rst2InitQp,
        (Init, Init) => CmdOpcode::Init2InitQp,
        (Init, Rtr) => CmdOpcode::Init2RtrQp,
        (Rtr, Rts) => CmdOpcode::Rtr2RtsQp,
        (Rts, Rts) => CmdOpcode::Rts2RtsQp,
        (Rts, Sqd) => CmdOpcode::Rts2SqdQp,
        (Sqd, Sqd) => CmdOpcode::Sqd2SqdQp,
        (Sqd, Rts) => CmdOpcode::SqdRtsQp,
        (Sqe, Rts) => CmdOpcode::SqErr2RtsQp,
        _ => return None,
    })
}

impl<P: Platform> Driver<P> {
    pub(crate) fn modify_qp(&mut self, qp: &mut Qp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let to = attr.state;
        let opcode = command(from, to).ok_or(Error::Transition { from, to })?;
        if matches!(to, QpState::Reset | QpState::Err) {
            // 2ERR_QP has the layout of 2RST_QP.
            let mut input = Buffer::zeroed();
            input.view_mut().set(Qp2rstIn::QPN, qp.number);
            self.commands.execute(opcode, input.as_bytes(), &mut [], Qp2rstOut::SIZE)?;
            if to == QpState::Reset {
                // The device starts again at block 0 and entry 0.
                self.commands.machine.memory.store(qp.memory.record, &[0; 1])?;
            }
            return Ok(());
        }
        if mask.contains(QpAttrMask::ACCESS_FLAGS) && attr.access.contains(Access::REMOTE_ATOMIC) && !self.attr.atomics {
            return Err(Error::Unsupported { feature: Feature::Atomics });
        }
        let pkey_index = if mask.contains(QpAttrMask::PKEY_INDEX) { attr.pkey_index } else { qp.pkey_index };
        if mask.contains(QpAttrMask::AV) {
            self.check_route(&attr.av)?;
            if let Some(route) = attr.av.grh
                && self.caps.is_ethernet()
            {
                self.check_source(&route)?;
            }
        }
        let arms = mask.contains(QpAttrMask::PATH_MIG_STATE) && attr.path_mig_state != PathMigState::Migrated;
        if mask.contains(QpAttrMask::ALT_PATH) || arms {
            if self.capability(CmdHcaCap::APM) == 0 {
                return Err(Error::Unsupported { feature: Feature::PathMigration });
            }
            self.check_route(&attr.alt_av)?;
        }
        // Every one of these commands has the layout of the first.
        let mut input = Buffer::zeroed();
        let mut view = input.view_mut();
        view.set(Rst2initQpIn::QPN, qp.number).set(Rst2initQpIn::OPT_PARAM_MASK, optional(qp.service, to, mask, from));
        let mut context = view.sub(Rst2initQpIn::QPC);
        self.fill_context(&mut context, qp);
        let state = if mask.contains(QpAttrMask::PATH_MIG_STATE) { attr.path_mig_state } else { PathMigState::Migrated };
        context.set(Qpc::PM_STATE, migration(state));
        if mask.intersects(QpAttrMask::ACCESS_FLAGS | QpAttrMask::MAX_DEST_RD_ATOMIC) {
            // A depth of 0 is written as that of 1: without rights no read and no atomic is admitted (Linux `set_qpc_atomic_flags`).
            let admitted = if attr.max_dest_rd_atomic == 0 { Access::REMOTE_WRITE } else { Access::all() };
            let access = attr.access & admitted;
            let atomic = access.contains(Access::REMOTE_ATOMIC);
            // As Linux has it for atomics on eight bytes (`get_atomic_mode`); a card that has greater ones gets their mode there.
            let mode = if self.attr.masked_atomics.eight { ATOMIC_MODE_8B } else { ATOMIC_MODE_IB };
            context
                .set(Qpc::RRE, u32::from(access.contains(Access::REMOTE_READ)))
                .set(Qpc::RWE, u32::from(access.contains(Access::REMOTE_WRITE)))
                .set(Qpc::RAE, u32::from(atomic))
                .set(Qpc::ATOMIC_MODE, if atomic { mode } else { 0 });
        }
        // The verbs give a datagram no path MTU: one packet of the port's greatest.
        let longest = match (qp.service, to) {
            (QpcSt::Ud, QpState::Rtr) => Some((Mtu::Mtu4096, UD_LOG_MSG_MAX)),
            (QpcSt::Qp1, QpState::Rtr) => Some((Mtu::Mtu256, MANAGEMENT_LOG_MSG_MAX)),
            _ => mask.contains(QpAttrMask::PATH_MTU).then(|| (attr.path_mtu, self.attr.max_msg_size.trailing_zeros())),
        };
        if let Some((mtu, log_msg_max)) = longest {
            context.set(Qpc::MTU, mtu as u32).set(Qpc::LOG_MSG_MAX, log_msg_max);
        }
        let fields = [
            (QpAttrMask::DEST_QPN, Qpc::REMOTE_QPN, attr.dest_qpn.get()),
            (QpAttrMask::RQ_PSN, Qpc::NEXT_RCV_PSN, attr.rq_psn.get()),
            (QpAttrMask::SQ_PSN, Qpc::NEXT_SEND_PSN, attr.sq_psn.get()),
            (QpAttrMask::MAX_DEST_RD_ATOMIC, Qpc::LOG_RRA_MAX, log_up(attr.max_dest_rd_atomic)),
            (QpAttrMask::MAX_QP_RD_ATOMIC, Qpc::LOG_SRA_MAX, log_up(attr.max_rd_atomic)),
            (QpAttrMask::MIN_RNR_TIMER, Qpc::MIN_RNR_NAK, u32::from(attr.min_rnr_timer)),
            (QpAttrMask::RETRY_CNT, Qpc::RETRY_COUNT, u32::from(attr.retry_cnt)),
            (QpAttrMask::RNR_RETRY, Qpc::RNR_RETRY, u32::from(attr.rnr_retry)),
            (QpAttrMask::QKEY, Qpc::Q_KEY, attr.qkey.get()),
        ];
        for (flag, field, value) in fields {
            if mask.contains(flag) {
                context.set(field, value);
            }
        }
        if to == QpState::Rts {
            context.set(Qpc::LOG_ACK_REQ_FREQ, LOG_ACK_REQ_FREQ);
        }
        let rates = self.capability(CmdHcaCap::STAT_RATE_SUPPORT);
        let mut path = context.sub(Qpc::PRIMARY_ADDRESS_PATH);
        path.set(Ads::PKEY_INDEX, u32::from(pkey_index)).set(Ads::VHCA_PORT_NUM, u32::from(PORT));
        if mask.contains(QpAttrMask::TIMEOUT) {
            path.set(Ads::ACK_TIMEOUT, u32::from(attr.timeout));
        }
        if mask.contains(QpAttrMask::AV) {
            fill_path(&mut path, &attr.av, rates)?;
            if self.caps.is_ethernet()
                && let Some(route) = &attr.av.grh
            {
                roce::fill_path(&mut path, &attr.av, route, [qp.number, attr.dest_qpn.get()]);
            }
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            let mut path = context.sub(Qpc::SECONDARY_ADDRESS_PATH);
            path.set(Ads::PKEY_INDEX, u32::from(attr.alt_pkey_index))
                .set(Ads::VHCA_PORT_NUM, u32::from(PORT))
                .set(Ads::ACK_TIMEOUT, u32::from(attr.alt_timeout));
            fill_path(&mut path, &attr.alt_av, rates)?;
        }
        self.commands.execute(opcode, input.as_bytes(), &mut [], Rst2initQpOut::SIZE)?;
        qp.pkey_index = pkey_index;
        Ok(())
    }

    /// Returns what the device says of a queue pair.
    pub(crate) fn query_qp(&mut self, qp: &Qp) -> Result<QueriedQp, Error> {
        let output = self.commands.query::<cmd::QueryQp>(|input| input.set(QueryQpIn::QPN, qp.number))?;
        let context = output.view().sub(QueryQpOut::QPC);
        let code = context.get(Qpc::STATE);
        let state = state_of(code).ok_or(Error::BadAnswer { opcode: CmdOpcode::QueryQp.code() as u16, value: code })?;
        Ok(QueriedQp {
            state,
            sq_draining: code == QpcState::SqDraining.code(),
            rq_psn: Psn::new(context.get(Qpc::NEXT_RCV_PSN)),
            sq_psn: Psn::new(context.get(Qpc::NEXT_SEND_PSN)),
        })
    }
}

/// The rights of a connection.
const RIGHTS: u32 = opt_param::RRE | opt_param::RAE | opt_param::RWE;

/// The optional fields that each attribute names.
static NAMED: [(QpAttrMask, u32); 12] = [
    (QpAttrMask::ALT_PATH, opt_param::ALT_ADDR_PATH),
    (QpAttrMask::ACCESS_FLAGS, RIGHTS),
    (QpAttrMask::PKEY_INDEX, opt_param::PKEY_INDEX),
    (QpAttrMask::QKEY, opt_param::Q_KEY),
    (QpAttrMask::MIN_RNR_TIMER, opt_param::RNR_TIMEOUT),
    (QpAttrMask::AV, opt_param::PRIMARY_ADDR_PATH),
    (QpAttrMask::MAX_QP_RD_ATOMIC, opt_param::SRA_MAX),
    (QpAttrMask::MAX_DEST_RD_ATOMIC, opt_param::RRA_MAX | RIGHTS),
    (QpAttrMask::PATH_MIG_STATE, opt_param::PM_STATE),
    (QpAttrMask::RETRY_CNT, opt_param::RETRY_COUNT),
    (QpAttrMask::RNR_RETRY, opt_param::RNR_RETRY),
    (QpAttrMask::TIMEOUT, opt_param::ACK_TIMEOUT),
];

/// Returns the optional fields of a transition that the mask names.
fn optional(service: QpcSt, to: QpState, mask: QpAttrMask, from: QpState) -> u32 {
    use QpState::{Init, Rtr, Rts, Sqd, Sqe};
    let rights = match service {
        QpcSt::Rc | QpcSt::Xrc => RIGHTS,
        // A datagram has a Q_Key where the others have rights.
        QpcSt::Ud | QpcSt::Qp1 => opt_param::Q_KEY,
        _ => opt_param::RWE,
    };
    let known = match (from, to) {
        (Init, Init) => rights | opt_param::PKEY_INDEX,
        (Init, Rtr) => rights | opt_param::PKEY_INDEX | opt_param::ALT_ADDR_PATH,
        (Rtr | Rts | Sqe | Sqd, Rts) => rights | opt_param::ALT_ADDR_PATH | opt_param::PM_STATE | opt_param::RNR_TIMEOUT,
        (Sqd, Sqd) => rights | !(RIGHTS | opt_param::Q_KEY),
        _ => 0,
    };
    NAMED.iter().filter(|(flag, _)| mask.contains(*flag)).fold(0, |sum, (_, bits)| sum | bits) & known
}

const fn migration(state: PathMigState) -> u32 {
    match state {
        PathMigState::Migrated => pm_state::MIGRATED,
        PathMigState::Rearm => pm_state::REARM,
        PathMigState::Armed => pm_state::ARMED,
    }
}

fn fill_path(path: &mut ViewMut<'_, Ads>, av: &AddressVector, rates: u32) -> Result<(), Error> {
    path.set(Ads::RLID, u32::from(av.dlid.get()))
        .set(Ads::MLID, u32::from(av.src_path_bits))
        .set(Ads::SL, u32::from(av.sl))
        .set(Ads::STAT_RATE, stat_rate(av.static_rate, rates)?);
    if let Some(route) = &av.grh {
        path.set(Ads::GRH, 1)
            .set(Ads::SRC_ADDR_INDEX, u32::from(route.sgid_index))
            .set(Ads::HOP_LIMIT, u32::from(route.hop_limit))
            .set(Ads::TCLASS, u32::from(route.traffic_class))
            .set(Ads::FLOW_LABEL, route.flow_label)
            .set_bytes(Ads::RGID_RIP, &route.dgid.0);
    }
    Ok(())
}

/// Returns the device's code of a static rate: that of the nearest number of a rate, from the requested one down, that the device has,
/// as Linux does (`ib_rate_to_mlx5`); 0, no limit, if it has none.
pub(super) fn stat_rate(rate: u8, rates: u32) -> Result<u32, Error> {
    match rate {
        0 => Ok(0),
        2..=MAX_RATE => Ok((2..=rate).rev().map(rate_code).find(|code| rates & 1 << code != 0).unwrap_or(0)),
        _ => Err(Error::LimitExceeded { limit: MAX_RATE.into() }),
    }
}

/// Returns the device's code of a rate of the verbs (`enum ibv_rate`): what is above 60 Gb/s came later, and has codes of its own.
const fn rate_code(rate: u8) -> u32 {
    match rate {
        12 => 1,
        15 => 2,
        16 => 3,
        17 => 4,
        20 => 5,
        21 => 6,
        rate => rate as u32 + RATE_OFFSET,
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::storage::RingSizes;
    use bareverbs::{GlobalRoute, Lid, Mac, QpType};

    use super::*;
    use crate::tests::mock::{MockPlatform, Shared, acknowledge, offer, started};

    /// Returns the bytes of the context in the last command of a queue pair: the input after its first 16 bytes lies where the entry of
    /// slot 0 points, and the context begins at 24 of it (`mlx5_ifc.h`).
    fn context_of(shared: &Shared) -> std::vec::Vec<u8> {
        let state = shared.borrow();
        let pointer = u64::from_be_bytes(state.memory[8..16].try_into().unwrap());
        let mailbox = (pointer - crate::tests::mock::DEVICE_ADDR) as usize;
        state.memory[mailbox + 24 - 16..][..232].to_vec()
    }

    /// Creates a queue pair, on a device that executes all commands.
    fn reset_qp(view: &mut Driver<MockPlatform>) -> Qp {
        view.uar = 4;
        view.commands.arena.allocate(1).unwrap();
        view.create_qp(QpType::Rc, [1, 7, 7], [0; 3], &RingSizes::default(), 0).unwrap().0
    }

    /// rre, rwe and rae are the bits 15, 14 and 13 of the dword at 144 of the context (`mlx5_ifc.h`), by which Linux's
    /// `set_qpc_atomic_flags` admits reads, writes and atomics.
    #[test]
    fn a_responder_that_takes_no_read_at_a_time_has_no_right_of_reads_and_atomics() {
        let (mut driver, shared) = started();
        let view: &mut Driver<MockPlatform> = &mut driver;
        acknowledge(&shared);
        view.attr.atomics = true;
        let mut qp = reset_qp(view);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        for (max_dest_rd_atomic, rights) in [(0, 0x40), (1, 0xe0), (4, 0xe0)] {
            let attr = QpAttr { access, max_dest_rd_atomic, ..QpAttr::default() };
            let steps = [
                (QpState::Reset, QpState::Init, QpAttrMask::ACCESS_FLAGS),
                (QpState::Init, QpState::Rtr, QpAttrMask::MAX_DEST_RD_ATOMIC),
                (QpState::Rts, QpState::Rts, QpAttrMask::ACCESS_FLAGS),
            ];
            for (from, to, mask) in steps {
                view.modify_qp(&mut qp, from, &QpAttr { state: to, ..attr }, QpAttrMask::STATE | mask).unwrap();
                assert_eq!(context_of(&shared)[146] & 0xe0, rights, "{max_dest_rd_atomic}, {to:?}");
                // RST2INIT has no optional fields; in the others the rights are named, bits 1 to 3 of opt_param_mask.
                let named = optional(QpcSt::Rc, to, mask, from) & 0xe;
                assert_eq!(named, if to == QpState::Init { 0 } else { 0xe }, "{to:?}");
            }
        }
    }

    #[test]
    fn an_alternate_path_needs_a_device_with_migration_and_goes_through_port_1() {
        let (mut driver, shared) = started();
        let view: &mut Driver<MockPlatform> = &mut driver;
        acknowledge(&shared);
        let mut qp = reset_qp(view);
        let attr = |path_mig_state| QpAttr { state: QpState::Rts, path_mig_state, ..QpAttr::default() };
        let lacks = Err(Error::Unsupported { feature: Feature::PathMigration });
        for (state, mask) in [
            (PathMigState::Migrated, QpAttrMask::ALT_PATH),
            (PathMigState::Armed, QpAttrMask::PATH_MIG_STATE),
            (PathMigState::Rearm, QpAttrMask::PATH_MIG_STATE),
        ] {
            assert_eq!(view.modify_qp(&mut qp, QpState::Rts, &attr(state), QpAttrMask::STATE | mask), lacks);
        }
        let mask = QpAttrMask::STATE | QpAttrMask::PATH_MIG_STATE;
        view.modify_qp(&mut qp, QpState::Rts, &attr(PathMigState::Migrated), mask).unwrap();
        // apm is bit 17 of the dword at 68 of the capabilities (`mlx5_ifc.h`).
        offer(&mut view.general, 68, 1 << 17);
        for given in [0, 1] {
            let alt_av = AddressVector { dlid: Lid::new(5), port_num: given, ..AddressVector::default() };
            let attr = QpAttr { state: QpState::Rts, alt_av, ..QpAttr::default() };
            view.modify_qp(&mut qp, QpState::Rts, &attr, QpAttrMask::STATE | QpAttrMask::ALT_PATH).unwrap();
            // The secondary path is at 68 of the context, and the port at 37 of that.
            assert_eq!(context_of(&shared)[68 + 37], 1, "{given} given");
        }
    }

    /// By the numbers of `enum ibv_rate` and of Linux's `ib_to_mlx5_rate_map`.
    #[test]
    fn rates_of_path_records_have_the_codes_of_linux() {
        let code = |rate, rates| stat_rate(rate, rates);
        // 2.5, 10, 56, 100, 200 and 400 Gb/s, of a device that has all.
        for (rate, expected) in [(0, 0), (2, 7), (3, 8), (12, 1), (16, 3), (17, 4), (21, 6)] {
            assert_eq!(code(rate, 0xffff), Ok(expected), "{rate}");
        }
        // A device without that one: 100 Gb/s, then 25; one that has none.
        assert_eq!([code(17, 1 << 3 | 1 << 2), code(16, 1 << 2), code(16, 0), code(23, 0)], [Ok(3), Ok(2), Ok(0), Ok(0)]);
        for rate in [1, 24, 200] {
            assert_eq!(code(rate, 0xffff), Err(Error::LimitExceeded { limit: 23 }), "{rate}");
        }
    }

    /// By `ads` of `mlx5_ifc.h`, each field that Linux's `mlx5_set_path` sets of a RoCE address.
    #[test]
    fn a_path_of_an_ethernet_port_is_the_bytes_of_its_structure() {
        let route = GlobalRoute {
            dgid: core::net::Ipv4Addr::new(192, 0, 2, 7).into(),
            flow_label: 0xa_bcde,
            sgid_index: 5,
            hop_limit: 64,
            traffic_class: 0x69,
        };
        let dmac = Some(Mac([2, 3, 4, 5, 6, 7]));
        let av = AddressVector { sl: 6, grh: Some(route), dmac, ..AddressVector::default() };
        let mut expected = [0; Ads::SIZE];
        // src_addr_index, hop_limit; tclass and flow_label; rgid.
        expected[8..16].copy_from_slice(&[0, 5, 0, 64, 0x06, 0x9a, 0xbc, 0xde]);
        expected[26..32].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
        // dscp (0x69 >> 2) and udp_sport; eth_prio; rmac.
        expected[32..44].copy_from_slice(&[0, 0x1a, 0xfc, 0xf4, 6 << 4, 0, 2, 3, 4, 5, 6, 7]);
        let mut path = Buffer::<Ads>::zeroed();
        fill_path(&mut path.view_mut(), &av, 0).unwrap();
        roce::fill_path(&mut path.view_mut(), &av, &route, [1, 2]);
        assert_eq!(path.as_bytes(), expected);
        // Without a flow label the source port is that of the two queue pairs: 0x48 · 0x49 = 0x1488.
        roce::fill_path(&mut path.view_mut(), &av, &GlobalRoute { flow_label: 0, ..route }, [0x48, 0x49]);
        assert_eq!(path.as_bytes()[34..36], [0xd4, 0x88]);
    }

    /// By the bits of Linux's `enum mlx5_qp_optpar` and the table `opt_mask` of its `mlx5_ib`, of which the verbs name no port, LAG port or
    /// counter set: what may be named is what all attributes name.
    #[test]
    fn optional_fields_are_those_of_linux() {
        use QpState::{Init, Rtr, Rts, Sqd, Sqe};
        const ALT: u32 = 1;
        const RRE: u32 = 1 << 1;
        const RAE: u32 = 1 << 2;
        const RWE: u32 = 1 << 3;
        const PKEY: u32 = 1 << 4;
        const QKEY: u32 = 1 << 5;
        const RNR: u32 = 1 << 6;
        const PM: u32 = 1 << 10;
        const RIGHTS: u32 = RRE | RAE | RWE;
        // A datagram has no alternate path and nothing of a connection: its attributes name a Q_Key and a P_Key.
        let datagram = QpAttrMask::QKEY | QpAttrMask::PKEY_INDEX | QpAttrMask::SQ_PSN;
        let all = QpAttrMask::all();
        for (service, mask, from, to, expected) in [
            (QpcSt::Rc, all, Init, Init, RIGHTS | PKEY),
            (QpcSt::Xrc, all, Init, Init, RIGHTS | PKEY),
            (QpcSt::Uc, all, Init, Init, RWE | PKEY),
            (QpcSt::Ud, datagram, Init, Init, PKEY | QKEY),
            (QpcSt::Qp1, datagram, Init, Init, PKEY | QKEY),
            (QpcSt::Rc, all, Init, Rtr, ALT | RIGHTS | PKEY),
            (QpcSt::Xrc, all, Init, Rtr, ALT | RIGHTS | PKEY),
            (QpcSt::Uc, all, Init, Rtr, ALT | RWE | PKEY),
            (QpcSt::Ud, datagram, Init, Rtr, PKEY | QKEY),
            (QpcSt::Rc, all, Rtr, Rts, ALT | RIGHTS | PM | RNR),
            (QpcSt::Rc, all, Rts, Rts, ALT | RIGHTS | PM | RNR),
            (QpcSt::Ud, datagram, Rtr, Rts, QKEY),
            (QpcSt::Ud, datagram, Rts, Rts, QKEY),
            (QpcSt::Ud, datagram, Sqe, Rts, QKEY),
        ] {
            assert_eq!(optional(service, to, mask, from), expected, "{service:?} {from:?} {to:?}");
            assert_eq!(optional(service, to, QpAttrMask::STATE, from), 0, "none is named");
        }
        for from in [Init, Rtr, Rts, Sqd, Sqe] {
            assert_eq!(optional(QpcSt::Rc, QpState::Err, all, from), 0);
        }
        assert_eq!(optional(QpcSt::Rc, Init, all, QpState::Reset), 0, "RST2INIT has none");
    }

    /// Sets bytes of a context.
    fn put(context: &mut [u8], at: usize, bytes: &[u8]) {
        context[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// By `qpc` and `ads` of `mlx5_ifc.h`: the primary path is at 24, the secondary at 68.
    #[test]
    fn a_context_is_the_bytes_of_its_structure() {
        let (mut driver, shared) = started();
        let view: &mut Driver<MockPlatform> = &mut driver;
        acknowledge(&shared);
        view.attr.max_msg_size = 1 << 30;
        // apm is bit 17 of the dword at 68 of the capabilities, stat_rate_support the upper half of that at 60.
        offer(&mut view.general, 68, 1 << 17);
        offer(&mut view.general, 60, 0x100 << 16);
        let mut qp = reset_qp(view);
        // pm_state 3 is migrated; pd, both completion queues, doorbell record.
        let mut same = [0; 232];
        put(&mut same, 5, &[0, 0, 1]);
        put(&mut same, 125, &[0, 0, 7]);
        put(&mut same, 157, &[0, 0, 7]);
        put(&mut same, 160, &(crate::tests::mock::DEVICE_ADDR + qp.memory.record as u64).to_be_bytes());
        put(&mut same, 26, &[0x12, 0x34]);
        same[24 + 37] = 1;
        let route = GlobalRoute {
            dgid: bareverbs::Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
            flow_label: 0xa_bcde,
            sgid_index: 5,
            hop_limit: 64,
            traffic_class: 0x69,
        };
        let attr = QpAttr {
            state: QpState::Rtr,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            pkey_index: 0x1234,
            path_mtu: Mtu::Mtu2048,
            dest_qpn: bareverbs::Qpn::new(0x0a_0b0c),
            rq_psn: Psn::new(0x11_2233),
            sq_psn: Psn::new(0x44_5566),
            max_dest_rd_atomic: 5,
            max_rd_atomic: 16,
            min_rnr_timer: 13,
            timeout: 17,
            retry_cnt: 6,
            rnr_retry: 5,
            qkey: bareverbs::Qkey::new(0x8765_4321),
            av: AddressVector {
                dlid: Lid::new(0xabcd),
                sl: 9,
                src_path_bits: 0x55,
                static_rate: 3,
                grh: Some(route),
                ..AddressVector::default()
            },
            alt_av: AddressVector { dlid: Lid::new(0xdcba), sl: 10, ..AddressVector::default() },
            alt_pkey_index: 0x4321,
            alt_timeout: 19,
            path_mig_state: PathMigState::Rearm,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER
            | QpAttrMask::ALT_PATH;
        view.modify_qp(&mut qp, QpState::Init, &attr, mask).unwrap();
        let mut expected = same;
        expected[2] = 3 << 3;
        // mtu 4 and log_msg_max, remote_qpn; log_rra_max 3, rre and rwe, min_rnr_nak, next_rcv_psn.
        expected[8] = 4 << 5 | 30;
        put(&mut expected, 21, &[0x0a, 0x0b, 0x0c]);
        put(&mut expected, 145, &[3 << 5, 0xc0, 0, 13, 0x11, 0x22, 0x33]);
        // grh and mlid, rlid, src_addr_index, stat_rate 8, hop_limit, tclass and flow_label, rgid, sl.
        put(&mut expected, 24 + 5, &[0x80 | 0x55, 0xab, 0xcd, 0, 5, 8, 64, 0x06, 0x9a, 0xbc, 0xde]);
        put(&mut expected, 24 + 16, &route.dgid.0);
        expected[24 + 36] = 9;
        // pkey_index, rlid, ack_timeout; sl and port.
        put(&mut expected, 68 + 2, &[0x43, 0x21, 0, 0, 0xdc, 0xba, 19 << 3]);
        put(&mut expected, 68 + 36, &[10, 1]);
        assert_eq!(context_of(&shared), expected);

        let mask = QpAttrMask::STATE
            | QpAttrMask::SQ_PSN
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC
            | QpAttrMask::PATH_MIG_STATE
            | QpAttrMask::QKEY;
        view.modify_qp(&mut qp, QpState::Rtr, &QpAttr { state: QpState::Rts, pkey_index: 9, ..attr }, mask).unwrap();
        // The P_Key stays. pm_state 1 is rearm; ack_timeout; log_ack_req_freq, log_sra_max 4 and retry_count, rnr_retry; next_send_psn; q_key.
        let mut expected = same;
        expected[2] = 1 << 3;
        expected[24 + 8] = 17 << 3;
        put(&mut expected, 112, &[8 << 4, 4 << 5 | 6, 5 << 5]);
        put(&mut expected, 121, &[0x44, 0x55, 0x66]);
        put(&mut expected, 168, &[0x87, 0x65, 0x43, 0x21]);
        assert_eq!(context_of(&shared), expected);
        // pm_state 0 is armed. Nothing of what is not named is set.
        let armed = QpAttr { state: QpState::Rts, path_mig_state: PathMigState::Armed, ..attr };
        view.modify_qp(&mut qp, QpState::Rts, &armed, QpAttrMask::STATE | QpAttrMask::PATH_MIG_STATE).unwrap();
        let mut expected = same;
        expected[112] = 8 << 4;
        assert_eq!(context_of(&shared), expected);
    }

    /// The transport is byte 1 of the context: 2 for datagrams, 8 for QP1. Their packets are of up to 4096 and 256 bytes.
    #[test]
    fn datagrams_have_one_packet_of_the_greatest_mtu() {
        for (qp_type, service, longest) in [(QpType::Ud, 2, 5 << 5 | 12), (QpType::Gsi, 8, 1 << 5 | 8), (QpType::Uc, 1, 0)] {
            let (mut driver, shared) = started();
            let view: &mut Driver<MockPlatform> = &mut driver;
            acknowledge(&shared);
            view.uar = 4;
            let mut qp = view.create_qp(qp_type, [1, 7, 7], [0; 3], &RingSizes::default(), 0).unwrap().0;
            for (from, to, expected) in [(QpState::Init, QpState::Rtr, longest), (QpState::Rtr, QpState::Rts, 0)] {
                view.modify_qp(&mut qp, from, &QpAttr { state: to, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
                let context = context_of(&shared);
                assert_eq!((context[1], context[8]), (service, expected), "{qp_type:?} {to:?}");
            }
        }
    }
}
