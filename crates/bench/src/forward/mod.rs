//! Packets from one link to another: a run of ours between network namespaces, and others beside it.
//!
//! A generator in the kernel sends frames by a virtual link (veth) to whatever forwards them by another one to a sink in the kernel, which counts
//! them and how long each was on its way. Rounds go over all forwarders, each with links of its own.

mod forwarder;
mod lists;
mod net;
mod search;
mod traffic;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packetloom_io::input::Stop;
use serde_json::{Map, Value};

use self::forwarder::{Counted, Loads, Running, lost};
use self::lists::Flow;
use self::net::{Net, failed};
use self::search::{Search, Shown};
use self::traffic::{Arrived, BATCH, Load, Made, Traffic, cpu_ns};
use crate::Error;
use crate::sample::{quantile, rounded, sorted};

pub use self::forwarder::{Forwarder, Sockets};
pub use self::lists::List;

/// How near the rate without loss is found, as a share.
const RESOLUTION: f64 = 0.02;
/// A trial in which something stood still for longer says little about the forwarder, if packets were lost.
const DISTURBED_NS: u64 = 500_000;
/// Shares of the rate without loss at which latency is measured.
const HIGH: f64 = 0.98;
const LOW: f64 = 0.1;
/// How often our run says what its workers did.
const LOADS_EVERY: Duration = Duration::from_millis(100);
/// Packets without a pace after which the rate is known well enough, and how long they have to have taken.
const FIRST: u32 = 2000;
const ENOUGH: Duration = Duration::from_millis(20);
/// Packets of a trial at most.
const MOST: f64 = 4e9;
/// Nothing arrives any more where nothing has for so long.
const QUIET: Duration = Duration::from_millis(100);
/// How long packets may be on their way when all have been sent.
const LAST: Duration = Duration::from_secs(10);

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose `run` forwards.
    pub program: PathBuf,
    /// Rule lists; none is a chain without functions.
    pub lists: Vec<Option<List>>,
    /// What forwards, in turns. Those without rules forward once for each size of packets.
    pub forwarders: Vec<Forwarder>,
    /// Bytes of packets with their check sequence, 64 to 1518.
    pub packet_sizes: Vec<usize>,
    /// Flows.
    pub flows: usize,
    /// The core of the generator.
    pub generator_core: usize,
    /// The cores of the forwarder; the first one, where it has one thread.
    pub forwarder_cores: Vec<usize>,
    /// Workers of our run.
    pub workers: usize,
    /// Whether our run has a meter behind the rules, whose records are compared with what was sent.
    pub meter: bool,
    /// Rounds.
    pub rounds: usize,
    /// How long a trial takes.
    pub trial: Duration,
    /// How long a rate is confirmed, and latency at 10 % of it is measured.
    pub confirm: Duration,
    /// How long 98 % of it is held.
    pub hold: Duration,
    /// The share of packets that may be lost at a rate "without loss".
    pub tolerance: f64,
}

/// A forwarder with a list and a size of packets.
#[derive(Clone, Copy)]
struct Contender<'a> {
    forwarder: Forwarder,
    list: Option<&'a List>,
    size: usize,
}

impl Contender<'_> {
    fn workload(&self, options: &Options) -> String {
        let list = match (self.forwarder, self.list) {
            (Forwarder::Testpmd(_), _) => "without a chain",
            (Forwarder::Packetloom(..), None) if options.meter => return "forward meter".into(),
            (_, None) => "empty",
            (_, Some(list)) => &list.name,
        };
        let meter = if options.meter && matches!(self.forwarder, Forwarder::Packetloom(..)) {
            " + meter"
        } else {
            ""
        };
        format!("forward {list}{meter}")
    }
}

/// What one trial has shown.
struct Trial {
    made: Made,
    arrived: Arrived,
    /// CPU time of the forwarder's process, and with it that of the kernel's threads for packets.
    process_ns: Option<u64>,
    beside_ns: u64,
    /// When it began and ended, in milliseconds since 1970.
    from: u64,
    until: u64,
}

impl Trial {
    fn ways_us(&self) -> [f64; 3] {
        [self.arrived.way_us(0.5), self.arrived.way_us(0.99), self.arrived.longest_way_us()]
    }

    fn lost(&self) -> u64 {
        self.made.packets.saturating_sub(self.arrived.packets)
    }

    fn gap_ns(&self) -> u64 {
        self.made.latest_ns.max(self.arrived.gap_ns)
    }

    /// Millions of packets a second that have arrived.
    fn mpps(&self) -> f64 {
        self.arrived.packets.saturating_sub(1) as f64 * 1000.0 / self.arrived.lasted_ns.max(1) as f64
    }
}

/// What one round of a contender has shown.
struct Round {
    flood_mpps: f64,
    offered_mpps: f64,
    cpu_ns: f64,
    process_ns: Option<f64>,
    no_loss_mpps: Option<f64>,
    /// At 98 and at 10 % of it.
    high: Option<Held>,
    low: Option<Held>,
    /// Of both processes.
    totals: Totals,
    late_ns: u64,
    gap_ns: u64,
    sets: Option<usize>,
    source_ns: f64,
}

/// What a trial at a share of the rate without loss has shown.
struct Held {
    /// Microseconds of the median, of 99 %, and of the longest way.
    ways: [f64; 3],
    /// Of all that its process forwarded.
    totals: Totals,
    records: Option<Records>,
    lost_in_stalls: u64,
    /// Meanwhile, at our run.
    loads: Vec<Loads>,
    /// When it began, in milliseconds since 1970.
    from: u64,
}

impl Held {
    fn new(trial: &Trial, totals: Totals, records: Option<Records>, counted: Option<Counted>) -> Self {
        let mut loads = counted.map_or_else(Vec::new, |counted| counted.loads);
        let lost_in_stalls = lost_in_stalls(&loads);
        // The first one is of a time that began before.
        let every = LOADS_EVERY.as_millis() as u64;
        loads.retain(|loads| (trial.from + every..=trial.until + every).contains(&loads.time));
        Self { ways: trial.ways_us(), totals, records, lost_in_stalls, loads, from: trial.from }
    }

    /// Microseconds of the longest turn of a worker; none where nothing says so.
    fn longest_turn_us(&self) -> Option<f64> {
        let turns = self.loads.iter().flat_map(|loads| &loads.workers).map(|(_, turn)| *turn);
        turns.reduce(f64::max)
    }

    /// For each worker, the seconds since the beginning and its load until then, in percent.
    fn series(&self) -> Vec<Vec<[f64; 2]>> {
        let workers = self.loads.first().map_or(0, |loads| loads.workers.len());
        let of = |worker: usize| {
            let point = |loads: &Loads| {
                let (busy, _) = loads.workers.get(worker)?;
                Some([(loads.time - self.from) as f64 / 1000.0, busy * 100.0])
            };
            self.loads.iter().filter_map(point).collect()
        };
        (0..workers).map(of).collect()
    }
}

/// Frames that our run has lost while a worker stood still, to a tenth of a second.
fn lost_in_stalls(loads: &[Loads]) -> u64 {
    let is_stall = |loads: &Loads| loads.workers.iter().any(|(_, turn)| turn * 1000.0 > DISTURBED_NS as f64);
    let lost = loads.windows(2).enumerate().map(|(at, pair)| {
        // A turn is known when it is over.
        let around = &loads[at + 1..loads.len().min(at + 3)];
        let lost = pair[1].lost.saturating_sub(pair[0].lost);
        if around.iter().any(is_stall) { lost } else { 0 }
    });
    lost.sum()
}

/// Flow records beside what was sent.
#[derive(Clone, Copy, Default)]
struct Records {
    /// Packets in them.
    packets: u64,
    /// Flows of which they say more packets than were sent; fewer, too, where none was dropped before the chain.
    wrong_flows: u64,
}

impl Records {
    fn compare(recorded: &HashMap<Flow, u64>, sent: &HashMap<Flow, u64>, dropped_before: u64) -> Self {
        let of = |flows: &HashMap<Flow, u64>, flow: &Flow| flows.get(flow).copied().unwrap_or(0);
        let is_wrong = |flow: &&Flow| {
            let (recorded, sent) = (of(recorded, flow), of(sent, flow));
            recorded > sent || dropped_before == 0 && recorded < sent
        };
        let others = recorded.keys().filter(|flow| !sent.contains_key(flow));
        Self {
            packets: recorded.values().sum(),
            wrong_flows: sent.keys().chain(others).filter(is_wrong).count() as u64,
        }
    }
}

/// What a benchmark has shown.
#[derive(Debug)]
pub struct Measured {
    /// A row for each forwarder, list and size.
    pub rows: Vec<Value>,
    /// What workers of our run did at 98 % of the rate without loss, in the last round that found one.
    pub loads: Vec<WorkerLoads>,
}

/// What workers of a run did over time.
#[derive(Debug)]
pub struct WorkerLoads {
    /// Which run.
    pub name: String,
    /// For each worker points of seconds, and the percentage of the time before in which it had something to do.
    pub workers: Vec<Vec<[f64; 2]>>,
}

/// Packets of a round, all trials together.
#[derive(Clone, Copy, Default)]
struct Totals {
    sent: u64,
    arrived: u64,
    /// Dropped by the link before the forwarder, by the forwarder's receive rings, by its chain, by its sending; by the link behind it.
    link_in: u64,
    receiving: u64,
    judged: u64,
    sending: u64,
    link_out: u64,
}

impl Totals {
    fn counted(&self) -> u64 {
        self.link_in + self.receiving + self.judged + self.sending + self.link_out
    }

    fn add(&mut self, other: &Self) {
        let Self { sent, arrived, link_in, receiving, judged, sending, link_out } = other;
        self.sent += sent;
        self.arrived += arrived;
        self.link_in += link_in;
        self.receiving += receiving;
        self.judged += judged;
        self.sending += sending;
        self.link_out += link_out;
    }
}

/// Namespaces that benchmarks have left which were killed.
pub fn leftovers() -> Vec<String> {
    net::leftovers()
}

/// Measures. `say` is told what is measured next.
///
/// # Errors
///
/// Programs that are missing, rights that the process has not, a forwarder that does not start or forwards nothing, [`Error::Interrupted`].
pub fn run(options: &Options, stop: &Stop, say: impl Fn(&str)) -> Result<Measured, Error> {
    let contenders = contenders(options);
    let mut rounds: Vec<Vec<Round>> = contenders.iter().map(|_| Vec::new()).collect();
    for number in 1..=options.rounds {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            say(&format!(
                "round {number} of {}: {}, {}, packets of {} bytes",
                options.rounds,
                contender.forwarder,
                contender.workload(options),
                contender.size
            ));
            rounds.push(Bench::new(options, *contender, stop)?.round()?);
        }
    }
    let loads = |(contender, rounds): (&Contender<'_>, &Vec<Round>)| {
        let workers = rounds.iter().rev().find_map(|round| round.high.as_ref())?.series();
        let name = format!(
            "{}, {}, {} flows of {} bytes",
            contender.forwarder,
            contender.workload(options),
            options.flows,
            contender.size
        );
        (!workers.is_empty()).then_some(WorkerLoads { name, workers })
    };
    let loads = contenders.iter().zip(&rounds).filter_map(loads).collect();
    Ok(Measured { rows: rows(options, &contenders, &rounds), loads })
}

fn contenders(options: &Options) -> Vec<Contender<'_>> {
    let mut contenders = Vec::new();
    for &size in &options.packet_sizes {
        for (place, list) in options.lists.iter().map(Option::as_ref).enumerate() {
            for &forwarder in &options.forwarders {
                let is_there = match forwarder {
                    Forwarder::Packetloom(..) | Forwarder::NftablesRules => true,
                    Forwarder::NftablesSets => list.is_some(),
                    Forwarder::Testpmd(_) => place == 0,
                };
                let list = if matches!(forwarder, Forwarder::Testpmd(_)) { None } else { list };
                if is_there {
                    contenders.push(Contender { forwarder, list, size });
                }
            }
        }
    }
    contenders
}

/// One contender at work.
struct Bench<'a> {
    options: &'a Options,
    contender: Contender<'a>,
    stop: &'a Stop,
    // Dropped in this order: the process, then its network.
    running: Running,
    traffic: Traffic,
    net: Net,
    flows: Vec<Flow>,
    /// Packets of each of them.
    sent: Vec<u64>,
    totals: Totals,
    late_ns: u64,
    gap_ns: u64,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, contender: Contender<'a>, stop: &'a Stop) -> Result<Self, Error> {
        let net = Net::new()?;
        let flows = lists::flows(contender.list, options.flows)?;
        let traffic = Traffic::new(&net, &flows, contender.size)?;
        let running = Running::start(contender.forwarder, contender.list, &net, options)?;
        let mut bench = Self {
            options,
            contender,
            stop,
            running,
            traffic,
            net,
            sent: vec![0; flows.len()],
            flows,
            totals: Totals::default(),
            late_ns: 0,
            gap_ns: 0,
        };
        // Until packets go through.
        let begun = Instant::now();
        while bench.trial(Load { packets: 100, mpps: Some(0.01), batch: 1 })?.arrived.packets < 100 {
            if let Some(why) = bench.running.has_ended() {
                return Err(failed(format!("{} has ended: {why}", contender.forwarder)));
            }
            if begun.elapsed() > LAST {
                return Err(failed(format!(
                    "{}: not all packets pass at 10,000 a second",
                    contender.forwarder
                )));
            }
        }
        Ok(bench)
    }

    /// Sends packets, and waits until no more arrive.
    fn trial(&mut self, load: Load) -> Result<Trial, Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        self.traffic.clear()?;
        let (process, beside) = (self.running.cpu_ns()?, kernel_threads_ns());
        let from = now_ms();
        let made = self.traffic.send(&self.net, self.options.generator_core, load, true)?;
        let begun = Instant::now();
        let mut arrived = self.traffic.arrived()?;
        while arrived.packets < made.packets && begun.elapsed() < LAST {
            thread::sleep(QUIET);
            let now = self.traffic.arrived()?;
            if now.packets == arrived.packets {
                break;
            }
            arrived = now;
        }
        let process_ns = self.running.cpu_ns()?.zip(process).map(|(now, before)| now.saturating_sub(before));
        let beside_ns = kernel_threads_ns().saturating_sub(beside);
        self.totals.sent += made.packets;
        // They have their turns, from the first flow on.
        let (each, rest) = (made.packets / self.sent.len() as u64, made.packets % self.sent.len() as u64);
        for (sent, place) in self.sent.iter_mut().zip(0..) {
            *sent += each + u64::from(place < rest);
        }
        Ok(Trial { made, arrived, process_ns, beside_ns, from, until: now_ms() })
    }

    /// A trial at a rate for a time, of which the gaps are noted.
    fn at(&mut self, mpps: f64, time: Duration, batch: u32) -> Result<Trial, Error> {
        let packets = (mpps * 1e6 * time.as_secs_f64()).clamp(1.0, MOST) as u32;
        let trial = self.trial(Load { packets, mpps: Some(mpps), batch })?;
        self.late_ns = self.late_ns.max(trial.made.latest_ns);
        self.gap_ns = self.gap_ns.max(trial.arrived.gap_ns);
        Ok(trial)
    }

    /// As fast as packets can be made.
    fn flood(&mut self) -> Result<Trial, Error> {
        let mut packets = FIRST;
        loop {
            let trial = self.trial(Load { packets, mpps: None, batch: BATCH })?;
            let lasted = Duration::from_nanos(trial.made.lasted_ns);
            let wanted =
                f64::from(packets) * self.options.trial.as_secs_f64() / lasted.as_secs_f64().max(1e-9);
            if lasted >= ENOUGH || lasted >= self.options.trial {
                let packets = wanted.clamp(f64::from(FIRST), MOST) as u32;
                return self.trial(Load { packets, mpps: None, batch: BATCH });
            }
            packets = packets.saturating_mul(4);
        }
    }

    fn round(mut self) -> Result<Round, Error> {
        let load = Load { packets: 2_000_000, mpps: None, batch: BATCH };
        let alone = self.traffic.send(&self.net, self.options.generator_core, load, false)?;
        let source_ns = alone.cpu_ns as f64 / alone.packets.max(1) as f64;
        let flood = self.flood()?;
        let [sent, arrived] =
            [flood.made.packets, flood.arrived.packets].map(|packets| packets.max(1) as f64);
        let behind_ns = flood.process_ns.unwrap_or(0) + flood.beside_ns;
        let cpu_ns = flood.made.cpu_ns as f64 / sent + behind_ns as f64 / arrived;
        let offered_mpps = sent * 1000.0 / flood.made.lasted_ns.max(1) as f64;
        let flood_mpps = flood.mpps();
        let search = Search { tolerance: self.options.tolerance, resolution: RESOLUTION };
        let most = (flood_mpps * 1.2).min(offered_mpps);
        let no_loss_mpps = search::highest(search, most, |rate, is_long| {
            let time = if is_long { self.options.confirm } else { self.options.trial };
            let trial = self.at(rate, time, BATCH)?;
            let loss = trial.lost() as f64 / trial.made.packets.max(1) as f64;
            Ok::<_, Error>(Shown { loss, disturbed: trial.gap_ns() > DISTURBED_NS })
        })?;
        let sets = self.running.sets;
        let process_ns = flood.process_ns.map(|ns| ns as f64 / arrived);
        let (mut late_ns, mut gap_ns) = (self.late_ns, self.gap_ns);
        let mut note = |held: &Self| {
            late_ns = late_ns.max(held.late_ns);
            gap_ns = gap_ns.max(held.gap_ns);
        };
        let (options, contender, stop) = (self.options, self.contender, self.stop);
        let (high, low, totals) = match no_loss_mpps {
            None => (None, None, self.finish()?.0),
            Some(rate) => {
                let trial = self.at(rate * LOW, options.confirm, 1)?;
                note(&self);
                let (mut totals, records, counted) = self.finish()?;
                let low = Held::new(&trial, totals, records, counted);
                let most = MOST / (rate * HIGH * 1e6);
                if options.hold.as_secs_f64() > most {
                    return Err(Error::Forward(format!(
                        "{:.2} Mpps for {:?} are more packets than can be counted; expected --hold {most:.0}s or less",
                        rate * HIGH,
                        options.hold
                    )));
                }
                // A process of its own, so that all that it counts is of this rate.
                let mut alone = Bench::new(options, contender, stop)?;
                let trial = alone.at(rate * HIGH, options.hold, BATCH)?;
                note(&alone);
                let (held, records, counted) = alone.finish()?;
                totals.add(&held);
                (Some(Held::new(&trial, held, records, counted)), Some(low), totals)
            }
        };
        Ok(Round {
            flood_mpps,
            offered_mpps,
            cpu_ns,
            process_ns,
            no_loss_mpps,
            high,
            low,
            totals,
            late_ns,
            gap_ns,
            sets,
            source_ns,
        })
    }

    /// Ends the forwarder: what became of all packets, and of our run its flow records beside what was sent, and what it has counted.
    fn finish(self) -> Result<(Totals, Option<Records>, Option<Counted>), Error> {
        let counted = self.running.stop()?;
        // What arrived late is in no trial, but in the total. A veth counts what it drops where it is sent.
        thread::sleep(QUIET);
        let mut totals = Totals {
            arrived: self.traffic.total()?,
            link_in: self.net.generator.dropped_at_sending("c0")?,
            link_out: self.net.forwarder.dropped_at_sending("pb")?,
            ..self.totals
        };
        if let Some(counted) = &counted {
            count(&mut totals, &counted.summary);
        }
        let mut sent = HashMap::new();
        for (flow, packets) in self.flows.iter().zip(&self.sent) {
            *sent.entry(*flow).or_default() += packets;
        }
        let records = counted.as_ref().and_then(|counted| {
            let recorded = counted.recorded.as_ref()?;
            Some(Records::compare(recorded, &sent, totals.link_in + totals.receiving))
        });
        Ok((totals, records, counted))
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Adds what our run has counted.
fn count(totals: &mut Totals, summary: &Value) {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let sum = |value: &Value| value.as_object().map_or(0, |all| all.values().map(number).sum());
    totals.judged = sum(&summary["dropped"]);
    for interface in summary["interfaces"].as_array().into_iter().flatten() {
        totals.receiving += lost(interface) + number(&interface["unread"]);
        totals.sending += sum(&interface["not_sent"]);
    }
}

/// Nanoseconds that the kernel's threads for packets have run, on all processors.
fn kernel_threads_ns() -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    let paths = processes.map(|entry| entry.path()).filter(is_one);
    paths.filter_map(|path| cpu_ns(&path.join("schedstat").display().to_string()).ok()).sum()
}

/// A row for each contender.
fn rows(options: &Options, contenders: &[Contender<'_>], rounds: &[Vec<Round>]) -> Vec<Value> {
    contenders
        .iter()
        .zip(rounds)
        .map(|(contender, own)| row(options, contender, own, contenders, rounds))
        .collect()
}

fn row(
    options: &Options,
    contender: &Contender<'_>,
    own: &[Round],
    contenders: &[Contender<'_>],
    rounds: &[Vec<Round>],
) -> Value {
    let mut row = Map::new();
    let mut set = |name: &str, value: Value| row.insert(name.into(), value);
    set("workload", contender.workload(options).into());
    set("forwarder", contender.forwarder.to_string().into());
    set("rules", contender.list.map_or(0, |list| list.rules.len()).into());
    set("packet_size", contender.size.into());
    set("flows", options.flows.into());
    if matches!(contender.forwarder, Forwarder::Packetloom(..)) {
        set("workers", options.workers.into());
    }
    set("rounds", options.rounds.into());
    for (name, of) in FIGURES {
        let values = own.iter().filter_map(of).collect::<Vec<_>>();
        // A rate that was not found in a round is none.
        let values = if values.len() == own.len() { sorted(values) } else { Vec::new() };
        let at = |share: f64| {
            if values.is_empty() { Value::Null } else { rounded(quantile(&values, share)).into() }
        };
        set(name, at(0.5));
        if SPREAD.contains(&name) {
            set(&format!("{name}_min"), at(0.0));
            set(&format!("{name}_max"), at(1.0));
        }
    }
    let mut totals = Totals::default();
    own.iter().for_each(|round| totals.add(&round.totals));
    set("sent", totals.sent.into());
    set("received", totals.arrived.into());
    set("dropped_before", totals.link_in.into());
    set("dropped_receiving", totals.receiving.into());
    set("dropped_by_chain", totals.judged.into());
    set("dropped_sending", totals.sending.into());
    set("dropped_behind", totals.link_out.into());
    let difference = totals.sent as i64 - totals.arrived as i64 - totals.counted() as i64;
    set("unaccounted", difference.into());
    let held = || own.iter().filter_map(|round| round.high.as_ref());
    let sum = |of: fn(&Totals) -> u64| held().map(|held| of(&held.totals)).sum::<u64>();
    set("sent_98", sum(|totals| totals.sent).into());
    set("lost_98", sum(|totals| totals.sent.saturating_sub(totals.arrived)).into());
    set("dropped_98", sum(Totals::counted).into());
    set("dropped_before_98", sum(|totals| totals.link_in).into());
    if let Some(records) = held().map(|held| held.records).collect::<Option<Vec<_>>>()
        && !records.is_empty()
    {
        set("recorded_98", records.iter().map(|records| records.packets).sum::<u64>().into());
        set("wrong_flows_98", records.iter().map(|records| records.wrong_flows).sum::<u64>().into());
    }
    if held().any(|held| !held.loads.is_empty()) {
        set("lost_in_stalls_98", held().map(|held| held.lost_in_stalls).sum::<u64>().into());
    }
    let mut turn = |name: &str, of: fn(&Round) -> Option<&Held>| {
        let turns = own.iter().filter_map(|round| of(round)?.longest_turn_us());
        if let Some(longest) = turns.reduce(f64::max) {
            set(name, rounded(longest).into());
        }
    };
    turn("turn_98_us", |round| round.high.as_ref());
    turn("turn_10_us", |round| round.low.as_ref());
    let longest = |of: fn(&Round) -> u64| own.iter().map(of).max().unwrap_or(0) as f64 / 1000.0;
    set("generator_gap_us", rounded(longest(|round| round.late_ns)).into());
    set("arrival_gap_us", rounded(longest(|round| round.gap_ns)).into());
    if let Some(sets) = own.first().and_then(|round| round.sets) {
        set("sets", sets.into());
    }
    let ours =
        ours(contender, contenders).and_then(|place| Some((contenders[place].forwarder, rounds.get(place)?)));
    if let Some((against, ours)) = ours {
        let ratios =
            |of: fn(&Round, &Round) -> f64| sorted(ours.iter().zip(own).map(|(a, b)| of(a, b)).collect());
        let rates = ratios(|ours, peer| ours.flood_mpps / peer.flood_mpps);
        set("against", against.to_string().into());
        set("peer_ratio", rounded(quantile(&rates, 0.5)).into());
        set("peer_ratio_min", rounded(quantile(&rates, 0.0)).into());
        set("peer_ratio_max", rounded(quantile(&rates, 1.0)).into());
        let cpu = ratios(|ours, peer| (peer.cpu_ns - peer.source_ns) / (ours.cpu_ns - ours.source_ns));
        set("peer_cpu_ratio", rounded(quantile(&cpu, 0.5)).into());
    }
    Value::Object(row)
}

/// Our run that a peer is compared with: over the same packets and rules, by the same sockets, or the first of several.
fn ours(peer: &Contender<'_>, contenders: &[Contender<'_>]) -> Option<usize> {
    let name = |list: Option<&List>| list.map(|list| list.name.clone());
    contenders.iter().position(|own| {
        let Forwarder::Packetloom(sockets, _) = own.forwarder else { return false };
        let fits = match peer.forwarder {
            Forwarder::Packetloom(..) => false,
            Forwarder::Testpmd(of) => of == sockets && own.list.is_none(),
            _ => true,
        };
        fits && own.size == peer.size && name(own.list) == name(peer.list)
    })
}

/// Figures of a round, by name.
type Figure = (&'static str, fn(&Round) -> Option<f64>);

const FIGURES: [Figure; 12] = [
    ("no_loss_mpps", |round| round.no_loss_mpps),
    ("flood_mpps", |round| Some(round.flood_mpps)),
    ("offered_mpps", |round| Some(round.offered_mpps)),
    ("cpu_ns_per_packet", |round| Some(round.cpu_ns)),
    ("process_ns_per_packet", |round| round.process_ns),
    ("source_ns_per_packet", |round| Some(round.source_ns)),
    ("latency_98_us_p50", |round| Some(round.high.as_ref()?.ways[0])),
    ("latency_98_us_p99", |round| Some(round.high.as_ref()?.ways[1])),
    ("latency_98_us_max", |round| Some(round.high.as_ref()?.ways[2])),
    ("latency_10_us_p50", |round| Some(round.low.as_ref()?.ways[0])),
    ("latency_10_us_p99", |round| Some(round.low.as_ref()?.ways[1])),
    ("latency_10_us_max", |round| Some(round.low.as_ref()?.ways[2])),
];

/// Those of which the lowest and the highest of the rounds are told, too.
const SPREAD: [&str; 3] = ["no_loss_mpps", "flood_mpps", "cpu_ns_per_packet"];
