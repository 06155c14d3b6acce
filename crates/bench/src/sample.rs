//! Rounds of wall and CPU time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

/// Whose user and system time is CPU time.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// All threads of this process.
    Process,
    /// The thread that measures.
    Thread,
}

impl Clock {
    /// The time so far.
    pub(crate) fn now(self) -> Duration {
        let time = clock_gettime(match self {
            Self::Process => ClockId::ProcessCPUTime,
            Self::Thread => ClockId::ThreadCPUTime,
        });
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// What one round took.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    wall: Duration,
    cpu: Duration,
}

impl Round {
    /// Time that passed.
    pub fn wall(&self) -> Duration {
        self.wall
    }

    /// Time that processors worked.
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    /// What as many times the work would have taken.
    pub(crate) fn scaled(self, times: f64) -> Self {
        Self { wall: self.wall.mul_f64(times), cpu: self.cpu.mul_f64(times) }
    }
}

/// Runs `work` once and measures it.
pub fn measure<T>(clock: Clock, work: impl FnOnce() -> T) -> (T, Round) {
    let (wall, cpu) = (Instant::now(), clock.now());
    let result = work();
    let round = Round { wall: wall.elapsed(), cpu: clock.now().saturating_sub(cpu) };
    (result, round)
}

/// All rounds of one engine over one workload.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was run over what.
    pub workload: String,
    /// The classifier, where there is one.
    pub classifier: Option<String>,
    /// Packets of a batch.
    pub batch: usize,
    /// What it ran on.
    pub device: &'static str,
    /// Packets of the workload.
    pub packets: u64,
    /// Times that each round went over all packets.
    pub passes: usize,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Figures of the workload itself.
    pub more: Vec<(&'static str, Value)>,
}

/// The value below which the `share` of the sorted values lies, between two of them by proportion.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len().saturating_sub(1)) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(low), sorted.get(high)) {
        (Some(&a), Some(&b)) => a + (b - a) * place.fract(),
        _ => f64::NAN,
    }
}

/// Values in order.
pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// A figure as it is shown, to the thousandth.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Measurement {
    /// Nanoseconds a packet of each round by one of its times.
    pub(crate) fn per_packet(&self, time: impl Fn(&Round) -> Duration) -> Vec<f64> {
        let packets = self.packets as f64 * self.passes as f64;
        self.rounds.iter().map(|round| time(round).as_nanos() as f64 / packets).collect()
    }

    /// One JSON object. `ns_per_packet`, its quartiles `p25` and `p75`, and `mpps` are of wall time; those with `cpu` in
    /// their names are of user and system time. All are medians over the rounds.
    pub fn json(&self) -> Value {
        let wall = sorted(self.per_packet(Round::wall));
        let cpu = sorted(self.per_packet(Round::cpu));
        let mut object = Map::new();
        let mut set = |name: &str, value: Value| object.insert(name.into(), value);
        set("workload", json!(self.workload));
        set("mpps", json!(rounded(1000.0 / quantile(&wall, 0.5))));
        set("mpps_cpu", json!(rounded(1000.0 / quantile(&cpu, 0.5))));
        set("ns_per_packet", json!(rounded(quantile(&wall, 0.5))));
        set("p25", json!(rounded(quantile(&wall, 0.25))));
        set("p75", json!(rounded(quantile(&wall, 0.75))));
        set("cpu_ns_per_packet", json!(rounded(quantile(&cpu, 0.5))));
        set("cpu_p25", json!(rounded(quantile(&cpu, 0.25))));
        set("cpu_p75", json!(rounded(quantile(&cpu, 0.75))));
        set("classifier", json!(self.classifier));
        set("batch", json!(self.batch));
        set("device", json!(self.device));
        set("packets", json!(self.packets));
        set("rounds", json!(self.rounds.len()));
        for (name, value) in &self.more {
            set(name, value.clone());
        }
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let sorted = [1.0, 2.0, 4.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| quantile(&sorted, share)),
            [1.0, 1.5, 2.0, 3.0, 4.0]
        );
        assert_eq!(quantile(&[7.0], 0.25), 7.0);
    }

    #[test]
    fn rates_are_of_the_median_round() {
        let round = |wall, cpu| Round { wall: Duration::from_micros(wall), cpu: Duration::from_micros(cpu) };
        let measurement = Measurement {
            workload: "test".into(),
            classifier: None,
            batch: 1,
            device: "cpu",
            packets: 500,
            passes: 2,
            rounds: vec![round(100, 50), round(400, 80), round(200, 40)],
            more: vec![],
        };
        let json = measurement.json();
        assert_eq!((json["ns_per_packet"].as_f64(), json["mpps"].as_f64()), (Some(200.0), Some(5.0)));
        assert_eq!(json["mpps_cpu"].as_f64(), Some(20.0));
    }
}
