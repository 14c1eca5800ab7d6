//! A memory window that is bound again invalidates its former rkey: an RDMA write with that is refused.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs::error::DeregMrError;
use bareverbs::{Completion, MwHandle, QpState, Rkey, SendWr, WcOpcode, WcStatus};

use super::harness::{Harness, Moved};
use super::report::Refused;
use crate::data_pattern::Pattern;
use crate::device::{Host, Role};

/// Stream of the pattern that must stay in the server's memory.
const KEPT: u32 = 100;
/// Stream of the pattern that must not be written there.
const REFUSED: u32 = 101;
const BIND: u64 = 0xb1d;
const REBIND: u64 = 0xb1e;
const UNBIND: u64 = 0xb1f;
const FORBIDDEN: u64 = 0xbad;
/// Maximum number of attempts on a wire that loses packets.
const ATTEMPTS: u32 = 10;
/// Maximum time between a NAK and the asynchronous event of the server's device.
const EVENT_TIMEOUT: Duration = Duration::from_millis(100);

impl<H: Host> Harness<H> {
    /// Binds the window of the server for the first time. Returns its rkey.
    ///
    /// # Errors
    /// The bind failed.
    pub(super) fn bind(&mut self, window: MwHandle) -> Result<Rkey> {
        let rkey = self.b.bind(window, BIND, false)?;
        self.expect(Role::Server, BIND, WcOpcode::BindMw)?;
        Ok(rkey)
    }

    /// Unbinds the window, after a check that the region cannot be deregistered while a window is bound to it.
    ///
    /// # Errors
    /// The region was deregistered, or the unbind failed.
    pub(super) fn unbind(&mut self, window: MwHandle) -> Result<()> {
        match self.devices.of(Role::Server).verbs.dereg_mr_raw(self.b.endpoint.region.handle()) {
            Err(DeregMrError::Busy { .. }) => {}
            Err(error) => {
                let what = || format!("dereg_mr of a region of {} to which a window is bound", self.b.name);
                return Err(error).with_context(what);
            }
            Ok(()) => bail!("a region was deregistered while a window was bound to it"),
        }
        self.b.bind(window, UNBIND, true)?;
        self.expect(Role::Server, UNBIND, WcOpcode::BindMw).map(|_| ())
    }

    /// Binds the window again and writes with the old rkey, which must be refused and leave the memory unchanged. Then both
    /// queue pairs are reset and connected, and a write with the new rkey must succeed. Returns the new rkey.
    ///
    /// The responder sends one NAK and is in error from then on. If the wire loses the NAK, the requester exhausts its retries.
    /// The test is then repeated, [`ATTEMPTS`] times at most.
    ///
    /// # Errors
    /// The write was not refused, memory has changed, or the recovery failed.
    pub(super) fn refuse_old_key(
        &mut self,
        window: MwHandle,
        old: Rkey,
        mut reconnect: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<(Rkey, Refused)> {
        let new = self.b.bind(window, REBIND, false)?;
        self.expect(Role::Server, REBIND, WcOpcode::BindMw)?;
        if new == old {
            bail!("a new bind gave the old rkey {old}");
        }
        let mut attempts = 0;
        let completion = loop {
            attempts += 1;
            let completion = self.write_with(old)?;
            if completion.status == WcStatus::RemAccessErr {
                self.await_access_error()?;
            }
            self.a.reset(self.devices.of(Role::Client))?;
            self.b.reset(self.devices.of(Role::Server))?;
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

    /// Waits for the asynchronous event of the refusal at the server. An event after the reset would put the new connection
    /// into the error state. A device may raise none, so the wait has a short timeout.
    fn await_access_error(&mut self) -> Result<()> {
        let deadline = self.devices.of(Role::Server).host.now().after(EVENT_TIMEOUT);
        loop {
            let (end, device) = self.end(Role::Server);
            if device.verbs.qp_info(end.qp)?.state == QpState::Err || device.host.now() > deadline {
                return Ok(());
            }
            self.devices.idle()?;
        }
    }

    /// Writes with a stale rkey. Returns the completion.
    ///
    /// # Errors
    /// The server's memory has changed.
    fn write_with(&mut self, old: Rkey) -> Result<Completion> {
        let (size, kept, at) = (self.a.layout.size, Pattern::new(self.seed, KEPT, 0), self.b.layout.exposed(0));
        self.b.endpoint.fill(at, size, kept)?;
        let out = self.a.layout.tx(0);
        self.a.endpoint.fill(out, size, Pattern::new(self.seed, REFUSED, 0))?;
        let (sges, remote) = ([self.a.endpoint.sge(out, size)], self.b.remote(at, old));
        let wr = SendWr::write(remote, &sges).id(FORBIDDEN).signaled();
        self.a.endpoint.qp(0)?.send().post(&wr).context("a write with the old rkey")?;
        let completion = self.next(Role::Client)?;
        self.b.verify(at, size, kept).context("a write with the old rkey changed memory")?;
        Ok(completion)
    }
}
