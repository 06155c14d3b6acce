/*
 * Functions that keep state for flows, over a batch of packets whose headers were read, in two steps for each run of functions that share
 * entries:
 *
 * - partition: packets are partitioned by the upper bits of their flows' hashes. A group takes a tile of packets that follow each other and sorts
 *   them by part, in order of arrival, and writes where parts begin.
 * - judge: a team of items takes a part of the flows, as it alone does at that time: its pieces of all tiles, in order, a packet for each
 *   item. It finds their entries, makes those that are not there, and takes each flow's packets through the functions, one after the
 *   other; different flows at a time. So what comes out is what a loop over all packets would give.
 *
 * Most parts are judged by lanes that wait for nobody else. Those with many packets, as a flow that has a large share of all makes them,
 * are left until the end, when all items of the group are one team.
 *
 * The packets of a flow among those that a team has are ranked, and those of a rank judged at a time. Where a flow has many there, they go
 * through the functions together, one function after the other.
 *
 * Before this text stand states.kernel.c, packets.kernel.c and those of the functions. Defined by the host:
 *
 * - ROUNDS, packets of an item in a tile at most; MAX_TILES; PART_BITS, for the most parts there are;
 * - DEFINITIONS(D): a D(number, by) for each flow definition; STAGES(S): an S(number, definition, by, is_first, words_v4, words_v6, mask) for
 *   each run of functions, whether it is the first one that sees packets of its definition, words of an entry, the functions' bits;
 *   STAGE_<number>(F): an F(name, bit, word, words, parameters, totals, more, list, flow_group, summary) for each function: its bit and words in the
 *   entry (of one that keeps nothing there the bit of one before it), where its parameters and counters are, which list is its own or NO_LIST,
 *   how it takes a flow group, where its words are in a summary;
 *   MAX_WORDS: of any entry; TOTALS, MORE_COUNT, TABLE_COUNTS: counters of all functions, and of a table; LISTS: how many functions list packets; LISTED: the records that
 *   each of them keeps;
 * - ELEPHANT_STAGES(S): those of the stages all of whose functions tell what many packets do to their state: see elephants.kernel.c;
 *   SUMMARY_WORDS: of the most telling one, and ELEPHANTS, how many flows that are elephants there may be;
 * - EXPORTER_<number>, EXPORTS_NOTE_<number>, EXPORT_WORDS_<number>: of a run whose function exports, which it is of those that do, the first of
 *   the bits of notes that are its own, its words; of others NO_EXPORT. EXPORTERS: functions that export; EXPORT_WORDS: of an export;
 *   EXPORT_DETAILS: whether there are details of packets; EXPORTS, EXPORT_ENTRY: of a packet by each function at most, and words before an entry;
 * - RULES_BEFORE: lists whose rules were found before the first run, which begin answers: see acls.kernel.c;
 * - PARTITION_PARAMETERS, JUDGE_PARAMETERS, SETTLE_PARAMETERS, SWEEP_PARAMETERS, GATHER_PARAMETERS: what kernels take. Record, Ipv6Addresses and Answer are declared in Rust;
 * - RECORD_...: bits of a packet's last word; PARTITIONS, whether the text is that of the first step or of the second.
 */

/* IPv4's and IPv6's have different tables, and so parts of their own. */
#define MAX_PARTS (2u << PART_BITS)

/*
 * What is known of parts with very many packets of a batch: see elephants.kernel.c. Batches that are partitioned in the same memory take turns. Behind
 * Elephants stands for each part the last turn in which it was one of them.
 */
#define TURNS_OF(elephants) ((GLOBAL u32 *)((elephants) + 1))

/* Gives an IPv6 packet the addresses that stand for it in an array of them. */
FUNCTION void packet_addresses(PRIVATE Packet *packet, GLOBAL const Ipv6Addresses *wide, u32 index) {
  Ipv6Addresses addresses = wide[index];
  for (u32 i = 0; i < 4; i++) {
    packet->source[i] = addresses.source[i];
    packet->destination[i] = addresses.destination[i];
  }
}

/* What is known of a packet, and the addresses of one of IPv6. */
FUNCTION void packet_load(PRIVATE Packet *packet, GLOBAL const Record *records, GLOBAL const Ipv6Addresses *wide, u32 index, u32 is_v6) {
  Record record = records[index];
  packet->source[0] = record.key[0];
  packet->destination[0] = record.key[1];
  packet->ports = record.key[2];
  packet->rest = record.key[3];
  packet->now = record.time[0] | (u64)record.time[1] << 32;
  packet->bytes = record.bytes;
  packet->kind = record.kind;
  packet->is_v6 = is_v6;
  packet->ends = 0;
  packet->notes = 0;
  packet->listed = 0;
  packet->number = 0;
  packet->exports_note = 0;
  packet->from_a = 1;
  for (u32 i = 1; i < 4; i++) {
    packet->source[i] = 0;
    packet->destination[i] = 0;
  }
  if (is_v6) {
    packet_addresses(packet, wide, index);
  }
}

/*
 * Packets that a function lists: the first ones, by time and then by IP version and source, and a number that the function says of each. A list
 * is a ListHead and ListRecords. It has room for those of a batch behind the first LISTED.
 */
#define NO_LIST 0xffffffffu
#define RECORDS_OF(list) ((GLOBAL ListRecord *)((list) + 1))

#if PARTITIONS

#if LISTS

typedef struct {
  /* For each item, the first record that it knows of. */
  u32 first[GROUP];
} Settle;

FUNCTION u32 is_before(GLOBAL const ListRecord *record, GLOBAL const ListRecord *other) {
  for (u32 i = 0; i < (u32)sizeof(ListRecord) / 8; i++) {
    u64 own = ((GLOBAL const u64 *)record)[i];
    u64 of_other = ((GLOBAL const u64 *)other)[i];
    if (own != of_other) {
      return own < of_other;
    }
  }
  return 0;
}

/* Leaves the first records of lists that have more after a batch: a group for each list, which has so many words. */
KERNEL void settle(SETTLE_PARAMETERS) {
  LOCAL_MEMORY(Settle, work);
  GLOBAL ListHead *list = (GLOBAL ListHead *)(lists + group_index() * words);
  GLOBAL ListRecord *records = RECORDS_OF(list);
  u32 count = (u32)list->count;
  if (count <= LISTED) {
    return;
  }
  for (u32 at = 0; at < LISTED; at++) {
    /* The first one of those that are left: of each item's share, then of all. */
    u32 first = at + local_index();
    for (u32 i = first + GROUP; i < count; i += GROUP) {
      first = is_before(&records[i], &records[first]) ? i : first;
    }
    work->first[local_index()] = first;
    for (u32 step = GROUP / 2; step; step /= 2) {
      barrier_group();
      u32 other = local_index() < step ? work->first[local_index() + step] : count;
      if (other < count && is_before(&records[other], &records[first])) {
        first = other;
        work->first[local_index()] = first;
      }
    }
    if (local_index() == 0) {
      ListRecord record = records[at];
      records[at] = records[first];
      records[first] = record;
    }
    barrier_group();
  }
  if (local_index() == 0) {
    list->count = LISTED;
    list->latest = records[LISTED - 1].time;
  }
}

#endif

#if EXPORTERS

/*
 * Exports the states of a function that has a definition to itself, in those of so many entries that are dead at a time: as many as there are rows
 * for, and how many there are. The entries stay, without a state, since a search may go past them.
 */
KERNEL void sweep(SWEEP_PARAMETERS) {
  for (u32 slot = group_index() * GROUP + local_index(); slot < places; slot += group_count() * GROUP) {
    GLOBAL u64 *entry = entries + (u64)slot * words;
    u64 head = tags[slot / 4] >> slot % 4 * 8 & STATES_TAG ? entry[key_words - 1] : 0;
    u64 last = entry[key_words];
    if (!(head >> STATES_FUNCTIONS & 1) || now <= last || now - last < timeout) {
      continue;
    }
    u32 at = add_global(found, 1);
    if (at < rows) {
      GLOBAL u64 *to = exports + (u64)at * export_words;
      to[0] = ENDED_EXPIRED;
      to += EXPORT_ENTRY;
      for (u32 i = 0; i < key_words + 1 + state_words; i++) {
        to[i] = entry[i];
      }
      to[key_words - 1] &= STATES_KEY;
      entry[key_words - 1] = head & ~((u64)1 << STATES_FUNCTIONS);
    }
  }
}

#endif

/*
 * Brings together the entries that there are at so many places, each of so many words, from the first place that is said: one behind the other,
 * in any order, and how many they are.
 */
KERNEL void gather(GATHER_PARAMETERS) {
  for (u32 place = group_index() * GROUP + local_index(); place < places; place += group_count() * GROUP) {
    GLOBAL const u64 *entry = entries + ((u64)first + place) * words;
    if (!(entry[key_words - 1] & STATES_LIVE)) {
      continue;
    }
    u32 at = add_global(found, 1);
    if (at < places) {
      GLOBAL u64 *to = gathered + (u64)at * words;
      for (u32 i = 0; i < words; i++) {
        to[i] = entry[i];
      }
    }
  }
}

/* What each of so many numbers is a share of. */
#define SHARE(count) (((count) + GROUP - 1) / GROUP)

/*
 * Turns numbers into the sums of those before them; the sum of all. All items of the group come here, and leave together. Each item adds up
 * its share, some of them what SPAN items found, and each the few sums before its own.
 */
#define SPANS ((GROUP + SPAN - 1) / SPAN)

FUNCTION u32 sum_before(LOCAL u32 *values, u32 count, LOCAL u32 *partial) {
  u32 from = local_index() * SHARE(count);
  u32 to = from + SHARE(count) < count ? from + SHARE(count) : count;
  u32 sum = 0;
  for (u32 i = from; i < to; i++) {
    sum += values[i];
  }
  partial[local_index()] = sum;
  barrier_group();
  if (local_index() < SPANS) {
    u32 all = 0;
    for (u32 i = 0; i < SPAN && local_index() * SPAN + i < GROUP; i++) {
      all += partial[local_index() * SPAN + i];
    }
    partial[GROUP + local_index()] = all;
  }
  barrier_group();
  u32 before = 0;
  u32 all = 0;
  for (u32 i = 0; i < SPANS; i++) {
    before += i < local_index() / SPAN ? partial[GROUP + i] : 0;
    all += partial[GROUP + i];
  }
  for (u32 i = local_index() / SPAN * SPAN; i < local_index(); i++) {
    before += partial[i];
  }
  for (u32 i = from; i < to; i++) {
    u32 own = values[i];
    values[i] = before;
    before += own;
  }
  barrier_group();
  return all;
}

/* Bits of a part's number by which packets are sorted at a time. */
#define DIGIT 7u
#define DIGITS (1u << DIGIT)
#define TILE (GROUP * ROUNDS)

typedef struct {
  /* Packets of each warp by digit; then those of the warps before. */
  u16 counts[WARPS * DIGITS];
  u32 begins[DIGITS];
  /* Packets by part; then where parts begin. */
  u32 starts[MAX_PARTS];
  /* Part and number in the tile of each packet, as they were sorted last and before. */
  u32 sorted[2][TILE];
  /* How many packets of its warp with its digit come before each. */
  u16 before[TILE];
  u32 partial[GROUP + SPANS];
} PartitionWork;

#define NO_PART 0xffffu

/* The part of a packet, or NO_PART; what becomes of that is answered by the first definition's. */
FUNCTION u32 part_of(u32 by, u32 answers_others, GLOBAL const Record *records, GLOBAL const Ipv6Addresses *wide, u32 index, u32 part_bits,
                     u64 first_seed, u64 second_seed, GLOBAL Answer *answers) {
  u32 kind = records[index].kind;
  if (kind & RECORD_TAKES_PART) {
    Packet packet;
    u64 key[5];
    u32 is_v6 = (kind & RECORD_IS_V6) != 0;
    packet_load(&packet, records, wide, index, is_v6);
    packet_flow(&packet, wide, by, is_v6, key);
    u64 hash = is_v6 ? states_hash(key, 5, first_seed, second_seed) : states_hash(key, 2, first_seed, second_seed);
    return states_part(hash, 1u << part_bits) | is_v6 << part_bits;
  }
  if (answers_others) {
    Answer answer;
    answer.bits = kind >> RECORD_VERDICT & 0xff;
    answer.source = 0;
    answer.destination = 0;
    answer.ports = 0;
    answers[index] = answer;
  }
  return NO_PART;
}

/* A part has too many packets for one group where a tile has one of so many of its packets in it. */
#define ELEPHANT_SHARE 16u

/* Notes a part with very many packets, once for a batch; the host is told that there are such. */
FUNCTION void note_elephant(GLOBAL Elephants *elephants, u32 turn, u32 part, GLOBAL ElephantBatches *found, u32 batch) {
  GLOBAL u32 *last = &TURNS_OF(elephants)[part];
  u32 seen = *last;
  if (seen == turn || swap_global(last, seen, turn) != seen) {
    return;
  }
  u32 at = add_global(&elephants->counts[turn % 2], 1);
  if (at < ELEPHANTS) {
    elephants->parts[turn % 2][at] = part;
    store_shared_64(&found->any, batch);
  } else {
    /* It is judged like others. */
    *last = 0;
  }
}

/* Partitions packets by flows of a definition. Elephants are looked for in batches that have a number. */
FUNCTION void partition(LOCAL PartitionWork *work, u32 by, u32 answers_others, GLOBAL const Record *records, GLOBAL const Ipv6Addresses *wide, u32 count,
                   u32 rounds, u32 part_bits, u32 versions, u64 first_seed, u64 second_seed, GLOBAL u16 *order, GLOBAL u16 *offsets,
                   GLOBAL Answer *answers, GLOBAL Elephants *elephants, u32 turn, GLOBAL ElephantBatches *found, u32 batch) {
  u32 parts = versions << part_bits;
  u32 bits = part_bits + versions - 1;
  u32 tile_items = GROUP * rounds;
  /* The first packet of this item in a tile. */
  u32 own = lanes_index() * LANES * rounds + lane();
  LOCAL u16 *counts = &work->counts[lanes_index() * DIGITS];
  for (u32 tile = group_index(); tile * tile_items < count; tile += group_count()) {
    for (u32 part = local_index(); part < parts; part += GROUP) {
      work->starts[part] = 0;
    }
    barrier_group();
    for (u32 round = 0; round < rounds; round++) {
      u32 index = tile * tile_items + own + round * LANES;
      if (index < count) {
        prefetch_global(records + index);
      }
    }
    for (u32 round = 0; round < rounds; round++) {
      u32 number = own + round * LANES;
      u32 index = tile * tile_items + number;
      u32 part = NO_PART;
      if (index < count) {
        part = part_of(by, answers_others, records, wide, index, part_bits, first_seed, second_seed, answers);
      }
      if (part != NO_PART) {
        add_local(&work->starts[part], 1);
      }
      work->sorted[0][number] = part | number << 16;
    }
    /* By one digit after the other, the lowest first; each time those that are equal stay as they were. An item has the same places each time. */
    u32 held = tile_items;
    u32 side = 0;
    for (u32 low = 0; low == 0 || low < bits; low += DIGIT, side ^= 1) {
      LOCAL const u32 *sorted = work->sorted[side];
      for (u32 i = local_index(); i < WARPS * DIGITS; i += GROUP) {
        work->counts[i] = 0;
      }
      barrier_group();
      for (u32 round = 0; round < rounds; round++) {
        u32 at = own + round * LANES;
        u32 part = at < held ? sorted[at] & 0xffff : NO_PART;
        u32 digit = part >> low & (DIGITS - 1);
        u32 peers = ballot(part != NO_PART);
        for (u32 bit = 0; bit < DIGIT; bit++) {
          u32 are_set = ballot(digit >> bit & 1);
          peers &= digit >> bit & 1 ? are_set : ~are_set;
        }
        u32 counted = counts[digit];
        sync_lanes();
        if (part != NO_PART && lanes_below(peers) == 0) {
          counts[digit] = (u16)(counted + count_ones(peers));
        }
        sync_lanes();
        work->before[at] = (u16)(counted + lanes_below(peers));
      }
      barrier_group();
      for (u32 digit = local_index(); digit < DIGITS; digit += GROUP) {
        u32 sum = 0;
        for (u32 warp = 0; warp < WARPS; warp++) {
          u32 of_warp = work->counts[warp * DIGITS + digit];
          work->counts[warp * DIGITS + digit] = (u16)sum;
          sum += of_warp;
        }
        work->begins[digit] = sum;
      }
      barrier_group();
      u32 all = sum_before(work->begins, DIGITS, work->partial);
      u32 is_last = low + DIGIT >= bits;
      for (u32 round = 0; round < rounds; round++) {
        u32 from = own + round * LANES;
        u32 partition = from < held ? sorted[from] : NO_PART;
        u32 part = partition & 0xffff;
        if (part != NO_PART) {
          u32 digit = part >> low & (DIGITS - 1);
          u32 at = work->begins[digit] + counts[digit] + work->before[from];
          if (is_last) {
            order[tile * tile_items + at] = (u16)(partition >> 16);
          } else {
            work->sorted[side ^ 1][at] = partition;
          }
        }
      }
      held = all;
      barrier_group();
    }
    u32 all = sum_before(work->starts, parts, work->partial);
    GLOBAL u16 *own_offsets = offsets + (u64)tile * (parts + 1);
    for (u32 part = local_index(); part < parts; part += GROUP) {
      u32 begin = work->starts[part];
      u32 end = part + 1 < parts ? work->starts[part + 1] : all;
      own_offsets[part] = (u16)begin;
      if (batch && (end - begin) * ELEPHANT_SHARE > tile_items) {
        note_elephant(elephants, turn, part, found, batch);
      }
    }
    if (local_index() == 0) {
      own_offsets[parts] = (u16)all;
    }
    barrier_group();
  }
  if (batch && group_index() + local_index() == 0) {
    store_shared_64(&found->last, batch);
  }
}

#define PARTITION(number, by)                                                                                                        \
  KERNEL void partition_##number(PARTITION_PARAMETERS) {                                                                             \
    LOCAL_MEMORY(PartitionWork, work);                                                                                               \
    partition(work, by, number == 0, records, wide, count, rounds, part_bits, versions, first_seed, second_seed, order, offsets, answers, \
         elephants, turn, found, batch);                                                                                             \
  }
DEFINITIONS(PARTITION)

#else

/* Packets of a flow that are judged one after the other; more of them go together: with few lanes, too. */
#define LONGEST (LANES < 8 ? 1 : LANES / 4)
#define END_OF_LIST 0xffffu
/* A part with more packets is judged by all items of a group. */
#define HEAVY (GROUP == LANES ? EMPTY : GROUP)

typedef struct {
  Meeting meeting;
  /* For each team, where the pieces of tiles begin in its part, and in their tiles. */
  u32 starts[WARPS][MAX_TILES];
  u16 pieces[WARPS][MAX_TILES];
  /* For each item, the place of its packet's entry, and lists of packets with similar places. */
  u32 slot[GROUP];
  u32 heads[GROUP];
  u16 next[GROUP];
  /* Crowds'. */
  u64 scratch[GROUP];
  u32 price[GROUP];
  u32 verdict[GROUP];
  u64 line[WARPS][MAX_WORDS];
  /* The parts that are left until the end, a bit of each; whether there are any. */
  u32 heavy[(MAX_PARTS + 31) / 32];
  u32 any_heavy;
  /* The next part that nobody has begun with. */
  u32 part;
  /* Of an elephant: its flow, the place of its entry, and the next of its pieces. */
  u64 flow[5];
  u64 flow_hash;
  u32 flow_slot;
  u32 piece;
#if MORE_IS_LOCAL
  u64 more[MORE_COUNT + 1];
#endif
  u64 counted[WARPS][TOTALS + TABLE_COUNTS];
} Judge;

/* What a stage works on. */
typedef struct {
  GLOBAL const Record *records;
  GLOBAL const Ipv6Addresses *wide;
  GLOBAL Answer *answers;
  GLOBAL Ipv6Addresses *wide_answers;
  GLOBAL const u32 *parameters;
  /* Lists, each of so many words. */
  GLOBAL u64 *lists;
  u64 list_words;
  States states;
  u64 first_seed, second_seed;
  /* What is added to the times of packets. */
  u64 since;
  /* Whether these functions begin answers, and whether they are the first ones of their definition; its number, and its key. */
  u32 begins, is_first, definition, by;
  u32 is_v6, words;
  /* The functions' bits. */
  u64 mask;
  /* Where exports and details of a batch are, and what is added to packets' numbers. Which of those that export its function is, the first of
   * the bits of notes that are its own, its words. */
  GLOBAL u64 *exports;
  GLOBAL const u64 *details;
  u64 first_number;
  u32 exporter, exports_note, export_words;
} Stage;

/*
 * Answers: the verdict, then rewritten ends, then the DSCP, if it was written; then notes: which definitions' flows began anew with the
 * packet, for which functions it is the first one of a flow that they remember, what access lists decide and whether they did, and NOTE_MARKED.
 */
#define ANSWER_NOTES (~((1u << ANSWER_ANEW) - 1))

#define NO_EXPORT 0xffffffffu

/* A packet that an item has, as the functions before have left it. */
typedef struct {
  Packet packet;
  /* Its number in the batch, and the first word of its answer. */
  u32 index, answer;
  u64 key[5];
  u64 hash;
  /* The place of its entry, and that as it was when it was found. */
  u32 slot;
  u64 line[MAX_WORDS];
} Taken;

/* What is looked up for a packet: nothing, an entry, or one that is not made for it; and nothing for one that takes part without. */
#define LOOKS_NOT 0u
#define LOOKS_UP 1u
#define LOOKS_ONLY 2u
#define LOOKS_IN_VAIN 3u

/* Brings a packet in; what is looked up for it. */
FUNCTION u32 packet_take(PRIVATE const Stage *stage, PRIVATE Taken *taken, u32 index) {
  PRIVATE Packet *packet = &taken->packet;
  packet_load(packet, stage->records, stage->wide, index, stage->is_v6);
  packet->now += stage->since;
  packet_flow(packet, stage->wide, stage->by, stage->is_v6, taken->key);
  taken->hash = states_hash(taken->key, KEY_WORDS(stage->is_v6), stage->first_seed, stage->second_seed);
  taken->index = index;
  taken->answer = 0;
  if (stage->exporter != NO_EXPORT) {
    packet->number = stage->first_number + index;
    packet->details = EXPORT_DETAILS ? stage->details + (u64)index * DETAIL_WORDS : stage->details;
    packet->key = taken->key;
    packet->exports = stage->exports + ((u64)index * EXPORTERS + stage->exporter) * EXPORTS * EXPORT_WORDS;
    packet->exports_note = stage->exports_note;
  }
  if (!stage->begins) {
    Answer answer = stage->answers[index];
    taken->answer = answer.bits;
    packet->notes = answer.bits & ANSWER_NOTES;
    if (answer.bits & NOTE_MARKED) {
      packet_mark(packet, answer.bits >> ANSWER_DSCP & 0x3f);
    }
    packet->ends = answer.bits >> ANSWER_ENDS & (END_SOURCE | END_DESTINATION);
    if (packet->ends) {
      packet->source[0] = answer.source;
      packet->destination[0] = answer.destination;
      packet->ports = answer.ports;
      if (stage->is_v6) {
        packet_addresses(packet, stage->wide_answers, index);
      }
    }
  }
  u32 role = packet_role(packet, stage->by);
  u32 is_anew = !stage->is_first && (taken->answer >> (ANSWER_ANEW + stage->definition) & 1);
  if ((taken->answer & 0xff) != VERDICT_PASS) {
    /* Where its flow began anew with it, these functions must forget what was before, too. */
    return is_anew && role == ROLE_MEMBER ? LOOKS_UP : LOOKS_NOT;
  }
  /* One that was without its flow stays so. */
  return role == ROLE_MEMBER ? LOOKS_UP : role == ROLE_RELATED && !is_anew ? LOOKS_ONLY : LOOKS_IN_VAIN;
}

FUNCTION void packet_answer(PRIVATE const Stage *stage, PRIVATE const Packet *packet, u32 index, u32 verdict, u32 anew) {
  Answer answer;
  answer.bits = verdict | packet->ends << ANSWER_ENDS | packet->notes | anew;
  if (packet->notes & NOTE_MARKED) {
    answer.bits |= packet_dscp(packet) << ANSWER_DSCP;
  }
  answer.source = packet->source[0];
  answer.destination = packet->destination[0];
  answer.ports = packet->ports;
  stage->answers[index] = answer;
  if (stage->is_v6 && packet->ends) {
    Ipv6Addresses addresses;
    for (u32 i = 0; i < 4; i++) {
      addresses.source[i] = packet->source[i];
      addresses.destination[i] = packet->destination[i];
    }
    stage->wide_answers[index] = addresses;
  }
}

/* Lists a packet for a function that said something of it. */
FUNCTION void packet_list(PRIVATE const Stage *stage, u32 list, PRIVATE Packet *packet) {
  GLOBAL ListHead *own = (GLOBAL ListHead *)(stage->lists + list * stage->list_words);
  if (packet->listed && packet->now <= own->latest) {
    GLOBAL ListRecord *record = &RECORDS_OF(own)[add_global_64(&own->count, 1)];
    record->time = packet->now;
    record->is_v6 = packet->is_v6;
    record->source[0] = packet->is_v6 ? (u64)packet->source[0] << 32 | packet->source[1] : 0;
    record->source[1] = packet->is_v6 ? (u64)packet->source[2] << 32 | packet->source[3] : packet->source[0];
    record->number = packet->listed;
  }
  packet->listed = 0;
}

/* What a function is given. */
#define PARAMETERS_OF(name, own_parameters) ((GLOBAL const name##_Parameters *)(stage->parameters + own_parameters))

/* Takes a packet through a function of a stage, if it gets there. */
#define CALL_STEP(name, bit, word, own_words, own_parameters, own_totals, own_more, own_list, kind, own_summarize)                   \
  if (verdict == VERDICT_PASS) {                                                                                                     \
    u32 is_new = !(line[key_words - 1] >> (STATES_FUNCTIONS + bit) & 1);                                                             \
    if (is_new) {                                                                                                                    \
      for (u32 i = 0; i < own_words; i++) {                                                                                          \
        line[key_words + 1 + word + i] = 0;                                                                                          \
      }                                                                                                                              \
      line[key_words - 1] |= (u64)1 << (STATES_FUNCTIONS + bit);                                                                     \
    }                                                                                                                                \
    verdict = name##_step((PRIVATE name##_State *)&line[key_words + 1 + word], is_new, &taken->packet, PARAMETERS_OF(name, own_parameters), \
                          (PRIVATE name##_Totals *)(totals + own_totals), (MORE name##_More *)(more + own_more));                    \
    if (own_list != NO_LIST) {                                                                                                       \
      packet_list(stage, own_list, &taken->packet);                                                                                  \
    }                                                                                                                                \
  }

/* Has a function judge a packet that has no entry, if it gets there. */
#define CALL_WITHOUT(name, bit, word, own_words, own_parameters, own_totals, own_more, own_list, kind, own_summarize)                \
  if (verdict == VERDICT_PASS) {                                                                                                     \
    verdict = name##_without(&taken->packet, role, PARAMETERS_OF(name, own_parameters), (MORE name##_More *)(more + own_more));      \
  }

/* Takes a packet without an entry through the functions of a stage: there was no room, it is of no flow, or an error about none there is. */
#define JUDGE_WITHOUT(number)                                                                                                        \
  FUNCTION void judge_without_##number(PRIVATE const Stage *stage, PRIVATE Taken *taken, u32 drops_refused, MORE u64 *more,          \
                                       PRIVATE StatesCounts *counts) {                                                               \
    u32 anew = taken->answer & ANSWER_NOTES;                                                                                         \
    u32 role = packet_role(&taken->packet, stage->by);                                                                               \
    u32 verdict = taken->answer & 0xff;                                                                                              \
    if (role != ROLE_MEMBER) {                                                                                                       \
      anew |= 1u << (ANSWER_ANEW + stage->definition);                                                                               \
    } else if (stage->is_first) {                                                                                                    \
      counts->refused += 1;                                                                                                          \
      verdict = drops_refused ? VERDICT_FLOW_TABLE_FULL : VERDICT_PASS;                                                              \
    }                                                                                                                                \
    STAGE_##number(CALL_WITHOUT)                                                                                                     \
    packet_answer(stage, &taken->packet, taken->index, verdict, anew);                                                               \
  }

/* Whether an error finds a flow in its entry: not before the first packet of it, nor when it is dead. */
FUNCTION u32 is_found(PRIVATE const Stage *stage, PRIVATE const u64 *line, u32 key_words, u64 now) {
  u64 last = line[key_words];
  return !stage->is_first || ((line[key_words - 1] & stage->mask) && (now <= last || now - last < stage->states.timeout));
}

/* Takes a packet through the functions of a stage. */
#define JUDGE_PACKET(number)                                                                                                         \
  FUNCTION void judge_packet_##number(PRIVATE const Stage *stage, PRIVATE Taken *taken, PRIVATE u64 *totals, MORE u64 *more,         \
                                      PRIVATE StatesCounts *counts) {                                                                \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    PRIVATE u64 *line = taken->line;                                                                                                 \
    u64 now = taken->packet.now;                                                                                                     \
    u32 anew = taken->answer & ANSWER_NOTES;                                                                                         \
    GLOBAL u64 *entry = STATES_ENTRY(stage->states, taken->slot, stage->words);                                                      \
    line[key_words - 1] &= ~STATES_TOUCHED;                                                                                          \
    if (packet_role(&taken->packet, stage->by) != ROLE_MEMBER) {                                                                     \
      if (!is_found(stage, line, key_words, now)) {                                                                                  \
        entry[key_words - 1] = line[key_words - 1];                                                                                  \
        judge_without_##number(stage, taken, 0, more, counts);                                                                       \
        return;                                                                                                                      \
      }                                                                                                                              \
    } else if (stage->is_first) {                                                                                                    \
      u64 last = line[key_words];                                                                                                    \
      if (now > last) {                                                                                                              \
        if (now - last >= stage->states.timeout) {                                                                                   \
          counts->expired += 1;                                                                                                      \
          counts->created += 1;                                                                                                      \
          anew |= 1u << (ANSWER_ANEW + stage->definition);                                                                           \
          if (stage->exporter != NO_EXPORT && (line[key_words - 1] & stage->mask)) {                                                 \
            packet_end(&taken->packet, ENDED_BEFORE, ENDED_EXPIRED, &line[key_words + 1], stage->export_words);                      \
          }                                                                                                                          \
        }                                                                                                                            \
        line[key_words] = now;                                                                                                       \
      }                                                                                                                              \
    }                                                                                                                                \
    if (anew >> (ANSWER_ANEW + stage->definition) & 1) {                                                                             \
      line[key_words - 1] &= ~stage->mask;                                                                                           \
    }                                                                                                                                \
    u32 verdict = taken->answer & 0xff;                                                                                              \
    STAGE_##number(CALL_STEP)                                                                                                        \
    packet_answer(stage, &taken->packet, taken->index, verdict, anew);                                                               \
    for (u32 i = (key_words - 1) & ~1u; i < stage->words; i += 2) {                                                                  \
      store_pair(entry + i, &line[i]);                                                                                               \
    }                                                                                                                                \
  }

/*
 * How a function takes a flow_group: OWN, with a function of its own; SERIAL, one packet after the other.
 */
#define FLOW_GROUP_OWN(name, own_words, own_parameters, own_totals, own_more, own_list)                                              \
  u32 own_verdict = name##_group(&group, (LOCAL name##_State *)group.state, &taken->packet, passes, PARAMETERS_OF(name, own_parameters), \
                                 (PRIVATE name##_Totals *)(totals + own_totals), (MORE name##_More *)(more + own_more));             \
  verdict = passes ? own_verdict : verdict;                                                                                          \
  if (own_list != NO_LIST && passes) {                                                                                               \
    packet_list(stage, own_list, &taken->packet);                                                                                    \
  }
#define FLOW_GROUP_SERIAL(name, own_words, own_parameters, own_totals, own_more, own_list)                                           \
  for (u32 turn = 0; turn < team->size; turn += LANES) {                                                                             \
    if (item - lane() == turn) {                                                                                                     \
      for (u32 of_lanes = 0; of_lanes < LANES; of_lanes++) {                                                                         \
        if (lane() == of_lanes && passes) {                                                                                          \
          u64 own_state[own_words + 1];                                                                                              \
          for (u32 i = 0; i < own_words; i++) {                                                                                      \
            own_state[i] = group.state[i];                                                                                           \
          }                                                                                                                          \
          verdict = name##_step((PRIVATE name##_State *)own_state, group.is_new && item == group.first, &taken->packet,              \
                                PARAMETERS_OF(name, own_parameters), (PRIVATE name##_Totals *)(totals + own_totals),                 \
                                (MORE name##_More *)(more + own_more));                                                              \
          if (own_list != NO_LIST) {                                                                                                 \
            packet_list(stage, own_list, &taken->packet);                                                                            \
          }                                                                                                                          \
          for (u32 i = 0; i < own_words; i++) {                                                                                      \
            group.state[i] = own_state[i];                                                                                           \
          }                                                                                                                          \
        }                                                                                                                            \
        sync_lanes();                                                                                                                \
      }                                                                                                                              \
    }                                                                                                                                \
    team_sync(team);                                                                                                                 \
  }

/* Takes a flow group through a function, as far as packets get there. */
#define CALL_GROUP(name, bit, word, own_words, own_parameters, own_totals, own_more, own_list, kind, own_summarize)                  \
  {                                                                                                                                  \
    u32 passes = is_member && verdict == VERDICT_PASS;                                                                               \
    group.first = team_first(&work->meeting, team, passes);                                                                          \
    if (group.first != EMPTY) {                                                                                                      \
      group.state = &line[key_words + 1 + word];                                                                                     \
      group.is_new = !(line[key_words - 1] >> (STATES_FUNCTIONS + bit) & 1);                                                         \
      if (group.is_new) {                                                                                                            \
        team_sync(team);                                                                                                             \
        if (item == 0) {                                                                                                             \
          for (u32 i = 0; i < own_words; i++) {                                                                                      \
            group.state[i] = 0;                                                                                                      \
          }                                                                                                                          \
          line[key_words - 1] |= (u64)1 << (STATES_FUNCTIONS + bit);                                                                 \
        }                                                                                                                            \
        team_sync(team);                                                                                                             \
      }                                                                                                                              \
      FLOW_GROUP_##kind(name, own_words, own_parameters, own_totals, own_more, own_list)                                             \
    }                                                                                                                                \
  }

FUNCTION FlowGroup flow_group_of(LOCAL Judge *work, PRIVATE Team *team) {
  FlowGroup group;
  group.meeting = &work->meeting;
  group.team = team;
  group.scratch = &work->scratch[team->first];
  group.price = &work->price[team->first];
  group.verdict = &work->verdict[team->first];
  group.state = work->line[team->place];
  group.is_new = 0;
  group.first = EMPTY;
  return group;
}

/* Takes the packets of one flow through the functions, with its entry as it is in the team's line. */
#define PASS_CROWD(number)                                                                                                           \
  FUNCTION void pass_flow_group_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 is_member,           \
                                    PRIVATE Taken *taken, PRIVATE u64 *totals, MORE u64 *more) {                                     \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    u32 item = team_item(team);                                                                                                      \
    LOCAL u64 *line = work->line[team->place];                                                                                       \
    FlowGroup group = flow_group_of(work, team);                                                                                     \
    u32 verdict = VERDICT_PASS;                                                                                                      \
    STAGE_##number(CALL_GROUP)                                                                                                       \
    if (is_member) {                                                                                                                 \
      packet_answer(stage, &taken->packet, taken->index, verdict, taken->answer & ANSWER_NOTES);                                     \
    }                                                                                                                                \
  }

/*
 * Takes the packets of one flow through the functions of a stage, with all items of the team; unless one of them begins the flow anew: then
 * they go one after the other.
 */
#define JUDGE_CROWD(number)                                                                                                          \
  FUNCTION void judge_flow_group_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 slot, u32 is_member, \
                                     PRIVATE Taken *taken, PRIVATE u64 *totals, MORE u64 *more, PRIVATE StatesCounts *counts) {      \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    u32 item = team_item(team);                                                                                                      \
    LOCAL u64 *line = work->line[team->place];                                                                                       \
    GLOBAL u64 *entry = STATES_ENTRY(stage->states, slot, stage->words);                                                             \
    team_sync(team);                                                                                                                 \
    for (u32 i = item; i < stage->words; i += team->size) {                                                                          \
      line[i] = entry[i];                                                                                                            \
    }                                                                                                                                \
    team_sync(team);                                                                                                                 \
    u64 last = line[key_words];                                                                                                      \
    u64 now = is_member && taken->packet.now > last ? taken->packet.now : last;                                                      \
    /* Errors about the flow go one after the other, too. */                                                                         \
    u32 begins_anew = is_member && ((taken->answer >> (ANSWER_ANEW + stage->definition) & 1) ||                                      \
                                    packet_role(&taken->packet, stage->by) != ROLE_MEMBER);                                          \
    /* That none of them can is seen without looking at what came before each. */                                                    \
    if (stage->is_first && team_any(&work->meeting, team, now - last >= stage->states.timeout)) {                                    \
      u64 all;                                                                                                                       \
      u64 before = larger_64(team_before(&work->meeting, team, 0, now, &all), last);                                                 \
      begins_anew |= now > before && now - before >= stage->states.timeout;                                                          \
    }                                                                                                                                \
    if (team_any(&work->meeting, team, begins_anew)) {                                                                               \
      u64 all;                                                                                                                       \
      u64 rank = team_before(&work->meeting, team, 1, is_member, &all);                                                              \
      for (u32 turn = 0; turn < all; turn++) {                                                                                       \
        if (is_member && turn == rank) {                                                                                             \
          states_load(entry, key_words - 1, stage->words, taken->line);                                                              \
          judge_packet_##number(stage, taken, totals, more, counts);                                                                 \
        }                                                                                                                            \
        team_sync(team);                                                                                                             \
      }                                                                                                                              \
      return;                                                                                                                        \
    }                                                                                                                                \
    if (stage->is_first) {                                                                                                           \
      u64 latest = team_largest(&work->meeting, team, now);                                                                          \
      if (item == 0) {                                                                                                               \
        line[key_words] = latest;                                                                                                    \
        line[key_words - 1] &= ~STATES_TOUCHED;                                                                                      \
      }                                                                                                                              \
    }                                                                                                                                \
    pass_flow_group_##number(work, stage, team, is_member, taken, totals, more);                                                     \
    team_sync(team);                                                                                                                 \
    for (u32 i = key_words - 1 + item; i < stage->words; i += team->size) {                                                          \
      entry[i] = line[i];                                                                                                            \
    }                                                                                                                                \
  }

/* The number of a part's packet, one of so many. */
FUNCTION u32 packet_of(LOCAL const Judge *work, PRIVATE const Team *team, u32 tiles, u32 tile_items, GLOBAL const u16 *order, u32 wanted) {
  LOCAL const u32 *starts = work->starts[team->place];
  u32 low = 0;
  u32 high = tiles;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (starts[middle] <= wanted) {
      low = middle;
    } else {
      high = middle;
    }
  }
  u32 begin = low * tile_items;
  return begin + order[begin + work->pieces[team->place][low] + wanted - starts[low]];
}

/* Exports what a function keeps in the entry of another flow, which goes for a packet's flow. */
FUNCTION void export_other(PRIVATE const Stage *stage, PRIVATE Taken *taken) {
  u32 key_words = KEY_WORDS(stage->is_v6);
  GLOBAL const u64 *entry = STATES_ENTRY(stage->states, taken->slot, stage->words);
  if (stage->exporter == NO_EXPORT || !(entry[key_words - 1] & STATES_LIVE) || !(entry[key_words - 1] & stage->mask)) {
    return;
  }
  GLOBAL u64 *to = taken->packet.exports + ENDED_BEFORE * EXPORT_WORDS;
  u64 last = entry[key_words];
  u64 now = taken->packet.now;
  to[0] = now > last && now - last >= stage->states.timeout ? ENDED_EXPIRED : ENDED_EVICTED;
  to += EXPORT_ENTRY;
  for (u32 i = 0; i < key_words + 1 + stage->export_words; i++) {
    to[i] = entry[i];
  }
  to[key_words - 1] &= STATES_KEY;
  taken->packet.notes |= 1u << (stage->exports_note + ENDED_BEFORE);
}

/*
 * Makes entries for packets that have none: in rounds, in each of which of all packets of a new flow one at most makes one, and the others
 * find it.
 */
FUNCTION void make_entries(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 missing, PRIVATE Taken *taken,
                           PRIVATE StatesCounts *counts) {
  u32 key_words = KEY_WORDS(stage->is_v6);
  u32 item = team_item(team);
  LOCAL u32 *heads = &work->heads[team->first];
  LOCAL u32 *head = &heads[(u32)(taken->hash >> 20) % team->size];
  /* Those in use must not go for others before they were judged. */
  if (taken->slot < STATES_WAITS && states_is_scarce(&stage->states, taken->hash, team->size)) {
    STATES_ENTRY(stage->states, taken->slot, stage->words)[key_words - 1] |= STATES_TOUCHED;
  }
  while (team_any(&work->meeting, team, missing)) {
    heads[item] = EMPTY;
    u32 held = missing ? states_held(&stage->states, taken->hash) : 0;
    team_sync(team);
    if (missing) {
      min_local(head, item);
    }
    team_sync(team);
    u32 makes = missing && *head == item;
    if (makes) {
      u64 now = taken->packet.now;
      taken->slot = states_place(&stage->states, taken->hash, key_words, stage->words, now, held, counts);
      if (taken->slot < STATES_WAITS) {
        export_other(stage, taken);
        states_begin(&stage->states, taken->slot, taken->key, key_words, stage->words, now, counts);
      }
    }
    team_sync(team);
    if (makes && taken->slot < STATES_WAITS) {
      states_publish(&stage->states, taken->hash, taken->slot);
      states_load(STATES_ENTRY(stage->states, taken->slot, stage->words), 0, stage->words, taken->line);
    }
    if (makes && taken->slot == STATES_WAITS) {
      *head = STATES_WAITS;
    }
    team_sync(team);
    if (missing && !makes && *head == STATES_WAITS) {
      /* Not before the first one of its flow. */
      taken->slot = STATES_WAITS;
    } else if (missing && !makes) {
      taken->slot = states_find(&stage->states, taken->hash, taken->key, key_words, stage->words, taken->line);
    }
    missing = missing && !makes && taken->slot == STATES_NONE;
  }
}

/*
 * Looks again for an entry that is not made for a packet. Where others wait for theirs, this one waits, too, since it may be for the same
 * one.
 */
FUNCTION void find_made(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 looks, PRIVATE Taken *taken) {
  u32 wait = team_any(&work->meeting, team, taken->slot == STATES_WAITS);
  if (looks) {
    u32 slot = states_find(&stage->states, taken->hash, taken->key, KEY_WORDS(stage->is_v6), stage->words, taken->line);
    taken->slot = slot != STATES_NONE ? slot : wait ? STATES_WAITS : STATES_REFUSED;
  }
}

/* How many of the packets before one are of its flow, or LONGEST or more if the flow has many; the packets' flows are at places that are told. */
FUNCTION u32 rank_of(LOCAL Judge *work, PRIVATE const Team *team, u32 slot) {
  u32 item = team_item(team);
  LOCAL u32 *heads = &work->heads[team->first];
  LOCAL u32 *head = &heads[(slot * 0x9e3779b1u >> 16) % team->size];
  heads[item] = EMPTY;
  work->slot[local_index()] = slot;
  team_sync(team);
  if (slot < STATES_WAITS) {
    work->next[local_index()] = (u16)exchange_local(head, item);
  }
  team_sync(team);
  u32 rank = 0;
  if (slot < STATES_WAITS) {
    u32 length = 0;
    for (u32 other = *head; other < END_OF_LIST && length <= LONGEST; other = work->next[team->first + other]) {
      rank += work->slot[team->first + other] == slot && other < item;
      length++;
    }
    rank = length > LONGEST ? LONGEST : rank;
  }
  return rank;
}

/* Judges what the items of a team have. */
#define JUDGE_TAKEN(number)                                                                                                          \
  FUNCTION void judge_taken_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 drops_refused, u32 looks, \
                                     PRIVATE Taken *taken, PRIVATE u64 *totals, MORE u64 *more, PRIVATE StatesCounts *counts) {      \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    u32 waits = looks == LOOKS_UP || looks == LOOKS_ONLY;                                                                            \
    u32 is_without = looks == LOOKS_IN_VAIN;                                                                                         \
    do {                                                                                                                             \
      taken->slot = is_without ? STATES_REFUSED : STATES_NONE;                                                                       \
      is_without = 0;                                                                                                                \
      if (waits) {                                                                                                                   \
        taken->slot = states_find(&stage->states, taken->hash, taken->key, key_words, stage->words, taken->line);                    \
        taken->slot = taken->slot == STATES_NONE ? STATES_REFUSED : taken->slot;                                                     \
      }                                                                                                                              \
      u32 is_missing = waits && stage->is_first && taken->slot == STATES_REFUSED;                                                    \
      if (team_any(&work->meeting, team, is_missing && looks == LOOKS_UP)) {                                                         \
        make_entries(work, stage, team, is_missing && looks == LOOKS_UP, taken, counts);                                             \
        if (stage->by == BY_CONNECTION) {                                                                                            \
          find_made(work, stage, team, is_missing && looks == LOOKS_ONLY, taken);                                                    \
        }                                                                                                                            \
      }                                                                                                                              \
      waits = taken->slot == STATES_WAITS;                                                                                           \
      if (taken->slot == STATES_REFUSED) {                                                                                           \
        judge_without_##number(stage, taken, drops_refused, more, counts);                                                           \
      }                                                                                                                              \
      u32 has_entry = taken->slot < STATES_WAITS;                                                                                    \
      u32 rank = rank_of(work, team, taken->slot);                                                                                   \
      if (has_entry && rank == 0) {                                                                                                  \
        judge_packet_##number(stage, taken, totals, more, counts);                                                                   \
      }                                                                                                                              \
      u32 is_crowded = has_entry && rank == LONGEST;                                                                                 \
      for (u32 turn = 1; team_any(&work->meeting, team, has_entry && rank < LONGEST && rank >= turn); turn++) {                      \
        if (has_entry && rank == turn) {                                                                                             \
          states_load(STATES_ENTRY(stage->states, taken->slot, stage->words), key_words - 1, stage->words, taken->line);             \
          judge_packet_##number(stage, taken, totals, more, counts);                                                                 \
        }                                                                                                                            \
      }                                                                                                                              \
      u32 first = team_first(&work->meeting, team, is_crowded);                                                                      \
      while (first != EMPTY) {                                                                                                       \
        u32 slot = work->slot[team->first + first];                                                                                  \
        u32 is_member = is_crowded && taken->slot == slot;                                                                           \
        judge_flow_group_##number(work, stage, team, slot, is_member, taken, totals, more, counts);                                  \
        is_crowded = is_crowded && !is_member;                                                                                       \
        first = team_first(&work->meeting, team, is_crowded);                                                                        \
      }                                                                                                                              \
    } while (team_any(&work->meeting, team, waits));                                                                                 \
  }

/* Finds out where a part's packets are; how many they are. */
FUNCTION u32 begin_part(LOCAL Judge *work, PRIVATE Team *team, u32 part, u32 parts, u32 tiles, GLOBAL const u16 *offsets) {
  LOCAL u32 *starts = work->starts[team->place];
  u32 share = (tiles + team->size - 1) / team->size;
  u32 from = team_item(team) * share;
  u32 to = from + share < tiles ? from + share : tiles;
  team_sync(team);
  u32 own = 0;
  for (u32 tile = from; tile < to; tile++) {
    GLOBAL const u16 *of = offsets + (u64)tile * (parts + 1) + part;
    u32 piece = of[0];
    work->pieces[team->place][tile] = (u16)piece;
    starts[tile] = own;
    own += of[1] - piece;
  }
  u64 all;
  u32 before = (u32)team_before(&work->meeting, team, 1, own, &all);
  for (u32 tile = from; tile < to; tile++) {
    starts[tile] += before;
  }
  team_sync(team);
  return (u32)all;
}

/* The next part for lanes that are done with theirs. */
FUNCTION u32 next_part(LOCAL Judge *work) {
  u32 part = lane() == 0 ? add_local(&work->part, 1) : 0;
  return lanes_read(part, 0);
}

/* Judges a part of the flows of one IP version, unless it has more packets than so many; whether it has. */
#define JUDGE_PART(number)                                                                                                           \
  FUNCTION u32 judge_part_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 most, u32 drops_refused,   \
                                   u32 part, u32 parts, u32 tiles, u32 tile_items, GLOBAL const u16 *order,                          \
                                   GLOBAL const u16 *offsets, PRIVATE u64 *totals, MORE u64 *more, PRIVATE StatesCounts *counts) {   \
    u32 all = begin_part(work, team, part, parts, tiles, offsets);                                                                   \
    if (all > most) {                                                                                                                \
      return 1;                                                                                                                      \
    }                                                                                                                                \
    u32 at = team_item(team);                                                                                                        \
    u32 index = at < all ? packet_of(work, team, tiles, tile_items, order, at) : 0;                                                  \
    for (u32 done = 0; done < all; done += team->size) {                                                                             \
      Taken taken;                                                                                                                   \
      u32 looks = at < all ? packet_take(stage, &taken, index) : LOOKS_NOT;                                                          \
      /* What comes next is brought closer meanwhile. */                                                                             \
      at += team->size;                                                                                                              \
      if (at < all) {                                                                                                                \
        index = packet_of(work, team, tiles, tile_items, order, at);                                                                 \
        prefetch_global(stage->records + index);                                                                                     \
      }                                                                                                                              \
      judge_taken_##number(work, stage, team, drops_refused, looks, &taken, totals, more, counts);                                   \
    }                                                                                                                                \
    return 0;                                                                                                                        \
  }

#if MORE_IS_LOCAL
#define MORE_OF(work, counted) ((work)->more)
FUNCTION void clear_more(LOCAL Judge *work) {
  for (u32 i = local_index(); i < MORE_COUNT; i += GROUP) {
    work->more[i] = 0;
  }
}
FUNCTION void flush_more(LOCAL Judge *work, GLOBAL u64 *counted) {
  for (u32 i = local_index(); i < MORE_COUNT; i += GROUP) {
    if (work->more[i]) {
      add_global_64(&counted[TOTALS + i], work->more[i]);
      work->more[i] = 0;
    }
  }
}
#else
#define MORE_OF(work, counted) ((counted) + TOTALS)
FUNCTION void clear_more(LOCAL Judge *work) {}
FUNCTION void flush_more(LOCAL Judge *work, GLOBAL u64 *counted) {}
#endif

/* Adds what all items counted. */
FUNCTION void flush_counted(LOCAL Judge *work, PRIVATE const u64 *totals, PRIVATE const StatesCounts *counts, GLOBAL u64 *counted,
                            GLOBAL u64 *of_table) {
  LOCAL u64 *own = work->counted[lanes_index()];
  for (u32 i = 0; i < TOTALS + TABLE_COUNTS; i++) {
    u64 sum = lanes_sum_64(i < TOTALS        ? totals[i]
                           : i == TOTALS     ? counts->created
                           : i == TOTALS + 1 ? counts->expired
                           : i == TOTALS + 2 ? counts->evicted
                                             : counts->refused);
    if (lane() == 0) {
      own[i] = sum;
    }
  }
  barrier_group();
  for (u32 i = local_index(); i < TOTALS + TABLE_COUNTS; i += GROUP) {
    u64 sum = 0;
    for (u32 warp = 0; warp < WARPS; warp++) {
      sum += work->counted[warp][i];
    }
    if (sum) {
      add_global_64(i < TOTALS ? &counted[i] : &of_table[i - TOTALS], sum);
    }
  }
  flush_more(work, counted);
}

/* What the kernels of a stage begin with. */
#define STAGE_BEGIN(number, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                                    \
  LOCAL_MEMORY(Judge, work);                                                                                                         \
  Stage stage;                                                                                                                       \
  stage.records = records;                                                                                                           \
  stage.wide = wide;                                                                                                                 \
  stage.answers = answers;                                                                                                           \
  stage.wide_answers = wide_answers;                                                                                                 \
  stage.since = since;                                                                                                               \
  stage.parameters = parameters;                                                                                                     \
  stage.lists = lists;                                                                                                               \
  stage.list_words = list_words;                                                                                                     \
  stage.states.tags = tags;                                                                                                          \
  stage.states.entries = entries;                                                                                                    \
  stage.states.held = held;                                                                                                          \
  stage.states.regions = regions;                                                                                                    \
  stage.states.groups = groups;                                                                                                      \
  stage.states.capacity = capacity;                                                                                                  \
  stage.states.timeout = timeout;                                                                                                    \
  stage.states.evicts = when_full == FULL_EVICTS;                                                                                    \
  stage.first_seed = first_seed;                                                                                                     \
  stage.second_seed = second_seed;                                                                                                   \
  stage.begins = number == 0 && !RULES_BEFORE;                                                                                       \
  stage.is_first = own_is_first;                                                                                                     \
  stage.definition = own_definition;                                                                                                 \
  stage.by = own_by;                                                                                                                 \
  stage.is_v6 = own_is_v6;                                                                                                           \
  stage.words = own_words;                                                                                                           \
  stage.mask = own_mask;                                                                                                             \
  stage.exports = exports;                                                                                                           \
  stage.details = details;                                                                                                           \
  stage.first_number = first_number;                                                                                                 \
  stage.exporter = EXPORTER_##number;                                                                                                \
  stage.exports_note = EXPORTS_NOTE_##number;                                                                                        \
  stage.export_words = EXPORT_WORDS_##number;                                                                                        \
  u32 parts = 1u << part_bits;                                                                                                       \
  u32 all_parts = versions * parts;                                                                                                  \
  clear_more(work);                                                                                                                  \
  meeting_begin(&work->meeting);                                                                                                     \
  Team team;                                                                                                                         \
  team.meetings = 0;

/* What those count with that judge. */
#define COUNTS_BEGIN                                                                                                                 \
  u64 totals[TOTALS + 1];                                                                                                            \
  for (u32 i = 0; i < TOTALS; i++) {                                                                                                 \
    totals[i] = 0;                                                                                                                   \
  }                                                                                                                                  \
  StatesCounts counts;                                                                                                               \
  counts.created = 0;                                                                                                                \
  counts.expired = 0;                                                                                                                \
  counts.evicted = 0;                                                                                                                \
  counts.refused = 0;

/* Whether a part was judged before. */
FUNCTION u32 is_elephant(GLOBAL Elephants *elephants, u32 turn, u32 part) { return TURNS_OF(elephants)[part] == turn; }

#define JUDGE_VERSION(number, version, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                         \
  KERNEL void judge_##version##_##number(JUDGE_PARAMETERS) {                                                                         \
    STAGE_BEGIN(number, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                                        \
    COUNTS_BEGIN                                                                                                                     \
    u32 drops_refused = when_full == FULL_DROPS;                                                                                     \
    /* A group has parts that follow each other. */                                                                                  \
    u32 share = (parts + group_count() - 1) / group_count();                                                                         \
    u32 begin = group_index() * share;                                                                                               \
    u32 end = begin + share < parts ? begin + share : parts;                                                                         \
    for (u32 i = local_index(); i < (MAX_PARTS + 31) / 32; i += GROUP) {                                                             \
      work->heavy[i] = 0;                                                                                                            \
    }                                                                                                                                \
    work->any_heavy = 0;                                                                                                             \
    work->part = begin;                                                                                                              \
    barrier_group();                                                                                                                 \
    u32 leaves_any = leaves && elephants->counts[turn % 2] != 0;                                                                     \
    if (group_index() + local_index() == 0) {                                                                                        \
      elephants->counts[(turn + 1) % 2] = 0;                                                                                         \
    }                                                                                                                                \
    team.first = lanes_index() * LANES;                                                                                              \
    team.size = LANES;                                                                                                               \
    team.place = lanes_index();                                                                                                      \
    for (u32 part = next_part(work); part < end; part = next_part(work)) {                                                           \
      if (leaves_any && is_elephant(elephants, turn, own_is_v6 * parts + part)) {                                                    \
        continue;                                                                                                                    \
      }                                                                                                                              \
      u32 is_heavy = judge_part_##number(work, &stage, &team, HEAVY, drops_refused, own_is_v6 * parts + part, all_parts, tiles,      \
                                         tile_items, order, offsets, totals, MORE_OF(work, counted), &counts);                       \
      if (is_heavy && lane() == 0) {                                                                                                 \
        or_local(&work->heavy[(part - begin) / 32], 1u << (part - begin) % 32);                                                      \
        or_local(&work->any_heavy, 1);                                                                                               \
      }                                                                                                                              \
    }                                                                                                                                \
    barrier_group();                                                                                                                 \
    if (GROUP != LANES && work->any_heavy) {                                                                                         \
      team.first = 0;                                                                                                                \
      team.size = GROUP;                                                                                                             \
      team.place = 0;                                                                                                                \
      for (u32 part = begin; part < end; part++) {                                                                                   \
        if (work->heavy[(part - begin) / 32] >> (part - begin) % 32 & 1) {                                                           \
          judge_part_##number(work, &stage, &team, EMPTY, drops_refused, own_is_v6 * parts + part, all_parts, tiles, tile_items,     \
                              order, offsets, totals, MORE_OF(work, counted), &counts);                                              \
        }                                                                                                                            \
      }                                                                                                                              \
      barrier_group();                                                                                                               \
    }                                                                                                                                \
    flush_counted(work, totals, &counts, counted, counted + TOTALS + MORE_COUNT + own_definition * TABLE_COUNTS);                    \
  }

#define JUDGE(number, definition, by, is_first, words_v4, words_v6, mask)                                                            \
  JUDGE_WITHOUT(number)                                                                                                              \
  JUDGE_PACKET(number)                                                                                                               \
  PASS_CROWD(number)                                                                                                                 \
  JUDGE_CROWD(number)                                                                                                                \
  JUDGE_TAKEN(number)                                                                                                                \
  JUDGE_PART(number)                                                                                                                 \
  JUDGE_VERSION(number, v4, 0, definition, by, is_first, words_v4, mask)                                                             \
  JUDGE_VERSION(number, v6, 1, definition, by, is_first, words_v6, mask)
STAGES(JUDGE)

#endif
