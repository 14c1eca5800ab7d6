//! Objects of user programs (DEVX): contexts, memory objects, and the fields by which commands refer to those.
//!
//! A queue, a doorbell record or the translations of a key may lie in a memory object instead of pages that the command lists.
//! Linux passes the object's number on from programs and has no names for these fields: they lie where `mlx5_ifc.h` has
//! reserved bits.

use super::{CmdIn, CmdOpcode, Cqc, CreateCqIn, CreateMkeyIn, CreateQpIn, ModifyCqIn, Qpc};
use crate::{Layout, LayoutInfo, View};

crate::layout! {
    /// User context (`mlx5_ifc.h`, `uctx`).
    Uctx "uctx", 48 bytes {
        CAP "cap" (0:31..0);
    }
}

/// Bits of [`Uctx::CAP`] and [`CmdHcaCap::UCTX_CAP`](super::CmdHcaCap::UCTX_CAP): what a program may do beyond its own objects
/// (`MLX5_UCTX_CAP_*`).
pub mod uctx_cap {
    /// It may send as it likes. Linux gives this to programs with `CAP_NET_RAW`.
    pub const RAW_TX: u32 = 1;
}

crate::layout! {
    /// User memory object (`mlx5_ifc.h`, `umem`).
    Umem "umem", 32 bytes {
        ATS "ats" (16:31..31);
        LOG_PAGE_SIZE "log_page_size" (16:4..0);
        PAGE_OFFSET "page_offset" (20:31..0);
        NUM_OF_MTT "num_of_mtt" (@24 u64);
        MTT "mtt" (@32 [8]..);
    }
}

crate::layout! {
    /// Input of CREATE_UCTX (`mlx5_ifc.h`, `create_uctx_in`).
    CreateUctxIn "create_uctx_in", 64 bytes, input {
        UCTX "uctx" (@16 Uctx);
    }
}

crate::layout! {
    /// Output of CREATE_UCTX (`mlx5_ifc.h`, `create_uctx_out`).
    CreateUctxOut "create_uctx_out", 16 bytes, output {
        UID "uid" (8:15..0);
    }
}

crate::layout! {
    /// Input of DESTROY_UCTX (`mlx5_ifc.h`, `destroy_uctx_in`).
    DestroyUctxIn "destroy_uctx_in", 16 bytes, input {
        UID "uid" (8:15..0);
    }
}

crate::layout! {
    /// Output of DESTROY_UCTX (`mlx5_ifc.h`, `destroy_uctx_out`).
    DestroyUctxOut "destroy_uctx_out", output;
}

crate::layout! {
    /// Input of CREATE_UMEM (`mlx5_ifc.h`, `create_umem_in`).
    CreateUmemIn "create_umem_in", 48 bytes, input uid {
        UMEM "umem" (@16 [32]);
    }
}

crate::layout! {
    /// Output of CREATE_UMEM (`mlx5_ifc.h`, `create_umem_out`).
    CreateUmemOut "create_umem_out", 16 bytes, output {
        UMEM_ID "umem_id" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_UMEM (`mlx5_ifc.h`, `destroy_umem_in`).
    DestroyUmemIn "destroy_umem_in", 16 bytes, input uid {
        UMEM_ID "umem_id" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_UMEM (`mlx5_ifc.h`, `destroy_umem_out`).
    DestroyUmemOut "destroy_umem_out", output;
}

crate::layout! {
    /// Input header of general object commands (`mlx5_ifc.h`, `general_obj_in_cmd_hdr`).
    GeneralObjInCmdHdr "general_obj_in_cmd_hdr", 16 bytes {
        OPCODE "opcode" (0:31..16);
        UID "uid" (0:15..0);
        VHCA_TUNNEL_ID "vhca_tunnel_id" (4:31..16);
        OBJ_TYPE "obj_type" (4:15..0);
        OBJ_ID "obj_id" (8:31..0);
    }
}

crate::layout! {
    /// Output header of general object commands (`mlx5_ifc.h`, `general_obj_out_cmd_hdr`).
    GeneralObjOutCmdHdr "general_obj_out_cmd_hdr", 16 bytes, output {
        OBJ_ID "obj_id" (8:31..0);
    }
}

crate::layout! {
    /// In CREATE_CQ; MODIFY_CQ has those of the buffer in the same places (rdma-core `tests/mlx5_prm_structs.py`,
    /// `CreateCqIn`).
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

/// Returns the layout of the user memory fields of an input that has any.
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
