//! Numbers of user memory objects in commands: where a queue, a doorbell record or the translations of a key lie, instead of
//! pages that the command lists.
//!
//! Linux passes them on from programs and has no names for them: they lie where `mlx5_ifc.h` has reserved bits.

use super::{CmdIn, CmdOpcode, Cqc, CreateCqIn, CreateMkeyIn, CreateQpIn, ModifyCqIn, Qpc};
use crate::{Layout, LayoutInfo, View};

crate::layout! {
    /// In CREATE_CQ; MODIFY_CQ has those of the buffer in the same places (rdma-core `tests/mlx5_prm_structs.py`, `CreateCqIn`).
    CreateCqUserMemory "create_cq_in_user_memory", 92 bytes {
        DBR_UMEM_ID "dbr_umem_id" (20:31..0);
        CQ_UMEM_OFFSET "cq_umem_offset" (@80 u64);
        CQ_UMEM_ID "cq_umem_id" (88:31..0);
    }
}

crate::layout! {
    /// In CREATE_QP, beside those that `mlx5_ifc.h` has (rdma-core `tests/mlx5_prm_structs.py`, `SwQpc`).
    CreateQpUserMemory "create_qp_in_user_memory", 272 bytes {
        DBR_UMEM_ID "dbr_umem_id" (252:31..0);
    }
}

crate::layout! {
    /// In CREATE_MKEY (rdma-core `tests/mlx5_prm_structs.py`, `CreateMkeyIn`).
    CreateMkeyUserMemory "create_mkey_in_user_memory", 112 bytes {
        MKEY_UMEM_ID "mkey_umem_id" (100:31..0);
        MKEY_UMEM_OFFSET "mkey_umem_offset" (@104 u64);
    }
}

/// The layout of the user memory fields of an input that has any.
pub fn user_memory_fields(input: &[u8]) -> Option<&'static LayoutInfo> {
    let layout = match CmdOpcode::from_code(CmdIn::OPCODE.bits().read(input)?)? {
        CmdOpcode::CreateCq => {
            let input = View::<CreateCqIn>::new(input)?;
            let valid =
                input.is_set(CreateCqIn::CQ_UMEM_VALID) || input.sub(CreateCqIn::CQ_CONTEXT).is_set(Cqc::DBR_UMEM_VALID);
            valid.then_some(&CreateCqUserMemory::INFO)
        }
        CmdOpcode::ModifyCq => {
            View::<ModifyCqIn>::new(input)?.is_set(ModifyCqIn::CQ_UMEM_VALID).then_some(&CreateCqUserMemory::INFO)
        }
        CmdOpcode::CreateQp => View::<CreateQpIn>::new(input)?
            .sub(CreateQpIn::QPC)
            .is_set(Qpc::DBR_UMEM_VALID)
            .then_some(&CreateQpUserMemory::INFO),
        CmdOpcode::CreateMkey => {
            View::<CreateMkeyIn>::new(input)?.is_set(CreateMkeyIn::MKEY_UMEM_VALID).then_some(&CreateMkeyUserMemory::INFO)
        }
        _ => None,
    };
    layout.filter(|layout| layout.size <= input.len())
}
