//! Any bytes as a network profile: no panic, and what is read gives as many packets as it says, in order of their times.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_generate::profile::{Profile, ProfileOptions, ProfileTraffic};

/// Packets that are made of a profile at most.
const PACKETS: u64 = 1_000;

// The lines behind those of the names, or all of them.
fuzz_target!(|input: &[u8]| {
    let [has_names, lines @ ..] = input else { return };
    let names = "START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,PACKETS_REV,BYTES_REV,SRC_IP,DST_IP\n";
    let text = [if has_names % 2 == 0 { names.as_bytes() } else { &[] }, lines].concat();
    let Ok(profile) = Profile::read(&text[..], "p") else { return };
    let packets = profile.packets();
    assert!(profile.flows() <= packets);
    let Ok(mut traffic) = ProfileTraffic::new(profile, &ProfileOptions::default()) else { return };
    let mut last = 0;
    for _ in 0..packets.min(PACKETS) {
        let frame = traffic.next_frame().expect("another packet");
        assert!(frame.timestamp_ns >= last && frame.bytes.len() == frame.wire_len as usize);
        last = frame.timestamp_ns;
    }
    assert!(packets > PACKETS || traffic.next_frame().is_none());
});
