// `helper put` writes the files that come on stdin; `helper get` prints part of a file. They run as
// commands: as the container's user, in the command's tree, killed at its deadline. They need
// nothing of the image, so they work whatever the agent did to it.
//
// put ROOT: makes ROOT, then takes records of u32 path size, u32 kind, u32 data size, path below
// ROOT, data. Kind 1 is a new file, 2 more of one. get ROOT PATH OFFSET LIMIT: up to LIMIT
// bytes from OFFSET. Neither follows a link below ROOT.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper.h"

enum { CREATE = 1, APPEND = 2 };
enum { NO_SUCH_FILE = 2, NOT_REGULAR = 3, FAILED = 5 };

static int complain(const char *path, int code) {
    dprintf(2, "%s: %s\n", path, strerror(errno));
    return code;
}

static int read_exactly(void *p, size_t n) {
    for (char *at = p; n;) {
        ssize_t k = read(0, at, n);
        if (k <= 0) return 0;
        at += k;
        n -= (size_t)k;
    }
    return 1;
}

// Opens the folder that holds `path` below the current one, making what is missing if `make`; no
// link on the way is followed.
static int open_parent(const char *path, const char **name, int make) {
    int at = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (const char *slash; at >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        char *part = strndup(path, (size_t)(slash - path));
        if (!part) return -1;
        if (make && mkdirat(at, part, 0777) && errno != EEXIST) return -1;
        int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int error = errno;
        close(at);
        free(part);
        errno = error;
        at = next;
    }
    *name = path;
    return at;
}

static int open_new(int folder, const char *name) {
    struct stat s;
    int fd = -1;
    if (!fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) && S_ISREG(s.st_mode))  // keeps its mode
        fd = openat(folder, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) return fd;
    unlinkat(folder, name, 0);  // a link, a pipe or a read-only file gives way
    return openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

static int open_target(const char *path, uint32_t kind) {
    const char *name;
    int folder = open_parent(path, &name, 1);
    if (folder < 0) return -1;
    int fd = kind == CREATE ? open_new(folder, name)
                            : openat(folder, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    int error = errno;
    close(folder);
    errno = error;
    return fd;
}

static int make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = 0;
        int failed = mkdir(path, 0777) && errno != EEXIST;
        if (slash) *slash = '/';
        if (failed) return 0;
        if (!slash) return 1;
    }
}

static int copy_in(int fd, uint32_t size) {
    static char part[65536];
    while (size) {
        uint32_t n = size < sizeof part ? size : (uint32_t)sizeof part;
        if (!read_exactly(part, n)) return 0;
        for (uint32_t done = 0; done < n;) {
            ssize_t k = write(fd, part + done, n - done);
            if (k <= 0) return 0;
            done += (uint32_t)k;
        }
        size -= n;
    }
    return 1;
}

static int put(char *root) {
    uint32_t header[3];
    if (!make_folders(root) || chdir(root) || access(".", W_OK)) return complain(root, FAILED);
    while (read_exactly(header, sizeof header)) {
        char *path = calloc(1, header[0] + 1);
        if (!path || !read_exactly(path, header[0])) return FAILED;
        int fd = open_target(path, header[1]);
        if (fd < 0 || !copy_in(fd, header[2]) || close(fd)) return complain(path, FAILED);
        free(path);
    }
    return 0;
}

static int get(const char *root, const char *path, off_t offset, long long limit) {
    static char part[65536];
    struct stat s;
    const char *name;
    if (chdir(root)) return complain(root, errno == ENOENT ? NO_SUCH_FILE : FAILED);
    int folder = open_parent(path, &name, 0);
    int fd = folder < 0 ? -1
                        : openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return complain(path, errno == ENOENT ? NO_SUCH_FILE : FAILED);
    if (fstat(fd, &s) || !S_ISREG(s.st_mode)) {
        dprintf(2, "%s: not a regular file\n", path);
        return NOT_REGULAR;
    }
    if (lseek(fd, offset, SEEK_SET) < 0) return complain(path, FAILED);
    while (limit > 0) {
        ssize_t n = read(fd, part, limit < (long long)sizeof part ? (size_t)limit : sizeof part);
        if (n < 0) return complain(path, FAILED);
        if (n == 0) break;
        limit -= n;
        for (ssize_t done = 0; done < n;) {
            ssize_t k = write(1, part + done, (size_t)(n - done));
            if (k <= 0) return FAILED;
            done += k;
        }
    }
    return 0;
}

int files_main(int argc, char **argv) {
    umask(022);
    if (argc == 3 && !strcmp(argv[1], "put")) return put(argv[2]);
    if (argc == 6 && !strcmp(argv[1], "get"))
        return get(argv[2], argv[3], (off_t)atoll(argv[4]), atoll(argv[5]));
    dprintf(2, "usage: helper serve SECONDS | put ROOT | get ROOT PATH OFFSET LIMIT\n");
    return EXIT_USAGE;
}
