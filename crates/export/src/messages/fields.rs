//! The templates: which elements a record has, in which order and how long.
//!
//! Numbers are those of the IANA registry "IP Flow Information Export (IPFIX) Entities"; NetFlow v9 shares those
//! below 128 (RFC 3954 section 8), and its collectors know the few higher ones that are used here.

use super::Protocol;

/// The enterprise number under which an element means the reverse direction (RFC 5103 section 6.1).
const REVERSE: u32 = 29305;
/// The bit of an element number that says that an enterprise number follows (RFC 7011 section 3.2).
const ENTERPRISE_BIT: u16 = 0x8000;

/// An element of a template.
#[derive(Clone, Copy)]
pub(super) struct Field {
    id: u16,
    /// Bytes in a record.
    length: u16,
    reverse: bool,
}

const fn field(id: u16, length: u16) -> Field {
    Field { id, length, reverse: false }
}

const fn reverse(field: Field) -> Field {
    Field { reverse: true, ..field }
}

const OCTET_DELTA_COUNT: Field = field(1, 8);
const PACKET_DELTA_COUNT: Field = field(2, 8);
const PROTOCOL_IDENTIFIER: Field = field(4, 1);
/// One byte in NetFlow v9, two in IPFIX since RFC 7125.
const TCP_FLAGS: Field = field(6, 1);
const TCP_CONTROL_BITS: Field = field(6, 2);
const SOURCE_TRANSPORT_PORT: Field = field(7, 2);
const SOURCE_IPV4_ADDRESS: Field = field(8, 4);
const DESTINATION_TRANSPORT_PORT: Field = field(11, 2);
const DESTINATION_IPV4_ADDRESS: Field = field(12, 4);
const LAST_SWITCHED: Field = field(21, 4);
const FIRST_SWITCHED: Field = field(22, 4);
const SOURCE_IPV6_ADDRESS: Field = field(27, 16);
const DESTINATION_IPV6_ADDRESS: Field = field(28, 16);
const EXPORTED_OCTET_TOTAL_COUNT: Field = field(40, 8);
const EXPORTED_MESSAGE_TOTAL_COUNT: Field = field(41, 8);
const EXPORTED_FLOW_RECORD_TOTAL_COUNT: Field = field(42, 8);
const IP_VERSION: Field = field(60, 1);
const FLOW_END_REASON: Field = field(136, 1);
const EXPORTING_PROCESS_ID: Field = field(144, 4);
const OBSERVATION_DOMAIN_ID: Field = field(149, 4);
const FLOW_START_MILLISECONDS: Field = field(152, 8);
const FLOW_END_MILLISECONDS: Field = field(153, 8);
const NOT_SENT_FLOW_TOTAL_COUNT: Field = field(166, 8);
const BIFLOW_DIRECTION: Field = field(239, 1);
/// Not an element but the scope type "System" (RFC 3954 section 6.1).
const SCOPE_SYSTEM: Field = field(1, 4);

/// A template, or an options template where it has scope fields.
pub(super) struct Template {
    pub(super) id: u16,
    /// How many of the first fields are its scope.
    scope: usize,
    fields: &'static [Field],
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

    pub(super) const fn is_options(&self) -> bool {
        self.scope > 0
    }

    /// Appends the template record: RFC 7011 sections 3.4.1 and 3.4.2.2, RFC 3954 sections 5.2 and 6.1.
    pub(super) fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let mut put = |value: usize| out.extend_from_slice(&(value as u16).to_be_bytes());
        put(self.id.into());
        match protocol {
            _ if !self.is_options() => put(self.fields.len()),
            Protocol::Ipfix => {
                put(self.fields.len());
                put(self.scope);
            }
            // Lengths in bytes of the two lists.
            Protocol::NetflowV9 => {
                put(self.scope * 4);
                put((self.fields.len() - self.scope) * 4);
            }
        }
        for field in self.fields {
            let enterprise = if field.reverse { ENTERPRISE_BIT } else { 0 };
            out.extend_from_slice(&(field.id | enterprise).to_be_bytes());
            out.extend_from_slice(&field.length.to_be_bytes());
            if field.reverse {
                out.extend_from_slice(&REVERSE.to_be_bytes());
            }
        }
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

/// All templates that an encoder uses, those of options last.
pub(super) fn templates(protocol: Protocol, biflows: bool) -> &'static [Template] {
    match protocol {
        Protocol::Ipfix if biflows => &[UNIFLOW_4, UNIFLOW_6, BIFLOW_4, BIFLOW_6, EXPORTED, NOT_SENT],
        Protocol::Ipfix => &[UNIFLOW_4, UNIFLOW_6, EXPORTED, NOT_SENT],
        Protocol::NetflowV9 => &[UPTIME_4, UPTIME_6, ABSOLUTE_4, ABSOLUTE_6, EXPORTED_V9, NOT_SENT_V9],
    }
}

const _: () = {
    assert!(EXPORTED.record_len() == EXPORTED_LEN && NOT_SENT.record_len() == NOT_SENT_LEN);
    assert!(EXPORTED_V9.record_len() == EXPORTED_LEN && NOT_SENT_V9.record_len() == NOT_SENT_LEN);
    assert!(EXPORTED.id == EXPORTED_ID && NOT_SENT.id == NOT_SENT_ID);
    assert!(EXPORTED_V9.id == EXPORTED_ID && NOT_SENT_V9.id == NOT_SENT_ID);
};
