//! `packetloom run`.

use packetloom_engine::{Chain, Outcome, Plan};

use super::{execute, stdout};
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
    let stdout = stdout();
    let json = args.json.then_some(&*stdout);
    let summaries: Vec<_> = plan.chain().settings.run.summary.as_deref().into_iter().chain(json).collect();
    let outcome = execute(&plan, &source, &summaries, args.count, Outcome::json)?;
    if !args.json {
        talk::say(&talk::outcome(outcome));
    }
    Ok(())
}
