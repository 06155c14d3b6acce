//! The kernel is kept from handling what a port forwards: every packet arrives once, and what was dropped does not arrive.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use packetloom_io::Error;
use packetloom_io::port::{Guard, Port};

use crate::forwarder::{Action, Forwarder, Hook, options};
use crate::frames::{self, Monitor};
use crate::net::Net;

const COUNT: u32 = 2_000;
/// Every so many frames are dropped by the forwarder.
const DROPPED: u32 = 10;
const QUIET: Duration = Duration::from_millis(300);

/// The client and the server in two subnets, between which the product's kernel forwards as well.
struct Routed {
    net: Net,
    client: Monitor,
    server: Monitor,
}

impl Routed {
    fn new() -> Option<Self> {
        let net = Net::new()?;
        net.product.set("ipv4/ip_forward", "1");
        net.product.ip("addr add 10.9.1.254/24 dev pa").expect("an address");
        net.product.ip("addr add 10.9.2.254/24 dev pb").expect("an address");
        let mac = net.server.mac("s0").map(|byte| format!("{byte:02x}")).join(":");
        net.product.ip(&format!("neigh add 10.9.2.1 lladdr {mac} dev pb")).expect("a neighbour");
        let client = net.client.run(|| Monitor::open("c0"));
        let server = net.server.run(|| Monitor::open("s0"));
        Some(Self { net, client, server })
    }

    /// Sends numbered packets that the product's kernel would forward, a few at a time, and counts how often each number arrives.
    fn flood(&mut self) -> Vec<u32> {
        let (client, product) = (self.net.client.mac("c0"), self.net.product.mac("pa"));
        let mut counts = vec![0; COUNT as usize];
        let shape = frames::udp_between(client, product, "10.9.1.1", "10.9.2.1", &[0; 30]);
        let mut count = |frames: Vec<frames::Frame>| {
            for frame in frames {
                if let Some(number) = frames::sequence(&frame.bytes) {
                    counts[number as usize] += 1;
                }
            }
        };
        for number in 0..COUNT {
            let mut frame = shape.clone();
            frames::set_sequence(&mut frame, number);
            self.client.send_numbered(&[frame]);
            if number % 100 == 99 {
                count(self.server.take());
            }
        }
        count(self.server.rest(frames::is_ours, QUIET));
        counts
    }
}

/// Passes everything but some numbers.
fn dropping() -> Hook {
    Box::new(|_, bytes, _| match frames::sequence(bytes) {
        Some(number) if number.is_multiple_of(DROPPED) => Action::Drop,
        _ => Action::Pass,
    })
}

#[test]
fn packets_arrive_once_and_dropped_ones_do_not() {
    let Some(mut routed) = Routed::new() else { return };
    // Without a guard, what the forwarder drops arrives, and the rest arrives twice: the test would see it.
    let unguarded = [0, 1].map(|place| {
        let mut options = options(place);
        options.guard = false;
        options
    });
    let forwarder = Forwarder::with(&routed.net, unguarded, false, dropping());
    for (number, count) in routed.flood().into_iter().enumerate() {
        assert_eq!(
            count,
            if (number as u32).is_multiple_of(DROPPED) { 1 } else { 2 },
            "packet {number} without a guard"
        );
    }
    drop(forwarder);

    let forwarder = Forwarder::with(&routed.net, [options(0), options(1)], false, dropping());
    for (number, count) in routed.flood().into_iter().enumerate() {
        assert_eq!(
            count,
            u32::from(!(number as u32).is_multiple_of(DROPPED)),
            "packet {number} with a guard"
        );
    }
    let seen = forwarder.stop();
    assert!(seen.statistics[0].received >= u64::from(COUNT), "the guard hides nothing from the port");

    // With the forwarder goes the guard: the kernel forwards again.
    for (number, count) in routed.flood().into_iter().enumerate() {
        assert_eq!(count, 1, "packet {number} by the kernel");
    }
}

/// The table belongs to the process: it goes with it, however it ends. Here it is the socket that is closed.
#[test]
fn the_kernel_forwards_again_when_the_guard_goes() {
    let Some(mut routed) = Routed::new() else { return };
    let guard = routed.net.product.run(|| Guard::install("pa").expect("a guard"));
    assert_eq!(guard.interface(), "pa");
    assert!(routed.flood().into_iter().all(|count| count == 0), "nothing is forwarded");
    let error = routed.net.product.run(|| Guard::install("pa").expect_err("one is enough"));
    assert!(matches!(error, Error::Guard { .. }), "{error:?}");
    assert!(error.to_string().contains("packetloom-pa") && error.to_string().contains("another"), "{error}");
    drop(guard);
    assert!(routed.flood().into_iter().all(|count| count == 1), "everything is forwarded");
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The name of a variable that makes [`child_that_guards`] guard.
const CHILD: &str = "PACKETLOOM_LIVE_GUARD";

/// Not a test by itself: what the test below runs in a process of its own.
#[test]
fn child_that_guards() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let _guard = Guard::install("pa").expect("a guard");
    println!("guarded");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn the_kernel_forwards_again_when_the_process_is_killed() {
    let Some(mut routed) = Routed::new() else { return };
    let child = Command::new("ip")
        .args(["netns", "exec", routed.net.product.name()])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "guard::child_that_guards", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Killed(child.expect("started"));
    let lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("guarded")), "the child guards");
    assert!(routed.flood().into_iter().all(|count| count == 0), "nothing is forwarded");
    // ip has become the child: this is SIGKILL for it.
    drop(child);
    assert!(routed.flood().into_iter().all(|count| count == 1), "everything is forwarded");
}

#[test]
fn a_renewed_guard_guards_an_interface_that_was_made_again() {
    let Some(mut routed) = Routed::new() else { return };
    let mut guard = routed.net.product.run(|| Guard::install("pa").expect("a guard"));
    guard.renew().expect("renewed while it is there");
    routed.net.product.ip("link del pa").expect("removed");
    routed.net.connect_a().expect("made again");
    routed.net.product.ip("addr add 10.9.1.254/24 dev pa").expect("an address");
    guard.renew().expect("renewed");
    routed.client = routed.net.client.run(|| Monitor::open("c0"));
    assert!(routed.flood().into_iter().all(|count| count == 0), "nothing is forwarded");
    drop(guard);
    assert!(routed.flood().into_iter().all(|count| count == 1), "everything is forwarded");
}

#[test]
fn a_missing_interface_cannot_be_guarded() {
    let Some(net) = Net::new() else { return };
    let error = net.product.run(|| Guard::install("nowhere").expect_err("no such interface"));
    assert!(matches!(error, Error::NoInterface { .. }) && error.to_string().contains("nowhere"), "{error}");
    // Nothing is left behind of what was refused.
    net.product.ip("link add nowhere type veth peer name there").expect("made");
    net.product.run(|| Guard::install("nowhere").expect("a guard"));
    let port = net.product.run(|| Port::open(&options(0)).expect("a port"));
    assert_eq!((port.interface(), port.number(), port.mtu()), ("pa", 0, 1_500));
}
