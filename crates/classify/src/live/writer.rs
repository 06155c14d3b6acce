//! The one that changes the rules.

use std::sync::Arc;

use packetloom_packet::{MatchKey4, MatchKey6};

use super::copies::{Copies, Edits, Known, Reader, Tables};
use super::list::{Change, ChangeError, RuleList};
use crate::compiled::{CompiledRule, MatchKey};
use crate::hybrid::mutable::{Index, Keeper};
use crate::{Rule, RuleSet};
use packetloom_simd::Isa;

/// Changes a rule list that [`Reader`]s classify by.
#[derive(Debug)]
pub struct Writer {
    list: RuleList,
    v4: Keeper<MatchKey4>,
    v6: Keeper<MatchKey6>,
    isa: Isa,
    /// How often tables were made anew.
    renewals: usize,
    copies: Arc<Copies>,
    /// What the copy lacks that is not active.
    late: Edits,
    /// What neither copy has.
    new: Edits,
}

/// How full the tables are, both families together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Rules in the list.
    pub rules: usize,
    /// Slots that there are; the most rules that there were within one transaction.
    pub slots: usize,
    /// Hash tables.
    pub tables: usize,
    /// Lines in use in a copy's hash tables.
    pub lines: usize,
    /// Places in cells that the rules of the hash tables have: a rule may have several, and some have no line.
    pub copies: usize,
    /// Rules that no hash table took.
    pub in_bitmaps: usize,
    /// How often tables were made anew.
    pub renewals: usize,
}

/// The rules of one family, in order, their positions being slots.
fn compiled<K: MatchKey>(list: &RuleList) -> Vec<CompiledRule<K>> {
    list.order.iter().filter_map(|slot| compile(list, slot)).collect()
}

fn compile<K: MatchKey>(list: &RuleList, slot: u32) -> Option<CompiledRule<K>> {
    CompiledRule::new(&list.held(slot)?.rule, slot)
}

impl Writer {
    /// Loads the first version of the rules, number 0.
    pub fn new(rules: RuleSet) -> Self {
        Self::with_isa(rules, Isa::detect())
    }

    /// As [`Writer::new`], for one instruction set.
    pub fn with_isa(rules: RuleSet, isa: Isa) -> Self {
        let mut list = RuleList::new(rules);
        let ranks = list.order.ranks();
        let (v4, indices4) = Keeper::new(&compiled(&list), ranks, isa);
        let (v6, indices6) = Keeper::new(&compiled(&list), ranks, isa);
        let mut new = Edits::default();
        note(&mut list, 0.., &mut new);
        let tables = |(v4, v6): (Index<MatchKey4>, Index<MatchKey6>)| Tables {
            version: 0,
            v4,
            v6,
            ranks: Vec::new(),
            known: Vec::new(),
        };
        let mut copies = indices4.into_iter().zip(indices6).map(tables);
        let (Some(one), Some(other)) = (copies.next(), copies.next()) else {
            unreachable!("a keeper makes two indices")
        };
        let mut writer = Self {
            list,
            v4,
            v6,
            isa,
            renewals: 0,
            copies: Arc::new(Copies::new([one, other])),
            late: Edits::default(),
            new,
        };
        // The first version reaches both copies before anybody reads.
        writer.publish();
        writer
    }

    /// Something to classify through.
    pub fn reader(&self) -> Reader {
        Reader::new(self.copies.clone())
    }

    /// Makes some changes as one: a packet is judged by the rules as they were before all of them or as they are after all of
    /// them. Readers that begin a batch once this has returned see them. The number of the new version is returned.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] for the first change that cannot be made; then none is.
    pub fn apply(&mut self, changes: &[Change]) -> Result<u64, ChangeError> {
        let version = self.stage(changes)?;
        self.publish();
        Ok(version)
    }

    /// As [`Writer::apply`], but readers see it only after [`Writer::publish`], together with all that was staged before: less
    /// work a transaction, where several wait.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] for the first change that cannot be made; then none is, and what was staged before stays.
    pub fn stage(&mut self, changes: &[Change]) -> Result<u64, ChangeError> {
        let staged = self.list.change(changes)?;
        let Self { list, v4, v6, new, .. } = self;
        let ranks = list.order.ranks();
        v4.remove(&staged.removed, |slot| compile(list, slot), ranks, &mut new.v4);
        v6.remove(&staged.removed, |slot| compile(list, slot), ranks, &mut new.v6);
        for &slot in &staged.added {
            if let Some(rule) = compile(list, slot) {
                v4.insert(rule, ranks, &mut new.v4);
            }
            if let Some(rule) = compile(list, slot) {
                v6.insert(rule, ranks, &mut new.v6);
            }
        }
        note(list, staged.added.iter().copied(), new);
        list.finish(&staged);
        let ranks = list.order.ranks();
        let renewed = [
            v4.renew_if_worn(|| compiled(list), ranks, self.isa, &mut new.v4),
            v6.renew_if_worn(|| compiled(list), ranks, self.isa, &mut new.v6),
        ];
        self.renewals += renewed.into_iter().filter(|&renewed| renewed).count();
        new.version += 1;
        Ok(new.version)
    }

    /// Shows readers what was staged. Waits for those that still hold the version before the last publication.
    pub fn publish(&mut self) {
        let version = self.new.version;
        self.copies.publish(&mut self.late, &mut self.new);
        self.new.version = version;
    }

    /// The rules as the last staged version has them, in order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.list.order.iter().filter_map(|slot| Some(&*self.list.held(slot)?.rule))
    }

    /// The serial numbers of the rules, in order; see [`View::serial`](super::View::serial).
    pub fn serials(&self) -> impl Iterator<Item = u64> {
        self.list.order.iter().filter_map(|slot| Some(self.list.held(slot)?.serial))
    }

    /// How full the tables are.
    pub fn figures(&self) -> Figures {
        let (v4, v6) = (self.v4.figures(), self.v6.figures());
        Figures {
            rules: self.list.order.len(),
            slots: self.list.slots(),
            tables: v4.tables + v6.tables,
            lines: v4.lines + v6.lines,
            copies: v4.copies + v6.copies,
            in_bitmaps: v4.in_bitmaps + v6.in_bitmaps,
            renewals: self.renewals,
        }
    }

    /// Bytes held by the tables, in both copies, and by what is needed to change them; the rules themselves are not counted.
    pub fn memory(&self) -> usize {
        self.copies.memory() + self.v4.memory() + self.v6.memory()
    }
}

/// Writes down what is new of ranks, and of the rules in these slots.
fn note(list: &mut RuleList, slots: impl Iterator<Item = u32>, new: &mut Edits) {
    for slot in slots {
        if slot as usize >= list.slots() {
            break;
        }
        if let Some(held) = list.held(slot) {
            new.known.push((slot, Known { serial: held.serial, action: held.rule.action }));
        }
    }
    let touched: Vec<u32> = list.order.take_touched().collect();
    let ranks = list.order.ranks();
    new.ranks.extend(touched.into_iter().map(|slot| (slot, ranks[slot as usize])));
}
