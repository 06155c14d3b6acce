//! `iptables-save` and `ip6tables-save`.

use packetloom_classify::Action;
use packetloom_classify::formats::{self, Format, Options, Reading, WriteOptions};
use proptest::prelude::*;

use super::netfilter::{self, Model, Packet};

fn read_with(text: &str, options: &Options) -> Result<Reading, String> {
    formats::read_rules("f", &mut text.as_bytes(), options).map_err(|error| error.to_string())
}

fn options(v6: bool) -> Options {
    let format = if v6 { Format::Ip6tables } else { Format::Iptables };
    Options { format: Some(format), ..Options::default() }
}

fn read(text: &str, v6: bool) -> Result<Reading, String> {
    read_with(text, &options(v6))
}

/// A model that is read as iptables prints it decides as the model does.
fn check(model: &Model, packets: &[Packet]) -> Result<(), TestCaseError> {
    let text = model.iptables();
    let reading = read(&text, model.v6);
    // Two negated IPv6 prefixes and a negated protocol in one rule can be two million rules.
    prop_assume!(!reading.as_ref().is_err_and(|error| error.contains(" that make more than 1048576 rules")));
    let reading = reading.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
    prop_assert_eq!(reading.default, Some(model.policy));
    model.compare(&reading, packets).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_decide_as_the_kernel_does(
        (model, packets) in any::<bool>().prop_flat_map(|v6| {
            (netfilter::model(v6), prop::collection::vec(netfilter::packet(v6), 200))
        })
    ) {
        check(&model, &packets)?;
    }
}
