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
 * A flow group, with what came in and what was taken counted from its first packet on, so that neither depends on the other: I of what came in until
 * a packet, and U of what was taken, less what the bucket held at first; the level is I - U. As it holds no more than `full`, U is at least
 * I - full when a packet comes, and the packet passes if U is at most I - its price.
 *
 * As long as all packets pass, U is known without looking at one after the other: first by a bound that is one number for all, then
 * exactly. If any does not pass, it still is where all have one price; otherwise one item looks at one after the other.
 */
#define LIMITER_ZERO ((u64)1 << 63)
#define LIMITER_MOST ((u64)1 << 62)
/* Units of a packet that such sums have room for. */
#define LIMITER_UNITS 0xfffffu

/* Of the flow group's packets one after the other. */
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
 * Of a flow group whose packets have one price. From a time on at which the level is known, and as long as the bucket is not full, U grows by that
 * price alone: so a packet passes if fewer than K did, as many as there has been income for until it came. K never falls, so of R packets
 * until one, N = min(N before + 1, K) passed, which is R less the most that any of them, R - K, was too many. Where the bucket was full,
 * U is known again. Whether that did not happen too often: `used` is U at the end, `verdict` the own packet's.
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

FUNCTION u32 limiter_group(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 passes, GLOBAL const u32 *parameters, PRIVATE u64 *totals,
                           MORE more) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  Bucket bucket = bucket_at(parameters, 0);
  u32 item = team_item(team);
  u32 units = parameters[6] ? packet->bytes : 1;
  if (item == group->first) {
    group->scratch[0] = packet->now;
  }
  team_sync(team);
  u64 begin = group->scratch[0];
  u64 time = group->is_new ? begin : group->state[1];
  u64 level = group->is_new ? bucket.full : group->state[0];
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
        u32 is_begin = item == group->first;
        u64 own[2];
        own[0] = is_begin ? level : group->state[0];
        own[1] = is_begin ? time : group->state[1];
        bucket_pour(&own[0], bucket.full, bucket_income(&bucket, bucket_advance(&own[1], packet->now)));
        verdict = bucket_withdraw(&own[0], units) ? VERDICT_PASS : VERDICT_RATE_LIMIT;
        group->state[0] = own[0];
        group->state[1] = own[1];
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
      group->state[0] = LIMITER_ZERO + income - used;
      group->state[1] = last;
    }
  }
  u32 is_out = verdict != VERDICT_PASS;
  totals[0] += passes && !is_out;
  totals[1] += passes && !is_out ? packet->bytes : 0;
  totals[2] += passes && is_out;
  totals[3] += passes && is_out ? packet->bytes : 0;
  return verdict;
}

/*
 * What a piece does to a bucket, each number counted from its first packet on: what the bucket must hold when that one comes for all to pass,
 * plus LIMITER_ZERO; the income until the latest; what is taken, if all pass; what U is at least at the end, less what was taken, or
 * LIMITER_NEVER where some packet does not pass whatever the bucket holds.
 *
 * Where packets have one price, it also says what becomes of them if some do not pass: their price, and the most that the bucket would hold before
 * any packet, if all pass, beyond what it holds when the first one comes, plus LIMITER_ZERO. As long as nothing fills the bucket,
 * (needed - level) / price packets, rounded up, are too many: see limiter_even. A packet that does not pass leaves less than a price there; where
 * income until a later one might fill it from that on, or prices differ, the price is 0, and nothing is said.
 */
#define LIMITER_NEVER (~(u64)0)

FUNCTION u32 limiter_summarize(PRIVATE FlowGroup *group, PRIVATE Packet *packet, u32 is_member, u64 first, u64 latest,
                             GLOBAL const u32 *parameters, GLOBAL u64 *summary) {
  LOCAL Meeting *meeting = group->meeting;
  PRIVATE Team *team = group->team;
  Bucket bucket = bucket_at(parameters, 0);
  u32 units = parameters[6] ? packet->bytes : 1;
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
    summary[0] = needed;
    summary[1] = income;
    summary[2] = all_taken;
    summary[3] = never ? LIMITER_NEVER : least_of_all;
    summary[4] = is_even ? one_price : 0;
    summary[5] = most_more;
  }
  return is_even || !never;
}

FUNCTION u32 limiter_apply(PRIVATE u64 *state, u64 first, u64 latest, GLOBAL const u32 *parameters, PRIVATE const u64 *summary,
                            PRIVATE u64 *dropped) {
  Bucket bucket = bucket_at(parameters, 0);
  if (first < state[1] || *dropped) {
    return 0;
  }
  bucket_pour(&state[0], bucket.full, bucket_income(&bucket, bucket_advance(&state[1], first)));
  u64 level = state[0];
  u64 least = LIMITER_ZERO - level;
  u64 taken = summary[2];
  if (summary[3] != LIMITER_NEVER && LIMITER_ZERO + level >= summary[0]) {
    least = larger_64(least, summary[3]);
  } else if (summary[4] && summary[5] + level <= LIMITER_ZERO + bucket.full) {
    u64 lacking = summary[0] - LIMITER_ZERO - level;
    u64 too_many = (lacking + summary[4] - 1) / summary[4];
    taken -= too_many * summary[4];
    *dropped += too_many;
  } else {
    return 0;
  }
  state[0] = LIMITER_ZERO + summary[1] - (least + taken);
  state[1] = latest;
  return 1;
}

PASSES_WITHOUT(limiter)
