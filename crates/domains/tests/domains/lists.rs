//! Lists in each format.

use std::collections::BTreeMap;
use std::io::{self, Read};

use packetloom_domains::formats::{Format, MAX_LINE, MAX_REFUSED, ReadError, ReadOptions, Reason, Report};
use packetloom_domains::{Action, Builder, Domains, NameError, Priority, Reach};

fn read(text: impl AsRef<[u8]>, options: ReadOptions) -> (Domains, Report) {
    let mut builder = Builder::with_seed(0);
    let report = builder.read(text.as_ref(), &options, |line| line).expect("read");
    assert_eq!(builder.len(), report.entries);
    assert_eq!(report.refused.len(), report.refused_count().min(MAX_REFUSED));
    (builder.build(), report)
}

fn of(format: Format) -> ReadOptions {
    ReadOptions { format: Some(format), ..ReadOptions::default() }
}

/// The line of the entry that decides about a name, and whether it blocks.
fn verdict(domains: &Domains, name: &str) -> Option<(u32, bool)> {
    domains.lookup(name).map(|found| (found.number, found.action == Action::Block))
}

fn refused(report: &Report) -> Vec<(u32, &str, Reason)> {
    report.refused.iter().map(|refused| (refused.line, refused.text.as_str(), refused.reason)).collect()
}

#[test]
fn plain_lists() {
    let text = b"\xef\xbb\xbf# a list\r\n\
        evil.com\r\n\
        \n\
        *.wild.com # with a comment\n\
        \t .dot.com.\n\
        Under_score.EXAMPLE\n\
        two words\n\
        http://example.com/\n\
        b\xc3\xbccher.example\n\
        192.0.2.1\n\
        2001:db8::1\n\
        a.*.b\n\
        *\n\
        .\n\
        a..b\n\
        \xff.example\n\
        not.the\0.end\n\
        last.example";
    let (domains, report) = read(text, of(Format::Plain));
    for (name, expected) in [
        ("evil.com", Some(2)),
        ("a.evil.com", Some(2)),
        ("wild.com", None),
        ("a.wild.com", Some(4)),
        ("dot.com", Some(5)),
        ("a.dot.com", Some(5)),
        ("under_score.example", Some(6)),
        ("xn--bcher-kva.example", Some(9)),
        ("last.example", Some(18)),
        ("example.com", None),
    ] {
        assert_eq!(verdict(&domains, name), expected.map(|line| (line, true)), "{name}");
    }
    assert_eq!((report.lines, report.entries, report.passed_over), (18, 6, 0));
    assert_eq!(
        refused(&report),
        [
            (7, "two words", Reason::Words),
            (8, "http://example.com/", Reason::Character),
            (10, "192.0.2.1", Reason::Address),
            (11, "2001:db8::1", Reason::Address),
            (12, "a.*.b", Reason::Wildcard),
            (13, "*", Reason::Wildcard),
            (14, ".", Reason::Character),
            (15, "a..b", Reason::Name(NameError::EmptyLabel)),
            (16, "\u{fffd}.example", Reason::Name(NameError::Internationalized)),
            (17, "not.the\u{fffd}.end", Reason::Character),
        ]
    );
    assert_eq!(report.reasons.get(&Reason::Address), Some(&2));
    assert_eq!(report.refused[0].to_string(), "line 7: \"two words\": several words; expected a name");
}

#[test]
fn options_say_what_plain_names_mean() {
    let options = ReadOptions {
        action: Action::Allow,
        reach: Some(Reach::Name),
        priority: Priority::Important,
        ..of(Format::Plain)
    };
    let (domains, _) = read("good.com\n*.good.org\n", options);
    assert_eq!(verdict(&domains, "good.com"), Some((1, false)));
    assert_eq!(verdict(&domains, "a.good.com"), None);
    assert_eq!(verdict(&domains, "a.good.org"), Some((2, false)));
    // Over a longer name.
    let mut builder = Builder::new();
    builder.read(b"a.good.org".as_slice(), &of(Format::Plain), |_| 7).expect("read");
    builder.read(b"*.good.org".as_slice(), &options, |_| 8).expect("read");
    assert_eq!(verdict(&builder.build(), "a.good.org"), Some((8, false)));
}

#[test]
fn hosts_files() {
    let text = "127.0.0.1 localhost localhost.localdomain\n\
        ::1 ip6-localhost evil.example\n\
        255.255.255.255 broadcasthost\n\
        fe80::1%lo0 localhost\n\
        ff02::1 ip6-allnodes\n\
        0.0.0.0 0.0.0.0\n\
        0.0.0.0\tads.example  track.example # both\n\
        0 zero.example\n\
        :: six.example\n\
        192.0.2.1 nas.example\n\
        name.example\n\
        0.0.0.0\n\
        # 0.0.0.0 comment.example\n\
        0.0.0.0 #none\n\
        127.3.2.1 far.example bad/name\n";
    let (domains, report) = read(text, of(Format::Hosts));
    for (name, expected) in [
        ("localhost", None),
        ("evil.example", Some(2)),
        ("ads.example", Some(7)),
        ("track.example", Some(7)),
        ("a.track.example", None),
        ("zero.example", Some(8)),
        ("six.example", Some(9)),
        ("nas.example", None),
        ("far.example", Some(15)),
    ] {
        assert_eq!(verdict(&domains, name), expected.map(|line| (line, true)), "{name}");
    }
    assert_eq!((report.entries, report.passed_over), (6, 7));
    assert_eq!(
        refused(&report),
        [
            (10, "nas.example", Reason::Host),
            (11, "name.example", Reason::NoAddress),
            (12, "0.0.0.0", Reason::NoName),
            (14, "0.0.0.0", Reason::NoName),
            (15, "bad/name", Reason::Character),
        ]
    );
    let (domains, _) = read(text, ReadOptions { reach: Some(Reach::All), ..of(Format::Hosts) });
    assert_eq!(verdict(&domains, "a.track.example"), Some((7, true)));
}

#[test]
fn rules_of_adblock() {
    let text = "[Adblock Plus 2.0]\n\
        ! Title: a list\n\
        ||evil.com^\n\
        @@||good.evil.com^\n\
        ||bad.good.evil.com^\n\
        ||worse.good.evil.com^$important\n\
        @@||fine.worse.good.evil.com^$important\n\
        |exact.com^\n\
        ||*.below.com^|\n\
        ||all.com^$all,important\n\
        ||third.com^$third-party\n\
        ||path.com/ads\n\
        ||port.com:8080^\n\
        ||open.com\n\
        plain.com\n\
        /ads[0-9]+/\n\
        example.com##.banner\n\
        ##.banner\n\
        #@#.banner\n\
        # a comment\n\
        example.com$$script[data]\n\
        ||a*.com^\n\
        ||^\n\
        ||bad.com^$badfilter\n\
        ||document.com^$document\n\
        http://example.com/\n\
        ||b\u{fc}cher.example^\n";
    let (domains, report) = read(text, of(Format::AdBlock));
    for (name, expected) in [
        ("evil.com", Some((3, true))),
        ("a.evil.com", Some((3, true))),
        ("good.evil.com", Some((4, false))),
        ("bad.good.evil.com", Some((4, false))),
        ("worse.good.evil.com", Some((6, true))),
        ("fine.worse.good.evil.com", Some((7, false))),
        ("exact.com", Some((8, true))),
        ("a.exact.com", None),
        ("below.com", None),
        ("a.below.com", Some((9, true))),
        ("all.com", Some((10, true))),
        ("third.com", None),
        ("open.com", None),
        ("plain.com", None),
        ("xn--bcher-kva.example", Some((27, true))),
    ] {
        assert_eq!(verdict(&domains, name), expected, "{name}");
    }
    assert_eq!(report.entries, 9);
    let expected = [
        (Reason::Option, 3),
        (Reason::Path, 3),
        (Reason::Pattern, 2),
        (Reason::Expression, 1),
        (Reason::Cosmetic, 4),
        (Reason::Wildcard, 1),
        (Reason::Name(NameError::Empty), 1),
    ];
    assert_eq!(report.reasons, BTreeMap::from(expected));
}

#[test]
fn response_policy_zones() {
    let text = "$TTL 1h ; an hour\n\
        $ORIGIN rpz.example.com.\n\
        @ IN SOA localhost. root.localhost. (\n\
        \t1 ; serial\n\
        \t3600 600 86400 60 )\n\
        \tNS localhost.\n\
        nxdomain.com CNAME .\n\
        *.nxdomain.com 300 IN CNAME .\n\
        nodata.com IN 300 CNAME *.\n\
        good.com.rpz.example.com. CNAME rpz-passthru.\n\
        drop.com cname RPZ-DROP.\n\
        self.com CNAME self.com.\n\
        tcp.com CNAME rpz-tcp-only.\n\
        garden.com CNAME garden.example.net.\n\
        address.com A 192.0.2.1\n\
        \tAAAA 2001:db8::1\n\
        *.wild.com A 192.0.2.1\n\
        text.com TXT \"a; (string\"\n\
        32.1.2.0.192.rpz-ip CNAME .\n\
        32.1.2.0.192.rpz-client-ip CNAME .\n\
        ns.example.rpz-nsdname CNAME .\n\
        outside.com. CNAME .\n\
        $INCLUDE other.zone\n\
        $ORIGIN net\n\
        relative CNAME .\n\
        escaped\\.dot CNAME .\n\
        lonely\n\
        cname.com CNAME\n\
        @ A 192.0.2.1\n\
        $ORIGIN rpz.example.com.\n\
        @ TXT apex\n\
        open.com ( CNAME . ; to the end\n";
    let (domains, report) = read(text, of(Format::Rpz));
    for (name, expected) in [
        ("nxdomain.com", Some((7, true))),
        ("a.b.nxdomain.com", Some((8, true))),
        ("nodata.com", Some((9, true))),
        ("a.nodata.com", None),
        ("good.com", Some((10, false))),
        ("drop.com", Some((11, true))),
        ("self.com", Some((12, false))),
        ("tcp.com", None),
        ("garden.com", Some((14, true))),
        ("address.com", Some((15, true))),
        ("wild.com", None),
        ("a.wild.com", Some((17, true))),
        ("text.com", None),
        ("outside.com", None),
        ("relative.net", Some((25, true))),
        ("escaped\\.dot.net", Some((26, true))),
        ("escaped.dot.net", None),
        ("net", Some((29, true))),
        ("open.com", None),
    ] {
        assert_eq!(verdict(&domains, name), expected, "{name}");
    }
    assert_eq!((report.entries, report.passed_over), (13, 3));
    assert_eq!(
        refused(&report),
        [
            (13, "tcp.com CNAME rpz-tcp-only.", Reason::Policy),
            (18, "text.com TXT \"a; (string\"", Reason::Type),
            (19, "32.1.2.0.192.rpz-ip CNAME .", Reason::Trigger),
            (20, "32.1.2.0.192.rpz-client-ip CNAME .", Reason::Trigger),
            (21, "ns.example.rpz-nsdname CNAME .", Reason::Trigger),
            (22, "outside.com. CNAME .", Reason::OutOfZone),
            (23, "$INCLUDE other.zone", Reason::Directive),
            (27, "lonely", Reason::Record),
            (28, "cname.com CNAME", Reason::Record),
            (32, "open.com", Reason::Unclosed),
        ]
    );
}

#[test]
fn zones_say_their_name_in_several_ways() {
    let soa = "SOA localhost. root. 1 2 3 4 5";
    for (head, name) in [
        (format!("@ {soa}\n"), "evil.com"),
        (format!("$ORIGIN rpz.local.\n@ {soa}\n"), "evil.com"),
        (format!("rpz.local. IN {soa}\n"), "evil.com.rpz.local."),
        (format!("$ORIGIN .\nrpz.local IN {soa}\n"), "evil.com.rpz.local"),
        (format!("$ORIGIN local.\nRPZ IN {soa}\n"), "evil.com.rpz"),
        (format!("$ORIGIN rpz.local.\n@ {soa}\n$ORIGIN com.rpz.local.\n"), "evil"),
        (String::new(), "evil.com"),
    ] {
        let (domains, report) = read(format!("{head}{name} CNAME .\n"), of(Format::Rpz));
        assert!(verdict(&domains, "EVIL.com.").is_some(), "{head:?} {report:?}");
        assert_eq!((report.entries, report.refused_count()), (1, 0), "{head:?}");
    }
    // Of which zone it is cannot be known.
    let (_, report) = read(format!("@ {soa}\nevil.com.rpz. CNAME .\n"), of(Format::Rpz));
    assert_eq!(report.reasons, BTreeMap::from([(Reason::OutOfZone, 1)]));
    // All names.
    let (domains, _) = read("* CNAME .\ngood.com CNAME rpz-passthru.", of(Format::Rpz));
    assert_eq!(
        (verdict(&domains, "x"), verdict(&domains, "good.com"), verdict(&domains, ".")),
        (Some((1, true)), Some((2, false)), None)
    );
}

#[test]
fn a_parenthesis_that_is_not_closed_costs_few_lines() {
    let text = "a.com ( CNAME .\n".to_owned() + &"\n".repeat(63) + "b.com CNAME .\n";
    let (domains, report) = read(text, of(Format::Rpz));
    assert_eq!(verdict(&domains, "b.com"), Some((65, true)));
    assert_eq!(refused(&report), [(64, "a.com", Reason::Unclosed)]);
}

#[test]
fn formats_are_told_by_content() {
    for (text, expected) in [
        ("", Format::Plain),
        ("# a comment\n## Title\n", Format::Plain),
        ("evil.com\n||other.com^\nthird.com", Format::Plain),
        ("# comment\n0.0.0.0 evil.com", Format::Hosts),
        ("127.0.0.1 localhost\n::1 localhost\n", Format::Hosts),
        ("! comment\n", Format::AdBlock),
        ("[Adblock Plus]\n||evil.com^\n", Format::AdBlock),
        ("||evil.com^\n@@||good.com^\nplain.com\n", Format::AdBlock),
        ("$TTL 300\n@ SOA . . 1 2 3 4 5\nevil.com CNAME .\n", Format::Rpz),
        ("evil.com CNAME .\nbad.com IN A 127.0.0.1\n", Format::Rpz),
        ("; comment\n", Format::Rpz),
    ] {
        let (_, report) = read(text, ReadOptions::default());
        assert_eq!(report.format, expected, "{text:?}");
        let (_, report) = read(format!("\u{feff}{}", text.replace('\n', "\r\n")), ReadOptions::default());
        assert_eq!(report.format, expected, "{text:?}");
    }
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "csv".parse::<Format>();
    assert_eq!(error, Err("no format \"csv\"; expected one of plain, hosts, adblock, rpz".into()));
}

#[test]
fn lines_of_any_length_are_read_or_refused() {
    for len in [MAX_LINE, MAX_LINE + 1, 65_535, 65_536, 65_537, 300_000] {
        for end in ["\n", "\r\n"] {
            let text = format!("first.com{end}# {}{end}second.com", "x".repeat(len - 2));
            let (domains, report) = read(&text, of(Format::Plain));
            assert_eq!((report.lines, report.entries), (3, 2), "{len}");
            let expected = if len + end.len() - 1 <= MAX_LINE { 0 } else { 1 };
            assert_eq!(report.reasons.get(&Reason::Line).copied().unwrap_or(0), expected, "{len}");
            assert!(report.refused.iter().all(|refused| refused.line == 2 && refused.text.len() == 80));
            assert_eq!(
                (verdict(&domains, "first.com"), verdict(&domains, "second.com")),
                (Some((1, true)), Some((3, true)))
            );
        }
    }
    // The long one is the last.
    let (_, report) = read("first.com\n".to_owned() + &"x".repeat(200_000), of(Format::Plain));
    assert_eq!((report.lines, report.entries, report.refused_count()), (2, 1, 1));
}

#[test]
fn refused_lines_are_counted_though_not_all_are_listed() {
    let (_, report) = read("/\n".repeat(70_000), of(Format::Plain));
    assert_eq!((report.refused.len(), report.refused_count(), report.lines), (MAX_REFUSED, 70_000, 70_000));
}

#[test]
fn errors_of_a_reader_are_told_and_interruptions_are_not() {
    struct Failing(u32);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(io::ErrorKind::Interrupted.into()),
                calls @ 2..200_000 => {
                    buffer[0] = b"evil.com\n"[calls as usize % 9];
                    Ok(1)
                }
                _ => Err(io::Error::other("broken")),
            }
        }
    }
    let mut builder = Builder::new();
    let error = builder.read(Failing(0), &ReadOptions::default(), |line| line).expect_err("broken");
    assert!(
        matches!(error, ReadError::Io { line: 2.., .. }) && error.to_string().ends_with("broken"),
        "{error}"
    );
    assert!(!builder.is_empty());
}
