//! `packetloom plot`: what benchmarks print, as pictures.

use std::fs;
use std::path::{Path, PathBuf};

use packetloom_bench::plot::Rows;
use packetloom_io::output::Output;
use packetloom_io::{input, plain};

use super::files::Files;
use super::{stdout, write_text};
use crate::args::PlotArgs;
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: PlotArgs) -> Done {
    let PlotArgs { mut files, output: folder, workload } = args;
    if files.is_empty() {
        files.push("-".into());
    }
    let mut rows = Rows::new(workload);
    for file in &files {
        let name = match input::is_standard(file) {
            true => "standard input".into(),
            false => file.display().to_string(),
        };
        rows.read(&name, input::open_text(file)?)?;
    }
    let pictures = rows.draw()?;
    for note in pictures.notes {
        talk::say(&format!("packetloom: {note}\n"));
    }
    let paths: Vec<_> = pictures.files.iter().map(|(name, _)| folder.join(name)).collect();
    // One is checked at a time: outputs of other names are no clash.
    for path in &paths {
        let inputs = files.iter().fold(Files::default(), |all, file| all.input("FILE", Some(file)));
        inputs.output("-o", Some(path)).check()?;
    }
    fs::create_dir_all(&folder).map_err(|e| no_folder(&folder, &e))?;
    // All of them or none: what can fail is behind them when the first gets its name.
    let mut outputs = Vec::new();
    for (path, (_, svg)) in paths.iter().zip(&pictures.files) {
        let mut output = Output::create(path)?;
        output.write(svg.as_bytes())?;
        output.flush()?;
        outputs.push(output);
    }
    for output in outputs {
        output.finish()?;
    }
    let names: String = paths.iter().map(|path: &PathBuf| format!("{}\n", path.display())).collect();
    write_text(&stdout(), &names)
}

fn no_folder(folder: &Path, error: &std::io::Error) -> Failure {
    Failure::Run(anyhow::anyhow!(
        "{}: {}; expected a folder to write to (-o FOLDER)",
        folder.display(),
        plain(error)
    ))
}
