//! Packets on their way to a device, and what comes back.
//!
//! A [`Record`] has the words of an IPv4 key; of an IPv6 one the last two, behind two that are 0. The byte that keys have reserved, the
//! highest of the fourth word, has the packet's DSCP ([`DSCP`]) where functions look at it ([`Needs::dscps`]), and is 0 elsewhere. Then come
//! the time in two words, nanoseconds since the epoch, the lower half first, and IP bytes. The last word, from its lowest bit:
//!
//! | bits | what |
//! | --- | --- |
//! | 1 | [`TAKES_PART`]: functions judge the packet |
//! | 1 | [`IS_V6`] |
//! | 2 | [`ROLE`]: what it is to its connection, as [`role`] numbers it; 0, a member, where no definition is by connection |
//! | 1 | [`FROM_A`], where the next ones are not 0: whether endpoint `a` of that connection sent it ([`Connection::from_a`]) |
//! | 1 | [`OTHER_FRAMING`]: its framing is not basic |
//! | 24 | from bit 8 on, if it takes part, [`CONNECTION`]: the place of its connection's key among the [`Ipv6Addresses`]s; 0 where the connection is that of its 5-tuple |
//! | 8 | from bit 8 on, if it takes no part, [`VERDICT`]: the code of its verdict |
//!
//! Behind the [`Ipv6Addresses`]s of all packets stand the keys of connections that are not those of a packet's 5-tuple, two [`Ipv6Addresses`]s for each: the
//! words of the key in an entry ([`key_words`]), of 64 bits, the lower half first.

use bytemuck::{Pod, Zeroable};
use packetloom_nf::flows::{connection_of, key_words};
use packetloom_nf::meter::{DETAIL_WORDS, details_of};
use packetloom_packet::batch::Parsed;
use packetloom_packet::{
    Address, Batch, Connection, Dscp, End, Headers, Key, MatchKey4, MatchKey6, Rewrite, Role, Timestamp,
    Verdict, rewrite,
};

/// Where the DSCP begins in the fourth word of a record, if it is there.
pub const DSCP: u32 = 24;
/// In a record's last word: the packet takes part.
pub const TAKES_PART: u32 = 1;
/// It is IPv6.
pub const IS_V6: u32 = 1 << 1;
/// Where its role begins: two bits.
pub const ROLE: u32 = 2;
/// Where it says which end of its connection sent it.
pub const FROM_A: u32 = 4;
/// Where it says whether its framing is not basic.
pub const OTHER_FRAMING: u32 = 5;
/// Where the place of its connection begins.
pub const CONNECTION: u32 = 8;
/// Where its verdict begins, if it takes no part.
pub const VERDICT: u32 = 8;
/// In an answer's first word, where the bits of rewritten ends begin.
pub(super) const ENDS: u32 = 8;
/// These bits.
const END_SOURCE: u32 = 1;
const END_DESTINATION: u32 = 2;
/// There, where the DSCP begins.
const ANSWER_DSCP: u32 = 10;
/// There, where notes begin.
pub(super) const FIRST_NOTE: u32 = 16;
/// There, whether a DSCP was written.
pub(super) const MARKED: u32 = 1 << 31;

/// The number of a role.
pub const fn role(role: Role) -> u32 {
    match role {
        Role::Member => 0,
        Role::Related => 1,
        Role::Invalid => 2,
        Role::Untracked => 3,
    }
}

/// What kernels are to be told of records.
pub fn defines() -> impl Iterator<Item = (String, String)> {
    let roles =
        [("ROLE_MEMBER", Role::Member), ("ROLE_RELATED", Role::Related), ("ROLE_UNTRACKED", Role::Untracked)];
    let records = [
        ("RECORD_DSCP", DSCP),
        ("RECORD_TAKES_PART", TAKES_PART),
        ("RECORD_IS_V6", IS_V6),
        ("RECORD_ROLE", ROLE),
        ("RECORD_FROM_A", FROM_A),
        ("RECORD_OTHER_FRAMING", OTHER_FRAMING),
        ("RECORD_CONNECTION", CONNECTION),
        ("RECORD_VERDICT", VERDICT),
        ("ANSWER_ENDS", ENDS),
        ("ANSWER_DSCP", ANSWER_DSCP),
        ("ANSWER_ANEW", FIRST_NOTE),
        ("NOTE_MARKED", MARKED),
        ("END_SOURCE", END_SOURCE),
        ("END_DESTINATION", END_DESTINATION),
    ];
    let roles = roles.into_iter().map(|(name, of)| (name, role(of)));
    roles.chain(records).map(|(name, number)| (name.into(), format!("{number}u")))
}

/// What functions need to know of packets beyond their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Their connections: some definition is by that.
    pub connections: bool,
    /// Their DSCPs.
    pub dscps: bool,
    /// What functions that export look at beside: [`details_of`].
    pub details: bool,
    /// Their numbers in the run, and memory for what is exported: functions do.
    pub exports: bool,
}

impl Needs {
    /// The most [`Ipv6Addresses`]s that so many packets may have.
    pub fn wides(self, packets: usize) -> usize {
        if self.connections { 3 * packets } else { packets }
    }
}

packetloom_device::layout! {
    /// What is known of a packet: see [above](self).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    align(16) pub struct Record {
        key: [u32; 4],
        time: [u32; 2],
        bytes: u32,
        kind: u32,
    }
}

packetloom_device::layout! {
    /// The addresses of an IPv6 packet, most significant word first; or half of a connection's key.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    align(16) pub struct Ipv6Addresses {
        source: [u32; 4],
        destination: [u32; 4],
    }
}

packetloom_device::layout! {
    /// What a device found out about a packet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    align(16) pub struct Answer {
        /// From the lowest bit: the verdict's code, 8 bits; rewritten ends, a bit for the source and one for the destination; a DSCP, 6 bits. Then
        /// notes, which functions on the device leave; the highest one says that the DSCP is to be written.
        bits: u32,
        source: u32,
        destination: u32,
        /// Source port in the lower half.
        ports: u32,
    }
}

impl Record {
    /// IP bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    pub(super) fn is_v6(&self) -> bool {
        self.kind & IS_V6 != 0
    }
}

impl Ipv6Addresses {
    fn of(key: &MatchKey6) -> Self {
        let words = |[a, b]: [u64; 2]| [a >> 32, a, b >> 32, b].map(|word| word as u32);
        Self { source: words(key.source), destination: words(key.destination) }
    }

    /// Words of 64 bits.
    fn of_words(words: [u64; 4]) -> Self {
        let [a, b, c, d] = words.map(|word| [word as u32, (word >> 32) as u32]);
        Self { source: [a[0], a[1], b[0], b[1]], destination: [c[0], c[1], d[0], d[1]] }
    }

    fn address(&self, end: End) -> [u64; 2] {
        let words = match end {
            End::Source => self.source,
            End::Destination => self.destination,
        };
        let [a, b, c, d] = words.map(u64::from);
        [a << 32 | b, c << 32 | d]
    }
}

/// The record of one packet by what its headers say, or by the verdict on what has no match key; with its addresses where it is IPv6.
pub fn of_packet(headers: Result<Headers, Verdict>, time: Timestamp) -> (Record, Ipv6Addresses) {
    let time = time.as_nanos();
    let time = [time as u32, (time >> 32) as u32];
    match headers {
        Ok(Headers { key: Key::V4(key), ip_bytes: bytes }) => {
            (Record { key: words_v4(&key), time, bytes, kind: TAKES_PART }, Ipv6Addresses::default())
        }
        Ok(Headers { key: Key::V6(key), ip_bytes: bytes }) => {
            (Record { key: words_v6(&key), time, bytes, kind: TAKES_PART | IS_V6 }, Ipv6Addresses::of(&key))
        }
        Err(verdict) => (
            Record { kind: u32::from(verdict.code()) << VERDICT, ..Record::default() },
            Ipv6Addresses::default(),
        ),
    }
}

/// What a device is told of a parsed batch.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// One for each frame.
    pub packets: Vec<Record>,
    /// The addresses of IPv6 packets, each at its frame's place; none behind the last of these.
    pub wide: Vec<Ipv6Addresses>,
    /// The keys of connections that are not those of a packet's 5-tuple, two for each.
    pub connections: Vec<Ipv6Addresses>,
    /// The details of packets, where they are needed.
    pub details: Vec<[u64; DETAIL_WORDS]>,
}

impl Records {
    /// Takes those of a batch in place of what was there. Where packets' connections are needed, their keys are going to stand at
    /// `connections_at` and behind, among the [`Ipv6Addresses`]s of all packets.
    pub fn take(&mut self, batch: &Batch, needs: Needs, connections_at: u32) {
        let Self { packets, wide, connections, details } = self;
        packets.clear();
        wide.clear();
        connections.clear();
        details.clear();
        let columns = batch.parsed().iter().zip(batch.frames()).zip(batch.verdicts());
        for ((parsed, frame), &verdict) in columns {
            let time = frame.time.as_nanos();
            let time = [time as u32, (time >> 32) as u32];
            let (key, bytes, is_v6) = match *parsed {
                Parsed::V4(at) => (words_v4(&batch.v4().keys[at as usize]), batch.v4().bytes[at as usize], 0),
                Parsed::V6(at) => {
                    let key = &batch.v6().keys[at as usize];
                    wide.resize(packets.len(), Ipv6Addresses::default());
                    wide.push(Ipv6Addresses::of(key));
                    (words_v6(key), batch.v6().bytes[at as usize], IS_V6)
                }
                Parsed::Rejected(_) => {
                    packets.push(Record { kind: u32::from(verdict.code()) << VERDICT, ..Record::default() });
                    continue;
                }
            };
            let takes_part =
                if verdict.is_pass() { TAKES_PART } else { u32::from(verdict.code()) << VERDICT };
            packets.push(Record { key, time, bytes, kind: takes_part | is_v6 });
        }
        if needs.connections {
            add_connections(batch, packets, connections, connections_at);
        }
        if needs.dscps {
            add_dscps(batch, packets);
        }
        if needs.exports {
            for &index in batch.other_framings() {
                packets[index as usize].kind |= 1 << OTHER_FRAMING;
            }
        }
        if needs.details {
            details.extend((0..batch.len()).map(|index| details_of(batch, index).unwrap_or_default()));
        }
    }
}

/// Adds the DSCPs of packets.
fn add_dscps(batch: &Batch, records: &mut [Record]) {
    for (index, (record, frame)) in records.iter_mut().zip(batch.frames()).enumerate() {
        if record.kind & TAKES_PART != 0 {
            let dscp = rewrite::dscp(frame.link, batch.bytes(index)).unwrap_or_default();
            record.key[3] |= u32::from(dscp.number()) << DSCP;
        }
    }
}

/// Adds what packets are to connections that are not those of their 5-tuples, whose keys stand from `at` on.
fn add_connections(batch: &Batch, records: &mut [Record], connections: &mut Vec<Ipv6Addresses>, at: u32) {
    for (index, record) in records.iter_mut().enumerate() {
        if record.kind & TAKES_PART == 0 {
            continue;
        }
        let Some(Connection { flow, from_a, role: own }) = connection_of(batch, index) else { continue };
        record.kind |= role(own) << ROLE;
        if let Role::Member | Role::Related = own {
            record.kind |= u32::from(from_a) << FROM_A | (at + connections.len() as u32) << CONNECTION;
            let [a, b, c, d, e] = key_words(&flow);
            connections
                .extend([Ipv6Addresses::of_words([a, b, c, d]), Ipv6Addresses::of_words([e, 0, 0, 0])]);
        }
    }
}

fn words_v4(key: &MatchKey4) -> [u32; 4] {
    bytemuck::cast(*key)
}

fn words_v6(key: &MatchKey6) -> [u32; 4] {
    let words: [u32; 10] = bytemuck::cast(*key);
    [0, 0, words[8], words[9]]
}

impl Answer {
    /// The verdict on the packet.
    pub fn verdict(&self) -> Option<Verdict> {
        Verdict::of_code(self.bits as u8)
    }

    /// Whether a note is set.
    pub(super) fn has_note(&self, bit: u32) -> bool {
        self.bits >> bit & 1 == 1
    }

    /// Rewrites a frame of the batch as the device did.
    pub fn rewrite(&self, batch: &mut Batch, frame: u32, wide: impl FnOnce() -> Ipv6Addresses) {
        if self.bits & MARKED != 0
            && let Some(dscp) = Dscp::new((self.bits >> ANSWER_DSCP & 0x3f).into())
        {
            batch.set_dscp(frame, dscp);
        }
        let ends = self.bits >> ENDS & (END_SOURCE | END_DESTINATION);
        if ends == 0 {
            return;
        }
        let is_v6 = matches!(batch.parsed()[frame as usize], Parsed::V6(_));
        let wide = if is_v6 { wide() } else { Ipv6Addresses::default() };
        for (bit, end, address, port) in [
            (END_SOURCE, End::Source, self.source, self.ports as u16),
            (END_DESTINATION, End::Destination, self.destination, (self.ports >> 16) as u16),
        ] {
            if ends & bit == 0 {
                continue;
            }
            let address = if is_v6 { Address::V6(wide.address(end)) } else { Address::V4(address) };
            // A port that did not change is none that is to be written.
            let port = Some(port).filter(|&port| Some(port) != port_of(batch, frame, end));
            batch.rewrite(Rewrite { frame, end, address, port });
        }
    }
}

/// The port that one end of a packet has, if it has one.
fn port_of(batch: &Batch, frame: u32, end: End) -> Option<u16> {
    let of = |source: u16, destination: u16| match end {
        End::Source => source,
        End::Destination => destination,
    };
    match batch.parsed()[frame as usize] {
        Parsed::V4(at) => {
            let key = &batch.v4().keys[at as usize];
            Some(of(key.source_port, key.destination_port))
        }
        Parsed::V6(at) => {
            let key = &batch.v6().keys[at as usize];
            Some(of(key.source_port, key.destination_port))
        }
        Parsed::Rejected(_) => None,
    }
}
