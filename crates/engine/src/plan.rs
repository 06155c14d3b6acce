//! What will run where, decided before the first packet.

use std::fmt;

use crate::Chain;
use crate::chain::Device;

/// A chain with the decisions that running it needs.
#[derive(Debug)]
pub struct Plan {
    pub(crate) chain: Chain,
    workers: usize,
}

impl Plan {
    /// Decides how `chain` is run.
    pub fn new(chain: Chain) -> Self {
        // The oracle is one loop over packets by definition.
        let workers =
            if chain.settings.run.device == Device::Oracle { 1 } else { chain.settings.run.workers.get() };
        Self { chain, workers }
    }

    /// The chain.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Worker threads. With one, packets are handled by the thread that reads them; with more they are spread by a hash of
    /// their bidirectional flow, so that all packets of a flow meet the same worker, in order.
    pub fn workers(&self) -> usize {
        self.workers
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.chain.settings;
        let path = |path: &Option<std::path::PathBuf>, none: &str| {
            path.as_ref().map_or_else(|| none.into(), |path| path.display().to_string())
        };
        writeln!(f, "source    {}", path(&settings.source, "to be given with -r"))?;
        let (non_ip, malformed) = (settings.run.non_ip.name(), settings.run.malformed.name());
        writeln!(f, "policy    non-IP: {non_ip}, malformed: {malformed}")?;
        for (index, function) in self.chain.functions.iter().enumerate() {
            for (line, text) in function.describe().iter().enumerate() {
                let head =
                    if line == 0 { format!("{} {}", index + 1, function.name()) } else { String::new() };
                writeln!(f, "{head:<9} {text}")?;
            }
        }
        writeln!(f, "sink      {}", path(&settings.sink, "none: packets that pass are counted"))?;
        writeln!(f, "device    {}, batches of {}", settings.run.device.name(), settings.run.batch)?;
        let per_flow = self.chain.functions.iter().any(|function| function.is_per_flow());
        let spread = match (self.workers, per_flow) {
            (1, _) => "1 worker: results as of a loop over packets".into(),
            (_, true) => format!(
                "{} workers, packets spread by flow: each flow's state is exact, order in files is kept; max_flows is \
                 divided among the workers",
                self.workers
            ),
            (_, false) => format!(
                "{} workers, packets spread by flow: no function keeps state, results are exact, order in files is \
                 kept",
                self.workers
            ),
        };
        write!(f, "workers   {spread}")
    }
}
