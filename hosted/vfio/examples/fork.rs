//! Forks while a card works: `fork 0000:01:00.0`. The card stays the parent's; a child ends without harm to it.
#![expect(unsafe_code, reason = "fork is a call of the C library")]

use std::time::{Duration, Instant};

use bareverbs::storage::QpRings;
use bareverbs::{
    Access, AddressVector, CompletionQueue, DmaBuffer as _, Mtu, QpAttr, QpCap, QpInit, QpType, QueuePair, SendWr, Sge, Verbs,
    storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 512>;

/// For the training of the link after the card's reset, and the subnet manager.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of each half of the region: the card copies the first to the second.
const HALF: usize = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("fork ADDRESS")?;
    let device = Device::open(address.parse()?)?;
    let config = Config { virtual_function: device.is_virtual_function(), ..Config::DEFAULT };
    let card = Card::bring_up(device.machine(Card::ARENA)?, &config).map_err(|(error, _)| error)?;
    let rings = QpRings::<64, 16>::new();
    let mut storage = <storage![Card; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(card, &mut storage);
    let (pd, mut cq) = (verbs.alloc_pd()?, verbs.create_cq(16)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut region = verbs.reg_mr(pd, device.memory(2 * HALF)?, access)?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let mut qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
    let (dlid, dest_qpn, path_mtu) = (verbs.wait_active(1, PORT_TIMEOUT)?.lid, verbs.qp_info(qp.handle())?.qpn, Mtu::Mtu1024);
    let av = AddressVector { dlid, port_num: 1, ..Default::default() };
    verbs.modify_qp_to_rts(
        qp.handle(),
        &QpAttr { port_num: 1, access, av, dest_qpn, path_mtu, timeout: 14, retry_cnt: 7, ..Default::default() },
    )?;

    let mut ordinary = vec![0u8; 1 << 20];
    let mut wrong = 0;
    for round in 0..30u8 {
        // A child that writes to its memory and then drops its copies of everything, as a return from main does.
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            ordinary.fill(round);
            drop((cq, qp, verbs, region, device));
            std::process::exit(if ordinary.iter().all(|byte| *byte == round) { 0 } else { 1 });
        }
        // The card works meanwhile. The parent writes to the same pages, which no fork may have moved.
        ordinary.fill(0x55);
        for write in 0..20u8 {
            let pattern = vec![round.wrapping_mul(20).wrapping_add(write) | 1; HALF];
            region.write(0, &pattern)?;
            copy(&mut qp, &mut cq, region.sge(0, HALF as u32), region.remote(HALF as u64))?;
            let mut found = vec![0; HALF];
            region.read(HALF, &mut found)?;
            wrong += u32::from(found != pattern);
        }
        wrong += u32::from(wait(child) != 0);
    }
    println!("600 copies beside 30 children: {wrong} wrong");
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = [0];
        let _ = region.read(0, &mut byte);
        std::process::exit(0);
    }
    println!("a child that reads the memory of the card ends by signal {}", libc::WTERMSIG(wait(child)));
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        println!("a child that wants memory: {}", device.memory(4096).err().map_or_else(|| "has it".into(), |e| e.to_string()));
        std::process::exit(0);
    }
    wait(child);
    drop(device.memory(4096)?);
    println!("the parent goes on");
    Ok(())
}

/// Returns the status of a child that has ended.
fn wait(child: libc::pid_t) -> libc::c_int {
    let mut status = -1;
    // SAFETY: the status is written to a variable.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } == child { status } else { -1 }
}

/// Has the card copy bytes of this process.
fn copy(
    qp: &mut QueuePair<'_, Card>,
    cq: &mut CompletionQueue<'_, Card>,
    from: Sge,
    to: bareverbs::Remote,
) -> Result<(), Box<dyn std::error::Error>> {
    qp.send.post(&SendWr::write(to, &[from]))?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if let Some(done) = cq.completions().next() {
            let status = done?.status;
            return if status == bareverbs::WcStatus::Success { Ok(()) } else { Err(format!("{status:?}").into()) };
        }
    }
    Err("no completion within 10 s".into())
}
