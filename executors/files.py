"""Writing so that a crash leaves whole files, and a full disk one clear error."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, BinaryIO

from agentflow.errors import AgentflowError

if TYPE_CHECKING:
    from collections.abc import Iterator
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
