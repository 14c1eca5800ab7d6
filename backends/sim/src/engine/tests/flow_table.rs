//! Flow tables as commands create them.

use bareverbs_mlx5_spec::{CmdStatus, flow_action};

use super::harness::*;
use crate::engine::nic::{FlowTableSpec, MatchCriteria, Rule};

#[test]
fn a_table_has_a_level_and_a_size_that_the_device_has() {
    let mut host = Host::new(1);
    let bad = Err(CmdStatus::BadParam);
    let mut create = |level, log_size| {
        let number = host.engine.create_flow_table(FlowTableSpec { level, log_size, miss: None });
        number.map(|number| host.engine.destroy_flow_table(number).unwrap())
    };
    assert_eq!((create(0, 0), create(96, 16)), (Ok(()), Ok(())));
    assert_eq!((create(97, 0), create(0, 17)), (bad, bad));
}

/// So no table leads back to itself.
#[test]
fn a_table_leads_to_one_of_a_greater_level() {
    let mut host = Host::new(1);
    let spec = |level, miss| FlowTableSpec { level, log_size: 4, miss };
    let high = host.engine.create_flow_table(spec(7, None)).unwrap();
    for level in [7, 8] {
        assert_eq!(host.engine.create_flow_table(spec(level, Some(high))), Err(CmdStatus::BadParam), "{level}");
    }
    let low = host.engine.create_flow_table(spec(6, Some(high))).unwrap();
    assert_eq!(host.engine.destroy_flow_table(high), Err(CmdStatus::BadResState), "the other leads to it");
    assert_eq!(host.engine.set_flow_table_miss(high, Some(low)), Err(CmdStatus::BadParam));
    host.engine.set_flow_table_miss(low, None).unwrap();
    host.engine.destroy_flow_table(high).unwrap();
    assert_eq!(host.engine.set_flow_table_miss(high, None), Err(CmdStatus::BadRes));
}

/// Its index must be one of its group.
#[test]
fn a_rule_lies_in_its_group() {
    let mut host = Host::new(1);
    let table = host.engine.create_flow_table(FlowTableSpec { level: 0, log_size: 4, miss: None }).unwrap();
    let criteria = || MatchCriteria { enable: 1, mask: [0xff; 128] };
    let group = host.engine.create_flow_group(table, (4, 7), criteria()).unwrap();
    for range in [(7, 9), (5, 6), (0, 4), (9, 8), (8, 16)] {
        assert_eq!(host.engine.create_flow_group(table, range, criteria()), Err(CmdStatus::BadParam), "{range:?}");
    }
    let rule =
        |group| Rule { group, tag: 1, action: flow_action::ALLOW, value: [0; 128], destinations: vec![], counters: vec![] };
    for (index, wanted) in [(3, Err(CmdStatus::BadParam)), (4, Ok(())), (7, Ok(())), (8, Err(CmdStatus::BadParam))] {
        assert_eq!(host.engine.set_flow_rule(table, index, rule(group)), wanted, "{index}");
        assert_eq!(host.engine.flow_rule(table, index).is_some(), wanted.is_ok(), "{index}");
    }
    assert_eq!(host.engine.set_flow_rule(table, 5, rule(group + 1)), Err(CmdStatus::BadParam));
    assert_eq!(host.engine.destroy_flow_table(table), Err(CmdStatus::BadResState), "it has a group");
}
