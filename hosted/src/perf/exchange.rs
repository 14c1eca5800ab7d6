//! The messages between the two ends: one JSON document a line over a stream, or a queue within this process.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::parameters::{Parameters, Point};
use super::report::Row;
use crate::peer_connection::is_transient;

/// Version of the protocol, which must be the same at both ends.
pub(super) const VERSION: u32 = 2;
/// Name of the protocol in the first message.
pub(super) const PROTOCOL: &str = "bareverbs-perf";
/// Maximum length of a line in bytes.
const MAX_LINE: usize = 64 << 10;
/// Maximum number of characters of a peer's text that are printed.
const MAX_SHOWN: usize = 1000;
/// Maximum time without a message of the peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time without a message to the peer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that the peer may leave messages unread.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// The first message of each end. The client's has the parameters.
    Hello {
        /// [`PROTOCOL`].
        protocol: String,
        /// [`VERSION`].
        version: u32,
        /// What is measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parameters: Option<Box<Parameters>>,
    },
    /// Queue pairs and memory of this end for the next measurement.
    Connection(Connection),
    /// This end's queue pairs are connected, and its receives are posted.
    Ready {
        /// The measurement.
        point: Point,
    },
    /// This end posts no more requests in this measurement.
    Done {
        /// Messages sent on each queue pair.
        sent: Vec<u64>,
        /// Whether everything ends after this measurement (Ctrl-C).
        last: bool,
    },
    /// The data at this end is verified.
    Result {
        /// Measured values, if this end measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        row: Option<Row>,
    },
    /// This end has failed.
    Failure {
        /// The reason.
        reason: String,
    },
    /// Keepalive.
    Alive,
}

/// Queue pairs and memory of an end, as its peer needs them to connect and to address the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Connection {
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// GID, if this end uses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<Ipv6Addr>,
    /// MAC address of an Ethernet port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// MTU of the port in bytes.
    pub mtu: u32,
    /// Maximum number of reads and atomics outstanding as target.
    pub max_dest_rd_atomic: u8,
    /// Number and first PSN of each queue pair.
    pub queue_pairs: Vec<(u32, u32)>,
    /// rkey of the memory.
    pub rkey: u32,
    /// Address of the memory.
    pub addr: u64,
    /// Length of the memory in bytes.
    pub length: u64,
}

impl Message {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not a message; the error quotes it.
    pub(super) fn parse(line: &[u8]) -> Result<Self> {
        serde_json::from_slice(line).map_err(|error| {
            let text = String::from_utf8_lossy(line.get(..line.len().min(80)).unwrap_or_default());
            anyhow!("the peer does not speak {PROTOCOL}: {text:?}: {}", printable(&error.to_string()))
        })
    }

    /// Returns the name of the message, for errors.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Connection(_) => "connection",
            Self::Ready { .. } => "ready",
            Self::Done { .. } => "done",
            Self::Result { .. } => "result",
            Self::Failure { .. } => "failure",
            Self::Alive => "alive",
        }
    }
}

/// Escapes control characters of a peer's text and limits its length, so that a terminal can show it.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(MAX_SHOWN) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// A bidirectional queue of messages between the ends.
pub(super) trait Link {
    /// Sends a message.
    ///
    /// # Errors
    /// The peer is disconnected or does not read.
    fn send(&mut self, message: &Message) -> Result<()>;

    /// Returns the next message, if one has arrived.
    ///
    /// # Errors
    /// The peer is disconnected, has sent nothing for too long, or has sent bytes that are not a message.
    fn receive(&mut self) -> Result<Option<Message>>;

    /// Waits up to `timeout` for a message. It may return earlier.
    fn wait(&mut self, timeout: Duration);

    /// Returns how many of the two ends are in this process.
    fn local_ends(&self) -> u64;
}

/// One end of a link within this process.
#[derive(Debug)]
pub(super) struct LocalLink {
    inbox: Rc<RefCell<VecDeque<Message>>>,
    outbox: Rc<RefCell<VecDeque<Message>>>,
}

impl LocalLink {
    /// Creates both ends of a link.
    pub(super) fn pair() -> (Self, Self) {
        let (to, fro) = (Rc::default(), Rc::default());
        (Self { inbox: Rc::clone(&to), outbox: Rc::clone(&fro) }, Self { inbox: fro, outbox: to })
    }
}

impl Link for LocalLink {
    fn send(&mut self, message: &Message) -> Result<()> {
        self.outbox.borrow_mut().push_back(message.clone());
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Message>> {
        Ok(self.inbox.borrow_mut().pop_front())
    }

    fn wait(&mut self, _timeout: Duration) {}

    fn local_ends(&self) -> u64 {
        2
    }
}

/// A stream whose reads can have a timeout.
pub(super) trait Stream: Read + Write {
    /// Makes reads wait up to `timeout`, or reads and writes return at once without one.
    ///
    /// # Errors
    /// The system refuses.
    fn set_waiting(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}

impl Stream for std::net::TcpStream {
    fn set_waiting(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(timeout.is_none())?;
        self.set_read_timeout(timeout)
    }
}

impl Stream for std::os::unix::net::UnixStream {
    fn set_waiting(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(timeout.is_none())?;
        self.set_read_timeout(timeout)
    }
}

/// A link over a stream.
#[derive(Debug)]
pub(super) struct StreamLink<S> {
    stream: S,
    /// Bytes read that were not yet taken as lines.
    buffer: Vec<u8>,
    /// Time of the last complete line.
    last_received: Instant,
    last_sent: Instant,
}

impl<S: Stream> StreamLink<S> {
    /// Creates a link over `stream`.
    ///
    /// # Errors
    /// The stream does not support nonblocking mode.
    pub(super) fn new(mut stream: S) -> Result<Self> {
        stream.set_waiting(None).context("the connection to the peer")?;
        let now = Instant::now();
        Ok(Self { stream, buffer: Vec::new(), last_received: now, last_sent: now })
    }

    /// Reads once into the buffer. Returns whether bytes were read.
    fn fill(&mut self) -> Result<bool> {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => bail!("the peer has closed the connection"),
            Ok(count) => {
                self.buffer.extend_from_slice(bytes.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error).context("the peer is disconnected"),
        }
    }

    /// Removes the first complete line from the buffer.
    ///
    /// # Errors
    /// The line is longer than [`MAX_LINE`].
    fn take_line(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
            if self.buffer.len() > MAX_LINE {
                bail!("the peer does not speak {PROTOCOL}: a line longer than {MAX_LINE} bytes");
            }
            return Ok(None);
        };
        if end > MAX_LINE {
            bail!("the peer does not speak {PROTOCOL}: a line longer than {MAX_LINE} bytes");
        }
        let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
        line.pop();
        self.last_received = Instant::now();
        Ok(Some(line))
    }
}

impl<S: Stream> StreamLink<S> {
    /// Removes the next message from the buffer, and keepalive messages before it.
    fn take_message(&mut self) -> Result<Option<Message>> {
        while let Some(line) = self.take_line()? {
            match Message::parse(&line)? {
                Message::Alive => {}
                message => return Ok(Some(message)),
            }
        }
        Ok(None)
    }
}

impl<S: Stream> Link for StreamLink<S> {
    fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let (mut rest, start) = (line.as_slice(), Instant::now());
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => bail!("the peer has closed the connection"),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if start.elapsed() > UNREAD_TIMEOUT {
                        bail!("the peer has read nothing for {} s", UNREAD_TIMEOUT.as_secs());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    // A reason that the peer sent before it disconnected explains more than the failed write.
                    while self.buffer.len() <= MAX_LINE && self.fill().unwrap_or(false) {}
                    while let Ok(Some(line)) = self.take_line() {
                        if let Ok(Message::Failure { reason }) = Message::parse(&line) {
                            bail!("the peer failed: {}", printable(&reason));
                        }
                    }
                    return Err(error).context("the peer is disconnected");
                }
            }
        }
        self.last_sent = Instant::now();
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Message>> {
        if let Some(message) = self.take_message()? {
            return Ok(Some(message));
        }
        // One read a call: a peer that sends without pause must not block the caller.
        if self.fill()?
            && let Some(message) = self.take_message()?
        {
            return Ok(Some(message));
        }
        if self.last_received.elapsed() > PEER_TIMEOUT {
            if !self.buffer.is_empty() {
                bail!("the peer has sent {} bytes that are not a message; is it `bareverbs perf`?", self.buffer.len());
            }
            bail!("the peer has sent nothing for {} s", PEER_TIMEOUT.as_secs());
        }
        if self.last_sent.elapsed() > KEEPALIVE_INTERVAL {
            self.send(&Message::Alive)?;
        }
        Ok(None)
    }

    fn wait(&mut self, timeout: Duration) {
        if self.buffer.contains(&b'\n') {
            return;
        }
        // The next `receive` reports an error of this read.
        if self.stream.set_waiting(Some(timeout)).is_ok() {
            let mut bytes = [0; 4096];
            if let Ok(count) = self.stream.read(&mut bytes)
                && count != 0
            {
                self.buffer.extend_from_slice(bytes.get(..count).unwrap_or_default());
            }
            let _ = self.stream.set_waiting(None);
        }
    }

    fn local_ends(&self) -> u64 {
        1
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::perf::parameters::{Test, Transport};

    fn pair() -> (StreamLink<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (StreamLink::new(ours).unwrap(), theirs)
    }

    fn connection() -> Connection {
        Connection {
            lid: 7,
            gid: Some("fe80::1".parse().unwrap()),
            mac: Some("02:00:5e:00:53:01".into()),
            mtu: 4096,
            max_dest_rd_atomic: 16,
            queue_pairs: vec![(9, 1), (10, 2)],
            rkey: 5,
            addr: u64::MAX,
            length: 1,
        }
    }

    #[test]
    fn every_message_is_parsed_as_it_was_sent() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut left, mut right) = (StreamLink::new(left).unwrap(), StreamLink::new(right).unwrap());
        let parameters = Parameters {
            tests: Test::ALL.to_vec(),
            sizes: Parameters::all_sizes(Transport::Rc, None),
            ..Parameters::default()
        };
        let messages = [
            Message::Hello { protocol: PROTOCOL.into(), version: VERSION, parameters: Some(Box::new(parameters)) },
            Message::Hello { protocol: PROTOCOL.into(), version: VERSION, parameters: None },
            Message::Connection(connection()),
            Message::Ready { point: Point { test: Test::SendLat, size: 1 } },
            Message::Done { sent: vec![u64::MAX, 0], last: true },
            Message::Result { row: Some(Row::default()) },
            Message::Result { row: None },
            Message::Failure { reason: "a \"reason\"\nof two lines".into() },
        ];
        for message in &messages {
            left.send(message).unwrap();
            left.send(&Message::Alive).unwrap();
        }
        for message in &messages {
            assert_eq!(right.receive().unwrap().as_ref(), Some(message));
        }
        assert_eq!(right.receive().unwrap(), None);
    }

    #[test]
    fn a_read_may_return_part_of_a_line_or_several_lines() {
        let (mut link, mut peer) = pair();
        peer.write_all(br#"{"message":"done","sent":[1],"last":false}"#).unwrap();
        assert_eq!(link.receive().unwrap(), None);
        peer.write_all(b"\n{\"message\":\"failure\",\"reason\":\"x\"}\n{\"mess").unwrap();
        assert_eq!(link.receive().unwrap(), Some(Message::Done { sent: vec![1], last: false }));
        link.wait(Duration::from_secs(60));
        assert_eq!(link.receive().unwrap(), Some(Message::Failure { reason: "x".into() }));
        assert_eq!(link.receive().unwrap(), None);
        drop(peer);
        assert!(link.receive().unwrap_err().to_string().contains("closed"));
        assert!(link.send(&Message::Alive).is_err());
    }

    #[test]
    fn a_line_that_is_not_a_message_is_an_error_that_quotes_it() {
        for line in [
            "",
            "GET / HTTP/1.1",
            "{}",
            "[]",
            r#"{"message":"unheard"}"#,
            r#"{"message":"ready","point":{"test":"write-lat","size":-1}}"#,
            r#"{"message":"ready","point":{"test":"walk","size":1}}"#,
            r#"{"message":"connection","lid":70000}"#,
            r#"{"message":"done","sent":"all","last":false}"#,
            r#"{"message":"result","row":{"test":"write-lat"}}"#,
            r#"{"message":"hello","protocol":"x","version":1e99}"#,
        ] {
            let (mut link, mut peer) = pair();
            peer.write_all(line.as_bytes()).unwrap();
            peer.write_all(b"\n").unwrap();
            let error = format!("{:#}", link.receive().unwrap_err());
            assert!(error.contains("does not speak bareverbs-perf"), "{line}: {error}");
        }
        let (mut link, mut peer) = pair();
        peer.write_all(&[0xff, 0, b'\n']).unwrap();
        assert!(link.receive().is_err());
    }

    #[test]
    fn a_line_that_is_too_long_is_refused() {
        let (mut link, mut peer) = pair();
        let writer = std::thread::spawn(move || while peer.write_all(&[b'a'; 1024]).is_ok() {});
        let error = (0..1_000_000).find_map(|_| link.receive().err()).unwrap();
        assert!(error.to_string().contains("longer than 65536 bytes"), "{error}");
        assert!(link.buffer.len() < 2 * MAX_LINE);
        drop(link);
        writer.join().unwrap();
    }

    #[test]
    fn a_silent_peer_times_out() {
        let (mut link, _peer) = pair();
        link.last_received = Instant::now().checked_sub(PEER_TIMEOUT + Duration::from_secs(1)).unwrap();
        assert!(link.receive().unwrap_err().to_string().contains("nothing for 20 s"));
    }

    #[test]
    fn the_timeout_error_counts_bytes_that_are_not_a_message() {
        let (mut link, mut peer) = pair();
        peer.write_all(b"* OK IMAP").unwrap();
        link.last_received = Instant::now().checked_sub(PEER_TIMEOUT + Duration::from_secs(1)).unwrap();
        let error = link.receive().unwrap_err().to_string();
        assert!(error.contains("9 bytes that are not a message; is it `bareverbs perf`?"), "{error}");
    }

    #[test]
    fn a_peer_that_floods_keepalives_does_not_block_receive() {
        let (mut link, mut peer) = pair();
        let lines = br#"{"message":"alive"}"#.iter().chain(b"\n").copied().collect::<Vec<u8>>().repeat(200);
        let writer = std::thread::spawn(move || while peer.write_all(&lines).is_ok() {});
        for _ in 0..100 {
            assert_eq!(link.receive().unwrap(), None);
        }
        drop(link);
        writer.join().unwrap();
    }

    #[test]
    fn control_characters_of_the_peer_are_escaped() {
        assert_eq!(printable("it's \"é\": \x1b[2Ja\n\u{202e}b"), "it's \"é\": \\u{1b}[2Ja\\n\\u{202e}b");
        assert_eq!(printable(&"a".repeat(5000)).len(), MAX_SHOWN);
        let error = format!("{:#}", Message::parse(b"{\"message\":\"\\u001b[2J\"}").unwrap_err());
        assert!(error.contains("does not speak") && !error.contains('\x1b'), "{error}");
    }
}
