/*
 * Packets as functions that keep state for flows see them on a device.
 *
 * Defined by the host: KEY_PORTS and the other bits of keys, PROTOCOL_..., BY_..., VERDICT_..., DECISION_..., ROLE_..., RECORD_..., ANSWER_..., END_...,
 * NOTE_MARKED, MORE_IS_LOCAL.
 */

typedef struct {
  /* Nanoseconds since the epoch, and IP bytes. */
  u64 now;
  u32 bytes;
  /* The last word of its record. */
  u32 kind;
  /* Whether the lower endpoint of its flow sent it, or the initiator; of a query of ICMP, whether it is the request. */
  u32 from_a;
  u32 is_v6;
  /* Most significant word first; of IPv4 only the first. */
  u32 source[4];
  u32 destination[4];
  /* The last two words of a match key; the DSCP stands in the byte that keys have reserved. */
  u32 ports;
  u32 rest;
  /* Which ends were rewritten. */
  u32 ends;
  /* What is noted of it beside, in the upper half: bits of its answer. */
  u32 notes;
  /* What a function says of it that lists it, or 0. */
  u32 listed;
  /* For functions that export, beside it: its number in the run, its details, its flow's key; where exports are written, and noted. */
  u64 number;
  GLOBAL const u64 *details;
  PRIVATE const u64 *key;
  GLOBAL u64 *exports;
  u32 exports_note;
} Packet;


/* A packet's DSCP, as functions before have left it: only where some function looks at it, or one has written it. */
FUNCTION u32 packet_dscp(PRIVATE const Packet *packet) { return packet->rest >> RECORD_DSCP & 0x3f; }

FUNCTION void packet_mark(PRIVATE Packet *packet, u32 dscp) {
  packet->rest = (packet->rest & ((1u << RECORD_DSCP) - 1)) | dscp << RECORD_DSCP;
  packet->notes |= NOTE_MARKED;
}

/* Adds to a word of a group's memory: few devices do that at once for 64 bits. */
FUNCTION void add_local_64(LOCAL u64 *p, u64 x) {
  u32 low = add_local((LOCAL u32 *)p, (u32)x);
  u32 high = (u32)(x >> 32) + (low + (u32)x < low);
  if (high) {
    add_local((LOCAL u32 *)p + 1, high);
  }
}

/* Where functions count by an index: for each group or, where these are many, for all. */
#if MORE_IS_LOCAL
#define MORE LOCAL
#define add_more(p, x) add_local_64(p, x)
#else
#define MORE GLOBAL
#define add_more(p, x) add_global_64(p, x)
#endif

/* Rows of a type behind a function's parameters, from a word of these on. */
#define ROWS(type, parameters, at) ((GLOBAL const type *)((GLOBAL const u32 *)(parameters) + (at)))

/* The ends of a packet's 5-tuple, the lower one first, as FlowKey has them, and whether that sent it; their ports and the protocol. */
FUNCTION u64 packet_ends(PRIVATE const Packet *packet, PRIVATE u64 *a, PRIVATE u64 *b, PRIVATE u32 *from_a) {
  u32 has_ports = packet->rest >> 16 & KEY_PORTS;
  u32 source_port = has_ports ? packet->ports & 0xffff : 0;
  u32 destination_port = has_ports ? packet->ports >> 16 : 0;
  u64 source[2], destination[2];
  if (packet->is_v6) {
    source[0] = (u64)packet->source[0] << 32 | packet->source[1];
    source[1] = (u64)packet->source[2] << 32 | packet->source[3];
    destination[0] = (u64)packet->destination[0] << 32 | packet->destination[1];
    destination[1] = (u64)packet->destination[2] << 32 | packet->destination[3];
  } else {
    source[0] = 0;
    source[1] = packet->source[0];
    destination[0] = 0;
    destination[1] = packet->destination[0];
  }
  u32 is_lower = source[0] != destination[0]   ? source[0] < destination[0]
                 : source[1] != destination[1] ? source[1] < destination[1]
                                               : source_port <= destination_port;
  for (u32 i = 0; i < 2; i++) {
    a[i] = is_lower ? source[i] : destination[i];
    b[i] = is_lower ? destination[i] : source[i];
  }
  *from_a = is_lower;
  u32 a_port = is_lower ? source_port : destination_port;
  u32 b_port = is_lower ? destination_port : source_port;
  return a_port | b_port << 16 | (u64)(packet->rest & 0xff) << 32;
}

/* FlowKey::hash of a key with these ends, the lower one first, and this rest, which says the IP version from bit 40 on. */
FUNCTION u64 flow_hash(PRIVATE const u64 *a, PRIVATE const u64 *b, u64 rest, u64 seed) {
  u64 hash = states_fold(a[1] ^ seed, b[1] ^ 0x9e3779b97f4a7c15);
  if (rest >> 40 == 6) {
    hash ^= states_fold(a[0] ^ (seed << 17 | seed >> 47), b[0] ^ 0xd6e8feb86659fd93);
  }
  hash = states_fold(hash ^ 0xa0761d6478bd642f, rest ^ (seed << 32 | seed >> 32));
  return states_fold(hash ^ seed, 0x9e3779b97f4a7c15);
}

/* Whether a meter counts a packet, which may be in a framing that is not basic or must not. */
FUNCTION u32 packet_is_metered(PRIVATE const Packet *packet, u32 by) {
  u32 protocol = packet->rest & 0xff;
  u32 is_other_framing = by == BY_METERED_BASIC && (packet->kind >> RECORD_OTHER_FRAMING & 1);
  return !is_other_framing && (protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP || protocol == PROTOCOL_SCTP ||
                               protocol == PROTOCOL_ICMP || protocol == PROTOCOL_ICMPV6);
}

/* What a packet is to its flow: other than a member only where flows are by connection, or a meter's. */
FUNCTION u32 packet_role(PRIVATE const Packet *packet, u32 by) {
  if (by == BY_METERED || by == BY_METERED_BASIC) {
    return packet_is_metered(packet, by) ? ROLE_MEMBER : ROLE_UNTRACKED;
  }
  return by == BY_CONNECTION ? packet->kind >> RECORD_ROLE & 3 : ROLE_MEMBER;
}

/* Whether a message of ICMP or ICMPv6 is a query with an identifier, or the reply to one: as dissect/connection.rs. */
FUNCTION u32 packet_is_request(PRIVATE const Packet *packet) {
  u32 type = packet->ports & 0xff;
  return (packet->rest & 0xff) == PROTOCOL_ICMPV6 ? type == 128 : type == 8 || type == 13 || type == 15 || type == 17;
}

FUNCTION u32 packet_is_reply(PRIVATE const Packet *packet) {
  u32 type = packet->ports & 0xff;
  return (packet->rest & 0xff) == PROTOCOL_ICMPV6 ? type == 129 : type == 0 || type == 14 || type == 16 || type == 18;
}

/* Words of a key. */
#define KEY_WORDS(is_v6) ((is_v6) ? 5u : 2u)

/*
 * Exports: what functions hand out of flows that end when a packet comes. There is room for two of a packet: of a flow that ends before it is
 * added, its own one or another one that goes for it, or of a packet for which there is no room; and of its own one, which ends with it. Each
 * is why, and what an entry has: key, time, state.
 */
#define ENDED_BEFORE 0u
#define ENDED_WITH 1u

/* Exports the state of a packet's own flow. */
FUNCTION void packet_end(PRIVATE Packet *packet, u32 when, u32 why, PRIVATE const u64 *state, u32 words) {
  GLOBAL u64 *to = packet->exports + when * EXPORT_WORDS;
  u32 key_words = KEY_WORDS(packet->is_v6);
  to[0] = why;
  to += EXPORT_ENTRY;
  for (u32 i = 0; i < key_words; i++) {
    to[i] = packet->key[i];
  }
  for (u32 i = 0; i < words; i++) {
    to[key_words + 1 + i] = state[i];
  }
  packet->notes |= 1u << (packet->exports_note + when);
}

/* A packet's flow, and which end sent the packet. */
FUNCTION void packet_flow(PRIVATE Packet *packet, GLOBAL const Ipv6Addresses *wide, u32 by, u32 is_v6, PRIVATE u64 *key) {
  u32 connection = packet->kind >> RECORD_CONNECTION;
  if (by == BY_CONNECTION && connection) {
    packet->from_a = packet->kind >> RECORD_FROM_A & 1;
    for (u32 i = 0; i < KEY_WORDS(is_v6); i += 2) {
      u32x4 pair = ((GLOBAL const u32x4 *)(wide + connection))[i / 2];
      key[i] = pair.x | (u64)pair.y << 32;
      if (i + 1 < KEY_WORDS(is_v6)) {
        key[i + 1] = pair.z | (u64)pair.w << 32;
      }
    }
    return;
  }
  u64 a[2], b[2];
  u64 rest = packet_ends(packet, a, b, &packet->from_a);
  if (by == BY_SOURCE || by == BY_INITIATOR) {
    /* The source, but of an answer to an initiator the destination. */
    u32 is_answer = by == BY_INITIATOR && (packet->rest >> 8 & TCP_SYN_ACK) == TCP_SYN_ACK;
    u32 end[4];
    for (u32 i = 0; i < 4; i++) {
      end[i] = is_answer ? packet->destination[i] : packet->source[i];
    }
    packet->from_a = !is_answer;
    rest = 0;
    a[0] = (u64)end[0] << 32 | end[1];
    a[1] = is_v6 ? (u64)end[2] << 32 | end[3] : end[0];
    b[0] = 0;
    b[1] = 0;
  }
  if (is_v6) {
    key[0] = a[0];
    key[1] = a[1];
    key[2] = b[0];
    key[3] = b[1];
    key[4] = rest;
  } else {
    key[0] = a[1] | b[1] << 32;
    key[1] = rest;
  }
}

/* What an access list decides that is among other functions, from a bit of the packet's notes on. */
FUNCTION u32 packet_decision(PRIVATE const Packet *packet, u32 note) { return packet->notes >> note & ((1u << DECISION_BITS) - 1); }

/* Decides by that, and notes it. */
FUNCTION u32 packet_decide(PRIVATE Packet *packet, u32 note) {
  packet->notes |= 1u << (note + DECISION_BITS);
  return DECISION_VERDICT(packet_decision(packet, note));
}

/* Gives an end of a packet another address, with another port unless that is more than 16 bits; whether that can be. */
FUNCTION u32 packet_rewrite(PRIVATE Packet *packet, u32 end, GLOBAL const u32 *address, u32 port) {
  u32 bits = packet->rest >> 16;
  u32 has_port = port <= 0xffff;
  if (has_port && (packet->rest & 0xff) == PROTOCOL_SCTP && (bits & KEY_FIRST_FRAGMENT)) {
    return 0;
  }
  for (u32 i = 0; i < 4; i++) {
    u32 word = i == 0 || packet->is_v6 ? address[i] : 0;
    packet->source[i] = end == END_SOURCE ? word : packet->source[i];
    packet->destination[i] = end == END_DESTINATION ? word : packet->destination[i];
  }
  if (has_port && (bits & KEY_PORTS)) {
    packet->ports = end == END_SOURCE ? (packet->ports & 0xffff0000) | port : (packet->ports & 0xffff) | port << 16;
  }
  packet->ends |= end;
  return 1;
}

/*
 * The functions that a step consists of. NAME_State, NAME_Parameters, NAME_Totals, NAME_More and NAME_Summary are the structs that KernelSpec of
 * nf/src/flows/mod.rs names: of what there is none, they are a word that is not there.
 *
 * STEP(name)            the verdict on one packet, with the state of its flow: all 0 where it is new
 * STEP_WITHOUT(name)    the verdict on one without an entry; its role says why: ROLE_MEMBER where there was no room
 * STEP_GROUP(name)      the same as STEP for packets of one flow, one of each item; `passes` where the item has one, `state` is that of all
 * STEP_SUMMARIZE(name)  what such packets do to any state: whether the summary says it; `is_member` where the item has one
 * STEP_APPLY(name)      brings a state up to date by a summary, if it can; adds packets that it drops
 */
#define STEP(name)                                                                                                                   \
  FUNCTION u32 name##_step(PRIVATE name##_State *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const name##_Parameters *parameters, \
                           PRIVATE name##_Totals *totals, MORE name##_More *more)
#define STEP_WITHOUT(name)                                                                                                           \
  FUNCTION u32 name##_without(PRIVATE Packet *packet, u32 role, GLOBAL const name##_Parameters *parameters, MORE name##_More *more)
#define STEP_GROUP(name)                                                                                                             \
  FUNCTION u32 name##_group(PRIVATE FlowGroup *group, LOCAL name##_State *state, PRIVATE Packet *packet, u32 passes,                 \
                            GLOBAL const name##_Parameters *parameters, PRIVATE name##_Totals *totals, MORE name##_More *more)
#define STEP_SUMMARIZE(name)                                                                                                         \
  FUNCTION u32 name##_summarize(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 is_member, u64 first, u64 latest,              \
                                GLOBAL const name##_Parameters *parameters, GLOBAL name##_Summary *summary)
#define STEP_APPLY(name)                                                                                                             \
  FUNCTION u32 name##_apply(PRIVATE name##_State *state, u64 first, u64 latest, GLOBAL const name##_Parameters *parameters,          \
                            PRIVATE const name##_Summary *summary, PRIVATE u64 *dropped)

/* Of a function that has nothing to do with packets without an entry. */
#define PASSES_WITHOUT(name)                                                                                                         \
  STEP_WITHOUT(name) { return VERDICT_PASS; }

#define WARPS (GROUP / LANES)
#define EMPTY 0xffffffffu

/*
 * A team: items that judge a part of the flows together, each of them one packet at a time. Those that run in step are a team, which
 * waits for nobody else, or all of a group are one.
 */
typedef struct {
  /* Its first item in the group, how many they are, and which of the group's teams it is. */
  u32 first, size, place;
  /* How often its items met: see below. */
  u32 meetings;
} Team;

/* Where the items of a group meet: at three places in turns, so that what was written for a meeting is read before it is written again. */
typedef struct {
  u32 firsts[3];
  u64 sums[3][WARPS];
} Meeting;

#define team_item(team) (local_index() - (team)->first)
#define team_is_group(team) (GROUP != LANES && (team)->size == GROUP)

FUNCTION void team_sync(PRIVATE const Team *team) {
  if (team_is_group(team)) {
    barrier_group();
  } else {
    sync_lanes();
  }
}

FUNCTION void meeting_begin(LOCAL Meeting *meeting) {
  for (u32 i = local_index(); i < 3; i += GROUP) {
    meeting->firsts[i] = EMPTY;
  }
  barrier_group();
}

/* Which of three places is that of a meeting; the next one's is cleared. */
FUNCTION u32 meeting_next(LOCAL Meeting *meeting, PRIVATE Team *team) {
  u32 at = team->meetings++ % 3;
  if (local_index() == 0) {
    meeting->firsts[(at + 1) % 3] = EMPTY;
  }
  return at;
}

/* The first item that says so, or EMPTY. All items of the team come here, and what they wrote before is seen after. */
FUNCTION u32 team_first(LOCAL Meeting *meeting, PRIVATE Team *team, u32 p) {
  sync_lanes();
  u32 lanes = ballot(p);
  u32 first = lanes ? count_ones((lanes & (0u - lanes)) - 1u) : EMPTY;
  if (!team_is_group(team)) {
    return first;
  }
  u32 at = meeting_next(meeting, team);
  if (lane() == 0 && lanes) {
    min_local(&meeting->firsts[at], lanes_index() * LANES + first);
  }
  barrier_group();
  return meeting->firsts[at];
}

#define team_any(meeting, team, p) (team_first(meeting, team, p) != EMPTY)

FUNCTION u64 lanes_read_64(u64 x, u32 from) { return lanes_read((u32)x, from) | (u64)lanes_read((u32)(x >> 32), from) << 32; }

FUNCTION u64 larger_64(u64 x, u64 y) { return x > y ? x : y; }

/* What the lanes until this one add up to, or the largest of them. */
FUNCTION u64 lanes_until(u32 is_sum, u64 own) {
  for (u32 step = 1; step < LANES; step *= 2) {
    u64 other = lanes_read_64(own, lane() >= step ? lane() - step : lane());
    if (lane() >= step) {
      own = is_sum ? own + other : larger_64(own, other);
    }
  }
  return own;
}

/* The sum, or the largest, of what the items before found, or 0, and of what all found. */
FUNCTION u64 team_before(LOCAL Meeting *meeting, PRIVATE Team *team, u32 is_sum, u64 own, PRIVATE u64 *all) {
  u64 until = lanes_until(is_sum, own);
  u64 before = lanes_read_64(until, lane() ? lane() - 1 : 0);
  before = lane() ? before : 0;
  *all = lanes_read_64(until, LANES - 1);
  if (!team_is_group(team)) {
    return before;
  }
  LOCAL u64 *sums = meeting->sums[meeting_next(meeting, team)];
  if (lane() == 0) {
    sums[lanes_index()] = *all;
  }
  barrier_group();
  u64 of_others = 0;
  *all = 0;
#if LANES >= WARPS
  u64 of_all = lanes_until(is_sum, lane() < WARPS ? sums[lane()] : 0);
  *all = lanes_read_64(of_all, LANES - 1);
  of_others = lanes_read_64(of_all, lanes_index() ? lanes_index() - 1 : 0);
  of_others = lanes_index() ? of_others : 0;
#else
  for (u32 i = 0; i < WARPS; i++) {
    u64 other = sums[i];
    *all = is_sum ? *all + other : larger_64(*all, other);
    of_others = i + 1 == lanes_index() ? *all : of_others;
  }
#endif
  return is_sum ? before + of_others : larger_64(before, of_others);
}

/* The sum of what all items found. */
FUNCTION u64 lanes_sum_64(u64 own) {
  u64 sum = 0;
  for (u32 i = 0; i < 64; i += 16) {
    sum += (u64)lanes_sum((u32)(own >> i) & 0xffff) << i;
  }
  return sum;
}

FUNCTION u64 team_sum(LOCAL Meeting *meeting, PRIVATE Team *team, u64 own) {
  u64 all = lanes_sum_64(own);
  if (!team_is_group(team)) {
    return all;
  }
  LOCAL u64 *sums = meeting->sums[meeting_next(meeting, team)];
  if (lane() == 0) {
    sums[lanes_index()] = all;
  }
  barrier_group();
#if LANES >= WARPS
  return lanes_sum_64(lane() < WARPS ? sums[lane()] : 0);
#else
  all = 0;
  for (u32 i = 0; i < WARPS; i++) {
    all += sums[i];
  }
  return all;
#endif
}

/* The largest that any item found. */
FUNCTION u64 team_largest(LOCAL Meeting *meeting, PRIVATE Team *team, u64 own) {
  u32 high = lanes_max((u32)(own >> 32));
  u32 low = lanes_max((u32)(own >> 32) == high ? (u32)own : 0);
  u64 all = low | (u64)high << 32;
  if (!team_is_group(team)) {
    return all;
  }
  LOCAL u64 *sums = meeting->sums[meeting_next(meeting, team)];
  if (lane() == 0) {
    sums[lanes_index()] = all;
  }
  barrier_group();
#if LANES >= WARPS
  u64 other = lane() < WARPS ? sums[lane()] : 0;
  high = lanes_max((u32)(other >> 32));
  low = lanes_max((u32)(other >> 32) == high ? (u32)other : 0);
  return low | (u64)high << 32;
#else
  for (u32 i = 0; i < WARPS; i++) {
    all = larger_64(all, sums[i]);
  }
  return all;
#endif
}

/*
 * Packets of one flow, one of each item or none, in the order of items, which a team takes through a function together.
 */
typedef struct {
  LOCAL Meeting *meeting;
  PRIVATE Team *team;
  /* For the item's packet. */
  LOCAL u64 *scratch;
  LOCAL u32 *price;
  LOCAL u32 *verdict;
  /* The function's state, and whether it is to be made; the item whose packet is the first that gets there. */
  LOCAL u64 *state;
  u32 is_new, first;
} FlowGroup;

/* How many of a flow group's packets there are, and their bytes. */
FUNCTION u64 flow_group_count(PRIVATE const FlowGroup *group, PRIVATE const Packet *packet, u32 which, PRIVATE u64 *bytes) {
  u64 all = team_sum(group->meeting, group->team, which ? (u64)1 << 48 | packet->bytes : 0);
  *bytes = all & (((u64)1 << 48) - 1);
  return all >> 48;
}
