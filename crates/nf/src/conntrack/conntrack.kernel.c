/*
 * The state of connections: see mod.rs. State and parameters: those of connections.kernel.c; behind these the verdict on what is invalid.
 * More: packets and bytes of each kind; connections that were opened, by protocol; how many times each state was entered.
 */
#define CONNTRACK_RELATED 2u
#define CONNTRACK_INVALID 3u
#define CONNTRACK_UNTRACKED 4u
#define CONNTRACK_OPENED 10u
#define CONNTRACK_ENTERED 14u

FUNCTION void conntrack_count(PRIVATE const Packet *packet, u32 kind, MORE more) {
  add_more(&more[kind * 2], 1);
  add_more(&more[kind * 2 + 1], packet->bytes);
}

FUNCTION u32 conntrack_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                            MORE more) {
  u32 invalid = parameters[CONNECTION_PARAMETERS];
  if (packet_role(packet, BY_CONNECTION) == ROLE_RELATED) {
    u32 is_known = connection_is_alive(state, parameters, packet->now);
    conntrack_count(packet, is_known ? CONNTRACK_RELATED : CONNTRACK_INVALID, more);
    return is_known ? VERDICT_PASS : invalid;
  }
  u32 before = connection_state(state);
  u32 kind = connection_step(state, packet, parameters);
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
    add_more(&more[CONNTRACK_OPENED + place], 1);
  }
  if (kind == CLASS_NEW || after != before) {
    add_more(&more[CONNTRACK_ENTERED + after], 1);
  }
  return VERDICT_PASS;
}

/* There was no room, or there is no connection. */
FUNCTION u32 conntrack_without(PRIVATE Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {
  u32 is_invalid = role != ROLE_MEMBER && role != ROLE_UNTRACKED;
  conntrack_count(packet, is_invalid ? CONNTRACK_INVALID : CONNTRACK_UNTRACKED, more);
  return is_invalid ? parameters[CONNECTION_PARAMETERS] : VERDICT_PASS;
}
