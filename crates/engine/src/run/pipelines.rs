//! The functions of several workers, at rest: each with what it counted, and with the flows of its packets.

use std::sync::{Mutex, MutexGuard};
use std::thread;

use packetloom_nf::Report;
use packetloom_nf::flows::Counts;

use super::Outlet;
use super::listing::Scan;
use super::reader::Partition;
use crate::outcome::TopFlows;
use crate::pipeline::Pipeline;
use crate::state::{Held, Saved};
use crate::{Chain, Error, State};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Error> {
    mutex.lock().map_err(|_| Error::Worker)
}

/// Runs `work` for each item, each in a thread of its own.
pub(super) fn each_of<I: Send, T: Send>(
    all: impl ExactSizeIterator<Item = I>,
    work: impl Fn(I) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    if all.len() < 2 {
        return all.map(work).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = all.map(|one| scope.spawn(move || work(one))).collect();
        all.into_iter().map(|one| one.join().map_err(|_| Error::Worker)?).collect()
    })
}

/// Gives each worker the flows whose packets it gets by a partition; all of them where there is none.
pub(super) fn restore(
    pipelines: &[Mutex<Pipeline>],
    partition: Option<Partition>,
    state: &State,
) -> Result<(), Error> {
    let restore = |(number, pipeline): (usize, &Mutex<Pipeline>)| {
        let mut pipeline = lock(pipeline)?;
        let Some(partition) = partition else {
            pipeline.restore(state);
            return Ok(());
        };
        let is_own = |held: &Held, key: &[u64]| {
            // Tables of flows whose packets are partitioned by something else are shared, or nobody's until they are.
            let is_apart = held.by.spread_by() == partition.by;
            number
                == if is_apart { partition.worker(partition.by.spread_saved(key, partition.seed)) } else { 0 }
        };
        let mut share = state.share(is_own);
        if number > 0 {
            share.definitions.iter_mut().for_each(|held| held.counts = Counts::default());
        }
        pipeline.restore(&share);
        Ok(())
    };
    each_of(pipelines.iter().enumerate(), restore).map(drop)
}

/// The flows of each definition that no workers share, and what their tables counted.
pub(super) fn save(pipelines: &[Mutex<Pipeline>], chain: &Chain) -> Result<Vec<Saved>, Error> {
    let save = |pipeline: &Mutex<Pipeline>| Ok(lock(pipeline)?.save(chain).collect::<Vec<_>>());
    let mut all = each_of(pipelines.iter(), save)?.into_iter();
    let mut held = all.next().ok_or(Error::Worker)?;
    for saved in all {
        held.iter_mut().zip(saved).for_each(|(held, own)| held.add(own));
    }
    Ok(held)
}

/// Tells functions of some more states that are over; whether there are more.
pub(super) fn drain(pipelines: &[Mutex<Pipeline>], ending: &[usize]) -> Result<bool, Error> {
    pipelines.iter().try_fold(false, |more, pipeline| Ok(more | lock(pipeline)?.drain_some(ending)))
}

/// Writes the records that there are.
pub(super) fn write_records(pipelines: &[Mutex<Pipeline>], outlet: &mut Outlet<'_>) -> Result<(), Error> {
    pipelines.iter().try_for_each(|pipeline| outlet.write_pending(&mut *lock(pipeline)?))
}

/// Takes a function's state out of the entries that a scan means, where no workers share them, and writes the records that come of it; how many.
pub(super) fn remove(
    pipelines: &[Mutex<Pipeline>],
    scan: &Scan<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<u64, Error> {
    pipelines
        .iter()
        .try_fold(0, |removed, pipeline| Ok(removed + outlet.remove(&mut *lock(pipeline)?, scan)?))
}

/// What some functions counted, and the flow records that they made.
pub(super) fn reports(
    pipelines: &[Mutex<Pipeline>],
    functions: &[usize],
) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
    let mut total: Option<(Vec<Box<dyn Report>>, TopFlows)> = None;
    for pipeline in pipelines {
        let (others, other_flows) = lock(pipeline)?.reports(functions.iter().copied());
        match &mut total {
            None => total = Some((others, other_flows)),
            Some((reports, top_flows)) => {
                reports.iter_mut().zip(&others).for_each(|(report, other)| report.merge(&**other));
                top_flows.merge(&other_flows);
            }
        }
    }
    total.ok_or(Error::Worker)
}

/// Goes on with a chain of the same layout in which one function has other rules.
pub(super) fn change(pipelines: &[Mutex<Pipeline>], chain: &Chain, function: usize) -> Result<(), Error> {
    pipelines.iter().try_for_each(|pipeline| {
        lock(pipeline)?.change(chain, function);
        Ok(())
    })
}
