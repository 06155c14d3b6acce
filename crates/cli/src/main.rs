//! The `packetloom` command: a thin face over the library crates.
//!
//! Data go to standard output, talk to standard error. Exit codes are those of [`failure::EXIT_CODES`].

mod args;
mod commands;
mod control;
mod failure;
mod manual;
mod talk;
mod watchdog;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use signal_hook::consts::SIGUSR1;

use crate::args::{AclVerb, Cli, Verb};
use crate::failure::Failure;

fn main() -> ExitCode {
    // Asks "run" and "meter" for statistics, which watch for it themselves; it ends none of the verbs. Where it cannot be caught, it
    // ends the program as it would any other.
    let _ = signal_hook::flag::register(SIGUSR1, Arc::new(AtomicBool::new(false)));
    let cli = Cli::parse();
    talk::set_level(cli.level());
    let result = match cli.verb {
        Verb::Run(args) => commands::run::run(*args),
        Verb::Meter(args) => commands::meter::run(*args),
        Verb::Search(args) => commands::search::run(*args),
        Verb::Acl(acl) => match acl.verb {
            AclVerb::Classify(args) => commands::acl::classify(args),
            AclVerb::Convert(args) => commands::acl::convert(args),
            AclVerb::Check(args) => commands::acl::check::run(&args),
            AclVerb::Explain(args) => commands::acl::explain::run(&args),
        },
        Verb::Check(args) => commands::check::run(&args),
        Verb::Control(args) => commands::control::run(&args),
        Verb::State(args) => commands::state::run(&args),
        Verb::Generate(args) => commands::generate::run(args.verb),
        Verb::Devices(args) => commands::devices::run(&args),
        Verb::Bench(args) => commands::bench::run(args.verb),
        Verb::Plot(args) => commands::plot::run(args),
        Verb::Example(args) => commands::example::run(&args),
        Verb::Schema { page } => commands::docs::schema(page.as_deref()),
        Verb::Man { page } => commands::docs::man(page.as_deref()),
        Verb::Completions { shell } => commands::docs::completions(shell),
        Verb::Watchdog(args) => watchdog::watch(&args),
    };
    commands::tell_of_removed();
    match result {
        Ok(()) => commands::end(0),
        Err(failure) => commands::end(failure.report()),
    }
}

/// What every verb returns.
type Done = Result<(), Failure>;
