//! A guest on the same wire that does honest work and expects it to be done, correctly and soon.

use bareverbs::DmaMemory as _;

use super::guest::{BASE, Guest, LEN, QUEUE, QUEUES, RECORDS, input};

/// Where it writes from and to: the last pages of its memory.
const SOURCE: usize = LEN - 0x2000;
const DESTINATION: usize = LEN - 0x1000;
/// Bytes of one WRITE: three packets.
const MESSAGE: usize = 2500;
/// Its completion queue, after the event queue.
const CQ: usize = QUEUES + QUEUE;
const CQ_ENTRIES: u32 = 64;
/// Turns of its device, a microsecond each, in which a command or a request has to be done.
const PATIENCE: usize = 16;

/// The guest, its device, and what it did.
pub struct WellBehavedGuest {
    pub guest: Guest,
    identity: [u8; 16],
    commands: u32,
    writes: u32,
}

impl WellBehavedGuest {
    /// A guest with queue pairs connected to themselves.
    pub fn new(lid: u16) -> Self {
        let mut guest = Guest::new(lid, false);
        assert!(guest.qps.iter().all(|(qpn, ..)| *qpn != 0), "{:?}", guest.qps);
        // No completion yet: as a driver leaves them.
        guest.memory.write(CQ, &[0xf1; CQ_ENTRIES as usize * 64]).expect("its own memory");
        let mut identity = [0; 16];
        guest.device.bar_read(0, &mut identity);
        Self { guest, identity, commands: 0, writes: 0 }
    }

    /// Registers, a command and an RDMA WRITE that is answered over the network of its own port.
    pub fn check(&mut self) {
        let mut identity = [0; 16];
        self.guest.device.bar_read(0, &mut identity);
        assert_eq!(identity, self.identity, "the initialization segment of a well-behaved guest");
        assert!(self.guest.device.link_is_up(), "the port of a well-behaved guest");
        self.command();
        self.write();
    }

    /// A protection domain comes and goes.
    fn command(&mut self) {
        let (opcode, pd) = if self.commands.is_multiple_of(2) { (0x800, 0) } else { (0x801, self.guest.number()) };
        self.commands += 1;
        self.guest.command(input(opcode, 16, &[(8, pd)]), 16);
        let mut entry = [0; 64];
        for _ in 0..PATIENCE {
            self.guest.memory.read(0, &mut entry).expect("its own memory");
            if entry[63] & 1 == 0 {
                break;
            }
            self.guest.run(1000);
        }
        assert_eq!((entry[63] & 1, entry[32]), (0, 0), "owner and status of a well-behaved guest's command {opcode:#x}");
    }

    /// Bytes that change each time arrive, and the completion says so.
    fn write(&mut self) {
        let data: Vec<u8> = (0..MESSAGE).map(|at| (at as u32).wrapping_add(self.writes.wrapping_mul(7)) as u8).collect();
        self.guest.memory.write(SOURCE, &data).expect("its own memory");
        let key = self.guest.key;
        let mut body = (BASE + DESTINATION as u64).to_be_bytes().to_vec();
        body.extend(key.to_be_bytes());
        body.extend([0; 4]);
        body.extend((MESSAGE as u32).to_be_bytes());
        body.extend(key.to_be_bytes());
        body.extend((BASE + SOURCE as u64).to_be_bytes());
        self.guest.send(0, 8, 8, 0, &body);
        let (entry, owner) = (self.writes % CQ_ENTRIES, (self.writes / CQ_ENTRIES % 2) as u8);
        let mut cqe = [0; 64];
        for _ in 0..PATIENCE {
            self.guest.memory.read(CQ + entry as usize * 64, &mut cqe).expect("its own memory");
            if cqe[63] & 1 == owner && cqe[63] >> 4 != 0xf {
                break;
            }
            self.guest.run(1000);
        }
        assert_eq!((cqe[63] >> 4, cqe[63] & 1), (0, owner), "completion {} of a well-behaved guest: {cqe:02x?}", self.writes);
        let mut arrived = vec![0; MESSAGE];
        self.guest.memory.read(DESTINATION, &mut arrived).expect("its own memory");
        assert!(arrived == data, "data of a well-behaved guest");
        self.writes += 1;
        // The consumer index.
        self.guest.memory.write(RECORDS, &(self.writes & 0xff_ffff).to_be_bytes()).expect("its own memory");
    }
}
