//! Links that go down, come up, are removed and added again, while a forwarder runs.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use packetloom_io::port::{
    Link, LinkEvent, LinkMonitor, Mode, Offload, Options, Outgoing, Port, PortState, Sender, Stop, wait,
};

use crate::ends::{SILENCE, echo_within};
use crate::forwarder::{Forwarder, options};
use crate::frames::{self, Monitor};
use crate::net::{Net, SERVER};

/// Whoever waits longer than this waits in vain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until an interface has no carrier, as far as `ip` knows.
pub(crate) fn loses_carrier(net: &Net, interface: &str) {
    let begin = Instant::now();
    while !["LOWERLAYERDOWN", "state DOWN"].iter().any(|state| net.product.show(interface).contains(state)) {
        assert!(begin.elapsed() < PATIENCE, "{}", net.product.show(interface));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Tries until an answer comes.
fn comes_back(net: &Net) {
    let begin = Instant::now();
    while echo_within(net, SERVER[0], &[100], SILENCE).is_err() {
        assert!(begin.elapsed() < PATIENCE, "no answer");
    }
}

#[test]
fn a_forwarder_goes_on_after_its_port_was_down() {
    let Some(net) = Net::new() else { return };
    let forwarder = Forwarder::start(&net);
    comes_back(&net);
    net.product.ip("link set pa down").expect("down");
    assert_eq!(echo_within(&net, SERVER[0], &[100], SILENCE), Err(100));
    net.product.ip("link set pa up").expect("up");
    comes_back(&net);
    // The peer of the other one.
    net.server.ip("link set s0 down").expect("down");
    loses_carrier(&net, "pb");
    std::thread::sleep(Duration::from_millis(100));
    net.server.ip("link set s0 up").expect("up");
    comes_back(&net);
    // Carrier may come a little later than a link is up.
    for (states, lowest) in forwarder.stop().states.iter().zip([PortState::Down, PortState::NoCarrier]) {
        assert_eq!((states.first(), states.last()), (Some(&lowest), Some(&PortState::Up)), "{states:?}");
    }
}

#[test]
fn a_forwarder_goes_on_with_an_interface_that_was_made_again() {
    let Some(net) = Net::new() else { return };
    let forwarder = Forwarder::start(&net);
    comes_back(&net);
    for _ in 0..3 {
        net.product.ip("link del pa").expect("removed");
        std::thread::sleep(Duration::from_millis(50));
        net.connect_a().expect("made again");
        comes_back(&net);
    }
    // It is guarded as before: the kernel does not see what comes.
    assert_eq!(forwarder.stop().states[0].iter().filter(|&&state| state == PortState::Gone).count(), 3);
}

/// Events may be told late: about an interface that is there no more, for one.
#[test]
fn late_events_are_no_errors() {
    let Some(net) = Net::new() else { return };
    let mut port = net.product.run(|| Port::open(&options(0)).expect("a port"));
    let mut monitor = net.product.run(|| LinkMonitor::open().expect("a monitor"));
    for _ in 0..3 {
        net.product.ip("link del pa").expect("removed");
        net.connect_a().expect("made again");
    }
    let states = net.product.run(|| {
        let (mut states, begin) = (Vec::new(), Instant::now());
        while states.last() != Some(&PortState::Up) {
            while let Some(event) = monitor.next_event().expect("an event") {
                states.extend(port.update(&event).expect("told"));
            }
            assert!(begin.elapsed() < PATIENCE, "{states:?}");
        }
        states
    });
    assert!(states.contains(&PortState::Gone), "{states:?}");
    let frame = frames::udp(&net, &[1; 20]);
    let sent = port.sender().send(&[Outgoing { bytes: &frame, offload: Offload::NONE }]).expect("sent");
    assert_eq!(sent.taken, 1);
}

/// Sends out of the product's first port while its link goes down, comes up, is removed and made again; what sent. Six frames leave.
pub(crate) fn send_through_changes(net: &Net, port: &mut Port) -> Sender {
    let mut sender = port.sender();
    let mut monitor = net.product.run(|| LinkMonitor::open().expect("a monitor"));
    let frame = frames::udp(net, &[1; 20]);
    let outgoing = [Outgoing { bytes: &frame, offload: Offload::NONE }; 3];
    let mut becomes = |expected| {
        let begin = Instant::now();
        while port.state() != expected {
            wait(&[port], &[monitor.as_fd()], Some(Duration::from_millis(20))).expect("waited");
            while let Some(event) = monitor.next_event().expect("an event") {
                port.update(&event).expect("told");
            }
            assert!(begin.elapsed() < PATIENCE, "{:?}, not {expected:?}", port.state());
        }
        let sent = sender.send(&outgoing).expect("sent");
        (sent.taken, sent.stopped)
    };
    net.client.ip("link set c0 down").expect("down");
    assert_eq!(becomes(PortState::NoCarrier), (0, Some(Stop::Busy)));
    net.product.ip("link set pa down").expect("down");
    assert_eq!(becomes(PortState::Down), (0, Some(Stop::Down)));
    net.product.ip("link set pa up").expect("up");
    net.client.ip("link set c0 up").expect("up");
    assert_eq!(becomes(PortState::Up), (3, None));
    net.product.ip("link del pa").expect("removed");
    assert_eq!(becomes(PortState::Gone), (0, Some(Stop::Gone)));
    net.connect_a().expect("made again");
    assert_eq!(net.product.run(|| becomes(PortState::Up)), (3, None));
    sender
}

#[test]
fn sending_says_why_it_stops() {
    let Some(net) = Net::new() else { return };
    let mut port = net.product.run(|| Port::open(&Options::new("pa", Mode::Monitor)).expect("a port"));
    let statistics = send_through_changes(&net, &mut port).statistics();
    assert_eq!((statistics.sent, statistics.stops), (6, 3));
}

/// The error of a link that goes down is told once; after that, waiting is waiting again.
#[test]
fn waiting_for_a_port_that_is_down_does_not_spin() {
    let Some(net) = Net::new() else { return };
    let receiver = net.product.run(|| Monitor::open("pa"));
    net.product.ip("link set pa down").expect("down");
    let mut times = Vec::new();
    for _ in 0..4 {
        let begin = Instant::now();
        wait(&[&receiver.port], &[], Some(Duration::from_millis(50))).expect("waited");
        times.push(begin.elapsed());
    }
    let long = times.iter().filter(|time| **time >= Duration::from_millis(50)).count();
    assert!(long >= 2, "{times:?}");
    // A port can be opened while its link is down, and receives once it is up.
    let mut late = net.product.run(|| Monitor::open("pa"));
    assert_eq!(late.port.state(), PortState::Down);
    net.product.ip("link set pa up").expect("up");
    let mut client = net.client.run(|| Monitor::open("c0"));
    client.send_numbered(&[frames::udp(&net, &[1; 20])]);
    late.collect(frames::is_ours, 1);
}

/// Who does not listen for long is told that events were lost, also after waiting, and asks for what is now.
#[test]
fn lost_events_are_told() {
    let Some(net) = Net::new() else { return };
    let mut port = net.product.run(|| Port::open(&Options::new("pa", Mode::Monitor)).expect("a port"));
    let mut monitor = net.product.run(|| LinkMonitor::open().expect("a monitor"));
    let flood = || {
        for mtu in 1_300..1_700 {
            net.product.ip(&format!("link set pb mtu {mtu}")).expect("set");
        }
    };
    let become_after_loss = |monitor: &mut LinkMonitor, port: &mut Port, expected| {
        let (mut is_lost, begin) = (false, Instant::now());
        while !is_lost || port.state() != expected {
            wait(&[port], &[monitor.as_fd()], Some(Duration::from_millis(100))).expect("waited");
            while let Some(event) = monitor.next_event().expect("an event") {
                is_lost |= event == LinkEvent::Lost;
                net.product.run(|| port.update(&event)).expect("told");
            }
            assert!(begin.elapsed() < PATIENCE, "{is_lost} {:?}", port.state());
        }
    };
    flood();
    net.product.ip("link set pa down").expect("down");
    become_after_loss(&mut monitor, &mut port, PortState::Down);
    // Another interface of the name, and one that is gone.
    flood();
    net.product.ip("link del pa").expect("removed");
    net.connect_a().expect("made again");
    let before = port.index();
    become_after_loss(&mut monitor, &mut port, PortState::Up);
    assert_ne!(port.index(), before);
    flood();
    net.product.ip("link del pa").expect("removed");
    become_after_loss(&mut monitor, &mut port, PortState::Gone);
}

#[test]
fn events_name_links_and_what_became_of_them() {
    let Some(net) = Net::new() else { return };
    let mut monitor = net.product.run(|| LinkMonitor::open().expect("a monitor"));
    assert_eq!(monitor.next_event().expect("none yet"), None);
    net.product.ip("link add name x0 mtu 1400 type veth peer name x1").expect("made");
    net.product.ip("link set x0 name x2").expect("renamed");
    net.product.ip("link set x2 up").expect("up");
    net.product.ip("link set x1 up").expect("up");
    let link = net.product.run(|| Link::by_name("x2").expect("there"));
    assert_eq!((link.mtu, link.hardware), (1_400, 1));
    net.product.ip("link del x2").expect("removed");
    let mut events = Vec::new();
    let begin = Instant::now();
    while !matches!(events.last(), Some(LinkEvent::Removed(gone)) if *gone == Link { is_up: gone.is_up, has_carrier: gone.has_carrier, ..link.clone() })
    {
        match monitor.next_event().expect("an event") {
            Some(event) => events.push(event),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(begin.elapsed() < PATIENCE, "{events:?}");
    }
    let of_x: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            LinkEvent::Changed(changed) if changed.index == link.index => Some(changed.clone()),
            _ => None,
        })
        .collect();
    assert!(of_x.iter().any(|link| link.name == "x0" && !link.is_up));
    assert!(of_x.iter().any(|link| link.name == "x2" && link.is_up && link.has_carrier));
}
