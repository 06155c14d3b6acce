//! Packets on their way to a device, and what comes back.

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::Parsed;
use packetloom_packet::{
    Address, Batch, End, Headers, Key, MatchKey4, MatchKey6, Rewrite, Timestamp, Verdict,
};

/// In a record's last word: the packet takes part.
pub const TAKES_PART: u32 = 1;
/// It is IPv6.
pub const IS_V6: u32 = 1 << 1;
/// Where its verdict begins, if it takes no part.
pub const VERDICT: u32 = 8;
/// In an answer's first word, where the bits of rewritten ends begin.
pub(super) const ENDS: u32 = 8;

/// What is known of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(16))]
pub struct Record {
    /// The words of an IPv4 key; of an IPv6 one the last two, behind two that are 0.
    key: [u32; 4],
    /// Nanoseconds since the epoch.
    time: [u32; 2],
    /// IP bytes.
    bytes: u32,
    kind: u32,
}

/// The addresses of an IPv6 packet, source first, most significant word first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(16))]
pub struct Wide([u32; 8]);

/// What a device found out about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(16))]
pub struct Answer {
    /// Verdict, rewritten ends, and what only the device needs.
    bits: u32,
    source: u32,
    destination: u32,
    /// Source port in the lower half.
    ports: u32,
}

impl Record {
    pub(super) fn is_v6(&self) -> bool {
        self.kind & IS_V6 != 0
    }
}

impl Wide {
    fn of(key: &MatchKey6) -> Self {
        let [s0, s1] = key.source;
        let [d0, d1] = key.destination;
        let mut words = [0; 8];
        for (half, words) in [s0, s1, d0, d1].into_iter().zip(words.chunks_exact_mut(2)) {
            words.copy_from_slice(&[(half >> 32) as u32, half as u32]);
        }
        Self(words)
    }

    fn address(&self, end: End) -> [u64; 2] {
        let [s0, s1, s2, s3, d0, d1, d2, d3] = self.0.map(u64::from);
        match end {
            End::Source => [s0 << 32 | s1, s2 << 32 | s3],
            End::Destination => [d0 << 32 | d1, d2 << 32 | d3],
        }
    }
}

/// The record of one packet by what its headers say, or by the verdict on what has no match key; with its addresses where it is IPv6.
pub fn of_packet(headers: Result<Headers, Verdict>, time: Timestamp) -> (Record, Wide) {
    let time = time.as_nanos();
    let time = [time as u32, (time >> 32) as u32];
    match headers {
        Ok(Headers { key: Key::V4(key), ip_bytes: bytes }) => {
            (Record { key: words_v4(&key), time, bytes, kind: TAKES_PART }, Wide::default())
        }
        Ok(Headers { key: Key::V6(key), ip_bytes: bytes }) => {
            (Record { key: words_v6(&key), time, bytes, kind: TAKES_PART | IS_V6 }, Wide::of(&key))
        }
        Err(verdict) => {
            (Record { kind: u32::from(verdict.code()) << VERDICT, ..Record::default() }, Wide::default())
        }
    }
}

/// The records of a parsed batch: one for each frame, with the addresses of IPv6 packets beside them where there are any.
pub fn of_batch(batch: &Batch, records: &mut Vec<Record>, wide: &mut Vec<Wide>) {
    records.clear();
    wide.clear();
    let columns = batch.parsed().iter().zip(batch.frames()).zip(batch.verdicts());
    for ((parsed, frame), &verdict) in columns {
        let time = frame.time.as_nanos();
        let time = [time as u32, (time >> 32) as u32];
        let (key, bytes, is_v6) = match *parsed {
            Parsed::V4(at) => (words_v4(&batch.v4().keys[at as usize]), batch.v4().bytes[at as usize], 0),
            Parsed::V6(at) => {
                let key = &batch.v6().keys[at as usize];
                wide.resize(records.len(), Wide::default());
                wide.push(Wide::of(key));
                (words_v6(key), batch.v6().bytes[at as usize], IS_V6)
            }
            Parsed::Rejected(_) => {
                records.push(Record { kind: u32::from(verdict.code()) << VERDICT, ..Record::default() });
                continue;
            }
        };
        let takes_part = if verdict.is_pass() { TAKES_PART } else { u32::from(verdict.code()) << VERDICT };
        records.push(Record { key, time, bytes, kind: takes_part | is_v6 });
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

    /// Rewrites a frame of the batch as the device did.
    pub fn rewrite(&self, batch: &mut Batch, frame: u32, wide: impl Fn() -> Wide) {
        let ends = self.bits >> ENDS & 3;
        if ends == 0 {
            return;
        }
        let is_v6 = matches!(batch.parsed()[frame as usize], Parsed::V6(_));
        let wide = if is_v6 { wide() } else { Wide::default() };
        for (bit, end, address, port) in [
            (1, End::Source, self.source, self.ports as u16),
            (2, End::Destination, self.destination, (self.ports >> 16) as u16),
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
