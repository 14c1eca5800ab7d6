//! Decodes UMR, the WQE that changes a memory key: binds, unbinds and local invalidates.

use bareverbs_mlx5_spec::{
    Layout, MKEY_ANY_QPN, Mkc, OCTOWORD, View, WqeCtrlSeg, WqeDataSeg, WqeKlm, WqeUmrCtrlSeg, mkey_mask,
};

use crate::code_names;
use crate::decoded::{Decoded, Severity};
use crate::field_printer::{self, Value};
use crate::send::{Walk, check_data};

impl Walk<'_> {
    /// Decodes the segments after the control segment of a UMR.
    pub(crate) fn umr(&mut self, ctrl: &View<'_, WqeCtrlSeg>) {
        let umr_at = self.here();
        let Some(umr) = self.take::<WqeUmrCtrlSeg>("UMR control segment") else { return };
        let mkc_at = self.here();
        // Fields that the mask excludes may contain stale bytes, so no bit of the context is reported as reserved.
        let Some(mkc) = self.take_stale::<Mkc>("key context") else { return };
        let mask = umr.get64(WqeUmrCtrlSeg::MKEY_MASK);
        check_mask(&mut self.out, &mkc, mask, umr_at, mkc_at);
        check_owner(&mut self.out, ctrl, &umr, &mkc, umr_at);
        let Some(covered) = self.translations(&umr, umr_at) else { return };
        let len = mkc.get64(Mkc::LEN);
        if mask & mkey_mask::LEN != 0 && len > covered {
            self.out.error(mkc_at + 24, format!("len is {len:#x}, and the translations cover {covered:#x} bytes"));
        }
    }

    /// Decodes the segments after the key context. Returns the total length of inline translations.
    fn translations(&mut self, umr: &View<'_, WqeUmrCtrlSeg>, umr_at: usize) -> Option<u64> {
        let octwords = umr.get(WqeUmrCtrlSeg::KLM_OCTOWORDS) as usize;
        if !umr.is_set(WqeUmrCtrlSeg::INLINE) {
            if octwords > 0 {
                let at = self.here();
                let data = self.take::<WqeDataSeg>("data segment (translations)")?;
                check_data(&mut self.out, &data, at);
            }
            return None;
        }
        let room = self.remaining() / OCTOWORD;
        if octwords > room {
            let text = format!("klm_octowords says {octwords}, and the WQE has room for {room} after the key context");
            self.out.error(umr_at + 4, text);
        }
        let mut covered = 0u64;
        for index in 0..room {
            let at = self.here();
            let klm = self.take::<WqeKlm>(&format!("KLM {index}"))?;
            let (count, key) = (klm.get(WqeKlm::BYTE_COUNT), klm.get(WqeKlm::MKEY));
            if index >= octwords && count != 0 {
                self.out.warning(at, "past klm_octowords: the device does not look at it");
            } else if count != 0 && key == 0 {
                self.out.error(at + 4, format!("{count:#x} bytes of key 0"));
            }
            if index < octwords {
                covered = covered.saturating_add(count.into());
            }
        }
        Some(covered)
    }
}

fn check_mask(out: &mut Decoded, mkc: &View<'_, Mkc>, mask: u64, umr_at: usize, mkc_at: usize) {
    let known = code_names::MKEY_MASK.iter().fold(0, |all, (bit, _)| all | bit);
    if mask & !known != 0 {
        out.warning(umr_at + 8, format!("mkey_mask has bits that no field is known for: {:#x}", mask & !known));
    }
    if mask == 0 {
        out.warning(umr_at + 8, "mkey_mask is 0: the UMR changes no field of the key");
    }
    for field in field_printer::read(&Mkc::INFO, mkc.as_bytes(), mkc_at) {
        let Some((bit, _)) = code_names::MKEY_MASK.iter().find(|(_, name)| *name == field.name) else { continue };
        let Value::Number { value } = field.value else { continue };
        let is_any_qpn = field.name == "qpn" && value == u64::from(MKEY_ANY_QPN);
        if value != 0 && mask & bit == 0 && !is_any_qpn {
            out.note(field.offset, format!("{} is {value:#x} here, and mkey_mask leaves it as it was", field.name));
        }
    }
    let frees = mask & mkey_mask::FREE != 0 && mkc.is_set(Mkc::FREE);
    let missing = (mkey_mask::LEN | mkey_mask::START_ADDR) & !mask;
    if !frees && mask & mkey_mask::FREE != 0 && missing != 0 {
        let text = format!("the key becomes valid, but mkey_mask leaves {} as it was", code_names::mask(missing));
        out.find(Severity::Warning, umr_at + 8, text);
    }
    let len = mkc.get64(Mkc::LEN);
    if !frees && mask & mkey_mask::LEN != 0 && mkc.get64(Mkc::START_ADDR).checked_add(len.saturating_sub(1)).is_none() {
        out.error(mkc_at + 16, format!("{len:#x} bytes from start_addr run over the end of the address space"));
    }
}

fn check_owner(
    out: &mut Decoded,
    ctrl: &View<'_, WqeCtrlSeg>,
    umr: &View<'_, WqeUmrCtrlSeg>,
    mkc: &View<'_, Mkc>,
    umr_at: usize,
) {
    let (qpn, owner) = (ctrl.get(WqeCtrlSeg::QPN), mkc.get(Mkc::QPN));
    let masked = umr.get64(WqeUmrCtrlSeg::MKEY_MASK) & mkey_mask::QPN != 0;
    if masked && owner != qpn && owner != MKEY_ANY_QPN && owner != 0 {
        out.warning(umr_at + 48 + 4, format!("the key is given to queue pair {owner:#x}, not to its own {qpn:#x}"));
    }
    if umr.is_set(WqeUmrCtrlSeg::CHECK_FREE) && mkc.is_set(Mkc::FREE) {
        out.warning(umr_at, "check_free asks that the key be free, and the UMR frees it");
    }
}
