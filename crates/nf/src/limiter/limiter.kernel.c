/*
 * A token bucket for each flow: see mod.rs. State: level, time. Parameters: the bucket, then whether tokens are bytes. Totals: packets and
 * bytes that passed, and that were dropped.
 */
FUNCTION u32 limiter_step(PRIVATE u64 *state, u32 is_new, PRIVATE Packet *packet, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                          MORE more) {
  Bucket bucket = bucket_at(parameters, 0);
  if (is_new) {
    state[0] = bucket.full;
    state[1] = packet->now;
  }
  bucket_pour(&state[0], bucket.full, bucket_income(&bucket, bucket_advance(&state[1], packet->now)));
  u32 passes = bucket_withdraw(&state[0], parameters[6] ? packet->bytes : 1);
  totals[0] += passes;
  totals[1] += passes ? packet->bytes : 0;
  totals[2] += !passes;
  totals[3] += passes ? 0 : packet->bytes;
  return passes ? VERDICT_PASS : VERDICT_RATE_LIMIT;
}

/*
 * A crowd, with what came in and what was taken counted from its first packet on, so that neither depends on the other: I of what came in until
 * a packet, and U of what was taken, less what the bucket held at first; the level is I - U. As it holds no more than `full`, U is at least
 * I - full when a packet comes, and the packet passes if U is at most I - its price.
 *
 * As long as all packets pass, U is known without looking at one after the other. From the first on that does not, one item does that.
 */
#define LIMITER_ZERO ((u64)1 << 63)
#define LIMITER_MOST ((u64)1 << 62)

FUNCTION u64 limiter_price(LOCAL const Crowd *crowd, u32 at, u32 is_bytes) {
  return PASSES(crowd, at) ? (u64)(is_bytes ? crowd->bytes[at] : 1) * BUCKET_PARTS : 0;
}

FUNCTION void limiter_crowd(LOCAL Crowd *crowd, LOCAL u64 *state, u32 is_new, GLOBAL const u32 *parameters, PRIVATE u64 *totals) {
  Bucket bucket = bucket_at(parameters, 0);
  u32 is_bytes = parameters[6];
  u64 now = crowd->now[crowd->first];
  u64 time = is_new ? now : state[1];
  u64 level = is_new ? bucket.full : state[0];
  bucket_pour(&level, bucket.full, bucket_income(&bucket, bucket_advance(&time, now)));
  /* The latest packet before each of the own ones, and the last. */
  u64 latest = 0;
  u32 is_large = 0;
  FOR_OWN(crowd, at) {
    latest = PASSES(crowd, at) && crowd->now[at] > latest ? crowd->now[at] : latest;
    is_large |= crowd->bytes[at] > 0xfffff;
  }
  u64 last;
  u64 before = crowd_before(crowd, 0, latest, &last);
  before = before > time ? before : time;
  last = last > time ? last : time;
  u64 income = (last - time) * bucket.rate;
  u32 is_small = multiply_high_64(last - time, bucket.rate) == 0 && income < LIMITER_MOST && bucket.full < LIMITER_MOST;
  if (crowd_any(crowd, is_large | !is_small)) {
    if (local_index() == 0) {
      for (u32 at = 0; at < crowd->count; at++) {
        if (PASSES(crowd, at)) {
          bucket_pour(&level, bucket.full, bucket_income(&bucket, bucket_advance(&time, crowd->now[at])));
          u32 passes = bucket_withdraw(&level, is_bytes ? crowd->bytes[at] : 1);
          crowd->verdict[at] = passes ? VERDICT_PASS : VERDICT_RATE_LIMIT;
          totals[passes ? 0 : 2] += 1;
          totals[passes ? 1 : 3] += crowd->bytes[at];
        }
      }
      state[0] = level;
      state[1] = time;
    }
    return;
  }
  u64 price = 0;
  FOR_OWN(crowd, at) {
    price += limiter_price(crowd, at, is_bytes);
  }
  u64 all_price;
  u64 taken = crowd_before(crowd, 1, price, &all_price);
  /* The largest of what U is at least, less what was taken before, of the own packets; and where each of them must find U. */
  u64 until = before;
  u64 floor = 0;
  u64 own_taken = taken;
  FOR_OWN(crowd, at) {
    u64 most = ~(u64)0;
    if (PASSES(crowd, at)) {
      until = crowd->now[at] > until ? crowd->now[at] : until;
      u64 came = LIMITER_ZERO + (until - time) * bucket.rate;
      u64 own_price = limiter_price(crowd, at, is_bytes);
      most = came - own_price;
      u64 least = came - bucket.full - own_taken;
      floor = least > floor ? least : floor;
      own_taken += own_price;
    }
    crowd->scratch[at] = most;
  }
  u64 all_floor;
  u64 floor_before = crowd_before(crowd, 0, floor, &all_floor);
  u64 begin = LIMITER_ZERO - level;
  u64 used = floor_before > begin ? floor_before : begin;
  own_taken = taken;
  u32 fails = 0;
  FOR_OWN(crowd, at) {
    if (PASSES(crowd, at)) {
      u64 own_price = limiter_price(crowd, at, is_bytes);
      u64 least = crowd->scratch[at] + own_price - bucket.full - own_taken;
      used = least > used ? least : used;
      fails |= used + own_taken > crowd->scratch[at];
      own_taken += own_price;
    }
  }
  u32 some_fail = crowd_any(crowd, fails);
  if (local_index() == 0) {
    u64 u = (all_floor > begin ? all_floor : begin) + all_price;
    if (some_fail) {
      u = begin;
      for (u32 at = 0; at < crowd->count; at++) {
        u64 most = crowd->scratch[at];
        u64 own_price = limiter_price(crowd, at, is_bytes);
        u64 least = most + own_price - bucket.full;
        u = most != ~(u64)0 && least > u ? least : u;
        u32 passes = u <= most;
        u += passes ? own_price : 0;
        if (!passes) {
          crowd->verdict[at] = VERDICT_RATE_LIMIT;
        }
      }
    }
    state[0] = LIMITER_ZERO + income - u;
    state[1] = last;
  }
  barrier_group();
  FOR_OWN(crowd, at) {
    /* What did not come here has no price, and passes any. */
    u32 came = crowd->scratch[at] != ~(u64)0;
    u32 passes = PASSES(crowd, at);
    totals[0] += came && passes;
    totals[1] += came && passes ? crowd->bytes[at] : 0;
    totals[2] += came && !passes;
    totals[3] += came && !passes ? crowd->bytes[at] : 0;
  }
}

PASSES_WITHOUT(limiter)
