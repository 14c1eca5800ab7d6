//! The TCP exchange of the `ibv_*_pingpong` tools: the client sends its address, the server connects its queue pair and
//! answers with its own, the client confirms with `done`; both close.
//!
//! `ibv_xsrq_pingpong` has no `done`: the connection stays, and each end says at last that it has all messages.
//!
//! After `pp_client_exch_dest` and `pp_server_exch_dest` in libibverbs/examples/rc_pingpong.c and uc_pingpong.c of rdma-core,
//! the same in versions 44.0 to 64.0. The tools read each message with one call: each is written with one here.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Result;
use bareverbs::LinkLayer;

use super::address::{Address, AddressError, MESSAGE_LEN, XRC_MESSAGE_LEN};
use crate::peer_connection::{POLL_INTERVAL, Wait, is_transient};

/// Maximum time for a message of the peer.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The last message of each end of `ibv_xsrq_pingpong`, with its NUL, after all others have come.
const END: &[u8; 4] = b"END\0";

/// The client's last message, with its NUL.
const DONE: &[u8; 5] = b"done\0";

/// Addresses that an end of `ibv_srq_pingpong` sends, whatever number of queue pairs it has (`MAX_QP`).
const SHARED_ADDRESSES: usize = 256;

/// What the two ends send each other.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What the ports are: addresses differ.
    link_layer: LinkLayer,
    /// Queue pairs of each end.
    queue_pairs: usize,
    /// Addresses in a message.
    addresses: usize,
    /// Whether it is that of `ibv_xsrq_pingpong`: longer addresses, and an end in place of the client's confirmation.
    xrc: bool,
}

impl Format {
    /// One address, as all tools but `ibv_srq_pingpong` send it.
    pub const fn single(link_layer: LinkLayer) -> Self {
        Self { link_layer, queue_pairs: 1, addresses: 1, xrc: false }
    }

    /// One address, as `ibv_xsrq_pingpong` sends it.
    pub const fn xrc(link_layer: LinkLayer) -> Self {
        Self { xrc: true, ..Self::single(link_layer) }
    }

    /// The addresses of `queue_pairs` queue pairs with a shared receive queue, as `ibv_srq_pingpong` sends them.
    pub const fn shared(link_layer: LinkLayer, queue_pairs: usize) -> Self {
        Self { link_layer, queue_pairs, addresses: SHARED_ADDRESSES, xrc: false }
    }

    /// Returns the message with the addresses of an end.
    fn encode(self, local: &[Address]) -> Vec<u8> {
        if self.xrc {
            return local.iter().flat_map(|address| address.to_xrc_message()).collect();
        }
        let unused = Address::default();
        let addresses = local.iter().chain(std::iter::repeat(&unused)).take(self.addresses);
        addresses.flat_map(|address| address.to_message()).collect()
    }

    /// Returns the addresses in the message of the peer.
    fn decode(self, message: &[[u8; MESSAGE_LEN]]) -> Result<Vec<Address>, ExchangeError> {
        let is_used = |message: &&[u8; MESSAGE_LEN]| message.as_slice() != Address::default().to_message();
        let used = message.iter().take_while(is_used).count();
        if self.addresses > 1 && used != self.queue_pairs {
            return Err(ExchangeError::QueuePairs { theirs: used, ours: self.queue_pairs });
        }
        let address = |message| Address::from_message(message, self.link_layer).map_err(ExchangeError::Address);
        message.iter().take(self.queue_pairs).map(address).collect()
    }
}

/// Error of the exchange.
#[derive(Debug)]
pub enum ExchangeError {
    /// The peer closed the connection before the end of a message.
    Closed {
        /// The message.
        awaited: &'static str,
        /// Bytes received.
        got: usize,
        /// Bytes of the message.
        len: usize,
    },
    /// The peer did not send a whole message in time.
    Timeout {
        /// The message.
        awaited: &'static str,
        /// Bytes received.
        got: usize,
        /// Bytes of the message.
        len: usize,
        /// The timeout.
        timeout: Duration,
    },
    /// The last message is not `done`.
    NotDone(String),
    /// The last message of an end of XRC is not `END`.
    NotEnd(String),
    /// The peer's address is invalid.
    Address(AddressError),
    /// The peer has another number of queue pairs.
    QueuePairs {
        /// That of the peer.
        theirs: usize,
        /// That of this end.
        ours: usize,
    },
    /// Reading or writing a message failed.
    Io(&'static str, io::Error),
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { awaited, got, len } => {
                write!(f, "the peer closed the connection after {got} of the {len} bytes of {awaited}; see its error")
            }
            Self::Timeout { awaited, got, len, timeout } => {
                write!(f, "the peer sent {got} of the {len} bytes of {awaited} within {} s", timeout.as_secs())
            }
            Self::NotEnd(text) => write!(f, "the peer sent \"{text}\" instead of \"END\""),
            Self::NotDone(text) => write!(f, "the client sent \"{text}\" instead of \"done\""),
            Self::Address(error) => error.fmt(f),
            Self::QueuePairs { theirs, ours } => {
                write!(f, "the peer has {theirs} queue pairs and this end {ours}: give both ends the same -q")
            }
            Self::Io(message, error) => write!(f, "{message}: {error}"),
        }
    }
}

impl std::error::Error for ExchangeError {}

/// A connection to the peer.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    timeout: Duration,
    format: Format,
}

impl Connection {
    /// Reads a message of `LEN` bytes.
    fn read<const LEN: usize>(&mut self, awaited: &'static str, wait: &mut Wait<'_>) -> Result<[u8; LEN]> {
        let (start, mut bytes, mut got) = (Instant::now(), [0; LEN], 0);
        self.stream.set_read_timeout(Some(POLL_INTERVAL)).map_err(|error| ExchangeError::Io(awaited, error))?;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => return Err(ExchangeError::Closed { awaited, got, len: LEN }.into()),
                Ok(more) => got += more,
                Err(error) if is_transient(&error) => {
                    if start.elapsed() > self.timeout {
                        return Err(ExchangeError::Timeout { awaited, got, len: LEN, timeout: self.timeout }.into());
                    }
                    wait.check()?;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ExchangeError::Closed { awaited, got, len: LEN }.into());
                }
                Err(error) => return Err(ExchangeError::Io(awaited, error).into()),
            }
        }
        Ok(bytes)
    }

    fn read_addresses(&mut self, wait: &mut Wait<'_>) -> Result<Vec<Address>> {
        if self.format.xrc {
            let message = self.read::<XRC_MESSAGE_LEN>("its address", wait)?;
            let address = Address::from_xrc_message(&message, self.format.link_layer);
            return Ok(vec![address.map_err(ExchangeError::Address)?]);
        }
        let mut message = Vec::new();
        for _ in 0..self.format.addresses {
            message.push(self.read::<MESSAGE_LEN>("its address", wait)?);
        }
        Ok(self.format.decode(&message)?)
    }

    /// Waits until the peer has all its messages.
    fn read_end(&mut self, wait: &mut Wait<'_>) -> Result<()> {
        let bytes = self.read::<{ END.len() }>("its end", wait)?;
        if &bytes == END {
            return Ok(());
        }
        Err(ExchangeError::NotEnd(String::from_utf8_lossy(&bytes).escape_default().to_string()).into())
    }

    /// Writes a message. It is a few bytes for an empty socket buffer, which accepts them at once and in one piece.
    fn write(&mut self, bytes: &[u8], message: &'static str) -> Result<(), ExchangeError> {
        self.stream.write_all(bytes).map_err(|error| ExchangeError::Io(message, error))
    }
}

/// The exchange at a server that has its client's addresses.
#[derive(Debug)]
pub struct ServerExchange(Connection);

impl ServerExchange {
    /// Receives the client's addresses over a new connection. `timeout` is that of each address ([`MESSAGE_TIMEOUT`]).
    ///
    /// # Errors
    /// The client did not send them in time, or sent invalid ones.
    pub fn receive(stream: TcpStream, timeout: Duration, format: Format, wait: &mut Wait<'_>) -> Result<(Self, Vec<Address>)> {
        let mut connection = Connection { stream, timeout, format };
        let addresses = connection.read_addresses(wait)?;
        Ok((Self(connection), addresses))
    }

    /// Sends this end's addresses. Its queue pairs must be ready, since the client may send at once.
    ///
    /// # Errors
    /// The connection failed.
    pub fn answer(&mut self, local: &[Address]) -> Result<(), ExchangeError> {
        let message = self.0.format.encode(local);
        self.0.write(&message, "the answer to the client")
    }

    /// Waits for the client's confirmation, which XRC does not have.
    ///
    /// # Errors
    /// The client did not confirm in time.
    pub fn confirm(&mut self, wait: &mut Wait<'_>) -> Result<()> {
        if self.0.format.xrc {
            return Ok(());
        }
        let bytes = self.0.read::<{ DONE.len() }>("its confirmation", wait)?;
        if &bytes == DONE {
            Ok(())
        } else {
            Err(ExchangeError::NotDone(String::from_utf8_lossy(&bytes).escape_default().to_string()).into())
        }
    }

    /// Ends a run of XRC: waits until the client has all its messages, and says that this end has.
    ///
    /// # Errors
    /// The client did not say so in time.
    pub fn end(&mut self, wait: &mut Wait<'_>) -> Result<()> {
        if self.0.format.xrc {
            self.0.read_end(wait)?;
            self.0.write(END, "the end for the client")?;
        }
        Ok(())
    }
}

/// The exchange at a client that has sent its addresses.
#[derive(Debug)]
pub struct ClientExchange(Connection);

impl ClientExchange {
    /// Sends this end's addresses over a new connection. `timeout` is that of each address ([`MESSAGE_TIMEOUT`]).
    ///
    /// # Errors
    /// The connection failed.
    pub fn send(stream: TcpStream, timeout: Duration, format: Format, local: &[Address]) -> Result<Self, ExchangeError> {
        let mut connection = Connection { stream, timeout, format };
        connection.write(&format.encode(local), "the address for the server")?;
        Ok(Self(connection))
    }

    /// Waits for the server's addresses, and confirms them.
    ///
    /// # Errors
    /// The server did not send them in time, or sent invalid ones.
    pub fn finish(&mut self, wait: &mut Wait<'_>) -> Result<Vec<Address>> {
        let addresses = self.0.read_addresses(wait)?;
        if !self.0.format.xrc {
            self.0.write(DONE, "the confirmation for the server")?;
        }
        Ok(addresses)
    }

    /// Says at the end of a run of XRC that this end has all its messages.
    ///
    /// # Errors
    /// The connection failed.
    pub fn announce_end(&mut self) -> Result<(), ExchangeError> {
        if self.0.format.xrc { self.0.write(END, "the end for the server") } else { Ok(()) }
    }

    /// Waits after that until the server has all of its.
    ///
    /// # Errors
    /// The server did not say so in time.
    pub fn await_end(&mut self, wait: &mut Wait<'_>) -> Result<()> {
        if self.0.format.xrc { self.0.read_end(wait) } else { Ok(()) }
    }
}
