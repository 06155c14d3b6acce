//! One rule: its statements, in order.

use packetloom_packet::protocol;
use serde_json::Value;

use super::expression::{self, Field};
use super::{Name, Place, Ruleset};
use crate::Action;
use crate::formats::builder::Fault;
use crate::formats::chains::{ChainRule, Effect, Entry, Unsupported, Verdict};
use crate::formats::region::Region;
use crate::formats::text;

/// What a rule does to packets that all of its matches let through.
#[derive(Clone, Copy)]
enum Does {
    /// Nothing that decides.
    Nothing,
    Verdict(Verdict),
}

/// What a rule does to some packets, and whether it logs them before.
struct Decision {
    regions: Vec<Region>,
    does: Does,
    log: bool,
}

/// What the statements of a rule have said so far.
struct Statements<'r> {
    ruleset: &'r mut Ruleset,
    name: &'r Name,
    regions: Vec<Region>,
    /// Conditions on a header without the protocol that has it: another condition must ask for that, before or after.
    bare: Vec<(Vec<Field>, Vec<Region>)>,
    log: bool,
    does: Vec<Decision>,
    /// Whether no packet comes to the statements that follow.
    ended: bool,
    unsupported: Vec<String>,
}

/// What a rule of a chain becomes: several entries where it looks its verdict up, none where it decides nothing.
pub(super) fn entries(
    Place { line, number: origin }: Place,
    rule: &Value,
    name: &Name,
    everything: Region,
    ruleset: &mut Ruleset,
) -> Result<Vec<Entry>, String> {
    // A rule without statements does nothing.
    let statements = match rule.get("expr") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(statements)) => statements,
        Some(one) => std::slice::from_ref(one),
    };
    let mut parser = Statements {
        ruleset,
        name,
        regions: vec![everything.clone()],
        bare: Vec::new(),
        log: false,
        does: Vec::new(),
        ended: false,
        unsupported: Vec::new(),
    };
    let take = |of: &mut Statements<'_>, result: Result<(), Fault>| match result {
        Ok(()) => Ok(()),
        Err(Fault::Unsupported(construct)) => {
            of.unsupported.push(construct);
            Ok(())
        }
        Err(Fault::Syntax(message)) => Err(message),
    };
    // What the rule matches at most, from the statements before the first that has no equal.
    let mut at_most = None;
    for statement in statements {
        let before = at_most.is_none().then(|| parser.regions.clone());
        let result = parser.statement(statement);
        take(&mut parser, result)?;
        if !parser.unsupported.is_empty() {
            at_most = at_most.or(before);
        }
    }
    let result = parser.settle();
    take(&mut parser, result)?;
    if !parser.unsupported.is_empty() {
        let handle = rule.get("handle").map_or_else(String::new, |handle| format!(" handle {handle}"));
        let verb = if parser.unsupported.len() == 1 { "has" } else { "have" };
        let constructs = parser.unsupported.join(", ");
        let construct = format!("{}{handle}: {constructs} {verb} no equal here", name.join(" "));
        let unsupported =
            Unsupported::new(line, construct).of(origin).with(effect(statements, name, ruleset));
        let regions = at_most.unwrap_or_else(|| vec![everything]);
        return Ok(vec![Entry::Unsupported(unsupported.within(regions))]);
    }
    let only_logs = parser.log && !parser.ended && !parser.regions.is_empty();
    let only_logs = only_logs.then_some(Entry::Log { line, origin, regions: parser.regions });
    let comment = rule.get("comment").and_then(Value::as_str).and_then(text::comment);
    let entry = |Decision { regions, does, log }: Decision| match does {
        Does::Verdict(verdict) if !regions.is_empty() => {
            Some(Entry::Rule(ChainRule { line, origin, regions, verdict, log, comment: comment.clone() }))
        }
        _ => None,
    };
    Ok(parser.does.into_iter().filter_map(entry).chain(only_logs).collect())
}

/// What a rule with statements that have no equal may do.
fn effect(statements: &[Value], name: &Name, ruleset: &Ruleset) -> Effect {
    let mut effect = Effect::Nothing;
    let mut jumps = Vec::new();
    for (kind, of) in statements.iter().filter_map(Value::as_object).flatten() {
        match kind.as_str() {
            // Conditions, and what decides nothing.
            "match" | "counter" | "log" | "limit" | "quota" | "ct count" | "continue" => continue,
            "accept" | "drop" | "reject" | "return" | "queue" => {}
            "jump" | "goto" => {
                let [family, table, _] = name;
                let target = of.get("target").and_then(Value::as_str).unwrap_or_default();
                jumps.extend(ruleset.chain_names.get(&[family.clone(), table.clone(), target.to_owned()]));
            }
            // Its elements may not be known.
            "vmap" => jumps.extend(0..ruleset.chains.len()),
            // Such as a new address.
            _ => effect = Effect::Changes { jumps: Vec::new() },
        }
        if matches!(effect, Effect::Nothing) {
            effect = Effect::Decides { jumps: Vec::new() };
        }
    }
    match effect {
        Effect::Nothing => Effect::Nothing,
        Effect::Decides { .. } => Effect::Decides { jumps },
        Effect::Changes { .. } => Effect::Changes { jumps },
    }
}

impl Statements<'_> {
    fn statement(&mut self, statement: &Value) -> Result<(), Fault> {
        if self.ended {
            return Ok(());
        }
        let one =
            statement.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
        let Some((kind, of)) = one else {
            // nft prints statements that it has no JSON for as text.
            return Err(expression::unsupported(&expression::brief(statement)));
        };
        match kind.as_str() {
            "match" => self.condition(of),
            "counter" | "continue" | "last" => Ok(()),
            "log" => {
                self.log = true;
                Ok(())
            }
            "vmap" => self.lookup(of),
            _ => {
                self.settle()?;
                let does = self.verdict(kind, of)?;
                let decides = matches!(does, Does::Verdict(Verdict::Decide(_)));
                if self.log && !decides {
                    return Err(expression::unsupported(&format!("log before {kind}")));
                }
                self.ended = true;
                self.does.push(Decision { regions: self.regions.clone(), does, log: self.log });
                Ok(())
            }
        }
    }

    fn verdict(&self, kind: &str, of: &Value) -> Result<Does, Fault> {
        let target = || {
            let target = of.get("target").and_then(Value::as_str);
            let target =
                target.ok_or_else(|| expression::unsupported(&format!("{kind} without a target")))?;
            let [family, table, _] = self.name;
            let chain = self.ruleset.chain_names.get(&[family.clone(), table.clone(), target.to_owned()]);
            // It is there, but not in a listing of one chain or of one table.
            chain
                .copied()
                .ok_or_else(|| expression::unsupported(&format!("{kind} {target}, which is not listed")))
        };
        Ok(match kind {
            "accept" => Does::Verdict(Verdict::Decide(Action::Permit)),
            "drop" | "reject" => Does::Verdict(Verdict::Decide(Action::Deny)),
            "return" => Does::Verdict(Verdict::Return),
            "jump" => Does::Verdict(Verdict::Jump(target()?)),
            "goto" => Does::Verdict(Verdict::Goto(target()?)),
            "continue" => Does::Nothing,
            kind => return Err(expression::unsupported(kind)),
        })
    }

    fn condition(&mut self, of: &Value) -> Result<(), Fault> {
        if self.log {
            return Err(expression::unsupported("log before a match"));
        }
        let fields = expression::fields(of.get("left").unwrap_or_default())?;
        let regions = expression::condition(of, &fields, self.name, self.ruleset)?;
        if fields.iter().any(|field| field.is_bare()) {
            self.bare.push((fields, regions));
            return Ok(());
        }
        self.narrow(&fields, &regions)
    }

    /// Applies the conditions that had to wait for others.
    fn settle(&mut self) -> Result<(), Fault> {
        let bare = std::mem::take(&mut self.bare);
        bare.iter().try_for_each(|(fields, regions)| self.narrow(fields, regions))
    }

    /// Leaves what is in one of these regions, which conditions on these fields gave.
    fn narrow(&mut self, fields: &[Field], regions: &[Region]) -> Result<(), Fault> {
        // What stands there in the headers of other protocols is no port.
        let has_ports = |region: &Region| region.has_only(protocol::has_ports);
        if fields.iter().any(|field| field.is_bare()) && !self.regions.iter().all(has_ports) {
            return Err(expression::unsupported("th without meta l4proto"));
        }
        // As nft does: ICMP is IPv4's and ICMPv6 is IPv6's where nothing before says which packets they are.
        let both = self.regions.iter().any(Region::is_of_both_families);
        let implied = fields.iter().find_map(|field| field.implied()).filter(|_| both);
        let regions = regions.iter().map(|region| match &implied {
            Some(ends) => region.clone().ends(ends),
            None => region.clone(),
        });
        let regions: Vec<_> = regions.collect();
        self.regions = self.intersection(&regions)?;
        Ok(())
    }

    fn intersection(&mut self, regions: &[Region]) -> Result<Vec<Region>, Fault> {
        self.ruleset.count(self.regions.len().saturating_mul(regions.len()))?;
        let mut left = Vec::new();
        for mine in &self.regions {
            for region in regions {
                if let Some(both) = mine.intersection(region) {
                    self.ruleset.count(both.size())?;
                    left.push(both);
                }
            }
        }
        Ok(left)
    }

    /// A verdict map: each element is a match with a verdict of its own. A packet that none matches ends with the rule, and so does
    /// one whose verdict decides, jumps or returns; only those of `continue` come to the statements behind the map.
    fn lookup(&mut self, of: &Value) -> Result<(), Fault> {
        if self.log {
            return Err(expression::unsupported("log before vmap"));
        }
        self.settle()?;
        let missing = || expression::unsupported("vmap without key or data");
        let (key, data) = of.get("key").zip(of.get("data")).ok_or_else(missing)?;
        let fields = expression::fields(key)?;
        let elements = expression::elements(data, self.name, self.ruleset)?.to_vec();
        self.ruleset.count(elements.len())?;
        let before = std::mem::take(&mut self.regions);
        let mut goes_on = Vec::new();
        for element in &elements {
            let pair = element.as_array().map(Vec::as_slice);
            let verdict = pair.and_then(|pair| pair.get(1)).and_then(Value::as_object);
            let (Some([key, _]), Some((kind, of))) =
                (pair, verdict.and_then(|verdict| verdict.iter().next()))
            else {
                return Err(expression::unsupported(&format!("vmap of {}", expression::brief(element))));
            };
            let does = self.verdict(kind, of)?;
            self.regions.clone_from(&before);
            self.narrow(&fields, &[expression::together(&fields, key)?])?;
            let regions = std::mem::take(&mut self.regions);
            match does {
                Does::Nothing => goes_on.extend(regions),
                does => self.does.push(Decision { regions, does, log: false }),
            }
        }
        self.ended = goes_on.is_empty();
        self.regions = goes_on;
        Ok(())
    }
}
