//! The gateway in configuration space, driven as iPXE drives it (`mlx_pci_gw.c`, `mlx_icmd.c`, `mlx_reg_access.c`).

use bareverbs_sim::HcaState;

use crate::host::{Host, plain};

struct Gateway<'a> {
    host: &'a mut Host,
    /// Byte of the capability.
    at: usize,
}

impl Gateway<'_> {
    fn read(&mut self, register: usize) -> u32 {
        let mut bytes = [0; 4];
        self.host.device.config_read(self.at + register, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, register: usize, value: u32) {
        self.host.device.config_write(self.at + register, &value.to_le_bytes());
    }

    /// Chooses a space by a write of two bytes and reads the byte of its status.
    fn space(&mut self, space: u16) {
        self.host.device.config_write(self.at + 4, &space.to_le_bytes());
        let mut status = [0];
        self.host.device.config_read(self.at + 7, &mut status);
        assert_eq!(status[0] & 0x20, 0x20, "there is space {space}");
    }

    fn get(&mut self, address: u32) -> u32 {
        self.write(0x10, address);
        assert_eq!(self.read(0x10) >> 31, 1, "read");
        self.read(0x14)
    }

    fn put(&mut self, address: u32, value: u32) {
        self.write(0x14, value);
        self.write(0x10, 1 << 31 | address);
        assert_eq!(self.read(0x10) >> 31, 0, "written");
    }

    /// Runs a command on a mailbox. Returns its status and the mailbox afterwards.
    fn command(&mut self, opcode: u32, mailbox: &[u32]) -> (u32, Vec<u32>) {
        self.space(0xa);
        self.put(0, 1234);
        assert_eq!(self.get(0), 1234, "the semaphore");
        self.space(3);
        assert!(self.get(0x1000) as usize >= mailbox.len() * 4, "room for it");
        for (i, dword) in mailbox.iter().enumerate() {
            self.put(0x10_0000 + i as u32 * 4, *dword);
        }
        self.put(0, opcode << 16);
        self.put(0, opcode << 16 | 1);
        let control = self.get(0);
        assert_eq!((control & 1, control >> 16), (0, opcode), "done");
        let answer = (0..mailbox.len() as u32).map(|i| self.get(0x10_0000 + i * 4)).collect();
        self.space(0xa);
        self.put(0, 0);
        (control >> 8 & 0xff, answer)
    }
}

/// Returns an access to a register of that many dwords: method 1 reads, 2 writes. The first dword of the register is given.
fn access(register: u32, method: u32, first: u32, dwords: u32) -> Vec<u32> {
    let mut mailbox =
        vec![1 << 27 | 4 << 16, register << 16 | method << 8 | 1, 0x55, 0x66, 3 << 27 | (dwords + 1) << 16, first];
    mailbox.resize(5 + dwords as usize, 0);
    mailbox
}

#[test]
fn registers_are_read_and_written_before_the_device_is_enabled() {
    let mut host = Host::new(plain());
    assert_eq!(host.device.state(), HcaState::Disabled);
    let mut gateway = Gateway { host: &mut host, at: 0xb0 };
    let ticket = gateway.read(0x08);
    gateway.write(0x0c, ticket);
    assert_eq!(gateway.read(0x0c), ticket, "the gateway is mine");

    // PTYS of port 1, InfiniBand: widths and speeds that the port can have in its dword 4, those in use in dword 10.
    let (status, answer) = gateway.command(0x9001, &access(0x5004, 1, 1 << 16 | 1, 16));
    assert_eq!((status, answer[0] >> 8 & 0x7f), (0, 0));
    assert_eq!((answer[1] >> 15 & 1, &answer[2..4]), (1, &[0x55, 0x66][..]), "an answer to this question");
    assert_eq!((answer[5 + 4], answer[5 + 10]), (7 << 16 | 0x7f, 4 << 16 | 64));
    // PMTU written: 2048.
    let mut mtu = access(0x5003, 2, 1 << 16, 4);
    mtu[5 + 2] = 2048 << 16;
    let (_, answer) = gateway.command(0x9001, &mtu);
    assert_eq!((answer[0] >> 8 & 0x7f, answer[5 + 3] >> 16), (0, 2048));

    // Statuses of Linux's mlxsw/emad.h: 4 no such register, 5 no such class, 6 no such method, 7 a bad parameter, 3 an unknown
    // TLV.
    let wrong = |change: &dyn Fn(&mut Vec<u32>)| {
        let mut mailbox = access(0x5004, 1, 1 << 16 | 1, 16);
        change(&mut mailbox);
        mailbox
    };
    for (mailbox, expected) in [
        (access(0x9029, 1, 0, 16), 4),
        (wrong(&|mailbox| mailbox[1] ^= 3), 5),
        (wrong(&|mailbox| mailbox[1] |= 7 << 8), 6),
        (wrong(&|mailbox| mailbox[4] = 3 << 27 | 2 << 16), 7),
        (wrong(&|mailbox| mailbox[4] = 3 << 27 | 0x7ff << 16), 7),
        (wrong(&|mailbox| mailbox[0] = 0), 3),
    ] {
        let (status, answer) = gateway.command(0x9001, &mailbox);
        assert_eq!((status, answer[0] >> 8 & 0x7f), (0, expected), "{mailbox:x?}");
    }
    assert_eq!(gateway.command(0x8007, &[0; 4]).0, 1, "an opcode that there is not");
    let unsupported = host.device.take_unsupported();
    assert_eq!(
        unsupported,
        ["register 0x9029 is not supported", "command 0x8007 through the gateway in configuration space is not supported"]
    );
}
