//! General objects: one set of commands for many types of objects, none of which this device has.

use bareverbs_mlx5_spec::{CmdStatus, GeneralObjInCmdHdr, GeneralObjOutCmdHdr, View, ViewMut};

use super::refusal::{Outcome, Refusal};
use crate::firmware::Firmware;
use crate::firmware::unsupported::Unsupported;
use crate::step::StepContext;

/// CREATE_, MODIFY_, QUERY_ and DESTROY_GENERAL_OBJECT: the capabilities name no type, so there is none to work on.
pub(super) fn refuse(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, GeneralObjInCmdHdr>,
    _: &mut ViewMut<'_, GeneralObjOutCmdHdr>,
) -> Outcome {
    firmware.unsupported.report(Unsupported::GeneralObject(input.get(GeneralObjInCmdHdr::OBJ_TYPE)));
    Err(Refusal::new(CmdStatus::BadParam, "no such type of object"))
}
