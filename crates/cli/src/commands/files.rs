//! Keeps outputs from replacing what the same command reads, and each other.

use std::path::{Path, PathBuf};

use packetloom_engine::Plan;
use packetloom_io::input::is_standard;
use packetloom_io::output::Identity;

use crate::failure::Failure;

/// The files that a command reads and writes.
#[derive(Default)]
pub(crate) struct Files {
    inputs: Vec<Named>,
    outputs: Vec<Named>,
}

/// A file, and what names it.
#[derive(Clone)]
struct Named {
    /// The option, or the place in a chain file.
    what: String,
    path: PathBuf,
    origin: Origin,
}

/// Who named a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Command,
    /// The command line, for the state that a run begins with or ends with: one file may be both.
    State,
    Chain,
}

/// Two names for one file.
pub(crate) struct Clash {
    message: String,
    /// Whether a chain file has one of them.
    by_chain: bool,
}

impl Files {
    /// Adds a file that an option of the command line reads.
    pub(crate) fn input(mut self, option: &str, path: Option<&Path>) -> Self {
        add(&mut self.inputs, option, path, Origin::Command);
        self
    }

    /// Adds captures that are read, which an option of the command line names, or the chain file's source.
    pub(crate) fn captures(mut self, option: Option<&str>, paths: &[PathBuf]) -> Self {
        let (what, origin) = option.map_or(("source", Origin::Chain), |option| (option, Origin::Command));
        for path in paths {
            add(&mut self.inputs, what, Some(path), origin);
        }
        self
    }

    /// Adds a file that an option of the command line writes.
    pub(crate) fn output(mut self, option: &str, path: Option<&Path>) -> Self {
        add(&mut self.outputs, option, path, Origin::Command);
        self
    }

    /// Adds the state that a run begins with and the state that it saves, which may be one file.
    pub(crate) fn state(mut self, restore: Option<&Path>, save: Option<&Path>) -> Self {
        add(&mut self.inputs, "--restore-state", restore, Origin::State);
        add(&mut self.outputs, "--save-state", save, Origin::State);
        self
    }

    /// Adds what a plan's functions read beside packets.
    pub(crate) fn functions_inputs(mut self, plan: &Plan) -> Self {
        for function in plan.chain().functions() {
            for path in function.input_paths() {
                add(&mut self.inputs, &format!("{}'s rules", function.name()), Some(path), Origin::Chain);
            }
        }
        self
    }

    /// Adds what a plan's functions write.
    fn functions_outputs(mut self, plan: &Plan) -> Self {
        for function in plan.chain().functions() {
            add(
                &mut self.outputs,
                &format!("{}'s output", function.name()),
                function.records_path(),
                Origin::Chain,
            );
            let kept = format!("compiled of {}", function.name());
            add(&mut self.outputs, &kept, function.kept_path(), Origin::Chain);
            for export in function.exports() {
                let file = export.to.file().map(|path| &**path);
                add(&mut self.outputs, &format!("an export of {}", function.name()), file, Origin::Chain);
            }
        }
        self
    }

    /// Adds all that a plan's chain file names but its source, and but for what an option replaces: given are those for sink, dropped, matched,
    /// summary, control, stats_output.
    pub(crate) fn plan(
        mut self,
        plan: &Plan,
        [sink, dropped, matched, summary, control, statistics]: [bool; 6],
    ) -> Self {
        let settings = &plan.chain().settings;
        let own = |path: &Option<PathBuf>, is_replaced: bool| path.clone().filter(|_| !is_replaced);
        add(&mut self.outputs, "sink", own(&settings.sink, sink).as_deref(), Origin::Chain);
        add(&mut self.outputs, "dropped", own(&settings.dropped, dropped).as_deref(), Origin::Chain);
        let named = settings.matched.as_ref().map(|(path, _)| path.clone());
        add(&mut self.outputs, "matched", own(&named, matched).as_deref(), Origin::Chain);
        add(&mut self.outputs, "summary", own(&settings.run.summary, summary).as_deref(), Origin::Chain);
        add(&mut self.outputs, "control", own(&settings.run.control, control).as_deref(), Origin::Chain);
        add(
            &mut self.outputs,
            "stats_output",
            own(&settings.run.stats_output, statistics).as_deref(),
            Origin::Chain,
        );
        self.functions_inputs(plan).functions_outputs(plan)
    }

    /// The same outputs, and no inputs: for what is read later.
    pub(crate) fn outputs_alone(&self) -> Self {
        Self { inputs: Vec::new(), outputs: self.outputs.clone() }
    }

    /// Refuses outputs that would replace an input, or another output. Devices and pipes take any number.
    ///
    /// # Errors
    ///
    /// The first such pair.
    pub(crate) fn check(&self) -> Result<(), Clash> {
        let inputs: Vec<_> =
            self.inputs.iter().map(|named| (named, Identity::of_input(&named.path))).collect();
        let outputs: Vec<_> =
            self.outputs.iter().map(|named| (named, Identity::of_output(&named.path))).collect();
        for (number, (output, identity)) in outputs.iter().enumerate() {
            // What has no identity is not replaced.
            let Some(identity) = identity else { continue };
            let is_same = |(_, other): &&(&Named, Option<Identity>)| other.as_ref() == Some(identity);
            if let Some((other, _)) = outputs[..number].iter().find(is_same) {
                return Err(Clash::new(
                    format!(
                        "more than one output to {}: {} and {}; expected a file for each",
                        output.shown("standard output"),
                        other.named("standard output"),
                        output.named("standard output")
                    ),
                    [other, output],
                ));
            }
            let is_state = |named: &Named| named.origin == Origin::State && output.origin == Origin::State;
            let mut same = inputs.iter().filter(is_same).filter(|(input, _)| !is_state(input));
            if let Some((input, _)) = same.next() {
                return Err(Clash::new(
                    format!(
                        "{} is the same file as {}, which would be lost; expected another file to write to",
                        output.named("standard output"),
                        input.named("standard input")
                    ),
                    [input, output],
                ));
            }
        }
        Ok(())
    }
}

fn add(to: &mut Vec<Named>, what: &str, path: Option<&Path>, origin: Origin) {
    to.extend(path.map(|path| Named { what: what.into(), path: path.into(), origin }));
}

impl Named {
    /// The file's name, or that of what `-` stands for.
    fn shown(&self, standard: &str) -> String {
        if is_standard(&self.path) { standard.into() } else { self.path.display().to_string() }
    }

    /// What names it, and its name.
    fn named(&self, standard: &str) -> String {
        format!("{} {}", self.what, self.shown(standard))
    }
}

impl Clash {
    fn new(message: String, pair: [&Named; 2]) -> Self {
        Self { message, by_chain: pair.iter().any(|named| named.origin == Origin::Chain) }
    }

    /// The message alone.
    pub(crate) fn message(self) -> String {
        self.message
    }

    /// Wrong usage, or a bad chain file where that names one of the two.
    pub(crate) fn in_chain(self, chain: &Path) -> Failure {
        match self.by_chain {
            true => Failure::Config(format!("{}: {}", chain.display(), self.message)),
            false => Failure::Usage(self.message),
        }
    }
}

impl From<Clash> for Failure {
    fn from(clash: Clash) -> Self {
        Self::Usage(clash.message)
    }
}
