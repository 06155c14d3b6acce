/*
 * All patterns of a set in a batch of texts that lie one behind the other.
 *
 * Lanes take 16 bytes each, whatever texts they are of. A word of the filter, by a hash of four bytes, tells for the windows at multiples of four
 * whether they may be those of a pattern; bitmaps tell it at every byte for patterns of less than seven. The few places that pass go into a
 * queue that the lanes of a warp share, and are taken out by as many lanes as there are: each looks up the bytes around its place. Keys that
 * may be there go into a second queue, are taken out likewise, and what is found for them is compared with the text. A match alone looks
 * for its text. Matches are gathered by the warp, so that one addition makes room for many of them.
 *
 * The bytes begin at a multiple of 16, and are of any value up to the next one behind them. In another part of the memory stands where each text begins,
 * and where the last one ends. Whatever the memory holds, nothing is read or written beyond what the kernel was given.
 *
 * With FIRST it keeps of each text the match that ends first, and of those the one of the lowest pattern: the largest of what is not its end and its
 * pattern.
 *
 * Defined by the host: FIRST, FOLD, HAS_SPARSE, HAS_DENSE, DENSE_BITS, DENSE_LOCAL, HAS_WHOLE, WHOLE_LOCAL.
 */

/* A place in the batch, and above it what it is: a place that passed is on the grid or at every byte, a key has its kind. */
#define PLACE_BITS 28
#define PLACE_OF(x) ((x) & ((1u << PLACE_BITS) - 1u))
#define AT_EVERY_BYTE (1u << PLACE_BITS)
#define KIND_OF(x) ((x) >> PLACE_BITS)

/* The numbers of kinds, as in index.rs. */
#define BOTH 1u
#define BEFORE 2u
#define AFTER 3u
#define WINDOW 4u
#define WHOLE 5u

/* Kinds on the grid; and those at every byte, where patterns of up to three bytes are looked for as a whole. */
#define ON_GRID 3u
#define PROBES (HAS_WHOLE ? 4u : 3u)

/* What an item says behind the offset of its window and the length of its pattern, 8 bits each, and its kind, 4 bits. */
#define IS_LAST (1u << 20)
#define IGNORES_CASE (1u << 21)
#define IS_BOUNDED (1u << 22)

/* Slots of a bucket, from the first of which on a key is looked for. */
#define BUCKET 4
/* Of the list of a slot: whether another slot with its tag follows. */
#define FOLLOWED (1u << 31)

#define MULTIPLIER 0x9e3779b1u
#define WHOLE_WORDS (1u << 12)
/* Room for as many as there are lanes, and for those that come before they are seen to be as many. */
#define QUEUE (2u * LANES)
#define STAGED (2u * LANES)

/* What the lanes of a warp share. */
typedef struct {
  u32 places[QUEUE];
  u32 keys[QUEUE];
  /* Text, end and pattern of each match. */
  u32 staged[3 * STAGED];
  /* How many, those for which there was no room counted. */
  u32 matched;
} Warp;

/* What a group shares. */
typedef struct {
#if HAS_DENSE && DENSE_LOCAL
  u32 dense[1 << DENSE_BITS];
#endif
#if HAS_WHOLE && WHOLE_LOCAL
  u32 whole[WHOLE_WORDS];
#endif
  Warp warps[GROUP / LANES];
} Shared;

/* What is looked through, and by what. */
typedef struct {
  GLOBAL const u32 *words;
  u32 word_count, len;
  /* Places are counted from the first text on, offsets from so many bytes in front of it. */
  GLOBAL const u32 *offsets;
  u32 begin, texts, skip;
  u64 texts_per_byte;
  GLOBAL const u32 *gate;
  GLOBAL const u64 *slots;
  GLOBAL const u32x4 *items;
  GLOBAL const u32 *bytes;
  GLOBAL const u32 *bounds;
  u32 gate_shift, slot_shift;
  GLOBAL u32 *matches;
  GLOBAL u32 *found;
  u32 room;
  GLOBAL u64 *firsts;
} Search;

FUNCTION u32 word_of(Search search, u32 number) { return number < search.word_count ? search.words[number] : 0; }

/* Four bytes that begin so many bits behind the first of `low`. */
FUNCTION u32 join(u32 low, u32 high, u32 bits) { return bits == 0 ? low : low >> bits | high << (32 - bits); }

FUNCTION u32 bytes_at(Search search, u32 at) {
  return join(word_of(search, at / 4), word_of(search, at / 4 + 1), at % 4 * 8);
}

/* The eight bytes from two in front of a place on, folded. */
FUNCTION u64 around(Search search, u32 at) {
  u32 first = (at + 2) / 4 - 1, bits = (at + 2) % 4 * 8;
  u32 a = word_of(search, first), b = word_of(search, first + 1), c = word_of(search, first + 2);
  return ((u64)join(b, c, bits) << 32 | join(a, b, bits)) | ((u64)FOLD << 32 | FOLD);
}

/* The same as Kind::hash in index.rs. */
FUNCTION u64 hash_of(u64 bytes, u32 kind) {
  u32 bits = kind == BOTH ? 64 : kind <= AFTER ? 48 : kind == WINDOW ? 32 : 8 * (kind - WHOLE);
  u64 key = (kind >= AFTER ? bytes >> 16 : bytes) & ~(u64)0 >> (64 - bits);
  u64 mixed = (key ^ kind * 0xd6e8feb86659fd93) * 0x9e3779b97f4a7c15;
  return (mixed ^ mixed >> 32) * 0xff51afd7ed558ccd;
}

FUNCTION u32 lowest_bit(u32 mask) { return count_ones((mask & (0u - mask)) - 1u); }

/* Bytes with ASCII letters as small ones. */
FUNCTION u32 lower_case(u32 bytes) {
  u32 low = bytes & 0x7f7f7f7fu;
  u32 from_a = low + 0x3f3f3f3fu, behind_z = low + 0x25252525u;
  return bytes | (from_a & ~behind_z & ~bytes & 0x80808080u) >> 2;
}

/* Whether the bytes of the batch from a place on are a pattern. */
FUNCTION int is_equal(Search search, u32 begin, u32 len, GLOBAL const u32 *pattern, u32 ignores_case) {
  u32 number = begin / 4, bits = begin % 4 * 8;
  u32 low = word_of(search, number);
  for (u32 at = 0; at < len; at += 4) {
    u32 high = word_of(search, ++number);
    u32 text = join(low, high, bits);
    u32 differ = (ignores_case ? lower_case(text) : text) ^ pattern[at / 4];
    if (len - at < 4) differ &= (1u << 8 * (len - at)) - 1u;
    if (differ != 0) return 0;
    low = high;
  }
  return 1;
}

/* The last text that begins at or before a place. It is looked for from where it would be if all had one length. */
FUNCTION u32 text_of(Search search, u32 at) {
  u32 guess = (u32)(at * search.texts_per_byte >> 32);
  u32 low = 0, high = search.texts, stride = 1;
  at += search.begin;
  if (guess >= search.texts) guess = search.texts - 1;
  if (search.offsets[guess] <= at) {
    low = guess;
    while (low + stride < search.texts && search.offsets[low + stride] <= at) {
      low += stride;
      stride *= 2;
    }
    if (low + stride < search.texts) high = low + stride;
  } else {
    high = guess;
    while (high > stride && search.offsets[high - stride] > at) {
      high -= stride;
      stride *= 2;
    }
    if (high > stride) low = high - stride;
  }
  while (low + 1 < high) {
    u32 middle = low + (high - low) / 2;
    if (search.offsets[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Takes room for matches. What does not fit 32 bits is carried into a second word. */
FUNCTION u32 take_room(Search search, u32 count) {
  u32 before = add_global(&search.found[0], count);
  if (before + count < before) add_global(&search.found[1], 1);
  return before;
}

FUNCTION void report(Search search, LOCAL Warp *warp, u32 text, u32 end, u32 pattern) {
#if FIRST
  (void)warp;
  max_global_64(&search.firsts[text], ~((u64)end << 32 | pattern));
#else
  u32 at = add_local(&warp->matched, 1);
  if (at < STAGED) {
    warp->staged[3 * at] = text;
    warp->staged[3 * at + 1] = end;
    warp->staged[3 * at + 2] = pattern;
    return;
  }
  at = take_room(search, 1);
  if (at < search.room) {
    search.matches[3 * (u64)at] = text;
    search.matches[3 * (u64)at + 1] = end;
    search.matches[3 * (u64)at + 2] = pattern;
  }
#endif
}

/* Compares the pattern of an item with the text around a place that has its key. */
FUNCTION void compare(Search search, LOCAL Warp *warp, u32 at, u32 kind, u32x4 item) {
  u32 offset = item.w & 255, len = item.w >> 8 & 255;
  u32 begin = at - offset, end = begin + len;
  /* A tag of another kind may be the same, and what is in front of the batch begins beyond its end. */
  if ((item.w >> 16 & 15) != kind || offset > at || end > search.len) return;
  /* At that end of the pattern which the window is farther from. */
  u32 checked = 2 * offset + 4 > len ? begin : end - 4;
  if (len >= 4 && (bytes_at(search, checked) | FOLD) != item.z) return;
  if (!is_equal(search, begin, len, search.bytes + item.y, item.w & IGNORES_CASE)) return;
  u32 text = text_of(search, begin);
  u32 first = search.offsets[text];
  begin += search.begin;
  end += search.begin;
  if (begin < first || begin - first < search.skip || end > search.offsets[text + 1]) return;
  if (item.w & IS_BOUNDED) {
    u32 least = search.bounds[2 * (u64)item.x], depth = search.bounds[2 * (u64)item.x + 1];
    u32 before = first + search.skip;
    if (begin - before < least || end - before > (u64)least + depth) return;
  }
  report(search, warp, text, end - first, item.x);
}

/* Looks a key up, and compares what is found. */
FUNCTION void look_up(Search search, LOCAL Warp *warp, u32 key) {
  u32 at = PLACE_OF(key), kind = KIND_OF(key);
  u64 hash = hash_of(around(search, at), kind);
  u32 tag = (u32)hash | 1, slot = (u32)(hash >> search.slot_shift) / BUCKET * BUCKET;
  u32 last_slot = (u32)(((u64)1 << (64 - search.slot_shift)) - 1);
  u32 list = 0, is_followed = 1, is_in_list = 0;
  for (;;) {
    if (is_in_list) {
      u32x4 item = search.items[list++];
      compare(search, warp, at, kind, item);
      if (item.w & IS_LAST) is_in_list = 0;
    } else if (is_followed) {
      u64 there = search.slots[slot];
      slot = (slot + 1) & last_slot;
      if ((u32)there == 0) return;
      if ((u32)there == tag) {
        list = (u32)(there >> 32);
        is_followed = list & FOLLOWED;
        list &= ~FOLLOWED;
        is_in_list = 1;
      }
    } else {
      return;
    }
  }
}

/* Writes the matches that the warp has, where they are many, or the last ones. */
FUNCTION void write_matches(Search search, LOCAL Warp *warp, int all) {
  u32 count = warp->matched < STAGED ? warp->matched : STAGED;
  if (count < LANES && !(all && count > 0)) return;
  u32 first = 0;
  if (lane() == 0) first = take_room(search, count);
  first = lanes_read(first, 0);
  for (u32 i = lane(); i < 3 * count; i += LANES) {
    u32 to = first + i / 3;
    if (to < search.room) search.matches[3 * (u64)to + i % 3] = warp->staged[i];
  }
  sync_lanes();
  if (lane() == 0) warp->matched = 0;
  sync_lanes();
}

/* The kind that a place is probed for as its first, second, ... one. */
FUNCTION u32 kind_of(u32 place, u32 number) {
  if (!(place & AT_EVERY_BYTE)) return BOTH + number;
  return number == 0 ? WINDOW : WHOLE + number;
}

/* Which kinds of keys may be at a place that passed, a bit for each probe. */
FUNCTION u32 probe(Search search, u32 place) {
  u32 is_dense = place & AT_EVERY_BYTE, maybe = 0;
  u64 bytes = around(search, PLACE_OF(place));
  for (u32 number = 0; number < PROBES; number++) {
    u32 kind = kind_of(place, number);
    u64 bit = hash_of(bytes, kind) >> search.gate_shift;
    if (is_dense ? HAS_WHOLE || number == 0 : number < ON_GRID) maybe |= (search.gate[bit >> 5] >> (bit & 31) & 1) << number;
  }
  return maybe;
}

/*
 * Looks up so many of the places that passed, and then of the keys that may be there as many as there are lanes, or all. Returns how many keys
 * are left.
 */
FUNCTION u32 work_off(Search search, LOCAL Warp *warp, u32 first, u32 count, u32 keys, int all) {
  sync_lanes();
  u32 place = lane() < count ? warp->places[first + lane()] : 0;
  u32 maybe = lane() < count ? probe(search, place) : 0;
  for (;;) {
    u32 some = ballot(maybe != 0);
    if (some == 0 && !(all && keys > 0)) return keys;
    if (maybe != 0) {
      u32 number = lowest_bit(maybe);
      warp->keys[keys + lanes_below(some)] = PLACE_OF(place) | kind_of(place, number) << PLACE_BITS;
      maybe &= maybe - 1;
    }
    keys += count_ones(some);
    if (keys >= LANES || some == 0) {
      sync_lanes();
      u32 taken = keys < LANES ? keys : LANES;
      keys -= taken;
      if (lane() < taken) look_up(search, warp, warp->keys[keys + lane()]);
      sync_lanes();
      write_matches(search, warp, 0);
    }
  }
}

/* A bit: whether a word of the filter excludes a window between these two. */
FUNCTION u32 excluded(GLOBAL const u32 *RESTRICT filter, u32 shift, u32 before, u32 window, u32 behind) {
  u32 word = filter[window * MULTIPLIER >> shift];
  return (word >> (before >> 24 & 15) | word >> ((behind & 15) | 16)) & 1;
}

FUNCTION u32x4 chunk_of(GLOBAL const u32x4 *RESTRICT batch, u32 chunks, u32 number) {
  u32x4 chunk;
  chunk.x = chunk.y = chunk.z = chunk.w = 0;
  if (number < chunks) chunk = batch[number];
  chunk.x |= FOLD;
  chunk.y |= FOLD;
  chunk.z |= FOLD;
  chunk.w |= FOLD;
  return chunk;
}

#if HAS_DENSE
#define DENSE(window)                                                             \
  do {                                                                            \
    u32 hash = (window) * MULTIPLIER;                                             \
    u32 word = dense_words[hash >> (32 - DENSE_BITS)];                            \
    mask = mask << 1 | word << (hash >> (27 - DENSE_BITS) & 31) >> 31;            \
  } while (0)
#else
#define DENSE(window) mask <<= 1
#endif

/* By two bytes and a bit of the third. */
#if HAS_WHOLE
#define PART(window) mask |= whole_words[(window) >> 5 & (WHOLE_WORDS - 1)] >> ((window) & 31) & 1
#else
#define PART(window) (void)0
#endif

#define AT_ONE(window) \
  DENSE(window);       \
  PART(window)

/* The four windows that begin in a word. */
#define AT_FOUR(word, behind)                \
  AT_ONE(word);                              \
  AT_ONE((word) >> 8 | (behind) << 24);      \
  AT_ONE((word) >> 16 | (behind) << 16);     \
  AT_ONE((word) >> 24 | (behind) << 8)

KERNEL void find(FIND_PARAMETERS) {
  LOCAL_MEMORY(Shared, group);
#if HAS_DENSE
#if DENSE_LOCAL
  for (u32 i = local_index(); i < 1u << DENSE_BITS; i += GROUP) group->dense[i] = dense[i];
  LOCAL const u32 *dense_words = group->dense;
#else
  GLOBAL const u32 *RESTRICT dense_words = dense;
#endif
#endif
#if HAS_WHOLE
#if WHOLE_LOCAL
  for (u32 i = local_index(); i < WHOLE_WORDS; i += GROUP) group->whole[i] = whole[i];
  LOCAL const u32 *whole_words = group->whole;
#else
  GLOBAL const u32 *RESTRICT whole_words = whole;
#endif
#endif
  LOCAL Warp *warp = &group->warps[lanes_index()];
  if (lane() == 0) warp->matched = 0;
  barrier_group();

  GLOBAL const u32x4 *RESTRICT batch = memory + begin / 16;
  u32 chunks = (len + 15) / 16;
  Search search;
  search.words = (GLOBAL const u32 *)batch;
  search.word_count = 4 * chunks;
  search.len = len;
  search.offsets = (GLOBAL const u32 *)memory + offsets / 4;
  search.begin = begin;
  search.texts = texts;
  search.skip = skip;
  search.texts_per_byte = texts_per_byte;
  search.gate = gate;
  search.slots = slots;
  search.items = items;
  search.bytes = bytes;
  search.bounds = bounds;
  search.gate_shift = gate_shift;
  search.slot_shift = slot_shift;
  search.matches = matches;
  search.found = found;
  search.room = room;
  search.firsts = firsts;

  /* Warps take pieces of so many steps in turns, so that a part of the batch with many matches is spread over all. */
  u32 steps = (chunks + LANES - 1) / LANES;
  u32 warps = group_count() * (GROUP / LANES);
  u32 step = (group_index() * (GROUP / LANES) + lanes_index()) * piece;
  u32 piece_end = step + piece;
  u32 places = 0, keys = 0;
  u32x4 text = chunk_of(batch, chunks, step * LANES + lane());
  u32 previous = word_of(search, step * LANES * 4 - 1) | FOLD;
  for (;;) {
    int is_done = step >= steps;
    u32 chunk = step * LANES + lane(), mask = 0;
    if (!is_done) {
      u32x4 next = chunk_of(batch, chunks, chunk + LANES);
      /* Of the neighbours; the first lane of the next step is that of the last one, and the other way round. */
      u32 behind = lanes_read(lane() == 0 ? next.x : text.x, (lane() + 1) % LANES);
#if HAS_DENSE || HAS_WHOLE
      AT_FOUR(text.x, text.y);
      AT_FOUR(text.y, text.z);
      AT_FOUR(text.z, text.w);
      AT_FOUR(text.w, behind);
#endif
#if HAS_SPARSE
      u32 before = lanes_read(lane() == LANES - 1 ? previous : text.w, (lane() + LANES - 1) % LANES);
      u32 out = excluded(filter, filter_shift, before, text.x, text.y);
      out |= excluded(filter, filter_shift, text.x, text.y, text.z) << 1;
      out |= excluded(filter, filter_shift, text.y, text.z, text.w) << 2;
      out |= excluded(filter, filter_shift, text.z, text.w, behind) << 3;
      mask |= (out ^ 15) << 16;
#endif
      /* Not all sets look at neighbours. */
      (void)previous, (void)behind;
      previous = text.w;
      text = next;
      step++;
      if (step == piece_end) {
        step += (warps - 1) * piece;
        piece_end = step + piece;
        text = chunk_of(batch, chunks, step * LANES + lane());
        previous = word_of(search, step * LANES * 4 - 1) | FOLD;
      }
    }
    for (;;) {
      u32 some = ballot(mask != 0);
      if (mask != 0) {
        u32 bit = lowest_bit(mask);
        u32 place = chunk * 16 + (bit < 16 ? 15 - bit : (bit - 16) * 4);
        warp->places[places + lanes_below(some)] = bit < 16 ? place | AT_EVERY_BYTE : place;
        mask &= mask - 1;
      }
      places += count_ones(some);
      if (places >= LANES || is_done) {
        u32 count = places < LANES ? places : LANES;
        places -= count;
        keys = work_off(search, warp, places, count, keys, is_done);
      }
      if (some == 0) break;
    }
    if (is_done) break;
  }
  write_matches(search, warp, 1);
}
