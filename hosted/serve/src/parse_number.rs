//! Parses the numbers of command lines.

/// Parses a decimal number, or a hexadecimal one after `0x`. Digits may be separated by underscores, and a decimal number may have
/// the suffix k, M or G (powers of 1024).
///
/// # Errors
/// The text is not a number, or the number does not fit in `T`; the error is a message.
pub fn parse_number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let wrong = || format!("'{text}' is no number: 4096, 0x1000 or 4k");
    let digits = text.replace('_', "");
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).map_err(|_| wrong())?,
        None => {
            let (digits, shift) = [('k', 10), ('K', 10), ('m', 20), ('M', 20), ('g', 30), ('G', 30)]
                .into_iter()
                .find_map(|(suffix, shift)| Some((digits.strip_suffix(suffix)?, shift)))
                .unwrap_or((&digits, 0));
            // The parser of the standard library accepts a sign.
            if !digits.starts_with(|digit: char| digit.is_ascii_digit()) {
                return Err(wrong());
            }
            let value: u64 = digits.parse().map_err(|_| wrong())?;
            value.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))?
        }
    };
    T::try_from(value).map_err(|_| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_hexadecimal_or_have_suffixes() {
        for (text, value) in [
            ("0", 0_u64),
            ("4129", 4129),
            ("0x1021", 0x1021),
            ("0x0200_0000", 0x0200_0000),
            ("64k", 65_536),
            ("64K", 65_536),
            ("8M", 8 << 20),
            ("1g", 1 << 30),
            ("1_000", 1000),
        ] {
            assert_eq!(parse_number(text), Ok(value), "{text}");
        }
        for wrong in ["", "k", "x", "+1", "-1", "1.5", "4kk", "0x", "0x4k", "1 k", "0x1_0000_0000_0000_0000"] {
            assert!(parse_number::<u64>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_number::<u16>("64k"), Err("64k is too large".into()));
        assert!(parse_number::<u64>("17179869184G").is_err());
    }
}
