/*
 * The first rule of an access list for each packet of one IP version that comes to it, and what that rule decides.
 *
 * Before this text stands that of rules.kernel.c. Defined by the host: VERSION (4, 6); ROUND_BITS; RECORD_..., VERDICT_..., DECISION_...; a bit of
 * answers, ANSWER_ENDS; NOT_ASKED, in place of a position, of packets that do not come.
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
FUNCTION Key packet_key(GLOBAL const u32x4 *records, GLOBAL const u32x4 *wide, GLOBAL const u32x4 *answers,
                        GLOBAL const u32x4 *wide_answers, u32 index, u32 is_rewritten) {
  u32x4 head = records[(u64)index * 2];
  Key key;
  key.source[0] = head.x;
  key.destination[0] = head.y;
  key.ports = head.z;
  key.rest = head.w & ((1u << RECORD_DSCP) - 1);
  if (is_rewritten) {
    u32x4 answer = answers[index];
    key.source[0] = answer.y;
    key.destination[0] = answer.z;
    key.ports = answer.w;
  }
#if VERSION == 6
  GLOBAL const u32x4 *addresses = (is_rewritten ? wide_answers : wide) + (u64)index * 2;
  u32x4 source = addresses[0];
  u32x4 destination = addresses[1];
  key.source[0] = source.x;
  key.source[1] = source.y;
  key.source[2] = source.z;
  key.source[3] = source.w;
  key.destination[0] = destination.x;
  key.destination[1] = destination.y;
  key.destination[2] = destination.z;
  key.destination[3] = destination.w;
#endif
  return key;
}

/*
 * Writes the position of the first rule of each packet of this IP version that comes here to `first`, from `first_begin` on, and what is decided
 * to its answer: a verdict or, where `note` is not 0, the decision itself, from that bit on. Those of rules have DECISION_BITS each. Where the
 * list `begins` answers, all packets come that take part.
 */
KERNEL void find_rules(GLOBAL const u32x4 *records, GLOBAL const u32x4 *wide, GLOBAL u32x4 *answers, GLOBAL const u32x4 *wide_answers,
                       GLOBAL u32 *first, u32 first_begin, u32 count, u32 begins, u32 note, GLOBAL const u32 *RESTRICT decisions, u32 by_default,
                       GLOBAL const u32x4 *RESTRICT rules, GLOBAL const u32x4 *RESTRICT classes, GLOBAL const u32 *RESTRICT filter,
                       GLOBAL const u32 *RESTRICT masks) {
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
        u32 kind = records[(u64)index * 2 + 1].w;
        u32 verdict = begins ? VERDICT_PASS : answers[index].x & 0xff;
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
          u32 ends = begins ? 0 : answers[start + packet].x >> ANSWER_ENDS & 3;
          key = packet_key(records, wide, answers, wide_answers, start + packet, ends);
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
        GLOBAL u32 *answer = (GLOBAL u32 *)&answers[index];
        u32 before = begins ? VERDICT_PASS : *answer;
        *answer = note ? before | decision << note : (before & ~0xffu) | DECISION_VERDICT(decision);
      }
    }
    /* Keys are written over now. */
    sync_lanes();
  }
}
