//! The verbs for C: a static library without an operating system and without a heap, over the mlx5 driver.
//!
//! The header is `include/bareverbs.h`, generated from here and checked by a test. A program gives storage ([`bv_init`]) and
//! its machine as callbacks ([`bv_platform`]); [`bv_bring_up`] brings the device up. Protection domains, regions, completion
//! queues and queue pairs are then made, used and destroyed by number.
//!
//! Every function returns 0 or more, or an errno of the verbs below zero, as Linux numbers it. [`bv_strerror_detail`] has the
//! text of the last one with its facts.
//!
//! # What is checked
//!
//! NULL, alignment, sizes, flags, and each number of an object: one that is stale, or was never given, is refused with
//! `BV_EINVAL`. What cannot be checked is a duty of the caller, and stands under `# Safety` of the function: what a pointer
//! points to, what a callback does, and that a registered buffer stays where it is.
//!
//! # Threads
//!
//! The functions of one device may be called from any thread, one at a time. A call during another one on the same device
//! changes nothing and returns `BV_EBUSY`: from another thread, from an interrupt handler, or from a callback of the platform.
//! Devices are independent of each other. On a CPU without compare-and-swap there is one core, and the same holds for its
//! interrupt handlers.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![expect(unsafe_code, reason = "C hands over pointers")]
#![expect(non_camel_case_types, reason = "the names are those of the header")]
#![warn(missing_debug_implementations)]

mod argument;
mod call;
mod completion;
mod datagrams;
mod device;
mod drain;
mod event;
mod failure;
mod gate;
mod lifecycle;
mod machine;
mod numbered;
mod path;
mod platform;
mod poll;
mod port;
mod post;
mod queues;
mod regions;
mod text;
mod types;
mod xrc;

pub use completion::bv_wc;
pub use datagrams::{
    bv_ah_attr, bv_attach_mcast, bv_create_ah, bv_create_ud_qp, bv_destroy_ah, bv_detach_mcast, bv_init_ah_from_wc,
};
pub use device::bv_device;
pub use drain::{bv_drain_rq, bv_drain_sq};
pub use event::{bv_event, bv_poll_event};
pub use lifecycle::{bv_bring_up, bv_init, bv_maintain, bv_needs_reset, bv_storage_align, bv_storage_size, bv_take_down};
pub use platform::{bv_config, bv_platform};
pub use poll::{bv_poll_cq, bv_req_notify_cq};
pub use port::{
    bv_delete_gid, bv_device_attr, bv_port_attr, bv_query_device, bv_query_gid, bv_query_port, bv_set_gid, bv_wait_active,
};
pub use post::{bv_post_recv, bv_post_send, bv_recv_wr, bv_send_wr, bv_sge};
pub use queues::{
    bv_create_cq, bv_create_qp, bv_create_qp_with_srq, bv_destroy_cq, bv_destroy_qp, bv_modify_qp, bv_modify_qp_to_rts,
    bv_qp_attr, bv_qp_info, bv_qp_init, bv_query_qp, bv_resize_cq,
};
pub use regions::{bv_alloc_pd, bv_dealloc_pd, bv_dereg_mr, bv_reg_mr};
pub use text::bv_strerror_detail;
pub use types::*;
pub use xrc::{
    bv_alloc_xrcd, bv_arm_srq, bv_create_srq, bv_create_xrc_recv_qp, bv_create_xrc_send_qp, bv_create_xrc_srq, bv_dealloc_xrcd,
    bv_destroy_srq, bv_post_srq_recv, bv_srq_init,
};

#[cfg(feature = "panic-handler")]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
