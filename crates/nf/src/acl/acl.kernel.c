/*
 * An access list whose rules admit connections: see reflect.rs. State: that of connections.kernel.c. Parameters: the same; behind these where
 * the packet's notes have what is decided. Totals: connections admitted; packets of such, and their bytes; errors about them.
 */
#define ACL_CONNECTIONS 0
#define ACL_PACKETS 1
#define ACL_BYTES 2
#define ACL_RELATED 3

FUNCTION u32 acl_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                      MORE more) {
  if (packet_role(packet, BY_CONNECTION) == ROLE_RELATED) {
    if (connection_is_alive(state, parameters, packet->now)) {
      totals[ACL_RELATED] += 1;
      return VERDICT_PASS;
    }
    return packet_decide(packet, parameters[CONNECTION_PARAMETERS]);
  }
  u64 next[2] = {state[0], state[1]};
  u32 kind = connection_step(next, packet, parameters);
  u32 admits = kind == CLASS_NEW && packet_decision(packet, parameters[CONNECTION_PARAMETERS]) == DECISION_ADMITS;
  if (kind == CLASS_ESTABLISHED || admits) {
    state[0] = next[0];
    state[1] = next[1];
  }
  if (kind == CLASS_ESTABLISHED) {
    totals[ACL_PACKETS] += 1;
    totals[ACL_BYTES] += packet->bytes;
    return VERDICT_PASS;
  }
  totals[ACL_CONNECTIONS] += admits;
  return packet_decide(packet, parameters[CONNECTION_PARAMETERS]);
}

FUNCTION u32 acl_without(PRIVATE Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {
  return packet_decide(packet, parameters[CONNECTION_PARAMETERS]);
}
