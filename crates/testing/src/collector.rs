//! A collector, slow and plain, written from RFC 7011, 5103 and 3954. It knows nothing of the encoder: whatever a
//! record has, its template says. Everything that the RFCs forbid, and everything that this exporter promises beyond,
//! is an assertion.

#![allow(missing_docs, reason = "fields are what their names say")]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Enterprise number (0: IANA's own) and element number. Scope types of NetFlow v9 are under [`SCOPE`].
pub type Element = (u32, u16);

pub const REVERSE: u32 = 29305;
pub const SCOPE: u32 = u32::MAX;

/// RFC 6313.
const BASIC_LIST: Element = (0, 291);

/// One data record: the bytes of each element. Of a list of texts, the texts under their element, an end of line behind each; nothing of an empty one.
pub type Fields = BTreeMap<Element, Vec<u8>>;

#[derive(Debug)]
pub struct Message {
    /// 9 or 10.
    pub version: u16,
    pub sequence: u32,
    /// Seconds since 1970.
    pub time: u32,
    pub domain: u32,
    /// NetFlow v9: milliseconds since 1970.
    pub boot: i64,
    /// Ids of templates in it, in their order.
    pub templates: Vec<u16>,
    /// Flow data records.
    pub flows: Vec<Fields>,
    /// Options data records.
    pub options: Vec<Fields>,
}

#[derive(Clone, PartialEq, Debug)]
struct Template {
    scope: usize,
    /// Element and length; 65,535 is a variable length.
    fields: Vec<(Element, u16)>,
}

#[derive(Default)]
pub struct Collector {
    /// With the export time of the message in which each came first.
    templates: HashMap<(u32, u16), (Template, u32)>,
}

/// Bytes that are read one after the other.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        assert!(len <= self.0.len(), "{len} bytes are wanted, {} are left", self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> u64 {
        number(self.take(len))
    }

    fn u16(&mut self) -> u16 {
        self.number(2) as u16
    }

    fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }
}

/// An unsigned number of up to 8 bytes, most significant byte first.
pub fn number(bytes: &[u8]) -> u64 {
    assert!((1..=8).contains(&bytes.len()));
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Collector {
    /// Takes one message.
    pub fn message(&mut self, bytes: &[u8]) -> Message {
        let mut rest = Bytes(bytes);
        let version = rest.u16();
        let mut message = Message {
            version,
            sequence: 0,
            time: 0,
            domain: 0,
            boot: 0,
            templates: Vec::new(),
            flows: Vec::new(),
            options: Vec::new(),
        };
        let mut count = None;
        match version {
            10 => {
                assert_eq!(usize::from(rest.u16()), bytes.len(), "length of the message");
                message.time = rest.u32();
                message.sequence = rest.u32();
                message.domain = rest.u32();
            }
            9 => {
                count = Some(usize::from(rest.u16()));
                let uptime = rest.u32();
                message.time = rest.u32();
                message.boot = i64::from(message.time) * 1_000 - i64::from(uptime);
                message.sequence = rest.u32();
                message.domain = rest.u32();
            }
            _ => panic!("version {version}"),
        }
        while !rest.0.is_empty() {
            let (id, len) = (rest.u16(), usize::from(rest.u16()));
            assert!(len > 4, "an empty set");
            if version == 9 {
                assert_eq!(len % 4, 0, "flowsets end at multiples of 4 bytes");
            }
            let content = Bytes(rest.take(len - 4));
            match (version, id) {
                (10, 2) | (9, 0) => self.templates(&mut message, content, false),
                (10, 3) | (9, 1) => self.templates(&mut message, content, true),
                (_, 256..) => self.data(&mut message, content, id),
                _ => panic!("set id {id}"),
            }
        }
        let records = message.templates.len() + message.flows.len() + message.options.len();
        assert!(records > 0, "an empty message");
        if let Some(count) = count {
            assert_eq!(count, records, "records by the header");
        }
        assert!(
            message.templates.is_empty() || message.flows.is_empty() && message.options.is_empty(),
            "templates with data"
        );
        message
    }

    fn templates(&mut self, message: &mut Message, mut content: Bytes<'_>, options: bool) {
        // What is shorter than a template is padding.
        while content.0.len() >= 4 {
            let id = content.u16();
            assert!(id >= 256, "template id {id}");
            let (count, scope) = match (options, message.version) {
                (false, _) => (content.u16().into(), 0),
                (true, 10) => (usize::from(content.u16()), usize::from(content.u16())),
                (true, _) => {
                    let (scope, options) = (usize::from(content.u16()), usize::from(content.u16()));
                    assert_eq!((scope % 4, options % 4), (0, 0));
                    ((scope + options) / 4, scope / 4)
                }
            };
            assert!(count > 0, "a template withdrawal");
            assert_eq!(options, scope > 0);
            let mut fields = Vec::new();
            for index in 0..count {
                let (element, len) = (content.u16(), content.u16());
                let element = match message.version {
                    10 if element & 0x8000 != 0 => (content.u32(), element & 0x7fff),
                    9 if index < scope => (SCOPE, element),
                    _ => (0, element),
                };
                assert!(message.version == 10 || len != 65_535, "NetFlow v9 has no variable lengths");
                let is_new = fields.iter().all(|(other, _)| *other != element);
                assert!(is_new || element == BASIC_LIST, "{element:?} twice");
                fields.push((element, len));
            }
            let template = Template { scope, fields };
            let known = self
                .templates
                .entry((message.domain, id))
                .or_insert_with(|| (template.clone(), message.time));
            assert_eq!(known.0, template, "template {id} has changed");
            message.templates.push(id);
        }
        assert!(content.0.iter().all(|byte| *byte == 0), "padding is 0");
    }

    fn data(&mut self, message: &mut Message, mut content: Bytes<'_>, id: u16) {
        let template = self.templates.get(&(message.domain, id));
        let (template, since) = template.unwrap_or_else(|| panic!("no template {id} before its data"));
        assert!(message.version == 9 || message.time >= *since, "data before their template by export time");
        let shortest: usize =
            template.fields.iter().map(|(_, len)| if *len == 65_535 { 1 } else { usize::from(*len) }).sum();
        let mut records = 0;
        while content.0.len() >= shortest {
            let mut record = Fields::new();
            for (element, len) in &template.fields {
                let len = match len {
                    65_535 => match content.number(1) {
                        255 => usize::from(content.u16()),
                        short => short as usize,
                    },
                    fixed => usize::from(*fixed),
                };
                let value = content.take(len);
                if *element == BASIC_LIST {
                    list(value, &mut record);
                } else {
                    record.insert(*element, value.to_vec());
                }
            }
            records += 1;
            if template.scope > 0 { &mut message.options } else { &mut message.flows }.push(record);
        }
        assert!(records > 0, "a set without records");
        assert!(content.0.len() < 4 && content.0.iter().all(|byte| *byte == 0), "padding");
    }
}

/// Reads a list of texts (RFC 6313 section 4.5.1).
fn list(value: &[u8], record: &mut Fields) {
    let mut content = Bytes(value);
    assert_eq!(content.number(1), 4, "in order");
    let (element, len) = (content.u16(), content.u16());
    let element = if element & 0x8000 == 0 { (0, element) } else { (content.u32(), element & 0x7fff) };
    assert_eq!(len, 65_535, "texts");
    let mut texts = Vec::new();
    while !content.0.is_empty() {
        let len = content.number(1) as usize;
        assert!((1..255).contains(&len), "a name");
        texts.extend_from_slice(content.take(len));
        texts.push(b'\n');
    }
    if !texts.is_empty() {
        assert_eq!(record.insert(element, texts), None, "{element:?} twice");
    }
}

/// What a collector makes of the counters and times of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    pub start: u64,
    pub end: u64,
    pub packets: u64,
    pub bytes: u64,
    pub flags: u64,
}

/// What a collector makes of a flow data record. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub addresses: [IpAddr; 2],
    pub ports: [u64; 2],
    pub protocol: u64,
    pub end_reason: u64,
    pub forward: Half,
    pub reverse: Option<Half>,
    pub direction: Option<u64>,
}

impl Flow {
    /// Every field is used; one that is unknown here is an error.
    pub fn new(message: &Message, fields: &Fields) -> Self {
        let mut fields = fields.clone();
        let version = number(&fields.remove(&(0, 60)).unwrap());
        let mut addresses = |ids: [u16; 2]| {
            ids.map(|id| {
                let bytes = fields
                    .remove(&(0, id))
                    .unwrap_or_else(|| panic!("no address {id} in a record of version {version}"));
                match version {
                    4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap())),
                    6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap())),
                    _ => panic!("ipVersion {version}"),
                }
            })
        };
        let addresses = addresses(if version == 4 { [8, 12] } else { [27, 28] });
        let mut value = |enterprise, id| fields.remove(&(enterprise, id)).map(|bytes| number(&bytes));
        let [first, last] = match value(0, 22) {
            Some(first) => {
                let last = value(0, 21).unwrap();
                let header = u64::try_from(i64::from(message.time) * 1_000 - message.boot).unwrap();
                assert!(
                    0 < first && first <= last && last <= header,
                    "{first} to {last} in a message of {header}"
                );
                [first, last].map(|uptime| u64::try_from(message.boot + uptime as i64).unwrap())
            }
            None => [value(0, 152).unwrap(), value(0, 153).unwrap()],
        };
        let flow = Self {
            addresses,
            ports: [value(0, 7).unwrap(), value(0, 11).unwrap()],
            protocol: value(0, 4).unwrap(),
            end_reason: value(0, 136).unwrap(),
            forward: Half {
                start: first,
                end: last,
                packets: value(0, 2).unwrap(),
                bytes: value(0, 1).unwrap(),
                flags: value(0, 6).unwrap(),
            },
            reverse: value(REVERSE, 2).map(|packets| Half {
                start: value(REVERSE, 152).unwrap(),
                end: value(REVERSE, 153).unwrap(),
                packets,
                bytes: value(REVERSE, 1).unwrap(),
                flags: value(REVERSE, 6).unwrap(),
            }),
            direction: value(0, 239),
        };
        assert!(fields.is_empty(), "{fields:?}");
        flow
    }
}
