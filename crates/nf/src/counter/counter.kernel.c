/* Packets and IP bytes of each flow: see mod.rs. Totals: all packets, all bytes. */
FUNCTION u32 counter_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  state[0] += 1;
  state[1] += packet->bytes;
  totals[0] += 1;
  totals[1] += packet->bytes;
  return VERDICT_PASS;
}

FUNCTION u32 counter_crowd(PRIVATE Crowd *crowd, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  u64 bytes;
  u64 packets = crowd_count(crowd, packet, passes, &bytes);
  if (team_item(crowd->team) == 0) {
    crowd->state[0] += packets;
    crowd->state[1] += bytes;
    totals[0] += packets;
    totals[1] += bytes;
  }
  return VERDICT_PASS;
}

PASSES_WITHOUT(counter)
