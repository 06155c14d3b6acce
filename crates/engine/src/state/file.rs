//! The file. All numbers are little-endian.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `PKTLSTAT` |
//! | 4 | version of the format: 2 |
//! | 4 | bytes of the header |
//! | … | the header: JSON, with spaces behind it up to a multiple of 8 |
//! | 8 each | the entries, definition by definition, IPv4 before IPv6, in the order of their keys |
//! | … | texts that functions keep of entries: JSON, with spaces behind it up to a multiple of 8 |
//! | 4 | CRC-32 (ISO-HDLC, that of gzip) of all before |
//!
//! Version 1 is the same without texts; it is read, too.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use packetloom_io::output::Output;
use packetloom_nf::flows::{By, Counts, header_words, key_and_functions};
use serde::{Deserialize, Serialize};

use super::{Held, KEY_WORDS, Kept, State, Texts, key};

/// The version of the format.
pub const VERSION: u32 = 2;

/// The version before, which has no texts.
const WITHOUT_TEXTS: u32 = 1;

const MAGIC: &[u8; 8] = b"PKTLSTAT";
/// Bytes before the header.
const START: usize = 16;
/// Bytes of the checksum.
const CHECKSUM: usize = 4;
/// Words of a function at most: more than any has.
const MAX_WORDS: usize = 64;

/// A state file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It could not be read or written.
    #[error(transparent)]
    Io(#[from] packetloom_io::Error),
    /// It does not hold what it should.
    #[error("{file}: {why}")]
    Bad {
        /// Its name.
        file: String,
        /// What is wrong, and what was expected.
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    packets: u64,
    /// Nanoseconds.
    time: Option<u64>,
    definitions: Vec<Definition>,
    /// Bytes that all texts take.
    #[serde(default)]
    texts: usize,
}

/// A text: the number of its definition, that of its function there, the version of IP, the number of its entry among those of the version.
type PlacedText = (usize, usize, u8, usize, Box<str>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    by: String,
    functions: Vec<Kept>,
    ipv4: usize,
    ipv6: usize,
}

impl State {
    /// Writes it to a file, which appears under its name when it is whole and safe from a crash.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut output = Output::create(path)?;
        let mut checksum = crc32fast::Hasher::new();
        self.encode(&mut |bytes| {
            checksum.update(bytes);
            output.write(bytes)
        })?;
        output.write(&checksum.finalize().to_le_bytes())?;
        output.sync()?;
        Ok(output.finish()?)
    }

    /// Reads one from a file.
    ///
    /// # Errors
    ///
    /// [`Error`]: a file that cannot be read, is cut, changed, no state, or of another version.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let bytes = std::fs::read(path)
            .map_err(|e| packetloom_io::Error::io(file.clone(), e).expecting("a state file"))?;
        Self::decode(&bytes).map_err(|why| Error::Bad { file, why })
    }

    /// Hands out all bytes but the checksum.
    fn encode(
        &self,
        write: &mut dyn FnMut(&[u8]) -> Result<(), packetloom_io::Error>,
    ) -> Result<(), packetloom_io::Error> {
        let definition = |held: &Held| {
            let [ipv4, ipv6] = held.flows();
            let (name, functions) = (held.name.clone(), held.functions.clone());
            Definition { name, by: held.by.name().into(), functions, ipv4, ipv6 }
        };
        let definitions = self.definitions.iter().map(definition).collect();
        let texts = padded(&self.placed_texts());
        let header = Header { packets: self.packets, time: self.time, definitions, texts: texts.len() };
        let text = padded(&header);
        write(MAGIC)?;
        write(&VERSION.to_le_bytes())?;
        write(&(text.len() as u32).to_le_bytes())?;
        write(&text)?;
        for words in
            self.definitions.iter().flat_map(|held| &held.entries).flat_map(|all| all.chunks(1 << 12))
        {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            write(&bytes)?;
        }
        write(&texts)
    }

    /// All texts, in order.
    fn placed_texts(&self) -> Vec<PlacedText> {
        let mut placed = Vec::new();
        for (definition, held) in
            self.definitions.iter().enumerate().filter(|(_, held)| !held.texts.is_empty())
        {
            let named: HashSet<_> = held.texts.keys().map(|&(_, is_v6, key)| (is_v6, key)).collect();
            // Of few entries, where few have one.
            let numbers = [false, true].map(|is_v6| {
                let keys = held.keys(usize::from(is_v6)).zip(0..);
                keys.filter(|&(key, _)| named.contains(&(is_v6, key))).collect::<HashMap<_, usize>>()
            });
            let texts = held.texts.iter().filter_map(|(&(function, is_v6, key), text)| {
                let entry = *numbers[usize::from(is_v6)].get(&key)?;
                Some((definition, function, if is_v6 { 6 } else { 4 }, entry, text.clone()))
            });
            placed.extend(texts);
        }
        placed
    }

    /// Reads one from the bytes of a file.
    ///
    /// # Errors
    ///
    /// What is wrong, and what was expected.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some((MAGIC, rest)) = bytes.split_first_chunk() else {
            return Err("no state; expected a file that --save-state wrote".into());
        };
        let Some((version, rest)) = rest.split_first_chunk() else { return Err(cut()) };
        let version = u32::from_le_bytes(*version);
        if ![WITHOUT_TEXTS, VERSION].contains(&version) {
            return Err(format!("state of version {version}; expected version {WITHOUT_TEXTS} or {VERSION}"));
        }
        let Some((len, rest)) = rest.split_first_chunk() else { return Err(cut()) };
        let len = u32::from_le_bytes(*len) as usize;
        let Some((body, checksum)) = rest.split_last_chunk::<CHECKSUM>() else { return Err(cut()) };
        if body.len() < len {
            return Err(cut());
        }
        let found = crc32fast::hash(&bytes[..START + body.len()]);
        if found != u32::from_le_bytes(*checksum) {
            return Err(format!(
                "cut or changed: its checksum is {found:08x}; expected {:08x}",
                u32::from_le_bytes(*checksum)
            ));
        }
        let (header, entries) = body.split_at(len);
        let Header { packets, time, definitions, texts } = serde_json::from_slice(header)
            .map_err(|e| format!("its header: {e}; expected that of a state"))?;
        let Some(end) = entries.len().checked_sub(texts) else { return Err(cut()) };
        let (entries, texts) = entries.split_at(end);
        let (words, rest) = entries.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(cut());
        }
        let mut words = words;
        let mut definitions: Vec<_> = definitions
            .into_iter()
            .map(|definition| definition.read(&mut words))
            .collect::<Result<_, _>>()?;
        if !words.is_empty() {
            return Err(format!("{} words behind the last entry; expected none", words.len()));
        }
        if !texts.is_empty() {
            let texts: Vec<PlacedText> = serde_json::from_slice(texts)
                .map_err(|e| format!("its texts: {e}; expected those of a state"))?;
            place(texts, &mut definitions)?;
        }
        let mut names: Vec<_> = definitions.iter().map(|held| &held.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("flows {:?} twice; expected once", pair[0]));
        }
        Ok(Self { packets, time, definitions })
    }
}

/// JSON with spaces behind it.
fn padded(value: &impl Serialize) -> Vec<u8> {
    // Of numbers and texts, which JSON has.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}

/// Gives texts to the entries that they are of.
fn place(texts: Vec<PlacedText>, definitions: &mut [Held]) -> Result<(), String> {
    for (definition, function, version, entry, text) in texts {
        let is_v6 = version == 6;
        let held = definitions.get_mut(definition).filter(|held| function < held.functions.len());
        let key = held.as_ref().and_then(|held| held.key_at(usize::from(is_v6), entry));
        let (Some(key), Some(held), 4 | 6) = (key, held, version) else {
            return Err(format!("a text of entry {entry} of definition {definition}, which is not there"));
        };
        held.texts.insert((function, is_v6, key), text);
    }
    Ok(())
}

fn cut() -> String {
    "cut before its end; expected a whole file that --save-state wrote".into()
}

impl Definition {
    /// Takes its entries from the words that are left.
    fn read(self, left: &mut &[[u8; 8]]) -> Result<Held, String> {
        let Self { name, by, functions, ipv4, ipv6 } = self;
        let Some(&by) = By::ALL.iter().find(|known| known.name() == by) else {
            let known: Vec<_> = By::ALL.iter().map(|by| by.name()).collect();
            return Err(format!("flows {name:?} by {by:?}; expected one of {}", known.join(", ")));
        };
        let most = by.key_form().max_functions();
        if functions.len() > most || functions.iter().any(|kept| kept.words > MAX_WORDS) {
            return Err(format!(
                "flows {name:?} with the state of {} functions; expected {most} or fewer, of {MAX_WORDS} words or fewer",
                functions.len()
            ));
        }
        let words: usize = functions.iter().map(|kept| kept.words).sum();
        let mut entries = [Vec::new(), Vec::new()];
        for ((entries, count), key_words) in entries.iter_mut().zip([ipv4, ipv6]).zip(KEY_WORDS) {
            let stride = header_words(key_words) + words;
            let Some((own, rest)) = count.checked_mul(stride).and_then(|count| left.split_at_checked(count))
            else {
                return Err(format!("flows {name:?}: {count} entries, which are not there; expected them"));
            };
            *left = rest;
            *entries = own.iter().map(|&word| u64::from_le_bytes(word)).collect();
            let keys = || entries.chunks_exact(stride).map(|entry| key(entry, key_words));
            let is_of_functions =
                |entry: &[u64]| key_and_functions(entry[key_words - 1]).1 >> functions.len() == 0;
            if !keys().zip(keys().skip(1)).all(|(key, next)| key < next)
                || !entries.chunks_exact(stride).all(is_of_functions)
            {
                return Err(format!(
                    "flows {name:?}: entries that are none; expected each key once, in order"
                ));
            }
            if !keys().all(|key| by.key_form().is_of(&key[..key_words])) {
                let (by, expected) = (by.name(), by.key_form().describe());
                return Err(format!("flows {name:?} by {by}: a key of something else; expected {expected}"));
            }
        }
        Ok(Held { name, by, functions, entries, texts: Texts::new(), counts: Counts::default() })
    }
}

#[cfg(test)]
mod tests {
    use packetloom_nf::flows::FUNCTIONS;
    use serde_json::Value;

    use super::*;

    fn state() -> State {
        let kept =
            |nf: &str, words| Kept { nf: nf.into(), position: 0, version: 1, words, legend: Value::Null };
        let bit = |number: u32| 1 << (FUNCTIONS + number);
        let held = Held {
            name: "short".into(),
            by: By::FiveTuple,
            functions: vec![kept("counter", 2), kept("scan", 0)],
            entries: [
                vec![1, 7 | bit(0), 1_000, 3, 300, 2, 7 | bit(1), 1_001, 0, 0],
                vec![1, 2, 3, 4, 6 | bit(0) | bit(1), 5, 1, 40],
            ],
            texts: Texts::from([
                ((0, false, [1, 7, 0, 0, 0]), "a \"text\"\n".into()),
                ((0, true, [1, 2, 3, 4, 6]), "".into()),
                ((1, true, [1, 2, 3, 4, 6]), "ü".into()),
            ]),
            counts: Counts::default(),
        };
        State { packets: 9, time: Some(1_001), definitions: vec![held] }
    }

    fn bytes(state: &State) -> Vec<u8> {
        let mut bytes = Vec::new();
        state
            .encode(&mut |more| {
                bytes.extend(more);
                Ok(())
            })
            .expect("memory can be written");
        seal(bytes)
    }

    fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = bytes(&state());
        assert_eq!(&bytes[..12], b"PKTLSTAT\x02\0\0\0");
        // 18 words of entries, texts and the checksum.
        let header = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
        let texts = br#"[[0,0,4,0,"a \"text\"\n"],[0,0,6,0,""],[0,1,6,0,"\u00fc"]]"#.len();
        let texts = (texts - 4).next_multiple_of(8);
        assert_eq!((bytes.len(), header % 8), (16 + header + 18 * 8 + texts + 4, 0));
        let read = State::decode(&bytes).expect("a state");
        assert_eq!(read, state());
        assert_eq!(read.definitions[0].flows(), [2, 1]);
        assert_eq!(read.definitions[0].flows_of_functions(), [2, 2]);
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926, "the checksum is gzip's");
    }

    /// A file with one flow of one function, its header, and texts.
    fn made(version: u32, more: &str, texts: &str) -> Vec<u8> {
        let function = r#"{"nf":"counter","position":0,"version":1,"words":1,"legend":null}"#;
        let definition =
            format!(r#"{{"name":"a","by":"source","functions":[{function}],"ipv4":1,"ipv6":0}}"#);
        let header = format!(r#"{{"packets":9,"time":1001,"definitions":[{definition}]{more}}}"#);
        let words = [7u64, 1 << FUNCTIONS, 1_000, 5].map(u64::to_le_bytes).concat();
        let head = [&MAGIC[..], &version.to_le_bytes(), &(header.len() as u32).to_le_bytes()].concat();
        seal([&head, header.as_bytes(), &words, texts.as_bytes()].concat())
    }

    /// What the version before wrote.
    #[test]
    fn a_file_without_texts_is_read() {
        let read = State::decode(&made(WITHOUT_TEXTS, "", "")).expect("a state");
        assert_eq!((read.definitions[0].flows(), read.definitions[0].texts.len()), ([1, 0], 0));
    }

    #[test]
    fn texts_of_nothing_are_refused() {
        let decode =
            |texts: &str| State::decode(&made(VERSION, &format!(r#","texts":{}"#, texts.len()), texts));
        let read = decode(r#"[[0,0,4,0,"a"]]  "#).expect("a state");
        assert_eq!(read.definitions[0].texts, Texts::from([((0, false, [7, 0, 0, 0, 0]), "a".into())]));
        for (texts, why) in [
            (r#"[[1,0,4,0,""]]"#, "a text of entry 0 of definition 1, which is not there"),
            (r#"[[0,1,4,0,""]]"#, "a text of entry 0 of definition 0"),
            (r#"[[0,0,5,0,""]]"#, "a text of entry 0 of definition 0"),
            (r#"[[0,0,4,1,""]]"#, "a text of entry 1 of definition 0"),
            (r#"[[0,0,6,0,""]]"#, "a text of entry 0 of definition 0"),
            (r#"[[0,0,4,-1,""]]"#, "its texts: invalid value"),
            ("{}", "its texts: invalid type"),
        ] {
            let error = decode(texts).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let error = State::decode(&made(VERSION, r#","texts":33"#, "")).expect_err("more than there is");
        assert!(error.contains("cut before its end"), "{error}");
    }

    /// With VLANs, the bits of functions are fewer.
    #[test]
    fn keys_with_vlans_are_read() {
        let vlan = |number: u64| 1 << 59 | number << 47;
        let mut state = state();
        let held = &mut state.definitions[0];
        held.by = By::VlanFiveTuple;
        // Of other keys.
        held.texts.clear();
        held.entries[0][1] |= vlan(0);
        held.entries[0][6] |= vlan(4095);
        held.entries[1][4] |= vlan(12);
        let read = State::decode(&bytes(&state)).expect("a state");
        assert_eq!(read, state);
        assert_eq!(read.definitions[0].flows_of_functions(), [2, 2]);
        let mut vlans = Vec::new();
        read.definitions[0].each_entry(|entry| vlans.push(entry.flow().vlan.map(|vlan| vlan.number())));
        assert_eq!(vlans, [None, Some(4095), Some(12)]);
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_is_refused() {
        let bytes = bytes(&state());
        for at in 0..bytes.len() {
            assert!(State::decode(&bytes[..at]).is_err(), "{at}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(State::decode(&changed).is_err(), "{at} {bit}");
            }
        }
        assert!(State::decode(&[bytes, vec![0]].concat()).is_err());
    }

    /// Files whose checksum is right, and which are wrong all the same.
    #[test]
    fn entries_that_cannot_be_are_refused() {
        type Change = fn(&mut Held);
        let cases: [(Change, &str); 10] = [
            (|held| held.entries[0].swap(0, 5), "each key once, in order"),
            (|held| held.entries[0][5] = 1, "each key once, in order"),
            (|held| held.entries[0][1] |= 1 << (FUNCTIONS + 2), "each key once, in order"),
            (|held| held.entries[1][4] |= 1 << 63, "each key once, in order"),
            (|held| held.by = By::Source, "by source: a key of something else; expected addresses alone"),
            (
                |held| {
                    held.by = By::Initiator;
                    held.entries[0] = vec![1 << 40, 0, 1_000, 0, 0];
                },
                "by initiator: a key of something else; expected addresses alone",
            ),
            (
                |held| held.by = By::VlanFiveTuple,
                "by 5-tuple-vlan: a key of something else; expected ports, protocols and addresses with a VLAN",
            ),
            (
                |held| held.entries[0][1] |= 1 << 59,
                "by 5-tuple: a key of something else; expected ports, protocols and addresses",
            ),
            (
                |held| {
                    held.by = By::VlanFiveTuple;
                    held.functions = vec![held.functions[1].clone(); 8];
                },
                "8 functions; expected 7 or fewer",
            ),
            (|held| held.functions[1].words = 65, "of 64 words or fewer"),
        ];
        for (change, why) in cases {
            let mut state = state();
            change(&mut state.definitions[0]);
            let error = State::decode(&bytes(&state)).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let twice = State { definitions: [state().definitions, state().definitions].concat(), ..state() };
        assert_eq!(State::decode(&bytes(&twice)), Err("flows \"short\" twice; expected once".into()));
        let other = [&MAGIC[..], &3u32.to_le_bytes(), &[0; 20]].concat();
        assert_eq!(State::decode(&other), Err("state of version 3; expected version 1 or 2".into()));
        // More entries than any file holds.
        let text = br#"{"packets":0,"time":null,"definitions":[{"name":"a","by":"source","functions":[],"ipv4":18446744073709551615,"ipv6":0}]}    "#;
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &(text.len() as u32).to_le_bytes(), text].concat();
        let error = State::decode(&seal(head)).expect_err("none are there");
        assert!(error.contains("which are not there"), "{error}");
    }
}
