//! Identifiers of objects that are only a number.

use std::collections::BTreeSet;

use bareverbs_mlx5_spec::CmdStatus;

/// Identifiers that are handed out, lowest free one first.
#[derive(Clone, Debug)]
pub(crate) struct IdAllocator {
    used: BTreeSet<u32>,
    first: u32,
    most: u32,
    next: u32,
}

impl IdAllocator {
    /// `most` numbers from `first` on.
    pub(crate) fn new(first: u32, most: u32) -> Self {
        Self { used: BTreeSet::new(), first, most, next: first }
    }

    pub(crate) fn len(&self) -> usize {
        self.used.len()
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.used.contains(&number)
    }

    /// A free number. The number freed last is not the next one, so that a use of it fails.
    pub(crate) fn allocate(&mut self) -> Result<u32, CmdStatus> {
        if u32::try_from(self.used.len()).is_ok_and(|len| len >= self.most) {
            return Err(CmdStatus::LimErr);
        }
        let end = self.first.saturating_add(self.most);
        let free = (self.next..end).chain(self.first..self.next).find(|number| !self.used.contains(number));
        let number = free.ok_or(CmdStatus::LimErr)?;
        self.next = if number + 1 < end { number + 1 } else { self.first };
        self.used.insert(number);
        Ok(number)
    }

    /// Frees a number.
    pub(crate) fn free(&mut self, number: u32) -> Result<(), CmdStatus> {
        if self.used.remove(&number) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }
}
