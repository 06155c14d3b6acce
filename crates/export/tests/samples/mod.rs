//! Records and options that several tests use.
#![allow(dead_code, reason = "each test has its own copy, and uses a part of it")]

use packetloom_export::messages::{Options, Protocol};
use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Timestamp};

pub(crate) fn millis(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis.saturating_mul(1_000_000))
}

/// 1,400 bytes at most, templates once.
pub(crate) fn options(protocol: Protocol) -> Options {
    Options {
        protocol,
        biflows: false,
        domain: 7,
        message_len: 1_400,
        first_templates: 1,
        template_packets: None,
        template_interval: None,
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
    }
}
