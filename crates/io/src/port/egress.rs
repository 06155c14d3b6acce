//! Batches sent by network interfaces.

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_packet::{Batch, Offload};

use crate::Sink;

use super::{Outgoing, SendStatistics, Sender, Stop, complete_checksum, restart_partial};

/// Frames that are handed to a port at a time.
const GROUP: usize = 64;
/// Bytes of an Ethernet header and of the tag that the kernel has room for on top of an MTU.
const LINK_HEADERS: usize = 18;
/// How long frames wait for an interface that has no room. Meanwhile others wait in the rings of the kernel, and are dropped there when
/// these are full.
const PATIENCE: Duration = Duration::from_millis(1);

/// What became of frames that were to leave by an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EgressCounts {
    /// What was sent, and what the kernel refused for ever.
    pub counts: SendStatistics,
    /// Frames that were not sent: the interface had no room, or the other end of its link is down.
    pub no_room: u64,
    /// Frames that were not sent: the interface is switched off.
    pub down: u64,
    /// Frames that were not sent: the interface was removed.
    pub gone: u64,
    /// Giants whose segments are too long for the interface.
    pub long_segments: u64,
    /// Frames that the system did not take for a reason that is not expected; the first one is a notice.
    pub failed: u64,
}

impl EgressCounts {
    /// Frames that were not sent, by reason.
    pub fn not_sent(&self) -> [(&'static str, u64); 6] {
        [
            ("no_room", self.no_room + self.counts.dropped),
            ("down", self.down),
            ("gone", self.gone),
            ("too_long", self.counts.too_long + self.long_segments),
            ("refused", self.counts.refused),
            ("failed", self.failed),
        ]
    }
}

/// Sends frames out of the interfaces that they are [to leave by](Batch::egress).
#[derive(Debug)]
pub struct Egress {
    exits: Vec<Exit>,
    /// Frames that are handed over together, and those of them that are rewritten.
    group: Vec<Picked>,
    copies: Vec<u8>,
    notices: VecDeque<String>,
}

/// An interface by which frames leave.
#[derive(Debug)]
struct Exit {
    sender: Sender,
    egress_counts: EgressCounts,
    /// Whether the last frames were not taken: then the next ones do not wait.
    is_stuck: bool,
}

/// A frame of a group.
#[derive(Clone, Debug)]
struct Picked {
    index: usize,
    /// Where its copy lies, if it was rewritten.
    copy: Option<Range<usize>>,
    offload: Offload,
}

impl Egress {
    /// By these interfaces; the number of each in batches is its place.
    pub fn new(senders: Vec<Sender>) -> Self {
        let exit = |sender| Exit { sender, egress_counts: EgressCounts::default(), is_stuck: false };
        let exits = senders.into_iter().map(exit).collect();
        Self { exits, group: Vec::with_capacity(GROUP), copies: Vec::new(), notices: VecDeque::new() }
    }
}

impl Sink for Egress {
    fn send_passed(&mut self, batch: &mut Batch) {
        let Self { exits, group, copies, notices } = self;
        for (exit, number) in exits.iter_mut().zip(0u16..) {
            let mut index = 0;
            loop {
                group.clear();
                copies.clear();
                while group.len() < GROUP && index < batch.len().min(batch.egress().len()) {
                    if batch.verdicts()[index].is_pass() && batch.egress()[index] == number {
                        group.push(pick(batch, index, copies));
                    }
                    index += 1;
                }
                if group.is_empty() {
                    break;
                }
                exit.send(batch, group, copies, notices);
            }
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }

    fn egress_counts(&self) -> Vec<EgressCounts> {
        let egress_counts =
            |exit: &Exit| EgressCounts { counts: exit.sender.statistics(), ..exit.egress_counts };
        self.exits.iter().map(egress_counts).collect()
    }
}

/// A frame as it is to be sent: rewritten, and with its checksum finished, where it lies, if that may be, or else rewritten in a copy.
fn pick(batch: &mut Batch, index: usize, copies: &mut Vec<u8>) -> Picked {
    let mut offload = batch.offload(index);
    let is_rewritten = batch.is_rewritten(index);
    if !is_rewritten && !offload.needs_checksum() {
        return Picked { index, copy: None, offload };
    }
    if let Some(bytes) = batch.rewrite_in_place(index) {
        if is_rewritten && offload.needs_checksum() {
            restart_partial(bytes, &mut offload);
        }
        // What is left is a checksum that does not lie in the frame, which the sender refuses.
        let _ = complete_checksum(bytes, &mut offload);
        if let Some(left) = batch.offloads_mut().get_mut(index) {
            *left = offload;
        }
        return Picked { index, copy: None, offload };
    }
    if !is_rewritten {
        return Picked { index, copy: None, offload };
    }
    let begin = copies.len();
    copies.extend_from_slice(batch.bytes(index));
    let copy = &mut copies[begin..];
    batch.apply_rewrites(index, copy);
    if offload.needs_checksum() {
        // That of the new addresses. What is not the outermost packet's has none of them in it.
        restart_partial(copy, &mut offload);
    }
    Picked { index, copy: Some(begin..copies.len()), offload }
}

impl Exit {
    fn send(&mut self, batch: &Batch, group: &[Picked], copies: &[u8], notices: &mut VecDeque<String>) {
        let mut frames = [Outgoing { bytes: &[], offload: Offload::NONE }; GROUP];
        let longest = self.sender.mtu() as usize + LINK_HEADERS;
        let mut count = 0;
        for picked in group {
            let bytes: &[u8] = match &picked.copy {
                Some(range) => &copies[range.clone()],
                None => batch.bytes(picked.index),
            };
            // Nobody else looks at the segments that they are cut into.
            if picked.offload.is_giant() && picked.offload.longest_segment(bytes) > longest {
                self.egress_counts.long_segments += 1;
                continue;
            }
            frames[count] = Outgoing { bytes, offload: picked.offload };
            count += 1;
        }
        let mut rest = &frames[..count];
        let mut begin = None;
        while !rest.is_empty() {
            let sent = match self.sender.send(rest) {
                Ok(sent) => sent,
                Err(error) => {
                    if self.egress_counts.failed == 0 {
                        notices.push_back(error.to_string());
                    }
                    self.egress_counts.failed += 1;
                    rest = &rest[1..];
                    continue;
                }
            };
            rest = &rest[sent.taken..];
            let Some(stop) = sent.stopped else {
                self.is_stuck = false;
                return;
            };
            let begin = *begin.get_or_insert_with(Instant::now);
            if stop == Stop::Busy && !self.is_stuck && begin.elapsed() < PATIENCE {
                thread::yield_now();
                continue;
            }
            self.is_stuck = true;
            let left = rest.len() as u64;
            match stop {
                Stop::Busy => self.egress_counts.no_room += left,
                Stop::Down => self.egress_counts.down += left,
                Stop::Gone => self.egress_counts.gone += left,
            }
            return;
        }
    }
}
