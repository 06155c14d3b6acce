/*
 * Packetloom for C. Two interfaces, which may be used side by side:
 *
 * - pl_...: a chain of network functions over batches of packets that the program holds.
 * - nca_...: NFV compute acceleration, by draft-perumal-nfvrg-nfv-compute-acceleration-00, with what the draft leaves open.
 *
 * Functions that return an int return 0 or a positive number where they succeed, and a negative number of pl_status where they do not;
 * pl_last_error has the reason as text then. Numbers of chains and streams are not used again, so one that was closed is known to be so.
 * No C++ exception and no longjmp may leave a callback. A process that has called the library must not go on with it after fork, and closes its
 * streams before it unloads the library.
 *
 * Made by cbindgen of crates/capi/src; PACKETLOOM_WRITE_HEADER=1 cargo test -p packetloom-capi --test header writes it anew.
 */

#ifndef PACKETLOOM_H
#define PACKETLOOM_H

#include <stddef.h>
#include <stdint.h>

/**
 * Outputs of functions (flow records, logs) go to the program, which reads them with `pl_chain_read`: none of the files is made that the
 * chain names for them.
 */
#define PL_OUTPUTS_TO_PROGRAM 1

/**
 * Packets come as they are sent: flows that were silent end a second after their timeout, without a further packet of theirs. Without this,
 * the same packets give the same records at any time.
 */
#define PL_LIVE 2

/**
 * The link type of Ethernet frames; others are numbered as in capture files (LINKTYPE_...; 101 is raw IP).
 */
#define PL_LINK_ETHERNET 1

/**
 * Packets of a call of `pl_chain_process` at most.
 */
#define PL_MAX_PACKETS (1 << 20)

/**
 * The longest packet, in bytes.
 */
#define PL_MAX_PACKET_BYTES (1 << 18)

/**
 * Buffers of a stream, where `num_buffers` is 0.
 */
#define NCA_NUM_BUFFERS 6

/**
 * Packets of a buffer, where `buffer_size` is 0.
 */
#define NCA_BUFFER_SIZE 16384

/**
 * Devices of a stream, where `num_devices` is 0; fewer where there are not so many.
 */
#define NCA_NUM_DEVICES 2

/**
 * Queues of a device at first: while packets of one are copied, kernels of another one run. See `nca_set_queues`.
 */
#define NCA_QUEUES 3

/**
 * The most queues of a device.
 */
#define NCA_MAX_QUEUES 64

/**
 * The most buffers of a stream, packets of a buffer, and functions of a service chain.
 */
#define NCA_MAX_BUFFERS 1024

/**
 * See `NCA_MAX_BUFFERS`.
 */
#define NCA_MAX_BUFFER_SIZE 1048576

/**
 * See `NCA_MAX_BUFFERS`.
 */
#define NCA_MAX_FUNCTIONS 32

/**
 * The most bytes of results for a packet.
 */
#define NCA_MAX_RESULT_SIZE 4096

/**
 * What a notify callback is told.
 */
typedef enum nca_event {
  /**
   * The results of a buffer can be read.
   */
  NCA_RESULTS = 1,
  /**
   * A buffer could not be processed; `nca_read_results` says why, and makes it empty.
   */
  NCA_FAILED = 2,
} nca_event;

/**
 * Where a stream's functions run.
 */
typedef enum nca_dev_type {
  /**
   * Cores of this machine: `num_devices` is how many threads. Kernels are compiled by the C compiler of this machine with its
   * sanitisers, and run in a process of their own: slowly, to find their errors.
   */
  NCA_CPU = 0,
  /**
   * OpenCL devices, of all platforms in their order. PoCL makes one of this machine's cores.
   */
  NCA_OPENCL = 1,
  /**
   * NVIDIA GPUs, in the order of the driver.
   */
  NCA_CUDA = 2,
} nca_dev_type;

/**
 * What `nca_leave_out` leaves out; both together are `NCA_COPIES | NCA_KERNELS`.
 */
typedef enum nca_part {
  /**
   * Nothing, as at first.
   */
  NCA_NOTHING = 0,
  /**
   * Copies of packets to the device and of results from it.
   */
  NCA_COPIES = 1,
  /**
   * Kernels, of the program and of functions that are built in.
   */
  NCA_KERNELS = 2,
} nca_part;

/**
 * What functions of both APIs return where they do not succeed; 0 or a positive number is success. `pl_last_error` has the reason as text.
 */
typedef enum pl_status {
  /**
   * Done.
   */
  PL_OK = 0,
  /**
   * Done, but there is more: read what there is, then call again.
   */
  PL_MORE = 1,
  /**
   * An argument is NULL, negative or too large, or texts are not UTF-8.
   */
  PL_ERROR_ARGUMENT = -1,
  /**
   * No chain, function, stream or buffer has this id (any more).
   */
  PL_ERROR_NOT_FOUND = -2,
  /**
   * There is no room; nothing was taken.
   */
  PL_ERROR_FULL = -3,
  /**
   * Another thread, or the library, has it; or the call is not allowed in a callback. Nothing was done.
   */
  PL_ERROR_BUSY = -4,
  /**
   * There are no results yet.
   */
  PL_ERROR_NOT_READY = -5,
  /**
   * A file or a setting is not usable.
   */
  PL_ERROR_CONFIG = -6,
  /**
   * The device cannot be had, does not compile a kernel, or failed.
   */
  PL_ERROR_DEVICE = -7,
  /**
   * There is one with this id already.
   */
  PL_ERROR_EXISTS = -8,
  /**
   * A callback of the program returned something else than 0.
   */
  PL_ERROR_CALLBACK = -9,
  /**
   * An output cannot be written.
   */
  PL_ERROR_IO = -10,
  /**
   * There is no memory, or no thread, left for it.
   */
  PL_ERROR_MEMORY = -11,
  /**
   * The chain is finished.
   */
  PL_ERROR_FINISHED = -12,
  /**
   * A defect of this library. The chain or stream can only be closed.
   */
  PL_ERROR_INTERNAL = -13,
} pl_status;

/**
 * The arguments of a kernel, while `set_kernel_arg` names them.
 */
typedef struct nca_kernel_args nca_kernel_args;

/**
 * A packet that the program holds. It is only read, and only during the call.
 */
typedef struct pl_packet {
  /**
   * Its bytes from the link header on. NULL only where `len` is 0.
   */
  const uint8_t *bytes;
  /**
   * Bytes that are there, at most `PL_MAX_PACKET_BYTES`.
   */
  uint32_t len;
  /**
   * Bytes it had on the wire; 0 is as many as are there.
   */
  uint32_t wire_len;
  /**
   * When it came, in nanoseconds since 1970.
   */
  uint64_t time_ns;
} pl_packet;

/**
 * What became of a packet.
 */
typedef struct pl_verdict {
  /**
   * 0 where it passes, else the number of the reason why it was dropped: see `pl_drop_reason`.
   */
  uint32_t dropped;
  /**
   * The mark that a function gave it, or 0.
   */
  uint32_t mark;
  /**
   * 1 where a function rewrote it: `pl_chain_rewritten` has its bytes then.
   */
  uint32_t rewritten;
} pl_verdict;

/**
 * What an init callback fills in. All is 0 or NULL before. What it points to is copied when the callback has returned, and must stay
 * until `nca_add_network_function` returns.
 */
typedef struct nca_function_params {
  /**
   * Of functions that are built in, what a chain file says of them, as TOML:
   *
   * "strings" and "aho-corasick": patterns = "FILE", format = "auto|lines|hex|rules", ignore_case, by_fast_pattern; skip = BYTES at the
   * beginning of each packet that are not searched. All of a packet is searched from there on, headers too.
   *
   * "acl", "meter": the keys of these functions (docs/rules.md, docs/flow-records.md); tables such as [flows.NAME] may follow.
   *
   * "chain": a whole chain file, as for `pl_chain_parse`.
   */
  const char *config;
  /**
   * The folder from which paths count; NULL for the working directory.
   */
  const char *folder;
  /**
   * Of "strings" and "aho-corasick": patterns in memory, `num_patterns` of them, each of 1 to 255 bytes of any values. They are numbered
   * from 0; those of a file come before them.
   */
  const uint8_t *const *patterns;
  /**
   * The lengths of the patterns, in bytes.
   */
  const int *pattern_len;
  /**
   * How many patterns.
   */
  int num_patterns;
  /**
   * Of "acl", "meter" and "chain": what packets begin with; 0 is Ethernet, others are numbered as in capture files.
   */
  uint32_t link_type;
  /**
   * Of kernels: a table that is copied to the device once; see `nca_arg_table`.
   */
  const void *table;
  /**
   * Bytes of the table.
   */
  size_t table_size;
  /**
   * Of kernels: items of a group, which the kernel sees as GROUP; 0 for 32.
   */
  uint32_t group;
} nca_function_params;

/**
 * Fills in the parameters of a function; not 0 where that fails. Called by `nca_add_network_function`, in the same thread.
 */
typedef int (*nca_init)(int network_func_id, struct nca_function_params *params);

/**
 * The packets of a buffer, as `set_kernel_arg` sees them.
 */
typedef struct nca_packets {
  /**
   * The stream, or -1 where no packets are there yet.
   */
  int traffic_stream_id;
  /**
   * The buffer, or -1.
   */
  int buffer_id;
  /**
   * How many packets.
   */
  uint32_t num_packets;
  /**
   * Where each begins in `bytes`, and at `offsets[num_packets]` where the last one ends; NULL where there are no packets.
   */
  const uint32_t *offsets;
  /**
   * The memory of the buffer, which is only to be read; or NULL.
   */
  const uint8_t *bytes;
} nca_packets;

/**
 * Names the arguments of a kernel for a buffer, in the order of its parameters, by `nca_arg_packets` and the others; not 0 where that fails. Called
 * once by `nca_traffic_stream_init`, without packets, to know of which kinds they are, and then for each buffer, by a thread of the library. Several
 * buffers may be in progress at the same time.
 */
typedef int (*nca_set_kernel_arg)(int network_func_id, struct nca_kernel_args *args, const struct nca_packets *pkt_buf);

/**
 * Tells of a buffer: `event` is one of `nca_event`. Called by one thread of the stream, for one buffer after the other in the order in which they
 * were ready. It may call all functions but `nca_wait`, `nca_traffic_stream_close` and `nca_cleanup`. What it returns is not looked at.
 */
typedef int (*nca_notify)(int traffic_stream_id, int buffer_id, int event);

/**
 * The devices of a stream.
 */
typedef struct nca_dev {
  /**
   * One of `nca_dev_type`. Kernels, "strings", "aho-corasick" and "acl" run on the devices; "meter" and "chain" run on cores, in the threads that
   * feed the devices. So do the others where a device cannot have them: docs/c.md says when.
   */
  int dev_type;
  /**
   * How many, from the first on; 0 for `NCA_NUM_DEVICES`.
   */
  int num_devices;
} nca_dev;

/**
 * The memory of a buffer, for programs that fill it themselves. Packet i lies at `bytes + offsets[i]`, up to `bytes + offsets[i + 1]`.
 */
typedef struct nca_memory {
  /**
   * Where it begins.
   */
  uint8_t *bytes;
  /**
   * The offsets, at the beginning of the memory: `max_packets` + 1 of them. `offsets[0]` is there already, and must stay as it is.
   */
  uint32_t *offsets;
  /**
   * Bytes in all: no offset may be larger.
   */
  uint32_t size;
  /**
   * Packets that the buffer can have.
   */
  uint32_t max_packets;
} nca_memory;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Opens the chain of a chain file. `[source]` of the file is not used: the program has the packets, and is what decides where those go that
 * pass. So a chain with `[sink]` files, exporters, a device, a summary or a control socket is refused. Functions run in the thread that
 * calls `pl_chain_process`.
 *
 * `flags` is 0, or `PL_OUTPUTS_TO_PROGRAM` and `PL_LIVE`, combined with |. Any thread may call it.
 *
 * Returns the chain's id, which is positive, or `PL_ERROR_ARGUMENT`, `PL_ERROR_CONFIG` with all mistakes of the file, `PL_ERROR_IO` where
 * an output cannot be made. To be closed with `pl_chain_close`.
 *
 * # Safety
 * `path` is NULL or text that ends with a NUL.
 */
int pl_chain_load(const char *path,
                  uint32_t flags);

/**
 * Opens a chain from the text of a chain file; paths in it count from `folder`, or from the working directory where that is NULL. All else is
 * as with `pl_chain_load`.
 *
 * # Safety
 * `toml` and `folder` are NULL or texts that end with a NUL.
 */
int pl_chain_parse(const char *toml,
                   const char *folder,
                   uint32_t flags);

/**
 * Takes packets through a chain, in order, and writes a verdict for each. Packets are copied; `packets` and `verdicts` are the program's
 * again when it returns. It takes any number of packets from 0 to `PL_MAX_PACKETS`; some hundred at a time are good.
 *
 * `link_type` says what the packets begin with: `PL_LINK_ETHERNET`, or another number of capture files.
 *
 * One thread at a time may use a chain; different chains may be used at the same time.
 *
 * Returns `PL_OK`, or, with no packet processed: `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, `PL_ERROR_BUSY`, `PL_ERROR_FINISHED`, or
 * `PL_ERROR_FULL` where more than 64 MiB of outputs wait for `pl_chain_read`. With `PL_ERROR_IO` an output failed, and some packets were
 * processed.
 *
 * # Safety
 * `packets` and `verdicts` have `count` elements, and the packets have the bytes that they say, which nobody writes meanwhile.
 */
int pl_chain_process(int chain,
                     uint32_t link_type,
                     const struct pl_packet *packets,
                     size_t count,
                     struct pl_verdict *verdicts);

/**
 * Says that no packet came until `time_ns`, in nanoseconds since 1970, so that idle flows of a chain with `PL_LIVE` end. Other chains take no
 * notice.
 *
 * Returns `PL_OK`, `PL_ERROR_NOT_FOUND`, `PL_ERROR_BUSY`, `PL_ERROR_FINISHED` or `PL_ERROR_IO`.
 */
int pl_chain_pass_time(int chain,
                       uint64_t time_ns);

/**
 * Copies the bytes of packet `index` of the last call of `pl_chain_process`, as they are to be sent: functions rewrote it. Its length is what
 * it was.
 *
 * `size` is the room at `bytes`, in bytes. `len` gets how many bytes it has, also where there is no room for them.
 *
 * Returns `PL_OK`, `PL_ERROR_FULL` where there is no room, `PL_ERROR_NOT_FOUND` where there is no such packet or it was not rewritten,
 * `PL_ERROR_ARGUMENT` or `PL_ERROR_BUSY`.
 *
 * # Safety
 * There is room for `size` bytes at `bytes`, and for a number at `len`.
 */
int pl_chain_rewritten(int chain,
                       size_t index,
                       uint8_t *bytes,
                       size_t size,
                       size_t *len);

/**
 * How many functions a chain has: they are numbered from 0 in the order of the chain. Returns the number, `PL_ERROR_NOT_FOUND` or
 * `PL_ERROR_BUSY`.
 */
int pl_chain_functions(int chain);

/**
 * Copies outputs of a function that were not read yet: flow records or lines of a log, as the chain has them (JSON lines unless it says
 * something else). What was copied is forgotten. It is text without a NUL; a line may be continued by the next call.
 *
 * `size` is the room at `to`, in bytes; `len` gets how many were copied, 0 where there is nothing.
 *
 * Returns `PL_OK`, `PL_ERROR_ARGUMENT`, `PL_ERROR_BUSY`, or `PL_ERROR_NOT_FOUND` where there is no such function or its outputs do not go to
 * the program.
 *
 * # Safety
 * There is room for `size` bytes at `to`, and for a number at `len`.
 */
int pl_chain_read(int chain,
                  size_t function,
                  char *to,
                  size_t size,
                  size_t *len);

/**
 * Copies what a chain has counted so far as JSON: the summary that `packetloom run --summary` writes. The text ends with a NUL.
 *
 * `size` is the room at `json`, in bytes. `len` gets the length of the text without the NUL, also where there is no room for it.
 *
 * Returns `PL_OK`, `PL_ERROR_FULL` where `size` is not larger than that length, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND` or
 * `PL_ERROR_BUSY`.
 *
 * # Safety
 * There is room for `size` bytes at `json`, and for a number at `len`.
 */
int pl_chain_summary(int chain,
                     char *json,
                     size_t size,
                     size_t *len);

/**
 * Ends all flows of a chain, with their records, and finishes its files, which then have their names. Afterwards the chain can be read and
 * closed, but takes no packets.
 *
 * Returns `PL_OK`, or `PL_MORE` where outputs are to be read with `pl_chain_read` first, before it is called again; `PL_ERROR_NOT_FOUND`,
 * `PL_ERROR_BUSY`, `PL_ERROR_FINISHED` or `PL_ERROR_IO`.
 */
int pl_chain_finish(int chain);

/**
 * Closes a chain and frees what it has. Files of a chain that is not finished do not appear. Its id is not used again.
 *
 * Returns `PL_OK`, `PL_ERROR_NOT_FOUND` where it was closed already, or `PL_ERROR_BUSY` where another thread uses it: then it stays open.
 */
int pl_chain_close(int chain);

/**
 * The name of a reason why packets are dropped, by the number in `pl_verdict`: "acl_rule", for one, as summaries have it. "pass" for 0, and
 * NULL where there is no such reason. The text is static. Any thread may call it.
 */
const char *pl_drop_reason(uint32_t dropped);

/**
 * Adds a network function under an id of the program's choice, from 0 on.
 *
 * With `cl_file_name` NULL it is one that is built in, and `kernel_name` says which: "strings", "aho-corasick", "acl", "meter" or
 * "chain". Else `cl_file_name` is the program's file with kernels, in the dialect of docs/kernels.md, and `kernel_name` one of its entries.
 * The program vouches for it: with the arguments that it is given, the kernel must read and write inside their memory only, and come to its end.
 *
 * `init` is called at once, and fills in what the function needs; NULL where it needs nothing. `set_kernel_arg` names the arguments of a
 * kernel; where it is NULL, these are: packets, results, the table if there is one, and the number of packets as u32.
 *
 * `result_buffer_size` is how many bytes of results the function has for each packet. Those that are built in have one or two numbers of
 * 32 bits in the order of bytes of this machine, so 4 or 8:
 *
 * "strings", "aho-corasick": the pattern that ends first in the packet (of several that end there the one with the lowest number), counted
 * from 1, or 0 where there is none; then the number of bytes of the packet up to its end. Both find the same: on cores the second one is an
 * automaton, on devices both are the same kernel.
 *
 * "acl", "meter", "chain": 0 where the packet passes, else the number of the reason why it is dropped (`pl_drop_reason`); then its mark. The
 * packets of a buffer have the time at which it was ready.
 *
 * Every function of a service chain sees every packet; what one has found does not keep packets from another one.
 *
 * Any thread may call it. Returns `PL_OK`, `PL_ERROR_EXISTS`, `PL_ERROR_ARGUMENT`, `PL_ERROR_CALLBACK` where `init` failed,
 * `PL_ERROR_NOT_FOUND` where no such function is built in, or `PL_ERROR_CONFIG` where a file or a key is not usable.
 *
 * # Safety
 * Names are NULL or texts that end with a NUL. Callbacks are NULL or functions of their types, which return and do not throw.
 */
int nca_add_network_function(int network_func_id,
                             nca_init init,
                             const char *cl_file_name,
                             const char *kernel_name,
                             nca_set_kernel_arg set_kernel_arg,
                             int result_buffer_size);

/**
 * Forgets a network function. Streams that have it go on with it. Its id may be used again.
 *
 * Any thread may call it. Returns `PL_OK` or `PL_ERROR_NOT_FOUND`.
 */
int nca_remove_network_function(int network_func_id);

/**
 * Opens a traffic stream: a ring of buffers that the library owns, with threads that take them through a service chain.
 *
 * `num_buffers` buffers of `buffer_size` packets, numbered from 0; 0 for `NCA_NUM_BUFFERS` and `NCA_BUFFER_SIZE`. A buffer has room for
 * 2,048 bytes a packet, which long packets may take from short ones. Memory is used as it is filled; with functions on a GPU all of it is pinned.
 *
 * `service_func_chain` has `num_network_funcs` ids. `network_func_parallel_sets` has the number of each one's set: functions of one set
 * may run at the same time, sets run one after the other in ascending order, and those of set 0 at any time.
 *
 * `notify` is called when a buffer has results, in the order in which buffers were ready; it may be NULL, with `nca_wait` in its place.
 *
 * Any thread may call it, and any thread any function with the stream: what threads do with one buffer at the same time is done one after
 * the other.
 *
 * Returns the stream's id, which is positive, or `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND` where a function is not there,
 * `PL_ERROR_DEVICE` with the compiler's words where a kernel cannot be built, `PL_ERROR_CALLBACK`, `PL_ERROR_MEMORY`, `PL_ERROR_IO`,
 * or `PL_ERROR_BUSY` where a function has output files that another stream writes. To be closed with `nca_traffic_stream_close`.
 *
 * # Safety
 * Both lists have `num_network_funcs` numbers. `notify` is NULL or a function of its type, which returns and does not throw.
 */
int nca_traffic_stream_init(int num_buffers,
                            int buffer_size,
                            nca_notify notify,
                            int num_network_funcs,
                            const int *service_func_chain,
                            const int *network_func_parallel_sets,
                            struct nca_dev nca_dev);

/**
 * Says how many queues each device of a stream has, `NCA_QUEUES` at first: as many of its buffers are processed at the same time. With one queue
 * nothing is copied while a kernel runs. With `NCA_CPU` it is how many threads there are, in place of `num_devices`.
 *
 * Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, `PL_ERROR_BUSY` where a buffer is on its way that has no
 * results yet, or another thread calls it, too; or `PL_ERROR_MEMORY`: the stream then has the queues that it had.
 */
int nca_set_queues(int traffic_stream_id,
                   int queues);

/**
 * Leaves copies or kernels out of the processing of buffers, so that a program can measure how long the others take alone: `parts` is one of
 * `nca_part`, or several. Results have no meaning then. Packets are copied nevertheless where a queue has none yet that lie in the buffer as these
 * do: kernels never see offsets of other packets. Functions that run on cores are not left out.
 *
 * Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, or `PL_ERROR_BUSY` where a buffer is on its way that has no
 * results yet.
 */
int nca_leave_out(int traffic_stream_id,
                  int parts);

/**
 * Copies packets into a buffer, behind those that it has: all of them, or none where there is no room.
 *
 * `packet` are the packets' bytes, one packet after the other without gaps, and `packet_len` their lengths in bytes, `num_packets` of them.
 *
 * Any thread may call it. Returns `PL_OK`, `PL_ERROR_FULL`, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, or `PL_ERROR_BUSY` where the
 * buffer is being processed or its results are not read.
 *
 * # Safety
 * `packet_len` has `num_packets` numbers, and at `packet` are as many bytes as they say together, which are no part of a buffer.
 */
int nca_add_packets(int traffic_stream_id,
                    int buffer_id,
                    const uint8_t *packet,
                    const int *packet_len,
                    int num_packets);

/**
 * Tells where a buffer's memory is, for programs that write packets there themselves in place of `nca_add_packets`: contents from
 * `bytes + offsets[0]` on, one packet behind the other, `offsets[i]` for each; then `nca_set_packets`. It stays where it is until the stream
 * is closed. The program must not write there from `nca_buffer_ready` on until results were read.
 *
 * Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT` or `PL_ERROR_NOT_FOUND`.
 *
 * # Safety
 * There is room for an `nca_memory` at `memory`.
 */
int nca_buffer_memory(int traffic_stream_id,
                      int buffer_id,
                      struct nca_memory *memory);

/**
 * Says how many packets a buffer has that the program has filled itself. Its offsets are checked and copied: they ascend from the first
 * one on, and the last one, `offsets[num_packets]`, is the end of the contents.
 *
 * Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT` where an offset is wrong, `PL_ERROR_FULL`, `PL_ERROR_NOT_FOUND` or
 * `PL_ERROR_BUSY`; the buffer then has what it had.
 */
int nca_set_packets(int traffic_stream_id,
                    int buffer_id,
                    int num_packets);

/**
 * How many packets a buffer has. Any thread may call it. Returns the number or `PL_ERROR_NOT_FOUND`.
 */
int nca_num_packets(int traffic_stream_id, int buffer_id);

/**
 * Has a buffer processed, full or not. The library has it until its results were told of.
 *
 * Any thread may call it; buffers are told of in the order of these calls. Returns `PL_OK`, `PL_ERROR_ARGUMENT` where it has no packet,
 * `PL_ERROR_NOT_FOUND`, or `PL_ERROR_BUSY` where it is being processed or its results are not read.
 */
int nca_buffer_ready(int traffic_stream_id,
                     int buffer_id);

/**
 * Waits until a buffer has results, `timeout_ms` milliseconds at most; with a negative number, as long as it takes.
 *
 * Any thread may call it, but no callback, which would get `PL_ERROR_BUSY`. Returns `PL_OK`, `PL_ERROR_NOT_READY` when the time is over
 * or the buffer is not ready, or `PL_ERROR_NOT_FOUND`.
 */
int nca_wait(int traffic_stream_id,
             int buffer_id,
             int timeout_ms);

/**
 * How many bytes the results of a buffer have: for each function of the service chain, in its order, as many as the buffer has packets,
 * times the function's `result_buffer_size`.
 *
 * Any thread may call it. Returns the number, `PL_ERROR_NOT_FOUND`, or `PL_ERROR_FULL` where it is larger than an int.
 */
int nca_results_size(int traffic_stream_id,
                     int buffer_id);

/**
 * Copies the results of a buffer and makes it empty, so that it can be filled again.
 *
 * `result` gets, for each function of the service chain in its order, what it has found in each packet, in the order of packets:
 * `nca_results_size` bytes in all. `nca_add_network_function` says what these are.
 *
 * Any thread may call it. Returns `PL_OK`; `PL_ERROR_NOT_READY` where there are no results yet, `PL_ERROR_ARGUMENT`,
 * `PL_ERROR_NOT_FOUND`; or why the buffer could not be processed (`PL_ERROR_DEVICE`, `PL_ERROR_CALLBACK`, `PL_ERROR_IO`,
 * `PL_ERROR_INTERNAL`): it is empty then, too, and nothing was copied.
 *
 * # Safety
 * There is room for `nca_results_size` bytes at `result`; where several threads use one buffer, for those of a full one.
 */
int nca_read_results(int traffic_stream_id,
                     int buffer_id,
                     void *result);

/**
 * Closes a stream: waits until all buffers that were ready are processed and told of, ends its threads, finishes output files of its
 * functions and frees its buffers. Results that were not read are lost. Its id is not used again.
 *
 * Any thread may call it, but no callback, which would get `PL_ERROR_BUSY`. Returns `PL_OK`, `PL_ERROR_NOT_FOUND` where it was closed
 * already, `PL_ERROR_BUSY` where another thread closes it, or `PL_ERROR_IO` where an output could not be finished: it is closed then, too.
 */
int nca_traffic_stream_close(int traffic_stream_id);

/**
 * Closes all streams and forgets all functions, for the end of a program.
 *
 * Any thread may call it, but no callback, which would get `PL_ERROR_BUSY`. Returns `PL_OK`, or what `nca_traffic_stream_close` returns for a
 * stream that could not be closed or whose outputs could not be finished; the others are closed then, too.
 */
int nca_cleanup(void);

/**
 * Names the next argument of a kernel, in `set_kernel_arg`: the packets of the buffer, as `GLOBAL const u32 *`. First come offsets, one
 * more than packets: packet i begins at byte `offsets[i]` of this memory and ends before `offsets[i + 1]`.
 *
 * Returns `PL_OK`, or `PL_ERROR_ARGUMENT` outside of that callback.
 */
int nca_arg_packets(struct nca_kernel_args *args);

/**
 * Names the next argument: the results, as `GLOBAL` pointer to what the program likes; `result_buffer_size` bytes for each packet, one after the
 * other, all 0 before the kernel runs. See `nca_arg_packets`.
 */
int nca_arg_results(struct nca_kernel_args *args);

/**
 * Names the next argument: the function's table, as `GLOBAL const` pointer. See `nca_arg_packets`.
 */
int nca_arg_table(struct nca_kernel_args *args);

/**
 * Names the next argument: a number, as `u32`. See `nca_arg_packets`.
 */
int nca_arg_u32(struct nca_kernel_args *args, uint32_t number);

/**
 * Names the next argument: a number, as `u64`. See `nca_arg_packets`.
 */
int nca_arg_u64(struct nca_kernel_args *args, uint64_t number);

/**
 * The text of the last error of this thread: why the last call that returned a negative number did so. Empty where none has.
 *
 * The text ends with a NUL, is never NULL, and stays until the next call of this thread that fails. For calls of other threads, each has its own.
 */
const char *pl_last_error(void);

/**
 * The library's version, such as "0.1.0". The text is static. Any thread may call it.
 */
const char *pl_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PACKETLOOM_H */
