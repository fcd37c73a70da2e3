"""Scratch: the directories that environments live in, and their certain removal.

A run directory belongs to one builder, which holds a lock on it for as long as its process
lives; the kernel lets go of the lock at any death. A sweep therefore removes exactly the run
directories whose lock can be had. Blocking: called off the loop.

Standard library only, for it is a program as well: `python -I -S scratch.py DIRECTORY` removes the
run directory of a dead owner.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

PREFIX = "agentflow-local-"
LOCK = "owner.lock"
SWEEP_LOCK = ".agentflow-local.lock"
HELD = "held"
"""In a run directory whose environments outlive their owner: until when, in seconds since the
epoch, and a file without which nobody can come for them."""


def default_scratch() -> Path:
    """Return a directory of this user's own below the system's temporary directory."""
    return Path(tempfile.gettempdir()) / f"agentflow-{os.getuid()}"


class RunDirectory:
    """One builder's directory, locked while it lives."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock
        self.held_until = 0.0
        """Seconds since the epoch."""

    @classmethod
    def create(
        cls, scratch: Path, *, before: Callable[[Path], object] = lambda _: None
    ) -> RunDirectory:
        """Sweep `scratch`, then make a new run directory in it. Raises OSError.

        `before` is called with each directory that the sweep is about to remove.
        """
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        if scratch == default_scratch() and scratch.stat().st_uid != os.getuid():
            raise PermissionError(f"{scratch} belongs to another user")
        with _locked(scratch / SWEEP_LOCK):
            sweep(scratch, before=before)
            path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=scratch))
            try:
                lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                path.rmdir()
                raise
            fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    @classmethod
    def adopt(cls, path: Path) -> RunDirectory:
        """Take over the run directory of a dead owner. Raises OSError: it is gone, or has one."""
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        return cls(path, lock)

    def hold(self, when: float, journal: str) -> None:
        """Let sweeps spare it until `when`, while `journal` exists. Raises OSError."""
        new = self.path / f".{HELD}"
        new.write_text(f"{when!r}\n{journal}")
        new.replace(self.path / HELD)
        self.held_until = when

    def remove(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        remove_tree(self.path)


def sweep(scratch: Path, *, before: Callable[[Path], object]) -> None:
    """Remove the run directories of dead owners; the caller holds the sweep lock."""
    for path in scratch.glob(f"{PREFIX}*"):
        if path.is_dir() and not path.is_symlink() and _is_ownerless(path):
            log.info("removing %s: its owner is dead", path)
            before(path)
            remove_tree(path)


def remove_ownerless(path: Path) -> None:
    """Remove a run directory unless it is held, or somebody has its lock."""
    with suppress(OSError), _locked(path / LOCK, wait=False):
        if not is_held(path):
            remove_tree(path)


def is_held(path: Path) -> bool:
    """Whether somebody may still come for what a dead owner left."""
    try:
        until, _, journal = (path / HELD).read_text().partition("\n")
        return time.time() < float(until) and Path(journal).exists()
    except (OSError, ValueError):
        return False


def sweep_scratch(scratch: Path, before: Callable[[Path], object]) -> None:
    """Sweep, alone on this machine. Raises OSError."""
    with _locked(scratch / SWEEP_LOCK):
        sweep(scratch, before=before)


def remove_tree(path: Path) -> None:
    """Remove a directory of any depth, with any modes, following no link; tell what stays.

    Missing is fine. Nothing may run in it any more.
    """
    try:
        if path.is_symlink():
            path.unlink()
        else:
            _remove_directory(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("cannot remove all of %s: %s", path, error)


def _is_ownerless(path: Path) -> bool:
    try:
        with _locked(path / LOCK, wait=False):
            return not is_held(path)
    except FileNotFoundError:  # died between making the directory and its lock
        return True
    except OSError:
        return False


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, which is made only where it is waited for."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if wait else 0)
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)


def _remove_directory(path: Path) -> None:
    with suppress(OSError, RecursionError):  # read-only parts, too deep for it
        shutil.rmtree(path)
        return
    _empty(path)
    path.rmdir()


def _empty(path: Path) -> None:
    """Empty it in constant stack and descriptors.

    Subdirectories are moved up to the top before they are emptied.
    """
    path.chmod(0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        serial = 0
        todo = _unlink_files(top)
        while todo:
            name = todo.pop()
            inner = _open_writable(name, top)
            try:
                for below in _unlink_files(inner):
                    serial += 1
                    moved = f".removing-{path.name}-{serial}"
                    os.chmod(below, 0o700, dir_fd=inner)
                    os.rename(below, moved, src_dir_fd=inner, dst_dir_fd=top)
                    todo.append(moved)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _open_writable(name: str, parent: int) -> int:
    os.chmod(name, 0o700, dir_fd=parent)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent)


def _unlink_files(directory: int) -> list[str]:
    """Remove what is no directory; return the names of the directories."""
    directories = []
    for name in os.listdir(directory):
        mode = os.lstat(name, dir_fd=directory).st_mode
        if stat.S_ISDIR(mode):
            directories.append(name)
        else:
            os.unlink(name, dir_fd=directory)
    return directories


if __name__ == "__main__":
    remove_ownerless(Path(sys.argv[1]))
