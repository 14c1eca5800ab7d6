//! What the driver learns of a port, from a function with virtual ports (`ib_virt`) and from one without.

use core::time::Duration;

use bareverbs::error::{Errno, ModifyQpError, WaitActiveError};
use bareverbs::platform::Clock;
use bareverbs::{AddressVector, Gid, GlobalRoute, Lid, PhysState, PortAttr, PortState, QpAttr};
use bareverbs_mlx5::{Config, Error};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::{DeviceConfig, LinkSpeed, LinkWidth, Profile};
use bareverbs_tests::{Connection, Driver, Node, end, instant, machine, rc_steps, verbs};

fn node(config: DeviceConfig) -> Node {
    Node::new(World::new(WorldConfig::default()).add(config).unwrap())
}

/// Attributes, GIDs and P_Keys of port 1.
fn query(config: &DeviceConfig, ib_virt: bool) -> (PortAttr, Vec<Gid>, Vec<u16>) {
    let mut node = node(DeviceConfig { ib_virt, ..config.clone() });
    let port = node.verbs.query_port(1).unwrap();
    let gids = (0..port.gid_tbl_len).map(|index| node.verbs.query_gid(1, index).unwrap()).collect();
    let pkeys = (0..port.pkey_tbl_len).map(|index| node.verbs.query_pkey(1, index).unwrap()).collect();
    assert!(node.verbs.query_port(2).is_err() && node.verbs.query_gid(1, port.gid_tbl_len).is_err());
    assert!(node.verbs.query_pkey(1, port.pkey_tbl_len).is_err());
    node.assert_no_findings();
    // The agent names capabilities that a driver cannot set, and the context has none of them.
    (PortAttr { cap_mask: 0, ..port }, gids, pkeys)
}

// contract: query-port
#[test]
fn a_port_is_the_same_either_way() {
    let (widths, speeds) = (
        [LinkWidth::X1, LinkWidth::X2, LinkWidth::X4, LinkWidth::X8, LinkWidth::X12],
        [
            (LinkSpeed::Sdr, 2),
            (LinkSpeed::Ddr, 5),
            (LinkSpeed::Qdr, 10),
            (LinkSpeed::Fdr10, 10),
            (LinkSpeed::Fdr, 14),
            (LinkSpeed::Edr, 25),
            (LinkSpeed::Hdr, 50),
            (LinkSpeed::Ndr, 100),
        ],
    );
    let mut configs = Vec::new();
    for (lid, width) in (1..).zip(widths) {
        configs.push((DeviceConfig { link_width: width, ..DeviceConfig::with_lid(lid) }, None));
    }
    for (lid, (speed, gbps)) in (0x100..).zip(speeds) {
        let config = DeviceConfig { link_width: LinkWidth::X1, link_speed: speed, ..DeviceConfig::with_lid(lid) };
        configs.push((config, Some(gbps)));
    }
    for (lid, mtu) in (0xbff0..).zip([256, 512, 1024, 2048, 4096]) {
        let gid_prefix = 0xfec0_0000_0000_0000 | u64::from(mtu);
        configs.push((DeviceConfig { mtu, gid_prefix, sm_lid: lid - 1, ..DeviceConfig::with_lid(lid) }, None));
    }
    configs.push((DeviceConfig { link_up: false, ..instant(9) }, Some(0)));
    for (config, gbps) in configs {
        let [with, without] = [true, false].map(|ib_virt| query(&config, ib_virt));
        assert_eq!(with, without, "{config:?}");
        let (port, gids, pkeys) = with;
        assert_eq!((port.lid.get(), port.port_guid.0, port.max_mtu.bytes()), (config.lid, config.port_guid, config.mtu.into()));
        assert_eq!((port.state == PortState::Active, gids[0].0), (config.link_up, config.gid()));
        assert_eq!((pkeys[0], pkeys[1], pkeys.len(), gids.len()), (0xffff, 0, 128, 8));
        assert!(gbps.is_none_or(|gbps| port.active_speed_gbps == gbps), "{port:?}");
    }
}

/// A subnet that routes by GID alone (Linux `rdma_check_ah_attr`, libmlx5 `mlx5_create_ah`).
#[test]
fn a_path_without_a_global_route_is_refused_where_the_port_requires_one() {
    for grh_required in [false, true] {
        let config = DeviceConfig { grh_required, ..DeviceConfig::profile(Profile::Instant, 7) };
        let mut node = node(config);
        let end = end(&mut node, true);
        let steps = rc_steps(&Connection::default(), Lid::new(7), end.qpn, 0, 0);
        node.verbs.modify_qp(end.qp, &steps[0].0, steps[0].1).unwrap();
        let local = node.verbs.modify_qp(end.qp, &steps[1].0, steps[1].1);
        assert_eq!(node.verbs.query_port(1).unwrap().grh_required, grh_required);
        if !grh_required {
            assert_eq!(local, Ok(()));
            continue;
        }
        let error = local.unwrap_err();
        assert_eq!((error, error.errno()), (ModifyQpError::Device(Error::GrhRequired), Errno::Einval));
        assert!(error.to_string().contains("requires a global route (GRH)"), "{error}");
        let gid = node.verbs.query_gid(1, 0).unwrap();
        let grh = Some(GlobalRoute { dgid: gid, hop_limit: 1, ..GlobalRoute::default() });
        let attr = QpAttr { av: AddressVector { grh, ..steps[1].0.av }, ..steps[1].0 };
        node.verbs.modify_qp(end.qp, &attr, steps[1].1).unwrap();
        node.assert_no_findings();
    }
}

/// `ibstat` of unused ports of a ConnectX-5 and a ConnectX-6: Down, Disabled, LID 65535, subnet manager at LID 0.
#[test]
fn a_port_without_a_cable_is_disabled_and_the_error_says_so() {
    for profile in [Profile::Simulated, Profile::ConnectX5, Profile::ConnectX6] {
        for ib_virt in [true, false] {
            let mut node = node(DeviceConfig { link_up: false, ib_virt, ..DeviceConfig::profile(profile, 7) });
            let port = node.verbs.query_port(1).unwrap();
            // PortInfo of such a port is not published: the agent says 0, as of any port without a LID.
            let lid = if ib_virt { 0xffff } else { 0 };
            assert_eq!((port.state, port.phys_state), (PortState::Down, PhysState::Disabled), "{profile}, {ib_virt}");
            assert_eq!((port.lid.get(), port.sm_lid.get()), (lid, 0), "{profile}, {ib_virt}");
            let error = node.verbs.wait_active(1, Duration::from_secs(2)).unwrap_err();
            assert!(matches!(error, WaitActiveError::Disabled { port: 1, phys_state: PhysState::Disabled, .. }), "{error}");
            // Plugged in later.
            node.host.with_device(|device| device.set_link(true));
            assert_eq!(node.verbs.wait_active(1, Duration::from_secs(60)).unwrap().lid.get(), 7, "{profile}, {ib_virt}");
            node.assert_no_findings();
        }
    }
}

/// Cards report the MTU of the link (`ibv_devinfo` of a ConnectX-6 and a ConnectX-7); one that reports none gets the least one.
#[test]
fn a_port_that_is_down_has_an_mtu_whether_its_card_reports_one_or_not() {
    for (mtu_while_down, mtu) in [(true, 4096), (false, 256)] {
        let config = DeviceConfig { link_up: false, mtu_while_down, ..DeviceConfig::profile(Profile::ConnectX6, 7) };
        let mut node = node(config);
        let port = node.verbs.query_port(1).unwrap();
        assert_eq!((port.state, port.max_mtu.bytes(), port.active_mtu.bytes()), (PortState::Down, 4096, mtu));
        node.host.with_device(|device| device.set_link(true));
        let port = node.verbs.wait_active(1, Duration::from_secs(60)).unwrap();
        assert_eq!(port.active_mtu.bytes(), 4096, "with a link it is that of the link");
        node.assert_no_findings();
    }
}

#[test]
fn link_and_lid_may_come_late_either_way() {
    let (training, delay) = (Duration::from_secs(3), Duration::from_secs(10));
    for ib_virt in [true, false] {
        let late = DeviceConfig { link_training: training, lid_delay: delay, no_lid: 0xffff, ..DeviceConfig::with_lid(7) };
        let host = World::new(WorldConfig::default()).add(DeviceConfig { ib_virt, ..late }).unwrap();
        // `Node::new` would wait for the port.
        let driver = Driver::bring_up(machine(&host), &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
        let mut node = Node { verbs: verbs(driver), host };
        let mut seen = Vec::new();
        let start = node.host.clock().now();
        let port = node
            .verbs
            .wait_active_with(1, Duration::from_secs(60), |attr, _| {
                seen.push((attr.state, attr.phys_state));
                core::ops::ControlFlow::Continue(())
            })
            .unwrap();
        seen.dedup();
        assert_eq!(seen, [(PortState::Down, PhysState::Training), (PortState::Init, PhysState::LinkUp)], "{ib_virt}");
        assert_eq!((port.lid.get(), port.is_usable()), (7, true));
        let waited = node.host.clock().now().since(start);
        assert!((12..14).contains(&waited.as_secs()), "{waited:?}");
        node.assert_no_findings();
    }
}
