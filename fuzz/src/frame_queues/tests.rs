//! Generated inputs without a fuzzer: the same ones each time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arbitrary::{Arbitrary, Unstructured};
use bareverbs_sim::wire::Random;

use super::{Act, Lan, Send, play};

/// Inputs, acts of each, and bytes that an act is made of.
const INPUTS: u64 = 3_000;
const ACTS: usize = 16;
const BYTES: usize = 96;
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

/// Returns what is wrong after the generated input of a seed.
fn failure(seed: u64) -> Option<String> {
    let shown = format!("input {seed}, {:?}", acts(seed));
    let panicked = catch_unwind(AssertUnwindSafe(|| play(acts(seed)))).err()?;
    let message = panicked.downcast_ref::<String>().map(String::as_str).or(panicked.downcast_ref::<&str>().copied());
    Some(format!("{}\n    {shown}", message.unwrap_or("a panic without a message")))
}

#[test]
fn generated_acts_leave_well_behaved_guests_alone() {
    let failures: Vec<String> = (0..INPUTS).filter_map(failure).take(MAX_SHOWN).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The attacker sends a frame to a well-behaved guest, and one with the address of the other one, which the switch refuses.
#[test]
fn a_frame_of_the_attacker_arrives_and_a_forged_one_does_not() {
    let mut lan = Lan::new();
    let send = |to| {
        let pieces = vec![(0, 0, 100)];
        Act::Send(Send { which: 0, opcode: 0, flags: 8, mss: 0, to, headers: Vec::new(), size: None, pieces, segments: None })
    };
    let came = |lan: &Lan| lan.stations[0].end.guest.device.stats().frames_received;
    let before = came(&lan);
    lan.attacker.act(send(0));
    lan.run(1000);
    assert_eq!(came(&lan), before + 1);
    lan.attacker.act(send(0x88));
    lan.run(1000);
    assert_eq!(came(&lan), before + 1);
    lan.check();
}

/// For each frame of a message that is cut the groups of rules are searched: not all of them in one turn, whatever a guest has made.
#[test]
fn frames_of_one_request_take_as_many_turns_as_their_groups_need() {
    const GROUPS: u32 = 200;
    const SEGMENTS: usize = 1000;
    let mut lan = Lan::new();
    let end = &mut lan.attacker;
    // Rules that no frame matches, before the one that all do.
    end.create_table(1, 13, None);
    let table = end.tables[1];
    for index in 0..GROUPS {
        end.create_group(table, (index, index), 1, &[0xff; 6]);
        let (_, group) = *end.groups.last().unwrap();
        end.set_rule(table, group, index, 4, &[2; 6], &[(2, end.tirs[0])], &[]);
    }
    assert_eq!(end.rules.len(), 1 + GROUPS as usize);
    end.set_root(table);
    // To a group, so that each comes back and goes out. Ethernet, IPv4 and TCP.
    let mut headers = vec![8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2];
    headers.extend([0; 8]);
    headers.extend([0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let pieces = vec![(0, 0, SEGMENTS as u16)];
    let cut = Send { which: 0, opcode: 1, flags: 8, mss: 1, to: 1, headers, size: None, pieces, segments: None };
    while end.guest.device.transmit().is_some() {}
    end.act(Act::Send(cut));
    let mut sent = Vec::new();
    while sent.iter().sum::<usize>() < SEGMENTS {
        assert!(sent.len() < SEGMENTS, "{sent:?}");
        let mut frames = 0;
        while end.guest.device.transmit().is_some() {
            frames += 1;
        }
        sent.push(frames);
        end.guest.run(1000);
    }
    // A turn has 4096 steps, and the groups of a frame take 200.
    assert!(sent.iter().all(|frames| *frames <= 4096 / GROUPS as usize + 1), "{sent:?}");
}

fn acts_of(bytes: &[u8]) -> Vec<Act> {
    Vec::<Act>::arbitrary_take_rest(Unstructured::new(bytes)).unwrap_or_default()
}

#[test]
fn seeds_reach_each_kind_of_queue() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/frame_queues");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let seeds: Vec<Vec<u8>> = files.collect();
    let acts: Vec<Act> = seeds.iter().flat_map(|bytes| acts_of(bytes)).collect();
    let has = |is: fn(&Act) -> bool| acts.iter().any(is);
    assert!(has(|act| matches!(act, Act::Wqe(_, 0x0a, ..))), "a frame");
    assert!(has(|act| matches!(act, Act::Wqe(_, 0x0e, ..))), "one that is cut");
    assert!(has(|act| matches!(act, Act::Device(crate::device::Act::Command(..)))), "a command");
    assert!(has(|act| matches!(act, Act::Rule(..))), "a rule");
    seeds.iter().for_each(|bytes| play(acts_of(bytes)));
}

/// What Linux sent is sent: a request of one frame, and one that is cut.
#[test]
fn requests_of_the_seeds_send_frames() {
    for seed in ["linux_up_0a_48", "linux_tcp_0e_112"] {
        let bytes = std::fs::read(format!("{}/seeds/frame_queues/{seed}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let mut lan = Lan::new();
        let device = &lan.attacker.guest.device;
        let before = device.stats().frames_sent;
        acts_of(&bytes).into_iter().for_each(|act| lan.attacker.act(act));
        lan.run(1000);
        let device = &lan.attacker.guest.device;
        assert!(device.stats().frames_sent > before, "{seed}: {:?}", device.rejections());
    }
}
