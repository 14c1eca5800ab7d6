//! Single binds of windows and registrations by requests, and their ends.

use bareverbs::{Access, Binding, MwType, QpType, Rkey, SendFlags, SendWr, Type1Bind, WcOpcode};

use super::Run;
use crate::fast::Fast;
use crate::hosts::Bound;
use crate::program::{PAIRS, REGION};

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
        let is_refused = !memory.access.contains(Access::MW_BIND) || writes && !memory.access.contains(Access::LOCAL_WRITE);
        let (send, tag) = (of.qps[pair].send(), window.rkey.tag().next());
        let result = match window.kind {
            MwType::Type1 => {
                let flags = SendFlags::SIGNALED;
                let bind = Type1Bind { wr_id, flags, mr, addr, length, access };
                send.bind_type1(window.handle, &bind).map_err(|error| error.to_string())
            }
            // It is bound again after an invalidation alone.
            MwType::Type2 if window.bound.is_some() => return Ok(()),
            MwType::Type2 => {
                let wr = SendWr::bind_mw(window.handle, tag, Binding { mr, addr, length, access }).id(wr_id).signaled();
                send.post(&wr).map(|()| Rkey::new(tag.key(window.rkey.index()))).map_err(|error| error.to_string())
            }
        };
        if result.is_err() != is_refused {
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

    /// Registers units of a region by a request.
    pub(super) fn register(
        &mut self,
        (pair, side): (usize, usize),
        region: usize,
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
        let is_refused = of.fast.registered.is_some()
            || !memory.access.contains(Access::MW_BIND)
            || writes && !memory.access.contains(Access::LOCAL_WRITE);
        let result = of.qps[pair].send().reg_mr(of.fast.mr, &of.fast.request(wr_id, &pieces, access));
        if result.is_err() != is_refused {
            return Err(format!("registering gave {result:?}"));
        }
        let Ok(registered) = result else { return Ok(()) };
        of.fast.open(registered, region, units.to_vec(), access);
        self.done_by(pair, side, wr_id, WcOpcode::RegMr)
    }

    /// Ends a registration by a request.
    pub(super) fn invalidate(&mut self, pair: usize, side: usize) -> Result<(), String> {
        if !matches!(PAIRS[pair].qp_type, QpType::Rc | QpType::XrcSend) {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        if of.fast.registered.take().is_none() {
            return Ok(());
        }
        let wr = SendWr::local_inv(of.fast.rkey).id(wr_id).signaled();
        of.qps[pair].send().post(&wr).map_err(|error| error.to_string())?;
        self.done_by(pair, side, wr_id, WcOpcode::LocalInv)
    }
}
