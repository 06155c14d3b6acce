//! `packetloom check`.

use packetloom_engine::{Chain, Plan};

use super::{distinct, outputs, stdout, warn, write_text};
use crate::Done;
use crate::args::CheckArgs;
use crate::failure::Failure;

pub(crate) fn run(args: &CheckArgs) -> Done {
    let plan = Plan::new(Chain::load(&args.chain, args.ignore_flags)?);
    let summary = plan.chain().settings.run.summary.as_deref();
    distinct(outputs(&plan).chain([summary]))
        .map_err(|message| Failure::Config(format!("{}: {message}", args.chain.display())))?;
    warn(&plan);
    write_text(&stdout(), &format!("{plan}\n"))
}
