//! Two simulated devices in one process: an RDMA WRITE from the first into the memory of the second.

use std::error::Error;
use std::time::Duration;

use bareverbs::storage::QpRings;
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, DmaBuffer, PdHandle, QpAttr, QpCap, QpInit, QpType, QueuePair, SendWr,
    Verbs, WcStatus, storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};

type Driver = Mlx5<SimPlatform, 128>;
type Tables<'r> = storage!['r, Driver; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1];

fn main() -> Result<(), Box<dyn Error>> {
    let (_, host_a, host_b) = World::pair(WorldConfig::default());
    let rings = [const { QpRings::<64, 16>::new() }; 2];
    let [mut tables_a, mut tables_b] = rings.each_ref().map(|rings| Tables::new([rings.view()]));
    let start = |host: &Host| Driver::bring_up(host.machine(Driver::ARENA), &Config::DEFAULT).map_err(|(error, _)| error);
    let mut a = Verbs::new(start(&host_a)?, &mut tables_a);
    let mut b = Verbs::new(start(&host_b)?, &mut tables_b);
    type End<'s> = (PdHandle, CompletionQueue<'s, Driver>, QueuePair<'s, Driver>, QpAttr);
    fn create<'s>(verbs: &mut Verbs<'s, Driver>) -> Result<End<'s>, Box<dyn Error>> {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
        let sizes = verbs.ring_sizes(QpType::Rc, &cap)?;
        let (pd, cq) = (verbs.alloc_pd()?, verbs.create_cq(sizes.send_blocks + sizes.recv_entries)?);
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
        let av = AddressVector { dlid: verbs.wait_active(1, Duration::from_secs(60))?.lid, port_num: 1, ..Default::default() };
        let (access, dest_qpn) = (Access::REMOTE_WRITE, verbs.qp_info(qp.handle())?.qpn);
        Ok((pd, cq, qp, QpAttr { port_num: 1, access, av, dest_qpn, timeout: 14, retry_cnt: 7, ..QpAttr::default() }))
    }
    let (_, mut cq, mut qp_a, address_a) = create(&mut a)?;
    let (pd, _cq, qp_b, address_b) = create(&mut b)?;
    // LID and QPN are the peer's, access and timers its own: the same on both sides here.
    a.modify_qp_to_rts(qp_a.handle(), &address_b)?;
    b.modify_qp_to_rts(qp_b.handle(), &address_a)?;

    let target = b.reg_mr(pd, host_b.memory(4096).whole(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    qp_a.send.post(&SendWr::write(target.remote(0), b"hello, peer").id(1))?;
    let mut done = [Completion::EMPTY];
    while cq.poll(&mut done)? == 0 {}
    assert_eq!(done.map(|done| done.status), [WcStatus::Success]);
    let mut bytes = [0; 11];
    target.read(0, &mut bytes)?;
    println!("{}", str::from_utf8(&bytes)?);
    Ok(())
}
