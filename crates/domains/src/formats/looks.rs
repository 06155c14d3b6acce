//! What a file looks like.

use super::{Format, adblock, before, hosts, rpz, words};

/// The format that most lines of the beginning look like; those that more than one format has count for none. Plain, if none does.
pub(super) fn like(head: &[u8]) -> Format {
    let mut votes = [0usize; Format::ALL.len()];
    for format in head.split(|&byte| byte == b'\n').filter_map(vote) {
        votes[format as usize] += 1;
    }
    let most = votes.into_iter().max().filter(|&most| most > 0);
    Format::ALL.into_iter().find(|&format| Some(votes[format as usize]) == most).unwrap_or(Format::Plain)
}

fn vote(line: &[u8]) -> Option<Format> {
    let line = line.trim_ascii();
    match line {
        [] => return None,
        [b'!' | b'|', ..] | [b'@', b'@', ..] | [b'[', .., b']'] => return Some(Format::AdBlock),
        [b';' | b'$', ..] => return Some(Format::Rpz),
        [b'#', ..] => return None,
        _ if adblock::is_cosmetic(line) => return Some(Format::AdBlock),
        _ => {}
    }
    let line = before(line, b'#');
    let mut all = words(line);
    let first = all.next()?;
    let Some(second) = all.next() else { return Some(Format::Plain) };
    if hosts::first(first).is_some() && !rpz::is_keyword(second) {
        return Some(Format::Hosts);
    }
    words(line).skip(1).take(3).any(rpz::is_keyword).then_some(Format::Rpz)
}
