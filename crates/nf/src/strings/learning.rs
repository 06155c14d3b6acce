//! The compiled set of a list, which is compiled again once it is known what payloads look like: windows of patterns are chosen then that are
//! rare in them. What is found stays the same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use packetloom_pattern::{Matcher, Patterns};
use packetloom_simd::Isa;

use super::store::Store;

/// When it is worth it.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    /// Patterns of the list at least.
    pub(super) patterns: usize,
    /// Bytes that were searched before.
    pub(super) searched: u64,
    /// Bytes of payloads that are looked at then.
    pub(super) sample: usize,
}

impl When {
    /// For sets of some size, in runs that take long: compiling one again takes as long as searching a gigabyte or two, and makes what comes
    /// then a sixth faster or more.
    pub(super) const DEFAULT: Self =
        Self { patterns: super::LEARNS_FROM, searched: 1 << 30, sample: 4 << 20 };
}

/// Bytes of a payload that are looked at, and those that a payload has at least that is.
const MAX_OF_TEXT: usize = 2048;
const MIN_OF_TEXT: usize = 32;

/// What all workers share.
#[derive(Debug)]
pub(super) struct Learning {
    when: When,
    /// Where the first one is kept.
    store: Option<Store>,
    /// Compiled when it is first needed.
    matcher: OnceLock<Mutex<Arc<Matcher>>>,
    /// How many there were.
    version: AtomicU64,
    /// Whether there is nothing more to be looked at.
    is_over: AtomicBool,
    searched: AtomicU64,
    sample: Mutex<Sample>,
}

/// Texts, and their bytes.
#[derive(Debug, Default)]
struct Sample {
    texts: Vec<Box<[u8]>>,
    bytes: usize,
}

/// A worker's, which becomes another one between two batches.
#[derive(Debug)]
pub(super) struct Current {
    matcher: Arc<Matcher>,
    version: u64,
}

impl Learning {
    pub(super) fn new(when: When, store: Option<Store>) -> Self {
        Self {
            when,
            store,
            matcher: OnceLock::new(),
            version: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            searched: AtomicU64::new(0),
            sample: Mutex::default(),
        }
    }

    fn shared(&self, patterns: &Patterns) -> &Mutex<Arc<Matcher>> {
        self.matcher.get_or_init(|| {
            let matcher = match &self.store {
                Some(store) => store.matcher(patterns),
                None => Matcher::new(patterns.clone()),
            };
            Mutex::new(Arc::new(matcher))
        })
    }

    /// The file of the compiled set.
    pub(super) fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// The one that is to be used, compiled now if none is.
    pub(super) fn matcher(&self, patterns: &Patterns) -> Arc<Matcher> {
        Arc::clone(&self.shared(patterns).lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same for a worker.
    pub(super) fn current(&self, patterns: &Patterns) -> Current {
        let version = self.version();
        Current { matcher: self.matcher(patterns), version }
    }

    /// How many times it was compiled again.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Takes note of what is searched; whether all that there is to know is known now, so that the caller has it compiled again.
    fn observe(&self, patterns: &Patterns, texts: &[&[u8]]) -> bool {
        if patterns.len() < self.when.patterns || self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        if self.searched.fetch_add(bytes as u64, Ordering::Relaxed) < self.when.searched {
            return false;
        }
        // Others need not wait: there is more where this came from.
        let Ok(mut sample) = self.sample.try_lock() else { return false };
        for text in texts.iter().filter(|text| text.len() >= MIN_OF_TEXT) {
            let text = &text[..text.len().min(MAX_OF_TEXT)];
            sample.texts.push(text.into());
            sample.bytes += text.len();
            if sample.bytes >= self.when.sample {
                return !self.is_over.swap(true, Ordering::Relaxed);
            }
        }
        false
    }

    /// Compiles the set again for what was looked at.
    fn compile(&self, patterns: &Patterns) {
        let sample = std::mem::take(&mut *self.sample.lock().unwrap_or_else(PoisonError::into_inner));
        let sample: Vec<_> = sample.texts.iter().map(|text| &text[..]).collect();
        let matcher = Arc::new(Matcher::with(patterns.clone(), Isa::detect(), &sample));
        *self.shared(patterns).lock().unwrap_or_else(PoisonError::into_inner) = matcher;
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Current {
    /// The set of the last batch.
    pub(super) fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// The set for the next batch, whose texts these are. Once enough is known it is compiled again by a thread of its own, which `list` is
    /// handed to.
    pub(super) fn for_texts<L: AsRef<Learning> + AsRef<Patterns> + Send + Sync + 'static>(
        &mut self,
        list: &Arc<L>,
        texts: &[&[u8]],
    ) -> &Matcher {
        let (learning, patterns): (&Learning, &Patterns) = ((**list).as_ref(), (**list).as_ref());
        if learning.observe(patterns, texts) {
            let list = Arc::clone(list);
            let compile = move || AsRef::<Learning>::as_ref(&*list).compile((*list).as_ref());
            // Where the system has no thread left the set stays as it is.
            drop(thread::Builder::new().name("patterns".into()).spawn(compile));
        }
        if learning.version() != self.version {
            *self = learning.current(patterns);
        }
        &self.matcher
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use packetloom_pattern::{Report, Scratch};

    use super::*;

    struct List(Learning, Patterns);

    impl AsRef<Learning> for List {
        fn as_ref(&self) -> &Learning {
            &self.0
        }
    }

    impl AsRef<Patterns> for List {
        fn as_ref(&self) -> &Patterns {
            &self.1
        }
    }

    #[test]
    fn a_set_is_compiled_again_for_what_was_searched_and_finds_the_same() {
        let words: Vec<_> = (0..400).map(|number| format!("common-beginning-{number}")).collect();
        let patterns: Patterns = words.iter().map(|word| word.as_bytes()).collect();
        let when = When { patterns: 400, searched: 10_000, sample: 5_000 };
        let list = Arc::new(List(Learning::new(when, None), patterns));
        let mut workers = [(); 2].map(|()| list.0.current(&list.1));
        let text = "common-beginning-77 common-beginning- common-beginning-3";
        let begin = Instant::now();
        let mut searched = 0;
        while list.0.version() == 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "it takes too long");
            for worker in &mut workers {
                let mut found = Vec::new();
                let matcher = worker.for_texts(&list, &[text.as_bytes()]);
                matcher.find(&[text.as_bytes()], Report::All, &mut Scratch::default(), &mut found);
                assert_eq!(found.len(), 3, "77, 7 and 3");
                searched += text.len();
            }
        }
        assert!(searched > 15_000, "{searched}");
        for worker in &mut workers {
            let mut found = Vec::new();
            let matcher = worker.for_texts(&list, &[text.as_bytes()]);
            matcher.find(&[text.as_bytes()], Report::All, &mut Scratch::default(), &mut found);
            assert_eq!(found.len(), 3);
            assert_eq!(worker.version, 1);
        }
        assert!(Arc::ptr_eq(&workers[0].matcher, &workers[1].matcher));
        // Once, and not of small lists.
        let small = Arc::new(List(Learning::new(When { patterns: 401, ..when }, None), list.1.clone()));
        let mut worker = small.0.current(&small.1);
        for _ in 0..1_000 {
            worker.for_texts(&small, &[text.as_bytes()]);
        }
        assert!(!small.0.is_over.load(Ordering::Relaxed));
        assert_eq!(small.0.searched.load(Ordering::Relaxed), 0);
    }
}
