"""Reads a configuration: a YAML file, overridden by command-line values, checked as a whole.

Owns where each value came from, so that every problem names file, line, dotted field and value; all
problems are reported at once. Reads the file it is given and imports the providers it names, and
touches nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from agentflow.config import AgentflowConfig, FlowConfig, with_default_name
from agentflow.config_yaml import Path, parse_scalar, parse_yaml
from agentflow.errors import ConfigError
from agentflow.policies import build_policy
from agentflow.registry import BUILTIN_FLOW, did_you_mean, import_any
from agentflow.swe import BUILTIN_PROVIDERS, import_provider

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path as FilePath

    from pydantic_core import ErrorDetails

ConfigT = TypeVar("ConfigT", bound=AgentflowConfig)

_SHOWN_VALUE = 60
"""Characters of a wrong value that a message repeats."""

_WANTED = {
    "model_type": "should be a mapping of keys",
    "dict_type": "should be a mapping of keys",
    "tuple_type": "should be a list",
}
"""Where the validator's own words speak of Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a configuration."""

    where: str
    """`file:line`, or the option that set the value."""
    name: str
    """Dotted path of the key."""
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.name, self.message) if part)


class InvalidConfig(ConfigError):
    """Everything that is wrong with a configuration."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """`problems` in the order of the file."""
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(slots=True, kw_only=True)
class Sources:
    """Values before they are checked, and where each came from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    default: str = "command line"
    """Where a value is wanted that nobody gave."""

    def set(self, path: Path, value: Any, origin: str) -> None:
        """Put `value` at `path`. Raises ConfigError where a plain value is in the way."""
        node = self.values
        for depth, key in enumerate(path[:-1], start=1):
            child = node.get(str(key))
            if child is None:
                child = node[str(key)] = {}
            if not isinstance(child, dict):
                at = ".".join(map(str, path[:depth]))
                raise ConfigError(f"{origin}: {at} is {child!r}, which has no keys")
            node = child
        node[str(path[-1])] = value
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]
        self.origins[path] = origin

    def where(self, path: Path) -> str:
        """Tell the origin of the nearest enclosing value."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return self.default


def load_config(
    file: FilePath | None = None,
    *,
    options: Mapping[str, tuple[Path, Any]] | None = None,
    assignments: Sequence[str] = (),
) -> AgentflowConfig:
    """Read `file`, apply `options` and then `assignments`, and check the whole.

    `options` maps an option's name (`--n`) to the field it sets and its value; None sets nothing.
    `assignments` are `dotted.field=YAML value`. Raises ConfigError, with all problems at once.
    """
    return load_config_as(AgentflowConfig, file, options=options, assignments=assignments)


def load_config_as(
    model: type[ConfigT],
    file: FilePath | None = None,
    *,
    options: Mapping[str, tuple[Path, Any]] | None = None,
    assignments: Sequence[str] = (),
) -> ConfigT:
    """Do the same for a configuration with sections of its own."""
    sources = read_file(file) if file is not None else Sources()
    for option, (path, value) in (options or {}).items():
        if value is not None:
            sources.set(path, value, option)
    for assignment in assignments:
        path, value = parse_assignment(assignment)
        sources.set(path, value, f"--set {assignment}")
    return check_as(model, sources)


def read_file(file: FilePath) -> Sources:
    """Read a YAML file. Raises ConfigError for what is not a mapping, or not readable YAML."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text: {error}") from error
    document = parse_yaml(text, name=str(file))
    if document.value is None:
        return Sources(default=str(file))
    if not isinstance(document.value, dict):
        kind = type(document.value).__name__
        raise ConfigError(f"{file}:1: a mapping of sections is wanted, not a {kind}")
    origins = {path: f"{file}:{line}" for path, line in document.lines.items()}
    return Sources(values=document.value, origins=origins, default=str(file))


def parse_assignment(assignment: str) -> tuple[Path, Any]:
    """Split `dotted.field=value`; the value is YAML. Raises ConfigError."""
    name, equals, text = assignment.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(
            f"--set {assignment}: wanted is dotted.field=value, as in sampling.top_p=0.9"
        )
    return path, parse_scalar(text, name=f"--set {name}")


def check(sources: Sources) -> AgentflowConfig:
    """Make the typed configuration. Raises InvalidConfig with every problem there is."""
    return check_as(AgentflowConfig, sources)


def check_as(model: type[ConfigT], sources: Sources) -> ConfigT:
    """Do the same for a configuration with sections of its own."""
    problems: list[Problem] = []
    config = None
    try:
        config = model.model_validate(sources.values)
    except ValidationError as error:
        problems += [_problem(detail, sources, model) for detail in error.errors()]
    problems += _flow_problems(sources)
    problems += _policy_problems(sources)
    if problems or config is None:
        raise InvalidConfig(problems)
    return config


# --- one problem ------------------------------------------------------------------------------


def _problem(
    detail: ErrorDetails, sources: Sources, model: type[BaseModel], prefix: Path = ()
) -> Problem:
    path = (*prefix, *detail["loc"])
    return Problem(
        where=sources.where(path),
        name=".".join(map(str, path)),
        message=_message(detail, model),
    )


def _message(detail: ErrorDetails, model: type[BaseModel]) -> str:
    if detail["type"] == "extra_forbidden":
        key = str(detail["loc"][-1])
        known = _fields_at(model, detail["loc"][:-1])
        return f"unknown key{did_you_mean(key, known)} (known: {', '.join(sorted(known))})"
    if detail["type"] == "missing":
        return "is missing"
    if detail["type"] == "value_error" and isinstance(detail["input"], dict):
        return detail["msg"].removeprefix("Value error, ")
    shown = repr(detail["input"])
    if len(shown) > _SHOWN_VALUE:
        shown = shown[:_SHOWN_VALUE] + "…"
    wanted = _WANTED.get(detail["type"]) or detail["msg"].removeprefix("Input ")
    return f"{shown} {wanted}"


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    for key in loc:
        info = model.model_fields.get(str(key))
        nested = _model_in(info.annotation) if info is not None else None
        if nested is None:
            return []
        model = nested
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


# --- flow and providers -----------------------------------------------------------------------


def _flow_problems(sources: Sources) -> Iterator[Problem]:
    """Import what `flow` names and let each provider check its own keys."""
    given = sources.values.get("flow", {})
    if not isinstance(given, dict):
        return
    flow = {**FlowConfig().model_dump(), **given}
    name = flow["name"]
    if not isinstance(name, str) or not _valid_path(flow["python_path"]):
        return
    try:
        import_any(name, builtin=BUILTIN_FLOW, path=flow["python_path"], kind="flow")
    except ConfigError as error:
        yield _at(sources, ("flow", "name"), error)
    if name not in BUILTIN_FLOW:
        return
    if flow["options"]:
        message = f"{flow['options']!r}: the flow {name!r} takes no options"
        yield _at(sources, ("flow", "options"), message)
    for section in BUILTIN_PROVIDERS:
        yield from _provider_problems(sources, flow, section)


def _policy_problems(sources: Sources) -> Iterator[Problem]:
    """Make the policy that `rollout` names."""
    rollout, flow = (sources.values.get(section, {}) for section in ("rollout", "flow"))
    if not (isinstance(rollout, dict) and isinstance(flow, dict)):
        return
    policy, preemption = rollout.get("policy", {"name": "fcfs"}), rollout.get("preemption", False)
    path = flow.get("python_path", ())
    if not (isinstance(policy, dict) and isinstance(preemption, bool) and _valid_path(path)):
        return
    try:
        build_policy(policy, preemption=preemption, python_path=path)
    except ConfigError as error:
        yield _at(sources, ("rollout", "policy"), error)


def _provider_problems(
    sources: Sources, flow: Mapping[str, Any], section: str
) -> Iterator[Problem]:
    subconf = with_default_name(section, flow[section])
    if not isinstance(subconf, dict):
        return
    if not isinstance(subconf["name"], str):
        known = ", ".join(sorted(BUILTIN_PROVIDERS[section]))
        message = f"{subconf['name']!r} is no name (built in: {known}; or your own)"
        yield _at(sources, ("flow", section, "name"), message)
        return
    try:
        cls = import_provider({**flow, section: subconf}, section)
    except ConfigError as error:
        yield _at(sources, ("flow", section, "name"), error)
        return
    model = getattr(cls, "config_class", None)
    if model is None:
        return
    own = {k: v for k, v in subconf.items() if k != "name" or "name" in model.model_fields}
    try:
        model.model_validate(own)
    except ValidationError as error:
        for detail in error.errors():
            yield _problem(detail, sources, model, ("flow", section))


def _at(sources: Sources, path: Path, message: object) -> Problem:
    return Problem(where=sources.where(path), name=".".join(map(str, path)), message=str(message))


def _valid_path(value: Any) -> bool:
    return isinstance(value, str | list | tuple) and all(isinstance(entry, str) for entry in value)
