//! Commands that the device refuses, does not deliver or answers late, amid what is in flight. One that failed has changed nothing, and
//! succeeds when it is given again.

use core::fmt;
use core::time::Duration;

use bareverbs::error::{
    AllocFastMrError, AllocMwError, AllocPdError, CreateCqError, CreateQpError, CreateSrqError, DeallocMwError, DeallocPdError,
    DeregMrError, DestroyCqError, DestroyQpError, DestroySrqError, ModifyQpError, QueryQpError, RegMrError, ReregMrError,
    ResizeCqError,
};
use bareverbs::{Access, MrChange, MwType, QpAttr, QpAttrMask, QpInit, QpState, QpType, SrqCap, SrqInit};
use bareverbs_mlx5::Error;
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus};
use bareverbs_sim::DeviceCounts;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::Host;

use super::Run;
use crate::hosts::{CAP, Memory, Qp};
use crate::program::{Command, STRIPE, Trouble, domain_of};

/// Why a call failed: what the device said, if it was that.
#[derive(Debug)]
struct Failure {
    cause: Option<Error>,
    text: String,
}

impl Failure {
    fn new(error: &impl fmt::Display, cause: Option<Error>) -> Self {
        Self { cause, text: error.to_string() }
    }
}

/// Makes a [`Failure`] of an error with a variant `Device`.
macro_rules! failure {
    ($error:expr, $kind:ident) => {
        match $error {
            error @ $kind::Device(cause) => Failure::new(&error, Some(cause)),
            error => Failure::new(&error, None),
        }
    };
}

/// Calls with a fault armed, and once more if that has failed. The call gives `value` back when it fails.
macro_rules! twice {
    ($host:expr, $trouble:expr, $opcode:ident, $value:expr, |$name:pat_param| $call:expr) => {{
        let armed = Armed::new($host, $trouble, CmdOpcode::$opcode);
        let $name = $value;
        let first = $call;
        match armed.check(first)? {
            Ok(done) => done,
            Err($name) => {
                let second = $call;
                second.map_err(|(_, failure)| format!("{} after it was refused: {}", stringify!($opcode), failure.text))?
            }
        }
    }};
}

/// Returns what a refused call gives back.
fn back<T>(returned: Option<T>) -> Result<T, String> {
    returned.ok_or_else(|| "what was handed in did not come back".to_owned())
}

/// A fault that is armed.
struct Armed<'h> {
    host: &'h Host,
    counts: DeviceCounts,
    /// What the call must say; nothing if it is to succeed.
    cause: Option<Error>,
}

impl<'h> Armed<'h> {
    fn new(host: &'h Host, trouble: Trouble, opcode: CmdOpcode) -> Self {
        let opcode = opcode.code() as u16;
        let (status, syndrome) = (CmdStatus::IntErr.code() as u8, 0xabcd);
        let (fault, cause) = match trouble {
            Trouble::Refused => {
                (Fault::CommandStatus { opcode, status, syndrome }, Some(Error::CommandStatus { opcode, status, syndrome }))
            }
            Trouble::Undelivered => {
                (Fault::DeliveryStatus { opcode, status: 3 }, Some(Error::CommandDelivery { opcode, status: 3 }))
            }
            Trouble::Late(millis) => (Fault::LateCommand { opcode, delay: Duration::from_millis(millis.into()) }, None),
        };
        let counts = host.with_device(|device| {
            device.faults_mut().arm(fault);
            device.counts()
        });
        Self { host, counts, cause }
    }

    /// Compares what a call gave with what it must give. A call that had to fail, and did, has changed nothing.
    fn check<V, T>(self, result: Result<T, (V, Failure)>) -> Result<Result<T, V>, String> {
        let (counts, is_left) = self.host.with_device(|device| (device.counts(), !device.faults_mut().is_empty()));
        match (result, self.cause) {
            _ if is_left => Err("a command was not sent".to_owned()),
            (Ok(done), None) => Ok(Ok(done)),
            (Ok(_), Some(cause)) => Err(format!("a call succeeds in spite of {cause:?}")),
            (Err((_, failure)), cause) if failure.cause != cause => Err(format!("{failure:?}, and must be {cause:?}")),
            (Err(_), _) if counts != self.counts => {
                Err(format!("a command that failed: {:?} before, {counts:?} after", self.counts))
            }
            (Err((value, _)), _) => Ok(Err(value)),
        }
    }
}

impl Run<'_> {
    /// Gives a command with which the device has trouble.
    pub(super) fn trouble(&mut self, at: usize, command: Command, trouble: Trouble) -> Result<(), String> {
        self.command(at, command, trouble).map_err(|why| format!("{command:?} {trouble:?}: {why}"))
    }

    fn command(&mut self, at: usize, command: Command, trouble: Trouble) -> Result<(), String> {
        // A region's keys change with it, and a window's.
        if matches!(command, Command::Reregister { .. }) {
            self.settle(8, false)?;
        }
        // What must not be taken away is not answered late.
        let fails = if matches!(trouble, Trouble::Late(_)) { Trouble::Undelivered } else { trouble };
        let side = &mut self.sides[at];
        // Refused by the verbs, without a command.
        let is_held = match command {
            Command::Deregister(region) => side.is_bound(region),
            Command::Reregister { region, .. } => side.is_bound(region) || side.is_posted(region),
            _ => false,
        };
        if is_held {
            return Ok(());
        }
        let (host, pd) = (side.host.clone(), side.pds[0]);
        let verbs = &mut side.verbs;
        let still_there = |result: Result<(), ((), Failure)>, armed: Armed<'_>| match armed.check(result)? {
            Ok(()) => Err("it is gone".to_owned()),
            Err(()) => Ok(()),
        };
        match command {
            Command::Domain => {
                let pd = twice!(&host, trouble, AllocPd, (), |()| {
                    verbs.alloc_pd().map_err(|error| ((), failure!(error, AllocPdError)))
                });
                twice!(&host, trouble, DeallocPd, pd, |of| {
                    verbs.dealloc_pd(of).map_err(|error| (of, failure!(error, DeallocPdError)))
                });
            }
            Command::Region => {
                let buffer = host.memory(STRIPE).whole();
                let region = twice!(&host, trouble, CreateMkey, Some(buffer), |buffer| {
                    verbs
                        .reg_mr(pd, back(buffer)?, Access::LOCAL_WRITE)
                        .map_err(|refused| (refused.returned, failure!(refused.error, RegMrError)))
                });
                twice!(&host, trouble, DestroyMkey, Some(region), |region| {
                    verbs.dereg_mr(back(region)?).map_err(|refused| (refused.returned, failure!(refused.error, DeregMrError)))
                });
            }
            Command::Window => {
                let window = twice!(&host, trouble, CreateMkey, (), |()| {
                    verbs.alloc_mw(pd, MwType::Type2).map_err(|error| ((), failure!(error, AllocMwError)))
                });
                twice!(&host, trouble, DestroyMkey, window, |of| {
                    verbs.dealloc_mw(of).map_err(|error| (of, failure!(error, DeallocMwError)))
                });
            }
            Command::Registration => {
                let mr = twice!(&host, trouble, CreateMkey, (), |()| {
                    verbs.alloc_fast_mr(pd, 8).map_err(|error| ((), failure!(error, AllocFastMrError)))
                });
                twice!(&host, trouble, DestroyMkey, mr, |of| {
                    verbs.dealloc_fast_mr(of).map_err(|error| (of, failure!(error, DeallocMwError)))
                });
            }
            Command::CompletionQueue => {
                let cq = twice!(&host, trouble, CreateCq, (), |()| {
                    verbs.create_cq(10).map_err(|error| ((), failure!(error, CreateCqError)))
                });
                twice!(&host, trouble, DestroyCq, Some(cq), |cq| {
                    verbs.destroy_cq(back(cq)?).map_err(|refused| (refused.returned, failure!(refused.error, DestroyCqError)))
                });
            }
            Command::QueuePair => {
                let cq = side.cqs[0].handle();
                let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
                let qp = twice!(&host, trouble, CreateQp, (), |()| {
                    verbs.create_qp(&init).map_err(|error| ((), failure!(error, CreateQpError)))
                });
                twice!(&host, trouble, DestroyQp, Some(qp), |qp| {
                    verbs.destroy_qp(back(qp)?).map_err(|refused| (refused.returned, failure!(refused.error, DestroyQpError)))
                });
                // Its rings serve another once its completion queues were found empty.
                side.complete(3, false)?;
            }
            Command::SharedQueue => {
                let init = SrqInit { pd, cap: SrqCap { max_wr: 3, max_sge: 1 } };
                let srq = twice!(&host, trouble, CreateRmp, (), |()| {
                    verbs.create_srq(&init).map_err(|error| ((), failure!(error, CreateSrqError)))
                });
                twice!(&host, trouble, DestroyRmp, Some(srq), |srq| {
                    verbs
                        .destroy_srq(back(srq)?)
                        .map_err(|refused| (refused.returned, failure!(refused.error, DestroySrqError)))
                });
            }
            Command::Deregister(region) => {
                let armed = Armed::new(&host, fails, CmdOpcode::DestroyMkey);
                let result = verbs.dereg_mr_raw(side.memory[region].region.handle());
                still_there(result.map_err(|error| ((), failure!(error, DeregMrError))), armed)?;
            }
            Command::FreeWindow(window) => {
                let armed = Armed::new(&host, fails, CmdOpcode::DestroyMkey);
                let result = verbs.dealloc_mw(side.windows[window].handle);
                still_there(result.map_err(|error| ((), failure!(error, DeallocMwError))), armed)?;
            }
            Command::DestroyQp(pair) => {
                let armed = Armed::new(&host, fails, CmdOpcode::DestroyQp);
                let (qp, error) = match side.qps.remove(pair) {
                    Qp::Own(qp) => match verbs.destroy_qp(qp) {
                        Ok(()) => return Err("it is gone".to_owned()),
                        Err(refused) => (Qp::Own(back(refused.returned)?), refused.error),
                    },
                    Qp::Shared(qp) => match verbs.destroy_qp(qp) {
                        Ok(()) => return Err("it is gone".to_owned()),
                        Err(refused) => (Qp::Shared(back(refused.returned)?), refused.error),
                    },
                    Qp::Xrc(mut of) => match verbs.destroy_qp(of.target) {
                        Ok(()) => return Err("it is gone".to_owned()),
                        Err(refused) => {
                            of.target = back(refused.returned)?;
                            (Qp::Xrc(of), refused.error)
                        }
                    },
                };
                side.qps.insert(pair, qp);
                still_there(Err(((), failure!(error, DestroyQpError))), armed)?;
            }
            Command::Fail(pair) => {
                let armed = Armed::new(&host, fails, CmdOpcode::Qp2Err);
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                let result = verbs.modify_qp(side.qps[pair].handle(), &attr, QpAttrMask::STATE);
                still_there(result.map_err(|error| ((), failure!(error, ModifyQpError))), armed)?;
            }
            Command::Reset(pair) => {
                let armed = Armed::new(&host, fails, CmdOpcode::Qp2Rst);
                let result = match &mut side.qps[pair] {
                    Qp::Own(qp) => verbs.reset_qp(qp),
                    Qp::Shared(qp) => verbs.reset_qp(qp),
                    Qp::Xrc(qp) => verbs.reset_qp(&mut qp.initiator),
                };
                still_there(result.map_err(|error| ((), failure!(error, ModifyQpError))), armed)?;
            }
            Command::Reregister { region, end } => {
                let opcode = if end { CmdOpcode::DestroyMkey } else { CmdOpcode::CreateMkey };
                let memory = side.memory.remove(region);
                let armed = Armed::new(&host, fails, opcode);
                let Err(refused) =
                    verbs.rereg_mr(memory.region, &MrChange { access: Some(Access::empty()), ..MrChange::default() })
                else {
                    return Err("it is changed".to_owned());
                };
                side.memory.insert(region, Memory { region: back(refused.returned)?, ..memory });
                let failure = match refused.error {
                    ReregMrError::Register(error) => failure!(error, RegMrError),
                    ReregMrError::Deregister(error) => failure!(error, DeregMrError),
                    error => Failure::new(&error, None),
                };
                still_there(Err(((), failure)), armed)?;
            }
            Command::Resize(cq) => {
                let cq = &mut side.cqs[cq];
                twice!(&host, trouble, ModifyCq, (), |()| {
                    verbs.resize_cq(cq, 900).map_err(|error| ((), failure!(error, ResizeCqError)))
                });
            }
            Command::Query(pair) => {
                let qp = side.qps[pair].receiver();
                let info = twice!(&host, trouble, QueryQp, (), |()| {
                    verbs.query_qp(qp).map_err(|error| ((), failure!(error, QueryQpError)))
                });
                if info.pd != side.pds[domain_of(pair)] && matches!(side.qps[pair], Qp::Own(_) | Qp::Shared(_)) {
                    return Err(format!("{info:?}"));
                }
            }
        }
        Ok(())
    }
}
