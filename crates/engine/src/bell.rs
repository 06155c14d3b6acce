//! How threads wait for each other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, thread};

/// How long a thread looks for an event before it sleeps: work mostly comes sooner, and waking a thread takes longer.
const AWAKE: Duration = Duration::from_micros(20);
/// How long it sleeps at most, so that what nobody rings for (a signal, a timer) is seen.
pub(crate) const NAP: Duration = Duration::from_millis(10);
/// Looks at the counter between two looks at the clock.
const LOOKS: u32 = 16;

/// Counts events. A thread that finds nothing to do waits for the next one.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    events: AtomicU64,
    sleepers: AtomicUsize,
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Bell {
    /// Events so far: to be read before a thread looks for work, and then [waited for](Self::wait).
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::SeqCst)
    }

    /// Tells all threads that there may be something to do.
    pub(crate) fn ring(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.mutex.lock().unwrap_or_else(PoisonError::into_inner));
            self.condvar.notify_all();
        }
    }

    /// Returns once there are more events than `seen`, or after some time.
    pub(crate) fn wait(&self, seen: u64) {
        self.wait_awake(seen, AWAKE);
    }

    /// The same for a thread that does not sleep.
    pub(crate) fn spin(&self, seen: u64) {
        self.is_rung_within(seen, NAP);
    }

    /// The same for a thread that stays awake for so long.
    pub(crate) fn wait_awake(&self, seen: u64, awake: Duration) {
        if self.is_rung_within(seen, awake) {
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        if self.events() == seen {
            // Whatever it returns, the caller looks for work again.
            let _ = self.condvar.wait_timeout(guard, NAP);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Looks for more events than `seen` for so long; whether there are some.
    fn is_rung_within(&self, seen: u64, awake: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < awake {
            for _ in 0..LOOKS {
                if self.events() != seen {
                    return true;
                }
                hint::spin_loop();
            }
            // Where there are fewer processors than threads, another one goes on.
            thread::yield_now();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_rung_before_is_not_waited_for() {
        let bell = Bell::default();
        let seen = bell.events();
        bell.ring();
        bell.wait(seen);
        assert_eq!(bell.events(), seen + 1);
    }

    #[test]
    fn sleepers_are_woken() {
        let bell = Bell::default();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut rounds = 0;
                while bell.events() < 100 {
                    bell.wait(bell.events().min(99));
                    rounds += 1;
                }
                rounds
            });
            for _ in 0..100 {
                thread::sleep(Duration::from_micros(200));
                bell.ring();
            }
            assert!(waiter.join().expect("no panic") > 0);
        });
    }
}
