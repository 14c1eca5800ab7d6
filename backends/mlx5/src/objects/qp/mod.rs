//! Queue pairs: rings, creation, destruction.

mod address;
mod modify;
pub(crate) mod recv_ring;
mod roce;
pub(crate) mod segment;
pub(crate) mod send_ring;

use bareverbs::platform::{DmaMemory, Platform};
use bareverbs::storage::RingSizes;
use bareverbs::{DeviceAttr, QpCap, QpState, QpType};
use bareverbs_mlx5_spec::{Buffer, CreateQpIn, DS_UNIT, Qpc, QpcSt, ViewMut, WQEBB, cmd, pm_state, rq_type};

use crate::bring_up::caps::{CONNECTED_HEAD, INLINE_HEAD};
use crate::dma::arena::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::{format_as, log_event};
use crate::object::Object;
use crate::ring::open_ring;

use recv_ring::Mlx5RecvRing;
use send_ring::Mlx5SendRing;

/// Bytes before the payload of a datagram: control segment and address vector.
const UD_HEADER_SIZE: u32 = 64;
/// Maximum bytes of a bind: control segment, UMR control segment, key context, translations.
const BIND_WQE_SIZE: u32 = 192;
/// Bytes of an atomic of an XRC initiator: control, shared receive queue, remote address, operands, data. Others fill a block.
const XRC_ATOMIC_WQE_SIZE: u32 = 80;
/// User index of a queue whose completions carry none, or none of the verbs.
pub(crate) const NO_USER_INDEX: u32 = 0xff_ffff;

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

const fn service_of(qp_type: QpType) -> QpcSt {
    match qp_type {
        QpType::Rc => QpcSt::Rc,
        QpType::Uc => QpcSt::Uc,
        QpType::Ud => QpcSt::Ud,
        QpType::Gsi => QpcSt::Qp1,
        QpType::XrcSend | QpType::XrcRecv => QpcSt::Xrc,
    }
}

/// Returns rings that fit `cap.max_send_wr` requests of the largest kind that the queue pair may post, in any order.
pub(crate) fn ring_sizes(qp_type: QpType, cap: &QpCap, max_wqe: u32, attr: &DeviceAttr) -> Result<RingSizes, Error> {
    let within =
        |requested: u32, limit: u32| if requested <= limit { Ok(requested) } else { Err(Error::LimitExceeded { limit }) };
    let (unit, block) = (DS_UNIT as u32, WQEBB as u32);
    let bind = if attr.max_mw != 0 { BIND_WQE_SIZE } else { 0 };
    let (head, least) = match service_of(qp_type) {
        QpcSt::Ud | QpcSt::Qp1 => (UD_HEADER_SIZE, 0),
        QpcSt::Xrc => (CONNECTED_HEAD + unit, bind.max(XRC_ATOMIC_WQE_SIZE)),
        _ => (CONNECTED_HEAD, bind),
    };
    let max_sges = attr.max_sge.min(max_wqe.saturating_sub(head) / unit);
    let max_inline = max_wqe.saturating_sub(head + INLINE_HEAD);
    let sges = within(cap.max_send_sge, max_sges)?;
    let inline = within(cap.max_inline_data, max_inline)?;
    let mut sizes = RingSizes::default();
    if cap.max_send_wr != 0 {
        let with_sges = head + unit * sges;
        let with_inline = if inline == 0 { 0 } else { head + (INLINE_HEAD + inline).next_multiple_of(unit) };
        let blocks_per_wr = within(with_sges.max(with_inline).max(least), max_wqe)?.div_ceil(block).max(1);
        let wqe = blocks_per_wr.saturating_mul(block);
        let blocks = cap.max_send_wr.saturating_mul(blocks_per_wr);
        sizes.send_blocks = within(blocks.checked_next_power_of_two().unwrap_or(u32::MAX), attr.max_qp_wr)?;
        sizes.cap.max_send_wr = sizes.send_blocks / blocks_per_wr;
        sizes.cap.max_send_sge = ((wqe - head) / unit).min(max_sges);
        // A datagram without data fills its blocks: then there is no room for the head.
        sizes.cap.max_inline_data = wqe.saturating_sub(head + INLINE_HEAD).min(max_inline);
    }
    if cap.max_recv_wr != 0 {
        let units = within(cap.max_recv_sge, attr.max_sge)?.max(1).next_power_of_two();
        // The send ring behind it starts with a block. As a shift: a division would have a panic.
        let entries = within(cap.max_recv_wr, attr.max_qp_wr)?
            .next_power_of_two()
            .max((block / unit).wrapping_shr(units.trailing_zeros()));
        sizes.recv_entries = within(entries, attr.max_qp_wr)?;
        (sizes.cap.max_recv_wr, sizes.cap.max_recv_sge) = (entries, units);
    }
    Ok(sizes)
}

impl<P: Platform> Driver<P> {
    /// Creates a queue pair of a protection domain with completion queues of these numbers, with the rings of [`ring_sizes`]. `receives`
    /// says where one without a receive ring takes its receives from: [`Qpc::RQ_TYPE`], [`Qpc::SRQN_RMPN_XRQN`], and [`Qpc::XRCD`], 0 on
    /// another transport.
    pub(crate) fn create_qp(
        &mut self,
        qp_type: QpType,
        [pd, send_cqn, recv_cqn]: [u32; 3],
        receives: [u32; 3],
        sizes: &RingSizes,
        cookie: u32,
    ) -> Result<(Qp, Mlx5SendRing<P>, Mlx5RecvRing<P>), Error> {
        let service = service_of(qp_type);
        // The receive ring is the first.
        let units = sizes.cap.max_recv_sge;
        let [recv_bytes, send_bytes] =
            [sizes.recv_entries * units * DS_UNIT as u32, sizes.send_blocks * WQEBB as u32].map(|bytes| bytes as usize);
        self.in_memory(recv_bytes + send_bytes, true, |this, memory| {
            let mut qp = Qp { number: 0, memory, service, pd, send_cqn, recv_cqn, pkey_index: 0 };
            // The rings first: without them, a queue pair of the device would be leaked.
            let (recv_at, record) = (memory.ring.at(), memory.record);
            let send = this.open_ring(recv_at + recv_bytes, send_bytes, record)?;
            let recv = this.open_ring(recv_at, recv_bytes, record)?;
            let doorbell = this.send_doorbell()?;
            qp.number = this.create_qp_command(&qp, sizes, receives, cookie)?;
            log_event!(debug, "queue pair {:x}: {} send blocks, {} receives", qp.number, sizes.send_blocks, sizes.recv_entries);
            let fence = &this.commands.machine.fence;
            let send = Mlx5SendRing::new(send, doorbell, fence.clone(), qp.number);
            Ok((qp, send, Mlx5RecvRing { ring: recv, fence: fence.clone(), units }))
        })
    }

    /// Opens a ring. One without entries is given the block of the doorbell record, and is never written.
    fn open_ring(&self, at: usize, len: usize, record: usize) -> Result<MemoryRing<P>, Error> {
        let (at, len) = if len == 0 { (record, WQEBB) } else { (at, len) };
        open_ring(&self.commands.machine.memory, at, len, record)
    }

    fn create_qp_command(
        &mut self,
        qp: &Qp,
        sizes: &RingSizes,
        [rq_type, srqn, xrcd]: [u32; 3],
        cookie: u32,
    ) -> Result<u32, Error> {
        let mut input = Buffer::zeroed();
        let mut view = input.view_mut();
        let mut context = view.sub(CreateQpIn::QPC);
        context
            .set(Qpc::PM_STATE, pm_state::MIGRATED)
            .set(Qpc::UAR_PAGE, self.uar)
            .set(Qpc::USER_INDEX, if self.caps.user_index { cookie } else { NO_USER_INDEX })
            .set(Qpc::TS_FORMAT, self.caps.qp_time_stamps)
            .set(Qpc::RQ_TYPE, rq_type)
            .set(Qpc::SRQN_RMPN_XRQN, srqn)
            .set(Qpc::XRCD, xrcd);
        self.fill_context(&mut context, qp);
        match sizes.send_blocks.checked_ilog2() {
            None => context.set(Qpc::NO_SQ, 1),
            Some(log) => context.set(Qpc::LOG_SQ_SIZE, log),
        };
        if let Some(log) = sizes.recv_entries.checked_ilog2() {
            let stride = sizes.cap.max_recv_sge.trailing_zeros();
            context.set(Qpc::RQ_TYPE, rq_type::OWN).set(Qpc::LOG_RQ_SIZE, log).set(Qpc::LOG_RQ_STRIDE, stride);
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
            .set64(Qpc::DBR_ADDR, self.commands.arena.addr(qp.memory.record));
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
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::vec::Vec;

    use super::*;
    use crate::dma::arena::PAGE;
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, opcode_of, respond, started};

    /// A device with receives of 512 bytes, and requests of 1008.
    fn device(windows: bool) -> DeviceAttr {
        DeviceAttr { max_qp_wr: 1 << 15, max_sge: 32, max_mw: u32::from(windows), ..DeviceAttr::default() }
    }

    fn cap(max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32) -> QpCap {
        QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }

    fn rings(cap: &QpCap, device: &DeviceAttr) -> Result<RingSizes, Error> {
        sizes(cap, QpType::Rc, device)
    }

    fn sizes(cap: &QpCap, qp_type: QpType, device: &DeviceAttr) -> Result<RingSizes, Error> {
        ring_sizes(qp_type, cap, 1008, device)
    }

    #[test]
    fn rings_have_room_for_the_longest_requests() {
        // Sizes of requests by the PRM: control 16, remote address 16, data segment 16, inline head 4.
        let made = rings(&cap(64, 64, 1, 1, 0), &device(false)).unwrap();
        assert_eq!((made.send_blocks, made.recv_entries, made.cap.max_recv_sge), (64, 64, 1), "48 bytes are a block");
        assert_eq!(made.cap, cap(64, 64, 2, 1, 28));
        let made = rings(&cap(33, 5, 5, 3, 0), &device(false)).unwrap();
        assert_eq!((made.send_blocks, made.recv_entries, made.cap.max_recv_sge), (128, 8, 4), "112 bytes are two blocks");
        assert_eq!(made.cap, cap(64, 8, 6, 4, 92));
        let made = rings(&cap(16, 0, 1, 0, 60), &device(false)).unwrap();
        assert_eq!((made.send_blocks, made.cap.max_send_wr), (32, 16), "16 inline writes of 60 bytes, two blocks each");
        let made = rings(&cap(1, 1, 0, 1, 93), &device(false)).unwrap();
        assert_eq!((made.send_blocks, made.recv_entries), (4, 4), "129 bytes; and a receive ring fills a block");
        assert_eq!(made.cap, cap(1, 4, 10, 1, 156));
        let made = rings(&cap(3, 0, 0, 0, 0), &device(false)).unwrap();
        assert_eq!((made.send_blocks, made.cap.max_send_wr), (4, 4), "requests without data");
        let made = rings(&cap(0, 0, 0, 0, 0), &device(false)).unwrap();
        assert_eq!(made, RingSizes::default());
    }

    #[test]
    fn a_ring_of_a_device_with_windows_has_room_for_binds() {
        let device = device(true);
        let made = rings(&cap(16, 0, 1, 0, 0), &device).unwrap();
        assert_eq!((made.send_blocks, made.cap), (64, cap(21, 0, 10, 0, 156)), "192 bytes are three blocks");
        let made = rings(&cap(1024, 0, 8, 0, 0), &device).unwrap();
        assert_eq!((made.send_blocks, made.cap.max_send_wr), (4096, 1365));
        // A datagram queue pair binds nothing, and an address vector of 48 bytes takes the place of the remote address.
        let made = sizes(&cap(16, 0, 1, 0, 0), QpType::Ud, &device).unwrap();
        assert_eq!((made.send_blocks, made.cap), (32, cap(16, 0, 4, 0, 60)));
    }

    #[test]
    fn a_ring_of_an_initiator_has_room_for_atomics() {
        for (windows, blocks_per_wr) in [(false, 2_u32), (true, 3)] {
            let device = device(windows);
            let made = sizes(&cap(16, 0, 1, 0, 0), QpType::XrcSend, &device).unwrap();
            // Control, shared receive queue and remote address are 48 bytes.
            let room = blocks_per_wr * 64 - 48;
            let got = (made.send_blocks, made.cap.max_send_sge, made.cap.max_inline_data);
            assert_eq!(got, ((16 * blocks_per_wr).next_power_of_two(), room / 16, room - 4));
        }
    }

    #[test]
    fn as_many_requests_as_promised_fit_whatever_is_asked() {
        for windows in [false, true] {
            let device = device(windows);
            for wr in [1, 2, 7, 64, 1000] {
                for sge in 0..=32 {
                    for inline in (0..=900).step_by(25) {
                        let Ok(made) = rings(&cap(wr, 0, sge, 0, inline), &device) else { continue };
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
        for (qp_type, head, most) in [(QpType::Uc, 32, 0), (QpType::Ud, 64, 0), (QpType::Gsi, 64, 0), (QpType::XrcSend, 48, 80)]
        {
            for windows in [false, true] {
                let device = device(windows);
                let bind = if windows && head != 64 { 192 } else { 0 };
                for wr in [1, 2, 3, 7, 64, 1000] {
                    for sge in 0..=32 {
                        for inline in (0..=900).step_by(25) {
                            let Ok(made) = sizes(&cap(wr, 0, sge, 0, inline), qp_type, &device) else { continue };
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
                let made = rings(&cap(0, wr, 0, sge, 0), &device(false)).unwrap();
                let mut units = 1;
                while units < sge {
                    units *= 2;
                }
                let mut entries = 1;
                // A block at least, since the send ring behind it begins with one.
                while entries < wr || entries * units < 4 {
                    entries *= 2;
                }
                let got = (made.recv_entries, made.cap.max_recv_wr, made.cap.max_recv_sge);
                assert_eq!(got, (entries, entries, units), "{wr} of {sge}");
            }
        }
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let most = cap(32768, 32768, 32, 32, 972);
        assert!(rings(&cap(32768, 32768, 1, 32, 0), &device(false)).is_ok());
        assert!(rings(&cap(1, 0, 32, 0, 972), &device(false)).is_ok());
        for more in [
            cap(32769, 1, 1, 1, 0),
            cap(16385, 1, 1, 1, 60),
            cap(1, 32769, 1, 1, 0),
            cap(1, 1, 33, 1, 0),
            cap(1, 1, 1, 33, 0),
            cap(1, 1, 1, 1, most.max_inline_data + 1),
            cap(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX),
        ] {
            assert!(matches!(rings(&more, &device(false)), Err(Error::LimitExceeded { .. })), "{more:?}");
        }
        assert!(matches!(rings(&cap(1, 0, 1, 0, 0), &DeviceAttr::default()), Err(Error::LimitExceeded { .. })));
    }

    /// CREATE_QP (0x500) ends with the pages, from 272 on (`create_qp_in` of `mlx5_ifc.h`).
    #[test]
    fn a_queue_pair_gets_the_pages_of_both_rings() {
        for (send, recv) in [(0, 0), (1, 0), (0, 1), (64, 0), (0, 256), (65, 0), (64, 256), (100, 300), (256, 64)] {
            let (mut driver, shared) = started();
            let view: &mut Driver<MockPlatform> = &mut driver;
            (view.uar, view.attr) = (4, device(false));
            let sizes = rings(&cap(send, recv, 1, 1, 0), &view.attr).unwrap();
            let pages = Rc::new(RefCell::new(Vec::new()));
            let note = pages.clone();
            respond(&shared, move |input, _| {
                assert_eq!(opcode_of(input), 0x500);
                *note.borrow_mut() = input[272..].as_chunks().0.iter().map(|page| u64::from_be_bytes(*page)).collect();
            });
            let used = view.commands.arena.used_pages();
            let (qp, send_ring, recv_ring) = view.create_qp(QpType::Rc, [1, 7, 7], [0; 3], &sizes, 0).unwrap();
            let bytes = sizes.send_blocks as usize * 64 + sizes.recv_entries as usize * 16;
            let first = DEVICE_ADDR + qp.memory.ring.at() as u64;
            let expected: Vec<u64> = (0..bytes.div_ceil(PAGE) as u64).map(|page| first + page * PAGE as u64).collect();
            assert_eq!(*pages.borrow(), expected, "{send} {recv}");
            // And one for its record; the mailboxes of commands are in four.
            assert_eq!(view.commands.arena.used_pages() - used, expected.len() as u32 + 1 + 4, "{send} {recv}");
            drop((send_ring, recv_ring));
        }
    }
}
