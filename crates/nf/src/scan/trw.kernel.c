/* Threshold random walk: see trw.rs, which declares TRW_IN_USE. The walk is the lower half of its word. */

/* The bit of the destination that a packet contacts, or of the one that answers by it. */
FUNCTION u64 trw_bit(PRIVATE const Packet *packet, u32 answers, GLOBAL const TrwParameters *parameters) {
  u32 end[4];
  for (u32 i = 0; i < 4; i++) {
    end[i] = answers ? packet->source[i] : packet->destination[i];
  }
  u64 hash = scan_hash(end[0], end[1], end[2], end[3], packet->is_v6 ? 6 : 4, 0, parameters->seed);
  return (u64)1 << (hash >> 58);
}

STEP(trw) {
  u32 verdict = parameters->verdict;
  if (state->ratio & SCAN_SCANNER) {
    u64 elapsed = packet->now > state->since ? packet->now - state->since : 0;
    if (elapsed < parameters->test.block_for) {
      return scan_blocks(packet, verdict, totals);
    }
    state->since = 0;
    state->contacted = 0;
    state->answered = 0;
    state->ratio = 0;
    state->attempts = 0;
  }
  u32 answers = scan_answers(packet);
  if (!answers && !scan_opens(packet)) {
    return VERDICT_PASS;
  }
  u64 bit = trw_bit(packet, answers, parameters);
  i32 walk = (i32)(u32)state->ratio;
  if (answers) {
    if (state->contacted & ~state->answered & bit) {
      i32 honest = parameters->test.honest;
      state->answered |= bit;
      walk += parameters->test.credit;
      state->ratio = (u32)(walk > honest ? walk : honest);
      add_more(&more->answers, 1);
    }
    return VERDICT_PASS;
  }
  if (state->contacted & bit) {
    return VERDICT_PASS;
  }
  if (scan_ones(state->contacted) >= TRW_IN_USE) {
    state->contacted &= ~state->answered;
    state->answered = 0;
    state->contacted = scan_ones(state->contacted) >= TRW_IN_USE ? 0 : state->contacted;
  }
  u32 attempts = (u32)state->attempts;
  attempts += attempts != 0xffffffff;
  walk += parameters->test.failure;
  state->contacted |= bit;
  state->ratio = (u32)walk;
  state->attempts = attempts;
  add_more(&more->attempts, 1);
  if (walk < parameters->test.scanner) {
    return VERDICT_PASS;
  }
  state->since = packet->now;
  state->ratio |= SCAN_SCANNER;
  return scan_detects(packet, attempts, verdict, totals, more);
}

/* Whether a packet may change its source's state. */
FUNCTION u32 trw_changes(PRIVATE const Walk *state, PRIVATE const Packet *packet, GLOBAL const TrwParameters *parameters) {
  if (state->ratio & SCAN_SCANNER) {
    return packet->now > state->since && packet->now - state->since >= parameters->test.block_for;
  }
  return scan_opens(packet) || scan_answers(packet);
}

SCAN_GROUP(trw)
PASSES_WITHOUT(trw)
