//! BGP flow specifications (RFC 8955, for IPv6 RFC 8956): [`hex`], NLRIs as hexadecimal numbers, and [`exabgp`], the text of
//! ExaBGP.
//!
//! Which flow decides is not said by the order of a file but by the flows themselves (RFC 8955 section 5.1), so the rules come
//! in that order. Packets that no flow matches are forwarded.

pub mod exabgp;
pub mod hex;
mod meaning;
mod nlri;
mod operators;
mod write;

use super::builder::{Builder, Fault};
use super::{Error, Format, MAX_RULES, Reading};
use crate::rule::{Action, Rule};
use nlri::Flow;

/// The flows of a file, each with what its rules have beside conditions.
struct Table<'a> {
    builder: Builder<'a>,
    flows: Vec<(Flow, Rule)>,
    /// Whether the file held a flow, be it one that was left out.
    has_any: bool,
}

impl<'a> Table<'a> {
    fn new(builder: Builder<'a>) -> Self {
        Self { builder, flows: Vec::new(), has_any: false }
    }

    /// Adds a flow, or counts the fault of the line that should hold one.
    fn add(&mut self, template: Rule, flow: Result<Flow, Fault>) -> Result<(), Error> {
        self.has_any = true;
        let line = template.line;
        match flow.and_then(|flow| meaning::regions(&flow).map(|_| flow)) {
            Err(fault) => self.builder.fault(line, fault),
            Ok(_) if self.flows.len() == MAX_RULES => {
                Err(self.builder.syntax(line, format!("more than {MAX_RULES} flows")))
            }
            Ok(flow) => {
                self.flows.push((flow, template));
                Ok(())
            }
        }
    }

    /// Puts the flows in order and makes rules of them. A file without a flow says nothing, though routers would forward all
    /// packets; `none` is what is said of it.
    fn finish(mut self, format: Format, none: &str) -> Result<Reading, Error> {
        if !self.has_any {
            return Err(self.builder.no_list(none));
        }
        self.flows.sort_by(|(a, _), (b, _)| a.order(b));
        let mut before: Option<(&Flow, &Rule)> = None;
        for (flow, template) in &self.flows {
            if let Some((_, first)) = before.filter(|(before, _)| before.order(flow).is_eq()) {
                if first.action != template.action {
                    let message = format!("the flow of line {} again, with another action", first.line);
                    return Err(self.builder.syntax(template.line, message));
                }
                continue;
            }
            before = Some((flow, template));
            let regions = meaning::regions(flow).or_else(|fault| {
                self.builder.fault(template.line, fault)?;
                Ok(Vec::new())
            })?;
            for region in regions {
                self.builder.region(template, &region)?;
            }
        }
        Ok(self.builder.finish(format, Some(Action::Permit)))
    }
}
