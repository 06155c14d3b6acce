/* Token buckets, as in bucket.rs, which declares BucketTerms and BUCKET_PARTS. */
FUNCTION BucketTerms bucket_load(GLOBAL const BucketTerms *terms) {
  BucketTerms bucket;
  bucket.rate = terms->rate;
  bucket.full = terms->full;
  bucket.full_after = terms->full_after;
  return bucket;
}

FUNCTION u64 bucket_advance(PRIVATE u64 *time, u64 now) {
  u64 elapsed = now > *time ? now - *time : 0;
  *time += elapsed;
  return elapsed;
}

FUNCTION u64 bucket_income(PRIVATE const BucketTerms *bucket, u64 elapsed) {
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
