//! From tokens to the syntax tree.
//!
//! The grammar is libpcap's as far as the subset goes: `and` and `or` have one precedence and associate to the left, `not` binds tightest,
//! and a value without a qualifier takes those of the value before it.

use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_packet::protocol;

use crate::error::{Error, quote};
use crate::lex::{Kind, Token};
use crate::names;
use crate::tree::{Base, Binary, Comparison, Node, Op, Relation, Side, Test, Transports};

/// Brackets and parentheses within each other, and signs before a number.
const MAX_NESTING: u32 = 64;
/// Numbers on the stack of a comparison.
pub(crate) const MAX_STACK: usize = 32;
/// The highest length field of IEEE 802.3: numbers up to it are no EtherTypes.
const MAX_LENGTH_FIELD: u32 = 1500;
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

/// Operators of numbers, by precedence.
const OPERATORS: [(&str, Binary, u32); 10] = [
    ("^", Binary::Xor, 0),
    ("%", Binary::Modulo, 0),
    ("|", Binary::Or, 1),
    ("&", Binary::And, 2),
    ("<<", Binary::ShiftLeft, 3),
    (">>", Binary::ShiftRight, 3),
    ("+", Binary::Add, 4),
    ("-", Binary::Subtract, 4),
    ("*", Binary::Multiply, 5),
    ("/", Binary::Divide, 5),
];

const RELATIONS: [(&str, Relation); 7] = [
    ("=", Relation::Equal),
    ("==", Relation::Equal),
    ("!=", Relation::NotEqual),
    ("<", Relation::Less),
    ("<=", Relation::LessOrEqual),
    (">", Relation::Greater),
    (">=", Relation::GreaterOrEqual),
];

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

    /// A condition without `not`, or a number that is not compared.
    fn comparison(&mut self, context: Context<'a>) -> Result<Value<'a>, Error> {
        let begin = self.peek();
        let left = match self.number(context, 0)? {
            Value::Number(left) => left,
            condition => return Ok(condition),
        };
        let Some(relation) = self.relation() else { return Ok(Value::Number(left)) };
        let right = self.only_number(0)?;
        if self.relation().is_some() {
            self.at -= 1;
            return Err(self.expected("`and`, `or` or the end: a comparison has two sides"));
        }
        for ops in [&left.ops, &right.ops] {
            if depth(ops) > MAX_STACK {
                return Err(self.error(begin, "this comparison is nested too deep"));
            }
        }
        Ok(Value::Condition(self.test(compare(left.ops, relation, right.ops)), None))
    }

    fn relation(&mut self) -> Option<Relation> {
        let Kind::Symbol(symbol) = self.peek().kind else { return None };
        let relation = names::find(&RELATIONS, symbol)?;
        self.at += 1;
        Some(relation)
    }

    /// A number where no condition may stand.
    fn only_number(&mut self, precedence: u32) -> Result<Number, Error> {
        let token = self.peek();
        match self.number(Context::Number, precedence)? {
            Value::Number(number) => Ok(number),
            Value::Condition(..) => {
                Err(self.error(token, format!("{} begins a condition; expected a number", quote(token.text))))
            }
        }
    }

    /// Numbers joined by operators of this precedence and higher ones, or a condition.
    fn number(&mut self, context: Context<'a>, precedence: u32) -> Result<Value<'a>, Error> {
        let first = self.operand(context)?;
        let Value::Number(mut left) = first else { return Ok(first) };
        loop {
            let token = self.peek();
            let Kind::Symbol(symbol) = token.kind else { return Ok(Value::Number(left)) };
            let found = OPERATORS.into_iter().find(|&(other, ..)| other == symbol);
            let Some((_, operator, binds)) = found.filter(|&(.., binds)| binds >= precedence) else {
                return Ok(Value::Number(left));
            };
            self.at += 1;
            let right_token = self.peek();
            let right = self.only_number(binds + 1)?;
            left = self.joined(left, (token, operator), (right_token, right))?;
        }
    }

    fn joined(
        &self,
        left: Number,
        (token, operator): (Token<'a>, Binary),
        (right_token, right): (Token<'a>, Number),
    ) -> Result<Number, Error> {
        let shape = match operator {
            Binary::Xor => Shape::Xor,
            Binary::Modulo => Shape::Modulo,
            _ => Shape::Other,
        };
        let is_clear = |other: Shape| match (shape, other) {
            (_, Shape::Single) | (Shape::Xor, Shape::Xor) => true,
            (Shape::Other, other) => other == Shape::Other,
            _ => false,
        };
        if !is_clear(left.shape) || !is_clear(right.shape) {
            let message = format!(
                "{} has no precedence beside other operators; put parentheses around its operands or its result",
                quote(token.text)
            );
            return Err(self.error(token, message));
        }
        if let [Op::Number(divisor)] = right.ops[..] {
            if divisor == 0 && matches!(operator, Binary::Divide | Binary::Modulo) {
                return Err(self.error(right_token, "this divides by 0"));
            }
            if divisor > 31 && matches!(operator, Binary::ShiftLeft | Binary::ShiftRight) {
                return Err(self.error(right_token, "this shifts by more than 31 bits"));
            }
        }
        let ops = match (&left.ops[..], &right.ops[..]) {
            (&[Op::Number(a)], &[Op::Number(b)]) => match operator.apply(a, b) {
                Some(result) => vec![Op::Number(result)],
                None => return Err(self.error(right_token, "this divides by 0")),
            },
            _ => {
                let mut ops = left.ops;
                ops.extend(right.ops);
                ops.push(Op::Binary(operator));
                ops
            }
        };
        Ok(Number { ops, shape })
    }

    /// A number, an index, something in parentheses, or a condition.
    fn operand(&mut self, context: Context<'a>) -> Result<Value<'a>, Error> {
        let token = self.peek();
        let single = |ops| Ok(Value::Number(Number { ops, shape: Shape::Single }));
        match token.kind {
            Kind::Symbol("(") => {
                self.at += 1;
                let value = self.nested(token, |parser| parser.expression(context))?;
                if !self.take(")") {
                    let opened = 1 + self.text[..token.at].chars().count();
                    return Err(self.expected(&format!("\")\" for the \"(\" in column {opened}")));
                }
                Ok(match value {
                    // As in libpcap, what follows does not take the qualifiers of what was inside.
                    Value::Condition(node, _) => Value::Condition(node, None),
                    Value::Number(number) => Value::Number(Number { shape: Shape::Single, ..number }),
                })
            }
            Kind::Symbol("-") => {
                self.at += 1;
                let operand = self.nested(token, |parser| {
                    let operand = parser.peek();
                    match parser.operand(Context::Number)? {
                        Value::Number(number) => Ok(number),
                        Value::Condition(..) => Err(parser.error(operand, "expected a number after \"-\"")),
                    }
                })?;
                let ops = match operand.ops[..] {
                    [Op::Number(number)] => vec![Op::Number(number.wrapping_neg())],
                    _ => [&operand.ops[..], &[Op::Negate]].concat(),
                };
                Ok(Value::Number(Number { ops, shape: Shape::Other }))
            }
            Kind::Word("len") => {
                self.at += 1;
                single(vec![Op::Length])
            }
            Kind::Word(word) => {
                if let Some(proto) = names::find(names::PROTOCOLS, word) {
                    if is(self.peek_at(1), "[") {
                        let load = self.index(proto)?;
                        return single(load);
                    }
                } else if is_number(word) || names::find(names::NUMBERS, word).is_some() {
                    // A value of the qualifiers before, unless it is part of a comparison.
                    let behind = self.peek_at(1).kind;
                    let is_number = match context {
                        Context::Number => true,
                        Context::Condition(Some(those))
                            if those.what == What::Net && behind == Kind::Symbol("/") =>
                        {
                            false
                        }
                        Context::Condition(inherited) => match self.behind_parentheses(1) {
                            Kind::Symbol(symbol) if is_operator(symbol) => true,
                            _ => inherited.is_none() && matches!(behind, Kind::Symbol(")") | Kind::End),
                        },
                    };
                    if is_number {
                        self.at += 1;
                        return match names::find(names::NUMBERS, word) {
                            Some(number) => single(vec![Op::Number(number)]),
                            None => single(vec![Op::Number(self.plain_number(token, word)?)]),
                        };
                    }
                }
                self.condition(context)
            }
            _ => self.condition(context),
        }
    }

    /// What stands behind the parentheses that close so many tokens ahead.
    fn behind_parentheses(&self, mut ahead: usize) -> Kind<'a> {
        while self.peek_at(ahead).kind == Kind::Symbol(")") {
            ahead += 1;
        }
        self.peek_at(ahead).kind
    }

    /// `PROTO[OFFSET]` or `PROTO[OFFSET:SIZE]`.
    fn index(&mut self, proto: Proto) -> Result<Vec<Op>, Error> {
        let named = self.next();
        let bracket = self.next();
        let transport = |number, ipv6| Base::Transport { number, ipv4: true, ipv6 };
        let base = match proto {
            Proto::Any | Proto::Ether => Base::Frame,
            Proto::Ipv4 => Base::Ipv4,
            Proto::Ipv6 => Base::Ipv6,
            Proto::Arp => Base::EtherType(crate::ETHERTYPE_ARP),
            Proto::Rarp => Base::EtherType(crate::ETHERTYPE_RARP),
            Proto::Tcp => transport(protocol::TCP, true),
            Proto::Udp => transport(protocol::UDP, true),
            Proto::Sctp => transport(protocol::SCTP, true),
            Proto::Pim => transport(PIM, true),
            Proto::Icmp => transport(protocol::ICMP, false),
            Proto::Igmp => transport(IGMP, false),
            Proto::Igrp => transport(IGRP, false),
            Proto::Vrrp | Proto::Carp => transport(VRRP, false),
            Proto::Icmp6 => Base::Transport { number: protocol::ICMPV6, ipv4: false, ipv6: true },
            Proto::Ah | Proto::Esp => {
                return Err(self.error(named, format!("`{}[…]` is not supported", named.text)));
            }
        };
        let mut ops = self.nested(bracket, |parser| parser.only_number(0))?.ops;
        let size = if self.take(":") {
            let token = self.next();
            match token.kind {
                Kind::Word("1") => 1,
                Kind::Word("2") => 2,
                Kind::Word("4") => 4,
                _ => {
                    let message = format!("{} is no size of a field; expected 1, 2 or 4", quote(token.text));
                    return Err(self.error(token, message));
                }
            }
        } else {
            1
        };
        if !self.take("]") {
            return Err(self.expected("\":\" and a size, or \"]\""));
        }
        // What keys have need not be read from the frame.
        let in_key = match (base, &ops[..], size) {
            (Base::Transport { number: protocol::TCP, .. }, [Op::Number(13)], 1) => Some(Op::TcpFlags),
            (Base::Transport { number, .. }, &[Op::Number(at @ (0 | 1))], 1)
                if protocol::has_type_and_code(number) =>
            {
                Some(Op::Icmp { v6: number == protocol::ICMPV6, code: at == 1 })
            }
            _ => None,
        };
        if let Some(op) = in_key {
            return Ok(vec![op]);
        }
        ops.push(Op::Load { base, size });
        Ok(ops)
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

    /// A value with its qualifiers, or several in parentheses.
    fn value(&mut self, qualifiers: Qualifiers<'a>) -> Result<Value<'a>, Error> {
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
    fn number_of(&mut self, what: &str) -> Result<u32, Error> {
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
    fn plain_number(&self, token: Token<'a>, word: &str) -> Result<u32, Error> {
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

/// Whether a symbol stands between the two numbers of a comparison or an operation.
fn is_operator(symbol: &str) -> bool {
    names::find(&RELATIONS, symbol).is_some() || OPERATORS.iter().any(|&(other, ..)| other == symbol)
}

/// Whether a word is a number as in C, of any size.
fn is_number(word: &str) -> bool {
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

/// The test of a comparison; common ones have tests of their own.
fn compare(left: Vec<Op>, relation: Relation, right: Vec<Op>) -> Test {
    let (left, relation, right) = match (&left[..], &right[..]) {
        ([Op::Number(_)], [_, ..]) => (right, relation.swapped(), left),
        _ => (left, relation, right),
    };
    let number = match right[..] {
        [Op::Number(number)] => Some(number),
        _ => None,
    };
    let equal = match relation {
        Relation::Equal => Some(true),
        Relation::NotEqual => Some(false),
        _ => None,
    };
    let mask = match left[..] {
        [Op::TcpFlags] => Some(0xff),
        [Op::TcpFlags, Op::Number(mask), Op::Binary(Binary::And)]
        | [Op::Number(mask), Op::TcpFlags, Op::Binary(Binary::And)] => Some(mask as u8),
        _ => None,
    };
    match (mask, number, equal) {
        // A larger number is left to the comparison, which says no.
        (Some(mask), Some(value @ 0..=0xff), Some(equal)) => {
            Test::TcpFlags { mask, value: value as u8, equal }
        }
        _ => Test::Compare(Box::new(Comparison { left, relation, right })),
    }
}

/// Numbers that are on the stack at most.
fn depth(ops: &[Op]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for op in ops {
        match op {
            Op::Number(_) | Op::Length | Op::TcpFlags | Op::Icmp { .. } => now += 1,
            Op::Load { .. } | Op::Negate => {}
            Op::Binary(_) => now -= 1,
        }
        most = most.max(now);
    }
    most
}
