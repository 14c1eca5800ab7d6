//! Errors that come with a remedy.

use std::fmt;

/// Why a card cannot be used, as text. It is printed with the remedy on a line of its own.
#[derive(Clone, Debug)]
pub struct CardError {
    /// The reason, with the address of the card.
    pub text: String,
    /// A command, a setting or an instruction; `None` if none is known.
    pub remedy: Option<String>,
}

impl CardError {
    /// Creates the error of the card called `name`, which the text names once.
    pub(super) fn new(name: &str, error: &impl fmt::Display, remedy: Option<String>) -> Self {
        let mut text = error.to_string();
        if !text.contains(name) {
            text = format!("{name}: {text}");
        }
        Self { text, remedy }
    }
}

impl fmt::Display for CardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "\n  remedy: {remedy}"))
    }
}

impl std::error::Error for CardError {}
