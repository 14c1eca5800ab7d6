//! Flow tables as commands create them.

use bareverbs_mlx5_spec::CmdStatus;

use super::harness::*;
use crate::engine::FlowTableSpec;

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
