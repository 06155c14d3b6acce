//! What constructs without an equal have in common, so that many of them can be told in a few words.

/// Options of iptables whose value says which construct it is.
const NAMED_BY_VALUE: [&str; 6] = ["-m", "--match", "-j", "--jump", "-g", "--goto"];
/// Bytes of a construct that are shown.
const SHOWN: usize = 80;

/// The construct that a message is about, without its values: `-m limit`, `-o`, `dscp`.
pub(super) fn construct(message: &str) -> String {
    // Constructs stand between backquotes, several with commas between.
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let text = if !quoted.is_empty() && message.matches('`').count().is_multiple_of(2) {
        let mut constructs: Vec<String> = quoted.into_iter().map(of_option).collect();
        constructs.dedup();
        constructs.join(", ")
    } else if let Some((_, word)) = message
        .split_once(" has no equal")
        .and_then(|(before, _)| before.strip_suffix('"').and_then(|before| before.rsplit_once('"')))
    {
        // A word and its value.
        word.split(' ').next().unwrap_or(word).to_owned()
    } else {
        message.split(" has no equal").next().unwrap_or(message).to_owned()
    };
    text[..text.floor_char_boundary(SHOWN)].to_owned()
}

/// An option of iptables without its value, unless the value is what has no equal; anything else as it is.
fn of_option(construct: &str) -> String {
    let mut words = construct.split(' ');
    let negation = if construct.starts_with("! ") { words.next() } else { None };
    match words.next() {
        Some(option) if option.starts_with('-') => {
            let value = words.next().filter(|_| NAMED_BY_VALUE.contains(&option));
            negation.into_iter().chain([option]).chain(value).collect::<Vec<_>>().join(" ")
        }
        _ => construct.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::construct;

    #[test]
    fn values_do_not_tell_constructs_apart() {
        for (message, expected) in [
            ("`-m limit` has no equal here", "-m limit"),
            ("`-o eth0` has no equal here", "-o"),
            ("`! -o eth0` has no equal here", "! -o"),
            ("`-j MARK`, `-m mark` have no equal here", "-j MARK, -m mark"),
            ("inet t input handle 9: `meta oifname`, `limit` have no equal here", "meta oifname, limit"),
            ("\"dscp\" has no equal among our rules", "dscp"),
            ("\"rate 100\" has no equal among our rules", "rate"),
            ("a rule of table mangle has no equal here", "a rule of table mangle"),
            (
                "sport or dport with proto 47, which VPP does not look at",
                "sport or dport with proto 47, which VPP does not look at",
            ),
            ("a lone ` has no equal here", "a lone `"),
        ] {
            assert_eq!(construct(message), expected, "{message}");
        }
    }
}
