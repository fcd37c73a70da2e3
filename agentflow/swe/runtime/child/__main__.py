"""The judge's end inside the environment: runs pytest and reports what it saw itself.

Started as a folder with `python -I`, needs Python 3.8 and pytest 6 or newer, nothing of agentflow.
The code under test shares this process, so nothing here trusts what can be reached from Python:

- the plan, with the key, is read and deleted before anything of the repository is imported;
- the key goes into a blake2b state and is then forgotten; each line of the report carries a tag
  over all lines so far, so lines cannot be added, changed, dropped or moved without the state;
- an outcome counts as passed only if the call raised nothing *and* pytest's report says passed;
- each awaited test has a decoy of the same id that must fail, and where it can have one a twin: the
  test itself with an assertion altered (`judge_twins.py`); whoever turns failures into passes, or
  is equal to everything, turns these too;
- the functions and classes of pytest, pluggy, unittest and builtins, and of the judge, must be the
  same ones, with the same code, whenever they are looked at; no collected test may have got a
  `runtest` of its own; the files of the tests must be the same bytes;
- neither this module nor its helpers can be imported once the repository's code runs;
- compiled files in the repository are not looked at;
- the repository's folders join `sys.path` only after pytest and its plugins are loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import types
import unittest  # noqa: F401  # loaded before the repository's code, so that it is watched
from typing import TYPE_CHECKING, Any

import pytest
from judge_twins import (  # type: ignore[import-not-found]  # lies beside this file over there
    make_decoy,
    make_twin,
)
from judge_watch import (  # type: ignore[import-not-found]  # lies beside this file over there
    is_installed,
    make_file_check,
    make_function_check,
    make_integrity,
    make_item_check,
    make_reporter,
    watch_for_heap_searches,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Plan = dict[str, Any]

OWN = tuple(sys.modules[name] for name in (__name__, "judge_twins", "judge_watch"))
"""The judge's modules; `main` takes them out of `sys.modules`."""
TEXT_LIMIT = 4000
"""Characters of a failure's text that are reported."""


# --- the plugin -------------------------------------------------------------------------------


class Judge:
    """The pytest plugin: watches, plants decoys, reports."""

    def __init__(
        self, plan: Plan, report: Callable[..., None], files_changed: Callable[[str | None], str]
    ) -> None:
        self._plan = plan
        self._root = str(plan["root"])
        self._stdout = os.dup(1)
        self._awaited = frozenset(plan["awaited"])
        self._report = report
        self._files_changed = files_changed
        self._coin = hashlib.blake2b(plan["salt"].encode())
        self._checks: list[Callable[[], Iterator[tuple[str, Any]]]] = []
        self._phases: dict[Any, list[tuple[str, bool, Any]]] = {}
        self._planted: dict[Any, tuple[str, str]] = {}
        self._may_xfail: set[Any] = set()
        self._violated: list[str] = []
        self._patched = [os.path.join(self._root, name) for name in plan["patched"]]
        watch_for_heap_searches(self._root, self._patched, self._violated)

    def finish(self, code: int) -> None:
        """Write the last line."""
        self._note_file()
        self._report("end", str(int(code)), self._violated[0] if self._violated else "")

    # --- before the tests ---------------------------------------------------------------------

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self) -> Iterator[None]:
        """Say that all is well so far, then let the repository in: from here on its code runs."""
        self._checks.append(make_integrity(self, OWN))
        os.write(self._stdout, self._plan.pop("hello").encode() + b"\n")
        os.close(self._stdout)
        sys.pycache_prefix = self._plan["pycache"]
        sys.path[:0] = self._plan["import_roots"]
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Accept what installed plugins replaced while they were configured; nothing else."""
        replaced = [n for n, now in self._checks[0]() if not is_installed(now, self._root)]
        self._violated.extend(replaced[:1])
        self._checks[:] = [make_integrity(self, OWN)]

    def pytest_plugin_registered(self, plugin: object) -> None:
        """See that a conftest.py is the one that was there before the tests ran."""
        file = getattr(plugin, "__file__", None)
        if file and os.path.basename(file) == "conftest.py":
            self._note_file(file)

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """See that a test file is the judge's before it is imported."""
        if isinstance(collector, pytest.Module):
            self._note_file(str(collector.fspath))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be imported."""
        if report.failed:
            self._report("collect", report.nodeid, str(report.longrepr)[-TEXT_LIMIT:])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plant a decoy before or after each awaited test, and the twins after all of them."""
        items: list[pytest.Item] = []
        twins: list[pytest.Item] = []
        for item in session.items:
            if item.get_closest_marker("xfail"):
                self._may_xfail.add(item)
            pair = [item]
            if self._is_awaited(item.nodeid):
                decoy = make_decoy(item, self._draw)
                pair.insert(self._draw() & 1, decoy)
                self._planted[decoy] = "decoy", item.nodeid
                twin = None if item in self._may_xfail else make_twin(item, self._draw)
                if twin is not None:
                    twins.append(twin)
                    self._planted[twin] = "twin", item.nodeid
            items += pair
        items += twins
        session.items[:] = items
        self._checks += [make_function_check(items), make_item_check(items, self._patched)]
        self._note_replaced()

    # --- while they run -----------------------------------------------------------------------

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Report what all phases of a test came to."""
        self._phases[item] = []
        kind, node_id = self._planted.get(item, ("test", item.nodeid))
        watched = kind != "test" or self._is_awaited(node_id)
        if watched:
            self._note_replaced()
        yield
        if watched:
            self._note_replaced()
        status, text = outcome_of(self._phases.pop(item), may_xfail=item in self._may_xfail)
        self._report(kind, node_id, status, text)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        """Keep what was raised beside what pytest and its plugins make of it."""
        raised = call.excinfo is not None
        result = yield
        made = result.get_result()  # type: ignore[attr-defined]  # pluggy sends its result in
        if item in self._phases:
            self._phases[item].append((call.when, raised, made))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Look a last time, before plugins undo what they replaced."""
        self._note_replaced()

    # --- helpers ------------------------------------------------------------------------------

    def _note_replaced(self) -> None:
        for look in self._checks:
            for name, _ in look():
                self._violated.append(name)
                return

    def _note_file(self, path: str | None = None) -> None:
        changed = self._files_changed(path)
        if changed:
            self._violated.append(changed)

    def _is_awaited(self, node_id: str) -> bool:
        return node_id in self._awaited or node_id.split(maxsplit=1)[0] in self._awaited

    def _draw(self) -> int:
        self._coin.update(b"#")
        return int.from_bytes(self._coin.digest()[:4], "big")


def outcome_of(phases: list[tuple[str, bool, Any]], *, may_xfail: bool) -> tuple[str, str]:
    """The status and the failure's text of one test, from its setup, call and teardown."""
    for when, raised, made in phases:
        if made.failed or (raised and made.passed):
            return ("failed" if when == "call" else "error"), str(made.longrepr)[-TEXT_LIMIT:]
    calls = [(raised, made) for when, raised, made in phases if when == "call"]
    if any(made.skipped and hasattr(made, "wasxfail") for _, _, made in phases):
        return ("xfailed" if may_xfail else "skipped"), ""
    if any(made.passed and not raised and not hasattr(made, "wasxfail") for raised, made in calls):
        return "passed", ""
    return "skipped", ""


# --- start ------------------------------------------------------------------------------------


def watched_files(root: str, test_files: Iterable[str]) -> list[str]:
    """The test files and every conftest.py of the repository."""
    found = list(test_files)
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        if "conftest.py" in files:
            found.append(os.path.relpath(os.path.join(folder, "conftest.py"), root))
    return found


def pytest_arguments(plan: Plan) -> list[str]:
    """No configuration but the task's own, no cache, whole files, all of them."""
    config = plan["pytest_config"]
    arguments = ["-c", os.path.join(plan["root"], config) if config else os.devnull]
    arguments += ["--rootdir", plan["root"], "-p", "no:cacheprovider", "-q", "--tb=short"]
    arguments += ["--continue-on-collection-errors"]
    for name in plan["plugins"] or ():
        arguments += ["-p", name]
    return [*arguments, "--", *plan["files"]]


def main() -> None:
    """Read the plan, run pytest, write the report, leave at once."""
    sys.path.pop(0)  # this folder
    for module in OWN:
        sys.modules.pop(module.__name__)
    sys.modules["__main__"] = types.ModuleType("__main__")
    leave = os._exit  # nothing of the repository may run after the last line
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(here, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    os.unlink(os.path.join(here, "plan.json"))
    plan["root"] = root = os.getcwd()
    plan["pycache"] = os.path.join(here, "pyc")
    plan["import_roots"] = [os.path.normpath(os.path.join(root, p)) for p in plan["import_roots"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(plan["import_roots"])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONSTARTUP", "PYTHONHOME"):
        os.environ.pop(name, None)
    if plan["plugins"] is not None:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    fd = os.open(os.path.join(here, "report"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    report = make_reporter(fd, bytes.fromhex(plan.pop("key")))
    files_changed = make_file_check(root, watched_files(root, plan["files"]))
    judge = Judge(plan, report, files_changed)
    judge.finish(pytest.main(pytest_arguments(plan), plugins=[judge]))
    sys.stdout.flush()
    leave(0)


if __name__ == "__main__":
    main()
