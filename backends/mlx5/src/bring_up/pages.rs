//! Pages for the firmware: given at boot, at initialization and on request, and taken back.

use bareverbs::{Clock, Platform};
use bareverbs_mlx5_spec::{
    CmdOpcode, Layout, ManagePagesIn, ManagePagesOut, PagesReqEvent, QueryPagesIn, QueryPagesOut, View, ViewMut, manage_pages,
};

use crate::command::{Call, Lane};
use crate::dma::arena::PageUse;
use crate::driver::Driver;
use crate::error::Error;
use crate::events::eq::{event_data, event_type};
use crate::log::log_event;

/// Pages of one command: its list fits in the blocks of the page lane.
const BATCH: usize = 120;
/// The most that one request may take back, as Linux has it.
const TAKE_LIMIT: u32 = 50_000;
/// Page requests that are served before the caller goes on with its own work.
const REQUESTS: usize = 16;

impl<P: Platform> Driver<P> {
    /// Asks how many pages the firmware needs now (`query_pages` of the specification) and gives them.
    pub(crate) fn give_startup_pages(&mut self, when: u32) -> Result<u32, Error> {
        let mut input = [0; QueryPagesIn::SIZE];
        ViewMut::<QueryPagesIn>::of(&mut input).set(QueryPagesIn::OP_MOD, when);
        let mut output = [0; QueryPagesOut::SIZE];
        self.command(CmdOpcode::QueryPages, &input, &mut output)?;
        let view = View::<QueryPagesOut>::of(&output);
        let (function, wanted) = (view.get(QueryPagesOut::FUNCTION_ID), view.get(QueryPagesOut::NUM_PAGES));
        if wanted > i32::MAX as u32 {
            return Err(Error::BadAnswer { opcode: CmdOpcode::QueryPages.code() as u16, value: wanted });
        }
        self.give_pages(function, wanted)?;
        Ok(wanted)
    }

    /// Gives `count` pages to the firmware. If the arena has not so many the firmware is told that it gets none.
    pub(crate) fn give_pages(&mut self, function: u32, count: u32) -> Result<(), Error> {
        if count > self.arena.room_for_firmware() {
            log_event!(warn, "the firmware wants {} pages, the arena has {}", count, self.arena.room_for_firmware());
            self.manage(function, manage_pages::CANT_GIVE, 0, &[], &mut [0; ManagePagesOut::SIZE])?;
            return Err(Error::ArenaFull { pages: count });
        }
        let mut left = count;
        while left > 0 {
            let mut batch = [0u64; BATCH];
            let mut filled = 0;
            for place in batch.iter_mut().take(left as usize) {
                let Some(addr) = self.arena.allocate_firmware_page() else { break };
                *place = addr;
                filled += 1;
            }
            let pages = batch.get(..filled).unwrap_or_default();
            if pages.is_empty() {
                return Err(Error::ArenaFull { pages: left });
            }
            let entries = pages.len() as u32;
            if let Err(error) = self.manage(function, manage_pages::GIVE, entries, pages, &mut [0; ManagePagesOut::SIZE]) {
                let to = if error.may_still_complete() { PageUse::Lost } else { PageUse::Free };
                for addr in pages {
                    self.arena.free_firmware_page(*addr, to);
                }
                return Err(error);
            }
            self.stats.pages_given = self.stats.pages_given.wrapping_add(entries);
            left = left.saturating_sub(entries);
        }
        Ok(())
    }

    /// Takes up to `count` pages back; how many came.
    pub(crate) fn reclaim_pages(&mut self, function: u32, count: u32) -> Result<u32, Error> {
        let mut came = 0;
        while came < count {
            let ask = (count - came).min(BATCH as u32);
            let mut output = [0; ManagePagesOut::SIZE + 8 * BATCH];
            let length = ManagePagesOut::SIZE + 8 * ask as usize;
            let answer = output.get_mut(..length).unwrap_or_default();
            self.manage(function, manage_pages::TAKE, ask, &[], answer)?;
            let view = View::<ManagePagesOut>::of(&output);
            let got = view.get(ManagePagesOut::OUTPUT_NUM_ENTRIES);
            let bad = |value| Error::BadAnswer { opcode: CmdOpcode::ManagePages.code() as u16, value };
            if got > ask {
                return Err(bad(got));
            }
            let mut foreign = None;
            for index in 0..got as usize {
                let addr = view.tail64(ManagePagesOut::PAS, index).unwrap_or(u64::MAX);
                if self.arena.free_firmware_page(addr, PageUse::Free) {
                    self.stats.pages_back = self.stats.pages_back.wrapping_add(1);
                } else {
                    foreign = Some(addr);
                }
            }
            if let Some(addr) = foreign {
                return Err(bad((addr >> 12) as u32));
            }
            came += got;
            if got == 0 {
                break;
            }
        }
        Ok(came)
    }

    /// Takes every page back, or says how many the firmware kept.
    pub(crate) fn reclaim_all(&mut self) -> Result<(), Error> {
        let mut deadline = self.machine.clock.now().after(self.config.reclaim_timeout);
        while self.arena.firmware_pages() > 0 {
            if self.reclaim_pages(0, self.arena.firmware_pages())? > 0 {
                deadline = self.machine.clock.now().after(self.config.reclaim_timeout);
            } else if self.machine.clock.now() >= deadline {
                return Err(Error::PagesKept { pages: self.arena.firmware_pages() });
            }
            self.machine.clock.relax();
        }
        Ok(())
    }

    fn manage(&mut self, function: u32, mode: u32, entries: u32, pages: &[u64], output: &mut [u8]) -> Result<(), Error> {
        let mut head = [0; ManagePagesIn::SIZE];
        ViewMut::<ManagePagesIn>::of(&mut head)
            .set(ManagePagesIn::OP_MOD, mode)
            .set(ManagePagesIn::FUNCTION_ID, function)
            .set(ManagePagesIn::INPUT_NUM_ENTRIES, entries);
        let output_len = output.len();
        let input_len = ManagePagesIn::SIZE + 8 * pages.len();
        let list = &mut pages.iter().copied();
        self.call(Lane::Pages, Call { opcode: CmdOpcode::ManagePages, head: &head, list, input_len, output, output_len })
    }

    /// Serves the page requests that the device has announced. The first error is given after all were tried.
    pub(crate) fn serve_page_requests(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for _ in 0..REQUESTS {
            let Some(eq) = self.eqs.pages.as_mut() else { return Ok(()) };
            let Some(entry) = eq.pop(&mut self.machine)? else {
                eq.arm(&mut self.machine, self.uar.base())?;
                break;
            };
            eq.update_consumer_index(&mut self.machine, self.uar.base())?;
            if event_type(&entry) != Some(bareverbs_mlx5_spec::EventType::PageRequest) {
                continue;
            }
            self.stats.page_requests = self.stats.page_requests.wrapping_add(1);
            let data = event_data::<PagesReqEvent>(&entry);
            let view = View::<PagesReqEvent>::of(&data);
            let (function, wanted) = (view.get(PagesReqEvent::FUNCTION_ID), view.get(PagesReqEvent::NUM_PAGES) as i32);
            log_event!(debug, "the firmware asks for {} pages", wanted);
            let served = if wanted >= 0 {
                self.give_pages(function, wanted as u32)
            } else {
                let count = wanted.unsigned_abs().min(TAKE_LIMIT).min(self.arena.firmware_pages());
                self.reclaim_pages(function, count).map(|_| ())
            };
            result = result.and(served);
        }
        result
    }
}
