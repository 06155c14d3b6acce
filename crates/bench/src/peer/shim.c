// What rte_acl and the EAL offer only as macros, inline functions and structures, as plain functions.

#define _GNU_SOURCE

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

#include <rte_acl.h>
#include <rte_byteorder.h>
#include <rte_common.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_malloc.h>

#if RTE_BYTE_ORDER != RTE_LITTLE_ENDIAN
#error "expected a little-endian machine"
#endif

// Fields of a rule at most: protocol, two addresses of four words, two ports, the word of flags and bits.
#define FIELDS 12
// The heap grows in multiples of this size, for the kernel to give huge pages.
#define PAGE ((size_t)2 << 20)
#define HEAP "packetloom"

// A value, and what its field's type takes beside it: a mask, a prefix length or the high end of a range.
struct packetloom_field {
	uint32_t value;
	uint32_t limit;
};

RTE_ACL_RULE_DEF(rule, FIELDS);

static int heap_socket;

// Starts the EAL for one thread, offline. 0 or a negative error number.
int packetloom_start(void)
{
	cpu_set_t allowed;
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return -errno;
	int cpu = 0;
	while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &allowed))
		cpu++;
	char lcores[32];
	snprintf(lcores, sizeof(lcores), "--lcores=0@%d", cpu);
	char *arguments[] = {
		"packetloom", "--no-huge", "-m", "64", "--no-shconf", "--no-pci", "--no-telemetry",
		"--force-max-simd-bitwidth=512", "--log-level=error", lcores, NULL,
	};
	rte_log_set_global_level(RTE_LOG_ERR);
	if (rte_eal_init(RTE_DIM(arguments) - 1, arguments) < 0)
		return -rte_errno;
	// The EAL ties this thread to one core. What runs beside an index of ours is not tied, nor is the thread then.
	sched_setaffinity(0, sizeof(allowed), &allowed);
	// From here on errors are numbers, and running out of memory is tried again with more.
	rte_log_set_global_level(RTE_LOG_CRIT);
	if (rte_malloc_heap_create(HEAP))
		return -rte_errno;
	heap_socket = rte_malloc_heap_get_socket(HEAP);
	return heap_socket < 0 ? -rte_errno : 0;
}

// Makes sure that one block of `bytes` is free in the heap for indexes. The heap is memory of our own that DPDK is lent:
// on huge pages where the kernel has them, without any being set aside before, which is what DPDK is meant to run on.
// 0 or a negative error number.
int packetloom_reserve(size_t bytes)
{
	struct rte_malloc_socket_stats stats;
	if (rte_malloc_get_socket_stats(heap_socket, &stats) == 0 && stats.greatest_free_size >= bytes)
		return 0;
	bytes = RTE_ALIGN(bytes, PAGE) + PAGE;
	char *space = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (space == MAP_FAILED)
		return -errno;
	space = RTE_PTR_ALIGN(space, PAGE);
	// Only a hint: other kernels give small pages.
	madvise(space, bytes, MADV_HUGEPAGE);
	return rte_malloc_heap_memory_add(HEAP, space, bytes, NULL, bytes / PAGE, PAGE) ? -rte_errno : 0;
}

static size_t heap_used(void)
{
	struct rte_malloc_socket_stats stats;
	return rte_malloc_get_socket_stats(heap_socket, &stats) ? 0 : stats.heap_allocsz_bytes;
}

// The fields as they lie in a key: every group of 4 bytes is an input of its own, but the first is the protocol's one byte.
static uint32_t define(struct rte_acl_field_def *fields, uint32_t address_words, int extra)
{
	uint32_t count = 0, input = 0, offset = 0;
#define FIELD(kind, bytes) \
	(fields[count] = (struct rte_acl_field_def){ \
		 .type = RTE_ACL_FIELD_TYPE_##kind, .size = bytes, .field_index = count, .input_index = input, .offset = offset }, \
	 count++)
	FIELD(BITMASK, 1);
	for (uint32_t word = 0; word < 2 * address_words; word++) {
		input++, offset += 4;
		FIELD(MASK, 4);
	}
	input++, offset += 4;
	FIELD(RANGE, 2);
	offset += 2;
	FIELD(RANGE, 2);
	if (extra) {
		input++, offset += 2;
		FIELD(BITMASK, 4);
	}
#undef FIELD
	return count;
}

// Takes the widest instructions that this processor and this build of DPDK have; their name.
static const char *choose(struct rte_acl_ctx *context)
{
	static const struct {
		enum rte_acl_classify_alg algorithm;
		const char *name;
	} choices[] = {
		{ RTE_ACL_CLASSIFY_AVX512X32, "avx512x32" }, { RTE_ACL_CLASSIFY_AVX512X16, "avx512x16" },
		{ RTE_ACL_CLASSIFY_AVX2, "avx2" },           { RTE_ACL_CLASSIFY_SSE, "sse" },
		{ RTE_ACL_CLASSIFY_NEON, "neon" },           { RTE_ACL_CLASSIFY_ALTIVEC, "altivec" },
	};
	for (size_t i = 0; i < RTE_DIM(choices); i++)
		if (rte_acl_set_ctx_classify(context, choices[i].algorithm) == 0)
			return choices[i].name;
	return rte_acl_set_ctx_classify(context, RTE_ACL_CLASSIFY_SCALAR) ? "default" : "scalar";
}

// Builds the index of `rules` rules, each its fields one after the other, and its position: earlier ones win, and the
// answer is the position plus 1. 0 or a negative error number.
int packetloom_build(uint32_t address_words, int extra, const struct packetloom_field *fields, const uint32_t *positions,
		     uint32_t rules, struct rte_acl_ctx **context, const char **algorithm, size_t *bytes)
{
	static atomic_uint number;
	// With a limit of size, even one that is never met, DPDK builds fewer and larger tries: more memory, but faster,
	// up to 2.6 times over the rule sets this was tried on.
	struct rte_acl_config config = { .num_categories = 1, .max_size = SIZE_MAX };
	config.num_fields = define(config.defs, address_words, extra);
	char name[RTE_ACL_NAMESIZE];
	// A name that exists would give the context that has it.
	snprintf(name, sizeof(name), "packetloom %u", atomic_fetch_add(&number, 1));
	struct rte_acl_param parameters = {
		.name = name,
		.socket_id = heap_socket,
		.rule_size = RTE_ACL_RULE_SZ(config.num_fields),
		.max_rule_num = rules,
	};
	size_t before = heap_used();
	struct rte_acl_ctx *made = rte_acl_create(&parameters);
	if (made == NULL)
		return -rte_errno;
	int error = 0;
	for (uint32_t i = 0; i < rules && error == 0; i++) {
		struct rule rule = {
			.data = {
				.category_mask = 1,
				.priority = RTE_ACL_MAX_PRIORITY - positions[i],
				.userdata = positions[i] + 1,
			},
		};
		for (uint32_t field = 0; field < config.num_fields; field++) {
			const struct packetloom_field *from = &fields[(size_t)i * config.num_fields + field];
			// The narrower members of these unions are their low bytes.
			rule.field[field].value.u64 = from->value;
			rule.field[field].mask_range.u64 = from->limit;
		}
		error = rte_acl_add_rules(made, (const struct rte_acl_rule *)&rule, 1);
	}
	if (error == 0)
		error = rte_acl_build(made, &config);
	if (error) {
		rte_acl_free(made);
		return error;
	}
	*algorithm = choose(made);
	*bytes = heap_used() - before;
	*context = made;
	return 0;
}
