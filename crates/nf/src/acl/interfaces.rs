//! Lists whose rules may be for some interfaces only.
//!
//! The rules that packets of an interface meet are a list of their own, with a classifier of its own, whose positions are turned into those
//! of the whole list. Interfaces that the same rules are for share it. It is built when it is first asked for, or before the run where the
//! names are known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use packetloom_classify::{Classifier, Kind, NO_RULE};
use packetloom_packet::batch::{Keys, PortNames};
use packetloom_packet::{FrameRef, MatchKey4, MatchKey6, Verdict};

use super::List;
use super::cpu::{Finder, Passing};

/// Lists that are kept, at most.
const MAX_LISTS: usize = 32;

/// What packets of an interface meet.
#[derive(Debug)]
struct Seen {
    classifier: Arc<dyn Classifier>,
    /// Positions in the whole list.
    positions: Vec<u32>,
}

/// The lists of all interfaces so far.
#[derive(Debug)]
pub(super) struct ByInterface {
    list: Arc<List>,
    kind: Kind,
    /// By the positions of the rules that are seen.
    seen: Mutex<HashMap<Vec<u32>, Arc<Seen>>>,
}

impl ByInterface {
    pub(super) fn new(list: Arc<List>, kind: Kind) -> Self {
        Self { list, kind, seen: Mutex::default() }
    }

    /// Has the list of an interface ready.
    pub(super) fn expect(&self, interface: Option<&str>) {
        self.of(interface);
    }

    fn of(&self, interface: Option<&str>) -> Arc<Seen> {
        let positions = self.list.rules.positions_seen_by(interface);
        // While one is built, others wait that would build it, too.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = seen.get(&positions) {
            return seen.clone();
        }
        // What packets name must not make them many.
        if seen.len() >= MAX_LISTS {
            seen.clear();
        }
        let (rules, positions) = self.list.rules.seen_by(interface);
        let built = Arc::new(Seen { classifier: self.kind.build(&rules), positions: positions.clone() });
        seen.insert(positions, built.clone());
        built
    }
}

/// Finds rules by the interface of each packet.
pub(super) struct BySeen {
    lists: Arc<ByInterface>,
    /// The names that `ports` are of.
    names: Option<PortNames>,
    /// For each port its list, once it was asked for; for ports without a name, the one behind.
    ports: Vec<Option<Arc<Seen>>>,
    v4: Passing<MatchKey4>,
    v6: Passing<MatchKey6>,
    share: Share<MatchKey4>,
    share6: Share<MatchKey6>,
}

/// The packets of one port among those of a batch.
struct Share<K> {
    keys: Vec<K>,
    at: Vec<u32>,
    first: Vec<u32>,
    /// The places of the ports that packets came by, in the order in which they came first.
    places: Vec<usize>,
}

impl<K> Default for Share<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), at: Vec::new(), first: Vec::new(), places: Vec::new() }
    }
}

impl BySeen {
    pub(super) fn new(lists: Arc<ByInterface>) -> Self {
        Self {
            lists,
            names: None,
            ports: vec![None],
            v4: Passing::new(),
            v6: Passing::new(),
            share: Share::default(),
            share6: Share::default(),
        }
    }

    /// Takes note of the names of a batch's ports.
    fn learn(&mut self, names: Option<&PortNames>) {
        let is_same = match (&self.names, names) {
            (None, None) => true,
            (Some(own), Some(names)) => Arc::ptr_eq(own, names),
            _ => false,
        };
        if !is_same {
            self.names = names.cloned();
            self.ports.clear();
            self.ports.resize(names.map_or(0, |names| names.len()) + 1, None);
        }
    }
}

/// The place of a port's list.
fn place(ports: usize, port: u16) -> usize {
    usize::from(port).min(ports - 1)
}

/// Finds the rules of one family's packets, port by port.
fn find<K: Copy>(
    (keys, frames): (&Keys<K>, &[FrameRef]),
    passing: &mut Passing<K>,
    share: &mut Share<K>,
    ports: usize,
    mut list: impl FnMut(usize) -> Arc<Seen>,
    classify: impl Fn(&dyn Classifier, &[K], &mut [u32]),
) {
    let Share { keys: own, at, first, places } = share;
    places.clear();
    passing.each_frame(keys, |_, frame| {
        let place = place(ports, frames[frame as usize].port);
        if !places.contains(&place) {
            places.push(place);
        }
    });
    for &of in &*places {
        let seen = list(of);
        own.clear();
        at.clear();
        let all = passing.keys(keys);
        passing.each_frame(keys, |number, frame| {
            if place(ports, frames[frame as usize].port) == of {
                own.push(all[number]);
                at.push(number as u32);
            }
        });
        first.clear();
        first.resize(own.len(), NO_RULE);
        classify(&*seen.classifier, own, first);
        for (&at, &found) in at.iter().zip(&*first) {
            let position = seen.positions.get(found as usize);
            passing.first[at as usize] = position.copied().unwrap_or(NO_RULE);
        }
    }
}

impl Finder for BySeen {
    fn find(
        &mut self,
        verdicts: &mut [Verdict],
        (v4, v6): (&Keys<MatchKey4>, &Keys<MatchKey6>),
        frames: &[FrameRef],
        names: Option<&PortNames>,
        mut found: impl FnMut(&Passing<MatchKey4>, &Passing<MatchKey6>, &mut [Verdict]),
    ) {
        self.learn(names);
        let all = 0..verdicts.len();
        self.v4.gather(v4, verdicts, all.clone());
        self.v6.gather(v6, verdicts, all);
        let Self { lists, names, ports, share, share6, .. } = self;
        let count = ports.len();
        let mut list = |place: usize| {
            let name = names.as_ref().and_then(|names| names.get(place)?.as_deref());
            ports[place].get_or_insert_with(|| lists.of(name)).clone()
        };
        find((v4, frames), &mut self.v4, share, count, &mut list, |list, keys, first| {
            list.classify_v4(keys, first);
        });
        find((v6, frames), &mut self.v6, share6, count, &mut list, |list, keys, first| {
            list.classify_v6(keys, first);
        });
        found(&self.v4, &self.v6, verdicts);
    }
}
