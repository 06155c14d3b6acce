//! Any text as a chain file: no panic, and every error names a line of it.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use packetloom_engine::{Chain, Plan};
use packetloom_nf::Context;

fuzz_target!(|text: &str| {
    // Files that a text names may be anything on this machine: a relative path leads nowhere from here, and a path with a
    // slash, or an escape that may stand for one, is left alone.
    if text.contains(['/', '\\']) {
        return;
    }
    let context = Context { folder: Path::new("/dev/null/none"), ignore_flags: false };
    match Chain::parse("chain.toml", text, context) {
        Ok(chain) => assert!(!Plan::new(chain).to_string().is_empty()),
        Err(error) => assert!((1..=text.lines().count().max(1) + 1).contains(&error.line), "{error}"),
    }
});
