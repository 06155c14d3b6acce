//! Tries all orders in which threads may take the steps of code that waits for nobody. The code is that of the crates, with loom's
//! primitives in place of the standard library's.
#![cfg(test)]

#[path = "../../crates/classify/src/live/pair.rs"]
mod pair;

mod sync {
    pub(super) use std::sync::PoisonError;

    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(super) use loom::sync::{RwLock, RwLockReadGuard};
}

use loom::sync::Arc;
use loom::thread;
use pair::Pair;

/// A copy of two numbers, which are the same once it is written.
type Numbers = [usize; 2];

/// What two views in turn see while there are so many publications: each is whole, and none is older than the one before.
fn views(publications: usize) {
    loom::model(move || {
        let pair: Arc<Pair<Numbers>> = Arc::new(Pair::new([[0; 2]; 2]));
        let reader = Arc::clone(&pair);
        let reading = thread::spawn(move || {
            let mut last = 0;
            for _ in 0..2 {
                let [one, other] = *reader.read();
                assert!(one == other && one >= last, "{one} and {other} after {last}");
                last = one;
            }
        });
        for number in 1..=publications {
            pair.write(|copy| {
                copy[0] = number;
                copy[1] = number;
            });
        }
        reading.join().expect("no panic");
        assert_eq!(pair.read()[0], publications);
        assert_eq!(pair.each(|copy| copy[0]).into_iter().max(), Some(publications));
    });
}

#[test]
fn views_are_whole_and_never_go_back() {
    for publications in 0..=3 {
        views(publications);
    }
}
