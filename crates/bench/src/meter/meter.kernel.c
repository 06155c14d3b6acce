/*
 * A flow meter on a device: headers of a burst to flow records in the device's memory, and these to a buffer.
 *
 * Each item takes a packet: parses the first bytes of its frame, makes the flow's key, which is the same for both directions, hashes it, finds or makes
 * the flow's entry, and adds the packet to it by atomics. Items run in any order, in any number of launches at a time: sums, the latest time and the OR
 * of flags do not depend on it, and the first packet of each direction is the one with the lowest number.
 *
 * A table is entries, open addressing: a flow stands in the first free one of PROBES from that of its hash on, and never goes. So where a packet finds no
 * entry, none of its flow does: such packets, and those whose headers go on behind the slice, are handed back to the host by their numbers, none is lost.
 *
 * An entry is a head and totals (declared in Rust). The head's first word is its state, 0 while it is free; then come the key's words, ports and
 * addresses, each XORed with KEY_MASK: so a word that is 0 was most likely not written yet, and one that is not 0 was.
 *
 * Before this text stand those of dissect.kernel.c and hashes.kernel.c. Defined by the host: SLICE, bytes of a frame, a multiple of 16; PARSE_LOCAL,
 * whether slices are copied to the group's memory first; KEYS, packets of an item at a time; HASH, a function of hashes.kernel.c; STAGE, where an item
 * ends, for measurements; PROBES; METER_IS_METERED; COUNT_..., places of counters; METER_PARAMETERS and others.
 */

#define STAGE_PARSE 1
#define STAGE_HASH 2
#define STAGE_FIND 3

/* A state: the flags of packets from a and from b, the protocol, six bits of the hash. */
#define STATE_PROTOCOL 16
#define STATE_PRINT 24
#define STATE_CLAIMED 0x40000000u
#define STATE_READY 0x80000000u
/* What is the flow's and does not change. */
#define STATE_TAG 0x7fff0000u

#define KEY_MASK 0x9e3779b9u

#define WORDS_V4 3u
#define WORDS_V6 9u

#define PIECES (SLICE / 16)
/* In place of a frame's length: the host must look at it. */
#define NO_LEN 0xffffu

/* What the first item of a group tells the others: a ticket, and whether to go on. */
typedef struct {
  u32 said[2];
} Said;

#if PARSE_LOCAL
/* An odd number of words from a lane's slice to the next, so that lanes read different banks. */
#define SLICE_WORDS (PIECES * 4 + 1)

typedef struct {
  u32 slices[LANES][SLICE_WORDS];
} Warp;

typedef struct {
  Warp warps[GROUP / LANES];
  u32 said[2];
} Group;
#endif

/* A packet that is counted, or 0 words. */
typedef struct {
  u32 words;
  u32 key[WORDS_V6 + 1];
  u32 bytes;
  /* 0 from endpoint a, 1 from b. */
  u32 way;
  u32 flags;
  u32 hash;
} Packet;

typedef struct {
  u32 counted, rejected, protocol, flows_v4, flows_v6, full;
} Tally;

/* Whether endpoint a, the lower one by address and then port, sent a packet. */
FUNCTION u32 is_from_a(PRIVATE const Headers *headers, u32 source_port, u32 destination_port) {
  for (u32 i = 0; i < 4; i++) {
    if (headers->source[i] != headers->destination[i]) {
      return headers->source[i] < headers->destination[i];
    }
  }
  return source_port <= destination_port;
}

/* The packet of a frame; whether the host must look at it. */
FUNCTION u32 parse(HEADERS_SPACE const u8 *frame, u32 len, u32 link, PRIVATE Packet *packet, PRIVATE Tally *tally) {
  Headers headers = dissect(frame, len < SLICE ? len : SLICE, len, link);
  packet->words = 0;
  if (headers.kind == HEADERS_BEYOND) {
    return 1;
  }
  u32 protocol = headers.rest & 0xff;
  if (headers.kind == HEADERS_REJECTED || !METER_IS_METERED(protocol)) {
    tally->rejected += headers.kind == HEADERS_REJECTED;
    tally->protocol += headers.kind != HEADERS_REJECTED;
    return 0;
  }
  u32 has_ports = headers.rest >> 16 & KEY_PORTS;
  u32 source_port = has_ports ? headers.ports & 0xffff : 0;
  u32 destination_port = has_ports ? headers.ports >> 16 : 0;
  u32 from_a = is_from_a(&headers, source_port, destination_port);
  packet->key[0] = from_a ? source_port | destination_port << 16 : destination_port | source_port << 16;
  if (headers.kind == HEADERS_V4) {
    packet->words = WORDS_V4;
    packet->key[1] = from_a ? headers.source[0] : headers.destination[0];
    packet->key[2] = from_a ? headers.destination[0] : headers.source[0];
    packet->key[3] = protocol;
  } else {
    packet->words = WORDS_V6;
    for (u32 i = 0; i < 4; i++) {
      packet->key[1 + i] = from_a ? headers.source[i] : headers.destination[i];
      packet->key[5 + i] = from_a ? headers.destination[i] : headers.source[i];
    }
    packet->key[WORDS_V6] = protocol;
  }
  packet->bytes = headers.ip_bytes;
  packet->way = !from_a;
  packet->flags = headers.rest >> 8 & 0xff;
  tally->counted++;
  return 0;
}

/* Whether the words of a key stand in a head of which the first four words were read. */
FUNCTION u32 is_key(GLOBAL const u32 *head, u32x4 first, PRIVATE const u32 *key, u32 words) {
  u32 differ = (first.y ^ key[0]) | (first.z ^ key[1]) | (first.w ^ key[2]);
  if (words == WORDS_V6) {
    u32x4 second = load_shared((GLOBAL const u32x4 *)(head + 4));
    u32x4 third = load_shared((GLOBAL const u32x4 *)(head + 8));
    differ |= (second.x ^ key[3]) | (second.y ^ key[4]) | (second.z ^ key[5]) | (second.w ^ key[6]);
    differ |= (third.x ^ key[7]) | (third.y ^ key[8]);
  }
  return differ == 0;
}

/*
 * Finds or makes a flow's entry, `bytes` of which a table has in each of its slots: its number, or NO_SLOT, and its state. `key` is XORed, and
 * `is_new` counts entries that were made.
 */
#define NO_SLOT 0xffffffffu

FUNCTION u32 find_or_insert(GLOBAL u8 *table, u32 slots, u32 bytes, PRIVATE const u32 *key, u32 words, u32 tag, u32 hash,
                            PRIVATE u32 *state, PRIVATE u32 *is_new) {
  u32 may_be_unwritten = 0;
  for (u32 i = 0; i < words; i++) {
    may_be_unwritten |= key[i] == 0;
  }
  u32 slot = multiply_high(hash, slots);
  u32 probes = 0;
  while (probes < PROBES) {
    GLOBAL u32 *head = (GLOBAL u32 *)(table + (u64)slot * bytes);
    u32x4 first = load_shared((GLOBAL const u32x4 *)head);
    if (first.x == 0) {
      if (swap_global(head, 0, tag) == 0) {
        for (u32 i = 0; i < words; i++) {
          *(volatile GLOBAL u32 *)(head + 1 + i) = key[i];
        }
        fence_global();
        or_global(head, STATE_READY);
        *is_new += 1;
        *state = tag;
        return slot;
      }
      /* Another item was first. */
      continue;
    }
    if ((first.x & STATE_TAG) == tag) {
      u32 is_same = is_key(head, first, key, words);
      if (!is_same || may_be_unwritten) {
        if (!(first.x & STATE_READY)) {
          continue;
        }
        /* The key was written before the state that was read, but may have been read before it. */
        fence_global();
        is_same = is_key(head, load_shared((GLOBAL const u32x4 *)head), key, words);
      }
      if (is_same) {
        *state = first.x;
        return slot;
      }
    }
    slot = slot + 1 == slots ? 0 : slot + 1;
    probes++;
  }
  return NO_SLOT;
}

/* Adds a packet to its flow's entry; whether there was no room for it. */
FUNCTION u32 add_packet(GLOBAL u8 *table, u32 slots, u32 head_bytes, PRIVATE Packet *packet, u32 words, u32 number, u64 time,
                        PRIVATE u32 *is_new) {
  u32 bytes = head_bytes + (u32)sizeof(Totals);
  u32 tag = packet->key[words] << STATE_PROTOCOL | (packet->hash & 0x3fu) << STATE_PRINT | STATE_CLAIMED;
  for (u32 i = 0; i < words; i++) {
    packet->key[i] ^= KEY_MASK;
  }
  u32 state;
  u32 slot = find_or_insert(table, slots, bytes, packet->key, words, tag, packet->hash, &state, is_new);
  if (slot == NO_SLOT) {
    return 1;
  }
#if STAGE != STAGE_FIND
  GLOBAL u8 *entry = table + (u64)slot * bytes;
  GLOBAL Totals *totals = (GLOBAL Totals *)(entry + head_bytes);
  u32 way = packet->way;
  u32 flags = packet->flags << way * 8;
  if (flags & ~state) {
    or_global((GLOBAL u32 *)entry, flags);
  }
  /* So that 0 is none, and the lowest number the largest. */
  u32 first = 0xffffffffu - number;
  if (*(volatile GLOBAL u32 *)&totals->first[way] < first) {
    max_global(&totals->first[way], first);
  }
  add_global(&totals->packets[way], 1);
  add_global_64(&totals->bytes[way], packet->bytes);
  max_global_64(&totals->last[way], time);
#endif
  return 0;
}

FUNCTION void prefetch_entry(GLOBAL u8 *table, u32 slots, u32 bytes, u32 hash) {
  prefetch_global((GLOBAL const u8 *)(table + (u64)multiply_high(hash, slots) * bytes));
}

/* Hands a packet back by its number. */
FUNCTION void hand_back(GLOBAL u32 *counts, GLOBAL u32 *handed, u32 room, u32 number) {
  u32 at = add_global(&counts[COUNT_HANDED], 1);
  if (at < room) {
    handed[at] = number;
  }
}

/* What a kernel was given, and what an item counted. */
typedef struct {
  GLOBAL const u8 *frames;
  GLOBAL const u16 *lens;
  GLOBAL const u64 *times;
  u32 link;
  u64 seed;
  GLOBAL u8 *table_v4;
  GLOBAL u8 *table_v6;
  u32 slots_v4;
  u32 slots_v6;
  GLOBAL u32 *counts;
  GLOBAL u32 *handed;
  u32 handed_room;
  Tally tally;
  u32 sink;
} Meter;

#if PARSE_LOCAL
#define WARP LOCAL Warp *
#else
/* Nothing is kept in the group's memory. */
#define WARP u32
#endif

/*
 * Meters KEYS packets of each lane: those from place `at` on, before `end`. Their numbers are `number` more than their places.
 */
FUNCTION void meter_lanes(PRIVATE Meter *meter, WARP warp, u32 at, u32 end, u32 number) {
  Packet packets[KEYS];
  u64 times[KEYS];
  for (u32 k = 0; k < KEYS; k++) {
    u32 begin = at + k * LANES;
    u32 index = begin + lane();
#if PARSE_LOCAL
    u32x4 pieces[PIECES];
    for (u32 i = 0; i < PIECES; i++) {
      u32 piece = i * LANES + lane();
      if (begin + piece / PIECES < end) {
        pieces[i] = *(GLOBAL const u32x4 *)(meter->frames + (u64)begin * SLICE + piece * 16);
      }
    }
#endif
    u32 len = 0;
    times[k] = 0;
    if (index < end) {
      len = meter->lens[index];
      times[k] = meter->times[index];
    }
#if PARSE_LOCAL
    for (u32 i = 0; i < PIECES; i++) {
      u32 piece = i * LANES + lane();
      if (begin + piece / PIECES < end) {
        LOCAL u32 *to = &warp->slices[piece / PIECES][piece % PIECES * 4];
        to[0] = pieces[i].x;
        to[1] = pieces[i].y;
        to[2] = pieces[i].z;
        to[3] = pieces[i].w;
      }
    }
    sync_lanes();
#endif
    packets[k].words = 0;
    if (index < end) {
#if PARSE_LOCAL
      LOCAL const u8 *frame = (LOCAL const u8 *)warp->slices[lane()];
#else
      GLOBAL const u8 *frame = meter->frames + (u64)index * SLICE;
#endif
      if (len == NO_LEN || parse(frame, len, meter->link, &packets[k], &meter->tally)) {
        hand_back(meter->counts, meter->handed, meter->handed_room, number + index);
      }
    }
#if PARSE_LOCAL
    sync_lanes();
#endif
  }
#if STAGE != STAGE_PARSE
  for (u32 k = 0; k < KEYS; k++) {
    if (packets[k].words == WORDS_V4) {
      packets[k].hash = HASH(packets[k].key, WORDS_V4 + 1, meter->seed);
    } else if (packets[k].words == WORDS_V6) {
      packets[k].hash = HASH(packets[k].key, WORDS_V6 + 1, meter->seed);
    }
#if KEYS > 1 && STAGE > STAGE_HASH
    if (packets[k].words == WORDS_V4) {
      prefetch_entry(meter->table_v4, meter->slots_v4, (u32)sizeof(EntryV4), packets[k].hash);
    } else if (packets[k].words == WORDS_V6) {
      prefetch_entry(meter->table_v6, meter->slots_v6, (u32)sizeof(EntryV6), packets[k].hash);
    }
#endif
  }
#endif
  for (u32 k = 0; k < KEYS; k++) {
    u32 packet_number = number + at + k * LANES + lane();
#if STAGE <= STAGE_HASH
    if (packets[k].words != 0) {
      meter->sink ^= packets[k].key[0] ^ packets[k].key[1] ^ packets[k].key[2] ^ packets[k].bytes ^ packets[k].way ^
                     packets[k].flags ^ (u32)times[k] ^ packet_number;
#if STAGE == STAGE_HASH
      meter->sink ^= packets[k].hash;
#endif
    }
#else
    u32 is_full = 0;
    if (packets[k].words == WORDS_V4) {
      is_full = add_packet(meter->table_v4, meter->slots_v4, HEAD_V4, &packets[k], WORDS_V4, packet_number, times[k],
                           &meter->tally.flows_v4);
    } else if (packets[k].words == WORDS_V6) {
      is_full = add_packet(meter->table_v6, meter->slots_v6, HEAD_V6, &packets[k], WORDS_V6, packet_number, times[k],
                           &meter->tally.flows_v6);
    }
    if (is_full) {
      meter->tally.full++;
      meter->tally.counted--;
      hand_back(meter->counts, meter->handed, meter->handed_room, packet_number);
    }
#endif
  }
}

/* A meter of what both kernels are given. */
#define METER_OF_PARAMETERS(meter)                                                                         \
  Meter meter;                                                                                             \
  meter.frames = frames, meter.lens = lens, meter.times = times, meter.link = link, meter.seed = seed;     \
  meter.table_v4 = (GLOBAL u8 *)table_v4, meter.slots_v4 = slots_v4;                                       \
  meter.table_v6 = (GLOBAL u8 *)table_v6, meter.slots_v6 = slots_v6;                                       \
  meter.counts = counts, meter.handed = handed, meter.handed_room = handed_room, meter.sink = 0;           \
  meter.tally.counted = meter.tally.rejected = meter.tally.protocol = 0;                                   \
  meter.tally.flows_v4 = meter.tally.flows_v6 = meter.tally.full = 0

/* Adds what the items counted. */
FUNCTION void add_tally(PRIVATE const Meter *meter) {
#if STAGE <= STAGE_HASH
  /* What is not used would not be computed. */
  if (meter->sink == 1) {
    add_global(&meter->counts[COUNT_SINK], 1);
  }
#endif
  u32 sums[6];
  sums[0] = lanes_sum(meter->tally.counted);
  sums[1] = lanes_sum(meter->tally.rejected);
  sums[2] = lanes_sum(meter->tally.protocol);
  sums[3] = lanes_sum(meter->tally.full);
  sums[4] = lanes_sum(meter->tally.flows_v4);
  sums[5] = lanes_sum(meter->tally.flows_v6);
  if (lane() == 0) {
    for (u32 i = 0; i < 6; i++) {
      if (sums[i] != 0) {
        add_global(&meter->counts[COUNT_COUNTED + i], sums[i]);
      }
    }
  }
}

/*
 * Meters `count` packets whose slices, lengths and times stand one after the other, from place `from` on. They have numbers from `number` on, by which it
 * is known which came first.
 */
KERNEL void meter_burst(METER_PARAMETERS) {
#if PARSE_LOCAL
  LOCAL_MEMORY(Group, group);
  LOCAL Warp *warp = &group->warps[lanes_index()];
#else
  u32 warp = 0;
#endif
  METER_OF_PARAMETERS(meter);
  u32 end = from + count;
  u32 step = group_count() * GROUP * KEYS;
  for (u32 start = (group_index() * GROUP + lanes_index() * LANES) * KEYS; start < count; start += step) {
    meter_lanes(&meter, warp, from + start, end, number - from);
  }
  add_tally(&meter);
}

/*
 * Stays: takes GROUP * KEYS packets at a time, in order, as soon as the host has published the burst that they are in, and tells when all packets of a
 * burst are metered. `news` is how many bursts are published, or all ones: leave.
 */
KERNEL void meter_resident(RESIDENT_PARAMETERS) {
#if PARSE_LOCAL
  LOCAL_MEMORY(Group, group);
  LOCAL Warp *warp = &group->warps[lanes_index()];
  LOCAL u32 *said = group->said;
#else
  LOCAL_MEMORY(Said, group);
  LOCAL u32 *said = group->said;
  u32 warp = 0;
#endif
  METER_OF_PARAMETERS(meter);
  u32 of_burst = (burst + GROUP * KEYS - 1) / (GROUP * KEYS);
  u32 goes_on = 1;
  while (goes_on) {
    if (local_index() == 0) {
      u32 ticket = add_global(&tickets[bursts], 1);
      u32 mine = ticket / of_burst;
      said[0] = ticket;
      said[1] = 0;
      for (u32 tries = 0; mine < bursts && tries < patience; tries++) {
        u64 published = load_acquire_64(news);
        if (published == ~(u64)0) {
          break;
        }
        if (published > mine) {
          said[1] = 1;
          break;
        }
      }
    }
    barrier_group();
    u32 ticket = said[0];
    goes_on = said[1];
    barrier_group();
    if (goes_on) {
      u32 mine = ticket / of_burst;
      u32 begin = mine * burst;
      u32 end = count - begin < burst ? count : begin + burst;
      u32 at = begin + ticket % of_burst * GROUP * KEYS + lanes_index() * LANES * KEYS;
      if (at < end) {
        meter_lanes(&meter, warp, at, end, 0);
      }
      fence_shared();
      barrier_group();
      if (local_index() == 0 && add_global(&tickets[mine], 1) + 1 == of_burst) {
        fence_shared();
        store_shared_64(&told[mine], 1);
      }
    }
  }
  add_tally(&meter);
}

/* Copies the entries of a table that hold flows to `out`, one after the other in any order, `quads` times 16 bytes each; counts them in counts[which]. */
KERNEL void emit(EMIT_PARAMETERS) {
  u32 step = group_count() * GROUP;
  for (u32 start = group_index() * GROUP + lanes_index() * LANES; start < slots; start += step) {
    u32 slot = start + lane();
    u32x4 first;
    first.x = 0;
    if (slot < slots) {
      first = table[(u64)slot * quads];
    }
    u32 all = ballot(first.x != 0);
    u32 base = 0;
    if (lane() == 0 && all != 0) {
      base = add_global(&counts[which], count_ones(all));
    }
    base = lanes_read(base, 0);
    u32 at = base + lanes_below(all);
    if (first.x != 0 && at < room) {
      out[(u64)at * quads] = first;
      for (u32 i = 1; i < quads; i++) {
        out[(u64)at * quads + i] = table[(u64)slot * quads + i];
      }
    }
  }
}

/* Hashes keys of `words` words, 4 or 10. */
KERNEL void hash_keys(HASH_PARAMETERS) {
  u32 step = group_count() * GROUP;
  for (u32 i = group_index() * GROUP + local_index(); i < count; i += step) {
    u32 key[WORDS_V6 + 1];
    for (u32 word = 0; word <= WORDS_V6; word++) {
      key[word] = word < words ? keys[(u64)i * words + word] : 0;
    }
    hashes[i] = words == WORDS_V4 + 1 ? HASH(key, WORDS_V4 + 1, seed) : HASH(key, WORDS_V6 + 1, seed);
  }
}
