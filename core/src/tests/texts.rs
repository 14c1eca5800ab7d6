//! Texts and numbers that programs print: against those of Linux and of rdma-core, and that each error has its fact.

use std::collections::HashSet;
use std::format;
use std::string::{String, ToString};

use crate::error::{
    AddressPart, AllocPdError, BadWr, BindRefused, DeallocMwError, DeallocPdError, DeregMrError, DestroyCqError,
    DestroyQpError, DeviceLoss, Errno, LinkFault, PostRecvError, PostSendError, RegMrError, SgeFault, StaleHandle,
};
use crate::platform::{OutOfRange, TooFewPages};
use crate::{
    Access, Completion, Lid, Lkey, Mac, MwType, Payload, QpHandle, QpState, QpType, Qpn, Refused, SendFlags, SendOp, SendWr,
    Sge, Srqn, WcError, WcOpcode, WcStatus,
};

/// Of `errno-base.h` and `errno.h` of Linux.
const ERRNOS: [(Errno, i32, &str); 16] = [
    (Errno::Eperm, 1, "EPERM"),
    (Errno::Eintr, 4, "EINTR"),
    (Errno::Eio, 5, "EIO"),
    (Errno::Eagain, 11, "EAGAIN"),
    (Errno::Enomem, 12, "ENOMEM"),
    (Errno::Eacces, 13, "EACCES"),
    (Errno::Efault, 14, "EFAULT"),
    (Errno::Ebusy, 16, "EBUSY"),
    (Errno::Enodev, 19, "ENODEV"),
    (Errno::Einval, 22, "EINVAL"),
    (Errno::Enospc, 28, "ENOSPC"),
    (Errno::Erange, 34, "ERANGE"),
    (Errno::Ebadmsg, 74, "EBADMSG"),
    (Errno::Eopnotsupp, 95, "EOPNOTSUPP"),
    (Errno::Enotconn, 107, "ENOTCONN"),
    (Errno::Etimedout, 110, "ETIMEDOUT"),
];

#[test]
fn errnos_are_those_of_linux() {
    for (errno, number, name) in ERRNOS {
        assert_eq!((errno.number(), errno.name(), errno.to_string().as_str()), (number, name, name));
    }
}

/// Of rdma-core's `verbs.c`.
const STATUSES: [(WcStatus, &str); 15] = [
    (WcStatus::Success, "success"),
    (WcStatus::LocLenErr, "local length error"),
    (WcStatus::LocQpOpErr, "local QP operation error"),
    (WcStatus::LocProtErr, "local protection error"),
    (WcStatus::WrFlushErr, "Work Request Flushed Error"),
    (WcStatus::MwBindErr, "memory management operation error"),
    (WcStatus::BadRespErr, "bad response error"),
    (WcStatus::LocAccessErr, "local access error"),
    (WcStatus::RemInvReqErr, "remote invalid request error"),
    (WcStatus::RemAccessErr, "remote access error"),
    (WcStatus::RemOpErr, "remote operation error"),
    (WcStatus::RetryExcErr, "transport retry counter exceeded"),
    (WcStatus::RnrRetryExcErr, "RNR retry counter exceeded"),
    (WcStatus::RemAbortErr, "aborted error"),
    (WcStatus::GeneralErr, "general error"),
];

#[test]
fn statuses_print_what_libibverbs_prints() {
    for (status, text) in STATUSES {
        assert_eq!(status.to_string(), text);
    }
}

/// What a program prints of a failed request: the name, where to look, and the device's own code. Three names say all.
#[test]
fn a_failed_request_says_where_to_look() {
    let mut remedies = HashSet::new();
    for (status, name) in STATUSES {
        let failed = Completion { status, vendor_err: 0x5a, ..Completion::EMPTY }.result();
        let Err(error) = failed else {
            assert_eq!(status, WcStatus::Success);
            continue;
        };
        assert_eq!(error, WcError { status, vendor_err: 0x5a, loss: None });
        let text = error.to_string();
        let remedy = text.strip_prefix(name).and_then(|text| text.strip_suffix(" (vendor error 0x5a)")).unwrap();
        match status {
            WcStatus::RemAbortErr | WcStatus::GeneralErr => assert_eq!(remedy, ""),
            _ => assert!(remedy.starts_with(": ") && remedies.insert(String::from(remedy)), "{text}"),
        }
    }
    assert_eq!(remedies.len(), 12);
}

/// Checks a text for each of these words.
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

#[test]
fn errors_of_sends_have_their_facts_and_errno() {
    type E = PostSendError;
    let lkey = Lkey::new(0x1234);
    let cases: [(E, Errno, &[&str]); 22] = [
        (E::NotReady { state: QpState::Init }, Errno::Enotconn, &["Init", "modify_qp_to_rts"]),
        (E::DeviceLost { loss: DeviceLoss::Reset }, Errno::Eio, &["reset from outside"]),
        (E::Opcode { opcode: WcOpcode::RdmaRead, qp_type: QpType::Uc }, Errno::Einval, &["Uc", "RdmaRead"]),
        (E::NoSendWithInv, Errno::Einval, &["reliable", "SendWithInv"]),
        (E::NoAtomics, Errno::Eopnotsupp, &["query_device"]),
        (E::NoAddressHandle, Errno::Einval, &["SendWr::send_to"]),
        (E::Destination { qp_type: QpType::Rc }, Errno::Einval, &["Rc", "destination"]),
        (E::NoSrqNumber, Errno::Einval, &["SendWr::to_srq"]),
        (E::SrqNumber { srqn: Srqn::new(0x100_0007) }, Errno::Einval, &["24 bits"]),
        (E::NotToSrq, Errno::Einval, &["shared receive queue"]),
        (E::AddressDomain, Errno::Eperm, &["another protection domain"]),
        (E::RemoteQpn { qpn: Qpn::new(0x100_0009) }, Errno::Einval, &["24 bits"]),
        (E::Flags { flags: SendFlags::INLINE }, Errno::Einval, &["INLINE", "SendWr::send"]),
        (E::Flags { flags: SendFlags::FENCE }, Errno::Einval, &["FENCE"]),
        (E::SgeCount { count: 9, max: 4 }, Errno::Einval, &["9 SGEs", "takes 4"]),
        (E::InlineSize { length: 300, max: 128 }, Errno::Einval, &["300", "128", "SGEs of a region"]),
        (E::MessageSize { max: 4096 }, Errno::Einval, &["4096"]),
        (E::AtomicLength { length: 8, needed: 4 }, Errno::Einval, &["4 bytes, not 8"]),
        (E::AtomicAlignment { addr: 0xabc, needed: 8 }, Errno::Einval, &["0xabc", "multiple of 8"]),
        (E::Sge { index: 2, lkey, fault: SgeFault::Domain }, Errno::Eperm, &["SGE 2", "another protection domain"]),
        (E::QueueFull { needed: 3, free: 2, blocks: 64 }, Errno::Enospc, &["3", "2", "64"]),
        (E::TooManyPendingBinds, Errno::Enomem, &["bind"]),
    ];
    let mut texts = HashSet::new();
    for (error, errno, words) in cases {
        assert_eq!(error.errno(), errno, "{error:?}");
        has(&error.to_string(), words);
        assert!(texts.insert(error.to_string()), "{error:?} has the text of another one");
    }
    has(&BadWr { index: 5, error: E::NoAtomics }.to_string(), &["request 5", "atomic"]);
}

#[test]
fn errors_of_receives_have_their_facts_and_errno() {
    type E = PostRecvError;
    let range = SgeFault::Range { addr: 0x1000, length: 64, start: 0x2000, size: 16 };
    let cases: [(E, Errno, &[&str]); 7] = [
        (E::NotReady { state: QpState::Reset }, Errno::Enotconn, &["Reset", "modify_qp_to_rts"]),
        (E::DeviceLost { loss: DeviceLoss::Gone }, Errno::Eio, &["is gone"]),
        (E::SgeCount { count: 5, max: 3 }, Errno::Einval, &["5 SGEs", "takes 3"]),
        (E::Sge { index: 1, lkey: Lkey::new(0x77), fault: range }, Errno::Erange, &["SGE 1", "0x1000", "0x2000"]),
        (E::Sge { index: 0, lkey: Lkey::new(0x77), fault: SgeFault::Access }, Errno::Eacces, &["LOCAL_WRITE"]),
        (E::QueueFull { capacity: 8 }, Errno::Enospc, &["8 receives", "max_recv_wr"]),
        (E::SharedQueueFull { capacity: 16 }, Errno::Enospc, &["16 receives", "max_wr"]),
    ];
    for (error, errno, words) in cases {
        assert_eq!(error.errno(), errno, "{error:?}");
        has(&error.to_string(), words);
    }
}

#[test]
fn losses_parts_and_refusals_have_their_texts() {
    let losses = [DeviceLoss::NoAnswer, DeviceLoss::Gone, DeviceLoss::Reset, DeviceLoss::Fatal, DeviceLoss::Abandoned];
    assert_eq!(losses.map(|loss| loss.to_string()).iter().collect::<HashSet<_>>().len(), losses.len());
    // As the fields are called, so that a reader finds them.
    let parts = [AddressPart::PortNum, AddressPart::Sl, AddressPart::SrcPathBits, AddressPart::FlowLabel];
    assert_eq!(parts.map(|part| part.to_string()), ["port_num", "sl", "src_path_bits", "flow_label"]);
    has(&TooFewPages { wanted: 12_874, available: 512 }.to_string(), &["12874", "512", "4096"]);
    let refused = Refused { error: PostSendError::NoAtomics, returned: Some([0_u8; 4]) };
    assert_eq!(refused.to_string(), PostSendError::NoAtomics.to_string());
    assert_eq!(format!("{refused:?}"), "Refused { error: NoAtomics, returned: true }");
    assert_eq!(refused.into_error(), PostSendError::NoAtomics);
}

/// One of something is no plural.
#[test]
fn one_is_said_of_one() {
    type Device = super::mock::MockError;
    let range = SgeFault::Range { addr: 0x1000, length: 1, start: 0x2000, size: 1 };
    let one = [
        (DeregMrError::<Device>::Busy { bindings: 1 }.to_string(), "1 binding "),
        (DeallocMwError::<Device>::Busy { binds: 1 }.to_string(), "1 request "),
        (DestroyQpError::<Device>::Attached { groups: 1 }.to_string(), "1 multicast group:"),
        (DestroyCqError::<Device>::Busy { users: 1 }.to_string(), "1 work queue:"),
        (DeallocPdError::<Device>::Busy { users: 1 }.to_string(), "1 object:"),
        (AllocPdError::<Device>::Full { capacity: 1 }.to_string(), "1 place "),
        (PostSendError::SgeCount { count: 1, max: 0 }.to_string(), "1 SGE,"),
        (PostRecvError::QueueFull { capacity: 1 }.to_string(), "1 receive,"),
        (range.to_string(), "1 byte at 0x1000 is not inside the region, which has 1 byte from"),
        (OutOfRange { offset: 8, len: 1, size: 8 }.to_string(), "1 byte at"),
    ];
    for (text, words) in &one {
        has(text, &[words]);
    }
    has(&DeregMrError::<Device>::Busy { bindings: 2 }.to_string(), &["2 bindings "]);
}

/// What a program can do about it, by the name that it has in the API.
#[test]
fn refusals_of_binds_and_regions_name_what_mends_them() {
    type Device = super::mock::MockError;
    let cases: [(String, &[&str]); 9] = [
        (BindRefused::WindowType { kind: MwType::Type1 }.to_string(), &["Type1", "bind_type1"]),
        (BindRefused::WindowType { kind: MwType::Type2 }.to_string(), &["Type2", "SendWr::bind_mw"]),
        (BindRefused::AccessFlags { access: Access::LOCAL_WRITE }.to_string(), &["LOCAL_WRITE", "remote rights"]),
        (BindRefused::NoBindRight.to_string(), &["Access::MW_BIND", "rereg_mr"]),
        (BindRefused::NoLocalWrite.to_string(), &["Access::LOCAL_WRITE", "rereg_mr"]),
        (SgeFault::Access.to_string(), &["Access::LOCAL_WRITE", "rereg_mr"]),
        (SgeFault::Domain.to_string(), &["rereg_mr"]),
        (RegMrError::<Device>::Full { capacity: 64 }.to_string(), &["64 places", "dereg_mr_raw"]),
        (DestroyQpError::<Device>::Stale.to_string(), &["two queues are of different queue pairs"]),
    ];
    for (text, words) in &cases {
        has(text, words);
    }
}

#[test]
fn faults_of_a_path_and_a_stale_handle_have_their_facts_and_errno() {
    type F = LinkFault;
    let (lid, mac) = (Lid::new(0xc123), Mac([0x33, 0x33, 0, 0, 0, 7]));
    let cases: [(F, &[&str]); 10] = [
        (F::NoRoute, &["route", "AddressVector::grh"]),
        (F::NoMac, &["needs the MAC address", "AddressVector::dmac"]),
        (F::Lid { lid }, &["no LIDs", "0xc123"]),
        (F::Priority { sl: 9 }, &["9", "AddressVector::sl"]),
        (F::HopLimit, &["GlobalRoute::hop_limit"]),
        (F::Group { mac }, &["33:33:00:00:00:07", "Gid::group_mac"]),
        (F::Mac, &["no MAC addresses"]),
        (F::NoLid { lid }, &["0xc123", "wait_active"]),
        (F::GroupLid { lid }, &["0xc123", "0xc000"]),
        (F::AlternatePath, &["alternate"]),
    ];
    let mut texts = HashSet::new();
    for (fault, words) in cases {
        assert_eq!(fault.errno(), Errno::Einval);
        has(&fault.to_string(), words);
        assert!(texts.insert(fault.to_string()), "{fault:?} has the text of another one");
    }
    has(&StaleHandle.to_string(), &["stale", "destroyed"]);
}

#[test]
fn a_payload_is_made_of_what_programs_have() {
    let sge = Sge { addr: 0x1000, length: 8, lkey: Lkey::new(1) };
    let of = |payload: Payload<'_>| match payload {
        Payload::Sges(sges) => format!("{} SGEs", sges.len()),
        Payload::Inline(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
    };
    assert_eq!(of(Payload::from(&sge)), "1 SGEs");
    assert_eq!(of(Payload::from(&[sge, sge])), "2 SGEs");
    assert_eq!(of(Payload::from("text")), "text");
    assert_eq!(of(Payload::from(b"bytes")), "bytes");
    let wr = SendWr::send_with_imm("x", [1, 2, 3, 4]);
    assert!(matches!(wr.op, SendOp::SendWithImm { imm: [1, 2, 3, 4], .. }) && wr.flags.is_empty());
}

#[test]
fn handles_are_keys_of_a_hash_table() {
    let handle = |index, generation| QpHandle::new(index, generation);
    let all: HashSet<QpHandle> = [handle(1, 2), handle(1, 3), handle(2, 2), handle(1, 2)].into_iter().collect();
    assert_eq!(all.len(), 3);
    assert_eq!(format!("{:?}", handle(7, 9)), "#7.9");
}
