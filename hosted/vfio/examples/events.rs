//! An event loop that waits for a card's interrupts beside other things, here with mio: `events 0000:01:00.0`.
//!
//! The queue pair is connected to itself and writes ten times, every 100 ms. The loop sleeps until the card interrupts. Then it polls
//! the event queues, and the completion queue if that was armed.
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use bareverbs::storage::QpRings;
use bareverbs::{Access, AddressVector, Event, Mtu, QpAttr, QpCap, QpInit, QpType, SendWr, Verbs, storage};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_vfio::{Device, VfioPlatform};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

type Card = Mlx5<VfioPlatform, 512>;

/// Token of the kernel's notice; the interrupts have their numbers.
const REMOVAL: Token = Token(usize::MAX);
const WRITES: u64 = 10;

/// For the training of the link after the card's reset, and the subnet manager.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("events ADDRESS")?;
    let device = Device::open(address.parse()?)?;
    // Vector 0: commands, asynchronous events, page requests. Vector 1: completions.
    let interrupts = device.interrupts(2)?;
    let config = Config { virtual_function: device.is_virtual_function(), ..Config::DEFAULT };
    let card = Card::bring_up(device.machine(Card::ARENA)?, &config).map_err(|(error, _)| error)?;
    let rings = QpRings::<64, 16>::new();
    let mut storage = <storage![Card; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(card, &mut storage);

    let mut poll = Poll::new()?;
    for (vector, interrupt) in interrupts.iter().enumerate() {
        poll.registry().register(&mut SourceFd(&interrupt.as_fd().as_raw_fd()), Token(vector), Interest::READABLE)?;
    }
    if let Some(removal) = device.removal() {
        poll.registry().register(&mut SourceFd(&removal.as_fd().as_raw_fd()), REMOVAL, Interest::READABLE)?;
    }

    let (pd, mut cq) = (verbs.alloc_pd()?, verbs.create_cq(16)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = verbs.reg_mr(pd, device.memory(4096)?, access)?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let mut qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
    let (dlid, dest_qpn, path_mtu) = (verbs.wait_active(1, PORT_TIMEOUT)?.lid, verbs.qp_info(qp.handle())?.qpn, Mtu::Mtu1024);
    let av = AddressVector { dlid, port_num: 1, ..Default::default() };
    verbs.modify_qp_to_rts(
        qp.handle(),
        &QpAttr { port_num: 1, access, av, dest_qpn, path_mtu, timeout: 14, retry_cnt: 7, ..Default::default() },
    )?;
    println!("completions interrupt with vector {}", verbs.cq_info(cq.handle())?.vector);

    let (mut posted, mut completed) = (0, 0);
    let mut events = Events::with_capacity(8);
    cq.req_notify(false)?;
    while completed < WRITES {
        if posted == completed {
            qp.send.post(&SendWr::write(region.remote(2048), &[region.sge(0, 64)]).id(posted))?;
            posted += 1;
        }
        poll.poll(&mut events, Some(Duration::from_secs(10)))?;
        if events.is_empty() {
            return Err("no interrupt within 10 s".into());
        }
        for event in &events {
            if event.token() == REMOVAL {
                return Err("the kernel wants the card back".into());
            }
            if let Some(interrupt) = interrupts.get(event.token().0) {
                interrupt.take()?;
            }
        }
        // Looking until nothing is left arms the event queues again.
        while let Some(event) = verbs.poll_event()? {
            if event != Event::Completion(cq.handle()) {
                println!("{event:?}");
                continue;
            }
            // Armed first and looked at afterwards: what comes in between interrupts again.
            cq.req_notify(false)?;
            for completion in cq.completions() {
                let completion = completion?;
                println!("write {}: {:?}", completion.wr_id, completion.status);
                completed += 1;
            }
        }
        verbs.maintain()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
