//! The fields of a send WQE by name, for people to read.

use bareverbs_mlx5_spec::{Mkc, View};

use super::{AtomicOperation, DataSegment, RemoteAddress, SendBody, SendWqe, Umr, UmrTranslations};

impl SendWqe {
    /// Its fields by name, for people to read.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("opcode", self.opcode.name().to_owned()),
            ("opmod", format!("{:#x}", self.opmod)),
            ("wqe_idx", self.index.to_string()),
            ("qpn", format!("{:#x}", self.qpn)),
            ("ds", self.ds.to_string()),
            ("fm", self.fence.to_string()),
            ("ce", self.completion.to_string()),
            ("se", u8::from(self.solicited).to_string()),
            ("imm", format!("{:#010x}", self.immediate)),
        ];
        if let Some(srqn) = self.xrc_srqn {
            fields.push(("xrc_srqn", format!("{srqn:#x}")));
        }
        match &self.body {
            SendBody::Nop => {}
            SendBody::Send { address, data } => {
                if let Some(address) = address {
                    fields.push(("qkey", format!("{:#010x}", address.qkey)));
                    fields.push(("dqp", format!("{:#x}", address.dqpn)));
                    fields.push(("rlid", format!("{:#06x}", address.rlid)));
                    fields.push(("sl", address.sl.to_string()));
                    if address.is_global {
                        fields.push(("rgid", format!("{:032x}", u128::from_be_bytes(address.route.dgid))));
                    }
                }
                data_fields(&mut fields, data);
            }
            SendBody::Write { remote, data } | SendBody::Read { remote, data } => {
                remote_fields(&mut fields, remote);
                data_fields(&mut fields, data);
            }
            SendBody::Atomic { remote, operation, data } => {
                remote_fields(&mut fields, remote);
                match operation {
                    AtomicOperation::CompareSwap { compare, swap } => {
                        fields.push(("swap_add", format!("{swap:#018x}")));
                        fields.push(("compare", format!("{compare:#018x}")));
                    }
                    AtomicOperation::FetchAdd { add } => fields.push(("swap_add", format!("{add:#018x}"))),
                    AtomicOperation::MaskedCompareSwap { compare, compare_mask, swap, swap_mask, .. } => {
                        let operands =
                            [("swap", swap), ("compare", compare), ("swap_mask", swap_mask), ("compare_mask", compare_mask)];
                        fields.extend(operands.map(|(name, value)| (name, format!("{value:#x}"))));
                    }
                    AtomicOperation::MaskedFetchAdd { add, boundary, .. } => {
                        fields.push(("add", format!("{add:#x}")));
                        fields.push(("field_boundary", format!("{boundary:#x}")));
                    }
                }
                data_fields(&mut fields, data);
            }
            SendBody::Umr(umr) => umr_fields(&mut fields, umr),
        }
        fields
    }
}

fn remote_fields(fields: &mut Vec<(&'static str, String)>, remote: &RemoteAddress) {
    fields.push(("raddr", format!("{:#018x}", remote.addr)));
    fields.push(("rkey", format!("{:#010x}", remote.rkey)));
}

fn data_fields(fields: &mut Vec<(&'static str, String)>, data: &[DataSegment]) {
    for segment in data {
        match segment {
            DataSegment::Pointer(pointer) => {
                let text = format!("{} bytes, lkey {:#010x}, addr {:#018x}", pointer.len, pointer.lkey, pointer.addr);
                fields.push(("data", text));
            }
            DataSegment::Inline(bytes) => fields.push(("inline", format!("{} bytes: {bytes:02x?}", bytes.len()))),
        }
    }
}

fn umr_fields(fields: &mut Vec<(&'static str, String)>, umr: &Umr) {
    fields.push(("check_in_use", u8::from(umr.check_in_use).to_string()));
    fields.push(("check_free", u8::from(umr.check_free).to_string()));
    fields.push(("check_qpn", u8::from(umr.check_qpn).to_string()));
    fields.push(("klm_octowords", umr.octowords.to_string()));
    if let Some(offset) = umr.offset {
        fields.push(("translation_offset", offset.to_string()));
    }
    fields.push(("mkey_mask", format!("{:#018x}", umr.mask)));
    if let Some(context) = View::<Mkc>::new(&umr.context) {
        for (name, field) in [
            ("mkc.free", Mkc::FREE),
            ("mkc.a", Mkc::A),
            ("mkc.rw", Mkc::RW),
            ("mkc.rr", Mkc::RR),
            ("mkc.lw", Mkc::LW),
            ("mkc.lr", Mkc::LR),
            ("mkc.qpn", Mkc::QPN),
            ("mkc.mkey_7_0", Mkc::MKEY_7_0),
            ("mkc.pd", Mkc::PD),
        ] {
            fields.push((name, format!("{:#x}", context.get(field))));
        }
        fields.push(("mkc.start_addr", format!("{:#018x}", context.get64(Mkc::START_ADDR))));
        fields.push(("mkc.len", context.get64(Mkc::LEN).to_string()));
    }
    match &umr.translations {
        UmrTranslations::None => {}
        UmrTranslations::Inline(bytes) => fields.push(("translations", format!("{bytes:02x?}"))),
        UmrTranslations::Memory(pointer) => {
            fields.push(("translations", format!("lkey {:#010x}, addr {:#018x}", pointer.lkey, pointer.addr)));
        }
    }
}
