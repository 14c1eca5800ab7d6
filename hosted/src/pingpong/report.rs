//! What a ping-pong found: the lines of the tools, or JSON.

use std::fmt;
use std::net::Ipv6Addr;

use serde::Serialize;

use super::address::Address;

/// The whole report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whether everything was done and right.
    pub ok: bool,
    /// Whether it was stopped before its end (Ctrl-C).
    pub interrupted: bool,
    /// What went wrong, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Transport service.
    pub transport: &'static str,
    /// What this process is: `client`, `server` or `both`.
    pub role: &'static str,
    /// The devices here.
    pub devices: Vec<String>,
    /// Whether the devices are simulated.
    pub simulated: bool,
    /// Bytes of a message.
    pub size: u32,
    /// Messages each way.
    pub iters: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Whether messages were checked.
    pub checked: bool,
    /// TCP port on which a server listens for its client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,
    /// Address of this end; of the client if both are here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<AddressReport>,
    /// Address of the other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<AddressReport>,
    /// How fast it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Timing>,
}

/// The address of an end.
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
}

impl From<&Address> for AddressReport {
    fn from(address: &Address) -> Self {
        Self {
            lid: address.lid.get(),
            qpn: address.qpn.get(),
            psn: address.psn.get(),
            gid: Ipv6Addr::from(address.gid.0).to_string(),
        }
    }
}

/// How fast the messages went, by the wall clock.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Timing {
    /// Bytes, both ways.
    pub bytes: u64,
    /// Messages each way.
    pub iters: u32,
    /// Seconds.
    pub seconds: f64,
    /// Million bits a second, both ways together.
    pub mbit_per_second: f64,
    /// Microseconds for a message there and one back.
    pub usec_per_iter: f64,
}

impl Timing {
    /// Works the rates out.
    pub fn new(size: u32, iters: u32, seconds: f64) -> Self {
        let bytes = u64::from(size) * u64::from(iters) * 2;
        let usec = (seconds * 1e6).max(1e-3);
        Self { bytes, iters, seconds, mbit_per_second: bytes as f64 * 8.0 / usec, usec_per_iter: usec / f64::from(iters) }
    }
}

/// The last two lines of the tools.
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
