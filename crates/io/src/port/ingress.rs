//! Network interfaces as a source of batches.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packetloom_packet::{Batch, PortNames, Timestamp};

use super::af_xdp::{Lent, Umem, share_memory};
use super::bridge::Bridge;
use super::interface::failed;
use super::{
    Backend, Link, LinkEvent, LinkMonitor, Mode, OnExit, Options, Port, PortBackend, PortState,
    ReceiveBuffer, Sender, Statistics, wait,
};
use crate::Error;
use crate::source::{Polled, Source};

/// How long a frame may have waited in a ring: a longer time is a step of the wall clock.
const LONGEST_WAIT: u64 = 10_000_000_000;
/// Frames of a batch that its memory is made for; a larger batch of short frames fits, too.
const BATCH: usize = 256;
/// How often link events are looked for while nobody waits for them.
const EVENTS_EVERY: Duration = Duration::from_millis(50);

/// What came in by an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressCounts {
    /// Name of the interface.
    pub interface: String,
    /// How the kernel hands over its frames.
    pub backend: PortBackend,
    /// Why it is not done in a way that would be better, where that was to be chosen.
    pub backend_reason: Option<String>,
    /// Frames and bytes.
    pub counts: Statistics,
}

impl IngressCounts {
    /// Frames that lie in the rings and were not received.
    pub fn unread(&self) -> u64 {
        let Statistics { arrived, received, dropped, outgoing, oversized, unsound, .. } = self.counts;
        arrived.saturating_sub(received + dropped + outgoing + oversized + unsound)
    }
}

/// Receives from several interfaces, each of which has the number in frames that is its place.
///
/// Frames have the wall time at which the first of them could come, advanced by the monotonic clock, so that steps of the wall clock
/// neither stop nor hasten state; batches know how far wall time is from that.
#[derive(Debug)]
pub struct Ingress {
    mode: Mode,
    ports: Vec<Port>,
    /// What is below each pair of them, where the kernel is to forward when this is over.
    bridges: Vec<Bridge>,
    monitor: LinkMonitor,
    buffer: ReceiveBuffer,
    /// The port that is looked at first.
    first: usize,
    clock: Clock,
    looked_for_events: Instant,
    /// Whether it was waited since then: for an event, perhaps.
    has_waited: bool,
    names: PortNames,
    notices: VecDeque<String>,
}

impl Ingress {
    /// Opens interfaces of the calling thread's network namespace; inline an even number, of which the first and the second are a pair, the
    /// third and the fourth, and so on. `on_exit` is for inline only.
    ///
    /// # Errors
    ///
    /// As [`Port::open`]. [`Error::Links`]: the kernel does not tell of link events. [`Error::Bridge`]: what is asked for when this is over
    /// cannot be had.
    pub fn open(interfaces: &[String], mode: Mode, backend: Backend, on_exit: OnExit) -> Result<Self, Error> {
        // Before the ports: what happens to them from then on is not missed.
        let monitor = LinkMonitor::open()?;
        let open = |backend, reason: Option<String>, memories: &[Option<Arc<Umem>>]| {
            let ports = interfaces.iter().zip(0..).map(|(interface, number)| {
                let mut options = Options::new(interface, mode);
                options.number = number;
                options.backend = backend;
                options.outgoing = mode == Mode::Monitor;
                let place = usize::from(number);
                let memory = memories.get(place / 2).cloned().flatten();
                Port::open_in(&options, memory.map(|memory| (memory, place % 2))).map(|port| match &reason {
                    Some(reason) => port.because(reason.clone()),
                    None => port,
                })
            });
            ports.collect::<Result<Vec<_>, Error>>()
        };
        let memories = match (backend, mode) {
            (Backend::AfPacket, _) | (_, Mode::Monitor) => Vec::new(),
            _ => share_memories(interfaces)?,
        };
        let mut ports = open(backend, None, &memories)?;
        let without_xdp = ports.iter().find(|port| port.backend() == PortBackend::AfPacket);
        let reason =
            without_xdp.and_then(|port| Some(format!("{}: {}", port.interface(), port.backend_reason()?)));
        if backend == Backend::Auto
            && ports.iter().any(|port| port.backend() != PortBackend::AfPacket)
            && reason.is_some()
        {
            // Giants that come by a packet socket could not leave by AF_XDP.
            drop(ports);
            ports = open(Backend::AfPacket, reason, &[])?;
        }
        let mut buffer = ReceiveBuffer::new(BATCH);
        if ports.iter().any(|port| port.backend() != PortBackend::AfPacket) {
            let memories: Vec<_> = memories.into_iter().flatten().collect();
            buffer.set_lent((!memories.is_empty()).then(|| Lent::new(&memories)));
        }
        let mut notices = VecDeque::new();
        for port in ports.iter().filter(|_| mode == Mode::Inline) {
            let Some(reason) = port.backend_reason() else { continue };
            notices.push_back(match port.backend() {
                PortBackend::AfPacket => format!("{}: packet sockets, not AF_XDP: {reason}", port.interface()),
                _ => format!(
                    "{}: the kernel runs the XDP program, not the driver: {reason}; frames longer than the MTU, which local \
                     senders leave uncut, are dropped",
                    port.interface()
                ),
            });
        }
        let mut bridges = Vec::new();
        for pair @ [a, b] in ports.as_chunks::<2>().0.iter().filter(|_| mode == Mode::Inline) {
            if a.mtu() != b.mtu() {
                notices.push_back(format!(
                    "{} has an MTU of {}, {} one of {}; packets that are too long for one of them are dropped there",
                    a.interface(),
                    a.mtu(),
                    b.interface(),
                    b.mtu()
                ));
            }
            // From here on the bridge gets nothing.
            match on_exit {
                OnExit::Closed => notices.extend(Bridge::remove_below(pair)?),
                OnExit::Open => {
                    let (bridge, said) = Bridge::below(pair)?;
                    bridges.push(bridge);
                    notices.extend(said);
                }
            }
        }
        Ok(Self {
            mode,
            ports,
            bridges,
            monitor,
            buffer,
            first: 0,
            clock: Clock::start(),
            looked_for_events: Instant::now(),
            has_waited: false,
            names: interfaces.iter().map(|name| Some(name.as_str().into())).collect(),
            notices,
        })
    }

    /// How the kernel hands over frames of the ports; where they differ, in the way that is the last resort of some.
    pub fn backend(&self) -> PortBackend {
        let backends = self.ports.iter().map(Port::backend);
        backends.max_by_key(|&backend| backend == PortBackend::AfXdpGeneric).unwrap_or(PortBackend::AfPacket)
    }

    /// The ports, by number.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// What sends out of each of the interfaces.
    pub fn senders(&self) -> Vec<Sender> {
        self.ports.iter().map(Port::sender).collect()
    }

    /// Takes frames of all ports, each of which has its part of the room: one that is flooded leaves room for the others.
    fn receive(&mut self, capacity: usize) {
        let ports = self.ports.len();
        for turn in 0..ports {
            let share = (capacity - self.buffer.len()).div_ceil(ports - turn);
            self.buffer.set_capacity(self.buffer.len() + share);
            self.ports[(self.first + turn) % ports].receive(&mut self.buffer);
        }
        self.first = (self.first + 1) % ports;
    }

    fn look_for_events(&mut self) -> Result<(), Error> {
        self.looked_for_events = Instant::now();
        self.has_waited = false;
        let mut are_concerned = vec![false; self.bridges.len()];
        while let Some(event) = self.monitor.next_event()? {
            for port in &mut self.ports {
                match port.update(&event) {
                    Ok(None) => {}
                    Ok(Some(state)) => {
                        self.notices.push_back(format!("{}: {}", port.interface(), describe(state)));
                    }
                    Err(error) => self.notices.push_back(error.to_string()),
                }
            }
            let pairs = self.bridges.iter().zip(self.ports.as_chunks::<2>().0);
            for ((bridge, pair), is_concerned) in pairs.zip(&mut are_concerned) {
                let is_part = |link: &Link| {
                    link.index == bridge.index() || pair.iter().any(|port| port.index() == link.index)
                };
                *is_concerned |= match &event {
                    LinkEvent::Changed(link) | LinkEvent::Removed(link) => is_part(link),
                    LinkEvent::Lost => true,
                };
            }
        }
        let pairs = self.bridges.iter_mut().zip(self.ports.as_chunks::<2>().0);
        for ((bridge, pair), _) in pairs.zip(are_concerned).filter(|(_, is_concerned)| *is_concerned) {
            if pair.iter().all(|port| port.state() != PortState::Gone) {
                match bridge.mend(pair) {
                    Ok(notice) => self.notices.extend(notice),
                    Err(error) => self.notices.push_back(error.to_string()),
                }
            }
        }
        Ok(())
    }
}

/// Memory that the ports of each pair share, where they may.
fn share_memories(interfaces: &[String]) -> Result<Vec<Option<Arc<Umem>>>, Error> {
    let ring_bytes = Options::new("", Mode::Inline).ring_bytes;
    let share = |pair: &[String; 2]| {
        share_memory(pair, ring_bytes).map_err(|error| failed(&pair[0], "get memory for its frames", error))
    };
    interfaces.as_chunks().0.iter().map(share).collect()
}

/// Has frames leave by the other port of their pair: of 0 and 1, of 2 and 3, and so on.
fn set_egress(batch: &mut Batch) {
    let mut egress = std::mem::take(batch.egress_mut());
    egress.extend(batch.frames().iter().map(|frame| frame.port ^ 1));
    *batch.egress_mut() = egress;
}

/// What a port's state means.
fn describe(state: PortState) -> &'static str {
    match state {
        PortState::Up => "the link is up",
        PortState::NoCarrier => "no carrier: the other end of the link is down",
        PortState::Down => "switched off; it goes on when it is switched on",
        PortState::Gone => "removed; it goes on when there is an interface of this name again",
    }
}

impl Source for Ingress {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        self.receive(batch.capacity());
        if self.buffer.is_empty() && self.has_waited || self.looked_for_events.elapsed() > EVENTS_EVERY {
            self.look_for_events()?;
        }
        if self.buffer.is_empty() {
            self.buffer.deliver(batch);
            return Ok(Polled::Nothing);
        }
        let instant = self.clock.read();
        self.buffer.date(|time| instant.of(time));
        if self.mode == Mode::Monitor && self.ports.len() > 1 {
            // Both directions of a connection, by interfaces of their own perhaps.
            self.buffer.sort();
        }
        self.buffer.deliver(batch);
        batch.set_wall_offset(instant.wall_offset());
        batch.set_port_names(Some(self.names.clone()));
        if self.mode == Mode::Inline {
            set_egress(batch);
        }
        Ok(Polled::Frames)
    }

    fn release(&mut self) -> Result<(), Error> {
        if self.bridges.is_empty() { Ok(()) } else { self.ports.iter_mut().try_for_each(Port::release) }
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        self.has_waited = true;
        let ports: Vec<_> = self.ports.iter().collect();
        wait(&ports, &[self.monitor.as_fd()], Some(timeout)).map(drop)
    }

    fn is_live(&self) -> bool {
        true
    }

    fn now(&self) -> Option<Timestamp> {
        Some(Timestamp::from_nanos(self.clock.now()))
    }

    fn wall_offset(&self) -> i64 {
        self.clock.read().wall_offset()
    }

    fn port_names(&self) -> Option<PortNames> {
        Some(self.names.clone())
    }

    fn position(&self) -> u64 {
        self.ports.iter().map(Port::received_bytes).sum()
    }

    fn notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }

    fn ingress_counts(&mut self) -> Result<Vec<IngressCounts>, Error> {
        let ingress_counts = |port: &mut Port| {
            Ok(IngressCounts {
                counts: port.statistics()?,
                interface: port.interface().to_owned(),
                backend: port.backend(),
                backend_reason: port.backend_reason().map(str::to_owned),
            })
        };
        self.ports.iter_mut().map(ingress_counts).collect()
    }
}

/// Wall time when it was started, advanced by the monotonic clock.
#[derive(Debug)]
struct Clock {
    wall: u64,
    start: Instant,
}

/// A moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// By a [`Clock`], and by the wall clock.
    now: u64,
    wall: u64,
}

impl Clock {
    fn start() -> Self {
        Self { wall: wall_nanos(), start: Instant::now() }
    }

    fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.wall.saturating_add(elapsed)
    }

    fn read(&self) -> Moment {
        Moment { now: self.now(), wall: wall_nanos() }
    }
}

impl Moment {
    /// The time of what came at a wall time shortly before.
    fn of(self, wall: u64) -> u64 {
        self.now - self.wall.saturating_sub(wall).min(LONGEST_WAIT).min(self.now)
    }

    /// From the clock's time to wall time.
    fn wall_offset(self) -> i64 {
        self.wall.wrapping_sub(self.now) as i64
    }
}

/// Nanoseconds since the Unix epoch.
fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_wall_clock_move_no_frame() {
        let moment = |now, wall| Moment { now, wall };
        assert_eq!(moment(1_000, 1_000).of(990), 990);
        // Set back or forward by an hour since the start.
        let hour = 3_600_000_000_000;
        for (now, wall) in [(2 * hour, hour), (hour, 2 * hour)] {
            let moment = moment(now, wall);
            assert_eq!(moment.of(wall - 10), now - 10);
            assert_eq!(now as i64 + moment.wall_offset(), wall as i64);
            // Stamped before the step.
            assert!((now - LONGEST_WAIT..=now).contains(&moment.of(now)), "{now} {wall}");
        }
        let clock = Clock::start();
        let (first, second) = (clock.read(), clock.read());
        assert!(first.now <= second.now && first.wall_offset().abs() < hour as i64);
    }
}
