"""SWETask: one task row, checked. SWE-bench's fields as they are, and ours beside them.

Rows travel as plain mappings (they are the interchange format); this is how a part reads one.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentflow.errors import ConfigError
from agentflow.swe.tasks.tree import checked_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BundledSource(_Strict):
    """A task that ships with agentflow."""

    type: Literal["bundled"]
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Its folder."""


class DirSource(_Strict):
    """A folder on this machine that is the repository in its buggy state."""

    type: Literal["dir"]
    path: str
    """Relative to the task file; absolute once loaded."""
    tests: str | None = None
    """A folder that is laid over the repository when the patch is judged."""


class PypiSource(_Strict):
    """Two releases on PyPI: the bad one is the repository, the good one has tests and oracle."""

    type: Literal["pypi"]
    name: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    bad: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")
    good: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")
    tests: str = "tests"
    """The folder of the tests inside the archive."""
    sha256: dict[str, str] = Field(default_factory=dict)
    """Version to the digest of its source archive; a version without one is not checked."""


class GitSource(_Strict):
    """A git repository (folder or URL); the row's `base_commit` is the buggy state."""

    type: Literal["git"]
    url: str = Field(pattern=r"^[^-]")


class ImageSource(_Strict):
    """The repository stands in the image already, at `workdir` (SWE-bench's images)."""

    type: Literal["image"] = "image"


Source = Annotated[
    BundledSource | DirSource | PypiSource | GitSource | ImageSource, Field(discriminator="type")
]


class SWETask(BaseModel):
    """One row: SWE-bench's fields, then ours. Other keys of a data set are carried, not read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    instance_id: str = Field(min_length=1)
    repo: str = ""
    base_commit: str = ""
    problem_statement: str = Field(min_length=1)
    patch: str = ""
    """The oracle; empty where the source has it."""
    test_patch: str = ""
    """Applied to the repository before the tests run."""
    FAIL_TO_PASS: tuple[str, ...] = Field(min_length=1)
    """pytest ids, perhaps cut at the first space; the patch must make all of them pass."""
    PASS_TO_PASS: tuple[str, ...] = ()
    """pytest ids that must still pass."""

    source: Source = ImageSource()
    test_files: tuple[str, ...] = ()
    """Files that are run whole; default: those named by the ids."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of every command, the agent's and the judge's."""
    image: str = ""
    workdir: str = "/testbed"
    eval_timeout_s: float = Field(default=300.0, gt=0, le=86400)
    """The judge's test run ends here."""
    import_roots: tuple[str, ...] = ("src", ".")
    """Folders that the tests import from, first one first."""
    plugins: tuple[str, ...] | None = None
    """pytest plugins to load by module name; None loads those that are installed."""
    pytest_config: str | None = None
    """The repository's file that configures pytest; None runs without configuration."""

    @field_validator("FAIL_TO_PASS", "PASS_TO_PASS", mode="before")
    @classmethod
    def _decode(cls, value: Any) -> Any:
        """SWE-bench's own files hold these lists as JSON inside a string."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value or "[]")
        except json.JSONDecodeError as exc:
            raise ValueError(f"must be a list or a JSON list in a string: {exc}") from exc

    @field_validator("FAIL_TO_PASS", "PASS_TO_PASS")
    @classmethod
    def _are_pytest_ids(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        for node_id in ids:
            if not node_id.partition("::")[0].endswith(".py"):
                raise ValueError(f"{node_id!r} is no pytest id; expected FILE.py::TEST")
            checked_path(node_id.partition("::")[0])
        return ids

    @field_validator("test_files", "import_roots")
    @classmethod
    def _stay_inside(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path if path == "." else checked_path(path) for path in paths)

    @model_validator(mode="before")
    @classmethod
    def _spell_our_keys(cls, row: Any) -> Any:
        """A key that is nearly one of ours is a slip of the pen; others belong to the data set."""
        for key in set(row) - set(cls.model_fields) - _SWEBENCH_KEYS:
            hint = difflib.get_close_matches(key, cls.model_fields, n=1, cutoff=0.8)
            if hint:
                raise ValueError(f"unknown key {key!r}: did you mean {hint[0]!r}?")
        return row

    @property
    def judged_files(self) -> tuple[str, ...]:
        """The test files that are run, whole, in a stable order."""
        named = (node_id.partition("::")[0] for node_id in self.FAIL_TO_PASS + self.PASS_TO_PASS)
        return self.test_files or tuple(dict.fromkeys(named))


_SWEBENCH_KEYS = frozenset(
    {"hints_text", "created_at", "version", "environment_setup_commit", "difficulty"}
)


def parse_task(row: Mapping[str, Any], *, where: str = "") -> SWETask:
    """Check one row; raises ConfigError that names the place, the field and what is wrong."""
    try:
        return SWETask.model_validate(dict(row))
    except ValidationError as exc:
        name = row.get("instance_id", "a row without instance_id")
        raise ConfigError(f"{where or 'task'}: {name}: {_in_words(exc)}") from exc


def _in_words(exc: ValidationError) -> str:
    return "; ".join(_one_error(error) for error in exc.errors(include_url=False))


def _one_error(error: Mapping[str, Any]) -> str:
    place = [str(part) for part in error["loc"]]
    field = ".".join(place)
    message = str(error["msg"]).removeprefix("Value error, ")
    match error["type"], field:
        case "missing" | "too_short", "FAIL_TO_PASS":
            return "FAIL_TO_PASS is missing or empty: name the tests that the patch must make pass"
        case "missing", _:
            return f"{field} is missing"
        case "extra_forbidden", _:
            return f"unknown key {field!r}{_hint(place)}"
        case "union_tag_invalid" | "union_tag_not_found", _:
            return f"{field}.type must be one of {', '.join(_SOURCES)}"
        case _:
            return f"{field}: {message} (got {str(error['input'])[:80]!r})" if field else message


_SOURCES: dict[str, type[BaseModel]] = {
    "bundled": BundledSource,
    "dir": DirSource,
    "pypi": PypiSource,
    "git": GitSource,
    "image": ImageSource,
}


def _hint(place: list[str]) -> str:
    fields: Iterable[str] = _SOURCES[place[1]].model_fields if len(place) > 1 else ()
    close = difflib.get_close_matches(place[-1], fields, n=1)
    return f": did you mean {close[0]!r}?" if close else ""
