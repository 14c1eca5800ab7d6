//! Generated inputs without a fuzzer: the same ones each time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arbitrary::{Arbitrary, Unstructured};
use bareverbs_sim::wire::Random;

use super::guest::input;
use super::mad::{MAD, Mad, PORT_INFO};
use super::request::Request;
use super::subnet_manager::M_KEY;
use super::{Act, Management, ManagementDatagram, Setup, Subnet, Way, play};

/// Inputs, acts of each, and bytes that an act is made of.
const INPUTS: u64 = 3_000;
const ACTS: usize = 12;
const BYTES: usize = 64;
/// Failing inputs that are shown.
const MAX_SHOWN: usize = 5;

fn acts(seed: u64) -> Vec<Act> {
    let mut random = Random::new(seed);
    let mut act = || {
        let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        Act::arbitrary(&mut Unstructured::new(&bytes))
    };
    (0..ACTS).filter_map(|_| act().ok()).collect()
}

/// Returns what is wrong after the generated input of a seed; each setup has its turn.
fn failure(seed: u64) -> Option<String> {
    let (setup, acts) = (Setup::from_byte(seed as u8 & 0xf), acts(seed));
    let shown = format!("input {seed}, {setup:?}, {acts:?}");
    let panicked = catch_unwind(AssertUnwindSafe(|| play(&setup, acts))).err()?;
    let message = panicked.downcast_ref::<String>().map(String::as_str).or(panicked.downcast_ref::<&str>().copied());
    Some(format!("{}\n    {shown}", message.unwrap_or("a panic without a message")))
}

#[test]
fn generated_acts_leave_well_behaved_guests_alone() {
    let failures: Vec<String> = (0..INPUTS).filter_map(failure).take(MAX_SHOWN).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A management datagram from the attacker's own queue pair 0 to the first well-behaved guest, with a wrong M_Key.
fn from_queue_pair_0(directed: bool) -> Act {
    let way = Way::QueuePair { port: 0, general: false, pkey_index: 0x80 };
    Act::Management(ManagementDatagram { way, directed, get: false, attribute: 0, lid: 5, partition: 0, m_key: 1, state: 0 })
}

#[test]
fn a_manager_without_the_key_is_heard_and_refused() {
    let setup = Setup::from_byte(2 << 1);
    assert_eq!((setup.management, setup.pages), (Management::ProtectedKey, false));
    let mut subnet = Subnet::new(&setup);
    for (count, directed) in [(1_u16, false), (2, true)] {
        subnet.attacker.act(from_queue_pair_0(directed));
        subnet.run(1000);
        subnet.check();
        let get = Mad { directed: false, set: false, attribute: PORT_INFO, modifier: 1, m_key: M_KEY, data: [0; 64] };
        let mut request = input(0x50d, 16, &[(8, 1)]);
        request.extend(get.bytes());
        let victim = &mut subnet.pair.guests[0].guest;
        victim.command(request, 16 + MAD);
        // M_KeyViolations.
        let answer = victim.output(16 + MAD).split_off(16);
        assert_eq!(Mad::data(&answer)[44..46], count.to_be_bytes(), "directed: {directed}");
    }
}

/// Returns the input of a seed as the fuzz target reads it.
fn input_of(bytes: &[u8]) -> Option<(Setup, Vec<Act>)> {
    <(Setup, Vec<Act>)>::arbitrary_take_rest(Unstructured::new(bytes)).ok()
}

/// Returns the ways of management datagrams from queue pairs 0 and 1 in an input on a subnet with an M_Key: whether they are
/// for general management.
fn from_managers(input: &(Setup, Vec<Act>)) -> Vec<bool> {
    let (setup, acts) = input;
    let with_key = setup.management == Management::ProtectedKey && !setup.pages;
    let way = |act: &Act| match act {
        Act::Management(ManagementDatagram { way: Way::QueuePair { general, pkey_index, .. }, .. }) => {
            (pkey_index & 0x80 != 0).then_some(*general)
        }
        _ => None,
    };
    if with_key { acts.iter().filter_map(way).collect() } else { Vec::new() }
}

#[test]
fn seeds_send_from_queue_pairs_0_and_1_on_a_subnet_with_a_key() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/device");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let found: Vec<bool> = files.filter_map(|bytes| input_of(&bytes)).flat_map(|input| from_managers(&input)).collect();
    assert!(found.contains(&false) && found.contains(&true), "{found:?}");
}

#[test]
fn ranges_over_the_end_of_the_address_space_reach_every_key_on_either_side() {
    const LAST_16_BYTES: u16 = 0xfff0;
    for key in 0..4 {
        let at_the_end = 0x40 | key;
        for (remote, piece, value) in [(0, (at_the_end, LAST_16_BYTES, 64), 0), (at_the_end, (0, 0, 64), LAST_16_BYTES)] {
            // An RDMA write and a read.
            for opcode in [0, 5] {
                let request = Request { queue: 0, opcode, flags: 0, remote, pieces: vec![piece], peer: 0, value: value.into() };
                play(&Setup::plain(false), [Act::Request(request)]);
            }
        }
    }
}
