//! `packetloom acl explain`.

use std::fmt::Write;

use packetloom_classify::Action;
use packetloom_classify::compiled::matching;
use packetloom_classify::formats::{Skipped, grouped};
use packetloom_nf::summary;
use schemars::JsonSchema;
use serde::Serialize;

use super::{List, RuleSummary, read_policy};
use crate::Done;
use crate::args::{ExplainArgs, PacketText};
use crate::commands::{stdout, write_text};

pub(crate) fn run(args: &ExplainArgs) -> Done {
    let list = read_policy(&args.policy, args.json)?;
    let explain = if args.json { as_json } else { as_text };
    let text: String = args.packet.iter().map(|packet| explain(args, &list, packet)).collect();
    write_text(&stdout(), &text)
}

/// Rules that match a packet: the one that decides, those to be shown of the rest, and how many are not.
struct Matches<'l> {
    first: Option<u32>,
    next: Vec<u32>,
    hidden: usize,
    /// What was left out and may decide the packet before.
    unless: Vec<&'l Skipped>,
}

impl<'l> Matches<'l> {
    fn new(args: &ExplainArgs, list: &'l List, packet: &PacketText) -> Self {
        let mut matches = matching(&list.rules, &packet.key);
        let first = matches.next();
        let next = matches.by_ref().take(args.show).collect();
        let gaps = list.gaps.before(first, &packet.key);
        let mut unless: Vec<_> = gaps.iter().map(|gap| &list.skipped[gap.skipped as usize]).collect();
        unless.sort_by_key(|skipped| skipped.line);
        Self { first, next, hidden: matches.count(), unless }
    }
}

/// Words for what was left out and may decide before: `, unless left-out line 4 decides`.
fn unless(skipped: &[&Skipped]) -> String {
    /// Lines that are named.
    const NAMED: usize = 3;
    let mut lines: Vec<u32> = skipped.iter().map(|skipped| skipped.line).collect();
    lines.dedup();
    let mut names: Vec<String> = lines.iter().take(NAMED).map(u32::to_string).collect();
    if lines.len() > NAMED {
        names.push(format!("{} more", grouped(lines.len() - NAMED)));
    }
    let Some(last) = names.pop() else { return String::new() };
    if names.is_empty() {
        return format!(", unless left-out line {last} decides");
    }
    format!(", unless one of the left-out lines {} and {last} decides", names.join(", "))
}

/// What happens to a packet; `None` where the rule that decides does not say.
fn decision(list: &List, first: Option<u32>) -> Option<&'static str> {
    let action = match first {
        Some(position) => list.rule(position).action,
        None => Some(list.default),
    };
    action.map(Action::name)
}

fn as_text(args: &ExplainArgs, list: &List, packet: &PacketText) -> String {
    let matches = Matches::new(args, list, packet);
    let action = decision(list, matches.first).unwrap_or("no action");
    let mut text = format!("{}: {action}{}\n", packet.text, unless(&matches.unless));
    // Writing to a String cannot fail.
    for Skipped { line, message } in matches.unless.iter().take(args.show) {
        let _ = writeln!(text, "    unless line {line}: {message}");
    }
    if matches.unless.len() > args.show {
        let _ = writeln!(text, "    unless {} more", grouped(matches.unless.len() - args.show));
    }
    let mut line = |word: &str, position: u32| {
        let rule = list.rule(position);
        let _ = writeln!(text, "    {word} line {}: {rule}", rule.line);
    };
    if let Some(position) = matches.first {
        line("by  ", position);
    }
    matches.next.iter().for_each(|&position| line("then", position));
    if matches.hidden > 0 {
        let _ = writeln!(text, "    then {} more", grouped(matches.hidden));
    }
    let word = if matches.first.is_some() { "then" } else { "by  " };
    let _ = writeln!(text, "    {word} the default: {}", list.default.name());
    text
}

fn as_json(args: &ExplainArgs, list: &List, packet: &PacketText) -> String {
    let Matches { first, next, hidden, unless } = Matches::new(args, list, packet);
    let left_out = |skipped: &&Skipped| LeftOut { line: skipped.line, left_out: skipped.message.clone() };
    let explanation = Explanation {
        packet: packet.text.clone(),
        action: decision(list, first),
        unless: unless.iter().map(left_out).collect(),
        by: first.map(|position| RuleSummary::new(list, position)),
        then: next.iter().map(|&position| RuleSummary::new(list, position)).collect(),
        more: hidden,
        default: list.default.name(),
    };
    format!("{}\n", summary::value(&explanation))
}

/// A line of `packetloom acl explain --json`.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "A line of packetloom acl explain: what happens to a packet")]
pub(crate) struct Explanation {
    /// The packet, as it was given.
    packet: String,
    /// `permit` or `deny`; none where the rule that decides does not say.
    action: Option<&'static str>,
    /// What was left out of the rules and may decide the packet before.
    unless: Vec<LeftOut>,
    /// The rule that decides; none where the default does.
    by: Option<RuleSummary>,
    /// Rules that would decide next, as many as `--show` asks for.
    then: Vec<RuleSummary>,
    /// How many more there are.
    more: usize,
    /// What happens to packets that no rule matches.
    default: &'static str,
}

/// Something that was left out of the rules.
#[derive(Serialize, JsonSchema)]
struct LeftOut {
    /// Its line in the rule file.
    line: u32,
    /// What it is.
    left_out: String,
}
