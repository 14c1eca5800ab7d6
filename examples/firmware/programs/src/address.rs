//! The address of a queue pair as `ibv_rc_pingpong` writes it: `LID:QPN:PSN:GID` in hexadecimal digits, 4, 6, 6 and 32.
//! The GID is zero: packets carry no global route.

use core::fmt;

use bareverbs::{Lid, Psn, Qpn};

/// Where a queue pair is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// LID of the port.
    pub lid: Lid,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:06x}:{:06x}:{:032x}", self.lid.get(), self.qpn.get(), self.psn.get(), 0)
    }
}

impl Address {
    /// Reads what [`Display`](fmt::Display) writes; `None` if it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let mut number = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            u128::from_str_radix(field, 16).ok()
        };
        let (lid, qpn, psn) = (number(4)?, number(6)?, number(6)?);
        // A GID that is not zero asks for a global route, which these programs do not set.
        let local = number(32)? == 0 && fields.next().is_none();
        local.then_some(Self { lid: Lid::new(lid as u16), qpn: Qpn::new(qpn as u32), psn: Psn::new(psn as u32) })
    }
}
