//! What can be told of a packet beside its addresses and its two 16-bit fields.
//!
//! A *kind* is a family, a protocol, what of the transport header is known, TCP flags and fragmentation, in a combination
//! that [`dissect`](packetloom_packet::dissect()) can yield. Kinds that no rule of a set tells apart are one *class*. Sets of
//! classes are bit masks, 128 classes to a *sheet*; real rule sets need one sheet.

use std::collections::HashMap;

use packetloom_packet::wire::ip::Extension;
use packetloom_packet::{KeyBits, protocol};

/// One kind of packet.
#[derive(Clone, Copy, Debug)]
struct Kind {
    v6: bool,
    protocol: u8,
    flags: u8,
    bits: KeyBits,
}

/// What a rule asks of a packet's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Demand {
    pub(super) v4: bool,
    pub(super) v6: bool,
    pub(super) protocol: Option<u8>,
    pub(super) flags: u8,
    pub(super) flags_mask: u8,
    pub(super) all_of: KeyBits,
    pub(super) one_of: KeyBits,
}

impl Demand {
    fn is_met_by(&self, kind: &Kind) -> bool {
        (if kind.v6 { self.v6 } else { self.v4 })
            && self.protocol.is_none_or(|protocol| protocol == kind.protocol)
            && kind.flags & self.flags_mask == self.flags
            && kind.bits.contains(self.all_of)
            && kind.bits.intersects(self.one_of)
    }
}

/// Every kind of packet that there is: about 2,600.
fn every_kind() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (v6, protocol) in [false, true].into_iter().flat_map(|v6| (0..=u8::MAX).map(move |p| (v6, p))) {
        let mut push = |bits, flags| kinds.push(Kind { v6, protocol, flags, bits });
        push(KeyBits::LATER_FRAGMENT, 0);
        // Behind a header that is walked there is another: it is the last one only where a later fragment says so.
        if v6 && (Extension::is_walked(protocol) || protocol == protocol::FRAGMENT) {
            continue;
        }
        for fragment in [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT] {
            if protocol::has_ports(protocol) {
                let ports = fragment.with(KeyBits::PORTS);
                push(ports, 0);
                if protocol == protocol::TCP {
                    (0..=u8::MAX).for_each(|flags| push(ports.with(KeyBits::TCP_FLAGS), flags));
                }
            } else {
                push(fragment, 0);
                if protocol::has_type_and_code(protocol) {
                    push(fragment.with(KeyBits::ICMP), 0);
                }
            }
        }
    }
    kinds
}

/// The classes that each demand holds, as masks, one a sheet.
#[derive(Debug)]
pub(super) struct Classes {
    sheets: usize,
    /// Those of demand `d` begin at `d * sheets`.
    masks: Vec<u128>,
}

impl Classes {
    /// Finds the classes that `demands` tell apart: O(demands * kinds), and there are about 100,000 demands at most.
    pub(super) fn new(demands: &[Demand]) -> Self {
        let kinds = every_kind();
        // Every demand moves the kinds that meet it into classes of their own, one for each that they came from.
        const NOBODY_ASKS: u32 = 0;
        let mut class_of = vec![NOBODY_ASKS; kinds.len()];
        let mut last = NOBODY_ASKS;
        let mut moves = HashMap::new();
        for demand in demands {
            moves.clear();
            for (kind, class) in kinds.iter().zip(&mut class_of) {
                if demand.is_met_by(kind) {
                    *class = *moves.entry(*class).or_insert_with(|| {
                        last += 1;
                        last
                    });
                }
            }
        }
        let mut samples: HashMap<u32, &Kind> = HashMap::new();
        for (kind, class) in kinds.iter().zip(&class_of) {
            if *class != NOBODY_ASKS {
                samples.entry(*class).or_insert(kind);
            }
        }
        let mut classes: Vec<_> = samples.into_iter().collect();
        classes.sort_unstable_by_key(|(class, _)| *class);
        let bits = u128::BITS as usize;
        let masks = demands.iter().flat_map(|demand| {
            classes.chunks(bits).map(|sheet| {
                let met = sheet.iter().enumerate().filter(|(_, (_, sample))| demand.is_met_by(sample));
                met.fold(0, |mask, (bit, _)| mask | 1 << bit)
            })
        });
        Self { sheets: classes.len().div_ceil(bits), masks: masks.collect() }
    }

    /// The masks of a demand, one a sheet.
    #[inline]
    pub(super) fn masks(&self, demand: u32) -> &[u128] {
        &self.masks[demand as usize * self.sheets..][..self.sheets]
    }

    /// The classes of a demand in 64 bits: demands without a common bit have no class in common.
    pub(super) fn digest(&self, demand: u32) -> u64 {
        self.masks(demand).iter().fold(0, |digest, mask| digest | *mask as u64 | (mask >> 64) as u64)
    }

    /// Whether some kind meets both demands.
    #[inline]
    pub(super) fn overlap(&self, a: u32, b: u32) -> bool {
        self.masks(a).iter().zip(self.masks(b)).any(|(a, b)| a & b != 0)
    }

    /// Whether every kind that meets `inner` meets `outer`.
    #[inline]
    pub(super) fn contains(&self, outer: u32, inner: u32) -> bool {
        self.masks(outer).iter().zip(self.masks(inner)).all(|(outer, inner)| inner & !outer == 0)
    }
}
