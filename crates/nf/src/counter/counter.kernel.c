/* Packets and IP bytes of each flow: see mod.rs. Totals: all packets, all bytes. */
FUNCTION u32 counter_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  state[0] += 1;
  state[1] += packet->bytes;
  totals[0] += 1;
  totals[1] += packet->bytes;
  return VERDICT_PASS;
}

FUNCTION u32 counter_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  u64 bytes;
  u64 packets = flow_group_count(group, packet, passes, &bytes);
  if (team_item(group->team) == 0) {
    group->state[0] += packets;
    group->state[1] += bytes;
    totals[0] += packets;
    totals[1] += bytes;
  }
  return VERDICT_PASS;
}

/* Packets, bytes, and bytes of each packet if all have as many, or 0. */
FUNCTION u32 counter_summarize(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 is_member, u64 first, u64 latest,
                             GLOBAL const u32 *parameters, GLOBAL u64 *summary) {
  u64 bytes;
  u64 packets = flow_group_count(group, packet, is_member, &bytes);
  u32 are_even = !team_any(group->meeting, group->team, is_member && packet->bytes * packets != bytes);
  if (team_item(group->team) == 0) {
    summary[0] = packets;
    summary[1] = bytes;
    summary[2] = are_even ? bytes / packets : 0;
  }
  return 1;
}

FUNCTION u32 counter_apply(PRIVATE u64 *state, u64 first, u64 latest, GLOBAL const u32 *parameters, PRIVATE const u64 *summary,
                            PRIVATE u64 *dropped) {
  state[0] += summary[0] - *dropped;
  state[1] += summary[1] - *dropped * summary[2];
  return !*dropped || summary[2];
}

PASSES_WITHOUT(counter)
