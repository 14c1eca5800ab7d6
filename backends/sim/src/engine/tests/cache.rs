//! The requests by which Linux fills, changes and frees the keys of its stock (`drivers/infiniband/hw/mlx5/umr.c`): 144 or 128
//! bytes of control, UMR control and key segments. A data segment leads to the page list.

use super::super::EngineConfig;
use super::super::PageSource;
use super::harness::*;
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, Mkc, QpcSt, View, ViewMut};

const KEY: u64 = 1 << 13;
const FREE: u64 = 1 << 29;
const PD_BIT: u64 = 1 << 7;
const TRANSLATION: u64 = 1 | 1 << 1 | 1 << 6;
const ACCESS: u64 = 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20;
/// First byte of the UMR control segment: inline; fail if free; fail if not free; the offset counts.
const INLINE: u32 = 0x80 << 24;
const FAIL_IF_FREE: u32 = 0x40 << 24;
const FAIL_IF_NOT_FREE: u32 = 0x20 << 24;
const OFFSET: u32 = 0x10 << 24;
const UMR: u8 = 0x25;
/// The kernel's own domain, in which page lists are read by a key for all memory.
const UMR_PD: u32 = 3;

fn control(flags: u32, octowords: u32, offset: u32, mask: u64) -> Vec<u8> {
    let mut segment = words(&[flags, octowords << 16 | offset, (mask >> 32) as u32, mask as u32]);
    segment.resize(48, 0);
    segment
}

/// Key segment: rights as in [`set_rights`], variant, domain, range.
fn key_segment(free: bool, rights: u32, variant: u32, pd: u32, start: u64, len: u64) -> [u8; 64] {
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, rights);
    view.set(Mkc::FREE, free.into())
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::MKEY_7_0, variant)
        .set(Mkc::PD, pd)
        .set64(Mkc::START_ADDR, start)
        .set64(Mkc::LEN, len)
        .set(Mkc::LOG_PAGE_SIZE, 12);
    mkc
}

struct Stock {
    host: Host,
    qp: TestQp,
    all_memory: u32,
}

impl Stock {
    fn new() -> Self {
        let mut host = Host::new(1);
        let qp = host.qp_of(QpcSt::RegUmr, 0, 6, 6);
        let pd = |qpc: &mut ViewMut<'_, _>| {
            qpc.set(bareverbs_mlx5_spec::Qpc::PD, UMR_PD);
        };
        host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, pd).unwrap();
        host.modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |_| {}).unwrap();
        host.modify(qp.qpn, CmdOpcode::Rtr2RtsQp, 0, |_| {}).unwrap();
        let mut mkc = [0; 64];
        ViewMut::<Mkc>::new(&mut mkc)
            .unwrap()
            .set(Mkc::LR, 1)
            .set(Mkc::LW, 1)
            .set(Mkc::QPN, 0xff_ffff)
            .set(Mkc::LENGTH64, 1)
            .set(Mkc::PD, UMR_PD);
        let index =
            host.with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&[]))).unwrap();
        Self { host, qp, all_memory: index << 8 }
    }

    /// Returns a key of the stock: free, with room for `octwords` of translations.
    fn free_key(&mut self, octwords: u32) -> Result<u32, CmdStatus> {
        let mut mkc = [0; 64];
        ViewMut::<Mkc>::new(&mut mkc)
            .unwrap()
            .set(Mkc::FREE, 1)
            .set(Mkc::UMR_EN, 1)
            .set(Mkc::ACCESS_MODE_1_0, 1)
            .set(Mkc::QPN, 0xff_ffff)
            .set(Mkc::PD, UMR_PD)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords)
            .set(Mkc::LOG_PAGE_SIZE, 12);
        self.host.with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&[])))
    }

    /// Posts the request for `key`. Returns the syndrome of its completion, 0 for success.
    fn change(&mut self, key: u32, segments: &[&[u8]]) -> u8 {
        let body = segments.concat();
        self.host.post_send(&mut self.qp, UMR, SIGNALED, key, &body);
        self.host.with(|engine, ctx| engine.advance(ctx));
        let cqe = self.host.poll(&mut self.qp.send).unwrap();
        if cqe.opcode() == 0 { 0 } else { cqe.syndrome() }
    }

    fn field(&self, index: u32, field: bareverbs_mlx5_spec::Field<Mkc>) -> u32 {
        let mut mkc = [0; 64];
        self.host.engine.query_mkey(index, &mut ViewMut::new(&mut mkc).unwrap()).unwrap();
        View::<Mkc>::new(&mkc).unwrap().get(field)
    }
}

#[test]
fn a_key_is_filled_in_two_requests_and_revoked() {
    let mut stock = Stock::new();
    let index = stock.free_key(8).unwrap();
    let key = index << 8 | 0x31;
    let list = stock.host.alloc(4096);
    let pages: Vec<u8> = (0..16_u64).flat_map(|page| ((0x10_0000 + page * 0x3000) | 3).to_be_bytes()).collect();
    stock.host.write(list, &pages);
    let address = (0x7f00_0000_0123, 15 * 4096);
    let all = stock.all_memory;
    let segment = key_segment(false, 0xf, 0x31, PD, address.0, address.1);
    // The first half of the list, and nothing of the context.
    let first = [&control(FAIL_IF_NOT_FREE | OFFSET, 4, 0, 0)[..], &segment, &data(list, 64, all)];
    assert_eq!(stock.change(key, &first), 0);
    assert_eq!(stock.field(index, Mkc::FREE), 1);
    let mask = KEY | FREE | PD_BIT | TRANSLATION | ACCESS;
    let second = [&control(FAIL_IF_NOT_FREE | OFFSET, 4, 4, mask)[..], &segment, &data(list + 64, 64, all)];
    assert_eq!(stock.change(key, &second), 0);
    assert_eq!((stock.field(index, Mkc::FREE), stock.field(index, Mkc::PD)), (0, PD));
    // Byte 0x123 + 9 * 4096 of the first page lies in the tenth one.
    let keys = stock.host.engine.extents(key, address.0 + 9 * 4096, 16, PD).unwrap();
    assert_eq!(keys, [(0x10_0000 + 9 * 0x3000 + 0x123, 16)]);

    let revoked = key_segment(true, 0, 0x31, UMR_PD, 0, 0);
    assert_eq!(stock.change(key, &[&control(INLINE, 0, 0, FREE | PD_BIT), &revoked]), 0);
    assert_eq!((stock.field(index, Mkc::FREE), stock.field(index, Mkc::PD)), (1, UMR_PD));
    assert!(stock.host.engine.extents(key, address.0, 16, PD).is_none());
    // What may change a key in use only does not change this one.
    let segment = key_segment(false, 0x3, 0x31, PD, 0, 0);
    assert_eq!(stock.change(key, &[&control(INLINE | FAIL_IF_FREE, 0, 0, ACCESS), &segment]), 0x06);
}

#[test]
fn a_small_key_takes_a_list_in_a_whole_unit() {
    let mut stock = Stock::new();
    let index = stock.free_key(2).unwrap();
    let (list, all) = (stock.host.alloc(4096), stock.all_memory);
    let segment = key_segment(false, 0xf, 1, PD, 0, 4 * 4096);
    let mask = KEY | FREE | PD_BIT | TRANSLATION | ACCESS;
    let request = [&control(FAIL_IF_NOT_FREE, 4, 0, mask)[..], &segment, &data(list, 64, all)];
    assert_eq!(stock.change(index << 8 | 1, &request), 0);
}

#[test]
fn a_list_beyond_the_key_or_outside_memory_is_refused() {
    for (octowords, offset, at) in [(8, 0, 0), (4, 4, 0), (4, 0, 0xdead_0000_0000)] {
        let mut stock = Stock::new();
        let index = stock.free_key(4).unwrap();
        let list = if at == 0 { stock.host.alloc(4096) } else { at };
        let segment = key_segment(false, 0xf, 1, PD, 0, 4096);
        let all = stock.all_memory;
        let request = [&control(OFFSET, octowords, offset, KEY | FREE)[..], &segment, &data(list, octowords * 16, all)];
        assert_ne!(stock.change(index << 8, &request), 0);
        assert_eq!(stock.field(index, Mkc::FREE), 1);
    }
}

#[test]
fn what_a_host_may_keep_here_has_an_end() {
    let mut stock = Stock::new();
    let memory_limit = stock.host.engine.registry().memory_used() + 20 * 1024;
    let config = EngineConfig { memory_limit, ..stock.host.engine.config().clone() };
    stock.host.engine.configure(config);
    // A key that says it has room for 64 GB of translations takes none until they come, and then for those alone.
    let index = stock.free_key(u32::MAX).unwrap();
    let (list, all) = (stock.host.alloc(1 << 20), stock.all_memory);
    let segment = key_segment(false, 0xf, 1, PD, 0, 4096);
    let mut far = control(OFFSET, 4, 0, KEY);
    // The offset's upper 32 bits.
    far[16..20].copy_from_slice(&[0, 0, 0xff, 0]);
    assert_eq!(stock.change(index << 8, &[&far, &segment, &data(list, 64, all)]), 0);
    assert_eq!(stock.change(index << 8 | 1, &[&control(OFFSET, 4096, 0, KEY), &segment, &data(list, 65536, all)]), 0x06);
    let mut stock = Stock::new();
    let memory_limit = stock.host.engine.registry().memory_used() + 16 * 1024;
    let config = EngineConfig { memory_limit, ..stock.host.engine.config().clone() };
    stock.host.engine.configure(config);

    let keys: Vec<u32> = std::iter::from_fn(|| stock.free_key(4).ok()).take(1000).collect();
    assert!((20..40).contains(&keys.len()), "{}", keys.len());
    assert_eq!(stock.free_key(4), Err(CmdStatus::NoResources));
    stock.host.engine.destroy_mkey(keys[0]).unwrap();
    stock.free_key(4).unwrap();
}

#[test]
fn a_small_change_of_a_long_list_is_a_small_change() {
    let mut stock = Stock::new();
    // 2^20 pages: 8 MB that are not to be copied for each request.
    let mut mkc = [0; 64];
    ViewMut::<Mkc>::new(&mut mkc)
        .unwrap()
        .set(Mkc::UMR_EN, 1)
        .set(Mkc::LR, 1)
        .set(Mkc::ACCESS_MODE_1_0, 1)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::PD, PD)
        .set64(Mkc::LEN, 4096 << 20)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 1 << 19)
        .set(Mkc::LOG_PAGE_SIZE, 12);
    let pages: Vec<u8> = (0..1_u64 << 20).flat_map(|page| (page << 12).to_be_bytes()).collect();
    let create = |engine: &mut super::super::Engine, ctx: &mut crate::step::StepContext<'_>| {
        engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&pages))
    };
    let index = stock.host.with(create).unwrap();
    let (list, all) = (stock.host.alloc(4096), stock.all_memory);
    stock.host.write(list, &[7 << 12_u64; 8].map(u64::to_be_bytes).concat());
    let segment = key_segment(false, 0, 0, PD, 0, 0);
    let begin = std::time::Instant::now();
    for place in 0..2000 {
        let request = [&control(OFFSET, 4, place * 4, 0)[..], &segment, &data(list, 64, all)];
        assert_eq!(stock.change(index << 8, &request), 0);
    }
    // A copy of the list for each takes a minute.
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    let at = |page: u64| stock.host.engine.extents(index << 8, page << 12, 16, PD).unwrap();
    assert_eq!([at(15_999), at(16_000)], [vec![(7 << 12, 16)], vec![(16_000 << 12, 16)]]);
}

#[test]
fn requests_that_send_nothing_do_not_pile_up() {
    let mut host = Host::new(1);
    let mut qp = host.qp(4, 12, 12);
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    // Without a peer and without a timeout.
    host.connect(qp.qpn, 2, 7, Link { timeout: 0, ..Link::default() });
    let before = host.engine.registry().memory_used();
    host.post_send(&mut qp, 0x08, SIGNALED, 0, &[raddr(at, key), data(at, 8, key)].concat());
    for _ in 0..4000 {
        host.post_send(&mut qp, 0, 0, 0, &[]);
    }
    for _ in 0..200 {
        host.with(|engine, ctx| engine.advance(ctx));
    }
    let used = host.engine.registry().memory_used() - before;
    assert!((1..2 << 20).contains(&used), "{used}");
    assert!(host.engine.next_due().is_none(), "nothing to do until the peer answers");
    host.modify(qp.qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
    assert_eq!(host.engine.registry().memory_used(), before);
}
