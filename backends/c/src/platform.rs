//! What a program says of its machine.

use core::ffi::c_void;
use core::time::Duration;

use bareverbs_mlx5::Config;

use crate::BV_CONFIG_VIRTUAL_FUNCTION;

/// A machine with one device: its registers, its memory, its time. bv_bring_up copies it.
///
/// Each callback gets `context`. It returns normally, and calls no function of this library on the same device (such a call
/// returns -BV_EBUSY). Offsets of registers are below registers_size, whatever the device says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bv_platform {
    /// The first argument of each callback; the library does nothing else with it.
    pub context: *mut c_void,
    /// Bytes of BAR0 of the device. The program enables the function and its bus mastering before the bring-up.
    pub registers_size: usize,
    /// Reads the four bytes at a byte offset of BAR0, a multiple of 4, as the CPU loads them: the library turns byte orders.
    pub read32: Option<unsafe extern "C" fn(context: *mut c_void, offset: usize) -> u32>,
    /// Writes the four bytes at a byte offset of BAR0, a multiple of 4, as the CPU stores them.
    pub write32: Option<unsafe extern "C" fn(context: *mut c_void, offset: usize, value: u32)>,
    /// Writes the eight bytes at a byte offset of BAR0, a multiple of 8, as the CPU stores them. NULL on a machine that has no
    /// such access: then two calls of write32 do it.
    pub write64: Option<unsafe extern "C" fn(context: *mut c_void, offset: usize, value: u64)>,
    /// Orders accesses, as its second argument says (BV_BARRIER_RELEASE and the others). NULL: by the instructions of this CPU,
    /// for registers that are mapped uncached and memory that is coherent.
    pub barrier: Option<unsafe extern "C" fn(context: *mut c_void, barrier: u32)>,
    /// Returns the nanoseconds since some start. They must go on, or waits of the library do not end.
    pub now: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Pauses between two looks at the device, in a wait that ends at `deadline` (in the time of `now`) at the latest. NULL:
    /// the library spins.
    pub wait: Option<unsafe extern "C" fn(context: *mut c_void, deadline: u64)>,
    /// Memory for queues and commands: BV_MEMORY_SIZE bytes, aligned to 4096, contiguous for the device.
    pub memory: *mut c_void,
    /// Bytes of it, BV_MEMORY_SIZE or more.
    pub memory_size: usize,
    /// Its address for the device, a multiple of 4096.
    pub memory_device_addr: u64,
    /// Allocates a page of 4096 bytes for the firmware of the device, and writes its address for the device, a multiple of
    /// 4096. Returns 0, or anything else if there is none. A card wants thousands.
    pub page_alloc: Option<unsafe extern "C" fn(context: *mut c_void, device_addr: *mut u64) -> i32>,
    /// Frees the page at this address for the device. Returns 0, or anything else if no page there is allocated: the address
    /// comes from the device.
    pub page_free: Option<unsafe extern "C" fn(context: *mut c_void, device_addr: u64) -> i32>,
    /// Frees every page. A bring-up begins with it: a device that was reset has none.
    pub page_free_all: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Says where the byte at an address of a buffer lies for the device (`device_addr`), and how many bytes from there on are
    /// contiguous for it (`len`, more than 0). Returns 0, or anything else if the device does not see it. NULL: the device's
    /// addresses are the CPU's.
    pub extent: Option<unsafe extern "C" fn(context: *mut c_void, addr: u64, device_addr: *mut u64, len: *mut u64) -> i32>,
}

/// Options of a bring-up. A member that is 0 has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bv_config {
    /// BV_CONFIG_VIRTUAL_FUNCTION, or 0.
    pub flags: u32,
    /// Milliseconds that the firmware may take to boot; 120 seconds by default.
    pub boot_timeout_ms: u32,
    /// Milliseconds that a command may take; 60 seconds by default.
    pub command_timeout_ms: u32,
    /// Pages of 4096 bytes that the firmware gets at most; 262144 (1 GiB) by default.
    pub firmware_pages: u32,
}

impl bv_config {
    /// Returns the driver's options, or `None` if there are unknown flags.
    pub(crate) fn driver_config(&self) -> Option<Config> {
        if self.flags & !BV_CONFIG_VIRTUAL_FUNCTION != 0 {
            return None;
        }
        let default = Config::DEFAULT;
        let millis = |given, or: Duration| if given == 0 { or } else { Duration::from_millis(u64::from(given)) };
        Some(Config {
            boot_timeout: millis(self.boot_timeout_ms, default.boot_timeout),
            command_timeout: millis(self.command_timeout_ms, default.command_timeout),
            firmware_pages: if self.firmware_pages == 0 { default.firmware_pages } else { self.firmware_pages },
            virtual_function: self.flags & BV_CONFIG_VIRTUAL_FUNCTION != 0,
            ..default
        })
    }
}
