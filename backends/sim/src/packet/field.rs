//! A packet's fields by name, for people to read.

use std::fmt;

use super::{Aeth, Packet, Syndrome};

/// Prints a packet in one line, each field named.
#[derive(Clone, Copy, Debug)]
pub struct PacketFields<'a>(pub &'a Packet<'a>);

impl Packet<'_> {
    /// Its headers and their fields by name: (header, field, value).
    pub fn fields(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut fields = Vec::new();
        self.link.name_fields(&mut fields);
        let transport = &self.transport;
        let bth = &transport.bth;
        let opcode = format!("{} {}", bth.opcode.transport.name(), bth.opcode.operation.name());
        fields.push(("BTH", "OpCode", opcode));
        fields.push(("BTH", "SE", u8::from(bth.solicited).to_string()));
        fields.push(("BTH", "P_Key", format!("{:#06x}", bth.pkey)));
        fields.push(("BTH", "DestQP", format!("{:#x}", bth.dest_qpn)));
        fields.push(("BTH", "A", u8::from(bth.ack_req).to_string()));
        fields.push(("BTH", "PSN", format!("{:#x}", bth.psn)));
        if let Some(srqn) = transport.xrc_srqn {
            fields.push(("XRCETH", "SRQ", format!("{srqn:#x}")));
        }
        if let Some(deth) = &transport.deth {
            fields.push(("DETH", "Q_Key", format!("{:#010x}", deth.qkey)));
            fields.push(("DETH", "SrcQP", format!("{:#x}", deth.source_qpn)));
        }
        if let Some(reth) = &transport.reth {
            fields.push(("RETH", "VA", format!("{:#018x}", reth.addr)));
            fields.push(("RETH", "R_Key", format!("{:#010x}", reth.rkey)));
            fields.push(("RETH", "DMALen", reth.len.to_string()));
        }
        if let Some(atomic) = &transport.atomic {
            fields.push(("AtomicETH", "VA", format!("{:#018x}", atomic.addr)));
            fields.push(("AtomicETH", "R_Key", format!("{:#010x}", atomic.rkey)));
            fields.push(("AtomicETH", "SwapDt", format!("{:#018x}", atomic.swap_add)));
            fields.push(("AtomicETH", "CmpDt", format!("{:#018x}", atomic.compare)));
        }
        if let Some(aeth) = &transport.aeth {
            fields.push(("AETH", "Syndrome", aeth.to_string()));
            fields.push(("AETH", "MSN", aeth.msn.to_string()));
        }
        if let Some(original) = transport.atomic_ack {
            fields.push(("AtomicAckETH", "OrigRemDt", format!("{original:#018x}")));
        }
        if let Some(immediate) = transport.immediate {
            fields.push(("ImmDt", "ImmDt", format!("{immediate:#010x}")));
        }
        if let Some(key) = transport.invalidate {
            fields.push(("IETH", "R_Key", format!("{key:#010x}")));
        }
        fields.push(("Payload", "bytes", transport.payload.len().to_string()));
        fields
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syndrome {
            Syndrome::Ack(31) => write!(f, "ACK"),
            Syndrome::Ack(credits) => write!(f, "ACK, credits {credits}"),
            Syndrome::RnrNak(timer) => write!(f, "RNR NAK, timer {timer}"),
            Syndrome::SequenceError => write!(f, "NAK, PSN sequence error"),
            Syndrome::InvalidRequest => write!(f, "NAK, invalid request"),
            Syndrome::RemoteAccess => write!(f, "NAK, remote access error"),
            Syndrome::RemoteOperational => write!(f, "NAK, remote operational error"),
            Syndrome::Other(bits) => write!(f, "{bits:#04x}"),
        }
    }
}

impl fmt::Display for PacketFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = "";
        for (header, field, value) in self.0.fields() {
            if header != last {
                let gap = if last.is_empty() { "" } else { " | " };
                write!(f, "{gap}{header}")?;
                last = header;
            }
            write!(f, " {field}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each answer has a text of its own, with the number that it carries.
    #[test]
    fn an_acknowledgement_says_what_it_is() {
        let texts = [
            (Syndrome::Ack(31), "ACK"),
            (Syndrome::Ack(7), "ACK, credits 7"),
            (Syndrome::RnrNak(12), "RNR NAK, timer 12"),
            (Syndrome::SequenceError, "NAK, PSN sequence error"),
            (Syndrome::InvalidRequest, "NAK, invalid request"),
            (Syndrome::RemoteAccess, "NAK, remote access error"),
            (Syndrome::RemoteOperational, "NAK, remote operational error"),
            (Syndrome::Other(0x7f), "0x7f"),
        ];
        for (syndrome, text) in texts {
            assert_eq!(Aeth { syndrome, msn: 5 }.to_string(), text);
        }
    }
}
