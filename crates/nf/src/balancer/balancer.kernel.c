/*
 * Flows to services spread over backends: see mod.rs. State: the backend's number and 1, or 0 where the flow is to no service; the upper half
 * says whether the client is the flow's lower endpoint.
 *
 * Parameters: the number of services, their hashes' seed (two words), then for each service its address (four words), IP version, port
 * and protocol (ANY for any), the number of its first backend, and where its table begins and its entries; then for each backend its
 * address and its port, or ANY.
 *
 * Totals: packets to no service. More: for each backend packets, bytes, flows.
 */
#define BALANCER_ANY 0xffffffffu
#define BALANCER_SERVICE 10
#define BALANCER_BACKEND 5

/* FlowKey::hash of the 5-tuple that the packet now has. */
FUNCTION u64 balancer_hash(PRIVATE const Packet *packet, u64 seed) {
  u64 a[2], b[2];
  u32 from_a;
  u64 key = packet_ends(packet, a, b, &from_a);
  u64 tail = key | (u64)(packet->is_v6 ? 6 : 4) << 40;
  u64 hash = states_fold(a[1] ^ seed, b[1] ^ 0x9e3779b97f4a7c15);
  if (packet->is_v6) {
    hash ^= states_fold(a[0] ^ (seed << 17 | seed >> 47), b[0] ^ 0xd6e8feb86659fd93);
  }
  hash = states_fold(hash ^ 0xa0761d6478bd642f, tail ^ (seed << 32 | seed >> 32));
  return states_fold(hash ^ seed, 0x9e3779b97f4a7c15);
}

/* The backend of a new flow and 1, or 0. */
FUNCTION u32 balancer_choose(PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  GLOBAL const u32 *service = parameters + 4;
  u32 has_ports = packet->rest >> 16 & KEY_PORTS;
  for (u32 i = 0; i < parameters[0]; i++, service += BALANCER_SERVICE) {
    u32 fits = service[4] == packet->is_v6 && (service[5] == BALANCER_ANY || (has_ports && service[5] == packet->ports >> 16)) &&
               (service[6] == BALANCER_ANY || service[6] == (packet->rest & 0xff));
    for (u32 word = 0; word < 4; word++) {
      fits = fits && service[word] == packet->destination[word];
    }
    if (fits) {
      u64 seed = parameters[1] | (u64)parameters[2] << 32;
      u32 entry = multiply_high((u32)(balancer_hash(packet, seed) >> 32), service[9]);
      return 1 + service[7] + parameters[service[8] + entry];
    }
  }
  return 0;
}

/* Sends a packet of a flow to its backend. */
FUNCTION u32 balancer_send(PRIVATE Packet *packet, u32 chosen, GLOBAL const u32 *parameters) {
  GLOBAL const u32 *backend = parameters + parameters[3] + (chosen - 1) * BALANCER_BACKEND;
  return packet_rewrite_destination(packet, backend, backend[4]) ? VERDICT_PASS : VERDICT_REWRITE;
}

/* The state of a flow that begins with a packet. */
FUNCTION u64 balancer_begin(PRIVATE const Packet *packet, GLOBAL const u32 *parameters, MORE more) {
  u32 chosen = balancer_choose(packet, parameters);
  if (!chosen) {
    return 0;
  }
  add_more(&more[(chosen - 1) * 3 + 2], 1);
  return chosen | (u64)packet->from_a << 32;
}

/* Whether a packet is one to the flow's service. */
FUNCTION u32 balancer_takes(u64 state, PRIVATE const Packet *packet) { return (u32)state && (u32)(state >> 32) == packet->from_a; }

FUNCTION u32 balancer_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  if (is_new) {
    state[0] = balancer_begin(packet, parameters, more);
  }
  if (!balancer_takes(state[0], packet)) {
    totals[0] += 1;
    return VERDICT_PASS;
  }
  u32 chosen = (u32)state[0];
  add_more(&more[(chosen - 1) * 3], 1);
  add_more(&more[(chosen - 1) * 3 + 1], packet->bytes);
  return balancer_send(packet, chosen, parameters);
}

FUNCTION u32 balancer_crowd(PRIVATE Crowd *crowd, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                            MORE more) {
  if (crowd->is_new) {
    if (team_item(crowd->team) == crowd->first) {
      crowd->state[0] = balancer_begin(packet, parameters, more);
    }
    team_sync(crowd->team);
  }
  u64 state = crowd->state[0];
  u32 takes = passes && balancer_takes(state, packet);
  totals[0] += passes && !takes;
  u64 bytes;
  u64 packets = crowd_count(crowd, packet, takes, &bytes);
  if (packets && team_item(crowd->team) == 0) {
    add_more(&more[((u32)state - 1) * 3], packets);
    add_more(&more[((u32)state - 1) * 3 + 1], bytes);
  }
  return takes ? balancer_send(packet, (u32)state, parameters) : VERDICT_PASS;
}
