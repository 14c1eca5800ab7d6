//! Opens a card, registers memory and writes to a peer: `write 0000:01:00.0 --listen` on one machine, `write 0000:01:00.0 HOST` on
//! another.
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use bareverbs::{
    Access, Completion, DmaMemory as _, Lid, Mtu, Payload, Psn, QpAttr, QpAttrMask as Mask, QpCap, QpInit, QpState,
};
use bareverbs::{AddressVector, QpType, Qpn, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, WcStatus};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 4096>;
type Verbs = bareverbs::Verbs<Card, 1, 1, 1, 1, 1, 64, 64>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, address, peer] =
        <[String; 3]>::try_from(std::env::args().collect::<Vec<_>>()).map_err(|_| "write ADDRESS --listen|HOST")?;
    let device = Device::open(address.parse()?)?;
    let card = Card::bring_up(device.machine(Card::ARENA)?, &Config::DEFAULT).map_err(|(error, _)| error)?;
    let mut verbs = Box::new(Verbs::new(card));

    let pd = verbs.alloc_pd()?;
    let mut buffer = device.memory(4096)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = verbs.reg_mr(pd, buffer.addr(), 4096, access, &buffer)?;
    let cq = verbs.create_cq(16)?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true })?;

    // Both ends tell each other over TCP where they are.
    let mut stream = if peer == "--listen" {
        TcpListener::bind("0.0.0.0:18516")?.accept()?.0
    } else {
        TcpStream::connect((peer.as_str(), 18516))?
    };
    let (lid, mr) = (verbs.query_port(1)?.lid, verbs.mr(mr)?);
    writeln!(stream, "{} {} {} {}", lid.get(), verbs.qp(qp)?.qpn.get(), buffer.addr(), mr.rkey.get())?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    reader.read_line(&mut line)?;
    let [dlid, qpn, addr, rkey] = <[u64; 4]>::try_from(line.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?)
        .map_err(|_| "the peer's line")?;

    let mut attr =
        QpAttr { port_num: 1, access, path_mtu: Mtu::Mtu1024, dest_qpn: Qpn::new(u32::try_from(qpn)?), ..QpAttr::default() };
    attr.av = AddressVector { dlid: Lid::new(u16::try_from(dlid)?), port_num: 1, ..AddressVector::default() };
    (attr.sq_psn, attr.rq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (Psn::new(0), Psn::new(0), 14, 7, 7);
    for (state, mask) in [
        (QpState::Init, Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS),
        (
            QpState::Rtr,
            Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
        ),
        (QpState::Rts, Mask::SQ_PSN | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC),
    ] {
        attr.state = state;
        verbs.modify_qp(qp, &attr, Mask::STATE | mask)?;
    }
    // The peer's queue pair is ready once its next line comes.
    writeln!(stream, "ready")?;
    reader.read_line(&mut line)?;

    if peer == "--listen" {
        while buffer.read_u8(0)? == 0 {}
        let mut text = [0; 32];
        buffer.read(0, &mut text)?;
        println!("the peer wrote: {}", String::from_utf8_lossy(&text).trim_end_matches('\0'));
    } else {
        buffer.write(0, b"Hello over VFIO!")?;
        let sges = [Sge { addr: buffer.addr(), length: 16, lkey: mr.lkey }];
        let op =
            SendOp::Write { payload: Payload::Sges(&sges), remote: Remote { addr, rkey: Rkey::new(u32::try_from(rkey)?) } };
        verbs.post_send(qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op })?;
        let mut done = [Completion::EMPTY];
        while verbs.poll_cq(cq, &mut done)? == 0 {}
        println!("written: {:?}", done[0].status);
        assert_eq!(done[0].status, WcStatus::Success);
    }
    Ok(())
}
