//! Firmware pages.

use bareverbs::platform::DmaMemory;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::{DeviceConfig, PageDemand};

use crate::host::{BASE, Host, be32, input, plain};

const POOL: u64 = 0x20_0000;

fn small() -> DeviceConfig {
    DeviceConfig { pages: PageDemand { boot: 2, init: 5, chunk: 4, ..PageDemand::NONE }, ..plain() }
}

fn give(host: &mut Host, pages: &[u64]) -> u8 {
    let mut bytes = input(0x108, 16, &[(4, 1), (12, pages.len() as u32)]);
    pages.iter().for_each(|page| bytes.extend((BASE + POOL + page * 4096).to_be_bytes()));
    host.command(&bytes, 16).0
}

fn running() -> Host {
    let mut host = Host::new(small());
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(give(&mut host, &[0, 1, 2, 3, 4, 5, 6]), 0);
    host.ok(&input(0x102, 32, &[]), 16);
    host
}

#[test]
fn demands_shrink_with_what_is_given() {
    let mut host = Host::new(small());
    host.ok(&input(0x104, 16, &[]), 16);
    let asks = |host: &mut Host, when: u32| be32(&host.ok(&input(0x107, 16, &[(4, when)]), 16), 12);
    assert_eq!((asks(&mut host, 1), asks(&mut host, 2)), (2, 7));
    assert_eq!(give(&mut host, &[0]), 0);
    assert_eq!((asks(&mut host, 1), asks(&mut host, 2), asks(&mut host, 3)), (1, 6, 0));
    assert_eq!(host.command(&input(0x107, 16, &[(4, 9)]), 16).0, 3);
}

#[test]
fn pages_that_cannot_be_are_refused_whole() {
    let mut host = Host::new(small());
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(give(&mut host, &[0, 1, 0]), 3, "twice");
    assert_eq!(host.device.counts().pages_held, 0);
    assert_eq!(host.device.audit().findings(), [Finding::PageGivenTwice { addr: BASE + POOL }]);
    assert_eq!(give(&mut host, &[0, 1 << 30]), 3, "no memory");
    let mut bytes = input(0x108, 16, &[(4, 1), (12, 1)]);
    bytes.extend((BASE + POOL + 8).to_be_bytes());
    assert_eq!(host.command(&bytes, 16).0, 3, "not a page");
    assert_eq!(host.command(&input(0x108, 16, &[(4, 1), (12, u32::MAX)]), 16).0, 0x50);
    assert_eq!(host.command(&input(0x108, 16, &[(4, 3)]), 16).0, 3);
    assert_eq!(host.device.counts().pages_held, 0);
}

#[test]
fn a_page_that_the_host_wrote_to_is_found_when_it_comes_back() {
    let mut host = running();
    host.memory.write(POOL as usize + 3 * 4096 + 1234, &[1, 2, 3]).unwrap();
    host.ok(&input(0x103, 16, &[]), 16);
    let out = host.ok(&input(0x108, 16, &[(4, 2), (12, 7)]), 16 + 7 * 8);
    assert_eq!(be32(&out, 8), 7);
    assert_eq!(host.device.audit().findings(), [Finding::FirmwarePageTouched { addr: BASE + POOL + 3 * 4096 }]);
}

#[test]
fn pages_not_returned_are_counted() {
    let mut host = running();
    host.ok(&input(0x103, 16, &[]), 16);
    host.ok(&input(0x108, 16, &[(4, 2), (12, 3)]), 16 + 3 * 8);
    host.ok(&input(0x105, 16, &[]), 16);
    assert_eq!((host.device.counts().pages_held, host.device.counts().pages_lost), (0, 4));
}

#[test]
fn objects_make_the_firmware_ask_and_their_end_makes_it_offer() {
    let ring = 0x10_0000;
    let mut host = running();
    let uar = host.uar();
    host.eq(uar, ring, 4, 1 << 11, 0);
    let request = |host: &Host, index: usize| {
        let eqe = host.bytes(ring + index * 64, 64);
        (eqe[63] == 0).then(|| (eqe[1], be32(&eqe, 36) as i32))
    };
    let mut eqns = Vec::new();
    while request(&host, 0).is_none() {
        eqns.push(host.eq(uar, 0x14_0000, 0, 0, 0));
        assert!(eqns.len() < 60, "no request");
    }
    let (event, asked) = request(&host, 0).unwrap();
    assert_eq!(event, 0x0b);
    assert!((1..=8).contains(&asked), "{asked}");
    eqns.push(host.eq(uar, 0x14_0000, 0, 0, 0));
    assert_eq!(request(&host, 1), None, "asked once");
    let pages: Vec<u64> = (7..7 + asked as u64).collect();
    assert_eq!(give(&mut host, &pages), 0);
    assert_eq!(request(&host, 1), None, "satisfied");
    // What is in use cannot be taken.
    let out = host.ok(&input(0x108, 16, &[(4, 2), (12, 100)]), 16 + 100 * 8);
    let spare = be32(&out, 8);
    assert!(spare < 7 + asked as u32 - 3, "{spare}");
    for page in out[16..16 + spare as usize * 8].as_chunks::<8>().0 {
        let index = (u64::from_be_bytes(*page) - BASE - POOL) / 4096;
        assert_eq!(give(&mut host, &[index]), 0);
    }
    while let Some(eqn) = eqns.pop() {
        host.ok(&input(0x302, 16, &[(8, eqn)]), 16);
    }
    assert_eq!((1..4).find_map(|index| request(&host, index).filter(|(_, pages)| *pages < 0)), None, "not while objects go");
    host.run(6_000_000_000);
    let (event, offered) = (1..4).rev().find_map(|index| request(&host, index)).expect("pages are offered back");
    assert_eq!(event, 0x0b);
    assert!(offered < 0, "{offered}");
    let out = host.ok(&input(0x108, 16, &[(4, 2), (12, -offered as u32)]), 16 + 100 * 8);
    assert_eq!(be32(&out, 8), -offered as u32);
}

/// Creates a host whose firmware was given `count` pages more than it needs, and the ring of its page requests.
fn with_spare(count: u64) -> (Host, u32, usize) {
    let ring = 0x10_0000;
    let mut host = running();
    let uar = host.uar();
    host.eq(uar, ring, 6, 1 << 11, 0);
    for first in (7..7 + count).step_by(100) {
        let pages: Vec<u64> = (first..(first + 100).min(7 + count)).collect();
        assert_eq!(give(&mut host, &pages), 0);
    }
    (host, uar, ring)
}

/// Returns the numbers of pages of all requests so far.
fn requests(host: &Host, ring: usize) -> Vec<i32> {
    let eqes = (0..64).map(|index| host.bytes(ring + index * 64, 64));
    eqes.take_while(|eqe| eqe[63] == 0).map(|eqe| be32(&eqe, 36) as i32).collect()
}

#[test]
fn many_spare_pages_go_back_in_portions_one_after_the_other() {
    let (mut host, _, ring) = with_spare(1000);
    let mut back = 0;
    for turn in 1.. {
        host.run(60_000_000_000);
        let offers = requests(&host, ring);
        if offers.len() < turn {
            break;
        }
        assert_eq!(offers.len(), turn, "one at a time: {offers:?}");
        let offer = offers.last().map_or(0, |pages| -pages);
        assert!((1..=256).contains(&offer), "{offers:?}");
        host.run(60_000_000_000);
        assert_eq!(requests(&host, ring).len(), turn, "not again before the answer");
        let out = host.ok(&input(0x108, 16, &[(4, 2), (12, offer as u32)]), 16 + offer as usize * 8);
        assert_eq!(be32(&out, 8), offer as u32);
        back += offer;
    }
    assert!((990..=1000).contains(&back), "{back}");
}

#[test]
fn spare_pages_stay_while_objects_come_and_go() {
    let (mut host, uar, ring) = with_spare(600);
    // As an unloading driver: never long without a command.
    for _ in 0..60 {
        let eqn = host.eq(uar, 0x14_0000, 0, 0, 0);
        host.run(1_000_000_000);
        host.ok(&input(0x302, 16, &[(8, eqn)]), 16);
        host.run(1_000_000_000);
    }
    assert_eq!(requests(&host, ring), []);
    host.run(3_000_000_000);
    let due = host.device.next_due().expect("pages are offered back").as_nanos();
    assert_eq!(requests(&host, ring), []);
    host.run(due - host.now);
    assert_eq!(requests(&host, ring), [-256]);
}

#[test]
fn nothing_is_asked_after_the_event_queue_went() {
    let ring = 0x10_0000;
    let mut host = running();
    let uar = host.uar();
    let eqn = host.eq(uar, ring, 6, 1 << 11, 0);
    assert_eq!(give(&mut host, &(7..107).collect::<Vec<u64>>()), 0);
    host.ok(&input(0x302, 16, &[(8, eqn)]), 16);
    host.run(60_000_000_000);
    assert_eq!((requests(&host, ring), host.device.next_due()), (vec![], None));
    host.ok(&input(0x103, 16, &[]), 16);
    let out = host.ok(&input(0x108, 16, &[(4, 2), (12, 107)]), 16 + 107 * 8);
    assert_eq!(be32(&out, 8), 107, "all come at once when the host asks");
}

#[test]
fn a_host_that_cannot_give_gets_no_more_objects() {
    let mut host = running();
    let uar = host.uar();
    host.eq(uar, 0x10_0000, 6, 1 << 11, 0);
    host.ok(&input(0x108, 16, &[(4, 0)]), 16);
    let create = {
        let mut bytes = input(0x301, 272, &[(16 + 12, uar)]);
        bytes.extend((BASE + 0x14_0000).to_be_bytes());
        bytes
    };
    let mut created = 0;
    let status = loop {
        match host.command(&create, 16).0 {
            0 => created += 1,
            status => break status,
        }
    };
    assert_eq!((status, created), (0x0f, 63), "64 queues of 256 bytes fill the four pages that are left for objects");
}
