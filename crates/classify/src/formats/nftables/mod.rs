//! nftables as JSON, as `nft -j list ruleset` prints it (libnftables-json(5)).
//!
//! - A list is a chain, called by its family, table and name, such as `inet filter input`, or by its name alone where no other
//!   has it. Unless one is named it is the only base chain of type `filter` that has rules. Its policy is the list's default.
//! - Base chains of other types (`nat`, `route`) are told apart from it ([`Reading::elsewhere`]), unless one is asked for.
//! - Named sets and verdict maps are taken as they were when they were listed; those whose elements expire have no equal.
//! - `reject` denies, `log` before a verdict becomes the rule's `log`, `counter` and `continue` change nothing.
//! - A verdict map decides over the packets that one of its elements matches, and its rule ends there; statements behind it are for
//!   elements that say `continue`. A packet that no element matches meets the next rule.
//! - What a header's field needs before it can be looked at is asked for as nft does: `tcp dport` asks for TCP, `icmp type` for
//!   IPv4 and ICMP.
//!
//! What is written is a table `inet packetloom` with a chain `forward`.

mod expression;
mod rule;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use serde_json::Value;
use serde_json::value::RawValue;

use super::builder::Builder;
use super::chains::{self, Chain, Unsupported};
use super::mistakes::Mistakes;
use super::region::{Ends, Region};
use super::text::Input;
use super::{Elsewhere, Error, Format, Options, Reading};
use crate::Action;
pub(super) use write::write;

/// Bytes of a file at most.
const MAX_TEXT: u64 = 1 << 28;

pub(super) fn recognises(head: &str) -> bool {
    head.trim_ascii_start().starts_with('{')
}

pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    let mut text = Vec::new();
    let read = input.reader.by_ref().take(MAX_TEXT).read_to_end(&mut text);
    read.map_err(|source| Error::Io { file: input.file.into(), source })?;
    let text = String::from_utf8(text).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count() as u32;
        builder.syntax(line, no_ruleset("not UTF-8 text"))
    })?;
    if text.len() as u64 == MAX_TEXT {
        return Err(builder.syntax(1, format!("more than {MAX_TEXT} bytes; expected a smaller ruleset")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut ruleset = Ruleset::default();
    let mut rules = Vec::new();
    for (line, object) in objects(text).map_err(|(line, message)| builder.syntax(line, message))? {
        let rule = ruleset.object(object).map_err(|message| builder.syntax(line, message))?;
        rules.extend(rule.map(|rule| (line, rule)));
    }
    let mut elsewhere = Aside::default();
    let mut mistakes = Mistakes::default();
    // nft prints all of them in one line.
    for (number, (line, rule)) in (0..).zip(rules) {
        let at = Place { line, number };
        let taken = parse(rule).and_then(|rule| ruleset.rule(at, &rule, options, &mut elsewhere));
        taken.map_err(|message| builder.syntax(line, message)).or_else(|error| mistakes.add(error))?;
    }
    mistakes.end(input.file)?;
    let root = ruleset.root(options, &builder)?;
    let (policy, everything) = (ruleset.chains[root].policy, ruleset.bases[root].everything.clone());
    let everything = everything.unwrap_or(Region::of(Ends::Any));
    let Aside { unsupported, mut chains } = elsewhere;
    chains::flatten(ruleset.chains, root, everything, unsupported, &mut builder)?;
    builder.elsewhere(chains.drain(..).map(|(_, elsewhere)| elsewhere).collect());
    Ok(builder.finish(Format::Nftables, policy))
}

/// What a text that is something else than a ruleset is refused with.
fn no_ruleset(error: impl std::fmt::Display) -> String {
    format!("{error}; expected JSON as \"nft -j list ruleset\" prints it")
}

fn parse(object: &RawValue) -> Result<Value, String> {
    serde_json::from_str(object.get()).map_err(no_ruleset)
}

/// The objects of a ruleset, each with its line; or the line of an error and what it is.
fn objects(text: &str) -> Result<Vec<(u32, &RawValue)>, (u32, String)> {
    let mut sections: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|error| {
        let line = u32::try_from(error.line()).unwrap_or(u32::MAX).max(1);
        (line, no_ruleset(error))
    })?;
    let objects = sections.remove("nftables").ok_or_else(|| (1, no_ruleset("no \"nftables\"")))?;
    let objects: Vec<&RawValue> =
        serde_json::from_str(objects.get()).map_err(|_| (1, no_ruleset("\"nftables\" is no list")))?;
    let mut line = 1u32;
    let mut from = 0;
    let with_line = |object: &'_ RawValue| {
        // Each is a part of the text, in order.
        let start = object.get().as_ptr() as usize - text.as_ptr() as usize;
        let between = &text.as_bytes()[from..start];
        line = line.saturating_add(between.iter().filter(|&&byte| byte == b'\n').count() as u32);
        from = start;
        line
    };
    let lines: Vec<u32> = objects.iter().copied().map(with_line).collect();
    Ok(lines.into_iter().zip(objects).collect())
}

/// The name in an object that holds only one, and what it names.
fn only(object: &RawValue) -> Result<(String, &RawValue), String> {
    let named: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_str(object.get());
    let mut named = named.unwrap_or_default().into_iter();
    match (named.next(), named.next()) {
        (Some(one), None) => Ok(one),
        _ => Err("not an object with one name; expected a chain, a rule or a set".into()),
    }
}

/// Where a rule stands.
#[derive(Clone, Copy)]
struct Place {
    line: u32,
    /// Its number among the rules.
    number: u32,
}

/// What there is outside of the list.
#[derive(Default)]
struct Aside {
    /// Rules of other families, which may decide over the same packets.
    unsupported: Vec<Unsupported>,
    /// Chains of other types than `filter`, that have rules, by their numbers.
    chains: Vec<(usize, Elsewhere)>,
}

/// Whose a chain or a set is, and its name.
type Name = [String; 3];

/// What is known of a chain beside its rules.
#[derive(Debug)]
struct Base {
    /// The packets that come to it; `None` where they are not IP packets.
    everything: Option<Region>,
    /// The type of a base chain.
    kind: Option<String>,
}

/// A named set or map.
#[derive(Debug)]
struct Elements {
    list: Vec<Value>,
    /// Whether the elements come and go by themselves.
    expire: bool,
}

/// The chains and sets of a ruleset.
#[derive(Debug, Default)]
struct Ruleset {
    chains: Vec<Chain>,
    bases: Vec<Base>,
    chain_names: HashMap<Name, usize>,
    sets: HashMap<Name, Elements>,
    /// Elements and ranges of conditions so far.
    size: usize,
}

/// A text in an object.
fn text(object: &Value, key: &str) -> Result<String, String> {
    let text = object.get(key).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| format!("an object without {key:?}; expected a text"))
}

fn name(object: &Value, key: &str) -> Result<Name, String> {
    Ok([text(object, "family")?, text(object, "table")?, text(object, key)?])
}

impl Ruleset {
    /// Takes an object of the ruleset; a rule is handed back, as it may need what comes after it.
    fn object<'t>(&mut self, object: &'t RawValue) -> Result<Option<&'t RawValue>, String> {
        let (kind, object) = match only(object)? {
            // What is to be loaded stands in a command, as the object itself is the shorter form of.
            (kind, object) if kind == "add" || kind == "create" => only(object)?,
            one => one,
        };
        match kind.as_str() {
            "chain" => self.chain(&parse(object)?)?,
            "rule" => return Ok(Some(object)),
            "set" | "map" => {
                let mut object = parse(object)?;
                // One flag stands alone, or in an array of its own.
                let flags = object.get("flags");
                let mut flags = flags.and_then(Value::as_array).into_iter().flatten().chain(flags);
                let expire = object.get("timeout").is_some()
                    || flags.any(|flag| matches!(flag.as_str(), Some("timeout" | "dynamic")));
                let list = match object.get_mut("elem").map(Value::take) {
                    Some(Value::Array(list)) => list,
                    _ => Vec::new(),
                };
                let name = name(&object, "name")?;
                let shown = name.join(" ");
                if self.sets.insert(name, Elements { list, expire }).is_some() {
                    return Err(format!("set {shown:?} stands twice"));
                }
            }
            "element" => {
                let mut object = parse(object)?;
                let name = name(&object, "name")?;
                let Some(set) = self.sets.get_mut(&name) else {
                    return Err(format!("elements of {:?}; expected the set before them", name.join(" ")));
                };
                match object.get_mut("elem").map(Value::take) {
                    Some(Value::Array(list)) => set.list.extend(list),
                    Some(Value::Null) | None => return Err("elements without \"elem\"".into()),
                    Some(one) => set.list.push(one),
                }
            }
            // What is to be loaded often begins with it.
            "flush" if self.is_empty() && only(object).is_ok_and(|(what, _)| what == "ruleset") => {}
            // Nothing of these decides over a packet, or what does is a statement of a rule.
            "metainfo" | "table" | "flowtable" | "counter" | "quota" | "limit" | "ct helper"
            | "ct timeout" | "ct expectation" | "synproxy" | "secmark" | "tunnel" => {}
            kind => return Err(format!("{kind:?}; expected a table, a chain, a rule, a set or a map")),
        }
        Ok(None)
    }

    fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.sets.is_empty()
    }

    fn chain(&mut self, object: &Value) -> Result<(), String> {
        let name = name(object, "name")?;
        let kind = object.get("type").and_then(Value::as_str).map(str::to_owned);
        let policy = match object.get("policy").and_then(Value::as_str) {
            None => None,
            Some("accept") => Some(Action::Permit),
            Some("drop") => Some(Action::Deny),
            Some(policy) => return Err(format!("policy {policy:?}; expected accept or drop")),
        };
        // A base chain without a policy accepts.
        let policy = policy.or(kind.as_ref().map(|_| Action::Permit));
        let everything = match name[0].as_str() {
            "ip" => Some(Region::of(Ends::ALL_V4)),
            "ip6" => Some(Region::of(Ends::ALL_V6)),
            "inet" => Some(Region::of(Ends::Any)),
            _ => None,
        };
        let shown = name.join(" ");
        if self.chain_names.insert(name, self.chains.len()).is_some() {
            return Err(format!("chain {shown:?} stands twice"));
        }
        self.chains.push(Chain { name: shown, policy, entries: Vec::new(), origins: Vec::new() });
        self.bases.push(Base { everything, kind });
        Ok(())
    }

    /// Takes a rule.
    fn rule(
        &mut self,
        at: Place,
        object: &Value,
        options: &Options,
        aside: &mut Aside,
    ) -> Result<(), String> {
        let name = name(object, "chain")?;
        let Some(&chain) = self.chain_names.get(&name) else {
            return Err(format!("no chain {:?}; expected it among the chains", name.join(" ")));
        };
        let Some(everything) = self.bases[chain].everything.clone() else {
            // ARP is another kind of packets; the other families decide over IP packets as well.
            if name[0] != "arp" {
                let construct = format!("a rule of the family {} has no equal here", name[0]);
                aside.unsupported.push(Unsupported::new(at.line, construct).of(at.number));
            }
            return Ok(());
        };
        // Unless it is asked for, a chain of another type is a list of its own.
        let is_asked_for = options.list.as_deref().is_some_and(|list| {
            let chain = &self.chains[chain].name;
            chain == list || chain.rsplit(' ').next() == Some(list)
        });
        if let Some(kind) =
            self.bases[chain].kind.as_deref().filter(|kind| *kind != "filter" && !is_asked_for)
        {
            match aside.chains.iter_mut().find(|(other, _)| *other == chain) {
                Some((_, elsewhere)) => elsewhere.rules += 1,
                None => {
                    let name = format!("chain {} of type {kind}", self.chains[chain].name);
                    aside.chains.push((chain, Elsewhere { line: at.line, name, rules: 1, drops: false }));
                }
            }
            return Ok(());
        }
        self.chains[chain].origins.push(at.number);
        let entries = rule::entries(at, object, &name, everything, self)?;
        self.chains[chain].entries.extend(entries);
        Ok(())
    }

    /// The chain that is the list.
    fn root(&self, options: &Options, builder: &Builder<'_>) -> Result<usize, Error> {
        let all: Vec<usize> =
            (0..self.chains.len()).filter(|&index| self.bases[index].everything.is_some()).collect();
        let base: Vec<usize> = all
            .iter()
            .copied()
            .filter(|&index| self.bases[index].kind.as_deref() == Some("filter"))
            .collect();
        let with_rules: Vec<usize> =
            base.iter().copied().filter(|&index| !self.chains[index].entries.is_empty()).collect();
        let candidates = match options.list {
            Some(_) => all,
            None if !with_rules.is_empty() => with_rules,
            None if !base.is_empty() => base,
            None => all,
        };
        let names = candidates.iter().map(|&index| self.chains[index].name.as_str());
        let none = if self.chains.is_empty() {
            "no chain; expected one of a table of the family ip, ip6 or inet".to_owned()
        } else {
            let others: Vec<&str> = self.chains.iter().take(20).map(|chain| chain.name.as_str()).collect();
            format!("no chain of a table of the family ip, ip6 or inet; there are {}", others.join(", "))
        };
        Ok(candidates[builder.choose(names, &none)?])
    }
}
