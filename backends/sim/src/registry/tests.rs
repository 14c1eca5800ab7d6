//! The registry alone.

use super::*;

fn registry() -> Registry {
    Registry::new(&Limits::default(), FIXED + (1 << 20))
}

#[test]
fn what_is_referred_to_stays() {
    let mut registry = registry();
    let pd = registry.create(ObjectKind::Pd, 0, vec![]).unwrap();
    let key = registry.create(ObjectKind::Mkey, 0, vec![Resource::pd(pd)]).unwrap();
    assert_eq!(registry.create(ObjectKind::Mkey, 0, vec![Resource::pd(pd + 1)]), Err(CmdStatus::BadRes));
    assert_eq!(registry.destroy(Resource::pd(pd)), Err(CmdStatus::BadResState));
    // To itself: nothing changes.
    registry.change_use(Resource::mkey(key), Some(Resource::pd(pd)), Some(Resource::pd(pd))).unwrap();
    assert_eq!(registry.destroy(Resource::pd(pd)), Err(CmdStatus::BadResState));
    let other = registry.create(ObjectKind::Pd, 0, vec![]).unwrap();
    registry.change_use(Resource::mkey(key), Some(Resource::pd(pd)), Some(Resource::pd(other))).unwrap();
    assert_eq!(registry.destroy(Resource::pd(pd)), Ok(0));
    assert_eq!(registry.destroy(Resource::pd(other)), Err(CmdStatus::BadResState));
    registry.destroy(Resource::mkey(key)).unwrap();
    registry.destroy(Resource::pd(other)).unwrap();
    assert_eq!(registry.destroy(Resource::pd(other)), Err(CmdStatus::BadRes));
    assert_eq!(registry.memory_used(), FIXED);
}

#[test]
fn a_key_that_windows_name_stays_until_none_does() {
    let mut registry = registry();
    let key = Resource::mkey(registry.create(ObjectKind::Mkey, 0, vec![]).unwrap());
    registry.name(key);
    registry.name(key);
    registry.unname(key);
    assert_eq!(registry.destroy(key), Err(CmdStatus::BadResState));
    registry.unname(key);
    registry.unname(key);
    assert_eq!(registry.destroy(key), Ok(0));
}

#[test]
fn memory_and_numbers_end() {
    let mut registry = registry();
    assert_eq!(registry.create(ObjectKind::Umem, 1 << 20, vec![]), Err(CmdStatus::NoResources));
    let umem = Resource::umem(registry.create(ObjectKind::Umem, 1 << 19, vec![]).unwrap());
    assert_eq!(registry.create(ObjectKind::Umem, 1 << 19, vec![]), Err(CmdStatus::NoResources));
    registry.set_memory(umem, 16);
    registry.create(ObjectKind::Umem, 1 << 19, vec![]).unwrap();
    let domains = std::iter::from_fn(|| registry.create(ObjectKind::Xrcd, 0, vec![]).ok()).count();
    assert_eq!((domains, registry.count(ObjectKind::Xrcd)), (255, 255));
    assert_eq!(registry.create(ObjectKind::Xrcd, 0, vec![]), Err(CmdStatus::LimErr));
    registry.clear(&Limits::default());
    assert_eq!((registry.memory_used(), registry.count(ObjectKind::Xrcd)), (FIXED, 0));
}

#[test]
fn a_context_stays_while_it_owns_something() {
    let mut registry = registry();
    let uid = registry.create(ObjectKind::UserContext, 0, vec![]).unwrap();
    let (context, owner, other) = (Resource::user_context(uid), Owner::new(uid as u16), Owner::new(uid as u16 + 1));
    assert!(registry.is_present(owner) && registry.is_present(Owner::new(0xffff)) && !registry.is_present(other));
    let [own, shared, kernel] = [owner, Owner::new(0xffff), Owner::KERNEL].map(|owner| {
        let pd = Resource::pd(registry.create(ObjectKind::Pd, 0, vec![]).unwrap());
        registry.set_owner(pd, owner);
        pd
    });
    assert!(registry.may_name(owner, own) && registry.may_name(owner, shared) && !registry.may_name(owner, kernel));
    assert!(!registry.may_name(other, own) && registry.may_name(Owner::KERNEL, own));
    assert_eq!(registry.destroy(context), Err(CmdStatus::BadResState));
    registry.destroy(own).unwrap();
    registry.destroy(context).unwrap();
}

/// What leads to hundreds of thousands of places gives one of them up at once.
#[test]
fn a_use_that_ends_is_not_searched_for() {
    let mut registry = Registry::new(&Limits::default(), FIXED + (64 << 20));
    let [often, last] = [(); 2].map(|()| Resource::pd(registry.create(ObjectKind::Pd, 0, vec![]).unwrap()));
    let table = registry.create(ObjectKind::FlowTable, 0, vec![]).unwrap();
    let table = Resource::new(ObjectKind::FlowTable, table);
    let begin = std::time::Instant::now();
    for _ in 0..500_000 {
        registry.change_use(table, None, Some(often)).unwrap();
    }
    for _ in 0..100_000 {
        registry.change_use(table, None, Some(last)).unwrap();
    }
    let slow = begin.elapsed();
    let begin = std::time::Instant::now();
    for round in 0..100_000 {
        assert_eq!(registry.destroy(last), Err(CmdStatus::BadResState), "{round}");
        registry.change_use(table, Some(last), None).unwrap();
    }
    assert!(begin.elapsed() < slow * 5 + std::time::Duration::from_secs(1), "{:?}, {slow:?}", begin.elapsed());
    assert_eq!(registry.destroy(last), Ok(0));
    assert_eq!(registry.destroy(often), Err(CmdStatus::BadResState));
    // What was never referred to changes nothing.
    registry.change_use(table, Some(last), None).unwrap();
    registry.destroy(table).unwrap();
    assert_eq!(registry.destroy(often), Ok(0));
}
