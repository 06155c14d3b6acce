/* Packets and IP bytes of each flow: see mod.rs. Totals: all packets, all bytes. */
FUNCTION u32 counter_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  state[0] += 1;
  state[1] += packet->bytes;
  totals[0] += 1;
  totals[1] += packet->bytes;
  return VERDICT_PASS;
}

FUNCTION void counter_crowd(LOCAL Crowd *crowd, LOCAL u64 *state, u32 is_new, GLOBAL const u32 *parameters, PRIVATE u64 *totals) {
  u32 packets = 0;
  u64 bytes = 0;
  FOR_OWN(crowd, at) {
    packets += PASSES(crowd, at);
    bytes += PASSES(crowd, at) ? crowd->bytes[at] : 0;
  }
  add_local_64(&crowd->tally[0], packets);
  add_local_64(&crowd->tally[1], (u32)bytes);
  add_local((LOCAL u32 *)&crowd->tally[1] + 1, (u32)(bytes >> 32));
  totals[0] += packets;
  totals[1] += bytes;
  barrier_group();
  if (local_index() == 0) {
    state[0] += crowd->tally[0];
    state[1] += crowd->tally[1];
  }
}

PASSES_WITHOUT(counter)
