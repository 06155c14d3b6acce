//! Balancing: the packets of a flow go to one of several backends, and stay with it while others come and go.
//!
//! [`maglev`] has the table that says which.

pub mod maglev;
