/* A meter without details: see meter.kernel.c. */
FUNCTION void meter_clear(PRIVATE Flow *state) { flow_clear(state); }

FUNCTION void meter_add(PRIVATE Flow *state, PRIVATE const Packet *packet) { flow_add(state, flow_way(state->rest, packet), packet); }

FUNCTION void meter_add_group(PRIVATE FlowGroup *group, LOCAL Flow *state, u32 is_left, u32 way, PRIVATE const Packet *packet) {
  flow_add_group(group, state, is_left, way, packet);
}

METER(meter)
