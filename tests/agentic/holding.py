"""A RolloutBackend over the small world's parts, which stand in the configuration as they are."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from world import Agents, ByContext, Chars, Envs, Runtimes

from agentflow.config_loading import Sources, check
from agentflow.engine.rids import RidFactory
from agentflow.engine.scripted import ScriptedEngine, ScriptedSettings
from agentflow.engine.turns import EngineAccess
from executors.backend import RolloutBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.config import AgentflowConfig
    from executors.data.groups import Group


def given(conf: Mapping[str, Any]) -> Any:
    """Give the part that the section holds."""
    return conf["part"]()


def _this(part: Any) -> Any:
    return part


class Holding:
    """A backend's parts, and the backend."""

    def __init__(
        self, *, agents: Any = None, envs: Envs | None = None, **sections: Mapping[str, Any]
    ) -> None:
        self.envs = envs or Envs(random.Random(0))
        parts = {
            "agent": agents or Agents(),
            "environment": self.envs,
            "runtime": Runtimes(self.envs),
        }
        values: dict[str, Any] = {
            "run": {"n": 2},
            "engine": {"url": "world"},
            "rollout": {"enable_action_level_scheduling": True, "max_concurrency": 8},
            "flow": {
                k: {"name": f"{__file__}:given", "part": partial(_this, p)}
                for k, p in parts.items()
            },
        }
        for section, fields in sections.items():
            values[section] = {**values.get(section, {}), **fields}
        self.config: AgentflowConfig = check(Sources(values=values))
        self.backend = self.again()

    def again(self) -> RolloutBackend:
        """Make another backend over the same parts."""
        return RolloutBackend(self.config, make_engine=self._make_engine)

    def _make_engine(self, config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> Any:
        chars = Chars()
        self.engine = ScriptedEngine(
            ByContext(),
            tokenizer=chars,  # type: ignore[arg-type]  # all it needs of one
            settings=ScriptedSettings(chunk_tokens=2),
        )
        return EngineAccess(engine=self.engine, renderer=chars, rids=RidFactory())


def rows(*names: str, turns: int = 2) -> list[dict[str, Any]]:
    """Make task rows."""
    return [{"instance_id": n, "problem_statement": f"fix {n}", "turns": turns} for n in names]


def uids(groups: Sequence[Group]) -> list[str]:
    """Name the groups."""
    return [group[0].episode.uid for group in groups]
