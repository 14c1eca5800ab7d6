//! A host that writes anything anywhere: nothing panics, nothing hangs.

use bareverbs::platform::DmaMemory;

use crate::host::{Host, input, plain};

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

const OPCODES: [u16; 62] = [
    0x100, 0x101, 0x102, 0x103, 0x104, 0x105, 0x107, 0x108, 0x109, 0x10a, 0x10b, 0x10d, 0x200, 0x201, 0x202, 0x203, 0x301,
    0x302, 0x303, 0x400, 0x401, 0x402, 0x403, 0x500, 0x501, 0x502, 0x503, 0x504, 0x505, 0x506, 0x507, 0x508, 0x50a, 0x50b,
    0x50c, 0x50e, 0x511, 0x700, 0x762, 0x763, 0x764, 0x765, 0x771, 0x772, 0x773, 0x800, 0x801, 0x802, 0x803, 0x805, 0x80d,
    0x80e, 0x80f, 0x816, 0x817, 0x806, 0x50d, 0x90c, 0xa00, 0x705, 0x304, 0xffff,
];

#[test]
fn garbage_in_every_command() {
    let mut dice = Dice(1);
    for round in 0..40 {
        let mut host = Host::running(plain());
        let uar = host.uar();
        host.eq(uar, 0x10_0000, 4, u64::MAX, 0);
        for _ in 0..250 {
            // Few bits set, so that some of it makes sense; never the commands that end the function, most of the time.
            let opcode = OPCODES[dice.below(62) as usize];
            if [0x103, 0x105].contains(&opcode) && dice.below(20) != 0 {
                continue;
            }
            let len = 8 + dice.below(if round % 4 == 0 { 5000 } else { 400 }) as usize;
            let mut bytes = input(opcode, len.max(16), &[]);
            for _ in 0..dice.below(24) {
                let at = 2 + dice.below(bytes.len() as u64 - 2) as usize;
                bytes[at] = if dice.below(3) == 0 { dice.next() as u8 } else { dice.below(10) as u8 };
            }
            bytes.truncate(len);
            let out_len = 8 + dice.below(600) as usize;
            host.stage(0, &bytes, out_len);
            host.write_be32(0x18, 1);
            host.run(1000);
            assert_eq!(host.status_own(0) & 1, 0, "{opcode:#x} was answered");
        }
        let _ = format!("{:?} {:?}", host.device, host.device.counts());
    }
}

#[test]
fn garbage_in_every_register_and_in_the_queue() {
    let mut dice = Dice(2);
    let mut host = Host::running(plain());
    let uar = u64::from(host.uar());
    host.eq(uar as u32, 0x10_0000, 4, u64::MAX, 0);
    for _ in 0..20_000 {
        let bytes = [dice.next(), dice.next() & 0x0f0f, dice.next(), 0, 0, 0, 0, 0];
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_be_bytes()).collect();
        let len = [1, 2, 4, 4, 8, 8, 64][dice.below(7) as usize];
        let offset = match dice.below(5) {
            0 => dice.below(0x40),
            1 => uar * 4096 + dice.below(0x1000),
            2 => uar * 4096 + [0x20, 0x40, 0x48, 0x800, 0x900, 0xa00][dice.below(6) as usize],
            3 => 0x2000 + dice.below(0x1100),
            _ => dice.next() >> dice.below(64),
        };
        // The address of the queue stays, or nothing would be fetched any more.
        if !(0x10..0x18).contains(&(offset & !7)) {
            host.device.bar_write(offset, &bytes[..len]);
        }
        let mut out = [0; 8];
        host.device.bar_read(offset, &mut out[..len.min(8)]);
        let noise: Vec<u8> = (0..16).map(|_| dice.next() as u8).collect();
        host.memory.write(dice.below(0x800) as usize, &noise).unwrap();
        host.run(dice.below(5000));
        while host.device.transmit().is_some() {}
        let frame: Vec<u8> = (0..dice.below(80)).map(|_| dice.next() as u8).collect();
        host.device.receive(&frame);
    }
}
