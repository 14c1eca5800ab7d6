//! Indirect keys as libmlx5 configures them through send requests: lists, and layouts that repeat.

use super::super::PageSource;
use super::harness::*;
use super::key::{bind_at_b, one};
use bareverbs_mlx5_spec::{CmdStatus, Mkc, View, ViewMut};

/// Returns an indirect key as libmlx5 makes it (`mlx5dv_create_mkey`): free, changed by send requests, no variant, room for
/// four entries.
fn layout_key(host: &mut Host) -> u32 {
    let mut mkc = [0; 64];
    ViewMut::<Mkc>::new(&mut mkc)
        .unwrap()
        .set(Mkc::FREE, 1)
        .set(Mkc::UMR_EN, 1)
        .set(Mkc::LR, 1)
        .set(Mkc::ACCESS_MODE_1_0, 2)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 4)
        .set(Mkc::PD, PD);
    host.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&[]))).unwrap() << 8
}

/// What `mlx5dv_wr_mkey_configure` with access flags and a layout writes after the control segment, recorded from
/// rdma-core 56.1: inline, four octowords; length, variant, rights and the free bit change; local write.
fn configure(len: u32, entries: [u32; 16]) -> Vec<u8> {
    let mut body = words(&[1 << 31, 4 << 16, 0, 0x203c_2001]);
    body.resize(48, 0);
    body.extend(words(&[0x0000_0800, 0xffff_ff00, 0, 0, 0, 0, 0, len, 0, 0, 0, 0, 0, 0, 0, 0]));
    body.extend(words(&entries));
    body
}

#[test]
fn a_key_over_what_repeats() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, region)) = pair.buffers(8192);
    let key = layout_key(&mut pair.b);
    let (high, low) = ((at_b >> 32) as u32, at_b as u32);
    // Three rounds of 8 bytes of every 10 at two places.
    let entries = [0x10, 0x400, 3, 2, 0x000a_0008, region, high, low, 0x000a_0008, region, high, low + 64, 0, 0, 0, 0];
    assert_eq!(bind_at_b(&mut pair, key, &configure(48, entries)), 0);
    let message: Vec<u8> = (1..=48).collect();
    pair.a.write(at_a, &message);
    pair.b.post_receive(&mut pair.qb, &[(0, 48, key)]);
    assert_eq!(one(&mut pair, 0x0a, 0, &data(at_a, 48, key_a)), 0);
    for round in 0..3_usize {
        let at = at_b + 10 * round as u64;
        assert_eq!(pair.b.read(at, 10), [&message[16 * round..16 * round + 8], &[0, 0]].concat());
        assert_eq!(pair.b.read(at + 64, 10), [&message[16 * round + 8..16 * round + 16], &[0, 0]].concat());
    }
    // DeviceContext what the entries reach, and a stride that leaves the region: no bind.
    assert_eq!(bind_at_b(&mut pair, key, &configure(49, entries)), 6);
    let mut pair = Pair::new();
    let (_, (at_b, region)) = pair.buffers(4096);
    let key = layout_key(&mut pair.b);
    let (high, low) = ((at_b >> 32) as u32, at_b as u32);
    let entries = [8, 0x400, 3, 1, 0x0800_0008, region, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bind_at_b(&mut pair, key, &configure(24, entries)), 6);
}

#[test]
fn a_key_over_a_list_is_invalidated_by_any_queue_pair_of_its_domain() {
    let mut pair = Pair::new();
    let (_, (at_b, region)) = pair.buffers(4096);
    let key = layout_key(&mut pair.b);
    let (high, low) = ((at_b >> 32) as u32, at_b as u32);
    let entries = [8, region, high, low, 8, region, high, low + 64, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bind_at_b(&mut pair, key, &configure(16, entries)), 0);
    // libmlx5 on IBV_WR_LOCAL_INV: inline and translation offset set, queue pair checked; variant, queue pair, free bit.
    let mut body = words(&[0x9800_0000, 0, 0, 0x2000_6000]);
    body.resize(48, 0);
    body.extend(words(&[1 << 30, 0xffff_ff00]));
    body.resize(48 + 64, 0);
    assert_eq!(bind_at_b(&mut pair, key, &body), 0);
    assert_eq!(bind_at_b(&mut pair, key, &body), 6, "free already");
}

#[test]
fn no_key_looks_like_the_mark_of_what_repeats() {
    let mut host = Host::new(1);
    let at = host.alloc(4096);
    let keys: Vec<u32> = (0..4).map(|_| layout_key(&mut host)).collect();
    assert_eq!(keys, [0x200, 0x300, 0x500, 0x600]);
    let fixed = host.mkey(at, 4096, 1);
    assert_eq!(fixed & 0xff, 0x42);
}

/// Creates a key with a list of that many bytes in all, which requests may change.
fn key_with_list(host: &mut Host, list: &[u8], len: u64) -> u32 {
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, 0xf);
    view.set(Mkc::UMR_EN, 1)
        .set(Mkc::ACCESS_MODE_1_0, 2)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, (list.len() / 16).max(4) as u32)
        .set(Mkc::PD, PD)
        .set64(Mkc::LEN, len);
    host.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(list))).unwrap() << 8
}

/// CREATE_MKEY takes any list. A key that a request has not bound refers to none of those that it names, or a program could
/// keep another one's keys. A request that binds it checks the whole list, not only what it brings.
#[test]
fn a_list_of_another_domain_refers_to_no_key_and_is_not_bound() {
    let mut pair = Pair::new();
    let (_, (at_b, own)) = pair.buffers(4096);
    let foreign = pair.b.mkey_of(PD + 1, at_b, 4096, 0xf);
    let entry = |key: u32| words(&[64, key, (at_b >> 32) as u32, at_b as u32]);
    let key = key_with_list(&mut pair.b, &[own, foreign].map(entry).concat(), 128);
    // One translation from the first on, out of memory: the first entry is written anew, the second one stays.
    pair.b.write(at_b + 1024, &entry(own));
    let mut body = words(&[0x1000_0000, 1 << 16, 0, 0]);
    body.resize(48 + 64, 0);
    body.extend(data(at_b + 1024, 16, own));
    assert_eq!(bind_at_b(&mut pair, key, &body), 6, "its second entry leads elsewhere");
    assert_eq!(pair.b.engine.destroy_mkey(foreign >> 8), Ok(0));
    assert_eq!(pair.b.engine.destroy_mkey(own >> 8), Ok(0));
    // It can be bound to keys of its owner, and then it refers to them.
    let mut pair = Pair::new();
    let (_, (at_b, own)) = pair.buffers(4096);
    let other = pair.b.mkey(at_b, 4096, 0xf);
    let list = [own, other].map(|key| words(&[64, key, (at_b >> 32) as u32, at_b as u32]));
    let key = layout_key(&mut pair.b);
    let mut body = words(&[0x9000_0000, 4 << 16, 0, 1 << 29 | 1]);
    body.resize(48, 0);
    body.extend(words(&[0, 0xffff_ff00, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0]));
    body.extend([list.concat(), vec![0; 32]].concat());
    assert_eq!(bind_at_b(&mut pair, key, &body), 0);
    for held in [own, other] {
        assert_eq!(pair.b.engine.destroy_mkey(held >> 8), Err(CmdStatus::BadResState));
    }
    pair.b.engine.destroy_mkey(key >> 8).unwrap();
    for held in [own, other] {
        assert_eq!(pair.b.engine.destroy_mkey(held >> 8), Ok(0));
    }
}

/// A refused request counts the entries of its list too: a turn of many such requests would be long otherwise.
#[test]
fn a_refused_change_of_a_long_list_ends_the_turn() {
    const ENTRIES: usize = 1 << 16;
    let mut pair = Pair::new();
    let (_, (at_b, own)) = pair.buffers(4096);
    let mut list = words(&[1, own, (at_b >> 32) as u32, at_b as u32]).repeat(ENTRIES - 1);
    list.extend(words(&[1, 0x77_7700, 0, 0]));
    let key = key_with_list(&mut pair.b, &list, ENTRIES as u64);
    // Its rights change, the list does not.
    let mut body = words(&[0x8000_0000, 0, 0, 1 << 17]);
    body.resize(48 + 64, 0);
    let doorbell = pair.b.write_send(&mut pair.qb, 0x25, SIGNALED, key, &body);
    let qpn = pair.qb.qpn;
    let mut spent = false;
    pair.b.with(|engine, ctx| {
        engine.ring_send(ctx, qpn, doorbell);
        engine.advance(ctx);
        spent = ctx.meter.is_spent();
    });
    assert_eq!(pair.b.poll(&mut pair.qb.send).unwrap().syndrome(), 6);
    assert!(spent);
}
