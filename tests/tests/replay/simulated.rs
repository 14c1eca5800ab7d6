//! The other direction: the simulated device's answers to what Linux said to the card, beside the card's.

use std::collections::BTreeSet;
use std::path::Path;

use bareverbs_decode::command;
use bareverbs_decode::command_table::Exchange;
use bareverbs_mlx5_spec::{AllocUarOut, CmdOpcode, CmdOut, CmdStatus, CreateEqIn, Eqc, Layout, ManagePagesIn, View, ViewMut};
use bareverbs_sim::{DeviceConfig, PageDemand};
use bareverbs_tests::command_fields::{command_name, is_zero};
use bareverbs_tests::{LoneDevice, instant};

use crate::{compare, recording};

/// Fields that the card answers with a value and the simulated device with 0: command, field, the card's value.
const ZERO: &str = include_str!("../../data/recordings/connectx-4-lx-zero-in-simulation.tsv");
/// Set in the environment to write them anew.
const UPDATE: &str = "BAREVERBS_UPDATE";

/// Commands that the simulated device refuses: name, status, reason.
const REFUSED: &[(&str, CmdStatus, &str)] = &[
    (
        "MANAGE_PAGES 0x1",
        CmdStatus::LimErr,
        "one command gives the simulated device at most 4,096 pages; Linux gave the card 12,868",
    ),
    (
        "SET_HCA_CAP 0x0",
        CmdStatus::BadParam,
        "Linux sends back the capabilities of this card, which the simulated device does not have",
    ),
];
/// Pages that one command gives after one with more was refused.
const BATCH: usize = 4000;

fn opcode(exchange: &Exchange) -> Option<CmdOpcode> {
    CmdOpcode::from_code(exchange.key().0.into())
}

/// Returns the input, with what the recording does not have of it: pages that are nobody else's.
fn whole_input(exchange: &Exchange) -> Vec<u8> {
    let mut input = exchange.input.bytes.clone();
    let pages = opcode(exchange) == Some(CmdOpcode::ManagePages);
    while input.len() < exchange.input.len() {
        let page = (1_u64 << 40) + input.len() as u64 * 512;
        input.extend(if pages { page.to_be_bytes() } else { [0; 8] });
    }
    input
}

/// Returns every command with the card's answer and the simulated device's. The device demands as many pages as the card.
fn answers() -> Vec<(Exchange, Vec<u8>)> {
    let pages = PageDemand { boot: 6, init: 12_868, ..PageDemand::NONE };
    let mut device = LoneDevice::new(DeviceConfig { vectors: 32, pages, ..instant(1) });
    let mut uar = None;
    let answer = |exchange: Exchange| {
        let mut input = whole_input(&exchange);
        if let (Some(CmdOpcode::CreateEq), Some(page)) = (opcode(&exchange), uar) {
            let mut view = ViewMut::<CreateEqIn>::new(&mut input).unwrap();
            view.sub(CreateEqIn::EQ_CONTEXT_ENTRY).set(Eqc::UAR_PAGE, page);
        }
        let output = device.run(0, &input, exchange.output.len());
        if opcode(&exchange) == Some(CmdOpcode::AllocUar) {
            // Event queues name the first page that was given.
            uar = uar.or(Some(View::<AllocUarOut>::new(&output).unwrap().get(AllocUarOut::UAR)));
        }
        if is_ok(&output) || opcode(&exchange) != Some(CmdOpcode::ManagePages) {
            return (exchange, output);
        }
        // The commands after it need the pages.
        let (head, list) = input.split_at(ManagePagesIn::SIZE);
        for pages in list.chunks(8 * BATCH) {
            let mut input = [head, pages].concat();
            let count = pages.len() as u32 / 8;
            ViewMut::<ManagePagesIn>::new(&mut input).unwrap().set(ManagePagesIn::INPUT_NUM_ENTRIES, count);
            assert!(is_ok(&device.run(0, &input, exchange.output.len())), "{count} pages");
        }
        (exchange, output)
    };
    recording().into_iter().map(answer).collect()
}

fn is_ok(output: &[u8]) -> bool {
    status(output) == Some(CmdStatus::Ok)
}

fn status(output: &[u8]) -> Option<CmdStatus> {
    CmdStatus::from_code(View::<CmdOut>::new(output).unwrap().get(CmdOut::STATUS))
}

#[test]
fn the_simulated_device_takes_what_linux_said_to_the_card() {
    let mut refused = BTreeSet::new();
    for (exchange, output) in answers() {
        assert!(is_ok(&exchange.output.bytes), "the card took it");
        let name = command_name(&exchange.input.bytes);
        if !is_ok(&output) {
            refused.insert((name, format!("{:?}", status(&output))));
        }
    }
    let listed: BTreeSet<_> =
        REFUSED.iter().map(|(name, status, _)| (name.to_string(), format!("{:?}", Some(status)))).collect();
    let unlisted: Vec<_> = refused.difference(&listed).collect();
    assert!(unlisted.is_empty(), "refused, and not listed: {unlisted:#?}");
    assert!(REFUSED.iter().all(|(_, _, why)| why.len() > 10));
}

#[test]
fn capabilities_that_the_simulated_device_lacks_are_listed() {
    let mut found = BTreeSet::new();
    for (exchange, output) in answers() {
        let card = &exchange.output.bytes;
        if !is_ok(&output) || opcode(&exchange) != Some(CmdOpcode::QueryHcaCap) {
            continue;
        }
        let input = &exchange.input.bytes;
        let read = |output: &[u8]| compare::all_bits(command::output_fields(input, output), output);
        let simulated = read(&output);
        for (field, value) in read(card).into_iter().filter(|(_, value)| !is_zero(value)) {
            if simulated.get(&field).is_none_or(|value| is_zero(value)) {
                found.insert(format!("{}\t{field}\t{value}", command_name(input)));
            }
        }
    }
    if std::env::var_os(UPDATE).is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/recordings/connectx-4-lx-zero-in-simulation.tsv");
        let comments = ZERO.lines().filter(|line| line.starts_with('#'));
        let text: String = comments.chain(found.iter().map(String::as_str)).map(|line| format!("{line}\n")).collect();
        std::fs::write(path, text).unwrap();
        return;
    }
    let listed: BTreeSet<String> = ZERO.lines().filter(|line| !line.starts_with('#')).map(str::to_string).collect();
    let (new, gone): (Vec<_>, Vec<_>) = (found.difference(&listed).collect(), listed.difference(&found).collect());
    // A device that offers more is no mistake.
    println!("listed, and not 0 any more: {gone:#?}");
    assert!(new.is_empty(), "0 and not listed (write the list anew with {UPDATE}=1): {new:#?}");
}
