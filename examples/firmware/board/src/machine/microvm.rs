//! QEMU's microvm with PCI Express: a PC without chip set, described by a device tree in QEMU's firmware configuration.

use spin::Mutex;

use crate::arch::Controllers;
use crate::description::device_tree::Tree;
use crate::description::pvh::Start;
use crate::description::{Description, MachineError, fw_cfg};
use crate::serial::com_port::ComPort;

pub(crate) use crate::isa_debug_exit::end;

/// Name of the machine.
pub const NAME: &str = "x86_64, microvm";

/// The serial line.
pub(crate) type Uart = ComPort;
/// COM1: its ports are the same on every PC.
pub(crate) const UART: Uart = ComPort::at(0x3f8);

/// Room for the device tree, several times what QEMU writes.
static TREE: Mutex<[u8; 16 << 10]> = Mutex::new([0; 16 << 10]);
/// Bytes of a tree's header.
const HEADER: usize = 40;

/// Reads the tree without the padding behind it: QEMU's file has a megabyte, nearly all of it zeros.
fn read_tree(room: &mut [u8]) -> Result<&[u8], MachineError> {
    let malformed = MachineError::Malformed { what: "the device tree etc/fdt" };
    let len = fw_cfg::open("etc/fdt")?;
    let (head, rest) = room.split_at_mut_checked(HEADER).ok_or(malformed)?;
    fw_cfg::fill(head);
    // The strings are the last part of a tree: where they begin, and their bytes.
    let number = |place: usize| Some(u32::from_be_bytes(*head.get(4 * place..)?.first_chunk()?) as usize);
    let (strings, bytes) = number(3).zip(number(8)).ok_or(malformed)?;
    let tree = strings.saturating_add(bytes);
    let body = tree.checked_sub(HEADER).filter(|_| tree <= len).and_then(|body| rest.get_mut(..body)).ok_or(malformed)?;
    fw_cfg::fill(body);
    let total = head.get_mut(4..8).ok_or(malformed)?;
    total.copy_from_slice(&(tree as u32).to_be_bytes());
    room.get(..tree).ok_or(malformed)
}

/// Reads the description of the machine; `given` is what the loader gave.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn describe(given: usize) -> Result<Description, MachineError> {
    let mut room = TREE.lock();
    let tree = Tree::new(read_tree(&mut *room)?)?;
    // The tree does not say where RAM is, but the loader does.
    let (memory, used) = Start::at(given)?.memory()?;
    Ok(Description { ecam: tree.ecam()?, bars: tree.bars()?, memory, used, serial: None, controllers: Controllers })
}
