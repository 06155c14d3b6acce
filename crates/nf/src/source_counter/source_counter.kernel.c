/* Packets, IP bytes and flows of each source: see mod.rs. The note says that a packet begins a flow. */
STEP(source_counter) {
  u32 begins = packet->notes >> parameters->note & 1;
  state->packets += 1;
  state->bytes += packet->bytes;
  state->flows += begins;
  totals->packets += 1;
  totals->bytes += packet->bytes;
  totals->flows += begins;
  return VERDICT_PASS;
}

STEP_GROUP(source_counter) {
  u64 bytes;
  u64 packets = flow_group_count(group, packet, passes, &bytes);
  u64 flows = team_sum(group->meeting, group->team, passes ? packet->notes >> parameters->note & 1 : 0);
  if (team_item(group->team) == 0) {
    state->packets += packets;
    state->bytes += bytes;
    state->flows += flows;
    totals->packets += packets;
    totals->bytes += bytes;
    totals->flows += flows;
  }
  return VERDICT_PASS;
}

PASSES_WITHOUT(source_counter)
