//! Sets of names against a map of strings, lists in every format, and what it costs.

mod encode;
mod figures;
mod lists;
mod lookups;
mod oracle;
mod random;
