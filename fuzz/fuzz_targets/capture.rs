//! Any bytes as a capture: no panic, no frame outside its arena, and the same frames from memory as from a stream that
//! arrives in pieces.
#![no_main]

use std::io::Read;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use packetloom_io::capture::{CaptureReader, Findings};
use packetloom_io::input::Stop;
use packetloom_packet::{Batch, FrameRef, LinkType};

/// Yields its bytes a few at a time.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    step: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(self.step).min(self.bytes.len() - self.at);
        buffer[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Every frame with its bytes, whether the capture was cut, and what was odd about it.
fn frames(mut reader: CaptureReader) -> (Vec<(FrameRef, Vec<u8>)>, bool, Findings) {
    let mut batch = Batch::new(7);
    let mut frames = Vec::new();
    while reader.fill(&mut batch).expect("memory can be read") {
        for (index, frame) in batch.frames().iter().enumerate() {
            let bytes = batch.bytes(index).to_vec();
            assert_eq!(bytes.len(), frame.len as usize, "a frame lies within its arena");
            frames.push((FrameRef { offset: 0, ..*frame }, bytes));
        }
    }
    let findings = reader.findings();
    let undefined = frames.iter().filter(|(frame, _)| frame.link == LinkType::NONE).count() as u64;
    assert_eq!(findings.undefined.map_or(0, |undefined| undefined.frames), undefined);
    let is_unsupported = |link: LinkType| !link.is_supported() && link != LinkType::NONE;
    let unsupported = frames.iter().filter(|(frame, _)| is_unsupported(frame.link)).count() as u64;
    assert_eq!(findings.unsupported.values().sum::<u64>(), unsupported);
    let _ = findings.warnings();
    (frames, reader.truncation().is_some(), findings)
}

// The first byte is the size of the pieces.
fuzz_target!(|input: &[u8]| {
    let Some((&step, bytes)) = input.split_first() else { return };
    let bytes = bytes.to_vec();
    let compressed = [&[0x1f, 0x8b][..], &[0xfd, b'7', b'z', b'X', b'Z', 0], &[0x28, 0xb5, 0x2f, 0xfd]]
        .iter()
        .any(|magic| bytes.starts_with(magic))
        || bytes.get(1..4) == Some(&[0x2a, 0x4d, 0x18]);
    let pieces = Pieces { bytes: bytes.clone(), at: 0, step: usize::from(step) * 3 + 1 };
    let stream = CaptureReader::from_reader("stream", pieces, &Stop::default()).map(frames);
    if !compressed {
        let memory = CaptureReader::from_bytes("memory", Arc::new(bytes)).map(frames);
        assert_eq!(memory.ok(), stream.ok());
    }
});
