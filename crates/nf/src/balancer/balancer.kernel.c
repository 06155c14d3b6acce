/*
 * Flows to services spread over backends: see mod.rs, which declares what is given and counted, and services.rs the rows. State: the backend's number
 * and 1, or 0 where the flow is to no service; the upper half says whether the client is the flow's lower endpoint. What is counted by an index:
 * for each backend a Load; where packets are returned, for each a Tally.
 */

/* FlowKey::hash of the 5-tuple that the packet now has. */
FUNCTION u64 balancer_hash(PRIVATE const Packet *packet, u64 seed) {
  u64 a[2], b[2];
  u32 from_a;
  u64 key = packet_ends(packet, a, b, &from_a);
  return flow_hash(a, b, key | (u64)(packet->is_v6 ? 6 : 4) << 40, seed);
}

/* The backend of a new flow and 1, or 0. */
FUNCTION u32 balancer_choose(PRIVATE const Packet *packet, GLOBAL const BalancerParameters *parameters) {
  GLOBAL const BalancerService *service = ROWS(BalancerService, parameters, parameters->services);
  u32 has_ports = packet->rest >> 16 & KEY_PORTS;
  for (u32 i = 0; i < parameters->service_count; i++, service++) {
    u32 fits = service->is_v6 == packet->is_v6 &&
               (service->port == BALANCER_ANY || (has_ports && service->port == packet->ports >> 16)) &&
               (service->protocol == BALANCER_ANY || service->protocol == (packet->rest & 0xff));
    for (u32 word = 0; word < 4; word++) {
      fits = fits && service->address[word] == packet->destination[word];
    }
    if (fits) {
      u32 entry = multiply_high((u32)(balancer_hash(packet, parameters->seed) >> 32), service->entries);
      return 1 + service->first + ROWS(u32, parameters, service->table)[entry];
    }
  }
  return 0;
}

/* Whether the address of what is returned is below that of a packet's source, or is it where `or_same`. */
FUNCTION u32 balancer_is_below(GLOBAL const BalancerReturn *own, PRIVATE const Packet *packet, u32 or_same) {
  /* From the last word on, without leaving early: so that all words have numbers that compilers know, and packets stay in registers. */
  u32 is_below = or_same;
  for (u32 i = 4; i > 0; i--) {
    is_below = own->from[i - 1] != packet->source[i - 1] ? own->from[i - 1] < packet->source[i - 1] : is_below;
  }
  return own->is_v6 != packet->is_v6 ? own->is_v6 < packet->is_v6 : is_below;
}

/* What a packet from a backend is: 1 and the number of its row; 0 for those of nobody, and for messages of ICMP that are not replies. */
FUNCTION u32 balancer_return(PRIVATE const Packet *packet, GLOBAL const BalancerParameters *parameters) {
  u32 bits = packet->rest >> 16;
  u32 protocol = packet->rest & 0xff;
  u32 port = packet->ports & 0xffff;
  /* Later fragments do not say what they are of. */
  if ((protocol == PROTOCOL_ICMP || protocol == PROTOCOL_ICMPV6) && !((bits & KEY_ICMP) && packet_is_reply(packet)) && !(bits & KEY_LATER_FRAGMENT)) {
    return 0;
  }
  GLOBAL const BalancerReturn *returns = ROWS(BalancerReturn, parameters, parameters->returns);
  u32 low = 0;
  u32 high = parameters->return_count;
  while (low < high) {
    u32 middle = (low + high) / 2;
    if (balancer_is_below(&returns[middle], packet, 0)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < parameters->return_count; low++) {
    GLOBAL const BalancerReturn *from = &returns[low];
    /* The first one is not below; the next ones may be above. */
    if (!balancer_is_below(from, packet, 1)) {
      return 0;
    }
    if ((from->from_port == BALANCER_ANY || ((bits & KEY_PORTS) && from->from_port == port)) &&
        (from->protocol == BALANCER_ANY || from->protocol == protocol)) {
      return 1 + low;
    }
  }
  return 0;
}

/* The backend that is chosen for a flow: words from a file may name one of the other IP version. */
FUNCTION GLOBAL const BalancerBackend *balancer_backend(u32 chosen, GLOBAL const BalancerParameters *parameters) {
  return ROWS(BalancerBackend, parameters, parameters->backends) + (chosen - 1);
}

/* Sends a packet of a flow to its backend. */
FUNCTION u32 balancer_send(PRIVATE Packet *packet, u32 chosen, GLOBAL const BalancerParameters *parameters) {
  GLOBAL const BalancerBackend *backend = balancer_backend(chosen, parameters);
  u32 fits = backend->is_v6 == packet->is_v6;
  return fits && packet_rewrite(packet, END_DESTINATION, backend->address, backend->port) ? VERDICT_PASS : VERDICT_REWRITE;
}

/* The state of a flow that begins with a packet. */
FUNCTION u64 balancer_begin(PRIVATE const Packet *packet, GLOBAL const BalancerParameters *parameters, MORE Load *more) {
  u32 chosen = balancer_choose(packet, parameters);
  if (!chosen) {
    return 0;
  }
  add_more(&more[chosen - 1].flows, 1);
  return chosen | (u64)packet->from_a << 32;
}

/* Whether a packet is one to the flow's service. */
FUNCTION u32 balancer_takes(u64 state, PRIVATE const Packet *packet) { return (u32)state && (u32)(state >> 32) == packet->from_a; }

/* What becomes of a packet that is not one to the flow's service: it is from a backend, or nobody's. */
FUNCTION u32 balancer_other(PRIVATE Packet *packet, GLOBAL const BalancerParameters *parameters, PRIVATE balancer_Totals *totals, MORE Load *more) {
  u32 place = balancer_return(packet, parameters);
  if (!place) {
    totals->others += 1;
    return VERDICT_PASS;
  }
  GLOBAL const BalancerReturn *from = ROWS(BalancerReturn, parameters, parameters->returns) + (place - 1);
  MORE Tally *returned = (MORE Tally *)(more + parameters->backend_count) + from->backend;
  add_more(&returned->packets, 1);
  add_more(&returned->bytes, packet->bytes);
  return packet_rewrite(packet, END_SOURCE, from->address, from->port) ? VERDICT_PASS : VERDICT_REWRITE;
}

STEP(balancer) {
  if (is_new) {
    state->backend = balancer_begin(packet, parameters, more);
  }
  if (!balancer_takes(state->backend, packet)) {
    return balancer_other(packet, parameters, totals, more);
  }
  u32 chosen = (u32)state->backend;
  add_more(&more[chosen - 1].packets, 1);
  add_more(&more[chosen - 1].bytes, packet->bytes);
  return balancer_send(packet, chosen, parameters);
}

STEP_GROUP(balancer) {
  if (group->is_new) {
    if (team_item(group->team) == group->first) {
      state->backend = balancer_begin(packet, parameters, more);
    }
    team_sync(group->team);
  }
  u64 chosen = state->backend;
  u32 takes = passes && balancer_takes(chosen, packet);
  u64 bytes;
  u64 packets = flow_group_count(group, packet, takes, &bytes);
  if (packets && team_item(group->team) == 0) {
    add_more(&more[(u32)chosen - 1].packets, packets);
    add_more(&more[(u32)chosen - 1].bytes, bytes);
  }
  return takes ? balancer_send(packet, (u32)chosen, parameters) : passes ? balancer_other(packet, parameters, totals, more) : VERDICT_PASS;
}

/* A flow that has its backend keeps it: what packets do depends on them alone. Those of SCTP may not pass. Their IP version. */
STEP_SUMMARIZE(balancer) {
  if (team_item(group->team) == group->first) {
    summary->is_v6 = packet->is_v6;
  }
  return !team_any(group->meeting, group->team, is_member && (packet->rest & 0xff) == PROTOCOL_SCTP);
}

STEP_APPLY(balancer) {
  u32 chosen = (u32)state->backend;
  return !chosen || balancer_backend(chosen, parameters)->is_v6 == summary->is_v6;
}

PASSES_WITHOUT(balancer)
