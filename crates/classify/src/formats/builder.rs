//! Rules in the making: what a file's lines become, what is left out, and how much of it there may be.

use std::ops::Range;

use super::mistakes::grouped;
use super::region::{Ends, Region};
use super::{Elsewhere, Error, Format, MAX_RULES, Options, Origins, Reading, Skipped};
use crate::{Action, Gap, Gaps, Rule, RuleSet};

/// Rules from regions at most: a bound on what lists, negations and chains grow to.
pub(super) const MAX_EXPANSION: usize = 1 << 20;

/// What is wrong with a line.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// It is no line of the format: what stands there and what was expected.
    Syntax(String),
    /// It says what no rule of ours says: the construct.
    Unsupported(String),
}

impl Fault {
    /// A word that stands for something that no rule of ours says.
    pub(super) fn no_equal(word: &str) -> Self {
        Self::Unsupported(format!("{word:?} has no equal among our rules"))
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::Syntax(message)
    }
}

/// What reading a file has come to.
pub(super) struct Builder<'a> {
    file: &'a str,
    options: &'a Options,
    rules: Vec<Rule>,
    skipped: Vec<Skipped>,
    gaps: Gaps,
    origins: Origins,
    elsewhere: Vec<Elsewhere>,
    /// The statement that rules and faults are from; `None` where each line is one.
    statement: Option<u32>,
    /// What is left of [`MAX_EXPANSION`].
    spare: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(file: &'a str, options: &'a Options) -> Self {
        Self {
            file,
            options,
            rules: Vec::new(),
            skipped: Vec::new(),
            gaps: Gaps::default(),
            origins: Origins::default(),
            elsewhere: Vec::new(),
            statement: None,
            spare: MAX_EXPANSION,
        }
    }

    /// Says which statement of the file the next rules and faults are from, where a line holds several of them.
    pub(super) fn statement(&mut self, number: u32) {
        self.statement = Some(number);
    }

    /// Says what the file has beside the list.
    pub(super) fn elsewhere(&mut self, elsewhere: Vec<Elsewhere>) {
        self.elsewhere = elsewhere;
    }

    /// Counts statements that may have become no rule.
    pub(super) fn statements(&mut self, numbers: &[u32]) {
        self.origins.others.extend_from_slice(numbers);
    }

    /// The file's name in messages.
    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    /// The error of a line that says something else than expected.
    pub(super) fn syntax(&self, line: u32, message: impl Into<String>) -> Error {
        Error::syntax(self.file, line, message.into())
    }

    /// Refuses a line, or leaves it out where that is what the user wants: then it may match any packet, and stands behind the
    /// rules so far.
    pub(super) fn fault(&mut self, line: u32, fault: Fault) -> Result<(), Error> {
        self.fault_within(line, fault, &Region::of(Ends::Any))
    }

    /// As [`Builder::fault`], for a line that can match the packets of `region` at most.
    pub(super) fn fault_within(&mut self, line: u32, fault: Fault, region: &Region) -> Result<(), Error> {
        let skipped = self.leave_out(line, fault)?;
        self.gap(line, skipped, region).map(|_| ())
    }

    /// Refuses a line, or lists it as left out where that is what the user wants: its index among what is left out. The caller
    /// adds the gaps.
    pub(super) fn leave_out(&mut self, line: u32, fault: Fault) -> Result<u32, Error> {
        match fault {
            Fault::Syntax(message) => Err(self.syntax(line, message)),
            Fault::Unsupported(message) if self.options.skip_unsupported => {
                // Each is a line of its own, or a part of one; lines are counted in 32 bits.
                let index = u32::try_from(self.skipped.len())
                    .map_err(|_| self.syntax(line, "too much that has no equal"))?;
                self.skipped.push(Skipped { line, message });
                self.origins.skipped.push(self.statement.unwrap_or(line));
                Ok(index)
            }
            Fault::Unsupported(message) => Err(Error::Unsupported { file: self.file.into(), line, message }),
        }
    }

    /// Adds a gap behind the rules so far that concerns the packets of `region` at most, and hands it back; `None` where it is
    /// the one before once more.
    pub(super) fn gap(
        &mut self,
        line: u32,
        skipped: u32,
        region: &Region,
    ) -> Result<Option<&mut Gap>, Error> {
        let gap = Gap::at(self.position(), skipped, Rule { line, ..region.hull() });
        if self.gaps.list.last() == Some(&gap) {
            return Ok(None);
        }
        self.spend(line, 1)?;
        self.gaps.list.push(gap);
        Ok(self.gaps.list.last_mut())
    }

    /// How many gaps there are.
    pub(super) fn gap_count(&self) -> usize {
        self.gaps.list.len()
    }

    /// Lets these gaps pass over all rules since.
    pub(super) fn resume_here(&mut self, gaps: Range<usize>) {
        let here = self.position();
        self.gaps.list[gaps].iter_mut().for_each(|gap| gap.resumes = here);
    }

    /// Says that packets may come to these rules otherwise than the list shows.
    pub(super) fn doubt(&mut self, rules: Range<u32>) {
        if !rules.is_empty() {
            self.gaps.doubtful.push(rules);
        }
    }

    /// The position of the next rule.
    pub(super) fn position(&self) -> u32 {
        // There are MAX_RULES at most.
        self.rules.len() as u32
    }

    /// Adds the one rule of a line, or counts its fault.
    pub(super) fn line(&mut self, line: u32, rule: Result<Rule, Fault>) -> Result<(), Error> {
        match rule {
            Ok(rule) => self.push(Rule { line, ..rule }),
            Err(fault) => self.fault(line, fault),
        }
    }

    fn push(&mut self, rule: Rule) -> Result<(), Error> {
        if self.rules.len() == MAX_RULES {
            return Err(self.syntax(rule.line, format!("more than {MAX_RULES} rules")));
        }
        self.origins.rules.push(self.statement.unwrap_or(rule.line));
        self.rules.push(rule);
        Ok(())
    }

    /// Adds the rules that together match the packets of `region`; all else is as in `template`, its line too.
    pub(super) fn region(&mut self, template: &Rule, region: &Region) -> Result<(), Error> {
        match region.rules(template, self.spare) {
            Some(rules) => self.rules(template, rules.len(), rules.into_iter()),
            None => self.spend(template.line, self.spare + 1),
        }
    }

    /// Adds the `count` rules that one like `template` becomes.
    pub(super) fn rules(
        &mut self,
        template: &Rule,
        count: usize,
        mut rules: impl Iterator<Item = Rule>,
    ) -> Result<(), Error> {
        // Names and comments are copied as well.
        let weight =
            1 + [&template.id, &template.comment].iter().map(|text| text_len(text) / 64).sum::<usize>();
        self.spend(template.line, count.saturating_mul(weight))?;
        rules.try_for_each(|rule| self.push(rule))
    }

    /// Takes from what lists and negations may grow to.
    pub(super) fn spend(&mut self, line: u32, size: usize) -> Result<(), Error> {
        match self.spare.checked_sub(size) {
            Some(left) => {
                self.spare = left;
                Ok(())
            }
            None => {
                let message = format!("lists, negations and jumps that make more than {MAX_EXPANSION} rules");
                Err(self.syntax(line, message))
            }
        }
    }

    /// The one of a file's lists that is to be taken, by its position: the one that is asked for, by its name or by the last
    /// word of it, or the only one. `none` is what is said of a file without lists.
    pub(super) fn choose<'n>(
        &self,
        names: impl ExactSizeIterator<Item = &'n str> + Clone,
        none: &str,
    ) -> Result<usize, Error> {
        /// Names in a message at most.
        const SHOWN: usize = 20;
        let fail = |message| Error::List { file: self.file.into(), message };
        let listed = || {
            let mut text = names.clone().take(SHOWN).collect::<Vec<_>>().join(", ");
            if names.len() > SHOWN {
                text += &format!(" and {} more", grouped(names.len() - SHOWN));
            }
            text
        };
        match (&self.options.list, names.len()) {
            (_, 0) => Err(self.no_list(none)),
            (Some(wanted), _) => {
                if names.clone().filter(|name| name == wanted).nth(1).is_some() {
                    return Err(fail(format!("several lists {wanted:?}; expected one of this name")));
                }
                let is_last_word = |name: &str| name.rsplit(' ').next() == Some(wanted.as_str());
                let mut by_last_word = names.clone().enumerate().filter(|(_, name)| is_last_word(name));
                let only = by_last_word.next().filter(|_| by_last_word.next().is_none());
                let found = names.clone().position(|name| name == wanted).or(only.map(|(index, _)| index));
                found.ok_or_else(|| fail(format!("no list {wanted:?}; expected one of {}", listed())))
            }
            (None, 1) => Ok(0),
            (None, _) => Err(fail(format!("several lists; expected the name of one (--list): {}", listed()))),
        }
    }

    /// The error of a file that holds no list: what was expected.
    pub(super) fn no_list(&self, message: &str) -> Error {
        Error::List { file: self.file.into(), message: message.into() }
    }

    /// Everything that was read.
    pub(super) fn finish(self, format: Format, default: Option<Action>) -> Reading {
        Reading {
            rules: RuleSet { rules: self.rules },
            default,
            format,
            skipped: self.skipped,
            gaps: self.gaps,
            origins: self.origins,
            elsewhere: self.elsewhere,
        }
    }
}

fn text_len(text: &Option<Box<str>>) -> usize {
    text.as_ref().map_or(0, |text| text.len())
}
