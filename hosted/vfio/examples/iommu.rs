//! What a card behind an IOMMU reaches, and what happens when it is given other addresses: `iommu 0000:01:00.0`.
#![expect(unsafe_code, reason = "memory of the caller is handed to the card, and wrong addresses are")]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use bareverbs::platform::OffsetMap;
use bareverbs::storage::QpRings;
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, DmaBuffer as _, Mtu, QpAttr, QpCap, QpInit, QpType, QueuePair, Remote,
    SendWr, Sge, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 512>;

/// For the training of the link after the card's reset, and the subnet manager.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("iommu ADDRESS")?;
    let device = Device::open(address.parse()?)?;
    println!("opened by {:?}; never at {:x?}", device.interface(), device.unmapped_addresses());
    let config = Config { virtual_function: device.is_virtual_function(), ..Config::DEFAULT };
    let card = Card::bring_up(device.machine(Card::ARENA)?, &config).map_err(|(error, _)| error)?;
    let rings = QpRings::<64, 16>::new();
    let mut storage = <storage![Card; pds: 1, mrs: 4, mws: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(card, &mut storage);
    let (pd, mut cq) = (verbs.alloc_pd()?, verbs.create_cq(16)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let mut qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
    // Connected to itself: a request that it refuses as the responder breaks it, and is flushed.
    let (dlid, dest_qpn, path_mtu) = (verbs.wait_active(1, PORT_TIMEOUT)?.lid, verbs.qp_info(qp.handle())?.qpn, Mtu::Mtu1024);
    let av = AddressVector { dlid, port_num: 1, ..Default::default() };
    let attr = QpAttr { port_num: 1, access, av, dest_qpn, path_mtu, timeout: 14, retry_cnt: 7, ..Default::default() };

    let mut region = verbs.reg_mr(pd, device.memory(4096)?, access)?;
    region.write(0, b"still here")?;
    let own = region.sge(0, 64);

    // The map of a buffer translates its own bytes and no others.
    // SAFETY: refused, so that nothing is registered.
    let beyond = unsafe { verbs.reg_mr_raw(pd, region.addr() + 4096, 4096, access, &*region) };
    println!("a region beyond the buffer: {}", beyond.err().map_or_else(|| "made".into(), |error| error.to_string()));

    // A map that lies: it names bytes to the card that the IOMMU does not translate.
    // SAFETY: this process has no mapping at these I/O virtual addresses, so that the card reaches nothing by them.
    let elsewhere = unsafe { verbs.reg_mr_raw(pd, 0x1000, 4096, access, &OffsetMap::default()) }?;
    let elsewhere = verbs.mr_info(elsewhere)?;
    verbs.modify_qp_to_rts(qp.handle(), &attr)?;
    let status = write(&mut qp, &mut cq, Sge { addr: 0x1000, length: 64, lkey: elsewhere.lkey }, region.remote(0))?;
    println!("reading where the IOMMU maps nothing: {status:?}");
    reset(&mut verbs, &mut qp, &mut cq, &attr)?;
    let status = write(&mut qp, &mut cq, own, Remote { addr: 0x1000, rkey: elsewhere.rkey })?;
    println!("writing where the IOMMU maps nothing: {status:?}");

    // A buffer that is dropped while it is registered is unmapped for the card.
    reset(&mut verbs, &mut qp, &mut cq, &attr)?;
    let gone = device.memory(4096)?;
    // SAFETY: from the drop on the IOMMU translates these addresses to nothing, and they are not given to other memory.
    let mr = unsafe { verbs.reg_mr_raw(pd, gone.addr(), 4096, access, &gone) }?;
    let target = Remote { addr: gone.addr(), rkey: verbs.mr_info(mr)?.rkey };
    let before = write(&mut qp, &mut cq, own, target)?;
    drop(gone);
    // New memory has other addresses, so that the old key gives no access to it.
    let other = device.memory(4096)?;
    let after = write(&mut qp, &mut cq, own, target)?;
    let mut first = [0];
    other.read(0, &mut first)?;
    println!("writing to a buffer: {before:?}; after it was dropped: {after:?}, other memory has {}", first[0]);

    // Mapped memory continues to work.
    reset(&mut verbs, &mut qp, &mut cq, &attr)?;
    let status = write(&mut qp, &mut cq, own, region.remote(2048))?;
    let mut text = [0; 10];
    region.read(2048, &mut text)?;
    println!("writing within the buffer: {status:?}, {}", String::from_utf8_lossy(&text));

    // Memory of one's own: whole pages, mapped for the card until the mapping has ended.
    let layout = std::alloc::Layout::from_size_align(8192, 4096)?;
    // SAFETY: the layout has bytes.
    let pages = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or("no memory")?;
    // SAFETY: the pages stay until the mapping has ended, and no reference to them is made.
    let own_region = verbs.reg_mr(pd, unsafe { device.map(pages, 8192) }?, access)?;
    let status = write(&mut qp, &mut cq, own, own_region.remote(4096))?;
    own_region.read(4096, &mut text)?;
    println!("writing to memory of one's own: {status:?}, {}", char::from(text[0]));
    // SAFETY: refused, so that nothing is mapped.
    let half = unsafe { device.map(pages, 100) };
    println!("mapping half a page: {}", half.err().map_or_else(|| "done".into(), |error| error.to_string()));
    verbs.dereg_mr(own_region).map_err(|refused| refused.error)?.end()?;
    // SAFETY: allocated above with this layout, and the mapping for the card has ended.
    unsafe { std::alloc::dealloc(pages.as_ptr(), layout) };

    // A reset forgets everything that was made on the card, the driver's part too.
    drop((cq, qp, verbs));
    device.reset()?;
    println!("reset");
    Ok(())
}

/// Writes from this end to the peer's memory. Returns the status of the completion.
fn write(
    qp: &mut QueuePair<'_, Card>,
    cq: &mut CompletionQueue<'_, Card>,
    from: Sge,
    to: Remote,
) -> Result<WcStatus, Box<dyn std::error::Error>> {
    qp.send.post(&SendWr::write(to, &[from]))?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if let Some(done) = cq.completions().next() {
            return Ok(done?.status);
        }
    }
    Err("no completion within 10 s".into())
}

/// Resets and reconnects the queue pair after an error.
fn reset<'s>(
    verbs: &mut Verbs<'s, Card>,
    qp: &mut QueuePair<'s, Card>,
    cq: &mut CompletionQueue<'s, Card>,
    attr: &QpAttr,
) -> Result<(), Box<dyn std::error::Error>> {
    // The card reports the error also as an event, a moment later.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        if let Some(event) = verbs.poll_event()? {
            println!("event: {event:?}");
        }
    }
    verbs.reset_qp(qp)?;
    // A queue pair leaves RESET after its completion queue was found empty.
    cq.poll(&mut [Completion::EMPTY])?;
    Ok(verbs.modify_qp_to_rts(qp.handle(), attr)?)
}
