/*
 * NFV compute acceleration: a service chain of two functions over the packets of a capture.
 *
 *   nca CAPTURE PATTERNS RULES [opencl|cuda]
 *
 * Function 1 looks for the strings of a file in each packet, function 2 judges packets by an access list. A line for each packet:
 * the string that was found first, counted from 1, or 0; where it ends; and the reason why the packet is dropped, or "pass".
 * Functions run on two cores, or on the first device of a kind.
 */
#include <packetloom.h>
#include <semaphore.h>
#include <stdio.h>

#include "pcap.h"

enum { STRINGS = 1, ACL = 2 };
enum { BUFFERS = 3, PACKETS = 500 };

static const char *patterns, *rules;
static sem_t free_buffers;
static int failed;

/* Says what the functions need. */
static int init(int network_func_id, nca_function_params *params) {
  static char config[4200];
  const char *form = network_func_id == STRINGS ? "patterns = '%s'\nskip = 34" : "rules = '%s'";
  snprintf(config, sizeof config, form, network_func_id == STRINGS ? patterns : rules);
  params->config = config;
  return 0;
}

/* A buffer has results: of each function those of all packets, the functions in the order of the chain. */
static int notify(int stream, int buffer, int event) {
  /* Two numbers of each function for each packet. One thread at a time is here. */
  static uint32_t results[2][PACKETS][2];
  (void)event;
  int count = nca_num_packets(stream, buffer);
  size_t size = sizeof results[0][0] * (size_t)count;
  static unsigned char packed[sizeof results];
  if (nca_read_results(stream, buffer, packed) != PL_OK) {
    fprintf(stderr, "buffer %d: %s\n", buffer, pl_last_error());
    failed = 1;
  } else {
    memcpy(results[0], packed, size);
    memcpy(results[1], packed + size, size);
    for (int packet = 0; packet < count; packet++) {
      uint32_t *strings = results[0][packet], *acl = results[1][packet];
      printf("%u %u %s\n", strings[0], strings[1], pl_drop_reason(acl[0]));
    }
  }
  /* The buffer is empty again. */
  sem_post(&free_buffers);
  return 0;
}

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, pl_last_error());
  return 1;
}

int main(int count, char **arguments) {
  struct capture capture;
  if (count < 4 || count > 5 || capture_read(&capture, arguments[1]) != 0) {
    fprintf(stderr, "usage: nca CAPTURE PATTERNS RULES [opencl|cuda]\n");
    return 2;
  }
  patterns = arguments[2];
  rules = arguments[3];
  sem_init(&free_buffers, 0, BUFFERS);
  if (nca_add_network_function(STRINGS, init, NULL, "strings", NULL, 8) != PL_OK) {
    return fail(patterns);
  }
  if (nca_add_network_function(ACL, init, NULL, "acl", NULL, 8) != PL_OK) {
    return fail(rules);
  }
  int chain[] = {STRINGS, ACL}, sets[] = {1, 1};
  nca_dev device = {NCA_CPU, 2};
  if (count == 5) {
    device.dev_type = strcmp(arguments[4], "cuda") == 0 ? NCA_CUDA : NCA_OPENCL;
    device.num_devices = 1;
  }
  int stream = nca_traffic_stream_init(BUFFERS, PACKETS, notify, 2, chain, sets, device);
  if (stream < 0) {
    return fail("nca_traffic_stream_init");
  }
  int buffer = 0, added = 0;
  sem_wait(&free_buffers);
  for (size_t index = 0; index < capture.count; index++) {
    struct frame *frame = &capture.frames[index];
    int len = (int)frame->len;
    int status = nca_add_packets(stream, buffer, frame->bytes, &len, 1);
    if (status == PL_ERROR_FULL && added > 0) {
      /* The next buffer of the ring, when it is free. */
      if (nca_buffer_ready(stream, buffer) != PL_OK) {
        return fail("nca_buffer_ready");
      }
      sem_wait(&free_buffers);
      buffer = (buffer + 1) % BUFFERS;
      added = 0;
      status = nca_add_packets(stream, buffer, frame->bytes, &len, 1);
    }
    if (status != PL_OK) {
      return fail("nca_add_packets");
    }
    added++;
  }
  /* The last one is not full. */
  if (added > 0 && nca_buffer_ready(stream, buffer) != PL_OK) {
    return fail("nca_buffer_ready");
  }
  /* Waits for the results. */
  if (nca_traffic_stream_close(stream) != PL_OK || nca_cleanup() != PL_OK) {
    return fail("closing");
  }
  sem_destroy(&free_buffers);
  capture_free(&capture);
  return failed;
}
