//! Records and options that several tests use.
#![allow(dead_code, reason = "each test has its own copy, and uses a part of it")]

use std::sync::Arc;

use packetloom_export::Fields;
use packetloom_export::messages::{Options, Protocol};
use packetloom_packet::{Details, EndReason, FlowRecord, HalfFlow, More, NameKind, Timestamp};

pub(crate) fn millis(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis.saturating_mul(1_000_000))
}

/// 1,400 bytes at most, templates once.
pub(crate) fn options(protocol: Protocol) -> Options {
    Options {
        protocol,
        fields: Fields::BASIC,
        biflows: false,
        domain: 7,
        message_len: 1_400,
        first_templates: 1,
        template_packets: None,
        template_interval: None,
        sampling: None,
    }
}

/// TCP both ways, up to 1,790,000,000.5 s.
pub(crate) fn v4() -> FlowRecord {
    FlowRecord {
        source: "192.0.2.1".parse().unwrap(),
        destination: "198.51.100.2".parse().unwrap(),
        source_port: 49_152,
        destination_port: 443,
        protocol: 6,
        forward: HalfFlow {
            first: millis(1_789_999_999_001),
            last: millis(1_790_000_000_250),
            packets: 5,
            bytes: 1_234,
            tcp_flags: 0x1b,
        },
        reverse: HalfFlow {
            first: millis(1_789_999_999_002),
            last: millis(1_790_000_000_500),
            packets: 0x1_0000_0002,
            bytes: 0x0123_4567_89ab_cdef,
            tcp_flags: 0x13,
        },
        end_reason: EndReason::ActiveTimeout,
        more: None,
    }
}

/// UDP one way.
pub(crate) fn v6() -> FlowRecord {
    FlowRecord {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8:1:2:3:4:5:6".parse().unwrap(),
        source_port: 53,
        destination_port: 65_535,
        protocol: 17,
        forward: HalfFlow { tcp_flags: 0, ..v4().forward },
        reverse: HalfFlow::default(),
        end_reason: EndReason::IdleTimeout,
        more: None,
    }
}

/// The same record with all that is known beside counters, other in each direction.
pub(crate) fn detailed(record: FlowRecord) -> FlowRecord {
    let forward = Details {
        lengths: [40, 65_575],
        ttls: [63, 64],
        class_of_service: 0xb8,
        first_tcp_flags: 2,
        fragment_flags: 0x60,
        fragments: 3,
        icmp: None,
        vlan: Some(4_094),
        macs: Some([[2, 0, 0, 0, 0, 1], [0xff; 6]]),
        ingress: 65_535,
        egress: Some(1),
    };
    let reverse = Details {
        lengths: [52, 1_500],
        ttls: [1, 255],
        class_of_service: 3,
        first_tcp_flags: 0x12,
        fragment_flags: 0x40,
        fragments: 0,
        icmp: Some((8, 1)),
        vlan: None,
        macs: None,
        ingress: 1,
        egress: None,
    };
    let names = vec![(NameKind::TlsServer, "a \"name\", in full".into())];
    let more = Some(Arc::new(More { details: [forward, reverse], names }));
    FlowRecord { more, ..record }
}

/// The same with these names.
pub(crate) fn named(record: FlowRecord, names: &[(NameKind, &str)]) -> FlowRecord {
    let names = names.iter().map(|&(kind, text)| (kind, text.into())).collect();
    let more = detailed(record.clone()).more.map(|more| Arc::new(More { names, ..(*more).clone() }));
    FlowRecord { more, ..record }
}

/// Several names, of two kinds.
pub(crate) const SEVERAL: [(NameKind, &str); 4] = [
    (NameKind::DnsQuery, "b.example"),
    (NameKind::HttpHost, "x;y,\"z\""),
    (NameKind::DnsQuery, "a.example"),
    (NameKind::DnsQuery, "ü"),
];

/// A capture of one UDP datagram a message: raw IPv4, no checksums.
pub(crate) fn capture(messages: &[Vec<u8>], port: u16) -> Vec<u8> {
    let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    file.extend_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0]);
    for message in messages {
        let len = (message.len() + 28) as u16;
        for word in [1_790_000_001, 0, u32::from(len), u32::from(len)] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&[0x45, 0]);
        file.extend_from_slice(&len.to_be_bytes());
        file.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        for word in [40_000, port, len - 20, 0] {
            file.extend_from_slice(&word.to_be_bytes());
        }
        file.extend_from_slice(message);
    }
    file
}
