/*
 * The first rule that matches each packet.
 *
 * Rules lie in tables, each under a mask. A packet's key under a table's mask is hashed to a slot; the rules of a slot are a
 * chain in order of their positions. One bit filter for all tables tells most packets that they need not look. What passes
 * goes into a queue that lanes share, and is taken out by as many lanes as there are, so that none is idle while others
 * follow a chain. Rules that are in no table (the tail) are compared one by one.
 *
 * Defined by the host: FAMILY (4, 6), FILTER_BITS, LOCAL_CLASSES, ASKS_FRAGMENTS, ROUND_BITS. Where the kernel is compiled for the
 * rules, TABLE_LIST(TABLE) with a TABLE(number, mask...) for each table, SLOTS, TAIL and TAIL_START; one for any rules finds
 * these before the masks.
 */

#ifndef TABLE_LIST
#define TABLES masks[0]
#define SLOTS masks[1]
#define TAIL masks[2]
#define TAIL_START masks[3]
#endif
/* Words before the masks. */
#define HEADER 4

#define WORDS (FAMILY == 6 ? 4 : 1)
/* Packets that lanes take at a time. */
#define ROUND (1u << ROUND_BITS)
/* Tables between two looks at the queue. */
#define TABLES_PER_LOOK 4
#define QUEUE (LANES * (TABLES_PER_LOOK + 1))
/* The position that stands for none. */
#define NONE 0xffffffu
#define NO_RULE 0xffffffffu

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
  u32 filter[1u << (FILTER_BITS - 5)];
  Lanes lanes[GROUP / LANES];
} Group;

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

/* The same as `hash` in layout.rs. */
FUNCTION u32 finish_hash(u64 sum) { return ((u32)(sum >> 32) ^ (u32)sum) * 0x9e3779b1u; }

/* Whether the condition on ports, protocol, flags and fragments holds. */
FUNCTION int meets(u32x4 cls, u32 ports, u32 rest) {
  int met = (ports & 0xffff) - (cls.x & 0xffff) <= cls.x >> 16 && (ports >> 16) - (cls.y & 0xffff) <= cls.y >> 16 &&
            ((rest ^ cls.z) & cls.w) == 0;
#if ASKS_FRAGMENTS
  met = met && (rest >> 16 & cls.z >> 24) != 0;
#endif
  return met;
}

FUNCTION u32x4 class_of(LOCAL const Group *group, GLOBAL const u32x4 *RESTRICT classes, u32 number) {
#if LOCAL_CLASSES
  return group->classes[number];
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

FUNCTION int matches(LOCAL const Group *group, LOCAL const Lanes *lanes, u32 packet, GLOBAL const u32x4 *RESTRICT rules,
                     GLOBAL const u32x4 *RESTRICT classes, u32 slot, u32x4 last) {
#if FAMILY == 6
  u32x4 s = rules[(u64)slot * RULE_PARTS];
  u32x4 d = rules[(u64)slot * RULE_PARTS + 1];
  u32 difference =
      prefix_difference(lanes->source[0][packet] ^ s.x, lanes->source[1][packet] ^ s.y, lanes->source[2][packet] ^ s.z,
                        lanes->source[3][packet] ^ s.w, last.z & 255) |
      prefix_difference(lanes->destination[0][packet] ^ d.x, lanes->destination[1][packet] ^ d.y,
                        lanes->destination[2][packet] ^ d.z, lanes->destination[3][packet] ^ d.w, last.z >> 8 & 255);
#else
  u32 difference = shift_right(lanes->source[0][packet] ^ last.x, last.z & 255) |
                   shift_right(lanes->destination[0][packet] ^ last.y, last.z >> 8 & 255);
#endif
  return difference == 0 && meets(class_of(group, classes, last.z >> 16), lanes->ports[packet], lanes->rest[packet]);
}

/* Takes candidates, as many as there are lanes, until fewer than `least` are left; answers how many are. */
FUNCTION u32 drain(LOCAL const Group *group, LOCAL Lanes *lanes, GLOBAL const u32x4 *RESTRICT rules,
                   GLOBAL const u32x4 *RESTRICT classes, u32 waiting, u32 least) {
  sync_lanes();
  while (waiting >= least) {
    u32 taken = waiting < LANES ? waiting : LANES;
    u32 candidate = 0;
    int goes_on = 0;
    waiting -= taken;
    if (lane() < taken) {
      candidate = lanes->queue[waiting + lane()];
      u32 packet = candidate & (ROUND - 1);
      u32 slot = candidate >> ROUND_BITS;
      u32x4 last = rules[(u64)slot * RULE_PARTS + RULE_PARTS - 1];
      u32 position = last.w & 0xffffff;
      if (position < lanes->best[packet]) {
        if (matches(group, lanes, packet, rules, classes, slot, last)) {
          min_local(&lanes->best[packet], position);
        } else {
          u32 distance = last.w >> 24;
          goes_on = distance != 0;
          candidate += distance << ROUND_BITS;
        }
      }
    }
    u32 all = ballot(goes_on);
    /* Everybody has read what is overwritten now. */
    if (goes_on) {
      lanes->queue[waiting + lanes_below(all)] = candidate;
    }
    waiting += count_ones(all);
    sync_lanes();
  }
  return waiting;
}

/* Queues the slot of a hash, if the filter knows it; answers how many wait. */
FUNCTION u32 look_up(LOCAL const Group *group, LOCAL Lanes *lanes, u32 hash, u32 slots, u32 packet, int open,
                     u32 waiting) {
  u32 word = group->filter[hash >> (32 - FILTER_BITS + 5)];
  int passes = open && (word >> (hash >> (32 - FILTER_BITS) & 31) & 1);
  u32 all = ballot(passes);
  if (passes) {
    lanes->queue[waiting + lanes_below(all)] = multiply_high(hash, slots) << ROUND_BITS | packet;
  }
  return waiting + count_ones(all);
}

#define PART(word, mask, factor) ((u64)((word) & (mask)) * (factor))
#if FAMILY == 6
#define HASH_OF(s0, s1, s2, s3, d0, d1, d2, d3, ports_mask, rest_mask)                                                \
  finish_hash(PART(key.source[0], s0, 0x85ebca6bu) + PART(key.source[1], s1, 0xc2b2ae35u) +                           \
              PART(key.source[2], s2, 0x27d4eb2fu) + PART(key.source[3], s3, 0x165667b1u) +                           \
              PART(key.destination[0], d0, 0xd3a2646du) + PART(key.destination[1], d1, 0xfd7046c5u) +                 \
              PART(key.destination[2], d2, 0xb55a4f09u) + PART(key.destination[3], d3, 0x8f6c3a51u) +                 \
              PART(key.ports, ports_mask, 0x9e3779b9u) + PART(key.rest, rest_mask, 0xe6546b65u))
#define MASK_WORDS 10
#define MASK(i) masks[HEADER + table * MASK_WORDS + i]
#define HASH_OF_MASKS HASH_OF(MASK(0), MASK(1), MASK(2), MASK(3), MASK(4), MASK(5), MASK(6), MASK(7), MASK(8), MASK(9))
#define TABLE(number, s0, s1, s2, s3, d0, d1, d2, d3, ports_mask, rest_mask) \
  LOOK(number, HASH_OF(s0, s1, s2, s3, d0, d1, d2, d3, ports_mask, rest_mask))
#else
#define HASH_OF(s0, d0, ports_mask, rest_mask)                                             \
  finish_hash(PART(key.source[0], s0, 0x85ebca6bu) + PART(key.destination[0], d0, 0xd3a2646du) + \
              PART(key.ports, ports_mask, 0x9e3779b9u) + PART(key.rest, rest_mask, 0xe6546b65u))
#define MASK_WORDS 4
#define MASK(i) masks[HEADER + table * MASK_WORDS + i]
#define HASH_OF_MASKS HASH_OF(MASK(0), MASK(1), MASK(2), MASK(3))
#define TABLE(number, s0, d0, ports_mask, rest_mask) LOOK(number, HASH_OF(s0, d0, ports_mask, rest_mask))
#endif
/* Tables differ in what they add, so that equal keys of two tables are not in one slot. */
#define LOOK(number, hash_of)                                                                        \
  waiting = look_up(group, lanes, (hash_of) + (number) * 0x7feb352du, SLOTS, packet, open, waiting);         \
  if ((number) % TABLES_PER_LOOK == TABLES_PER_LOOK - 1 && waiting >= LANES) {                        \
    waiting = drain(group, lanes, rules, classes, waiting, LANES);                                   \
  }

/* Keys from `begin` to `end`. */
KERNEL void classify(GLOBAL const u32 *RESTRICT keys, GLOBAL u32 *RESTRICT first, u32 begin, u32 end,
                     GLOBAL const u32x4 *RESTRICT rules, GLOBAL const u32x4 *RESTRICT classes,
                     GLOBAL const u32 *RESTRICT filter, GLOBAL const u32 *RESTRICT masks) {
  LOCAL_MEMORY(Group, group);
#if LOCAL_CLASSES
  for (u32 i = local_index(); i < LOCAL_CLASSES; i += GROUP) {
    group->classes[i] = classes[i];
  }
#endif
  for (u32 i = local_index(); i < 1u << (FILTER_BITS - 5); i += GROUP) {
    group->filter[i] = filter[i];
  }
  barrier_group();
  LOCAL Lanes *lanes = &group->lanes[lanes_index()];
  u32 stride = group_count() * (GROUP / LANES) * ROUND;
  for (u32 start = begin + (group_index() * (GROUP / LANES) + lanes_index()) * ROUND; start < end; start += stride) {
    u32 waiting = 0;
    for (u32 packet = lane(); packet < ROUND; packet += LANES) {
      int open = start + packet < end;
      Key key = load_key(keys, open ? start + packet : start);
      for (u32 i = 0; i < WORDS; i++) {
        lanes->source[i][packet] = key.source[i];
        lanes->destination[i][packet] = key.destination[i];
      }
      lanes->ports[packet] = key.ports;
      lanes->rest[packet] = key.rest;
      lanes->best[packet] = NONE;
#ifdef TABLE_LIST
      TABLE_LIST(TABLE)
#else
      for (u32 table = 0; table < TABLES; table++) {
        LOOK(table, HASH_OF_MASKS)
      }
#endif
      if (waiting >= LANES) {
        waiting = drain(group, lanes, rules, classes, waiting, LANES);
      }
    }
    drain(group, lanes, rules, classes, waiting, 1);
    for (u32 packet = lane(); packet < ROUND; packet += LANES) {
      u32 best = lanes->best[packet];
      for (u32 i = 0; i < TAIL; i++) {
        u32x4 last = rules[(u64)(TAIL_START + i) * RULE_PARTS + RULE_PARTS - 1];
        u32 position = last.w & 0xffffff;
        if (!ballot(position < best)) {
          break;
        }
        if (position < best && matches(group, lanes, packet, rules, classes, TAIL_START + i, last)) {
          best = position;
        }
      }
      if (start + packet < end) {
        first[start + packet] = best == NONE ? NO_RULE : best;
      }
    }
    /* Keys are written over now. */
    sync_lanes();
  }
}
