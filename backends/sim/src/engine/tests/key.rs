//! Keys: windows bound, rebound and invalidated through send requests, translation, life cycle.

use super::super::PageSource;
use super::harness::*;
use crate::registry::{Owner, Resource};
use crate::wire::PerfectWire;
use bareverbs_mlx5_spec::{CmdStatus, Layout, Mkc, View, ViewMut, mkey_mask};

const BIND_MASK: u64 = 1 | 1 << 6 | 1 << 13 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 29;
const FREE_MASK: u64 = 1 << 13 | 1 << 29;

/// Returns a bind as libmlx5 writes it (`set_bind_wr`): control for the change (inline, from translation 0 on), key context,
/// one entry padded to 64 bytes. Fields of the context outside the mask have stale bytes.
fn bind(new_key: u32, (start, len): (u64, u64), rights: u32, target: (u32, u64)) -> Vec<u8> {
    let mut body = words(&[0x9000_0000, 4 << 16]);
    body.extend(BIND_MASK.to_be_bytes());
    body.resize(48, 0);
    let mut mkc = [0xee; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, rights);
    view.set(Mkc::FREE, 0).set(Mkc::MKEY_7_0, new_key & 0xff).set64(Mkc::START_ADDR, start).set64(Mkc::LEN, len);
    body.extend(mkc);
    body.extend(words(&[len as u32, target.0, (target.1 >> 32) as u32, target.1 as u32]));
    body.resize(48 + 64 + 64, 0);
    body
}

/// Returns a bind to nothing, which unbinds.
fn free(new_variant: u32) -> Vec<u8> {
    let mut body = words(&[0x9000_0000, 0]);
    body.extend(FREE_MASK.to_be_bytes());
    body.resize(48, 0);
    let mut mkc = [0xee; 64];
    ViewMut::<Mkc>::new(&mut mkc).unwrap().set(Mkc::FREE, 1).set(Mkc::MKEY_7_0, new_variant);
    body.extend(mkc);
    body
}

const RR: u32 = 1 << 2;
const RW: u32 = 1 << 3;

/// One request of `a`; the syndrome of its completion, 0 for success.
pub(super) fn one(pair: &mut Pair<PerfectWire>, opcode: u8, immediate: u32, body: &[u8]) -> u8 {
    pair.a.post_send(&mut pair.qa, opcode, SIGNALED, immediate, body);
    pair.run();
    let cqe = pair.a.poll(&mut pair.qa.send).unwrap();
    if cqe.opcode() == 0 { 0 } else { cqe.syndrome() }
}

/// `b` binds; returns the syndrome.
pub(super) fn bind_at_b(pair: &mut Pair<PerfectWire>, old_key: u32, body: &[u8]) -> u8 {
    pair.b.post_send(&mut pair.qb, 0x25, SIGNALED, old_key, body);
    pair.run();
    let cqe = pair.b.poll(&mut pair.qb.send).unwrap();
    assert_eq!(cqe.send_opcode(), 0x25);
    if cqe.opcode() == 0 { 0 } else { cqe.syndrome() }
}

#[test]
fn a_window_opens_what_its_region_does_not() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, _)) = pair.buffers(8192);
    // Local read and write only.
    let region = pair.b.mkey(at_b, 8192, 3);
    let window = pair.b.window(false);
    assert_eq!(bind_at_b(&mut pair, window, &bind(window | 7, (at_b + 100, 5000), RW, (region, at_b + 100))), 0);
    pair.a.write(at_a, &[9; 5000]);
    let body = [raddr(at_b + 100, window | 7), data(at_a, 5000, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0);
    assert_eq!(pair.b.read(at_b + 100, 5000), [9; 5000]);
    assert_eq!(pair.b.read(at_b, 100), [0; 100]);
    assert_eq!(pair.b.engine.counts().bound_windows, 1);
    // The region stays while the window refers to it.
    assert_eq!(pair.b.engine.destroy_mkey(region >> 8), Err(CmdStatus::BadResState));
    // Unbound by its present key, as type 1 is: then nothing opens and the region is free.
    assert_eq!(bind_at_b(&mut pair, window | 7, &free(8)), 0);
    assert_eq!(pair.b.engine.destroy_mkey(region >> 8), Ok(0));
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0x13);
}

#[test]
fn rebinding_ends_the_old_key() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, region)) = pair.buffers(8192);
    let window = pair.b.window(false);
    assert_eq!(bind_at_b(&mut pair, window, &bind(window | 1, (at_b, 64), RW | RR, (region, at_b))), 0);
    // Zero based: addresses count from the start of the window.
    assert_eq!(bind_at_b(&mut pair, window | 1, &bind(window | 2, (0, 64), RW | RR, (region, at_b + 4096))), 0);
    pair.a.write(at_a, b"through the window");
    let body = [raddr(8, window | 2), data(at_a, 18, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0);
    assert_eq!(pair.b.read(at_b + 4096 + 8, 18), b"through the window");
    let body = [raddr(at_b, window | 1), data(at_a, 18, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0x13);
    assert_eq!(pair.b.read(at_b, 18), [0; 18]);
}

#[test]
fn a_window_grants_only_what_it_was_bound_with() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, region)) = pair.buffers(4096);
    let window = pair.b.window(false);
    assert_eq!(bind_at_b(&mut pair, window, &bind(window | 1, (at_b, 64), RR, (region, at_b))), 0);
    pair.b.write(at_b, b"to be read");
    let body = [raddr(at_b, window | 1), data(at_a, 10, key_a)].concat();
    assert_eq!(one(&mut pair, 0x10, 0, &body), 0);
    assert_eq!(pair.a.read(at_a, 10), b"to be read");
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0x13);
}

#[test]
fn a_change_of_what_a_key_does_not_have_fails() {
    // Signature errors, signatures, and bits that no document names.
    for bit in [9, 12, 2, 30, 63] {
        let mut pair = Pair::new();
        let (_, (at_b, region)) = pair.buffers(4096);
        let window = pair.b.window(false);
        let mut body = bind(window | 1, (at_b, 64), RW, (region, at_b));
        body[8..16].copy_from_slice(&(BIND_MASK | 1 << bit).to_be_bytes());
        assert_eq!(bind_at_b(&mut pair, window, &body), 6, "bit {bit}");
        assert_eq!((pair.b.engine.counts().bound_windows, pair.b.state(pair.qb.qpn)), (0, 6));
    }
}

/// Makes the bind of a window to a region at an address.
type Body = fn(u32, u32, u64) -> Vec<u8>;

#[test]
fn binds_that_fail_change_nothing() {
    let cases: [(&str, Body); 5] = [
        ("unknown region", |window, region, at| bind(window | 1, (at, 64), RW, (region + 0x5500, at))),
        ("stale region key", |window, region, at| bind(window | 1, (at, 64), RW, (region ^ 1, at))),
        ("outside the region", |window, region, at| bind(window | 1, (at, 64), RW, (region, at + 4090))),
        ("itself", |window, _, at| bind(window | 1, (at, 64), RW, (window, at))),
        ("more than the entries", |window, region, at| {
            let mut body = bind(window | 1, (at, 64), RW, (region, at));
            body[48 + 64..48 + 68].copy_from_slice(&32u32.to_be_bytes());
            body
        }),
    ];
    for (case, body) in cases {
        let mut pair = Pair::new();
        let (_, (at_b, region)) = pair.buffers(4096);
        let window = pair.b.window(false);
        assert_eq!(bind_at_b(&mut pair, window, &body(window, region, at_b)), 6, "{case}");
        let mut mkc = [0; Mkc::SIZE];
        pair.b.engine.query_mkey(window >> 8, &mut ViewMut::new(&mut mkc).unwrap()).unwrap();
        let mkc = View::<Mkc>::of(&mkc);
        assert!(mkc.is_set(Mkc::FREE) && mkc.get(Mkc::MKEY_7_0) == 0, "{case}");
        assert_eq!(pair.b.state(pair.qb.qpn), 6, "{case}");
    }
}

/// Who may not change a key, or names another than there is, changes nothing: what was bound is still bound, and opens what it did.
#[test]
fn changes_that_a_key_does_not_allow_fail() {
    type Change = fn(&mut Pair<PerfectWire>, u32, u32, u64) -> (u32, Vec<u8>);
    let cases: [(&str, u8, Change); 6] = [
        ("a key that no request changes", 6, |_, _, region, at| (region, bind(region, (at, 64), RW, (region, at)))),
        ("a key of another domain", 6, |pair, _, _, at| {
            let (foreign, region) = (pair.b.window_of(PD + 1, false), pair.b.mkey_of(PD + 1, at, 4096, 0x1f));
            (foreign, bind(foreign | 1, (at, 64), RW, (region, at)))
        }),
        ("the tag of an earlier bind", 6, |_, window, _, _| (window | 6, free(8))),
        ("its domain", 6, |_, window, region, at| {
            let mut body = bind(window | 9, (at, 64), RW, (region, at));
            body[8..16].copy_from_slice(&(BIND_MASK | mkey_mask::PD).to_be_bytes());
            (window | 7, body)
        }),
        ("another queue pair's", 6, |pair, window, region, at| {
            let mut body = bind(window | 9, (at, 64), RW, (region, at));
            body[8..16].copy_from_slice(&(BIND_MASK | mkey_mask::QPN).to_be_bytes());
            ViewMut::<Mkc>::new(&mut body[48..112]).unwrap().set(Mkc::QPN, pair.qb.qpn + 1);
            (window | 7, body)
        }),
        ("a list that is longer than its memory", 1, |_, window, region, at| {
            let fill = |mkc: &mut ViewMut<'_, Mkc>| {
                mkc.set(Mkc::FREE, 0).set64(Mkc::START_ADDR, at).set64(Mkc::LEN, 64);
            };
            (window | 7, umr(BIND_MASK, fill, 4, Some(0), &data(at + 1024, 48, region)))
        }),
    ];
    for (case, syndrome, change) in cases {
        let mut pair = Pair::new();
        let (_, (at_b, region)) = pair.buffers(4096);
        let window = pair.b.window(false);
        assert_eq!(bind_at_b(&mut pair, window, &bind(window | 7, (at_b + 100, 50), RW, (region, at_b + 100))), 0);
        let (key, body) = change(&mut pair, window, region, at_b);
        assert_eq!(bind_at_b(&mut pair, key, &body), syndrome, "{case}");
        assert_eq!(pair.b.state(pair.qb.qpn), 6, "{case}");
        assert_eq!(pair.b.engine.counts().bound_windows, 1, "{case}");
        let mut mkc = [0; Mkc::SIZE];
        pair.b.engine.query_mkey(window >> 8, &mut ViewMut::new(&mut mkc).unwrap()).unwrap();
        let mkc = View::<Mkc>::of(&mkc);
        let (start, len) = (mkc.get64(Mkc::START_ADDR), mkc.get64(Mkc::LEN));
        assert_eq!((mkc.get(Mkc::MKEY_7_0), start, len, mkc.get(Mkc::PD)), (7, at_b + 100, 50, PD), "{case}");
        let mut mkc = [0; Mkc::SIZE];
        pair.b.engine.query_mkey(region >> 8, &mut ViewMut::new(&mut mkc).unwrap()).unwrap();
        let mkc = View::<Mkc>::of(&mkc);
        assert_eq!((mkc.get64(Mkc::START_ADDR), mkc.get64(Mkc::LEN)), (at_b, 4096), "{case}");
    }
}

#[test]
fn entries_beyond_the_length_of_a_window_are_padding() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, region)) = pair.buffers(4096);
    let other = pair.b.mkey(at_b, 4096, 0x1f);
    let window = pair.b.window(false);
    let mut body = bind(window | 1, (at_b, 64), RW, (region, at_b));
    // Content that earlier requests may have left in a send ring: text, a destroyed key, another owner's key.
    body[48 + 64 + 16..48 + 64 + 48].copy_from_slice(&words(&[0x2020_2020; 8]));
    body[48 + 64 + 48..].copy_from_slice(&words(&[64, other, (at_b >> 32) as u32, at_b as u32]));
    assert_eq!(bind_at_b(&mut pair, window, &body), 0);
    pair.a.write(at_a, &[3; 64]);
    let write = [raddr(at_b, window | 1), data(at_a, 64, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &write), 0);
    assert_eq!(pair.b.read(at_b, 64), [3; 64]);
    // The window refers to what it is bound to, and to nothing that the padding names.
    assert_eq!(pair.b.engine.destroy_mkey(other >> 8), Ok(0));
    assert_eq!(pair.b.engine.destroy_mkey(region >> 8), Err(CmdStatus::BadResState));
}

#[test]
fn writing_through_a_window_needs_a_writable_region() {
    let mut pair = Pair::new();
    let (_, (at_b, _)) = pair.buffers(4096);
    let region = pair.b.mkey(at_b, 4096, 1);
    let window = pair.b.window(false);
    assert_eq!(bind_at_b(&mut pair, window, &bind(window | 1, (at_b, 64), RW, (region, at_b))), 6);
}

#[test]
fn send_with_invalidate() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, region)) = pair.buffers(4096);
    let window = pair.b.window(true);
    assert_eq!(bind_at_b(&mut pair, window, &bind(window | 3, (at_b, 64), RW, (region, at_b))), 0);
    pair.b.post_receive(&mut pair.qb, &[(at_b, 64, region)]);
    assert_eq!(one(&mut pair, 0x01, window | 3, &data(at_a, 4, key_a)), 0);
    let got = pair.b.poll(&mut pair.qb.receive).unwrap();
    assert_eq!((got.opcode(), got.immediate()), (4, window | 3));
    assert_eq!(pair.b.engine.counts().bound_windows, 0);
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_the_receiver_alone() {
    for case in ["free", "type 1", "another's", "region", "unknown"] {
        let mut pair = Pair::<PerfectWire>::on(perfect(), Link { retries: 1, ..Link::default() }, 6);
        let ((at_a, key_a), (at_b, region)) = pair.buffers(4096);
        let key = match case {
            "free" => pair.b.window(true),
            "type 1" => {
                let window = pair.b.window(false);
                assert_eq!(bind_at_b(&mut pair, window, &bind(window | 3, (at_b, 64), RW, (region, at_b))), 0);
                window | 3
            }
            "another's" => {
                let mut mkc = [0; Mkc::SIZE];
                let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
                view.set(Mkc::EN_RINVAL, 1).set(Mkc::QPN, pair.qb.qpn + 1).set(Mkc::PD, PD);
                let index = pair
                    .b
                    .with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&[])))
                    .unwrap();
                index << 8
            }
            "region" => region,
            _ => 0x7777_7700,
        };
        pair.a.write(at_a, b"kept");
        pair.b.post_receive(&mut pair.qb, &[(at_b, 64, region)]);
        let sent = pair.b.engine.stats().sent.packets;
        // No peer answers, so the sender fails after its retries.
        assert_eq!(one(&mut pair, 0x01, key, &data(at_a, 4, key_a)), 0x15, "{case}");
        assert_eq!(pair.b.engine.stats().sent.packets, sent, "{case}: neither ACK nor NAK");
        let got = pair.b.poll(&mut pair.qb.receive).unwrap();
        assert_eq!((got.opcode(), got.syndrome()), (0xe, 0x12), "{case}");
        assert_eq!((pair.b.state(pair.qb.qpn), pair.b.read(at_b, 4)), (6, b"kept".to_vec()), "{case}");
    }
}

#[test]
fn pages_of_other_sizes_and_scattered() {
    let mut pair = Pair::new();
    let ((at_a, key_a), _) = pair.buffers(65536);
    let base = pair.b.alloc(65536 + 16384).next_multiple_of(16384);
    // Three pages of 16 KB in reverse order, a region that starts 1000 bytes into the first.
    let pages = [base + 32768, base + 16384, base];
    let start = 0x7000_0000_0000u64 + 1000;
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, 0x1f);
    view.set(Mkc::ACCESS_MODE_1_0, 1)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::PD, PD)
        .set64(Mkc::START_ADDR, start)
        .set64(Mkc::LEN, 40_000)
        .set(Mkc::LOG_PAGE_SIZE, 14)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 2);
    // The lowest bits of an entry are permissions.
    let raw: Vec<u8> = pages.iter().flat_map(|page| (page | 3).to_be_bytes()).collect();
    let view = View::<Mkc>::of(&mkc);
    let create = |host: &mut Host, raw: &[u8]| host.with(|engine, ctx| engine.create_mkey(ctx, view, PageSource::Listed(raw)));
    assert_eq!(create(&mut pair.b, &raw[..16]), Err(CmdStatus::BadParam), "a page is missing");
    let key = create(&mut pair.b, &raw).unwrap() << 8;
    let message: Vec<u8> = (0..40_000u32).map(|at| (at / 7) as u8).collect();
    pair.a.write(at_a, &message);
    let body = [raddr(start, key), data(at_a, 40_000, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0);
    assert_eq!(pair.b.read(base + 32768 + 1000, 15384), message[..15384]);
    assert_eq!(pair.b.read(base + 16384, 16384), message[15384..31768]);
    assert_eq!(pair.b.read(base, 8232), message[31768..]);
}

#[test]
fn physical_keys_and_domains() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, _)) = pair.buffers(4096);
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, 0x1f);
    view.set(Mkc::LENGTH64, 1).set(Mkc::QPN, 0xff_ffff).set(Mkc::PD, PD);
    let key = pair.b.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&[]))).unwrap() << 8;
    let body = [raddr(at_b, key), data(at_a, 8, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0);
    let registry = pair.b.engine.registry();
    assert!(registry.is_busy(Resource::pd(PD)) && !registry.is_busy(Resource::pd(PD + 1)));
    ViewMut::<Mkc>::new(&mut mkc).unwrap().set(Mkc::PD, PD + 1);
    let foreign = pair.b.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&[]))).unwrap() << 8;
    let body = [raddr(at_b, foreign), data(at_a, 8, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &body), 0x13);
}

#[test]
fn device_memory_counts_from_zero_and_ends_with_its_allocation() {
    let mut pair = Pair::new();
    let ((at_a, key_a), _) = pair.buffers(4096);
    let place = pair.b.engine.alloc_memory((31 << 20, 4096), 128, 0).unwrap();
    let memic = |host: &mut Host, start: u64, len: u64, requests: u32| {
        let mut mkc = [0; 64];
        let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
        set_rights(&mut view, 0x1f);
        view.set(Mkc::ACCESS_MODE_1_0, 1)
            .set(Mkc::ACCESS_MODE_4_2, 1)
            .set(Mkc::UMR_EN, requests)
            .set(Mkc::QPN, 0xff_ffff)
            .set(Mkc::PD, PD)
            .set64(Mkc::START_ADDR, start)
            .set64(Mkc::LEN, len);
        host.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&[]))).map(|index| index << 8)
    };
    assert_eq!(memic(&mut pair.b, place, 129, 0), Err(CmdStatus::BadParam));
    assert_eq!(memic(&mut pair.b, place, 128, 1), Err(CmdStatus::BadParam), "a request could move it");
    let key = memic(&mut pair.b, place + 64, 64, 0).unwrap();
    pair.a.write(at_a, b"to the device");
    assert_eq!(one(&mut pair, 0x08, 0, &[raddr(8, key), data(at_a, 13, key_a)].concat()), 0);
    let mut bytes = [0; 13];
    pair.b.engine.read_memory(place + 64 + 8, &mut bytes);
    assert_eq!(&bytes, b"to the device");
    pair.a.write(at_a, &[0; 13]);
    assert_eq!(one(&mut pair, 0x10, 0, &[raddr(8, key), data(at_a, 13, key_a)].concat()), 0);
    assert_eq!(pair.a.read(at_a, 13), b"to the device");
    assert_eq!(one(&mut pair, 0x08, 0, &[raddr(60, key), data(at_a, 13, key_a)].concat()), 0x13);
    assert_eq!(pair.b.engine.free_memory(place, 128), Err(CmdStatus::BadResState));
}

/// Returns a UMR whose translations lie in memory.
fn umr(mask: u64, fill: impl FnOnce(&mut ViewMut<'_, Mkc>), octowords: u32, offset: Option<u32>, list: &[u8]) -> Vec<u8> {
    let mut body = words(&[u32::from(offset.is_some()) << 28, octowords << 16 | offset.unwrap_or(0)]);
    body.extend(mask.to_be_bytes());
    body.resize(48, 0);
    let mut mkc = [0xee; 64];
    fill(&mut ViewMut::<Mkc>::new(&mut mkc).unwrap());
    body.extend(mkc);
    body.extend(list);
    body
}

/// Returns a free key of `b` with room for four pages, for fast registration.
fn key_for_pages(pair: &mut Pair<PerfectWire>) -> u32 {
    let mut mkc = [0; 64];
    ViewMut::<Mkc>::new(&mut mkc)
        .unwrap()
        .set(Mkc::FREE, 1)
        .set(Mkc::UMR_EN, 1)
        .set(Mkc::ACCESS_MODE_1_0, 1)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::LOG_PAGE_SIZE, 12)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 2)
        .set(Mkc::PD, PD);
    pair.b.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&[]))).unwrap() << 8
}

/// A program would reach all memory of its host otherwise: addresses of pages in a list, or a page size beyond its pages.
#[test]
fn pages_are_listed_by_queues_of_the_kernel_alone() {
    for (mask, octowords) in [(1 | 1 << 6 | 1 << 29, 1), (1 | 1 << 1 | 1 << 29, 0)] {
        let mut pair = Pair::new();
        let (_, (at_b, key_b)) = pair.buffers(4096);
        let key = key_for_pages(&mut pair);
        pair.b.engine.registry_mut().set_owner(Resource::qp(pair.qb.qpn), Owner::new(5));
        pair.b.write(at_b, &[0; 16]);
        let list = if octowords == 0 { Vec::new() } else { data(at_b, 16, key_b) };
        let fill = |mkc: &mut ViewMut<'_, Mkc>| {
            mkc.set(Mkc::FREE, 0).set64(Mkc::START_ADDR, 0).set64(Mkc::LEN, 1 << 40).set(Mkc::LOG_PAGE_SIZE, 40);
        };
        assert_eq!(bind_at_b(&mut pair, key, &umr(mask, fill, octowords, None, &list)), 6);
    }
}

#[test]
fn fast_registration_and_part_of_a_list_changed() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8 * 4096);
    let key = key_for_pages(&mut pair);
    // Four pages in reverse order, listed in memory; start, length, rights, variant and the free bit change.
    let list: Vec<u8> = (0..4u64).rev().flat_map(|page| ((at_b + page * 4096) | 3).to_be_bytes()).collect();
    pair.b.write(at_b + 5 * 4096, &list);
    let mask = 1 | 1 << 6 | 1 << 13 | 1 << 17 | 1 << 18 | 1 << 20 | 1 << 29;
    let body = umr(
        mask,
        |mkc| {
            set_rights(mkc, 0xb);
            mkc.set(Mkc::FREE, 0).set(Mkc::MKEY_7_0, 0x31).set64(Mkc::START_ADDR, 0x1000).set64(Mkc::LEN, 4 * 4096);
        },
        2,
        None,
        &data(at_b + 5 * 4096, 32, key_b),
    );
    assert_eq!(bind_at_b(&mut pair, key | 0x31, &body), 0);
    pair.a.write(at_a, b"fourth page first");
    let write = [raddr(0x1000, key | 0x31), data(at_a, 17, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &write), 0);
    assert_eq!(pair.b.read(at_b + 3 * 4096, 17), b"fourth page first");
    // The second octoword (pages two and three) leads elsewhere now.
    let elsewhere = (at_b + 6 * 4096).to_be_bytes();
    pair.b.write(at_b + 5 * 4096, &[elsewhere, elsewhere].concat());
    let body = umr(0, |_| {}, 1, Some(1), &data(at_b + 5 * 4096, 16, key_b));
    assert_eq!(bind_at_b(&mut pair, key | 0x31, &body), 0);
    let write = [raddr(0x1000 + 2 * 4096, key | 0x31), data(at_a, 17, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &write), 0);
    assert_eq!(pair.b.read(at_b + 6 * 4096, 17), b"fourth page first");
    // Past the room that the key was created with.
    // It comes in units of four octowords.
    let body = umr(0, |_| {}, 1, Some(4), &data(at_b + 5 * 4096, 16, key_b));
    assert_eq!(bind_at_b(&mut pair, key | 0x31, &body), 6);
}

#[test]
fn keys_of_keys() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8 * 4096);
    let indirect = |host: &mut Host, mode: u32, len: u64, log_page: u32, entries: &[(u32, u32, u64)]| {
        let mut mkc = [0; 64];
        let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
        set_rights(&mut view, 0x1f);
        view.set(Mkc::ACCESS_MODE_1_0, mode)
            .set(Mkc::QPN, 0xff_ffff)
            .set(Mkc::PD, PD)
            .set64(Mkc::LEN, len)
            .set(Mkc::LOG_PAGE_SIZE, log_page)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, entries.len() as u32);
        let raw: Vec<u8> =
            entries.iter().flat_map(|&(count, key, addr)| words(&[count, key, (addr >> 32) as u32, addr as u32])).collect();
        host.with(|engine, ctx| engine.create_mkey(ctx, View::of(&mkc), PageSource::Listed(&raw))).unwrap() << 8
    };
    let klms = [(10, key_b, at_b), (0, 0, 0), (20, key_b, at_b + 100), (5, key_b, at_b + 50)];
    let klm = indirect(&mut pair.b, 2, 35, 0, &klms);
    let message: Vec<u8> = (1..=33).collect();
    pair.a.write(at_a, &message);
    let write = [raddr(2, klm), data(at_a, 33, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &write), 0);
    assert_eq!(pair.b.read(at_b + 2, 8), message[..8]);
    assert_eq!(pair.b.read(at_b + 100, 20), message[8..28]);
    assert_eq!(pair.b.read(at_b + 50, 5), message[28..]);
    // Entries of one size, the second of them the key above; addresses count from zero in both.
    let ksm = indirect(&mut pair.b, 3, 64, 5, &[(0, key_b, at_b + 4096), (0, klm, 0)]);
    let write = [raddr(30, ksm), data(at_a, 12, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &write), 0);
    assert_eq!(pair.b.read(at_b + 4096 + 30, 2), message[..2]);
    assert_eq!(pair.b.read(at_b, 10), message[2..12]);
    // A ring of keys ends in an error, not in a loop.
    let next = ksm + 0x100;
    let ring = indirect(&mut pair.b, 2, 1 << 20, 0, &[(1 << 20, next, 0)]);
    assert_eq!(ring, next);
    let write = [raddr(0, ring), data(at_a, 12, key_a)].concat();
    assert_eq!(one(&mut pair, 0x08, 0, &write), 0x13);
}

#[test]
fn local_invalidate_of_a_type_2_window() {
    let mut pair = Pair::new();
    let (_, (at_b, region)) = pair.buffers(4096);
    let window = pair.b.window(true);
    // Bound to its queue pair, which must be free before: mask with QPN, check free.
    let qpn = pair.qb.qpn;
    let type_2 = |variant: u32| {
        let mut body = bind(window | variant, (at_b, 64), RW, (region, at_b));
        body[0] |= 0x20;
        body[8..16].copy_from_slice(&(BIND_MASK | 1 << 14).to_be_bytes());
        body[48 + 4..48 + 8].copy_from_slice(&(qpn << 8 | variant).to_be_bytes());
        body
    };
    let invalidate = || {
        let mut body = free(0);
        body[0] |= 0x08;
        body[8..16].copy_from_slice(&(FREE_MASK | 1 << 14).to_be_bytes());
        body[48 + 4..48 + 8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
        body
    };
    assert_eq!(bind_at_b(&mut pair, window, &type_2(5)), 0);
    assert_eq!(pair.b.engine.counts().bound_windows, 1);
    assert_eq!(bind_at_b(&mut pair, window | 5, &invalidate()), 0);
    assert_eq!(pair.b.engine.counts().bound_windows, 0);
    // Again from the start, and this time bound twice: refused.
    assert_eq!(bind_at_b(&mut pair, window, &type_2(6)), 0);
    assert_eq!(bind_at_b(&mut pair, window | 6, &type_2(7)), 6);
}

#[test]
fn a_window_refers_to_the_regions_in_its_list() {
    let mut pair = Pair::new();
    let (_, (at_b, _)) = pair.buffers(2 * 4096);
    let [first, second] = [at_b, at_b + 4096].map(|at| pair.b.mkey(at, 4096, 3));
    let window = pair.b.window(false);
    let entry = |key: u32, at: u64| words(&[64, key, (at >> 32) as u32, at as u32]);
    let list = pair.b.alloc(4096);
    let change = |pair: &mut Pair<_>, mask, offset, entries: &[Vec<u8>]| {
        pair.b.write(list, &entries.concat());
        let key_list = pair.b.mkey(list, 4096, 3);
        let octowords = entries.len() as u32;
        let body = umr(
            mask,
            |mkc| {
                set_rights(mkc, RR);
                mkc.set(Mkc::FREE, 0).set(Mkc::MKEY_7_0, 0).set64(Mkc::START_ADDR, 0).set64(Mkc::LEN, 128);
            },
            octowords,
            Some(offset),
            &data(list, octowords * 16, key_list),
        );
        bind_at_b(pair, window, &body)
    };
    assert_eq!(change(&mut pair, BIND_MASK, 0, &[entry(first, at_b), entry(first, at_b + 64)]), 0);
    assert_eq!(pair.b.engine.destroy_mkey(first >> 8), Err(CmdStatus::BadResState));
    // One entry leads to the other region now, then both; nothing else of the window changes.
    assert_eq!(change(&mut pair, 0, 1, &[entry(second, at_b + 4096)]), 0);
    for region in [first, second] {
        assert_eq!(pair.b.engine.destroy_mkey(region >> 8), Err(CmdStatus::BadResState));
    }
    assert_eq!(change(&mut pair, 0, 0, &[entry(second, at_b + 4160)]), 0);
    assert_eq!(pair.b.engine.destroy_mkey(first >> 8), Ok(0));
    assert_eq!(pair.b.engine.destroy_mkey(second >> 8), Err(CmdStatus::BadResState));
    // What is beyond the window's length is stale and is not read.
    assert_eq!(change(&mut pair, 0, 2, &[entry(first, at_b), entry(0xffff_ffff, 0)]), 0);
    assert_eq!(pair.b.engine.counts().bound_windows, 1);
    assert_eq!(bind_at_b(&mut pair, window, &free(8)), 0);
    assert_eq!(pair.b.engine.counts().bound_windows, 0);
    assert_eq!(pair.b.engine.destroy_mkey(second >> 8), Ok(0));
    assert_eq!(pair.b.engine.destroy_mkey(window >> 8), Ok(0));
}
