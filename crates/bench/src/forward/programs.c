// The two programs of "packetloom bench forward": one makes frames, one takes them.
//
// - generate runs as an XDP program on frames that the kernel makes for it (BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES). Memory of
//   frames comes back as its last receiver left it, so all headers are written each time. It keeps the pace itself, since each call takes
//   some 24 ms at its end.
// - sink runs where frames arrive (tcx). It counts ours, notes how long each was on its way, and drops it.
//
// generate.bin and sink.bin hold the instructions that clang makes of this, in the byte order of little-endian machines:
//
//     scripts/bpf.sh
//
// The loader puts the maps where the constants below stand.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

// `struct xdp_md` of linux/bpf.h.
struct context {
    u32 data;
    u32 data_end;
    u32 data_meta;
    u32 ingress_ifindex;
    u32 rx_queue_index;
    u32 egress_ifindex;
};

enum { XDP_DROP = 1, TCX_NEXT = -1, TCX_DROP = 2 };

// Bytes of headers and of the mark behind them, which the time follows.
enum { HEADERS = 42, MARK = 6, HEAD = HEADERS + MARK };
// Turns of waiting for a batch to be due, each of several looks at the clock, some 0.4 ms in all: the kernel walks through all turns when it
// checks the program. Nanoseconds after which a batch is late.
enum { TURNS = 2048, LOOKS = 8, LATE = 100000 };
// Lower bits of a time that are kept beside its highest one.
enum { STEPS = 32, STEP_BITS = 5, BUCKETS = 2048 };

struct pace {
    // What user space writes: nanoseconds between batches, 0 without a pace; packets of a batch; where they go, 0 for nowhere; flows.
    u64 interval;
    u64 batch;
    u64 port;
    u64 flows;
    // What user space reads: packets made; batches that were late, and by how many nanoseconds at most; nanoseconds spent waiting; the times of the
    // first and the last batch.
    u64 made;
    u64 late;
    u64 latest;
    u64 waited;
    u64 first;
    u64 now;
    // The program's own: when the next batch is due, what is left of this one, the next flow.
    u64 due;
    u64 left;
    u64 flow;
};

// Ethernet, IPv4 and UDP header and the mark.
struct head {
    u64 words[HEAD / 8];
};

struct arrived {
    u64 packets;
    u64 first;
    u64 last;
    u64 longest_gap;
    u64 longest_way;
    // Packets by the time that they were on their way.
    u64 ways[BUCKETS];
};

#define PACE ((void *)0x7061636b65740003ull)
#define HEADS ((void *)0x7061636b65740004ull)
#define ARRIVED ((void *)0x7061636b65740005ull)

// BPF_FUNC_map_lookup_elem, _ktime_get_ns, _redirect, _skb_load_bytes.
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const time_now)(void) = (void *)5;
static long (*const redirect)(u32 port, u64 flags) = (void *)23;
static long (*const load_bytes)(const void *frame, u32 offset, void *to, u32 length) = (void *)26;

__attribute__((section("xdp"), used)) int generate(struct context *context) {
    u32 key = 0;
    struct pace *pace = map_lookup(PACE, &key);
    if (!pace) {
        return XDP_DROP;
    }
    if (pace->left == 0) {
        u64 now = time_now();
        if (pace->first == 0) {
            pace->first = now;
            pace->due = now;
        }
        if (pace->interval) {
            u64 begun = now, due = pace->due;
            for (u32 turn = 0; turn < TURNS && (s64)(now - due) < 0; turn++) {
#pragma unroll
                for (u32 look = 1; look < LOOKS; look++) {
                    time_now();
                }
                now = time_now();
            }
            pace->waited += now - begun;
            s64 late = now - due;
            if (late > LATE) {
                // Catching up would fill any ring.
                pace->late++;
                due = now;
            }
            if (late > 0 && (u64)late > pace->latest) {
                pace->latest = late;
            }
            pace->due = due + pace->interval;
        }
        pace->now = now;
        pace->left = pace->batch;
    }
    pace->left--;
    key = pace->flow;
    pace->flow = pace->flow + 1 < pace->flows ? pace->flow + 1 : 0;
    struct head *head = map_lookup(HEADS, &key);
    u8 *data = (u8 *)(u64)context->data;
    if (!head || data + HEAD + 8 > (u8 *)(u64)context->data_end) {
        return XDP_DROP;
    }
    u64 *words = (u64 *)data;
#pragma unroll
    for (u32 at = 0; at < HEAD / 8; at++) {
        words[at] = head->words[at];
    }
    words[HEAD / 8] = pace->now;
    pace->made++;
    return pace->port ? (int)redirect(pace->port, 0) : XDP_DROP;
}

// The place of a time: the number of its highest bit, then the bits after it.
static inline u32 bucket(u64 time) {
    u32 high = 0;
    u64 rest = time;
#pragma unroll
    for (u32 bits = 32; bits; bits /= 2) {
        if (rest >> bits) {
            rest >>= bits;
            high += bits;
        }
    }
    if (high < STEP_BITS) {
        return time;
    }
    return high * STEPS + ((time >> (high - STEP_BITS)) & (STEPS - 1));
}

__attribute__((section("tc"), used)) int sink(void *frame) {
    struct {
        u8 unused[2];
        u8 mark[MARK];
        u64 time;
    } tail = {};
    if (load_bytes(frame, HEADERS, tail.mark, MARK + 8) < 0) {
        return TCX_NEXT;
    }
    u64 mark = 0;
    __builtin_memcpy(&mark, tail.mark, MARK);
    // "loomed".
    if (mark != 0x64656d6f6f6cull) {
        return TCX_NEXT;
    }
    u32 key = 0;
    struct arrived *arrived = map_lookup(ARRIVED, &key);
    if (!arrived) {
        return TCX_DROP;
    }
    // In all, which user space never clears.
    key = 1;
    struct arrived *all = map_lookup(ARRIVED, &key);
    if (all) {
        all->packets++;
    }
    u64 now = time_now();
    u64 way = now - tail.time;
    arrived->packets++;
    if (arrived->first == 0) {
        arrived->first = now;
    } else if (now - arrived->last > arrived->longest_gap) {
        arrived->longest_gap = now - arrived->last;
    }
    arrived->last = now;
    if (way > arrived->longest_way) {
        arrived->longest_way = way;
    }
    arrived->ways[bucket(way) & (BUCKETS - 1)]++;
    return TCX_DROP;
}
