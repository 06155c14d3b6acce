/*
 * Flow records: see mod.rs. State: that of cpu.rs, with details or without. Parameters: the longest times since the latest and since the first
 * packet that a record survives; what is added to packets' numbers; whether records of TCP end with their connections, and whether packets in
 * all framings count. Totals: packets, bytes.
 * Others that are counted: packets of other protocols, packets in other framings, packets and bytes without an entry.
 */
#define METER_WORDS 9u
#define METER_KEPT 6u
#define METER_DETAILED_WORDS (METER_WORDS + 2 * METER_KEPT)

#define METER_FIRST 0u
#define METER_LAST 2u
#define METER_PACKETS 4u
#define METER_BYTES 6u
#define METER_REST 8u
#define METER_FROM_A ((u64)1 << 16)
#define METER_NUMBER 17u

/* Words of 64 bits; of those that follow the lower half says it. */
#define METER_IDLE 0u
#define METER_ACTIVE 1u
#define METER_NUMBERS 2u
#define METER_ENDS_WITH_CONNECTION 6u
#define METER_ALL_FRAMINGS 8u

#define TCP_FIN 1u
#define TCP_RST 4u
#define TCP_ACK 16u

/* Details of a direction, by what they would be with a packet alone: see details.rs. */
FUNCTION void meter_add_details(PRIVATE u64 *kept, u32 is_first, PRIVATE const Packet *packet) {
  u64 own[METER_KEPT];
  own[0] = packet->bytes | (u64)packet->bytes << 32;
  for (u32 i = 1; i + 1 < METER_KEPT; i++) {
    own[i] = packet->details[i - 1];
  }
  own[METER_KEPT - 1] = (packet->rest >> 16 & (KEY_FIRST_FRAGMENT | KEY_LATER_FRAGMENT)) != 0;
  if (packet->notes & NOTE_MARKED) {
    own[1] = (own[1] & ~((u64)0xfc << 16)) | (u64)packet_dscp(packet) << 18;
  }
  if (is_first) {
    for (u32 i = 0; i < METER_KEPT; i++) {
      kept[i] = own[i];
    }
    return;
  }
  u32 shortest = (u32)kept[0], longest = (u32)(kept[0] >> 32);
  shortest = packet->bytes < shortest ? packet->bytes : shortest;
  longest = packet->bytes > longest ? packet->bytes : longest;
  kept[0] = shortest | (u64)longest << 32;
  u32 ttl = own[1] & 0xff, lowest = kept[1] & 0xff, highest = kept[1] >> 8 & 0xff;
  lowest = ttl < lowest ? ttl : lowest;
  highest = ttl > highest ? ttl : highest;
  kept[1] = (kept[1] & ~(u64)0xffff) | lowest | highest << 8 | (own[1] & (u64)0xff << 32);
  kept[METER_KEPT - 1] += own[METER_KEPT - 1];
}

/* Why a record ends before a packet of its flow, or 0. */
FUNCTION u32 meter_end(PRIVATE const u64 *state, u64 now, GLOBAL const u32 *parameters) {
  u64 last = larger_64(state[METER_LAST], state[METER_LAST + 1]);
  u64 first = state[METER_FIRST];
  return now > last && now - last > parameter_64(parameters, METER_IDLE)       ? ENDED_IDLE
         : now > first && now - first > parameter_64(parameters, METER_ACTIVE) ? ENDED_ACTIVE
                                                                               : 0;
}

/* Adds a packet to a record, or begins one with it. */
FUNCTION void meter_add(PRIVATE u64 *state, u32 begins, u32 words, PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  if (begins) {
    for (u32 i = 0; i < words; i++) {
      state[i] = 0;
    }
    state[METER_FIRST] = packet->now;
    state[METER_LAST] = packet->now;
    state[METER_REST] = (packet->number + parameter_64(parameters, METER_NUMBERS)) << METER_NUMBER | (packet->from_a ? METER_FROM_A : 0);
  }
  u32 way = (packet->from_a != 0) != ((state[METER_REST] & METER_FROM_A) != 0);
  u32 is_first = state[METER_PACKETS + way] == 0;
  if (words == METER_DETAILED_WORDS) {
    meter_add_details(&state[METER_WORDS + way * METER_KEPT], is_first, packet);
  }
  if (is_first) {
    state[METER_FIRST + way] = packet->now;
  }
  state[METER_LAST + way] = larger_64(state[METER_LAST + way], packet->now);
  state[METER_PACKETS + way] += 1;
  state[METER_BYTES + way] += packet->bytes;
  state[METER_REST] |= (u64)(packet->rest >> 8 & 0xff) << (8 * way);
}

/* Whether a packet of TCP that was added is the last one of its connection: see mod.rs. */
FUNCTION u32 meter_is_over(PRIVATE const u64 *state, PRIVATE const Packet *packet) {
  u32 flags = packet->rest >> 8 & 0xff;
  u32 of_both = (u32)state[METER_REST] & (u32)(state[METER_REST] >> 8);
  return (packet->rest & 0xff) == PROTOCOL_TCP &&
         ((flags & TCP_RST) || ((flags & (TCP_FIN | TCP_ACK)) == TCP_ACK && (of_both & TCP_FIN)));
}

/* One without packets has ended with its connection. */
FUNCTION u32 meter_judge(PRIVATE u64 *state, u32 words, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals) {
  u32 begins = state[METER_PACKETS] == 0;
  u32 why = begins ? 0 : meter_end(state, packet->now, parameters);
  if (why) {
    packet_end(packet, ENDED_BEFORE, why, state, words);
  }
  meter_add(state, begins || why, words, packet, parameters);
  if (parameters[METER_ENDS_WITH_CONNECTION] && meter_is_over(state, packet)) {
    packet_end(packet, ENDED_WITH, ENDED_CONNECTION, state, words);
    for (u32 i = 0; i < words; i++) {
      state[i] = 0;
    }
  }
  totals[0] += 1;
  totals[1] += packet->bytes;
  return VERDICT_PASS;
}

/* A packet for which there is no room is a record by itself. */
FUNCTION u32 meter_judge_without(u32 words, PRIVATE Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {
  if (role != ROLE_MEMBER) {
    u32 is_other_framing = !parameters[METER_ALL_FRAMINGS] && (packet->kind >> RECORD_OTHER_FRAMING & 1);
    add_more(&more[is_other_framing], 1);
    return VERDICT_PASS;
  }
  u64 state[METER_DETAILED_WORDS];
  meter_add(state, 1, words, packet, parameters);
  packet_end(packet, ENDED_BEFORE, ENDED_WITHOUT_ROOM, state, words);
  add_more(&more[2], 1);
  add_more(&more[3], packet->bytes);
  return VERDICT_PASS;
}

#define METER(name, words)                                                                                                            \
  FUNCTION u32 name##_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters,                      \
                           PRIVATE u64 *totals, MORE more) {                                                                          \
    return meter_judge(state, words, packet, parameters, totals);                                                                     \
  }                                                                                                                                   \
  FUNCTION u32 name##_without(PRIVATE Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {                            \
    return meter_judge_without(words, packet, role, parameters, more);                                                                \
  }
METER(meter, METER_WORDS)
METER(detailed_meter, METER_DETAILED_WORDS)
