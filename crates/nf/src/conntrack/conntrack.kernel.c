/* The state of connections: see mod.rs and connections.kernel.c. */
FUNCTION void conntrack_count(PRIVATE const Packet *packet, u32 kind, MORE conntrack_More *more) {
  add_more(&more->kinds[kind].packets, 1);
  add_more(&more->kinds[kind].bytes, packet->bytes);
}

STEP(conntrack) {
  u32 invalid = parameters->invalid;
  if (packet_role(packet, BY_CONNECTION) == ROLE_RELATED) {
    u32 is_known = connection_is_alive(state, &parameters->connections, packet->now);
    conntrack_count(packet, is_known ? CLASS_RELATED : CLASS_INVALID, more);
    return is_known ? VERDICT_PASS : invalid;
  }
  u32 before = connection_state(state);
  u32 kind = connection_step(state, packet, &parameters->connections);
  u32 after = connection_state(state);
  conntrack_count(packet, kind, more);
  if (kind == CLASS_INVALID) {
    return invalid;
  }
  if (kind == CLASS_NEW) {
    u32 protocol = packet->rest & 0xff;
    u32 place = protocol == PROTOCOL_TCP                                     ? 0
                : protocol == PROTOCOL_UDP                                   ? 1
                : protocol == PROTOCOL_ICMP || protocol == PROTOCOL_ICMPV6 ? 2
                                                                             : 3;
    add_more(&more->opened[place], 1);
  }
  if (kind == CLASS_NEW || after != before) {
    add_more(&more->entered[after], 1);
  }
  return VERDICT_PASS;
}

/* There was no room, or there is no connection. */
STEP_WITHOUT(conntrack) {
  u32 is_invalid = role != ROLE_MEMBER && role != ROLE_UNTRACKED;
  conntrack_count(packet, is_invalid ? CLASS_INVALID : CLASS_UNTRACKED, more);
  return is_invalid ? parameters->invalid : VERDICT_PASS;
}
