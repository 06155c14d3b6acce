//! Generated captures, read back.

mod support;

use std::io::{self, Write};
use std::time::Duration;

use packetloom_generate::{GenerateError, Traffic, TrafficOptions, write_pcap};
use proptest::prelude::*;
use support::{Packet, be16, digest, flows};

fn options(packets: u64, flows: u64) -> TrafficOptions {
    TrafficOptions { packets, flows, ..Default::default() }
}

fn file(options: &TrafficOptions) -> Vec<u8> {
    let mut file = Vec::new();
    let summary = write_pcap(options, &mut file, |_| {}).unwrap();
    assert_eq!(summary.file_bytes, file.len() as u64);
    file
}

fn packets(options: &TrafficOptions) -> Vec<Packet> {
    support::packets(&file(options), options.snap)
}

#[test]
fn counts_are_exact() {
    for (count, flow_count) in [(1, 1), (2, 1), (5, 5), (9, 8), (100, 60), (3000, 40), (20_000, 1500)] {
        let packets = packets(&options(count, flow_count));
        assert_eq!(packets.len() as u64, count);
        assert_eq!(flows(&packets).len() as u64, flow_count);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_options_give_what_they_say(
        flow_count in 1u64..300,
        more in 0u64..2000,
        seed: u64,
        snap in prop_oneof![Just(0u32), 96u32..200],
        nanoseconds in prop_oneof![Just(0u64), 0u64..1000, 0u64..100_000_000_000],
        ipv6_share in 0u32..=100,
        vlan_share in 0u32..=100,
    ) {
        let options = TrafficOptions {
            packets: flow_count + more,
            flows: flow_count,
            seed,
            snap,
            duration: Duration::from_nanos(nanoseconds),
            start: Duration::from_secs(3),
            ipv6_share,
            vlan_share,
        };
        let packets = packets(&options);
        prop_assert_eq!(packets.len() as u64, options.packets);
        prop_assert_eq!(flows(&packets).len() as u64, flow_count);
        prop_assert!(packets.is_sorted_by_key(|packet| packet.time));
        prop_assert!(packets[0].time >= 3_000_000_000);
        prop_assert!(packets.last().unwrap().time <= 3_000_000_000 + nanoseconds);
        for packet in &packets {
            let whole = if snap == 0 { packet.wire } else { packet.wire.min(snap as usize) };
            prop_assert_eq!(packet.captured, whole);
            prop_assert_eq!(packet.header_sum, 0xffff);
            prop_assert!(packet.captured < packet.wire || packet.transport_sum == 0xffff);
            prop_assert!(packet.tags.is_empty() || vlan_share > 0);
        }
        if ipv6_share % 100 == 0 {
            prop_assert!(packets.iter().all(|packet| packet.ipv6 == (ipv6_share == 100)));
        }
    }
}

#[test]
fn a_cut_frame_is_the_beginning_of_the_whole_one() {
    let whole = options(5000, 300);
    let cut = TrafficOptions { snap: 48, ..whole.clone() };
    let (mut whole, mut cut) = (Traffic::new(&whole).unwrap(), Traffic::new(&cut).unwrap());
    while let Some(frame) = whole.next_frame() {
        let short = cut.next_frame().unwrap();
        assert_eq!((frame.timestamp_ns, frame.wire_len), (short.timestamp_ns, short.wire_len));
        assert_eq!(frame.bytes.len(), frame.wire_len as usize);
        assert_eq!(frame.bytes[..48], *short.bytes);
    }
    assert!(cut.next_frame().is_none());
    assert_eq!((cut.produced(), cut.remaining()), (5000, 0));
}

#[test]
fn a_seed_decides() {
    let one = options(5000, 400);
    let two = TrafficOptions { seed: 2, ..one.clone() };
    assert_eq!(file(&one), file(&one));
    assert_ne!(file(&one), file(&two));
}

/// Reproducible for ever: when this fails, files made before can no longer be made again.
#[test]
fn the_bytes_never_change() {
    let options = TrafficOptions { snap: 128, ..options(20_000, 1500) };
    assert_eq!(digest(&file(&options)), 0x8273_a770_895f_0f2a);
}

#[test]
fn shares_are_as_asked() {
    let packets = packets(&options(60_000, 12_000));
    let flows = flows(&packets);
    let share = |of: &dyn Fn(&[&Packet]) -> bool| {
        flows.values().filter(|flow| of(flow)).count() as f64 / flows.len() as f64
    };
    let ipv6 = share(&|flow| flow[0].ipv6);
    assert!((0.24..0.26).contains(&ipv6), "{ipv6}");
    let one = share(&|flow| flow[0].tags == [0x8100]);
    assert!((0.14..0.16).contains(&one), "{one}");
    let two = share(&|flow| flow[0].tags == [0x88a8, 0x8100]);
    assert!((0.04..0.06).contains(&two), "{two}");
    assert!(flows.values().all(|flow| flow.iter().all(|packet| packet.tags == flow[0].tags)));
}

#[test]
fn sizes_have_a_heavy_tail() {
    let options = TrafficOptions { snap: 96, ..options(400_000, 30_000) };
    let packets = packets(&options);
    let mut sizes: Vec<usize> = flows(&packets).values().map(Vec::len).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let top: usize = sizes[..300].iter().sum();
    assert!(top > 400_000 * 3 / 10, "{top}");
    let single = sizes.iter().filter(|&&size| size == 1).count();
    assert!((2500..5000).contains(&single), "{single}");
}

#[test]
fn frames_have_three_humps_and_a_mean_near_600_bytes() {
    let options = TrafficOptions { snap: 96, ..options(400_000, 30_000) };
    let packets = packets(&options);
    let mean = packets.iter().map(|packet| packet.wire).sum::<usize>() / packets.len();
    assert!((540..660).contains(&mean), "{mean}");
    let share = |range: std::ops::Range<usize>| {
        packets.iter().filter(|packet| range.contains(&packet.wire)).count() as f64 / packets.len() as f64
    };
    let humps = [share(0..200), share(200..800), share(1200..1523)];
    assert!(humps.iter().all(|&hump| hump > 0.15), "{humps:?}");
    assert!(humps.iter().sum::<f64>() > 0.99, "{humps:?}");
}

#[test]
fn most_flows_are_answered() {
    let options = TrafficOptions { snap: 96, ..options(100_000, 10_000) };
    let packets = packets(&options);
    let flows = flows(&packets);
    let longer = flows.values().filter(|flow| flow.len() > 1);
    let answered = longer.clone().filter(|flow| flow.iter().any(|packet| packet.ends != flow[0].ends));
    let share = answered.count() as f64 / longer.count() as f64;
    assert!(share > 0.9, "{share}");
}

#[test]
fn gaps_are_short_but_for_a_few() {
    let options = TrafficOptions { snap: 96, ..options(200_000, 15_000) };
    let packets = packets(&options);
    let mut gaps: Vec<u64> = Vec::new();
    for flow in flows(&packets).values() {
        gaps.extend(flow.windows(2).map(|pair| pair[1].time - pair[0].time));
    }
    let share = |of: u64| gaps.iter().filter(|&&gap| gap >= of).count() as f64 / gaps.len() as f64;
    assert!(share(1_000_000_000) < 0.1, "{}", share(1_000_000_000));
    let long = share(30_000_000_000);
    assert!(0.0 < long && long < 0.002, "{long}");
}

#[test]
fn flows_begin_all_the_time() {
    let packets = packets(&TrafficOptions { snap: 96, ..options(50_000, 8000) });
    let start = packets[0].time;
    let mut tenths = [0; 10];
    for flow in flows(&packets).values() {
        tenths[((flow[0].time - start) / 6_000_000_001) as usize] += 1;
    }
    assert!(tenths.iter().all(|&begun| begun > 400), "{tenths:?}");
}

#[test]
fn tcp_connections_open_count_and_close() {
    let packets = packets(&options(50_000, 3000));
    let mut closed = 0;
    for flow in flows(&packets).values().filter(|flow| flow[0].protocol == 6) {
        let flags: Vec<u8> = flow.iter().map(|packet| packet.transport[13]).collect();
        assert_eq!(flags[0], 0x02, "a SYN opens");
        let two_way = flow.iter().any(|packet| packet.ends != flow[0].ends);
        if !two_way || flow.len() < 7 {
            continue;
        }
        closed += 1;
        assert_eq!((flags[1], flags[2], flags[flags.len() - 1]), (0x12, 0x10, 0x10));
        assert_eq!(flags.iter().filter(|&flags| flags & 0x01 != 0).count(), 2, "two FINs close");
        // What each side sends follows on what it sent, and acknowledges what it got.
        let mut next = [None::<u32>; 2];
        for packet in flow {
            let side = usize::from(packet.ends != flow[0].ends);
            let seq = u32::from_be_bytes(packet.transport[4..8].try_into().unwrap());
            let ack = u32::from_be_bytes(packet.transport[8..12].try_into().unwrap());
            assert_eq!(seq, next[side].unwrap_or(seq));
            assert!(packet.transport[13] & 0x10 == 0 || ack == next[1 - side].unwrap());
            let header = usize::from(packet.transport[12] >> 4) * 4;
            let occupied = packet.transport.len() - header + usize::from(packet.transport[13] & 3 != 0);
            next[side] = Some(seq.wrapping_add(occupied as u32));
            assert!(packet.transport[13] & 8 == 0 || packet.transport.len() > header, "PSH pushes data");
        }
    }
    assert!(closed > 200, "{closed}");
}

#[test]
fn pings_are_answered_in_turn() {
    let packets = packets(&options(50_000, 6000));
    let mut pairs = 0;
    for flow in flows(&packets).values().filter(|flow| matches!(flow[0].protocol, 1 | 58)) {
        let (request, reply) = if flow[0].ipv6 { (128, 129) } else { (8, 0) };
        for (turn, packet) in flow.iter().enumerate() {
            let expected = if turn % 2 == 0 { request } else { reply };
            assert_eq!((packet.transport[0], packet.transport[1]), (expected, 0));
            assert_eq!(packet.transport[4..6], flow[0].transport[4..6], "one identifier");
        }
        for pair in flow.chunks_exact(2) {
            assert_eq!(pair[0].transport[6..8], pair[1].transport[6..8], "one sequence number");
            pairs += 1;
        }
    }
    assert!(pairs > 300, "{pairs}");
}

#[test]
fn udp_has_its_length_and_dns_its_question() {
    let packets = packets(&options(30_000, 6000));
    let mut answers = 0;
    for packet in packets.iter().filter(|packet| packet.protocol == 17) {
        assert_eq!(usize::from(be16(&packet.transport[4..])), packet.transport.len());
        assert_ne!(be16(&packet.transport[6..]), 0, "a checksum is there");
        let header = if packet.ipv6 { 40 } else { 20 };
        assert_eq!(packet.transport.len(), packet.ip_len - header);
        if packet.ends[0].1 == 53 {
            assert_eq!(packet.transport[8 + 2] & 0x80, 0x80);
            answers += 1;
        }
    }
    assert!(answers > 300, "{answers}");
}

#[test]
fn wrong_options_are_refused() {
    let refuse = |options: TrafficOptions| Traffic::new(&options).err().unwrap();
    assert!(matches!(refuse(options(10, 0)), GenerateError::NoFlows));
    assert!(matches!(refuse(options(9, 10)), GenerateError::TooFewPackets { packets: 9, flows: 10 }));
    assert!(matches!(refuse(options(1 << 40, 10)), GenerateError::TooManyPackets { .. }));
    assert!(matches!(refuse(options(1 << 40, 1 << 30)), GenerateError::TooManyFlows { .. }));
    let share = TrafficOptions { ipv6_share: 101, ..options(10, 10) };
    assert!(matches!(refuse(share), GenerateError::BadShare { what: "ipv6_share", value: 101 }));
    let share = TrafficOptions { vlan_share: 101, ..options(10, 10) };
    assert!(matches!(refuse(share), GenerateError::BadShare { what: "vlan_share", .. }));
    let late = TrafficOptions { start: Duration::from_secs(u32::MAX.into()), ..options(10, 10) };
    assert!(matches!(refuse(late), GenerateError::TimeOutOfRange));
    let never = TrafficOptions { start: Duration::MAX, ..options(10, 10) };
    assert!(matches!(refuse(never), GenerateError::TimeOutOfRange));
}

#[test]
fn progress_is_reported() {
    let mut reports = Vec::new();
    write_pcap(&TrafficOptions { snap: 64, ..options(200_000, 100) }, io::sink(), |done| reports.push(done))
        .unwrap();
    assert_eq!(reports, [65_536, 131_072, 196_608, 200_000]);
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let error = write_pcap(&options(10, 5), Full, |_| {}).unwrap_err();
    assert!(matches!(error, GenerateError::Io(error) if error.kind() == io::ErrorKind::StorageFull));
}
