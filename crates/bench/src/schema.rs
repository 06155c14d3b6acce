//! JSON schemas of what the benchmarks print: of one line, which is one measurement. A test of the command holds what is printed to them.

use serde_json::{Map, Value, json};

/// A field: its name, its type, and what it is.
type Field = (&'static str, Type, &'static str);

/// What a field holds.
#[derive(Clone, Copy)]
enum Type {
    Text,
    Count,
    Number,
    Flag,
    /// A count before, and one after.
    BeforeAndAfter,
    /// It is null where it has no meaning.
    OrNull(&'static Type),
    /// It is not there where it has no meaning.
    IfAny(&'static Type),
}

use Type::{BeforeAndAfter, Count, Flag, IfAny, Number, OrNull, Text};

impl Type {
    fn schema(self) -> Value {
        match self {
            Text => json!({ "type": "string" }),
            Count => json!({ "type": "integer", "minimum": 0 }),
            Number => json!({ "type": "number" }),
            Flag => json!({ "type": "boolean" }),
            BeforeAndAfter => {
                json!({ "type": "array", "items": Count.schema(), "minItems": 2, "maxItems": 2 })
            }
            OrNull(own) => {
                let mut schema = own.schema();
                schema["type"] = json!([schema["type"], "null"]);
                schema
            }
            IfAny(own) => own.schema(),
        }
    }

    /// Whether a value is one of these.
    fn holds(self, value: &Value) -> bool {
        match self {
            Text => value.is_string(),
            Count => value.is_u64(),
            Number => value.is_number(),
            Flag => value.is_boolean(),
            BeforeAndAfter => {
                value.as_array().is_some_and(|pair| pair.len() == 2 && pair.iter().all(Value::is_u64))
            }
            OrNull(own) => value.is_null() || own.holds(value),
            IfAny(own) => own.holds(value),
        }
    }

    /// What it is called in messages.
    fn name(self) -> &'static str {
        match self {
            Text => "text",
            Count => "a whole number",
            Number => "a number",
            Flag => "true or false",
            BeforeAndAfter => "two whole numbers",
            OrNull(own) | IfAny(own) => own.name(),
        }
    }
}

/// Where and of what a figure is.
const ORIGIN: &[Field] = &[
    ("machine", Text, "The processor, how many of its cores may be used, and the system."),
    ("version", Text, "The version of Packetloom."),
    (
        "commit",
        OrNull(&Text),
        "The commit that it was built from, with \"-dirty\" behind it where the sources differed; none of a debug build, or where it is not known.",
    ),
];

/// What each [`Measurement`](crate::sample::Measurement) has.
const MEASUREMENT: &[Field] = &[
    ("workload", Text, "What was run over what."),
    ("mpps", Number, "Millions of packets a second, of wall time; the median of the rounds."),
    (
        "mpps_cpu",
        OrNull(&Number),
        "The same of user and system time of this process; null where kernels of the device \"host\" meter, which is another one.",
    ),
    ("ns_per_packet", Number, "Nanoseconds of wall time a packet; the median of the rounds."),
    ("p25", Number, "Its first quartile."),
    ("p75", Number, "Its third quartile."),
    (
        "cpu_ns_per_packet",
        OrNull(&Number),
        "Nanoseconds of user and system time a packet; the median of the rounds.",
    ),
    ("cpu_p25", OrNull(&Number), "Its first quartile."),
    ("cpu_p75", OrNull(&Number), "Its third quartile."),
    ("classifier", OrNull(&Text), "The classifier, where one is measured."),
    ("batch", Count, "Packets of a batch."),
    ("device", Text, "\"cpu\" or \"device\"."),
    ("packets", Count, "Packets of the workload."),
    ("rounds", Count, "Rounds that were timed."),
];

const METER: &[Field] = &[
    ("workers", Count, "Threads of this machine."),
    ("records", Count, "Flow records of the capture."),
    // On a device.
    ("on", IfAny(&Text), "What the device's maker calls it."),
    ("memory", IfAny(&Text), "Where packets are before they are metered: device, copied, mapped or capture."),
    ("launch", IfAny(&Text), "How bursts are launched: burst or resident."),
    ("in_flight", IfAny(&Count), "Bursts on their way at a time."),
    ("slice", IfAny(&Count), "Bytes of a frame that the device gets."),
    ("parse", IfAny(&Text), "From where headers are parsed: in-place or local."),
    ("block", IfAny(&Count), "Work items of a group."),
    ("keys_per_thread", IfAny(&Count), "Packets of a work item at a time."),
    ("hash", IfAny(&Text), "The hash function."),
    ("stage", IfAny(&Text), "Where kernels end: parse, hash, find or all."),
    ("table_mb", IfAny(&Number), "Megabytes of the tables of both IP versions."),
    (
        "handed_back",
        IfAny(&Count),
        "Packets that this machine metered: their headers go on behind the slice, or there was no room.",
    ),
    ("without_room", IfAny(&Count), "Those of them whose flows found no room in the tables."),
    ("records_ms", IfAny(&Number), "Milliseconds from tables to records in this machine's memory."),
    (
        "chi_square",
        IfAny(&Number),
        "Of the capture's flows over buckets: chi-square, divided by its degrees of freedom.",
    ),
    ("longest_chain", IfAny(&Count), "Flows of the fullest bucket."),
    (
        "aimed_chi_square",
        IfAny(&Number),
        "The same of keys that were chosen to share a bucket if there were no seed.",
    ),
    ("aimed_longest_chain", IfAny(&Count), "Such keys of the fullest bucket."),
];

const ACL: &[Field] = &[
    ("rules", Count, "Rules of the list."),
    ("passes", Count, "Times that a round went over all headers."),
    ("build_ms", Number, "Milliseconds to build the classifier."),
    ("memory_mb", Number, "Megabytes that it takes."),
    ("peer_version", IfAny(&Text), "Of a peer: its version."),
    (
        "peer_ratio",
        IfAny(&Number),
        "How many times as fast as the peer, in CPU time; the median of the rounds.",
    ),
    ("peer_ratio_min", IfAny(&Number), "The least of the rounds."),
    ("peer_ratio_max", IfAny(&Number), "The greatest of the rounds."),
];

const CHAIN: &[Field] = &[
    ("on", IfAny(&Text), "The device, where there is one."),
    ("transport", IfAny(&Text), "How packets come to the device."),
    ("slice", IfAny(&Count), "Bytes of a frame that the device looks at."),
    ("in_flight", IfAny(&Count), "Batches on their way at a time."),
    ("workers", IfAny(&Count), "Worker threads."),
    ("shared", IfAny(&OrNull(&Text)), "Flow definitions whose tables the workers share."),
    ("flows", Count, "Flows of the packets."),
    ("distribution", Text, "How packets are spread over flows."),
    ("packet_size", Count, "Bytes of a frame."),
    ("passed", IfAny(&Number), "The share of packets that passed."),
    ("new_flows", IfAny(&OrNull(&Count)), "Flows that begin in a second, if asked for."),
    ("flood", IfAny(&OrNull(&Count)), "Packets of flows of one packet, if asked for."),
    ("created", IfAny(&Count), "Entries of flow tables that were made."),
    ("expired", IfAny(&Count), "Entries whose flows had ended."),
    ("evicted", IfAny(&Count), "Entries that had to go for others."),
    ("refused", IfAny(&Count), "Packets whose flow found no room."),
    ("offered_mpps", IfAny(&OrNull(&Number)), "Millions of packets offered a second, if so many were."),
    (
        "latency_us_p50",
        IfAny(&OrNull(&Number)),
        "Microseconds from when a packet was due to its verdict: the median.",
    ),
    ("latency_us_p99", IfAny(&OrNull(&Number)), "The time within which 99 of 100 packets are judged."),
    ("latency_us_p999", IfAny(&OrNull(&Number)), "That of 999 of 1,000."),
    ("latency_us_max", IfAny(&OrNull(&Number)), "The longest time."),
];

const CHANGES: &[Field] = &[
    ("workload", Text, "What was run over what."),
    ("changes_per_second", Number, "Changes made in a second of wall time; the median of the windows."),
    ("changes_per_cpu_second", Number, "Changes made in a second of CPU time."),
    ("first_window", OrNull(&Number), "The rate in the first window."),
    ("last_window", OrNull(&Number), "The rate in the last window."),
    ("changes_per_transaction", Count, "Changes of a transaction."),
    ("transactions", Count, "Transactions that were made."),
    ("transaction_us_p50", OrNull(&Number), "Microseconds of a transaction: the median."),
    ("transaction_us_p99", OrNull(&Number), "The time within which 99 of 100 transactions are made."),
    ("transaction_us_max", OrNull(&Number), "The longest transaction."),
    ("mpps_quiet", Number, "Millions of headers classified a second while rules stay."),
    ("mpps_changing", Number, "The same while rules change."),
    ("share", Number, "The ratio of the two, of neighbouring windows."),
    ("mpps_cpu_quiet", Number, "Millions of headers a second of CPU time while rules stay."),
    ("mpps_cpu_changing", Number, "The same while rules change."),
    ("share_cpu", Number, "The ratio of the two, of neighbouring windows."),
    ("batch", Count, "Headers of a batch."),
    ("headers", Count, "Headers of the workload."),
    ("rules", Count, "Rules at the end."),
    ("build_ms", Number, "Milliseconds to build the classifier."),
    ("slots", BeforeAndAfter, "Places for rules, before and after."),
    ("lines", BeforeAndAfter, "Cache lines of the tables, before and after."),
    ("in_bitmaps", BeforeAndAfter, "Rules that are looked for in bitmaps, before and after."),
    ("resident_kb", OrNull(&Count), "Kilobytes of memory that the process holds."),
];

const CHURN: &[Field] = &[
    ("workload", Text, "What was run over what."),
    ("changes", OrNull(&Count), "Changes that were made until then; none of tables that were made anew."),
    ("changes_per_cpu_second", OrNull(&Number), "Changes made in a second of CPU time since the last point."),
    ("us_p50", OrNull(&Number), "Microseconds of a transaction: the median."),
    ("us_p99", OrNull(&Number), "The time within which 99 of 100 transactions are made."),
    ("us_max", OrNull(&Number), "The longest transaction."),
    ("mpps_cpu", Number, "Millions of headers classified a second of CPU time."),
    ("rules", Count, "Rules of the list."),
    ("slots", Count, "Places for rules."),
    ("tables", Count, "Hash tables."),
    ("lines", Count, "Cache lines of the tables."),
    ("copies", Count, "Copies of rules in the tables."),
    ("in_bitmaps", Count, "Rules that are looked for in bitmaps."),
    ("renewals", Count, "Times that tables were made anew."),
    (
        "worn_classifies",
        OrNull(&Number),
        "How fast the changed tables classify, beside tables that were made anew; at the end.",
    ),
    ("worn_changes", OrNull(&Number), "How fast they change, beside tables that were made anew; at the end."),
    ("memory_kb", Count, "Kilobytes of the tables."),
    ("resident_kb", OrNull(&Count), "Kilobytes of memory that the process holds."),
];

const FORWARD: &[Field] = &[
    ("workload", Text, "What packets were forwarded through: the rule list, or an empty chain."),
    ("forwarder", Text, "What forwarded: packetloom, nftables or testpmd, and how."),
    ("rules", Count, "Rules of the list."),
    ("packet_size", Count, "Bytes of a packet with its check sequence."),
    ("flows", Count, "Flows of the packets."),
    ("workers", IfAny(&Count), "Workers of our run."),
    ("rounds", Count, "Rounds that were timed."),
    (
        "no_loss_mpps",
        OrNull(&Number),
        "The highest rate without loss, in millions of packets a second (RFC 2544 section 26.1); the median of the rounds, and null where one has found none.",
    ),
    ("no_loss_mpps_min", OrNull(&Number), "The least of the rounds."),
    ("no_loss_mpps_max", OrNull(&Number), "The greatest of the rounds."),
    (
        "flood_mpps",
        Number,
        "What came out while packets were sent as fast as possible; the median of the rounds.",
    ),
    ("flood_mpps_min", Number, "The least of the rounds."),
    ("flood_mpps_max", Number, "The greatest of the rounds."),
    ("offered_mpps", Number, "What was sent meanwhile."),
    (
        "cpu_ns_per_packet",
        Number,
        "Nanoseconds of CPU time a packet, all together, under that load: on the generator's core by packets sent, elsewhere by packets that arrived.",
    ),
    ("cpu_ns_per_packet_min", Number, "The least of the rounds."),
    ("cpu_ns_per_packet_max", Number, "The greatest of the rounds."),
    ("process_ns_per_packet", OrNull(&Number), "Those of the forwarder's process; null of the kernel."),
    ("source_ns_per_packet", Number, "Those of making a packet, without sending it."),
    (
        "latency_98_us_p50",
        OrNull(&Number),
        "Microseconds from generator to sink at 98 % of the rate without loss: the median.",
    ),
    ("latency_98_us_p99", OrNull(&Number), "The time within which 99 of 100 packets arrive."),
    ("latency_98_us_max", OrNull(&Number), "The longest time."),
    ("latency_10_us_p50", OrNull(&Number), "The same at 10 % of that rate: the median."),
    ("latency_10_us_p99", OrNull(&Number), "The time within which 99 of 100 packets arrive."),
    ("latency_10_us_max", OrNull(&Number), "The longest time."),
    ("sent", Count, "Packets that were sent, in all trials together."),
    ("received", Count, "Those that have arrived."),
    ("dropped_before", Count, "Dropped by the link to the forwarder."),
    ("dropped_receiving", Count, "Dropped where our run receives: by its rings, or the driver."),
    ("dropped_by_chain", Count, "Dropped by our run's chain."),
    ("dropped_sending", Count, "Dropped where our run sends."),
    ("dropped_behind", Count, "Dropped by the link behind the forwarder."),
    ("unaccounted", Number, "Sent, but neither received nor counted as dropped: 0 of our run."),
    ("sent_98", Count, "Packets that were sent at 98 %, to a process of its own."),
    ("lost_98", Count, "Those of them that did not arrive."),
    ("dropped_98", Count, "Those of them that were counted as dropped: of our run as many as were lost."),
    ("dropped_before_98", Count, "Those of these that the link to the forwarder dropped."),
    (
        "lost_in_stalls_98",
        IfAny(&Count),
        "Of our run: those that its interfaces lost in tenths of a second in which a turn of a worker took longer than 0.5 ms.",
    ),
    (
        "recorded_98",
        IfAny(&Count),
        "Of a run with a meter: packets in its flow records at 98 %, which are those that were not dropped before its chain.",
    ),
    (
        "wrong_flows_98",
        IfAny(&Count),
        "Flows of which these say more packets than were sent, or fewer, where none was dropped before the chain: 0.",
    ),
    (
        "turn_98_us",
        IfAny(&Number),
        "Of our run at 98 %: microseconds of the longest time from one look of a worker for something to do to the next, without sleep. It is long where the worker's core did something else.",
    ),
    ("turn_10_us", IfAny(&Number), "The same at 10 %."),
    (
        "generator_gap_us",
        Number,
        "Microseconds that the generator was late at most, at a pace: for so long its core stood still.",
    ),
    ("arrival_gap_us", Number, "The longest time between two packets at the sink, at a pace."),
    ("sets", IfAny(&Count), "Maps of nftables that the rules have become."),
    ("against", IfAny(&Text), "Of a peer: the run that is compared with it."),
    (
        "peer_ratio",
        IfAny(&Number),
        "How many times as much as the peer that run forwards of a flood; the median of the rounds.",
    ),
    ("peer_ratio_min", IfAny(&Number), "The least of the rounds."),
    ("peer_ratio_max", IfAny(&Number), "The greatest of the rounds."),
    (
        "peer_cpu_ratio",
        IfAny(&Number),
        "How many times as much CPU time as that run the peer takes a packet, without that of making it.",
    ),
];

const DEVICE: &[Field] = &[
    ("workload", Text, "What was run over what."),
    ("device", Text, "What the device's maker calls it."),
    ("transport", Text, "How packets come to the device."),
    ("algorithm", Text, "How rules are laid out."),
    ("specialised", Flag, "Whether the kernel was compiled for these rules."),
    ("rules", Count, "Rules of the list."),
    ("packets", Count, "Packets of the workload."),
    ("batch", Count, "Packets of a batch."),
    ("mpps", Number, "Millions of packets a second; the median of the rounds."),
    ("mpps_min", Number, "The least of the rounds."),
    ("mpps_max", Number, "The greatest of the rounds."),
    ("latency_us_p50", OrNull(&Number), "Microseconds of a batch: the median."),
    ("latency_us_p99", OrNull(&Number), "The time within which 99 of 100 batches are judged."),
    ("latency_us_max", OrNull(&Number), "The longest time."),
    ("core_mpps", Number, "What one core of this machine does with the same, in CPU time."),
    ("cores", Number, "How many such cores the device is worth; the median of the rounds."),
    ("rounds", Count, "Rounds that were timed."),
    // From this machine's memory.
    ("slice", IfAny(&OrNull(&Count)), "Bytes of a frame that the device looks at."),
    ("in_flight", IfAny(&OrNull(&Count)), "Batches on their way at a time."),
    ("feeders", IfAny(&OrNull(&Count)), "Rings that feed a resident kernel."),
    ("offered_mpps", IfAny(&OrNull(&Number)), "Millions of packets offered a second, if so many were."),
    ("all_cores", IfAny(&Count), "Cores of this machine that may be used."),
    ("all_cores_mpps", IfAny(&Number), "What all of them do with the same."),
    (
        "all_cores_ratio",
        IfAny(&Number),
        "How many such machines the device is worth; the median of the rounds.",
    ),
    // From the device's own memory.
    ("tables", IfAny(&Count), "Hash tables."),
    ("tail", IfAny(&Count), "Rules that are looked at one by one."),
    ("memory_mb", IfAny(&Number), "Megabytes that the rules take on the device."),
    ("layout_ms", IfAny(&Number), "Milliseconds to lay the rules out."),
    ("load_ms", IfAny(&Number), "Milliseconds to load them."),
];

const STRINGS: &[Field] = &[
    ("workload", Text, "What was run over what."),
    ("gbps", Number, "Gigabits of payload a second of the thread's CPU time; the median of the rounds."),
    ("p25", Number, "Its first quartile."),
    ("p75", Number, "Its third quartile."),
    ("mpps", Number, "Millions of payloads a second, likewise."),
    ("patterns", Count, "Patterns of the set."),
    ("payloads", Count, "Payloads of the workload."),
    ("bytes", Count, "Their bytes."),
    ("batch", Count, "Payloads of a call."),
    ("report", Text, "Which matches are reported: all, each, first or any."),
    ("skip", IfAny(&Count), "Bytes at the beginning of each payload that are not looked at."),
    ("matches_per_kb", Number, "Matches of 1,000 bytes."),
    ("isa", Text, "The instruction set: avx512, avx2 or portable."),
    (
        "sampled",
        Flag,
        "Whether windows were chosen with a sample of other payloads, as a run has it that searched enough.",
    ),
    ("build_ms", Number, "Milliseconds to compile the patterns."),
    ("memory_mb", Number, "Megabytes that they take."),
    ("longest_list", Count, "Patterns that one place of a payload may have to be compared with."),
    ("rounds", Count, "Rounds that were timed."),
    ("device", IfAny(&Text), "On a device: what its maker calls it. Rates are of wall time then."),
    ("transport", IfAny(&Text), "Where payloads are: on-device or host-fed."),
    ("load_ms", IfAny(&Number), "Milliseconds to load the patterns there."),
    ("in_flight", IfAny(&Count), "Batches on their way at a time, from this machine's memory."),
    ("copies_gbps", IfAny(&Number), "What their copies alone reach, in the same rounds."),
    (
        "copies_share",
        IfAny(&Number),
        "What is left of that with the search and its results; the median of the rounds.",
    ),
    ("peer_version", IfAny(&Text), "Of a peer: its name and version."),
    ("peer_gbps", IfAny(&Number), "Its rate, in the same rounds."),
    ("peer_build_ms", IfAny(&Number), "Milliseconds that it takes to compile the patterns."),
    ("peer_ratio", IfAny(&Number), "How many times as fast as the peer; the median of the rounds."),
    ("peer_ratio_min", IfAny(&Number), "The least of the rounds."),
    ("peer_ratio_max", IfAny(&Number), "The greatest of the rounds."),
];

const NCA: &[Field] = &[
    ("workload", Text, "What was run over what."),
    ("device", Text, "The device, as --device has it."),
    ("patterns", Count, "Patterns."),
    ("size", Count, "Bytes of a packet."),
    ("batch", Count, "Packets of a buffer."),
    ("queues", Count, "Queues of the device."),
    ("buffers", Count, "Buffers of the stream, all of which are on their way."),
    ("gbps", Number, "Gigabits of packets a second, with copies and kernels."),
    (
        "copies_us",
        Number,
        "Microseconds a buffer of the copies alone: packets to the device, results from it.",
    ),
    ("kernels_us", Number, "Microseconds a buffer of the kernels alone."),
    ("both_us", Number, "Microseconds a buffer of both."),
    ("neither_us", Number, "Microseconds a buffer without either: what threads and calls take."),
    (
        "hidden",
        Number,
        "(copies + kernels - both) / the lesser of copies and kernels: 0 where one comes after the other, 1 where the lesser is hidden; the median of the rounds.",
    ),
    ("hidden_min", Number, "The least of the rounds."),
    ("hidden_max", Number, "The greatest of the rounds."),
    ("matching", Count, "Packets with a pattern, of all buffers."),
    ("rounds", Count, "Rounds that were timed."),
];

/// Some fields as an object.
fn object(groups: &[&[Field]]) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, kind, what) in groups.iter().copied().flatten().chain(ORIGIN) {
        let mut schema = kind.schema();
        schema["description"] = (*what).into();
        properties.insert((*name).into(), schema);
        if !matches!(kind, IfAny(_)) {
            required.push(*name);
        }
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

/// The benchmarks that there are.
pub const NAMES: [&str; 8] = ["meter", "acl", "chain", "changes", "device", "strings", "nca", "forward"];

/// The fields of a line of a benchmark; "churn" is "changes" with a total.
fn groups(name: &str) -> Option<&'static [&'static [Field]]> {
    Some(match name {
        "meter" => &[MEASUREMENT, METER],
        "acl" => &[MEASUREMENT, ACL],
        "chain" => &[MEASUREMENT, CHAIN],
        "changes" => &[CHANGES],
        "churn" => &[CHURN],
        "device" => &[DEVICE],
        "strings" => &[STRINGS],
        "nca" => &[NCA],
        "forward" => &[FORWARD],
        _ => return None,
    })
}

/// The fields of `wanted` that a line of a benchmark has, with their names. A line of another version may lack where it is from, or have
/// fields that are not known here.
///
/// # Errors
///
/// What is wrong with the line: a field that is not there, or is of another type.
pub(crate) fn pick<'a>(
    name: &str,
    line: &'a Map<String, Value>,
    wanted: &[&'static str],
) -> Result<Vec<(&'static str, &'a Value)>, String> {
    let mut picked = Vec::new();
    let fields = groups(name).into_iter().flatten().copied().flatten().map(|field| (field, false));
    for ((name, kind, _), is_origin) in fields.chain(ORIGIN.iter().map(|field| (field, true))) {
        match line.get(*name) {
            _ if !wanted.contains(name) => {}
            Some(value) if kind.holds(value) => picked.push((*name, value)),
            Some(_) => return Err(format!("{name:?}: expected {}", kind.name())),
            None if is_origin || matches!(kind, IfAny(_)) => {}
            None => return Err(format!("no {name:?}")),
        }
    }
    Ok(picked)
}

/// The schema of a line of a benchmark, as of JSON Schema 2020-12.
pub fn of(name: &str) -> Option<Value> {
    if !NAMES.contains(&name) {
        return None;
    }
    let mut schema = match name {
        "changes" => json!({ "anyOf": [object(&[CHANGES]), object(&[CHURN])] }),
        name => object(groups(name)?),
    };
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = format!("A line of packetloom bench {name}").into();
    Some(schema)
}
