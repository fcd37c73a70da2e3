// The head and the tail of a command's output: a fixed block and a ring, so memory is bounded.
#include <stdlib.h>
#include <string.h>

#include "helper.h"

enum { MAX_ROOM = 32 << 20 };

static char *head, *ring;
static uint32_t head_room, head_used, tail_room, ring_at;
static uint64_t total, ring_total;  // bytes seen, bytes that went through the ring

void output_start(uint32_t head_bytes, uint32_t tail_bytes) {
    head_room = head_bytes < MAX_ROOM ? head_bytes : MAX_ROOM;
    tail_room = tail_bytes < MAX_ROOM ? tail_bytes : MAX_ROOM;
    head = realloc(head, head_room + 1);
    ring = realloc(ring, tail_room + 1);
    if (!head || !ring) die(EXIT_NO_MEMORY);
    head_used = ring_at = 0;
    total = ring_total = 0;
}

void output_add(const char *bytes, size_t n) {
    size_t first = n < head_room - head_used ? n : head_room - head_used;
    memcpy(head + head_used, bytes, first);
    head_used += (uint32_t)first;
    total += n;
    bytes += first;
    n -= first;
    ring_total += n;
    if (n > tail_room) {
        bytes += n - tail_room;
        n = tail_room;
    }
    while (n) {
        size_t part = n < tail_room - ring_at ? n : tail_room - ring_at;
        memcpy(ring + ring_at, bytes, part);
        ring_at = (uint32_t)((ring_at + part) % tail_room);
        bytes += part;
        n -= part;
    }
}

void output_append_to(struct buffer *b, uint32_t *head_size) {
    *head_size = head_used;
    buffer_add(b, head, head_used);
    if (ring_total < tail_room) {
        buffer_add(b, ring, (size_t)ring_total);
    } else if (tail_room) {
        buffer_add(b, ring + ring_at, tail_room - ring_at);
        buffer_add(b, ring, ring_at);
    }
}

uint64_t output_total(void) { return total; }
