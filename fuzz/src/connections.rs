//! An endpoint of connection management whose peers send anything, and whose program does anything.

use std::collections::HashMap;

use bareverbs::platform::Instant;
use bareverbs::{Guid, Lid, Mtu, Psn, Qkey, Qpn};
use bareverbs_cm::{
    Accept, Config, ConnectRequest, ConnectionId, Endpoint, Event, GlobalRoute, MAD_BYTES, Mad, Path, PortSpace, RejectReason,
    ResolveRequest, ServiceAnswer, ServiceTicket, Source, timeout,
};

const CONNECTIONS: usize = 6;
const QUERIES: usize = 2;
/// Of `Config::new`: no exchange takes longer.
const LONGEST_EXCHANGE: u64 = 300;

/// Reads an input byte by byte; zeros follow its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn bytes(&mut self) -> &[u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }
}

struct Program {
    endpoint: Endpoint<CONNECTIONS, 4, QUERIES>,
    now: Instant,
    /// Connections that were reported or made and are not closed, and whether their end was reported.
    known: HashMap<ConnectionId, bool>,
    order: Vec<ConnectionId>,
    queries: usize,
    ticket: Option<ServiceTicket>,
}

impl Program {
    fn new() -> Self {
        let mut endpoint = Endpoint::new(Config { half_open: 4, half_open_per_peer: 2, ..Config::new(Guid(2)) });
        // Those of fuzz/seeds/cm_datagrams.
        for service in [PortSpace::Tcp.service_id(7471), PortSpace::Tcp.service_id(7175), PortSpace::Udp.service_id(7174)] {
            endpoint.listen(service).expect("room for it");
        }
        let now = Instant::from_nanos(0);
        Self { endpoint, now, known: HashMap::new(), order: Vec::new(), queries: 0, ticket: None }
    }

    fn begun(&mut self, id: ConnectionId) {
        assert!(self.known.insert(id, false).is_none(), "an ID twice");
        self.order.push(id);
    }

    fn ended(&mut self, id: ConnectionId) {
        let ended = self.known.get_mut(&id).expect("an event of a closed connection");
        assert!(!*ended, "it ended twice");
        *ended = true;
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Requested { id, .. } => self.begun(id),
            Event::Delayed { id, .. } | Event::Replied { id, .. } | Event::Established { id, .. } => {
                assert_eq!(self.known.get(&id), Some(&false), "{event:?}");
            }
            Event::Rejected { id, .. } | Event::TimedOut { id, .. } | Event::Disconnected { id, .. } => self.ended(id),
            Event::Closed { id, .. } => {
                assert_eq!(self.known.remove(&id), Some(true), "closed without an end");
                self.order.retain(|other| *other != id);
            }
            Event::ServiceRequested { ticket, .. } => self.ticket = Some(ticket),
            Event::Resolved { .. } | Event::Unresolved { .. } => self.queries = self.queries.checked_sub(1).expect("a query"),
            _ => panic!("{event:?}"),
        }
    }

    /// A connection, mostly one that there is.
    fn chosen(&self, byte: u8) -> Option<ConnectionId> {
        let index = usize::from(byte).checked_rem(self.order.len())?;
        self.order.get(index).copied()
    }

    fn receive(&mut self, input: &mut Input<'_>, kind: u8) {
        let mut mad: Mad = [0; MAD_BYTES];
        let lid = Lid::new((input.byte() % 4).into());
        let random = input.word().into();
        // Communication management, version 2, Send; the attribute is the kind.
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 + kind % 12;
        let bytes = input.bytes();
        let body = &mut mad[24..];
        body[..bytes.len().min(232)].copy_from_slice(&bytes[..bytes.len().min(232)]);
        if kind & 0x40 != 0 {
            // Another header.
            let at = usize::from(input.byte() % 24);
            mad[at] = input.byte();
        }
        let grh = (kind & 0x20 != 0).then(GlobalRoute::default);
        let from = Source { lid, qpn: Qpn::GENERAL_SERVICES, grh, ..Source::default() };
        if let Some(event) = self.endpoint.receive(self.now, random, &from, &mad) {
            self.handle(event);
        }
    }

    fn call(&mut self, input: &mut Input<'_>, kind: u8) {
        let (number, now) = (input.byte(), self.now);
        let path =
            Path { local_lid: Lid::new(1), remote_lid: Lid::new((number % 4).into()), mtu: Mtu::Mtu2048, ..Path::default() };
        let service = PortSpace::Tcp.service_id(7471);
        let id = self.chosen(number);
        match (kind % 12, id) {
            (0, _) => {
                let request = ConnectRequest {
                    max_cm_retries: number,
                    remote_cm_response_timeout: number,
                    ..ConnectRequest::new(service, path, Qpn::new(number.into()), Psn::new(1))
                };
                if let Ok(id) = self.endpoint.connect(now, u64::from(input.word()), &request) {
                    self.begun(id);
                }
            }
            (1, _) => {
                let request = ResolveRequest { retries: number % 4, ..ResolveRequest::new(service, path) };
                let asked = self.endpoint.resolve(now, u64::from(input.word()), &request).is_ok();
                self.queries += usize::from(asked);
                assert!(self.queries <= QUERIES);
            }
            (2, _) => {
                let nanos = 1u64 << (number % 40);
                self.now = Instant::from_nanos(now.as_nanos() + nanos);
            }
            (3, _) => {
                if let Some(ticket) = self.ticket.take() {
                    let _ = self.endpoint.answer(ticket, &ServiceAnswer::valid(Qpn::new(5), Qkey::new(6)));
                }
            }
            (4..=5, Some(id)) => {
                let accept = Accept::new(Qpn::new(number.into()), Psn::new(3));
                if let Ok(attributes) = self.endpoint.accept(now, id, &accept) {
                    assert!(attributes.rts.max_rd_atomic <= 1 && attributes.rtr.max_dest_rd_atomic <= 1);
                }
            }
            (6, Some(id)) => drop(self.endpoint.ready(id, input.bytes())),
            (7, Some(id)) if self.endpoint.reject(now, id, RejectReason::ConsumerReject, &[], input.bytes()).is_ok() => {
                self.ended(id);
            }
            (8, Some(id)) => drop(self.endpoint.delay(now, id, number, &[])),
            (9, Some(id)) => drop(self.endpoint.established(id)),
            (10, Some(id)) => drop(self.endpoint.disconnect(now, id, &[])),
            (11, Some(id)) if self.endpoint.forget(id).is_ok() => {
                self.known.remove(&id);
                self.order.retain(|other| *other != id);
            }
            _ => {}
        }
    }

    /// Does what is due, and checks what always holds.
    fn settle(&mut self) {
        let mut mad = [0; MAD_BYTES];
        for _ in 0..2 {
            let mut events = 0;
            while let Some(event) = self.endpoint.advance(self.now) {
                events += 1;
                assert!(events <= 3 * (CONNECTIONS + QUERIES), "advance does not end");
                self.handle(event);
            }
            let mut sent = 0;
            while self.endpoint.transmit(&mut mad).is_some() {
                sent += 1;
                assert!(sent <= CONNECTIONS + QUERIES + 4, "transmit does not end");
                assert_eq!(mad[..4], [1, 7, 2, 3]);
            }
        }
        assert!(self.endpoint.next_deadline().is_none_or(|deadline| deadline > self.now), "a deadline in the past");
        assert_eq!(self.endpoint.connections(), self.known.len());
    }

    /// Whatever was before: what is released is closed in bounded time.
    fn finish(&mut self) {
        for _ in 0..3 {
            for id in self.order.clone() {
                let _ = self.endpoint.disconnect(self.now, id, &[]);
            }
            self.now = Instant::from_nanos(self.now.as_nanos() + (LONGEST_EXCHANGE + 20) * 1_000_000_000);
            self.settle();
            self.now = self.now.after(timeout(22));
            self.settle();
            self.now = self.now.after(timeout(22));
            self.settle();
        }
        for _ in 0..64 {
            let Some(deadline) = self.endpoint.next_deadline() else { break };
            self.now = deadline;
            self.settle();
        }
        assert_eq!((self.endpoint.connections(), self.endpoint.next_deadline()), (0, None), "it does not end");
    }
}

/// Plays an input: acts of one byte and what each reads after it. Below 128 a datagram is received, else the program calls.
pub fn play(input: &[u8]) {
    let mut input = Input(input);
    let mut program = Program::new();
    for _ in 0..256 {
        if input.0.is_empty() {
            break;
        }
        match input.byte() {
            kind @ 0..128 => program.receive(&mut input, kind),
            kind => program.call(&mut input, kind),
        }
        program.settle();
    }
    program.finish();
}

#[cfg(test)]
mod tests {
    use super::play;

    #[test]
    fn generated_inputs_are_survived() {
        let mut state = 1u64;
        for _ in 0..3000 {
            let input: Vec<u8> = (0..600)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Small numbers, so that IDs meet.
                    if state >> 63 == 0 { (state >> 40) as u8 % 9 } else { (state >> 40) as u8 }
                })
                .collect();
            play(&input);
        }
    }
}
