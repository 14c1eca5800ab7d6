//! The extension headers of a packet, to bytes and back.

use bareverbs_mlx5_spec::{
    AcknowledgeHeader, AtomicAcknowledgeHeader, AtomicHeader, DatagramHeader, ImmediateHeader, InvalidateHeader, RdmaHeader,
    XrcHeader,
};

use super::error::PacketError;
use super::header::{Aeth, AtomicEth, Deth, Dwords, Reader, Reth, Syndrome};
use super::transport::TransportPart;

impl TransportPart<'_> {
    /// Appends the extension headers that the opcode names.
    pub(in crate::packet) fn encode_extensions(&self, out: &mut Vec<u8>) {
        let headers = self.bth.opcode.headers();
        if headers.xrc {
            Dwords::<XrcHeader, 1>::zeroed().with(XrcHeader::SRQN, self.xrc_srqn.unwrap_or(0)).put(out);
        }
        if headers.deth {
            let deth = self.deth.unwrap_or_default();
            Dwords::<DatagramHeader, 2>::zeroed()
                .with(DatagramHeader::Q_KEY, deth.qkey)
                .with(DatagramHeader::SOURCE_QPN, deth.source_qpn)
                .put(out);
        }
        if headers.reth {
            let reth = self.reth.unwrap_or_default();
            Dwords::<RdmaHeader, 4>::zeroed()
                .with64(RdmaHeader::VIRTUAL_ADDRESS, reth.addr)
                .with(RdmaHeader::R_KEY, reth.rkey)
                .with(RdmaHeader::DMA_LENGTH, reth.len)
                .put(out);
        }
        if headers.atomic {
            let atomic = self.atomic.unwrap_or_default();
            Dwords::<AtomicHeader, 7>::zeroed()
                .with64(AtomicHeader::VIRTUAL_ADDRESS, atomic.addr)
                .with(AtomicHeader::R_KEY, atomic.rkey)
                .with64(AtomicHeader::SWAP_ADD, atomic.swap_add)
                .with64(AtomicHeader::COMPARE, atomic.compare)
                .put(out);
        }
        if headers.aeth {
            let aeth = self.aeth.unwrap_or(Aeth { syndrome: Syndrome::Ack(31), msn: 0 });
            Dwords::<AcknowledgeHeader, 1>::zeroed()
                .with(AcknowledgeHeader::SYNDROME, aeth.syndrome.to_bits().into())
                .with(AcknowledgeHeader::MSN, aeth.msn)
                .put(out);
        }
        if headers.atomic_ack {
            Dwords::<AtomicAcknowledgeHeader, 2>::zeroed()
                .with64(AtomicAcknowledgeHeader::ORIGINAL, self.atomic_ack.unwrap_or(0))
                .put(out);
        }
        if headers.immediate {
            Dwords::<ImmediateHeader, 1>::zeroed().with(ImmediateHeader::IMMEDIATE, self.immediate.unwrap_or(0)).put(out);
        }
        if headers.invalidate {
            Dwords::<InvalidateHeader, 1>::zeroed().with(InvalidateHeader::R_KEY, self.invalidate.unwrap_or(0)).put(out);
        }
    }

    /// Takes the extension headers that the opcode names.
    pub(in crate::packet) fn decode_extensions(&mut self, reader: &mut Reader<'_>) -> Result<(), PacketError> {
        let headers = self.bth.opcode.headers();
        if headers.xrc {
            let header: Dwords<XrcHeader, 1> = reader.header("XRCETH")?;
            self.xrc_srqn = Some(header.get(XrcHeader::SRQN));
        }
        if headers.deth {
            let header: Dwords<DatagramHeader, 2> = reader.header("DETH")?;
            let (qkey, source_qpn) = (header.get(DatagramHeader::Q_KEY), header.get(DatagramHeader::SOURCE_QPN));
            self.deth = Some(Deth { qkey, source_qpn });
        }
        if headers.reth {
            let header: Dwords<RdmaHeader, 4> = reader.header("RETH")?;
            let addr = header.get64(RdmaHeader::VIRTUAL_ADDRESS);
            self.reth = Some(Reth { addr, rkey: header.get(RdmaHeader::R_KEY), len: header.get(RdmaHeader::DMA_LENGTH) });
        }
        if headers.atomic {
            let header: Dwords<AtomicHeader, 7> = reader.header("AtomicETH")?;
            self.atomic = Some(AtomicEth {
                addr: header.get64(AtomicHeader::VIRTUAL_ADDRESS),
                rkey: header.get(AtomicHeader::R_KEY),
                swap_add: header.get64(AtomicHeader::SWAP_ADD),
                compare: header.get64(AtomicHeader::COMPARE),
            });
        }
        if headers.aeth {
            let header: Dwords<AcknowledgeHeader, 1> = reader.header("AETH")?;
            let syndrome = Syndrome::from_bits(header.get(AcknowledgeHeader::SYNDROME) as u8);
            self.aeth = Some(Aeth { syndrome, msn: header.get(AcknowledgeHeader::MSN) });
        }
        if headers.atomic_ack {
            let header: Dwords<AtomicAcknowledgeHeader, 2> = reader.header("AtomicAckETH")?;
            self.atomic_ack = Some(header.get64(AtomicAcknowledgeHeader::ORIGINAL));
        }
        if headers.immediate {
            let header: Dwords<ImmediateHeader, 1> = reader.header("ImmDt")?;
            self.immediate = Some(header.get(ImmediateHeader::IMMEDIATE));
        }
        if headers.invalidate {
            let header: Dwords<InvalidateHeader, 1> = reader.header("IETH")?;
            self.invalidate = Some(header.get(InvalidateHeader::R_KEY));
        }
        Ok(())
    }
}
