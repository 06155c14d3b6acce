//! nftables as JSON.

use packetloom_classify::formats::{self, Format, Options, Reading};
use proptest::prelude::*;

use super::netfilter::{self, Table};

fn read_with(text: &str, options: &Options) -> Result<Reading, String> {
    formats::read_rules("f", &mut text.as_bytes(), options).map_err(|error| error.to_string())
}

fn read(text: &str) -> Result<Reading, String> {
    read_with(text, &Options::default())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_decide_as_the_kernel_does(
        (model, packets) in any::<bool>().prop_flat_map(|v6| {
            (netfilter::model(v6), prop::collection::vec(netfilter::packet(v6), 200))
        }),
        inet in any::<bool>(),
        log_apart in any::<bool>(),
    ) {
        let model = model.for_nftables();
        let text = model.nftables(if inet { Table::Inet } else { Table::OneFamily }, log_apart);
        let reading = read(&text);
        // Two negated IPv6 prefixes and a negated protocol in one rule can be two million rules.
        prop_assume!(!reading.as_ref().is_err_and(|error| error.contains(" that make more than 1048576 rules")));
        let reading = reading.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(reading.format, Format::Nftables);
        prop_assert_eq!(reading.default, Some(model.policy));
        model.compare(&reading, &packets).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
    }
}
