//! What works on a device: copies and small kernels, compared with the same done here.

use std::time::Instant;

use crate::{Arguments, Description, Device, Entry, Error, Id, Kernel, Loaded, Memory, Program, Queue};

/// Something that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it is.
    pub name: &'static str,
    /// A detail of what works, or what does not work.
    pub outcome: Result<String, String>,
}

/// Why a check failed.
struct Why(String);

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

type Outcome = Result<String, Why>;

/// Bytes that are copied.
const BYTES: usize = 1 << 20;
/// How often, to tell a rate.
const ROUNDS: usize = 8;
/// Elements that kernels work on.
const COUNT: u32 = 100_000;
/// Elements of a group that are reduced.
const PART: u32 = 999;
/// Counters that items add to, and how many items.
const COUNTERS: u32 = 5;
const ADDERS: u32 = 5000;

crate::arguments! {
    struct Compute as COMPUTE_PARAMETERS {
        input: fixed u32 [count],
        output: write u32 [count],
        count: u32,
        seed: u64,
    }
}

crate::arguments! {
    struct Reduce as REDUCE_PARAMETERS {
        input: fixed u32 [count],
        output: write u32 [count.div_ceil(PART.into()) * (4 + group)],
        count: u32,
        group: host,
    }
}

crate::arguments! {
    struct Compact as COMPACT_PARAMETERS {
        input: fixed u32 [items],
        output: write u32 [items],
        ballots: write u32 [items / lanes],
        items: host,
        lanes: host,
    }
}

crate::arguments! {
    struct Count as COUNT_PARAMETERS {
        counters: write u64 [u64::from(COUNTERS)],
        ticket: write u64 [1],
        takers: write u32 [count],
        count: u32,
        step: u64,
    }
}

crate::arguments! {
    struct InPlace as IN_PLACE_PARAMETERS {
        words: write u32 [count],
        count: u32,
    }
}

/// Tries a device. Whatever goes wrong there is told in the checks.
pub fn run(device: &Device) -> Vec<Check> {
    let of = device.description();
    let group = group(of);
    let begin = Instant::now();
    let kernels = build(device, group);
    let built = match &kernels {
        Ok(_) => Ok(format!("kernels are ready after {:.0} ms", begin.elapsed().as_secs_f64() * 1e3)),
        Err(error) => Err(Why::from(error.clone())),
    };
    let trial = |number: usize| match &kernels {
        Ok(kernels) => Ok(Trial { device, queue: device.queue()?, kernel: &kernels[number], group }),
        Err(_) => Err(Why("there are no kernels".into())),
    };
    let atomics = || match of.atomics_64 {
        true => add_and_swap(trial(4)?),
        false => Ok("not tried: the device has none".into()),
    };
    let shares = || match of.shares {
        true => in_place(trial(3)?),
        false => Ok("not tried: kernels of the device do not reach it".into()),
    };
    let lanes = if of.id == Id::Host { group } else { of.lanes };
    let outcomes = [
        ("copies", copies(device)),
        ("build", built),
        ("kernel", trial(0).and_then(compute)),
        ("groups", trial(1).and_then(reduce)),
        ("lanes", trial(2).and_then(|trial| compact(trial, lanes))),
        ("64-bit atomics", atomics()),
        ("shared memory", shares()),
    ];
    let check = |(name, outcome): (_, Outcome)| Check { name, outcome: outcome.map_err(|why| why.0) };
    outcomes.into_iter().map(check).collect()
}

/// Items in a group: a whole number of sets of lanes.
fn group(of: &Description) -> u32 {
    let most = of.group.clamp(1, 64);
    most - if of.lanes > 1 && most > of.lanes { most % of.lanes } else { 0 }
}

fn build(device: &Device, group: u32) -> Result<Vec<Loaded>, Error> {
    let mut entries = vec![
        Entry::of::<Compute<'_>>("compute"),
        Entry::of::<Reduce<'_>>("reduce"),
        Entry::of::<Compact<'_>>("compact"),
        Entry::of::<InPlace<'_>>("in_place"),
    ];
    if device.description().atomics_64 {
        entries.push(Entry::of::<Count<'_>>("count_64"));
    }
    device.build(&Program {
        name: "selftest",
        source: include_str!("../kernels/selftest.kernel.c").into(),
        defines: vec![
            ("PART".into(), PART.to_string()),
            ("COUNTERS".into(), COUNTERS.to_string()),
            Compute::define(),
            Reduce::define(),
            Compact::define(),
            InPlace::define(),
            Count::define(),
        ],
        group,
        groups_per_unit: 1,
        stays: false,
        // The words of `tally`.
        local: 4 * (4 + group),
        entries,
    })
}

/// What a check of a kernel uses.
struct Trial<'a> {
    device: &'a Device,
    queue: Queue,
    kernel: &'a Loaded,
    group: u32,
}

impl Trial<'_> {
    fn memory(&self, words: &[u32]) -> Result<Memory, Error> {
        self.device.memory_of(bytemuck::cast_slice(words))
    }

    fn launch<A: Arguments>(&mut self, groups: u32, arguments: &A) -> Result<(), Error> {
        // SAFETY: each check launches its own kernel, with as many groups as `selftest.kernel.c` says for its counts.
        let kernel = unsafe { Kernel::<A>::new(self.kernel.clone())? };
        self.queue.launch(&kernel, groups, arguments)?;
        self.queue.finish()
    }

    fn words(&mut self, memory: &Memory) -> Result<Vec<u32>, Error> {
        let mut words = vec![0; memory.len() / 4];
        self.queue.read(memory, 0, bytemuck::cast_slice_mut(&mut words))?;
        Ok(words)
    }
}

/// Words that look like random ones.
fn words(count: u32, seed: u64) -> Vec<u32> {
    (0..u64::from(count)).map(|i| mix(i as u32, seed ^ i << 40)).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], expected: &[T]) -> Result<(), Why> {
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        Some(i) => Err(Why(format!("{what} {i} is {:?}, not {:?}", got[i], expected[i]))),
        None if got.len() == expected.len() => Ok(()),
        None => Err(Why(format!("{} of {what}, not {}", got.len(), expected.len()))),
    }
}

fn copies(device: &Device) -> Outcome {
    let mut queue = device.queue()?;
    let memory = device.memory(BYTES)?;
    let rate = |since: Instant| (BYTES * ROUNDS) as f64 / since.elapsed().as_secs_f64() / 1e9;
    let contents = |seed| bytemuck::cast_slice::<u32, u8>(&words((BYTES / 4) as u32, seed)).to_vec();
    let (first, second, third) = (contents(1), contents(2), contents(3));

    let mut got = vec![0; BYTES];
    // The first of each kind is slower.
    queue.write(&memory, 0, &second)?;
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        queue.write(&memory, 0, &first)?;
    }
    let into = rate(begin);
    queue.read(&memory, 0, &mut got)?;
    same("byte", &got, &first)?;
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        queue.read(&memory, 0, &mut got)?;
    }
    let out = rate(begin);
    same("byte", &got, &first)?;
    let zeros = vec![0; BYTES];
    queue.clear(&memory)?;
    queue.read(&memory, 0, &mut got)?;
    same("byte that was cleared", &got, &zeros)?;
    got.fill(1);
    queue.read(&device.zeros(BYTES)?, 0, &mut got)?;
    same("byte of zeros", &got, &zeros)?;

    let (mut from, mut to) = (device.share(BYTES)?, device.share(BYTES)?);
    from.write(0, &second);
    let mut expected = second;
    queue.copy_in(&mut from, 0..BYTES, &memory, 0)?;
    queue.copy_out(&memory, 0..BYTES, &mut to, 0)?;
    queue.finish()?;
    to.read(0, &mut got);
    same("byte through shared memory", &got, &expected)?;
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        queue.copy_in(&mut from, 0..BYTES, &memory, 0)?;
    }
    queue.finish()?;
    let shared_into = rate(begin);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        queue.copy_out(&memory, 0..BYTES, &mut to, 0)?;
    }
    queue.finish()?;
    let shared_out = rate(begin);

    // Parts, at odd places.
    queue.write(&memory, 1001, &third[5..70_006])?;
    expected[1001..71_002].copy_from_slice(&third[5..70_006]);
    from.write(33, &third[900_000..900_100]);
    queue.copy_in(&mut from, 33..133, &memory, BYTES - 103)?;
    expected[BYTES - 103..BYTES - 3].copy_from_slice(&third[900_000..900_100]);
    queue.copy_out(&memory, 7..BYTES, &mut to, 3)?;
    queue.finish()?;
    to.read(3, &mut got[..BYTES - 7]);
    same("byte after parts were copied", &got[..BYTES - 7], &expected[7..])?;
    let mut part = vec![0; 777];
    queue.read(&memory, 1000, &mut part)?;
    same("byte of a part", &part, &expected[1000..1777])?;
    Ok(format!(
        "1 MiB in at {into:.1} GB/s, out at {out:.1}; from shared memory in at {shared_into:.1}, out at {shared_out:.1}"
    ))
}

/// As in the kernel's text.
fn mix(x: u32, seed: u64) -> u32 {
    let wide = u64::from(x).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
    let wide = (wide ^ wide >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let (high, low) = ((wide >> 32) as u32, wide as u32);
    let byte = high.wrapping_add(200) as u8;
    let middle = low.wrapping_mul(u32::from(byte)) as u16;
    let difference = (low & 0xffff) as i32 - (high & 0xffff) as i32;
    let mixed = high / (u32::from(middle) + 1) + low % (u32::from(byte) + 3);
    let mixed = mixed.wrapping_add((difference / 7) as u32).wrapping_add((difference >> 3) as u32);
    let shifted = high.checked_shr(low & 63).unwrap_or(0);
    let product = ((u64::from(high) * u64::from(low)) >> 32) as u32;
    mixed ^ shifted.wrapping_add(low.count_ones()).wrapping_add(product)
}

fn compute(mut trial: Trial<'_>) -> Outcome {
    let (input, seed) = (words(COUNT, 4), 0x0123_4567_89ab_cdef);
    let from = trial.memory(&input)?;
    let to = trial.memory(&vec![0; input.len()])?;
    let groups = COUNT.div_ceil(trial.group);
    let arguments = Compute { input: (&from).into(), output: (&to).into(), count: COUNT, seed };
    let begin = Instant::now();
    trial.launch(groups, &arguments)?;
    let time = begin.elapsed();
    let expected: Vec<_> = input.iter().map(|&x| mix(x, seed)).collect();
    same("element", &trial.words(&to)?, &expected)?;
    Ok(format!("{COUNT} elements in groups of {}: {:.3} ms", trial.group, time.as_secs_f64() * 1e3))
}

fn reduce(mut trial: Trial<'_>) -> Outcome {
    let input = words(COUNT, 5);
    let groups = COUNT.div_ceil(PART);
    let size = (4 + trial.group) as usize;
    let from = trial.memory(&input)?;
    let to = trial.memory(&vec![0; groups as usize * size])?;
    let group = trial.group.into();
    trial.launch(groups, &Reduce { input: (&from).into(), output: (&to).into(), count: COUNT, group })?;
    let mut got = trial.words(&to)?;
    let tickets: Vec<_> = (0..trial.group).collect();
    for (number, (got, part)) in got.chunks_mut(size).zip(input.chunks(PART as usize)).enumerate() {
        let sum = part.iter().fold(0_u32, |sum, &x| sum.wrapping_add(x));
        let bits = part.iter().fold(0, |bits, &x| bits | x & x >> 1 & x >> 2 & x >> 3);
        let least = part.iter().copied().min().unwrap_or(u32::MAX);
        let wanted = [("least", least), ("sum by atomics", sum), ("union", bits), ("sum by halves", sum)];
        for (&got, (what, expected)) in got.iter().zip(wanted) {
            if got != expected {
                return Err(Why(format!("the {what} of group {number} is {got}, not {expected}")));
            }
        }
        got[4..].sort_unstable();
        same(&format!("ticket of group {number},"), &got[4..], &tickets)?;
    }
    Ok(format!("{groups} groups of {}", trial.group))
}

fn compact(mut trial: Trial<'_>, lanes: u32) -> Outcome {
    let groups = COUNT.div_ceil(trial.group);
    let input = words(groups * trial.group, 6);
    let from = trial.memory(&input)?;
    let to = trial.memory(&vec![0; input.len()])?;
    let ballots = trial.memory(&vec![0; input.len() / lanes as usize])?;
    let arguments = Compact {
        input: (&from).into(),
        output: (&to).into(),
        ballots: (&ballots).into(),
        items: input.len() as u64,
        lanes: lanes.into(),
    };
    trial.launch(groups, &arguments)?;
    let (mut expected, mut votes) = (Vec::new(), Vec::new());
    for lanes in input.chunks(lanes as usize) {
        let mut seen = lanes.to_vec();
        seen.rotate_left(1);
        votes.push((0..).zip(&seen).fold(0_u32, |all, (lane, x)| all | u32::from(x % 3 != 0) << lane));
        let end = expected.len() + lanes.len();
        expected.extend(seen.iter().filter(|&x| x % 3 != 0));
        expected.resize(end, 0);
    }
    same("ballot", &trial.words(&ballots)?, &votes)?;
    same("element", &trial.words(&to)?, &expected)?;
    Ok(format!("{lanes} in step"))
}

fn add_and_swap(mut trial: Trial<'_>) -> Outcome {
    // The upper halves of the words change too, and with carries.
    let step = (1 << 34) - 3;
    let counters = trial.memory(&[0; COUNTERS as usize * 2])?;
    let ticket = trial.memory(&[0; 2])?;
    let takers = trial.memory(&vec![u32::MAX; ADDERS as usize])?;
    let [counters_there, ticket_there, takers_there] = [&counters, &ticket, &takers].map(Into::into);
    let arguments =
        Count { counters: counters_there, ticket: ticket_there, takers: takers_there, count: ADDERS, step };
    trial.launch(ADDERS.div_ceil(trial.group), &arguments)?;
    let pairs = |words: Vec<u32>| -> Vec<u64> {
        // As the device has them in memory.
        words.chunks_exact(2).map(|pair| bytemuck::cast([pair[0], pair[1]])).collect()
    };
    let mut expected = [0; COUNTERS as usize];
    for i in 0..ADDERS {
        expected[(i % COUNTERS) as usize] += step + u64::from(i);
    }
    same("counter", &pairs(trial.words(&counters)?), &expected)?;
    same("ticket", &pairs(trial.words(&ticket)?), &[step * u64::from(ADDERS)])?;
    let mut got = trial.words(&takers)?;
    got.sort_unstable();
    same("taker of a ticket", &got, &(0..ADDERS).collect::<Vec<_>>())?;
    Ok(format!("{ADDERS} items add and swap"))
}

fn in_place(mut trial: Trial<'_>) -> Outcome {
    let input = words(COUNT, 7);
    let mut shared = trial.device.share(input.len() * 4)?;
    shared.write(0, bytemuck::cast_slice(&input));
    let groups = COUNT.div_ceil(trial.group);
    let begin = Instant::now();
    trial.launch(groups, &InPlace { words: (&shared).into(), count: COUNT })?;
    let time = begin.elapsed();
    let mut got = vec![0_u32; input.len()];
    shared.read(0, bytemuck::cast_slice_mut(&mut got));
    let expected: Vec<_> = (0..).zip(&input).map(|(i, x)| x.wrapping_mul(3).wrapping_add(i)).collect();
    same("element", &got, &expected)?;
    Ok(format!("{COUNT} words changed where they are: {:.3} ms", time.as_secs_f64() * 1e3))
}
