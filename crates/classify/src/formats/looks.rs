//! What a file looks like that holds no rules that are read here, and what makes rules of it that are.

use super::{FORMATS, Format, text};

/// What a file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    /// Such as "a capture".
    pub what: &'static str,
    /// What to do with it where rules are expected.
    pub advice: &'static str,
}

const fn looks(what: &'static str, advice: &'static str) -> Option<Looks> {
    Some(Looks { what, advice })
}

/// Beginnings of files that are no text.
const BINARY: [(&[u8], &str, &str); 14] = [
    (b"\xd4\xc3\xb2\xa1", CAPTURE, CAPTURES),
    (b"\xa1\xb2\xc3\xd4", CAPTURE, CAPTURES),
    (b"\x4d\x3c\xb2\xa1", CAPTURE, CAPTURES),
    (b"\xa1\xb2\x3c\x4d", CAPTURE, CAPTURES),
    (b"\x0a\x0d\x0d\x0a", CAPTURE, CAPTURES),
    (b"\x1f\x8b", "something that was compressed twice, by gzip", "use gzip -d"),
    (b"\xfd7zXZ\0", "something that was compressed twice, by xz", "use xz -d"),
    (b"PK\x03\x04", "a zip archive", "use unzip"),
    (b"BZh", "something compressed by bzip2", "use bzip2 -d; gzip and xz are read as they are"),
    (b"\x28\xb5\x2f\xfd", "something compressed by zstd", "use zstd -d; gzip and xz are read as they are"),
    (b"\x7fELF", "a program", "expected a text of rules"),
    (b"%PDF", "a PDF document", "expected a text of rules"),
    (b"\xff\xfe", "a text in UTF-16", "use iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "a text in UTF-16", "use iconv -f UTF-16 -t UTF-8"),
];
const CAPTURE: &str = "a capture of packets";
const CAPTURES: &str = "expected rules here; captures are what -r of run and meter reads";
/// What lines of our own rules begin with.
const NATIVE: [&str; 5] = ["permit", "deny", "reflect", "default", "set"];
/// Bytes that are looked at.
const HEAD: usize = 1 << 12;

/// What bytes look like that no text of rules begins with.
pub(super) fn binary(head: &[u8]) -> Option<Looks> {
    let (_, what, advice) = BINARY.iter().find(|(beginning, ..)| head.starts_with(beginning))?;
    looks(what, advice)
}

/// What a text looks like that is of none of the formats; `None` where it may be of our own.
pub(super) fn text(head: &str) -> Option<Looks> {
    let head = &head[..head.floor_char_boundary(HEAD)];
    let lines =
        || head.lines().map(str::trim_ascii).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(first) = lines().next() else {
        // A script may be nothing but comments so far.
        return if head.starts_with("#!") {
            looks("a script", "run it, and use iptables-save or nft -j list ruleset")
        } else {
            None
        };
    };
    let lower = first.to_ascii_lowercase();
    let begins = |words: &[&str]| words.iter().any(|word| lower.starts_with(word));
    let any_begins = |words: &[&str]| lines().any(|line| words.iter().any(|word| line.starts_with(word)));
    if begins(&["<!doctype html", "<html"]) {
        return looks(
            "a web page (HTML)",
            "expected the file itself; on a web page it is often behind \"raw\"",
        );
    }
    if begins(&["<?xml", "<"]) {
        return looks("XML", "expected rules, one a line");
    }
    if begins(&["chain "]) && (first.contains("(policy ") || first.contains(" references)")) {
        return looks("the output of iptables -L", "use iptables-save");
    }
    if any_begins(&[
        "iptables ",
        "ip6tables ",
        "/sbin/iptables ",
        "/usr/sbin/iptables ",
        "sudo iptables ",
        "$IPT",
    ]) {
        return looks("commands of iptables", "run them, and use iptables-save");
    }
    if begins(&["table ", "flush ruleset", "chain ", "nft ", "add rule ", "add table ", "define "])
        || head.starts_with("#!/usr/sbin/nft")
    {
        return looks("a ruleset of nftables as text", "use nft -j list ruleset");
    }
    if begins(&["ufw ", "status: active", "status: inactive"]) {
        return looks("what ufw takes or prints", "use iptables-save");
    }
    if begins(&["pass ", "block ", "pf_enable", "scrub "]) {
        return looks(
            "rules of pf",
            "expected one of the formats of docs/rule-formats.md: pf's are not read",
        );
    }
    if begins(&["[[chain]]", "[source]", "[sink]", "[run]", "[flows."]) {
        return looks("a chain file", "use packetloom run or packetloom check");
    }
    if begins(&[
        "building configuration",
        "current configuration",
        "hostname ",
        "interface ",
        "version ",
        "service ",
    ]) || (head.starts_with('!') && any_begins(&["interface ", "hostname ", "version "]))
    {
        return looks(
            "a Cisco configuration without an access list in its first 64 KiB",
            "use show access-lists, or all of show running-config",
        );
    }
    let words: Vec<&str> = first.split_ascii_whitespace().collect();
    let entry = match *words {
        [number, ref rest @ ..] if number.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        ref all => all,
    };
    if let ["permit" | "deny", rest @ ..] = entry
        && rest.len() > 1
        && !rest.contains(&"from")
        && !rest.contains(&"to")
        && rest.iter().any(|word| matches!(*word, "any" | "host" | "eq" | "range" | "object-group"))
    {
        return looks(
            "entries of a Cisco access list without its first line",
            "expected \"ip access-list extended NAME\" before them; use show access-lists",
        );
    }
    if words.contains(&">") && !NATIVE.contains(&words[0]) {
        return looks(
            "headers of packets",
            "expected rules; headers are what --headers of acl classify reads",
        );
    }
    None
}

/// What the beginning of a file looks like, where something else than rules is expected.
pub fn looks_like(head: &[u8]) -> Option<String> {
    if let Some(Looks { what, .. }) = binary(head) {
        return Some(what.into());
    }
    let head = match std::str::from_utf8(head) {
        Ok(text) => text,
        // It may end within a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if head.contains(|c: char| c.is_control() && !c.is_ascii_whitespace()) {
        return None;
    }
    if let Some(Looks { what, .. }) = text(head) {
        return Some(what.into());
    }
    let format = FORMATS.iter().find(|description| (description.recognises)(head))?;
    let first = text::first_line(head);
    let is_native = first.split_ascii_whitespace().next().is_some_and(|word| NATIVE.contains(&word));
    Some(match format.format {
        Format::Native if !is_native => "text".into(),
        Format::Nftables => "JSON".into(),
        format => format!("rules ({format})"),
    })
}
