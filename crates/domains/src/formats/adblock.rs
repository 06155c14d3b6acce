//! Rules of AdBlock about names: what a resolver can follow of the syntax of Adblock Plus, uBlock Origin and AdGuard.

use super::{List, Reason, before};
use crate::builder::{Action, Priority, Reach};

/// What cosmetic rules and snippets have between pages and what they do.
const COSMETIC: [&[u8]; 8] = [b"##", b"#@#", b"#?#", b"#@?#", b"#$#", b"#@$#", b"#%#", b"$$"];

pub(super) fn is_cosmetic(line: &[u8]) -> bool {
    memchr::memchr2(b'#', b'$', line).is_some()
        && COSMETIC.iter().any(|mark| memchr::memmem::find(line, mark).is_some())
}

pub(super) fn read(line: &[u8], list: &mut List<'_>) {
    let line = line.trim_ascii();
    match line {
        // Comments; and a header such as [Adblock Plus 2.0].
        [] | [b'!', ..] | [b'[', .., b']'] => return,
        _ if is_cosmetic(line) => return list.refuse(line, Reason::Cosmetic),
        [b'#', ..] => return,
        _ => {}
    }
    match rule(line) {
        Ok((name, reach, action, priority)) => list.add_host(name, reach, action, priority),
        Err(reason) => list.refuse(line, reason),
    }
}

fn rule(line: &[u8]) -> Result<(&[u8], Reach, Action, Priority), Reason> {
    let (rule, action) = match line.strip_prefix(b"@@") {
        Some(rule) => (rule, Action::Allow),
        None => (line, Action::Block),
    };
    if rule.starts_with(b"/") {
        return Err(Reason::Expression);
    }
    let pattern = before(rule, b'$');
    let mut is_important = false;
    if let Some(options) = rule.get(pattern.len() + 1..) {
        for option in options.split(|&byte| byte == b',') {
            match option.trim_ascii() {
                b"all" => {}
                b"important" => is_important = true,
                _ => return Err(Reason::Option),
            }
        }
    }
    let (rest, reach) = match pattern {
        [b'|', b'|', b'*', b'.', rest @ ..] => (rest, Reach::Subdomains),
        [b'|', b'|', rest @ ..] => (rest, Reach::All),
        [b'|', rest @ ..] => (rest, Reach::Name),
        _ if pattern.contains(&b'/') => return Err(Reason::Path),
        _ => return Err(Reason::Pattern),
    };
    if rest.iter().any(|byte| matches!(byte, b'/' | b':')) {
        return Err(Reason::Path);
    }
    // A mark of the end may follow that of the name's end.
    let name = rest.strip_suffix(b"|").unwrap_or(rest).strip_suffix(b"^").ok_or(Reason::Pattern)?;
    if name.iter().any(|byte| matches!(byte, b'^' | b'|')) {
        return Err(Reason::Pattern);
    }
    // The root's name would be that of all.
    if name == b"." {
        return Err(Reason::Pattern);
    }
    let priority = match (is_important, action) {
        (false, Action::Block) => Priority::Normal,
        (false, Action::Allow) => Priority::Exception,
        (true, Action::Block) => Priority::Important,
        (true, Action::Allow) => Priority::ImportantException,
    };
    Ok((name, reach, action, priority))
}
