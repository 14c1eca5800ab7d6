//! Host memory in several threads.

use std::sync::Barrier;
use std::thread;

use bareverbs::DmaMemory;
use bareverbs_sim::in_process::{MemoryMap, SimMemory};
use bareverbs_sim::memory::HostMemory;

#[test]
fn writes_to_parts_of_one_word_do_not_undo_each_other() {
    const ROUNDS: u32 = 200_000;
    let memory = SimMemory::new(0x1000, 64);
    let map = MemoryMap::default();
    assert!(map.map(&memory));
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        // Two doorbell records of one word.
        for at in [0, 4] {
            let (mut memory, barrier) = (memory.clone(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..ROUNDS {
                    memory.store_u32(at, round).unwrap();
                    let mut seen = [0; 4];
                    memory.read(at, &mut seen).unwrap();
                    assert_eq!(u32::from_ne_bytes(seen), round, "record at {at}");
                }
            });
        }
        // The host and the device, each some bytes of the next two words.
        let (mut host, device, barrier) = (memory.clone(), &map, &barrier);
        scope.spawn(move || {
            barrier.wait();
            for round in 0..ROUNDS {
                let bytes = [round as u8; 7];
                host.write(13, &bytes).unwrap();
                let mut seen = [0; 7];
                host.read(13, &mut seen).unwrap();
                assert_eq!(seen, bytes);
            }
        });
        scope.spawn(move || {
            barrier.wait();
            for round in 0..ROUNDS {
                let bytes = [round as u8; 4];
                for addr in [0x1008, 0x1014] {
                    device.write(addr, &bytes).unwrap();
                    let mut seen = [0; 4];
                    device.read(addr, &mut seen).unwrap();
                    assert_eq!(seen, bytes, "at {addr:#x}");
                }
            }
        });
    });
}
