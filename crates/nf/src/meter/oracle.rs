//! The oracle: a record for each life of a flow.
//!
//! At capacity the flow ends that is idle, or else the one that had no packet for the longest time. The batch form only comes near
//! that: they are the same below capacity, and at a capacity of 1.

use std::collections::HashMap;
use std::sync::Arc;

use packetloom_packet::{
    Details, EndReason, FlowRecord, HalfFlow, LinkType, More, Reject, Timestamp, Verdict,
};

use super::cpu::rank;
use super::names::{Names, Search};
use super::{Framings, MeterReport, Settings, end_reason};
use crate::flows::{By, End, FlowName, FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::{OracleIp, OraclePacket};
use crate::watches::Payload;
use crate::{Records, Report};

/// A record on its way.
#[derive(Clone, Copy)]
struct Held {
    /// The number of its first packet.
    created: u64,
    /// Whether the lower endpoint sent that.
    from_a: bool,
    forward: HalfFlow,
    reverse: HalfFlow,
    /// Of both, where they are asked for.
    details: [Details; 2],
}

/// How far the search for names in both directions of a flow is, and what their SYNs said.
#[derive(Clone, Copy)]
struct Progress {
    searches: [Search; 2],
    begins: [Option<u32>; 2],
}

impl Progress {
    const BEGIN: Self = Self { searches: [Search::Before; 2], begins: [None; 2] };
}

pub(super) struct MeterOracle {
    idle: Option<u64>,
    active: Option<u64>,
    framings: Framings,
    end_of_flow: bool,
    has_details: bool,
    names: Option<Names>,
    held: HashMap<u64, Held>,
    /// By the number of a record's first packet, so that it goes on where a reload gives the flow another life.
    progress: HashMap<u64, Progress>,
    packets: u64,
    report: MeterReport,
}

impl MeterOracle {
    pub(super) fn new(settings: &Settings, has_details: bool, names: Option<Names>, first: u64) -> Self {
        Self {
            idle: settings.idle.limit(),
            active: settings.active.limit(),
            framings: settings.framings,
            end_of_flow: settings.end_of_flow,
            has_details,
            names,
            held: HashMap::new(),
            progress: HashMap::new(),
            packets: first,
            report: MeterReport::default(),
        }
    }

    fn export(&mut self, held: Held, flow: &FlowName, end_reason: EndReason, records: &mut Records<'_>) {
        self.progress.remove(&held.created);
        let (source, destination) = if held.from_a { (flow.a, flow.b) } else { (flow.b, flow.a) };
        let record = FlowRecord {
            source: source.0,
            destination: destination.0,
            source_port: source.1,
            destination_port: destination.1,
            protocol: flow.protocol,
            forward: held.forward,
            reverse: held.reverse,
            end_reason,
            more: self.has_details.then(|| {
                let names = self.names.as_mut().map(|names| names.end(held.created)).unwrap_or_default();
                Arc::new(More { details: held.details, names })
            }),
        };
        self.report.count_record(&record);
        records(&record);
    }

    /// Why a record ends before a packet of its flow at this time.
    fn end(&self, held: &Held, now: u64) -> Option<EndReason> {
        let last = held.forward.last.max(held.reverse.last);
        let has_passed = |limit: Option<u64>, since: Timestamp| {
            limit.is_some_and(|limit| now.saturating_sub(since.as_nanos()) >= limit)
        };
        if has_passed(self.idle, last) {
            Some(EndReason::IdleTimeout)
        } else if has_passed(self.active, held.forward.first) {
            Some(EndReason::ActiveTimeout)
        } else {
            None
        }
    }
}

fn add(half: &mut HalfFlow, nanos: u64, bytes: u32, flags: u8) {
    let time = Timestamp::from_nanos(nanos);
    if half.packets == 0 || time > half.last {
        half.last = time;
    }
    if half.packets == 0 {
        half.first = time;
    }
    half.packets += 1;
    half.bytes += u64::from(bytes);
    half.tcp_flags |= flags;
}

/// The flow of a packet, apart from its VLAN, which is in the details of its record.
fn name_of(ip: &OracleIp) -> FlowName {
    let (source_port, destination_port) = ip.ports.unwrap_or((0, 0));
    let mut ends = [(ip.source, source_port), (ip.destination, destination_port)];
    ends.sort_unstable();
    FlowName { by: By::FiveTuple, protocol: ip.protocol, a: ends[0], b: ends[1], vlan: None }
}

/// Whether a connection ends with a packet that was added.
fn is_end(ip: &OracleIp, held: &Held) -> bool {
    let has = |flags: u8, bit: u8| flags / bit % 2 == 1;
    let (fin, reset, ack) = (1, 4, 16);
    let have_both_ended = has(held.forward.tcp_flags, fin) && has(held.reverse.tcp_flags, fin);
    let ends = |flags: u8| has(flags, reset) || have_both_ended && has(flags, ack) && !has(flags, fin);
    ip.protocol == 6 && ends(ip.tcp_flags.unwrap_or(0))
}

/// What a packet says beside its counters, as if it were the only one.
fn details(packet: &OraclePacket, ip: &OracleIp) -> Details {
    let header = &packet.frame[packet.network..];
    let (ttl, tos, fragment_flags) = if ip.source.is_ipv4() {
        (header[8], header[1], header[6] & 0x60)
    } else {
        (header[7], header[0] << 4 | header[1] >> 4, if has_more_fragments(header) { 0x20 } else { 0 })
    };
    let is_ethernet = packet.link == LinkType::ETHERNET;
    let mac = |at: usize| packet.frame.get(at..at + 6)?.try_into().ok();
    let macs = if is_ethernet { mac(6).zip(mac(0)) } else { None };
    Details {
        lengths: [ip.bytes; 2],
        ttls: [ttl; 2],
        class_of_service: ip.dscp << 2 | tos & 3,
        first_tcp_flags: ip.tcp_flags.unwrap_or(0),
        fragment_flags,
        fragments: u64::from(ip.first_fragment || ip.later_fragment),
        icmp: ip.icmp,
        vlan: packet.vlan(),
        macs: macs.map(|(source, destination)| [source, destination]),
        ingress: packet.port,
        egress: packet.egress,
    }
}

/// Whether an IPv6 packet has a fragment header that announces more: extension headers are walked up to it.
fn has_more_fragments(header: &[u8]) -> bool {
    let (mut next, mut at) = (header[6], 40);
    loop {
        let Some(extension) = header.get(at..at + 8) else { return false };
        match next {
            44 => return extension[3] % 2 == 1,
            0 | 43 | 60 | 135 | 139 | 140 => at += 8 * (1 + usize::from(extension[1])),
            51 => at += 4 * (2 + usize::from(extension[1])),
            _ => return false,
        }
        next = extension[0];
    }
}

/// Adds what another packet says to what those before have said.
fn join(known: &mut Details, new: &Details) {
    known.lengths = [known.lengths[0].min(new.lengths[0]), known.lengths[1].max(new.lengths[1])];
    known.ttls = [known.ttls[0].min(new.ttls[0]), known.ttls[1].max(new.ttls[1])];
    known.fragment_flags |= new.fragment_flags;
    known.fragments += new.fragments;
}

/// Looks for names in a packet of a direction.
fn look(
    names: &mut Names,
    (flow, progress): (u64, &mut Progress),
    way: usize,
    packet: &OraclePacket,
    ip: &OracleIp,
) {
    let Some(ports) = ip.ports.filter(|_| !ip.first_fragment) else { return };
    let end = packet.frame.len().min(packet.network + ip.bytes as usize);
    let Some(transport) = packet.frame.get(packet.network + ip.header..end) else { return };
    let word = |at: usize| Some(u32::from_be_bytes(transport.get(at..at + 4)?.try_into().ok()?));
    let (mut sequence, mut header) = (0, 8);
    if ip.protocol == 6 {
        let (Some(number), Some(offset)) = (word(4), transport.get(12)) else { return };
        sequence = number;
        header = usize::from(offset / 16) * 4;
        if ip.tcp_flags.is_some_and(|flags| flags / 2 % 2 == 1) {
            sequence = sequence.wrapping_add(1);
            progress.begins[way] = Some(sequence);
        }
    }
    let least = if ip.protocol == 6 { 20 } else { 8 };
    let Some(bytes) = transport.get(header..).filter(|_| header >= least) else { return };
    let payload = Payload { protocol: ip.protocol, ports, sequence, begin: progress.begins[way], bytes };
    progress.searches[way] = names.look(flow, way, progress.searches[way], payload);
    if progress.searches[way] == Search::FlowOver {
        progress.searches = [Search::FlowOver; 2];
    }
}

/// The words of the batch form: of a search they have whether it is over, and whether it goes on with what begins later.
fn detail_words(details: &Details, search: Search) -> [u64; 6] {
    let mut bytes = Vec::new();
    let Details { lengths, ttls, class_of_service, first_tcp_flags, fragment_flags, .. } = details;
    lengths.iter().for_each(|length| bytes.extend(length.to_ne_bytes()));
    let has =
        [details.macs.is_some(), details.vlan.is_some(), details.icmp.is_some(), details.egress.is_some()];
    let has = has.iter().rev().fold(0, |bits, &has| bits * 2 + u8::from(has));
    bytes.extend([ttls[0], ttls[1], *class_of_service, *first_tcp_flags, *fragment_flags, has]);
    bytes.extend(details.vlan.unwrap_or(0).to_ne_bytes());
    bytes.extend(details.macs.unwrap_or_default().concat());
    let (kind, code) = details.icmp.unwrap_or_default();
    bytes.extend([kind, code]);
    bytes.extend(details.ingress.to_ne_bytes());
    bytes.extend(details.egress.unwrap_or(0).to_ne_bytes());
    bytes.push(match search {
        Search::Before | Search::Watching => 0,
        Search::Over | Search::FlowOver => 2,
        Search::Later | Search::WatchingAgain => 8,
    });
    bytes.resize(40, 0);
    bytes.extend(details.fragments.to_ne_bytes());
    std::array::from_fn(|word| u64::from_ne_bytes(std::array::from_fn(|at| bytes[8 * word + at])))
}

/// What [`detail_words`] has said of a search.
fn search_of(words: &[u64]) -> Search {
    match words[4].to_ne_bytes()[2] {
        bits if bits & 2 != 0 => Search::Over,
        bits if bits & 8 != 0 => Search::Later,
        _ => Search::Before,
    }
}

/// What [`detail_words`] has made words of.
fn details_of(words: &[u64]) -> Details {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let whole = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mac = |at: usize| std::array::from_fn(|byte| bytes[at + byte]);
    let has = |bit: u32| bytes[13] >> bit & 1 == 1;
    Details {
        lengths: [whole(0), whole(4)],
        ttls: [bytes[8], bytes[9]],
        class_of_service: bytes[10],
        first_tcp_flags: bytes[11],
        fragment_flags: bytes[12],
        fragments: words[5],
        macs: has(0).then(|| [mac(16), mac(22)]),
        vlan: has(1).then(|| half(14)),
        icmp: has(2).then(|| (bytes[28], bytes[29])),
        ingress: half(30),
        egress: has(3).then(|| half(32)),
    }
}

impl FlowOracle for MeterOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let Held { created, from_a, forward, reverse, details } = self.held.get(&life)?;
        let pairs = [
            [forward.first.as_nanos(), reverse.first.as_nanos()],
            [forward.last.as_nanos(), reverse.last.as_nanos()],
            [forward.packets, reverse.packets],
            [forward.bytes, reverse.bytes],
        ];
        let flags = u64::from(forward.tcp_flags) + (u64::from(reverse.tcp_flags) << 8);
        let mut words = pairs.concat();
        words.push(flags + (u64::from(*from_a) << 16) + (created << 17));
        if self.has_details {
            let Progress { searches, .. } = self.progress.get(created).unwrap_or(&Progress::BEGIN);
            words.extend(
                details.iter().zip(searches).flat_map(|(details, search)| detail_words(details, *search)),
            );
        }
        Some(words)
    }

    fn text(&self, life: u64) -> Option<Box<str>> {
        self.names.as_ref()?.text(self.held.get(&life)?.created)
    }

    fn forget(&mut self, life: u64) {
        self.held.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        let half = |way: usize| HalfFlow {
            first: Timestamp::from_nanos(words[way]),
            last: Timestamp::from_nanos(words[2 + way]),
            packets: words[4 + way],
            bytes: words[6 + way],
            tcp_flags: (words[8] >> (8 * way)) as u8,
        };
        let created = words[8] >> 17;
        let held = Held {
            created,
            from_a: words[8] >> 16 & 1 == 1,
            forward: half(0),
            reverse: half(1),
            details: if self.has_details {
                [details_of(&words[9..15]), details_of(&words[15..21])]
            } else {
                [Details::default(); 2]
            },
        };
        self.held.insert(life, held);
        if self.has_details {
            let searches = [search_of(&words[9..15]), search_of(&words[15..21])];
            self.progress.entry(created).or_insert(Progress { searches, ..Progress::BEGIN });
        }
    }

    fn select(&mut self, packet: &OraclePacket) -> bool {
        self.report.frames += 1;
        let reject = match &packet.ip {
            Ok(_) if packet.other_framing && self.framings == Framings::Basic => Reject::OtherFraming,
            Ok(ip) if [1, 6, 17, 58, 132].contains(&ip.protocol) => return true,
            Ok(_) => Reject::Protocol,
            Err(reject) => *reject,
        };
        self.report.not_counted.add(reject);
        false
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        self.report.counted_packets += 1;
        self.report.counted_ip_bytes += u64::from(ip.bytes);
        if let Some(held) = self.held.get(&flow.life).copied()
            && let Some(end_reason) = self.end(&held, packet.nanos)
        {
            self.held.remove(&flow.life);
            self.export(held, &name_of(ip), end_reason, records);
        }
        self.packets += 1;
        let held = self.held.entry(flow.life).or_insert(Held {
            created: self.packets,
            from_a: flow.from_a,
            forward: HalfFlow::default(),
            reverse: HalfFlow::default(),
            details: [Details::default(); 2],
        });
        let is_forward = flow.from_a == held.from_a;
        let half = if is_forward { &mut held.forward } else { &mut held.reverse };
        if self.has_details {
            let (known, new) = (&mut held.details[usize::from(!is_forward)], details(packet, ip));
            if half.packets == 0 { *known = new } else { join(known, &new) }
        }
        add(half, packet.nanos, ip.bytes, ip.tcp_flags.unwrap_or(0));
        if let Some(names) = &mut self.names {
            let progress = self.progress.entry(held.created).or_insert(Progress::BEGIN);
            look(names, (held.created, progress), usize::from(!is_forward), packet, ip);
        }
        if self.end_of_flow && is_end(ip, held) {
            let held = *held;
            self.held.remove(&flow.life);
            self.export(held, &name_of(ip), EndReason::EndOfFlow, records);
        }
        Verdict::Pass
    }

    fn on_end(&mut self, life: u64, flow: &FlowName, end: End, records: &mut Records<'_>) {
        if let Some(held) = self.held.remove(&life) {
            self.export(held, flow, end_reason(end), records);
        }
    }

    fn rank(&self, life: u64) -> u128 {
        self.held.get(&life).map_or(0, |held| rank(held.created, held.forward.first.as_nanos()))
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        let names = self.names.as_ref().map(Names::counts);
        Box::new(MeterReport { names, ..self.report.clone() })
    }
}
