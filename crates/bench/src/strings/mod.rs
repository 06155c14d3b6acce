//! Strings in payloads: a matcher, and Hyperscan beside it, over the same payloads in memory, in one thread.

pub mod device;
mod hyperscan;
mod texts;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use packetloom_io::input::Stop;
use packetloom_packet::batch::Policy;
use packetloom_pattern::{Match, Matcher, Patterns, Report, Scratch, oracle};
use packetloom_simd::Isa;
use serde_json::{Value, json};

pub use self::hyperscan::Hyperscan;
pub use self::texts::{Kind, Payloads, Size};
use crate::Error;
use crate::acl::interrupted;
use crate::captures::each_batch;
use crate::engine::milliseconds;
use crate::sample::{Clock, Round, measure, quantile, rounded, sorted};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The patterns' name.
    pub name: String,
    /// The patterns.
    pub patterns: Patterns,
    /// Payloads, by name.
    pub workloads: Vec<(String, Payloads)>,
    /// Payloads like those of the workloads, but none of them, that are known when patterns are compiled: windows are chosen that are rare in
    /// them.
    pub sample: Option<Payloads>,
    /// Which matches are reported.
    pub report: Report,
    /// Bytes at the beginning of each payload that are not looked at.
    pub skip: usize,
    /// The instruction set.
    pub isa: Isa,
    /// Payloads of a call.
    pub batch: usize,
    /// Whether Hyperscan is measured in the same rounds.
    pub with_peer: bool,
    /// Rounds over all payloads, after one that is not timed.
    pub rounds: usize,
}

/// The payloads of the packets of captures.
///
/// # Errors
///
/// A capture that cannot be read.
pub fn payloads_of(captures: &[PathBuf], stop: &Stop) -> Result<Payloads, Error> {
    let mut payloads: Vec<Box<[u8]>> = Vec::new();
    each_batch(captures, stop, |batch| {
        batch.parse(Policy::PASS);
        let of_batch = (0..batch.len()).filter_map(|index| batch.payload(index));
        payloads.extend(of_batch.filter(|payload| !payload.is_empty()).map(Box::from));
        Ok(())
    })?;
    Ok(Payloads::of(payloads.iter().map(|payload| &**payload)))
}

/// Steps of the slow form that a comparison takes at most: patterns times bytes.
const MOST_STEPS: usize = 2_000_000_000;

/// Measures every workload. One JSON object for each: rates are of the measuring thread's CPU time, medians over the rounds.
///
/// # Errors
///
/// [`Error::Wrong`] where the slow form or the peer finds something else; a peer that is not there; no payloads.
pub fn run(options: &Options, stop: &Stop) -> Result<Vec<Value>, Error> {
    let sample = options.sample.as_ref().map(Payloads::texts).unwrap_or_default();
    let begun = Instant::now();
    let matcher = Matcher::with(options.patterns.clone(), options.isa, &sample);
    let build = begun.elapsed();
    let begun = Instant::now();
    let mut peer = match options.with_peer {
        true => Some(Hyperscan::new(&options.patterns).map_err(Error::Peer)?),
        false => None,
    };
    let peer_build = begun.elapsed();
    let mut values = Vec::new();
    for (name, payloads) in &options.workloads {
        let texts = payloads.texts();
        if texts.is_empty() {
            return Err(Error::Empty);
        }
        let mut own = Own { matcher: &matcher, scratch: Scratch::default(), matches: Vec::new() };
        check(&options.patterns, &mut own, &texts, options)?;
        let count = own.matches.len();
        if let Some(peer) = &mut peer {
            compare(&own.matches, peer, &texts, options)?;
        }
        let (mut rounds, mut of_peer): (Vec<Round>, Vec<Round>) = (Vec::new(), Vec::new());
        let mut found = Vec::with_capacity(count);
        for _ in 0..options.rounds {
            interrupted(stop)?;
            rounds.push(measure(Clock::Thread, || own.pass(&texts, options)).1);
            if let Some(peer) = &mut peer {
                found.clear();
                of_peer.push(measure(Clock::Thread, || peer_pass(peer, &texts, options, &mut found)).1);
            }
        }
        let rate = |round: &Round| payloads.bytes() as f64 * 8.0 / round.cpu().as_nanos() as f64;
        let rates = sorted(rounds.iter().map(rate).collect());
        let mut value = json!({
            "workload": format!("strings {} {name}", options.name),
            "gbps": rounded(quantile(&rates, 0.5)),
            "p25": rounded(quantile(&rates, 0.25)),
            "p75": rounded(quantile(&rates, 0.75)),
            "mpps": rounded(quantile(&rates, 0.5) * texts.len() as f64 * 1000.0 / (payloads.bytes() as f64 * 8.0)),
            "patterns": options.patterns.len(),
            "payloads": texts.len(),
            "bytes": payloads.bytes(),
            "batch": options.batch,
            "report": name_of(options.report),
            "skip": options.skip,
            "matches_per_kb": rounded(count as f64 * 1000.0 / payloads.bytes() as f64),
            "isa": options.isa.name(),
            "sampled": is_sampled(options),
            "build_ms": milliseconds(build),
            "memory_mb": rounded(matcher.heap_bytes() as f64 / 1e6),
            "longest_list": matcher.longest_list(),
            "rounds": options.rounds,
        });
        if let Some(peer) = &peer {
            add_peer(&mut value, peer, peer_build, &rounds, &of_peer, rate);
        }
        values.push(value);
    }
    Ok(values)
}

fn add_peer(
    value: &mut Value,
    peer: &Hyperscan,
    build: Duration,
    rounds: &[Round],
    of_peer: &[Round],
    rate: impl Fn(&Round) -> f64,
) {
    let rates = sorted(of_peer.iter().map(&rate).collect());
    let ratios = rounds.iter().zip(of_peer).map(|(own, peer)| rate(own) / rate(peer));
    let ratios = sorted(ratios.collect());
    value["peer_version"] = format!("Hyperscan {}", peer.version()).into();
    value["peer_gbps"] = json!(rounded(quantile(&rates, 0.5)));
    value["peer_build_ms"] = milliseconds(build);
    value["peer_ratio"] = json!(rounded(quantile(&ratios, 0.5)));
    value["peer_ratio_min"] = json!(rounded(quantile(&ratios, 0.0)));
    value["peer_ratio_max"] = json!(rounded(quantile(&ratios, 1.0)));
}

/// Whether windows are chosen with a sample that has something in it.
fn is_sampled(options: &Options) -> bool {
    options.sample.as_ref().is_some_and(|sample| sample.bytes() > 0)
}

fn name_of(report: Report) -> &'static str {
    match report {
        Report::All => "all",
        Report::Each => "each",
        Report::First => "first",
        Report::Any => "any",
    }
}

/// A matcher with room for its answers.
struct Own<'a> {
    matcher: &'a Matcher,
    scratch: Scratch,
    matches: Vec<Match>,
}

impl Own<'_> {
    /// Looks through all payloads: what is timed.
    fn pass(&mut self, texts: &[&[u8]], options: &Options) {
        self.matches.clear();
        for (number, batch) in texts.chunks(options.batch).enumerate() {
            let first = self.matches.len();
            self.matcher.find(batch, options.report, &mut self.scratch, &mut self.matches);
            shift(&mut self.matches[first..], number * options.batch);
        }
    }
}

/// Matches of a batch as those of all payloads.
fn shift(matches: &mut [Match], by: usize) {
    if by > 0 {
        matches.iter_mut().for_each(|found| found.text += by as u32);
    }
}

fn peer_pass(peer: &mut Hyperscan, texts: &[&[u8]], options: &Options, matches: &mut Vec<Match>) -> bool {
    texts.chunks(options.batch).enumerate().fold(true, |is_right, (number, batch)| {
        let first = matches.len();
        let is_right = peer.find(batch, options.report, matches) && is_right;
        shift(&mut matches[first..], number * options.batch);
        is_right
    })
}

/// Of each text the first match of each pattern, of matches in order.
fn each_of(matches: &[Match]) -> Vec<Match> {
    let mut seen = HashSet::new();
    matches.iter().filter(|found| seen.insert((found.text, found.pattern))).copied().collect()
}

/// Compares the first payloads with the slow form.
fn check(patterns: &Patterns, own: &mut Own<'_>, texts: &[&[u8]], options: &Options) -> Result<(), Error> {
    own.pass(texts, options);
    own.matches.sort_unstable();
    let mut room = MOST_STEPS;
    for (number, text) in texts.iter().enumerate() {
        let Some(left) = room.checked_sub(text.len() * patterns.len()) else { break };
        room = left;
        let expected = oracle::matches(patterns, text, number as u32);
        let begin = own.matches.partition_point(|found| (found.text as usize) < number);
        let of_text = own.matches[begin..].iter().take_while(|found| found.text as usize == number);
        let of_text: Vec<_> = of_text.copied().collect();
        let is_right = match options.report {
            Report::All => of_text == expected,
            Report::Each => of_text == each_of(&expected),
            Report::First => of_text == expected[..expected.len().min(1)],
            Report::Any => {
                of_text.len() == expected.len().min(1) && of_text.iter().all(|m| expected.contains(m))
            }
        };
        if !is_right {
            return Err(Error::Wrong(format!(
                "payload {number}: the matcher and its oracle find different matches"
            )));
        }
    }
    Ok(())
}

/// Compares all payloads with the peer.
fn compare(own: &[Match], peer: &mut Hyperscan, texts: &[&[u8]], options: &Options) -> Result<(), Error> {
    let mut found = Vec::new();
    if !peer_pass(peer, texts, options, &mut found) {
        return Err(Error::Peer("Hyperscan: a scan failed".into()));
    }
    found.sort_unstable();
    let is_same = match options.report {
        Report::All => own == found,
        Report::Each => own == each_of(&found),
        _ => own.iter().map(|m| m.text).eq(found.iter().map(|m| m.text)),
    };
    if is_same {
        Ok(())
    } else {
        Err(Error::Wrong(format!(
            "Hyperscan finds {} matches, the matcher {}, and they differ",
            found.len(),
            own.len()
        )))
    }
}
