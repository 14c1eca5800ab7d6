//! What a card behind an IOMMU reaches, and what happens when it is told to reach more: `iommu 0000:01:00.0`.
#![expect(unsafe_code, reason = "memory of the caller is handed to the card")]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use bareverbs::{
    Access, AddressVector, Completion, DmaMemory as _, Lkey, Mtu, OffsetMap, Payload, QpAttr, QpAttrMask, QpCap, QpInit,
};
use bareverbs::{CqHandle, QpHandle, QpState, QpType, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, WcStatus};
use bareverbs_mlx5::Mlx5;
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 4096>;
type Verbs = bareverbs::Verbs<Card, 1, 4, 1, 1, 1, 64, 64>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("iommu ADDRESS")?;
    let device = Device::open(address.parse()?)?;
    let card = Card::bring_up(device.machine(Card::ARENA)?, &device.driver_config()).map_err(|(error, _)| error)?;
    let mut verbs = Box::new(Verbs::new(card));
    let (pd, cq) = (verbs.alloc_pd()?, verbs.create_cq(16)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true })?;
    // Connected to itself: a request that it refuses as the responder breaks it, and is flushed.
    let av = AddressVector { dlid: verbs.query_port(1)?.lid, port_num: 1, ..AddressVector::default() };
    let dest_qpn = verbs.qp(qp)?.qpn;
    let attr =
        QpAttr { port_num: 1, access, av, dest_qpn, path_mtu: Mtu::Mtu1024, timeout: 14, retry_cnt: 7, ..QpAttr::default() };

    let mut mine = device.memory(4096)?;
    mine.write(0, b"still here")?;
    let mr = verbs.reg_mr(pd, mine.addr(), 4096, access, &mine)?;
    let (lkey, rkey) = (verbs.mr(mr)?.lkey, verbs.mr(mr)?.rkey);

    // The map of a buffer translates its own bytes and no others.
    let beyond = verbs.reg_mr(pd, mine.addr() + 4096, 4096, access, &mine);
    println!("a region beyond the buffer: {}", beyond.err().map_or_else(|| "made".into(), |error| error.to_string()));

    // A map that lies: it names bytes to the card that the IOMMU does not translate.
    let elsewhere = verbs.reg_mr(pd, 0x1000, 4096, access, &OffsetMap::default())?;
    let elsewhere = verbs.mr(elsewhere)?;
    verbs.connect(qp, &attr)?;
    let status = write(&mut verbs, qp, cq, (0x1000, elsewhere.lkey), (mine.addr(), rkey))?;
    println!("reading where the IOMMU maps nothing: {status:?}");
    reset(&mut verbs, qp, &attr)?;
    let status = write(&mut verbs, qp, cq, (mine.addr(), lkey), (0x1000, elsewhere.rkey))?;
    println!("writing where the IOMMU maps nothing: {status:?}");

    // A buffer that is dropped while a region of it is still there: the IOMMU takes it from the card.
    reset(&mut verbs, qp, &attr)?;
    let gone = device.memory(4096)?;
    let mr = verbs.reg_mr(pd, gone.addr(), 4096, access, &gone)?;
    let target = (gone.addr(), verbs.mr(mr)?.rkey);
    let before = write(&mut verbs, qp, cq, (mine.addr(), lkey), target)?;
    drop(gone);
    // New memory does not get its addresses: whoever still has the old key does not reach it.
    let other = device.memory(4096)?;
    let after = write(&mut verbs, qp, cq, (mine.addr(), lkey), target)?;
    println!("writing to a buffer: {before:?}; after it was dropped: {after:?}, other memory has {}", other.read_u8(0)?);

    // What is mapped goes on working.
    reset(&mut verbs, qp, &attr)?;
    let status = write(&mut verbs, qp, cq, (mine.addr(), lkey), (mine.addr() + 2048, rkey))?;
    let mut text = [0; 10];
    mine.read(2048, &mut text)?;
    println!("writing within the buffer: {status:?}, {}", String::from_utf8_lossy(&text));

    // Memory of one's own: whole pages, mapped for the card as long as the mapping lives.
    let layout = std::alloc::Layout::from_size_align(8192, 4096)?;
    // SAFETY: the layout has bytes.
    let own = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or("no memory")?;
    // SAFETY: the pages stay until the mapping is gone, and no reference to them is made.
    let mapping = unsafe { device.map(own, 8192) }?;
    let mr = verbs.reg_mr(pd, mapping.addr(), 8192, access, &mapping)?;
    let rkey = verbs.mr(mr)?.rkey;
    let status = write(&mut verbs, qp, cq, (mine.addr(), lkey), (mapping.addr() + 4096, rkey))?;
    // SAFETY: within the pages; volatile, since the card writes them.
    let first = unsafe { own.add(4096).read_volatile() };
    println!("writing to memory of one's own: {status:?}, {}", char::from(first));
    // SAFETY: refused, so that nothing is mapped.
    let half = unsafe { device.map(own, 100) };
    println!("mapping half a page: {}", half.err().map_or_else(|| "done".into(), |error| error.to_string()));
    verbs.dereg_mr(mr)?;
    drop(mapping);
    // SAFETY: allocated above with this layout, and no longer mapped for the card.
    unsafe { std::alloc::dealloc(own.as_ptr(), layout) };

    // A reset forgets everything that was made on the card, the driver's part too.
    drop(verbs);
    device.reset()?;
    println!("reset");
    Ok(())
}

/// Writes 64 bytes from one address to another; the status of the completion.
fn write(
    verbs: &mut Verbs,
    qp: QpHandle,
    cq: CqHandle,
    (addr, lkey): (u64, Lkey),
    (to, rkey): (u64, Rkey),
) -> Result<WcStatus, Box<dyn std::error::Error>> {
    let sges = [Sge { addr, length: 64, lkey }];
    let op = SendOp::Write { payload: Payload::Sges(&sges), remote: Remote { addr: to, rkey } };
    verbs.post_send(qp, &SendWr { wr_id: 0, flags: SendFlags::empty(), op })?;
    let mut done = [Completion::EMPTY];
    let start = Instant::now();
    while verbs.poll_cq(cq, &mut done)? == 0 {
        if start.elapsed() > Duration::from_secs(10) {
            return Err("no completion within 10 s".into());
        }
    }
    Ok(done[0].status)
}

/// Takes the queue pair, which an error has stopped, back into service.
fn reset(verbs: &mut Verbs, qp: QpHandle, attr: &QpAttr) -> Result<(), Box<dyn std::error::Error>> {
    // The card reports the error also as an event, a moment later.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        if let Some(event) = verbs.poll_event()? {
            println!("event: {event:?}");
        }
    }
    verbs.modify_qp(qp, &QpAttr { state: QpState::Reset, ..*attr }, QpAttrMask::STATE)?;
    Ok(verbs.connect(qp, attr)?)
}
