//! A forwarder between two ports, as small as one can be: what comes by one leaves by the other.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packetloom_io::port::{
    LinkMonitor, Mode, Offload, Options, Outgoing, Port, PortState, ReceiveBuffer, SendStatistics, Sender,
    Statistics, wait,
};
use packetloom_packet::Batch;

use crate::net::Net;

/// How long nothing may come before nothing more is expected.
const QUIET: Duration = Duration::from_millis(50);

/// What is done with a frame.
pub(crate) enum Action {
    Pass,
    Drop,
    Replace(Vec<u8>, Offload),
}

/// Decides about a frame that came by a port (0 or 1).
pub(crate) type Hook = Box<dyn FnMut(usize, &[u8], Offload) -> Action + Send>;

/// What a forwarder has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) statistics: [Statistics; 2],
    /// What each port has sent.
    pub(crate) sent: [SendStatistics; 2],
    pub(crate) partial: usize,
    pub(crate) giants: usize,
    pub(crate) longest: usize,
    /// Frames that were given up after some tries.
    pub(crate) given_up: usize,
    /// CPU time of the looks at ports that had frames, and of sending these, if it spins.
    pub(crate) busy_nanos: u64,
    /// What happened to the links, by port.
    pub(crate) states: [Vec<PortState>; 2],
}

/// CPU time that the calling thread has taken, in nanoseconds.
pub(crate) fn cpu_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A forwarder in a thread.
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

/// Options of a port, by the place of a port in the product.
pub(crate) fn options(place: usize) -> Options {
    let mut options = Options::new(["pa", "pb"][place], Mode::Inline);
    options.number = place as u16;
    options
}

impl Forwarder {
    /// Forwards everything.
    pub(crate) fn start(net: &Net) -> Self {
        Self::with(net, [options(0), options(1)], false, Box::new(|_, _, _| Action::Pass))
    }

    /// Forwards as a hook says, and sleeps when there is nothing to do unless it is to spin.
    pub(crate) fn with(net: &Net, options: [Options; 2], spins: bool, mut hook: Hook) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = net.product.spawn(move || {
            let mut monitor = LinkMonitor::open().expect("a monitor");
            let mut ports = options.map(|options| Port::open(&options).expect("a port"));
            ready.send(()).expect("waited for");
            let mut senders = ports.each_ref().map(Port::sender);
            let (mut buffer, mut batch) = (ReceiveBuffer::new(256), Batch::new(256));
            let mut seen = Seen::default();
            let mut last = Instant::now();
            // What is on its way when it is stopped still comes.
            while !stopped.load(Ordering::Relaxed) || last.elapsed() < QUIET {
                let mut is_idle = true;
                for from in 0..2 {
                    let begin = if spins { cpu_nanos() } else { 0 };
                    let received = ports[from].receive(&mut buffer);
                    if received.frames == 0 {
                        continue;
                    }
                    is_idle = false;
                    buffer.deliver(&mut batch);
                    assert_eq!(batch.len(), received.frames);
                    forward(from, &batch, &mut senders[1 - from], &mut hook, &mut seen);
                    seen.busy_nanos += if spins { cpu_nanos() - begin } else { 0 };
                }
                if !is_idle {
                    last = Instant::now();
                }
                if !is_idle || spins {
                    continue;
                }
                let [a, b] = &ports;
                wait(&[a, b], &[monitor.as_fd()], Some(QUIET)).expect("waited");
                while let Some(event) = monitor.next_event().expect("an event") {
                    for (port, states) in ports.iter_mut().zip(&mut seen.states) {
                        states.extend(port.update(&event).expect("told"));
                    }
                }
            }
            seen.sent = senders.each_ref().map(Sender::statistics);
            seen.statistics = ports.each_mut().map(|port| balanced(port, &mut buffer, &mut batch));
            seen
        });
        // Where it has failed, the panic is the thread's.
        if is_ready.recv().is_err() {
            let panic = thread.join().expect_err("no port");
            std::panic::resume_unwind(panic);
        }
        Self { stop, thread: Some(thread) }
    }

    /// Stops it and says what it has seen.
    pub(crate) fn stop(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("not stopped yet");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The counts of a port once all that has arrived is in them: something may come between a look at it and its counts.
fn balanced(port: &mut Port, buffer: &mut ReceiveBuffer, batch: &mut Batch) -> Statistics {
    let begin = Instant::now();
    loop {
        let counts = port.statistics().expect("counted");
        let skipped = counts.outgoing + counts.oversized + counts.unsound;
        if counts.arrived == counts.received + counts.dropped + skipped {
            return counts;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{counts:?}");
        port.receive(buffer);
        buffer.deliver(batch);
    }
}

fn forward(from: usize, batch: &Batch, to: &mut Sender, hook: &mut Hook, seen: &mut Seen) {
    let mut actions = Vec::with_capacity(batch.len());
    for index in 0..batch.len() {
        let (bytes, offload) = (batch.bytes(index), batch.offload(index));
        let frame = batch.frames()[index];
        assert_eq!((frame.len, frame.port), (frame.wire_len, from as u16), "frames are whole");
        seen.partial += usize::from(offload.needs_checksum());
        seen.giants += usize::from(offload.is_giant());
        seen.longest = seen.longest.max(bytes.len());
        actions.push(hook(from, bytes, offload));
    }
    let outgoing: Vec<Outgoing<'_>> = actions
        .iter()
        .enumerate()
        .filter_map(|(index, action)| match action {
            Action::Pass => Some(Outgoing { bytes: batch.bytes(index), offload: batch.offload(index) }),
            Action::Replace(bytes, offload) => Some(Outgoing { bytes, offload: *offload }),
            Action::Drop => None,
        })
        .collect();
    let mut rest = &outgoing[..];
    for _ in 0..10 {
        let sent = to.send(rest).expect("sent");
        rest = &rest[sent.taken..];
        if rest.is_empty() {
            return;
        }
        assert!(sent.stopped.is_some());
    }
    seen.given_up += rest.len();
}
