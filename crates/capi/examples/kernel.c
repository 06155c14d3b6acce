/*
 * NFV compute acceleration with a kernel of one's own.
 *
 *   kernel CAPTURE KERNELS cpu|opencl|cuda
 *
 * Function 1 is the kernel "weigh" of the file KERNELS, function 2 looks for strings. The program writes packets into the buffers itself. A
 * line for each packet: what the kernel has found, and the first string.
 */
#include <packetloom.h>
#include <stdio.h>

#include "pcap.h"

enum { WEIGH = 1, STRINGS = 2 };
enum { PACKETS = 512 };

static uint32_t weights[256];
static const uint32_t factor = 3;

static int init_weigh(int network_func_id, nca_function_params *params) {
  (void)network_func_id;
  for (uint32_t byte = 0; byte < 256; byte++) {
    weights[byte] = byte * byte + 1;
  }
  params->table = weights;
  params->table_size = sizeof weights;
  return 0;
}

static int init_strings(int network_func_id, nca_function_params *params) {
  static const unsigned char *const patterns[] = {(const unsigned char *)"HTTP/1.1", (const unsigned char *)"\x00\x01\x00\x01"};
  static const int lens[] = {8, 4};
  (void)network_func_id;
  params->patterns = patterns;
  params->pattern_len = lens;
  params->num_patterns = 2;
  return 0;
}

/* The arguments of the kernel, in the order of its parameters. */
static int set_kernel_arg(int network_func_id, nca_kernel_args *args, const nca_packets *pkt_buf) {
  (void)network_func_id;
  return nca_arg_packets(args) != PL_OK || nca_arg_table(args) != PL_OK || nca_arg_results(args) != PL_OK ||
         nca_arg_u32(args, pkt_buf->num_packets) != PL_OK || nca_arg_u32(args, factor) != PL_OK;
}

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, pl_last_error());
  return 1;
}

/* Waits for a buffer that is ready, and shows its results. */
static int show(int stream, int buffer) {
  static uint32_t results[PACKETS * 3];
  int count = nca_num_packets(stream, buffer);
  if (count < 0 || nca_wait(stream, buffer, -1) != PL_OK || nca_read_results(stream, buffer, results) != PL_OK) {
    return fail("results");
  }
  /* Two numbers a packet of the kernel, and then one a packet of the strings. */
  for (int packet = 0; packet < count; packet++) {
    printf("%u %u %u\n", results[2 * packet], results[2 * packet + 1], results[2 * count + packet]);
  }
  return 0;
}

int main(int count, char **arguments) {
  struct capture capture;
  if (count != 4 || capture_read(&capture, arguments[1]) != 0) {
    fprintf(stderr, "usage: kernel CAPTURE KERNELS cpu|opencl|cuda\n");
    return 2;
  }
  nca_dev device = {NCA_CPU, 1};
  if (strcmp(arguments[3], "opencl") == 0) {
    device.dev_type = NCA_OPENCL;
  } else if (strcmp(arguments[3], "cuda") == 0) {
    device.dev_type = NCA_CUDA;
  }
  if (nca_add_network_function(WEIGH, init_weigh, arguments[2], "weigh", set_kernel_arg, 8) != PL_OK) {
    return fail(arguments[2]);
  }
  if (nca_add_network_function(STRINGS, init_strings, NULL, "strings", NULL, 4) != PL_OK) {
    return fail("strings");
  }
  int chain[] = {WEIGH, STRINGS}, sets[] = {1, 2};
  int stream = nca_traffic_stream_init(0, PACKETS, NULL, 2, chain, sets, device);
  if (stream < 0) {
    return fail("nca_traffic_stream_init");
  }
  size_t next = 0;
  int ready = 0, shown = 0;
  while (next < capture.count || shown < ready) {
    /* As long as there are packets, all buffers of the ring are in use; the oldest is read first. */
    if (next == capture.count || ready - shown == NCA_NUM_BUFFERS) {
      if (show(stream, shown % NCA_NUM_BUFFERS) != 0) {
        return 1;
      }
      shown++;
      continue;
    }
    int buffer = ready % NCA_NUM_BUFFERS, packets = 0;
    nca_memory memory;
    if (nca_buffer_memory(stream, buffer, &memory) != PL_OK) {
      return fail("nca_buffer_memory");
    }
    while (next < capture.count && packets < PACKETS) {
      struct frame *frame = &capture.frames[next];
      uint32_t at = memory.offsets[packets];
      if (frame->len > memory.size - at) {
        break;
      }
      memcpy(memory.bytes + at, frame->bytes, frame->len);
      memory.offsets[++packets] = at + frame->len;
      next++;
    }
    if (nca_set_packets(stream, buffer, packets) != PL_OK || nca_buffer_ready(stream, buffer) != PL_OK) {
      return fail("a buffer");
    }
    ready++;
  }
  if (nca_traffic_stream_close(stream) != PL_OK || nca_cleanup() != PL_OK) {
    return fail("closing");
  }
  capture_free(&capture);
  return 0;
}
