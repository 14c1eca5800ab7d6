//! Memory that is registered: where it lies for the device, and who owns it meanwhile.

use core::mem::ManuallyDrop;
use core::ops::Deref;

use crate::platform::{AddressMap, OutOfRange};
use crate::shared::RegionSlot;
use crate::{Access, Lkey, MrHandle, MrInfo, Remote, Rkey, Sge};

/// Memory that a region owns for as long as it is registered.
///
/// # Safety
/// - The bytes stay where they are, and allocated, as long as the value is not dropped: also when it is moved or forgotten.
/// - As long as the value exists, no reference to the bytes does, neither shared nor unique: the device may write them at any
///   time. They are read and written by copies, through the value.
/// - [`AddressMap::extent`] says of each of the bytes where it lies for the device. For every other device whose verbs may be given
///   the value, these addresses name the same bytes, or nothing that it reaches. Bus addresses without an IOMMU are such, and I/O
///   virtual addresses that one allocator gives out for all devices.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no memory that a device may write",
    note = "slices and `Vec` are not: references to their bytes may exist while the device writes",
    note = "buffers are `bareverbs_vfio::DmaAllocation` on Linux, `bareverbs_mmio::IdentityBuffer` where addresses are the CPU's, and \
            `bareverbs_sim::in_process::SimBuffer` in tests"
)]
#[expect(unsafe_code, reason = "a wrong implementation would let the device write memory that is somebody else's")]
pub unsafe trait DmaBuffer: AddressMap {
    /// Returns the address of the first byte in the caller's address space.
    fn addr(&self) -> u64;
    /// Returns the length in bytes.
    fn len(&self) -> u64;
    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes out.
    ///
    /// # Errors
    /// The bytes are not all in the buffer.
    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange>;
    /// Copies bytes in.
    ///
    /// # Errors
    /// The bytes are not all in the buffer.
    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange>;
}

/// A registered buffer: `Verbs::reg_mr` makes it, `Verbs::dereg_mr` gives the buffer back.
///
/// A region that is dropped or forgotten stays registered, and its buffer is never freed: the device may still write it.
///
/// Bytes go in and out by copies. A reference to them is not to be had:
///
/// ```compile_fail,E0507
/// # use bareverbs::{DmaBuffer, Region};
/// fn take<B: DmaBuffer>(region: &Region<'_, B>) -> B {
///     **region
/// }
/// ```
///
/// ```compile_fail,E0596
/// # use bareverbs::{DmaBuffer, Region};
/// fn borrow<B: DmaBuffer>(mut region: Region<'_, B>) {
///     let buffer: &mut B = &mut region;
/// }
/// ```
///
/// A buffer that is only borrowed cannot be registered, since a region that is forgotten would outlive the borrow:
///
/// ```compile_fail,E0521
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{Access, DmaBuffer, PdHandle, Verbs};
/// # struct Borrowed<'a, B>(&'a mut B);
/// # impl<B: DmaBuffer> bareverbs::platform::AddressMap for Borrowed<'_, B> {
/// #     fn extent(&self, addr: u64) -> Option<bareverbs::platform::Extent> { self.0.extent(addr) }
/// # }
/// # unsafe impl<B: DmaBuffer> DmaBuffer for Borrowed<'_, B> {
/// #     fn addr(&self) -> u64 { self.0.addr() }
/// #     fn len(&self) -> u64 { self.0.len() }
/// #     fn read(&self, at: usize, into: &mut [u8]) -> Result<(), bareverbs::platform::OutOfRange> { self.0.read(at, into) }
/// #     fn write(&mut self, at: usize, from: &[u8]) -> Result<(), bareverbs::platform::OutOfRange> { self.0.write(at, from) }
/// # }
/// fn register<P: Provider, B: DmaBuffer + 'static>(verbs: &mut Verbs<'_, P>, pd: PdHandle, buffer: &mut B) {
///     let _ = verbs.reg_mr(pd, Borrowed(buffer), Access::LOCAL_WRITE);
/// }
/// ```
///
/// After it was deregistered, a region is no more:
///
/// ```compile_fail,E0382
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{DmaBuffer, Region, Verbs};
/// fn use_after<'s, P: Provider, B: DmaBuffer + 'static>(verbs: &mut Verbs<'s, P>, region: Region<'s, B>) {
///     let _ = verbs.dereg_mr(region);
///     let _ = region.sge(0, 8);
/// }
/// ```
///
/// A region refers to its slot in the tables of its `Verbs`, so that another `Verbs` does not take it for its own. The tables serve no other
/// verbs, and so no other device, as long as there is a region:
///
/// ```compile_fail,E0499
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{Access, DmaBuffer, Verbs, storage};
/// fn again<P: Provider, B: DmaBuffer + 'static>(first: P, second: P, buffer: B, tables: &mut storage![P; pds: 1, mrs: 1]) {
///     let mut verbs = Verbs::new(first, &mut *tables);
///     let Ok(pd) = verbs.alloc_pd() else { return };
///     let region = verbs.reg_mr(pd, buffer, Access::LOCAL_WRITE);
///     let _ = verbs.into_provider();
///     let mut other = Verbs::new(second, &mut *tables);
///     if let Ok(region) = region {
///         let _ = other.dereg_mr(region);
///     }
/// }
/// ```
#[must_use = "a region that is dropped stays registered, and its buffer is lost"]
pub struct Region<'s, B> {
    buffer: ManuallyDrop<B>,
    handle: MrHandle,
    lkey: Lkey,
    rkey: Rkey,
    base: u64,
    /// Slot in the tables of its `Verbs`.
    slot: &'s RegionSlot,
}

impl<'s, B: DmaBuffer> Region<'s, B> {
    pub(crate) fn new(buffer: B, handle: MrHandle, info: &MrInfo, slot: &'s RegionSlot) -> Self {
        let base = if info.access.contains(Access::ZERO_BASED) { 0 } else { info.addr };
        Self { buffer: ManuallyDrop::new(buffer), handle, lkey: info.lkey, rkey: info.rkey, base, slot }
    }

    pub(crate) const fn slot(&self) -> &'s RegionSlot {
        self.slot
    }

    pub(crate) fn into_buffer(self) -> B {
        ManuallyDrop::into_inner(self.buffer)
    }

    /// Gives the buffer back of a region that no command can end, since its device was lost: after the reset of the device. Its bytes
    /// are as the last access of the device left them.
    ///
    /// ```
    /// # use bareverbs::{Access, DmaBuffer};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let mut region = a.register(64, Access::LOCAL_WRITE)?;
    /// region.write(0, b"kept")?;
    /// a.remove();
    /// assert!(a.verbs.alloc_pd().is_err());
    /// // The card is in its slot again, and is reset.
    /// a.host.with_device(|device| {
    ///     device.set_removed(false);
    ///     device.reset();
    /// });
    /// // SAFETY: the device was reset, and nothing brings the old driver's keys back.
    /// let buffer = unsafe { region.into_buffer_after_reset() };
    /// let mut bytes = [0; 4];
    /// buffer.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"kept");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The verbs that registered the region have found their device lost, or are gone. Since then the device was reset (function-level
    /// reset, reset of the bus above it, loss of power), so that it has no key of the region any more.
    #[expect(unsafe_code, reason = "whether a device was reset is known to the machine alone")]
    pub unsafe fn into_buffer_after_reset(self) -> B {
        self.into_buffer()
    }

    /// Returns the handle of the region, for binding windows.
    pub const fn handle(&self) -> MrHandle {
        self.handle
    }

    /// Returns the key for SGEs.
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Returns the key for the peer.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns an SGE of `length` bytes from byte `at`. Posting checks that they lie inside the region.
    ///
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let mut source = a.register(64, Access::empty())?;
    /// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// source.write(8, b"hello")?;
    /// qa.qp.send.post(&SendWr::write(target.remote(32), &[source.sge(8, 5)]))?;
    /// qa.wait()?.result()?;
    /// let mut bytes = [0; 5];
    /// target.read(32, &mut bytes)?;
    /// assert_eq!(&bytes, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.base.wrapping_add(at), length, lkey: self.lkey }
    }

    /// Returns byte `at` as the peer names it.
    ///
    /// An example is at [`Self::sge`].
    pub const fn remote(&self, at: u64) -> Remote {
        Remote { addr: self.base.wrapping_add(at), rkey: self.rkey }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// The bytes are not all in the buffer.
    pub fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.buffer.write(at, from)
    }
}

impl<B: DmaBuffer> Deref for Region<'_, B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.buffer
    }
}

impl<B> core::fmt::Debug for Region<'_, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Region").field("handle", &self.handle).field("lkey", &self.lkey).finish_non_exhaustive()
    }
}

#[cfg(feature = "defmt")]
impl<B> defmt::Format for Region<'_, B> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "Region({}, {})", self.handle, self.lkey);
    }
}

/// An operation that was refused, and what had been handed in for it.
pub struct Refused<T, E> {
    /// Reason of the refusal.
    pub error: E,
    /// What was handed in; `None` if the device may still use it: then it is never freed.
    pub returned: Option<T>,
}

impl<T, E> Refused<T, E> {
    /// Returns why, and drops what was handed in. An error for `?`: [`Refused`] itself borrows what the value borrows.
    ///
    /// ```
    /// # use std::error::Error;
    /// # use bareverbs::backend::Provider;
    /// # use bareverbs::{QueuePair, Refused, Verbs};
    /// # fn end<'s, P: Provider<Error: Error + 'static>>(verbs: &mut Verbs<'s, P>, qp: QueuePair<'s, P>) -> Result<(), Box<dyn Error>> {
    /// verbs.destroy_qp(qp).map_err(Refused::into_error)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_error(self) -> E {
        self.error
    }
}

impl<T, E: core::fmt::Debug> core::fmt::Debug for Refused<T, E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).field("returned", &self.returned.is_some()).finish()
    }
}

#[cfg(feature = "defmt")]
impl<T, E: defmt::Format> defmt::Format for Refused<T, E> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "Refused({:?}, returned: {})", self.error, self.returned.is_some());
    }
}

impl<T, E: core::fmt::Display> core::fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: core::error::Error> core::error::Error for Refused<T, E> {}
