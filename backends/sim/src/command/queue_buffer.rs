//! Buffers of queues and keys: pages that the command lists, or user memory that it names.

use std::borrow::Cow;

use bareverbs_mlx5_spec::{
    CmdStatus, Cqc, CreateCqIn, CreateCqUserMemory, CreateMkeyIn, CreateMkeyUserMemory, CreateQpIn, CreateQpUserMemory, Mkc,
    ModifyCqIn, Qpc, View, ViewMut, Wq, user_memory_fields,
};

use super::refusal::Refusal;
use super::user_context::owner_of;
use crate::engine::memory::umem::UmemRange;
use crate::engine::{PageSource, QueueMemory};
use crate::firmware::Firmware;
use crate::registry::Owner;

/// Returns the input with its user memory fields cleared, if it says that it has any: they lie where the published layouts have
/// nothing. A driver in user space that owns the whole device has user memory without a user context.
pub(super) fn clear_user_memory_fields(input: &[u8]) -> Cow<'_, [u8]> {
    let Some(layout) = user_memory_fields(input) else { return Cow::Borrowed(input) };
    let mut input = input.to_vec();
    for (at, len) in layout.fields.iter().map(|field| field.place.bytes()) {
        input.iter_mut().skip(at).take(len).for_each(|byte| *byte = 0);
    }
    Cow::Owned(input)
}

/// Where the page list of CREATE_RMP, CREATE_RQ and CREATE_SQ begins: the context's work queue ends with it.
const WORK_QUEUE_PAS: usize = 272;

/// The buffer of a queue: its pages, the queue's context changed to fit them, and the user memory of its doorbell record.
pub(super) struct QueueBuffer<'a, const N: usize> {
    pub(super) context: [u8; N],
    pub(super) pages: PageSource<'a>,
    pub(super) record: Option<u32>,
}

/// Returns the buffer of a completion queue.
pub(super) fn of_cq<'a>(firmware: &Firmware, input: View<'a, CreateCqIn>) -> Result<QueueBuffer<'a, 64>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateCqIn::CQ_CONTEXT);
    let mut context: [u8; 64] = named.as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    let mut place = ViewMut::<Cqc>::of(&mut context);
    let mut record = None;
    let owner = owner_of(bytes);
    let pages = match View::<CreateCqUserMemory>::new(bytes) {
        Some(fields) if input.is_set(CreateCqIn::CQ_UMEM_VALID) => {
            let number = fields.get(CreateCqUserMemory::CQ_UMEM_ID);
            let (range, offset) = queue_in(firmware, owner, number, fields.get64(CreateCqUserMemory::CQ_UMEM_OFFSET))?;
            place.set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            PageSource::Umem(range)
        }
        _ => PageSource::Listed(input.tail(CreateCqIn::PAS)),
    };
    if let Some(fields) = View::<CreateCqUserMemory>::new(bytes).filter(|_| named.is_set(Cqc::DBR_UMEM_VALID)) {
        let number = fields.get(CreateCqUserMemory::DBR_UMEM_ID);
        place.set64(Cqc::DBR_ADDR, record_in(firmware, owner, number, named.get64(Cqc::DBR_ADDR))?);
        record = Some(number);
    }
    Ok(QueueBuffer { context, pages, record })
}

/// Returns the new buffer of a completion queue.
pub(super) fn of_resized_cq<'a>(firmware: &Firmware, input: View<'a, ModifyCqIn>) -> Result<QueueBuffer<'a, 64>, Refusal> {
    let bytes = input.as_bytes();
    let mut context: [u8; 64] = input.sub(ModifyCqIn::CQ_CONTEXT).as_bytes().first_chunk().copied().unwrap_or([0; 64]);
    match View::<CreateCqUserMemory>::new(bytes) {
        Some(fields) if input.is_set(ModifyCqIn::CQ_UMEM_VALID) => {
            let number = fields.get(CreateCqUserMemory::CQ_UMEM_ID);
            let at = fields.get64(CreateCqUserMemory::CQ_UMEM_OFFSET);
            let (range, offset) = queue_in(firmware, owner_of(bytes), number, at)?;
            ViewMut::<Cqc>::of(&mut context).set(Cqc::LOG_PAGE_SIZE, 0).set(Cqc::PAGE_OFFSET, offset);
            Ok(QueueBuffer { context, pages: PageSource::Umem(range), record: None })
        }
        _ => Ok(QueueBuffer { context, pages: PageSource::Listed(input.tail(ModifyCqIn::PAS)), record: None }),
    }
}

/// Returns the buffer of a work queue, whose context has published fields for user memory. `input` is the whole command.
pub(super) fn of_work_queue<'a>(firmware: &Firmware, queue: View<'_, Wq>, input: &'a [u8]) -> Result<QueueMemory<'a>, Refusal> {
    let owner = owner_of(input);
    let mut buffer = QueueMemory {
        pages: PageSource::Listed(input.get(WORK_QUEUE_PAS..).unwrap_or_default()),
        log_page_size: queue.get(Wq::LOG_WQ_PG_SZ),
        page_offset: queue.get(Wq::PAGE_OFFSET),
        dbr_addr: queue.get64(Wq::DBR_ADDR),
        record: None,
    };
    if queue.is_set(Wq::WQ_UMEM_VALID) {
        let number = queue.get(Wq::WQ_UMEM_ID);
        let (range, page_offset) = queue_in(firmware, owner, number, queue.get64(Wq::WQ_UMEM_OFFSET))?;
        buffer = QueueMemory { pages: PageSource::Umem(range), page_offset, log_page_size: 0, ..buffer };
    }
    if queue.is_set(Wq::DBR_UMEM_VALID) {
        let number = queue.get(Wq::DBR_UMEM_ID);
        buffer.dbr_addr = record_in(firmware, owner, number, buffer.dbr_addr)?;
        buffer.record = Some(number);
    }
    Ok(buffer)
}

/// Returns the buffer of a queue pair.
pub(super) fn of_qp<'a>(firmware: &Firmware, input: View<'a, CreateQpIn>) -> Result<QueueBuffer<'a, 232>, Refusal> {
    let bytes = input.as_bytes();
    let named = input.sub(CreateQpIn::QPC);
    let mut context: [u8; 232] = named.as_bytes().first_chunk().copied().unwrap_or([0; 232]);
    let mut place = ViewMut::<Qpc>::of(&mut context);
    let mut record = None;
    let owner = owner_of(bytes);
    let pages = if input.is_set(CreateQpIn::WQ_UMEM_VALID) {
        let number = input.get(CreateQpIn::WQ_UMEM_ID);
        let (range, offset) = queue_in(firmware, owner, number, input.get64(CreateQpIn::WQ_UMEM_OFFSET))?;
        place.set(Qpc::LOG_PAGE_SIZE, 0).set(Qpc::PAGE_OFFSET, offset);
        PageSource::Umem(range)
    } else {
        PageSource::Listed(input.tail(CreateQpIn::PAS))
    };
    if let Some(fields) = View::<CreateQpUserMemory>::new(bytes).filter(|_| named.is_set(Qpc::DBR_UMEM_VALID)) {
        let number = fields.get(CreateQpUserMemory::DBR_UMEM_ID);
        place.set64(Qpc::DBR_ADDR, record_in(firmware, owner, number, named.get64(Qpc::DBR_ADDR))?);
        record = Some(number);
    }
    Ok(QueueBuffer { context, pages, record })
}

/// Returns the user memory that a key opens.
pub(super) fn of_mkey(firmware: &Firmware, input: View<'_, CreateMkeyIn>) -> Result<UmemRange, Refusal> {
    let context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let fields = View::<CreateMkeyUserMemory>::new(input.as_bytes()).ok_or(CmdStatus::BadInputLen)?;
    let log_page = context.get(Mkc::LOG_PAGE_SIZE);
    let within = context.get64(Mkc::START_ADDR) & (1_u64.checked_shl(log_page).unwrap_or(1) - 1);
    let place = (fields.get(CreateMkeyUserMemory::MKEY_UMEM_ID), fields.get64(CreateMkeyUserMemory::MKEY_UMEM_OFFSET));
    let (registry, owner) = (firmware.engine.registry(), owner_of(input.as_bytes()));
    let range = firmware.umems.region(registry, owner, place, (log_page, within), context.get64(Mkc::LEN));
    range.map_err(bad_user_memory)
}

/// Returns a queue at byte `at` of user memory, and where it begins in a page of 4096 bytes, in 64ths.
fn queue_in(firmware: &Firmware, owner: Owner, number: u32, at: u64) -> Result<(UmemRange, u32), Refusal> {
    firmware.umems.queue(firmware.engine.registry(), owner, number, at).map_err(bad_user_memory)
}

/// Returns the device address of the doorbell record at byte `at` of user memory.
fn record_in(firmware: &Firmware, owner: Owner, number: u32, at: u64) -> Result<u64, Refusal> {
    firmware.umems.address(firmware.engine.registry(), owner, number, (at, 8)).map_err(bad_user_memory)
}

fn bad_user_memory(status: CmdStatus) -> Refusal {
    Refusal::new(status, "no such user memory, or it does not reach that far")
}
