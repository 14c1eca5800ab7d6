//! RoCEv2 between two simulated devices with Ethernet ports: addresses, a path, an RDMA WRITE.

use std::error::Error;
use std::net::Ipv4Addr;

use bareverbs::{
    Access, AddressVector, DmaBuffer, GidEntry, GlobalRoute, Mac, QpAttr, QpCap, QpInit, QpType, SendWr, WcStatus,
};
use bareverbs_testing::{Faults, Node, pair};

/// Index of the GID that the program sets; the bring-up of `bareverbs-testing` has set a link-local one at index 0.
const INDEX: u8 = 1;

/// Gives the port an IPv4 address, and returns what the peer must know: that, and the MAC address.
fn set_address(node: &mut Node, number: u8) -> Result<(Ipv4Addr, Mac), Box<dyn Error>> {
    let (address, mac) = (Ipv4Addr::new(192, 0, 2, number), node.verbs.query_port(1)?.mac);
    node.verbs.set_gid(1, INDEX.into(), &GidEntry::new(address, mac))?;
    Ok((address, mac))
}

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none().ethernet())?;
    let (to_a, to_b) = (set_address(&mut a, 1)?, set_address(&mut b, 2)?);
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    let create = |node: &mut Node| -> Result<_, Box<dyn Error>> {
        let cq = node.verbs.create_cq(256)?;
        let (pd, send_cq, recv_cq) = (node.pd, cq.handle(), cq.handle());
        let qp = node.verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
        let qpn = node.verbs.qp_info(qp.handle())?.qpn;
        Ok((qp, cq, qpn))
    };
    let (mut qp_a, mut cq, qpn_a) = create(&mut a)?;
    let (qp_b, _cq, qpn_b) = create(&mut b)?;
    for (node, qp, (address, mac), dest_qpn) in [(&mut a, qp_a.handle(), to_b, qpn_b), (&mut b, qp_b.handle(), to_a, qpn_a)] {
        // A path of an Ethernet port: the peer's address, the index of our own, and the peer's MAC address, or that of a router.
        let route = GlobalRoute { dgid: address.into(), sgid_index: INDEX, hop_limit: 64, ..GlobalRoute::default() };
        let av = AddressVector { port_num: 1, grh: Some(route), dmac: Some(mac), ..AddressVector::default() };
        let attr = QpAttr { port_num: 1, access: Access::REMOTE_WRITE, av, dest_qpn, ..QpAttr::default() };
        node.verbs.modify_qp_to_rts(qp, &QpAttr { timeout: 14, retry_cnt: 7, rnr_retry: 7, ..attr })?;
    }

    let target = b.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    qp_a.send.post(&SendWr::write(target.remote(0), b"hello over UDP"))?;
    assert_eq!(a.waiter().wait(&mut cq)?.status, WcStatus::Success);
    let mut bytes = [0; 14];
    target.read(0, &mut bytes)?;
    println!("{} wrote to {}: {}", to_a.0, to_b.0, str::from_utf8(&bytes)?);
    Ok(())
}
