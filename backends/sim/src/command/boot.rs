//! Bringing the function up and down, and what it says about itself.

use bareverbs_mlx5_spec::{
    CmdStatus, DisableHcaIn, DisableHcaOut, EnableHcaIn, EnableHcaOut, InitHcaIn, InitHcaOut, NopIn, NopOut, QueryAdapterIn,
    QueryAdapterOut, QueryAdapterParamBlock, QueryIssiIn, QueryIssiOut, QuerySpecialContextsIn, QuerySpecialContextsOut,
    SetDriverVersionIn, SetDriverVersionOut, SetIssiIn, SetIssiOut, TeardownHcaIn, TeardownHcaOut, View, ViewMut,
};

use super::refusal::{Outcome, Refusal};
use crate::firmware::{Firmware, HcaState};
use crate::step::StepContext;

/// Interface versions 0 and 1, one bit each.
const SUPPORTED_ISSI: u32 = 0b11;
/// The vendor's number at the IEEE.
const IEEE_VENDOR: u32 = 0x0002c9;
/// The key that ends a list of scatter entries before its last one (Linux `MLX5_TERMINATE_SCATTER_LIST_LKEY`).
const TERMINATE_LIST_KEY: u32 = 0x100;

/// ENABLE_HCA.
pub(super) fn enable_hca(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, EnableHcaIn>,
    _: &mut ViewMut<'_, EnableHcaOut>,
) -> Outcome {
    if input.is_set(EnableHcaIn::FUNCTION_ID) {
        return Err(Refusal::new(CmdStatus::BadParam, "another function"));
    }
    if firmware.state != HcaState::Disabled {
        return Err(Refusal::new(CmdStatus::BadSysState, "enabled already"));
    }
    firmware.state = HcaState::Enabled;
    Ok(())
}

/// DISABLE_HCA: pages that did not go back are lost to the host.
pub(super) fn disable_hca(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, DisableHcaIn>,
    _: &mut ViewMut<'_, DisableHcaOut>,
) -> Outcome {
    if input.is_set(DisableHcaIn::FUNCTION_ID) {
        return Err(Refusal::new(CmdStatus::BadParam, "another function"));
    }
    if firmware.state != HcaState::Enabled {
        return Err(Refusal::new(CmdStatus::BadSysState, "before TEARDOWN_HCA"));
    }
    firmware.pages.disable(ctx);
    firmware.count_pages();
    firmware.restart();
    Ok(())
}

/// QUERY_ISSI.
pub(super) fn query_issi(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    _: View<'_, QueryIssiIn>,
    output: &mut ViewMut<'_, QueryIssiOut>,
) -> Outcome {
    output.set(QueryIssiOut::CURRENT_ISSI, firmware.issi.into()).set(QueryIssiOut::SUPPORTED_ISSI_DW0, SUPPORTED_ISSI);
    Ok(())
}

/// SET_ISSI.
pub(super) fn set_issi(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, SetIssiIn>,
    _: &mut ViewMut<'_, SetIssiOut>,
) -> Outcome {
    let issi = input.get(SetIssiIn::CURRENT_ISSI);
    if issi > 31 || SUPPORTED_ISSI >> issi & 1 == 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "interface version not supported"));
    }
    firmware.issi = issi as u16;
    Ok(())
}

/// INIT_HCA.
pub(super) fn init_hca(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    _: View<'_, InitHcaIn>,
    _: &mut ViewMut<'_, InitHcaOut>,
) -> Outcome {
    if firmware.state != HcaState::Enabled {
        return Err(Refusal::new(CmdStatus::BadSysState, "running already"));
    }
    if firmware.pages.missing_to_init() != 0 {
        return Err(Refusal::new(CmdStatus::NoResources, "pages are missing"));
    }
    firmware.configure_engine();
    firmware.state = HcaState::Running;
    firmware.port.set_running(true, ctx.now);
    // What the port does at once is found by the driver's first query: it has no event queue yet.
    firmware.port_changed(ctx);
    Ok(())
}

/// TEARDOWN_HCA: destroys every object.
pub(super) fn teardown_hca(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, TeardownHcaIn>,
    _: &mut ViewMut<'_, TeardownHcaOut>,
) -> Outcome {
    if input.get(TeardownHcaIn::PROFILE) != 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "forced and fast teardown are not supported"));
    }
    let counts = firmware.engine.counts();
    if counts != Default::default() {
        ctx.note(|| format!("torn down with {counts:?}"));
    }
    firmware.drop_objects();
    firmware.state = HcaState::Enabled;
    firmware.port.set_running(false, ctx.now);
    firmware.port_changed(ctx);
    Ok(())
}

/// QUERY_ADAPTER.
pub(super) fn query_adapter(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    _: View<'_, QueryAdapterIn>,
    output: &mut ViewMut<'_, QueryAdapterOut>,
) -> Outcome {
    output
        .sub(QueryAdapterOut::QUERY_ADAPTER_STRUCT)
        .set(QueryAdapterParamBlock::IEEE_VENDOR_ID, IEEE_VENDOR)
        .set_bytes(QueryAdapterParamBlock::VSD_CONTD_PSID, &firmware.config.board_id);
    Ok(())
}

/// SET_DRIVER_VERSION.
pub(super) fn set_driver_version(
    _: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, SetDriverVersionIn>,
    _: &mut ViewMut<'_, SetDriverVersionOut>,
) -> Outcome {
    let version = input.bytes(SetDriverVersionIn::DRIVER_VERSION);
    ctx.note(|| format!("driver {:?}", String::from_utf8_lossy(version).trim_end_matches('\0')));
    Ok(())
}

/// QUERY_SPECIAL_CONTEXTS.
pub(super) fn query_special_contexts(
    _: &mut Firmware,
    _: &mut StepContext<'_>,
    _: View<'_, QuerySpecialContextsIn>,
    output: &mut ViewMut<'_, QuerySpecialContextsOut>,
) -> Outcome {
    output.set(QuerySpecialContextsOut::TERMINATE_SCATTER_LIST_MKEY, TERMINATE_LIST_KEY);
    Ok(())
}

/// NOP.
pub(super) fn nop(_: &mut Firmware, _: &mut StepContext<'_>, _: View<'_, NopIn>, _: &mut ViewMut<'_, NopOut>) -> Outcome {
    Ok(())
}
