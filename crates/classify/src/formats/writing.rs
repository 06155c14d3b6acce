//! What writing a file has come to, and what writers have in common.

use std::io::Write;

use packetloom_packet::protocol;

use super::{Unwritten, WriteError, WriteOptions};
use crate::{Action, Rule};

/// A file that is being written.
pub(super) struct Writing<'a> {
    pub(super) writer: &'a mut dyn Write,
    pub(super) options: &'a WriteOptions,
    /// What there are no words for.
    pub(super) unwritten: Vec<Unwritten>,
    /// For each rule that the format's writer gets, its position among all of them.
    pub(super) positions: Vec<usize>,
    /// Whether rules may match more fragments, or fewer, than they say.
    pub(super) ignores_fragments: bool,
}

impl Writing<'_> {
    /// Gives up on a rule, or leaves it out where that is what the user wants.
    pub(super) fn inexpressible(
        &mut self,
        index: usize,
        rule: &Rule,
        reason: &str,
    ) -> Result<(), WriteError> {
        let index = self.positions.get(index).copied().unwrap_or(index);
        if !self.options.skip_unsupported {
            let (reason, rule) = (reason.into(), Box::new(rule.clone()));
            return Err(WriteError::Inexpressible { index, reason, rule });
        }
        let (reason, message) = (reason.to_owned(), format!("{reason}: {rule}"));
        self.unwritten.push(Unwritten { line: rule.line, position: index, reason, message });
        Ok(())
    }
}

/// The action of a rule, permit or deny, for formats that have no other; or that there are no words for it.
pub(super) fn decision(rule: &Rule) -> Result<Action, &'static str> {
    match rule.action {
        None => Err("where every rule has an action"),
        Some(Action::Reflect) => Err("where no rule admits connections"),
        Some(action) => Ok(action),
    }
}

/// What a format that has comments says of a rule: its comment or its name, cut to what fits.
pub(super) fn comment(rule: &Rule, max: usize) -> Option<&str> {
    let text = rule.comment.as_deref().or(rule.id.as_deref())?;
    Some(&text[..text.floor_char_boundary(max)])
}

/// The protocols that a rule is to be written with where a format asks for one beside a condition on its header; or that no
/// packet can match it.
pub(super) fn protocols(rule: &Rule) -> Result<Vec<Option<u8>>, &'static str> {
    let has_ports = !(rule.source_ports.is_any() && rule.destination_ports.is_any());
    let has_icmp = rule.icmp_type.is_some() || rule.icmp_code.is_some();
    if !has_ports && !has_icmp && rule.tcp_flags.is_none() {
        return Ok(vec![rule.protocol]);
    }
    let fits = |number: &u8| {
        rule.protocol.is_none_or(|wanted| wanted == *number)
            && (!has_ports || protocol::has_ports(*number))
            && (!has_icmp || protocol::has_type_and_code(*number))
            && (rule.tcp_flags.is_none() || *number == protocol::TCP)
    };
    let fitting: Vec<_> = (0..=u8::MAX).filter(fits).map(Some).collect();
    if fitting.is_empty() { Err("which has no words for what no packet can match") } else { Ok(fitting) }
}
