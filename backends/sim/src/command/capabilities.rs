//! Capability pages.

use bareverbs_mlx5_spec::{CmdHcaCap, CmdStatus, QueryHcaCapIn, QueryHcaCapOut, SetHcaCapIn, SetHcaCapOut, View, ViewMut};

use super::refusal::{Outcome, Refusal};
use crate::firmware::unsupported::Unsupported;
use crate::firmware::{Firmware, HcaState};
use crate::step::StepContext;

/// QUERY_HCA_CAP.
pub(super) fn query_hca_cap(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryHcaCapIn>,
    output: &mut ViewMut<'_, QueryHcaCapOut>,
) -> Outcome {
    if input.is_set(QueryHcaCapIn::OTHER_FUNCTION) {
        return Err(Refusal::new(CmdStatus::BadParam, "another function"));
    }
    let page = firmware.caps.query(input.get(QueryHcaCapIn::OP_MOD)).map_err(|status| {
        firmware.unsupported.report(Unsupported::CapabilityPage(input.get(QueryHcaCapIn::OP_MOD) >> 1));
        Refusal::new(status, "no such page")
    })?;
    output.set_bytes(QueryHcaCapOut::CAPABILITY, page);
    Ok(())
}

/// SET_HCA_CAP, before INIT_HCA.
pub(super) fn set_hca_cap(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, SetHcaCapIn>,
    _: &mut ViewMut<'_, SetHcaCapOut>,
) -> Outcome {
    if firmware.state == HcaState::Running {
        return Err(Refusal::new(CmdStatus::BadSysState, "after INIT_HCA"));
    }
    if input.is_set(SetHcaCapIn::OTHER_FUNCTION) {
        return Err(Refusal::new(CmdStatus::BadParam, "another function"));
    }
    let page = input.bytes(SetHcaCapIn::CAPABILITY);
    let set = firmware.caps.set(ctx, input.get(SetHcaCapIn::OP_MOD), page);
    set.map_err(|status| Refusal::new(status, "no such page, or more than the device has"))?;
    firmware.configure_engine();
    firmware.pages.set_log_max_qp(firmware.caps.general(CmdHcaCap::LOG_MAX_QP) as u8);
    Ok(())
}
