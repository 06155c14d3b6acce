//! Traffic streams: a ring of buffers, threads that take buffers through a service chain, and one that tells of results, in order.
//!
//! A buffer that is ready gets the next number of its stream. A device has a share of the buffers, and threads with a queue each, which
//! take its buffers in order of these numbers: while one copies, another one's kernels run. The thread that tells waits for each number
//! in turn.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packetloom_device::{Cache, Device, Id};

use super::buffer::{Buffer, Phase};
use super::function::{Batch, Form, Function, Kind, Room};
use super::lane::{Lane, LeftOut, OnDevice};
use super::{NCA_QUEUES, nca_event, nca_notify, nca_packets};
use crate::status::*;

/// Bytes of a thread's stack: callbacks of the program run there, and are used to as much.
const STACK: usize = 8 << 20;

/// A buffer on its way.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// In order of readiness, from 0.
    number: u64,
    buffer: usize,
}

/// Buffers that were ready, and what became of them.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Numbers given.
    given: u64,
    /// Buffers that are processed, by number, before they are told of.
    processed: BTreeMap<u64, usize>,
    /// Buffers whose results could be read, and numbers told of.
    done: u64,
    told: u64,
    /// No buffer is ready any more.
    is_closing: bool,
    /// Threads of each device.
    queues: usize,
    /// What is left out of each buffer.
    left_out: LeftOut,
}

impl Jobs {
    fn are_over(&self) -> bool {
        self.is_closing && self.told == self.given
    }

    /// Refuses what is for streams without a buffer on its way to results.
    fn idle(&self, id: c_int) -> Outcome<()> {
        if self.is_closing {
            let text = format!("stream {id} is being closed; expected one that is open");
            return Err(Fault::new(PL_ERROR_NOT_FOUND, text));
        }
        if self.done < self.given {
            let text = format!("stream {id} has buffers on their way; expected that all have results");
            return Err(Fault::new(PL_ERROR_BUSY, text));
        }
        Ok(())
    }
}

/// A function of the service chain.
struct Step {
    function: Arc<Function>,
    form: Form,
    /// Its number among those that devices have, if it is one.
    on_device: Option<usize>,
}

/// What threads share.
struct Shared {
    id: c_int,
    buffers: Vec<Buffer>,
    /// In the order of the service chain.
    steps: Vec<Step>,
    /// Places of steps, a set after the other: that of set 0 first.
    sets: Vec<Vec<usize>>,
    devices: Vec<Device>,
    /// Functions that devices have, each loaded onto all of them.
    on_devices: Vec<Vec<OnDevice>>,
    notify: nca_notify,
    jobs: Mutex<Jobs>,
    /// Rung at each change of the jobs.
    changed: Condvar,
}

/// A stream.
pub(super) struct Stream {
    shared: Arc<Shared>,
    /// Until it is closed: the one that tells, and then those with queues, a round of the devices after the other.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a stream is made of.
pub(super) struct Settings {
    pub(super) id: c_int,
    pub(super) buffers: usize,
    pub(super) buffer_size: usize,
    pub(super) notify: nca_notify,
    /// The service chain, with the number of each function's set.
    pub(super) chain: Vec<(Arc<Function>, u32)>,
    pub(super) devices: Devices,
}

/// Where functions run.
pub(super) enum Devices {
    /// On so many threads of this machine.
    Cores(usize),
    /// What devices can have on these, the rest on this machine's cores.
    On(Vec<Id>),
}

impl Stream {
    pub(super) fn new(settings: Settings) -> Outcome<Self> {
        let has_kernels = settings.chain.iter().any(|(function, _)| matches!(function.kind, Kind::Kernel(_)));
        let open = |id: &Id| Ok(Device::open(*id, Cache::user())?);
        match &settings.devices {
            Devices::Cores(threads) if !has_kernels => Self::with(&settings, Vec::new(), *threads),
            // Kernels are compiled for this machine's cores.
            Devices::Cores(threads) => Self::with(&settings, vec![open(&Id::Host)?], *threads),
            Devices::On(ids) => {
                let devices = ids.iter().map(open).collect::<Outcome<Vec<_>>>()?;
                Self::with(&settings, devices, ids.len() * NCA_QUEUES as usize)
            }
        }
    }

    /// With devices that were opened, in so many threads.
    fn with(settings: &Settings, devices: Vec<Device>, threads: usize) -> Outcome<Self> {
        let Settings { id, buffers, buffer_size, notify, ref chain, .. } = *settings;
        let mut on_devices = Vec::new();
        let loaded = chain.iter().map(|(function, _)| {
            let Some(loaded) = OnDevice::load(function, &devices)? else { return Ok(None) };
            on_devices.push(loaded);
            Ok(Some(on_devices.len() - 1))
        });
        let loaded = loaded.collect::<Outcome<Vec<_>>>()?;
        let device_of = |buffer: usize| (!on_devices.is_empty()).then(|| &devices[buffer % devices.len()]);
        let buffers = (0..buffers).map(|buffer| Buffer::new(buffer_size, device_of(buffer)));
        let buffers: Vec<_> = buffers.collect::<Outcome<_>>()?;
        let numbers: std::collections::BTreeSet<_> = chain.iter().map(|(_, set)| *set).collect();
        let of_set = |set: u32| (0..chain.len()).filter(|&place| chain[place].1 == set).collect();
        let sets = numbers.into_iter().map(of_set).collect();
        let mut steps: Vec<Step> = Vec::with_capacity(chain.len());
        for ((function, _), on_device) in chain.iter().zip(loaded) {
            let function = function.clone();
            match Form::new(&function, threads) {
                Ok(form) => steps.push(Step { function, form, on_device }),
                Err(fault) => {
                    steps.iter().for_each(|step| step.form.release(&step.function));
                    return Err(fault);
                }
            }
        }
        let jobs = Mutex::new(Jobs { queues: threads / devices.len().max(1), ..Jobs::default() });
        let changed = Condvar::new();
        let shared =
            Arc::new(Shared { id, buffers, steps, sets, devices, on_devices, notify, jobs, changed });
        let stream = Self { shared, threads: Mutex::default() };
        let mut started = stream.started();
        let result = stream.start(&mut started, threads);
        drop(started);
        if let Err(fault) = result {
            drop(stream.close());
            return Err(fault);
        }
        Ok(stream)
    }

    fn started(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what is missing of so many threads with queues, and the one that tells.
    fn start(&self, started: &mut Vec<JoinHandle<()>>, threads: usize) -> Outcome<()> {
        let parts = self.shared.devices.len().max(1);
        for number in started.len()..=threads {
            let shared = self.shared.clone();
            let (name, body): (_, Box<dyn FnOnce() + Send>) = match number.checked_sub(1) {
                None => ("nca-notify".into(), Box::new(move || shared.tell())),
                Some(number) => {
                    let queue = (number % parts, number / parts);
                    (format!("nca-{number}"), Box::new(move || shared.process(queue, parts)))
                }
            };
            let thread = thread::Builder::new().name(name).stack_size(STACK).spawn(body);
            let thread =
                thread.map_err(|e| Fault::new(PL_ERROR_MEMORY, format!("no thread for a stream: {e}")))?;
            started.push(thread);
        }
        Ok(())
    }

    pub(super) fn id(&self) -> c_int {
        self.shared.id
    }

    /// Gives each device so many queues, while no buffer is on its way.
    pub(super) fn set_queues(&self, queues: usize) -> Outcome<()> {
        // Who holds it may wait for the thread that calls.
        let mut started = match self.threads.try_lock() {
            Ok(started) => started,
            Err(TryLockError::Poisoned(started)) => started.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let text =
                    format!("another thread changes stream {}; expected one at a time", self.shared.id);
                return Err(Fault::new(PL_ERROR_BUSY, text));
            }
        };
        let threads = queues * self.shared.devices.len().max(1);
        let before = {
            let mut jobs = self.shared.jobs();
            jobs.idle(self.shared.id)?;
            // Those that come begin, and those that are too many end.
            std::mem::replace(&mut jobs.queues, queues)
        };
        let result = self.shared.steps.iter().try_for_each(|step| step.form.grow(&step.function, threads));
        let result = result.and_then(|()| self.start(&mut started, threads));
        let queues = if result.is_ok() { queues } else { before };
        self.shared.jobs().queues = queues;
        self.shared.changed.notify_all();
        let last = 1 + queues * self.shared.devices.len().max(1);
        let last = last.min(started.len());
        started.drain(last..).for_each(|thread| drop(thread.join()));
        result
    }

    /// Leaves something out of each buffer from now on, while none is on its way.
    pub(super) fn leave_out(&self, what: LeftOut) -> Outcome<()> {
        let mut jobs = self.shared.jobs();
        jobs.idle(self.shared.id)?;
        jobs.left_out = what;
        Ok(())
    }

    pub(super) fn buffer(&self, buffer: c_int) -> Outcome<&Buffer> {
        let found = usize::try_from(buffer).ok().and_then(|buffer| self.shared.buffers.get(buffer));
        found.ok_or_else(|| {
            let count = self.shared.buffers.len();
            let text =
                format!("no buffer {buffer} in stream {}; expected 0 to {}", self.shared.id, count - 1);
            Fault::new(PL_ERROR_NOT_FOUND, text)
        })
    }

    /// Bytes of results for a packet, of all functions together.
    pub(super) fn result_size(&self) -> usize {
        self.shared.steps.iter().map(|step| step.function.result_size).sum()
    }

    /// Hands a buffer over.
    pub(super) fn ready(&self, number: c_int) -> Outcome<()> {
        let buffer = self.buffer(number)?;
        // In this order, as elsewhere.
        let mut jobs = self.shared.jobs();
        let mut contents = buffer.filling()?;
        if contents.packets() == 0 {
            return Err(Fault::argument(format!("buffer {number} has no packet; expected one at least")));
        }
        if jobs.is_closing {
            let text = format!("stream {} is being closed; expected one that is open", self.shared.id);
            return Err(Fault::new(PL_ERROR_NOT_FOUND, text));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        contents.time = u64::try_from(now).unwrap_or(u64::MAX);
        contents.phase = Phase::Ready;
        let job = Job { number: jobs.given, buffer: number as usize };
        jobs.given += 1;
        jobs.waiting.push_back(job);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits until a buffer has results, for so long at most.
    pub(super) fn wait(&self, number: c_int, limit: Option<Duration>) -> Outcome<()> {
        let buffer = self.buffer(number)?;
        let start = Instant::now();
        let mut jobs = self.shared.jobs();
        loop {
            match buffer.lock().phase {
                Phase::Done => return Ok(()),
                Phase::Filling => {
                    return Err(Fault::new(PL_ERROR_NOT_READY, format!("buffer {number} is not ready")));
                }
                Phase::Ready => {}
            }
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            jobs = match left {
                Some(Duration::ZERO) => {
                    let text = format!("buffer {number} has no results yet; wait on");
                    return Err(Fault::new(PL_ERROR_NOT_READY, text));
                }
                Some(left) => {
                    let waited = self.shared.changed.wait_timeout(jobs, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Waits until all that is ready is done and told of, and ends the threads. Only the first call does so.
    pub(super) fn close(&self) -> Outcome<()> {
        {
            let mut jobs = self.shared.jobs();
            if jobs.is_closing {
                let text = format!("stream {} is being closed by another thread", self.shared.id);
                return Err(Fault::new(PL_ERROR_BUSY, text));
            }
            jobs.is_closing = true;
            self.shared.changed.notify_all();
        }
        let threads = std::mem::take(&mut *self.started());
        // None of them panics: what they do is caught.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        let steps = self.shared.steps.iter();
        let ended = steps.map(|step| caught(|| step.form.end(&step.function)));
        ended.fold(Ok(()), Result::and)
    }
}

impl Shared {
    /// What is done with the lock held leaves no half of a change.
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, jobs: MutexGuard<'a, Jobs>) -> MutexGuard<'a, Jobs> {
        self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread that tells of results, in order.
    fn tell(&self) {
        let mut jobs = self.jobs();
        loop {
            let told = jobs.told;
            if let Some(buffer) = jobs.processed.remove(&told) {
                // With the lock held: who waits looks at the phase, and may do at once what is for streams at rest.
                let mut contents = self.buffers[buffer].lock();
                contents.phase = Phase::Done;
                let event =
                    if contents.fault.is_some() { nca_event::NCA_FAILED } else { nca_event::NCA_RESULTS };
                drop(contents);
                jobs.done += 1;
                drop(jobs);
                self.changed.notify_all();
                if let Some(notify) = self.notify {
                    // SAFETY: the program passed a function of this type. No lock is held.
                    callback(|| unsafe { notify(self.id, buffer as c_int, event as c_int) });
                }
                jobs = self.jobs();
                jobs.told += 1;
                self.changed.notify_all();
            } else if jobs.are_over() {
                return;
            } else {
                jobs = self.wait(jobs);
            }
        }
    }

    /// A thread that processes buffers of a part: the one with this queue.
    fn process(&self, (part, queue): (usize, usize), parts: usize) {
        let mut room = Room::default();
        let mut lane = None;
        let mut jobs = self.jobs();
        loop {
            if queue >= jobs.queues {
                return;
            }
            let mine = jobs.waiting.iter().position(|job| job.buffer % parts == part);
            if let Some(job) = mine.and_then(|mine| jobs.waiting.remove(mine)) {
                let left_out = jobs.left_out;
                drop(jobs);
                self.process_buffer(job, part, left_out, &mut room, &mut lane);
                jobs = self.jobs();
                jobs.processed.insert(job.number, job.buffer);
                self.changed.notify_all();
            } else if jobs.is_closing {
                return;
            } else {
                jobs = self.wait(jobs);
            }
        }
    }

    fn process_buffer(
        &self,
        job: Job,
        part: usize,
        left_out: LeftOut,
        room: &mut Room,
        lane: &mut Option<Lane>,
    ) {
        let buffer = &self.buffers[job.buffer];
        let (offsets, time, mut results) = {
            let mut contents = buffer.lock();
            (contents.offsets.clone(), contents.time, std::mem::take(&mut contents.results))
        };
        results.resize_with(self.steps.len(), Vec::new);
        let end = offsets.last().copied().unwrap_or_default();
        // SAFETY: the library has the buffer until its results were told of.
        let packets = unsafe { buffer.packets(&offsets) };
        let batch = Batch { number: job.number, time, packets: &packets };
        let mut fault = None;
        if let Some(lane) = lane {
            lane.begin();
        }
        let mut queued = Vec::new();
        for set in &self.sets {
            let mut others = Vec::with_capacity(set.len());
            for &place in set {
                let number = self.steps[place].on_device;
                let Some(number) = number.filter(|&number| self.on_devices[number][part].takes(end)) else {
                    others.push(place);
                    continue;
                };
                let launched = caught(|| self.launch(number, (job.buffer, part), left_out, &offsets, lane));
                match launched {
                    Ok(()) => queued.push((place, number)),
                    Err(why) => fault = fault.or(Some(why)),
                }
            }
            // Each of them meets each buffer: some keep state, and wait for their turn.
            for place in others {
                let Step { function, form, .. } = &self.steps[place];
                let ran = caught(|| function.run(form, &batch, room, &mut results[place]));
                fault = fault.or(ran.err());
            }
            if let Some(lane) = lane.as_mut().filter(|_| !queued.is_empty()) {
                fault = fault.or(caught(|| lane.finish()).err());
            }
        }
        if fault.is_none()
            && let Some(lane) = lane
        {
            for (place, number) in queued {
                let (function, results) = (&self.on_devices[number][part], &mut results[place]);
                let read = || self.read(place, (lane, number, function), &batch, room, results);
                fault = fault.or(caught(read).err());
            }
        } else if let Some(lane) = lane.take() {
            // A queue that failed is of no use, and what it may still do is not waited for.
            lane.abandon();
        }
        let mut contents = buffer.lock();
        contents.results = results;
        contents.fault = fault;
    }

    /// Reads what a device has found about a batch, and has this core look at packets that the device could not judge.
    fn read(
        &self,
        place: usize,
        (lane, number, on_device): (&mut Lane, usize, &OnDevice),
        batch: &Batch<'_>,
        room: &mut Room,
        results: &mut Vec<u8>,
    ) -> Outcome<()> {
        let Step { function, form, .. } = &self.steps[place];
        let size = function.result_size;
        results.clear();
        results.resize(batch.packets.len() * size, 0);
        let left = lane.read(number, on_device, size, results);
        if left.is_empty() {
            return Ok(());
        }
        let packets: Vec<_> = left.iter().map(|&index| batch.packets[index]).collect();
        let mut found = Vec::new();
        function.run(form, &Batch { packets: &packets, ..*batch }, room, &mut found)?;
        for (&index, found) in left.iter().zip(found.chunks(size)) {
            results[index * size..][..size].copy_from_slice(found);
        }
        Ok(())
    }

    fn launch(
        &self,
        number: usize,
        (buffer, part): (usize, usize),
        left_out: LeftOut,
        offsets: &[u32],
        lane: &mut Option<Lane>,
    ) -> Outcome<()> {
        let place = buffer;
        let buffer = &self.buffers[place];
        let lane = match lane {
            Some(lane) => lane,
            None => lane.insert(Lane::new(
                &self.devices[part],
                self.on_devices.iter().map(|all| &all[part]),
                buffer,
            )?),
        };
        let packets = nca_packets {
            traffic_stream_id: self.id,
            buffer_id: place as c_int,
            num_packets: offsets.len() as u32 - 1,
            offsets: offsets.as_ptr(),
            bytes: buffer.base().as_ptr(),
        };
        lane.launch(number, &self.on_devices[number][part], buffer, left_out, offsets, &packets)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use packetloom_device::faults::{Call, Faults};
    use packetloom_packet::LinkType;

    use super::super::function::Params;
    use super::*;

    fn function(id: c_int, name: &str, config: &str, patterns: Vec<&[u8]>) -> (Arc<Function>, u32) {
        let params = Params { config, folder: Path::new(""), patterns, link: LinkType::ETHERNET };
        (Arc::new(Function::built_in(id, name, 4, &params).expect("a function")), 1)
    }

    /// Has a buffer processed; its results, of all functions.
    fn process(stream: &Stream, packets: &[u8], lens: &[i32]) -> Outcome<Vec<Vec<u8>>> {
        let buffer = stream.buffer(0).expect("it is there");
        // SAFETY: there are as many bytes.
        unsafe { buffer.add(&mut buffer.filling().expect("empty"), packets.as_ptr(), lens) }.expect("room");
        stream.ready(0).expect("it has packets");
        stream.wait(0, None).expect("it is processed");
        let mut contents = buffer.lock();
        let results = contents.fault.take().map_or_else(|| Ok(contents.results.clone()), Err);
        buffer.clear(&mut contents);
        results
    }

    #[test]
    fn faults_of_a_device_fail_buffers_with_a_reason_and_the_stream_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = folder.path().join("a.rules");
        std::fs::write(&rules, "deny any from any to any\n").expect("written");
        let chain = vec![
            function(1, "strings", "", vec![b"abc"]),
            function(2, "acl", &format!("rules = {rules:?}"), Vec::new()),
        ];
        for id in packetloom_testing::accelerators() {
            let faults = Faults::new();
            let device = Device::open(id, Cache::user()).expect("a device").with_faults(&faults);
            let settings = Settings {
                id: 1,
                buffers: 1,
                buffer_size: 10,
                notify: None,
                chain: chain.clone(),
                devices: Devices::On(vec![id]),
            };
            let on_cores = Stream::with(&settings, Vec::new(), 1).expect("a stream");
            let expected = process(&on_cores, b"xabxxabc", &[4, 4]);
            on_cores.close().expect("closed");
            assert_eq!(expected.as_ref().expect("results")[0], [[0; 4], 1u32.to_ne_bytes()].concat());
            let stream = Stream::with(&settings, vec![device], 1).expect("a stream");
            assert_eq!(stream.shared.on_devices.len(), 2, "both are on the device");
            assert_eq!(process(&stream, b"xabxxabc", &[4, 4]), expected);
            for call in [Call::Copy, Call::Launch, Call::Finish] {
                let mut hits = 0;
                for after in 0..3 {
                    faults.fail(call, after);
                    let before = faults.counts(call).faults;
                    let found = process(&stream, b"xabxxabc", &[4, 4]);
                    if faults.counts(call).faults > before {
                        hits += 1;
                        assert_eq!(found.expect_err("it failed").status, PL_ERROR_DEVICE, "{call:?} {after}");
                    }
                    // What is left of the fault hits the next ones.
                    let goes_on = (0..8).any(|_| process(&stream, b"xabxxabc", &[4, 4]) == expected);
                    assert!(goes_on, "{call:?} {after}");
                }
                assert!(hits > 0, "{call:?}: no buffer was hit");
            }
            stream.close().expect("closed");
        }
    }
}
