//! Differentiated services code points.

use std::fmt;
use std::str::FromStr;

/// How a packet is to be forwarded, by the upper six bits of IPv4's type of service or IPv6's traffic class (RFC 2474 section 3). The
/// other two are for congestion notification (RFC 3168) and no part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// The default forwarding (RFC 2474 section 4.1).
    pub const DEFAULT: Self = Self(0);
    /// Expedited forwarding (RFC 3246 section 2.7).
    pub const EF: Self = Self(46);

    /// The code point of a number, from 0 to 63.
    pub const fn new(number: u64) -> Option<Self> {
        if number < 64 { Some(Self(number as u8)) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Class and drop precedence of assured forwarding (RFC 2597 section 6): 1 to 4, and 1 to 3, where 3 is the first to be
    /// dropped.
    pub const fn assured(self) -> Option<(u8, u8)> {
        match (self.0 >> 3, self.0 & 7) {
            (class @ 1..=4, precedence @ (2 | 4 | 6)) => Some((class, precedence / 2)),
            _ => None,
        }
    }
}

/// By name, in either case: `default` or `be`, the class selectors `cs0` to `cs7` (RFC 2474 section 4.2.2), `af11` to `af43`, and `ef`.
impl FromStr for Dscp {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let number = match name.to_ascii_lowercase().as_bytes() {
            b"default" | b"be" => 0,
            b"ef" => 46,
            [b'c', b's', class @ b'0'..=b'7'] => (class - b'0') * 8,
            [b'a', b'f', class @ b'1'..=b'4', precedence @ b'1'..=b'3'] => {
                (class - b'0') * 8 + (precedence - b'0') * 2
            }
            _ => {
                return Err(format!(
                    "DSCP {name:?}; expected a name such as \"af12\", \"cs1\", \"ef\" or \"default\", or a number from 0 to 63"
                ));
            }
        };
        Ok(Self(number))
    }
}

/// Its name, or its number where it has none.
impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.assured()) {
            (Self::DEFAULT, _) => f.write_str("default"),
            (Self::EF, _) => f.write_str("ef"),
            (_, Some((class, precedence))) => write!(f, "af{class}{precedence}"),
            (Self(number), None) if number % 8 == 0 => write!(f, "cs{}", number / 8),
            (Self(number), None) => number.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Dscp {
        name.parse().expect("a name")
    }

    #[test]
    fn names_are_those_of_the_rfcs() {
        // RFC 2597 section 6, RFC 3246 section 2.7, RFC 2474 section 4.2.2.1.
        for (name, number) in [
            ("af11", 0b001_010),
            ("af12", 0b001_100),
            ("af13", 0b001_110),
            ("af21", 0b010_010),
            ("af32", 0b011_100),
            ("af41", 0b100_010),
            ("af43", 0b100_110),
            ("ef", 0b101_110),
            ("cs1", 0b001_000),
            ("cs7", 0b111_000),
            ("default", 0),
        ] {
            assert_eq!((named(name).number(), named(name).to_string()), (number, name.to_owned()));
        }
        assert_eq!([named("BE"), named("cs0"), named("Af21")], [Dscp(0), Dscp(0), Dscp(18)]);
        for name in ["", "af", "af10", "af14", "af51", "cs8", "ef ", "12", "af111", "höher"] {
            assert!(name.parse::<Dscp>().is_err(), "{name}");
        }
    }

    #[test]
    fn what_has_no_name_is_a_number() {
        let names: Vec<_> = (0..64).filter_map(Dscp::new).map(|dscp| dscp.to_string()).collect();
        assert_eq!(names.len(), 64);
        // Eight class selectors, the default among them, twelve of assured forwarding, and EF.
        assert_eq!(names.iter().filter(|name| name.parse::<u8>().is_err()).count(), 21);
        assert_eq!((names[1].as_str(), Dscp::new(64)), ("1", None));
    }

    #[test]
    fn only_assured_forwarding_has_precedences() {
        let of: Vec<_> = (0..64).filter_map(Dscp::new).filter_map(Dscp::assured).collect();
        assert_eq!((of.len(), of[0], of[11]), (12, (1, 1), (4, 3)));
        assert_eq!(named("af32").assured(), Some((3, 2)));
        // A class selector, and a number beside one.
        assert_eq!([8, 9, 40, 42, 46].map(|number| Dscp(number).assured()), [None; 5]);
    }
}
