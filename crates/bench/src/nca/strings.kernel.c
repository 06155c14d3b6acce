/*
 * For each packet the pattern that ends first, counted from 1 (of several that end there the one with the lowest number), and the number of bytes up
 * to its end; 0 and 0 where there is none.
 *
 * An item takes a packet through an automaton: 64 words with the class of each byte, and a row for each state, at the place by which other rows name
 * it: the pattern that ends there, or 0, and the row of the next state for each class. The first row is that of the beginning.
 */
KERNEL void strings(GLOBAL const u32 *packets, GLOBAL u32 *results, GLOBAL const u32 *automaton, u32 count) {
  u32 packet = group_index() * GROUP + local_index();
  if (packet < count) {
    GLOBAL const u8 *bytes = (GLOBAL const u8 *)packets;
    GLOBAL const u8 *classes = (GLOBAL const u8 *)automaton;
    u32 begin = packets[packet], end = packets[packet + 1], row = 64, found = 0;
    for (u32 at = begin; at < end && found == 0; at++) {
      row = automaton[row + 1 + classes[bytes[at]]];
      found = automaton[row];
      if (found != 0) {
        results[2 * packet] = found;
        results[2 * packet + 1] = at + 1 - begin;
      }
    }
  }
}
