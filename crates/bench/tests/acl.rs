//! The comparison of classifiers: what it reports, and that it notices wrong ones.

#![allow(missing_docs)]

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use packetloom_bench::Error;
use packetloom_bench::acl::{Engines, Options, compare, run};
use packetloom_bench::engine::{Engine, Own};
use packetloom_bench::sample::Measurement;
use packetloom_classify::formats::{self, Headers, read_headers, read_rules};
use packetloom_classify::{Classifier, Kind, RuleSet};
use packetloom_io::input::Stop;
use packetloom_packet::{MatchKey4, MatchKey6};

const RULES: &str = "permit tcp from 10.0.0.0/8 to any port 80\ndeny udp from any to 2001:db8::/32\ndeny any from any to any\n";

fn rules() -> RuleSet {
    read_rules("rules", &mut RULES.as_bytes(), &formats::Options::default()).expect("rules").rules
}

fn headers() -> Headers {
    let text = "tcp 10.0.0.1:1 > 10.0.0.2:80\nudp [2001:db8::1]:1 > [2001:db8::2]:2\ntcp 192.0.2.1:1 > 10.0.0.2:80\n";
    read_headers("headers", &mut text.repeat(50).as_bytes()).expect("headers")
}

fn options(kinds: &[Kind]) -> Options {
    Options { kinds: kinds.to_vec(), peer: None, batches: vec![1, 32], rounds: 2, workload: "test".into() }
}

fn own(headers: &Headers, classifier: Arc<dyn Classifier>) -> Box<dyn Engine + '_> {
    Box::new(Own::new(classifier, Duration::ZERO, headers))
}

/// Finds the rule after the first for the last key of each call.
#[derive(Debug)]
struct Wrong(Arc<dyn Classifier>);

impl Wrong {
    fn spoil(first: &mut [u32]) {
        if let Some(last) = first.last_mut() {
            *last += 1;
        }
    }
}

impl Classifier for Wrong {
    fn kind(&self) -> Kind {
        Kind::TupleMerge
    }

    fn memory(&self) -> usize {
        self.0.memory()
    }

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        self.0.classify_v4(keys, first);
        Self::spoil(first);
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        self.0.classify_v6(keys, first);
        Self::spoil(first);
    }
}

fn message(result: Result<Vec<Measurement>, Error>) -> String {
    match result {
        Err(Error::Wrong(message)) => message,
        other => panic!("{other:?}; expected a wrong result"),
    }
}

#[test]
fn every_classifier_is_measured_with_every_batch_size() {
    let (rules, headers) = (rules(), headers());
    let measurements = run(&rules, &headers, &options(&Kind::ALL), &Stop::default()).expect("measurements");
    let names: Vec<_> =
        measurements.iter().map(|m| (m.classifier.clone().expect("a name"), m.batch)).collect();
    let expected = [1, 32].into_iter().flat_map(|batch| Kind::ALL.map(|kind| (kind.to_string(), batch)));
    assert_eq!(names, expected.collect::<Vec<_>>());
    for measurement in measurements {
        let json = measurement.json();
        for name in
            ["mpps", "mpps_cpu", "ns_per_packet", "p25", "p75", "cpu_ns_per_packet", "cpu_p25", "cpu_p75"]
        {
            assert!(json[name].as_f64().is_some_and(|value| value > 0.0), "{name} of {json}");
        }
        assert_eq!((json["packets"].as_u64(), json["rounds"].as_u64()), (Some(150), Some(2)));
        assert_eq!((json["rules"].as_u64(), json["workload"].as_str()), (Some(3), Some("test")));
        assert!(json["build_ms"].is_number() && json["peer_ratio"].is_null());
        // 150 headers are nothing: a round of 100 ms goes over them many times.
        let cpu: Duration = measurement.rounds.iter().map(|round| round.cpu()).sum();
        assert!(json["passes"].as_u64() > Some(100) && cpu > Duration::from_millis(50), "{json} {cpu:?}");
    }
}

#[test]
fn ratios_are_to_the_peer_with_the_same_batch_size() {
    let (rules, headers) = (rules(), headers());
    let engine = |kind: Kind| own(&headers, kind.build(&rules));
    let engines = Engines { own: vec![engine(Kind::TupleMerge)], peer: Some(engine(Kind::Linear)) };
    let measurements =
        compare(&rules, &headers, engines, &options(&[]), &Stop::default()).expect("measurements");
    let json: Vec<_> = measurements.iter().map(Measurement::json).collect();
    assert_eq!(json.len(), 4);
    for pair in json.chunks(2) {
        let [peer, own] = pair else { unreachable!() };
        assert_eq!(
            (peer["classifier"].as_str(), own["classifier"].as_str()),
            (Some("linear"), Some("tuple-merge"))
        );
        assert_eq!(peer["batch"], own["batch"]);
        assert!(peer["peer_ratio"].is_null());
        let [low, median, high] = ["peer_ratio_min", "peer_ratio", "peer_ratio_max"]
            .map(|name| own[name].as_f64().expect("a number"));
        assert!(0.0 < low && low <= median && median <= high, "{own}");
    }
}

#[test]
fn a_wrong_classifier_is_found_wherever_it_stands() {
    let (rules, headers) = (rules(), headers());
    let linear = || own(&headers, Kind::Linear.build(&rules));
    let wrong = || own(&headers, Arc::new(Wrong(Kind::Linear.build(&rules))));
    for engines in [
        Engines { own: vec![wrong()], peer: None },
        Engines { own: vec![linear(), wrong()], peer: None },
        Engines { own: vec![wrong(), linear()], peer: None },
        Engines { own: vec![wrong()], peer: Some(linear()) },
        Engines { own: vec![linear()], peer: Some(wrong()) },
    ] {
        let message = message(compare(&rules, &headers, engines, &options(&[]), &Stop::default()));
        assert!(message.starts_with("tuple-merge in batches of 1 finds rule 1 for MatchKey4"), "{message}");
        assert!(message.ends_with(", one by one it is rule 0"), "{message}");
    }
}

/// Gives the right answers once.
struct Fickle<'a>(Own<'a>, Cell<bool>);

impl Engine for Fickle<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn pass(&mut self, batch: usize) {
        self.0.pass(batch);
    }

    fn answers(&self) -> Vec<u32> {
        let mut answers = self.0.answers();
        if self.1.replace(true) {
            answers[149] = 0;
        }
        answers
    }

    fn facts(&self) -> Vec<(&'static str, serde_json::Value)> {
        self.0.facts()
    }
}

#[test]
fn a_classifier_that_goes_wrong_while_it_is_timed_is_found() {
    let (rules, headers) = (rules(), headers());
    let own = Own::new(Kind::Linear.build(&rules), Duration::ZERO, &headers);
    let engines = Engines { own: vec![Box::new(Fickle(own, Cell::new(false)))], peer: None };
    let options = Options { batches: vec![32], ..options(&[]) };
    let message = message(compare(&rules, &headers, engines, &options, &Stop::default()));
    assert!(message.starts_with("linear finds rule 0 for MatchKey6"), "{message}");
}

#[test]
fn nothing_to_measure_is_an_error() {
    let result = run(&rules(), &Headers::default(), &options(&Kind::ALL), &Stop::default());
    assert!(matches!(result, Err(Error::Empty)), "{result:?}");
}
