//! An event loop that waits for a card's interrupts beside other things, here with mio: `events 0000:01:00.0`.
//!
//! The queue pair is connected to itself and writes ten times, every 100 ms. Nothing polls in between: the loop sleeps until the card
//! interrupts, and an interrupt is followed by a look at the event queues, and by a look at the completion queue that was armed.
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use bareverbs::{
    Access, AddressVector, Completion, Event, Mtu, Payload, QpAttr, QpCap, QpInit, QpType, Remote, SendFlags, SendOp,
};
use bareverbs::{SendWr, Sge};
use bareverbs_mlx5::Mlx5;
use bareverbs_vfio::{Device, VfioPlatform};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

type Card = Mlx5<VfioPlatform, 4096>;
type Verbs = bareverbs::Verbs<Card, 1, 1, 1, 1, 1, 64, 64>;

/// Token of what the kernel wants to tell; the interrupts have their numbers.
const REMOVAL: Token = Token(usize::MAX);
const WRITES: u64 = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("events ADDRESS")?;
    let device = Device::open(address.parse()?)?;
    // Vector 0: commands, asynchronous events, page requests. Vector 1: completions.
    let interrupts = device.interrupts(2)?;
    let card = Card::bring_up(device.machine(Card::ARENA)?, &device.driver_config()).map_err(|(error, _)| error)?;
    let mut verbs = Box::new(Verbs::new(card));

    let mut poll = Poll::new()?;
    for (vector, interrupt) in interrupts.iter().enumerate() {
        poll.registry().register(&mut SourceFd(&interrupt.as_fd().as_raw_fd()), Token(vector), Interest::READABLE)?;
    }
    if let Some(removal) = device.removal() {
        poll.registry().register(&mut SourceFd(&removal.as_fd().as_raw_fd()), REMOVAL, Interest::READABLE)?;
    }

    let pd = verbs.alloc_pd()?;
    let buffer = device.memory(4096)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = verbs.reg_mr(pd, buffer.addr(), 4096, access, &buffer)?;
    let mr = verbs.mr(mr)?;
    let cq = verbs.create_cq(16)?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true })?;
    let av = AddressVector { dlid: verbs.query_port(1)?.lid, port_num: 1, ..AddressVector::default() };
    let dest_qpn = verbs.qp(qp)?.qpn;
    let attr =
        QpAttr { port_num: 1, access, av, dest_qpn, path_mtu: Mtu::Mtu1024, timeout: 14, retry_cnt: 7, ..QpAttr::default() };
    verbs.connect(qp, &attr)?;

    let (mut posted, mut completed) = (0, 0);
    let mut events = Events::with_capacity(8);
    verbs.req_notify_cq(cq, false)?;
    while completed < WRITES {
        if posted == completed {
            let sges = [Sge { addr: buffer.addr(), length: 64, lkey: mr.lkey }];
            let op =
                SendOp::Write { payload: Payload::Sges(&sges), remote: Remote { addr: buffer.addr() + 2048, rkey: mr.rkey } };
            verbs.post_send(qp, &SendWr { wr_id: posted, flags: SendFlags::empty(), op })?;
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
            if event != Event::Completion(cq) {
                println!("{event:?}");
                continue;
            }
            // Armed first and looked at afterwards: what comes in between interrupts again.
            verbs.req_notify_cq(cq, false)?;
            let mut done = [Completion::EMPTY; 16];
            let count = verbs.poll_cq(cq, &mut done)?;
            for completion in done.iter().take(count) {
                println!("write {}: {:?}", completion.wr_id, completion.status);
                completed += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
