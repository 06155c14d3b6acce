//! A name a line.

use super::{List, Reason, before, words};
use crate::builder::Reach;

pub(super) fn read(line: &[u8], list: &mut List<'_>) {
    let line = before(line, b'#').trim_ascii();
    if line.is_empty() {
        return;
    }
    if words(line).nth(1).is_some() {
        return list.refuse(line, Reason::Words);
    }
    let (name, reach) = match line {
        [b'*', b'.', name @ ..] if !name.is_empty() => (name, Reach::Subdomains),
        [b'.', name @ ..] if !name.is_empty() => (name, Reach::All),
        name => (name, list.options.reach.unwrap_or(Reach::All)),
    };
    // The root is hardly meant.
    if name == b"." {
        return list.refuse(line, Reason::Character);
    }
    list.add_host(name, reach, list.options.action, list.options.priority);
}
