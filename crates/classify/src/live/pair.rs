//! Two copies of something: one that is read, one that is written, in turns. The folder `loom` tries all orders of its steps.

use super::sync::{AtomicUsize, Ordering, PoisonError, RwLock, RwLockReadGuard, spin_loop};

/// Both copies. Readers hold a lock on the one that is active, which nobody waits for: the writer locks the other one.
#[derive(Debug)]
pub(super) struct Pair<T> {
    copies: [RwLock<T>; 2],
    active: AtomicUsize,
}

impl<T> Pair<T> {
    pub(super) fn new(copies: [T; 2]) -> Self {
        Self { copies: copies.map(RwLock::new), active: AtomicUsize::new(0) }
    }

    /// Writes to the copy that is not active, and makes it the active one. Waits for readers that still have it. There is one writer.
    pub(super) fn write(&self, write: impl FnOnce(&mut T)) {
        let idle = 1 - self.active.load(Ordering::Relaxed);
        write(&mut self.copies[idle].write().unwrap_or_else(PoisonError::into_inner));
        self.active.store(idle, Ordering::Release);
    }

    /// The active copy. What is read later is never older.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
        loop {
            let active = self.active.load(Ordering::Acquire);
            // The writer holds it only after another one became active.
            if let Ok(copy) = self.copies[active].try_read()
                // It may have been written since, and not be active yet: who read it would find the other copy, which is older, next.
                && self.active.load(Ordering::Acquire) == active
            {
                return copy;
            }
            spin_loop();
        }
    }

    /// Both, one after the other; waits for the writer.
    pub(super) fn each<R>(&self, look: impl Fn(&T) -> R) -> [R; 2] {
        self.copies.each_ref().map(|copy| look(&copy.read().unwrap_or_else(PoisonError::into_inner)))
    }
}
