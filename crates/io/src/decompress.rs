//! gzip, xz and zstd, decoded up to the very byte where they are damaged.
//!
//! Zeros between and behind gzip members are padding, as tapes and `dd` leave it, and are skipped, any number of them; so are
//! zeros between and behind xz streams, in fours (xz format 2.2). Anything else behind the data is damage, like a member whose
//! beginning is broken: `gzip` ignores it with a warning, but it may have held packets or rules. Between zstd frames (RFC 8878) there may
//! be skippable ones, and no padding.
//!
//! The libraries' own readers drop what they decoded in the call that meets the damage, up to 32 KiB of gzip's content
//! and 2 MiB of xz's. Their push interfaces count what they gave out before an error, so they are driven here. zstd's does not count, so it
//! is given either bytes to decode or room for content: what takes content out then meets no damage.
//!
//! A zstd frame says how much of its content has to be kept in memory, up to 3.75 TiB. As the program `zstd` does, this takes 128 MiB at most.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;

use flate2::{Crc, Decompress, FlushDecompress};
use lzma_rust2::{Action, XzStream};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// Compressed bytes that are read at once.
const INPUT: usize = 1 << 16;
/// Content that is decoded at once: more than gzip's window of 32 KiB, all of which the last call before damage may
/// give out.
const OUTPUT: usize = 1 << 16;
/// Binary logarithm of the largest window that a zstd frame may ask for.
const WINDOW_LOG: u32 = 27;

/// The content of gzip members, xz streams or zstd frames one after another.
pub(crate) struct Decompressor<R> {
    input: BufReader<R>,
    decoder: Decoder,
    output: Box<[u8]>,
    /// The part of `output` that was not read yet.
    ready: Range<usize>,
    /// What is wrong with the bytes after it: all that comes of further reading.
    damage: Option<(io::ErrorKind, String)>,
}

enum Decoder {
    Gzip { place: Place, inflate: Decompress, crc: Crc, is_later: bool },
    Xz(Box<XzStream>),
    Zstd { context: DCtx<'static>, is_within: bool },
}

/// Where in a gzip member the next bytes stand.
enum Place {
    Header,
    Content,
    Trailer,
}

/// What one step came to.
enum Step {
    /// As many bytes of content, perhaps none.
    Content(usize),
    /// As many bytes of content, and then damage.
    Damage(usize, io::Error),
    End,
}

fn damage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<R: Read> Decompressor<R> {
    /// Decodes gzip (RFC 1952).
    pub(crate) fn gzip(input: R) -> Self {
        let inflate = Decompress::new(false);
        Self::new(input, Decoder::Gzip { place: Place::Header, inflate, crc: Crc::new(), is_later: false })
    }

    /// Decodes xz.
    pub(crate) fn xz(input: R) -> Self {
        Self::new(input, Decoder::Xz(Box::new(XzStream::new(true))))
    }

    /// Decodes zstd (RFC 8878).
    ///
    /// # Errors
    ///
    /// There is no memory for a decoder.
    pub(crate) fn zstd(input: R) -> io::Result<Self> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(zstd_damage)?;
        Ok(Self::new(input, Decoder::Zstd { context, is_within: false }))
    }

    fn new(input: R, decoder: Decoder) -> Self {
        let input = BufReader::with_capacity(INPUT, input);
        Self { input, decoder, output: vec![0; OUTPUT].into_boxed_slice(), ready: 0..0, damage: None }
    }

    fn step(&mut self) -> io::Result<Step> {
        let output = &mut self.output;
        match &mut self.decoder {
            Decoder::Gzip { place: place @ Place::Header, inflate, crc, is_later } => {
                if *is_later {
                    skip_zeros(&mut self.input)?;
                }
                if self.input.fill_buf()?.is_empty() {
                    return Ok(Step::End);
                }
                header(&mut self.input)?;
                *is_later = true;
                inflate.reset(false);
                crc.reset();
                *place = Place::Content;
                Ok(Step::Content(0))
            }
            Decoder::Gzip { place: place @ Place::Content, inflate, crc, .. } => {
                let (before_in, before_out) = (inflate.total_in(), inflate.total_out());
                let input = self.input.fill_buf()?;
                let at_end = input.is_empty();
                let result = inflate.decompress(input, output, FlushDecompress::None);
                self.input.consume((inflate.total_in() - before_in) as usize);
                let len = (inflate.total_out() - before_out) as usize;
                crc.update(&output[..len]);
                match result {
                    Ok(flate2::Status::StreamEnd) => *place = Place::Trailer,
                    Ok(_) if at_end && len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(e) => return Ok(Step::Damage(len, damage(&e.to_string()))),
                }
                Ok(Step::Content(len))
            }
            Decoder::Gzip { place: place @ Place::Trailer, crc, .. } => {
                let mut trailer = [0; 8];
                self.input.read_exact(&mut trailer)?;
                if trailer[..4] != crc.sum().to_le_bytes() || trailer[4..] != crc.amount().to_le_bytes() {
                    return Err(damage("wrong checksum or length"));
                }
                *place = Place::Header;
                Ok(Step::Content(0))
            }
            Decoder::Xz(xz) => {
                let (before_in, before_out) = (xz.total_in(), xz.total_out());
                let input = self.input.fill_buf()?;
                let action = if input.is_empty() { Action::Finish } else { Action::Run };
                let result = xz.process(input, output, action);
                let (read, len) =
                    ((xz.total_in() - before_in) as usize, (xz.total_out() - before_out) as usize);
                self.input.consume(read);
                match result {
                    Ok(result) if result.status == lzma_rust2::Status::StreamEnd && len == 0 => Ok(Step::End),
                    Ok(_) if action == Action::Finish && len == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => Ok(Step::Content(len)),
                    Err(e) => Ok(Step::Damage(len, e)),
                }
            }
            Decoder::Zstd { context, is_within: is_within @ false } => {
                let magic = match zstd_magic(&mut self.input)? {
                    Some(magic) => magic,
                    None => return Ok(Step::End),
                };
                // The shortest header is longer, so all of it is taken.
                context
                    .decompress_stream(&mut OutBuffer::around(&mut [][..]), &mut InBuffer::around(&magic))
                    .map_err(zstd_damage)?;
                *is_within = true;
                Ok(Step::Content(0))
            }
            Decoder::Zstd { context, is_within } => {
                let mut content = OutBuffer::around(&mut output[..]);
                context.decompress_stream(&mut content, &mut InBuffer::around(&[])).map_err(zstd_damage)?;
                let len = content.pos();
                if len > 0 {
                    return Ok(Step::Content(len));
                }
                let bytes = self.input.fill_buf()?;
                if bytes.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let mut bytes = InBuffer::around(bytes);
                let hint = context
                    .decompress_stream(&mut OutBuffer::around(&mut [][..]), &mut bytes)
                    .map_err(zstd_damage)?;
                let read = bytes.pos();
                self.input.consume(read);
                *is_within = hint != 0;
                Ok(Step::Content(0))
            }
        }
    }
}

/// Whether these are the first bytes of a zstd frame, or of a skippable one.
pub(crate) fn is_zstd(head: &[u8]) -> bool {
    matches!(head, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Reads what a zstd frame begins with; none at the end.
fn zstd_magic(input: &mut impl BufRead) -> io::Result<Option<[u8; 4]>> {
    let mut magic = Vec::new();
    input.take(4).read_to_end(&mut magic)?;
    // Those that are cut, too.
    let is_begun = [
        [0x28, 0xb5, 0x2f, 0xfd],
        [magic.first().map_or(0x50, |first| first & 0x0f | 0x50), 0x2a, 0x4d, 0x18],
    ]
    .iter()
    .any(|known| known.starts_with(&magic));
    if !is_begun {
        return Err(damage(&format!(
            "behind the zstd data stands {}; expected its end or another zstd frame, 28 b5 2f fd",
            hexadecimal(&magic)
        )));
    }
    match magic.first_chunk() {
        Some(magic) => Ok(Some(*magic)),
        None if magic.is_empty() => Ok(None),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What an error of the zstd library means.
fn zstd_damage(code: usize) -> io::Error {
    // Codes of zstd_errors.h that say what users can do; they are negated.
    match code.wrapping_neg() {
        16 => damage(
            "the zstd frame asks for a window of more than 128 MiB (zstd --long=28 or more); decompress it before, by zstd -dc --long=31",
        ),
        32 => damage("the zstd frame was made with a dictionary; decompress it before, by zstd -dc -D"),
        64 => io::Error::new(io::ErrorKind::OutOfMemory, "no memory for the window of a zstd frame"),
        _ => damage(zstd_safe::get_error_name(code)),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// Skips zeros.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let is_all = zeros > 0 && zeros == bytes.len();
        input.consume(zeros);
        if !is_all {
            return Ok(());
        }
    }
}

/// Reads the header of a gzip member (RFC 1952 section 2.3).
fn header(input: &mut impl BufRead) -> io::Result<()> {
    const MAGIC: [u8; 2] = [0x1f, 0x8b];
    let mut magic = Vec::new();
    input.take(2).read_to_end(&mut magic)?;
    if !MAGIC.starts_with(&magic) {
        return Err(damage(&format!(
            "behind the gzip data stands {}; expected its end, zeros, or another gzip member, 1f 8b",
            hexadecimal(&magic)
        )));
    }
    let mut fixed = [0; 8];
    if magic.len() < MAGIC.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    input.read_exact(&mut fixed)?;
    let [method, flags, ..] = fixed;
    if method != 8 {
        return Err(damage(&format!("compression method {method} in a gzip header; expected 8, deflate")));
    }
    let has = |flag: u8| flags & flag != 0;
    let mut two = [0; 2];
    if has(4) {
        input.read_exact(&mut two)?;
        let len = u64::from(u16::from_le_bytes(two));
        if io::copy(&mut input.take(len), &mut io::sink())? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    // File name and comment end with a zero.
    for _ in 0..u8::from(has(8)) + u8::from(has(16)) {
        input.skip_until(0)?;
    }
    // The header's own checksum is not verified.
    if has(2) {
        input.read_exact(&mut two)?;
    }
    Ok(())
}

impl<R: Read> Read for Decompressor<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() {
            if let Some((kind, what)) = &self.damage {
                return Err(io::Error::new(*kind, what.clone()));
            }
            match self.step() {
                Ok(Step::Content(len)) => self.ready = 0..len,
                Ok(Step::Damage(len, damage)) => {
                    self.ready = 0..len;
                    self.damage = Some((damage.kind(), damage.to_string()));
                }
                Ok(Step::End) => return Ok(0),
                // A call that failed or was interrupted may succeed the next time; damage stays.
                Err(e) if e.raw_os_error().is_some() || e.kind() == io::ErrorKind::Interrupted => {
                    return Err(e);
                }
                // In the words of the kind, not of the call that met it.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.damage = Some((e.kind(), e.kind().to_string()));
                }
                Err(e) => self.damage = Some((e.kind(), e.to_string())),
            }
        }
        let len = self.ready.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.output[self.ready.start..self.ready.start + len]);
        self.ready.start += len;
        Ok(len)
    }
}
