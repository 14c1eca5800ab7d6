//! Management datagrams (IBTA chapters 13, 14 and 16) and the agents of the port that answer them.
//!
//! A subnet manager may configure the port, a performance manager may clear its counters.

mod mad;
mod performance;
mod port_info;
mod subnet;
mod trap;

#[cfg(test)]
mod tests;

use bareverbs::platform::Instant;

use crate::config::DeviceConfig;
use crate::port::{KeyCheck, Port};
use crate::stats::EngineStats;

use mad::{DIRECTION, MAX_HOPS, PORT, at, class, double_word, long, method, status, word};

pub(crate) use mad::MAD;
pub(crate) use performance::{Cleared, Counts, count};
pub(crate) use port_info::{PortInfo, SUBNET_TIMEOUT, SetPortInfo};
pub(crate) use trap::{Traps, Violation};

/// What the agents answer from.
pub(crate) struct Agents<'a> {
    pub(crate) port: &'a mut Port,
    pub(crate) config: &'a DeviceConfig,
    pub(crate) stats: EngineStats,
    pub(crate) cleared: &'a mut Cleared,
    /// LID of who asks.
    pub(crate) asker: u16,
    pub(crate) now: Instant,
}

/// Whether a datagram from the wire, for the queue pair of subnet management or the general one, is answered here. All others
/// are for the host.
pub(crate) fn is_request(mad: &[u8; MAD], subnet: bool) -> bool {
    let represses = mad[at::METHOD] == method::TRAP_REPRESS && word(mad, at::ATTRIBUTE) == trap::NOTICE;
    if represses {
        return subnet && matches!(mad[at::CLASS], class::LID_ROUTED | class::DIRECTED_ROUTE);
    }
    if !matches!(mad[at::METHOD], method::GET | method::SET) {
        return false;
    }
    match mad[at::CLASS] {
        // Who manages the subnet is not the port's to say.
        class::LID_ROUTED | class::DIRECTED_ROUTE => subnet && word(mad, at::ATTRIBUTE) != subnet::attribute::SM_INFO,
        class::PERFORMANCE => !subnet,
        _ => false,
    }
}

/// Removes the key of the subnet's manager from a request for queue pair 0 that no agent answers. A manager sends its key with
/// each request to another manager, and whoever runs one here needs none of others.
pub(crate) fn remove_key(mad: &mut [u8]) {
    let subnet = matches!(mad.get(at::CLASS), Some(&(class::LID_ROUTED | class::DIRECTED_ROUTE)));
    let asks = mad.get(at::METHOD).is_some_and(|method| method & method::RESPONSE == 0);
    if let Some(key) = mad.get_mut(at::M_KEY..at::M_KEY + 8).filter(|_| subnet && asks) {
        key.fill(0);
    }
}

/// The answer to a datagram that came over the wire; `None` for one that gets none.
pub(crate) fn answer_from_wire(agents: Agents<'_>, question: &[u8; MAD]) -> Option<[u8; MAD]> {
    if question[at::CLASS] != class::DIRECTED_ROUTE {
        return answer(agents, question, true);
    }
    // The route ends here, or would continue where there is no port (IBTA 14.2.2.2).
    let hops = question[at::HOP_COUNT];
    let going_out = word(question, at::STATUS) & DIRECTION == 0;
    if !going_out || hops > MAX_HOPS || question[at::HOP_POINTER] != hops {
        return None;
    }
    let mut arrived = *question;
    if let Some(place) = arrived.get_mut(at::RETURN_PATH + usize::from(hops)) {
        *place = PORT;
    }
    // Here the pointer would be one more, and one less again when the answer leaves (14.2.2.4).
    answer(agents, &arrived, true)
}

/// What a datagram with subnet management's header may do. The host may read without the key of the manager, but neither learn
/// the key nor set anything: the port is not the host's, but its manager's.
fn check_m_key(agents: &mut Agents<'_>, question: &[u8; MAD], check_key: bool) -> KeyCheck {
    let reads = question[at::METHOD] == method::GET;
    if !check_key && reads {
        return agents.port.check_reading_host(agents.now);
    }
    let checked = agents.port.check_m_key(long(question, at::M_KEY), !reads, agents.now);
    // A manager that represses a trap without the key would get another trap for that.
    if checked == KeyCheck::None && question[at::METHOD] != method::TRAP_REPRESS {
        agents.port.traps.report(Violation::Management { from: agents.asker, mad: Box::new(*question) });
    }
    checked
}

/// Returns the answer to a datagram; `None` for one that asks nothing, is of a class that no agent here has, or lacks the key
/// of the subnet's manager. Without `check_key` the host may read nevertheless.
pub(crate) fn answer(mut agents: Agents<'_>, question: &[u8; MAD], check_key: bool) -> Option<[u8; MAD]> {
    let class = question[at::CLASS];
    if !matches!(class, class::LID_ROUTED | class::DIRECTED_ROUTE | class::PERFORMANCE)
        || question[at::METHOD] & method::RESPONSE != 0
    {
        return None;
    }
    let subnet = class != class::PERFORMANCE;
    if subnet && question[at::METHOD] == method::TRAP_REPRESS {
        // opensm copies the trap, whose key is 0.
        let from_manager = agents.port.trap_receiver() == Some(agents.asker);
        if from_manager || check_m_key(&mut agents, question, check_key) == KeyCheck::Full {
            agents.port.traps.repress(question);
        }
        return None;
    }
    let checked = if subnet { check_m_key(&mut agents, question, check_key) } else { KeyCheck::Full };
    let show_key = match checked {
        KeyCheck::Full => true,
        KeyCheck::KeyHidden => false,
        KeyCheck::None => return None,
    };
    let attribute = word(question, at::ATTRIBUTE);
    let modifier = double_word(question, at::MODIFIER);
    let mut answer = *question;
    let mut put = |data: &[u8]| answer.iter_mut().skip(at::DATA).zip(data).for_each(|(to, from)| *to = *from);
    let outcome = if question[at::BASE_VERSION] != 1 || question[at::CLASS_VERSION] != 1 {
        Err(status::VERSION)
    } else {
        match (class, question[at::METHOD]) {
            (class::PERFORMANCE, asked @ (method::GET | method::SET)) => {
                let (_, data) = question.split_at_checked(at::DATA)?;
                let counts = count(&agents.stats, agents.port.stats());
                performance::answer(agents.cleared, counts, asked == method::SET, attribute, data).map(|data| put(&data))
            }
            (class::LID_ROUTED | class::DIRECTED_ROUTE, asked @ (method::GET | method::SET)) => {
                let (_, data) = question.split_at_checked(at::DATA)?;
                let Agents { port, config, stats, .. } = agents;
                let set = if asked == method::SET { subnet::set(port, &stats, attribute, modifier, data) } else { Ok(()) };
                set.and_then(|()| subnet::get(port, config, &stats, attribute, modifier, show_key)).map(|data| put(&data))
            }
            _ => Err(status::METHOD),
        }
    };
    answer[at::METHOD] = method::GET_RESP;
    let direction = if class == class::DIRECTED_ROUTE { DIRECTION } else { 0 };
    let [high, low] = (outcome.err().unwrap_or(0) | direction).to_be_bytes();
    answer[at::STATUS] = high;
    answer[at::STATUS + 1] = low;
    Some(answer)
}
