"""What the judge's end watches: its report's chain, pytest's stack, the files of the tests.

Runs inside the environment (Python 3.8 and up, nothing of agentflow). What it calls after the
repository's code is in is held in locals and is C where it can be: nobody can patch that.
"""

from __future__ import annotations

import hashlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Report = Callable[..., None]
    Check = Callable[[], Iterator[tuple[str, Any]]]
    FileCheck = Callable[[str | None], str]
    Member = tuple[Mapping[str, Any], str, Any, Any]

STACK = ("_pytest", "pluggy", "pytest", "unittest")
_WATCHED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    property,
    staticmethod,
    classmethod,
)


def make_reporter(fd: int, key: bytes) -> Report:
    """Return `report(kind, *fields)`, which appends one authenticated line to `fd`."""
    state = hashlib.blake2b(key=key, digest_size=16)
    write = os.write

    def report(kind: str, *fields: str) -> None:
        body = " ".join(
            [kind] + [f.encode("utf-8", "backslashreplace").hex() or "-" for f in fields]
        )
        state.update(body.encode())
        line = f"{state.hexdigest()} {body}\n".encode()
        while line:
            line = line[write(fd, line) :]

    return report


# --- what must stay as it was -----------------------------------------------------------------


def make_integrity(judge: object, own: Iterable[types.ModuleType]) -> Check:
    """Return `changed()`, which yields what was replaced in pytest's stack: name, replacement.

    `judge` and the modules `own` are watched like pytest's.
    """
    modules = {name: m for name, m in sys.modules.items() if name.split(".")[0] in STACK}
    classes = {
        value: frozenset(vars(value))
        for module in modules.values()
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.split(".")[0] in STACK
    }
    classes[type(judge)] = frozenset(vars(type(judge)))
    attributes = frozenset(vars(judge))
    holders = [vars(m) for m in (*modules.values(), sys.modules["builtins"], *own)]
    holders.append(vars(judge))
    members = [
        (holder, key, value, _inside(value))
        for holder in [*holders, *map(vars, classes)]
        for key, value in list(holder.items())
        if isinstance(value, _WATCHED)
    ]
    loaded, gettrace, getprofile = sys.modules, sys.gettrace, sys.getprofile
    tracers = (gettrace(), getprofile())

    def changed() -> Iterator[tuple[str, Any]]:
        yield from _changed_members(members)
        for owner, names in classes.items():
            for key, value in vars(owner).items():
                if key not in names and isinstance(value, _WATCHED):
                    yield f"{owner.__qualname__}.{key}", value
        if vars(judge).keys() != attributes:
            yield "the judge's attributes", None
        for name, module in modules.items():
            if loaded.get(name) is not module:
                yield name, None
        if (gettrace(), getprofile()) != tracers:
            yield "sys.settrace", None

    return changed


def _changed_members(members: Iterable[Member]) -> Iterator[tuple[str, Any]]:
    for holder, key, value, inside in members:
        now = holder.get(key)
        if now is not value:
            yield f"{_name_of(holder)}: {key}", now
        elif inside is not None and inside != _inside(value):
            yield f"{_name_of(holder)}: {key}", None


def _name_of(holder: Mapping[str, Any]) -> str:
    return str(holder.get("__name__") or holder.get("__module__") or "the judge")


def is_installed(value: Any, root: str) -> bool:
    """Whether a replacement is a function of an installed plugin, not of the repository."""
    function = _function(value)
    file = function.__code__.co_filename if function else "<"
    return not file.startswith("<") and not file.startswith(root + os.sep)


def _function(value: Any) -> types.FunctionType | None:
    """The Python function behind a member, if it is one."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return function if isinstance(function, types.FunctionType) else None


def _inside(value: Any) -> tuple[int, ...] | None:
    """Identities of what a function runs; they live as long as the function is watched."""
    function = _function(value)
    if function is None:
        return None
    return id(function.__code__), id(function.__defaults__), id(function.__kwdefaults__)


def make_file_check(root: str, watched: Iterable[str]) -> FileCheck:
    """Return `changed(path)`: which watched file is not what it was, "" when all are."""
    read, digest, join = open, hashlib.blake2b, os.path.join

    def digest_of(path: str) -> bytes:
        try:
            with read(path, "rb") as file:
                return digest(file.read()).digest()
        except OSError:
            return b""

    before = {join(root, name): digest_of(join(root, name)) for name in watched}

    def changed(path: str | None) -> str:
        if path is not None and path not in before:
            return path if os.path.basename(path) == "conftest.py" else ""
        for name in before if path is None else (path,):
            if digest_of(name) != before[name]:
                return name
        return ""

    return changed


def watch_for_heap_searches(root: str, patched: Iterable[str], violated: list[str]) -> None:
    """Note when somebody searches the heap, where the judge's own state lies.

    Only the repository's own unchanged files and installed packages may; a search that starts in
    another thread has none of them among its frames.
    """
    frame_of = sys._getframe  # noqa: SLF001  # the only way to see who asks
    searches = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents"})
    files, inside = frozenset(patched), root + os.sep
    installed = os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep

    def hook(event: str, _: Any) -> None:
        if event not in searches:
            return
        frame: types.FrameType | None = frame_of(1)
        names = []
        while frame is not None:
            names.append(frame.f_code.co_filename)
            frame = frame.f_back
        by = next((name for name in names if name in files), "")
        known = any(part in names[0] for part in installed) if names else False
        if by or not (known or any(name.startswith(inside) for name in names)):
            violated.append(f"{event} called by {by or names[:1]}")

    sys.addaudithook(hook)


def make_function_check(items: Iterable[Any]) -> Check:
    """Return `changed()`, which yields each collected test that is another function now."""
    held = []
    for item in items:
        owner: Any = getattr(item, "cls", None) or getattr(item, "module", None)
        name: str = getattr(item, "originalname", None) or item.name
        value = vars(owner).get(name) if owner else None
        if isinstance(value, types.FunctionType):
            held.append((owner, name, value, value.__code__))

    def changed() -> Iterator[tuple[str, Any]]:
        for owner, name, value, code in held:
            now = vars(owner).get(name)
            if now is not value or value.__code__ is not code:
                yield f"test function {name}", now

    return changed


def make_item_check(items: Iterable[Any], patched: Iterable[str]) -> Check:
    """Return `changed()`, which yields what a collected test has got in the place of a method.

    Plug-ins may wrap the function that a test runs; patched files and code of no file may not.
    """
    files = frozenset(patched)
    held = [(item, frozenset(vars(item)), _methods(type(item))) for item in items]
    functions = {item: _function(getattr(item, "obj", None)) for item, _, _ in held}

    def changed() -> Iterator[tuple[str, Any]]:
        for item, before, methods in held:
            now = vars(item)
            for key in now.keys() - before:
                if key in methods:
                    yield f"{item.nodeid}: {key}", now[key]
            function = _function(now.get("_obj"))
            if function is None or function is functions[item]:
                continue
            file = function.__code__.co_filename
            if file.startswith("<") or file in files:
                yield f"{item.nodeid}: its function", function

    return changed


def _methods(owner: type) -> frozenset[str]:
    return frozenset(
        key for c in owner.__mro__ for key, value in vars(c).items() if isinstance(value, _WATCHED)
    )
