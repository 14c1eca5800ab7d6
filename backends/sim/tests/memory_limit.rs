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
            let mut config = DeviceConfig { memory_limit, ..plain() }.with_ethernet();
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

        fn make(&mut self, command: &[u8]) -> u32 {
            number(&self.host.ok(command, 16))
        }

        fn domain(&mut self) -> u32 {
            self.make(&input(0x816, 16, &[]))
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

    /// CREATE_RQ or CREATE_SQ of 16 WQEs; its work queue is at byte 80 and its page list at 272.
    fn frame_queue(maker: &Maker, opcode: u16) -> Vec<u8> {
        let log_stride = if opcode == 0x904 { 6 } else { 4 };
        let dwords = [(40, maker.cqn), (80, 1 << 28), (88, maker.pd), (92, maker.uar), (112, log_stride << 16 | 4)];
        let mut bytes = input(opcode, 272, &dwords);
        bytes.extend(BASE.to_be_bytes());
        bytes
    }

    /// CREATE_RQT of as many receive queues, all of them different.
    fn queue_table(maker: &mut Maker, len: u32) -> Vec<u8> {
        let rq = frame_queue(maker, 0x908);
        let mut bytes = input(0x916, 272, &[(20, 1), (32 + 20, 2048), (32 + 24, len)]);
        bytes.extend((0..len).flat_map(|_| maker.make(&rq).to_be_bytes()));
        bytes
    }

    /// CREATE_TIR that leads to a receive queue.
    fn tir(maker: &mut Maker) -> Vec<u8> {
        let (domain, rqn) = (maker.domain(), maker.make(&frame_queue(maker, 0x908)));
        input(0x900, 272, &[(32 + 28, rqn), (32 + 36, domain)])
    }

    /// SET_FLOW_TABLE_ENTRY of a rule that leads to as many TIRs, all of them different, in a table of 65,536.
    fn rule(maker: &mut Maker, len: u32) -> Vec<u8> {
        let table = maker.make(&input(0x930, 64, &[(24, 16)]));
        let group = maker.make(&input(0x933, 1024, &[(20, table), (36, 0xffff), (60, 1), (72, u32::MAX)]));
        let tir = tir(maker);
        let mut bytes = input(0x936, 832, &[(20, table), (68, group), (76, 4), (80, len)]);
        bytes.extend((0..len).flat_map(|_| [2 << 24 | maker.make(&tir), 0].map(u32::to_be_bytes)).flatten());
        bytes
    }

    fn set_dword(bytes: &mut [u8], at: usize, value: u32) {
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    type Make = fn(&mut Maker) -> Vec<u8>;

    /// Makes objects until they are refused. `change` makes the command for the next one of the first.
    fn fill(name: &str, make: Make, change: fn(&mut [u8], u32)) {
        let before = resident();
        let mut maker = Maker::new(LIMIT);
        let mut bytes = make(&mut maker);
        let mut made = 0;
        let status = loop {
            change(&mut bytes, made);
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
        // First, while nothing is left from others.
        let rules: [(&str, Make); 3] = [
            ("rules that lead to one place", |maker| rule(maker, 1)),
            ("rules that lead to 16 places", |maker| rule(maker, 16)),
            ("rules that lead to 256 places", |maker| rule(maker, 256)),
        ];
        for (name, make) in rules {
            fill(name, make, |bytes, made| set_dword(bytes, 32, made));
        }
        let kinds: [(&str, Make); 13] = [
            ("protection domains", |_| input(0x800, 16, &[])),
            ("doorbell pages", |_| input(0x802, 16, &[])),
            ("XRC domains", |_| input(0x80e, 16, &[])),
            ("sets of counters", |_| input(0x771, 16, &[])),
            ("user contexts", |_| input(0xa04, 64, &[])),
            ("completion queues", |maker| cq(maker)),
            ("queue pairs", |maker| qp(maker)),
            ("receive memory pools", |maker| pool(maker)),
            ("short keys", |maker| key(maker, 1)),
            ("long keys", |maker| key(maker, 10_000)),
            ("indirect keys", |maker| indirect_key(maker, 4000)),
            ("short user memory objects", |_| umem(1)),
            ("long user memory objects", |_| umem(10_000)),
        ];
        for (name, make) in kinds {
            fill(name, make, |_, _| {});
        }
        let of_ethernet: [(&str, Make); 8] = [
            ("receive queues", |maker| frame_queue(maker, 0x908)),
            ("send queues", |maker| frame_queue(maker, 0x904)),
            ("TISs", |maker| input(0x912, 192, &[(32 + 36, maker.domain())])),
            ("TIRs", tir),
            ("tables of one receive queue", |maker| queue_table(maker, 1)),
            ("tables of 2,048 receive queues", |maker| queue_table(maker, 2048)),
            ("flow tables", |_| input(0x930, 64, &[(24, 16)])),
            ("counters of rules", |_| input(0x939, 16, &[])),
        ];
        for (name, make) in of_ethernet {
            fill(name, make, |_, _| {});
        }
        // A group of each single rule.
        let group: Make = |maker| {
            let table = maker.make(&input(0x930, 64, &[(24, 16)]));
            input(0x933, 1024, &[(20, table)])
        };
        fill("groups of rules", group, |bytes, made| [28, 36].iter().for_each(|at| set_dword(bytes, *at, made)));
        longer_tables();
        pages();
        a_million_keys();
    }

    /// Tables of receive queues that were short when they were created.
    fn longer_tables() {
        let mut maker = Maker::new(LIMIT);
        let short = queue_table(&mut maker, 1);
        let tables: Vec<u32> = (0..4000).map(|_| maker.make(&short)).collect();
        let mut modify = queue_table(&mut maker, 2048);
        modify[..2].copy_from_slice(&0x917_u16.to_be_bytes());
        let mut statuses = tables.into_iter().map(|table| {
            set_dword(&mut modify, 8, table);
            maker.host.command(&modify, 16).0
        });
        assert_eq!(statuses.find(|status| *status != 0), Some(NO_RESOURCES));
        drop(statuses);
        assert!(maker.host.device.memory_used() <= LIMIT);
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
