//! Reads the vfio-user messages of a client from its socket: header, body and file descriptors.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::adaptive_poll::AdaptivePoll;

/// Maximum data of one region access in bytes, announced to the client as `max_data_xfer_size`.
pub(crate) const MAX_DATA: usize = 1 << 20;

/// Length of a message header in bytes: ID, command, length including the header, flags and error, in host byte order.
pub(crate) const HEADER: usize = 16;

/// Maximum length of a message: a region access with all its data.
const MAX_MESSAGE: usize = HEADER + 16 + MAX_DATA;

/// Maximum number of descriptors of a message.
pub(crate) const MAX_DESCRIPTORS: usize = 16;

/// Bytes that are read at a time: a doorbell write is a message of 40 bytes, so that one system call reads many.
const READ_AHEAD: usize = 4096;

/// Maximum capacity that the body buffer keeps between messages, in bytes.
const BODY_KEPT: usize = MAX_MESSAGE / 16;

/// Why a connection ended before its client closed it.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The socket failed.
    Io(io::Error),
    /// The client closed it within a message.
    Cut,
    /// A header announces a message of this invalid length.
    Length(u32),
    /// The client speaks another version of the protocol.
    Version(u16),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Cut => write!(f, "closed in the middle of a message"),
            Self::Length(len) => write!(f, "announced a message of {len} bytes, where {HEADER} to {MAX_MESSAGE} are allowed"),
            Self::Version(major) => write!(f, "speaks version {major} of vfio-user, not 0"),
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A message's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    /// Length of the message in bytes, including this header.
    pub(crate) len: u32,
    pub(crate) flags: u32,
}

impl Header {
    /// Reads a header from the start of `bytes`; `None` if it is not complete.
    fn read(bytes: &[u8]) -> Option<Self> {
        let [i0, i1, c0, c1, l0, l1, l2, l3, f0, f1, f2, f3, _, _, _, _] = *bytes.first_chunk::<HEADER>()?;
        Some(Self {
            id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        })
    }

    /// Returns the length of the body in bytes; `None` if the length is not allowed.
    fn body(&self) -> Option<usize> {
        usize::try_from(self.len).ok().filter(|len| *len <= MAX_MESSAGE)?.checked_sub(HEADER)
    }
}

/// The descriptors of a message.
#[derive(Debug)]
pub(crate) enum Descriptors {
    All(Vec<File>),
    /// Some did not arrive, or there were too many.
    Lost,
}

impl Descriptors {
    fn none() -> Self {
        Self::All(Vec::new())
    }

    fn are_none(&self) -> bool {
        matches!(self, Self::All(files) if files.is_empty())
    }

    /// Adds the descriptors of another piece of the message. Descriptors in two pieces count as lost.
    fn add(&mut self, others: Self) {
        if !others.are_none() {
            *self = if self.are_none() { others } else { Self::Lost };
        }
    }
}

/// Receives once from the socket. Returns the number of bytes and the descriptors.
///
/// Unless `descriptors_may_come`, the kernel closes received descriptors, and they count as lost.
fn read(
    stream: &UnixStream,
    into: &mut [u8],
    flags: RecvFlags,
    descriptors_may_come: bool,
) -> Result<(usize, Descriptors), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let space = if descriptors_may_come { &mut space[..] } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let into = &mut [IoSliceMut::new(into)];
    let got = retry_on_intr(|| recvmsg(stream, into, &mut control, flags | RecvFlags::CMSG_CLOEXEC))?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received.map(File::from));
        }
    }
    // Without the missing ones the message would have another meaning.
    let lost = got.flags.contains(ReturnFlags::CTRUNC) || files.len() > MAX_DESCRIPTORS;
    Ok((got.bytes, if lost { Descriptors::Lost } else { Descriptors::All(files) }))
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    /// The bytes after the header.
    pub(crate) body: &'a [u8],
    pub(crate) descriptors: Descriptors,
}

/// Descriptors of a message that has not been returned yet.
struct Ahead {
    /// Number of buffered messages before it.
    messages: usize,
    descriptors: Descriptors,
}

/// Reads the messages of one client.
pub(crate) struct MessageReader {
    stream: UnixStream,
    /// Bytes from the socket; those from `start` to `end` have not been returned yet.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    ahead: Option<Ahead>,
    body: Vec<u8>,
    poll: AdaptivePoll,
}

impl MessageReader {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, bytes: vec![0; READ_AHEAD], start: 0, end: 0, ahead: None, body: Vec::new(), poll: AdaptivePoll::new() }
    }

    /// Returns the socket, for replies.
    pub(crate) fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// Returns the next message; `None` after the client has closed the connection.
    ///
    /// # Errors
    /// The socket failed, or the received bytes are not a valid message.
    pub(crate) fn next(&mut self) -> Result<Option<Message<'_>>, Broken> {
        let header = loop {
            if let Some(header) = Header::read(self.unread()) {
                break header;
            }
            if !self.fill()? {
                return if self.unread().is_empty() { Ok(None) } else { Err(Broken::Cut) };
            }
        };
        let len = header.body().ok_or(Broken::Length(header.len))?;
        self.start += HEADER;
        self.body.resize(len, 0);
        let here = len.min(self.end - self.start);
        let mut descriptors = match &mut self.ahead {
            Some(ahead) if ahead.messages > 0 => {
                ahead.messages -= 1;
                None
            }
            ahead => ahead.take(),
        }
        .map_or_else(Descriptors::none, |ahead| ahead.descriptors);
        let (first, mut rest) = self.body.split_at_mut(here);
        first.copy_from_slice(self.bytes.get(self.start..self.start + here).unwrap_or_default());
        self.start += here;
        while !rest.is_empty() {
            let (got, more) = read(&self.stream, rest, RecvFlags::empty(), descriptors.are_none())?;
            if got == 0 {
                return Err(Broken::Cut);
            }
            descriptors.add(more);
            rest = rest.get_mut(got..).unwrap_or_default();
        }
        // The buffer of one long message is not kept until the connection ends.
        if self.body.capacity() > BODY_KEPT && self.body.len() <= BODY_KEPT {
            self.body.shrink_to(BODY_KEPT);
        }
        Ok(Some(Message { header, body: &self.body, descriptors }))
    }

    fn unread(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads available bytes, or waits for some. Returns `false` after the client has closed the connection.
    fn fill(&mut self) -> Result<bool, Broken> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        // While a header is incomplete, reads only that header, so that descriptors of the next message are not mixed in.
        let most = if self.ahead.is_some() { HEADER } else { READ_AHEAD };
        let into = self.bytes.get_mut(self.end..most).unwrap_or_default();
        let (stream, poll, may_come) = (&self.stream, &mut self.poll, self.ahead.is_none());
        let found = poll.wait(|| match read(stream, into, RecvFlags::DONTWAIT, may_come) {
            Err(Errno::AGAIN) => None,
            got => Some(got),
        });
        let (got, descriptors) = found.unwrap_or_else(|| read(stream, into, RecvFlags::empty(), may_come))?;
        self.end += got;
        if !descriptors.are_none() {
            let messages = self.begun().saturating_sub(1);
            self.ahead.get_or_insert_with(|| Ahead { messages, descriptors: Descriptors::none() }).descriptors.add(descriptors);
        }
        Ok(got > 0)
    }

    /// Returns the number of buffered messages, including an incomplete last one.
    ///
    /// Linux ends a read after the bytes that descriptors were sent with, so received descriptors belong to the last of these
    /// messages. This requires that a client sends each message by a separate call (vfio-user, "Message format"); otherwise the
    /// owner of the descriptors is undefined.
    fn begun(&self) -> usize {
        let (mut rest, mut messages) = (self.unread(), 0);
        while !rest.is_empty() {
            messages += 1;
            let len = Header::read(rest).and_then(|header| header.body()).map(|body| HEADER + body);
            rest = len.and_then(|len| rest.get(len..)).unwrap_or_default();
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::Shutdown;
    use std::os::fd::AsFd as _;
    use std::thread;
    use std::time::Duration;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Creates a message with `mark` as its ID and in each byte of its body.
    fn message(mark: u8, body: usize) -> Vec<u8> {
        let mut bytes = vec![mark, 0, 10, 0];
        bytes.extend(u32::try_from(HEADER + body).unwrap().to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.resize(HEADER + body, mark);
        bytes
    }

    /// Sends bytes with descriptors in one call.
    fn send(stream: &UnixStream, bytes: &[u8], descriptors: usize) {
        let file = File::open("/dev/null").unwrap();
        let files = vec![file.as_fd(); descriptors];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(&files)));
        let sent = sendmsg(stream, &[io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Returns mark, body length and number of descriptors of the next message; 99 if some were lost.
    fn next(messages: &mut MessageReader) -> (u8, usize, usize) {
        let Message { header, body, descriptors } = messages.next().unwrap().expect("a message");
        assert!(body.iter().all(|byte| u16::from(*byte) == header.id));
        let descriptors = match descriptors {
            Descriptors::All(files) => files.len(),
            Descriptors::Lost => 99,
        };
        (header.id as u8, body.len(), descriptors)
    }

    fn pair() -> (UnixStream, MessageReader) {
        let (client, server) = UnixStream::pair().unwrap();
        (client, MessageReader::new(server))
    }

    #[test]
    fn many_messages_of_all_lengths_in_one_piece() {
        let (mut client, mut messages) = pair();
        let bodies = [0, 24, 1, READ_AHEAD, 5, 3 * READ_AHEAD + 1, 0, 100, READ_AHEAD - HEADER, 7];
        let all: Vec<u8> = bodies.iter().enumerate().flat_map(|(mark, body)| message(mark as u8, *body)).collect();
        client.write_all(&all).unwrap();
        drop(client);
        for (mark, body) in bodies.into_iter().enumerate() {
            assert_eq!(next(&mut messages), (mark as u8, body, 0));
        }
        assert!(messages.next().unwrap().is_none());
    }

    /// For each split of the bytes, with the second piece on time or late.
    #[test]
    fn messages_in_two_pieces() {
        let all = [message(1, 24), message(2, 0), message(3, 40)].concat();
        for cut in 0..=all.len() {
            let (mut client, mut messages) = pair();
            let (first, second) = all.split_at(cut);
            client.write_all(first).unwrap();
            let second = second.to_vec();
            let late = thread::spawn(move || {
                thread::sleep(Duration::from_millis(1));
                client.write_all(&second).unwrap();
            });
            assert_eq!([1, 2, 3].map(|_| next(&mut messages)), [(1, 24, 0), (2, 0, 0), (3, 40, 0)], "cut at {cut}");
            assert!(messages.next().unwrap().is_none());
            late.join().unwrap();
        }
    }

    /// All messages are in the socket before the first is read, as after a delay of the server.
    #[test]
    fn descriptors_belong_to_the_message_that_they_were_sent_with() {
        let (client, mut messages) = pair();
        let sent = [(0, 0), (24, 1), (24, 0), (0, 0), (40, 3), (40, 2), (5000, 1), (0, 17), (0, 64), (8, 0), (8, 16), (0, 0)];
        for (mark, (body, descriptors)) in sent.into_iter().enumerate() {
            send(&client, &message(mark as u8, body), descriptors);
        }
        client.shutdown(Shutdown::Write).unwrap();
        for (mark, (body, descriptors)) in sent.into_iter().enumerate() {
            let expected = if descriptors > MAX_DESCRIPTORS { 99 } else { descriptors };
            assert_eq!(next(&mut messages), (mark as u8, body, expected), "message {mark}");
        }
        assert!(messages.next().unwrap().is_none());
    }

    /// The descriptors of a message arrive with one of its pieces and do not include those of the next message.
    #[test]
    fn descriptors_of_a_message_in_pieces() {
        for (cut, (first, second)) in (1..HEADER).flat_map(|cut| [(2, 0), (0, 3), (2, 1), (0, 0)].map(|more| (cut, more))) {
            let (client, mut messages) = pair();
            let (head, rest) = (message(2, 8), message(3, 0));
            let (one, other) = head.split_at(cut);
            send(&client, &[message(1, 4).as_slice(), one].concat(), first);
            send(&client, other, second);
            send(&client, &rest, 4);
            let of_second = if first > 0 && second > 0 { 99 } else { first + second };
            let expected = [(1, 4, 0), (2, 8, of_second), (3, 0, 4)];
            assert_eq!([1, 2, 3].map(|_| next(&mut messages)), expected, "cut at {cut}, {first} and {second}");
        }
    }

    /// With the body received together with the header, or after it.
    #[test]
    fn descriptors_that_come_with_a_body() {
        for (late, (first, second)) in
            [false, true].into_iter().flat_map(|late| [(0, 2), (1, 0), (1, 2), (0, 17)].map(|more| (late, more)))
        {
            let (client, mut messages) = pair();
            let sender = thread::spawn(move || {
                let bytes = message(1, 3 * READ_AHEAD);
                let (head, body) = bytes.split_at(HEADER + 5);
                send(&client, head, first);
                if late {
                    thread::sleep(Duration::from_millis(20));
                }
                send(&client, body, second);
                send(&client, &message(2, 0), 1);
                client
            });
            let client = if late { None } else { Some(sender.join().unwrap()) };
            let expected = if second > MAX_DESCRIPTORS || first > 0 && second > 0 { 99 } else { first + second };
            assert_eq!(next(&mut messages), (1, 3 * READ_AHEAD, expected), "{late}: {first} and {second}");
            assert_eq!(next(&mut messages), (2, 0, 1));
            drop(client);
        }
    }

    #[test]
    fn an_invalid_message_ends_the_connection() {
        for len in [0, HEADER - 1, MAX_MESSAGE + 1, usize::MAX] {
            let (mut client, mut messages) = pair();
            let mut bytes = [message(1, 8), message(2, 0)].concat();
            bytes[HEADER + 8 + 4..][..4].copy_from_slice(&(len as u32).to_ne_bytes());
            client.write_all(&bytes).unwrap();
            assert_eq!(next(&mut messages), (1, 8, 0));
            assert!(matches!(messages.next(), Err(Broken::Length(announced)) if announced == len as u32), "{len}");
        }
        for cut in [1, HEADER - 1, HEADER, HEADER + 7] {
            let (mut client, mut messages) = pair();
            client.write_all(&message(1, 8)[..cut]).unwrap();
            drop(client);
            assert!(matches!(messages.next(), Err(Broken::Cut)), "{cut}");
        }
    }

    #[test]
    fn the_buffer_of_a_long_message_is_freed() {
        let (client, mut messages) = pair();
        let sender = thread::spawn(move || {
            let mut client = client;
            client.write_all(&message(1, MAX_MESSAGE - HEADER)).unwrap();
            client.write_all(&message(2, 8)).unwrap();
        });
        assert_eq!(next(&mut messages), (1, MAX_MESSAGE - HEADER, 0));
        assert_eq!(next(&mut messages), (2, 8, 0));
        assert!(messages.body.capacity() <= BODY_KEPT);
        sender.join().unwrap();
    }
}
