//! A flow of a profile: which packet comes next, and when.

use packetloom_packet::protocol;

use super::read::Row;
use crate::random::{Random, mix};
use crate::traffic::endpoints::Endpoints;
use crate::traffic::flow::Tags;
use crate::traffic::frames::{Addresses, PacketHeaders};
use crate::traffic::payload::Payload;
use crate::traffic::session::{Options, Segment, Transport, flags};

/// Bytes of an IP packet that fill a frame of Ethernet.
const FULL: u64 = 1500;
/// The most bytes of an IPv4 and of an IPv6 packet: RFC 791 section 3.1; RFC 8200 section 3, whose length leaves the header out.
pub(super) const LONGEST: [u64; 2] = [65_535, 40 + 65_535];
/// The fewest packets of a direction that ends with FIN.
const CLOSES: u32 = 3;

/// Bytes of the shortest packet of a protocol.
pub(super) fn shortest(number: u8, ipv6: bool) -> u64 {
    let transport = if number == protocol::TCP { 20 } else { 8 };
    if ipv6 { 40 + transport } else { 20 + transport }
}

/// An address.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Of [`Endpoints`].
    MadeUp(u32),
    /// Named by the profile.
    V4(u32),
    /// The index of the address among those that the profile names.
    V6(u32),
}

/// A flow, and what is still to be sent of it. Pairs are forward and reverse.
#[derive(Debug)]
pub(super) struct Flow {
    /// When it begins, in nanoseconds from the profile's time zero.
    pub(super) start: i64,
    /// How long it takes, in nanoseconds.
    pub(super) duration: u64,
    /// IP bytes and packets that are still to come.
    bytes: [u64; 2],
    packets: [u32; 2],
    /// Packets of both directions, those that were sent among them.
    total: u32,
    pub(super) ends: [End; 2],
    ports: [u16; 2],
    /// TCP sequence numbers to be sent next; of ICMP, how many requests there were, and the identifier.
    pub(super) seqs: [u32; 2],
    protocol: u8,
    pub(super) ipv6: bool,
    /// Of TCP: it begins with SYN.
    opens: bool,
    /// Of TCP that begins with SYN: the direction ends with FIN.
    closes: [bool; 2],
}

impl Flow {
    /// A flow of these packets and bytes, which hold each other.
    pub(super) fn new(
        row: &Row,
        duration: u64,
        packets: [u32; 2],
        bytes: [u64; 2],
        ends: [End; 2],
        ports: [u16; 2],
    ) -> Self {
        Self {
            start: row.start,
            duration,
            bytes,
            packets,
            total: packets[0] + packets[1],
            ends,
            ports,
            seqs: [0; 2],
            protocol: row.protocol,
            ipv6: row.ipv6,
            opens: row.protocol == protocol::TCP && packets[0] > 0,
            closes: packets.map(|packets| packets >= CLOSES),
        }
    }

    /// A hash of its key, which is the same for both directions; `named` are the IPv6 addresses that the file names.
    pub(super) fn key(&self, named: &[u128]) -> u64 {
        let end = |way: usize| {
            let number = match self.ends[way] {
                End::MadeUp(number) | End::V4(number) => u64::from(number),
                End::V6(index) => {
                    let address = named[index as usize];
                    mix(address as u64 ^ mix((address >> 64) as u64)) >> 16 | 1 << 32
                }
            };
            mix(number << 16 | u64::from(self.ports[way]))
        };
        let (one, other) = (end(0).min(end(1)), end(0).max(end(1)));
        mix(mix(one ^ u64::from(self.protocol) ^ u64::from(self.ipv6) << 8).wrapping_add(other))
    }

    /// Packets that were sent.
    fn sent(&self) -> u32 {
        self.total - self.packets[0] - self.packets[1]
    }

    /// Nanoseconds from its begin to the next packet, if there is one: the first comes at the begin, the last at the end, and each of the
    /// others somewhere in its own one of equal parts of the time between them.
    pub(super) fn due(&self, random: &mut Random) -> Option<u64> {
        let (sent, last) = (self.sent(), self.total - 1);
        let part = |number: u32| (u128::from(self.duration) * u128::from(number) / u128::from(last)) as u64;
        match sent {
            0 => Some(0),
            _ if sent > last => None,
            _ if sent == last => Some(self.duration),
            _ => Some(part(sent) + random.below(part(sent + 1) - part(sent))),
        }
    }

    /// The next packet; there has to be one.
    pub(super) fn next(&mut self, random: &mut Random) -> Segment {
        let sent = self.sent();
        let [forward, reverse] = self.packets.map(u64::from);
        let is_reverse = match sent {
            0 => forward == 0,
            1 => reverse > 0,
            _ => random.below(forward + reverse) >= forward,
        };
        let (way, from_client) = (usize::from(is_reverse), !is_reverse);
        let (packets, bytes) = (u64::from(self.packets[way]), self.bytes[way]);
        let range =
            Range::new(packets, bytes, shortest(self.protocol, self.ipv6), LONGEST[usize::from(self.ipv6)]);
        let (segment, len) = match self.protocol {
            protocol::TCP => self.tcp(range, from_client, random),
            protocol::UDP => {
                let len = range.near_mean(random);
                (Segment::udp(from_client, Payload::Data, range.payload(len)), len)
            }
            _ => {
                let len = range.mean();
                self.seqs[0] = self.seqs[0].wrapping_add(u32::from(from_client));
                let (identifier, sequence) = (self.seqs[1] as u16, self.seqs[0] as u16);
                let transport = Transport::Echo { reply: is_reverse, identifier, sequence };
                (Segment { from_client, transport, payload: Payload::Data, len: range.payload(len) }, len)
            }
        };
        self.packets[way] -= 1;
        self.bytes[way] -= len;
        segment
    }

    /// The next segment, and the bytes of its packet.
    fn tcp(&mut self, range: Range, from_client: bool, random: &mut Random) -> (Segment, u64) {
        use flags::{ACK, FIN, PSH, RST, SYN};

        // The second packet is the answer, if there is one.
        let greets = self.opens && self.sent() == u32::from(!from_client);
        let with_options = range.shortest + 20;
        let (mut options, mut flags, mut len) = (Options::None, ACK, 0);
        if greets && range.holds(with_options) {
            (options, len) = (Options::Opening, with_options);
        } else if greets && range.holds(range.shortest) {
            len = range.shortest;
        }
        if len > 0 {
            flags = match (from_client, self.packets) {
                (true, _) => SYN,
                // All that there is: the port is closed.
                (false, [0, 1]) if options == Options::None => RST | ACK,
                (false, _) => SYN | ACK,
            };
        } else {
            // Without a SYN, it was there before.
            self.opens &= self.sent() > 0;
            len = range.full_or_bare(random);
            if len > range.shortest && (len < range.longest || range.packets == 1) {
                flags |= PSH;
            }
            if self.opens && range.packets == 1 && self.closes[usize::from(!from_client)] {
                flags |= FIN;
            }
        }
        let [client, server] = &mut self.seqs;
        let payload = if options == Options::Opening { 0 } else { range.payload(len) };
        (Segment::tcp((client, server), from_client, flags, options, payload), len)
    }

    /// What the headers of a packet of either side say; `named` are the addresses that the profile names.
    pub(super) fn headers(&self, from_client: bool, endpoints: &Endpoints, named: &[u128]) -> PacketHeaders {
        let (source, destination) = if from_client { (0, 1) } else { (1, 0) };
        let v4 = |way: usize| match self.ends[way] {
            End::MadeUp(number) | End::V4(number) | End::V6(number) => number,
        };
        let v6 = |way: usize| match self.ends[way] {
            End::MadeUp(number) | End::V4(number) => endpoints.v6_address(number),
            End::V6(index) => named[index as usize],
        };
        let addresses = if self.ipv6 {
            Addresses::V6(v6(source), v6(destination))
        } else {
            Addresses::V4(v4(source), v4(destination))
        };
        let ports = (self.ports[source], self.ports[destination]);
        PacketHeaders { addresses, protocol: self.protocol, ports, tags: Tags::NONE }
    }
}

/// How long the next packet of a direction may be, so that the others can have what is left.
#[derive(Clone, Copy)]
struct Range {
    packets: u64,
    bytes: u64,
    /// The shortest and the longest packet.
    shortest: u64,
    longest: u64,
    /// The fewest and the most bytes of the next one.
    least: u64,
    most: u64,
}

impl Range {
    fn new(packets: u64, bytes: u64, shortest: u64, longest: u64) -> Self {
        let longest = if bytes <= packets * FULL { FULL } else { longest };
        let others = packets - 1;
        let least = bytes.saturating_sub(others * longest).max(shortest);
        let most = (bytes - others * shortest).min(longest);
        Self { packets, bytes, shortest, longest, least, most }
    }

    fn holds(self, len: u64) -> bool {
        (self.least..=self.most).contains(&len)
    }

    /// Bytes behind the shortest headers.
    fn payload(self, len: u64) -> u16 {
        (len - self.shortest) as u16
    }

    /// The mean of what is left.
    fn mean(self) -> u64 {
        self.bytes / self.packets
    }

    /// The mean, more or less a quarter.
    fn near_mean(self, random: &mut Random) -> u64 {
        let mean = self.mean();
        random.between(mean - mean / 4, mean + mean / 4).clamp(self.least, self.most)
    }

    /// A full packet or a bare acknowledgement, as many of each as the bytes want.
    fn full_or_bare(self, random: &mut Random) -> u64 {
        if self.longest > FULL {
            return self.near_mean(random);
        }
        let room = self.packets * (self.longest - self.shortest);
        let is_full = random.below(room) < self.bytes - self.packets * self.shortest;
        let len = if is_full { self.longest } else { self.shortest };
        len.clamp(self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_small() {
        assert_eq!(size_of::<Flow>(), 80);
    }
}
