//! Outputs appear whole or not at all.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_io::Error;
use packetloom_io::output::{Output, Rotation};
use rustix::fs::{CWD, FileType, Mode};
use tempfile::{TempDir, tempdir};

fn directory() -> (TempDir, PathBuf) {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("out.txt");
    (directory, path)
}

/// The names of a directory's files, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

/// Opens an output that must not be opened, and returns what went wrong.
#[track_caller]
fn refused(path: &Path) -> String {
    match Output::create(path) {
        Err(error @ (Error::Open { .. } | Error::Io { .. })) => error.to_string(),
        other => panic!("{}: {other:?}", path.display()),
    }
}

#[test]
fn nothing_appears_before_finish() {
    let (directory, path) = directory();
    let mut output = Output::create(&path).expect("made");
    assert!(!path.exists());
    output.write(b"one ").expect("written");
    output.flush().expect("flushed");
    output.write(&vec![b'x'; 1 << 20]).expect("written");
    assert!(!path.exists());
    output.finish().expect("finished");
    assert_eq!(read(&path), format!("one {}", "x".repeat(1 << 20)));
    assert_eq!(names(directory.path()), ["out.txt"]);
}

#[test]
fn an_empty_output_is_an_empty_file() {
    let (directory, path) = directory();
    Output::create(&path).expect("made").finish().expect("finished");
    assert_eq!((read(&path).as_str(), names(directory.path())), ("", vec!["out.txt".to_string()]));
}

#[test]
fn a_dropped_output_leaves_nothing() {
    for len in [0, 10, 1 << 20] {
        let (directory, path) = directory();
        let mut output = Output::create(&path).expect("made");
        output.write(&vec![b'x'; len]).expect("written");
        drop(output);
        assert_eq!(names(directory.path()), [""; 0], "{len} bytes");
    }
}

#[test]
fn an_existing_file_is_replaced_at_the_end_only() {
    let (directory, path) = directory();
    fs::write(&path, "before").expect("written");
    let mut output = Output::create(&path).expect("made");
    output.write(b"after").expect("written");
    output.flush().expect("flushed");
    assert_eq!(read(&path), "before");
    output.finish().expect("finished");
    assert_eq!((read(&path).as_str(), names(directory.path())), ("after", vec!["out.txt".to_string()]));
}

#[test]
fn an_existing_file_survives_a_run_that_fails() {
    let (directory, path) = directory();
    fs::write(&path, "before").expect("written");
    let mut output = Output::create(&path).expect("made");
    output.write(b"after").expect("written");
    output.flush().expect("flushed");
    drop(output);
    assert_eq!((read(&path).as_str(), names(directory.path())), ("before", vec!["out.txt".to_string()]));
}

#[test]
fn a_rename_that_fails_is_an_error_and_leaves_nothing() {
    let (directory, path) = directory();
    let mut output = Output::create(&path).expect("made");
    output.write(b"after").expect("written");
    // Meanwhile somebody makes a directory of that name.
    fs::create_dir(&path).expect("made");
    let error = output.finish().expect_err("a directory is in the way").to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    assert_eq!((names(directory.path()), names(&path)), (vec!["out.txt".to_string()], vec![]));
}

#[test]
fn a_link_stays_and_its_target_is_replaced() {
    let (directory, link) = directory();
    fs::create_dir(directory.path().join("data")).expect("made");
    let target = directory.path().join("data").join("target.txt");
    fs::write(&target, "before").expect("written");
    symlink("data/target.txt", &link).expect("linked");
    let second = directory.path().join("second.txt");
    symlink("out.txt", &second).expect("linked");

    for (path, text) in [(&link, "through one link"), (&second, "through two")] {
        let mut output = Output::create(path).expect("made");
        output.write(text.as_bytes()).expect("written");
        output.finish().expect("finished");
        assert!(link.is_symlink() && second.is_symlink());
        assert!(!target.is_symlink());
        assert_eq!(read(&target), text);
    }
    // A run that fails changes neither.
    drop(Output::create(&link).expect("made"));
    assert_eq!(read(&link), "through two");
    assert_eq!(names(directory.path()), ["data", "out.txt", "second.txt"]);
    assert_eq!(names(&directory.path().join("data")), ["target.txt"]);
}

#[test]
fn the_target_of_a_link_is_made_where_it_is_missing() {
    let (directory, link) = directory();
    fs::create_dir(directory.path().join("data")).expect("made");
    let target = directory.path().join("data").join("target.txt");
    symlink("data/target.txt", &link).expect("linked");
    let second = directory.path().join("second.txt");
    symlink(&link, &second).expect("linked");
    let mut output = Output::create(&second).expect("made");
    output.write(b"new").expect("written");
    output.finish().expect("finished");
    assert!(link.is_symlink() && second.is_symlink(), "a link was replaced");
    assert_eq!(read(&target), "new");
    assert_eq!(names(&directory.path().join("data")), ["target.txt"]);
}

#[test]
fn a_name_without_a_directory_is_in_the_current_one() {
    let name = format!("packetloom-output-test-{}", std::process::id());
    let mut output = Output::create(Path::new(&name)).expect("made");
    output.write(b"here").expect("written");
    output.finish().expect("finished");
    let text = fs::read_to_string(&name);
    fs::remove_file(&name).expect("removed");
    assert_eq!(text.expect("a file"), "here");
}

#[test]
fn a_full_device_is_an_error() {
    let path = Path::new("/dev/full");
    // What fits into the buffer is written at the end.
    let mut output = Output::create(path).expect("opened");
    output.write(b"little").expect("buffered");
    let error = output.finish().expect_err("no room").to_string();
    assert!(error.starts_with("/dev/full: "), "{error}");

    let mut output = Output::create(path).expect("opened");
    output.write(b"little").expect("buffered");
    assert!(output.flush().is_err());
    let error = output.write(&vec![0; 1 << 20]).expect_err("no room").to_string();
    assert!(error.starts_with("/dev/full: "), "{error}");
    drop(output);
    assert!(path.metadata().expect("a device").file_type().is_char_device());
}

#[test]
fn the_null_device_takes_everything() {
    let path = Path::new("/dev/null");
    let mut output = Output::create(path).expect("opened");
    assert_eq!(output.name(), "/dev/null");
    output.write(&vec![0; 1 << 20]).expect("written");
    output.finish().expect("finished");
    assert!(path.metadata().expect("a device").file_type().is_char_device());
    assert!(!names(Path::new("/dev")).iter().any(|name| name.contains("null.")));
}

#[test]
fn a_pipe_is_written_as_it_comes() {
    let (directory, path) = directory();
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a named pipe");
    let reader = thread::spawn({
        let path = path.clone();
        move || {
            let mut pipe = fs::File::open(path)?;
            let mut first = [0; 5];
            pipe.read_exact(&mut first)?;
            let mut rest = Vec::new();
            pipe.read_to_end(&mut rest).map(|_| (first, rest))
        }
    });
    let mut output = Output::create(&path).expect("opened");
    output.write(b"first").expect("written");
    output.flush().expect("flushed");
    output.write(b"rest").expect("written");
    output.finish().expect("finished");
    let (first, rest) = reader.join().expect("no panic").expect("the pipe can be read");
    assert_eq!((&first, &rest[..]), (b"first", &b"rest"[..]));
    assert!(path.metadata().expect("a pipe").file_type().is_fifo());
    assert_eq!(names(directory.path()), ["out.txt"]);
}

#[test]
fn a_descriptor_is_written_by_its_name() {
    // As `/dev/stdout` is where standard output is a pipe.
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
    let mut output = Output::create(&path).expect("opened");
    output.write(b"through the descriptor").expect("written");
    output.finish().expect("finished");
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text, "through the descriptor");
}

#[test]
fn what_a_failed_run_left_in_the_buffer_is_not_written() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut output =
        Output::create(&PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()))).expect("opened");
    output.write(b"flushed").expect("written");
    output.flush().expect("flushed");
    output.write(b" and buffered").expect("buffered");
    drop(output);
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text, "flushed");
}

#[test]
fn a_closed_pipe_is_told_from_other_errors() {
    let (_directory, path) = directory();
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a named pipe");
    let reader = thread::spawn({
        let path = path.clone();
        move || fs::File::open(path).map(drop)
    });
    let mut output = Output::create(&path).expect("opened");
    reader.join().expect("no panic").expect("opened");
    output.write(b"nobody reads this").expect("buffered");
    assert!(output.finish().expect_err("nobody reads").is_broken_pipe());

    let mut output = Output::create(Path::new("/dev/full")).expect("opened");
    output.write(b"x").expect("buffered");
    assert!(!output.finish().expect_err("no room").is_broken_pipe());
}

#[test]
fn paths_that_cannot_be_written_are_named() {
    let (directory, file) = directory();
    fs::write(&file, "a file").expect("written");
    let paths = [
        directory.path().to_path_buf(),
        directory.path().join(".."),
        PathBuf::from("/"),
        directory.path().join("missing").join("out.txt"),
        file.join("out.txt"),
        PathBuf::from("/proc/packetloom-test"),
        directory.path().join("x".repeat(300)),
        PathBuf::from(""),
    ];
    for path in paths {
        let error = refused(&path);
        assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
    }
    assert_eq!(names(directory.path()), ["out.txt"]);
}

#[test]
fn files_that_may_not_be_written_are_not_replaced() {
    // Nothing is forbidden to root.
    if rustix::process::geteuid().is_root() {
        return;
    }
    let (directory, path) = directory();
    fs::write(&path, "before").expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("changed");
    assert!(refused(&path).starts_with(&path.display().to_string()));

    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).expect("changed");
    let other = directory.path().join("other.txt");
    assert!(refused(&other).starts_with(&other.display().to_string()));
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    assert_eq!((read(&path).as_str(), names(directory.path())), ("before", vec!["out.txt".to_string()]));
}

/// What a thread of its own makes of it.
#[test]
fn a_detached_output_has_everything_in_order() {
    let (directory, path) = directory();
    let mut output = Output::create(&path).expect("made");
    output.write(b"before ").expect("written");
    output.appear().expect("named");
    output.detach().expect("detached");
    let mut expected = "before ".to_owned();
    for number in 0..1_000 {
        let text = format!("{number} ");
        output.write_items(text.as_bytes(), 1).expect("taken");
        output.flush().expect("handed over");
        expected += &text;
    }
    output.settle().expect("written");
    assert_eq!((read(&path), output.not_written(), output.is_whole()), (expected, 0, true));
    assert_eq!(output.notice(), None);
    output.finish().expect("finished");
    assert_eq!(names(directory.path()), ["out.txt"]);
}

#[test]
fn a_detached_output_that_fails_is_given_up() {
    let mut output = Output::create(Path::new("/dev/full")).expect("opened");
    output.detach().expect("detached");
    for number in 1..=10 {
        output.write_items(b"x", 2).expect("taken");
        output.flush().expect("handed over");
        if number == 5 {
            output.settle().expect("known");
        }
    }
    output.settle().expect("known");
    assert_eq!((output.not_written(), output.is_whole()), (20, false));
    let notice = output.notice().expect("a notice");
    assert!(notice.starts_with("/dev/full: No space left on device"), "{notice}");
    assert_eq!(output.notice(), None, "once");
}

/// Of what nobody reads a bounded amount waits; at the end it is waited for the reader, and not for ever.
#[test]
fn a_detached_output_waits_for_nobody() {
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let mut output =
        Output::create(&PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()))).expect("opened");
    output.detach().expect("detached");
    let begin = Instant::now();
    for _ in 0..100 {
        output.write_items(&vec![b'x'; 1 << 20], 1).expect("taken");
        output.flush().expect("handed over");
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    let left_out = output.not_written();
    assert!((30..50).contains(&left_out), "{left_out} of 100 MiB do not fit");
    let notices: Vec<_> = std::iter::from_fn(|| output.notice()).collect();
    assert!(notices.len() == 1 && notices[0].contains("not taken fast enough"), "{notices:?}");
    output.settle().expect("known");
    assert_eq!((output.not_written(), output.is_whole()), (100, false));
    assert!(output.notice().expect("a notice").contains("nobody has taken"));
    output.write_items(b"x", 1).expect("taken");
    output.settle().expect("at once");
    assert_eq!(output.not_written(), 101);
}

#[test]
fn a_detached_output_whose_reader_has_gone_says_so_each_time() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut output =
        Output::create(&PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()))).expect("opened");
    output.detach().expect("detached");
    drop(reader);
    output.write_items(b"x", 1).expect("taken");
    // Where the thread has come to know it.
    let _ = output.settle();
    for _ in 0..2 {
        output.write_items(b"x", 1).expect("taken");
        assert!(output.flush().expect_err("nobody reads").is_broken_pipe());
    }
    assert_eq!((output.not_written(), output.is_left()), (3, true));
}

/// Files that cannot be named are not written, as far as anybody is told; what comes after them is.
#[test]
fn records_of_a_file_that_cannot_be_named_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let second = 1_000_000_000;
    let rotation = Rotation { every: Some(second), ..Rotation::default() };
    let mut output = Output::rotating(&folder.path().join("x.jsonl"), rotation).expect("made");
    output.detach().expect("detached");
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir(folder.path()).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    };
    for _ in 0..3 {
        output.write_record(5 * second, b"lost\n").expect("taken");
    }
    output.flush().expect("handed over");
    // Once it is there, somebody removes it.
    let begin = Instant::now();
    let part = loop {
        let written = names()
            .into_iter()
            .find(|name| std::fs::read(folder.path().join(name)).is_ok_and(|bytes| bytes.len() == 15));
        match written {
            Some(part) => break part,
            None => assert!(begin.elapsed() < Duration::from_secs(60), "nothing is written: {:?}", names()),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    std::fs::remove_file(folder.path().join(part)).expect("removed");
    output.write_record(6 * second, b"kept\n").expect("taken");
    output.pass_time(7 * second).expect("ended");
    output.settle().expect("written");
    assert_eq!(output.not_written(), 3);
    assert!(!output.is_whole());
    let notice = output.notice().expect("a notice");
    assert!(notice.contains("cannot be named") && notice.contains("No such file"), "{notice}");
    let [name] = &names()[..] else { panic!("{:?}", names()) };
    assert!(name.starts_with("x-19700101T000006Z-"), "{name}");
    assert_eq!(std::fs::read(folder.path().join(name)).expect("read"), b"kept\n");
}

/// A packet that comes late does not bring the time back, and time that goes on ends a file once.
#[test]
fn late_records_are_in_the_file_that_is_written_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let second = 1_000_000_000;
    let rotation = Rotation { every: Some(second), ..Rotation::default() };
    let mut output = Output::rotating(&folder.path().join("x"), rotation).expect("made");
    output.write_record(5 * second, b"a").expect("written");
    output.pass_time(6 * second).expect("ended");
    for text in [b"b", b"c"] {
        output.write_record(5 * second + 9, text).expect("written");
        output.pass_time(6 * second + 1).expect("not ended");
    }
    output.write_record(7 * second, b"d").expect("written");
    output.finish().expect("named");
    let mut files: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect();
    files.sort();
    assert_eq!(files, ["a", "bc", "d"]);
}

#[test]
fn outputs_that_cannot_be_rotated_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, found) in [
        (folder.path().join("x".repeat(240)), "a name of more than 224 bytes"),
        (PathBuf::from("/dev/x"), "a device"),
        (folder.path().to_owned(), "a folder"),
    ] {
        let error = Output::rotating(&path, Rotation { size: Some(1 << 20), ..Rotation::default() });
        let error = error.expect_err("refused").to_string();
        assert!(error.contains(found), "{error}");
    }
    // A link leads to the folder of what it leads to.
    let other = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(other.path().join("y"), folder.path().join("link")).expect("a link");
    let mut output =
        Output::rotating(&folder.path().join("link"), Rotation { size: Some(1), ..Rotation::default() })
            .expect("made");
    output.write_record(0, b"a").expect("written");
    output.finish().expect("named");
    assert_eq!(std::fs::read_dir(other.path()).expect("a folder").count(), 1);
}
