//! The table of firmware commands: the number of each, its input and output, and the objects that it names.

use super::*;
use crate::{Bits, Field, Layout, LayoutInfo};

/// A firmware command as a type. It connects the opcode with both structures, so that code cannot pair the opcode of one
/// command with the structures of another.
///
/// ```
/// use bareverbs_mlx5_spec::{AllocPdOut, Buffer, CmdIn, CmdOpcode, Command, View, cmd};
///
/// fn execute<C: Command>(input: &mut Buffer<C::In>) -> Buffer<C::Out> {
///     let start = View::<CmdIn>::new(input.as_bytes()).unwrap();
///     assert_eq!((start.get(CmdIn::OPCODE), C::OPCODE), (0, CmdOpcode::AllocPd));
///     Buffer::zeroed()
/// }
///
/// let output = execute::<cmd::AllocPd>(&mut Buffer::zeroed());
/// assert_eq!(output.view().get(AllocPdOut::PD), 0);
/// ```
///
/// The input of another command does not compile:
///
/// ```compile_fail,E0308
/// use bareverbs_mlx5_spec::{AllocPdIn, Buffer, Command, cmd};
///
/// fn execute<C: Command>(_: &Buffer<C::In>) {}
///
/// execute::<cmd::DeallocPd>(&Buffer::<AllocPdIn>::zeroed());
/// ```
pub trait Command: 'static {
    /// The number.
    const OPCODE: CmdOpcode;
    /// The objects of user contexts that it names.
    const OBJECTS: &'static [ObjectRef];
    /// Layout of the input.
    type In: Layout;
    /// Layout of the output.
    type Out: Layout;
}

/// Kinds of objects of a device.
///
/// Each belongs to a user context or to the kernel. Event queues are the kernel's, but for those that it shares with
/// all contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// User access region: a page of doorbells.
    Uar,
    /// Protection domain.
    Pd,
    /// XRC domain.
    Xrcd,
    /// Transport domain.
    TransportDomain,
    /// Set of counters.
    CounterSet,
    /// Event queue.
    Eq,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Shared receive queue, XRC shared receive queue, or receive memory pool: they share their numbers.
    Srq,
    /// Memory key, by its index.
    Mkey,
    /// User memory.
    Umem,
    /// Device memory, by the unit in which it begins.
    DeviceMemory,
    /// User context.
    UserContext,
    /// Transport interface send.
    Tis,
    /// Transport interface receive.
    Tir,
    /// Receive queue table.
    Rqt,
    /// Receive queue of the Ethernet port.
    Rq,
    /// Send queue of the Ethernet port.
    Sq,
    /// Flow table.
    FlowTable,
    /// Counter of flow table entries.
    FlowCounter,
}

impl ObjectKind {
    /// Kinds there are.
    pub const COUNT: usize = Self::FlowCounter as usize + 1;
}

/// What a command does to an object that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectAccess {
    /// Creates it; its output has the number.
    Creates,
    /// Works with it, or ties a new object to it; its input has the number.
    Uses,
    /// Ends it; its input has the number.
    Destroys,
}

/// An object that a command names.
///
/// User memory that a queue or a key lies in is not among them: a device checks its owner where it translates addresses in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// What the command does to it.
    pub access: ObjectAccess,
    /// What it is.
    pub kind: ObjectKind,
    number: Bits,
    condition: Option<(Bits, &'static [u32])>,
}

impl ObjectRef {
    const fn new<L>(
        access: ObjectAccess,
        kind: ObjectKind,
        number: Field<L>,
        condition: Option<(Field<L>, &'static [u32])>,
    ) -> Self {
        let condition = match condition {
            Some((field, values)) => Some((field.bits(), values)),
            None => None,
        };
        Self { access, kind, number: number.bits(), condition }
    }

    /// Returns where the number is, in the command's output if it creates the object and in its input otherwise.
    pub const fn place(&self) -> Bits {
        self.number
    }

    /// Returns the object's number, out of the command's output if it creates the object and out of its input otherwise. `None`
    /// if this input names no such object, or if there are too few bytes.
    pub fn number(&self, bytes: &[u8]) -> Option<u32> {
        if let Some((field, values)) = self.condition
            && !values.contains(&field.read(bytes)?)
        {
            return None;
        }
        self.number.read(bytes)
    }
}

/// Defines the opcodes, and a type for each command, from one table.
///
/// `Name = number "PUBLISHED_NAME": Input => Output, objects;`. The objects that a command names by number are a list of
/// `creates Kind(FIELD_OF_OUTPUT)`, `uses Kind(FIELD_OF_INPUT)` and `destroys Kind(FIELD_OF_INPUT)`, or `none`. After an entry,
/// `if (FIELD_OF_INPUT) in &[values]` says that the object is named only when the field has one of the values.
macro_rules! commands {
    ($(#[$meta:meta])* $name:ident { $(
        $(#[$vm:meta])* $opcode:ident = $code:literal $text:literal: $in:ident => $out:ident,
            $($access:ident $(
                $kind:ident ($field:ident $($path:tt)*) $(if ($condition:ident $($condition_path:tt)*) in $values:expr)?
            )?),+;
    )+ }) => {
        crate::codes! {
            $(#[$meta])*
            $name { $($(#[$vm])* $opcode = $code $text,)+ }
        }

        impl $name {
            /// Returns the layout of the command's input.
            pub const fn input(self) -> &'static LayoutInfo {
                match self {
                    $(Self::$opcode => &<$in as Layout>::INFO,)+
                }
            }

            /// Returns the layout of the command's output.
            pub const fn output(self) -> &'static LayoutInfo {
                match self {
                    $(Self::$opcode => &<$out as Layout>::INFO,)+
                }
            }

            /// Returns the objects that the command names by number.
            pub const fn objects(self) -> &'static [ObjectRef] {
                match self {
                    $(Self::$opcode => <cmd::$opcode as Command>::OBJECTS,)+
                }
            }
        }

        /// The firmware commands as types.
        pub mod cmd {
            use super::*;

            $(
                #[doc = concat!("`", $text, "`.")]
                #[derive(Clone, Copy, Debug)]
                pub enum $opcode {}

                impl Command for $opcode {
                    const OPCODE: $name = $name::$opcode;
                    const OBJECTS: &'static [ObjectRef] = commands!(@objects $in $out [$(
                        $access $($kind ($field $($path)*) $(if ($condition $($condition_path)*) in $values)?)?
                    ),+]);
                    type In = $in;
                    type Out = $out;
                }
            )+
        }
    };
    (@objects $in:ident $out:ident [none]) => { &[] };
    (@objects $in:ident $out:ident [$(
        $access:ident $kind:ident ($($field:tt)*) $(if ($($condition:tt)*) in $values:expr)?
    ),+]) => {
        &[$(commands!(@object $in $out $access $kind ($($field)*) [$(($($condition)*) $values)?])),+]
    };
    (@object $in:ident $out:ident creates $kind:ident ($($field:tt)*) []) => {
        ObjectRef::new::<$out>(ObjectAccess::Creates, ObjectKind::$kind, $out::$($field)*, None)
    };
    (@object $in:ident $out:ident uses $kind:ident ($($field:tt)*) []) => {
        ObjectRef::new::<$in>(ObjectAccess::Uses, ObjectKind::$kind, $in::$($field)*, None)
    };
    (@object $in:ident $out:ident uses $kind:ident ($($field:tt)*) [($($condition:tt)*) $values:expr]) => {
        ObjectRef::new::<$in>(
            ObjectAccess::Uses,
            ObjectKind::$kind,
            $in::$($field)*,
            Some(($in::$($condition)*, $values)),
        )
    };
    (@object $in:ident $out:ident destroys $kind:ident ($($field:tt)*) []) => {
        ObjectRef::new::<$in>(ObjectAccess::Destroys, ObjectKind::$kind, $in::$($field)*, None)
    };
}

commands! {
    /// Opcodes of firmware commands (`MLX5_CMD_OP_*`). A command of which no layout is written down here has those that all
    /// commands begin with, [`CmdIn`] and [`CmdOut`].
    CmdOpcode {
        QueryHcaCap = 0x100 "QUERY_HCA_CAP": QueryHcaCapIn => QueryHcaCapOut, none;
        QueryAdapter = 0x101 "QUERY_ADAPTER": QueryAdapterIn => QueryAdapterOut, none;
        InitHca = 0x102 "INIT_HCA": InitHcaIn => InitHcaOut, none;
        TeardownHca = 0x103 "TEARDOWN_HCA": TeardownHcaIn => TeardownHcaOut, none;
        EnableHca = 0x104 "ENABLE_HCA": EnableHcaIn => EnableHcaOut, none;
        DisableHca = 0x105 "DISABLE_HCA": DisableHcaIn => DisableHcaOut, none;
        QueryPages = 0x107 "QUERY_PAGES": QueryPagesIn => QueryPagesOut, none;
        ManagePages = 0x108 "MANAGE_PAGES": ManagePagesIn => ManagePagesOut, none;
        SetHcaCap = 0x109 "SET_HCA_CAP": SetHcaCapIn => SetHcaCapOut, none;
        QueryIssi = 0x10a "QUERY_ISSI": QueryIssiIn => QueryIssiOut, none;
        SetIssi = 0x10b "SET_ISSI": SetIssiIn => SetIssiOut, none;
        SetDriverVersion = 0x10d "SET_DRIVER_VERSION": SetDriverVersionIn => SetDriverVersionOut, none;
        CreateMkey = 0x200 "CREATE_MKEY": CreateMkeyIn => CreateMkeyOut,
            creates Mkey(MKEY_INDEX), uses Pd(MEMORY_KEY_MKEY_ENTRY.field(Mkc::PD));
        QueryMkey = 0x201 "QUERY_MKEY": QueryMkeyIn => QueryMkeyOut, uses Mkey(MKEY_INDEX);
        DestroyMkey = 0x202 "DESTROY_MKEY": DestroyMkeyIn => DestroyMkeyOut, destroys Mkey(MKEY_INDEX);
        QuerySpecialContexts = 0x203 "QUERY_SPECIAL_CONTEXTS": QuerySpecialContextsIn => QuerySpecialContextsOut, none;
        AllocMemic = 0x205 "ALLOC_MEMIC": AllocMemicIn => AllocMemicOut, none;
        DeallocMemic = 0x206 "DEALLOC_MEMIC": DeallocMemicIn => DeallocMemicOut, none;
        CreateEq = 0x301 "CREATE_EQ": CreateEqIn => CreateEqOut,
            creates Eq(EQ_NUMBER), uses Uar(EQ_CONTEXT_ENTRY.field(Eqc::UAR_PAGE));
        DestroyEq = 0x302 "DESTROY_EQ": DestroyEqIn => DestroyEqOut, destroys Eq(EQ_NUMBER);
        QueryEq = 0x303 "QUERY_EQ": QueryEqIn => QueryEqOut, uses Eq(EQ_NUMBER);
        GenEqe = 0x304 "GEN_EQE": CmdIn => CmdOut, none;
        CreateCq = 0x400 "CREATE_CQ": CreateCqIn => CreateCqOut,
            creates Cq(CQN),
            uses Uar(CQ_CONTEXT.field(Cqc::UAR_PAGE)), uses Eq(CQ_CONTEXT.field(Cqc::C_EQN_OR_APU_ELEMENT));
        DestroyCq = 0x401 "DESTROY_CQ": DestroyCqIn => DestroyCqOut, destroys Cq(CQN);
        QueryCq = 0x402 "QUERY_CQ": QueryCqIn => QueryCqOut, uses Cq(CQN);
        ModifyCq = 0x403 "MODIFY_CQ": ModifyCqIn => ModifyCqOut, uses Cq(CQN);
        CreateQp = 0x500 "CREATE_QP": CreateQpIn => CreateQpOut,
            creates Qp(QPN),
            uses Pd(QPC.field(Qpc::PD)),
            uses Uar(QPC.field(Qpc::UAR_PAGE)) if (QPC.field(Qpc::NO_SQ)) in &[0],
            uses Xrcd(QPC.field(Qpc::XRCD)) if (QPC.field(Qpc::ST)) in &[QpcSt::Xrc.code()],
            uses Cq(QPC.field(Qpc::CQN_SND)) if (QPC.field(Qpc::NO_SQ)) in &[0],
            uses Cq(QPC.field(Qpc::CQN_RCV)) if (QPC.field(Qpc::RQ_TYPE)) in &[rq_type::OWN, rq_type::SRQ],
            uses Srq(QPC.field(Qpc::SRQN_RMPN_XRQN)) if (QPC.field(Qpc::RQ_TYPE)) in &[rq_type::SRQ];
        DestroyQp = 0x501 "DESTROY_QP": DestroyQpIn => DestroyQpOut, destroys Qp(QPN);
        Rst2InitQp = 0x502 "RST2INIT_QP": Rst2initQpIn => Rst2initQpOut, uses Qp(QPN);
        Init2RtrQp = 0x503 "INIT2RTR_QP": Init2rtrQpIn => Init2rtrQpOut, uses Qp(QPN);
        Rtr2RtsQp = 0x504 "RTR2RTS_QP": Rtr2rtsQpIn => Rtr2rtsQpOut, uses Qp(QPN);
        Rts2RtsQp = 0x505 "RTS2RTS_QP": Rts2rtsQpIn => Rts2rtsQpOut, uses Qp(QPN);
        SqErr2RtsQp = 0x506 "SQERR2RTS_QP": Sqerr2rtsQpIn => Sqerr2rtsQpOut, uses Qp(QPN);
        Qp2Err = 0x507 "2ERR_QP": Qp2errIn => Qp2errOut, uses Qp(QPN);
        /// In the first mlx5 headers (Linux 3.11 `MLX5_CMD_OP_RTS2SQD_QP`, with the input of every other transition); later
        /// ones leave it out.
        Rts2SqdQp = 0x508 "RTS2SQD_QP": Qp2errIn => Qp2errOut, uses Qp(QPN);
        Qp2Rst = 0x50a "2RST_QP": Qp2rstIn => Qp2rstOut, uses Qp(QPN);
        QueryQp = 0x50b "QUERY_QP": QueryQpIn => QueryQpOut, uses Qp(QPN);
        SqdRtsQp = 0x50c "SQD_RTS_QP": Sqd2rtsQpIn => Sqd2rtsQpOut, uses Qp(QPN);
        MadIfc = 0x50d "MAD_IFC": MadIfcIn => MadIfcOut, none;
        Init2InitQp = 0x50e "INIT2INIT_QP": Init2initQpIn => Init2initQpOut, uses Qp(QPN);
        /// In the first mlx5 headers (Linux 3.11 `MLX5_CMD_OP_SQD2SQD_QP`, with the input of every other transition); later
        /// ones leave it out.
        Sqd2SqdQp = 0x511 "SQD2SQD_QP": Init2initQpIn => Init2initQpOut, uses Qp(QPN);
        CreateSrq = 0x700 "CREATE_SRQ": CreateSrqIn => CreateSrqOut,
            creates Srq(SRQN), uses Pd(SRQ_CONTEXT_ENTRY.field(Srqc::PD));
        DestroySrq = 0x701 "DESTROY_SRQ": DestroySrqIn => DestroySrqOut, destroys Srq(SRQN);
        QuerySrq = 0x702 "QUERY_SRQ": QuerySrqIn => QuerySrqOut, uses Srq(SRQN);
        ArmRq = 0x703 "ARM_RQ": ArmRqIn => ArmRqOut, uses Srq(SRQ_NUMBER);
        CreateXrcSrq = 0x705 "CREATE_XRC_SRQ": CreateXrcSrqIn => CreateXrcSrqOut,
            creates Srq(XRC_SRQN),
            uses Pd(XRC_SRQ_CONTEXT_ENTRY.field(XrcSrqc::PD)),
            uses Xrcd(XRC_SRQ_CONTEXT_ENTRY.field(XrcSrqc::XRCD)),
            uses Cq(XRC_SRQ_CONTEXT_ENTRY.field(XrcSrqc::CQN));
        DestroyXrcSrq = 0x706 "DESTROY_XRC_SRQ": DestroyXrcSrqIn => DestroyXrcSrqOut, destroys Srq(XRC_SRQN);
        QueryXrcSrq = 0x707 "QUERY_XRC_SRQ": QueryXrcSrqIn => QueryXrcSrqOut, uses Srq(XRC_SRQN);
        ArmXrcSrq = 0x708 "ARM_XRC_SRQ": ArmXrcSrqIn => ArmXrcSrqOut, uses Srq(XRC_SRQN);
        QueryVportState = 0x750 "QUERY_VPORT_STATE": QueryVportStateIn => QueryVportStateOut, none;
        QueryNicVportContext = 0x754 "QUERY_NIC_VPORT_CONTEXT": QueryNicVportContextIn => QueryNicVportContextOut, none;
        ModifyNicVportContext = 0x755 "MODIFY_NIC_VPORT_CONTEXT": ModifyNicVportContextIn => ModifyNicVportContextOut, none;
        QueryRoceAddress = 0x760 "QUERY_ROCE_ADDRESS": QueryRoceAddressIn => QueryRoceAddressOut, none;
        SetRoceAddress = 0x761 "SET_ROCE_ADDRESS": SetRoceAddressIn => SetRoceAddressOut, none;
        QueryHcaVportContext = 0x762 "QUERY_HCA_VPORT_CONTEXT": QueryHcaVportContextIn => QueryHcaVportContextOut, none;
        ModifyHcaVportContext = 0x763 "MODIFY_HCA_VPORT_CONTEXT": ModifyHcaVportContextIn => ModifyHcaVportContextOut, none;
        QueryHcaVportGid = 0x764 "QUERY_HCA_VPORT_GID": QueryHcaVportGidIn => QueryHcaVportGidOut, none;
        QueryHcaVportPkey = 0x765 "QUERY_HCA_VPORT_PKEY": QueryHcaVportPkeyIn => QueryHcaVportPkeyOut, none;
        QueryVportCounter = 0x770 "QUERY_VPORT_COUNTER": QueryVportCounterIn => QueryVportCounterOut, none;
        AllocQCounter = 0x771 "ALLOC_Q_COUNTER": AllocQCounterIn => AllocQCounterOut, creates CounterSet(COUNTER_SET_ID);
        DeallocQCounter = 0x772 "DEALLOC_Q_COUNTER": DeallocQCounterIn => DeallocQCounterOut,
            destroys CounterSet(COUNTER_SET_ID);
        QueryQCounter = 0x773 "QUERY_Q_COUNTER": QueryQCounterIn => QueryQCounterOut, uses CounterSet(COUNTER_SET_ID);
        AllocPd = 0x800 "ALLOC_PD": AllocPdIn => AllocPdOut, creates Pd(PD);
        DeallocPd = 0x801 "DEALLOC_PD": DeallocPdIn => DeallocPdOut, destroys Pd(PD);
        AllocUar = 0x802 "ALLOC_UAR": AllocUarIn => AllocUarOut, creates Uar(UAR);
        DeallocUar = 0x803 "DEALLOC_UAR": DeallocUarIn => DeallocUarOut, destroys Uar(UAR);
        AccessReg = 0x805 "ACCESS_REG": AccessRegisterIn => AccessRegisterOut, none;
        AttachToMcg = 0x806 "ATTACH_TO_MCG": AttachToMcgIn => AttachToMcgOut, uses Qp(QPN);
        DetachFromMcg = 0x807 "DETACH_FROM_MCG": DetachFromMcgIn => DetachFromMcgOut, uses Qp(QPN);
        Nop = 0x80d "NOP": NopIn => NopOut, none;
        AllocXrcd = 0x80e "ALLOC_XRCD": AllocXrcdIn => AllocXrcdOut, creates Xrcd(XRCD);
        DeallocXrcd = 0x80f "DEALLOC_XRCD": DeallocXrcdIn => DeallocXrcdOut, destroys Xrcd(XRCD);
        AllocTransportDomain = 0x816 "ALLOC_TRANSPORT_DOMAIN": AllocTransportDomainIn => AllocTransportDomainOut,
            creates TransportDomain(TRANSPORT_DOMAIN);
        DeallocTransportDomain = 0x817 "DEALLOC_TRANSPORT_DOMAIN": DeallocTransportDomainIn => DeallocTransportDomainOut,
            destroys TransportDomain(TRANSPORT_DOMAIN);
        QueryLag = 0x842 "QUERY_LAG": QueryLagIn => QueryLagOut, none;
        CreateTir = 0x900 "CREATE_TIR": CreateTirIn => CreateTirOut,
            creates Tir(TIRN), uses TransportDomain(CTX.field(Tirc::TRANSPORT_DOMAIN)),
            uses Rq(CTX.field(Tirc::INLINE_RQN)) if (CTX.field(Tirc::DISP_TYPE)) in &[TIR_DIRECT],
            uses Rqt(CTX.field(Tirc::INDIRECT_TABLE)) if (CTX.field(Tirc::DISP_TYPE)) in &[TIR_INDIRECT];
        ModifyTir = 0x901 "MODIFY_TIR": ModifyTirIn => ModifyTirOut, uses Tir(TIRN);
        DestroyTir = 0x902 "DESTROY_TIR": DestroyTirIn => DestroyTirOut, destroys Tir(TIRN);
        CreateSq = 0x904 "CREATE_SQ": CreateSqIn => CreateSqOut,
            creates Sq(SQN), uses Cq(CTX.field(Sqc::CQN)), uses Pd(CTX.sub(Sqc::WQ).field(Wq::PD)),
            uses Uar(CTX.sub(Sqc::WQ).field(Wq::UAR_PAGE)),
            uses Tis(CTX.field(Sqc::TIS_NUM_0)) if (CTX.field(Sqc::TIS_LST_SZ)) in &[1];
        ModifySq = 0x905 "MODIFY_SQ": ModifySqIn => ModifySqOut, uses Sq(SQN);
        DestroySq = 0x906 "DESTROY_SQ": DestroySqIn => DestroySqOut, destroys Sq(SQN);
        QuerySq = 0x907 "QUERY_SQ": QuerySqIn => QuerySqOut, uses Sq(SQN);
        CreateRq = 0x908 "CREATE_RQ": CreateRqIn => CreateRqOut,
            creates Rq(RQN), uses Cq(CTX.field(Rqc::CQN)), uses Pd(CTX.sub(Rqc::WQ).field(Wq::PD));
        ModifyRq = 0x909 "MODIFY_RQ": ModifyRqIn => ModifyRqOut, uses Rq(RQN);
        DestroyRq = 0x90a "DESTROY_RQ": DestroyRqIn => DestroyRqOut, destroys Rq(RQN);
        QueryRq = 0x90b "QUERY_RQ": QueryRqIn => QueryRqOut, uses Rq(RQN);
        CreateRmp = 0x90c "CREATE_RMP": CreateRmpIn => CreateRmpOut,
            creates Srq(RMPN), uses Pd(CTX.sub(Rmpc::WQ).field(Wq::PD));
        ModifyRmp = 0x90d "MODIFY_RMP": ModifyRmpIn => ModifyRmpOut, uses Srq(RMPN);
        DestroyRmp = 0x90e "DESTROY_RMP": DestroyRmpIn => DestroyRmpOut, destroys Srq(RMPN);
        QueryRmp = 0x90f "QUERY_RMP": QueryRmpIn => QueryRmpOut, uses Srq(RMPN);
        CreateTis = 0x912 "CREATE_TIS": CreateTisIn => CreateTisOut,
            creates Tis(TISN), uses TransportDomain(CTX.field(Tisc::TRANSPORT_DOMAIN));
        DestroyTis = 0x914 "DESTROY_TIS": DestroyTisIn => DestroyTisOut, destroys Tis(TISN);
        QueryTis = 0x915 "QUERY_TIS": QueryTisIn => QueryTisOut, uses Tis(TISN);
        CreateRqt = 0x916 "CREATE_RQT": CreateRqtIn => CreateRqtOut, creates Rqt(RQTN);
        ModifyRqt = 0x917 "MODIFY_RQT": ModifyRqtIn => ModifyRqtOut, uses Rqt(RQTN);
        DestroyRqt = 0x918 "DESTROY_RQT": DestroyRqtIn => DestroyRqtOut, destroys Rqt(RQTN);
        SetFlowTableRoot = 0x92f "SET_FLOW_TABLE_ROOT": SetFlowTableRootIn => SetFlowTableRootOut, uses FlowTable(TABLE_ID);
        CreateFlowTable = 0x930 "CREATE_FLOW_TABLE": CreateFlowTableIn => CreateFlowTableOut, creates FlowTable(TABLE_ID);
        DestroyFlowTable = 0x931 "DESTROY_FLOW_TABLE": DestroyFlowTableIn => DestroyFlowTableOut, destroys FlowTable(TABLE_ID);
        CreateFlowGroup = 0x933 "CREATE_FLOW_GROUP": CreateFlowGroupIn => CreateFlowGroupOut, uses FlowTable(TABLE_ID);
        DestroyFlowGroup = 0x934 "DESTROY_FLOW_GROUP": DestroyFlowGroupIn => DestroyFlowGroupOut, uses FlowTable(TABLE_ID);
        SetFlowTableEntry = 0x936 "SET_FLOW_TABLE_ENTRY": SetFteIn => SetFteOut, uses FlowTable(TABLE_ID);
        DeleteFlowTableEntry = 0x938 "DELETE_FLOW_TABLE_ENTRY": DeleteFteIn => DeleteFteOut, uses FlowTable(TABLE_ID);
        AllocFlowCounter = 0x939 "ALLOC_FLOW_COUNTER": AllocFlowCounterIn => AllocFlowCounterOut,
            creates FlowCounter(FLOW_COUNTER_ID);
        DeallocFlowCounter = 0x93a "DEALLOC_FLOW_COUNTER": DeallocFlowCounterIn => DeallocFlowCounterOut,
            destroys FlowCounter(FLOW_COUNTER_ID);
        QueryFlowCounter = 0x93b "QUERY_FLOW_COUNTER": QueryFlowCounterIn => QueryFlowCounterOut,
            uses FlowCounter(FLOW_COUNTER_ID);
        ModifyFlowTable = 0x93c "MODIFY_FLOW_TABLE": ModifyFlowTableIn => ModifyFlowTableOut, uses FlowTable(TABLE_ID);
        CreateGeneralObject = 0xa00 "CREATE_GENERAL_OBJECT": GeneralObjInCmdHdr => GeneralObjOutCmdHdr, none;
        ModifyGeneralObject = 0xa01 "MODIFY_GENERAL_OBJECT": GeneralObjInCmdHdr => GeneralObjOutCmdHdr, none;
        QueryGeneralObject = 0xa02 "QUERY_GENERAL_OBJECT": GeneralObjInCmdHdr => GeneralObjOutCmdHdr, none;
        DestroyGeneralObject = 0xa03 "DESTROY_GENERAL_OBJECT": GeneralObjInCmdHdr => GeneralObjOutCmdHdr, none;
        CreateUctx = 0xa04 "CREATE_UCTX": CreateUctxIn => CreateUctxOut, creates UserContext(UID);
        DestroyUctx = 0xa06 "DESTROY_UCTX": DestroyUctxIn => DestroyUctxOut, destroys UserContext(UID);
        CreateUmem = 0xa08 "CREATE_UMEM": CreateUmemIn => CreateUmemOut, creates Umem(UMEM_ID);
        DestroyUmem = 0xa0a "DESTROY_UMEM": DestroyUmemIn => DestroyUmemOut, destroys Umem(UMEM_ID);
    }
}

impl CmdOpcode {
    /// Returns the bytes of the input as it was first published, for a command whose input grew since. Some drivers still send
    /// that: libmlx5 over VFIO sends INIT_HCA of 16 bytes. iPXE sends SET_HCA_CAP with a page of 256 bytes, and transitions of
    /// queue pairs without the end of the context. Later fields are zero then.
    pub const fn legacy_input_len(self) -> Option<usize> {
        match self {
            Self::InitHca => Some(16),
            Self::SetHcaCap => Some(272),
            Self::Rst2InitQp | Self::Init2RtrQp | Self::Rtr2RtsQp => Some(256),
            _ => None,
        }
    }

    /// Returns the bytes of the output as it was first published, for a command whose output grew since. Some drivers still
    /// have room for no more (iPXE for a context of 208 bytes).
    pub const fn legacy_output_len(self) -> Option<usize> {
        match self {
            Self::QueryHcaVportContext => Some(224),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::borrow::ToOwned;
    use std::format;
    use std::vec::Vec;

    use super::*;
    use crate::{Buffer, FieldInfo, Place};

    fn field(layout: &LayoutInfo, name: &str) -> Option<Place> {
        layout.fields.iter().find(|field: &&FieldInfo| field.name == name).map(|field| field.place)
    }

    /// Returns the numbers of the objects that an input names.
    fn named<C: Command>(input: &Buffer<C::In>) -> Vec<(ObjectKind, u32)> {
        let used = C::OBJECTS.iter().filter(|object| object.access != ObjectAccess::Creates);
        used.filter_map(|object| Some((object.kind, object.number(input.as_bytes())?))).collect()
    }

    #[test]
    fn every_opcode_has_one_row_and_the_rows_are_in_order() {
        let codes: Vec<u32> = CmdOpcode::ALL.iter().map(|opcode| opcode.code()).collect();
        assert!(codes.is_sorted_by(|one, next| one < next), "{codes:x?}");
        for opcode in CmdOpcode::ALL {
            assert_eq!(CmdOpcode::from_code(opcode.code()), Some(*opcode));
            assert_eq!(OtherCmdOpcode::from_code(opcode.code()), None, "{} is in both tables", opcode.name());
        }
    }

    /// `mlx5_ifc.h` begins every input with 16 bits of opcode, and every output with 8 bits of status and a syndrome at byte 4.
    #[test]
    fn inputs_and_outputs_begin_as_published() {
        for opcode in CmdOpcode::ALL {
            let (input, output) = (opcode.input(), opcode.output());
            let Some(Place::Bits(Bits { dword: 0, hi: 31, lo: 16 })) = field(input, "opcode") else { panic!("{}", input.name) };
            let Some(Place::Bits(Bits { dword: 0, hi: 31, lo: 24 })) = field(output, "status") else {
                panic!("{}", output.name)
            };
            let Some(Place::Bits(Bits { dword: 4, hi: 31, lo: 0 })) = field(output, "syndrome") else {
                panic!("{}", output.name)
            };
        }
    }

    #[test]
    fn the_structures_are_those_that_the_name_says() {
        // Published names that do not follow from the opcode's.
        let other = |opcode| {
            Some(match opcode {
                CmdOpcode::SqErr2RtsQp => "sqerr2rts_qp",
                CmdOpcode::SqdRtsQp => "sqd2rts_qp",
                CmdOpcode::Qp2Err | CmdOpcode::Rts2SqdQp => "qp_2err",
                CmdOpcode::Qp2Rst => "qp_2rst",
                CmdOpcode::Sqd2SqdQp => "init2init_qp",
                CmdOpcode::AccessReg => "access_register",
                CmdOpcode::SetFlowTableEntry => "set_fte",
                CmdOpcode::DeleteFlowTableEntry => "delete_fte",
                _ => return None,
            })
        };
        let headers = ["cmd_in", "general_obj_in_cmd_hdr"];
        for opcode in CmdOpcode::ALL.iter().filter(|opcode| !headers.contains(&opcode.input().name)) {
            let name = other(*opcode).map_or_else(|| opcode.name().to_lowercase(), str::to_owned);
            assert_eq!(opcode.input().name, format!("{name}_in"));
            assert_eq!(opcode.output().name, format!("{name}_out"));
        }
    }

    #[test]
    fn a_command_as_a_type_is_the_row_of_its_opcode() {
        assert_eq!(<cmd::AllocPd as Command>::OPCODE.code(), 0x800);
        assert_eq!(<<cmd::AllocPd as Command>::In as Layout>::INFO.name, CmdOpcode::AllocPd.input().name);
        assert_eq!(<<cmd::AllocPd as Command>::Out as Layout>::INFO.name, CmdOpcode::AllocPd.output().name);
        assert_eq!(<cmd::AllocPd as Command>::OBJECTS, CmdOpcode::AllocPd.objects());
    }

    #[test]
    fn what_is_created_is_destroyed_by_the_same_number() {
        use ObjectAccess::{Creates, Destroys};
        for kind in CmdOpcode::ALL.iter().flat_map(|opcode| opcode.objects()).map(|object| object.kind) {
            let count = |access| {
                let objects = CmdOpcode::ALL.iter().flat_map(|opcode| opcode.objects());
                objects.filter(|object| object.kind == kind && object.access == access).count()
            };
            assert_eq!(count(Creates), count(Destroys), "{kind:?}");
            assert_ne!(count(Creates), 0, "{kind:?}");
        }
    }

    #[test]
    fn a_new_key_is_tied_to_its_domain() {
        let mut input = Buffer::<CreateMkeyIn>::zeroed();
        // The key context is at byte 16 and its protection domain in the dword at 12 of that.
        input.as_bytes_mut()[28..32].copy_from_slice(&[0xff, 1, 2, 3]);
        assert_eq!(named::<cmd::CreateMkey>(&input), [(ObjectKind::Pd, 0x01_0203)]);
        let creates = CmdOpcode::CreateMkey.objects()[0];
        assert_eq!((creates.access, creates.kind), (ObjectAccess::Creates, ObjectKind::Mkey));
        assert_eq!(creates.number(&[0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 7]), Some(7));
        assert_eq!(creates.number(&[0; 8]), None);
    }

    #[test]
    fn a_queue_pair_names_the_queues_that_it_works_with() {
        let mut input = Buffer::<CreateQpIn>::zeroed();
        let mut create = input.view_mut();
        let mut context = create.sub(CreateQpIn::QPC);
        context.set(Qpc::PD, 1).set(Qpc::CQN_SND, 2).set(Qpc::CQN_RCV, 3).set(Qpc::SRQN_RMPN_XRQN, 4);
        context.set(Qpc::UAR_PAGE, 5).set(Qpc::XRCD, 6);
        let mut with = |rq_type: u32, no_sq: u32| {
            input.view_mut().sub(CreateQpIn::QPC).set(Qpc::RQ_TYPE, rq_type).set(Qpc::NO_SQ, no_sq);
            named::<cmd::CreateQp>(&input)
        };
        let uar = (ObjectKind::Uar, 5);
        let (pd, sends, receives, shared) =
            ((ObjectKind::Pd, 1), (ObjectKind::Cq, 2), (ObjectKind::Cq, 3), (ObjectKind::Srq, 4));
        assert_eq!(with(rq_type::OWN, 0), [pd, uar, sends, receives]);
        assert_eq!(with(rq_type::SRQ, 0), [pd, uar, sends, receives, shared]);
        assert_eq!(with(rq_type::NONE, 0), [pd, uar, sends]);
        assert_eq!(with(rq_type::SRQ, 1), [pd, receives, shared]);
        // XRC: the service is 3, and its domain counts.
        input.as_bytes_mut()[24 + 1] = 3;
        assert_eq!(named::<cmd::CreateQp>(&input), [pd, (ObjectKind::Xrcd, 6), receives, shared]);
    }

    #[test]
    fn a_completion_queue_names_its_doorbell_page_and_its_event_queue() {
        let mut input = Buffer::<CreateCqIn>::zeroed();
        // The context is at byte 16: uar_page in its dword at 12, c_eqn in that at 20.
        input.as_bytes_mut()[16 + 12 + 3] = 9;
        input.as_bytes_mut()[16 + 20 + 3] = 7;
        assert_eq!(named::<cmd::CreateCq>(&input), [(ObjectKind::Uar, 9), (ObjectKind::Eq, 7)]);
    }

    #[test]
    fn a_receive_memory_pool_is_tied_to_the_domain_in_its_work_queue() {
        let mut input = Buffer::<CreateRmpIn>::zeroed();
        // rmpc at byte 32, its work queue at 48 of that, pd in the dword at 8 of that.
        input.as_bytes_mut()[32 + 48 + 8 + 3] = 5;
        assert_eq!(named::<cmd::CreateRmp>(&input), [(ObjectKind::Pd, 5)]);
    }

    /// `mlx5_ifc.h` before `sw_owner_id` (INIT_HCA), and the structures of iPXE (`golan.h`): a head of 16 bytes and a page or a context.
    #[test]
    fn an_older_input_is_shorter_than_the_present_one() {
        let lengths = CmdOpcode::ALL.iter().filter_map(|opcode| Some((*opcode, opcode.legacy_input_len()?)));
        let lengths: Vec<_> = lengths.collect();
        let [init, caps, qp @ ..] = &lengths[..] else { panic!("{lengths:?}") };
        assert_eq!((*init, *caps), ((CmdOpcode::InitHca, 16), (CmdOpcode::SetHcaCap, 272)));
        assert_eq!(qp, [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp].map(|opcode| (opcode, 256)));
        assert!(lengths.iter().all(|(opcode, len)| *len < opcode.input().size), "{lengths:?}");
        let outputs = CmdOpcode::ALL.iter().filter_map(|opcode| Some((opcode.output(), opcode.legacy_output_len()?)));
        let outputs: Vec<_> = outputs.map(|(output, len)| (output.name, len, output.size > len)).collect();
        assert_eq!(outputs, [("query_hca_vport_context_out", 224, true)]);
    }

    #[test]
    fn an_object_is_named_where_its_condition_holds() {
        let domain = ObjectRef::new(ObjectAccess::Uses, ObjectKind::Pd, Qpc::PD, None);
        let of_xrc = ObjectRef::new(ObjectAccess::Uses, ObjectKind::Xrcd, Qpc::XRCD, Some((Qpc::ST, &[3])));
        assert_eq!((domain.place(), of_xrc.place()), (Qpc::PD.bits(), Qpc::XRCD.bits()));
        let mut context = Buffer::<Qpc>::zeroed();
        context.view_mut().set(Qpc::PD, 1).set(Qpc::XRCD, 2);
        let numbers = |context: &Buffer<Qpc>| [domain, of_xrc].map(|object| object.number(context.as_bytes()));
        assert_eq!(numbers(&context), [Some(1), None]);
        context.view_mut().set(Qpc::ST, 3);
        assert_eq!(numbers(&context), [Some(1), Some(2)]);
        assert_eq!([domain, of_xrc].map(|object| object.number(&context.as_bytes()[..3])), [None, None]);
    }
}
