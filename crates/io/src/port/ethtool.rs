//! What a driver says of an interface (`SIOCETHTOOL`, `linux/ethtool.h`).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// `ETHTOOL_GDRVINFO`, `_GSTRINGS`, `_GSTATS`, `_GFLAGS`, `_GCHANNELS`.
const DRIVER: u32 = 0x03;
const STRINGS: u32 = 0x1b;
const COUNTERS: u32 = 0x1d;
const FLAGS: u32 = 0x25;
const CHANNELS: u32 = 0x3c;
/// `ETH_FLAG_RXVLAN`.
const RECEIVES_TAGS: u32 = 1 << 8;
/// `ETH_SS_STATS`.
const COUNTER_NAMES: u32 = 1;
/// Words of `struct ethtool_drvinfo`, where the driver's name stands in it, and where the number of counters.
const DRIVER_WORDS: usize = 49;
const DRIVER_NAME: std::ops::Range<usize> = 4..36;
const DRIVER_COUNTERS: usize = 45;
/// Words of `struct ethtool_channels`, and the places of the numbers of queues that receive, alone and combined with one that sends.
const CHANNEL_WORDS: usize = 9;
const RECEIVE_CHANNELS: usize = 5;
const COMBINED_CHANNELS: usize = 8;
/// Bytes of a counter's name.
const NAME: usize = 32;
/// Counters that there is room for. The kernel is not told, and writes as many as the driver has: some thousands at most, where a NIC has
/// hundreds of queues. One that says more is not asked.
const MOST_COUNTERS: usize = 1 << 17;

/// The name of an interface's driver. Any socket of the interface's network namespace will do.
pub(super) fn driver(socket: impl AsFd, interface: &str) -> io::Result<String> {
    let words = driver_words(&socket, interface)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(text(&bytes[DRIVER_NAME]))
}

/// Queues by which an interface receives now.
pub(super) fn receive_queues(socket: impl AsFd, interface: &str) -> io::Result<u32> {
    let mut words = [0u32; CHANNEL_WORDS];
    words[0] = CHANNELS;
    // SAFETY: the command writes a `struct ethtool_channels`, which has as many words.
    unsafe { request(socket, interface, words.as_mut_ptr().cast())? };
    Ok(words[RECEIVE_CHANNELS].saturating_add(words[COMBINED_CHANNELS]))
}

/// Whether an interface takes VLAN tags out of the frames that it receives.
pub(super) fn strips_tags(socket: impl AsFd, interface: &str) -> io::Result<bool> {
    let mut words = [FLAGS, 0];
    // SAFETY: the command writes a `struct ethtool_value`, which has as many words.
    unsafe { request(socket, interface, words.as_mut_ptr().cast())? };
    Ok(words[1] & RECEIVES_TAGS != 0)
}

/// Frames that an interface's receive queues had no room for, by the driver's counters of each queue; 0 where it has none of a known name.
pub(super) fn queue_drops(socket: impl AsFd, interface: &str) -> io::Result<u64> {
    let counters = driver_words(&socket, interface)?[DRIVER_COUNTERS] as usize;
    if counters == 0 || counters > MOST_COUNTERS / 8 {
        return Ok(0);
    }
    // As many are written as there are when it is asked: of queues that were added meanwhile, or of another interface that has the name by then.
    // Pages that nobody writes to cost nothing.
    let mut names = vec![0u32; 3 + MOST_COUNTERS * NAME / 4];
    names[..3].copy_from_slice(&[STRINGS, COUNTER_NAMES, counters as u32]);
    // SAFETY: the command writes three words and the names of all counters, of which there is room for more than any driver has.
    unsafe { request(&socket, interface, names.as_mut_ptr().cast())? };
    let mut values = vec![0u64; 1 + MOST_COUNTERS];
    let head = [COUNTERS.to_ne_bytes(), (counters as u32).to_ne_bytes()];
    values[0] = u64::from_ne_bytes(head.as_flattened().try_into().map_err(|_| io::ErrorKind::InvalidData)?);
    // SAFETY: the command writes two words and the values of all counters, of which there is room for more than any driver has.
    unsafe { request(&socket, interface, values.as_mut_ptr().cast())? };
    let names = names[3..].chunks_exact(NAME / 4);
    let drops = names.zip(&values[1..]).take(counters).filter(|(name, _)| {
        let bytes: Vec<u8> = name.iter().flat_map(|word| word.to_ne_bytes()).collect();
        is_queue_drops(&text(&bytes))
    });
    Ok(drops.fold(0, |sum, (_, &value)| sum.wrapping_add(value)))
}

/// Whether a counter of this name has the frames that a receive queue had no room for: `rx_queue_0_drops` (veth), `rx0_drops` (virtio_net).
fn is_queue_drops(name: &str) -> bool {
    let number = name.strip_prefix("rx").and_then(|rest| rest.strip_suffix("_drops"));
    let number = number.map(|number| number.strip_prefix("_queue_").unwrap_or(number));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn driver_words(socket: impl AsFd, interface: &str) -> io::Result<[u32; DRIVER_WORDS]> {
    let mut words = [0u32; DRIVER_WORDS];
    words[0] = DRIVER;
    // SAFETY: the command writes a `struct ethtool_drvinfo`, which has as many words.
    unsafe { request(socket, interface, words.as_mut_ptr().cast())? };
    Ok(words)
}

/// What stands before the first 0.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// # Safety
///
/// `data` must point to memory with room for all that the command in its first word writes.
unsafe fn request(socket: impl AsFd, interface: &str, data: *mut libc::c_char) -> io::Result<()> {
    // SAFETY: all fields are plain numbers, bytes and pointers, for which zeros are values.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()).take(libc::IFNAMSIZ - 1) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = data;
    // SAFETY: the request is one of this call's type and lives as long as the call, and so does what it points to, by the caller's word.
    let result: c_int =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_queues_are_told_from_others() {
        for name in ["rx_queue_0_drops", "rx_queue_17_drops", "rx0_drops"] {
            assert!(is_queue_drops(name), "{name}");
        }
        for name in
            ["rx_queue_0_xdp_drops", "rx_drops", "rx_queue__drops", "tx_queue_0_drops", "rx_queue_0_drops2"]
        {
            assert!(!is_queue_drops(name), "{name}");
        }
    }
}
