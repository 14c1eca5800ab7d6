//! Compares every field that `bareverbs-ib-spec` and `bareverbs-mlx5-spec` define with its published offset.
//!
//! - `tests/data/ifc-offsets.tsv` has the structures of `mlx5_ifc.h` as a C compiler lays them out.
//! - `tests/data/wqe-offsets.tsv` has structures that `mlx5_ifc.h` lacks, with a source in each row.
//! - `tests/data/ibta-offsets.tsv` has the structures of the InfiniBand architecture.
//! - `tests/data/reserved-offsets.tsv` has fields in bits that `mlx5_ifc.h` reserves.
//!
//! The columns are structure, field, byte offset of the field's first byte, bits, `dword:hi..lo` and source. A line
//! `#structure size` comes before the fields of each structure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bareverbs_mlx5_spec::{
    AccessMode, Bits, CapabilityType, CmdDeliveryStatus, CmdOpcode, CmdStatus, CqeOpcode, CqeSyndrome, EventType, FieldInfo,
    LayoutInfo, Place, PortChange, QpcSt, QpcState, RegisterId, SubnetAttribute, WqeOpcode,
};

const IFC: &str = include_str!("../data/ifc-offsets.tsv");
const WQE: &str = concat!(include_str!("../data/wqe-offsets.tsv"), include_str!("../data/ibta-offsets.tsv"));
const RESERVED: &str = include_str!("../data/reserved-offsets.tsv");

/// Layouts that are not in `mlx5_ifc.h`, and why.
const NOT_IN_IFC: &[(&str, &str)] = &[
    ("ib_smp", MANAGEMENT),
    ("ib_node_info", MANAGEMENT),
    ("ib_port_info", MANAGEMENT),
    ("ib_mad_notice_attr", MANAGEMENT),
    ("ib_notice_256", MANAGEMENT),
    ("ib_notice_257_258", MANAGEMENT),
    ("ib_mad_hdr", COMMUNICATION),
    ("cm_req_path", COMMUNICATION),
    ("cm_req_msg", COMMUNICATION),
    ("cm_mra_msg", COMMUNICATION),
    ("cm_rej_msg", COMMUNICATION),
    ("cm_rep_msg", COMMUNICATION),
    ("cm_rtu_msg", COMMUNICATION),
    ("cm_dreq_msg", COMMUNICATION),
    ("cm_drep_msg", COMMUNICATION),
    ("cm_lap_msg", COMMUNICATION),
    ("cm_apr_msg", COMMUNICATION),
    ("cm_sidr_req_msg", COMMUNICATION),
    ("cm_sidr_rep_msg", COMMUNICATION),
    ("cma_hdr", COMMUNICATION),
    ("lrh", PACKET),
    ("grh", PACKET),
    ("bth", PACKET),
    ("xrceth", PACKET),
    ("deth", PACKET),
    ("rxe_reth", PACKET),
    ("rxe_atmeth", PACKET),
    ("rxe_aeth", PACKET),
    ("rxe_atmack", PACKET),
    ("rxe_immdt", PACKET),
    ("rxe_ieth", PACKET),
    ("ethernet_addresses", INTERNET),
    ("vlan_tag", INTERNET),
    ("iphdr", INTERNET),
    ("udphdr", INTERNET),
    ("mlx5_wqe_ctrl_seg", WORK_QUEUE),
    ("mlx5_wqe_raddr_seg", WORK_QUEUE),
    ("mlx5_wqe_atomic_seg", WORK_QUEUE),
    ("masked_cswap32_seg", WORK_QUEUE),
    ("masked_fadd32_seg", WORK_QUEUE),
    ("masked_cswap64_seg", WORK_QUEUE),
    ("masked_fadd64_seg", WORK_QUEUE),
    ("mlx5_wqe_data_seg", WORK_QUEUE),
    ("mlx5_wqe_inl_data_seg", WORK_QUEUE),
    ("mlx5_wqe_datagram_seg", WORK_QUEUE),
    ("mlx5_wqe_eth_seg", WORK_QUEUE),
    ("mlx5_wqe_xrc_seg", WORK_QUEUE),
    ("mlx5_wqe_umr_ctrl_seg", WORK_QUEUE),
    ("mlx5_klm", WORK_QUEUE),
    ("mlx5_wqe_umr_repeat_block_seg", WORK_QUEUE),
    ("mlx5_wqe_umr_repeat_ent_seg", WORK_QUEUE),
    ("mlx5_wqe_srq_next_seg", WORK_QUEUE),
    ("mlx5_cqe64", "a completion is a C structure of mlx5dv.h"),
    ("mlx5_err_cqe", "a completion is a C structure of mlx5dv.h"),
    ("mlx5_dbrec_qp", DOORBELL),
    ("mlx5_dbrec_cq", DOORBELL),
    ("mlx5_cq_arm", DOORBELL),
    ("mlx5_eq_doorbell", DOORBELL),
    ("create_cq_in_user_memory", PROGRAMS),
    ("create_qp_in_user_memory", PROGRAMS),
    ("create_mkey_in_user_memory", PROGRAMS),
];
const MANAGEMENT: &str = "a packet or attribute of subnet management is defined by the IBTA";
const COMMUNICATION: &str = "a datagram of communication management is defined by the IBTA";
const PACKET: &str = "a header of a packet is defined by the IBTA";
const INTERNET: &str = "a header before UDP's payload is defined by the IEEE or the IETF";
const WORK_QUEUE: &str = "a segment of a work request is a C structure of mlx5dv.h or wqe.h";
const PROGRAMS: &str = "Linux passes it on from programs and has no names for it";
const DOORBELL: &str = "doorbells are words that code builds by shifts";

/// Every layout of both packages.
fn layouts() -> impl Iterator<Item = &'static LayoutInfo> {
    bareverbs_ib_spec::layouts().chain(bareverbs_mlx5_spec::layouts())
}

struct Published<'a> {
    size: usize,
    fields: BTreeMap<&'a str, Row<'a>>,
}

#[derive(Debug)]
struct Row<'a> {
    offset: usize,
    bits: usize,
    place: &'a str,
}

fn number(text: &str) -> usize {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| usize::from_str_radix(hex, 16)).unwrap()
}

fn published(table: &str) -> BTreeMap<&str, Published<'_>> {
    let mut structures = BTreeMap::new();
    for line in table.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        match columns[..] {
            [head, size] => {
                let name = head.strip_prefix('#').unwrap();
                let structure = Published { size: number(size), fields: BTreeMap::new() };
                assert!(structures.insert(name, structure).is_none(), "{name} twice");
            }
            [structure, field, offset, bits, place, ..] => {
                let row = Row { offset: number(offset), bits: number(bits), place };
                let fields = &mut structures.get_mut(structure).unwrap().fields;
                assert!(fields.insert(field, row).is_none(), "{structure}.{field} twice");
            }
            _ => panic!("not a row: {line}"),
        }
    }
    structures
}

/// Returns what is wrong with a field, if anything is.
fn check_field(field: &FieldInfo, fields: &BTreeMap<&str, Row<'_>>) -> Result<(), String> {
    let array = format!("{}[]", field.name);
    let name = if matches!(field.place, Place::Tail { .. }) { array.as_str() } else { field.name };
    let row = fields.get(name).ok_or_else(|| "is not published".to_owned())?;
    let agrees = match field.place {
        Place::Bits(Bits { dword, hi, lo }) => row.place == format!("{dword}:{hi}..{lo}"),
        Place::U64 { offset } => (row.offset, row.bits) == (offset, 64),
        Place::Bytes { offset, len } => (row.offset, row.bits) == (offset, 8 * len),
        Place::Sub { offset, layout } => (row.offset, row.bits) == (offset, 8 * layout.size),
        Place::Tail { offset, .. } => (row.offset, row.bits) == (offset, 0),
    };
    agrees.then_some(()).ok_or_else(|| format!("is {:?}, published as {row:?}", field.place))
}

/// Returns everything that is wrong with a layout. `reserved` has the fields that lie in reserved bits.
fn check(
    layout: &LayoutInfo,
    structures: &BTreeMap<&str, Published<'_>>,
    reserved: &BTreeMap<&str, Published<'_>>,
) -> Vec<String> {
    let Some(structure) = structures.get(layout.name) else {
        return vec![format!("{} is not published", layout.name)];
    };
    let size = (layout.size != structure.size)
        .then(|| format!("{} has {} bytes, published with {}", layout.name, layout.size, structure.size));
    let fields = layout.fields.iter().filter_map(|field| {
        let rows = match (field.reserved, reserved.get(layout.name)) {
            (None, _) => &structure.fields,
            (Some(_), Some(reserved)) => &reserved.fields,
            (Some(source), None) => return Some(format!("{}.{} has no row for {source}", layout.name, field.name)),
        };
        let wrong = check_field(field, rows).err()?;
        Some(format!("{}.{} {wrong}", layout.name, field.name))
    });
    size.into_iter().chain(fields).collect()
}

fn outside_ifc(layout: &LayoutInfo) -> bool {
    NOT_IN_IFC.iter().any(|(name, _)| *name == layout.name)
}

#[test]
fn every_field_is_where_it_was_published() {
    let (ifc, wqe, reserved) = (published(IFC), published(WQE), published(RESERVED));
    let wrong: Vec<String> =
        layouts().flat_map(|layout| check(layout, if outside_ifc(layout) { &wqe } else { &ifc }, &reserved)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(layouts().map(|layout| layout.fields.len()).sum::<usize>() > 1000, "the list of layouts lost most of its fields");
}

#[test]
fn the_exceptions_are_needed() {
    let ifc = published(IFC);
    for (name, reason) in NOT_IN_IFC {
        assert!(!ifc.contains_key(name), "{name} is in mlx5_ifc.h, though {reason}");
        assert!(layouts().any(|layout| layout.name == *name), "{name} is no layout");
    }
    for name in published(WQE).keys() {
        assert!(NOT_IN_IFC.iter().any(|(listed, _)| listed == name), "{name} is published but not listed");
    }
    for (name, structure) in published(RESERVED) {
        let layout = layouts().find(|layout| layout.name == name).expect("a layout");
        for field in structure.fields.keys() {
            assert!(!ifc[name].fields.contains_key(field), "{name}.{field} is in mlx5_ifc.h");
            let defined = layout.fields.iter().find(|defined| defined.name == *field);
            assert!(defined.is_some_and(|defined| defined.reserved.is_some()), "{name}.{field} is no reserved field");
        }
    }
}

#[test]
fn every_structure_inside_is_a_layout_of_its_own() {
    for layout in layouts() {
        for field in layout.fields {
            if let Place::Sub { layout: inner, .. } = field.place {
                let known = layouts().any(|other| other.name == inner.name && other.size == inner.size);
                assert!(known, "{}.{}: {}", layout.name, field.name, inner.name);
            }
        }
    }
}

/// Collects the published names of the layouts that the sources under `folder` define.
fn layouts_in_sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            layouts_in_sources(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        // Tests at the end of a file define others.
        let code =
            text.lines().take_while(|line| *line != "#[cfg(test)]").map(str::trim_start).filter(|line| !line.starts_with("//"));
        let mut in_layout = false;
        for line in code {
            if line == "crate::layout! {" {
                in_layout = true;
            } else if in_layout && line.starts_with(char::is_uppercase) {
                found.push(line.split('"').nth(1).unwrap().to_owned());
                in_layout = false;
            }
        }
        assert!(!in_layout, "{}: a layout without a head", path.display());
    }
}

#[test]
fn the_list_has_every_layout_of_the_sources_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut defined = Vec::new();
    for folder in ["core/ib-spec/src", "backends/mlx5-spec/src"] {
        layouts_in_sources(&root.join(folder), &mut defined);
    }
    defined.sort_unstable();
    let mut listed: Vec<&str> = layouts().map(|layout| layout.name).collect();
    listed.sort_unstable();
    assert_eq!(listed, defined);
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), listed.len(), "a layout is listed twice");
}

/// Collects the Rust sources under `folder`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("target") => {}
            true => sources(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn no_field_is_defined_outside_of_the_specification() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    ["core/src", "backends/mlx5", "backends/sim", "hosted", "fuzz", "tests/src"]
        .iter()
        .for_each(|folder| sources(&root.join(folder), &mut found));
    assert!(found.len() > 100, "{}", found.len());
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        for definition in ["layout! {", "_spec::layout", "_spec::define"] {
            assert!(!text.contains(definition), "{}: {definition}", path.display());
        }
    }
}

#[test]
fn codes_convert_both_ways() {
    macro_rules! check {
        ($($codes:ident),+) => {$(
            for code in $codes::ALL {
                assert_eq!($codes::from_code(code.code()), Some(*code), "{} has the number of another", code.name());
            }
            let names: BTreeSet<&str> = $codes::ALL.iter().map(|code| code.name()).collect();
            assert_eq!(names.len(), $codes::ALL.len());
        )+};
    }
    check!(
        AccessMode,
        CapabilityType,
        CmdDeliveryStatus,
        CmdOpcode,
        CmdStatus,
        CqeOpcode,
        CqeSyndrome,
        EventType,
        PortChange,
        QpcSt,
        QpcState,
        RegisterId,
        SubnetAttribute,
        WqeOpcode
    );
    assert_eq!(CmdOpcode::from_code(0xffff), None);
}

/// The check itself: each kind of mistake in a layout is found, and named.
mod mistakes {
    use super::*;

    const TABLE: &str = "#right\t24\nright\ta\t0x0\t4\t0:31..28\nright\tb\t0x8\t64\t8:31..-32\nright\tc\t0x10\t48\t16:31..-16\n\
                         right\td[]\t0x18\t0\t24:31..32\n";

    const RESERVED_TABLE: &str = "#right\t24\nright\te\t0x0\t1\t0:0..0\n";

    fn findings(name: &'static str, size: usize, fields: &'static [FieldInfo]) -> Vec<String> {
        check(&LayoutInfo { name, size, fields }, &published(TABLE), &published(RESERVED_TABLE))
    }

    const fn field(name: &'static str, place: Place) -> FieldInfo {
        FieldInfo { name, place, reserved: None }
    }

    #[test]
    fn the_right_layout_passes() {
        const RIGHT: &[FieldInfo] = &[
            field("a", Place::Bits(Bits { dword: 0, hi: 31, lo: 28 })),
            field("b", Place::U64 { offset: 8 }),
            field("c", Place::Bytes { offset: 16, len: 6 }),
            field("d", Place::Tail { offset: 24, entry: 8 }),
        ];
        assert_eq!(findings("right", 24, RIGHT), [""; 0]);
    }

    #[test]
    fn a_wrong_size_or_an_unknown_structure_is_found() {
        assert_eq!(findings("right", 20, &[]), ["right has 20 bytes, published with 24"]);
        assert_eq!(findings("wrong", 24, &[]), ["wrong is not published"]);
    }

    #[test]
    fn a_field_of_another_name_is_found() {
        const FIELDS: &[FieldInfo] = &[field("e", Place::Bits(Bits { dword: 0, hi: 31, lo: 28 }))];
        assert_eq!(findings("right", 24, FIELDS), ["right.e is not published"]);
    }

    #[test]
    fn a_field_in_reserved_bits_is_held_against_its_own_table() {
        const fn reserved(name: &'static str, lo: u32) -> FieldInfo {
            FieldInfo { name, place: Place::Bits(Bits { dword: 0, hi: lo, lo }), reserved: Some("a source") }
        }
        assert_eq!(findings("right", 24, const { &[reserved("e", 0)] }), [""; 0]);
        assert_eq!(findings("right", 24, const { &[reserved("e", 1)] }).len(), 1);
        assert_eq!(findings("right", 24, const { &[reserved("a", 0)] }), ["right.a is not published"]);
    }

    #[test]
    fn a_field_one_bit_or_one_dword_off_is_found() {
        for (dword, hi, lo) in [(0, 30, 27), (0, 31, 27), (0, 30, 28), (4, 31, 28)] {
            let wrong = FieldInfo { name: "a", place: Place::Bits(Bits { dword, hi, lo }), reserved: None };
            assert!(check_field(&wrong, &published(TABLE)["right"].fields).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_offset_or_length_is_found() {
        const FIELDS: &[FieldInfo] = &[
            field("b", Place::U64 { offset: 0 }),
            field("c", Place::U64 { offset: 16 }),
            field("c", Place::Bytes { offset: 16, len: 8 }),
            field("c", Place::Bytes { offset: 12, len: 6 }),
            field("d", Place::Tail { offset: 16, entry: 8 }),
            field("c", Place::Tail { offset: 16, entry: 8 }),
        ];
        assert_eq!(findings("right", 24, FIELDS).len(), FIELDS.len());
    }
}
