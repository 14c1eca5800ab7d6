//! Every layout of the crate as data.

use crate::*;

const ALL: &[LayoutInfo] = &[
    Smp::INFO,
    NodeInfo::INFO,
    PortInfo::INFO,
    Notice::INFO,
    MKeyViolationNotice::INFO,
    KeyViolationNotice::INFO,
    MadHeader::INFO,
    CmReqPath::INFO,
    CmReq::INFO,
    CmMra::INFO,
    CmRej::INFO,
    CmRep::INFO,
    CmRtu::INFO,
    CmDreq::INFO,
    CmDrep::INFO,
    CmLap::INFO,
    CmApr::INFO,
    CmSidrReq::INFO,
    CmSidrRep::INFO,
    IpCmPrivateData::INFO,
    LocalRouteHeader::INFO,
    GlobalRouteHeader::INFO,
    BaseTransportHeader::INFO,
    XrcHeader::INFO,
    DatagramHeader::INFO,
    RdmaHeader::INFO,
    AtomicHeader::INFO,
    AcknowledgeHeader::INFO,
    AtomicAcknowledgeHeader::INFO,
    ImmediateHeader::INFO,
    InvalidateHeader::INFO,
    EthernetAddresses::INFO,
    VlanHeader::INFO,
    Ipv4Header::INFO,
    UdpHeader::INFO,
];

/// Returns every layout that this crate defines, once each, for tests, decoders and traces that go through all of them.
pub fn layouts() -> impl Iterator<Item = &'static LayoutInfo> {
    ALL.iter()
}
