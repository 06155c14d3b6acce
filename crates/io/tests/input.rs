//! Text inputs, and what stands at a path that is to be read.

mod support;

use std::fs;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use packetloom_io::Error;
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::{Stop, is_standard, open_text};
use support::*;
use tempfile::{TempDir, tempdir};

/// A file in a directory of its own.
fn file(bytes: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("in");
    fs::write(&path, bytes).expect("written");
    (directory, path)
}

#[test]
fn text_is_decompressed_by_content() {
    let text: String = (0..5_000).map(|i| format!("line {i}\n")).collect();
    let two_members = [gzip(&text.as_bytes()[..100]), gzip(&text.as_bytes()[100..])].concat();
    let files = [
        text.as_bytes().to_vec(),
        gzip(text.as_bytes()),
        two_members,
        gzip_stored(text.as_bytes(), 1_000).bytes,
        xz_stored(text.as_bytes(), 1_000).bytes,
        zstd(text.as_bytes(), 3),
    ];
    for (index, bytes) in files.iter().enumerate() {
        let (_directory, path) = file(bytes);
        let lines: Vec<_> =
            open_text(&path).expect("opened").lines().map(|line| line.expect("text")).collect();
        assert_eq!(lines.len(), 5_000, "file {index}");
        assert!(
            lines.iter().enumerate().all(|(number, line)| *line == format!("line {number}")),
            "file {index}"
        );
    }
}

#[test]
fn short_text_is_not_taken_for_compressed() {
    for text in
        ["", "x", "\x1f", "xz", "\u{fd}7zXZ", "(\u{b5}/\u{fd}", "P*M\x17", "12345", "123456", "1234567"]
    {
        for compression in [Compression::Plain, Compression::Gzip, Compression::Xz, Compression::Zstd] {
            let (_directory, path) = file(&compression.of(text.as_bytes()));
            let mut found = String::new();
            open_text(&path).expect("opened").read_to_string(&mut found).expect("text");
            assert_eq!(found, text, "{compression:?}");
        }
    }
}

#[test]
fn broken_compressed_text_is_an_error_when_it_is_read() {
    let text = "a line\n".repeat(1_000);
    for bytes in [gzip(text.as_bytes()), xz_stored(text.as_bytes(), 1_000).bytes, zstd(text.as_bytes(), 3)] {
        let (_directory, path) = file(&bytes[..bytes.len() - 1]);
        assert!(open_text(&path).expect("opened").read_to_end(&mut Vec::new()).is_err());
    }
}

#[test]
fn the_null_device_is_empty() {
    let mut text = String::new();
    open_text(Path::new("/dev/null")).expect("opened").read_to_string(&mut text).expect("text");
    assert_eq!(text, "");
    match CaptureReader::open(Path::new("/dev/null"), &Stop::default()) {
        Err(Error::Empty { path }) => assert_eq!(path, "/dev/null"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_that_cannot_be_read_are_named() {
    let (directory, path) = file(b"a file");
    for path in
        [directory.path().to_path_buf(), directory.path().join("missing"), path.join("below"), PathBuf::new()]
    {
        let text = open_text(&path).map(|_| ()).expect_err("not to be opened");
        let capture = CaptureReader::open(&path, &Stop::default()).expect_err("not to be opened");
        for error in [text, capture] {
            assert!(matches!(error, Error::Open { .. } | Error::Io { .. }), "{error:?}");
            assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
        }
    }
}

#[test]
fn captures_that_are_none_are_named() {
    let capture = pcap_sample(Order::Little, MICROS);
    let cases: [(&[u8], &str); 4] = [
        (b"", "empty; expected a pcap or pcapng capture"),
        (
            b"GET / HTTP/1.1",
            "not a capture: it begins with 47 45 54 20 2f 20 48 54; expected pcap or pcapng, plain or in gzip, xz or zstd",
        ),
        (&capture.bytes[..23], "cut within its pcap file header"),
        (b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a", "cut within its pcapng file header"),
    ];
    for (bytes, message) in cases {
        let (_directory, path) = file(bytes);
        let error = CaptureReader::open(&path, &Stop::default()).expect_err("no capture");
        assert_eq!(error.to_string(), format!("{}: {message}", path.display()));
    }
}

#[test]
fn a_file_is_named_by_its_path() {
    let (_directory, path) = file(&pcap_sample(Order::Little, MICROS).bytes);
    let reader = CaptureReader::open(&path, &Stop::default()).expect("a capture");
    assert_eq!(reader.name(), path.display().to_string());
}

#[test]
fn only_a_dash_is_standard_input() {
    assert!(is_standard(Path::new("-")));
    for path in ["", "./-", "--", "a-", "/-"] {
        assert!(!is_standard(Path::new(path)), "{path}");
    }
}
