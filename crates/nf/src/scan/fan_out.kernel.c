/* Distinct contacts of a source within a window: see fan_out.rs. The note says that a packet begins a flow. */

/* Whether a packet is a contact. */
FUNCTION u32 fan_out_opens(PRIVATE const Packet *packet, GLOBAL const FanOutParameters *parameters) {
  if (scan_opens(packet)) {
    return 1;
  }
  u32 is_udp = (packet->rest & 0xff) == PROTOCOL_UDP && (packet->rest >> 16 & KEY_PORTS);
  return is_udp && parameters->udp && (packet->notes >> parameters->note & 1);
}

/* The hash of what is contacted, as far as it makes contacts distinct. */
FUNCTION u64 fan_out_contact(PRIVATE const Packet *packet, GLOBAL const FanOutParameters *parameters) {
  u32 distinct = parameters->distinct;
  u64 service = packet->ports >> 16 | (u64)(packet->rest & 0xff) << 32;
  PRIVATE const u32 *destination = packet->destination;
  u64 seed = parameters->seed;
  if (distinct == FAN_OUT_PORTS) {
    return scan_hash(0, 0, 0, 0, 0, service, seed);
  }
  return scan_hash(destination[0], destination[1], destination[2], destination[3], packet->is_v6 ? 6 : 4,
                   distinct == FAN_OUT_DESTINATIONS ? 0 : service, seed);
}

STEP(fan_out) {
  u32 verdict = parameters->verdict;
  u64 elapsed = packet->now > state->since ? packet->now - state->since : 0;
  if (state->attempts & SCAN_SCANNER) {
    if (elapsed < parameters->terms.block_for) {
      return scan_blocks(packet, verdict, totals);
    }
    state->since = 0;
    state->bits[0] = 0;
    state->bits[1] = 0;
    state->attempts = 0;
  }
  if (!fan_out_opens(packet, parameters)) {
    return VERDICT_PASS;
  }
  if (state->attempts == 0 || elapsed >= parameters->terms.window) {
    state->since = packet->now;
    state->bits[0] = 0;
    state->bits[1] = 0;
    state->attempts = 0;
  }
  u32 attempts = (u32)state->attempts;
  attempts += attempts != 0xffffffff;
  u64 hash = fan_out_contact(packet, parameters);
  u64 bit = (hash & 0xffffffff) < parameters->terms.part ? (u64)1 << (hash >> 57 & 63) : 0;
  u32 is_upper = (u32)(hash >> 63);
  state->bits[0] |= is_upper ? 0 : bit;
  state->bits[1] |= is_upper ? bit : 0;
  add_more(&more->attempts, 1);
  state->attempts = attempts;
  if (scan_ones(state->bits[0]) + scan_ones(state->bits[1]) < parameters->terms.limit) {
    return VERDICT_PASS;
  }
  state->since = packet->now;
  state->attempts |= SCAN_SCANNER;
  return scan_detects(packet, attempts, verdict, totals, more);
}

/* Whether a packet may change its source's state. */
FUNCTION u32 fan_out_changes(PRIVATE const Window *state, PRIVATE const Packet *packet, GLOBAL const FanOutParameters *parameters) {
  if (state->attempts & SCAN_SCANNER) {
    return packet->now > state->since && packet->now - state->since >= parameters->terms.block_for;
  }
  return fan_out_opens(packet, parameters);
}

SCAN_GROUP(fan_out)
PASSES_WITHOUT(fan_out)
