//! What can be wrong with what a report is asked for.

/// A report that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such field.
    #[error(
        "\"{0}\" is no field of a flow; expected source, destination, address, source-port, destination-port, port, protocol, vlan, mac, icmp-type, icmp-code, flow, \
         or an IPFIX name such as dnsQName, with commas or + between several"
    )]
    Field(String),
    /// The name of a field in the reverse direction.
    #[error(
        "\"{0}\" is of the reverse direction, which is a flow of its own in reports; expected the name without reverse"
    )]
    Reverse(String),
    /// A field comes twice.
    #[error("the field {0} comes twice; expected each field once")]
    Twice(String),
    /// Nothing that is counted.
    #[error("\"{0}\" is not counted; expected bytes, packets or flows behind the last /")]
    Measure(String),
    /// No interval.
    #[error(
        "\"{0}\" is no interval; expected a number and a unit, such as 500ms, 10s, 1m, 1h or 1d, from 1ms to 366d"
    )]
    Interval(String),
    /// A field of either side in a series, whose lines would be more than their total.
    #[error(
        "\"{0}\" counts a flow at both sides, and a series counts it once; expected a field of one side, such as source or destination-port"
    )]
    EitherSide(String),
    /// A file whose name says no format.
    #[error(
        "the name \"{0}\" does not say what kind of report it is; expected it to end in .txt, .json or .svg"
    )]
    Format(String),
}
