//! Captures, read the obvious way.

use std::fs;
use std::path::Path;

/// A frame of a capture: its link type, time in nanoseconds, lengths, bytes and comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub link: u16,
    pub nanos: u64,
    pub wire_len: u32,
    pub bytes: Vec<u8>,
    pub comments: Vec<String>,
}

impl Frame {
    /// The only comment.
    pub fn comment(&self) -> &str {
        let [comment] = &self.comments[..] else { panic!("{} comments", self.comments.len()) };
        comment
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The options with this code.
fn options(mut options: &[u8], code: u16) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while options.len() >= 4 {
        let (found, len) = (u16_at(options, 0), u16_at(options, 2) as usize);
        if found == code {
            all.push(&options[4..4 + len]);
        }
        options = &options[4 + len.next_multiple_of(4)..];
    }
    all
}

/// The frames of a pcapng file of nanoseconds.
pub fn pcapng(path: &Path) -> Vec<Frame> {
    let file = fs::read(path).expect("a capture");
    let (mut links, mut frames) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < file.len() {
        let len = u32_at(&file, at + 4) as usize;
        assert_eq!(u32_at(&file, at + len - 4) as usize, len, "the length stands at both ends");
        let body = &file[at + 8..at + len - 4];
        match u32_at(&file, at) {
            0x0a0d_0d0a => assert_eq!((at, u32_at(body, 0)), (0, 0x1a2b_3c4d)),
            1 => {
                assert_eq!(options(&body[8..], 9), [&[9][..]]);
                links.push(u16_at(body, 0));
            }
            6 => {
                let captured = u32_at(body, 12) as usize;
                let comments = options(&body[20 + captured.next_multiple_of(4)..], 1);
                let comments =
                    comments.into_iter().map(|text| String::from_utf8(text.to_vec()).expect("text"));
                frames.push(Frame {
                    link: links[u32_at(body, 0) as usize],
                    nanos: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
                    wire_len: u32_at(body, 16),
                    bytes: body[20..20 + captured].to_vec(),
                    comments: comments.collect(),
                });
            }
            kind => panic!("block {kind}"),
        }
        at += len;
    }
    frames
}

/// Times and bytes of the frames of a pcap file, of microseconds or nanoseconds.
pub fn pcap(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = fs::read(path).expect("a capture");
    let unit = if u32_at(&file, 0) == 0xa1b2_3c4d { 1 } else { 1_000 };
    let (mut at, mut frames) = (24, Vec::new());
    while at < file.len() {
        let len = u32_at(&file, at + 8) as usize;
        let nanos = u64::from(u32_at(&file, at)) * 1_000_000_000 + u64::from(u32_at(&file, at + 4)) * unit;
        frames.push((nanos, file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    frames
}
