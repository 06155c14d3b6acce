/*
 * Flows to services spread over backends: see mod.rs. State: the backend's number and 1, or 0 where the flow is to no service; the upper half
 * says whether the client is the flow's lower endpoint.
 *
 * Parameters, words of 32 bits: the number of services, their hashes' seed (two), where backends begin and how many they are, where returns
 * begin and how many they are. Then for each service its address (four), IP version, port and protocol (ANY for any), the number of its
 * first backend, and where its table begins and its entries; for each backend its address, its port, or ANY, and whether it is IPv6; for each of what
 * is returned, by address in order, whether that is IPv6, the address, the port and protocol from which it comes, or ANY, the backend's
 * number, the address that it gets, and the port, or ANY.
 *
 * Totals: packets to no service, and from no backend where these are returned. More: for each backend packets, bytes, flows; where they
 * are returned, for each packets and bytes.
 */
#define BALANCER_ANY 0xffffffffu
#define BALANCER_SERVICES 7
#define BALANCER_SERVICE 10
#define BALANCER_BACKEND 6
#define BALANCER_RETURN 13

/* FlowKey::hash of the 5-tuple that the packet now has. */
FUNCTION u64 balancer_hash(PRIVATE const Packet *packet, u64 seed) {
  u64 a[2], b[2];
  u32 from_a;
  u64 key = packet_ends(packet, a, b, &from_a);
  return flow_hash(a, b, key | (u64)(packet->is_v6 ? 6 : 4) << 40, seed);
}

/* The backend of a new flow and 1, or 0. */
FUNCTION u32 balancer_choose(PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  GLOBAL const u32 *service = parameters + BALANCER_SERVICES;
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

/* Whether the address of what is returned is below that of a packet's source, or is it where `or_same`. */
FUNCTION u32 balancer_is_below(GLOBAL const u32 *own, PRIVATE const Packet *packet, u32 or_same) {
  /* From the last word on, without leaving early: so that all words have numbers that compilers know, and packets stay in registers. */
  u32 is_below = or_same;
  for (u32 i = 4; i > 0; i--) {
    is_below = own[i] != packet->source[i - 1] ? own[i] < packet->source[i - 1] : is_below;
  }
  return own[0] != packet->is_v6 ? own[0] < packet->is_v6 : is_below;
}

/* What a packet from a backend is: the place of its parameters; 0 for those of nobody, and for messages of ICMP that are not replies. */
FUNCTION u32 balancer_return(PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  u32 bits = packet->rest >> 16;
  u32 protocol = packet->rest & 0xff;
  u32 port = packet->ports & 0xffff;
  /* Later fragments do not say what they are of. */
  if ((protocol == PROTOCOL_ICMP || protocol == PROTOCOL_ICMPV6) && !((bits & KEY_ICMP) && packet_is_reply(packet)) && !(bits & KEY_LATER_FRAGMENT)) {
    return 0;
  }
  u32 begin = parameters[5];
  u32 low = 0;
  u32 high = parameters[6];
  while (low < high) {
    u32 middle = (low + high) / 2;
    if (balancer_is_below(parameters + begin + middle * BALANCER_RETURN, packet, 0)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < parameters[6]; low++) {
    u32 place = begin + low * BALANCER_RETURN;
    GLOBAL const u32 *from = parameters + place;
    /* The first one is not below; the next ones may be above. */
    if (!balancer_is_below(from, packet, 1)) {
      return 0;
    }
    if ((from[5] == BALANCER_ANY || ((bits & KEY_PORTS) && from[5] == port)) && (from[6] == BALANCER_ANY || from[6] == protocol)) {
      return place;
    }
  }
  return 0;
}

/* The backend that is chosen for a flow: words from a file may name one of the other IP version. */
FUNCTION GLOBAL const u32 *balancer_backend(u32 chosen, GLOBAL const u32 *parameters) {
  return parameters + parameters[3] + (chosen - 1) * BALANCER_BACKEND;
}

/* Sends a packet of a flow to its backend. */
FUNCTION u32 balancer_send(PRIVATE Packet *packet, u32 chosen, GLOBAL const u32 *parameters) {
  GLOBAL const u32 *backend = balancer_backend(chosen, parameters);
  return backend[5] == packet->is_v6 && packet_rewrite(packet, END_DESTINATION, backend, backend[4]) ? VERDICT_PASS : VERDICT_REWRITE;
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

/* What becomes of a packet that is not one to the flow's service: it is from a backend, or nobody's. */
FUNCTION u32 balancer_other(PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals, MORE more) {
  u32 place = balancer_return(packet, parameters);
  if (!place) {
    totals[0] += 1;
    return VERDICT_PASS;
  }
  GLOBAL const u32 *from = parameters + place;
  u32 returned = parameters[4] * 3 + from[7] * 2;
  add_more(&more[returned], 1);
  add_more(&more[returned + 1], packet->bytes);
  return packet_rewrite(packet, END_SOURCE, from + 8, from[12]) ? VERDICT_PASS : VERDICT_REWRITE;
}

FUNCTION u32 balancer_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  if (is_new) {
    state[0] = balancer_begin(packet, parameters, more);
  }
  if (!balancer_takes(state[0], packet)) {
    return balancer_other(packet, parameters, totals, more);
  }
  u32 chosen = (u32)state[0];
  add_more(&more[(chosen - 1) * 3], 1);
  add_more(&more[(chosen - 1) * 3 + 1], packet->bytes);
  return balancer_send(packet, chosen, parameters);
}

FUNCTION u32 balancer_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                            MORE more) {
  if (group->is_new) {
    if (team_item(group->team) == group->first) {
      group->state[0] = balancer_begin(packet, parameters, more);
    }
    team_sync(group->team);
  }
  u64 state = group->state[0];
  u32 takes = passes && balancer_takes(state, packet);
  u64 bytes;
  u64 packets = flow_group_count(group, packet, takes, &bytes);
  if (packets && team_item(group->team) == 0) {
    add_more(&more[((u32)state - 1) * 3], packets);
    add_more(&more[((u32)state - 1) * 3 + 1], bytes);
  }
  return takes ? balancer_send(packet, (u32)state, parameters) : passes ? balancer_other(packet, parameters, totals, more) : VERDICT_PASS;
}

/* A flow that has its backend keeps it: what packets do depends on them alone. Those of SCTP may not pass. Their IP version. */
FUNCTION u32 balancer_summarize(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 is_member, u64 first, u64 latest,
                              GLOBAL const u32 *parameters, GLOBAL u64 *summary) {
  if (team_item(group->team) == group->first) {
    summary[0] = packet->is_v6;
  }
  return !team_any(group->meeting, group->team, is_member && (packet->rest & 0xff) == PROTOCOL_SCTP);
}

FUNCTION u32 balancer_apply(PRIVATE u64 *state, u64 first, u64 latest, GLOBAL const u32 *parameters, PRIVATE const u64 *summary,
                             PRIVATE u64 *dropped) {
  u32 chosen = (u32)state[0];
  return !chosen || balancer_backend(chosen, parameters)[5] == summary[0];
}

PASSES_WITHOUT(balancer)
