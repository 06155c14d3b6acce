//! rte_acl finds what the linear oracle finds. Builds with the feature `dpdk` only.

#![cfg(feature = "dpdk")]
#![allow(missing_docs)]

use packetloom_bench::Error;
use packetloom_bench::acl::{Options, run};
use packetloom_bench::peer::Peer;
use packetloom_classify::formats::{self, Headers, read_headers, read_rules};
use packetloom_classify::{Kind, RuleSet};
use packetloom_io::input::{Stop, open_text};
use packetloom_packet::key::halves;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};

fn parse(text: &str) -> RuleSet {
    read_rules("rules", &mut text.as_bytes(), &formats::Options::default()).expect("rules").rules
}

/// Compares the peer with linear on all headers.
fn agree(rules: &RuleSet, headers: &Headers) -> Result<(), Error> {
    let options = Options {
        kinds: vec![Kind::Linear],
        peer: Some(Peer::RteAcl),
        batches: vec![256],
        rounds: 1,
        workload: "test".into(),
    };
    let measurements = run(rules, headers, &options, &Stop::default())?;
    let peer = measurements[0].json();
    assert!(peer["classifier"].as_str().is_some_and(|name| name.starts_with("rte_acl ")), "{peer}");
    assert!(peer["peer_version"].as_str().is_some_and(|version| version.starts_with("DPDK ")), "{peer}");
    assert!(peer["build_ms"].is_number() && peer["memory_mb"].is_number(), "{peer}");
    Ok(())
}

/// Headers of every kind: protocols, addresses, ports, flags and bits in all combinations.
fn headers(bits: &[KeyBits]) -> Headers {
    let mut headers = Headers::default();
    for protocol in [1, 6, 17, 58] {
        for (source, destination) in [(0, 0x0a00_0001), (0x0a00_0001, 0x0a01_0203), (0xc000_0201, u32::MAX)] {
            for (source_port, destination_port) in [(0, 0), (8, 0), (1024, 80), (80, 65535)] {
                for tcp_flags in [0, 0x02, 0x12, 0x10] {
                    for &bits in bits {
                        let key = MatchKey4 {
                            source,
                            destination,
                            source_port,
                            destination_port,
                            protocol,
                            tcp_flags,
                            bits,
                            reserved: 0,
                        };
                        headers.push(Key::V4(key));
                        let address =
                            |v4: u32| halves(0x2001_0db8 << 96 | u128::from(v4) << 40 | u128::from(v4));
                        headers.push(Key::V6(MatchKey6 {
                            source: address(source),
                            destination: address(destination),
                            source_port,
                            destination_port,
                            protocol,
                            tcp_flags,
                            bits,
                            reserved: 0,
                        }));
                    }
                }
            }
        }
    }
    headers
}

const RULES: &str = "
    permit tcp from 10.0.0.0/8 to any port 80 flags S/SA
    permit tcp from any to any flags A/A fragment none
    deny udp from any port 1000-2000 to 10.1.0.0/16
    permit icmp from any to any type 8 code 0
    deny any from 192.0.2.0/24 to any fragment later
    permit any from 10.0.0.0/8 to any fragment any
    permit 58 from 2001:db8::/32 to 2001:db8::a00:1:0:a00:1/128
    permit tcp from 2001:db8::c0:0:0:0/90 to any port 65535
    deny any from 2001:db8:0:a::/64 to any fragment first
    permit any from any port 1024 to any
";

/// Bits of one packet each, as they are taken from packets.
fn bits() -> Vec<KeyBits> {
    let whole = KeyBits::WHOLE;
    vec![
        whole,
        whole.with(KeyBits::PORTS),
        whole.with(KeyBits::PORTS).with(KeyBits::TCP_FLAGS),
        whole.with(KeyBits::ICMP),
        KeyBits::FIRST_FRAGMENT.with(KeyBits::PORTS),
        KeyBits::LATER_FRAGMENT,
    ]
}

#[test]
fn rules_of_every_kind_mean_the_same() {
    agree(&parse(RULES), &headers(&bits())).expect("agreement");
    // Few kinds of headers, so that rules ask for nothing, or in vain.
    for bits in bits() {
        agree(&parse(RULES), &headers(&[bits])).expect("agreement");
    }
}

#[test]
fn headers_that_no_rule_can_meet() {
    let headers = headers(&[KeyBits::WHOLE]);
    agree(&parse("permit tcp from 2001:db8::/32 to any port 80\n"), &headers).expect("agreement");
    agree(&RuleSet::default(), &headers).expect("agreement");
}

#[test]
fn a_rule_without_words_is_refused() {
    let bits = [bits(), vec![KeyBits(0)]].concat();
    match agree(&parse(RULES), &headers(&bits)) {
        Err(Error::Peer(message)) => assert!(message.contains("rule at line 7"), "{message}"),
        other => panic!("{other:?}; expected an error"),
    }
}

fn corpus(size: &str) {
    let Some(folder) = packetloom_testing::corpus("rules") else { return };
    for style in ["acl1", "fw1", "ipc1"] {
        let text = |extension: &str| {
            open_text(&folder.join(format!("{style}_{size}.{extension}.xz"))).expect("a file of the corpus")
        };
        let options = formats::Options { ignore_flags: true, ..formats::Options::default() };
        let rules = read_rules("rules", &mut *text("rules"), &options).expect("rules").rules;
        let headers = read_headers("trace", &mut *text("trace")).expect("headers");
        assert_eq!(headers.len(), 100_000);
        agree(&rules, &headers).unwrap_or_else(|error| panic!("{style}_{size}: {error}"));
    }
}

#[test]
fn rule_sets_of_a_thousand() {
    corpus("1k");
}

#[test]
fn rule_sets_of_ten_thousand() {
    corpus("10k");
}
