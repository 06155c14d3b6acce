//! Rounds of wall and CPU time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

/// User and system time of all threads of this process so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
}

/// Runs `work` once and measures it.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Round) {
    let (wall, cpu) = (Instant::now(), cpu_time());
    let result = work();
    let round = Round { wall: wall.elapsed(), cpu: cpu_time().saturating_sub(cpu) };
    (result, round)
}

/// All rounds of one engine over one workload.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was run over what.
    pub workload: String,
    /// The classifier, where there is one.
    pub classifier: Option<&'static str>,
    /// Packets of a batch.
    pub batch: usize,
    /// What it ran on.
    pub device: &'static str,
    /// Packets of each round.
    pub packets: u64,
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

impl Measurement {
    /// Nanoseconds a packet of each round by one of its times, sorted.
    fn per_packet(&self, time: impl Fn(&Round) -> Duration) -> Vec<f64> {
        let mut nanos: Vec<f64> =
            self.rounds.iter().map(|round| time(round).as_nanos() as f64 / self.packets as f64).collect();
        nanos.sort_by(f64::total_cmp);
        nanos
    }

    /// One JSON object. `ns_per_packet`, its quartiles `p25` and `p75`, and `mpps` are of wall time; `mpps_cpu` is packets
    /// over user and system time. All are medians over the rounds.
    pub fn json(&self) -> Value {
        let wall = self.per_packet(|round| round.wall);
        let cpu = self.per_packet(|round| round.cpu);
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let mut object = Map::new();
        let mut set = |name: &str, value: Value| object.insert(name.into(), value);
        set("workload", json!(self.workload));
        set("mpps", json!(rounded(1000.0 / quantile(&wall, 0.5))));
        set("mpps_cpu", json!(rounded(1000.0 / quantile(&cpu, 0.5))));
        set("ns_per_packet", json!(rounded(quantile(&wall, 0.5))));
        set("p25", json!(rounded(quantile(&wall, 0.25))));
        set("p75", json!(rounded(quantile(&wall, 0.75))));
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
            packets: 1000,
            rounds: vec![round(100, 50), round(400, 80), round(200, 40)],
            more: vec![],
        };
        let json = measurement.json();
        assert_eq!((json["ns_per_packet"].as_f64(), json["mpps"].as_f64()), (Some(200.0), Some(5.0)));
        assert_eq!(json["mpps_cpu"].as_f64(), Some(20.0));
    }
}
