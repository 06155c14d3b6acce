//! Where packets leave, whatever it is.

use std::fmt::Debug;

use packetloom_packet::Batch;

use crate::port::EgressCounts;

/// Where packets leave while a run goes on: network interfaces, or whatever a program puts in their place.
///
/// A sink has no queue without a bound. If it is full, it waits for a short time of its own choice, then counts the frames that it could not take:
/// the packets that come in have no longer to wait.
pub trait Sink: Debug + Send {
    /// Takes the frames of a batch whose verdict is to pass, in order, by the interfaces that [`Batch::egress`] names. Rewrites are
    /// applied by the sink, in a copy ([`Batch::apply_rewrites`]) or where a frame lies ([`Batch::rewrite_in_place`]). Frames that cannot be
    /// taken are counted.
    fn send_passed(&mut self, batch: &mut Batch);

    /// The next message for the user, if there is one.
    fn notice(&mut self) -> Option<String> {
        None
    }

    /// What became of the frames, for each interface in the order of its number.
    fn egress_counts(&self) -> Vec<EgressCounts>;
}
