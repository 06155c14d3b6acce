/*
 * Functions that keep state for flows, over a batch of packets whose headers were read, in two steps for each run of functions that share
 * entries:
 *
 * - deal: packets are dealt out by the upper bits of their flows' hashes. A group takes a tile of packets that follow each other and writes
 *   their numbers by part, in order of arrival, and where parts begin.
 * - judge: a group takes a part of the flows, as it alone does at that time: its pieces of all tiles, in order. It finds their entries,
 *   makes those that are not there, and takes each flow's packets through the functions, one after the other; different flows at a
 *   time. So what comes out is what a loop over all packets would give.
 *
 * The packets of a flow in a chunk are ranked, and those of a rank judged at a time, each by an item. Where a flow has many packets there,
 * all items of the group take them through the functions together, one function after the other.
 *
 * Before this text stand states.kernel.c, packets.kernel.c and those of the functions. Defined by the host:
 *
 * - ROUNDS, packets of an item in a tile at most; CHUNK, packets of a part that are judged at a time, a multiple of GROUP and
 *   up to 32 of them, a bit of a word for each of an item's; MAX_TILES; PART_BITS, for the most parts there are;
 * - DEFINITIONS(D): a D(number, by) for each flow definition; STAGES(S): an S(number, definition, by, is_first, words_v4, words_v6, mask) for
 *   each run of functions, whether it is the first one that sees packets of its definition, words of an entry, the functions' bits;
 *   STAGE_<number>(F): an F(name, bit, word, words, parameters, totals, more, crowd) for each function: its bit and words in the entry, where
 *   its parameters and counters are, how it takes a crowd; MAX_WORDS: of any entry; TOTALS, MORE_COUNT: counters of all functions;
 * - RECORD_...: bits of a packet's last word; DEALS, whether the text is that of the first step or of the second.
 */

#define WARPS (GROUP / LANES)
/* IPv4's and IPv6's have different tables, and so parts of their own. */
#define MAX_PARTS (2u << PART_BITS)

/* Gives an IPv6 packet the addresses that stand for it in an array of them. */
FUNCTION void packet_addresses(PRIVATE Packet *packet, GLOBAL const u32x4 *wide, u32 index) {
  u32x4 source = wide[(u64)index * 2];
  u32x4 destination = wide[(u64)index * 2 + 1];
  packet->source[0] = source.x;
  packet->source[1] = source.y;
  packet->source[2] = source.z;
  packet->source[3] = source.w;
  packet->destination[0] = destination.x;
  packet->destination[1] = destination.y;
  packet->destination[2] = destination.z;
  packet->destination[3] = destination.w;
}

/* What is known of a packet: two words of sixteen bytes, and two more for IPv6. Its last word has what kind it is. */
FUNCTION void packet_load(PRIVATE Packet *packet, GLOBAL const u32x4 *records, GLOBAL const u32x4 *wide, u32 index, u32 is_v6) {
  u32x4 head = records[(u64)index * 2];
  u32x4 tail = records[(u64)index * 2 + 1];
  packet->source[0] = head.x;
  packet->destination[0] = head.y;
  packet->ports = head.z;
  packet->rest = head.w;
  packet->now = tail.x | (u64)tail.y << 32;
  packet->bytes = tail.z;
  packet->kind = tail.w;
  packet->is_v6 = is_v6;
  packet->ends = 0;
  packet->notes = 0;
  packet->from_a = 1;
  for (u32 i = 1; i < 4; i++) {
    packet->source[i] = 0;
    packet->destination[i] = 0;
  }
  if (is_v6) {
    packet_addresses(packet, wide, index);
  }
}

#if DEALS

typedef struct {
  /* Packets of each warp in each part; then those of the warps before. */
  u16 counts[WARPS * MAX_PARTS];
  u32 starts[MAX_PARTS];
  u32 partial[GROUP + SPANS];
} Deal;

#define NO_PART 0xffffffffu

/* Deals packets out by flows of a definition. What becomes of those without headers is answered by the first definition's. */
FUNCTION void deal(LOCAL Deal *work, u32 by, u32 answers_others, GLOBAL const u32x4 *records, GLOBAL const u32x4 *wide, u32 count,
                   u32 rounds, u32 part_bits, u32 versions, u64 first_seed, u64 second_seed, GLOBAL u32 *order, GLOBAL u16 *offsets,
                   GLOBAL u32x4 *answers) {
  u32 parts = versions << part_bits;
  u32 tile_items = GROUP * rounds;
  for (u32 tile = group_index(); tile * tile_items < count; tile += group_count()) {
    for (u32 i = local_index(); i < WARPS * parts; i += GROUP) {
      work->counts[i] = 0;
    }
    barrier_group();
    u32 begin = tile * tile_items + lanes_index() * LANES * rounds;
    /* The part of each packet, and its place among those of its warp there. */
    u32 dealt[ROUNDS];
    for (u32 round = 0; round < ROUNDS; round++) {
      u32 part = NO_PART;
      u32 index = begin + round * LANES + lane();
      if (round < rounds && index < count) {
        u32 kind = records[(u64)index * 2 + 1].w;
        if (kind & RECORD_TAKES_PART) {
          Packet packet;
          u64 key[5];
          u32 is_v6 = (kind & RECORD_IS_V6) != 0;
          packet_load(&packet, records, wide, index, is_v6);
          packet_flow(&packet, wide, by, is_v6, key);
          u64 hash = is_v6 ? states_hash(key, 5, first_seed, second_seed) : states_hash(key, 2, first_seed, second_seed);
          part = states_part(hash, 1u << part_bits) | is_v6 << part_bits;
        } else if (answers_others) {
          u32x4 answer;
          answer.x = kind >> RECORD_VERDICT & 0xff;
          answer.y = 0;
          answer.z = 0;
          answer.w = 0;
          answers[index] = answer;
        }
      }
      u32 peers = ballot(part != NO_PART);
      for (u32 bit = 0; bit <= part_bits; bit++) {
        u32 are_set = ballot(part >> bit & 1);
        peers &= part >> bit & 1 ? are_set : ~are_set;
      }
      LOCAL u16 *counted = &work->counts[lanes_index() * parts + (part == NO_PART ? 0 : part)];
      u32 before = *counted;
      sync_lanes();
      if (part != NO_PART && lanes_below(peers) == 0) {
        *counted = (u16)(before + count_ones(peers));
      }
      sync_lanes();
      dealt[round] = part == NO_PART ? NO_PART : part | (before + lanes_below(peers)) << 16;
    }
    barrier_group();
    for (u32 part = local_index(); part < parts; part += GROUP) {
      u32 before = 0;
      for (u32 warp = 0; warp < WARPS; warp++) {
        u32 own = work->counts[warp * parts + part];
        work->counts[warp * parts + part] = (u16)before;
        before += own;
      }
      work->starts[part] = before;
    }
    barrier_group();
    u32 all = sum_before(work->starts, parts, work->partial);
    GLOBAL u16 *own_offsets = offsets + (u64)tile * (parts + 1);
    for (u32 part = local_index(); part < parts; part += GROUP) {
      own_offsets[part] = (u16)work->starts[part];
    }
    if (local_index() == 0) {
      own_offsets[parts] = (u16)all;
    }
    for (u32 round = 0; round < ROUNDS; round++) {
      if (dealt[round] != NO_PART) {
        u32 part = dealt[round] & 0xffff;
        u32 at = work->starts[part] + work->counts[lanes_index() * parts + part] + (dealt[round] >> 16);
        order[tile * tile_items + at] = begin + round * LANES + lane();
      }
    }
    barrier_group();
  }
}

#define DEAL(number, by)                                                                                                             \
  KERNEL void deal_##number(GLOBAL const u32x4 *records, GLOBAL const u32x4 *wide, u32 count, u32 rounds, u32 part_bits, u32 versions, \
                            u64 first_seed, u64 second_seed, GLOBAL u32 *order, GLOBAL u16 *offsets, GLOBAL u32x4 *answers) {        \
    LOCAL_MEMORY(Deal, work);                                                                                                        \
    deal(work, by, number == 0, records, wide, count, rounds, part_bits, versions, first_seed, second_seed, order, offsets, answers); \
  }
DEFINITIONS(DEAL)

#else

/* Packets of a list that an item walks through; longer lists are taken apart by the group. */
#define LONGEST 16
#define END_OF_LIST 0xffffu
#define EMPTY 0xffffffffu
#define IN_CROWD 0xffffu

typedef struct {
  /* Where the pieces of tiles begin in the part, and in their tiles. */
  u32 starts[MAX_TILES];
  u16 pieces[MAX_TILES];
  /* The chunk: numbers of packets, places of their entries, lists of those with similar places. */
  u32 index[CHUNK];
  u32 slot[CHUNK];
  u32 heads[CHUNK];
  u16 next[CHUNK];
  /* How many packets of its flow came before each, or IN_CROWD; packets of one rank, or of one flow. */
  u16 rank[CHUNK];
  u16 picked[CHUNK];
  u32 partial[GROUP + SPANS];
  u32 any, pick, picked_count;
  Crowd crowd;
#if MORE_IS_LOCAL
  u64 more[MORE_COUNT + 1];
#endif
} Judge;

/* Numbers of items that are added up at a time. */
#define COUNTED_AT_ONCE 4u

typedef struct {
  u64 own[COUNTED_AT_ONCE][GROUP];
  u64 sums[COUNTED_AT_ONCE * SPANS];
} Counted;

typedef union {
  Judge judge;
  Counted counted;
} JudgeOrCounted;

/* What a stage works on. */
typedef struct {
  GLOBAL const u32x4 *records;
  GLOBAL const u32x4 *wide;
  GLOBAL u32x4 *answers;
  GLOBAL u32x4 *wide_answers;
  GLOBAL const u32 *parameters;
  States states;
  u64 first_seed, second_seed;
  /* What is added to the times of packets. */
  u64 since;
  /* Whether these functions are the first ones of all, and of those of their definition; its number, and its key. */
  u32 begins, is_first, definition, by;
  u32 is_v6, words;
  /* The functions' bits. */
  u64 mask;
} Stage;

/*
 * Answers: the verdict, then rewritten ends, then the DSCP, if it was written; then notes: which definitions' flows began anew with the
 * packet, for which functions it is the first one of a flow that they remember, and NOTE_MARKED.
 */
#define ANSWER_ENDS 8
#define ANSWER_DSCP 10
#define ANSWER_ANEW 16
#define ANSWER_NOTES (~((1u << ANSWER_ANEW) - 1))

/* Reads a packet as the functions before have left it; its answer's first word. */
FUNCTION u32 packet_take(PRIVATE const Stage *stage, PRIVATE Packet *packet, u32 index) {
  packet_load(packet, stage->records, stage->wide, index, stage->is_v6);
  packet->now += stage->since;
  return stage->begins ? 0 : stage->answers[index].x;
}

FUNCTION void packet_take_rewrites(PRIVATE const Stage *stage, PRIVATE Packet *packet, u32 index, u32 answer) {
  packet->ends = answer >> ANSWER_ENDS & (END_SOURCE | END_DESTINATION);
  packet->notes = answer & ANSWER_NOTES;
  if (answer & NOTE_MARKED) {
    packet_mark(packet, answer >> ANSWER_DSCP & 0x3f);
  }
  if (packet->ends) {
    u32x4 ends = stage->answers[index];
    packet->source[0] = ends.y;
    packet->destination[0] = ends.z;
    packet->ports = ends.w;
    if (stage->is_v6) {
      packet_addresses(packet, stage->wide_answers, index);
    }
  }
}

FUNCTION void packet_answer(PRIVATE const Stage *stage, PRIVATE const Packet *packet, u32 index, u32 verdict, u32 anew) {
  u32x4 answer;
  answer.x = verdict | packet->ends << ANSWER_ENDS | packet->notes | anew;
  if (packet->notes & NOTE_MARKED) {
    answer.x |= packet_dscp(packet) << ANSWER_DSCP;
  }
  answer.y = packet->source[0];
  answer.z = packet->destination[0];
  answer.w = packet->ports;
  stage->answers[index] = answer;
  if (stage->is_v6 && packet->ends) {
    u32x4 end;
    end.x = packet->source[0];
    end.y = packet->source[1];
    end.z = packet->source[2];
    end.w = packet->source[3];
    stage->wide_answers[(u64)index * 2] = end;
    end.x = packet->destination[0];
    end.y = packet->destination[1];
    end.z = packet->destination[2];
    end.w = packet->destination[3];
    stage->wide_answers[(u64)index * 2 + 1] = end;
  }
}

/* Takes a packet through a function of a stage, if it gets there. */
#define STEP(name, bit, word, own_words, own_parameters, own_totals, own_more, kind)                                                 \
  if (verdict == VERDICT_PASS) {                                                                                                     \
    u32 is_new = !(line[key_words - 1] >> (STATES_FUNCTIONS + bit) & 1);                                                             \
    if (is_new) {                                                                                                                    \
      for (u32 i = 0; i < own_words; i++) {                                                                                          \
        line[key_words + 1 + word + i] = 0;                                                                                          \
      }                                                                                                                              \
      line[key_words - 1] |= (u64)1 << (STATES_FUNCTIONS + bit);                                                                     \
    }                                                                                                                                \
    verdict = name##_step(&line[key_words + 1 + word], is_new, &packet, stage->parameters + own_parameters,                          \
                          totals + own_totals, more + own_more);                                                                     \
  }

/* Has a function judge a packet that has no entry, if it gets there. */
#define STEP_WITHOUT(name, bit, word, own_words, own_parameters, own_totals, own_more, kind)                                         \
  if (verdict == VERDICT_PASS) {                                                                                                     \
    verdict = name##_without(&packet, role, stage->parameters + own_parameters, more + own_more);                                    \
  }

/* Takes a packet without an entry through the functions of a stage: there was no room, it is of no flow, or an error about none there is. */
#define JUDGE_WITHOUT(number)                                                                                                        \
  FUNCTION void judge_without_##number(PRIVATE const Stage *stage, u32 index, u32 drops_refused, MORE more,                          \
                                       PRIVATE StatesCounts *counts) {                                                               \
    Packet packet;                                                                                                                   \
    u32 answer = packet_take(stage, &packet, index);                                                                                 \
    packet_take_rewrites(stage, &packet, index, answer);                                                                             \
    u32 anew = answer & ANSWER_NOTES;                                                                                                \
    u32 role = packet_role(&packet, stage->by);                                                                                      \
    u32 verdict = VERDICT_PASS;                                                                                                      \
    if (role != ROLE_MEMBER) {                                                                                                       \
      anew |= 1u << (ANSWER_ANEW + stage->definition);                                                                               \
    } else if (stage->is_first) {                                                                                                    \
      counts->refused += 1;                                                                                                          \
      verdict = drops_refused ? VERDICT_FLOW_TABLE_FULL : VERDICT_PASS;                                                              \
    }                                                                                                                                \
    STAGE_##number(STEP_WITHOUT)                                                                                                     \
    packet_answer(stage, &packet, index, verdict, anew);                                                                             \
  }

/* Whether an error finds a flow in its entry: not before the first packet of it, nor when it is dead. */
FUNCTION u32 is_found(PRIVATE const Stage *stage, PRIVATE const u64 *line, u32 key_words, u64 now) {
  u64 last = line[key_words];
  return !stage->is_first || ((line[key_words - 1] & stage->mask) && (now <= last || now - last < stage->states.timeout));
}

/* Takes a packet through the functions of a stage. */
#define JUDGE_PACKET(number)                                                                                                         \
  FUNCTION void judge_packet_##number(LOCAL const Judge *work, PRIVATE const Stage *stage, u32 at, PRIVATE u64 *totals, MORE more,   \
                                      PRIVATE StatesCounts *counts) {                                                                \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    GLOBAL u64 *entry = STATES_ENTRY(stage->states, work->slot[at], stage->words);                                                   \
    u64 line[MAX_WORDS];                                                                                                             \
    for (u32 i = (key_words - 1) & ~1u; i < stage->words; i += 2) {                                                                  \
      load_pair(&line[i], entry + i);                                                                                                \
    }                                                                                                                                \
    u32 index = work->index[at];                                                                                                     \
    Packet packet;                                                                                                                   \
    u64 key[5];                                                                                                                      \
    u32 answer = packet_take(stage, &packet, index);                                                                                 \
    packet_flow(&packet, stage->wide, stage->by, stage->is_v6, key);                                                                 \
    packet_take_rewrites(stage, &packet, index, answer);                                                                             \
    u32 anew = answer & ANSWER_NOTES;                                                                                                \
    line[key_words - 1] &= ~STATES_TOUCHED;                                                                                          \
    if (packet_role(&packet, stage->by) != ROLE_MEMBER) {                                                                            \
      if (!is_found(stage, line, key_words, packet.now)) {                                                                           \
        entry[key_words - 1] = line[key_words - 1];                                                                                  \
        judge_without_##number(stage, index, 0, more, counts);                                                                       \
        return;                                                                                                                      \
      }                                                                                                                              \
    } else if (stage->is_first) {                                                                                                    \
      u64 last = line[key_words];                                                                                                    \
      if (packet.now > last) {                                                                                                       \
        if (packet.now - last >= stage->states.timeout) {                                                                            \
          counts->expired += 1;                                                                                                      \
          counts->created += 1;                                                                                                      \
          anew |= 1u << (ANSWER_ANEW + stage->definition);                                                                           \
        }                                                                                                                            \
        line[key_words] = packet.now;                                                                                                \
      }                                                                                                                              \
    }                                                                                                                                \
    if (anew >> (ANSWER_ANEW + stage->definition) & 1) {                                                                             \
      line[key_words - 1] &= ~stage->mask;                                                                                           \
    }                                                                                                                                \
    u32 verdict = VERDICT_PASS;                                                                                                      \
    STAGE_##number(STEP)                                                                                                             \
    packet_answer(stage, &packet, index, verdict, anew);                                                                             \
    for (u32 i = (key_words - 1) & ~1u; i < stage->words; i += 2) {                                                                  \
      store_pair(entry + i, &line[i]);                                                                                               \
    }                                                                                                                                \
  }

/* A packet of a crowd as the functions before have left it; its answer stands there from the beginning. */
FUNCTION void packet_again(PRIVATE const Stage *stage, PRIVATE Packet *packet, u32 index) {
  u64 key[5];
  packet_load(packet, stage->records, stage->wide, index, stage->is_v6);
  packet->now += stage->since;
  packet_flow(packet, stage->wide, stage->by, stage->is_v6, key);
  packet_take_rewrites(stage, packet, index, stage->answers[index].x);
}

/*
 * How a function takes a crowd: OWN, with a function of its own; STEADY, where only the first packet of a flow changes its state, the others
 * all at a time; SERIAL, one after the other.
 */
#define CROWD_OWN(name, own_words, own_parameters, own_totals, own_more)                                                             \
  name##_crowd(crowd, state, is_new, stage->parameters + own_parameters, totals + own_totals);
#define CROWD_STEADY(name, own_words, own_parameters, own_totals, own_more)                                                          \
  {                                                                                                                                  \
    u32 begin = is_new ? crowd->first : EMPTY;                                                                                       \
    for (u32 turn = is_new ? 0 : 1; turn < 2; turn++) {                                                                              \
      FOR_OWN(crowd, at) {                                                                                                           \
        if (PASSES(crowd, at) && (at == begin) == (turn == 0)) {                                                                     \
          TAKE_STEP(name, own_words, own_parameters, own_totals, own_more, turn == 0, 0)                                             \
        }                                                                                                                            \
      }                                                                                                                              \
      barrier_group();                                                                                                               \
    }                                                                                                                                \
  }
#define CROWD_SERIAL(name, own_words, own_parameters, own_totals, own_more)                                                          \
  if (local_index() == 0) {                                                                                                          \
    u32 is_first = is_new;                                                                                                           \
    for (u32 at = 0; at < crowd->count; at++) {                                                                                      \
      if (PASSES(crowd, at)) {                                                                                                       \
        TAKE_STEP(name, own_words, own_parameters, own_totals, own_more, is_first, 1)                                                \
        is_first = 0;                                                                                                                \
      }                                                                                                                              \
    }                                                                                                                                \
  }

#define TAKE_STEP(name, own_words, own_parameters, own_totals, own_more, is_first, own_is_serial)                                    \
  u64 own_state[own_words + 1];                                                                                                      \
  for (u32 i = 0; i < own_words; i++) {                                                                                              \
    own_state[i] = state[i];                                                                                                         \
  }                                                                                                                                  \
  Packet packet;                                                                                                                     \
  u32 index = work->index[work->picked[at]];                                                                                         \
  packet_again(stage, &packet, index);                                                                                               \
  u32 verdict = name##_step(own_state, is_first, &packet, stage->parameters + own_parameters, totals + own_totals, more + own_more); \
  if (is_first || own_is_serial) {                                                                                                   \
    for (u32 i = 0; i < own_words; i++) {                                                                                            \
      state[i] = own_state[i];                                                                                                       \
    }                                                                                                                                \
  }                                                                                                                                  \
  crowd->verdict[at] = verdict;                                                                                                      \
  packet_answer(stage, &packet, index, VERDICT_PASS, stage->answers[index].x & ANSWER_NOTES);

/* Takes a crowd through a function, as far as packets get there. */
#define STEP_OF_CROWD(name, bit, word, own_words, own_parameters, own_totals, own_more, kind)                                        \
  {                                                                                                                                  \
    crowd_begin(crowd);                                                                                                              \
    if (crowd->first != EMPTY) {                                                                                                     \
      LOCAL u64 *state = &crowd->line[key_words + 1 + word];                                                                         \
      u32 is_new = !(crowd->line[key_words - 1] >> (STATES_FUNCTIONS + bit) & 1);                                                    \
      barrier_group();                                                                                                               \
      if (is_new && local_index() == 0) {                                                                                            \
        for (u32 i = 0; i < own_words; i++) {                                                                                        \
          state[i] = 0;                                                                                                              \
        }                                                                                                                            \
        crowd->line[key_words - 1] |= (u64)1 << (STATES_FUNCTIONS + bit);                                                            \
      }                                                                                                                              \
      barrier_group();                                                                                                               \
      CROWD_##kind(name, own_words, own_parameters, own_totals, own_more)                                                            \
      barrier_group();                                                                                                               \
    }                                                                                                                                \
  }

/* Finds the first packet that passes. */
FUNCTION void crowd_begin(LOCAL Crowd *crowd) {
  barrier_group();
  if (local_index() == 0) {
    crowd->first = EMPTY;
    crowd->tally[0] = 0;
    crowd->tally[1] = 0;
  }
  barrier_group();
  FOR_OWN(crowd, at) {
    if (PASSES(crowd, at)) {
      min_local(&crowd->first, at);
      break;
    }
  }
  barrier_group();
}

/*
 * Brings in the packets of a flow that were picked; whether its functions can take them together: none begins the flow anew or is an
 * error about it.
 */
FUNCTION u32 load_crowd(LOCAL Judge *work, PRIVATE const Stage *stage) {
  LOCAL Crowd *crowd = &work->crowd;
  u32 key_words = KEY_WORDS(stage->is_v6);
  GLOBAL const u64 *entry = STATES_ENTRY(stage->states, work->slot[work->picked[0]], stage->words);
  barrier_group();
  for (u32 i = local_index(); i < stage->words; i += GROUP) {
    crowd->line[i] = entry[i];
  }
  if (local_index() == 0) {
    crowd->count = work->picked_count;
  }
  barrier_group();
  u64 latest = 0;
  u32 begins_anew = 0;
  FOR_OWN(crowd, at) {
    u32 index = work->index[work->picked[at]];
    Packet packet;
    u32 answer = packet_take(stage, &packet, index);
    begins_anew |= (answer >> (ANSWER_ANEW + stage->definition) & 1) || packet_role(&packet, stage->by) != ROLE_MEMBER;
    crowd->now[at] = packet.now;
    crowd->bytes[at] = packet.bytes;
    crowd->verdict[at] = VERDICT_PASS;
    crowd->scratch[at] = answer & ANSWER_NOTES;
    latest = packet.now > latest ? packet.now : latest;
    if (stage->begins) {
      packet_answer(stage, &packet, index, VERDICT_PASS, 0);
    }
  }
  u64 all;
  u64 before = crowd_before(crowd, 0, latest, &all);
  if (stage->is_first) {
    u64 last = crowd->line[key_words] > before ? crowd->line[key_words] : before;
    FOR_OWN(crowd, at) {
      u64 now = crowd->now[at];
      if (now > last) {
        begins_anew |= now - last >= stage->states.timeout;
        last = now;
      }
    }
  }
  if (crowd_any(crowd, begins_anew)) {
    return 0;
  }
  if (stage->is_first && local_index() == 0) {
    crowd->line[key_words] = all > crowd->line[key_words] ? all : crowd->line[key_words];
    crowd->line[key_words - 1] &= ~STATES_TOUCHED;
  }
  barrier_group();
  return 1;
}

FUNCTION void store_crowd(LOCAL Judge *work, PRIVATE const Stage *stage) {
  LOCAL Crowd *crowd = &work->crowd;
  GLOBAL u64 *entry = STATES_ENTRY(stage->states, work->slot[work->picked[0]], stage->words);
  barrier_group();
  for (u32 i = KEY_WORDS(stage->is_v6) - 1 + local_index(); i < stage->words; i += GROUP) {
    entry[i] = crowd->line[i];
  }
  FOR_OWN(crowd, at) {
    u32 index = work->index[work->picked[at]];
    stage->answers[index].x = (stage->answers[index].x & ~0xffu) | crowd->verdict[at];
  }
  barrier_group();
}

#define JUDGE_CROWD(number)                                                                                                          \
  FUNCTION void judge_crowd_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE u64 *totals, MORE more,                  \
                                     PRIVATE StatesCounts *counts) {                                                                 \
    LOCAL Crowd *crowd = &work->crowd;                                                                                               \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    if (load_crowd(work, stage)) {                                                                                                   \
      STAGE_##number(STEP_OF_CROWD)                                                                                                  \
      store_crowd(work, stage);                                                                                                      \
    } else if (local_index() == 0) {                                                                                                 \
      for (u32 at = 0; at < work->picked_count; at++) {                                                                              \
        judge_packet_##number(work, stage, work->picked[at], totals, more, counts);                                                  \
      }                                                                                                                              \
    }                                                                                                                                \
  }

/* The piece of the part that has its packet of a number. */
FUNCTION u32 piece_of(LOCAL const Judge *work, u32 tiles, u32 number) {
  u32 low = 0;
  u32 high = tiles;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (work->starts[middle] <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Whether any item says so. */
FUNCTION u32 any_of_group(LOCAL Judge *work, u32 p) {
  barrier_group();
  if (local_index() == 0) {
    work->any = 0;
  }
  barrier_group();
  if (p) {
    or_local(&work->any, 1);
  }
  barrier_group();
  return work->any;
}

/* What is looked up for a packet: nothing, an entry, or one that is not made for it; and nothing for one that takes part without. */
#define LOOKS_NOT 0u
#define LOOKS_UP 1u
#define LOOKS_ONLY 2u
#define LOOKS_IN_VAIN 3u

/* A packet's flow, and its time; what is looked up. */
FUNCTION u32 flow_of(PRIVATE const Stage *stage, u32 index, PRIVATE u64 *key, PRIVATE u64 *now) {
  Packet packet;
  u32 answer = packet_take(stage, &packet, index);
  *now = packet.now;
  packet_flow(&packet, stage->wide, stage->by, stage->is_v6, key);
  if ((answer & 0xff) != VERDICT_PASS) {
    return LOOKS_NOT;
  }
  u32 role = packet_role(&packet, stage->by);
  /* One that was without its flow stays so. */
  u32 was_without = !stage->is_first && (answer >> (ANSWER_ANEW + stage->definition) & 1);
  return role == ROLE_MEMBER ? LOOKS_UP : role == ROLE_RELATED && !was_without ? LOOKS_ONLY : LOOKS_IN_VAIN;
}

/*
 * Makes entries for the packets of a chunk that have none, an item's bit for each of its own: in rounds, in each of which of all packets of a
 * new flow one at most makes one, and the others find it.
 */
FUNCTION void make_entries(LOCAL Judge *work, PRIVATE const Stage *stage, u32 count, u32 missing, PRIVATE StatesCounts *counts) {
  u32 key_words = KEY_WORDS(stage->is_v6);
  /* Those in use must not go for others before they were judged. */
  for (u32 at = local_index(); at < count; at += GROUP) {
    u32 slot = work->slot[at];
    if (slot < STATES_WAITS && states_is_scarce(&stage->states, work->crowd.scratch[at], CHUNK)) {
      STATES_ENTRY(stage->states, slot, stage->words)[key_words - 1] |= STATES_TOUCHED;
    }
  }
  while (any_of_group(work, missing != 0)) {
    for (u32 i = local_index(); i < CHUNK; i += GROUP) {
      work->heads[i] = EMPTY;
    }
    barrier_group();
    for (u32 i = 0; i < CHUNK / GROUP; i++) {
      u32 at = i * GROUP + local_index();
      if (missing >> i & 1) {
        min_local(&work->heads[(u32)(work->crowd.scratch[at] >> 20) % CHUNK], at);
      }
    }
    barrier_group();
    u32 made = 0;
    for (u32 i = 0; i < CHUNK / GROUP; i++) {
      u32 at = i * GROUP + local_index();
      if ((missing >> i & 1) && work->heads[(u32)(work->crowd.scratch[at] >> 20) % CHUNK] == at) {
        u64 key[5], now;
        flow_of(stage, work->index[at], key, &now);
        work->slot[at] = states_insert(&stage->states, work->crowd.scratch[at], key, key_words, stage->words, now, counts);
        made |= 1u << i;
      }
    }
    barrier_group();
    for (u32 i = 0; i < CHUNK / GROUP; i++) {
      u32 at = i * GROUP + local_index();
      if ((made >> i & 1) && work->slot[at] < STATES_WAITS) {
        states_publish(&stage->states, work->crowd.scratch[at], work->slot[at]);
      }
    }
    barrier_group();
    for (u32 i = 0; i < CHUNK / GROUP; i++) {
      u32 at = i * GROUP + local_index();
      if ((missing & ~made) >> i & 1) {
        u64 key[5], now;
        flow_of(stage, work->index[at], key, &now);
        u32 slot = states_find(&stage->states, work->crowd.scratch[at], key, key_words, stage->words);
        if (slot != STATES_NONE) {
          work->slot[at] = slot;
          made |= 1u << i;
        }
      }
    }
    missing &= ~made;
  }
}

/*
 * Looks again for entries that are not made for packets, an item's bit for each of its own. Where others wait for theirs, these wait,
 * too, since it may be for the same one.
 */
FUNCTION void find_made(LOCAL Judge *work, PRIVATE const Stage *stage, u32 count, u32 unmade) {
  u32 waits = 0;
  for (u32 at = local_index(); at < count; at += GROUP) {
    waits |= work->slot[at] == STATES_WAITS;
  }
  waits = any_of_group(work, waits);
  for (u32 i = 0; i < CHUNK / GROUP; i++) {
    u32 at = i * GROUP + local_index();
    if (unmade >> i & 1) {
      u64 key[5], now;
      flow_of(stage, work->index[at], key, &now);
      u32 slot = states_find(&stage->states, work->crowd.scratch[at], key, KEY_WORDS(stage->is_v6), stage->words);
      work->slot[at] = slot != STATES_NONE ? slot : waits ? STATES_WAITS : STATES_REFUSED;
    }
  }
}

/* Finds entries for the packets of a chunk, and makes those that are not there; STATES_REFUSED for packets that take part without. */
FUNCTION void find_entries(LOCAL Judge *work, PRIVATE const Stage *stage, u32 count, PRIVATE StatesCounts *counts) {
  u32 key_words = KEY_WORDS(stage->is_v6);
  u32 missing = 0;
  u32 unmade = 0;
  /* Hashes first, then tags, then entries, so that what one needs is on its way while others are looked at. */
  for (u32 at = local_index(); at < count; at += GROUP) {
    u64 key[5], now;
    u32 looks = flow_of(stage, work->index[at], key, &now);
    u64 hash = states_hash(key, key_words, stage->first_seed, stage->second_seed);
    work->crowd.scratch[at] = hash;
    work->slot[at] = looks == LOOKS_NOT ? STATES_NONE : looks == LOOKS_IN_VAIN ? STATES_REFUSED : STATES_WAITS;
    prefetch_global(states_tags(&stage->states, hash));
  }
  for (u32 at = local_index(); at < count; at += GROUP) {
    if (work->slot[at] == STATES_WAITS) {
      states_expect(&stage->states, work->crowd.scratch[at], stage->words);
    }
  }
  for (u32 i = 0; i < CHUNK / GROUP; i++) {
    u32 at = i * GROUP + local_index();
    if (at < count && work->slot[at] == STATES_WAITS) {
      u64 key[5], now;
      u32 looks = flow_of(stage, work->index[at], key, &now);
      u32 slot = states_find(&stage->states, work->crowd.scratch[at], key, key_words, stage->words);
      u32 is_none = slot == STATES_NONE;
      work->slot[at] = is_none ? STATES_REFUSED : slot;
      missing |= (is_none && stage->is_first && looks == LOOKS_UP) << i;
      unmade |= (is_none && stage->is_first && looks == LOOKS_ONLY) << i;
    }
  }
  if (any_of_group(work, missing != 0)) {
    make_entries(work, stage, count, missing, counts);
    if (stage->by == BY_CONNECTION) {
      find_made(work, stage, count, unmade);
    }
  }
}

/* The numbers of packets that wait, in front of the next chunk, in order; how many they are. */
FUNCTION u32 keep_waiting(LOCAL Judge *work, u32 count) {
  u32 waiting = 0;
  u32 any = 0;
  for (u32 at = local_index(); at < count; at += GROUP) {
    any |= work->slot[at] == STATES_WAITS;
  }
  if (!any_of_group(work, any)) {
    return 0;
  }
  for (u32 from = 0; from < count; from += GROUP) {
    u32 at = from + local_index();
    u32 waits = at < count && work->slot[at] == STATES_WAITS;
    u32 index = waits ? work->index[at] : 0;
    work->partial[local_index()] = waits;
    barrier_group();
    u32 before = waiting;
    for (u32 i = 0; i < GROUP; i++) {
      before += i < local_index() ? work->partial[i] : 0;
      waiting += work->partial[i];
    }
    if (waits) {
      /* Not behind where others still read. */
      work->index[before] = index;
    }
    barrier_group();
  }
  return waiting;
}

/*
 * Ranks the packets of each flow; an item's highest rank. Those in long lists are in a crowd.
 */
FUNCTION u32 rank_packets(LOCAL Judge *work, u32 count, PRIVATE u32 *are_crowded) {
  for (u32 i = local_index(); i < CHUNK; i += GROUP) {
    work->heads[i] = EMPTY;
  }
  barrier_group();
  for (u32 at = local_index(); at < count; at += GROUP) {
    u32 slot = work->slot[at];
    if (slot < STATES_WAITS) {
      work->next[at] = (u16)exchange_local(&work->heads[slot * 0x9e3779b1u >> 7 & (CHUNK - 1)], at);
    }
  }
  barrier_group();
  u32 highest = 0;
  *are_crowded = 0;
  for (u32 at = local_index(); at < count; at += GROUP) {
    u32 slot = work->slot[at];
    if (slot < STATES_WAITS) {
      u32 length = 0;
      u32 rank = 0;
      u32 other = work->heads[slot * 0x9e3779b1u >> 7 & (CHUNK - 1)];
      while (other < END_OF_LIST && length <= LONGEST) {
        rank += work->slot[other] == slot && other < at;
        other = work->next[other];
        length++;
      }
      *are_crowded |= length > LONGEST;
      rank = length > LONGEST ? IN_CROWD : rank;
      highest = rank < IN_CROWD && rank > highest ? rank : highest;
      work->rank[at] = (u16)rank;
    }
  }
  return highest;
}

/* Picks packets of a rank, in any order. */
FUNCTION void pick_rank(LOCAL Judge *work, u32 count, u32 rank) {
  if (local_index() == 0) {
    work->picked_count = 0;
  }
  barrier_group();
  for (u32 at = local_index(); at < count; at += GROUP) {
    if (work->slot[at] < STATES_WAITS && work->rank[at] == rank) {
      work->picked[add_local(&work->picked_count, 1)] = (u16)at;
    }
  }
  barrier_group();
}

/* Picks the packets of one flow out of the crowds, in order; whether there was one. */
FUNCTION u32 pick_crowd(LOCAL Judge *work, u32 count) {
  barrier_group();
  if (local_index() == 0) {
    work->pick = EMPTY;
  }
  barrier_group();
  for (u32 at = local_index(); at < count; at += GROUP) {
    if (work->slot[at] < STATES_WAITS && work->rank[at] == IN_CROWD) {
      min_local(&work->pick, at);
      break;
    }
  }
  barrier_group();
  u32 first = work->pick;
  if (first == EMPTY) {
    return 0;
  }
  u32 slot = work->slot[first];
  /* Each item looks at packets that follow each other. */
  u32 from = local_index() * PER_ITEM;
  work->heads[local_index()] = 0;
  for (u32 at = from; at < from + PER_ITEM && at < count; at++) {
    work->heads[local_index()] += work->slot[at] == slot;
  }
  barrier_group();
  u32 all = sum_before(work->heads, GROUP, work->partial);
  u32 to = work->heads[local_index()];
  for (u32 at = from; at < from + PER_ITEM && at < count; at++) {
    if (work->slot[at] == slot) {
      work->picked[to++] = (u16)at;
      work->rank[at] = 0;
    }
  }
  if (local_index() == 0) {
    work->picked_count = all;
  }
  barrier_group();
  return 1;
}

/* Judges a part of the flows of one IP version. */
#define JUDGE_PART(number)                                                                                                           \
  FUNCTION void judge_part_##number(LOCAL Judge *work, PRIVATE const Stage *stage, u32 drops_refused, u32 part, u32 parts, u32 tiles, \
                                    u32 tile_items, GLOBAL const u32 *order, GLOBAL const u16 *offsets, PRIVATE u64 *totals,         \
                                    GLOBAL u64 *counted, PRIVATE StatesCounts *counts) {                                             \
    for (u32 tile = local_index(); tile < tiles; tile += GROUP) {                                                                    \
      GLOBAL const u16 *of = offsets + (u64)tile * (parts + 1) + part;                                                               \
      work->pieces[tile] = of[0];                                                                                                    \
      work->starts[tile] = (u32)of[1] - of[0];                                                                                       \
    }                                                                                                                                \
    barrier_group();                                                                                                                 \
    u32 all = sum_before(work->starts, tiles, work->partial);                                                                        \
    u32 waiting = 0;                                                                                                                 \
    for (u32 done = 0; done < all || waiting;) {                                                                                     \
      u32 fresh = all - done < CHUNK - waiting ? all - done : CHUNK - waiting;                                                       \
      u32 count = waiting + fresh;                                                                                                   \
      for (u32 at = waiting + local_index(); at < count; at += GROUP) {                                                              \
        u32 wanted = done + at - waiting;                                                                                            \
        u32 tile = piece_of(work, tiles, wanted);                                                                                    \
        u32 index = order[tile * tile_items + work->pieces[tile] + wanted - work->starts[tile]];                                     \
        work->index[at] = index;                                                                                                     \
        prefetch_global(stage->records + (u64)index * 2);                                                                            \
      }                                                                                                                              \
      done += fresh;                                                                                                                 \
      barrier_group();                                                                                                               \
      find_entries(work, stage, count, counts);                                                                                      \
      barrier_group();                                                                                                               \
      u32 are_crowded;                                                                                                               \
      u32 highest = rank_packets(work, count, &are_crowded);                                                                         \
      barrier_group();                                                                                                               \
      for (u32 at = local_index(); at < count; at += GROUP) {                                                                        \
        if (work->slot[at] < STATES_WAITS && work->rank[at] == 0) {                                                                  \
          judge_packet_##number(work, stage, at, totals, MORE_OF(work, counted), counts);                                            \
        } else if (work->slot[at] == STATES_REFUSED) {                                                                               \
          judge_without_##number(stage, work->index[at], drops_refused, MORE_OF(work, counted), counts);                             \
        }                                                                                                                            \
      }                                                                                                                              \
      for (u32 rank = 1; any_of_group(work, highest >= rank); rank++) {                                                              \
        pick_rank(work, count, rank);                                                                                                \
        for (u32 i = local_index(); i < work->picked_count; i += GROUP) {                                                            \
          judge_packet_##number(work, stage, work->picked[i], totals, MORE_OF(work, counted), counts);                               \
        }                                                                                                                            \
      }                                                                                                                              \
      if (any_of_group(work, are_crowded)) {                                                                                         \
        while (pick_crowd(work, count)) {                                                                                            \
          judge_crowd_##number(work, stage, totals, MORE_OF(work, counted), counts);                                                 \
        }                                                                                                                            \
      }                                                                                                                              \
      barrier_group();                                                                                                               \
      waiting = keep_waiting(work, count);                                                                                           \
    }                                                                                                                                \
  }

#if MORE_IS_LOCAL
#define MORE_OF(work, counted) ((work)->more)
FUNCTION void clear_more(LOCAL Judge *work) {
  for (u32 i = local_index(); i < MORE_COUNT; i += GROUP) {
    work->more[i] = 0;
  }
  barrier_group();
}
FUNCTION void flush_more(LOCAL Judge *work, GLOBAL u64 *counted) {
  barrier_group();
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

/* Adds what all items counted, COUNTED_AT_ONCE numbers of each at a time. */
FUNCTION void flush_counted(LOCAL Counted *work, PRIVATE const u64 *own, u32 count, GLOBAL u64 *counted) {
  for (u32 first = 0; first < count; first += COUNTED_AT_ONCE) {
    barrier_group();
    for (u32 i = 0; i < COUNTED_AT_ONCE; i++) {
      work->own[i][local_index()] = first + i < count ? own[first + i] : 0;
    }
    barrier_group();
    for (u32 at = local_index(); at < COUNTED_AT_ONCE * SPANS; at += GROUP) {
      u64 sum = 0;
      for (u32 i = 0; i < SPAN && at % SPANS * SPAN + i < GROUP; i++) {
        sum += work->own[at / SPANS][at % SPANS * SPAN + i];
      }
      work->sums[at] = sum;
    }
    barrier_group();
    for (u32 at = local_index(); at < COUNTED_AT_ONCE && first + at < count; at += GROUP) {
      u64 sum = 0;
      for (u32 i = 0; i < SPANS; i++) {
        sum += work->sums[at * SPANS + i];
      }
      if (sum) {
        add_global_64(&counted[first + at], sum);
      }
    }
  }
}

#define JUDGE_VERSION(number, version, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                         \
  KERNEL void judge_##version##_##number(GLOBAL const u32x4 *records, GLOBAL const u32x4 *wide, GLOBAL u32x4 *answers,               \
                                         GLOBAL u32x4 *wide_answers, u32 tiles, u32 tile_items, u32 part_bits, u32 versions,         \
                                         GLOBAL const u32 *order, GLOBAL const u16 *offsets, GLOBAL u32 *tags, GLOBAL u64 *entries,  \
                                         GLOBAL u32 *held, u64 since, u32 regions, u32 groups, u32 capacity, u64 timeout, u32 when_full, \
                                         u64 first_seed, u64 second_seed, GLOBAL const u32 *parameters, GLOBAL u64 *counted) {       \
    LOCAL_MEMORY(JudgeOrCounted, both);                                                                                              \
    LOCAL Judge *work = &both->judge;                                                                                                \
    u64 totals[TOTALS + 1];                                                                                                          \
    for (u32 i = 0; i < TOTALS; i++) {                                                                                               \
      totals[i] = 0;                                                                                                                 \
    }                                                                                                                                \
    StatesCounts counts;                                                                                                             \
    counts.created = 0;                                                                                                              \
    counts.expired = 0;                                                                                                              \
    counts.evicted = 0;                                                                                                              \
    counts.refused = 0;                                                                                                              \
    clear_more(work);                                                                                                                \
    Stage stage;                                                                                                                     \
    stage.records = records;                                                                                                         \
    stage.wide = wide;                                                                                                               \
    stage.answers = answers;                                                                                                         \
    stage.wide_answers = wide_answers;                                                                                               \
    stage.since = since;                                                                                                             \
    stage.parameters = parameters;                                                                                                   \
    stage.states.tags = tags;                                                                                                        \
    stage.states.entries = entries;                                                                                                  \
    stage.states.held = held;                                                                                                        \
    stage.states.regions = regions;                                                                                                  \
    stage.states.groups = groups;                                                                                                    \
    stage.states.capacity = capacity;                                                                                                \
    stage.states.timeout = timeout;                                                                                                  \
    stage.states.evicts = when_full == FULL_EVICTS;                                                                                  \
    stage.first_seed = first_seed;                                                                                                   \
    stage.second_seed = second_seed;                                                                                                 \
    stage.begins = number == 0;                                                                                                      \
    stage.is_first = own_is_first;                                                                                                   \
    stage.definition = own_definition;                                                                                               \
    stage.by = own_by;                                                                                                               \
    stage.is_v6 = own_is_v6;                                                                                                         \
    stage.words = own_words;                                                                                                         \
    stage.mask = own_mask;                                                                                                           \
    u32 parts = 1u << part_bits;                                                                                                     \
    for (u32 part = group_index(); part < parts; part += group_count()) {                                                            \
      judge_part_##number(work, &stage, when_full == FULL_DROPS, own_is_v6 * parts + part, versions * parts, tiles, tile_items, order, offsets, \
                          totals, counted, &counts);                                                                                 \
    }                                                                                                                                \
    barrier_group();                                                                                                                 \
    flush_more(work, counted);                                                                                                       \
    flush_counted(&both->counted, totals, TOTALS, counted);                                                                          \
    u64 own_counts[4];                                                                                                               \
    own_counts[0] = counts.created;                                                                                                  \
    own_counts[1] = counts.expired;                                                                                                  \
    own_counts[2] = counts.evicted;                                                                                                  \
    own_counts[3] = counts.refused;                                                                                                  \
    flush_counted(&both->counted, own_counts, 4, counted + TOTALS + MORE_COUNT + own_definition * 4);                                \
  }

#define JUDGE(number, definition, by, is_first, words_v4, words_v6, mask)                                                            \
  JUDGE_WITHOUT(number)                                                                                                              \
  JUDGE_PACKET(number)                                                                                                               \
  JUDGE_CROWD(number)                                                                                                                \
  JUDGE_PART(number)                                                                                                                 \
  JUDGE_VERSION(number, v4, 0, definition, by, is_first, words_v4, mask)                                                             \
  JUDGE_VERSION(number, v6, 1, definition, by, is_first, words_v6, mask)
STAGES(JUDGE)

#endif
