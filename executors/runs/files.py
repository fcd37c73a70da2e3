"""Writing so that a crash leaves whole files, and a full disk one clear error."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO

from agentflow.errors import AgentflowError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class OutputError(AgentflowError):
    """A run's output cannot be written: a full disk, missing permission, a vanished folder."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name `path` in whatever the operating system refuses. Raises OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by rename: readers see the old or the new file, never a part.

    Raises OutputError and leaves the old file.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """The same as `write_atomic` for what is too large to be held at once. Raises OutputError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.writelines(chunks)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


class LineFile:
    """An append-only file of lines; a line that was appended survives the process's death."""

    def __init__(self, path: Path) -> None:
        """Create or open `path`. Raises OutputError."""
        self._path = path
        with writing(path):
            self._file: BinaryIO = path.open("ab", buffering=0)

    def append(self, line: bytes) -> None:
        """Append `line`, which ends in a newline. Raises OutputError and appends no part of it."""
        with writing(self._path):
            end = self._file.tell()
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(end)
                raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


class FolderLock:
    """Keeps other processes from writing into a folder; the system frees it with the process."""

    def __init__(self, folder: Path) -> None:
        """Nothing is touched before `take`."""
        self._folder = folder
        self._fd: int | None = None

    def take(self) -> None:
        """Take the lock, once. Raises ConfigError where another has it, OutputError."""
        if self._fd is not None:
            return
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise ConfigError(
                f"{self._folder} is in use by another run; give each its own"
            ) from error
        self._fd = fd

    def release(self) -> None:
        """Let others in. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
