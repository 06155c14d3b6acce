//! A question about a rule: do the right ones decide all its packets?

use super::index::Entry;
use super::kinds::Classes;
use super::region::Region;
use super::search::{Exhausted, Item, Search, Work};

/// Whether, for every packet of a rule, the first of a list of candidates that matches it is a good one.
#[derive(Debug)]
pub(super) struct Question {
    parts: Vec<Part>,
    /// Whether it is good that none matches.
    default: bool,
    /// Position and goodness of each candidate.
    candidates: Vec<(u32, bool)>,
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

impl Question {
    /// `candidates` come in order, each with whether it is good.
    pub(super) fn new<'a>(
        classes: &Classes,
        rule: &Entry,
        candidates: impl IntoIterator<Item = (&'a Entry, bool)> + Clone,
        default: bool,
    ) -> Self {
        let region = |entry: &Entry, sheet: usize| {
            let kinds = classes.masks(entry.demand)[sheet] & classes.masks(rule.demand)[sheet];
            Region { span: entry.span, kinds }
        };
        let part = |sheet| Part {
            region: region(rule, sheet),
            items: candidates
                .clone()
                .into_iter()
                .map(|(entry, good)| Item { region: region(entry, sheet), good })
                .collect(),
        };
        let sheets = 0..classes.masks(rule.demand).len();
        Self {
            parts: sheets.filter(|&sheet| region(rule, sheet).kinds != 0).map(part).collect(),
            default,
            candidates: candidates.into_iter().map(|(entry, good)| (entry.position, good)).collect(),
        }
    }

    /// Whether it is so; if it is, the numbers of good candidates that this rests on.
    pub(super) fn ask(&self, search: &mut Search, work: &mut Work) -> Result<Option<Vec<u32>>, Exhausted> {
        let all = 0..self.candidates.len() as u32;
        let mut is_used = vec![false; self.candidates.len()];
        for part in &self.parts {
            let used = |item| is_used[item as usize] = true;
            if !search.all_good(part.region, &part.items, all.clone(), self.default, work, used)? {
                return Ok(None);
            }
        }
        Ok(Some(all.filter(|&item| is_used[item as usize]).collect()))
    }

    /// Leaves out what is not needed of the good candidates in `used`, small ones first, but none that `must_stay`.
    pub(super) fn grounds(
        &self,
        used: Vec<u32>,
        must_stay: impl Fn(u32) -> bool,
        search: &mut Search,
        work: &mut Work,
    ) -> Grounds {
        let good = |item: u32| self.candidates[item as usize].1;
        let position = |item: u32| self.candidates[item as usize].0;
        let mut droppable: Vec<u32> = used.into_iter().filter(|&item| !must_stay(position(item))).collect();
        let mut list: Vec<u32> = (0..self.candidates.len() as u32)
            .filter(|&item| {
                !good(item) || must_stay(position(item)) || droppable.binary_search(&item).is_ok()
            })
            .collect();
        let volume =
            |item: u32| self.parts.iter().map(|part| part.items[item as usize].region.volume()).sum::<f64>();
        droppable.sort_by(|&a, &b| volume(a).total_cmp(&volume(b)));
        let mut minimal = true;
        let mut rules = Vec::new();
        for item in droppable {
            if minimal {
                let place = list.partition_point(|&other| other < item);
                list.remove(place);
                match self.holds_without(item, &list, search, work) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(Exhausted) => minimal = false,
                }
                list.insert(place, item);
            }
            rules.push(position(item));
        }
        rules.sort_unstable();
        let default = match self.default {
            true if rules.is_empty() => true,
            true => self.needs_default(&list, search, work).unwrap_or_else(|Exhausted| {
                minimal = false;
                true
            }),
            false => false,
        };
        Grounds { rules, default, minimal }
    }

    fn holds_without(
        &self,
        item: u32,
        list: &[u32],
        search: &mut Search,
        work: &mut Work,
    ) -> Result<bool, Exhausted> {
        for part in &self.parts {
            let lost = &part.items[item as usize].region;
            if lost.overlaps(&part.region) {
                let region = lost.intersection(&part.region);
                if !search.all_good(region, &part.items, list.iter().copied(), self.default, work, |_| ())? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn needs_default(&self, list: &[u32], search: &mut Search, work: &mut Work) -> Result<bool, Exhausted> {
        for part in &self.parts {
            if !search.all_good(part.region, &part.items, list.iter().copied(), false, work, |_| ())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
