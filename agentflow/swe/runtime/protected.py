"""Which paths of a patch are put back before the judge runs. Pure.

A patch may change the code under test. It may not bring what pytest or Python would run of its own
accord, nor what takes the place of the judge's own modules, nor the judge's tests.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_HOOK_FILES = frozenset(
    {
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "pyvenv.cfg",
    }
)
"""`setup.cfg` and `pyproject.toml` are missing: honest patches change them, and
the judge reads neither."""
_HOOK_SUFFIXES = (".pth", ".pyc", ".pyo", ".egg-link")
_HOOK_FOLDER_SUFFIXES = (".dist-info", ".egg-info")
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_JUDGE_MODULES = frozenset(
    {
        "pytest",
        "_pytest",
        "py",
        "pluggy",
        "iniconfig",
        "packaging",
        "pygments",
        "exceptiongroup",
        "tomli",
        "colorama",
        "attr",
        "attrs",
        "typing_extensions",
        "sitecustomize",
        "usercustomize",
    }
)
"""What pytest imports besides the standard library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that a patch touches."""

    path: str
    is_new: bool
    """Whether the repository did not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What belongs to the judge in one task."""

    judge_files: frozenset[str]
    """The judge's own files: those it lays over the tree, runs, or patches."""
    import_roots: Sequence[str]
    """Folders that the tests import from."""
    pytest_config: str | None = None

    def put_back(self, changes: Iterable[Change]) -> list[Change]:
        """Choose the changes that are undone, in their order."""
        return [change for change in changes if self._is_protected(change)]

    def _is_protected(self, change: Change) -> bool:
        path = change.path
        return (
            path in self.judge_files
            or path == self.pytest_config
            or self._is_on_the_way(path)
            or self.blocked_by(path) is not None
            or self._is_in_a_test_folder(path)
            or _is_hook(path)
            or (change.is_new and self._shadows(path))
        )

    def _is_on_the_way(self, path: str) -> bool:
        """A file or link in the place of a folder that holds the judge's files."""
        return any(file.startswith(f"{path}/") for file in self.judge_files)

    def blocked_by(self, path: str) -> str | None:
        """The judge's file in whose place `path` makes a folder."""
        return next((file for file in self.judge_files if path.startswith(f"{file}/")), None)

    def _is_in_a_test_folder(self, path: str) -> bool:
        """In a `tests` folder of the judge, where its helpers and data lie."""
        return any(path.startswith(f"{folder}/") for folder in self._test_folders())

    def _test_folders(self) -> set[str]:
        folders = set()
        for file in self.judge_files:
            parts = file.split("/")[:-1]
            for depth, part in enumerate(parts, 1):
                if part in _TEST_FOLDERS:
                    folders.add("/".join(parts[:depth]))
                    break
        return folders

    def _shadows(self, path: str) -> bool:
        """A new top-level module of a name that Python or pytest imports elsewhere."""
        for root in self.import_roots:
            below = path if root == "." else path.removeprefix(f"{root}/")
            if below == path and root != ".":
                continue
            top = below.split("/")[0].split(".")[0]
            if top in _JUDGE_MODULES or top in sys.stdlib_module_names or top.startswith("pytest_"):
                return True
        return False


def _is_hook(path: str) -> bool:
    *folders, name = path.split("/")
    return (
        name.lower() in _HOOK_FILES
        or name.endswith(_HOOK_SUFFIXES)
        or "__pycache__" in folders
        or any(folder.endswith(_HOOK_FOLDER_SUFFIXES) for folder in folders)
    )
