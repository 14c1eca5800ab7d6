//! The process that opened a device: a child that it forked has the same descriptors, and values that are not its own.

/// The process that made a value.
///
/// The memory of a device and its registers are not inherited by a child. Its copies of the values must do nothing: what they would
/// unmap, switch off or detach is the parent's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opener(u32);

impl Opener {
    /// Returns this process.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Returns whether this is still the process that made the value.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process that is not this one.
    pub(crate) const PARENT: Opener = Opener(1);

    #[test]
    fn a_process_knows_itself() {
        assert!(Opener::this().is_this() && !PARENT.is_this());
    }
}
