//! `packetloom check`.

use packetloom_engine::{Chain, Plan};

use super::{stdout, write_text};
use crate::Done;
use crate::args::CheckArgs;

pub(crate) fn run(args: &CheckArgs) -> Done {
    let plan = Plan::new(Chain::load(&args.chain, args.ignore_flags)?);
    write_text(&stdout(), &format!("{plan}\n"))
}
