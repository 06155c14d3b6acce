//! The lines of a configuration that begin a list or a group, and lines that look as if they did.
//!
//! A line that begins like a list is understood or refused: passed over, all of its entries would be missing.

use super::super::text::is_near;
use super::config::{GroupKind, Kind};

/// What a line begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header<'a, 'w> {
    /// An entry of a numbered list, in the same line.
    Entry(Kind, &'a str, &'w [&'a str]),
    /// A list, whose entries follow.
    List(Kind, &'a str),
    /// A group, whose members follow.
    Group(GroupKind, &'a str),
    /// The end of a list: of IPv6, and its name.
    NoList(bool, &'a str),
    /// The end of a group.
    NoGroup(&'a str),
    /// Something about lists that decides over no IP packet, such as a setting or a list of another protocol.
    Other,
}

/// What a line of these words begins; `None` where it begins no list and no group.
///
/// # Errors
///
/// The line begins like a list or a group and is none: what stands there and what was expected.
pub(super) fn header<'a, 'w>(words: &'w [&'a str]) -> Result<Option<Header<'a, 'w>>, String> {
    let [first, rest @ ..] = words else { return Ok(None) };
    match (*first, rest) {
        ("no", ["access-list", number, ..]) => {
            Ok(Some(numbered(number, &["permit"])?.map_or(Header::Other, |_| Header::NoList(false, number))))
        }
        ("no", _) => Ok(header(rest)?.map(|header| match header {
            Header::List(kind, name) => Header::NoList(kind == Kind::V6, name),
            Header::Group(_, name) => Header::NoGroup(name),
            header => header,
        })),
        ("access-list", [number, entry @ ..]) => {
            let kind = numbered(number, entry)?;
            if kind.is_some() && entry.is_empty() {
                return Err(format!(
                    "access-list {number} without an entry; expected permit, deny or remark"
                ));
            }
            Ok(Some(kind.map_or(Header::Other, |kind| Header::Entry(kind, number, entry))))
        }
        ("ip", ["access-list", rest @ ..]) => ip(rest).map(Some),
        ("ipv6", ["access-list", rest @ ..]) => ipv6(rest).map(Some),
        ("object-group", rest) => group(rest).map(Some),
        _ if is_foreign(words) => Ok(Some(Header::Other)),
        _ => match shown(words)? {
            None if looks_like_one(words) => Err(format!(
                "{:?} looks like the beginning of a list or a group; expected it as IOS writes it, such as \
                 \"ip access-list extended NAME\"",
                words.join(" ")
            )),
            header => Ok(header),
        },
    }
}

/// The kind of a numbered list; none where its number, or the word in its place, is about no IP packets.
fn numbered(number: &str, entry: &[&str]) -> Result<Option<Kind>, String> {
    let is_asa = matches!(entry.first(), Some(&("extended" | "standard" | "ethertype" | "webtype" | "line")));
    let value = if number.bytes().all(|byte| byte.is_ascii_digit()) { number.parse().ok() } else { None };
    match (value, number) {
        _ if is_asa => {}
        (Some(1..=99u32 | 1300..=1999), _) => return Ok(Some(Kind::Standard)),
        (Some(100..=199 | 2000..=2699), _) => return Ok(Some(Kind::Extended)),
        // Type codes, DECnet, XNS, AppleTalk, MAC addresses, IPX.
        (Some(200..=1299), _) | (None, "compiled" | "dynamic-extended" | "rate-limit") => return Ok(None),
        (Some(_), _) => {
            return Err(format!("access-list {number}; expected a number of 1-199, 1300-1999 or 2000-2699"));
        }
        (None, _) => {}
    }
    Err(format!(
        "\"access-list {number} {}\" is the syntax of Cisco ASA, which is not read; expected that of IOS, such as \
         \"access-list 101 permit …\" or \"ip access-list extended NAME\"",
        entry.first().copied().unwrap_or_default()
    ))
}

/// What stands behind `ip access-list`.
fn ip<'a, 'w>(rest: &[&'a str]) -> Result<Header<'a, 'w>, String> {
    Ok(match *rest {
        ["standard", name] => Header::List(Kind::Standard, name),
        ["extended", name] => Header::List(Kind::Extended, name),
        ["role-based", name] => Header::List(Kind::Other, name),
        ["match-local-traffic" | "persistent"] | ["log-update" | "logging" | "helper", _, ..] => {
            Header::Other
        }
        _ => {
            return Err(format!(
                "{:?} after \"ip access-list\"; expected standard or extended, and a name",
                rest.join(" ")
            ));
        }
    })
}

/// What stands behind `ipv6 access-list`.
fn ipv6<'a, 'w>(rest: &[&'a str]) -> Result<Header<'a, 'w>, String> {
    Ok(match *rest {
        ["role-based", name] => Header::List(Kind::Other, name),
        ["log-update", _, ..] => Header::Other,
        [name] => Header::List(Kind::V6, name),
        _ => {
            return Err(format!(
                "{:?} after \"ipv6 access-list\"; expected a name and nothing else",
                rest.join(" ")
            ));
        }
    })
}

/// What stands behind `object-group`. An entry that uses a group of another kind is refused.
fn group<'a, 'w>(rest: &[&'a str]) -> Result<Header<'a, 'w>, String> {
    Ok(match *rest {
        ["network", name] => Header::Group(GroupKind::Network, name),
        ["v6-network", name] => Header::Group(GroupKind::V6Network, name),
        ["service" | "v6-service", name] => Header::Group(GroupKind::Service, name),
        ["security" | "fqdn", _] => Header::Other,
        _ => {
            return Err(format!(
                "{:?} after \"object-group\"; expected network, v6-network, service or v6-service, and a name",
                rest.join(" ")
            ));
        }
    })
}

/// The header of a list in what `show access-lists` prints.
fn shown<'a, 'w>(words: &[&'a str]) -> Result<Option<Header<'a, 'w>>, String> {
    let (kind, name, notes) = match *words {
        ["Standard", "IP", "access", "list", name, ref notes @ ..] => (Kind::Standard, name, notes),
        ["Extended", "IP", "access", "list", name, ref notes @ ..] => (Kind::Extended, name, notes),
        ["IPv6", "access", "list", name, ref notes @ ..] => (Kind::V6, name, notes),
        ["Reflexive" | "Role-based", "IP", "access", "list", name, ref notes @ ..] => {
            (Kind::Other, name, notes)
        }
        _ => return Ok(None),
    };
    // Notes such as "(Compiled)" or "(12 matches)", and the direction of an interface's list.
    let text = notes.join(" ");
    let mut left = text.as_str();
    let mut kind = kind;
    loop {
        left = left.trim_ascii_start();
        left = match (left, left.strip_prefix('(').and_then(|rest| rest.split_once(')'))) {
            ("" | "in" | "out", _) => return Ok(Some(Header::List(kind, name))),
            // Its entries come and go.
            (_, Some(("reflexive", rest))) => {
                kind = Kind::Other;
                rest
            }
            (_, Some((_, rest))) => rest,
            (_, None) => {
                return Err(format!(
                    "{left:?} after the name of access list {name}; expected nothing, or a note in ()"
                ));
            }
        };
    }
}

/// Whether words begin a list of another protocol than IP.
fn is_foreign(words: &[&str]) -> bool {
    matches!(
        *words,
        ["mac" | "arp" | "ipx" | "appletalk", "access-list", ..]
            | ["Extended", "MAC", "access", "list", ..]
            | ["Bridge", "address", "access", "list", ..]
            | ["Type", "code", "access", "list", ..]
            | ["IPX" | "Novell" | "AppleTalk" | "Appletalk" | "DECnet" | "XNS", "access", "list", ..]
    )
}

/// Whether words look like the beginning of a list or a group, but for typing errors, case, abbreviations or a prompt.
fn looks_like_one(words: &[&str]) -> bool {
    const LIST: &str = "access-list";
    let lower: Vec<String> = words.iter().take(6).map(|word| word.to_ascii_lowercase()).collect();
    let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    // Commands that print, and the fields of what they print.
    if matches!(lower[0], "show" | "sh" | "do" | "clear" | "debug" | "undebug") {
        return false;
    }
    let begins = |word: &str, whole: &str, len: usize| word.len() >= len && whole.starts_with(word);
    let is_list = |word: &str| begins(word, LIST, 8) || is_near(word, LIST, 2);
    let is_ip = |word: &str| word != "ipx" && ["ip", "ipv4", "ipv6"].iter().any(|ip| is_near(word, ip, 1));
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let decides = |word: &str| ["permit", "deny", "remark"].iter().any(|whole| begins(word, whole, 1));
    let is_kind = |word: &str| ["standard", "extended"].iter().any(|whole| begins(word, whole, 1));
    match *lower.as_slice() {
        [first, ..] if is_list(first) || is_near(first, "object-group", 2) => true,
        [first, number, action, ..] if begins(first, LIST, 2) && is_number(number) && decides(action) => true,
        [first, second, ..] if is_ip(first) && is_list(second) => true,
        ["ip", second, kind, _, ..] if begins(second, LIST, 2) && is_kind(kind) => true,
        ["ipv6", second, _, ..] if begins(second, LIST, 3) => true,
        ["default", ref rest @ ..] if !rest.is_empty() => {
            matches!(header(&words[1..]), Err(_) | Ok(Some(Header::List(..) | Header::Group(..))))
        }
        // What other commands than those of IOS print.
        [first, "access", "list", _, ..] if is_ip(first) => true,
        [kind, first, "access", "list", _, ..] if is_ip(first) => {
            ["standard", "extended", "reflexive", "role-based"].iter().any(|whole| is_near(kind, whole, 3))
        }
        _ => behind_prompt(words),
    }
}

/// Whether the words behind a prompt, such as `R1(config)#access-list`, begin a list or an entry.
fn behind_prompt(words: &[&str]) -> bool {
    let Some((_, rest)) = words[0].rsplit_once(['#', '>']).filter(|(prompt, _)| !prompt.is_empty()) else {
        return false;
    };
    let mut command: Vec<&str> = words[1..].to_vec();
    if !rest.is_empty() {
        command.insert(0, rest);
    }
    super::config::decides(&command) || !matches!(header(&command), Ok(None))
}
