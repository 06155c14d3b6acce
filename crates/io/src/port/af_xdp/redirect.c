// Hands each frame of an interface to the AF_XDP socket of its queue. A queue without a socket drops its frames, and they are
// counted: the kernel must not handle what is to be forwarded by this process alone.
//
// redirect.bin holds the instructions that clang makes of this, in the byte order of little-endian machines:
//
//     scripts/bpf.sh
//
// The loader puts the maps where the constants below stand. Two loads of 64-bit constants are all that it has to know of.

typedef unsigned int u32;
typedef unsigned long long u64;

// `struct xdp_md` of linux/bpf.h.
struct context {
    u32 data;
    u32 data_end;
    u32 data_meta;
    u32 ingress_ifindex;
    u32 rx_queue_index;
    u32 egress_ifindex;
};

enum { XDP_DROP = 1, XDP_REDIRECT = 4 };

#define SOCKETS ((void *)0x7061636b65740001ull)
#define LOST ((void *)0x7061636b65740002ull)

// BPF_FUNC_map_lookup_elem, BPF_FUNC_redirect_map.
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const redirect_map)(void *map, u64 key, u64 otherwise) = (void *)51;

__attribute__((section("xdp.frags"), used)) int redirect(struct context *context) {
    long action = redirect_map(SOCKETS, context->rx_queue_index, XDP_DROP);
    if (action != XDP_REDIRECT) {
        u32 first = 0;
        u64 *lost = map_lookup(LOST, &first);
        if (lost) {
            __sync_fetch_and_add(lost, 1);
        }
    }
    return (int)action;
}
