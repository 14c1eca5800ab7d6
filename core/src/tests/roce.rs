//! Ethernet ports: GIDs that are set, paths that fit, and what is refused before the device is asked.

use core::net::Ipv4Addr;
use core::time::Duration;

use super::{Harness, MockError, attributes};
use crate::error::{AttachMcastError, CreateAhError, Errno, LinkFault, ModifyQpError, SetGidError};
use crate::platform::Instant;
use crate::{
    AddressVector, Gid, GidEntry, GlobalRoute, LinkLayer, Mac, PortAttr, PortState, QpAttr, QpAttrMask, QpState, QpType,
};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn ethernet(qp_type: QpType) -> Harness {
    let harness = Harness::with(qp_type, true);
    harness.device().link_layer = LinkLayer::Ethernet;
    harness
}

fn path() -> AddressVector {
    let route = GlobalRoute { dgid: Ipv4Addr::new(192, 0, 2, 1).into(), hop_limit: 64, ..GlobalRoute::default() };
    AddressVector { port_num: 1, grh: Some(route), dmac: Some(MAC), ..AddressVector::default() }
}

// contract: gid-set, gid-refused
#[test]
fn an_entry_reaches_the_device_as_it_was_given_or_not_at_all() {
    let mut harness = ethernet(QpType::Rc);
    let right = GidEntry { vlan: Some(4094), ..GidEntry::new([192, 0, 2, 9], MAC) };
    harness.verbs.set_gid(1, 3, &right).unwrap();
    harness.verbs.delete_gid(1, 3).unwrap();
    assert_eq!(harness.device().gids, [(3, Some(right)), (3, None)]);
    harness.device().gids.clear();
    let group: Gid = Ipv4Addr::new(239, 0, 0, 1).into();
    let of_group = Mac([1, 0, 0x5e, 0, 0, 1]);
    for (entry, error) in [
        (GidEntry { gid: Gid::default(), ..right }, SetGidError::Address),
        (GidEntry { gid: group, ..right }, SetGidError::Address),
        (GidEntry { mac: Mac::ZERO, ..right }, SetGidError::Mac { mac: Mac::ZERO }),
        (GidEntry { mac: of_group, ..right }, SetGidError::Mac { mac: of_group }),
        (GidEntry { vlan: Some(0), ..right }, SetGidError::Vlan { vlan: 0 }),
        (GidEntry { vlan: Some(4095), ..right }, SetGidError::Vlan { vlan: 4095 }),
    ] {
        let refused = harness.verbs.set_gid(1, 3, &entry).unwrap_err();
        assert_eq!((refused, refused.errno()), (error, Errno::Einval));
    }
    for port in [0, 2] {
        assert_eq!(harness.verbs.set_gid(port, 3, &right), Err(SetGidError::Port { port }));
        assert_eq!(harness.verbs.delete_gid(port, 3), Err(SetGidError::Port { port }));
    }
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.set_gid(1, 3, &right), Err(SetGidError::Device(MockError::Refused)));
    harness.device().link_layer = LinkLayer::InfiniBand;
    let refused = harness.verbs.delete_gid(1, 3).unwrap_err();
    assert_eq!((refused, refused.errno()), (SetGidError::InfiniBand { port: 1 }, Errno::Eopnotsupp));
    assert!(harness.device().gids.is_empty());
}

// contract: path-link-layer
#[test]
fn a_path_that_does_not_fit_does_not_reach_the_device() {
    let mut harness = ethernet(QpType::Rc);
    let (pd, qp) = (harness.pd, harness.qp);
    harness.verbs.create_ah(pd, &path()).unwrap();
    let wrong = AddressVector { dmac: None, ..path() };
    let refused = harness.verbs.create_ah(pd, &wrong).unwrap_err();
    assert_eq!((refused, refused.errno()), (CreateAhError::Path { fault: LinkFault::NoMac }, Errno::Einval));
    // From SQD a path may change.
    harness.verbs.modify_qp(qp, &attributes(QpState::Sqd), QpAttrMask::STATE).unwrap();
    let before = harness.device().modified.len();
    let mut modify = |av, alt_av, mask| {
        let attr = QpAttr { av, alt_av, ..attributes(QpState::Sqd) };
        harness.verbs.modify_qp(qp, &attr, QpAttrMask::STATE | mask)
    };
    let fault = |attribute, fault| Err(ModifyQpError::Path { attribute, fault });
    assert_eq!(modify(wrong, path(), QpAttrMask::AV), fault(QpAttrMask::AV, LinkFault::NoMac));
    let alternate = modify(path(), path(), QpAttrMask::ALT_PATH);
    assert_eq!(alternate, fault(QpAttrMask::ALT_PATH, LinkFault::AlternatePath));
    // What is not named is not looked at.
    modify(path(), wrong, QpAttrMask::AV).unwrap();
    assert_eq!(harness.device().modified.len(), before + 1);
}

/// A group of IPv4 is one on an Ethernet port alone.
#[test]
fn groups_are_those_of_the_link_layer() {
    let mut harness = ethernet(QpType::Ud);
    let qp = harness.qp;
    let (ipv4, ipv6) = (Gid::from(Ipv4Addr::new(239, 0, 0, 1)), Gid([0xff; 16]));
    let unicast: Gid = Ipv4Addr::new(192, 0, 2, 1).into();
    for group in [ipv4, ipv6] {
        harness.verbs.attach_mcast(qp, &group).unwrap();
    }
    assert_eq!(harness.verbs.attach_mcast(qp, &unicast), Err(AttachMcastError::NoGroup));
    harness.device().link_layer = LinkLayer::InfiniBand;
    assert_eq!(harness.verbs.attach_mcast(qp, &ipv4), Err(AttachMcastError::NoGroup));
    for group in [ipv4, ipv6] {
        harness.verbs.detach_mcast(qp, &group).unwrap();
    }
}

#[test]
fn an_ethernet_port_is_waited_for_without_a_lid() {
    let mut harness = Harness::new();
    let port = |state| PortAttr { link_layer: LinkLayer::Ethernet, state, ..PortAttr::default() };
    let later = Instant::from_nanos(1_000_000_000);
    harness.device().ports =
        [(Instant::default(), port(PortState::Down)), (later, port(PortState::Active))].into_iter().collect();
    let found = harness.verbs.wait_active(1, Duration::from_secs(9)).unwrap();
    assert_eq!(found, port(PortState::Active));
    assert!(harness.device().now >= later);
}
