// The one command: its start, its output, its deadline, its end.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helper.h"

enum { MAX_ARGS = 64, MAX_ENV = 4096, EXIT_NOT_FOUND = 127, EXIT_NOT_RUNNABLE = 126 };

extern char **environ;
extern int reply_fd;

static struct {
    uint32_t id, last_id;
    pid_t pid;
    int status, dead, output, keep_background;
    uint64_t started_us, deadline_us;  // deadline_us 0: none
    int64_t oom_kills;                 // of the cgroup when it started; -1 unknown
} now = {.output = -1};
static struct buffer last_end;
static int oom_fd = -1;
static char own_oom[8];
static void (*watch_pipe)(int fd);
static char chunk[65536];

int command_running(void) { return now.pid > 0; }
int command_output_fd(void) { return now.output; }
void command_leave_pipes(void (*watch)(int fd)) { watch_pipe = watch; }

// --- out of memory ---------------------------------------------------------------------------

// The kernel shall pick commands, not the helper, when memory runs out: a command is started with the
// helper's own score raised, which needs a descriptor from the time when it was dumpable.
static const char OOM_OF_COMMANDS[] = "500";

void command_prepare(void) {
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    oom_fd = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    close(fd);
    if (pread(oom_fd, own_oom, sizeof own_oom - 1, 0) <= 0) own_oom[0] = 0;
    if (atoi(own_oom) >= atoi(OOM_OF_COMMANDS)) own_oom[0] = 0;  // they get no less than it has
}

static void set_oom(const char *score) {
    if (own_oom[0] && write(oom_fd, score, strlen(score)) < 0) own_oom[0] = 0;
}

static int64_t read_oom_kills(void) {
    static const char *const paths[] = {"/sys/fs/cgroup/memory.events",
                                        "/sys/fs/cgroup/memory/memory.oom_control"};
    static int fd = -2;
    char text[512];
    for (int i = 0; fd == -2 && i < 2; i++) {
        int candidate = open(paths[i], O_RDONLY | O_CLOEXEC);
        if (candidate >= 0) fd = candidate;
    }
    if (fd < 0) return fd = -1;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return -1;
    text[n] = 0;
    char *at = strstr(text, "oom_kill ");
    return at ? atoll(at + 9) : -1;
}

// --- its end ---------------------------------------------------------------------------------

static void drain(void) {
    int left = 0;
    if (now.output < 0) return;
    if (!tree_alive()) left = 1 << 30;                // no writer lives: up to the end of file
    else ioctl(now.output, FIONREAD, &left);          // what was written before the end, no more
    while (left > 0) {
        ssize_t n = read(now.output, chunk, left < (int)sizeof chunk ? (size_t)left : sizeof chunk);
        if (n <= 0) break;
        output_add(chunk, (size_t)n);
        left -= (int)n;
    }
}

static void send_end(uint8_t flags, int32_t error, uint32_t kill_us) {
#pragma pack(push, 1)
    struct {
        char type;
        uint32_t id;
        int32_t status;
        uint8_t flags;
        int32_t error;
        uint64_t total, duration_us;
        uint32_t kill_us, oom_kills, head_size;
    } end_frame = {REP_END, now.id, now.status, flags, error, output_total(),
                   now_us() - now.started_us, kill_us, 0, 0};
#pragma pack(pop)
    int64_t oom_kills = read_oom_kills();
    if (oom_kills < 0 || now.oom_kills < 0) end_frame.flags |= END_OOM_UNKNOWN;
    else end_frame.oom_kills = (uint32_t)(oom_kills - now.oom_kills);
    buffer_reset(&last_end);
    buffer_add(&last_end, &end_frame, sizeof end_frame);
    output_append_to(&last_end, &end_frame.head_size);
    memcpy(last_end.data, &end_frame, sizeof end_frame);
    now.last_id = now.id;
    now.pid = 0;
    slip_send(reply_fd, &last_end);
}

static void end(uint8_t flags) {
    uint64_t kill_start = now_us();
    int forced = flags & (END_TIMED_OUT | END_KILLED), background = !forced && tree_alive();
    if (background) flags |= END_BACKGROUND;
    if (forced || (background && !now.keep_background))
        if (tree_kill(now.keep_background, now.pid, &now.status, &now.dead)) flags |= END_SURVIVOR;
    if (!now.dead) now.status = SIGKILL;
    drain();
    if (now.output >= 0) {
        if (tree_alive() && watch_pipe) watch_pipe(now.output);
        else close(now.output);
    }
    now.output = -1;
    send_end(flags, 0, (uint32_t)(now_us() - kill_start));
}

static void fail_start(int error) {
    now.status = 0;
    send_end(END_START_FAILED, error, 0);
}

void command_readable(void) {
    ssize_t n = read(now.output, chunk, sizeof chunk);
    if (n > 0) output_add(chunk, (size_t)n);
    else if (n == 0) close(now.output), now.output = -1;
}

void command_reaped(void) {
    now.dead |= tree_reap(now.pid, &now.status);
    if (now.pid > 0 && now.dead) end(0);
}

void command_deadline(void) {
    if (now.pid > 0 && now.deadline_us && now_us() >= now.deadline_us) end(END_TIMED_OUT);
}

int command_wait_ms(void) {
    if (now.pid <= 0 || !now.deadline_us) return -1;
    uint64_t t = now_us();
    return t >= now.deadline_us ? 0 : (int)((now.deadline_us - t + 999) / 1000);
}

// --- its start -------------------------------------------------------------------------------

struct request {
    uint32_t id, timeout_ms, head_room, tail_room, flags, argc, envc, blob_size;
    char *cwd, *argv[MAX_ARGS + 1], *env[MAX_ENV + 1], *blob;
};

static char *next_string(char **at, char *stop) {
    char *s = *at, *nul = memchr(s, 0, (size_t)(stop - s));
    if (!nul) return NULL;
    *at = nul + 1;
    return s;
}

static int parse(struct request *r, char *data, size_t size) {
    char *at = data + 32, *stop = data + size;
    if (size < 32) return 0;
    memcpy(r, data, 32);  // the eight numbers, in order
    if (!r->argc || r->argc > MAX_ARGS || r->envc > MAX_ENV) return 0;
    if (!(r->cwd = next_string(&at, stop))) return 0;
    for (uint32_t i = 0; i < r->argc; i++)
        if (!(r->argv[i] = next_string(&at, stop))) return 0;
    for (uint32_t i = 0; i < r->envc; i++)
        if (!(r->env[i] = next_string(&at, stop)) || !strchr(r->env[i], '=')) return 0;
    r->argv[r->argc] = NULL;
    r->blob = at;
    return (size_t)(stop - at) == r->blob_size;
}

static void inherit_environment(struct request *r) {
    uint32_t given = r->envc;
    for (char **x = environ; *x && r->envc < MAX_ENV; x++) {
        size_t name = strcspn(*x, "=") + 1;
        uint32_t i = 0;
        while (i < given && strncmp(*x, r->env[i], name)) i++;
        if (i == given) r->env[r->envc++] = *x;
    }
    r->env[r->envc] = NULL;
}

static int blob_fd(const struct request *r) {
    if (!(r->flags & (RUN_BLOB_IS_STDIN | RUN_BLOB_IS_FD3)))
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("input", MFD_CLOEXEC);
    for (size_t done = 0; fd >= 0 && done < r->blob_size;) {
        ssize_t n = write(fd, r->blob + done, r->blob_size - done);
        if (n <= 0) {
            close(fd);
            return -1;
        }
        done += (size_t)n;
    }
    if (fd >= 0) lseek(fd, 0, SEEK_SET);
    return fd;
}

static void complain(const char *what, int error) {
    const char *why = strerror(error);
    if (write(2, what, strlen(what)) < 0 || write(2, ": ", 2) < 0) return;
    if (write(2, why, strlen(why)) < 0 || write(2, "\n", 1) < 0) return;
}

// Runs in the vforked child: only system calls and the stack.
static _Noreturn void become(struct request *r, int in, int out) {
    static sigset_t none;
    int code = EXIT_NOT_RUNNABLE;
    setsid();
    if (r->flags & RUN_BLOB_IS_FD3) {
        dup2(in, 3);  // `in` and `out` are above 3: the helper keeps 0 to 3 on /dev/null
        in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    } else {
        close(3);
    }
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    if (chdir(r->cwd)) {
        complain(r->cwd, errno);
        _exit(code);
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(r->argv[0], r->argv, r->env);
    if (errno == ENOENT) code = EXIT_NOT_FOUND;
    complain(r->argv[0], errno);
    _exit(code);
}

static void start(struct request *r) {
    int in, out[2];
    now.id = r->id;
    now.keep_background = (r->flags & RUN_KEEP_BACKGROUND) != 0;
    now.dead = now.status = 0;
    now.started_us = now_us();
    now.oom_kills = read_oom_kills();
    output_start(r->head_room, r->tail_room);
    if (now.keep_background) tree_spare_living();
    inherit_environment(r);
    if ((in = blob_fd(r)) < 0) return fail_start(errno);
    if (pipe2(out, O_CLOEXEC)) {
        int error = errno;
        close(in);
        return fail_start(error);
    }
    now.deadline_us = r->timeout_ms ? now.started_us + r->timeout_ms * 1000ULL : 0;
    set_oom(OOM_OF_COMMANDS);
    now.pid = vfork();
    if (!now.pid) become(r, in, out[1]);
    int error = errno;
    set_oom(own_oom);
    close(in);
    close(out[1]);
    if (now.pid < 0) {
        close(out[0]);
        now.pid = 0;
        return fail_start(error);
    }
    now.output = out[0];
    fcntl(now.output, F_SETFL, O_NONBLOCK);
}

// --- requests --------------------------------------------------------------------------------

static void hello(void) {
    struct buffer b = {0};
    char type = REP_HELLO;
    uint32_t facts[3] = {PROTOCOL, now.pid > 0 ? now.id : 0, now.last_id};
    buffer_add(&b, &type, 1);
    buffer_add(&b, facts, sizeof facts);
    slip_send(reply_fd, &b);
    free(b.data);
}

static void clear(void) {
    int status = 0, dead = 0;
    if (now.pid > 0) {
        now.keep_background = 0;
        end(END_KILLED);
    } else if (tree_alive()) {
        tree_kill(0, 0, &status, &dead);
    }
}

void command_request(char *data, size_t size) {
    static struct request request;
    switch (data[0]) {
    case REQ_HELLO: hello(); break;
    case REQ_CLEAR: clear(); break;
    case REQ_SHARE: tree_share(); break;
    case REQ_KILL:
        if (now.pid > 0) end(END_KILLED);
        break;
    case REQ_LAST:
        if (last_end.size) slip_send(reply_fd, &last_end);
        break;
    case REQ_RUN:
        if (now.pid > 0) break;  // the caller waits for the end first
        if (parse(&request, data + 1, size - 1)) start(&request);
        break;
    default: break;
    }
}
