//! What can go wrong before and while a chain runs.

use packetloom_classify::formats::grouped;

/// A chain that cannot be run as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", told(self))]
pub struct ConfigError {
    /// The chain file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What stands there and what was expected.
    pub message: String,
    /// Other mistakes of the file, each with its line.
    pub others: Vec<(usize, String)>,
}

impl ConfigError {
    /// All mistakes, each with its line.
    pub fn all(&self) -> impl Iterator<Item = (usize, &str)> {
        let others = self.others.iter().map(|(line, message)| (*line, &**message));
        std::iter::once((self.line, &*self.message)).chain(others)
    }
}

/// A run that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading packets or writing results failed.
    #[error(transparent)]
    Io(#[from] packetloom_io::Error),
    /// Records cannot be exported.
    #[error(transparent)]
    Export(#[from] packetloom_export::Error),
    /// The device that was asked for cannot be used.
    #[error(transparent)]
    Offload(#[from] crate::offload::Error),
    /// More devices than can share the packets of a run.
    #[error("{0} devices; expected {MAX} at most", MAX = crate::chain::MAX_DEVICES)]
    Devices(usize),
    /// The system has no threads left for so many workers.
    #[error("no threads for {0} workers; give fewer, or raise the limit of processes (ulimit -u)")]
    Threads(usize),
    /// A worker thread panicked: a defect of this program.
    #[error("a worker failed; this is a defect of packetloom")]
    Worker,
}

/// The mistake, or all of them, a line each.
fn told(error: &ConfigError) -> String {
    /// The others are counted.
    const TOLD: usize = 20;
    let ConfigError { file, line, message, others } = error;
    if others.is_empty() {
        return format!("{file}:{line}: {message}");
    }
    let mut text = format!("{file}: {} mistakes\n    {file}:{line}: {message}", others.len() + 1);
    others
        .iter()
        .take(TOLD - 1)
        .for_each(|(line, message)| text += &format!("\n    {file}:{line}: {message}"));
    if others.len() >= TOLD {
        text += &format!("\n    and {} more", grouped(others.len() + 1 - TOLD));
    }
    text
}
