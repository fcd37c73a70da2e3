"""The task's repository inside an environment: how it gets there, and how the patch gets out.

The patch is the difference between the bootstrapped tree and the files as they are, taken with a
git directory of our own that is made for the purpose. Nothing that the agent did to `.git` — a
commit, another HEAD, its configuration, its hooks, its removal — has any part in it, nor have
`.gitattributes`, diff drivers, or repositories that it made inside the tree.
"""

from __future__ import annotations

import errno
import secrets
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.errors import BootstrapFailed, DiffFailed
from agentflow.swe.tasks.gitwire import AS_BINARY, DIFF_FLAGS, EXACT_ATTRIBUTES

if TYPE_CHECKING:
    from agentflow.protocols import ContainerEnv
    from agentflow.types import CommandResult

_IGNORED = "__pycache__/\n*.pyc\n.pytest_cache/\n/.agentflow-*\n"
"""What running programs leaves behind; never part of a patch unless the repository has it."""

GIT = """
set -eu
PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"
g() {
  env -i PATH="$PATH" HOME=/nonexistent LC_ALL=C TMPDIR="${TMPDIR:-/tmp}" \\
    GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 \\
    GIT_LITERAL_PATHSPECS=1 \\
    GIT_AUTHOR_NAME=agentflow GIT_AUTHOR_EMAIL=agentflow@localhost \\
    GIT_AUTHOR_DATE='946684800 +0000' GIT_COMMITTER_NAME=agentflow \\
    GIT_COMMITTER_EMAIL=agentflow@localhost GIT_COMMITTER_DATE='946684800 +0000' \\
    git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false \\
    -c core.fileMode=true -c core.autocrlf=false -c core.quotePath=true -c gc.auto=0 \\
    -c core.symlinks=true -c core.protectNTFS=false -c advice.addEmbeddedRepo=false "$@"
}
"""
"""`g` is git without anybody's configuration, environment, hooks or attributes."""

_START = """
command -v git >/dev/null || {{ echo 'git is not installed in the environment'; exit 90; }}
g init -q --template= .
g symbolic-ref HEAD refs/heads/main
mkdir -p .git/info
printf %s {attributes} > .git/info/attributes
printf %s {ignored} > .git/info/exclude
g config user.name agent
g config user.email agent@localhost
g config core.hooksPath /dev/null
g config core.fileMode true
g config core.autocrlf false
g config gc.auto 0
[ -O . ] || git config --global --add safe.directory "$PWD"
"""

_FROM_STREAM = """
[ -z "$(ls -A . | grep -v '^\\.agentflow-' | head -n 1)" ] || {{
  echo "the workdir $PWD is not empty, but the task brings its own repository"; exit 91; }}
{start}
g fast-import --quiet --force --done < {folder}/base
rm -rf {folder}
g reset -q --hard refs/heads/main
"""

_FROM_IMAGE = """
[ -n "$(ls -A .)" ] || {{
  echo "the workdir $PWD is empty: the task has no source and its image no repository"; exit 91; }}
rm -rf .git
{start}
g add -A
g commit -q --allow-empty --no-verify -m 'Initial state'
"""

_DIFF = """
mkdir -p {folder}
find . -mindepth 2 -name .git -not -path './{folder}/*' -prune -exec rm -rf {{}} + || true
own() {{ g --git-dir={folder}/git --work-tree=. "$@"; }}
own init -q --template=
mkdir -p {folder}/git/info
printf %s {attributes} > {folder}/git/info/attributes
printf %s {ignored} > {folder}/git/info/exclude
{base}
own read-tree "$base"
added=$(own add -A --ignore-errors . 2>&1) || case "$added" in
  *"No space left on device"*|*"Disk quota exceeded"*) echo "$added"; exit 94;;
esac
own diff --cached {flags} "$base" > {folder}/patch
"""

_BASE_FROM_STREAM = """
own fast-import --quiet --force --done < {folder}/base
base=refs/heads/main"""

_BASE_FROM_IMAGE = """
mkdir -p {folder}/git/objects/info
printf '%s\\n' "$PWD/.git/objects" > {folder}/git/objects/info/alternates
base={commit}"""


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_SAYS_NO_ROOM = (
    "No space left on device",
    "Disk quota exceeded",
    "Unable to write new index file",  # git does not say why
)
_PROBE_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 60.0


class PatchUnreadable(Exception):
    """The patch cannot be had, by the policy's own doing; `reason` is one word for reports."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(slots=True, kw_only=True)
class Repository:
    """One task's repository; the same object serves every environment of the episode."""

    base_stream: bytes | None
    """`git fast-import` stream of the buggy tree; None when it stands in the image."""
    timeout_s: float
    """For each of our own git commands."""
    image_commit: str = ""
    """Commit that was made of the image's tree."""

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Write the tree and commit it. Raises BootstrapFailed."""
        start = _START.format(
            attributes=shlex.quote(EXACT_ATTRIBUTES), ignored=shlex.quote(_IGNORED)
        )
        folder = _scratch_name()
        script = _FROM_IMAGE.format(start=start)
        if self.base_stream is not None:
            await env.write_files({f"{folder}/base": self.base_stream})
            script = _FROM_STREAM.format(start=start, folder=folder)
        result = await env.execute(GIT + script + "\ng rev-parse HEAD", timeout_s=self.timeout_s)
        if result.exit_code:
            raise BootstrapFailed(f"the repository could not be set up: {last_words(result)}")
        if self.base_stream is None:
            self.image_commit = result.text.split()[-1]

    async def diff(self, env: ContainerEnv, *, max_bytes: int) -> str:
        """The patch, in UTF-8, exact to the byte; raises PatchUnreadable, DiffFailed."""
        patch = await self._diff(env, EXACT_ATTRIBUTES, max_bytes)
        try:
            return patch.decode()
        except UnicodeDecodeError:
            return (await self._diff(env, AS_BINARY, max_bytes)).decode()

    async def _diff(self, env: ContainerEnv, attributes: str, max_bytes: int) -> bytes:
        folder = _scratch_name()
        script = _DIFF.format(
            folder=folder,
            attributes=shlex.quote(attributes),
            ignored=shlex.quote(_IGNORED),
            flags=" ".join(DIFF_FLAGS),
            base=await self._base(env, folder),
        )
        try:
            result = await env.execute(GIT + script, timeout_s=self.timeout_s)
            if result.exit_code and await disk_is_full(env, result):
                raise DiffFailed(f"the environment's disk is full: {last_words(result)}")
            if result.timed_out:
                raise PatchUnreadable("diff_timed_out", f"no patch after {self.timeout_s:g} s")
            if result.exit_code:
                raise PatchUnreadable("repository_broken", last_words(result))
            return await env.read_file(f"{folder}/patch", max_bytes=max_bytes)
        except (FileNotFoundError, PermissionError) as exc:
            raise PatchUnreadable("repository_broken", f"the patch was removed: {exc}") from exc
        except ValueError as exc:
            raise PatchUnreadable("patch_too_large", str(exc)) from exc
        finally:
            await env.execute(f"rm -rf {folder}", timeout_s=self.timeout_s)

    async def _base(self, env: ContainerEnv, folder: str) -> str:
        if self.base_stream is None:
            return _BASE_FROM_IMAGE.format(folder=folder, commit=self.image_commit)
        try:
            await env.write_files({f"{folder}/base": self.base_stream})
        except ValueError as exc:
            raise PatchUnreadable("repository_broken", str(exc)) from exc
        except OSError as exc:
            if exc.errno in _NO_ROOM:
                raise DiffFailed(f"the environment's disk is full: {exc}") from exc
            raise PatchUnreadable("repository_broken", str(exc)) from exc
        return _BASE_FROM_STREAM.format(folder=folder)


def _scratch_name() -> str:
    """A folder in the workdir that nobody can have prepared."""
    return f".agentflow-{secrets.token_hex(8)}"


async def disk_is_full(env: ContainerEnv, failed: CommandResult) -> bool:
    """Whether a command of our own failed for want of room: it says so, or a test write does."""
    if _says_no_room(failed):
        return True
    probe = _scratch_name()
    written = await env.execute(
        f"head -c {_PROBE_BYTES} /dev/zero > {probe}; rc=$?; rm -f {probe}; exit $rc",
        timeout_s=_PROBE_TIMEOUT_S,
    )
    return written.exit_code != 0 and _says_no_room(written)


def _says_no_room(result: CommandResult) -> bool:
    return any(line.rstrip().endswith(_SAYS_NO_ROOM) for line in result.text.splitlines())


def last_words(result: CommandResult) -> str:
    """The end of a failed command's output, for a message."""
    end = "timed out" if result.timed_out else f"exit code {result.exit_code}"
    return f"{end}: {result.text.strip()[-600:]}"
