"""Tree: a repository's files as data, exact to the byte, the mode and the link.

Owns what may be in one (relative paths, no `.git`, links that stay inside) and how it is read from
folders and archives. Never follows a symbolic link, neither when reading nor when checking.
"""

from __future__ import annotations

import io
import logging
import os
import posixpath
import stat
import tarfile
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

MAX_TREE_BYTES = 1 << 30
"""More than any source tree here needs; an archive that unpacks to more is refused."""


class Mode(StrEnum):
    """Git's modes for what a tree may hold."""

    FILE = "100644"
    EXECUTABLE = "100755"
    LINK = "120000"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """One entry."""

    data: bytes
    """The content; of a link, its target."""
    mode: Mode = Mode.FILE


Tree = dict[str, TreeFile]
"""Path relative to the root, `/`-separated, to its entry; odd bytes as surrogate escapes."""


class UnsafePath(ValueError):
    """A path that leaves its root."""


def checked_path(path: str) -> str:
    """Return `path` normalised; raises UnsafePath when it is absolute, climbs, or is in `.git`."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or "\0" in path or not parts or ".." in parts:
        raise UnsafePath(f"path {path!r} must be relative and stay inside its root")
    if any(part.lower() == ".git" for part in parts):
        raise UnsafePath(f"path {path!r} must not lie in .git")
    return "/".join(parts)


def without_escaping_links(tree: Tree) -> tuple[Tree, tuple[str, ...]]:
    """Leave out links that lead out of the root (or through another link); name them."""
    links = {path for path, file in tree.items() if file.mode is Mode.LINK}
    escaping = tuple(sorted(path for path in links if _escapes(path, tree[path].data, links)))
    if escaping:
        log.warning("left out links that lead out of the repository: %s", ", ".join(escaping))
    return {path: file for path, file in tree.items() if path not in escaping}, escaping


def _escapes(path: str, target: bytes, links: set[str]) -> bool:
    text = os.fsdecode(target)
    if not text or text.startswith("/"):
        return True
    place = posixpath.dirname(path)
    parts = text.rstrip("/").split("/")
    for part in parts[:-1]:
        place = posixpath.normpath(posixpath.join(place, part))
        if place in links:
            return True
    place = posixpath.normpath(posixpath.join(place, parts[-1]))
    return place.split("/")[0].lower() in {"..", ".git"}


# --- reading ----------------------------------------------------------------------------------


def is_debris(name: str) -> bool:
    """Whether a name is never part of a task: version control, caches, compiled files."""
    return name in {".git", "__pycache__", ".pytest_cache"} or name.endswith(".pyc")


def read_folder(root: Path) -> Tree:
    """Every file and link under `root`, debris left out; links are read as links."""
    return dict(_walk(root, ""))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, TreeFile]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if is_debris(entry.name):
            continue
        path = prefix + entry.name
        if entry.is_symlink():
            target = os.fsencode(os.readlink(entry.path))  # noqa: PTH115  # keeps odd bytes
            yield path, TreeFile(data=target, mode=Mode.LINK)
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, path + "/")
        elif entry.is_file(follow_symlinks=False):
            yield path, TreeFile(data=_read(folder / entry.name), mode=_mode(entry.stat().st_mode))


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:  # noqa: PTH123  # from a descriptor
        return file.read()


def _mode(bits: int) -> Mode:
    return Mode.EXECUTABLE if bits & stat.S_IXUSR else Mode.FILE


def read_sdist(archive: bytes) -> Tree:
    """Read the files of a source distribution (.tar.gz), its single top folder stripped.

    Raises UnsafePath for a member outside that folder, ValueError for one that is no archive or
    unpacks to more than MAX_TREE_BYTES. Nothing is written to disk.
    """
    tree: Tree = {}
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            for member in tar:
                size += member.size
                if size > MAX_TREE_BYTES:
                    raise ValueError(f"the archive unpacks to more than {MAX_TREE_BYTES} bytes")
                _take(tar, member, tree)
    except tarfile.TarError as exc:
        raise ValueError(f"not a source archive: {exc}") from exc
    return tree


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Tree) -> None:
    _, _, inner = checked_path(member.name).partition("/")
    if not inner or any(is_debris(part) for part in inner.split("/")):
        return
    if member.issym():
        tree[inner] = TreeFile(data=os.fsencode(member.linkname), mode=Mode.LINK)
    elif member.isreg():
        source = tar.extractfile(member)
        tree[inner] = TreeFile(data=source.read() if source else b"", mode=_mode(member.mode))
    elif not member.isdir():
        raise UnsafePath(f"{member.name!r} is neither a file, a folder nor a symbolic link")


def regular_files(tree: Mapping[str, TreeFile]) -> dict[str, bytes]:
    """Only the plain files, as `ContainerEnv.write_files` takes them."""
    return {path: file.data for path, file in tree.items() if file.mode is not Mode.LINK}
