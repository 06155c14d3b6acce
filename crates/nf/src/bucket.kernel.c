/*
 * Token buckets, as in bucket.rs. Parameters are words of 64 bits: the rate in parts per nanosecond, the parts of a full bucket, the
 * nanoseconds after which it is full.
 */
#define BUCKET_PARTS 1000000000u

typedef struct {
  u64 rate, full, full_after;
} Bucket;

FUNCTION Bucket bucket_at(GLOBAL const u32 *parameters, u32 word) {
  Bucket bucket;
  bucket.rate = parameter_64(parameters, word);
  bucket.full = parameter_64(parameters, word + 1);
  bucket.full_after = parameter_64(parameters, word + 2);
  return bucket;
}

FUNCTION u64 bucket_advance(PRIVATE u64 *time, u64 now) {
  u64 elapsed = now > *time ? now - *time : 0;
  *time += elapsed;
  return elapsed;
}

FUNCTION u64 bucket_income(PRIVATE const Bucket *bucket, u64 elapsed) {
  return elapsed >= bucket->full_after ? bucket->full : elapsed * bucket->rate;
}

/* Fills a level up; what found no room. */
FUNCTION u64 bucket_pour(PRIVATE u64 *level, u64 full, u64 income) {
  u64 before = *level < full ? *level : full;
  u64 taken = income < full - before ? income : full - before;
  *level = before + taken;
  return income - taken;
}

/* Whether a level had as many tokens, which are taken. */
FUNCTION u32 bucket_withdraw(PRIVATE u64 *level, u32 units) {
  u64 price = (u64)units * BUCKET_PARTS;
  u32 enough = *level >= price;
  *level -= enough ? price : 0;
  return enough;
}
