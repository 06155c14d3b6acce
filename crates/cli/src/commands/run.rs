//! `packetloom run`.

use packetloom_engine::{Chain, Outcome, Plan};

use super::{execute, stdout};
use crate::args::RunArgs;
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: RunArgs) -> Done {
    let mut chain = Chain::load(&args.chain, args.ignore_flags)?;
    if let Some(changes) = &args.rules_changes {
        chain.change_rules(changes)?;
    }
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
    if let Some(device) = args.device {
        settings.run.device = device;
    }
    if args.max_latency.is_some() {
        settings.run.max_latency = args.max_latency;
    }
    let Some(source) = settings.source.clone() else {
        let message = format!("{} names no source; expected -r CAPTURE", args.chain.display());
        return Err(Failure::Usage(message));
    };
    let plan = Plan::new(chain);
    if args.rules_changes.is_some() && plan.workers() > 1 {
        // Which packets come before a transaction is the order of arrival, which workers do not share.
        let message = format!("--rules-changes with {} workers; expected 1", plan.workers());
        return Err(Failure::Usage(message));
    }
    let stdout = stdout();
    let json = args.json.then_some(&*stdout);
    let summaries: Vec<_> = plan.chain().settings.run.summary.as_deref().into_iter().chain(json).collect();
    let outcome = execute(&plan, &source, &summaries, args.count, Outcome::json)?;
    if !args.json {
        talk::say(&talk::outcome(outcome));
    }
    Ok(())
}
