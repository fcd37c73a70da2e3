"""Judge: brings a patch into a fresh environment, runs the task's tests, reads what they say.

What can be trusted, and what cannot
- The agent never touched this environment. Only its patch comes in, through `git apply`, which
  writes neither outside the tree nor through links.
- What the patch brings that Python or pytest would run by themselves, what shadows their modules,
  and whatever it did to the judge's own tests is put back (`protected.py`); then the task's tests
  are laid over it.
- The verdict is made here, outside, from a report with a keyed hash chain. No file, no exit code
  and no printed line of the tests counts.
- The code under test runs in the tests' own process, as in every Python test-suite. Against code
  that goes for the process from within there are decoys and altered twins of the awaited tests
  that must fail, integrity checks of pytest, unittest, the builtins and the judge's end itself,
  and a key that is in no Python object (`child/`).
- What remains, and no in-process judge can rule out: code that walks the frames or the threads to
  the judge's own locals, code that reads the expected value out of its caller's source, and, where
  a test can have no twin (methods, `async`, no assertion in its own block), code whose objects are
  equal to everything. Twins cost the time of the awaited tests once more.
"""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.errors import ContainerKilled, EvalFailed
from agentflow.swe.runtime.protected import Change, Protection
from agentflow.swe.runtime.report import Report, read_report
from agentflow.swe.runtime.repository import GIT, disk_is_full, last_words
from agentflow.swe.runtime.verdict import Reason, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.protocols import ContainerEnv
    from agentflow.swe.tasks.schema import SWETask
    from agentflow.types import CommandResult

_FOLDER = ".git/agentflow"
"""In the environment. No patch can write there: git refuses paths in `.git`."""
_CHILD = Path(__file__).with_name("child")
_CHILD_FILES = ("__main__.py", "judge_twins.py", "judge_watch.py")
_MAX_LIST_BYTES = 16 << 20
_MAX_REPORT_BYTES = 256 << 20
"""A report has at most 4 KB a failure."""

_REFUSED = 92
_APPLY = f"""
said=$(g apply --index --whitespace=nowarn {_FOLDER}/policy.patch 2>&1) || {{
  rc=$?; printf '%s\\n' "$said"
  [ -n "$said" ] && [ "$rc" -le 128 ] && exit {_REFUSED}; exit 95
}}
g diff --cached --name-status -z --no-renames HEAD > {_FOLDER}/changed
"""

_PUT_BACK = f"""
xargs -0 -r rm -rf -- < {_FOLDER}/all
g read-tree HEAD
g checkout-index -f -q -z --stdin < {_FOLDER}/known
"""

_TEST_PATCH = f"""
g apply --whitespace=nowarn {_FOLDER}/test.patch
"""

_RUN = """
for python in {candidates}; do
  found=$(command -v "$python") || continue
  if "$found" -I -c 'import importlib.util as u, sys; sys.exit(u.find_spec("pytest") is None)'; then
    exec "$found" -I -B {folder}/child
  fi
done 2>/dev/null
echo 'no Python with pytest among: {candidates}'
exit 93
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges patches for one task."""

    task: SWETask
    judge_files: Mapping[str, bytes]
    python: str
    """The interpreter inside the environment, or `auto`."""
    timeout_s: float
    """For each of our own commands; the tests have the task's `eval_timeout_s`."""

    async def verdict(self, env: ContainerEnv, patch: str) -> Verdict:
        """Judge `patch` in `env`, which holds the bootstrapped repository. Raises EvalFailed."""
        changes = await self._apply(env, patch)
        if isinstance(changes, Verdict):
            return changes
        undone = await self._put_back(env, changes)
        await self._lay_tests_over(env)
        return await self._run(env, changes, tuple(change.path for change in undone))

    # --- the tree to be judged ----------------------------------------------------------------

    async def _apply(self, env: ContainerEnv, patch: str) -> list[Change] | Verdict:
        raw = patch.encode("utf-8", "surrogateescape")
        await env.write_files(
            {f"{_FOLDER}/policy.patch": raw if raw[-1:] == b"\n" else raw + b"\n"}
        )
        result = await env.execute(GIT + _APPLY, timeout_s=self.timeout_s)
        if result.exit_code:
            if result.exit_code != _REFUSED or await disk_is_full(env, result):
                raise EvalFailed(
                    f"{self.task.instance_id}: the patch could not be applied, "
                    f"and not for what is in it: {last_words(result)}"
                )
            return Verdict(reason=Reason.PATCH_DOES_NOT_APPLY, detail=last_words(result))
        listing = await env.read_file(f"{_FOLDER}/changed", max_bytes=_MAX_LIST_BYTES)
        fields = listing.decode("utf-8", "surrogateescape").split("\0")[:-1]
        return [
            Change(path=path, is_new=status == "A")
            for status, path in zip(fields[::2], fields[1::2], strict=True)
        ]

    async def _put_back(self, env: ContainerEnv, changes: list[Change]) -> list[Change]:
        protection = self._protection()
        undone = protection.put_back(changes)
        if undone:
            known = [change for change in undone if not change.is_new]
            folders = {protection.blocked_by(change.path) for change in undone}
            gone = [*(change.path for change in undone), *sorted(filter(None, folders))]
            await env.write_files(
                {
                    f"{_FOLDER}/all": _nul_list(gone),
                    f"{_FOLDER}/known": _nul_list([change.path for change in known]),
                }
            )
            await self._must(env, _PUT_BACK, "the judge's files could not be put back")
        return undone

    def _protection(self) -> Protection:
        return Protection(
            judge_files=frozenset(
                [*self.judge_files, *self.task.judged_files, *_paths_of(self.task.test_patch)]
            ),
            import_roots=self.task.import_roots,
            pytest_config=self.task.pytest_config,
        )

    async def _lay_tests_over(self, env: ContainerEnv) -> None:
        if self.task.test_patch:
            data = self.task.test_patch.encode("utf-8", "surrogateescape")
            await env.write_files({f"{_FOLDER}/test.patch": data.rstrip(b"\n") + b"\n"})
            await self._must(env, _TEST_PATCH, "the task's test_patch does not apply")
        if self.judge_files:
            await env.write_files(self.judge_files)

    async def _must(self, env: ContainerEnv, script: str, failure: str) -> None:
        result = await env.execute(GIT + script, timeout_s=self.timeout_s)
        if result.exit_code:
            raise EvalFailed(f"{self.task.instance_id}: {failure}: {last_words(result)}")

    # --- the tests ----------------------------------------------------------------------------

    async def _run(
        self, env: ContainerEnv, changes: list[Change], put_back: tuple[str, ...]
    ) -> Verdict:
        key, hello = secrets.token_bytes(32), secrets.token_hex(16)
        patched = [change.path for change in changes if change.path not in put_back]
        plan = self._plan(key=key, hello=hello, patched=patched)
        await env.write_files(
            {
                f"{_FOLDER}/plan.json": json.dumps(plan).encode(),
                **{
                    f"{_FOLDER}/child/{name}": (_CHILD / name).read_bytes() for name in _CHILD_FILES
                },
            }
        )
        names = [self.python] if self.python != "auto" else [sys.executable, "python3", "python"]
        candidates = " ".join(shlex.quote(name) for name in names)
        script = _RUN.format(candidates=candidates, folder=_FOLDER)
        try:
            result = await env.execute(script, timeout_s=self.task.eval_timeout_s)
        except ContainerKilled as exc:
            return Verdict(reason=Reason.INCOMPLETE, detail=str(exc), put_back=put_back)
        if hello not in result.text:
            raise EvalFailed(
                f"{self.task.instance_id}: the tests did not start: {last_words(result)}"
            )
        return self._conclude(result, await _read_report(env, key), put_back)

    def _plan(self, *, key: bytes, hello: str, patched: list[str]) -> dict[str, Any]:
        return {
            "key": key.hex(),
            "hello": hello,
            "salt": secrets.token_hex(16),
            "files": list(self.task.judged_files),
            "awaited": list(self.task.FAIL_TO_PASS),
            "import_roots": list(self.task.import_roots),
            "plugins": None if self.task.plugins is None else list(self.task.plugins),
            "pytest_config": self.task.pytest_config,
            "patched": patched,
        }

    def _conclude(
        self, result: CommandResult, report: Report, put_back: tuple[str, ...]
    ) -> Verdict:
        if report.complete:
            verdict = judge(
                report,
                fail_to_pass=self.task.FAIL_TO_PASS,
                pass_to_pass=self.task.PASS_TO_PASS,
            )
        else:
            detail = report.violation or last_words(result)
            verdict = Verdict(reason=_why_incomplete(result, report), detail=detail)
        return replace(verdict, put_back=put_back, duration_s=result.duration_s)


async def _read_report(env: ContainerEnv, key: bytes) -> Report:
    """Read the report; one that the tests removed, replaced or locked is an incomplete one."""
    try:
        return read_report(
            await env.read_file(f"{_FOLDER}/report", max_bytes=_MAX_REPORT_BYTES), key
        )
    except (OSError, ValueError):
        return Report()


def _why_incomplete(result: CommandResult, report: Report) -> Reason:
    if report.violation:
        return Reason.TAMPERED
    if result.timed_out:
        return Reason.TIMED_OUT
    return Reason.OUT_OF_MEMORY if result.out_of_memory else Reason.INCOMPLETE


def _nul_list(paths: list[str]) -> bytes:
    return b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)


def _paths_of(patch: str) -> list[str]:
    """The files that a patch names."""
    return [
        line[len("+++ b/") :].rstrip("\t\r")
        for line in patch.splitlines()
        if line.startswith(("+++ b/", "--- a/"))
    ]
