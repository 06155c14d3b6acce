//! Access lists of Cisco IOS: standard and extended ones, numbered and named, IPv6 ones, and object groups; from a whole
//! configuration or from `show access-lists`.
//!
//! The order of entries is that of their sequence numbers. An entry that permits and asks for ports, a message or flags permits
//! later fragments by their addresses and protocol alone; one that denies does not match them.

mod address;
mod config;
mod entry;
mod groups;
mod headers;
mod names;
mod service;
mod write;

use packetloom_packet::protocol::{ICMP, ICMPV6};

use super::builder::Builder;
use super::mistakes::Mistakes;
use super::region::{self, Ends, Kinds, Region};
use super::set::Set;
use super::text::{self, Input};
use super::{Error, Format, Options, Origins, Reading};
use crate::rule::{Action, Rule};
use config::{Config, Kind, List};
use groups::Groups;
use headers::{Header, header};

pub(super) use write::write;

/// Messages of neighbour discovery (RFC 4861).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// One of the first lines begins a list or a group, or looks as if it did.
pub(super) fn recognises(head: &str) -> bool {
    head.lines().filter(|line| !line.starts_with(['#', '!'])).any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().take(8).collect();
        matches!(header(&words), Err(_) | Ok(Some(Header::Entry(..) | Header::List(..) | Header::Group(..))))
    })
}

/// Reads the list that is asked for; without a name, the only one, or the only IPv4 one and the only IPv6 one.
pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    let mut config = Config::new();
    text::raw_lines(input.file, &mut input.reader, text::MAX_LINE, |line, text| {
        config.line(line, text).map_err(|message| builder.syntax(line, message))
    })?;
    config.end().map_err(|(line, message)| builder.syntax(line, message))?;
    for list in choose(&config, options, &builder)? {
        entries(list, &config, &mut builder)?;
    }
    Ok(builder.finish(Format::CiscoIos, Some(Action::Deny)))
}

/// The lists to read.
fn choose<'c>(config: &'c Config, options: &Options, builder: &Builder<'_>) -> Result<Vec<&'c List>, Error> {
    let lists: Vec<&List> = config.lists().collect();
    let (v6, v4): (Vec<&List>, Vec<&List>) = lists.iter().partition(|list| list.kind == Kind::V6);
    if options.list.is_none() && v4.len() == 1 && v6.len() == 1 {
        return Ok([v4, v6].concat());
    }
    let none =
        "no access list; expected one such as \"ip access-list extended NAME\" or \"access-list 101 …\"";
    let at = builder.choose(lists.iter().map(|list| list.name.as_str()), none)?;
    Ok(lists.into_iter().skip(at).take(1).collect())
}

/// Makes rules of the entries of a list.
fn entries(list: &List, config: &Config, builder: &mut Builder<'_>) -> Result<(), Error> {
    if list.kind == Kind::Other {
        let message =
            format!("access list {} is role-based or reflexive; expected one of another kind", list.name);
        return Err(builder.syntax(list.line, message));
    }
    if list.entries.is_empty() {
        // A router takes such a list for one that permits everything.
        return Err(builder.syntax(list.line, format!("access list {} has no entries", list.name)));
    }
    let (icmp, family) = match list.kind {
        Kind::V6 => (ICMPV6, Ends::ALL_V6),
        _ => (ICMP, Ends::ALL_V4),
    };
    let family = Region::of(family);
    builder.statements(&list.entries.values().map(|entry| entry.line).collect::<Vec<_>>());
    let mut groups = Groups::new(&config.groups, icmp);
    let mut mistakes = Mistakes::default();
    for (sequence, entry) in &list.entries {
        let meaning = match entry::parse(list.kind, &entry.text, &mut groups) {
            Ok(meaning) => meaning,
            Err(fault) => {
                builder.fault_within(entry.line, fault, &family).or_else(|error| mistakes.add(error))?;
                continue;
            }
        };
        let template = Rule {
            id: Some(sequence.to_string().into()),
            comment: entry.comment.clone(),
            log: meaning.log,
            line: entry.line,
            ..Rule::any(Some(meaning.action))
        };
        for region in meaning.regions() {
            builder.region(&template, &region)?;
        }
    }
    mistakes.end(builder.file())?;
    if list.kind == Kind::V6 {
        // Before it denies everything else, every IPv6 list permits neighbour discovery, as by two entries.
        let template =
            Rule { comment: Some("implicit".into()), line: list.line, ..Rule::any(Some(Action::Permit)) };
        builder.statement(Origins::NONE);
        let icmp = Region::of(Ends::ALL_V6).protocols(&Set::one(ICMPV6));
        let discovery = region::icmp(SOLICITATION, None).union(&region::icmp(ADVERTISEMENT, None));
        builder.region(&template, &icmp.clone().icmp(&discovery))?;
        builder.region(&template, &icmp.kinds(Kinds::LATER))?;
    }
    Ok(())
}
