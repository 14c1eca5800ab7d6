//! The pcapng file format (IETF, draft-ietf-opsawg-pcapng): a section header, a description of each interface, and packets.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use bareverbs::platform::Instant;

use super::infiniband::append_record;
use crate::config::PortKind;
use crate::fabric::{Direction, Tap};
use crate::wire::PortId;

/// Types of blocks (section 11.1 of the format).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// By which a reader sees that numbers are little-endian.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Length of a section that is not known before its end.
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// Bytes of a packet that are in the file at most: as many as Wireshark reads, and more than any frame has.
const SNAP_LENGTH: u32 = 0x4_0000;

/// Link types (tcpdump.org, link-layer header types).
const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_ERF: u16 = 197;

/// Options of a section, an interface and a packet.
const END_OF_OPTIONS: u16 = 0;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;

/// Times are in units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// A capture as a pcapng file, with an interface for each port.
///
/// InfiniBand packets are of link type ERF, record type 21, with the VCRC that a link adds to them. Ethernet frames have no
/// check sequence. Each block is written by one call of [`Write::write_all`]. After an error of the output nothing more is
/// written; [`PcapNg::finish`] returns the error.
pub struct PcapNg<W> {
    output: W,
    /// Time of the clock's 0, after the start of 1970.
    clock_start: Duration,
    /// What the ports speak, by their number.
    ports: Vec<PortKind>,
    block: Vec<u8>,
    failed: Option<io::Error>,
}

impl<W> fmt::Debug for PcapNg<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapNg").field("ports", &self.ports).field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// Appends zeros up to the next multiple of 4 bytes.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn append_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    // A name of a port is short; a longer value is cut.
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out);
}

impl<W: Write> PcapNg<W> {
    /// Begins a file. Moment 0 of the clock is `clock_start` after the start of 1970 UTC.
    pub fn new(output: W, clock_start: Duration) -> Self {
        let mut file = Self { output, clock_start, ports: Vec::new(), block: Vec::new(), failed: None };
        file.write_block(SECTION_HEADER, |out| {
            out.extend(BYTE_ORDER.to_le_bytes());
            // Version 1.0.
            out.extend([1, 0, 0, 0]);
            out.extend(UNKNOWN_LENGTH.to_le_bytes());
            append_option(out, SECTION_APPLICATION, b"bareverbs");
            append_option(out, END_OF_OPTIONS, &[]);
        });
        file
    }

    /// Describes the next port, in the order of their numbers on the wire. Frames of ports that were not described are left out.
    pub fn add_port(&mut self, name: &str, kind: PortKind) {
        let link_type = match kind {
            PortKind::InfiniBand => LINKTYPE_ERF,
            PortKind::Ethernet { .. } => LINKTYPE_ETHERNET,
        };
        self.ports.push(kind);
        self.write_block(INTERFACE_DESCRIPTION, |out| {
            out.extend(link_type.to_le_bytes());
            out.extend([0; 2]);
            out.extend(SNAP_LENGTH.to_le_bytes());
            append_option(out, INTERFACE_NAME, name.as_bytes());
            append_option(out, INTERFACE_TIME_RESOLUTION, &[NANOSECONDS]);
            append_option(out, END_OF_OPTIONS, &[]);
        });
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// The first error of the output; the file ends where it happened.
    pub fn finish(&mut self) -> io::Result<()> {
        self.failed.take().map_or_else(|| self.output.flush(), Err)
    }

    /// Writes a block: type, length, body, length again.
    fn write_block(&mut self, block_type: u32, append_body: impl FnOnce(&mut Vec<u8>)) {
        if self.failed.is_some() {
            return;
        }
        let block = &mut self.block;
        block.clear();
        block.extend(block_type.to_le_bytes());
        block.extend([0; 4]);
        append_body(block);
        pad(block);
        let len = u32::try_from(block.len().saturating_add(4)).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(place) = block.get_mut(4..8) {
            place.copy_from_slice(&len);
        }
        block.extend(len);
        self.failed = self.output.write_all(block).err();
    }
}

impl<W: Write> Tap for PcapNg<W> {
    fn frame(&mut self, now: Instant, port: PortId, direction: Direction, frame: &[u8]) {
        let (Some(kind), Ok(interface)) = (self.ports.get(port.0).copied(), u32::try_from(port.0)) else { return };
        let time = self.clock_start.saturating_add(Duration::from_nanos(now.as_nanos()));
        // Until the year 2554.
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let flags: u32 = match direction {
            Direction::ToPort => 1,
            Direction::FromPort => 2,
        };
        self.write_block(ENHANCED_PACKET, |out| {
            out.extend(interface.to_le_bytes());
            out.extend(((nanos >> 32) as u32).to_le_bytes());
            out.extend((nanos as u32).to_le_bytes());
            let lengths = out.len();
            out.extend([0; 8]);
            let start = out.len();
            match kind {
                PortKind::InfiniBand => append_record(out, time, frame),
                PortKind::Ethernet { .. } => out.extend(frame),
            }
            // Captured, and on the wire.
            let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX).to_le_bytes();
            if let Some(place) = out.get_mut(lengths..start) {
                place.copy_from_slice([len, len].as_flattened());
            }
            pad(out);
            append_option(out, PACKET_FLAGS, &flags.to_le_bytes());
            append_option(out, END_OF_OPTIONS, &[]);
        });
    }
}

#[cfg(test)]
mod tests;
