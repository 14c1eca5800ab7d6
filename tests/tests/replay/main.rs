//! What a real card said to Linux's driver, said to this project's driver (`tests/data/recordings`).
//!
//! The card here has no behaviour of its own: it answers from the table. So these tests find what the simulated device, made by
//! those who made the driver, cannot show.

mod card;
mod compare;
mod differences;
mod machine;
mod simulated;

use core::ops::ControlFlow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bareverbs::LinkLayer;
use bareverbs::backend::Provider as _;
use bareverbs_decode::command_table::{Exchange, HEADING, parse};
use bareverbs_mlx5::{BringUpError, Config, Error, Mlx5, Progress, Step, TeardownReport};
use bareverbs_serve::record;
use bareverbs_tests::book::table;
use bareverbs_tests::command_fields::command_name;

use card::{Executed, Setting, Source};
use compare::Found;
use differences::{DIFFERENCES, LINUX_ONLY, OURS_ONLY};
use machine::{ReplayPlatform, machine};

/// A ConnectX-4 Lx and Linux's driver, 2016.
const CARD: &str = include_str!("../../data/recordings/connectx-4-lx.tsv");
/// Two simulated devices and Linux 6.12.
const LINUX: &str = include_str!("../../data/linux/6.12.recording");
/// The recorded card's port is an Ethernet port. Most tests say that it is an InfiniBand port, to see what the driver does with one.
const SETTING: Setting = Setting { firmware: [14, 12, 1220], port_type: Some(0), wrong_byte: None, busy: 0 };

/// The driver.
type Driver = Mlx5<ReplayPlatform, 64>;

fn recording() -> Vec<Exchange> {
    parse(CARD).unwrap_or_else(|error| panic!("{error}"))
}

/// What one bring-up and teardown was.
struct Run {
    /// The commands, each with the step that sent it; `None`: the teardown.
    executed: Vec<(Option<Step>, Executed)>,
    steps: Vec<Step>,
    result: Result<TeardownReport, BringUpError>,
    firmware: [u16; 3],
    pages_given: u32,
    /// Pages that the card's firmware has at the end.
    pages_left: usize,
    findings: Vec<String>,
}

/// Brings the card up and takes it down.
fn run(table: Vec<Exchange>, setting: Setting) -> Run {
    let (machine, card) = machine(table, setting, Driver::ARENA);
    let steps = Mutex::new(Vec::new());
    let starts = Mutex::new(Vec::new());
    let hook = |next| {
        if let Progress::Step(step) = next {
            starts.lock().unwrap().push((card.lock().unwrap().executed.len(), Some(step)));
            steps.lock().unwrap().push(step);
        }
        ControlFlow::Continue(())
    };
    let (result, firmware, pages_given) = match Driver::bring_up_with(machine, &Config::DEFAULT, hook) {
        Ok(driver) => {
            starts.lock().unwrap().push((card.lock().unwrap().executed.len(), None));
            let (firmware, given) = (driver.device_attr().fw_ver, driver.statistics().pages_given);
            let report = driver.teardown().map(|(_, report)| report).map_err(|(error, _)| error);
            (Ok(report.unwrap_or_else(|error| panic!("{error}"))), firmware, given)
        }
        Err((error, _)) => (Err(error), [0; 3], 0),
    };
    let starts = starts.into_inner().unwrap();
    let card = Arc::into_inner(card).unwrap().into_inner().unwrap();
    let step_of = |index: usize| starts.iter().rev().find(|(start, _)| *start <= index).and_then(|(_, step)| *step);
    let executed = card.executed.into_iter().enumerate().map(|(index, executed)| (step_of(index), executed)).collect();
    let steps = steps.into_inner().unwrap();
    Run { executed, steps, result, firmware, pages_given, pages_left: card.pages.len(), findings: card.findings }
}

fn inputs(run: &Run) -> Vec<Executed> {
    run.executed.iter().map(|(_, executed)| executed.clone()).collect()
}

fn names(rows: &[(&str, &str)]) -> BTreeSet<String> {
    rows.iter().map(|(name, _)| name.to_string()).collect()
}

#[test]
fn the_recorded_card_comes_up_and_goes_down_and_every_page_is_back() {
    let run = run(recording(), SETTING);
    let report = run.result.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(run.findings, [""; 0]);
    assert_eq!((run.steps.as_slice(), run.firmware), (Step::ALL, [14, 12, 1220]));
    assert_eq!(run.pages_given, 6 + 12_868, "what this card demands");
    assert_eq!((report.pages_given, report.pages_back), (6 + 12_868, 6 + 12_868));
    assert_eq!((report.pages_kept, report.needs_reset, run.pages_left), (0, false, 0));
}

/// What `sim serve --record` wrote of a device and Linux 6.12, as a table, is read and replayed like that of a card: to the end of
/// the teardown, since Linux has an InfiniBand port there and takes it down again.
#[test]
fn a_recording_of_the_simulated_device_is_replayed_like_that_of_a_card() {
    let lines = record::parse(LINUX).unwrap_or_else(|error| panic!("{error}"));
    let commands = record::commands(&lines, "lid1");
    assert!(commands.len() > 100, "{} commands", commands.len());
    let text: String = commands.iter().map(|exchange| format!("{exchange}\n")).collect();
    let table = parse(&format!("{HEADING}\n{text}")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(table, commands);

    let run = run(table, Setting { firmware: [1, 2, 3], port_type: None, wrong_byte: None, busy: 0 });
    let made: BTreeSet<String> = inputs(&run)
        .iter()
        .filter(|executed| executed.source == Source::Made)
        .map(|executed| command_name(&executed.input))
        .collect();
    let report = run.result.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((run.findings.as_slice(), run.steps.as_slice()), (&[] as &[String], Step::ALL));
    assert!(report.pages_given > 0 && report.pages_given == report.pages_back && run.pages_left == 0, "{report:?}");
    assert_eq!(made, BTreeSet::from(["MANAGE_PAGES 0x2".into()]), "Linux's pages are not this driver's");
}

/// The port as it was recorded, an Ethernet port. The recording ends before Linux's drivers of the network interface and of RoCE begin:
/// what comes from them, the card here answers with success and zeros.
#[test]
fn the_recorded_ethernet_port_comes_up_as_far_as_the_recording_goes() {
    let (ethernet, infiniband) = (run(recording(), Setting { port_type: None, ..SETTING }), run(recording(), SETTING));
    let report = ethernet.result.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((ethernet.findings.as_slice(), ethernet.steps.as_slice()), (&[] as &[String], Step::ALL));
    assert_eq!((report.pages_given, report.pages_back, report.needs_reset), (6 + 12_868, 6 + 12_868, false));
    let sent = |executed: &[(Option<Step>, Executed)], source| -> BTreeSet<String> {
        let of = executed.iter().filter(|(step, executed)| step.is_some() && executed.source == source);
        of.map(|(_, executed)| command_name(&executed.input)).collect()
    };
    let more = |source| {
        let (ours, others) = (sent(&ethernet.executed, source), sent(&infiniband.executed, source));
        ours.difference(&others).cloned().collect::<Vec<_>>()
    };
    // The card's own answers: it offers RoCEv2, and 0x8 and 0x9 are the capabilities of RoCE.
    assert_eq!(more(Source::Recorded), ["QUERY_HCA_CAP 0x8", "QUERY_HCA_CAP 0x9"]);
    let made = [
        "ACCESS_REG 0x5003 read",
        "ACCESS_REG 0x5003 write",
        "ACCESS_REG 0x5006 write",
        "MODIFY_NIC_VPORT_CONTEXT",
        "QUERY_NIC_VPORT_CONTEXT",
    ];
    assert_eq!(more(Source::Made), made);
}

/// What the recorded card says of itself, not what the simulated device or this driver say.
#[test]
fn the_recorded_card_has_a_table_of_addresses() {
    let (machine, _card) = machine(recording(), Setting { port_type: None, ..SETTING }, Driver::ARENA);
    let mut driver = Driver::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    let port = driver.query_port(1).unwrap();
    assert_eq!((port.link_layer, port.gid_tbl_len, port.pkey_tbl_len), (LinkLayer::Ethernet, 256, 1));
    assert!(driver.teardown().is_ok());
}

/// A card may be told to offer RoCE, or to offer version 1 alone.
#[test]
fn an_ethernet_port_without_roce_v2_is_refused_and_every_page_is_back() {
    let refused = |page, field: &dyn Fn(&mut [u8])| {
        let mut table = recording();
        for exchange in &mut table {
            let input = &exchange.input.bytes;
            // QUERY_HCA_CAP of a page.
            if input[..2] == [1, 0] && u16::from_be_bytes([input[6], input[7]]) >> 1 == page {
                field(&mut exchange.output.bytes[16..]);
            }
        }
        let run = run(table, Setting { port_type: None, ..SETTING });
        let error = run.result.unwrap_err();
        assert_eq!((error.pages_kept, error.needs_reset, run.pages_left), (0, false, 0));
        assert_eq!(run.findings, [""; 0]);
        (error.step, error.cause)
    };
    // `cmd_hca_cap.roce`, bit 2 of dword 64; `roce_cap.roce_version`, the last byte of dword 16.
    assert_eq!(refused(4, &|page| page[19] = 1), (Step::ReadCapabilities, Error::NoRoce));
    let other_type = run(recording(), Setting { port_type: Some(2), ..SETTING }).result.unwrap_err();
    assert_eq!(other_type.cause, Error::PortType { port_type: 2 });
}

/// Entries of the tables of GIDs and P_Keys that the agent of the made answers has.
const GIDS: u16 = 176;
const PKEYS: u16 = 0x3f42;

/// The recorded card has no virtual ports (`ib_virt`).
#[test]
fn gids_and_p_keys_of_the_agent_come_from_their_block() {
    let (machine, _card) = machine(recording(), SETTING, Driver::ARENA);
    let mut driver = Driver::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    let port = driver.query_port(1).unwrap();
    // Offsets of PortInfo and NodeInfo (`ib_smi.h`).
    let bytes = |attribute, modifier, at: usize, len: usize| -> Vec<u8> {
        (at..at + len).map(|at| card::attribute_byte(attribute, modifier, at)).collect()
    };
    assert_eq!(port.lid.get().to_be_bytes(), *bytes(0x15, 1, 16, 2));
    assert_eq!(port.sm_lid.get().to_be_bytes(), *bytes(0x15, 1, 18, 2));
    assert_eq!(port.port_guid.0.to_be_bytes(), *bytes(0x11, 0, 20, 8));
    assert_eq!(driver.device_attr().node_guid.0.to_be_bytes(), *bytes(0x11, 0, 12, 8));
    assert_eq!(driver.device_attr().sys_image_guid.0.to_be_bytes(), *bytes(0x11, 0, 4, 8));
    // GUIDCap of PortInfo, PartitionCap of NodeInfo: neither is what the capabilities say, 8 and 128.
    assert_eq!(
        (port.gid_tbl_len, port.pkey_tbl_len.to_be_bytes().as_slice()),
        (card::attribute_byte(0x15, 1, 50).into(), &*bytes(0x11, 0, 28, 2))
    );
    assert_eq!((port.gid_tbl_len, port.pkey_tbl_len), (GIDS, PKEYS));
    let errors = (driver.query_gid(1, GIDS).unwrap_err(), driver.query_pkey(1, PKEYS).unwrap_err());
    assert_eq!(errors, (Error::NoEntry { entries: GIDS }, Error::NoEntry { entries: PKEYS }));
    for index in 0..port.gid_tbl_len {
        let (block, at) = (u32::from(index) / 8, usize::from(index) % 8 * 8);
        let expected = [bytes(0x15, 1, 8, 8), bytes(0x14, block, at, 8)].concat();
        assert_eq!(driver.query_gid(1, index).unwrap().0.as_slice(), expected, "{index}");
    }
    for index in (0..port.pkey_tbl_len).step_by(31) {
        let (block, at) = (u32::from(index) / 32, usize::from(index) % 32 * 2);
        assert_eq!(driver.query_pkey(1, index).unwrap().to_be_bytes(), *bytes(0x16, block, at, 2), "{index}");
    }
    assert!(driver.teardown().is_ok());
}

#[test]
fn what_is_no_answer_of_the_agent_is_refused() {
    // Method Get, the attribute PortInfo; statuses.
    let [method, attribute] = [1, 0x15].map(|value| Error::BadAnswer { opcode: 0x50d, value });
    let status = |status| Error::MadStatus { attribute: 0x11, status };
    for (wrong_byte, cause, text) in [
        ((3, 1), method, "MAD_IFC"),
        ((17, 0x15), attribute, "MAD_IFC"),
        ((5, 0x1c), status(0x1c), "did not answer NodeInfo: an invalid value in the attribute or its modifier (status 0x001c)"),
        ((5, 0x0c), status(0x0c), "no such attribute"),
        ((4, 0x80), status(0x8000), "status 0x8000"),
    ] {
        let run = run(recording(), Setting { wrong_byte: Some(wrong_byte), ..SETTING });
        let error = run.result.unwrap_err();
        assert_eq!((error.step, error.cause), (Step::QueryPort, cause));
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!((error.pages_kept, error.needs_reset, run.pages_left), (0, false, 0));
    }
}

/// IBTA volume 1, 13.4.7: a busy agent has done nothing, and is asked again.
#[test]
fn an_agent_that_is_busy_is_asked_again_for_a_second() {
    let run_busy = |busy| run(recording(), Setting { busy, ..SETTING });
    let patient = run_busy(50);
    assert!(patient.result.is_ok(), "{:?}", patient.result);
    let asked = patient.executed.iter().filter(|(_, executed)| command_name(&executed.input) == "MAD_IFC").count();
    assert_eq!(asked, 51);
    let error = run_busy(51).result.unwrap_err();
    assert_eq!((error.step, error.cause), (Step::QueryPort, Error::MadStatus { attribute: 0x11, status: 1 }));
    assert!(error.to_string().contains("NodeInfo: it is busy"), "{error}");
}

#[test]
fn inputs_equal_those_of_linux_but_for_what_is_listed() {
    let (run, linux) = (run(recording(), SETTING), recording());
    let ours = inputs(&run);
    let found = compare::differences(&ours, &linux);
    let listed: BTreeSet<Found> = DIFFERENCES.iter().map(Found::from).collect();
    let unlisted: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(unlisted.is_empty() && gone.is_empty(), "not listed: {unlisted:#?}\nlisted, and not there: {gone:#?}");
    assert_eq!(listed.len(), DIFFERENCES.len(), "each row once");

    let sent: BTreeSet<String> = ours.iter().map(|executed| command_name(&executed.input)).collect();
    let recorded: BTreeSet<String> = linux.iter().map(|exchange| command_name(&exchange.input.bytes)).collect();
    assert_eq!(recorded.difference(&sent).cloned().collect::<BTreeSet<_>>(), names(LINUX_ONLY), "only Linux sends");
    assert_eq!(sent.difference(&recorded).cloned().collect::<BTreeSet<_>>(), names(OURS_ONLY), "only this driver sends");
    let made = ours.iter().filter(|executed| executed.source == Source::Made);
    let made: BTreeSet<String> = made.map(|executed| command_name(&executed.input)).collect();
    assert_eq!(made, names(OURS_ONLY), "answers that are not recorded");
    let compared = sent.intersection(&recorded).count();
    assert!(compared >= 15, "{compared} kinds of commands were compared");
}

/// Queries may come in any order; what changes the card comes in Linux's.
#[test]
fn commands_that_change_something_come_in_the_order_of_linux() {
    let order = |inputs: &mut dyn Iterator<Item = &[u8]>| {
        let query = |name: &String| name.starts_with("QUERY_") || name == "MAD_IFC";
        let linux_only = |name: &String| LINUX_ONLY.iter().any(|(only, _)| only == name);
        let mut names: Vec<String> = inputs.map(command_name).filter(|name| !query(name) && !linux_only(name)).collect();
        names.dedup();
        names
    };
    let (run, linux) = (run(recording(), SETTING), recording());
    let bring_up = run.executed.iter().filter(|(step, _)| step.is_some());
    let ours = order(&mut bring_up.map(|(_, executed)| executed.input.as_slice()));
    let theirs = order(&mut linux.iter().map(|exchange| exchange.input.bytes.as_slice()));
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), 11, "{ours:?}");
}

#[test]
fn every_difference_has_a_reason() {
    assert!(DIFFERENCES.iter().all(|difference| difference.why.len() > 10));
    assert!(LINUX_ONLY.iter().chain(OURS_ONLY).all(|(_, why)| why.len() > 10));
}

/// Each input with one bit changed, byte after byte.
#[test]
fn a_changed_bit_of_an_input_is_found() {
    let (run, linux) = (run(recording(), SETTING), recording());
    let ours = inputs(&run);
    let (mut seen, mut changed) = (BTreeSet::new(), 0);
    for (executed, same) in compare::pairs(&ours, &linux) {
        let Some(same) = same.filter(|_| seen.insert(command_name(&executed.input))) else { continue };
        let before = compare::compare(executed, same);
        // Not the opcode, by which they are paired, nor the addresses behind the fixed part.
        let known = same.input.bytes.len().min(executed.input.len());
        let end = known.min(compare::addresses(&executed.input));
        // No structure here has fields from byte 512 on.
        for (byte, bit) in (8..end).filter(|byte| *byte < 512 || byte % 16 == 0).map(|byte| (byte, byte % 8)) {
            let mut fault = executed.clone();
            fault.input[byte] ^= 1 << bit;
            let after = compare::compare(&fault, same);
            assert_ne!(after, before, "bit {bit} of byte {byte} of {}", command_name(&executed.input));
            changed += 1;
        }
    }
    assert!(changed > 1000, "{changed} bits were changed");
}

/// The commands of a step, and whether the recording has all of them.
fn commands_of(run: &Run, step: Step) -> (Vec<String>, bool) {
    let (mut names, mut recorded) = (Vec::new(), true);
    for (_, executed) in run.executed.iter().filter(|(of, _)| *of == Some(step)) {
        let name = command_name(&executed.input);
        recorded &= executed.source == Source::Recorded;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (names, recorded)
}

/// The book's page has a row for each step, in order, with the commands that the step sends to an InfiniBand port, and those to an
/// Ethernet port if they are others. It claims the card for those steps alone whose commands the card's recording has.
#[test]
fn the_book_says_of_each_step_what_it_was_checked_against() {
    let (infiniband, ethernet) = (run(recording(), SETTING), run(recording(), Setting { port_type: None, ..SETTING }));
    let expected = Step::ALL.iter().map(|step| {
        let ((names, one), (others, other)) = (commands_of(&infiniband, *step), commands_of(&ethernet, *step));
        let commands = match (names.join(", "), others.join(", ")) {
            (names, others) if names.is_empty() && others.is_empty() => "none".to_string(),
            (names, others) if names == others => names,
            (names, others) if names.is_empty() => format!("Ethernet: {others}"),
            (names, others) => format!("{names}; Ethernet: {others}"),
        };
        (format!("`{step:?}`"), commands, one && other && !(names.is_empty() && others.is_empty()))
    });
    let rows = table("checked.md", "Steps of the bring-up");
    let written = rows.iter().map(|row| {
        let [step, commands, evidence] = row.as_slice() else { panic!("three cells: {row:?}") };
        (step.clone(), commands.clone(), evidence.starts_with("card"))
    });
    assert_eq!(written.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}
