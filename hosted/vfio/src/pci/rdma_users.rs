//! Modules of the kernel that use an RDMA device: those that have queue pairs on it, as `rdma resource show qp` prints them.
//!
//! sysfs does not list them. The kernel answers by netlink (`rdma_netlink.h` of Linux; rdma(8)), to any user.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// Type of a message: client RDMA_NL_NLDEV, and its command.
const fn message_type(command: u16) -> u16 {
    5 << 10 | command
}
/// `RDMA_NLDEV_CMD_GET`: devices.
const DEVICES: u16 = message_type(1);
/// `RDMA_NLDEV_CMD_RES_QP_GET`: queue pairs of a device.
const QUEUE_PAIRS: u16 = message_type(10);

// Attributes (`enum rdma_nldev_attr`).
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const RES_QP: u16 = 19;
const RES_KERN_NAME: u16 = 29;
/// Bits of a type that are flags (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const TYPE: u16 = 0x3fff;

/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 1 | 0x300;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;

/// Most messages of an answer: each is a page full of queue pairs.
const MOST_MESSAGES: usize = 100_000;
/// Timeout of one of them.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the kernel itself has on each device: management datagrams, fast registration, and IPoIB, whose addresses and state are
/// looked at.
const OWN: [&str; 3] = ["ib_core", "mlx5_ib", "ib_ipoib"];

/// Returns the modules with queue pairs on an RDMA device, and how many each has. Empty if the kernel cannot list them.
pub(crate) fn modules(device: &str) -> BTreeMap<String, u32> {
    ask(device).unwrap_or_default()
}

fn ask(device: &str) -> Result<BTreeMap<String, u32>, Errno> {
    let mut index = None;
    dump(DEVICES, &[], |attributes| {
        if string(attributes, DEV_NAME).as_deref() == Some(device) {
            index = attribute(attributes, DEV_INDEX).map(<[u8]>::to_vec);
        }
    })?;
    let index = index.ok_or(Errno::NODEV)?;
    let request = [&8u16.to_ne_bytes()[..], &DEV_INDEX.to_ne_bytes(), &index].concat();
    let mut found = BTreeMap::new();
    dump(QUEUE_PAIRS, &request, |attributes| count(attributes, &mut found))?;
    Ok(found)
}

/// Counts the queue pairs of one message by module.
fn count(attributes: &[u8], found: &mut BTreeMap<String, u32>) {
    let table = attribute(attributes, RES_QP).unwrap_or_default();
    let modules = parts(table).filter_map(|(_, entry)| string(entry, RES_KERN_NAME));
    for module in modules.filter(|module| !OWN.contains(&module.as_str())) {
        *found.entry(module).or_default() += 1;
    }
}

/// Asks the kernel for a list, and calls `each` with the attributes of each message.
fn dump(kind: u16, attributes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::RDMA))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    send(&socket, &request(kind, attributes), SendFlags::empty())?;
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..MOST_MESSAGES {
        let (_, len) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if read(buffer.get(..len).ok_or(Errno::MSGSIZE)?, kind, &mut each)? {
            return Ok(());
        }
    }
    Err(Errno::MSGSIZE)
}

/// Returns a request: length, type, flags, sequence, port, attributes.
fn request(kind: u16, attributes: &[u8]) -> Vec<u8> {
    let len = (HEADER + attributes.len()) as u32;
    [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &REQUEST_DUMP.to_ne_bytes(), &[0; 8], attributes].concat()
}

/// Reads what one call of recv(2) brought. Returns whether the list has ended.
fn read(mut bytes: &[u8], wanted: u16, each: &mut impl FnMut(&[u8])) -> Result<bool, Errno> {
    while let Some(len) = bytes.first_chunk().map(|len| u32::from_ne_bytes(*len) as usize) {
        let (Some(message), Some([a, b])) = (bytes.get(HEADER..len), bytes.get(4..6)) else { return Err(Errno::BADMSG) };
        match u16::from_ne_bytes([*a, *b]) {
            DONE => return Ok(true),
            ERROR => {
                let code = message.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return Err(Errno::from_raw_os_error(code.saturating_neg()));
            }
            kind if kind == wanted => each(message),
            _ => {}
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns the attributes of a message, or of another attribute: type and value.
fn parts(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & TYPE, value))
    })
}

fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    parts(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn string(bytes: &[u8], kind: u16) -> Option<String> {
    let text = attribute(bytes, kind)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nla(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [&(4 + value.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        [&(16 + body.len() as u32).to_ne_bytes()[..], &kind.to_ne_bytes(), &2u16.to_ne_bytes(), &[0; 8], body].concat()
    }

    /// An entry of the table as the kernel writes it (`fill_res_qp_entry`, `fill_res_name_pid`): a number first, then the module.
    fn entry(module: &str) -> Vec<u8> {
        nla(20 | 0x8000, &[nla(21, &7u32.to_ne_bytes()), nla(29, format!("{module}\0").as_bytes())].concat())
    }

    /// As the kernel writes them; processes have an ID instead of a module.
    #[test]
    fn queue_pairs_are_counted_by_module_without_those_of_the_kernel_itself() {
        let process = nla(20 | 0x8000, &nla(28, &4711u32.to_ne_bytes()));
        let table = [entry("ib_core"), entry("ib_srp"), process, entry("mlx5_ib"), entry("ib_srp"), entry("rdma_cm")].concat();
        let body = [nla(1, &[0; 4]), nla(2, b"mlx5_0\0"), nla(19 | 0x8000, &table)].concat();
        let mut found = BTreeMap::new();
        let mut each = |attributes: &[u8]| count(attributes, &mut found);
        assert_eq!(read(&message(0x140a, &body), QUEUE_PAIRS, &mut each), Ok(false));
        assert_eq!(read(&[message(0x140a, &body), message(3, &[0; 4])].concat(), QUEUE_PAIRS, &mut each), Ok(true));
        assert_eq!(found, BTreeMap::from([("ib_srp".into(), 4), ("rdma_cm".into(), 2)]));
    }

    #[test]
    fn a_refusal_and_bytes_that_are_no_message_are_errors() {
        let mut none = |_: &[u8]| panic!("no attributes expected");
        assert_eq!(read(&message(2, &(-95i32).to_ne_bytes()), QUEUE_PAIRS, &mut none), Err(Errno::OPNOTSUPP));
        for (len, bytes) in [(0u32, 16), (15, 16), (64, 16), (u32::MAX, 16), (16, 4)] {
            let bytes = [&len.to_ne_bytes()[..], &[0; 12]].concat()[..bytes].to_vec();
            assert!(read(&bytes, QUEUE_PAIRS, &mut none).is_err(), "{len}");
        }
        // Attributes that end too late or nowhere.
        for body in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[255, 255, 1, 0, 1], &[4]] {
            assert!(attribute(body, 1).is_none_or(<[u8]>::is_empty), "{body:?}");
        }
    }

    #[test]
    fn a_machine_without_the_device_has_no_modules() {
        assert_eq!(modules("no such device"), BTreeMap::new());
        let words = [&16u32.to_ne_bytes()[..], &0x1401u16.to_ne_bytes(), &0x301u16.to_ne_bytes(), &[0; 8]];
        assert_eq!(request(DEVICES, &[]), words.concat());
    }
}
