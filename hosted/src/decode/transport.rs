//! `--transport` of `bareverbs wqe decode`.

use bareverbs_decode::send::Transport;
use clap::builder::PossibleValue;

/// Transport of the queue pair that a WQE was posted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportArg(pub Transport);

impl clap::ValueEnum for TransportArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Transport::Rc), Self(Transport::Uc), Self(Transport::Ud), Self(Transport::Xrc)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            Transport::Rc => ("rc", "Reliable connection"),
            Transport::Uc => ("uc", "Unreliable connection"),
            Transport::Ud => ("ud", "Unreliable datagram"),
            Transport::Xrc => ("xrc", "Extended reliable connection, initiator"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}
