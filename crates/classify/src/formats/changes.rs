//! Changes of a rule list while packets are judged by it: one a line, `#` begins a comment; one behind a rule is kept
//! with it.
//!
//! ```text
//! at PACKETS
//! add [first | last | before NAME | after NAME | at N] RULE
//! delete NAME
//! replace NAME RULE
//! commit
//! ```
//!
//! - `at`: the transactions after this line are made when so many packets of the run have been judged. It does not go back; before
//!   the first one it is 0.
//! - `add`: a rule more, last unless said otherwise; `at N` so that N rules come before it.
//! - `replace`: another rule in the same place; without an id of its own it keeps that one's.
//! - `commit`: the changes since the last one are a transaction, made as a whole.
//! - `NAME`: the id of a rule, or `@N` for the one with number N: its place when the list was loaded, from 0; rules that are added get the
//!   numbers after these.
//! - `RULE`: as in [`native`].

use std::io::BufRead;

use super::text::{self, Words, lines, number, split_comment};
use super::{Error, native};
use crate::Rule;
use crate::live::{Change, Name, Place};

/// Changes of a file at most: it bounds what a hostile one can make us hold.
const MAX_CHANGES: usize = 1 << 24;

/// A transaction of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Packets that are judged before it.
    pub at: u64,
    /// What it does.
    pub changes: Vec<Change>,
    /// The line of each change.
    pub lines: Vec<u32>,
}

/// Reads the transactions of a file; `file` is its name in messages.
///
/// # Errors
///
/// [`Error::Syntax`] at the first line that is no change, [`Error::Io`].
pub fn read_changes(file: &str, reader: &mut dyn BufRead) -> Result<Vec<Transaction>, Error> {
    let mut transactions = Vec::new();
    let (mut at, mut total) = (0, 0);
    let mut open = Transaction { at, changes: Vec::new(), lines: Vec::new() };
    let mut take = |line, text: &str, comment: Option<&str>| {
        let mut words = Words::new(text);
        let expected = "at, add, delete, replace or commit";
        let change = match words.next(expected)? {
            "at" if !open.changes.is_empty() => {
                return Err("\"at\" inside a transaction; expected commit before it".into());
            }
            "at" => {
                let packets = number(words.next("a number of packets")?, "number of packets", u64::MAX)?;
                words.end()?;
                if packets < at {
                    return Err(format!("at {packets} after at {at}; expected {at} or more"));
                }
                at = packets;
                return Ok(());
            }
            "commit" => {
                words.end()?;
                if open.changes.is_empty() {
                    return Err("commit of nothing; expected add, delete or replace before it".into());
                }
                let new = Transaction { at, changes: Vec::new(), lines: Vec::new() };
                transactions.push(Transaction { at, ..std::mem::replace(&mut open, new) });
                return Ok(());
            }
            verb => change(verb, words, (line, comment), expected)?,
        };
        total += 1;
        if total > MAX_CHANGES {
            return Err(format!("more than {MAX_CHANGES} changes"));
        }
        open.changes.push(change);
        open.lines.push(line);
        Ok(())
    };
    lines(file, reader, |line, text| match split_comment(text) {
        ("", _) => Ok(()),
        (text, comment) => take(line, text, comment).map_err(|message| Error::syntax(file, line, message)),
    })?;
    match open.lines.last() {
        None => Ok(transactions),
        Some(&line) => Err(Error::Syntax {
            file: file.into(),
            line,
            message: "the file ends inside a transaction; expected commit after it".into(),
        }),
    }
}

/// Reads the changes of one transaction, a line each, without `at` and `commit`: each with its line. Their rules have no line.
///
/// # Errors
///
/// The first line that is no change, and what is wrong with it.
pub fn read_transaction(text: &str) -> Result<Vec<(u32, Change)>, (u32, String)> {
    let expected = "add, delete or replace";
    let mut changes = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let (text, comment) = split_comment(text);
        let mut words = Words::new(text);
        if words.peek().is_empty() {
            continue;
        }
        let change = words.next(expected).and_then(|verb| match verb {
            "at" | "commit" => Err(format!("{verb:?}; expected {expected}: all lines are one transaction")),
            verb => change(verb, words, (0, comment), expected),
        });
        changes.push((line, change.map_err(|why| (line, why))?));
    }
    Ok(changes)
}

/// Reads a change, after its first word.
fn change(
    verb: &str,
    mut words: Words<'_>,
    (line, comment): (u32, Option<&str>),
    expected: &str,
) -> Result<Change, String> {
    Ok(match verb {
        "add" => Change::Add(place(&mut words)?, rule(words, comment, line)?),
        "delete" => {
            let name = name(&mut words)?;
            words.end()?;
            Change::Delete(name)
        }
        "replace" => Change::Replace(name(&mut words)?, rule(words, comment, line)?),
        found => return Err(format!("{found:?}; expected {expected}")),
    })
}

fn place(words: &mut Words<'_>) -> Result<Place, String> {
    Ok(if words.take("first") {
        Place::First
    } else if words.take("last") {
        Place::Last
    } else if words.take("before") {
        Place::Before(name(words)?)
    } else if words.take("after") {
        Place::After(name(words)?)
    } else if words.take("at") {
        Place::At(number(words.next("a place")?, "place", super::MAX_RULES as u64)?)
    } else {
        Place::Last
    })
}

fn name(words: &mut Words<'_>) -> Result<Name, String> {
    let word = words.next("the id of a rule, or @N for the one with number N")?;
    match word.strip_prefix('@') {
        Some(digits) => Ok(Name::Number(number(digits, "number of a rule", u64::MAX)?)),
        None => Ok(Name::Id(word.into())),
    }
}

fn rule(words: Words<'_>, comment: Option<&str>, line: u32) -> Result<Rule, String> {
    let rule = native::read_rule(&words.rest())?;
    Ok(Rule { line, comment: comment.and_then(text::comment), ..rule })
}
