//! What the driver says of its device, and that it is so.

use bareverbs::error::{CreateCqError, CreateQpError};
use bareverbs::{Access, CqModeration, DeviceAttr, Guid, MaskedAtomics, MwType2, QpCap, QpInit, QpType};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::{DeviceConfig, FirmwareVersion, Limits};
use bareverbs_tests::{CAP, Node, refused};

fn node(config: DeviceConfig) -> Node {
    Node::new(World::new(WorldConfig::default()).add(config).unwrap())
}

const LIMITS: Limits = Limits {
    log_max_qp: 6,
    log_max_qp_size: 9,
    log_max_srq: 3,
    log_max_srq_size: 7,
    log_max_cq: 4,
    log_max_cq_size: 8,
    log_max_eq: 5,
    log_max_eq_size: 10,
    log_max_mkey: 10,
    log_max_pd: 5,
    log_max_msg: 20,
    log_max_reads: 3,
};

// contract: query-device
#[test]
fn attributes_are_those_of_the_device() {
    let (node_guid, system_guid) = (0x0002_c900_1234_5678, 0x0002_c900_8765_4321);
    let firmware = FirmwareVersion { major: 22, minor: 33, subminor: 1048 };
    let config = DeviceConfig { node_guid, system_guid, firmware, limits: LIMITS, ..DeviceConfig::with_lid(1) };
    let of = |config: &DeviceConfig| *node(config.clone()).verbs.query_device();
    let attr = of(&config);
    let expected = DeviceAttr {
        fw_ver: [22, 33, 1048],
        node_guid: Guid(node_guid),
        sys_image_guid: Guid(system_guid),
        vendor_id: 0x02c9,
        max_qp: 1 << 6,
        max_qp_wr: 1 << 9,
        max_srq: 1 << 3,
        // One entry of a list is always free.
        max_srq_wr: (1 << 7) - 1,
        max_cq: 1 << 4,
        max_cqe: 1 << 8,
        max_cq_moderation: CqModeration { count: 65535, period: 4095 },
        max_mr: 1 << 10,
        max_mw: 1 << 10,
        mw_type_2: MwType2::B,
        max_pd: 1 << 5,
        max_qp_rd_atom: 1 << 3,
        max_qp_init_rd_atom: 1 << 3,
        atomics: true,
        masked_atomics: MaskedAtomics { four: true, eight: true },
        access: Access::KNOWN - Access::RELAXED_ORDERING,
        max_msg_size: 1 << 20,
        phys_port_cnt: 1,
        // What follows from the layouts of the device and is shown where it is used.
        ..attr
    };
    assert_eq!(attr, expected);
    assert!(attr.max_sge >= 30 && attr.max_srq_sge >= 15 && attr.max_inline_data >= 512, "{attr:?}");

    let extended = of(&DeviceConfig { extended_atomics: false, ..config.clone() });
    assert_eq!(extended, DeviceAttr { masked_atomics: MaskedAtomics::default(), ..attr });
    let without = of(&DeviceConfig { atomics: false, ..config });
    let access = attr.access - Access::REMOTE_ATOMIC;
    assert_eq!(without, DeviceAttr { atomics: false, masked_atomics: MaskedAtomics::default(), access, ..attr });
}

/// The greatest numbers are taken, and one more is refused.
// contract: query-device
#[test]
fn limits_are_where_creation_ends() {
    let mut node = node(DeviceConfig { limits: LIMITS, ..DeviceConfig::with_lid(1) });
    let attr = *node.verbs.query_device();
    let pd = node.verbs.alloc_pd().unwrap();
    let cq = node.verbs.create_cq(attr.max_cqe).unwrap();
    assert_eq!(node.verbs.cq_info(cq).unwrap().entries, attr.max_cqe);
    refused!(node.verbs.create_cq(attr.max_cqe + 1), Einval, CreateCqError::Entries { .. });
    let cap = |cap| QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
    let least = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let most = [
        QpCap { max_recv_wr: attr.max_qp_wr, ..least },
        QpCap { max_send_sge: attr.max_sge, ..least },
        QpCap { max_recv_sge: attr.max_sge.min(16), ..least },
        QpCap { max_inline_data: attr.max_inline_data, ..least },
    ];
    for most in most {
        let qp = node.verbs.create_qp(&cap(most)).unwrap();
        node.verbs.destroy_qp(qp).unwrap();
    }
    let more = [
        QpCap { max_recv_wr: attr.max_qp_wr + 1, ..least },
        QpCap { max_send_wr: attr.max_qp_wr + 1, ..least },
        QpCap { max_send_sge: attr.max_sge + 1, ..least },
        QpCap { max_inline_data: attr.max_inline_data + 1, ..least },
    ];
    for more in more {
        refused!(node.verbs.create_qp(&cap(more)), Einval, CreateQpError::Capacity { .. });
    }
    assert!(node.verbs.create_qp(&cap(CAP)).is_ok());
    node.assert_no_findings();
}
