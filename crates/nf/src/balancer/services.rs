//! Services and their backends.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytemuck::NoUninit;
use packetloom_packet::key::halves;
use packetloom_packet::{Address, FlowKey, Key, KeyBits, MatchKey4, MatchKey6, protocol};
use serde::{Deserialize, Serialize};

use super::maglev::Maglev;
use super::returns::Returns;
use crate::Error;
use crate::flows::Parameters;

/// What flows are sent to, and where they go instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Services {
    services: Vec<Service>,
    /// Of all services, one after the other; then those that are listed no more, but have flows.
    backends: Vec<Backend>,
    /// For each of these last ones, the service that its flows are to.
    gone: Vec<Front>,
    seed: u64,
}

/// A number, or [`ANY`].
pub(super) fn any(number: Option<u16>) -> u32 {
    number.map_or(ANY, u32::from)
}

packetloom_memory::layout! {
    /// What the step of a balancer is given: where rows of these begin, and how many there are.
    #[derive(Clone, Copy, NoUninit)]
    struct BalancerParameters {
        /// Of the hashes.
        seed: u64,
        services: u32,
        service_count: u32,
        backends: u32,
        backend_count: u32,
        /// By address in order.
        returns: u32,
        return_count: u32,
    }
}

packetloom_memory::layout! {
    /// A service there. Port and protocol may be [`ANY`].
    #[derive(Clone, Copy, NoUninit)]
    struct BalancerService {
        address: [u32; 4],
        is_v6: u32,
        port: u32,
        protocol: u32,
        /// The number of its first backend.
        first: u32,
        /// Where its table begins, and its entries.
        table: u32,
        entries: u32,
    }
}

packetloom_memory::layout! {
    /// A backend there. The port may be [`ANY`].
    #[derive(Clone, Copy, NoUninit)]
    struct BalancerBackend {
        address: [u32; 4],
        port: u32,
        is_v6: u32,
    }
}

/// An address that flows are sent to, with a port and a protocol where it is for these only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) front: Front,
    /// The same, and which bits of its last word matter.
    target: Target,
    mask: u64,
    /// The number of its first backend.
    pub(super) first: u32,
    pub(super) table: Maglev,
}

/// An entry of the table of a service with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) service: u32,
    pub(super) entry: u32,
}

/// What a service is called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Front {
    pub(super) address: IpAddr,
    pub(super) port: Option<u16>,
    pub(super) protocol: Option<u8>,
}

/// A backend by its names, whatever its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    pub(super) service: Front,
    pub(super) address: IpAddr,
    pub(super) port: Option<u16>,
}

/// Where flows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) address: IpAddr,
    /// None for the port that packets have.
    pub(super) port: Option<u16>,
    pub(super) weight: u32,
}

/// An address as keys hold it.
pub(super) fn address_of(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => Address::V4(address.to_bits()),
        IpAddr::V6(address) => Address::V6(halves(address.to_bits())),
    }
}

/// An address as kernels take it, most significant word first; of IPv4 only the first is one.
pub(super) fn words_of(address: Address) -> [u32; 4] {
    match address {
        Address::V4(address) => [address, 0, 0, 0],
        Address::V6([high, low]) => [(high >> 32) as u32, high as u32, (low >> 32) as u32, low as u32],
    }
}

/// Any port or protocol, as kernels have it.
pub(super) const ANY: u32 = u32::MAX;

impl Backend {
    /// The address as keys hold it.
    pub(super) fn to(&self) -> Address {
        address_of(self.address)
    }

    /// Its name in the service's table: it keeps its flows whatever place it has in a list.
    fn name(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f)?,
            None => self.address.fmt(f)?,
        }
        match self.protocol.map(|number| (number, protocol::name(number))) {
            Some((_, Some(name))) => write!(f, " {name}"),
            Some((number, None)) => write!(f, " protocol {number}"),
            None => Ok(()),
        }
    }
}

/// Where a packet is sent, as words to compare: an address as keys hold it; IP version, protocol, and the port, or [`NO_PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    address: [u64; 2],
    rest: u64,
}

const NO_PORT: u32 = 0x1_0000;
/// Bits of a port.
const PORT: u64 = 0x1_ffff;
/// Where these are in the last word.
const PROTOCOL: u32 = 32;
const VERSION: u32 = 40;

impl Target {
    #[inline]
    fn new(address: Address, protocol: u8, port: Option<u16>) -> Self {
        let (address, version) = match address {
            Address::V4(address) => ([0, address.into()], 4),
            Address::V6(address) => (address, 6),
        };
        let port = port.map_or(NO_PORT, u32::from);
        Self { address, rest: u64::from(port) | u64::from(protocol) << PROTOCOL | version << VERSION }
    }

    #[inline]
    fn of_v4(key: &MatchKey4) -> Self {
        let port = key.bits.contains(KeyBits::PORTS).then_some(key.destination_port);
        Self::new(Address::V4(key.destination), key.protocol, port)
    }

    #[inline]
    fn of_v6(key: &MatchKey6) -> Self {
        let port = key.bits.contains(KeyBits::PORTS).then_some(key.destination_port);
        Self::new(Address::V6(key.destination), key.protocol, port)
    }
}

impl Service {
    fn new(front: Front, first: u32, table: Maglev) -> Self {
        let Front { address, port, protocol } = front;
        let target = Target::new(address_of(address), protocol.unwrap_or_default(), port);
        let mask = 0xff << VERSION | protocol.map_or(0, |_| 0xff << PROTOCOL) | port.map_or(0, |_| PORT);
        Self { front, target, mask, first, table }
    }

    /// Whether what is sent there is to the service.
    #[inline]
    fn fits(&self, target: &Target) -> bool {
        let [high, low] = [0, 1].map(|half| self.target.address[half] ^ target.address[half]);
        high | low | ((self.target.rest ^ target.rest) & self.mask) == 0
    }
}

impl Services {
    pub(super) fn new(seed: u64) -> Self {
        Self { services: Vec::new(), backends: Vec::new(), gone: Vec::new(), seed }
    }

    /// Adds a service.
    ///
    /// # Errors
    ///
    /// [`Maglev::new`]'s; backends of another IP version, or twice the same; a service that no flow comes to because of one
    /// before.
    pub(super) fn add(&mut self, front: Front, backends: &[Backend], size: u32) -> Result<(), Error> {
        let names: Vec<_> = backends.iter().map(Backend::name).collect();
        let weighted: Vec<_> =
            names.iter().map(String::as_bytes).zip(backends.iter().map(|backend| backend.weight)).collect();
        let first = self.backends.len() as u32;
        let service = Service::new(front, first, Maglev::new(&weighted, size)?);
        let Front { address, port, protocol } = front;
        if let Some(other) = backends.iter().find(|backend| backend.address.is_ipv4() != address.is_ipv4()) {
            return Err(Error::Invalid(format!("backend {other} of {front}; expected the same IP version")));
        }
        for (number, name) in names.iter().enumerate() {
            if names[..number].contains(name) {
                return Err(Error::Invalid(format!("backend {name} twice in {front}; expected once")));
            }
        }
        let covers = |before: &Front| {
            before.address == address
                && (before.port.is_none() || before.port == port)
                && (before.protocol.is_none() || before.protocol == protocol)
        };
        if let Some(before) = self.services.iter().map(|service| &service.front).find(|front| covers(front)) {
            return Err(Error::Invalid(format!(
                "all packets to {front} are to {before} before it; expected the narrower one first"
            )));
        }
        self.services.push(service);
        self.backends.extend(backends);
        Ok(())
    }

    /// Where the backend of a new flow stands, by the key of its first packet: in the table of the first service that fits, if there is one, at
    /// the flow's hash with the services' seed.
    pub(super) fn look_for(&self, key: &Key) -> Option<Standing> {
        let (target, hash) = match key {
            Key::V4(key) => (Target::of_v4(key), FlowKey::from_v4(key).0.hash(self.seed)),
            Key::V6(key) => (Target::of_v6(key), FlowKey::from_v6(key).0.hash(self.seed)),
        };
        let service = self.services.iter().position(|service| service.fits(&target))?;
        Some(Standing { service: service as u32, entry: self.services[service].table.entry(hash) })
    }

    /// Brings what stands there into the cache.
    #[inline]
    pub(super) fn prefetch(&self, Standing { service, entry }: Standing) {
        self.services[service as usize].table.prefetch(entry);
    }

    /// The number of the backend that stands there.
    #[inline]
    pub(super) fn read(&self, Standing { service, entry }: Standing) -> u32 {
        let Service { first, table, .. } = &self.services[service as usize];
        first + table.backend(entry)
    }

    /// Services, backends, tables and what is returned as a kernel takes them: see `balancer.kernel.c`.
    pub(super) fn parameters(&self, returns: Option<&Returns>) -> Parameters {
        Parameters::with_rows(|rows| {
            let service = |service: &Service| BalancerService {
                address: words_of(address_of(service.front.address)),
                is_v6: service.front.address.is_ipv6().into(),
                port: any(service.front.port),
                protocol: any(service.front.protocol.map(u16::from)),
                first: service.first,
                table: rows.add(&service.table.entries()),
                entries: service.table.size() as u32,
            };
            let services: Vec<_> = self.services.iter().map(service).collect();
            let backend = |backend: &Backend| BalancerBackend {
                address: words_of(backend.to()),
                port: any(backend.port),
                is_v6: backend.address.is_ipv6().into(),
            };
            let backends: Vec<_> = self.backends.iter().map(backend).collect();
            let returns = returns.map(Returns::rows).unwrap_or_default();
            BalancerParameters {
                seed: self.seed,
                services: rows.add(&services),
                service_count: services.len() as u32,
                backends: rows.add(&backends),
                backend_count: backends.len() as u32,
                returns: rows.add(&returns),
                return_count: returns.len() as u32,
            }
        })
    }

    pub(super) fn backend(&self, number: u32) -> &Backend {
        &self.backends[number as usize]
    }

    pub(super) fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Backends that are listed.
    fn listed(&self) -> usize {
        self.backends.len() - self.gone.len()
    }

    /// Whether a backend is.
    pub(super) fn is_listed(&self, number: u32) -> bool {
        (number as usize) < self.listed()
    }

    /// All backends, each with its number and its service.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, Front, &Backend)> {
        (0..).zip(&self.backends).filter_map(|(number, backend)| {
            let service = match (number as usize).checked_sub(self.listed()) {
                Some(gone) => self.gone[gone],
                None => self.services.iter().rfind(|service| service.first <= number)?.front,
            };
            Some((number, service, backend))
        })
    }

    /// All backends by their names, in the order of their numbers.
    pub(super) fn named(&self) -> impl Iterator<Item = Named> {
        self.all().map(|(_, service, &Backend { address, port, .. })| Named { service, address, port })
    }

    /// The number of a backend that has flows, which may be listed no more.
    pub(super) fn number(&mut self, named: &Named) -> u32 {
        if let Some(number) = self.named().position(|own| own == *named) {
            return number as u32;
        }
        let &Named { service, address, port } = named;
        self.backends.push(Backend { address, port, weight: 0 });
        self.gone.push(service);
        self.backends.len() as u32 - 1
    }

    /// Those that are listed, without what flows need beside.
    pub(super) fn configured(&self) -> (&[Service], &[Backend], u64) {
        (&self.services, &self.backends[..self.listed()], self.seed)
    }

    /// How all backends are called, with their services.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.all().map(|(number, service, backend)| {
            let gone = if self.is_listed(number) { "" } else { ", listed no more" };
            format!("{backend} of {service}{gone}")
        })
    }

    /// How a backend is called.
    pub(super) fn name(&self, number: u32) -> String {
        self.names().nth(number as usize).unwrap_or_default()
    }

    pub(super) fn describe(&self) -> Vec<String> {
        let ends = self.services.iter().skip(1).map(|next| next.first).chain([self.listed() as u32]);
        let line = |(Service { front, first, table, .. }, end): (&Service, u32)| {
            let backends = &self.backends[*first as usize..end as usize];
            let drained = backends.iter().filter(|backend| backend.weight == 0).count();
            let rest = if drained > 0 { format!(", {drained} of them drained") } else { String::new() };
            format!("{front}: {} backends{rest}, a table of {}", backends.len(), table.size())
        };
        self.services.iter().zip(ends).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_fits_what_its_front_says() {
        let addresses = [
            IpAddr::from([10, 0, 0, 1]),
            IpAddr::from([10, 0, 0, 2]),
            IpAddr::from([0, 1, 0, 0, 0, 0, 0, 2]),
        ];
        let table = Maglev::new(&[(b"backend", 1)], 2).expect("a table");
        let mut fitting = 0;
        for (number, &address) in addresses.iter().enumerate() {
            for (port, protocol) in
                [(None, None), (Some(0), None), (Some(80), None), (None, Some(0)), (Some(80), Some(6))]
            {
                let service = Service::new(Front { address, port, protocol }, 0, table.clone());
                for (to, &sent_to) in addresses.iter().enumerate() {
                    for (own, own_protocol) in
                        [(None, 6), (Some(0), 0), (Some(80), 6), (Some(80), 17), (Some(0xffff), 6)]
                    {
                        let fits = service.fits(&Target::new(address_of(sent_to), own_protocol, own));
                        let ought = number == to
                            && port.is_none_or(|port| own == Some(port))
                            && protocol.is_none_or(|protocol| own_protocol == protocol);
                        assert_eq!(fits, ought, "{} {own:?} {own_protocol}", service.front);
                        fitting += usize::from(fits);
                    }
                }
            }
        }
        assert_eq!(fitting, 3 * (5 + 1 + 2 + 1 + 1));
    }
}
