//! Which flow sends next: a calendar queue.
//!
//! Time is cut into slots of 2ⁿ nanoseconds. A flow due in a later slot hangs in that slot's
//! list, linked through the flows themselves; the flows of the present slot are in a small heap.
//! So a packet costs a heap of a few dozen entries instead of one of all flows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::flow::Flow;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// About so many packets should fall into one slot.
const PACKETS_PER_SLOT: u64 = 32;

pub(super) struct Calendar {
    /// log₂ of a slot's nanoseconds.
    shift: u32,
    /// The first flow of every slot's list.
    heads: Vec<u32>,
    /// The present slot.
    now: usize,
    /// Its flows: when and which. Equal times go by index, so that the order is always the same.
    near: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Calendar {
    /// A calendar of `duration` nanoseconds with every flow entered at its `next`.
    ///
    /// It takes 4 bytes a slot, and has no more slots than flows (or 1,024).
    pub(super) fn new(flows: &mut [Flow], packets: u64, duration: u64) -> Self {
        let most = (packets / PACKETS_PER_SLOT).min((flows.len() as u64).max(1024)).max(1);
        let mut shift = 0;
        while duration >> shift >= most {
            shift += 1;
        }
        let slots = (duration >> shift) as usize + 1;
        let near = BinaryHeap::new();
        let mut calendar = Self { shift, heads: vec![NONE; slots], now: 0, near };
        for (index, flow) in flows.iter_mut().enumerate() {
            calendar.enter(index as u32, flow);
        }
        calendar
    }

    /// The flow that is due first, or `None` when no flow is entered.
    #[inline]
    pub(super) fn first(&mut self, flows: &[Flow]) -> Option<u32> {
        loop {
            if let Some(&Reverse((_, index))) = self.near.peek() {
                return Some(index);
            }
            let ahead = self.heads[self.now..].iter().position(|&head| head != NONE)?;
            self.now += ahead;
            let mut index = std::mem::replace(&mut self.heads[self.now], NONE);
            while index != NONE {
                let flow = &flows[index as usize];
                self.near.push(Reverse((flow.next, index)));
                index = flow.link;
            }
        }
    }

    /// Enters the first flow again, whose `next` has moved on.
    #[inline]
    pub(super) fn delay_first(&mut self, flow: &mut Flow) {
        let Some(mut first) = self.near.peek_mut() else { return };
        let slot = (flow.next >> self.shift) as usize;
        if slot == self.now {
            first.0.0 = flow.next;
        } else {
            let Reverse((_, index)) = PeekMut::pop(first);
            flow.link = std::mem::replace(&mut self.heads[slot], index);
        }
    }

    /// Strikes the first flow out.
    #[inline]
    pub(super) fn remove_first(&mut self) {
        self.near.pop();
    }

    fn enter(&mut self, index: u32, flow: &mut Flow) {
        let slot = (flow.next >> self.shift) as usize;
        flow.link = std::mem::replace(&mut self.heads[slot], index);
    }
}
