//! `packetloom control`.

use super::{pretty, stdout, write_text};
use crate::args::ControlArgs;
use crate::{Done, control};

pub(crate) fn run(args: &ControlArgs) -> Done {
    let counters = control::ask(&args.socket, args.command)?;
    if counters.is_null() { Ok(()) } else { write_text(&stdout(), &pretty(&counters)?) }
}
