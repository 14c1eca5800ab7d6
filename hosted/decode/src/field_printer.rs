//! Converts bytes to named fields by any layout, and reports reserved bits that are set.

use bareverbs_mlx5_spec::{FieldInfo, LayoutInfo, Place};

use crate::code_names;

/// One field with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FieldValue {
    /// Published name, with the path of an inner structure (`qpc.pd`).
    pub name: String,
    /// Offset of its dword, or of its first byte, in the message.
    pub offset: usize,
    /// Highest and lowest bit in the big-endian dword at `offset`; `None` for wider fields.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub bits: Option<(u32, u32)>,
    /// Value.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub value: Value,
    /// Name of the value.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub meaning: Option<String>,
}

/// Value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum Value {
    /// A number.
    Number {
        /// The number.
        value: u64,
    },
    /// Bytes in memory order.
    Bytes {
        /// As hexadecimal digits.
        bytes: String,
        /// Whether all are zero.
        #[cfg_attr(feature = "serde", serde(skip))]
        zero: bool,
    },
    /// Entries of a trailing array.
    Entries {
        /// Each as hexadecimal digits.
        entries: Vec<String>,
    },
}

impl Value {
    /// Returns whether all bits of the field are zero.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Number { value } => *value == 0,
            Self::Bytes { zero, .. } => *zero,
            Self::Entries { entries } => entries.is_empty(),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number { value } => write!(f, "{value:#x}"),
            Self::Bytes { bytes, .. } => f.write_str(bytes),
            Self::Entries { entries } => write!(f, "[{}]", entries.join(",")),
        }
    }
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the bytes of hexadecimal digits, two each. `None` for anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect::<Option<_>>()?;
    rest.is_empty().then_some(bytes)
}

/// A reserved byte of which a bit is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Offset of the byte in the message.
    pub offset: usize,
    /// The bits that no field covers.
    pub bits: u8,
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns the fields of `layout` in `bytes`, which are at `base` of the message. Fields beyond the end of `bytes` are left out.
pub fn read(layout: &LayoutInfo, bytes: &[u8], base: usize) -> Vec<FieldValue> {
    let mut fields = Vec::with_capacity(layout.fields.len());
    read_into(layout, bytes, base, "", &mut fields);
    fields
}

fn read_into(layout: &LayoutInfo, bytes: &[u8], base: usize, prefix: &str, fields: &mut Vec<FieldValue>) {
    for field in layout.fields {
        if let Place::Sub { offset, layout: inner } = field.place {
            let inside = bytes.get(offset..).unwrap_or_default();
            read_into(&inner, inside, base + offset, &format!("{prefix}{}.", field.name), fields);
        } else if let Some((offset, bits, value)) = value(field, bytes) {
            let meaning = match value {
                Value::Number { value } => code_names::meaning(layout.name, field.name, value),
                Value::Bytes { .. } | Value::Entries { .. } => None,
            };
            fields.push(FieldValue { name: format!("{prefix}{}", field.name), offset: base + offset, bits, value, meaning });
        }
    }
}

type Read = (usize, Option<(u32, u32)>, Value);

fn value(field: &FieldInfo, bytes: &[u8]) -> Option<Read> {
    match field.place {
        Place::Bits(at) => Some((at.dword, Some((at.hi, at.lo)), Value::Number { value: at.read(bytes)?.into() })),
        Place::U64 { offset } => Some((offset, None, Value::Number { value: u64::from_be_bytes(chunk(bytes, offset)?) })),
        Place::Bytes { offset, len } => {
            let bytes = bytes.get(offset..)?.get(..len)?;
            Some((offset, None, Value::Bytes { bytes: hex(bytes), zero: bytes.iter().all(|byte| *byte == 0) }))
        }
        Place::Tail { offset, entry } => {
            let entries = bytes.get(offset..)?.chunks_exact(entry.max(1)).map(hex).collect();
            Some((offset, None, Value::Entries { entries }))
        }
        Place::Sub { .. } => None,
    }
}

/// Returns the reserved bytes of `layout` that are not zero in `bytes`, which are at `base` of the message.
pub fn reserved(layout: &LayoutInfo, bytes: &[u8], base: usize) -> Vec<Reserved> {
    let bytes = bytes.get(..layout.size).unwrap_or(bytes);
    let mut rest = bytes.to_vec();
    clear(layout, &mut rest);
    let set = rest.iter().enumerate().filter(|(_, byte)| **byte != 0);
    set.map(|(at, bits)| Reserved { offset: base + at, bits: *bits }).collect()
}

fn clear(layout: &LayoutInfo, bytes: &mut [u8]) {
    for field in layout.fields {
        match field.place {
            Place::Bits(at) => {
                for (byte, mask) in bytes.iter_mut().skip(at.dword).zip(at.mask().to_be_bytes()) {
                    *byte &= !mask;
                }
            }
            Place::Sub { offset, layout } => {
                if let Some(inside) = bytes.get_mut(offset..) {
                    clear(&layout, inside);
                }
            }
            Place::U64 { .. } | Place::Bytes { .. } => {
                let (offset, len) = field.place.bytes();
                bytes.iter_mut().skip(offset).take(len).for_each(|byte| *byte = 0);
            }
            Place::Tail { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::{CreateQpIn, Layout, WqeCtrlSeg};

    use super::*;

    #[test]
    fn a_control_segment_is_read_by_the_published_offsets() {
        // opmod<<24|pi<<8|opcode @0, qpn<<8|ds @4, fm_ce_se @11, imm @12 (rdma-core).
        let bytes = [0, 0x12, 0x34, 0x08, 0, 0, 0x4b, 3, 0, 0, 0, 8, 0xde, 0xad, 0xbe, 0xef];
        let fields = read(&WqeCtrlSeg::INFO, &bytes, 0x40);
        let number = |name: &str| {
            let field = fields.iter().find(|field| field.name == name).unwrap();
            match field.value {
                Value::Number { value } => (field.offset, value),
                _ => panic!("{name} is a number"),
            }
        };
        assert_eq!(number("wqe_idx"), (0x40, 0x1234));
        assert_eq!(number("opcode"), (0x40, 8));
        assert_eq!(number("qpn"), (0x44, 0x4b));
        assert_eq!(number("ds"), (0x44, 3));
        assert_eq!(number("ce"), (0x48, 2));
        assert_eq!(number("imm"), (0x4c, 0xdead_beef));
    }

    #[test]
    fn bits_that_no_field_covers_are_reserved() {
        let mut bytes = [0; 16];
        bytes[7] = 0xc3;
        bytes[11] = 0x1d;
        let found = reserved(&WqeCtrlSeg::INFO, &bytes, 0);
        assert_eq!(found, [Reserved { offset: 7, bits: 0xc0 }, Reserved { offset: 11, bits: 0x11 }]);
    }

    #[test]
    fn short_bytes_leave_fields_out() {
        assert_eq!(read(&WqeCtrlSeg::INFO, &[0, 0, 1, 8, 0, 0], 0).len(), 3);
        assert!(read(&CreateQpIn::INFO, &[], 0).iter().all(|field| matches!(field.value, Value::Entries { .. })));
    }

    #[test]
    fn a_structure_inside_is_named_by_its_path() {
        let mut bytes = [0; CreateQpIn::SIZE];
        bytes[24 + 5] = 7;
        let fields = read(&CreateQpIn::INFO, &bytes, 0);
        let pd = fields.iter().find(|field| field.name == "qpc.pd").unwrap();
        assert_eq!((pd.offset, &pd.value), (28, &Value::Number { value: 0x07_0000 }));
    }
}
