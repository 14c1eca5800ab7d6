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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;

    use super::*;

    /// An input of `len` bytes with this opcode (`mlx5_ifc.h`, `MLX5_CMD_OP_*`) and one bit, counted from the left of the byte.
    fn fields(len: usize, opcode: u16, bit: Option<(usize, u8)>) -> Option<&'static str> {
        let mut input = vec![0; len];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        if let Some((byte, bit)) = bit {
            input[byte] = 0x80 >> bit;
        }
        user_memory_fields(&input).map(|layout| layout.name)
    }

    /// rdma-core, `tests/mlx5_prm_structs.py`: the bits that say that a queue or its doorbell record lies in a memory object.
    #[test]
    fn an_input_has_fields_of_user_memory_if_its_bit_says_so() {
        let (cq, qp, mkey) = ("create_cq_in_user_memory", "create_qp_in_user_memory", "create_mkey_in_user_memory");
        for (opcode, bit, name) in [
            // CREATE_CQ: cq_umem_valid in the dword at 92, dbr_umem_valid in the first one of the context.
            (0x400, (92, 0), cq),
            (0x400, (16, 6), cq),
            (0x403, (92, 0), cq),
            // CREATE_QP: dbr_umem_valid at byte 208 of the context, which is at 24.
            (0x500, (24 + 208, 3), qp),
            (0x200, (12, 1), mkey),
        ] {
            assert_eq!(fields(272, opcode, Some(bit)), Some(name), "{opcode:#x}");
            assert_eq!(fields(272, opcode, None), None, "{opcode:#x}");
            // Another bit says nothing.
            assert_eq!(fields(272, opcode, Some((5, 0))), None, "{opcode:#x}");
            assert_eq!(fields(16, opcode, None), None, "{opcode:#x} of 16 bytes");
        }
        // ALLOC_PD has none, 0x1 is no command, and one byte is no opcode.
        assert_eq!([fields(272, 0x800, Some((92, 0))), fields(272, 1, None)], [None, None]);
        assert!(user_memory_fields(&[4]).is_none());
    }
}
