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
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
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
/* Of the sanitiser, too: before stacks are switched, and behind that. */
void __sanitizer_start_switch_fiber(void **kept, const void *to, size_t bytes);
void __sanitizer_finish_switch_fiber(void *kept, const void **from, size_t *bytes);

enum { MAP = 1, UNMAP = 2, LAUNCH = 3, WORDS = 256 };

/* The parent lays memory out in whole pages of at most this size, with its last byte in the last 16 of them. */
#define PAGE ((size_t)1 << 16)
/*
 * On either side of memory, room that nothing can be read from or written to, for indices that are far out. The sanitiser says
 * more of what is wrong with accesses to its own part, the first page of that.
 */
#define GUARD ((size_t)1 << 26)
/* Bytes of an item's stack. */
#define STACK ((size_t)1 << 23)

static void stop(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void stop(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  /* Without what is done at exit: this may be anywhere. */
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

/*
 * Items are fibers: each has a stack of its own, and goes on until it has to wait for others; then the next one does. So a meeting of
 * all costs some switches of stacks, and one that cannot be is noticed at once.
 */
enum { ITEMS = 32 };

static struct {
  /* Where it goes on, with what it needs for that on its stack. */
  void *at;
  /* Its stack, as the sanitiser is told, and what that keeps for it. */
  const void *stack;
  size_t bytes;
  void *kept;
} items[ITEMS];

/* The item that runs, and its group. */
static u32 item, group;

u32 group_index(void) { return group; }
u32 group_count(void) { return (u32)job.groups; }
u32 local_index(void) { return item; }
u32 local_count(void) { return host_group; }

static u32 lane(void) { return item % host_lanes; }

/* Keeps where this stack is, and goes on where another one was left. */
void switch_stacks(void **from, void *to);

#if defined(__x86_64__)
__asm__(".text\n"
        ".type switch_stacks, @function\n"
        "switch_stacks:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size switch_stacks, .-switch_stacks\n");
/* Words on the stack of one that was left, and that of them where it goes on. Behind a call, the stack is 8 bytes off a multiple of 16. */
enum { LEFT = 8, GOES_ON = 6 };
#elif defined(__aarch64__)
__asm__(".text\n"
        ".type switch_stacks, %function\n"
        "switch_stacks:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x2, sp\n  str x2, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size switch_stacks, .-switch_stacks\n");
enum { LEFT = 20, GOES_ON = 11 };
#else
#error "stacks cannot be switched on this processor"
#endif

/* The item that ran before this one. */
static u32 last;

/* To be called first on a stack that was switched to. */
static void arrived_on(u32 own) {
  __sanitizer_finish_switch_fiber(items[own].kept, &items[last].stack, &items[last].bytes);
}

/* Has an item go on, and comes back when another one has this one go on. */
static void go_on_with(u32 other) {
  u32 own = item;
  void *to = items[other].at;
  last = own;
  item = other;
  __sanitizer_start_switch_fiber(&items[own].kept, items[other].stack, items[other].bytes);
  switch_stacks(&items[own].at, to);
  arrived_on(own);
}

/* What items wait for each other at; the kinds are bits. */
enum { AT_START = 1, AT_BARRIER = 2, AT_BALLOT = 4, AT_END = 8 };

/* Where so many items meet. */
typedef struct {
  u32 items;
  /* What those who came said, then how many they are, then how often all were there. */
  u32 kinds, votes, arrived, phase;
  /* What all said together; two, since an item may still read the one while others already come for the other. */
  u32 result[2];
} Place;

/* The group's, and those of its sets of lanes; where lanes are a group they meet at the group's. */
static Place of_group, of_lanes[ITEMS];
/* How often an item came to some place. */
static u64 arrivals;
/* From an item to the next one that goes on: forwards and backwards, in turns, so that who sees too early what others write does so here, too. */
static u32 step = 1;

static Place *lanes_place(void) { return host_lanes == host_group ? &of_group : &of_lanes[item / host_lanes]; }

/* Waits until all items of the place are here; returns the votes of all. */
static u32 arrive(Place *at, u32 kind, u32 vote) {
  u32 now = at->phase;
  at->kinds |= kind;
  at->votes |= vote;
  ++arrivals;
  if (++at->arrived == at->items) {
    u32 kinds = at->kinds;
    if (kinds != kind) {
      stop("items of group %u do not meet: some %s%s%s", group, kinds & AT_BARRIER ? "wait at a barrier, " : "",
           kinds & AT_BALLOT ? "wait at a ballot, " : "", kinds & AT_END ? "have ended" : "do neither");
    }
    at->result[now & 1] = at->votes;
    at->kinds = at->votes = at->arrived = 0;
    at->phase = now + 1;
    step = host_group - step;
    return at->result[now & 1];
  }
  while (at->phase == now) {
    u64 before = arrivals;
    go_on_with((item + step) % host_group);
    if (at->phase == now && arrivals == before) {
      stop("items of group %u do not meet: all wait, at different places", group);
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
  u32 now = lanes_place()->phase & 1;
  said[now][item] = x;
  arrive(lanes_place(), AT_BALLOT, 0);
  return said[now][item - lane() + from];
}

static void run_groups(void) {
  arrive(&of_group, AT_START, 0);
  /* The last meeting of the job keeps it from being changed before all are done with it. */
  u64 groups = job.groups;
  for (u64 number = 0; number < groups; ++number) {
    group = (u32)number;
    job.kernel(job.values);
    arrive(&of_group, AT_END, 0);
  }
}

static void begin(void) {
  arrived_on(item);
  for (;;) run_groups();
}

/* Gives an item a stack, with a page below that nobody may touch. */
static void make_stack(u32 number) {
  char *room = mmap(NULL, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED || mprotect(room, PAGE, PROT_NONE) != 0) stop("no room for a stack: %s", strerror(errno));
  uintptr_t *top = (uintptr_t *)(room + PAGE + STACK) - LEFT;
  top[GOES_ON] = (uintptr_t)begin;
  items[number].at = top;
  items[number].stack = room + PAGE;
  items[number].bytes = STACK;
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
  for (u32 number = 1; number < host_group; ++number) make_stack(number);
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
  /* Without what is done at exit: nothing is to be looked for, or given back. */
  _exit(0);
}
