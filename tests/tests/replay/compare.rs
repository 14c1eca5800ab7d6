//! What this project's driver sent to the card beside what Linux's driver sent: every byte, by the names of the layouts.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_decode::command;
use bareverbs_decode::command_table::Exchange;
use bareverbs_decode::field_printer::{FieldValue, Value, hex};
use bareverbs_tests::command_fields::{Fields, by_name, command_name, is_zero, last_name};

use crate::card::Executed;
use crate::differences::{ADDRESSES, Difference};

/// A field that differs, as the tables have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) command: String,
    pub(crate) field: String,
    pub(crate) ours: String,
    pub(crate) linux: String,
}

impl From<&Difference> for Found {
    fn from(row: &Difference) -> Self {
        Self { command: row.command.into(), field: row.field.into(), ours: row.ours.into(), linux: row.linux.into() }
    }
}

/// Clears the bits of a field in `bytes`, which begin with the message.
fn clear(field: &FieldValue, bytes: &mut [u8]) {
    let len = match (&field.value, field.bits) {
        (_, Some((high, low))) => {
            let mask = u32::MAX >> (31 - high) & u32::MAX << low;
            for (byte, mask) in bytes.iter_mut().skip(field.offset).zip(mask.to_be_bytes()) {
                *byte &= !mask;
            }
            return;
        }
        (Value::Number { .. }, None) => 8,
        (Value::Bytes { bytes, .. }, None) => bytes.len() / 2,
        (Value::Entries { entries }, None) => entries.iter().map(|entry| entry.len() / 2).sum(),
    };
    bytes.iter_mut().skip(field.offset).take(len).for_each(|byte| *byte = 0);
}

/// Returns all bits of an input.
pub(crate) fn fields(input: &[u8]) -> Fields {
    all_bits(command::input_fields(input), input)
}

/// Returns all bits of a message: by fields, and by dwords what no field covers.
pub(crate) fn all_bits(mut known: Vec<FieldValue>, message: &[u8]) -> Fields {
    // A whole page of capabilities is no field.
    known.retain(|field| !matches!(&field.value, Value::Bytes { bytes, .. } if bytes.len() > 1024));
    let mut rest = message.to_vec();
    known.iter().for_each(|field| clear(field, &mut rest));
    let mut all = by_name(known);
    for (index, dword) in rest.chunks(4).enumerate().filter(|(_, dword)| dword.iter().any(|byte| *byte != 0)) {
        all.insert(format!("reserved bits at byte {}", 4 * index), format!("0x{}", hex(dword)));
    }
    all
}

/// Returns the byte at which the addresses of an input begin.
pub(crate) fn addresses(input: &[u8]) -> usize {
    let known = command::input_fields(input);
    let first = known.iter().filter(|field| ADDRESSES.contains(&field.name.as_str())).map(|field| field.offset).min();
    first.unwrap_or(usize::MAX)
}

/// Compares one input with Linux's, as far as that is known.
pub(crate) fn compare(ours: &Executed, linux: &Exchange) -> Vec<Found> {
    let command = command_name(&ours.input);
    let known = linux.input.bytes.len().min(ours.input.len());
    let (mut mine, mut theirs) = (fields(&ours.input[..known]), fields(&linux.input.bytes[..known]));
    for (name, mine_len, their_len) in
        [("input length", ours.input.len(), linux.input.len()), ("output length", ours.output_len, linux.output.len())]
    {
        mine.insert(name.into(), mine_len.to_string());
        theirs.insert(name.into(), their_len.to_string());
    }
    let names: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
    let mut all = Vec::new();
    for field in names {
        let value = |fields: &Fields| match fields.get(field) {
            Some(value) if ADDRESSES.contains(&last_name(field)) && !is_zero(value) => "given".to_string(),
            Some(value) => value.clone(),
            None => "-".into(),
        };
        let (ours, linux) = (value(&mine), value(&theirs));
        if ours != linux {
            all.push(Found { command: command.clone(), field: field.clone(), ours, linux });
        }
    }
    all
}

/// Returns each of this driver's commands with the one of Linux that it is compared with: of as many of one name, the one in
/// the same place, and the last for all that follow. `None`: Linux sent none of this name.
pub(crate) fn pairs<'a>(ours: &'a [Executed], linux: &'a [Exchange]) -> Vec<(&'a Executed, Option<&'a Exchange>)> {
    let mut by_command: BTreeMap<String, Vec<&Exchange>> = BTreeMap::new();
    for exchange in linux {
        by_command.entry(command_name(&exchange.input.bytes)).or_default().push(exchange);
    }
    let mut sent: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for executed in ours {
        let name = command_name(&executed.input);
        let place = sent.entry(name.clone()).or_default();
        let same = by_command.get(&name).and_then(|rows| rows.get(*place).or(rows.last())).copied();
        *place += 1;
        all.push((executed, same));
    }
    all
}

/// Returns every difference once.
pub(crate) fn differences(ours: &[Executed], linux: &[Exchange]) -> BTreeSet<Found> {
    pairs(ours, linux).into_iter().filter_map(|(ours, linux)| Some(compare(ours, linux?))).flatten().collect()
}
