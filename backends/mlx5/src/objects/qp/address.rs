//! Addresses of datagrams, and multicast groups.

use bareverbs::backend::EncodedAddress;
use bareverbs::platform::Platform;
use bareverbs::{AddressVector, Gid};
use bareverbs_mlx5_spec::{AttachToMcgIn, CmdHcaCap, DetachFromMcgIn, Layout, ViewMut, WqeDatagramSeg, cmd};

use super::Qp;
use super::modify::stat_rate;
use super::roce;
use crate::bring_up::port::check_entry;
use crate::driver::Driver;
use crate::error::Error;

/// Returns the datagram segment of an address as words to store, without Q_Key and queue pair. Every driver sets `EXT`: the
/// segment has its full length (`MLX5_EXTENDED_UD_AV`).
fn encode(av: &AddressVector, rates: u32, is_ethernet: bool) -> Result<EncodedAddress, Error> {
    let mut bytes = [0; WqeDatagramSeg::SIZE];
    let mut segment = ViewMut::<WqeDatagramSeg>::of(&mut bytes);
    segment
        .set(WqeDatagramSeg::EXT, 1)
        .set(WqeDatagramSeg::STAT_RATE, stat_rate(av.static_rate, rates)?)
        .set(WqeDatagramSeg::SL, u32::from(av.sl))
        .set(WqeDatagramSeg::MLID, u32::from(av.src_path_bits))
        .set(WqeDatagramSeg::RLID, u32::from(av.dlid.get()));
    if let Some(route) = &av.grh {
        segment
            .set(WqeDatagramSeg::GRH, 1)
            .set(WqeDatagramSeg::SGID_INDEX, u32::from(route.sgid_index))
            .set(WqeDatagramSeg::HOP_LIMIT, u32::from(route.hop_limit))
            .set(WqeDatagramSeg::TCLASS, u32::from(route.traffic_class))
            .set(WqeDatagramSeg::FLOW_LABEL, route.flow_label)
            .set_bytes(WqeDatagramSeg::RGID, &route.dgid.0);
        if is_ethernet {
            roce::fill_address(&mut segment, av, route);
        }
    }
    let mut words = [0; WqeDatagramSeg::SIZE / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(EncodedAddress(words))
}

impl<P: Platform> Driver<P> {
    pub(crate) fn encode_address(&self, av: &AddressVector) -> Result<EncodedAddress, Error> {
        self.check_route(av)?;
        if let Some(route) = av.grh {
            check_entry(route.sgid_index.into(), self.caps.gids)?;
        }
        encode(av, self.capability(CmdHcaCap::STAT_RATE_SUPPORT), self.caps.is_ethernet())
    }

    pub(crate) fn attach_mcast(&mut self, qp: &Qp, gid: &Gid) -> Result<(), Error> {
        if self.caps.is_ethernet() {
            if self.groups == 0 {
                self.admit_groups(true)?;
            }
            self.list_station(gid.group_mac().unwrap_or_default(), true)?;
        }
        let result = self.commands.perform::<cmd::AttachToMcg>(|input| {
            input.set(AttachToMcgIn::QPN, qp.number).set_bytes(AttachToMcgIn::MULTICAST_GID, &gid.0)
        });
        if result.is_ok() {
            self.groups = self.groups.saturating_add(1);
        } else {
            self.unlist_group(gid);
        }
        result
    }

    pub(crate) fn detach_mcast(&mut self, qp: &Qp, gid: &Gid) -> Result<(), Error> {
        self.commands.perform::<cmd::DetachFromMcg>(|input| {
            input.set(DetachFromMcgIn::QPN, qp.number).set_bytes(DetachFromMcgIn::MULTICAST_GID, &gid.0)
        })?;
        self.groups = self.groups.saturating_sub(1);
        self.unlist_group(gid);
        Ok(())
    }

    /// Ends the use of a group by a queue pair, which is out of it, whatever the filter lets in.
    fn unlist_group(&mut self, gid: &Gid) {
        if self.caps.is_ethernet() {
            let _ = self.list_station(gid.group_mac().unwrap_or_default(), false);
            if self.groups == 0 {
                let _ = self.admit_groups(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::{GlobalRoute, Lid, Mac};

    use super::super::segment::datagram;
    use super::*;

    /// Returns the bytes of a segment.
    fn bytes(words: [u64; 6]) -> std::vec::Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// By `struct mlx5_wqe_av` of rdma-core's `mlx5dv.h`: qkey at 0, dqp_dct at 8, stat_rate_sl at 12, fl_mlid at 13, rlid at 14,
    /// tclass at 26, hop_limit at 27, grh_gid_fl at 28, rgid at 32. Its `mlx5_create_ah` sets them.
    #[test]
    fn an_address_is_the_bytes_of_its_structure() {
        let (dlid, port_num) = (Lid::new(0x1234), 1);
        let av = AddressVector { dlid, sl: 5, src_path_bits: 0x2b, static_rate: 3, port_num, ..AddressVector::default() };
        // Static rate 3 of the verbs is 8 in the device.
        let mut expected = [0; 48];
        expected[..4].copy_from_slice(&[0x80, 0x01, 0, 0]);
        expected[8..16].copy_from_slice(&[0x80, 0x12, 0x34, 0x56, 0x85, 0x2b, 0x12, 0x34]);
        assert_eq!(bytes(datagram(&encode(&av, 1 << 8, false).unwrap(), 0x12_3456, 0x8001_0000)), expected);
        let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let route = GlobalRoute { dgid: Gid(gid), flow_label: 0xa_bcde, sgid_index: 7, hop_limit: 64, traffic_class: 0x99 };
        expected[26..32].copy_from_slice(&[0x99, 64, 0x40, 0x7a, 0xbc, 0xde]);
        expected[32..].copy_from_slice(&gid);
        let av = AddressVector { grh: Some(route), ..av };
        assert_eq!(bytes(datagram(&encode(&av, 1 << 8, false).unwrap(), 0x12_3456, 0x8001_0000)), expected);
        // On an Ethernet port rlid is the UDP source port (0xc000 | 0xabcde & 0x3fff ^ 0xabcde >> 14), the priority is in bits 3 to 1 of
        // stat_rate_sl, rmac is at 20, and bit 30 of grh_gid_fl is 0.
        let ethernet = AddressVector { dlid: Lid::new(0), src_path_bits: 0, dmac: Some(Mac([2, 3, 4, 5, 6, 7])), ..av };
        expected[12..16].copy_from_slice(&[0x8a, 0, 0xfc, 0xde ^ 0x2a]);
        expected[20..26].copy_from_slice(&[2, 3, 4, 5, 6, 7]);
        expected[28] = 0;
        assert_eq!(bytes(datagram(&encode(&ethernet, 1 << 8, true).unwrap(), 0x12_3456, 0x8001_0000)), expected);
        // The MAC address of a group is that of its GID.
        let group = GlobalRoute { dgid: Gid::from(core::net::Ipv4Addr::new(239, 1, 2, 3)), ..route };
        let ethernet = AddressVector { dmac: None, grh: Some(group), ..ethernet };
        let segment = bytes(datagram(&encode(&ethernet, 0, true).unwrap(), 0, 0));
        assert_eq!(segment[20..26], [1, 0, 0x5e, 1, 2, 3]);
        // A number of more than 24 bits does not reach the bits beside it.
        assert_eq!(bytes(datagram(&EncodedAddress::default(), u32::MAX, 0))[8..12], [0, 0xff, 0xff, 0xff]);
    }
}
