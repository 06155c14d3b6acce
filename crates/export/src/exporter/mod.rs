//! Flow records on their way to a collector or a file, encoded and sent by a thread of their own.
//!
//! Between the run and the thread is a queue of bounded size. A run over a capture waits while it is full; a run over interfaces does not:
//! records that find no room are counted, and are gone.
//!
//! - `destination`: where records are sent, as users write it.
//! - `datagrams`: over UDP, at a pace.
//! - `session`: over TCP or TLS, each message kept until it has arrived.
//! - `connection`: a connection that never waits.
//! - `folder`: to Parquet files.
//! - `topic`: to a topic of Kafka.

mod connection;
mod datagrams;
mod destination;
#[cfg(feature = "parquet")]
mod folder;
mod session;
mod topic;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use packetloom_io::output::Output;
use packetloom_packet::{FlowRecord, Timestamp};

use self::connection::Tls;
use self::datagrams::Datagrams;
pub use self::destination::{Destination, Host};
use self::session::Session;
use crate::Error;
use crate::fields::Fields;
use crate::messages::{Encoder, Options, Protocol, Statistics};
use crate::{kafka, parquet};

/// Records that wait for the thread.
const ROOM: usize = 1 << 17;

/// How long records wait in a message for others.
const HOLD: Duration = Duration::from_millis(100);

/// How long a run over a capture waits for a collector that takes nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it is waited at the end for a collector that takes nothing, and then for a thread that does not end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// The same for brokers of Kafka, which may have to choose a leader first.
const BROKER_PATIENCE: Duration = Duration::from_secs(30);

/// Records of a buffer that is kept for others.
const SPARE: usize = 1 << 11;

/// Nanoseconds after its interval at which a file is finished that nothing comes for.
const AFTER: u64 = 1_000_000_000;

/// How often it is looked whether messages have arrived.
const LOOK: Duration = Duration::from_millis(10);

/// Where records are sent, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub to: Destination,
    /// What they become.
    pub format: Format,
    /// Over UDP, bytes a second at most; none is as fast as they come.
    pub rate: Option<u64>,
    /// How often messages say what was exported so far.
    pub statistics_interval: Option<Duration>,
    /// Over TLS.
    pub tls: TlsSettings,
}

/// What records become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// IPFIX or NetFlow v9 messages.
    Messages(Options),
    /// Parquet files.
    Parquet(parquet::Options),
    /// Messages of a topic.
    Kafka(kafka::Options),
}

impl Format {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Messages(options) => options.protocol.name(),
            Self::Parquet(_) => "parquet",
            Self::Kafka(_) => "kafka",
        }
    }

    /// Its name for people.
    pub const fn title(&self) -> &'static str {
        match self {
            Self::Messages(options) => options.protocol.title(),
            Self::Parquet(_) => "Parquet",
            Self::Kafka(_) => "Kafka",
        }
    }

    /// Which fields records have.
    pub const fn fields(&self) -> Fields {
        match self {
            Self::Messages(Options { fields, .. })
            | Self::Parquet(parquet::Options { fields, .. })
            | Self::Kafka(kafka::Options { fields, .. }) => *fields,
        }
    }

    /// How long it is waited at the end for whoever takes nothing.
    const fn last_patience(&self) -> Duration {
        match self {
            Self::Messages(_) | Self::Parquet(_) => LAST_PATIENCE,
            Self::Kafka(_) => BROKER_PATIENCE,
        }
    }

    /// Data records, rows or messages of a topic that a flow record becomes.
    fn records(&self, record: &FlowRecord) -> u64 {
        match self {
            Self::Messages(options) => options.flows(record),
            Self::Parquet(_) | Self::Kafka(_) => 1,
        }
    }
}

/// Who the two sides of a TLS connection are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// A file with the certificates that the collector's is signed by; without it, those that the machine trusts.
    pub ca: Option<PathBuf>,
    /// Files with the certificates and the private key that are shown to a collector.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the collector's certificate has, if it is not that of its host.
    pub name: Option<String>,
}

impl Settings {
    /// # Errors
    ///
    /// [`Error::Settings`] for what does not go together.
    pub fn check(&self) -> Result<(), Error> {
        let Self { to, format, rate, statistics_interval, tls } = self;
        let is_tls = matches!(to, Destination::Tls(_));
        let wrong = |why: &str| Err(Error::Settings(format!("{to}: {why}")));
        if rate.is_some() && !matches!(to, Destination::Udp(_)) {
            return wrong("a rate; expected one with udp:// only: others take what they can");
        }
        if !is_tls && *tls != TlsSettings::default() {
            return wrong("certificates; expected them with tls:// only");
        }
        if !matches!(format, Format::Messages(_)) && statistics_interval.is_some() {
            return wrong("statistics; expected them with IPFIX and NetFlow v9 only");
        }
        let messages = match (format, to) {
            (Format::Messages(_), Destination::Folder(_)) => {
                return wrong("messages in a folder; expected Parquet files there");
            }
            (Format::Messages(_), Destination::Kafka { .. }) => {
                return wrong("IPFIX or NetFlow v9 in a topic; expected the protocol kafka there");
            }
            (Format::Messages(messages), _) => messages,
            (Format::Kafka(options), Destination::Kafka { .. }) => {
                return options.check().map_err(|e| Error::Settings(format!("{to}: {e}")));
            }
            (Format::Kafka(_), _) => return wrong("Kafka; expected kafka://HOST:PORT/TOPIC"),
            (Format::Parquet(options), Destination::Folder(_)) => {
                return options.check().map_err(|e| Error::Settings(format!("{to}: {e}")));
            }
            (Format::Parquet(_), _) => return wrong("Parquet; expected a folder for the files"),
        };
        if messages.protocol == Protocol::NetflowV9 && !matches!(to, Destination::Udp(_)) {
            return wrong("NetFlow v9 is for datagrams; expected udp://HOST:PORT, or IPFIX");
        }
        // With the headers of IP and UDP, no packet is longer than 65,535 bytes.
        if matches!(to, Destination::Udp(_)) && messages.message_len > 65_507 {
            return wrong("messages of more than 65,507 bytes; expected shorter ones with udp://");
        }
        messages.check().map_err(|e| Error::Settings(format!("{to}: {e}")))
    }
}

/// What became of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were sent: over TCP and TLS and to a topic, that have arrived.
    pub messages: u64,
    /// Parquet files that are complete.
    pub files: u64,
    /// Data records of flows in messages: two for a flow with packets both ways, unless records are of both directions. Rows of files, messages of a topic.
    pub records: u64,
    /// Bytes of the messages, or files.
    pub bytes: u64,
    /// Data records that were not sent, rows that were not written, messages that no broker has acknowledged.
    pub not_sent: u64,
    /// Names of records for which messages had no room.
    pub names_left_out: u64,
    /// Over UDP: times that the collector's machine said that nobody listens.
    pub refused: u64,
    /// Connections after the first one.
    pub reconnects: u64,
    /// Messages that were sent again over another connection.
    pub resent: u64,
}

/// Sends flow records. Dropped before [`Exporter::finish`], it sends no more.
#[derive(Debug)]
pub struct Exporter {
    settings: Settings,
    name: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Vec<Output>>>,
    /// Files that are complete, but for their names.
    outputs: Vec<Output>,
    /// How long it waits for room while the thread does not come forward, if it waits; and since when it does not any more.
    patience: Option<Duration>,
    gave_up: Option<Instant>,
    /// Whether a file is read by nobody any more.
    is_left: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Vec<FlowRecord>>,
    /// Records of all of them.
    len: usize,
    spare: Vec<Vec<FlowRecord>>,
    /// When the thread last came forward.
    moved: Instant,
    /// That a file gets its name now; that nothing more comes; that there is no time to wait for what has not arrived; that the thread has
    /// ended.
    appears: bool,
    is_over: bool,
    is_abandoned: bool,
    is_done: bool,
    counts: Counts,
    /// Data records that found no room.
    no_room: u64,
    notices: VecDeque<String>,
    failed: Option<packetloom_io::Error>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records to be sent, which are waited for so long; whether none come any more.
    fn take(&self, time: Duration) -> (Option<Vec<FlowRecord>>, bool) {
        let mut queue = self.queue();
        if queue.waiting.is_empty() && !queue.is_over {
            queue = self.wait(queue, time);
        }
        let records = queue.waiting.pop_front();
        if let Some(records) = &records {
            queue.len -= records.len();
            self.changed.notify_all();
        }
        (records, queue.is_over)
    }

    /// Takes back what records came in, since they have gone on.
    fn give_back(&self, mut records: Vec<FlowRecord>) {
        records.clear();
        let mut queue = self.queue();
        queue.moved = Instant::now();
        if queue.spare.len() < 64 && records.capacity() <= SPARE {
            queue.spare.push(records);
        }
    }

    /// Says that the thread has ended: counts what it did not come to.
    fn end(&self, mut counts: Counts, format: &Format) {
        let mut queue = self.queue();
        counts.not_sent +=
            queue.waiting.drain(..).flatten().map(|record| format.records(&record)).sum::<u64>();
        queue.counts = counts;
        queue.is_done = true;
        drop(queue);
        self.changed.notify_all();
    }

    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>, time: Duration) -> MutexGuard<'q, Queue> {
        self.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Exporter {
    /// Begins to export: resolves names, connects. The file of a destination that is one is `output`. With `waits`, [`Exporter::export`]
    /// waits for room, and a collector that cannot be connected to and a file that cannot be written are errors; without it, the one is tried
    /// again, and the other said.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn start(settings: Settings, output: Option<Output>, waits: bool) -> Result<Self, Error> {
        settings.check()?;
        let name = settings.to.to_string();
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                len: 0,
                spare: Vec::new(),
                moved: Instant::now(),
                appears: false,
                is_over: false,
                is_abandoned: false,
                is_done: false,
                counts: Counts::default(),
                no_room: 0,
                notices: VecDeque::new(),
                failed: None,
            }),
            changed: Condvar::new(),
        });
        let work: Box<dyn FnOnce() -> Vec<Output> + Send> = match (&settings.format, &settings.to) {
            (Format::Messages(options), to) => {
                let way = Way::open(&settings, options.protocol, output, waits)?;
                let encoder = Encoder::new(options.clone());
                let sender = Sender {
                    shared: Arc::clone(&shared),
                    name: name.clone(),
                    encoder: encoder.map_err(|e| Error::Settings(format!("{to}: {e}")))?,
                    way,
                    fails: waits,
                    options: options.clone(),
                    statistics_interval: settings.statistics_interval,
                    said: Instant::now(),
                    held: None,
                    has_begun: false,
                    latest: Timestamp::default(),
                    counts: Counts::default(),
                    is_broken: false,
                    has_warned: (false, false),
                };
                Box::new(|| sender.run())
            }
            #[cfg(feature = "parquet")]
            (Format::Parquet(options), Destination::Folder(path)) => {
                let writer = folder::Folder::open(Arc::clone(&shared), path.clone(), options.clone(), waits)?;
                Box::new(|| writer.run())
            }
            (Format::Kafka(options), Destination::Kafka { brokers, topic }) => {
                let (shared, name) = (Arc::clone(&shared), name.clone());
                let topic = topic::Topic::open(shared, name, (brokers, topic), options.clone(), waits)?;
                Box::new(|| topic.run())
            }
            (Format::Kafka(_), to) => {
                return Err(Error::Settings(format!("{to}: Kafka; expected kafka://HOST:PORT/TOPIC")));
            }
            (Format::Parquet(_), to) => {
                let text = "this build writes no Parquet files; expected one with the feature parquet";
                return Err(Error::Settings(format!("{to}: {text}")));
            }
        };
        let thread = thread::Builder::new().name("export".into()).spawn(work);
        let thread = thread.map_err(|source| Error::Io { to: name.clone(), source })?;
        let patience = waits.then_some(PATIENCE);
        Ok(Self {
            settings,
            name,
            shared,
            thread: Some(thread),
            outputs: Vec::new(),
            patience,
            gave_up: None,
            is_left: false,
        })
    }

    /// Where it sends, and how.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Gives a file its name now, since it is going to grow for long.
    pub fn appear(&mut self) {
        self.shared.queue().appears = true;
    }

    /// From now on nothing else has to be done than to wait for records to arrive.
    pub fn linger(&mut self) {
        self.patience.get_or_insert(self.settings.format.last_patience());
        self.gave_up = None;
        self.shared.queue().moved = Instant::now();
    }

    /// Sends records, in order.
    ///
    /// # Errors
    ///
    /// [`Error::File`] where a file cannot be written, once.
    pub fn export(&mut self, records: &[FlowRecord]) -> Result<(), Error> {
        if self.is_left {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue();
        for part in records.chunks(ROOM / 8) {
            let begun = Instant::now();
            // Where it came forward again, it is waited for again.
            self.gave_up = self.gave_up.filter(|&at| queue.moved <= at);
            while let Some(patience) = self.patience
                && self.gave_up.is_none()
                && queue.len + part.len() > ROOM
                && !queue.is_done
            {
                if queue.moved.max(begun).elapsed() > patience {
                    let (name, seconds) = (&self.name, patience.as_secs());
                    let text =
                        format!("{name}: took nothing for {seconds} s; records are left out, and counted");
                    queue.notices.push_back(text);
                    self.gave_up = Some(Instant::now());
                    break;
                }
                queue = shared.wait(queue, HOLD);
            }
            if let Some(error) = queue.failed.take() {
                self.is_left = error.is_broken_pipe();
                return Err(Error::File(error));
            }
            if queue.len + part.len() > ROOM || queue.is_done {
                if queue.no_room == 0 && self.patience.is_none() {
                    queue
                        .notices
                        .push_back(format!("{}: too slow; records are left out, and counted", self.name));
                }
                queue.no_room += part.iter().map(|record| self.settings.format.records(record)).sum::<u64>();
                continue;
            }
            let mut held = queue.spare.pop().unwrap_or_default();
            held.extend_from_slice(part);
            queue.len += held.len();
            queue.waiting.push_back(held);
            shared.changed.notify_all();
        }
        Ok(())
    }

    /// Says that no records come any more. Several exporters are all closed before the first one is [finished](Self::finish).
    pub fn close(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_over = true;
        queue.moved = Instant::now();
        self.shared.changed.notify_all();
    }

    /// Waits until all records have arrived, as long as the collector comes forward at least every five seconds, a broker every 30.
    ///
    /// # Errors
    ///
    /// [`Error::File`] where a file cannot be written.
    pub fn finish(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue();
        queue.is_over = true;
        shared.changed.notify_all();
        let patience = self.settings.format.last_patience();
        let mut abandoned = queue.is_abandoned.then(Instant::now);
        // A thread that panics does not say that it is done.
        while !queue.is_done && !thread.is_finished() {
            let idle = queue.moved.elapsed();
            match abandoned {
                None if idle > patience => {
                    let (name, seconds) = (&self.name, patience.as_secs());
                    let text =
                        format!("{name}: took nothing for {seconds} s; what has not arrived is counted");
                    queue.notices.push_back(text);
                    queue.is_abandoned = true;
                    abandoned = Some(Instant::now());
                }
                // It waits for a pipe that nobody reads: it is left alone.
                Some(at) if at.elapsed() > LAST_PATIENCE => break,
                _ => {}
            }
            queue = shared.wait(queue, HOLD);
        }
        let left: Vec<_> = queue.waiting.drain(..).collect();
        queue.no_room +=
            left.iter().flatten().map(|record| self.settings.format.records(record)).sum::<u64>();
        let failed = queue.failed.take();
        let is_done = queue.is_done || thread.is_finished();
        drop(queue);
        if is_done {
            let joined = thread.join();
            self.outputs =
                joined.map_err(|_| Error::Settings(format!("{}: the exporting thread failed", self.name)))?;
        }
        match failed {
            Some(error) => {
                self.is_left = error.is_broken_pipe();
                Err(Error::File(error))
            }
            None => Ok(()),
        }
    }

    /// Gives files their names, once it is [finished](Self::finish).
    ///
    /// # Errors
    ///
    /// [`Error::File`].
    pub fn publish(mut self) -> Result<(), Error> {
        self.finish()?;
        if self.is_left {
            return Ok(());
        }
        self.outputs.drain(..).try_for_each(|output| output.finish().map_err(Error::File))
    }

    /// Whether it has a file that nobody reads any more.
    pub fn is_left(&self) -> bool {
        self.is_left
    }

    /// What became of records so far.
    pub fn counts(&self) -> Counts {
        let queue = self.shared.queue();
        Counts { not_sent: queue.counts.not_sent + queue.no_room, ..queue.counts }
    }

    /// Something that the user should know, if there is anything.
    pub fn notice(&mut self) -> Option<String> {
        self.shared.queue().notices.pop_front()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let mut queue = self.shared.queue();
            (queue.is_over, queue.is_abandoned) = (true, true);
            queue.waiting.clear();
            drop(queue);
            let _ = self.finish();
        }
    }
}

/// What messages leave by.
enum Way {
    Datagrams(Datagrams),
    Session(Box<Session>),
    File(Box<Output>),
}

impl Way {
    fn open(
        settings: &Settings,
        protocol: Protocol,
        output: Option<Output>,
        waits: bool,
    ) -> Result<Self, Error> {
        let name = settings.to.to_string();
        let default_port = settings.to.default_port(protocol);
        let session = |host: &Host, tls| {
            Session::open(name.clone(), host.clone(), default_port, tls, waits)
                .map(|it| Self::Session(Box::new(it)))
        };
        Ok(match &settings.to {
            Destination::Udp(host) => Self::Datagrams(Datagrams::open(host, default_port, settings.rate)?),
            Destination::Tcp(host) => session(host, None)?,
            Destination::Tls(host) => session(host, Some(Tls::new(&settings.tls, &host.name)?))?,
            Destination::File(_) | Destination::Folder(_) | Destination::Kafka { .. } => {
                let output =
                    output.ok_or_else(|| Error::Settings(format!("{name}: no file is open for it")))?;
                Self::File(Box::new(output))
            }
        })
    }
}

/// What the thread has.
struct Sender {
    shared: Arc<Shared>,
    name: String,
    encoder: Encoder,
    way: Way,
    /// Whether a file that cannot be written ends the run.
    fails: bool,
    options: Options,
    statistics_interval: Option<Duration>,
    /// When statistics were last sent.
    said: Instant,
    /// Since when a record waits in a message, if one does.
    held: Option<Instant>,
    /// Whether a file has its templates, and the latest time of a record.
    has_begun: bool,
    latest: Timestamp,
    counts: Counts,
    /// Whether a file cannot be written any more.
    is_broken: bool,
    /// Whether it was said that nobody listens, and that messages fail.
    has_warned: (bool, bool),
}

impl Sender {
    fn run(mut self) -> Vec<Output> {
        loop {
            let (records, is_over) = self.take();
            let is_idle = records.is_none();
            if let Some(records) = records {
                self.encode(&records);
                self.shared.give_back(records);
            }
            let is_held_for_long = self.held.is_some_and(|since| since.elapsed() >= HOLD);
            if is_idle && (is_over || self.repeats_templates()) || is_held_for_long {
                self.flush();
            }
            if self.statistics_interval.is_some_and(|every| self.said.elapsed() >= every) && self.has_room() {
                self.say_statistics(false);
            }
            self.advance();
            if is_idle && is_over {
                break;
            }
        }
        self.end()
    }

    /// Whether templates are to leave though no record does: a collector of datagrams may have come since they last left.
    fn repeats_templates(&mut self) -> bool {
        matches!(self.way, Way::Datagrams(_)) && self.encoder.are_templates_due(wall_clock())
    }

    /// Whether more messages can be made.
    fn has_room(&self) -> bool {
        match &self.way {
            Way::Session(session) => session.has_room(),
            Way::Datagrams(_) | Way::File(_) => true,
        }
    }

    /// Records to be sent, where there is room for them; whether none come any more.
    fn take(&mut self) -> (Option<Vec<FlowRecord>>, bool) {
        if !self.has_room() {
            let is_over = self.shared.queue().is_abandoned;
            if !is_over {
                self.wait(LOOK);
            }
            return (None, is_over);
        }
        // A connection is looked after meanwhile.
        let time = match &self.way {
            Way::Session(session) if !session.is_empty() => LOOK,
            _ => HOLD,
        };
        self.shared.take(time)
    }

    /// The time that messages have: of a file, that of the records in it, so that the same packets give the same file.
    fn now(&self) -> Timestamp {
        match &self.way {
            Way::File(_) => self.latest,
            _ => wall_clock(),
        }
    }

    /// Has a file begin with templates; of several, each.
    fn begin_file(&mut self, time: Timestamp) {
        let Self { shared, encoder, way: Way::File(output), counts, .. } = self else { return };
        encoder.flush(time, &mut |message, _| match output.write_header(message) {
            Ok(()) => {
                counts.messages += 1;
                counts.bytes += message.len() as u64;
            }
            Err(error) => {
                shared.queue().failed.get_or_insert(error);
            }
        });
    }

    fn encode(&mut self, records: &[FlowRecord]) {
        let Some(first) = records.first() else { return };
        if !std::mem::replace(&mut self.has_begun, true) {
            self.begin_file(first.end());
        }
        let mut now = self.now();
        self.with_encoder(|encoder, outlet| {
            for record in records {
                if let Way::File(_) = outlet.way {
                    now = now.max(record.end());
                    *outlet.latest = now;
                }
                encoder.record(record, now, &mut |message, records| outlet.send(message, records));
            }
        });
        self.held.get_or_insert_with(Instant::now);
    }

    /// Sends what waits in a message.
    fn flush(&mut self) {
        let now = self.now();
        self.with_encoder(|encoder, outlet| {
            encoder.flush(now, &mut |message, records| outlet.send(message, records));
            if let Way::File(output) = outlet.way
                && let Err(error) = output.flush()
            {
                outlet.fail(error);
            }
        });
        self.held = None;
    }

    /// Says what was exported so far; in a file, which is the same whenever it is written, at its end only.
    fn say_statistics(&mut self, is_last: bool) {
        self.said = Instant::now();
        if matches!(self.way, Way::File(_)) && !(is_last && self.has_begun) {
            return;
        }
        let now = self.now();
        let no_room = self.shared.queue().no_room;
        let Counts { messages, records, bytes, not_sent, .. } = self.counts;
        let statistics = Statistics { messages, records, octets: bytes, lost_records: not_sent + no_room };
        self.with_encoder(|encoder, outlet| {
            encoder.statistics(&statistics, now, &mut |message, records| outlet.send(message, records));
        });
        self.flush();
    }

    fn with_encoder(&mut self, work: impl FnOnce(&mut Encoder, &mut Outlet<'_>)) {
        let Self { shared, name, encoder, way, fails, latest, counts, is_broken, has_warned, .. } = self;
        work(
            encoder,
            &mut Outlet { shared, name, way, fails: *fails, latest, counts, is_broken, has_warned },
        );
        self.counts.names_left_out = self.encoder.names_left_out();
        self.publish();
    }

    /// Has a connection come forward, and a file get its name.
    fn advance(&mut self) {
        if let Way::Session(session) = &self.way
            && session.wants_preamble()
        {
            let mut preamble = Vec::new();
            // What waits leaves first: then templates are alone in their messages.
            self.flush();
            let now = self.now();
            let records = self.encoder.preamble(now, &mut |message, _| preamble.push(message.to_vec()));
            if let Way::Session(session) = &mut self.way {
                session.set_preamble(preamble, records);
            }
        }
        match &mut self.way {
            Way::Datagrams(_) => {}
            Way::Session(session) => {
                let has_moved = session.advance();
                let carried = session.carried();
                self.counts = Counts {
                    messages: carried.messages,
                    records: carried.records,
                    bytes: carried.bytes,
                    reconnects: carried.reconnects,
                    resent: carried.resent,
                    ..self.counts
                };
                let mut queue = self.shared.queue();
                queue.notices.extend(session.notices());
                if has_moved {
                    queue.moved = Instant::now();
                }
            }
            Way::File(output) => {
                let appears = std::mem::take(&mut self.shared.queue().appears);
                let mut result = if appears { output.appear() } else { Ok(()) };
                // While packets come from interfaces, files end with their intervals.
                if !self.fails {
                    let now = wall_clock().as_nanos().saturating_sub(AFTER);
                    result = result.and_then(|()| output.pass_time(now));
                }
                if let Err(error) = result {
                    self.with_encoder(|_, outlet| outlet.fail(error));
                }
            }
        }
        self.publish();
    }

    fn publish(&self) {
        self.shared.queue().counts = self.counts;
    }

    fn wait(&self, time: Duration) {
        match &self.way {
            Way::Session(session) => session.wait(time),
            Way::Datagrams(_) | Way::File(_) => thread::sleep(time),
        }
    }

    /// Waits for what has not arrived; the file, if it is one.
    fn end(mut self) -> Vec<Output> {
        // A file without records has its templates; of several, there is none.
        if let Way::File(output) = &self.way
            && !output.is_rotating()
            && !std::mem::replace(&mut self.has_begun, true)
        {
            self.begin_file(self.latest);
        }
        if self.statistics_interval.is_some() {
            self.say_statistics(true);
        }
        while let Way::Session(session) = &self.way
            && !session.is_empty()
            && !self.shared.queue().is_abandoned
        {
            session.wait(LOOK);
            self.advance();
        }
        match &mut self.way {
            Way::Session(session) => {
                self.counts.not_sent += session.left();
                session.close();
            }
            Way::Datagrams(datagrams) => self.counts.refused += u64::from(datagrams.is_refused()),
            Way::File(output) => {
                if !self.is_broken
                    && let Err(error) = output.settle()
                {
                    self.with_encoder(|_, outlet| outlet.fail(error));
                }
            }
        }
        self.shared.end(self.counts, &Format::Messages(self.options));
        match self.way {
            Way::File(output) => vec![*output],
            Way::Datagrams(_) | Way::Session(_) => Vec::new(),
        }
    }
}

fn wall_clock() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// Where messages go that the encoder has made.
struct Outlet<'s> {
    shared: &'s Shared,
    name: &'s str,
    way: &'s mut Way,
    fails: bool,
    latest: &'s mut Timestamp,
    counts: &'s mut Counts,
    is_broken: &'s mut bool,
    has_warned: &'s mut (bool, bool),
}

impl Outlet<'_> {
    fn send(&mut self, message: &[u8], records: u32) {
        let is_sent = match self.way {
            Way::Session(session) => return session.push(message, records),
            Way::Datagrams(datagrams) => {
                if self.shared.queue().is_abandoned {
                    self.counts.not_sent += u64::from(records);
                    return;
                }
                let before = self.counts.refused;
                let result = datagrams.send(message, &mut self.counts.refused);
                self.shared.queue().moved = Instant::now();
                if self.counts.refused > before && !std::mem::replace(&mut self.has_warned.0, true) {
                    self.say("nobody listens there; it is sent all the same".into());
                }
                if let Err(error) = &result
                    && !std::mem::replace(&mut self.has_warned.1, true)
                {
                    let why = packetloom_io::plain(error);
                    self.say(format!("a message of {} bytes was not sent: {why}", message.len()));
                }
                result.is_ok()
            }
            Way::File(_) if *self.is_broken => false,
            Way::File(output) => match output.write_record(self.latest.as_nanos(), message) {
                Ok(()) => true,
                Err(error) => {
                    self.fail(error);
                    false
                }
            },
        };
        if is_sent {
            self.counts.messages += 1;
            self.counts.records += u64::from(records);
            self.counts.bytes += message.len() as u64;
        } else {
            self.counts.not_sent += u64::from(records);
        }
    }

    /// Writes a file no further. That nobody reads it is for the run to know.
    fn fail(&mut self, error: packetloom_io::Error) {
        *self.is_broken = true;
        let mut queue = self.shared.queue();
        if self.fails || error.is_broken_pipe() {
            queue.failed.get_or_insert(error);
        } else {
            queue.notices.push_back(format!("{error}; records are left out, and counted"));
        }
    }

    fn say(&self, what: String) {
        self.shared.queue().notices.push_back(format!("{}: {what}", self.name));
    }
}
