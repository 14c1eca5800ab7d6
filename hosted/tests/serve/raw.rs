//! A vfio-user client that can send invalid messages.

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::server::{LIMIT, wait};

/// Commands of the protocol.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;

/// A connection.
pub(crate) struct Raw {
    stream: UnixStream,
}

/// A header: message ID, command, length including these 16 bytes, flags and error, in the byte order of the machine.
fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = [7_u16.to_ne_bytes(), command.to_ne_bytes()].concat();
    bytes.extend((16 + body.len() as u32).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

impl Raw {
    /// Connects and negotiates the version.
    pub(crate) fn connect(path: &Path) -> Self {
        let mut client = Self::silent(path);
        let capabilities = b"{\"capabilities\":{}}\0";
        client.ask(VERSION, &[&[0, 0, 1, 0], &capabilities[..]].concat(), None);
        client
    }

    /// Connects and sends nothing.
    pub(crate) fn silent(path: &Path) -> Self {
        let mut stream = None;
        wait("listener", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self { stream }
    }

    /// Sends raw bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns whether the server closes the connection, at once or while `more` is sent this number of times.
    pub(crate) fn is_closed_after(&mut self, more: &[u8], times: usize) -> bool {
        let sent = (0..times).try_for_each(|_| self.stream.write_all(more));
        // Unread bytes turn the close into a reset.
        sent.is_err() || !matches!(self.stream.read(&mut [0]), Ok(1..))
    }

    /// Sends a command with descriptors. Returns flags and error of the reply's header, and its body.
    fn exchange(&mut self, command: u16, body: &[u8], files: &[&File]) -> (u32, u32, Vec<u8>) {
        let bytes = message(command, body);
        let descriptors: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        assert_eq!(sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()), Ok(bytes.len()));
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        let [_, _, _, _, l0, l1, l2, l3, f0, f1, f2, f3, e0, e1, e2, e3] = header;
        let mut reply = vec![0; u32::from_ne_bytes([l0, l1, l2, l3]) as usize - header.len()];
        self.stream.read_exact(&mut reply).unwrap();
        (u32::from_ne_bytes([f0, f1, f2, f3]), u32::from_ne_bytes([e0, e1, e2, e3]), reply)
    }

    /// Sends a command with a descriptor. Returns the body of the reply.
    fn ask(&mut self, command: u16, body: &[u8], file: Option<&File>) -> Vec<u8> {
        let (flags, _, reply) = self.exchange(command, body, file.as_slice());
        assert_eq!(flags & 0x2f, 1, "a reply without an error");
        reply
    }

    /// Sends a command that is refused. Returns the error number.
    pub(crate) fn error_of(&mut self, command: u16, body: &[u8]) -> u32 {
        let (flags, error, _) = self.exchange(command, body, &[]);
        assert_eq!(flags & 0x2f, 0x21, "an error");
        error
    }

    /// Maps memory that the server refuses. Returns the error number.
    pub(crate) fn map_refused(&mut self, addr: u64, len: u64, file: &File) -> u32 {
        self.try_map(addr, len, file).unwrap_err()
    }

    /// Maps memory for reads and writes. Returns the error number if the server refuses.
    pub(crate) fn try_map(&mut self, addr: u64, len: u64, file: &File) -> Result<(), u32> {
        let words = [0_u64, addr, len].map(u64::to_ne_bytes).concat();
        let body = [&32_u32.to_ne_bytes()[..], &3_u32.to_ne_bytes(), &words].concat();
        match self.exchange(DMA_MAP, &body, &[file]) {
            (flags, error, _) if flags & 0x2f == 0x21 => Err(error),
            _ => Ok(()),
        }
    }

    /// Sets the event descriptors of the vectors from 0. Returns the error number.
    pub(crate) fn vectors(&mut self, descriptors: &[&File]) -> u32 {
        const SET_IRQS: u16 = 8;
        // argsz; event descriptors that are triggers; MSI-X; from the first one on.
        let words = [20, 1 << 2 | 1 << 5, 2, 0, descriptors.len() as u32].map(u32::to_ne_bytes).concat();
        self.exchange(SET_IRQS, &words, descriptors).1
    }

    /// Maps memory for reads and writes, with or without a file.
    pub(crate) fn map(&mut self, addr: u64, len: u64, file: Option<&File>) {
        let words = [0_u64, addr, len].map(u64::to_ne_bytes).concat();
        self.ask(DMA_MAP, &[&32_u32.to_ne_bytes()[..], &3_u32.to_ne_bytes(), &words].concat(), file);
    }

    /// Unmaps memory. Returns the error number if the server refuses.
    pub(crate) fn try_unmap(&mut self, addr: u64, len: u64) -> Result<(), u32> {
        let words = [addr, len].map(u64::to_ne_bytes).concat();
        let body = [&24_u32.to_ne_bytes()[..], &0_u32.to_ne_bytes(), &words].concat();
        match self.exchange(DMA_UNMAP, &body, &[]) {
            (flags, error, _) if flags & 0x2f == 0x21 => Err(error),
            _ => Ok(()),
        }
    }

    fn access(region: u32, offset: u64, len: usize) -> Vec<u8> {
        [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &(len as u32).to_ne_bytes()].concat()
    }

    /// Reads a big-endian register.
    pub(crate) fn read(&mut self, region: u32, offset: u64) -> u32 {
        let reply = self.ask(REGION_READ, &Self::access(region, offset, 4), None);
        u32::from_be_bytes(*reply.last_chunk().unwrap())
    }

    /// Writes bytes of a region.
    pub(crate) fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        self.ask(REGION_WRITE, &[&Self::access(region, offset, bytes.len()), bytes].concat(), None);
    }
}
