//! `bareverbs wqe|cqe|eqe|command decode`: bytes to named fields.

pub mod input;
pub mod transport;

use std::process::ExitCode;

use anyhow::Result;
use bareverbs_decode::{Decoded, command, completion, event, receive, send};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_serve::{check_with_device, parse_number};

use self::input::InputError;
use crate::args::UsageError;
use crate::cli::{CommandArgs, InputArgs, WqeArgs};
use crate::output;

/// Decodes WQEs.
///
/// # Errors
/// The input cannot be read ([`InputError`]), or standard output cannot be written.
pub fn wqe(args: &WqeArgs) -> Result<ExitCode> {
    let transport = args.transport.0;
    decode_with(&args.input, |bytes| {
        if args.receive || args.shared {
            return vec![receive::decode(bytes, args.shared)];
        }
        let mut all = send::decode_all(bytes, transport);
        for decoded in &mut all {
            let from = bytes.get(decoded.offset..).unwrap_or_default();
            check_with_device(decoded, from, transport);
        }
        all
    })
}

/// Decodes completion queue entries.
///
/// # Errors
/// As [`wqe`].
pub fn cqe(args: &InputArgs) -> Result<ExitCode> {
    decode_with(args, completion::decode_all)
}

/// Decodes event queue entries.
///
/// # Errors
/// As [`wqe`].
pub fn eqe(args: &InputArgs) -> Result<ExitCode> {
    decode_with(args, event::decode_all)
}

/// Decodes the input or the output of a firmware command.
///
/// # Errors
/// As [`wqe`], or [`UsageError`] if there is no such command.
pub fn firmware_command(args: &CommandArgs) -> Result<ExitCode> {
    let Some(name) = &args.output_of else {
        return decode_with(&args.input, |bytes| vec![command::decode_input(bytes)]);
    };
    let opcode = opcode(name).ok_or_else(|| UsageError::new(format!("{name}: no such command")))?;
    decode_with(&args.input, |bytes| vec![command::decode_output(opcode, args.op_mod, bytes)])
}

fn opcode(name: &str) -> Option<CmdOpcode> {
    let by_name = CmdOpcode::ALL.iter().find(|opcode| opcode.name().eq_ignore_ascii_case(name)).copied();
    by_name.or_else(|| CmdOpcode::from_code(parse_number(name).ok()?))
}

fn decode_with(args: &InputArgs, decode: impl Fn(&[u8]) -> Vec<Decoded>) -> Result<ExitCode> {
    let bytes = read(args)?;
    let decoded = decode(&bytes);
    let has_errors = decoded.iter().any(Decoded::has_errors);
    output::write(&text(&decoded, args.output.json)?)?;
    Ok(if has_errors { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(args: &InputArgs) -> Result<Vec<u8>, InputError> {
    match (&args.file, args.hex.as_slice()) {
        (Some(file), _) => input::from_file(file, args.raw),
        (None, [dash]) if dash == "-" => input::from_stdin(args.raw),
        (None, words) => input::from_hex(&words.join(" ")),
    }
}

fn text(decoded: &[Decoded], json: bool) -> Result<String> {
    if json {
        return Ok(serde_json::to_string_pretty(decoded)? + "\n");
    }
    Ok(decoded.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}
