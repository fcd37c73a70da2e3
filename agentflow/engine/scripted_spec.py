"""`scripted:…` specifications: which script a ScriptedEngine plays, by one word on a command line.

scripted:oracle        the tasks' own patches
scripted:noop          looks around, changes nothing
scripted:noisy[:SEED]  the oracle on a bad day, seed 0 by default
scripted:tamper[:KIND] goes for the judge instead of the bug: hooks, shadow, tests, code, machine
scripted:RUN_DIR       the recorded tokens of a finished run
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentflow.engine.model_folder import bundled_model_folder
from agentflow.engine.policies import NoisyPolicy, NoopPolicy, OraclePolicy
from agentflow.engine.policy_script import PolicyScript
from agentflow.engine.recorded_script import RecordedScript
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.tamper_policy import Tampering, TamperPolicy
from agentflow.engine.template_renderer import TemplateRenderer
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.engine.model_folder import ModelFolder
    from agentflow.engine.policy_script import Policy
    from agentflow.engine.scripted import Script, ScriptedSettings

PREFIX: Final = "scripted:"
POLICIES: Final = ("oracle", "noop", "noisy", "tamper")


def scripted_engine(
    spec: str,
    tasks: Sequence[Mapping[str, Any]],
    *,
    folder: ModelFolder | None = None,
    settings: ScriptedSettings | None = None,
) -> ScriptedEngine:
    """Make the engine that `spec` names; `tasks` are the rows that the oracle answers.

    `folder` is the model whose tokens it speaks, None the bundled one. Raises ConfigError.
    """
    folder = folder or bundled_model_folder()
    return ScriptedEngine(
        _script(spec, tasks, folder), tokenizer=folder.tokenizer, settings=settings
    )


def _script(spec: str, tasks: Sequence[Mapping[str, Any]], folder: ModelFolder) -> Script:
    what = spec.removeprefix(PREFIX)
    policy = _policy(what, tasks)
    if policy is not None:
        return PolicyScript(policy, renderer=TemplateRenderer(folder), tokenizer=folder.tokenizer)
    if what and Path(what).is_dir():
        return RecordedScript(Path(what))
    raise ConfigError(_unknown(spec, what))


def _policy(what: str, tasks: Sequence[Mapping[str, Any]]) -> Policy | None:
    name, colon, rest = what.partition(":")
    if name == "noisy":
        return NoisyPolicy(_seed(rest) if colon else 0, tasks)
    if name == "tamper":
        return TamperPolicy(tasks, _tampering(rest) if colon else None)
    if what == "oracle":
        return OraclePolicy(tasks)
    return NoopPolicy() if what == "noop" else None


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"scripted:noisy:{text}: the seed {text!r} must be a number") from None


def _tampering(text: str) -> Tampering:
    try:
        return Tampering(text)
    except ValueError:
        kinds = ", ".join(Tampering)
        raise ConfigError(f"scripted:tamper:{text}: {text!r} must be one of {kinds}") from None


def _unknown(spec: str, what: str) -> str:
    close = difflib.get_close_matches(what.partition(":")[0], POLICIES, n=1)
    hint = f"; did you mean scripted:{close[0]}?" if close else ""
    return (
        f"engine {spec!r}: {what!r} is neither a policy nor the directory of a recorded run{hint} "
        "(scripted:oracle, scripted:noop, scripted:noisy[:SEED], scripted:tamper[:KIND],"
        " scripted:RUN_DIR)"
    )
