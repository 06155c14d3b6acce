/* What the self-test runs; selftest.rs computes the same. */

/* Arithmetic of every width: products, quotients, shifts, narrow and signed values. */
FUNCTION u32 mix(u32 x, u64 seed) {
  u64 wide = x * 0x9e3779b97f4a7c15 + seed;
  wide = (wide ^ wide >> 29) * 0xbf58476d1ce4e5b9;
  u32 high = (u32)(wide >> 32), low = (u32)wide;
  u8 byte = (u8)(high + 200);
  u16 middle = (u16)(low * byte);
  i32 difference = (i32)(low & 0xffff) - (i32)(high & 0xffff);
  u32 mixed = high / (middle + 1u) + low % (byte + 3u);
  mixed += (u32)(difference / 7) + (u32)(difference >> 3);
  return mixed ^ (shift_right(high, low & 63) + count_ones(low) + multiply_high(high, low));
}

KERNEL void compute(COMPUTE_PARAMETERS) {
  u32 i = group_index() * local_count() + local_index();
  if (i < count) output[i] = mix(input[i], seed);
}

typedef struct {
  u32 least, sum, bits, tickets;
  u32 words[GROUP];
} tally;

/* Of PART elements for each group: the least, the sum by atomics, the bits, the sum by halves; and tickets, one an item. */
KERNEL void reduce(REDUCE_PARAMETERS) {
  LOCAL_MEMORY(tally, all);
  u32 item = local_index(), begin = group_index() * PART;
  u32 end = count - begin < PART ? count : begin + PART;
  u32 sum = 0;
  if (item == 0) {
    all->least = ~0u;
    all->sum = all->bits = all->tickets = 0;
  }
  barrier_group();
  for (u32 i = begin + item; i < end; i += GROUP) {
    u32 x = input[i];
    sum += x;
    min_local(&all->least, x);
    add_local(&all->sum, x);
    or_local(&all->bits, x & x >> 1 & x >> 2 & x >> 3);
  }
  all->words[item] = sum;
  barrier_group();
  for (u32 width = GROUP; width > 1;) {
    u32 next = (width + 1) / 2;
    if (item < width - next) all->words[item] += all->words[item + next];
    width = next;
    barrier_group();
  }
  output += group_index() * (4 + GROUP);
  if (item == 0) {
    output[0] = all->least;
    output[1] = all->sum;
    output[2] = all->bits;
    output[3] = all->words[0];
  }
  barrier_group();
  all->words[add_local(&all->tickets, 1)] = item;
  barrier_group();
  output[4 + item] = all->words[item];
}

/* Each lane looks at its neighbour's element; those that are no multiples of 3 are moved to the front of the lanes' part. */
KERNEL void compact(COMPACT_PARAMETERS) {
  LOCAL_MEMORY(tally, all);
  u32 item = local_index(), i = group_index() * GROUP + item;
  all->words[item] = input[i];
  sync_lanes();
  u32 x = all->words[item - lane() + (lane() + 1) % LANES];
  int keep = x % 3 != 0;
  u32 kept = ballot(keep);
  /* The same by the other ways to ask. */
  u32 read = lanes_read(input[i], (lane() + 1) % LANES);
  if (lanes_sum(keep) != count_ones(kept) || ballot(lanes_max(x) == x) == 0 || ballot(lanes_max(x) < x)) kept = 0;
  if (keep) output[i - lane() + lanes_below(kept)] = read;
  if (lane() == 0) ballots[group_index() * (GROUP / LANES) + lanes_index()] = kept;
}

#ifdef HAS_ATOMICS_64
/* Each item adds to a counter, and takes a ticket: the count of items before it, times `step`. */
KERNEL void count_64(COUNT_PARAMETERS) {
  u32 i = group_index() * local_count() + local_index();
  if (i >= count) return;
  add_global_64(&counters[i % COUNTERS], step + i);
  u64 expected = 0;
  for (;;) {
    u64 seen = swap_global_64(ticket, expected, expected + step);
    if (seen == expected) break;
    expected = seen;
  }
  u64 number = expected / step;
  if (number < count) takers[number] = i;
}
#endif

KERNEL void in_place(IN_PLACE_PARAMETERS) {
  u32 i = group_index() * local_count() + local_index();
  if (i < count) words[i] = words[i] * 3 + i;
}
