//! What is lost where rules are read or written: said once, in groups of one construct, with totals and the first lines of each.

use std::collections::HashMap;
use std::fmt::Write;

use packetloom_classify::formats::{Approximated, Format, Origins, Reading, Skipped, Written, distinct};
use packetloom_nf::summary;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::MaxLoss;
use crate::failure::Failure;
use crate::talk::{self, amount, grouped};

/// Lines that are shown of each group; the others are counted.
const SHOWN: usize = 3;
/// Groups that are shown; the others are counted.
const GROUPS: usize = 20;

/// Rules of a file that something was left out of.
pub(crate) struct Losses {
    file: String,
    /// Rules in the file's list.
    rules: usize,
    lost: Vec<Loss>,
    /// Rules whose fragments may get another verdict, each with the number of the file's rule.
    approximated: Vec<(u32, Approximated)>,
}

/// Something left out.
struct Loss {
    line: u32,
    message: String,
    group: String,
    /// The number of the file's rule that it is of.
    origin: u32,
    /// Whether it is for what the rule says of fragments that the format has no words for it.
    is_of_fragments: bool,
}

impl Losses {
    /// What reading left out.
    pub(crate) fn of_reading(file: &str, reading: &Reading) -> Self {
        let lost = reading.skipped.iter().zip(&reading.origins.skipped).map(|(skipped, &origin)| {
            let Skipped { line, message } = skipped;
            Loss {
                line: *line,
                message: message.clone(),
                group: skipped.construct(),
                origin,
                is_of_fragments: false,
            }
        });
        Self {
            file: file.into(),
            rules: reading.origins.count(),
            lost: lost.collect(),
            approximated: Vec::new(),
        }
    }

    /// Adds what there were no words for in a format.
    pub(crate) fn add_written(&mut self, written: &Written, format: Format, origins: &Origins) {
        let origin = |position: usize| origins.rules.get(position).copied().unwrap_or(Origins::NONE);
        let approximated = written.approximated.iter();
        self.approximated.extend(approximated.map(|rule| (origin(rule.position), rule.clone())));
        self.lost.extend(written.unwritten.iter().map(|unwritten| Loss {
            line: unwritten.line,
            message: unwritten.message.clone(),
            group: format!("{format}, {}", unwritten.reason),
            origin: origin(unwritten.position),
            is_of_fragments: unwritten.is_of_fragments(),
        }));
    }

    /// How many of the file's rules are not whole.
    fn count(&self) -> usize {
        distinct(self.lost.iter().map(|loss| loss.origin))
    }

    /// Groups in order of their sizes: of each the name, the number of rules, and what is in it.
    fn groups(&self) -> Vec<(&str, usize, Vec<&Loss>)> {
        let mut groups: Vec<(&str, Vec<&Loss>)> = Vec::new();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for loss in &self.lost {
            let at = *known.entry(&loss.group).or_insert_with(|| {
                groups.push((&loss.group, Vec::new()));
                groups.len() - 1
            });
            groups[at].1.push(loss);
        }
        let count = |losses: &[&Loss]| distinct(losses.iter().map(|loss| loss.origin));
        let mut groups: Vec<_> =
            groups.into_iter().map(|(name, losses)| (name, count(&losses), losses)).collect();
        // Of the same size in order of their first lines.
        groups.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        groups
    }

    /// Says on standard error what was left out: in groups, or all of it as JSON lines and their totals.
    pub(crate) fn report(&self, json: bool) {
        if !self.lost.is_empty() {
            talk::list(json, &if json { self.as_json() } else { self.as_text() });
        }
        if !self.approximated.is_empty() {
            talk::list(json, &if json { self.approximated_json() } else { self.approximated_text() });
        }
    }

    /// Of how many rules of the file more fragments may be permitted, and of how many fewer; and how many they are together.
    fn approximated(&self) -> [usize; 3] {
        let count = |which: &dyn Fn(&Approximated) -> bool| {
            distinct(self.approximated.iter().filter(|(_, rule)| which(rule)).map(|(origin, _)| *origin))
        };
        [count(&|rule| rule.permits_more), count(&|rule| !rule.permits_more), count(&|_| true)]
    }

    fn approximated_text(&self) -> String {
        let [more, less, all] = self.approximated().map(|count| grouped(count as u64));
        let mut text = format!(
            "packetloom: fragments ignored in {all} of {}: of fragments, {more} permit more than the source, {less} permit less\n",
            amount(self.rules as u64, "rule"),
        );
        for (_, Approximated { line, permits_more, rule, .. }) in self.approximated.iter().take(SHOWN) {
            let way = if *permits_more { "more" } else { "less" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "    {}:{line}: permits {way}: {rule}", self.file);
        }
        if self.approximated.len() > SHOWN {
            let _ = writeln!(text, "    and {} more", grouped((self.approximated.len() - SHOWN) as u64));
        }
        text
    }

    fn approximated_json(&self) -> String {
        let mut text = String::new();
        for (_, Approximated { line, permits_more, rule, .. }) in &self.approximated {
            let way = if *permits_more { "more" } else { "less" };
            let value = Line::Approximated {
                file: self.file.clone(),
                line: *line,
                approximated: "fragments",
                permits: way,
                rule: rule.clone(),
            };
            let _ = writeln!(text, "{}", summary::value(&value));
        }
        let [permit_more, permit_less, approximated] = self.approximated();
        let approximations = Approximations { rules: self.rules, approximated, permit_more, permit_less };
        let totals = Line::Approximations { file: self.file.clone(), approximations };
        let _ = writeln!(text, "{}", summary::value(&totals));
        text
    }

    fn as_text(&self) -> String {
        let groups = self.groups();
        let mut names: Vec<String> = groups
            .iter()
            .take(GROUPS)
            .map(|(name, count, _)| format!("{name} {}", grouped(*count as u64)))
            .collect();
        if groups.len() > GROUPS {
            names.push(format!("and {} more kinds", grouped((groups.len() - GROUPS) as u64)));
        }
        let mut text = format!(
            "packetloom: {} of {} left out: {}\n",
            grouped(self.count() as u64),
            amount(self.rules as u64, "rule"),
            names.join(", ")
        );
        for (_, _, losses) in groups.iter().take(GROUPS) {
            for Loss { line, message, .. } in losses.iter().take(SHOWN) {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "    {}:{line}: {message}", self.file);
            }
            if losses.len() > SHOWN {
                let _ = writeln!(text, "    and {} more", grouped((losses.len() - SHOWN) as u64));
            }
        }
        text
    }

    fn as_json(&self) -> String {
        let mut text = String::new();
        for Loss { line, message, group, .. } in &self.lost {
            let value = Line::Loss {
                file: self.file.clone(),
                line: *line,
                left_out: message.clone(),
                group: group.clone(),
            };
            let _ = writeln!(text, "{}", summary::value(&value));
        }
        let groups = self.groups().into_iter().map(|(group, rules, losses)| Group {
            group: group.into(),
            rules,
            lines: losses.iter().map(|loss| loss.line).collect(),
        });
        let losses = Totals { rules: self.rules, left_out: self.count(), groups: groups.collect() };
        let totals = Line::Losses { file: self.file.clone(), losses };
        let _ = writeln!(text, "{}", summary::value(&totals));
        text
    }

    /// Fails where more is lost than may be.
    pub(crate) fn allow(&self, most: MaxLoss) -> Result<(), Failure> {
        let (lost, rules) = (self.count(), self.rules);
        if self.lost.is_empty() || most.allows(lost as u64, rules as u64) {
            return Ok(());
        }
        // What is lost for fragments need not be.
        let of_fragments = self.lost.iter().filter(|loss| loss.is_of_fragments);
        let hint = match distinct(of_fragments.map(|loss| loss.origin)) {
            0 => String::new(),
            count => format!(
                ", and --fragments ignore writes {} of these with other verdicts for fragments alone",
                grouped(count as u64)
            ),
        };
        Err(Failure::Loss(format!(
            "{}: nothing is written, as {} of {} would be lost; expected {most} at most; --max-loss {} allows it{hint}",
            self.file,
            grouped(lost as u64),
            amount(rules as u64, "rule"),
            lost.max(1)
        )))
    }
}

/// The mistakes of a rule file as JSON lines.
pub(crate) fn mistakes(file: &str, error: &packetloom_classify::formats::Error) -> String {
    let mistakes = error.mistakes().into_iter();
    let line = |(line, mistake): (u32, &str)| {
        let mistake = Line::Mistake { file: file.into(), line, mistake: mistake.into() };
        format!("{}\n", summary::value(&mistake))
    };
    mistakes.map(line).collect()
}

/// A line of what `--json` lists on standard error.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(
    title = "A line of what packetloom acl convert, check and explain leave out or cannot read, on standard error"
)]
pub(crate) enum Line {
    /// A line that cannot be read.
    Mistake {
        /// The rule file.
        file: String,
        /// The line.
        line: u32,
        /// What is wrong, and what was expected.
        mistake: String,
    },
    /// Something that was left out.
    Loss {
        /// The rule file.
        file: String,
        /// The line.
        line: u32,
        /// What was left out.
        left_out: String,
        /// Its kind.
        group: String,
    },
    /// All that was left out.
    Losses {
        /// The rule file.
        file: String,
        /// The totals.
        losses: Totals,
    },
    /// A rule whose fragments may get another verdict.
    Approximated {
        /// The rule file.
        file: String,
        /// The line.
        line: u32,
        /// `fragments`.
        approximated: &'static str,
        /// Whether `more` or `less` of them are permitted.
        permits: &'static str,
        /// The rule as it was written.
        rule: String,
    },
    /// All such rules.
    Approximations {
        /// The rule file.
        file: String,
        /// The totals.
        approximations: Approximations,
    },
}

/// What was left out of a rule file.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Totals {
    /// Rules of the file's list.
    rules: usize,
    /// Those that are not whole.
    left_out: usize,
    /// The kinds of what was left out.
    groups: Vec<Group>,
}

/// A kind of what was left out.
#[derive(Serialize, JsonSchema)]
struct Group {
    /// Its name.
    group: String,
    /// Rules that it was left out of.
    rules: usize,
    /// The lines.
    lines: Vec<u32>,
}

/// Rules whose fragments may get another verdict.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Approximations {
    /// Rules of the file's list.
    rules: usize,
    /// Those whose fragments may get another verdict.
    approximated: usize,
    /// Those that permit more.
    permit_more: usize,
    /// Those that permit less.
    permit_less: usize,
}
