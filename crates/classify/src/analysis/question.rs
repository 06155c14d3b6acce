//! A question about a rule: do the right ones decide all its packets?

use super::index::Entry;
use super::kinds::Classes;
use super::region::Region;
use super::search::{Exhausted, Item, Search, Work};

/// Causes are thinned out as far as one in so many of the comparisons that are left suffice.
const SHARE_OF_GROUNDS: u64 = 4;

/// Whether, for every packet of a rule, the first of a list of candidates that matches it is a good one.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub(super) classes: &'a Classes,
    pub(super) rule: &'a Entry,
    /// In order, each with whether it is good.
    pub(super) candidates: Vec<(Entry, bool)>,
    /// Whether it is good that none matches.
    pub(super) default: bool,
}

/// The part of the question on one sheet.
#[derive(Debug)]
struct Part {
    region: Region,
    /// One for each candidate; without kinds, where it has none on this sheet.
    items: Vec<Item>,
}

/// Candidates that a "yes" rests on.
#[derive(Debug)]
pub(super) struct Grounds {
    /// Their positions, in order.
    pub(super) rules: Vec<u32>,
    /// Whether some packets are left to the default.
    pub(super) default: bool,
    /// Whether it is known that none of these can be left out.
    pub(super) minimal: bool,
}

impl Question<'_> {
    fn sheets(&self) -> std::ops::Range<usize> {
        0..self.classes.masks(self.rule.demand).len()
    }

    /// The part on one sheet; `None` where the rule matches nothing there.
    fn part(&self, sheet: usize, work: &mut Work) -> Result<Option<Part>, Exhausted> {
        let kinds = |entry: &Entry| {
            self.classes.masks(entry.demand)[sheet] & self.classes.masks(self.rule.demand)[sheet]
        };
        let region = |entry: &Entry| Region { span: entry.span, kinds: kinds(entry) };
        if kinds(self.rule) == 0 {
            return Ok(None);
        }
        work.spend(self.candidates.len() as u64)?;
        let items = self.candidates.iter().map(|(entry, good)| Item { region: region(entry), good: *good });
        Ok(Some(Part { region: region(self.rule), items: items.collect() }))
    }

    /// Whether it is so; if it is, the numbers of good candidates that this rests on, in order.
    pub(super) fn ask(&self, search: &mut Search, work: &mut Work) -> Result<Option<Vec<u32>>, Exhausted> {
        let all = 0..self.candidates.len() as u32;
        let mut is_used = vec![false; self.candidates.len()];
        for sheet in self.sheets() {
            let Some(Part { region, items }) = self.part(sheet, work)? else { continue };
            let used = |item| is_used[item as usize] = true;
            if !search.all_good(region, &items, all.clone(), self.default, work, used)? {
                return Ok(None);
            }
        }
        Ok(Some(all.filter(|&item| is_used[item as usize]).collect()))
    }

    /// Leaves out what is not needed of the good candidates in `used`, small ones first, but none that `must_stay`.
    pub(super) fn grounds(
        mut self,
        used: &[u32],
        must_stay: impl Fn(&Entry) -> bool,
        search: &mut Search,
        work: &mut Work,
    ) -> Grounds {
        let may_go = |(entry, good): &(Entry, bool)| *good && !must_stay(entry);
        let mut number = 0..;
        self.candidates.retain(|candidate| {
            number.next().is_some_and(|number| !may_go(candidate) || used.binary_search(&number).is_ok())
        });
        let mut list: Vec<u32> = (0..self.candidates.len() as u32).collect();
        let mut default = self.default;
        let minimal = work.attempt(SHARE_OF_GROUNDS, |work| {
            let mut parts = Vec::new();
            for sheet in self.sheets() {
                parts.extend(self.part(sheet, work)?);
            }
            let mut droppable = list.clone();
            droppable.retain(|&item| may_go(&self.candidates[item as usize]));
            droppable.sort_by(|&a, &b| volume(&parts, a).total_cmp(&volume(&parts, b)));
            for item in droppable {
                let place = list.partition_point(|&other| other < item);
                list.remove(place);
                let holds = holds_without(&parts, item, &list, self.default, search, work);
                if !matches!(holds, Ok(true)) {
                    list.insert(place, item);
                }
                holds?;
            }
            if default && list.iter().any(|&item| may_go(&self.candidates[item as usize])) {
                default = needs_default(&parts, &list, search, work)?;
            }
            Ok(())
        });
        let left = list.iter().map(|&item| &self.candidates[item as usize]);
        let mut rules: Vec<u32> = left.filter(|it| may_go(it)).map(|(entry, _)| entry.position).collect();
        rules.sort_unstable();
        Grounds { rules, default, minimal: minimal.is_some() }
    }
}

fn volume(parts: &[Part], item: u32) -> f64 {
    parts.iter().map(|part| part.items[item as usize].region.volume()).sum()
}

/// Whether the items of `list` suffice where `item`, which is not one of them, was.
fn holds_without(
    parts: &[Part],
    item: u32,
    list: &[u32],
    default: bool,
    search: &mut Search,
    work: &mut Work,
) -> Result<bool, Exhausted> {
    for Part { region, items } in parts {
        let lost = &items[item as usize].region;
        if lost.overlaps(region) {
            let region = lost.intersection(region);
            if !search.all_good(region, items, list.iter().copied(), default, work, |_| ())? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether the items of `list` do not suffice without a good default.
fn needs_default(
    parts: &[Part],
    list: &[u32],
    search: &mut Search,
    work: &mut Work,
) -> Result<bool, Exhausted> {
    for Part { region, items } in parts {
        if !search.all_good(*region, items, list.iter().copied(), false, work, |_| ())? {
            return Ok(true);
        }
    }
    Ok(false)
}
