// `helper serve SECONDS`: the loop. It leaves when nobody has spoken to it for SECONDS, so that a
// container whose owner is gone ends by itself, wherever its engine stands. `helper side` is the
// same beside PID 1, under the same user; it leaves when its stream ends.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "helper.h"

enum { REQUESTS, SIGNALS, OUTPUT, FIXED, MAX_PIPES = 64 };
enum { FROZEN_US = 1000000 };  // a sleep that overran by this much: the container was paused

int reply_fd;
static int request_fd, signal_fd, pipe_count;
static uint64_t ttl_us, silent_since_us;
static struct pollfd watched[FIXED + MAX_PIPES];
static char bytes[65536];

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void die(int code) { _exit(code); }

static void take_frame(char *data, size_t size) {
    uint32_t seconds;
    silent_since_us = now_us();
    if (data[0] == REQ_TTL && size == 5) {
        memcpy(&seconds, data + 1, 4);
        ttl_us = seconds * 1000000ULL;
    } else {
        command_request(data, size);
    }
}

// What a background child still writes to its command's pipe is read and dropped: closing the pipe
// would kill the child at its next line.
static void watch_pipe(int fd) {
    if (pipe_count == MAX_PIPES) close(fd);
    else watched[FIXED + pipe_count++] = (struct pollfd){fd, POLLIN, 0};
}

static void drop_background_output(void) {
    for (int i = pipe_count - 1; i >= 0; i--) {
        struct pollfd *p = &watched[FIXED + i];
        if (!p->revents || read(p->fd, bytes, sizeof bytes) != 0) continue;
        close(p->fd);
        *p = watched[FIXED + --pipe_count];
    }
}

static void take_over(void) {
    sigset_t all, handled;
    command_prepare();
    // Undumpable: commands of the same user get no way to our memory or descriptors.
    prctl(PR_SET_DUMPABLE, 0);
    request_fd = fcntl(0, F_DUPFD_CLOEXEC, 10);
    reply_fd = fcntl(1, F_DUPFD_CLOEXEC, 10);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 4; fd++)
        if (fd != null) dup2(null, fd);
    if (null > 3) close(null);
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    signal_fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    command_leave_pipes(watch_pipe);
}

static void take_signals(void) {
    struct signalfd_siginfo info;
    while (read(signal_fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGTERM && !info.ssi_pid) die(0);  // from outside: `docker stop`
    command_reaped();
}

static void take_requests(void) {
    ssize_t n = read(request_fd, bytes, sizeof bytes);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) die(EXIT_BROKEN_STREAM);
    if (n > 0) slip_receive(bytes, (size_t)n, take_frame);
}

static int wait_ms(void) {
    int command = command_wait_ms();
    if (ttl_us == UINT64_MAX) return command;
    uint64_t silent = now_us() - silent_since_us;
    int ttl = silent >= ttl_us ? 0 : (int)((ttl_us - silent) / 1000 + 1);
    if (command_running()) return command;  // somebody waits for it
    return ttl;
}

static void check_ttl(uint64_t asked_at_us, int asked_ms) {
    uint64_t t = now_us();
    if (t - asked_at_us > (uint64_t)asked_ms * 1000 + FROZEN_US) silent_since_us = t;
    else if (t - silent_since_us >= ttl_us) die(EXIT_TTL);
}

static _Noreturn void serve(void) {
    take_over();
    silent_since_us = now_us();
    for (;;) {
        watched[REQUESTS] = (struct pollfd){request_fd, POLLIN, 0};
        watched[SIGNALS] = (struct pollfd){signal_fd, POLLIN, 0};
        watched[OUTPUT] = (struct pollfd){command_output_fd(), POLLIN, 0};
        uint64_t asked_at_us = now_us();
        int ms = wait_ms(), count = poll(watched, (nfds_t)(FIXED + pipe_count), ms);
        if (count < 0) continue;
        if (command_running()) silent_since_us = now_us();
        if (watched[OUTPUT].revents) command_readable();
        drop_background_output();
        if (watched[SIGNALS].revents) take_signals();
        command_deadline();
        if (watched[REQUESTS].revents) take_requests();
        if (count == 0 && !command_running()) check_ttl(asked_at_us, ms < 0 ? 0 : ms);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "side")) {
        // The mark of one of our containers: elsewhere kill(-1) would hit who knows what.
        if (getpid() == 1 || access("/.agentflow/helper", X_OK)) return EXIT_USAGE;
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        tree_share();
        ttl_us = UINT64_MAX;
        serve();
    }
    if (argc != 3 || strcmp(argv[1], "serve")) return files_main(argc, argv);
    if (getpid() != 1) return EXIT_USAGE;
    ttl_us = strtoull(argv[2], NULL, 10) * 1000000ULL;
    serve();
}
