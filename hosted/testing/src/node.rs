//! Hosts whose devices are up, and the network between them.

use bareverbs::storage::{QpRings, SrqEntries, Storage};
use bareverbs::{Access, PdHandle, Region, Verbs, storage};
use bareverbs_mlx5::Mlx5;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, SimBuffer, SimPlatform};
use bareverbs_sim::rejection::Rejection;
use bareverbs_sim::{DeviceConfig, Profile};

use crate::error::failed;
use crate::{Error, Faults, Network, Waiter, bring_up, driver_config};

/// Pages of 4096 bytes for the queues of a [`Node`]. The device's firmware has pages of its own.
pub const PAGES: usize = 1024;

/// Index of the first memory key of the first host, and from there to that of the next. Regions that come and go get new keys, so that
/// there are more than a node has room for.
const FIRST_KEY: u32 = 2;
const KEYS: u32 = 4096;

/// The driver of a [`Node`].
pub type Driver = Mlx5<SimPlatform, PAGES>;

/// 4 protection domains, 64 regions, 16 windows, 32 completion queues, 16 queue pairs and 4 shared receive queues.
type Tables = storage!['static, Driver; pds: 4, mrs: 64, mws: 16, cqs: 32, qps: 16, srqs: 4];
/// 512 blocks of 64 bytes for sends, and 256 receives, of a queue pair.
type Rings = QpRings<512, 256>;
/// 255 receives of a shared receive queue.
type Shared = SrqEntries<256>;

/// A host whose device is up, with a protection domain.
///
/// It has room for 4 protection domains, 64 regions, 16 windows, 32 completion queues, 16 queue pairs and 4 shared receive queues of
/// 255 receives. A queue pair has up to 256 receives and 512 blocks of 64 bytes for sends: these are 170 requests
/// ([`QpCap::max_send_wr`](bareverbs::QpCap::max_send_wr)), since each may be the bind of a window, which takes three. A program that needs
/// more has tables of its own: [`bring_up`]. The tables, about 200 KiB, are leaked: queues and regions live as long as the test wants. For thousands of hosts in one
/// process see [`bring_up`].
#[derive(Debug)]
pub struct Node {
    /// The simulated host: its memory, its clock, its device.
    pub host: Host,
    /// The verbs on its device.
    pub verbs: Verbs<'static, Driver>,
    /// A protection domain, in which [`Self::register`] and [`connect`](crate::connect) make what they make.
    pub pd: PdHandle,
    network: Network,
}

impl Node {
    pub(crate) fn new(network: &Network, host: Host) -> Result<Self, Error> {
        let rings: &'static [Rings; 16] = Box::leak(Box::default());
        let shared: &'static [Shared; 4] = Box::leak(Box::default());
        let tables: &'static mut Tables =
            Box::leak(Box::new(Storage::with_srqs(QpRings::views(rings), SrqEntries::views(shared))));
        let mut verbs = bring_up(&host, &driver_config(&host), tables)?;
        let pd = verbs.alloc_pd().map_err(failed)?;
        Ok(Self { host, verbs, pd, network: network.clone() })
    }

    /// Returns the network that the host is in.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// Returns what waits for completions of this host.
    pub fn waiter(&self) -> Waiter {
        Waiter::new(self.network.clone(), self.host.clone())
    }

    /// Allocates `len` bytes, zeroed, and registers them in the node's protection domain. The region owns them; peers name them by
    /// [`Region::remote`], requests of this host by [`Region::sge`].
    ///
    /// # Errors
    /// The rights are invalid, the table is full, or the device refuses.
    pub fn register(&mut self, len: usize, access: Access) -> Result<Region<'static, SimBuffer>, Error> {
        let bytes = self.host.memory(len).whole();
        self.verbs.reg_mr(self.pd, bytes, access).map_err(|refused| failed(refused.error))
    }

    /// Arms a fault of the device, which happens once.
    ///
    /// ```
    /// use bareverbs::{Access, SendWr};
    /// use bareverbs_testing::{Fault, Faults, WaitError, connect, pair};
    ///
    /// let [mut a, mut b] = pair(Faults::none())?;
    /// let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let cqn = a.verbs.cq_info(qa.cq.handle())?.cqn.get();
    /// a.arm(Fault::DropCqe { cqn });
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
    /// assert!(matches!(qa.wait(), Err(WaitError::Overdue(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arm(&self, fault: Fault) {
        self.host.with_device(|device| device.faults_mut().arm(fault));
    }

    /// Takes the device out of its slot: its registers read as all ones, and it does nothing. Each command of the verbs finds that, and
    /// [`Verbs::maintain`] when its next check is due, up to two seconds later (`world().advance`); then queues return their requests as
    /// flushed.
    ///
    /// ```
    /// use bareverbs::{SendWr, WcStatus};
    /// use bareverbs_testing::{Faults, connect, pair};
    ///
    /// let [mut a, mut b] = pair(Faults::none())?;
    /// let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// b.remove();
    /// qa.qp.send.post(&SendWr::send(b"anybody?"))?;
    /// assert_eq!(qa.wait()?.status, WcStatus::RetryExcErr);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self) {
        self.host.with_device(|device| device.set_removed(true));
    }

    /// Removes the device at the write to its registers after this many more, which is lost. Each command and each doorbell is a
    /// write, so a loop over `writes` ends a program at each of its steps.
    pub fn remove_after(&self, writes: u64) {
        self.host.with_device(|device| device.remove_after(writes));
    }

    /// Plugs the cable, or pulls it.
    pub fn set_link(&self, plugged: bool) {
        self.host.with_device(|device| device.set_link(plugged));
    }

    /// Returns the mistakes of the driver that the device has found: of `bareverbs-mlx5`, so that there should be none. One may be the
    /// program's: a key that it ended is named by receives that wait (`KeyAfterDestroy`). All else that a program did wrong is in
    /// [`Self::rejections`].
    pub fn findings(&self) -> Vec<Finding> {
        self.host.with_device(|device| device.audit().findings().to_vec())
    }

    /// Returns what the device of this host refused or dropped, with the facts: more than a card tells anybody. Each is there once, the
    /// newest last; the last 64 that differ are kept. What a peer was refused is at the host that refused it.
    ///
    /// ```
    /// use bareverbs::{Access, SendWr, WcStatus};
    /// use bareverbs_testing::{Faults, KeyFault, Rejection, connect, pair};
    ///
    /// let [mut a, mut b] = pair(Faults::none())?;
    /// let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// qa.qp.send.post(&SendWr::write(target.remote(60), b"too long"))?;
    /// // All that a card says: one of a handful of causes.
    /// assert_eq!(qa.wait()?.status, WcStatus::RemAccessErr);
    /// // What the simulated one knows.
    /// let [rejection] = b.rejections()[..] else { panic!("one access was refused") };
    /// assert!(matches!(rejection, Rejection::Access { len: 8, fault: KeyFault::Range { len: 64, .. }, .. }), "{rejection}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rejections(&self) -> Vec<Rejection> {
        self.host.with_device(|device| device.rejections().iter().map(|(rejection, _)| rejection).collect())
    }
}

/// Returns two hosts with a device each, up and with an active port. The devices are like the card that the environment variable
/// `BAREVERBS_PROFILE` names ([`Profile::name`]), so that a whole suite of tests can run on another one; without it as by
/// [`DeviceConfig::with_lid`].
///
/// ```
/// use bareverbs_testing::{Faults, connect, pair};
///
/// let [mut a, mut b] = pair(Faults::none())?;
/// let [_qa, _qb] = connect(&mut a, &mut b)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A device cannot be brought up, or its port does not become active.
pub fn pair(faults: Faults) -> Result<[Node; 2], Error> {
    nodes(faults)
}

/// The environment variable that names the profile of devices.
const PROFILE: &str = "BAREVERBS_PROFILE";

/// Returns the profile of this name; the default one without a name.
fn profile(name: Option<&str>) -> Result<Profile, Error> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Profile::default()) };
    let known = || Profile::ALL.map(Profile::name).join(", ");
    Profile::from_name(name).ok_or_else(|| failed(format!("{PROFILE}: no profile {name}; there are {}", known())))
}

/// Returns as many hosts as asked for, as [`pair`] does.
///
/// ```
/// use bareverbs_testing::{Faults, connect, nodes};
///
/// let [mut a, mut b, mut c] = nodes(Faults::none())?;
/// let [_ab, _ba] = connect(&mut a, &mut b)?;
/// let [_ac, _ca] = connect(&mut a, &mut c)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A device cannot be brought up, its port does not become active, or `BAREVERBS_PROFILE` names no profile.
pub fn nodes<const N: usize>(faults: Faults) -> Result<[Node; N], Error> {
    let network = Network::new(faults);
    let profile = profile(std::env::var(PROFILE).ok().as_deref())?;
    let nodes = (1..).take(N).map(|lid| network.add(faults.device(profile, lid))).collect::<Result<Vec<_>, _>>()?;
    nodes.try_into().map_err(|_| failed("more hosts than there are LIDs"))
}

impl Network {
    /// Adds a host with such a device, brings it up and waits for its port.
    ///
    /// ```
    /// use bareverbs_testing::{DeviceConfig, Faults, Network, Profile, connect};
    ///
    /// let network = Network::new(Faults::none());
    /// let mut a = network.add(DeviceConfig::profile(Profile::ConnectX5, 1))?;
    /// let mut b = network.add(DeviceConfig { blue_flame: false, ..DeviceConfig::with_lid(2) })?;
    /// let [_qa, _qb] = connect(&mut a, &mut b)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There can be no such device here (two have one LID, say), the driver cannot bring it up, or its port is not active after a
    /// minute.
    pub fn add(&self, device: DeviceConfig) -> Result<Node, Error> {
        let host = self.world().add(device).map_err(failed)?;
        // The key of a region of one host is unknown at another, and not that of another region.
        let index = u32::try_from(host.port().0).unwrap_or(0).saturating_mul(KEYS).saturating_add(FIRST_KEY);
        host.with_device(|device| device.start_keys_at(index));
        Node::new(self, host)
    }

    /// Loses each frame between two hosts from now on, in both directions. [`World::set_cut`](crate::World::set_cut) cuts one direction.
    ///
    /// ```
    /// use bareverbs::{RecvWr, SendWr, WcStatus};
    /// use bareverbs_testing::{Faults, connect, nodes};
    ///
    /// let [mut a, mut b, mut c] = nodes(Faults::none())?;
    /// let [mut to_b, _b] = connect(&mut a, &mut b)?;
    /// let [mut to_c, mut from_a] = connect(&mut a, &mut c)?;
    /// a.network().cut(&a, &b);
    /// to_b.qp.send.post(&SendWr::send(b"lost"))?;
    /// assert_eq!(to_b.wait()?.status, WcStatus::RetryExcErr);
    /// from_a.qp.recv.post(&RecvWr { wr_id: 1, sges: &[] })?;
    /// to_c.qp.send.post(&SendWr::send(b""))?;
    /// assert_eq!(from_a.wait()?.status, WcStatus::Success);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cut(&self, a: &Node, b: &Node) {
        self.world().set_cut(&a.host, &b.host, true);
        self.world().set_cut(&b.host, &a.host, true);
    }

    /// Ends what [`Self::cut`] began.
    pub fn heal(&self, a: &Node, b: &Node) {
        self.world().set_cut(&a.host, &b.host, false);
        self.world().set_cut(&b.host, &a.host, false);
    }
}
