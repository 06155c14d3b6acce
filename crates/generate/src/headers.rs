//! Headers that meet the rules of a set, in random order and without locality.
//!
//! As ClassBench's trace generator does, a header takes a rule and a point inside it: a corner,
//! where every field is at one end of its range, or any point. An earlier rule may well match it
//! first. Mixed headers take source, destination, ports and protocol from a rule each, so that
//! most of them match late or nothing but the default.
//!
//! A rule that asks for ports of ICMP can be met by no packet: its headers have type and code, as
//! all of ICMP.
//!
//! ```
//! use packetloom_generate::{HeaderOptions, Headers, RuleOptions, RuleShape, Style, generate_rules};
//!
//! let options = RuleOptions { style: Style::Fw, count: 100, seed: 1, ipv6: false };
//! let shapes: Vec<RuleShape> = generate_rules(&options)?.iter().flat_map(RuleShape::of).collect();
//! let headers = Headers::new(&shapes, &HeaderOptions { count: 10, ..Default::default() })?;
//! for header in headers {
//!     println!("{header}");
//! }
//! # Ok::<(), packetloom_generate::GenerateError>(())
//! ```

use std::fmt;
use std::io::{BufWriter, Write};
use std::net::{IpAddr, SocketAddr};

use packetloom_classify::rule::{PortRange, flags_to_letters};
use packetloom_packet::protocol::{self, ESP, GRE, ICMP, ICMPV6, SCTP, TCP, UDP};

use crate::error::GenerateError;
use crate::random::Random;
use crate::shape::{Prefix, RuleShape, ip};

/// What headers of rules without a protocol are.
const PROTOCOLS: &[(u8, u32)] = &[(TCP, 55), (UDP, 30), (ICMP, 8), (GRE, 4), (ESP, 3)];
/// The same, where the rule asks for ports.
const PROTOCOLS_WITH_PORTS: &[(u8, u32)] = &[(TCP, 65), (UDP, 35)];
/// ICMP and ICMPv6 types with a code each: echo, its reply, unreachable, time exceeded.
const ICMP_TYPES: [(u8, u8); 4] = [(8, 0), (0, 0), (3, 3), (11, 0)];
const ICMPV6_TYPES: [(u8, u8); 4] = [(128, 0), (129, 0), (1, 4), (3, 0)];

/// Which rules headers are made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Popularity {
    /// All rules alike.
    #[default]
    Uniform,
    /// A few rules much more often than others: the rule of rank r in proportion to 1/√r, in an
    /// order of ranks drawn by lot.
    Pareto,
}

/// What headers to make. The same rules and options give the same headers on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderOptions {
    /// Headers, exactly. Default 100,000.
    pub count: u64,
    /// Chooses one of the many sequences with these properties. Default 1.
    pub seed: u64,
    /// Which rules they are made for. Default uniform.
    pub popularity: Popularity,
    /// Takes source, destination, ports and protocol of each from different rules. Default false.
    pub mix: bool,
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self { count: 100_000, seed: 1, popularity: Popularity::Uniform, mix: false }
    }
}

/// What stands behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderTransport {
    /// A protocol without ports.
    None,
    /// Ports; with TCP, UDP and SCTP always, with others where a rule asks for them.
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// A header. Displayed, it is a line of Packetloom's own format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Ports, or ICMP type and code.
    pub transport: HeaderTransport,
    /// TCP flags, where the rule asks for some; else 0.
    pub flags: u8,
    /// The rule it was made for, from 0; of a mixed one, the rule that gave the source.
    pub rule: usize,
}

/// Makes headers one after the other.
pub struct Headers<'a> {
    rules: &'a [RuleShape],
    /// The indexes of the rules of each family, IPv4 first, in the order of their ranks.
    families: [Vec<u32>; 2],
    random: Random,
    popularity: Popularity,
    mix: bool,
    left: u64,
}

impl<'a> Headers<'a> {
    /// Prepares headers for `rules`, which may be of both families.
    ///
    /// # Errors
    ///
    /// No rules, more than 2³² of them, or one with a prefix length, an address or a range of
    /// ports that cannot be.
    pub fn new(rules: &'a [RuleShape], options: &HeaderOptions) -> Result<Self, GenerateError> {
        if rules.is_empty() {
            return Err(GenerateError::NoRules);
        }
        if u32::try_from(rules.len()).is_err() {
            return Err(GenerateError::TooManyRules { count: rules.len(), limit: u32::MAX as usize });
        }
        let mut families = [Vec::new(), Vec::new()];
        for (index, rule) in rules.iter().enumerate() {
            check(rule).map_err(|reason| GenerateError::BadRule { index, reason })?;
            families[usize::from(rule.ipv6)].push(index as u32);
        }
        let mut random = Random::new(options.seed, 32);
        for family in &mut families {
            random.shuffle(family);
        }
        Ok(Self {
            rules,
            families,
            random,
            popularity: options.popularity,
            mix: options.mix,
            left: options.count,
        })
    }

    /// A rule of either family: its index.
    fn pick(&mut self) -> usize {
        let [v4, v6] = self.families.each_ref().map(Vec::len);
        // Families keep their shares whatever the popularity of the rules.
        let ipv6 = self.random.below((v4 + v6) as u64) >= v4 as u64;
        self.pick_of(ipv6)
    }

    /// A rule of one family, of which there must be some: its index.
    fn pick_of(&mut self, ipv6: bool) -> usize {
        let family = &self.families[usize::from(ipv6)];
        let count = family.len() as u64;
        let rank = match self.popularity {
            Popularity::Uniform => self.random.below(count),
            Popularity::Pareto => self.random.skewed(count, 2),
        };
        family[rank as usize] as usize
    }

    fn make(&mut self) -> Header {
        let index = self.pick();
        let rule = &self.rules[index];
        let ipv6 = rule.ipv6;
        let [destination, ports, protocol] =
            if self.mix { [(); 3].map(|()| &self.rules[self.pick_of(ipv6)]) } else { [rule; 3] };
        let random = &mut self.random;
        let corner = random.bits() & 1 == 0;
        let mut address = |prefix: Prefix| {
            let (low, high) = prefix.bounds(rule.bits());
            ip(ipv6, point(low, high, corner, random))
        };
        let (source_address, destination_address) = (address(rule.source), address(destination.destination));
        let asks_ports = !ports.source_ports.is_any() || !ports.destination_ports.is_any();
        let number = match protocol.protocol {
            Some(number) => number,
            None if asks_ports => random.weighted(PROTOCOLS_WITH_PORTS),
            None => match random.weighted(PROTOCOLS) {
                ICMP if ipv6 => ICMPV6,
                number => number,
            },
        };
        let mut port =
            |range: PortRange| point(u128::from(range.low), u128::from(range.high), corner, random) as u16;
        let (source, destination) = (port(ports.source_ports), port(ports.destination_ports));
        let transport = match number {
            ICMP | ICMPV6 => {
                let (kind, code) = random.pick(if number == ICMP { &ICMP_TYPES } else { &ICMPV6_TYPES });
                HeaderTransport::Icmp { kind, code }
            }
            TCP | UDP | SCTP => HeaderTransport::Ports { source, destination },
            _ if asks_ports => HeaderTransport::Ports { source, destination },
            _ => HeaderTransport::None,
        };
        let flags = match protocol.flags {
            Some(flags) if number == TCP => flags.set | (random.bits() as u8 & 0x3f & !flags.mask),
            _ => 0,
        };
        Header {
            source: source_address,
            destination: destination_address,
            protocol: number,
            transport,
            flags,
            rule: index,
        }
    }
}

impl Iterator for Headers<'_> {
    type Item = Header;

    fn next(&mut self) -> Option<Header> {
        self.left = self.left.checked_sub(1)?;
        Some(self.make())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

/// One end of a range, or any point of it, both ends included.
fn point(low: u128, high: u128, corner: bool, random: &mut Random) -> u128 {
    let bits = random.bits();
    if corner {
        return if bits & 1 == 0 { low } else { high };
    }
    let span = high - low;
    match u64::try_from(span) {
        Ok(span) => low + u128::from(random.between(0, span)),
        // Ranges this long are IPv6 prefixes, whose span is all ones.
        Err(_) => low + (span & (u128::from(bits) << 64 | u128::from(random.bits()))),
    }
}

/// What is wrong with a rule, if anything is.
fn check(rule: &RuleShape) -> Result<(), &'static str> {
    for prefix in [rule.source, rule.destination] {
        if u32::from(prefix.len) > rule.bits() {
            return Err("a prefix is longer than its address");
        }
        if !rule.ipv6 && prefix.address > u128::from(u32::MAX) {
            return Err("an IPv4 address has more than 32 bits");
        }
    }
    for ports in [rule.source_ports, rule.destination_ports] {
        if ports.low > ports.high {
            return Err("a range of ports ends before it begins");
        }
    }
    Ok(())
}

impl Header {
    /// The header as a line of a ClassBench trace, less the newline; `None` for IPv6.
    ///
    /// The columns are source, destination, source port, destination port, protocol, flags and
    /// rule, in decimal. ICMP has type and code for ports, other protocols without ports 0. TCP
    /// flags are in the high byte of 16 bits, as in filters.
    pub fn classbench(&self) -> Option<ClassBenchHeader<'_>> {
        self.source.is_ipv4().then_some(ClassBenchHeader(self))
    }
}

/// Shows a header as ClassBench does. See [`Header::classbench`].
#[derive(Clone, Copy, Debug)]
pub struct ClassBenchHeader<'a>(&'a Header);

impl fmt::Display for ClassBenchHeader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = self.0;
        for address in [header.source, header.destination] {
            match address {
                IpAddr::V4(address) => write!(f, "{}\t", u32::from(address))?,
                IpAddr::V6(_) => return Err(fmt::Error),
            }
        }
        let (source, destination) = match header.transport {
            HeaderTransport::None => (0, 0),
            HeaderTransport::Ports { source, destination } => (source, destination),
            HeaderTransport::Icmp { kind, code } => (kind.into(), code.into()),
        };
        let flags = u16::from(header.flags) << 8;
        write!(f, "{source}\t{destination}\t{}\t{flags}\t{}", header.protocol, header.rule)
    }
}

/// The header in Packetloom's own format: `tcp 10.0.0.1:1234 > 192.0.2.7:443`,
/// `udp [2001:db8::1]:53 > [2001:db8::2]:53`, `icmp 10.0.0.1 > 10.0.0.2 type 8 code 0`,
/// `47 10.0.0.1 > 10.0.0.2`.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match protocol::name(self.protocol) {
            Some(name) => write!(f, "{name} ")?,
            None => write!(f, "{} ", self.protocol)?,
        }
        match self.transport {
            HeaderTransport::None => write!(f, "{} > {}", self.source, self.destination)?,
            HeaderTransport::Ports { source, destination } => {
                let source = SocketAddr::new(self.source, source);
                let destination = SocketAddr::new(self.destination, destination);
                write!(f, "{source} > {destination}")?;
            }
            HeaderTransport::Icmp { kind, code } => {
                write!(f, "{} > {} type {kind} code {code}", self.source, self.destination)?;
            }
        }
        if self.flags != 0 {
            write!(f, " flags {}", flags_to_letters(self.flags))?;
        }
        Ok(())
    }
}

/// The formats of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFormat {
    /// Packetloom's own.
    Native,
    /// ClassBench's traces: IPv4 only.
    ClassBench,
}

/// Writes headers, one a line.
///
/// # Errors
///
/// An IPv6 header in ClassBench's format, which is found when its turn comes; and the output's
/// errors.
pub fn write_headers<W: Write>(
    headers: impl IntoIterator<Item = Header>,
    format: HeaderFormat,
    writer: W,
) -> Result<(), GenerateError> {
    let mut writer = BufWriter::with_capacity(256 * 1024, writer);
    for (index, header) in headers.into_iter().enumerate() {
        match format {
            HeaderFormat::Native => writeln!(writer, "{header}")?,
            HeaderFormat::ClassBench => {
                let line = header.classbench().ok_or(GenerateError::Ipv6InClassBench { index })?;
                writeln!(writer, "{line}")?;
            }
        }
    }
    writer.flush()?;
    Ok(())
}
