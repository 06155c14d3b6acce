//! Records that become messages of a Kafka topic, in a thread of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_io::output::Output;
use packetloom_packet::FlowRecord;

use super::{Counts, Format, HOLD, LOOK, Shared};
use crate::kafka::{Full, Options, Producer};
use crate::{Error, LineFormat, Lines};

/// How long a run over a capture waits for a broker at the beginning.
const PROBE_MILLISECONDS: i32 = 5_000;

/// How long messages that were given up are waited for, which is for the library alone.
const GIVING_UP: Duration = Duration::from_secs(1);

/// What the thread has.
pub(super) struct Topic {
    shared: Arc<Shared>,
    name: String,
    options: Options,
    producer: Producer,
    lines: Lines,
    line: String,
    /// Records that were not handed to the producer.
    left_out: u64,
    /// Messages that had arrived when it was last looked.
    arrived: u64,
    /// Whether it was said that something is wrong since messages last arrived.
    has_warned: bool,
}

impl Topic {
    pub(super) fn open(
        shared: Arc<Shared>,
        name: String,
        (brokers, topic): (&str, &str),
        options: Options,
        waits: bool,
    ) -> Result<Self, Error> {
        let producer = Producer::new(brokers, topic, &options);
        let producer = producer.map_err(|why| Error::Settings(format!("{name}: {why}")))?;
        if waits {
            let found = producer.probe(PROBE_MILLISECONDS);
            found.map_err(|why| Error::Kafka { to: name.clone(), why })?;
        }
        let lines = Lines::new(LineFormat::Json, options.fields);
        let line = String::new();
        Ok(Self { shared, name, options, producer, lines, line, left_out: 0, arrived: 0, has_warned: false })
    }

    /// Sends until nothing more comes and everything has arrived, or is given up.
    pub(super) fn run(mut self) -> Vec<Output> {
        loop {
            // News of messages is looked for while some are under way.
            let time = if self.producer.waiting() > 0 { LOOK } else { HOLD };
            let (records, is_over) = self.shared.take(time);
            let is_idle = records.is_none();
            if let Some(records) = records {
                records.iter().for_each(|record| self.send(record));
                self.shared.give_back(records);
            }
            self.look(0);
            if is_idle && is_over {
                break;
            }
        }
        while self.producer.waiting() > 0 && !self.shared.queue().is_abandoned {
            self.look(LOOK.as_millis() as i32);
        }
        if self.producer.waiting() > 0 {
            self.producer.give_up();
            let begun = Instant::now();
            while self.producer.waiting() > 0 && begun.elapsed() < GIVING_UP {
                self.producer.poll(LOOK.as_millis() as i32);
            }
            // What the library holds on to has not arrived either.
            self.left_out += self.producer.waiting() as u64;
        }
        self.shared.end(self.counts(), &Format::Kafka(self.options));
        Vec::new()
    }

    fn send(&mut self, record: &FlowRecord) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        self.lines.write(&mut line, record);
        while let Err(Full) = self.producer.send(line.trim_end_matches('\n').as_bytes()) {
            if self.shared.queue().is_abandoned {
                self.left_out += 1;
                break;
            }
            self.look(LOOK.as_millis() as i32);
        }
        self.line = line;
    }

    fn look(&mut self, milliseconds: i32) {
        self.producer.poll(milliseconds);
        self.report();
    }

    fn counts(&self) -> Counts {
        let (messages, bytes) = self.producer.tally().delivered();
        let not_sent = self.producer.tally().failed() + self.left_out;
        Counts { messages, records: messages, bytes, not_sent, ..Counts::default() }
    }

    /// Tells what became of messages, and what is wrong, once until some arrive.
    fn report(&mut self) {
        let counts = self.counts();
        let trouble = self.producer.tally().trouble();
        let mut queue = self.shared.queue();
        queue.counts = counts;
        if counts.messages > self.arrived {
            queue.moved = Instant::now();
            (self.arrived, self.has_warned) = (counts.messages, false);
        }
        if let Some(why) = trouble
            && !std::mem::replace(&mut self.has_warned, true)
        {
            queue.notices.push_back(format!("{}: {why}", self.name));
        }
    }
}
