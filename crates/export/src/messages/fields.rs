//! The templates: which elements a record has, in which order and how long.
//!
//! Numbers are those of the IANA registry "IP Flow Information Export (IPFIX) Entities"; NetFlow v9 shares those
//! below 128 (RFC 3954 section 8), and its collectors know the few higher ones that are used here.

use super::{Protocol, Sampling};

/// The enterprise number under which an element means the reverse direction (RFC 5103 section 6.1).
pub(super) const REVERSE: u32 = 29305;
/// The bit of an element number that says that an enterprise number follows (RFC 7011 section 3.2).
const ENTERPRISE_BIT: u16 = 0x8000;

/// RFC 5103 section 6.3: the source of a biflow is its initiator, as well as the meter can tell.
pub(super) const INITIATOR: u8 = 1;

/// The number of the one selector that there is. Records of flows do not name it, and collectors take it for that of all of them.
const SELECTOR: u64 = 0;
/// IANA's registry "IPFIX selectorAlgorithm".
const SYSTEMATIC_COUNT_BASED: u16 = 1;
const UNIFORM_PROBABILISTIC: u16 = 4;
/// RFC 3954 section 8, SAMPLING_ALGORITHM.
const V9_DETERMINISTIC: u8 = 1;
const V9_RANDOM: u8 = 2;

/// An element of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) id: u16,
    /// Bytes in a record, or [`Element::VARIABLE`].
    pub(super) length: u16,
    /// Whose number it is; 0 is IANA.
    pub(super) enterprise: u32,
}

impl Element {
    /// Each value has its length before it (RFC 7011 section 7).
    pub(super) const VARIABLE: u16 = u16::MAX;
}

const fn field(id: u16, length: u16) -> Element {
    Element { id, length, enterprise: 0 }
}

const fn reverse(element: Element) -> Element {
    element.reverse()
}

const OCTET_DELTA_COUNT: Element = field(1, 8);
const PACKET_DELTA_COUNT: Element = field(2, 8);
const PROTOCOL_IDENTIFIER: Element = field(4, 1);
/// One byte in NetFlow v9, two in IPFIX since RFC 7125.
const TCP_FLAGS: Element = field(6, 1);
const TCP_CONTROL_BITS: Element = field(6, 2);
const SOURCE_TRANSPORT_PORT: Element = field(7, 2);
const SOURCE_IPV4_ADDRESS: Element = field(8, 4);
const DESTINATION_TRANSPORT_PORT: Element = field(11, 2);
const DESTINATION_IPV4_ADDRESS: Element = field(12, 4);
pub(super) const LAST_SWITCHED: Element = field(21, 4);
pub(super) const FIRST_SWITCHED: Element = field(22, 4);
const SOURCE_IPV6_ADDRESS: Element = field(27, 16);
const DESTINATION_IPV6_ADDRESS: Element = field(28, 16);
const EXPORTED_OCTET_TOTAL_COUNT: Element = field(40, 8);
const EXPORTED_MESSAGE_TOTAL_COUNT: Element = field(41, 8);
const EXPORTED_FLOW_RECORD_TOTAL_COUNT: Element = field(42, 8);
const IP_VERSION: Element = field(60, 1);
const SAMPLING_INTERVAL: Element = field(34, 4);
const SAMPLING_ALGORITHM: Element = field(35, 1);
const FLOW_END_REASON: Element = field(136, 1);
const EXPORTING_PROCESS_ID: Element = field(144, 4);
const OBSERVATION_DOMAIN_ID: Element = field(149, 4);
const FLOW_START_MILLISECONDS: Element = field(152, 8);
const FLOW_END_MILLISECONDS: Element = field(153, 8);
const NOT_SENT_FLOW_TOTAL_COUNT: Element = field(166, 8);
pub(super) const BIFLOW_DIRECTION: Element = field(239, 1);
/// `basicList` (RFC 6313).
pub(super) const BASIC_LIST: Element = field(291, Element::VARIABLE);
const SELECTOR_ID: Element = field(302, 8);
const SELECTOR_ALGORITHM: Element = field(304, 2);
const SAMPLING_PACKET_INTERVAL: Element = field(305, 4);
const SAMPLING_PACKET_SPACE: Element = field(306, 4);
const SAMPLING_PROBABILITY: Element = field(311, 8);
/// Not an element but the scope type "System" (RFC 3954 section 6.1).
const SCOPE_SYSTEM: Element = field(1, 4);

/// A template, or an options template where it has scope fields.
pub(super) struct Template {
    pub(super) id: u16,
    /// How many of the first fields are its scope.
    scope: usize,
    fields: &'static [Element],
}

impl Template {
    /// Bytes of a record.
    pub(super) const fn record_len(&self) -> usize {
        let (mut sum, mut at) = (0, 0);
        while at < self.fields.len() {
            sum += self.fields[at].length as usize;
            at += 1;
        }
        sum
    }

    /// Appends the template record.
    pub(super) fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        write_template(self.id, self.scope, self.fields, protocol, out);
    }
}

/// Appends a template record, or one of an options template where there are scope fields: RFC 7011 sections 3.4.1 and 3.4.2.2, RFC 3954
/// sections 5.2 and 6.1.
pub(super) fn write_template(
    id: u16,
    scope: usize,
    elements: &[Element],
    protocol: Protocol,
    out: &mut Vec<u8>,
) {
    let mut put = |value: usize| out.extend_from_slice(&(value as u16).to_be_bytes());
    put(id.into());
    match protocol {
        _ if scope == 0 => put(elements.len()),
        Protocol::Ipfix => {
            put(elements.len());
            put(scope);
        }
        // Lengths in bytes of the two lists.
        Protocol::NetflowV9 => {
            put(scope * 4);
            put((elements.len() - scope) * 4);
        }
    }
    elements.iter().for_each(|&element| write_field(element, out));
}

/// Appends a field specifier (RFC 7011 section 3.2).
pub(super) fn write_field(element: Element, out: &mut Vec<u8>) {
    let enterprise = if element.enterprise > 0 { ENTERPRISE_BIT } else { 0 };
    out.extend_from_slice(&(element.id | enterprise).to_be_bytes());
    out.extend_from_slice(&element.length.to_be_bytes());
    if element.enterprise > 0 {
        out.extend_from_slice(&element.enterprise.to_be_bytes());
    }
}

/// A flow template of each address family, the addresses at its end.
macro_rules! families {
    ($v4:ident = $v4_id:literal, $v6:ident = $v6_id:literal, [$($field:expr),+ $(,)?]) => {
        pub(super) const $v4: Template = Template {
            id: $v4_id,
            scope: 0,
            fields: &[$($field,)+ SOURCE_IPV4_ADDRESS, DESTINATION_IPV4_ADDRESS],
        };
        pub(super) const $v6: Template = Template {
            id: $v6_id,
            scope: 0,
            fields: &[$($field,)+ SOURCE_IPV6_ADDRESS, DESTINATION_IPV6_ADDRESS],
        };
    };
}

families!(
    UNIFLOW_4 = 256,
    UNIFLOW_6 = 257,
    [
        FLOW_START_MILLISECONDS,
        FLOW_END_MILLISECONDS,
        PACKET_DELTA_COUNT,
        OCTET_DELTA_COUNT,
        SOURCE_TRANSPORT_PORT,
        DESTINATION_TRANSPORT_PORT,
        TCP_CONTROL_BITS,
        PROTOCOL_IDENTIFIER,
        IP_VERSION,
        FLOW_END_REASON,
    ]
);
// Reverse elements first: nfdump 1.7.1 knows only the counters among them and takes the others for elements of the
// forward direction, of which the last one counts.
families!(
    BIFLOW_4 = 258,
    BIFLOW_6 = 259,
    [
        reverse(FLOW_START_MILLISECONDS),
        reverse(FLOW_END_MILLISECONDS),
        reverse(PACKET_DELTA_COUNT),
        reverse(OCTET_DELTA_COUNT),
        reverse(TCP_CONTROL_BITS),
        BIFLOW_DIRECTION,
        FLOW_START_MILLISECONDS,
        FLOW_END_MILLISECONDS,
        PACKET_DELTA_COUNT,
        OCTET_DELTA_COUNT,
        SOURCE_TRANSPORT_PORT,
        DESTINATION_TRANSPORT_PORT,
        TCP_CONTROL_BITS,
        PROTOCOL_IDENTIFIER,
        IP_VERSION,
        FLOW_END_REASON,
    ]
);
// Records of NetFlow v9 are multiples of 4 bytes: its flowsets need no padding.
families!(
    UPTIME_4 = 256,
    UPTIME_6 = 257,
    [
        FIRST_SWITCHED,
        LAST_SWITCHED,
        PACKET_DELTA_COUNT,
        OCTET_DELTA_COUNT,
        SOURCE_TRANSPORT_PORT,
        DESTINATION_TRANSPORT_PORT,
        TCP_FLAGS,
        PROTOCOL_IDENTIFIER,
        IP_VERSION,
        FLOW_END_REASON,
    ]
);
families!(
    ABSOLUTE_4 = 258,
    ABSOLUTE_6 = 259,
    [
        FLOW_START_MILLISECONDS,
        FLOW_END_MILLISECONDS,
        PACKET_DELTA_COUNT,
        OCTET_DELTA_COUNT,
        SOURCE_TRANSPORT_PORT,
        DESTINATION_TRANSPORT_PORT,
        TCP_FLAGS,
        PROTOCOL_IDENTIFIER,
        IP_VERSION,
        FLOW_END_REASON,
    ]
);

macro_rules! options {
    ($name:ident, $id:literal, $scope:expr, [$($field:expr),+ $(,)?]) => {
        const $name: Template = Template { id: $id, scope: 1, fields: &[$scope, $($field),+] };
    };
}

/// A scope of 4 bytes, and counters of 8.
pub(super) const EXPORTED_LEN: usize = 28;
pub(super) const NOT_SENT_LEN: usize = 12;
pub(super) const EXPORTED_ID: u16 = 260;
pub(super) const NOT_SENT_ID: u16 = 261;

// RFC 7011 section 4.1.
options!(
    EXPORTED,
    260,
    OBSERVATION_DOMAIN_ID,
    [EXPORTED_MESSAGE_TOTAL_COUNT, EXPORTED_FLOW_RECORD_TOTAL_COUNT, EXPORTED_OCTET_TOTAL_COUNT,]
);
// RFC 7011 section 4.3.
options!(NOT_SENT, 261, EXPORTING_PROCESS_ID, [NOT_SENT_FLOW_TOTAL_COUNT]);
options!(
    EXPORTED_V9,
    260,
    SCOPE_SYSTEM,
    [EXPORTED_MESSAGE_TOTAL_COUNT, EXPORTED_FLOW_RECORD_TOTAL_COUNT, EXPORTED_OCTET_TOTAL_COUNT,]
);
options!(NOT_SENT_V9, 261, SCOPE_SYSTEM, [NOT_SENT_FLOW_TOTAL_COUNT]);

// Their numbers are above those of all flow templates. RFC 5476 sections 6.5.2.1 and 6.5.2.5.
options!(SYSTEMATIC, 512, SELECTOR_ID, [SELECTOR_ALGORITHM, SAMPLING_PACKET_INTERVAL, SAMPLING_PACKET_SPACE]);
options!(RANDOM, 512, SELECTOR_ID, [SELECTOR_ALGORITHM, SAMPLING_PROBABILITY]);
options!(SAMPLING_V9, 512, SCOPE_SYSTEM, [SAMPLING_INTERVAL, SAMPLING_ALGORITHM]);
options!(INTERVAL, 513, OBSERVATION_DOMAIN_ID, [SAMPLING_INTERVAL]);
options!(INTERVAL_V9, 513, SCOPE_SYSTEM, [SAMPLING_INTERVAL]);

/// The templates of records with the basic fields.
pub(super) fn basic(protocol: Protocol, biflows: bool) -> &'static [Template] {
    match protocol {
        Protocol::Ipfix if biflows => &[UNIFLOW_4, UNIFLOW_6, BIFLOW_4, BIFLOW_6],
        Protocol::Ipfix => &[UNIFLOW_4, UNIFLOW_6],
        Protocol::NetflowV9 => &[UPTIME_4, UPTIME_6, ABSOLUTE_4, ABSOLUTE_6],
    }
}

/// Those of options.
pub(super) fn options(protocol: Protocol) -> &'static [Template] {
    match protocol {
        Protocol::Ipfix => &[EXPORTED, NOT_SENT],
        Protocol::NetflowV9 => &[EXPORTED_V9, NOT_SENT_V9],
    }
}

/// Those of options that say how packets were sampled; [`sampling_records`] has their records.
pub(super) fn sampling(protocol: Protocol, is_random: bool) -> &'static [Template] {
    match (protocol, is_random) {
        (Protocol::Ipfix, false) => &[SYSTEMATIC, INTERVAL],
        (Protocol::Ipfix, true) => &[RANDOM, INTERVAL],
        (Protocol::NetflowV9, _) => &[SAMPLING_V9, INTERVAL_V9],
    }
}

/// The records of the templates that [`sampling`] has, in the same order.
pub(super) fn sampling_records(protocol: Protocol, domain: u32, sampling: Sampling) -> [Vec<u8>; 2] {
    let Sampling { interval, is_random } = sampling;
    let (domain, interval) = (domain.to_be_bytes(), interval.get());
    let first = match (protocol, is_random) {
        // One packet is taken, then so many are not.
        (Protocol::Ipfix, false) => [
            &SELECTOR.to_be_bytes()[..],
            &SYSTEMATIC_COUNT_BASED.to_be_bytes(),
            &1u32.to_be_bytes(),
            &(interval - 1).to_be_bytes(),
        ]
        .concat(),
        (Protocol::Ipfix, true) => [
            &SELECTOR.to_be_bytes()[..],
            &UNIFORM_PROBABILISTIC.to_be_bytes(),
            &(1.0 / f64::from(interval)).to_be_bytes(),
        ]
        .concat(),
        (Protocol::NetflowV9, _) => {
            let algorithm = if is_random { V9_RANDOM } else { V9_DETERMINISTIC };
            [&domain[..], &interval.to_be_bytes(), &[algorithm]].concat()
        }
    };
    [first, [domain, interval.to_be_bytes()].concat()]
}

const _: () = {
    assert!(EXPORTED.record_len() == EXPORTED_LEN && NOT_SENT.record_len() == NOT_SENT_LEN);
    assert!(EXPORTED_V9.record_len() == EXPORTED_LEN && NOT_SENT_V9.record_len() == NOT_SENT_LEN);
    assert!(EXPORTED.id == EXPORTED_ID && NOT_SENT.id == NOT_SENT_ID);
    assert!(EXPORTED_V9.id == EXPORTED_ID && NOT_SENT_V9.id == NOT_SENT_ID);
};
