//! The port: link, state, and the registers that describe them; of an InfiniBand port also its context, GIDs and P_Keys.

use std::sync::Arc;
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{
    HcaVportContext, PTYS_ETHERNET, PTYS_INFINIBAND, PaosReg, PcapReg, PmtuReg, PortChange, PtysReg, PvlcReg, View, ViewMut,
};

use crate::config::{CHECK_SEQUENCE, DeviceConfig, ETHERNET_MTUS, FRAME_OVERHEAD, LinkSpeed, LinkWidth};
use crate::identity::{LidTaken, PortIdentity};
use crate::management::{PortInfo, SUBNET_TIMEOUT, SetPortInfo, Traps};
use crate::packet::{NO_LID, is_subnet_management};
use crate::stats::{EngineStats, FrameTraffic};

/// Bytes of the node description.
const NODE_DESCRIPTION: usize = 64;

/// `PortPhysicalState` and `PortState` of InfiniBand.
mod state {
    pub(super) const PHYSICAL_POLLING: u32 = 2;
    pub(super) const PHYSICAL_DISABLED: u32 = 3;
    pub(super) const PHYSICAL_TRAINING: u32 = 4;
    pub(super) const PHYSICAL_LINK_UP: u32 = 5;
    pub(super) const DOWN: u32 = 1;
    pub(super) const INIT: u32 = 2;
    pub(super) const ARMED: u32 = 3;
    pub(super) const ACTIVE: u32 = 4;
}

/// Bits of [`HcaVportContext::FIELD_SELECT`] (`MLX5_HCA_VPORT_SEL_*`).
mod select {
    pub(super) const PORT_GUID: u32 = 1;
    pub(super) const NODE_GUID: u32 = 1 << 1;
    pub(super) const STATE_POLICY: u32 = 1 << 2;
}

/// Capabilities of the port that its driver may set: CM support, and others that a host announces.
const SETTABLE_CAPS: u32 = 0x0001_0000 | 0x0008_0000 | 0x0000_0002;

/// `IsExtendedSpeedsSupported` of PortInfo's capability mask.
const EXTENDED_SPEEDS: u32 = 1 << 14;
/// `IsCapabilityMask2Supported` likewise.
const CAPABILITY_MASK_2: u32 = 1 << 15;
/// `IsClientReregistrationSupported` likewise.
const CLIENT_REREGISTRATION: u32 = 1 << 25;
/// State in a Set that leaves it.
const NO_CHANGE: u32 = 0;

/// The M_Key of a port, its protection level and its lease (IBTA 14.2.4).
#[derive(Clone, Copy, Debug, Default)]
struct ManagementKey {
    /// 0: everybody may do everything.
    key: u64,
    /// `M_KeyProtectBits`: whether others may read the port's attributes (0 and 1), and the key among them (0).
    protection: u8,
    /// Seconds that the manager has to answer after a violation; 0: no limit.
    lease: u16,
    /// When a violation that its owner does not answer ends the protection.
    expires: Option<Instant>,
    violations: u16,
}

/// What a subnet management packet may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyCheck {
    /// What it asks for.
    Full,
    /// What it asks for, but the management key is not shown to it.
    KeyHidden,
    /// Nothing, and it gets no answer.
    None,
}

impl ManagementKey {
    /// Returns the key of a port at the start. It protects the port from others, which may not even read it.
    fn initial(config: &DeviceConfig) -> Self {
        /// `M_KeyProtectBits` with which attributes are not read without the key (IBTA 14.2.4).
        const NO_READING: u8 = 2;
        match config.m_key {
            key if key != 0 && config.managed => Self { key, protection: NO_READING, ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Ends the protection if its owner let the lease expire.
    fn expire(&mut self, now: Instant) {
        if self.expires.is_some_and(|due| due <= now) {
            (self.protection, self.expires) = (0, None);
        }
    }

    fn check_m_key(&mut self, key: u64, set: bool, now: Instant) -> KeyCheck {
        self.expire(now);
        if self.key == 0 || self.key == key {
            self.expires = None;
            return KeyCheck::Full;
        }
        match (set, self.protection) {
            (false, 0) => KeyCheck::Full,
            (false, 1) => KeyCheck::KeyHidden,
            _ => {
                self.violations = self.violations.saturating_add(1);
                if self.lease != 0 && self.expires.is_none() {
                    self.expires = Some(now.after(Duration::from_secs(self.lease.into())));
                }
                KeyCheck::None
            }
        }
    }
}

/// What the port counts itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortStats {
    /// Times that the link went down.
    pub(crate) downed: u64,
    /// Frames of queues that found no link, or were longer than the MTU.
    pub(crate) discarded: FrameTraffic,
    /// Frames that an Ethernet port sent, those of RoCE among them.
    pub(crate) sent: FrameTraffic,
    /// Frames that came to an Ethernet port, of any destination, without those that are too long.
    pub(crate) received: FrameTraffic,
    /// Frames from the wire that were longer than the MTU.
    pub(crate) too_long: u64,
}

/// Counts a frame by whom it is for.
fn count_frame(counts: &mut FrameTraffic, frame: &[u8]) {
    if let Some(destination) = frame.first_chunk() {
        counts.counts_of(*destination).count(frame.len());
    }
}

/// The physical link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    /// Comes up at this moment.
    Training(Instant),
    Up,
}

/// Returns the state of a link that has just come up: it waits for a manager, or until its subnet has found it.
const fn initial_state(managed: bool, lid_delay: Duration) -> u32 {
    if managed || !lid_delay.is_zero() { state::INIT } else { state::ACTIVE }
}

/// MTU of an Ethernet port before its driver sets one: that of all Ethernet.
pub(crate) const FIRST_ETHERNET_MTU: u16 = 1500 + FRAME_OVERHEAD;

/// Bits of PTYS by which an Ethernet port says how fast it is: one of the older mask, or one of the extended one (Linux
/// `enum mlx5e_link_mode`, `mlx5e_ext_link_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EthernetRate {
    legacy: u32,
    extended: u32,
}

impl EthernetRate {
    /// Returns the bits for a link. Not each number of lanes is one of Ethernet with each speed: then the next slower rate.
    const fn of(width: LinkWidth, speed: LinkSpeed) -> Self {
        let lanes = match width {
            LinkWidth::X1 => 1,
            LinkWidth::X2 => 2,
            LinkWidth::X4 => 4,
            LinkWidth::X8 => 8,
            LinkWidth::X12 => 12,
        };
        let gigabits = match speed {
            LinkSpeed::Sdr | LinkSpeed::Ddr => 1,
            LinkSpeed::Qdr | LinkSpeed::Fdr10 | LinkSpeed::Fdr => 10,
            LinkSpeed::Edr => 25,
            LinkSpeed::Hdr => 50,
            LinkSpeed::Ndr => 100,
        };
        let (legacy, extended) = match lanes * gigabits {
            ..10 => (1, 0),           // 1000BASE-CX/SGMII
            10..25 => (1 << 13, 0),   // 10GBASE-SR
            25..40 => (1 << 28, 0),   // 25GBASE-KR
            40..50 => (1 << 6, 0),    // 40GBASE-CR4
            50..100 => (1 << 31, 0),  // 50GBASE-KR2
            100..200 => (1 << 20, 0), // 100GBASE-CR4
            200..400 => (0, 1 << 12), // 200GAUI-4/200GBASE-CR4/KR4
            _ => (0, 1 << 15),        // 400GAUI-8/400GBASE-CR8
        };
        Self { legacy, extended }
    }
}

/// The port. What its subnet manager set is not the function's: it survives a reset of that.
#[derive(Debug)]
pub(crate) struct Port {
    identity: Arc<PortIdentity>,
    node_guid: u64,
    port_guid: u64,
    system_guid: u64,
    sm_lid: u16,
    caps: u32,
    policy: u32,
    max_mtu: u16,
    mtu: u16,
    mtu_while_down: bool,
    disabled_without_cable: bool,
    /// Bits of PTYS.
    width: u32,
    speed: u32,
    /// How fast an Ethernet port is; `None` of an InfiniBand port.
    ethernet: Option<EthernetRate>,
    cable: bool,
    admin_up: bool,
    link: Link,
    /// Time from when a link begins to train until it is up. If there is any, links train only after INIT_HCA.
    training: Duration,
    /// Whether the function runs.
    running: bool,
    managed: bool,
    /// For a port that is not managed: the time from link to LID, as of a subnet manager's sweep.
    lid_delay: Duration,
    /// When this time ends; `None` while it does not run.
    found_at: Option<Instant>,
    /// Whether this time has ended once since the reset. The port then keeps its LID.
    found: bool,
    /// The LID that a port without one reports to its driver.
    no_lid: u16,
    grh_required: bool,
    /// `PortState` while the link is up.
    state: u32,
    management_key: ManagementKey,
    /// Notices for its subnet manager.
    pub(crate) traps: Traps,
    stats: PortStats,
    /// What the transport had counted of P_Key and Q_Key violations when a manager last cleared them.
    cleared_violations: [u64; 2],
    /// Changes that the host has not been notified of.
    changes: Vec<PortChange>,
    /// A local identifier of another port that a manager wanted to give to this one.
    refused_lid: Option<LidTaken>,
    node_description: [u8; NODE_DESCRIPTION],
}

impl Port {
    pub(crate) fn new(config: &DeviceConfig) -> Self {
        let mut node_description = [0; NODE_DESCRIPTION];
        for (to, from) in node_description.iter_mut().zip(config.node_description.bytes()) {
            *to = from;
        }
        let ethernet = config.mac().map(|_| EthernetRate::of(config.link_width, config.link_speed));
        // Nobody has to find an Ethernet port.
        let lid_delay = if ethernet.is_some() { Duration::ZERO } else { config.lid_delay };
        Self {
            identity: Arc::new(PortIdentity::new(config)),
            node_guid: config.node_guid,
            port_guid: config.port_guid,
            system_guid: config.system_guid,
            sm_lid: if config.managed { NO_LID } else { config.sm_lid },
            caps: 0,
            policy: 0,
            max_mtu: config.mtu,
            mtu: if ethernet.is_some() { FIRST_ETHERNET_MTU.min(config.mtu) } else { config.mtu },
            ethernet,
            width: config.link_width as u32,
            speed: config.link_speed as u32,
            cable: config.link_up,
            admin_up: true,
            link: if config.link_up && config.link_training.is_zero() { Link::Up } else { Link::Down },
            training: config.link_training,
            running: false,
            managed: config.managed,
            lid_delay,
            found_at: None,
            found: config.managed || lid_delay.is_zero(),
            no_lid: config.no_lid,
            grh_required: config.grh_required,
            mtu_while_down: config.mtu_while_down,
            disabled_without_cable: config.disabled_without_cable,
            state: initial_state(config.managed, lid_delay),
            management_key: ManagementKey::initial(config),
            traps: Traps::default(),
            stats: PortStats::default(),
            cleared_violations: [0; 2],
            changes: Vec::new(),
            refused_lid: None,
            node_description,
        }
    }

    /// Returns the port after a reset of the function: as at power-on, but for the cable and what a subnet manager set.
    pub(crate) fn restarted(&self, config: &DeviceConfig) -> Self {
        let Self { ref identity, sm_lid, management_key, ref traps, cable, .. } = *self;
        // With the traps: resets do not make them more frequent.
        let (identity, traps) = (Arc::clone(identity), traps.clone());
        // The cable is where it is, whatever the configuration says of the start.
        let config = &DeviceConfig { link_up: cable, ..config.clone() };
        Self { identity, sm_lid, management_key, traps, ..Self::new(config) }
    }

    /// Who it is on its subnet.
    pub(crate) fn identity(&self) -> &Arc<PortIdentity> {
        &self.identity
    }

    /// Returns whether the link is up: subnet management passes.
    pub(crate) fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// Returns whether all frames pass.
    pub(crate) fn is_active(&self) -> bool {
        self.is_up() && self.state == state::ACTIVE
    }

    /// Returns whether the link carries a frame now: before the port is active, subnet management alone.
    pub(crate) fn carries(&self, frame: &[u8]) -> bool {
        self.is_active() || self.is_up() && self.ethernet.is_none() && is_subnet_management(frame)
    }

    /// Returns the local identifier that the port has for its host; 0 until its subnet has found it.
    pub(crate) fn lid(&self) -> u16 {
        if self.found { self.identity.lid() } else { NO_LID }
    }

    /// Returns the local identifier of the subnet manager, likewise.
    fn sm_lid(&self) -> u16 {
        if self.found { self.sm_lid } else { NO_LID }
    }

    /// Starts or ends the link after cable, administrative state or function changed.
    fn update_link(&mut self, now: Instant) {
        let wanted = self.cable && self.admin_up && (self.running || self.training.is_zero());
        match self.link {
            Link::Down if wanted && self.training.is_zero() => self.came_up(now),
            Link::Down if wanted => self.link = Link::Training(now.after(self.training)),
            Link::Training(_) if !wanted => self.link = Link::Down,
            Link::Up if !wanted => self.went_down(),
            _ => {}
        }
    }

    /// The link is up. A managed port must be configured, another one found.
    fn came_up(&mut self, now: Instant) {
        self.link = Link::Up;
        let change = if self.state == state::ACTIVE { PortChange::Active } else { PortChange::Initialized };
        self.changes.push(change);
        self.await_subnet(now);
    }

    fn went_down(&mut self) {
        self.link = Link::Down;
        self.found_at = None;
        self.changes.push(PortChange::Down);
        self.stats.downed += 1;
        self.state = initial_state(self.managed, self.lid_delay);
    }

    /// From now on the subnet finds the port, if nothing has to be waited for but that.
    fn await_subnet(&mut self, now: Instant) {
        let waits = !self.managed && self.state == state::INIT && self.is_up() && self.running;
        if waits && self.found_at.is_none() {
            self.found_at = Some(now.after(self.lid_delay));
        }
    }

    /// The function runs, or no longer.
    pub(crate) fn set_running(&mut self, running: bool, now: Instant) {
        self.running = running;
        self.found_at = None;
        self.update_link(now);
        self.await_subnet(now);
    }

    /// Returns when the link comes up or the subnet finds the port.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        match self.link {
            Link::Training(due) => Some(due),
            Link::Up => self.found_at,
            Link::Down => None,
        }
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Instant) {
        if let Link::Training(due) = self.link
            && due <= now
        {
            self.came_up(due);
        }
        if self.found_at.is_some_and(|due| due <= now) {
            self.found_at = None;
            if !core::mem::replace(&mut self.found, true) {
                self.changes.push(PortChange::Lid);
            }
            self.state = state::ACTIVE;
            self.changes.push(PortChange::Active);
        }
    }

    /// Plugs or pulls the cable.
    pub(crate) fn set_cable(&mut self, plugged: bool, now: Instant) {
        self.cable = plugged;
        self.update_link(now);
    }

    /// Returns the local identifier of another port that a manager tried to set here since the last call.
    pub(crate) fn take_refused_lid(&mut self) -> Option<LidTaken> {
        self.refused_lid.take()
    }

    /// Returns what changed since the last call, for the host.
    pub(crate) fn take_changes(&mut self) -> Vec<PortChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns where traps go: to the subnet manager of an active port (IBTA 14.2.2.1, o14-3.2.1), if there is one.
    pub(crate) fn trap_receiver(&self) -> Option<u16> {
        let has_manager = self.managed && self.sm_lid != NO_LID && self.identity.lid() != NO_LID;
        (has_manager && self.is_active()).then_some(self.sm_lid)
    }

    /// Returns whether a subnet manager may change it.
    pub(crate) fn is_managed(&self) -> bool {
        self.managed
    }

    /// Returns what a subnet management packet with this key, which sets something or not, may do.
    pub(crate) fn check_m_key(&mut self, key: u64, set: bool, now: Instant) -> KeyCheck {
        self.management_key.check_m_key(key, set, now)
    }

    /// Gives the port the key, protection and lease of its start: a guest that set others is locked out, not the manager.
    pub(crate) fn release_management_key(&mut self, config: &DeviceConfig) {
        self.management_key = ManagementKey { violations: self.management_key.violations, ..ManagementKey::initial(config) };
    }

    /// Returns what the port's own host may read without the key.
    pub(crate) fn check_reading_host(&mut self, now: Instant) -> KeyCheck {
        self.management_key.expire(now);
        let ManagementKey { key, protection, .. } = self.management_key;
        if key == 0 || protection == 0 { KeyCheck::Full } else { KeyCheck::KeyHidden }
    }

    /// Counts from zero, as the transport does after a reset.
    pub(crate) fn restart_counts(&mut self) {
        self.stats = PortStats::default();
        self.cleared_violations = [0; 2];
    }

    /// Returns what it counted itself.
    pub(crate) fn stats(&self) -> PortStats {
        self.stats
    }

    /// A frame of a queue is not sent: there is no link, or it is longer than the MTU.
    pub(crate) fn discard(&mut self, frame: &[u8]) {
        let discarded = &mut self.stats.discarded;
        let to = match frame.first_chunk() {
            Some(destination) if self.ethernet.is_some() => discarded.counts_of(*destination),
            _ => &mut discarded.unicast,
        };
        to.count(frame.len());
    }

    /// A frame leaves. What the function sends to itself never does.
    pub(crate) fn count_sent(&mut self, frame: &[u8]) {
        if self.ethernet.is_some() {
            count_frame(&mut self.stats.sent, frame);
        }
    }

    /// A frame that is not too long comes.
    pub(crate) fn count_received(&mut self, frame: &[u8]) {
        if self.ethernet.is_some() {
            count_frame(&mut self.stats.received, frame);
        }
    }

    /// A frame from the wire is not taken: it is longer than the MTU.
    pub(crate) fn refuse_long_frame(&mut self) {
        self.stats.too_long += 1;
    }

    /// Returns whether a frame is longer than an Ethernet port has them now. Of an InfiniBand port the transport looks at the payload.
    pub(crate) fn is_too_long(&self, frame: &[u8]) -> bool {
        self.ethernet.is_some() && frame.len() + usize::from(CHECK_SEQUENCE) > usize::from(self.mtu)
    }

    /// Returns the MTU that the driver has set: of an Ethernet port the bytes of a frame with its check sequence.
    pub(crate) const fn mtu(&self) -> u16 {
        self.mtu
    }

    /// P_Key and Q_Key violations since a manager last cleared them. They stop at their greatest value.
    fn violations(&self, stats: &EngineStats) -> [u16; 2] {
        let [pkeys, qkeys] = self.cleared_violations;
        let since = |now: u64, cleared: u64| u16::try_from(now.saturating_sub(cleared)).unwrap_or(u16::MAX);
        [since(stats.pkey_violations, pkeys), since(stats.qkey_violations, qkeys)]
    }

    /// Applies what a subnet manager sets (IBTA 14.2.5.6). Returns `false` and changes nothing for an impossible change of
    /// state, and for a local identifier that another port of the switch has.
    pub(crate) fn set_info(&mut self, set: &SetPortInfo, stats: &EngineStats) -> bool {
        let next = match (self.state, set.state) {
            (now, NO_CHANGE) => now,
            (state::INIT, state::ARMED) => state::ARMED,
            (state::ARMED | state::ACTIVE, state::ACTIVE) => state::ACTIVE,
            (_, state::DOWN) => state::INIT,
            _ => return false,
        };
        let before = (self.identity.lid(), self.identity.gid_prefix());
        if let Err(taken) = self.identity.set_lid(set.lid) {
            self.refused_lid = Some(taken);
            return false;
        }
        self.identity.set_gid_prefix(set.gid_prefix);
        let mut changed = |yes: bool, change| {
            if yes {
                self.changes.push(change);
            }
        };
        changed((before.0, self.sm_lid) != (set.lid, set.sm_lid), PortChange::Lid);
        changed(before.1 != set.gid_prefix, PortChange::Guid);
        changed(self.state == state::ACTIVE && next != state::ACTIVE, PortChange::Down);
        changed(self.state != state::ACTIVE && next == state::ACTIVE, PortChange::Active);
        changed(set.client_reregister, PortChange::ClientReregister);
        (self.sm_lid, self.state) = (set.sm_lid, next);
        let key = &mut self.management_key;
        (key.key, key.protection, key.lease) = (set.m_key, set.m_key_protection, set.m_key_lease);
        // Only 0 may be written to the counts (14.2.5.6).
        let [m_keys, pkeys, qkeys] = set.clears_violations;
        if m_keys {
            key.violations = 0;
        }
        let [pkeys_cleared, qkeys_cleared] = &mut self.cleared_violations;
        for (clears, cleared, now) in
            [(pkeys, pkeys_cleared, stats.pkey_violations), (qkeys, qkeys_cleared, stats.qkey_violations)]
        {
            if clears {
                *cleared = now;
            }
        }
        true
    }

    /// Takes a block of the partition table.
    pub(crate) fn set_pkeys(&mut self, first: usize, pkeys: &[u16]) {
        self.identity.set_pkeys(first, pkeys);
        self.changes.push(PortChange::Pkey);
    }

    /// Writes the port context.
    pub(crate) fn query(&self, stats: &EngineStats, out: &mut ViewMut<'_, HcaVportContext>) {
        let (physical, logical) = self.states();
        let [pkey_violations, qkey_violations] = self.violations(stats);
        let lid = match self.lid() {
            NO_LID => self.no_lid,
            lid => lid,
        };
        out.set(HcaVportContext::PORT_PHYSICAL_STATE, physical)
            .set(HcaVportContext::VPORT_STATE_POLICY, self.policy)
            .set(HcaVportContext::GRH_REQUIRED, self.grh_required.into())
            .set(HcaVportContext::PORT_STATE, logical)
            .set(HcaVportContext::VPORT_STATE, logical)
            // Its driver may send subnet management packets: Linux makes no device file for a manager without (`ib_umad`). What
            // they may change is the matter of the port that they reach.
            .set(HcaVportContext::HAS_SMI, 1)
            .set64(HcaVportContext::SYSTEM_IMAGE_GUID, self.system_guid)
            .set64(HcaVportContext::PORT_GUID, self.port_guid)
            .set64(HcaVportContext::NODE_GUID, self.node_guid)
            .set(HcaVportContext::CAP_MASK1, self.caps)
            .set(HcaVportContext::CAP_MASK1_FIELD_SELECT, SETTABLE_CAPS)
            .set(HcaVportContext::LID, lid.into())
            .set(HcaVportContext::SUBNET_TIMEOUT, SUBNET_TIMEOUT)
            .set(HcaVportContext::SM_LID, self.sm_lid().into())
            .set(HcaVportContext::QKEY_VIOLATION_COUNTER, qkey_violations.into())
            .set(HcaVportContext::PKEY_VIOLATION_COUNTER, pkey_violations.into());
    }

    /// Applies the selected fields of a port context. Returns `false` and changes nothing for the GUIDs: a driver may change
    /// those of other functions only, and there are none.
    #[must_use]
    pub(crate) fn modify(&mut self, context: View<'_, HcaVportContext>) -> bool {
        let fields = context.get(HcaVportContext::FIELD_SELECT);
        if fields & (select::NODE_GUID | select::PORT_GUID) != 0 {
            return false;
        }
        let caps = context.get(HcaVportContext::CAP_MASK1_FIELD_SELECT) & SETTABLE_CAPS;
        self.caps = (self.caps & !caps) | (context.get(HcaVportContext::CAP_MASK1) & caps);
        if fields & select::STATE_POLICY != 0 {
            self.policy = context.get(HcaVportContext::VPORT_STATE_POLICY);
        }
        true
    }

    pub(crate) fn node_guid(&self) -> u64 {
        self.node_guid
    }

    pub(crate) fn port_guid(&self) -> u64 {
        self.port_guid
    }

    pub(crate) fn system_guid(&self) -> u64 {
        self.system_guid
    }

    /// `CapabilityMask`.
    fn capabilities(&self) -> u32 {
        self.caps | EXTENDED_SPEEDS | CAPABILITY_MASK_2 | CLIENT_REREGISTRATION
    }

    /// PortInfo.
    pub(crate) fn info(&self, stats: &EngineStats) -> PortInfo {
        // 1x, 4x, 8x, 12x, 2x there; 1x, 2x, 4x, 8x, 12x in PTYS.
        let width = |bits: u32| (bits & 1 | (bits >> 2 & 7) << 1 | (bits >> 1 & 1) << 4) as u8;
        let code = |mtu: u16| (mtu.trailing_zeros().saturating_sub(7)) as u8;
        let (physical, logical) = self.states();
        let (lanes, speed) = if self.is_up() { (self.width, self.speed) } else { (0, 0) };
        let [pkey_violations, qkey_violations] = self.violations(stats);
        let key = self.management_key;
        PortInfo {
            m_key: key.key,
            m_key_protection: key.protection,
            m_key_lease: key.lease,
            violations: [key.violations, pkey_violations, qkey_violations],
            gid_prefix: self.identity.gid_prefix(),
            lid: self.lid(),
            sm_lid: self.sm_lid(),
            capabilities: self.capabilities(),
            widths: width(2 * self.width - 1),
            width: width(lanes),
            state: logical as u8,
            physical_state: physical as u8,
            speeds: (2 * self.speed - 1) as u8,
            speed: speed as u8,
            mtu: code(self.mtu),
            max_mtu: code(self.max_mtu),
            subnet_timeout: SUBNET_TIMEOUT as u8,
        }
    }

    /// `PortPhysicalState` and `PortState`.
    fn states(&self) -> (u32, u32) {
        match self.link {
            Link::Up => (state::PHYSICAL_LINK_UP, self.state),
            Link::Training(_) => (state::PHYSICAL_TRAINING, state::DOWN),
            Link::Down if !self.admin_up || self.disabled_without_cable && !self.cable => {
                (state::PHYSICAL_DISABLED, state::DOWN)
            }
            Link::Down => (state::PHYSICAL_POLLING, state::DOWN),
        }
    }

    /// Returns the node description.
    pub(crate) fn node_description(&self) -> &[u8] {
        &self.node_description
    }

    /// Replaces the node description.
    pub(crate) fn set_node_description(&mut self, from: &[u8]) {
        for (i, to) in self.node_description.iter_mut().enumerate() {
            *to = from.get(i).copied().unwrap_or(0);
        }
    }

    /// Type and speed.
    pub(crate) fn ptys(&self, out: &mut ViewMut<'_, PtysReg>) {
        if let Some(rate) = self.ethernet {
            return self.ethernet_ptys(rate, out);
        }
        let (width, speed) = if self.is_up() { (self.width, self.speed) } else { (0, 0) };
        // What a port can do, it can do with fewer lanes and slower ones too.
        let (widths, speeds) = (2 * self.width - 1, 2 * self.speed - 1);
        out.set(PtysReg::LOCAL_PORT, 1)
            .set(PtysReg::PROTO_MASK, PTYS_INFINIBAND)
            .set(PtysReg::IB_LINK_WIDTH_CAPABILITY, widths)
            .set(PtysReg::IB_PROTO_CAPABILITY, speeds)
            .set(PtysReg::IB_LINK_WIDTH_ADMIN, widths)
            .set(PtysReg::IB_PROTO_ADMIN, speeds)
            .set(PtysReg::IB_LINK_WIDTH_OPER, width)
            .set(PtysReg::IB_PROTO_OPER, speed);
    }

    /// Type and speed of an Ethernet port: one speed, agreed upon by both ends.
    fn ethernet_ptys(&self, rate: EthernetRate, out: &mut ViewMut<'_, PtysReg>) {
        /// `an_status`: complete.
        const NEGOTIATED: u32 = 1;
        let oper = if self.is_up() { rate } else { EthernetRate::default() };
        out.set(PtysReg::LOCAL_PORT, 1)
            .set(PtysReg::PROTO_MASK, PTYS_ETHERNET)
            .set(PtysReg::AN_STATUS, if self.is_up() { NEGOTIATED } else { 0 })
            .set(PtysReg::ETH_PROTO_CAPABILITY, rate.legacy)
            .set(PtysReg::ETH_PROTO_ADMIN, rate.legacy)
            .set(PtysReg::ETH_PROTO_OPER, oper.legacy)
            .set(PtysReg::EXT_ETH_PROTO_CAPABILITY, rate.extended)
            .set(PtysReg::EXT_ETH_PROTO_ADMIN, rate.extended)
            .set(PtysReg::EXT_ETH_PROTO_OPER, oper.extended);
    }

    /// Returns whether it is an Ethernet port.
    pub(crate) const fn is_ethernet(&self) -> bool {
        self.ethernet.is_some()
    }

    /// Returns whether the driver wants it up.
    pub(crate) const fn is_wanted_up(&self) -> bool {
        self.admin_up
    }

    /// Capabilities, in the first dword of the mask (Linux `mlx5_set_port_caps`).
    pub(crate) fn pcap(&self, out: &mut ViewMut<'_, PcapReg>) {
        out.set(PcapReg::LOCAL_PORT, 1).set_bytes(PcapReg::PORT_CAPABILITY_MASK, &self.capabilities().to_be_bytes());
    }

    /// Sets the capabilities that a driver may choose.
    pub(crate) fn set_pcap(&mut self, from: View<'_, PcapReg>) {
        let mask = from.bytes(PcapReg::PORT_CAPABILITY_MASK).first_chunk().copied().map_or(0, u32::from_be_bytes);
        self.caps = mask & SETTABLE_CAPS;
    }

    /// MTU.
    pub(crate) fn pmtu(&self, out: &mut ViewMut<'_, PmtuReg>) {
        let operational = if self.is_up() || self.mtu_while_down || self.ethernet.is_some() { self.mtu } else { 0 };
        out.set(PmtuReg::LOCAL_PORT, 1)
            .set(PmtuReg::MAX_MTU, self.max_mtu.into())
            .set(PmtuReg::ADMIN_MTU, self.mtu.into())
            .set(PmtuReg::OPER_MTU, operational.into());
    }

    /// Sets the MTU; `false` for one that InfiniBand or the port lacks.
    pub(crate) fn set_mtu(&mut self, mtu: u32) -> bool {
        match u16::try_from(mtu) {
            Ok(mtu) if self.ethernet.is_some() => {
                let is_possible = (*ETHERNET_MTUS.start()..=self.max_mtu).contains(&mtu);
                if is_possible {
                    self.mtu = mtu;
                }
                is_possible
            }
            Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) if mtu <= self.max_mtu => {
                self.mtu = mtu;
                true
            }
            _ => false,
        }
    }

    /// Virtual lanes.
    pub(crate) fn pvlc(&self, out: &mut ViewMut<'_, PvlcReg>) {
        out.set(PvlcReg::LOCAL_PORT, 1).set(PvlcReg::VL_HW_CAP, 4).set(PvlcReg::VL_ADMIN, 4).set(PvlcReg::VL_OPERATIONAL, 4);
    }

    /// Administrative and operational state.
    pub(crate) fn paos(&self, out: &mut ViewMut<'_, PaosReg>) {
        let code = |up| if up { 1 } else { 2 };
        out.set(PaosReg::LOCAL_PORT, 1)
            .set(PaosReg::ADMIN_STATUS, code(self.admin_up))
            .set(PaosReg::OPER_STATUS, code(self.is_up()));
    }

    /// Sets the administrative state (1 up, 2 down); `false` for another code.
    pub(crate) fn set_admin(&mut self, status: u32, now: Instant) -> bool {
        let up = match status {
            1 => true,
            2 => false,
            _ => return false,
        };
        self.admin_up = up;
        self.update_link(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::Layout as _;

    use super::*;
    use crate::config::{LinkSpeed, LinkWidth};

    fn ptys(port: &Port) -> Vec<u8> {
        let mut bytes = vec![0; PtysReg::SIZE];
        port.ptys(&mut ViewMut::new(&mut bytes).unwrap());
        bytes
    }

    #[test]
    fn width_and_speed_are_those_of_the_cable() {
        let config = DeviceConfig { link_width: LinkWidth::X2, link_speed: LinkSpeed::Ndr, ..DeviceConfig::instant(1) };
        let mut port = Port::new(&config);
        // `ptys_reg_bits` of mlx5_ifc.h: capability at dword 16, operational at dword 40; width in the upper half.
        assert_eq!(ptys(&port)[16..20], [0, 3, 0, 0xff]);
        assert_eq!(ptys(&port)[40..44], [0, 2, 0, 0x80]);
        port.set_cable(false, Instant::default());
        assert_eq!(ptys(&port)[40..44], [0; 4]);
    }

    #[test]
    fn a_port_that_is_switched_off_is_disabled_with_and_without_a_cable() {
        let now = Instant::default();
        let mut port = Port::new(&DeviceConfig::instant(1));
        let (up, polling, disabled) = ((5, 4), (2, 1), (3, 1));
        for cable in [true, false, true] {
            port.set_cable(cable, now);
            assert!(port.set_admin(2, now));
            assert_eq!(port.states(), disabled, "off, {cable}");
            assert!(!port.set_admin(3, now), "no such state");
            assert!(port.set_admin(1, now));
            assert_eq!(port.states(), if cable { up } else { polling }, "on, {cable}");
        }
    }

    #[test]
    fn the_prefix_is_the_upper_half_of_a_gid() {
        let config = DeviceConfig { gid_prefix: 0xfec0_0000_0000_0001, ..DeviceConfig::with_lid(3) };
        let mut gid = [0xfe, 0xc0, 0, 0, 0, 0, 0, 1, 0, 2, 0xc9, 0, 0, 0, 3, 1];
        let identity = PortIdentity::new(&config);
        assert_eq!((identity.gid(0), config.gid()), (Some(gid), gid));
        // An entry that is not in use has it too, and the GUID 0.
        gid[8..].fill(0);
        assert_eq!((identity.gid(7), identity.gid(8)), (Some(gid), None));
    }
}
