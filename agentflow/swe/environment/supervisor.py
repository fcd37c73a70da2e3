"""The process that runs commands and leaves none of their processes behind.

A program of its own, standard library only: `python -I -S supervisor.py FD DIRECTORY`, where FD
is a seqpacket socket to the owner and DIRECTORY the owner's run directory, which is removed if the
owner dies without a farewell. Each message carries one socket; a forked worker reads a
request from that socket, runs it, and answers with one frame. Never trusts the command: nothing
of it can reach those sockets.

Invariants. A worker is a child subreaper, so every process of its command, double-forked or in a
session of its own, stays below it; it answers only when it has no child left, which proves that
the whole tree is dead. It kills the tree when the command ends, at the deadline, when the owner
hangs up and when the owner dies. Memory is bounded at any output size.

Frames: 4 bytes big-endian length and that much JSON. An answer begins with the worker's pid in 4
bytes, sent at once; the output's bytes follow its frame.

One file, although it holds two classes' worth of matter: isolated from `sys.path` it cannot
import a neighbour.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

LENGTH = struct.Struct(">I")

SCRIPT_FD = 63
"""Where a command too long for an argument is found; high, out of the way of scripts."""

STATUS_FD = 62
"""Where a sandbox reports what happened to it."""

CHUNK_BYTES = 1 << 20
"""Read size and wished pipe size; 1 MiB is what Linux grants without privilege."""

STATUS_BYTES = 65536
"""No sandbox has more to say; a pipe's default capacity."""

KILL_PATIENCE_S = 10.0
"""A killed process that is still there after that hangs in the kernel."""

CANNOT_RUN = 126
"""The shell's exit code for a command that is there and cannot be run."""

FAREWELL = b"."
"""The owner's last message; a hang-up without one is its death."""

SCRATCH_PROGRAM = Path(__file__).with_name("scratch.py")
"""Removes a run directory whose owner is dead."""

PR_SET_CHILD_SUBREAPER = 36


class HeadAndTail:
    """The first and the last bytes of a stream, and how many were between."""

    def __init__(self, *, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes; holds at most head + 2 x tail + one chunk."""
        self._seen += len(chunk)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def result(self) -> tuple[bytes, int]:
        """Kept bytes, and the number of dropped ones."""
        del self._tail[: max(0, len(self._tail) - self._tail_bytes)]
        kept = bytes(self._head) + bytes(self._tail)
        return kept, self._seen - len(kept)


# --- process trees ----------------------------------------------------------------------------


def become_subreaper() -> None:
    """Make orphans below this process its children. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def parents() -> dict[int, int]:
    """Parent of every process that /proc shows."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # names alone are needed
        if entry.isdigit():
            with contextlib.suppress(OSError), Path(f"/proc/{entry}/stat").open("rb") as file:
                # The name in brackets may hold anything; what follows its last bracket is plain.
                found[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def children(pid: int) -> list[int]:
    """Children of a process, as the kernel lists them for each of its threads.

    Takes microseconds where a look at all of /proc takes milliseconds, in which a process that
    forks and exits without end is gone again.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):  # gone
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # names alone are needed
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123  # speed
                found += map(int, file.read().split())
    return found


def children_by_parent() -> dict[int, list[int]]:
    """The same for all processes, for kernels without those lists."""
    found: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        found.setdefault(parent, []).append(pid)
    return found


def descendants(spare: set[int]) -> set[int]:
    """Processes below this one, those of `spare` and below them left out."""
    me = os.getpid()
    listed = Path(f"/proc/{me}/task/{me}/children").exists()
    table = {} if listed else children_by_parent()
    found: set[int] = set()
    todo = [me]
    while todo:
        pid = todo.pop()
        new = set(children(pid) if listed else table.get(pid, ())) - spare - found
        found |= new
        todo += new
    return found


def signal_all(pids: set[int], number: int) -> None:
    """Send a signal; those that are gone, or are not ours to signal, are passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_descendants(reap: Any, *, spare: set[int]) -> bool:
    """Kill everything below this process but `spare`; False if something survives.

    Stops the tree until nothing new appears, then kills: a fork bomb stalls, because stopping
    frees no process slot. `reap()` says whether children are left.
    """
    give_up = time.monotonic() + KILL_PATIENCE_S
    while reap():
        stopped: set[int] = set()
        while (new := descendants(spare) - stopped) and time.monotonic() < give_up:
            signal_all(new, signal.SIGSTOP)
            stopped |= new
        signal_all(stopped, signal.SIGKILL)
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.001)
    return True


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def drain(fd: int) -> bytes:
    """Read what is there, at most one chunk, of a non-blocking descriptor; b"" for nothing."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return b""


# --- one command ------------------------------------------------------------------------------


class Worker:
    """Runs one request to its end."""

    def __init__(self, request: dict[str, Any], link: socket.socket, owner: int | None) -> None:
        self._request = request
        self._link = link
        self._owner = owner
        self._kept = HeadAndTail(head_bytes=request["head_bytes"], tail_bytes=request["tail_bytes"])
        self._main: int = 0
        self._wait_status: int | None = None
        self._timed_out = False

    def run(self) -> tuple[dict[str, Any], bytes]:
        """Run the command, kill what it left, and describe its end."""
        begin = time.monotonic()
        wake = wake_on_child()
        output, status = self._spawn()
        self._attend(output, wake=wake, deadline=begin + self._request["timeout_s"])
        dead = kill_descendants(self._reap, spare=set())
        while chunk := drain(output):
            self._kept.add(chunk)
        kept, dropped = self._kept.result()
        answer = {
            "exit_code": self._exit_code(),
            "timed_out": self._timed_out,
            "tree_dead": dead,
            "dropped_bytes": dropped,
            "duration_s": time.monotonic() - begin,
            "status": "" if status is None else drain(status)[:STATUS_BYTES].decode(),
        }
        return answer, kept

    def _spawn(self) -> tuple[int, int | None]:
        """Fork the command; return the read ends of its output and of its sandbox's status."""
        output, output_in = os.pipe()
        os.set_blocking(output, False)
        with contextlib.suppress(OSError):  # a user's share of pipe memory may be used up
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
        inherited: dict[int, tuple[int, ...]] = {output_in: (1, 2)}
        script = self._script()
        if script is not None:
            inherited[script] = (SCRIPT_FD,)
        status = None
        if self._request["wants_status"]:
            status, status_in = os.pipe()
            os.set_blocking(status, False)
            inherited[status_in] = (STATUS_FD,)
        self._main = os.fork()
        if self._main == 0:
            become_command(self._request, inherited)
        for fd in inherited:
            os.close(fd)
        return output, status

    def _script(self) -> int | None:
        text = self._request["script"]
        if text is None:
            return None
        fd = os.memfd_create("script")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(os.fsencode(text))
        return fd

    def _attend(self, output: int, *, wake: int, deadline: float) -> None:
        """Read output until the command ends, its time is up or nobody waits for it."""
        poller = select.poll()
        for fd in (output, wake, self._link.fileno(), self._owner):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        while self._wait_status is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self._timed_out = True
                return
            ready = {fd for fd, _ in poller.poll(min(left, 3600.0) * 1000)}
            if self._link.fileno() in ready or self._owner in ready:
                return
            if output in ready:
                chunk = drain(output)
                self._kept.add(chunk)
                if not chunk:  # the command closed its output and lives on
                    poller.unregister(output)
            if wake in ready:
                drain(wake)
                self._reap()

    def _reap(self) -> bool:
        """Take dead children; True while others are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._wait_status = status

    def _exit_code(self) -> int:
        if self._timed_out or self._wait_status is None:
            return -1
        code = os.waitstatus_to_exitcode(self._wait_status)
        return code if code >= 0 else 128 - code


def become_command(request: dict[str, Any], inherited: dict[int, tuple[int, ...]]) -> NoReturn:
    """In a forked child: turn into the command, or say on its output why not, and exit."""
    code = CANNOT_RUN
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):  # the C library's own
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(0o022)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for source, targets in inherited.items():
            for target in targets:
                os.dup2(source, target)
        os.closerange(3, STATUS_FD)
        os.closerange(SCRIPT_FD + 1, os.sysconf("SC_OPEN_MAX"))
        for name, value in request["limits"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # noqa: PLW2901
            resource.setrlimit(kind, (value, value))
        os.chdir(request["cwd"])
        os.execve(request["argv"][0], request["argv"], request["env"])  # noqa: S606  # it is the shell
    except (OSError, ValueError) as error:
        os.write(2, f"cannot run the command: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def receive(link: socket.socket) -> dict[str, Any] | None:
    """Read one request; None if the owner hung up before it was whole."""
    with link.makefile("rb") as file:
        head = file.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack(head)
        body = file.read(size)
        request: dict[str, Any] | None = json.loads(body) if len(body) == size else None
        return request


def work(link: socket.socket, owner: int | None) -> None:
    """Serve the one request of `link`."""
    become_subreaper()
    link.sendall(LENGTH.pack(os.getpid()))
    request = receive(link)
    if request is None:
        return
    answer, output = Worker(request, link, owner).run()
    head = json.dumps(answer).encode()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it
        link.sendall(LENGTH.pack(len(head)) + head + output)


# --- the parent of workers --------------------------------------------------------------------


class Nursery:
    """Forks a worker per request, and cleans up after one that was killed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        control.set_inheritable(False)
        self._owner = open_owner()
        self._workers: set[int] = set()
        self._orphaned = False
        self._dismissed = False

    def serve(self) -> bool:
        """Run until the owner hangs up or dies, then see every worker out; True if it died."""
        become_subreaper()
        wake = wake_on_child()
        self._accept_all(wake)
        give_up = time.monotonic() + KILL_PATIENCE_S
        while self._take_dead() and (left := give_up - time.monotonic()) > 0:
            select.select([wake], [], [], left)
            drain(wake)
        kill_descendants(self._take_dead, spare=set())
        return not self._dismissed and self._owner_is_dead()

    def _owner_is_dead(self) -> bool:
        """Whether it is, or soon will be: a dying process hangs up before it is dead."""
        if self._owner is None:
            return False
        return bool(select.select([self._owner], [], [], KILL_PATIENCE_S)[0])

    def _accept_all(self, wake: int) -> None:
        poller = select.poll()
        for fd in (self._control.fileno(), wake, self._owner):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if wake in ready:
                drain(wake)
                kill_descendants(self._orphans, spare=self._workers)
            if self._owner in ready:
                return
            if self._control.fileno() in ready and not self._accept():
                return

    def _take_dead(self) -> bool:
        """Take dead children, noting a worker that was killed; True while others are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._orphaned |= pid in self._workers and os.WIFSIGNALED(status)
            self._workers.discard(pid)

    def _orphans(self) -> bool:
        """Take dead children; True while a killed worker's are left."""
        left = self._take_dead()
        if self._orphaned:
            self._orphaned = left and bool(descendants(self._workers))
        return self._orphaned

    def _accept(self) -> bool:
        """Fork a worker for the next request; False when there will be none."""
        message, fds, _, _ = socket.recv_fds(self._control, 1, 1)
        if not fds:
            self._dismissed = message == FAREWELL
            return False
        os.set_inheritable(fds[0], False)
        pid = os.fork()
        if pid == 0:
            self._become_worker(fds[0])
        self._workers.add(pid)
        os.close(fds[0])
        return True

    def _become_worker(self, fd: int) -> NoReturn:
        try:
            self._control.close()
            work(socket.socket(fileno=fd), self._owner)
        except BaseException:  # noqa: BLE001  # the end of a process: print and go
            traceback.print_exc()
        finally:
            os._exit(0)


def open_owner() -> int | None:
    """Return a descriptor that becomes readable when the parent dies; None on an old kernel."""
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):
        return None


def main(control: str, directory: str) -> None:
    """Serve, then become the program that removes what a dead owner left."""
    if Nursery(socket.socket(fileno=int(control))).serve():
        python = [sys.executable, "-I", "-S", "-X", "utf8"]
        os.execv(sys.executable, [*python, os.fspath(SCRATCH_PROGRAM), directory])  # noqa: S606  # this Python


if __name__ == "__main__":
    main(*sys.argv[1:])
