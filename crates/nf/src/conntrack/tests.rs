//! What becomes of configurations and of reports.

use serde_json::json;

use super::*;
use crate::Config as _;
use crate::Context;
use std::path::Path;

fn prepare(keys: &str) -> Result<Box<dyn FunctionSpec>, String> {
    let config: Config = toml::from_str(keys).map_err(|error| error.message().to_owned())?;
    let context = Context { folder: Path::new(""), ignore_flags: false };
    config.prepare(&context).map_err(|error| error.to_string())
}

#[test]
fn it_says_what_it_will_do() {
    let lines = |keys: &str| prepare(keys).expect("good keys").describe();
    assert_eq!(
        lines(""),
        [
            "TCP opens by SYN; packets of no connection are dropped",
            "forgotten after tcp_opening 4m, tcp_established 124m, tcp_closing 4m, tcp_closed 4m, udp_unreplied 2m, udp_replied 5m, \
             icmp 1m, other 10m"
        ]
    );
    assert_eq!(
        lines("invalid = \"pass\"\nloose = true\ntimeouts = { icmp = \"3s\" }")[0],
        "TCP opens by any segment with ACK; packets of no connection are counted and pass"
    );
}

#[test]
fn it_needs_state_for_as_long_as_its_longest_timeout() {
    let longest = |keys: &str| match prepare(keys).expect("good keys").form() {
        Form::PerFlow(function) => function.min_timeout().expect("a time").to_string(),
        Form::Standalone(_) => panic!("it keeps state for flows"),
    };
    assert_eq!(longest(""), "124m");
    assert_eq!(longest("timeouts = { tcp_established = \"1s\" }"), "10m");
    assert_eq!(longest("timeouts = { icmp = \"0\" }"), "0");
}

#[test]
fn bad_keys_are_refused() {
    for (keys, expected) in [
        ("invalid = \"no\"", "unknown variant `no`, expected `drop` or `pass`"),
        ("timeouts = { tcp = \"1s\" }", "unknown field `tcp`"),
        ("timeouts = { icmp = \"long\" }", "\"long\"; expected a time"),
        ("loose = 1", "invalid type: integer `1`, expected a boolean"),
    ] {
        let error = prepare(keys).err().expect("an error");
        assert!(error.contains(expected), "{keys}: {error}");
    }
}

#[test]
fn reports_are_added_up_and_shown() {
    let tcp = Connections { opened: 5, established: 4, closed: 3, reset: 2, replied: 0 };
    let udp = Connections { opened: 7, replied: 6, ..Connections::default() };
    let none = Connections::default();
    let mut report = ConntrackReport {
        packets: [[1, 10], [2, 20], [3, 30], [4, 40], [5, 50]],
        connections: [tcp, udp, none, none],
    };
    let other = report.clone();
    report.merge(&other);
    let json = report.json();
    assert_eq!(json["invalid"], json!({ "packets": 8, "bytes": 80 }));
    assert_eq!(
        json["connections"]["tcp"],
        json!({ "opened": 10, "established": 8, "closed": 6, "reset": 4 })
    );
    assert_eq!(json["connections"]["udp"], json!({ "opened": 14, "replied": 12 }));
    let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let rows = report.rows();
    assert_eq!(rows[0], row("new", "2 packets, 20 IP bytes"));
    assert_eq!(rows[4], row("untracked", "10 packets, 100 IP bytes"));
    assert_eq!(rows[5], row("tcp connections", "10 opened, 8 established, 6 closed, 4 reset"));
    assert_eq!(rows[8], row("other connections", "0 opened, 0 answered"));
}
