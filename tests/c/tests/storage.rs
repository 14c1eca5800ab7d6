//! The calls of C from Rust, so that Miri sees them: what lies in a device's storage, and who refers to it when.
//! (`cargo miri test -p bareverbs-c-sim --test storage`)
#![expect(unsafe_code, reason = "the functions are those for C")]
#![expect(clippy::expect_used, reason = "a test that finds nothing there has failed")]

use std::alloc::{Layout, alloc, alloc_zeroed};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;

use bareverbs_c::*;
use bareverbs_c_sim::{bv_sim_add, bv_sim_alloc, bv_sim_findings, bv_sim_host, bv_sim_world_new};

/// Storage for a device, as `aligned_alloc` gives it: not initialized, and never freed.
fn storage() -> *mut c_void {
    let layout = Layout::from_size_align(BV_STORAGE_SIZE, BV_STORAGE_ALIGN).expect("a layout");
    // SAFETY: the layout has a size.
    unsafe { alloc(layout) }.cast()
}

/// A host with a device that is up, and what one queue pair needs.
struct Node {
    host: *mut bv_sim_host,
    platform: bv_platform,
    device: *mut bv_device,
    port: bv_port_attr,
    pd: bv_pd,
    cq: bv_cq,
    qp: bv_qp,
    bytes: *mut u8,
    mr: bv_mr,
}

/// Calls a function and says which call it was, if its result is another than this.
macro_rules! is {
    ($expected:expr, $call:expr) => {
        // SAFETY: pointers of live variables, and devices of `bv_init`.
        assert_eq!(unsafe { $call }, $expected, stringify!($call))
    };
}

fn bring_up(node: &mut Node) {
    is!(0, bv_bring_up(node.device, &raw const node.platform, null()));
    is!(0, bv_wait_active(node.device, 1, 60_000, &raw mut node.port));
    is!(0, bv_alloc_pd(node.device, &raw mut node.pd));
    is!(0, bv_create_cq(node.device, 64, &raw mut node.cq));
    let init = bv_qp_init {
        pd: node.pd,
        send_cq: node.cq,
        recv_cq: node.cq,
        qp_type: BV_QPT_RC,
        sq_sig_all: 1,
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 8,
    };
    is!(0, bv_create_qp(node.device, &raw const init, &raw mut node.qp));
    let access = BV_ACCESS_LOCAL_WRITE | BV_ACCESS_REMOTE_WRITE;
    is!(0, bv_reg_mr(node.device, node.pd, node.bytes.cast(), 4096, access, &raw mut node.mr));
}

fn connect(node: &Node, peer: &Node) {
    let attr = bv_qp_attr {
        access: BV_ACCESS_REMOTE_WRITE,
        dest_qp_num: peer.qp.qp_num,
        path_mtu: node.port.active_mtu,
        port_num: 1,
        dlid: peer.port.lid,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..bv_qp_attr::default()
    };
    is!(0, bv_modify_qp_to_rts(node.device, node.qp, &raw const attr));
}

/// Writes 8 bytes and takes the completion.
fn write(node: &Node, peer: &Node) {
    // SAFETY: both pages have as many bytes, and no call is running.
    unsafe { node.bytes.write(7) };
    let sge = bv_sge { addr: node.bytes.expose_provenance() as u64, length: 8, lkey: node.mr.lkey };
    let wr = bv_send_wr {
        wr_id: 5,
        sg_list: &raw const sge,
        inline_data: null(),
        remote_addr: peer.bytes.expose_provenance() as u64,
        compare_add: 0,
        swap: 0,
        rkey: peer.mr.rkey,
        num_sge: 1,
        inline_length: 0,
        opcode: BV_WR_RDMA_WRITE,
        send_flags: 0,
        imm_data: 0,
        remote_srqn: 0,
        remote_qpn: 0,
        remote_qkey: 0,
        ah: bv_ah::default(),
    };
    let mut posted = MaybeUninit::uninit();
    is!(0, bv_post_send(node.device, node.qp, &raw const wr, 1, posted.as_mut_ptr()));
    // SAFETY: the call wrote it.
    assert_eq!(unsafe { posted.assume_init() }, 1);
    // Room for two, of which one is written.
    let mut wcs = [const { MaybeUninit::<bv_wc>::uninit() }; 2];
    let wait = node.platform.wait.expect("the platform of a simulated host waits");
    // SAFETY: writable completions, the platform's own context.
    while unsafe { bv_poll_cq(node.device, node.cq, wcs.as_mut_ptr().cast(), 2) } == 0 {
        // SAFETY: as above.
        unsafe { wait(node.platform.context, 0) };
    }
    // SAFETY: the call wrote it.
    let wc = unsafe { wcs[0].assume_init() };
    assert_eq!((wc.wr_id, wc.status), (5, BV_WC_SUCCESS));
    // SAFETY: as at the start.
    assert_eq!(unsafe { peer.bytes.read() }, 7);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri more than a quarter of an hour; the programs in C do the same under valgrind")]
fn two_lives_of_two_devices_in_their_storage() {
    let world = bv_sim_world_new();
    let mut nodes = [1, 2].map(|lid| {
        let (mut platform, mut device) = (MaybeUninit::uninit(), null_mut());
        // SAFETY: a world, and a writable platform.
        let host = unsafe { bv_sim_add(world, lid, platform.as_mut_ptr()) };
        assert!(!host.is_null());
        is!(0, bv_init(storage(), BV_STORAGE_SIZE, &raw mut device));
        Node {
            host,
            // SAFETY: written with the host.
            platform: unsafe { platform.assume_init() },
            device,
            port: bv_port_attr::default(),
            pd: bv_pd::default(),
            cq: bv_cq::default(),
            qp: bv_qp::default(),
            // SAFETY: the host.
            bytes: unsafe { bv_sim_alloc(host, 4096, null_mut()) }.cast(),
            mr: bv_mr::default(),
        }
    });
    for _ in 0..2 {
        nodes.iter_mut().for_each(bring_up);
        let [a, b] = &nodes;
        connect(a, b);
        connect(b, a);
        write(a, b);
        // One destroys what it has; the other leaves it to the teardown.
        is!(0, bv_destroy_qp(a.device, a.qp));
        is!(-BV_EINVAL, bv_destroy_qp(a.device, a.qp));
        is!(0, bv_destroy_cq(a.device, a.cq));
        is!(0, bv_dereg_mr(a.device, a.mr));
        for node in &nodes {
            is!(0, bv_take_down(node.device));
            is!(-BV_ENODEV, bv_poll_cq(node.device, node.cq, null_mut(), 0));
            is!(0, bv_sim_findings(node.host));
        }
    }
}

/// What a machine without a card remembers.
#[derive(Default)]
struct Absent {
    /// The device whose call is running.
    device: AtomicPtr<bv_device>,
    /// What calls on it returned in a callback.
    busy: AtomicU32,
    /// Minutes, one more at each look.
    now: AtomicU32,
}

unsafe extern "C" fn read_ones(_: *mut c_void, _: usize) -> u32 {
    u32::MAX
}

unsafe extern "C" fn write_nothing(_: *mut c_void, _: usize, _: u32) {}

/// The time of a machine without a card, which calls every kind of function back.
unsafe extern "C" fn call_back(context: *mut c_void) -> u64 {
    // SAFETY: the context of `platform_of`.
    let absent = unsafe { &*context.cast::<Absent>() };
    let device = absent.device.load(Ordering::Relaxed);
    let mut out = 0;
    is!(-BV_EBUSY, bv_take_down(device));
    is!(-BV_EBUSY, bv_maintain(device, &raw mut out));
    is!(-BV_EBUSY, bv_bring_up(device, null(), null()));
    is!(0, bv_strerror_detail(device, null_mut(), 0));
    absent.busy.fetch_add(1, Ordering::Relaxed);
    u64::from(absent.now.fetch_add(1, Ordering::Relaxed)) * 60_000_000_000
}

unsafe extern "C" fn no_page(_: *mut c_void, _: *mut u64) -> i32 {
    1
}

unsafe extern "C" fn not_freed(_: *mut c_void, _: u64) -> i32 {
    1
}

unsafe extern "C" fn none_left(_: *mut c_void) {}

fn platform_of(absent: &Absent) -> bv_platform {
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc_zeroed(Layout::from_size_align(BV_MEMORY_SIZE, 4096).expect("a layout")) };
    bv_platform {
        context: (&raw const *absent).cast_mut().cast(),
        registers_size: 1 << 25,
        read32: Some(read_ones),
        write32: Some(write_nothing),
        write64: None,
        barrier: None,
        now: Some(call_back),
        wait: None,
        memory: memory.cast(),
        memory_size: BV_MEMORY_SIZE,
        memory_device_addr: 0,
        page_alloc: Some(no_page),
        page_free: Some(not_freed),
        page_free_all: Some(none_left),
        extent: None,
    }
}

#[test]
fn a_callback_that_calls_back_is_refused() {
    let absent = Absent::default();
    let mut device = null_mut();
    is!(0, bv_init(storage(), BV_STORAGE_SIZE, &raw mut device));
    absent.device.store(device, Ordering::Relaxed);
    let platform = platform_of(&absent);
    // SAFETY: the machine is there as long as the call.
    let result = unsafe { bv_bring_up(device, &raw const platform, null()) };
    assert_eq!(result, -BV_ENODEV);
    assert!(absent.busy.load(Ordering::Relaxed) > 0);
    let mut text = [MaybeUninit::<u8>::uninit(); 200];
    // SAFETY: as many writable bytes.
    let length = unsafe { bv_strerror_detail(device, text.as_mut_ptr().cast(), text.len()) };
    assert!(length > 20 && length < text.len());
    // SAFETY: the call wrote the text and a NUL.
    assert_eq!(unsafe { text[length].assume_init() }, 0);
}

#[test]
fn of_two_threads_on_a_device_one_is_refused() {
    let absent = Absent::default();
    let mut device = null_mut();
    is!(0, bv_init(storage(), BV_STORAGE_SIZE, &raw mut device));
    absent.device.store(device, Ordering::Relaxed);
    let platform = platform_of(&absent);
    let shared = AtomicPtr::new(device);
    let given = AtomicPtr::new((&raw const platform).cast_mut());
    let start = Barrier::new(2);
    let work = || {
        start.wait();
        let (device, platform) = (shared.load(Ordering::Relaxed), given.load(Ordering::Relaxed));
        for _ in 0..3 {
            // SAFETY: the machine is there as long as the thread.
            let result = unsafe { bv_bring_up(device, platform, null()) };
            assert!([-BV_ENODEV, -BV_EBUSY].contains(&result), "{result}");
            // SAFETY: a device.
            let result = unsafe { bv_needs_reset(device) };
            assert!([0, 1, -BV_EBUSY].contains(&result), "{result}");
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    is!(-BV_ENODEV, bv_take_down(device));
}
