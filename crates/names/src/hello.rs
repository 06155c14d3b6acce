//! The server name of a ClientHello (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2; RFC 6066 section 3).

use crate::wire::{Field, Stop, be16, be24};

/// The type of a ClientHello among handshake messages.
const CLIENT_HELLO: u8 = 1;
/// Where the session ID stands: after the type, the length, the version and the random bytes.
const SESSION_ID: usize = 4 + 2 + 32;
/// The extension that has names, and the type of names of hosts in it.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The server name in a handshake message, from its type on, of which any number of bytes are there.
///
/// More bytes do not change an answer: only [`Stop::Needs`] asks for them.
pub(crate) fn server_name(message: &[u8]) -> Result<&[u8], Stop> {
    let header = Field { bytes: message, end: usize::MAX };
    if header.at::<1>(0)? != [CLIENT_HELLO] {
        return Err(Stop::NoName);
    }
    let hello = Field { bytes: message, end: 4 + be24(header.at(1)?) };

    let after_session = SESSION_ID + 1 + usize::from(hello.at::<1>(SESSION_ID)?[0]);
    let after_suites = after_session + 2 + be16(hello.at(after_session)?);
    let extensions = after_suites + 1 + usize::from(hello.at::<1>(after_suites)?[0]);

    // Behind the end where there are no extensions.
    let list = hello.within(extensions + 2, be16(hello.at(extensions)?))?;
    let mut at = extensions + 2;
    while at < list.end {
        let [kind_high, kind_low, len_high, len_low] = list.at(at)?;
        let body = list.within(at + 4, be16([len_high, len_low]))?;
        if u16::from_be_bytes([kind_high, kind_low]) == SERVER_NAME {
            return host_name(body, at + 4);
        }
        at = body.end;
    }
    Err(Stop::NoName)
}

/// The first name of a host in the extension whose body begins at `at`.
fn host_name(body: Field<'_>, at: usize) -> Result<&[u8], Stop> {
    let names = body.within(at + 2, be16(body.at(at)?))?;
    let mut at = at + 2;
    while at < names.end {
        let [kind, len_high, len_low] = names.at(at)?;
        let name = names.within(at + 3, be16([len_high, len_low]))?;
        if kind == HOST_NAME {
            return match name.all_from(at + 3)? {
                [] => Err(Stop::NoName),
                name => Ok(name),
            };
        }
        at = name.end;
    }
    Err(Stop::NoName)
}
