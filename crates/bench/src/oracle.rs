//! The linear classifier as the judge of the others.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_classify::formats::Headers;
use packetloom_classify::{Classifier, Kind, NO_RULE, RuleSet};

use crate::Error;

/// Headers that are compared at least, spread over all of them.
const CHECKED: usize = 2_000;
/// How long it goes on with more of them.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// Rules and headers to judge answers by.
#[derive(Debug)]
pub(crate) struct Oracle<'a> {
    linear: Arc<dyn Classifier>,
    headers: &'a Headers,
}

impl<'a> Oracle<'a> {
    pub(crate) fn new(rules: &RuleSet, headers: &'a Headers) -> Self {
        Self { linear: Kind::Linear.build(rules), headers }
    }

    /// Compares one answer: that to the header at `place`, IPv4 headers first.
    fn judge(&self, name: &str, place: usize, found: u32) -> Result<(), Error> {
        let Headers { v4, v6, .. } = self.headers;
        let mut expected = NO_RULE;
        let expected_at = std::slice::from_mut(&mut expected);
        let header: &dyn std::fmt::Debug = match v4.get(place) {
            Some(key) => {
                self.linear.classify_v4(from_ref(key), expected_at);
                key
            }
            None => {
                let key = &v6[place - v4.len()];
                self.linear.classify_v6(from_ref(key), expected_at);
                key
            }
        };
        if found == expected {
            return Ok(());
        }
        let rule = |position| if position == NO_RULE { "none".into() } else { format!("rule {position}") };
        let (found, expected) = (rule(found), rule(expected));
        Err(Error::Wrong(format!("{name} finds {found} for {header:?}, linear {expected}")))
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
