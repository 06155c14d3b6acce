//! Hosts files (hosts(5)).

use std::net::IpAddr;

use super::{List, Reason, address, before, is_local, words};
use crate::builder::Reach;

/// Whether an address is one that names are led to in order to be blocked.
fn leads_nowhere(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// The address that a line begins with: 0 is one of IPv4, and IPv6 may have a zone.
pub(super) fn first(word: &[u8]) -> Option<IpAddr> {
    if word == b"0" {
        return Some(IpAddr::from([0, 0, 0, 0]));
    }
    address(before(word, b'%'))
}

pub(super) fn read(line: &[u8], list: &mut List<'_>) {
    let line = before(line, b'#').trim_ascii();
    let mut words = words(line);
    let Some(word) = words.next() else { return };
    let Some(address) = first(word) else { return list.refuse(line, Reason::NoAddress) };
    let reach = list.options.reach.unwrap_or(Reach::Name);
    let mut is_empty = true;
    for name in words {
        is_empty = false;
        if is_local(name) {
            list.report.passed_over += 1;
        } else if leads_nowhere(address) {
            list.add_host(name, reach, list.options.action, list.options.priority);
        } else {
            list.refuse(name, Reason::Host);
        }
        if list.is_full {
            return;
        }
    }
    if is_empty {
        list.refuse(line, Reason::NoName);
    }
}
