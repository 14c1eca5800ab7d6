//! What the server tells people, on standard error: no device waits for whoever reads it, or ends because nobody does.

use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use crate::writer::{WhenFull, Writer};

/// How long the end of the server waits for a terminal that takes nothing.
const PATIENCE: Duration = Duration::from_secs(2);

fn writer() -> Option<&'static Writer> {
    static WRITER: OnceLock<Option<Writer>> = OnceLock::new();
    WRITER.get_or_init(|| Writer::new("messages", Box::new(io::stderr()), WhenFull::Drop).ok()).as_ref()
}

/// Tells a line.
pub(crate) fn line(text: String) {
    match writer() {
        Some(writer) => writer.line(text),
        None => {
            // A reader that has gone wants no more.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Waits until all lines are told, unless nobody takes them.
pub(crate) fn finish() {
    if let Some(writer) = writer() {
        // There is nobody left to tell that it failed.
        let _ = writer.finish(PATIENCE);
    }
}
