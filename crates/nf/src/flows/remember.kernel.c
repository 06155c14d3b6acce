/* Notes which packets are the first ones of their flows that a function sees. */
STEP(remember) {
  packet->notes |= is_new << parameters->note;
  return VERDICT_PASS;
}

STEP_GROUP(remember) {
  packet->notes |= (group->is_new && team_item(group->team) == group->first) << parameters->note;
  return VERDICT_PASS;
}

PASSES_WITHOUT(remember)
