"""YAML with the line of every key, strict where YAML lets mistakes pass.

A key given twice is an error, `1e-3` is a number, a date stays text, and a structure that contains
itself is refused. Raises ConfigError with file and line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from agentflow.errors import ConfigError

Path = tuple[int | str, ...]
"""Keys from the root to a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML document's value, and where its parts stand."""

    value: Any
    lines: dict[Path, int]
    """Line, from 1, of each key and list item."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's floats and without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str, *, name: str) -> Document:
    """Parse one document; `name` stands for it in messages."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return Document(value=None, lines={})
            lines: dict[Path, int] = {}
            _walk(node, (), lines, name=name, inside=())
            return Document(value=_unshared(loader.construct_document(node)), lines=lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{name}{line}: is not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: is not valid YAML: {error}") from error


def parse_scalar(text: str, *, name: str) -> Any:
    """Parse the value of one command-line assignment."""
    return parse_yaml(text, name=name).value


def _unshared(value: Any) -> Any:
    """Copy, so that what an alias repeats can be overridden in one place alone."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value


def _walk(
    node: yaml.Node, path: Path, lines: dict[Path, int], *, name: str, inside: tuple[int, ...]
) -> None:
    """Collect lines under `node`; `inside` are the nodes around it."""
    if id(node) in inside:
        raise ConfigError(f"{name}:{node.start_mark.line + 1}: contains itself by an alias")
    inside = (*inside, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _walk(item, (*path, index), lines, name=name, inside=inside)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            word, line = str(key.value), key.start_mark.line + 1
            if word in first:
                at = ".".join(map(str, (*path, word)))
                raise ConfigError(f"{name}:{line}: {at}: given twice, first on line {first[word]}")
            first[word] = line
            below = path if word == "<<" else (*path, word)
            lines.setdefault(below, line)
            _walk(value, below, lines, name=name, inside=inside)
