//! Frames of the lying device's Ethernet port: out of its queues, and in from a station that is not there.

use bareverbs_mlx5::EthernetConfig;

use super::lab::Lab;
use super::objects::Objects;

/// Few frames, so that the rings wrap around.
pub(super) const FRAMES: EthernetConfig = EthernetConfig { send_frames: 4, receive_frames: 4, ..EthernetConfig::DEFAULT };
/// Bytes of a buffer that has room for any frame.
const BUFFER: usize = 2048;
/// What the bytes of a buffer are before a frame comes.
const UNTOUCHED: u8 = 0xee;
/// Address of the station, and the type of its frames (IEEE 802, for experiments).
const STATION: [u8; 6] = [2, 7, 7, 7, 7, 7];
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let header = [&to[..], &from, &ETHER_TYPE].concat();
    let payload = (0..len).map(|at| at as u8);
    header.into_iter().chain(payload).collect()
}

impl Objects<'_> {
    pub(super) fn open_frames(&mut self) {
        let done = self.verbs.direct().open_ethernet(&FRAMES);
        self.note(done);
    }

    /// Opens or closes the queues, sends a frame, lets one come, or takes those that came.
    pub(super) fn frame_step(&mut self, lab: &Lab, kind: u8, len: usize) {
        match kind % 8 {
            0 => self.open_frames(),
            1 => {
                let done = self.verbs.direct().close_ethernet();
                self.note(done);
            }
            2 | 3 => {
                let Some(mut queues) = self.verbs.direct().ethernet() else { return };
                let bytes = frame(STATION, queues.mac().0, len);
                let done = queues.send(&bytes);
                self.done.frames_sent += u64::from(self.note(done).is_some());
            }
            4 | 5 => {
                let to = if kind & 8 == 0 { self.mac.map_or([0; 6], |mac| mac.0) } else { [0xff; 6] };
                let bytes = frame(to, STATION, 46 + len);
                lab.host.with_device(|device| device.receive(&bytes));
            }
            _ => self.take_frames(),
        }
    }

    fn take_frames(&mut self) {
        for taken in 0.. {
            // The ring has four entries, and each is given back to the device.
            assert!(taken < 64, "frames without an end");
            let Some(mut queues) = self.verbs.direct().ethernet() else { return };
            let mut bytes = [UNTOUCHED; BUFFER];
            let received = queues.receive(&mut bytes);
            let limit = queues.max_frame();
            let Some(received) = self.note(received) else { return };
            let Some(received) = received else { return };
            assert!(received.len <= limit, "{received:?}");
            assert!(bytes[received.len..].iter().all(|byte| *byte == UNTOUCHED), "bytes behind a frame: {received:?}");
            self.done.frames_received += 1;
        }
    }
}
