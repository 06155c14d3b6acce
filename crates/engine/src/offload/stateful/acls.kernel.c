/*
 * The first rule of an access list for each packet of one IP version that comes to it, and what that rule decides.
 *
 * Before this text stands that of rules.kernel.c. Defined by the host: VERSION (4, 6); ROUND_BITS; RECORD_..., VERDICT_..., DECISION_...; a bit of
 * answers, ANSWER_ENDS; NOT_ASKED, in place of a position, of packets that do not come; FIND_RULES_PARAMETERS, what the kernel takes.
 */

/* What a group shares. */
typedef struct {
  Tables tables;
  Lanes lanes[GROUP / LANES];
} Group;

#define ADDRESS_WORDS (VERSION == 6 ? 4u : 1u)
#define DECISION_MASK ((1u << DECISION_BITS) - 1)
#define DECISIONS_A_WORD (32u / DECISION_BITS)

FUNCTION Key no_key(void) {
  Key key;
  for (u32 i = 0; i < ADDRESS_WORDS; i++) {
    key.source[i] = 0;
    key.destination[i] = 0;
  }
  key.ports = 0;
  key.rest = 0;
  return key;
}

/* A packet's key, as functions before have left it. */
FUNCTION Key packet_key(GLOBAL const Record *record, GLOBAL const Ipv6Addresses *wide, GLOBAL const Answer *answer,
                        GLOBAL const Ipv6Addresses *wide_answer, u32 is_rewritten) {
  Record own = *record;
  Key key;
  key.source[0] = own.key[0];
  key.destination[0] = own.key[1];
  key.ports = own.key[2];
  key.rest = own.key[3] & ((1u << RECORD_DSCP) - 1);
  if (is_rewritten) {
    Answer now = *answer;
    key.source[0] = now.source;
    key.destination[0] = now.destination;
    key.ports = now.ports;
  }
#if VERSION == 6
  Ipv6Addresses addresses = is_rewritten ? *wide_answer : *wide;
  for (u32 i = 0; i < ADDRESS_WORDS; i++) {
    key.source[i] = addresses.source[i];
    key.destination[i] = addresses.destination[i];
  }
#endif
  return key;
}

/*
 * Writes the position of the first rule of each packet of this IP version that comes here to `first`, from `first_begin` on, and what is decided
 * to its answer: a verdict or, where `note` is not 0, the decision itself, from that bit on. Those of rules have DECISION_BITS each. Where the
 * list `begins` answers, all packets come that take part.
 */
KERNEL void find_rules(FIND_RULES_PARAMETERS) {
  LOCAL_MEMORY(Group, group);
  load_tables(&group->tables, classes, filter);
  barrier_group();
  LOCAL const Tables *tables = &group->tables;
  LOCAL Lanes *lanes = &group->lanes[lanes_index()];
  u32 stride = group_count() * (GROUP / LANES) * ROUND;
  for (u32 start = (group_index() * (GROUP / LANES) + lanes_index()) * ROUND; start < count; start += stride) {
    /* Of the lane's packets of this round, a bit each. */
    u32 own = 0;
    u32 coming = 0;
    for (u32 packet = lane(), bit = 1; packet < ROUND; packet += LANES, bit *= 2) {
      u32 index = start + packet;
      if (index < count) {
        u32 kind = records[index].kind;
        u32 verdict = begins ? VERDICT_PASS : answers[index].bits & 0xff;
        u32 is_own = (VERSION == 6) == ((kind & RECORD_IS_V6) != 0);
        own |= is_own ? bit : 0;
        coming |= is_own && (kind & RECORD_TAKES_PART) && verdict == VERDICT_PASS ? bit : 0;
      }
    }
    u32 any = ballot(coming != 0);
    if (any) {
      u32 waiting = 0;
      for (u32 packet = lane(), bit = 1; packet < ROUND; packet += LANES, bit *= 2) {
        /* Those that do not come are looked up as nothing. */
        Key key = no_key();
        if (coming & bit) {
          u32 index = start + packet;
          u32 ends = begins ? 0 : answers[index].bits >> ANSWER_ENDS & 3;
          key = packet_key(&records[index], &wide[index], &answers[index], &wide_answers[index], ends);
        }
        waiting = look_up(tables, lanes, key, packet, waiting, rules, classes, masks);
      }
      drain_all(tables, lanes, waiting, rules, classes, masks);
    }
    for (u32 packet = lane(), bit = 1; packet < ROUND; packet += LANES, bit *= 2) {
      u32 index = start + packet;
      u32 best = NONE;
      if (any) {
        best = compare_tail(tables, stored_key(lanes, packet), lanes->best[packet], rules, classes, masks);
      }
      if (own & bit) {
        first[first_begin + index] = !(coming & bit) ? NOT_ASKED : best == NONE ? NO_RULE : best;
      }
      if (coming & bit) {
        u32 at = best % DECISIONS_A_WORD * DECISION_BITS;
        u32 decision = best == NONE ? by_default : decisions[best / DECISIONS_A_WORD] >> at & DECISION_MASK;
        u32 before = begins ? VERDICT_PASS : answers[index].bits;
        answers[index].bits = note ? before | decision << note : (before & ~0xffu) | DECISION_VERDICT(decision);
      }
    }
    /* Keys are written over now. */
    sync_lanes();
  }
}
