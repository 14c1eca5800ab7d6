//! Values of options: numbers, GUIDs, limits, widths, speeds, faults.

use bareverbs_serve::{ControlLine, MAX_LID, ParseError, parse_number};
use bareverbs_sim::wire::EgressLimits;
use bareverbs_sim::{Limit, LinkSpeed, LinkWidth, Profile};
use clap::builder::PossibleValue;

/// Maximum unicast LID (IBTA 4.1.3).
const LAST_UNICAST: u16 = 0xbfff;

/// Lanes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width(pub LinkWidth);

impl clap::ValueEnum for Width {
    fn value_variants<'a>() -> &'a [Self] {
        use LinkWidth::{X1, X2, X4, X8, X12};
        &[Self(X1), Self(X2), Self(X4), Self(X8), Self(X12)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self.0 {
            LinkWidth::X1 => "1x",
            LinkWidth::X2 => "2x",
            LinkWidth::X4 => "4x",
            LinkWidth::X8 => "8x",
            LinkWidth::X12 => "12x",
        }))
    }
}

/// Speed of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed(pub LinkSpeed);

impl clap::ValueEnum for Speed {
    fn value_variants<'a>() -> &'a [Self] {
        use LinkSpeed::{Ddr, Edr, Fdr, Fdr10, Hdr, Ndr, Qdr, Sdr};
        &[Self(Sdr), Self(Ddr), Self(Qdr), Self(Fdr10), Self(Fdr), Self(Edr), Self(Hdr), Self(Ndr)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self.0 {
            LinkSpeed::Sdr => "sdr",
            LinkSpeed::Ddr => "ddr",
            LinkSpeed::Qdr => "qdr",
            LinkSpeed::Fdr10 => "fdr10",
            LinkSpeed::Fdr => "fdr",
            LinkSpeed::Edr => "edr",
            LinkSpeed::Hdr => "hdr",
            LinkSpeed::Ndr => "ndr",
        }))
    }
}

/// The card that a simulated device is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileName(pub Profile);

impl clap::ValueEnum for ProfileName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [ProfileName; Profile::ALL.len()] = {
            let [a, b, c, d, e, f, g] = Profile::ALL;
            [ProfileName(a), ProfileName(b), ProfileName(c), ProfileName(d), ProfileName(e), ProfileName(f), ProfileName(g)]
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

/// A limit and its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitTo {
    /// The limit.
    pub limit: Limit,
    /// Power of two, in the range of the limit.
    pub number: u64,
}

/// Parses the LID of a device.
pub(super) fn lid(text: &str) -> Result<u16, String> {
    let lid = parse_number(text)?;
    if (1..=MAX_LID).contains(&lid) { Ok(lid) } else { Err(format!("not between 1 and {MAX_LID:#x}")) }
}

/// Parses the LID of a subnet manager, 0 if there is none.
pub(super) fn sm_lid(text: &str) -> Result<u16, String> {
    let lid = parse_number(text)?;
    if lid <= LAST_UNICAST { Ok(lid) } else { Err(format!("not between 0 and {LAST_UNICAST:#x}")) }
}

/// Parses a GUID or a prefix: a number, or four groups of hexadecimal digits separated by colons, as tools print it.
pub(super) fn guid(text: &str) -> Result<u64, String> {
    if !text.contains(':') {
        return parse_number(text);
    }
    let groups: Vec<&str> = text.split(':').collect();
    if groups.len() != 4 {
        return Err("not four groups of digits".into());
    }
    groups.iter().try_fold(0, |guid, group| {
        let part = u16::from_str_radix(group, 16).map_err(|error| format!("'{group}': {error}"))?;
        Ok(guid << 16 | u64::from(part))
    })
}

/// Parses octal permissions of a file.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|error| error.to_string())?;
    if mode <= 0o777 { Ok(mode) } else { Err("more than 777".into()) }
}

/// Parses `NAME=NUMBER`.
pub(super) fn limit(text: &str) -> Result<LimitTo, String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=NUMBER")?;
    let limit = Limit::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Limit::ALL.iter().map(|limit| limit.name()).collect();
        format!("no limit '{name}'; there are {}", names.join(", "))
    })?;
    let number = parse_number(value)?;
    bareverbs_sim::Limits::default().set(limit, number).map_err(|error| error.to_string())?;
    Ok(LimitTo { limit, number })
}

/// Parses a rate in bits a second, which may have the suffix k, M or G: powers of 1000, as rates of links have them.
pub(super) fn rate(text: &str) -> Result<EgressLimits, String> {
    let (digits, unit) =
        [('k', 1000), ('K', 1000), ('m', 1_000_000), ('M', 1_000_000), ('g', 1_000_000_000), ('G', 1_000_000_000)]
            .into_iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
            .unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number).ok_or_else(|| format!("'{text}' is no rate: 100M or 10G"))?;
    let rate = number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))?;
    EgressLimits::new(rate).ok_or_else(|| format!("less than {} bit/s", EgressLimits::MIN_RATE))
}

/// Parses a line of `--control` that can be executed before a client connects.
pub(crate) fn fault(text: &str) -> Result<ControlLine, String> {
    let line: ControlLine = text.parse().map_err(|error: ParseError| error.to_string())?;
    if line.act.lasts() { Ok(line) } else { Err("a reset, with which drivers begin, undoes it: use --control".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_lids_are_refused() {
        assert_eq!((lid("1"), lid("0xbeff"), sm_lid("0"), sm_lid("0xbfff")), (Ok(1), Ok(0xbeff), Ok(0), Ok(0xbfff)));
        for wrong in ["0", "0xbf00", "65536"] {
            assert!(lid(wrong).is_err(), "{wrong}");
        }
        assert_eq!(lid("0").unwrap_err(), "not between 1 and 0xbeff");
        assert_eq!(sm_lid("0xc000").unwrap_err(), "not between 0 and 0xbfff");
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!((mode("660"), mode("0777")), (Ok(0o660), Ok(0o777)));
        assert!(mode("1777").is_err() && mode("8").is_err() && mode("rw").is_err());
    }

    #[test]
    fn guids_are_parsed_in_the_formats_of_tools() {
        assert_eq!(guid("0x0200_0000_0000_0100"), Ok(0x0200_0000_0000_0100));
        assert_eq!(guid("0200:0000:0000:0100"), Ok(0x0200_0000_0000_0100));
        assert_eq!(guid("fe80:0:0:0"), Ok(0xfe80_0000_0000_0000));
        for wrong in ["x", "1:2:3", "1:2:3:4:5", "10000:0:0:0", "1::2:3", ""] {
            assert!(guid(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_are_powers_of_two_in_their_range() {
        assert_eq!(limit("qps=1024"), Ok(LimitTo { limit: Limit::QueuePairs, number: 1024 }));
        assert_eq!(limit("message=0x1000"), Ok(LimitTo { limit: Limit::Message, number: 4096 }));
        assert!(limit("qps=1000").unwrap_err().contains("512 or 1024"));
        assert!(limit("reads=256").unwrap_err().contains("between 1 and 128"));
        assert!(limit("queues=1").unwrap_err().contains("there are qps, "));
        assert!(limit("qps").unwrap_err().contains("NAME=NUMBER"));
        assert!(limit("qps=many").is_err());
    }

    #[test]
    fn rates_are_decimal() {
        assert_eq!([rate("10G"), rate("1500k")], [10_000_000_000, 1_500_000].map(|rate| Ok(EgressLimits::new(rate).unwrap())));
        assert_eq!(rate("999k"), Err("less than 1000000 bit/s".into()));
        for wrong in ["", "G", "+1G", "-1", "1.5G", "0x10", "1GG", "18446744074G"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn initial_faults_are_control_lines_that_survive_a_reset() {
        assert_eq!(fault("stick 1 0x800"), "stick 1 0x800".parse().map_err(|error: ParseError| error.to_string()));
        assert!(fault("health 1 7").unwrap_err().contains("--control"));
        assert!(fault("counts 1").unwrap_err().contains("--control"));
        assert!(fault("dance 1").unwrap_err().contains("no command 'dance'; there are link, "));
        assert_eq!(fault("stick 1").unwrap_err(), "as in: stick LID OPCODE");
    }
}
