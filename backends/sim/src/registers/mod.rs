//! The registers of BAR0: its address map, the initialization segment with health, UAR pages, the MSI-X table.

pub(crate) mod bar0;
pub(crate) mod health;
pub(crate) mod init_segment;
pub(crate) mod msix;
pub(crate) mod uar;
