//! Several captures read as one, and what names them.

use std::fs;
use std::path::{Path, PathBuf};

use packetloom_io::capture::{CaptureSeries, FileReport, Resolution, Selection};
use packetloom_io::input::Stop;
use packetloom_io::{Error, Polled, Source};
use packetloom_packet::Batch;
use tempfile::{TempDir, tempdir};

use crate::support::*;

/// A folder with files of these names and bytes.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempdir().expect("a temporary directory");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, bytes).expect("written");
    }
    folder
}

fn at(folder: &TempDir, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.path().join(name)).collect()
}

fn open(folder: &TempDir, names: &[&str]) -> Result<CaptureSeries, Error> {
    CaptureSeries::open(&at(folder, names), &Stop::default())
}

/// A pcap file whose packets come at these seconds.
fn seconds(order: Order, magic: u32, link: u32, seconds: &[u32]) -> Capture {
    let mut file = Pcap::new(order, magic, link);
    for second in seconds {
        file.record(*second, 1, 60, format!("second {second} of link type {link}").as_bytes());
    }
    file.capture()
}

/// The frames of all captures in batches of up to so many, none of which is across captures.
fn read(series: &mut CaptureSeries, capacity: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    loop {
        let mut batch = Batch::new(capacity);
        match series.poll(&mut batch).expect("no error") {
            Polled::Frames => frames.extend(frames_of(&batch)),
            Polled::Nothing => panic!("files never wait"),
            Polled::End => break,
        }
        assert!(!batch.is_empty());
    }
    assert_eq!(series.poll(&mut Batch::new(1)).expect("no error"), Polled::End);
    frames
}

/// The frames of captures, one after the other.
fn joined(captures: &[&Capture]) -> Vec<Frame> {
    captures.iter().flat_map(|capture| capture.frames.clone()).collect()
}

#[test]
fn captures_of_all_kinds_are_read_in_the_order_of_their_first_packets() {
    let a = seconds(Order::Big, NANOS, 1, &[30, 10]);
    let b = seconds(Order::Little, MICROS, 101, &[20]);
    let c = seconds(Order::Little, KUZNETZOV, 147, &[25, 26, 27]);
    let mut d = Pcapng::new(Order::Big);
    d.interface(1, 0, &[]).enhanced(0, 40_000_000, 3, b"ng").gives(frame(40_000_000_000, 3, b"ng"));
    let d = d.capture();
    let empty = seconds(Order::Little, MICROS, 1, &[]);
    let folder = folder(&[
        ("empty", &empty.bytes),
        ("a.gz", &gzip(&a.bytes)),
        ("b", &b.bytes),
        ("c.zst", &zstd(&c.bytes, 3)),
        ("d.xz", &xz_stored(&d.bytes, 50).bytes),
    ]);
    for names in [
        ["empty", "a.gz", "b", "c.zst", "d.xz"],
        ["d.xz", "c.zst", "b", "a.gz", "empty"],
        ["b", "d.xz", "empty", "c.zst", "a.gz"],
    ] {
        for capacity in [1, 2, 100] {
            let mut series = open(&folder, &names).expect("captures");
            assert_eq!(
                (series.name(), series.total(), series.resolution()),
                ("5 captures", None, Resolution::Nanos)
            );
            assert_eq!(read(&mut series, capacity), joined(&[&b, &c, &a, &d]), "{names:?}");
            let len = [&a, &b, &c, &d, &empty].iter().map(|capture| capture.bytes.len() as u64).sum();
            assert_eq!((series.position(), series.truncation()), (len, None));
            let reports = series.files();
            assert_eq!(reports.len(), 1, "{reports:?}");
            assert!(reports[0].name.ends_with("c.zst") && reports[0].findings.unsupported[&147] == 3);
        }
    }
}

#[test]
fn captures_that_begin_at_the_same_time_stay_in_their_order() {
    let [a, b, c] = [101, 1, 228].map(|link| seconds(Order::Little, MICROS, link, &[7, 8]));
    let folder = folder(&[("1", &a.bytes), ("2", &b.bytes), ("3", &c.bytes)]);
    let mut series = open(&folder, &["3", "1", "2"]).expect("captures");
    assert_eq!(series.total(), Some([&a, &b, &c].iter().map(|capture| capture.bytes.len() as u64).sum()));
    assert_eq!(series.resolution(), Resolution::Micros);
    assert_eq!(read(&mut series, 100), joined(&[&c, &a, &b]));
}

#[test]
fn each_capture_says_what_is_odd_about_it() {
    let whole = seconds(Order::Little, MICROS, 1, &[1, 2]);
    let cut = seconds(Order::Big, MICROS, 1, &[3, 4]);
    let odd = seconds(Order::Little, NANOS, 147, &[5]);
    let folder = folder(&[
        ("whole", &whole.bytes),
        ("cut", &cut.bytes[..cut.bytes.len() - 1]),
        ("odd.gz", &[gzip(&odd.bytes), b"garbage".to_vec()].concat()),
    ]);
    let mut series = open(&folder, &["odd.gz", "cut", "whole"]).expect("captures");
    assert!(series.files().is_empty() && series.truncation().is_none());
    let frames = read(&mut series, 100);
    assert_eq!(frames, [&whole.frames[..], &cut.frames[..1], &odd.frames].concat());
    let reports = series.files();
    let [first, second] = &reports[..] else { panic!("{reports:?}") };
    let path = |name: &str| folder.path().join(name).display().to_string();
    let offset = cut.frames[..1].len() as u64;
    assert_eq!(offset, 1);
    assert_eq!(first.name, path("cut"));
    assert_eq!(first.truncation.as_ref().expect("a truncation").reason, "the file ends within a record");
    assert_eq!(series.truncation(), first.truncation.as_ref());
    assert_eq!(second.name, path("odd.gz"));
    assert!(second.truncation.as_ref().is_some_and(|truncation| truncation.reason.contains("67 61")));
    assert_eq!(second.findings.unsupported[&147], 1);
    // One alone says it as before.
    let mut alone = open(&folder, &["cut"]).expect("a capture");
    assert_eq!((alone.name(), alone.total()), (&path("cut")[..], Some(cut.bytes.len() as u64 - 1)));
    assert_eq!(read(&mut alone, 100), cut.frames[..1]);
    assert_eq!(alone.truncation(), first.truncation.as_ref());
    assert_eq!(alone.files(), Vec::<FileReport>::new());
}

#[test]
fn sections_are_those_of_the_capture_that_is_read() {
    let captures: Vec<_> = (0..3)
        .map(|number| {
            seconds(Order::Little, MICROS, 1, &(number * 500..number * 500 + 400).collect::<Vec<_>>())
        })
        .collect();
    let names = ["0", "1", "2"];
    let files: Vec<_> =
        names.iter().zip(&captures).map(|(name, capture)| (*name, &capture.bytes[..])).collect();
    let folder = folder(&files);
    let mut series = open(&folder, &names).expect("captures");
    let (mut frames, mut others) = (Vec::new(), 0);
    loop {
        while let Some(sections) = series.sections(2_000) {
            let mut batches = [Batch::new(300), Batch::new(300), Batch::new(300)];
            let mut found = [None; 3];
            for (number, batch) in batches.iter_mut().enumerate() {
                found[number] = sections.find(number, batch);
            }
            let before = frames.len();
            for (number, (batch, section)) in batches.iter().zip(found).enumerate() {
                if batch.is_empty() || !section.is_some_and(|section| series.accept(section)) {
                    break;
                }
                frames.extend(frames_of(batch));
                others += usize::from(number > 0);
            }
            if frames.len() == before {
                break;
            }
        }
        let mut batch = Batch::new(5);
        match series.poll(&mut batch).expect("no error") {
            Polled::End => break,
            _ => frames.extend(frames_of(&batch)),
        }
    }
    assert_eq!(frames, joined(&captures.iter().collect::<Vec<_>>()));
    assert!(others > 6, "{others}");
}

#[test]
fn what_cannot_be_read_is_named_before_anything_is_read() {
    let whole = seconds(Order::Little, MICROS, 1, &[1, 2]);
    let folder = folder(&[
        ("whole", &whole.bytes),
        ("text", b"not a capture"),
        ("nothing", b""),
        ("header", &whole.bytes[..20]),
        ("broken.gz", &gzip(&whole.bytes)[..15]),
    ]);
    for (name, reason) in [
        ("text", "not a capture: it begins with"),
        ("nothing", "empty; expected"),
        ("header", "cut within its pcap file header"),
        ("broken.gz", "the compressed data are broken"),
        ("missing", "No such file"),
        ("-", "standard input: one of several captures, and no regular file"),
        ("/dev/null", "/dev/null: one of several captures, and no regular file"),
    ] {
        let path = if name == "-" { PathBuf::from("-") } else { folder.path().join(name) };
        let captures = [folder.path().join("whole"), path.clone()];
        let error = CaptureSeries::open(&captures, &Stop::default()).expect_err(name).to_string();
        assert!(error.contains(reason), "{error}");
        assert!(name == "-" || error.starts_with(&format!("{}: ", path.display())), "{error}");
    }
    assert!(CaptureSeries::open(&[], &Stop::default()).is_err());
}

#[test]
fn a_capture_that_goes_away_before_its_turn_is_an_error() {
    let [a, b] = [[1], [2]].map(|times| seconds(Order::Little, MICROS, 1, &times));
    let folder = folder(&[("a", &a.bytes), ("b", &b.bytes)]);
    let mut series = open(&folder, &["a", "b"]).expect("captures");
    fs::remove_file(folder.path().join("b")).expect("removed");
    let mut batch = Batch::new(10);
    assert_eq!(series.poll(&mut batch).expect("the first one"), Polled::Frames);
    let error = series.poll(&mut batch).expect_err("gone").to_string();
    assert!(error.starts_with(&format!("{}: No such file", folder.path().join("b").display())), "{error}");
}

/// The names of what was selected, relative to a folder.
fn selected(folder: &TempDir, names: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
    let Selection { captures, left_out } =
        Selection::of(&at(folder, names)).map_err(|error| error.to_string())?;
    let relative = |paths: Vec<PathBuf>| {
        let inside = |path: &Path| path.strip_prefix(folder.path()).unwrap_or(path).display().to_string();
        paths.iter().map(|path| inside(path)).collect()
    };
    Ok((relative(captures), relative(left_out)))
}

#[test]
fn folders_and_patterns_stand_for_captures() {
    let capture = seconds(Order::Little, MICROS, 1, &[1]).bytes;
    let folder = folder(&[
        ("day/b.pcap", &capture),
        ("day/a.pcap.gz", &gzip(&capture)),
        ("day/rotated.pcap17", &zstd(&capture, 1)),
        ("day/cut", &capture[..20]),
        ("day/README", b"text"),
        ("day/text.gz", &gzip(b"text")),
        ("day/empty", b""),
        ("day/.hidden", &capture),
        ("day/below/deep.pcap", &capture),
        ("x-1.pcap", &capture),
        ("x-10.pcap", &capture),
        ("x-2.pcap", &capture),
        ("y[1]/x-1.pcap", &capture),
        ("z-?.pcap", &capture),
        ("z-1.pcap", &capture),
        ("none/README", b"text"),
    ]);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (given, expected, left_out) in [
        (
            &["day"][..],
            &["day/a.pcap.gz", "day/b.pcap", "day/cut", "day/rotated.pcap17"][..],
            &["day/README", "day/empty", "day/text.gz"][..],
        ),
        (&["x-1.pcap"], &["x-1.pcap"], &[]),
        (&["x-*.pcap"], &["x-1.pcap", "x-10.pcap", "x-2.pcap"], &[]),
        (&["x-?.pcap", "x-10*"], &["x-1.pcap", "x-2.pcap", "x-10.pcap"], &[]),
        (&["[x]-[12].pcap"], &["x-1.pcap", "x-2.pcap"], &[]),
        (&["*/*.pcap"], &["day/b.pcap", "y[1]/x-1.pcap"], &[]),
        // Folders that match are taken as folders that are named.
        (&["d?y/bel*"], &["day/below/deep.pcap"], &[]),
        // What there is by its name is no pattern.
        (&["z-?.pcap"], &["z-?.pcap"], &[]),
        (&["y[1]/x-*"], &["y[1]/x-1.pcap"], &[]),
        (&["y[1]"], &["y[1]/x-1.pcap"], &[]),
        // Who opens it says that it is missing.
        (&["missing"], &["missing"], &[]),
    ] {
        assert_eq!(selected(&folder, given), Ok((names(expected), names(left_out))), "{given:?}");
    }
    for (given, reason) in [
        (&["none"][..], "a folder without captures"),
        (&["w-*"], "nothing has such a name"),
        (&["[x"], "neither a file nor a pattern"),
        (&["x-1.pcap", "x-*.pcap"], "are one file; expected each capture once"),
        (&["day", "day/b.pcap"], "are one file"),
    ] {
        let error = selected(&folder, given).expect_err("an error");
        assert!(error.contains(reason), "{given:?}: {error}");
    }
    assert_eq!(Selection::of(&["-".into()]).expect("standard input").captures, [PathBuf::from("-")]);
}
