//! One rule: its matches and its target.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_packet::protocol;

use super::{Effect, Family, Verdict};
use crate::formats::Format;
use crate::formats::names;
use crate::formats::region::{Ends, Kinds, Region, flags_where, icmp};
use crate::formats::set::{Integer, Set};
use crate::formats::text::{self, number};
use crate::rule::Action;
use crate::{ConnectionState, ConnectionStates, Interfaces};

/// Flags by their names, in the order in which they are written.
pub(super) const FLAGS: [(&str, u8); 6] =
    [("FIN", FIN), ("SYN", SYN), ("RST", RST), ("PSH", 0x08), ("ACK", ACK), ("URG", 0x20)];
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// The ICMP type that stands for all of them in iptables.
pub(super) const ANY_ICMP: u8 = 255;
const DCCP: u8 = 33;
const UDPLITE: u8 = 136;

/// What a rule does.
pub(super) enum Target {
    Verdict(Verdict),
    Log,
}

/// A rule.
pub(super) struct Line {
    /// It matches what is in one of them.
    pub(super) regions: Vec<Region>,
    pub(super) target: Option<Target>,
    pub(super) comment: Option<Box<str>>,
    /// What has no equal, if anything has; then the rule matches at most what is in one of the regions.
    pub(super) unsupported: Option<LeftOut>,
}

/// What of a rule has no equal.
pub(super) struct LeftOut {
    pub(super) construct: String,
    pub(super) effect: Effect,
}

/// Reads what stands behind `-A CHAIN`.
pub(super) fn parse(text: &str, family: Family, chains: &HashMap<String, usize>) -> Result<Line, String> {
    let mut parser = Parser::new(family, chains);
    let words = words(text)?;
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "!" if parser.negated => return Err("\"!\" stands twice in a row".into()),
            "!" => parser.negated = true,
            word => {
                parser.option(word, &mut words)?;
                parser.negated = false;
            }
        }
    }
    if parser.negated {
        return Err("the line ends; expected a match after \"!\"".into());
    }
    Ok(parser.finish())
}

/// The words of a line. Between double quotes blanks do not count, and a backslash takes the next character as it is.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' if word.is_empty() => {}
            ' ' | '\t' => words.push(std::mem::take(&mut word)),
            '"' => {
                loop {
                    match characters.next().ok_or("a quote without its end")? {
                        '"' => break,
                        '\\' => word.extend(characters.next()),
                        character => word.push(character),
                    }
                }
                words.push(std::mem::take(&mut word));
            }
            character => word.push(character),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// The words of a line that are still to come.
type Words<'w> = dyn Iterator<Item = &'w str> + 'w;

fn value<'w>(option: &str, words: &mut Words<'w>) -> Result<&'w str, String> {
    words.next().ok_or_else(|| format!("the line ends; expected a value of {option}"))
}

/// The name of a rule's target among what may stand once.
const TARGET: &str = "a target";

/// What the words of a line have said so far.
struct Parser<'c> {
    family: Family,
    chains: &'c HashMap<String, usize>,
    /// Whether "!" stands before the next match.
    negated: bool,
    regions: Vec<Region>,
    /// The protocol that `-p` asks for.
    protocol: Option<u8>,
    seen: Vec<&'static str>,
    target: Option<Target>,
    comment: Option<Box<str>>,
    /// What has no equal.
    unsupported: Vec<String>,
    /// Whether the words from here on may belong to what has no equal.
    opaque: bool,
}

impl<'c> Parser<'c> {
    fn new(family: Family, chains: &'c HashMap<String, usize>) -> Self {
        Self {
            family,
            chains,
            negated: false,
            regions: vec![family.everything()],
            protocol: None,
            seen: Vec::new(),
            target: None,
            comment: None,
            unsupported: Vec::new(),
            opaque: false,
        }
    }

    /// Takes an option and its values.
    fn option(&mut self, option: &str, words: &mut Words<'_>) -> Result<(), String> {
        // A "!" before these would mean nothing.
        const PLAIN: [&str; 10] = [
            "-m",
            "--match",
            "-j",
            "--jump",
            "-g",
            "--goto",
            "-c",
            "--set-counters",
            "--comment",
            "--reject-with",
        ];
        if self.negated && self.unsupported.is_empty() && PLAIN.contains(&option) {
            return Err(format!("! before {option:?}; expected a match such as -s"));
        }
        match option {
            "-i" | "--in-interface" => {
                self.once("-i")?;
                let interfaces = Interfaces::named(value(option, words)?)?;
                let interfaces = if self.negated { interfaces.complement() } else { interfaces };
                self.narrow(|region| region.interfaces(&interfaces));
            }
            "-o" | "--out-interface" => {
                self.once("-o")?;
                let interfaces = Interfaces::named(value(option, words)?)?;
                let interfaces = if self.negated { interfaces.complement() } else { interfaces };
                self.narrow(|region| region.out(&interfaces));
            }
            "-m" | "--match" => self.module(value(option, words)?)?,
            "-j" | "--jump" => self.target(option, value(option, words)?, false)?,
            "-g" | "--goto" => self.target(option, value(option, words)?, true)?,
            // These may be words of what has no equal.
            _ if self.opaque => {}
            "-s" | "--source" | "--src" => {
                self.once("-s")?;
                let ends = self.addresses(value(option, words)?, true)?;
                self.narrow(|region| region.ends(&ends));
            }
            "-d" | "--destination" | "--dst" => {
                self.once("-d")?;
                let ends = self.addresses(value(option, words)?, false)?;
                self.narrow(|region| region.ends(&ends));
            }
            "-p" | "--protocol" | "--proto" => self.protocol(value(option, words)?)?,
            "-f" | "--fragment" if self.family == Family::V4 => {
                self.once("-f")?;
                let kinds = if self.negated { Kinds::LATER.complement() } else { Kinds::LATER };
                self.narrow(|region| region.kinds(kinds));
            }
            "-c" | "--set-counters" => {
                for _ in 0..2 {
                    number::<u64>(value(option, words)?, "counter", u64::MAX)?;
                }
            }
            "--sport" | "--source-port" | "--sports" | "--source-ports" => {
                let ports = self.ports(option, value(option, words)?)?;
                self.narrow(|region| region.source_ports(&ports));
            }
            "--dport" | "--destination-port" | "--dports" | "--destination-ports" => {
                let ports = self.ports(option, value(option, words)?)?;
                self.narrow(|region| region.destination_ports(&ports));
            }
            "--ports" => self.either_ports(option, value(option, words)?)?,
            "--tcp-flags" => {
                let mask = flags(value(option, words)?)?;
                let set = flags(value(option, words)?)?;
                self.tcp_flags(option, set, mask)?;
            }
            "--syn" => self.tcp_flags(option, SYN, SYN | ACK | RST | FIN)?,
            "--icmp-type" | "--icmpv6-type" => self.icmp_type(option, value(option, words)?)?,
            "--src-range" | "--dst-range" => {
                let ends = self.range(value(option, words)?, option == "--src-range")?;
                self.narrow(|region| region.ends(&ends));
            }
            "--state" | "--ctstate" => self.states(option, value(option, words)?)?,
            // How it is logged, and what a rejected packet is answered with, decide nothing.
            "--log-prefix" | "--log-level" | "--nflog-group" | "--nflog-prefix" | "--nflog-range"
            | "--nflog-size" | "--nflog-threshold" | "--reject-with" => drop(value(option, words)?),
            "--log-tcp-sequence" | "--log-tcp-options" | "--log-ip-options" | "--log-uid"
            | "--log-macdecode" => {}
            "--comment" => self.comment = text::comment(value(option, words)?),
            _ if option.starts_with('-') => self.no_equal(format!("`{option}`")),
            _ => return Err(format!("{option:?}; expected a match or a target")),
        }
        Ok(())
    }

    /// What was read.
    fn finish(self) -> Line {
        let unsupported = (!self.unsupported.is_empty()).then(|| {
            let verb = if self.unsupported.len() == 1 { "has" } else { "have" };
            let constructs = self.unsupported.join(", ");
            LeftOut { construct: format!("{constructs} {verb} no equal here"), effect: self.effect() }
        });
        let mut regions = self.regions;
        regions.retain(|region| !region.is_empty());
        Line { regions, target: self.target, comment: self.comment, unsupported }
    }

    /// What a rule that is left out may do.
    fn effect(&self) -> Effect {
        match self.target {
            Some(Target::Log) => Effect::Nothing,
            None if !self.seen.contains(&TARGET) => Effect::Nothing,
            Some(Target::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => {
                Effect::Decides { jumps: vec![chain] }
            }
            Some(Target::Verdict(_)) | None => Effect::Decides { jumps: Vec::new() },
        }
    }

    fn once(&mut self, option: &'static str) -> Result<(), String> {
        if self.seen.contains(&option) {
            return Err(format!("{option} stands twice"));
        }
        self.seen.push(option);
        Ok(())
    }

    /// Notes what has no equal; the words behind it may belong to it.
    fn no_equal(&mut self, construct: String) {
        self.unsupported.push(construct);
        self.opaque = true;
    }

    /// Leaves a part of each region; not where that may be part of what has no equal: a rule that is left out must not seem
    /// to match less than it does.
    fn narrow(&mut self, narrow: impl Fn(Region) -> Region) {
        if self.opaque {
            return;
        }
        self.regions = std::mem::take(&mut self.regions).into_iter().map(narrow).collect();
    }

    /// A set, or what is not in it behind a "!".
    fn set<T: Integer>(&self, set: Set<T>) -> Set<T> {
        if self.negated { set.complement() } else { set }
    }

    fn module(&mut self, name: &str) -> Result<(), String> {
        let protocol = match name {
            "comment" | "multiport" | "iprange" | "state" | "conntrack" => return Ok(()),
            "tcp" => protocol::TCP,
            "udp" => protocol::UDP,
            "sctp" => protocol::SCTP,
            "icmp" if self.family == Family::V4 => protocol::ICMP,
            "icmp6" | "icmpv6" | "ipv6-icmp" if self.family == Family::V6 => protocol::ICMPV6,
            _ => {
                self.no_equal(format!("`-m {name}`"));
                return Ok(());
            }
        };
        if !self.opaque {
            self.header(&format!("-m {name}"), |number| number == protocol)?;
            // Looking at a header alone leaves later fragments out: they have none.
            self.narrow(|region| region.kinds(Kinds::WITH_HEADER));
        }
        Ok(())
    }

    /// Refuses a look at a header without the protocol that has it.
    fn header(&self, option: &str, has: impl Fn(u8) -> bool) -> Result<(), String> {
        if self.protocol.is_some_and(has) {
            return Ok(());
        }
        Err(format!("{option} with a protocol that has none; expected -p with the protocol before it"))
    }

    fn target(&mut self, option: &str, name: &str, goto: bool) -> Result<(), String> {
        self.once(TARGET)?;
        self.target = match (name, self.chains.get(name)) {
            (_, Some(&chain)) if goto => Some(Target::Verdict(Verdict::Goto(chain))),
            (_, Some(&chain)) => Some(Target::Verdict(Verdict::Jump(chain))),
            ("ACCEPT", _) if !goto => Some(Target::Verdict(Verdict::Decide(Action::Permit))),
            ("DROP" | "REJECT", _) if !goto => Some(Target::Verdict(Verdict::Decide(Action::Deny))),
            ("RETURN", _) if !goto => Some(Target::Verdict(Verdict::Return)),
            ("LOG" | "NFLOG", _) if !goto => Some(Target::Log),
            _ => None,
        };
        if self.target.is_none() {
            self.no_equal(format!("`{option} {name}`"));
        }
        Ok(())
    }

    fn protocol(&mut self, word: &str) -> Result<(), String> {
        /// Numbers that no IPv6 packet has here, or there, because the header they name is walked over.
        const WALKED: [u8; 7] = [43, 44, 51, 60, 135, 139, 140];
        self.once("-p")?;
        let wanted = match names::protocol_number(word) {
            _ if matches!(word, "all" | "ip" | "0") => None,
            Some(number) => Some(number),
            None if word.bytes().all(|byte| byte.is_ascii_digit()) => Some(number(word, "protocol", 255)?),
            None => return Err(format!("protocol {word:?}; expected all, a name such as tcp, or a number")),
        };
        let Some(wanted) = wanted else {
            return if self.negated { Err("! -p all; expected a protocol".into()) } else { Ok(()) };
        };
        if self.family == Family::V6 && WALKED.contains(&wanted) {
            self.no_equal(format!("`-p {word}`"));
            return Ok(());
        }
        if !self.negated {
            self.protocol = Some(wanted);
        }
        let protocols = self.set(Set::one(wanted));
        self.narrow(|region| region.protocols(&protocols));
        Ok(())
    }

    /// What lies between the ends that these ranges of addresses leave.
    fn ends(&self, ranges: Vec<(u128, u128)>, is_source: bool) -> Ends {
        fn both<T: Integer>(set: Set<T>, is_source: bool) -> (Set<T>, Set<T>) {
            if is_source { (set, Set::ALL) } else { (Set::ALL, set) }
        }
        match self.family {
            Family::V4 => {
                let ranges = ranges.into_iter().map(|(low, high)| (low as u32, high as u32));
                let (source, destination) = both(self.set(Set::of(ranges)), is_source);
                Ends::V4(source, destination)
            }
            Family::V6 => {
                let (source, destination) = both(self.set(Set::of(ranges)), is_source);
                Ends::V6(source, destination)
            }
        }
    }

    /// Addresses and prefixes with commas between them.
    fn addresses(&self, list: &str, is_source: bool) -> Result<Ends, String> {
        if self.negated && list.contains(',') {
            return Err(format!("! before {list:?}; expected one address"));
        }
        let ranges = list.split(',').map(|word| self.prefix(word)).collect::<Result<_, _>>()?;
        Ok(self.ends(ranges, is_source))
    }

    /// The lowest and the highest address of `ADDRESS`, `ADDRESS/LENGTH` or `ADDRESS/MASK`.
    fn prefix(&self, word: &str) -> Result<(u128, u128), String> {
        let (address, len) = word.split_once('/').map_or((word, None), |(address, len)| (address, Some(len)));
        let low = self.address(address)?;
        let bits = match self.family {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        let len = match len {
            None => bits,
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                number::<u32>(len, "prefix length", bits.into())?
            }
            Some(mask) => {
                // The mask's bits stand at the top of the word.
                let mask = self.address(mask)? << (128 - bits);
                let len = mask.leading_ones();
                if mask.count_ones() != len {
                    return Err(format!("mask of {word:?}; expected the set bits before the others"));
                }
                len
            }
        };
        let past = u128::MAX.checked_shr(128 - bits + len).unwrap_or(0);
        Ok((low & !past, low | past))
    }

    fn address(&self, word: &str) -> Result<u128, String> {
        let address = match self.family {
            Family::V4 => word.parse::<Ipv4Addr>().ok().map(|address| u32::from(address).into()),
            Family::V6 => word.parse::<Ipv6Addr>().ok().map(u128::from),
        };
        address.ok_or_else(|| {
            let (expected, other) = match self.family {
                Family::V4 => ("an IPv4", Format::Ip6tables),
                Family::V6 => ("an IPv6", Format::Iptables),
            };
            format!("address {word:?}; expected {expected} address, or --format {other}")
        })
    }

    /// `LOW-HIGH`.
    fn range(&self, word: &str, is_source: bool) -> Result<Ends, String> {
        let (low, high) = word.split_once('-').ok_or_else(|| format!("{word:?}; expected LOW-HIGH"))?;
        let (low, high) = (self.address(low)?, self.address(high)?);
        if low > high {
            return Err(format!("{word:?}; expected LOW-HIGH"));
        }
        Ok(self.ends(vec![(low, high)], is_source))
    }

    /// Ports and, in the options that take several, a list of them.
    fn ports(&mut self, option: &str, list: &str) -> Result<Set<u16>, String> {
        let has_several = option.ends_with("ports");
        if has_several && self.protocol.is_some_and(|number| matches!(number, DCCP | UDPLITE)) {
            self.no_equal(format!("`{option}` of dccp or udplite"));
            return Ok(Set::ALL);
        }
        self.header(option, protocol::has_ports)?;
        let range = |word: &str| {
            let (low, high) = word.split_once(':').unwrap_or((word, word));
            let port =
                |word: &str, open| if word.is_empty() { Ok(open) } else { number(word, "port", 65_535) };
            let (low, high) = if word.contains(':') {
                (port(low, 0)?, port(high, u16::MAX)?)
            } else {
                (number(low, "port", 65_535)?, number(high, "port", 65_535)?)
            };
            if low > high { Err(format!("ports {word:?}; expected LOW:HIGH")) } else { Ok((low, high)) }
        };
        let ranges = if has_several {
            list.split(',').map(range).collect::<Result<Vec<_>, _>>()?
        } else {
            vec![range(list)?]
        };
        Ok(self.set(Set::of(ranges)))
    }

    /// Ports of which one of both ends has one, or neither behind a "!".
    fn either_ports(&mut self, option: &str, list: &str) -> Result<(), String> {
        let ports = self.ports(option, list)?;
        if self.negated {
            self.narrow(|region| region.source_ports(&ports).destination_ports(&ports));
        } else if !self.opaque {
            let regions = std::mem::take(&mut self.regions).into_iter();
            self.regions = regions
                .flat_map(|region| [region.clone().source_ports(&ports), region.destination_ports(&ports)])
                .collect();
        }
        Ok(())
    }

    /// States with commas between them.
    fn states(&mut self, option: &str, list: &str) -> Result<(), String> {
        let mut states = ConnectionStates::NONE;
        for name in list.split(',') {
            let state = match name {
                "NEW" => ConnectionState::New,
                "ESTABLISHED" => ConnectionState::Established,
                "RELATED" => ConnectionState::Related,
                "INVALID" => ConnectionState::Invalid,
                "UNTRACKED" => ConnectionState::Untracked,
                // Whether addresses were translated is not known here.
                "SNAT" | "DNAT" if option == "--ctstate" => {
                    self.no_equal(format!("`{option} {name}`"));
                    return Ok(());
                }
                _ => {
                    return Err(format!(
                        "state {name:?}; expected NEW, ESTABLISHED, RELATED, INVALID or UNTRACKED"
                    ));
                }
            };
            states = states.union(ConnectionStates::one(state));
        }
        let states = if self.negated { states.complement() } else { states };
        self.narrow(|region| region.states(states));
        Ok(())
    }

    fn tcp_flags(&mut self, option: &str, set: u8, mask: u8) -> Result<(), String> {
        self.header(option, |number| number == protocol::TCP)?;
        let flags = self.set(flags_where(set, mask));
        self.narrow(|region| region.flags(&flags));
        Ok(())
    }

    fn icmp_type(&mut self, option: &str, word: &str) -> Result<(), String> {
        let icmp_protocol = if option == "--icmp-type" { protocol::ICMP } else { protocol::ICMPV6 };
        self.header(option, |number| number == icmp_protocol)?;
        let named = names::icmp(icmp_protocol, word);
        let (icmp_type, code) = match (named, word.split_once('/')) {
            (Some(named), _) => named,
            (None, _) if word == "any" && icmp_protocol == protocol::ICMP => (ANY_ICMP, None),
            (None, Some((icmp_type, code))) => {
                (number(icmp_type, "ICMP type", 255)?, Some(number(code, "ICMP code", 255)?))
            }
            (None, None) => (number(word, "ICMP type", 255)?, None),
        };
        let types = match icmp_protocol {
            protocol::ICMP if icmp_type == ANY_ICMP => Set::ALL,
            _ => icmp(icmp_type, code),
        };
        let types = self.set(types);
        self.narrow(|region| region.icmp(&types));
        Ok(())
    }
}

/// Names of flags with commas between them.
fn flags(list: &str) -> Result<u8, String> {
    list.split(',').try_fold(0, |flags, name| match FLAGS.iter().find(|(known, _)| *known == name) {
        Some((_, flag)) => Ok(flags | flag),
        None if name == "ALL" => Ok(0x3f),
        None if name == "NONE" => Ok(flags),
        None => Err(format!("flag {name:?}; expected ALL, NONE, FIN, SYN, RST, PSH, ACK or URG")),
    })
}
