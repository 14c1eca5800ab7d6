//! Pages for the firmware: given at boot, at initialization and on request, and reclaimed.

use core::ops::ControlFlow;
use core::time::Duration;

use bareverbs::platform::{Clock, PageSource, Platform, TooFewPages};
use bareverbs_mlx5_spec::{
    Buffer, CmdOpcode, EventType, Layout, ManagePagesIn, ManagePagesOut, PagesReqEvent, QueryPagesIn, QueryPagesOut, View, cmd,
    manage_pages,
};

use super::{Call, CommandClass, CommandInterface, List};
use crate::dma::arena::PAGE;
use crate::error::Error;
use crate::events::eq::{event_data, event_type};
use crate::log::log_event;

/// Pages of one MANAGE_PAGES command: the list fits in the preallocated mailboxes for pages.
const PAGES_PER_COMMAND: usize = 120;
const RECLAIM_OUTPUT: usize = ManagePagesOut::SIZE + 8 * PAGES_PER_COMMAND;
/// Maximum number of page requests that one call serves.
const REQUESTS: usize = 16;

/// Called with the number of pages that were given, and wanted; `Break` stops there.
pub(crate) type PageHook<'a> = &'a mut dyn FnMut(u32, u32) -> ControlFlow<()>;

fn bad_answer(value: u32) -> Error {
    Error::BadAnswer { opcode: CmdOpcode::ManagePages.code() as u16, value }
}

impl<P: Platform> CommandInterface<P> {
    /// Gives `count` pages to the firmware for a function. If there are fewer, the firmware that requested them is notified that it
    /// gets none.
    /// `hook` is called before each batch; if it returns `Break`, no more are given.
    pub(crate) fn give_pages(&mut self, function: u16, count: u32, hook: PageHook<'_>) -> Result<(), Error> {
        self.check_alive()?;
        if function != self.function {
            return self.refuse_pages(function, Error::ForeignPages { function });
        }
        let allowed = self.page_limit.saturating_sub(self.held);
        if count > allowed {
            log_event!(warn, "the firmware wants {} pages for function {}, {} are allowed", count, function, allowed);
            return self.refuse_pages(function, Error::PageLimit { wanted: count, allowed: allowed.into() });
        }
        let mut given = 0;
        while given < count {
            if hook(given, count).is_break() {
                return Err(Error::Stopped);
            }
            // After the hook: to reserve so many, and map them for the IOMMU, may take a second.
            if given == 0
                && let Err(TooFewPages { available, .. }) = self.machine.pages.reserve(count)
            {
                log_event!(warn, "the firmware wants {} pages for function {}, {} are left", count, function, available);
                return self.refuse_pages(function, Error::TooFewPages { wanted: count, available: available.into() });
            }
            given += self.give_batch(function, count - given)?;
        }
        Ok(())
    }

    /// Gives up to `count` pages in one command, and returns their number.
    fn give_batch(&mut self, function: u16, count: u32) -> Result<u32, Error> {
        let mut batch = [0u64; PAGES_PER_COMMAND];
        let mut filled = 0;
        for place in batch.iter_mut().take(count as usize) {
            let Some(addr) = self.machine.pages.allocate() else { break };
            *place = addr;
            filled += 1;
        }
        let pages = batch.get(..filled).unwrap_or_default();
        let entries = pages.len() as u32;
        if pages.is_empty() {
            return self.refuse_pages(function, Error::TooFewPages { wanted: count, available: 0.into() }).map(|()| 0);
        }
        let beyond = |addr: &u64| *addr as u16 % PAGE as u16;
        let given = if let Some(beyond) = pages.iter().map(beyond).find(|beyond| *beyond != 0) {
            self.refuse_pages(function, Error::UnalignedPage { beyond })
        } else {
            self.held += entries;
            let given = self.manage(function, manage_pages::GIVE, entries, pages, &mut [0; ManagePagesOut::SIZE]);
            if given.is_err() && self.dead.is_none() {
                self.held -= entries;
            }
            given
        };
        if let Err(error) = given {
            log_event!(warn, "{} pages were not given for function {}: {:?}", entries, function, error);
            // If the device is lost, its firmware may have them.
            if self.dead.is_none() {
                for addr in pages {
                    self.machine.pages.free(*addr);
                }
            }
            return Err(error);
        }
        self.stats.pages_given = self.stats.pages_given.wrapping_add(entries);
        log_event!(debug, "the firmware was given {} pages for function {}", entries, function);
        Ok(entries)
    }

    /// Notifies the firmware that it gets no pages, and returns the reason, or why the device is lost. As in Linux (`give_pages`), only
    /// firmware that requested them by an event is notified: pages of the startup are given before there is a queue of requests.
    fn refuse_pages(&mut self, function: u16, reason: Error) -> Result<(), Error> {
        if self.page_requests.is_some() {
            // The reason matters more than firmware that refuses to hear it.
            let _ = self.manage(function, manage_pages::CANT_GIVE, 0, &[], &mut [0; ManagePagesOut::SIZE]);
            self.check_alive()?;
        }
        Err(reason)
    }

    /// Reclaims up to `count` pages of a function, and returns the number that the firmware returned.
    pub(crate) fn reclaim_pages(&mut self, function: u16, count: u32) -> Result<u32, Error> {
        let mut came = 0;
        while came < count {
            let wanted_now = (count - came).min(PAGES_PER_COMMAND as u32);
            let mut output = [0; RECLAIM_OUTPUT];
            let length = ManagePagesOut::SIZE + 8 * wanted_now as usize;
            let bytes = output.get_mut(..length).unwrap_or_default();
            self.manage(function, manage_pages::TAKE, wanted_now, &[], bytes)?;
            let got = View::<ManagePagesOut>::of(&output).get(ManagePagesOut::OUTPUT_NUM_ENTRIES);
            if got > wanted_now {
                return Err(bad_answer(got));
            }
            self.take_returned_pages(&output, got)?;
            log_event!(debug, "the firmware returned {} pages of function {}", got, function);
            came += got;
            // The firmware has no more to return now.
            if got < wanted_now {
                break;
            }
        }
        Ok(came)
    }

    /// Frees the pages that the output of a command lists as returned.
    fn take_returned_pages(&mut self, output: &[u8; RECLAIM_OUTPUT], got: u32) -> Result<(), Error> {
        let mut foreign = None;
        for index in 0..got as usize {
            let addr = View::<ManagePagesOut>::of(output).tail64(ManagePagesOut::PAS, index).unwrap_or(u64::MAX);
            if self.machine.pages.free(addr) {
                self.held = self.held.saturating_sub(1);
                self.stats.pages_back = self.stats.pages_back.wrapping_add(1);
            } else {
                foreign = Some(addr);
            }
        }
        let Some(addr) = foreign else { return Ok(()) };
        log_event!(error, "the firmware returned page {:x}, which it was not given", addr);
        Err(bad_answer((addr >> 12) as u32))
    }

    fn manage(&mut self, function: u16, mode: u32, entries: u32, pages: &[u64], output: &mut [u8]) -> Result<(), Error> {
        let mut input = Buffer::<ManagePagesIn>::zeroed();
        input
            .view_mut()
            .set(ManagePagesIn::OP_MOD, mode)
            .set(ManagePagesIn::FUNCTION_ID, u32::from(function))
            .set(ManagePagesIn::INPUT_NUM_ENTRIES, entries);
        let (head, output_len) = (input.as_bytes(), output.len());
        let list: List<'_> = (pages.len(), &mut |index| pages.get(index).copied().unwrap_or_default());
        self.call(CommandClass::Pages, &mut Call { opcode: CmdOpcode::ManagePages, head, list, output, output_len })
    }

    /// Serves the page requests that the device reported. A request that was refused is counted: the firmware was
    /// notified, and goes on without the pages.
    ///
    /// # Errors
    /// The reason why the device is lost.
    pub(crate) fn serve_page_requests(&mut self) -> Result<(), Error> {
        self.check_alive()?;
        for _ in 0..REQUESTS {
            let Some(eq) = self.page_requests.as_mut() else { return Ok(()) };
            let Some(entry) = eq.pop() else {
                eq.arm();
                break;
            };
            eq.update_consumer_index();
            if event_type(&entry) != Some(EventType::PageRequest) {
                continue;
            }
            self.stats.page_requests = self.stats.page_requests.wrapping_add(1);
            let view = event_data::<PagesReqEvent>(&entry);
            let (function, wanted) = (view.get(PagesReqEvent::FUNCTION_ID) as u16, view.get(PagesReqEvent::NUM_PAGES) as i32);
            log_event!(debug, "the firmware requests {} pages for function {}", wanted, function);
            let served = if wanted >= 0 || function != self.function {
                // What another function returns would not be of this one's pages: it is refused too.
                self.give_pages(function, wanted.max(0) as u32, &mut |_, _| ControlFlow::Continue(()))
            } else {
                // An event may return what the firmware has, and no more is asked for.
                self.reclaim_pages(function, wanted.unsigned_abs().min(self.held)).map(|_| ())
            };
            if let Err(error) = &served {
                self.stats.page_requests_refused = self.stats.page_requests_refused.wrapping_add(1);
                log_event!(warn, "{} pages for function {} were refused: {:?}", wanted, function, error);
                self.check_alive()?;
            }
        }
        Ok(())
    }

    /// Queries how many pages the firmware needs (`query_pages` of the specification) and gives them.
    ///
    /// With a negative number, as a ConnectX-7 has answered, the firmware wants none: it could return pages, and does so at the teardown.
    pub(crate) fn give_startup_pages(&mut self, when: u32, hook: PageHook<'_>) -> Result<(), Error> {
        let output = self.query::<cmd::QueryPages>(|input| input.set(QueryPagesIn::OP_MOD, when))?;
        let view = output.view();
        let (function, wanted) = (view.get(QueryPagesOut::FUNCTION_ID) as u16, view.get(QueryPagesOut::NUM_PAGES) as i32);
        log_event!(debug, "the firmware needs {} pages for function {}", wanted, function);
        self.function = function;
        self.give_pages(function, wanted.max(0) as u32, hook)
    }

    /// Reclaims every page. `timeout` is that of the firmware to return one more page.
    ///
    /// # Errors
    /// The firmware kept pages.
    pub(crate) fn reclaim_all(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut deadline = self.machine.clock.now().after(timeout);
        while self.held > 0 {
            if self.reclaim_pages(self.function, self.held)? > 0 {
                deadline = self.machine.clock.now().after(timeout);
            } else if self.machine.clock.now() >= deadline {
                log_event!(warn, "the firmware keeps {} pages", self.held);
                return Err(Error::PagesKept { pages: self.held });
            }
            self.machine.clock.relax(deadline);
        }
        Ok(())
    }
}
