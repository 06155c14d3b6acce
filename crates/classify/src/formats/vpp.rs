//! Access lists of VPP's ACL plugin: the commands that set them, and what `show acl-plugin acl` prints.
//!
//! ```text
//! set acl-plugin acl RULE[, RULE…] [tag NAME] [index N]
//! delete acl-plugin acl index N
//! RULE: permit|deny [src PREFIX] [dst PREFIX] [proto N] [sport N[-N]] [dport N[-N]] [tcpflags N mask N]
//!
//! acl-index N count N tag {NAME}
//!   0: ipv4|ipv6 RULE
//! ```
//!
//! A rule without addresses is IPv4. With ICMP, `sport` and `dport` are types and codes. A rule with a protocol matches later
//! fragments by addresses and protocol alone (`l4-match-nonfirst-fragment`, which is so unless it is set otherwise).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use packetloom_packet::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

use super::builder::{Builder, Fault};
use super::mistakes::Mistakes;
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
    index: u32,
    /// What it is called, if it is called anything.
    tag: Option<String>,
    /// Its rules, each with its line.
    rules: Vec<(u32, String)>,
    /// The line that says how many rules follow, and how many.
    shown: Option<(u32, usize)>,
}

/// The first line is one of a list.
pub(super) fn recognises(head: &str) -> bool {
    // The prompt holds the letter that comments begin with.
    let lines = head.lines().map(str::trim_ascii).filter(|line| !line.starts_with('#'));
    let first = lines.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let words = first.into_iter().find(|words| !without_prompt(words).is_empty()).unwrap_or_default();
    let words = without_prompt(&words);
    matches!(*words, ["set" | "delete" | "show", "acl-plugin", ..] | ["acl-index", _, "count", ..])
}

/// Reads the list that is asked for, by tag or index, or the only one.
pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    let mut lists = Lists::default();
    text::raw_lines(input.file, &mut input.reader, MAX_LINE, |line, text| {
        let text = text.trim_ascii();
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        lists.line(line, text).or_else(|fault| {
            // A setting without an equal changes what every rule does.
            builder.doubt(0..u32::MAX);
            match text.split_ascii_whitespace().nth(2) {
                Some("l4-match-nonfirst-fragment") => {
                    builder.fault_within(line, fault, &Region::of(Ends::Any).kinds(Kinds::LATER))
                }
                _ => builder.fault(line, fault),
            }
        })
    })?;
    for List { shown, rules, .. } in &lists.lists {
        if let Some((line, count)) = shown.filter(|(_, count)| *count != rules.len()) {
            let message =
                format!("count {count}, but {} rules follow; expected all that VPP prints", rules.len());
            return Err(builder.syntax(line, message));
        }
    }
    let names = lists.names();
    let none = "no list of rules; expected \"set acl-plugin acl …\", or what \"show acl-plugin acl\" prints";
    let at = builder.choose(names.iter().map(String::as_str), none)?;
    let mut mistakes = Mistakes::default();
    // A command holds a whole list in one line.
    for (number, (line, text)) in (0..).zip(&lists.lists[at].rules) {
        builder.statement(number);
        match rule(text) {
            Err(fault) => builder.fault(*line, fault).or_else(|error| mistakes.add(error))?,
            Ok((action, regions)) => {
                let template = Rule { line: *line, ..Rule::any(Some(action)) };
                for region in &regions {
                    builder.region(&template, region)?;
                }
            }
        }
    }
    mistakes.end(input.file)?;
    Ok(builder.finish(Format::Vpp, Some(Action::Deny)))
}

/// What the lines of a file have said so far.
#[derive(Default)]
struct Lists {
    lists: Vec<List>,
    /// The index that a list gets if no other is free, and those that are, the next one last.
    next: u32,
    free: Vec<u32>,
    /// Where lists are in use: interface, direction and index of the list.
    used: HashSet<(String, bool, u32)>,
    /// Whether lines are of a list that is shown.
    is_shown: bool,
}

impl Lists {
    /// Takes a line.
    fn line(&mut self, line: u32, text: &str) -> Result<(), Fault> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let words = without_prompt(&words);
        if words.is_empty() {
            return Ok(());
        }
        let is_shown = std::mem::take(&mut self.is_shown);
        match *words {
            ["set", "acl-plugin", "acl", ..] => {
                let command = Command::parse(line, words)?;
                self.set(command)?;
            }
            ["set", "acl-plugin", "interface", ref rest @ ..] => self.interface(rest)?,
            ["delete", "acl-plugin", "acl", "index", index] => {
                self.delete(number(index, "index", u32::MAX.into())?)?
            }
            // Whether later fragments are matched by addresses and protocol.
            ["set", "acl-plugin", "l4-match-nonfirst-fragment", value] => {
                if number::<u32>(value, "l4-match-nonfirst-fragment", u32::MAX.into())? == 0 {
                    return Err(Fault::no_equal("l4-match-nonfirst-fragment 0"));
                }
            }
            ["set", "acl-plugin", "skip-ipv6-extension-header", ..] => {
                return Err(Fault::no_equal("skip-ipv6-extension-header"));
            }
            // Lists of MAC addresses, sessions, and how lists are looked up.
            ["set" | "delete", "acl-plugin", "macip", ..] | ["show" | "clear" | "test", "acl-plugin", ..] => {
            }
            [
                "set",
                "acl-plugin",
                "session"
                | "reclassify-sessions"
                | "use-hash-acl-matching"
                | "use-tuple-merge"
                | "tuple-merge"
                | "event-trace"
                | "heap",
                ..,
            ] => {}
            ["acl-index", index, "count", count, ..] => self.shown(line, text, index, count)?,
            [position, ..] if is_shown && position.ends_with(':') => {
                if let (Some(list), Some((_, rule))) = (self.lists.last_mut(), text.split_once(':')) {
                    list.rules.push((line, rule.into()));
                }
                self.is_shown = true;
            }
            _ if looks_like_one(words) => {
                return Err(Fault::Syntax(format!(
                    "{:?}; expected a command of the ACL plugin, such as \"set acl-plugin acl permit …\" or \"delete \
                     acl-plugin acl index N\"",
                    brief(text)
                )));
            }
            _ => self.is_shown = is_shown,
        }
        Ok(())
    }

    /// Keeps the list of a command, a new one or in the place of another.
    fn set(&mut self, Command { index, tag, rules }: Command) -> Result<(), Fault> {
        let list = match index {
            None => {
                let index = self.free.pop().unwrap_or(self.next);
                self.next = self.next.max(index.saturating_add(1));
                self.lists.push(List { index, tag, rules, shown: None });
                return Ok(());
            }
            Some(index) => self.lists.iter_mut().find(|list| list.index == index).ok_or_else(|| {
                format!("no list of index {index} before this line; expected the index of one, or none for a new list")
            })?,
        };
        *list = List { index: list.index, tag, rules, shown: None };
        Ok(())
    }

    /// Takes a list away.
    fn delete(&mut self, index: u32) -> Result<(), Fault> {
        let Some(at) = self.lists.iter().position(|list| list.index == index) else {
            return Err(Fault::Syntax(format!(
                "no list of index {index} before this line; expected the index of one"
            )));
        };
        if let Some((interface, ..)) = self.used.iter().find(|(_, _, used)| *used == index) {
            return Err(Fault::Syntax(format!(
                "list {index} is in use by interface {interface:?}, so VPP does not delete it"
            )));
        }
        self.lists.remove(at);
        self.free.push(index);
        Ok(())
    }

    /// Takes `INTERFACE input|output acl N [del]`.
    fn interface(&mut self, words: &[&str]) -> Result<(), Fault> {
        let (interface, direction, index, is_end) = match *words {
            [interface, direction @ ("input" | "output"), "acl", index] => {
                (interface, direction, index, false)
            }
            [interface, direction @ ("input" | "output"), "acl", index, "del"] => {
                (interface, direction, index, true)
            }
            _ => {
                return Err(Fault::Syntax(format!(
                    "{:?}; expected set acl-plugin interface INTERFACE input|output acl N [del]",
                    brief(&words.join(" "))
                )));
            }
        };
        let used = (interface.to_owned(), direction == "input", number(index, "index", u32::MAX.into())?);
        if is_end {
            self.used.remove(&used);
        } else {
            self.used.insert(used);
        }
        Ok(())
    }

    /// Begins a list that is shown.
    fn shown(&mut self, line: u32, text: &str, index: &str, count: &str) -> Result<(), Fault> {
        let index = number(index, "index", u32::MAX.into())?;
        let count = number(count, "count", u32::MAX.into())?;
        if self.lists.iter().any(|list| list.index == index) {
            return Err(Fault::Syntax(format!("list {index} stands twice; expected each list once")));
        }
        let tag = text.split_once("tag {").and_then(|(_, tag)| tag.strip_suffix('}')).unwrap_or_default();
        let tag = (!tag.is_empty() && tag != NO_TAG).then(|| tag.into());
        self.lists.push(List { index, tag, rules: Vec::new(), shown: Some((line, count)) });
        self.next = self.next.max(index.saturating_add(1));
        self.is_shown = true;
        Ok(())
    }

    /// What each list is called: its tag if no other has it, else its index.
    fn names(&self) -> Vec<String> {
        let mut tags: HashMap<&str, usize> = HashMap::new();
        self.lists.iter().flat_map(|list| &list.tag).for_each(|tag| *tags.entry(tag).or_default() += 1);
        let name = |list: &List| match &list.tag {
            Some(tag) if tags[tag.as_str()] == 1 => tag.clone(),
            _ => list.index.to_string(),
        };
        self.lists.iter().map(name).collect()
    }
}

/// The words behind the prompt of VPP's command line, if there is one.
fn without_prompt<'w, 'a>(words: &'w [&'a str]) -> &'w [&'a str] {
    match words {
        [prompt, rest @ ..] if matches!(*prompt, "vpp#" | "DBGvpp#") => rest,
        words => words,
    }
}

/// Whether words look like a command of the ACL plugin, or of its binary interface, or like a list that is shown.
fn looks_like_one(words: &[&str]) -> bool {
    const PLUGIN: &str = "acl-plugin";
    let is_plugin = |word: &&str| {
        let word = word.to_ascii_lowercase();
        text::is_near(&word, PLUGIN, 2) || (word.len() >= 4 && PLUGIN.starts_with(&word))
    };
    words.iter().take(3).any(is_plugin)
        || ["acl_", "macip_acl_", "acl-index"].iter().any(|beginning| words[0].starts_with(beginning))
        || text::is_near(words[0], "acl-index", 2)
}

/// A text that is not too long for a message.
fn brief(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

/// The command that sets a list.
struct Command {
    /// The list that it replaces.
    index: Option<u32>,
    tag: Option<String>,
    rules: Vec<(u32, String)>,
}

impl Command {
    fn parse(line: u32, words: &[&str]) -> Result<Self, String> {
        let (mut index, mut tag, mut count) = (None, None, None);
        let mut rules = Vec::new();
        let text = words[3..].join(" ");
        for part in text.split(',') {
            let mut kept: Vec<&str> = Vec::new();
            let mut words = Words::new(part);
            while let Some(word) = words.0.next() {
                match word {
                    "tag" => tag = Some(words.next("a tag")?.to_owned()).filter(|tag| tag != NO_TAG),
                    "index" => index = Some(number(words.next("an index")?, "index", u32::MAX.into())?),
                    "count" => count = Some(number::<u32>(words.next("a count")?, "count", u32::MAX.into())?),
                    word => kept.push(word),
                }
            }
            if kept.is_empty() {
                // VPP would permit all of IPv4.
                return Err("a rule without words; expected permit or deny".into());
            }
            rules.push((line, kept.join(" ")));
        }
        // VPP would take so many of them.
        if let Some(count) = count.filter(|count| *count as usize != rules.len()) {
            return Err(format!(
                "count {count} with {} rules; expected as many rules, or no count",
                rules.len()
            ));
        }
        Ok(Self { index, tag, rules })
    }
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
    let ignores_fragments = writing.ignores_fragments;
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
            let one = |protocol| {
                let rule = Rule { protocol, ..rule.clone() };
                conditions(&rule, &rules[index + 1..], v6, default, ignores_fragments)
            };
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
    ignores_fragments: bool,
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
    if !ignores_fragments && matches_more(rule) && !meet::later_is_alike(rule, after, Some(default)) {
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
