//! Lists whose rules may be for packets of some interfaces or connection states only.
//!
//! The rules that packets of one class meet (those that came by one interface, leave by one, and have one state) are a list of their own,
//! with a classifier of its own, whose positions are turned into those of the whole list. Classes with the same rules share it. It is
//! built when it is first asked for, or before the run where the names are known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use packetloom_classify::{Classifier, ConnectionState, Kind, NO_RULE, PacketContext};
use packetloom_packet::batch::{Keys, PortNames};
use packetloom_packet::{FrameRef, Key, MatchKey4, MatchKey6, Verdict};

use super::List;
use super::cpu::{Finder, Passing};

/// Lists that are kept hold so many rules at most, or so many times the rules of the whole list, whichever is more; and are so many.
const MAX_RULES: usize = 1 << 22;
const MAX_COPIES: usize = 32;
const MAX_LISTS: usize = 1024;

/// By which ports the packets of a batch come and leave.
#[derive(Clone, Copy)]
pub(super) struct Ports<'a> {
    pub(super) frames: &'a [FrameRef],
    /// The port that each leaves by; empty where they leave by none.
    pub(super) egress: &'a [u16],
    pub(super) names: Option<&'a PortNames>,
}

/// What packets of a class meet.
#[derive(Debug)]
struct Seen {
    classifier: Arc<dyn Classifier>,
    /// Positions in the whole list.
    positions: Vec<u32>,
}

impl Seen {
    /// The position in the whole list of what was found in this one.
    #[inline]
    fn position(&self, found: u32) -> u32 {
        self.positions.get(found as usize).copied().unwrap_or(NO_RULE)
    }
}

/// How much lists that are kept hold.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    lists: usize,
    rules: usize,
}

impl Size {
    fn add(&mut self, seen: &Seen) {
        self.lists += 1;
        self.rules += seen.positions.len();
    }

    /// Whether there may be no more of them.
    fn is_full(self, whole: usize) -> bool {
        self.lists >= MAX_LISTS || self.rules >= whole.saturating_mul(MAX_COPIES).max(MAX_RULES)
    }
}

/// The lists of all classes so far.
#[derive(Debug)]
pub(super) struct Classes {
    list: Arc<List>,
    kind: Kind,
    names_exits: bool,
    names_states: bool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the positions of the rules that are seen.
    seen: HashMap<Vec<u32>, Arc<Seen>>,
    size: Size,
}

impl Classes {
    pub(super) fn new(list: Arc<List>, kind: Kind) -> Self {
        let (names_exits, names_states) = (list.rules.names_exits(), list.rules.names_states());
        Self { list, kind, names_exits, names_states, kept: Mutex::default() }
    }

    /// Has the lists ready of packets that come by these ports; of each two, packets may leave by the other one.
    pub(super) fn expect(&self, names: &PortNames) {
        let states = if self.names_states { &ConnectionState::ALL[..] } else { &[ConnectionState::New] };
        for (port, name) in names.iter().enumerate() {
            let other = names.get(port ^ 1).filter(|_| self.names_exits).and_then(Option::as_deref);
            let exits = [None, other];
            let exits = if other.is_some() { &exits[..] } else { &exits[..1] };
            for (&out, &state) in exits.iter().flat_map(|out| states.iter().map(move |state| (out, state))) {
                if self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_full(&self.list) {
                    return;
                }
                self.of(&PacketContext { interface: name.as_deref(), out, state });
            }
        }
    }

    fn of(&self, context: &PacketContext<'_>) -> Arc<Seen> {
        let positions = self.list.rules.positions_seen_in(context);
        // While one is built, others wait that would build it, too.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = kept.seen.get(&positions) {
            return seen.clone();
        }
        // What packets name must not make them many.
        if kept.is_full(&self.list) {
            *kept = Kept::default();
        }
        let (rules, positions) = self.list.rules.seen_in(context);
        let built = Arc::new(Seen { classifier: self.kind.build(&rules), positions: positions.clone() });
        kept.size.add(&built);
        kept.seen.insert(positions, built.clone());
        built
    }
}

impl Kept {
    fn is_full(&self, list: &List) -> bool {
        self.size.is_full(list.rules.rules.len())
    }
}

/// The lists that a worker has met, by the numbers of classes.
pub(super) struct Lists {
    classes: Arc<Classes>,
    /// The names that classes are of.
    names: Option<PortNames>,
    /// Ports with a name of their own, and one for all others.
    entries: usize,
    /// The same for ports by which packets leave; 1 where that makes no difference.
    exits: usize,
    /// For each class one more than the place of its list, once it was asked for.
    numbers: Vec<u16>,
    lists: Vec<Arc<Seen>>,
    size: Size,
}

impl Lists {
    fn new(classes: Arc<Classes>) -> Self {
        Self {
            classes,
            names: None,
            entries: 0,
            exits: 0,
            numbers: Vec::new(),
            lists: Vec::new(),
            size: Size::default(),
        }
    }

    /// Takes note of a batch's ports.
    fn begin(&mut self, ports: &Ports<'_>) {
        let is_same = match (&self.names, ports.names) {
            (None, None) => true,
            (Some(own), Some(names)) => Arc::ptr_eq(own, names),
            _ => false,
        };
        let entries = ports.names.map_or(0, |names| names.len()) + 1;
        let exits = if self.classes.names_exits && !ports.egress.is_empty() { entries } else { 1 };
        let is_full = self.size.is_full(self.classes.list.rules.rules.len());
        if !is_same || is_full || (entries, exits) != (self.entries, self.exits) {
            self.names = ports.names.cloned();
            (self.entries, self.exits) = (entries, exits);
            self.numbers.clear();
            self.numbers.resize(entries * exits * ConnectionState::COUNT, 0);
            self.lists.clear();
            self.size = Size::default();
        }
    }

    /// The first of the classes of a frame, that of the first state.
    #[inline]
    fn base(&self, ports: &Ports<'_>, frame: u32) -> u32 {
        let place = |port: u16| usize::from(port).min(self.entries - 1);
        let entry = place(ports.frames[frame as usize].port);
        let exit = if self.exits == 1 { 0 } else { place(ports.egress[frame as usize]) };
        ((entry * self.exits + exit) * ConnectionState::COUNT) as u32
    }

    /// The place of a class's list.
    #[inline]
    fn number(&mut self, base: u32, state: ConnectionState) -> u16 {
        let class = base as usize + state as usize;
        match self.numbers[class] {
            0 => self.meet(class),
            number => number - 1,
        }
    }

    #[cold]
    fn meet(&mut self, class: usize) -> u16 {
        let Self { classes, names, exits, numbers, lists, size, .. } = self;
        let (ports, state) = (class / ConnectionState::COUNT, class % ConnectionState::COUNT);
        let name = |port: usize| names.as_ref().and_then(|names| names.get(port)?.as_deref());
        let out = if *exits == 1 { None } else { name(ports % *exits) };
        let context =
            PacketContext { interface: name(ports / *exits), out, state: ConnectionState::ALL[state] };
        let seen = classes.of(&context);
        let known = lists.iter().position(|other| Arc::ptr_eq(other, &seen));
        let number = known.unwrap_or_else(|| {
            size.add(&seen);
            lists.push(seen);
            lists.len() - 1
        });
        numbers[class] = number as u16 + 1;
        number as u16
    }
}

/// The packets of a batch of one family, by their lists.
struct Sorted<K> {
    /// The list of each packet.
    numbers: Vec<u16>,
    /// Where the packets of each list begin, and of that behind the last one.
    starts: Vec<u32>,
    keys: Vec<K>,
    /// Their numbers among the packets that pass.
    at: Vec<u32>,
    first: Vec<u32>,
}

impl<K> Default for Sorted<K> {
    fn default() -> Self {
        Self { numbers: Vec::new(), starts: Vec::new(), keys: Vec::new(), at: Vec::new(), first: Vec::new() }
    }
}

/// The packets of one family whose rules are looked for.
struct Family<K> {
    passing: Passing<K>,
    sorted: Sorted<K>,
}

impl<K: Copy + Default> Family<K> {
    fn new() -> Self {
        Self { passing: Passing::new(), sorted: Sorted::default() }
    }

    /// Finds the rules of these packets, whose lists `number` tells by their places among the keys and their frames.
    fn find(
        &mut self,
        (keys, verdicts): (&Keys<K>, &[Verdict]),
        lists: &mut Lists,
        mut number: impl FnMut(&mut Lists, usize, u32) -> u16,
        classify: impl Fn(&dyn Classifier, &[K], &mut [u32]),
    ) {
        let Self { passing, sorted } = self;
        let Sorted { numbers, starts, keys: own, at, first } = sorted;
        passing.gather(keys, verdicts, 0..verdicts.len());
        numbers.clear();
        passing.each_place(keys, |place, frame| numbers.push(number(lists, place, frame)));
        let Some(&only) = numbers.first() else { return };
        if numbers.iter().all(|&number| number == only) {
            let seen = &lists.lists[usize::from(only)];
            let (keys, first) = passing.classify(keys);
            classify(&*seen.classifier, keys, first);
            first.iter_mut().for_each(|first| *first = seen.position(*first));
            return;
        }
        starts.clear();
        starts.resize(lists.lists.len() + 1, 0);
        numbers.iter().for_each(|&number| starts[usize::from(number) + 1] += 1);
        for number in 1..starts.len() {
            starts[number] += starts[number - 1];
        }
        own.resize(numbers.len(), K::default());
        at.resize(numbers.len(), 0);
        first.resize(numbers.len(), NO_RULE);
        let all = passing.keys(keys);
        for (packet, &number) in numbers.iter().enumerate() {
            // Each list's beginning moves to its end.
            let place = starts[usize::from(number)] as usize;
            starts[usize::from(number)] += 1;
            own[place] = all[packet];
            at[place] = packet as u32;
        }
        let mut from = 0;
        for (seen, &to) in lists.lists.iter().zip(&*starts) {
            let to = to as usize;
            if from < to {
                classify(&*seen.classifier, &own[from..to], &mut first[from..to]);
                for (&at, &found) in at[from..to].iter().zip(&first[from..to]) {
                    passing.first[at as usize] = seen.position(found);
                }
            }
            from = to;
        }
    }
}

/// What is looked up of each packet of a batch, by its place among the keys of its family.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// The state that it is taken to have.
    pub(super) states: Vec<ConnectionState>,
    /// The first of its classes.
    bases: Vec<u32>,
    /// The first rule that matches it if it has that state; of packets that still pass.
    first: Vec<u32>,
}

impl Guesses {
    /// So many packets, taken to be untracked.
    pub(super) fn begin(&mut self, packets: usize) {
        self.states.clear();
        self.states.resize(packets, ConnectionState::Untracked);
        self.bases.resize(packets, 0);
        self.first.resize(packets, NO_RULE);
    }
}

/// Finds rules by the class of each packet.
pub(super) struct ByClass {
    lists: Lists,
    v4: Family<MatchKey4>,
    v6: Family<MatchKey6>,
}

impl ByClass {
    pub(super) fn new(classes: Arc<Classes>) -> Self {
        Self { lists: Lists::new(classes), v4: Family::new(), v6: Family::new() }
    }

    /// Finds the first rule of each packet that passes, in the state that it is taken to have.
    pub(super) fn find_guessed(
        &mut self,
        verdicts: &[Verdict],
        (v4, v6): (&Keys<MatchKey4>, &Keys<MatchKey6>),
        ports: &Ports<'_>,
        (guesses4, guesses6): (&mut Guesses, &mut Guesses),
    ) {
        fn guessed<'a>(
            ports: &'a Ports<'_>,
            guesses: &'a mut Guesses,
        ) -> impl FnMut(&mut Lists, usize, u32) -> u16 + 'a {
            |lists, place, frame| {
                let base = lists.base(ports, frame);
                guesses.bases[place] = base;
                lists.number(base, guesses.states[place])
            }
        }
        let Self { lists, v4: of_v4, v6: of_v6 } = self;
        lists.begin(ports);
        of_v4.find((v4, verdicts), lists, guessed(ports, guesses4), |list, keys, first| {
            list.classify_v4(keys, first);
        });
        of_v6.find((v6, verdicts), lists, guessed(ports, guesses6), |list, keys, first| {
            list.classify_v6(keys, first);
        });
        of_v4.passing.scatter(&mut guesses4.first);
        of_v6.passing.scatter(&mut guesses6.first);
    }

    /// The first rule of a packet in the state that it has.
    #[inline]
    pub(super) fn first(
        &mut self,
        guesses: &Guesses,
        place: usize,
        state: ConnectionState,
        key: impl FnOnce() -> Key,
    ) -> u32 {
        if guesses.states[place] == state {
            return guesses.first[place];
        }
        self.first_of(guesses, place, state, key)
    }

    /// Where another state was taken for it.
    #[cold]
    fn first_of(
        &mut self,
        guesses: &Guesses,
        place: usize,
        state: ConnectionState,
        key: impl FnOnce() -> Key,
    ) -> u32 {
        let base = guesses.bases[place];
        let number = self.lists.number(base, state);
        if self.lists.number(base, guesses.states[place]) == number {
            return guesses.first[place];
        }
        let seen = &self.lists.lists[usize::from(number)];
        let mut first = [NO_RULE];
        match key() {
            Key::V4(key) => seen.classifier.classify_v4(&[key], &mut first),
            Key::V6(key) => seen.classifier.classify_v6(&[key], &mut first),
        }
        seen.position(first[0])
    }
}

impl Finder for ByClass {
    fn find(
        &mut self,
        verdicts: &mut [Verdict],
        (v4, v6): (&Keys<MatchKey4>, &Keys<MatchKey6>),
        ports: &Ports<'_>,
        mut found: impl FnMut(&Passing<MatchKey4>, &Passing<MatchKey6>, &mut [Verdict]),
    ) {
        let Self { lists, v4: of_v4, v6: of_v6 } = self;
        lists.begin(ports);
        // States make no difference here.
        let number = |lists: &mut Lists, _, frame| {
            let base = lists.base(ports, frame);
            lists.number(base, ConnectionState::New)
        };
        of_v4.find((v4, verdicts), lists, number, |list, keys, first| list.classify_v4(keys, first));
        of_v6.find((v6, verdicts), lists, number, |list, keys, first| list.classify_v6(keys, first));
        found(&of_v4.passing, &of_v6.passing, verdicts);
    }
}
