//! What rules do with headers at their edges: how readings of other formats and what was written from rules are compared.

#[allow(dead_code, reason = "the tests of classifiers use more of it")]
#[path = "../classifiers/keys.rs"]
mod keys;

use packetloom_classify::formats::{self, Format, Options, Reading, WriteError, WriteOptions};
use packetloom_classify::{Action, ConnectionState, Kind, NO_RULE, PacketContext, Rule, RuleSet};
use packetloom_packet::protocol::{self, TCP};
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};

pub(crate) use keys::Random;

/// Reads `text` as a file called `f` of this format; an error as it is shown.
pub(crate) fn read(format: Format, text: impl AsRef<[u8]>) -> Result<Reading, String> {
    read_with(text, Options { format: Some(format), ..Options::default() })
}

/// As [`read`], with all options.
pub(crate) fn read_with(text: impl AsRef<[u8]>, options: Options) -> Result<Reading, String> {
    formats::read_rules("f", &mut text.as_ref(), &options).map_err(|error| error.to_string())
}

/// The rules of a text in our own words, without their names.
pub(crate) fn shown(format: Format, text: &str) -> Vec<String> {
    let reading = read(format, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    in_words(&reading.rules.rules)
}

/// Rules in our own words, without their names.
pub(crate) fn in_words(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(|rule| Rule { id: None, ..rule.clone() }.to_string()).collect()
}

/// Rules as text.
pub(crate) fn written(rules: &[Rule], format: Format, default: Option<Action>) -> Result<String, WriteError> {
    let mut text = Vec::new();
    let options = WriteOptions { default, ..WriteOptions::default() };
    formats::write_rules(rules, format, &options, &mut text)?;
    Ok(String::from_utf8(text).expect("UTF-8"))
}

/// What is done with each header. A list without a default denies what no rule matches.
pub(crate) fn verdicts(rules: &RuleSet, default: Option<Action>, keys: &[Key]) -> Vec<Option<Action>> {
    let linear = Kind::Linear.build(rules);
    keys.iter()
        .map(|key| {
            let mut first = [NO_RULE];
            match key {
                Key::V4(key) => linear.classify_v4(std::slice::from_ref(key), &mut first),
                Key::V6(key) => linear.classify_v6(std::slice::from_ref(key), &mut first),
            }
            match first[0] {
                NO_RULE => Some(default.unwrap_or(Action::Deny)),
                position => rules.rules[position as usize].action,
            }
        })
        .collect()
}

/// Headers that packets can have, at the edges of both rule sets.
pub(crate) fn headers(rules: &[&RuleSet], points: usize, seed: u64) -> Vec<Key> {
    let mut random = Random(seed);
    let all = RuleSet { rules: rules.iter().flat_map(|rules| rules.rules.iter().cloned()).collect() };
    let keys = keys::at_the_edges(&all, points, &mut random);
    keys.into_iter().filter_map(possible).collect()
}

/// `count` headers that packets can have, each of which meets a rule or misses it by a little.
pub(crate) fn near(rules: &RuleSet, count: usize, random: &mut Random) -> Vec<Key> {
    let mut near = keys::near_rules(rules, count, random);
    if near.is_empty() {
        near = keys::at_the_edges(rules, count.div_ceil(36), random);
    }
    near.into_iter().map(made_possible).collect()
}

/// The header with what its protocol has, and with nothing else.
fn made_possible(key: Key) -> Key {
    macro_rules! made {
        ($key:expr) => {{
            let fragments = [KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
            let is = |bit: &KeyBits| $key.bits.contains(*bit);
            let mut bits = fragments.into_iter().find(is).unwrap_or(KeyBits::WHOLE);
            if bits != KeyBits::LATER_FRAGMENT {
                if protocol::has_ports($key.protocol) {
                    bits = bits.with(KeyBits::PORTS);
                } else if protocol::has_type_and_code($key.protocol) {
                    bits = bits.with(KeyBits::ICMP);
                }
                if $key.protocol == TCP {
                    bits = bits.with(KeyBits::TCP_FLAGS);
                }
            }
            $key.bits = bits;
        }};
    }
    possible(match key {
        Key::V4(mut key) => {
            made!(key);
            Key::V4(key)
        }
        Key::V6(mut key) => {
            made!(key);
            Key::V6(key)
        }
    })
    .expect("a header of a packet")
}

/// The header if a packet can have it: what it knows of the transport header is what its protocol has, and later fragments
/// have none.
fn possible(key: Key) -> Option<Key> {
    macro_rules! check {
        ($key:expr) => {{
            let bits = $key.bits;
            let starts = !bits.contains(KeyBits::LATER_FRAGMENT);
            let has = |bit, can| bits.contains(bit) == (starts && can);
            let fits = has(KeyBits::PORTS, protocol::has_ports($key.protocol))
                && has(KeyBits::ICMP, protocol::has_type_and_code($key.protocol))
                && has(KeyBits::TCP_FLAGS, $key.protocol == TCP);
            if bits.contains(KeyBits::ICMP) {
                $key.source_port &= 0xff;
                $key.destination_port &= 0xff;
            } else if !bits.contains(KeyBits::PORTS) {
                $key.source_port = 0;
                $key.destination_port = 0;
            }
            if !bits.contains(KeyBits::TCP_FLAGS) {
                $key.tcp_flags = 0;
            }
            fits
        }};
    }
    match key {
        Key::V4(mut key) => check!(key).then_some(Key::V4(MatchKey4 { ..key })),
        Key::V6(mut key) => check!(key).then_some(Key::V6(MatchKey6 { ..key })),
    }
}

/// The header for which both differ, if there is one.
pub(crate) fn difference(
    (ours, our_default): (&RuleSet, Option<Action>),
    (theirs, their_default): (&RuleSet, Option<Action>),
    seed: u64,
) -> Option<String> {
    let keys = headers(&[ours, theirs], 400, seed);
    let (ours, theirs) = (verdicts(ours, our_default, &keys), verdicts(theirs, their_default, &keys));
    let at = (0..keys.len()).find(|&at| ours[at] != theirs[at])?;
    Some(format!("{:?} became {:?} for {:x?}", ours[at], theirs[at], keys[at]))
}

/// Writes rules in a format, reads them back, and compares what they do. `Ok(false)` where the format has no words for them.
pub(crate) fn round_trip(rules: &[Rule], format: Format, default: Action, seed: u64) -> Result<bool, String> {
    let text = match written(rules, format, Some(default)) {
        Ok(text) => text,
        Err(WriteError::Inexpressible { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let reading = read(format, &text).map_err(|error| format!("{error}\n{text}"))?;
    let ours = RuleSet { rules: rules.to_vec() };
    // Where no rule looks at it, the context of packets makes no difference.
    let contexts = if ours.is_contextual() { contexts() } else { vec![PacketContext::NEW] };
    for context in contexts {
        let (ours, read) = (ours.seen_in(&context).0, reading.rules.seen_in(&context).0);
        if let Some(difference) = difference((&ours, Some(default)), (&read, reading.default), seed) {
            let words = in_words(rules).join("\n");
            return Err(format!("{context:?}: {difference}\n{words}\nas\n{text}"));
        }
    }
    Ok(true)
}

/// Packets of interfaces that rules of the tests name and others, in every state.
fn contexts() -> Vec<PacketContext<'static>> {
    let pairs = [
        (None, None),
        (Some("eth0"), Some("wg1")),
        (Some("wg1"), Some("eth1")),
        (Some("eth1"), Some("eth0")),
    ];
    pairs
        .into_iter()
        .flat_map(|(interface, out)| {
            ConnectionState::ALL.map(|state| PacketContext { interface, out, state })
        })
        .collect()
}
