"""Trees to git and back: one stream that makes a repository, and the difference of two trees.

A `git fast-import` stream carries every byte, mode and link in one file, so a tree is put into any
environment that has git with a single write. Git on this machine runs without the user's
configuration, attributes, hooks and templates. Everything here blocks: call it off the loop.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.swe.tasks.tree import Mode, TreeFile, checked_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.swe.tasks.tree import Tree

BRANCH = "main"
EXACT_ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding !diff !merge\n"
"""For `.git/info/attributes`, which no `.gitattributes` overrides: bytes stay as they are."""
AS_BINARY = EXACT_ATTRIBUTES.replace("!diff", "-diff")
"""The same with every difference as a binary one: ASCII whatever the encoding of the files."""
DIFF_FLAGS = (
    "--binary",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--ignore-submodules=none",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
_IDENTITY = b"agentflow <agentflow@localhost> 946684800 +0000"
_GIT_TIMEOUT_S = 300.0


class GitError(Exception):
    """A git command on this machine failed; the message has its last words."""


def fast_import_stream(
    tree: Mapping[str, TreeFile], *, branch: str = BRANCH, message: str = "Initial state"
) -> bytes:
    """One commit on `branch` with exactly `tree`; the same tree gives the same commit id."""
    text = message.encode()
    parts = [
        b"commit refs/heads/%s\n" % branch.encode(),
        b"author %s\ncommitter %s\n" % (_IDENTITY, _IDENTITY),
        b"data %d\n%s\ndeleteall\n" % (len(text), text),
    ]
    for path in sorted(tree):
        file = tree[path]
        parts.append(b"M %s inline %s\n" % (file.mode.encode(), _quoted(path)))
        parts.append(b"data %d\n%s\n" % (len(file.data), file.data))
    parts.append(b"done\n")
    return b"".join(parts)


def _quoted(path: str) -> bytes:
    raw = os.fsencode(checked_path(path))
    escaped = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"%s"' % escaped


def git(
    arguments: Sequence[str], *, stdin: bytes = b"", user_config: bool = False, cwd: str = "/"
) -> bytes:
    """Run git here and return its output; raises GitError.

    `user_config` lets the user's own configuration and credentials in, which only a clone needs.
    """
    env = {**os.environ} if user_config else {"PATH": os.environ.get("PATH", os.defpath)}
    for name in [name for name in env if name.startswith("GIT_")]:
        del env[name]
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if not user_config:
        env |= {"HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
        env["GIT_CONFIG_GLOBAL"] = "/dev/null"
    command = ["git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command,
            check=False,
            input=stdin,
            capture_output=True,
            env=env,
            cwd=cwd,
            timeout=_GIT_TIMEOUT_S,
        )
    except FileNotFoundError as exc:
        raise GitError("git is not installed") from exc
    except subprocess.TimeoutExpired as exc:
        raise GitError(f"git {arguments[0]} took more than {_GIT_TIMEOUT_S:g} s") from exc
    if done.returncode:
        raise GitError(done.stderr.decode(errors="replace").strip()[-1000:] or "git failed")
    return done.stdout


def difference(before: Tree, after: Tree) -> str:
    """Return the patch from one tree to the other, as `git apply` takes it."""
    with tempfile.TemporaryDirectory(prefix="agentflow-diff-") as folder:
        here = ["--git-dir", folder]
        git([*here, "init", "-q", "--bare", "--template="])
        streams = [
            fast_import_stream(before, branch="before").removesuffix(b"done\n"),
            fast_import_stream(after, branch="after"),
        ]
        git([*here, "fast-import", "--quiet", "--done"], stdin=b"".join(streams))
        compare = [*here, "diff", *DIFF_FLAGS, "refs/heads/before", "refs/heads/after"]
        for attributes in (EXACT_ATTRIBUTES, AS_BINARY):
            info = Path(folder, "info")
            info.mkdir(exist_ok=True)
            (info / "attributes").write_text(attributes)
            try:
                return git(compare).decode()
            except UnicodeDecodeError:
                continue
        raise GitError("git diff printed something that is not UTF-8")


def read_commit(git_dir: str, commit: str) -> Tree:
    """Every file of a commit, submodules left out; raises GitError."""
    here = ["--git-dir", git_dir]
    listing = git([*here, "ls-tree", "-r", "-z", "--full-tree", f"{commit}^{{commit}}"])
    entries: list[tuple[str, str, bytes]] = []
    for line in listing.split(b"\0")[:-1]:
        facts, _, path = line.partition(b"\t")
        mode, kind, blob = facts.split(b" ")
        if kind == b"blob":
            entries.append((os.fsdecode(path), mode.decode(), blob))
    content = git([*here, "cat-file", "--batch"], stdin=b"".join(b + b"\n" for *_, b in entries))
    tree: Tree = {}
    at = 0
    for name, bits, _ in entries:
        head_end = content.index(b"\n", at)
        size = int(content[at:head_end].split(b" ")[2])
        data = content[head_end + 1 : head_end + 1 + size]
        tree[name] = TreeFile(data=data, mode=Mode(bits))
        at = head_end + size + 2
    return tree
