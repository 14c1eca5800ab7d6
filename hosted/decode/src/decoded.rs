//! A decoded structure: sections, fields and findings.

use std::fmt;

use bareverbs_mlx5_spec::{Layout, LayoutInfo};

use crate::field_printer::{self, FieldValue, Value};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Severity {
    /// Information; the device accepts it.
    Note,
    /// Accepted by the device, but probably an error.
    Warning,
    /// The device refuses or misinterprets it.
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

/// A remark on the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Byte offset.
    pub offset: usize,
    /// Message.
    pub text: String,
}

/// A structure in the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Section {
    /// Title.
    pub name: String,
    /// Published name of its layout; empty for bytes without one.
    pub layout: &'static str,
    /// Offset of its first byte.
    pub offset: usize,
    /// Its fields.
    pub fields: Vec<FieldValue>,
    /// Payload, as hexadecimal digits.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub payload: Option<String>,
}

/// Decoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Decoded {
    /// Offset of the first byte in the input.
    pub offset: usize,
    /// Summary in one line.
    pub title: String,
    /// Its structures in order.
    pub sections: Vec<Section>,
    /// Findings, in order of offset.
    pub findings: Vec<Finding>,
}

impl Decoded {
    /// Returns nothing decoded yet, of bytes at `offset`: at most half of all offsets, so that those inside the bytes do not overflow.
    pub(crate) fn new(offset: usize) -> Self {
        let offset = offset.min(usize::MAX / 2);
        Self { offset, title: String::new(), sections: Vec::new(), findings: Vec::new() }
    }

    /// Returns the number in a field of a section: `number("remote address segment", "raddr")`. Returns `None` if the bytes have no
    /// such section, or it has no such field, or the field is no number.
    pub fn number(&self, section: &str, field: &str) -> Option<u64> {
        let section = self.sections.iter().find(|one| one.name == section)?;
        match section.fields.iter().find(|one| one.name == field)?.value {
            Value::Number { value } => Some(value),
            Value::Bytes { .. } | Value::Entries { .. } => None,
        }
    }

    /// Returns whether the device would refuse or misinterpret it. Errors are of the encoding, and of values that no device
    /// executes, such as an address from which the bytes run over the end of the address space.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Adds an error that another check has found, in order of offset.
    pub fn add_error(&mut self, offset: usize, text: impl Into<String>) {
        self.error(offset, text);
        self.findings.sort_by_key(|finding| finding.offset);
    }

    pub(crate) fn find(&mut self, severity: Severity, offset: usize, text: impl Into<String>) {
        self.findings.push(Finding { severity, offset, text: text.into() });
    }

    pub(crate) fn error(&mut self, offset: usize, text: impl Into<String>) {
        self.find(Severity::Error, offset, text);
    }

    pub(crate) fn warning(&mut self, offset: usize, text: impl Into<String>) {
        self.find(Severity::Warning, offset, text);
    }

    pub(crate) fn note(&mut self, offset: usize, text: impl Into<String>) {
        self.find(Severity::Note, offset, text);
    }

    /// Adds the structure `L` in `bytes`, which are at `offset`, and a warning for each reserved byte that is not zero.
    pub(crate) fn section<L: Layout>(&mut self, name: impl Into<String>, bytes: &[u8], offset: usize) {
        self.section_of(&L::INFO, name, bytes, offset);
        self.reserved::<L>(bytes, offset);
    }

    pub(crate) fn reserved<L: Layout>(&mut self, bytes: &[u8], offset: usize) {
        for reserved in field_printer::reserved(&L::INFO, bytes, offset) {
            self.warning(reserved.offset, format!("reserved bits {:#04x} of {} are set", reserved.bits, L::INFO.name));
        }
    }

    pub(crate) fn section_of(&mut self, layout: &LayoutInfo, name: impl Into<String>, bytes: &[u8], offset: usize) {
        let fields = field_printer::read(layout, bytes, offset);
        self.sections.push(Section { name: name.into(), layout: layout.name, offset, fields, payload: None });
    }

    pub(crate) fn payload(&mut self, name: impl Into<String>, bytes: &[u8], offset: usize) {
        let payload = Some(field_printer::hex(bytes));
        self.sections.push(Section { name: name.into(), layout: "", offset, fields: Vec::new(), payload });
    }

    pub(crate) fn finish(mut self) -> Self {
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
