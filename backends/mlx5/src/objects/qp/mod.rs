//! Queue pairs: rings, creation, destruction.

mod address;
mod modify;
pub(crate) mod recv_ring;
mod roce;
pub(crate) mod segment;
pub(crate) mod send_ring;

use bareverbs::{DmaMemory, Platform, QpCap, QpState, QpType, RingSizes};
use bareverbs_mlx5_spec::{Buffer, CreateQpIn, DS_UNIT, Qpc, QpcSt, ViewMut, WQEBB, cmd, pm_state, rq_type};

use crate::bring_up::caps::{CONNECTED_HEAD, Capabilities, INLINE_HEAD};
use crate::command::object::Object;
use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, Feature};
use crate::log::{format_as, log_event};
use crate::ring::open_ring;

use recv_ring::Mlx5RecvRing;
use send_ring::Mlx5SendRing;

/// Bytes before the payload of a datagram: control segment and address vector.
const UD_HEADER_SIZE: u32 = 64;
/// Maximum bytes of a bind: control segment, UMR control segment, key context, translations.
const BIND_WQE_SIZE: u32 = 192;
/// Bytes of an atomic of an XRC initiator: control, shared receive queue, remote address, operands, data. Others fill a block.
const XRC_ATOMIC_WQE_SIZE: u32 = 80;
/// Maximum entries of a ring. Indices have 16 bits, of which the device needs one to distinguish full from empty.
const MAX_RING_ENTRIES: u32 = 1 << 15;
/// User index of a queue pair of a device whose completions carry none.
const NO_USER_INDEX: u32 = 0xff_ffff;

type MemoryRing<P> = <<P as Platform>::Memory as DmaMemory>::Ring;

/// A queue pair of this backend.
pub struct Qp {
    pub(crate) number: u32,
    memory: ObjectMemory,
    service: QpcSt,
    pd: u32,
    send_cqn: u32,
    recv_cqn: u32,
    pkey_index: u16,
}

format_as!([] Qp, "Qp({:x})", |this| this.number);

/// Where a queue pair without a receive queue takes its receives from, in the words of its context.
#[derive(Clone, Copy)]
pub(crate) struct Receives {
    /// [`Qpc::RQ_TYPE`].
    pub(crate) rq_type: u32,
    /// [`Qpc::SRQN_RMPN_XRQN`].
    pub(crate) srqn: u32,
    /// [`Qpc::XRCD`]; 0 on another transport.
    pub(crate) xrcd: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rings {
    /// Blocks of 64 bytes; 0 without a send ring.
    send_blocks: u32,
    /// Entries; 0 without a receive ring.
    recv_entries: u32,
    /// 16-byte units of a receive entry.
    recv_units: u32,
    cap: QpCap,
}

impl Rings {
    /// Returns rings that fit `cap.max_send_wr` requests of the largest kind that the queue pair may post, in any order.
    fn new(cap: &QpCap, service: QpcSt, caps: &Capabilities) -> Result<Self, Error> {
        let within = |requested: u32, limit: u32| {
            if requested <= limit { Ok(requested) } else { Err(Error::LimitExceeded { limit }) }
        };
        let unit = DS_UNIT as u32;
        let block = WQEBB as u32;
        let ring = MAX_RING_ENTRIES.min(1 << caps.log_max_qp_sz);
        let connected = !matches!(service, QpcSt::Ud | QpcSt::Qp1);
        let (head, atomic) = match service {
            QpcSt::Ud | QpcSt::Qp1 => (UD_HEADER_SIZE, 0),
            QpcSt::Xrc => (CONNECTED_HEAD + unit, XRC_ATOMIC_WQE_SIZE),
            _ => (CONNECTED_HEAD, 0),
        };
        let max_sges = caps.max_sge().min(caps.max_send_wqe.saturating_sub(head) / unit);
        let max_inline = caps.max_send_wqe.saturating_sub(head + INLINE_HEAD);
        let sges = within(cap.max_send_sge, max_sges)?;
        let inline = within(cap.max_inline_data, max_inline)?;
        let mut rings = Self { send_blocks: 0, recv_entries: 0, recv_units: 1, cap: QpCap::default() };
        if cap.max_send_wr != 0 {
            let with_sges = head + unit * sges;
            let with_inline = if inline == 0 { 0 } else { head + (INLINE_HEAD + inline).next_multiple_of(unit) };
            let bind = if connected && caps.windows { BIND_WQE_SIZE } else { 0 };
            let max_wqe = within(with_sges.max(with_inline).max(bind).max(atomic), caps.max_send_wqe)?;
            let blocks_per_wr = max_wqe.div_ceil(block).max(1);
            let wqe = blocks_per_wr.saturating_mul(block);
            let blocks = cap.max_send_wr.saturating_mul(blocks_per_wr);
            rings.send_blocks = within(blocks.checked_next_power_of_two().unwrap_or(u32::MAX), ring)?;
            rings.cap.max_send_wr = rings.send_blocks / blocks_per_wr;
            rings.cap.max_send_sge = ((wqe - head) / unit).min(max_sges);
            // A datagram without data fills its blocks: then there is no room for the head.
            rings.cap.max_inline_data = wqe.saturating_sub(head + INLINE_HEAD).min(max_inline);
        }
        if cap.max_recv_wr != 0 {
            let units = within(cap.max_recv_sge, caps.max_sge())?.max(1).next_power_of_two();
            // The send ring behind it starts with a block.
            let min_entries = (WQEBB as u32 / DS_UNIT as u32).div_ceil(units);
            let entries = within(cap.max_recv_wr, ring)?.next_power_of_two().max(min_entries);
            rings.recv_entries = within(entries, ring)?;
            rings.recv_units = units;
            rings.cap.max_recv_wr = rings.recv_entries;
            rings.cap.max_recv_sge = units;
        }
        Ok(rings)
    }

    /// Returns the bytes of the receive ring, which is the first.
    const fn recv_bytes(&self) -> usize {
        self.recv_entries as usize * self.recv_units as usize * DS_UNIT
    }

    const fn send_bytes(&self) -> usize {
        self.send_blocks as usize * WQEBB
    }
}

fn service_of(qp_type: QpType) -> Result<QpcSt, Error> {
    match qp_type {
        QpType::Rc => Ok(QpcSt::Rc),
        QpType::Uc => Ok(QpcSt::Uc),
        QpType::Ud => Ok(QpcSt::Ud),
        QpType::Gsi => Ok(QpcSt::Qp1),
        QpType::XrcSend => Ok(QpcSt::Xrc),
        // It has no rings.
        QpType::XrcRecv => Err(Error::Unsupported { feature: Feature::Xrc }),
    }
}

pub(crate) fn ring_sizes(qp_type: QpType, cap: &QpCap, caps: &Capabilities) -> Result<RingSizes, Error> {
    let Rings { send_blocks, recv_entries, cap, .. } = Rings::new(cap, service_of(qp_type)?, caps)?;
    Ok(RingSizes { send_blocks, recv_entries, cap })
}

impl<P: Platform> Driver<P> {
    pub(crate) fn create_qp(
        &mut self,
        qp_type: QpType,
        pd: &Object,
        (send_cq, recv_cq, srq): (&Object, &Object, Option<&Object>),
        cap: &QpCap,
        cookie: u32,
    ) -> Result<(Qp, Mlx5SendRing<P>, Mlx5RecvRing<P>), Error> {
        let service = service_of(qp_type)?;
        let receives = srq.map(|srq| Receives { rq_type: rq_type::SRQ, srqn: srq.number, xrcd: 0 });
        self.create_qp_of(service, [pd.number, send_cq.number, recv_cq.number], receives, cap, cookie)
    }

    /// Creates a queue pair of a protection domain with completion queues of these numbers.
    pub(crate) fn create_qp_of(
        &mut self,
        service: QpcSt,
        [pd, send_cqn, recv_cqn]: [u32; 3],
        receives: Option<Receives>,
        cap: &QpCap,
        cookie: u32,
    ) -> Result<(Qp, Mlx5SendRing<P>, Mlx5RecvRing<P>), Error> {
        let rings = Rings::new(cap, service, &self.caps)?;
        self.in_memory(rings.recv_bytes() + rings.send_bytes(), true, |this, memory| {
            let mut qp = Qp { number: 0, memory, service, pd, send_cqn, recv_cqn, pkey_index: 0 };
            // The rings first: without them, a queue pair of the device would be leaked.
            let (recv_at, record) = (memory.at(), memory.record());
            let send = this.open_ring(recv_at + rings.recv_bytes(), rings.send_bytes(), record)?;
            let recv = this.open_ring(recv_at, rings.recv_bytes(), record)?;
            let doorbell = this.uar.send_doorbell(&this.commands.machine.registers)?;
            qp.number = this.create_qp_command(&qp, &rings, receives, cookie)?;
            log_event!(debug, "queue pair {:x}: {} send blocks, {} receives", qp.number, rings.send_blocks, rings.recv_entries);
            let fence = &this.commands.machine.fence;
            let send = Mlx5SendRing::new(send, doorbell, fence.clone(), qp.number);
            Ok((qp, send, Mlx5RecvRing { ring: recv, fence: fence.clone(), units: rings.recv_units }))
        })
    }

    /// Opens a ring. One without entries is given the block of the doorbell record, and is never written.
    fn open_ring(&self, at: usize, len: usize, record: usize) -> Result<MemoryRing<P>, Error> {
        let (at, len) = if len == 0 { (record, WQEBB) } else { (at, len) };
        open_ring(&self.commands.machine.memory, at, len, record)
    }

    fn create_qp_command(&mut self, qp: &Qp, rings: &Rings, receives: Option<Receives>, cookie: u32) -> Result<u32, Error> {
        let mut input = Buffer::zeroed();
        let mut view = input.view_mut();
        let mut context = view.sub(CreateQpIn::QPC);
        context
            .set(Qpc::PM_STATE, pm_state::MIGRATED)
            .set(Qpc::UAR_PAGE, self.uar.page)
            .set(Qpc::USER_INDEX, if self.caps.user_index { cookie } else { NO_USER_INDEX });
        self.fill_context(&mut context, qp);
        if rings.send_blocks == 0 {
            context.set(Qpc::NO_SQ, 1);
        } else {
            context.set(Qpc::LOG_SQ_SIZE, rings.send_blocks.trailing_zeros());
        }
        context.set(Qpc::TS_FORMAT, self.caps.qp_time_stamps);
        if let Some(Receives { rq_type, srqn, xrcd }) = receives {
            context.set(Qpc::RQ_TYPE, rq_type).set(Qpc::SRQN_RMPN_XRQN, srqn).set(Qpc::XRCD, xrcd);
        } else if rings.recv_entries == 0 {
            context.set(Qpc::RQ_TYPE, rq_type::NONE);
        } else {
            context
                .set(Qpc::RQ_TYPE, rq_type::OWN)
                .set(Qpc::LOG_RQ_SIZE, rings.recv_entries.trailing_zeros())
                .set(Qpc::LOG_RQ_STRIDE, rings.recv_units.trailing_zeros());
        }
        self.commands.create::<cmd::CreateQp>(input.view(), qp.memory)
    }

    /// Sets the fields that every command with a context needs.
    fn fill_context(&self, context: &mut ViewMut<'_, Qpc>, qp: &Qp) {
        context
            .set(Qpc::ST, qp.service.code())
            .set(Qpc::PD, qp.pd)
            .set(Qpc::CQN_SND, qp.send_cqn)
            .set(Qpc::CQN_RCV, qp.recv_cqn)
            .set64(Qpc::DBR_ADDR, self.commands.arena.addr(qp.memory.record()));
    }

    pub(crate) fn destroy_qp(&mut self, qp: &mut Qp) -> Result<(), Error> {
        self.end(&Object::of::<cmd::DestroyQp>(qp.number, qp.memory))
    }
}

pub(crate) fn state_of(code: u32) -> Option<QpState> {
    use bareverbs_mlx5_spec::QpcState;
    Some(match QpcState::from_code(code)? {
        QpcState::Rst => QpState::Reset,
        QpcState::Init => QpState::Init,
        QpcState::Rtr => QpState::Rtr,
        QpcState::Rts => QpState::Rts,
        QpcState::SqEr => QpState::Sqe,
        QpcState::Sqd | QpcState::SqDraining => QpState::Sqd,
        QpcState::Err => QpState::Err,
        QpcState::Suspended => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Capabilities {
        Capabilities { log_max_qp_sz: 15, max_send_wqe: 1008, max_recv_wqe: 512, ..Capabilities::default() }
    }

    fn cap(max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32) -> QpCap {
        QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }

    fn rings(cap: &QpCap, caps: &Capabilities) -> Result<Rings, Error> {
        Rings::new(cap, QpcSt::Rc, caps)
    }

    #[test]
    fn rings_have_room_for_the_longest_requests() {
        // Sizes of requests by the PRM: control 16, remote address 16, data segment 16, inline head 4.
        let made = rings(&cap(64, 64, 1, 1, 0), &caps()).unwrap();
        assert_eq!((made.send_blocks, made.recv_entries, made.recv_units), (64, 64, 1), "48 bytes are a block");
        assert_eq!(made.cap, cap(64, 64, 2, 1, 28));
        let made = rings(&cap(33, 5, 5, 3, 0), &caps()).unwrap();
        assert_eq!((made.send_blocks, made.recv_entries, made.recv_units), (128, 8, 4), "112 bytes are two blocks");
        assert_eq!(made.cap, cap(64, 8, 6, 4, 92));
        let made = rings(&cap(16, 0, 1, 0, 60), &caps()).unwrap();
        assert_eq!((made.send_blocks, made.cap.max_send_wr), (32, 16), "16 inline writes of 60 bytes, two blocks each");
        let made = rings(&cap(1, 1, 0, 1, 93), &caps()).unwrap();
        assert_eq!((made.send_blocks, made.recv_entries), (4, 4), "129 bytes; and a receive ring fills a block");
        assert_eq!(made.cap, cap(1, 4, 10, 1, 156));
        let made = rings(&cap(3, 0, 0, 0, 0), &caps()).unwrap();
        assert_eq!((made.send_blocks, made.cap.max_send_wr), (4, 4), "requests without data");
        let made = rings(&cap(0, 0, 0, 0, 0), &caps()).unwrap();
        assert_eq!((made.send_bytes(), made.recv_bytes(), made.cap), (0, 0, QpCap::default()));
    }

    #[test]
    fn a_ring_of_a_device_with_windows_has_room_for_binds() {
        let caps = Capabilities { windows: true, ..caps() };
        let made = rings(&cap(16, 0, 1, 0, 0), &caps).unwrap();
        assert_eq!((made.send_blocks, made.cap), (64, cap(21, 0, 10, 0, 156)), "192 bytes are three blocks");
        let made = rings(&cap(1024, 0, 8, 0, 0), &caps).unwrap();
        assert_eq!((made.send_blocks, made.cap.max_send_wr), (4096, 1365));
        // A datagram queue pair binds nothing, and an address vector of 48 bytes takes the place of the remote address.
        let made = Rings::new(&cap(16, 0, 1, 0, 0), QpcSt::Ud, &caps).unwrap();
        assert_eq!((made.send_blocks, made.cap), (32, cap(16, 0, 4, 0, 60)));
    }

    #[test]
    fn a_ring_of_an_initiator_has_room_for_atomics() {
        for (windows, blocks_per_wr) in [(false, 2_u32), (true, 3)] {
            let caps = Capabilities { windows, ..caps() };
            let made = Rings::new(&cap(16, 0, 1, 0, 0), QpcSt::Xrc, &caps).unwrap();
            // Control, shared receive queue and remote address are 48 bytes.
            let room = blocks_per_wr * 64 - 48;
            let got = (made.send_blocks, made.cap.max_send_sge, made.cap.max_inline_data);
            assert_eq!(got, ((16 * blocks_per_wr).next_power_of_two(), room / 16, room - 4));
        }
    }

    #[test]
    fn as_many_requests_as_promised_fit_whatever_is_asked() {
        for windows in [false, true] {
            let caps = Capabilities { windows, ..caps() };
            for wr in [1, 2, 7, 64, 1000] {
                for sge in 0..=32 {
                    for inline in (0..=900).step_by(25) {
                        let Ok(made) = rings(&cap(wr, 0, sge, 0, inline), &caps) else { continue };
                        let got = made.cap;
                        assert!(got.max_send_wr >= wr && got.max_send_sge >= sge && got.max_inline_data >= inline);
                        let bytes = [32 + 16 * got.max_send_sge, 32 + 4 + got.max_inline_data, if windows { 192 } else { 0 }];
                        let blocks = bytes.iter().max().unwrap().div_ceil(64);
                        assert!(blocks * got.max_send_wr <= made.send_blocks, "{got:?}");
                    }
                }
            }
        }
    }

    /// The same of datagrams and of XRC, by the sizes of the PRM: 64 bytes before the payload of a datagram, 48 before that of an XRC request,
    /// whose atomics have 80. And of receives, whose entries are powers of two of 16 bytes.
    #[test]
    fn every_transport_has_room_for_what_it_promises() {
        for (service, head, most) in [(QpcSt::Uc, 32, 0), (QpcSt::Ud, 64, 0), (QpcSt::Qp1, 64, 0), (QpcSt::Xrc, 48, 80)] {
            for windows in [false, true] {
                let caps = Capabilities { windows, ..caps() };
                let bind = if windows && head != 64 { 192 } else { 0 };
                for wr in [1, 2, 3, 7, 64, 1000] {
                    for sge in 0..=32 {
                        for inline in (0..=900).step_by(25) {
                            let Ok(made) = Rings::new(&cap(wr, 0, sge, 0, inline), service, &caps) else { continue };
                            let got = made.cap;
                            assert!(got.max_send_wr >= wr && got.max_send_sge >= sge && got.max_inline_data >= inline);
                            let inline = if got.max_inline_data == 0 { head } else { head + 4 + got.max_inline_data };
                            let bytes = [head + 16 * got.max_send_sge, inline, bind, most];
                            let blocks = bytes.iter().max().unwrap().div_ceil(64);
                            assert!(
                                blocks * got.max_send_wr <= made.send_blocks && made.send_blocks.is_power_of_two(),
                                "{got:?}"
                            );
                        }
                    }
                }
            }
        }
        for wr in (1..=1 << 15).step_by(if cfg!(miri) { 4099 } else { 1 }) {
            for sge in if wr < 16 { 0..=32 } else { 5..=5 } {
                let made = rings(&cap(0, wr, 0, sge, 0), &caps()).unwrap();
                let mut units = 1;
                while units < sge {
                    units *= 2;
                }
                let mut entries = 1;
                // A block at least, since the send ring behind it begins with one.
                while entries < wr || entries * units < 4 {
                    entries *= 2;
                }
                let got = (made.recv_entries, made.recv_units, made.cap.max_recv_wr, made.cap.max_recv_sge);
                assert_eq!(got, (entries, units, entries, units), "{wr} of {sge}");
                assert_eq!(made.recv_bytes() as u32, entries * units * 16);
            }
        }
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let most = cap(32768, 32768, 32, 32, 972);
        assert!(rings(&cap(32768, 32768, 1, 32, 0), &caps()).is_ok());
        assert!(rings(&cap(1, 0, 32, 0, 972), &caps()).is_ok());
        for more in [
            cap(32769, 1, 1, 1, 0),
            cap(16385, 1, 1, 1, 60),
            cap(1, 32769, 1, 1, 0),
            cap(1, 1, 33, 1, 0),
            cap(1, 1, 1, 33, 0),
            cap(1, 1, 1, 1, most.max_inline_data + 1),
            cap(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX),
        ] {
            assert!(matches!(rings(&more, &caps()), Err(Error::LimitExceeded { .. })), "{more:?}");
        }
        assert!(matches!(rings(&cap(1, 0, 1, 0, 0), &Capabilities::default()), Err(Error::LimitExceeded { .. })));
    }
}
