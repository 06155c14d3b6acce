//! Kernels of functions that keep state: their texts, what they are told, and what they take.

use bytemuck::{Pod, Zeroable};
use packetloom_device::{Arguments, Entry, Kernel as Vouched, LaidOut, Layout as Layouts, Loaded, Program};
use packetloom_nf::flows::{
    By, Decision, Definition, Exported, Exports, FlowGroup, LISTED, ListRecord, Text, WhenFull,
};
use packetloom_nf::meter::DETAIL_WORDS;
use packetloom_packet::{KeyBits, Verdict, protocol};
use packetloom_table::regions;

use super::acls::Acl;
use super::exports::{EXPORT_ENTRY, export_words, has_details};
use super::records::{Answer, Ipv6Addresses, Record};
use super::stages::{MAX_STAGES, Stage};
use super::{
    MAX_ELEPHANTS, MAX_TILES, Shape, TABLE_COUNTS, Tables, entry_words, records, summary_words,
    takes_elephants,
};
use crate::offload::Error;

const PACKETS: &str = include_str!("packets.kernel.c");
const CHAIN: &str = include_str!("chain.kernel.c");
const ELEPHANTS: &str = include_str!("elephants.kernel.c");

/// Counters by an index that groups keep for themselves; with more, all groups use the same.
const MAX_LOCAL_COUNTERS: usize = 256;

/// What items add up together: see `sum_before` in `chain.kernel.c`.
const SPAN: u32 = 16;

/// What a new flow finds in a full table, as kernels have it.
pub(super) const FULL: [(&str, WhenFull); 3] = [
    ("FULL_EVICTS", WhenFull::EvictOldest),
    ("FULL_DROPS", WhenFull::DropNew),
    ("FULL_PASSES", WhenFull::PassNew),
];

/// What flows may be by, as kernels have it: those of all packets, and of those that a meter counts, in all framings or in basic ones.
const BY: [&str; 6] =
    ["BY_FIVE_TUPLE", "BY_SOURCE", "BY_INITIATOR", "BY_CONNECTION", "BY_METERED", "BY_METERED_BASIC"];

fn name_of_by(definition: &Definition, exports: Option<Exports>) -> &'static str {
    match (definition.by, exports) {
        (_, Some(Exports { all_framings: true, .. })) => "BY_METERED",
        (_, Some(_)) => "BY_METERED_BASIC",
        (By::FiveTuple | By::VlanFiveTuple, None) => "BY_FIVE_TUPLE",
        (By::Source, None) => "BY_SOURCE",
        (By::Initiator, None) => "BY_INITIATOR",
        (By::Connection, None) => "BY_CONNECTION",
    }
}

/// Structs of the kernels, beside those of steps.
pub(super) const LAYOUTS: [Layouts; 8] = [
    Record::LAYOUT,
    Ipv6Addresses::LAYOUT,
    Answer::LAYOUT,
    Elephants::LAYOUT,
    ElephantBatches::LAYOUT,
    SummaryHead::LAYOUT,
    ListHead::LAYOUT,
    ListRecord::LAYOUT,
];

packetloom_device::layout! {
    /// Parts with very many packets of a batch: see `chain.kernel.c`.
    #[allow(dead_code, reason = "kernels alone have it")]
    pub(super) struct Elephants {
        /// How many there are, in this turn and in the next one.
        counts: [u32; 2],
        parts: [[u32; MAX_ELEPHANTS as usize]; 2],
    }
}

packetloom_device::layout! {
    /// The last batch that had elephants, and the last one in which they were looked for; 0 is none.
    #[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
    pub(super) struct ElephantBatches {
        pub(super) any: u64,
        pub(super) last: u64,
    }
}

packetloom_device::layout! {
    /// What a summary begins with: see `elephants.kernel.c`.
    #[allow(dead_code, reason = "kernels alone have it")]
    pub(super) struct SummaryHead {
        /// What became of it.
        kind: u64,
        /// When the first and the latest packet came, and the longest time without any.
        first: u64,
        latest: u64,
        gap: u64,
    }
}

packetloom_device::layout! {
    /// What a list begins with, before its [`ListRecord`]s.
    #[derive(Clone, Copy, Debug, Pod, Zeroable)]
    pub(super) struct ListHead {
        /// Records.
        pub(super) count: u64,
        /// The time after which no packet is among the first ones.
        pub(super) latest: u64,
    }
}

/// Exports of a packet at most, by each function that exports; and bits of notes that say which there are.
pub(super) const EXPORTS: u32 = 2;

packetloom_device::arguments! {
    /// What kernels that partition take.
    pub(super) struct PartitionArguments as PARTITION_PARAMETERS {
        records: read Record [count],
        wide: read Ipv6Addresses [wides],
        count: u32,
        /// Packets of a tile for each item.
        rounds: u32,
        part_bits: u32,
        versions: u32,
        first_seed: u64,
        second_seed: u64,
        /// Whole tiles, and where the parts of each begin.
        order: write u16 [count.div_ceil(partitioners * rounds) * partitioners * rounds],
        offsets: write u16 [count.div_ceil(partitioners * rounds) * ((versions << part_bits) + 1)],
        answers: write Answer [count],
        elephants: write Elephants [..],
        turn: u32,
        found: write ElephantBatches [1],
        batch: u32,
        /// Packets, and keys of connections behind them, that may be wide; items of a group.
        wides: host,
        partitioners: host,
    }
}

packetloom_device::arguments! {
    /// What kernels that judge take, and those of the steps of elephants.
    pub(super) struct Judge as JUDGE_PARAMETERS {
        records: read Record [packets],
        wide: read Ipv6Addresses [wides],
        answers: write Answer [packets],
        wide_answers: write Ipv6Addresses [if versions == 2 { packets } else { 0 }],
        tiles: u32,
        tile_items: u32,
        part_bits: u32,
        versions: u32,
        order: read u16 [tiles * tile_items],
        offsets: read u16 [tiles * ((versions << part_bits) + 1)],
        /// Tables of flows: see `states.kernel.c`.
        tags: write u32 [..],
        entries: write u64 [..],
        held: write u32 [regions],
        since: u64,
        regions: u32,
        groups: u32,
        capacity: u32,
        timeout: u64,
        when_full: u32,
        first_seed: u64,
        second_seed: u64,
        /// What functions are given, and what they count and list.
        parameters: read u32 [..],
        counted: write u64 [counters],
        lists: write u64 [..],
        list_words: u64,
        elephants: write Elephants [..],
        summaries: write u64 [..],
        turn: u32,
        leaves: u32,
        /// Where functions export, and what those look at beside records.
        exports: write u64 [packets * export_words],
        details: read u64 [packets * detail_words],
        first_number: u64,
        packets: host,
        wides: host,
        counters: host,
        export_words: host,
        detail_words: host,
    } where packets <= tiles * tile_items
}

packetloom_device::arguments! {
    /// What `settle` takes.
    pub(super) struct Settle as SETTLE_PARAMETERS {
        lists: write u64 [words * count],
        words: u64,
        /// Lists, with a group for each.
        count: host,
    }
}

packetloom_device::arguments! {
    /// What `sweep` takes.
    pub(super) struct SweepArguments as SWEEP_PARAMETERS {
        tags: read u32 [places / 4],
        entries: write u64 [places * words],
        /// Entries, and words of each.
        places: u32,
        words: u32,
        key_words: u32,
        state_words: u32,
        now: u64,
        timeout: u64,
        exports: write u64 [rows * export_words],
        found: write u32 [1],
        rows: u32,
        export_words: u32,
    }
}

packetloom_device::arguments! {
    /// What `gather` takes.
    pub(super) struct GatherArguments as GATHER_PARAMETERS {
        entries: read u64 [(first + places) * words],
        first: u32,
        places: u32,
        words: u32,
        key_words: u32,
        gathered: write u64 [places * words],
        found: write u32 [1],
    }
}

/// Names of entry points, which are there for as long as the program runs.
macro_rules! numbered {
    ($name:literal) => {
        numbered!($name; "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15")
    };
    ($name:literal; $($number:literal)*) => { [$(concat!($name, $number)),*] };
}

const PARTITIONS: [&str; MAX_STAGES] = numbered!("partition_");

const JUDGES: [[&str; MAX_STAGES]; 2] = [numbered!("judge_v4_"), numbered!("judge_v6_")];

/// The steps of elephants.
const STEPS: [[[&str; MAX_STAGES]; 2]; 3] = [
    [numbered!("summarize_v4_"), numbered!("summarize_v6_")],
    [numbered!("apply_v4_"), numbered!("apply_v6_")],
    [numbered!("finish_v4_"), numbered!("finish_v6_")],
];

/// Vouches for a kernel of [`programs`].
#[allow(unsafe_code)]
pub(super) fn vouch<A: Arguments>(loaded: Loaded) -> Result<Vouched<A>, Error> {
    // SAFETY: kernels go through the packets of tiles, of which all memory has as many, in the order that the kernels before them wrote. Tables, what
    // is partitioned, lists, counters and summaries are as large as the program's numbers say, since both are made in `Stateful::new`; functions'
    // steps get their own words, parameters and counters. Only here are the arguments made, and the program belongs to one `Stateful`.
    Ok(unsafe { Vouched::new(loaded)? })
}

/// The text of the kernels that partition and that judge, and what it is told.
pub(super) fn programs(
    shape: &Shape,
    (stages, acls): (&[Stage], &[Acl]),
    tables: &[Tables],
    counters: &[[usize; 2]],
    begins: &[usize],
    (named, indexed): (usize, usize),
    listing: &[usize],
) -> [Program; 2] {
    let Shape { lanes, partitioners, rounds, judges: judging, part_bits, .. } = *shape;
    let is_local = indexed <= MAX_LOCAL_COUNTERS;
    let mut defines = regions::defines();
    defines.extend(Verdict::defines());
    defines.extend(records::defines());
    defines.extend(Decision::defines());
    defines.extend(FULL.iter().zip(0..).map(|((name, _), number)| ((*name).into(), format!("{number}u"))));
    let number = |name: &str, value: usize| (name.to_owned(), format!("{value}u"));
    let by = |number: usize| {
        let stage = stages.iter().find(|stage| stage.definition == number);
        let exports = stage.and_then(|stage| stage.functions.first()?.1.exports);
        name_of_by(&tables[number].definition, exports)
    };
    defines.extend(BY.iter().zip(0..).map(|(name, number)| ((*name).into(), format!("{number}u"))));
    defines.extend(Exported::defines());
    let each_definition = (0..tables.len()).map(|index| format!("D({index}, {})", by(index)));
    let each_stage = (0..).zip(stages).map(|(index, stage): (u32, _)| {
        let own = &tables[stage.definition];
        let mask = stage.functions.iter().fold(0u64, |mask, (_, _, part)| mask | 1 << part.at.function);
        format!(
            "S({index}, {}, {}, {}, {}u, {}u, (u64){mask}u << STATES_FUNCTIONS)",
            stage.definition,
            by(stage.definition),
            u32::from(stage.is_first),
            own.entry_words[0],
            own.entry_words[1],
        )
    });
    let each_stage: Vec<_> = each_stage.collect();
    let mut exporters = 0;
    for (index, stage) in stages.iter().enumerate() {
        let [exporter, note, words] = match stage.exports_note {
            Some(note) => {
                exporters += 1;
                [exporters - 1, note, tables[stage.definition].words as u32]
            }
            None => [u32::MAX, 0, 0],
        };
        let names = ["EXPORTER", "EXPORTS_NOTE", "EXPORT_WORDS"].into_iter().zip([exporter, note, words]);
        defines.extend(names.map(|(name, value)| (format!("{name}_{index}"), format!("{value}u"))));
    }
    let of_elephants = stages.iter().zip(&each_stage).filter(|(stage, _)| takes_elephants(shape, stage));
    let of_elephants: Vec<_> = of_elephants.map(|(_, text)| text.as_str()).collect();
    defines.extend([
        ("DEFINITIONS(D)".into(), each_definition.collect::<Vec<_>>().join(" ")),
        ("STAGES(S)".into(), each_stage.join(" ")),
        ("ELEPHANT_STAGES(S)".into(), of_elephants.join(" ")),
        number("ELEPHANTS", MAX_ELEPHANTS as usize),
        number("SUMMARY_WORDS", summary_words(shape, stages)),
        ("MORE_IS_LOCAL".into(), u32::from(is_local).to_string()),
        PartitionArguments::define(),
        Judge::define(),
        Settle::define(),
        SweepArguments::define(),
        GatherArguments::define(),
        number("KEY_PORTS", KeyBits::PORTS.0.into()),
        number("KEY_ICMP", KeyBits::ICMP.0.into()),
        number("KEY_TCP_FLAGS", KeyBits::TCP_FLAGS.0.into()),
        number("KEY_FIRST_FRAGMENT", KeyBits::FIRST_FRAGMENT.0.into()),
        number("KEY_LATER_FRAGMENT", KeyBits::LATER_FRAGMENT.0.into()),
        number("PROTOCOL_ICMP", protocol::ICMP.into()),
        number("PROTOCOL_ICMPV6", protocol::ICMPV6.into()),
        number("PROTOCOL_TCP", protocol::TCP.into()),
        number("PROTOCOL_UDP", protocol::UDP.into()),
        number("PROTOCOL_SCTP", protocol::SCTP.into()),
        number("TCP_SYN_ACK", By::SYN_ACK.into()),
        number("RULES_BEFORE", acls.iter().filter(|acl| acl.place.stage == 0).count()),
        number("LISTS", listing.len()),
        number("LISTED", LISTED),
        number("EXPORTERS", exporters as usize),
        number("EXPORT_WORDS", export_words(tables, stages)),
        number("EXPORT_ENTRY", EXPORT_ENTRY),
        number("EXPORTS", EXPORTS as usize),
        number("EXPORT_DETAILS", has_details(stages).into()),
        number("DETAIL_WORDS", DETAIL_WORDS),
        number("TOTALS", named),
        number("TABLE_COUNTS", TABLE_COUNTS),
        number("MORE_COUNT", indexed),
        number("ROUNDS", rounds as usize),
        number("SPAN", SPAN as usize),
        number("MAX_TILES", MAX_TILES as usize),
        number("PART_BITS", part_bits as usize),
        number("MAX_WORDS", entry_words(tables)),
    ]);
    let kernels = stages.iter().flat_map(|stage| &stage.functions).map(|(_, kernel, _)| kernel);
    let layouts = Layouts::declare(LAYOUTS.into_iter().chain(kernels.flat_map(|kernel| kernel.layouts())));
    let mut source = format!(
        "#line 1 \"layouts\"\n{layouts}#line 1 \"states.kernel.c\"\n{}#line 1 \"packets.kernel.c\"\n{PACKETS}",
        regions::KERNEL
    );
    let (mut included, mut typed): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut begins = begins.iter();
    for (index, stage) in stages.iter().enumerate() {
        let mut steps = Vec::new();
        let mut summary = 0;
        for (function, kernel, part) in &stage.functions {
            // With another name, its text is there for other types.
            if !typed.contains(&kernel.name) {
                typed.push(kernel.name);
                source += &format!("#line 1 \"types\"\n{}", kernel.types());
            }
            for Text { name, source: text, constants } in kernel.texts {
                if !included.contains(name) {
                    included.push(name);
                    defines
                        .extend(constants.iter().map(|(name, value)| ((*name).into(), format!("{value}u"))));
                    source += &format!("#line 1 \"{name}.kernel.c\"\n{text}");
                }
            }
            let words = kernel.words();
            let begin = begins.next().unwrap_or(&0);
            let [by_name, by_index] = counters[*function];
            let list = listing.iter().position(|listing| kernel.lists && listing == function);
            let list = list.map_or("NO_LIST".to_owned(), |number| format!("{number}u"));
            steps.push(format!(
                "F({}, {}, {}, {words}, {begin}, {by_name}, {}, {list}, {}, {summary})",
                kernel.name,
                part.at.function,
                part.at.word,
                by_index - named,
                match kernel.flow_group {
                    FlowGroup::Own | FlowGroup::Summarized(_) => "OWN",
                    FlowGroup::Serial => "SERIAL",
                },
            ));
            summary += kernel.summary_words().unwrap_or(0);
        }
        defines.push((format!("STAGE_{index}(F)"), steps.join(" ")));
    }
    source += "#line 1 \"chain.kernel.c\"\n";
    source += CHAIN;
    source += "#line 1 \"elephants.kernel.c\"\n";
    source += ELEPHANTS;
    let partitions =
        PARTITIONS.iter().take(tables.len()).map(|name| Entry::of::<PartitionArguments<'_>>(name));
    let partitions = partitions.chain((!listing.is_empty()).then_some(Entry::of::<Settle<'_>>("settle")));
    let partitions = partitions.chain((exporters > 0).then_some(Entry::of::<SweepArguments<'_>>("sweep")));
    let partitions = partitions.chain([Entry::of::<GatherArguments<'_>>("gather")]);
    let judges = stages.iter().enumerate().flat_map(|(number, stage)| {
        let steps = if takes_elephants(shape, stage) { &STEPS[..] } else { &[] };
        [&JUDGES].into_iter().chain(steps).flatten().map(move |names| names[number])
    });
    let judges = judges.map(Entry::of::<Judge<'_>>);
    let parts = 2u32 << part_bits;
    let spans = partitioners.div_ceil(SPAN);
    let partition = partitioners / lanes * 256
        + 512
        + parts * 4
        + partitioners * rounds * 10
        + (partitioners + spans) * 4;
    let more = if is_local { indexed as u32 * 8 + 8 } else { 0 };
    let words = entry_words(tables) as u32;
    let of_team = MAX_TILES * 6 + words * 8 + (named + TABLE_COUNTS) as u32 * 8 + 24;
    let judge = judging / lanes * of_team + judging * 26 + parts.div_ceil(32) * 4 + more + 144;
    let program = |partitions: bool, group: u32, local: u32, entries: Vec<Entry>| {
        let mut defines = defines.clone();
        defines.push(("PARTITIONS".into(), u32::from(partitions).to_string()));
        let local = local.next_multiple_of(16);
        Program {
            name: "chain",
            source: source.clone(),
            defines,
            group,
            groups_per_unit: 1,
            stays: false,
            local,
            entries,
        }
    };
    [
        program(true, partitioners, partition, partitions.collect()),
        program(false, judging, judge, judges.collect()),
    ]
}
