"""Report, verdict and protection: the judge's decisions, without any process."""

from __future__ import annotations

import hashlib

import pytest

from agentflow.swe.runtime.protected import Change, Protection
from agentflow.swe.runtime.report import Report, TestOutcome, read_report
from agentflow.swe.runtime.verdict import Reason, judge

KEY = b"key"


def lines(*bodies: str, key: bytes = KEY) -> list[bytes]:
    """The judge's lines, chained."""
    chain = hashlib.blake2b(key=key, digest_size=16)
    out = []
    for body in bodies:
        chain.update(body.encode())
        out.append(f"{chain.hexdigest()} {body}\n".encode())
    return out


def seen(name: str, status: str = "passed") -> str:
    """The line of one test."""
    return f"test {name.encode().hex()} {status.encode().hex()} -"


END = f"end {b'0'.hex()} -"


def test_a_whole_report_is_read() -> None:
    """Every line is there, and the end."""
    report = read_report(b"".join(lines(seen("a.py::t"), END)), KEY)
    assert report.complete
    assert report.tests == [TestOutcome(node_id="a.py::t", status="passed")]


@pytest.mark.parametrize("case", ["dropped", "swapped", "doubled", "other key", "after the end"])
def test_a_report_that_was_edited_is_a_violation(case: str) -> None:
    """Lines can be neither dropped nor moved nor copied nor made."""
    a, b, end = lines(seen("a.py::t"), seen("a.py::u", "failed"), END)
    edited = {
        "dropped": [a, end],
        "swapped": [b, a, end],
        "doubled": [a, a, b, end],
        "other key": lines(seen("a.py::t"), END, key=b"guess"),
        "after the end": [a, b, end, *lines(END)],
    }[case]
    report = read_report(b"".join(edited), KEY)
    assert report.violation
    assert not report.complete


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_report_that_breaks_off_is_incomplete(cut: int) -> None:
    """However many bytes are missing at its end, nobody is accused and nothing is decided."""
    whole = b"".join(lines(seen("a.py::t"), END))
    report = read_report(whole[:-cut], KEY)
    assert not report.complete
    assert not report.violation


@pytest.mark.parametrize(
    ("awaited", "statuses", "resolved"),
    [
        ("a.py::t", {"a.py::t": "passed"}, True),
        ("a.py::t", {"a.py::t": "xfailed"}, True),
        ("a.py::t", {"a.py::t": "skipped"}, False),
        ("a.py::t", {}, False),
        ("a.py::t[x", {"a.py::t[x y]": "passed", "a.py::t[x z]": "passed"}, True),
        ("a.py::t[x", {"a.py::t[x y]": "passed", "a.py::t[x z]": "failed"}, False),
        ("a.py::t[x", {"a.py::t[x y]": "passed", "a.py::t[x z]": "skipped"}, True),
        ("a.py::t[x y]", {"a.py::t[x y]": "passed", "a.py::t[x z]": "failed"}, True),
        ("a.py::t[x", {"a.py::t[xy]": "passed"}, False),
    ],
)
def test_ids_cut_at_a_space_are_matched(
    awaited: str, statuses: dict[str, str], *, resolved: bool
) -> None:
    """As SWE-bench reads its logs: all tests of one cut id share their fate."""
    tests = [TestOutcome(node_id=name, status=status) for name, status in statuses.items()]
    decoys = [TestOutcome(node_id=name, status="failed") for name in statuses]
    report = Report(tests=tests, decoys=decoys, complete=True)
    verdict = judge(report, fail_to_pass=[awaited], pass_to_pass=[])
    assert (verdict.reason is Reason.RESOLVED) == resolved


@pytest.mark.parametrize("status", ["passed", "xfailed", None])
def test_a_decoy_that_does_not_fail_is_tampering(status: str | None) -> None:
    """A planted failure that passed, or is gone, outweighs every test that passed."""
    report = Report(tests=[TestOutcome(node_id="a.py::t", status="passed")], complete=True)
    if status:
        report.decoys.append(TestOutcome(node_id="a.py::t", status=status))
    verdict = judge(report, fail_to_pass=["a.py::t"], pass_to_pass=[])
    assert verdict.reason is Reason.TAMPERED


@pytest.mark.parametrize(
    ("status", "reason"), [("passed", Reason.TAMPERED), ("failed", Reason.TESTS_FAILED)]
)
def test_a_twin_that_passes_accuses_only_who_passes_what_is_awaited(
    status: str, reason: Reason
) -> None:
    """A mistake may satisfy an altered assertion; a solution cannot."""
    report = Report(
        tests=[TestOutcome(node_id="a.py::t", status=status)],
        decoys=[TestOutcome(node_id="a.py::t", status="failed")],
        twins=[TestOutcome(node_id="a.py::t", status="passed")],
        complete=True,
    )
    assert judge(report, fail_to_pass=["a.py::t"], pass_to_pass=[]).reason is reason


@pytest.mark.parametrize(
    ("path", "is_new", "put_back"),
    [
        ("pkg/core.py", False, False),
        ("pkg/new.py", True, False),
        ("pyproject.toml", False, False),
        ("docs/tests.md", True, False),
        ("pkg/json.py", True, False),
        ("json/__init__.py", True, True),
        ("json.py", True, True),
        ("json.cpython-311-x86_64-linux-gnu.so", True, True),
        ("json.py", False, False),
        ("src/unittest/case.py", True, True),
        ("src/pytest_evil.py", True, True),
        ("conftest.py", True, True),
        ("pkg/sub/conftest.py", False, True),
        ("pkg/Conftest.py", True, True),
        ("sitecustomize.py", True, True),
        ("lib/x.pth", True, True),
        ("pytest.ini", False, True),
        ("evil.dist-info/entry_points.txt", True, True),
        ("pkg/__pycache__/core.cpython-311.pyc", True, True),
        ("tests/unit/test_a.py", False, True),
        ("tests/helpers.py", True, True),
        ("tests", True, True),
        ("tests/unit", True, True),
        ("conf/pytest.cfg", False, True),
    ],
)
def test_what_is_put_back(path: str, *, is_new: bool, put_back: bool) -> None:
    """The code under test stays as the patch has it; what would steer the judge does not."""
    protection = Protection(
        judge_files=frozenset({"tests/unit/test_a.py"}),
        import_roots=("src", "."),
        pytest_config="conf/pytest.cfg",
    )
    change = Change(path=path, is_new=is_new)
    assert protection.put_back([change]) == ([change] if put_back else [])


def test_a_folder_in_the_place_of_a_judges_file_is_protected() -> None:
    """It would keep the file from being laid over the tree."""
    protection = Protection(judge_files=frozenset({"checks/t.py"}), import_roots=(".",))
    changes = [Change(path=p, is_new=True) for p in ("checks/t.py/x.txt", "checks/t.pyx")]
    assert protection.put_back(changes) == changes[:1]
