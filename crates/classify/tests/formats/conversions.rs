//! Lists written in every format and read back: no packet gets another verdict, or the conversion is refused.

use packetloom_classify::formats::{self, Format, WriteError, WriteOptions};
use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Rule, RuleSet};
use packetloom_packet::protocol;

use super::verdicts::{Random, in_words, near, read, verdicts, written};

/// Lists of a short run, and of the long one that `PACKETLOOM_SWEEPS=1` asks for.
const LISTS: [u64; 2] = [300, 10_000];
/// Packets that each written list is compared by.
const PACKETS: usize = 250;

/// What the lists of a run have in common.
#[derive(Clone, Copy)]
struct Style {
    /// Addresses of both families, of IPv4, of IPv6, or of any of them.
    families: u64,
    /// Actions of its rules.
    actions: &'static [Option<Action>],
    /// Whether conditions fit their protocols.
    fits: bool,
    /// Whether a rule for later fragments stands behind those that ask for a transport header.
    with_later: bool,
}

const PERMIT: Option<Action> = Some(Action::Permit);
const DENY: Option<Action> = Some(Action::Deny);
const REFLECT: Option<Action> = Some(Action::Reflect);
const ACTIONS: [&[Option<Action>]; 8] = [
    &[PERMIT],
    &[DENY],
    &[PERMIT, DENY],
    &[PERMIT, DENY],
    &[PERMIT, DENY, REFLECT],
    &[None],
    &[None],
    &[PERMIT, DENY, REFLECT, None],
];

fn chance(random: &mut Random, one_in: u64) -> bool {
    random.below(one_in) == 0
}

fn prefix4(random: &mut Random) -> Prefix4 {
    let address = random.pick(&[0x0a00_0000u32, 0x0a01_0203, 0xc000_0201, 0xffff_ffff]);
    Prefix4::new(address, random.pick(&[0, 0, 1, 8, 15, 24, 31, 32]))
}

fn prefix6(random: &mut Random) -> Prefix6 {
    let address = random.pick(&[1u128, 0x2001_0db8 << 96, 0x2001_0db8 << 96 | 1, u128::MAX]);
    Prefix6::new(address, random.pick(&[0, 0, 1, 32, 63, 64, 65, 127, 128]))
}

fn ports(random: &mut Random) -> PortRange {
    let ports = [0u16, 1, 22, 80, 255, 256, 1023, 1024, 65_534, 65_535];
    let (a, b) = (random.pick(&ports), random.pick(&ports));
    match random.below(3) {
        0 => PortRange::ANY,
        1 => PortRange::exactly(a),
        _ => PortRange { low: a.min(b), high: a.max(b) },
    }
}

fn rule(style: Style, line: u32, random: &mut Random) -> Rule {
    let family = if style.families < 3 { style.families } else { random.below(3) };
    let addresses = match family {
        0 => Addresses::Any,
        1 => Addresses::V4(prefix4(random), prefix4(random)),
        _ => Addresses::V6(prefix6(random), prefix6(random)),
    };
    let icmp = if matches!(addresses, Addresses::V6(..)) { protocol::ICMPV6 } else { protocol::ICMP };
    let protocols =
        [None, None, Some(6), Some(6), Some(6), Some(17), Some(17), Some(132), Some(icmp), Some(47)];
    let protocol = if chance(random, 8) { Some(random.below(256) as u8) } else { random.pick(&protocols) };
    let mut rule = Rule { addresses, protocol, line, ..Rule::any(random.pick(style.actions)) };
    let fits = |has: fn(u8) -> bool| !style.fits || protocol.is_some_and(has);
    if fits(|number| matches!(number, 6 | 17))
        || (protocol::has_ports(protocol.unwrap_or(6)) && chance(random, 6))
    {
        (rule.source_ports, rule.destination_ports) = (ports(random), ports(random));
    }
    if fits(protocol::has_type_and_code) && chance(random, 2) {
        rule.icmp_type = (style.fits || chance(random, 2)).then(|| random.pick(&[0, 3, 8, 128, 135, 255]));
        rule.icmp_code = chance(random, 2).then(|| random.pick(&[0, 1, 4, 255]));
    }
    if fits(|number| number == protocol::TCP) && chance(random, 3) {
        let mask = random.pick(&[0x02u8, 0x10, 0x12, 0x17, 0x3f, 0xff, 0xc0]);
        rule.tcp_flags = Some(TcpFlagMatch { set: random.next() as u8 & mask, mask });
    }
    if chance(random, 6) {
        use Fragments::{Any, First, Later, None, NotLater};
        rule.fragments = random.pick(&[Any, None, First, Later, NotLater]);
    }
    rule.log = chance(random, 8);
    rule.id = chance(random, 4).then(|| format!("rule-{line}").into());
    rule.comment = chance(random, 4).then(|| "says \"why\" \\ {and}; when".into());
    rule
}

/// A list and its default.
fn list(random: &mut Random) -> (Vec<Rule>, Option<Action>) {
    let style = Style {
        families: random.below(5),
        actions: random.pick(&ACTIONS),
        fits: !chance(random, 4),
        with_later: chance(random, 2),
    };
    let mut rules = Vec::new();
    for line in 1..=random.below(9) as u32 {
        let rule = rule(style, line, random);
        let asks =
            !rule.source_ports.is_any() || !rule.destination_ports.is_any() || rule.tcp_flags.is_some();
        let later = Rule { fragments: Fragments::Later, ..Rule::any(rule.action) };
        let later = Rule { addresses: rule.addresses, protocol: rule.protocol, line, ..later };
        let with_later = style.with_later && asks && rule.fragments == Fragments::All;
        rules.push(rule);
        rules.extend(with_later.then_some(later));
    }
    (rules, random.pick(&[None, PERMIT, DENY]))
}

/// Writes a list and compares what is read back: whether it was written at all.
fn compare(rules: &[Rule], default: Option<Action>, format: Format, seed: u64) -> Result<bool, String> {
    let text = match written(rules, format, default) {
        Ok(text) => text,
        Err(WriteError::Inexpressible { .. } | WriteError::Default { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let said = || format!("{}\ndefault {default:?}\nas\n{text}", in_words(rules).join("\n"));
    let reading = read(format, &text).map_err(|error| format!("{error}\n{}", said()))?;
    let ours = RuleSet { rules: rules.to_vec() };
    let mut random = Random(seed);
    let mut packets = near(&ours, PACKETS * 3 / 5, &mut random);
    packets.extend(near(&reading.rules, PACKETS - PACKETS * 3 / 5, &mut random));
    let before = verdicts(&ours, default, &packets);
    let after = verdicts(&reading.rules, reading.default, &packets);
    match (0..packets.len()).find(|&at| before[at] != after[at]) {
        None => Ok(true),
        Some(at) => {
            Err(format!("{:?} became {:?} for {:x?}\n{}", before[at], after[at], packets[at], said()))
        }
    }
}

#[test]
fn no_verdict_changes_in_any_format() {
    let is_long = packetloom_testing::sweeps();
    let lists = LISTS[usize::from(is_long)];
    println!("{lists} lists of {PACKETS} packets each, to and from every format");
    let (mut whole, mut parts) = ([0u64; 16], [0u64; 16]);
    for seed in 0..lists {
        let (rules, default) = list(&mut Random(seed));
        for (at, format) in Format::all().enumerate() {
            let fail = |message: String| -> bool { panic!("{format}, seed {seed}: {message}") };
            if compare(&rules, default, format, seed).unwrap_or_else(fail) {
                whole[at] += 1;
                continue;
            }
            // What the format has words for, rule by rule.
            let can_say = |rule: &&Rule| written(std::slice::from_ref(*rule), format, DENY).is_ok();
            let some: Vec<Rule> = rules.iter().filter(can_say).cloned().collect();
            let is_written = compare(&some, default, format, seed).unwrap_or_else(fail);
            parts[at] += u64::from(is_written && !some.is_empty());
        }
    }
    for (at, format) in Format::all().enumerate() {
        let (whole, parts) = (whole[at], parts[at]);
        println!("{format}: {whole} lists as they are and {parts} without rules that it has no words for");
        // A format that refuses everything would change nothing, either.
        assert!(whole + parts > lists / 10, "{format}: {whole} and {parts} of {lists}");
    }
}

#[test]
fn a_code_without_a_type_is_of_both_families() {
    let rule = Rule { protocol: Some(protocol::ICMP), icmp_code: Some(4), ..Rule::any(PERMIT) };
    assert_eq!(compare(&[rule], DENY, Format::Nftables, 1), Ok(true));
}

/// As [`written`], with what was left out.
fn leaving_out(rules: &[Rule], format: Format, default: Option<Action>) -> (String, usize) {
    let options = WriteOptions { default, skip_unsupported: true, ..WriteOptions::default() };
    let mut text = Vec::new();
    let skipped = formats::write_rules(rules, format, &options, &mut text).expect("written").unwritten;
    (String::from_utf8(text).expect("UTF-8"), skipped.len())
}

#[test]
fn a_list_without_a_default_denies_in_every_format() {
    let text = include_str!("faults/01-no-default.rules");
    let reading = read(Format::Native, text).expect("rules");
    assert_eq!(reading.default, None);
    let rules = reading.rules.rules;
    let refused = "rule 0 has no line in this format, which holds no actions (--conditions-only leaves actions and the \
                   default out): permit tcp from 0.0.0.0/0 to 192.0.2.80/32 port 443 id web";
    let refusing = "rule 0 has no line in this format, which holds IPv6 only: permit tcp from 0.0.0.0/0 to 192.0.2.80/32 \
                    port 443 id web";
    let later = "rule 0 has no line in this format, where later fragments are matched by addresses and protocol: permit tcp \
                 from 0.0.0.0/0 to 192.0.2.80/32 port 443 id web";
    for (format, expected) in [
        (Format::Native, Ok("permit tcp from 0.0.0.0/0 to 192.0.2.80/32 port 443 id web\n")),
        (Format::ClassBench, Err(refused)),
        (Format::Vpp, Err(later)),
        (Format::Ip6tables, Err(refusing)),
        (
            Format::FlowSpec,
            Ok(
                "ipv4 0f0120c00002500200038106059101bb accept\nipv4 0401000200 discard\nipv6 06010000020000 discard\n",
            ),
        ),
        (
            Format::CiscoIos,
            Ok(
                "ip access-list extended PACKETLOOM\n deny ip any any fragments\n permit tcp any host 192.0.2.80 eq 443\n \
                deny ip any any\nipv6 access-list PACKETLOOM-V6\n deny ipv6 any any\n",
            ),
        ),
        (
            Format::Iptables,
            Ok(
                "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -d 192.0.2.80/32 -p 6 -m tcp --dport 443 -m comment --comment \
                \"web\" -j ACCEPT\nCOMMIT\n",
            ),
        ),
    ] {
        let found = written(&rules, format, None).map_err(|error| error.to_string());
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(found, expected, "{format}");
    }
    let flows = written(&rules, Format::ExaBgp, None).expect("flows");
    assert_eq!(flows, written(&rules, Format::ExaBgp, DENY).expect("flows"));
    assert_eq!(flows.matches("discard;").count(), 2, "{flows}");
    // An allow-list of which every rule is left out denies all packets, of either family.
    let reflect = super::rules("reflect tcp from 10.0.0.0/8 to any\nreflect tcp from 2001:db8::/32 to any")
        .expect("rules");
    for format in
        Format::all().filter(|format| !matches!(format, Format::Native | Format::Vpp | Format::ClassBench))
    {
        let (text, left_out) = leaving_out(&reflect.rules, format, None);
        assert_eq!(left_out, 2, "{format}");
        let reading = read(format, &text).unwrap_or_else(|error| panic!("{format}: {error}\n{text}"));
        let packets = near(&reflect, 100, &mut Random(1));
        assert!(
            verdicts(&reading.rules, reading.default, &packets).iter().all(|one| *one == DENY),
            "{format}"
        );
    }
}

#[test]
fn flows_are_closed_even_if_rules_before_are_left_out() {
    // The second would overtake the first, and is left out; the flow for everything else is not.
    let rules = super::rules("permit any from any to 10.0.0.0/8\ndeny any from any to 10.1.0.0/16")
        .expect("rules")
        .rules;
    for format in [Format::FlowSpec, Format::ExaBgp] {
        let (text, left_out) = leaving_out(&rules, format, None);
        assert_eq!((left_out, text.matches("discard").count()), (1, 2), "{text}");
        // To permit the rest needs no flow, but a file that says so.
        assert!(!written(&rules[..1], format, PERMIT).expect("flows").contains("discard"));
        let everything = written(&[], format, PERMIT).expect("flows");
        assert_eq!(everything.matches("accept").count(), 2, "{everything}");
    }
}

#[test]
fn what_a_source_permits_by_default_is_permitted_by_lists_that_deny() {
    // FlowSpec forwards what no flow matches, and iptables what its policy accepts.
    for (format, text) in [
        (Format::FlowSpec, "ipv4 03 03812f discard\n"),
        (Format::ExaBgp, "flow { route x { match { protocol gre; } then { discard; } } }\n"),
        (Format::Iptables, "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p gre -j DROP\nCOMMIT\n"),
    ] {
        let reading = read(format, text).expect(text);
        let rules = &reading.rules.rules;
        let cisco = written(rules, Format::CiscoIos, reading.default).expect("lists");
        assert_eq!(
            cisco,
            "ip access-list extended PACKETLOOM\n deny gre any any\n permit ip any any\n\
             ipv6 access-list PACKETLOOM-V6\n permit ipv6 any any\n"
        );
        let vpp = written(rules, Format::Vpp, reading.default).expect("a list");
        assert_eq!(
            vpp,
            "set acl-plugin acl deny src 0.0.0.0/0 dst 0.0.0.0/0 proto 47, permit src 0.0.0.0/0 dst 0.0.0.0/0, \
             permit src ::/0 dst ::/0 tag packetloom\n"
        );
    }
}

#[test]
fn formats_of_conditions_hold_no_actions_and_no_default() {
    let rules = super::rules("permit tcp from 10.0.0.0/8 to 0.0.0.0/0").expect("rules").rules;
    let filters = [Rule { action: None, ..rules[0].clone() }];
    let line = "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x06/0xFF\t0x0000/0x0000\t\n";
    for default in [None, DENY] {
        assert_eq!(written(&filters, Format::ClassBench, default).expect("filters"), line);
        assert!(written(&rules, Format::ClassBench, default).is_err());
    }
    assert_eq!(
        written(&filters, Format::ClassBench, PERMIT).expect_err("a default").to_string(),
        "the default permit cannot be written in this format, which holds conditions only (--conditions-only leaves actions \
         and the default out)"
    );
    assert_eq!(
        written(&[], Format::ClassBench, None).expect_err("no filter").to_string(),
        "the default deny cannot be written in this format, which holds one filter or more"
    );
    let options = WriteOptions { default: PERMIT, conditions_only: true, ..WriteOptions::default() };
    let mut text = Vec::new();
    formats::write_rules(&rules, Format::ClassBench, &options, &mut text).expect("filters");
    assert_eq!(String::from_utf8(text).expect("text"), line);
}
