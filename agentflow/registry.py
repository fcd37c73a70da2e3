"""Finds flows and providers by name: the built-in ones, and a user's own.

Owns how a name becomes an object and how a plug-in's failure becomes one clear ConfigError. Imports
nothing of a flow before it is asked for it, and leaves `sys.path` as it was.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from agentflow.protocols import AgentFlow, ContainerEnvBuilder, EventSink, Keeper, Runner
    from agentflow.swe.sample import SWESample
    from agentflow.swe.scheduling_hooks import Scheduling

BUILTIN_FLOW: dict[str, str] = {
    "swe": ".swe:agentflow",
    "action_level_swe": ".swe:action_level_agentflow",
}
"""Flow name → `module:function`; a leading dot means this package."""

_PACKAGE = "agentflow"


def load_agentflow(  # noqa: PLR0913  # parts are wired by keyword
    name: str,
    config: Mapping[str, Any],
    model: Any,
    *,
    runner: Runner | None = None,
    events: EventSink | None = None,
    on_turn: Callable[[SWESample], None] | None = None,
    keeper: Keeper | None = None,
    run_id: str | None = None,
    scheduling: Scheduling | None = None,
    env: ContainerEnvBuilder | None = None,
) -> AgentFlow:
    """Build the flow `name` from its section of the configuration.

    `model` is what the flow generates with (for the built-in ones an `EngineAccess`). A flow of the
    user's need not take the keywords; `scheduling` is for those that schedule actions, `run_id`
    marks what they make outside of this process, and `env` is another flow's environment builder
    to share: that of the replica beside it. Raises ConfigError that names the section, the
    name and the cause.
    """
    make = import_any(name, builtin=BUILTIN_FLOW, path=config.get("python_path"), kind="flow")
    with plugin_boundary(f"flow {name!r}"):
        wiring: dict[str, object] = {
            "runner": runner,
            "events": events,
            "on_turn": on_turn,
            "keeper": keeper,
            "run_id": run_id,
        }
        if scheduling is not None:
            wiring["scheduling"] = scheduling
        if env is not None:
            wiring["env"] = env
        return cast("AgentFlow", make(config, model, **accepted_keywords(make, wiring)))


def accepted_keywords(make: Callable[..., object], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `keywords` that `make` takes: a user's part need not take all of ours."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(keywords)
    names = {p.name for p in parameters}
    return {name: value for name, value in keywords.items() if name in names}


def import_any(
    name: str,
    builtin: Mapping[str, str] | None = None,
    path: str | Sequence[str] | None = None,
    *,
    kind: str = "plug-in",
) -> Any:
    """Return the object that `name` means.

    `name` is a key of `builtin`, or `package.module:Object`, or `path/file.py:Object`. Modules and
    relative files are looked for in the folders `path` first. `kind` is for messages: what the
    name should be. Raises ConfigError when there is no such object, or importing it fails.
    """
    builtin = builtin or {}
    if name in builtin:
        return _attribute(_import(builtin[name].partition(":")[0], kind=kind), builtin[name])
    target, colon, attribute = name.rpartition(":")
    if not (colon and target and attribute):
        raise ConfigError(_unknown(name, kind=kind, builtin=builtin))
    folders = _folders(path)
    with plugin_boundary(f"{kind} {name!r}"):
        if target.endswith(".py"):
            return _attribute(_import_file(target, folders), name)
        return _attribute(_import_from(target, folders), name)


@contextlib.contextmanager
def plugin_boundary(what: str) -> Iterator[None]:
    """Turn whatever foreign code raises into one ConfigError that starts with `what`."""
    try:
        yield
    except ConfigError as error:
        if str(error).startswith(what):
            raise
        raise ConfigError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:  # a plug-in may raise anything, a script may exit
        raise ConfigError(f"{what}: {type(error).__name__}: {error}") from error


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the closest of `known`, or nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


# --- importing --------------------------------------------------------------------------------


def _import(module: str, *, kind: str) -> ModuleType:
    try:
        return importlib.import_module(module, _PACKAGE)
    except ImportError as error:
        raise ConfigError(f"{kind} cannot be imported: {error}") from error


def _import_from(module: str, folders: Sequence[str]) -> ModuleType:
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    found = importlib.machinery.PathFinder.find_spec(top, list(folders)) if folders else None
    if loaded is not None and found is not None and found.origin != _origin(loaded):
        raise ConfigError(
            f"module {top!r} of {found.origin} is hidden by {_origin(loaded) or 'a built-in one'},"
            " which is imported already; rename it or name it as 'path/file.py:Object'"
        )
    try:
        with _search_first(folders):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in {module, top}:
            raise
        searched = ", ".join(folders) or "none given"
        raise ConfigError(f"{error} (python_path: {searched})") from error


def _import_file(file: str, folders: Sequence[str]) -> ModuleType:
    candidates = [Path(file), *(Path(folder) / file for folder in folders)]
    source = next((c.resolve() for c in candidates if c.is_file()), None)
    if source is None:
        raise ConfigError(f"no such file: {' or '.join(map(str, candidates))}")
    digest = hashlib.blake2b(str(source).encode(), digest_size=4).hexdigest()
    name = f"{source.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{source} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # what pickle and dataclasses look a class's module up in
    try:
        with _search_first((str(source.parent), *folders)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _search_first(folders: Sequence[str]) -> Iterator[None]:
    """Look in `folders` first while a plug-in and its own imports are loaded."""
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for folder in folders:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)


def _attribute(module: ModuleType, target: str) -> Any:
    value: Any = module
    for part in target.rpartition(":")[2].split("."):
        if not hasattr(value, part):
            names = [n for n in vars(value) if not n.startswith("_")]
            where = getattr(value, "__name__", str(value))
            raise ConfigError(f"{where} has no {part!r}{did_you_mean(part, names)}")
        value = getattr(value, part)
    return value


def _origin(module: ModuleType) -> str | None:
    spec = module.__spec__
    return spec.origin if spec is not None else getattr(module, "__file__", None)


def _folders(path: str | Sequence[str] | None) -> list[str]:
    entries = [path] if isinstance(path, str) else list(path or ())
    return [str(Path(entry).expanduser().resolve()) for entry in entries]


def _unknown(name: str, *, kind: str, builtin: Mapping[str, str]) -> str:
    known = ", ".join(sorted(builtin)) or "none"
    return (
        f"{kind} {name!r} is not known{did_you_mean(name, list(builtin))} (built in: {known};"
        " your own: 'package.module:Object' or 'path/file.py:Object')"
    )
