/*
 * Headers that lie in the host's memory: read there and parsed to records, and written back there as functions have rewritten them.
 *
 * Before this text stands that of dissect.kernel.c. Lanes take a packet each; nothing is shared between warps.
 *
 * Defined by the host: SLICE, the bytes of a frame that are looked at, a multiple of 16; what frames.kernel.c calls
 * VERDICT_OF(reject); RECORD_..., ANSWER_ENDS and ANSWER_MARKED, bits of records and answers; PROTOCOL_...; WRITTEN and BY_HOST, bits of what
 * the host is told of a packet beside its verdict; READ_HEADERS_PARAMETERS and others, what the kernels take. Record, Ipv6Addresses, Answer and Mended are
 * declared in Rust.
 */

/* Sixteen bytes at a time. */
#define PIECES (SLICE / 16)
/* An odd number of words from a lane's slice to the next, so that lanes read different banks. */
#define SLICE_WORDS (PIECES * 4 + 1)
/* In place of a frame's length: software must look at it. */
#define NO_LEN 0xffffu

typedef struct {
  u32 slices[LANES][SLICE_WORDS];
} Warp;

typedef struct {
  Warp warps[GROUP / LANES];
} Group;

/*
 * Where a packet's IP header begins in its frame, the header that it carries, and where its captured bytes end: as far as slices go and
 * extension headers at their end.
 */
#define SPOT_END 4095u
#define SPOT(headers) \
  ((headers).network | (headers).transport << 8 | ((headers).end < SPOT_END ? (headers).end : SPOT_END) << 20)
#define NETWORK_OF(spot) ((spot) & 0xff)
#define TRANSPORT_OF(spot) ((spot) >> 8 & 0xfff)
#define END_OF(spot) ((spot) >> 20)
/* That of what software parsed: it also rewrites it. */
#define NO_SPOT 0xffffffffu

FUNCTION void put_piece(LOCAL u32 *to, u32x4 piece) {
  to[0] = piece.x;
  to[1] = piece.y;
  to[2] = piece.z;
  to[3] = piece.w;
}

FUNCTION u32x4 four(u32 x, u32 y, u32 z, u32 w) {
  u32x4 all;
  all.x = x;
  all.y = y;
  all.z = z;
  all.w = w;
  return all;
}

/*
 * Reads the headers of `count` frames that begin `stride` bytes apart, from that of number `first` on, with their captured lengths and their
 * times after `base`. Neighbouring lanes read neighbouring pieces of one header, so that it is one request on a bus, and all requests are on their way
 * before the first answer is needed. The headers stay in `slices`, for those who write. What the host must know of as many packets as there
 * are lanes is a word of `found`: which of them software must look at (low half), and which are IPv6.
 */
KERNEL void read_headers(READ_HEADERS_PARAMETERS) {
  LOCAL_MEMORY(Group, group);
  LOCAL Warp *warp = &group->warps[lanes_index()];
  u32 step = group_count() * GROUP;
  for (u32 start = group_index() * GROUP + lanes_index() * LANES; start < count; start += step) {
    u32x4 pieces[PIECES];
    for (u32 i = 0; i < PIECES; i++) {
      u32 number = i * LANES + lane();
      u32 of = start + number / PIECES;
      if (of < count) {
        pieces[i] = *(GLOBAL const u32x4 *)(frames + (u64)(first + of) * stride + number % PIECES * 16);
      }
    }
    u32 index = start + lane();
    u32 len = 0;
    u64 now = base;
    if (index < count) {
      len = lens[first + index];
      now += times[first + index];
    }
    for (u32 i = 0; i < PIECES; i++) {
      u32 number = i * LANES + lane();
      if (start + number / PIECES < count) {
        slices[(u64)start * PIECES + number] = pieces[i];
        put_piece(&warp->slices[number / PIECES][number % PIECES * 4], pieces[i]);
      }
    }
    sync_lanes();
    u32 is_beyond = 0;
    u32 is_v6 = 0;
    if (index < count) {
      u32 have = len < SLICE ? len : SLICE;
      Headers headers = headers_stopped(HEADERS_STOP_BEYOND);
      if (len != NO_LEN) {
        headers = dissect((LOCAL const u8 *)warp->slices[lane()], have, len, link);
      }
      is_beyond = headers.kind == HEADERS_BEYOND;
      is_v6 = headers.kind == HEADERS_V6;
      Record record;
      record.key[0] = record.key[1] = record.key[2] = record.key[3] = 0;
      record.time[0] = record.time[1] = record.bytes = 0;
      record.kind = VERDICT_OF(headers.reject) << RECORD_VERDICT;
      if (is_v6 || headers.kind == HEADERS_V4) {
        record.key[0] = is_v6 ? 0 : headers.source[0];
        record.key[1] = is_v6 ? 0 : headers.destination[0];
        record.key[2] = headers.ports;
        record.key[3] = headers.rest;
        record.time[0] = (u32)now;
        record.time[1] = (u32)(now >> 32);
        record.bytes = headers.ip_bytes;
        record.kind = RECORD_TAKES_PART | (is_v6 ? RECORD_IS_V6 : 0);
      }
      records[index] = record;
      if (is_v6) {
        Ipv6Addresses addresses;
        for (u32 i = 0; i < 4; i++) {
          addresses.source[i] = headers.source[i];
          addresses.destination[i] = headers.destination[i];
        }
        wide[index] = addresses;
      }
      spots[index] = SPOT(headers);
    }
    u32 all_beyond = ballot(is_beyond);
    u32 all_v6 = ballot(is_v6);
    if (lane() == 0) {
      found[start / LANES] = all_beyond | (u64)all_v6 << 32;
    }
    sync_lanes();
  }
}

/* Puts what software found out about some packets in the place of what was read. */
KERNEL void mend_records(MEND_RECORDS_PARAMETERS) {
  for (u32 i = group_index() * GROUP + local_index(); i < count; i += group_count() * GROUP) {
    u32 index = mended[i].packet;
    records[index] = mended[i].record;
    wide[index] = mended[i].wide;
    spots[index] = NO_SPOT;
  }
}

/* A packet's ends as functions have left them, most significant word first, and what is known of its headers. */
typedef struct {
  u32 spot;
  u32 is_v6;
  /* The last word of the match key. */
  u32 rest;
  u32 ends;
  u32 ports;
  u32 source[4];
  u32 destination[4];
} Rewritten;

#define END_SOURCE 1u
#define END_DESTINATION 2u
#define NO_CHECKSUM 0xffffffffu

/* Where the checksum over addresses and ports stands in the header that an IP packet carries. Later fragments begin with anything but one. */
FUNCTION u32 checksum_at(u32 rest) {
  if (rest >> 16 & KEY_LATER_FRAGMENT) {
    return NO_CHECKSUM;
  }
  switch (rest & 0xff) {
    case PROTOCOL_TCP:
      return 16;
    case PROTOCOL_UDP:
      return 6;
    case PROTOCOL_ICMPV6:
      return 2;
    default:
      return NO_CHECKSUM;
  }
}

/* Whether all that is to be written stands in a slice. SCTP's checksum covers the whole packet: software knows how it changes. */
FUNCTION u32 is_in_slice(PRIVATE const Rewritten *to, u32 ports_before) {
  if (to->spot == NO_SPOT) {
    return 0;
  }
  if ((to->rest & 0xff) == PROTOCOL_SCTP && to->ports != ports_before) {
    return 0;
  }
  u32 checksum = checksum_at(to->rest);
  u32 after = TRANSPORT_OF(to->spot) + checksum + 2;
  return checksum == NO_CHECKSUM || after > END_OF(to->spot) || after <= SLICE;
}

/* Writes sixteen bits; what that changes in a ones' complement sum over them: ~m + m' of RFC 1624. */
FUNCTION u32 replace_16(LOCAL u8 *slice, u32 at, u32 word) {
  u32 before = headers_be16(slice, at);
  slice[at] = (u8)(word >> 8);
  slice[at + 1] = (u8)word;
  return (~before & 0xffff) + word;
}

/* The checksum over words that changed: ~(~HC + ~m + m'). No more than 17 words changed, so one turn brings all carries back. */
FUNCTION u32 adjusted(u32 checksum, u32 change) {
  u32 sum = (~checksum & 0xffff) + change;
  sum = (sum + (sum << 16 | sum >> 16)) >> 16;
  return ~sum & 0xffff;
}

/* Writes the address and the port of one end, and brings checksums up to date. */
FUNCTION void rewrite_end(LOCAL u8 *slice, PRIVATE const Rewritten *to, u32 is_source) {
  u32 network = NETWORK_OF(to->spot);
  u32 transport = TRANSPORT_OF(to->spot);
  u32 words = to->is_v6 ? 4 : 1;
  u32 at = network + (to->is_v6 ? 8 : 12) + (is_source ? 0 : words * 4);
  u32 change = 0;
  for (u32 i = 0; i < words; i++) {
    u32 word = is_source ? to->source[i] : to->destination[i];
    change += replace_16(slice, at + i * 4, word >> 16) + replace_16(slice, at + i * 4 + 2, word & 0xffff);
  }
  if (!to->is_v6) {
    replace_16(slice, network + 10, adjusted(headers_be16(slice, network + 10), change));
  }
  u32 protocol = to->rest & 0xff;
  /* One that did not change counts too: it may turn a checksum of one zero into that of the other, as in software. */
  if (to->rest >> 16 & KEY_PORTS && protocol != PROTOCOL_SCTP) {
    change += replace_16(slice, transport + (is_source ? 0 : 2), is_source ? to->ports & 0xffff : to->ports >> 16);
  }
  u32 checksum = checksum_at(to->rest);
  if (checksum == NO_CHECKSUM || transport + checksum + 2 > END_OF(to->spot)) {
    return;
  }
  u32 before = headers_be16(slice, transport + checksum);
  u32 after = adjusted(before, change);
  if (protocol == PROTOCOL_UDP) {
    /* Of UDP, 0 says that there is none. */
    after = before == 0 ? 0 : after == 0 ? 0xffff : after;
  }
  replace_16(slice, transport + checksum, after);
}

/*
 * Tells the host the verdicts on `count` packets, a byte each, and writes the headers of those that pass and were rewritten, whole slices one after
 * the other: where there is none, nothing is written.
 */
KERNEL void write_headers(WRITE_HEADERS_PARAMETERS) {
  LOCAL_MEMORY(Group, group);
  LOCAL Warp *warp = &group->warps[lanes_index()];
  u32 step = group_count() * GROUP;
  for (u32 start = group_index() * GROUP + lanes_index() * LANES; start < count; start += step) {
    u32 index = start + lane();
    u32 verdict = 0;
    Rewritten to;
    if (index < count) {
      Answer answer = answers[index];
      verdict = answer.bits & 0xff;
      to.ends = verdict == VERDICT_PASS ? answer.bits >> ANSWER_ENDS & (END_SOURCE | END_DESTINATION) : 0;
      if (verdict == VERDICT_PASS && (answer.bits & ANSWER_MARKED)) {
        /* DSCPs are written by the host. */
        to.ends = 0;
        verdict |= BY_HOST;
      }
      if (to.ends) {
        Record record = records[index];
        to.is_v6 = record.kind & RECORD_IS_V6;
        to.spot = spots[index];
        to.rest = record.key[3];
        to.ports = answer.ports;
        to.source[0] = answer.source;
        to.destination[0] = answer.destination;
        if (to.is_v6) {
          Ipv6Addresses addresses = wide_answers[index];
          for (u32 i = 0; i < 4; i++) {
            to.source[i] = addresses.source[i];
            to.destination[i] = addresses.destination[i];
          }
        }
        verdict |= is_in_slice(&to, record.key[2]) ? WRITTEN : BY_HOST;
      }
      verdicts[index] = (u8)verdict;
    }
    u32 are_written = ballot((verdict & WRITTEN) != 0);
    if (are_written == 0) {
      continue;
    }
    for (u32 i = 0; i < PIECES; i++) {
      u32 number = i * LANES + lane();
      if (are_written >> (number / PIECES) & 1) {
        put_piece(&warp->slices[number / PIECES][number % PIECES * 4], slices[(u64)start * PIECES + number]);
      }
    }
    sync_lanes();
    if (verdict & WRITTEN) {
      LOCAL u8 *slice = (LOCAL u8 *)warp->slices[lane()];
      if (to.ends & END_SOURCE) {
        rewrite_end(slice, &to, 1);
      }
      if (to.ends & END_DESTINATION) {
        rewrite_end(slice, &to, 0);
      }
    }
    sync_lanes();
    for (u32 i = 0; i < PIECES; i++) {
      u32 number = i * LANES + lane();
      if (are_written >> (number / PIECES) & 1) {
        LOCAL const u32 *from = &warp->slices[number / PIECES][number % PIECES * 4];
        written[(u64)start * PIECES + number] = four(from[0], from[1], from[2], from[3]);
      }
    }
    sync_lanes();
  }
}
