/*
 * A marker for each flow: see mod.rs, which says what the parameters are. With one rate the first bucket is both, with two rates there are two
 * buckets.
 */
/* The colour that a packet comes with: its drop precedence in a class of assured forwarding. */
FUNCTION u32 policer_before(u32 dscp, u32 others) {
  u32 class_of = dscp >> 3;
  u32 precedence = dscp & 7;
  u32 is_assured = class_of >= 1 && class_of <= 4 && precedence >= 2 && precedence % 2 == 0;
  return others == POLICER_NONE ? POLICER_GREEN : is_assured ? precedence / 2 - 1 : others;
}

STEP(policer) {
  u32 has_two_rates = parameters->has_two_rates;
  BucketTerms first = bucket_load(&parameters->first);
  BucketTerms second = bucket_load(&parameters->second);
  u64 committed_full = parameters->committed_full;
  u64 outer_full = parameters->outer_full;
  if (is_new) {
    state->committed = committed_full;
    state->outer = outer_full;
    state->time = packet->now;
  }
  u64 elapsed = bucket_advance(&state->time, packet->now);
  u64 rest = bucket_pour(&state->committed, committed_full, bucket_income(&first, elapsed));
  bucket_pour(&state->outer, outer_full, has_two_rates ? bucket_income(&second, elapsed) : rest);
  u32 before = policer_before(packet_dscp(packet), parameters->others);
  u32 colour = POLICER_RED;
  if (has_two_rates) {
    if (before != POLICER_RED && bucket_withdraw(&state->outer, packet->bytes)) {
      colour = before == POLICER_GREEN && bucket_withdraw(&state->committed, packet->bytes) ? POLICER_GREEN : POLICER_YELLOW;
    }
  } else if (before == POLICER_GREEN && bucket_withdraw(&state->committed, packet->bytes)) {
    colour = POLICER_GREEN;
  } else if (before != POLICER_RED && bucket_withdraw(&state->outer, packet->bytes)) {
    colour = POLICER_YELLOW;
  }
  for (u32 i = 0; i < 3; i++) {
    totals->colours[i].packets += colour == i;
    totals->colours[i].bytes += colour == i ? packet->bytes : 0;
  }
  u32 dscp = parameters->dscps[colour];
  if (dscp != POLICER_NONE) {
    packet_mark(packet, dscp);
  }
  return parameters->verdicts[colour];
}

PASSES_WITHOUT(policer)
