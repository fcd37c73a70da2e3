"""Files in and out of a container, as commands of its own user.

Through the session, not through the engine's archive calls: those write as root, fail on a
read-only root and cost as much as an exec. With the helper nothing of the image is needed; the
shell's way needs coreutils.
"""

from __future__ import annotations

import base64
import errno
import shlex
import struct
from typing import TYPE_CHECKING, Protocol

from agentflow.swe.environment.docker import helper

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentflow.types import CommandResult

CHUNK = 8 << 20
"""Bytes of a file in one request: they pass through the container's memory."""
SHELL_CHUNK = 48 << 10
"""The same where they travel as base64 in one argument, which may have 128 KB."""
NO_SUCH_FILE = 2
_CREATE, _APPEND = 1, 2


class Run(Protocol):
    """Runs a program in the container; `head_bytes` of its output are kept at least."""

    async def __call__(
        self, argv: tuple[str, ...], *, stdin: bytes | None = None, head_bytes: int | None = None
    ) -> CommandResult:
        """Run to the end."""
        ...


class Files(Protocol):
    """One way to reach files."""

    async def write(self, root: str, files: Mapping[str, bytes]) -> None:
        """Make `root`, and write files below it. Raises ValueError with the reason."""
        ...

    async def read(self, root: str, below: str, *, max_bytes: int) -> bytes:
        """Read `root/below`. Raises FileNotFoundError; ValueError with the reason."""
        ...


class HelperFiles:
    """With `helper put` and `helper get`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def write(self, root: str, files: Mapping[str, bytes]) -> None:
        """See `Files.write`."""
        for batch in _batches(files):
            _check_written(root, await self._run((helper.PATH, "put", root), stdin=batch))

    async def read(self, root: str, below: str, *, max_bytes: int) -> bytes:
        """See `Files.read`."""
        data = bytearray()
        while len(data) <= max_bytes:
            want = min(CHUNK, max_bytes + 1 - len(data))
            argv = (helper.PATH, "get", root, below, str(len(data)), str(want))
            part = _check_read(below, await self._run(argv, head_bytes=want))
            data += part
            if len(part) < want:
                return bytes(data)
        raise ValueError(f"{below}: larger than {max_bytes} bytes")


def _batches(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield `helper put`'s records in requests of about CHUNK bytes; at least one."""
    batch: list[bytes] = []
    size = 0
    for path, data in files.items():
        for at in range(0, max(1, len(data)), CHUNK):
            part = data[at : at + CHUNK]
            name = path.encode("utf-8", "surrogateescape")
            header = struct.pack("<III", len(name), _APPEND if at else _CREATE, len(part))
            batch += [header, name, part]
            size += len(part)
            if size >= CHUNK:
                yield b"".join(batch)
                batch, size = [], 0
    yield b"".join(batch)


WALK = """
walk() {  # refuses links on the way to $1; sets d to the last folder, n to the name in it
  d=. r=$1
  while [[ $r == */* ]]; do
    d=$d/${r%%/*} r=${r#*/}
    [[ -L $d ]] && { echo "$1: $d is a link"; exit 5; }
    [[ $2 && ! -d $d ]] && { mkdir "$d" || exit 5; }
  done
  n=$d/$r
}
"""
PUT = """
umask 022
mkdir -p -- "$1" && cd -- "$1" && [ -w . ] || { echo "$1: not writable"; exit 5; }
[ $# = 1 ] && exit 0
walk "$2" make
if [ "$3" = new ]; then
  [ -d "$n" ] && [ ! -L "$n" ] && { echo "$2: is a folder"; exit 5; }
  { [ -f "$n" ] && [ ! -L "$n" ] && [ -w "$n" ]; } || rm -f -- "$n"
  : > "$n" || exit 5
fi
printf %s "$4" | base64 -d >> "$n" || exit 5
"""
GET = """
cd -- "$1" || exit 2
walk "$2" ""
[ -L "$n" ] && { echo "$2: is a link"; exit 5; }
[ -e "$n" ] || { echo "$2: no such file"; exit 2; }
[ -f "$n" ] || { echo "$2: not a regular file"; exit 3; }
[ -r "$n" ] || { echo "$2: not readable"; exit 5; }
head -c "$3" -- "$n"
"""


class ShellFiles:
    """With bash and coreutils, where there is no helper."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def write(self, root: str, files: Mapping[str, bytes]) -> None:
        """See `Files.write`."""
        _check_written(root, await self._script(PUT, root))
        for path, data in files.items():
            for at in range(0, max(1, len(data)), SHELL_CHUNK):
                part = base64.b64encode(data[at : at + SHELL_CHUNK]).decode()
                mode = "more" if at else "new"
                _check_written(root, await self._script(PUT, root, path, mode, part))

    async def read(self, root: str, below: str, *, max_bytes: int) -> bytes:
        """See `Files.read`."""
        limit = max_bytes + 1
        data = _check_read(below, await self._script(GET, root, below, str(limit), keep=limit))
        if len(data) > max_bytes:
            raise ValueError(f"{below}: larger than {max_bytes} bytes")
        return data

    async def _script(self, text: str, *arguments: str, keep: int | None = None) -> CommandResult:
        prelude = f"set -- {' '.join(map(shlex.quote, arguments))}\n"
        return await self._run(("/bin/bash", "-c", prelude + WALK + text), head_bytes=keep)


def _check_written(root: str, result: CommandResult) -> None:
    if result.exit_code != 0:
        raise ValueError(f"cannot write files below {root}: {result.text.strip()}")


def _check_read(path: str, result: CommandResult) -> bytes:
    if result.exit_code == NO_SUCH_FILE:
        raise FileNotFoundError(errno.ENOENT, "no such file in the environment", path)
    if result.exit_code != 0:
        raise ValueError(result.text.strip() or f"{path}: cannot be read")
    return result.output


def require_below(path: str) -> None:
    """Refuse a path that could lead out of its root, with ValueError."""
    parts = path.split("/")
    if path.startswith("/") or {"", ".", ".."} & set(parts) or "\0" in path:
        raise ValueError(f"file {path!r}: must be a path below the root, without `..` or `//`")
