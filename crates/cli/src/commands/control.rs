//! `packetloom control`.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use packetloom_engine::run::RuleChange;
use packetloom_io::{input, plain};
use serde_json::{Value, json};

use super::{pretty, stdout, write_text};
use crate::args::{ControlArgs, ControlCommand, ListArgs};
use crate::control::{LINE, VERSION, ask, function_value};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: &ControlArgs) -> Done {
    let mut answer = ask(&args.socket, &line(&args.command)?)?;
    let mut take = |key: &str| answer[key].as_array_mut().map(std::mem::take).unwrap_or_default();
    let text = match args.command {
        ControlCommand::Counters => pretty(&answer["counters"])?,
        ControlCommand::Ports if args.json => lines(take("ports")),
        ControlCommand::Rules { .. } if args.json => lines(take("rules")),
        ControlCommand::Ports => ports(&take("ports")),
        ControlCommand::Rules { .. } => rules(&take("rules")),
        ControlCommand::Flows { .. }
        | ControlCommand::Connections { .. }
        | ControlCommand::Remove { .. }
        | ControlCommand::Change { .. }
            if args.json =>
        {
            if let Some(answer) = answer.as_object_mut() {
                answer.shift_remove("ok");
            }
            format!("{answer}\n")
        }
        ControlCommand::Flows { .. } | ControlCommand::Connections { .. } => flows(&answer),
        ControlCommand::Remove { .. } => format!("{}\n", removed(&answer)),
        ControlCommand::Change { .. } => format!("{}\n", changed(&answer)),
        ControlCommand::Reload | ControlCommand::Save | ControlCommand::Stop => return Ok(()),
    };
    write_text(&stdout(), &text)
}

/// What says a command to a run.
fn line(command: &ControlCommand) -> Result<Value, Failure> {
    let name = |name: &str| json!({ "command": name });
    let list =
        |name: &str, ListArgs { function, filter, top }: &ListArgs, key: &str, value: &Option<String>| {
            let mut line = json!({ "command": name, "top": top });
            let function = function.as_ref().map(function_value);
            let [filter, value] = [filter, value].map(|text| text.as_deref().map(Value::from));
            for (key, value) in [("function", function), ("filter", filter), (key, value)] {
                if let Some(value) = value {
                    line[key] = value;
                }
            }
            line
        };
    Ok(match command {
        ControlCommand::Counters => name("counters"),
        ControlCommand::Reload => name("reload"),
        ControlCommand::Save => name("save"),
        ControlCommand::Stop => name("stop"),
        ControlCommand::Ports => name("ports"),
        ControlCommand::Rules { function: None } => name("rules"),
        ControlCommand::Rules { function: Some(function) } => {
            json!({ "command": "rules", "function": function_value(function) })
        }
        ControlCommand::Change { file, statements, function } => {
            let mut line = json!({ "command": "change", "statements": read(file.as_ref(), statements)? });
            if let Some(function) = function {
                line["function"] = function_value(function);
            }
            line
        }
        ControlCommand::Flows { flows, by } => list("flows", flows, "by", by),
        ControlCommand::Connections { flows, state } => list("connections", flows, "state", state),
        ControlCommand::Remove { function, filter, flow, .. } => {
            let (key, value) = match (filter, flow) {
                (Some(filter), _) => ("filter", filter.as_str().into()),
                (None, Some(flow)) => ("flow", flow.as_str().into()),
                (None, None) => ("all", true.into()),
            };
            let mut line = json!({ "command": "remove", "function": function_value(function) });
            line[key] = value;
            line
        }
    })
}

/// The statements of a transaction of rules: those that are given, or those of a file.
fn read(file: Option<&PathBuf>, statements: &[String]) -> Result<String, Failure> {
    let (name, text) = if statements.is_empty() {
        let path = file.map_or(Path::new("-"), |file| file);
        let name =
            if input::is_standard(path) { "standard input".into() } else { path.display().to_string() };
        let mut text = Vec::new();
        let read = input::open_text(path)?.take(LINE as u64).read_to_end(&mut text);
        read.map_err(|error| Failure::Run(anyhow::anyhow!("{name}: {}", plain(&error))))?;
        if text.len() == LINE {
            return Err(too_large(&name));
        }
        let text = String::from_utf8(text);
        let text =
            text.map_err(|_| Failure::Config(format!("{name}: not UTF-8 text; expected statements")))?;
        (name, text)
    } else {
        ("-e".into(), statements.join("\n"))
    };
    // What a run would say about it needs none; and it does not know the file's name.
    RuleChange::parse(None, &text).map_err(|why| Failure::Config(format!("{name}: {why}")))?;
    // As a line says it, with room for what is beside.
    if Value::from(&*text).to_string().len() + 256 > LINE {
        return Err(too_large(&name));
    }
    Ok(text)
}

fn too_large(name: &str) -> Failure {
    Failure::Usage(format!(
        "{name}: more statements than a line of the socket has room for; expected up to {LINE} bytes a transaction, or the rules in the chain's files, and a reload"
    ))
}

/// For machines, with the version in each line.
fn lines(values: Vec<Value>) -> String {
    let mut text = String::new();
    for mut value in values {
        value["version"] = VERSION.into();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{value}");
    }
    text
}

/// A value as a cell of a table.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// For people: an interface a row, and below them what was lost by reason.
fn ports(ports: &[Value]) -> String {
    let mut rows = vec![["interface", "backend", "state", "received", "sent"].map(str::to_owned).to_vec()];
    let mut below = String::new();
    for port in ports {
        let state = match (port["up"].as_bool(), port["carrier"].as_bool()) {
            (Some(true), Some(true)) => "up",
            (Some(true), _) => "no carrier",
            (Some(false), _) => "down",
            (None, _) => "gone",
        };
        let name = cell(&port["name"]);
        rows.push(vec![
            name.clone(),
            cell(&port["backend"]),
            state.into(),
            cell(&port["received"]),
            cell(&port["sent"]),
        ]);
        if let Some(reason) = port["backend_reason"].as_str() {
            let _ = writeln!(below, "{name}: {reason}");
        }
        let counted = ["missed", "unread", "oversized", "unsound", "dropped_by_driver"];
        let mut lost: Vec<_> = counted.map(|reason| (reason.to_owned(), port[reason].as_u64())).into();
        if let Some(not_sent) = port["not_sent"].as_object() {
            lost.extend(not_sent.iter().map(|(why, count)| (format!("not sent, {why}"), count.as_u64())));
        }
        for (reason, count) in lost {
            if let Some(count) = count.filter(|&count| count > 0) {
                let _ = writeln!(below, "{name}: {} {count}", reason.replace('_', " "));
            }
        }
    }
    talk::grid(&rows) + &below
}

/// For people: a rule a row, each acl under its place in the chain.
fn rules(rules: &[Value]) -> String {
    let mut text = String::new();
    for acl in rules.chunk_by(|one, other| one["function"] == other["function"]) {
        let _ = writeln!(text, "function {}, acl", cell(&acl[0]["function"]));
        let mut rows = vec![["rule", "number", "line", "id", "packets", "bytes"].map(str::to_owned).to_vec()];
        rows.extend(acl.iter().map(|rule| {
            let number = rule["number"].as_u64().map_or_else(|| "-".into(), |number| format!("@{number}"));
            let [line, id, packets, bytes] = ["line", "id", "packets", "bytes"].map(|key| cell(&rule[key]));
            vec![cell(&rule["text"]), number, line, id, packets, bytes]
        }));
        text += &talk::grid(&rows);
    }
    text
}

/// For people: a flow a row, in columns of what the function says of flows.
fn flows(answer: &Value) -> String {
    let none = Vec::new();
    let flows = answer["flows"].as_array().unwrap_or(&none);
    let (function, nf) = (cell(&answer["function"]), cell(&answer["nf"]));
    let counts = ["matching", "entries"].map(|key| answer[key].as_u64().unwrap_or_default());
    let mut text = format!("function {function}, {nf}: {} of {} flows", flows.len(), counts[1]);
    if counts[0] < counts[1] {
        let _ = write!(text, ", {} match", counts[0]);
    }
    text.push('\n');
    let time = answer["time"].as_u64().unwrap_or_default();
    let has = |key: &str| flows.iter().any(|flow| flow.get(key).is_some());
    let columns: Vec<_> = [
        ("flow", "flow"),
        ("state", "state"),
        ("step", "step"),
        ("packets", "packets"),
        ("bytes", "bytes"),
        ("first", "began"),
        ("last", "idle"),
        ("expires", "gone in"),
    ]
    .into_iter()
    .filter(|(key, _)| has(key))
    .collect();
    let head = columns.iter().map(|(_, title)| (*title).to_owned()).collect();
    let rows = flows.iter().map(|flow| {
        let cells = columns.iter().map(|&(key, _)| match (key, flow[key].as_u64()) {
            ("first", Some(at)) => format!("{} ago", seconds(time.saturating_sub(at))),
            ("last", Some(at)) => seconds(time.saturating_sub(at)),
            ("expires", Some(at)) => seconds(at.saturating_sub(time)),
            _ => cell(&flow[key]),
        });
        cells.collect()
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    if flows.is_empty() { text } else { text + &talk::grid(&rows) }
}

/// Nanoseconds in seconds.
fn seconds(nanos: u64) -> String {
    format!("{}.{:03} s", nanos / 1_000_000_000, nanos / 1_000_000 % 1000)
}

/// For people: how rules were changed.
fn changed(answer: &Value) -> String {
    let [function, nf, added, deleted, replaced, rules] =
        ["function", "nf", "added", "deleted", "replaced", "rules"].map(|key| cell(&answer[key]));
    format!(
        "function {function}, {nf}: rules added: {added}, deleted: {deleted}, replaced: {replaced}; now there are {rules}"
    )
}

/// For people: how many flows were removed.
fn removed(answer: &Value) -> String {
    let [function, nf, removed] = ["function", "nf", "removed"].map(|key| cell(&answer[key]));
    format!("function {function}, {nf}: flows removed: {removed}")
}
