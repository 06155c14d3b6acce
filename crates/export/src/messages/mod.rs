//! Flow records as messages for a collector: IPFIX (RFC 7011, 7012; biflows: RFC 5103) and NetFlow v9 (RFC 3954).
//!
//! An [`Encoder`] takes flow records and hands out whole messages of at most [`Options::message_len`] bytes. It does
//! no I/O: each message goes to a callback, together with the number of flow data records in it. A message is what
//! goes into one datagram, or behind the one before on a TCP connection or in a file; IPFIX messages say their own
//! length, NetFlow v9 is for datagrams only.
//!
//! # Records
//! A record becomes one uniflow, or two of them where there were packets both ways: the second has addresses and
//! ports swapped, and its own times and counters. With [`Options::biflows`] it becomes one record with reverse
//! elements instead (RFC 5103 section 6); a record without packets the other way stays a uniflow.
//!
//! | element | number | bytes | |
//! | --- | --- | --- | --- |
//! | `flowStartMilliseconds`, `flowEndMilliseconds` | 152, 153 | 8 | since 1970, rounded down |
//! | `packetDeltaCount`, `octetDeltaCount` | 2, 1 | 8 | of the direction, since the record before of the same flow |
//! | `sourceTransportPort`, `destinationTransportPort` | 7, 11 | 2 | 0 where there are none |
//! | `tcpControlBits` | 6 | 2; v9: 1 | 0 for other protocols |
//! | `protocolIdentifier`, `ipVersion`, `flowEndReason` | 4, 60, 136 | 1 | |
//! | biflows: `biflowDirection` | 239 | 1 | 1: the source sent the first packet |
//! | biflows: 152, 153, 2, 1, 6 | PEN 29305 | 8, 2 | of the reverse direction |
//! | `sourceIPv4Address`, `destinationIPv4Address` | 8, 12 | 4 | |
//! | or `sourceIPv6Address`, `destinationIPv6Address` | 27, 28 | 16 | |
//!
//! That are the [basic fields](Fields::BASIC). With [others](Options::fields) the templates follow: their numbers and lengths are those of
//! [`crate::fields`], and of what a record does not have there are zeros. A record with a name has a template of its own; the name has its length before it
//! (RFC 7011 section 7). A record with several names has a `basicList` (291) for each field for names instead, in order and perhaps empty (RFC 6313
//! section 4.5.1), of as many names as fit into a message. NetFlow v9 has those of numbers below 128, and ICMP type and code together as number 32.
//!
//! Where one address is IPv4 and the other one IPv6, the IPv4 address is written as `::ffff:a.b.c.d`.
//!
//! # Time in NetFlow v9
//! RFC 3954 has `FIRST_SWITCHED` (22) and `LAST_SWITCHED` (21) only: 32 bits of milliseconds since the exporter's
//! boot time, which collectors compute as the header's UNIX seconds minus its system uptime. All collectors know
//! these two. A record has them if they say its times exactly; otherwise it has 152 and 153, as in IPFIX, by a
//! template of its own: records from old captures, from clocks ahead of `now`, or with a start after the end.
//!
//! - The boot time is a day on which nothing booted: 2^31 ms (24.8 days) before the first message, and chosen again
//!   before the uptime runs over, so that a flow may have begun long before the encoder did, and no uptime ever
//!   wraps.
//! - UNIX seconds are rounded up, and the uptime belongs to the rounded second. Collectors so find the boot time to
//!   the millisecond, and no record is later than its header, which some take for an overflow.
//!
//! # Templates
//! Templates have messages of their own, which never carry data: some collectors stumble over the padding where both
//! share one. They are sent [`Options::first_templates`] times before the first data, then again as the options say
//! (RFC 7011 section 8.4: over UDP they must be). Data never go out before their templates, nor with an earlier
//! export time (section 8.2).
//!
//! # Sampling
//! With [`Options::sampling`], options data behind the templates say how packets were sampled, so that collectors can scale counters, which are
//! those of the sampled packets. IPFIX has them as RFC 5476 section 6.5.2 says: `selectorId` (302), the scope, is 0; `selectorAlgorithm`
//! (304) is 1 with `samplingPacketInterval` (305) and `samplingPacketSpace` (306), or 4 with `samplingProbability` (311). NetFlow v9 has
//! `SAMPLING_INTERVAL` (34) and `SAMPLING_ALGORITHM` (35: 1 deterministic, 2 random). Beside them both have the interval (34) in a record of its own:
//! few collectors know a probability, and nfdump 1.7.1 passes over templates that have an algorithm. The templates are 512 and 513; the record of 513 comes first.
//!
//! # Sequence numbers
//! IPFIX: data records, those of options included, in messages before this one (RFC 7011 section 3.1, erratum 4396),
//! from 0 in each transport session. NetFlow v9: messages before this one (RFC 3954 section 5.1), and a new session
//! changes nothing.

mod chosen;
mod fields;
mod layout;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use packetloom_packet::{FlowRecord, Timestamp};

use self::chosen::{Chosen, Flow, Kind};
use self::layout::Direction;
use crate::fields::{Field, Fields, Way};

/// What a collector speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Version 10: RFC 7011.
    Ipfix,
    /// Version 9: RFC 3954.
    NetflowV9,
}

impl Protocol {
    /// Its name in options and summaries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipfix => "ipfix",
            Self::NetflowV9 => "netflow9",
        }
    }

    /// Its name in sentences.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ipfix => "IPFIX",
            Self::NetflowV9 => "NetFlow v9",
        }
    }

    const fn version(self) -> u16 {
        match self {
            Self::Ipfix => 10,
            Self::NetflowV9 => 9,
        }
    }

    const fn header_len(self) -> usize {
        match self {
            Self::Ipfix => 16,
            Self::NetflowV9 => 20,
        }
    }

    /// Set ids of templates and of options templates.
    const fn template_sets(self) -> [u16; 2] {
        match self {
            Self::Ipfix => [2, 3],
            Self::NetflowV9 => [0, 1],
        }
    }
}

/// What an [`Encoder`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of the messages.
    pub protocol: Protocol,
    /// The fields that records have.
    pub fields: Fields,
    /// One record for both directions instead of two. IPFIX only.
    pub biflows: bool,
    /// Observation domain (IPFIX) or source (NetFlow v9); also the scope of the statistics.
    pub domain: u32,
    /// Bytes that a message has at most: 128 to 65,535. A datagram that is not to be fragmented has room for 1,400 or
    /// so.
    pub message_len: usize,
    /// How often the templates are sent before the first data: once where nothing is lost, a few times over UDP.
    pub first_templates: u32,
    /// Templates are sent again after so many messages with data.
    pub template_packets: Option<NonZeroU32>,
    /// Templates are sent again after so long, by [`Encoder::flush`] even if there is no data.
    pub template_interval: Option<Duration>,
    /// How the packets were sampled, if they were: said behind templates each time.
    pub sampling: Option<Sampling>,
}

/// How packets were sampled that flow records are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Of how many packets one was taken.
    pub interval: NonZeroU32,
    /// Whether each packet was taken with the same probability, and not the first of every interval.
    pub is_random: bool,
}

impl Options {
    /// How many flow data records a record becomes: 1 or 2.
    pub fn flows(&self, record: &FlowRecord) -> u64 {
        if self.biflows { 1 } else { record.directions() }
    }

    /// # Errors
    ///
    /// Options that cannot be.
    pub fn check(&self) -> Result<(), OptionsError> {
        if !(128..=65_535).contains(&self.message_len) {
            return Err(OptionsError::MessageLength(self.message_len));
        }
        if self.first_templates == 0 {
            return Err(OptionsError::NoFirstTemplates);
        }
        if self.template_interval.is_some_and(|interval| interval.is_zero()) {
            return Err(OptionsError::NoInterval);
        }
        if self.biflows && self.protocol == Protocol::NetflowV9 {
            return Err(OptionsError::NetflowBiflows);
        }
        if let Some(chosen) = Chosen::new(self.fields, self.protocol) {
            let templates = chosen.templates(self.protocol, self.biflows);
            let template = templates.iter().map(Vec::len).max().unwrap_or(0);
            let [least, most] = chosen.lengths(self.protocol, self.biflows);
            let needs = self.protocol.header_len() + SET_HEADER + most.max(template) + SLACK;
            if needs > self.message_len {
                return Err(OptionsError::TooShort { needs });
            }
            if self.protocol == Protocol::Ipfix && !self.fields.iter().any(Field::is_in_messages) {
                return Err(OptionsError::IpfixFields);
            }
            // Otherwise padding would look like records (RFC 3954 section 5.3).
            if self.protocol == Protocol::NetflowV9 && least < 4 {
                return Err(OptionsError::NetflowFields);
            }
        }
        Ok(())
    }
}

/// Options that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A record with its headers, or a template, might not fit; or the length does not fit into its field.
    #[error("messages of {0} bytes are not possible; expected 128 to 65,535")]
    MessageLength(usize),
    /// A collector could decode nothing.
    #[error("templates are to be sent 0 times before the first data; expected at least once")]
    NoFirstTemplates,
    /// Templates would be sent before each message.
    #[error("templates are to be sent every 0 seconds; expected a longer interval, or none")]
    NoInterval,
    /// A record or its template does not fit.
    #[error(
        "the longest record or its template would not fit into a message; expected messages of at least {needs} bytes, or fewer fields"
    )]
    TooShort {
        /// Bytes of a message that has room.
        needs: usize,
    },
    /// Records would be so short that padding looks like them, or have nothing in them.
    #[error("of these fields NetFlow v9 has too few; expected some more, such as packetDeltaCount, or IPFIX")]
    NetflowFields,
    /// It has a number for none.
    #[error("IPFIX has none of these fields; expected some more, such as packetDeltaCount")]
    IpfixFields,
    /// It has no reverse elements.
    #[error("NetFlow v9 has no biflows; use IPFIX, or export two flows")]
    NetflowBiflows,
}

/// What an exporter did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages sent (`exportedMessageTotalCount`).
    pub messages: u64,
    /// Flow data records sent (`exportedFlowRecordTotalCount`).
    pub records: u64,
    /// Bytes of these messages (`exportedOctetTotalCount`).
    pub octets: u64,
    /// Flow data records that could not be sent (`notSentFlowTotalCount`).
    pub lost_records: u64,
}

/// Takes a message and the number of flow data records in it.
pub type Send<'a> = dyn FnMut(&[u8], u32) + 'a;

/// Packs flow records into messages. [`Encoder::flush`] before it is dropped: what is not sent yet is lost otherwise.
#[derive(Debug)]
pub struct Encoder {
    options: Options,
    /// What records look like, unless they have the basic fields.
    chosen: Option<Chosen>,
    /// The message that is being filled: `message_len` bytes, of which `at` are in use.
    buffer: Box<[u8]>,
    at: usize,
    /// Where the last set begins, and its id; 0 before there is one.
    set_at: usize,
    set_id: u16,
    /// Data records in the message, and those of them that are flows.
    records: u32,
    flows: u32,
    /// Latest `now` of a record in the message, in milliseconds.
    noted: u64,
    /// Boot time that NetFlow v9 pretends, in milliseconds since 1970; stays as it is while a message is filled.
    boot: u64,
    sequence: u32,
    /// Messages with templates, and how many templates each has. Their headers are filled in before they are sent.
    templates: Vec<(Vec<u8>, u16)>,
    /// The message behind them that says how packets were sampled, and its data records.
    sampling: Option<(Vec<u8>, u16)>,
    /// How often they have to be sent before the next data.
    copies: u32,
    /// Messages with data since templates were sent.
    messages: u32,
    /// When templates were sent; earlier, if the clock went back since.
    sent_at: Timestamp,
    /// Export time of the session's first templates, in milliseconds.
    session_at: u64,
}

/// How far before the first message the boot time lies, and the uptime up to which it stays, in milliseconds.
const BOOT_BEFORE: u64 = 1 << 31;
const UPTIME_MAX: u64 = 3 << 30;

const SET_HEADER: usize = 4;

/// Bytes that padding takes at most, behind the set before and behind a set.
const SLACK: usize = 6;

impl Encoder {
    /// An encoder with nothing to send but templates.
    ///
    /// # Errors
    ///
    /// Options that cannot be.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self {
            buffer: vec![0; options.message_len].into(),
            at: options.protocol.header_len(),
            set_at: 0,
            set_id: 0,
            records: 0,
            flows: 0,
            noted: 0,
            boot: 0,
            sequence: 0,
            templates: template_messages(&options),
            sampling: options.sampling.map(|sampling| sampling_message(&options, sampling)),
            chosen: Chosen::new(options.fields, options.protocol),
            copies: options.first_templates,
            messages: 0,
            sent_at: Timestamp::default(),
            session_at: 0,
            options,
        })
    }

    /// Adds a record. `now` is the wall clock; `send` is called with each message that is full, and with templates
    /// that are due.
    pub fn record(&mut self, record: &FlowRecord, now: Timestamp, send: &mut Send<'_>) {
        if let Some(chosen) = self.chosen.take() {
            self.chosen = Some(self.add_chosen(chosen, record, now, send));
            return;
        }
        match (&record.source, &record.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.add(record, [from.octets(), to.octets()], now, send),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.add(record, [from.octets(), to.octets()], now, send),
            (from, to) => self.add(record, [mapped(from), mapped(to)], now, send),
        }
    }

    #[inline]
    fn add<const A: usize>(
        &mut self,
        record: &FlowRecord,
        addresses: [[u8; A]; 2],
        now: Timestamp,
        send: &mut Send<'_>,
    ) {
        let forward = Direction::forward(record, addresses);
        let reverse = (record.reverse.packets > 0).then(|| Direction::reverse(record, addresses));
        match self.options.protocol {
            Protocol::Ipfix if self.options.biflows && reverse.is_some() => {
                let template = const { if A == 4 { fields::BIFLOW_4.id } else { fields::BIFLOW_6.id } };
                layout::biflow(self.flow(template, layout::BIFLOW + 2 * A, now, send), forward);
            }
            Protocol::Ipfix => {
                let template = const { if A == 4 { fields::UNIFLOW_4.id } else { fields::UNIFLOW_6.id } };
                for direction in [Some(forward), reverse].into_iter().flatten() {
                    layout::uniflow(self.flow(template, layout::UNIFLOW + 2 * A, now, send), direction);
                }
            }
            Protocol::NetflowV9 => {
                for direction in [Some(forward), reverse].into_iter().flatten() {
                    self.add_netflow(direction, now, send);
                }
            }
        }
    }

    /// Adds a record with other than the basic fields; gives back what it looks like.
    fn add_chosen(
        &mut self,
        mut chosen: Chosen,
        record: &FlowRecord,
        now: Timestamp,
        send: &mut Send<'_>,
    ) -> Chosen {
        let is_netflow = self.options.protocol == Protocol::NetflowV9;
        let both = record.reverse.packets > 0;
        let ways: &[Way] =
            if both && !self.options.biflows { &[Way::Forward, Way::Reverse] } else { &[Way::Forward] };
        for &way in ways {
            let mut flow = Flow { record, way, times: [0; 2] };
            let mut kind = if both && self.options.biflows { Kind::Other } else { Kind::Uniflow };
            if is_netflow {
                self.keep_boot(now, send);
                // Another message may have another uptime.
                let [_, longest] = chosen.lengths(Protocol::NetflowV9, false);
                if !self.has_room(0, longest + SLACK) {
                    self.finish(now, send);
                    self.keep_boot(now, send);
                }
                let half = way.half(record);
                match self.uptimes([half.first, half.last], now) {
                    Some(times) => flow.times = times,
                    None => kind = Kind::Other,
                }
            }
            let headers = self.options.protocol.header_len() + SET_HEADER + SLACK;
            let (template, bytes) = chosen.encode(kind, flow, self.options.message_len - headers);
            self.flow(template, bytes.len(), now, send).copy_from_slice(bytes);
        }
        chosen
    }

    #[inline]
    fn add_netflow<const A: usize>(&mut self, flow: Direction<'_, A>, now: Timestamp, send: &mut Send<'_>) {
        let template = const { if A == 4 { fields::UPTIME_4.id } else { fields::UPTIME_6.id } };
        self.keep_boot(now, send);
        if !self.has_room(template, layout::UPTIME + 2 * A) {
            self.finish(now, send);
        }
        if let Some(times) = self.uptimes([flow.half.first, flow.half.last], now) {
            layout::uptime(self.flow(template, layout::UPTIME + 2 * A, now, send), flow, times);
        } else {
            let template = const { if A == 4 { fields::ABSOLUTE_4.id } else { fields::ABSOLUTE_6.id } };
            layout::absolute(self.flow(template, layout::ABSOLUTE + 2 * A, now, send), flow);
        }
    }

    /// The direction's times since the boot time, if they can be said so, and if all collectors understand them.
    #[inline]
    fn uptimes(&self, times: [Timestamp; 2], now: Timestamp) -> Option<[u32; 2]> {
        let (seconds, uptime) = self.uptime(now.as_millis());
        // Header times end in 2106.
        u32::try_from(seconds).ok()?;
        let since = |time: Timestamp| time.as_millis().checked_sub(self.boot);
        let (first, last) = (since(times[0])?, since(times[1])?);
        // 0 counts as absent in some collectors.
        (0 < first && first <= last && last <= uptime).then_some([first as u32, last as u32])
    }

    /// The UNIX second that begins at or after a time, and the uptime in milliseconds then.
    fn uptime(&self, millis: u64) -> (u64, u64) {
        let seconds = millis.div_ceil(1_000);
        (seconds, (seconds * 1_000).wrapping_sub(self.boot))
    }

    /// Chooses another boot time where `now` is too far from this one. What was added before is sent first: it
    /// depends on it.
    #[inline]
    fn keep_boot(&mut self, now: Timestamp, send: &mut Send<'_>) {
        if !self.boot_fits(now) {
            self.finish(now, send);
            self.choose_boot(now);
        }
    }

    #[inline]
    fn boot_fits(&self, now: Timestamp) -> bool {
        self.options.protocol == Protocol::Ipfix
            || now.as_millis().checked_sub(self.boot).is_some_and(|uptime| uptime <= UPTIME_MAX)
    }

    fn choose_boot(&mut self, now: Timestamp) {
        self.boot = now.as_millis().saturating_sub(BOOT_BEFORE);
    }

    /// Names that records have and messages had no room for, so far.
    pub fn names_left_out(&self) -> u64 {
        self.chosen.as_ref().map_or(0, |chosen| chosen.left_out)
    }

    /// Sends what there is, if there is any, and then templates that are due.
    pub fn flush(&mut self, now: Timestamp, send: &mut Send<'_>) {
        self.finish(now, send);
        if self.are_templates_due(now) {
            self.send_templates(now, send);
        }
    }

    /// Has templates leave before the next data: for a new transport session. Its sequence numbers begin at 0 (RFC 7011 section 3.1), which
    /// is up to whoever knows what is sent again: see [`set_sequence_number`].
    pub fn restart(&mut self) {
        self.copies = self.options.first_templates;
    }

    /// What the next transport session begins with, before data that were added: templates and how packets were sampled. They leave sequence
    /// numbers as they are, since these count anew in each session; the data records in these messages. To be called after
    /// [`Encoder::flush`].
    pub fn preamble(&mut self, now: Timestamp, send: &mut Send<'_>) -> u32 {
        let sequence = self.sequence;
        self.restart();
        self.send_templates(now, send);
        let records = self.sequence.wrapping_sub(sequence);
        self.sequence = sequence;
        records
    }

    /// Adds options data records: what was exported (RFC 7011 section 4.1), and, if there was any, what was lost
    /// (section 4.3).
    ///
    /// Their scopes are the observation domain (149) and the exporting process (144); in NetFlow v9 both are the
    /// system. The value of each is [`Options::domain`].
    pub fn statistics(&mut self, statistics: &Statistics, now: Timestamp, send: &mut Send<'_>) {
        self.keep_boot(now, send);
        let domain = self.options.domain;
        let exported = [statistics.messages, statistics.records, statistics.octets];
        layout::statistics(
            self.place(fields::EXPORTED_ID, fields::EXPORTED_LEN, now, send),
            domain,
            exported,
        );
        let lost = [statistics.lost_records];
        if lost != [0] {
            layout::statistics(
                self.place(fields::NOT_SENT_ID, fields::NOT_SENT_LEN, now, send),
                domain,
                lost,
            );
        }
    }

    /// Room for a flow data record.
    #[inline(always)]
    fn flow(&mut self, template: u16, len: usize, now: Timestamp, send: &mut Send<'_>) -> &mut [u8] {
        self.prepare(template, len, now, send);
        self.flows += 1;
        self.take(len)
    }

    /// Room for another data record.
    fn place(&mut self, template: u16, len: usize, now: Timestamp, send: &mut Send<'_>) -> &mut [u8] {
        self.prepare(template, len, now, send);
        self.take(len)
    }

    #[inline(always)]
    fn take(&mut self, len: usize) -> &mut [u8] {
        let at = self.at;
        self.at += len;
        self.records += 1;
        &mut self.buffer[at..at + len]
    }

    /// True if the message has room for a record, and for the header of its set.
    #[inline(always)]
    fn has_room(&self, template: u16, len: usize) -> bool {
        let header = if self.set_id == template { 0 } else { SET_HEADER };
        let slack = if self.pads() { SLACK } else { 0 };
        self.at + header + len + slack <= self.buffer.len()
    }

    /// Whether sets are padded: basic records of NetFlow v9 have lengths that need none.
    #[inline(always)]
    fn pads(&self) -> bool {
        self.chosen.is_some() && self.options.protocol == Protocol::NetflowV9
    }

    /// Makes room for a record in a set of its template.
    #[inline(always)]
    fn prepare(&mut self, template: u16, len: usize, now: Timestamp, send: &mut Send<'_>) {
        if !self.has_room(template, len) {
            self.finish(now, send);
        }
        if self.set_id != template {
            self.begin_set(template);
        }
        self.noted = self.noted.max(now.as_millis());
    }

    #[inline(never)]
    fn begin_set(&mut self, template: u16) {
        self.end_set();
        self.set_at = self.at;
        self.set_id = template;
        self.buffer[self.at..self.at + 2].copy_from_slice(&template.to_be_bytes());
        self.at += SET_HEADER;
    }

    /// Fills in the length of the last set.
    fn end_set(&mut self) {
        if self.set_id != 0 {
            let padding = padding(self.options.protocol, self.at - self.set_at);
            self.buffer[self.at..self.at + padding].fill(0);
            self.at += padding;
            // At most message_len.
            let len = (self.at - self.set_at) as u16;
            self.buffer[self.set_at + 2..self.set_at + 4].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Sends the message, if there is anything in it, and templates before it, if they are due.
    #[cold]
    fn finish(&mut self, now: Timestamp, send: &mut Send<'_>) {
        if self.records == 0 {
            return;
        }
        if self.are_templates_due(now) {
            self.send_templates(now, send);
        }
        self.end_set();
        let mut buffer = std::mem::take(&mut self.buffer);
        self.write_header(&mut buffer[..self.at], self.records as u16, now);
        send(&buffer[..self.at], self.flows);
        self.buffer = buffer;
        self.count_message(self.records);
        self.messages = self.messages.saturating_add(1);
        self.at = self.options.protocol.header_len();
        (self.set_at, self.set_id, self.records, self.flows, self.noted) = (0, 0, 0, 0, 0);
    }

    /// Takes a message with so many data records into the sequence number of the next one.
    fn count_message(&mut self, records: u32) {
        self.sequence = self.sequence.wrapping_add(match self.options.protocol {
            Protocol::Ipfix => records,
            Protocol::NetflowV9 => 1,
        });
    }

    /// Whether [`Encoder::flush`] sends templates: before the first data, and again as the options say.
    pub fn are_templates_due(&mut self, now: Timestamp) -> bool {
        // A clock that goes back must not keep them for as long as it went.
        self.sent_at = self.sent_at.min(now);
        let elapsed = u128::from(now.nanos_since(self.sent_at));
        self.copies > 0
            || self.options.template_packets.is_some_and(|packets| self.messages >= packets.get())
            || self.options.template_interval.is_some_and(|interval| elapsed >= interval.as_nanos())
    }

    fn send_templates(&mut self, now: Timestamp, send: &mut Send<'_>) {
        // With records waiting, their boot time holds.
        if self.records == 0 && !self.boot_fits(now) {
            self.choose_boot(now);
        }
        if self.copies > 0 {
            self.session_at = now.as_millis().max(self.noted);
        }
        let mut templates = std::mem::take(&mut self.templates);
        let mut sampling = self.sampling.take();
        for _ in 0..self.copies.max(1) {
            for (message, count) in &mut templates {
                self.write_header(message, *count, now);
                send(message, 0);
                self.count_message(0);
            }
            if let Some((message, count)) = &mut sampling {
                self.write_header(message, *count, now);
                send(message, 0);
                self.count_message((*count).into());
            }
        }
        (self.templates, self.sampling) = (templates, sampling);
        (self.copies, self.messages, self.sent_at) = (0, 0, now);
    }

    /// RFC 7011 section 3.1, RFC 3954 section 5.1. `records` are data records and templates.
    fn write_header(&self, message: &mut [u8], records: u16, now: Timestamp) {
        // Never before a record was added: if the clock went back since, its times could be later than this message.
        let now = now.as_millis().max(self.noted);
        message[0..2].copy_from_slice(&self.options.protocol.version().to_be_bytes());
        match self.options.protocol {
            Protocol::Ipfix => {
                // No data may be dated before their templates were (RFC 7011 section 8.2), even if the clock goes
                // back.
                let now = now.max(self.session_at);
                // At most message_len.
                let len = message.len() as u16;
                message[2..4].copy_from_slice(&len.to_be_bytes());
                // 32 bits: the next era begins in 2106.
                message[4..8].copy_from_slice(&((now / 1_000) as u32).to_be_bytes());
                message[8..12].copy_from_slice(&self.sequence.to_be_bytes());
                message[12..16].copy_from_slice(&self.options.domain.to_be_bytes());
            }
            Protocol::NetflowV9 => {
                let fits = |(seconds, uptime): (u64, u64)| seconds.max(uptime) <= u64::from(u32::MAX);
                // A message may wait for longer than an uptime can say; what it says of its records still has to be
                // right.
                let at = if self.records == 0 || fits(self.uptime(now)) { now } else { self.noted };
                let (seconds, uptime) = self.uptime(at);
                message[2..4].copy_from_slice(&records.to_be_bytes());
                message[4..8].copy_from_slice(&(uptime as u32).to_be_bytes());
                message[8..12].copy_from_slice(&(seconds as u32).to_be_bytes());
                message[12..16].copy_from_slice(&self.sequence.to_be_bytes());
                message[16..20].copy_from_slice(&self.options.domain.to_be_bytes());
            }
        }
    }
}

fn mapped(address: &IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Where an IPFIX message has its export time and its sequence number.
const DATE: std::ops::Range<usize> = 4..8;
const SEQUENCE: std::ops::Range<usize> = 8..12;

/// Four bytes of a message.
fn word(message: &[u8], at: std::ops::Range<usize>) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&message[at]);
    u32::from_be_bytes(bytes)
}

/// The export time of an IPFIX message, in seconds since 1970.
///
/// # Panics
///
/// Where it is no whole message.
pub fn date(message: &[u8]) -> u32 {
    word(message, DATE)
}

/// Gives an IPFIX message another export time.
///
/// # Panics
///
/// Where it is no whole message.
pub fn set_date(message: &mut [u8], seconds: u32) {
    message[DATE].copy_from_slice(&seconds.to_be_bytes());
}

/// The sequence number of an IPFIX message.
///
/// # Panics
///
/// Where it is no whole message.
pub fn sequence_number(message: &[u8]) -> u32 {
    word(message, SEQUENCE)
}

/// Gives an IPFIX message another sequence number: on a new connection they begin at 0, and messages of the one before are sent again.
///
/// # Panics
///
/// Where it is no whole message.
pub fn set_sequence_number(message: &mut [u8], number: u32) {
    message[SEQUENCE].copy_from_slice(&number.to_be_bytes());
}

/// All templates in as few messages as there can be, without headers, and the number of templates in each.
fn template_messages(options: &Options) -> Vec<(Vec<u8>, u16)> {
    let (protocol, mut messages) = (options.protocol, Vec::new());
    let mut message = (vec![0; protocol.header_len()], 0);
    // The set that is open: its start, and whether it is of options templates.
    let mut set: Option<(usize, bool)> = None;
    let of_sampling = options.sampling.map(|sampling| fields::sampling(protocol, sampling.is_random));
    let of_options = fields::options(protocol).iter().chain(of_sampling.unwrap_or_default());
    let of_options = of_options.map(|template| (record_of(template, protocol), true));
    for (record, is_options) in flow_templates(options).into_iter().map(|it| (it, false)).chain(of_options) {
        // Options templates have a set each: nfdump passes over the second one of a set, nfacctd 1.7.7 takes it for malformed.
        let (mut header, padding) = if !is_options && set.is_some_and(|(_, options)| !options) {
            (0, 0)
        } else {
            (SET_HEADER, set.map_or(0, |set| padding(protocol, message.0.len() - set.0)))
        };
        // Its own padding, too.
        if message.0.len() + padding + header + record.len() + 3 > options.message_len {
            end_template_set(protocol, &mut message.0, set.take());
            messages.push(std::mem::replace(&mut message, (vec![0; protocol.header_len()], 0)));
            header = SET_HEADER;
        }
        if header > 0 {
            end_template_set(protocol, &mut message.0, set);
            set = Some((message.0.len(), is_options));
            let id = protocol.template_sets()[usize::from(is_options)];
            message.0.extend_from_slice(&id.to_be_bytes());
            message.0.extend_from_slice(&[0; 2]);
        }
        message.0.extend_from_slice(&record);
        message.1 += 1;
    }
    end_template_set(protocol, &mut message.0, set);
    messages.push(message);
    messages
}

/// The message that says how packets were sampled, without its header, and its data records.
fn sampling_message(options: &Options, sampling: Sampling) -> (Vec<u8>, u16) {
    let Options { protocol, domain, .. } = *options;
    let mut message = vec![0; protocol.header_len()];
    let templates = fields::sampling(protocol, sampling.is_random);
    let records = templates.iter().zip(fields::sampling_records(protocol, domain, sampling));
    // The interval first: goflow2 takes the first number that looks like one, which could be that of samplingPacketInterval.
    for (template, record) in records.rev() {
        debug_assert_eq!(record.len(), template.record_len());
        let start = message.len();
        message.extend_from_slice(&template.id.to_be_bytes());
        message.extend_from_slice(&[0; 2]);
        message.extend_from_slice(&record);
        end_set(protocol, &mut message, start);
    }
    (message, templates.len() as u16)
}

/// The template records of flows.
fn flow_templates(options: &Options) -> Vec<Vec<u8>> {
    let Options { protocol, fields, biflows, .. } = *options;
    match Chosen::new(fields, protocol) {
        Some(chosen) => chosen.templates(protocol, biflows),
        None => {
            fields::basic(protocol, biflows).iter().map(|template| record_of(template, protocol)).collect()
        }
    }
}

fn record_of(template: &fields::Template, protocol: Protocol) -> Vec<u8> {
    let mut record = Vec::new();
    template.write(protocol, &mut record);
    record
}

/// Bytes after a set of such a length: NetFlow v9 wants multiples of 4 (RFC 3954 section 5.3).
fn padding(protocol: Protocol, len: usize) -> usize {
    match protocol {
        Protocol::Ipfix => 0,
        Protocol::NetflowV9 => len.next_multiple_of(4) - len,
    }
}

fn end_template_set(protocol: Protocol, message: &mut Vec<u8>, set: Option<(usize, bool)>) {
    if let Some((start, _)) = set {
        end_set(protocol, message, start);
    }
}

/// Pads a set that begins there, and fills in its length.
fn end_set(protocol: Protocol, message: &mut Vec<u8>, start: usize) {
    message.extend(std::iter::repeat_n(0, padding(protocol, message.len() - start)));
    // At most message_len.
    let len = (message.len() - start) as u16;
    message[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use packetloom_packet::{EndReason, HalfFlow};

    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let record = FlowRecord {
            source: address,
            destination: address,
            source_port: 1,
            destination_port: 2,
            protocol: 17,
            forward: HalfFlow { packets: 1, ..HalfFlow::default() },
            reverse: HalfFlow::default(),
            end_reason: EndReason::IdleTimeout,
            more: None,
        };
        // Three records in the message before the numbers wrap, or that message and its templates.
        for (protocol, at, expected) in [
            (Protocol::Ipfix, 8, [u32::MAX - 1, u32::MAX - 1, 1]),
            (Protocol::NetflowV9, 12, [u32::MAX - 1, u32::MAX, 0]),
        ] {
            let mut encoder = Encoder::new(Options {
                protocol,
                fields: Fields::BASIC,
                biflows: false,
                domain: 0,
                message_len: 1_400,
                first_templates: 1,
                template_packets: None,
                template_interval: None,
                sampling: None,
            })
            .unwrap();
            encoder.sequence = u32::MAX - 1;
            let mut found = Vec::new();
            for _ in 0..2 {
                let mut send =
                    |bytes: &[u8], _| found.push(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()));
                for _ in 0..3 {
                    encoder.record(&record, Timestamp::default(), &mut send);
                }
                encoder.flush(Timestamp::default(), &mut send);
            }
            assert_eq!(found, expected, "{protocol:?}");
        }
    }
}
