//! A device as its client uses it without a driver: commands, one reliable queue pair, writes to the memory of its peer.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use bareverbs_mlx5_spec::{
    Ads, AllocPdIn, AllocPdOut, AllocUarIn, AllocUarOut, CmdOpcode, Cqc, CreateCqIn, CreateCqOut, CreateEqIn, CreateEqOut,
    CreateMkeyIn, CreateMkeyOut, CreateQpIn, CreateQpOut, EnableHcaIn, Eqc, Init2rtrQpIn, InitHcaIn, Layout, MKEY_ANY_QPN, Mkc,
    Qpc, Rst2initQpIn, Rtr2rtsQpIn, UAR_BLUEFLAME, UAR_PAGE, View, ViewMut, rq_type,
};
use rustix::fs::{MemfdFlags, memfd_create};
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::Client;

use crate::LIMIT;

pub(crate) const BAR0: u32 = VFIO_PCI_BAR0_REGION_INDEX;
const LEN: u64 = 4 << 20;

// Device addresses.
const COMMANDS: u64 = 0x1000;
const MAILBOXES: u64 = 0x3000;
const EVENTS: u64 = 0x5000;
const COMPLETIONS: u64 = 0x6000;
const COMPLETIONS_RECORD: u64 = 0x7000;
const RING: u64 = 0x8000;
const RECORD: u64 = 0x9000;
/// Where the data lies, here and there.
pub(crate) const DATA: u64 = 1 << 20;

/// Entries of the rings.
const LOG_ENTRIES: u32 = 6;
const MAILBOX: usize = 512;

/// A client with its memory.
pub(crate) struct Device {
    client: Client,
    memory: File,
    uar: u32,
    pub(crate) qpn: u32,
    pub(crate) key: u32,
    posted: u16,
    completed: u32,
}

fn command<I: Layout>(opcode: CmdOpcode, tail: usize, fill: impl FnOnce(&mut ViewMut<'_, I>)) -> Vec<u8> {
    let mut input = vec![0; I::SIZE + tail];
    input[..2].copy_from_slice(&(opcode.code() as u16).to_be_bytes());
    fill(&mut ViewMut::<I>::new(&mut input).unwrap());
    input
}

impl Device {
    /// Memory mapped, bus master on; nothing else.
    pub(crate) fn new(mut client: Client) -> Self {
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(LEN).unwrap();
        client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, 4, &0x0006_u16.to_le_bytes()).unwrap();
        client.dma_map(0, 0, LEN, memory.as_raw_fd()).unwrap();
        client.region_write(BAR0, 0x10, &0_u32.to_be_bytes()).unwrap();
        client.region_write(BAR0, 0x14, &(COMMANDS as u32).to_be_bytes()).unwrap();
        Self { client, memory, uar: 0, qpn: 0, key: 0, posted: 0, completed: 0 }
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Executes a command in slot 0; its first 16 bytes of output.
    pub(crate) fn command(&mut self, input: &[u8]) -> [u8; 16] {
        let mut entry = [0; 64];
        (entry[0], entry[59], entry[60], entry[63]) = (7, 16, 0x5a, 1);
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        let boxes = input[inline..].chunks(MAILBOX);
        if boxes.len() > 0 {
            entry[8..16].copy_from_slice(&MAILBOXES.to_be_bytes());
        }
        for (number, data) in boxes.enumerate() {
            let at = MAILBOXES + number as u64 * 1024;
            let mut block = [0; 576];
            block[..data.len()].copy_from_slice(data);
            block[560..568].copy_from_slice(&(at + 1024).to_be_bytes());
            block[568..572].copy_from_slice(&(number as u32).to_be_bytes());
            block[573] = 0x5a;
            self.memory.write_all_at(&block, at).unwrap();
        }
        self.memory.write_all_at(&entry, COMMANDS).unwrap();
        self.client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).unwrap();
        let mut status = [1];
        self.wait(COMMANDS + 63, &mut status, |status| status[0] & 1 == 0);
        self.memory.read_exact_at(&mut entry, COMMANDS).unwrap();
        assert_eq!((entry[63], entry[32]), (0, 0), "delivery status, status");
        entry[32..48].try_into().unwrap()
    }

    /// Reads memory until it shows what is waited for.
    fn wait(&self, at: u64, bytes: &mut [u8], done: impl Fn(&[u8]) -> bool) {
        let start = Instant::now();
        loop {
            self.memory.read_exact_at(bytes, at).unwrap();
            if done(bytes) {
                return;
            }
            assert!(start.elapsed() < LIMIT);
        }
    }

    /// One queue pair with a ring of its own for sends, and a key to all memory.
    pub(crate) fn open(&mut self) {
        self.command(&command::<EnableHcaIn>(CmdOpcode::EnableHca, 0, |_| {}));
        self.command(&command::<InitHcaIn>(CmdOpcode::InitHca, 0, |_| {}));
        let uar = self.command(&command::<AllocUarIn>(CmdOpcode::AllocUar, 0, |_| {}));
        let uar = View::<AllocUarOut>::of(&uar).get(AllocUarOut::UAR);
        let pd = self.command(&command::<AllocPdIn>(CmdOpcode::AllocPd, 0, |_| {}));
        let pd = View::<AllocPdOut>::of(&pd).get(AllocPdOut::PD);
        let eq = self.command(&command::<CreateEqIn>(CmdOpcode::CreateEq, 8, |input| {
            input.sub(CreateEqIn::EQ_CONTEXT_ENTRY).set(Eqc::LOG_EQ_SIZE, LOG_ENTRIES).set(Eqc::UAR_PAGE, uar);
            input.set_tail64(CreateEqIn::PAS, 0, EVENTS);
        }));
        let eqn = View::<CreateEqOut>::of(&eq).get(CreateEqOut::EQ_NUMBER);
        let cq = self.command(&command::<CreateCqIn>(CmdOpcode::CreateCq, 8, |input| {
            let mut context = input.sub(CreateCqIn::CQ_CONTEXT);
            context.set(Cqc::LOG_CQ_SIZE, LOG_ENTRIES).set(Cqc::UAR_PAGE, uar).set(Cqc::C_EQN_OR_APU_ELEMENT, eqn);
            context.set(Cqc::OI, 1).set64(Cqc::DBR_ADDR, COMPLETIONS_RECORD);
            input.set_tail64(CreateCqIn::PAS, 0, COMPLETIONS);
        }));
        let cqn = View::<CreateCqOut>::of(&cq).get(CreateCqOut::CQN);
        let key = self.command(&command::<CreateMkeyIn>(CmdOpcode::CreateMkey, 0, |input| {
            let mut context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
            context.set(Mkc::LR, 1).set(Mkc::LW, 1).set(Mkc::RR, 1).set(Mkc::RW, 1);
            context.set(Mkc::LENGTH64, 1).set(Mkc::QPN, MKEY_ANY_QPN).set(Mkc::PD, pd);
        }));
        self.key = View::<CreateMkeyOut>::of(&key).get(CreateMkeyOut::MKEY_INDEX) << 8;
        let qp = self.command(&command::<CreateQpIn>(CmdOpcode::CreateQp, 8, |input| {
            let mut context = input.sub(CreateQpIn::QPC);
            context.set(Qpc::PD, pd).set(Qpc::UAR_PAGE, uar).set(Qpc::LOG_SQ_SIZE, LOG_ENTRIES).set(Qpc::CQN_SND, cqn);
            context.set(Qpc::RQ_TYPE, rq_type::NONE).set64(Qpc::DBR_ADDR, RECORD);
            input.set_tail64(CreateQpIn::PAS, 0, RING);
        }));
        (self.uar, self.qpn) = (uar, View::<CreateQpOut>::of(&qp).get(CreateQpOut::QPN));
    }

    /// Ready to send to queue pair `peer` of the device at `lid`.
    pub(crate) fn connect(&mut self, lid: u16, peer: u32) {
        let qpn = self.qpn;
        self.command(&command::<Rst2initQpIn>(CmdOpcode::Rst2InitQp, 0, |input| {
            input.set(Rst2initQpIn::QPN, qpn).sub(Rst2initQpIn::QPC).set(Qpc::RWE, 1);
        }));
        self.command(&command::<Init2rtrQpIn>(CmdOpcode::Init2RtrQp, 0, |input| {
            let mut context = input.set(Init2rtrQpIn::QPN, qpn).sub(Init2rtrQpIn::QPC);
            context.set(Qpc::MTU, 5).set(Qpc::LOG_MSG_MAX, 30).set(Qpc::REMOTE_QPN, peer);
            context.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, lid.into());
        }));
        self.command(&command::<Rtr2rtsQpIn>(CmdOpcode::Rtr2RtsQp, 0, |input| {
            let mut context = input.set(Rtr2rtsQpIn::QPN, qpn).sub(Rtr2rtsQpIn::QPC);
            context.set(Qpc::RETRY_COUNT, 7).sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::ACK_TIMEOUT, 18);
        }));
    }

    /// Posts an RDMA write of `len` bytes from and to the same address, and rings.
    pub(crate) fn write(&mut self, at: u64, len: u32, signaled: bool, peer_key: u32) {
        let dwords = [
            u32::from(self.posted) << 8 | 0x08,
            self.qpn << 8 | 3,
            u32::from(signaled) << 3,
            0,
            0,
            at as u32,
            peer_key,
            0,
            len,
            self.key,
            0,
            at as u32,
        ];
        let wqe: Vec<u8> = dwords.iter().flat_map(|dword| dword.to_be_bytes()).collect();
        self.memory.write_all_at(&wqe, RING + u64::from(self.posted & ((1 << LOG_ENTRIES) - 1)) * 64).unwrap();
        self.posted = self.posted.wrapping_add(1);
        self.memory.write_all_at(&u32::from(self.posted).to_be_bytes(), RECORD + 4).unwrap();
        let doorbell = u64::from(self.uar) * UAR_PAGE as u64 + UAR_BLUEFLAME as u64;
        self.client.region_write(BAR0, doorbell, &wqe[..8]).unwrap();
    }

    /// Stores a mark where a write takes it from.
    pub(crate) fn store(&self, at: u64, mark: u64) {
        self.memory.write_all_at(&mark.to_ne_bytes(), at).unwrap();
    }

    /// Waits until a write of the peer has brought a mark.
    pub(crate) fn wait_for(&self, at: u64, mark: u64) {
        self.wait(at, &mut [0; 8], |bytes| bytes == mark.to_ne_bytes());
    }

    /// Waits for a completion, which must be a success.
    pub(crate) fn wait_for_completion(&mut self) {
        let place = COMPLETIONS + u64::from(self.completed & ((1 << LOG_ENTRIES) - 1)) * 64;
        // The ring was zeroed, not filled with invalid entries: the owner bit of the first round is that of a free entry.
        let owner = (self.completed >> LOG_ENTRIES & 1) as u8;
        let counter = self.posted.wrapping_sub(1).to_be_bytes();
        let mut entry = [0; 64];
        self.wait(place, &mut entry, |entry| entry[63] & 1 == owner && entry[60..62] == counter && entry[56] == 0x08);
        assert_eq!(entry[63] >> 4, 0, "{entry:x?}");
        self.completed += 1;
    }
}
