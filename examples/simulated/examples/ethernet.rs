//! A network interface beside RDMA: smoltcp on two simulated cards. One resolves the other by ARP and pings it.

use std::error::Error;

use bareverbs_mlx5::EthernetConfig;
use bareverbs_mlx5_smoltcp::{FRAME, NetworkDevice, instant};
use bareverbs_testing::{Faults, Node, pair};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::socket::icmp;
use smoltcp::wire::{EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpCidr, Ipv4Address};

/// Lends the queues for frames of a card to `work`. The verbs are free again after it.
fn with_device<R>(
    node: &mut Node,
    work: impl FnOnce(NetworkDevice<'_, bareverbs_sim::in_process::SimPlatform>) -> R,
) -> Option<R> {
    let (mut receive, mut send) = ([0; FRAME], [0; FRAME]);
    let ethernet = node.verbs.direct().ethernet()?;
    Some(work(NetworkDevice::new(ethernet, &mut receive, &mut send).ok()?))
}

fn interface(node: &mut Node, number: u8) -> Result<Interface, Box<dyn Error>> {
    node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT)?;
    let now = instant(node.host.world().now());
    let interface = with_device(node, |mut device| {
        let config = Config::new(EthernetAddress(device.ethernet().mac().0).into());
        let mut interface = Interface::new(config, &mut device, now);
        let address = IpCidr::new(Ipv4Address::new(192, 0, 2, number).into(), 24);
        interface.update_ip_addrs(|all| {
            let _ = all.push(address);
        });
        interface
    });
    interface.ok_or_else(|| "the queues are closed".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none().ethernet())?;
    let (mut interface_a, mut interface_b) = (interface(&mut a, 1)?, interface(&mut b, 2)?);
    let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY], vec![0; 256]);
    let mut socket = icmp::Socket::new(buffer(), buffer());
    socket.bind(icmp::Endpoint::Ident(1))?;
    let request = Icmpv4Repr::EchoRequest { ident: 1, seq_no: 1, data: b"anybody?" };
    let bytes = socket.send(request.buffer_len(), Ipv4Address::new(192, 0, 2, 2).into())?;
    request.emit(&mut Icmpv4Packet::new_unchecked(bytes), &Default::default());
    let (mut sockets, mut none) = (SocketSet::new(vec![]), SocketSet::new(vec![]));
    let ping = sockets.add(socket);

    while !sockets.get::<icmp::Socket<'_>>(ping).can_recv() {
        let now = instant(a.host.world().now());
        with_device(&mut a, |mut device| interface_a.poll(now, &mut device, &mut sockets));
        with_device(&mut b, |mut device| interface_b.poll(now, &mut device, &mut none));
        a.host.world().advance(std::time::Duration::from_millis(1));
    }
    let (_, from) = sockets.get_mut::<icmp::Socket<'_>>(ping).recv()?;
    println!("{from} answered the ping of 192.0.2.1");
    Ok(())
}
