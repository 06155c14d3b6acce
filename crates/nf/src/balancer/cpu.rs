//! The batch form.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::Rewritable;
use packetloom_packet::{Address, Batch, DropReason, End, Verdict};

use super::returns::Returns;
use super::services::{Backend, Services, Standing};
use super::{BalancerReport, BalancerTotals, Load};
use crate::flows::{self, FlowFunction, Flows, Seen, StateAt, Visit, state_words};
use crate::{Records, Report};

/// What is kept for a flow.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Chosen {
    /// The backend's number and 1; 0 where the flow is to no service. While one is chosen, the entry of the service's table.
    backend: u32,
    /// Whether the client is the flow's lower endpoint. While a backend is chosen, [`CHOOSING`] and the service's number, too.
    client_is_a: u32,
}

// Kernels have both in a word.
packetloom_memory::layout!(impl Chosen { backend: u64 });

/// That a backend is chosen: from when a new flow's entry of a table is asked for until its first packet is judged, so never between batches.
const CHOOSING: u32 = 1 << 31;

impl Chosen {
    /// Whether it can be one.
    pub(super) fn is_valid(&self) -> bool {
        self.client_is_a <= 1
    }

    /// The backend's number.
    pub(super) fn backend(&self) -> Option<u32> {
        self.backend.checked_sub(1)
    }

    pub(super) fn set_backend(&mut self, number: u32) {
        self.backend = number + 1;
    }

    /// One whose backend stands at a place that is on its way.
    #[inline]
    fn choosing(Standing { service, entry }: Standing, client_is_a: bool) -> Self {
        Self { backend: entry, client_is_a: CHOOSING | service << 1 | u32::from(client_is_a) }
    }

    /// Ends that: the backend's number.
    #[inline]
    fn choose(&mut self, services: &Services) -> u32 {
        let Self { backend: entry, client_is_a } = *self;
        let backend = services.read(Standing { service: (client_is_a & !CHOOSING) >> 1, entry });
        *self = Self { backend: backend + 1, client_is_a: client_is_a & 1 };
        backend
    }
}

pub(super) struct BalancerCpu {
    at: StateAt,
    services: Arc<Services>,
    targets: Vec<Target>,
    /// Flows that each backend was chosen for.
    opened: Vec<u64>,
    returning: Option<Returning>,
    others: u64,
}

/// What is returned, and what of each backend was: packets and bytes.
struct Returning {
    returns: Arc<Returns>,
    returned: Vec<[u64; 2]>,
}

impl Returning {
    /// Returns a packet, if it is from a backend: the verdict on it.
    #[inline(never)]
    fn give(&mut self, bytes: u32, mut packet: Rewritable<'_>) -> Option<Verdict> {
        let found = self.returns.find(&packet.key())?;
        let [packets, all] = &mut self.returned[found.backend as usize];
        *packets += 1;
        *all += u64::from(bytes);
        Some(rewrite(&mut packet, End::Source, found.address, found.port))
    }
}

/// Rewrites an end of a packet: the verdict on it.
#[inline(always)]
fn rewrite(packet: &mut Rewritable<'_>, end: End, address: Address, port: Option<u16>) -> Verdict {
    match packet.rewrite(end, address, port) {
        true => Verdict::Pass,
        false => Verdict::Drop(DropReason::Rewrite),
    }
}

/// A backend: what packets get, and how many packets and IP bytes it got. On a line of its own: counters that lie across two lines, and were
/// just written, cannot be read again before they are in the cache.
#[repr(align(64))]
struct Target {
    address: Address,
    port: Option<u16>,
    packets: u64,
    bytes: u64,
}

impl BalancerCpu {
    pub(super) fn new(at: StateAt, services: Arc<Services>, returns: Option<Arc<Returns>>) -> Self {
        let target =
            |backend: &Backend| Target { address: backend.to(), port: backend.port, packets: 0, bytes: 0 };
        let targets: Vec<_> = services.backends().iter().map(target).collect();
        let returning = returns.map(|returns| Returning { returns, returned: vec![[0; 2]; targets.len()] });
        let opened = vec![0; targets.len()];
        Self { at, services, targets, opened, returning, others: 0 }
    }
}

impl FlowFunction for BalancerCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, services, targets, opened, returning, others } = self;
        let begin = |mut packet: Seen<'_, '_>, chosen: &mut Chosen| {
            if let Some(standing) = services.look_for(&packet.headers().key()) {
                services.prefetch(standing);
                *chosen = Chosen::choosing(standing, packet.from_a);
            }
        };
        flows.for_each_initialized(*at, batch, begin, |mut packet, chosen| {
            let number = loop {
                // While a backend is chosen it is neither.
                let is_to_service = u32::from(packet.from_a) == chosen.client_is_a;
                if let Some(number) = chosen.backend().filter(|_| is_to_service) {
                    break number;
                }
                if chosen.is_valid() {
                    let give = |returning: &mut Returning| returning.give(packet.bytes, packet.headers());
                    let verdict = returning.as_mut().and_then(give);
                    *others += u64::from(verdict.is_none());
                    return verdict.unwrap_or(Verdict::Pass);
                }
                opened[chosen.choose(services) as usize] += 1;
            };
            let Target { address, port, packets, bytes } = &mut targets[number as usize];
            *packets += 1;
            *bytes += u64::from(packet.bytes);
            rewrite(&mut packet.headers(), End::Destination, *address, *port)
        });
    }

    fn add(&mut self, counted: &[u64]) {
        let (BalancerTotals { others }, counted) = flows::counted(counted);
        self.others += others;
        let loads = state_words::<Load>() * self.targets.len();
        let (loads, returned) = counted.split_at_checked(loads).unwrap_or_default();
        let own = self.returning.iter_mut().flat_map(|returning| returning.returned.as_flattened_mut());
        own.zip(returned).for_each(|(own, returned)| *own += returned);
        let own = self.targets.iter_mut().zip(&mut self.opened);
        for ((target, flows), load) in own.zip(bytemuck::cast_slice::<_, Load>(loads)) {
            target.packets += load.packets;
            target.bytes += load.bytes;
            *flows += load.flows;
        }
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = BalancerReport::new(&self.services, false);
        report.others = self.others;
        report.returned = self.returning.as_ref().map(|returning| returning.returned.clone());
        let own = self.targets.iter().zip(&self.opened);
        for ((_, load), (&Target { packets, bytes, .. }, &flows)) in report.backends.iter_mut().zip(own) {
            *load = Load { packets, bytes, flows };
        }
        Box::new(report)
    }
}
