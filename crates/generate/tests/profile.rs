//! Traffic of network profiles, read back and counted flow by flow.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use packetloom_generate::GenerateError;
use packetloom_generate::profile::{
    Adjustments, Profile, ProfileOptions, ProfileTraffic, write_profile_pcap,
};
use proptest::prelude::*;
use support::{Packet, be16, digest};

const HEADER: &str =
    "START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,PACKETS_REV,BYTES_REV\n";

/// A flow: begin and end in nanoseconds from the earliest one, version of IP, protocol, ports, packets and bytes forward, the same in reverse.
type Counted = (u64, u64, bool, u8, [u16; 2], [u64; 2], [u64; 2]);

fn read(rows: &str) -> Result<Profile, GenerateError> {
    Profile::read(format!("{HEADER}{rows}").as_bytes(), "p.csv")
}

fn file(profile: Profile, options: &ProfileOptions) -> Vec<u8> {
    let mut file = Vec::new();
    let (flows, packets) = (profile.flows(), profile.packets());
    let summary = write_profile_pcap(profile, options, &mut file, |_| {}).expect("written");
    assert_eq!((summary.flows, summary.packets), (flows, packets));
    assert_eq!(summary.file_bytes, file.len() as u64);
    file
}

fn packets(rows: &str) -> Vec<Packet> {
    support::packets(&file(read(rows).expect("a profile"), &ProfileOptions::default()), 0)
}

/// The flows of a capture, each from the sender of its first packet; sorted.
fn count(packets: &[Packet]) -> Vec<Counted> {
    let begin = packets[0].time;
    let mut flows: BTreeMap<_, (Packet, Counted)> = BTreeMap::new();
    for packet in packets {
        let (first, counted) = flows.entry(packet.key()).or_insert_with(|| {
            let ports = [packet.ends[0].1, packet.ends[1].1];
            let start = packet.time - begin;
            (packet.clone(), (start, start, packet.ipv6, packet.protocol, ports, [0; 2], [0; 2]))
        });
        counted.1 = packet.time - begin;
        let way = if packet.ends == first.ends { &mut counted.5 } else { &mut counted.6 };
        way[0] += 1;
        way[1] += packet.ip_len as u64;
    }
    let mut counted: Vec<_> = flows.into_values().map(|(_, counted)| counted).collect();
    counted.sort_unstable();
    counted
}

/// Flags of TCP, with > before those of who began.
fn play(packets: &[Packet]) -> Vec<String> {
    let flags = |packet: &Packet| {
        let names = [(2, "S"), (1, "F"), (4, "R"), (8, "P"), (16, ".")];
        let set = names.iter().filter(|(bit, _)| packet.transport[13] & bit != 0).map(|(_, name)| *name);
        let way = if packet.ends == packets[0].ends { ">" } else { "<" };
        format!("{way}{}", set.collect::<String>())
    };
    packets.iter().map(flags).collect()
}

prop_compose! {
    /// Packets and bytes of a direction, as packets of this protocol and version of IP can have them.
    fn half(shortest: u64, longest: u64, fewest: u64)
        (packets in fewest..40, part in 0u64..=1000, ordinary in 0..4)
        -> [u64; 2] {
        // Mostly as on Ethernet.
        let longest = if ordinary > 0 { 1500 } else { longest };
        [packets, packets * (shortest + (longest - shortest) * part / 1000)]
    }
}

fn flow() -> impl Strategy<Value = (i64, Counted)> {
    let kinds = (any::<bool>(), prop_oneof![Just(6u8), Just(17), Just(1)], any::<[u16; 2]>());
    kinds.prop_flat_map(|(ipv6, protocol, ports)| {
        let protocol = if protocol == 1 && ipv6 { 58 } else { protocol };
        let has_ports = matches!(protocol, 6 | 17);
        let shortest = if ipv6 { 40 } else { 20 } + if protocol == 6 { 20 } else { 8 };
        let longest = if ipv6 { 65_575 } else { 65_535 };
        let times = (-2_000_000i64..2_000_000, prop_oneof![Just(0), 1i64..5, 0i64..900_000]);
        (times, half(shortest, longest, 1), half(shortest, longest, 0)).prop_map(
            move |((start, duration), forward, reverse)| {
                let end = if forward[0] + reverse[0] == 1 { start } else { start + duration };
                let ports = if has_ports { ports } else { [0; 2] };
                (start, (start as u64, end as u64, ipv6, protocol, ports, forward, reverse))
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn flows_come_back_as_the_profile_has_them(flows in prop::collection::vec(flow(), 1..60), seed: u64) {
        let mut rows = String::new();
        for (start, (_, end, ipv6, protocol, ports, forward, reverse)) in &flows {
            let version = if *ipv6 { 6 } else { 4 };
            let [source, destination] = ports;
            let ([packets, bytes], [back, bytes_back]) = (forward, reverse);
            let end = *end as i64;
            rows += &format!(
                "{start},{end},{version},{protocol},{source},{destination},{packets},{bytes},{back},{bytes_back}\n"
            );
        }
        let profile = read(&rows).expect("a profile");
        prop_assert_eq!(profile.adjustments(), Adjustments::default());
        let file = file(profile, &ProfileOptions { seed, ..ProfileOptions::default() });
        let packets = support::packets(&file, 0);
        prop_assert!(packets.is_sorted_by_key(|packet| packet.time));
        for packet in &packets {
            prop_assert_eq!((packet.header_sum, packet.transport_sum), (0xffff, 0xffff));
            prop_assert_eq!(packet.captured, packet.wire);
            prop_assert!(packet.tags.is_empty());
        }
        let earliest = flows.iter().map(|(start, _)| *start).min().expect("a flow");
        let nanos = |millis: u64| (millis as i64 - earliest) as u64 * 1_000_000;
        let mut expected: Vec<Counted> = flows
            .iter()
            .map(|(_, (start, end, ipv6, protocol, ports, forward, reverse))| {
                (nanos(*start), nanos(*end), *ipv6, *protocol, *ports, *forward, *reverse)
            })
            .collect();
        expected.sort_unstable();
        prop_assert_eq!(count(&packets), expected);
    }

    /// What is no profile is refused, without a panic; what is one can be generated from.
    #[test]
    fn any_text_is_a_profile_or_refused(
        rows in prop::collection::vec(prop::collection::vec("[0-9.,#x-]{0,12}|[46]|17?|65536|[0-9]{19,21}", 9..12), 0..5),
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let text: Vec<String> = rows.iter().map(|cells| cells.join(",")).collect();
        let mut text = format!("{HEADER}{}\n", text.join("\n")).into_bytes();
        text.extend(bytes);
        if let Ok(profile) = Profile::read(&text[..], "p.csv")
            && let Ok(mut traffic) = ProfileTraffic::new(profile, &ProfileOptions::default()) {
            for _ in 0..100 {
                traffic.next_frame();
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_for_ever() {
    let rows =
        "0,2000,4,6,40000,443,9,1200,12,9000\n10,900,6,17,5353,53,3,300,3,900\n-5,400,4,1,0,0,4,336,4,336\n";
    let bytes = |seed, snap| {
        file(read(rows).expect("a profile"), &ProfileOptions { seed, snap, ..ProfileOptions::default() })
    };
    assert_eq!(digest(&bytes(1, 0)), 7_927_657_558_884_702_605, "the digest of seed 1");
    assert!(bytes(1, 0) == bytes(1, 0) && bytes(1, 0) != bytes(2, 0));
    // A snap length cuts bytes off and changes nothing else.
    let (whole, cut) = (support::packets(&bytes(1, 0), 0), support::packets(&bytes(1, 96), 96));
    for (whole, cut) in whole.iter().zip(&cut) {
        assert_eq!((whole.time, whole.wire, whole.key()), (cut.time, cut.wire, cut.key()));
        assert_eq!(cut.captured, whole.captured.min(96));
    }
}

#[test]
fn tcp_opens_and_closes_where_bytes_and_packets_allow() {
    // A scan, and one of a closed port.
    assert_eq!(play(&packets("0,0,4,6,40000,23,1,40,0,0")), [">S"]);
    assert_eq!(play(&packets("0,9,4,6,40000,23,1,60,1,40")), [">S", "<R."]);
    // With the options that a SYN has.
    assert_eq!(packets("0,0,6,6,40000,23,1,80,0,0")[0].transport[12] >> 4, 10);
    // A handshake, data both ways, and a FIN from each side.
    let whole = play(&packets("0,5000,4,6,40000,443,20,3000,30,30000"));
    assert_eq!(whole[..2], [">S", "<S."]);
    let fins: Vec<_> = whole.iter().filter(|flags| flags.contains('F')).map(|flags| &flags[..1]).collect();
    assert!(fins == [">", "<"] || fins == ["<", ">"], "{whole:?}");
    for way in [">", "<"] {
        let last = whole.iter().rfind(|flags| flags.starts_with(way)).expect("packets");
        assert!(last.contains('F'), "{whole:?}");
    }
    assert_eq!(whole.iter().filter(|flags| flags.contains('S')).count(), 2);
    // Sequence numbers go on by what was sent.
    let packets_of = packets("0,5000,4,6,40000,443,20,3000,30,30000");
    let mut next = BTreeMap::new();
    for packet in &packets_of {
        let number = u32::from_be_bytes(packet.transport[4..8].try_into().expect("four bytes"));
        let header = usize::from(packet.transport[12] >> 4) * 4;
        let takes = packet.transport.len() - header + usize::from(packet.transport[13] & 3 != 0);
        if let Some(expected) = next.insert(packet.ends.clone(), number.wrapping_add(takes as u32)) {
            assert_eq!(number, expected);
        }
    }
    // What was there before: a direction alone, or packets that are all full.
    assert!(play(&packets("0,10,4,6,443,40000,0,0,3,2000")).iter().all(|flags| !flags.contains(['S', 'F'])));
    assert!(play(&packets("0,10,4,6,443,40000,3,4500,0,0")).iter().all(|flags| !flags.contains(['S', 'F'])));
}

#[test]
fn packets_are_spread_over_the_time_of_their_flow() {
    let times: Vec<u64> =
        packets("0,1000,4,17,1,2,100,10000,1,100").iter().map(|packet| packet.time).collect();
    assert_eq!(times[100] - times[0], 1_000_000_000);
    // Twice the mean gap at most.
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] < 20_000_000), "{times:?}");
    assert_eq!(times[0], 1_767_225_600_000_000_000);
}

#[test]
fn addresses_are_made_up_or_those_of_the_profile() {
    let header = "SRC_IP,DST_IP,START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,PACKETS_REV,BYTES_REV";
    let rows = "192.0.2.1,198.51.100.2,0.5,2.000001,4,17,1,2,1,40,1,50\n,2001:db8::1,1,2,6,6,3,4,1,60,1,60\n";
    let profile = Profile::read(format!("# a comment\r\n\r\n{header}\r\n{rows}").as_bytes(), "p.csv")
        .expect("a profile");
    let packets = support::packets(&file(profile, &ProfileOptions::default()), 0);
    assert_eq!(packets[0].ends, [(vec![192, 0, 2, 1], 1), (vec![198, 51, 100, 2], 2)]);
    let named = packets.iter().find(|packet| packet.ipv6).expect("IPv6");
    assert_eq!(
        named.ends[1].0[..],
        "2001:db8::1".parse::<std::net::Ipv6Addr>().expect("an address").octets()
    );
    // Fractions of milliseconds hold.
    assert_eq!(packets[1].time.max(packets[2].time).max(packets[3].time) - packets[0].time, 1_500_001);
    // A thousand flows of the same ports and times are a thousand flows.
    let many = "0,9,4,6,40000,443,2,80,1,40\n".repeat(1000) + &"0,9,6,17,53,53,1,80,1,90\n".repeat(1000);
    assert_eq!(count(&self::packets(&many)).len(), 2000);
    // So are those of one source, in either version of IP.
    for (version, address) in [(4, "192.0.2.1"), (6, "2001:db8::1")] {
        let many = format!("{address},,0,0,{version},17,53,53,1,80,0,0\n").repeat(300);
        let profile = Profile::read(format!("{header}\n{many}").as_bytes(), "p.csv").expect("a profile");
        assert_eq!(
            count(&support::packets(&file(profile, &ProfileOptions::default()), 0)).len(),
            300,
            "{address}"
        );
    }
}

#[test]
fn what_packets_cannot_be_is_changed_and_counted() {
    let rows = "0,0,4,47,0,0,5,500,0,0\n\
                0,0,6,1,0,0,5,500,0,0\n\
                0,9,4,6,1,2,0,700,0,0\n\
                0,9,4,6,10,2,4,159,1,39\n\
                1,9,6,17,20,2,2,131151,0,70\n\
                2,9,4,17,30,2,1,100,0,0\n\
                3,9,4,1,7,8,2,100,2,100\n";
    let profile = read(rows).expect("a profile");
    let counted = Adjustments { protocol: 2, empty: 1, short: 1, long: 1, single: 1, ports: 1 };
    assert_eq!(profile.adjustments(), counted);
    let packets = support::packets(&file(profile, &ProfileOptions::default()), 0);
    let ms = |millis: u64| millis * 1_000_000;
    let expected = vec![
        (0, ms(9), false, 6, [10, 2], [4, 160], [1, 40]),
        (ms(1), ms(9), true, 17, [20, 2], [2, 131_150], [0, 0]),
        (ms(2), ms(2), false, 17, [30, 2], [1, 100], [0, 0]),
        (ms(3), ms(9), false, 1, [0, 0], [2, 100], [2, 100]),
    ];
    assert_eq!(count(&packets), expected);
    assert!(packets.iter().all(|packet| packet.transport_sum == 0xffff && be16(&packet.transport) != 0x0100));
}

/// Four billion packets take no memory before they are made.
#[test]
fn flows_may_be_as_large_as_a_capture() {
    let profile = read("0,1000000,4,6,1,2,4294967294,6000000000000,1,40\n").expect("a profile");
    assert_eq!(profile.packets(), u64::from(u32::MAX));
    let mut traffic = ProfileTraffic::new(profile, &ProfileOptions::default()).expect("traffic");
    let times: Vec<u64> = (0..1000).map(|_| traffic.next_frame().expect("a frame").timestamp_ns).collect();
    assert!(times.is_sorted());
}

#[test]
fn bad_lines_are_told_with_what_was_expected() {
    let cases = [
        ("1,2,3", "p.csv:2: 3 cells; expected 10, as in the line of names"),
        (
            "x,2,4,6,1,2,1,40,0,0",
            "p.csv:2: START_TIME is \"x\"; expected milliseconds, such as 1200, -5 or 0.25, of 292 years at most",
        ),
        ("\n#\n0,1e3,4,6,1,2,1,40,0,0", "p.csv:4: END_TIME is \"1e3\"; expected milliseconds"),
        ("5,-1,4,6,1,2,1,40,0,0", "p.csv:2: END_TIME -1 is before START_TIME 5; expected it there or later"),
        ("0,0,5,6,1,2,1,40,0,0", "p.csv:2: L3_PROTO is \"5\"; expected 4 for IPv4 or 6 for IPv6"),
        (
            "0,0,4,tcp,1,2,1,40,0,0",
            "p.csv:2: L4_PROTO is \"tcp\"; expected the number of a protocol, 0 to 255",
        ),
        ("0,0,4,6,1,65536,1,40,0,0", "p.csv:2: DST_PORT is \"65536\"; expected a port, 0 to 65535"),
        ("0,0,4,6,1,2,-1,40,0,0", "p.csv:2: PACKETS is \"-1\"; expected a whole number below 2^64"),
        ("0,0,4,6,1,2,1,40,0,", "p.csv:2: BYTES_REV is \"\"; expected a whole number below 2^64"),
        (
            "0,0,4,6,1,2,18446744073709551615,40,18446744073709551615,0",
            "p.csv:2: with this line, these are more than 4294967295 packets or 268435456 flows; expected a smaller profile",
        ),
    ];
    for (rows, message) in cases {
        let error = read(rows).expect_err(rows).to_string();
        assert!(error.starts_with(message), "{error}");
    }
    let names = "expected a line with the names of columns: START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,\
                 PACKETS_REV,BYTES_REV";
    let long = "9".repeat(2000);
    let heads = [
        ("", format!("p.csv:1: no such line; {names}")),
        ("#\n\n", format!("p.csv:3: no such line; {names}")),
        ("START_TIME,FLAGS", format!("p.csv:1: \"FLAGS\" is no column of a profile; {names}")),
        ("BYTES,BYTES", "p.csv:1: BYTES comes twice; expected it once".into()),
        ("START_TIME,BYTES", format!("p.csv:1: END_TIME is missing; {names}")),
        (&long, "p.csv:1: longer than 1024 bytes; expected a flow of a profile".into()),
    ];
    for (text, message) in heads {
        assert_eq!(Profile::read(text.as_bytes(), "p.csv").expect_err(text).to_string(), message);
    }
    let binary = Profile::read(&b"\xff\xfe\n"[..], "p.csv").expect_err("no text").to_string();
    assert_eq!(binary, "p.csv:1: not text in UTF-8; expected a profile in CSV");
    assert!(matches!(read("# none\n0,0,4,47,0,0,1,40,0,0"), Err(GenerateError::NoFlows)));
    // A capture has no times behind 2106.
    let profile =
        read("0,0,4,6,1,2,1,40,0,0\n4294967296000,4294967296000,4,6,1,2,1,40,0,0").expect("a profile");
    let options = ProfileOptions { start: Duration::ZERO, ..ProfileOptions::default() };
    assert!(matches!(ProfileTraffic::new(profile, &options), Err(GenerateError::TimeOutOfRange)));
}
