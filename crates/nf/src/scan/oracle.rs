//! The slow form: sets of bits, and logarithms in floating point that are rounded to the units of the fast one.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use packetloom_packet::key::halves;
use packetloom_packet::{FlowKey, Timestamp, Verdict};

use super::{Action, Detection, Distinct, Hypotheses, Judged, Method, Scan, ScanReport};
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::{OracleIp, OraclePacket};
use crate::{Records, Report};

pub(super) struct ScanOracle {
    method: Method,
    block_for: u64,
    action: Action,
    seed: u64,
    /// Lives of flows that were seen, and whether the packet that comes next begins one.
    seen: HashSet<u64>,
    begins: bool,
    sources: HashMap<u64, Source>,
    report: ScanReport,
}

/// What is known of a life of a source.
enum Source {
    /// Since when.
    Scanner(u64),
    /// The window's begin, attempts and bits.
    Window(u64, u32, HashSet<u64>),
    /// The walk, attempts, destinations that did not answer yet, and those that did.
    Walk(i64, u32, HashSet<u64>, HashSet<u64>),
}

/// The hash that both forms agree on.
fn hash(address: Option<IpAddr>, protocol: u8, port: u16, seed: u64) -> u64 {
    let (a, version) = match address {
        None => ([0; 2], 0),
        Some(IpAddr::V4(address)) => (halves(u32::from(address).into()), 4),
        Some(IpAddr::V6(address)) => (halves(address.into()), 6),
    };
    FlowKey { a, b: [0; 2], a_port: port, b_port: 0, protocol, version, vlan: None }.hash(seed)
}

/// SYN and ACK.
fn flags(ip: &OracleIp) -> (bool, bool) {
    let flags = ip.tcp_flags.unwrap_or(0);
    (flags / 2 % 2 == 1, flags / 16 % 2 == 1)
}

impl ScanOracle {
    pub(super) fn new(scan: &Scan) -> Self {
        let &Scan { method, block_for, action, seed, .. } = scan;
        Self {
            method,
            block_for: block_for.limit().unwrap_or(u64::MAX),
            action,
            seed,
            seen: HashSet::new(),
            begins: false,
            sources: HashMap::new(),
            report: ScanReport::new(matches!(method, Method::Trw(_))),
        }
    }

    fn judge(&mut self, ip: &OracleIp, now: u64, life: u64) -> Judged {
        if let Some(&Source::Scanner(since)) = self.sources.get(&life) {
            if now.saturating_sub(since) < self.block_for {
                return Judged::Scanner;
            }
            self.sources.remove(&life);
        }
        let judged = match self.method {
            Method::FanOut { threshold, window, distinct, udp } => {
                let opens = match ip.protocol {
                    6 => flags(ip) == (true, false),
                    17 => udp && self.begins && ip.ports.is_some(),
                    _ => false,
                };
                if !opens {
                    return Judged::Nothing;
                }
                let port = ip.ports.map_or(0, |(_, port)| port);
                let hash = match distinct {
                    Distinct::Both => hash(Some(ip.destination), ip.protocol, port, self.seed),
                    Distinct::Destinations => hash(Some(ip.destination), 0, 0, self.seed),
                    Distinct::Ports => hash(None, ip.protocol, port, self.seed),
                };
                let window = window.limit().unwrap_or(u64::MAX);
                self.fan_out(life, now, hash, (threshold, window))
            }
            Method::Trw(hypotheses) => match flags(ip) {
                (true, false) => {
                    let bit = hash(Some(ip.destination), 0, 0, self.seed) / (1 << 58);
                    self.fail(life, bit, hypotheses)
                }
                (true, true) => {
                    let bit = hash(Some(ip.source), 0, 0, self.seed) / (1 << 58);
                    self.succeed(life, bit, hypotheses)
                }
                _ => Judged::Nothing,
            },
        };
        if let Judged::Detected { attempts } = judged {
            self.sources.insert(life, Source::Scanner(now));
            let time = Timestamp::from_nanos(now);
            self.report.detect(Detection { time, source: ip.source, attempts });
        }
        judged
    }

    fn fan_out(&mut self, life: u64, now: u64, hash: u64, (threshold, length): (u32, u64)) -> Judged {
        let (begin, attempts, mut bits) = match self.sources.remove(&life) {
            Some(Source::Window(begin, attempts, bits)) if now.saturating_sub(begin) < length => {
                (begin, attempts, bits)
            }
            _ => (now, 0, HashSet::new()),
        };
        let attempts = attempts.saturating_add(1);
        // At most 192 of the contacts are to count.
        let counted = threshold.min(192);
        let share = (u64::from(counted) * (1 << 32)) / u64::from(threshold);
        if hash % (1 << 32) < share {
            bits.insert(hash / (1 << 57));
        }
        let expected = 128.0 * (1.0 - (127.0f64 / 128.0).powi(counted as i32));
        let is_scanner = bits.len() as f64 >= expected.round();
        self.sources.insert(life, Source::Window(begin, attempts, bits));
        if is_scanner { Judged::Detected { attempts } } else { Judged::Attempt }
    }

    /// A first contact, or a repeated one.
    fn fail(&mut self, life: u64, bit: u64, hypotheses: Hypotheses) -> Judged {
        let (walk, attempts, mut silent, mut answered) = match self.sources.remove(&life) {
            Some(Source::Walk(walk, attempts, silent, answered)) => (walk, attempts, silent, answered),
            _ => (0, 0, HashSet::new(), HashSet::new()),
        };
        if silent.contains(&bit) || answered.contains(&bit) {
            self.sources.insert(life, Source::Walk(walk, attempts, silent, answered));
            return Judged::Nothing;
        }
        if silent.len() + answered.len() >= 32 {
            answered.clear();
            if silent.len() >= 32 {
                silent.clear();
            }
        }
        silent.insert(bit);
        let (walk, attempts) = (walk + steps(hypotheses).0, attempts.saturating_add(1));
        self.sources.insert(life, Source::Walk(walk, attempts, silent, answered));
        if walk >= bounds(hypotheses).1 { Judged::Detected { attempts } } else { Judged::Attempt }
    }

    fn succeed(&mut self, life: u64, bit: u64, hypotheses: Hypotheses) -> Judged {
        let Some(Source::Walk(walk, _, silent, answered)) = self.sources.get_mut(&life) else {
            return Judged::Nothing;
        };
        if !silent.remove(&bit) {
            return Judged::Nothing;
        }
        answered.insert(bit);
        let (failure, success) = steps(hypotheses);
        *walk = (*walk - failure + success).max(bounds(hypotheses).0);
        Judged::Answer
    }
}

const UNIT: f64 = 1_048_576.0;

/// What a failure and a success add to a walk, away from 0.
fn steps(Hypotheses { theta0, theta1, .. }: Hypotheses) -> (i64, i64) {
    let [theta0, theta1] = [theta0, theta1].map(|theta| f64::from(theta.millionths()));
    let failure = ((1e6 - theta1) / (1e6 - theta0)).log2() * UNIT;
    let success = (theta1 / theta0).log2() * UNIT;
    (failure.ceil() as i64, success.floor() as i64)
}

/// Where a source is honest, and where a scanner, towards 0.
fn bounds(Hypotheses { alpha, beta, .. }: Hypotheses) -> (i64, i64) {
    let [alpha, beta] = [alpha, beta].map(|error| f64::from(error.millionths()));
    let honest = ((1e6 - beta) / (1e6 - alpha)).log2() * UNIT;
    let scanner = (beta / alpha).log2() * UNIT;
    (honest.ceil() as i64, scanner.floor() as i64)
}

/// The numbers below 64 of which these bits are.
fn set_of(bits: u64, offset: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| offset + bit)
}

/// The bits of those of these numbers that are from `offset` on, 64 at most.
fn bits_of<'a>(numbers: impl IntoIterator<Item = &'a u64>, offset: u64) -> u64 {
    let bits = numbers.into_iter().filter_map(|number| number.checked_sub(offset).filter(|bit| *bit < 64));
    bits.map(|bit| 1 << bit).sum()
}

impl FlowOracle for ScanOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        const IS_SCANNER: u64 = 1 << 32;
        let is_walk = matches!(self.method, Method::Trw(_));
        Some(match self.sources.get(&life)? {
            Source::Scanner(since) if is_walk => vec![*since, 0, 0, IS_SCANNER, 0],
            Source::Scanner(since) => vec![*since, 0, 0, IS_SCANNER],
            Source::Window(begin, attempts, bits) => {
                vec![*begin, bits_of(bits, 0), bits_of(bits, 64), u64::from(*attempts)]
            }
            Source::Walk(walk, attempts, silent, answered) => {
                let ratio = *walk as i32 as u32;
                let contacted = bits_of(silent.union(answered), 0);
                vec![0, contacted, bits_of(answered, 0), ratio.into(), u64::from(*attempts)]
            }
        })
    }

    fn forget(&mut self, life: u64) {
        self.sources.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        let half = |word: u64| (word % (1 << 32)) as u32;
        let is_scanner = words[3] >> 32 != 0;
        let source = match self.method {
            _ if is_scanner => Source::Scanner(words[0]),
            Method::FanOut { .. } if half(words[3]) == 0 => return,
            Method::FanOut { .. } => {
                let bits = set_of(words[1], 0).chain(set_of(words[2], 64)).collect();
                Source::Window(words[0], half(words[3]), bits)
            }
            Method::Trw(_) => {
                let answered: HashSet<_> = set_of(words[2], 0).collect();
                let silent = set_of(words[1] & !words[2], 0).collect();
                Source::Walk(i64::from(half(words[3]) as i32), half(words[4]), silent, answered)
            }
        };
        self.sources.insert(life, source);
    }

    fn is_remembered(&self, life: u64) -> bool {
        self.seen.contains(&life)
    }

    fn recall(&mut self, life: u64) {
        self.seen.insert(life);
    }

    fn remember(&mut self, _packet: &OraclePacket, flow: Option<&OracleFlow>) {
        self.begins = flow.is_some_and(|flow| self.seen.insert(flow.life));
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let judged = self.judge(ip, packet.nanos, flow.life);
        self.report.count(judged, ip.bytes);
        let is_scanners = matches!(judged, Judged::Scanner | Judged::Detected { .. });
        match self.action {
            Action::Drop if is_scanners => Verdict::Drop(packetloom_packet::DropReason::Scan),
            _ => Verdict::Pass,
        }
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
