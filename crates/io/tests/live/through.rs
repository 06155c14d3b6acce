//! What a forwarder between two ports must carry.

use packetloom_io::port::{Offload, Outgoing, complete_checksum, restart_partial};

use crate::ends::{echo, ping, transfer};
use crate::forwarder::{Action, Forwarder, Hook, options};
use crate::frames::{self, Monitor};
use crate::net::{Net, SERVER};

/// What is sent over a connection in each direction.
const TRANSFER: usize = 200 << 20;
/// The same where more than once in a test.
const SHORT_TRANSFER: usize = 20 << 20;
/// The longest frames of local senders are longer than this.
const GIANT: usize = 60_000;

#[test]
fn pings_and_datagrams_pass() {
    let Some(net) = Net::new() else { return };
    let forwarder = Forwarder::start(&net);
    for address in SERVER {
        echo(&net, address, &[0, 1, 2, 17, 100, 1_000, 1_452]).expect("an answer");
        // In fragments.
        echo(&net, address, &[1_473, 4_000, 60_000]).expect("an answer");
        ping(&net, address, 10).expect("pinged");
    }
    let seen = forwarder.stop();
    assert!(seen.partial >= 20, "local senders leave checksums partial: {seen:?}");
    assert_eq!(seen.given_up, 0);
    for statistics in seen.statistics {
        assert_eq!(statistics.arrived, statistics.received, "{statistics:?}");
    }
}

#[test]
fn connections_pass_both_ways_with_giants_whole() {
    let Some(net) = Net::new() else { return };
    let forwarder = Forwarder::start(&net);
    for address in SERVER {
        let [there, back] = transfer(&net, address, TRANSFER);
        eprintln!("TCP to {address}: {there:.1} Gb/s there, {back:.1} Gb/s back");
    }
    let seen = forwarder.stop();
    assert!(seen.giants > 1_000 && seen.longest > GIANT, "{seen:?}");
    for (statistics, sent) in seen.statistics.into_iter().zip(seen.sent) {
        let skipped = statistics.oversized + statistics.unsound + sent.refused + sent.too_long;
        assert_eq!(skipped, 0, "{statistics:?}");
        assert_eq!(statistics.arrived, statistics.received + statistics.dropped, "{statistics:?}");
    }
}

/// A frame whose checksum is finished in software passes as well, giants too: the kernel cuts TCP by itself.
#[test]
fn frames_with_finished_checksums_pass() {
    let Some(net) = Net::new() else { return };
    let finish: Hook = Box::new(|_, bytes, mut offload| {
        let mut copy = bytes.to_vec();
        complete_checksum(&mut copy, &mut offload).expect("in the frame");
        assert!(!offload.needs_checksum());
        assert_ne!(frames::is_checksum_right(&copy), Some(false), "{offload:?}");
        Action::Replace(copy, offload)
    });
    let forwarder = Forwarder::with(&net, [options(0), options(1)], false, finish);
    // The receivers look at the checksums.
    net.product.exec("ethtool -K pa tx off").expect("ethtool");
    net.product.exec("ethtool -K pb tx off").expect("ethtool");
    for address in SERVER {
        echo(&net, address, &[0, 1, 100, 1_452]).expect("an answer");
        transfer(&net, address, SHORT_TRANSFER);
    }
    let seen = forwarder.stop();
    assert!(seen.partial > 0 && seen.giants > 0, "{seen:?}");
}

/// The client talks to an address that is the server's only behind a translation, done on partial checksums. The product's interfaces
/// finish them in software, from what was put there, and the receivers verify.
#[test]
fn rewritten_frames_pass_with_restarted_checksums() {
    let Some(net) = Net::new() else { return };
    for (place, address) in ["10.9.0.77", "fd09::77"].into_iter().enumerate() {
        let (real, translated) = (frames::address(SERVER[place]), frames::address(address));
        let mac = net.server.mac("s0");
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        net.client.ip(&format!("neigh add {address} lladdr {mac} dev c0")).expect("a neighbour");
        let translate: Hook = Box::new(move |from, bytes, mut offload| {
            let mut copy = bytes.to_vec();
            let is_translated = match from {
                0 => frames::replace_destination(&mut copy, &translated, &real),
                _ => frames::replace_source(&mut copy, &real, &translated),
            };
            if !is_translated {
                return Action::Pass;
            }
            if !offload.needs_checksum() {
                // Resets and the like, which are finished: they may be made partial as well.
                offload = frames::partial_of(&copy);
            }
            assert!(restart_partial(&mut copy, &mut offload));
            Action::Replace(copy, offload)
        });
        let forwarder = Forwarder::with(&net, [options(0), options(1)], false, translate);
        for features in ["on", "off"] {
            net.product.exec(&format!("ethtool -K pa tx {features}")).expect("ethtool");
            net.product.exec(&format!("ethtool -K pb tx {features}")).expect("ethtool");
            echo(&net, address, &[0, 1, 100, 1_452]).expect("an answer");
            transfer(&net, address, SHORT_TRANSFER);
        }
        let seen = forwarder.stop();
        assert!(seen.partial > 0 && seen.giants > 0, "{seen:?}");
    }
}

/// An interface that does not cut giants itself has the kernel do it, which it does not past the queueing discipline.
#[test]
fn giants_pass_an_interface_that_does_not_cut_them() {
    let Some(net) = Net::new() else { return };
    net.product.ip("link set pa gso_max_size 4000").expect("set");
    net.product.ip("link set pb gso_max_size 4000").expect("set");
    let forwarder = Forwarder::start(&net);
    for address in SERVER {
        transfer(&net, address, SHORT_TRANSFER);
    }
    let seen = forwarder.stop();
    assert!(seen.giants > 0, "{seen:?}");
    let stops = seen.sent.map(|sent| sent.stops);
    assert_eq!((stops, seen.given_up), ([0, 0], 0), "one way is found at once");
}

/// UDP giants (`UDP_SEGMENT`) pass as well, with the partial checksum that the kernel insists on.
#[test]
fn datagrams_that_a_sender_left_uncut_pass() {
    let Some(net) = Net::new() else { return };
    let forwarder = Forwarder::start(&net);
    let mut sender = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.server.run(|| Monitor::open("s0"));
    // Ten datagrams of 1,000 bytes in one frame.
    let payload: Vec<u8> = (0..10_000u32).map(|at| (at / 1_000) as u8).collect();
    let mut frame = frames::udp(&net, &payload);
    let mut offload = frames::udp_giant(1_000);
    assert!(restart_partial(&mut frame, &mut offload));
    sender.send(&[Outgoing { bytes: &frame, offload }]);
    let received = receiver.collect(frames::is_ours, 1);
    assert_eq!(received[0].bytes, frame);
    let came = received[0].offload;
    assert!(came.is_giant() && came.needs_checksum() && came.segment_size() == 1_000, "{came:?}");
    let seen = forwarder.stop();
    assert_eq!((seen.giants, seen.longest), (1, frame.len()));
}

/// SCTP's checksum is a CRC, which the header in front of a frame cannot ask for: it is finished when the frame is received.
#[test]
fn sctp_is_finished_when_it_comes() {
    let Some(net) = Net::new() else { return };
    let forwarder = Forwarder::start(&net);
    let mut sender = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.server.run(|| Monitor::open("s0"));
    let mut frame = frames::udp(&net, &[7; 50]);
    frame[14 + 9] = 132;
    let partial = Offload::partial(34, 8);
    sender.send(&[Outgoing { bytes: &frame, offload: partial }]);
    let received = receiver.collect(|bytes| bytes.get(23) == Some(&132), 1);
    assert!(!received[0].offload.needs_checksum(), "{:?}", received[0].offload);
    complete_checksum(&mut frame, &mut partial.clone()).expect("in the frame");
    assert_eq!(received[0].bytes, frame);
    assert_eq!(forwarder.stop().partial, 0);
}
