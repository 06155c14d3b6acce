//! `packetloom example`: chains to begin with.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use packetloom_io::plain;

use super::{stdout, write_text};
use crate::args::ExampleArgs;
use crate::failure::Failure;
use crate::{Done, talk};

/// An example: its name, and its files with what is in them.
struct Example {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
}

macro_rules! examples {
    ($($name:literal: $($file:literal)+;)*) => {
        &[$(Example {
            name: $name,
            files: &[$(($file, include_str!(concat!("../../../../examples/chains/", $file))),)+],
        },)*]
    };
}

const EXAMPLES: &[Example] = examples! {
    "edge-filter": "edge-filter.toml" "edge-filter.rules";
    "connection-firewall": "connection-firewall.toml" "connection-firewall.rules";
    "flow-probe": "flow-probe.toml";
    "scan-detector": "scan-detector.toml";
    "rate-limiter": "rate-limiter.toml";
    "balancer": "balancer.toml";
    "marker": "marker.toml" "marker.rules";
    "string-search": "string-search.toml" "string-search.rules" "string-search.domains.txt";
};

impl Example {
    /// What it does: the first line of its chain.
    fn summary(&self) -> &'static str {
        let (_, chain) = self.files[0];
        chain.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
    }
}

pub(crate) fn run(args: &ExampleArgs) -> Done {
    let Some(name) = &args.name else {
        let rows: Vec<_> = EXAMPLES.iter().map(|example| (example.name, example.summary())).collect();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines: String = rows.iter().map(|(name, what)| format!("{name:width$}  {what}\n")).collect();
        return write_text(&stdout(), &lines);
    };
    let Some(example) = EXAMPLES.iter().find(|example| example.name == name) else {
        let names: Vec<_> = EXAMPLES.iter().map(|example| example.name).collect();
        return Err(Failure::Usage(format!("no example {name:?}; expected one of: {}", names.join(", "))));
    };
    let folder = args.output.as_deref().unwrap_or(Path::new(""));
    let files: Vec<_> = example.files.iter().map(|(file, text)| (folder.join(file), *text)).collect();
    // All or none.
    if let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        return Err(Failure::Run(anyhow::anyhow!(
            "{}: is there already and stays as it is; expected a folder without it (-o FOLDER)",
            path.display()
        )));
    }
    for (path, text) in &files {
        write_new(path, text)?;
    }
    let names: Vec<_> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    talk::say(&format!(
        "packetloom: wrote {}; packetloom check {} says what it does\n",
        names.join(" and "),
        names[0]
    ));
    Ok(())
}

/// Writes a file that is not there.
fn write_new(path: &PathBuf, text: &str) -> Done {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        Failure::Run(anyhow::anyhow!("{}: {}; expected a folder to write to", path.display(), plain(&error)))
    })
}
