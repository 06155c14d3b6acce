/* For each packet: the sum of the weights of its bytes, times a factor; and its length. */
KERNEL void weigh(GLOBAL const u32 *packets, GLOBAL const u32 *weights, GLOBAL u32 *results, u32 count, u32 factor) {
  u32 packet = group_index() * GROUP + local_index();
  if (packet < count) {
    GLOBAL const u8 *bytes = (GLOBAL const u8 *)packets;
    u32 end = packets[packet + 1], sum = 0;
    for (u32 at = packets[packet]; at < end; at++) {
      sum += weights[bytes[at]];
    }
    results[2 * packet] = sum * factor;
    results[2 * packet + 1] = end - packets[packet];
  }
}
