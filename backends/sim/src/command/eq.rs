//! Event queues.

use bareverbs_mlx5_spec::{
    CmdHcaCap, CmdStatus, CreateEqIn, CreateEqOut, DestroyEqIn, DestroyEqOut, Eqc, QueryEqIn, QueryEqOut, View, ViewMut,
};

use super::{Outcome, Refusal};
use crate::env::Env;
use crate::firmware::Firmware;
use crate::pages::cost;

/// The page addresses that follow a command's fixed part.
pub(super) fn page_list(tail: &[u8]) -> Vec<u64> {
    let (pages, _) = tail.as_chunks::<8>();
    pages.iter().map(|page| u64::from_be_bytes(*page)).collect()
}

/// CREATE_EQ.
pub(super) fn create_eq(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, CreateEqIn>,
    output: &mut ViewMut<'_, CreateEqOut>,
) -> Outcome {
    let context = input.sub(CreateEqIn::EQ_CONTEXT_ENTRY);
    if !firmware.uars.contains(context.get(Eqc::UAR_PAGE)) {
        return Err(Refusal::new(CmdStatus::BadRes, "no such UAR"));
    }
    let pages = page_list(input.tail(CreateEqIn::PAS));
    let mask = input.bytes(CreateEqIn::EVENT_BITMASK);
    let log_max_size = firmware.caps.general(CmdHcaCap::LOG_MAX_EQ_SZ);
    firmware.pages.reserve(cost::EQ)?;
    match firmware.eqs.create(context, mask, pages, log_max_size, firmware.config.vectors.into()) {
        Ok(eqn) => {
            output.set(CreateEqOut::EQ_NUMBER, eqn);
            Ok(())
        }
        Err(status) => {
            firmware.pages.unreserve(cost::EQ);
            Err(Refusal::new(status, "size, vector or page list"))
        }
    }
}

/// DESTROY_EQ; busy while a completion queue reports to it.
pub(super) fn destroy_eq(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DestroyEqIn>,
    _: &mut ViewMut<'_, DestroyEqOut>,
) -> Outcome {
    firmware.eqs.destroy(input.get(DestroyEqIn::EQ_NUMBER))?;
    firmware.pages.unreserve(cost::EQ);
    Ok(())
}

/// QUERY_EQ.
pub(super) fn query_eq(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, QueryEqIn>,
    output: &mut ViewMut<'_, QueryEqOut>,
) -> Outcome {
    let eqn = input.get(QueryEqIn::EQ_NUMBER);
    let mask = firmware.eqs.query(eqn, &mut output.sub(QueryEqOut::EQ_CONTEXT_ENTRY))?;
    output.set64(QueryEqOut::EVENT_BITMASK, mask);
    Ok(())
}
