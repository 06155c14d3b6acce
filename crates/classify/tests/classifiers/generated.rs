//! Generated sets with the structure of real ones, and headers made for them.

use packetloom_classify::RuleSet;
use packetloom_classify::formats::read_headers;
use packetloom_generate::{
    HeaderFormat, HeaderOptions, Headers, Popularity, RuleOptions, RuleShape, Style, generate_rules,
    write_headers,
};
use packetloom_packet::Key;

use crate::check::agree_with_oracle;
use crate::keys::{Random, at_the_edges, near_rules};

/// Rules, and what headers are made of.
pub(crate) fn rule_set(options: &RuleOptions) -> (RuleSet, Vec<RuleShape>) {
    let rules = RuleSet { rules: generate_rules(options).expect("rules") };
    let shapes = rules.rules.iter().flat_map(RuleShape::of).collect();
    (rules, shapes)
}

/// Headers for rules, or mixed ones, of which most match late or not at all.
pub(crate) fn headers(shapes: &[RuleShape], count: u64, seed: u64, mix: bool) -> Vec<Key> {
    let options = HeaderOptions { count, seed, popularity: Popularity::Uniform, mix };
    let mut text = Vec::new();
    let headers = Headers::new(shapes, &options).expect("headers");
    write_headers(headers, HeaderFormat::Native, &mut text).expect("written");
    let headers = read_headers("generated", &mut &*text).expect("headers");
    headers.v4.into_iter().map(Key::V4).chain(headers.v6.into_iter().map(Key::V6)).collect()
}

fn check(ipv6: bool) {
    for (style, seed) in Style::ALL.into_iter().zip(1..) {
        let options = RuleOptions { style, count: 2_000, seed, ipv6 };
        let (mut rules, shapes) = rule_set(&options);
        // The last rule matches everything: without it, mixed headers match nothing.
        for _ in 0..2 {
            for mix in [false, true] {
                agree_with_oracle(&rules, &headers(&shapes, 5_000, seed, mix), &[256]);
            }
            let mut random = Random(seed);
            agree_with_oracle(&rules, &at_the_edges(&rules, 40, &mut random), &[128]);
            agree_with_oracle(&rules, &near_rules(&rules, 5_000, &mut random), &[0, 1_000]);
            rules.rules.pop();
        }
    }
}

#[test]
fn generated_ipv4_rules_agree() {
    check(false);
}

#[test]
fn generated_ipv6_rules_agree() {
    check(true);
}

/// Too many rules for class tables alone: several kinds of tables, and packets that leave some of them out.
#[test]
fn many_generated_rules_agree() {
    for (style, ipv6) in Style::ALL.into_iter().flat_map(|style| [(style, false), (style, true)]) {
        let options = RuleOptions { style, count: 20_000, seed: 7, ipv6 };
        let rules = RuleSet { rules: generate_rules(&options).expect("rules") };
        agree_with_oracle(&rules, &near_rules(&rules, 2_000, &mut Random(7)), &[0, 256]);
    }
}
