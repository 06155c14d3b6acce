//! Writes pcapng files (draft-ietf-opsawg-pcapng): frames of several link types and interfaces, with comments.

use std::collections::HashMap;
use std::path::Path;

use packetloom_packet::batch::Parsed;
use packetloom_packet::verdict::Verdict;
use packetloom_packet::{Batch, LinkType};

use super::pcapng::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, INTERFACE_DESCRIPTION, OPTION_END, OPTION_NAME, OPTION_TSRESOL,
    SECTION_HEADER,
};
use super::writer::{finish, within_snap};
use crate::Error;
use crate::output::Output;

const OPTION_COMMENT: u16 = 1;
const OPTION_DESCRIPTION: u16 = 3;
/// Bytes of a comment at most: the length of an option has 16 bits, and is padded to 4 bytes.
const LONGEST: usize = 65_532;
/// Times are in units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// LINKTYPE_USER0, which programs show as bytes: for frames of interfaces that their capture does not describe.
const UNDESCRIBED: u16 = 147;

/// A pcapng file being written: little-endian, one section, an interface for each link type of each port.
#[derive(Debug)]
pub struct PcapngWriter {
    output: Output,
    has_begun: bool,
    /// Their numbers; those of a name apart, to be found without a copy of it.
    interfaces: HashMap<LinkType, NumbersByName>,
    /// How many there are.
    described: u32,
    /// Blocks on their way; kept for the next ones.
    blocks: Vec<u8>,
}

/// Numbers of interfaces of one link type: of the one without a name, and of others by theirs.
#[derive(Debug, Default)]
struct NumbersByName {
    nameless: Option<u32>,
    named: HashMap<Box<str>, u32>,
}

impl PcapngWriter {
    /// Makes the file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it cannot be made.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self::over(Output::create(path)?))
    }

    /// Writes to an output, which may be several files: frames go to them by their times, and each describes all interfaces.
    pub fn over(output: Output) -> Self {
        Self { output, has_begun: false, interfaces: HashMap::new(), described: 0, blocks: Vec::new() }
    }

    /// Appends the frames of a batch whose verdict is to drop, as they came, each with the reason as its comment. Of a frame, 262,144
    /// bytes are written at most.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn write_dropped(&mut self, batch: &Batch) -> Result<(), Error> {
        let dropped = batch.verdicts().iter().enumerate().filter_map(|(index, verdict)| match verdict {
            Verdict::Drop(reason) => Some((index, reason.name())),
            Verdict::Pass => None,
        });
        self.write(
            batch,
            dropped,
            |_, _| (),
            |blocks, index, reason| {
                // Of frames without a match key, also why there is none.
                match batch.parsed()[index] {
                    Parsed::Rejected(reject) if !reject.is_non_ip() && reject.name() != reason => {
                        let text = format!("{reason}: {}", reject.name());
                        option(blocks, OPTION_COMMENT, text.as_bytes());
                    }
                    _ => option(blocks, OPTION_COMMENT, reason.as_bytes()),
                }
            },
        )
    }

    /// Appends the frames of a batch whose verdict is to pass, with their rewrites, and with checksums that their senders left to be done.
    /// Of a frame, 262,144 bytes are written at most.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn write_passed(&mut self, batch: &Batch) -> Result<(), Error> {
        let passed = batch.verdicts().iter().enumerate().filter(|(_, verdict)| verdict.is_pass());
        let has_changes = batch.has_rewrites() || batch.has_offloads();
        let change = |index: usize, bytes: &mut [u8]| {
            if has_changes {
                finish(batch, index, bytes);
            }
        };
        self.write(batch, passed.map(|(index, _)| (index, ())), change, |_, _, ()| ())
    }

    /// Appends some frames of a batch, as they came, each with its comments. Of a frame, 262,144 bytes are written at most, and so many of
    /// a comment as an option has room for.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn write_commented<'a>(
        &mut self,
        batch: &Batch,
        frames: impl Iterator<Item = (usize, &'a [String])>,
    ) -> Result<(), Error> {
        self.write(
            batch,
            frames,
            |_, _| (),
            |blocks, _, comments| {
                for comment in comments {
                    option(
                        blocks,
                        OPTION_COMMENT,
                        &comment.as_bytes()[..comment.floor_char_boundary(LONGEST)],
                    );
                }
            },
        )
    }

    /// Appends some frames of a batch, each as `change` leaves it, with the options that `describe` appends.
    fn write<T>(
        &mut self,
        batch: &Batch,
        frames: impl Iterator<Item = (usize, T)>,
        change: impl Fn(usize, &mut [u8]),
        describe: impl Fn(&mut Vec<u8>, usize, T),
    ) -> Result<(), Error> {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.clear();
        let mut count = 0;
        for (index, what) in frames {
            count += 1;
            let frame = &batch.frames()[index];
            let interface = self.interface(frame.link, batch.port_name(index), &mut blocks);
            let nanos = frame.time.shifted(batch.wall_offset()).as_nanos();
            let bytes = within_snap(batch.bytes(index));
            block(&mut blocks, ENHANCED_PACKET, |blocks| {
                let fields =
                    [interface, (nanos >> 32) as u32, nanos as u32, bytes.len() as u32, frame.wire_len];
                fields.iter().for_each(|field| blocks.extend(field.to_le_bytes()));
                let at = blocks.len();
                blocks.extend(bytes);
                change(index, &mut blocks[at..]);
                pad(blocks, bytes.len());
                describe(blocks, index, what);
                option(blocks, OPTION_END, &[]);
            });
        }
        let begun = if count > 0 { self.begin() } else { Ok(()) };
        let result = begun.and_then(|()| match self.output.is_rotating() {
            true => self.write_blocks(&blocks),
            false => self.output.write_items(&blocks, count),
        });
        self.blocks = blocks;
        result
    }

    /// The number of an interface, which is described where it is new.
    fn interface(&mut self, link: LinkType, name: Option<&str>, blocks: &mut Vec<u8>) -> u32 {
        let known = self.interfaces.entry(link).or_default();
        let number = match name {
            None => known.nameless,
            Some(name) => known.named.get(name).copied(),
        };
        if let Some(number) = number {
            return number;
        }
        block(blocks, INTERFACE_DESCRIPTION, |blocks| {
            let number = if link == LinkType::NONE { UNDESCRIBED } else { link.0 };
            blocks.extend(number.to_le_bytes());
            blocks.extend([0; 2]);
            // No limit.
            blocks.extend([0; 4]);
            if let Some(name) = name {
                option(blocks, OPTION_NAME, name.as_bytes());
            }
            if link == LinkType::NONE {
                option(
                    blocks,
                    OPTION_DESCRIPTION,
                    b"frames of interfaces that their capture does not describe",
                );
            }
            option(blocks, OPTION_TSRESOL, &[NANOSECONDS]);
            option(blocks, OPTION_END, &[]);
        });
        let number = self.described;
        self.described += 1;
        match name {
            None => known.nameless = Some(number),
            Some(name) => drop(known.named.insert(name.into(), number)),
        }
        number
    }

    /// Writes what a file begins with.
    fn begin(&mut self) -> Result<(), Error> {
        if self.has_begun {
            return Ok(());
        }
        self.has_begun = true;
        let mut header = Vec::new();
        block(&mut header, SECTION_HEADER, |header| {
            header.extend(BYTE_ORDER_MAGIC.to_le_bytes());
            // Version 1.0, and a section of unknown length.
            header.extend([1, 0, 0, 0]);
            header.extend(u64::MAX.to_le_bytes());
        });
        self.output.write_header(&header)
    }

    /// Writes blocks one by one.
    fn write_blocks(&mut self, mut blocks: &[u8]) -> Result<(), Error> {
        while let Some((header, _)) = blocks.split_first_chunk::<20>() {
            let field =
                |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let (block, others) = blocks.split_at(field(4) as usize);
            if field(0) == INTERFACE_DESCRIPTION {
                self.output.write_header(block)?;
            } else {
                let time = u64::from(field(12)) << 32 | u64::from(field(16));
                self.output.write_record(time, block)?;
            }
            blocks = others;
        }
        Ok(())
    }

    /// As [`Output::appear`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the file then does not appear.
    pub fn appear(&mut self) -> Result<(), Error> {
        self.output.appear()
    }

    /// Hands everything so far to the system, for readers that follow the output.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.output.flush()
    }

    /// Makes the file whole but for its name, also where it has no frame.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn complete(&mut self) -> Result<(), Error> {
        self.begin()?;
        self.output.flush()
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the file then does not appear.
    pub fn finish(mut self) -> Result<(), Error> {
        self.complete()?;
        self.output.finish()
    }
}

/// Appends a block with this content.
fn block(blocks: &mut Vec<u8>, kind: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let begin = blocks.len();
    blocks.extend(kind.to_le_bytes());
    blocks.extend([0; 4]);
    content(blocks);
    let len = (blocks.len() + 4 - begin) as u32;
    blocks[begin + 4..begin + 8].copy_from_slice(&len.to_le_bytes());
    blocks.extend(len.to_le_bytes());
}

fn option(blocks: &mut Vec<u8>, code: u16, value: &[u8]) {
    blocks.extend(code.to_le_bytes());
    blocks.extend((value.len() as u16).to_le_bytes());
    blocks.extend(value);
    pad(blocks, value.len());
}

/// Fills up to whole words of four bytes.
fn pad(blocks: &mut Vec<u8>, len: usize) {
    blocks.extend(std::iter::repeat_n(0, len.next_multiple_of(4) - len));
}

impl AsRef<Output> for PcapngWriter {
    fn as_ref(&self) -> &Output {
        &self.output
    }
}

impl AsMut<Output> for PcapngWriter {
    fn as_mut(&mut self) -> &mut Output {
        &mut self.output
    }
}
