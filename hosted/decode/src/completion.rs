//! Decodes completion queue entries.

use bareverbs_mlx5_spec::{CQE, Cqe, CqeOpcode, CqeSyndrome, ErrCqe, View, WqeOpcode};

use crate::decoded::Decoded;

/// Decodes all entries in `bytes`, of 64 bytes each.
pub fn decode_all(bytes: &[u8]) -> Vec<Decoded> {
    bytes.chunks(CQE).enumerate().map(|(index, entry)| decode(entry, index * CQE)).collect()
}

/// Decodes the entry in `bytes`, which are at `offset` of the input (at most `usize::MAX / 2`).
pub fn decode(bytes: &[u8], offset: usize) -> Decoded {
    let mut out = Decoded::new(offset);
    let offset = out.offset;
    let Some(cqe) = View::<Cqe>::new(bytes) else {
        out.title = format!("{} bytes, too few for a completion queue entry", bytes.len());
        out.error(offset, format!("an entry has {CQE} bytes"));
        out.payload("bytes", bytes, offset);
        return out;
    };
    let code = cqe.get(Cqe::OPCODE);
    let opcode = CqeOpcode::from_code(code);
    let name = opcode.map_or_else(|| format!("opcode {code:#x}"), |opcode| opcode.name().into());
    let (qpn, counter) = (cqe.get(Cqe::QPN), cqe.get(Cqe::WQE_COUNTER));
    out.title = format!("{name}, queue pair {qpn:#x}, WQE {counter:#x}");
    match opcode {
        None => out.error(offset + 63, format!("opcode {code:#x} is unknown")),
        Some(CqeOpcode::Invalid) => out.note(offset + 63, "never written by the device, or taken back by the driver"),
        Some(CqeOpcode::ReqErr | CqeOpcode::RespErr) => {
            error_entry(&mut out, bytes, offset);
            return out.finish();
        }
        Some(CqeOpcode::Req) => {
            let sop = cqe.get(Cqe::SEND_OPCODE);
            match WqeOpcode::from_code(sop) {
                Some(sop) => out.title.push_str(&format!(", {}", sop.name())),
                None => out.error(offset + 56, format!("a WQE with opcode {sop:#x}, which is unknown")),
            }
        }
        Some(_) => out.title.push_str(&format!(", {} bytes", cqe.get(Cqe::BYTE_CNT))),
    }
    if cqe.get(Cqe::FORMAT) == 3 {
        out.warning(offset + 63, "format 3 is a compressed entry: mini entries follow, which are not decoded");
    }
    out.section::<Cqe>("entry", bytes, offset);
    out.finish()
}

fn error_entry(out: &mut Decoded, bytes: &[u8], offset: usize) {
    if let Some(entry) = View::<ErrCqe>::new(bytes) {
        let code = entry.get(ErrCqe::SYNDROME);
        match CqeSyndrome::from_code(code) {
            Some(syndrome) => {
                out.title.push_str(&format!(", {} (vendor {:#x})", syndrome.name(), entry.get(ErrCqe::VENDOR_ERR_SYND)))
            }
            None => out.warning(offset + 55, format!("syndrome {code:#x} is unknown")),
        }
    }
    out.section::<ErrCqe>("error entry", bytes, offset);
}
