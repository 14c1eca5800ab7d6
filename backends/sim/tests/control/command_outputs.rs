//! Commands whose outputs are not what the device did.

use bareverbs_sim::fault::Fault;

use crate::host::{Host, be32, input, plain};

/// A changed output is delivered as a right one is, and what the command did stays done.
#[test]
fn an_output_is_changed_where_the_fault_says() {
    let mut host = Host::running(plain());
    let corrupt = |opcode, offset, mask| Fault::CorruptOutput { opcode, offset, mask };
    let query = input(0x100, 16, &[(4, 1)]);
    let right = host.ok(&query, 4112);
    // The word of the output that differs, and how.
    let changed = |host: &mut Host, fault| {
        host.device.faults_mut().arm(fault);
        let (_, output) = host.command(&query, 4112);
        let bytes = output.iter().zip(&right).enumerate().filter(|(_, (is, was))| is != was);
        bytes.map(|(at, (is, was))| (at, is ^ was)).collect::<Vec<_>>()
    };
    // In the entry, over its end into the first mailbox, in the last one, and over the end of the output.
    assert_eq!(changed(&mut host, corrupt(Some(0x100), 4, 0x0102_0304)), [(4, 1), (5, 2), (6, 3), (7, 4)]);
    assert_eq!(changed(&mut host, corrupt(None, 14, 0x8000_0001)), [(14, 0x80), (17, 1)]);
    assert_eq!(changed(&mut host, corrupt(None, 4110, 0x0102_0304)), [(4110, 1), (4111, 2)]);
    assert_eq!(changed(&mut host, corrupt(None, 4112, u32::MAX)), []);
    assert_eq!(changed(&mut host, corrupt(None, u32::MAX, u32::MAX)), []);
    assert!(host.device.faults_mut().is_empty());
    // Of another command: it waits for that, and the domain exists.
    assert_eq!(changed(&mut host, corrupt(Some(0x800), 8, 1)), []);
    let pds = host.device.counts().pds;
    let output = host.ok(&input(0x800, 16, &[]), 16);
    assert_eq!(host.device.counts().pds, pds + 1);
    // Its number is another than the output says, by the lowest bit.
    let number = be32(&output, 8);
    assert_ne!(host.command(&input(0x801, 16, &[(8, number)]), 16).0, 0);
    host.ok(&input(0x801, 16, &[(8, number ^ 1)]), 16);
}
