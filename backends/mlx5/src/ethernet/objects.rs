//! The objects of the queues for frames: made and ended. The order is that of Linux's network driver (`mlx5e_open_locked`).

use bareverbs::backend::{MrRequest, RecvRing as _};
use bareverbs::platform::{OffsetMap, Platform};
use bareverbs::{Access, Mac, Sge};
use bareverbs_mlx5_spec::{
    Buffer, CmdHcaCap, CmdOpcode, Command, CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateRqIn, CreateSqIn,
    CreateTirIn, CreateTisIn, DS_UNIT, DeleteFteIn, DeleteFteOut, DestFormatStruct, DestroyFlowGroupIn, FLOW_TABLE_NIC_RECEIVE,
    FlowContext, FlowDestination, FlowTableContext, FteMatchSetLyr24, InlineMode, Layout, MATCH_OUTER_HEADERS, ModifyRqIn,
    ModifySqIn, QueueState, Rqc, SetFlowTableRootIn, SetFteIn, Sqc, TIR_DIRECT, Tirc, Tisc, View, ViewMut, WQ_CYCLIC, WQEBB,
    Wq, WqeInlineCap, cmd, flow_action,
};

use super::config::{EthernetConfig, FrameFilter, inline_bytes};
use super::error::OpenEthernetError;
use super::made::{FrameObjects, Made};
use super::queues::{EthernetStatistics, FrameInterface, HEADER, ReceiveQueue, SendQueue, TAGGED_HEADER};
use crate::bring_up::caps::time_stamps;
use crate::command::List;
use crate::config::CqeSize;
use crate::dma::arena::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
use crate::object::Object;
use crate::objects::cq::ring::Mlx5CqRing;
use crate::objects::qp::NO_USER_INDEX;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::objects::qp::send_ring::Mlx5SendRing;
use crate::ring::open_ring;

/// Most frames of a queue: with three blocks each, indices of 16 bits tell those under way apart.
const MAX_FRAMES: u16 = 4096;
/// Least MTU of IPv4 (RFC 791).
const MIN_MTU: u32 = 68;
/// log2 of the rules of the flow table.
const LOG_RULES: u32 = 2;
/// Address of broadcasts.
const BROADCAST: Mac = Mac([0xff; 6]);
/// The bit that the addresses of groups have, as mask and as value.
const GROUP_BIT: [u8; 6] = [1, 0, 0, 0, 0, 0];

impl<P: Platform> Driver<P> {
    #[inline(never)]
    pub(crate) fn open_frames(&mut self, config: &EthernetConfig) -> Result<(), OpenEthernetError> {
        if !self.caps.is_ethernet() {
            return Err(OpenEthernetError::InfiniBand);
        }
        if self.ethernet.is_some() {
            return Err(OpenEthernetError::AlreadyOpen);
        }
        if [config.send_frames, config.receive_frames].iter().any(|frames| !(1..=MAX_FRAMES).contains(frames)) {
            return Err(OpenEthernetError::Frames { limit: MAX_FRAMES });
        }
        let has_queues = [CmdHcaCap::ETH_NET_OFFLOADS, CmdHcaCap::NIC_FLOW_TABLE].map(|field| self.capability(field)) == [1; 2];
        let inline =
            if has_queues { self.commands.query_frame_capabilities().map_err(OpenEthernetError::Device)? } else { None };
        let inline = inline.ok_or(OpenEthernetError::Unsupported)?;
        let (mtu, vport_inline) = self.query_frame_port().map_err(OpenEthernetError::Device)?;
        let mtu = mtu.min(self.config.ethernet_mtu.into());
        if mtu < MIN_MTU {
            return Err(OpenEthernetError::Mtu { mtu });
        }
        let inline = inline_of(inline, vport_inline).max(config.inline_headers);
        let mut objects = FrameObjects::default();
        match self.make_frames(&mut objects, config, mtu as usize, inline) {
            Ok(queues) => {
                log_event!(info, "queues for frames: MTU {}, {} bytes a buffer", mtu, queues.stride);
                let queues = self.ethernet.insert(FrameInterface { objects, ..queues });
                queues.receive.ring.ring(queues.receive.frames);
                Ok(())
            }
            Err(error) => {
                // The caller needs the first cause. What is left, and its memory, stays until the teardown.
                let _ = self.end_frames(&mut objects);
                Err(OpenEthernetError::Device(error))
            }
        }
    }

    #[inline(never)]
    pub(crate) fn close_frames(&mut self) -> Result<(), Error> {
        let Some(FrameInterface { mut objects, .. }) = self.ethernet.take() else { return Ok(()) };
        self.end_frames(&mut objects)
    }

    /// Makes the objects, which are listed, and both queues. The device knows of no receive WQE yet.
    fn make_frames(
        &mut self,
        objects: &mut FrameObjects,
        config: &EthernetConfig,
        mtu: usize,
        inline: InlineMode,
    ) -> Result<FrameInterface<P>, Error> {
        // A ring is a block at least, which four receives fill.
        let [send_frames, receive_frames] = [(config.send_frames, 1), (config.receive_frames, (WQEBB / DS_UNIT) as u32)]
            .map(|(frames, least)| u32::from(frames).next_power_of_two().max(least));
        let pd = self.make_frame_object::<cmd::AllocPd, cmd::DeallocPd>(objects, View::zeros(), ObjectMemory::default())?;
        let stride = stride(mtu);
        let bytes = (send_frames as usize + receive_frames as usize) * stride;
        let (memory, lkey) = self.in_memory(bytes, false, |this, memory| {
            let addr = this.commands.arena.addr(memory.ring.at());
            let request = MrRequest { addr, length: bytes as u64, access: Access::LOCAL_WRITE, map: &OffsetMap::default() };
            // Not from zero: one key.
            let (_, lkey, _) = this.create_mr(&pd, &request)?;
            Ok((memory, lkey))
        })?;
        list(objects, Made::Object(Object::of::<cmd::DestroyMkey>(lkey.index(), memory)));
        let domain = self.make_frame_object::<cmd::AllocTransportDomain, cmd::DeallocTransportDomain>(
            objects,
            View::zeros(),
            ObjectMemory::default(),
        )?;
        let (pd, domain) = (pd.number, domain.number);
        // Twice the entries: the device may see a receive WQE that is posted again before the entry of the one before is free.
        let (send_cqn, send_cq) = self.frame_cq(objects, 2 * send_frames)?;
        let (receive_cqn, receive_cq) = self.frame_cq(objects, 2 * receive_frames)?;
        let mut input = Buffer::zeroed();
        input.view_mut().sub(CreateTisIn::CTX).set(Tisc::TRANSPORT_DOMAIN, domain);
        let tis =
            self.make_frame_object::<cmd::CreateTis, cmd::DestroyTis>(objects, input.view(), ObjectMemory::default())?.number;
        // As many blocks as the longest WQE of each frame takes.
        let blocks_per_frame = (3 * 16 + inline_bytes(inline).saturating_sub(2).next_multiple_of(16)).div_ceil(WQEBB) as u32;
        let blocks = (send_frames * blocks_per_frame).next_power_of_two();
        let (sqn, send_ring) = self.make_sq(objects, blocks, [pd, send_cqn, tis], inline)?;
        let (rqn, mut receive_ring) = self.make_rq(objects, receive_frames, [pd, receive_cqn])?;
        let receive_buffers = memory.ring.at() + send_frames as usize * stride;
        for index in 0..receive_frames {
            let addr = self.commands.arena.addr(receive_buffers + index as usize * stride);
            receive_ring.put(index, &[Sge { addr, length: stride as u32, lkey }]);
        }
        self.ready(sqn, rqn)?;
        self.lead_frames(objects, [rqn, domain], config.filter)?;
        let send = SendQueue {
            ring: send_ring,
            cq: send_cq,
            buffers: memory.ring.at(),
            frames: send_frames,
            inline: inline_bytes(inline),
            written: 0,
            done_block: 0,
            posted: 0,
            done: 0,
        };
        let receive =
            ReceiveQueue { ring: receive_ring, cq: receive_cq, buffers: receive_buffers, frames: receive_frames, taken: 0 };
        Ok(FrameInterface {
            objects: FrameObjects::default(),
            send,
            receive,
            mac: self.mac,
            mtu,
            stride,
            lkey,
            base: self.commands.arena.addr(0),
            fault: None,
            statistics: EthernetStatistics::default(),
        })
    }

    #[inline(always)]
    fn make_frame_object<C: Command, D: Command>(
        &mut self,
        objects: &mut FrameObjects,
        input: View<'_, C::In>,
        memory: ObjectMemory,
    ) -> Result<Object, Error> {
        let object = self.commands.make::<C, D>(input, memory)?;
        list(objects, Made::Object(object));
        Ok(object)
    }

    /// Makes a completion queue that is polled.
    fn frame_cq(&mut self, objects: &mut FrameObjects, entries: u32) -> Result<(u32, Mlx5CqRing<P>), Error> {
        let (cq, _, ring) = self.create_cq(entries, CqeSize::Bytes64)?;
        list(objects, Made::Object(cq));
        Ok((cq.number, ring))
    }

    #[inline(never)]
    fn make_sq(
        &mut self,
        objects: &mut FrameObjects,
        blocks: u32,
        [pd, cqn, tis]: [u32; 3],
        inline: InlineMode,
    ) -> Result<(u32, Mlx5SendRing<P>), Error> {
        let bytes = blocks as usize * WQEBB;
        self.in_memory(bytes, true, |this, memory| {
            let ring = open_ring(&this.commands.machine.memory, memory.ring.at(), bytes, memory.record)?;
            let doorbell = this.send_doorbell()?;
            let mut input = Buffer::zeroed();
            let mut view = input.view_mut();
            let mut context = view.sub(CreateSqIn::CTX);
            context
                .set(Sqc::FLUSH_IN_ERROR_EN, 1)
                .set(Sqc::MIN_WQE_INLINE_MODE, inline.code())
                .set(Sqc::USER_INDEX, NO_USER_INDEX)
                .set(Sqc::CQN, cqn)
                .set(Sqc::TS_FORMAT, time_stamps(this.capability(CmdHcaCap::SQ_TS_FORMAT)))
                .set(Sqc::TIS_LST_SZ, 1)
                .set(Sqc::TIS_NUM_0, tis);
            this.fill_ring(&mut context.sub(Sqc::WQ), memory, pd, WQEBB, blocks);
            let number = this.make_frame_object::<cmd::CreateSq, cmd::DestroySq>(objects, input.view(), memory)?.number;
            Ok((number, Mlx5SendRing::new(ring, doorbell, this.commands.machine.fence.clone(), number)))
        })
    }

    /// Makes a receive queue, in reset, that leaves VLAN tags in their frames.
    #[inline(never)]
    fn make_rq(
        &mut self,
        objects: &mut FrameObjects,
        frames: u32,
        [pd, cqn]: [u32; 2],
    ) -> Result<(u32, Mlx5RecvRing<P>), Error> {
        let bytes = frames as usize * DS_UNIT;
        self.in_memory(bytes, true, |this, memory| {
            let ring = open_ring(&this.commands.machine.memory, memory.ring.at(), bytes, memory.record)?;
            let mut input = Buffer::zeroed();
            let mut view = input.view_mut();
            let mut context = view.sub(CreateRqIn::CTX);
            context.set(Rqc::VSD, 1).set(Rqc::FLUSH_IN_ERROR_EN, 1).set(Rqc::USER_INDEX, NO_USER_INDEX).set(Rqc::CQN, cqn);
            context.set(Rqc::TS_FORMAT, time_stamps(this.capability(CmdHcaCap::RQ_TS_FORMAT)));
            this.fill_ring(&mut context.sub(Rqc::WQ), memory, pd, DS_UNIT, frames);
            let number = this.make_frame_object::<cmd::CreateRq, cmd::DestroyRq>(objects, input.view(), memory)?.number;
            Ok((number, Mlx5RecvRing { ring, fence: this.commands.machine.fence.clone(), units: 1 }))
        })
    }

    fn fill_ring(&self, wq: &mut ViewMut<'_, Wq>, memory: ObjectMemory, pd: u32, stride: usize, entries: u32) {
        wq.set(Wq::WQ_TYPE, WQ_CYCLIC)
            .set(Wq::PD, pd)
            .set(Wq::UAR_PAGE, self.uar)
            .set64(Wq::DBR_ADDR, self.commands.arena.addr(memory.record))
            .set(Wq::LOG_WQ_STRIDE, stride.trailing_zeros())
            .set(Wq::LOG_WQ_SZ, entries.trailing_zeros());
    }

    #[inline(never)]
    fn ready(&mut self, sqn: u32, rqn: u32) -> Result<(), Error> {
        self.commands.perform::<cmd::ModifySq>(|input| {
            input.sub(ModifySqIn::CTX).set(Sqc::STATE, QueueState::Ready.code());
            input.set(ModifySqIn::SQN, sqn).set(ModifySqIn::SQ_STATE, QueueState::Reset.code())
        })?;
        self.commands.perform::<cmd::ModifyRq>(|input| {
            input.sub(ModifyRqIn::CTX).set(Rqc::STATE, QueueState::Ready.code());
            input.set(ModifyRqIn::RQN, rqn).set(ModifyRqIn::RQ_STATE, QueueState::Reset.code())
        })
    }

    /// Leads the port's frames to the receive queue.
    #[inline(never)]
    fn lead_frames(&mut self, objects: &mut FrameObjects, [rqn, domain]: [u32; 2], filter: FrameFilter) -> Result<(), Error> {
        let mut input = Buffer::zeroed();
        input
            .view_mut()
            .sub(CreateTirIn::CTX)
            .set(Tirc::DISP_TYPE, TIR_DIRECT)
            .set(Tirc::INLINE_RQN, rqn)
            .set(Tirc::TRANSPORT_DOMAIN, domain);
        let tir =
            self.make_frame_object::<cmd::CreateTir, cmd::DestroyTir>(objects, input.view(), ObjectMemory::default())?.number;
        let mut input = Buffer::zeroed();
        let mut view = input.view_mut();
        view.set(CreateFlowTableIn::TABLE_TYPE, FLOW_TABLE_NIC_RECEIVE);
        view.sub(CreateFlowTableIn::FLOW_TABLE_CONTEXT).set(FlowTableContext::LOG_SIZE, LOG_RULES);
        let table = self.commands.create::<cmd::CreateFlowTable>(input.view(), ObjectMemory::default())?;
        list(objects, Made::Flow(CmdOpcode::DestroyFlowTable, [table, 0, 0]));
        let to = [table, tir];
        if filter == FrameFilter::Everything {
            self.add_rules(objects, to, 0, None, &[[0; 6]])?;
        } else {
            self.add_rules(objects, to, 0, Some([0xff; 6]), &[self.mac.0, BROADCAST.0])?;
        }
        if filter == FrameFilter::Groups {
            self.add_rules(objects, to, 2, Some(GROUP_BIT), &[GROUP_BIT])?;
        }
        self.commands.perform::<cmd::SetFlowTableRoot>(|input| {
            input.set(SetFlowTableRootIn::TABLE_TYPE, FLOW_TABLE_NIC_RECEIVE).set(SetFlowTableRootIn::TABLE_ID, table)
        })?;
        self.list_station(BROADCAST, true)?;
        list(objects, Made::Listing);
        if filter != FrameFilter::Own {
            self.promiscuous = filter == FrameFilter::Everything;
            list(objects, Made::Admission);
            // Counted as a queue pair in a group, which the filter before the tables is opened for too.
            self.groups = self.groups.saturating_add(1);
            self.admit_groups(true)?;
        }
        Ok(())
    }

    /// Adds a group of rules from rule `first` on, which lead frames to the TIR whose destination under the mask is one of `addresses`; without
    /// a mask, all frames.
    fn add_rules(
        &mut self,
        objects: &mut FrameObjects,
        [table, tir]: [u32; 2],
        first: u32,
        mask: Option<[u8; 6]>,
        addresses: &[[u8; 6]],
    ) -> Result<(), Error> {
        let group = self.make_group(table, first, addresses.len() as u32, mask)?;
        list(objects, Made::Flow(CmdOpcode::DestroyFlowGroup, [table, group, 0]));
        for (address, index) in addresses.iter().zip(first..) {
            self.set_rule(table, group, index, address, tir)?;
            list(objects, Made::Flow(CmdOpcode::DeleteFlowTableEntry, [table, 0, index]));
        }
        Ok(())
    }

    #[inline(never)]
    fn make_group(&mut self, table: u32, first: u32, count: u32, mask: Option<[u8; 6]>) -> Result<u32, Error> {
        let output = self.commands.query::<cmd::CreateFlowGroup>(|input| {
            if let Some(mask) = mask {
                input.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, MATCH_OUTER_HEADERS);
                set_destination(&mut input.sub(CreateFlowGroupIn::MATCH_CRITERIA.as_sub()), mask);
            }
            input
                .set(CreateFlowGroupIn::TABLE_TYPE, FLOW_TABLE_NIC_RECEIVE)
                .set(CreateFlowGroupIn::TABLE_ID, table)
                .set(CreateFlowGroupIn::START_FLOW_INDEX, first)
                .set(CreateFlowGroupIn::END_FLOW_INDEX, first + count.saturating_sub(1))
        })?;
        Ok(output.view().get(CreateFlowGroupOut::GROUP_ID))
    }

    #[inline(never)]
    fn set_rule(&mut self, table: u32, group: u32, index: u32, address: &[u8; 6], tir: u32) -> Result<(), Error> {
        let mut input = Buffer::zeroed();
        let mut view = input.view_mut();
        view.set(SetFteIn::TABLE_TYPE, FLOW_TABLE_NIC_RECEIVE).set(SetFteIn::TABLE_ID, table).set(SetFteIn::FLOW_INDEX, index);
        let mut context = view.sub(SetFteIn::FLOW_CONTEXT);
        context
            .set(FlowContext::GROUP_ID, group)
            .set(FlowContext::ACTION, flow_action::FORWARD)
            .set(FlowContext::DESTINATION_LIST_SIZE, 1);
        set_destination(&mut context.sub(FlowContext::MATCH_VALUE.as_sub()), *address);
        let to =
            DestFormatStruct::DESTINATION_TYPE.place(FlowDestination::Tir.code()) | DestFormatStruct::DESTINATION_ID.place(tir);
        let list: List<'_> = (1, &mut |_| u64::from(to) << 32);
        self.commands.execute_with(CmdOpcode::SetFlowTableEntry, input.as_bytes(), list).map(|_| ())
    }

    /// Ends what there is, the last first. Commands for a table, a group and a rule have a number each, where the others have zeros. What the device does not confirm stays, with its memory and what it is made of. A root of the
    /// flow tables that is gone has no successor (Linux `update_root_ft_destroy`).
    #[inline(never)]
    fn end_frames(&mut self, objects: &mut FrameObjects) -> Result<(), Error> {
        while let Some(made) = objects.pop() {
            match made {
                Made::Object(object) => self.end(&object)?,
                Made::Flow(opcode, [table, group, index]) => {
                    let mut input = [0; DeleteFteIn::SIZE];
                    ViewMut::<DeleteFteIn>::of(&mut input)
                        .set(DeleteFteIn::TABLE_TYPE, FLOW_TABLE_NIC_RECEIVE)
                        .set(DeleteFteIn::TABLE_ID, table)
                        .set(DeleteFteIn::FLOW_INDEX, index);
                    ViewMut::<DestroyFlowGroupIn>::of(&mut input).set(DestroyFlowGroupIn::GROUP_ID, group);
                    self.commands.execute(opcode, &input, &mut [], DeleteFteOut::SIZE)?;
                }
                Made::Listing => self.list_station(BROADCAST, false)?,
                Made::Admission => {
                    self.promiscuous = false;
                    self.groups = self.groups.saturating_sub(1);
                    self.admit_groups(self.groups != 0)?;
                }
            }
        }
        Ok(())
    }
}

/// The list has room for all that is made.
fn list(objects: &mut FrameObjects, made: Made) {
    let _ = objects.push(made);
}

const fn stride(mtu: usize) -> usize {
    const { assert!(HEADER < TAGGED_HEADER) };
    (mtu + TAGGED_HEADER).next_multiple_of(64)
}

fn set_destination(fields: &mut ViewMut<'_, FteMatchSetLyr24>, [a, b, c, d, e, f]: [u8; 6]) {
    fields
        .set(FteMatchSetLyr24::DMAC_47_16, u32::from_be_bytes([a, b, c, d]))
        .set(FteMatchSetLyr24::DMAC_15_0, u16::from_be_bytes([e, f]).into());
}

/// Returns what the card demands: by its capability, or, where that says so, by the context of the vport. What is unknown is taken for
/// all.
fn inline_of(capability: u32, vport: u32) -> InlineMode {
    match WqeInlineCap::from_code(capability) {
        Some(WqeInlineCap::NotRequired) => InlineMode::None,
        Some(WqeInlineCap::L2) => InlineMode::L2,
        Some(WqeInlineCap::VportContext) => InlineMode::from_code(vport).unwrap_or(InlineMode::TcpUdp),
        None => InlineMode::TcpUdp,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::vec::Vec;

    use super::*;
    use crate::dma::arena::PAGE;
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, PAGES, Shared, offer, opcode_of, respond, started};

    type Commands = Rc<RefCell<Vec<Vec<u8>>>>;

    /// Returns a driver of an Ethernet port whose interface would have this MTU, and the commands that its device has executed. Each object
    /// gets the next number. The device needs no headers in WQEs.
    fn ethernet(mtu: u16) -> (Driver<MockPlatform, [crate::dma::arena::PageUse; PAGES]>, Shared, Commands) {
        let (mut driver, shared) = started();
        let commands = Commands::default();
        let note = commands.clone();
        respond(&shared, move |input, output| {
            let mut commands = note.borrow_mut();
            output.get_mut(8..12).unwrap().copy_from_slice(&(0x100 + commands.len() as u32).to_be_bytes());
            match (opcode_of(input), input[7] >> 1) {
                // ft_support of the receive tables, bit 31 of the dword at 64; wqe_inline_mode, the bits 13 and 12 of the first.
                (0x100, 7) => output[16 + 64] = 0x80,
                (0x100, 1) => output[16 + 2] = 2 << 4,
                // The MTU of the context counts 22 bytes of the frame.
                (0x754, _) => output[16 + 0x26..][..2].copy_from_slice(&(mtu + 22).to_be_bytes()),
                _ => {}
            }
            commands.push(input.to_vec());
        });
        let view: &mut Driver<MockPlatform> = &mut driver;
        // eth_net_offloads is bit 3 of the dword at 64, nic_flow_table bit 25 of that at 52.
        offer(&mut view.general, 64, 1 << 3);
        offer(&mut view.general, 52, 1 << 25);
        (view.caps.ethernet, view.uar, view.attr.max_cqe, view.config.ethernet_mtu) = (true, 4, 1 << 12, 9000);
        view.mac = Mac([2, 0, 0, 0, 0, 7]);
        view.completion_eqs.push((Object::of::<cmd::DestroyEq>(9, ObjectMemory::default()), 1)).ok().unwrap();
        (driver, shared, commands)
    }

    fn config(send_frames: u16, receive_frames: u16) -> EthernetConfig {
        EthernetConfig { send_frames, receive_frames, ..EthernetConfig::DEFAULT }
    }

    #[test]
    fn queues_open_with_the_least_mtu_of_ipv4_and_numbers_in_their_limits() {
        for (mtu, is_enough) in [(0, false), (67, false), (68, true), (69, true)] {
            let (mut driver, ..) = ethernet(mtu);
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let expected = if is_enough { Ok(()) } else { Err(OpenEthernetError::Mtu { mtu: mtu.into() }) };
            assert_eq!(driver.open_frames(&config(1, 1)), expected);
        }
        let (mut driver, _shared, commands) = ethernet(1500);
        let driver: &mut Driver<MockPlatform> = &mut driver;
        for (send, receive) in [(0, 1), (1, 0), (4097, 1), (1, 4097)] {
            assert_eq!(driver.open_frames(&config(send, receive)), Err(OpenEthernetError::Frames { limit: 4096 }));
        }
        assert_eq!(*commands.borrow(), [[]; 0], "none was sent");
        driver.open_frames(&config(1, 2)).unwrap();
        assert_eq!(driver.open_frames(&config(1, 1)), Err(OpenEthernetError::AlreadyOpen));
        let used = driver.commands.arena.used_pages();
        driver.close_frames().unwrap();
        assert!(driver.commands.arena.used_pages() < used);
        driver.open_frames(&config(1, 2)).unwrap();
        assert_eq!(driver.commands.arena.used_pages(), used, "all was free again");
        (driver.caps.ethernet, driver.ethernet) = (false, None);
        assert_eq!(driver.open_frames(&config(1, 1)), Err(OpenEthernetError::InfiniBand));
    }

    /// By `create_sq_in`, `create_rq_in`, `wq`, `create_mkey_in` and `mkc` of `mlx5_ifc.h`: a work queue begins at 80 of its command, with
    /// log_wq_stride, log_wq_sz and pages at 33, 35 and 192; the key begins at 16, with its address and length at 16 and 24.
    #[test]
    fn rings_and_buffers_lie_in_their_own_pages() {
        for (send, receive, headers) in [
            (1, 1, InlineMode::None),
            (4, 8, InlineMode::None),
            (3, 5, InlineMode::TcpUdp),
            (16, 1, InlineMode::L2),
            (32, 2, InlineMode::TcpUdp),
        ] {
            let (mut driver, shared, commands) = ethernet(1500);
            let driver: &mut Driver<MockPlatform> = &mut driver;
            driver.open_frames(&EthernetConfig { inline_headers: headers, ..config(send, receive) }).unwrap();
            let sent = |opcode: u16| {
                let commands = commands.borrow();
                let mut found = commands.iter().filter(|input| opcode_of(input) == opcode);
                let command = found.next().unwrap().clone();
                assert_eq!(found.count(), 0, "{opcode:#x}");
                command
            };
            let word = |bytes: &[u8], at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
            // Four receives fill the least ring, of 64 bytes.
            let [send, receive] =
                [(send, 1), (receive, 4)].map(|(frames, least): (u16, _)| usize::from(frames).next_power_of_two().max(least));
            // A block of 64 bytes without headers or with those of Ethernet, three with all; receives of 16 bytes.
            let blocks = (send * if headers == InlineMode::TcpUdp { 3 } else { 1 }).next_power_of_two();
            let mut taken = Vec::new();
            for (opcode, stride, entries) in [(0x904, 64, blocks), (0x908, 16, receive)] {
                let command = sent(opcode);
                let wq = &command[80..];
                assert_eq!((1 << wq[33], 1 << wq[35]), (stride, entries), "{opcode:#x}");
                let pages: Vec<u64> = wq[192..].as_chunks().0.iter().map(|page| u64::from_be_bytes(*page)).collect();
                assert_eq!(pages.len(), (stride * entries).div_ceil(PAGE), "{opcode:#x}");
                taken.extend(pages.iter().map(|page| (*page, *page + PAGE as u64)));
                // The doorbell record, at 16.
                taken.push((word(wq, 16), word(wq, 16) + 8));
            }
            let key = &sent(0x200)[16..];
            let (start, len) = (word(key, 16), word(key, 24));
            assert_eq!(len as usize, (send + receive) * 1536);
            // Frames to send come first; each receive names a buffer behind them.
            let receives = word(&sent(0x908)[80..], 192);
            taken.push((start, start + 1536 * send as u64));
            let ring = (receives - DEVICE_ADDR) as usize;
            for index in 0..receive {
                let wqe = shared.borrow().memory[ring + 16 * index..][..16].to_vec();
                assert_eq!(wqe[..4], 1536_u32.to_be_bytes());
                let addr = word(&wqe, 8);
                assert!(addr >= start && addr + 1536 <= start + len);
                taken.push((addr, addr + 1536));
            }
            taken.sort();
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{taken:x?}");
        }
    }

    /// 14 bytes of header and four of a tag, on a boundary of 64.
    #[test]
    fn a_buffer_has_room_for_the_largest_tagged_frame() {
        for (mtu, bytes) in [(68, 128), (1500, 1536), (1518, 1536), (1519, 1600), (9000, 9024)] {
            assert_eq!(stride(mtu), bytes, "{mtu}");
        }
    }
}
