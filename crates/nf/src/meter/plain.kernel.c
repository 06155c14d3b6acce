/* A meter without details: see meter.kernel.c. */
FUNCTION void meter_clear(PRIVATE Flow *state) { flow_clear(state); }

FUNCTION void meter_add(PRIVATE Flow *state, PRIVATE const Packet *packet) { flow_add(state, flow_way(state, packet), packet); }

METER(meter)
