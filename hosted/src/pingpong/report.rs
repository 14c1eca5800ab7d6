//! The report of a ping-pong, as JSON or as the lines of the tools.

use std::fmt;
use std::net::Ipv6Addr;

use bareverbs::Mac;
use serde::Serialize;

use super::address::Address;
use crate::outcome::Outcome;

/// Report of a ping-pong.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// How it ended; `ok` says that all messages were exchanged and no error was found.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Transport service.
    pub transport: &'static str,
    /// Ends in this process: `client`, `server` or `both`.
    pub role: &'static str,
    /// The devices of this process.
    pub devices: Vec<String>,
    /// Whether the devices are simulated.
    pub simulated: bool,
    /// Queue pairs of each end.
    pub queue_pairs: usize,
    /// Bytes of a message.
    pub size: u32,
    /// Messages in each direction.
    pub iters: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Whether messages were verified.
    pub checked: bool,
    /// TCP port on which a server listens for its client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,
    /// Address of this end's first queue pair, or of the client's if both ends are in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<AddressReport>,
    /// Address of the peer's first queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<AddressReport>,
    /// Measured rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Timing>,
}

/// Address of an end.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AddressReport {
    /// LID.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN.
    pub psn: u32,
    /// GID, as an IPv6 address.
    pub gid: String,
    /// MAC address of an Ethernet port, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

impl AddressReport {
    /// Reports an address, on Ethernet with a MAC address.
    pub fn new(address: &Address, mac: Option<Mac>) -> Self {
        Self {
            lid: address.lid.get(),
            qpn: address.qpn.get(),
            psn: address.psn.get(),
            gid: Ipv6Addr::from(address.gid.0).to_string(),
            mac: mac.map(|mac| mac.to_string()),
        }
    }
}

/// Measured rates, by the wall clock.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Timing {
    /// Bytes in both directions.
    pub bytes: u64,
    /// Messages in each direction.
    pub iters: u32,
    /// Duration in seconds.
    pub seconds: f64,
    /// Megabits (10^6 bits) per second, both directions together.
    pub mbit_per_second: f64,
    /// Microseconds of a round trip.
    pub usec_per_iter: f64,
}

impl Timing {
    /// Calculates the rates.
    pub fn new(size: u32, iters: u32, seconds: f64) -> Self {
        let bytes = u64::from(size) * u64::from(iters) * 2;
        let usec = (seconds * 1e6).max(1e-3);
        Self { bytes, iters, seconds, mbit_per_second: bytes as f64 * 8.0 / usec, usec_per_iter: usec / f64::from(iters) }
    }
}

/// Prints the last two lines of the tools.
impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, iters, seconds, mbit_per_second, usec_per_iter } = self;
        writeln!(f, "{bytes} bytes in {seconds:.2} seconds = {mbit_per_second:.2} Mbit/sec")?;
        write!(f, "{iters} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_tools() {
        let timing = Timing::new(4096, 1000, 0.0123);
        assert_eq!(
            timing.to_string(),
            "8192000 bytes in 0.01 seconds = 5328.13 Mbit/sec\n1000 iters in 0.01 seconds = 12.30 usec/iter"
        );
    }
}
