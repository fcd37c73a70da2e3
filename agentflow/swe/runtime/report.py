"""The judge's report: lines that only the judge's own process can have written. Pure.

Each line is `TAG BODY`, the tag a keyed hash over all bodies so far: a line that was added,
changed, dropped or moved breaks the chain.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOutcome:
    """One test as it was seen."""

    __test__ = False
    node_id: str
    status: str
    """`passed`, `failed`, `error`, `skipped` or `xfailed`."""
    text: str = ""
    """The end of a failure's text."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What the judge saw, as far as it got."""

    tests: list[TestOutcome] = field(default_factory=list)
    decoys: list[TestOutcome] = field(default_factory=list)
    """Planted tests that fail whatever the code under test is."""
    twins: list[TestOutcome] = field(default_factory=list)
    """Awaited tests with an assertion altered: whoever passes the test itself fails them."""
    collect_errors: list[TestOutcome] = field(default_factory=list)
    """Files that could not be imported."""
    complete: bool = False
    """Whether the run came to its end."""
    violation: str = ""
    """What had been tampered with, as the judge saw it; empty when nothing."""


def read_report(data: bytes, key: bytes) -> Report:
    """Check and read a report; stops at the first line that is not the judge's."""
    chain = hashlib.blake2b(key=key, digest_size=16)
    report = Report()
    lines = data.split(b"\n")
    for line in lines[:-1]:
        tag, _, body = line.partition(b" ")
        chain.update(body)
        if not hmac.compare_digest(tag, chain.hexdigest().encode()) or report.complete:
            report.violation = "somebody else wrote into the report"
            report.complete = False
            return report
        _take(report, body.decode("ascii"))
    if lines[-1]:
        report.complete = False
    return report


def _take(report: Report, body: str) -> None:
    kind, *fields = body.split(" ")
    values = ["" if value == "-" else bytes.fromhex(value).decode() for value in fields]
    match kind, values:
        case "test", [node_id, status, text]:
            report.tests.append(TestOutcome(node_id=node_id, status=status, text=text))
        case "decoy", [node_id, status, text]:
            report.decoys.append(TestOutcome(node_id=node_id, status=status, text=text))
        case "twin", [node_id, status, text]:
            report.twins.append(TestOutcome(node_id=node_id, status=status, text=text))
        case "collect", [node_id, text]:
            report.collect_errors.append(TestOutcome(node_id=node_id, status="error", text=text))
        case "end", [_, violation]:
            report.complete = True
            report.violation = violation
        case _:
            raise ValueError(f"unknown line in the judge's report: {body[:80]!r}")
