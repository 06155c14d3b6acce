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

/* Details of a direction, as they would be with a packet alone: see details.rs. */
FUNCTION void meter_details(PRIVATE const Packet *packet, PRIVATE u64 *own) {
  own[0] = packet->bytes | (u64)packet->bytes << 32;
  for (u32 i = 1; i + 1 < METER_KEPT; i++) {
    own[i] = packet->details[i - 1];
  }
  own[METER_KEPT - 1] = (packet->rest >> 16 & (KEY_FIRST_FRAGMENT | KEY_LATER_FRAGMENT)) != 0;
  if (packet->notes & NOTE_MARKED) {
    own[1] = (own[1] & ~((u64)0xfc << 16)) | (u64)packet_dscp(packet) << 18;
  }
}

/* Adds a packet to them. */
FUNCTION void meter_add_details(PRIVATE u64 *kept, u32 is_first, PRIVATE const Packet *packet) {
  u64 own[METER_KEPT];
  meter_details(packet, own);
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

/* The same with a state of a flow group. */
FUNCTION void meter_judge_one(LOCAL u64 *kept, u32 words, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals) {
  u64 state[METER_DETAILED_WORDS];
  for (u32 i = 0; i < words; i++) {
    state[i] = kept[i];
  }
  meter_judge(state, words, packet, parameters, totals);
  for (u32 i = 0; i < words; i++) {
    kept[i] = state[i];
  }
}

/* Adds packets of a flow group, all of one direction, to the details of that, which may begin with them. */
FUNCTION void meter_group_details(PRIVATE FlowGroup *group, u32 which, u32 begins, PRIVATE const Packet *packet, LOCAL u64 *kept) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  u32 item = team_item(team);
  u32 first = team_first(meeting, team, which);
  if (first == EMPTY) {
    return;
  }
  u64 own[METER_KEPT];
  for (u32 i = 0; i < METER_KEPT; i++) {
    own[i] = 0;
  }
  if (which) {
    meter_details(packet, own);
  }
  u64 longest = team_largest(meeting, team, which ? own[0] >> 32 : 0);
  u64 shortest = ~team_largest(meeting, team, which ? ~(own[0] & 0xffffffff) : 0);
  u64 highest = team_largest(meeting, team, which ? own[1] & 0xff : 0);
  u64 lowest = ~team_largest(meeting, team, which ? ~(own[1] & 0xff) : 0);
  u64 fragments = team_sum(meeting, team, own[METER_KEPT - 1]);
  if (item == 0) {
    group->price[0] = 0;
  }
  if (begins && item == first) {
    for (u32 i = 0; i < METER_KEPT; i++) {
      kept[i] = own[i];
    }
    kept[METER_KEPT - 1] = 0;
  }
  team_sync(team);
  or_local(&group->price[0], (u32)(own[1] >> 32) & 0xff);
  team_sync(team);
  if (item == 0) {
    u64 least = kept[0] & 0xffffffff, most = kept[0] >> 32;
    kept[0] = (shortest < least ? shortest : least) | larger_64(longest, most) << 32;
    least = kept[1] & 0xff;
    most = kept[1] >> 8 & 0xff;
    u64 ttls = (lowest < least ? lowest : least) | larger_64(highest, most) << 8;
    kept[1] = (kept[1] & ~(u64)0xffff) | ttls | (u64)group->price[0] << 32;
    kept[METER_KEPT - 1] += fragments;
  }
  team_sync(team);
}

/*
 * Packets of one flow. The first one may begin a record. Where no record ends with the others, or before one of them, these are added up; else they
 * are judged one after the other.
 */
FUNCTION void meter_judge_group(PRIVATE FlowGroup *group, u32 words, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters,
                                PRIVATE u64 *totals) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  LOCAL u64 *state = group->state;
  u32 item = team_item(team);
  if (item == group->first) {
    meter_judge_one(state, words, packet, parameters, totals);
  }
  u32 is_left = passes && item != group->first;
  team_sync(team);
  u64 last = larger_64(state[METER_LAST], state[METER_LAST + 1]);
  u64 first = state[METER_FIRST];
  u64 rest = state[METER_REST];
  u32 is_over = state[METER_PACKETS] == 0;
  u32 begins_back = state[METER_PACKETS + 1] == 0;
  u32 flags = is_left ? packet->rest >> 8 & 0xff : 0;
  u32 way = is_left && (packet->from_a != 0) != ((rest & METER_FROM_A) != 0);
  u64 now = is_left ? packet->now : 0;
  u64 latest;
  u64 before = larger_64(team_before(meeting, team, 0, now, &latest), last);
  u32 is_late = now > before && now - before > parameter_64(parameters, METER_IDLE);
  u32 is_old = now > first && now - first > parameter_64(parameters, METER_ACTIVE);
  u32 may_end = parameters[METER_ENDS_WITH_CONNECTION] && ((flags & (TCP_FIN | TCP_RST)) || (rest & rest >> 8 & TCP_FIN));
  if (team_any(meeting, team, is_over || (is_left && (is_late || is_old || may_end)))) {
    for (u32 turn = 0; turn < team->size; turn += LANES) {
      if (item - lane() == turn) {
        for (u32 of_lanes = 0; of_lanes < LANES; of_lanes++) {
          if (lane() == of_lanes && is_left) {
            meter_judge_one(state, words, packet, parameters, totals);
          }
          sync_lanes();
        }
      }
      team_sync(team);
    }
    return;
  }
  u64 bytes[2], packets[2];
  packets[0] = flow_group_count(group, packet, is_left && !way, &bytes[0]);
  packets[1] = flow_group_count(group, packet, way, &bytes[1]);
  u64 forward = team_largest(meeting, team, way ? 0 : now);
  u64 back = team_largest(meeting, team, way ? now : 0);
  u32 first_back = team_first(meeting, team, way);
  if (item == 0) {
    group->price[0] = 0;
  }
  team_sync(team);
  if (is_left) {
    or_local(&group->price[0], flags << 8 * way);
  }
  team_sync(team);
  if (begins_back && item == first_back) {
    state[METER_FIRST + 1] = now;
  }
  if (item == 0) {
    state[METER_LAST] = larger_64(state[METER_LAST], forward);
    state[METER_LAST + 1] = larger_64(state[METER_LAST + 1], back);
    for (u32 i = 0; i < 2; i++) {
      state[METER_PACKETS + i] += packets[i];
      state[METER_BYTES + i] += bytes[i];
      totals[0] += packets[i];
      totals[1] += bytes[i];
    }
    state[METER_REST] |= group->price[0];
  }
  team_sync(team);
  if (words == METER_DETAILED_WORDS) {
    meter_group_details(group, is_left && !way, 0, packet, &state[METER_WORDS]);
    meter_group_details(group, way, begins_back, packet, &state[METER_WORDS + METER_KEPT]);
  }
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
  FUNCTION u32 name##_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters,               \
                            PRIVATE u64 *totals, MORE more) {                                                                         \
    meter_judge_group(group, words, packet, passes, parameters, totals);                                                              \
    return VERDICT_PASS;                                                                                                              \
  }                                                                                                                                   \
  FUNCTION u32 name##_without(PRIVATE Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {                            \
    return meter_judge_without(words, packet, role, parameters, more);                                                                \
  }
METER(meter, METER_WORDS)
METER(detailed_meter, METER_DETAILED_WORDS)
