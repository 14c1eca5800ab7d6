//! Where a queue or a key lies: in pages that its command lists, or in user memory that it names.

use std::borrow::Cow;

use bareverbs_mlx5_spec::{
    CmdStatus, Cqc, CreateCqIn, CreateCqUserMemory, CreateMkeyIn, CreateMkeyUserMemory, CreateQpIn, CreateQpUserMemory,
    CreateRmpIn, Mkc, ModifyCqIn, Qpc, Rmpc, View, ViewMut, Wq, user_memory_names,
};

use super::Refusal;
use super::eq::page_list;
use super::user::uid_of;
use crate::firmware::Firmware;
use crate::user::Tenancy;

/// The input with the names of user memory cleared, if it says that there are any: they stand where the published layouts
/// have nothing. A driver in user space that owns the whole device names its memory without a context of its own.
pub(super) fn without_names(input: &[u8]) -> Cow<'_, [u8]> {
    let Some(layout) = user_memory_names(input) else { return Cow::Borrowed(input) };
    let mut input = input.to_vec();
    for (at, len) in layout.fields.iter().map(|field| field.place.bytes()) {
        input.iter_mut().skip(at).take(len).for_each(|byte| *byte = 0);
    }
    Cow::Owned(input)
}

/// Where the page list of CREATE_RMP begins: the context's work queue ends with it.
const POOL_PAS: usize = 272;

/// Pages of a queue, with its context changed to fit them, and the user memory that it lives in.
pub(super) struct Home<const N: usize> {
    pub(super) context: [u8; N],
    pub(super) pages: Vec<u64>,
    pub(super) tenancy: Tenancy,
}

/// The home of a completion queue.
pub(super) fn of_cq(firmware: &Firmware, input: View<'_, CreateCqIn>) -> Result<Home<64>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateCqIn::CQ_CONTEXT);
    let mut context: [u8; 64] = named.as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    let mut place = ViewMut::<Cqc>::of(&mut context);
    let mut tenancy = Tenancy::default();
    let uid = uid_of(bytes);
    let pages = match View::<CreateCqUserMemory>::new(bytes) {
        Some(home) if input.is_set(CreateCqIn::CQ_UMEM_VALID) => {
            let number = home.get(CreateCqUserMemory::CQ_UMEM_ID);
            let (pages, offset) =
                firmware.users.queue(uid, number, home.get64(CreateCqUserMemory::CQ_UMEM_OFFSET)).map_err(no_room)?;
            place.set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            tenancy.buffer = Some(number);
            pages
        }
        _ => page_list(input.tail(CreateCqIn::PAS)),
    };
    if let Some(home) = View::<CreateCqUserMemory>::new(bytes).filter(|_| named.is_set(Cqc::DBR_UMEM_VALID)) {
        let number = home.get(CreateCqUserMemory::DBR_UMEM_ID);
        let address = firmware.users.address(uid, number, named.get64(Cqc::DBR_ADDR), 8).map_err(no_room)?;
        place.set64(Cqc::DBR_ADDR, address);
        tenancy.record = Some(number);
    }
    Ok(Home { context, pages, tenancy })
}

/// The new buffer of a completion queue.
pub(super) fn of_resized_cq(firmware: &Firmware, input: View<'_, ModifyCqIn>) -> Result<Home<64>, Refusal> {
    let bytes = input.as_bytes();
    let mut context: [u8; 64] = input.sub(ModifyCqIn::CQ_CONTEXT).as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    match View::<CreateCqUserMemory>::new(bytes) {
        Some(home) if input.is_set(ModifyCqIn::CQ_UMEM_VALID) => {
            let number = home.get(CreateCqUserMemory::CQ_UMEM_ID);
            let place = firmware.users.queue(uid_of(bytes), number, home.get64(CreateCqUserMemory::CQ_UMEM_OFFSET));
            let (pages, offset) = place.map_err(no_room)?;
            ViewMut::<Cqc>::of(&mut context).set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            Ok(Home { context, pages, tenancy: Tenancy { buffer: Some(number), record: None } })
        }
        _ => Ok(Home { context, pages: page_list(input.tail(ModifyCqIn::PAS)), tenancy: Tenancy::default() }),
    }
}

/// Where a receive memory pool lies.
pub(super) struct PoolHome {
    pub(super) pages: Vec<u64>,
    /// Bytes of a page as a power of two counted from 4096, and where the first begins in 64ths of it.
    pub(super) log_page_size: u32,
    pub(super) page_offset: u32,
    pub(super) dbr_addr: u64,
    pub(super) tenancy: Tenancy,
}

/// The home of a receive memory pool, whose context has room for all that there is to say.
pub(super) fn of_pool(firmware: &Firmware, input: View<'_, CreateRmpIn>) -> Result<PoolHome, Refusal> {
    let queue = input.sub(CreateRmpIn::CTX).sub(Rmpc::WQ);
    let uid = uid_of(input.as_bytes());
    let mut home = PoolHome {
        pages: Vec::new(),
        log_page_size: queue.get(Wq::LOG_WQ_PG_SZ),
        page_offset: queue.get(Wq::PAGE_OFFSET),
        dbr_addr: queue.get64(Wq::DBR_ADDR),
        tenancy: Tenancy::default(),
    };
    if queue.is_set(Wq::WQ_UMEM_VALID) {
        let number = queue.get(Wq::WQ_UMEM_ID);
        let place = firmware.users.queue(uid, number, queue.get64(Wq::WQ_UMEM_OFFSET)).map_err(no_room)?;
        (home.pages, home.page_offset) = place;
        home.log_page_size = 0;
        home.tenancy.buffer = Some(number);
    } else {
        home.pages = page_list(input.as_bytes().get(POOL_PAS..).unwrap_or_default());
    }
    if queue.is_set(Wq::DBR_UMEM_VALID) {
        let number = queue.get(Wq::DBR_UMEM_ID);
        home.dbr_addr = firmware.users.address(uid, number, home.dbr_addr, 8).map_err(no_room)?;
        home.tenancy.record = Some(number);
    }
    Ok(home)
}

/// The home of a queue pair.
pub(super) fn of_qp(firmware: &Firmware, input: View<'_, CreateQpIn>) -> Result<Home<232>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateQpIn::QPC);
    let mut context: [u8; 232] = named.as_bytes().first_chunk().copied().unwrap_or([0; 232]);
    let mut place = ViewMut::<Qpc>::of(&mut context);
    let mut tenancy = Tenancy::default();
    let uid = uid_of(bytes);
    let pages = if input.is_set(CreateQpIn::WQ_UMEM_VALID) {
        let number = input.get(CreateQpIn::WQ_UMEM_ID);
        let (pages, offset) = firmware.users.queue(uid, number, input.get64(CreateQpIn::WQ_UMEM_OFFSET)).map_err(no_room)?;
        place.set(Qpc::LOG_PAGE_SIZE, 0).set(Qpc::PAGE_OFFSET, offset);
        tenancy.buffer = Some(number);
        pages
    } else {
        page_list(input.tail(CreateQpIn::PAS))
    };
    if let Some(home) = View::<CreateQpUserMemory>::new(bytes).filter(|_| named.is_set(Qpc::DBR_UMEM_VALID)) {
        let number = home.get(CreateQpUserMemory::DBR_UMEM_ID);
        let address = firmware.users.address(uid, number, named.get64(Qpc::DBR_ADDR), 8).map_err(no_room)?;
        place.set64(Qpc::DBR_ADDR, address);
        tenancy.record = Some(number);
    }
    Ok(Home { context, pages, tenancy })
}

/// The translations of a key over user memory, and the object.
pub(super) fn of_mkey(firmware: &Firmware, input: View<'_, CreateMkeyIn>) -> Result<(Vec<u8>, u32), Refusal> {
    let context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let home = View::<CreateMkeyUserMemory>::new(input.as_bytes()).ok_or(CmdStatus::BadInputLen)?;
    let log_page = context.get(Mkc::LOG_PAGE_SIZE);
    let within = context.get64(Mkc::START_ADDR) & (1_u64.checked_shl(log_page).unwrap_or(1) - 1);
    let number = home.get(CreateMkeyUserMemory::MKEY_UMEM_ID);
    let place = (number, home.get64(CreateMkeyUserMemory::MKEY_UMEM_OFFSET));
    let uid = uid_of(input.as_bytes());
    let raw = firmware.users.region(uid, place, log_page, within, context.get64(Mkc::LEN)).map_err(no_room)?;
    Ok((raw, number))
}

fn no_room(status: CmdStatus) -> Refusal {
    Refusal::new(status, "no such user memory, or it does not reach that far")
}
