//! How a port's attributes are encoded, in a port's context, its registers and PortInfo.

use bareverbs::{Mtu, PortState};

/// Returns the entry of a table for the lowest bit that is set.
pub(super) fn pick<T: Copy + Default>(table: &[T], bits: u32) -> T {
    table.get(bits.trailing_zeros() as usize).copied().unwrap_or_default()
}

/// Returns the state of a port (IBTA 14.2.5.6, PortState).
pub(super) fn state_of(code: u32) -> PortState {
    match code {
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        _ => PortState::Down,
    }
}

/// Returns the greatest MTU of at most `bytes`, and the least one for fewer: PMTU of a port that is down may be 0. Linux too
/// takes any value (`mlx5_query_hca_port` of its `mlx5_ib`).
pub(super) fn mtu_of(bytes: u32) -> Mtu {
    let mtus = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    mtus.into_iter().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Mtu::Mtu256)
}

/// Returns the MTU of InfiniBand's code, 1 to 5 for 256 to 4096 bytes; the least one for another code, as of a port that is down.
pub(super) fn mtu_of_code(code: u32) -> Mtu {
    mtu_of(if code <= 5 { 128 << code } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_that_infiniband_lacks_is_the_next_lower_one() {
        // 0: of a port that is down. 1500 and 10240: of Ethernet.
        let sizes =
            [(0, 256), (255, 256), (256, 256), (1500, 1024), (2048, 2048), (4096, 4096), (10_240, 4096), (0xffff, 4096)];
        for (bytes, mtu) in sizes {
            assert_eq!(mtu_of(bytes).bytes(), mtu, "{bytes}");
        }
        for (code, mtu) in [(0, 256), (1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096), (6, 256), (15, 256), (u32::MAX, 256)]
        {
            assert_eq!(mtu_of_code(code).bytes(), mtu, "{code}");
        }
    }
}
