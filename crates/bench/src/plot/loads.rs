//! The load of workers over time.

use super::draw::{self, Axis, COLOURS, Line, Picture, Point, STYLES, Style};
use crate::Error;
use crate::forward::WorkerLoads;

/// Draws a line for each worker, as SVG.
///
/// # Errors
///
/// [`Error::Plot`]: there is nothing to draw, or more lines than can be told apart.
pub fn draw_loads(loads: &[WorkerLoads]) -> Result<String, Error> {
    let count: usize = loads.iter().map(|run| run.workers.len()).sum();
    if count == 0 {
        return Err(Error::Plot(
            "no load of workers to draw: no run has found a rate without loss; expected a higher --max-loss, or a longer --trial".into(),
        ));
    }
    if count > STYLES {
        return Err(Error::Plot(format!("the load of {count} workers; expected {STYLES} at most")));
    }
    let label = |run: &WorkerLoads, worker: usize| match loads {
        [_] => format!("worker {}", worker + 1),
        // The end of a long name is cut off.
        _ => format!("worker {}: {}", worker + 1, run.name),
    };
    let workers = loads.iter().flat_map(|run| run.workers.iter().enumerate().map(move |of| (run, of)));
    let lines: Vec<_> = workers
        .enumerate()
        .map(|(number, (run, (worker, points)))| Line {
            label: Some(label(run, worker)),
            // Of many points, that markers would hide.
            style: if count > COLOURS.len() {
                Style::of(number)
            } else {
                Style::of(number).without_markers()
            },
            points: points.iter().map(|&[x, y]| Point { x, y, spread: None }).collect(),
        })
        .collect();
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.x).fold(0.0, f64::max);
    let below = match loads {
        [run] => run.name.clone(),
        _ => String::new(),
    };
    let picture = Picture {
        head: ["Load of workers at 98 % of the rate without loss".into(), below, String::new()],
        x: Axis::linear("Time (s)", last),
        y: Axis::linear("Time with something to do (%)", 100.0),
        lines,
        bars: Vec::new(),
        notes: Vec::new(),
        left_out: 0,
    };
    draw::svg(&picture).map_err(|error| Error::Plot(error.to_string()))
}
