//! Any payloads of a flow: no panic, no more memory than promised; and a stream in order tells the same however it is cut. So for names, and for
//! header fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_names::{Field, FieldWatch, Fields, GiveUp, Name, Outcome, Values, Watch};

#[derive(Debug, PartialEq)]
enum End {
    Found(Name),
    NoName,
    GaveUp(GiveUp),
    Open,
}

fn finish<'a>(start: Outcome, payloads: impl Iterator<Item = (u32, &'a [u8])>) -> End {
    let mut outcome = start;
    for (sequence, payload) in payloads {
        let Outcome::More(watch) = outcome else { break };
        assert!(watch.bytes() <= Watch::MAX_BYTES);
        outcome = watch.next(sequence, payload);
    }
    match outcome {
        Outcome::Found(name) => {
            assert!(!name.text.is_empty() && !name.text.chars().any(char::is_control), "{name:?}");
            End::Found(name)
        }
        Outcome::NoName => End::NoName,
        Outcome::GaveUp(reason) => End::GaveUp(reason),
        Outcome::More(watch) => {
            assert!(watch.bytes() <= Watch::MAX_BYTES);
            End::Open
        }
    }
}

/// The values of fields.
fn values<'a>(start: Outcome<Values, FieldWatch>, payloads: impl Iterator<Item = (u32, &'a [u8])>) -> Values {
    let (mut outcome, mut payloads) = (start, payloads);
    let mut values = Values::new();
    loop {
        match outcome {
            Outcome::More(mut watch) => {
                values.extend(watch.take());
                assert!(watch.bytes() <= FieldWatch::MAX_BYTES);
                let Some((sequence, payload)) = payloads.next() else { return values };
                outcome = watch.next(sequence, payload);
            }
            Outcome::Found(last) => {
                assert!(!last.is_empty());
                values.extend(last);
                return values;
            }
            Outcome::NoName | Outcome::GaveUp(_) => return values,
        }
    }
}

// A byte that chooses the port and the field, one for where the stream begins; then payloads: two bytes for the length and one for how much earlier or
// later than expected it comes.
fuzz_target!(|input: &[u8]| {
    const PORTS: [u16; 4] = [443, 53, 80, 5353];
    let [port, begin, rest @ ..] = input else { return };
    let mut rest = rest;
    let field = Field::ALL[usize::from(*port) / PORTS.len() % Field::ALL.len()];
    // With another one, half of the time.
    let fields = Fields::from_iter([field, if *begin < 128 { field } else { Field::HttpUri }]);
    let port = PORTS[usize::from(*port) % PORTS.len()];
    let ports = (50_000, port);
    let mut payloads: Vec<(u32, &[u8])> = Vec::new();
    let mut next = 0u32;
    while let [high, low, early, bytes @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])) % 2048;
        let (payload, after) = bytes.split_at(len.min(bytes.len()));
        payloads.push((next.wrapping_add_signed(i32::from(*early as i8)), payload));
        next = next.wrapping_add(payload.len() as u32);
        rest = after;
    }
    let Some((&(sequence, first), others)) = payloads.split_first() else { return };
    let begin = (begin % 2 == 1).then_some(u32::from(*begin) / 2);
    finish(Watch::start_tcp(50_000, port, begin, sequence, first), others.iter().copied());
    finish(Watch::start_udp(50_000, port, first), others.iter().copied());
    values(FieldWatch::start_tcp(fields, ports, begin, sequence, first), others.iter().copied());
    values(FieldWatch::start_udp(fields, ports, first), others.iter().copied());

    // On a port of DNS the first bytes of a stream tell whether it is TLS, where they come together.
    let stream: Vec<_> = payloads.iter().flat_map(|&(_, payload)| payload).copied().collect();
    if stream.is_empty() || port != 443 && port != 80 {
        return;
    }
    let whole = finish(Watch::start_tcp(50_000, port, None, 0, &stream), std::iter::empty());
    let mut at = 0;
    let in_order = payloads.iter().map(|&(_, payload)| {
        at += payload.len() as u32;
        (at - payload.len() as u32, payload)
    });
    let in_order: Vec<_> = in_order.collect();
    assert_eq!(finish(Watch::start_tcp(50_000, port, Some(0), 0, b""), in_order.iter().copied()), whole);
    let whole = values(FieldWatch::start_tcp(fields, ports, None, 0, &stream), std::iter::empty());
    let start = FieldWatch::start_tcp(fields, ports, Some(0), 0, b"");
    assert_eq!(values(start, in_order.iter().copied()), whole);
});
