/*
 * Threshold random walk: see trw.rs. State: when the source became a scanner; destinations that were contacted, those of them that answered;
 * the walk, and SCAN_SCANNER; attempts. Parameters: time as a scanner (64 bits); what a failure adds, what a success does, where a source is
 * a scanner, where it is honest; those of scan.kernel.c.
 */
#define TRW_FAILURE 2
#define TRW_CREDIT 3
#define TRW_SCANNER 4
#define TRW_HONEST 5
#define TRW_SEED 3
#define TRW_VERDICT 8

/* Bits that are in use at most. */
#define TRW_IN_USE 32u

/* The bit of the destination that a packet contacts, or of the one that answers by it. */
FUNCTION u64 trw_bit(PRIVATE const Packet *packet, u32 answers, GLOBAL const u32 *parameters) {
  u32 end[4];
  for (u32 i = 0; i < 4; i++) {
    end[i] = answers ? packet->source[i] : packet->destination[i];
  }
  u64 hash = scan_hash(end[0], end[1], end[2], end[3], packet->is_v6 ? 6 : 4, 0, parameter_64(parameters, TRW_SEED));
  return (u64)1 << (hash >> 58);
}

FUNCTION u32 trw_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                      MORE more) {
  u32 verdict = parameters[TRW_VERDICT];
  if (state[3] & SCAN_SCANNER) {
    u64 elapsed = packet->now > state[0] ? packet->now - state[0] : 0;
    if (elapsed < parameter_64(parameters, 0)) {
      return scan_blocks(packet, verdict, totals);
    }
    for (u32 i = 0; i < 5; i++) {
      state[i] = 0;
    }
  }
  u32 answers = scan_answers(packet);
  if (!answers && !scan_opens(packet)) {
    return VERDICT_PASS;
  }
  u64 bit = trw_bit(packet, answers, parameters);
  i32 walk = (i32)(u32)state[3];
  if (answers) {
    if (state[1] & ~state[2] & bit) {
      i32 honest = (i32)parameters[TRW_HONEST];
      state[2] |= bit;
      walk += (i32)parameters[TRW_CREDIT];
      state[3] = (u32)(walk > honest ? walk : honest);
      add_more(&more[SCAN_ANSWERS], 1);
    }
    return VERDICT_PASS;
  }
  if (state[1] & bit) {
    return VERDICT_PASS;
  }
  if (scan_ones(state[1]) >= TRW_IN_USE) {
    state[1] &= ~state[2];
    state[2] = 0;
    state[1] = scan_ones(state[1]) >= TRW_IN_USE ? 0 : state[1];
  }
  u32 attempts = (u32)state[4];
  attempts += attempts != 0xffffffff;
  walk += (i32)parameters[TRW_FAILURE];
  state[1] |= bit;
  state[3] = (u32)walk;
  state[4] = attempts;
  add_more(&more[SCAN_ATTEMPTS], 1);
  if (walk < (i32)parameters[TRW_SCANNER]) {
    return VERDICT_PASS;
  }
  state[0] = packet->now;
  state[3] |= SCAN_SCANNER;
  return scan_detects(packet, attempts, verdict, totals, more);
}

/* Whether a packet may change its source's state. */
FUNCTION u32 trw_changes(PRIVATE const u64 *state, PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  if (state[3] & SCAN_SCANNER) {
    return packet->now > state[0] && packet->now - state[0] >= parameter_64(parameters, 0);
  }
  return scan_opens(packet) || scan_answers(packet);
}

SCAN_CROWD(trw, 5)
PASSES_WITHOUT(trw)
