//! Reports, compared with slow ones, with nfdump, and with what they should look like.

#![allow(missing_docs)]

mod nfdump;
mod output;
mod records;
mod series;
mod top;
