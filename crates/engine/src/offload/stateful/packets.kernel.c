/*
 * Packets as functions that keep state for flows see them on a device.
 *
 * Defined by the host: KEY_PORTS and the other bits of keys, PROTOCOL_SCTP, VERDICT_..., ROLE_..., RECORD_..., MORE_IS_LOCAL.
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
} Packet;

#define END_SOURCE 1u
#define END_DESTINATION 2u
#define NOTE_MARKED (1u << 31)

/* A packet's DSCP, as functions before have left it: only where some function looks at it, or one has written it. */
FUNCTION u32 packet_dscp(PRIVATE const Packet *packet) { return packet->rest >> RECORD_DSCP & 0x3f; }

FUNCTION void packet_mark(PRIVATE Packet *packet, u32 dscp) {
  packet->rest = (packet->rest & ((1u << RECORD_DSCP) - 1)) | dscp << RECORD_DSCP;
  packet->notes |= NOTE_MARKED;
}

/* Adds to a word of a group's memory: few devices do that at once for 64 bits. */
FUNCTION void add_local_64(LOCAL u64 *p, u32 x) {
  u32 low = add_local((LOCAL u32 *)p, x);
  if (low + x < low) {
    add_local((LOCAL u32 *)p + 1, 1);
  }
}

/* Where functions count by an index: for each group or, where these are many, for all. */
#if MORE_IS_LOCAL
#define MORE LOCAL u64 *
#define add_more(p, x) add_local_64(p, x)
#else
#define MORE GLOBAL u64 *
#define add_more(p, x) add_global_64(p, x)
#endif

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

/* What a packet is to its flow: other than a member only where flows are by connection. */
FUNCTION u32 packet_role(PRIVATE const Packet *packet, u32 by) {
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

/* A packet's flow, and which end sent the packet. */
FUNCTION void packet_flow(PRIVATE Packet *packet, GLOBAL const u32x4 *wide, u32 by, u32 is_v6, PRIVATE u64 *key) {
  u32 connection = packet->kind >> RECORD_CONNECTION;
  if (by == BY_CONNECTION && connection) {
    packet->from_a = packet->kind >> RECORD_FROM_A & 1;
    for (u32 i = 0; i < KEY_WORDS(is_v6); i += 2) {
      u32x4 pair = wide[(u64)connection * 2 + i / 2];
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

/* Of a function that has nothing to do with packets without an entry. */
#define PASSES_WITHOUT(name)                                                                                                          \
  FUNCTION u32 name##_without(PRIVATE const Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {                      \
    return VERDICT_PASS;                                                                                                              \
  }

/* What each of so many numbers is a share of. */
#define SHARE(count) (((count) + GROUP - 1) / GROUP)

/*
 * Turns numbers into the sums of those before them; the sum of all. All items of the group come here, and leave together. Each item adds up
 * its share, some of them what SPAN items found, and each the few sums before its own.
 */
#define SPAN 16u
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

/*
 * Packets of one flow, in order, with which all items of a group work. An item has PER_ITEM of them that follow each other.
 */
#define PER_ITEM (CHUNK / GROUP)

typedef struct {
  u64 now[CHUNK];
  /* For functions; the first one of a stage finds the packets' notes there. */
  u64 scratch[CHUNK];
  u32 bytes[CHUNK];
  u32 verdict[CHUNK];
  /* The flow's entry. */
  u64 line[MAX_WORDS];
  u64 sums[GROUP + SPANS];
  u64 tally[2];
  /* How many there are, the first that still passes, and whether any item says so. */
  u32 count, first, any;
} Crowd;

#define FOR_OWN(crowd, at) \
  for (u32 at = local_index() * PER_ITEM; at < local_index() * PER_ITEM + PER_ITEM && at < (crowd)->count; at++)
#define PASSES(crowd, at) ((crowd)->verdict[at] == VERDICT_PASS)

FUNCTION u32 crowd_any(LOCAL Crowd *crowd, u32 p) {
  barrier_group();
  if (local_index() == 0) {
    crowd->any = 0;
  }
  barrier_group();
  if (p) {
    or_local(&crowd->any, 1);
  }
  barrier_group();
  return crowd->any;
}

/* The sum, or the largest, of what the items before found, and of what all found. */
FUNCTION u64 crowd_before(LOCAL Crowd *crowd, u32 is_sum, u64 own, PRIVATE u64 *all) {
  barrier_group();
  crowd->sums[local_index()] = own;
  barrier_group();
  if (local_index() < SPANS) {
    u64 of_span = 0;
    for (u32 i = 0; i < SPAN && local_index() * SPAN + i < GROUP; i++) {
      u64 other = crowd->sums[local_index() * SPAN + i];
      of_span = is_sum ? of_span + other : other > of_span ? other : of_span;
    }
    crowd->sums[GROUP + local_index()] = of_span;
  }
  barrier_group();
  u64 before = 0;
  u64 total = 0;
  for (u32 i = 0; i < SPANS; i++) {
    u64 other = crowd->sums[GROUP + i];
    if (i < local_index() / SPAN) {
      before = is_sum ? before + other : other > before ? other : before;
    }
    total = is_sum ? total + other : other > total ? other : total;
  }
  for (u32 i = local_index() / SPAN * SPAN; i < local_index(); i++) {
    u64 other = crowd->sums[i];
    before = is_sum ? before + other : other > before ? other : before;
  }
  *all = total;
  return before;
}
