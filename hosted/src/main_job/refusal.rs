//! What a window promises: the key that it had before opens nothing.

use anyhow::{Context as _, Result, bail};
use bareverbs::{MwHandle, Payload, Remote, Rkey, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};

use super::bed::{Bed, Moved, Which};
use super::pattern::Pattern;
use super::report::Refused;

/// Stream of the pattern that must stay in the peer's memory, and of the one that must not get there.
const KEPT: u32 = 100;
const INTRUDER: u32 = 101;
const BIND: u64 = 0xb1d;
const REBIND: u64 = 0xb1e;
const UNBIND: u64 = 0xb1f;
const FORBIDDEN: u64 = 0xbad;

impl Bed {
    /// Binds the window of side B for the first time; gives the key.
    pub(super) fn bind(&mut self, window: MwHandle) -> Result<Rkey> {
        let rkey = self.b.bind(window, BIND, false)?;
        self.expect(Which::B, BIND, WcOpcode::BindMw)?;
        Ok(rkey)
    }

    /// Unbinds the window; before that, the region must refuse to go.
    pub(super) fn unbind(&mut self, window: MwHandle) -> Result<()> {
        if self.b.verbs.dereg_mr(self.b.mr).is_ok() {
            bail!("a region went away under a window that was bound to it");
        }
        self.b.bind(window, UNBIND, true)?;
        self.expect(Which::B, UNBIND, WcOpcode::BindMw).map(|_| ())
    }

    /// Binds the window anew and writes with the old key: refused, and the memory stays. Then both queue pairs recover and
    /// the new key works; gives that key.
    pub(super) fn refuse_old_key(
        &mut self,
        window: MwHandle,
        old: Rkey,
        reconnect: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<(Rkey, Refused)> {
        let new = self.b.bind(window, REBIND, false)?;
        self.expect(Which::B, REBIND, WcOpcode::BindMw)?;
        if new == old {
            bail!("a new bind gave the old rkey {old}");
        }
        let (size, kept, at) = (self.a.areas.size, Pattern::new(self.seed, KEPT, 0), self.b.areas.exposed(0));
        self.b.fill(at, size, kept)?;
        let out = self.a.areas.out(0);
        self.a.fill(out, size, Pattern::new(self.seed, INTRUDER, 0))?;
        let sges = [self.a.sge(out, size)];
        let remote = Remote { addr: self.b.addr(at), rkey: old };
        let op = SendOp::Write { payload: Payload::Sges(&sges), remote };
        let wr = SendWr { wr_id: FORBIDDEN, flags: SendFlags::SIGNALED, op };
        self.a.verbs.post_send(self.a.qp, &wr).context("post_send with the old rkey")?;
        let completion = self.next(Which::A)?;
        if completion.status != WcStatus::RemAccessErr {
            bail!("a write with the old rkey {old} ended with {:?} instead of RemAccessErr", completion.status);
        }
        let untouched = self.b.verify(at, size, kept);
        let mut refused = Refused {
            old_rkey: old.get(),
            new_rkey: new.get(),
            status: format!("{:?}", completion.status),
            vendor_err: completion.vendor_err,
            memory_untouched: untouched.is_ok(),
            recovered: false,
        };
        untouched.context("the write with the old rkey was refused and changed memory")?;
        self.a.reset()?;
        self.b.reset()?;
        reconnect(self).context("recovery")?;
        self.write(&mut Moved::default(), 1, new).context("the new rkey after the recovery")?;
        refused.recovered = true;
        Ok((new, refused))
    }
}
