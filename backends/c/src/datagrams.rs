//! Queue pairs for datagrams, addresses, multicast groups.

use bareverbs::{AddressVector, Gid, GlobalRoute, Lid, PdHandle, QpHandle, QpInit, QpType, Source};

use crate::argument::{Argument, Output, reference};
use crate::call::{negative, on_verbs};
use crate::completion::bv_wc;
use crate::device::{CQueuePair, Names, bv_device};
use crate::path::{global_route, mac};
use crate::poll::poll_datagrams;
use crate::queues::{bv_qp_init, keep_qp};
use crate::{BV_GRH_BYTES, BV_MAX_AH, BV_WC_GRH, bv_ah, bv_pd, bv_qp};

/// The address of a port, or of a multicast group.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_ah_attr {
    /// Flow label of the global route, 20 bits.
    pub flow_label: u32,
    /// LID, of a group its MLID; 0 on an Ethernet port.
    pub dlid: u16,
    /// Port of this device that datagrams leave by, from 1.
    pub port_num: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Low bits of our LID, 7 bits.
    pub src_path_bits: u8,
    /// 1 if datagrams carry a global route: the members below and flow_label.
    pub is_global: u8,
    /// Index of our GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// The GID, in network byte order.
    pub dgid: [u8; 16],
    /// Ethernet port: the MAC address of the port, or of the router to it, first byte first on the wire. Zeros on an InfiniBand port.
    pub dmac: [u8; 6],
}

impl bv_ah_attr {
    fn address_vector(&self) -> Result<AddressVector, Argument> {
        let route = GlobalRoute {
            dgid: Gid(self.dgid),
            flow_label: self.flow_label,
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
        };
        let (grh, dmac) = (global_route(self.is_global, route)?, mac(self.dmac));
        let Self { dlid, sl, src_path_bits, port_num, .. } = *self;
        Ok(AddressVector { dlid: Lid::new(dlid), sl, src_path_bits, port_num, grh, dmac, ..AddressVector::default() })
    }
}

/// Makes a queue pair for datagrams, in the state RESET. It has no peer: each send names its destination (bv_send_wr.ah, remote_qpn and
/// remote_qkey), and is a SEND of one packet (bv_port_attr.active_mtu). Each receive begins with BV_GRH_BYTES bytes, which byte_len
/// counts, and its completion says where it came from (bv_wc.src_qp and others). bv_modify_qp_to_rts needs port_num, pkey_index, qkey and
/// sq_psn. Of `init`, qp_type is ignored.
///
/// Errors: as of bv_create_qp.
///
/// # Safety
/// `device` is of bv_init; `init` is readable and `qp` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_ud_qp(device: *mut bv_device, init: *const bv_qp_init, qp: *mut bv_qp) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(qp, "qp")?;
            let init = reference(init, "init")?.verbs_init()?;
            let queues = up.verbs.create_qp(&QpInit { qp_type: QpType::Ud, ..init })?;
            *up.poll_datagrams = Some(poll_datagrams);
            place.set(keep_qp(up, CQueuePair::Own(queues, Names::Destination))?);
            Ok(0)
        })
    }
}

/// Makes an address handle for the datagrams of a protection domain's queue pairs. A request that is posted needs it no more.
///
/// Errors: BV_EINVAL, the protection domain's number is stale, or a part of the address is out of range or does not fit the port's link
/// layer. BV_ENOMEM, there are BV_MAX_AH. Others: the device has no such address.
///
/// # Safety
/// `device` is of bv_init; `attr` is readable and `ah` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_ah(device: *mut bv_device, pd: bv_pd, attr: *const bv_ah_attr, ah: *mut bv_ah) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(ah, "ah")?;
            let address = reference(attr, "attr")?.address_vector()?;
            if !up.ahs.has_room() {
                return Err(Argument::Full("address handles", BV_MAX_AH).into());
            }
            let made = up.verbs.create_ah(PdHandle::from_raw(pd.number), &address)?;
            place.set(bv_ah { number: up.ahs.insert(made) });
            Ok(0)
        })
    }
}

/// Destroys an address handle.
///
/// Errors: BV_EINVAL, the number names none.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_destroy_ah(device: *mut bv_device, ah: bv_ah) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            up.ahs.take(ah.number)?;
            Ok(0)
        })
    }
}

/// Writes the address of the sender of the datagram of this completion, for an answer through a port, from 1. `grh` is the beginning of
/// the receive; it may be NULL if wc_flags has no BV_WC_GRH. `sgid_index` is the index of the GID that the datagram was sent to. On an
/// Ethernet port the caller adds the MAC address (bv_ah_attr.dmac): the completion does not have it.
///
/// Errors: BV_EINVAL, a pointer is NULL or not aligned. There is no device that could have a text.
///
/// # Safety
/// `wc` is readable and `attr` writable; `grh` is BV_GRH_BYTES readable bytes, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_init_ah_from_wc(
    port_num: u8,
    sgid_index: u8,
    wc: *const bv_wc,
    grh: *const u8,
    attr: *mut bv_ah_attr,
) -> i32 {
    let init = || -> Result<(), Argument> {
        // SAFETY: as promised.
        let (place, wc) = unsafe { (Output::new(attr, "attr")?, reference(wc, "wc")?) };
        let mut source = Source::default();
        source.slid = Lid::new(wc.slid);
        source.sl = wc.sl;
        source.dlid_path_bits = wc.dlid_path_bits;
        let back = source.reply(port_num);
        let is_global = wc.wc_flags & BV_WC_GRH != 0;
        let route = if is_global {
            // SAFETY: as promised.
            GlobalRoute::reply(unsafe { reference(grh.cast::<[u8; BV_GRH_BYTES]>(), "grh") }?, sgid_index)
        } else {
            GlobalRoute::default()
        };
        place.set(bv_ah_attr {
            flow_label: route.flow_label,
            dlid: back.dlid.get(),
            port_num: back.port_num,
            sl: back.sl,
            src_path_bits: back.src_path_bits,
            is_global: is_global.into(),
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            dgid: route.dgid.0,
            dmac: [0; 6],
        });
        Ok(())
    };
    init().map_or_else(|error| negative(error.errno()), |()| 0)
}

/// Gives a queue pair for datagrams a copy of what is sent to a multicast group, whose GID is 16 bytes in network byte order. A second
/// attachment to the same group changes nothing. On an InfiniBand port somebody joins the group at the subnet manager.
///
/// Errors: BV_EINVAL, the number is stale, the queue pair is none for datagrams, or the GID is none of a group. BV_ENOMEM, it is in as many
/// groups as it can. Others: the device did not do it.
///
/// # Safety
/// `device` is of bv_init; `gid` is 16 readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_attach_mcast(device: *mut bv_device, qp: bv_qp, gid: *const u8) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let gid = Gid(*reference(gid.cast::<[u8; 16]>(), "gid")?);
            up.verbs.attach_mcast(QpHandle::from_raw(qp.number), &gid)?;
            Ok(0)
        })
    }
}

/// Ends what bv_attach_mcast began.
///
/// Errors: BV_EINVAL, the number is stale, or the queue pair is not in the group. Others: the device did not do it.
///
/// # Safety
/// `device` is of bv_init; `gid` is 16 readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_detach_mcast(device: *mut bv_device, qp: bv_qp, gid: *const u8) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let gid = Gid(*reference(gid.cast::<[u8; 16]>(), "gid")?);
            up.verbs.detach_mcast(QpHandle::from_raw(qp.number), &gid)?;
            Ok(0)
        })
    }
}
