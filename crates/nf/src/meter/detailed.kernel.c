/* A meter with details: see meter.kernel.c, and details.rs for Kept. */

/* Details of a direction, by what they would be with a packet alone: see details.rs. */
FUNCTION void meter_add_details(PRIVATE Kept *kept, u32 is_first, PRIVATE const Packet *packet) {
  u64 own[DETAIL_WORDS];
  for (u32 i = 0; i < DETAIL_WORDS; i++) {
    own[i] = packet->details[i];
  }
  u32 is_fragment = (packet->rest >> 16 & (KEY_FIRST_FRAGMENT | KEY_LATER_FRAGMENT)) != 0;
  if (packet->notes & NOTE_MARKED) {
    own[0] = (own[0] & ~((u64)0xfc << KEPT_CLASS_OF_SERVICE)) | (u64)packet_dscp(packet) << (KEPT_CLASS_OF_SERVICE + 2);
  }
  if (is_first) {
    kept->lengths = packet->bytes | (u64)packet->bytes << 32;
    for (u32 i = 0; i < DETAIL_WORDS; i++) {
      kept->ttls[i] = own[i];
    }
    kept->fragments = is_fragment;
    return;
  }
  u32 shortest = (u32)kept->lengths, longest = (u32)(kept->lengths >> 32);
  shortest = packet->bytes < shortest ? packet->bytes : shortest;
  longest = packet->bytes > longest ? packet->bytes : longest;
  kept->lengths = shortest | (u64)longest << 32;
  /* The lowest and the highest one are the first two bytes. */
  u32 ttl = own[0] & 0xff, lowest = kept->ttls[0] & 0xff, highest = kept->ttls[0] >> 8 & 0xff;
  lowest = ttl < lowest ? ttl : lowest;
  highest = ttl > highest ? ttl : highest;
  kept->ttls[0] = (kept->ttls[0] & ~(u64)0xffff) | lowest | highest << 8 | (own[0] & (u64)0xff << KEPT_FRAGMENT_FLAGS);
  kept->fragments += is_fragment;
}

FUNCTION void detailed_meter_clear(PRIVATE Detailed *state) {
  flow_clear(&state->flow);
  for (u32 way = 0; way < 2; way++) {
    state->kept[way].lengths = 0;
    for (u32 i = 0; i < DETAIL_WORDS; i++) {
      state->kept[way].ttls[i] = 0;
    }
    state->kept[way].fragments = 0;
  }
}

FUNCTION void detailed_meter_add(PRIVATE Detailed *state, PRIVATE const Packet *packet) {
  u32 way = flow_way(&state->flow, packet);
  meter_add_details(&state->kept[way], state->flow.packets[way] == 0, packet);
  flow_add(&state->flow, way, packet);
}

METER(detailed_meter)
