/*
 * The state of connections, as in mod.rs, which declares Connection, ConnectionParameters, and the numbers of states and signals, the bits of steps
 * and of a connection, and what a packet is to the connections there are.
 */
FUNCTION u32 connection_signal(PRIVATE const Packet *packet) {
  u32 protocol = packet->rest & 0xff;
  if (protocol == PROTOCOL_TCP) {
    /* FIN, SYN, RST and ACK. */
    u32 flags = packet->rest >> 16 & KEY_TCP_FLAGS ? packet->rest >> 8 & 0x17 : 0;
    return flags == 0x02                    ? SIGNAL_SYN
           : flags == 0x12                  ? SIGNAL_SYN_ACK
           : flags == 0x10                  ? SIGNAL_ACK
           : flags == 0x11                  ? SIGNAL_FIN
           : flags == 0x04 || flags == 0x14 ? SIGNAL_RESET
                                            : SIGNAL_BAD;
  }
  if (protocol == PROTOCOL_ICMP || protocol == PROTOCOL_ICMPV6) {
    return packet_is_request(packet) ? SIGNAL_REQUEST : packet_is_reply(packet) ? SIGNAL_REPLY : SIGNAL_BAD;
  }
  return protocol == PROTOCOL_UDP ? SIGNAL_DATAGRAM : SIGNAL_PACKET;
}

FUNCTION u32 connection_state(PRIVATE const Connection *connection) { return (u32)(connection->bits & 0xff) % CONNECTION_STATES; }

FUNCTION u32 connection_is_alive(PRIVATE const Connection *connection, GLOBAL const ConnectionParameters *parameters, u64 now) {
  u64 timeout = parameters->timeouts[connection_state(connection)];
  return (now > connection->last ? now - connection->last : 0) < timeout;
}

/* What a packet is to a connection, which becomes what it is if the packet passes; one that is invalid leaves it as it is. */
FUNCTION u32 connection_step(PRIVATE Connection *connection, PRIVATE const Packet *packet, GLOBAL const ConnectionParameters *parameters) {
  u32 is_alive = connection_is_alive(connection, parameters, packet->now);
  u32 state = is_alive ? connection_state(connection) : 0;
  u32 by_a = is_alive ? (connection->bits & CONNECTION_BY_A) != 0 : packet->from_a;
  u32 signal = connection_signal(packet);
  u32 step = parameters->steps[state][by_a != packet->from_a][signal / 4] >> signal % 4 * 8 & 0xff;
  if (step & CONNECTION_INVALID) {
    return CLASS_INVALID;
  }
  if (step & CONNECTION_STAYS) {
    return CLASS_ESTABLISHED;
  }
  u32 opens = (step & CONNECTION_OPENS) != 0;
  u32 opener = opens ? packet->from_a : (connection->bits & CONNECTION_BY_A) != 0;
  connection->bits = (step & CONNECTION_STATE) | (opener ? CONNECTION_BY_A : 0);
  connection->last = is_alive && connection->last > packet->now ? connection->last : packet->now;
  return opens ? CLASS_NEW : CLASS_ESTABLISHED;
}
