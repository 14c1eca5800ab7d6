use super::*;

const ETHERNET: PortKind = PortKind::Ethernet { mac: [0, 2, 0xc9, 0, 1, 0] };

/// What `text2pcap -F pcapng -N NAME -D` of Wireshark 4.0 wrote behind its section header, for an interface of link type 1...
const ETHERNET_INTERFACE: [u8; 40] = [
    0x01, 0x00, 0x00, 0x00, 0x28, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x02, 0x00, 0x04, 0x00,
    0x6c, 0x69, 0x64, 0x32, 0x09, 0x00, 0x01, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x28, 0x00, 0x00, 0x00,
];
/// ... a frame that came in there ...
const FRAME: [u8; 64] = [
    0x06, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x15, 0x53, 0x97, 0xa8,
    0x11, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x00, 0x02, 0xc9, 0x00, 0x02, 0x00, 0x00, 0x02, 0xc9, 0x00, 0x01, 0x00,
    0x88, 0xb5, 0xde, 0xad, 0xbe, 0x00, 0x00, 0x00, 0x02, 0x00, 0x04, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x40, 0x00, 0x00, 0x00,
];
/// ... and for an interface of link type 197.
const ERF_INTERFACE: [u8; 40] = [
    0x01, 0x00, 0x00, 0x00, 0x28, 0x00, 0x00, 0x00, 0xc5, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x02, 0x00, 0x04, 0x00,
    0x6c, 0x69, 0x64, 0x31, 0x09, 0x00, 0x01, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x28, 0x00, 0x00, 0x00,
];

fn file(ports: &[(&str, PortKind)]) -> PcapNg<Vec<u8>> {
    let mut file = PcapNg::new(Vec::new(), Duration::ZERO);
    ports.iter().for_each(|(name, kind)| file.add_port(name, *kind));
    file
}

#[test]
fn blocks_are_those_that_wireshark_writes() {
    let mut file = file(&[("lid2", ETHERNET), ("lid1", PortKind::InfiniBand)]);
    let frame = [0, 2, 0xc9, 0, 2, 0, 0, 2, 0xc9, 0, 1, 0, 0x88, 0xb5, 0xde, 0xad, 0xbe];
    // The time that text2pcap took, in two halves: high and low.
    file.frame(Instant::from_nanos(0x1_a897_5315), PortId(0), Direction::ToPort, &frame);
    let section = file.output.len() - 40 - 40 - 64;
    assert_eq!(
        file.output[..24],
        [&[0x0a, 0x0d, 0x0d, 0x0a, 48, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0][..], &[0xff; 8]].concat()
    );
    assert_eq!(section, 48);
    assert_eq!(file.output[section..], [&ETHERNET_INTERFACE[..], &ERF_INTERFACE, &FRAME].concat());
}

#[test]
fn times_are_those_of_the_clock_and_frames_of_unknown_ports_are_left_out() {
    let mut file = PcapNg::new(Vec::new(), Duration::from_secs(1_700_000_000));
    file.add_port("lid1", PortKind::InfiniBand);
    let start = file.output.len();
    file.frame(Instant::from_nanos(5), PortId(1), Direction::ToPort, &[0; 28]);
    assert_eq!(file.output.len(), start);
    file.frame(Instant::from_nanos(5), PortId(0), Direction::FromPort, &[0; 28]);
    let block = &file.output[start..];
    let nanos = 1_700_000_000_000_000_005_u64;
    assert_eq!(block[12..16], ((nanos >> 32) as u32).to_le_bytes());
    assert_eq!(block[16..20], (nanos as u32).to_le_bytes());
    // The record of ERF has the same time, and is as long as the packet with record header and VCRC.
    assert_eq!((block[20], block[32..36].to_vec()), (46, 1_700_000_000_u32.to_le_bytes().to_vec()));
    assert_eq!(block[block.len() - 16..block.len() - 8], [2, 0, 4, 0, 2, 0, 0, 0], "it left");
}

/// An output with room for some bytes.
struct Disk {
    room: usize,
    written: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= bytes.len();
        self.written += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_is_written_after_an_error_which_is_returned_at_the_end() {
    let mut file = PcapNg::new(Disk { room: 200, written: 0 }, Duration::ZERO);
    file.add_port("lid1", ETHERNET);
    let written = file.output.written;
    file.frame(Instant::default(), PortId(0), Direction::ToPort, &[0; 1000]);
    // There would be room for this one, but not behind a hole.
    file.frame(Instant::default(), PortId(0), Direction::ToPort, &[0; 14]);
    assert_eq!(file.output.written, written);
    assert_eq!(file.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
}
