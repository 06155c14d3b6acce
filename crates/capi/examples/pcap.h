/* A capture in memory, for the examples: pcap files of Ethernet frames, as most tools write them. */
#ifndef EXAMPLE_PCAP_H
#define EXAMPLE_PCAP_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct frame {
  const unsigned char *bytes;
  uint32_t len, wire_len;
  uint64_t time_ns;
};

struct capture {
  unsigned char *file;
  struct frame *frames;
  size_t count;
};

static uint32_t word(const unsigned char *at) {
  uint32_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

/* Reads a file; 0 where that is done. */
static int capture_read(struct capture *capture, const char *path) {
  memset(capture, 0, sizeof *capture);
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    perror(path);
    return -1;
  }
  long size = ftell(file);
  rewind(file);
  capture->file = malloc(size > 0 ? (size_t)size : 1);
  size_t read = capture->file == NULL ? 0 : fread(capture->file, 1, (size_t)size, file);
  fclose(file);
  uint32_t magic = read < 24 ? 0 : word(capture->file);
  if (magic != 0xa1b2c3d4 && magic != 0xa1b23c4d) {
    fprintf(stderr, "%s: not a pcap file of this machine's byte order\n", path);
    return -1;
  }
  uint64_t unit = magic == 0xa1b23c4d ? 1 : 1000;
  /* A frame has a header of 16 bytes. */
  capture->frames = malloc((read / 16 + 1) * sizeof *capture->frames);
  if (capture->frames == NULL) {
    return -1;
  }
  for (size_t at = 24; at + 16 <= read;) {
    const unsigned char *header = capture->file + at;
    struct frame *frame = &capture->frames[capture->count];
    frame->time_ns = (uint64_t)word(header) * 1000000000 + word(header + 4) * unit;
    frame->len = word(header + 8);
    frame->wire_len = word(header + 12);
    frame->bytes = header + 16;
    at += 16;
    if (frame->len > read - at) {
      break;
    }
    at += frame->len;
    capture->count++;
  }
  return 0;
}

static void capture_free(struct capture *capture) {
  free(capture->frames);
  free(capture->file);
}

#endif
