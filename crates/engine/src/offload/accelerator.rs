//! What a run needs of a device, whatever it has of a chain there.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_nf::FunctionSpec;
use packetloom_packet::Timestamp;

use super::acls::Acls;
use super::stateful::{self, Functions, Left};
use super::strings::Strings;
use super::{Error, frames};
use crate::Plan;
use crate::crew::Crew;
use crate::outcome::Shares;
use crate::pipeline::Pipeline;
use crate::pipeline::work::Work;
use crate::state::Held;

/// The first functions of a chain on a device. Batches come back in the order in which they were sent; after an error nothing else is asked
/// of it, and it is [abandoned](Self::abandon).
pub(crate) trait Accelerator: Send {
    /// Batches that may be away at a time.
    fn depth(&self) -> usize;

    /// Sends a batch, with fewer away than that; `false` where it is none for the device. Given are its pieces, for each of which a thread of
    /// the crew does what is to be done here.
    fn submit(&mut self, pieces: &[Work], crew: &Crew) -> Result<bool, Error>;

    /// Whether nobody has to wait for the oldest batch that is away; what went wrong is told when it is waited for.
    fn is_back(&mut self) -> bool;

    /// Waits for the oldest batch, which may be away for so long.
    fn wait(&mut self, limit: Duration) -> Result<(), Error>;

    /// Writes into the pieces of the oldest batch, after waiting for it, what was found, and has functions here take note: those of the
    /// thread, of which there are as many as in the crew.
    fn take(&mut self, pieces: &mut [Work], stages: &[Mutex<Pipeline>], crew: &Crew, shares: &mut Shares);

    /// Flow definitions whose flows it keeps: the first ones of the chain.
    fn definitions(&self) -> usize {
        0
    }

    /// Begins with their flows, in place of all that it has, with no batch away; for which flows of each it has no room.
    fn restore(&mut self, held: &[Held]) -> Result<Vec<Left>, Error> {
        let _ = held;
        Ok(Vec::new())
    }

    /// Whether it is time at this time of packets to look for states there that are over.
    fn is_sweep_due(&self, now: Timestamp) -> bool {
        let _ = now;
        false
    }

    /// Has functions here take note of states there that are over at a time, since their flows were silent for so long, with no batch away, if that
    /// [is due](Self::is_sweep_due). One that takes longer than the limit has failed.
    fn sweep(&mut self, now: Timestamp, limit: Duration, pipeline: &mut Pipeline) -> Result<(), Error> {
        let _ = (now, limit, pipeline);
        Ok(())
    }

    /// Goes on with the rules of its functions after so many changes, with no batch away; only where it keeps flows. Others are loaded anew.
    fn change_rules(&mut self, functions: &[Arc<dyn FunctionSpec>], changes: usize) -> Result<(), Error> {
        let _ = (functions, changes);
        Ok(())
    }

    /// Copies here what it keeps, with no batch away: by all threads of the crew.
    fn snapshot(&mut self, crew: &Crew) -> Result<(), Error> {
        let _ = crew;
        Ok(())
    }

    /// Waits for so long at most for a copy that is being made while packets go on.
    fn await_copy(&mut self, limit: Duration) {
        let _ = limit;
    }

    /// The last copy, or what it began with, and how old that is; none where it keeps nothing.
    fn copy(&self) -> Option<(&stateful::State, Duration)> {
        None
    }

    /// Leaves a device that hangs or failed to itself.
    fn abandon(self: Box<Self>);
}

/// Puts functions onto a device, in any thread.
pub(crate) type Load = Arc<dyn Fn(&Device) -> Result<Box<dyn Accelerator>, Error> + Send + Sync>;

impl Plan {
    /// What puts its first functions onto one of so many devices, with their rules after so many changes, unless the device keeps flows, where rules
    /// [change](Accelerator::change_rules); none where a device takes none of them.
    pub(crate) fn load(&self, changes: usize, devices: usize) -> Option<Load> {
        let (chain, count) = (Arc::clone(&self.chain), self.on_device());
        if self.stateful() > 0 {
            return Some(Arc::new(move |device| {
                Ok(Box::new(Functions::new(device, &chain, count, devices)?))
            }));
        }
        if self.searched() > 0 {
            return Some(Arc::new(move |device| {
                Ok(Box::new(Strings::new(device, &chain.functions[..count])?))
            }));
        }
        // Where rules change, one kernel for any rules serves them all.
        let specialise = !chain.functions.iter().any(|function| function.has_changing_rules());
        let policy = chain.settings.run.policy();
        let options = frames::Options { policy, specialise, ..frames::Options::default() };
        let room = self.room();
        (count > 0).then(|| -> Load {
            Arc::new(move |device| {
                Ok(Box::new(Acls::new(device, &chain.functions[..count], changes, options, room)?))
            })
        })
    }
}

/// Where a batch that was sent then has not come back in time.
pub(super) fn late(sent: Instant) -> Error {
    let why = format!("no answer for {:?}", sent.elapsed());
    packetloom_device::Error::Failed { call: "wait", why }.into()
}
