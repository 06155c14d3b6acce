/*
 * The first rule that matches each packet.
 *
 * Rules lie in tables, each under a mask. A packet's key under a table's mask is hashed to a slot; the rules of a slot are a
 * chain in order of their positions. A filter in local memory tells for most packets and tables that there is nothing, and for
 * the others how early the first rule is at least that could be met (its rank). Each lane keeps the few earliest of these
 * candidates, and looks at the first of them at once. The others, and the next rules of chains, go into a queue that lanes share,
 * unless they come after what was found; they are taken out by as many lanes as there are, so that none is idle while others
 * follow a chain. Rules that are in no table (the tail) are compared one by one, while there are packets that have found no
 * earlier rule.
 *
 * Defined by the host: FAMILY (4, 6), FILTER_WORDS, LOCAL_CLASSES, ASKS_FRAGMENTS, ROUND_BITS, SLOT_BITS; NONE, the position that stands for none;
 * HAS_RANKS, in place of the rank of a table whose rules have ranks of their own; QUEUE_PER_LANE; FACTOR_... of hashes. Where the kernel is compiled
 * for the rules, TABLE_LIST(TABLE) with a TABLE(number, rank, mask...) for each table, RULE_LIST(REACHES, RULE, END) with the rules of
 * the tail, and what stands in the header otherwise.
 *
 * A kernel may have this text several times, for other rules each time. So what it declares is called what NAME(...) makes of it, and
 * what depends on the rules is undefined at the end.
 */
#define Key NAME(Key)
#define Lanes NAME(Lanes)
#define Tables NAME(Tables)
#define load_tables NAME(load_tables)
#define load_key NAME(load_key)
#define stored_key NAME(stored_key)
#define finish_hash NAME(finish_hash)
#define meets NAME(meets)
#define class_of NAME(class_of)
#define prefix_difference NAME(prefix_difference)
#define matches NAME(matches)
#define last_part NAME(last_part)
#define push NAME(push)
#define next_of_chain NAME(next_of_chain)
#define drain NAME(drain)
#define drain_all NAME(drain_all)
#define ask_filter NAME(ask_filter)
#define look_up NAME(look_up)
#define compare_tail NAME(compare_tail)
#define first_match NAME(first_match)

/* What stands before the masks: Head of layout.rs, where each of its fields has a HEAD_... */
#ifndef TABLE_LIST
#define TABLES masks[HEAD_TABLES]
#define SLOTS masks[HEAD_SLOTS]
#define CELLS masks[HEAD_CELLS]
#define BITS masks[HEAD_BITS]
#define RANK_SHIFT masks[HEAD_RANK_SHIFT]
#endif
#ifndef RULE_LIST
#define TAIL masks[HEAD_TAIL]
#define TAIL_START masks[HEAD_TAIL_START]
#endif

#define WORDS (FAMILY == 6 ? 4 : 1)
/* Packets that lanes take at a time. */
#define ROUND (1u << ROUND_BITS)
/* Candidates that a lane keeps. */
#define KEPT 3
/* Tables between two looks at how full the queue is. */
#define TABLES_PER_LOOK 4
#define QUEUE (LANES * QUEUE_PER_LANE)
/* Where the next tables might not fit any more, or what is kept. */
#define FULL (QUEUE - LANES * TABLES_PER_LOOK)
#define FULL_FOR_KEPT (QUEUE - LANES * KEPT)
#define NO_RULE 0xffffffffu

/*
 * A rank is a position without its lowest bits, at most 254. A candidate is a rank (highest byte) and a slot; or, from here
 * on, nothing.
 */
#define NOTHING 0xff000000u

/* A packet in the queue: of a candidate's rank as many bits as there is room for, its slot, and which packet it is of. */
#define RANK_BITS (32 - SLOT_BITS - ROUND_BITS > 8 ? 8 : 32 - SLOT_BITS - ROUND_BITS)
#define WAITING(candidate, packet)                                                       \
  ((u32)((u64)((candidate) >> (32 - RANK_BITS)) << (SLOT_BITS + ROUND_BITS)) | \
   ((candidate) & 0xffffff) << ROUND_BITS | (packet))
#define RANK_OF(waiting) ((u32)((u64)(waiting) >> (SLOT_BITS + ROUND_BITS)) << (8 - RANK_BITS))
#define SLOT_OF(waiting) ((waiting) >> ROUND_BITS & ((1u << SLOT_BITS) - 1))

#define least_of(x, y) ((x) < (y) ? (x) : (y))
#define greatest_of(x, y) ((x) > (y) ? (x) : (y))

typedef struct {
  u32 source[WORDS];
  u32 destination[WORDS];
  u32 ports;
  /* Protocol, TCP flags, bits. */
  u32 rest;
} Key;

/*
 * A rule: its addresses; bits to shift out of the difference of source and destination (8 each) and its class (16); its
 * position (24) and the distance to the next rule of the chain, or 0 (8).
 */
#if FAMILY == 6
#define RULE_PARTS 3
#else
#define RULE_PARTS 1
#endif

/* What lanes share. */
typedef struct {
  u32 queue[QUEUE];
  u32 best[ROUND];
  u32 source[WORDS][ROUND];
  u32 destination[WORDS][ROUND];
  u32 ports[ROUND];
  u32 rest[ROUND];
} Lanes;

/* What a group shares. */
typedef struct {
#if LOCAL_CLASSES
  u32x4 classes[LOCAL_CLASSES];
#endif
  /* CELLS bytes, then BITS bits. */
  u32 filter[FILTER_WORDS];
} Tables;

#if FAMILY == 6
FUNCTION Key load_key(GLOBAL const u32 *RESTRICT keys, u32 index) {
  GLOBAL const u32 *words = keys + (u64)index * 10;
  Key key;
  for (u32 i = 0; i < 4; i++) {
    key.source[i] = words[i ^ 1];
    key.destination[i] = words[4 + (i ^ 1)];
  }
  key.ports = words[8];
  key.rest = words[9];
  return key;
}
#else
FUNCTION Key load_key(GLOBAL const u32 *RESTRICT keys, u32 index) {
  u32x4 words = ((GLOBAL const u32x4 *)keys)[index];
  Key key;
  key.source[0] = words.x;
  key.destination[0] = words.y;
  key.ports = words.z;
  key.rest = words.w;
  return key;
}
#endif

FUNCTION Key stored_key(LOCAL const Lanes *lanes, u32 packet) {
  Key key;
  for (u32 i = 0; i < WORDS; i++) {
    key.source[i] = lanes->source[i][packet];
    key.destination[i] = lanes->destination[i][packet];
  }
  key.ports = lanes->ports[packet];
  key.rest = lanes->rest[packet];
  return key;
}

/* The same as `hash` in layout.rs. */
FUNCTION u32 finish_hash(u64 sum) { return ((u32)(sum >> 32) ^ (u32)sum) * FACTOR_FOLDED; }

/* Whether the condition on ports, protocol, flags and fragments holds. */
FUNCTION int meets(u32x4 cls, u32 ports, u32 rest) {
  int met = (ports & 0xffff) - (cls.x & 0xffff) <= cls.x >> 16 && (ports >> 16) - (cls.y & 0xffff) <= cls.y >> 16 &&
            ((rest ^ cls.z) & cls.w) == 0;
#if ASKS_FRAGMENTS
  met = met && (rest >> 16 & cls.z >> 24) != 0;
#endif
  return met;
}

FUNCTION u32x4 class_of(LOCAL const Tables *tables, GLOBAL const u32x4 *RESTRICT classes, u32 number) {
#if LOCAL_CLASSES
  return tables->classes[number];
#else
  return classes[number];
#endif
}

/* The bits in which a packet's addresses differ from a rule's, but for those that the rule leaves open. */
#if FAMILY == 6
FUNCTION u32 prefix_difference(u32 a, u32 b, u32 c, u32 d, u32 out) {
  return shift_right(a, out < 96 ? 0 : out - 96) | shift_right(b, out < 64 ? 0 : out - 64) |
         shift_right(c, out < 32 ? 0 : out - 32) | shift_right(d, out);
}
#endif

FUNCTION int matches(LOCAL const Tables *tables, Key key, GLOBAL const u32x4 *RESTRICT rules,
                     GLOBAL const u32x4 *RESTRICT classes, u32 slot, u32x4 last) {
#if FAMILY == 6
  u32x4 s = rules[(u64)slot * RULE_PARTS];
  u32x4 d = rules[(u64)slot * RULE_PARTS + 1];
  u32 difference = prefix_difference(key.source[0] ^ s.x, key.source[1] ^ s.y, key.source[2] ^ s.z, key.source[3] ^ s.w,
                                     last.z & 255) |
                   prefix_difference(key.destination[0] ^ d.x, key.destination[1] ^ d.y, key.destination[2] ^ d.z,
                                     key.destination[3] ^ d.w, last.z >> 8 & 255);
#else
  u32 difference = shift_right(key.source[0] ^ last.x, last.z & 255) |
                   shift_right(key.destination[0] ^ last.y, last.z >> 8 & 255);
#endif
  return difference == 0 && meets(class_of(tables, classes, last.z >> 16), key.ports, key.rest);
}

FUNCTION u32x4 last_part(GLOBAL const u32x4 *RESTRICT rules, u32 slot) {
  return rules[(u64)slot * RULE_PARTS + RULE_PARTS - 1];
}

/* Puts candidates that some lanes have into the queue; answers how many wait there. */
FUNCTION u32 push(LOCAL Lanes *lanes, int has, u32 candidate, u32 packet, u32 waiting) {
  u32 all = ballot(has);
  if (has) {
    lanes->queue[waiting + lanes_below(all)] = WAITING(candidate, packet);
  }
  return waiting + count_ones(all);
}

/* The next candidate of a chain: the one at a distance from a rule, which does not come before it. */
FUNCTION u32 next_of_chain(u32 slot, u32 position, u32 distance, u32 rank_shift) {
  return position >> rank_shift << 24 | (slot + distance);
}

/* Takes candidates, as many as there are lanes, until fewer than `enough` are left; answers how many are. */
FUNCTION u32 drain(LOCAL const Tables *tables, LOCAL Lanes *lanes, GLOBAL const u32x4 *RESTRICT rules,
                   GLOBAL const u32x4 *RESTRICT classes, u32 rank_shift, u32 waiting, u32 enough) {
  sync_lanes();
  while (waiting >= enough) {
    u32 taken = least_of(waiting, LANES);
    u32 slot = 0;
    u32 packet = 0;
    u32 position = 0;
    u32 distance = 0;
    waiting -= taken;
    if (lane() < taken) {
      u32 candidate = lanes->queue[waiting + lane()];
      packet = candidate & (ROUND - 1);
      slot = SLOT_OF(candidate);
      u32 best = lanes->best[packet];
      if (RANK_OF(candidate) <= best >> rank_shift) {
        u32x4 last = last_part(rules, slot);
        position = last.w & 0xffffff;
        if (position < best) {
          if (matches(tables, stored_key(lanes, packet), rules, classes, slot, last)) {
            min_local(&lanes->best[packet], position);
          } else {
            distance = last.w >> 24;
          }
        }
      }
    }
    /* What was read may be written over now. */
    sync_lanes();
    waiting = push(lanes, distance != 0, next_of_chain(slot, position, distance, rank_shift), packet, waiting);
    sync_lanes();
  }
  return waiting;
}

#define PART(word, mask, factor) ((u64)((word) & (mask)) * (factor))
#if FAMILY == 6
#define HASH_OF(s0, s1, s2, s3, d0, d1, d2, d3, ports_mask, rest_mask)                                                \
  finish_hash(PART(key.source[0], s0, FACTOR_0) + PART(key.source[1], s1, FACTOR_1) +                           \
              PART(key.source[2], s2, FACTOR_2) + PART(key.source[3], s3, FACTOR_3) +                           \
              PART(key.destination[0], d0, FACTOR_4) + PART(key.destination[1], d1, FACTOR_5) +                 \
              PART(key.destination[2], d2, FACTOR_6) + PART(key.destination[3], d3, FACTOR_7) +                 \
              PART(key.ports, ports_mask, FACTOR_8) + PART(key.rest, rest_mask, FACTOR_9))
#define MASK_WORDS 11
#define MASK(i) masks[HEAD_WORDS + table * MASK_WORDS + i]
#define HASH_OF_MASKS \
  HASH_OF(MASK(1), MASK(2), MASK(3), MASK(4), MASK(5), MASK(6), MASK(7), MASK(8), MASK(9), MASK(10))
#define TABLE(number, rank, s0, s1, s2, s3, d0, d1, d2, d3, ports_mask, rest_mask) \
  LOOK(number, rank, HASH_OF(s0, s1, s2, s3, d0, d1, d2, d3, ports_mask, rest_mask))
#else
#define HASH_OF(s0, d0, ports_mask, rest_mask)                                                   \
  finish_hash(PART(key.source[0], s0, FACTOR_0) + PART(key.destination[0], d0, FACTOR_4) + \
              PART(key.ports, ports_mask, FACTOR_8) + PART(key.rest, rest_mask, FACTOR_9))
#define MASK_WORDS 5
#define MASK(i) masks[HEAD_WORDS + table * MASK_WORDS + i]
#define HASH_OF_MASKS HASH_OF(MASK(1), MASK(2), MASK(3), MASK(4))
#define TABLE(number, rank, s0, d0, ports_mask, rest_mask) LOOK(number, rank, HASH_OF(s0, d0, ports_mask, rest_mask))
#endif

/* Tables differ in what they add, so that equal keys of two tables are not in one slot. */
#define HASH_IN(table, hash) ((hash) + (table) * FACTOR_TABLE)

/* What the filter has for a hash, in a table with a constant rank or with ranks of its rules: a rank, or 255. */
FUNCTION u32 ask_filter(LOCAL const Tables *tables, u32 hash, u32 rank, u32 cells, u32 bits) {
  if (rank == HAS_RANKS) {
    return ((LOCAL const u8 *)tables->filter)[multiply_high(hash, cells)];
  }
  u32 bit = multiply_high(hash, bits);
  return tables->filter[cells / 4 + bit / 32] >> (bit & 31) & 1 ? rank : 255;
}

#define LOOK(number, rank, hash_of)                                                      \
  {                                                                                      \
    u32 hash = HASH_IN(number, hash_of);                                                 \
    u32 more = ask_filter(tables, hash, rank, CELLS, BITS) << 24 | multiply_high(hash, SLOTS); \
    for (u32 i = 0; i < KEPT; i++) {                                                     \
      u32 later = greatest_of(kept[i], more);                                            \
      kept[i] = least_of(kept[i], more);                                                 \
      more = later;                                                                      \
    }                                                                                    \
    waiting = push(lanes, more < NOTHING, more, packet, waiting);                        \
    if ((number) % TABLES_PER_LOOK == TABLES_PER_LOOK - 1 && waiting > FULL) {           \
      waiting = drain(tables, lanes, rules, classes, RANK_SHIFT, waiting, LANES);         \
    }                                                                                    \
  }

/*
 * A rule of the tail as part of the text; REACHES(position) ... END stands around those from this position on, which are left out
 * where all packets have found an earlier one.
 */
#define REACHES(position) if (ballot(best > (position))) {
#define END }
#if FAMILY == 6
#define DIFFERS(i, field, mask, value) ((key.field[i] & (mask)) ^ (value))
#define RULE(position, s0, s1, s2, s3, d0, d1, d2, d3, t0, t1, t2, t3, e0, e1, e2, e3, from, span, to, width, rest_mask, \
             rest_value, fragments)                                                                                     \
  RULE_IF(position,                                                                                                     \
          (DIFFERS(0, source, s0, t0) | DIFFERS(1, source, s1, t1) | DIFFERS(2, source, s2, t2) |                       \
           DIFFERS(3, source, s3, t3) | DIFFERS(0, destination, d0, e0) | DIFFERS(1, destination, d1, e1) |             \
           DIFFERS(2, destination, d2, e2) | DIFFERS(3, destination, d3, e3)),                                          \
          from, span, to, width, rest_mask, rest_value, fragments)
#else
#define RULE(position, s0, d0, t0, e0, from, span, to, width, rest_mask, rest_value, fragments)                     \
  RULE_IF(position, (((key.source[0] & (s0)) ^ (t0)) | ((key.destination[0] & (d0)) ^ (e0))), from, span, to, width, \
          rest_mask, rest_value, fragments)
#endif
#define RULE_IF(position, difference, from, span, to, width, rest_mask, rest_value, fragments)               \
  if (((difference) | ((key.rest & (rest_mask)) ^ (rest_value))) == 0 && (key.ports & 0xffff) - (from) <= (span) && \
      (key.ports >> 16) - (to) <= (width) && (key.rest >> 16 & (fragments)) != 0) {                           \
    best = least_of(best, position);                                                                          \
  }

/* Copies what a group shares to its memory; a barrier must follow. */
FUNCTION void load_tables(LOCAL Tables *tables, GLOBAL const u32x4 *RESTRICT classes, GLOBAL const u32 *RESTRICT filter) {
#if LOCAL_CLASSES
  for (u32 i = local_index(); i < LOCAL_CLASSES; i += GROUP) {
    tables->classes[i] = classes[i];
  }
#else
  (void)classes;
#endif
  for (u32 i = local_index(); i < FILTER_WORDS; i += GROUP) {
    tables->filter[i] = filter[i];
  }
}

/*
 * Looks a packet for each lane up in all tables, each lane's at its place `packet`. What waits in the queue, the answer many, is
 * about any of them.
 */
FUNCTION u32 look_up(LOCAL const Tables *tables, LOCAL Lanes *lanes, Key key, u32 packet, u32 waiting,
                     GLOBAL const u32x4 *RESTRICT rules, GLOBAL const u32x4 *RESTRICT classes,
                     GLOBAL const u32 *RESTRICT masks) {
  /* A kernel for certain rules has the masks in its text. */
  (void)masks;
  for (u32 i = 0; i < WORDS; i++) {
    lanes->source[i][packet] = key.source[i];
    lanes->destination[i][packet] = key.destination[i];
  }
  lanes->ports[packet] = key.ports;
  lanes->rest[packet] = key.rest;
  lanes->best[packet] = NONE;
  u32 kept[KEPT];
  for (u32 i = 0; i < KEPT; i++) {
    kept[i] = NOTHING;
  }
#ifdef TABLE_LIST
  TABLE_LIST(TABLE)
#else
  for (u32 table = 0; table < TABLES; table++) {
    LOOK(table, MASK(0), HASH_OF_MASKS)
  }
#endif
  if (waiting > FULL_FOR_KEPT) {
    waiting = drain(tables, lanes, rules, classes, RANK_SHIFT, waiting, LANES);
  }
  u32 best = NONE;
  u32 slot = kept[0] & 0xffffff;
  u32 position = 0;
  u32 distance = 0;
  if (kept[0] < NOTHING) {
    u32x4 last = last_part(rules, slot);
    position = last.w & 0xffffff;
    if (matches(tables, key, rules, classes, slot, last)) {
      best = position;
    } else {
      distance = last.w >> 24;
    }
  }
  min_local(&lanes->best[packet], best);
  u32 next = next_of_chain(slot, position, distance, RANK_SHIFT);
  waiting = push(lanes, distance != 0, next, packet, waiting);
  for (u32 i = 1; i < KEPT; i++) {
    int may_be_first = kept[i] < NOTHING && kept[i] >> 24 <= best >> RANK_SHIFT;
    waiting = push(lanes, may_be_first, kept[i], packet, waiting);
  }
  return drain(tables, lanes, rules, classes, RANK_SHIFT, waiting, LANES);
}

/* Empties the queue. */
FUNCTION void drain_all(LOCAL const Tables *tables, LOCAL Lanes *lanes, u32 waiting, GLOBAL const u32x4 *RESTRICT rules,
                        GLOBAL const u32x4 *RESTRICT classes, GLOBAL const u32 *RESTRICT masks) {
  (void)masks;
  drain(tables, lanes, rules, classes, RANK_SHIFT, waiting, 1);
}

/* The first rule that matches a packet, from the best that tables have and the tail. */
FUNCTION u32 compare_tail(LOCAL const Tables *tables, Key key, u32 best, GLOBAL const u32x4 *RESTRICT rules,
                          GLOBAL const u32x4 *RESTRICT classes, GLOBAL const u32 *RESTRICT masks) {
  (void)masks;
#ifdef RULE_LIST
  (void)tables;
  (void)rules;
  (void)classes;
  /* There may be no rules. */
  (void)key;
  RULE_LIST(REACHES, RULE, END)
#else
  for (u32 i = 0; i < TAIL; i++) {
    u32x4 last = last_part(rules, TAIL_START + i);
    u32 position = last.w & 0xffffff;
    if (!ballot(position < best)) {
      break;
    }
    if (position < best && matches(tables, key, rules, classes, TAIL_START + i, last)) {
      best = position;
    }
  }
#endif
  return best;
}

/* The first rule that matches the one packet that each lane has, or NONE. */
FUNCTION u32 first_match(LOCAL const Tables *tables, LOCAL Lanes *lanes, Key key, GLOBAL const u32x4 *RESTRICT rules,
                         GLOBAL const u32x4 *RESTRICT classes, GLOBAL const u32 *RESTRICT masks) {
  u32 waiting = look_up(tables, lanes, key, lane(), 0, rules, classes, masks);
  drain_all(tables, lanes, waiting, rules, classes, masks);
  u32 best = compare_tail(tables, key, lanes->best[lane()], rules, classes, masks);
  /* Keys may be written over now. */
  sync_lanes();
  return best;
}

#undef Key
#undef Lanes
#undef Tables
#undef load_tables
#undef load_key
#undef stored_key
#undef finish_hash
#undef meets
#undef class_of
#undef prefix_difference
#undef matches
#undef last_part
#undef push
#undef next_of_chain
#undef drain
#undef drain_all
#undef ask_filter
#undef look_up
#undef compare_tail
#undef first_match
#undef RULE_PARTS
#undef HASH_OF
#undef HASH_OF_MASKS
#undef MASK_WORDS
#undef TABLE
#undef RULE
#ifndef TABLE_LIST
#undef TABLES
#undef SLOTS
#undef CELLS
#undef BITS
#undef RANK_SHIFT
#endif
#ifndef RULE_LIST
#undef TAIL
#undef TAIL_START
#endif
