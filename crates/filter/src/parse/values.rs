//! Values behind qualifiers: addresses, networks, ports, protocols.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Context, Parser, Proto, Qualifiers, Value, What};
use crate::error::{Error, quote};
use crate::lex::{Kind, Token};
use crate::names;
use crate::tree::{Node, Test, Transports};

/// The highest length field of IEEE 802.3: numbers up to it are no EtherTypes.
const MAX_LENGTH_FIELD: u32 = 1500;

impl<'a> Parser<'a> {
    /// A value with its qualifiers, or several in parentheses.
    pub(super) fn value(&mut self, qualifiers: Qualifiers<'a>) -> Result<Value<'a>, Error> {
        let mut negated = false;
        while self.take("not") || self.take("!") {
            negated = !negated;
        }
        let token = self.peek();
        let mut node = if token.kind == Kind::Symbol("(") {
            self.at += 1;
            let inner =
                self.nested(token, |parser| parser.expression(Context::Condition(Some(qualifiers))))?;
            let Value::Condition(node, _) = inner else {
                return Err(self.expected(qualifiers.what.expects()));
            };
            if !self.take(")") {
                return Err(self.expected("`or`, `and` or \")\""));
            }
            node
        } else {
            let (word, is_name) = match token.kind {
                Kind::Word(word) => (word, false),
                Kind::Name(name) => (name, true),
                Kind::Symbol(_) | Kind::End => return Err(self.expected(qualifiers.what.expects())),
            };
            self.at += 1;
            let test = match qualifiers.what {
                What::Host => self.host(qualifiers, token, word)?,
                What::Net => self.net(qualifiers, token, word)?,
                What::Port => {
                    let port = self.port(token, word)?;
                    ports(qualifiers, port, port)
                }
                What::PortRange => {
                    let (low, high) = self.port_range(token, word)?;
                    ports(qualifiers, low, high)
                }
                What::Proto => self.protocol(qualifiers, token, word, is_name)?,
            };
            if self.peek().kind == Kind::Symbol("/") {
                let message = if qualifiers.what == What::Host {
                    "a host has no prefix length; write `net` for a network"
                } else {
                    "\"/\" stands here; expected `and`, `or` or the end of the filter"
                };
                return Err(self.error(self.peek(), message));
            }
            self.test(test)
        };
        if negated {
            node = self.push(Node::Not(node));
        }
        Ok(Value::Condition(node, Some(qualifiers)))
    }

    fn host(&self, qualifiers: Qualifiers<'a>, token: Token<'a>, word: &str) -> Result<Test, Error> {
        if qualifiers.proto == Proto::Ether {
            let Some(address) = mac(word) else {
                let message = format!(
                    "{} is no Ethernet address; expected six numbers such as 00:11:22:aa:bb:cc",
                    quote(word)
                );
                return Err(self.error(token, message));
            };
            return Ok(Test::Mac { side: qualifiers.side, address });
        }
        if let Ok(address) = word.parse::<Ipv4Addr>() {
            return self.net4(qualifiers, token, address.to_bits(), u32::MAX);
        }
        if let Ok(address) = word.parse::<Ipv6Addr>() {
            return self.net6(qualifiers, token, address.to_bits(), u128::MAX);
        }
        let quoted = quote(word);
        let message = if mac(word).is_some() && word.contains([':', '-']) {
            format!("{quoted} is an Ethernet address; write `ether host` before it")
        } else if word.contains(':') {
            format!("{quoted} is no IPv6 address; expected one such as 2001:db8::1")
        } else if word.starts_with(|c: char| c.is_ascii_digit())
            && word.bytes().all(|c| c.is_ascii_digit() || c == b'.')
        {
            format!(
                "{quoted} is no IPv4 address; expected four numbers from 0 to 255 such as 192.0.2.1, or `net` for a network"
            )
        } else if let Some(hint) = self.keyword(word) {
            format!("{quoted} stands here; expected {}{hint}", qualifiers.what.expects())
        } else {
            format!("{quoted} is no address; names of hosts are not supported: write the address")
        };
        Err(self.error(token, message))
    }

    /// That a word is one of the language's.
    fn keyword(&self, word: &str) -> Option<&'static str> {
        let is_keyword = names::WORDS.contains(&word)
            || names::find(names::PROTOCOLS, word).is_some()
            || names::find(names::UNSUPPORTED, word).is_some();
        is_keyword.then_some(" (a protocol stands before `src`, `dst`, `host` and their like)")
    }

    fn net(&mut self, qualifiers: Qualifiers<'a>, token: Token<'a>, word: &str) -> Result<Test, Error> {
        let quoted = quote(word);
        if let Ok(address) = word.parse::<Ipv6Addr>() {
            let length = self.prefix_length(128)?.unwrap_or(128);
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            let address = address.to_bits();
            if address & !mask != 0 {
                let network = Ipv6Addr::from_bits(address & mask);
                let message =
                    format!("{quoted} has bits set behind /{length}; did you mean {network}/{length}?");
                return Err(self.error(token, message));
            }
            return self.net6(qualifiers, token, address, mask);
        }
        let Some((address, bits)) = short_address(word) else {
            let message = if word.starts_with(|c: char| c.is_ascii_digit()) || word.contains(':') {
                format!("{quoted} is no network; expected one such as 10.0.0.0/8, 10.1 or 2001:db8::/32")
            } else {
                format!(
                    "{quoted} is no network; names of networks are not supported: write its address and prefix length"
                )
            };
            return Err(self.error(token, message));
        };
        let mask = if let Some(length) = self.prefix_length(32)? {
            u32::MAX.checked_shl(32 - length).unwrap_or(0)
        } else if self.take("mask") {
            let token = self.next();
            let mask = match token.kind {
                Kind::Word(word) => short_address(word),
                _ => None,
            };
            let Some((mask, _)) = mask else {
                let message = format!("{} is no mask; expected one such as 255.255.0.0", quote(token.text));
                return Err(self.error(token, message));
            };
            mask
        } else if address == 0 && bits == 8 {
            return Err(
                self.error(token, "`net 0` has two readings; write 0.0.0.0/8, 0.0.0.0/0 or 0.0.0.0/32")
            );
        } else {
            u32::MAX << (32 - bits)
        };
        if address & !mask != 0 {
            let network = Ipv4Addr::from_bits(address & mask);
            let message = format!("{quoted} has bits set outside of its mask; did you mean {network}?");
            return Err(self.error(token, message));
        }
        self.net4(qualifiers, token, address, mask)
    }

    /// `/LENGTH`, if it stands here.
    fn prefix_length(&mut self, most: u32) -> Result<Option<u32>, Error> {
        if !self.take("/") {
            return Ok(None);
        }
        let length = self.peek();
        match length.kind {
            Kind::Word(word) if is_number(word) => {
                self.at += 1;
                let number = self.plain_number(length, word)?;
                if number > most {
                    return Err(
                        self.error(length, format!("/{number} is too long; expected at most /{most}"))
                    );
                }
                Ok(Some(number))
            }
            Kind::Word(word) if word.parse::<Ipv4Addr>().is_ok() => Err(self.error(
                length,
                format!("{} is no prefix length; write `mask` in place of \"/\"", quote(word)),
            )),
            _ => Err(self.expected("a prefix length")),
        }
    }

    fn net4(
        &self,
        qualifiers: Qualifiers<'a>,
        token: Token<'a>,
        value: u32,
        mask: u32,
    ) -> Result<Test, Error> {
        let (ip, arp, rarp) = match qualifiers.proto {
            Proto::Any => (true, true, true),
            Proto::Ipv4 => (true, false, false),
            Proto::Arp => (false, true, false),
            Proto::Rarp => (false, false, true),
            _ => return Err(self.misfit(qualifiers, token, "an IPv4 address")),
        };
        Ok(Test::Net4 { side: qualifiers.side, value, mask, ip, arp, rarp })
    }

    fn net6(
        &self,
        qualifiers: Qualifiers<'a>,
        token: Token<'a>,
        value: u128,
        mask: u128,
    ) -> Result<Test, Error> {
        if !matches!(qualifiers.proto, Proto::Any | Proto::Ipv6) {
            return Err(self.misfit(qualifiers, token, "an IPv6 address"));
        }
        let halves = packetloom_packet::key::halves;
        Ok(Test::Net6 { side: qualifiers.side, value: halves(value), mask: halves(mask) })
    }

    fn misfit(&self, qualifiers: Qualifiers<'a>, token: Token<'a>, what: &str) -> Error {
        let named = qualifiers.named.map_or("", |named| named.text);
        self.error(token, format!("{} is {what}, which does not go with `{named}`", quote(token.text)))
    }

    fn port(&self, token: Token<'a>, word: &str) -> Result<u16, Error> {
        if is_number(word) {
            let number = self.plain_number(token, word)?;
            return u16::try_from(number)
                .map_err(|_| self.error(token, format!("{number} is no port; expected 0 to 65535")));
        }
        if let Some(port) = names::service(word) {
            return Ok(port);
        }
        let quoted = quote(word);
        let is_range = word.split_once('-').is_some_and(|(low, high)| is_number(low) && is_number(high));
        let message = if is_range {
            format!("{quoted} is a range; write `portrange` before it")
        } else if let Some(hint) = self.keyword(word) {
            format!("{quoted} stands here; expected a port number or the name of a service{hint}")
        } else if let Some(near) = names::nearest(word, names::services().chain(names::words())) {
            format!("{quoted} is no service; did you mean {near:?}?")
        } else {
            format!("{quoted} is not in the list of services; write the port number")
        };
        Err(self.error(token, message))
    }

    fn port_range(&self, token: Token<'a>, word: &str) -> Result<(u16, u16), Error> {
        // Names have dashes, too.
        let dashes = word.match_indices('-').map(|(at, _)| (&word[..at], &word[at + 1..]));
        let is_port = |word: &str| is_number(word) || names::service(word).is_some();
        for (low, high) in dashes {
            if is_port(low) && is_port(high) {
                let (low, high) = (self.port(token, low)?, self.port(token, high)?);
                // As libpcap does.
                return Ok((low.min(high), low.max(high)));
            }
        }
        if is_port(word) {
            let port = self.port(token, word)?;
            return Ok((port, port));
        }
        Err(self.error(token, format!("{} is no range of ports; expected one such as 1-1024", quote(word))))
    }

    fn protocol(
        &self,
        qualifiers: Qualifiers<'a>,
        token: Token<'a>,
        word: &str,
        is_name: bool,
    ) -> Result<Test, Error> {
        let number = if is_number(word) && !is_name { Some(self.plain_number(token, word)?) } else { None };
        let quoted = quote(word);
        if qualifiers.proto == Proto::Ether {
            return match number {
                Some(number @ 0..=MAX_LENGTH_FIELD) => {
                    Err(self.error(token, format!("{number} is no EtherType; LLC service access points are not supported")))
                }
                Some(number) => match u16::try_from(number) {
                    Ok(number) => Ok(Test::EtherType(number)),
                    Err(_) => Err(self.error(token, format!("{quoted} is no EtherType; expected up to 0xffff"))),
                },
                None => match names::find(names::ETHERTYPES, word) {
                    Some(number) => Ok(Test::EtherType(number)),
                    None => Err(self.error(token, format!("{quoted} is no known EtherType; expected its number, `\\ip`, `\\ip6`, `\\arp` or `\\rarp`"))),
                },
            };
        }
        let number = match number {
            Some(number) => u8::try_from(number)
                .map_err(|_| self.error(token, format!("{number} is no IP protocol; expected 0 to 255")))?,
            None => {
                match names::ip_protocol(word) {
                    Some(number) => number,
                    None => return Err(self.error(
                        token,
                        format!(
                            "{quoted} is no known IP protocol; expected its number or a name such as `\\tcp`"
                        ),
                    )),
                }
            }
        };
        let (ipv4, ipv6) = match qualifiers.proto {
            Proto::Ipv4 => (true, false),
            Proto::Ipv6 => (false, true),
            _ => (true, true),
        };
        Ok(Test::Protocol { number, ipv4, ipv6 })
    }

    /// A number that has to stand here.
    pub(super) fn number_of(&mut self, what: &str) -> Result<u32, Error> {
        let token = self.peek();
        match token.kind {
            Kind::Word(word) if is_number(word) => {
                self.at += 1;
                self.plain_number(token, word)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// A number as in C: decimal, octal behind a 0, hexadecimal behind 0x.
    pub(super) fn plain_number(&self, token: Token<'a>, word: &str) -> Result<u32, Error> {
        let (digits, radix) = match word.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&word[2..], 16),
            [b'0', _, ..] => (&word[1..], 8),
            _ => (word, 10),
        };
        u32::from_str_radix(digits, radix).map_err(|_| {
            let message = if radix == 8 && digits.contains(['8', '9']) {
                format!("{} begins with 0, which makes it octal, but has a digit above 7", quote(word))
            } else if digits.is_empty() {
                format!("{} has no digits", quote(word))
            } else {
                format!("{} is too large; expected at most 4294967295", quote(word))
            };
            self.error(token, message)
        })
    }
}

/// Whether a word is a number as in C, of any size.
pub(super) fn is_number(word: &str) -> bool {
    match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|c| c.is_ascii_hexdigit()),
        None => !word.is_empty() && word.bytes().all(|c| c.is_ascii_digit()),
    }
}

/// One to four numbers with points between them: an address whose other parts are 0, and how many bits were given.
fn short_address(word: &str) -> Option<(u32, u32)> {
    let (mut address, mut bits) = (0, 0);
    for part in word.split('.') {
        let is_plain =
            part.bytes().all(|c| c.is_ascii_digit()) && (part.len() == 1 || !part.starts_with('0'));
        let part: u8 = part.parse().ok().filter(|_| is_plain && bits < 32)?;
        bits += 8;
        address |= u32::from(part) << (32 - bits);
    }
    Some((address, bits))
}

/// An Ethernet address: six numbers of one or two hexadecimal digits with `:`, `-` or `.` between them, three of four digits with `.`, or
/// twelve digits.
fn mac(word: &str) -> Option<[u8; 6]> {
    let mut address = [0; 6];
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
    let whole = match word.len() {
        12 => hexadecimal(word),
        14 => {
            let mut parts = word.split('.');
            let part = |part: &str| hexadecimal(part).filter(|_| part.len() == 4);
            let (a, b, c) =
                (part(parts.next()?), part(parts.next().unwrap_or("")), part(parts.next().unwrap_or("")));
            match (a, b, c, parts.next()) {
                (Some(a), Some(b), Some(c), None) => Some(a << 32 | b << 16 | c),
                _ => None,
            }
        }
        _ => None,
    };
    if let Some(whole) = whole {
        address.copy_from_slice(&whole.to_be_bytes()[2..]);
        return Some(address);
    }
    let separator = word.find([':', '-', '.']).map(|at| &word[at..=at])?;
    let mut parts = word.split(separator);
    for byte in &mut address {
        let part = parts.next().filter(|part| matches!(part.len(), 1 | 2))?;
        *byte = hexadecimal(part)? as u8;
    }
    parts.next().is_none().then_some(address)
}

fn ports(qualifiers: Qualifiers<'_>, low: u16, high: u16) -> Test {
    let transports = match qualifiers.proto {
        Proto::Tcp => Transports::TCP,
        Proto::Udp => Transports::UDP,
        Proto::Sctp => Transports::SCTP,
        _ => Transports::ALL,
    };
    Test::Ports { transports, side: qualifiers.side, low, high }
}
