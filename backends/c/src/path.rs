//! The parts of a path that `bv_qp_attr` and `bv_ah_attr` have alike.

use bareverbs::{GlobalRoute, Mac};

use crate::argument::Argument;

/// Returns the global route, if there is one.
pub(crate) const fn global_route(is_global: u8, route: GlobalRoute) -> Result<Option<GlobalRoute>, Argument> {
    match is_global {
        0 => Ok(None),
        1 => Ok(Some(route)),
        other => Err(Argument::Value("is_global", other as u64)),
    }
}

/// Returns the MAC address; zeros are none.
pub(crate) fn mac(bytes: [u8; 6]) -> Option<Mac> {
    (bytes != [0; 6]).then_some(Mac(bytes))
}
