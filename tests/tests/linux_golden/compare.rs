//! Field by field, through the layouts: what Linux sent beside what this project's driver sends for the same work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use bareverbs_decode::field_printer;
use bareverbs_decode::send::Transport;
use bareverbs_decode::{Decoded, command, receive, send};
use bareverbs_mlx5_spec::{
    CmdOpcode, CqArm, EqDoorbell, Layout, UAR_BLUEFLAME, UAR_CQ_ARM, UAR_EQ_ARM, UAR_EQ_UPDATE, WqeCtrlSeg,
};
use bareverbs_serve::record::{Entry, Kind, Line};
use bareverbs_tests::book::table;
use bareverbs_tests::command_fields::{Fields, by_name, command_name, is_zero, last_name};

use crate::differences::{COUNTERS, DIFFERENCES, Kernel, LINUX_ONLY, NAMES, OURS_ONLY};
use crate::{NEW, OLD, lines, ours};

/// What was sent under each mark.
type Sent = BTreeMap<(String, String), Fields>;

/// Returns the fields of the segments of a WQE; of several segments of one kind, with their numbers.
fn segments(decoded: &Decoded) -> Fields {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all = Fields::new();
    for section in decoded.sections.iter().filter(|section| !section.layout.is_empty()) {
        let number = seen.entry(section.layout).and_modify(|number| *number += 1).or_insert(0);
        let place = if *number == 0 { section.layout.to_string() } else { format!("{}[{number}]", section.layout) };
        all.extend(section.fields.iter().map(|field| (format!("{place}.{}", field.name), field.value.to_string())));
    }
    all
}

fn doorbell(offset: usize, bytes: &[u8]) -> Option<(String, Fields)> {
    let (name, layout) = match offset {
        UAR_CQ_ARM => ("CQ arm", &CqArm::INFO),
        UAR_EQ_ARM => ("EQ arm", &EqDoorbell::INFO),
        UAR_EQ_UPDATE => ("EQ update", &EqDoorbell::INFO),
        UAR_BLUEFLAME.. if offset.is_multiple_of(0x100) => ("send", &WqeCtrlSeg::INFO),
        _ => return None,
    };
    let mut read = by_name(field_printer::read(layout, bytes, 0));
    read.insert("offset".into(), format!("{offset:#x}"));
    read.insert("bytes".into(), bytes.len().to_string());
    Some((format!("doorbell {name}"), read))
}

fn sent(recording: &[Line]) -> Sent {
    let mut mark = String::new();
    let mut all = Sent::new();
    for line in recording {
        let (name, mut fields) = match &line.entry {
            Entry::Mark(text) => {
                mark.clone_from(text);
                continue;
            }
            Entry::Command { input, .. } => (command_name(input), by_name(command::input_fields(input))),
            Entry::Item { kind: Kind::Send, bytes, .. } => {
                let decoded = send::decode(bytes, 0, Transport::Rc);
                let opcode = decoded.title.split(',').next().unwrap_or_default().to_string();
                (format!("WQE {opcode}"), segments(&decoded))
            }
            Entry::Item { kind: Kind::Recv, bytes, .. } => ("WQE receive".into(), segments(&receive::decode(bytes, false))),
            Entry::Item { kind: Kind::Doorbell, index, bytes, .. } => match doorbell(*index as usize, bytes) {
                Some(found) => found,
                None => continue,
            },
            Entry::Device(_) | Entry::Item { .. } => continue,
        };
        // Contexts are numbered as programs come.
        if let Some(uid) = fields.get_mut("uid").filter(|uid| !matches!(uid.as_str(), "0x0" | "0xffff")) {
            *uid = "its context".into();
        }
        let place = all.entry((mark.clone(), name));
        match line.entry {
            // Of commands the last counts: the first may be for the kernel's own use.
            Entry::Command { .. } => drop(place.insert_entry(fields)),
            _ => drop(place.or_insert(fields)),
        }
    }
    all
}

/// One difference, as the table has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    what: String,
    field: String,
    ours: String,
    linux: String,
}

/// Returns the differences, and the marks under which they were found.
fn differences(ours: &Sent, linux: &Sent) -> BTreeMap<Found, Vec<String>> {
    let mut all: BTreeMap<Found, Vec<String>> = BTreeMap::new();
    for (key, mine) in ours {
        let Some(theirs) = linux.get(key) else { continue };
        let names: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        for field in names.into_iter().filter(|field| !COUNTERS.contains(&last_name(field))) {
            let named = NAMES.contains(&last_name(field));
            let value = |fields: &Fields| match fields.get(field) {
                Some(value) if named && !is_zero(value) => "given".to_string(),
                Some(value) => value.clone(),
                None => "-".into(),
            };
            let (mine, theirs) = (value(mine), value(theirs));
            if mine != theirs {
                let found = Found { what: key.1.clone(), field: field.clone(), ours: mine, linux: theirs };
                all.entry(found).or_default().push(key.0.clone());
            }
        }
    }
    all
}

fn check(kernel: Kernel, linux: &str) {
    let (ours, linux) = (sent(&ours::recording()), sent(&lines(linux)));
    let found = differences(&ours, &linux);
    let listed: BTreeSet<Found> = DIFFERENCES
        .iter()
        .filter(|difference| difference.kernel.is_none_or(|of| of == kernel))
        .map(|difference| Found {
            what: difference.what.into(),
            field: difference.field.into(),
            ours: difference.ours.into(),
            linux: difference.linux.into(),
        })
        .collect();
    let unlisted: Vec<_> = found.iter().filter(|(found, _)| !listed.contains(found)).collect();
    let gone: Vec<_> = listed.iter().filter(|listed| !found.contains_key(listed)).collect();
    assert!(unlisted.is_empty() && gone.is_empty(), "{kernel:?}: not listed: {unlisted:#?}\nlisted, and not there: {gone:#?}");

    let names = |sent: &Sent| sent.keys().map(|(_, name)| name.clone()).collect::<BTreeSet<_>>();
    let (ours, linux) = (names(&ours), names(&linux));
    let table = |rows: &[(Option<Kernel>, &str, &str)]| -> BTreeSet<String> {
        rows.iter().filter(|row| row.0.is_none_or(|of| of == kernel)).map(|row| row.1.to_string()).collect()
    };
    assert_eq!(linux.difference(&ours).cloned().collect::<BTreeSet<_>>(), table(LINUX_ONLY), "{kernel:?}: only Linux sends");
    assert_eq!(
        ours.difference(&linux).cloned().collect::<BTreeSet<_>>(),
        table(OURS_ONLY),
        "{kernel:?}: only this driver sends"
    );
    let compared = ours.intersection(&linux).count();
    assert!(compared >= 35, "{compared} kinds of things were compared");
}

#[test]
fn this_driver_beside_linux_6_12() {
    check(Kernel::V6_12, NEW);
}

#[test]
fn this_driver_beside_linux_6_1() {
    check(Kernel::V6_1, OLD);
}

/// The book's page claims Linux for those commands alone that are compared here, and has a row for each command that the
/// driver's source names.
#[test]
fn the_book_says_of_each_command_what_it_was_checked_against() {
    let compared: BTreeSet<String> = sent(&ours::recording()).into_keys().map(|(_, name)| name).collect();
    let cells = |heading| table("checked.md", heading).into_iter().map(|row| <[String; 3]>::try_from(row).unwrap());
    let mut rows = BTreeSet::new();
    for [_, commands, _] in cells("Steps of the bring-up") {
        rows.extend(
            commands.split("; ").flat_map(|kind| kind.trim_start_matches("Ethernet: ").split(", ")).map(str::to_string),
        );
    }
    for [command, _, evidence] in cells("Commands after the bring-up") {
        let claimed = evidence.split(", ").any(|word| word == "Linux");
        assert_eq!(claimed, compared.contains(&command), "{command}: {evidence}");
        rows.insert(command);
    }
    let opcode = |name: &String| name.split(' ').next().unwrap_or_default().to_string();
    let without =
        compared.iter().filter(|name| CmdOpcode::ALL.iter().any(|known| known.name() == opcode(name)) && !rows.contains(*name));
    assert_eq!(without.collect::<Vec<_>>(), [""; 0], "sent, and without a row");
    let (rows, named) = (rows.iter().map(opcode).collect::<BTreeSet<_>>(), named_opcodes());
    assert!(named.len() >= 35, "{named:?}");
    assert_eq!(named.difference(&rows).collect::<Vec<_>>(), [""; 0], "in the driver's source, and without a row");
}

/// Returns the names of the commands that the source of the driver names, by `cmd::…` or `CmdOpcode::…`.
fn named_opcodes() -> BTreeSet<String> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../backends/mlx5/src")];
    let mut all = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for word in ["cmd::", "CmdOpcode::"].iter().flat_map(|before| text.split(before).skip(1)) {
                let name: String = word.chars().take_while(char::is_ascii_alphanumeric).collect();
                let opcode = CmdOpcode::ALL.iter().find(|opcode| format!("{opcode:?}") == name);
                all.extend(opcode.map(|opcode| opcode.name().to_string()));
            }
        }
    }
    all
}

#[test]
fn every_difference_has_a_reason() {
    assert!(DIFFERENCES.iter().all(|difference| difference.why.len() > 10));
    assert!(LINUX_ONLY.iter().chain(OURS_ONLY).all(|(_, _, why)| why.len() > 10));
}
