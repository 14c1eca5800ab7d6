//! Regions and windows: the rows of the contract about them (`docs/src/contract.md`), each refusal with its errno and its error.

use std::sync::{Arc, Mutex};

use bareverbs::error::{
    AllocMwError, AllocPdError, BindRefused, BindType1Error, DeallocMwError, DeallocPdError, DeregMrError, Errno,
    PostSendError, RegMrError, SgeFault, StaleHandle,
};
use bareverbs::platform::{Instant, OffsetMap};
use bareverbs::storage::Storage;
use bareverbs::{
    Access, Binding, MrHandle, MwHandle, MwType, Payload, PdHandle, QpHandle, QpState, QpType, Remote, Rkey, SendFlags, SendOp,
    SendWr, Sge, Type1Bind, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::Error;
use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, CmdOut, CmdStatus, CreateMkeyIn, Mkc, QueryHcaCapOut, View};
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{DeviceConfig, Limits, PageDemand, RelaxedOrdering};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, Driver, End, Node, Pair, Region, SamePage, end, end_in, instant, machine, pattern, rc_steps,
    refused, register, register_mapped, signaled, to_rts, ud_to_rts,
};

/// Access flags that a region may be made with, one by one.
const FLAGS: [Access; 6] = [
    Access::LOCAL_WRITE,
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_ATOMIC,
    Access::MW_BIND,
    Access::ZERO_BASED,
];

fn node(config: DeviceConfig) -> Node {
    Node::new(World::new(WorldConfig::default()).add(config).unwrap())
}

fn loopback(node: &mut Node, end: &End) {
    let lid = node.verbs.query_port(1).unwrap().lid;
    let connection = Connection::default();
    to_rts(node, end.qp, &rc_steps(&connection, lid, end.qpn, connection.psn.0.get(), connection.psn.0.get()));
}

// contract: mr-flags, mr-remote-needs-local
#[test]
fn every_combination_of_access_flags() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(8192);
    for bits in 0..1_u32 << FLAGS.len() {
        let named = FLAGS.iter().enumerate().filter(|(n, _)| bits >> n & 1 != 0);
        let access = named.fold(Access::empty(), |sum, (_, flag)| sum | *flag);
        let before = node.snapshot();
        let made = register(&mut node.verbs, pd, buffer.bytes(), access);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !access.contains(Access::LOCAL_WRITE) {
            refused!(made, Einval, RegMrError::RemoteWithoutLocalWrite);
        } else {
            let mr = made.unwrap_or_else(|error| panic!("{access:?}: {error}"));
            let info = node.verbs.mr_info(mr).unwrap();
            assert_eq!((info.pd, info.addr, info.length, info.access), (pd, buffer.addr, 8192, access));
            assert_ne!(info.lkey.index(), 0);
            assert_eq!(node.snapshot().device.engine.mkeys, before.device.engine.mkeys + 1);
            node.verbs.dereg_mr_raw(mr).unwrap();
        }
        assert_eq!(node.snapshot(), before, "{access:?}");
    }
    node.assert_no_findings();
}

// contract: mr-local-read
#[test]
fn local_read_is_always_on() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let mut here = pair.a.region(a.pd, 4096, Access::empty());
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    here.buffer.write(0, &pattern(1, 4096));
    let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 4096)]), remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(there.buffer.read(0, 4096), here.buffer.read(0, 4096));
}

// contract: mr-unknown-flags, mr-unsupported-flags
#[test]
fn flags_that_nobody_knows_and_flags_that_the_device_lacks() {
    let mut node = node(DeviceConfig { atomics: false, ..DeviceConfig::with_lid(1) });
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(4096);
    let before = node.snapshot();
    let mut reg = |access| register(&mut node.verbs, pd, buffer.bytes(), access);
    for bit in (0..32).filter(|bit| !Access::KNOWN.contains(Access::from_bits_retain(1 << bit))) {
        let error = refused!(reg(Access::from_bits_retain(1 << bit)), Einval, RegMrError::UnknownFlags { .. });
        assert_eq!(error, RegMrError::UnknownFlags { bits: 1 << bit });
    }
    let lacking = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    refused!(reg(lacking), Eopnotsupp, RegMrError::Unsupported { bits: 8 });
    refused!(reg(Access::RELAXED_ORDERING), Eopnotsupp, RegMrError::Unsupported { bits: 0x10_0000 });
    // What the flags mean together comes before what the device has.
    refused!(reg(Access::REMOTE_ATOMIC), Einval, RegMrError::RemoteWithoutLocalWrite);
    assert_eq!(node.snapshot(), before);
}

/// The keys that are made: whether each is ordered relaxed for writes, and for reads.
#[derive(Clone, Default)]
struct KeyOrdering(Arc<Mutex<Vec<(bool, bool)>>>);

impl Tracer for KeyOrdering {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        let Record::Command { input, output, .. } = record else { return };
        if View::<CmdIn>::new(input).unwrap().get(CmdIn::OPCODE) == CmdOpcode::CreateMkey.code()
            && View::<CmdOut>::new(output).unwrap().get(CmdOut::STATUS) == 0
        {
            let key = View::<CreateMkeyIn>::new(input).unwrap().sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
            let ordering = (key.is_set(Mkc::RELAXED_ORDERING_WRITE), key.is_set(Mkc::RELAXED_ORDERING_READ));
            self.0.lock().unwrap().push(ordering);
        }
    }
}

/// Older firmware while the PCI configuration allows it and while not, newer firmware likewise, and one that offers it for reads alone.
// contract: mr-relaxed-ordering
#[test]
fn relaxed_ordering_is_in_the_key_as_far_as_the_device_offers_it() {
    for (write, read, read_pci_enabled) in
        [(true, false, true), (true, false, false), (true, true, true), (true, true, false), (false, false, true)]
    {
        let relaxed_ordering = RelaxedOrdering { write, read, read_pci_enabled };
        let mut node = node(DeviceConfig { relaxed_ordering, ..DeviceConfig::with_lid(1) });
        assert_eq!(node.verbs.query_device().access, Access::KNOWN);
        let pd = node.verbs.alloc_pd().unwrap();
        let buffer = node.buffer(8192);
        let keys = KeyOrdering::default();
        node.host.with_device(|device| device.set_tracer(Some(Box::new(keys.clone()))));
        let relaxed = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::RELAXED_ORDERING;
        let mr = register(&mut node.verbs, pd, buffer.bytes(), relaxed).unwrap();
        assert_eq!(node.verbs.mr_info(mr).unwrap().access, relaxed);
        let offered = (write, read || read_pci_enabled);
        assert_eq!(keys.0.lock().unwrap().split_off(0), [offered], "{relaxed_ordering:?}");
        // A region from zero that does not begin with a page has two keys.
        let zero_based = relaxed | Access::ZERO_BASED;
        let from_zero = register(&mut node.verbs, pd, buffer.part(64, 4096), zero_based).unwrap();
        assert_eq!(keys.0.lock().unwrap().split_off(0), [offered; 2], "{relaxed_ordering:?}");
        // Nobody gets it who does not ask.
        let strict = register(&mut node.verbs, pd, buffer.bytes(), relaxed - Access::RELAXED_ORDERING).unwrap();
        assert_eq!(keys.0.lock().unwrap().split_off(0), [(false, false)], "{relaxed_ordering:?}");
        for mr in [mr, from_zero, strict] {
            node.verbs.dereg_mr_raw(mr).unwrap();
        }
        node.assert_no_findings();
    }
}

/// A driver that asks for it nevertheless, here because it was lied to about the capabilities, is refused the key.
#[test]
fn a_device_refuses_keys_with_relaxed_ordering_that_it_does_not_offer() {
    // The dword at 28 of `cmd_hca_cap` has relaxed_ordering_write as bit 23, and relaxed_ordering_read_pci_enabled as bit 22.
    let offset = QueryHcaCapOut::CAPABILITY.offset() as u32 + 28;
    for (mask, name) in [(1 << 23, "writes"), (1 << 22, "reads")] {
        let world = World::new(WorldConfig::default());
        let host = world.add(DeviceConfig { atomics: false, ..DeviceConfig::with_lid(1) }).unwrap();
        // The first two queries are about what the driver sets, the third is of what is then in force.
        for mask in [0, 0, mask] {
            let opcode = Some(CmdOpcode::QueryHcaCap.code() as u16);
            host.with_device(|device| device.faults_mut().arm(Fault::CorruptOutput { opcode, offset, mask }));
        }
        let mut node = Node::new(host);
        assert!(node.verbs.query_device().access.contains(Access::RELAXED_ORDERING), "{name}");
        let pd = node.verbs.alloc_pd().unwrap();
        let buffer = node.buffer(4096);
        let before = node.snapshot();
        let asked = register(&mut node.verbs, pd, buffer.bytes(), Access::RELAXED_ORDERING);
        let (opcode, status) = (0x200, CmdStatus::BadParam.code() as u8);
        assert!(
            matches!(asked, Err(RegMrError::Device(Error::CommandStatus { opcode: o, status: s, .. })) if (o, s) == (opcode, status)),
            "{name}: {asked:?}"
        );
        assert_eq!(node.snapshot(), before, "{name}");
        register(&mut node.verbs, pd, buffer.bytes(), Access::LOCAL_WRITE).unwrap();
    }
}

// contract: mr-overflow
#[test]
fn a_region_that_overflows_is_empty_or_is_not_memory() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pd = node.verbs.alloc_pd().unwrap();
    let before = node.snapshot();
    let map = OffsetMap::default();
    for (addr, length) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (0xffff_ffff_ffff_f000, 4096), (1, u64::MAX)] {
        let error = refused!(
            register_mapped(&mut node.verbs, pd, addr, length, Access::empty(), &map),
            Einval,
            RegMrError::Overflow { .. }
        );
        assert_eq!(error, RegMrError::Overflow { addr, length });
    }
    refused!(register_mapped(&mut node.verbs, pd, 0x1000, 0, Access::empty(), &map), Einval, RegMrError::Empty);
    // Address and device address that lie differently in their pages cannot be one list of pages.
    let crooked = OffsetMap { offset: 0x800 };
    refused!(
        register_mapped(&mut node.verbs, pd, 0x1000, 4096, Access::empty(), &crooked),
        Einval,
        RegMrError::Device(Error::Misaligned)
    );
    assert_eq!(node.snapshot(), before);
}

// contract: mr-key-reuse
#[test]
fn the_key_of_a_region_that_is_gone_is_no_region_s_for_long() {
    // Few keys, so that their numbers come again at once; a table of more regions than a key's low byte has values.
    let limits = Limits { log_max_mkey: 4, ..Limits::default() };
    let host = World::new(WorldConfig::default()).add(DeviceConfig { limits, ..DeviceConfig::with_lid(1) }).unwrap();
    let Ok(driver) = Driver::bring_up(machine(&host), &bareverbs_mlx5::Config::DEFAULT) else { panic!("bring-up") };
    let mut tables: Box<storage![Driver; pds: 1, mrs: 400]> = Box::new(Storage::new([]));
    let mut verbs = Verbs::new(driver, &mut *tables);
    let pd = verbs.alloc_pd().unwrap();
    let memory = host.memory(4096);
    let mut keys = std::collections::BTreeMap::new();
    for n in 0..600_usize {
        let region = verbs.reg_mr(pd, memory.whole(), ALL_ACCESS).unwrap();
        let (lkey, rkey) = (region.lkey().get(), region.rkey().get());
        assert_eq!(lkey, rkey);
        if let Some(before) = keys.insert(lkey, n) {
            assert!(n - before >= 200, "registration {n} has the key of registration {before}, which is gone");
        }
        assert!(verbs.dereg_mr(region).is_ok());
    }
}

/// A batch stays open while others of the program work: after its doorbell it looks at regions anew.
#[test]
fn an_open_batch_refuses_a_region_that_is_gone() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let bytes = pair.a.buffer(4096).bytes();
    let here = pair.a.verbs.reg_mr(a.pd, bytes, ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    let sge = here.sge(0, 8);
    let mut send = pair.a.verbs.take_send(a.qp);
    let mut batch = send.batch();
    batch.post(&SendWr::write(there.remote(0), &[sge]).signaled()).unwrap();
    batch.ring();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert!(pair.a.verbs.dereg_mr(here).is_ok());
    let fault = SgeFault::UnknownKey;
    let refused = batch.post(&SendWr::write(there.remote(0), &[sge]).signaled());
    assert_eq!(refused, Err(PostSendError::Sge { index: 0, lkey: sge.lkey, fault }));
    // The queue pair works.
    batch.post(&SendWr::write(there.remote(0), b"inline").signaled()).unwrap();
    batch.ring();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    // And after a request that a batch does not post as part of its caller.
    let bytes = pair.a.buffer(4096).bytes();
    let here = register(&mut pair.a.verbs, a.pd, bytes, ALL_ACCESS).unwrap();
    let sge = pair.a.verbs.mr_info(here).map(|mr| Sge { addr: mr.addr, length: 8, lkey: mr.lkey }).unwrap();
    batch.post(&SendWr::write(there.remote(0), &[sge])).unwrap();
    batch.post(&SendWr::write(there.remote(0), &[sge; 4])).unwrap();
    pair.a.verbs.dereg_mr_raw(here).unwrap();
    let refused = batch.post(&SendWr::write(there.remote(0), &[sge]).signaled());
    assert_eq!(refused, Err(PostSendError::Sge { index: 0, lkey: sge.lkey, fault }));
}

// contract: mr-full, mr-stale
#[test]
fn a_full_table_of_regions() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(4096);
    let reg = |node: &mut Node| register(&mut node.verbs, pd, buffer.bytes(), Access::empty());
    let mut all: Vec<_> = (0..16).map(|_| reg(&mut node).unwrap()).collect();
    let full = node.snapshot();
    refused!(reg(&mut node), Enomem, RegMrError::Full { capacity: 16 });
    assert_eq!(node.snapshot(), full);
    // One goes, one comes: and the old handle does not name the new one.
    let gone = all.pop().unwrap();
    node.verbs.dereg_mr_raw(gone).unwrap();
    let new = reg(&mut node).unwrap();
    refused!(node.verbs.dereg_mr_raw(gone), Einval, DeregMrError::Stale);
    assert_eq!(node.verbs.mr_info(gone), Err(StaleHandle));
    assert!(node.verbs.mr_info(new).is_ok());
    assert_eq!(node.snapshot(), full);
    for mr in all.into_iter().chain([new]) {
        node.verbs.dereg_mr_raw(mr).unwrap();
    }
    assert_eq!(node.snapshot().device.engine.mkeys, 0);
}

// contract: mr-full
#[test]
fn a_device_without_room() {
    // Two of eight keys never are keys.
    let limits = Limits { log_max_mkey: 3, ..Limits::default() };
    let mut node = node(DeviceConfig { limits, ..DeviceConfig::with_lid(1) });
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(4096);
    for _ in 0..3 {
        register(&mut node.verbs, pd, buffer.bytes(), Access::empty()).unwrap();
        node.verbs.alloc_mw(pd, MwType::Type1).unwrap();
    }
    let full = node.snapshot();
    let reg = register(&mut node.verbs, pd, buffer.bytes(), Access::empty());
    refused!(reg, Enomem, RegMrError::Device(Error::CommandStatus { .. }));
    refused!(node.verbs.alloc_mw(pd, MwType::Type2), Enomem, AllocMwError::Device(Error::CommandStatus { .. }));
    assert_eq!(node.snapshot(), full);
    node.assert_no_findings();
}

#[test]
fn firmware_that_gets_no_more_pages() {
    // The firmware may have what it starts with and nothing more, so sooner or later it makes no more objects.
    let config = bareverbs_mlx5::Config {
        firmware_pages: PageDemand::FEW.boot + PageDemand::FEW.init,
        ..bareverbs_mlx5::Config::DEFAULT
    };
    let host = World::new(WorldConfig::default()).add(instant(1)).unwrap();
    let mut node = Node::with_config(host, &config);
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(4096);
    let page = SamePage { device_addr: buffer.device_addr() };
    let mut made = Vec::new();
    let refusal = loop {
        let before = node.snapshot();
        match register_mapped(&mut node.verbs, pd, 0x1000_0000, 64 << 20, Access::empty(), &page) {
            Ok(mr) => made.push(mr),
            Err(error) => {
                assert_eq!(node.snapshot(), before);
                break error;
            }
        }
        // The driver sees the request for pages and has none to give.
        let _ = node.verbs.poll_event();
    };
    assert!(matches!(refusal, RegMrError::Device(Error::CommandStatus { .. })), "{refusal:?}");
    assert_eq!(refusal.errno(), Errno::Enomem, "{refusal:?}");
    for mr in made {
        node.verbs.dereg_mr_raw(mr).unwrap();
    }
}

#[test]
fn what_the_device_refuses_leaves_nothing_behind() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pd = node.verbs.alloc_pd().unwrap();
    let region = node.region(pd, 4096, ALL_ACCESS);
    let mw = node.verbs.alloc_mw(pd, MwType::Type1).unwrap();
    let before = node.snapshot();
    let fail = |node: &Node, opcode: CmdOpcode, status: CmdStatus| {
        let fault = Fault::CommandStatus { opcode: opcode.code() as u16, status: status.code() as u8, syndrome: 7 };
        node.host.with_device(|device| device.faults_mut().arm(fault));
    };
    fail(&node, CmdOpcode::CreateMkey, CmdStatus::LimErr);
    let reg = register(&mut node.verbs, pd, region.buffer.bytes(), Access::empty());
    refused!(reg, Enomem, RegMrError::Device(Error::CommandStatus { opcode: 0x200, status: 8, syndrome: 7 }));
    fail(&node, CmdOpcode::CreateMkey, CmdStatus::LimErr);
    refused!(node.verbs.alloc_mw(pd, MwType::Type1), Enomem, AllocMwError::Device(Error::CommandStatus { .. }));
    // A refused destroy leaves the object whole.
    fail(&node, CmdOpcode::DestroyMkey, CmdStatus::ResBusy);
    refused!(node.verbs.dereg_mr_raw(region.mr), Ebusy, DeregMrError::Device(_));
    assert!(node.verbs.mr_info(region.mr).is_ok());
    fail(&node, CmdOpcode::DestroyMkey, CmdStatus::BadRes);
    refused!(node.verbs.dealloc_mw(mw), Einval, DeallocMwError::Device(_));
    assert!(node.verbs.mw_info(mw).is_ok());
    assert_eq!(node.snapshot(), before);
    node.verbs.dealloc_mw(mw).unwrap();
    node.verbs.dereg_mr_raw(region.mr).unwrap();
    node.verbs.dealloc_pd(pd).unwrap();
}

// contract: pd-busy, pd-full
#[test]
fn domains_are_busy_while_used_and_few() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pds: Vec<_> = (0..4).map(|_| node.verbs.alloc_pd().unwrap()).collect();
    let full = node.snapshot();
    refused!(node.verbs.alloc_pd(), Enomem, AllocPdError::Full { capacity: 4 });
    assert_eq!(node.snapshot(), full);

    let region = node.region(pds[0], 4096, Access::empty());
    refused!(node.verbs.dealloc_pd(pds[0]), Ebusy, DeallocPdError::Busy { users: 1 });
    let mw = node.verbs.alloc_mw(pds[0], MwType::Type2).unwrap();
    let end = end_in(&mut node, pds[0], QpType::Rc, CAP, true);
    refused!(node.verbs.dealloc_pd(pds[0]), Ebusy, DeallocPdError::Busy { users: 3 });
    node.verbs.dereg_mr_raw(region.mr).unwrap();
    node.verbs.destroy_qp(end.qp).unwrap();
    refused!(node.verbs.dealloc_pd(pds[0]), Ebusy, DeallocPdError::Busy { users: 1 });
    node.verbs.dealloc_mw(mw).unwrap();
    node.verbs.dealloc_pd(pds[0]).unwrap();
    refused!(node.verbs.dealloc_pd(pds[0]), Einval, DeallocPdError::Stale);
    assert_eq!(node.snapshot().device.pds, 3);
}

// contract: mw-full
#[test]
fn a_full_table_of_windows() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pd = node.verbs.alloc_pd().unwrap();
    let all: Vec<_> =
        (0..8).map(|n| node.verbs.alloc_mw(pd, if n % 2 == 0 { MwType::Type1 } else { MwType::Type2 }).unwrap()).collect();
    let full = node.snapshot();
    for kind in [MwType::Type1, MwType::Type2] {
        refused!(node.verbs.alloc_mw(pd, kind), Enomem, AllocMwError::Full { capacity: 8 });
    }
    assert_eq!(node.snapshot(), full);
    for (n, mw) in all.into_iter().enumerate() {
        let info = node.verbs.mw_info(mw).unwrap();
        assert_eq!(info.kind, if n % 2 == 0 { MwType::Type1 } else { MwType::Type2 });
        assert_eq!((info.pd, info.binding), (pd, None));
        node.verbs.dealloc_mw(mw).unwrap();
        refused!(node.verbs.dealloc_mw(mw), Einval, DeallocMwError::Stale);
        assert_eq!(node.verbs.mw_info(mw), Err(StaleHandle));
    }
    assert_eq!(node.snapshot().device.engine.mkeys, 0);
}

// contract: mr-stale
#[test]
fn handles_of_another_device_name_nothing() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let (mine, other) = (pair.a.region(a.pd, 4096, ALL_ACCESS), pair.b.region(b.pd, 4096, ALL_ACCESS));
    let mw = pair.a.verbs.alloc_mw(a.pd, MwType::Type1).unwrap();
    let foreign_mw = pair.b.verbs.alloc_mw(b.pd, MwType::Type1).unwrap();
    let (before, verbs) = (pair.a.snapshot(), &mut pair.a.verbs);
    let buffer = &mine.buffer;
    refused!(register(verbs, b.pd, buffer.bytes(), Access::empty()), Einval, RegMrError::StalePd);
    refused!(verbs.alloc_mw(b.pd, MwType::Type1), Einval, AllocMwError::StalePd);
    refused!(verbs.dereg_mr_raw(other.mr), Einval, DeregMrError::Stale);
    refused!(verbs.dealloc_mw(foreign_mw), Einval, DeallocMwError::Stale);
    refused!(verbs.dealloc_pd(b.pd), Einval, DeallocPdError::Stale);
    assert_eq!(verbs.mr_info(other.mr), Err(StaleHandle));
    assert_eq!(verbs.mw_info(foreign_mw), Err(StaleHandle));
    let bind = |mr| Type1Bind {
        wr_id: 1,
        flags: SendFlags::empty(),
        mr,
        addr: mine.buffer.addr,
        length: 64,
        access: Access::REMOTE_READ,
    };
    refused!(verbs.bind_type1(a.qp, foreign_mw, &bind(mine.mr)), Einval, BindType1Error::Refused(BindRefused::StaleWindow));
    refused!(verbs.bind_type1(a.qp, mw, &bind(other.mr)), Einval, BindType1Error::Refused(BindRefused::StaleRegion));
    assert_eq!(pair.a.snapshot(), before);
}

// contract: mr-busy
#[test]
fn a_region_is_busy_while_windows_are_bound_to_it() {
    let mut node = node(DeviceConfig::with_lid(1));
    let end = end(&mut node, true);
    loopback(&mut node, &end);
    let region = node.region(end.pd, 8192, ALL_ACCESS);
    let other = node.region(end.pd, 8192, ALL_ACCESS);
    let windows = [(); 2].map(|()| node.verbs.alloc_mw(end.pd, MwType::Type1).unwrap());
    let request = |region: &Region, length| Type1Bind {
        wr_id: 9,
        flags: SendFlags::empty(),
        mr: region.mr,
        addr: region.buffer.addr,
        length,
        access: Access::REMOTE_READ,
    };
    let bind = |node: &mut Node, mw, request: &Type1Bind| {
        let rkey = node.verbs.bind_type1(end.qp, mw, request).unwrap();
        assert_eq!(node.completions(end.cq, 1)[0].status, WcStatus::Success);
        rkey
    };
    let busy = |node: &mut Node, count| {
        let kept = node.verbs.mr_info(region.mr).unwrap();
        let error = refused!(node.verbs.dereg_mr_raw(region.mr), Ebusy, DeregMrError::Busy { .. });
        assert_eq!(error, DeregMrError::Busy { bindings: count });
        assert_eq!(node.verbs.mr_info(region.mr), Ok(kept), "intact");
    };
    bind(&mut node, windows[0], &request(&region, 100));
    busy(&mut node, 1);
    bind(&mut node, windows[1], &request(&region, 200));
    busy(&mut node, 2);
    assert_eq!(node.snapshot().device.engine.bound_windows, 2);
    // Bound elsewhere, unbound: each frees the region of one.
    bind(&mut node, windows[0], &request(&other, 8192));
    busy(&mut node, 1);
    bind(&mut node, windows[1], &request(&region, 0));
    assert_eq!(node.verbs.mw_info(windows[1]).unwrap().binding, None);
    node.verbs.dereg_mr_raw(region.mr).unwrap();
    // Deallocation of a bound window frees its region.
    let bound = Binding { mr: other.mr, addr: other.buffer.addr, length: 8192, access: Access::REMOTE_READ };
    assert_eq!(node.verbs.mw_info(windows[0]).unwrap().binding, Some(bound));
    refused!(node.verbs.dereg_mr_raw(other.mr), Ebusy, DeregMrError::Busy { bindings: 1 });
    node.verbs.dealloc_mw(windows[0]).unwrap();
    node.verbs.dereg_mr_raw(other.mr).unwrap();
    node.verbs.dealloc_mw(windows[1]).unwrap();
    assert_eq!(node.snapshot().device.engine.mkeys, 0);
    node.assert_no_findings();
}

// contract: mw-dealloc-bound
#[test]
fn dealloc_of_a_bound_window_revokes_access_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let here = pair.a.region(a.pd, 4096, ALL_ACCESS);
    let there = pair.b.region(b.pd, 4096, Access::LOCAL_WRITE | Access::MW_BIND);
    let mw = pair.b.verbs.alloc_mw(b.pd, MwType::Type1).unwrap();
    let bind = Type1Bind {
        wr_id: 1,
        flags: SendFlags::empty(),
        mr: there.mr,
        addr: there.buffer.addr,
        length: 4096,
        access: Access::REMOTE_WRITE,
    };
    let rkey = pair.b.verbs.bind_type1(b.qp, mw, &bind).unwrap();
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    let write = |pair: &mut Pair| {
        let remote = Remote { addr: there.buffer.addr, rkey };
        let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 64)]), remote };
        pair.a.verbs.post_send(a.qp, &signaled(2, op)).unwrap();
        pair.a.completions(a.cq, 1)[0].status
    };
    assert_eq!(write(&mut pair), WcStatus::Success);
    pair.b.verbs.dealloc_mw(mw).unwrap();
    assert_eq!(write(&mut pair), WcStatus::RemAccessErr);
    pair.b.verbs.dereg_mr_raw(there.mr).unwrap();
}

/// What can be wrong with a bind, in the order in which the contract checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    // The first row: any of these may be named first.
    Window,
    Region,
    Type2,
    AccessFlag,
    UnknownAccessFlag,
    SendFlag,
    // The rows after it.
    State,
    RegionDomain,
    WindowDomain,
    NoBindRight,
    NoLocalWrite,
    Overflow,
    Range,
    QueueFull,
    TooManyPendingBinds,
}

use Wrong::*;

const WRONGS: [Wrong; 15] = [
    Window,
    Region,
    Type2,
    AccessFlag,
    UnknownAccessFlag,
    SendFlag,
    State,
    RegionDomain,
    WindowDomain,
    NoBindRight,
    NoLocalWrite,
    Overflow,
    Range,
    QueueFull,
    TooManyPendingBinds,
];

/// Returns the errno of a row, and whether the error is the one of exactly this defect.
fn expected(wrong: Wrong, error: &BindType1Error) -> (Errno, bool) {
    use BindType1Error::*;
    match wrong {
        Window => (Errno::Einval, matches!(error, Refused(BindRefused::StaleWindow))),
        Region => (Errno::Einval, matches!(error, Refused(BindRefused::StaleRegion))),
        Type2 => (Errno::Einval, matches!(error, Refused(BindRefused::WindowType { kind: MwType::Type2 }))),
        AccessFlag | UnknownAccessFlag => (Errno::Einval, matches!(error, Refused(BindRefused::AccessFlags { .. }))),
        SendFlag => (Errno::Einval, matches!(error, Flags { flags: SendFlags::SOLICITED })),
        State => (Errno::Enotconn, matches!(error, NotReady { state: QpState::Init })),
        RegionDomain | WindowDomain => (Errno::Eperm, matches!(error, Refused(BindRefused::Domain))),
        NoBindRight => (Errno::Eacces, matches!(error, Refused(BindRefused::NoBindRight))),
        NoLocalWrite => (Errno::Eacces, matches!(error, Refused(BindRefused::NoLocalWrite))),
        Wrong::Overflow => (Errno::Efault, matches!(error, Refused(BindRefused::Overflow))),
        Wrong::Range => (Errno::Erange, matches!(error, Refused(BindRefused::Range { .. }))),
        QueueFull => (Errno::Enospc, matches!(error, BindType1Error::QueueFull { free: 0..3, .. })),
        Wrong::TooManyPendingBinds => (Errno::Enomem, matches!(error, BindType1Error::TooManyPendingBinds)),
    }
}

/// Everything that a bind can be given, right and wrong.
struct Fixture {
    pair: Pair,
    ready: End,
    init: QpHandle,
    full: QpHandle,
    /// Regions in the queue pair's domain and in another, by their rights.
    regions: [[Region; 4]; 2],
    stale_mr: MrHandle,
    /// By domain and type.
    windows: [[MwHandle; 2]; 2],
    stale_mw: MwHandle,
    /// A window whose binds take all the room.
    filler: MwHandle,
}

impl Fixture {
    fn new() -> Self {
        let mut pair = Pair::new();
        let (ready, peer) = pair.connected();
        let other = pair.a.verbs.alloc_pd().unwrap();
        let small = bareverbs::QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let full = end_in(&mut pair.a, ready.pd, QpType::Rc, small, false);
        let opposite = end(&mut pair.b, false);
        pair.connect(&full, &opposite, &Connection::default());
        let init = end_in(&mut pair.a, ready.pd, QpType::Rc, small, false);
        let steps = rc_steps(&Connection::default(), bareverbs::Lid::new(2), peer.qpn, 0, 0);
        pair.a.verbs.modify_qp(init.qp, &steps[0].0, steps[0].1).unwrap();
        let stale = end_in(&mut pair.a, ready.pd, QpType::Rc, small, false);
        pair.a.verbs.destroy_qp(stale.qp).unwrap();

        let rights = [Access::MW_BIND, Access::LOCAL_WRITE];
        let regions = [ready.pd, other].map(|pd| {
            [0, 1, 2, 3].map(|bits: usize| {
                let lacking = rights.iter().enumerate().filter(|(n, _)| bits >> n & 1 != 0);
                let access = lacking.fold(Access::LOCAL_WRITE | Access::MW_BIND, |sum, (_, flag)| sum - *flag);
                pair.a.region(pd, 4096, access)
            })
        });
        let gone = pair.a.region(ready.pd, 4096, ALL_ACCESS);
        pair.a.verbs.dereg_mr_raw(gone.mr).unwrap();
        let windows = [ready.pd, other]
            .map(|pd: PdHandle| [MwType::Type1, MwType::Type2].map(|kind| pair.a.verbs.alloc_mw(pd, kind).unwrap()));
        let stale_mw = pair.a.verbs.alloc_mw(ready.pd, MwType::Type1).unwrap();
        pair.a.verbs.dealloc_mw(stale_mw).unwrap();
        let filler = pair.a.verbs.alloc_mw(ready.pd, MwType::Type1).unwrap();
        // Nothing polls, so the completions stay in the queue.
        let here = pair.a.region(ready.pd, 4096, ALL_ACCESS);
        let there = pair.b.region(opposite.pd, 4096, ALL_ACCESS);
        let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 8)]), remote: there.remote(0) };
        while pair.a.verbs.post_send(full.qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op }).is_ok() {}
        Self { pair, ready, init: init.qp, full: full.qp, regions, stale_mr: gone.mr, windows, stale_mw, filler }
    }

    /// Binds with exactly these defects.
    fn bind(&mut self, wrongs: &[Wrong]) -> Result<Rkey, BindType1Error> {
        let has = |wrong| wrongs.contains(&wrong);
        let qp = match () {
            () if has(State) => self.init,
            () if has(QueueFull) => self.full,
            () => self.ready.qp,
        };
        let region =
            &self.regions[usize::from(has(RegionDomain))][usize::from(has(NoBindRight)) | usize::from(has(NoLocalWrite)) << 1];
        let mw =
            if has(Window) { self.stale_mw } else { self.windows[usize::from(has(WindowDomain))][usize::from(has(Type2))] };
        let mut access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        access.set(Access::LOCAL_WRITE, has(AccessFlag));
        access.set(Access::from_bits_retain(1 << 30), has(UnknownAccessFlag));
        let start = region.buffer.addr;
        let (addr, length) = match () {
            () if has(Wrong::Overflow) => (start, u64::MAX - start + 1),
            () if has(Wrong::Range) => (start + 1, 4096),
            () => (start, 4096),
        };
        let mut flags = SendFlags::SIGNALED | SendFlags::FENCE;
        flags.set(SendFlags::SOLICITED, has(SendFlag));
        let mr = if has(Wrong::Region) { self.stale_mr } else { region.mr };
        self.pair.a.verbs.bind_type1(qp, mw, &Type1Bind { wr_id: 3, flags, mr, addr, length, access })
    }

    /// Checks that a bind with these defects gives the error of the earliest row among them.
    fn check(&mut self, wrongs: &[Wrong]) {
        let before = (self.pair.a.snapshot(), self.windows.map(|of| of.map(|mw| self.pair.a.verbs.mw_info(mw))));
        let error = match self.bind(wrongs) {
            Ok(_) => panic!("bound in spite of {wrongs:?}"),
            Err(error) => error,
        };
        let first = wrongs.iter().min().copied().unwrap();
        let (errno, _) = expected(first, &error);
        assert_eq!(error.errno(), errno, "{wrongs:?}: {error:?}");
        let of_row = wrongs.iter().any(|wrong| matches!(expected(*wrong, &error), (of, true) if of == errno));
        assert!(of_row, "{wrongs:?}: {error:?}");
        let after = (self.pair.a.snapshot(), self.windows.map(|of| of.map(|mw| self.pair.a.verbs.mw_info(mw))));
        assert_eq!(after, before, "{wrongs:?}");
    }
}

/// Returns whether two defects cannot be had in one request.
fn exclusive(one: Wrong, two: Wrong) -> bool {
    let queue_pairs = [State, QueueFull];
    let windows = [Window, Type2, WindowDomain];
    let regions = [Wrong::Region, RegionDomain];
    let same = |group: &[Wrong]| group.contains(&one) && group.contains(&two);
    // A stale handle has no other defect.
    same(&queue_pairs)
        || (same(&windows) && [one, two].contains(&Window))
        || (same(&regions))
        || ([one, two].contains(&Wrong::Region) && [one, two].iter().any(|w| [NoBindRight, NoLocalWrite].contains(w)))
}

// contract: bind-invalid, bind-state, bind-domain, bind-rights, bind-overflow, bind-range, bind-queue-full, bind-records-full
#[test]
fn bind_checks_come_in_the_order_of_the_contract() {
    let mut fixture = Fixture::new();
    // The rows before the last, alone and in pairs, while there is room to remember binds; then all of them without.
    for records_full in [false, true] {
        if records_full {
            let (mr, flags) = (fixture.regions[0][0].mr, SendFlags::SIGNALED);
            let unbind = Type1Bind { wr_id: 3, flags, mr, addr: 0, length: 0, access: Access::empty() };
            while fixture.pair.a.verbs.bind_type1(fixture.ready.qp, fixture.filler, &unbind).is_ok() {}
            refused!(fixture.bind(&[]), Enomem, BindType1Error::TooManyPendingBinds);
        }
        let extra: &[Wrong] = if records_full { &[Wrong::TooManyPendingBinds] } else { &[] };
        for (n, one) in WRONGS[..14].iter().enumerate() {
            fixture.check(&[&[*one], extra].concat());
            for two in WRONGS[..14][n + 1..].iter().filter(|two| !exclusive(*one, **two)) {
                fixture.check(&[&[*one, *two], extra].concat());
            }
        }
    }
    // Nothing of all that was posted: what is in the queues are the good binds alone.
    let done = fixture.pair.a.completions(fixture.ready.cq, 8);
    assert!(done.iter().all(|done| done.status == WcStatus::Success), "{done:?}");
    assert!(fixture.bind(&[]).is_ok(), "the records are free again");
    fixture.pair.assert_no_findings();
}

// contract: bind-unbind
#[test]
fn an_unbind_ignores_region_address_and_access() {
    let mut fixture = Fixture::new();
    let mw = fixture.windows[0][0];
    let first = fixture.bind(&[]).unwrap();
    // The region's handle is stale, the range is nonsense, the right is one that no region gives.
    let unbind = Type1Bind {
        wr_id: 4,
        flags: SendFlags::empty(),
        mr: fixture.stale_mr,
        addr: u64::MAX,
        length: 0,
        access: Access::REMOTE_ATOMIC,
    };
    let second = fixture.pair.a.verbs.bind_type1(fixture.ready.qp, mw, &unbind).unwrap();
    assert_ne!(first, second);
    let info = fixture.pair.a.verbs.mw_info(mw).unwrap();
    assert_eq!((info.rkey, info.binding), (second, None));
    let done = fixture.pair.a.completions(fixture.ready.cq, 2);
    assert!(done.iter().all(|done| done.status == WcStatus::Success), "{done:?}");
    assert_eq!(fixture.pair.a.snapshot().device.engine.bound_windows, 0);
    // Checks before that row still count, and those that do not read the region.
    let handle = fixture.stale_mw;
    let stale = fixture.pair.a.verbs.bind_type1(fixture.ready.qp, handle, &unbind);
    refused!(stale, Einval, BindType1Error::Refused(BindRefused::StaleWindow));
    let early = fixture.pair.a.verbs.bind_type1(fixture.init, mw, &unbind);
    refused!(early, Enotconn, BindType1Error::NotReady { state: QpState::Init });
    let full = fixture.pair.a.verbs.bind_type1(fixture.full, mw, &unbind);
    refused!(full, Enospc, BindType1Error::QueueFull { .. });
}

// contract: bind-invalid
#[test]
fn binds_and_send_flags() {
    let mut fixture = Fixture::new();
    let (mw, region) = (fixture.windows[0][0], fixture.regions[0][0].clone());
    let end = fixture.ready;
    let mut bind = |qp, flags| {
        let access = Access::REMOTE_READ;
        let request = Type1Bind { wr_id: 1, flags, mr: region.mr, addr: region.buffer.addr, length: 1, access };
        fixture.pair.a.verbs.bind_type1(qp, mw, &request)
    };
    for flags in (0..16).map(SendFlags::from_bits_retain) {
        let wrong = flags - (SendFlags::FENCE | SendFlags::SIGNALED);
        let bound = bind(end.qp, flags);
        if wrong.is_empty() {
            bound.unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        } else {
            let error = refused!(bound, Einval, BindType1Error::Flags { .. });
            assert_eq!(error, BindType1Error::Flags { flags: wrong });
        }
    }
    refused!(bind(end.qp, SendFlags::from_bits_retain(1 << 9)), Einval, BindType1Error::Flags { .. });
}

#[test]
fn binds_on_an_unreliable_connection() {
    let mut pair = Pair::new();
    let (a, _) = pair.connected();
    let uc = end_in(&mut pair.a, a.pd, QpType::Uc, CAP, true);
    let region = pair.a.region(a.pd, 4096, ALL_ACCESS);
    let mw = pair.a.verbs.alloc_mw(a.pd, MwType::Type1).unwrap();
    let bind = |flags| Type1Bind {
        wr_id: 1,
        flags,
        mr: region.mr,
        addr: region.buffer.addr,
        length: 4096,
        access: Access::REMOTE_READ,
    };
    // Fences are for reliable transports; and UC has windows, so the state is what is wrong.
    let fenced = pair.a.verbs.bind_type1(uc.qp, mw, &bind(SendFlags::FENCE));
    refused!(fenced, Einval, BindType1Error::Flags { flags: SendFlags::FENCE });
    let early = pair.a.verbs.bind_type1(uc.qp, mw, &bind(SendFlags::SIGNALED));
    refused!(early, Enotconn, BindType1Error::NotReady { state: QpState::Reset });
}

// contract: bind-transport
#[test]
fn a_datagram_queue_pair_binds_no_windows() {
    let mut node = node(DeviceConfig::with_lid(1));
    let pd = node.verbs.alloc_pd().unwrap();
    let ud = end_in(&mut node, pd, QpType::Ud, CAP, true);
    let region = node.region(pd, 4096, ALL_ACCESS);
    let mw = node.verbs.alloc_mw(pd, MwType::Type1).unwrap();
    let bind = Type1Bind {
        wr_id: 1,
        flags: SendFlags::empty(),
        mr: region.mr,
        addr: region.buffer.addr,
        length: 4096,
        access: Access::REMOTE_READ,
    };
    // The transport is checked before the state.
    refused!(node.verbs.bind_type1(ud.qp, mw, &bind), Einval, BindType1Error::Transport { qp_type: QpType::Ud });
    ud_to_rts(&mut node, ud.qp);
    refused!(node.verbs.bind_type1(ud.qp, mw, &bind), Einval, BindType1Error::Transport { qp_type: QpType::Ud });
    node.assert_no_findings();
}

// contract: bind-new-key
#[test]
fn a_bind_gives_a_new_key_each_time_also_when_the_low_byte_wraps() {
    let mut node = node(DeviceConfig::with_lid(1));
    let end = end(&mut node, true);
    loopback(&mut node, &end);
    let region = node.region(end.pd, 4096, ALL_ACCESS);
    let mw = node.verbs.alloc_mw(end.pd, MwType::Type1).unwrap();
    let request = Type1Bind {
        wr_id: 1,
        flags: SendFlags::empty(),
        mr: region.mr,
        addr: region.buffer.addr,
        length: 4096,
        access: Access::REMOTE_READ,
    };
    let mut key = node.verbs.mw_info(mw).unwrap().rkey;
    for n in 0..300 {
        let next = node.verbs.bind_type1(end.qp, mw, &request).unwrap();
        assert_ne!(next, key, "bind {n}");
        assert_eq!(next.index(), key.index(), "the index stays");
        assert_eq!(node.completions(end.cq, 1)[0].status, WcStatus::Success, "bind {n}");
        key = next;
    }
    assert_eq!(node.snapshot().device.engine.bound_windows, 1);
    node.assert_no_findings();
}

// contract: mr-zero-based
#[test]
fn a_zero_based_region_begins_anywhere_in_a_page() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let mut here = pair.a.region(a.pd, 16384, ALL_ACCESS);
    let message = pattern(3, 9000);
    here.buffer.write(0, &message);
    for offset in [0, 1, 64, 4095, 4096, 5000] {
        let mut buffer = pair.b.buffer(16384);
        let before = pair.b.snapshot();
        let mr = register(&mut pair.b.verbs, b.pd, buffer.part(offset, 9000), ALL_ACCESS | Access::ZERO_BASED);
        let mr = mr.unwrap_or_else(|error| panic!("region at {offset}: {error}"));
        let info = pair.b.verbs.mr_info(mr).unwrap();
        // A peer writes all of it from address 0 on.
        let sges = [here.sge(0, 9000)];
        let op = SendOp::Write { payload: Payload::Sges(&sges), remote: Remote { addr: 0, rkey: info.rkey } };
        pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
        assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success, "region at {offset}");
        let at = offset;
        assert_eq!(buffer.read(at, 9000), message, "region at {offset}");
        assert!(buffer.read(0, at).iter().all(|byte| *byte == 0));
        assert!(buffer.read(at + 9000, 16384 - 9000 - at).iter().all(|byte| *byte == 0));
        // Its own addresses are good for sending, too.
        buffer.write(at + 10, b"zero-based");
        let sges = [bareverbs::Sge { addr: 10, length: 10, lkey: info.lkey }];
        let op = SendOp::Write { payload: Payload::Sges(&sges), remote: here.remote(12000) };
        pair.b.verbs.post_send(b.qp, &signaled(2, op)).unwrap();
        assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
        assert_eq!(here.buffer.read(12000, 10), b"zero-based");
        // One byte more than it has.
        let sges = [here.sge(0, 9000)];
        let op = SendOp::Write { payload: Payload::Sges(&sges), remote: Remote { addr: 1, rkey: info.rkey } };
        pair.a.verbs.post_send(a.qp, &signaled(3, op)).unwrap();
        assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RemAccessErr, "region at {offset}");
        pair.b.verbs.dereg_mr_raw(mr).unwrap();
        assert_eq!(pair.b.snapshot().device.engine.mkeys, before.device.engine.mkeys, "region at {offset}");
        for (node, end) in [(&mut pair.a, &a), (&mut pair.b, &b)] {
            let reset = bareverbs::QpAttr { state: QpState::Reset, ..Default::default() };
            node.verbs.modify_qp(end.qp, &reset, bareverbs::QpAttrMask::STATE).unwrap();
        }
        pair.connect(&a, &b, &Connection::default());
    }
    pair.assert_no_findings();
}

#[test]
fn a_query_of_a_key_tells_whether_its_window_is_bound() {
    let mut pair = Pair::new();
    let (_, b) = pair.connected();
    let region = pair.b.region(b.pd, 8192, ALL_ACCESS);
    let key = region.info.rkey;
    let state = pair.b.verbs.direct().query_mkey(key.index()).unwrap();
    assert_eq!((state.tag, state.free), (key.tag(), false));
    assert_eq!((state.start, state.length), (region.buffer.addr, 8192));
    let mw = pair.b.verbs.alloc_mw(b.pd, MwType::Type1).unwrap();
    let fresh = pair.b.verbs.mw_info(mw).unwrap().rkey;
    let state = pair.b.verbs.direct().query_mkey(fresh.index()).unwrap();
    assert_eq!((state.tag, state.free), (fresh.tag(), true));
    let bind = Type1Bind {
        wr_id: 1,
        flags: SendFlags::SIGNALED,
        mr: region.mr,
        addr: region.buffer.addr + 16,
        length: 100,
        access: Access::REMOTE_READ,
    };
    let bound = pair.b.verbs.bind_type1(b.qp, mw, &bind).unwrap();
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    let state = pair.b.verbs.direct().query_mkey(bound.index()).unwrap();
    assert_eq!((state.tag, state.free), (bound.tag(), false));
    assert_eq!((state.start, state.length), (region.buffer.addr + 16, 100));
    assert!(pair.b.verbs.direct().query_mkey(0xff_fff0).is_err());
}

#[test]
fn windows_do_not_begin_with_the_key_of_the_one_before() {
    let mut config = DeviceConfig::with_lid(1);
    config.limits.log_max_mkey = 4;
    let mut node = node(config);
    let pd = node.verbs.alloc_pd().unwrap();
    let mut seen = Vec::new();
    for _ in 0..200 {
        let mw = node.verbs.alloc_mw(pd, MwType::Type1).unwrap();
        let key = node.verbs.mw_info(mw).unwrap().rkey;
        assert!(!seen.contains(&key), "{key:?} comes again");
        seen.push(key);
        node.verbs.dealloc_mw(mw).unwrap();
    }
    let indices: std::collections::BTreeSet<u32> = seen.iter().map(|key| key.index()).collect();
    assert!(indices.len() < 16, "the indices do come again");
}
