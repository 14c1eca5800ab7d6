//! Firmware commands out of a kernel log: how a card's owner records what Linux's driver and the card say to each other.
//!
//! `mlx5_core` logs every command with `dyndbg="module mlx5_core +p"` (`drivers/net/ethernet/mellanox/mlx5/core/cmd.c`,
//! `dump_command`): the entry of the command queue, then each mailbox.
//!
//! ```text
//! mlx5_core 0000:01:00.0: dump_command:836:(pid 87): cmd[0]: dump command QUERY_PAGES(0x107) OUTPUT
//! cmd[0]: 000: 07000000 00000010 00000000 00000000
//! ...
//! ```
//!
//! Older kernels leave `cmd[0]: ` out. Those of 2016 also leave out the last mailboxes, whose bytes are then unknown.

use std::collections::BTreeMap;

use bareverbs_mlx5_spec::{CMD_ENTRY, CMD_INLINE, CmdQueueEntry, MAILBOX, MAILBOX_DATA, View};

use crate::command_table::{Exchange, Message, TableError};

/// One dump: an entry and mailboxes.
#[derive(Debug)]
struct Dump {
    is_input: bool,
    bytes: Vec<u8>,
}

/// What one slot of the command queue has logged.
#[derive(Debug, Default)]
struct Slot {
    open: Option<Dump>,
    input: Option<Message>,
}

impl Slot {
    /// Ends the dump that is open. Returns the command if it was an output.
    fn close(&mut self) -> Option<Exchange> {
        let Dump { is_input, bytes } = self.open.take()?;
        let message = message(is_input, &bytes)?;
        if is_input {
            self.input = Some(message);
            return None;
        }
        Some(Exchange { input: self.input.take()?, output: message })
    }
}

/// Returns the commands of a kernel log in the order of their completion; of those of one device only, if `device` is the PCI address
/// in its lines. All other lines are skipped, and so are dumps of data alone (`debug_mask=1`), which have no lengths.
///
/// # Errors
/// The first line before which lines of a dump are missing.
pub fn parse(log: &str, device: Option<&str>) -> Result<Vec<Exchange>, TableError> {
    let mut slots: BTreeMap<u32, Slot> = BTreeMap::new();
    let mut all = Vec::new();
    for (at, line) in log.lines().enumerate() {
        if let Some((before, after)) = line.split_once("dump command ") {
            let is_input = after.trim_end().ends_with(" INPUT");
            let slot = slots.entry(slot_of(before)).or_default();
            all.extend(slot.close());
            let is_wanted = device.is_none_or(|device| before.contains(device)) && !after.starts_with("data ");
            slot.open = is_wanted.then(|| Dump { is_input, bytes: Vec::new() });
        } else if let Some((offset, bytes, before)) = dump_line(line)
            && let Some(dump) = slots.get_mut(&slot_of(before)).and_then(|slot| slot.open.as_mut())
        {
            if offset != dump.bytes.len() {
                return Err(TableError { line: at + 1, why: "lines of this dump are missing before it" });
            }
            dump.bytes.extend(bytes);
        }
    }
    for slot in slots.values_mut() {
        all.extend(slot.close());
    }
    Ok(all)
}

/// Returns the number in `cmd[N]:` at the end of a prefix; 0 without it.
fn slot_of(before: &str) -> u32 {
    let number = before.trim_end().strip_suffix("]:").and_then(|text| text.rsplit_once("cmd["));
    number.and_then(|(_, number)| number.parse().ok()).unwrap_or_default()
}

/// Parses a line of a dump: offset, sixteen bytes, and what is before the offset.
fn dump_line(line: &str) -> Option<(usize, [u8; 16], &str)> {
    let (before, words) = line.rsplit_once(": ")?;
    let (prefix, offset) = before.rsplit_once(' ').unwrap_or(("", before));
    let mut bytes = [0; 16];
    let mut words = words.split_whitespace();
    for place in bytes.chunks_exact_mut(4) {
        let word = words.next().filter(|word| word.len() == 8)?;
        place.copy_from_slice(&u32::from_str_radix(word, 16).ok()?.to_be_bytes());
    }
    // A dump of a completion has offsets of eight digits.
    let is_offset = (3..=6).contains(&offset.len()) && words.next().is_none();
    let offset = usize::from_str_radix(offset, 16).ok().filter(|_| is_offset)?;
    Some((offset, bytes, prefix))
}

/// Returns the input or output in a dump; `None` without a whole entry.
fn message(is_input: bool, bytes: &[u8]) -> Option<Message> {
    let (entry, blocks) = bytes.split_at_checked(CMD_ENTRY)?;
    let view = View::<CmdQueueEntry>::new(entry)?;
    let (inline, len) = if is_input {
        (CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, CmdQueueEntry::INPUT_LENGTH)
    } else {
        (CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA, CmdQueueEntry::OUTPUT_LENGTH)
    };
    let len = view.get(len) as usize;
    let mut data = view.bytes(inline).get(..CMD_INLINE)?.to_vec();
    for block in blocks.chunks_exact(MAILBOX) {
        data.extend(block.get(..MAILBOX_DATA)?);
    }
    data.truncate(len);
    let unknown = len.saturating_sub(data.len());
    Some(Message { bytes: data, unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of a dump for each sixteen bytes.
    fn lines(prefix: &str, bytes: &[u8]) -> String {
        let line = |(index, chunk): (usize, &[u8])| {
            let words: Vec<String> = chunk.chunks(4).map(crate::field_printer::hex).collect();
            format!("{prefix}{:03x}: {}\n", 16 * index, words.join(" "))
        };
        bytes.chunks(16).enumerate().map(line).collect()
    }

    /// An entry of QUERY_ADAPTER as Linux and a ConnectX-4 Lx left it, with another length of output.
    fn entry(output_len: u8) -> Vec<u8> {
        let mut entry = vec![0; 64];
        (entry[0], entry[7], entry[16], entry[17]) = (7, 16, 1, 1);
        (entry[32], entry[47], entry[59], entry[60]) = (0, 9, output_len, 0x17);
        entry
    }

    fn log(prefix: &str, slot: &str, output: &[u8]) -> String {
        let head =
            format!("{prefix}mlx5_core 0000:02:00.0: dump_command:587:(pid 87): {slot}dump command QUERY_ADAPTER(0x101)");
        let noise = "[    2.345678] 00000000: 00000000 00000001 00000002 00000003\nusb 1-1: 000: new device\n";
        let input = lines(&format!("{prefix}{slot}"), &entry(40));
        format!("{head} INPUT\n{input}\n{noise}{head} OUTPUT\n{}", lines(&format!("{prefix}{slot}"), output))
    }

    #[test]
    fn commands_are_read_from_logs_of_old_and_new_kernels() {
        let mut output = entry(40);
        output.extend((0..576).map(|byte| byte as u8));
        for (prefix, slot) in [("[  +0.000002] ", ""), ("[    1.234567] ", "cmd[31]: "), ("", "cmd[0]: ")] {
            let text = log(prefix, slot, &output);
            let [exchange] = &parse(&text, None).unwrap()[..] else { panic!("one command: {text}") };
            assert_eq!((exchange.key(), exchange.input.len()), ((0x101, 0), 16));
            let expected: Vec<u8> = entry(40)[32..48].iter().copied().chain(0..24).collect();
            assert_eq!(exchange.output, Message::whole(expected), "{text}");
            assert_eq!(parse(&text, Some("0000:02:00.0")).unwrap().len(), 1);
            assert_eq!(parse(&text, Some("0000:03:00.0")).unwrap(), []);
        }
    }

    #[test]
    fn commands_of_several_slots_may_be_mixed() {
        let (first, second) = (log("", "cmd[0]: ", &entry(16)), log("", "cmd[31]: ", &entry(16)));
        let mixed: String = first.lines().zip(second.lines()).map(|(first, second)| format!("{first}\n{second}\n")).collect();
        assert_eq!(parse(&mixed, None).unwrap().len(), 2);
    }

    #[test]
    fn mailboxes_that_were_not_logged_are_unknown() {
        let [exchange] = &parse(&log("", "", &entry(40)), None).unwrap()[..] else { panic!("one command") };
        assert_eq!((exchange.output.bytes.len(), exchange.output.unknown), (16, 24));
    }

    #[test]
    fn a_lost_line_of_a_dump_is_an_error_with_the_place() {
        let text = log("", "", &entry(16));
        let gap = text.lines().position(|line| line.starts_with("010: ")).unwrap();
        let lost: String = text.lines().enumerate().filter(|(at, _)| *at != gap).map(|(_, line)| format!("{line}\n")).collect();
        assert_eq!(parse(&lost, None).unwrap_err().line, gap + 1);
        assert_eq!(parse("nothing of mlx5\n", None), Ok(Vec::new()));
    }
}
