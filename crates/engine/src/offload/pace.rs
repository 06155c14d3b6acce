//! How many packets a batch has, and who judges it.

use std::mem;
use std::time::Duration;

use super::lane::Dispatch;

/// Packets of a batch: the fewest worth a launch, and the first one.
const LEAST: usize = 64;
const FIRST: usize = 1 << 10;
/// The part that a new measurement has in a mean.
const WEIGHT: f64 = 0.125;
/// Batches of each kind to be measured before they are compared.
const TRIALS: u32 = 8;

/// The size of batches: as large as they become while others are on their way, as long as none takes longer than it may.
#[derive(Clone, Copy, Debug)]
pub struct BatchSizer {
    size: usize,
    most: usize,
    max_latency: Option<Duration>,
}

impl BatchSizer {
    /// Batches of so many packets at most, that may take so long from when they were read to their verdicts.
    pub fn new(most: usize, max_latency: Option<Duration>) -> Self {
        Self { size: FIRST.min(most), most, max_latency }
    }

    /// The same with other batches at most.
    pub fn with_room(self, most: usize) -> Self {
        Self { size: self.size.min(most), most, ..self }
    }

    /// Packets of the next batch at most.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Takes note of a batch of `packets` that took `latency`.
    pub fn observe(&mut self, packets: usize, latency: Duration) {
        let is_full = packets >= self.size;
        match self.max_latency {
            Some(most) if latency > most => self.size = (self.size.min(packets) / 2).max(LEAST),
            // Twice as many take at most twice as long.
            Some(most) if is_full && latency * 2 < most => self.size = (self.size * 2).min(self.most),
            None if is_full => self.size = (self.size * 2).min(self.most),
            _ => {}
        }
    }
}

/// Batches between two trials of what was worse: what is true now may not be later.
const ON_TRIAL: u32 = 1 << 10;
/// By how much more the shortest time that a batch was away is taken for, with each batch after it.
const FORGOTTEN: f64 = 1.0 / 256.0;

/// Whether a batch goes to the device, by what earlier ones cost here and there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Router {
    software: Cost,
    device: Cost,
    /// The shortest time that a batch was away lately, in nanoseconds.
    away: Option<f64>,
    /// Batches that were asked about.
    batches: u32,
}

/// Nanoseconds a packet of this machine's time, on average.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    nanos: f64,
    batches: u32,
}

impl Cost {
    fn observe(&mut self, packets: usize, time: Duration) {
        let nanos = time.as_nanos() as f64 / packets.max(1) as f64;
        let weight = if self.batches == 0 { 1.0 } else { WEIGHT };
        self.nanos += (nanos - self.nanos) * weight;
        self.batches = self.batches.saturating_add(1);
    }
}

impl Router {
    /// Whether the next batch, of so many packets, is meant for the device; now and then it is for finding out.
    pub fn choose(&mut self, packets: usize) -> bool {
        self.batches = self.batches.wrapping_add(1);
        self.is_for_device(packets) != self.batches.is_multiple_of(ON_TRIAL)
    }

    /// Whether a batch of so many packets is judged sooner, and with less of this machine's time, by the device. The first batches
    /// of some size are for finding out.
    pub fn is_for_device(&self, packets: usize) -> bool {
        if packets < LEAST {
            return false;
        }
        if self.device.batches < TRIALS || self.software.batches < TRIALS {
            return self.device.batches <= self.software.batches;
        }
        let by_software = self.software.nanos * packets as f64;
        self.device.nanos < self.software.nanos && self.away.is_some_and(|away| away < by_software)
    }

    /// Takes note of a batch that was judged here.
    pub fn judged_here(&mut self, packets: usize, time: Duration) {
        self.software.observe(packets, time);
    }

    /// Takes note of a batch that the device judged: time that this machine spent on it, and how long it was away.
    pub fn judged_there(&mut self, packets: usize, spent: Duration, away: Duration) {
        self.device.observe(packets, spent);
        let nanos = away.as_nanos() as f64;
        self.away = Some(self.away.map_or(nanos, |least| nanos.min(least * (1.0 + FORGOTTEN))));
    }
}

/// Batches that are measured together, after a few that are left out since they have packets that came before.
const SERIES: u32 = 1 << 5;
const LEFT_OUT: u32 = 1 << 2;
/// The part of a series after whose batches the source had nothing: then all packets are judged in either way.
const RESTED: u32 = 1 << 4;
/// Series after which the other way is tried again, and at most, where it was worse time after time.
const HELD: u32 = 1 << 5;
const HELD_LONGEST: u32 = 1 << 9;

/// Whether batches of a live source overlap: whether the next one is read and sent while the device judges the one before. What comes until that is back
/// would be a larger batch, which costs less for each packet. So both ways are tried, and batches overlap where more packets are judged so in a time.
/// Where all packets are judged in either way, as where the source had none for a while, they do not: a batch then waits for no other one.
#[derive(Clone, Copy, Debug)]
pub struct Overlap {
    overlaps: bool,
    /// Nanoseconds a packet of the last series, one after the other and overlapping.
    costs: [Option<f64>; 2],
    /// The series that is measured, and after how many of its batches the source had nothing.
    batches: u32,
    packets: usize,
    time: Duration,
    rests: u32,
    /// Series until the other way is tried, and after the next trial that shows nothing new.
    left: u32,
    held: u32,
}

impl Default for Overlap {
    fn default() -> Self {
        Self {
            overlaps: false,
            costs: [None; 2],
            batches: 0,
            packets: 0,
            time: Duration::ZERO,
            rests: 0,
            left: 1,
            held: HELD,
        }
    }
}

impl Overlap {
    /// Whether the batch after one of so many packets is read before that is back. Few packets are all that there are.
    pub fn is_worth(&self, packets: usize) -> bool {
        self.overlaps && packets >= LEAST
    }

    /// Begins with a series anew: there was something else to do.
    pub fn restart(&mut self) {
        (self.batches, self.packets, self.time, self.rests) = (0, 0, Duration::ZERO, 0);
    }

    /// Takes note of a batch that was sent, of the time since the one before, and of whether there were no packets for a while meanwhile.
    pub fn observe(&mut self, packets: usize, time: Duration, has_rested: bool) {
        self.batches += 1;
        if self.batches > LEFT_OUT {
            self.packets += packets;
            self.time += time;
        }
        self.rests += u32::from(has_rested);
        if self.batches < LEFT_OUT + SERIES {
            return;
        }
        let now = usize::from(self.overlaps);
        self.costs[now] = Some(self.time.as_nanos() as f64 / self.packets.max(1) as f64);
        let has_rested = self.rests * RESTED >= self.batches;
        self.restart();
        self.left = self.left.saturating_sub(1);
        if has_rested {
            (self.overlaps, self.costs, self.left) = (false, [None; 2], self.held);
            return;
        }
        if self.left > 0 {
            return;
        }
        let [alone, overlapping] = self.costs;
        let is_trial = self.costs[1 - now].is_some();
        let is_better = match (alone, overlapping) {
            (Some(alone), Some(overlapping)) => overlapping * (1.0 + 1.0 / NEAR) < alone,
            // It is to be found out.
            _ => !self.overlaps,
        };
        if !is_trial {
            (self.overlaps, self.left) = (is_better, 1);
            return;
        }
        // The next trial has nothing to compare with but this.
        self.held = if is_better { HELD } else { (self.held * 2).min(HELD_LONGEST) };
        (self.overlaps, self.left) = (is_better, self.held);
        self.costs[usize::from(!is_better)] = None;
    }
}

/// Nanoseconds a flow that a move there and back is taken for, at least: there may be more flows now than at the last one.
const MOVE: u64 = 300;
/// From one move to the next trial it takes so many times what a trial takes, with the moves there and back.
const PART: u32 = 25;
/// Where packets take longer than elsewhere by less than a part of so many, flows stay.
const NEAR: f64 = 16.0;
/// The time that measurements are taken over, and those of a trial: what is left out until batches have the size that they come to, what is
/// measured then, and what it may lose.
const WINDOW: Duration = Duration::from_millis(2);
const WARM: Duration = Duration::from_millis(5);
const MEASURED: Duration = Duration::from_millis(15);
const LOSS: Duration = Duration::from_millis(20);

/// Whether state of flows is on the device or with the cores, by what earlier batches cost here and there; and by what it costs to
/// move it, so that moves and trials take a part of one in 25 of the time at most.
///
/// What is compared is time of this machine by the clock, less what it waited for packets: where several threads share the work, here
/// or there, that is what bounds how many packets can come; their times added up would count those that wait for others or for the device as free.
#[derive(Clone, Debug, Default)]
pub struct StateRouter {
    is_there: bool,
    /// By the cores, and by the device.
    costs: [Cost; 2],
    /// What the last move took, to the cores and to the device.
    took: [Duration; 2],
    /// Time since then; and what packets took longer of it, lately, than they would have taken elsewhere.
    spent: Duration,
    dearer: Duration,
    window: Window,
    /// Whether packets came in large batches and would leave the cores little time, as far as is known; how long they have not.
    is_worth: bool,
    idle: Duration,
    trial: Option<Trial>,
    /// Whether the next move is back after a trial, or is made for another reason than what packets cost.
    returns: bool,
    is_forced: bool,
}

/// Batches that were judged one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    packets: u64,
    batches: u64,
    /// Time by the clock, and what of it was spent on packets.
    time: Duration,
    busy: Duration,
}

/// The first batches after a move.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    is_warm: bool,
    batches: u64,
    busy: Duration,
    lost: Duration,
}

impl StateRouter {
    /// Takes note of packets in so many batches that took so long, less the time that was spent waiting for packets.
    pub fn judged(&mut self, packets: u64, batches: u64, time: Duration, waited: Duration) {
        let Window { packets: all, batches: of_window, time: whole, busy } = &mut self.window;
        (*all, *of_window, *whole) = (*all + packets, *of_window + batches, *whole + time);
        *busy += time.saturating_sub(waited);
        if *whole < WINDOW || *of_window == 0 {
            return;
        }
        let Window { packets, batches, time, busy } = mem::take(&mut self.window);
        self.spent += time;
        // What the device saves is no reason to leave it.
        let of_cores = self.costs[0];
        let need = match self.is_there && of_cores.batches > 0 {
            true => busy.max(Duration::from_nanos((of_cores.nanos * packets as f64) as u64)),
            false => busy,
        };
        self.is_worth = packets >= batches * LEAST as u64 && need * 2 >= time;
        self.idle = if self.is_worth { Duration::ZERO } else { self.idle + time };
        let here = usize::from(self.is_there);
        let elsewhere = self.costs[1 - here];
        let mut dearer = Duration::ZERO;
        if elsewhere.batches > 0 {
            dearer = busy.saturating_sub(Duration::from_nanos((elsewhere.nanos * packets as f64) as u64));
        }
        match &mut self.trial {
            Some(trial) => {
                (trial.batches, trial.busy) = (trial.batches + batches, trial.busy + busy);
                trial.lost += dearer;
                if !trial.is_warm && trial.batches >= TRIALS.into() && trial.busy >= WARM {
                    *trial = Trial { is_warm: true, lost: trial.lost, ..Trial::default() };
                    self.costs[here] = Cost::default();
                    return;
                }
            }
            None if dearer.as_secs_f64() * NEAR > busy.as_secs_f64() => self.dearer += dearer,
            None => self.dearer /= 2,
        }
        if packets > 0 {
            self.costs[here].observe(packets as usize, busy);
        }
    }

    /// Whether state is to move now, that of so many flows at most.
    pub fn is_to_move(&mut self, flows: u64) -> bool {
        let moves = self.took.iter().sum::<Duration>().max(Duration::from_nanos(MOVE * flows));
        if let Some(trial) = self.trial {
            let is_measured = trial.is_warm && trial.batches >= TRIALS.into() && trial.busy >= MEASURED;
            if !is_measured && trial.lost < LOSS {
                return false;
            }
            self.trial = None;
            let [here, elsewhere] = if self.is_there { [1, 0] } else { [0, 1] }.map(|at| self.costs[at]);
            let is_better = elsewhere.batches == 0 || here.nanos * (1.0 + 1.0 / NEAR) < elsewhere.nanos;
            self.returns = !is_better && (self.is_there || self.is_worth);
            return self.returns;
        }
        let is_idle = self.is_there && (moves + LOSS) * PART <= self.idle;
        is_idle || self.is_worth && (self.dearer > moves || (moves + LOSS) * PART <= self.spent)
    }

    /// Whether state is on the device.
    pub fn is_there(&self) -> bool {
        self.is_there
    }

    /// State has moved, which took so long.
    pub fn moved(&mut self, is_there: bool, took: Duration) {
        self.took[usize::from(is_there)] = took;
        self.is_there = is_there;
        (self.spent, self.dearer) = (Duration::ZERO, Duration::ZERO);
        (self.window, self.idle) = (Window::default(), Duration::ZERO);
        let is_known = mem::take(&mut self.returns) | mem::take(&mut self.is_forced);
        self.trial = (!is_known).then(Trial::default);
    }

    /// State is about to move for another reason, or could not: that is no trial, and nothing to return from.
    pub fn forced(&mut self) {
        (self.is_forced, self.returns, self.trial) = (true, false, None);
        (self.spent, self.dearer) = (Duration::ZERO, Duration::ZERO);
    }

    /// Forgets what packets cost: another chain judges them.
    pub fn forget(&mut self) {
        (self.costs, self.dearer, self.trial) = (Default::default(), Duration::ZERO, None);
    }
}

/// How batches of a size are dispatched, by how long earlier ones of about that size were away.
#[derive(Clone, Copy, Debug, Default)]
pub struct DispatchChoice {
    /// By the number of bits of a batch's size: of launches, and of a kernel that stays.
    away: [[Cost; 2]; CLASSES],
    batches: [u32; CLASSES],
}

/// Sizes of batches that are told apart.
const CLASSES: usize = 32;

impl DispatchChoice {
    /// How to dispatch a batch of so many packets.
    pub fn choose(&mut self, packets: usize) -> Dispatch {
        let class = Self::class(packets);
        let [launch, resident] = &self.away[class];
        self.batches[class] = self.batches[class].wrapping_add(1);
        if launch.batches < TRIALS || resident.batches < TRIALS {
            return if resident.batches < launch.batches { Dispatch::Resident } else { Dispatch::Launch };
        }
        let is_trial = self.batches[class].is_multiple_of(ON_TRIAL);
        if (resident.nanos < launch.nanos) != is_trial { Dispatch::Resident } else { Dispatch::Launch }
    }

    /// Takes note of a batch that was away for so long.
    pub fn observe(&mut self, packets: usize, dispatch: Dispatch, away: Duration) {
        self.away[Self::class(packets)][usize::from(dispatch == Dispatch::Resident)].observe(packets, away);
    }

    fn class(packets: usize) -> usize {
        ((usize::BITS - packets.leading_zeros()) as usize).min(CLASSES - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 14;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn batches_grow_while_they_are_full_and_in_time() {
        let mut pace = BatchSizer::new(MOST, Some(micros(50)));
        pace.observe(FIRST, micros(10));
        assert_eq!(pace.size(), 2 * FIRST);
        // Half full: there is no more to be had.
        pace.observe(FIRST, micros(10));
        assert_eq!(pace.size(), 2 * FIRST);
        // Twice as many would be too late.
        pace.observe(2 * FIRST, micros(30));
        assert_eq!(pace.size(), 2 * FIRST);
        for _ in 0..20 {
            pace.observe(pace.size(), micros(1));
        }
        assert_eq!(pace.size(), MOST);
    }

    #[test]
    fn batches_shrink_when_they_are_late_but_not_below_what_is_worth_it() {
        let mut pace = BatchSizer::new(MOST, Some(micros(50)));
        pace.observe(FIRST, micros(51));
        assert_eq!(pace.size(), FIRST / 2);
        // A small batch that is late tells that smaller ones are needed.
        pace.observe(200, micros(51));
        assert_eq!(pace.size(), 100);
        for _ in 0..20 {
            pace.observe(pace.size(), micros(51));
        }
        assert_eq!(pace.size(), LEAST);
    }

    #[test]
    fn without_a_limit_batches_grow_to_the_most() {
        let mut pace = BatchSizer::new(MOST, None);
        for _ in 0..20 {
            pace.observe(pace.size(), Duration::from_secs(9));
        }
        assert_eq!(pace.size(), MOST);
    }

    /// A load that takes 2 us and 10 ns a packet settles below the limit, close to half of it or above.
    #[test]
    fn a_steady_load_settles() {
        let mut pace = BatchSizer::new(MOST, Some(micros(50)));
        let mut latency = micros(0);
        for _ in 0..100 {
            latency = Duration::from_nanos(2_000 + 10 * pace.size() as u64);
            pace.observe(pace.size(), latency);
        }
        assert!(latency <= micros(50) && latency >= micros(20), "{latency:?}");
    }

    #[test]
    fn quiet_traffic_stays_and_much_moves() {
        let mut choice = Router::default();
        for _ in 0..TRIALS {
            // Both kinds are tried, in turns.
            assert!(choice.is_for_device(1_000));
            choice.judged_there(1_000, micros(10), micros(20));
            assert!(!choice.is_for_device(1_000));
            choice.judged_here(1_000, micros(50));
        }
        // 20 us away are 400 packets judged here.
        assert!(!choice.is_for_device(300) && choice.is_for_device(500) && choice.is_for_device(10_000));
        assert!(!choice.is_for_device(LEAST - 1));
    }

    /// Small batches go to the kernel that stays and large ones by launches, if that is what takes less time; both are tried.
    #[test]
    fn each_size_goes_the_way_that_is_faster() {
        let mut dispatches = DispatchChoice::default();
        let away = |packets: usize, dispatch| match dispatch {
            Dispatch::Launch => Duration::from_nanos(20_000 + packets as u64),
            Dispatch::Resident => Duration::from_nanos(10_000 + 100 * packets as u64),
        };
        let mut chosen = [[0; 2]; 2];
        for _ in 0..3_000 {
            for (number, packets) in [64, 1_000].into_iter().enumerate() {
                let dispatch = dispatches.choose(packets);
                chosen[number][usize::from(dispatch == Dispatch::Resident)] += 1;
                dispatches.observe(packets, dispatch, away(packets, dispatch));
            }
        }
        let [[small_launches, small_resident], [large_launches, large_resident]] = chosen;
        assert!(small_resident > 2_900 && large_launches > 2_900, "{chosen:?}");
        assert!(small_launches >= TRIALS && large_resident >= TRIALS, "{chosen:?}");
        // The choice changes when the other one becomes faster.
        let mut later = 0;
        for _ in 0..200_000 {
            let dispatch = dispatches.choose(64);
            later += u32::from(dispatch == Dispatch::Launch);
            dispatches.observe(
                64,
                dispatch,
                if dispatch == Dispatch::Launch { micros(1) } else { micros(10) },
            );
        }
        assert!(later > 100_000, "{later}");
    }

    #[test]
    fn a_device_that_costs_more_than_it_saves_is_left_until_it_does_not() {
        let mut choice = Router::default();
        let mut batch = |cost_there| {
            let is_for_device = choice.choose(1_000);
            match is_for_device {
                true => choice.judged_there(1_000, cost_there, micros(20)),
                false => choice.judged_here(1_000, micros(50)),
            }
            is_for_device
        };
        let dear = (0..100_000).filter(|_| batch(micros(60))).count();
        assert!((TRIALS as usize..200).contains(&dear), "{dear}");
        let cheap = (0..100_000).filter(|_| batch(micros(10))).count();
        assert!(cheap > 90_000, "{cheap}");
        let dear = (0..100_000).filter(|_| batch(micros(60))).count();
        assert!(dear < 200, "{dear}");
    }

    /// Of a hundred thousand batches those that overlapped, where a packet costs so many nanoseconds, alone and overlapping.
    fn overlapping(costs: impl Fn(u32) -> [u64; 2], has_rested: bool) -> u32 {
        let mut overlap = Overlap::default();
        let mut count = 0;
        for batch in 0..100_000 {
            let overlaps = overlap.is_worth(1_000);
            count += u32::from(overlaps);
            let time = Duration::from_nanos(costs(batch)[usize::from(overlaps)] * 1_000);
            overlap.observe(1_000, time, has_rested);
        }
        assert!(!overlap.is_worth(LEAST - 1));
        count
    }

    #[test]
    fn batches_overlap_where_more_are_judged_so() {
        let always = |costs| overlapping(move |_| costs, false);
        let better = always([200, 100]);
        assert!(better > 90_000, "{better}");
        // The device does as much in either way, or less with smaller batches: now and then that is tried.
        for costs in [[100, 100], [100, 98], [100, 200], [100, 10_000]] {
            let tried = always(costs);
            assert!((1..1_000).contains(&tried), "{costs:?}: {tried}");
        }
        // What changes is seen.
        let changes = |batch| if batch < 50_000 { [100, 100] } else { [100, 50] };
        let better = overlapping(changes, false);
        assert!((20_000..51_000).contains(&better), "{better}");
        let changes = |batch| if batch < 50_000 { [100, 50] } else { [100, 100] };
        let worse = overlapping(changes, false);
        assert!((45_000..55_000).contains(&worse), "{worse}");
        // There are no more packets.
        assert_eq!(overlapping(|_| [100, 50], true), 0);
    }

    /// What a run of so many packets took, and how often state moved, by what a packet costs, by the device or not, after so many; in batches of
    /// sizes that grow after a move. Next to it what it had taken with cores or the device alone, and in milliseconds what a move takes.
    fn simulate(packets: u64, cost: impl Fn(bool, u64) -> f64, each: u64) -> (f64, u64, [f64; 2]) {
        let (mut router, mut is_there, mut moves, mut total) = (StateRouter::default(), false, 0, 0.0);
        let (mut alone, mut done, mut size) = ([0.0; 2], 0, FIRST as u64);
        while done < packets {
            let nanos = cost(is_there, done) * size as f64;
            total += nanos;
            [false, true]
                .into_iter()
                .zip(&mut alone)
                .for_each(|(at, sum)| *sum += cost(at, done) * size as f64);
            router.judged(size, 1, Duration::from_nanos(nanos as u64), Duration::ZERO);
            done += size;
            size = (size * 2).min(MOST as u64);
            if router.is_to_move(1_000_000) {
                (is_there, moves, size) = (!is_there, moves + 1, FIRST as u64);
                router.moved(is_there, Duration::from_millis(each));
                total += each as f64 * 1e6;
            }
        }
        (total, moves, alone)
    }

    const GIGA: u64 = 1_000_000_000;

    /// As good as the better one, but for a part of its time; however dear moves are. Before the first trial that is the cores.
    #[test]
    fn state_is_where_packets_take_less() {
        for each in [1, 100, 2_000] {
            for there in [1.0, 5.0, 9.9, 10.1, 12.0, 100.0, 10_000.0] {
                // Cores take 300 seconds.
                let (total, moves, [here, device]) =
                    simulate(30 * GIGA, |is_there, _| if is_there { there } else { 10.0 }, each);
                // Until moves have earned their cost.
                let least = here.min(device) + if device < here { here * 0.16 } else { 0.0 };
                assert!(total < 1.05 * least, "{there} {each}: {total} {here} {device}, {moves} moves");
                assert!(moves > 0 && moves < 100, "{there} {each}: {moves}");
                assert!(each == 2_000 || there > 9.0 || total < 0.95 * here, "{there} {each}: {total}");
            }
        }
    }

    /// A minute of packets from interfaces, in milliseconds: how many come in each, what one costs the cores and the device in nanoseconds, and what a
    /// move takes, after which those are judged that came meanwhile. How often state moved.
    fn simulate_live(come: impl Fn(u64) -> u64, costs: [f64; 2], move_takes: u64) -> u64 {
        let (mut router, mut moves, mut waiting, mut at) = (StateRouter::default(), 0, 0, 0);
        while at < 60_000 {
            waiting += come(at);
            let cost = costs[usize::from(router.is_there())];
            let judged = waiting.min((1e6 / cost) as u64);
            waiting -= judged;
            let busy = Duration::from_nanos((judged as f64 * cost) as u64);
            let whole = Duration::from_millis(1);
            router.judged(judged, judged.div_ceil(1_000), whole, whole.saturating_sub(busy));
            at += 1;
            if router.is_to_move(100_000) {
                router.moved(!router.is_there(), Duration::from_millis(move_takes));
                moves += 1;
                waiting += (at..at + move_takes).map(&come).sum::<u64>();
                at += move_takes;
            }
        }
        moves
    }

    /// Whatever the load is, moves take a part of the time only.
    #[test]
    fn state_does_not_move_to_and_fro_where_packets_come_as_they_like() {
        for percent in [5, 20, 40, 49, 51, 55, 70, 80, 90, 99] {
            let steady = move |_: u64| percent * 1_000;
            // Bursts with pauses, of a few milliseconds and of seconds.
            let pauses = move |at: u64| if at % 20 < 4 { 0 } else { percent * 1_000 };
            let seconds = move |at: u64| if at % 3_000 < 1_500 { 0 } else { percent * 1_000 };
            for there in [1.0, 3.0, 6.0, 9.0, 12.0, 30.0] {
                for takes in [1, 5, 100, 300] {
                    let costs = [10.0, there];
                    let all = [
                        simulate_live(steady, costs, takes),
                        simulate_live(pauses, costs, takes),
                        simulate_live(seconds, costs, takes),
                    ];
                    // A sixteenth of the minute at most, and seldom.
                    let most = (60_000 / 16 / takes).min(130);
                    assert!(all.iter().all(|&moves| moves <= most), "{percent} % {there} {takes}: {all:?}");
                }
            }
        }
    }

    #[test]
    fn short_runs_stay_on_cores() {
        for there in [1.0, 100.0] {
            let (total, moves, [here, _]) =
                simulate(GIGA / 20, |is_there, _| if is_there { there } else { 10.0 }, 100);
            assert_eq!((total, moves), (here, 0));
        }
    }

    /// What becomes worse is left, on either side, and what becomes better is found.
    #[test]
    fn state_follows_what_changes() {
        for each in [1, 100] {
            // The device is better, and then worse: there are more flows.
            let worse = |is_there: bool, at: u64| match is_there {
                false => 10.0,
                true if at < 20 * GIGA => 6.0,
                true => 14.0,
            };
            let (total, moves, [here, device]) = simulate(40 * GIGA, worse, each);
            assert!(total < 0.97 * here && total < 0.97 * device, "{each}: {total} {here} {device} {moves}");
            // The other way round.
            let better = |is_there: bool, at: u64| match is_there {
                false => 10.0,
                true if at < 20 * GIGA => 14.0,
                true => 6.0,
            };
            let (total, moves, [here, device]) = simulate(40 * GIGA, better, each);
            assert!(total < here && total < 1.02 * device, "{each}: {total} {here} {device} {moves}");
            // Again and again, on both sides, faster than it can be found out.
            let waves = |is_there: bool, at: u64| {
                let is_odd = (at / (GIGA / 3)) % 2 == 1;
                if is_odd == is_there { 14.0 } else { 6.0 }
            };
            let (total, moves, [here, device]) = simulate(40 * GIGA, waves, each);
            assert!(total < 1.05 * here.min(device), "{each}: {total} {here} {device} {moves}");
        }
    }

    #[test]
    fn quiet_traffic_stays_with_cores() {
        let mut router = StateRouter::default();
        let judged = |router: &mut StateRouter, packets, waited| {
            (0..100_000).any(|_| {
                router.judged(packets, 1, micros(100), micros(waited));
                router.is_to_move(1_000)
            })
        };
        // Small batches; most of the time nothing to do.
        assert!(!judged(&mut router, 63, 0) && !judged(&mut router, 1_000, 60));
        assert!(judged(&mut router, 1_000, 40));
        router.moved(true, micros(10));
        assert!(!router.is_to_move(1_000));
        // The trial is over, and it comes back.
        assert!(judged(&mut router, 63, 90));
        router.moved(false, micros(10));
        assert!(!judged(&mut router, 63, 90));
    }
}
