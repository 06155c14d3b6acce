//! Schemas, man pages, completions: all printed from the definitions that the program itself runs by.

use clap::{Command, CommandFactory};
use packetloom_engine::schema;
use serde_json::{Value, json};

use super::{stdout, write_json, write_text};
use crate::args::{Cli, NOTES};
use crate::failure::Failure;
use crate::{Done, control, manual};

pub(crate) fn schema(page: Option<&str>) -> Done {
    let schema = match page {
        None | Some("chain") => packetloom_engine::schema::chain_file(),
        Some(page) => of_output(page).ok_or_else(|| {
            let verbs = [VERBS.map(str::to_owned).to_vec(), benchmarks().collect()].concat();
            Failure::Usage(format!("no schema {page:?}; expected one of: chain, {}", verbs.join(", ")))
        })?,
    };
    write_json(&stdout(), &schema)
}

/// Verbs that print JSON, and files of JSON lines, beside the benchmarks.
const VERBS: [&str; 22] = [
    "run",
    "meter",
    "search",
    "search-left-out",
    "alert",
    "check",
    "acl-check",
    "acl-explain",
    "acl-convert",
    "devices",
    "state",
    "control",
    "control-answer",
    "control-ports",
    "control-rules",
    "control-change",
    "control-flows",
    "control-remove",
    "flow-record",
    "acl-log",
    "statistics",
    "report",
];

/// The benchmarks, as verbs.
fn benchmarks() -> impl Iterator<Item = String> {
    packetloom_bench::schema::NAMES.iter().map(|name| format!("bench-{name}"))
}

/// The schema of what a verb prints.
fn of_output(page: &str) -> Option<Value> {
    Some(match page {
        "run" => schema::run_summary(),
        "meter" => schema::meter_summary(),
        "search" => schema::run_summary(),
        "search-left-out" => schema::of::<super::search::LeftOutLine>(),
        "alert" => schema::of::<packetloom_nf::alerts::EveLine<'_>>(),
        "check" => schema::of::<super::check::Checked>(),
        "acl-check" => schema::of::<super::acl::check::Line>(),
        "acl-explain" => schema::of::<super::acl::explain::Explanation>(),
        "acl-convert" => schema::of::<super::acl::losses::Line>(),
        "devices" => schema::of::<super::devices::Line>(),
        "state" => schema::state(),
        "control" => either(
            "The counters of a run over a chain, or of packetloom meter",
            [schema::run_summary(), schema::meter_summary()],
        ),
        "control-answer" => {
            let others = ["control-change", "control-flows", "control-remove"];
            let others = others.map(|page| of_output(page).map(without_version));
            let [Some(changed), Some(flows), Some(removed)] = others else { return None };
            control::answer_schema(without_version(of_output("control")?), port(), [changed, flows, removed])
        }
        "control-change" => control::line_schema(
            "What packetloom control PATH change prints with --json",
            schema::rules_changed(),
        ),
        "control-flows" => control::line_schema(
            "What packetloom control PATH flows and connections print with --json",
            schema::flow_list(),
        ),
        "control-remove" => {
            control::line_schema("What packetloom control PATH remove prints with --json", schema::removed())
        }
        "control-ports" => control::line_schema("A line of packetloom control PATH ports --json", port()),
        "control-rules" => {
            control::line_schema("A line of packetloom control PATH rules --json", control::rule_schema())
        }
        "flow-record" => packetloom_export::schema::flow_record(),
        "acl-log" => packetloom_export::schema::acl_log(),
        "statistics" => schema::statistics(),
        "report" => packetloom_report::schema::reports(),
        _ => return packetloom_bench::schema::of(page.strip_prefix("bench-")?),
    })
}

/// The schema of what is said of an interface of a run.
fn port() -> Value {
    control::port_schema(schema::run_summary()["properties"]["interfaces"]["items"].take())
}

/// One of two.
fn either(title: &str, schemas: [Value; 2]) -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "anyOf": schemas.map(without_version).to_vec(),
    })
}

/// A schema that is part of another one.
fn without_version(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.shift_remove("$schema");
    }
    schema
}

pub(crate) fn man(page: Option<&str>) -> Done {
    // A verb that the two could be taken for there is not.
    match page {
        Some("chain") => return write_text(&stdout(), &manual::chain(&schema::chain_file())),
        Some("rules") => return write_text(&stdout(), &manual::rules()),
        _ => {}
    }
    // Exit codes have a section of their own in each page.
    let mut command = Cli::command().after_help(NOTES);
    command.build();
    let words: Vec<_> = page.map(|page| page.split('-').collect()).unwrap_or_default();
    let mut chosen: &Command = &command;
    for (number, word) in words.into_iter().enumerate() {
        let names = || {
            let files = if number == 0 { &manual::FILES[..] } else { &[] };
            let verbs = chosen.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name);
            verbs.chain(files.iter().copied()).collect::<Vec<_>>().join(", ")
        };
        chosen = chosen
            .find_subcommand(word)
            .ok_or_else(|| Failure::Usage(format!("no page {word:?}; expected one of: {}", names())))?;
    }
    let name = chosen.get_display_name().unwrap_or("packetloom");
    let text = manual::verb(chosen, name).map_err(anyhow::Error::from)?;
    write_text(&stdout(), &text)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Done {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "packetloom", &mut text);
    write_text(&stdout(), &String::from_utf8_lossy(&text))
}
