//! Every layout of the crate as data.

use crate::*;

/// The layouts that are no command's input or output.
const INNER: &[LayoutInfo] = &[
    HealthBuffer::INFO,
    InitialSeg::INFO,
    QpDoorbellRecord::INFO,
    CqDoorbellRecord::INFO,
    CqArm::INFO,
    EqDoorbell::INFO,
    CmdQueueEntry::INFO,
    CmdIfBox::INFO,
    QueryAdapterParamBlock::INFO,
    CmdHcaCap::INFO,
    AtomicCaps::INFO,
    DeviceMemCap::INFO,
    RoceCap::INFO,
    PtysReg::INFO,
    PcapReg::INFO,
    PmtuReg::INFO,
    PvlcReg::INFO,
    PaosReg::INFO,
    PpcntReg::INFO,
    IbPortCntrs::INFO,
    IbExtPortCntrs::INFO,
    RegisterHostEndianness::INFO,
    SetNodeIn::INFO,
    HcaVportContext::INFO,
    TrafficCounter::INFO,
    Lagc::INFO,
    Eqc::INFO,
    Cqc::INFO,
    Mkc::INFO,
    Mtt::INFO,
    Ads::INFO,
    Qpc::INFO,
    Wq::INFO,
    Rmpc::INFO,
    Srqc::INFO,
    XrcSrqc::INFO,
    Uctx::INFO,
    Umem::INFO,
    Eqe::INFO,
    CompEvent::INFO,
    CqError::INFO,
    QpEvents::INFO,
    PortStateChangeEvent::INFO,
    CmdInterCompEvent::INFO,
    PagesReqEvent::INFO,
    CreateCqUserMemory::INFO,
    CreateQpUserMemory::INFO,
    CreateMkeyUserMemory::INFO,
    Cqe::INFO,
    ErrCqe::INFO,
    WqeCtrlSeg::INFO,
    WqeRaddrSeg::INFO,
    WqeAtomicSeg::INFO,
    WqeDataSeg::INFO,
    WqeInlineSeg::INFO,
    WqeDatagramSeg::INFO,
    WqeXrcSeg::INFO,
    WqeUmrCtrlSeg::INFO,
    WqeKlm::INFO,
    WqeRepeatBlock::INFO,
    WqeRepeatEntry::INFO,
    WqeSrqNextSeg::INFO,
];

/// Returns every layout that this crate defines, once each, for tests, decoders and traces that go through all of them. Those of
/// packets are in `bareverbs_ib_spec::layouts`.
pub fn layouts() -> impl Iterator<Item = &'static LayoutInfo> {
    let commands = || CmdOpcode::ALL.iter().flat_map(|opcode| [opcode.input(), opcode.output()]);
    let first = move |(index, layout): &(usize, &LayoutInfo)| !commands().take(*index).any(|before| before.name == layout.name);
    commands().enumerate().filter(first).map(|(_, layout)| layout).chain(INNER)
}
