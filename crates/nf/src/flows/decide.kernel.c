/* An access list among functions that share entries, which keeps nothing there. From the note's bit on stands what is decided. */
STEP(decide) { return packet_decide(packet, parameters->note); }

STEP_GROUP(decide) { return passes ? packet_decide(packet, parameters->note) : VERDICT_PASS; }

STEP_SUMMARIZE(decide) {
  u32 verdict = DECISION_VERDICT(packet_decision(packet, parameters->note));
  return !team_any(group->meeting, group->team, is_member && verdict != VERDICT_PASS);
}

STEP_APPLY(decide) { return 1; }

STEP_WITHOUT(decide) { return packet_decide(packet, parameters->note); }
