/*
 * The state of connections, as in mod.rs. State: the number of the connection's state, with CONNECTION_BY_A where endpoint a opened it; the
 * time of its last packet. Parameters: for each state its timeout (64 bits); then the steps, bytes by state, direction and signal.
 */
#define CONNECTION_STATES 17u
#define CONNECTION_SIGNALS 10u
#define CONNECTION_STEPS (CONNECTION_STATES * 2)
#define CONNECTION_PARAMETERS (CONNECTION_STEPS + (CONNECTION_STATES * 2 * CONNECTION_SIGNALS + 3) / 4)
#define CONNECTION_BY_A (1u << 8)

/* Bits of a step. */
#define CONNECTION_STATE 0x1fu
#define CONNECTION_OPENS 0x20u
#define CONNECTION_STAYS 0x40u
#define CONNECTION_INVALID 0x80u

/* What a packet says: the numbers of signals. */
#define SIGNAL_SYN 0u
#define SIGNAL_SYN_ACK 1u
#define SIGNAL_ACK 2u
#define SIGNAL_FIN 3u
#define SIGNAL_RESET 4u
#define SIGNAL_BAD 5u
#define SIGNAL_DATAGRAM 6u
#define SIGNAL_REQUEST 7u
#define SIGNAL_REPLY 8u
#define SIGNAL_PACKET 9u

/* What a packet is to the connections there are. */
#define CLASS_NEW 0u
#define CLASS_ESTABLISHED 1u
#define CLASS_INVALID 3u

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

FUNCTION u32 connection_state(PRIVATE const u64 *connection) { return (u32)(connection[0] & 0xff) % CONNECTION_STATES; }

FUNCTION u32 connection_is_alive(PRIVATE const u64 *connection, GLOBAL const u32 *parameters, u64 now) {
  u32 state = connection_state(connection);
  u64 timeout = parameters[state * 2] | (u64)parameters[state * 2 + 1] << 32;
  return (now > connection[1] ? now - connection[1] : 0) < timeout;
}

/* What a packet is to a connection, which becomes what it is if the packet passes; one that is invalid leaves it as it is. */
FUNCTION u32 connection_step(PRIVATE u64 *connection, PRIVATE const Packet *packet, GLOBAL const u32 *parameters) {
  u32 is_alive = connection_is_alive(connection, parameters, packet->now);
  u32 state = is_alive ? connection_state(connection) : 0;
  u32 by_a = is_alive ? (connection[0] & CONNECTION_BY_A) != 0 : packet->from_a;
  u32 at = (state * 2 + (by_a != packet->from_a)) * CONNECTION_SIGNALS + connection_signal(packet);
  u32 step = parameters[CONNECTION_STEPS + at / 4] >> at % 4 * 8 & 0xff;
  if (step & CONNECTION_INVALID) {
    return CLASS_INVALID;
  }
  if (step & CONNECTION_STAYS) {
    return CLASS_ESTABLISHED;
  }
  u32 opens = (step & CONNECTION_OPENS) != 0;
  u32 opener = opens ? packet->from_a : (connection[0] & CONNECTION_BY_A) != 0;
  connection[0] = (step & CONNECTION_STATE) | (opener ? CONNECTION_BY_A : 0);
  connection[1] = is_alive && connection[1] > packet->now ? connection[1] : packet->now;
  return opens ? CLASS_NEW : CLASS_ESTABLISHED;
}
