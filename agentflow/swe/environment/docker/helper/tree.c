// What runs besides the helper, and how it ends.
//
// As PID 1 the helper inherits every orphan, so "any child left" means "anything left". kill(-1)
// reaches every process at one instant: the kernel signals under the lock that fork needs, and a
// process with a pending SIGKILL cannot fork. Only where something must be spared (what an earlier
// command left and may keep, what runs under a side helper) are our own descendants looked for one by one, stopped first (which frees no pid slot, so a fork bomb stalls) and killed
// when nothing new appears.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helper.h"

enum { MAX_PROCESSES = 8192, PATIENCE_US = 3000000, MAX_STOP_ROUNDS = 200 };

struct process { pid_t pid, parent; enum { UNKNOWN, DOOMED, SPARED } fate; };

static pid_t spared[MAX_PROCESSES], stopped[MAX_PROCESSES];
static int spared_count, shared;
static struct process table[MAX_PROCESSES];

void tree_share(void) { shared = 1; }

int tree_reap(pid_t child, int *status) {
    int found = 0, s;
    pid_t pid;
    while ((pid = waitpid(-1, &s, WNOHANG)) > 0)
        if (pid == child) *status = s, found = 1;
    return found;
}

int tree_alive(void) {
    siginfo_t info = {0};
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static int read_process(const char *name, struct process *p) {
    char text[512], *after_name;
    snprintf(text, sizeof text, "/proc/%s/stat", name);
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    after_name = strrchr(text, ')');  // the name may hold any byte, the rest may not
    if (!after_name || after_name[2] == 'Z' || after_name[2] == 'X') return 0;
    *p = (struct process){.pid = (pid_t)atoi(name), .parent = (pid_t)atoi(after_name + 4)};
    return 1;
}

static int read_table(void) {
    int n = 0;
    DIR *proc = opendir("/proc");
    if (!proc) return -1;
    for (struct dirent *e; n < MAX_PROCESSES && (e = readdir(proc));)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && read_process(e->d_name, &table[n])) n++;
    closedir(proc);
    return n;
}

static int is_spared(pid_t pid) {
    for (int i = 0; i < spared_count; i++)
        if (spared[i] == pid) return 1;
    return 0;
}

void tree_spare_living(void) {
    spared_count = 0;
    if (!tree_alive()) return;
    int n = read_table();
    for (int i = 0; i < n; i++)
        if (table[i].parent == getpid()) spared[spared_count++] = table[i].pid;
}

// Fills the front of the table with the living descendants that are not spared; returns how many.
static int doomed(void) {
    int n = read_table(), found = 0, changed = 1;
    for (int i = 0; i < n; i++)
        if (table[i].parent == getpid()) table[i].fate = is_spared(table[i].pid) ? SPARED : DOOMED;
    while (changed) {
        changed = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; table[i].fate == UNKNOWN && j < n; j++)
                if (table[j].fate != UNKNOWN && table[j].pid == table[i].parent)
                    table[i].fate = table[j].fate, changed = 1;
    }
    for (int i = 0; i < n; i++)
        if (table[i].fate == DOOMED) table[found++] = table[i];
    return n < 0 ? -1 : found;
}

static int stop_all(void) {
    int count = 0, fresh = 1;
    for (int round = 0; fresh && round < MAX_STOP_ROUNDS; round++) {
        int n = doomed();
        fresh = 0;
        for (int i = 0; i < n; i++) {
            int k = 0;
            while (k < count && stopped[k] != table[i].pid) k++;
            if (k < count || count == MAX_PROCESSES) continue;
            kill(table[i].pid, SIGSTOP);
            stopped[count++] = table[i].pid;
            fresh = 1;
        }
    }
    return count;
}

static int kill_all_but_spared(pid_t child, int *status, int *child_dead) {
    for (uint64_t start = now_us(); now_us() - start < PATIENCE_US;) {
        int count = stop_all();
        for (int i = 0; i < count; i++) kill(stopped[i], SIGKILL);
        for (int i = 0; i < 20; i++) {
            *child_dead |= tree_reap(child, status);
            if (doomed() == 0) return 0;
            poll(NULL, 0, 1);
        }
    }
    return 1;
}

static int kill_everything(pid_t child, int *status, int *child_dead) {
    for (uint64_t start = now_us(); now_us() - start < PATIENCE_US;) {
        kill(-1, SIGKILL);
        for (int i = 0; i < 40; i++) {
            *child_dead |= tree_reap(child, status);
            if (!tree_alive()) return 0;
            usleep(i < 10 ? 100 : 1000);
        }
    }
    return 1;
}

int tree_kill(int keep_spared, pid_t child, int *status, int *child_dead) {
    int left = 1;
    if (!keep_spared) spared_count = 0;
    if (spared_count || shared) left = kill_all_but_spared(child, status, child_dead);
    if (left) left = kill_everything(child, status, child_dead);
    return left;
}
