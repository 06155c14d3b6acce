/*
 * Hash functions over the words of a flow's key: ports, addresses, protocol; 4 words of IPv4, 10 of IPv6. Each gives 32 bits. Words stand
 * for their bytes in little-endian order, so that published functions over bytes give what they give elsewhere.
 *
 * `words` is a number that the compiler knows, so all loops are unrolled. `seed` is drawn at random where it is used, but some functions have none.
 *
 * Sources: FNV-1a (draft-eastlake-fnv), SuperFastHash (Paul Hsieh), MurmurHash3 x86_32 (Austin Appleby), xxHash (Yann Collet, its
 * specification); `hash_lanes` after the multilinear functions of Lemire and Kaser; `hash_fold` is that of the flow tables (states.kernel.c).
 */

FUNCTION u32 hash_rotate(u32 x, u32 n) { return x << n | x >> (32 - n); }
FUNCTION u64 hash_rotate_64(u64 x, u32 n) { return x << n | x >> (64 - n); }

/* Simple and sequential: a step for each byte. No seed. */
FUNCTION u32 hash_fnv1a(PRIVATE const u32 *key, u32 words, u64 seed) {
  u32 hash = 0x811c9dc5u;
  for (u32 i = 0; i < words; i++) {
    for (u32 byte = 0; byte < 4; byte++) {
      hash = (hash ^ (key[i] >> byte * 8 & 0xffu)) * 0x01000193u;
    }
  }
  return hash;
}

/* Sequential, a step for each word. No seed. */
FUNCTION u32 hash_superfast(PRIVATE const u32 *key, u32 words, u64 seed) {
  u32 hash = words * 4;
  for (u32 i = 0; i < words; i++) {
    hash += key[i] & 0xffffu;
    hash = hash << 16 ^ ((key[i] >> 16) << 11 ^ hash);
    hash += hash >> 11;
  }
  hash ^= hash << 3;
  hash += hash >> 5;
  hash ^= hash << 4;
  hash += hash >> 17;
  hash ^= hash << 25;
  return hash + (hash >> 6);
}

/* All words at once, each with a multiplier of its own: no step waits for the one before. No seed. */
FUNCTION u32 hash_lanes(PRIVATE const u32 *key, u32 words, u64 seed) {
  u64 sum = 0;
  for (u32 i = 0; i < words; i++) {
    sum += key[i] * (0x9e3779b97f4a7c15u * (2 * i + 1) | 1);
  }
  return (u32)(sum >> 32);
}

FUNCTION u32 hash_murmur3(PRIVATE const u32 *key, u32 words, u64 seed) {
  u32 hash = (u32)seed;
  for (u32 i = 0; i < words; i++) {
    hash ^= hash_rotate(key[i] * 0xcc9e2d51u, 15) * 0x1b873593u;
    hash = hash_rotate(hash, 13) * 5 + 0xe6546b64u;
  }
  hash ^= words * 4;
  hash = (hash ^ hash >> 16) * 0x85ebca6bu;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return hash ^ hash >> 16;
}

#define XXH32_1 0x9e3779b1u
#define XXH32_2 0x85ebca77u
#define XXH32_3 0xc2b2ae3du
#define XXH32_4 0x27d4eb2fu
#define XXH32_5 0x165667b1u

FUNCTION u32 hash_xxh32(PRIVATE const u32 *key, u32 words, u64 seed) {
  u32 first = (u32)seed;
  u32 hash = first + XXH32_5;
  u32 i = 0;
  if (words >= 4) {
    u32 lanes[4];
    lanes[0] = first + XXH32_1 + XXH32_2;
    lanes[1] = first + XXH32_2;
    lanes[2] = first;
    lanes[3] = first - XXH32_1;
    for (; i + 4 <= words; i += 4) {
      for (u32 of = 0; of < 4; of++) {
        lanes[of] = hash_rotate(lanes[of] + key[i + of] * XXH32_2, 13) * XXH32_1;
      }
    }
    hash = hash_rotate(lanes[0], 1) + hash_rotate(lanes[1], 7) + hash_rotate(lanes[2], 12) + hash_rotate(lanes[3], 18);
  }
  hash += words * 4;
  for (; i < words; i++) {
    hash = hash_rotate(hash + key[i] * XXH32_3, 17) * XXH32_4;
  }
  hash = (hash ^ hash >> 15) * XXH32_2;
  hash = (hash ^ hash >> 13) * XXH32_3;
  return hash ^ hash >> 16;
}

#define XXH64_1 0x9e3779b185ebca87u
#define XXH64_2 0xc2b2ae3d27d4eb4fu
#define XXH64_3 0x165667b19e3779f9u
#define XXH64_4 0x85ebca77c2b2ae63u
#define XXH64_5 0x27d4eb2f165667c5u

FUNCTION u64 hash_xxh64_round(u64 lane, u64 input) { return hash_rotate_64(lane + input * XXH64_2, 31) * XXH64_1; }

FUNCTION u64 hash_pair(PRIVATE const u32 *key, u32 at) { return key[at] | (u64)key[at + 1] << 32; }

FUNCTION u32 hash_xxh64(PRIVATE const u32 *key, u32 words, u64 seed) {
  u64 hash = seed + XXH64_5;
  u32 i = 0;
  if (words >= 8) {
    u64 lanes[4];
    lanes[0] = seed + XXH64_1 + XXH64_2;
    lanes[1] = seed + XXH64_2;
    lanes[2] = seed;
    lanes[3] = seed - XXH64_1;
    for (; i + 8 <= words; i += 8) {
      for (u32 of = 0; of < 4; of++) {
        lanes[of] = hash_xxh64_round(lanes[of], hash_pair(key, i + of * 2));
      }
    }
    hash = hash_rotate_64(lanes[0], 1) + hash_rotate_64(lanes[1], 7) + hash_rotate_64(lanes[2], 12) +
           hash_rotate_64(lanes[3], 18);
    for (u32 of = 0; of < 4; of++) {
      hash = (hash ^ hash_xxh64_round(0, lanes[of])) * XXH64_1 + XXH64_4;
    }
  }
  hash += words * 4;
  for (; i + 2 <= words; i += 2) {
    hash = hash_rotate_64(hash ^ hash_xxh64_round(0, hash_pair(key, i)), 27) * XXH64_1 + XXH64_4;
  }
  hash = (hash ^ hash >> 33) * XXH64_2;
  hash = (hash ^ hash >> 29) * XXH64_3;
  hash ^= hash >> 32;
  return (u32)hash;
}

FUNCTION u64 hash_folded(u64 x, u64 y) { return (x * y) ^ multiply_high_64(x, y); }

/* Products of 128 bits, folded. */
FUNCTION u32 hash_fold(PRIVATE const u32 *key, u32 words, u64 seed) {
  u64 second = hash_rotate_64(seed, 32) ^ 0xd6e8feb86659fd93u;
  u64 hash = second;
  for (u32 i = 0; i < words; i += 4) {
    u64 right = i + 2 < words ? hash_pair(key, i + 2) : 0;
    hash = hash_folded(hash_pair(key, i) ^ seed, right ^ hash);
  }
  return (u32)(hash_folded(hash ^ seed, hash_rotate_64(second, 32) ^ 0x9e3779b97f4a7c15u) >> 32);
}
