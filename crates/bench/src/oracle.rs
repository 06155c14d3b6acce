//! Comparing the rules one by one: the judge of the classifiers.

use std::time::{Duration, Instant};

use packetloom_classify::compiled::{CompiledRule, first_match};
use packetloom_classify::formats::Headers;
use packetloom_classify::{NO_RULE, RuleSet};
use packetloom_packet::{MatchKey4, MatchKey6};

use crate::Error;

/// Headers that are compared at least, spread over all of them.
const CHECKED: usize = 2_000;
/// How long it goes on with more of them.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// Rules and headers to judge answers by.
#[derive(Debug)]
pub(crate) struct Oracle<'a> {
    v4: Vec<CompiledRule<MatchKey4>>,
    v6: Vec<CompiledRule<MatchKey6>>,
    headers: &'a Headers,
}

impl<'a> Oracle<'a> {
    pub(crate) fn new(rules: &RuleSet, headers: &'a Headers) -> Self {
        Self { v4: CompiledRule::all(rules), v6: CompiledRule::all(rules), headers }
    }

    /// Compares one answer: that to the header at `place`, IPv4 headers first.
    fn judge(&self, name: &str, place: usize, found: u32) -> Result<(), Error> {
        let Headers { v4, v6, .. } = self.headers;
        let (expected, header): (u32, &dyn std::fmt::Debug) = match v4.get(place) {
            Some(key) => (first_match(&self.v4, key), key),
            None => {
                let key = &v6[place - v4.len()];
                (first_match(&self.v6, key), key)
            }
        };
        if found == expected {
            return Ok(());
        }
        let rule = |position| if position == NO_RULE { "none".into() } else { format!("rule {position}") };
        let (found, expected) = (rule(found), rule(expected));
        Err(Error::Wrong(format!("{name} finds {found} for {header:?}, one by one it is {expected}")))
    }

    /// Compares answers to every so many headers, then to those beside them, while there is time.
    pub(crate) fn check(&self, name: &str, answers: &[u32]) -> Result<(), Error> {
        let start = Instant::now();
        let step = (answers.len() / CHECKED).max(1);
        for offset in 0..step {
            for place in (offset..answers.len()).step_by(step) {
                self.judge(name, place, answers[place])?;
            }
            if start.elapsed() >= CHECK_TIME {
                break;
            }
        }
        Ok(())
    }

    /// Compares two engines' answers with each other; where they differ, one of them is wrong.
    pub(crate) fn same(&self, one: (&str, &[u32]), other: (&str, &[u32])) -> Result<(), Error> {
        for (place, (&first, &second)) in one.1.iter().zip(other.1).enumerate() {
            if first != second {
                self.judge(one.0, place, first)?;
                self.judge(other.0, place, second)?;
            }
        }
        Ok(())
    }
}
