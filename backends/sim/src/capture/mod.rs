//! Captures of a wire as pcapng files, which Wireshark reads.
//!
//! A capture is on the cable of each port, behind the wire: a frame is in it when it arrives, once for each port that it arrives
//! at. What the wire loses is absent, what it duplicates is there twice, and the order is that of arrival. A frame that leaves
//! for another process over an uplink is in it as one that its port sent.

mod infiniband;
mod pcapng;

pub use pcapng::PcapNg;
