//! MSI-X vectors as event descriptors.

use std::fs::File;
use std::io::{self, Write as _};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_UNMASK, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE,
};

/// One vector.
#[derive(Debug, Default)]
struct Vector {
    descriptor: Option<File>,
    masked: bool,
    /// Raised while nobody could be told.
    pending: bool,
}

/// All vectors of one function.
#[derive(Debug)]
pub(crate) struct Vectors {
    vectors: Vec<Vector>,
}

impl Vectors {
    pub(crate) fn new(count: u16) -> Self {
        Self { vectors: (0..count).map(|_| Vector::default()).collect() }
    }

    /// Raises a vector: now, or as soon as it has a descriptor and is not masked.
    pub(crate) fn raise(&mut self, vector: u16) {
        if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
            vector.pending = true;
            vector.deliver();
        }
    }

    /// Forgets descriptors and what is pending.
    pub(crate) fn clear(&mut self) {
        self.vectors.fill_with(Vector::default);
    }

    /// Does what SET_IRQS asks for the vectors from `start` on. `descriptors` are as many as `count`, or none.
    pub(crate) fn set(&mut self, flags: u32, start: u32, count: u32, descriptors: Vec<File>) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let action = flags & (VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_ACTION_UNMASK | VFIO_IRQ_SET_ACTION_TRIGGER);
        let none = flags & VFIO_IRQ_SET_DATA_NONE != 0;
        if none && count == 0 && action == VFIO_IRQ_SET_ACTION_TRIGGER {
            self.clear();
            return Ok(());
        }
        let start = usize::try_from(start).map_err(|_| wrong())?;
        let end = start.checked_add(usize::try_from(count).map_err(|_| wrong())?).ok_or_else(wrong)?;
        let range = self.vectors.get_mut(start..end).ok_or_else(wrong)?;
        match action {
            VFIO_IRQ_SET_ACTION_TRIGGER if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 => {
                if !descriptors.is_empty() && descriptors.len() != range.len() {
                    return Err(wrong());
                }
                let mut descriptors = descriptors.into_iter();
                for vector in range {
                    vector.descriptor = descriptors.next();
                    vector.deliver();
                }
            }
            // The client tests its own wiring.
            VFIO_IRQ_SET_ACTION_TRIGGER if none => range.iter_mut().for_each(|vector| {
                vector.pending = true;
                vector.deliver();
            }),
            VFIO_IRQ_SET_ACTION_MASK if none => range.iter_mut().for_each(|vector| vector.masked = true),
            VFIO_IRQ_SET_ACTION_UNMASK if none => range.iter_mut().for_each(|vector| {
                vector.masked = false;
                vector.deliver();
            }),
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

impl Vector {
    fn deliver(&mut self) {
        if let (true, false, Some(descriptor)) = (self.pending, self.masked, self.descriptor.as_mut()) {
            self.pending = false;
            // A client that closed its end gets no interrupts: it is about to disconnect.
            let _ = descriptor.write_all(&1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use super::*;

    const EVENT: u32 = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;

    /// A descriptor for the device, and what was written to it so far.
    fn wire() -> (File, impl FnMut() -> usize) {
        let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let count = move || {
            let mut bytes = [0; 256];
            here.read(&mut bytes).map_or(0, |len| len / 8)
        };
        (File::from(OwnedFd::from(there)), count)
    }

    #[test]
    fn a_vector_raised_early_is_told_when_its_descriptor_comes() {
        let mut vectors = Vectors::new(4);
        let (descriptor, mut told) = wire();
        vectors.raise(2);
        vectors.set(EVENT, 2, 1, Vec::new()).unwrap();
        vectors.set(EVENT, 2, 1, vec![descriptor]).unwrap();
        assert_eq!(told(), 1);
        vectors.raise(2);
        vectors.raise(2);
        vectors.raise(9);
        assert_eq!(told(), 2);
    }

    #[test]
    fn a_masked_vector_waits() {
        let mut vectors = Vectors::new(1);
        let (descriptor, mut told) = wire();
        vectors.set(EVENT, 0, 1, vec![descriptor]).unwrap();
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK, 0, 1, Vec::new()).unwrap();
        vectors.raise(0);
        assert_eq!(told(), 0);
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_UNMASK, 0, 1, Vec::new()).unwrap();
        assert_eq!(told(), 1);
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 0, 0, Vec::new()).unwrap();
        vectors.raise(0);
        assert_eq!(told(), 0);
    }

    #[test]
    fn ranges_beyond_the_vectors_are_refused() {
        let mut vectors = Vectors::new(4);
        assert!(vectors.set(EVENT, 3, 2, Vec::new()).is_err());
        assert!(vectors.set(EVENT, u32::MAX, u32::MAX, Vec::new()).is_err());
        assert!(vectors.set(EVENT, 0, 2, vec![wire().0]).is_err());
    }
}
