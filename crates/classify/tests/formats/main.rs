//! Rules and headers from text: what good lines give, and what is said about bad ones.

mod changes;
mod cisco;
mod classbench;
mod conversions;
mod display;
mod docs;
mod flowspec;
mod gaps;
mod headers;
mod interfaces;
mod iptables;
mod lines;
mod native;
mod netfilter;
mod nftables;
mod strategies;
mod verdicts;
mod vpp;

use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_classify::formats::{self, Headers, Options};
use packetloom_classify::rule::{Prefix4, Prefix6};
use packetloom_classify::{Rule, RuleSet};

/// Reads `text` as a rule file called `f`; an error as it is shown.
fn rules_with(text: impl AsRef<[u8]>, ignore_flags: bool) -> Result<RuleSet, String> {
    let options = Options { ignore_flags, ..Options::default() };
    let reading =
        formats::read_rules("f", &mut text.as_ref(), &options).map_err(|error| error.to_string())?;
    assert_eq!((reading.default, reading.skipped), (None, vec![]));
    Ok(reading.rules)
}

/// A message with the word that may have been meant, if one is near.
fn told(message: impl std::fmt::Display) -> String {
    let message = message.to_string();
    match formats::did_you_mean(&message) {
        Some(word) => format!("{message}; did you mean {word:?}?"),
        None => message,
    }
}

fn rules(text: impl AsRef<[u8]>) -> Result<RuleSet, String> {
    rules_with(text, false)
}

/// The only rule of `text`.
fn rule(text: &str) -> Rule {
    let mut rules = rules(text).unwrap_or_else(|error| panic!("{text}: {error}")).rules;
    assert_eq!(rules.len(), 1, "{text}");
    rules.remove(0)
}

/// Reads `text` as a file of headers called `f`; an error as it is shown.
fn headers(text: impl AsRef<[u8]>) -> Result<Headers, String> {
    formats::read_headers("f", &mut text.as_ref()).map_err(|error| error.to_string())
}

/// An IPv4 prefix, written as in rule files.
fn p4(text: &str) -> Prefix4 {
    let (address, len) = text.split_once('/').expect("a prefix");
    let address: Ipv4Addr = address.parse().expect("an IPv4 address");
    Prefix4::new(address.into(), len.parse().expect("a length"))
}

/// An IPv6 prefix, written as in rule files.
fn p6(text: &str) -> Prefix6 {
    let (address, len) = text.split_once('/').expect("a prefix");
    let address: Ipv6Addr = address.parse().expect("an IPv6 address");
    Prefix6::new(address.into(), len.parse().expect("a length"))
}
