//! Numbers and their comparisons: `tcp[tcpflags] & tcp-syn != 0`.

use packetloom_packet::protocol;

use super::{Context, IGMP, IGRP, Number, PIM, Parser, Proto, Shape, VRRP, Value, What, is, is_number};
use crate::error::{Error, quote};
use crate::lex::{Kind, Token};
use crate::names;
use crate::tree::{Base, Binary, Comparison, Op, Relation, Test};

/// Numbers on the stack of a comparison.
pub(crate) const MAX_STACK: usize = 32;

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

impl<'a> Parser<'a> {
    /// A condition without `not`, or a number that is not compared.
    pub(super) fn comparison(&mut self, context: Context<'a>) -> Result<Value<'a>, Error> {
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
}

/// Whether a symbol stands between the two numbers of a comparison or an operation.
fn is_operator(symbol: &str) -> bool {
    names::find(&RELATIONS, symbol).is_some() || OPERATORS.iter().any(|&(other, ..)| other == symbol)
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
        (None, Some(value), _) if left == [Op::Length] && relation != Relation::NotEqual => {
            lengths(relation, value)
        }
        _ => Test::Compare(Box::new(Comparison { left, relation, right })),
    }
}

/// The test of lengths that compare so with a number; one of no length has its bounds swapped.
fn lengths(relation: Relation, value: u32) -> Test {
    let (low, high) = match relation {
        Relation::Less => value.checked_sub(1).map_or((1, 0), |high| (0, high)),
        Relation::LessOrEqual => (0, value),
        Relation::Greater => value.checked_add(1).map_or((1, 0), |low| (low, u32::MAX)),
        Relation::GreaterOrEqual => (value, u32::MAX),
        Relation::Equal | Relation::NotEqual => (value, value),
    };
    Test::Length { low, high }
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
