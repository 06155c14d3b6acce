//! Where records are sent, as users write it.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;

use crate::Error;
use crate::messages::Protocol;

/// Where records are sent: `udp://HOST:PORT`, `tcp://HOST:PORT`, `tls://HOST:PORT`, `kafka://HOST:PORT/TOPIC` with one broker or several with
/// commas between them, or the name of a file.
///
/// Without a port it is the one that IANA has for the protocol: 4739 for IPFIX, 4740 for IPFIX over TLS, 2055 for NetFlow v9, as is
/// common; 9092 for Kafka. An IPv6 address stands in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Datagrams.
    Udp(Host),
    /// A connection.
    Tcp(Host),
    /// A connection that is encrypted.
    Tls(Host),
    /// A file (RFC 5655).
    File(PathBuf),
    /// A folder of files, which is not what a text says.
    Folder(PathBuf),
    /// A topic of Apache Kafka.
    Kafka {
        /// Brokers to begin with, HOST or HOST:PORT, with commas between them.
        brokers: String,
        /// Its name: letters, digits, dots, hyphens and underscores, 249 at most.
        topic: String,
    },
}

/// A collector's name or address, and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name, or an address without brackets.
    pub name: String,
    /// The port, if it is given.
    pub port: Option<u16>,
}

impl Host {
    /// The addresses that it has now; never none.
    pub(super) fn resolve(&self, default_port: u16) -> Result<Vec<SocketAddr>, Error> {
        let fail = |why: String| Error::Resolve { host: self.name.clone(), why };
        let port = self.port.unwrap_or(default_port);
        let found = (&*self.name, port).to_socket_addrs();
        let addresses: Vec<_> = found.map_err(|e| fail(packetloom_io::plain(&e)))?.collect();
        if addresses.is_empty() {
            return Err(fail("it has no address".into()));
        }
        Ok(addresses)
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            "expected HOST:PORT, such as 192.0.2.1:4739, [2001:db8::1]:4739 or collector.example:4739";
        let (name, rest) = match text.strip_prefix('[') {
            Some(inner) => {
                let (address, rest) =
                    inner.split_once(']').ok_or_else(|| format!("no ] behind [; {expected}"))?;
                if address.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(format!("\"{address}\" in brackets is no IPv6 address; {expected}"));
                }
                (address, rest)
            }
            None if text.matches(':').count() > 1 => {
                return Err(format!("an IPv6 address without brackets; {expected}"));
            }
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            Some(digits) => match digits.parse() {
                Ok(port) if port > 0 => Some(port),
                _ => return Err(format!("\"{digits}\" is no port; expected 1 to 65535")),
            },
            None => return Err(format!("\"{rest}\" behind the address; {expected}")),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(format!("\"{name}\" is no name of a host; {expected}"));
        }
        Ok(Self { name: name.into(), port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Destination {
    /// The port that is used where none is given.
    pub(super) fn default_port(&self, protocol: Protocol) -> u16 {
        match (self, protocol) {
            (_, Protocol::NetflowV9) => 2055,
            (Self::Tls(_), Protocol::Ipfix) => 4740,
            _ => 4739,
        }
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::File(path) => Some(path),
            _ => None,
        }
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host = |of: &str| of.parse().map_err(|why| format!("{text}: {why}"));
        match text.split_once("://") {
            Some(("udp", of)) => Ok(Self::Udp(host(of)?)),
            Some(("tcp", of)) => Ok(Self::Tcp(host(of)?)),
            Some(("tls", of)) => Ok(Self::Tls(host(of)?)),
            Some(("kafka", of)) => kafka(of).map_err(|why| format!("{text}: {why}")),
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Err(format!(
                "{text}: \"{scheme}\" is no transport; expected udp://, tcp://, tls://, kafka:// or the name of a file"
            )),
            _ if text.is_empty() => {
                Err("nothing; expected udp://HOST:PORT, tcp://, tls:// or the name of a file".into())
            }
            _ => Ok(Self::File(text.into())),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(host) => write!(f, "udp://{host}"),
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            Self::Tls(host) => write!(f, "tls://{host}"),
            Self::Kafka { brokers, topic } => write!(f, "kafka://{brokers}/{topic}"),
            Self::File(path) | Self::Folder(path) => path.display().fmt(f),
        }
    }
}

/// `HOST:PORT,HOST:PORT/TOPIC`.
fn kafka(text: &str) -> Result<Destination, String> {
    let expected = "expected kafka://HOST:PORT/TOPIC, or several brokers with commas between them";
    let (brokers, topic) = text.split_once('/').ok_or_else(|| format!("no topic; {expected}"))?;
    brokers.split(',').try_for_each(|broker| broker.parse::<Host>().map(drop))?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_topic =
        (1..=249).contains(&topic.len()) && topic.bytes().all(is_name) && ![".", ".."].contains(&topic);
    if !is_topic {
        return Err(format!(
            "\"{topic}\" is no topic; expected letters, digits, dots, hyphens and underscores, 249 at most"
        ));
    }
    Ok(Destination::Kafka { brokers: brokers.into(), topic: topic.into() })
}

/// A socket of the family of an address, on any port.
pub(super) fn socket_for(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    UdpSocket::bind(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read_and_written() {
        for text in [
            "udp://192.0.2.1:4739",
            "tcp://collector.example:4739",
            "tls://[2001:db8::1]:4740",
            "udp://[::1]",
            "udp://collector",
            "flows.ipfix",
            "/var/flows/a.ipfix",
            "kafka://127.0.0.1:9092/flows",
            "kafka://a,b.example:9093,[::1]:9094/net.flows_1-x",
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
        assert_eq!("a.ipfix".parse::<Destination>().unwrap().file(), Some(&"a.ipfix".into()));
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        for (text, expected) in [
            ("", "nothing;"),
            ("sctp://a:1", "\"sctp\" is no transport"),
            ("udp://", "\"\" is no name of a host"),
            ("udp://a:0", "\"0\" is no port"),
            ("udp://a:65536", "\"65536\" is no port"),
            ("udp://a:", "\"\" is no port"),
            ("udp://::1", "without brackets"),
            ("udp://[::1", "no ] behind ["),
            ("udp://[a]:1", "no IPv6 address"),
            ("udp://[::1]x", "\"x\" behind the address"),
            ("tcp://a/b:1", "\"a/b\" is no name of a host"),
            ("kafka://a:9092", "no topic; expected kafka://HOST:PORT/TOPIC"),
            ("kafka://a:9092/", "\"\" is no topic"),
            ("kafka://a:9092/x/y", "\"x/y\" is no topic"),
            ("kafka://a:9092/..", "\"..\" is no topic"),
            ("kafka:///x", "\"\" is no name of a host"),
            ("kafka://a,,b/x", "\"\" is no name of a host"),
            ("kafka://a:0/x", "\"0\" is no port"),
            ("tcp://a b", "\"a b\" is no name of a host"),
        ] {
            let error = text.parse::<Destination>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn ports_are_those_of_the_protocol() {
        let port = |text: &str, protocol| text.parse::<Destination>().unwrap().default_port(protocol);
        assert_eq!(port("udp://a", Protocol::Ipfix), 4739);
        assert_eq!(port("tcp://a", Protocol::Ipfix), 4739);
        assert_eq!(port("tls://a", Protocol::Ipfix), 4740);
        assert_eq!(port("udp://a", Protocol::NetflowV9), 2055);
        let host: Host = "127.0.0.1".parse().unwrap();
        assert_eq!(host.resolve(4739).unwrap(), ["127.0.0.1:4739".parse().unwrap()]);
    }
}
