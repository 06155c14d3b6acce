/* An access list among functions that share entries, which keeps nothing there. Parameters: where the packet's notes have what is decided. */
FUNCTION u32 decide_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                         MORE more) {
  return packet_decide(packet, parameters[0]);
}

FUNCTION u32 decide_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  return passes ? packet_decide(packet, parameters[0]) : VERDICT_PASS;
}

FUNCTION u32 decide_summarize(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 is_member, u64 first, u64 latest,
                            GLOBAL const u32 *parameters, GLOBAL u64 *summary) {
  u32 verdict = DECISION_VERDICT(packet_decision(packet, parameters[0]));
  return !team_any(group->meeting, group->team, is_member && verdict != VERDICT_PASS);
}

FUNCTION u32 decide_apply(PRIVATE u64 *state, u64 first, u64 latest, GLOBAL const u32 *parameters, PRIVATE const u64 *summary,
                           PRIVATE u64 *dropped) {
  return 1;
}

FUNCTION u32 decide_without(PRIVATE Packet *packet, u32 role, GLOBAL const u32 *parameters, MORE more) {
  return packet_decide(packet, parameters[0]);
}
