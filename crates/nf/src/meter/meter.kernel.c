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

/* A packet's direction, by the rest of its flow. */
FUNCTION u32 flow_way(u64 rest, PRIVATE const Packet *packet) { return (packet->from_a != 0) != ((rest & METER_FROM_A) != 0); }

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

/* Whether a record may end with packets of a flow group, or before one of them: those that `is_left` says, after another one was added. */
FUNCTION u32 flow_may_end(PRIVATE FlowGroup *group, LOCAL const Flow *flow, u32 is_left, PRIVATE const Packet *packet,
                          GLOBAL const MeterParameters *parameters) {
  u64 last = larger_64(flow->last[0], flow->last[1]);
  u64 first = flow->first[0];
  u64 rest = flow->rest;
  u32 is_over = flow->packets[0] == 0;
  u32 flags = is_left ? packet->rest >> 8 & 0xff : 0;
  u64 now = is_left ? packet->now : 0;
  u64 latest;
  u64 before = larger_64(team_before(group->meeting, group->team, 0, now, &latest), last);
  u32 is_late = now > before && now - before > parameters->idle;
  u32 is_old = now > first && now - first > parameters->active;
  u32 is_closed = parameters->ends_with_connection && ((flags & (TCP_FIN | TCP_RST)) || (rest & rest >> 8 & TCP_FIN));
  return team_any(group->meeting, group->team, is_over || (is_left && (is_late || is_old || is_closed)));
}

/* Adds packets of a flow group: those that `is_left` says, in the direction that each has. */
FUNCTION void flow_add_group(PRIVATE FlowGroup *group, LOCAL Flow *flow, u32 is_left, u32 way, PRIVATE const Packet *packet) {
  PRIVATE Team *team = group->team;
  u32 item = team_item(team);
  if (item == 0) {
    group->price[0] = 0;
  }
  team_sync(team);
  if (is_left) {
    or_local(&group->price[0], (packet->rest >> 8 & 0xff) << (8 * way));
  }
  for (u32 i = 0; i < 2; i++) {
    u32 which = is_left && way == i;
    u32 begins = flow->packets[i] == 0;
    u64 bytes;
    u64 packets = flow_group_count(group, packet, which, &bytes);
    u64 latest = team_largest(group->meeting, team, which ? packet->now : 0);
    u32 first = team_first(group->meeting, team, which);
    if (begins && item == first) {
      flow->first[i] = packet->now;
    }
    if (item == 0) {
      flow->last[i] = larger_64(flow->last[i], latest);
      flow->packets[i] += packets;
      flow->bytes[i] += bytes;
    }
  }
  team_sync(team);
  if (item == 0) {
    flow->rest |= group->price[0];
  }
  team_sync(team);
}

/*
 * A meter, whose <name>_clear clears a state, <name>_add adds a packet, and <name>_add_group those of a flow group. A state without packets has ended with its connection. A packet for which
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
  /* The same with a state of a flow group. */                                                                                       \
  FUNCTION void name##_judge(LOCAL name##_State *state, PRIVATE Packet *packet, GLOBAL const name##_Parameters *parameters,          \
                             PRIVATE name##_Totals *totals, MORE name##_More *more) {                                                \
    name##_State own = *state;                                                                                                       \
    name##_step(&own, 0, packet, parameters, totals, more);                                                                          \
    *state = own;                                                                                                                    \
  }                                                                                                                                  \
                                                                                                                                     \
  STEP_GROUP(name) {                                                                                                                 \
    PRIVATE Team *team = group->team;                                                                                                \
    u32 item = team_item(team);                                                                                                      \
    /* The first one may begin a record. Where none ends with the others, or before one of them, these are added up; else each is judged. */\
    if (item == group->first) {                                                                                                      \
      name##_judge(state, packet, parameters, totals, more);                                                                         \
    }                                                                                                                                \
    team_sync(team);                                                                                                                 \
    u32 is_left = passes && item != group->first;                                                                                    \
    if (flow_may_end(group, (LOCAL Flow *)state, is_left, packet, parameters)) {                                                     \
      for (u32 turn = 0; turn < team->size; turn += LANES) {                                                                         \
        if (item - lane() == turn) {                                                                                                 \
          for (u32 of_lanes = 0; of_lanes < LANES; of_lanes++) {                                                                     \
            if (lane() == of_lanes && is_left) {                                                                                     \
              name##_judge(state, packet, parameters, totals, more);                                                                 \
            }                                                                                                                        \
            sync_lanes();                                                                                                            \
          }                                                                                                                          \
        }                                                                                                                            \
        team_sync(team);                                                                                                             \
      }                                                                                                                              \
      return VERDICT_PASS;                                                                                                           \
    }                                                                                                                                \
    name##_add_group(group, state, is_left, is_left && flow_way(((LOCAL Flow *)state)->rest, packet), packet);                       \
    if (is_left) {                                                                                                                   \
      totals->packets += 1;                                                                                                          \
      totals->bytes += packet->bytes;                                                                                                \
    }                                                                                                                                \
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
