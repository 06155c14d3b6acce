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

FUNCTION void source_counter_crowd(LOCAL Crowd *crowd, LOCAL u64 *state, u32 is_new, GLOBAL const u32 *parameters, PRIVATE u64 *totals) {
  u64 own[3];
  own[0] = 0;
  own[1] = 0;
  own[2] = 0;
  FOR_OWN(crowd, at) {
    if (PASSES(crowd, at)) {
      own[0] += 1;
      own[1] += crowd->bytes[at];
      own[2] += crowd->scratch[at] >> parameters[0] & 1;
    }
  }
  for (u32 i = 0; i < 3; i++) {
    u64 all;
    crowd_before(crowd, 1, own[i], &all);
    totals[i] += own[i];
    if (local_index() == 0) {
      state[i] += all;
    }
  }
}

PASSES_WITHOUT(source_counter)
