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
use super::region::{Ends, Region};
use super::{Error, Format, MAX_RULES, Reading};
use crate::rule::{Action, Rule};
use nlri::Flow;

/// The flows of a file, each with what its rules have beside conditions.
struct Table<'a> {
    builder: Builder<'a>,
    flows: Vec<(Flow, Rule, u32)>,
    /// What was left out: its line, its index, and the flow where its place among the others is known.
    left_out: Vec<(u32, u32, Option<Flow>)>,
    /// Statements so far: a line may hold several.
    statements: u32,
    /// Whether some flows may have been withdrawn.
    is_withdrawn: bool,
    /// Whether the file held a flow, be it one that was left out.
    has_any: bool,
}

impl<'a> Table<'a> {
    fn new(builder: Builder<'a>) -> Self {
        Self {
            builder,
            flows: Vec::new(),
            left_out: Vec::new(),
            statements: 0,
            is_withdrawn: false,
            has_any: false,
        }
    }

    /// Adds a flow, or counts the fault of the line that should hold one.
    fn add(&mut self, template: Rule, flow: Result<Flow, Fault>) -> Result<(), Error> {
        self.has_any = true;
        let number = self.next_statement();
        let line = template.line;
        let (fault, flow) = match flow {
            Err(fault) => (fault, None),
            Ok(flow) => match meaning::regions(&flow) {
                Err(fault) => (fault, Some(flow)),
                Ok(_) if self.flows.len() == MAX_RULES => {
                    return Err(self.builder.syntax(line, format!("more than {MAX_RULES} flows")));
                }
                Ok(_) => {
                    self.flows.push((flow, template, number));
                    return Ok(());
                }
            },
        };
        let index = self.builder.leave_out(line, fault)?;
        self.left_out(line, index, flow);
        Ok(())
    }

    /// The number of a statement that begins.
    fn next_statement(&mut self) -> u32 {
        let number = self.statements;
        self.statements = number.saturating_add(1);
        self.builder.statement(number);
        number
    }

    /// Takes note of a flow, if it could be read, of what was left out.
    fn left_out(&mut self, line: u32, index: u32, flow: Option<Flow>) {
        self.left_out.push((line, index, flow.filter(Flow::has_order)));
    }

    /// Puts the flows in order and makes rules of them. A file without a flow says nothing, though routers would forward all
    /// packets; `none` is what is said of it.
    fn finish(mut self, format: Format, none: &str) -> Result<Reading, Error> {
        if !self.has_any {
            return Err(self.builder.no_list(none));
        }
        self.flows.sort_by(|(a, ..), (b, ..)| a.order(b));
        let mut left_out = Vec::new();
        for (line, index, flow) in self.left_out {
            match flow {
                Some(flow) => left_out.push((line, index, flow)),
                // It may stand anywhere.
                None => {
                    if let Some(gap) = self.builder.gap(line, index, &Region::of(Ends::Any))? {
                        gap.latest = u32::MAX;
                    }
                }
            }
        }
        left_out.sort_by(|(_, _, a), (_, _, b)| a.order(b));
        let mut left_out = left_out.into_iter().peekable();
        let mut before: Option<(&Flow, &Rule)> = None;
        for (flow, template, number) in &self.flows {
            if let Some((_, first)) = before.filter(|(before, _)| before.order(flow).is_eq()) {
                if first.action != template.action {
                    let message = format!("the flow of line {} again, with another action", first.line);
                    return Err(self.builder.syntax(template.line, message));
                }
                continue;
            }
            before = Some((flow, template));
            // Of two for the same packets, the one that is left out may be the one that decides.
            while let Some((line, index, gap)) = left_out.next_if(|(_, _, gap)| gap.order(flow).is_le()) {
                self.builder.gap(line, index, &meaning::reach(&gap))?;
            }
            self.builder.statement(*number);
            let regions = meaning::regions(flow).or_else(|fault| {
                self.builder.fault(template.line, fault)?;
                Ok(Vec::new())
            })?;
            for region in regions {
                self.builder.region(template, &region)?;
            }
        }
        for (line, index, gap) in left_out {
            self.builder.gap(line, index, &meaning::reach(&gap))?;
        }
        if self.is_withdrawn {
            self.builder.doubt(0..u32::MAX);
        }
        Ok(self.builder.finish(format, Some(Action::Permit)))
    }
}
