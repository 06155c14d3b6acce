//! `packetloom control`.

use std::fmt::Write;

use serde_json::Value;

use super::{pretty, stdout, write_text};
use crate::args::ControlArgs;
use crate::control::{Command, Order, VERSION, ask};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: &ControlArgs) -> Done {
    if args.function.is_some() && args.command != Command::Rules {
        let message = format!("--function with {}; expected it with rules", args.command.name());
        return Err(Failure::Usage(message));
    }
    let order = Order { command: args.command, function: args.function.clone() };
    let mut answer = ask(&args.socket, &order)?;
    let mut take = |key: &str| answer[key].as_array_mut().map(std::mem::take).unwrap_or_default();
    let text = match args.command {
        Command::Counters => pretty(&answer["counters"])?,
        Command::Ports if args.json => lines(take("ports")),
        Command::Rules if args.json => lines(take("rules")),
        Command::Ports => ports(&take("ports")),
        Command::Rules => rules(&take("rules")),
        Command::Reload | Command::Save | Command::Stop => return Ok(()),
    };
    write_text(&stdout(), &text)
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
        let mut rows = vec![["rule", "line", "id", "packets", "bytes"].map(str::to_owned).to_vec()];
        rows.extend(
            acl.iter()
                .map(|rule| ["text", "line", "id", "packets", "bytes"].map(|key| cell(&rule[key])).to_vec()),
        );
        text += &talk::grid(&rows);
    }
    text
}
