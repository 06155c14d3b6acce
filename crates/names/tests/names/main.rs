//! Names in bytes made by hand, at random, by the examples of RFCs, and in real captures.

mod captures;
mod dns;
mod encode;
mod fields;
mod http;
mod quic;
mod random;
mod tls;
mod watch;
