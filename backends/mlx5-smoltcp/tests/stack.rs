//! smoltcp on two simulated cards: an address by DHCP, ARP, ping, TCP through loss, IPv6 with neighbor discovery.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use bareverbs::platform::Instant;
use bareverbs::storage::{QpRings, Storage};
use std::time::Duration;

use bareverbs_mlx5::{Config as DriverConfig, EthernetConfig};
use bareverbs_mlx5_smoltcp::{BufferTooShort, FRAME, NetworkDevice, instant};
use bareverbs_testing::{Faults, Node, Probability, WireFaults, driver_config, pair};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::{dhcpv4, icmp, tcp, udp};
use smoltcp::wire::{
    DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr, IpEndpoint,
    IpListenEndpoint, Ipv4Address, Ipv4Cidr, Ipv6Address,
};

/// How far time moves between two polls.
const TURN: Duration = Duration::from_millis(2);
const SERVER: Ipv4Address = Ipv4Address::new(192, 0, 2, 1);
const CLIENT: Ipv4Address = Ipv4Address::new(192, 0, 2, 50);

/// A host with a stack on its card.
struct Host {
    node: Node,
    interface: Interface,
    sockets: SocketSet<'static>,
    buffers: [Vec<u8>; 2],
    offload: bool,
}

impl Host {
    fn new(mut node: Node, offload: bool) -> Self {
        node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
        let mut buffers = [vec![0; FRAME], vec![0; FRAME]];
        let now = instant(node.host.world().now());
        let ethernet = node.verbs.direct().ethernet().unwrap();
        let mut config = Config::new(EthernetAddress(ethernet.mac().0).into());
        config.random_seed = ethernet.mac().0[4].into();
        let [receive, send] = &mut buffers;
        let mut device = NetworkDevice::new(ethernet, receive, send).unwrap();
        let interface = Interface::new(config, &mut device, now);
        Self { node, interface, sockets: SocketSet::new(vec![]), buffers, offload }
    }

    fn address(&mut self, address: IpCidr) {
        self.interface.update_ip_addrs(|all| all.push(address).unwrap());
    }

    fn poll(&mut self) {
        let now = instant(self.node.host.world().now());
        let ethernet = self.node.verbs.direct().ethernet().unwrap();
        let [receive, send] = &mut self.buffers;
        let device = NetworkDevice::new(ethernet, receive, send).unwrap();
        let mut device = if self.offload { device.with_checksums_by_the_card() } else { device };
        self.interface.poll(now, &mut device, &mut self.sockets);
        assert_eq!(device.ethernet().fault(), None);
    }

    fn udp(&mut self, port: u16) -> SocketHandle {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 8], vec![0; 8192]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).unwrap();
        self.sockets.add(socket)
    }
}

fn lan(faults: Faults, offload: bool) -> [Host; 2] {
    pair(faults.ethernet()).unwrap().map(|node| Host::new(node, offload))
}

/// Lets both stacks work until `done` says so, for `limit` at most.
fn until(hosts: &mut [Host; 2], limit: Duration, mut done: impl FnMut(&mut [Host; 2]) -> bool) {
    let world = hosts[0].node.host.world().clone();
    for _ in 0..limit.as_millis() / TURN.as_millis() {
        hosts.iter_mut().for_each(Host::poll);
        if done(hosts) {
            return;
        }
        world.advance(TURN);
    }
    panic!("not done after {limit:?}");
}

/// Answers a DISCOVER and a REQUEST (RFC 2131).
fn serve_dhcp(host: &mut Host, socket: SocketHandle) {
    let socket = host.sockets.get_mut::<udp::Socket<'_>>(socket);
    let Ok((bytes, _)) = socket.recv() else { return };
    let bytes = bytes.to_vec();
    let packet = DhcpPacket::new_checked(&bytes[..]).unwrap();
    let asked = DhcpRepr::parse(&packet).unwrap();
    let message_type = match asked.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        _ => return,
    };
    let answer = DhcpRepr {
        message_type,
        your_ip: CLIENT,
        server_ip: SERVER,
        server_identifier: Some(SERVER),
        subnet_mask: Some(Ipv4Address::new(255, 255, 255, 0)),
        lease_duration: Some(3600),
        client_ip: Ipv4Address::UNSPECIFIED,
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        max_size: None,
        ..asked
    };
    let mut bytes = vec![0; answer.buffer_len()];
    answer.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..])).unwrap();
    socket.send_slice(&bytes, IpEndpoint::new(Ipv4Address::BROADCAST.into(), 68)).unwrap();
}

#[test]
fn an_address_comes_by_dhcp_and_answers_ping() {
    for offload in [false, true] {
        let mut hosts = lan(Faults::none(), offload);
        hosts[0].address(IpCidr::new(SERVER.into(), 24));
        let server = hosts[0].udp(67);
        let client = hosts[1].sockets.add(dhcpv4::Socket::new());
        let mut configured = None;
        until(&mut hosts, Duration::from_secs(60), |[a, b]| {
            serve_dhcp(a, server);
            if let Some(dhcpv4::Event::Configured(config)) = b.sockets.get_mut::<dhcpv4::Socket<'_>>(client).poll() {
                configured = Some(config.address);
            }
            configured.is_some()
        });
        assert_eq!(configured, Some(Ipv4Cidr::new(CLIENT, 24)));
        hosts[1].address(IpCidr::new(CLIENT.into(), 24));
        // The server resolves the address by ARP, and pings.
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 2048]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        socket.bind(icmp::Endpoint::Ident(0x22b)).unwrap();
        let ping = hosts[0].sockets.add(socket);
        let data: Vec<u8> = (0..=255).collect();
        let request = Icmpv4Repr::EchoRequest { ident: 0x22b, seq_no: 7, data: &data };
        let socket = hosts[0].sockets.get_mut::<icmp::Socket<'_>>(ping);
        let bytes = socket.send(request.buffer_len(), CLIENT.into()).unwrap();
        request.emit(&mut Icmpv4Packet::new_unchecked(bytes), &ChecksumCapabilities::default());
        until(&mut hosts, Duration::from_secs(10), |[a, _]| a.sockets.get_mut::<icmp::Socket<'_>>(ping).can_recv());
        let (bytes, from) = hosts[0].sockets.get_mut::<icmp::Socket<'_>>(ping).recv().unwrap();
        let answer = Icmpv4Repr::parse(&Icmpv4Packet::new_checked(bytes).unwrap(), &ChecksumCapabilities::default()).unwrap();
        assert_eq!((from, answer), (CLIENT.into(), Icmpv4Repr::EchoReply { ident: 0x22b, seq_no: 7, data: &data }));
        for host in &hosts {
            assert_eq!(host.node.findings(), []);
        }
    }
}

#[test]
fn tcp_arrives_whole_through_loss() {
    for (loss, offload) in [(0, false), (0, true), (30, false), (30, true)] {
        let faults = Faults::wire(WireFaults {
            loss: Probability::per_mille(loss),
            duplication: Probability::per_mille(loss),
            ..WireFaults::NONE
        });
        let mut hosts = lan(faults.seed(11), offload);
        for (host, address) in hosts.iter_mut().zip([SERVER, CLIENT]) {
            host.address(IpCidr::new(address.into(), 24));
        }
        let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 15]);
        let [listener, sender] = hosts.each_mut().map(|host| host.sockets.add(tcp::Socket::new(buffer(), buffer())));
        hosts[0].sockets.get_mut::<tcp::Socket<'_>>(listener).listen(5000).unwrap();
        let [_, b] = &mut hosts;
        let local = IpListenEndpoint { addr: None, port: 49500 };
        b.sockets.get_mut::<tcp::Socket<'_>>(sender).connect(b.interface.context(), (SERVER, 5000), local).unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (mut sent, mut arrived) = (0, Vec::new());
        until(&mut hosts, Duration::from_secs(600), |[a, b]| {
            let socket = b.sockets.get_mut::<tcp::Socket<'_>>(sender);
            if socket.can_send() && sent < bytes.len() {
                sent += socket.send_slice(&bytes[sent..]).unwrap();
            }
            let socket = a.sockets.get_mut::<tcp::Socket<'_>>(listener);
            while socket.can_recv() {
                socket
                    .recv(|data| {
                        arrived.extend_from_slice(data);
                        (data.len(), ())
                    })
                    .unwrap();
            }
            arrived.len() == bytes.len()
        });
        assert!(arrived == bytes, "loss {loss} of 1000");
        let lost = hosts[0].node.host.world().wire_stats().lost;
        assert_eq!(lost != 0, loss != 0);
    }
}

/// Neighbor solicitations go to a group of the address, which the card lets in.
#[test]
fn ipv6_resolves_its_neighbors() {
    let mut hosts = lan(Faults::none(), false);
    let addresses = [1, 2].map(|number| Ipv6Address::new(0xfe80, 0, 0, 0, 0, 0, 0x12, number));
    for (host, address) in hosts.iter_mut().zip(addresses) {
        host.address(IpCidr::new(address.into(), 64));
    }
    let [from, to] = hosts.each_mut().map(|host| host.udp(7));
    let socket = hosts[0].sockets.get_mut::<udp::Socket<'_>>(from);
    socket.send_slice(b"who is there?", IpEndpoint::new(addresses[1].into(), 7)).unwrap();
    until(&mut hosts, Duration::from_secs(10), |[_, b]| b.sockets.get_mut::<udp::Socket<'_>>(to).can_recv());
    let socket = hosts[1].sockets.get_mut::<udp::Socket<'_>>(to);
    let (bytes, source) = socket.recv().unwrap();
    assert_eq!((bytes, source.endpoint), (&b"who is there?"[..], IpEndpoint::new(IpAddress::Ipv6(addresses[0]), 7)));
}

#[test]
fn buffers_have_room_for_the_longest_frame() {
    let world = bareverbs_sim::in_process::World::new(bareverbs_sim::in_process::WorldConfig::default());
    let host = world.add(bareverbs_testing::DeviceConfig::with_lid(1).with_ethernet()).unwrap();
    let rings = QpRings::<64, 16>::new();
    let mut tables = Storage::<bareverbs_testing::Driver, 1, 1, 1, 1, 1>::new([rings.view()]);
    let config = DriverConfig { ethernet_mtu: 4000, ..driver_config(&host) };
    let mut verbs = bareverbs_testing::bring_up(&host, &config, &mut tables).unwrap();
    verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
    let (mut short, mut long) = ([0; 4017], [0; 4018]);
    for turned in [false, true] {
        let (receive, send) = if turned { (&mut long[..], &mut short[..]) } else { (&mut short[..], &mut long[..]) };
        let ethernet = verbs.direct().ethernet().unwrap();
        assert_eq!(NetworkDevice::new(ethernet, receive, send).err(), Some(BufferTooShort { need: 4018 }));
    }
}

/// An interface that was made where frames are long, on a card where they are short: what is too long is lost, the rest arrives.
#[test]
fn an_interface_survives_a_shorter_mtu() {
    let [mut here, mut there] = pair(Faults::none().ethernet()).unwrap();
    for node in [&mut here, &mut there] {
        node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
    }
    let long = here.network().world().add(bareverbs_testing::DeviceConfig::with_lid(3).with_ethernet()).unwrap();
    let rings = QpRings::<64, 16>::new();
    let mut tables = Storage::<bareverbs_testing::Driver, 1, 1, 1, 1, 1>::new([rings.view()]);
    let config = DriverConfig { ethernet_mtu: 9000, ..driver_config(&long) };
    let mut verbs = bareverbs_testing::bring_up(&long, &config, &mut tables).unwrap();
    verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
    let (mut receive, mut send) = ([0; 9018], [0; 9018]);
    let ethernet = verbs.direct().ethernet().unwrap();
    let config = Config::new(EthernetAddress(ethernet.mac().0).into());
    let mut device = NetworkDevice::new(ethernet, &mut receive, &mut send).unwrap();
    let mut interface = Interface::new(config, &mut device, instant(Instant::default()));
    interface.update_ip_addrs(|all| all.push(IpCidr::new(SERVER.into(), 24)).unwrap());
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 8], vec![0; 8192]);
    let mut socket = udp::Socket::new(buffer(), buffer());
    socket.bind(9).unwrap();
    for payload in [&[1; 4000][..], &[2; 100]] {
        socket.send_slice(payload, IpEndpoint::new(IpAddress::v4(255, 255, 255, 255), 9)).unwrap();
    }
    let mut sockets = SocketSet::new(vec![]);
    sockets.add(socket);

    let ethernet = here.verbs.direct().ethernet().unwrap();
    let mut device = NetworkDevice::new(ethernet, &mut receive, &mut send).unwrap();
    for at in 1..=4 {
        interface.poll(instant(Instant::from_nanos(at * 1_000_000)), &mut device, &mut sockets);
    }
    assert_eq!(device.ethernet().fault(), None);
    here.network().world().advance(Duration::from_millis(1));
    let mut bytes = [0; FRAME];
    let mut payloads = Vec::new();
    while let Some(received) = there.verbs.direct().ethernet().unwrap().receive(&mut bytes).unwrap() {
        // Behind the headers of Ethernet, IPv4 and UDP.
        payloads.push((received.len, bytes[42]));
    }
    assert!(payloads.contains(&(142, 2)), "{payloads:?}");
    assert!(payloads.iter().all(|(_, first)| *first != 1), "{payloads:?}");
}
