//! As many queue pairs of as many requests as the command line says, with all tables on the heap (feature `alloc`):
//! `cargo run --example sizes_at_run_time -- QUEUE_PAIRS REQUESTS`.

use std::env;
use std::error::Error;
use std::time::Duration;

use bareverbs::backend::Provider;
use bareverbs::storage::{BoxedQpRings, BoxedStorage, Capacities, RingSizes};
use bareverbs::{
    Access, AddressVector, CompletionQueue, DmaBuffer, PdHandle, QpAttr, QpCap, QpInit, QpType, QueuePair, SendWr, Verbs,
    WcStatus,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};

type Driver = Mlx5<SimPlatform, 4096>;

/// What one host has: a domain, a completion queue, and its queue pairs.
struct Side<'s> {
    pd: PdHandle,
    cq: CompletionQueue<'s, Driver>,
    qps: Vec<QueuePair<'s, Driver>>,
}

fn start(host: &Host) -> Result<Driver, Box<dyn Error>> {
    Ok(Driver::bring_up(host.machine(Driver::ARENA), &Config::DEFAULT).map_err(|(error, _)| error)?)
}

fn create<'s>(verbs: &mut Verbs<'s, Driver>, count: u32, cap: QpCap, sizes: &RingSizes) -> Result<Side<'s>, Box<dyn Error>> {
    let pd = verbs.alloc_pd()?;
    let cq = verbs.create_cq((sizes.send_blocks + sizes.recv_entries) * count)?;
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
    let qps = (0..count).map(|_| verbs.create_qp(&init)).collect::<Result<_, _>>()?;
    Ok(Side { pd, cq, qps })
}

fn connect(
    verbs: &mut Verbs<'_, Driver>,
    qp: &QueuePair<'_, Driver>,
    peer: (AddressVector, bareverbs::Qpn),
) -> Result<(), Box<dyn Error>> {
    let (av, dest_qpn) = peer;
    let attr =
        QpAttr { port_num: 1, access: Access::REMOTE_WRITE, av, dest_qpn, timeout: 14, retry_cnt: 7, ..QpAttr::default() };
    Ok(verbs.modify_qp_to_rts(qp.handle(), &attr)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = env::args().skip(1).map(|word| word.parse()).collect::<Result<Vec<u32>, _>>()?;
    let [count, requests] = match *numbers {
        [] => [5, 20],
        [count, requests] => [count, requests],
        _ => return Err("sizes_at_run_time QUEUE_PAIRS REQUESTS".into()),
    };
    let (_, host_a, host_b) = World::pair(WorldConfig::default());
    let (card_a, card_b) = (start(&host_a)?, start(&host_b)?);

    // The backend says what queue pairs with these capacities need, before there are verbs.
    let cap = QpCap { max_send_wr: requests, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    let sizes = card_a.ring_sizes(QpType::Rc, &cap)?;
    let rings: Vec<_> = (0..2 * count).map(|_| BoxedQpRings::new(&sizes)).collect();
    let mut views = rings.iter().map(BoxedQpRings::view);
    let capacities = Capacities { pds: 1, mrs: 1, mws: 0, cqs: 1 };
    let mut tables_a = BoxedStorage::new(&capacities, views.by_ref().take(count as usize));
    let mut tables_b = BoxedStorage::new(&capacities, views);
    let mut a = Verbs::new(card_a, &mut tables_a);
    let mut b = Verbs::new(card_b, &mut tables_b);

    let (mut from, to) = (create(&mut a, count, cap, &sizes)?, create(&mut b, count, cap, &sizes)?);
    let mut addresses = Vec::new();
    for verbs in [&mut a, &mut b] {
        let dlid = verbs.wait_active(1, Duration::from_secs(60))?.lid;
        addresses.push(AddressVector { dlid, port_num: 1, ..AddressVector::default() });
    }
    let [at_a, at_b] = *addresses else { return Err("two hosts".into()) };
    for (qp, peer) in from.qps.iter().zip(&to.qps) {
        let (qpn, peer_qpn) = (a.qp_info(qp.handle())?.qpn, b.qp_info(peer.handle())?.qpn);
        connect(&mut a, qp, (at_b, peer_qpn))?;
        connect(&mut b, peer, (at_a, qpn))?;
    }

    // Each queue pair fills a row of its own, in requests that are all in flight at once.
    let row = 8 * requests as usize;
    let buffer = host_b.memory(row * count as usize).whole();
    let target = b.reg_mr(to.pd, buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    for (qp, number) in from.qps.iter_mut().zip(0..) {
        for request in 0..u64::from(requests) {
            let bytes = (number * u64::from(requests) + request).to_be_bytes();
            qp.send.post(&SendWr::write(target.remote(number * row as u64 + 8 * request), &bytes).id(request))?;
        }
    }
    for _ in 0..count * requests {
        let done = loop {
            if let Some(done) = from.cq.completions().next() {
                break done?;
            }
        };
        assert_eq!(done.status, WcStatus::Success);
    }
    for number in 0..u64::from(count) * u64::from(requests) {
        let mut bytes = [0; 8];
        target.read(8 * number as usize, &mut bytes)?;
        assert_eq!(bytes, number.to_be_bytes());
    }
    println!("{count} queue pairs wrote {requests} times each; every byte is there");
    Ok(())
}
