//! Frames that cannot go on: each is in one counter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use packetloom_testing::net::Net;
use rustix::process::Signal;

use crate::link::Link;
use crate::product::{Product, count, interfaces};
use crate::support::packets::packet;

const CHAIN: &str = "[[chain]]\nnf = \"counter\"\n";

pub(crate) fn numbered(count: u32, payload: usize) -> Vec<Vec<u8>> {
    let frame = packet(&format!("0 udp 10.0.0.1:1000 > 10.0.0.2:80 payload {payload}")).bytes;
    let at = frame.len() - 4;
    let frames = (0..count).map(|number| [&frame[..at], &number.to_be_bytes()].concat());
    frames.collect()
}

/// While a run does not look, its ring fills; what comes then is missed, and what lies in the ring is not.
#[test]
fn frames_that_a_full_ring_has_no_room_for_are_counted() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let frames = numbered(40_000, 18);
    for workers in [1, 2] {
        let product = Product::inline(&net.product, CHAIN, &[], &format!("--workers {workers}"));
        product.signal(Signal::STOP);
        product.wait_until_stopped();
        link.client.send(&frames);
        product.signal(Signal::CONT);
        // What lies in the ring is finished first, and the server's ring is as large.
        let done = product.stop();
        let mut came = Vec::new();
        link.server.take_all(&mut came);
        let entry = interfaces(&done.summary).next().expect("two");
        let [received, missed] = ["/received", "/missed"].map(|key| count(entry, key));
        assert_eq!(received + missed, 40_000, "{entry:#}");
        assert_eq!(count(entry, "/unread"), 0);
        assert!(received > 1_000 && missed > 1_000, "{entry:#}");
        // The first ones, in order.
        assert!(came == frames[..received as usize], "{} frames of {received}", came.len());
    }
}

/// Each reason for which a frame does not leave has a counter, and the run goes on.
#[test]
fn frames_that_cannot_leave_are_counted_by_reason() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let mut product = Product::inline(&net.product, CHAIN, &[], "");
    let none = Vec::<Vec<u8>>::new();
    assert_eq!(link.send(&mut product, &numbered(5, 100)), numbered(5, 100));
    // The other end is down: the system says that there is no room.
    net.server.ip("link set s0 down").expect("down");
    product.wait_for("pb: no carrier");
    assert_eq!(link.send_of(&mut product, &numbered(70, 100), 0), none);
    net.server.ip("link set s0 up").expect("up");
    product.wait_for("pb: the link is up");
    assert_eq!(link.send(&mut product, &numbered(5, 100)), numbered(5, 100), "it goes on");
    product.forget();
    net.product.ip("link set pb down").expect("down");
    product.wait_for("pb: switched off");
    assert_eq!(link.send_of(&mut product, &numbered(80, 100), 0), none);
    net.product.ip("link set pb up").expect("up");
    product.wait_for("pb: the link is up");
    assert_eq!(link.send(&mut product, &numbered(5, 100)), numbered(5, 100), "it goes on");
    // What is too long does not keep what comes behind it.
    net.product.ip("link set pb mtu 1500").expect("set");
    let [short, long] = [100, 3_000].map(|payload| numbered(9, payload));
    let mixed: Vec<_> = short.iter().zip(&long).flat_map(|(short, long)| [long, short]).cloned().collect();
    assert_eq!(link.send_of(&mut product, &mixed, short.len()), short);
    net.product.ip("link del pb").expect("removed");
    product.wait_for("pb: removed");
    assert_eq!(link.send_of(&mut product, &numbered(90, 100), 0), none);
    let done = product.stop();
    let exit = interfaces(&done.summary).nth(1).expect("two");
    for (reason, expected) in
        [("no_room", 70), ("down", 80), ("gone", 90), ("too_long", 9), ("refused", 0), ("failed", 0)]
    {
        assert_eq!(count(exit, &format!("/not_sent/{reason}")), expected, "{reason}: {exit:#}");
    }
    assert_eq!(count(exit, "/sent"), 5 + 5 + 5 + 9, "{exit:#}");
}

/// A run ends, and reads its chain again, while more comes than it can take.
#[test]
fn a_run_ends_in_a_flood() {
    let Some(net) = Net::alone() else { return };
    let mut link = Link::new(&net);
    let frames = numbered(1_024, 18);
    for (workers, signal) in [(1, Signal::TERM), (3, Signal::INT)] {
        let mut product = Product::inline(&net.product, CHAIN, &[], &format!("--workers {workers}"));
        let is_over = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            for end in [&mut link.client, &mut link.server] {
                let (frames, is_over) = (&frames, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        end.flood(frames);
                    }
                });
            }
            // Also where something below fails.
            let _over = Over(&is_over);
            for _ in 0..3 {
                product.forget();
                product.signal(Signal::HUP);
                product.wait_for("read again");
            }
            product.stop_by(signal)
        });
        assert_eq!(count(&done.summary, "/reloads/done"), 3, "{:#}", done.summary);
        for interface in interfaces(&done.summary) {
            assert!(count(interface, "/received") > 0 && count(interface, "/sent") > 0, "{interface:#}");
        }
    }
}

/// Says that something is over when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
