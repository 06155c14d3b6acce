//! What a collector has to make of a record: written from the record alone.

use std::net::IpAddr;

use packetloom_packet::{FlowRecord, HalfFlow};

use packetloom_testing::collector::{Flow, Half};

fn half(half: &HalfFlow) -> Half {
    Half {
        start: half.first.as_millis(),
        end: half.last.as_millis(),
        packets: half.packets,
        bytes: half.bytes,
        flags: half.tcp_flags.into(),
    }
}

/// One flow, or two.
pub(crate) fn expected(record: &FlowRecord, biflows: bool) -> Vec<Flow> {
    let mut addresses = [record.source, record.destination];
    if addresses[0].is_ipv4() != addresses[1].is_ipv4() {
        addresses = addresses.map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().into(),
            address => address,
        });
    }
    let ports = [record.source_port.into(), record.destination_port.into()];
    let forward = Flow {
        addresses,
        ports,
        protocol: record.protocol.into(),
        end_reason: record.end_reason as u64,
        forward: half(&record.forward),
        reverse: None,
        direction: None,
    };
    let reverse = half(&record.reverse);
    match (record.reverse.packets > 0, biflows) {
        (false, _) => vec![forward],
        (true, true) => vec![Flow { reverse: Some(reverse), direction: Some(1), ..forward }],
        (true, false) => {
            let (addresses, ports) = ([addresses[1], addresses[0]], [ports[1], ports[0]]);
            vec![forward.clone(), Flow { addresses, ports, forward: reverse, ..forward }]
        }
    }
}
