//! Threads that share the work of one loop: what is to be done for each of several things, and what may be done at the same time.
//!
//! Loops come some ten thousand times a second, so threads look for the next one before they sleep, and no loop waits for one that sleeps:
//! whoever comes while something is left takes part.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Error;
use crate::bell::Bell;

/// Something that members do with their number. It lives as long as it is open, or somebody is at it.
type Job = *const (dyn Fn(usize) + Sync);

/// A thread that asks for work, and others that help it.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// For loops, and for what is done beside them.
    jobs: [Place; 2],
    /// What is done when there is nothing else to do.
    later: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    bell: Bell,
    is_over: AtomicBool,
}

const LOOP: usize = 0;
const ASIDE: usize = 1;

/// How long a member that has helped looks for the next loop before it sleeps: longer than there is something between two that one thread alone does.
const AWAKE: Duration = Duration::from_micros(300);

/// A place for one job at a time.
struct Place {
    /// Held by who has put a job there.
    owner: Mutex<()>,
    /// From the lowest bit: members that are at the job; whether others may come; how many jobs there were.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// What a helper panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: u64 = 1 << 16;
const MEMBERS: u64 = OPEN - 1;
const TURN: u64 = 1 << 17;

// SAFETY: jobs may be called by any thread. One is put into its place by the place's owner, while that is closed and nobody is at it, and read by
// who has come while it was open.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

impl Place {
    fn new() -> Self {
        Self {
            owner: Mutex::default(),
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    /// Takes part in the job, if there is another one than the last that this member took part in; whether there was.
    fn help(&self, member: usize, last: &mut u64) -> bool {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            if state & OPEN == 0 || state / TURN == *last {
                return false;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => state = other,
            }
        }
        *last = state / TURN;
        // SAFETY: nobody writes it while this member is counted; the job lives until it is not, any more.
        let done = catch_unwind(AssertUnwindSafe(|| unsafe {
            if let Some(job) = *self.job.get() {
                (*job)(member);
            }
        }));
        if let Err(panic) = done {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        self.state.fetch_sub(1, Ordering::Release);
        true
    }
}

/// A job in its place; nobody is at it, or comes, once this is gone.
struct Opened<'a> {
    place: &'a Place,
    _owner: MutexGuard<'a, ()>,
}

impl<'a> Opened<'a> {
    /// None where there is another job. To be dropped before what the job borrows is gone.
    fn new(shared: &'a Shared, place: usize, job: &'a (dyn Fn(usize) + Sync + 'a)) -> Option<Self> {
        let place = &shared.jobs[place];
        let owner = match place.owner.try_lock() {
            Ok(owner) => owner,
            Err(TryLockError::Poisoned(owner)) => owner.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // SAFETY: only the lifetime changes: whoever calls the job has come before `drop` closes the place, which waits for it.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + 'a), Job>(job) };
        // SAFETY: the place is closed and nobody is at its job, since its owner before has waited for that.
        unsafe { *place.job.get() = Some(job) };
        place.state.fetch_add(TURN + OPEN, Ordering::SeqCst);
        shared.bell.ring();
        Some(Self { place, _owner: owner })
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        let place = self.place;
        place.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0u32;
        while place.state.load(Ordering::Acquire) & MEMBERS != 0 {
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            // Where there are fewer processors than threads, another one goes on.
            if looks.is_multiple_of(64) {
                thread::yield_now();
            }
        }
        let panic = place.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic.filter(|_| !thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    fn help(&self, member: usize) {
        let mut last = [0; 2];
        let mut helped = Instant::now();
        while !self.is_over.load(Ordering::SeqCst) {
            let seen = self.bell.events();
            // What is done beside a loop takes longer.
            let has_helped = [ASIDE, LOOP].into_iter().any(|job| self.jobs[job].help(member, &mut last[job]));
            if has_helped || self.do_later() {
                helped = Instant::now();
            } else {
                self.bell.wait_awake(seen, AWAKE.saturating_sub(helped.elapsed()));
            }
        }
    }

    fn do_later(&self) -> bool {
        let work = self.later.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        // Nobody waits for it.
        work.map(|work| catch_unwind(AssertUnwindSafe(work))).is_some()
    }
}

impl Crew {
    /// So many threads, of which the one that asks is one.
    ///
    /// # Errors
    /// The system has none left.
    pub(crate) fn new(members: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            jobs: [Place::new(), Place::new()],
            later: Mutex::default(),
            bell: Bell::default(),
            is_over: AtomicBool::new(false),
        });
        let mut crew = Self { shared, helpers: Vec::new() };
        for member in 1..members {
            let shared = Arc::clone(&crew.shared);
            let helper = thread::Builder::new().name(format!("crew-{member}"));
            crew.helpers
                .push(helper.spawn(move || shared.help(member)).map_err(|_| Error::Threads(members))?);
        }
        Ok(crew)
    }

    /// How many they are.
    pub(crate) fn members(&self) -> usize {
        1 + self.helpers.len()
    }

    /// Does something with each item; in order where there is one thread. Where the crew is at something else of the
    /// kind, it is done here.
    pub(crate) fn each<I: Send>(&self, items: Vec<I>, work: impl Fn(I) + Sync) {
        self.each_by(items, |_, item| work(item));
    }

    /// The same with something that each thread has to itself: one for each [member](Self::members).
    pub(crate) fn each_with<L: Send, I: Send>(
        &self,
        own: &[Mutex<L>],
        items: Vec<I>,
        work: impl Fn(&mut L, I) + Sync,
    ) {
        self.each_by(items, |member, item| {
            work(&mut own[member].lock().unwrap_or_else(PoisonError::into_inner), item);
        });
    }

    fn each_by<I: Send>(&self, items: Vec<I>, work: impl Fn(usize, I) + Sync) {
        if self.helpers.is_empty() || items.len() < 2 {
            return items.into_iter().for_each(|item| work(0, item));
        }
        let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
        let next = AtomicUsize::new(0);
        let job = |member| {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                let item = item.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(item) = item {
                    work(member, item);
                }
            }
        };
        let _opened = Opened::new(&self.shared, LOOP, &job);
        job(0);
    }

    /// Does one thing here and another at the same time.
    pub(crate) fn beside<A: Send, B>(
        &self,
        there: impl FnOnce() -> A + Send,
        here: impl FnOnce() -> B,
    ) -> (A, B) {
        let there = Mutex::new(Some(there));
        let found = Mutex::new(None);
        let job = |_| {
            let there = there.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(there) = there {
                let done = there();
                *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            }
        };
        let opened = Opened::new(&self.shared, ASIDE, &job);
        let done = here();
        // Where nobody has come to it.
        job(0);
        drop(opened);
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        (found.expect("it was done here or there"), done)
    }

    /// Hands out work that is done some time, whatever else there is.
    pub(crate) fn later(&self) -> impl Fn(Box<dyn FnOnce() + Send>) + Send + use<> {
        let shared = Arc::clone(&self.shared);
        let is_alone = self.helpers.is_empty();
        move |work| {
            if is_alone {
                return work();
            }
            shared.later.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
            shared.bell.ring();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
        for helper in self.helpers.drain(..) {
            // Panics in jobs went to who asked for them.
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_worked_on_once_whatever_the_crew() {
        for members in [1, 2, 5] {
            let crew = Crew::new(members).expect("threads");
            assert_eq!(crew.members(), members);
            for count in (0..40).chain([1_000]) {
                let mut items = vec![0; count];
                crew.each(items.iter_mut().collect(), |item| *item += 1);
                assert!(items.iter().all(|&item| item == 1), "{items:?}");
                let own: Vec<_> = (0..members).map(|_| Mutex::new(0)).collect();
                crew.each_with(&own, items, |own, item| *own += item);
                let total: usize = own.into_iter().map(|own| own.into_inner().expect("no panic")).sum();
                assert_eq!(total, count);
            }
        }
    }

    /// Neither could end if one were done after the other.
    #[test]
    fn two_things_are_done_at_the_same_time() {
        let crew = Crew::new(2).expect("threads");
        let met = AtomicUsize::new(0);
        let meet = || {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            met.load(Ordering::SeqCst)
        };
        assert_eq!(crew.beside(meet, meet), (2, 2));
    }

    #[test]
    fn loops_go_on_beside_something_else() {
        for members in [1, 2, 3] {
            let crew = Crew::new(members).expect("threads");
            for round in 0..200 {
                let (there, here) = crew.beside(
                    || round,
                    || {
                        let mut items = vec![round; 7];
                        crew.each(items.iter_mut().collect(), |item| *item += 1);
                        items
                    },
                );
                assert_eq!((there, here), (round, vec![round + 1; 7]));
            }
        }
    }

    #[test]
    fn what_is_done_later_is_done() {
        let done = Arc::new(AtomicUsize::new(0));
        for members in [1, 3] {
            let crew = Crew::new(members).expect("threads");
            let later = crew.later();
            for _ in 0..50 {
                let done = Arc::clone(&done);
                later(Box::new(move || {
                    done.fetch_add(1, Ordering::SeqCst);
                }));
            }
            let before = if members == 1 { 0 } else { 50 };
            while done.load(Ordering::SeqCst) < before + 50 {
                thread::yield_now();
            }
        }
    }

    /// Whoever panics, what was borrowed is given back, and the crew can go on.
    #[test]
    fn panics_come_to_who_asked() {
        let crew = Crew::new(3).expect("threads");
        for bad in 0..6 {
            let mut items = [0; 6];
            let each = catch_unwind(AssertUnwindSafe(|| {
                crew.each(items.iter_mut().enumerate().collect(), |(number, item)| {
                    assert!(number != bad, "number {bad}");
                    *item = 1;
                });
            }));
            let said = each.expect_err("it panicked");
            assert_eq!(said.downcast_ref::<String>().map(String::as_str), Some(&*format!("number {bad}")));
            assert_eq!(items[bad], 0);
            let beside = catch_unwind(AssertUnwindSafe(|| crew.beside(|| panic!("there"), || ())));
            assert!(beside.is_err());
            let beside = catch_unwind(AssertUnwindSafe(|| crew.beside(|| (), || panic!("here"))));
            assert!(beside.is_err());
        }
        let mut items = [0; 6];
        crew.each(items.iter_mut().collect(), |item| *item += 1);
        assert_eq!(items, [1; 6]);
    }
}
