//! Errors of completion queues, queue pairs and queries: the control path.

use core::fmt;
use core::time::Duration;

use super::{AnswerFault, Counted, operation_error};
use crate::error::{AddressPart, DeviceLoss, Errno, LinkFault, PollCqError};
use crate::{CqModeration, LinkLayer, Mac, PhysState, PortState, QpAttrMask, QpCap, QpState, QpType, SrqCap};

/// Returns how the physical function of a virtual one enables its port.
const fn remedy_of_function(link_layer: LinkLayer) -> &'static str {
    match link_layer {
        LinkLayer::InfiniBand => {
            "set the GUIDs and the state of this function (ip link set PF vf N state auto); the subnet manager must know virtual ports"
        }
        LinkLayer::Ethernet => {
            "set the state of this function (ip link set PF vf N state auto), or in switchdev mode that of its representor (ip link set \
             REPRESENTOR up), which the switch must forward to"
        }
    }
}

operation_error! {
    /// Why a query was not answered.
    pub enum QueryError<E> {
        /// The device has no such port.
        Port {
            /// The requested port.
            port: u8
        } => Einval, "the device has no port {port}";
    }
    device {
        /// The device refuses, or there is no such entry.
        Device, "the query has no answer";
    }
}

operation_error! {
    /// Why an entry of a GID table was not set or emptied; it is as before.
    pub enum SetGidError<E> {
        /// The device has no such port.
        Port {
            /// The requested port.
            port: u8
        } => Einval, "the device has no port {port}";
        /// An InfiniBand port.
        InfiniBand {
            /// The port.
            port: u8
        } => Eopnotsupp, "port {port} is an InfiniBand port: its GIDs come from its GUID and its subnet manager";
        /// The GID is no address of one port: it is zero or that of a group.
        Address => Einval, "a GID that is zero, or that of a group, is no address of a port";
        /// The MAC address is not that of one port: it is zero or that of a group.
        Mac {
            /// The MAC address.
            mac: Mac
        } => Einval, "MAC address {mac} is not that of a port: PortAttr::mac is the port's own";
        /// There is no such VLAN.
        Vlan {
            /// The VLAN.
            vlan: u16
        } => Einval, "VLAN {vlan}: there are 1 to 4094";
    }
    device {
        /// The device refuses: it has no such entry, for instance.
        Device, "the device did not set the GID";
    }
}

operation_error! {
    /// What a port lacked at the end of the wait for it; `waited` is the time since its start.
    pub enum WaitActiveError<E> {
        /// The device has no such port.
        Port {
            /// The requested port.
            port: u8
        } => Einval, "the device has no port {port}";
        /// The port has no cable, or is switched off: cards report both as `Disabled`.
        Disabled {
            /// The port.
            port: u8,
            /// `Disabled` or `Sleep`.
            phys_state: PhysState,
            /// Time waited.
            waited: Duration
        } => Etimedout, "port {port} has no cable or is switched off ({phys_state:?}) after {waited} s: check the cable, then the port (mlxlink)",
            waited = waited.as_secs();
        /// Nothing answers at the other end of the cable, or there is no cable.
        NoLink {
            /// The port.
            port: u8,
            /// `Polling`, or a state without a name.
            phys_state: PhysState,
            /// Time waited.
            waited: Duration
        } => Etimedout, "port {port} has no link ({phys_state:?}) after {waited} s: check the cable, and that its other end is switched on",
            waited = waited.as_secs();
        /// The two ends of the cable see each other, and have agreed on no link.
        Training {
            /// The port.
            port: u8,
            /// `Training` or `LinkErrorRecovery`.
            phys_state: PhysState,
            /// Time waited.
            waited: Duration
        } => Etimedout, "the link of port {port} is still training ({phys_state:?}) after {waited} s: wait longer, or check the cable and the \
            speeds of both ends", waited = waited.as_secs();
        /// The card has a link, and the port of this function is down: of a virtual function, for instance, that its owner has not
        /// enabled.
        FunctionDown {
            /// The port.
            port: u8,
            /// What it is.
            link_layer: LinkLayer,
            /// Time waited.
            waited: Duration
        } => Etimedout, "the card has a link, and port {port} of this function is down, after {waited} s: where its physical function is, {remedy}",
            waited = waited.as_secs(), remedy = remedy_of_function(*link_layer);
        /// There is a link, and no subnet manager has configured the port (`Init`).
        NoSubnetManager {
            /// The port.
            port: u8,
            /// Time waited.
            waited: Duration
        } => Etimedout, "port {port} has a link, and no subnet manager has configured it (Init) after {waited} s: start one (opensm) on this \
            fabric, or check that it runs", waited = waited.as_secs();
        /// The subnet manager has configured the port and not activated it (`Armed`).
        NotActivated {
            /// The port.
            port: u8,
            /// Time waited.
            waited: Duration
        } => Etimedout, "the subnet manager has configured port {port} and not activated it (Armed) after {waited} s: check the subnet manager \
            (opensm)", waited = waited.as_secs();
        /// The port is active without a LID.
        NoLid {
            /// The port.
            port: u8,
            /// Time waited.
            waited: Duration
        } => Etimedout, "port {port} is active without a LID after {waited} s: check the subnet manager (opensm)",
            waited = waited.as_secs();
        /// The caller ended the wait.
        Stopped {
            /// The port.
            port: u8,
            /// State of the port.
            state: PortState,
            /// Physical state of the port.
            phys_state: PhysState,
            /// Time waited.
            waited: Duration
        } => Eintr, "the wait for port {port} was stopped after {waited} s; it is {state:?} ({phys_state:?})",
            waited = waited.as_secs();
    }
    device {
        /// The device does not answer, or is broken.
        Device, "the device failed during the wait for its port";
    }
}

operation_error! {
    /// Why a completion queue was not created.
    pub enum CreateCqError<E> {
        /// No entries requested, or more than the device has.
        Entries {
            /// Requested entries.
            entries: u32,
            /// Maximum of the device.
            max: u32
        } => Einval, "a completion queue of {entries} entries: the device offers 1 to {max}";
        /// The table is full.
        Full {
            /// Places of the table.
            capacity: usize
        } => Enomem, "the table of completion queues is full: the Storage has {places} (cqs)", places = Counted(*capacity as u64, "place");
        /// What the device or the backend answered cannot be. Nothing that was there is touched.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses.
        Device, "the device made no completion queue";
    }
}

operation_error! {
    /// Why a completion queue was not resized; it is as before.
    pub enum ResizeCqError<E> {
        /// No entries requested, or more than the device has.
        Entries {
            /// Requested entries.
            entries: u32,
            /// Maximum of the device.
            max: u32
        } => Einval, "a completion queue of {entries} entries: the device offers 1 to {max}";
        /// The queue is of another `Verbs`.
        Stale => Einval, "no such completion queue here: it is destroyed, or another device's";
    }
    device {
        /// The device refuses: for instance, more completions wait than there would be room for.
        Device, "the device did not resize the completion queue (poll first)";
    }
}

operation_error! {
    /// Why the moderation of a completion queue's events was not changed; it is as before.
    pub enum ModifyCqError<E> {
        /// The handle is stale.
        Stale => Einval, "the completion queue's handle is stale: its object is destroyed, or another device's";
        /// The device does not moderate completion events.
        Unsupported => Eopnotsupp, "the device does not moderate completion events";
        /// A count or a period that the device does not have.
        Moderation {
            /// Requested.
            asked: CqModeration,
            /// Maximum of the device.
            max: CqModeration
        } => Einval, "an event for {count} completions or after {period} µs: the device offers up to {max_count} and {max_period} µs",
            count = asked.count, period = asked.period, max_count = max.count, max_period = max.period;
    }
    device {
        /// The device refuses.
        Device, "the device did not change the moderation";
    }
}

operation_error! {
    /// Why a completion queue was not destroyed; it is as before.
    pub enum DestroyCqError<E> {
        /// The handle is stale, or the queue is of another `Verbs`.
        Stale => Einval, "no such completion queue here: it is destroyed, or another device's";
        /// Queue pairs complete into it.
        Busy {
            /// How many work queues.
            users: u32
        } => Ebusy, "the completion queue serves {queues}: destroy the queue pairs first", queues = Counted((*users).into(), "work queue");
        /// Its value was not dropped: [`Verbs::destroy_cq`](crate::Verbs::destroy_cq) takes that.
        Owned => Ebusy, "the value of the completion queue was not dropped: destroy it by that value (destroy_cq)";
        /// The interrupt handler is taken ([`Verbs::take_interrupt_handler`](crate::Verbs::take_interrupt_handler)), and may have events of
        /// the queue. Its drop gives it back.
        EventsTaken => Ebusy, "the interrupt handler is taken: drop it first";
    }
    device {
        /// The device refuses.
        Device, "the device did not destroy the completion queue";
    }
}

operation_error! {
    /// Why a completion queue was not armed.
    pub enum NotifyCqError {
        /// The device is lost.
        DeviceLost {
            /// Why the device is lost.
            loss: DeviceLoss
        } => Eio, "the device is lost: {loss}";
    }
}

operation_error! {
    /// Why the interrupt handler was not split off from the verbs.
    pub enum TakeError {
        /// The interrupt handler is taken already.
        Taken => Ebusy, "the interrupt handler is taken already";
    }
}

operation_error! {
    /// Why a queue pair was not created; nothing is created.
    pub enum CreateQpError<E> {
        /// The protection domain's handle is stale.
        StalePd => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// A completion queue's handle is stale.
        StaleCq => Einval, "a completion queue's handle is stale: its object is destroyed, or another device's";
        /// The shared receive queue's handle is stale.
        StaleSrq => Einval, "the shared receive queue's handle is stale: its object is destroyed, or another device's";
        /// The shared receive queue is one of XRC: only requests of XRC initiators name it.
        XrcSrq => Einval, "an XRC shared receive queue serves no queue pair of another transport";
        /// An XRC queue pair has a domain: [`Verbs::create_xrc_send_qp`](crate::Verbs::create_xrc_send_qp) and
        /// [`Verbs::create_xrc_recv_qp`](crate::Verbs::create_xrc_recv_qp) create one.
        NoXrcDomain => Einval, "an XRC queue pair needs a domain: create_xrc_send_qp, create_xrc_recv_qp";
        /// The XRC domain is of another `Verbs`.
        StaleXrcDomain => Einval, "no such XRC domain here: it is destroyed, or another device's";
        /// The transport has no shared receive queues.
        SrqTransport {
            /// The transport.
            qp_type: QpType
        } => Einval, "a queue pair of type {qp_type:?} takes from no shared receive queue";
        /// No rings in the storage are as long as the capacities need.
        Rings {
            /// Requested send requests.
            max_send_wr: u32,
            /// Requested receives.
            max_recv_wr: u32,
            /// Blocks of the send ring that they need.
            send: u32,
            /// Entries of the receive ring that they need.
            recv: u32,
            /// Blocks of the longest send ring of the storage, and entries of the longest receive ring.
            longest: [u32; 2]
        } => Enomem, "{max_send_wr} send requests need a ring of {send} blocks, {max_recv_wr} receives one of {recv} entries: no QpRings \
                      of the Storage are as long as both, the longest have {blocks} blocks and {entries} entries: give it longer ones, or \
                      ask for less (a bind of a window takes three blocks)", blocks = longest[0], entries = longest[1];
        /// More than the device has.
        Capacity {
            /// The requested capacities.
            wanted: QpCap,
            /// The maximum.
            max: QpCap
        } => Einval, "the device has no such capacities: {excess}", excess = Excess { wanted, max };
        /// The table is full, or all rings that are long enough are in use.
        Full {
            /// Places of the table.
            capacity: usize,
            /// Those of them whose rings are long enough.
            fitting: usize
        } => Enomem, "no queue pair is free: the Storage has {places} (qps), {fitting} of them with rings that are long enough", places = Counted(*capacity as u64, "place");
        /// All free rings that are long enough belonged to a queue pair with completions that may wait in a completion queue.
        /// Poll that queue until it is empty.
        Draining => Eagain, "completions of a destroyed queue pair are not polled yet: poll the completion queues until they are empty";
        /// What the device or the backend answered cannot be. Nothing that was there is touched.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses.
        Device, "the device made no queue pair";
    }
}

operation_error! {
    /// Why a queue pair was not modified.
    pub enum ModifyQpError<E> {
        /// The handle is stale, or the queues are not those of one queue pair of these verbs.
        Stale => Einval, "no such queue pair here: it is destroyed or another device's, or its two queues are of different queue pairs";
        /// CUR_STATE does not agree with the state.
        CurState {
            /// State that the caller assumes.
            assumed: QpState,
            /// State that it is.
            actual: QpState
        } => Einval, "the queue pair is in {actual:?}, not in {assumed:?}";
        /// No transition leads there for this transport.
        Transition {
            /// State before.
            from: QpState,
            /// Requested state.
            to: QpState
        } => Einval, "no transition leads from {from:?} to {to:?}: {next}", next = next_state(*from);
        /// Required attributes are missing, or some have no place in this transition.
        Attributes {
            /// State before.
            from: QpState,
            /// Requested state.
            to: QpState,
            /// Required and not given.
            missing: QpAttrMask,
            /// Given and not allowed.
            forbidden: QpAttrMask
        } => Einval, "from {from:?} to {to:?}: {wrong}", wrong = WrongAttributes { missing: *missing, forbidden: *forbidden };
        /// An attribute outside its range.
        Value {
            /// Which one.
            attribute: QpAttrMask,
            /// Which part of a path: of AV, and of ALT_PATH unless it is `alt_timeout`.
            part: Option<AddressPart>,
            /// Its value, or that of the part; of ACCESS_FLAGS the flags that a queue pair does not have.
            value: u32,
            /// Minimum.
            min: u32,
            /// Maximum.
            max: u32
        } => Einval, "{name} has the value {value}, which is not between {min} and {max}{zero}", name = AttributeName(*attribute, *part),
            zero = if *part == Some(AddressPart::PortNum) { " (0 stands for the port of the queue pair)" } else { "" };
        /// A path does not fit the link layer of its port.
        Path {
            /// AV or ALT_PATH.
            attribute: QpAttrMask,
            /// What does not fit.
            fault: LinkFault
        } => Einval, "{attribute}: {fault}";
        /// RESET needs both queues of the queue pair: [`Verbs::reset_qp`](crate::Verbs::reset_qp).
        Owned => Ebusy, "RESET needs both queues of the queue pair: reset_qp";
        /// Stale completions may wait in a completion queue: from before the last RESET, or of an earlier
        /// queue pair with the number. Poll that queue until it is empty.
        Draining => Eagain, "stale completions, from before the RESET or of an earlier queue pair with the number, may not be polled yet: poll the completion \
            queues until they are empty";
    }
    device {
        /// The device refuses; the queue pair is as before.
        Device, "the device did not modify the queue pair";
    }
}

operation_error! {
    /// Why a queue pair was not queried.
    pub enum QueryQpError<E> {
        /// The handle is stale.
        Stale => Einval, "the queue pair's handle is stale: its object is destroyed, or another device's";
    }
    device {
        /// The device refuses.
        Device, "the device does not answer the query";
    }
}

operation_error! {
    /// Why a queue pair was not destroyed.
    pub enum DestroyQpError<E> {
        /// The handle is stale, or the queues are not those of one queue pair of these verbs.
        Stale => Einval, "no such queue pair here: it is destroyed or another device's, or its two queues are of different queue pairs";
        /// A queue of it was not dropped: [`Verbs::destroy_qp`](crate::Verbs::destroy_qp) takes both.
        Owned => Ebusy, "a queue of the queue pair was not dropped: destroy it by its queues (destroy_qp)";
        /// It is in multicast groups: [`Verbs::detach_mcast`](crate::Verbs::detach_mcast).
        Attached {
            /// How many.
            groups: u32
        } => Ebusy, "the queue pair is in {groups}: detach it first (detach_mcast)", groups = Counted((*groups).into(), "multicast group");
    }
    device {
        /// The device refuses; the queue pair is as before.
        Device, "the device did not destroy the queue pair";
    }
}

operation_error! {
    /// Why a queue was not drained.
    pub enum DrainError<E> {
        /// The queue is of another `Verbs`.
        Stale => Einval, "no such queue pair here: it is destroyed, or another device's";
        /// The requests of the queue do not complete into this completion queue.
        OtherCq => Einval, "the requests of the queue complete into another completion queue";
        /// Not every request was done in time. The queue pair is in ERR, and the call may be repeated.
        TimedOut {
            /// How many were left.
            left: u32
        } => Etimedout, "{left} not done in time: call again, or give up what is left (reset_qp, destroy_qp)", left = Counted((*left).into(), "request");
        /// The device is lost. Each request of the queue was given as flushed; whether the device has executed it is not known.
        DeviceLost {
            /// Why the device is lost.
            loss: DeviceLoss
        } => Eio, "the device is lost: {loss}";
        /// A completion was invalid, or the completion queue is broken. The call may be repeated for the first.
        Poll {
            /// What a poll says of it.
            error: PollCqError
        } => Eio, "{error}";
    }
    device {
        /// The device refuses; the queue pair is as before.
        Device, "the device did not end the queue pair";
    }
}

operation_error! {
    /// Why a shared receive queue was not created; nothing is created.
    pub enum CreateSrqError<E> {
        /// The protection domain's handle is stale.
        StalePd => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// No requests, or more than the device has.
        Capacity {
            /// The requested capacities.
            wanted: SrqCap,
            /// The maximum.
            max: SrqCap
        } => Einval, "a shared receive queue of {requests} requests with {sges} SGEs: the device offers 1 to {max_requests} with up to {max_sges}",
            requests = wanted.max_wr, sges = wanted.max_sge, max_requests = max.max_wr, max_sges = max.max_sge;
        /// No entries in the storage are as many as the capacities need.
        Entries {
            /// Requested requests.
            max_wr: u32,
            /// Slots that they need.
            slots: u32,
            /// Slots of the longest.
            most: u32
        } => Enomem, "{max_wr} receives need {slots} slots: no SrqEntries of the Storage are as many, the longest have {most}";
        /// The table is full, or all entries that are enough are in use.
        Full {
            /// Places of the table.
            capacity: usize,
            /// Those of them whose entries are enough.
            fitting: usize
        } => Enomem, "no shared receive queue is free: the Storage has {places} (srqs), {fitting} of them with enough entries", places = Counted(*capacity as u64, "place");
        /// The XRC domain is of another `Verbs`.
        StaleXrcDomain => Einval, "no such XRC domain here: it is destroyed, or another device's";
        /// The completion queue is of another `Verbs`.
        StaleCq => Einval, "no such completion queue here: it is destroyed, or another device's";
        /// All free entries that are enough belonged to an XRC shared receive queue with completions that may wait in a completion
        /// queue. Poll that queue until it is empty.
        Draining => Eagain, "completions of a destroyed shared receive queue are not polled yet: poll the completion queues until they are empty";
        /// What the device or the backend answered cannot be. Nothing that was there is touched.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses.
        Device, "the device made no shared receive queue";
    }
}

operation_error! {
    /// Why the limit of a shared receive queue was not set; it is as before.
    pub enum ArmSrqError<E> {
        /// The handle is stale.
        Stale => Einval, "the shared receive queue's handle is stale: its object is destroyed, or another device's";
        /// More than the queue has requests.
        Limit {
            /// The requested limit.
            limit: u32,
            /// The maximum.
            max: u32
        } => Einval, "a limit of {requests}: the queue takes up to {max}", requests = Counted((*limit).into(), "request");
    }
    device {
        /// The device refuses.
        Device, "the device did not set the limit";
    }
}

operation_error! {
    /// Why a shared receive queue was not queried.
    pub enum QuerySrqError<E> {
        /// The handle is stale.
        Stale => Einval, "the shared receive queue's handle is stale: its object is destroyed, or another device's";
    }
    device {
        /// The device refuses.
        Device, "the device does not answer the query";
    }
}

operation_error! {
    /// Why a shared receive queue was not destroyed; it is as before.
    pub enum DestroySrqError<E> {
        /// The handle is stale, or the queue is of another `Verbs`.
        Stale => Einval, "no such shared receive queue here: it is destroyed, or another device's";
        /// Queue pairs take their receives from it.
        Busy {
            /// How many.
            users: u32
        } => Ebusy, "the shared receive queue serves {queue_pairs}: destroy_qp first", queue_pairs = Counted((*users).into(), "queue pair");
        /// Its value was not dropped: [`Verbs::destroy_srq`](crate::Verbs::destroy_srq) takes that.
        Owned => Ebusy, "the value of the shared receive queue was not dropped: destroy it by that value (destroy_srq)";
    }
    device {
        /// The device refuses.
        Device, "the device did not destroy the shared receive queue";
    }
}

operation_error! {
    /// Why no address handle was made.
    pub enum CreateAhError<E> {
        /// The protection domain's handle is stale.
        StalePd => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// A part of the address outside its range.
        Value {
            /// Which one.
            part: AddressPart,
            /// Value of the part, in its own unit.
            value: u32,
            /// Minimum.
            min: u32,
            /// Maximum.
            max: u32
        } => Einval, "{part} of the address is {value}, which is not between {min} and {max}";
        /// The address does not fit the link layer of the port.
        Path {
            /// What does not fit.
            fault: LinkFault
        } => Einval, "{fault}";
    }
    device {
        /// The device has no such address.
        Device, "the device has no such address";
    }
}

operation_error! {
    /// Why a queue pair was not attached to a multicast group; it is as before.
    pub enum AttachMcastError<E> {
        /// The handle is stale.
        Stale => Einval, "the queue pair's handle is stale: its object is destroyed, or another device's";
        /// The queue pair is none for datagrams.
        Transport {
            /// Transport of the queue pair.
            qp_type: QpType
        } => Einval, "a queue pair of type {qp_type:?} is in no group: only datagrams are sent to one";
        /// The GID is none of a group: its first byte is not 0xff, nor is it on an Ethernet port a mapped address from 224.0.0.0 to
        /// 239.255.255.255.
        NoGroup => Einval, "the GID names no multicast group";
        /// It is in as many groups as a queue pair can be in.
        Full {
            /// How many: [`MCAST_GROUPS`](crate::MCAST_GROUPS).
            groups: u32
        } => Enomem, "the queue pair is in {groups} groups already";
    }
    device {
        /// The device refuses.
        Device, "the device did not attach the queue pair";
    }
}

operation_error! {
    /// Why a queue pair was not detached from a multicast group; it is as before.
    pub enum DetachMcastError<E> {
        /// The handle is stale.
        Stale => Einval, "the queue pair's handle is stale: its object is destroyed, or another device's";
        /// The queue pair is not in this group.
        NotAttached => Einval, "the queue pair is not in this group";
    }
    device {
        /// The device refuses.
        Device, "the device did not detach the queue pair";
    }
}

operation_error! {
    /// Why no event could be taken.
    pub enum PollEventError<E> {
    }
    device {
        /// The device returned no valid event, or is lost.
        Device, "no event could be taken";
    }
}

/// An attribute and the field of it that is wrong, as programs call them.
struct AttributeName(QpAttrMask, Option<AddressPart>);

impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attribute, part) = self;
        match part {
            Some(part) => write!(f, "{part} of {attribute}"),
            None if *attribute == QpAttrMask::ALT_PATH => f.write_str("alt_timeout of ALT_PATH"),
            None => attribute.fmt(f),
        }
    }
}

/// What leads on from a state, in words, for a program that asked for something else.
const fn next_state(from: QpState) -> &'static str {
    match from {
        QpState::Reset => "Init is next (modify_qp_to_rts passes through all)",
        QpState::Init => "Rtr is next; reset_qp leads back to Reset",
        QpState::Rtr => "Rts is next; reset_qp leads back to Reset",
        _ => "reset_qp leads back to Reset",
    }
}

/// Attributes that are wrong for a transition, in words.
struct WrongAttributes {
    missing: QpAttrMask,
    forbidden: QpAttrMask,
}

impl fmt::Display for WrongAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { missing, forbidden } = self;
        match (missing.is_empty(), forbidden.is_empty()) {
            (false, false) => write!(f, "{missing} must be given, {forbidden} must not"),
            (false, true) => write!(f, "{missing} must be given"),
            _ => write!(f, "{forbidden} must not be given"),
        }
    }
}

/// The capacities that exceed the device's, in words.
struct Excess<'a> {
    wanted: &'a QpCap,
    max: &'a QpCap,
}

impl fmt::Display for Excess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, max } = self;
        let all = [
            ("max_send_wr", wanted.max_send_wr, max.max_send_wr),
            ("max_recv_wr", wanted.max_recv_wr, max.max_recv_wr),
            ("max_send_sge", wanted.max_send_sge, max.max_send_sge),
            ("max_recv_sge", wanted.max_recv_sge, max.max_recv_sge),
            ("max_inline_data", wanted.max_inline_data, max.max_inline_data),
        ];
        let mut comma = "";
        for (name, wanted, max) in all.into_iter().filter(|(_, wanted, max)| wanted > max) {
            write!(f, "{comma}{name} is {wanted}, the device offers at most {max}")?;
            comma = "; ";
        }
        Ok(())
    }
}

operation_error! {
    /// Why an XRC domain was not made.
    pub enum AllocXrcdError<E> {
        /// There are as many as there can be: [`XRC_DOMAINS`](crate::XRC_DOMAINS). One whose value was dropped counts.
        Full {
            /// How many.
            capacity: usize
        } => Enomem, "there are {capacity} XRC domains already, which is all that there can be";
        /// What the device answered cannot be. Nothing that was there is touched.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses, or has no XRC.
        Device, "the device made no XRC domain";
    }
}

operation_error! {
    /// Why an XRC domain was not destroyed; it is as before.
    pub enum DeallocXrcdError<E> {
        /// It is of another `Verbs`.
        Stale => Einval, "no such XRC domain here: it is destroyed, or another device's";
        /// Queues are in it.
        Busy {
            /// How many shared receive queues and queue pairs.
            users: u32
        } => Ebusy, "the XRC domain has {queues}: destroy its queues first", queues = Counted((*users).into(), "queue");
    }
    device {
        /// The device refuses.
        Device, "the device did not destroy the XRC domain";
    }
}
