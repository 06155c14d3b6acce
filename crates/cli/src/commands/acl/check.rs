//! `packetloom acl check`.

use std::fmt::Write;

use packetloom_classify::analysis::{Analysis, Correlated, Options, Report, Side, Verdict};
use packetloom_io::output::Output;
use packetloom_nf::summary;
use schemars::JsonSchema;
use serde::Serialize;

use super::{List, RuleSummary, go_on, read_policy};
use crate::args::AclCheckArgs;
use crate::commands::files::Files;
use crate::commands::stop_on_signals;
use crate::failure::Failure;
use crate::talk::amount;
use crate::{Done, talk};

pub(crate) fn run(args: &AclCheckArgs) -> Done {
    Files::default().input("rules", Some(&args.policy.rules)).output("-o", Some(&args.output)).check()?;
    let stop = stop_on_signals()?;
    let list = read_policy(&args.policy, args.json)?;
    let List { rules, default, skipped, gaps, .. } = &list;
    let mut output = Output::create(&args.output)?;
    let options = Options { default: *default, work: args.work, named: args.show };
    let analysis = Analysis::with_gaps(rules, gaps, options);
    let writer = Writer { args, list: &list, file: args.policy.rules.display().to_string() };
    let bar = talk::bar(Some(rules.rules.len() as u64), "checking", talk::Template::Count);
    let mut counts = Counts { left_out: skipped.len() as u64, ..Counts::default() };
    for position in 0..rules.rules.len() as u32 {
        go_on(&stop)?;
        let report = analysis.check(position);
        counts.add(&report);
        let text = if args.json { writer.json(position, &report) } else { writer.text(position, &report) };
        if !text.is_empty() {
            // The findings and the bar may be on one terminal.
            bar.suspend(|| output.write(text.as_bytes()))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        let totals = Line::Totals { summary: counts.totals() };
        output.write(format!("{}\n", summary::value(&totals)).as_bytes())?;
    }
    output.finish()?;
    if !args.json {
        let rows = counts.rows().into_iter().filter(|(name, count)| *name != "left out" || *count > 0);
        let rows: Vec<_> = rows.map(|(name, count)| (name.to_owned(), count.to_string())).collect();
        talk::say(&talk::table(&rows));
    }
    match counts.findings() {
        findings if args.strict && findings > 0 => {
            Err(Failure::Findings(format!("{} with findings", amount(findings, "rule"))))
        }
        _ => Ok(()),
    }
}

/// How many rules there are of each sort.
#[derive(Default)]
struct Counts {
    rules: u64,
    unmatchable: u64,
    shadowed: u64,
    redundant: u64,
    covered: u64,
    undecided: u64,
    correlated: u64,
    /// Constructs that are not among the rules.
    left_out: u64,
}

impl Counts {
    fn add(&mut self, report: &Report) {
        self.rules += 1;
        match report.verdict {
            Verdict::Effective => {}
            Verdict::Unmatchable => self.unmatchable += 1,
            Verdict::Covered(_) => self.covered += 1,
            Verdict::Shadowed(_) => self.shadowed += 1,
            Verdict::Redundant { .. } => self.redundant += 1,
            Verdict::Undecided { .. } => self.undecided += 1,
        }
        self.correlated += report.correlated.as_ref().map_or(0, |correlated| correlated.count);
    }

    fn rows(&self) -> [(&'static str, u64); 8] {
        [
            ("rules", self.rules),
            ("unmatchable", self.unmatchable),
            ("shadowed", self.shadowed),
            ("redundant", self.redundant),
            ("covered", self.covered),
            ("undecided", self.undecided),
            ("correlated pairs", self.correlated),
            ("left out", self.left_out),
        ]
    }

    fn totals(&self) -> Totals {
        Totals {
            rules: self.rules,
            unmatchable: self.unmatchable,
            shadowed: self.shadowed,
            redundant: self.redundant,
            covered: self.covered,
            undecided: self.undecided,
            correlated_pairs: self.correlated,
            left_out: self.left_out,
        }
    }

    fn findings(&self) -> u64 {
        self.unmatchable + self.shadowed + self.redundant + self.covered + self.undecided
    }
}

/// Puts reports into words; into none where there is nothing to say.
struct Writer<'a> {
    args: &'a AclCheckArgs,
    list: &'a List,
    file: String,
}

impl Writer<'_> {
    /// Verdicts with the rules that they are about; correlated rules, of which there are many, by their lines alone.
    fn text(&self, position: u32, report: &Report) -> String {
        let rule = self.list.rule(position);
        let place = format!("{}:{}", self.file, rule.line);
        let mut text = String::new();
        // Writing to a String cannot fail.
        if let Some(message) = self.message(&report.verdict) {
            let _ = writeln!(text, "{place}: {message}\n    {rule}");
            let causes = report.verdict.causes().map_or(&[][..], |causes| &causes.rules);
            for &cause in causes.iter().take(self.args.show) {
                let cause = self.list.rule(cause);
                let _ = writeln!(text, "    line {}: {cause}", cause.line);
            }
            if causes.len() > self.args.show {
                let _ = writeln!(text, "    and {}", amount((causes.len() - self.args.show) as u64, "other"));
            }
        }
        if let Some(Correlated { count, first }) = &report.correlated
            && *count > 0
        {
            let mut with: Vec<String> =
                first.iter().map(|&other| self.list.rule(other).line.to_string()).collect();
            if *count > first.len() as u64 {
                with.push(amount(count - first.len() as u64, "other"));
            }
            let last = with.pop().unwrap_or_default();
            let (lines, others) = if with.is_empty() { ("line", "") } else { ("lines", " and ") };
            let with = format!("{lines} {}{others}{last}", with.join(", "));
            let _ = writeln!(text, "{place}: correlated with {with}: the order matters");
        }
        text
    }

    /// What is said about a verdict, if anything is.
    fn message(&self, verdict: &Verdict) -> Option<String> {
        let explanation = match verdict {
            Verdict::Effective => return None,
            Verdict::Unmatchable => "no packet meets all its conditions".into(),
            Verdict::Covered(_) => "earlier rules match all its packets".into(),
            Verdict::Shadowed(_) => "earlier rules match all its packets, not all with its action".into(),
            Verdict::Redundant { side: Side::Earlier, .. } => {
                "earlier rules with its action match all its packets".into()
            }
            Verdict::Redundant { causes, side: Side::Later { default } } => {
                let what = match (causes.rules.is_empty(), default) {
                    (true, _) => "the default decides",
                    (false, true) => "later rules and the default decide",
                    (false, false) => "later rules decide",
                };
                format!("{what} its packets in the same way")
            }
            Verdict::Undecided { never_hit } => {
                let what = if *never_hit { "no packet comes to it; to say why" } else { "to decide this" };
                format!("{what} takes more than {} (--work)", amount(self.args.work, "comparison"))
            }
        };
        let doubt = match verdict.causes() {
            Some(causes) if !causes.minimal => " (perhaps not all of these are needed)",
            _ => "",
        };
        Some(format!("{}: {explanation}{doubt}", verdict.name()))
    }

    fn json(&self, position: u32, report: &Report) -> String {
        let has_correlated = report.correlated.as_ref().is_some_and(|correlated| correlated.count > 0);
        if report.verdict == Verdict::Effective && !has_correlated {
            return String::new();
        }
        let show = |rules: &[u32]| -> Vec<RuleSummary> {
            rules.iter().take(self.args.show).map(|&rule| RuleSummary::new(self.list, rule)).collect()
        };
        let (side, left_to_default) = match report.verdict {
            Verdict::Redundant { side: Side::Earlier, .. } => (Some("earlier"), None),
            Verdict::Redundant { side: Side::Later { default }, .. } => (Some("later"), Some(default)),
            _ => (None, None),
        };
        let never_hit = match report.verdict {
            Verdict::Undecided { never_hit } => Some(never_hit),
            _ => None,
        };
        let finding = Line::Finding(Box::new(Finding {
            rule: RuleSummary::new(self.list, position),
            verdict: report.verdict.name(),
            side,
            left_to_default,
            never_hit,
            causes: report.verdict.causes().map(|causes| CausesSummary {
                count: causes.rules.len(),
                minimal: causes.minimal,
                rules: show(&causes.rules),
            }),
            correlated: report.correlated.as_ref().map(|correlated| CorrelatedSummary {
                count: correlated.count,
                rules: show(&correlated.first),
            }),
        }));
        format!("{}\n", summary::value(&finding))
    }
}

/// A line of `packetloom acl check --json`.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "A line of packetloom acl check: a rule with findings or, last, the totals")]
pub(crate) enum Line {
    /// A rule with findings.
    Finding(Box<Finding>),
    /// How many rules there are of each sort.
    Totals {
        /// The totals.
        summary: Totals,
    },
}

/// A rule and what was found of it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Finding {
    #[serde(flatten)]
    rule: RuleSummary,
    /// `effective`, `unmatchable`, `shadowed`, `redundant`, `covered` or `undecided`.
    verdict: &'static str,
    /// Of a redundant rule: whether `earlier` or `later` rules decide in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    side: Option<&'static str>,
    /// Of a redundant rule with later ones: whether the default decides some of its packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_to_default: Option<bool>,
    /// Of an undecided rule: whether it is known that no packet comes to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    never_hit: Option<bool>,
    /// The rules that are the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    causes: Option<CausesSummary>,
    /// Rules of another action that overlap with it; none where that was not looked for.
    correlated: Option<CorrelatedSummary>,
}

/// The rules that are the cause of a verdict.
#[derive(Serialize, JsonSchema)]
struct CausesSummary {
    /// How many they are.
    count: usize,
    /// Whether all of them are needed.
    minimal: bool,
    /// The first of them, as many as `--show` asks for.
    rules: Vec<RuleSummary>,
}

/// Rules that are correlated with one.
#[derive(Serialize, JsonSchema)]
struct CorrelatedSummary {
    /// How many they are.
    count: u64,
    /// The first of them, as many as `--show` asks for.
    rules: Vec<RuleSummary>,
}

/// How many rules there are of each sort.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Totals {
    /// Rules of the list.
    rules: u64,
    /// Rules whose conditions no packet meets.
    unmatchable: u64,
    /// Rules whose packets earlier rules match, not all with their action.
    shadowed: u64,
    /// Rules that can be taken out without a change.
    redundant: u64,
    /// Rules without an action whose packets earlier rules match.
    covered: u64,
    /// Rules for which `--work` was too little.
    undecided: u64,
    /// Pairs of rules of different actions whose order matters.
    correlated_pairs: u64,
    /// Constructs that are not among the rules.
    left_out: u64,
}
