//! `packetloom check`.

use packetloom_engine::{Chain, Plan};

use super::files::Files;
use super::{stdout, warn, write_text};
use crate::Done;
use crate::args::CheckArgs;

pub(crate) fn run(args: &CheckArgs) -> Done {
    let plan = Plan::new(Chain::load(&args.chain, args.ignore_flags)?);
    let captures = plan.chain().settings.source.as_ref().map_or(&[][..], |source| source.captures());
    let files = Files::default().input("chain file", Some(&args.chain)).captures(None, captures);
    let files = files.plan(&plan, [false; 4]);
    files.check().map_err(|clash| clash.in_chain(&args.chain))?;
    warn(&plan);
    write_text(&stdout(), &format!("{plan}\n"))
}
