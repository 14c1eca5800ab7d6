//! The error of the last call that failed: one value, of which the text is made only when it is asked for.

use core::fmt;

use bareverbs::error::{
    AllocPdError, AllocXrcdError, ArmSrqError, AttachMcastError, BadWr, CreateAhError, CreateCqError, CreateQpError,
    CreateSrqError, DeallocPdError, DeallocXrcdError, DeregMrError, DestroyCqError, DestroyQpError, DestroySrqError,
    DetachMcastError, DrainError, Errno, ModifyQpError, NotifyCqError, PollCqError, PollEventError, PostRecvError,
    PostSendError, QueryError, QueryQpError, RegMrError, ResizeCqError, SetGidError, StaleHandle, WaitActiveError,
};
use bareverbs_mlx5::{BringUpError, Error, TeardownError};

use crate::argument::Argument;
use crate::{BV_MAX_RECV, BV_MAX_SEND_BLOCKS};

macro_rules! failures {
    ($($variant:ident($error:ty): $value:ident => $errno:expr;)+) => {
        /// Why a call failed.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Failure {
            $($variant($error),)+
        }

        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+

        impl Failure {
            /// Returns the errno.
            pub(crate) fn errno(&self) -> Errno {
                match self {
                    $(Self::$variant($value) => $errno,)+
                }
            }
        }

        impl fmt::Display for Failure {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    // A program in C makes no rings: they are of the library.
                    Self::CreateQp(CreateQpError::Rings { send, recv, .. }) => write!(
                        f,
                        "the capacities need {send} blocks of requests and {recv} receives: a queue pair has room for \
                         BV_MAX_SEND_BLOCKS ({BV_MAX_SEND_BLOCKS}) and BV_MAX_RECV ({BV_MAX_RECV})"
                    ),
                    $(Self::$variant(error) => error.fmt(f),)+
                }
            }
        }
    };
}

failures! {
    Argument(Argument): error => error.errno();
    BringUp(BringUpError): error => error.cause.errno();
    TakeDown(TeardownError): error => error.cause.errno();
    Device(Error): error => error.errno();
    Stale(StaleHandle): error => error.errno();
    Query(QueryError<Error>): error => error.errno();
    SetGid(SetGidError<Error>): error => error.errno();
    WaitActive(WaitActiveError<Error>): error => error.errno();
    AllocPd(AllocPdError<Error>): error => error.errno();
    DeallocPd(DeallocPdError<Error>): error => error.errno();
    RegMr(RegMrError<Error>): error => error.errno();
    DeregMr(DeregMrError<Error>): error => error.errno();
    CreateCq(CreateCqError<Error>): error => error.errno();
    DestroyCq(DestroyCqError<Error>): error => error.errno();
    ResizeCq(ResizeCqError<Error>): error => error.errno();
    Drain(DrainError<Error>): error => error.errno();
    NotifyCq(NotifyCqError): error => error.errno();
    CreateQp(CreateQpError<Error>): error => error.errno();
    ModifyQp(ModifyQpError<Error>): error => error.errno();
    QueryQp(QueryQpError<Error>): error => error.errno();
    DestroyQp(DestroyQpError<Error>): error => error.errno();
    AllocXrcd(AllocXrcdError<Error>): error => error.errno();
    DeallocXrcd(DeallocXrcdError<Error>): error => error.errno();
    CreateSrq(CreateSrqError<Error>): error => error.errno();
    ArmSrq(ArmSrqError<Error>): error => error.errno();
    DestroySrq(DestroySrqError<Error>): error => error.errno();
    CreateAh(CreateAhError<Error>): error => error.errno();
    AttachMcast(AttachMcastError<Error>): error => error.errno();
    DetachMcast(DetachMcastError<Error>): error => error.errno();
    PostSend(BadWr<PostSendError>): bad => bad.error.errno();
    PostRecv(BadWr<PostRecvError>): bad => bad.error.errno();
    PollCq(PollCqError): error => error.errno();
    PollEvent(PollEventError<Error>): error => error.errno();
}
