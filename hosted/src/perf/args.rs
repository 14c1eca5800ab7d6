//! Options of `perf`, with the letters and names of perftest where it has them.

use std::path::PathBuf;

use bareverbs::Mtu;
use clap::Args;

use super::parameters::{Atomic, Parameters, Test, Transport};
use crate::args::{JsonArgs, mtu};
use crate::device::ethernet::PathArgs;
use crate::device::selection::DeviceChoice;
use crate::device::simulation_args::SimulationArgs;
use crate::peer_connection::DEFAULT_PORT;
use bareverbs_serve::parse_number;

/// Options of `perf`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct PerfArgs {
    /// Tests, separated by commas [default: all that the other options allow]
    #[arg(long, short = 'T', value_enum, value_delimiter = ',', value_name = "TEST")]
    pub test: Vec<Test>,

    /// Device: `simulated` or a PCI address. With one, both ends use it. With two, each end has one. Default: two simulated
    /// devices joined by a wire
    #[arg(long, short = 'd', value_name = "DEVICE")]
    pub device: Vec<DeviceChoice>,
    /// Runs as the server: waits for one client at this address, which chooses the measurements
    #[arg(long, value_name = "IP:PORT", num_args = 0..=1, default_missing_value = "", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Runs as the client of the server at this address
    #[arg(long, value_name = "HOST[:PORT]")]
    pub connect: Option<String>,
    /// TCP port of the server, if its address has none
    #[arg(long, short = 'p', default_value_t = DEFAULT_PORT)]
    pub port: u16,

    /// Message sizes in bytes, for example 65536 or 64k, separated by commas [default: 2 for latency, 65536 for bandwidth,
    /// 1024 with -c ud; always 8 for atomics]
    #[arg(long, short = 's', value_delimiter = ',', value_name = "BYTES", conflicts_with = "all", value_parser = parse_number::<u32>)]
    pub size: Vec<u32>,
    /// All powers of two from 2 bytes to 8 MiB as message sizes
    #[arg(long, short = 'a')]
    pub all: bool,
    /// Messages of each queue pair, or round trips [default: 5000 for bandwidth, 1000 for latency, at most 1 GiB]
    #[arg(long, short = 'n', value_name = "COUNT", conflicts_with = "duration", value_parser = parse_number::<u64>)]
    pub iters: Option<u64>,
    /// Duration of each measurement in seconds, instead of a number of messages
    #[arg(long, short = 'D', value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<u64>,
    /// Number of queue pairs; latency tests use them in turn
    #[arg(long, short = 'q', default_value_t = 1, value_name = "COUNT")]
    pub qp: u16,
    /// Maximum number of requests in flight on each queue pair in bandwidth tests
    #[arg(long, short = 't', default_value_t = 128, value_name = "COUNT")]
    pub tx_depth: u32,
    /// Number of receives posted on each queue pair
    #[arg(long, short = 'r', default_value_t = 256, value_name = "COUNT")]
    pub rx_depth: u32,
    /// Maximum inline payload in bytes [default: 220 for latency, 0 for bandwidth]
    #[arg(long = "inline", visible_alias = "inline_size", short = 'I', value_name = "BYTES", value_parser = parse_number::<u32>)]
    pub inline: Option<u32>,
    /// Waits for completion events (interrupts) instead of polling
    #[arg(long, short = 'e')]
    pub events: bool,
    /// Both ends send in bandwidth tests; results are the sum
    #[arg(long, short = 'b')]
    pub bidirectional: bool,
    /// Path MTU in bytes [default: the smaller active MTU of the two ports]. With -c ud -a, datagrams are no longer
    #[arg(long, short = 'm', value_name = "BYTES", value_parser = mtu)]
    pub mtu: Option<Mtu>,
    /// Requests for one completion in bandwidth tests [default: 100, at most half the depth; 1 above 8 KiB]
    #[arg(long = "cq-mod", visible_alias = "cq_mod", short = 'Q', value_name = "COUNT")]
    pub cq_mod: Option<u32>,
    /// Requests for one doorbell in bandwidth tests
    #[arg(long = "post-list", visible_alias = "post_list", short = 'l', default_value_t = 1, value_name = "COUNT")]
    pub post_list: u32,
    /// Transport service
    #[arg(
        long = "connection",
        visible_alias = "transport",
        short = 'c',
        value_enum,
        default_value_t,
        value_name = "TRANSPORT"
    )]
    pub connection: Transport,
    /// The queue pairs of an end take receives from one shared receive queue, which has those of --rx-depth; for send-lat and
    /// send-bw over rc and ud
    #[arg(long = "use-srq", visible_alias = "use_srq")]
    pub use_srq: bool,
    /// Maximum number of reads and atomics outstanding on each queue pair [default: the maximum of both devices]
    #[arg(long, short = 'o', value_name = "COUNT")]
    pub outs: Option<u8>,
    /// Operation of atomic tests
    #[arg(
        long = "atomic-type",
        visible_alias = "atomic_type",
        short = 'A',
        value_enum,
        ignore_case = true,
        default_value_t,
        value_name = "ATOMIC"
    )]
    pub atomic: Atomic,

    /// Plots latency and bandwidth over message size into an SVG file; implies -a unless -s is given
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// Prints nothing but errors
    #[arg(long, conflicts_with = "json")]
    pub quiet: bool,
    /// The path between the ends.
    #[command(flatten)]
    pub path: PathArgs,
    /// What simulated devices are like.
    #[command(flatten)]
    pub simulation: SimulationArgs,
}

/// Text after the options in `--help`.
const EXAMPLES: &str = "\
Examples:
  bareverbs perf                                          all tests on two simulated devices
  bareverbs perf -T write-lat,write-bw -a --svg perf.svg  all sizes, with a plot
  bareverbs perf --device 0000:01:00.0 -T write-bw -D 5   both ends on one card, five seconds
  bareverbs perf --device 01:00.0 --listen                the server
  bareverbs perf --device 01:00.0 --connect host -T send-lat -s 64
  bareverbs perf --ethernet -g 0                          RoCEv2 between two simulated devices
  bareverbs perf -c ud --use-srq -q 4 -T send-bw          datagrams, four queue pairs with one receive queue

Latency is half the round trip for write and send, and the whole round trip for read and atomics.
1 MiB/s is 1048576 bytes per second. Received data and the sums of atomics are verified after each test.";

fn seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.001..=86_400.0).contains(&seconds) {
        Ok((seconds * 1000.0).round() as u64)
    } else {
        Err("not between 0.001 and 86400".into())
    }
}

impl PerfArgs {
    /// Returns the parameters of the measurements.
    ///
    /// # Errors
    /// The first invalid parameter and the reason.
    pub fn parameters(&self) -> Result<Parameters, String> {
        let all = self.all || (self.svg.is_some() && self.size.is_empty());
        let mtu = self.mtu.map(Mtu::bytes);
        let mut parameters = Parameters {
            tests: self.test.clone(),
            sizes: if all { Parameters::all_sizes(self.connection, mtu) } else { self.size.clone() },
            iterations: self.iters,
            duration_ms: self.duration,
            transport: self.connection,
            use_srq: self.use_srq,
            mtu,
            queue_pairs: self.qp,
            tx_depth: self.tx_depth,
            rx_depth: self.rx_depth,
            inline: self.inline,
            events: self.events,
            bidirectional: self.bidirectional,
            cq_mod: self.cq_mod,
            post_list: self.post_list,
            outs: self.outs,
            atomic: self.atomic,
        };
        if parameters.tests.is_empty() {
            parameters.tests = Test::ALL.into_iter().filter(|&test| parameters.offers(test)).collect();
        }
        parameters.check()?;
        Ok(parameters)
    }
}
