/*
 * What every kernel begins with: one small dialect of C for three compilers, NVRTC (CUDA), OpenCL C 1.2 and the host's C
 * compiler. Scalars only, no headers, no recursion, no pointers without a space. Names that one of the three reserves (half, uint4,
 * global, ...) are none of ours.
 *
 *   KERNEL void name(GLOBAL const u32 *RESTRICT in, u32 count)   an entry point
 *   FUNCTION u32 name(u32 x)                                       a function of the kernels
 *   GLOBAL T *   LOCAL T *   CONSTANT T *   PRIVATE T *            memory of the device, of a group, read only, of a work item
 *   LOCAL_MEMORY(T, name);                                         at the top of a kernel: `LOCAL T *name`, one T for each group
 *   group_index() group_count() local_index() local_count()        where a work item stands
 *   barrier_group();                                               all items of a group arrive before one goes on
 *   prefetch_global(p)                                             brings memory closer that will be read
 *   LANES lane() ballot(p) lanes_read(x, from) sync_lanes()        items that run in step: see below
 *   load_shared(p) store_shared_64(p, x) fence_shared() ...        memory that others use at the same time: see below
 */

#if defined(__OPENCL_VERSION__)

typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef int i32;
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
#define FUNCTION static inline
#define GLOBAL __global
#define LOCAL __local
#define CONSTANT __constant
#define PRIVATE __private
#define RESTRICT restrict
#define ALIGNED(n) __attribute__((aligned(n)))
#define LOCAL_MEMORY(type, name)                                        \
  typedef char name##_fits[sizeof(type) <= LOCAL_BYTES ? 1 : -1];       \
  __local type name##_memory;                                           \
  LOCAL type *name = &name##_memory
#define group_index() ((u32)get_group_id(0))
#define group_count() ((u32)get_num_groups(0))
#define local_count() ((u32)get_local_size(0))
/* A group of one has nobody to wait for: compilers for cores make loops over items between barriers, and many barriers cost them minutes. */
#if GROUP == 1
#define local_index() 0u
#define barrier_group()
#else
#define local_index() ((u32)get_local_id(0))
#define barrier_group() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#endif
#define count_ones(x) popcount((u32)(x))
#define multiply_high(x, y) mul_hi((u32)(x), (u32)(y))
#define multiply_high_64(x, y) mul_hi((u64)(x), (u64)(y))
#ifdef HAS_ATOMICS_64
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#endif
FUNCTION u32 add_global(GLOBAL u32 *p, u32 x) { return atomic_add((volatile GLOBAL u32 *)p, x); }
FUNCTION u32 max_global(GLOBAL u32 *p, u32 x) { return atomic_max((volatile GLOBAL u32 *)p, x); }
FUNCTION u32 or_global(GLOBAL u32 *p, u32 x) { return atomic_or((volatile GLOBAL u32 *)p, x); }
FUNCTION u32 add_local(LOCAL u32 *p, u32 x) { return atomic_add((volatile LOCAL u32 *)p, x); }
FUNCTION u32 min_local(LOCAL u32 *p, u32 x) { return atomic_min((volatile LOCAL u32 *)p, x); }
FUNCTION u32 or_local(LOCAL u32 *p, u32 x) { return atomic_or((volatile LOCAL u32 *)p, x); }
FUNCTION u32 exchange_local(LOCAL u32 *p, u32 x) { return atomic_xchg((volatile LOCAL u32 *)p, x); }
FUNCTION u32 swap_global(GLOBAL u32 *p, u32 old, u32 x) { return atomic_cmpxchg((volatile GLOBAL u32 *)p, old, x); }
#ifdef HAS_ATOMICS_64
FUNCTION u64 add_global_64(GLOBAL u64 *p, u64 x) { return atom_add((volatile GLOBAL u64 *)p, x); }
FUNCTION u64 swap_global_64(GLOBAL u64 *p, u64 old, u64 x) { return atom_cmpxchg((volatile GLOBAL u64 *)p, old, x); }
/* The instruction for this is an extension that not all devices have. */
FUNCTION u64 max_global_64(GLOBAL u64 *p, u64 x) {
  u64 seen = *(volatile GLOBAL u64 *)p;
  while (seen < x) {
    u64 old = swap_global_64(p, seen, x);
    if (old == seen) {
      break;
    }
    seen = old;
  }
  return seen;
}
#endif
#define prefetch_global(p)
FUNCTION u32 shift_right(u32 x, u32 n) { return n > 31 ? 0 : x >> n; }

#ifdef __NV_CL_C_VERSION
/* NVIDIA's compiler has no sub-groups in OpenCL C 1.2, but takes the instructions by name. */
#define LANES 32
#define lane() (local_index() & 31)
FUNCTION u32 ballot(int p) {
  u32 all;
  __asm volatile("{ .reg .pred q; setp.ne.u32 q, %1, 0; vote.sync.ballot.b32 %0, q, 0xffffffff; }" : "=r"(all) : "r"(p));
  return all;
}
FUNCTION u32 lanes_read(u32 x, u32 from) {
  u32 read;
  __asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(read) : "r"(x), "r"(from));
  return read;
}
FUNCTION void sync_lanes(void) { __asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
#endif

#elif defined(__CUDACC_RTC__)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
#define HAS_ATOMICS_64
#define KERNEL extern "C" __global__ __launch_bounds__(GROUP, GROUPS_PER_UNIT)
#define FUNCTION static __device__ __forceinline__
#define GLOBAL
#define LOCAL
#define CONSTANT const
#define PRIVATE
#define RESTRICT __restrict__
#define ALIGNED(n) __align__(n)
/* More than 48 KB must be asked for at launch. */
#define LOCAL_MEMORY(type, name)                                              \
  static_assert(sizeof(type) <= LOCAL_BYTES, "Program::local is too small"); \
  extern __shared__ u32x4 group_memory[];                                    \
  type *name = (type *)group_memory
#define group_index() blockIdx.x
#define group_count() gridDim.x
#define local_index() threadIdx.x
#define local_count() blockDim.x
#define barrier_group() __syncthreads()
#define count_ones(x) ((u32)__popc(x))
#define multiply_high(x, y) __umulhi(x, y)
#define multiply_high_64(x, y) __umul64hi(x, y)
FUNCTION u32 add_global(u32 *p, u32 x) { return atomicAdd(p, x); }
FUNCTION u32 max_global(u32 *p, u32 x) { return atomicMax(p, x); }
FUNCTION u32 or_global(u32 *p, u32 x) { return atomicOr(p, x); }
FUNCTION u32 add_local(u32 *p, u32 x) { return atomicAdd(p, x); }
FUNCTION u32 min_local(u32 *p, u32 x) { return atomicMin(p, x); }
FUNCTION u32 or_local(u32 *p, u32 x) { return atomicOr(p, x); }
FUNCTION u32 exchange_local(u32 *p, u32 x) { return atomicExch(p, x); }
FUNCTION u32 swap_global(u32 *p, u32 old, u32 x) { return atomicCAS(p, old, x); }
FUNCTION u64 add_global_64(u64 *p, u64 x) { return atomicAdd(p, x); }
FUNCTION u64 swap_global_64(u64 *p, u64 old, u64 x) { return atomicCAS(p, old, x); }
FUNCTION u64 max_global_64(u64 *p, u64 x) { return atomicMax(p, x); }
#define prefetch_global(p) asm volatile("prefetch.global.L1 [%0];" ::"l"(p))
FUNCTION u32 shift_right(u32 x, u32 n) { return __funnelshift_rc(x, 0, n); }

#define LANES 32
#define lane() (local_index() & 31)
#define ballot(p) __ballot_sync(0xffffffff, p)
#define lanes_read(x, from) __shfl_sync(0xffffffff, x, from)
#if __CUDA_ARCH__ >= 800
#define lanes_sum(x) __reduce_add_sync(0xffffffff, x)
#define lanes_max(x) __reduce_max_sync(0xffffffff, x)
#endif
#define sync_lanes() __syncwarp()

#else /* The host's compiler: a work item goes on until it meets others, and all items of a group run in step unless it is said. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
#define HAS_ATOMICS_64
/* Names of kernels are not to hide those of the C library. */
#define KERNEL static __attribute__((unused))
#pragma GCC poison half uchar ushort uint ulong global local constant kernel
#define FUNCTION static inline __attribute__((unused))
#define GLOBAL
#define LOCAL
#define CONSTANT const
#define PRIVATE
#define RESTRICT restrict
#define ALIGNED(n) __attribute__((aligned(n)))
/* Groups take turns, so one copy is enough. */
#define LOCAL_MEMORY(type, name)                                                \
  _Static_assert(sizeof(type) <= LOCAL_BYTES, "Program::local is too small"); \
  static type name##_memory;                                                  \
  type *name = &name##_memory
u32 group_index(void);
u32 group_count(void);
u32 local_index(void);
u32 local_count(void);
void barrier_group(void);
#if HOST_LANES > 1
u32 ballot(int p);
u32 lanes_read(u32 x, u32 from);
void sync_lanes(void);
#define LANES HOST_LANES
#define lane() (local_index() % LANES)
#endif
#define count_ones(x) ((u32)__builtin_popcount(x))
#define multiply_high(x, y) ((u32)((u64)(x) * (y) >> 32))
#define multiply_high_64(x, y) ((u64)((unsigned __int128)(x) * (y) >> 64))
FUNCTION u32 add_global(u32 *p, u32 x) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
FUNCTION u32 max_global(u32 *p, u32 x) {
  u32 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (x > old && !__atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
FUNCTION u32 or_global(u32 *p, u32 x) { return __atomic_fetch_or(p, x, __ATOMIC_RELAXED); }
FUNCTION u32 add_local(u32 *p, u32 x) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
FUNCTION u32 min_local(u32 *p, u32 x) {
  u32 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (x < old && !__atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
FUNCTION u32 or_local(u32 *p, u32 x) { return __atomic_fetch_or(p, x, __ATOMIC_RELAXED); }
FUNCTION u32 exchange_local(u32 *p, u32 x) { return __atomic_exchange_n(p, x, __ATOMIC_RELAXED); }
FUNCTION u32 swap_global(u32 *p, u32 old, u32 x) {
  __atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}
FUNCTION u64 add_global_64(u64 *p, u64 x) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
FUNCTION u64 swap_global_64(u64 *p, u64 old, u64 x) {
  __atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}
FUNCTION u64 max_global_64(u64 *p, u64 x) {
  u64 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (x > old && !__atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
#define prefetch_global(p) __builtin_prefetch(p)
FUNCTION u32 shift_right(u32 x, u32 n) { return n > 31 ? 0 : x >> n; }

#endif

/*
 * Lanes: LANES items, the first of them a multiple of LANES in their group, run in step and may ask each other with
 * `ballot`: bit i of the answer is lane i's p; `lanes_read` gives the x of the lane that is asked, `lanes_sum` and `lanes_max` their sum and
 * the largest. All lanes of a group must get there. A device that has no such thing has one lane.
 */
#ifndef LANES
#define LANES 1
#define lane() 0
#define ballot(p) ((p) ? 1u : 0u)
#define lanes_read(x, from) (x)
#define sync_lanes()
#endif

/* Where no instruction does that. */
#ifndef lanes_sum
FUNCTION u32 lanes_sum(u32 x) {
  for (u32 step = 1; step < LANES; step *= 2) {
    x += lanes_read(x, lane() ^ step);
  }
  return x;
}
FUNCTION u32 lanes_max(u32 x) {
  for (u32 step = 1; step < LANES; step *= 2) {
    u32 other = lanes_read(x, lane() ^ step);
    x = other > x ? other : x;
  }
  return x;
}
#endif

#define lanes_index() (local_index() / LANES)
/* Lanes below this one that are set in what `ballot` answered. */
#define lanes_below(all) count_ones((all) & ((1u << lane()) - 1u))

/* Sixteen bytes that are read at once. */
typedef struct ALIGNED(16) {
  u32 x, y, z, w;
} u32x4;

/*
 * Memory that the host, or another group, uses at the same time. These loads and stores are made where they stand in the text, and what is
 * read is never an older copy. What stands before a fence is seen no later than what stands behind it; what is loaded after
 * `load_acquire_64` is no older than what that saw. `fence_global` is `fence_shared` among the items of the device alone.
 */
#if defined(__OPENCL_VERSION__)
FUNCTION u32x4 load_shared(GLOBAL const u32x4 *p) {
  volatile GLOBAL const u32 *words = (volatile GLOBAL const u32 *)p;
  u32x4 value;
  value.x = words[0];
  value.y = words[1];
  value.z = words[2];
  value.w = words[3];
  return value;
}
FUNCTION u32 load_shared_16(GLOBAL const u16 *p) { return *(volatile GLOBAL const u16 *)p; }
FUNCTION u64 load_shared_64(GLOBAL const u64 *p) { return *(volatile GLOBAL const u64 *)p; }
FUNCTION u64 load_acquire_64(GLOBAL const u64 *p) {
  u64 value = *(volatile GLOBAL const u64 *)p;
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return value;
}
FUNCTION void store_shared_64(GLOBAL u64 *p, u64 x) { *(volatile GLOBAL u64 *)p = x; }
#define fence_shared() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define fence_global() mem_fence(CLK_GLOBAL_MEM_FENCE)
#elif defined(__CUDACC_RTC__)
FUNCTION u32x4 load_shared(const u32x4 *p) {
  u32x4 value;
  asm volatile("ld.volatile.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(p));
  return value;
}
FUNCTION u32 load_shared_16(const u16 *p) { return *(const volatile u16 *)p; }
FUNCTION u64 load_shared_64(const u64 *p) { return *(const volatile u64 *)p; }
FUNCTION u64 load_acquire_64(const u64 *p) {
  u64 value;
  asm volatile("ld.acquire.sys.b64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
FUNCTION void store_shared_64(u64 *p, u64 x) { *(volatile u64 *)p = x; }
#define fence_shared() __threadfence_system()
#define fence_global() __threadfence()
#else
FUNCTION u32x4 load_shared(const u32x4 *p) {
  u32x4 value;
  value.x = __atomic_load_n(&p->x, __ATOMIC_ACQUIRE);
  value.y = __atomic_load_n(&p->y, __ATOMIC_RELAXED);
  value.z = __atomic_load_n(&p->z, __ATOMIC_RELAXED);
  value.w = __atomic_load_n(&p->w, __ATOMIC_RELAXED);
  return value;
}
FUNCTION u32 load_shared_16(const u16 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
FUNCTION u64 load_shared_64(const u64 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
FUNCTION u64 load_acquire_64(const u64 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
FUNCTION void store_shared_64(u64 *p, u64 x) { __atomic_store_n(p, x, __ATOMIC_RELAXED); }
#define fence_shared() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define fence_global() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
