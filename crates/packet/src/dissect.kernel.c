/*
 * The same walk over headers as in dissect.rs, for kernels that have only the first bytes of a frame. Functions and
 * types, to be put before the text of a kernel.
 *
 * Two ends matter. Where the frame ends, or its IP packet, the software's walk ends too, and tells why: each step asks
 * for that end first. Only then it asks for the bytes that it reads; where one is not here, the software must look. So it must where
 * the framing is not one of the basic ones, and may carry IP.
 *
 * Loops end because each round reads a byte that comes after those of the round before, and there are `have`.
 *
 * Defined by the host (dissect/kernel.rs): HEADERS_V4 and the other kinds, HEADERS_IS_..., HEADERS_HAS_..., LINK_...,
 * REJECT_..., ETHERTYPE_..., PROTOCOL_..., KEY_...
 */

/* The memory that frames are read from, unless a program defines another one. */
#ifndef HEADERS_SPACE
#define HEADERS_SPACE LOCAL
#endif

typedef struct {
  /* HEADERS_V4, HEADERS_V6, HEADERS_REJECTED, or HEADERS_BEYOND; with the last two, only `reject` means anything. */
  u32 kind;
  /* Where rejected: the number of the reason. */
  u32 reject;
  /* Bytes of the IP packet, by its own length field. */
  u32 ip_bytes;
  /* Most significant word first; of IPv4 only the first. */
  u32 source[4];
  u32 destination[4];
  /* The last two words of a match key. */
  u32 ports;
  u32 rest;
  /* Where the IP header and what it carries begin in the frame, and where the captured bytes of the packet end. */
  u32 network;
  u32 transport;
  u32 end;
} Headers;

/* Set in place of an offset where the walk stops; the other bits are a reason's number, or this. */
#define HEADERS_STOP 0x80000000u
#define HEADERS_STOP_BEYOND 0xffffffffu

/*
 * 0 where there are `bytes` before `end` from `at` on, and the first `read` of them are here; otherwise what stops the
 * walk. `at` is not past `end`.
 */
FUNCTION u32 headers_stop(u32 have, u32 end, u32 at, u32 bytes, u32 read, u32 reject) {
  if (end - at < bytes) {
    return HEADERS_STOP | reject;
  }
  return have < read || at > have - read ? HEADERS_STOP_BEYOND : 0;
}

FUNCTION u32 headers_be16(HEADERS_SPACE const u8 *frame, u32 at) { return (u32)frame[at] << 8 | frame[at + 1]; }

FUNCTION u32 headers_be32(HEADERS_SPACE const u8 *frame, u32 at) {
  return headers_be16(frame, at) << 16 | headers_be16(frame, at + 2);
}

/* The answer without headers; after 0, a place for them. */
FUNCTION Headers headers_stopped(u32 stop) {
  Headers headers;
  headers.kind = stop == HEADERS_STOP_BEYOND ? HEADERS_BEYOND : HEADERS_REJECTED;
  headers.reject = stop == HEADERS_STOP_BEYOND ? 0 : stop & ~HEADERS_STOP;
  headers.ip_bytes = 0;
  for (u32 i = 0; i < 4; i++) {
    headers.source[i] = 0;
    headers.destination[i] = 0;
  }
  headers.ports = 0;
  headers.rest = 0;
  headers.network = 0;
  headers.transport = 0;
  headers.end = 0;
  return headers;
}

/* Where the bytes after VLAN tags, MPLS labels and PPPoE begin, or what stops the walk. */
FUNCTION u32 headers_tagged(HEADERS_SPACE const u8 *frame, u32 have, u32 len, u32 at, u32 ethertype) {
  u32 stop;
  while (HEADERS_IS_VLAN(ethertype)) {
    stop = headers_stop(have, len, at, 4, 4, REJECT_LINK_TRUNCATED);
    if (stop) {
      return stop;
    }
    ethertype = headers_be16(frame, at + 2);
    at += 4;
  }
  if (ethertype == ETHERTYPE_IPV4 || ethertype == ETHERTYPE_IPV6) {
    return at;
  }
  if (ethertype == ETHERTYPE_MPLS || ethertype == ETHERTYPE_MPLS_MULTICAST) {
    u32 bottom = 0;
    while (!bottom) {
      stop = headers_stop(have, len, at, 4, 3, REJECT_LINK_TRUNCATED);
      if (stop) {
        return stop;
      }
      bottom = frame[at + 2] & 1u;
      at += 4;
    }
    /* MPLS does not say what it carries: the first nibble must look like IP. */
    stop = headers_stop(have, len, at, 1, 1, REJECT_LINK_TRUNCATED);
    if (stop) {
      return stop;
    }
    return frame[at] >> 4 == 4 || frame[at] >> 4 == 6 ? at : HEADERS_STOP_BEYOND;
  }
  if (ethertype == ETHERTYPE_PPPOE_SESSION) {
    stop = headers_stop(have, len, at, 8, 8, REJECT_LINK_TRUNCATED);
    if (stop) {
      return stop;
    }
    return HEADERS_IS_PPP_IP(headers_be16(frame, at + 6)) ? at + 8 : HEADERS_STOP_BEYOND;
  }
  return HEADERS_IS_NEVER_IP(ethertype) ? HEADERS_STOP | REJECT_NOT_IP : HEADERS_STOP_BEYOND;
}

/* Where the outermost IP header begins, or what stops the walk. */
FUNCTION u32 headers_network(HEADERS_SPACE const u8 *frame, u32 have, u32 len, u32 link) {
  u32 bytes = 0;
  u32 ethertype_at = 0;
  switch (link) {
    case LINK_ETHERNET:
      bytes = 14;
      ethertype_at = 12;
      break;
    case LINK_SLL:
      bytes = 16;
      ethertype_at = 14;
      break;
    case LINK_SLL2:
      bytes = 20;
      break;
    case LINK_NULL:
    case LINK_LOOP:
      bytes = 4;
      break;
    case LINK_RAW:
    case LINK_RAW_BSD:
    case LINK_RAW_OPENBSD:
    case LINK_IPV4:
    case LINK_IPV6:
      return 0;
    case LINK_NONE:
      return HEADERS_STOP | REJECT_UNDEFINED_INTERFACE;
    default:
      return HEADERS_IS_LINK_BEYOND(link) ? HEADERS_STOP_BEYOND : HEADERS_STOP | REJECT_UNSUPPORTED_LINK_TYPE;
  }
  u32 is_loopback = link == LINK_NULL || link == LINK_LOOP;
  u32 stop = headers_stop(have, len, 0, bytes, is_loopback ? 4 : ethertype_at + 2, REJECT_LINK_TRUNCATED);
  if (stop) {
    return stop;
  }
  if (is_loopback) {
    u32 family = headers_be32(frame, 0);
    /* One is in the byte order of the host that captured: the one that makes a small number. */
    if (link == LINK_NULL && (family & 0xffff) == 0) {
      family = family >> 24 | (family >> 8 & 0xff00);
    }
    return HEADERS_IS_FAMILY_IP(family) ? bytes : HEADERS_STOP_BEYOND;
  }
  u32 network = headers_tagged(frame, have, len, bytes, headers_be16(frame, ethertype_at));
  /* In cooked captures not every interface has EtherTypes. */
  return network == (HEADERS_STOP | REJECT_NOT_IP) && link != LINK_ETHERNET ? HEADERS_STOP_BEYOND : network;
}

/* Adds what the transport header at `at` says; the IP packet's captured bytes end at `end`. */
FUNCTION Headers headers_transport(HEADERS_SPACE const u8 *frame, u32 have, u32 end, u32 at, u32 protocol, u32 fragment,
                                   Headers headers) {
  u32 bits = fragment;
  u32 flags = 0;
  headers.transport = at;
  headers.end = end;
  if (fragment != KEY_LATER_FRAGMENT && HEADERS_HAS_PORTS(protocol)) {
    /* Flags are read where the packet has them, and ports alone where it ends before. */
    u32 has_flags = protocol == PROTOCOL_TCP && end - at >= 14;
    u32 stop = headers_stop(have, end, at, 4, has_flags ? 14 : 4, REJECT_TRANSPORT_TRUNCATED);
    if (stop) {
      return headers_stopped(stop);
    }
    headers.ports = headers_be16(frame, at) | headers_be16(frame, at + 2) << 16;
    bits |= KEY_PORTS;
    if (has_flags) {
      flags = frame[at + 13];
      bits |= KEY_TCP_FLAGS;
    }
  } else if (fragment != KEY_LATER_FRAGMENT && HEADERS_HAS_TYPE_AND_CODE(protocol) && end - at >= 2) {
    u32 stop = headers_stop(have, end, at, 2, 2, 0);
    if (stop) {
      return headers_stopped(stop);
    }
    headers.ports = frame[at] | (u32)frame[at + 1] << 16;
    bits |= KEY_ICMP;
  }
  headers.rest = protocol | flags << 8 | bits << 16;
  return headers;
}

/* Of the frame's bytes `len` were captured. */
FUNCTION Headers headers_v4(HEADERS_SPACE const u8 *frame, u32 have, u32 len, u32 at) {
  u32 header_bytes = (frame[at] & 15u) * 4;
  if (len - at < 20) {
    return headers_stopped(HEADERS_STOP | REJECT_IP_TRUNCATED);
  }
  if (header_bytes < 20) {
    return headers_stopped(HEADERS_STOP | REJECT_IP_MALFORMED);
  }
  /* Options are stepped over. */
  u32 stop = headers_stop(have, len, at, header_bytes, 20, REJECT_IP_TRUNCATED);
  if (stop) {
    return headers_stopped(stop);
  }
  Headers headers = headers_stopped(0);
  headers.kind = HEADERS_V4;
  headers.network = at;
  headers.ip_bytes = headers_be16(frame, at + 2);
  if (headers.ip_bytes == 0) {
    /* Then the length is the one on the wire. */
    return headers_stopped(HEADERS_STOP_BEYOND);
  }
  if (headers.ip_bytes < header_bytes) {
    return headers_stopped(HEADERS_STOP | REJECT_IP_MALFORMED);
  }
  headers.source[0] = headers_be32(frame, at + 12);
  headers.destination[0] = headers_be32(frame, at + 16);
  u32 end = at + (len - at < headers.ip_bytes ? len - at : headers.ip_bytes);
  u32 field = headers_be16(frame, at + 6);
  u32 fragment = field & 0x1fff ? KEY_LATER_FRAGMENT : field & 0x2000 ? KEY_FIRST_FRAGMENT : KEY_WHOLE;
  return headers_transport(frame, have, end, at + header_bytes, frame[at + 9], fragment, headers);
}

FUNCTION Headers headers_v6(HEADERS_SPACE const u8 *frame, u32 have, u32 len, u32 at) {
  u32 stop = headers_stop(have, len, at, 40, 40, REJECT_IP_TRUNCATED);
  if (stop) {
    return headers_stopped(stop);
  }
  Headers headers = headers_stopped(0);
  headers.kind = HEADERS_V6;
  headers.network = at;
  headers.ip_bytes = 40 + headers_be16(frame, at + 4);
  if (headers.ip_bytes == 40) {
    /* Then the length is the one on the wire. */
    return headers_stopped(HEADERS_STOP_BEYOND);
  }
  for (u32 i = 0; i < 4; i++) {
    headers.source[i] = headers_be32(frame, at + 8 + 4 * i);
    headers.destination[i] = headers_be32(frame, at + 24 + 4 * i);
  }
  u32 end = at + (len - at < headers.ip_bytes ? len - at : headers.ip_bytes);
  u32 protocol = frame[at + 6];
  u32 fragment = KEY_WHOLE;
  at += 40;
  while (fragment != KEY_LATER_FRAGMENT) {
    if (HEADERS_IS_WALKED(protocol)) {
      stop = headers_stop(have, end, at, 8, 2, REJECT_EXTENSION_CHAIN);
      if (stop) {
        return headers_stopped(stop);
      }
      u32 units = frame[at + 1];
      u32 bytes = protocol == PROTOCOL_AH ? (units + 2) * 4 : (units + 1) * 8;
      if (end - at < bytes) {
        return headers_stopped(HEADERS_STOP | REJECT_EXTENSION_CHAIN);
      }
      protocol = frame[at];
      at += bytes;
    } else if (protocol == PROTOCOL_FRAGMENT) {
      stop = headers_stop(have, end, at, 8, 4, REJECT_EXTENSION_CHAIN);
      if (stop) {
        return headers_stopped(stop);
      }
      protocol = frame[at];
      u32 field = headers_be16(frame, at + 2);
      /* An "atomic" fragment is a whole packet. */
      fragment = field >> 3 ? KEY_LATER_FRAGMENT : field & 1 ? KEY_FIRST_FRAGMENT : fragment;
      at += 8;
    } else {
      break;
    }
  }
  return headers_transport(frame, have, end, at, protocol, fragment, headers);
}

/*
 * What the headers of a frame say, `have` bytes of which are here, and `len` were captured, no fewer. The answer is
 * that of the software's walk over all that was captured, or HEADERS_BEYOND: the software must look at this frame.
 */
FUNCTION Headers dissect(HEADERS_SPACE const u8 *frame, u32 have, u32 len, u32 link) {
  u32 at = headers_network(frame, have, len, link);
  if (at & HEADERS_STOP) {
    return headers_stopped(at);
  }
  u32 stop = headers_stop(have, len, at, 1, 1, REJECT_LINK_TRUNCATED);
  if (stop) {
    return headers_stopped(stop);
  }
  u32 version = frame[at] >> 4;
  if (version == 4) {
    return headers_v4(frame, have, len, at);
  }
  if (version == 6) {
    return headers_v6(frame, have, len, at);
  }
  return headers_stopped(HEADERS_STOP | REJECT_IP_MALFORMED);
}
