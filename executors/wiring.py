"""Makes the parts of a run from its configuration: tasks, samples, engine.

Everything that can be wrong with the input is found here, before anything is written or started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess
from agentflow.errors import ConfigError, EngineError
from agentflow.registry import BUILTIN_FLOW, did_you_mean
from agentflow.swe import BUILTIN_PROVIDERS
from agentflow.types import EpisodeId, RolloutSample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.config import AgentflowConfig, EngineConfig
    from agentflow.engine.model_folder import ModelFolder
    from agentflow.protocols import Model
    from agentflow.types import ModelInfo

SCRIPTED = "scripted:"

_TOLD = 5
"""Tasks or episodes that a message names, when all of them are wrong in the same way."""


def require(config: AgentflowConfig) -> None:
    """Check that the values without a default are there. Raises ConfigError naming all missing."""
    wanted = [
        (config.tasks.source, "tasks.source", "--tasks bundled"),
        (config.engine.url, "engine.url", "--engine scripted:oracle"),
        (config.run.out, "run.out", "--out runs/one"),
    ]
    missing = [
        f"{name}: is missing; set it in the file, or give it as in {flag}"
        for value, name, flag in wanted
        if value is None
    ]
    if missing:
        raise ConfigError("\n".join(missing))


def require_engine(config: AgentflowConfig) -> None:
    """Check that there is an engine to reach. Raises ConfigError."""
    if config.engine.url is None:
        raise ConfigError("engine.url: is missing; give http://host:port, or scripted:oracle")
    if config.run.out is None and config.observe.metrics_port is not None:
        raise ConfigError(
            f"observe.metrics_port: {config.observe.metrics_port}: metrics are made from the events"
            " of a run directory; set run.out as well"
        )


def select_tasks(config: AgentflowConfig) -> list[Mapping[str, Any]]:
    """Load the tasks that the configuration asks for. Raises ConfigError; never gives none."""
    from agentflow.swe.tasks import load_tasks  # noqa: PLC0415  # brings archives and fetching

    assert config.tasks.source is not None
    tasks: list[Mapping[str, Any]] = list(load_tasks(config.tasks.source))
    if config.tasks.only:
        known = {str(task["instance_id"]): task for task in tasks}
        for wanted in config.tasks.only:
            if wanted not in known:
                hint = did_you_mean(wanted, list(known))
                raise ConfigError(f"tasks.only: {wanted!r} is not in {config.tasks.source!r}{hint}")
        tasks = [known[wanted] for wanted in dict.fromkeys(config.tasks.only)]
    tasks = tasks[: config.tasks.limit]
    if not tasks:
        raise ConfigError(f"tasks.source: {config.tasks.source!r} holds no tasks")
    return tasks


def runnable_tasks(config: AgentflowConfig) -> list[Mapping[str, Any]]:
    """`select_tasks`, each of which can be bootstrapped. Raises ConfigError."""
    tasks = select_tasks(config)
    check_sources(config, tasks, where=str(config.tasks.source))
    return tasks


def check_sources(
    config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]], *, where: str
) -> None:
    """Check that the built-in runtime will find every task's repository. Touches nothing.

    Raises ConfigError that names `where` they are from, the tasks, and what would be right.
    """
    from agentflow.swe.tasks.source_check import source_problem  # noqa: PLC0415  # as above

    flow = config.flow
    if flow.name not in BUILTIN_FLOW or flow.runtime["name"] not in BUILTIN_PROVIDERS["runtime"]:
        return  # where a repository comes from is the user's own matter
    faults = [
        f"{where}: {task['instance_id']}: {fault}"
        for task in tasks
        if (fault := source_problem(task, flow.environment)) is not None
    ]
    if len(faults) > _TOLD:
        faults[_TOLD:] = [f"{where}: and {len(faults) - _TOLD} more tasks like these"]
    if faults:
        raise ConfigError("\n".join(faults))


def make_samples(tasks: Sequence[Mapping[str, Any]], *, replicas: int) -> list[RolloutSample]:
    """Issue every task `replicas` times, the replicas of one task side by side."""
    return [
        RolloutSample(
            episode=EpisodeId(uid=str(task["instance_id"]), replica_index=index), task=task
        )
        for task in tasks
        for index in range(replicas)
    ]


def build_engine(config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> EngineAccess:
    """Make the engine and the renderer of its model; connects to nothing yet.

    Raises ConfigError.
    """
    from agentflow.engine.template_renderer import TemplateRenderer  # noqa: PLC0415  # as above

    folder = _model_folder(config.engine)
    renderer = TemplateRenderer(folder)
    url = config.engine.url
    assert url is not None
    if url.startswith(SCRIPTED):
        _check_recording(url, make_samples(tasks, replicas=config.run.n))
        engine = _scripted(url, tasks, folder=folder)
    else:
        engine = _sglang(config.engine, url)
    return EngineAccess(
        engine=engine, renderer=renderer, rids=RidFactory(), sampling=config.sampling.params()
    )


def rehearse_engine(config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> EngineAccess:
    """Do what `build_engine` does without fetching anything: solutions not at hand are left out.

    Raises ConfigError.
    """
    at_hand = [task for task in tasks if task.get("patch")]
    return build_engine(config, at_hand if _knows_solutions(str(config.engine.url)) else tasks)


def _model_folder(config: EngineConfig) -> ModelFolder:
    from agentflow.engine.model_folder import (  # noqa: PLC0415  # reads a tokenizer
        bundled_model_folder,
        load_model_folder,
    )

    if config.model is None:
        return bundled_model_folder()
    return load_model_folder(Path(config.model))


def _scripted(url: str, tasks: Sequence[Mapping[str, Any]], *, folder: ModelFolder) -> Model:
    from agentflow.engine.scripted_spec import (  # noqa: PLC0415  # reads recorded runs
        scripted_engine,
    )
    from agentflow.swe.tasks import with_oracles  # noqa: PLC0415  # may fetch releases

    rows = with_oracles(tasks) if _knows_solutions(url) else tasks
    return scripted_engine(url, rows, folder=folder)


def _knows_solutions(url: str) -> bool:
    return url.startswith(("scripted:oracle", "scripted:noisy"))


def _check_recording(url: str, samples: Sequence[RolloutSample]) -> None:
    """Refuse to play a run back that does not hold every episode. Raises ConfigError."""
    from agentflow.engine.recorded_script import missing_records  # noqa: PLC0415  # as above
    from agentflow.engine.scripted_spec import POLICIES  # noqa: PLC0415  # as above

    what = url.removeprefix(SCRIPTED)
    if not what or what.partition(":")[0] in POLICIES or not (run_dir := Path(what)).is_dir():
        return  # a policy, or what `scripted_engine` will refuse
    missing = missing_records(run_dir, [sample.episode for sample in samples])
    if missing:
        names = ", ".join(map(str, missing[:_TOLD])) + (", …" if len(missing) > _TOLD else "")
        raise ConfigError(
            f"engine.url: {url!r} did not record {len(missing)} of the {len(samples)} episodes:"
            f" {names}; play it back with the tasks and the --n of the recorded run"
        )


def _sglang(config: EngineConfig, url: str) -> Model:
    from agentflow.engine.sglang import (  # noqa: PLC0415  # a client that scripted runs don't need
        Deadlines,
        SglangConfig,
        SglangEngine,
    )

    urls = tuple(url.split(","))
    if not all(urlsplit(one).scheme in {"http", "https"} for one in urls):
        raise ConfigError(
            f"engine.url: {url!r} must be http://host:port of an SGLang server, or scripted:oracle,"
            " scripted:noop, scripted:noisy:SEED, scripted:tamper:KIND, scripted:RUN_DIR"
        )
    deadlines = Deadlines(
        connect_s=config.connect_timeout_s,
        first_token_s=config.first_token_timeout_s,
        between_tokens_s=config.silence_timeout_s,
    )
    return SglangEngine(
        SglangConfig(
            urls=urls,
            api_key=_secret(config.api_key_env),
            vocab_size=config.vocab_size,
            ca_file=config.ca_file,
            deadlines=deadlines,
        )
    )


def _secret(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(f"engine.api_key_env: the variable {variable!r} is not set")
    return value


async def reach_engine(engine: Model, *, url: str) -> ModelInfo:
    """Ask the engine who it is. Raises ConfigError naming `engine.url` when it does not answer."""
    try:
        return await engine.info()
    except EngineError as error:
        raise ConfigError(f"engine.url: {url!r} cannot be used: {error}") from error
