//! Network interfaces: what is known of them, and what happens to them (rtnetlink(7)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::netlink::{self, DONE, DUMP, ERROR, Message, Netlink, REQUEST, Request};
use crate::Error;

pub(super) const NEW_LINK: u16 = 16;
pub(super) const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
/// The group of changes of links, as a mask.
const LINK_GROUP: u32 = 1;
/// `IFLA_IFNAME`, `IFLA_MTU`, `IFLA_MASTER`, `IFLA_LINKINFO`, `IFLA_IFALIAS`, `IFLA_NUM_RX_QUEUES`.
pub(super) const NAME: u16 = 3;
const MTU: u16 = 4;
pub(super) const MASTER: u16 = 10;
pub(super) const INFO: u16 = 18;
pub(super) const ALIAS: u16 = 20;
const QUEUES: u16 = 32;
/// `IFLA_INFO_KIND`.
pub(super) const INFO_KIND: u16 = 1;
/// `IFF_UP`: somebody wants it to be up. `IFF_LOWER_UP`: it has a carrier, and its peer is up.
pub(super) const UP: u32 = 1;
const LOWER_UP: u32 = 1 << 16;
/// Bytes of `struct ifinfomsg`.
pub(super) const HEADER: usize = 16;
/// The longest name of an interface, and its 0.
pub(super) const LONGEST_NAME: usize = 16;

/// A network interface, as it was when it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number. It may be given again, to an interface that comes back from another namespace for instance.
    pub index: u32,
    /// Its name, which may change and may be given to another one later.
    pub name: String,
    /// Its hardware type (`ARPHRD_*`): 1 is Ethernet.
    pub hardware: u16,
    /// Bytes of the longest packet, without the link header.
    pub mtu: u32,
    /// Queues by which it may receive; it may use fewer.
    pub queues: u32,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether it has a carrier: a cable with somebody at the other end, or a peer that is switched on.
    pub has_carrier: bool,
    /// The index of the bridge, or of another interface, that it is a port of.
    pub master: Option<u32>,
    /// What it is, where it is virtual: `veth`, `bridge`.
    pub kind: String,
    /// What somebody has written about it.
    pub alias: String,
}

/// Something that happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It was added, or something of it changed, the name perhaps.
    Changed(Link),
    /// It was removed from this network namespace.
    Removed(Link),
    /// Events were lost: ask for the state of the interfaces of interest.
    Lost,
}

/// Tells what happens to interfaces from when it is opened.
#[derive(Debug)]
pub struct LinkMonitor(Netlink);

impl LinkMonitor {
    /// Opens a monitor for the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::Links`]: the kernel refuses.
    pub fn open() -> Result<Self, Error> {
        Netlink::open(None, LINK_GROUP).map(Self).map_err(links_error)
    }

    /// The next event, if there is one; it does not wait. To wait, see [`AsFd`].
    ///
    /// # Errors
    ///
    /// [`Error::Links`]: the kernel refuses.
    pub fn next_event(&mut self) -> Result<Option<LinkEvent>, Error> {
        loop {
            let message = match self.0.receive() {
                Ok(message) => message,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::NOBUFS) => return Ok(Some(LinkEvent::Lost)),
                Err(error) => return Err(links_error(error.into())),
            };
            let event = match message.kind {
                NEW_LINK => Link::of(message).map(LinkEvent::Changed),
                DELETE_LINK => Link::of(message).map(LinkEvent::Removed),
                _ => None,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Link {
    /// The interface of this name, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterface`]: there is none. [`Error::Links`]: the kernel does not tell.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        // A longer name would be refused as a malformed request.
        if (1..LONGEST_NAME).contains(&name.len()) && !name.contains('\0') {
            let mut socket = Netlink::open(None, 0).map_err(links_error)?;
            let mut request = Request::default();
            request.message(GET_LINK, REQUEST, 1, &[0; HEADER], |attributes| attributes.string(NAME, name));
            match socket.send(&request).and_then(|()| answer(&mut socket)) {
                Ok(Some(link)) => return Ok(link),
                Ok(None) | Err(Errno::NODEV) => {}
                Err(error) => return Err(links_error(error.into())),
            }
        }
        let present = Self::all()?.into_iter().map(|link| link.name).collect::<Vec<_>>().join(", ");
        Err(Error::NoInterface { interface: name.into(), present })
    }

    /// All interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Links`]: the kernel does not tell.
    pub fn all() -> Result<Vec<Self>, Error> {
        list().map_err(links_error)
    }

    /// From a message about a link; `None` where it is about something else, such as its place in a bridge.
    fn of(message: Message<'_>) -> Option<Self> {
        let header: &[u8; HEADER] = message.payload.first_chunk()?;
        let &[family, _, h0, h1, i0, i1, i2, i3, f0, f1, f2, f3, ..] = header;
        if family != 0 {
            return None;
        }
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let mut link = Self {
            index: u32::from_ne_bytes([i0, i1, i2, i3]),
            hardware: u16::from_ne_bytes([h0, h1]),
            queues: 1,
            is_up: flags & UP != 0,
            has_carrier: flags & LOWER_UP != 0,
            ..Self::default()
        };
        for (kind, value) in netlink::attributes(&message.payload[HEADER..]) {
            match kind {
                NAME => link.name = text(value),
                ALIAS => link.alias = text(value),
                INFO => {
                    let kinds = netlink::attributes(value).filter(|&(kind, _)| kind == INFO_KIND);
                    kinds.for_each(|(_, value)| link.kind = text(value));
                }
                MASTER => link.master = value.first_chunk().map(|&index| u32::from_ne_bytes(index)),
                MTU => link.mtu = value.first_chunk().map_or(0, |&mtu| u32::from_ne_bytes(mtu)),
                QUEUES => link.queues = value.first_chunk().map_or(1, |&queues| u32::from_ne_bytes(queues)),
                _ => {}
            }
        }
        Some(link)
    }
}

/// A string, which ends with 0 or the attribute.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// The answer to a question for one link.
fn answer(socket: &mut Netlink) -> Result<Option<Link>, Errno> {
    let message = socket.receive()?;
    match message.kind {
        NEW_LINK => Ok(Link::of(message)),
        ERROR => message.error().map(|()| None),
        _ => Ok(None),
    }
}

fn list() -> io::Result<Vec<Link>> {
    let mut socket = Netlink::open(None, 0)?;
    let mut request = Request::default();
    request.message(GET_LINK, REQUEST | DUMP, 1, &[0; HEADER], |_| {});
    socket.send(&request)?;
    let mut links = Vec::new();
    loop {
        let message = socket.receive()?;
        match message.kind {
            NEW_LINK => links.extend(Link::of(message)),
            ERROR => message.error()?,
            DONE => return Ok(links),
            _ => {}
        }
    }
}

pub(super) fn links_error(source: io::Error) -> Error {
    Error::Links { source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as `ip monitor` would see it.
    fn message(kind: u16, family: u8, name: &str) -> Vec<u8> {
        let mut header = [0; HEADER];
        header[0] = family;
        header[2..4].copy_from_slice(&1u16.to_ne_bytes());
        header[4..8].copy_from_slice(&42u32.to_ne_bytes());
        header[8..12].copy_from_slice(&(UP | 1 << 6).to_ne_bytes());
        let mut request = Request::default();
        request.message(kind, 0, 0, &header, |attributes| {
            attributes.put(99, &[1, 2, 3]);
            attributes.string(NAME, name);
            attributes.put(MTU, &9_000u32.to_ne_bytes());
            attributes.put(QUEUES, &4u32.to_ne_bytes());
            attributes.put(MASTER, &7u32.to_ne_bytes());
            attributes.string(ALIAS, "to the office");
            attributes.nested(INFO, |info| {
                info.put(99, &[1]);
                info.string(INFO_KIND, "veth");
            });
        });
        request.bytes().to_vec()
    }

    #[test]
    fn links_are_read_from_messages() {
        let bytes = message(NEW_LINK, 0, "eth0");
        let (parsed, _) = netlink::split_message(&bytes).expect("a message");
        let link = Link::of(parsed).expect("a link");
        let expected = Link {
            index: 42,
            name: "eth0".into(),
            hardware: 1,
            mtu: 9_000,
            queues: 4,
            is_up: true,
            has_carrier: false,
            master: Some(7),
            kind: "veth".into(),
            alias: "to the office".into(),
        };
        assert_eq!(link, expected);
        // That an interface leaves a bridge (AF_BRIDGE) does not say that it is gone.
        let bytes = message(DELETE_LINK, 7, "eth0");
        let (parsed, _) = netlink::split_message(&bytes).expect("a message");
        assert_eq!(Link::of(parsed), None);
    }

    #[test]
    fn the_loopback_interface_is_there_and_others_are_not() {
        let lo = Link::by_name("lo").expect("there is one");
        assert_eq!((lo.index, lo.name.as_str(), lo.hardware), (1, "lo", 772));
        assert!(lo.mtu > 0 && Link::all().expect("a list").contains(&lo));
        for name in ["", "no-such-one", "a-name-that-is-too-long-for-any", "lo\0"] {
            let error = Link::by_name(name).expect_err("no such interface").to_string();
            assert!(error.contains(name) && error.contains("lo"), "{error}");
        }
    }
}
