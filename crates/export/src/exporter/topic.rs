//! Records that become messages of a Kafka topic, in a thread of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_io::output::Output;
use packetloom_packet::FlowRecord;

use super::{Counts, Format, HOLD, LOOK, Shared};
use crate::kafka::{Full, Options, Producer};
use crate::{Error, LineFormat, Lines};

/// How long a run over a capture waits for a broker at the beginning.
const PROBE: Duration = Duration::from_secs(5);

/// How long nothing arrives until it is asked why, and for how long.
const SILENCE: Duration = Duration::from_secs(10);
const QUESTION: Duration = Duration::from_secs(1);

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
    /// Records that the producer has taken, and those that it has not.
    handed: u64,
    left_out: u64,
    /// Messages that had arrived when it was last looked; when some last did, or it was asked why none do.
    arrived: u64,
    looked: Instant,
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
            let found = producer.probe(PROBE);
            found.map_err(|why| Error::Kafka { to: name.clone(), why })?;
        }
        let lines = Lines::new(LineFormat::Json, options.fields).sampled(options.sampling);
        let line = String::new();
        Ok(Self {
            shared,
            name,
            options,
            producer,
            lines,
            line,
            handed: 0,
            left_out: 0,
            arrived: 0,
            looked: Instant::now(),
            has_warned: false,
        })
    }

    /// Sends until nothing more comes and everything has arrived, or is given up.
    pub(super) fn run(mut self) -> Vec<Output> {
        loop {
            // News of messages is looked for while some are under way.
            let time = if self.producer.waiting() > 0 { LOOK } else { HOLD };
            let (records, is_over) = self.shared.take(time);
            let is_idle = records.is_none();
            if let Some(records) = records {
                if self.producer.waiting() == 0 {
                    self.looked = Instant::now();
                }
                records.iter().for_each(|record| self.send(record));
                self.shared.give_back(records);
            }
            self.look(0);
            if is_idle && is_over {
                break;
            }
        }
        while self.producer.waiting() > 0 && !self.shared.queue().is_abandoned {
            self.producer.flush(LOOK.as_millis() as i32);
            self.report();
        }
        if self.producer.waiting() > 0 {
            self.producer.give_up();
            let begun = Instant::now();
            while self.producer.waiting() > 0 && begun.elapsed() < GIVING_UP {
                self.producer.poll(LOOK.as_millis() as i32);
            }
        }
        // What the library holds on to has not arrived either.
        let tally = self.producer.tally();
        self.left_out += self.handed.saturating_sub(tally.delivered().0 + tally.failed());
        self.shared.end(self.counts(), &Format::Kafka(self.options));
        Vec::new()
    }

    fn send(&mut self, record: &FlowRecord) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        self.lines.write(&mut line, record);
        let is_taken = loop {
            match self.producer.send(line.trim_end_matches('\n').as_bytes()) {
                Ok(()) => break true,
                Err(Full) if self.shared.queue().is_abandoned => break false,
                Err(Full) => self.look(LOOK.as_millis() as i32),
            }
        };
        *(if is_taken { &mut self.handed } else { &mut self.left_out }) += 1;
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
        let mut trouble = self.producer.tally().trouble();
        if self.producer.waiting() > 0 && self.looked.elapsed() > SILENCE && !self.has_warned {
            trouble = trouble.or(self.producer.probe(QUESTION).err());
            self.looked = Instant::now();
        }
        let mut queue = self.shared.queue();
        queue.counts = counts;
        if counts.messages > self.arrived {
            queue.moved = Instant::now();
            (self.arrived, self.looked, self.has_warned) = (counts.messages, queue.moved, false);
        }
        if let Some(why) = trouble
            && !std::mem::replace(&mut self.has_warned, true)
        {
            queue.notices.push_back(format!("{}: {why}", self.name));
        }
    }
}
