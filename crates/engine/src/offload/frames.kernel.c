/*
 * A chain over frames: their headers, the first rule of each ACL that matches, a verdict.
 *
 * Before this text stand that of dissect.kernel.c and, for each ACL, that of rules.kernel.c twice: what it declares is called
 * acl<number>_v4_... and acl<number>_v6_.... Lanes take a frame each; nothing is shared between warps but what was there before.
 *
 * Defined by the host: ACLS(ACL), an ACL(number) for each; SLICE, the bytes of a frame that are looked at, a multiple of 16;
 * VERDICT_OF(reject), the policy's verdict on a frame that was rejected; verdicts' codes: VERDICT_RULE,
 * VERDICT_DEFAULT_<number>, VERDICT_BEYOND where software must look at the frame; 0 lets a packet pass. Bits of places and answers:
 * OFFSET_BITS, LINK_BITS, POSITION_BITS, LAP_BIT. TOLD_APART, words from what is told of one batch to the next. JUDGE_PARAMETERS and
 * RESIDE_PARAMETERS: what the kernels take. NEWS_PUBLISHED and NEWS_STOP: bits of news.
 */

/* A frame's place: its offset, link type, captured bytes (16 bits). */
#define OFFSET_OF(place) ((place) & (((u64)1 << OFFSET_BITS) - 1))
#define LINK_BITS_OF(place) ((u32)((place) >> OFFSET_BITS) & ((1u << LINK_BITS) - 1))
/* All ones stand for the link type of a frame that has none. */
#define LINK_OF(place) (LINK_BITS_OF(place) == (1u << LINK_BITS) - 1 ? LINK_NONE : LINK_BITS_OF(place))
#define LEN_OF(place) ((u32)((place) >> (OFFSET_BITS + LINK_BITS)))
#define PLACE(offset, link, len) ((u64)(offset) | (u64)(link) << OFFSET_BITS | (u64)(len) << (OFFSET_BITS + LINK_BITS))
/* The place of no frame, and its length where buffers follow each other. */
#define NO_FRAME 0xffffffffffffffff
#define NO_LEN 0xffffu

/*
 * An answer: the position of the rule of the first ACL, NONE if none matches; the chain's verdict; the lap of the ring; the packet's IP
 * bytes (32 bits).
 */
#define ANSWER(position, verdict, lap, bytes) \
  ((u64)(position) | (u64)(verdict) << POSITION_BITS | (u64)(lap) << LAP_BIT | (u64)(bytes) << 32)
#define VERDICT_PASS 0

/* Sixteen bytes at a time, from the multiple of 16 on in which a frame begins: one more where that is not its beginning. */
#define PIECES (SLICE / 16)
/* An odd number of words from a lane's slice to the next, so that lanes read different banks. */
#define SLICE_WORDS ((PIECES + 1) * 4 + 1)

/* What `tables` begins with: for each ACL and family where its parts are, in units of 16 bytes. */
#define AT(number, family, part) (tables + (u64)((GLOBAL const FamilyParts *)tables)[(number) * 2 + (family)].part * 4)

#define TABLES_OF(number)                 \
  acl##number##_v4_Tables acl##number##_v4; \
  acl##number##_v6_Tables acl##number##_v6;
#define LANES_OF(number)                 \
  acl##number##_v4_Lanes acl##number##_v4; \
  acl##number##_v6_Lanes acl##number##_v6;

/* What lanes share. */
typedef struct {
  u64 places[LANES];
  u32 slices[LANES][SLICE_WORDS];
  union {
    ACLS(LANES_OF)
  } lanes;
} Warp;

/* What a group shares. */
typedef struct {
  ACLS(TABLES_OF)
  Warp warps[GROUP / LANES];
  /* The batch of a ring that it took, and whether it was published. */
  u32 batch, has_batch;
} Group;

#define LOAD_TABLES(number)                                                                             \
  acl##number##_v4_load_tables(&group->acl##number##_v4,                                                \
                               (GLOBAL const u32x4 *)AT(number, 0, classes), AT(number, 0, filter)); \
  acl##number##_v6_load_tables(&group->acl##number##_v6,                                                \
                               (GLOBAL const u32x4 *)AT(number, 1, classes), AT(number, 1, filter));

/* Bytes of the frame at a place that are looked at, from its beginning or from the multiple of 16 before it. */
#define BYTES_AT(place) ((place) == NO_FRAME ? 0 : LEN_OF(place) < SLICE ? LEN_OF(place) : SLICE)
#define SPAN_AT(place) ((place) == NO_FRAME ? 0 : (u32)(OFFSET_OF(place) & 15) + BYTES_AT(place))

FUNCTION void put_piece(LOCAL u32 *to, u32x4 piece) {
  to[0] = piece.x;
  to[1] = piece.y;
  to[2] = piece.z;
  to[3] = piece.w;
}

/*
 * Reads the first bytes of the frames at the lanes' places. Neighbouring lanes read neighbouring pieces of one frame, so that a frame is
 * one request on a bus, and all requests are on their way before the first answer is needed.
 */
FUNCTION void load_slices(LOCAL Warp *warp, GLOBAL const u8 *frames, u64 place) {
  u32x4 pieces[PIECES];
  warp->places[lane()] = place;
  sync_lanes();
  for (u32 i = 0; i < PIECES; i++) {
    u32 number = i * LANES + lane();
    u64 of = warp->places[number / PIECES];
    u32 at = number % PIECES * 16;
    if (at < SPAN_AT(of)) {
      pieces[i] = load_shared((GLOBAL const u32x4 *)(frames + (OFFSET_OF(of) & ~(u64)15) + at));
    }
  }
  u32x4 last;
  if (PIECES * 16 < SPAN_AT(place)) {
    last = load_shared((GLOBAL const u32x4 *)(frames + (OFFSET_OF(place) & ~(u64)15) + PIECES * 16));
  }
  for (u32 i = 0; i < PIECES; i++) {
    u32 number = i * LANES + lane();
    if (number % PIECES * 16 < SPAN_AT(warp->places[number / PIECES])) {
      put_piece(&warp->slices[number / PIECES][number % PIECES * 4], pieces[i]);
    }
  }
  if (PIECES * 16 < SPAN_AT(place)) {
    put_piece(&warp->slices[lane()][PIECES * 4], last);
  }
  sync_lanes();
}

/* The position of the first rule of an ACL for the packets of a family; `found` for others. */
#define FIRST_OF(number, family, words, at)                                                                        \
  if (ballot(headers.kind == HEADERS_V##family)) {                                                                 \
    acl##number##_v##family##_Key key;                                                                             \
    for (u32 i = 0; i < words; i++) {                                                                              \
      key.source[i] = headers.source[i];                                                                           \
      key.destination[i] = headers.destination[i];                                                                 \
    }                                                                                                              \
    key.ports = headers.ports;                                                                                     \
    key.rest = headers.rest;                                                                                       \
    u32 first = acl##number##_v##family##_first_match(                                                             \
        &group->acl##number##_v##family, &warp->lanes.acl##number##_v##family, key,                                \
        (GLOBAL const u32x4 *)AT(number, at, rules), (GLOBAL const u32x4 *)AT(number, at, classes),   \
        AT(number, at, masks));                                                                             \
    found = headers.kind == HEADERS_V##family ? first : found;                                                     \
  }

/* An ACL's part of the chain. Packets that were dropped go through it too, since their lanes would only wait. */
#define ACL(number)                                                                            \
  {                                                                                            \
    u32 found = NONE;                                                                          \
    FIRST_OF(number, 4, 1, 0)                                                                  \
    FIRST_OF(number, 6, 4, 1)                                                                  \
    if (verdict == VERDICT_PASS) {                                                             \
      u32 denied = found != NONE && AT(number, 0, denies)[found / 32] >> (found & 31) & 1; \
      verdict = found == NONE ? VERDICT_DEFAULT_##number : denied ? VERDICT_RULE : VERDICT_PASS; \
    }                                                                                          \
    if (number == 0) {                                                                         \
      position = found;                                                                        \
    } else if (place != NO_FRAME) {                                                            \
      others[(u64)(number - 1) * stride + index] = found;                                      \
    }                                                                                          \
  }

/*
 * Judges the frame at each lane's place: the answers are written at `index`, unless there is no such one (NO_INDEX), and the positions of
 * all ACLs but the first in arrays of `stride` words each.
 */
#define NO_INDEX 0xffffffffu

FUNCTION void judge_frames(LOCAL Group *group, GLOBAL const u8 *frames, u64 bytes, u64 place, GLOBAL u64 *answers,
                           GLOBAL u32 *others, u32 stride, u32 index, u32 lap, GLOBAL const u32 *RESTRICT tables) {
  LOCAL Warp *warp = &group->warps[lanes_index()];
  u32 len = LEN_OF(place);
  u32 have = len < SLICE ? len : SLICE;
  u32 is_inside = place != NO_FRAME && OFFSET_OF(place) + have <= bytes;
  load_slices(warp, frames, is_inside ? place : NO_FRAME);
  u32 position = NONE;
  u32 verdict = VERDICT_PASS;
  Headers headers;
  headers.kind = HEADERS_BEYOND;
  headers.ip_bytes = 0;
  if (is_inside) {
    LOCAL const u8 *slice = (LOCAL const u8 *)warp->slices[lane()] + (OFFSET_OF(place) & 15);
    headers = dissect(slice, have, len, LINK_OF(place));
  }
  if (headers.kind == HEADERS_BEYOND) {
    verdict = VERDICT_BEYOND;
  } else if (headers.kind == HEADERS_REJECTED) {
    verdict = VERDICT_OF(headers.reject);
  }
  u32 is_ip = headers.kind == HEADERS_V4 || headers.kind == HEADERS_V6;
  u32 rejected = verdict;
  verdict = VERDICT_PASS;
  ACLS(ACL)
  verdict = is_ip ? verdict : rejected;
  if (index != NO_INDEX) {
    if (ACL_COUNT > 1) {
      /* Who sees the answer must see the others. */
      fence_shared();
    }
    store_shared_64(&answers[index], ANSWER(position, verdict, lap, is_ip ? headers.ip_bytes : 0));
  }
}

/* The frames whose places stand from `begin` to `end`, in `bytes` bytes of memory, a multiple of 16. */
KERNEL void judge(JUDGE_PARAMETERS) {
  LOCAL_MEMORY(Group, group);
  ACLS(LOAD_TABLES)
  barrier_group();
  u32 step = group_count() * GROUP;
  for (u32 start = begin + group_index() * GROUP + lanes_index() * LANES; start < end; start += step) {
    u32 index = start + lane() < end ? start + lane() : NO_INDEX;
    u64 place = index == NO_INDEX ? NO_FRAME : places[index];
    judge_frames(group, frames, bytes, place, answers, others, stride, index, 0, tables);
  }
}

/* What the host says: batches published, and whether to leave. Groups are told the same. */
#define PUBLISHED_OF(news) ((u32)((news) >> NEWS_PUBLISHED))
#define STOP_OF(news) ((u32)((news) >> NEWS_STOP))
#define NEWS(published, stop) ((u64)(published) << NEWS_PUBLISHED | (u64)(stop) << NEWS_STOP)
/* Whether batch n is published, according to news. */
#define HAS_BATCH(news, n) ((i32)(PUBLISHED_OF(news) - (n)) > 0)
/* What groups are told of a batch has memory of its own, since many ask at a time. */
#define TOLD(batch) told[(u64)((batch) & ((1u << ring_bits) - 1)) * TOLD_APART]
/* Behind it, the next batch that no group has taken. */
#define NEXT_BATCH ((GLOBAL u32 *)&told[(u64)TOLD_APART << ring_bits])

/*
 * Stays and judges batches of GROUP frames as the host publishes them in a ring of 2^ring_bits: places of batch n, counted from 0, stand
 * from (n mod 2^ring_bits) * GROUP on, NO_FRAME behind the last, and all are answered; the answers' lap changes with every lap of the ring
 * and is 1 in the first. `first` is the number of the batch to begin with: all of `told` begins as that.
 *
 * The first group asks the host for `news` and tells the others; if it is alone, it does all the work. Each of them takes the next batch
 * that no other has and waits until it is told of it, so that no batch waits for a group that is busy, or for which a device has no room.
 *
 * Where `buffer` is not 0, frames begin in buffers of so many bytes that follow each other, are of one `link`, and in the stead of places
 * are their lengths, of 16 bits: most of what a bus carries besides the frames.
 *
 * It leaves by itself where the host has published nothing for `patience` times that it was asked.
 */
KERNEL void reside(RESIDE_PARAMETERS) {
  LOCAL_MEMORY(Group, group);
  u32 is_alone = group_count() == 1;
  if (!is_alone && group_index() == 0) {
    u32 published = first;
    u32 idle = 0;
    u64 now = 0;
    /* The lanes of one warp tell of as many batches at a time: each of those whose numbers are its own, whatever others see. */
    while (lanes_index() == 0 && !STOP_OF(now)) {
      now = load_acquire_64(news);
      idle = PUBLISHED_OF(now) == published ? idle + 1 : 0;
      /*
       * Not a release, which would wait for what was told before: what groups are to read lies in the host's memory, was there before
       * the news came, and is in no cache.
       */
      for (u32 mine = published + ((lane() - published) & (LANES - 1)); HAS_BATCH(now, mine); mine += LANES) {
        store_shared_64(&TOLD(mine), NEWS(mine + 1, 0));
      }
      published = PUBLISHED_OF(now);
      if (idle == patience) {
        now = NEWS(published, 1);
      }
    }
    if (lanes_index() == 0) {
      sync_lanes();
      for (u32 n = lane(); n >> ring_bits == 0; n += LANES) {
        store_shared_64(&told[(u64)n * TOLD_APART], NEWS(published, 1));
      }
    }
    return;
  }
  ACLS(LOAD_TABLES)
  for (;;) {
    if (local_index() == 0) {
      u32 batch = add_global(NEXT_BATCH, 1);
      GLOBAL const u64 *from = is_alone ? news : &TOLD(batch);
      u64 now;
      u32 idle = 0;
      do {
        now = load_acquire_64(from);
        idle++;
      } while (!HAS_BATCH(now, batch) && !STOP_OF(now) && !(is_alone && idle == patience));
      group->batch = batch;
      group->has_batch = HAS_BATCH(now, batch);
    }
    barrier_group();
    u32 batch = group->batch;
    u32 has_batch = group->has_batch;
    barrier_group();
    if (!has_batch) {
      return;
    }
    u32 index = (batch & ((1u << ring_bits) - 1)) * GROUP + local_index();
    u64 place;
    if (buffer) {
      u32 len = load_shared_16((GLOBAL const u16 *)places + index);
      place = len == NO_LEN ? NO_FRAME : PLACE((u64)index * buffer, link, len);
    } else {
      place = load_shared_64((GLOBAL const u64 *)places + index);
    }
    u32 lap = ~(batch >> ring_bits) & 1;
    judge_frames(group, frames, bytes, place, answers, others, GROUP << ring_bits, index, lap, tables);
  }
}
