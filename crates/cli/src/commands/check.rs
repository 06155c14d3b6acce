//! `packetloom check`.

use packetloom_engine::chain::Origin;
use packetloom_engine::{Chain, ConfigError, Plan};
use packetloom_io::capture::Selection;
use packetloom_nf::summary;
use schemars::JsonSchema;
use serde::Serialize;

use super::files::Files;
use super::{pretty, stdout, tell_of_left_out, warn, write_text};
use crate::Done;
use crate::args::CheckArgs;
use crate::failure::Failure;

/// What `packetloom check --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "What packetloom check finds of a chain file")]
pub(crate) struct Checked {
    /// The chain file.
    chain: String,
    /// Whether it can be run.
    ok: bool,
    /// What is wrong with it, in order of lines.
    mistakes: Vec<Mistake>,
    /// What the user should know before it runs.
    warnings: Vec<String>,
    /// The captures that its source stands for, in the order of their names in it.
    captures: Vec<String>,
    /// Files of folders that do not begin like captures.
    left_out: Vec<String>,
    /// What it will do, a line for people each.
    plan: Vec<String>,
}

/// Something that is wrong.
#[derive(Serialize, JsonSchema)]
struct Mistake {
    /// The file.
    file: String,
    /// The line.
    line: usize,
    /// What is wrong, and what was expected.
    message: String,
}

pub(crate) fn run(args: &CheckArgs) -> Done {
    match check(args) {
        Err(error) if args.json => {
            let (mistakes, failure) = match error {
                Bad::Chain(error) => (mistakes(&error), error.into()),
                Bad::Other(failure) => (Vec::new(), failure),
            };
            if !mistakes.is_empty() {
                let chain = args.chain.display().to_string();
                let (warnings, captures, left_out, plan) = Default::default();
                let checked = Checked { chain, ok: false, mistakes, warnings, captures, left_out, plan };
                write_text(&stdout(), &pretty(&summary::value(&checked))?)?;
            }
            Err(failure)
        }
        Err(Bad::Chain(error)) => Err(error.into()),
        Err(Bad::Other(failure)) => Err(failure),
        Ok(checked) if args.json => write_text(&stdout(), &pretty(&summary::value(&checked))?),
        Ok(checked) => write_text(&stdout(), &(checked.plan.join("\n") + "\n")),
    }
}

/// Why a chain cannot be run.
enum Bad {
    Chain(ConfigError),
    Other(Failure),
}

impl From<Failure> for Bad {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

fn mistakes(error: &ConfigError) -> Vec<Mistake> {
    let mistake = |(line, message): (usize, &str)| Mistake {
        file: error.file.clone(),
        line,
        message: message.to_owned(),
    };
    error.all().map(mistake).collect()
}

fn check(args: &CheckArgs) -> Result<Checked, Bad> {
    let mut chain = Chain::load(&args.chain, args.ignore_flags).map_err(Bad::Chain)?;
    // As a run does; of interfaces nothing is asked.
    let mut left_out = Vec::new();
    if let Some(Origin::Captures(paths)) = &mut chain.settings.source {
        let selection = Selection::of(paths).map_err(Failure::from)?;
        if !args.json {
            tell_of_left_out(&selection.left_out);
        }
        left_out = selection.left_out;
        *paths = selection.captures;
    }
    let plan = Plan::new(chain);
    let captures = plan.chain().settings.source.as_ref().map_or(&[][..], Origin::captures);
    let files = Files::default().input("chain file", Some(&args.chain)).captures(None, captures);
    let files = files.plan(&plan, [false; 6]);
    files.check().map_err(|clash| clash.in_chain(&args.chain))?;
    let refused = |why| Failure::Config(format!("{}: {why}", args.chain.display()));
    plan.chain().check_rotation().map_err(refused)?;
    if !args.json {
        warn(&plan);
    }
    let warnings = plan.chain().functions().iter().flat_map(|function| function.warnings());
    Ok(Checked {
        chain: args.chain.display().to_string(),
        ok: true,
        mistakes: Vec::new(),
        warnings: warnings.collect(),
        captures: captures.iter().map(|path| path.display().to_string()).collect(),
        left_out: left_out.iter().map(|path| path.display().to_string()).collect(),
        plan: plan.to_string().lines().map(str::to_owned).collect(),
    })
}
