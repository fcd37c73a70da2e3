"""Files below one directory, whatever has been planted there.

Walks from a directory descriptor without following a single symbolic link, so that neither a
link to `/etc` nor a swap in mid-walk leads out; opens only regular files, so that no FIFO or
device blocks. Blocking: called off the loop.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

REFUSED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG})
"""What the kernel answers where a link, a file or a directory stands in the way."""


def write_files(top: str, files: Mapping[str, bytes], *, below: str = "") -> None:
    """Write `files` below `top`/`below`, making directories; replaces, never writes through.

    A file that is replaced keeps its mode. Raises ValueError for a path that leads out or
    through a link, other OSErrors (full disk) as they come.
    """
    for path, data in files.items():
        parts = _parts(f"{below}/{path}" if below else path, given=path)
        with _refusals_named(path), _walk(top, parts[:-1], make=True) as directory:
            _replace(directory, parts[-1], data)


def read_file(top: str, path: str, *, max_bytes: int) -> bytes:
    """Read a regular file below `top`.

    Raises FileNotFoundError; ValueError for anything but a regular file that is reached
    without links, or one of more than `max_bytes`.
    """
    parts = _parts(path, given=path)
    with _refusals_named(path), _walk(top, parts[:-1], make=False) as directory:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(parts[-1], flags, dir_fd=directory)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError(f"{path}: not a regular file")
            data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: larger than {max_bytes} bytes")
    return data


def _parts(path: str, *, given: str) -> tuple[str, ...]:
    """Split a relative path, refusing what is empty, absolute or climbs."""
    parts = PurePosixPath(path).parts
    if not parts or "\0" in path or given.startswith("/") or {"..", "/"} & set(parts):
        raise ValueError(f"{given!r}: must be a relative path that stays below its root")
    return parts


@contextmanager
def _refusals_named(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in REFUSED:
            raise ValueError(
                f"{path}: a link, a file or a directory stands in its way ({error.strerror})"
            ) from error
        raise


@contextmanager
def _walk(top: str, parts: tuple[str, ...], *, make: bool) -> Iterator[int]:
    """Open the directory `parts` below `top`."""
    fd = os.open(top, DIRECTORY_FLAGS)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
            below = os.open(part, DIRECTORY_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _replace(directory: int, name: str, data: bytes) -> None:
    """Put a new file in the place of whatever file or link is there."""
    mode = 0o644
    with suppress(FileNotFoundError):
        there = os.lstat(name, dir_fd=directory).st_mode
        if stat.S_ISREG(there):
            mode = stat.S_IMODE(there) & 0o777
    temporary = f".agentflow-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
