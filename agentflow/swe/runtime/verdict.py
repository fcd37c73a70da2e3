"""Verdict: what the report says about FAIL_TO_PASS and PASS_TO_PASS. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentflow.swe.runtime.report import Report, TestOutcome

_GOOD = frozenset({"passed", "xfailed"})
_BAD = frozenset({"failed", "error"})
_SHOWN_CHARACTERS = 2000
"""Of the first failure's text, in the verdict's detail."""


class Reason(StrEnum):
    """Why the reward is what it is; all but the first are reward 0."""

    RESOLVED = "resolved"
    TESTS_FAILED = "tests_failed"
    EMPTY_PATCH = "empty_patch"
    PATCH_TOO_LARGE = "patch_too_large"
    REPOSITORY_BROKEN = "repository_broken"
    """No patch could be read: the policy destroyed what it is read with."""
    DIFF_TIMED_OUT = "diff_timed_out"
    PATCH_DOES_NOT_APPLY = "patch_does_not_apply"
    TAMPERED = "tampered"
    """The judge itself was interfered with."""
    TIMED_OUT = "timed_out"
    """The tests did not end within `eval_timeout_s`."""
    OUT_OF_MEMORY = "out_of_memory"
    INCOMPLETE = "incomplete"
    """The tests' process ended before the last test: it exited, crashed, or was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's decision; `to_dict` is what a sample carries."""

    reason: Reason
    detail: str = ""
    """For a person: the first failure, what was tampered with, why the patch does not apply."""
    success: dict[str, list[str]] = field(default_factory=dict)
    """FAIL_TO_PASS and PASS_TO_PASS to the ids that passed."""
    failure: dict[str, list[str]] = field(default_factory=dict)
    put_back: tuple[str, ...] = ()
    """Paths of the patch that were undone before the tests ran."""
    duration_s: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether the task is solved."""
        return self.reason is Reason.RESOLVED

    @property
    def reward(self) -> float:
        """1.0 or 0.0."""
        return float(self.resolved)

    def to_dict(self) -> dict[str, Any]:
        """JSON, with `tests_status` as SWE-bench's own reports have it."""
        kinds = dict.fromkeys([*self.success, *self.failure])
        return {
            "resolved": self.resolved,
            "reason": self.reason.value,
            "detail": self.detail,
            "tests_status": {
                kind: {
                    "success": self.success.get(kind, []),
                    "failure": self.failure.get(kind, []),
                }
                for kind in kinds
            },
            "put_back": list(self.put_back),
            "duration_s": self.duration_s,
        }


def judge(report: Report, *, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Verdict:
    """Decide on a complete report.

    A twin accuses only a patch that passes what is awaited: one that is merely wrong may pass the
    altered assertion by its very mistake.
    """
    seen = _by_id(report.tests)
    awaited = {"FAIL_TO_PASS": fail_to_pass, "PASS_TO_PASS": pass_to_pass}
    success = {kind: [i for i in ids if _passed(i, seen)] for kind, ids in awaited.items()}
    failure = {kind: [i for i in ids if not _passed(i, seen)] for kind, ids in awaited.items()}
    decided = partial(Verdict, success=success, failure=failure)
    tampered = report.violation or _passed_where_it_cannot(report.decoys)
    if tampered:
        return decided(reason=Reason.TAMPERED, detail=tampered)
    if any(failure.values()):
        return decided(reason=Reason.TESTS_FAILED, detail=_first_failure(report, failure))
    tampered = _passed_where_it_cannot(report.twins)
    if tampered:
        return decided(reason=Reason.TAMPERED, detail=tampered)
    decoyed = {_cut(decoy.node_id) for decoy in report.decoys}
    if not all(_cut(node_id) in decoyed for node_id in success["FAIL_TO_PASS"]):
        detail = "planted failures are missing from the report"
        return decided(reason=Reason.TAMPERED, detail=detail)
    return decided(reason=Reason.RESOLVED)


def _passed_where_it_cannot(planted: Iterable[TestOutcome]) -> str:
    forged = next((test.node_id for test in planted if test.status in _GOOD), None)
    return f"a planted failure was reported as passed: {forged}" if forged is not None else ""


def _by_id(tests: Iterable[TestOutcome]) -> dict[str, list[TestOutcome]]:
    """Outcomes under their whole id, and under what is before its first space."""
    seen: dict[str, list[TestOutcome]] = {}
    for test in tests:
        for name in {test.node_id, _cut(test.node_id)}:
            seen.setdefault(name, []).append(test)
    return seen


def _cut(node_id: str) -> str:
    return next(iter(node_id.split(maxsplit=1)), node_id)


def _passed(node_id: str, seen: dict[str, list[TestOutcome]]) -> bool:
    """Several tests may share a cut id; as in SWE-bench's log reading, one bad one decides."""
    statuses = {test.status for test in seen.get(node_id, [])}
    return bool(statuses & _GOOD) and not statuses & _BAD


def _first_failure(report: Report, failure: dict[str, list[str]]) -> str:
    for error in report.collect_errors:
        return f"{error.node_id}: {error.text[-_SHOWN_CHARACTERS:]}"
    missed = [node_id for ids in failure.values() for node_id in ids]
    for test in report.tests:
        if test.status in _BAD and (test.node_id in missed or _cut(test.node_id) in missed):
            return f"{test.node_id}: {test.text[-_SHOWN_CHARACTERS:]}"
    return f"{missed[0]}: not passed, or never ran"
