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
    let (rules, default) = read_policy(&args.policy)?;
    let explain = if args.json { as_json } else { as_text };
    let list = List { rules, default };
    let text: String = args.packet.iter().map(|packet| explain(args, &list, packet)).collect();
    write_text(&stdout(), &text)
}

/// Rules, and what happens to packets that none of them matches.
struct List {
    rules: RuleSet,
    default: Action,
}

/// Rules that match a packet: the one that decides, those to be shown of the rest, and how many are not.
struct Matches {
    first: Option<u32>,
    next: Vec<u32>,
    hidden: usize,
}

impl Matches {
    fn new(args: &ExplainArgs, list: &List, packet: &PacketText) -> Self {
        let mut matches = matching(&list.rules, &packet.key);
        let first = matches.next();
        Self { first, next: matches.by_ref().take(args.show).collect(), hidden: matches.count() }
    }
}

/// What happens to a packet; `None` where the rule that decides does not say.
fn decision(list: &List, first: Option<u32>) -> Option<&'static str> {
    let action = match first {
        Some(position) => list.rules.rules[position as usize].action,
        None => Some(list.default),
    };
    action.map(Action::name)
}

fn as_text(args: &ExplainArgs, list: &List, packet: &PacketText) -> String {
    let matches = Matches::new(args, list, packet);
    let mut text = format!("{}: {}\n", packet.text, decision(list, matches.first).unwrap_or("no action"));
    // Writing to a String cannot fail.
    let mut line = |word: &str, position: u32| {
        let rule = &list.rules.rules[position as usize];
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
    let _ = writeln!(text, "    {word} the default: {}", list.default.name());
    text
}

fn as_json(args: &ExplainArgs, list: &List, packet: &PacketText) -> String {
    let Matches { first, next, hidden } = Matches::new(args, list, packet);
    let value = json!({
        "packet": packet.text,
        "action": decision(list, first),
        "by": first.map(|position| rule_json(&list.rules, position)),
        "then": next.iter().map(|&position| rule_json(&list.rules, position)).collect::<Vec<_>>(),
        "more": hidden,
        "default": list.default.name(),
    });
    format!("{value}\n")
}
