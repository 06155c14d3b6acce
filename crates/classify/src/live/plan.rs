//! Changes that are all known beforehand: whether they can be made, and which rules there will ever have been.

use super::list::{Change, ChangeError, RuleList};
use crate::{Rule, RuleSet};

/// Transactions that can all be made, one after the other.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Every rule that was loaded or will be added, by serial number.
    pub rules: Vec<Rule>,
}

/// Makes the transactions on the list alone, without tables.
///
/// # Errors
///
/// The number of the first transaction that cannot be made, from 0, and why.
pub fn check<'a>(
    rules: &RuleSet,
    transactions: impl IntoIterator<Item = &'a [Change]>,
) -> Result<Checked, (usize, ChangeError)> {
    let mut list = RuleList::new(rules.clone());
    let mut ever = rules.rules.clone();
    for (number, changes) in transactions.into_iter().enumerate() {
        let staged = list.change(changes).map_err(|error| (number, error))?;
        // A rule that went within its transaction is not held any more, but has its number.
        ever.extend(changes.iter().filter_map(|change| match change {
            Change::Add(_, rule) | Change::Replace(_, rule) => Some(rule.clone()),
            Change::Delete(_) => None,
        }));
        for &slot in &staged.added {
            if let Some(held) = list.held(slot) {
                // With the id that it took over.
                ever[held.serial as usize] = (*held.rule).clone();
            }
        }
        list.finish(&staged);
    }
    Ok(Checked { rules: ever })
}

/// The rules of the list after transactions that can be made, in order, by their serial numbers.
pub fn serials_after<'a>(rules: &RuleSet, transactions: impl IntoIterator<Item = &'a [Change]>) -> Vec<u64> {
    let mut list = RuleList::new(rules.clone());
    for changes in transactions {
        match list.change(changes) {
            Ok(staged) => list.finish(&staged),
            // It cannot be made, so nothing is changed.
            Err(_) => break,
        }
    }
    list.order.iter().filter_map(|slot| Some(list.held(slot)?.serial)).collect()
}
