//! Opens a card, registers memory and writes to a peer: `write 0000:01:00.0 --listen` on one machine, and
//! `write 0000:01:00.0 HOST` on another.
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use bareverbs::platform::DmaFence as _;
use bareverbs::storage::QpRings;
use bareverbs::{
    Access, AddressVector, DmaBuffer as _, Lid, Mtu, QpAttr, QpCap, QpInit, QpType, Qpn, Remote, Rkey, SendWr, Verbs, storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_mmio::CpuFence;
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 512>;

/// For the training of the link after the card's reset, and the subnet manager.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, address, peer] = <[_; 3]>::try_from(Vec::from_iter(std::env::args())).map_err(|_| "write ADDRESS --listen|HOST")?;
    let device = Device::open(address.parse()?)?;
    let config = Config { virtual_function: device.is_virtual_function(), ..Config::DEFAULT };
    let card = Card::bring_up(device.machine(Card::ARENA)?, &config).map_err(|(error, _)| error)?;
    // Room for one object of each kind, and for 16 sends and 16 receives: a bind of a window would take three WQEBBs.
    let rings = QpRings::<64, 16>::new();
    let mut storage = <storage![Card; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(card, &mut storage);

    let (pd, mut cq) = (verbs.alloc_pd()?, verbs.create_cq(16)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut region = verbs.reg_mr(pd, device.memory(4096)?, access)?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let mut qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;

    // Exchanges LID, queue pair number, and address and key of the region over TCP.
    let mut tcp = match peer.as_str() {
        "--listen" => TcpListener::bind(("0.0.0.0", 18516))?.accept()?.0,
        host => TcpStream::connect((host, 18516))?,
    };
    let (lid, qpn, here) = (verbs.wait_active(1, PORT_TIMEOUT)?.lid, verbs.qp_info(qp.handle())?.qpn, region.remote(0));
    writeln!(tcp, "{} {} {} {}", lid.get(), qpn.get(), here.addr, here.rkey.get())?;
    let (mut line, mut reader) = (String::new(), BufReader::new(tcp.try_clone()?));
    reader.read_line(&mut line)?;
    let numbers: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [dlid, dest_qpn, addr, rkey] = <[u64; 4]>::try_from(numbers).map_err(|_| "the peer sent something else")?;
    let (av, dest_qpn) = (AddressVector { dlid: Lid::new(dlid as u16), port_num: 1, ..Default::default() }, dest_qpn as u32);
    let (path_mtu, dest_qpn) = (Mtu::Mtu1024, Qpn::new(dest_qpn));
    verbs.modify_qp_to_rts(
        qp.handle(),
        &QpAttr { port_num: 1, access, av, dest_qpn, path_mtu, timeout: 14, retry_cnt: 7, ..Default::default() },
    )?;

    let mut text = *b"Hello over VFIO!";
    if peer == "--listen" {
        writeln!(tcp, "ready")?;
        // The card writes meanwhile. The data is complete when the peer reports the completion of its write.
        reader.read_line(&mut line)?;
        CpuFence::UNCACHED.acquire();
        region.read(0, &mut text)?;
        println!("the peer wrote: {}", String::from_utf8_lossy(&text));
    } else {
        reader.read_line(&mut line)?;
        region.write(0, &text)?;
        let remote = Remote { addr, rkey: Rkey::new(rkey as u32) };
        qp.send.post(&SendWr::write(remote, &[region.sge(0, 16)]).id(1))?;
        // The card retries for some seconds, then completes the request with an error. If the card fails, polling returns an error.
        let done = loop {
            verbs.maintain()?;
            if let Some(done) = cq.completions().next() {
                break done?;
            }
        };
        println!("written: {:?}", done.status);
        writeln!(tcp, "written")?;
    }
    Ok(())
}
