//! Sets of integers, which negations, lists and ranges of any format become.

/// The integers that sets are made of.
pub(crate) trait Integer: Copy + Ord {
    /// The lowest.
    const MIN: Self;
    /// The highest.
    const MAX: Self;
    /// The next higher one.
    fn next(self) -> Option<Self>;
    /// The next lower one.
    fn previous(self) -> Option<Self>;
}

macro_rules! integer {
    ($($word:ty),*) => {$(
        impl Integer for $word {
            const MIN: Self = <$word>::MIN;
            const MAX: Self = <$word>::MAX;

            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }

            fn previous(self) -> Option<Self> {
                self.checked_sub(1)
            }
        }
    )*};
}

integer!(u8, u16, u32, u128);

/// A set of integers: ranges with both ends in it, ascending, with a gap between one and the next; `None` is every integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set<T>(Option<Vec<(T, T)>>);

impl<T: Integer> Set<T> {
    /// Every integer.
    pub(crate) const ALL: Self = Self(None);
    /// No integer.
    pub(crate) const EMPTY: Self = Self(Some(Vec::new()));

    /// One integer.
    pub(crate) fn one(value: T) -> Self {
        Self::range(value, value)
    }

    /// From `low` to `high`, both in it; empty where `low` is the higher one.
    pub(crate) fn range(low: T, high: T) -> Self {
        Self::of([(low, high)])
    }

    /// Everything that one of the ranges holds.
    pub(crate) fn of(ranges: impl IntoIterator<Item = (T, T)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|(low, high)| low <= high).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|later, earlier| {
            let touch = earlier.1.next().is_none_or(|next| later.0 <= next);
            if touch {
                earlier.1 = earlier.1.max(later.1);
            }
            touch
        });
        Self((ranges != [(T::MIN, T::MAX)]).then_some(ranges))
    }

    /// Whether it holds every integer.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it holds none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether it holds a value.
    pub(crate) fn contains(&self, value: T) -> bool {
        self.0.as_ref().is_none_or(|ranges| {
            let after = ranges.partition_point(|range| range.0 <= value);
            after.checked_sub(1).is_some_and(|index| value <= ranges[index].1)
        })
    }

    /// How many ranges are kept for it.
    pub(crate) fn size(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }

    /// Its ranges, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (T, T)> {
        let all = self.is_all().then_some((T::MIN, T::MAX));
        all.into_iter().chain(self.0.iter().flatten().copied())
    }

    /// Its members, ascending: for sets of few.
    pub(crate) fn members(&self) -> impl Iterator<Item = T> {
        self.ranges().flat_map(|(low, high)| {
            std::iter::successors(Some(low), move |value| value.next().filter(|next| *next <= high))
        })
    }

    /// What is in one of both.
    pub(crate) fn union(&self, other: &Self) -> Self {
        Self::of(self.ranges().chain(other.ranges()))
    }

    /// What is in both.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let (Some(mine), Some(theirs)) = (&self.0, &other.0) else {
            return if self.is_all() { other.clone() } else { self.clone() };
        };
        Self(Some(overlaps(mine, theirs).collect()))
    }

    /// Whether something is in both.
    pub(crate) fn intersects(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(mine), Some(theirs)) => overlaps(mine, theirs).next().is_some(),
            _ => !self.is_empty() && !other.is_empty(),
        }
    }

    /// What is not in it.
    pub(crate) fn complement(&self) -> Self {
        let mut from = Some(T::MIN);
        let mut gaps = Vec::new();
        for (low, high) in self.ranges() {
            gaps.extend(from.zip(low.previous()));
            from = high.next();
        }
        gaps.extend(from.map(|from| (from, T::MAX)));
        Self::of(gaps)
    }
}

/// The overlaps of two lists of ranges, both as in a set: so are the overlaps.
fn overlaps<'a, T: Integer>(a: &'a [(T, T)], b: &'a [(T, T)]) -> impl Iterator<Item = (T, T)> + 'a {
    let (mut i, mut j) = (0, 0);
    std::iter::from_fn(move || {
        while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
            let (low, high) = (x.0.max(y.0), x.1.min(y.1));
            if x.1 < y.1 {
                i += 1
            } else {
                j += 1
            }
            if low <= high {
                return Some((low, high));
            }
        }
        None
    })
}
