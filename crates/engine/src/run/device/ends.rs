//! The end of the states that devices keep: all threads tell functions of them, in the order in which one thread would.

use std::sync::{Mutex, PoisonError};

use packetloom_nf::flows::{AnyEntry, in_order};

use super::super::Outlet;
use crate::Error;
use crate::crew::Crew;
use crate::offload::stateful::{Piece, State};
use crate::pipeline::Pipeline;
use crate::pipeline::work::Records;

/// States whose records are encoded together by one thread.
const RANGE: usize = 1 << 11;
/// Such ranges for each thread between two times that records are written: so many records are in memory.
const RANGES: usize = 2;
/// One in so many states says how they are spread.
const SAMPLED: usize = 64;

/// Has the threads' functions take over what devices kept at the end of a run, and tells them that it is over. Records of each function are
/// written in the order of the ranks of their states, and of their flows.
pub(super) fn end(
    copies: &[&State],
    stages: &[Mutex<Pipeline>],
    crew: &Crew,
    outlet: &mut Outlet<'_>,
) -> Result<(), Error> {
    let main = || stages[0].lock().unwrap_or_else(PoisonError::into_inner);
    copies.iter().for_each(|copy| main().add(copy));
    let definitions = copies.iter().map(|copy| copy.definitions()).max().unwrap_or(0);
    for definition in 0..definitions {
        let ending = main().ending(definition);
        let pieces: Vec<_> = copies.iter().flat_map(|copy| copy.pieces(definition)).collect();
        if ending.is_empty() {
            // Who looks at them does so when threads' counts are added.
            crew.each_with(stages, pieces, |pipeline, piece| pipeline.put(definition, piece));
            continue;
        }
        for function in ending {
            end_function(function, &pieces, stages, crew, outlet)?;
        }
    }
    Ok(())
}

/// The same of one function's states in these flows.
fn end_function(
    function: usize,
    pieces: &[Piece<'_>],
    stages: &[Mutex<Pipeline>],
    crew: &Crew,
    outlet: &mut Outlet<'_>,
) -> Result<(), Error> {
    let mut sorted = vec![Vec::new(); pieces.len()];
    crew.each_with(stages, pieces.iter().zip(&mut sorted).collect(), |pipeline, (&piece, sorted)| {
        sorted.extend(pipeline.ranked(function, piece));
        sorted.sort_unstable_by_key(|&(rank, _)| rank);
    });
    let wall_offset = stages[0].lock().unwrap_or_else(PoisonError::into_inner).wall_offset(function);
    let mut records = Vec::new();
    records.resize_with(RANGES * crew.members(), Records::default);
    for ranges in ranges(&sorted).chunks(records.len()) {
        let jobs = ranges.iter().zip(&mut records).collect();
        crew.each_with(stages, jobs, |pipeline, (range, records)| {
            let mut states: Vec<_> = sorted.iter().flat_map(|piece| range.of(piece)).copied().collect();
            in_order(&mut states, AnyEntry::flow);
            pipeline.go_by(function, wall_offset);
            pipeline.end(function, states.into_iter().map(|(_, entry)| entry), records);
        });
        records.iter_mut().try_for_each(|records| outlet.write_records(function, records))?;
    }
    Ok(())
}

/// States of some ranks: from one on, to before another one if there is a next range.
struct Range {
    from: u128,
    to: Option<u128>,
}

impl Range {
    /// Those of states in the order of their ranks.
    fn of<'a, S>(&self, sorted: &'a [(u128, S)]) -> &'a [(u128, S)] {
        let before = |rank: u128| sorted.partition_point(|&(other, _)| other < rank);
        &sorted[before(self.from)..self.to.map_or(sorted.len(), before)]
    }
}

/// All ranks in ranges of about as many states each, by samples of states that are in order in each piece.
fn ranges<S>(pieces: &[Vec<(u128, S)>]) -> Vec<Range> {
    let states: usize = pieces.iter().map(Vec::len).sum();
    let ranks = pieces.iter().flat_map(|piece| piece.iter().step_by(SAMPLED)).map(|&(rank, _)| rank);
    let mut ranks: Vec<_> = ranks.collect();
    ranks.sort_unstable();
    let count = states.div_ceil(RANGE);
    let mut begins: Vec<_> = (1..count).map(|number| ranks[number * ranks.len() / count]).collect();
    begins.dedup();
    let ends = begins.iter().map(|&rank| Some(rank)).chain([None]);
    [0].iter().chain(&begins).zip(ends).map(|(&from, to)| Range { from, to }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each state is in one range, those of a rank in the same, and ranges are in order, however they are spread.
    #[test]
    fn ranges_have_each_state_once() {
        type Rank = fn(u128) -> u128;
        let ranks: [Rank; 4] = [|number| number, |_| 0, |number| number / 3000, |number| u128::MAX - number];
        for rank in ranks {
            for states in [0, 1, 5, 2_000, 2_049, 30_000] {
                let mut pieces = vec![Vec::new(); 7];
                for number in 0..states {
                    pieces[(number * 31 % 7) as usize].push((rank(number), number));
                }
                pieces.iter_mut().for_each(|piece| piece.sort_unstable());
                let mut expected = pieces.concat();
                expected.sort_unstable();
                let mut found = Vec::new();
                for range in ranges(&pieces) {
                    let mut own: Vec<_> = pieces.iter().flat_map(|piece| range.of(piece)).copied().collect();
                    own.sort_unstable();
                    found.extend(own);
                }
                assert!(found == expected, "{states} states");
            }
        }
        let pieces: Vec<Vec<(u128, ())>> =
            (0..8u128).map(|piece| (0..8_192).map(|number| (number * 8 + piece, ())).collect()).collect();
        let ranges = ranges(&pieces);
        let sizes: Vec<usize> =
            ranges.iter().map(|range| pieces.iter().map(|piece| range.of(piece).len()).sum()).collect();
        assert_eq!(sizes.len(), 32);
        assert!(sizes.iter().all(|&size| size < 2 * RANGE), "{sizes:?}");
    }
}
