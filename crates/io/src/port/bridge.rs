//! The kernel's bridge below two interfaces, which forwards between them whenever this process does not.
//!
//! While the process runs, an XDP program or a [`Guard`](super::Guard) keeps what arrives from the bridge. Both belong to the process, so
//! when it ends, in whatever way, the bridge gets the frames. It forwards them as the wire that an inline pair is: it learns no addresses,
//! takes no part in protocols, and has no addresses of its own. See `br_netlink.c` and `if_link.h` of Linux.

use std::fs;

use rustix::io::Errno;

use super::link::{ALIAS, HEADER, INFO, INFO_KIND, LONGEST_NAME, MASTER, NAME, NEW_LINK, UP, links_error};
use super::netlink::{ACK, Attributes, CREATE, EXCLUSIVE, Netlink, REQUEST, Request};
use super::{Link, Port, link};
use crate::Error;

/// What becomes of the traffic between two inline interfaces when this process ends, in whatever way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExit {
    /// Nothing passes until there is a process again.
    #[default]
    Closed,
    /// Everything passes, by a bridge of the kernel.
    Open,
}

const SET_LINK: u16 = 19;
/// `IFF_NOARP`: it answers nobody.
const NO_ARP: u32 = 0x80;
/// `IFLA_AF_SPEC`; `AF_INET6`, `IFLA_INET6_ADDR_GEN_MODE`, `IN6_ADDR_GEN_MODE_NONE`.
const FAMILIES: u16 = 26;
const INET6: u16 = 10;
const GENERATES: u16 = 8;
const NO_ADDRESS: u8 = 1;
/// `IFLA_INFO_DATA`, `IFLA_INFO_SLAVE_KIND`, `IFLA_INFO_SLAVE_DATA`.
const INFO_DATA: u16 = 2;
const PORT_KIND: u16 = 4;
const PORT_DATA: u16 = 5;
/// `IFLA_BR_STP_STATE`, `IFLA_BR_MCAST_SNOOPING`.
const SPANNING_TREE: u16 = 5;
const SNOOPING: u16 = 23;
/// `IFLA_BRPORT_LEARNING`, `IFLA_BRPORT_GROUP_FWD_MASK`.
const LEARNING: u16 = 8;
const LINK_LOCAL: u16 = 31;
/// Frames to 01:80:C2:00:00:0X pass (LLDP, LACP, 802.1X), but for those that pause a link, which the kernel lets nobody forward.
const ALL_BUT_PAUSE: u16 = 0xfffd;
const BRIDGE: &str = "bridge";
/// What is written about a bridge that was made here begins so.
const OURS: &str = "packetloom: ";

/// A bridge of two interfaces.
#[derive(Debug)]
pub(super) struct Bridge {
    /// The names that they were opened by.
    interfaces: String,
    /// Name of the bridge.
    name: String,
    index: u32,
}

impl Bridge {
    /// Has the kernel forward between the interfaces of two ports: by the bridge that both are part of already, or else by one that is made.
    /// Also returns what the user should know of it.
    ///
    /// # Errors
    ///
    /// [`Error::Bridge`]: one of them is part of something else, or the kernel refuses. [`Error::NotPermitted`]: CAP_NET_ADMIN is needed.
    pub(super) fn below(ports: &[Port; 2]) -> Result<(Self, Vec<String>), Error> {
        let mut bridge = Self { interfaces: pair(ports), name: String::new(), index: 0 };
        let links = Link::all()?;
        let mut notices = Vec::new();
        // One that has just been removed: there will be an event.
        if let Some(pair) = both(&links, ports) {
            notices.extend(bridge.put(&links, pair)?);
        }
        if is_filtered() {
            notices.push(format!(
                "{}: the module br_netfilter is loaded, so rules of iptables and nftables for forwarded packets apply to the bridge {}, too; \
                 `sysctl net.bridge.bridge-nf-call-iptables=0` keeps them from bridges",
                bridge.interfaces, bridge.name
            ));
        }
        Ok((bridge, notices))
    }

    /// The same again, where an interface was removed and is back, or somebody has changed what was there: says so if that was needed.
    pub(super) fn mend(&mut self, ports: &[Port; 2]) -> Result<Option<String>, Error> {
        let links = Link::all()?;
        // What was said of a link may come before it is said that one of them is removed.
        let Some(pair) = both(&links, ports) else { return Ok(None) };
        let is_up = links.iter().any(|link| link.index == self.index && link.kind == BRIDGE && link.is_up);
        if is_up && pair.iter().all(|link| link.master == Some(self.index)) {
            return Ok(None);
        }
        let notice = self.put(&links, pair)?;
        Ok(notice
            .or_else(|| Some(format!("{}: the bridge {} is below them again", self.interfaces, self.name))))
    }

    /// Its index.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Makes sure that nothing passes between the interfaces of two ports without this process: bridges that were made here are removed, which
    /// is returned as what the user should know.
    ///
    /// # Errors
    ///
    /// [`Error::Bridge`]: both are part of a bridge that was not made here, or the kernel refuses.
    pub(super) fn remove_below(ports: &[Port; 2]) -> Result<Vec<String>, Error> {
        let links = Link::all()?;
        let [a, b] = ports.each_ref().map(Port::interface);
        let refused = |reason| Error::Bridge { interfaces: pair(ports), reason };
        let indices = ports.each_ref().map(Port::index);
        if let Some(Link { name, .. }) = common(&links, indices).filter(|bridge| !bridge.is_ours()) {
            return Err(refused(format!(
                "both are ports of the bridge {name}, which would forward when this process ends; expected on_exit \"open\", or \
                 `ip link set {a} nomaster` and the same for {b}"
            )));
        }
        let mut notices = Vec::new();
        // Also one of which only one of them is part, in another pair before.
        let is_below = |bridge: &&Link| {
            links.iter().any(|link| indices.contains(&link.index) && link.master == Some(bridge.index))
        };
        for Link { index, name, .. } in links.iter().filter(|link| link.is_ours()).filter(is_below) {
            let mut request = Request::default();
            request.message(link::DELETE_LINK, REQUEST | ACK, 1, &header(*index, 0), |_| {});
            match Netlink::open(None, 0).map_err(links_error)?.request(&request) {
                Ok(()) | Err(Errno::NODEV) => notices.push(format!(
                    "{a} and {b}: removed the bridge {name}, which a run with on_exit \"open\" has left"
                )),
                Err(error) => return Err(refused(format!("cannot remove the bridge {name}: {error}"))),
            }
        }
        Ok(notices)
    }

    /// Finds or makes the bridge, and makes both interfaces part of it.
    fn put(&mut self, links: &[Link], [a, b]: [&Link; 2]) -> Result<Option<String>, Error> {
        let by_index = |index| links.iter().find(|link| link.index == index);
        let about = format!("{OURS}forwards between {} when no run does", self.interfaces);
        let masters = [a, b].map(|port| port.master.and_then(by_index));
        let found = match common(links, [a.index, b.index]) {
            Some(bridge) => Some(bridge),
            None => {
                // What is not theirs alone is not touched.
                if let Some((port, master)) = [a, b]
                    .into_iter()
                    .zip(masters)
                    .find_map(|(port, master)| Some((port, master.filter(|link| !link.is_ours())?)))
                {
                    let reason = format!(
                        "{} is a port of {}; expected that both are ports of one bridge, or neither of anything (`ip link set {} nomaster`)",
                        port.name, master.name, port.name
                    );
                    return Err(Error::Bridge { interfaces: self.interfaces.clone(), reason });
                }
                links.iter().find(|link| link.is_ours() && link.alias == about)
            }
        };
        let refused = |action: String, error| match error {
            Errno::PERM | Errno::ACCESS => Error::NotPermitted {
                interface: self.interfaces.clone(),
                action: "put a bridge below them",
                capability: "CAP_NET_ADMIN",
            },
            Errno::OPNOTSUPP => Error::Bridge {
                interfaces: self.interfaces.clone(),
                reason: format!(
                    "cannot {action}: the kernel has no bridges (CONFIG_BRIDGE); load the module bridge"
                ),
            },
            error => Error::Bridge {
                interfaces: self.interfaces.clone(),
                reason: format!("cannot {action}: {error}"),
            },
        };
        let mut socket = Netlink::open(None, 0).map_err(links_error)?;
        let (name, index) = match found {
            Some(bridge) if !bridge.is_ours() => {
                (self.name, self.index) = (bridge.name.clone(), bridge.index);
                return Ok((!bridge.is_up).then(|| {
                    format!(
                        "{}: the bridge {}, whose ports they are, is switched off; nothing passes when this process ends",
                        self.interfaces, self.name
                    )
                }));
            }
            Some(bridge) => (bridge.name.clone(), bridge.index),
            None => {
                let name = new_name(links, a);
                socket
                    .request(&creation(&name))
                    .map_err(|error| refused(format!("make the bridge {name}"), error))?;
                let bridge = Link::by_name(&name)?;
                (name, bridge.index)
            }
        };
        // Where it is there already, what somebody changed is as it was.
        let mut do_it = |what: &str, request| {
            socket.request(&request).map_err(|error| refused(format!("{what} the bridge {name}"), error))
        };
        do_it("describe", change(index, 0, |bridge| bridge.string(ALIAS, &about)))?;
        // A kernel without IPv6 has nothing to switch off.
        let _ = do_it("keep addresses from", change(index, 0, no_ipv6));
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        for port in [a, b] {
            if port.master != Some(index) {
                do_it(
                    &format!("make {} a port of", port.name),
                    change(port.index, 0, |port| port.put(MASTER, &index.to_ne_bytes())),
                )?;
            }
            do_it(&format!("set {} as a port of", port.name), port_settings(port.index))?;
        }
        do_it("switch on", change(index, UP | NO_ARP, |_| {}))?;
        (self.name, self.index) = (name, index);
        Ok(None)
    }
}

/// Whether what passes bridges goes through packet filters that are meant for routed packets.
fn is_filtered() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

impl Link {
    /// Whether it is a bridge that was made here.
    fn is_ours(&self) -> bool {
        self.kind == BRIDGE && self.alias.starts_with(OURS)
    }
}

/// The interfaces of two ports, where both are there.
fn both<'a>(links: &'a [Link], ports: &[Port; 2]) -> Option<[&'a Link; 2]> {
    let [a, b] = ports.each_ref().map(|port| links.iter().find(|link| link.index == port.index()));
    Some([a?, b?])
}

/// The bridge whose ports both interfaces are.
fn common(links: &[Link], ports: [u32; 2]) -> Option<&Link> {
    let by_index = |index| links.iter().find(|link| link.index == index);
    let [a, b] = ports.map(|index| by_index(index)?.master);
    by_index(a.filter(|_| a == b)?).filter(|link| link.kind == BRIDGE)
}

fn pair([a, b]: &[Port; 2]) -> String {
    format!("{} and {}", a.interface(), b.interface())
}

/// A name that tells what the bridge is for, by the first of its ports; by that one's number where the name would be too long, or is taken.
fn new_name(links: &[Link], port: &Link) -> String {
    let name = format!("pl-{}", port.name);
    let is_free = links.iter().all(|link| link.name != name);
    if is_free && name.len() < LONGEST_NAME { name } else { format!("pl-{}", port.index) }
}

/// `struct ifinfomsg` for an interface, with flags that are set.
fn header(index: u32, flags: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Changes an interface.
fn change(index: u32, flags: u32, attributes: impl FnOnce(&mut Attributes<'_>)) -> Request {
    let mut request = Request::default();
    request.message(SET_LINK, REQUEST | ACK, 1, &header(index, flags), attributes);
    request
}

/// Makes a bridge that takes part in nothing.
fn creation(name: &str) -> Request {
    let mut request = Request::default();
    request.message(NEW_LINK, REQUEST | ACK | CREATE | EXCLUSIVE, 1, &header(0, 0), |bridge| {
        bridge.string(NAME, name);
        bridge.nested(INFO, |info| {
            info.string(INFO_KIND, BRIDGE);
            info.nested(INFO_DATA, |data| {
                data.put(SPANNING_TREE, &0u32.to_ne_bytes());
                data.put(SNOOPING, &[0]);
            });
        });
    });
    request
}

fn no_ipv6(bridge: &mut Attributes<'_>) {
    bridge.nested(FAMILIES, |families| {
        families.nested(INET6, |inet6| inet6.put(GENERATES, &[NO_ADDRESS]));
    });
}

/// Has a port of a bridge forward whatever comes to the other one: a host that moves from one side to the other is reached at once.
fn port_settings(index: u32) -> Request {
    let mut request = Request::default();
    request.message(NEW_LINK, REQUEST | ACK, 1, &header(index, 0), |port| {
        port.nested(INFO, |info| {
            info.string(PORT_KIND, BRIDGE);
            info.nested(PORT_DATA, |data| {
                data.put(LEARNING, &[0]);
                data.put(LINK_LOCAL, &ALL_BUT_PAUSE.to_ne_bytes());
            });
        });
    });
    request
}

#[cfg(test)]
mod tests {
    use packetloom_testing::net::Net;

    use super::super::{Mode, Options};
    use super::*;

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.into(), ..Link::default() }
    }

    #[test]
    fn names_of_bridges_are_those_of_their_first_ports_and_fit() {
        assert_eq!(new_name(&[], &link(5, "eth0")), "pl-eth0");
        assert_eq!(new_name(&[], &link(5, "twelve-bytes")), "pl-twelve-bytes");
        assert_eq!(new_name(&[], &link(5, "enp0s31f6np0d1")), "pl-5");
        assert_eq!(new_name(&[link(9, "pl-eth0")], &link(5, "eth0")), "pl-5");
    }

    /// That a bridge has lost a port is known before it is known that the port is gone.
    #[test]
    fn no_bridge_is_below_an_interface_that_is_gone() {
        let Some(net) = Net::new() else { return };
        let namespace = &net.product;
        namespace.run(|| {
            let ports = ["pa", "pb"].map(|name| Port::open(&Options::new(name, Mode::Inline)).expect("open"));
            let (mut bridge, _) = Bridge::below(&ports).expect("made");
            assert_eq!(bridge.mend(&ports).expect("read"), None);
            namespace.ip("link set pb nomaster").expect("taken out");
            let notice = bridge.mend(&ports).expect("mended");
            assert_eq!(notice.as_deref(), Some("pa and pb: the bridge pl-pa is below them again"));
            namespace.ip("link del pa").expect("removed");
            assert_eq!(bridge.mend(&ports).expect("read"), None);
        });
    }

    #[test]
    fn a_bridge_is_common_to_both_or_it_is_none() {
        let port = |index, name, master| Link { master, ..link(index, name) };
        let bridge = |index, kind: &str| Link { kind: kind.into(), ..link(index, "br0") };
        let links = [port(1, "a", Some(7)), port(2, "b", Some(7)), port(3, "c", Some(8)), port(4, "d", None)];
        let with = |kind| [&links[..], &[bridge(7, kind)]].concat();
        assert_eq!(common(&with("bridge"), [1, 2]).map(|link| link.index), Some(7));
        for ports in [[1, 3], [1, 4], [4, 4], [1, 9], [3, 3]] {
            assert_eq!(common(&with("bridge"), ports), None, "{ports:?}");
        }
        // A bond is no bridge.
        assert_eq!(common(&with("bond"), [1, 2]), None);
    }
}
