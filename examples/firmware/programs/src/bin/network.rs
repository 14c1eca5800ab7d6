//! A network interface and RDMA on one card, with nothing underneath: an address by DHCP, ARP, ping, and then RDMA WRITE over RoCEv2.
//!
//! The program reads one line, `server` or `client`. The server gives the client its address, pings it, and tells it over UDP where to
//! write; each asks the other's MAC address by ARP. The client writes, and the server checks every byte.
#![no_std]
#![no_main]

use core::net::Ipv4Addr;
use core::time::Duration;

use bareverbs::platform::{Clock as _, Instant};
use bareverbs::{Access, AddressVector, GidEntry, GlobalRoute, Mac, Mtu, Payload, Psn, QpAttr, Qpn, Remote, Rkey, SendOp};
use bareverbs_mlx5::EthernetConfig;
use bareverbs_mlx5_smoltcp::{FRAME, NetworkDevice, instant};
use bareverbs_mmio::IdentityBuffer;
use board::card::Slot;
use board::{During as _, Failure, Timer, println};
use programs::connection::{Card, Connection, Rdma};
use programs::pattern;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::{dhcpv4, icmp, udp};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr, IpEndpoint,
};
use static_cell::ConstStaticCell;

/// Bytes that are written to the peer.
const AREA: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a message without an answer is sent again.
const AGAIN: Duration = Duration::from_millis(300);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// What the server gives its client.
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
/// UDP port over which both tell each other about their queue pairs.
const EXCHANGE: u16 = 18515;
/// Entry of the GID table with the address.
const GID: u8 = 1;
const PING: u16 = 0x22b;

/// What an endpoint of UDP or ICMP has room for.
type Bytes = [u8; 1024];

static FRAMES: [ConstStaticCell<[u8; FRAME]>; 2] = [const { ConstStaticCell::new([0; FRAME]) }; 2];
static BYTES: [ConstStaticCell<Bytes>; 6] = [const { ConstStaticCell::new([0; 1024]) }; 6];

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("network on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let buffer = IdentityBuffer::new(board::dma_memory!(AREA).during("the buffer is in use")?);
    let mut connection = Connection::open(slot, arena, buffer)?;
    connection.rdma.direct().open_ethernet(&EthernetConfig::DEFAULT).during("open_ethernet")?;
    println!("ready");
    let role = board::console::read_line::<20>(Duration::from_secs(120)).during("server or client")?;
    let mut storage = [const { SocketStorage::EMPTY }; 4];
    let mut stack = Stack::new(&mut connection.rdma, &mut storage)?;
    match role.as_str() {
        "server" => serve(&mut connection, &mut stack)?,
        "client" => write(&mut connection, &mut stack)?,
        _ => return Err(Failure::new(format_args!("not 'server' or 'client'"))),
    }
    connection.rdma.direct().close_ethernet().during("close_ethernet")?;
    connection.close(None)
}

/// Gives the client its address, pings it, tells it where to write, and checks what it has written.
fn serve(connection: &mut Connection, stack: &mut Stack<'_>) -> Result<(), Failure> {
    stack.set_address(&mut connection.rdma, SERVER)?;
    let (dhcp, exchange, ping) = (stack.udp(67)?, stack.udp(EXCHANGE)?, stack.ping()?);
    let deadline = Timer.now().after(TIMEOUT);
    let mut peer = None;
    let mut answered = false;
    while Timer.now() < deadline {
        stack.poll(&mut connection.rdma)?;
        stack.answer_dhcp(dhcp)?;
        answered = answered || stack.is_answered(ping)?;
        let mut message = [0; PeerInfo::LEN];
        let Some((len, from)) = stack.received(exchange, &mut message) else { continue };
        if len == DONE.len() && message.starts_with(DONE) {
            pattern::check(&connection.region, 0, AREA, |at| pattern::byte(1, at)).during("written by the client")?;
            println!("{AREA} bytes written by the client, each byte checked");
            stack.send_to(exchange, from, DONE)?;
            // Until the last answer is out.
            let end = Timer.now().after(AGAIN);
            while Timer.now() < end {
                stack.poll(&mut connection.rdma)?;
            }
            return Ok(());
        }
        if peer.is_none() {
            let mac = stack.resolve(&mut connection.rdma, SERVER, CLIENT)?;
            println!("{CLIENT} is at {mac}");
            connect(connection, CLIENT, mac, &PeerInfo::read(&message))?;
            stack.send_ping(ping, CLIENT)?;
            peer = Some(from);
        } else if answered {
            stack.send_to(exchange, from, &PeerInfo::of(connection).bytes())?;
        }
    }
    Err(Failure::new(format_args!("nothing was written in {} s, ping answered: {answered}", TIMEOUT.as_secs())))
}

/// Gets an address, asks the server where to write, and writes.
fn write(connection: &mut Connection, stack: &mut Stack<'_>) -> Result<(), Failure> {
    let address = stack.ask_for_address(&mut connection.rdma)?;
    println!("address {address} by DHCP");
    stack.set_address(&mut connection.rdma, address)?;
    let mac = stack.resolve(&mut connection.rdma, address, SERVER)?;
    println!("{SERVER} is at {mac}");
    let exchange = stack.udp(EXCHANGE)?;
    let mut answer = [0; PeerInfo::LEN];
    let own = PeerInfo::of(connection).bytes();
    stack.ask(&mut connection.rdma, exchange, &own, &mut answer)?;
    let peer = PeerInfo::read(&answer);
    connect(connection, SERVER, mac, &peer)?;
    println!("connected");
    pattern::fill(&mut connection.region, 0, AREA, 1)?;
    let source = [connection.sge(0, AREA)];
    connection.post(1, SendOp::Write { payload: Payload::Sges(&source), remote: peer.remote })?;
    connection.next(TIMEOUT)?;
    println!("{AREA} bytes written");
    stack.ask(&mut connection.rdma, exchange, DONE, &mut answer)?;
    Ok(())
}

/// Connects the queue pair over RoCEv2.
fn connect(connection: &mut Connection, address: Ipv4Addr, mac: Mac, peer: &PeerInfo) -> Result<(), Failure> {
    let route = GlobalRoute { dgid: address.into(), sgid_index: GID, hop_limit: 64, ..GlobalRoute::default() };
    let attr = QpAttr {
        port_num: 1,
        access: Access::REMOTE_WRITE,
        av: AddressVector { port_num: 1, grh: Some(route), dmac: Some(mac), ..AddressVector::default() },
        path_mtu: Mtu::Mtu1024,
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        sq_psn: connection.address.psn,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    connection.rdma.modify_qp_to_rts(connection.qp.handle(), &attr).during("connect")
}

/// The message that all is written, and its answer.
const DONE: &[u8] = b"done";

/// What the ends exchange: where to write.
struct PeerInfo {
    qpn: Qpn,
    psn: Psn,
    remote: Remote,
}

impl PeerInfo {
    const LEN: usize = 20;

    fn of(connection: &Connection) -> Self {
        let address = connection.address;
        Self { qpn: address.qpn, psn: address.psn, remote: connection.region.remote(0) }
    }

    fn bytes(&self) -> [u8; Self::LEN] {
        let words =
            [self.qpn.get(), self.psn.get(), (self.remote.addr >> 32) as u32, self.remote.addr as u32, self.remote.rkey.get()];
        let mut bytes = [0; Self::LEN];
        for (to, from) in bytes.iter_mut().zip(words.iter().flat_map(|word| word.to_be_bytes())) {
            *to = from;
        }
        bytes
    }

    fn read(bytes: &[u8; Self::LEN]) -> Self {
        let [qpn, psn, high, low, rkey] = [0, 4, 8, 12, 16].map(|at| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes: &[u8; 4]| u32::from_be_bytes(*bytes))
        });
        let remote = Remote { addr: u64::from(high) << 32 | u64::from(low), rkey: Rkey::new(rkey) };
        Self { qpn: Qpn::new(qpn), psn: Psn::new(psn), remote }
    }
}

/// smoltcp on the card.
struct Stack<'a> {
    interface: Interface,
    sockets: SocketSet<'a>,
    receive: &'static mut [u8],
    send: &'static mut [u8],
    mac: Mac,
    /// Buffers of sockets that were given out.
    used: usize,
}

impl<'a> Stack<'a> {
    fn new(rdma: &mut Rdma, storage: &'a mut [SocketStorage<'a>]) -> Result<Self, Failure> {
        let [receive, send] = &FRAMES;
        let receive = receive.try_take().during("the buffers are in use")?;
        let send = send.try_take().during("the buffers are in use")?;
        let ethernet = rdma.direct().ethernet().during("the queues are closed")?;
        let mac = ethernet.mac();
        let mut device = NetworkDevice::new(ethernet, receive, send).during("the device of smoltcp")?;
        let interface = Interface::new(Config::new(EthernetAddress(mac.0).into()), &mut device, instant(Timer.now()));
        Ok(Self { interface, sockets: SocketSet::new(storage), receive, send, mac, used: 0 })
    }

    fn poll(&mut self, rdma: &mut Rdma) -> Result<(), Failure> {
        let ethernet = rdma.direct().ethernet().during("the queues are closed")?;
        let mut device = NetworkDevice::new(ethernet, self.receive, self.send).during("the device of smoltcp")?;
        self.interface.poll(instant(Timer.now()), &mut device, &mut self.sockets);
        match device.ethernet().fault() {
            None => Ok(()),
            Some(fault) => Err(Failure::new(format_args!("the queues have ended: {fault}"))),
        }
    }

    /// Gives the interface an address, and the port the same for RoCEv2.
    fn set_address(&mut self, rdma: &mut Rdma, address: Ipv4Addr) -> Result<(), Failure> {
        let mut is_set = false;
        self.interface.update_ip_addrs(|all| is_set = all.push(IpCidr::new(address.into(), 24)).is_ok());
        is_set.then_some(()).during("no room for an address")?;
        rdma.set_gid(1, GID.into(), &GidEntry::new(address, self.mac)).during("set_gid")
    }

    fn bytes(&mut self) -> Result<&'static mut Bytes, Failure> {
        self.used += 1;
        BYTES.get(self.used - 1).and_then(ConstStaticCell::try_take).during("no buffer for a socket")
    }

    fn udp(&mut self, port: u16) -> Result<SocketHandle, Failure> {
        static ENTRIES: [ConstStaticCell<[udp::PacketMetadata; 4]>; 4] =
            [const { ConstStaticCell::new([udp::PacketMetadata::EMPTY; 4]) }; 4];
        let mut entries = ENTRIES.iter().filter_map(ConstStaticCell::try_take);
        let mut buffer = |bytes: &'static mut Bytes| Some(udp::PacketBuffer::new(&mut entries.next()?[..], &mut bytes[..]));
        let (receive, send) = (self.bytes()?, self.bytes()?);
        let (receive, send) = (buffer(receive).during("no entries")?, buffer(send).during("no entries")?);
        let mut socket = udp::Socket::new(receive, send);
        socket.bind(port).during("binding a port")?;
        Ok(self.sockets.add(socket))
    }

    fn ping(&mut self) -> Result<SocketHandle, Failure> {
        static ENTRIES: [ConstStaticCell<[icmp::PacketMetadata; 4]>; 2] =
            [const { ConstStaticCell::new([icmp::PacketMetadata::EMPTY; 4]) }; 2];
        let [first, second] = &ENTRIES;
        let (first, second) = (first.try_take().during("no entries")?, second.try_take().during("no entries")?);
        let receive = icmp::PacketBuffer::new(&mut first[..], &mut self.bytes()?[..]);
        let send = icmp::PacketBuffer::new(&mut second[..], &mut self.bytes()?[..]);
        let mut socket = icmp::Socket::new(receive, send);
        socket.bind(icmp::Endpoint::Ident(PING)).during("binding")?;
        Ok(self.sockets.add(socket))
    }

    fn send_ping(&mut self, ping: SocketHandle, to: Ipv4Addr) -> Result<(), Failure> {
        let request = Icmpv4Repr::EchoRequest { ident: PING, seq_no: 1, data: b"is anybody there?" };
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(ping);
        let bytes = socket.send(request.buffer_len(), to.into()).during("a ping")?;
        request.emit(&mut Icmpv4Packet::new_unchecked(bytes), &Default::default());
        Ok(())
    }

    /// Returns whether the peer has answered a ping.
    fn is_answered(&mut self, ping: SocketHandle) -> Result<bool, Failure> {
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(ping);
        let Ok((bytes, from)) = socket.recv() else { return Ok(false) };
        let packet = Icmpv4Packet::new_checked(bytes).during("an answer to a ping")?;
        let answer = Icmpv4Repr::parse(&packet, &Default::default()).during("an answer to a ping")?;
        let expected = Icmpv4Repr::EchoReply { ident: PING, seq_no: 1, data: b"is anybody there?" };
        if from == IpAddress::Ipv4(CLIENT) && answer == expected {
            println!("{from} answers ping");
            return Ok(true);
        }
        Ok(false)
    }

    fn ask_for_address(&mut self, rdma: &mut Rdma) -> Result<Ipv4Addr, Failure> {
        let socket = self.sockets.add(dhcpv4::Socket::new());
        let deadline = Timer.now().after(TIMEOUT);
        while Timer.now() < deadline {
            self.poll(rdma)?;
            if let Some(dhcpv4::Event::Configured(config)) = self.sockets.get_mut::<dhcpv4::Socket<'_>>(socket).poll() {
                return Ok(config.address.address());
            }
        }
        Err(Failure::new(format_args!("no address by DHCP in {} s", TIMEOUT.as_secs())))
    }

    /// Answers a DISCOVER and a REQUEST (RFC 2131).
    fn answer_dhcp(&mut self, dhcp: SocketHandle) -> Result<(), Failure> {
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(dhcp);
        let Ok((bytes, _)) = socket.recv() else { return Ok(()) };
        let packet = DhcpPacket::new_checked(bytes).during("a message of DHCP")?;
        let asked = DhcpRepr::parse(&packet).during("a message of DHCP")?;
        let message_type = match asked.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            DhcpMessageType::Request => DhcpMessageType::Ack,
            _ => return Ok(()),
        };
        let answer = DhcpRepr {
            message_type,
            your_ip: CLIENT,
            server_ip: SERVER,
            server_identifier: Some(SERVER),
            subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            lease_duration: Some(3600),
            requested_ip: None,
            client_identifier: None,
            parameter_request_list: None,
            max_size: None,
            additional_options: &[],
            ..asked
        };
        let mut bytes = [0; 600];
        let len = answer.buffer_len();
        let place = bytes.get_mut(..len).during("a long answer")?;
        answer.emit(&mut DhcpPacket::new_unchecked(&mut *place)).during("an answer of DHCP")?;
        let to = IpEndpoint::new(Ipv4Addr::BROADCAST.into(), 68);
        socket.send_slice(place, to).during("an answer of DHCP")
    }

    /// Asks for the MAC address of a peer (RFC 826). Other frames that come meanwhile are lost.
    fn resolve(&mut self, rdma: &mut Rdma, own: Ipv4Addr, peer: Ipv4Addr) -> Result<Mac, Failure> {
        let source = EthernetAddress(self.mac.0);
        let question = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: source,
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: peer,
        };
        let header = EthernetRepr { src_addr: source, dst_addr: EthernetAddress::BROADCAST, ethertype: EthernetProtocol::Arp };
        let mut frame = [0; 60];
        let mut view = EthernetFrame::new_unchecked(&mut frame[..]);
        header.emit(&mut view);
        question.emit(&mut ArpPacket::new_unchecked(view.payload_mut()));
        let mut next = Instant::default();
        let deadline = Timer.now().after(TIMEOUT);
        while Timer.now() < deadline {
            let mut ethernet = rdma.direct().ethernet().during("the queues are closed")?;
            if Timer.now() >= next {
                ethernet.send(&frame).during("a question")?;
                next = Timer.now().after(AGAIN);
            }
            let Some(received) = ethernet.receive(self.receive).during("an answer")? else { continue };
            if let Some(mac) = self.receive.get(..received.len).and_then(|frame| answer_of(frame, peer)) {
                return Ok(mac);
            }
        }
        Err(Failure::new(format_args!("{peer} does not answer ARP")))
    }

    fn send_to(&mut self, socket: SocketHandle, to: IpEndpoint, message: &[u8]) -> Result<(), Failure> {
        self.sockets.get_mut::<udp::Socket<'_>>(socket).send_slice(message, to).during("a message")
    }

    /// Takes a message: its length, and where it came from.
    fn received(&mut self, socket: SocketHandle, into: &mut [u8]) -> Option<(usize, IpEndpoint)> {
        let (len, from) = self.sockets.get_mut::<udp::Socket<'_>>(socket).recv_slice(into).ok()?;
        Some((len, from.endpoint))
    }

    /// Sends a message to the server until it answers.
    fn ask(&mut self, rdma: &mut Rdma, socket: SocketHandle, message: &[u8], answer: &mut [u8]) -> Result<(), Failure> {
        let to = IpEndpoint::new(SERVER.into(), EXCHANGE);
        let mut next = Instant::default();
        let deadline = Timer.now().after(TIMEOUT);
        while Timer.now() < deadline {
            if Timer.now() >= next {
                self.send_to(socket, to, message)?;
                next = Timer.now().after(AGAIN);
            }
            self.poll(rdma)?;
            // A late answer to an earlier message has another length.
            if self.received(socket, answer).is_some_and(|(len, _)| len == message.len()) {
                return Ok(());
            }
        }
        Err(Failure::new(format_args!("the server does not answer")))
    }
}

/// Returns the MAC address that a frame says a peer has.
fn answer_of(frame: &[u8], peer: Ipv4Addr) -> Option<Mac> {
    let frame = EthernetFrame::new_checked(frame).ok().filter(|frame| frame.ethertype() == EthernetProtocol::Arp)?;
    let packet = ArpPacket::new_checked(frame.payload()).ok()?;
    match ArpRepr::parse(&packet).ok()? {
        ArpRepr::EthernetIpv4 { operation: ArpOperation::Reply, source_hardware_addr, source_protocol_addr, .. }
            if source_protocol_addr == peer =>
        {
            Some(Mac(source_hardware_addr.0))
        }
        _ => None,
    }
}
