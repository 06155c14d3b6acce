//! What is said on standard error: progress and tables.

use std::fmt::Write;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use packetloom_engine::Outcome;
use packetloom_engine::outcome::{Reloads, Replaced};
use packetloom_packet::FlowRecord;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// Errors.
    Quiet,
    /// Also warnings, and what came of it.
    Usual,
    /// Also what is chosen, and why.
    Verbose,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Usual as u8);

/// Has so much be said from now on.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

fn says(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// Says something on standard error, if anybody listens, also with `--quiet`: an error, or an answer.
pub(crate) fn error(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Says something on standard error, if anybody listens.
pub(crate) fn say(text: &str) {
    if says(Level::Usual) {
        error(text);
    }
}

/// Says something that is for machines, if so, or for people.
pub(crate) fn list(is_for_machines: bool, text: &str) {
    if is_for_machines { error(text) } else { say(text) }
}

/// Says what is chosen, and why, with `--verbose`.
pub(crate) fn explain(text: impl FnOnce() -> String) {
    if says(Level::Verbose) {
        for line in text().lines() {
            error(&format!("packetloom: {line}\n"));
        }
    }
}

/// A bar for long work; nothing is drawn unless standard error is a terminal.
pub(crate) fn bar(total: Option<u64>, what: &str, template: Template) -> ProgressBar {
    let bar = match total {
        _ if !says(Level::Usual) => ProgressBar::hidden(),
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::no_length(),
    };
    let template = match (total, template) {
        (Some(_), Template::Bytes) => {
            "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left, {msg}"
        }
        (None, Template::Bytes) => "{prefix} {spinner} {bytes} {bytes_per_sec} {elapsed}, {msg}",
        (_, Template::Count) => "{prefix} {wide_bar} {human_pos}/{human_len} {per_sec} {eta} left",
    };
    // The templates are constants: one that is wrong shows in the first test that draws it.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(what.to_owned());
    bar
}

/// What a bar counts.
#[derive(Clone, Copy)]
pub(crate) enum Template {
    /// Bytes read.
    Bytes,
    /// Things made.
    Count,
}

/// A number with commas between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things.
pub(crate) fn amount(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Rows of a name and a value, values aligned.
pub(crate) fn table(rows: &[(String, String)]) -> String {
    let width = |text: &str| text.chars().count();
    let names = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let values = rows.iter().map(|(_, value)| width(value)).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name}{:pad$}  {value:>values$}", "", pad = names - width(name));
    }
    text
}

/// Rows of cells below each other: the first column to the left, the others to the right.
pub(crate) fn grid(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ =
                if column == 0 { write!(text, "  {cell:width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

/// The table at the end of a run.
pub(crate) fn outcome(outcome: Outcome) -> String {
    let mut rows = vec![("received".into(), outcome.verdicts.received().to_string())];
    rows.push(("passed".into(), outcome.verdicts.passed.to_string()));
    let dropped = outcome.verdicts.dropped().filter(|&(_, count)| count > 0);
    rows.extend(dropped.map(|(reason, count)| (format!("dropped: {}", reason.name()), count.to_string())));
    let mut text = format!("packets\n{}", table(&rows));
    for (name, report) in &outcome.functions {
        let _ = write!(text, "{name}\n{}", table(&report.rows()));
    }
    for interface in &outcome.interfaces {
        let _ = write!(text, "{}\n{}", interface.ingress_counts.interface, table(&interface.rows()));
    }
    let left_out = outcome.written.iter().filter(|written| !written.is_whole);
    let rows: Vec<_> =
        left_out.map(|written| (written.output.clone(), written.not_written.to_string())).collect();
    if !rows.is_empty() {
        let _ = write!(text, "not written\n{}", table(&rows));
    }
    for exported in &outcome.exported {
        let _ = write!(text, "exported to {}\n{}", exported.to, table(&exported.rows()));
    }
    if outcome.replaced_before > 0 {
        let rows = [("functions before these".into(), outcome.replaced_before.to_string())];
        let _ = write!(text, "replaced\n{}", table(&rows));
    }
    for replaced in &outcome.replaced {
        let Replaced { nf, packets, rows, .. } = &**replaced;
        let _ = write!(text, "{nf} until packet {packets}\n{}", table(rows));
    }
    let Reloads { done, refused } = outcome.reloads;
    if done + refused > 0 {
        let rows = [("done".into(), done.to_string()), ("refused".into(), refused.to_string())];
        let _ = write!(text, "reloads\n{}", table(&rows));
    }
    if outcome.rule_changes > 0 {
        let rows = [("transactions".into(), outcome.rule_changes.to_string())];
        let _ = write!(text, "rules changed\n{}", table(&rows));
    }
    if let Some(shares) = &outcome.shares {
        let mut rows = vec![("judged by it".to_owned(), shares.device.to_string())];
        if shares.is_late {
            rows.push(("opened".to_owned(), "not before the end".to_owned()));
        }
        if shares.devices.len() > 1 {
            rows = shares
                .devices
                .iter()
                .map(|(id, count)| (format!("judged by {id}"), count.to_string()))
                .collect();
        }
        let others = [
            ("by a kernel that stays", shares.resident),
            ("judged here", shares.here),
            ("failures", shares.faults),
        ];
        rows.extend(others.map(|(name, count)| (name.to_owned(), count.to_string())));
        rows.push(("batches in flight".into(), format!("{} at a time, at most", shares.away)));
        let loads = format!("{} times, {:.0?} at most", shares.loads, shares.longest_load);
        rows.push(("rules loaded onto it".into(), loads));
        if shares.copies > 0 {
            let copies =
                format!("{} times, packets waited {:.0?} at most", shares.copies, shares.longest_copy);
            rows.push(("state copied".into(), copies));
        }
        if shares.moves > 0 {
            let moves = format!("{} times, packets waited {:.0?} at most", shares.moves, shares.longest_move);
            rows.push(("state moved".into(), moves));
        }
        let _ = write!(text, "device\n{}", table(&rows));
    }
    let top_flows = outcome.top_flows.into_sorted();
    if !top_flows.is_empty() {
        let rows: Vec<_> = top_flows.iter().map(flow_row).collect();
        let _ = write!(text, "top flows\n{}", table(&rows));
    }
    let _ = write!(text, "{}", rates(outcome.verdicts.received(), outcome.wire_bytes, outcome.elapsed));
    text
}

fn flow_row(flow: &FlowRecord) -> (String, String) {
    let end = |address: std::net::IpAddr, port: u16| match port {
        0 => address.to_string(),
        port => std::net::SocketAddr::new(address, port).to_string(),
    };
    let protocol = packetloom_packet::protocol::name(flow.protocol)
        .map_or_else(|| flow.protocol.to_string(), str::to_owned);
    let source = end(flow.source, flow.source_port);
    let destination = end(flow.destination, flow.destination_port);
    let vlan = flow.vlan().map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
    (
        format!("{protocol} {source} > {destination}{vlan}"),
        format!(
            "{} packets, {} bytes",
            flow.forward.packets + flow.reverse.packets,
            flow.forward.bytes + flow.reverse.bytes
        ),
    )
}

/// A line with the time a run took and its rates.
pub(crate) fn rates(packets: u64, bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    format!(
        "{:.3} s, {:.3} Mpps, {:.3} Gb/s on the wire\n",
        seconds,
        packets as f64 / seconds / 1e6,
        bytes as f64 * 8.0 / seconds / 1e9
    )
}
