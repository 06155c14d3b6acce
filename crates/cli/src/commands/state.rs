//! `packetloom state`.

use packetloom_engine::State;

use super::{pretty, stdout, write_text};
use crate::args::StateArgs;
use crate::{Done, talk};

pub(crate) fn run(args: &StateArgs) -> Done {
    let state = State::load(&args.file)?;
    let text =
        if args.json { pretty(&state.json())? } else { format!("state\n{}", talk::table(&state.rows())) };
    write_text(&stdout(), &text)
}
