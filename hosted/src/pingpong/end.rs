//! One end of a ping-pong: whose turn it is, how far it is, and what the messages are.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs::{
    Access, AddressVector, Completion, CqHandle, DmaBuffer as _, Gid, GlobalRoute, Mtu, Psn, QpAttr, QpCap, QpHandle, QpType,
    SendFlags, WcStatus, ack_timeout,
};

use super::address::Address;
use crate::data_pattern::Pattern;
use crate::device::{Device, Endpoint, Host, Role};

/// Request numbers of the tools, each a bit of what is pending.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// Local ACK timeout of the tools: 4.096 µs · 2^14.
const ACK_TIMEOUT: u8 = 14;
/// Shortest distance between two bytes that the tools look at.
const PAGE: usize = 4096;
/// Longest message in bytes that is sent inline.
const INLINE: u32 = 64;

/// How long an end that has all it wants may have to answer a repeated message: the peer repeats after one ACK timeout.
pub const LINGER: Duration = match ack_timeout(ACK_TIMEOUT) {
    Some(time) => time.saturating_mul(2),
    None => Duration::ZERO,
};

/// What an end is to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// RC or UC.
    pub qp_type: QpType,
    /// Port of the device.
    pub port: u8,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Receives to post at a time.
    pub rx_depth: u32,
    /// Messages each way.
    pub iters: u32,
    /// Service level.
    pub sl: u8,
    /// Index of the GID, if packets are to carry a GRH.
    pub gid_idx: Option<u8>,
    /// Whether messages are checked.
    pub chk: bool,
    /// First PSN and the data come from it.
    pub seed: u64,
}

/// One end.
pub struct PingpongEnd<H: Host> {
    /// Which one: A is the client, B the server.
    pub side: Role,
    /// Where it is reached.
    pub local: Address,
    /// Messages that were sent and, with RC, acknowledged.
    pub sent: u32,
    /// Messages that came.
    pub received: u32,
    name: String,
    plan: Plan,
    inline: bool,
    endpoint: Endpoint<H>,
    cq: CqHandle,
    qp: QpHandle,
    /// Receives that are posted.
    posted: u32,
    /// Of the present turn: what has not completed yet, as bits.
    pending: u64,
    /// Messages that were posted.
    begun: u32,
    /// The message to send.
    message: Vec<u8>,
}

impl<H: Host> PingpongEnd<H> {
    /// Makes everything; the port must be active.
    ///
    /// # Errors
    /// The device lacks what the plan wants, or does not give it.
    pub fn new(side: Role, name: &str, device: &mut Device<H>, plan: Plan) -> Result<Self> {
        let verbs = &mut device.verbs;
        let port = verbs.query_port(plan.port).context("query_port")?;
        if plan.mtu > port.active_mtu {
            bail!(
                "a path MTU of {} is more than the {} of port {}; give both ends -m {}",
                plan.mtu.bytes(),
                port.active_mtu.bytes(),
                plan.port,
                port.active_mtu.bytes()
            );
        }
        let most = *verbs.query_device();
        if u64::from(plan.size) > most.max_msg_size {
            bail!("messages of {} bytes are longer than the device's longest, {}", plan.size, most.max_msg_size);
        }
        let gid = match plan.gid_idx {
            None => Gid::default(),
            Some(index) if u16::from(index) >= port.gid_tbl_len => {
                bail!("there is no GID {index}: port {} has {}; see `bareverbs info`", plan.port, port.gid_tbl_len)
            }
            Some(index) => verbs.query_gid(plan.port, index.into()).context("query_gid")?,
        };
        // A client keeps what comes back apart from what it sent; a server sends back what came.
        let len = (plan.size as usize).next_multiple_of(PAGE) * if side == Role::Client { 2 } else { 1 };
        let mut endpoint = Endpoint::new(device, len, Access::LOCAL_WRITE)?;
        let message = vec![0x7b; plan.size as usize];
        endpoint.region.write(0, &message)?;
        let cq = endpoint.create_cq(device, plan.rx_depth + 1)?;
        let inline = plan.size <= INLINE.min(most.max_inline_data);
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: plan.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: if inline { plan.size } else { 0 },
        };
        let qp = endpoint.create_qp(device, plan.qp_type, (cq, cq), cap)?;
        let psn = Psn::new((plan.seed >> 40) as u32 & 0xff_ffff);
        let local = Address { lid: port.lid, qpn: device.verbs.qp(qp)?.qpn, psn, gid };
        Ok(Self {
            side,
            local,
            sent: 0,
            received: 0,
            name: name.into(),
            plan,
            inline,
            endpoint,
            cq,
            qp,
            posted: 0,
            pending: RECEIVE,
            begun: 0,
            message,
        })
    }

    /// Connects to the other end and posts the receives: its first message may come from now on.
    ///
    /// # Errors
    /// The other end wants a GRH and this one has no GID, or the device refuses.
    pub fn connect(&mut self, device: &mut Device<H>, remote: &Address) -> Result<()> {
        let Plan { port, sl, mtu, gid_idx, .. } = self.plan;
        let grh = match (remote.is_global(), gid_idx) {
            (false, _) => None,
            (true, Some(sgid_index)) => {
                Some(GlobalRoute { dgid: remote.gid, sgid_index, hop_limit: 1, ..GlobalRoute::default() })
            }
            (true, None) => bail!("the other end uses a GID (-g): give an index here too"),
        };
        let attr = QpAttr {
            port_num: port,
            av: AddressVector { dlid: remote.lid, sl, grh, ..AddressVector::default() },
            path_mtu: mtu,
            dest_qpn: remote.qpn,
            rq_psn: remote.psn,
            sq_psn: self.local.psn,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: ACK_TIMEOUT,
            ..QpAttr::default()
        };
        self.endpoint.connect(device, 0, &attr).with_context(|| format!("{}: connect to {remote}", self.name))?;
        self.post_receives(device)
    }

    /// Begins: a client sends the first message.
    ///
    /// # Errors
    /// It cannot be posted.
    pub fn start(&mut self, device: &mut Device<H>) -> Result<()> {
        if self.side == Role::Client { self.post_send(device) } else { Ok(()) }
    }

    /// Takes the completions that are there and does what follows from them; whether there were any.
    ///
    /// # Errors
    /// A request failed, a message is wrong, or the next one cannot be posted.
    pub fn step(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; 2];
        let taken = device.verbs.poll_cq(self.cq, &mut completions).context("poll_cq")?;
        for completion in completions.iter().take(taken) {
            self.complete(device, completion)?;
        }
        Ok(taken > 0)
    }

    /// Whether all messages were sent and received.
    pub const fn is_done(&self) -> bool {
        self.sent >= self.plan.iters && self.received >= self.plan.iters
    }

    /// Messages that were posted for sending so far.
    pub const fn begun(&self) -> u32 {
        self.begun
    }

    /// Asks for an interrupt at the next completion. One that is there already gives none.
    ///
    /// # Errors
    /// The device is broken.
    pub fn arm(&self, device: &mut Device<H>) -> Result<()> {
        self.endpoint.request_events(device)
    }

    /// How far it is, for people.
    pub fn progress(&self) -> String {
        let iters = self.plan.iters;
        format!("{}: {} of {iters} messages sent, {} of {iters} received", self.name, self.sent, self.received)
    }

    /// Destroys every object.
    ///
    /// # Errors
    /// The device does not destroy one.
    pub fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.endpoint.destroy(device)
    }

    fn complete(&mut self, device: &mut Device<H>, completion: &Completion) -> Result<()> {
        if completion.status != WcStatus::Success {
            bail!("{}: {}", self.progress(), failure(completion));
        }
        if completion.wr_id == SEND {
            self.sent += 1;
        } else {
            if completion.byte_len != self.plan.size {
                bail!(
                    "{}: a message of {} bytes came instead of {}; give both ends the same -s",
                    self.name,
                    completion.byte_len,
                    self.plan.size
                );
            }
            if self.plan.chk {
                self.check(self.received).with_context(|| format!("message {} at {}", self.received, self.name))?;
            }
            self.received += 1;
            self.posted -= 1;
            if self.posted <= 1 {
                self.post_receives(device)?;
            }
        }
        self.pending &= !completion.wr_id;
        if self.pending == 0 && self.sent < self.plan.iters {
            self.post_send(device)?;
        }
        Ok(())
    }

    /// Where received bytes go.
    fn inbox(&self) -> usize {
        if self.side == Role::Client { (self.plan.size as usize).next_multiple_of(PAGE) } else { 0 }
    }

    fn post_receives(&mut self, device: &mut Device<H>) -> Result<()> {
        while self.posted < self.plan.rx_depth {
            self.endpoint.post_receive(device, self.qp, RECEIVE, self.inbox(), self.message.len())?;
            self.posted += 1;
        }
        Ok(())
    }

    fn post_send(&mut self, device: &mut Device<H>) -> Result<()> {
        if self.plan.chk && self.side == Role::Client {
            self.fill(self.begun);
            self.endpoint.region.write(0, &self.message)?;
        } else if self.inline {
            self.endpoint.region.read(0, &mut self.message)?;
        }
        let mut batch = device.verbs.send_batch(self.qp).context("post_send")?;
        let posted = if self.inline {
            batch.send_inline(SEND, SendFlags::SIGNALED, &self.message)
        } else {
            batch.send(SEND, SendFlags::SIGNALED, &[self.endpoint.sge(0, self.message.len())])
        };
        posted.context("post_send")?;
        self.pending = SEND | RECEIVE;
        self.begun += 1;
        Ok(())
    }

    /// Makes message `index` of a client: no two are the same, and the first byte of each page is 0, as the tools want it.
    fn fill(&mut self, index: u32) {
        Pattern::new(self.plan.seed, 0, index.into()).fill(&mut self.message);
        self.message.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    }

    /// Looks at the message that came.
    fn check(&mut self, index: u32) -> Result<()> {
        if self.side == Role::Client {
            self.fill(index);
            let came = self.endpoint.read(self.inbox(), self.message.len())?;
            let is_wrong = |(_, (have, want)): &(usize, (&u8, &u8))| have != want;
            if let Some((at, (have, want))) = came.iter().zip(&self.message).enumerate().find(is_wrong) {
                bail!("byte {at} came back as {have:#04x} instead of {want:#04x}");
            }
            return Ok(());
        }
        for at in (0..self.message.len()).step_by(PAGE) {
            let mut byte = [0];
            self.endpoint.region.read(at, &mut byte)?;
            let [byte] = byte;
            if byte != 0 {
                bail!("byte {at} is {byte:#04x} instead of 0; did the client get -c too?");
            }
        }
        Ok(())
    }
}

/// What a failed request means, and what helps.
fn failure(completion: &Completion) -> String {
    let what = if completion.wr_id == SEND { "a send" } else { "a receive" };
    let help = match completion.status {
        WcStatus::RetryExcErr => "the other end does not answer: it ended, has another MTU, or its LID is not reached",
        WcStatus::RemInvReqErr | WcStatus::LocLenErr => "the messages differ in length; give both ends the same -s",
        WcStatus::RemOpErr => "the other end failed; see what it says",
        WcStatus::WrFlushErr => "the queue pair broke before",
        _ => "see the status and the device's own code",
    };
    format!("{what} failed with {:?}, vendor {:#x}: {help}", completion.status, completion.vendor_err)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs_sim::in_process::{World, WorldConfig};

    use super::*;
    use crate::device::DevicePair;
    use crate::device::simulated::Simulated;

    const PLAN: Plan = Plan {
        qp_type: QpType::Rc,
        port: 1,
        size: 9000,
        mtu: Mtu::Mtu1024,
        rx_depth: 4,
        iters: 3,
        sl: 0,
        gid_idx: None,
        chk: true,
        seed: 0x1234_5678_9abc_def0,
    };

    type Ends = (DevicePair<Simulated>, PingpongEnd<Simulated>, PingpongEnd<Simulated>);

    fn ends(plan_a: Plan, plan_b: Plan) -> Ends {
        let (mut devices, mut a, mut b) = unconnected(plan_a, plan_b);
        a.connect(devices.of(Role::Client), &b.local).unwrap();
        b.connect(devices.of(Role::Server), &a.local).unwrap();
        (devices, a, b)
    }

    fn unconnected(plan_a: Plan, plan_b: Plan) -> Ends {
        let (_, a, b) = World::pair(WorldConfig::default());
        let up = |name, host| Device::bring_up(Simulated::new(name, host), &Arc::default()).unwrap();
        let mut devices = DevicePair::new(up("a", a), Some(up("b", b)));
        let a = PingpongEnd::new(Role::Client, "a", devices.of(Role::Client), plan_a).unwrap();
        let b = PingpongEnd::new(Role::Server, "b", devices.of(Role::Server), plan_b).unwrap();
        (devices, a, b)
    }

    /// Goes on until both are done or one fails.
    fn play((devices, a, b): &mut Ends) -> Result<()> {
        for _ in 0..100_000 {
            a.step(devices.of(Role::Client))?;
            b.step(devices.of(Role::Server))?;
            if a.is_done() && b.is_done() {
                return Ok(());
            }
            devices.idle()?;
        }
        panic!("{} {}", a.progress(), b.progress());
    }

    fn set(end: &mut PingpongEnd<Simulated>, at: usize, byte: u8) {
        end.endpoint.region.write(at, &[byte]).unwrap();
    }

    #[test]
    fn a_right_byte_everywhere_is_no_error() {
        let mut ends = ends(PLAN, PLAN);
        ends.1.start(ends.0.of(Role::Client)).unwrap();
        play(&mut ends).unwrap();
        assert_eq!((ends.1.sent, ends.1.received, ends.2.sent, ends.2.received), (3, 3, 3, 3));
    }

    #[test]
    fn a_client_finds_any_wrong_byte_that_comes_back() {
        for at in [0, 1, 4096, 8999] {
            // The server does not look: what it gets wrong, it sends back wrong.
            let mut ends = ends(PLAN, Plan { chk: false, ..PLAN });
            ends.1.start(ends.0.of(Role::Client)).unwrap();
            let right = ends.1.message[at];
            // Between the post and the moment when the device fetches the bytes.
            set(&mut ends.1, at, right ^ 0x40);
            let error = format!("{:#}", play(&mut ends).unwrap_err());
            let want = format!("message 0 at a: byte {at} came back as {:#04x} instead of {right:#04x}", right ^ 0x40);
            assert_eq!(error, want);
        }
    }

    #[test]
    fn a_server_finds_a_wrong_byte_at_the_start_of_a_page() {
        let mut ends = ends(PLAN, PLAN);
        ends.1.start(ends.0.of(Role::Client)).unwrap();
        set(&mut ends.1, 4096, 0x7b);
        let error = format!("{:#}", play(&mut ends).unwrap_err());
        assert!(error.contains("message 0 at b: byte 4096 is 0x7b instead of 0"), "{error}");
    }

    #[test]
    fn ends_of_different_sizes_say_so() {
        for (size_a, size_b, what) in [(100, 200, "a message of 100 bytes came instead of 200"), (200, 100, "failed with")] {
            let mut ends = ends(Plan { size: size_a, ..PLAN }, Plan { size: size_b, ..PLAN });
            ends.1.start(ends.0.of(Role::Client)).unwrap();
            let error = format!("{:#}", play(&mut ends).unwrap_err());
            assert!(error.contains(what) && error.contains("give both ends the same -s"), "{error}");
        }
    }

    #[test]
    fn a_gid_on_one_side_only_is_refused() {
        let (mut devices, mut a, b) = unconnected(PLAN, Plan { gid_idx: Some(0), ..PLAN });
        assert!(b.local.is_global());
        let error = a.connect(devices.of(Role::Client), &b.local).unwrap_err();
        assert!(error.to_string().contains("-g"), "{error}");
    }

    #[test]
    fn what_the_port_lacks_is_refused_with_what_it_has() {
        let (_, host, _) = World::pair(WorldConfig::default());
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let mut refusal = |plan| PingpongEnd::new(Role::Client, "a", &mut device, plan).err().unwrap().to_string();
        assert!(refusal(Plan { gid_idx: Some(200), ..PLAN }).contains("no GID 200"));
        let small = bareverbs_sim::DeviceConfig { mtu: 2048, ..Default::default() };
        let host = World::new(WorldConfig::default()).add(small).unwrap();
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let refusal = PingpongEnd::new(Role::Client, "a", &mut device, Plan { mtu: Mtu::Mtu4096, ..PLAN }).err().unwrap();
        assert!(refusal.to_string().contains("-m 2048"), "{refusal}");
    }
}
