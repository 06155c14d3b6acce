//! `packetloom meter --each`: each capture by itself, one after the other, its outputs named by it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use packetloom_export::{Destination, LineFormat};
use packetloom_io::input::{Stop, is_standard};
use packetloom_io::output::resolve;

use super::files::Files;
use super::{captures, flows, meter};
use crate::args::MeterArgs;
use crate::failure::Failure;
use crate::{Done, talk};

/// What stands for a capture's name in those of outputs.
const NAME: &str = "{name}";

/// Endings of captures, and before these of how they are compressed.
const COMPRESSED: [&str; 3] = ["gz", "xz", "zst"];
const CAPTURE: [&str; 3] = ["pcap", "pcapng", "cap"];

/// Meters each capture. One whose run fails is named and passed over.
///
/// # Errors
///
/// Wrong usage, before anything is written; or how many captures could not be metered.
pub(crate) fn run(args: &MeterArgs, stop: &Stop) -> Done {
    let captures = captures(&args.read)?;
    let names = names(&captures)?;
    let all: Vec<_> =
        captures.iter().zip(&names).map(|(capture, name)| for_capture(args, capture, name)).collect();
    check(args)?;
    if args.extract_flows.is_some() {
        flows::check_twice("--extract-flows", &captures)?;
    }
    let files = Files::default().captures(Some("-r"), &captures);
    let written = all.iter().flat_map(outputs).filter(|(_, path)| is_file(path));
    written.fold(files, |files, (option, path)| files.output(option, Some(path))).check()?;
    make_folders(&all)?;
    let mut failed = 0;
    for (number, (capture, own)) in captures.iter().zip(all).enumerate() {
        if stop.load(Ordering::Relaxed) {
            let left = captures.len() - number;
            let all = captures.len();
            let passed_over = match failed {
                0 => String::new(),
                failed => format!(", and {failed} were passed over"),
            };
            return Err(Failure::Run(anyhow::anyhow!(
                "stopped; {left} of {all} captures were not metered{passed_over}"
            )));
        }
        talk::say(&format!("packetloom: {}\n", capture.display()));
        match meter::one(own, stop) {
            Ok(()) => {}
            Err(Failure::Run(error)) => {
                failed += 1;
                talk::error(&format!("packetloom: {}: passed over: {error}\n", capture.display()));
            }
            Err(other) => return Err(other),
        }
    }
    match failed {
        0 => Ok(()),
        failed => {
            Err(Failure::Run(anyhow::anyhow!("{failed} of {} captures were passed over", captures.len())))
        }
    }
}

/// The name of a capture: that of its file without endings.
fn name(capture: &Path) -> String {
    let file = capture.file_name().unwrap_or_default().to_string_lossy();
    let without = |text: &str, endings: &[&str]| {
        let (name, ending) = text.rsplit_once('.').filter(|(name, _)| !name.is_empty())?;
        endings.iter().any(|known| ending.eq_ignore_ascii_case(known)).then(|| name.to_owned())
    };
    let stem = without(&file, &COMPRESSED).unwrap_or_else(|| file.clone().into_owned());
    let stem = without(&stem, &CAPTURE).unwrap_or(stem);
    // These would be folders.
    if matches!(&*stem, "." | "..") { file.into_owned() } else { stem }
}

/// The names of all captures, each of which is one of them alone.
fn names(captures: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let names: Vec<_> = captures.iter().map(|capture| name(capture)).collect();
    if let Some(capture) = captures.iter().find(|capture| is_standard(capture)) {
        return Err(Failure::Usage(format!("-r {} with --each; expected files", capture.display())));
    }
    let mut sorted: Vec<_> = names.iter().zip(captures).collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => {
            let ((name, one), (_, other)) = (pair[0], pair[1]);
            let (one, other) = (one.display(), other.display());
            Err(Failure::Usage(format!(
                "{one} and {other} are both named {name}; expected a name for each with --each"
            )))
        }
        None => Ok(names),
    }
}

/// Refuses files that each capture would replace.
fn check(args: &MeterArgs) -> Result<(), Failure> {
    let parquet = args.export.parquet.iter().map(|path| ("--parquet", &**path));
    if let Some((option, path)) = outputs(args).chain(parquet).find(|(_, path)| path.to_str().is_none()) {
        return Err(Failure::Usage(format!(
            "{option} {} with --each; expected a name in UTF-8",
            path.display()
        )));
    }
    let mut files = outputs(args).filter(|(_, path)| is_file(path));
    let is_in_one = args.output.as_deref().is_none_or(|path| !is_file(path));
    if args.format != LineFormat::Json && is_in_one {
        return Err(Failure::Usage(format!(
            "--format {} with --each and no file for each capture; expected -o with {NAME} in it: the names of the columns stand at the \
             head of each",
            args.format
        )));
    }
    match files.find(|(_, path)| !path.to_string_lossy().contains(NAME)) {
        Some((option, path)) => Err(Failure::Usage(format!(
            "{option} {} with --each; expected {NAME} in it, which stands for the name of a capture",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// The files that are written, with their options.
fn outputs(args: &MeterArgs) -> impl Iterator<Item = (&'static str, &Path)> {
    let outputs = [
        ("-o", &args.output),
        ("--summary", &args.summary),
        ("--extract", &args.extract),
        ("--extract-flows", &args.extract_flows),
        ("--report", &args.reports.report),
    ];
    let outputs = outputs.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
    let ipfix = args.export.ipfix.iter().filter_map(Destination::file);
    outputs.chain(ipfix.map(|path| ("--ipfix", &**path)))
}

/// Makes the folders that files are written into, where they are not there, as the one of Parquet files.
fn make_folders(all: &[MeterArgs]) -> Done {
    for (_, path) in all.iter().flat_map(outputs).filter(|(_, path)| is_file(path)) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let made = folder.map_or(Ok(()), fs::create_dir_all);
        made.map_err(|source| packetloom_io::Error::io(path.display().to_string(), source))?;
    }
    Ok(())
}

/// Whether a path is one of a file: devices and pipes take any number of captures.
fn is_file(path: &Path) -> bool {
    let is_output = resolve(path).is_ok_and(|path| is_standard(&path));
    !is_output && (path.is_file() || !path.exists())
}

/// The arguments for one capture.
fn for_capture(args: &MeterArgs, capture: &Path, name: &str) -> MeterArgs {
    let mut own = args.clone();
    own.read = vec![capture.to_owned()];
    let named = |path: &mut PathBuf| {
        if let Some(text) = path.to_str() {
            *path = text.replace(NAME, name).into();
        }
    };
    let extracted = [&mut own.extract, &mut own.extract_flows];
    let paths = [&mut own.output, &mut own.summary, &mut own.reports.report].into_iter().chain(extracted);
    paths.flatten().for_each(named);
    own.export.parquet.iter_mut().for_each(named);
    for to in &mut own.export.ipfix {
        if let Destination::File(path) = to {
            named(path);
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_endings_of_captures() {
        for (capture, expected) in [
            ("day/a.pcap", "a"),
            ("a.pcapng.gz", "a"),
            ("a.b.PCAP.zst", "a.b"),
            ("a.cap", "a"),
            ("a.gz", "a"),
            ("a.pcap1", "a.pcap1"),
            (".pcap", ".pcap"),
            ("..pcap", "..pcap"),
            ("...pcap", "...pcap"),
            ("a", "a"),
        ] {
            assert_eq!(name(Path::new(capture)), expected, "{capture}");
        }
    }
}
