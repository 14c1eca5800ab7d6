//! Transport opcodes: service and operation in one byte, and the headers that follow from it.

use std::sync::LazyLock;

use bareverbs_mlx5_spec::{
    AcknowledgeHeader, AtomicAcknowledgeHeader, AtomicHeader, DatagramHeader, ImmediateHeader, InvalidateHeader, Layout,
    RdmaHeader, XrcHeader,
};

/// Service of a packet, the upper three bits of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

impl Transport {
    const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
            Self::Ud => 3,
            Self::Xrc => 5,
        }
    }

    /// Returns whether it acknowledges.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    /// Returns the short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        }
    }
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The only one.
    Only,
}

impl Place {
    /// Returns the place of packet `index` of `count`.
    pub const fn of(index: u32, count: u32) -> Self {
        match (index == 0, index + 1 >= count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Returns whether a message starts here.
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether a message ends here.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What a packet asks or answers. Immediate data and a key to invalidate come only where a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND.
    Send(Place),
    /// SEND with immediate.
    SendImmediate(Place),
    /// SEND with invalidate.
    SendInvalidate(Place),
    /// RDMA WRITE.
    Write(Place),
    /// RDMA WRITE with immediate.
    WriteImmediate(Place),
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse(Place),
    /// Acknowledge.
    Acknowledge,
    /// Atomic acknowledge.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Masked compare and swap. Size and masks are the payload. What cards send is not published: the opcode is one that IBTA reserves.
    MaskedCompareSwap,
    /// Masked fetch and add, as that.
    MaskedFetchAdd,
}

/// An opcode: service and operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// Service.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
}

/// Extension headers that follow the base header, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// XRC header.
    pub xrc: bool,
    /// Datagram header.
    pub deth: bool,
    /// RDMA header.
    pub reth: bool,
    /// Atomic header.
    pub atomic: bool,
    /// Acknowledge header.
    pub aeth: bool,
    /// Atomic acknowledge header.
    pub atomic_ack: bool,
    /// Immediate data.
    pub immediate: bool,
    /// Key to invalidate.
    pub invalidate: bool,
}

impl Headers {
    /// Returns the bytes of all of them.
    pub const fn len(self) -> usize {
        const fn len<L: Layout>(present: bool) -> usize {
            if present { L::SIZE } else { 0 }
        }
        len::<XrcHeader>(self.xrc)
            + len::<DatagramHeader>(self.deth)
            + len::<RdmaHeader>(self.reth)
            + len::<AtomicHeader>(self.atomic)
            + len::<AcknowledgeHeader>(self.aeth)
            + len::<AtomicAcknowledgeHeader>(self.atomic_ack)
            + len::<ImmediateHeader>(self.immediate)
            + len::<InvalidateHeader>(self.invalidate)
    }

    /// Returns whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 25] = [
        Self::Send(Place::First),
        Self::Send(Place::Middle),
        Self::Send(Place::Last),
        Self::SendImmediate(Place::Last),
        Self::Send(Place::Only),
        Self::SendImmediate(Place::Only),
        Self::Write(Place::First),
        Self::Write(Place::Middle),
        Self::Write(Place::Last),
        Self::WriteImmediate(Place::Last),
        Self::Write(Place::Only),
        Self::WriteImmediate(Place::Only),
        Self::ReadRequest,
        Self::ReadResponse(Place::First),
        Self::ReadResponse(Place::Middle),
        Self::ReadResponse(Place::Last),
        Self::ReadResponse(Place::Only),
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::MaskedCompareSwap,
        Self::MaskedFetchAdd,
        Self::SendInvalidate(Place::Last),
        Self::SendInvalidate(Place::Only),
    ];

    const fn bits(self) -> u8 {
        match self {
            Self::Send(Place::First) => 0x00,
            Self::Send(Place::Middle) => 0x01,
            Self::Send(Place::Last) => 0x02,
            Self::Send(Place::Only) => 0x04,
            Self::SendImmediate(Place::Only) => 0x05,
            Self::SendImmediate(_) => 0x03,
            Self::SendInvalidate(Place::Only) => 0x17,
            Self::SendInvalidate(_) => 0x16,
            Self::Write(Place::First) => 0x06,
            Self::Write(Place::Middle) => 0x07,
            Self::Write(Place::Last) => 0x08,
            Self::Write(Place::Only) => 0x0a,
            Self::WriteImmediate(Place::Only) => 0x0b,
            Self::WriteImmediate(_) => 0x09,
            Self::ReadRequest => 0x0c,
            Self::ReadResponse(Place::First) => 0x0d,
            Self::ReadResponse(Place::Middle) => 0x0e,
            Self::ReadResponse(Place::Last) => 0x0f,
            Self::ReadResponse(Place::Only) => 0x10,
            Self::Acknowledge => 0x11,
            Self::AtomicAcknowledge => 0x12,
            Self::CompareSwap => 0x13,
            Self::FetchAdd => 0x14,
            Self::MaskedCompareSwap => 0x1e,
            Self::MaskedFetchAdd => 0x1f,
        }
    }

    /// Returns the place in its message; a request or answer of one packet is its only one.
    pub const fn place(self) -> Place {
        match self {
            Self::Send(place)
            | Self::SendImmediate(place)
            | Self::SendInvalidate(place)
            | Self::Write(place)
            | Self::WriteImmediate(place)
            | Self::ReadResponse(place) => place,
            _ => Place::Only,
        }
    }

    /// Returns whether it is a request for an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd | Self::MaskedCompareSwap | Self::MaskedFetchAdd)
    }

    /// Returns whether it goes from responder to requester.
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse(_) | Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// Returns the name as the specification has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send(Place::First) => "SEND First",
            Self::Send(Place::Middle) => "SEND Middle",
            Self::Send(Place::Last) => "SEND Last",
            Self::Send(Place::Only) => "SEND Only",
            Self::SendImmediate(Place::Only) => "SEND Only with Immediate",
            Self::SendImmediate(_) => "SEND Last with Immediate",
            Self::SendInvalidate(Place::Only) => "SEND Only with Invalidate",
            Self::SendInvalidate(_) => "SEND Last with Invalidate",
            Self::Write(Place::First) => "RDMA WRITE First",
            Self::Write(Place::Middle) => "RDMA WRITE Middle",
            Self::Write(Place::Last) => "RDMA WRITE Last",
            Self::Write(Place::Only) => "RDMA WRITE Only",
            Self::WriteImmediate(Place::Only) => "RDMA WRITE Only with Immediate",
            Self::WriteImmediate(_) => "RDMA WRITE Last with Immediate",
            Self::ReadRequest => "RDMA READ Request",
            Self::ReadResponse(Place::First) => "RDMA READ response First",
            Self::ReadResponse(Place::Middle) => "RDMA READ response Middle",
            Self::ReadResponse(Place::Last) => "RDMA READ response Last",
            Self::ReadResponse(Place::Only) => "RDMA READ response Only",
            Self::Acknowledge => "Acknowledge",
            Self::AtomicAcknowledge => "ATOMIC Acknowledge",
            Self::CompareSwap => "CmpSwap",
            Self::FetchAdd => "FetchAdd",
            Self::MaskedCompareSwap => "masked CmpSwap",
            Self::MaskedFetchAdd => "masked FetchAdd",
        }
    }
}

impl Opcode {
    /// Returns the byte in the base header.
    pub const fn to_bits(self) -> u8 {
        self.transport.bits() << 5 | self.operation.bits()
    }

    /// Returns the opcode of a byte, if the service has that operation.
    #[inline]
    pub fn from_bits(bits: u8) -> Option<Self> {
        /// What each byte means: every frame is asked for its opcode.
        static OPCODES: LazyLock<[Option<Opcode>; 256]> =
            LazyLock::new(|| std::array::from_fn(|bits| Opcode::find(bits as u8)));
        OPCODES.get(usize::from(bits)).copied().flatten()
    }

    /// Searches the opcode of a byte.
    fn find(bits: u8) -> Option<Self> {
        let transport = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc];
        let transport = transport.into_iter().find(|transport| transport.bits() == bits >> 5)?;
        let operation = Operation::ALL.into_iter().find(|operation| operation.bits() == bits & 0x1f)?;
        let known = match transport {
            Transport::Rc | Transport::Xrc => true,
            Transport::Uc => {
                use Operation::{Send, SendImmediate, Write, WriteImmediate};
                matches!(operation, Send(_) | SendImmediate(_) | Write(_) | WriteImmediate(_))
            }
            Transport::Ud => {
                matches!(operation, Operation::Send(Place::Only) | Operation::SendImmediate(Place::Only))
            }
        };
        known.then_some(Self { transport, operation })
    }

    /// Returns the extension headers that follow.
    pub const fn headers(self) -> Headers {
        let operation = self.operation;
        let place = operation.place();
        Headers {
            xrc: matches!(self.transport, Transport::Xrc) && !operation.is_response(),
            deth: matches!(self.transport, Transport::Ud),
            reth: match operation {
                Operation::Write(_) | Operation::WriteImmediate(_) => place.is_start(),
                Operation::ReadRequest => true,
                _ => false,
            },
            atomic: operation.is_atomic(),
            aeth: match operation {
                Operation::ReadResponse(place) => !matches!(place, Place::Middle),
                Operation::Acknowledge | Operation::AtomicAcknowledge => true,
                _ => false,
            },
            atomic_ack: matches!(operation, Operation::AtomicAcknowledge),
            immediate: matches!(operation, Operation::SendImmediate(_) | Operation::WriteImmediate(_)),
            invalidate: matches!(operation, Operation::SendInvalidate(_)),
        }
    }
}
