//! A card that answers commands from a table of what a real one answered.

use std::collections::{BTreeSet, HashMap};

use bareverbs::platform::DmaMemory;
use bareverbs_decode::command_table::Exchange;
use bareverbs_mlx5_spec::{
    AccessRegisterIn, Buffer, CMD_ENTRY, CMD_INLINE, CapabilityType, CmdHcaCap, CmdIfBox, CmdOpcode, CmdQueueEntry, InitialSeg,
    Layout, MAILBOX, MAILBOX_DATA, MadIfcIn, MadIfcOut, ManagePagesIn, ManagePagesOut, NicVportContext, PCI_CMD_XPORT,
    QueryHcaCapOut, QueryNicVportContextOut, SMP_GET_RESP, Smp, View, ViewMut, manage_pages,
};
use bareverbs_sim::in_process::SimMemory;

/// Bytes of BAR0. The log of the real card does not say; every ConnectX has more than its first UAR pages need.
pub(crate) const BAR: usize = 32 << 20;
/// Slots of the command queue: Linux used the doorbell's bit 31.
const LOG_SLOTS: u32 = 5;
/// log2 of the bytes of a slot.
const LOG_STRIDE: u32 = 6;
const PAGE: u64 = 4096;

/// What is not in the recording or is replayed with another value.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    /// Major, minor and sub-minor version of the firmware.
    pub(crate) firmware: [u32; 3],
    /// The value of [`CmdHcaCap::PORT_TYPE`]; `None`: as it was recorded.
    pub(crate) port_type: Option<u32>,
    /// A byte of each answer of the port's agent that has a wrong value, and that value.
    pub(crate) wrong_byte: Option<(usize, u8)>,
    /// How often the port's agent is busy before it answers a question.
    pub(crate) busy: u32,
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A row of the table with the same opcode and op_mod.
    Recorded,
    /// There is no such row, or it names pages of the recorded machine.
    Made,
}

/// A command that was executed.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) input: Vec<u8>,
    /// Bytes of output for which the driver had room.
    pub(crate) output_len: usize,
    pub(crate) source: Source,
}

pub(crate) struct Card {
    table: Vec<Exchange>,
    setting: Setting,
    memory: SimMemory,
    segment: Buffer<InitialSeg>,
    /// Rows taken so far, by opcode, op_mod and register.
    taken: HashMap<Key, usize>,
    /// Current capabilities, by the page: what was set last.
    current: HashMap<u32, Vec<u8>>,
    /// How often the port's agent is still busy.
    busy: u32,
    /// Pages that the firmware has.
    pub(crate) pages: BTreeSet<u64>,
    pub(crate) executed: Vec<Executed>,
    /// What no driver may do.
    pub(crate) findings: Vec<String>,
}

/// What a row is found by: opcode, op_mod and, of ACCESS_REG, the register.
type Key = [u32; 3];

fn key(input: &[u8]) -> Key {
    let Some(view) = View::<AccessRegisterIn>::new(input) else { return [0; 3] };
    let opcode = view.get(AccessRegisterIn::OPCODE);
    let register = if opcode == CmdOpcode::AccessReg.code() { view.get(AccessRegisterIn::REGISTER_ID) } else { 0 };
    [opcode, view.get(AccessRegisterIn::OP_MOD), register]
}

/// Returns the page of a capability command, and whether it is about the current values.
fn capability(input: &[u8]) -> (u32, bool) {
    let modifier = key(input)[1];
    (modifier >> 1, modifier & 1 == 1)
}

impl Card {
    pub(crate) fn new(table: Vec<Exchange>, setting: Setting, memory: SimMemory) -> Self {
        let mut segment = Buffer::zeroed();
        let [major, minor, sub] = setting.firmware;
        segment
            .view_mut()
            .set(InitialSeg::FW_REV_MAJOR, major)
            .set(InitialSeg::FW_REV_MINOR, minor)
            .set(InitialSeg::FW_REV_SUBMINOR, sub)
            .set(InitialSeg::CMD_INTERFACE_REV, 5)
            .set(InitialSeg::LOG_CMDQ_SIZE, LOG_SLOTS)
            .set(InitialSeg::LOG_CMDQ_STRIDE, LOG_STRIDE);
        Self {
            table,
            setting,
            memory,
            segment,
            taken: HashMap::new(),
            current: HashMap::new(),
            busy: setting.busy,
            pages: BTreeSet::new(),
            executed: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Reads a register, as it lies in memory.
    pub(crate) fn read32(&self, offset: usize) -> [u8; 4] {
        self.segment.as_bytes().get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
    }

    /// Writes a register. The doorbell of the command queue executes its commands before it returns.
    pub(crate) fn write32(&mut self, offset: usize, value: [u8; 4]) {
        if offset == InitialSeg::COMMAND_DOORBELL_VECTOR.dword() {
            let rung = u32::from_be_bytes(value);
            for slot in (0..32).filter(|slot| rung >> slot & 1 == 1) {
                self.execute(slot);
            }
        } else if offset == InitialSeg::CMDQ_PHY_ADDR_63_32.dword() {
            self.segment.view_mut().set(InitialSeg::CMDQ_PHY_ADDR_63_32, u32::from_be_bytes(value));
        } else if offset == InitialSeg::CMDQ_PHY_ADDR_31_12.dword() {
            let low = InitialSeg::CMDQ_PHY_ADDR_31_12;
            self.segment.view_mut().set(low, low.take(u32::from_be_bytes(value)));
        } else {
            self.findings.push(format!("a write to register {offset:#x}"));
        }
    }

    fn execute(&mut self, slot: u32) {
        let view = self.segment.view();
        let low = InitialSeg::CMDQ_PHY_ADDR_31_12.place(view.get(InitialSeg::CMDQ_PHY_ADDR_31_12));
        let queue = u64::from(view.get(InitialSeg::CMDQ_PHY_ADDR_63_32)) << 32 | u64::from(low);
        let at = queue + (u64::from(slot) << LOG_STRIDE);
        let mut entry = [0; CMD_ENTRY];
        self.read(at, &mut entry);
        let view = View::<CmdQueueEntry>::of(&entry);
        let token = view.get(CmdQueueEntry::TOKEN);
        let (input_len, output_len) = (view.get(CmdQueueEntry::INPUT_LENGTH), view.get(CmdQueueEntry::OUTPUT_LENGTH));
        self.expect(view.get(CmdQueueEntry::TYPE) == PCI_CMD_XPORT, "the type of an entry");
        self.expect(view.get(CmdQueueEntry::OWNERSHIP) == 1, "the owner of an entry");
        self.expect(token != 0, "the token of an entry");
        self.expect(xor_of(&entry) == 0xff, "the signature of an entry");
        let pointer = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let blocks = pointer(
            view.get(CmdQueueEntry::INPUT_MAILBOX_POINTER_63_32),
            CmdQueueEntry::INPUT_MAILBOX_POINTER_31_9.place(view.get(CmdQueueEntry::INPUT_MAILBOX_POINTER_31_9)),
        );
        let mut input = view.bytes(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA).to_vec();
        for block in self.chain(blocks, (input_len as usize).saturating_sub(CMD_INLINE), token) {
            let mut data = [0; MAILBOX_DATA];
            self.read(block, &mut data);
            input.extend(data);
        }
        self.expect(input[input_len as usize..].iter().all(|byte| *byte == 0), "bytes after the input");
        input.truncate(input_len as usize);
        let (output, source) = self.answer(&input, output_len as usize);
        self.executed.push(Executed { input, output_len: output_len as usize, source });
        let (inline, rest) = output.split_at(CMD_INLINE.min(output.len()));
        let blocks = pointer(
            view.get(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_63_32),
            CmdQueueEntry::OUTPUT_MAILBOX_POINTER_31_9.place(view.get(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_31_9)),
        );
        for (block, data) in self.chain(blocks, rest.len(), token).into_iter().zip(rest.chunks(MAILBOX_DATA)) {
            self.write(block, data);
        }
        // Signatures stay as they are: so did the real card.
        self.write(at + CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA.offset() as u64, inline);
        self.write(at + CMD_ENTRY as u64 - 1, &[0]);
    }

    /// Returns the blocks of a chain for `len` bytes, and checks their control parts.
    fn chain(&mut self, first: u64, len: usize, token: u32) -> Vec<u64> {
        let (mut all, mut at) = (Vec::new(), first);
        for number in 0..len.div_ceil(MAILBOX_DATA) as u32 {
            let mut block = [0; MAILBOX];
            self.read(at, &mut block);
            let view = View::<CmdIfBox>::of(&block);
            self.expect(at != 0 && at.is_multiple_of(1024), "the place of a block");
            self.expect(view.get(CmdIfBox::BLOCK_NUMBER) == number, "the number of a block");
            self.expect(view.get(CmdIfBox::TOKEN) == token, "the token of a block");
            self.expect(xor_of(&block[MAILBOX_DATA..MAILBOX - 1]) == 0xff, "the control signature of a block");
            self.expect(xor_of(&block) == 0xff, "the signature of a block");
            all.push(at);
            let low = CmdIfBox::NEXT_POINTER_31_10;
            at = u64::from(view.get(CmdIfBox::NEXT_POINTER_63_32)) << 32 | u64::from(low.place(view.get(low)));
        }
        self.expect(len == 0 || at == 0, "the end of a chain");
        all
    }

    /// Returns the output of a command, `len` bytes of it.
    fn answer(&mut self, input: &[u8], len: usize) -> (Vec<u8>, Source) {
        let key = key(input);
        let (mut output, source) = match self.row(key) {
            // A reclaimed page is one of this driver's; the table has those of the recorded one.
            _ if key[..2] == [CmdOpcode::ManagePages.code(), manage_pages::TAKE] => (self.take_pages(input), Source::Made),
            Some(at) => (self.table[at].output.bytes.clone(), Source::Recorded),
            None if key[0] == CmdOpcode::MadIfc.code() && self.busy > 0 => {
                self.busy -= 1;
                (answer_mad(input, Some((5, 1))), Source::Made)
            }
            None if key[0] == CmdOpcode::MadIfc.code() => {
                self.busy = self.setting.busy;
                (answer_mad(input, self.setting.wrong_byte), Source::Made)
            }
            // Zeros would be a port without a MAC address, which a physical function has.
            None if key[0] == CmdOpcode::QueryNicVportContext.code() => (answer_vport(), Source::Made),
            None => (Vec::new(), Source::Made),
        };
        match CmdOpcode::from_code(key[0]) {
            Some(CmdOpcode::SetHcaCap) => drop(self.current.insert(capability(input).0, input.to_vec())),
            Some(CmdOpcode::QueryHcaCap) => self.change_capabilities(input, &mut output),
            Some(CmdOpcode::ManagePages) if key[1] == manage_pages::GIVE => self.give_pages(input),
            _ => {}
        }
        output.resize(len, 0);
        (output, source)
    }

    /// Returns the row that answers: the first with this key that was not taken, or the last one.
    fn row(&mut self, wanted: Key) -> Option<usize> {
        let rows: Vec<usize> = (0..self.table.len()).filter(|at| key(&self.table[*at].input.bytes) == wanted).collect();
        let taken = self.taken.entry(wanted).or_default();
        *taken += 1;
        rows.get(*taken - 1).or(rows.last()).copied()
    }

    /// Replaces current capabilities by what was set, as the recorded card did, and the port's type by that of the setting.
    fn change_capabilities(&self, input: &[u8], output: &mut [u8]) {
        let (page, current) = capability(input);
        const AT: usize = QueryHcaCapOut::CAPABILITY.offset();
        if let (true, Some(set)) = (current, self.current.get(&page)) {
            output[AT..].copy_from_slice(&set[AT..]);
        }
        if page == CapabilityType::General.code()
            && let Some(port_type) = self.setting.port_type
        {
            ViewMut::<CmdHcaCap>::new(&mut output[AT..]).unwrap().set(CmdHcaCap::PORT_TYPE, port_type);
        }
    }

    fn give_pages(&mut self, input: &[u8]) {
        let view = View::<ManagePagesIn>::new(input).unwrap();
        for index in 0..view.get(ManagePagesIn::INPUT_NUM_ENTRIES) as usize {
            let page = view.tail64(ManagePagesIn::PAS, index).unwrap_or_default();
            self.expect(page != 0 && page.is_multiple_of(PAGE), "the address of a page for the firmware");
            let new = self.pages.insert(page);
            self.expect(new, "a page that the firmware has");
        }
    }

    fn take_pages(&mut self, input: &[u8]) -> Vec<u8> {
        let wanted = View::<ManagePagesIn>::new(input).unwrap().get(ManagePagesIn::INPUT_NUM_ENTRIES) as usize;
        let back: Vec<u64> = std::iter::from_fn(|| self.pages.pop_last()).take(wanted).collect();
        let mut output = vec![0; ManagePagesOut::SIZE + 8 * back.len()];
        let mut view = ViewMut::<ManagePagesOut>::new(&mut output).unwrap();
        view.set(ManagePagesOut::OUTPUT_NUM_ENTRIES, back.len() as u32);
        for (index, page) in back.into_iter().enumerate() {
            view.set_tail64(ManagePagesOut::PAS, index, page);
        }
        output
    }

    fn expect(&mut self, right: bool, what: &str) {
        if !right {
            self.findings.push(format!("wrong in command {}: {what}", self.executed.len()));
        }
    }

    fn read(&mut self, addr: u64, into: &mut [u8]) {
        let at = addr.wrapping_sub(self.memory.device_addr()) as usize;
        if self.memory.read(at, into).is_err() {
            self.findings.push(format!("{} bytes at {addr:#x} are not the driver's", into.len()));
        }
    }

    fn write(&mut self, addr: u64, from: &[u8]) {
        let at = addr.wrapping_sub(self.memory.device_addr()) as usize;
        if self.memory.write(at, from).is_err() {
            self.findings.push(format!("{} bytes at {addr:#x} are not the driver's", from.len()));
        }
    }
}

/// A byte of an attribute of the port's agent: another one for each attribute and block.
pub(crate) fn attribute_byte(attribute: u32, modifier: u32, at: usize) -> u8 {
    (attribute as usize * 59 + modifier as usize * 67 + at * 3) as u8
}

/// Returns the output of MAD_IFC: an answer with the attribute that was asked for.
fn answer_mad(input: &[u8], wrong_byte: Option<(usize, u8)>) -> Vec<u8> {
    let mut output = Buffer::<MadIfcOut>::zeroed();
    let mut mad = View::<MadIfcIn>::new(input).unwrap().bytes(MadIfcIn::MAD).to_vec();
    let mut smp = ViewMut::<Smp>::new(&mut mad).unwrap();
    let (attribute, modifier) = (smp.get(Smp::ATTRIBUTE), smp.get(Smp::MODIFIER));
    let data: [u8; Smp::DATA.len()] = std::array::from_fn(|at| attribute_byte(attribute, modifier, at));
    smp.set(Smp::METHOD, SMP_GET_RESP).set_bytes(Smp::DATA, &data);
    if let Some((at, value)) = wrong_byte {
        mad[at] = value;
    }
    output.view_mut().set_bytes(MadIfcOut::RESPONSE_MAD_PACKET, &mad);
    output.as_bytes().to_vec()
}

/// Returns the context of an Ethernet port that has a MAC address and nothing else.
fn answer_vport() -> Vec<u8> {
    let mut output = Buffer::<QueryNicVportContextOut>::zeroed();
    let mut context = output.view_mut();
    context.sub(QueryNicVportContextOut::NIC_VPORT_CONTEXT).set64(NicVportContext::PERMANENT_ADDRESS, 0x0200_0000_0001);
    output.as_bytes().to_vec()
}

fn xor_of(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}
