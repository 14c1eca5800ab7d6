//! Storage on the heap: as many objects as it was made for, and no stack.

use std::boxed::Box;
use std::hint::black_box;
use std::thread;
use std::vec::Vec;

use super::mock::Mock;
use super::{ALL_RIGHTS, BASE, CAP, LENGTH, register};
use crate::error::{AllocMwError, AllocPdError, CreateCqError, CreateQpError, Errno, RegMrError};
use crate::kept_verbs::KeptVerbs;
use crate::storage::{BoxedQpRings, BoxedSrqEntries, BoxedStorage, Capacities, RingSizes};
use crate::{Access, MwType, QpInit, QpType, SrqCap, SrqInit, Verbs};

const SIZES: RingSizes = RingSizes {
    send_blocks: 16,
    recv_entries: 8,
    cap: crate::QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
};

#[test]
fn each_table_has_the_room_that_it_was_given_and_no_more() {
    for [pds, mrs, mws, cqs, qps, srqs] in black_box([[1, 1, 1, 1, 1, 1], [1, 3, 0, 2, 4, 0], [3, 17, 9, 5, 11, 2]]) {
        let rings: Vec<_> = (0..qps).map(|_| BoxedQpRings::new(&SIZES)).collect();
        let places: Vec<_> = (0..srqs).map(|_| BoxedSrqEntries::new(7)).collect();
        let capacities = Capacities { pds, mrs, mws, cqs };
        let (rings, places) = (Vec::leak(rings), Vec::leak(places));
        let (rings, places) = (rings.iter().map(BoxedQpRings::view), places.iter().map(BoxedSrqEntries::view));
        let storage = BoxedStorage::with_srqs(&capacities, rings, places);
        let mut verbs = KeptVerbs::new(Verbs::new(Mock::new(), Box::leak(Box::new(storage))));
        fill(&mut verbs, &capacities, [qps, srqs]);
    }
}

fn fill(verbs: &mut KeptVerbs<Mock>, capacities: &Capacities, [qps, srqs]: [u16; 2]) {
    let Capacities { pds, mrs, mws, cqs } = *capacities;
    let pd = (0..pds).map(|_| verbs.alloc_pd().unwrap()).last().unwrap();
    assert_eq!(verbs.alloc_pd(), Err(AllocPdError::Full { capacity: usize::from(pds) }));
    let mr = (0..mrs).map(|_| register(verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap()).last().unwrap();
    assert_eq!(register(verbs, pd, BASE, LENGTH, ALL_RIGHTS), Err(RegMrError::Full { capacity: usize::from(mrs) }));
    let cq = (0..cqs).map(|_| verbs.create_cq(64).unwrap()).last().unwrap();
    assert_eq!(verbs.create_cq(64), Err(CreateCqError::Full { capacity: usize::from(cqs) }));
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
    let qp = (0..qps).map(|_| verbs.create_qp(&init).unwrap()).last().unwrap();
    assert_eq!(verbs.create_qp(&init), Err(CreateQpError::Full { capacity: usize::from(qps), fitting: usize::from(qps) }));
    let init = SrqInit { pd, cap: SrqCap { max_wr: 7, max_sge: 1 } };
    let shared: Vec<_> = (0..srqs).map(|_| verbs.create_srq(&init).unwrap()).collect();
    assert_eq!(verbs.create_srq(&init).err().map(|error| error.errno()), Some(Errno::Enomem));
    drop(shared);
    let windows: Vec<_> = (0..mws).map(|_| verbs.alloc_mw(pd, MwType::Type1).unwrap()).collect();
    assert_eq!(verbs.alloc_mw(pd, MwType::Type1), Err(AllocMwError::Full { capacity: usize::from(mws) }));
    // Each window is another: the last has what it was bound to.
    super::set_state(verbs, qp, crate::QpState::Rts);
    for (mw, length) in windows.iter().zip(1..) {
        let bind = crate::Type1Bind {
            wr_id: length,
            flags: crate::SendFlags::SIGNALED,
            mr,
            addr: BASE,
            length,
            access: Access::REMOTE_READ,
        };
        if verbs.bind_type1(qp, *mw, &bind).is_err() {
            // The ring is full.
            break;
        }
        assert_eq!(verbs.mw_info(*mw).unwrap().binding.map(|binding| binding.length), Some(length));
    }
}

#[test]
fn rings_are_powers_of_two_that_suffice() {
    for (wanted, got) in [(0, 0), (1, 1), (3, 4), (64, 64), (65, 128), (32_768, 32_768), (u32::MAX, 32_768)] {
        let rings = BoxedQpRings::new(&RingSizes { send_blocks: wanted, recv_entries: wanted, ..SIZES });
        let view = rings.view();
        assert_eq!((view.send.len(), view.recv.len()), (got, got), "{wanted}");
    }
    for (wanted, got) in [(0, 2), (1, 2), (2, 4), (3, 4), (255, 256), (32_767, 32_768), (u32::MAX, 32_768)] {
        assert_eq!(BoxedSrqEntries::new(wanted).view().entries.len(), got, "{wanted}");
    }
}

/// Tables of megabytes, by a thread with little stack.
#[test]
fn no_table_is_on_the_stack() {
    let large = thread::Builder::new().stack_size(64 << 10).spawn(|| {
        let rings: Vec<_> = (0..256).map(|_| BoxedQpRings::new(&SIZES)).collect();
        let capacities = Capacities { pds: 1, mrs: 4096, mws: 8192, cqs: 64 };
        let mut storage = BoxedStorage::new(&capacities, rings.iter().map(BoxedQpRings::view));
        let mut verbs = Verbs::new(Mock::new(), &mut storage);
        verbs.alloc_pd().is_ok()
    });
    assert!(large.unwrap().join().unwrap());
}
