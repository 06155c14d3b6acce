//! Keys of the chain file, and what is said about what was found.

use std::net::IpAddr;
use std::path::Path;

use packetloom_packet::Timestamp;
use serde_json::json;

use super::{Detection, Judged, LISTED, ScanReport};
use crate::flows::By;
use crate::registry::Registration;
use crate::{Context, Form, FunctionSpec, PerFlow, Report};

/// Prepares `scan` from keys of a chain file.
fn prepare(keys: &str) -> Result<Box<dyn FunctionSpec>, String> {
    let keys = format!("{{ {keys} }}");
    let keys = toml::de::ValueDeserializer::parse(&keys).expect("good TOML");
    let function = Registration::by_name("scan").expect("a function that is registered");
    let prepare = (function.parse)(keys).map_err(|error| error.message().to_owned())?;
    let context = Context { folder: Path::new("."), ignore_flags: false };
    prepare(&context).map_err(|error| error.to_string())
}

fn per_flow(scan: &dyn FunctionSpec) -> &dyn PerFlow {
    match scan.form() {
        Form::PerFlow(scan) => scan,
        Form::Standalone(_) => panic!("a detector keeps state for sources"),
    }
}

const FAN_OUT: &str = "method = \"fan-out\", threshold = 100";

#[test]
fn what_it_does_is_described() {
    for (keys, lines) in [
        (
            FAN_OUT.to_owned(),
            [
                "sources that contact 100 addresses and ports within 1m by TCP and UDP are scanners",
                "their packets are counted until they are forgotten",
            ],
        ),
        (
            format!(
                "{FAN_OUT}, window = \"0\", distinct = \"ports\", udp = false, action = \"drop\", block_for = \"1h\""
            ),
            ["sources that contact 100 ports by TCP are scanners", "their packets are dropped for 1h"],
        ),
        (
            "method = \"trw\", block_for = \"0\"".into(),
            [
                "sources whose first TCP contacts mostly fail are scanners: 4 failures at the beginning",
                "their packets are counted until they are forgotten",
            ],
        ),
        (
            "method = \"trw\", alpha = 0.0001, beta = 0.9999".into(),
            [
                "sources whose first TCP contacts mostly fail are scanners: 7 failures at the beginning",
                "their packets are counted until they are forgotten",
            ],
        ),
    ] {
        let scan = prepare(&keys).expect("good keys");
        assert_eq!((scan.name(), scan.rewrites()), ("scan", false));
        assert_eq!(scan.describe(), lines);
    }
}

#[test]
fn what_it_keeps_fits_into_a_cache_line() {
    let sources = &[By::Source, By::Initiator][..];
    for (keys, by, words, remembers) in [
        (FAN_OUT.to_owned(), sources, 4, true),
        (format!("{FAN_OUT}, udp = false"), sources, 4, false),
        ("method = \"trw\"".into(), &[By::Initiator][..], 5, false),
    ] {
        let scan = prepare(&keys).expect("good keys");
        let keeps = per_flow(&*scan).keeps();
        assert_eq!((keeps.flows, keeps.by, keeps.words), (None, by, words), "{keys}");
        let remembered = per_flow(&*scan).remembers().map(|keeps| (keeps.flows, keeps.by, keeps.words));
        assert_eq!(remembered, remembers.then_some((None, &[By::FiveTuple][..], 0)), "{keys}");
    }
    let scan = prepare(&format!("{FAN_OUT}, flows = \"a\", sessions = \"b\"")).expect("good keys");
    let names = (per_flow(&*scan).keeps().flows, per_flow(&*scan).remembers().and_then(|keeps| keeps.flows));
    assert_eq!(names, (Some("a".into()), Some("b".into())));
}

#[test]
fn wrong_keys_have_clear_errors() {
    let trw = "method = \"trw\"";
    for (keys, message) in [
        ("threshold = 5".to_owned(), "missing field `method`"),
        ("method = \"rate\"".into(), "unknown variant `rate`, expected `fan-out` or `trw`"),
        ("method = \"fan-out\"".into(), "no threshold with method = \"fan-out\"; expected a number"),
        ("method = \"fan-out\", threshold = 0".into(), "0; expected a number from 1 to 1000000"),
        (
            format!("{FAN_OUT}, theta1 = 0.1"),
            "theta1 with method = \"fan-out\"; expected keys of threshold, window, distinct, udp, sessions",
        ),
        (
            format!("{trw}, window = \"1s\""),
            "window with method = \"trw\"; expected keys of theta0, theta1, alpha, beta",
        ),
        (
            format!("{FAN_OUT}, udp = false, sessions = \"a\""),
            "sessions with udp = false; expected no sessions",
        ),
        (
            format!("{FAN_OUT}, distinct = \"hosts\""),
            "unknown variant `hosts`, expected one of `destinations`, `ports`, `both`",
        ),
        (format!("{FAN_OUT}, action = \"block\""), "unknown variant `block`, expected `count` or `drop`"),
        (format!("{trw}, theta0 = 0.2"), "theta0 0.2; expected more than theta1, 0.2"),
        (format!("{trw}, beta = 0.005"), "beta 0.005; expected more than alpha, 0.01"),
        (
            format!("{trw}, alpha = 0"),
            "0; expected a number above 0 and below 1, of six digits at most, such as 0.8",
        ),
        (
            format!("{trw}, alpha = 0.0000001"),
            "0.0000001; expected a number above 0 and below 1, of six digits at most, such as 0.8",
        ),
    ] {
        assert_eq!(prepare(&keys).err().as_deref(), Some(message), "{keys}");
    }
}

fn detection(micros: u64, last: u8) -> Detection {
    let source = IpAddr::from([10, 0, 0, last]);
    Detection { time: Timestamp::from_nanos(1_000 * micros), source, attempts: 4 }
}

#[test]
fn what_was_found_is_reported() {
    let mut report = ScanReport::new(true);
    for (judged, bytes) in [
        (Judged::Nothing, 1),
        (Judged::Attempt, 2),
        (Judged::Answer, 4),
        (Judged::Detected { attempts: 4 }, 8),
        (Judged::Scanner, 16),
    ] {
        report.count(judged, bytes);
    }
    report.detect(detection(1_500_000, 1));
    let mut other = ScanReport::new(true);
    other.detect(detection(1_499_999, 9));
    report.merge(&other);
    assert_eq!(
        report.json(),
        json!({
            "attempts": 2,
            "answered": 1,
            "detections": 2,
            "scanners": { "packets": 2, "bytes": 24 },
            "first": [
                { "source": "10.0.0.9", "microseconds": 1_499_999, "attempts": 4 },
                { "source": "10.0.0.1", "microseconds": 1_500_000, "attempts": 4 },
            ],
        })
    );
    let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        report.rows(),
        [
            row("first contacts", "2, 1 answered"),
            row("scanners found", "2"),
            row("packets of scanners", "2 packets, 24 IP bytes"),
            row("10.0.0.9", "found at 1.499999, after 4 attempts"),
            row("10.0.0.1", "found at 1.500000, after 4 attempts"),
        ]
    );
    let fan_out = ScanReport::new(false);
    assert_eq!(fan_out.json().get("answered"), None);
    assert_eq!(fan_out.rows()[0], row("contacts", "0"));
}

/// Of any number of detections the first ones are listed, in whatever order they came and by whatever workers.
#[test]
fn the_first_detections_are_listed() {
    let mut reports = [ScanReport::new(false), ScanReport::new(false)];
    // A permutation of 0 to 1,008.
    for n in 0..1_009 {
        reports[n as usize % 2].detect(detection(n * 500 % 1_009, 1));
    }
    let [mut report, other] = reports;
    report.merge(&other);
    let expected: Vec<_> = (0..LISTED as u64).map(|micros| detection(micros, 1)).collect();
    assert_eq!((report.detections, report.first()), (1_009, expected));
    assert_eq!(report.rows().len(), 3 + 10);
}

/// What a device counted is added to what was counted here: two counters by name, three by index, then five words for each detection.
#[test]
fn what_a_device_counted_is_added() {
    let mut report = ScanReport::new(true);
    report.detect(detection(3, 1));
    report.count(Judged::Detected { attempts: 4 }, 40);
    let v6 = [0x2001_0db8 << 32, 9];
    let listed = [[2_000, 1, v6[0], v6[1], 7], [4_000, 0, 0, 0x0a00_0002, 5]];
    report.add(&[&[10, 600, 30, 20, 2][..], listed.as_flattened()].concat());
    let found = |micros: u64, source: &str, attempts| Detection {
        time: Timestamp::from_nanos(1_000 * micros),
        source: source.parse().expect("an address"),
        attempts,
    };
    assert_eq!(
        report.first(),
        [found(2, "2001:db8::9", 7), found(3, "10.0.0.1", 4), found(4, "10.0.0.2", 5)]
    );
    let ScanReport { attempts, answered, detections, scanners, .. } = report;
    assert_eq!((attempts, answered, detections, scanners), (31, Some(20), 3, [11, 640]));
    // Nobody looks at answers there, and none are counted.
    let mut fan_out = ScanReport::new(false);
    fan_out.add(&[1, 40, 3, 0, 1]);
    assert_eq!((fan_out.attempts, fan_out.answered, fan_out.first()), (3, None, vec![]));
    // More than are listed, of several devices or of one and of cores.
    let many: Vec<_> = (0..400).flat_map(|n| [1_000 * (400 - n), 0, 0, 0x0a00_0001, 4]).collect();
    fan_out.add(&[&[0; 5][..], &many].concat());
    assert_eq!((fan_out.first().len(), fan_out.first()[0]), (LISTED, detection(1, 1)));
}
