/*
 * The first rule that matches each key of an array: one family's, by the functions of rules.kernel.c. The host declares what the kernel takes,
 * CLASSIFY_PARAMETERS: keys, first, begin, end, rules, classes, filter, masks.
 */

/* What a group shares. */
typedef struct {
  Tables tables;
  Lanes lanes[GROUP / LANES];
} Group;

/* Keys from `begin` to `end`. */
KERNEL void classify(CLASSIFY_PARAMETERS) {
  LOCAL_MEMORY(Group, group);
  load_tables(&group->tables, classes, filter);
  barrier_group();
  LOCAL const Tables *tables = &group->tables;
  LOCAL Lanes *lanes = &group->lanes[lanes_index()];
  u32 stride = group_count() * (GROUP / LANES) * ROUND;
  for (u32 start = begin + (group_index() * (GROUP / LANES) + lanes_index()) * ROUND; start < end; start += stride) {
    u32 waiting = 0;
    for (u32 packet = lane(); packet < ROUND; packet += LANES) {
      /* Lanes past the end do what the first one does, and what they find is not written. */
      Key key = load_key(keys, start + packet < end ? start + packet : start);
      waiting = look_up(tables, lanes, key, packet, waiting, rules, classes, masks);
    }
    drain_all(tables, lanes, waiting, rules, classes, masks);
    for (u32 packet = lane(); packet < ROUND; packet += LANES) {
      Key key = stored_key(lanes, packet);
      u32 best = compare_tail(tables, key, lanes->best[packet], rules, classes, masks);
      if (start + packet < end) {
        first[start + packet] = best == NONE ? NO_RULE : best;
      }
    }
    /* Keys are written over now. */
    sync_lanes();
  }
}
