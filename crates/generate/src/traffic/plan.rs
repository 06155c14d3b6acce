//! Plans a capture: how many packets each flow has, what it does, between whom, and when.

use super::TrafficOptions;
use super::endpoints::Endpoints;
use super::flow::{Flow, Kind, Tags, Traits};
use super::pace::Pace;
use crate::random::{Random, mix};
use crate::seen::Seen;

/// The percentage of flows that stay at one packet.
const SINGLE_SHARE: u32 = 12;
/// The percentage of TCP connections of which one direction took another way.
const ONE_WAY_SHARE: u32 = 3;
/// The percentage of tagged flows that have two tags.
const STACKED_SHARE: u32 = 25;
/// The heaviest flow weighs as much as 2¹³ of the lightest: elephants, none of which is a link of its own.
const WEIGHT_SPAN: u32 = 13;
/// Draws of a popular pair of addresses before any pair will do.
const POPULAR_DRAWS: u32 = 16;

/// What flows do by how many packets they have.
const ONE_PACKET: &[(Kind, u32)] = &[(Kind::Scan, 55), (Kind::Probe, 25), (Kind::Dns, 8), (Kind::Echo, 12)];
const FEW_PACKETS: &[(Kind, u32)] =
    &[(Kind::Dns, 48), (Kind::Session, 27), (Kind::Ntp, 10), (Kind::Echo, 15)];
const SOME_PACKETS: &[(Kind, u32)] =
    &[(Kind::Session, 78), (Kind::Quic, 14), (Kind::Dns, 3), (Kind::Echo, 5)];
const MANY_PACKETS: &[(Kind, u32)] = &[(Kind::Session, 80), (Kind::Quic, 15), (Kind::Media, 5)];

/// Ports of TCP servers, and those that scanners look for (0: any).
#[rustfmt::skip]
const SERVICES: &[(u16, u32)] = &[
    (443, 62), (80, 14), (22, 4), (993, 3), (8080, 3), (25, 3), (8443, 2), (3306, 2), (5432, 2),
    (587, 1), (8883, 1), (3389, 1), (5222, 1), (6379, 1),
];
#[rustfmt::skip]
const SCANNED: &[(u16, u32)] = &[
    (23, 20), (22, 12), (445, 10), (80, 8), (443, 6), (8080, 6), (3389, 6), (5555, 4), (2323, 4),
    (6379, 3), (9200, 2), (0, 19),
];
/// Ports that UDP probes look for (0: any), and of media streams.
const PROBED: &[(u16, u32)] =
    &[(5060, 20), (1900, 18), (161, 14), (27_015, 10), (389, 8), (3702, 8), (11211, 6), (0, 16)];
const MEDIA: &[(u16, u32)] = &[(3478, 30), (5004, 20), (10_000, 15), (19_302, 15), (51_820, 20)];

/// The flows of a capture, in the order of their first packets.
pub(super) fn plan(
    options: &TrafficOptions,
    endpoints: &Endpoints,
    pace: &Pace,
    random: &mut Random,
) -> Vec<Flow> {
    let mut flows = sizes(options.packets, options.flows, random);
    let mut seen = Seen::with_capacity(flows.len());
    for flow in &mut flows {
        flow.kind = kind(flow.left, random);
        flow.traits.set(Traits::IPV6, random.percent(options.ipv6_share));
        let one_way = flow.kind == Kind::Session && flow.left > 1 && random.percent(ONE_WAY_SHARE);
        flow.traits.set(Traits::ONE_WAY, one_way);
        flow.traits.set(Traits::CLOSES, flow.kind == Kind::Session && flow.left >= 7);
        flow.client_seq = random.bits() as u32;
        flow.server_seq = random.bits() as u32;
        let mut draws = 0;
        loop {
            draws += 1;
            meet(flow, endpoints, draws > POPULAR_DRAWS, random);
            if seen.insert(canonical(flow)) {
                break;
            }
        }
        if random.percent(options.vlan_share) {
            let id = 100 + (mix(u64::from(flow.client >> 12)) % 48) as u16;
            let stacked = random.percent(STACKED_SHARE);
            flow.tags = if stacked { Tags::stacked(id) } else { Tags::single(id) };
        }
        pace.begin(flow, random);
    }
    drop(seen);
    // Flows that live at the same time lie side by side. Two may start in the same nanosecond,
    // but no two are equal in all of this, so an unstable sort has only one outcome.
    flows.sort_unstable_by_key(|flow| {
        let ends = (flow.client, flow.server, flow.client_port, flow.server_port);
        (flow.next, ends, flow.kind as u8, flow.ipv6())
    });
    flows
}

/// As many flows as asked for, which together have as many packets as asked for.
///
/// One flow in eight has one packet. The others have two, where that many packets are there, and
/// share the rest by weights that follow a Pareto law with exponent 1: a weight above w has the
/// probability 1/w.
fn sizes(packets: u64, count: u64, random: &mut Random) -> Vec<Flow> {
    let mut flows = vec![unplanned(); count as usize];
    let mut total = 0u64;
    for flow in &mut flows {
        if !random.percent(SINGLE_SHARE) {
            let rank = 1 + random.below(1 << WEIGHT_SPAN);
            // In units of 2⁻¹⁸ of the lightest flow, less the lightest.
            flow.burst_gap = (((1u64 << 31) / rank) - (1 << (31 - WEIGHT_SPAN)) + 1) as u32;
            total += u64::from(flow.burst_gap);
        }
    }
    if total == 0 {
        flows[0].burst_gap = 1;
        total = 1;
    }

    let mut rest = packets - count;
    for flow in flows.iter_mut().filter(|flow| flow.burst_gap > 0).take(rest as usize) {
        flow.left += 1;
        rest -= 1;
    }
    let shared = rest;
    for flow in &mut flows {
        let weight = u128::from(flow.burst_gap);
        let share = (u128::from(shared) * weight / u128::from(total)) as u32;
        flow.left += share;
        rest -= u64::from(share);
    }
    // What the divisions lost is less than a packet for each of these flows.
    for flow in flows.iter_mut().filter(|flow| flow.burst_gap > 0).take(rest as usize) {
        flow.left += 1;
    }
    flows
}

/// A flow of one packet of which nothing else is known. Until it begins, `burst_gap` is its weight.
fn unplanned() -> Flow {
    Flow {
        next: 0,
        end: 0,
        burst_gap: 0,
        left: 1,
        link: 0,
        client: 0,
        server: 0,
        client_seq: 0,
        server_seq: 0,
        client_port: 0,
        server_port: 0,
        tags: Tags::NONE,
        kind: Kind::Scan,
        stage: 0,
        traits: Traits::default(),
    }
}

fn kind(packets: u32, random: &mut Random) -> Kind {
    random.weighted(match packets {
        1 => ONE_PACKET,
        2..=3 => FEW_PACKETS,
        4..=16 => SOME_PACKETS,
        _ => MANY_PACKETS,
    })
}

/// Draws the flow's addresses and ports: popular ones, or any.
fn meet(flow: &mut Flow, endpoints: &Endpoints, any: bool, random: &mut Random) {
    let ipv6 = flow.ipv6();
    flow.server = endpoints.server(ipv6, random);
    flow.client = if any { endpoints.any_client(ipv6, random) } else { endpoints.client(ipv6, random) };
    // The ephemeral ports of Linux.
    flow.client_port = random.between(32_768, 60_999) as u16;
    flow.server_port = match flow.kind {
        Kind::Session => random.weighted(SERVICES),
        Kind::Scan => random.weighted(SCANNED),
        Kind::Probe => random.weighted(PROBED),
        Kind::Dns => 53,
        Kind::Ntp => 123,
        Kind::Quic => 443,
        Kind::Media => random.weighted(MEDIA),
        Kind::Echo => 0,
    };
    if flow.server_port == 0 && flow.kind != Kind::Echo {
        flow.server_port = random.between(1, 65_535) as u16;
    }
}

/// A hash of the flow's key, which is the same for both directions: IP version, protocol, and the
/// two ends without order. An echo has no ports.
fn canonical(flow: &Flow) -> u64 {
    let ports = flow.kind != Kind::Echo;
    let end = |address: u32, port: u16| (u64::from(address) << 16) | u64::from(if ports { port } else { 0 });
    let client = end(flow.client, flow.client_port);
    let server = end(flow.server, flow.server_port);
    let protocol = u64::from(flow.kind.protocol(flow.ipv6())) | u64::from(flow.ipv6()) << 8;
    mix(mix(client.min(server) | protocol << 48).wrapping_add(client.max(server)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_packet_finds_a_flow(count in 1u64..500, more in 0u64..5000, seed: u64) {
            let flows = sizes(count + more, count, &mut Random::new(seed, 0));
            prop_assert_eq!(flows.len() as u64, count);
            prop_assert_eq!(flows.iter().map(|flow| u64::from(flow.left)).sum::<u64>(), count + more);
            prop_assert!(flows.iter().all(|flow| flow.left > 0));
        }
    }

    #[test]
    fn a_flow_may_hold_all_packets() {
        for seed in 0..20 {
            let flows = sizes(u64::from(u32::MAX), 1, &mut Random::new(seed, 0));
            assert_eq!(flows[0].left, u32::MAX);
        }
    }
}
