//! Keys of the chain file.

use std::path::Path;

use crate::registry::Registration;
use crate::{Context, Form, FunctionSpec};

/// Prepares `balancer` from keys of a chain file.
fn prepare(keys: &str) -> Result<Box<dyn FunctionSpec>, String> {
    let keys = format!("{{ {keys} }}");
    let keys = toml::de::ValueDeserializer::parse(&keys).expect("good TOML");
    let function = Registration::by_name("balancer").expect("a function that is registered");
    let prepare = (function.parse)(keys).map_err(|error| error.message().to_owned())?;
    let context = Context { folder: Path::new("."), ignore_flags: false };
    prepare(&context).map_err(|error| error.to_string())
}

/// Services as they are written in short: what is sent to, and backends of 10.0.0.0/24.
fn services(of: &[(&str, &[&str])]) -> String {
    let service = |&(keys, backends): &(&str, &[&str])| {
        let backends: Vec<_> =
            backends.iter().map(|backend| format!("{{ address = \"10.0.0.{backend} }}")).collect();
        format!("{{ address = \"192.0.2.{keys}, backends = [{}] }}", backends.join(", "))
    };
    let services: Vec<_> = of.iter().map(service).collect();
    format!("table_size = 251, services = [{}]", services.join(", "))
}

#[test]
fn returns_are_said() {
    let services = services(&[("1\", port = 80", &["1\", port = 8080", "2\", weight = 0"])]);
    let line = "192.0.2.1:80: 2 backends, 1 of them drained, a table of 251";
    for (returns, lines, counters) in [
        ("", vec![line], 6),
        (", returns = false", vec![line], 6),
        (", returns = true", vec![line, "packets from backends get their service's address and port"], 10),
    ] {
        let balancer = prepare(&format!("{services}{returns}")).expect("good keys");
        assert_eq!(balancer.describe(), lines);
        let Form::PerFlow(function) = balancer.form() else { panic!("it keeps state for flows") };
        // A device counts by backend: packets, bytes and flows, and packets and bytes that are returned.
        assert_eq!(function.kernel().map(|kernel| kernel.counters()), Some([1, counters]));
    }
}

#[test]
fn backends_of_two_services_are_refused() {
    let of = |services_of: &[(&str, &[&str])]| {
        let services = services(services_of);
        // Without returns all of them are fine.
        assert!(prepare(&services).is_ok(), "{services}");
        prepare(&format!("{services}, returns = true")).err()
    };
    let both = |one: &str, other: &str| {
        Some(format!(
            "packets from backend {one} may be from {other}, too; with returns = true expected backends that differ in address, port or protocol"
        ))
    };
    let port = |backend: &str, service: &str| {
        Some(format!(
            "backend {backend} has a port and service {service} has none, so that packets from it do not say their port; with returns = true expected a port of both or of neither"
        ))
    };
    for (services, error) in [
        // The same address, port and protocol.
        (
            &[("1\", port = 80", &["1\", port = 81"][..]), ("2\", port = 80", &["1\", port = 81"])][..],
            both("10.0.0.1:81 of service 192.0.2.2:80", "10.0.0.1:81 of 192.0.2.1:80"),
        ),
        // The port is that of the packets.
        (
            &[("1\", port = 80", &["3\"", "1\""]), ("2\", port = 80", &["1\""])],
            both("10.0.0.1 of service 192.0.2.2:80", "10.0.0.1 of 192.0.2.1:80"),
        ),
        // One of them is for any port, or any protocol.
        (
            &[("1\", port = 80", &["1\""]), ("2\"", &["1\""])],
            both("10.0.0.1 of service 192.0.2.2", "10.0.0.1 of 192.0.2.1:80"),
        ),
        (
            &[("1\", port = 80, protocol = \"udp\"", &["1\""]), ("2\", port = 80", &["1\""])],
            both("10.0.0.1 of service 192.0.2.2:80", "10.0.0.1 of 192.0.2.1:80 udp"),
        ),
        // Of one address, but for two ports.
        (
            &[("1\", port = 80", &["1\", port = 9"]), ("1\", port = 81", &["1\", port = 9"])],
            both("10.0.0.1:9 of service 192.0.2.1:81", "10.0.0.1:9 of 192.0.2.1:80"),
        ),
        // Which port was it?
        (&[("1\"", &["1\", port = 80"])], port("10.0.0.1:80", "192.0.2.1")),
        // By port, by protocol, by address.
        (&[("1\", port = 80", &["1\", port = 81"]), ("2\", port = 80", &["1\", port = 82"])], None),
        (
            &[
                ("1\", port = 80, protocol = \"tcp\"", &["1\""]),
                ("2\", port = 80, protocol = \"udp\"", &["1\""]),
            ],
            None,
        ),
        (&[("1\"", &["1\""]), ("2\"", &["2\""])], None),
        // Two that give the same.
        (&[("1\", port = 80", &["1\"", "1\", port = 80"]), ("1\"", &["1\""])], None),
    ] {
        assert_eq!(of(services), error, "{services:?}");
    }
}
