//! Packets from backends: which service they answer for.

use std::collections::HashMap;
use std::net::IpAddr;

use bytemuck::NoUninit;
use packetloom_packet::key::join;
use packetloom_packet::{Address, Key, KeyBits, Message, protocol};

use super::services::{Backend, Front, Services, address_of, any, words_of};
use crate::Error;

/// What may come from backends, by the address that sends it.
#[derive(Clone, Debug, Default)]
pub(super) struct Returns(HashMap<IpAddr, Vec<Return>>);

packetloom_memory::layout! {
    /// The same for kernels. Ports and the protocol may be [`ANY`](super::services::ANY).
    #[derive(Clone, Copy, NoUninit)]
    pub(super) struct BalancerReturn {
        is_v6: u32,
        /// From which address and port it comes.
        from: [u32; 4],
        from_port: u32,
        protocol: u32,
        backend: u32,
        /// What it gets instead.
        address: [u32; 4],
        port: u32,
    }
}

/// What comes from a backend for a service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    /// The backend's number.
    pub(super) backend: u32,
    /// From which port it comes, and in which protocol; any where there is none.
    from_port: Option<u16>,
    protocol: Option<u8>,
    /// Its source instead; its own port where there is none.
    pub(super) address: Address,
    pub(super) port: Option<u16>,
}

impl Return {
    fn new(backend: u32, service: Front, of: &Backend) -> Self {
        Self {
            backend,
            from_port: of.port.or(service.port),
            protocol: service.protocol,
            address: address_of(service.address),
            // A port that stays as it is is not written.
            port: service.port.filter(|_| of.port.is_some() && of.port != service.port),
        }
    }

    /// Whether a packet may be what either of two is.
    fn overlaps(&self, other: &Self) -> bool {
        let meet = |one: Option<u32>, other: Option<u32>| one.is_none() || other.is_none() || one == other;
        meet(self.from_port.map(u32::from), other.from_port.map(u32::from))
            && meet(self.protocol.map(u32::from), other.protocol.map(u32::from))
    }
}

impl Returns {
    /// For all backends of all services.
    ///
    /// # Errors
    ///
    /// Backends from which a packet does not say what it was before: those that serve two services by the same address, port and
    /// protocol, and those with a port for a service without one.
    pub(super) fn new(services: &Services) -> Result<Self, Error> {
        let mut returns = Self::default();
        for (number, service, backend) in services.all() {
            if backend.port.is_some() && service.port.is_none() {
                return Err(Error::Invalid(format!(
                    "backend {backend} has a port and service {service} has none, so that packets from it do not say their port; with \
                     returns = true expected a port of both or of neither"
                )));
            }
            let new = Return::new(number, service, backend);
            let differs = |other: &&Return| {
                new.overlaps(other) && (new.address, new.port) != (other.address, other.port)
            };
            if let Some(other) =
                returns.0.get(&backend.address).and_then(|before| before.iter().find(differs))
            {
                return Err(Error::Invalid(format!(
                    "packets from backend {backend} of service {service} may be from {}, too; with returns = true expected backends that \
                     differ in address, port or protocol",
                    services.name(other.backend)
                )));
            }
            returns.add(number, service, backend);
        }
        Ok(returns)
    }

    /// Adds a backend, behind those that are there: also one that is listed no more but has flows.
    pub(super) fn add(&mut self, number: u32, service: Front, backend: &Backend) {
        self.0.entry(backend.address).or_default().push(Return::new(number, service, backend));
    }

    /// What comes from each backend as a kernel takes it, by address.
    pub(super) fn rows(&self) -> Vec<BalancerReturn> {
        let mut addresses: Vec<_> = self.0.iter().collect();
        addresses.sort_unstable_by_key(|(address, _)| **address);
        let all = addresses.into_iter().flat_map(|(address, of)| of.iter().map(move |from| (address, from)));
        let row = |(&address, from): (&IpAddr, &Return)| BalancerReturn {
            is_v6: address.is_ipv6().into(),
            from: words_of(address_of(address)),
            from_port: any(from.from_port),
            protocol: any(from.protocol.map(u16::from)),
            backend: from.backend,
            address: words_of(from.address),
            port: any(from.port),
        };
        all.map(row).collect()
    }

    /// What a packet from a backend is, by its key; of several backends that it may be from, the first one. None for those of nobody, and
    /// for messages of ICMP and ICMPv6 that are not the reply to a query.
    pub(super) fn find(&self, key: &Key) -> Option<&Return> {
        let (source, port, protocol, bits) = match key {
            Key::V4(key) => (IpAddr::V4(key.source.into()), key.source_port, key.protocol, key.bits),
            Key::V6(key) => (IpAddr::V6(join(key.source).into()), key.source_port, key.protocol, key.bits),
        };
        let of_address = self.0.get(&source)?;
        let is_reply = bits.contains(KeyBits::ICMP) && Message::of(protocol, port as u8) == Message::Reply;
        // Later fragments do not say what they are of.
        let is_other =
            protocol::has_type_and_code(protocol) && !is_reply && !bits.contains(KeyBits::LATER_FRAGMENT);
        let port = Some(port).filter(|_| bits.contains(KeyBits::PORTS));
        of_address.iter().filter(|_| !is_other).find(|from| {
            from.from_port.is_none_or(|of| port == Some(of)) && from.protocol.is_none_or(|of| protocol == of)
        })
    }
}
