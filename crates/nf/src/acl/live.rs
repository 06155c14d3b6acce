//! Rules that change during a run, at packets that a file names.

use std::path::Path;
use std::sync::Arc;

use packetloom_classify::formats::changes::{Transaction, read_changes};
use packetloom_classify::live::{self, Reader, Writer};
use packetloom_classify::{NO_RULE, RuleSet};
use packetloom_io::input;
use packetloom_packet::batch::Keys;
use packetloom_packet::{MatchKey4, MatchKey6, Verdict};

use super::classes::Ports;
use super::cpu::{Finder, Passing};
use crate::Error;

/// A list and what becomes of it: all of it can be done.
#[derive(Debug)]
pub(super) struct Changes {
    /// The rules as the run begins with them.
    pub(super) loaded: RuleSet,
    pub(super) transactions: Vec<Transaction>,
    /// The file's name.
    pub(super) name: String,
}

impl Changes {
    /// Reads a file of changes and makes them on the list alone, to see that they can be made. With all rules that ever are in the
    /// list, those that are loaded first.
    pub(super) fn read(path: &Path, loaded: RuleSet) -> Result<(Self, RuleSet), Error> {
        if input::is_standard(path) {
            return Err(Error::Invalid(
                "changes of rules in \"-\"; expected a file: standard input is for packets".into(),
            ));
        }
        let name = path.display().to_string();
        let transactions = read_changes(
            &name,
            &mut *input::open_text(path).map_err(|error| error.expecting("a file of rule changes"))?,
        )?;
        let changes = transactions.iter().map(|transaction| &transaction.changes[..]);
        let checked = live::check(&loaded, changes).map_err(|(number, error)| {
            let line = transactions[number].lines[error.change];
            Error::Invalid(format!("{name}:{line}: {error}"))
        })?;
        let rules = RuleSet { rules: checked.rules };
        if rules.is_contextual() {
            return Err(Error::Invalid(format!(
                "{name}: rules that change, and rules for some interfaces or states only (\"in\", \"out\", \"state\"); expected one of both"
            )));
        }
        Ok((Self { loaded, transactions, name }, rules))
    }
}

/// Rules that change: those of a batch are found in pieces where they change within it.
pub(super) struct Changing {
    changes: Arc<Changes>,
    writer: Writer,
    reader: Reader,
    /// Transactions that were made.
    made: usize,
    /// Packets of the run so far.
    seen: u64,
    v4: Passing<MatchKey4>,
    v6: Passing<MatchKey6>,
}

impl Changing {
    pub(super) fn new(changes: Arc<Changes>) -> Self {
        let writer = Writer::new(changes.loaded.clone());
        let reader = writer.reader();
        Self { changes, writer, reader, made: 0, seen: 0, v4: Passing::new(), v6: Passing::new() }
    }

    /// Makes the transactions that come before packet `seen`; returns how many packets come before the next one.
    fn make(&mut self) -> u64 {
        let before = self.made;
        let next = loop {
            let Some(next) = self.changes.transactions.get(self.made) else { break u64::MAX };
            if next.at > self.seen {
                break next.at - self.seen;
            }
            self.writer.stage(&next.changes).expect("changes are checked before a run");
            self.made += 1;
        };
        if self.made > before {
            self.writer.publish();
        }
        next
    }
}

impl Finder for Changing {
    fn find(
        &mut self,
        verdicts: &mut [Verdict],
        (v4, v6): (&Keys<MatchKey4>, &Keys<MatchKey6>),
        _: &Ports<'_>,
        mut found: impl FnMut(&Passing<MatchKey4>, &Passing<MatchKey6>, &mut [Verdict]),
    ) {
        let len = verdicts.len();
        let mut from = 0;
        while from < len {
            let to =
                usize::try_from(self.make()).map_or(len, |packets| len.min(from.saturating_add(packets)));
            self.v4.gather(v4, verdicts, from..to);
            self.v6.gather(v6, verdicts, from..to);
            let view = self.reader.view();
            let (passing, first) = self.v4.classify(v4);
            view.classify_v4(passing, first);
            let (passing, first) = self.v6.classify(v6);
            view.classify_v6(passing, first);
            // The list has the rules by their serial numbers.
            for first in self.v4.first.iter_mut().chain(&mut self.v6.first) {
                *first = view.serial(*first).map_or(NO_RULE, |serial| serial as u32);
            }
            drop(view);
            found(&self.v4, &self.v6, verdicts);
            self.seen += (to - from) as u64;
            from = to;
        }
    }

    fn skip(&mut self, packets: usize) {
        // Transactions are made when the next packets are judged here.
        self.seen += packets as u64;
    }
}
