//! From tokens to the syntax tree.
//!
//! The grammar is libpcap's as far as the subset goes: `and` and `or` have one precedence and associate to the left, `not` binds tightest,
//! and a value without a qualifier takes those of the value before it.

use packetloom_packet::protocol;

use crate::error::{Error, quote};
use crate::lex::{Kind, Token};
use crate::names;
use crate::tree::{Node, Op, Side, Test};

mod numbers;
mod values;

pub(crate) use numbers::MAX_STACK;
use values::is_number;

/// Brackets and parentheses within each other, and signs before a number.
const MAX_NESTING: u32 = 64;
const MAX_VLAN: u32 = 4095;

/// A protocol that qualifies what stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    Any,
    Ether,
    Ipv4,
    Ipv6,
    Arp,
    Rarp,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
    Igmp,
    Igrp,
    Pim,
    Vrrp,
    Carp,
    Ah,
    Esp,
}

/// What kind of thing a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

impl What {
    const fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Net => "net",
            Self::Port => "port",
            Self::PortRange => "portrange",
            Self::Proto => "proto",
        }
    }

    /// What is expected behind the word.
    const fn expects(self) -> &'static str {
        match self {
            Self::Host => "an IPv4, IPv6 or Ethernet address",
            Self::Net => "a network such as 10.0.0.0/8, 10.1 or 2001:db8::/32",
            Self::Port => "a port number or the name of a service",
            Self::PortRange => "a range of ports such as 1-1024",
            Self::Proto => "a protocol number or name",
        }
    }
}

/// The qualifiers of a value: protocol, side, kind.
#[derive(Clone, Copy, Debug)]
struct Qualifiers<'a> {
    proto: Proto,
    /// The protocol's token, for messages.
    named: Option<Token<'a>>,
    side: Side,
    what: What,
}

/// What may stand at a place of the text.
#[derive(Clone, Copy)]
enum Context<'a> {
    /// A number.
    Number,
    /// A condition or a number; a value alone takes these qualifiers.
    Condition(Option<Qualifiers<'a>>),
}

/// A part of the text that was read.
enum Value<'a> {
    /// A condition, by its node, and the qualifiers that values behind it take.
    Condition(u32, Option<Qualifiers<'a>>),
    Number(Number),
}

/// A value of a comparison.
struct Number {
    ops: Vec<Op>,
    shape: Shape,
}

/// How a number was put together, without parentheses around it. In libpcap `^` and `%` have no precedence, so their operands are
/// parenthesised.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Single,
    Xor,
    Modulo,
    Other,
}

/// Reads a whole filter; no node stands for one that matches everything.
pub(crate) fn parse(text: &str) -> Result<Vec<Node>, Error> {
    let tokens = crate::lex::tokens(text)?;
    let mut parser = Parser { text, tokens, at: 0, depth: 0, nodes: Vec::new() };
    if parser.peek().kind != Kind::End {
        let begin = parser.at;
        if let Value::Number(_) = parser.expression(Context::Condition(None))? {
            return Err(parser.uncompared(begin));
        }
        let token = parser.peek();
        if token.kind != Kind::End {
            return Err(parser.unexpected(token));
        }
    }
    Ok(parser.nodes)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: u32,
    nodes: Vec<Node>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Token<'a> {
        // The last one is the end.
        self.tokens[(self.at + ahead).min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Takes the next token if it is this word or symbol.
    fn take(&mut self, text: &str) -> bool {
        let is_it = is(self.peek(), text);
        self.at += usize::from(is_it);
        is_it
    }

    fn error(&self, token: Token<'_>, message: impl Into<String>) -> Error {
        Error::new(self.text, token.at, token.text, message)
    }

    /// That something else stands at the next token.
    fn expected(&self, what: &str) -> Error {
        let token = self.peek();
        match token.kind {
            Kind::End => self.error(token, format!("the filter ends here; expected {what}")),
            _ => self.error(token, format!("{} stands here; expected {what}", quote(token.text))),
        }
    }

    /// That a token stands behind a whole condition.
    fn unexpected(&self, token: Token<'_>) -> Error {
        match token.kind {
            Kind::Symbol(")") => self.error(token, "\")\" closes no parenthesis"),
            Kind::Symbol(",") => self.error(token, "\",\" stands here; lists are written with `or`"),
            Kind::Word(word) if is_number(word) => self
                .expected("`and`, `or` or the end of the filter (a port is written `port` and its number)"),
            _ => {
                let near = names::nearest(token.text, names::words());
                let hint = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
                self.expected(&format!("`and`, `or` or the end of the filter{hint}"))
            }
        }
    }

    /// That the number which begins at this token is not compared with anything.
    fn uncompared(&self, begin: usize) -> Error {
        let token = self.tokens[begin];
        match token.kind {
            Kind::Word(word) if self.at == begin + 1 && word != "len" => self.unknown(token, word),
            _ => self.expected("a comparison such as `= 1` after a number"),
        }
    }

    /// That a word is not known here.
    fn unknown(&self, token: Token<'_>, word: &str) -> Error {
        if let Some(hint) = names::find(names::UNSUPPORTED, word) {
            let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
            return self.error(token, format!("`{word}` is not supported{hint}"));
        }
        let quoted = quote(word);
        let looks_like_address = word.starts_with(|c: char| c.is_ascii_digit()) || word.contains(':');
        if looks_like_address {
            let before = "expected `host`, `net`, `port` or another qualifier before it";
            return self.error(token, format!("{quoted} has no qualifier; {before}"));
        }
        if names::find(names::NUMBERS, word).is_some() {
            return self.error(
                token,
                format!(
                    "{quoted} is a number; expected it in a comparison such as `tcp[tcpflags] & tcp-syn != 0`"
                ),
            );
        }
        let mut message = format!("{quoted} is not a word of the filter language");
        match names::nearest(word, names::words()) {
            Some(near) => message += &format!("; did you mean {near:?}?"),
            None => {
                message += "; expected a protocol, `host`, `net`, `port` or another test (names of hosts are not supported: write the address)"
            }
        }
        self.error(token, message)
    }

    fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        // There are fewer nodes than bytes of text.
        (self.nodes.len() - 1) as u32
    }

    fn test(&mut self, test: Test) -> u32 {
        self.push(Node::Test(test))
    }

    /// Reads something within brackets, or behind a sign.
    fn nested<T>(
        &mut self,
        token: Token<'a>,
        read: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.depth == MAX_NESTING {
            return Err(
                self.error(token, format!("more than {MAX_NESTING} brackets or signs within each other"))
            );
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    /// Conditions joined by `and` and `or`, or a number alone.
    fn expression(&mut self, context: Context<'a>) -> Result<Value<'a>, Error> {
        let first = self.term(context)?;
        let Value::Condition(mut left, mut qualifiers) = first else { return Ok(first) };
        loop {
            let joins_all = if self.take("and") || self.take("&&") {
                true
            } else if self.take("or") || self.take("||") {
                false
            } else {
                return Ok(Value::Condition(left, qualifiers));
            };
            let begin = self.at;
            let Value::Condition(right, those) = self.term(Context::Condition(qualifiers))? else {
                return Err(self.uncompared(begin));
            };
            qualifiers = those;
            left = self.push(if joins_all { Node::And(left, right) } else { Node::Or(left, right) });
        }
    }

    /// One condition with its `not`s, or a number.
    fn term(&mut self, context: Context<'a>) -> Result<Value<'a>, Error> {
        let (mut negated, mut any) = (false, false);
        while self.take("not") || self.take("!") {
            (negated, any) = (!negated, true);
        }
        match self.comparison(context)? {
            Value::Condition(node, qualifiers) if negated => {
                Ok(Value::Condition(self.push(Node::Not(node)), qualifiers))
            }
            Value::Number(_) if any => Err(self.expected("a comparison such as `= 1` after a number")),
            value => Ok(value),
        }
    }

    /// A condition that is no comparison, without parentheses around it.
    fn condition(&mut self, context: Context<'a>) -> Result<Value<'a>, Error> {
        let inherited = match context {
            Context::Number => None,
            Context::Condition(inherited) => inherited,
        };
        let token = self.peek();
        let word = match token.kind {
            Kind::Word(word) => word,
            Kind::Name(_) if inherited.is_some() => "",
            Kind::Name(name) => {
                let message =
                    format!("{} has no qualifier; expected `proto` or `port` before it", quote(name));
                return Err(self.error(token, message));
            }
            Kind::Symbol(_) | Kind::End => return Err(self.expected("a condition such as `tcp port 443`")),
        };
        let done = |node| Ok(Value::Condition(node, None));
        match word {
            "broadcast" | "multicast" => {
                self.at += 1;
                let node = self.group(Proto::Any, token, word)?;
                return done(node);
            }
            "less" | "greater" => {
                self.at += 1;
                let length = self.number_of("a length in bytes")?;
                let (low, high) = if word == "less" { (0, length) } else { (length, u32::MAX) };
                let node = self.test(Test::Length { low, high });
                return done(node);
            }
            "vlan" => {
                self.at += 1;
                let follows = self.peek();
                let id = match follows.kind {
                    Kind::Word(word) if is_number(word) => {
                        self.at += 1;
                        let id = self.plain_number(follows, word)?;
                        if id > MAX_VLAN {
                            return Err(
                                self.error(follows, format!("{id} is no VLAN id; expected 0 to {MAX_VLAN}"))
                            );
                        }
                        Some(id as u16)
                    }
                    _ => None,
                };
                let node = self.test(Test::Vlan(id));
                return done(node);
            }
            _ => {}
        }
        let proto = names::find(names::PROTOCOLS, word);
        let Some(proto) = proto else {
            if let Some(qualifiers) = self.qualifiers(Proto::Any, None)? {
                return self.value(qualifiers);
            }
            return match inherited {
                Some(qualifiers) if names::find(names::UNSUPPORTED, word).is_none() || word.is_empty() => {
                    self.value(qualifiers)
                }
                _ => Err(self.unknown(token, word)),
            };
        };
        self.at += 1;
        if let Some(qualifiers) = self.qualifiers(proto, Some(token))? {
            return self.value(qualifiers);
        }
        let follows = self.peek();
        if let Kind::Word(kind @ ("broadcast" | "multicast")) = follows.kind {
            self.at += 1;
            let node = self.group(proto, follows, kind)?;
            return done(node);
        }
        if let Kind::Word(word) = follows.kind
            && let Some(hint) = names::find(names::UNSUPPORTED, word)
        {
            let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
            return Err(self.error(follows, format!("`{word}` is not supported{hint}")));
        }
        let node = self.alone(proto, token)?;
        done(node)
    }

    /// A protocol that stands alone.
    fn alone(&mut self, proto: Proto, token: Token<'a>) -> Result<u32, Error> {
        let (v4, v6) = ((true, false), (false, true));
        let of = |number, (ipv4, ipv6)| Test::Protocol { number, ipv4, ipv6 };
        let test = match proto {
            Proto::Any | Proto::Ether => {
                let message = format!(
                    "`{}` does not stand alone; expected `host`, `proto`, `broadcast` or `multicast` after it",
                    token.text
                );
                return Err(self.error(token, message));
            }
            Proto::Ipv4 => Test::Ipv4,
            Proto::Ipv6 => Test::Ipv6,
            Proto::Arp => Test::EtherType(crate::ETHERTYPE_ARP),
            Proto::Rarp => Test::EtherType(crate::ETHERTYPE_RARP),
            Proto::Tcp => of(protocol::TCP, (true, true)),
            Proto::Udp => of(protocol::UDP, (true, true)),
            Proto::Sctp => of(protocol::SCTP, (true, true)),
            Proto::Pim => of(PIM, (true, true)),
            Proto::Ah => of(protocol::AH, (true, true)),
            Proto::Esp => of(protocol::ESP, (true, true)),
            Proto::Icmp => of(protocol::ICMP, v4),
            Proto::Igmp => of(IGMP, v4),
            Proto::Igrp => of(IGRP, v4),
            Proto::Vrrp | Proto::Carp => of(VRRP, v4),
            Proto::Icmp6 => of(protocol::ICMPV6, v6),
        };
        Ok(self.test(test))
    }

    /// `broadcast` or `multicast`, with the protocol before it.
    fn group(&mut self, proto: Proto, token: Token<'a>, word: &str) -> Result<u32, Error> {
        let test = match (proto, word) {
            (Proto::Any | Proto::Ether, "broadcast") => {
                Test::Mac { side: Side::Destination, address: [0xff; 6] }
            }
            (Proto::Any | Proto::Ether, _) => Test::EtherMulticast,
            (Proto::Ipv4, "multicast") => Test::Ipv4Multicast,
            (Proto::Ipv6, "multicast") => Test::Ipv6Multicast,
            (Proto::Ipv4, _) => {
                let message = "`ip broadcast` is not supported: it needs the network's mask; write `dst host` with the broadcast address";
                return Err(self.error(token, message));
            }
            _ => {
                let message = format!(
                    "`{word}` does not go with the protocol before it; expected `ether`, `ip` or `ip6`, or none"
                );
                return Err(self.error(token, message));
            }
        };
        Ok(self.test(test))
    }

    /// The qualifiers that stand here, behind a protocol if there is one.
    fn qualifiers(
        &mut self,
        proto: Proto,
        named: Option<Token<'a>>,
    ) -> Result<Option<Qualifiers<'a>>, Error> {
        let side = match self.peek().kind {
            Kind::Word(side @ ("src" | "dst")) => {
                self.at += 1;
                let other = if side == "src" { "dst" } else { "src" };
                let joined = self.peek();
                if is(self.peek_at(1), other) && (is(joined, "or") || is(joined, "||")) {
                    self.at += 2;
                    Some(Side::Either)
                } else if is(self.peek_at(1), other) && (is(joined, "and") || is(joined, "&&")) {
                    self.at += 2;
                    Some(Side::Both)
                } else if side == "src" {
                    Some(Side::Source)
                } else {
                    Some(Side::Destination)
                }
            }
            _ => None,
        };
        let token = self.peek();
        let what = match token.kind {
            Kind::Word("host") => Some(What::Host),
            Kind::Word("net") => Some(What::Net),
            Kind::Word("port") => Some(What::Port),
            Kind::Word("portrange") => Some(What::PortRange),
            Kind::Word("proto") => Some(What::Proto),
            _ => None,
        };
        if side.is_none() && what.is_none() {
            return Ok(None);
        }
        if what.is_some() {
            self.at += 1;
        }
        if what == Some(What::Proto) && side.is_some() {
            return Err(self.error(token, "`proto` has no side; expected it without `src` or `dst`"));
        }
        let what = what.unwrap_or(What::Host);
        let fits = match what {
            What::Host | What::Net if proto == Proto::Ether => what == What::Host,
            What::Host | What::Net => {
                matches!(proto, Proto::Any | Proto::Ipv4 | Proto::Ipv6 | Proto::Arp | Proto::Rarp)
            }
            What::Port | What::PortRange => {
                matches!(proto, Proto::Any | Proto::Tcp | Proto::Udp | Proto::Sctp)
            }
            What::Proto => matches!(proto, Proto::Any | Proto::Ether | Proto::Ipv4 | Proto::Ipv6),
        };
        match named {
            Some(named) if !fits => {
                let join = if what == What::Proto { "" } else { "; join two conditions with `and`" };
                let message = format!("`{}` does not go with `{}`{join}", named.text, what.word());
                Err(self.error(named, message))
            }
            _ => Ok(Some(Qualifiers { proto, named, side: side.unwrap_or(Side::Either), what })),
        }
    }
}

/// IGMP (RFC 9776), IGRP, PIM (RFC 7761), and VRRP (RFC 9568), whose number CARP took.
const IGMP: u8 = 2;
const IGRP: u8 = 9;
const PIM: u8 = 103;
const VRRP: u8 = 112;

/// Whether a token is a word or a symbol.
fn is(token: Token<'_>, text: &str) -> bool {
    matches!(token.kind, Kind::Word(word) if word == text)
        || matches!(token.kind, Kind::Symbol(symbol) if symbol == text)
}
