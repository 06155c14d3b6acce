/*
 * Runs the kernels of one program in a process of its own, told what to do through its standard input. It is compiled with the
 * sanitisers, as the kernels are; whatever goes wrong ends the process, with words on standard error.
 *
 * Everything said is u64. First this process says the length of `host_signature`, and that text. Then it is asked:
 *
 *   MAP     descriptor of the parent, bytes     maps memory; answers its address
 *   UNMAP   address, bytes                      answers 0
 *   LAUNCH  kernel, groups, milliseconds, values...    answers 0 when all groups ran
 *
 * Each question comes after the count of its words.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

/* Of the generated end of the kernels' text. */
extern const char host_signature[];
extern void (*const host_kernels[])(const u64 *values);
extern const u32 host_group, host_lanes;

/* Of the sanitiser: bytes that nobody may touch, and their end. */
void __asan_poison_memory_region(const volatile void *from, size_t bytes);
void __asan_unpoison_memory_region(const volatile void *from, size_t bytes);

enum { MAP = 1, UNMAP = 2, LAUNCH = 3, WORDS = 256 };

/* The parent lays memory out in whole pages of at most this size, with its last byte in the last 16 of them. */
#define PAGE ((size_t)1 << 16)
/*
 * On either side of memory, room that nothing can be read from or written to, for indices that are far out. The sanitiser says
 * more of what is wrong with accesses to its own part, the first page of that.
 */
#define GUARD ((size_t)1 << 26)

static void stop(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void stop(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  /* Without what is done at exit: other threads still run. */
  fflush(stderr);
  _exit(1);
}

/* Whether `bytes` were read; the parent has gone if not. */
static int hear(void *to, size_t bytes) {
  char *at = to;
  while (bytes > 0) {
    ssize_t got = read(STDIN_FILENO, at, bytes);
    if (got == 0) return 0;
    if (got < 0 && errno != EINTR) stop("cannot read what to do: %s", strerror(errno));
    if (got > 0) at += got, bytes -= (size_t)got;
  }
  return 1;
}

static void say(const void *from, size_t bytes) {
  const char *at = from;
  while (bytes > 0) {
    ssize_t put = write(STDOUT_FILENO, at, bytes);
    if (put < 0 && errno != EINTR) stop("cannot answer: %s", strerror(errno));
    if (put > 0) at += put, bytes -= (size_t)put;
  }
}

/* What is launched: written by the first item before the others are let go. */
static struct {
  void (*kernel)(const u64 *values);
  u64 groups;
  u64 values[WORDS];
} job;

static __thread u32 item;
static __thread u32 group;

u32 group_index(void) { return group; }
u32 group_count(void) { return (u32)job.groups; }
u32 local_index(void) { return item; }
u32 local_count(void) { return host_group; }

/* What items wait for each other at; the kinds are bits. */
enum { AT_START = 1, AT_BARRIER = 2, AT_BALLOT = 4, AT_END = 8 };

enum { ITEMS = 32 };

/* Where so many items meet. */
typedef struct {
  u32 items;
  /* What those who came said, then how many they are, then how often all were there. */
  u32 kinds, votes, arrived, phase;
  /* What all said together; two, since an item may still read the one while others already come for the other. */
  u32 result[2];
  u32 sleeping;
} Place;

/*
 * The group's, and those of its sets of lanes. Where lanes are a group they meet at the group's, and it is noticed when some of them are at
 * another kind of meeting than others; otherwise those who do not meet wait until the launch's time is over.
 */
static Place of_group, of_lanes[ITEMS];
/* How many more times to sleep at once, since others want the cores. */
static u32 crowded;

static u32 lane(void) { return item % host_lanes; }

static Place *lanes_place(void) { return host_lanes == host_group ? &of_group : &of_lanes[item / host_lanes]; }

static u64 nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

/*
 * Waits until all items of the place are here; returns the votes of all.
 *
 * There are more items than cores. On a quiet machine it is best to let others have the core and look again: 5 µs for 4 items
 * on 2 cores, where to sleep and be woken takes 40. But with 4 busy programs beside, those take it for 3 ms; to sleep is 200 µs.
 * So whoever does not get its core back soon makes all sleep for a while. Between launches everyone sleeps.
 */
static u32 arrive(Place *at, u32 kind, u32 vote) {
  u32 now = __atomic_load_n(&at->phase, __ATOMIC_SEQ_CST);
  __atomic_fetch_or(&at->kinds, kind, __ATOMIC_SEQ_CST);
  if (vote) __atomic_fetch_or(&at->votes, vote, __ATOMIC_SEQ_CST);
  if (__atomic_add_fetch(&at->arrived, 1, __ATOMIC_SEQ_CST) == at->items) {
    u32 kinds = at->kinds;
    if (kinds != kind) {
      stop("items of group %u do not meet: some %s%s%s", group, kinds & AT_BARRIER ? "wait at a barrier, " : "",
           kinds & AT_BALLOT ? "wait at a ballot, " : "", kinds & AT_END ? "have ended" : "do neither");
    }
    at->result[now & 1] = at->votes;
    at->kinds = at->votes = at->arrived = 0;
    if (__atomic_load_n(&crowded, __ATOMIC_RELAXED) > 0) __atomic_fetch_sub(&crowded, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&at->phase, now + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&at->sleeping, __ATOMIC_SEQ_CST) > 0) {
      syscall(SYS_futex, &at->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
  } else {
    for (u32 tries = 0; __atomic_load_n(&at->phase, __ATOMIC_SEQ_CST) == now; ++tries) {
      if (tries < 1000 && __atomic_load_n(&crowded, __ATOMIC_RELAXED) == 0) {
        u64 before = nanoseconds();
        sched_yield();
        if (nanoseconds() - before > 200000) __atomic_store_n(&crowded, 200, __ATOMIC_RELAXED);
      } else {
        __atomic_fetch_add(&at->sleeping, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &at->phase, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
        __atomic_fetch_sub(&at->sleeping, 1, __ATOMIC_SEQ_CST);
      }
    }
  }
  return at->result[now & 1];
}

void barrier_group(void) { arrive(&of_group, AT_BARRIER, 0); }

void sync_lanes(void) { arrive(lanes_place(), AT_BARRIER, 0); }

u32 ballot(int p) { return arrive(lanes_place(), AT_BALLOT, p ? 1u << lane() : 0); }

u32 lanes_read(u32 x, u32 from) {
  /* Two, as the results are; each item knows which by the phase that it is in. */
  static u32 said[2][ITEMS];
  u32 now = __atomic_load_n(&lanes_place()->phase, __ATOMIC_SEQ_CST) & 1;
  __atomic_store_n(&said[now][item], x, __ATOMIC_RELAXED);
  arrive(lanes_place(), AT_BALLOT, 0);
  return __atomic_load_n(&said[now][item - lane() + from], __ATOMIC_RELAXED);
}

static void run_groups(void) {
  arrive(&of_group, AT_START, 0);
  /* The last barrier of the job keeps it from being changed before all are done with it. */
  u64 groups = job.groups;
  for (u64 number = 0; number < groups; ++number) {
    group = (u32)number;
    job.kernel(job.values);
    arrive(&of_group, AT_END, 0);
  }
}

static void *work(void *number) {
  item = (u32)(uintptr_t)number;
  for (;;) run_groups();
  return NULL;
}

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static u64 map(int descriptor, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), descriptor);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) stop("cannot open memory of the parent, %s: %s", path, strerror(errno));
  size_t length = pages(bytes);
  char *room = mmap(NULL, GUARD + length + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) stop("no room for %zu bytes: %s", bytes, strerror(errno));
  char *base = room + GUARD;
  if (mmap(base, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    stop("cannot map %zu bytes: %s", bytes, strerror(errno));
  }
  close(file);
  char *start = base + length - (bytes + 15) / 16 * 16;
  __asan_poison_memory_region(base - PAGE, PAGE + (size_t)(start - base));
  __asan_poison_memory_region(start + bytes, (size_t)(base + length - start) - bytes + PAGE);
  return (u64)(uintptr_t)start;
}

static void unmap(u64 address, size_t bytes) {
  size_t length = pages(bytes);
  char *base = (char *)(uintptr_t)address + (bytes + 15) / 16 * 16 - length;
  __asan_unpoison_memory_region(base - PAGE, PAGE + length + PAGE);
  munmap(base - GUARD, GUARD + length + GUARD);
}

/* Lets the system end this process, whatever it does, unless it is called again in time; 0 for no limit. */
static void limit(u64 milliseconds) {
  struct itimerval timer = {.it_value = {(time_t)(milliseconds / 1000), (suseconds_t)(milliseconds % 1000 * 1000)}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

int main(void) {
  of_group.items = host_group;
  for (u32 set = 0; set < ITEMS; ++set) of_lanes[set].items = host_lanes;
  for (u32 number = 1; number < host_group; ++number) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, work, (void *)(uintptr_t)number);
    if (error != 0) stop("cannot start a thread: %s", strerror(error));
  }
  u64 length = strlen(host_signature);
  say(&length, sizeof length);
  say(host_signature, length);
  u64 count, words[WORDS];
  while (hear(&count, sizeof count)) {
    if (count == 0 || count > WORDS) stop("%llu words are not understood", count);
    if (!hear(words, count * sizeof *words)) break;
    u64 answer = 0;
    if (words[0] == MAP && count == 3) {
      answer = map((int)words[1], words[2]);
    } else if (words[0] == UNMAP && count == 3) {
      unmap(words[1], words[2]);
    } else if (words[0] == LAUNCH && count >= 4) {
      limit(words[3]);
      job.kernel = host_kernels[words[1]];
      job.groups = words[2];
      memcpy(job.values, words + 4, (count - 4) * sizeof *words);
      run_groups();
      limit(0);
    } else {
      stop("question %llu of %llu words is not understood", words[0], count);
    }
    say(&answer, sizeof answer);
  }
  /* Without what is done at exit: the other threads wait for work. */
  _exit(0);
}
