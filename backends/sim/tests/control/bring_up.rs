//! The commands of Linux's probe, in its order, with the values that it depends on.

use bareverbs_sim::{DeviceConfig, HcaState, Profile};

use crate::host::{BASE, Host, be16, be32, input, plain};

fn bits(page: &[u8], dword: usize, hi: u32, lo: u32) -> u32 {
    be32(page, dword) >> lo & (u32::MAX >> (31 - (hi - lo)))
}

#[test]
fn from_enable_to_disable() {
    let mut host = Host::new(DeviceConfig::profile(Profile::Instant, 7));
    // function_enable
    host.ok(&input(0x104, 16, &[]), 16);
    let issi = host.ok(&input(0x10a, 16, &[]), 112);
    assert_eq!(be32(&issi, 0x6c) & 2, 2, "interface version 1");
    host.ok(&input(0x10b, 16, &[(8, 1)]), 16);
    let give = |host: &mut Host, op_mod: u32, first: u64| {
        let pages = be32(&host.ok(&input(0x107, 16, &[(4, op_mod)]), 16), 12);
        let mut bytes = input(0x108, 16, &[(4, 1), (12, pages)]);
        (0..u64::from(pages)).for_each(|i| bytes.extend((BASE + first + i * 4096).to_be_bytes()));
        host.ok(&bytes, 16);
        pages
    };
    assert_eq!(give(&mut host, 1, 0x20_0000), 17);

    // function_open
    host.ok(&input(0x805, 32, &[(4, 0), (8, 0x7004)]), 32);
    let current = host.ok(&input(0x100, 16, &[(4, 1)]), 4112);
    let most = host.ok(&input(0x100, 16, &[(4, 0)]), 4112);
    assert_eq!(&current[16..272], &most[16..272]);
    let page = &most[16..];
    for (dword, hi, lo, value, name) in [
        (16, 23, 16, 15, "log_max_qp_sz"),
        (16, 4, 0, 18, "log_max_qp"),
        (24, 23, 16, 22, "log_max_cq_sz"),
        (32, 23, 23, 1, "fixed_buffer_size"),
        (40, 21, 16, 4, "log_max_ra_req_qp"),
        (44, 15, 0, 0, "gid_table_size"),
        (52, 29, 29, 1, "ib_virt"),
        (52, 9, 8, 0, "port_type"),
        (52, 7, 0, 1, "num_ports"),
        (56, 28, 24, 30, "log_max_msg"),
        (60, 3, 0, 1, "cqe_version"),
        (64, 24, 24, 0, "umr_modify_entity_size_disabled"),
        (64, 1, 1, 1, "atomic"),
        (68, 14, 14, 1, "imaicl"),
        (68, 9, 9, 1, "qkv"),
        (68, 8, 8, 1, "pkv"),
        (68, 3, 3, 1, "xrc"),
        (68, 0, 0, 1, "rc"),
        (72, 7, 0, 12, "log_pg_sz"),
        (76, 31, 31, 1, "bf"),
        (76, 20, 16, 9, "log_bf_reg_size"),
    ] {
        assert_eq!(bits(page, dword, hi, lo), value, "{name}");
    }
    let mut set = input(0x109, 4112, &[]);
    set[16..272].copy_from_slice(&most[16..272]);
    set[16 + 16 + 3] = 17; // log_max_qp
    host.ok(&set, 16);
    let current = host.ok(&input(0x100, 16, &[(4, 1)]), 4112);
    assert_eq!(bits(&current[16..], 16, 4, 0), 17, "what the driver chose");
    // Atomics: the mode of memory in host byte order is offered, and the driver chooses it.
    let mut atomic = host.ok(&input(0x100, 16, &[(4, 3 << 1)]), 4112);
    assert_eq!(bits(&atomic[16..], 8, 25, 25), 1);
    atomic[16 + 8] |= 0x40;
    let mut set = input(0x109, 4112, &[(4, 3 << 1)]);
    set[16..272].copy_from_slice(&atomic[16..272]);
    host.ok(&set, 16);

    assert_eq!(host.command(&input(0x102, 32, &[]), 16).0, 0x0f, "INIT_HCA before its pages");
    assert_eq!(give(&mut host, 2, 0x30_0000), 41);
    host.ok(&input(0x102, 32, &[]), 16);
    assert_eq!(host.device.state(), HcaState::Running);
    let adapter = host.ok(&input(0x101, 16, &[]), 272);
    assert_eq!(&adapter[0x100..0x110], b"BAREVERBS_SIM_01");

    // load
    let uar = host.uar();
    assert!(uar >= 4, "not where segment or MSI-X table lie");
    let command = host.eq(uar, 0x10_0000, 8, 1 << 10, 0);
    let events = host.eq(uar, 0x11_0000, 13, 0x3_ffff & !(1 << 10 | 1 << 11), 0);
    let pages = host.eq(uar, 0x19_0000, 8, 1 << 11, 0);
    assert!(command != events && events != pages);

    // unload
    for eqn in [pages, events, command] {
        host.ok(&input(0x302, 16, &[(8, eqn)]), 16);
    }
    assert_eq!(host.command(&input(0x302, 16, &[(8, command)]), 16).0, 5, "gone already");
    host.ok(&input(0x803, 16, &[(8, uar)]), 16);
    host.ok(&input(0x103, 16, &[]), 16);
    let mut taken = Vec::new();
    while taken.len() < 58 {
        let out = host.ok(&input(0x108, 16, &[(4, 2), (12, 20)]), 16 + 20 * 8);
        let count = be32(&out, 8) as usize;
        assert!(count > 0 && count <= 20);
        taken.extend(out[16..16 + count * 8].as_chunks::<8>().0.iter().map(|page| u64::from_be_bytes(*page)));
    }
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 58);
    host.ok(&input(0x105, 16, &[]), 16);
    assert_eq!(host.device.counts(), Default::default());
    assert_eq!(host.device.audit().findings(), []);
    host.ok(&input(0x104, 16, &[]), 16);
}

#[test]
fn a_driver_with_the_first_published_structures() {
    // As iPXE has them: a capability page of 256 bytes, a port context of 208.
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    let page = host.ok(&input(0x100, 16, &[(4, 1)]), 272);
    let mut set = input(0x109, 272, &[]);
    set[16..].copy_from_slice(&page[16..]);
    assert_eq!(host.command(&set[..268], 16).0, 0x50, "less than that");
    host.ok(&set, 16);
    host.ok(&input(0x102, 16, &[]), 16);
    let context = host.ok(&input(0x762, 16, &[(8, 1 << 16)]), 224);
    assert_eq!(be16(&context[16..], 0x60), 7, "LID");
    assert_eq!(host.command(&input(0x762, 16, &[(8, 1 << 16)]), 220).0, 0x51, "less than that");
}

#[test]
fn the_port_is_as_a_subnet_manager_leaves_it() {
    let mut host = Host::running(plain());
    let out = host.ok(&input(0x762, 16, &[]), 528);
    let context = &out[16..];
    assert_eq!(bits(context, 32, 15, 12), 5, "link up");
    assert_eq!(bits(context, 32, 3, 0), 4, "active");
    assert_eq!(be16(context, 0x60), 7, "LID");
    assert_eq!(be16(context, 0x64), 1, "LID of the subnet manager");
    assert_eq!(be32(context, 0x44) & 0x1_0000, 0x1_0000, "CM support may be set");
    let gid = host.ok(&input(0x764, 16, &[]), 32);
    assert_eq!(&gid[16..24], &[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&gid[24..32], &context[0x30..0x38], "the port's GUID");
    let unused = host.ok(&input(0x764, 16, &[(12, 7)]), 32);
    assert_eq!((&unused[16..24], &unused[24..32]), (&gid[16..24], &[0; 8][..]), "an entry that is not in use has the prefix");
    assert_eq!(host.command(&input(0x764, 16, &[(12, 8)]), 32).0, 3, "eight GIDs");
    let pkeys = host.ok(&input(0x765, 16, &[(12, 0xffff)]), 16 + 128 * 4);
    assert_eq!((be32(&pkeys, 16), be32(&pkeys, 20)), (0xffff, 0));
    let mut set = input(0x763, 528, &[]);
    set[16 + 0x40..16 + 0x48].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    host.ok(&set, 16);
    assert_eq!(be32(&host.ok(&input(0x762, 16, &[]), 528), 16 + 0x40), 0x1_0000);
}

#[test]
fn one_port_is_no_part_of_several() {
    let mut host = Host::running(plain());
    let lag = host.ok(&input(0x842, 16, &[]), 16);
    assert!(lag[8..].iter().all(|byte| *byte == 0));
}

#[test]
fn registers_of_port_and_node() {
    let mut host = Host::running(plain());
    let mut read = |id: u32, len: usize| {
        let mut bytes = input(0x805, 16 + len, &[(4, 1), (8, id)]);
        bytes[17] = 1;
        host.ok(&bytes, 16 + len)[16..].to_vec()
    };
    let ptys = read(0x5004, 64);
    assert_eq!((be16(&ptys, 40), be16(&ptys, 42)), (4, 64), "4X HDR");
    let pmtu = read(0x5003, 16);
    assert_eq!((be16(&pmtu, 4), be16(&pmtu, 12)), (4096, 4096));
    assert!([1, 2, 4, 8, 15].contains(&(be32(&read(0x500f, 16), 4) & 0xf)));
    assert!(read(0x6001, 64).starts_with(b"bareverbs simulated device 7"));
    let (status, _) = host.command(&input(0x805, 32, &[(4, 1), (8, 0xc00e)]), 32);
    assert_eq!(status, 3, "default timeouts are not read");
    let mut write = input(0x805, 32, &[(8, 0x5003)]);
    write[16 + 8..16 + 10].copy_from_slice(&1000_u16.to_be_bytes());
    assert_eq!(host.command(&write, 32).0, 3, "no such MTU");
    write[16 + 8..16 + 10].copy_from_slice(&2048_u16.to_be_bytes());
    assert_eq!(be16(&host.ok(&write, 32), 16 + 12), 2048);
}

#[test]
fn commands_in_the_wrong_state_or_unknown() {
    let mut host = Host::new(DeviceConfig::profile(Profile::Instant, 7));
    assert_eq!(host.command(&input(0x802, 16, &[]), 16).0, 4, "before ENABLE_HCA");
    assert_eq!(host.command(&input(0x10a, 16, &[]), 112).0, 4);
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(host.command(&input(0x104, 16, &[]), 16).0, 4, "enabled already");
    assert_eq!(host.command(&input(0x100, 16, &[]), 4112).0, 4, "before the first pages");
    let (status, out) = host.command(&input(0xbad, 16, &[]), 16);
    assert_eq!(status, 2);
    assert_ne!(be32(&out, 4), 0, "a syndrome");
    assert_eq!(host.command(&input(0x304, 16, &[]), 16).0, 2, "known, not supported");
    assert_eq!(host.command(&input(0x10b, 8, &[]), 16).0, 0x50);
    assert_eq!(host.command(&input(0x10a, 16, &[]), 16).0, 0x51);
    assert_eq!(host.command(&input(0x10b, 16, &[(8, 2)]), 16).0, 3, "version 2 of the interface");
    host.ok(&input(0x80d, 16, &[]), 16);
    let unsupported = ["command without a name (0xbad) is not supported", "command GEN_EQE (0x304) is not supported"];
    assert_eq!(host.device.take_unsupported(), unsupported);
}

/// A device that has one function does not speak, or choose, for another: neither what it offers nor what it has changes.
#[test]
fn capabilities_of_another_function_are_refused() {
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    for page in [0, 1, 3 << 1] {
        assert_eq!(host.command(&input(0x100, 16, &[(4, page), (8, 1 << 31 | 1)]), 4112).0, 3, "page {page:#x}");
    }
    let current = host.ok(&input(0x100, 16, &[(4, 1)]), 4112);
    let mut set = input(0x109, 4112, &[(8, 1 << 31 | 1)]);
    set[16..].copy_from_slice(&current[16..]);
    set[16 + 16 + 3] -= 1; // log_max_qp
    assert_eq!(host.command(&set, 16).0, 3);
    assert_eq!(host.ok(&input(0x100, 16, &[(4, 1)]), 4112), current);
    // The same for its own function.
    set[8..12].fill(0);
    host.ok(&set, 16);
    assert_ne!(host.ok(&input(0x100, 16, &[(4, 1)]), 4112), current);
}

#[test]
fn capabilities_beyond_the_device_are_refused_and_unknown_bits_reported() {
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    let most = host.ok(&input(0x100, 16, &[]), 4112);
    let mut set = input(0x109, 4112, &[]);
    set[16..272].copy_from_slice(&most[16..272]);
    set[16 + 16 + 3] = 19; // log_max_qp
    assert_eq!(host.command(&set, 16).0, 3);
    set[16 + 16 + 3] = 18;
    set[16 + 12] = 0x80;
    host.ok(&set, 16);
    assert_eq!(host.device.audit().findings().len(), 1);
    let flow_tables = host.ok(&input(0x100, 16, &[(4, 7 << 1)]), 4112);
    assert!(flow_tables.iter().all(|byte| *byte == 0), "a page that there is nothing in");
    assert_eq!(host.command(&input(0x100, 16, &[(4, 0x99 << 1)]), 4112).0, 3, "no such page");
    assert_eq!(host.device.take_unsupported(), ["capability page 0x99 is not supported"]);
    host.ok(&input(0x102, 16 + 16, &[]), 16);
    set[16 + 12] = 0;
    assert_eq!(host.command(&set, 16).0, 4, "too late");
}

#[test]
fn numbers_are_handed_out_once_and_taken_back_once() {
    let mut host = Host::running(plain());
    // ALLOC and DEALLOC of UARs, protection domains, XRC domains, transport domains, counter sets.
    for (alloc, free) in [(0x802, 0x803), (0x800, 0x801), (0x80e, 0x80f), (0x816, 0x817), (0x771, 0x772)] {
        let take = |host: &mut Host| be32(&host.ok(&input(alloc, 16, &[]), 16), 8);
        let (a, b) = (take(&mut host), take(&mut host));
        assert!(a != b && a != 0 && b != 0, "{alloc:#x}");
        host.ok(&input(free, 16, &[(8, a)]), 16);
        assert_eq!(host.command(&input(free, 16, &[(8, a)]), 16).0, 5, "{free:#x} twice");
        assert_ne!(take(&mut host), a, "a stale number is not somebody else's at once");
    }
    let set = be32(&host.ok(&input(0x771, 16, &[]), 16), 8);
    assert!(host.ok(&input(0x773, 32, &[(24, 1 << 31), (28, set)]), 256)[16..].iter().all(|byte| *byte == 0));
    assert_eq!(host.command(&input(0x773, 32, &[(28, 250)]), 256).0, 5);
}

#[test]
fn objects_need_what_they_refer_to() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 6, 0, 0);
    // CREATE_CQ: 64 entries in a page, doorbell record after it.
    let create_cq = |uar: u32, eqn: u32| {
        let mut bytes = input(0x400, 272, &[(16 + 12, 6 << 24 | uar), (16 + 20, eqn)]);
        bytes[16 + 56..16 + 64].copy_from_slice(&(BASE + 0x13_0000).to_be_bytes());
        bytes.extend((BASE + 0x12_0000).to_be_bytes());
        bytes
    };
    assert_eq!(host.command(&create_cq(uar + 1, eqn), 16).0, 5);
    assert_eq!(host.command(&create_cq(uar, eqn + 1), 16).0, 5);
    let cqn = be32(&host.ok(&create_cq(uar, eqn), 16), 8);
    assert_eq!(host.command(&input(0x302, 16, &[(8, eqn)]), 16).0, 9, "a completion queue reports to it");
    let query = host.ok(&input(0x402, 16, &[(8, cqn)]), 272);
    assert_eq!(be32(&query, 16 + 20), eqn);
    // CREATE_MKEY: physical addresses, local read and write, in a domain that must exist.
    let create_key = |pd: u32| input(0x200, 272, &[(16, 0x0000_0c00), (16 + 4, 0xffff_ff42), (16 + 12, 1 << 31 | pd)]);
    assert_eq!(host.command(&create_key(1), 16).0, 5);
    let pd = be32(&host.ok(&input(0x800, 16, &[]), 16), 8);
    let key = be32(&host.ok(&create_key(pd), 16), 8);
    assert!(key > 1, "indices 0 and 1 stay free: key 0x100 ends a list");
    assert_eq!(host.command(&input(0x801, 16, &[(8, pd)]), 16).0, 9, "a key belongs to it");
    let mut long = create_key(pd);
    long[99] = 1;
    assert_eq!(host.command(&long, 16).0, 0x50, "a translation that is not there");
    host.ok(&input(0x202, 16, &[(8, key)]), 16);
    host.ok(&input(0x801, 16, &[(8, pd)]), 16);
    host.ok(&input(0x401, 16, &[(8, cqn)]), 16);
    host.ok(&input(0x302, 16, &[(8, eqn)]), 16);
}
