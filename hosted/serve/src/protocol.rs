//! The server side of vfio-user: executes the messages of one client in order.
//!
//! The server of the `vfio_user` crate is not used. It allocates up to 4 GiB as a header announces, reports error 0 for commands
//! that its backend refused, and panics on some messages. It also gives no access to the connection, so that a client could not be
//! disconnected.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_IRQ_SET_DATA_BOOL, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};

use crate::message_reader::{Broken, Descriptors, HEADER, Header, MAX_DATA, Message, MessageReader};

/// Capabilities that the server announces in its reply to VERSION.
const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":1048576,\"migration\":{\"pgsize\":4096}}}\0";

/// Bits of a header's flags.
mod flags {
    pub(crate) const REPLY: u32 = 1;
    pub(crate) const NO_REPLY: u32 = 1 << 4;
    pub(crate) const ERROR: u32 = 1 << 5;
}

/// Command numbers.
mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
}

/// Flags of DMA_MAP: the device may write.
const MAP_WRITE: u32 = 1 << 1;

/// Flags of DMA_UNMAP: all mappings.
const UNMAP_ALL: u32 = 1 << 2;

/// The function that the commands of a client apply to.
pub(crate) trait Backend {
    /// Returns the length of a region in bytes; 0 if there is no such region.
    fn region_len(&self, region: u32) -> u64;
    /// Returns the number of interrupts of a kind, and their flags (`VFIO_IRQ_INFO_...`).
    fn interrupts(&self, index: u32) -> (u32, u32);
    /// Reads a region.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()>;
    /// Writes to a region.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Maps memory of the client, given as a range of `file` if there is one.
    fn dma_map(&mut self, map: Map, file: Option<File>) -> io::Result<()>;
    /// Unmaps the range, or all memory without one.
    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> io::Result<()>;
    /// Resets the function to the state after power-on.
    fn reset(&mut self) -> io::Result<()>;
    /// Executes SET_IRQS.
    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, descriptors: Vec<File>) -> io::Result<()>;
    /// Reports that descriptors of a message were lost: the message had too many, or this process is at its limit.
    fn descriptors_lost(&mut self);
}

/// A DMA_MAP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    /// Device address.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Whether the device may write to it.
    pub(crate) writable: bool,
}

/// Why a command was not executed.
enum Refusal {
    /// The reply contains the error.
    Error(io::Error),
    /// The connection ends.
    Broken(Broken),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}

/// Returns the error number for a reply.
fn errno(error: &io::Error) -> u32 {
    let number = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::NotConnected => libc::ENODEV,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    });
    number.unsigned_abs()
}

fn wrong() -> Refusal {
    Refusal::Error(io::ErrorKind::InvalidInput.into())
}

/// Reads the fields of a message in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(wrong)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refusal> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// The connection of one client.
pub(crate) struct Connection {
    messages: MessageReader,
    /// The reply to the current message.
    reply: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { messages: MessageReader::new(stream), reply: Vec::new() }
    }

    /// Executes the commands of the client until it closes the connection.
    ///
    /// # Errors
    /// The connection broke, or the client violated the protocol.
    pub(crate) fn serve(mut self, backend: &mut impl Backend) -> Result<(), Broken> {
        while let Some(Message { header, body, descriptors }) = self.messages.next()? {
            self.reply.clear();
            self.reply.resize(HEADER, 0);
            let done = match descriptors {
                Descriptors::All(files) => execute(header.command, body, &mut self.reply, backend, files),
                Descriptors::Lost => {
                    backend.descriptors_lost();
                    Err(Refusal::Error(io::Error::from_raw_os_error(libc::EMFILE)))
                }
            };
            let error = match done {
                Ok(()) => None,
                Err(Refusal::Error(error)) => Some(errno(&error)),
                Err(Refusal::Broken(broken)) => return Err(broken),
            };
            if header.flags & flags::NO_REPLY == 0 {
                self.answer(header, error)?;
            }
        }
        Ok(())
    }

    /// Sends the reply, or only a header with the error.
    fn answer(&mut self, header: Header, error: Option<u32>) -> Result<(), Broken> {
        if error.is_some() {
            self.reply.truncate(HEADER);
        }
        let len = u32::try_from(self.reply.len()).map_err(|_| Broken::Length(header.len))?;
        let set = if error.is_some() { flags::REPLY | flags::ERROR } else { flags::REPLY };
        let words = [len, set, error.unwrap_or(0)].map(u32::to_ne_bytes).concat();
        let head = [&header.id.to_ne_bytes()[..], &header.command.to_ne_bytes(), &words].concat();
        if let Some(place) = self.reply.get_mut(..HEADER) {
            place.copy_from_slice(&head);
        }
        Ok(self.messages.stream().write_all(&self.reply)?)
    }
}

/// Executes a command and appends its result to `reply`.
fn execute(
    number: u16,
    body: &[u8],
    reply: &mut Vec<u8>,
    backend: &mut impl Backend,
    descriptors: Vec<File>,
) -> Result<(), Refusal> {
    let mut fields = Fields(body);
    match number {
        command::VERSION => {
            let major = fields.u16()?;
            if major != 0 {
                return Err(Refusal::Broken(Broken::Version(major)));
            }
            // The capabilities of the client do not affect the reply.
            reply.extend([0; 4]);
            reply.extend(CAPABILITIES);
        }
        command::DMA_MAP => {
            let (_argsz, flags, offset) = (fields.u32()?, fields.u32()?, fields.u64()?);
            let (addr, len) = (fields.u64()?, fields.u64()?);
            if descriptors.len() > 1 {
                return Err(wrong());
            }
            let map = Map { addr, len, offset, writable: flags & MAP_WRITE != 0 };
            backend.dma_map(map, descriptors.into_iter().next())?;
        }
        command::DMA_UNMAP => {
            let (_argsz, flags, addr, len) = (fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?);
            backend.dma_unmap((flags & UNMAP_ALL == 0).then_some((addr, len)))?;
            reply.extend(body.iter().take(24));
        }
        command::DEVICE_GET_INFO => {
            let info = [16, VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_NUM_REGIONS, VFIO_PCI_NUM_IRQS];
            reply.extend(info.map(u32::to_ne_bytes).as_flattened());
        }
        command::DEVICE_GET_REGION_INFO => {
            let (_argsz, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            if index >= VFIO_PCI_NUM_REGIONS {
                return Err(wrong());
            }
            let len = backend.region_len(index);
            let flags = if len > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
            // argsz, flags, index, no capabilities; size, offset.
            reply.extend([32, flags, index, 0].map(u32::to_ne_bytes).as_flattened());
            reply.extend([len, 0].map(u64::to_ne_bytes).as_flattened());
        }
        command::DEVICE_GET_IRQ_INFO => {
            let (_argsz, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            if index >= VFIO_PCI_NUM_IRQS {
                return Err(wrong());
            }
            let (count, flags) = backend.interrupts(index);
            reply.extend([16, flags, index, count].map(u32::to_ne_bytes).as_flattened());
        }
        command::DEVICE_SET_IRQS => {
            let (_argsz, flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let (start, count) = (fields.u32()?, fields.u32()?);
            if flags & VFIO_IRQ_SET_DATA_BOOL != 0 {
                return Err(Refusal::Error(io::ErrorKind::Unsupported.into()));
            }
            backend.set_irqs(index, flags, start, count, descriptors)?;
        }
        command::REGION_READ => {
            let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
            let len = usize::try_from(count).ok().filter(|len| *len <= MAX_DATA).ok_or_else(wrong)?;
            let start = reply.len() + 16;
            reply.extend(body.iter().take(16));
            reply.resize(start + len, 0);
            backend.region_read(region, offset, reply.get_mut(start..).unwrap_or_default())?;
        }
        command::REGION_WRITE => {
            let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
            let data = usize::try_from(count).ok().and_then(|len| fields.0.get(..len)).ok_or_else(wrong)?;
            backend.region_write(region, offset, data)?;
            reply.extend(body.iter().take(16));
        }
        command::DEVICE_RESET => backend.reset()?,
        _ => return Err(Refusal::Error(io::ErrorKind::Unsupported.into())),
    }
    Ok(())
}
