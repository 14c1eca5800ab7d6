//! The state machine of queue pairs: which transitions a transport has, and the attributes that each requires and allows. From
//! IBTA 11.2.5.2; where that leaves a choice, as Linux does.

use crate::QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use crate::{QpAttrMask as M, QpState, QpType};

/// Attributes of one transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) required: M,
    pub(crate) optional: M,
}

/// One transition for some transports.
struct Row {
    from: QpState,
    to: QpState,
    transports: &'static [QpType],
    rule: Rule,
}

macro_rules! mask {
    ($($flag:ident)|*) => { M::empty()$(.union(M::$flag))* };
}

macro_rules! rows {
    ($($from:ident -> $to:ident [$($transport:ident),+] needs [$($need:ident)|*] allows [$($allow:ident)|*];)+) => {
        &[$(Row {
            from: $from,
            to: $to,
            transports: &[$(QpType::$transport),+],
            rule: Rule { required: mask!($($need)|*), optional: mask!($($allow)|*) },
        }),+]
    };
}

/// Every transition but those that each state has: to RESET and to ERR, without attributes.
const ROWS: &[Row] = rows! {
    Reset -> Init [Rc, Uc, XrcSend, XrcRecv] needs [PKEY_INDEX | PORT | ACCESS_FLAGS] allows [];
    Reset -> Init [Ud, Gsi] needs [PKEY_INDEX | PORT | QKEY] allows [];

    Init -> Init [Rc, Uc, XrcSend, XrcRecv] needs [] allows [PKEY_INDEX | PORT | ACCESS_FLAGS];
    Init -> Init [Ud, Gsi] needs [] allows [PKEY_INDEX | PORT | QKEY];

    Init -> Rtr [Rc, XrcRecv] needs [AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER]
        allows [ALT_PATH | ACCESS_FLAGS | PKEY_INDEX];
    Init -> Rtr [Uc, XrcSend] needs [AV | PATH_MTU | DEST_QPN | RQ_PSN] allows [ALT_PATH | ACCESS_FLAGS | PKEY_INDEX];
    Init -> Rtr [Ud, Gsi] needs [] allows [PKEY_INDEX | QKEY];

    Rtr -> Rts [Rc] needs [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC]
        allows [CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE];
    Rtr -> Rts [XrcSend] needs [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC]
        allows [CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE];
    Rtr -> Rts [XrcRecv] needs [TIMEOUT | SQ_PSN] allows [CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE];
    Rtr -> Rts [Uc] needs [SQ_PSN] allows [CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE];
    Rtr -> Rts [Ud, Gsi] needs [SQ_PSN] allows [CUR_STATE | QKEY];

    Rts -> Rts [Rc, XrcRecv] needs [] allows [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER];
    Rts -> Rts [Uc, XrcSend] needs [] allows [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE];
    Rts -> Rts [Ud, Gsi] needs [] allows [CUR_STATE | QKEY];

    Rts -> Sqd [Rc, Uc, Ud, Gsi, XrcSend, XrcRecv] needs [] allows [];

    Sqd -> Rts [Rc, XrcRecv] needs [] allows [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER];
    Sqd -> Rts [Uc, XrcSend] needs [] allows [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE];
    Sqd -> Rts [Ud, Gsi] needs [] allows [CUR_STATE | QKEY];

    Sqd -> Sqd [Rc] needs [] allows [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC
        | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER | PATH_MIG_STATE];
    Sqd -> Sqd [XrcSend] needs [] allows [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC
        | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE];
    Sqd -> Sqd [XrcRecv] needs [] allows [PORT | AV | TIMEOUT | MAX_DEST_RD_ATOMIC
        | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER | PATH_MIG_STATE];
    Sqd -> Sqd [Uc] needs [] allows [AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE];
    Sqd -> Sqd [Ud, Gsi] needs [] allows [PKEY_INDEX | QKEY];

    Sqe -> Rts [Uc] needs [] allows [CUR_STATE | ACCESS_FLAGS];
    Sqe -> Rts [Ud, Gsi] needs [] allows [CUR_STATE | QKEY];
};

/// Returns the attributes of a transition; `None` if the transport has no such transition.
pub(crate) fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    if matches!(to, Reset | Err) {
        return Some(Rule { required: M::empty(), optional: M::empty() });
    }
    ROWS.iter().find(|row| row.from == from && row.to == to && row.transports.contains(&qp_type)).map(|row| row.rule)
}
