//! What will run where, decided before the first packet.

use std::fmt;
use std::sync::Arc;

use packetloom_nf::flows::By;
use packetloom_nf::{Form, FunctionSpec};

use crate::Chain;
use crate::chain::{Device, Origin, PolicyAction, Run};
use crate::layout::Used;
use crate::offload::frames::MAX_ACLS;
use crate::offload::{acls, stateful, strings};
use crate::run;

/// Packets of a batch at most for each of several threads that judge those of their flows: they are in caches when they are looked at again.
const MAX_SHARE: usize = 1 << 13;

/// A chain with the decisions that running it needs.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) chain: Arc<Chain>,
    workers: usize,
    spread: By,
    offloaded: usize,
    searched: usize,
    stateful: usize,
}

impl Plan {
    /// Decides how `chain` is run.
    pub fn new(chain: Chain) -> Self {
        // The oracle is one loop over packets by definition.
        let is_oracle = chain.settings.run.device == Device::Oracle;
        let spread = chain.layout.spread(&chain.functions);
        let workers = if is_oracle || spread.is_none() { 1 } else { chain.settings.run.workers.get() };
        // Texts that functions keep beside the state of flows do not move from one worker to another.
        let stays = workers > 1 && keeps_aside(&chain);
        let stateful = match &chain.settings.run.device {
            Device::On(_) => stateful::offloadable(&chain.functions, &chain.layout),
            Device::Auto if !stays => stateful::offloadable(&chain.functions, &chain.layout),
            _ => 0,
        };
        let stays = stays && chain.settings.run.device == Device::Auto;
        let is_placed = stateful == 0 && !stays && chain.settings.run.device.is_placed();
        let searched = if is_placed { searched(&chain) } else { 0 };
        let first = chain.functions.iter().take_while(|function| is_placed && function.is_offloadable());
        let offloaded = if searched > 0 { 0 } else { first.take(MAX_ACLS).count() };
        let chain = Arc::new(chain);
        Self { chain, workers, spread: spread.unwrap_or(By::FiveTuple), offloaded, searched, stateful }
    }

    /// The chain.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The same, before anything runs it.
    ///
    /// # Errors
    ///
    /// Something does.
    pub(crate) fn chain_mut(&mut self) -> Result<&mut Chain, String> {
        Arc::get_mut(&mut self.chain).ok_or_else(|| "the chain is in use".into())
    }

    /// Functions that a device takes, from the first on: those that it has kernels for, as one kernel.
    pub fn offloaded(&self) -> usize {
        self.offloaded
    }

    /// Functions of which the last one searches payloads, which a device does; all else of them is done here, by as many threads as there are. They
    /// are the first ones of the chain, and keep no state.
    pub fn searched(&self) -> usize {
        self.searched
    }

    /// Functions that a device takes with their state, from the first on, with access lists before and among them; these alone are taken
    /// [otherwise](Plan::offloaded).
    pub fn stateful(&self) -> usize {
        self.stateful
    }

    /// Functions that a device takes, from the first on, in one way or the other.
    pub fn on_device(&self) -> usize {
        self.offloaded + self.searched + self.stateful
    }

    /// Whether a device takes functions that keep no state.
    pub(crate) fn is_stateless_there(&self) -> bool {
        self.offloaded + self.searched > 0
    }

    /// Whether rules of functions that a device takes may be there: what comes before a search is done here.
    pub(crate) fn has_rules_there(&self) -> bool {
        self.searched == 0
    }

    /// Worker threads, where no device is used; a device is fed in another way. With one, packets are handled by the thread that reads them; with
    /// more they are spread by a hash of their bidirectional flow, so that all packets of a flow meet the same worker, in order.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// What packets have in common that meet the same worker.
    pub fn spread(&self) -> By {
        self.spread
    }

    /// Whether it is the same as another one, with the same rules.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chain, &other.chain)
    }

    /// Packets of a batch for a device at most, where that keeps no state.
    pub(crate) fn room(&self) -> usize {
        let room = |feeders| if self.searched > 0 { strings::room(feeders) } else { acls::room(feeders) };
        let feeders = self.feeders();
        match self.spread_here() {
            None => room(feeders),
            Some(_) => (MAX_SHARE * feeders).clamp(room(1), room(feeders)),
        }
    }

    /// Threads that share what is done here for a device: one where rules change, or where functions here keep state for flows and packets are not
    /// [spread](Self::spread_here).
    pub(crate) fn feeders(&self) -> usize {
        let shares = !self.keeps_state_here() || self.spread_here().is_some();
        if shares && self.rules_stay() { self.chain.settings.run.workers.get() } else { 1 }
    }

    /// What packets have in common that are judged by the same one of the threads that feed a device, where functions behind the device's keep state for
    /// flows; none where they keep none, or one thread judges all packets.
    pub(crate) fn spread_here(&self) -> Option<By> {
        let is_spread = self.workers > 1
            && self.stateful == 0
            && self.keeps_state_here()
            && self.shared().next().is_none()
            && self.rules_stay();
        is_spread.then_some(self.spread)
    }

    /// What flows that cores have are spread by, in a run with a device; none where one worker has all of them.
    pub(crate) fn spread_of_flows(&self) -> Option<By> {
        let is_on_cores = self.chain.settings.run.device == Device::Auto && self.on_device() == 0;
        if is_on_cores { (self.workers > 1).then_some(self.spread) } else { self.spread_here() }
    }

    /// Whether a run with a device can go on with this plan after another one: what functions keep of flows beside their entries does not move from
    /// one worker to another.
    pub(crate) fn may_take_over(&self, before: &Self) -> Result<(), String> {
        let stays = keeps_aside(&self.chain) && keeps_aside(&before.chain);
        if !stays || self.spread_of_flows() == before.spread_of_flows() {
            return Ok(());
        }
        let [now, was] = [self, before].map(|plan| match plan.spread_of_flows() {
            None => "are judged by one worker".to_owned(),
            Some(by) => format!("are spread among workers by {}", name_of(by)),
        });
        Err(format!(
            "its packets {now}; expected packets that {was}, since what functions keep of flows beside their entries stays with its worker"
        ))
    }

    /// Whether functions behind the device's keep state for flows.
    fn keeps_state_here(&self) -> bool {
        let mut here = self.chain.functions[self.on_device()..].iter();
        here.any(|function| matches!(function.form(), Form::PerFlow(_)))
    }

    /// Whether no rules change on the way.
    fn rules_stay(&self) -> bool {
        self.chain.functions.iter().all(|function| function.changes_at().is_empty())
    }

    /// With [`auto`](Device::Auto), whether a run as a whole moves between a device and all cores: where flows are on the device, where the cores have
    /// more threads for it than feed the device, so that times of single batches say nothing, and where each of several threads judges the packets of its
    /// flows, which takes less time without a device between them. Otherwise it is chosen for each batch.
    pub fn moves(&self) -> bool {
        let is_apart = self.feeders() < self.workers || self.spread_here().is_some();
        let moves = self.stateful > 0 || self.on_device() > 0 && is_apart;
        self.chain.settings.run.device == Device::Auto && moves
    }

    /// What packets have in common that meet the same one of several devices; none where devices need no flows, or no way to spread packets suits
    /// all flow definitions there: then one device has the functions.
    pub(crate) fn device_spread(&self) -> Option<By> {
        let count = stateful::definitions(&self.chain.layout, self.stateful);
        let mut definitions = self.chain.layout.definitions[..count].iter().map(|used| used.definition.by);
        let by = definitions.next()?;
        definitions.all(|other| other == by).then_some(by)
    }

    /// Whether several devices share its packets, if there are several.
    pub(crate) fn suits_several(&self) -> bool {
        self.stateful == 0 || self.device_spread().is_some()
    }

    /// The flow definitions whose tables workers share, since no worker has all packets of such a flow.
    pub fn shared(&self) -> impl Iterator<Item = &Used> {
        let used = self.chain.layout.definitions.iter();
        used.filter(|used| self.workers > 1 && used.is_shared(self.spread))
    }
}

/// Functions up to the first one that searches payloads, if all of them keep no state.
fn searched(chain: &Chain) -> usize {
    let is_standalone = |function: &Arc<dyn FunctionSpec>| matches!(function.form(), Form::Standalone(_));
    let first = chain.functions.iter().take_while(|&function| is_standalone(function));
    let searched = first.enumerate().find(|(_, function)| function.text_search().is_some());
    searched.map_or(0, |(index, _)| index + 1)
}

/// Whether functions keep more of flows than words in their entries.
fn keeps_aside(chain: &Chain) -> bool {
    let keeps_aside = |function: &Arc<dyn FunctionSpec>| match function.form() {
        Form::PerFlow(function) => function.keeps_aside(),
        Form::Standalone(_) => false,
    };
    chain.functions.iter().any(keeps_aside)
}

/// How people call what packets are spread by.
fn name_of(by: By) -> &'static str {
    if by == By::FiveTuple { "flow" } else { by.name() }
}

impl Plan {
    /// Why the first function that runs on cores does so, where there may be a device, and there is more to say than that it has no kernel for
    /// the function.
    fn why_on_cores(&self) -> Option<String> {
        let index = self.on_device();
        let function = self.chain.functions.get(index)?;
        let device = &self.chain.settings.run.device;
        if *device == Device::Auto && self.workers > 1 && keeps_aside(&self.chain) {
            return Some("what a function keeps of flows beside their entries stays with its worker".into());
        }
        if !device.is_placed() || *device == Device::Auto && self.stateful == 0 {
            return None;
        }
        match stateful::why_on_cores(&self.chain.functions, index) {
            Some(why) => Some(why.to_owned()),
            None if index + 1 < self.chain.functions.len()
                && !function.is_offloadable()
                && *device != Device::Auto =>
            {
                Some(format!("{} is for cores, and so is what comes behind it", function.name()))
            }
            None => None,
        }
    }

    /// Why one worker feeds a device, where there are others.
    fn why_one_feeds(&self) -> Option<&'static str> {
        if self.chain.settings.run.workers.get() == 1 {
            return None;
        }
        Some(match () {
            () if !self.rules_stay() => "rules change on the way",
            () if self.stateful > 0 => "functions keep state both there and on cores",
            () => "no way to spread packets suits all flow definitions on cores",
        })
    }

    /// That a device takes nothing.
    fn nothing_there(&self) -> String {
        let why = self.why_on_cores().map_or_else(String::new, |why| format!(", since {why}"));
        let device = &self.chain.settings.run.device;
        format!("{device} takes none of these functions{why}: all on this machine's cores")
    }

    /// What the user should know before it runs: that a device was named, and nothing runs there.
    pub fn warning(&self) -> Option<String> {
        let is_named = matches!(self.chain.settings.run.device, Device::On(_));
        (is_named && self.on_device() == 0).then(|| self.nothing_there())
    }

    /// Which functions run where.
    fn placement(&self) -> String {
        let run = &self.chain.settings.run;
        let Run { device, max_latency, batch, .. } = run;
        let functions = &self.chain.functions;
        let numbers = |from: usize, to: usize| match to - from {
            1 => format!("function {to}"),
            _ => format!("functions {} to {to}", from + 1),
        };
        if !device.is_placed() {
            return format!("{device}, batches of {batch}");
        }
        let why = self.why_on_cores().map_or_else(String::new, |why| format!(", since {why}"));
        if self.on_device() == 0 {
            return format!("{}, batches of {batch}", self.nothing_there());
        }
        let there = self.on_device();
        let (before, how) = match self.stateful {
            0 if self.searched > 0 => (there - 1, "as far as it searches payloads"),
            0 => (0, "as one kernel, from frames to verdicts"),
            1 => (0, "with its state"),
            _ => (0, "with their state"),
        };
        let mut text = format!("{device}: {} {how}", numbers(before, there));
        if let Device::On(ids) = device
            && let [first, _, ..] = &ids[..]
        {
            text += &match (self.stateful, self.device_spread()) {
                (0, _) => "; each batch goes to one of them".to_owned(),
                (_, Some(by)) => format!("; packets are spread among them by {}", name_of(by)),
                (_, None) => {
                    format!("; all on {first}, since no way to spread packets suits all flow definitions")
                }
            };
        }
        let on_cores = "on this machine's cores";
        if before > 0 {
            text += &format!("; {} {on_cores}", numbers(0, before));
        }
        if functions.len() > there {
            text += &format!("; {} {on_cores}{why}", numbers(there, functions.len()));
        }
        text += "; batches follow the load";
        if let Some(span) = max_latency {
            text += &format!(", at most {span} old");
        }
        if *device == Device::Auto {
            text += "; cores until the GPU is open, if there is no GPU, and where cores are better";
            text += if self.moves() { "; flows move between both" } else { "" };
        }
        text
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.chain.settings;
        let path = |path: &Option<std::path::PathBuf>, none: &str| {
            path.as_ref().map_or_else(|| none.into(), |path| path.display().to_string())
        };
        match &settings.source {
            Some(source) => writeln!(f, "source    {source}")?,
            None => writeln!(f, "source    to be given with -r or -i")?,
        }
        let Run { non_ip, unknown_framing, malformed, .. } = &settings.run;
        let unknown = unknown_framing.unwrap_or(PolicyAction::Pass);
        let (non_ip, unknown, malformed) = (non_ip.name(), unknown.name(), malformed.name());
        writeln!(f, "policy    non-IP: {non_ip}, unknown framing: {unknown}, malformed: {malformed}")?;
        for (index, function) in self.chain.functions.iter().enumerate() {
            for (line, text) in function.describe().iter().enumerate() {
                let head =
                    if line == 0 { format!("{} {}", index + 1, function.name()) } else { String::new() };
                writeln!(f, "{head:<9} {text}")?;
            }
        }
        // What a function has to itself it describes.
        for used in self.chain.layout.definitions.iter().filter(|used| !used.is_own) {
            writeln!(f, "flows     {used}")?;
        }
        let none = match &settings.source {
            Some(Origin::Interfaces(interfaces)) if interfaces.inline.is_some() => {
                "none: packets that pass leave by the other interface of their pair"
            }
            _ => "none: packets that pass are counted",
        };
        writeln!(f, "sink      {}", path(&settings.sink, none))?;
        if let Some(extracted) = &settings.extracted {
            writeln!(f, "extract   {}", extracted.display())?;
        }
        if let Some(dropped) = &settings.dropped {
            writeln!(f, "dropped   {}", dropped.display())?;
        }
        if let Some((matched, which)) = &settings.matched {
            writeln!(f, "matched   {}: packets that {which} matched", matched.display())?;
        }
        writeln!(f, "device    {}", self.placement())?;
        let per_flow = !self.chain.layout.definitions.is_empty();
        let asked = settings.run.workers.get();
        let feeds = self.on_device() > 0 && !self.moves();
        let spread = match (self.workers, per_flow) {
            _ if feeds && self.feeders() > 1 => {
                let rest = match self.spread_here() {
                    None => ": results as of a loop over packets".to_owned(),
                    Some(by) => format!(
                        ", packets spread by {} behind it: each flow's state is exact, order in files is kept; max_flows is divided among the \
                         workers",
                        name_of(by)
                    ),
                };
                format!("{} workers feed the device and take what comes back{rest}", self.feeders())
            }
            _ if feeds => format!(
                "1 worker feeds the device and takes what comes back{}: results as of a loop over packets",
                self.why_one_feeds().map_or_else(String::new, |why| format!(", since {why}"))
            ),
            (1, _) if asked > 1 && settings.run.device != Device::Oracle => {
                "1 worker, since no way to spread packets suits tables that workers cannot share: results as of a loop over packets".into()
            }
            (1, _) => "1 worker: results as of a loop over packets".into(),
            (workers, true) => {
                let mut text = format!(
                    "{workers} workers, packets spread by {}: each flow's state is exact, order in files is kept; max_flows is divided \
                     among the workers",
                    name_of(self.spread)
                );
                for used in self.shared() {
                    let (name, by) = (&used.name, used.definition.by.name());
                    text += &format!(
                        "; {name} (by {by}) is shared by them: totals are exact, packets that came less than {} ms apart may take effect \
                         in another order",
                        run::APART / 1_000_000
                    );
                }
                text
            }
            (_, false) => format!(
                "{} workers, packets spread by flow: no function keeps state, results are exact, order in files is \
                 kept",
                self.workers
            ),
        };
        write!(f, "workers   {spread}")?;
        if self.moves() {
            match self.spread_here() {
                Some(_) => write!(f, "; all of them feed the GPU")?,
                None => write!(
                    f,
                    "; on the GPU {} to feed it, results as of a loop over packets",
                    self.feeders()
                )?,
            }
        }
        Ok(())
    }
}
