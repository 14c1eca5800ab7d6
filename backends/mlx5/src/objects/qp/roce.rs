//! Paths of RoCEv2: what of an address vector is where in a queue pair's context and in a datagram.

use bareverbs::{AddressVector, GlobalRoute, Mac};
use bareverbs_mlx5_spec::{Ads, ViewMut, WqeDatagramSeg};

/// First UDP source port of RoCE (Linux `IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`).
const FIRST_SOURCE_PORT: u32 = 0xc000;
const FLOW_LABEL: u32 = (1 << 20) - 1;

/// Returns the UDP source port of a flow label, by which switches spread flows (Linux `rdma_flow_label_to_udp_sport`).
const fn source_port(flow_label: u32) -> u32 {
    FIRST_SOURCE_PORT | (flow_label ^ flow_label >> 14) & 0x3fff
}

/// Returns the flow label of a connection whose path names none: both ends have the same (Linux `rdma_calc_flow_label`).
const fn label_of_connection(qpns: [u32; 2]) -> u32 {
    let [one, other] = qpns;
    let product = one as u64 * other as u64;
    let folded = product ^ product >> 20;
    (folded ^ folded >> 40) as u32 & FLOW_LABEL
}

/// Returns the MAC address that packets to an address go to; that of a group follows from its GID.
fn destination(path: &AddressVector, route: &GlobalRoute) -> Mac {
    path.dmac.or_else(|| route.dgid.group_mac()).unwrap_or_default()
}

/// Fills in what of a connection's path an Ethernet port has and an InfiniBand port has not. `qpns` are the queue pairs at its ends.
/// As in Linux (`mlx5_set_path`), the bit for a GRH is not set: each path has a route.
pub(super) fn fill_path(path: &mut ViewMut<'_, Ads>, av: &AddressVector, route: &GlobalRoute, qpns: [u32; 2]) {
    let label = if route.flow_label == 0 { label_of_connection(qpns) } else { route.flow_label };
    let [a, b, c, d, e, f] = destination(av, route).0;
    path.set(Ads::GRH, 0)
        .set(Ads::SL, 0)
        .set(Ads::UDP_SPORT, source_port(label))
        .set(Ads::DSCP, u32::from(route.traffic_class >> 2))
        .set(Ads::ETH_PRIO, u32::from(av.sl))
        .set(Ads::RMAC_47_32, u16::from_be_bytes([a, b]).into())
        .set(Ads::RMAC_31_0, u32::from_be_bytes([c, d, e, f]));
}

/// The same for the address of datagrams. The source port is where InfiniBand has the LID, the priority where it has the service
/// level, a bit further left, and the bit for a GRH is reserved (libmlx5 `mlx5_create_ah`).
pub(super) fn fill_address(segment: &mut ViewMut<'_, WqeDatagramSeg>, av: &AddressVector, route: &GlobalRoute) {
    segment
        .set(WqeDatagramSeg::GRH, 0)
        .set(WqeDatagramSeg::RLID, source_port(route.flow_label))
        .set(WqeDatagramSeg::SL, u32::from(av.sl) << 1)
        .set_bytes(WqeDatagramSeg::RMAC, &destination(av, route).0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport` of Linux's `ib_verbs.h`, worked out by hand: the product of the largest
    /// numbers is 0xfffffe000001, shifted by 20 0xfffffe0.
    #[test]
    fn flow_labels_and_ports_are_those_of_linux() {
        for (qpns, label) in [
            ([0, 0x12_3456], 0),
            ([1, 1], 1),
            ([0x11, 0x13], 0x143),
            ([0x1000, 0x100], 0x0_0001),
            ([0xff_ffff, 0xff_ffff], 0xf_ff1e),
        ] {
            let [one, other] = qpns;
            assert_eq!((label_of_connection(qpns), label_of_connection([other, one])), (label, label), "{qpns:x?}");
        }
        for (label, port) in [(0, 0xc000), (0x3fff, 0xffff), (0x4000, 0xc001), (0xf_ffff, 0xffc0), (0xf_c03f, 0xc000)] {
            assert_eq!(source_port(label), port, "{label:#x}");
        }
    }

    #[test]
    fn source_ports_are_in_the_range_of_roce_and_the_same_from_both_ends() {
        // By hand: 0x12345 is 4 in its upper six bits and 0x2345 below, which give 0x2341.
        assert_eq!(source_port(0x1_2345), 0xc000 | 0x2345 ^ 4);
        for label in [0, 1, 0x3fff, 0x4000, 0xf_ffff] {
            assert!((0xc000..=0xffff).contains(&source_port(label)), "{label:#x}");
        }
        for qpns in [[0x48, 0x49], [1, 0xff_ffff], [0xab_cdef, 0x12_3456]] {
            let [one, other] = qpns;
            assert_eq!(label_of_connection(qpns), label_of_connection([other, one]));
            assert!(label_of_connection(qpns) <= FLOW_LABEL);
        }
        // 0x100 · 0x1001 = 0x100100: bit 20 folds down to bit 0.
        assert_eq!(label_of_connection([0x100, 0x1001]), 0x101);
    }
}
