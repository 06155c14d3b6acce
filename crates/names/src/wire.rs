//! Fields of messages of which not all bytes may be there yet.

/// Why a name is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// There will be none, whatever follows.
    NoName,
    /// The message has to have so many bytes before more can be said.
    Needs(usize),
}

/// A field that ends where its length says, in the bytes of a message that are there.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) bytes: &'a [u8],
    /// Offset in the message.
    pub(crate) end: usize,
}

impl<'a> Field<'a> {
    /// `LEN` bytes of the message from `at` on, inside the field.
    pub(crate) fn at<const LEN: usize>(self, at: usize) -> Result<[u8; LEN], Stop> {
        let inner = self.within(at, LEN)?;
        let bytes = inner.all_from(at)?;
        Ok(bytes.try_into().expect("as many as were asked for"))
    }

    /// The field of `len` bytes from `at` on, if it ends inside of this one.
    pub(crate) fn within(self, at: usize, len: usize) -> Result<Self, Stop> {
        let end = at + len;
        if end > self.end { Err(Stop::NoName) } else { Ok(Self { bytes: self.bytes, end }) }
    }

    /// Its bytes from `at` on.
    pub(crate) fn all_from(self, at: usize) -> Result<&'a [u8], Stop> {
        self.bytes.get(at..self.end).ok_or(Stop::Needs(self.end))
    }
}

/// A length of two bytes.
pub(crate) fn be16(bytes: [u8; 2]) -> usize {
    u16::from_be_bytes(bytes).into()
}

/// A length of three bytes.
pub(crate) fn be24([high, middle, low]: [u8; 3]) -> usize {
    u32::from_be_bytes([0, high, middle, low]) as usize
}
