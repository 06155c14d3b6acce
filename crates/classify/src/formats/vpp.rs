//! Access lists of VPP's ACL plugin: the commands that set them, and what `show acl-plugin acl` prints.
//!
//! ```text
//! set acl-plugin acl RULE[, RULE…] [tag NAME]
//! RULE: permit|deny [src PREFIX] [dst PREFIX] [proto N] [sport N[-N]] [dport N[-N]] [tcpflags N mask N]
//!
//! acl-index N count N tag {NAME}
//!   0: ipv4|ipv6 RULE
//! ```
//!
//! A rule without addresses is IPv4. With ICMP, `sport` and `dport` are types and codes. A rule with a protocol matches later
//! fragments by addresses and protocol alone (`l4-match-nonfirst-fragment`, which is so unless it is set otherwise).

use std::net::IpAddr;

use packetloom_packet::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

use super::builder::{Builder, Fault};
use super::region::{self, Ends, Kinds, Region};
use super::set::Set;
use super::text::{self, Input, Words, number};
use super::writing::{Writing, protocols};
use super::{Error, Format, Options, Reading, WriteError, meet};
use crate::rule::{Action, Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule};

/// A list of many rules is one line.
const MAX_LINE: usize = 1 << 26;
/// Every packet of IPv4, and of IPv6.
const EVERY: [&str; 2] = ["src 0.0.0.0/0 dst 0.0.0.0/0", "src ::/0 dst ::/0"];
/// Every port.
const ALL: (u16, u16) = (0, u16::MAX);
/// The tag of lists that were given none.
const NO_TAG: &str = "cli";
/// VPP's word for an action.
const REFLECT: &str = "permit+reflect";

/// A list as text.
struct List {
    /// Its tag, or its index.
    name: String,
    /// Its rules, each with its line.
    rules: Vec<(u32, String)>,
}

/// The first line is one of a list.
pub(super) fn recognises(head: &str) -> bool {
    let words: Vec<&str> = text::first_line(head).split_ascii_whitespace().take(4).collect();
    matches!(*words, ["set", "acl-plugin", ..] | ["acl-index", _, "count", _])
}

/// Reads the list that is asked for, by tag or index, or the only one.
pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    let mut lists: Vec<List> = Vec::new();
    let mut is_shown = false;
    text::raw_lines(input.file, &mut input.reader, MAX_LINE, |line, text| {
        let text = text.trim_ascii();
        let mut words = Words::new(text);
        match [words.0.next(), words.0.next(), words.0.next()] {
            [Some("set"), Some("acl-plugin"), Some("acl")] => {
                is_shown = false;
                let list =
                    command(line, text, lists.len()).map_err(|message| builder.syntax(line, message))?;
                lists.push(list);
            }
            [Some("set"), Some("acl-plugin"), Some("l4-match-nonfirst-fragment")] if words.peek() == "0" => {
                builder.fault(line, Fault::no_equal("l4-match-nonfirst-fragment 0"))?;
            }
            [Some("acl-index"), Some(index), Some("count")] => {
                is_shown = true;
                let tag =
                    text.split_once("tag {").and_then(|(_, tag)| tag.strip_suffix('}')).unwrap_or_default();
                let name = if tag.is_empty() || tag == NO_TAG { index } else { tag };
                lists.push(List { name: name.into(), rules: Vec::new() });
            }
            [Some(position), ..] if is_shown && position.ends_with(':') => {
                if let (Some(list), Some((_, rule))) = (lists.last_mut(), text.split_once(':')) {
                    list.rules.push((line, rule.into()));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let at = builder.choose(lists.iter().map(|list| list.name.as_str()))?;
    for (line, text) in &lists[at].rules {
        match rule(text) {
            Err(fault) => builder.fault(*line, fault)?,
            Ok((action, regions)) => {
                let template = Rule { line: *line, ..Rule::any(Some(action)) };
                for region in &regions {
                    builder.region(&template, region)?;
                }
            }
        }
    }
    Ok(builder.finish(Format::Vpp, Some(Action::Deny)))
}

/// The list of a command that sets it, the `index`th of the file.
fn command(line: u32, text: &str, index: usize) -> Result<List, String> {
    let mut name = index.to_string();
    let mut rules = Vec::new();
    for (position, part) in text.split(',').enumerate() {
        let mut kept: Vec<&str> = Vec::new();
        // The first part begins with the words of the command.
        let mut words = part.split_ascii_whitespace().skip(if position == 0 { 3 } else { 0 });
        while let Some(word) = words.next() {
            match word {
                "tag" => name = words.next().ok_or("the line ends; expected a tag")?.into(),
                "count" => drop(words.next()),
                word => kept.push(word),
            }
        }
        if kept.is_empty() {
            // VPP would permit all of IPv4.
            return Err("a rule without words; expected permit or deny".into());
        }
        rules.push((line, kept.join(" ")));
    }
    Ok(List { name, rules })
}

/// One end of a rule.
enum End {
    Any,
    V4(Set<u32>),
    V6(Set<u128>),
}

/// What is done with which packets.
fn rule(text: &str) -> Result<(Action, Vec<Region>), Fault> {
    let mut words = Words::new(text);
    let shown_v6 = match words.peek() {
        family @ ("ipv4" | "ipv6") => {
            words.0.next();
            Some(family == "ipv6")
        }
        _ => None,
    };
    // What VPP takes where a rule does not say it.
    let mut action = Action::Permit;
    // The family is that of the source.
    let mut source = if shown_v6 == Some(true) { End::V6(Set::ALL) } else { End::V4(Set::ALL) };
    let mut destination = End::Any;
    let mut protocol = 0;
    let (mut source_ports, mut destination_ports) = (ALL, ALL);
    let mut flags = (0, 0);
    while let Some(word) = words.0.next() {
        match word {
            "permit" => action = Action::Permit,
            "deny" => action = Action::Deny,
            REFLECT => action = Action::Reflect,
            "action" => {
                action = match words.next("0, 1 or 2")? {
                    "0" => Action::Deny,
                    "1" => Action::Permit,
                    "2" => Action::Reflect,
                    found => return Err(Fault::Syntax(format!("action {found:?}; expected 0, 1 or 2"))),
                };
            }
            "src" => source = prefix(words.next("a prefix")?)?,
            "dst" => destination = prefix(words.next("a prefix")?)?,
            "proto" => protocol = number(words.next("a protocol")?, "protocol", 255)?,
            "sport" => source_ports = range(words.next("a port or a range of ports")?)?,
            "dport" => destination_ports = range(words.next("a port or a range of ports")?)?,
            "tcpflags" => {
                let value = number(words.next("flags")?, "flags", 255)?;
                words.take("mask");
                flags = (value, number(words.next("a mask")?, "mask", 255)?);
            }
            _ => {
                let expected =
                    "expected permit, permit+reflect, deny, src, dst, proto, sport, dport or tcpflags";
                return Err(Fault::Syntax(format!("{word:?}; {expected}")));
            }
        }
    }
    let ends = match (source, destination) {
        (End::V4(source), End::V4(destination)) => Ends::V4(source, destination),
        (End::V4(source), End::Any) => Ends::V4(source, Set::ALL),
        (End::Any, End::V4(destination)) => Ends::V4(Set::ALL, destination),
        (End::V6(source), End::V6(destination)) => Ends::V6(source, destination),
        (End::V6(source), End::Any) => Ends::V6(source, Set::ALL),
        (End::Any, End::V6(destination)) => Ends::V6(Set::ALL, destination),
        (End::Any, End::Any) => Ends::ALL_V4,
        _ => {
            let message = "src and dst of two families (without src a rule is IPv4); expected both of one";
            return Err(Fault::Syntax(message.into()));
        }
    };
    if shown_v6.is_some_and(|v6| v6 != matches!(ends, Ends::V6(..))) {
        return Err(Fault::Syntax("addresses of the other family; expected those of the first word".into()));
    }
    let regions = regions(ends, protocol, source_ports, destination_ports, flags)?;
    Ok((action, regions))
}

/// A prefix, or any address of the other end's family.
fn prefix(word: &str) -> Result<End, Fault> {
    if word == "any" {
        return Ok(End::Any);
    }
    let expected = || format!("{word:?}; expected an IPv4 or IPv6 prefix such as 192.0.2.0/24");
    let (address, len) = word.split_once('/').ok_or_else(expected)?;
    let outside = || format!("{word:?} has bits set past its length, which VPP refuses");
    Ok(match address.parse().map_err(|_| expected())? {
        IpAddr::V4(address) => {
            let prefix = Prefix4::new(address.into(), number(len, "prefix length", 32)?);
            (prefix.address() == u32::from(address)).then_some(()).ok_or_else(outside)?;
            End::V4(Set::range(prefix.address(), prefix.address() | !prefix.mask()))
        }
        IpAddr::V6(address) => {
            let prefix = Prefix6::new(address.into(), number(len, "prefix length", 128)?);
            (prefix.address() == u128::from(address)).then_some(()).ok_or_else(outside)?;
            End::V6(Set::range(prefix.address(), prefix.address() | !prefix.mask()))
        }
    })
}

/// Ports, types or codes.
fn range(word: &str) -> Result<(u16, u16), Fault> {
    let (low, high) = word.split_once('-').unwrap_or((word, word));
    let (low, high) = (number(low, "port", 65_535)?, number(high, "port", 65_535)?);
    if low > high {
        return Err(Fault::Syntax(format!("{word:?} runs downwards; expected {high}-{low}")));
    }
    Ok((low, high))
}

/// The packets of a rule: those that begin with their transport header, and later fragments.
fn regions(
    ends: Ends,
    protocol: u8,
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
    (flags, mask): (u8, u8),
) -> Result<Vec<Region>, Fault> {
    let icmp = if matches!(ends, Ends::V6(..)) { ICMPV6 } else { ICMP };
    let every = Region::of(ends);
    // What is not looked at must not look as if it were. 0 is what the binary interface fills it with.
    let unused = |ports: (u16, u16)| ports == ALL || ports == (0, 0);
    if mask | flags != 0 && protocol != TCP {
        return Err(Fault::Unsupported("tcpflags without proto 6, which VPP does not look at".into()));
    }
    if !matches!(protocol, TCP | UDP) && protocol != icmp {
        if !unused(source_ports) || !unused(destination_ports) {
            let message = format!("sport or dport with proto {protocol}, which VPP does not look at");
            return Err(Fault::Unsupported(message));
        }
        return Ok(vec![if protocol == 0 { every } else { every.protocols(&Set::one(protocol)) }]);
    }
    let every = every.protocols(&Set::one(protocol));
    if source_ports == ALL && destination_ports == ALL && mask | flags == 0 {
        return Ok(vec![every]);
    }
    let set = |(low, high)| Set::range(low, high);
    let mut region = every.clone();
    if protocol == icmp {
        region = region.icmp(&types_and_codes(source_ports, destination_ports));
    } else {
        region = region.source_ports(&set(source_ports)).destination_ports(&set(destination_ports));
    }
    if mask | flags != 0 {
        region = region.flags(&region::flags_where(flags, mask));
    }
    Ok(vec![region, every.kinds(Kinds::LATER)])
}

/// Each of these types with each of these codes.
fn types_and_codes(types: (u16, u16), codes: (u16, u16)) -> Set<u16> {
    const MAX: u16 = u8::MAX as u16;
    if codes.0 > MAX {
        return Set::EMPTY;
    }
    let high = codes.1.min(MAX);
    Set::of((types.0..=types.1.min(MAX)).map(|icmp_type| (icmp_type << 8 | codes.0, icmp_type << 8 | high)))
}

/// Writes one command.
pub(super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let default = writing.options.closing();
    let mut is_empty = true;
    let mut put = |writing: &mut Writing<'_>, text: &str| {
        let before = if std::mem::take(&mut is_empty) { "set acl-plugin acl" } else { "," };
        write!(writing.writer, "{before} {text}")
    };
    for (index, rule) in rules.iter().enumerate().filter(|(index, _)| !is_said(rules, *index)) {
        for v6 in [false, true] {
            let ends = match rule.addresses {
                Addresses::V4(..) if v6 => continue,
                Addresses::V6(..) if !v6 => continue,
                Addresses::V4(source, destination) => format!("src {source} dst {destination}"),
                Addresses::V6(source, destination) => format!("src {source} dst {destination}"),
                Addresses::Any => EVERY[usize::from(v6)].into(),
            };
            let one =
                |protocol| conditions(&Rule { protocol, ..rule.clone() }, &rules[index + 1..], v6, default);
            let each: Result<Vec<_>, _> =
                protocols(rule).and_then(|protocols| protocols.into_iter().map(one).collect());
            match each {
                Err(reason) => writing.inexpressible(index, rule, reason)?,
                Ok(each) => each.iter().try_for_each(|(action, conditions)| {
                    let action = if *action == Action::Reflect { REFLECT } else { action.name() };
                    put(writing, &format!("{action} {ends}{conditions}"))
                })?,
            }
        }
    }
    for ends in EVERY.iter().filter(|_| default == Action::Permit) {
        put(writing, &format!("{} {ends}", default.name()))?;
    }
    if is_empty {
        // A command needs a rule.
        write!(writing.writer, "set acl-plugin acl deny {}", EVERY[0])?;
    }
    writeln!(writing.writer, " tag packetloom")?;
    Ok(())
}

/// Whether a rule that is for later fragments only says what one that was written shortly before it says already.
fn is_said(rules: &[Rule], index: usize) -> bool {
    /// Rules that are looked at: those that belong together stand together.
    const NEAR: usize = 64;
    let rule = &rules[index];
    let before = rules[..index].iter().rev().take(NEAR).take_while(|before| before.action == rule.action);
    rule.fragments == Fragments::Later
        && rule.protocol.is_some()
        && !meet::asks_transport(rule)
        && before.into_iter().any(|before| {
            matches_more(before) && before.addresses == rule.addresses && before.protocol == rule.protocol
        })
}

/// Whether VPP's rule matches later fragments that ours does not match.
fn matches_more(rule: &Rule) -> bool {
    match rule.fragments {
        Fragments::All => meet::asks_transport(rule),
        fragments => fragments == Fragments::NotLater,
    }
}

/// The action and the conditions of a rule, with a blank before each, or what there are no words for. The rule has the protocol
/// that its conditions need.
fn conditions(
    rule: &Rule,
    after: &[Rule],
    v6: bool,
    default: Action,
) -> Result<(Action, String), &'static str> {
    let action = rule.action.ok_or("where every rule has an action")?;
    let icmp = if v6 { ICMPV6 } else { ICMP };
    let asks_ports = !(rule.source_ports.is_any() && rule.destination_ports.is_any());
    let asks_icmp = rule.icmp_type.is_some() || rule.icmp_code.is_some();
    if asks_ports && rule.protocol == Some(SCTP) {
        return Err("where ports belong to tcp or udp");
    }
    if asks_icmp && rule.protocol != Some(icmp) {
        return Err("where types and codes belong to icmp with IPv4 and icmpv6 with IPv6");
    }
    if rule.protocol == Some(0) {
        return Err("where protocol 0 is every protocol");
    }
    if !matches!(rule.fragments, Fragments::All | Fragments::NotLater) {
        return Err("where fragments are not asked for");
    }
    if matches_more(rule) && !meet::later_is_alike(rule, after, Some(default)) {
        return Err("where later fragments are matched by addresses and protocol");
    }
    let mut text = rule.protocol.map_or_else(String::new, |protocol| format!(" proto {protocol}"));
    let single = |value: Option<u8>| value.map_or(PortRange::ANY, |value| PortRange::exactly(value.into()));
    let (first, second) = match asks_icmp {
        true => (single(rule.icmp_type), single(rule.icmp_code)),
        false => (rule.source_ports, rule.destination_ports),
    };
    for (word, range) in [("sport", first), ("dport", second)] {
        if !range.is_any() {
            text += &format!(" {word} {range}");
        }
    }
    if let Some(flags) = rule.tcp_flags {
        text += &format!(" tcpflags {} mask {}", flags.set & flags.mask, flags.mask);
    }
    Ok((action, text))
}
