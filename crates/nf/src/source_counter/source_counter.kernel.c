/*
 * Packets, IP bytes and flows of each source: see mod.rs. Parameters: the bit of the note that a packet begins a flow. Totals: all packets,
 * bytes, flows.
 */
FUNCTION u32 source_counter_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters,
                                 PRIVATE u64 *totals, MORE more) {
  u32 begins = packet->notes >> parameters[0] & 1;
  state[0] += 1;
  state[1] += packet->bytes;
  state[2] += begins;
  totals[0] += 1;
  totals[1] += packet->bytes;
  totals[2] += begins;
  return VERDICT_PASS;
}

FUNCTION u32 source_counter_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters,
                                  PRIVATE u64 *totals, MORE more) {
  u64 bytes;
  u64 packets = flow_group_count(group, packet, passes, &bytes);
  u64 flows = team_sum(group->meeting, group->team, passes ? packet->notes >> parameters[0] & 1 : 0);
  if (team_item(group->team) == 0) {
    group->state[0] += packets;
    group->state[1] += bytes;
    group->state[2] += flows;
    totals[0] += packets;
    totals[1] += bytes;
    totals[2] += flows;
  }
  return VERDICT_PASS;
}

PASSES_WITHOUT(source_counter)
