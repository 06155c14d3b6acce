//! `packetloom run`.

use std::path::Path;

use packetloom_engine::{Chain, Plan};

use super::{execute, one_on_stdout, stdout, write_json};
use crate::args::RunArgs;
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: RunArgs) -> Done {
    let mut chain = Chain::load(&args.chain, args.ignore_flags)?;
    let settings = &mut chain.settings;
    if args.read.is_some() {
        settings.source = args.read;
    }
    if args.write.is_some() {
        settings.sink = args.write;
    }
    if args.summary.is_some() {
        settings.run.summary = args.summary;
    }
    if let Some(workers) = args.workers {
        settings.run.workers = workers;
    }
    let Some(source) = settings.source.clone() else {
        let message = format!("{} names no source; expected -r CAPTURE", args.chain.display());
        return Err(Failure::Usage(message));
    };
    let plan = Plan::new(chain);
    let (chain, summary) = (plan.chain(), plan.chain().settings.run.summary.as_deref());
    let json = args.json.then_some(Path::new("-"));
    let records = chain.functions.iter().map(|function| function.records_path());
    one_on_stdout(records.chain([chain.settings.sink.as_deref(), summary, json]))?;
    let outcome = execute(&plan, &source, args.count)?;
    let value = outcome.json();
    if let Some(path) = summary {
        write_json(path, &value)?;
    }
    if args.json {
        return write_json(&stdout(), &value);
    }
    eprint!("{}", talk::outcome(outcome));
    Ok(())
}
