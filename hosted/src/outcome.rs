//! How a job ended: what the report of every job begins with.

use std::fmt;

use serde::Serialize;

/// How a job ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Whether everything succeeded.
    pub ok: bool,
    /// Whether Ctrl-C ended it early.
    pub interrupted: bool,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Outcome {
    /// A job that failed for this reason, if there is one, or that Ctrl-C ended, or that succeeded.
    pub const fn new(failure: Option<String>, interrupted: bool) -> Self {
        Self { ok: failure.is_none() && !interrupted, interrupted, failure }
    }

    /// A job with this result. An error after Ctrl-C is a consequence of it, not a failure.
    pub fn of(result: anyhow::Result<()>, interrupted: bool) -> Self {
        Self::new(result.err().filter(|_| !interrupted).map(|error| format!("{error:#}")), interrupted)
    }

    /// Adds a failure, behind the reason that there may be already.
    pub fn add_failure(&mut self, reason: impl fmt::Display) {
        let before = self.failure.take().map(|before| format!("{before}; ")).unwrap_or_default();
        *self = Self::new(Some(format!("{before}{reason}")), self.interrupted);
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_job_succeeds_fails_or_is_interrupted() {
        let as_json = |outcome: &Outcome| serde_json::to_string(outcome).unwrap();
        assert_eq!(as_json(&Outcome::of(Ok(()), false)), r#"{"ok":true,"interrupted":false}"#);
        assert_eq!(as_json(&Outcome::of(Err(anyhow!("stopped")), true)), r#"{"ok":false,"interrupted":true}"#);
        let mut failed = Outcome::of(Err(anyhow!("no card").context("a")), false);
        assert_eq!(as_json(&failed), r#"{"ok":false,"interrupted":false,"failure":"a: no card"}"#);
        failed.add_failure("no trace");
        assert_eq!(failed.failure.as_deref(), Some("a: no card; no trace"));
        let mut done = Outcome::of(Ok(()), false);
        done.add_failure("no trace");
        assert_eq!((done.ok, done.failure.as_deref()), (false, Some("no trace")));
    }
}
