/* Packets and IP bytes of each flow: see mod.rs. */
STEP(counter) {
  state->packets += 1;
  state->bytes += packet->bytes;
  totals->packets += 1;
  totals->bytes += packet->bytes;
  return VERDICT_PASS;
}

STEP_GROUP(counter) {
  u64 bytes;
  u64 packets = flow_group_count(group, packet, passes, &bytes);
  if (team_item(group->team) == 0) {
    state->packets += packets;
    state->bytes += bytes;
    totals->packets += packets;
    totals->bytes += bytes;
  }
  return VERDICT_PASS;
}

STEP_SUMMARIZE(counter) {
  u64 bytes;
  u64 packets = flow_group_count(group, packet, is_member, &bytes);
  u32 are_even = !team_any(group->meeting, group->team, is_member && packet->bytes * packets != bytes);
  if (team_item(group->team) == 0) {
    summary->packets = packets;
    summary->bytes = bytes;
    summary->each = are_even ? bytes / packets : 0;
  }
  return 1;
}

STEP_APPLY(counter) {
  state->packets += summary->packets - *dropped;
  state->bytes += summary->bytes - *dropped * summary->each;
  return !*dropped || summary->each;
}

PASSES_WITHOUT(counter)
