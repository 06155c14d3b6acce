/*
 * A chain over packets that the program holds.
 *
 *   engine CHAIN CAPTURE
 *
 * A line for each packet: "pass", or why it is dropped, with its mark. Then what the chain's functions have written (flow records, logs), and
 * the summary.
 */
#include <packetloom.h>
#include <stdio.h>

#include "pcap.h"

enum { BATCH = 256 };

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, pl_last_error());
  return 1;
}

/* Shows what functions have written. */
static int show(int chain) {
  char text[4096];
  size_t len;
  int functions = pl_chain_functions(chain);
  for (int function = 0; function < functions; function++) {
    /* Functions without an output have none to be read. */
    while (pl_chain_read(chain, (size_t)function, text, sizeof text, &len) == PL_OK && len > 0) {
      fwrite(text, 1, len, stdout);
    }
  }
  return functions < 0;
}

int main(int count, char **arguments) {
  struct capture capture;
  if (count != 3 || capture_read(&capture, arguments[2]) != 0) {
    fprintf(stderr, "usage: engine CHAIN CAPTURE\n");
    return 2;
  }
  int chain = pl_chain_load(arguments[1], PL_OUTPUTS_TO_PROGRAM);
  if (chain < 0) {
    return fail(arguments[1]);
  }
  for (size_t first = 0; first < capture.count; first += BATCH) {
    pl_packet packets[BATCH];
    pl_verdict verdicts[BATCH];
    size_t packet = 0;
    for (; packet < BATCH && first + packet < capture.count; packet++) {
      struct frame *frame = &capture.frames[first + packet];
      packets[packet] = (pl_packet){frame->bytes, frame->len, frame->wire_len, frame->time_ns};
    }
    if (pl_chain_process(chain, PL_LINK_ETHERNET, packets, packet, verdicts) != PL_OK) {
      return fail("pl_chain_process");
    }
    for (size_t index = 0; index < packet; index++) {
      printf("%s %u\n", pl_drop_reason(verdicts[index].dropped), verdicts[index].mark);
    }
  }
  int status;
  do {
    status = pl_chain_finish(chain);
    if (status < 0 || show(chain) != 0) {
      return fail("pl_chain_finish");
    }
  } while (status == PL_MORE);
  size_t len;
  int sized = pl_chain_summary(chain, NULL, 0, &len);
  char *summary = sized == PL_ERROR_FULL ? malloc(len + 1) : NULL;
  if (summary == NULL || pl_chain_summary(chain, summary, len + 1, &len) != PL_OK) {
    return fail("pl_chain_summary");
  }
  puts(summary);
  free(summary);
  if (pl_chain_close(chain) != PL_OK) {
    return fail("pl_chain_close");
  }
  capture_free(&capture);
  return 0;
}
