//! What functions on a device export: with packets, and of flows that are over.

use std::time::{Duration, Instant};

use packetloom_device::{Kernel as Vouched, Memory, Queue};
use packetloom_nf::flows::{AnyEntry, End, Exported, V4, V6};
use packetloom_nf::meter::DETAIL_WORDS;
use packetloom_table::states::header_words;

use super::kernels::{EXPORTS, SweepArguments};
use super::records::Answer;
use super::stages::{Exporter, Stage};
use super::{Stateful, Tables};
use crate::offload::Error;
use crate::offload::accelerator::late;

/// Flows that are exported at a time by a sweep.
pub(super) const SWEPT: usize = 4096;

/// Memory for what a sweep exports, and how many that are.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) kernel: Vouched<SweepArguments<'static>>,
    pub(super) exports: Memory,
    pub(super) found: Memory,
}

/// Words of an export at most.
const MAX_EXPORT: usize = 64;

/// Words of an export before what an entry has: why.
pub(super) const EXPORT_ENTRY: usize = 1;

/// Words of an export: why, and what an entry has; an even number.
pub(super) fn export_words(tables: &[Tables], stages: &[Stage]) -> usize {
    let exporting = stages.iter().filter(|stage| stage.exports_note.is_some());
    let words = exporting.map(|stage| EXPORT_ENTRY + header_words(V6) + tables[stage.definition].words);
    words.max().unwrap_or(1).next_multiple_of(2)
}

/// Whether any function looks at details.
pub(super) fn has_details(stages: &[Stage]) -> bool {
    let mut kernels = stages.iter().flat_map(|stage| &stage.functions).map(|(_, kernel, _)| kernel);
    kernels.any(|kernel| kernel.exports.is_some_and(|exports| exports.details))
}

impl Stateful {
    /// Words of what functions export with a packet, at most.
    pub fn export_words(&self) -> usize {
        self.exporters.len() * EXPORTS as usize * export_words(&self.tables, &self.stages)
    }

    /// Words of a packet's details, if functions look at them.
    pub fn detail_words(&self) -> usize {
        if has_details(&self.stages) { DETAIL_WORDS } else { 0 }
    }

    /// Functions that export.
    pub(super) fn exporters(&self) -> &[Exporter] {
        &self.exporters
    }

    /// Whether any of them has exported something with a packet, by its answer.
    pub(super) fn has_exported(&self, answer: &Answer) -> bool {
        let mut notes =
            self.exporters.iter().flat_map(|exporter| (0..EXPORTS).map(|when| exporter.note + when));
        notes.any(|note| answer.has_note(note))
    }

    /// What such a function has exported with a packet, by its answer: `read` is asked for so many words, from so many on of the packet's.
    pub(super) fn exported(
        &self,
        number: usize,
        answer: &Answer,
        is_v6: bool,
        mut read: impl FnMut(usize, &mut [u64]),
        mut each: impl FnMut(Exported, AnyEntry<'_>, &[u64]),
    ) {
        let Exporter { words, note, .. } = self.exporters[number];
        let stride = export_words(&self.tables, &self.stages);
        let mut export = [0u64; MAX_EXPORT];
        for when in (0..EXPORTS).filter(|when| answer.has_note(note + when)) {
            let key_words = if is_v6 { V6 } else { V4 };
            let export = &mut export[..EXPORT_ENTRY + header_words(key_words) + words];
            read((number * EXPORTS as usize + when as usize) * stride, export);
            let [why, entry @ ..] = export else { unreachable!("there is why") };
            // What is none cannot be: kernels write what they were told.
            if let Some(why) = Exported::of_number(*why) {
                each(why, AnyEntry::saved(entry, key_words), &entry[header_words(key_words)..]);
            }
        }
    }

    /// Exports the states of functions that export in entries that are dead at a time, with no batch away: of which function, and the rest as
    /// [`Stateful::exported`] has it.
    ///
    /// # Errors
    /// Where the device fails, or takes longer than the limit.
    pub(super) fn sweep(
        &self,
        queue: &mut Queue,
        (now, limit): (u64, Duration),
        mut each: impl FnMut(&Exporter, Exported, AnyEntry<'_>, &[u64]),
    ) -> Result<(), Error> {
        let Some(Sweep { kernel, exports, found }) = &self.sweep else { return Ok(()) };
        let stride = export_words(&self.tables, &self.stages);
        let mut rows = Vec::new();
        for exporter in &self.exporters {
            let tables = &self.tables[exporter.definition];
            let Some(timeout) = tables.definition.timeout.limit() else { continue };
            for (version, key_words) in [V4, V6].into_iter().enumerate() {
                loop {
                    queue.write(found, 0, &[0; size_of::<u32>()])?;
                    let arguments = SweepArguments {
                        tags: (&tables.tags[version]).into(),
                        entries: (&tables.entries[version]).into(),
                        places: tables.regions.places() as u32,
                        words: tables.entry_words[version] as u32,
                        key_words: key_words as u32,
                        state_words: exporter.words as u32,
                        now,
                        timeout,
                        exports: exports.into(),
                        found: found.into(),
                        rows: SWEPT as u32,
                        export_words: stride as u32,
                    };
                    queue.launch(kernel, self.groups, &arguments)?;
                    // A copy waits without a limit.
                    let begin = Instant::now();
                    if !queue.finish_within(limit)? {
                        return Err(late(begin));
                    }
                    let mut count = [0u32];
                    queue.read(found, 0, bytemuck::cast_slice_mut(&mut count))?;
                    let here = (count[0] as usize).min(SWEPT);
                    rows.resize(here * stride, 0u64);
                    queue.read(exports, 0, bytemuck::cast_slice_mut(&mut rows))?;
                    let entry = EXPORT_ENTRY..EXPORT_ENTRY + header_words(key_words) + exporter.words;
                    let mut rows: Vec<_> = rows.chunks_exact(stride).map(|row| &row[entry.clone()]).collect();
                    // In the order of their last packets, and of flows: entries are anywhere.
                    rows.sort_unstable_by_key(|entry| (entry[key_words], &entry[..key_words]));
                    for entry in rows {
                        let state = &entry[header_words(key_words)..];
                        let why = Exported::State(End::Expired);
                        each(exporter, why, AnyEntry::saved(entry, key_words), state);
                    }
                    if count[0] as usize <= SWEPT {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
