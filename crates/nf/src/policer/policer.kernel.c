/*
 * A marker for each flow: see mod.rs. State: committed level, outer level, time. Parameters: with one rate the bucket of both, where each is
 * full (three and two words of 64 bits) and a word that is left out; with two rates two buckets. Then whether there are two rates, and the
 * verdicts on green, yellow and red. Totals: packets and bytes of each colour.
 */
FUNCTION u32 policer_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  u32 has_two_rates = parameters[12];
  Bucket first = bucket_at(parameters, 0);
  Bucket second = bucket_at(parameters, 3);
  u64 committed_full = has_two_rates ? first.full : second.rate;
  u64 outer_full = second.full;
  if (is_new) {
    state[0] = committed_full;
    state[1] = outer_full;
    state[2] = packet->now;
  }
  u64 elapsed = bucket_advance(&state[2], packet->now);
  u64 rest = bucket_pour(&state[0], committed_full, bucket_income(&first, elapsed));
  bucket_pour(&state[1], outer_full, has_two_rates ? bucket_income(&second, elapsed) : rest);
  u32 colour;
  if (has_two_rates) {
    colour = !bucket_withdraw(&state[1], packet->bytes) ? 2 : !bucket_withdraw(&state[0], packet->bytes) ? 1 : 0;
  } else {
    colour = bucket_withdraw(&state[0], packet->bytes) ? 0 : bucket_withdraw(&state[1], packet->bytes) ? 1 : 2;
  }
  for (u32 i = 0; i < 3; i++) {
    totals[i * 2] += colour == i;
    totals[i * 2 + 1] += colour == i ? packet->bytes : 0;
  }
  return parameters[13 + colour];
}
