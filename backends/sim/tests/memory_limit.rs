//! What a device takes of this process: one host after the other makes objects until it is refused, and the pages that the
//! process has are measured. Alone in its process, one test, so that nothing else allocates meanwhile.

#[cfg(test)]
#[path = "control/host.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod host;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bareverbs_sim::{DeviceConfig, Limit};

    use crate::host::{BASE, Host, be32, input, plain};

    const LIM_ERR: u8 = 8;
    const NO_RESOURCES: u8 = 0xf;
    /// Of it 16 MiB are the fixed part of a device.
    const LIMIT: u64 = 64 << 20;
    /// What a process may take in pages for a byte that is counted: allocators have slack of their own.
    const FACTOR: u64 = 2;

    /// Returns the bytes of this process in memory (proc_pid_statm(5)).
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn number(output: &[u8]) -> u32 {
        be32(output, 8)
    }

    /// A host with a doorbell page, an event queue and a protection domain.
    struct Maker {
        host: Host,
        uar: u32,
        eqn: u32,
        pd: u32,
        cqn: u32,
    }

    impl Maker {
        fn new(memory_limit: u64) -> Self {
            let mut config = DeviceConfig { memory_limit, ..plain() };
            for (limit, number) in [(Limit::ProtectionDomains, 1 << 23), (Limit::QueuePairs, 1 << 24)] {
                config.limits.set(limit, number).unwrap();
            }
            let mut host = Host::running(config);
            let uar = host.uar();
            let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
            let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
            let mut maker = Self { host, uar, eqn, pd, cqn: 0 };
            maker.cqn = number(&maker.host.ok(&cq(&maker), 16));
            maker
        }
    }

    fn cq(maker: &Maker) -> Vec<u8> {
        // 2^14 entries in 256 pages.
        let mut bytes = input(0x400, 272, &[(16 + 12, 14 << 24 | maker.uar), (16 + 20, maker.eqn)]);
        bytes.extend((0..256).flat_map(|page| (BASE + page * 4096).to_be_bytes()));
        bytes
    }

    /// RC, 16 blocks of send queue, no receive queue; the context is at byte 24.
    fn qp(maker: &Maker) -> Vec<u8> {
        let dwords = [(24 + 4, maker.pd), (24 + 8, 4 << 11), (24 + 12, maker.uar), (24 + 124, maker.cqn), (24 + 172, 3 << 24)];
        let mut bytes = input(0x500, 272, &dwords);
        bytes.extend(BASE.to_be_bytes());
        bytes
    }

    /// CREATE_RMP of 16 WQEs of 64 bytes; its work queue is at byte 80 and its page list at 272.
    fn pool(maker: &Maker) -> Vec<u8> {
        let mut bytes = input(0x90c, 272, &[(80 + 8, maker.pd), (80 + 32, 6 << 16 | 4)]);
        bytes.extend(BASE.to_be_bytes());
        bytes
    }

    /// Returns a page list of `pages` pages of 4096 bytes.
    fn key(maker: &Maker, pages: u32) -> Vec<u8> {
        let octwords = pages.div_ceil(2);
        let dwords = [
            (16, 1 << 10 | 1 << 8),
            (16 + 4, 0xffff_ff42),
            (16 + 12, maker.pd),
            (16 + 28, pages * 4096),
            (16 + 52, octwords),
            (16 + 56, 12),
            (96, octwords),
        ];
        let mut bytes = input(0x200, 272, &dwords);
        bytes.extend((0..u64::from(octwords) * 2).flat_map(|page| (BASE + page * 4096).to_be_bytes()));
        bytes
    }

    /// Returns an indirect key of `entries` entries of 4096 bytes each.
    fn indirect_key(maker: &Maker, entries: u32) -> Vec<u8> {
        let dwords = [
            (16, 1 << 31 >> 1 | 1 << 10 | 2 << 8),
            (16 + 4, 0xffff_ff42),
            (16 + 12, maker.pd),
            (16 + 52, entries),
            (96, entries),
        ];
        let mut bytes = input(0x200, 272, &dwords);
        bytes.extend((0..entries).flat_map(|entry| [4096, (entry + 100) << 8, 0, 0].map(u32::to_be_bytes)).flatten());
        bytes
    }

    /// CREATE_UMEM of `pages` pages of 4096 bytes.
    fn umem(pages: u64) -> Vec<u8> {
        let mut bytes = input(0xa08, 48, &[]);
        bytes[16 + 24..16 + 32].copy_from_slice(&pages.to_be_bytes());
        bytes.extend((0..pages).flat_map(|page| (BASE + page * 4096).to_be_bytes()));
        bytes
    }

    type Make = fn(&Maker) -> Vec<u8>;

    /// Makes objects until they are refused.
    fn fill(name: &str, make: Make) {
        let before = resident();
        let mut maker = Maker::new(LIMIT);
        let bytes = make(&maker);
        let mut made = 0_u64;
        let status = loop {
            match maker.host.command(&bytes, 16).0 {
                0 => made += 1,
                status => break status,
            }
            assert!(made < 1_000_000, "{name} without end");
        };
        assert!([NO_RESOURCES, LIM_ERR].contains(&status), "{name}: {status:#x}");
        let (used, grown) = (maker.host.device.memory_used(), resident().saturating_sub(before));
        println!("{made:7} {name}: {} KiB counted, {} KiB resident", used >> 10, grown >> 10);
        assert!(used <= LIMIT, "{name}: {used}");
        // The 16 MiB of the host's own memory come with the first host.
        assert!(grown <= FACTOR * LIMIT + (16 << 20), "{name}: {grown}");
        // What is left of the device still works.
        assert_eq!(maker.host.command(&input(0x80d, 16, &[]), 16).0, 0);
    }

    #[test]
    fn a_device_takes_no_more_than_it_may() {
        let kinds: [(&str, Make); 13] = [
            ("protection domains", |_| input(0x800, 16, &[])),
            ("doorbell pages", |_| input(0x802, 16, &[])),
            ("XRC domains", |_| input(0x80e, 16, &[])),
            ("sets of counters", |_| input(0x771, 16, &[])),
            ("user contexts", |_| input(0xa04, 64, &[])),
            ("completion queues", cq),
            ("queue pairs", qp),
            ("receive memory pools", pool),
            ("short keys", |maker| key(maker, 1)),
            ("long keys", |maker| key(maker, 10_000)),
            ("indirect keys", |maker| indirect_key(maker, 4000)),
            ("short user memory objects", |_| umem(1)),
            ("long user memory objects", |_| umem(10_000)),
        ];
        for (name, make) in kinds {
            fill(name, make);
        }
        pages();
        a_million_keys();
    }

    /// Firmware pages beyond what was asked for. There are 4096 in the memory of the host.
    fn pages() {
        let mut host = Host::new(DeviceConfig { memory_limit: 32 << 20, ..plain() });
        host.ok(&input(0x104, 16, &[]), 16);
        let before = host.device.memory_used();
        let mut bytes = input(0x108, 16, &[(4, 1), (12, 2000)]);
        bytes.extend((2000..4000).flat_map(|page| (BASE + page * 4096).to_be_bytes()));
        host.ok(&bytes, 16);
        assert_eq!(host.device.memory_used() - before, 2000 * 32);
    }

    /// The last of a million keys costs what the first cost, and so does its end and that of what it refers to.
    fn a_million_keys() {
        const KEYS: u32 = 1_000_000;
        const SAMPLE: u32 = 20_000;
        let mut maker = Maker::new(2 << 30);
        let spare = number(&maker.host.ok(&input(0x800, 16, &[]), 16));
        let bytes = key(&maker, 1);
        let timed = |maker: &mut Maker, act: &mut dyn FnMut(&mut Maker)| {
            let begin = Instant::now();
            act(maker);
            begin.elapsed()
        };
        let mut keys = Vec::new();
        let create = |maker: &mut Maker, count: u32, keys: &mut Vec<u32>| {
            timed(maker, &mut |maker| keys.extend((0..count).map(|_| number(&maker.host.ok(&bytes, 16)))))
        };
        let destroy = |maker: &mut Maker, keys: &mut Vec<u32>| {
            let last = keys.split_off(keys.len() - SAMPLE as usize);
            timed(maker, &mut |maker| last.iter().for_each(|key| drop(maker.host.ok(&input(0x202, 16, &[(8, *key)]), 16))))
        };
        let before = resident();
        let created_first = create(&mut maker, SAMPLE, &mut keys);
        let destroyed_first = destroy(&mut maker, &mut keys);
        create(&mut maker, KEYS - SAMPLE, &mut keys);
        let created_last = create(&mut maker, SAMPLE, &mut keys);
        let each = resident().saturating_sub(before) / u64::from(KEYS);
        println!("{KEYS} keys: {each} bytes each; the first {SAMPLE} in {created_first:?}, the last in {created_last:?}");
        assert!(each < 1024, "{each}");
        // The domain is in use, and another is not; neither is searched for.
        let domains = timed(&mut maker, &mut |maker| {
            for _ in 0..1000 {
                assert_eq!(maker.host.command(&input(0x801, 16, &[(8, maker.pd)]), 16).0, 9);
            }
            maker.host.ok(&input(0x801, 16, &[(8, spare)]), 16);
        });
        let destroyed_last = destroy(&mut maker, &mut keys);
        println!("ends: {destroyed_first:?} and {destroyed_last:?}; 1000 refused ends of their domain: {domains:?}");
        let slack = Duration::from_secs(2);
        assert!(created_last < created_first * 20 + slack);
        assert!(destroyed_last < destroyed_first * 20 + slack);
        assert!(domains < slack);
    }
}
