//! Every public type of core and driver has `defmt::Format` and `Debug`. The compiler checks the lists; the sources are
//! searched for types that are in no list.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bareverbs::backend::*;
use bareverbs::error::*;
use bareverbs::platform::*;
use bareverbs::storage::*;
use bareverbs::{kind, *};
use bareverbs_mlx5_spec::{CmdDeliveryStatus, CmdOpcode, CmdStatus, CqeSyndrome, EventType, QpcState};
use bareverbs_mmio::*;
use bareverbs_sim::in_process::{SimBuffer, SimPlatform};
use bareverbs_tests::Driver;
use log_tests as _;

/// An exception: the types that a macro defines are exported, or named where it is called.
const MACRO: (&str, &str) = ("$name", "a macro's");

const fn can_be_logged<T: defmt::Format + core::fmt::Debug>() {}

/// The names of types that can be logged. One that cannot does not compile.
macro_rules! logged {
    ($($type:ty),+ $(,)?) => {{
        const { $(can_be_logged::<$type>();)+ }
        [$(name_of(stringify!($type))),+]
    }};
}

/// Returns a type without its path and its parameters.
fn name_of(written: &str) -> &str {
    let path = written.split('<').next().unwrap_or(written).trim();
    path.rsplit("::").next().unwrap_or(path).trim()
}

/// What the sources of a crate define and export.
#[derive(Default)]
struct Found {
    types: BTreeSet<String>,
    traits: BTreeSet<String>,
}

fn identifier(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().unwrap_or("")
}

impl Found {
    fn read(&mut self, file: &Path) {
        let text = fs::read_to_string(file).unwrap();
        for line in text.lines().map(str::trim_start) {
            if let Some(name) = ["pub struct ", "pub enum ", "pub union "].iter().find_map(|start| line.strip_prefix(start)) {
                self.types.insert(identifier(name).to_owned());
            }
            if let Some(name) = ["pub trait ", "pub unsafe trait "].iter().find_map(|start| line.strip_prefix(start)) {
                self.traits.insert(identifier(name).to_owned());
            }
        }
        if file.ends_with("src/lib.rs") {
            // What macros define is found where it is exported.
            for exported in text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
                let names = exported.split(['{', '}', ',', ':']).map(str::trim);
                self.types.extend(names.filter(|name| name.starts_with(char::is_uppercase)).map(str::to_owned));
            }
        }
    }

    /// Returns the types that are in none of the lists.
    fn missing(mut self, folder: &str, listed: &[&str], exceptions: &[(&str, &str)]) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join("src");
        let mut folders = vec![root];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path: PathBuf = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                match (path.is_dir(), name.as_str()) {
                    (_, "tests" | "tests.rs" | "mock.rs" | "test_memory.rs") => {}
                    (true, _) => folders.push(path),
                    (false, _) => self.read(&path),
                }
            }
        }
        assert!(self.types.len() >= listed.len().max(8), "{folder}: {:?}", self.types);
        for name in listed.iter().chain(exceptions.iter().map(|(name, _)| name)) {
            assert!(self.types.contains(*name), "{name} of {folder} is listed and is no public type");
        }
        let excepted: Vec<_> = exceptions.iter().map(|(name, _)| *name).collect();
        let known = |name: &String| listed.contains(&name.as_str()) || excepted.contains(&name.as_str());
        self.types.into_iter().filter(|name| !known(name) && !self.traits.contains(name)).collect()
    }
}

/// Of the layouts: what errors and lines carry.
const _: () = {
    can_be_logged::<CmdOpcode>();
    can_be_logged::<CmdStatus>();
    can_be_logged::<CmdDeliveryStatus>();
    can_be_logged::<CqeSyndrome>();
    can_be_logged::<EventType>();
    can_be_logged::<QpcState>();
};

#[test]
fn of_the_core() {
    type E = bareverbs_mlx5::Error;
    let listed = logged![
        Access,
        AddressHandle,
        AddressPart,
        AddressVector,
        AllocFastMrError<E>,
        AllocMwError<E>,
        AllocPdError<E>,
        AnswerFault,
        AsyncEvent,
        AtomicOp,
        AtomicOpcode,
        AttachMcastError<E>,
        BadWr<PostSendError>,
        BindOp,
        BindRefused,
        BindType1Error,
        Binding,
        Completion,
        CompletionEvent,
        CompletionQueue<'static, Driver>,
        Completions<'static, Driver>,
        CoreToken,
        kind::Cq,
        CqHandle,
        CqInfo,
        CqModeration,
        Cqn,
        CreateAhError<E>,
        CreateCqError<E>,
        CreateQpError<E>,
        CreateQpParams<'static, Driver>,
        CreateXrcQpParams<'static, Driver>,
        CreateXrcSrqParams<'static, Driver>,
        CreatedCq<Driver>,
        CreatedQp<Driver>,
        DataOp,
        DataOpcode,
        DatagramOp<'static>,
        DeallocMwError<E>,
        DeallocPdError<E>,
        DeregMrError<E>,
        DestroyCqError<E>,
        DestroyQpError<E>,
        Destination,
        DetachMcastError<E>,
        DeviceAttr,
        DeviceLoss,
        DrainError<E>,
        Drained,
        EncodedAddress,
        Errno,
        Event,
        Extent,
        FastMr,
        FastMrInfo,
        FastReg<'static>,
        FastRegError,
        FastRegion,
        Gid,
        GidEntry,
        GlobalRoute,
        Guid,
        Held,
        Handle<kind::Qp>,
        Instant,
        InterruptHandler<'static, Driver>,
        Interrupted,
        KeyTag,
        Lid,
        LinkFault,
        LinkLayer,
        Lkey,
        Mac,
        MaskedAtomics,
        MaskedOp,
        MaskedWr,
        Peek,
        Machine<SimPlatform>,
        ModifyCqError<E>,
        ModifyQpError<E>,
        kind::Mr,
        MrChange,
        MrHandle,
        MrInfo,
        MrRequest<'static>,
        Mtu,
        kind::Mw,
        Type1Bind,
        MwHandle,
        MwInfo,
        MwType,
        MwType2,
        NotifyCqError,
        OffsetMap,
        OutOfRange,
        PathMigState,
        Payload<'static>,
        kind::Pd,
        PdHandle,
        PhysState,
        PollCqError,
        PollEventError<E>,
        PortAttr,
        PortState,
        PostRecvError,
        PostSendError,
        Psn,
        Qkey,
        kind::Qp,
        QpAttr,
        QpAttrMask,
        QpCap,
        QpHandle,
        QpInfo,
        QpInit,
        QpRings<8, 4>,
        QpState,
        QpType,
        Qpn,
        QueryError<E>,
        QueryQpError<E>,
        RawCompletion,
        RawKind,
        QueuePair<'static, Driver>,
        RecvQueue<'static, Driver>,
        RecvWr<'static>,
        Refused<SimBuffer, AllocPdError<E>>,
        RegMrError<E>,
        RegOp<'static>,
        Region<'_, SimBuffer>,
        Remote,
        ReregMrError<E>,
        ResizeCqError<E>,
        RingSizes,
        RingsView<'static>,
        Rkey,
        SendBatch<'static, Driver>,
        SendFlags,
        ConnectedOp<'static>,
        SendOp<'static>,
        SendQueue<'static, Driver>,
        SendWr<'static>,
        SetGidError<E>,
        Sge,
        SgeFault,
        Source,
        RingLayout,
        RingToken,
        StaleHandle,
        Storage<'static, Driver, 1, 1, 1, 1, 1>,
        StorageView<'static, Driver>,
        BoxedQpRings,
        BoxedSrqEntries,
        BoxedStorage<'static, Driver>,
        Capacities,
        TakeError,
        TooFewPages,
        Verbs<'static, Driver>,
        WaitActiveError<E>,
        WcData,
        WcOpcode,
        WcError,
        WcStatus,
        WithSource<'static, Driver>,
        CreateSrqError<E>,
        AllocXrcdError<E>,
        CreatedSrq<Driver>,
        QueriedQp,
        DeallocXrcdError<E>,
        DestroySrqError<E>,
        ArmSrqError<E>,
        QuerySrqError<E>,
        SharedReceiveQueue<'static, Driver>,
        NoReceives,
        SharedReceives,
        XrcDomain<Driver>,
        kind::Srq,
        SrqCap,
        SrqEntries<8>,
        SrqEntriesView<'static>,
        SrqHandle,
        SrqInfo,
        SrqInit,
        SrqSizes,
        Srqn,
        Xrcdn,
    ];
    assert_eq!(
        Found::default().missing("core", &listed, &[MACRO, ("MCAST_GROUPS", "a number"), ("XRC_DOMAINS", "a number")]),
        [""; 0]
    );
}

#[test]
fn of_the_driver() {
    type P = SimPlatform;
    let listed = logged![
        bareverbs_mlx5::BringUpError,
        bareverbs_mlx5::CmdName,
        bareverbs_mlx5::CqeSize,
        bareverbs_mlx5::Mlx5CompletionEvents<P>,
        bareverbs_mlx5::Config,
        bareverbs_mlx5::Checksums,
        bareverbs_mlx5::Ethernet<'static, P>,
        bareverbs_mlx5::EthernetConfig,
        bareverbs_mlx5::EthernetStatistics,
        bareverbs_mlx5::FrameFilter,
        bareverbs_mlx5::FrameQueueFault,
        bareverbs_mlx5::InlineMode,
        bareverbs_mlx5::OpenEthernetError,
        bareverbs_mlx5::Received,
        bareverbs_mlx5::FrameError,
        bareverbs_mlx5::Verified,
        bareverbs_mlx5::Object,
        bareverbs_mlx5::Mlx5CqReader<'static, P>,
        bareverbs_mlx5::Mlx5CqRing<P>,
        bareverbs_mlx5::Error,
        bareverbs_mlx5::Feature,
        bareverbs_mlx5::PageCount,
        bareverbs_mlx5::Health,
        bareverbs_mlx5::MkeyState,
        bareverbs_mlx5::Mlx5<P, 4096>,
        bareverbs_mlx5::Mlx5Direct<'static, P>,
        bareverbs_mlx5::Mr,
        bareverbs_mlx5::Qp,
        bareverbs_mlx5::Mlx5RecvRing<P>,
        bareverbs_mlx5::Mlx5SendRing<P>,
        bareverbs_mlx5::Mlx5SendWriter<'static, P>,
        bareverbs_mlx5::Statistics,
        bareverbs_mlx5::Step,
        bareverbs_mlx5::Progress,
        bareverbs_mlx5::TeardownError,
        bareverbs_mlx5::TeardownReport,
    ];
    assert_eq!(Found::default().missing("backends/mlx5", &listed, &[MACRO, ("$error", "a macro's")]), [""; 0]);
}

#[test]
fn of_mapped_registers_and_memory() {
    let listed = logged![
        CpuFence,
        PageRanges,
        IdentityBuffer,
        MappedBar,
        MappedDoorbell,
        MappedMemory,
        MappedRing,
        MappedRingView<'static>,
        MappedWord,
    ];
    assert_eq!(Found::default().missing("backends/mmio", &listed, &[]), [""; 0]);
}
