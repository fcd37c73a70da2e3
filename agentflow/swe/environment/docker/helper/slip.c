// SLIP framing with a length check: a reader that joins in mid-stream is back in step at the next
// END, and a frame that was cut off is dropped, never half believed.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "helper.h"

enum { END = 0xC0, ESC = 0xDB, ESC_END = 0xDC, ESC_ESC = 0xDD };
enum { MAX_FRAME = 64 << 20, KEEP_ROOM = 1 << 20 };

void buffer_add(struct buffer *b, const void *bytes, size_t n) {
    if (b->size + n > b->room) {
        size_t room = b->room ? b->room : 4096;
        while (room < b->size + n) room *= 2;
        char *data = realloc(b->data, room);
        if (!data) die(EXIT_NO_MEMORY);
        b->data = data;
        b->room = room;
    }
    memcpy(b->data + b->size, bytes, n);
    b->size += n;
}

void buffer_reset(struct buffer *b) {
    if (b->room > KEEP_ROOM) {
        free(b->data);
        b->data = NULL;
        b->room = 0;
    }
    b->size = 0;
}

static struct buffer incoming;
static int escaped, overlong;

static void finish(void (*frame)(char *data, size_t size)) {
    uint32_t length;
    if (!overlong && !escaped && incoming.size > 4) {
        memcpy(&length, incoming.data, 4);
        if (length == incoming.size - 4) frame(incoming.data + 4, length);
    }
    escaped = overlong = 0;
    buffer_reset(&incoming);
}

void slip_receive(const char *bytes, size_t n, void (*frame)(char *data, size_t size)) {
    for (size_t i = 0; i < n;) {
        size_t j = i;
        unsigned char c = (unsigned char)bytes[i];
        if (escaped) {
            char plain = c == ESC_END ? (char)END : (char)ESC;
            if (c != ESC_END && c != ESC_ESC) overlong = 1;  // nonsense: drop the frame
            escaped = 0;
            if (c != END) {
                buffer_add(&incoming, &plain, 1);
                i++;
                continue;
            }
        }
        while (j < n && (unsigned char)bytes[j] != END && (unsigned char)bytes[j] != ESC) j++;
        if (incoming.size + (j - i) > MAX_FRAME) overlong = 1;
        if (!overlong) buffer_add(&incoming, bytes + i, j - i);
        if (j < n) {
            if ((unsigned char)bytes[j] == END) finish(frame);
            else escaped = 1;
            j++;
        }
        i = j;
    }
}

static void write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) die(EXIT_BROKEN_STREAM);
        p += k;
        n -= (size_t)k;
    }
}

static void escape_into(struct buffer *b, const char *p, size_t n) {
    static const char end[2] = {(char)ESC, (char)ESC_END}, esc[2] = {(char)ESC, (char)ESC_ESC};
    while (n) {
        size_t j = 0;
        while (j < n && (unsigned char)p[j] != END && (unsigned char)p[j] != ESC) j++;
        buffer_add(b, p, j);
        if (j < n) buffer_add(b, (unsigned char)p[j] == END ? end : esc, 2), j++;
        p += j;
        n -= j;
    }
}

void slip_send(int fd, const struct buffer *b) {
    static struct buffer wire;
    static const char end = (char)END;
    uint32_t length = (uint32_t)b->size;
    buffer_add(&wire, &end, 1);
    escape_into(&wire, (const char *)&length, 4);
    escape_into(&wire, b->data, b->size);
    buffer_add(&wire, &end, 1);
    write_all(fd, wire.data, wire.size);
    buffer_reset(&wire);
}
