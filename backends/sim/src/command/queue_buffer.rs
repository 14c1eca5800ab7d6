//! Buffers of queues and keys: pages that the command lists, or user memory that it names.

use std::borrow::Cow;

use bareverbs_mlx5_spec::{
    CmdStatus, Cqc, CreateCqIn, CreateCqUserMemory, CreateMkeyIn, CreateMkeyUserMemory, CreateQpIn, CreateQpUserMemory,
    CreateRmpIn, Mkc, ModifyCqIn, Qpc, Rmpc, View, ViewMut, Wq, user_memory_fields,
};

use super::Refusal;
use super::eq::page_list;
use super::user::uid_of;
use crate::firmware::Firmware;
use crate::user::UmemBinding;

/// The input with its user memory fields cleared, if it says that it has any: they lie where the published layouts have nothing.
/// A driver in user space that owns the whole device has user memory without a user context.
pub(super) fn clear_user_memory_fields(input: &[u8]) -> Cow<'_, [u8]> {
    let Some(layout) = user_memory_fields(input) else { return Cow::Borrowed(input) };
    let mut input = input.to_vec();
    for (at, len) in layout.fields.iter().map(|field| field.place.bytes()) {
        input.iter_mut().skip(at).take(len).for_each(|byte| *byte = 0);
    }
    Cow::Owned(input)
}

/// Where the page list of CREATE_RMP begins: the context's work queue ends with it.
const POOL_PAS: usize = 272;

/// The buffer of a queue: its pages, the queue's context changed to fit them, and the user memory that they lie in.
pub(super) struct QueueBuffer<const N: usize> {
    pub(super) context: [u8; N],
    pub(super) pages: Vec<u64>,
    pub(super) binding: UmemBinding,
}

/// The buffer of a completion queue.
pub(super) fn of_cq(firmware: &Firmware, input: View<'_, CreateCqIn>) -> Result<QueueBuffer<64>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateCqIn::CQ_CONTEXT);
    let mut context: [u8; 64] = named.as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    let mut place = ViewMut::<Cqc>::of(&mut context);
    let mut binding = UmemBinding::default();
    let uid = uid_of(bytes);
    let pages = match View::<CreateCqUserMemory>::new(bytes) {
        Some(fields) if input.is_set(CreateCqIn::CQ_UMEM_VALID) => {
            let number = fields.get(CreateCqUserMemory::CQ_UMEM_ID);
            let (pages, offset) =
                firmware.users.queue(uid, number, fields.get64(CreateCqUserMemory::CQ_UMEM_OFFSET)).map_err(bad_user_memory)?;
            place.set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            binding.buffer = Some(number);
            pages
        }
        _ => page_list(input.tail(CreateCqIn::PAS)),
    };
    if let Some(fields) = View::<CreateCqUserMemory>::new(bytes).filter(|_| named.is_set(Cqc::DBR_UMEM_VALID)) {
        let number = fields.get(CreateCqUserMemory::DBR_UMEM_ID);
        let address = firmware.users.address(uid, number, named.get64(Cqc::DBR_ADDR), 8).map_err(bad_user_memory)?;
        place.set64(Cqc::DBR_ADDR, address);
        binding.record = Some(number);
    }
    Ok(QueueBuffer { context, pages, binding })
}

/// The new buffer of a completion queue.
pub(super) fn of_resized_cq(firmware: &Firmware, input: View<'_, ModifyCqIn>) -> Result<QueueBuffer<64>, Refusal> {
    let bytes = input.as_bytes();
    let mut context: [u8; 64] = input.sub(ModifyCqIn::CQ_CONTEXT).as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    match View::<CreateCqUserMemory>::new(bytes) {
        Some(fields) if input.is_set(ModifyCqIn::CQ_UMEM_VALID) => {
            let number = fields.get(CreateCqUserMemory::CQ_UMEM_ID);
            let place = firmware.users.queue(uid_of(bytes), number, fields.get64(CreateCqUserMemory::CQ_UMEM_OFFSET));
            let (pages, offset) = place.map_err(bad_user_memory)?;
            ViewMut::<Cqc>::of(&mut context).set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            Ok(QueueBuffer { context, pages, binding: UmemBinding { buffer: Some(number), record: None } })
        }
        _ => Ok(QueueBuffer { context, pages: page_list(input.tail(ModifyCqIn::PAS)), binding: UmemBinding::default() }),
    }
}

/// The buffer of a receive memory pool.
pub(super) struct PoolBuffer {
    pub(super) pages: Vec<u64>,
    /// Bytes of a page as a power of two counted from 4096, and where the first begins in 64ths of it.
    pub(super) log_page_size: u32,
    pub(super) page_offset: u32,
    pub(super) dbr_addr: u64,
    pub(super) binding: UmemBinding,
}

/// The buffer of a receive memory pool, whose context has published fields for user memory.
pub(super) fn of_pool(firmware: &Firmware, input: View<'_, CreateRmpIn>) -> Result<PoolBuffer, Refusal> {
    let queue = input.sub(CreateRmpIn::CTX).sub(Rmpc::WQ);
    let uid = uid_of(input.as_bytes());
    let mut buffer = PoolBuffer {
        pages: Vec::new(),
        log_page_size: queue.get(Wq::LOG_WQ_PG_SZ),
        page_offset: queue.get(Wq::PAGE_OFFSET),
        dbr_addr: queue.get64(Wq::DBR_ADDR),
        binding: UmemBinding::default(),
    };
    if queue.is_set(Wq::WQ_UMEM_VALID) {
        let number = queue.get(Wq::WQ_UMEM_ID);
        let place = firmware.users.queue(uid, number, queue.get64(Wq::WQ_UMEM_OFFSET)).map_err(bad_user_memory)?;
        (buffer.pages, buffer.page_offset) = place;
        buffer.log_page_size = 0;
        buffer.binding.buffer = Some(number);
    } else {
        buffer.pages = page_list(input.as_bytes().get(POOL_PAS..).unwrap_or_default());
    }
    if queue.is_set(Wq::DBR_UMEM_VALID) {
        let number = queue.get(Wq::DBR_UMEM_ID);
        buffer.dbr_addr = firmware.users.address(uid, number, buffer.dbr_addr, 8).map_err(bad_user_memory)?;
        buffer.binding.record = Some(number);
    }
    Ok(buffer)
}

/// The buffer of a queue pair.
pub(super) fn of_qp(firmware: &Firmware, input: View<'_, CreateQpIn>) -> Result<QueueBuffer<232>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateQpIn::QPC);
    let mut context: [u8; 232] = named.as_bytes().first_chunk().copied().unwrap_or([0; 232]);
    let mut place = ViewMut::<Qpc>::of(&mut context);
    let mut binding = UmemBinding::default();
    let uid = uid_of(bytes);
    let pages = if input.is_set(CreateQpIn::WQ_UMEM_VALID) {
        let number = input.get(CreateQpIn::WQ_UMEM_ID);
        let (pages, offset) =
            firmware.users.queue(uid, number, input.get64(CreateQpIn::WQ_UMEM_OFFSET)).map_err(bad_user_memory)?;
        place.set(Qpc::LOG_PAGE_SIZE, 0).set(Qpc::PAGE_OFFSET, offset);
        binding.buffer = Some(number);
        pages
    } else {
        page_list(input.tail(CreateQpIn::PAS))
    };
    if let Some(fields) = View::<CreateQpUserMemory>::new(bytes).filter(|_| named.is_set(Qpc::DBR_UMEM_VALID)) {
        let number = fields.get(CreateQpUserMemory::DBR_UMEM_ID);
        let address = firmware.users.address(uid, number, named.get64(Qpc::DBR_ADDR), 8).map_err(bad_user_memory)?;
        place.set64(Qpc::DBR_ADDR, address);
        binding.record = Some(number);
    }
    Ok(QueueBuffer { context, pages, binding })
}

/// The translations of a key over user memory, and the object.
pub(super) fn of_mkey(firmware: &Firmware, input: View<'_, CreateMkeyIn>) -> Result<(Vec<u8>, u32), Refusal> {
    let context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let fields = View::<CreateMkeyUserMemory>::new(input.as_bytes()).ok_or(CmdStatus::BadInputLen)?;
    let log_page = context.get(Mkc::LOG_PAGE_SIZE);
    let within = context.get64(Mkc::START_ADDR) & (1_u64.checked_shl(log_page).unwrap_or(1) - 1);
    let number = fields.get(CreateMkeyUserMemory::MKEY_UMEM_ID);
    let place = (number, fields.get64(CreateMkeyUserMemory::MKEY_UMEM_OFFSET));
    let uid = uid_of(input.as_bytes());
    let raw = firmware.users.region(uid, place, log_page, within, context.get64(Mkc::LEN)).map_err(bad_user_memory)?;
    Ok((raw, number))
}

fn bad_user_memory(status: CmdStatus) -> Refusal {
    Refusal::new(status, "no such user memory, or it does not reach that far")
}
