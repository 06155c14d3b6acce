//! `packetloom acl explain`.

use std::fmt::Write;

use packetloom_classify::compiled::matching;
use packetloom_classify::{Action, RuleSet};
use serde_json::json;

use super::{read_policy, rule_json};
use crate::Done;
use crate::args::{ExplainArgs, PacketText};
use crate::commands::{stdout, write_text};

pub(crate) fn run(args: &ExplainArgs) -> Done {
    let rules = read_policy(&args.policy)?;
    let explain = if args.json { as_json } else { as_text };
    let text: String = args.packet.iter().map(|packet| explain(args, &rules, packet)).collect();
    write_text(&stdout(), &text)
}

/// Rules that match a packet: the one that decides, those to be shown of the rest, and how many are not.
struct Matches {
    first: Option<u32>,
    next: Vec<u32>,
    hidden: usize,
}

impl Matches {
    fn new(args: &ExplainArgs, rules: &RuleSet, packet: &PacketText) -> Self {
        let mut matches = matching(rules, &packet.key);
        let first = matches.next();
        Self { first, next: matches.by_ref().take(args.show).collect(), hidden: matches.count() }
    }
}

/// What happens to a packet; `None` where the rule that decides does not say.
fn decision(args: &ExplainArgs, rules: &RuleSet, first: Option<u32>) -> Option<&'static str> {
    let action = match first {
        Some(position) => rules.rules[position as usize].action,
        None => Some(args.policy.default.into()),
    };
    action.map(Action::name)
}

fn as_text(args: &ExplainArgs, rules: &RuleSet, packet: &PacketText) -> String {
    let matches = Matches::new(args, rules, packet);
    let mut text =
        format!("{}: {}\n", packet.text, decision(args, rules, matches.first).unwrap_or("no action"));
    // Writing to a String cannot fail.
    let mut line = |word: &str, position: u32| {
        let rule = &rules.rules[position as usize];
        let _ = writeln!(text, "    {word} line {}: {rule}", rule.line);
    };
    if let Some(position) = matches.first {
        line("by  ", position);
    }
    matches.next.iter().for_each(|&position| line("then", position));
    if matches.hidden > 0 {
        let _ = writeln!(text, "    then {} more", matches.hidden);
    }
    let word = if matches.first.is_some() { "then" } else { "by  " };
    let _ = writeln!(text, "    {word} the default: {}", Action::from(args.policy.default).name());
    text
}

fn as_json(args: &ExplainArgs, rules: &RuleSet, packet: &PacketText) -> String {
    let Matches { first, next, hidden } = Matches::new(args, rules, packet);
    let value = json!({
        "packet": packet.text,
        "action": decision(args, rules, first),
        "by": first.map(|position| rule_json(rules, position)),
        "then": next.iter().map(|&position| rule_json(rules, position)).collect::<Vec<_>>(),
        "more": hidden,
        "default": Action::from(args.policy.default).name(),
    });
    format!("{value}\n")
}
