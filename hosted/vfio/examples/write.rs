//! Opens a card, registers memory and writes to a peer: `write 0000:01:00.0 --listen` on one machine, and
//! `write 0000:01:00.0 HOST` on another.
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bareverbs::{
    Access, AddressVector, Completion, DmaFence as _, DmaMemory as _, Lid, Mtu, Payload, QpAttr, QpCap, QpInit, QpType, Qpn,
};
use bareverbs::{Remote, Rkey, SendFlags, SendOp, SendWr, Sge};
use bareverbs_mlx5::Mlx5;
use bareverbs_mlx5::mmio::CpuFence;
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 4096>;
type Verbs = bareverbs::Verbs<Card, 1, 1, 1, 1, 1, 64, 64>;

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, address, peer] = <[_; 3]>::try_from(Vec::from_iter(std::env::args())).map_err(|_| "write ADDRESS --listen|HOST")?;
    let device = Device::open(address.parse()?)?;
    let card = Card::bring_up(device.machine(Card::ARENA)?, &device.driver_config()).map_err(|(error, _)| error)?;
    let mut verbs = Box::new(Verbs::new(card));

    let (pd, cq, mut buffer) = (verbs.alloc_pd()?, verbs.create_cq(16)?, device.memory(4096)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = verbs.reg_mr(pd, buffer.addr(), 4096, access, &buffer)?;
    let (lkey, rkey) = (verbs.mr(mr)?.lkey, verbs.mr(mr)?.rkey);
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true })?;

    // Each end tells the other over TCP where it is: LID, queue pair, address and key of the buffer.
    let mut tcp = match peer.as_str() {
        "--listen" => TcpListener::bind(("0.0.0.0", 18516))?.accept()?.0,
        host => TcpStream::connect((host, 18516))?,
    };
    let (lid, qpn) = (verbs.query_port(1)?.lid, verbs.qp(qp)?.qpn);
    writeln!(tcp, "{} {} {} {}", lid.get(), qpn.get(), buffer.addr(), rkey.get())?;
    let (mut line, mut reader) = (String::new(), BufReader::new(tcp.try_clone()?));
    reader.read_line(&mut line)?;
    let numbers: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [dlid, dest_qpn, addr, rkey] = <[u64; 4]>::try_from(numbers).map_err(|_| "the peer said something else")?;
    let av = AddressVector { dlid: Lid::new(dlid.try_into()?), port_num: 1, ..AddressVector::default() };
    let dest_qpn = Qpn::new(dest_qpn.try_into()?);
    let attr =
        QpAttr { port_num: 1, access, av, dest_qpn, path_mtu: Mtu::Mtu1024, timeout: 14, retry_cnt: 7, ..QpAttr::default() };
    verbs.connect(qp, &attr)?;

    if peer == "--listen" {
        writeln!(tcp, "ready")?;
        // The card writes meanwhile: bytes are copied out, no reference to them exists. What is read after the last byte was seen
        // is read after it.
        let start = Instant::now();
        while buffer.read_u8(15)? == 0 && start.elapsed() < PATIENCE {}
        CpuFence::UNCACHED.acquire();
        let mut text = [0; 16];
        buffer.read(0, &mut text)?;
        println!("the peer wrote: {}", String::from_utf8_lossy(&text));
        return Ok(());
    }
    reader.read_line(&mut line)?;
    buffer.write(0, b"Hello over VFIO!")?;
    let sges = [Sge { addr: buffer.addr(), length: 16, lkey }];
    let op = SendOp::Write { payload: Payload::Sges(&sges), remote: Remote { addr, rkey: Rkey::new(rkey.try_into()?) } };
    verbs.post_send(qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op })?;
    let (mut done, start) = ([Completion::EMPTY], Instant::now());
    while verbs.poll_cq(cq, &mut done)? == 0 {
        if start.elapsed() > PATIENCE {
            return Err("no completion".into());
        }
    }
    println!("written: {:?}", done[0].status);
    Ok(())
}
