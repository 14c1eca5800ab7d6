//! Layouts and views of `bareverbs-ib-spec` on structures of a device.

extern crate std;

use std::vec::Vec;

use crate::{
    Ads, Bits, Buffer, CreateEqIn, CreateMkeyIn, CreateQpIn, HealthBuffer, InitialSeg, Layout, LayoutInfo, Mkc, Place, Qpc,
    View, ViewMut, WqeDatagramSeg, layouts,
};

#[test]
fn a_field_of_a_structure_inside_is_a_field_of_the_one_around_it() {
    // mlx5_ifc.h: create_qp_in.qpc is at byte 24, qpc.primary_address_path at 24 of it, ads.rlid in the dword at 4 of that.
    let rlid = CreateQpIn::QPC.sub(Qpc::PRIMARY_ADDRESS_PATH).field(Ads::RLID);
    assert_eq!(rlid.bits(), Bits { dword: 24 + 24 + 4, hi: 15, lo: 0 });
}

#[test]
fn a_layout_as_data_has_its_name_size_and_fields() {
    let LayoutInfo { name, size, fields } = CreateQpIn::INFO;
    assert_eq!((name, size), ("create_qp_in", 272));
    let qpc = fields.iter().find(|field| field.name == "qpc").unwrap();
    let Place::Sub { offset: 24, layout } = qpc.place else { panic!("{:?}", qpc.place) };
    assert_eq!((layout.name, layout.size), ("qpc", Qpc::SIZE));
    assert_eq!(qpc.place.bytes(), (24, 232));
    assert_eq!(fields.last().unwrap().place.bytes(), (272, 0));
}

#[test]
fn too_few_bytes_are_refused_and_more_are_kept() {
    let bytes = [0; Mkc::SIZE + 1];
    assert!(View::<Mkc>::new(&bytes[..Mkc::SIZE - 1]).is_none());
    assert!(View::<Mkc>::new(&bytes[..Mkc::SIZE]).is_some());
    assert_eq!(View::<Mkc>::new(&bytes).unwrap().as_bytes().len(), Mkc::SIZE + 1);
}

#[test]
fn numbers_are_big_endian() {
    let mut bytes = [0; Mkc::SIZE];
    let mut mkc = ViewMut::<Mkc>::new(&mut bytes).unwrap();
    mkc.set(Mkc::QPN, 0x12_3456).set(Mkc::MKEY_7_0, 0x78).set64(Mkc::START_ADDR, 0x0102_0304_0506_0708);
    assert_eq!((mkc.get(Mkc::QPN), mkc.get64(Mkc::START_ADDR)), (0x12_3456, 0x0102_0304_0506_0708));
    assert_eq!(bytes[4..8], [0x12, 0x34, 0x56, 0x78]);
    assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_buffer_has_the_bytes_of_its_structure_and_begins_with_zeros() {
    let mut buffer = Buffer::<Mkc>::zeroed();
    assert_eq!(buffer.as_bytes(), [0; 64]);
    buffer.view_mut().set(Mkc::QPN, 0x12_3456);
    assert_eq!((buffer.view().get(Mkc::QPN), &buffer.as_bytes()[4..8]), (0x12_3456, &[0x12, 0x34, 0x56, 0][..]));
    buffer.as_bytes_mut()[7] = 0x78;
    assert_eq!(buffer.view().get(Mkc::MKEY_7_0), 0x78);
}

#[test]
fn setting_a_field_leaves_every_other_bit() {
    let mut bytes = [0xff; Mkc::SIZE];
    ViewMut::<Mkc>::new(&mut bytes).unwrap().set(Mkc::LW, 0);
    let cleared: u32 = bytes.iter().map(|byte| byte.count_zeros()).sum();
    assert_eq!((cleared, bytes[2]), (1, 0b1111_0111));
}

#[test]
fn bytes_are_cut_to_the_field_and_a_short_value_leaves_the_rest() {
    let mut bytes = [0xaa; WqeDatagramSeg::SIZE];
    let mut segment = ViewMut::<WqeDatagramSeg>::new(&mut bytes).unwrap();
    segment.set_bytes(WqeDatagramSeg::RMAC, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(segment.view().bytes(WqeDatagramSeg::RMAC), [1, 2, 3, 4, 5, 6]);
    segment.set_bytes(WqeDatagramSeg::RMAC, &[9]);
    assert_eq!(segment.view().bytes(WqeDatagramSeg::RMAC), [9, 2, 3, 4, 5, 6]);
    assert_eq!((bytes[19], bytes[26]), (0xaa, 0xaa));
}

#[test]
fn a_structure_inside_is_reached_for_reading_and_writing() {
    let mut bytes = [0; CreateQpIn::SIZE];
    let mut command = ViewMut::<CreateQpIn>::new(&mut bytes).unwrap();
    command.sub(CreateQpIn::QPC).set(Qpc::PD, 0x0a_0b0c);
    assert_eq!(command.view().sub(CreateQpIn::QPC).get(Qpc::PD), 0x0a_0b0c);
    assert_eq!(bytes[24 + 5..24 + 8], [0x0a, 0x0b, 0x0c]);

    let mut registers = [0; InitialSeg::SIZE];
    registers[0x200 + 0x3d] = 0x0d;
    let segment = View::<InitialSeg>::new(&registers).unwrap();
    assert_eq!(segment.sub(InitialSeg::HEALTH_BUFFER).get(HealthBuffer::SYND), 0x0d);
}

#[test]
fn a_trailing_array_ends_where_the_bytes_end() {
    let mut bytes = [0; CreateEqIn::SIZE + 20];
    let mut command = ViewMut::<CreateEqIn>::new(&mut bytes).unwrap();
    assert!(command.set_tail64(CreateEqIn::PAS, 1, 0x1000));
    assert!(!command.set_tail64(CreateEqIn::PAS, 2, 0x2000));
    assert!(!command.set_tail64(CreateEqIn::PAS, usize::MAX, 0x2000));
    let command = command.view();
    assert_eq!(command.tail64(CreateEqIn::PAS, 0), Some(0));
    assert_eq!(command.tail64(CreateEqIn::PAS, 1), Some(0x1000));
    assert_eq!(command.tail64(CreateEqIn::PAS, 2), None);
    assert_eq!(command.tail64(CreateEqIn::PAS, usize::MAX), None);
    assert_eq!(command.tail(CreateEqIn::PAS).len(), 20);
}

#[test]
fn an_empty_trailing_array_is_empty() {
    let bytes = [0; CreateMkeyIn::SIZE];
    let command = View::<CreateMkeyIn>::new(&bytes).unwrap();
    assert_eq!(command.tail(CreateMkeyIn::KLM_PAS_MTT), []);
    assert_eq!(command.tail64(CreateMkeyIn::KLM_PAS_MTT, 0), None);
}

#[test]
fn every_layout_is_there_once() {
    let mut names: Vec<_> = layouts().map(|layout| layout.name).collect();
    assert!(["create_qp_in", "create_qp_out", "qpc", "mlx5_cqe64"].iter().all(|name| names.contains(name)), "{names:?}");
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}
