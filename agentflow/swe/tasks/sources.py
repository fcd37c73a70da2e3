"""Materials: what a task's source comes to — the buggy tree, the judge's tests, the oracle.

Everything here blocks (disk, git, pip): call it off the loop.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from agentflow.errors import PreprocessFailed
from agentflow.swe.tasks.gitwire import (
    GitError,
    difference,
    fast_import_stream,
    git,
    read_commit,
)
from agentflow.swe.tasks.loader import BUNDLED
from agentflow.swe.tasks.pypi import FetchFailed, cache_dir, fetch_sdist
from agentflow.swe.tasks.schema import (
    BundledSource,
    DirSource,
    GitSource,
    ImageSource,
    PypiSource,
    parse_task,
)
from agentflow.swe.tasks.tree import (
    Tree,
    read_folder,
    read_sdist,
    regular_files,
    without_escaping_links,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentflow.swe.tasks.schema import SWETask


@dataclass(frozen=True, slots=True, kw_only=True)
class Materials:
    """A task's files, ready to be put into any environment."""

    base_stream: bytes | None
    """`git fast-import` stream of the buggy tree; None when it stands in the image."""
    judge_files: Mapping[str, bytes] = field(default_factory=dict)
    """The judge's own test files, laid over the patched tree."""
    oracle_patch: str = ""
    """The reference solution, tests left out."""
    left_out: tuple[str, ...] = ()
    """Links of the repository that lead out of it, and so are not in the tree."""


def materialise(row: Mapping[str, Any]) -> Materials:
    """Read everything that a task row points at. Raises PreprocessFailed, ConfigError."""
    task = parse_task(row)
    try:
        return _materialise(task)
    except (GitError, FetchFailed, OSError, ValueError) as exc:
        raise PreprocessFailed(f"{task.instance_id}: source {task.source.type}: {exc}") from exc


def oracle_patch(row: Mapping[str, Any]) -> str:
    """The reference solution of a task; empty when nobody knows one. Raises as `materialise`."""
    return str(row.get("patch") or "") or materialise(row).oracle_patch


def with_oracles(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their `patch` filled in, as a scripted oracle needs them. Raises as above."""
    return [{**row, "patch": oracle_patch(row)} for row in rows]


def _materialise(task: SWETask) -> Materials:
    match task.source:
        case BundledSource(name=name):
            folder = BUNDLED / name
            if not folder.is_dir():
                raise FileNotFoundError(f"no bundled task is called {name!r}")
            oracle = task.patch or (folder / "oracle.patch").read_text("utf-8")
            return _put_together(
                read_folder(folder / "repo"),
                tests=_under("tests", read_folder(folder / "tests")),
                oracle=oracle,
            )
        case DirSource(path=path, tests=tests):
            overlay = read_folder(Path(tests)) if tests else {}
            return _put_together(read_folder(Path(path)), tests=overlay, oracle=task.patch)
        case PypiSource() as pair:
            return _from_pypi(pair, task.patch)
        case GitSource(url=url):
            tree = _from_git(url, task.base_commit)
            return _put_together(tree, tests={}, oracle=task.patch)
        case ImageSource():
            return Materials(base_stream=None, oracle_patch=task.patch)
        case never:
            assert_never(never)


def _put_together(tree: Tree, *, tests: Tree, oracle: str) -> Materials:
    kept, left_out = without_escaping_links(tree)
    if not kept:
        raise ValueError("the repository has no files")
    return Materials(
        base_stream=fast_import_stream(kept),
        judge_files=regular_files(tests),
        oracle_patch=oracle,
        left_out=left_out,
    )


def _under(prefix: str, tree: Tree) -> Tree:
    return {f"{prefix}/{path}": file for path, file in tree.items()}


# --- pairs of releases ------------------------------------------------------------------------


def _from_pypi(pair: PypiSource, patch: str) -> Materials:
    bad, good = (_release(pair, version) for version in (pair.bad, pair.good))
    bad_source, _ = _apart(bad, pair.tests)
    good_source, good_tests = _apart(good, pair.tests)
    if not good_tests:
        raise ValueError(f"{pair.name} {pair.good} has no folder {pair.tests!r}")
    oracle = patch or difference(bad_source, good_source)
    return _put_together(bad, tests=good_tests, oracle=oracle)


def _release(pair: PypiSource, version: str) -> Tree:
    archive = fetch_sdist(pair.name, version, sha256=pair.sha256.get(version))
    tree, _ = without_escaping_links(read_sdist(archive))
    return {path: file for path, file in tree.items() if not _is_build_record(path)}


def _is_build_record(path: str) -> bool:
    """What the packager wrote into the archive; not part of the repository it was made from."""
    return path == "PKG-INFO" or any(part.endswith(".egg-info") for part in path.split("/"))


def _apart(tree: Tree, folder: str) -> tuple[Tree, Tree]:
    tests = {path: file for path, file in tree.items() if path.startswith(f"{folder}/")}
    return {path: file for path, file in tree.items() if path not in tests}, tests


# --- git repositories -------------------------------------------------------------------------


def _from_git(url: str, commit: str) -> Tree:
    if not commit:
        raise ValueError("base_commit is missing: it says which state of the repository is meant")
    if commit.startswith("-"):
        raise ValueError(f"base_commit {commit!r} is no commit")
    folder = Path(url)
    if folder.is_dir():
        inner = folder / ".git"
        return read_commit(str(inner if inner.exists() else folder), commit)
    clone = cache_dir() / "git" / hashlib.sha256(url.encode()).hexdigest()[:24]
    if clone.is_dir():
        try:
            return read_commit(str(clone), commit)
        except GitError:
            git(["--git-dir", str(clone), "fetch", "-q", "--all"], user_config=True)
    else:
        _clone(url, clone)
    return read_commit(str(clone), commit)


def _clone(url: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".clone-", dir=place.parent) as folder:
        git(["clone", "-q", "--mirror", "--", url, f"{folder}/repo"], user_config=True)
        if not place.exists():
            os.rename(f"{folder}/repo", place)  # noqa: PTH104  # atomic publication
