/* An access list whose rules admit connections: see reflect.rs and connections.kernel.c. From the note's bit on stands what is decided. */
STEP(acl) {
  if (packet_role(packet, BY_CONNECTION) == ROLE_RELATED) {
    if (connection_is_alive(state, &parameters->connections, packet->now)) {
      totals->related += 1;
      return VERDICT_PASS;
    }
    return packet_decide(packet, parameters->note);
  }
  Connection next;
  next.bits = state->bits;
  next.last = state->last;
  u32 kind = connection_step(&next, packet, &parameters->connections);
  u32 admits = kind == CLASS_NEW && packet_decision(packet, parameters->note) == DECISION_ADMITS;
  if (kind == CLASS_ESTABLISHED || admits) {
    state->bits = next.bits;
    state->last = next.last;
  }
  if (kind == CLASS_ESTABLISHED) {
    totals->packets += 1;
    totals->bytes += packet->bytes;
    return VERDICT_PASS;
  }
  totals->connections += admits;
  return packet_decide(packet, parameters->note);
}

STEP_WITHOUT(acl) { return packet_decide(packet, parameters->note); }
