//! Names in sets of a few.

use packetloom_domains::{Action, Builder, Domains, Entry, Match, NameError, Priority, Reach};

fn set(entries: &[Entry<'_>]) -> Domains {
    Domains::build(entries.iter().copied()).expect("names")
}

/// The number of the entry that decides.
fn number(domains: &Domains, name: &str) -> Option<u32> {
    domains.lookup(name).map(|found| found.number)
}

#[test]
fn names_are_matched_by_label() {
    let domains = set(&[Entry::block("evil.com", 7)]);
    let exact = Match { number: 7, labels: 2, exact: true, action: Action::Block };
    for name in ["evil.com", "EVIL.com", "eViL.CoM.", "evi\\l.com", "\\069vil.com", "evil.com"] {
        assert_eq!(domains.lookup(name), Some(exact), "{name}");
    }
    for name in ["a.evil.com", "a.b.evil.com.", "a..evil.com", ".evil.com", "x y.evil.com", "\u{fc}.evil.com"]
    {
        assert_eq!(domains.lookup(name), Some(Match { exact: false, ..exact }), "{name}");
    }
    for name in [
        "notevil.com",
        "evil.com.au",
        "com",
        "evil",
        "",
        ".",
        "..",
        "evil.com..",
        "evil\\.com",
        "a\\.evil.com",
        "evil..com",
    ] {
        assert_eq!(domains.lookup(name), None, "{name}");
    }
}

#[test]
fn a_name_of_any_length_is_below_what_it_ends_with() {
    let domains = set(&[Entry::block("evil.com", 7), Entry::allow("x.evil.com", 8)]);
    for label in
        ["a".repeat(63), "a".repeat(64), "a".repeat(100_000), "a.".repeat(50_000) + "a", "\\\\".repeat(5_000)]
    {
        assert_eq!(number(&domains, &format!("{label}.evil.com")), Some(7));
        assert_eq!(number(&domains, &format!("{label}.x.EVIL.com.")), Some(8));
        assert_eq!(number(&domains, &format!("{label}evil.com")), None);
        // An odd number of backslashes makes the dot one of a label.
        assert_eq!(number(&domains, &format!("{label}\\.x.evil.com")), Some(7));
        assert_eq!(number(&domains, &format!("{label}\\.evil.com")), None);
    }
}

#[test]
fn the_longest_name_wins_then_the_exact_entry_then_the_one_that_allows() {
    let name = |name, reach, action, number| Entry {
        reach,
        ..if action == Action::Block { Entry::block(name, number) } else { Entry::allow(name, number) }
    };
    let domains = set(&[
        name("com", Reach::All, Action::Allow, 1),
        name("example.com", Reach::All, Action::Block, 2),
        name("a.example.com", Reach::All, Action::Allow, 3),
        name("a.example.com", Reach::Name, Action::Block, 4),
        name("b.example.com", Reach::All, Action::Block, 5),
        name("b.example.com", Reach::All, Action::Allow, 6),
        name("c.example.com", Reach::Subdomains, Action::Allow, 7),
        name("d.example.com", Reach::Name, Action::Allow, 8),
        name("e.example.com", Reach::All, Action::Block, 9),
        name("E.EXAMPLE.COM.", Reach::All, Action::Block, 10),
    ]);
    for (name, expected) in [
        ("x.com", 1),
        ("example.com", 2),
        ("a.example.com", 4),
        ("x.a.example.com", 3),
        ("b.example.com", 6),
        ("x.b.example.com", 6),
        ("c.example.com", 2),
        ("x.c.example.com", 7),
        ("d.example.com", 8),
        ("x.d.example.com", 2),
        ("e.example.com", 9),
    ] {
        assert_eq!(number(&domains, name), Some(expected), "{name}");
    }
    assert_eq!(domains.len(), 7);
}

#[test]
fn a_higher_priority_wins_however_short_its_name_is() {
    let domains = set(&[
        Entry::block("a.b.example", 1),
        Entry { priority: Priority::Exception, ..Entry::allow("example", 2) },
        Entry { priority: Priority::Important, ..Entry::block("x.b.example", 3) },
        Entry {
            priority: Priority::ImportantException,
            reach: Reach::Subdomains,
            ..Entry::allow("x.b.example", 4)
        },
        Entry { priority: Priority::Important, reach: Reach::Subdomains, ..Entry::block(".", 5) },
        Entry { priority: Priority::Exception, ..Entry::allow("b.example", 6) },
    ]);
    for (name, expected) in [("a.b.example", 5), ("x.b.example", 3), ("y.x.b.example", 4), ("example", 5)] {
        assert_eq!(number(&domains, name), Some(expected), "{name}");
    }
    let domains = set(&[
        Entry::block("a.b.example", 1),
        Entry { priority: Priority::Exception, ..Entry::allow("example", 2) },
        Entry { priority: Priority::Exception, ..Entry::allow("b.example", 6) },
    ]);
    assert_eq!((number(&domains, "a.b.example"), number(&domains, "c.example")), (Some(6), Some(2)));
}

#[test]
fn all_names_are_below_the_root() {
    let root = |reach| set(&[Entry { reach, ..Entry::block(".", 1) }, Entry::allow("example", 2)]);
    for (reach, at_root, below) in
        [(Reach::Name, Some(1), None), (Reach::Subdomains, None, Some(1)), (Reach::All, Some(1), Some(1))]
    {
        let domains = root(reach);
        assert_eq!((domains.len(), number(&domains, "."), number(&domains, "")), (2, at_root, at_root));
        assert_eq!((number(&domains, "a.b"), number(&domains, "..")), (below, below));
        assert_eq!(number(&domains, "a.example"), Some(2));
        assert_eq!(domains.lookup_wire(b"\0").map(|found| found.number), at_root);
        assert_eq!(domains.lookup_wire(b"\x01a\0").map(|found| found.number), below);
    }
}

#[test]
fn bytes_that_are_no_name_match_nothing() {
    let domains = set(&[Entry::block(".", 1), Entry::block("evil.com", 7)]);
    assert_eq!(domains.lookup_wire(b"\x01a\x04eVil\x03com\0").map(|found| found.number), Some(7));
    assert_eq!(domains.lookup_wire(b"\x06a.evil\x03com\0").map(|found| found.number), Some(1));
    let long = [b"\x3f".as_slice(), &[b'a'; 63]].concat().repeat(4);
    for bytes in [
        b"\x04evil\x03com\0\0".as_slice(),
        b"\x04evil\x03co",
        b"\x04evil\x03",
        b"\x04evil\xc0\x0c",
        b"\x40evil",
        &long,
        &[b"\x01a".as_slice(); 128].concat(),
    ] {
        assert_eq!(domains.lookup_wire(bytes), None, "{bytes:?}");
    }
    // The longest there is.
    assert_eq!(domains.lookup_wire(&[b"\x01a".as_slice(); 127].concat()).map(|found| found.number), Some(1));
}

#[test]
fn names_in_unicode_are_those_in_punycode() {
    let domains = set(&[
        Entry::block("B\u{fc}cher.example", 1),
        Entry::block("\u{4f8b}\u{3002}test.", 2),
        Entry::block("fa\u{df}.example", 3),
    ]);
    assert_eq!(number(&domains, "www.xn--bcher-kva.example"), Some(1));
    assert_eq!(number(&domains, "XN--fsq.test"), Some(2));
    assert_eq!(number(&domains, "xn--fa-hia.example"), Some(3));
    // As the labels of a message are bytes, this is another name.
    assert_eq!(number(&domains, "b\u{fc}cher.example"), None);
}

#[test]
fn what_is_no_name_is_refused() {
    let add = |name: &str| Builder::new().add(Entry::block(name, 0)).map_err(|error| error.to_string());
    let long = "a".repeat(64);
    let many = "a.".repeat(127);
    for (name, expected) in [
        ("", NameError::Empty),
        ("..", NameError::EmptyLabel),
        (".a", NameError::EmptyLabel),
        ("a..b", NameError::EmptyLabel),
        ("a..", NameError::EmptyLabel),
        (long.as_str(), NameError::LabelTooLong),
        (&format!("{many}a"), NameError::NameTooLong),
        ("a\\", NameError::Escape),
        ("a\\25", NameError::Escape),
        ("a\\256", NameError::Escape),
        ("\u{fc}\\.example", NameError::Internationalized),
        ("xn--\u{fc}.example", NameError::Internationalized),
        ("a\u{200b}\u{378}.example", NameError::Internationalized),
    ] {
        assert_eq!(add(name), Err(expected.to_string()), "{name}");
    }
    assert_eq!(add(&many), Ok(()));
    let mut builder = Builder::with_seed(1);
    assert!(builder.is_empty() && builder.add(Entry::block("a..b", 0)).is_err() && builder.is_empty());
    assert!(builder.build().is_empty());
}

#[test]
fn sets_can_be_shared() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Domains>();
    assert_eq!(size_of::<Option<Match>>(), 8);
}

#[test]
fn ports_of_hosts_are_no_part_of_names() {
    for (host, expected) in [
        ("example.com:8080", "example.com"),
        ("example.com:", "example.com"),
        ("example.com", "example.com"),
        ("example.com:http", "example.com:http"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("2001:db8::1", "2001:db8::1"),
        ("", ""),
    ] {
        assert_eq!(packetloom_domains::without_port(host), expected);
    }
}

/// Names as an author of lists may choose them to make lookups slow.
#[test]
fn no_list_makes_lookups_slow() {
    // Every name ends all others, each label is the same, and names differ in their dots only.
    let nested: Vec<String> = (1..=127).map(|labels| vec!["a"; labels].join(".")).collect();
    let dots: Vec<String> = (0..1u32 << 14)
        .map(|bits| {
            let name = (0..15).map(|at| if bits >> at & 1 == 1 { "b\\." } else { "b." });
            name.collect::<String>() + "example"
        })
        .collect();
    let below: Vec<String> = (0..20_000).map(|number| format!("{number}.host.example")).collect();
    let zeros: Vec<String> = (1..60).map(|len| "\\000".repeat(len) + ".example").collect();
    for names in [&nested, &dots, &below, &zeros] {
        let mut builder = Builder::with_seed(0);
        for (name, number) in names.iter().zip(0..) {
            builder.add(Entry { reach: Reach::Name, ..Entry::block(name, number) }).expect("a name");
        }
        let domains = builder.build();
        assert_eq!(domains.len(), names.len());
        assert!(domains.max_probes() <= 16, "{}", domains.max_probes());
        for (name, expected) in names.iter().zip(0..) {
            assert_eq!(number(&domains, name), Some(expected), "{name}");
            assert_eq!(number(&domains, &format!("x.{name}")), None, "{name}");
        }
    }
}
