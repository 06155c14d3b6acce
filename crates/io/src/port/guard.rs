//! Keeps the kernel from handling what arrives at a port, since it would forward or answer the packets too.
//!
//! A base chain of nf_tables at the port's ingress hook drops everything; packet sockets see frames before that. Its table belongs to a
//! netlink socket (`NFT_TABLE_F_OWNER`), so it goes when this process does, however that ends.

use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;

use super::Link;
use super::netlink::{ACK, Attributes, CREATE, ERROR, EXCLUSIVE, Netlink, REQUEST, Request};
use crate::Error;

/// `NFNL_SUBSYS_NFTABLES`.
const NF_TABLES: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`: what stands between takes effect together, or not at all.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = NF_TABLES << 8;
const DELETE_TABLE: u16 = NF_TABLES << 8 | 2;
const NEW_CHAIN: u16 = NF_TABLES << 8 | 3;
/// `NFPROTO_NETDEV`.
const NETDEV: u8 = 5;

/// `NFTA_TABLE_NAME`, `NFTA_TABLE_FLAGS`, `NFT_TABLE_F_OWNER`.
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const OWNER: u32 = 2;
/// `NFTA_CHAIN_TABLE`, `_NAME`, `_HOOK`, `_POLICY`, `_TYPE`.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
/// `NFTA_HOOK_HOOKNUM`, `_PRIORITY`, `_DEV`.
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
/// `NF_NETDEV_INGRESS`, `NF_IP_PRI_FIRST`, `NF_DROP`.
const INGRESS: u32 = 0;
const FIRST: i32 = i32::MIN;
const DROP: u32 = 0;

/// What each message of a batch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Step {
    Begin,
    Delete,
    Table,
    Chain,
    End,
}

/// Sequence numbers of a batch: answers to an earlier one may still come.
const STEPS: u32 = 8;

/// Drops all packets that arrive at an interface before the kernel handles them, as long as it lives. Packet sockets still see them.
#[derive(Debug)]
pub struct Guard {
    interface: String,
    /// Batches that were sent.
    batches: u32,
    /// The table belongs to this.
    socket: Netlink,
}

impl Guard {
    /// Guards an interface of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterface`]: there is none of this name. [`Error::NotPermitted`]: CAP_NET_ADMIN is needed. [`Error::Guard`]: another
    /// process guards the interface, or the kernel lacks something that the text names.
    pub fn install(interface: &str) -> Result<Self, Error> {
        let mut guard = Self::claim(interface)?;
        guard.activate()?;
        Ok(guard)
    }

    /// Keeps others from guarding an interface, but drops nothing until it is [activated](Self::activate).
    ///
    /// # Errors
    ///
    /// As [`Guard::install`].
    pub(super) fn claim(interface: &str) -> Result<Self, Error> {
        // Since Linux 6.16 a chain may name an interface that is still to come.
        Link::by_name(interface)?;
        let socket =
            Netlink::open(Some(NETFILTER), 0).map_err(|source| match Errno::from_io_error(&source) {
                Some(error) => explain(interface, Step::Begin, error),
                None => Error::Interface { interface: interface.into(), action: "guard it", source },
            })?;
        let mut guard = Self { interface: interface.into(), batches: 0, socket: socket.going_first() };
        guard.run(interface, &[Step::Table]).map_err(|(step, error)| explain(interface, step, error))?;
        Ok(guard)
    }

    /// Begins to drop packets.
    ///
    /// # Errors
    ///
    /// As [`Guard::install`].
    pub(super) fn activate(&mut self) -> Result<(), Error> {
        let interface = self.interface.clone();
        self.run(&interface, &[Step::Chain]).map_err(|(step, error)| explain(&interface, step, error))
    }

    /// Guards the interface that has the name now, after the one that had it was removed.
    ///
    /// # Errors
    ///
    /// As [`Guard::install`].
    pub fn renew(&mut self) -> Result<(), Error> {
        self.follow(&self.interface.clone())
    }

    /// Guards the interface of this name in place of the one so far: since Linux 6.16 a chain is for a name, so an interface that is
    /// renamed leaves it.
    ///
    /// # Errors
    ///
    /// As [`Guard::install`]; then the guard is what it was.
    pub fn follow(&mut self, interface: &str) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.interface, interface.into());
        let result = match self.run(&before, &[Step::Delete, Step::Table, Step::Chain]) {
            // Somebody has removed it.
            Err((Step::Delete, Errno::NOENT)) => self.run(&before, &[Step::Table, Step::Chain]),
            result => result,
        };
        result.map_err(|(step, error)| {
            self.interface = before;
            explain(interface, step, error)
        })
    }

    /// The interface it guards.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Sends a batch and waits until all of it is done, or the first step that is refused. What is deleted is the table for `before`.
    fn run(&mut self, before: &str, steps: &[Step]) -> Result<(), (Step, Errno)> {
        let first = self.batches.wrapping_mul(STEPS);
        self.batches = self.batches.wrapping_add(1);
        let failed = |error| (Step::Begin, error);
        self.socket.send(&batch([before, &self.interface], first, steps)).map_err(failed)?;
        loop {
            let answer = self.socket.receive().map_err(failed)?;
            let number = answer.sequence.wrapping_sub(first);
            let step = [Step::Begin, Step::Delete, Step::Table, Step::Chain, Step::End]
                .into_iter()
                .find(|&step| step as u32 == number);
            let Some(step) = step.filter(|_| answer.kind == ERROR) else { continue };
            answer.error().map_err(|error| (step, error))?;
            if Some(&step) == steps.last() {
                return Ok(());
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The table goes when its socket is closed, but a process that is just being started elsewhere in this one may still hold that.
        let _ = self.socket.send(&batch([&self.interface; 2], 0, &[Step::Delete]));
    }
}

/// The table's name: two processes cannot guard one interface.
fn table(interface: &str) -> String {
    format!("packetloom-{interface}")
}

/// The messages for these steps, which take effect together; numbered from `first` on. They delete the table for the interface `before`.
fn batch([before, interface]: [&str; 2], first: u32, steps: &[Step]) -> Request {
    let make = REQUEST | ACK | CREATE | EXCLUSIVE;
    let (deleted, name) = (table(before), table(interface));
    let mut batch = Request::default();
    let mut message =
        |step: Step, kind, flags, [family, subsystem]: [u8; 2], attributes: &dyn Fn(&mut Attributes<'_>)| {
            let number = first.wrapping_add(step as u32);
            batch.message(kind, flags, number, &[family, 0, 0, subsystem], attributes);
        };
    message(Step::Begin, BATCH_BEGIN, REQUEST, [0, NF_TABLES as u8], &|_| {});
    for &step in steps {
        match step {
            Step::Delete => message(step, DELETE_TABLE, REQUEST | ACK, [NETDEV, 0], &|table| {
                table.string(TABLE_NAME, &deleted);
            }),
            Step::Table => message(step, NEW_TABLE, make, [NETDEV, 0], &|table| {
                table.string(TABLE_NAME, &name);
                table.put(TABLE_FLAGS, &OWNER.to_be_bytes());
            }),
            Step::Chain => message(step, NEW_CHAIN, make, [NETDEV, 0], &|chain| {
                chain.string(CHAIN_TABLE, &name);
                chain.string(CHAIN_NAME, "ingress");
                chain.nested(CHAIN_HOOK, |hook| {
                    hook.put(HOOK_NUMBER, &INGRESS.to_be_bytes());
                    hook.put(HOOK_PRIORITY, &FIRST.to_be_bytes());
                    hook.string(HOOK_DEVICE, interface);
                });
                chain.put(CHAIN_POLICY, &DROP.to_be_bytes());
                chain.string(CHAIN_TYPE, "filter");
            }),
            Step::Begin | Step::End => {}
        }
    }
    message(Step::End, BATCH_END, REQUEST, [0, NF_TABLES as u8], &|_| {});
    batch
}

/// What an error says about the kernel or the machine, by the step that it refused.
fn explain(interface: &str, step: Step, error: Errno) -> Error {
    let reason = match (step, error) {
        (Step::Begin, Errno::PERM | Errno::ACCESS) => {
            return Error::NotPermitted {
                interface: interface.into(),
                action: "keep the kernel from handling its packets",
                capability: "CAP_NET_ADMIN",
            };
        }
        (Step::Begin, Errno::PROTONOSUPPORT | Errno::OPNOTSUPP) => {
            "the kernel has no nf_tables (CONFIG_NF_TABLES); load the module nf_tables".into()
        }
        (Step::Table, Errno::AFNOSUPPORT) => {
            "nf_tables of this kernel has no family \"netdev\" (CONFIG_NF_TABLES_NETDEV)".into()
        }
        (Step::Table, Errno::OPNOTSUPP | Errno::INVAL) => {
            "nf_tables of this kernel has no tables with an owner; Linux 5.12 or later is needed".into()
        }
        (Step::Table, Errno::EXIST | Errno::PERM | Errno::BUSY) => {
            let table = table(interface);
            format!("the table \"netdev {table}\" exists already; is another packetloom running on this interface?")
        }
        (Step::Chain, Errno::OPNOTSUPP) => {
            "the kernel has no ingress hook for packet filters (CONFIG_NETFILTER_INGRESS)".into()
        }
        (Step::Chain, Errno::NOENT) => {
            "nf_tables of this kernel has no chains of type \"filter\" in the family \"netdev\", or the interface was removed".into()
        }
        (_, error) => error.to_string(),
    };
    Error::Guard { interface: interface.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{attributes, split_message};
    use super::*;

    /// The batch as `nft --debug=netlink` shows it for
    /// `add table netdev packetloom-eth0 { flags owner; chain ingress { type filter hook ingress device "eth0" priority ...; policy drop; } }`.
    #[test]
    fn the_batch_makes_a_table_with_an_owner_and_a_chain_that_drops() {
        let request = batch(["eth1", "eth0"], 16, &[Step::Delete, Step::Table, Step::Chain]);
        let mut rest = request.bytes();
        let mut messages = Vec::new();
        while let Some((message, after)) = split_message(rest) {
            messages.push(message);
            rest = after;
        }
        let kinds: Vec<_> = messages.iter().map(|message| message.kind).collect();
        assert_eq!(kinds, [0x10, 0xa02, 0xa00, 0xa03, 0x11]);
        assert_eq!(messages[0].payload, [0, 0, 0, 10]);
        let deleted: Vec<_> = attributes(&messages[1].payload[4..]).collect();
        assert_eq!(deleted, [(1, &b"packetloom-eth1\0"[..])]);
        assert_eq!(messages[2].payload[..4], [5, 0, 0, 0]);
        let table: Vec<_> = attributes(&messages[2].payload[4..]).collect();
        assert_eq!(table, [(1, &b"packetloom-eth0\0"[..]), (2, &[0, 0, 0, 2][..])]);
        let chain: Vec<_> = attributes(&messages[3].payload[4..]).collect();
        assert_eq!(chain[0], table[0]);
        assert_eq!((chain[3], chain[4]), ((5, &[0; 4][..]), (7, &b"filter\0"[..])));
        let hook: Vec<_> = attributes(chain[2].1).collect();
        assert_eq!(hook, [(1, &[0; 4][..]), (2, &[0x80, 0, 0, 0][..]), (3, &b"eth0\0"[..])]);
        let numbers: Vec<_> = messages.iter().map(|message| message.sequence).collect();
        assert_eq!(numbers, [16, 17, 18, 19, 20]);
    }

    #[test]
    fn errors_name_what_is_missing() {
        let text = |step, error| explain("eth7", step, error).to_string();
        for (step, error, expected) in [
            (Step::Begin, Errno::PERM, "CAP_NET_ADMIN"),
            (Step::Begin, Errno::PROTONOSUPPORT, "CONFIG_NF_TABLES"),
            (Step::Table, Errno::AFNOSUPPORT, "CONFIG_NF_TABLES_NETDEV"),
            (Step::Table, Errno::OPNOTSUPP, "5.12"),
            (Step::Table, Errno::PERM, "another packetloom"),
            (Step::Chain, Errno::OPNOTSUPP, "CONFIG_NETFILTER_INGRESS"),
        ] {
            let text = text(step, error);
            assert!(text.contains(expected) && text.starts_with("eth7: "), "{text}");
        }
    }
}
