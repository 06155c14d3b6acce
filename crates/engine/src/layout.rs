//! Where functions keep their state: functions that name one flow definition share its entries, side by side.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use packetloom_nf::flows::{By, Definition, StateAt, StateSpec};
use packetloom_nf::units::Span;
use packetloom_nf::{Form, FunctionSpec};

/// The flow definitions of a chain that functions keep state for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// In the order of the functions that use them first.
    pub definitions: Vec<Used>,
    /// For each function its parts of entries, if it has any.
    pub parts: Vec<Option<Parts>>,
}

/// A function's parts of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// What it judges packets by.
    pub main: Part,
    /// What it remembers of their flows by another definition, if it does.
    pub remembers: Option<Part>,
}

/// A flow definition in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// Its name in the chain file; that of what its flows are by, where the one is used that is meant unless another is named.
    pub name: String,
    /// What it says.
    pub definition: Definition,
    /// The functions that keep state for its flows, by their place in the chain, with the words of each.
    pub functions: Vec<(usize, usize)>,
    /// Whether it is that of one function, which has it to itself: see [`PerFlow::own`](packetloom_nf::PerFlow::own).
    pub is_own: bool,
    /// Whether any of them is told what becomes of its state in the end: then one worker has to have all packets of a flow.
    pub hears_ends: bool,
}

/// A function's part of the entries of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which of [`Layout::definitions`].
    pub definition: usize,
    /// Where.
    pub at: StateAt,
    /// Whether it is the first one to see packets: their flows are looked up before.
    pub is_first: bool,
}

impl Used {
    /// Words that its functions keep for a flow.
    pub fn words(&self) -> usize {
        self.functions.iter().map(|(_, words)| words).sum()
    }

    /// Whether packets of one flow meet several workers, where they are spread so.
    pub fn is_shared(&self, spread: By) -> bool {
        self.definition.by.spread_by() != spread
    }
}

impl Layout {
    /// Lays the state of functions out in the entries of the definitions that they name.
    ///
    /// # Errors
    /// The function whose definition is not there or does not suit it, and why.
    pub fn new(
        functions: &[Arc<dyn FunctionSpec>],
        definitions: &BTreeMap<String, Definition>,
    ) -> Result<Self, (usize, String)> {
        let mut layout = Self::default();
        for (index, function) in functions.iter().enumerate() {
            let parts = match function.form() {
                Form::Standalone(_) => None,
                Form::PerFlow(per_flow) => {
                    let mut add = |key, keeps, min_timeout| {
                        layout.add(index, key, keeps, min_timeout, definitions).map_err(|why| (index, why))
                    };
                    // In the order in which packets come to them.
                    let remembers =
                        per_flow.remembers().map(|keeps| add("sessions", keeps, None)).transpose()?;
                    let keeps = per_flow.keeps();
                    let main = match per_flow.own() {
                        None => add("flows", keeps, per_flow.min_timeout())?,
                        Some(own) => {
                            layout.add_own(functions, index, own, keeps.words).map_err(|why| (index, why))?
                        }
                    };
                    layout.definitions[main.definition].hears_ends |= per_flow.hears_ends();
                    Some(Parts { main, remembers })
                }
            };
            layout.parts.push(parts);
        }
        Ok(layout)
    }

    fn define(&mut self, name: String, definition: Definition, is_own: bool) -> usize {
        let used = Used { name, definition, functions: Vec::new(), is_own, hears_ends: false };
        self.definitions.push(used);
        self.definitions.len() - 1
    }

    /// Adds a definition that a function has to itself, by the name of this and its place among those of this name.
    fn add_own(
        &mut self,
        functions: &[Arc<dyn FunctionSpec>],
        function: usize,
        definition: Definition,
        words: usize,
    ) -> Result<Part, String> {
        let nf = functions[function].name();
        let number = functions[..=function].iter().filter(|function| function.name() == nf).count();
        let name = format!("{nf} {number}");
        if self.definitions.iter().any(|used| used.name == name) {
            return Err(is_taken(&name));
        }
        let number = self.define(name, definition, true);
        self.definitions[number].functions.push((function, words));
        Ok(Part { definition: number, at: StateAt::default(), is_first: true })
    }

    fn add(
        &mut self,
        function: usize,
        key: &str,
        keeps: StateSpec,
        min_timeout: Option<Span>,
        definitions: &BTreeMap<String, Definition>,
    ) -> Result<Part, String> {
        let name = keeps.flows.as_deref().unwrap_or_else(|| keeps.by[0].name());
        let definition = match (definitions.get(name), By::SHARED.iter().find(|by| by.name() == name)) {
            (Some(definition), _) => definition.clone(),
            (None, Some(&by)) => by.into(),
            (None, None) => {
                let names = definitions.keys().map(String::as_str).chain(By::SHARED.map(By::name));
                let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
                return Err(format!("{key} is {name:?}; expected one of {}", names.join(", ")));
            }
        };
        if !keeps.by.contains(&definition.by) {
            let by: Vec<_> = keeps.by.iter().map(|by| format!("{:?}", by.name())).collect();
            let found = definition.by.name();
            return Err(format!("flows {name:?} are by {found:?}; expected by = {}", by.join(" or ")));
        }
        if let Some(wanted) = min_timeout {
            let lasts = |span: Span| span.limit().unwrap_or(u64::MAX);
            if lasts(definition.timeout) < lasts(wanted) {
                let found = definition.timeout;
                return Err(format!(
                    "flows {name:?} are forgotten after {found}, before the longest of the timeouts has passed; expected [flows] with \
                     timeout = \"{wanted}\"{}",
                    if wanted.limit().is_some() { " or more" } else { "" }
                ));
            }
        }
        let number = match self.definitions.iter().position(|used| used.name == name) {
            Some(number) if self.definitions[number].is_own => return Err(is_taken(name)),
            Some(number) => number,
            None => self.define(name.into(), definition, false),
        };
        let used = &mut self.definitions[number];
        let most = used.definition.by.key_form().max_functions();
        if used.functions.len() == most {
            return Err(format!("flows {name:?} already has {most} functions; expected no more"));
        }
        let at = StateAt { function: used.functions.len() as u32, word: used.words() };
        used.functions.push((function, keeps.words));
        Ok(Part { definition: number, at, is_first: at.function == 0 })
    }

    /// What packets are to have in common that meet one worker: such that it alone knows the flows that have most depend on order, or
    /// most entries. Workers share the tables of other definitions ([`Used::is_shared`]). None where tables must not be shared, and no way
    /// to spread packets suits all of them.
    pub fn spread(&self, functions: &[Arc<dyn FunctionSpec>]) -> Option<By> {
        let is_used = |by: By| self.definitions.iter().any(|used| used.definition.by.spread_by() == by);
        let order = [By::Connection, By::FiveTuple, By::Initiator, By::Source];
        // A definition of a function's own is by the headers that come to it: rewritten ones may be of flows that were apart before.
        let rewrites = functions.iter().position(|function| function.rewrites()).unwrap_or(functions.len());
        let is_behind =
            |used: &Used| used.is_own && used.functions.iter().any(|&(function, _)| function > rewrites);
        if self.definitions.iter().any(is_behind) {
            return None;
        }
        let mut unshared = self.definitions.iter().filter(|used| used.is_own || used.hears_ends);
        let Some(by) = unshared.next().map(|used| used.definition.by.spread_by()) else {
            return Some(order.into_iter().find(|&by| is_used(by)).unwrap_or(By::FiveTuple));
        };
        // Errors are not where the connections are that they quote.
        let has_others = unshared.any(|used| used.definition.by.spread_by() != by);
        (!has_others && (by == By::Connection || !is_used(By::Connection))).then_some(by)
    }
}

fn is_taken(name: &str) -> String {
    format!("flows {name:?} are those that a function has to itself; expected another name")
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.functions.iter().map(|(function, _)| (function + 1).to_string()).collect();
        let (word, numbers) = match &numbers[..] {
            [one] => ("function", one.clone()),
            [before @ .., last] => ("functions", format!("{} and {last}", before.join(", "))),
            [] => ("functions", String::new()),
        };
        let [v4, v6] = self.definition.entry_bytes(self.words());
        write!(
            f,
            "{}: {}; an entry of {v4} bytes (IPv6 {v6}) with the state of {word} {numbers}, looked up once",
            self.name, self.definition
        )
    }
}
