/* A token bucket for each flow: see mod.rs. */
STEP(limiter) {
  BucketTerms bucket = bucket_load(&parameters->bucket);
  if (is_new) {
    state->level = bucket.full;
    state->time = packet->now;
  }
  bucket_pour(&state->level, bucket.full, bucket_income(&bucket, bucket_advance(&state->time, packet->now)));
  u32 passes = bucket_withdraw(&state->level, parameters->counts_bytes ? packet->bytes : 1);
  totals->passed.packets += passes;
  totals->passed.bytes += passes ? packet->bytes : 0;
  totals->dropped.packets += !passes;
  totals->dropped.bytes += passes ? 0 : packet->bytes;
  return passes ? VERDICT_PASS : VERDICT_RATE_LIMIT;
}

/*
 * A flow group: many packets of one flow, an item for each. Sums count from the first of these packets, so items can compute them in parallel:
 * I is the income until a packet; U is what was taken until then, minus the level at the first packet. So the level is I - U. The bucket holds at
 * most `full`: when a packet comes, U is at least I - full (what flows over counts as taken). The packet passes if U is at most I - its price.
 *
 * While all packets pass, U needs no loop over the packets. A bound that is the same for all packets is tried first, then the exact value. If
 * some packets do not pass, U still needs no loop if all packets have one price (limiter_even). Otherwise one item loops over the packets.
 */
#define LIMITER_ZERO ((u64)1 << 63)
#define LIMITER_MOST ((u64)1 << 62)
/* Units of a packet that such sums have room for. */
#define LIMITER_UNITS 0xfffffu

/* Judges the packets one after the other, by one item; returns U at the end. */
FUNCTION u64 limiter_serial(PRIVATE FlowGroup *group, u64 used, u64 full) {
  for (u32 at = 0; at < group->team->size; at++) {
    u64 most = group->scratch[at];
    u32 price = group->price[at];
    if (price) {
      u64 least = most + (u64)price * BUCKET_PARTS - full;
      used = larger_64(used, least);
      u32 passes = used <= most;
      used += passes ? (u64)price * BUCKET_PARTS : 0;
      group->verdict[at] = passes ? VERDICT_PASS : VERDICT_RATE_LIMIT;
    }
  }
  return used;
}

/*
 * Judges packets that all have one price. Start at a packet where U is known. As long as the bucket does not become full, each packet that
 * passes raises U by the price. So a packet passes if fewer than K packets passed before it, where K is how many packets the income until it
 * pays for. K never falls. So of the first R packets, N = min(N before + 1, K) pass: R minus the largest R - K so far. Where the bucket becomes
 * full, U is known again, and the next round starts there. Returns 0 if LIMITER_FILLS rounds are not enough. Else `used` is U at the end,
 * and `verdict` is that of the item's own packet.
 */
#define LIMITER_FILLS 4

FUNCTION u32 limiter_even(PRIVATE FlowGroup *group, u32 passes, u64 price, u64 full, u64 most, PRIVATE u64 *used, PRIVATE u32 *verdict) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  u32 begin = 0;
  for (u32 fills = 0; fills < LIMITER_FILLS; fills++) {
    u32 takes = passes && team_item(team) >= begin;
    u64 income = most >= *used ? (most - *used) / price + 1 : 0;
    u64 all, most_lacking;
    u64 before = team_before(meeting, team, 1, takes, &all);
    u64 lacking = takes && before + 1 > income ? before + 1 - income : 0;
    u64 lacked = team_before(meeting, team, 0, lacking, &most_lacking);
    *verdict = !takes ? *verdict : lacking <= lacked ? VERDICT_PASS : VERDICT_RATE_LIMIT;
    u64 least = most + price - full;
    u32 is_full = takes && *used + (before - lacked) * price < least;
    begin = team_first(meeting, team, is_full);
    if (begin == EMPTY) {
      *used += (all - most_lacking) * price;
      return 1;
    }
    if (team_item(team) == begin) {
      group->scratch[0] = least;
    }
    team_sync(team);
    *used = group->scratch[0];
  }
  return 0;
}

STEP_GROUP(limiter) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  BucketTerms bucket = bucket_load(&parameters->bucket);
  u32 item = team_item(team);
  u32 units = parameters->counts_bytes ? packet->bytes : 1;
  if (item == group->first) {
    group->scratch[0] = packet->now;
  }
  team_sync(team);
  u64 begin = group->scratch[0];
  u64 time = group->is_new ? begin : state->time;
  u64 level = group->is_new ? bucket.full : state->level;
  bucket_pour(&level, bucket.full, bucket_income(&bucket, bucket_advance(&time, begin)));
  /* The latest time of the packets up to this one, and of all. */
  u64 now = passes && packet->now > time ? packet->now : time;
  u64 last;
  u64 before = team_before(meeting, team, 0, now, &last);
  u64 until = larger_64(before, now);
  u64 income = (last - time) * bucket.rate;
  u32 is_small = multiply_high_64(last - time, bucket.rate) == 0 && income < LIMITER_MOST && bucket.full < LIMITER_MOST;
  u32 verdict = VERDICT_PASS;
  if (team_any(meeting, team, !is_small || (passes && (units > LIMITER_UNITS || units == 0)))) {
    /* The sums might overflow: the items judge their packets one after the other. */
    for (u32 turn = 0; turn < team->size; turn++) {
      if (turn == item && passes) {
        u32 is_begin = item == group->first;
        u64 own_level = is_begin ? level : state->level;
        u64 own_time = is_begin ? time : state->time;
        bucket_pour(&own_level, bucket.full, bucket_income(&bucket, bucket_advance(&own_time, packet->now)));
        verdict = bucket_withdraw(&own_level, units) ? VERDICT_PASS : VERDICT_RATE_LIMIT;
        state->level = own_level;
        state->time = own_time;
      }
      team_sync(team);
    }
  } else {
    u64 price = passes ? (u64)units * BUCKET_PARTS : 0;
    u64 all_units;
    u64 taken = team_before(meeting, team, 1, passes ? units : 0, &all_units) * BUCKET_PARTS;
    u64 came = LIMITER_ZERO + (until - time) * bucket.rate;
    u64 most = came - price;
    /* The least that U can be here, minus what the packets before take if all pass. */
    u64 least = passes ? came - bucket.full - taken : 0;
    u64 start = LIMITER_ZERO - level;
    u64 most_used = larger_64(team_largest(meeting, team, least), start);
    u64 used = most_used + all_units * BUCKET_PARTS;
    if (team_any(meeting, team, passes && most_used + taken > most)) {
      u64 all;
      u64 own_used = larger_64(larger_64(team_before(meeting, team, 0, least, &all), least), start);
      if (team_any(meeting, team, passes && own_used + taken > most)) {
        if (item == group->first) {
          group->price[0] = units;
        }
        team_sync(team);
        u32 is_even = !team_any(meeting, team, passes && units != group->price[0]);
        u64 one_price = (u64)group->price[0] * BUCKET_PARTS;
        used = start;
        if (!is_even || !limiter_even(group, passes, one_price, bucket.full, most, &used, &verdict)) {
          team_sync(team);
          group->scratch[item] = most;
          group->price[item] = passes ? units : 0;
          team_sync(team);
          if (item == 0) {
            group->scratch[0] = limiter_serial(group, start, bucket.full);
          }
          team_sync(team);
          used = group->scratch[0];
          verdict = passes ? group->verdict[item] : VERDICT_PASS;
        }
      }
    }
    if (item == 0) {
      state->level = LIMITER_ZERO + income - used;
      state->time = last;
    }
  }
  u32 is_out = verdict != VERDICT_PASS;
  totals->passed.packets += passes && !is_out;
  totals->passed.bytes += passes && !is_out ? packet->bytes : 0;
  totals->dropped.packets += passes && is_out;
  totals->dropped.bytes += passes && is_out ? packet->bytes : 0;
  return verdict;
}

/*
 * What a piece of packets does to a bucket, whatever its level is: see LimiterSummary in mod.rs. All numbers count from the piece's first packet.
 *
 * `price` and `ahead` say what happens if some packets do not pass. As long as the bucket does not become full, (needed - level) / price packets,
 * rounded up, do not pass: see limiter_even. After a packet that does not pass, the level is less than the price.
 */
#define LIMITER_NEVER (~(u64)0)

STEP_SUMMARIZE(limiter) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  BucketTerms bucket = bucket_load(&parameters->bucket);
  u32 units = parameters->counts_bytes ? packet->bytes : 1;
  u64 income = (latest - first) * bucket.rate;
  u32 is_small = multiply_high_64(latest - first, bucket.rate) == 0 && income < LIMITER_MOST && bucket.full < LIMITER_MOST;
  if (team_any(meeting, team, !is_small || (is_member && (units > LIMITER_UNITS || units == 0)))) {
    return 0;
  }
  u64 now = is_member && packet->now > first ? packet->now : first;
  u64 all;
  u64 until = larger_64(team_before(meeting, team, 0, now, &all), now);
  u64 price = is_member ? (u64)units * BUCKET_PARTS : 0;
  u64 all_taken;
  u64 taken = team_before(meeting, team, 1, price, &all_taken);
  u64 income_until = (until - first) * bucket.rate;
  u64 came = LIMITER_ZERO + income_until;
  u64 least = is_member ? came - bucket.full - taken : 0;
  u64 least_of_all;
  u64 own_least = larger_64(team_before(meeting, team, 0, least, &least_of_all), least);
  u32 never = team_any(meeting, team, is_member && own_least + taken > came - price);
  u64 lacks = is_member ? LIMITER_ZERO + taken + price - income_until : 0;
  u64 needed;
  u64 lacked = team_before(meeting, team, 0, lacks, &needed);
  u64 more = is_member ? LIMITER_ZERO + income_until - taken : 0;
  u64 most_more = team_largest(meeting, team, more);
  if (team_item(team) == group->first) {
    group->price[0] = units;
  }
  team_sync(team);
  u64 one_price = (u64)group->price[0] * BUCKET_PARTS;
  u32 may_fill = is_member && lacked && more + lacked - LIMITER_ZERO + price > LIMITER_ZERO + bucket.full;
  u32 is_even = !team_any(meeting, team, (is_member && price != one_price) || may_fill);
  if (team_item(team) == 0) {
    summary->needed = needed;
    summary->income = income;
    summary->taken = all_taken;
    summary->least = never ? LIMITER_NEVER : least_of_all;
    summary->price = is_even ? one_price : 0;
    summary->ahead = most_more;
  }
  return is_even || !never;
}

STEP_APPLY(limiter) {
  BucketTerms bucket = bucket_load(&parameters->bucket);
  if (first < state->time || *dropped) {
    return 0;
  }
  bucket_pour(&state->level, bucket.full, bucket_income(&bucket, bucket_advance(&state->time, first)));
  u64 level = state->level;
  u64 least = LIMITER_ZERO - level;
  u64 taken = summary->taken;
  if (summary->least != LIMITER_NEVER && LIMITER_ZERO + level >= summary->needed) {
    least = larger_64(least, summary->least);
  } else if (summary->price && summary->ahead + level <= LIMITER_ZERO + bucket.full) {
    u64 lacking = summary->needed - LIMITER_ZERO - level;
    u64 too_many = (lacking + summary->price - 1) / summary->price;
    taken -= too_many * summary->price;
    *dropped += too_many;
  } else {
    return 0;
  }
  state->level = LIMITER_ZERO + summary->income - (least + taken);
  state->time = latest;
  return 1;
}

PASSES_WITHOUT(limiter)
