//! `packetloom run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use packetloom_engine::chain::Origin;
use packetloom_engine::run::{Control, LifecycleOptions, Saving};
use packetloom_engine::{Chain, Outcome, Plan, State};
use packetloom_io::output::Output;
use packetloom_io::port::{Backend, OnExit};
use signal_hook::consts::SIGHUP;

use super::files::Files;
use super::{Signals, Wanted, all_written, execute, origin, select, stdout, stop_on_signals};
use crate::args::RunArgs;
use crate::control::{Controlled, Server};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: RunArgs) -> Done {
    let mut chain = load(&args.chain, &args)?;
    if let Some(changes) = &args.rules_changes {
        chain.change_rules(changes)?;
    }
    let Some(source) = chain.settings.source.clone() else {
        let message =
            format!("{} names no source; expected -r CAPTURE or -i INTERFACE", args.chain.display());
        return Err(Failure::Usage(message));
    };
    let source = select(source)?;
    let mut plan = Plan::new(chain);
    if args.rules_changes.is_some() && plan.workers() > 1 {
        // Which packets come before a transaction is the order of arrival, which workers do not share.
        let message = format!("--rules-changes with {} workers; expected 1", plan.workers());
        return Err(Failure::Usage(message));
    }
    let stdout = stdout();
    let json = args.json.then_some(&*stdout);
    let files = files(&args, &plan, source.captures(), json);
    files.check().map_err(|clash| clash.in_chain(&args.chain))?;
    let names_outputs = [&args.write, &args.dropped, &args.matched].into_iter().any(Option::is_some);
    let refused = |is_of_command: bool, message: String| match is_of_command {
        true => Failure::Usage(message),
        false => Failure::Config(format!("{}: {message}", args.chain.display())),
    };
    plan.chain().check_rotation().map_err(|why| refused(names_outputs || args.rotation.is_given(), why))?;
    plan.chain()
        .settings
        .run
        .watchdog()
        .map_err(|why| refused(args.watchdog.is_some() || args.device.is_some(), why))?;
    check_life(&args)?;
    let restore = args.restore_state.as_deref().map(|file| restore(file, &mut plan)).transpose()?;
    let control = Arc::new(Control::default());
    let no_reload = no_reload(&args);
    if no_reload.is_none() {
        reload_on_signal(&control)?;
    }
    let args = Arc::new(args);
    let (outputs, theirs) = (files.outputs_alone(), Arc::clone(&args));
    let load_next = move |number: Option<usize>| {
        let path = number.map_or(&theirs.chain, |number| &theirs.reload_at[number].chain);
        let chain = load(path, &theirs).map_err(Failure::into_message)?;
        let plan = Plan::new(chain);
        let read = outputs.outputs_alone().functions_inputs(&plan);
        read.check().map_err(|clash| format!("{}: {}", path.display(), clash.message()))?;
        Ok(plan)
    };
    let reloaded = || talk::say(&format!("packetloom: {}: read again\n", args.chain.display()));
    let every = args.save_every.and_then(|every| every.limit()).map(Duration::from_nanos);
    let saving = args.save_state.as_deref().map(|file| Saving {
        every,
        save: Box::new(|state| state.save(file).map_err(|error| error.to_string())),
    });
    let life = LifecycleOptions {
        restore,
        reload_at: args.reload_at.iter().map(|reload| reload.packet).collect(),
        control: Arc::clone(&control),
        load: Some(Box::new(load_next)),
        reloaded: Some(Box::new(reloaded)),
        save: saving,
        ..LifecycleOptions::default()
    };
    let summaries: Vec<_> = plan.chain().settings.run.summary.as_deref().into_iter().chain(json).collect();
    let state = args.save_state.as_deref();
    let stop = stop_on_signals()?;
    let controlled = Controlled {
        control,
        stop: Arc::clone(&stop),
        summarise: Outcome::json,
        no_reload: no_reload.clone(),
        no_save: state
            .is_none()
            .then(|| "the run has no file for its state; expected run --save-state FILE".into()),
    };
    let socket = plan.chain().settings.run.control.as_deref();
    // Dropped when everything is written.
    let _server = socket.map(|path| Server::start(path, controlled)).transpose()?;
    let signals = Signals { stop, no_reload };
    let wanted = Wanted { summaries: &summaries, ..Wanted::default() };
    let outcome = execute(&plan, &source, wanted, args.count, life, signals, Outcome::json)?;
    if let (Some(state), Some(file)) = (&outcome.state, state) {
        state.save(file)?;
    }
    let written = all_written(&outcome);
    if !args.json {
        talk::say(&talk::outcome(outcome));
    }
    written
}

/// Reads a chain file; what the command line says goes before it.
fn load(path: &Path, args: &RunArgs) -> Result<Chain, Failure> {
    let mut chain = Chain::load(path, args.ignore_flags)?;
    let settings = &mut chain.settings;
    let replace = |own: &mut Option<PathBuf>, by: &Option<PathBuf>| {
        if by.is_some() {
            own.clone_from(by);
        }
    };
    if let Some(source) = origin(
        &args.read,
        &args.interface,
        args.inline.then(OnExit::default),
        args.backend.map_or(Backend::AfPacket, Backend::from),
    )? {
        settings.source = Some(source);
    }
    if let Some(on_exit) = args.on_exit {
        let inline = match &mut settings.source {
            Some(Origin::Interfaces(interfaces)) => interfaces.inline.as_mut(),
            _ => None,
        };
        let inline = inline.ok_or_else(|| {
            Failure::Usage(
                "--on-exit for packets that do not pass inline; expected -i, twice, and --inline".into(),
            )
        })?;
        *inline = on_exit.into();
    }
    replace(&mut settings.sink, &args.write);
    replace(&mut settings.dropped, &args.dropped);
    replace(&mut settings.run.summary, &args.summary);
    replace(&mut settings.run.control, &args.control);
    args.rotation.apply(&mut settings.run)?;
    args.statistics.check(settings.run.stats_every)?;
    replace(&mut settings.run.stats_output, &args.statistics.stats_output);
    if args.statistics.stats_every.is_some() {
        settings.run.stats_every = args.statistics.stats_every;
    }
    if args.watchdog.is_some() {
        settings.run.watchdog = args.watchdog;
    }
    if let Some(idle) = args.idle {
        settings.run.idle = idle.into();
    }
    if let Some(workers) = args.workers {
        settings.run.workers = workers;
    }
    if let Some(device) = &args.device {
        settings.run.device.clone_from(device);
    }
    if args.max_latency.is_some() {
        settings.run.max_latency = args.max_latency;
    }
    if let Some(matched) = &args.matched {
        let which = settings.matched.take().map(|(_, which)| which).unwrap_or_default();
        let refused = |why| Failure::Config(format!("{}: --matched: {why}", path.display()));
        chain.write_matched(matched.clone(), which).map_err(refused)?;
    }
    Ok(chain)
}

/// All that is read and written.
fn files(args: &RunArgs, plan: &Plan, captures: &[PathBuf], json: Option<&Path>) -> Files {
    let mut files = Files::default()
        .input("chain file", Some(&args.chain))
        .captures((!args.read.is_empty()).then_some("-r"), captures)
        .input("--rules-changes", args.rules_changes.as_deref())
        .plan(
            plan,
            [
                args.write.is_some(),
                args.dropped.is_some(),
                args.matched.is_some(),
                args.summary.is_some(),
                args.control.is_some(),
                args.statistics.stats_output.is_some(),
            ],
        )
        .output("-w", args.write.as_deref())
        .output("--dropped", args.dropped.as_deref())
        .output("--matched", args.matched.as_deref())
        .output("--summary", args.summary.as_deref())
        .output("--control", args.control.as_deref())
        .output("--stats-output", args.statistics.stats_output.as_deref())
        .output("--json", json)
        .state(args.restore_state.as_deref(), args.save_state.as_deref());
    for reload in &args.reload_at {
        files = files.input("--reload-at", Some(&reload.chain));
    }
    files
}

/// Refuses what cannot be done before anything is.
fn check_life(args: &RunArgs) -> Done {
    if !args.reload_at.is_sorted_by_key(|reload| reload.packet) {
        return Err(Failure::Usage("--reload-at in another order; expected that of the packets".into()));
    }
    // What cannot be written is found out before the run.
    args.save_state.as_deref().map(Output::create).transpose()?;
    Ok(())
}

/// The state that a run begins with.
fn restore(file: &Path, plan: &mut Plan) -> Result<State, Failure> {
    let state = State::load(file)?;
    let (state, left_out) =
        plan.restore(state).map_err(|why| Failure::Config(format!("{}: {why}", file.display())))?;
    for what in left_out {
        talk::say(&format!("packetloom: warning: {}: {what}\n", file.display()));
    }
    Ok(state)
}

/// Why the chain file cannot be read again during the run, if so.
fn no_reload(args: &RunArgs) -> Option<String> {
    args.rules_changes.is_some().then(|| "the run changes its rules as --rules-changes says".into())
}

/// Has SIGHUP ask for a reload.
fn reload_on_signal(control: &Control) -> Done {
    signal_hook::flag::register(SIGHUP, control.reload_flag())
        .map_err(|e| Failure::Run(anyhow::anyhow!("cannot handle signals: {e}")))?;
    Ok(())
}
