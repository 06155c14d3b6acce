//! Filters against an evaluator of their syntax trees, and against libpcap.

mod agreement;
mod captures;
mod flows;
mod frames;
mod language;
mod libpcap;
mod oracle;
mod pcap;
mod texts;
