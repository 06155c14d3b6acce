//! The records: bytes in the order of the templates in [`super::fields`].

use packetloom_packet::{FlowRecord, HalfFlow};

use super::fields::{
    ABSOLUTE_4, ABSOLUTE_6, BIFLOW_4, BIFLOW_6, INITIATOR, UNIFLOW_4, UNIFLOW_6, UPTIME_4, UPTIME_6,
};

/// Bytes of a record without its two addresses.
pub(super) const UNIFLOW: usize = 41;
pub(super) const BIFLOW: usize = 76;
pub(super) const UPTIME: usize = 32;
pub(super) const ABSOLUTE: usize = 40;

const _: () = {
    assert!(UNIFLOW_4.record_len() == UNIFLOW + 8 && UNIFLOW_6.record_len() == UNIFLOW + 32);
    assert!(BIFLOW_4.record_len() == BIFLOW + 8 && BIFLOW_6.record_len() == BIFLOW + 32);
    assert!(UPTIME_4.record_len() == UPTIME + 8 && UPTIME_6.record_len() == UPTIME + 32);
    assert!(ABSOLUTE_4.record_len() == ABSOLUTE + 8 && ABSOLUTE_6.record_len() == ABSOLUTE + 32);
};

/// One direction of a record; A is the bytes of an address.
#[derive(Clone, Copy)]
pub(super) struct Direction<'a, const A: usize> {
    pub(super) record: &'a FlowRecord,
    pub(super) half: &'a HalfFlow,
    pub(super) addresses: [[u8; A]; 2],
    pub(super) ports: [u16; 2],
}

impl<'a, const A: usize> Direction<'a, A> {
    pub(super) fn forward(record: &'a FlowRecord, addresses: [[u8; A]; 2]) -> Self {
        Self {
            record,
            half: &record.forward,
            addresses,
            ports: [record.source_port, record.destination_port],
        }
    }

    pub(super) fn reverse(record: &'a FlowRecord, [from, to]: [[u8; A]; 2]) -> Self {
        let ports = [record.destination_port, record.source_port];
        Self { record, half: &record.reverse, addresses: [to, from], ports }
    }
}

/// Writes one value after the other. With a slice of constant length the compiler drops all checks.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    #[inline(always)]
    fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.out[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    #[inline(always)]
    fn put_counts(&mut self, half: &HalfFlow) {
        self.put(half.packets.to_be_bytes());
        self.put(half.bytes.to_be_bytes());
    }

    #[inline(always)]
    fn put_ports<const A: usize>(&mut self, flow: &Direction<'_, A>) {
        self.put(flow.ports[0].to_be_bytes());
        self.put(flow.ports[1].to_be_bytes());
    }

    #[inline(always)]
    fn put_kind<const A: usize>(&mut self, flow: &Direction<'_, A>) {
        let version = if A == 4 { 4 } else { 6 };
        self.put([flow.record.protocol, version, flow.record.end_reason as u8]);
    }

    #[inline(always)]
    fn put_addresses<const A: usize>(&mut self, flow: &Direction<'_, A>) {
        self.put(flow.addresses[0]);
        self.put(flow.addresses[1]);
        debug_assert_eq!(self.at, self.out.len());
    }

    /// Times since 1970, and counters.
    #[inline(always)]
    fn put_absolute(&mut self, half: &HalfFlow) {
        self.put(half.first.as_millis().to_be_bytes());
        self.put(half.last.as_millis().to_be_bytes());
        self.put_counts(half);
    }

    /// All of an IPFIX record between its reverse elements and its addresses.
    #[inline(always)]
    fn put_ipfix<const A: usize>(&mut self, flow: &Direction<'_, A>) {
        self.put_absolute(flow.half);
        self.put_ports(flow);
        self.put(u16::from(flow.half.tcp_flags).to_be_bytes());
        self.put_kind(flow);
    }

    /// All of a NetFlow v9 record between its counters and its addresses.
    #[inline(always)]
    fn put_netflow<const A: usize>(&mut self, flow: &Direction<'_, A>) {
        self.put_ports(flow);
        self.put([flow.half.tcp_flags]);
        self.put_kind(flow);
    }
}

#[inline(always)]
pub(super) fn uniflow<const A: usize>(out: &mut [u8], flow: Direction<'_, A>) {
    let mut writer = Writer::new(out);
    writer.put_ipfix(&flow);
    writer.put_addresses(&flow);
}

#[inline(always)]
pub(super) fn biflow<const A: usize>(out: &mut [u8], flow: Direction<'_, A>) {
    let mut writer = Writer::new(out);
    writer.put_absolute(&flow.record.reverse);
    writer.put(u16::from(flow.record.reverse.tcp_flags).to_be_bytes());
    writer.put([INITIATOR]);
    writer.put_ipfix(&flow);
    writer.put_addresses(&flow);
}

/// `times` in milliseconds since the boot time.
#[inline(always)]
pub(super) fn uptime<const A: usize>(out: &mut [u8], flow: Direction<'_, A>, times: [u32; 2]) {
    let mut writer = Writer::new(out);
    writer.put(times[0].to_be_bytes());
    writer.put(times[1].to_be_bytes());
    writer.put_counts(flow.half);
    writer.put_netflow(&flow);
    writer.put_addresses(&flow);
}

#[inline(always)]
pub(super) fn absolute<const A: usize>(out: &mut [u8], flow: Direction<'_, A>) {
    let mut writer = Writer::new(out);
    writer.put_absolute(flow.half);
    writer.put_netflow(&flow);
    writer.put_addresses(&flow);
}

/// An options data record: its scope, then three counters.
pub(super) fn statistics<const N: usize>(out: &mut [u8], scope: u32, counters: [u64; N]) {
    let mut writer = Writer::new(out);
    writer.put(scope.to_be_bytes());
    counters.into_iter().for_each(|counter| writer.put(counter.to_be_bytes()));
}
