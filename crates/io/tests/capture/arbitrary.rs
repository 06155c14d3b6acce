//! Bytes that nobody meant to be a capture.

use packetloom_io::Error;
use proptest::prelude::*;

use crate::support::*;

/// What came of opening and reading; an error as its variant alone, since it names the input.
fn outcome(way: Way, bytes: &[u8]) -> Result<Reading, &'static str> {
    let reader = way.open(bytes).map_err(|error| match error {
        Error::Empty { .. } => "empty",
        Error::NotACapture { .. } => "not a capture",
        Error::HeaderCut { .. } => "header cut",
        _ => "something else",
    })?;
    Ok(read_in_batches(reader, 5).expect("memory and streams can be read"))
}

/// All ways must come to the same; returns it.
fn agreed(bytes: &[u8], sizes: &[usize]) -> Result<Reading, &'static str> {
    let memory = outcome(Way::Bytes, bytes);
    for size in sizes {
        for compression in [Compression::Plain, Compression::Gzip] {
            let stream = outcome(Way::Pieces(*size, compression), bytes);
            assert_eq!(stream, memory, "pieces of {size}, {compression:?}");
        }
    }
    assert_eq!(outcome(Way::File(Compression::Plain), bytes), memory, "mapped");
    for size in sizes {
        if let Ok(reader) = Way::Bytes.open(bytes) {
            let sections = read_in_sections(reader, 5, *size).expect("memory can be read");
            assert_eq!(Ok(&sections.0), memory.as_ref(), "sections of {size}");
        }
    }
    memory
}

/// A valid file header of every format.
fn headers() -> Vec<Vec<u8>> {
    let mut headers = Vec::new();
    for order in ORDERS {
        for magic in [MICROS, NANOS, KUZNETZOV] {
            headers.push(Pcap::new(order, magic, 1).capture.bytes);
        }
        headers.push(Pcapng::new(order).capture.bytes);
        let mut file = Pcapng::new(order);
        let nanos = file.option(TSRESOL, &[9]);
        headers.push(file.interface(1, 0, &[]).interface(1, 64, &nanos).capture().bytes);
    }
    headers
}

/// Bytes that look a little like records: small numbers in 32 bits, block types, and noise.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let small = (0u32..64, any::<bool>())
        .prop_map(|(value, big)| if big { value.to_be_bytes() } else { value.to_le_bytes() });
    let special =
        proptest::sample::select(vec![0x0a0d_0d0au32, 0x1a2b_3c4d, 0xffff_ffff, 0x0010_0000, 0x00ff_fffc]);
    let special = (special, any::<bool>())
        .prop_map(|(value, big)| if big { value.to_be_bytes() } else { value.to_le_bytes() });
    let word = prop_oneof![8 => small, 1 => special, 1 => any::<[u8; 4]>()].prop_map(|word| word.to_vec());
    let noise = proptest::collection::vec(any::<u8>(), 0..9);
    proptest::collection::vec(prop_oneof![9 => word, 1 => noise], 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn anything_at_all(bytes in proptest::collection::vec(any::<u8>(), 0..100), size in 1usize..40) {
        // Memory is never decompressed.
        prop_assume!(!bytes.starts_with(&[0x1f, 0x8b]) && !bytes.starts_with(b"\xfd7zXZ\0"));
        prop_assume!(!bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && bytes.get(1..4) != Some(&[0x2a, 0x4d, 0x18]));
        let _ = agreed(&bytes, &[size]);
    }

    #[test]
    fn anything_after_a_header(header in proptest::sample::select(headers()), rest in pieces(), size in 1usize..100) {
        let bytes = [header, rest].concat();
        let reading = agreed(&bytes, &[size]).expect("a whole header");
        // Reading neither stops before the end without a word nor goes beyond it.
        let offset = reading.truncation.map_or(0, |truncation| truncation.offset);
        prop_assert!(offset <= bytes.len() as u64);
        let captured: usize = reading.frames.iter().map(|frame| frame.bytes.len()).sum();
        prop_assert!(captured <= bytes.len());
    }

    #[test]
    fn damaged_samples(
        sample in proptest::sample::select(samples()),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
        size in 1usize..300,
    ) {
        let mut bytes = sample.1.bytes;
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = agreed(&bytes, &[size]);
    }

    #[test]
    fn damaged_compressed_samples(
        sample in proptest::sample::select(samples()),
        compression in proptest::sample::select(vec![Compression::Gzip, Compression::Xz, Compression::Zstd]),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        size in 1usize..30,
    ) {
        let mut bytes = compression.of(&sample.1.bytes);
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        // No panic, and however the damage is met, in small pieces or in large ones, the same frames.
        let read = |size| open_pieces(&bytes, size).ok().map(|reader| read_in_batches(reader, 5).expect("no error").frames);
        prop_assert_eq!(read(size), read(4096));
    }
}
