//! The layout of InfiniBand's packets and management datagrams, each defined once, and the way to define a layout.
//!
//! Everything here is of the InfiniBand architecture (IBTA volume 1), whatever the device. A test compares each field with its
//! published offset. The package has no behaviour, and no dependency but that of the feature `defmt`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod all;
mod codes;
mod communication_management;
mod ethernet_headers;
mod layout;
mod packet_headers;
mod subnet_management;
mod view;

pub use all::layouts;
pub use communication_management::*;
pub use ethernet_headers::*;
#[doc(hidden)]
pub use layout::define;
pub use layout::{
    Bits, Bytes, Field, Field64, FieldInfo, Layout, LayoutInfo, Place, Sub, Tail, be_word, check_fields, from_be_word,
};
pub use packet_headers::*;
pub use subnet_management::*;
pub use view::{Buffer, View, ViewMut};
