//! A ring of messages in the receiver's memory, filled by RDMA WRITE with immediate. It knows the queues of `bareverbs`, and no device:
//! the tests run it on simulated ones.
//!
//! The sender writes each message into the next slot. The receiver writes back how many it has read, into the sender's memory, so
//! that no slot is overwritten. A sender that waits for slots asks whether the peer lives: with nothing in flight it would never know.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;

use bareverbs::backend::Provider;
use bareverbs::error::{PollCqError, PostRecvError, PostSendError};
use bareverbs::{Completion, CompletionQueue, DmaBuffer, QueuePair, RecvWr, Region, Remote, SendWr, WcData, WcError};

/// Bytes of a slot: the most that a message has.
pub const SLOT: usize = 64;
/// Slots of a ring; each queue needs room for as many requests.
pub const SLOTS: u64 = 16;
/// `wr_id` of the request that asks whether the peer lives.
const ASK: u64 = 1;

/// Why a message was not sent or received. [`Self::Full`] passes; after any other the ring is at its end.
#[derive(Debug)]
pub enum Error {
    /// The receiver has not read enough yet.
    Full,
    /// The message is longer than a slot.
    TooLong,
    /// The region is smaller than what the ring keeps in it.
    Region,
    /// The connection failed: the peer is gone, say.
    Connection(WcError),
    /// The completion queue failed: this side's device is gone, say.
    Poll(PollCqError),
    /// A send was refused.
    Send(PostSendError),
    /// A receive was refused.
    Receive(PostRecvError),
    /// The peer wrote what is no message, or says that it has read what was not sent.
    Peer,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the ring is full"),
            Self::TooLong => write!(f, "the message is longer than {SLOT} bytes"),
            Self::Region => f.write_str("the region is too small"),
            Self::Connection(error) => write!(f, "the connection: {error}"),
            Self::Poll(error) => write!(f, "the completion queue: {error}"),
            Self::Send(error) => write!(f, "a send: {error}"),
            Self::Receive(error) => write!(f, "a receive: {error}"),
            Self::Peer => f.write_str("the peer does not keep to the protocol"),
        }
    }
}

impl core::error::Error for Error {}

/// The sending end. Its region is 8 bytes, which the peer writes.
pub struct Sender<'s, P: Provider, B: DmaBuffer> {
    qp: QueuePair<'s, P>,
    cq: CompletionQueue<'s, P>,
    read: Region<'s, B>,
    slots: Remote,
    sent: u64,
    is_asking: bool,
}

/// The receiving end. Its region is the ring: [`SLOTS`] slots of [`SLOT`] bytes.
pub struct Receiver<'s, P: Provider, B: DmaBuffer> {
    qp: QueuePair<'s, P>,
    cq: CompletionQueue<'s, P>,
    slots: Region<'s, B>,
    count: Remote,
    read: u64,
}

/// Takes the next completion, if there is one and it is a success.
fn poll<P: Provider>(cq: &mut CompletionQueue<'_, P>) -> Result<Option<Completion>, Error> {
    let mut done = [Completion::EMPTY];
    if cq.poll(&mut done).map_err(Error::Poll)? == 0 {
        return Ok(None);
    }
    let [done] = done;
    done.result().map_err(Error::Connection)?;
    Ok(Some(done))
}

impl<'s, P: Provider, B: DmaBuffer> Sender<'s, P, B> {
    /// Creates the end of a connected queue pair; `slots` is the peer's region.
    ///
    /// # Errors
    /// The region has fewer than 8 bytes.
    pub fn new(qp: QueuePair<'s, P>, cq: CompletionQueue<'s, P>, read: Region<'s, B>, slots: Remote) -> Result<Self, Error> {
        if read.len() < 8 { Err(Error::Region) } else { Ok(Self { qp, cq, read, slots, sent: 0, is_asking: false }) }
    }

    /// Sends a message, if there is a free slot. It has been copied when this returns.
    ///
    /// # Errors
    /// [`Error::Full`]: try again later. Any other: the ring is at its end.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        if message.len() > SLOT {
            return Err(Error::TooLong);
        }
        while let Some(done) = poll(&mut self.cq)? {
            self.is_asking &= done.wr_id != ASK;
        }
        let mut read = [0; 8];
        self.read.read(0, &mut read).map_err(|_| Error::Region)?;
        let unread = self.sent.checked_sub(u64::from_be_bytes(read)).ok_or(Error::Peer)?;
        if unread >= SLOTS {
            // A write of no bytes: it fails if the peer is gone.
            if !self.is_asking {
                self.qp.send.post(&SendWr::write(self.slots, b"").id(ASK)).map_err(Error::Send)?;
                self.is_asking = true;
            }
            return Err(Error::Full);
        }
        let slot = Remote { addr: self.slots.addr.wrapping_add(self.sent % SLOTS * SLOT as u64), ..self.slots };
        let length = (message.len() as u32).to_be_bytes();
        match self.qp.send.post(&SendWr::write_with_imm(slot, message, length)) {
            Ok(()) => self.sent = self.sent.wrapping_add(1),
            // Its completions are still on their way.
            Err(PostSendError::QueueFull { .. }) => return Err(Error::Full),
            Err(error) => return Err(Error::Send(error)),
        }
        Ok(())
    }
}

impl<'s, P: Provider, B: DmaBuffer> Receiver<'s, P, B> {
    /// Creates the end of a connected queue pair; `count` is the peer's region.
    ///
    /// # Errors
    /// The region is smaller than the ring, or the queue has no room for its receives.
    pub fn new(
        mut qp: QueuePair<'s, P>,
        cq: CompletionQueue<'s, P>,
        slots: Region<'s, B>,
        count: Remote,
    ) -> Result<Self, Error> {
        if slots.len() < SLOTS * SLOT as u64 {
            return Err(Error::Region);
        }
        for wr_id in 0..SLOTS {
            qp.recv.post(&RecvWr { wr_id, sges: &[] }).map_err(Error::Receive)?;
        }
        Ok(Self { qp, cq, slots, count, read: 0 })
    }

    /// Takes the next message into `out` and returns its length, if one has come.
    ///
    /// # Errors
    /// The ring is at its end.
    pub fn receive(&mut self, out: &mut [u8; SLOT]) -> Result<Option<usize>, Error> {
        let length = loop {
            match poll(&mut self.cq)? {
                None => return Ok(None),
                Some(Completion { data: WcData::Imm(length), .. }) => break u32::from_be_bytes(length) as usize,
                // A count has been written.
                Some(_) => {}
            }
        };
        let message = out.get_mut(..length).ok_or(Error::Peer)?;
        let at = (self.read % SLOTS) as usize * SLOT;
        self.slots.read(at, message).map_err(|_| Error::Region)?;
        self.read = self.read.wrapping_add(1);
        // The receive first: the sender may use the slot as soon as it sees the count.
        self.qp.recv.post(&RecvWr { wr_id: self.read, sges: &[] }).map_err(Error::Receive)?;
        match self.qp.send.post(&SendWr::write(self.count, &self.read.to_be_bytes())) {
            // The next count says it too.
            Ok(()) | Err(PostSendError::QueueFull { .. }) => Ok(Some(length)),
            Err(error) => Err(Error::Send(error)),
        }
    }
}
