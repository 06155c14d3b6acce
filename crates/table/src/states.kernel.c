/*
 * Entries of flows in the memory of a device: the lines of states.rs with whole keys, found by tags beside them.
 *
 * The table is regions, by the upper bits of a key's hash; a region is groups of eight entries, and a tag for each: a byte. An entry
 * whose home group is full stands in one of the next ones of its region, up to the first that has a free place; that is where a search
 * ends. No place becomes free again: at capacity a new flow takes the place of another that a search for it passes by.
 *
 * At any time one group of items works on a region; it may look flows up, or make entries, with all of its items at a time, and a barrier
 * between the one and the other.
 *
 * Defined by the host (regions.rs): STATES_KEY, the bits of a key's last word that are the key's; STATES_LIVE, STATES_TOUCHED, and
 * STATES_FUNCTIONS, the first bit of the functions that have state there.
 */

#define STATES_FREE 0x00u
/* A place that somebody is about to fill. */
#define STATES_BUSY 0x01u
/* What all tags of entries have. */
#define STATES_TAG 0x80u
#define STATES_TAGS 0x80808080u
/* No entry; none, since the table is full; and none yet, since all that could go are in use. */
#define STATES_NONE 0xffffffffu
#define STATES_REFUSED 0xfffffffeu
#define STATES_WAITS 0xfffffffdu

typedef struct {
  /* Two words for each group. */
  GLOBAL u32 *tags;
  GLOBAL u64 *entries;
  /* Entries of each region. */
  GLOBAL u32 *held;
  /* Of the table, a power of two. */
  u32 regions;
  /* Groups of a region, and entries that there may be in it. */
  u32 groups;
  u32 capacity;
  /* Nanoseconds. */
  u64 timeout;
  /* Whether a new flow may take the place of one that is not dead. */
  u32 evicts;
} States;

/* What a table counted. */
typedef struct {
  u32 created, expired, evicted, refused;
} StatesCounts;

FUNCTION u64 states_fold(u64 x, u64 y) { return (x * y) ^ multiply_high_64(x, y); }

/* As in states.rs. */
FUNCTION u64 states_hash(PRIVATE const u64 *key, u32 words, u64 first, u64 second) {
  u64 hash = second;
  for (u32 i = 0; i < words; i += 2) {
    u64 right = i + 1 < words ? key[i + 1] : 0;
    hash = states_fold(key[i] ^ first, right ^ hash);
  }
  return states_fold(hash ^ first, (second << 32 | second >> 32) ^ 0x9e3779b97f4a7c15);
}

/* The upper bits of a hash: one of so many, a power of two. */
FUNCTION u32 states_part(u64 hash, u32 parts) { return multiply_high((u32)(hash >> 32), parts); }

FUNCTION u32 states_home(u64 hash, u32 groups) { return multiply_high((u32)(hash >> 8), groups); }

FUNCTION u32 states_tag(u64 hash) { return ((u32)hash & 0x7fu) | STATES_TAG; }

/* The top bit of each byte that is 0. */
FUNCTION u32 states_zeros(u32 x) { return ~(((x & ~STATES_TAGS) + ~STATES_TAGS) | x | ~STATES_TAGS); }

/* A bit for each byte of two words, of the top bits of these bytes. */
FUNCTION u32 states_ways(u32 low, u32 high) {
  return ((low >> 7) * 0x00204081u >> 21 & 0xf) | ((high >> 7) * 0x00204081u >> 21 & 0xf) << 4;
}

/* Two words of an entry at a time, the first with an even number. */
FUNCTION void load_pair(PRIVATE u64 *to, GLOBAL const u64 *from) {
  u32x4 pair = *(GLOBAL const u32x4 *)from;
  to[0] = pair.x | (u64)pair.y << 32;
  to[1] = pair.z | (u64)pair.w << 32;
}

FUNCTION void store_pair(GLOBAL u64 *to, PRIVATE const u64 *from) {
  u32x4 pair;
  pair.x = (u32)from[0];
  pair.y = (u32)(from[0] >> 32);
  pair.z = (u32)from[1];
  pair.w = (u32)(from[1] >> 32);
  *(GLOBAL u32x4 *)to = pair;
}

/* An entry's first word; entries have `stride` of them. */
#define STATES_ENTRY(states, slot, stride) ((states).entries + (u64)(slot) * (stride))

/* Reads an entry, from the last word of its key on or all of it. */
FUNCTION void states_load(GLOBAL const u64 *entry, u32 from, u32 stride, PRIVATE u64 *line) {
  for (u32 i = from & ~1u; i < stride; i += 2) {
    load_pair(&line[i], entry + i);
  }
}

FUNCTION u32 states_is(PRIVATE const u64 *line, PRIVATE const u64 *key, u32 words) {
  u64 differ = (line[words - 1] & (STATES_KEY | STATES_LIVE)) ^ (key[words - 1] | STATES_LIVE);
  for (u32 i = 0; i + 1 < words; i++) {
    differ |= line[i] ^ key[i];
  }
  return differ == 0;
}

/* Where the tags of a flow's home are. */
FUNCTION GLOBAL u32 *states_tags(PRIVATE const States *states, u64 hash) {
  u32 group = states_part(hash, states->regions) * states->groups + states_home(hash, states->groups);
  return states->tags + (u64)group * 2;
}

/* The place of a flow's entry, which is read, or STATES_NONE. */
FUNCTION u32 states_find(PRIVATE const States *states, u64 hash, PRIVATE const u64 *key, u32 words, u32 stride, PRIVATE u64 *line) {
  u32 first = states_part(hash, states->regions) * states->groups;
  u32 group = states_home(hash, states->groups);
  u32 wanted = states_tag(hash) * 0x01010101u;
  for (u32 i = 0; i < states->groups; i++) {
    GLOBAL const u32 *tags = states->tags + (u64)(first + group) * 2;
    u32 both[2];
    both[0] = tags[0];
    both[1] = tags[1];
    /* All that look at an entry at this time wait for it together, in whichever word its tag is. */
    u32 ways = states_ways(states_zeros(both[0] ^ wanted), states_zeros(both[1] ^ wanted));
    for (; ways; ways &= ways - 1) {
      u32 slot = (first + group) * 8 + count_ones((ways & (0u - ways)) - 1u);
      states_load(STATES_ENTRY(*states, slot, stride), 0, stride, line);
      if (states_is(line, key, words)) {
        return slot;
      }
    }
    if (states_zeros(both[0]) | states_zeros(both[1])) {
      return STATES_NONE;
    }
    group = group + 1 == states->groups ? 0 : group + 1;
  }
  return STATES_NONE;
}

/* Changes one tag; whether it was still what it is said to have been. */
FUNCTION u32 states_claim(GLOBAL u32 *tags, u32 way, u32 was, u32 becomes) {
  u32 shift = way % 4 * 8;
  GLOBAL u32 *word = tags + way / 4;
  for (u32 seen = *word; (seen >> shift & 0xffu) == was;) {
    u32 old = swap_global(word, seen, (seen & ~(0xffu << shift)) | becomes << shift);
    if (old == seen) {
      return 1;
    }
    seen = old;
  }
  return 0;
}

/* A free place on a flow's way, now busy; STATES_REFUSED where there is none, which cannot be. */
FUNCTION u32 states_free(PRIVATE const States *states, u32 first, u32 group) {
  for (u32 i = 0; i < states->groups; i++) {
    GLOBAL u32 *tags = states->tags + (u64)(first + group) * 2;
    for (u32 way = 0; way < 8; way++) {
      if (states_claim(tags, way, STATES_FREE, STATES_BUSY)) {
        return (first + group) * 8 + way;
      }
    }
    group = group + 1 == states->groups ? 0 : group + 1;
  }
  return STATES_REFUSED;
}

/*
 * The place of another entry on a flow's way, now busy: of one that is dead or, where that may be, of the one with the oldest last packet
 * of those that are not in use. STATES_NONE where there is none at all.
 */
FUNCTION u32 states_other(PRIVATE const States *states, u32 first, u32 group, u32 words, u32 stride, u64 now,
                          PRIVATE StatesCounts *counts) {
  /* As long as others take what is found: they are no more than the items of the group. */
  for (u32 tries = 0; tries < GROUP; tries++) {
    u32 found = STATES_NONE;
    u32 found_tag = 0;
    u32 is_dead = 0;
    u32 are_used = 0;
    u32 are_alive = 0;
    u64 oldest = ~(u64)0;
    u32 at = group;
    u32 has_free = 0;
    for (u32 i = 0; i < states->groups && !has_free && !is_dead; i++) {
      GLOBAL const u32 *tags = states->tags + (u64)(first + at) * 2;
      for (u32 way = 0; way < 8 && !is_dead; way++) {
        u32 tag = tags[way / 4] >> way % 4 * 8 & 0xffu;
        has_free |= tag == STATES_FREE;
        are_used |= tag == STATES_BUSY;
        if (tag & STATES_TAG) {
          u32 slot = (first + at) * 8 + way;
          GLOBAL const u64 *entry = STATES_ENTRY(*states, slot, stride);
          u64 last = entry[words];
          u32 is_used = (entry[words - 1] & STATES_TOUCHED) != 0;
          are_used |= is_used;
          are_alive |= !is_used;
          if (!is_used && last <= oldest) {
            is_dead = now > last && now - last >= states->timeout;
            if (is_dead || states->evicts) {
              oldest = last;
              found = slot;
              found_tag = tag;
            }
          }
        }
      }
      at = at + 1 == states->groups ? 0 : at + 1;
    }
    if (found == STATES_NONE) {
      return are_used ? STATES_WAITS : are_alive ? STATES_REFUSED : STATES_NONE;
    }
    if (states_claim(states->tags + (u64)(found / 8) * 2, found % 8, found_tag, STATES_BUSY)) {
      counts->expired += is_dead;
      counts->evicted += !is_dead;
      return found;
    }
  }
  return STATES_WAITS;
}

/* Entries of a flow's region. */
FUNCTION u32 states_held(PRIVATE const States *states, u64 hash) { return states->held[states_part(hash, states->regions)]; }

/* Whether a region may become full while so many packets are judged, so that entries must be kept from going for others. */
FUNCTION u32 states_is_scarce(PRIVATE const States *states, u64 hash, u32 packets) {
  return states_held(states, hash) + packets > states->capacity;
}

/*
 * A place for the entry of a flow that has none, whose first packet comes at `now`, and which no other item makes one for; its region had so
 * many before any item of the team began with this round. It may have the entry of another flow, which goes. STATES_REFUSED where there is no
 * room; STATES_WAITS where there may be when entries are no longer in use.
 */
FUNCTION u32 states_place(PRIVATE const States *states, u64 hash, u32 words, u32 stride, u64 now, u32 held, PRIVATE StatesCounts *counts) {
  u32 region = states_part(hash, states->regions);
  u32 first = region * states->groups;
  u32 group = states_home(hash, states->groups);
  u32 slot = STATES_NONE;
  u32 before = add_global(&states->held[region], 1);
  if (before >= states->capacity) {
    slot = states_other(states, first, group, words, stride, now, counts);
    /* Others make entries at this time, which cannot be found yet. */
    slot = slot == STATES_NONE && before != held ? STATES_WAITS : slot;
    if (slot != STATES_NONE) {
      add_global(&states->held[region], 0u - 1u);
    }
  }
  return slot == STATES_NONE ? states_free(states, first, group) : slot;
}

/* Makes the entry in its place, to be published. */
FUNCTION void states_begin(PRIVATE const States *states, u32 slot, PRIVATE const u64 *key, u32 words, u32 stride, u64 now,
                           PRIVATE StatesCounts *counts) {
  GLOBAL u64 *entry = STATES_ENTRY(*states, slot, stride);
  for (u32 i = 0; i + 1 < words; i++) {
    entry[i] = key[i];
  }
  entry[words - 1] = key[words - 1] | STATES_LIVE | STATES_TOUCHED;
  entry[words] = now;
  counts->created += 1;
}

/*
 * Lets an entry that was made be found. After a barrier: an item that looks for a place must not take one, by its tag, that was given to
 * somebody else meanwhile.
 */
FUNCTION void states_publish(PRIVATE const States *states, u64 hash, u32 slot) {
  states_claim(states->tags + (u64)(slot / 8) * 2, slot % 8, STATES_BUSY, states_tag(hash));
}
