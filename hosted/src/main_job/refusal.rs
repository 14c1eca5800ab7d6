//! What a window promises: the key that it had before opens nothing.

use anyhow::{Context as _, Result, bail};
use bareverbs::{Completion, MwHandle, Payload, Remote, Rkey, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};

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
/// Attempts with the old key on a wire that loses packets.
const ATTEMPTS: u32 = 10;

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
    ///
    /// The peer refuses once and is silent from then on. If the wire loses that one packet, this side can only run out of
    /// retries; it then tries again, a few times.
    pub(super) fn refuse_old_key(
        &mut self,
        window: MwHandle,
        old: Rkey,
        mut reconnect: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<(Rkey, Refused)> {
        let new = self.b.bind(window, REBIND, false)?;
        self.expect(Which::B, REBIND, WcOpcode::BindMw)?;
        if new == old {
            bail!("a new bind gave the old rkey {old}");
        }
        let mut attempts = 0;
        let completion = loop {
            attempts += 1;
            let completion = self.write_with(old)?;
            self.a.reset()?;
            self.b.reset()?;
            reconnect(self).context("recovery")?;
            match completion.status {
                WcStatus::RemAccessErr => break completion,
                WcStatus::RetryExcErr if self.loses && attempts < ATTEMPTS => {}
                status => bail!("a write with the old rkey {old} ended with {status:?} instead of RemAccessErr"),
            }
        };
        self.write(&mut Moved::default(), 1, new).context("the new rkey after the recovery")?;
        let refused = Refused {
            old_rkey: old.get(),
            new_rkey: new.get(),
            attempts,
            status: format!("{:?}", completion.status),
            vendor_err: completion.vendor_err,
            memory_untouched: true,
            recovered: true,
        };
        Ok((new, refused))
    }

    /// Writes with a key that opens nothing; gives the completion. The peer's memory must be as it was.
    fn write_with(&mut self, old: Rkey) -> Result<Completion> {
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
        self.b.verify(at, size, kept).context("a write with the old rkey changed memory")?;
        Ok(completion)
    }
}
