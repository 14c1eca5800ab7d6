//! Event queues.

use bareverbs_mlx5_spec::{
    CmdHcaCap, CreateEqIn, CreateEqOut, DestroyEqIn, DestroyEqOut, QueryEqIn, QueryEqOut, View, ViewMut,
};

use super::refusal::{Outcome, Refusal};
use crate::firmware::Firmware;
use crate::firmware::firmware_pages::cost;
use crate::registry::ObjectKind;
use crate::step::StepContext;

/// CREATE_EQ.
pub(super) fn create_eq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateEqIn>,
    output: &mut ViewMut<'_, CreateEqOut>,
) -> Outcome {
    let context = input.sub(CreateEqIn::EQ_CONTEXT_ENTRY);
    let sizes = (firmware.caps.general(CmdHcaCap::LOG_MAX_EQ_SZ), firmware.config.vectors.into());
    let created = firmware.create(ObjectKind::Eq, cost::EQ, |firmware| {
        let (mask, list) = (input.bytes(CreateEqIn::EVENT_BITMASK), input.tail(CreateEqIn::PAS));
        firmware.eqs.create(firmware.engine.registry_mut(), context, mask, list, sizes)
    });
    output.set(CreateEqOut::EQ_NUMBER, created.map_err(|status| Refusal::new(status, "size, vector, UAR or page list"))?);
    Ok(())
}

/// DESTROY_EQ; busy while a completion queue reports to it.
pub(super) fn destroy_eq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyEqIn>,
    _: &mut ViewMut<'_, DestroyEqOut>,
) -> Outcome {
    let room = firmware.eqs.destroy(firmware.engine.registry_mut(), input.get(DestroyEqIn::EQ_NUMBER))?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// QUERY_EQ.
pub(super) fn query_eq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryEqIn>,
    output: &mut ViewMut<'_, QueryEqOut>,
) -> Outcome {
    let eqn = input.get(QueryEqIn::EQ_NUMBER);
    let mask = firmware.eqs.query(eqn, &mut output.sub(QueryEqOut::EQ_CONTEXT_ENTRY))?;
    output.set64(QueryEqOut::EVENT_BITMASK, mask);
    Ok(())
}
