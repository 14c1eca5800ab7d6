//! Storage in statics, as firmware has it: rings as they are, tables behind a cell that gives them out once.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use bareverbs::storage::{QpRings, RingsView, Storage};
use bareverbs::{Access, Payload, QpCap, QpInit, QpType, QueuePair, RecvWr, SendOp, Verbs, WcStatus, storage};
use bareverbs_mlx5::Config;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_tests::{ALL_ACCESS, Driver, machine, rc_steps, register, signaled, without_rnr_limit};

/// Rings of different sizes: 16 requests of three blocks of 64 bytes and 16 receives; half of that, twice.
static LONG: QpRings<64, 16> = QpRings::new();
static SHORT: [QpRings<32, 8>; 2] = [const { QpRings::new() }; 2];

type Tables = storage!['static, Driver; pds: 1, mrs: 2, mws: 1, cqs: 1, qps: 3];

/// The tables are made when the program is compiled. The lock stands for any cell that lends its value once.
static TABLES: Mutex<Tables> = Mutex::new(Storage::new(rings()));

const fn rings() -> [RingsView<'static>; 3] {
    let [first, second] = &SHORT;
    [LONG.view(), first.view(), second.view()]
}

#[test]
fn verbs_over_statics() {
    let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap();
    // Twice, because what the storage held before must not matter.
    for round in 0..2 {
        let Ok(driver) = Driver::bring_up(machine(&host), &Config::DEFAULT) else { panic!("bring-up") };
        let mut tables = TABLES.lock().unwrap();
        let mut verbs = Verbs::new(driver, &mut *tables);
        let pd = verbs.alloc_pd().unwrap();
        let memory = host.memory(4096);
        let mr = register(&mut verbs, pd, memory.whole(), ALL_ACCESS).unwrap();
        let info = verbs.mr_info(mr).unwrap();
        let mut cq = verbs.create_cq(64).unwrap();
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
        // The short rings first, then the long ones, and then there are none.
        let qps = [(); 3].map(|()| verbs.create_qp(&init).unwrap());
        assert_eq!(verbs.create_qp(&init).err(), Some(bareverbs::error::CreateQpError::Full { capacity: 3, fitting: 3 }));
        let lid = verbs.wait_active(1, Duration::from_secs(1)).unwrap().lid;
        for mut qp in qps {
            let qpn = verbs.qp_info(qp.handle()).unwrap().qpn;
            for (attr, mask) in rc_steps(&without_rnr_limit(), lid, qpn, 3, 3) {
                verbs.modify_qp(qp.handle(), &attr, mask).unwrap();
            }
            let remote = bareverbs::Remote { addr: info.addr, rkey: info.rkey };
            for number in 0..100 {
                let op = SendOp::Write { payload: Payload::Inline(&[number as u8]), remote };
                qp.send.post(&signaled(number, op)).unwrap();
                let mut one = [bareverbs::Completion::EMPTY];
                while cq.poll(&mut one).unwrap() == 0 {
                    host.world().advance(Duration::from_micros(1));
                }
                assert_eq!((one[0].wr_id, one[0].status, one[0].qp), (number, WcStatus::Success, qp.handle()), "round {round}");
            }
        }
        assert_eq!(verbs.mr_info(mr).unwrap().access & Access::MW_BIND, Access::MW_BIND);
        drop(cq);
        let Ok(driver) = verbs.into_provider() else { panic!("somebody has a queue") };
        assert!(driver.teardown().is_ok());
    }
}

/// Storage that is lent for ever: queues of verbs over it may go to any thread.
static LENT: Mutex<storage!['static, Driver; pds: 1, cqs: 1, qps: 1]> = Mutex::new(Storage::new([LENT_RINGS.view()]));
static LENT_RINGS: QpRings<64, 16> = QpRings::new();

#[test]
fn queues_over_statics_go_to_threads_of_their_own() {
    let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap();
    let Ok(driver) = Driver::bring_up(machine(&host), &Config::DEFAULT) else { panic!("bring-up") };
    let mut verbs: Verbs<'static, Driver> = Verbs::new(driver, &mut **Box::leak(Box::new(LENT.lock().unwrap())));
    let pd = verbs.alloc_pd().unwrap();
    let mut completions = verbs.create_cq(16).unwrap();
    let cq = completions.handle();
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    let qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true }).unwrap();
    let QueuePair { mut send, mut recv } = qp;
    let qp = send.qp();
    let (lid, qpn) = (verbs.wait_active(1, Duration::from_secs(1)).unwrap().lid, verbs.qp_info(qp).unwrap().qpn);
    for (attr, mask) in rc_steps(&without_rnr_limit(), lid, qpn, 3, 3) {
        verbs.modify_qp(qp, &attr, mask).unwrap();
    }
    let receiver = thread::spawn(move || {
        recv.post(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        recv
    });
    let sender = thread::spawn(move || {
        send.post(&signaled(2, SendOp::Send { payload: Payload::Inline(b"") })).unwrap();
        send
    });
    let poller = thread::spawn(move || {
        let mut found = Vec::new();
        while found.len() < 2 {
            found.extend(completions.completions().map(Result::unwrap));
            host.world().advance(Duration::from_micros(1));
        }
        (completions, found)
    });
    let (completions, mut found) = poller.join().unwrap();
    found.sort_by_key(|completion| completion.wr_id);
    let facts: Vec<_> = found.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(facts, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let Err(mut verbs) = verbs.into_provider() else { panic!("somebody has queues") };
    verbs.destroy_qp(QueuePair { send: sender.join().unwrap(), recv: receiver.join().unwrap() }).unwrap();
    verbs.destroy_cq(completions).unwrap();
    let Ok(driver) = verbs.into_provider() else { panic!("everything is back") };
    assert!(driver.teardown().is_ok());
}

#[test]
fn what_it_costs() {
    // A block of a send ring is two words, a receive one, and whether a table has them is one.
    assert_eq!(size_of_val(&LONG), 64 * 16 + 16 * 8 + 8);
    assert_eq!(size_of_val(&SHORT), 2 * (32 * 16 + 8 * 8 + 8));
    assert_eq!(size_of::<RingsView<'_>>(), 7 * size_of::<usize>());
    let sizes = [
        ("tables for 1 domain, 2 regions, 1 window, 1 completion queue, 3 queue pairs", size_of::<Tables>()),
        ("each domain", (size_of::<storage![Driver; pds: 17, mrs: 2, mws: 1, cqs: 1, qps: 3]>() - size_of::<Tables>()) / 16),
        ("each region", (size_of::<storage![Driver; pds: 1, mrs: 18, mws: 1, cqs: 1, qps: 3]>() - size_of::<Tables>()) / 16),
        ("each window", (size_of::<storage![Driver; pds: 1, mrs: 2, mws: 17, cqs: 1, qps: 3]>() - size_of::<Tables>()) / 16),
        (
            "each completion queue",
            (size_of::<storage![Driver; pds: 1, mrs: 2, mws: 1, cqs: 17, qps: 3]>() - size_of::<Tables>()) / 16,
        ),
        (
            "each queue pair",
            (size_of::<storage![Driver; pds: 1, mrs: 2, mws: 1, cqs: 1, qps: 19]>() - size_of::<Tables>()) / 16,
        ),
        ("the verbs without driver", size_of::<Verbs<'_, Driver>>() - size_of::<Driver>()),
        ("the driver", size_of::<Driver>()),
    ];
    for (what, size) in sizes {
        println!("{size:6} bytes: {what}");
    }
    assert!(sizes[1..6].iter().all(|(_, size)| (1..1024).contains(size)), "{sizes:?}");
}
