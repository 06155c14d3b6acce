//! Packet sockets and their options (packet(7)): the system calls that rustix does not have.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Opens a packet socket that receives nothing until it is [bound](bind).
pub(in super::super) fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// What a socket bound to an interface gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocols {
    /// Frames of all protocols.
    All,
    /// Nothing: it is for sending.
    None,
}

/// Binds a packet socket to an interface; one that is bound already moves.
pub(super) fn bind(socket: impl AsFd, index: u32, protocols: Protocols) -> io::Result<()> {
    let protocol = match protocols {
        Protocols::All => (libc::ETH_P_ALL as u16).to_be(),
        Protocols::None => 0,
    };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: index as c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the address is valid for reads of the length that is given with it, and the kernel keeps no pointer to it.
    let result = unsafe {
        libc::bind(
            socket.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    check(result)
}

/// Switches an option of packet sockets (`PACKET_*`) that is a number.
pub(super) fn set_number(socket: impl AsFd, option: c_int, value: c_int) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, option, &value)
}

/// Whether an interface of the socket's network namespace is up and has a carrier; no where that cannot be told.
pub(super) fn is_running(socket: impl AsFd, interface: &str) -> bool {
    // SAFETY: all fields are plain numbers and bytes, for which zeros are values.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()).take(libc::IFNAMSIZ - 1) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request is one of this call's type, and lives as long as the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    // SAFETY: the call has written this member where it succeeded, and a number it is in any case.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    result == 0 && c_int::from(flags) & libc::IFF_RUNNING != 0
}

/// Makes the receive ring. It must be made before the socket is bound, and with what it is to hold set.
pub(super) fn set_ring(socket: impl AsFd, ring: &libc::tpacket_req) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, ring)
}

/// Has the interface receive frames for others too, as long as the socket is open.
pub(in super::super) fn set_promiscuous(socket: impl AsFd, index: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Which frames a socket takes, by their length without a VLAN tag, and how much of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    /// All; so many bytes of each.
    Snapped(u32),
    /// Those of up to so many bytes.
    UpTo(u32),
    /// Those of more bytes.
    Above(u32),
    /// None.
    None,
}

/// Attaches a filter by length (classic BPF), which also says how many bytes of a frame are wanted.
pub(super) fn set_filter(socket: impl AsFd, lengths: Lengths) -> io::Result<()> {
    const ALL: u32 = u32::MAX;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (limit, at_most, above) = match lengths {
        Lengths::Snapped(len) => (0, len, len),
        Lengths::UpTo(limit) => (limit, ALL, 0),
        Lengths::Above(limit) => (limit, 0, ALL),
        Lengths::None => (0, 0, 0),
    };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, 0, limit),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, at_most),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, above),
    ];
    // The kernel copies the program while the option is set.
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Frames that came for a ring since the last call, those dropped for lack of room included, and those dropped.
pub(super) fn take_statistics(socket: impl AsFd) -> io::Result<(u32, u32)> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: `statistics` is valid for writes of `len` bytes, and both live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut len,
        )
    };
    check(result)?;
    Ok((statistics.tp_packets, statistics.tp_drops))
}

fn set<T>(socket: impl AsFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size, and the kernel keeps no pointer to it. What a value points to itself (a filter's
    // program) lives in the caller until this returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    check(result)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
