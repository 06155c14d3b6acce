//! Any text as a filter, and any bytes as a frame that it is run on: no panic; a mistake has its place in the text; and a filter matches
//! where its negation does not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_filter::{Filter, FlowFilter};
use packetloom_packet::{FlowKey, Key, LinkType, dissect};

// A byte that chooses the link type, two for the length on the wire, the filter, a NUL, the frame.
fuzz_target!(|input: &[u8]| {
    const LINKS: [u16; 10] = [1, 0, 12, 101, 108, 113, 228, 229, 276, 147];
    let [link, high, low, rest @ ..] = input else { return };
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    let frame = rest.get(end + 1..).unwrap_or_default();
    let Ok(text) = std::str::from_utf8(&rest[..end]) else { return };
    let link = LinkType(LINKS[usize::from(*link) % LINKS.len()]);
    let wire_len = u32::from(u16::from_be_bytes([*high, *low]));
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => {
            let at = text.char_indices().nth(error.column() - 1).map_or(text.len(), |(at, _)| at);
            assert!(text[at..].starts_with(error.word()), "{error:?}");
            return;
        }
    };
    let matches = filter.matches(link, frame, wire_len);
    // One of flows finds those of the packets that it finds.
    if let (Ok(of_flows), Ok(headers)) = (FlowFilter::parse(text), dissect(link, frame, wire_len)) {
        let flow = match headers.key {
            Key::V4(key) => FlowKey::from_v4(&key).0,
            Key::V6(key) => FlowKey::from_v6(&key).0,
        };
        of_flows.matches(&flow);
    }
    // Another pair of parentheses, or seven bytes more, may be too much.
    if let Ok(negated) = Filter::parse(&format!("not ({text})")) {
        assert_ne!(negated.matches(link, frame, wire_len), matches);
    }
});
