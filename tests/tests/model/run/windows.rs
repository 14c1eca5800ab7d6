//! Single binds of windows and fast registrations, and their ends.

use bareverbs::error::{BindRefused, BindType1Error, FastRegError, PostSendError};
use bareverbs::{Access, Binding, MwType, QpType, Rkey, SendFlags, SendWr, Type1Bind, WcOpcode};

use super::Run;
use crate::fast::Fast;
use crate::hosts::Bound;
use crate::program::{PAIRS, REGION, domain_of};

impl Run<'_> {
    pub(super) fn bind(&mut self, (pair, side, index): (usize, usize, usize), bound: Bound) -> Result<(), String> {
        if PAIRS[pair].qp_type != QpType::Rc || bound.at + bound.len > REGION {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let window = &mut of.windows[index];
        let memory = &of.memory[bound.region];
        let (mr, addr, length, access) =
            (memory.region.handle(), memory.region.remote(bound.at as u64).addr, bound.len as u64, bound.access);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let is_foreign = domain_of(index) != domain_of(pair) || domain_of(bound.region) != domain_of(pair);
        let lacks_right = !memory.access.contains(Access::MW_BIND) || writes && !memory.access.contains(Access::LOCAL_WRITE);
        let (send, tag) = (of.qps[pair].send(), window.rkey.tag().next());
        let result = match window.kind {
            MwType::Type1 => {
                let flags = SendFlags::SIGNALED;
                let bind = Type1Bind { wr_id, flags, mr, addr, length, access };
                send.bind_type1(window.handle, &bind)
                    .map_err(|error| (matches!(error, BindType1Error::Refused(BindRefused::Domain)), error.to_string()))
            }
            // It is bound again after an invalidation alone.
            MwType::Type2 if window.bound.is_some() => return Ok(()),
            MwType::Type2 => {
                let wr = SendWr::bind_mw(window.handle, tag, Binding { mr, addr, length, access }).id(wr_id).signaled();
                send.post(&wr)
                    .map(|()| Rkey::new(tag.key(window.rkey.index())))
                    .map_err(|error| (matches!(error, PostSendError::Bind(BindRefused::Domain)), error.to_string()))
            }
        };
        let is_of_domain = matches!(result, Err((true, _)));
        if result.is_err() != (is_foreign || lacks_right) || is_of_domain != is_foreign {
            return Err(format!("binding gave {result:?}"));
        }
        if let Ok(rkey) = result {
            (window.rkey, window.bound) = (rkey, Some(bound));
            self.done_by(pair, side, wr_id, WcOpcode::BindMw)?;
        }
        Ok(())
    }

    pub(super) fn unbind(&mut self, side: usize, index: usize) -> Result<(), String> {
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let window = &mut of.windows[index];
        let Some(bound) = window.bound.take() else { return Ok(()) };
        let send = of.qps[bound.pair].send();
        let opcode = if window.kind == MwType::Type1 {
            let (mr, access) = (of.memory[bound.region].region.handle(), Access::empty());
            let bind = Type1Bind { wr_id, flags: SendFlags::SIGNALED, mr, addr: 0, length: 0, access };
            window.rkey = send.bind_type1(window.handle, &bind).map_err(|error| error.to_string())?;
            WcOpcode::BindMw
        } else {
            send.post(&SendWr::local_inv(window.rkey).id(wr_id).signaled()).map_err(|error| error.to_string())?;
            WcOpcode::LocalInv
        };
        self.done_by(bound.pair, side, wr_id, opcode)
    }

    /// Registers units of a region by a request: with the key of this domain.
    pub(super) fn register(
        &mut self,
        (pair, side): (usize, usize),
        (domain, region): (usize, usize),
        units: &[usize],
        access: Access,
    ) -> Result<(), String> {
        if !matches!(PAIRS[pair].qp_type, QpType::Rc | QpType::XrcSend) {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let memory = &of.memory[region];
        let pieces = Fast::pieces(memory, units);
        let writes = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let fast = &mut of.fasts[domain];
        let is_foreign = domain != domain_of(pair) || domain_of(region) != domain_of(pair);
        let is_refused = fast.registered.is_some()
            || !memory.access.contains(Access::MW_BIND)
            || writes && !memory.access.contains(Access::LOCAL_WRITE);
        let result = of.qps[pair].send().post_reg_mr(fast.mr, &fast.request(wr_id, &pieces, access));
        let is_of_domain = matches!(result, Err(FastRegError::Domain));
        if result.is_err() != (is_foreign || is_refused) || is_of_domain != is_foreign {
            return Err(format!("registering gave {result:?}"));
        }
        let Ok(registered) = result else { return Ok(()) };
        fast.open(registered, region, units.to_vec(), access);
        self.done_by(pair, side, wr_id, WcOpcode::RegMr)
    }

    /// Ends the registration of a domain by a request.
    pub(super) fn invalidate(&mut self, pair: usize, side: usize, domain: usize) -> Result<(), String> {
        if !matches!(PAIRS[pair].qp_type, QpType::Rc | QpType::XrcSend) {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let rkey = of.fasts[domain].rkey;
        let wr = SendWr::local_inv(rkey).id(wr_id).signaled();
        if domain != domain_of(pair) {
            let refused = PostSendError::Bind(BindRefused::UnknownKey { rkey });
            return match of.qps[pair].send().post(&wr) {
                Err(error) if error == refused => Ok(()),
                other => Err(format!("invalidating a key of another domain gave {other:?}")),
            };
        }
        if of.fasts[domain].registered.take().is_none() {
            return Ok(());
        }
        of.qps[pair].send().post(&wr).map_err(|error| error.to_string())?;
        self.done_by(pair, side, wr_id, WcOpcode::LocalInv)
    }
}
