// The session helper: PID 1 of a container, which runs one command at a time and reports its end.
// For a command beside a running one there is a second helper, started by an exec (`helper side`).
//
// Requests come in on stdin and replies leave on stdout as SLIP frames (slip.c). The commands get
// neither: their stdin is /dev/null or a sealed copy of the caller's bytes, their stdout and stderr
// are one pipe that only the helper reads. So no output can forge a frame.
#ifndef HELPER_H
#define HELPER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PROTOCOL = 1 };

// Request and reply types: the first byte of a frame.
enum {
    REQ_HELLO = 'h',  // -> REP_HELLO
    REQ_RUN = 'r',    // -> REP_END when the command has ended
    REQ_KILL = 'k',   // end the running command now
    REQ_CLEAR = 'c',  // kill everything but the helper
    REQ_LAST = 'l',   // send the last REP_END again
    REQ_SHARE = 's',  // from now on a side helper's processes must be spared
    REQ_TTL = 't',    // u32 seconds of silence after which the helper leaves
    REP_HELLO = 'H',  // u32 protocol, u32 running id or 0, u32 last ended id or 0
    REP_END = 'E',    // see end_frame in command.c
};

// Flags of a run request.
enum {
    RUN_KEEP_BACKGROUND = 1,  // what the command leaves running lives on
    RUN_BLOB_IS_STDIN = 2,    // the blob is its stdin
    RUN_BLOB_IS_FD3 = 4,      // the blob is its file descriptor 3
};

// Flags of an end reply.
enum {
    END_TIMED_OUT = 1,
    END_KILLED = 2,         // by REQ_KILL or REQ_CLEAR
    END_BACKGROUND = 4,     // something was still running when the command's first process ended
    END_START_FAILED = 8,   // it never ran; `error` says why
    END_SURVIVOR = 16,      // something could not be killed
    END_OOM_UNKNOWN = 32,   // the cgroup's count of OOM kills could not be read
};

// Exit codes of the helper itself.
enum { EXIT_TTL = 75, EXIT_USAGE = 64, EXIT_NO_MEMORY = 71, EXIT_BROKEN_STREAM = 74 };

// slip.c: framing. A frame is END, escaped bytes, END; it starts with its own length as u32.
struct buffer { char *data; size_t size, room; };
void buffer_add(struct buffer *b, const void *bytes, size_t n);
void buffer_reset(struct buffer *b);  // empties it and gives back what a large frame took
void slip_receive(const char *bytes, size_t n, void (*frame)(char *data, size_t size));
void slip_send(int fd, const struct buffer *b);

// output.c: the head and the tail of a command's output, at any size.
void output_start(uint32_t head_room, uint32_t tail_room);
void output_add(const char *bytes, size_t n);
void output_append_to(struct buffer *b, uint32_t *head_size);
uint64_t output_total(void);

// tree.c: what runs besides the helper.
int tree_reap(pid_t child, int *status);     // reaps the dead; 1 when `child` was among them
int tree_alive(void);                        // 1 while any other process lives
void tree_spare_living(void);                // what lives now survives tree_kill(1)
void tree_share(void);                       // others live here: never kill(-1) but as a last resort
int tree_kill(int keep_spared, pid_t child, int *status, int *child_dead);  // 0, or 1: survivors

// command.c: the one command.
void command_prepare(void);                  // before the helper becomes undumpable
void command_request(char *data, size_t size);
int command_running(void);
int command_output_fd(void);                 // -1 when there is nothing to read
void command_readable(void);
void command_reaped(void);                   // after SIGCHLD
void command_deadline(void);                 // ends it when its time is over
int command_wait_ms(void);                   // until its deadline; -1 without one
void command_leave_pipes(void (*watch)(int fd));

// files.c: `helper put` and `helper get`, run as commands.
int files_main(int argc, char **argv);

uint64_t now_us(void);
void die(int code);

#endif
