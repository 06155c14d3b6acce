/*
 * Distinct contacts of a source within a window: see fan_out.rs. State: when the window began, or when the source became a scanner; the bits
 * (two words); attempts, and SCAN_SCANNER. Parameters: window, time as a scanner, the part of contacts that counts, bits at the threshold (64
 * bits each); what makes contacts distinct; whether those of UDP count; those of scan.kernel.c; with UDP the bit of the note that a packet
 * begins a flow.
 */
#define FAN_OUT_SEED 5
#define FAN_OUT_DISTINCT 8
#define FAN_OUT_UDP 9
#define FAN_OUT_VERDICT 12
#define FAN_OUT_NOTE 13

/* As Distinct has them. */
#define FAN_OUT_DESTINATIONS 0u
#define FAN_OUT_PORTS 1u

/* Whether a packet is a contact. */
FUNCTION u32 fan_out_opens(PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  if (scan_opens(packet)) {
    return 1;
  }
  u32 is_udp = (packet->rest & 0xff) == PROTOCOL_UDP && (packet->rest >> 16 & KEY_PORTS);
  return is_udp && parameters[FAN_OUT_UDP] && (packet->notes >> parameters[FAN_OUT_NOTE] & 1);
}

/* The hash of what is contacted, as far as it makes contacts distinct. */
FUNCTION u64 fan_out_contact(PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  u32 distinct = parameters[FAN_OUT_DISTINCT];
  u64 service = packet->ports >> 16 | (u64)(packet->rest & 0xff) << 32;
  PRIVATE const u32 *destination = packet->destination;
  u64 seed = parameter_64(parameters, FAN_OUT_SEED);
  if (distinct == FAN_OUT_PORTS) {
    return scan_hash(0, 0, 0, 0, 0, service, seed);
  }
  return scan_hash(destination[0], destination[1], destination[2], destination[3], packet->is_v6 ? 6 : 4,
                   distinct == FAN_OUT_DESTINATIONS ? 0 : service, seed);
}

FUNCTION u32 fan_out_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  u32 verdict = parameters[FAN_OUT_VERDICT];
  u64 elapsed = packet->now > state[0] ? packet->now - state[0] : 0;
  if (state[3] & SCAN_SCANNER) {
    if (elapsed < parameter_64(parameters, 1)) {
      return scan_blocks(packet, verdict, totals);
    }
    for (u32 i = 0; i < 4; i++) {
      state[i] = 0;
    }
  }
  if (!fan_out_opens(packet, parameters)) {
    return VERDICT_PASS;
  }
  if (state[3] == 0 || elapsed >= parameter_64(parameters, 0)) {
    state[0] = packet->now;
    state[1] = 0;
    state[2] = 0;
    state[3] = 0;
  }
  u32 attempts = (u32)state[3];
  attempts += attempts != 0xffffffff;
  u64 hash = fan_out_contact(packet, parameters);
  u64 bit = (hash & 0xffffffff) < parameter_64(parameters, 2) ? (u64)1 << (hash >> 57 & 63) : 0;
  u32 is_upper = (u32)(hash >> 63);
  state[1] |= is_upper ? 0 : bit;
  state[2] |= is_upper ? bit : 0;
  add_more(&more[SCAN_ATTEMPTS], 1);
  state[3] = attempts;
  if (scan_ones(state[1]) + scan_ones(state[2]) < parameter_64(parameters, 3)) {
    return VERDICT_PASS;
  }
  state[0] = packet->now;
  state[3] |= SCAN_SCANNER;
  return scan_detects(packet, attempts, verdict, totals, more);
}

/* Whether a packet may change its source's state. */
FUNCTION u32 fan_out_changes(PRIVATE const u64 *state, PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  if (state[3] & SCAN_SCANNER) {
    return packet->now > state[0] && packet->now - state[0] >= parameter_64(parameters, 1);
  }
  return fan_out_opens(packet, parameters);
}

SCAN_CROWD(fan_out, 4)
PASSES_WITHOUT(fan_out)
