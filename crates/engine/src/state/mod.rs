//! State of flows apart from the tables that hold it: what is handed from one chain to the next, and what a file holds.
//!
//! - Entries are those of a flow definition, by its name: key, time of the last packet, and words of each function that has state for the
//!   flow ([`Entry`]). Neither workers nor capacities nor seeds show.
//! - A function may keep more of a flow than words, as a text of its own.
//! - A function is known by its name, its place among those of that name over the definition, the version of its layout and its number of
//!   words. What numbers in its words stand for, such as backends, it says itself ([`PerFlow::legend`]).
//! - [`Plan::restore`](crate::Plan::restore) makes of it what another chain begins with: parts that this one has not are left out, those that it has and the
//!   other had not are absent.
//!
//! [`Entry`]: packetloom_nf::flows::Entry
//! [`PerFlow::legend`]: packetloom_nf::PerFlow::legend

mod file;

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::slice::ChunksExact;
use std::sync::Arc;

use packetloom_nf::flows::{
    AnyEntry, By, Counts, FUNCTIONS, StateAt, V4, V6, header_words, key_and_functions,
};
use packetloom_nf::{Form, FunctionSpec, summary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::file::{Error, VERSION};
use crate::Chain;
use crate::layout::{Layout, Used};

/// State of the flows of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Packets that the run had judged.
    pub packets: u64,
    /// The time of the last of them, in nanoseconds.
    pub time: Option<u64>,
    /// For each flow definition what is held.
    pub definitions: Vec<Held>,
}

/// What is held for a flow definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// What its flows are by.
    pub by: By,
    /// The functions with state there, in the order of their words.
    pub functions: Vec<Kept>,
    /// Entries of IPv4 and of IPv6, one behind the other: the key, with a bit for each function in its last word; the time of the
    /// last packet; the functions' words.
    pub entries: [Vec<u64>; 2],
    /// What functions keep of entries beside words.
    pub texts: Texts,
    /// What was counted in this run; no file has it.
    pub counts: Counts,
}

/// Texts by the number of the function, whether the entry is of IPv6, and its key with zeros behind it.
pub type Texts = BTreeMap<(usize, bool, [u64; V6]), Box<str>>;

/// What tables hold of a definition.
#[derive(Default)]
pub(crate) struct Saved {
    pub(crate) entries: [Vec<u64>; 2],
    pub(crate) texts: Texts,
    pub(crate) counts: Counts,
}

impl Saved {
    /// Adds what other tables hold.
    pub(crate) fn add(&mut self, other: Self) {
        self.entries.iter_mut().zip(other.entries).for_each(|(entries, others)| entries.extend(others));
        self.texts.extend(other.texts);
        self.counts = self.counts + other.counts;
    }

    /// Adds what a function keeps beside its `own` of the `words` of each entry.
    pub(crate) fn add_texts(
        &mut self,
        at: StateAt,
        (own, words): (usize, usize),
        text: impl Fn(&[u64]) -> Option<Box<str>>,
    ) {
        for (entries, key_words) in self.entries.iter().zip(KEY_WORDS) {
            for entry in entries.chunks_exact(header_words(key_words) + words) {
                let state = AnyEntry::saved(entry, key_words).state_words(at, own);
                if let Some(text) = state.and_then(&text) {
                    self.texts.insert((at.function as usize, key_words == V6, key(entry, key_words)), text);
                }
            }
        }
    }
}

/// A function's part of each entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The function's name.
    pub nf: String,
    /// Its place among functions of this name over the definition, from 0.
    pub position: usize,
    /// The version of its layout.
    pub version: u32,
    /// Words of 64 bits.
    pub words: usize,
    /// What numbers in them stand for.
    #[serde(default)]
    pub legend: Value,
}

impl Kept {
    fn is_same_function(&self, other: &Self) -> bool {
        (&self.nf, self.position) == (&other.nf, other.position)
    }

    fn is_same_layout(&self, other: &Self) -> bool {
        (self.version, self.words) == (other.version, other.words)
    }
}

/// What `packetloom state` prints, for machines.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "What is in a state file")]
pub(crate) struct StateSummary {
    /// The version of the file's format.
    version: u64,
    /// Packets that were judged before.
    packets: u64,
    /// The time of the last of them, in nanoseconds since 1970.
    nanoseconds: Option<u64>,
    /// The flow definitions.
    definitions: Vec<DefinitionSummary>,
}

/// A flow definition and its state.
#[derive(Serialize, JsonSchema)]
struct DefinitionSummary {
    /// Its name.
    name: String,
    /// What the packets of a flow have in common.
    by: &'static str,
    /// Flows of IPv4.
    ipv4: usize,
    /// Flows of IPv6.
    ipv6: usize,
    /// The functions that keep state in it.
    functions: Vec<FunctionSummary>,
}

/// A function that keeps state.
#[derive(Serialize, JsonSchema)]
struct FunctionSummary {
    /// Its name.
    nf: String,
    /// Its place among functions of this name over the definition, from 0.
    position: usize,
    /// The version of its layout.
    version: u32,
    /// Words of 64 bits of each flow.
    words: usize,
    /// What numbers in them stand for.
    legend: Value,
    /// Flows for which it has state.
    flows: usize,
}

/// Words of the keys of IPv4 and of IPv6.
const KEY_WORDS: [usize; 2] = [V4, V6];

impl Held {
    /// Words of the functions of an entry.
    pub fn words(&self) -> usize {
        self.functions.iter().map(|kept| kept.words).sum()
    }

    /// Shows its entries.
    pub(crate) fn each_entry(&self, mut see: impl FnMut(AnyEntry<'_>)) {
        for (entries, key_words) in self.entries.iter().zip(KEY_WORDS) {
            let entries = entries.chunks_exact(header_words(key_words) + self.words());
            entries.for_each(|entry| see(AnyEntry::saved(entry, key_words)));
        }
    }

    /// The keys of its entries of IPv4, or of IPv6.
    fn keys(&self, version: usize) -> impl Iterator<Item = [u64; V6]> {
        self.entries_of(version).map(move |entry| key(entry, KEY_WORDS[version]))
    }

    /// That of an entry by its number, at once.
    fn key_at(&self, version: usize, entry: usize) -> Option<[u64; V6]> {
        self.entries_of(version).nth(entry).map(|entry| key(entry, KEY_WORDS[version]))
    }

    fn entries_of(&self, version: usize) -> ChunksExact<'_, u64> {
        self.entries[version].chunks_exact(header_words(KEY_WORDS[version]) + self.words())
    }

    /// Entries of IPv4 and of IPv6.
    pub fn flows(&self) -> [usize; 2] {
        let words = self.words();
        [0, 1].map(|version| self.entries[version].len() / (header_words(KEY_WORDS[version]) + words))
    }

    /// Flows for which each function has state.
    pub fn flows_of_functions(&self) -> Vec<usize> {
        let mut flows = vec![0; self.functions.len()];
        for (entries, key_words) in self.entries.iter().zip(KEY_WORDS) {
            for entry in entries.chunks_exact(header_words(key_words) + self.words()) {
                for (number, flows) in flows.iter_mut().enumerate() {
                    *flows += (key_and_functions(entry[key_words - 1]).1 >> number & 1) as usize;
                }
            }
        }
        flows
    }

    /// Clears the words of functions that have no state for a flow: tables leave there what was in the place before.
    pub(crate) fn blank(&mut self) {
        let words = self.words();
        for (entries, key_words) in self.entries.iter_mut().zip(KEY_WORDS) {
            for entry in entries.chunks_exact_mut(header_words(key_words) + words) {
                let (header, mut state) = entry.split_at_mut(header_words(key_words));
                let (_, has_state) = key_and_functions(header[key_words - 1]);
                for (number, kept) in self.functions.iter().enumerate() {
                    let (own, rest) = state.split_at_mut(kept.words);
                    state = rest;
                    if has_state >> number & 1 == 0 {
                        own.fill(0);
                    }
                }
            }
        }
    }

    /// Clears bits of one of the functions' words in all entries.
    fn clear(&mut self, word: usize, bits: u64) {
        let words = self.words();
        for (entries, key_words) in self.entries.iter_mut().zip(KEY_WORDS) {
            let header = header_words(key_words);
            entries.chunks_exact_mut(header + words).for_each(|entry| entry[header + word] &= !bits);
        }
    }

    /// Brings entries into the order of their keys.
    fn sort(&mut self) {
        let words = self.words();
        for (entries, key_words) in self.entries.iter_mut().zip(KEY_WORDS) {
            let stride = header_words(key_words) + words;
            let mut order: Vec<_> = entries.chunks_exact(stride).collect();
            order.sort_unstable_by_key(|entry| key(entry, key_words));
            *entries = order.concat();
        }
    }

    /// As the functions `wanted` keep it; `adopt` makes a function's words its own, and its text if there is one, where it can.
    fn laid_out(
        &self,
        wanted: &[Part],
        mut adopt: impl FnMut(&Part, &mut [u64], Option<&str>) -> bool,
    ) -> [Vec<u64>; 2] {
        let places: Vec<_> = wanted.iter().map(|part| self.place(&part.kept)).collect();
        let words: usize = wanted.iter().map(|part| part.kept.words).sum();
        [0, 1].map(|version| {
            let (old, key_words) = (&self.entries[version], KEY_WORDS[version]);
            let header = header_words(key_words);
            let mut entries = Vec::with_capacity(self.flows()[version] * (header + words));
            for entry in old.chunks_exact(header + self.words()) {
                let at = entries.len();
                entries.extend(&entry[..header]);
                let (last, has_state) = key_and_functions(entry[key_words - 1]);
                entries[at + key_words - 1] = last;
                for (number, (part, place)) in wanted.iter().zip(&places).enumerate() {
                    let own = entries.len();
                    entries.resize(own + part.kept.words, 0);
                    let Some((old_number, from)) = *place else { continue };
                    if has_state >> old_number & 1 == 0 {
                        continue;
                    }
                    entries[own..].copy_from_slice(&entry[header + from..][..part.kept.words]);
                    let text = self.texts.get(&(old_number, key_words == V6, key(entry, key_words)));
                    if adopt(part, &mut entries[own..], text.map(|text| &**text)) {
                        entries[at + key_words - 1] |= 1 << (FUNCTIONS as usize + number);
                    } else {
                        entries[own..].fill(0);
                    }
                }
            }
            entries
        })
    }

    /// The number of a function with such words, and the words before them.
    fn place(&self, kept: &Kept) -> Option<(usize, usize)> {
        let number =
            self.functions.iter().position(|old| old.is_same_function(kept) && old.is_same_layout(kept))?;
        Some((number, self.functions[..number].iter().map(|kept| kept.words).sum()))
    }
}

/// An entry's key, to be compared.
fn key(entry: &[u64], key_words: usize) -> [u64; V6] {
    let mut key = [0; V6];
    key[..key_words].copy_from_slice(&entry[..key_words]);
    key[key_words - 1] = key_and_functions(key[key_words - 1]).0;
    key
}

/// A function's part of the entries of a definition.
struct Part {
    kept: Kept,
    /// Its place in the chain.
    function: usize,
    /// Whether it judges packets by it; others only remember flows.
    is_main: bool,
}

/// The parts of the entries of a definition, in their order.
fn parts(functions: &[Arc<dyn FunctionSpec>], layout: &Layout, definition: usize) -> Vec<Part> {
    let mut positions = HashMap::new();
    let part = |&(function, words): &(usize, usize)| {
        let nf = functions[function].name();
        let position = positions.entry(nf).and_modify(|position| *position += 1).or_insert(0);
        let is_main = layout.parts[function].is_some_and(|parts| parts.main.definition == definition);
        let (version, legend) = match functions[function].form() {
            Form::PerFlow(function) if is_main => (function.version(), function.legend()),
            _ => (1, Value::Null),
        };
        Part { kept: Kept { nf: nf.into(), position: *position, version, words, legend }, function, is_main }
    };
    layout.definitions[definition].functions.iter().map(part).collect()
}

/// Where a function has its state: the definitions, and its position there among functions of its name.
pub(crate) fn places_of_state(chain: &Chain, function: usize) -> Vec<(&str, usize)> {
    let definitions = (0..).zip(&chain.layout.definitions);
    let places = definitions.flat_map(|(number, used)| {
        let own = parts(&chain.functions, &chain.layout, number).into_iter();
        own.filter(|part| part.function == function).map(|part| (&*used.name, part.kept.position))
    });
    places.collect()
}

impl State {
    /// What the tables of a chain hold, definition by definition.
    pub(crate) fn of(
        functions: &[Arc<dyn FunctionSpec>],
        layout: &Layout,
        held: impl IntoIterator<Item = Saved>,
    ) -> Self {
        let held = layout.definitions.iter().enumerate().zip(held);
        let held = held.map(|((definition, used), Saved { entries, texts, counts })| {
            let functions = parts(functions, layout, definition).into_iter().map(|part| part.kept).collect();
            let mut held =
                Held { name: used.name.clone(), by: used.definition.by, functions, entries, texts, counts };
            held.blank();
            held
        });
        Self { packets: 0, time: None, definitions: held.collect() }
    }

    /// Clears what means something in the run of a chain alone.
    pub(crate) fn detach(&mut self, chain: &Chain) {
        for (definition, held) in self.definitions.iter_mut().enumerate() {
            let mut before = 0;
            for part in parts(&chain.functions, &chain.layout, definition) {
                if let Form::PerFlow(function) = chain.functions[part.function].form()
                    && part.is_main
                {
                    function.passing().iter().for_each(|&(word, bits)| held.clear(before + word, bits));
                }
                before += part.kept.words;
            }
        }
    }

    /// Brings entries into the order of their keys, so that the same state is the same bytes.
    pub(crate) fn sort(&mut self) {
        self.definitions.iter_mut().for_each(Held::sort);
    }

    /// The same with the entries that `keeps` holds of each definition: it is told the definition, and an entry's key.
    pub(crate) fn share(&self, keeps: impl Fn(&Held, &[u64]) -> bool) -> Self {
        let share = |held: &Held| {
            let words = held.words();
            let entries = [0, 1].map(|version| {
                let key_words = KEY_WORDS[version];
                let entries = held.entries[version].chunks_exact(header_words(key_words) + words);
                entries
                    .filter(|entry| keeps(held, &key(entry, key_words)[..key_words]))
                    .flatten()
                    .copied()
                    .collect()
            });
            // Functions have made texts their own by now.
            let texts = Texts::new();
            Held { entries, texts, functions: held.functions.clone(), name: held.name.clone(), ..*held }
        };
        Self { definitions: self.definitions.iter().map(share).collect(), ..*self }
    }

    /// Makes of it what functions begin with, as a layout has their state; `goes_on` says which of them are as they were. Also says what
    /// had to be left out.
    ///
    /// # Errors
    ///
    /// What numbers stand for is not what a function expects.
    pub(crate) fn fit(
        mut self,
        functions: &mut [Arc<dyn FunctionSpec>],
        layout: &Layout,
        goes_on: impl Fn(usize) -> bool,
    ) -> Result<(Self, Vec<String>), String> {
        let mut left_out = Vec::new();
        let mut definitions = Vec::new();
        for (number, used) in layout.definitions.iter().enumerate() {
            let wanted = parts(functions, layout, number);
            let mut held = self.take(used, &mut left_out);
            for old in &held.functions {
                if wanted.iter().all(|part| !old.is_same_function(&part.kept)) {
                    let (nf, position) = (&old.nf, old.position.saturating_add(1));
                    left_out.push(format!(
                        "flows {:?}: there is no {nf} {position} now, whose state is left out",
                        used.name
                    ));
                }
            }
            for Part { kept, function, is_main } in &wanted {
                let Some(old) = held.functions.iter().find(|old| old.is_same_function(kept)) else {
                    continue;
                };
                if !old.is_same_layout(kept) {
                    left_out.push(format!(
                        "flows {:?}: the state of {} {} means something else now and is left out",
                        used.name,
                        kept.nf,
                        kept.position.saturating_add(1)
                    ));
                } else if *is_main && !goes_on(*function) {
                    let inherit = |function: &mut dyn FunctionSpec| function.inherit(&old.legend);
                    Arc::get_mut(&mut functions[*function]).map_or(Ok(()), inherit).map_err(|why| {
                        format!(
                            "flows {:?}, {} {}: {why}",
                            used.name,
                            kept.nf,
                            kept.position.saturating_add(1)
                        )
                    })?;
                }
            }
            // Numbers that are given anew come in the order of flows, which is to be the same wherever these were held.
            if wanted.iter().any(|part| !part.kept.legend.is_null() && !goes_on(part.function)) {
                held.sort();
            }
            let entries = held.laid_out(&wanted, |part, words, text| {
                let adopts = |function: &mut dyn FunctionSpec| {
                    let adopts = function.adopt(words);
                    if let Some(text) = text.filter(|_| adopts) {
                        function.adopt_text(words, text);
                    }
                    adopts
                };
                !part.is_main
                    || goes_on(part.function)
                    || Arc::get_mut(&mut functions[part.function]).is_some_and(adopts)
            });
            definitions.push(Saved { entries, texts: Texts::new(), counts: held.counts });
        }
        let gone = self.definitions.iter().map(|held| &held.name);
        left_out.extend(gone.map(|name| format!("flows {name:?}: no function keeps state for them now")));
        let (packets, time) = (self.packets, self.time);
        // After adoption: numbers may stand for more than before.
        Ok((Self { packets, time, ..Self::of(functions, layout, definitions) }, left_out))
    }

    /// Takes out what is held for a definition; nothing where there is none, or its flows were by something else.
    fn take(&mut self, used: &Used, left_out: &mut Vec<String>) -> Held {
        let by = used.definition.by;
        let nothing = Held {
            name: used.name.clone(),
            by,
            functions: Vec::new(),
            entries: [Vec::new(), Vec::new()],
            texts: Texts::new(),
            counts: Counts::default(),
        };
        let Some(at) = self.definitions.iter().position(|held| held.name == used.name) else {
            return nothing;
        };
        let held = self.definitions.swap_remove(at);
        if held.by == by {
            return held;
        }
        let (name, was, is) = (&used.name, held.by.name(), by.name());
        left_out.push(format!("flows {name:?}: were by {was}, are by {is} now; their state is left out"));
        Held { counts: held.counts, ..nothing }
    }

    /// The entries of a definition, by its number, and what was counted.
    pub(crate) fn held(&mut self, definition: usize) -> ([Vec<u64>; 2], usize, Counts) {
        let held = &mut self.definitions[definition];
        (mem::take(&mut held.entries), held.words(), held.counts)
    }

    /// For machines: all but the entries.
    pub fn json(&self) -> Value {
        let function = |(kept, flows): (&Kept, usize)| {
            let Kept { nf, position, version, words, legend } = kept.clone();
            FunctionSummary { nf, position, version, words, legend, flows }
        };
        let definition = |held: &Held| {
            let [ipv4, ipv6] = held.flows();
            let functions = held.functions.iter().zip(held.flows_of_functions()).map(function).collect();
            DefinitionSummary { name: held.name.clone(), by: held.by.name(), ipv4, ipv6, functions }
        };
        summary::value(&StateSummary {
            version: VERSION.into(),
            packets: self.packets,
            nanoseconds: self.time,
            definitions: self.definitions.iter().map(definition).collect(),
        })
    }

    /// For people: pairs of a name and a value.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut rows = vec![("packets judged before".into(), self.packets.to_string())];
        if let Some(time) = self.time {
            let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
            rows.push(("time of the last".into(), format!("{seconds}.{nanos:09}")));
        }
        for held in &self.definitions {
            let [v4, v6] = held.flows();
            let flows = format!("{} of IPv4, {} of IPv6", v4, v6);
            rows.push((format!("flows {:?} by {}", held.name, held.by.name()), flows));
            for (kept, flows) in held.functions.iter().zip(held.flows_of_functions()) {
                let name = format!("  {} {}", kept.nf, kept.position.saturating_add(1));
                rows.push((name, format!("of {flows} flows, {} bytes each", 8 * kept.words)));
            }
        }
        rows
    }
}
