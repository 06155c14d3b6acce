//! Frames sent and received by hand at the client and at the server, whose kernels say nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use packetloom_io::port::{Guard, Mode, Options, Outgoing, Port, ReceiveBuffer, Sender, wait};
use packetloom_packet::{Batch, Offload};
use packetloom_testing::net::{Namespace, Net};

use crate::product::Product;
use crate::support::{self, frames, packetloom, succeed};

/// Frames of one call.
const GROUP: usize = 64;
/// When it was looked so often in vain, each time after a wait, nothing more is expected. A halt of the machine is one look.
const LOOKS: u32 = 8;
/// Whoever waits longer than this for frames that were sent has lost some.
const SENT: Duration = Duration::from_secs(60);
/// Frames of one direction that may be under way: far fewer than a ring holds.
const WINDOW: usize = 128;
/// Whoever has received nothing for so long, with frames under way, has lost some.
const LOST: Duration = Duration::from_secs(60);

/// One end of the line: an interface whose frames the kernel drops after they were received here.
pub(crate) struct End {
    sender: Sender,
    port: Port,
    buffer: ReceiveBuffer,
    batch: Batch,
    _guard: Guard,
}

impl End {
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Self {
        namespace.set(&format!("ipv6/conf/{interface}/disable_ipv6"), "1");
        namespace.ip(&format!("link set {interface} mtu 9000")).expect("set");
        let (port, guard) = namespace.run(|| {
            let guard = Guard::install(interface).expect("a guard");
            (Port::open(&Options::new(interface, Mode::Monitor)).expect("a port"), guard)
        });
        Self {
            sender: port.sender(),
            port,
            buffer: ReceiveBuffer::new(256),
            batch: Batch::new(256),
            _guard: guard,
        }
    }

    /// Sends frames at once; all of them have to be taken.
    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) {
        for group in frames.chunks(GROUP) {
            let group: Vec<_> =
                group.iter().map(|bytes| Outgoing { bytes, offload: Offload::NONE }).collect();
            let sent = self.sender.send(&group).expect("sent");
            assert_eq!((sent.taken, sent.stopped), (group.len(), None));
        }
    }

    /// Sends frames at once, whatever becomes of them.
    pub(crate) fn flood(&mut self, frames: &[Vec<u8>]) {
        for group in frames.chunks(GROUP) {
            let group: Vec<_> =
                group.iter().map(|bytes| Outgoing { bytes, offload: Offload::NONE }).collect();
            self.sender.send(&group).expect("sent");
        }
    }

    /// Takes what has come, as far as one batch holds it; whether there was something.
    pub(crate) fn take(&mut self, came: &mut Vec<Vec<u8>>) -> bool {
        self.port.receive(&mut self.buffer);
        self.buffer.deliver(&mut self.batch);
        came.extend((0..self.batch.len()).map(|index| self.batch.bytes(index).to_vec()));
        !self.batch.is_empty()
    }

    /// Takes what comes until nothing does for a while.
    pub(crate) fn take_all(&mut self, came: &mut Vec<Vec<u8>>) {
        let mut in_vain = 0;
        while in_vain < LOOKS {
            wait(&[&self.port], &[], Some(Duration::from_millis(20))).expect("waited");
            in_vain = if self.take(came) { 0 } else { in_vain + 1 };
        }
    }
}

/// Both ends.
pub(crate) struct Link {
    pub(crate) client: End,
    pub(crate) server: End,
}

impl Link {
    /// All interfaces have an MTU of 9,000.
    pub(crate) fn new(net: &Net) -> Self {
        for port in ["pa", "pb"] {
            net.product.ip(&format!("link set {port} mtu 9000")).expect("set");
        }
        Self { client: End::open(&net.client, "c0"), server: End::open(&net.server, "s0") }
    }

    /// Sends frames from the client; those that come out at the server. However slow the product is, it has room for those under way.
    pub(crate) fn send(&mut self, product: &mut Product, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.send_of(product, frames, frames.len())
    }

    /// The same where of those that pass only so many can come out.
    pub(crate) fn send_of(&mut self, product: &mut Product, frames: &[Vec<u8>], come: usize) -> Vec<Vec<u8>> {
        let (mut received, passed_before) = product.progress();
        let (mut came, mut passed) = (Vec::new(), passed_before);
        for window in frames.chunks(WINDOW) {
            for frame in window {
                self.client.send(std::slice::from_ref(frame));
                self.server.take(&mut came);
            }
            received += window.len() as u64;
            passed = product.wait_until_received(received);
            while self.server.take(&mut came) {}
        }
        // What was sent comes at once, but for a busy machine; what is not sent, or twice, is seen as well.
        let begin = Instant::now();
        while came.len() < come.min((passed - passed_before) as usize) && begin.elapsed() < SENT {
            wait(&[&self.server.port], &[], Some(Duration::from_millis(20))).expect("waited");
            self.server.take(&mut came);
        }
        self.server.take_all(&mut came);
        came
    }

    /// Sends frames from both ends at the same time, all of which have to come, with few under way: what came at the server, and at the
    /// client.
    pub(crate) fn exchange(&mut self, there: &[Vec<u8>], back: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
        let mut came = [Vec::new(), Vec::new()];
        let (mut sent, mut last) = ([0, 0], Instant::now());
        while came[0].len() < there.len() || came[1].len() < back.len() {
            let ends = [(&mut self.client, there), (&mut self.server, back)];
            for ((end, frames), (sent, came)) in ends.into_iter().zip(sent.iter_mut().zip(&came)) {
                let until = frames.len().min(came.len() + WINDOW).min(*sent + GROUP);
                if *sent < until {
                    end.send(&frames[*sent..until]);
                    *sent = until;
                }
            }
            if self.server.take(&mut came[0]) | self.client.take(&mut came[1]) {
                last = Instant::now();
            } else {
                let (ports, pause) = ([&self.server.port, &self.client.port], Duration::from_millis(1));
                wait(&ports, &[], Some(pause)).expect("waited");
            }
            let counts = came.each_ref().map(Vec::len);
            assert!(last.elapsed() < LOST, "{counts:?} of {sent:?} frames came");
        }
        // None comes twice.
        self.server.take_all(&mut came[0]);
        self.client.take_all(&mut came[1]);
        came
    }
}

/// What passes of a capture, and the counters of verdicts.
pub(crate) fn from_capture(folder: &Path, arguments: &[&str]) -> (Vec<Vec<u8>>, serde_json::Value) {
    let mut command = packetloom();
    command.current_dir(folder).arg("run").arg("chain.toml").args(arguments);
    succeed(command.args(["-w", "passed.pcap", "--summary", "summary.json"]));
    let passed = frames(&fs::read(folder.join("passed.pcap")).expect("a capture"));
    (passed, support::json(&folder.join("summary.json"))["dropped"].clone())
}
