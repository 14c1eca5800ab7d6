//! Messages against the datagrams that Linux sent (`tests/data/README.md`), field by field and byte by byte; and the endpoint as the
//! other end of Linux's datagrams.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use std::net::Ipv4Addr;

use bareverbs::platform::Instant;
use bareverbs::{Gid, Guid, Lid, Mtu, Psn, Qkey, Qpn};
use bareverbs_cm::*;
use bareverbs_ib_spec::CmAttribute;

struct Datagram {
    lid: u16,
    name: &'static str,
    mad: Mad,
}

/// Each datagram, under the comment before it.
fn recorded() -> Vec<(&'static str, Vec<Datagram>)> {
    let mut groups: Vec<(&str, Vec<Datagram>)> = Vec::new();
    for line in include_str!("data/linux.tsv").lines() {
        if let Some(name) = line.strip_prefix("# ") {
            groups.push((name, Vec::new()));
            continue;
        }
        let columns: Vec<&'static str> = line.split('\t').collect();
        let [lid, name, hex] = columns[..] else { panic!("{line}") };
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let lid = lid.strip_prefix("lid").unwrap().parse().unwrap();
        groups.last_mut().unwrap().1.push(Datagram { lid, name, mad: bytes.try_into().unwrap() });
    }
    groups
}

fn group(name: &str) -> Vec<Datagram> {
    recorded().into_iter().find(|(other, _)| other.starts_with(name)).unwrap().1
}

#[test]
fn every_datagram_is_the_message_that_it_was_recorded_as() {
    let all: Vec<Datagram> = recorded().into_iter().flat_map(|(_, datagrams)| datagrams).collect();
    assert_eq!(all.len(), 21);
    for datagram in &all {
        assert_eq!(attribute(&datagram.mad).map(CmAttribute::name), Some(datagram.name));
    }
    for name in ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"] {
        assert!(all.iter().any(|datagram| datagram.name == name), "{name}");
    }
}

/// Every field of them has a value in ours, or bytes would be lost.
#[test]
fn what_is_read_and_written_again_is_the_same_bytes() {
    for datagram in recorded().iter().flat_map(|(_, datagrams)| datagrams) {
        let mad = &datagram.mad;
        let again = match datagram.name {
            "REQ" => Req::decode(mad).unwrap().encode(),
            "MRA" => Mra::decode(mad).unwrap().encode(),
            "REJ" => Rej::decode(mad).unwrap().encode(),
            "REP" => Rep::decode(mad).unwrap().encode(),
            "RTU" => Rtu::decode(mad).unwrap().encode(),
            "DREQ" => Dreq::decode(mad).unwrap().encode(),
            "DREP" => Drep::decode(mad).unwrap().encode(),
            "SIDR_REQ" => SidrReq::decode(mad).unwrap().encode(),
            "SIDR_REP" => SidrRep::decode(mad).unwrap().encode(),
            other => panic!("{other}"),
        };
        assert_eq!(again, *mad, "{}", datagram.name);
    }
}

#[test]
fn a_req_says_what_ucmatose_asked_for() {
    let datagrams = group("ucmatose");
    let req = Req::decode(&datagrams[0].mad).unwrap();
    assert_eq!(req.service_id.ip_port(), Some((PortSpace::Tcp, 7471)));
    assert_eq!((req.local_ca_guid, req.transport()), (Guid(0x0002_c900_0000_0200), Some(Transport::Rc)));
    // rdma_cm's numbers: 15 retries, 4.3 s.
    assert_eq!((req.max_cm_retries, req.remote_cm_response_timeout, req.local_cm_response_timeout), (15, 20, 20));
    assert_eq!((req.partition_key, Mtu::from_encoding(req.path_packet_payload_mtu.into())), (0xffff, Some(Mtu::Mtu4096)));
    assert_eq!((req.primary.local_port_lid, req.primary.remote_port_lid), (Lid::new(2), Lid::new(1)));
    assert_eq!(req.primary.local_port_gid, Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 0, 0, 0, 2, 1]));
    assert!(req.primary.subnet_local);
    assert_eq!(req.alternate, ReqPath::default());
    // NVIDIA, as Linux says since 5.9.
    assert_eq!(req.vendor_id, 0x15b3);
    let (ip, rest) = IpPrivateData::decode(req.private_data).unwrap();
    let (source, destination) = (Ipv4Addr::new(10, 2, 0, 2), Ipv4Addr::new(10, 2, 0, 1));
    assert_eq!(ip.addresses, IpAddresses::V4 { source, destination });
    assert_eq!((ip.source_port, rest.len()), (0xc4ab, 56));
    assert_eq!(ip.encode(), req.private_data[..IpPrivateData::BYTES]);

    let rep = Rep::decode(&datagrams[1].mad).unwrap();
    assert_eq!((rep.transaction, rep.remote_comm_id), (req.transaction, req.local_comm_id));
    assert_eq!(
        (rep.local_qpn, rep.starting_psn, rep.local_ca_guid),
        (Qpn::new(5), Psn::new(0xa2_9b34), Guid(0x0002_c900_0000_0100))
    );
    let dreq = Dreq::decode(&datagrams[3].mad).unwrap();
    assert_eq!((datagrams[3].lid, dreq.remote_qpn, dreq.remote_comm_id), (1, req.local_qpn, req.local_comm_id));
}

#[test]
fn a_question_of_udaddy_and_its_answer_are_read() {
    let datagrams = group("udaddy");
    let question = SidrReq::decode(&datagrams[0].mad).unwrap();
    assert_eq!(question.service_id.ip_port(), Some((PortSpace::Udp, 7174)));
    let (_, rest) = IpPrivateData::decode(question.private_data).unwrap();
    assert_eq!(rest.len(), 180);
    let answer = SidrRep::decode(&datagrams[1].mad).unwrap();
    assert_eq!((answer.request_id, answer.service_id), (question.request_id, question.service_id));
    // The Q_Key that rdma_cm has for datagrams (RDMA_UDP_QKEY).
    assert_eq!((answer.status, answer.q_key), (SidrStatus::Valid.code() as u8, Qkey::new(0x0123_4567)));
}

/// Other private data begins with bytes of the program's own: they are no addresses.
#[test]
fn private_data_in_another_version_has_no_addresses() {
    let datagrams = group("udaddy");
    let question = SidrReq::decode(&datagrams[0].mad).unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = question.private_data.to_vec();
        bytes[at] = value;
        IpPrivateData::decode(&bytes).map(|(ip, _)| ip.addresses)
    };
    // Versions of the format and of IP are the upper halves of the first two bytes (IBTA volume 1, annex A11); as Linux wrote them, 0 and 4.
    assert_eq!(question.private_data[..2], [0, 0x40]);
    assert!(matches!(with(0, 0x0f), Some(IpAddresses::V4 { .. })), "a minor version adds what is not read");
    assert!(matches!(with(1, 0x60), Some(IpAddresses::V6 { .. })));
    for (at, value) in [(0, 0x10), (0, 0xf0), (1, 0), (1, 0x50), (1, 0xf0)] {
        assert_eq!(with(at, value), None, "byte {at}: {value:#x}");
    }
    assert!(IpPrivateData::decode(&question.private_data[..IpPrivateData::BYTES - 1]).is_none());
}

fn from(datagram: &Datagram) -> Source {
    Source { lid: Lid::new(datagram.lid), qpn: Qpn::new(1), ..Source::default() }
}

/// Linux's client and our server: our REP is made for Linux's REQ, so its RTU and DREQ are written with our communication ID.
#[test]
fn a_server_goes_through_a_connection_of_linux() {
    let now = Instant::from_nanos(0);
    let datagrams = group("rping to a server");
    let (req, rtu, dreq) = (&datagrams[0], &datagrams[4], &datagrams[5]);
    let rep = Rep::decode(&datagrams[3].mad).unwrap();
    let mut server = Endpoint::<2, 1, 1>::new(Config::new(rep.local_ca_guid));
    server.listen(PortSpace::Tcp.service_id(7175)).unwrap();
    // The ID that Linux's server had.
    let random = u64::from(rep.local_comm_id.0);
    let Some(Event::Requested { id, request, .. }) = server.receive(now, random, &from(req), &req.mad) else { panic!() };
    assert_eq!(request.local_qpn, Req::decode(&req.mad).unwrap().local_qpn);

    // Linux repeated it, and was answered by an MRA.
    let mra = Mra::decode(&datagrams[2].mad).unwrap();
    server.delay(now, id, mra.service_timeout, &[]).unwrap();
    let mut mad = [0; MAD_BYTES];
    server.transmit(&mut mad).unwrap();
    assert_eq!(mad, datagrams[2].mad);
    assert_eq!(server.receive(now, 7, &from(&datagrams[1]), &datagrams[1].mad), None);
    server.transmit(&mut mad).unwrap();
    assert_eq!(mad, datagrams[2].mad, "the repeated REQ has the same answer");

    let accept = Accept {
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        rnr_retry_count: rep.rnr_retry_count,
        end_to_end_flow_control: rep.end_to_end_flow_control,
        srq: rep.srq,
        ..Accept::new(rep.local_qpn, rep.starting_psn)
    };
    let attributes = server.accept(now, id, &accept).unwrap();
    assert_eq!((attributes.rtr.path.dlid, attributes.rtr.path_mtu), (Lid::new(2), Mtu::Mtu4096));
    assert_eq!((attributes.rtr.dest_qpn, attributes.rts.sq_psn), (request.local_qpn, request.starting_psn));
    let to = server.transmit(&mut mad).unwrap();
    assert_eq!((to.path.dlid, to.qpn), (Lid::new(2), Qpn::new(1)));
    let ours = Rep::decode(&mad).unwrap();
    // Theirs but for what depends on the adapter: its delay, its vendor, its answer on failover.
    let theirs = Rep {
        target_ack_delay: ours.target_ack_delay,
        failover_accepted: ours.failover_accepted,
        vendor_id_middle: 0,
        vendor_id_low: 0,
        ..rep
    };
    assert_eq!(ours, theirs);

    assert!(matches!(server.receive(now, 0, &from(rtu), &rtu.mad), Some(Event::Established { .. })));
    let end = server.receive(now, 0, &from(dreq), &dreq.mad);
    assert!(matches!(end, Some(Event::Disconnected { cause: Cause::Peer, .. })), "{end:?}");
    server.transmit(&mut mad).unwrap();
    assert_eq!(mad, datagrams[6].mad, "the DREP is Linux's");
}

/// Our client and Linux's server: our REQ has Linux's communication ID, so the recorded REP answers it.
#[test]
fn a_client_goes_through_a_connection_to_linux() {
    let now = Instant::from_nanos(0);
    let datagrams = group("ucmatose");
    let req = Req::decode(&datagrams[0].mad).unwrap();
    let path = Path {
        local_lid: req.primary.local_port_lid,
        remote_lid: req.primary.remote_port_lid,
        local_gid: req.primary.local_port_gid,
        remote_gid: req.primary.remote_port_gid,
        hop_limit: req.primary.hop_limit,
        packet_rate: req.primary.packet_rate,
        mtu: Mtu::Mtu4096,
        ..Path::default()
    };
    let mut client = Endpoint::<2, 1, 1>::new(Config { ack_delay: 0, ..Config::new(req.local_ca_guid) });
    let request = ConnectRequest {
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        end_to_end_flow_control: req.end_to_end_flow_control,
        private_data: req.private_data,
        ..ConnectRequest::new(req.service_id, path, req.local_qpn, req.starting_psn)
    };
    let id = client.connect(now, u64::from(req.local_comm_id.0), &request).unwrap();
    let mut mad = [0; MAD_BYTES];
    client.transmit(&mut mad).unwrap();
    let ours = Req::decode(&mad).unwrap();
    let primary = ReqPath { local_ack_timeout: ours.primary.local_ack_timeout, ..req.primary };
    let theirs = Req { transaction: ours.transaction, vendor_id: 0, primary, ..req };
    assert_eq!(ours, theirs);

    let Some(Event::Replied { attributes, .. }) = client.receive(now, 0, &from(&datagrams[1]), &datagrams[1].mad) else {
        panic!()
    };
    assert_eq!((attributes.rtr.dest_qpn, attributes.rts.sq_psn), (Qpn::new(5), Psn::new(0xa2_9b34)));
    assert_eq!((attributes.rtr.rq_psn, attributes.rtr.path.dlid), (req.starting_psn, Lid::new(1)));
    client.ready(id, &[]).unwrap();
    client.transmit(&mut mad).unwrap();
    let rtu = Rtu::decode(&datagrams[2].mad).unwrap();
    let written = Rtu::decode(&mad).unwrap();
    assert_eq!((written.local_comm_id, written.remote_comm_id), (rtu.local_comm_id, rtu.remote_comm_id));

    // Linux's server releases it.
    let end = client.receive(now, 0, &from(&datagrams[3]), &datagrams[3].mad);
    assert!(matches!(end, Some(Event::Disconnected { cause: Cause::Peer, .. })), "{end:?}");
    client.transmit(&mut mad).unwrap();
    assert_eq!(mad, datagrams[4].mad);
}

#[test]
fn a_rejection_of_linux_ends_a_request() {
    let now = Instant::from_nanos(0);
    let datagrams = group("rping to a port");
    let req = Req::decode(&datagrams[0].mad).unwrap();
    let mut client = Endpoint::<2, 1, 1>::new(Config::new(req.local_ca_guid));
    let request = ConnectRequest::new(req.service_id, Path::default(), req.local_qpn, req.starting_psn);
    let id = client.connect(now, u64::from(req.local_comm_id.0), &request).unwrap();
    let event = client.receive(now, 0, &from(&datagrams[1]), &datagrams[1].mad);
    let Some(Event::Rejected { id: rejected, reason, message, .. }) = event else { panic!("{event:?}") };
    assert_eq!((rejected, message), (id, Some(MessageType::Req)));
    assert_eq!(RejectReason::from_code(reason.into()), Some(RejectReason::InvalidServiceId));
    assert_eq!(client.advance(now), Some(Event::Closed { id, qpn: req.local_qpn }));
    assert_eq!(client.connections(), 0);
}
