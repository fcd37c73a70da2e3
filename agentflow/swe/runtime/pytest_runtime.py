"""PytestRuntime: what a SWE task means inside an environment (bootstrap, diff, eval).

Talks to the environment through the `ContainerEnv` protocol alone. Its materials stay behind when
it is pickled: build it again from its sample.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from agentflow.errors import (
    BootstrapFailed,
    ConfigError,
    ContainerKilled,
    EvalFailed,
    PreprocessFailed,
)
from agentflow.provider_config import parse_section
from agentflow.swe.runtime.judge import Judge
from agentflow.swe.runtime.repository import PatchUnreadable, Repository
from agentflow.swe.runtime.verdict import Reason, Verdict
from agentflow.swe.tasks.schema import parse_task
from agentflow.swe.tasks.sources import Materials, materialise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentflow.protocols import ContainerEnv
    from agentflow.swe.sample import SWESample
    from agentflow.swe.tasks.schema import SWETask

_KEPT_MATERIALS = 64
"""Tasks whose files stay in memory, so that the replicas of a group read them once."""


class PytestRuntimeConfig(BaseModel):
    """The section `runtime` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "swe"
    """What chose this runtime."""
    python: str = "auto"
    """Interpreter that runs the tests inside the environment; it needs pytest. `auto` takes this
    process's own where it exists there and has pytest, else `python3`, else `python`."""
    max_patch_bytes: int = Field(default=10 << 20, gt=0)
    """A larger patch counts as none."""
    command_timeout_s: float = Field(default=300.0, gt=0)
    """For each of the runtime's own commands (git); the tests have the task's limit."""


class PytestRuntimeBuilder:
    """Makes the runtime of one episode; `build` blocks (disk, git, pip)."""

    config_class: ClassVar[type[PytestRuntimeConfig]] = PytestRuntimeConfig

    def __init__(self, subconf: Mapping[str, Any] | None = None) -> None:
        self._conf = parse_section(self.config_class, subconf or {}, kind="runtime")
        self._materials: Callable[[str], Materials] = functools.lru_cache(_KEPT_MATERIALS)(
            _materialise
        )

    def build(self, sample: SWESample) -> PytestRuntime:
        """Read the task's files, also those of an episode that comes from another process.

        Raises PreprocessFailed, also for a row that is none: it ends its episode, not the others.
        """
        row = json.dumps(dict(sample.m.data.task), sort_keys=True)
        before = sample.m.runtime
        try:
            task, materials = parse_task(sample.m.data.task), self._materials(row)
        except ConfigError as error:
            raise PreprocessFailed(str(error)) from error
        return PytestRuntime(
            sample=sample,
            task=task,
            materials=materials,
            conf=self._conf,
            image_commit=before.image_commit if isinstance(before, PytestRuntime) else "",
        )


def _materialise(row: str) -> Materials:
    return materialise(json.loads(row))


class PytestRuntime:
    """One episode's runtime; writes its findings into the sample."""

    def __init__(
        self,
        *,
        sample: SWESample,
        task: SWETask,
        materials: Materials,
        conf: PytestRuntimeConfig,
        image_commit: str = "",
    ) -> None:
        self._sample = sample
        self._task = task
        self._materials: Materials | None = materials
        self._conf = conf
        self.image_commit = image_commit
        """Commit that bootstrap made of the image's tree."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_materials": None}

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Put the repository there in its buggy state, as one commit. Raises BootstrapFailed."""
        repository = self._repository()
        try:
            await repository.bootstrap(env)
        except (OSError, ValueError) as exc:
            raise BootstrapFailed(f"{self._task.instance_id}: {exc}") from exc
        self.image_commit = repository.image_commit

    async def diff(self, env: ContainerEnv) -> None:
        """Read the patch. What the policy broke is an empty patch and a verdict that says so.

        Raises DiffFailed when it is not the policy's doing: a full disk.
        """
        rollout = self._sample.m.rollout
        try:
            rollout.patch = await self._repository().diff(env, max_bytes=self._conf.max_patch_bytes)
        except PatchUnreadable as exc:
            rollout.patch = ""
            rollout.verdict = Verdict(reason=Reason(exc.reason), detail=str(exc)).to_dict()
        except ContainerKilled as exc:
            rollout.patch = ""
            rollout.verdict = Verdict(reason=Reason.REPOSITORY_BROKEN, detail=str(exc)).to_dict()

    async def eval(self, env: ContainerEnv) -> None:
        """Judge the patch in `env`, a fresh one; sets reward and verdict. Raises EvalFailed."""
        rollout = self._sample.m.rollout
        if rollout.patch is None:
            raise EvalFailed(f"{self._task.instance_id}: no patch was read before judging")
        if not rollout.patch.strip():
            known = rollout.verdict or Verdict(reason=Reason.EMPTY_PATCH).to_dict()
            rollout.verdict, self._sample.reward = known, 0.0
            return
        verdict = await self._judge(env, rollout.patch)
        rollout.verdict, self._sample.reward = verdict.to_dict(), verdict.reward

    async def _judge(self, env: ContainerEnv, patch: str) -> Verdict:
        judge = Judge(
            task=self._task,
            judge_files=self._bound().judge_files,
            python=self._conf.python,
            timeout_s=self._conf.command_timeout_s,
        )
        try:
            await self._repository().bootstrap(env)
            return await judge.verdict(env, patch)
        except (BootstrapFailed, OSError, ValueError) as exc:
            raise EvalFailed(f"{self._task.instance_id}: {exc}") from exc

    def _repository(self) -> Repository:
        return Repository(
            base_stream=self._bound().base_stream,
            timeout_s=self._conf.command_timeout_s,
            image_commit=self.image_commit,
        )

    def _bound(self) -> Materials:
        if self._materials is None:
            raise RuntimeError(
                f"{self._task.instance_id}: build the runtime again after unpickling"
            )
        return self._materials
