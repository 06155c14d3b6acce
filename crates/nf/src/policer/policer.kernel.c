/*
 * A marker for each flow: see mod.rs. State: committed level, outer level, time. Parameters: with one rate the bucket of both, where each is
 * full (three and two words of 64 bits) and a word that is left out; with two rates two buckets. Then whether there are two rates; the
 * verdicts on green, yellow and red; the DSCPs that they get, or POLICER_NONE; and the colour of packets whose DSCP says none, or
 * POLICER_NONE where all are green before. Totals: packets and bytes of each colour.
 */
#define POLICER_GREEN 0u
#define POLICER_YELLOW 1u
#define POLICER_RED 2u
#define POLICER_NONE 0xffffffffu

/* The colour that a packet comes with: its drop precedence in a class of assured forwarding. */
FUNCTION u32 policer_before(u32 dscp, u32 others) {
  u32 class_of = dscp >> 3;
  u32 precedence = dscp & 7;
  u32 is_assured = class_of >= 1 && class_of <= 4 && precedence >= 2 && precedence % 2 == 0;
  return others == POLICER_NONE ? POLICER_GREEN : is_assured ? precedence / 2 - 1 : others;
}

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
  u32 before = policer_before(packet_dscp(packet), parameters[19]);
  u32 colour = POLICER_RED;
  if (has_two_rates) {
    if (before != POLICER_RED && bucket_withdraw(&state[1], packet->bytes)) {
      colour = before == POLICER_GREEN && bucket_withdraw(&state[0], packet->bytes) ? POLICER_GREEN : POLICER_YELLOW;
    }
  } else if (before == POLICER_GREEN && bucket_withdraw(&state[0], packet->bytes)) {
    colour = POLICER_GREEN;
  } else if (before != POLICER_RED && bucket_withdraw(&state[1], packet->bytes)) {
    colour = POLICER_YELLOW;
  }
  for (u32 i = 0; i < 3; i++) {
    totals[i * 2] += colour == i;
    totals[i * 2 + 1] += colour == i ? packet->bytes : 0;
  }
  u32 dscp = parameters[16 + colour];
  if (dscp != POLICER_NONE) {
    packet_mark(packet, dscp);
  }
  return parameters[13 + colour];
}

PASSES_WITHOUT(policer)
