/* Flow records: see mod.rs, and cpu.rs for Flow, with which the state of each meter begins. */
#define METER_FROM_A ((u64)1 << METER_FROM_A_BIT)

#define TCP_FIN 1u
#define TCP_RST 4u
#define TCP_ACK 16u

/* Why a record ends before a packet of its flow, or 0. */
FUNCTION u32 meter_end(PRIVATE const Flow *flow, u64 now, GLOBAL const MeterParameters *parameters) {
  u64 last = larger_64(flow->last[0], flow->last[1]);
  u64 first = flow->first[0];
  return now > last && now - last > parameters->idle       ? ENDED_IDLE
         : now > first && now - first > parameters->active ? ENDED_ACTIVE
                                                           : 0;
}

FUNCTION void flow_clear(PRIVATE Flow *flow) {
  for (u32 way = 0; way < 2; way++) {
    flow->first[way] = 0;
    flow->last[way] = 0;
    flow->packets[way] = 0;
    flow->bytes[way] = 0;
  }
  flow->rest = 0;
}

/* Begins a record that was cleared with a packet, which is added next. */
FUNCTION void flow_begin(PRIVATE Flow *flow, PRIVATE const Packet *packet, GLOBAL const MeterParameters *parameters) {
  flow->first[0] = packet->now;
  flow->last[0] = packet->now;
  flow->rest = (packet->number + parameters->first) << METER_NUMBER | (packet->from_a ? METER_FROM_A : 0);
}

/* A packet's direction. */
FUNCTION u32 flow_way(PRIVATE const Flow *flow, PRIVATE const Packet *packet) {
  return (packet->from_a != 0) != ((flow->rest & METER_FROM_A) != 0);
}

FUNCTION void flow_add(PRIVATE Flow *flow, u32 way, PRIVATE const Packet *packet) {
  if (flow->packets[way] == 0) {
    flow->first[way] = packet->now;
  }
  flow->last[way] = larger_64(flow->last[way], packet->now);
  flow->packets[way] += 1;
  flow->bytes[way] += packet->bytes;
  flow->rest |= (u64)(packet->rest >> 8 & 0xff) << (8 * way);
}

/* Whether a packet of TCP that was added is the last one of its connection: see mod.rs. */
FUNCTION u32 meter_is_over(PRIVATE const Flow *flow, PRIVATE const Packet *packet) {
  u32 flags = packet->rest >> 8 & 0xff;
  u32 of_both = (u32)flow->rest & (u32)(flow->rest >> 8);
  return (packet->rest & 0xff) == PROTOCOL_TCP &&
         ((flags & TCP_RST) || ((flags & (TCP_FIN | TCP_ACK)) == TCP_ACK && (of_both & TCP_FIN)));
}

/*
 * A meter, whose <name>_clear clears a state, and <name>_add adds a packet. A state without packets has ended with its connection. A packet for which
 * there is no room is a record by itself.
 */
#define METER(name)                                                                                                                  \
  STEP(name) {                                                                                                                       \
    PRIVATE Flow *flow = (PRIVATE Flow *)state;                                                                                      \
    u32 begins = flow->packets[0] == 0;                                                                                              \
    u32 why = begins ? 0 : meter_end(flow, packet->now, parameters);                                                                 \
    if (why) {                                                                                                                       \
      packet_end(packet, ENDED_BEFORE, why, (PRIVATE const u64 *)state, sizeof(name##_State) / 8);                                   \
    }                                                                                                                                \
    if (begins || why) {                                                                                                             \
      name##_clear(state);                                                                                                           \
      flow_begin(flow, packet, parameters);                                                                                          \
    }                                                                                                                                \
    name##_add(state, packet);                                                                                                       \
    if (parameters->ends_with_connection && meter_is_over(flow, packet)) {                                                           \
      packet_end(packet, ENDED_WITH, ENDED_CONNECTION, (PRIVATE const u64 *)state, sizeof(name##_State) / 8);                        \
      name##_clear(state);                                                                                                           \
    }                                                                                                                                \
    totals->packets += 1;                                                                                                            \
    totals->bytes += packet->bytes;                                                                                                  \
    return VERDICT_PASS;                                                                                                             \
  }                                                                                                                                  \
                                                                                                                                     \
  STEP_WITHOUT(name) {                                                                                                               \
    if (role != ROLE_MEMBER) {                                                                                                       \
      u32 is_other_framing = !parameters->all_framings && (packet->kind >> RECORD_OTHER_FRAMING & 1);                                \
      add_more(&more->others[is_other_framing], 1);                                                                                  \
      return VERDICT_PASS;                                                                                                           \
    }                                                                                                                                \
    name##_State own;                                                                                                                \
    name##_clear(&own);                                                                                                              \
    flow_begin((PRIVATE Flow *)&own, packet, parameters);                                                                            \
    name##_add(&own, packet);                                                                                                        \
    packet_end(packet, ENDED_BEFORE, ENDED_WITHOUT_ROOM, (PRIVATE const u64 *)&own, sizeof(name##_State) / 8);                       \
    add_more(&more->without.packets, 1);                                                                                             \
    add_more(&more->without.bytes, packet->bytes);                                                                                   \
    return VERDICT_PASS;                                                                                                             \
  }
