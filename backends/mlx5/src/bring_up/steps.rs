//! Bring-up and teardown, step by step.

use core::fmt;
use core::ops::ControlFlow;
use core::time::Duration;

use bareverbs::platform::{Clock, DmaMemory, PageSource, Platform, Registers};
use bareverbs_mlx5_spec::{
    CmdHcaCap, CmdOpcode, EventType, InitialSeg, Layout, QueryAdapterOut, QueryAdapterParamBlock, QueryIssiOut, SetIssiIn, cmd,
    query_pages,
};

use crate::command::{CommandInterface, CommandQueue};
use crate::dma::arena::{ObjectMemory, PAGE};
use crate::driver::{BringUpState, Driver};
use crate::error::{CmdName, Error, capped};
use crate::events::async_event::ASYNC_EVENTS;
use crate::events::completion::{COMPLETION_EQS, Mlx5CompletionEvents};
use crate::listed::listed;
use crate::log::log_event;
use crate::object::Object;

const COMMAND_INTERFACE: u32 = 5;
/// Time between the address of the command queue and the first command. A bare driver of a ConnectX-4 and a ConnectX-4 Lx had no answer to
/// some first commands without it (`mlx5_cmdq_init` of `vfio_nvme`); Linux and rdma-core have work to do in between.
const QUEUE_ADDRESS_TIME: Duration = Duration::from_millis(10);

listed! {
    /// A step of the bring-up, in order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    #[non_exhaustive]
    pub enum Step {
        /// Compare registers and memory with what the driver needs.
        CheckArena,
        /// Wait for the firmware to boot.
        WaitBoot,
        /// Read the size of the command queue and set its address.
        SetCommandQueue,
        /// Wait for the device to be ready.
        WaitInitialized,
        /// ENABLE_HCA.
        EnableHca,
        /// QUERY_ISSI and SET_ISSI.
        Issi,
        /// Give the pages that the firmware needs to boot.
        BootPages,
        /// Set the host's byte order.
        HostEndianness,
        /// QUERY_HCA_CAP and SET_HCA_CAP of the general capabilities.
        SetCapabilities,
        /// QUERY_HCA_CAP and SET_HCA_CAP of the atomic capabilities.
        AtomicCapabilities,
        /// QUERY_HCA_CAP and SET_HCA_CAP of the capabilities of RoCE, of an Ethernet port.
        RoceCapabilities,
        /// Give the pages that INIT_HCA needs.
        InitPages,
        /// INIT_HCA.
        InitHca,
        /// QUERY_HCA_CAP of the current values.
        ReadCapabilities,
        /// QUERY_ADAPTER.
        QueryAdapter,
        /// QUERY_HCA_VPORT_CONTEXT for the GUIDs, or MAD_IFC if the function has no virtual ports; QUERY_NIC_VPORT_CONTEXT of an
        /// Ethernet port.
        QueryPort,
        /// ALLOC_UAR.
        AllocUar,
        /// CREATE_EQ for asynchronous events.
        AsyncEq,
        /// CREATE_EQ for page requests.
        PagesEq,
        /// CREATE_EQ for completions.
        CompletionEqs,
        /// MTU and state by ACCESS_REG, and MODIFY_NIC_VPORT_CONTEXT for RoCE, of an Ethernet port.
        EnablePort,
    }
}

/// What a bring-up does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Progress {
    /// This step.
    Step(Step),
    /// Give more pages to the firmware, which it needs to boot or to initialize itself. Real cards want thousands.
    Pages {
        /// Pages that it was given.
        given: u32,
        /// Pages that it wants.
        wanted: u32,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a bring-up failed. The steps before were undone as far as the device allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BringUpError {
    /// The step.
    pub step: Step,
    /// The reason.
    pub cause: Error,
    /// Pages that the firmware did not return. They stay allocated in their source.
    pub pages_kept: u32,
    /// Whether the device may still use the machine's memory and pages, which must stay untouched until a reset of the device.
    pub needs_reset: bool,
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bring-up failed at {}: {}", self.step, self.cause)
    }
}

impl core::error::Error for BringUpError {}

/// The result of a teardown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TeardownReport {
    /// Pages that the firmware got since the bring-up.
    pub pages_given: u32,
    /// Pages that the firmware returned.
    pub pages_back: u32,
    /// Pages that the firmware kept. They stay allocated in their source.
    pub pages_kept: u32,
    /// Completion queues that were not destroyed before.
    pub cqs_left: u32,
    /// Whether the device may still use the machine's memory and pages, which must stay untouched until a reset of the device.
    pub needs_reset: bool,
}

/// Why a teardown failed. The steps after the failed one were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TeardownError {
    /// The command that failed.
    pub opcode: CmdName,
    /// The reason.
    pub cause: Error,
    /// The result of the other steps.
    pub report: TeardownReport,
}

impl fmt::Display for TeardownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "teardown failed at {:?}: {}", self.opcode, self.cause)
    }
}

impl core::error::Error for TeardownError {}

/// Called before each step and each batch of pages; `Break` stops the bring-up there and undoes it.
pub(crate) type Hook<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

impl<P: Platform> Driver<P> {
    /// Performs all steps, in order. On failure the caller undoes them.
    // Not inlined: in a frame with the driver each access far from the stack pointer takes two instructions. The steps are not inlined
    // here either, so that one frame does not have the buffers of all.
    #[inline(never)]
    pub(crate) fn bring_up(&mut self, need: usize, hook: Hook<'_>) -> Result<(), (Step, Error)> {
        for step in Step::ALL {
            log_event!(debug, "bring-up: {:?}", step);
            let result = match hook(Progress::Step(*step)) {
                ControlFlow::Continue(()) => self.step(*step, need, hook),
                ControlFlow::Break(()) => Err(Error::Stopped),
            };
            if let Err(error) = result {
                log_event!(error, "bring-up failed at {:?}: {:?}", step, error);
                return Err((*step, error));
            }
        }
        let [major, minor, sub] = self.attr.fw_ver;
        log_event!(info, "firmware {}.{}.{} is up, it has {} pages", major, minor, sub, self.commands.held);
        Ok(())
    }

    fn step(&mut self, step: Step, need: usize, hook: Hook<'_>) -> Result<(), Error> {
        match step {
            Step::CheckArena => {
                self.commands.machine.pages.free_all();
                // From here on a register that cannot be read counts as all ones.
                let have = self.commands.machine.registers.len();
                if have < InitialSeg::SIZE {
                    return Err(Error::BarTooSmall { have: capped(have) });
                }
                let have = self.commands.machine.memory.len();
                if have < need {
                    return Err(Error::ArenaTooSmall { have: capped(have) });
                }
            }
            Step::WaitBoot => self.commands.wait_initialized(self.config.boot_timeout)?,
            Step::SetCommandQueue => {
                self.commands.check_device()?;
                // Its commands name the function otherwise (`embedded_cpu_function`), and it has pages to give for the host's too.
                if self.commands.segment(InitialSeg::EMBEDDED_CPU) != 0 {
                    return Err(Error::EmbeddedCpu);
                }
                let version = [InitialSeg::FW_REV_MAJOR, InitialSeg::FW_REV_MINOR, InitialSeg::FW_REV_SUBMINOR];
                self.attr.fw_ver = version.map(|field| self.commands.segment(field) as u16);
                self.commands.set_command_queue()?;
            }
            Step::WaitInitialized => {
                let timeout = self.config.init_timeout.max(self.commands.take_timeouts());
                self.commands.wait_initialized(timeout)?;
            }
            Step::EnableHca => {
                self.commands.perform::<cmd::EnableHca>(|input| input)?;
                self.state.enabled = true;
            }
            Step::Issi => self.caps.pools = self.commands.negotiate_issi()? == 1,
            Step::BootPages => self.give_startup_pages(query_pages::BOOT, hook)?,
            Step::HostEndianness if !self.config.virtual_function => self.set_host_endianness()?,
            Step::SetCapabilities => (self.attr.atomics, self.caps.ethernet) = self.commands.set_general_capabilities()?,
            Step::AtomicCapabilities if self.attr.atomics => self.commands.set_atomic_capabilities()?,
            Step::RoceCapabilities if self.caps.is_ethernet() => self.commands.set_roce_capabilities()?,
            Step::InitPages => self.give_startup_pages(query_pages::INIT, hook)?,
            Step::InitHca => {
                self.commands.perform::<cmd::InitHca>(|input| input)?;
                self.state.initialized = true;
            }
            Step::ReadCapabilities => self.caps.query(&mut self.commands, &mut self.general, &mut self.attr)?,
            Step::QueryAdapter => self.query_adapter()?,
            Step::QueryPort => [self.attr.node_guid, self.attr.sys_image_guid] = self.query_node()?,
            Step::AllocUar => self.alloc_uar()?,
            Step::AsyncEq => {
                self.events = Some(self.create_eq(self.config.async_events, ASYNC_EVENTS, self.config.first_vector)?)
            }
            Step::PagesEq if self.capability(CmdHcaCap::PAGE_REQUEST_DISABLE) == 0 => {
                let eq = self.create_eq(self.config.page_events, &[EventType::PageRequest], self.config.first_vector)?;
                self.commands.page_requests = Some(eq);
            }
            Step::CompletionEqs => self.create_completion_eqs()?,
            Step::EnablePort if self.caps.is_ethernet() => self.enable_ethernet_port()?,
            // Not of this kind of function or port.
            Step::HostEndianness | Step::AtomicCapabilities | Step::RoceCapabilities | Step::PagesEq | Step::EnablePort => {}
        }
        Ok(())
    }

    fn give_startup_pages(&mut self, when: u32, hook: Hook<'_>) -> Result<(), Error> {
        self.commands.give_startup_pages(when, &mut |given, wanted| hook(Progress::Pages { given, wanted }))
    }

    #[inline(never)]
    fn create_completion_eqs(&mut self) -> Result<(), Error> {
        self.completion_events = Some(Mlx5CompletionEvents::new(self.config.first_vector));
        for index in 0..self.config.completion_vectors.clamp(1, COMPLETION_EQS as u8) {
            let vector = self.config.first_vector.saturating_add(u16::from(index) + 1);
            let eq = self.create_eq(self.config.completion_events, &[], vector)?;
            // The bound of the loop is the capacity of both.
            let _ = self.completion_eqs.push((eq.object, vector));
            if let Some(events) = &mut self.completion_events {
                let _ = events.queues.push(eq);
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn query_adapter(&mut self) -> Result<(), Error> {
        let output = self.commands.query::<cmd::QueryAdapter>(|input| input)?;
        let view = output.view().sub(QueryAdapterOut::QUERY_ADAPTER_STRUCT);
        self.attr.vendor_id = view.get(QueryAdapterParamBlock::IEEE_VENDOR_ID);
        Ok(())
    }

    /// Undoes the bring-up in reverse order. The steps after a failed one are tried too, and the first error is returned.
    pub(crate) fn tear_down(&mut self) -> Result<TeardownReport, TeardownError> {
        let mut failed = None;
        log_event!(debug, "teardown: {} completion queues are left", self.cqs);
        // TEARDOWN_HCA ends the queues for frames. Nobody writes into them any more.
        self.promiscuous = false;
        #[cfg(feature = "ethernet")]
        drop(self.ethernet.take());
        if self.caps.is_ethernet() && self.state.roce {
            record_result(&mut failed, CmdOpcode::ModifyNicVportContext, self.set_roce(false));
            // TEARDOWN_HCA ends it too.
            self.state.roce = false;
        }
        let eqs = core::mem::take(&mut self.completion_eqs);
        let control = [&mut self.commands.page_requests, &mut self.events].map(|place| place.take().map(|eq| eq.object));
        let uar = (self.uar != 0).then(|| Object::of::<cmd::DeallocUar>(self.uar, ObjectMemory::default()));
        // If completion queues are left, they report to these, and are armed in the UAR page. Cards refuse to destroy what has users;
        // TEARDOWN_HCA takes all of it.
        for object in eqs.iter().rev().map(|(eq, _)| eq).chain(control.iter().flatten()).chain(&uar) {
            if self.cqs == 0 {
                record_result(&mut failed, object.destroy, self.end(object));
            }
        }
        self.uar = 0;
        if self.state.initialized {
            let result = self.commands.perform::<cmd::TeardownHca>(|input| input);
            self.state.initialized = result.is_err();
            record_result(&mut failed, CmdOpcode::TeardownHca, result);
        }
        if self.commands.held != 0 {
            record_result(&mut failed, CmdOpcode::ManagePages, self.commands.reclaim_all(self.config.reclaim_timeout));
        }
        if self.state.enabled {
            let result = self.commands.perform::<cmd::DisableHca>(|input| input);
            self.state.enabled = result.is_err();
            record_result(&mut failed, CmdOpcode::DisableHca, result);
        }
        let report = TeardownReport {
            pages_given: self.commands.stats.pages_given,
            pages_back: self.commands.stats.pages_back,
            pages_kept: self.commands.held,
            cqs_left: self.cqs,
            needs_reset: self.needs_reset(),
        };
        log_event!(info, "teardown: the firmware kept {} pages, a reset is needed: {}", report.pages_kept, report.needs_reset);
        match failed {
            None => Ok(report),
            Some((opcode, cause)) => Err(TeardownError { opcode: CmdName(opcode.code() as u16), cause, report }),
        }
    }

    /// Returns whether the device may still use its memory after a teardown.
    pub(crate) fn needs_reset(&self) -> bool {
        self.commands.dead.is_some() || self.commands.held != 0 || self.state != BringUpState::default()
    }
}

impl<P: Platform> CommandInterface<P> {
    /// Waits for the firmware to be initialized. A device in a reset may read as all ones, in which the bit is set too: as in Linux
    /// (`wait_fw_init` of `main.c`) it has the whole time.
    fn wait_initialized(&mut self, timeout: core::time::Duration) -> Result<(), Error> {
        let deadline = self.machine.clock.now().after(timeout);
        loop {
            let late = self.machine.clock.now() >= deadline;
            let word = self.register(InitialSeg::INITIALIZING.dword());
            if InitialSeg::INITIALIZING.take(word) == 0 {
                return Ok(());
            }
            if late {
                self.check_device()?;
                return Err(Error::NotInitialized);
            }
            self.machine.clock.relax(deadline);
        }
    }

    #[inline(never)]
    fn set_command_queue(&mut self) -> Result<(), Error> {
        let revision = self.segment(InitialSeg::CMD_INTERFACE_REV);
        if revision != COMMAND_INTERFACE {
            return Err(Error::CommandInterface { revision: revision as u16 });
        }
        let log_size = self.segment(InitialSeg::LOG_CMDQ_SIZE);
        let log_stride = self.segment(InitialSeg::LOG_CMDQ_STRIDE);
        // Two slots at least (the last is for pages), 32 at most (bits of the doorbell), entries of 64 bytes in one page.
        if !(1..=5).contains(&log_size) || log_stride < 6 || log_size + log_stride > PAGE.trailing_zeros() {
            return Err(Error::CommandQueue { log_size: log_size as u8, log_stride: log_stride as u8 });
        }
        log_event!(debug, "command queue of 2^{} entries, 2^{} bytes apart", log_size, log_stride);
        let mut range = self.allocate_cleared(1)?;
        // An address whose lower half is 0 cannot be distinguished from that of a device that was reset.
        if self.arena.addr(range.at()) as u32 == 0 {
            range = self.allocate_cleared(1)?;
        }
        self.queue = CommandQueue::new(range.at(), log_size, log_stride);
        let addr = self.arena.addr(range.at());
        self.set_queue_address(addr)?;
        let end = self.machine.clock.now().after(QUEUE_ADDRESS_TIME);
        while self.machine.clock.now() < end {
            self.machine.clock.relax(end);
        }
        Ok(())
    }

    /// Negotiates the ISSI and returns it: 1 if the device has it, otherwise 0. A device without QUERY_ISSI has 0.
    #[inline(never)]
    fn negotiate_issi(&mut self) -> Result<u32, Error> {
        let output = match self.query::<cmd::QueryIssi>(|input| input) {
            // As in Linux (`mlx5_core_set_issi`), any refusal means firmware without it, which has 0.
            Err(error) if error.is_refusal() => return Ok(0),
            other => other?,
        };
        let supported = output.view().get(QueryIssiOut::SUPPORTED_ISSI_DW0);
        log_event!(debug, "interface steps offered: {:x}", supported);
        if supported & 1 << 1 != 0 {
            self.perform::<cmd::SetIssi>(|input| input.set(SetIssiIn::CURRENT_ISSI, 1))?;
            return Ok(1);
        }
        if supported & 1 != 0 || supported == 0 { Ok(0) } else { Err(Error::Issi { supported }) }
    }
}

/// The first error of a teardown.
type Failed = Option<(CmdOpcode, Error)>;

#[inline(never)]
fn record_result(failed: &mut Failed, opcode: CmdOpcode, result: Result<(), Error>) {
    match result {
        Ok(()) => log_event!(debug, "teardown: {:?}", CmdName(opcode.code() as u16)),
        Err(error) => {
            log_event!(error, "teardown failed at {:?}: {:?}", CmdName(opcode.code() as u16), error);
            failed.get_or_insert((opcode, error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::tests::mock::{MockPlatform, opcode_of, respond, started};

    /// supported_issi_dw0 is at 108 of the answer to QUERY_ISSI (0x10a), current_issi the lower half of the dword at 8 of SET_ISSI (0x10b).
    /// A device that names none, or refuses, has 0 (Linux `mlx5_core_set_issi`).
    #[test]
    fn the_interface_step_is_1_or_else_0() {
        let refused = Err(Error::Issi { supported: 4 });
        for (supported, status, expected, set) in [
            (0, 0, Ok(0), None),
            (1, 0, Ok(0), None),
            (2, 0, Ok(1), Some(1)),
            (3, 0, Ok(1), Some(1)),
            (7, 0, Ok(1), Some(1)),
            (5, 0, Ok(0), None),
            (4, 0, refused, None),
            (2, 2, Ok(0), None),
        ] {
            let (mut driver, shared) = started();
            let was_set = Rc::new(core::cell::Cell::new(None));
            let note = was_set.clone();
            respond(&shared, move |input, output| match opcode_of(input) {
                0x10a => {
                    output[0] = status;
                    output[108..112].copy_from_slice(&u32::to_be_bytes(supported));
                }
                0x10b => note.set(Some(u16::from_be_bytes([input[10], input[11]]))),
                other => panic!("{other:#x}"),
            });
            let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
            assert_eq!((commands.negotiate_issi(), was_set.get()), (expected, set), "{supported:#x}");
        }
    }
}
