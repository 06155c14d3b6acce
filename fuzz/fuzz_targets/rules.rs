//! Any bytes as rules, of the format that they look like, and as headers: no panic; rules that are read are shown in a form that
//! reads as the same rules; and all classifiers find the rules that one finds who compares them one by one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_classify::compiled::{CompiledRule, MatchKey, first_match};
use packetloom_classify::formats::{Options, read_headers, read_rules};
use packetloom_classify::{Action, Kind, PacketContext, RuleSet};

/// Rules that are looked at closer.
const MAX_RULES: usize = 20_000;

// Rules, a NUL, headers.
fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (mut rules, mut headers) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    let options = Options::default();
    let skipping = Options { skip_unsupported: true, ..Options::default() };
    let headers = read_headers("headers", &mut headers);
    let reading = read_rules("rules", &mut &*rules, &options);
    let Ok(reading) = reading.or_else(|_| read_rules("rules", &mut rules, &skipping)) else { return };
    let mut rules = reading.rules;
    // A few lines can become a million rules: what is done with those takes longer than a fuzzer waits.
    if rules.rules.len() > MAX_RULES {
        return;
    }
    let mut text = String::new();
    for rule in &mut rules.rules {
        rule.action.get_or_insert(Action::Permit);
        // Ports with a protocol that has none are ClassBench's alone: there is no line for them in our own format.
        if rule.protocol.is_some_and(|p| !packetloom_packet::protocol::has_ports(p)) {
            rule.source_ports = packetloom_classify::rule::PortRange::ANY;
            rule.destination_ports = packetloom_classify::rule::PortRange::ANY;
        }
        text += &format!("{rule}\n");
    }
    let again = read_rules("again", &mut text.as_bytes(), &options).expect("a shown rule can be read");
    let mut again = again.rules;
    for (again, rule) in again.rules.iter_mut().zip(&rules.rules) {
        again.line = rule.line;
    }
    assert_eq!(again, rules);
    if let Ok(headers) = headers {
        // As packets meet them that open a connection, of which no more is known.
        let (rules, _) = rules.seen_in(&PacketContext::NEW);
        let v4 = expected(&rules, &headers.v4);
        let v6 = expected(&rules, &headers.v6);
        for kind in Kind::ALL {
            let classifier = kind.build(&rules);
            let mut first = (vec![0; headers.v4.len()], vec![0; headers.v6.len()]);
            classifier.classify_v4(&headers.v4, &mut first.0);
            classifier.classify_v6(&headers.v6, &mut first.1);
            assert_eq!((&first.0, &first.1), (&v4, &v6), "{kind}");
        }
    }
});

fn expected<K: MatchKey>(rules: &RuleSet, keys: &[K]) -> Vec<u32> {
    let rules = CompiledRule::all(rules);
    keys.iter().map(|key| first_match(&rules, key)).collect()
}
