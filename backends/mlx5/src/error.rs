//! Errors of the driver.

use core::fmt;

use bareverbs::QpState;
use bareverbs::error::{DeviceError, DeviceLoss, Errno};
use bareverbs::platform::OutOfRange;
use bareverbs_mlx5_spec::{CmdDeliveryStatus, CmdOpcode, CmdStatus, InitialSeg, Layout, MAD_BUSY, SubnetAttribute};

use crate::config::ROCE;
use crate::log::format_as;

/// Declares an error: of each variant its facts, its errno, and its text, which names facts, or what is made of them behind it; then the
/// variants that carry another error, which says all.
macro_rules! errors {
    (
        $(#[$ometa:meta])*
        pub enum $error:ident {
            $(
                $(#[$meta:meta])*
                $name:ident $({ $($(#[$fmeta:meta])* $fact:ident: $ty:ty),+ $(,)? })? $(= $number:literal)? => $errno:expr, $text:literal $(, $arg:ident = $value:expr)*;
            )+
        }
        $(inner { $($(#[$imeta:meta])* $inner:ident($ity:ty);)+ })?
    ) => {
        $(#[$ometa])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum $error {
            $($(#[$meta])* $name $({ $($(#[$fmeta])* $fact: $ty),+ })? $(= $number)?,)+
            $($($(#[$imeta])* $inner($ity),)+)?
        }

        impl $error {
            /// Returns the errno that the verbs give for it.
            #[expect(unused_variables, reason = "most errors have one errno, whatever their facts")]
            pub fn errno(&self) -> bareverbs::error::Errno {
                use bareverbs::error::Errno;
                match *self {
                    $(Self::$name $({ $($fact),+ })? => $errno,)+
                    $($(Self::$inner(inner) => inner.errno(),)+)?
                }
            }
        }

        impl core::fmt::Display for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Self::$name $({ $($fact),+ })? => write!(f, $text $(, $arg = $value)*),)+
                    $($(Self::$inner(inner) => inner.fmt(f),)+)?
                }
            }
        }

        impl core::error::Error for $error {}
    };
}
#[cfg(feature = "ethernet")]
pub(crate) use errors;

errors! {
    /// An error of the driver, with its facts.
    ///
    /// Small facts come first, so that all errors have eight bytes. No number is 0, which a result without error then begins with: that is the
    /// shortest comparison.
    #[repr(u8)]
    pub enum Error {
        /// The memory handed in is smaller than the arena that the type promises ([`Mlx5::ARENA`](crate::Mlx5::ARENA)).
        ArenaTooSmall {
            /// Bytes handed in.
            have: u32
        } = 1 => Errno::Einval, "the memory has {have} bytes, fewer than were promised; give it `Mlx5::ARENA` bytes";
        /// The arena is too small: it has not that many free pages, or they are not contiguous.
        ArenaFull {
            /// Pages that are free, at most 2^24 - 1 are reported.
            free: PageCount,
            /// Pages requested.
            pages: u32
        } => Errno::Enomem, "{pages} contiguous pages are needed, the arena has {free:?} free ones; make it larger (a parameter of `Mlx5`)";
        /// The machine has fewer pages for the firmware than that wants. None of them was given.
        TooFewPages {
            /// Pages that are left, at most 2^24 - 1 are reported.
            available: PageCount,
            /// Pages that the firmware wants.
            wanted: u32
        } => Errno::Enomem, "the card's firmware wants {wanted} pages, {available:?} are left ({has} MiB); give the driver {lacks} MiB more for \
            the firmware (`Machine::pages`)", has = available.get() / 256, lacks = wanted.saturating_sub(available.get()).div_ceil(256);
        /// [`Config::firmware_pages`](crate::Config::firmware_pages) allows the firmware fewer pages than it wants. None of them was
        /// given.
        PageLimit {
            /// Pages that it may have besides those that it has, at most 2^24 - 1 are reported.
            allowed: PageCount,
            /// Pages that the firmware wants.
            wanted: u32
        } => Errno::Enomem, "the card's firmware wants {wanted} pages, {allowed:?} more are allowed; raise `Config::firmware_pages` by {lacks}",
            lacks = wanted.saturating_sub(allowed.get());
        /// The machine's source gave a page for the firmware that does not begin at a multiple of 4096. The firmware was not given it.
        UnalignedPage {
            /// Bytes from the multiple before it.
            beyond: u16
        } => Errno::Einval, "a page for the firmware begins {beyond} bytes after a multiple of 4096 (`PageSource::allocate`)";
        /// Every doorbell record is in use.
        RecordsFull => Errno::Enomem, "every doorbell record is in use; destroy queue pairs or completion queues";
        /// The registers handed in are fewer than the initialization segment at the start of BAR0.
        BarTooSmall {
            /// Bytes handed in.
            have: u32
        } => Errno::Einval, "BAR0 has {have} bytes, the initialization segment alone has {need}: map all of BAR0 (`Machine::registers`)",
            need = InitialSeg::SIZE;
        /// An access outside the memory that the integrator handed in.
        OutOfRange {
            /// Byte offset.
            offset: u32
        } => Errno::Eio, "byte {offset} ({offset:#x}) is outside the memory";
        /// The device did not finish its initialization in time.
        NotInitialized => Errno::Etimedout, "the device did not finish its initialization in time; give it longer (`Config::boot_timeout`, `init_timeout`), or start \
            it cold (power off and on)";
        /// The device has an unsupported revision of the command interface.
        CommandInterface {
            /// Revision of the command interface; the driver supports 5.
            revision: u16
        } => Errno::Eopnotsupp, "command interface revision {revision} instead of 5; update the card's firmware";
        /// The device describes an impossible command queue.
        CommandQueue {
            /// log2 of its entries.
            log_size: u8,
            /// log2 of the bytes from entry to entry.
            log_stride: u8
        } => Errno::Eio, "impossible command queue: 2^{log_size} entries, 2^{log_stride} bytes apart; \
            the BAR is not that of an mlx5 function, or its firmware is damaged";
        /// The device refused a command.
        CommandStatus {
            /// Status ([`CmdStatus`]).
            status: u8,
            /// Opcode.
            opcode: u16,
            /// The firmware's own code.
            syndrome: u32
        } => status_errno(status), "{name:?} ({opcode:#x}) refused: {reason} ({status:#x}), syndrome {syndrome:#x}", name = CmdName(opcode),
            reason = CmdStatus::from_code(u32::from(status)).map_or("unknown status", CmdStatus::name);
        /// The device could not take a command.
        CommandDelivery {
            /// Delivery status ([`CmdDeliveryStatus`]).
            status: u8,
            /// Opcode.
            opcode: u16
        } => Errno::Eio, "{name:?} ({opcode:#x}) not delivered: {reason} ({status:#x})", name = CmdName(opcode),
            reason = CmdDeliveryStatus::from_code(u32::from(status)).map_or("unknown status", CmdDeliveryStatus::name);
        /// A command timed out. The device is lost until a reset: it may still execute the command, so that no other is sent, and
        /// keeps its memory. Every later call fails with this error too.
        CommandTimeout {
            /// Opcode.
            opcode: u16
        } => Errno::Etimedout, "{name:?} ({opcode:#x}) timed out; the device is lost until a reset", name = CmdName(opcode);
        /// Registers read as all ones: the device was removed, or is in a reset.
        DeviceGone => Errno::Enodev, "the device is gone: its registers read as all ones";
        /// The device was reset, or its interface turned off, and not by this driver: it does not know the command queue any more, nor any object.
        /// Only a new bring-up makes it usable.
        DeviceReset => Errno::Eio, "the device was reset from outside: nothing works until a new bring-up";
        /// The firmware reported a failure after which nothing works until a reset.
        DeviceFatal {
            /// Health syndrome.
            syndrome: u8
        } => Errno::Eio, "the firmware stopped (health syndrome {syndrome:#x}): nothing works until a reset";
        /// The device offers no supported interface step sequence ID (ISSI).
        Issi {
            /// Bit n: step n.
            supported: u32
        } => Errno::Eopnotsupp, "no interface step in common: the device offers {supported:#x}; update the card's firmware";
        /// The port is of a kind that the driver does not drive: without the feature `roce`, that is InfiniBand alone.
        PortType {
            /// Type of the port (`port_type` of the capabilities).
            port_type: u8
        } => Errno::Eopnotsupp, "port type {port_type} is not {kinds}; set the port's mode (`mstconfig set LINK_TYPE_P1=1`), then reset the \
            card{or}", kinds = if ROCE { "InfiniBand, nor Ethernet" } else { "InfiniBand" },
            or = if ROCE { "" } else { ", or build the driver with its feature `roce`" };
        /// The port is an Ethernet port, and the card offers no RoCEv2 on it.
        NoRoce => Errno::Eopnotsupp, "the port is an Ethernet port without RoCEv2; turn it on (`mstconfig set ROCE_CONTROL=2`), then reset the card";
        /// The port is an Ethernet port, and has no MAC address: the physical function has given its virtual function none.
        NoMacAddress => Errno::Eopnotsupp, "the port has no MAC address; give the virtual function one on its host (`ip link set PF vf N mac ADDRESS`; of a \
            BlueField on the DPU, `devlink port function set`), then bring it up again";
        /// No such port: the driver uses port 1, which is all that a function of a ConnectX-4 or later has. The other port of a card is another
        /// function; only that of a Connect-IB is a second port of the same function, and not driven.
        NoPort {
            /// The port requested.
            port: u8
        } => Errno::Einval, "no port {port}: a function has port 1, another port of the card is another function";
        /// The port needs a global route (GRH) on every path ([`PortAttr::grh_required`](bareverbs::PortAttr::grh_required)).
        GrhRequired => Errno::Einval, "the port requires a global route (GRH) on every path: give the GIDs of both ends (`AddressVector::grh`)";
        /// The path of a connection names an empty entry of an Ethernet port's GID table.
        NoGid {
            /// The entry ([`GlobalRoute::sgid_index`](bareverbs::GlobalRoute::sgid_index)).
            index: u8
        } => Errno::Einval, "entry {index} of the port's GID table is empty: set it (`set_gid`), or name another (`GlobalRoute::sgid_index`)";
        /// The path of a connection begins at an IPv4 address and leads to one of IPv6, or the other way round.
        GidFamily {
            /// The entry of the own address ([`GlobalRoute::sgid_index`](bareverbs::GlobalRoute::sgid_index)).
            index: u8
        } => Errno::Einval, "of entry {index} of the port's GID table and the peer's GID one is an IPv4 address and the other is not: name another entry \
            (`GlobalRoute::sgid_index`)";
        /// The output of a command contains an impossible number.
        BadAnswer {
            /// Opcode.
            opcode: u16,
            /// The number.
            value: u32
        } => Errno::Ebadmsg, "{name:?} ({opcode:#x}) returned {value:#x}, which is impossible", name = CmdName(opcode);
        /// The management agent of the port did not answer a question (MAD_IFC).
        MadStatus {
            /// Attribute ([`SubnetAttribute`]).
            attribute: u16,
            /// Status (IBTA volume 1, 13.4.7).
            status: u16
        } => if status & MAD_BUSY != 0 { Errno::Ebusy } else { Errno::Eio }, "the port's management agent did not answer {name}: {reason} \
            (status {status:#06x})", name = SubnetAttribute::from_code(u32::from(attribute)).map_or("an attribute", SubnetAttribute::name),
            reason = mad_reason(status);
        /// The caller's map has no device address for a page of the region.
        Unmapped {
            /// The page: how many of 4096 bytes lie between the start of the region and the address without one.
            page: u32
        } => Errno::Efault, "no device address for page {page} of the region";
        /// Address and device address of a page differ in their low bits, or a contiguous extent ends within a page.
        Misaligned => Errno::Einval, "addresses and device addresses of the region lie differently in their pages";
        /// The firmware requested pages for another function, whose driver gives them.
        ForeignPages {
            /// The function.
            function: u16
        } => Errno::Eopnotsupp, "the firmware wants pages for function {function}, which its own driver has to give";
        /// A request exceeds a limit of the device or of the driver.
        LimitExceeded {
            /// The maximum.
            limit: u32
        } => Errno::Einval, "more than the limit of {limit}: ask for less";
        /// A table of the port, that of its GIDs or of its P_Keys, has no such entry.
        NoEntry {
            /// How many it has.
            entries: u16
        } => Errno::Einval, "no entry has this index, the port's table has {entries}, from 0 on";
        /// The device does not offer the feature, or the driver does not support it.
        Unsupported {
            /// The feature.
            feature: Feature
        } => Errno::Eopnotsupp, "not supported: {feature}", feature = feature.text();
        /// The function is that of the card's own processor (BlueField's Arm side).
        EmbeddedCpu => Errno::Eopnotsupp, "not supported: the function of the card's own processor (BlueField); use the function that the host sees";
        /// No command performs this transition of a queue pair.
        Transition {
            /// From.
            from: QpState,
            /// To.
            to: QpState
        } => Errno::Einval, "no command from {from:?} to {to:?}";
        /// The caller's hook stopped the bring-up.
        Stopped => Errno::Eintr, "stopped by the caller";
        /// The firmware kept pages.
        PagesKept {
            /// How many.
            pages: u32
        } => Errno::Ebusy, "the firmware kept {pages} pages; reset the function before their memory is used again";
    }
}

// What functions return in two registers, also of 32 bits.
const _: () = assert!(size_of::<Result<(), Error>>() == 8);

/// Returns a number of bytes, at most 2^32 - 1.
pub(crate) const fn capped(bytes: usize) -> u32 {
    if bytes as u64 > u32::MAX as u64 { u32::MAX } else { bytes as u32 }
}

/// A number of pages in an error, at most 2^24 - 1: a greater one becomes that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageCount([u8; 3]);

impl PageCount {
    /// Returns the number.
    pub const fn get(self) -> u32 {
        let [low, middle, high] = self.0;
        u32::from_le_bytes([low, middle, high, 0])
    }
}

impl From<u32> for PageCount {
    fn from(pages: u32) -> Self {
        let [low, middle, high, _] = pages.min(0xff_ffff).to_le_bytes();
        Self([low, middle, high])
    }
}

format_as!([] PageCount, "{}", |this| this.get());

/// The opcode of a firmware command. Prints as its published name, or `unknown command`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CmdName(pub u16);

impl fmt::Debug for CmdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CmdOpcode::from_code(u32::from(self.0)).map_or("unknown command", CmdOpcode::name))
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CmdName {
    fn format(&self, f: defmt::Formatter<'_>) {
        match CmdOpcode::from_code(u32::from(self.0)) {
            Some(opcode) => defmt::write!(f, "{}", opcode),
            None => defmt::write!(f, "unknown command"),
        }
    }
}

/// A feature that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Feature {
    /// XRC: the device lacks it, or what it needs (ISSI 1, completions of version 1).
    Xrc,
    /// Memory windows.
    MemoryWindows,
    /// 8-byte atomics.
    Atomics,
    /// Automatic path migration: alternate paths, and arming them.
    PathMigration,
    /// A call that the driver does not have.
    Call,
}

impl Feature {
    /// Returns what is missing, for a text.
    const fn text(self) -> &'static str {
        match self {
            Self::Xrc => "XRC",
            Self::MemoryWindows => "memory windows",
            Self::Atomics => "8-byte atomics",
            Self::PathMigration => "path migration",
            Self::Call => "a call that the driver does not have",
        }
    }
}

impl DeviceError for Error {
    fn may_use_memory(&self) -> bool {
        matches!(
            self,
            Self::CommandTimeout { .. }
                | Self::BadAnswer { .. }
                | Self::DeviceGone
                | Self::DeviceReset
                | Self::DeviceFatal { .. }
        )
    }

    fn unsupported() -> Self {
        Self::Unsupported { feature: Feature::Call }
    }

    fn errno(&self) -> Errno {
        Self::errno(self)
    }
}

impl Error {
    /// Returns whether the device refused a command.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self, Self::CommandStatus { .. })
    }

    /// Returns what this error says of a device that is lost because of it.
    pub(crate) const fn loss(&self) -> DeviceLoss {
        match self {
            Self::DeviceGone => DeviceLoss::Gone,
            Self::DeviceReset => DeviceLoss::Reset,
            Self::DeviceFatal { .. } => DeviceLoss::Fatal,
            _ => DeviceLoss::NoAnswer,
        }
    }
}

impl From<OutOfRange> for Error {
    #[inline(always)]
    fn from(OutOfRange { offset, .. }: OutOfRange) -> Self {
        Self::OutOfRange { offset: capped(offset) }
    }
}

/// Returns what a status of a management datagram says (IBTA volume 1, 13.4.7).
const fn mad_reason(status: u16) -> &'static str {
    match status >> 2 & 7 {
        _ if status & MAD_BUSY != 0 => "it is busy",
        1 => "it has another version of the class",
        2 => "it has no such method",
        3 => "it has no such attribute for the method",
        7 => "an invalid value in the attribute or its modifier",
        _ => "a status of its own",
    }
}

/// Returns Linux's errno for a command status, except that a full device is ENOMEM like a full table: a retry helps only after
/// something was destroyed.
fn status_errno(status: u8) -> Errno {
    match CmdStatus::from_code(u32::from(status)) {
        Some(CmdStatus::ResBusy) => Errno::Ebusy,
        Some(CmdStatus::LimErr | CmdStatus::NoResources) => Errno::Enomem,
        Some(
            CmdStatus::BadOp
            | CmdStatus::BadParam
            | CmdStatus::BadRes
            | CmdStatus::BadResState
            | CmdStatus::IxErr
            | CmdStatus::BadQpState
            | CmdStatus::BadPkt
            | CmdStatus::BadSize,
        ) => Errno::Einval,
        _ => Errno::Eio,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::string::{String, ToString};

    use super::*;

    /// A driver without a call says so by the error of every other missing feature.
    #[test]
    fn a_missing_feature_and_a_refused_datagram_are_named() {
        let features = [Feature::Xrc, Feature::MemoryWindows, Feature::Atomics, Feature::PathMigration, Feature::Call];
        let texts: BTreeSet<String> = features.map(|feature| Error::Unsupported { feature }.to_string()).into();
        assert_eq!(texts.len(), features.len());
        let unsupported = <Error as DeviceError>::unsupported();
        assert_eq!((unsupported, unsupported.errno()), (Error::Unsupported { feature: Feature::Call }, Errno::Eopnotsupp));
        assert!(!unsupported.may_use_memory());
        // Status of a MAD: busy is bit 0, the reason bits 2 to 4; what a class says is above (IBTA volume 1, 13.4.7).
        let reasons = [0x1, 0x4, 0x8, 0xc, 0x1c, 0x100].map(mad_reason);
        assert_eq!(BTreeSet::from(reasons).len(), reasons.len());
        assert_eq!((mad_reason(0x1d), mad_reason(0x10c)), (mad_reason(0x1), mad_reason(0xc)));
    }

    #[test]
    fn numbers_that_are_too_great_become_the_greatest() {
        for (pages, shown) in
            [(0, 0), (0x123_456, 0x123_456), (0xff_ffff, 0xff_ffff), (0x100_0000, 0xff_ffff), (u32::MAX, 0xff_ffff)]
        {
            assert_eq!(PageCount::from(pages).get(), shown);
        }
        let most = u32::MAX as usize;
        assert_eq!([0, 4096, most, most.saturating_add(1), usize::MAX].map(capped), [0, 4096, u32::MAX, u32::MAX, u32::MAX]);
    }
}
