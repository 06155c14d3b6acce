//! Files of changes.

use packetloom_classify::Action;
use packetloom_classify::formats::changes::{Transaction, read_changes, read_transaction};
use packetloom_classify::live::{Change, Name, Place};

use super::rule;

fn changes(text: &str) -> Result<Vec<Transaction>, String> {
    read_changes("f", &mut text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn every_kind_of_change_is_read() {
    let text = "# before the first packet\nadd permit tcp from any to any port 80 id web\ncommit\n\nat 10\nat 20 # of the run\n\
        add first deny any from any to any\nadd last deny any from any to any\nadd before web deny any from any to any\n\
        add after @3 deny any from any to any\nadd at 7 deny any from any to any\ndelete @0\n\
        replace web permit udp from any to any\ncommit\ndelete web\ncommit\n";
    let read = changes(text).unwrap();
    let web = || Name::Id("web".into());
    let mut first = rule("permit tcp from any to any port 80 id web");
    first.line = 2;
    assert_eq!(
        read[0],
        Transaction { at: 0, changes: vec![Change::Add(Place::Last, first)], lines: vec![2] }
    );
    assert_eq!((read[1].at, &read[1].lines[..]), (20, &[7, 8, 9, 10, 11, 12, 13][..]));
    let places =
        [Place::First, Place::Last, Place::Before(web()), Place::After(Name::Number(3)), Place::At(7)];
    for (change, place) in read[1].changes.iter().zip(places) {
        assert!(
            matches!(change, Change::Add(found, rule) if *found == place && rule.action == Some(Action::Deny))
        );
    }
    assert_eq!(read[1].changes[5], Change::Delete(Name::Number(0)));
    assert!(matches!(&read[1].changes[6], Change::Replace(name, rule) if *name == web() && rule.line == 13));
    assert_eq!(read[2], Transaction { at: 20, changes: vec![Change::Delete(web())], lines: vec![15] });
    assert_eq!(read.len(), 3);
    assert_eq!(changes("at 5\n").unwrap(), []);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let name = "the id of a rule, or @N for the one with number N";
    let rule = "permit any from any to any";
    for (text, message) in [
        ("remove web".into(), "1: \"remove\"; expected at, add, delete, replace or commit".into()),
        ("at".into(), "1: the line ends; expected a number of packets".into()),
        (
            "at 1s".into(),
            "1: number of packets \"1s\"; expected a number from 0 to 18446744073709551615".into(),
        ),
        ("at 5 6".into(), "1: \"6\"; expected the end of the line".into()),
        ("at 5\nat 4".into(), "2: at 4 after at 5; expected 5 or more".into()),
        ("delete a\nat 5".into(), "2: \"at\" inside a transaction; expected commit before it".into()),
        ("\ncommit".into(), "2: commit of nothing; expected add, delete or replace before it".into()),
        ("delete a\ncommit now".into(), "2: \"now\"; expected the end of the line".into()),
        (
            "delete a\n\n# end".into(),
            "1: the file ends inside a transaction; expected commit after it".into(),
        ),
        ("delete".into(), format!("1: the line ends; expected {name}")),
        (
            "delete @x".into(),
            "1: number of a rule \"x\"; expected a number from 0 to 18446744073709551615".into(),
        ),
        ("delete a b".into(), "1: \"b\"; expected the end of the line".into()),
        ("add".into(), "1: the line ends; expected permit, deny or reflect".into()),
        ("add before".into(), format!("1: the line ends; expected {name}")),
        (format!("add at x {rule}"), "1: place \"x\"; expected a number from 0 to 16777216".into()),
        ("replace a allow".into(), "1: \"allow\"; expected permit, deny or reflect".into()),
    ] {
        let (text, message): (String, String) = (text, message);
        assert_eq!(changes(&text), Err(format!("f:{message}")), "{text}");
    }
}

#[test]
fn a_text_is_one_transaction() {
    let text = "# what follows is made as a whole\n\nadd first permit tcp from any to any port 80 id web # the web\ndelete @3\r\n  replace web deny any from any to any";
    let read = read_transaction(text).unwrap();
    assert_eq!(read.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4, 5]);
    // Its rules have no line of a file.
    assert!(
        matches!(&read[0].1, Change::Add(Place::First, rule) if rule.line == 0 && rule.comment.as_deref() == Some("the web"))
    );
    assert_eq!(read[1].1, Change::Delete(Name::Number(3)));
    assert!(matches!(&read[2].1, Change::Replace(Name::Id(id), _) if **id == *"web"));
    assert_eq!(read_transaction("# nothing\n"), Ok(Vec::new()));
    let verbs = "expected add, delete or replace";
    for (text, line, message) in [
        ("delete a\nremove b", 2, format!("\"remove\"; {verbs}")),
        ("at 5", 1, format!("\"at\"; {verbs}: all lines are one transaction")),
        ("delete a\n\ncommit", 3, format!("\"commit\"; {verbs}: all lines are one transaction")),
        ("delete", 1, "the line ends; expected the id of a rule, or @N for the one with number N".into()),
        ("add at 3", 1, "the line ends; expected permit, deny or reflect".into()),
    ] {
        assert_eq!(read_transaction(text), Err((line, message)), "{text}");
    }
}

/// Lists are counted, not spelled out: with a limit for what rule files may become, these would be told otherwise.
#[test]
fn lists_are_refused_before_they_become_rules() {
    let list = |count: u32| (0..count).map(|n| (2 * n).to_string()).collect::<Vec<_>>().join(",");
    for (sources, destinations) in [(2, 1), (1, 3), (1_000, 1_000), (20_000, 30_000)] {
        let change =
            format!("add deny tcp from any port {} to any port {}", list(sources), list(destinations));
        let message = format!("{} rules; expected one, so without lists", sources * destinations);
        assert_eq!(read_transaction(&change), Err((1, message)));
    }
    // Neighbours are one range.
    assert!(read_transaction("add deny udp from any to any port 5,6,7-9").is_ok());
    let refused = read_transaction("replace @1 permit any from 10.0.0.0/8 to 2001:db8::/32");
    assert_eq!(
        refused,
        Err((1, "one address is IPv4 and the other IPv6; expected both of one family".into()))
    );
}
