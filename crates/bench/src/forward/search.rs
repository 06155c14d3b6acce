//! The highest rate without loss (RFC 2544 section 26.1): bisected by short trials, confirmed by a longer one.

/// What a trial at a rate has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// The share of packets that were lost.
    pub(super) loss: f64,
    /// Whether the host stood still meanwhile for so long that packets may have been lost by that.
    pub(super) disturbed: bool,
}

/// How a rate is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// The share of packets that may be lost.
    pub(super) tolerance: f64,
    /// The search ends where the highest rate that passed and the lowest that did not are so near, as a share.
    pub(super) resolution: f64,
}

/// Trials of a rate at most, where the host disturbs them.
const TRIES: usize = 3;
/// Rates that are tried to be confirmed, each lower than the one before by twice the resolution.
const CONFIRMED: usize = 8;

/// The highest rate up to `most` at which no more than the tolerance is lost; none where no rate was confirmed. `trial` runs at a rate, short or, to
/// confirm it, long.
pub(super) fn highest<E>(
    search: Search,
    most: f64,
    mut trial: impl FnMut(f64, bool) -> Result<Shown, E>,
) -> Result<Option<f64>, E> {
    // A loss counts against the rate unless the host may be the reason; then the rate is tried again, a few times.
    let mut passes = |rate: f64, long: bool| {
        for _ in 0..TRIES {
            let shown = trial(rate, long)?;
            if shown.loss <= search.tolerance {
                return Ok(true);
            }
            if !shown.disturbed {
                return Ok(false);
            }
        }
        Ok(false)
    };
    let (mut low, mut high) = (0.0, most);
    if passes(most, false)? {
        low = most;
    }
    while high - low > search.resolution * high && high > most / 1000.0 {
        let middle = (low + high) / 2.0;
        if passes(middle, false)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    for _ in 0..CONFIRMED {
        if low <= 0.0 {
            break;
        }
        if passes(low, true)? {
            return Ok(Some(low));
        }
        low *= 1.0 - 2.0 * search.resolution;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: Search = Search { tolerance: 1e-5, resolution: 0.02 };

    /// A device that forwards so many packets a second, and loses the rest.
    fn device(capacity: f64) -> impl FnMut(f64, bool) -> Result<Shown, ()> {
        move |rate, _| Ok(Shown { loss: (1.0 - capacity / rate).max(0.0), disturbed: false })
    }

    #[test]
    fn the_capacity_is_found() {
        for capacity in [0.011, 0.5, 1.3, 2.4, 2.999] {
            let found = highest(SEARCH, 3.0, device(capacity)).expect("trials").expect("a rate");
            assert!(found <= capacity && found >= capacity * 0.97, "{found} of {capacity}");
        }
        assert_eq!(highest(SEARCH, 3.0, device(5.0)), Ok(Some(3.0)), "as much as there is");
    }

    #[test]
    fn a_host_that_stands_still_now_and_then_does_not_lower_the_rate() {
        let mut trials = 0;
        let found = highest(SEARCH, 3.0, |rate: f64, _| {
            trials += 1;
            let stall = trials % 2 == 0;
            let loss = (1.0 - 2.0 / rate).max(if stall { 0.01 } else { 0.0 });
            Ok::<_, ()>(Shown { loss, disturbed: stall })
        });
        let found = found.expect("trials").expect("a rate");
        assert!((1.94..=2.0).contains(&found), "{found}");
    }

    #[test]
    fn a_rate_that_holds_for_short_trials_only_is_not_confirmed() {
        let found = highest(SEARCH, 3.0, |rate: f64, long| {
            let capacity = if long { 1.8 } else { 2.0 };
            Ok::<_, ()>(Shown { loss: (1.0 - capacity / rate).max(0.0), disturbed: false })
        });
        let found = found.expect("trials").expect("a rate");
        assert!((1.7..=1.8).contains(&found), "{found}");
    }

    #[test]
    fn a_device_that_always_loses_has_no_rate_and_an_end() {
        let mut trials = 0;
        let found = highest(SEARCH, 3.0, |_, _| {
            trials += 1;
            Ok::<_, ()>(Shown { loss: 0.5, disturbed: true })
        });
        assert_eq!(found, Ok(None));
        assert!(trials < 60, "{trials}");
        assert_eq!(highest(SEARCH, 3.0, |_, _| Err(7)), Err(7));
    }
}
