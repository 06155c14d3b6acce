//! The meter on devices: records are the oracle's.

#![allow(missing_docs)]

mod support;

use support::{How, devices, is_slow, results, traffic};

const ORACLE: &str = "device = \"oracle\"";
/// All but names, which are in payloads.
const ALL_FIELDS: &str = "standard,flowStartMicroseconds,flowEndMicroseconds,fragmentFlags,fragments,sourceMacAddress,\
    destinationMacAddress,outcome";

#[test]
fn records_are_the_oracles() {
    for fields in ["basic", ALL_FIELDS] {
        for end_of_flow in [false, true] {
            for (idle, active) in [("900ms", "5s"), ("2ms", "9ms"), ("0", "0")] {
                let chain = format!(
                    "[[chain]]\nnf = \"meter\"\nmax_flows = 4000\nidle_timeout = \"{idle}\"\nactive_timeout = \"{active}\"\noutput = \"flows\"\n\
                     fields = \"{fields}\"\nend_of_flow = {end_of_flow}\n"
                );
                let capture = traffic(6_000, 300, 7);
                let (oracle, ..) = results(&chain, &capture, How { settings: ORACLE, ..How::default() });
                for device in devices() {
                    let _ = is_slow(&device);
                    let settings = format!("device = \"{}\"", device.description().id);
                    let how = How { settings: &settings, devices: vec![device], ..How::default() };
                    let (found, shares, notices) = results(&chain, &capture, how);
                    assert_eq!(shares.map(|shares| shares.device), Some(6_000), "{notices:?} {chain}");
                    assert_eq!(found, oracle, "{settings}\n{chain}");
                }
            }
        }
    }
}
