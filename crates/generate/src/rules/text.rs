//! Rules as text.

use std::fmt;
use std::io::{BufWriter, Write};

use super::{Action, Rule};
use crate::error::GenerateError;
use crate::shape::{FlagLetters, PortRange, Prefix, ProtocolName, TextFormat, ip};

/// Writes rules, one a line.
///
/// # Errors
///
/// An IPv6 rule in ClassBench's format, which is found when its turn comes; and the output's
/// errors.
pub fn write_rules<W: Write>(rules: &[Rule], format: TextFormat, writer: W) -> Result<(), GenerateError> {
    let mut writer = BufWriter::with_capacity(256 * 1024, writer);
    for (index, rule) in rules.iter().enumerate() {
        match format {
            TextFormat::Packetloom => writeln!(writer, "{rule}")?,
            TextFormat::ClassBench => {
                let line = rule.classbench().ok_or(GenerateError::Ipv6InClassBench { index })?;
                writeln!(writer, "{line}")?;
            }
        }
    }
    writer.flush()?;
    Ok(())
}

impl Rule {
    /// The rule as a line of a ClassBench filter set, less the newline; `None` for IPv6.
    ///
    /// The action is left out, for which the format has no place. TCP flags stand in the high byte
    /// of the last column.
    pub fn classbench(&self) -> Option<ClassBenchFilter<'_>> {
        (!self.shape.ipv6).then_some(ClassBenchFilter(self))
    }
}

/// Shows a rule as ClassBench does. See [`Rule::classbench`].
#[derive(Clone, Copy, Debug)]
pub struct ClassBenchFilter<'a>(&'a Rule);

impl fmt::Display for ClassBenchFilter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.0.shape;
        write!(f, "@{}\t{}\t", Network(false, shape.source), Network(false, shape.destination))?;
        for PortRange { low, high } in [shape.source_ports, shape.destination_ports] {
            write!(f, "{low} : {high}\t")?;
        }
        match shape.protocol {
            Some(number) => write!(f, "{number:#04x}/0xFF\t")?,
            None => f.write_str("0x00/0x00\t")?,
        }
        let [set, mask] = [shape.flags.set, shape.flags.mask].map(|flags| u16::from(flags) << 8);
        write!(f, "{set:#06x}/{mask:#06x}\t")
    }
}

/// The rule in Packetloom's own format:
/// `permit tcp from 0.0.0.0/0 to 192.0.2.0/24 port 80-88 flags A/A`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.shape;
        write!(f, "{} ", self.action)?;
        match shape.protocol {
            Some(number) => write!(f, "{}", ProtocolName(number))?,
            None => f.write_str("any")?,
        }
        let sides =
            [("from", shape.source, shape.source_ports), ("to", shape.destination, shape.destination_ports)];
        for (word, prefix, ports) in sides {
            write!(f, " {word} {}", Network(shape.ipv6, prefix))?;
            if !ports.is_any() {
                write!(f, " port {ports}")?;
            }
        }
        if shape.flags.mask != 0 {
            write!(f, " flags {}/{}", FlagLetters(shape.flags.set), FlagLetters(shape.flags.mask))?;
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
        })
    }
}

/// A prefix with its family: IPv6 or not.
struct Network(bool, Prefix);

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", ip(self.0, self.1.address), self.1.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{FlagMatch, RuleShape};

    fn rule() -> Rule {
        let shape = RuleShape {
            source: Prefix { address: 0xeed4_1dd5, len: 32 },
            destination: Prefix { address: 0x735c_6200, len: 24 },
            destination_ports: PortRange::exactly(1724),
            protocol: Some(6),
            flags: FlagMatch::ACK,
            ..RuleShape::any(false)
        };
        Rule { action: Action::Permit, shape }
    }

    #[test]
    fn classbench_lines() {
        let line = "@238.212.29.213/32\t115.92.98.0/24\t0 : 65535\t1724 : 1724\t0x06/0xFF\t0x1000/0x1000\t";
        assert_eq!(rule().classbench().unwrap().to_string(), line);
        let last = Rule { action: Action::Deny, shape: RuleShape::any(false) };
        let line = "@0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x00/0x00\t0x0000/0x0000\t";
        assert_eq!(last.classbench().unwrap().to_string(), line);
    }

    #[test]
    fn own_lines() {
        let line = "permit tcp from 238.212.29.213/32 to 115.92.98.0/24 port 1724 flags A/A";
        assert_eq!(rule().to_string(), line);
        let shape = RuleShape {
            source: Prefix { address: 0x2001_0db8 << 96, len: 32 },
            source_ports: PortRange { low: 1024, high: 65_535 },
            protocol: Some(17),
            ..RuleShape::any(true)
        };
        let rule = Rule { action: Action::Deny, shape };
        assert_eq!(rule.to_string(), "deny udp from 2001:db8::/32 port 1024-65535 to ::/0");
    }

    #[test]
    fn classbench_has_no_ipv6() {
        let rules = [rule(), Rule { action: Action::Deny, shape: RuleShape::any(true) }];
        let error = write_rules(&rules, TextFormat::ClassBench, Vec::new()).unwrap_err();
        assert!(matches!(error, GenerateError::Ipv6InClassBench { index: 1 }));
        let mut text = Vec::new();
        write_rules(&rules, TextFormat::Packetloom, &mut text).unwrap();
        assert!(String::from_utf8(text).unwrap().ends_with("deny any from ::/0 to ::/0\n"));
    }
}
