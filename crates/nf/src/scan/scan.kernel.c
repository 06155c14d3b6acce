/* What both methods of `scan` need: see contact.rs and mod.rs. A detection is listed with its attempts. */
/* The bit of the word of state with `is_scanner` that says that its source is a scanner. */
#define SCAN_SCANNER ((u64)1 << SCAN_SCANNER_BIT)

#define TCP_SYN 0x02u

/* Whether it is the first packet of a TCP connection, and whether it is the answer to one. */
FUNCTION u32 scan_opens(PRIVATE const Packet *packet) { return (packet->rest >> 8 & TCP_SYN_ACK) == TCP_SYN; }
FUNCTION u32 scan_answers(PRIVATE const Packet *packet) { return (packet->rest >> 8 & TCP_SYN_ACK) == TCP_SYN_ACK; }

/* The hash of an address, which is 0 where it does not count, and of protocol and port or 0. */
FUNCTION u64 scan_hash(u32 w0, u32 w1, u32 w2, u32 w3, u32 version, u64 service, u64 seed) {
  u64 a[2], b[2];
  a[0] = version == 6 ? (u64)w0 << 32 | w1 : 0;
  a[1] = version == 6 ? (u64)w2 << 32 | w3 : w0;
  b[0] = 0;
  b[1] = 0;
  return flow_hash(a, b, service | (u64)version << 40, seed);
}

FUNCTION u32 scan_ones(u64 bits) { return count_ones((u32)bits) + count_ones((u32)(bits >> 32)); }

/* Counts a scanner's packet; the verdict on it. */
FUNCTION u32 scan_blocks(PRIVATE const Packet *packet, u32 verdict, PRIVATE Tally *totals) {
  totals->packets += 1;
  totals->bytes += packet->bytes;
  return verdict;
}

/* Counts the packet by which a scanner is found; the verdict on it. */
FUNCTION u32 scan_detects(PRIVATE Packet *packet, u32 attempts, u32 verdict, PRIVATE Tally *totals, MORE ScanMore *more) {
  packet->listed = attempts;
  add_more(&more->detections, 1);
  return scan_blocks(packet, verdict, totals);
}

/*
 * Takes a flow_group: of the packets that wait, those before the next one that may change the state are judged by it as it is, and that one's step
 * changes it. So a scanner's packets go together, and so do those that are no contacts.
 */
#define SCAN_GROUP(name)                                                                                                              \
  STEP_GROUP(name) {                                                                                                                  \
    u32 item = team_item(group->team);                                                                                                \
    u32 verdict = VERDICT_PASS;                                                                                                       \
    u32 waits = passes;                                                                                                               \
    u32 next;                                                                                                                         \
    do {                                                                                                                              \
      u64 own[sizeof(name##_State) / 8];                                                                                              \
      for (u32 i = 0; i < sizeof(name##_State) / 8; i++) {                                                                            \
        own[i] = group->state[i];                                                                                                     \
      }                                                                                                                               \
      PRIVATE name##_State *own_state = (PRIVATE name##_State *)own;                                                                  \
      next = team_first(group->meeting, group->team, waits && name##_changes(own_state, packet, parameters));                         \
      if (waits && item <= next) {                                                                                                    \
        verdict = name##_step(own_state, 0, packet, parameters, totals, more);                                                        \
        waits = 0;                                                                                                                    \
      }                                                                                                                               \
      if (item == next) {                                                                                                             \
        for (u32 i = 0; i < sizeof(name##_State) / 8; i++) {                                                                          \
          group->state[i] = own[i];                                                                                                   \
        }                                                                                                                             \
      }                                                                                                                               \
      team_sync(group->team);                                                                                                         \
    } while (next != EMPTY);                                                                                                          \
    return verdict;                                                                                                                   \
  }
