//! Where a queue or a key lies: in pages that its command lists, or in user memory that it names.
//!
//! The places of the names are those of DPDK's `mlx5_prm.h`; Linux passes them on from programs and has no names for them.

use bareverbs_mlx5_spec::{Cqc, CreateCqIn, CreateMkeyIn, CreateQpIn, Mkc, Qpc, View, ViewMut};

use super::Refusal;
use super::eq::page_list;
use super::user::uid_of;
use crate::firmware::Firmware;

bareverbs_mlx5_spec::layout! {
    /// What CREATE_CQ says about user memory.
    CqHome "create_cq_in", 92 bytes {
        DBR_UMEM_ID "dbr_umem_id" (20:31..0);
        CQ_UMEM_OFFSET "cq_umem_offset" (@80 u64);
        CQ_UMEM_ID "cq_umem_id" (88:31..0);
    }
}

bareverbs_mlx5_spec::layout! {
    /// What CREATE_QP says about user memory.
    QpHome "create_qp_in", 272 bytes {
        DBR_UMEM_ID "dbr_umem_id" (252:31..0);
    }
}

bareverbs_mlx5_spec::layout! {
    /// What CREATE_MKEY says about user memory.
    MkeyHome "create_mkey_in", 112 bytes {
        MKEY_UMEM_ID "mkey_umem_id" (100:31..0);
        MKEY_UMEM_OFFSET "mkey_umem_offset" (@104 u64);
    }
}

/// Pages of a queue, with its context changed to fit them, and the user memory objects that it lives in.
pub(super) struct Home<const N: usize> {
    pub(super) context: [u8; N],
    pub(super) pages: Vec<u64>,
    pub(super) umems: Vec<u32>,
}

/// The home of a completion queue.
pub(super) fn of_cq(firmware: &Firmware, input: View<'_, CreateCqIn>) -> Result<Home<64>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateCqIn::CQ_CONTEXT);
    let mut context: [u8; 64] = named.as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    let mut place = ViewMut::<Cqc>::of(&mut context);
    let mut umems = Vec::new();
    let uid = uid_of(bytes);
    let pages = match View::<CqHome>::new(bytes) {
        Some(home) if input.is_set(CreateCqIn::CQ_UMEM_VALID) => {
            let number = home.get(CqHome::CQ_UMEM_ID);
            let (pages, offset) = firmware.users.queue(uid, number, home.get64(CqHome::CQ_UMEM_OFFSET)).map_err(no_room)?;
            place.set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            umems.push(number);
            pages
        }
        _ => page_list(input.tail(CreateCqIn::PAS)),
    };
    if let Some(home) = View::<CqHome>::new(bytes).filter(|_| named.is_set(Cqc::DBR_UMEM_VALID)) {
        let number = home.get(CqHome::DBR_UMEM_ID);
        let address = firmware.users.address(uid, number, named.get64(Cqc::DBR_ADDR), 8).map_err(no_room)?;
        place.set64(Cqc::DBR_ADDR, address);
        umems.push(number);
    }
    Ok(Home { context, pages, umems })
}

/// The home of a queue pair.
pub(super) fn of_qp(firmware: &Firmware, input: View<'_, CreateQpIn>) -> Result<Home<232>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateQpIn::QPC);
    let mut context: [u8; 232] = named.as_bytes().first_chunk().copied().unwrap_or([0; 232]);
    let mut place = ViewMut::<Qpc>::of(&mut context);
    let mut umems = Vec::new();
    let uid = uid_of(bytes);
    let pages = if input.is_set(CreateQpIn::WQ_UMEM_VALID) {
        let number = input.get(CreateQpIn::WQ_UMEM_ID);
        let (pages, offset) = firmware.users.queue(uid, number, input.get64(CreateQpIn::WQ_UMEM_OFFSET)).map_err(no_room)?;
        place.set(Qpc::LOG_PAGE_SIZE, 0).set(Qpc::PAGE_OFFSET, offset);
        umems.push(number);
        pages
    } else {
        page_list(input.tail(CreateQpIn::PAS))
    };
    if let Some(home) = View::<QpHome>::new(bytes).filter(|_| named.is_set(Qpc::DBR_UMEM_VALID)) {
        let number = home.get(QpHome::DBR_UMEM_ID);
        let address = firmware.users.address(uid, number, named.get64(Qpc::DBR_ADDR), 8).map_err(no_room)?;
        place.set64(Qpc::DBR_ADDR, address);
        umems.push(number);
    }
    Ok(Home { context, pages, umems })
}

/// The translations of a key over user memory, and the object.
pub(super) fn of_mkey(firmware: &Firmware, input: View<'_, CreateMkeyIn>) -> Result<(Vec<u8>, u32), Refusal> {
    let context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let home = View::<MkeyHome>::new(input.as_bytes()).ok_or(bareverbs_mlx5_spec::CmdStatus::BadInputLen)?;
    let log_page = context.get(Mkc::LOG_PAGE_SIZE);
    let within = context.get64(Mkc::START_ADDR) & (1_u64.checked_shl(log_page).unwrap_or(1) - 1);
    let number = home.get(MkeyHome::MKEY_UMEM_ID);
    let place = (number, home.get64(MkeyHome::MKEY_UMEM_OFFSET));
    let uid = uid_of(input.as_bytes());
    let raw = firmware.users.region(uid, place, log_page, within, context.get64(Mkc::LEN)).map_err(no_room)?;
    Ok((raw, number))
}

fn no_room(status: bareverbs_mlx5_spec::CmdStatus) -> Refusal {
    Refusal::new(status, "no such user memory, or it does not reach that far")
}
