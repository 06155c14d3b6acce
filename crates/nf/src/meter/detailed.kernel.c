/* A meter with details: see meter.kernel.c, and details.rs for Kept. */

/* Details of a direction, as they are with a packet alone: see details.rs. */
FUNCTION void kept_new(PRIVATE Kept *kept, PRIVATE const Packet *packet) {
  kept->lengths = packet->bytes | (u64)packet->bytes << 32;
  for (u32 i = 0; i < DETAIL_WORDS; i++) {
    kept->ttls[i] = packet->details[i];
  }
  if (packet->notes & NOTE_MARKED) {
    kept->ttls[0] =
        (kept->ttls[0] & ~((u64)0xfc << KEPT_CLASS_OF_SERVICE)) | (u64)packet_dscp(packet) << (KEPT_CLASS_OF_SERVICE + 2);
  }
  kept->fragments = (packet->rest >> 16 & (KEY_FIRST_FRAGMENT | KEY_LATER_FRAGMENT)) != 0;
}

/* What packets have of lengths, and of the first word behind them, of which the lowest and the highest TTL are the first two bytes. */
FUNCTION u64 kept_lengths(u64 kept, u64 shortest, u64 longest) {
  u64 least = kept & 0xffffffff;
  return (shortest < least ? shortest : least) | larger_64(longest, kept >> 32) << 32;
}

FUNCTION u64 kept_ttls(u64 kept, u64 lowest, u64 highest, u64 fragment_flags) {
  u64 least = kept & 0xff;
  u64 ttls = (lowest < least ? lowest : least) | larger_64(highest, kept >> 8 & 0xff) << 8;
  return (kept & ~(u64)0xffff) | ttls | fragment_flags << KEPT_FRAGMENT_FLAGS;
}

/* Adds a packet to details. */
FUNCTION void kept_add(PRIVATE Kept *kept, u32 is_first, PRIVATE const Packet *packet) {
  Kept own;
  kept_new(&own, packet);
  if (is_first) {
    *kept = own;
    return;
  }
  u64 ttl = own.ttls[0] & 0xff;
  kept->lengths = kept_lengths(kept->lengths, packet->bytes, packet->bytes);
  kept->ttls[0] = kept_ttls(kept->ttls[0], ttl, ttl, own.ttls[0] >> KEPT_FRAGMENT_FLAGS & 0xff);
  kept->fragments += own.fragments;
}

/* Adds packets of a flow group: those that `which` says, all of one direction. */
FUNCTION void kept_add_group(PRIVATE FlowGroup *group, LOCAL Kept *kept, u32 begins, u32 which, PRIVATE const Packet *packet) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  u32 item = team_item(team);
  u32 first = team_first(meeting, team, which);
  if (first == EMPTY) {
    return;
  }
  Kept own;
  own.ttls[0] = 0;
  own.fragments = 0;
  if (which) {
    kept_new(&own, packet);
  }
  u64 ttl = own.ttls[0] & 0xff;
  u64 longest = team_largest(meeting, team, which ? packet->bytes : 0);
  u64 shortest = ~team_largest(meeting, team, which ? ~(u64)packet->bytes : 0);
  u64 highest = team_largest(meeting, team, which ? ttl : 0);
  u64 lowest = ~team_largest(meeting, team, which ? ~ttl : 0);
  u64 fragments = team_sum(meeting, team, own.fragments);
  if (item == 0) {
    group->price[0] = 0;
  }
  if (begins && item == first) {
    *kept = own;
    kept->fragments = 0;
  }
  team_sync(team);
  or_local(&group->price[0], (u32)(own.ttls[0] >> KEPT_FRAGMENT_FLAGS) & 0xff);
  team_sync(team);
  if (item == 0) {
    kept->lengths = kept_lengths(kept->lengths, shortest, longest);
    kept->ttls[0] = kept_ttls(kept->ttls[0], lowest, highest, group->price[0]);
    kept->fragments += fragments;
  }
  team_sync(team);
}

FUNCTION void detailed_meter_clear(PRIVATE Detailed *state) {
  flow_clear(&state->flow);
  for (u32 way = 0; way < 2; way++) {
    state->kept[way].lengths = 0;
    for (u32 i = 0; i < DETAIL_WORDS; i++) {
      state->kept[way].ttls[i] = 0;
    }
    state->kept[way].fragments = 0;
  }
}

FUNCTION void detailed_meter_add(PRIVATE Detailed *state, PRIVATE const Packet *packet) {
  u32 way = flow_way(state->flow.rest, packet);
  kept_add(&state->kept[way], state->flow.packets[way] == 0, packet);
  flow_add(&state->flow, way, packet);
}

FUNCTION void detailed_meter_add_group(PRIVATE FlowGroup *group, LOCAL Detailed *state, u32 is_left, u32 way, PRIVATE const Packet *packet) {
  for (u32 i = 0; i < 2; i++) {
    kept_add_group(group, &state->kept[i], state->flow.packets[i] == 0, is_left && way == i, packet);
  }
  flow_add_group(group, &state->flow, is_left, way, packet);
}

METER(detailed_meter)
