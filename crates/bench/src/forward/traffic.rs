//! The generator and the sink: programs in the kernel, and what they count.

use std::fs;

use packetloom_io::bpf::{Hook, Link, Map, Program};
use rustix::io::Errno;

use super::lists::Flow;
use super::net::{MACS, Net, failed};
use crate::Error;

/// What clang makes of `programs.c`.
const GENERATE: &[u8] = include_bytes!("generate.bin");
const SINK: &[u8] = include_bytes!("sink.bin");
/// The constants that stand where maps belong.
const PACE: u64 = 0x7061_636b_6574_0003;
const HEADS: u64 = 0x7061_636b_6574_0004;
const ARRIVED: u64 = 0x7061_636b_6574_0005;

/// Words of `struct pace`, and bytes of `struct head`.
const PACE_WORDS: usize = 13;
const HEAD: usize = 48;
/// What stands behind the headers of our frames, and nowhere else.
const MARK: &[u8; 6] = b"loomed";
/// Words of `struct arrived`, and where the times on the way stand in it.
const ARRIVED_WORDS: usize = 5 + BUCKETS;
const WAYS: usize = 5;
const BUCKETS: usize = 2048;
const STEPS: usize = 32;

/// Packets of a batch without a pace.
pub(super) const BATCH: u32 = 64;
/// Nanoseconds between batches at most: the generator does not wait for much longer.
const LONGEST_INTERVAL: f64 = 3e5;

/// How packets are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) packets: u32,
    /// Millions of packets a second; as fast as they can be made unless given.
    pub(super) mpps: Option<f64>,
    /// Packets that are sent at a time.
    pub(super) batch: u32,
}

/// What the generator did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    pub(super) packets: u64,
    /// Nanoseconds that a batch was late at most: for so long its core stood still.
    pub(super) latest_ns: u64,
    /// Nanoseconds from the first batch to the last.
    pub(super) lasted_ns: u64,
    /// Nanoseconds of CPU time, without those spent waiting for a batch to be due.
    pub(super) cpu_ns: u64,
}

/// What has arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) packets: u64,
    /// Nanoseconds from the first packet to the last.
    pub(super) lasted_ns: u64,
    /// The longest time between two packets.
    pub(super) gap_ns: u64,
    longest_way_ns: u64,
    ways: Vec<u64>,
}

impl Arrived {
    /// Microseconds within which this share of the packets was on its way.
    pub(super) fn way_us(&self, share: f64) -> f64 {
        let wanted = (share * self.packets as f64).ceil() as u64;
        let mut sum = 0;
        for (place, packets) in self.ways.iter().enumerate() {
            sum += packets;
            if sum >= wanted {
                return middle(place) / 1000.0;
            }
        }
        self.longest_way_us()
    }

    /// Microseconds of the longest way.
    pub(super) fn longest_way_us(&self) -> f64 {
        self.longest_way_ns as f64 / 1000.0
    }
}

/// The middle of the times that have this place.
fn middle(place: usize) -> f64 {
    let high = place / STEPS;
    if high < 5 {
        return place as f64;
    }
    let step = f64::from(2u32).powi(high as i32 - 5);
    f64::from(2u32).powi(high as i32) + ((place % STEPS) as f64 + 0.5) * step
}

fn of_kernel(what: &str) -> impl Fn(Errno) -> Error {
    move |errno| match errno {
        Errno::PERM | Errno::ACCESS => Error::ForwardMissing {
            what: format!(
                "not permitted to {what}; run as root, or give the process CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN"
            ),
        },
        errno => failed(format!("cannot {what}: {errno}")),
    }
}

/// The generator and the sink of a network.
#[derive(Debug)]
pub(super) struct Traffic {
    generate: Program,
    pace: Map,
    flows: u64,
    frame: Vec<u8>,
    port: u32,
    arrived: Map,
    _sink: Link,
}

impl Traffic {
    /// Flows of frames of so many bytes, their check sequence included.
    pub(super) fn new(net: &Net, flows: &[Flow], packet_size: usize) -> Result<Self, Error> {
        let processors = processors()?;
        let make = "make a map of BPF";
        let pace = Map::array("bench_pace", 8 * PACE_WORDS as u32, 1).map_err(of_kernel(make))?;
        let heads = Map::array("bench_heads", HEAD as u32, flows.len() as u32).map_err(of_kernel(make))?;
        let arrived = Map::array_of_each_cpu("bench_arrived", 8 * ARRIVED_WORDS as u32, 2, processors);
        let arrived = arrived.map_err(of_kernel(make))?;
        let length = packet_size - 4;
        for (place, flow) in flows.iter().enumerate() {
            heads.write(place as u32, &head(flow, length)).map_err(of_kernel("write to a map of BPF"))?;
        }
        let load = "load a BPF program";
        let generate =
            Program::load(Hook::Native, "bench_generate", GENERATE, &[(PACE, &pace), (HEADS, &heads)]);
        let generate = generate.map_err(of_kernel(load))?;
        let sink = Program::load(Hook::Tcx, "bench_sink", SINK, &[(ARRIVED, &arrived)]);
        let sink = sink.map_err(of_kernel(load))?;
        let s0 = net.sink.index("s0")?;
        let attached =
            net.sink.on_cores(&[], || sink.attach(s0))?.map_err(of_kernel("attach a BPF program (tcx)"))?;
        Ok(Self {
            generate,
            pace,
            flows: flows.len() as u64,
            frame: vec![0; length],
            port: net.generator.index("c0")?,
            arrived,
            _sink: attached,
        })
    }

    /// Sends packets; with `port` false, they are made only.
    pub(super) fn send(&self, net: &Net, core: usize, load: Load, to_port: bool) -> Result<Made, Error> {
        let batch = load.mpps.map_or(load.batch, |mpps| {
            let most = (LONGEST_INTERVAL * mpps / 1000.0).floor();
            load.batch.min(if most < 1.0 { 1 } else { most as u32 })
        });
        let interval = load.mpps.map_or(0.0, |mpps| 1000.0 * f64::from(batch) / mpps);
        let mut words = [0u64; PACE_WORDS];
        words[..4].copy_from_slice(&[
            interval.round() as u64,
            batch.into(),
            if to_port { self.port.into() } else { 0 },
            self.flows,
        ]);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.pace.write(0, &bytes).map_err(of_kernel("write to a map of BPF"))?;
        let run = || {
            let before = cpu_ns("/proc/thread-self/schedstat")?;
            let ran = self.generate.run_live(&self.frame, load.packets, batch);
            Ok::<_, Error>((ran, cpu_ns("/proc/thread-self/schedstat")?.saturating_sub(before)))
        };
        let (ran, cpu_ns) = net.generator.on_cores(&[core], run)??;
        match ran {
            Ok(()) => {}
            Err(Errno::INTR) => return Err(Error::Interrupted),
            Err(errno) => {
                return Err(of_kernel("send frames (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18)")(errno));
            }
        }
        let words = words_of(&self.pace.read(0).map_err(of_kernel("read a map of BPF"))?);
        let [packets, _, latest_ns, waited, first, last] = [4, 5, 6, 7, 8, 9].map(|at| words[at]);
        Ok(Made {
            packets,
            latest_ns,
            lasted_ns: last.saturating_sub(first),
            cpu_ns: cpu_ns.saturating_sub(waited),
        })
    }

    /// Forgets what has arrived.
    pub(super) fn clear(&self) -> Result<(), Error> {
        let none = vec![0; self.arrived.read(0).map_err(of_kernel("read a map of BPF"))?.len()];
        self.arrived.write(0, &none).map_err(of_kernel("write to a map of BPF"))
    }

    /// Packets that have arrived in all, whatever was forgotten.
    pub(super) fn total(&self) -> Result<u64, Error> {
        let words = words_of(&self.arrived.read(1).map_err(of_kernel("read a map of BPF"))?);
        Ok(words.chunks_exact(ARRIVED_WORDS).map(|own| own[0]).sum())
    }

    /// What has arrived since then, on all processors.
    pub(super) fn arrived(&self) -> Result<Arrived, Error> {
        let words = words_of(&self.arrived.read(0).map_err(of_kernel("read a map of BPF"))?);
        let mut sum =
            Arrived { packets: 0, lasted_ns: 0, gap_ns: 0, longest_way_ns: 0, ways: vec![0; BUCKETS] };
        let (mut first, mut last) = (u64::MAX, 0);
        for own in words.chunks_exact(ARRIVED_WORDS).filter(|own| own[0] > 0) {
            sum.packets += own[0];
            first = first.min(own[1]);
            last = last.max(own[2]);
            sum.gap_ns = sum.gap_ns.max(own[3]);
            sum.longest_way_ns = sum.longest_way_ns.max(own[4]);
            for (all, own) in sum.ways.iter_mut().zip(&own[WAYS..]) {
                *all += own;
            }
        }
        sum.lasted_ns = last.saturating_sub(first);
        Ok(sum)
    }
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect()
}

/// Processors that there may be: as many values have maps of each.
fn processors() -> Result<usize, Error> {
    let path = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(path).map_err(|error| failed(format!("{path}: {error}")))?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| failed(format!("{path}: {text:?}; expected numbers of processors")))
}

/// Nanoseconds that a thread has run, by its `schedstat`.
pub(super) fn cpu_ns(path: &str) -> Result<u64, Error> {
    let text = fs::read_to_string(path).map_err(|error| failed(format!("{path}: {error}")))?;
    let number = text.split(' ').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| failed(format!("{path}: {text:?}; expected nanoseconds")))
}

/// Ethernet, IPv4 and UDP headers of a flow's frames, and the mark.
fn head(flow: &Flow, length: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..6].copy_from_slice(&MACS[1]);
    head[6..12].copy_from_slice(&MACS[0]);
    head[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut head[14..34];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((length - 14) as u16).to_be_bytes());
    // Time to live, UDP.
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&flow.source.to_be_bytes());
    ip[16..20].copy_from_slice(&flow.destination.to_be_bytes());
    let sum: u32 = ip.as_chunks().0.iter().map(|&pair| u32::from(u16::from_be_bytes(pair))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    head[34..36].copy_from_slice(&flow.ports[0].to_be_bytes());
    head[36..38].copy_from_slice(&flow.ports[1].to_be_bytes());
    // No checksum (RFC 768).
    head[38..40].copy_from_slice(&((length - 34) as u16).to_be_bytes());
    head[42..].copy_from_slice(MARK);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_within_its_step() {
        // As `bucket` of programs.c.
        let place = |time: u64| {
            let high = time.checked_ilog2().unwrap_or(0);
            if high < 5 { time as usize } else { high as usize * 32 + (time >> (high - 5) & 31) as usize }
        };
        for time in [0, 1, 31, 32, 33, 100, 1_700, 12_345, 999_999, 5_000_000_000] {
            let found = middle(place(time));
            assert!((found - time as f64).abs() <= time as f64 / 32.0, "{found} of {time}");
        }
    }

    #[test]
    fn headers_have_a_valid_checksum() {
        let flow = Flow { source: 0x0a00_0001, destination: 0xc633_6401, ports: [1024, 53] };
        let head = head(&flow, 60);
        let sum: u32 = head[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!((&head[16..18], &head[38..40]), (&[0, 46][..], &[0, 26][..]));
    }
}
