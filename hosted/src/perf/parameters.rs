//! Parameters of the measurements, which the client sends to the server.

use std::fmt;
use std::time::Duration;

use bareverbs::Mtu;
use serde::{Deserialize, Serialize};

/// Maximum number of requests in a send queue, and of receives in a receive queue ([`crate::device::SEND_BLOCKS`]).
pub const REQUESTS: u32 = crate::device::RECEIVES as u32;
/// Maximum number of queue pairs of a device.
pub const QUEUE_PAIRS: u16 = crate::device::QUEUE_PAIRS as u16;
/// Receives for credits, in addition to those for messages.
pub const CREDITS: u32 = 8;
/// Maximum message size of `-a` in bytes, as in perftest.
const MAX_SIZE: u32 = 8 << 20;
/// Default size of datagrams in bytes, which fits the MTU of Ethernet.
const DATAGRAM: u32 = 1024;
/// Maximum size of a datagram in bytes: that of the greatest path MTU.
const MAX_DATAGRAM: u32 = 4096;
/// Least number of receives of a queue pair: a credit is sent for a quarter of them.
const MIN_RECEIVES: u32 = 4;
/// Default maximum of the bytes of one measurement.
const MAX_TOTAL_BYTES: u64 = 1 << 30;
/// Default maximum inline payload of latency tests in bytes, as in perftest.
const INLINE: u32 = 220;
/// Default maximum size of messages with completion moderation in bytes, as in perftest.
const MODERATED: u32 = 8192;
/// Default number of requests for one completion, as in perftest.
const CQ_MOD: u32 = 100;

/// Operation of the requests of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA_WRITE.
    Write,
    /// RDMA_READ.
    Read,
    /// SEND.
    Send,
    /// FETCH_AND_ADD or CMP_AND_SWP.
    Atomic,
}

/// A test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    #[default]
    /// Latency of RDMA_WRITE: both ends write to each other and poll their memory; half the round trip
    WriteLat,
    /// Bandwidth of RDMA_WRITE
    WriteBw,
    /// Latency of RDMA_READ: from request to completion
    ReadLat,
    /// Bandwidth of RDMA_READ
    ReadBw,
    /// Latency of SEND: half the round trip
    SendLat,
    /// Bandwidth of SEND
    SendBw,
    /// Latency of an atomic: from request to completion
    AtomicLat,
    /// Rate of atomics
    AtomicBw,
}

impl Test {
    /// All tests.
    pub const ALL: [Self; 8] = [
        Self::WriteLat,
        Self::WriteBw,
        Self::ReadLat,
        Self::ReadBw,
        Self::SendLat,
        Self::SendBw,
        Self::AtomicLat,
        Self::AtomicBw,
    ];

    /// Returns the operation of the requests.
    pub const fn verb(self) -> Verb {
        match self {
            Self::WriteLat | Self::WriteBw => Verb::Write,
            Self::ReadLat | Self::ReadBw => Verb::Read,
            Self::SendLat | Self::SendBw => Verb::Send,
            Self::AtomicLat | Self::AtomicBw => Verb::Atomic,
        }
    }

    /// Returns whether the test measures latency; otherwise it measures bandwidth.
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat)
    }

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteLat => "write-lat",
            Self::WriteBw => "write-bw",
            Self::ReadLat => "read-lat",
            Self::ReadBw => "read-bw",
            Self::SendLat => "send-lat",
            Self::SendBw => "send-bw",
            Self::AtomicLat => "atomic-lat",
            Self::AtomicBw => "atomic-bw",
        }
    }

    const fn needs_rc(self) -> bool {
        matches!(self.verb(), Verb::Read | Verb::Atomic)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Transport of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection
    #[default]
    #[value(alias = "RC")]
    Rc,
    /// Unreliable connection
    #[value(alias = "UC")]
    Uc,
    /// Unreliable datagram: a message is one packet, and only sends are measured
    #[value(alias = "UD")]
    Ud,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// Operation of atomic tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Atomic {
    /// Fetch-and-add of 1
    #[default]
    FetchAndAdd,
    /// Compare-and-swap from n to n + 1
    CmpAndSwap,
}

/// Parameters of all measurements. Both ends derive everything else from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Tests, in order.
    pub tests: Vec<Test>,
    /// Message sizes in bytes; empty for the default of each test. Atomics always have 8 bytes.
    pub sizes: Vec<u32>,
    /// Messages of each queue pair in a bandwidth test, or round trips in a latency test; `None` for the default.
    pub iterations: Option<u64>,
    /// Duration of each measurement in milliseconds, instead of `iterations`.
    pub duration_ms: Option<u64>,
    /// Transport.
    pub transport: Transport,
    /// Whether the queue pairs of an end take their receives from one queue.
    pub use_srq: bool,
    /// Path MTU in bytes; `None` for the smaller active MTU of the two ports.
    pub mtu: Option<u32>,
    /// Number of queue pairs.
    pub queue_pairs: u16,
    /// Maximum number of requests in flight on each queue pair.
    pub tx_depth: u32,
    /// Number of receives posted on each queue pair.
    pub rx_depth: u32,
    /// Maximum inline payload in bytes; `None` for the default of each test.
    pub inline: Option<u32>,
    /// Whether the ends wait for completion events instead of polling.
    pub events: bool,
    /// Whether both ends send in bandwidth tests.
    pub bidirectional: bool,
    /// Requests for one completion; `None` for the default.
    pub cq_mod: Option<u32>,
    /// Requests for one doorbell.
    pub post_list: u32,
    /// Maximum number of reads and atomics outstanding on each queue pair; `None` for the maximum of the devices.
    pub outs: Option<u8>,
    /// Operation of atomic tests.
    pub atomic: Atomic,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Test.
    pub test: Test,
    /// Bytes of a message.
    pub size: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.test, self.size)
    }
}

/// End condition of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After this number of messages of each queue pair, or round trips.
    Iterations(u64),
    /// After this time.
    Duration(Duration),
}

impl Parameters {
    /// Returns the sizes of `-a`: powers of two from 2 bytes to 8 MiB, or to the longest datagram of a path MTU.
    pub fn all_sizes(transport: Transport, mtu: Option<u32>) -> Vec<u32> {
        let most = if transport == Transport::Ud { mtu.unwrap_or(MAX_DATAGRAM) } else { MAX_SIZE };
        (1..=MAX_SIZE.trailing_zeros()).map(|log| 1 << log).filter(|size| *size <= most).collect()
    }

    /// Returns the receives for messages of each queue pair: those of a shared queue are divided.
    pub fn receives_each(&self) -> u32 {
        if self.use_srq { self.rx_depth / u32::from(self.queue_pairs.max(1)) } else { self.rx_depth }
    }

    /// Returns the measurements, in order.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &test in &self.tests {
            if test.verb() == Verb::Atomic {
                points.push(Point { test, size: 8 });
            } else if self.sizes.is_empty() {
                let bandwidth = if self.transport == Transport::Ud { DATAGRAM } else { 65_536 };
                points.push(Point { test, size: if test.is_latency() { 2 } else { bandwidth } });
            } else {
                points.extend(self.sizes.iter().map(|&size| Point { test, size }));
            }
        }
        points
    }

    /// Returns the end condition of a measurement. The default is that of perftest, 1000 messages for latency and 5000 for
    /// bandwidth, but at most 1 GiB and at least 100 messages.
    pub fn end(&self, point: Point) -> End {
        if let Some(millis) = self.duration_ms {
            return End::Duration(Duration::from_millis(millis));
        }
        let default = if point.test.is_latency() { 1000 } else { 5000 };
        let fit = (MAX_TOTAL_BYTES / u64::from(point.size.max(1))).max(100);
        End::Iterations(self.iterations.unwrap_or(default.min(fit)))
    }

    /// Returns the maximum inline payload of a test on a device that supports `device` bytes. The default is 220 for latency
    /// and 0 for bandwidth.
    pub fn inline(&self, test: Test, device: u32) -> u32 {
        match test.verb() {
            Verb::Read | Verb::Atomic => 0,
            Verb::Write | Verb::Send => match self.inline {
                Some(inline) => inline,
                None if test.is_latency() => INLINE.min(device),
                None => 0,
            },
        }
    }

    /// Returns the number of requests for one completion. The default is 100, or 1 for messages above 8 KiB, but at most half
    /// the depth: so the send queue is not empty before a completion is polled.
    pub fn cq_mod(&self, size: u32) -> u32 {
        let default = if size > MODERATED { 1 } else { CQ_MOD.min(self.tx_depth / 2) };
        self.cq_mod.unwrap_or(default).clamp(1, self.tx_depth.max(1))
    }

    /// Returns the path MTU, if one is set and valid.
    pub fn path_mtu(&self) -> Option<Mtu> {
        let wanted = self.mtu?;
        (1..=5).filter_map(Mtu::from_encoding).find(|mtu| mtu.bytes() == wanted)
    }

    /// Checks everything that does not depend on the device.
    ///
    /// # Errors
    /// The first invalid parameter and the reason.
    pub fn check(&self) -> Result<(), String> {
        let range = |what: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!("{what}: {value} is not between {least} and {most}"))
            }
        };
        if self.use_srq && self.transport == Transport::Uc {
            return Err("use-srq: an unreliable connection (UC) has no shared receive queue here; use -c rc or -c ud".into());
        }
        if self.tests.is_empty() {
            return Err("no test".into());
        }
        if self.tests.len() > 64 || self.sizes.len() > 64 {
            return Err("more than 64 tests or sizes".into());
        }
        for &size in &self.sizes {
            range("size", size.into(), 1, 1 << 31)?;
            if self.transport == Transport::Ud && size > MAX_DATAGRAM {
                return Err(format!("size: {size}: a datagram (UD) is one packet of at most {MAX_DATAGRAM} bytes; use -c rc"));
            }
        }
        if let Some(iterations) = self.iterations {
            range("iterations", iterations, 1, 100_000_000_000)?;
        }
        if let Some(millis) = self.duration_ms {
            range("duration in milliseconds", millis, 1, 86_400_000)?;
        }
        if self.iterations.is_some() && self.duration_ms.is_some() {
            return Err("iterations and a duration: one of them ends a measurement".into());
        }
        range("queue pairs", self.queue_pairs.into(), 1, QUEUE_PAIRS.into())?;
        if !(1..=REQUESTS).contains(&self.tx_depth) {
            return Err(format!("tx-depth {}: a send queue holds 1 to {REQUESTS} requests here", self.tx_depth));
        }
        let receives = REQUESTS - CREDITS;
        if !(MIN_RECEIVES..=receives).contains(&self.rx_depth) {
            return Err(format!("rx-depth {}: a receive queue holds 4 to {receives} receives here", self.rx_depth));
        }
        if self.receives_each() < MIN_RECEIVES {
            return Err(format!(
                "rx-depth {}: {} queue pairs share it and need {MIN_RECEIVES} receives each: {} is the least",
                self.rx_depth,
                self.queue_pairs,
                u32::from(self.queue_pairs) * MIN_RECEIVES
            ));
        }
        if let Some(inline) = self.inline {
            range("inline", inline.into(), 0, 1 << 16)?;
        }
        if self.post_list == 0 || self.post_list > self.tx_depth {
            return Err(format!("post-list {}: not between 1 and the tx-depth, {}", self.post_list, self.tx_depth));
        }
        if let Some(cq_mod) = self.cq_mod
            && (cq_mod == 0 || cq_mod > self.tx_depth)
        {
            return Err(format!("cq-mod {cq_mod}: not between 1 and the tx-depth, {}", self.tx_depth));
        }
        if self.mtu.is_some() && self.path_mtu().is_none() {
            return Err("mtu: 256, 512, 1024, 2048 or 4096".into());
        }
        if self.outs == Some(0) {
            return Err("outs: at least 1".into());
        }
        self.tests.iter().try_for_each(|&test| self.check_test(test))
    }

    fn check_test(&self, test: Test) -> Result<(), String> {
        if self.transport == Transport::Uc && test.needs_rc() {
            return Err(format!("{test}: an unreliable connection (UC) supports no reads and no atomics; use -c rc"));
        }
        if self.transport == Transport::Ud && test.verb() != Verb::Send {
            return Err(format!("{test}: datagrams (UD) are sends alone; use -T send-lat,send-bw or -c rc"));
        }
        if self.use_srq && test.verb() != Verb::Send {
            return Err(format!("{test}: it takes no receives, so no queue of them is shared; leave --use-srq out"));
        }
        if self.events && test == Test::WriteLat {
            return Err(
                "write-lat: an RDMA write gives its target no completion, so there is no event to wait for; leave -e out"
                    .into(),
            );
        }
        // One request of the send queue is reserved for a credit.
        if test == Test::SendBw && self.tx_depth >= REQUESTS {
            return Err(format!("{test}: tx-depth {}: {} is the greatest for sends", self.tx_depth, REQUESTS - 1));
        }
        if self.bidirectional && test.is_latency() {
            return Err(format!("{test}: latency is measured in one direction at a time; leave -b out"));
        }
        if test.verb() == Verb::Atomic && !self.sizes.is_empty() && self.tests.iter().all(|test| test.verb() == Verb::Atomic) {
            if self.sizes == [8] {
                return Ok(());
            }
            return Err(format!("{test}: an atomic has 8 bytes; leave -s and -a out"));
        }
        Ok(())
    }

    /// Returns whether the test is valid with the other parameters.
    pub fn offers(&self, test: Test) -> bool {
        self.check_test(test).is_ok()
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            tests: Vec::new(),
            sizes: Vec::new(),
            iterations: None,
            duration_ms: None,
            transport: Transport::Rc,
            use_srq: false,
            mtu: None,
            queue_pairs: 1,
            tx_depth: 128,
            rx_depth: 256,
            inline: None,
            events: false,
            bidirectional: false,
            cq_mod: None,
            post_list: 1,
            outs: None,
            atomic: Atomic::FetchAndAdd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Parameters)) -> Result<(), String> {
        let mut parameters = Parameters { tests: vec![Test::WriteBw], ..Parameters::default() };
        change(&mut parameters);
        parameters.check()
    }

    #[test]
    fn mistakes_are_refused_with_the_reason() {
        assert_eq!(with(|_| {}), Ok(()));
        let cases: [(&str, Result<(), String>); 20] = [
            ("511 is the greatest", with(|p| (p.tests, p.tx_depth) = (vec![Test::SendBw], 512))),
            ("UC", with(|p| (p.tests, p.transport) = (vec![Test::ReadBw], Transport::Uc))),
            ("UC", with(|p| (p.tests, p.transport) = (vec![Test::AtomicLat], Transport::Uc))),
            ("sends alone", with(|p| (p.tests, p.transport) = (vec![Test::WriteBw], Transport::Ud))),
            ("sends alone", with(|p| (p.tests, p.transport) = (vec![Test::AtomicLat], Transport::Ud))),
            ("one packet", with(|p| (p.tests, p.transport, p.sizes) = (vec![Test::SendBw], Transport::Ud, vec![4097]))),
            ("takes no receives", with(|p| p.use_srq = true)),
            ("-c rc or -c ud", with(|p| (p.tests, p.transport, p.use_srq) = (vec![Test::SendBw], Transport::Uc, true))),
            ("64 is the least", with(|p| (p.tests, p.use_srq, p.queue_pairs, p.rx_depth) = (vec![Test::SendBw], true, 16, 63))),
            ("event", with(|p| (p.tests, p.events) = (vec![Test::WriteLat], true))),
            ("one direction", with(|p| (p.tests, p.bidirectional) = (vec![Test::SendLat], true))),
            ("8 bytes", with(|p| (p.tests, p.sizes) = (vec![Test::AtomicBw], vec![16]))),
            ("512", with(|p| p.tx_depth = 513)),
            ("504", with(|p| p.rx_depth = 505)),
            ("tx-depth, 128", with(|p| p.cq_mod = Some(129))),
            ("tx-depth, 128", with(|p| p.post_list = 129)),
            ("queue pairs", with(|p| p.queue_pairs = 33)),
            ("mtu", with(|p| p.mtu = Some(1500))),
            ("size", with(|p| p.sizes = vec![0])),
            ("one of them", with(|p| (p.iterations, p.duration_ms) = (Some(1), Some(1)))),
        ];
        for (at, (part, result)) in cases.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(error.contains(part), "{at}: {error}");
        }
    }

    #[test]
    fn defaults_depend_on_test_and_size() {
        let parameters = Parameters { tests: Test::ALL.to_vec(), ..Parameters::default() };
        let point = |test, size| Point { test, size };
        assert_eq!(parameters.points()[..2], [point(Test::WriteLat, 2), point(Test::WriteBw, 65_536)]);
        assert_eq!(parameters.points()[7], point(Test::AtomicBw, 8));
        assert_eq!(parameters.end(point(Test::WriteLat, 2)), End::Iterations(1000));
        assert_eq!(parameters.end(point(Test::WriteBw, 65_536)), End::Iterations(5000));
        assert_eq!(parameters.end(point(Test::WriteBw, 8 << 20)), End::Iterations(128));
        assert_eq!((parameters.cq_mod(8192), parameters.cq_mod(8193)), (64, 1));
        assert_eq!((parameters.inline(Test::WriteLat, 100), parameters.inline(Test::SendLat, 828)), (100, 220));
        assert_eq!((parameters.inline(Test::WriteBw, 828), parameters.inline(Test::ReadLat, 828)), (0, 0));
        for (transport, mtu, last) in
            [(Transport::Rc, Some(256), 8_388_608), (Transport::Ud, None, 4096), (Transport::Ud, Some(1024), 1024)]
        {
            let sizes = Parameters::all_sizes(transport, mtu);
            assert_eq!((sizes.first(), sizes.last()), (Some(&2), Some(&last)));
        }
        let datagrams = Parameters { tests: vec![Test::SendBw], transport: Transport::Ud, ..Parameters::default() };
        assert_eq!(datagrams.points(), [point(Test::SendBw, 1024)]);
    }
}
