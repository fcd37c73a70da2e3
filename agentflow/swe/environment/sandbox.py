"""What stands between a command and the machine: bubblewrap, or nothing.

Both say how a shell command becomes a program to start, and where the paths that a command sees
really are. Pure but for looking at the file system and asking bubblewrap what it can do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from agentflow.swe.environment.supervisor import SCRIPT_FD, STATUS_FD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentflow.swe.environment.supervision import Outcome

HOME = "/home/agent"
"""The home directory inside a sandbox."""

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/nix")
"""What any program needs; nobody's home, no project and no other environment is among them."""

KERNEL_PATHS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""Kernel settings that root may write even without capabilities; bubblewrap 0.8 leaves them so."""

SECRET_FILES = ("/etc/shadow", "/etc/gshadow")
"""Readable by root, which commands are when the owner is; shown as empty."""

ARGUMENT_BYTES = 100_000
"""Longer commands travel in a file: Linux takes 128 KiB in one argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One environment's directories on this machine."""

    root: Path
    """Holds all of it."""
    workdir: str
    """The path that the repository is asked for at."""

    @property
    def work(self) -> Path:
        """The repository's directory."""
        return self.root / "work"

    @property
    def tmp(self) -> Path:
        """For temporary files."""
        return self.root / "tmp"

    @property
    def home(self) -> Path:
        """The home directory."""
        return self.root / "home"

    def create(self) -> None:
        """Make them. Raises OSError."""
        for path in (self.root, self.work, self.tmp, self.home):
            path.mkdir(mode=0o700)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A shell command made into something to start."""

    argv: Sequence[str]
    cwd: str
    script: str | None
    wants_status: bool


class Sandbox(Protocol):
    """How commands are started and where their paths lead."""

    name: str
    contains_processes: bool
    """Whether a command's processes die with its supervisor, which none of them can kill."""

    def paths(self, layout: Layout) -> dict[str, Path]:
        """Real places of the directories that belong to the environment, as commands see them."""
        ...

    def workdir(self, layout: Layout) -> str:
        """Return the repository's path as commands see it."""
        ...

    def variables(self, layout: Layout) -> dict[str, str]:
        """Variables that name the environment's own directories."""
        ...

    def program(self, layout: Layout, command: str, cwd: str) -> Program:
        """Make `command` startable."""
        ...

    def failure(self, outcome: Outcome) -> str | None:
        """Say why the command was never run; None when it was."""
        ...

    def refusal(self, workdir: str) -> str | None:
        """Say why a repository cannot stand at `workdir`; None when it can."""
        ...


class NoSandbox:
    """A plain subprocess; the repository is where it really is."""

    name = "none"
    contains_processes = False

    def __init__(self, *, bash: str) -> None:
        self._bash = bash

    def paths(self, layout: Layout) -> dict[str, Path]:
        """Real paths, and the asked-for workdir for callers that say that."""
        real = {os.fspath(path): path for path in (layout.work, layout.tmp, layout.home)}
        return {layout.workdir: layout.work, **real}

    def workdir(self, layout: Layout) -> str:
        """Return the real directory."""
        return os.fspath(layout.work)

    def variables(self, layout: Layout) -> dict[str, str]:
        """Point at the real directories."""
        return {"HOME": os.fspath(layout.home), "TMPDIR": os.fspath(layout.tmp)}

    def program(self, layout: Layout, command: str, cwd: str) -> Program:
        """Start bash in the directory."""
        argv, script = shell(self._bash, command)
        top, below = locate(self.paths(layout), cwd) or (Path(cwd), "")
        return Program(argv=argv, cwd=os.fspath(top / below), script=script, wants_status=False)

    def failure(self, outcome: Outcome) -> str | None:  # noqa: ARG002  # the protocol's
        """Nothing stands before bash that could fail."""
        return None

    def refusal(self, workdir: str) -> str | None:
        """Any absolute path will do: it is only a name here."""
        return None if workdir.startswith("/") else "must be an absolute path"


class Bubblewrap:
    """Own namespaces per command, a read-only system, own workdir, /tmp and home.

    The PID namespace dies with the command. Shown are the system's folders, this Python and
    `shown`; the project's tasks, which hold their own solutions, never are.
    """

    name = "bubblewrap"
    contains_processes = True

    def __init__(
        self,
        *,
        bwrap: str,
        bash: str,
        network: bool = False,
        pids_limit: int | None = None,
        shown: Iterable[Path] = (),
        hidden: Iterable[Path] = (),
        shm_bytes: int | None = None,
    ) -> None:
        """`shm_bytes` is the size of /dev/shm; None is the kernel's, half of all memory."""
        self._bash = bash
        self._pids_limit = pids_limit
        self._shown = _outermost([*map(Path, SYSTEM_PATHS), *_python_paths(), *shown])
        self._base = [bwrap, "--unshare-all", *(["--share-net"] if network else [])]
        self._base += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        self._base += ["--json-status-fd", str(STATUS_FD), "--proc", "/proc", "--dev", "/dev"]
        self._base += [] if shm_bytes is None else ["--size", str(shm_bytes)]
        self._base += ["--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108  # inside
        for path in KERNEL_PATHS:
            self._base += ["--ro-bind-try", path, path]
        self._system = [arg for path in self._shown for arg in _show(path)]
        for path in filter(os.path.exists, SECRET_FILES):
            self._system += ["--ro-bind", os.devnull, path]
        self._read_only = ["--remount-ro", "/"]
        self._hide(hidden)

    def _hide(self, hidden: Iterable[Path]) -> None:
        tasks = Path(__file__).resolve().parents[1] / "tasks"
        for path in (tasks, *hidden):
            if any(path.is_relative_to(shown) for shown in self._shown) and path.is_dir():
                self._system += ["--tmpfs", os.fspath(path)]
                self._read_only += ["--remount-ro", os.fspath(path)]

    def paths(self, layout: Layout) -> dict[str, Path]:
        """Places of the three directories that last between commands."""
        return {"/tmp": layout.tmp, HOME: layout.home, layout.workdir: layout.work}  # noqa: S108

    def workdir(self, layout: Layout) -> str:
        """Return the path that was asked for."""
        return layout.workdir

    def variables(self, layout: Layout) -> dict[str, str]:  # noqa: ARG002  # the protocol's
        """Point at the paths inside."""
        return {"HOME": HOME, "TMPDIR": "/tmp"}  # noqa: S108

    def program(self, layout: Layout, command: str, cwd: str) -> Program:
        """Start bash in new namespaces; the workdir is mounted last, over all else."""
        paths = self.paths(layout)
        workdir = ("--bind", os.fspath(paths.pop(layout.workdir)), layout.workdir)
        own = [arg for at, path in paths.items() for arg in ("--bind", os.fspath(path), at)]
        inner, script = shell(self._bash, command)
        argv = [*self._base, *own, *self._system, *workdir, *self._read_only]
        argv += ["--chdir", cwd, "--", *self._pids(), *inner]
        return Program(argv=argv, cwd="/", script=script, wants_status=True)

    def failure(self, outcome: Outcome) -> str | None:
        """Only a command that it came to start has an exit code in its report."""
        if outcome.timed_out or '"exit-code"' in outcome.status:
            return None
        return outcome.output.decode(errors="replace").strip() or "bubblewrap was killed"

    def refusal(self, workdir: str) -> str | None:
        """The workdir may hide nothing that commands need."""
        path = PurePosixPath(workdir)
        if not path.is_absolute() or ".." in path.parts:
            return "must be an absolute path"
        for taken in (*self._shown, Path("/proc"), Path("/dev")):
            if taken.is_relative_to(path):
                return f"must not lie over {taken}"
        return None

    def _pids(self) -> list[str]:
        """Set the limit inside: outside it would count the user's other processes as well."""
        if self._pids_limit is None:
            return []
        return [self._bash, "-c", 'ulimit -u "$0" && exec "$@"', str(self._pids_limit)]


def can_limit_tmpfs(bwrap: str) -> bool:
    """Whether this bubblewrap, 0.7 or newer, knows `--size`. Blocking; it takes milliseconds."""
    told = subprocess.run([bwrap, "--help"], capture_output=True, check=False)
    return b"--size" in told.stdout + told.stderr


def shell(bash: str, command: str) -> tuple[list[str], str | None]:
    """Return the arguments that run `command` in bash, and the script they read, if any."""
    if len(os.fsencode(command)) <= ARGUMENT_BYTES:
        return [bash, "-c", command], None
    return [bash, "-c", f'eval "$(</dev/fd/{SCRIPT_FD})" {SCRIPT_FD}<&-'], command


def find_program(name: str) -> str | None:
    """Absolute path of a program, looked up as commands will."""
    return shutil.which(name, path=search_path())


def search_path() -> str:
    """PATH of every command: this Python's programs first, then the owner's own PATH."""
    inherited = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return f"{Path(sys.executable).parent}:{inherited}"


def locate(paths: dict[str, Path], path: str) -> tuple[Path, str] | None:
    """Find where `path` really is: an own directory and the rest; None if it is elsewhere."""
    pure = PurePosixPath(path)
    for at in sorted(paths, key=len, reverse=True):
        if pure.is_relative_to(at):
            rest = pure.relative_to(at)
            return paths[at], "" if rest == PurePosixPath() else os.fspath(rest)
    return None


def _python_paths() -> list[Path]:
    """Where this interpreter lives, a virtual environment's base included."""
    return [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Those that exist and lie below none of the others, in a stable order."""
    kept: list[Path] = []
    for path in sorted(set(paths), key=lambda path: len(path.parts)):
        if path.exists() and not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def _show(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", os.fspath(path.readlink()), os.fspath(path)]
    return ["--ro-bind", os.fspath(path), os.fspath(path)]
