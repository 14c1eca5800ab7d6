//! Simulated devices for C programs: `include/bareverbs_sim.h`. The library has the C interface of the verbs too.
//!
//! A world has hosts, each with a device, and the wire between them. Time moves when a program reads the clock or waits, so
//! that one thread is enough. What is made stays until the process ends.
#![expect(unsafe_code, reason = "C hands over pointers")]
#![expect(non_camel_case_types, reason = "the names are those of the header")]

use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bareverbs::platform::{Clock, DmaFence, Doorbell, Instant, PageSource, Registers};
use bareverbs_c::{
    BV_BARRIER_ACQUIRE, BV_BARRIER_FLUSH, BV_BARRIER_RELEASE, BV_MEMORY_SIZE, bv_device, bv_platform, bv_take_down,
};
use bareverbs_sim::in_process::{Host, SimPages, World, WorldConfig};
use bareverbs_sim::{DeviceConfig, Profile};

/// Bytes of a page, to which every memory is aligned.
const PAGE: usize = 4096;
/// Where the memory of a program begins for its device: far from where it is for the program, and from the firmware's pages.
const FIRST_MEMORY: u64 = 0x4000_0000_0000;
/// Places that are tried for a memory of the program, and how far they are apart: more than a firmware has.
const PLACES: u64 = 64;
const APART: u64 = 1 << 30;

/// Devices and the wire between them.
#[derive(Debug)]
pub struct bv_sim_world(World);

/// A host with a device.
#[derive(Debug)]
pub struct bv_sim_host {
    host: Host,
    pages: Mutex<SimPages>,
    /// Memory of the program by its address there: length, and address for the device.
    memories: Mutex<BTreeMap<u64, (u64, u64)>>,
    /// Where the next memory lies for the device.
    next: Cell<u64>,
    /// Calls of each callback.
    calls: [Cell<u64>; CALLBACKS],
    /// Pages that the firmware may still get.
    pages_left: Cell<u32>,
    /// A device that the next wait calls back into.
    call_back: Cell<*mut bv_device>,
    /// What that call returned.
    called_back: Cell<i32>,
}

/// Callbacks that are counted, in the order of the header.
const CALLBACKS: usize = 10;

/// Counts a call.
fn count(host: &bv_sim_host, callback: usize) {
    if let Some(calls) = host.calls.get(callback) {
        calls.set(calls.get() + 1);
    }
}

/// Returns the host that a callback is of.
///
/// # Safety
/// The context is that of `bv_sim_add`.
unsafe fn host_of<'a>(context: *mut c_void) -> &'a bv_sim_host {
    // SAFETY: as promised; hosts are never freed.
    unsafe { &*context.cast::<bv_sim_host>() }
}

unsafe extern "C" fn read32(context: *mut c_void, offset: usize) -> u32 {
    // SAFETY: the library gives back the context of the platform.
    let host = unsafe { host_of(context) };
    count(host, 0);
    host.host.registers().read32(offset).unwrap_or(u32::MAX)
}

unsafe extern "C" fn write32(context: *mut c_void, offset: usize, value: u32) {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 1);
    let _ = host.host.registers().write32(offset, value);
}

unsafe extern "C" fn write64(context: *mut c_void, offset: usize, value: u64) {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 2);
    if let Ok(doorbell) = host.host.registers().doorbell(offset, 1) {
        doorbell.write(0, value);
    }
}

unsafe extern "C" fn barrier(context: *mut c_void, barrier: u32) {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 3);
    match barrier {
        BV_BARRIER_RELEASE => host.host.fence().release(),
        BV_BARRIER_ACQUIRE => host.host.fence().acquire(),
        BV_BARRIER_FLUSH => host.host.fence().flush(),
        _ => std::process::abort(),
    }
}

unsafe extern "C" fn now(context: *mut c_void) -> u64 {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 4);
    host.host.clock().now().as_nanos()
}

unsafe extern "C" fn wait(context: *mut c_void, deadline: u64) {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 5);
    let device = host.call_back.replace(null_mut());
    if !device.is_null() {
        // SAFETY: a device, as `bv_sim_call_back` was promised.
        host.called_back.set(unsafe { bv_take_down(device) });
    }
    host.host.clock().relax(Instant::from_nanos(deadline));
}

unsafe extern "C" fn page_alloc(context: *mut c_void, device_addr: *mut u64) -> i32 {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 6);
    let Some(left) = host.pages_left.get().checked_sub(1) else { return 1 };
    let mut pages = host.pages.lock().unwrap_or_else(PoisonError::into_inner);
    if pages.reserve(1).is_err() {
        return 1;
    }
    match pages.allocate() {
        Some(page) => {
            host.pages_left.set(left);
            // SAFETY: the library gives the address of a variable.
            unsafe { device_addr.write(page) };
            0
        }
        None => 1,
    }
}

unsafe extern "C" fn page_free(context: *mut c_void, device_addr: u64) -> i32 {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 7);
    let freed = host.pages.lock().unwrap_or_else(PoisonError::into_inner).free(device_addr);
    if freed { 0 } else { 1 }
}

unsafe extern "C" fn page_free_all(context: *mut c_void) {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 8);
    host.pages.lock().unwrap_or_else(PoisonError::into_inner).free_all();
}

unsafe extern "C" fn extent(context: *mut c_void, addr: u64, device_addr: *mut u64, len: *mut u64) -> i32 {
    // SAFETY: as above.
    let host = unsafe { host_of(context) };
    count(host, 9);
    let memories = host.memories.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((start, (length, device))) = memories.range(..=addr).next_back() else { return 1 };
    let offset = addr - start;
    if offset >= *length {
        return 1;
    }
    // Page by page, as memory that is not contiguous for the device.
    let in_page = PAGE as u64 - offset % PAGE as u64;
    // SAFETY: the library gives the addresses of variables.
    unsafe {
        device_addr.write(device + offset);
        len.write((length - offset).min(in_page));
    }
    0
}

/// Makes a world without a host. It is the program's until its process ends.
#[unsafe(no_mangle)]
pub extern "C" fn bv_sim_world_new() -> *mut bv_sim_world {
    Box::into_raw(Box::new(bv_sim_world(World::new(WorldConfig::default()))))
}

/// Returns a device with this LID, like the card that the environment variable `BAREVERBS_PROFILE` names.
fn device(lid: u16) -> Option<DeviceConfig> {
    let name = std::env::var("BAREVERBS_PROFILE").unwrap_or_default();
    let profile = if name.is_empty() { Profile::default() } else { Profile::from_name(&name)? };
    Some(DeviceConfig::profile(profile, lid))
}

/// Adds a host whose device gets this LID, and fills in the platform of its machine. Returns NULL if there cannot be such a
/// device.
///
/// # Safety
/// `world` is of `bv_sim_world_new`; `platform` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_add(world: *mut bv_sim_world, lid: u16, platform: *mut bv_platform) -> *mut bv_sim_host {
    // SAFETY: as promised.
    unsafe { add(world, device(lid), platform) }
}

/// Adds a host whose device has an Ethernet port, with a MAC address made of `number`, and fills in the platform of its machine.
/// Returns NULL if there cannot be such a device.
///
/// # Safety
/// `world` is of `bv_sim_world_new`; `platform` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_add_ethernet(
    world: *mut bv_sim_world,
    number: u16,
    platform: *mut bv_platform,
) -> *mut bv_sim_host {
    // SAFETY: as promised.
    unsafe { add(world, device(number).map(DeviceConfig::with_ethernet), platform) }
}

/// Adds a host with a device.
///
/// # Safety
/// As of [`bv_sim_add`].
unsafe fn add(world: *mut bv_sim_world, config: Option<DeviceConfig>, platform: *mut bv_platform) -> *mut bv_sim_host {
    let Some(config) = config else { return null_mut() };
    // SAFETY: as promised.
    let Ok(host) = (unsafe { &(*world).0 }).add(config) else { return null_mut() };
    let registers_size = host.registers().len();
    let pages = Mutex::new(host.pages(u32::MAX));
    let host = Box::into_raw(Box::new(bv_sim_host {
        host,
        pages,
        memories: Mutex::default(),
        next: Cell::new(FIRST_MEMORY),
        calls: Default::default(),
        pages_left: Cell::new(u32::MAX),
        call_back: Cell::new(null_mut()),
        called_back: Cell::new(0),
    }));
    let mut memory_device_addr = 0;
    // SAFETY: the host was just made.
    let memory = unsafe { bv_sim_alloc(host, BV_MEMORY_SIZE, &raw mut memory_device_addr) };
    // SAFETY: as promised.
    unsafe {
        platform.write(bv_platform {
            context: host.cast(),
            registers_size,
            read32: Some(read32),
            write32: Some(write32),
            write64: Some(write64),
            barrier: Some(barrier),
            now: Some(now),
            wait: Some(wait),
            memory,
            memory_size: BV_MEMORY_SIZE,
            memory_device_addr,
            page_alloc: Some(page_alloc),
            page_free: Some(page_free),
            page_free_all: Some(page_free_all),
            extent: Some(extent),
        });
    }
    host
}

/// Allocates zeroed memory that the program and the host's device see, aligned to 4096, and writes its address for the device
/// unless that pointer is NULL. It is never freed. NULL if `size` is 0, or the process gets no memory.
///
/// # Safety
/// `host` is of `bv_sim_add`; `device_addr` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_alloc(host: *mut bv_sim_host, size: usize, device_addr: *mut u64) -> *mut c_void {
    // SAFETY: as promised.
    let host = unsafe { &*host };
    let Some(size) = size.checked_next_multiple_of(PAGE).filter(|size| *size != 0) else { return null_mut() };
    let Ok(layout) = Layout::from_size_align(size, PAGE) else { return null_mut() };
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return null_mut();
    }
    // SAFETY: zeroed words, aligned, which are never freed. The program's own accesses are in the thread in which the device
    // works.
    let words: &'static [AtomicU64] = unsafe { std::slice::from_raw_parts(memory.cast::<AtomicU64>(), size / 8) };
    // The firmware's pages lie behind what there was when it asked for them.
    let mut places = (0..PLACES).map(|place| host.next.get() + place * APART);
    let Some(addr) = places.find(|addr| host.host.lend_memory(*addr, words).is_some()) else { return null_mut() };
    // A page between two memories, which the device does not reach.
    host.next.set(addr + size as u64 + PAGE as u64);
    let mut memories = host.memories.lock().unwrap_or_else(PoisonError::into_inner);
    memories.insert(memory.expose_provenance() as u64, (size as u64, addr));
    if !device_addr.is_null() {
        // SAFETY: as promised.
        unsafe { device_addr.write(addr) };
    }
    memory.cast()
}

/// Lets time pass for every host of a world.
///
/// # Safety
/// `world` is of `bv_sim_world_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_advance(world: *mut bv_sim_world, nanoseconds: u64) {
    // SAFETY: as promised.
    unsafe { &(*world).0 }.advance(Duration::from_nanos(nanoseconds));
}

/// Takes the host's device out of its slot.
///
/// # Safety
/// `host` is of `bv_sim_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_remove(host: *mut bv_sim_host) {
    // SAFETY: as promised.
    unsafe { &*host }.host.with_device(|device| device.set_removed(true));
}

/// Pulls the cable of the host's device (0), or plugs it (1).
///
/// # Safety
/// `host` is of `bv_sim_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_set_link(host: *mut bv_sim_host, plugged: i32) {
    // SAFETY: as promised.
    unsafe { &*host }.host.with_device(|device| device.set_link(plugged != 0));
}

/// Returns how many mistakes of the driver the host's device has found.
///
/// # Safety
/// `host` is of `bv_sim_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_findings(host: *mut bv_sim_host) -> usize {
    // SAFETY: as promised.
    unsafe { &*host }.host.with_device(|device| device.audit().findings().len())
}

/// Returns how often a callback of the host's platform was called; its number is a place in the header's list.
///
/// # Safety
/// `host` is of `bv_sim_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_calls(host: *mut bv_sim_host, callback: usize) -> u64 {
    // SAFETY: as promised.
    unsafe { &*host }.calls.get(callback).map_or(0, Cell::get)
}

/// Lets `page_alloc` of the host find `pages` more pages, and no others.
///
/// # Safety
/// `host` is of `bv_sim_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_limit_pages(host: *mut bv_sim_host, pages: u32) {
    // SAFETY: as promised.
    unsafe { &*host }.pages_left.set(pages);
}

/// Lets the next `wait` of the host call `bv_take_down` on `device`, which no callback may. [`bv_sim_called_back`] has the
/// result.
///
/// # Safety
/// `host` is of `bv_sim_add`, `device` of `bv_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_call_back(host: *mut bv_sim_host, device: *mut bv_device) {
    // SAFETY: as promised.
    unsafe { &*host }.call_back.set(device);
}

/// Returns what the call of [`bv_sim_call_back`] returned, 0 before.
///
/// # Safety
/// `host` is of `bv_sim_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_sim_called_back(host: *mut bv_sim_host) -> i32 {
    // SAFETY: as promised.
    unsafe { &*host }.called_back.get()
}
