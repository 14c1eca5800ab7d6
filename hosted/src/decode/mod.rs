//! Bytes of the device's structures to named fields, and what is wrong with them.
//!
//! The printer works from the layouts alone; the checks know the rules that a layout cannot express. Nothing here shares code
//! with the driver that writes these bytes.

use std::fmt;

use bareverbs_mlx5_spec::{Layout, LayoutInfo};
use serde::Serialize;

use crate::fields::{self, FieldValue};

pub mod command;
pub mod completion;
pub mod event;
pub mod input;
pub mod receive;
pub mod send;
mod umr;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; the device does not mind.
    Note,
    /// Unusual, and likely not meant.
    Warning,
    /// The device refuses it or does something else than was meant.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something about the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// Byte where it lies.
    pub offset: usize,
    /// What.
    pub text: String,
}

/// A structure in the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// What it is for.
    pub name: String,
    /// Published name of its layout; empty for bytes without one.
    pub layout: &'static str,
    /// Its first byte.
    pub offset: usize,
    /// Its fields.
    pub fields: Vec<FieldValue>,
    /// Payload, as hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// Decoded bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// First byte in the input.
    pub offset: usize,
    /// One line that says what it is.
    pub title: String,
    /// Its structures in order.
    pub sections: Vec<Section>,
    /// What is wrong with it, or worth knowing, in order of the bytes.
    pub findings: Vec<Finding>,
}

impl Decoded {
    fn new(offset: usize) -> Self {
        Self { offset, title: String::new(), sections: Vec::new(), findings: Vec::new() }
    }

    /// Whether the device would refuse it or misunderstand it.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    fn find(&mut self, severity: Severity, offset: usize, text: impl Into<String>) {
        self.findings.push(Finding { severity, offset, text: text.into() });
    }

    fn error(&mut self, offset: usize, text: impl Into<String>) {
        self.find(Severity::Error, offset, text);
    }

    fn warning(&mut self, offset: usize, text: impl Into<String>) {
        self.find(Severity::Warning, offset, text);
    }

    fn note(&mut self, offset: usize, text: impl Into<String>) {
        self.find(Severity::Note, offset, text);
    }

    /// Adds the structure `L` over `bytes`, which lie at `offset`, and a warning for each reserved byte that is not zero.
    fn section<L: Layout>(&mut self, name: impl Into<String>, bytes: &[u8], offset: usize) {
        self.section_of(&L::INFO, name, bytes, offset);
        self.reserved::<L>(bytes, offset);
    }

    fn reserved<L: Layout>(&mut self, bytes: &[u8], offset: usize) {
        for reserved in fields::reserved(&L::INFO, bytes, offset) {
            self.warning(reserved.offset, format!("reserved bits {:#04x} of {} are set", reserved.bits, L::INFO.name));
        }
    }

    fn section_of(&mut self, layout: &LayoutInfo, name: impl Into<String>, bytes: &[u8], offset: usize) {
        let fields = fields::read(layout, bytes, offset);
        self.sections.push(Section { name: name.into(), layout: layout.name, offset, fields, payload: None });
    }

    fn payload(&mut self, name: impl Into<String>, bytes: &[u8], offset: usize) {
        let payload = Some(fields::hex(bytes));
        self.sections.push(Section { name: name.into(), layout: "", offset, fields: Vec::new(), payload });
    }

    fn finish(mut self) -> Self {
        self.findings.sort_by_key(|finding| finding.offset);
        self
    }
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for section in &self.sections {
            if section.layout.is_empty() {
                writeln!(f, "  {:#06x}  {}", section.offset, section.name)?;
            } else {
                writeln!(f, "  {:#06x}  {} ({})", section.offset, section.name, section.layout)?;
            }
            for field in &section.fields {
                write_field(f, field)?;
            }
            if let Some(payload) = &section.payload {
                write_payload(f, section.offset, payload)?;
            }
        }
        for finding in &self.findings {
            writeln!(f, "  {:#06x}  {}: {}", finding.offset, finding.severity, finding.text)?;
        }
        if self.findings.iter().all(|finding| finding.severity == Severity::Note) {
            writeln!(f, "  nothing wrong with it")?;
        }
        Ok(())
    }
}

fn write_field(f: &mut fmt::Formatter<'_>, field: &FieldValue) -> fmt::Result {
    let bits = match field.bits {
        Some((31, 0)) | None => String::new(),
        Some((hi, lo)) if hi == lo => format!("{hi}"),
        Some((hi, lo)) => format!("{hi}..{lo}"),
    };
    let value = field.value.to_string();
    write!(f, "    {:#06x} {bits:>6}  {:<28} ", field.offset, field.name)?;
    match &field.meaning {
        Some(meaning) => writeln!(f, "{value:<18} {meaning}"),
        None => writeln!(f, "{value}"),
    }
}

fn write_payload(f: &mut fmt::Formatter<'_>, offset: usize, digits: &str) -> fmt::Result {
    const SHOWN: usize = 32;
    let mut at = offset;
    let mut rest = digits;
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(SHOWN).unwrap_or((rest, ""));
        writeln!(f, "    {at:#06x}         {line}")?;
        at += line.len() / 2;
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::{CmdOpcode, WqeOpcode};

    use super::send::Transport;
    use super::*;

    /// Bytes that look random and are the same each time.
    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn assert_complete(all: &[Decoded]) {
        for decoded in all {
            assert!(!decoded.title.is_empty() && decoded.to_string().lines().count() > 1);
            assert!(serde_json::to_string(decoded).is_ok());
            assert!(decoded.findings.is_sorted_by_key(|finding| finding.offset));
        }
    }

    #[test]
    fn any_bytes_have_an_answer() {
        for seed in 0..400 {
            let mut bytes = bytes(seed, seed as usize);
            assert_complete(&send::decode_all(&bytes, Transport::Rc));
            assert_complete(&[receive::decode(&bytes, seed % 2 == 0), command::decode_input(&bytes)]);
            assert_complete(&completion::decode_all(&bytes));
            assert_complete(&event::decode_all(&bytes));
            for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc] {
                for opcode in WqeOpcode::ALL {
                    if let Some(byte) = bytes.get_mut(3) {
                        *byte = opcode.code() as u8;
                    }
                    assert_complete(&[send::decode(&bytes, 0, transport)]);
                }
            }
        }
    }

    #[test]
    fn counters_of_a_port_are_read_by_their_own_layout() {
        // mlx5_ifc.h: query_vport_counter_out.received_ib_unicast.packets is at byte 48.
        let mut output = vec![0; 528];
        output[55] = 9;
        let decoded = command::decode_output(CmdOpcode::QueryVportCounter, 0, &output);
        let fields: Vec<_> = decoded.sections.iter().flat_map(|section| &section.fields).collect();
        let names: Vec<_> = fields.iter().map(|field| (field.name.as_str(), field.offset, field.value.to_string())).collect();
        assert_eq!(names, [("received_ib_unicast.packets", 48, "0x9".to_owned())]);
    }

    #[test]
    fn every_command_has_an_answer() {
        for opcode in CmdOpcode::ALL {
            for len in [0, 4, 16, 300, 5000] {
                let mut input = bytes(1, len);
                if let Some(start) = input.first_chunk_mut::<2>() {
                    *start = (opcode.code() as u16).to_be_bytes();
                }
                assert_complete(&[command::decode_input(&input), command::decode_output(*opcode, 1, &input)]);
                command::output_fields(&input, &input);
            }
        }
    }
}
