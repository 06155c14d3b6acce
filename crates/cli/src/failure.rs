//! Failures and their exit codes.

use packetloom_classify::formats;

use crate::talk;

/// All exit codes and what they say, for help, man pages and the documents.
pub(crate) const EXIT_CODES: [(u8, &str); 7] = [
    (0, "done"),
    (1, "a run that failed: a file that cannot be read or written"),
    (2, "wrong usage"),
    (3, "findings: what \"acl check --strict\" was to find"),
    (65, "rules that a conversion would lose, more than --max-loss allows"),
    (69, "a device, interface or run that is not there, or a device that fails"),
    (78, "a bad chain, bad rules or bad state"),
];

/// Why the program ends without having done what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A run that failed: 1.
    Run(anyhow::Error),
    /// Arguments that contradict each other: 2.
    Usage(String),
    /// What was looked for was found: 3.
    Findings(String),
    /// A bad chain, bad rules, or bad state: 78.
    Config(String),
    /// Rules that would be lost: 65.
    Loss(String),
    /// A device, interface or run that is not there, or a device that fails: 69.
    Unavailable(String),
    /// Whoever read our output has gone away: nothing to say.
    ClosedPipe,
}

impl Failure {
    /// Says what went wrong and picks the exit code.
    pub(crate) fn report(self) -> u8 {
        let (message, code) = match self {
            Self::ClosedPipe => return 0,
            Self::Run(error) => (error.to_string(), 1),
            Self::Usage(message) => (message, 2),
            Self::Findings(message) => (message, 3),
            Self::Loss(message) => (message, 65),
            Self::Unavailable(message) => (message, 69),
            Self::Config(message) => (message, 78),
        };
        talk::error(&format!("packetloom: {message}\n"));
        code
    }
}

impl Failure {
    /// What went wrong.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Run(error) => error.to_string(),
            Self::Usage(message)
            | Self::Findings(message)
            | Self::Config(message)
            | Self::Loss(message)
            | Self::Unavailable(message) => message,
            Self::ClosedPipe => "nobody reads the output".into(),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Run(error)
    }
}

impl From<packetloom_io::Error> for Failure {
    fn from(error: packetloom_io::Error) -> Self {
        match error {
            error if error.is_broken_pipe() => Self::ClosedPipe,
            error @ packetloom_io::Error::NoInterface { .. } => Self::Unavailable(error.to_string()),
            packetloom_io::Error::NotACapture { path, head, .. } if formats::looks_like(&head).is_some() => {
                let what = formats::looks_like(&head).unwrap_or_default();
                Self::Run(anyhow::anyhow!(
                    "{path}: not a capture: it looks like {what}; expected pcap or pcapng, plain or in gzip, xz or zstd"
                ))
            }
            error => Self::Run(error.into()),
        }
    }
}

impl From<packetloom_engine::Error> for Failure {
    fn from(error: packetloom_engine::Error) -> Self {
        match error {
            packetloom_engine::Error::Io(error) => error.into(),
            packetloom_engine::Error::Offload(error) => error.into(),
            packetloom_engine::Error::Export(error) => error.into(),
            error => Self::Run(error.into()),
        }
    }
}

impl From<packetloom_export::Error> for Failure {
    fn from(error: packetloom_export::Error) -> Self {
        match error {
            packetloom_export::Error::File(error) => error.into(),
            error @ packetloom_export::Error::Settings(_) => Self::Config(error.to_string()),
            error => Self::Run(error.into()),
        }
    }
}

impl From<packetloom_engine::state::Error> for Failure {
    fn from(error: packetloom_engine::state::Error) -> Self {
        match error {
            packetloom_engine::state::Error::Io(error) => error.into(),
            error => Self::Config(error.to_string()),
        }
    }
}

impl From<packetloom_device::Error> for Failure {
    fn from(error: packetloom_device::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<packetloom_engine::offload::Error> for Failure {
    fn from(error: packetloom_engine::offload::Error) -> Self {
        match error {
            packetloom_engine::offload::Error::Device(error) => error.into(),
            error => Self::Run(error.into()),
        }
    }
}

impl From<packetloom_engine::ConfigError> for Failure {
    fn from(error: packetloom_engine::ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<packetloom_nf::Error> for Failure {
    fn from(error: packetloom_nf::Error) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<packetloom_bench::Error> for Failure {
    fn from(error: packetloom_bench::Error) -> Self {
        match error {
            packetloom_bench::Error::Engine(error) => error.into(),
            packetloom_bench::Error::Io(error) => error.into(),
            packetloom_bench::Error::Device(error) => error.into(),
            packetloom_bench::Error::Offload(error) => error.into(),
            error @ packetloom_bench::Error::ForwardMissing { .. } => Self::Unavailable(error.to_string()),
            error @ packetloom_bench::Error::NoPeer => Self::Usage(error.to_string()),
            error => Self::Run(error.into()),
        }
    }
}

impl Failure {
    /// Rules that could not be read.
    pub(crate) fn rules(error: formats::Error) -> Self {
        match error {
            error @ formats::Error::Io { .. } => Self::Run(error.into()),
            error => Self::Config(error.to_string()),
        }
    }
}
