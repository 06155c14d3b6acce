/* Notes which packets are the first ones of their flows that a function sees. Parameters: the note's bit. */
FUNCTION u32 remember_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  packet->notes |= is_new << parameters[0];
  return VERDICT_PASS;
}

FUNCTION u32 remember_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                            MORE more) {
  packet->notes |= (group->is_new && team_item(group->team) == group->first) << parameters[0];
  return VERDICT_PASS;
}

PASSES_WITHOUT(remember)
