//! Findings: mistakes of the driver that the device tolerates and hardware may punish later. Tests fail on any.

/// One mistake of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A doorbell names a WQE beyond what the doorbell record says is written.
    DoorbellPastRecord {
        /// Queue pair.
        qpn: u32,
        /// Index in the doorbell.
        doorbell: u16,
        /// Counter in the record.
        record: u16,
    },
    /// The doorbell's first bytes are not those of the WQE at its index.
    DoorbellNotWqe {
        /// Queue pair.
        qpn: u32,
        /// Index in the doorbell.
        index: u16,
    },
    /// The WQE fetched at an index says that it is another one, or another queue's.
    WqeMismatch {
        /// Queue pair.
        qpn: u32,
        /// Index fetched.
        index: u16,
        /// Index in the WQE.
        wqe_index: u16,
        /// Queue pair in the WQE.
        wqe_qpn: u32,
    },
    /// A reserved bit is set in a structure.
    ReservedBits {
        /// Structure.
        layout: &'static str,
        /// Byte of it.
        offset: usize,
    },
    /// A key was used after it was destroyed.
    KeyAfterDestroy {
        /// Key.
        key: u32,
    },
    /// A doorbell for a queue that does not exist.
    UnknownDoorbell {
        /// UAR page.
        uar: u32,
        /// Byte in the page.
        offset: usize,
        /// Number of the queue.
        number: u32,
    },
    /// A doorbell in a UAR page that is not the queue's.
    ForeignDoorbell {
        /// UAR page.
        uar: u32,
        /// Byte in the page.
        offset: usize,
        /// Number of the queue.
        number: u32,
    },
    /// The consumer index of a completion or event queue went past what was produced.
    ConsumerPastProducer {
        /// Number of the queue.
        number: u32,
        /// Consumer index.
        consumer: u32,
        /// Producer index.
        producer: u32,
    },
    /// More posted than the ring has room for.
    RingOverrun {
        /// Queue pair.
        qpn: u32,
        /// Counter posted.
        posted: u16,
        /// Counter completed.
        completed: u16,
    },
    /// A page was given to the firmware while it already had it.
    PageGivenTwice {
        /// Device address.
        addr: u64,
    },
    /// A page was written by the host while it belonged to the firmware.
    FirmwarePageTouched {
        /// Device address.
        addr: u64,
    },
    /// A frame had, as its sender's, a MAC address of another port of the Ethernet switch. On a bound port also one that is nobody's:
    /// such frames were dropped. Reported once for each address.
    ForeignMac {
        /// MAC address.
        mac: [u8; 6],
    },
    /// The same for an IP address, and so a GID of RoCEv2, in wire order: that of IPv4 as an IPv4-mapped one.
    ForeignIp {
        /// IP address.
        ip: [u8; 16],
    },
    /// The addresses of a frame could not be read, and a port of the Ethernet switch is bound to some: it was dropped. Reported once.
    UnreadableAddress,
    /// A doorbell has a length that no doorbell has, or lies where none is.
    MalformedDoorbell {
        /// UAR page.
        uar: u32,
        /// Byte in the page.
        offset: usize,
        /// Bytes written.
        len: usize,
    },
}

impl Finding {
    /// Returns whether the switch found it, not the device.
    fn is_of_switch(&self) -> bool {
        matches!(self, Self::ForeignMac { .. } | Self::ForeignIp { .. } | Self::UnreadableAddress)
    }
}

/// Maximum findings of the device that are kept, and of the switch, so that a driver cannot fill the memory of this process.
const KEPT: usize = 4096;

/// The findings so far.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    findings: Vec<Finding>,
    /// How many of them the switch found. Those of the device leave it room, so that they hide no theft of an address.
    of_switch: usize,
    dropped: u64,
}

impl Audit {
    /// Adds a finding.
    pub fn report(&mut self, finding: Finding) {
        let is_of_switch = finding.is_of_switch();
        let kept = if is_of_switch { self.of_switch } else { self.findings.len() - self.of_switch };
        if kept < KEPT {
            self.of_switch += usize::from(is_of_switch);
            self.findings.push(finding);
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the first 4096 mistakes that the device found, and as many addresses that the switch did, in order.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the number of findings after those.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_findings_are_kept_and_the_rest_counted() {
        let mut audit = Audit::default();
        for key in 0..5000 {
            audit.report(Finding::KeyAfterDestroy { key });
        }
        assert_eq!(audit.findings().len(), KEPT);
        assert_eq!(audit.findings().last(), Some(&Finding::KeyAfterDestroy { key: 4095 }));
        assert_eq!(audit.dropped(), 904);
        // They hide nothing that the switch finds, of which as many are kept.
        for number in 0..5000_u32 {
            let [a, b, c, d] = number.to_be_bytes();
            audit.report(Finding::ForeignMac { mac: [2, 0, a, b, c, d] });
        }
        assert_eq!((audit.findings().len(), audit.dropped()), (2 * KEPT, 2 * 904));
        assert_eq!(audit.findings().last(), Some(&Finding::ForeignMac { mac: [2, 0, 0, 0, 0xf, 0xff] }));
    }
}
