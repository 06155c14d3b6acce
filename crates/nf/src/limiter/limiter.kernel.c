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
 * As long as all packets pass, U is known without looking at one after the other: first by a bound that is one number for all, then
 * exactly. If any does not pass, one item looks at one after the other.
 */
#define LIMITER_ZERO ((u64)1 << 63)
#define LIMITER_MOST ((u64)1 << 62)
/* Units of a packet that such sums have room for. */
#define LIMITER_UNITS 0xfffffu

/* Of the crowd's packets one after the other. */
FUNCTION u64 limiter_serial(PRIVATE Crowd *crowd, u64 used, u64 full) {
  for (u32 at = 0; at < crowd->team->size; at++) {
    u64 most = crowd->scratch[at];
    u32 price = crowd->price[at];
    if (price) {
      u64 least = most + (u64)price * BUCKET_PARTS - full;
      used = larger_64(used, least);
      u32 passes = used <= most;
      used += passes ? (u64)price * BUCKET_PARTS : 0;
      crowd->verdict[at] = passes ? VERDICT_PASS : VERDICT_RATE_LIMIT;
    }
  }
  return used;
}

FUNCTION u32 limiter_crowd(PRIVATE Crowd *crowd, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  LOCAL Meeting *meeting = crowd->meeting;
  PRIVATE Team *team = crowd->team;
  Bucket bucket = bucket_at(parameters, 0);
  u32 item = team_item(team);
  u32 units = parameters[6] ? packet->bytes : 1;
  if (item == crowd->first) {
    crowd->scratch[0] = packet->now;
  }
  team_sync(team);
  u64 begin = crowd->scratch[0];
  u64 time = crowd->is_new ? begin : crowd->state[1];
  u64 level = crowd->is_new ? bucket.full : crowd->state[0];
  bucket_pour(&level, bucket.full, bucket_income(&bucket, bucket_advance(&time, begin)));
  /* The latest packet until this one, and the last. */
  u64 now = passes && packet->now > time ? packet->now : time;
  u64 last;
  u64 before = team_before(meeting, team, 0, now, &last);
  u64 until = larger_64(before, now);
  u64 income = (last - time) * bucket.rate;
  u32 is_small = multiply_high_64(last - time, bucket.rate) == 0 && income < LIMITER_MOST && bucket.full < LIMITER_MOST;
  u32 verdict = VERDICT_PASS;
  if (team_any(meeting, team, !is_small || (passes && (units > LIMITER_UNITS || units == 0)))) {
    /* Each in turn. */
    for (u32 turn = 0; turn < team->size; turn++) {
      if (turn == item && passes) {
        u32 is_begin = item == crowd->first;
        u64 own[2];
        own[0] = is_begin ? level : crowd->state[0];
        own[1] = is_begin ? time : crowd->state[1];
        bucket_pour(&own[0], bucket.full, bucket_income(&bucket, bucket_advance(&own[1], packet->now)));
        verdict = bucket_withdraw(&own[0], units) ? VERDICT_PASS : VERDICT_RATE_LIMIT;
        crowd->state[0] = own[0];
        crowd->state[1] = own[1];
      }
      team_sync(team);
    }
  } else {
    u64 price = passes ? (u64)units * BUCKET_PARTS : 0;
    u64 all_units;
    u64 taken = team_before(meeting, team, 1, passes ? units : 0, &all_units) * BUCKET_PARTS;
    u64 came = LIMITER_ZERO + (until - time) * bucket.rate;
    u64 most = came - price;
    /* What U is at least, less what was taken before. */
    u64 least = passes ? came - bucket.full - taken : 0;
    u64 start = LIMITER_ZERO - level;
    u64 most_used = larger_64(team_largest(meeting, team, least), start);
    u64 used = most_used + all_units * BUCKET_PARTS;
    if (team_any(meeting, team, passes && most_used + taken > most)) {
      u64 all;
      u64 own_used = larger_64(larger_64(team_before(meeting, team, 0, least, &all), least), start);
      if (team_any(meeting, team, passes && own_used + taken > most)) {
        crowd->scratch[item] = most;
        crowd->price[item] = passes ? units : 0;
        team_sync(team);
        if (item == 0) {
          crowd->scratch[0] = limiter_serial(crowd, start, bucket.full);
        }
        team_sync(team);
        used = crowd->scratch[0];
        verdict = passes ? crowd->verdict[item] : VERDICT_PASS;
      }
    }
    if (item == 0) {
      crowd->state[0] = LIMITER_ZERO + income - used;
      crowd->state[1] = last;
    }
  }
  u32 is_out = verdict != VERDICT_PASS;
  totals[0] += passes && !is_out;
  totals[1] += passes && !is_out ? packet->bytes : 0;
  totals[2] += passes && is_out;
  totals[3] += passes && is_out ? packet->bytes : 0;
  return verdict;
}

PASSES_WITHOUT(limiter)
