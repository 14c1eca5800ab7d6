//! Two devices without a driver: the program makes each call that a machine, its PCI bus and a cable would.

use std::error::Error;
use std::time::Duration;

use bareverbs::platform::{DmaMemory, Instant};
use bareverbs_sim::in_process::{MemoryMap, SimMemory};
use bareverbs_sim::{Device, DeviceConfig, Profile};

/// Where the device sees the page with its command queue.
const PAGE: u64 = 0x1_0000;

fn main() -> Result<(), Box<dyn Error>> {
    // The memory that the device reaches; the peer reaches none.
    let (memory, mut page) = (MemoryMap::default(), SimMemory::new(PAGE, 4096));
    assert!(memory.map(&page));
    let mut device = Device::new(DeviceConfig::profile(Profile::Instant, 1), Box::new(memory))?;
    let mut peer = Device::new(DeviceConfig::profile(Profile::Instant, 2), Box::new(MemoryMap::default()))?;

    // Configuration space is little-endian. The command register turns memory space and bus mastering on.
    let mut vendor = [0; 2];
    device.config_read(0, &mut vendor);
    assert_eq!(vendor, 0x15b3_u16.to_le_bytes());
    device.config_write(4, &6_u16.to_le_bytes());

    // BAR0 is big-endian: where the command queue is. Its entry has ENABLE_HCA, 16 bytes of input and of output.
    device.bar_write(0x10, &((PAGE >> 32) as u32).to_be_bytes());
    device.bar_write(0x14, &(PAGE as u32).to_be_bytes());
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[63]) = (7, 16, 16, 1);
    entry[16..18].copy_from_slice(&0x104_u16.to_be_bytes());
    page.write(0, &entry)?;
    device.bar_write(0x18, &1_u32.to_be_bytes());

    // The lowest bit of the last byte is the device's until the command has ended.
    let mut now = Instant::default();
    while entry[63] & 1 == 1 && now < Instant::from_nanos(1_000_000) {
        now = now.after(Duration::from_micros(1));
        for one in [&mut device, &mut peer] {
            while one.next_due().is_some_and(|due| due <= now) {
                one.advance(now);
            }
        }
        carry(&mut device, &mut peer);
        carry(&mut peer, &mut device);
        page.read(0, &mut entry)?;
    }
    assert_eq!((entry[63], entry[32]), (0, 0), "delivery status and status");
    println!("ENABLE_HCA ended after {} us", now.as_nanos() / 1000);
    Ok(())
}

/// Is the cable in one direction.
fn carry(from: &mut Device, to: &mut Device) {
    while to.may_receive()
        && let Some(frame) = from.transmit()
    {
        to.receive(&frame);
    }
}
