//! Why a command is refused.

use bareverbs_mlx5_spec::CmdStatus;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: CmdStatus,
    /// For the trace; a driver gets a number.
    pub(super) why: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: CmdStatus, why: &'static str) -> Self {
        Self { status, why }
    }
}

impl From<CmdStatus> for Refusal {
    fn from(status: CmdStatus) -> Self {
        Self { status, why: "" }
    }
}

/// What the function of a command returns.
pub(super) type Outcome = Result<(), Refusal>;
