"""What slime and agentflow call the same things: arguments, prompts, samples.

Shapes are those of slime 0.3.1 (`slime/utils/types.py`, `slime/utils/arguments.py`,
`slime/ray/rollout.py`). Neither slime nor torch is imported: samples are filled in as they come.
"""

from __future__ import annotations

import copy
import json
import urllib.request
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentflow.config_loading import Sources, check, read_file
from agentflow.engine.token_record import NO_VERSION
from agentflow.errors import ConfigError
from agentflow.types import Blame, Cause, EpisodeId, RolloutSample, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentflow.config import AgentflowConfig

_TRUNCATED: Final = frozenset(
    {Cause.STEP_LIMIT, Cause.COST_LIMIT, Cause.TIME_LIMIT, Cause.CONTEXT_FULL}
)

_UNSUPPORTED: Final = {
    "use_rollout_routing_replay": "routed experts are not kept over the turns of an episode",
    "dynamic_sampling_filter_path": "groups are not filtered here",
    "rollout_sample_filter_path": "samples are not filtered here",
    "rollout_all_samples_process_path": "what is left over goes back to the data source",
    "group_rm": "every episode is judged by its task's own tests",
}
"""Options of slime that change what its own rollout function does, and would do nothing here."""

_ROUTER_S = 30.0
"""For one answer of slime's router, which is on the same cluster."""


# --- arguments --------------------------------------------------------------------------------


def slime_config(args: Any) -> AgentflowConfig:
    """Make the configuration: `args.agentflow`, and from slime's options what it leaves open.

    `args.agentflow` is a file's name or a mapping of its sections. Raises ConfigError.
    """
    check_args(args)
    given = getattr(args, "agentflow", None)
    if isinstance(given, str):
        sources = read_file(Path(given))
    elif isinstance(given, dict):
        sources = Sources(values=copy.deepcopy(given), default="agentflow")
    else:
        raise ConfigError(
            f"agentflow: {given!r} must be a configuration file or its content; put"
            " `agentflow: FILE` into the file that --custom-config-path names"
        )
    sections = sources.values
    if "url" not in sections.get("engine", {}):
        sources.set(("engine", "url"), ",".join(_workers(args)), "slime's router")
    if "model" not in sections.get("engine", {}):
        sources.set(("engine", "model"), args.hf_checkpoint, "--hf-checkpoint")
    sources.set(("run", "n"), args.n_samples_per_prompt, "--n-samples-per-prompt")
    return check(sources)


def check_args(args: Any) -> None:
    """Refuse options that could not be kept. Raises ConfigError naming all of them."""
    faults = [
        f"--{name.replace('_', '-')}: {getattr(args, name)!r}: {why}; leave it out"
        for name, why in _UNSUPPORTED.items()
        if getattr(args, name, None)
    ]
    if args.rollout_top_p != 1.0:
        faults.append(
            f"--rollout-top-p: {args.rollout_top_p}: must be 1.0; the ids that top-p left are not"
            " kept, and slime wants them"
        )
    if faults:
        raise ConfigError("\n".join(faults))


def _workers(args: Any) -> list[str]:
    """Ask slime's router for its engines: an abort must reach the engine itself."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/workers"
    try:
        with urllib.request.urlopen(url, timeout=_ROUTER_S) as answer:  # http alone
            return [str(worker["url"]) for worker in json.load(answer)["workers"]]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{url}: slime's router does not tell its engines: {error}") from error


def sampling_of(args: Any, dataset: Any = None) -> SamplingParams:
    """How turns are sampled; a data set of an evaluation may say otherwise.

    `--rollout-max-response-len` bounds one turn; episodes end by the agent's own limits.
    """
    own = {
        "temperature": args.rollout_temperature,
        "top_p": args.rollout_top_p,
        "top_k": args.rollout_top_k,
        "max_response_len": args.rollout_max_response_len,
    }
    for name in own:
        if (value := getattr(dataset, name, None)) is not None:
            own[name] = value
    own["max_new_tokens"] = own.pop("max_response_len")
    stop = args.rollout_stop or ()
    return SamplingParams(
        **own,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(args.rollout_stop_token_ids or ()),
    )


# --- prompts ----------------------------------------------------------------------------------


def make_prompt(
    sample: Any, *, number: int, known: Mapping[str, Mapping[str, Any]], sampling: SamplingParams
) -> RolloutSample:
    """Make a group's prompt from one of slime's samples, whose `metadata` is the task's row.

    A row may be an `instance_id` alone, of a task in the configuration's own `tasks.source`.
    `number` finds the group again. Raises ConfigError for metadata that names no task.
    """
    row = sample.metadata or {}
    name = row.get("instance_id")
    if not name:
        raise ConfigError(
            f"sample {sample.index}: metadata has no instance_id (it has"
            f" {', '.join(sorted(row)) or 'nothing'}); --metadata-key must name the task's row"
        )
    task = row if "problem_statement" in row else known.get(str(name))
    if task is None:
        raise ConfigError(
            f"sample {sample.index}: {name!r} has no problem_statement, and is not in tasks.source"
        )
    return RolloutSample(
        episode=EpisodeId(uid=str(name)), task=task, sampling=sampling, metadata={"slime": number}
    )


def read_rows(path: str, key: str | None) -> list[dict[str, Any]]:
    """Read an evaluation's JSON lines: rows, or lines that hold them under `key`.

    Raises ConfigError.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: must be a file of JSON lines: {error}") from error
    return [line.get(key or "metadata") or line for line in found]


# --- samples ----------------------------------------------------------------------------------


def fill(sample: Any, done: RolloutSample, *, rollout_id: int) -> None:
    """Write an ended episode into slime's sample, which keeps its indices, prompt and label.

    Arrays are of response length; a fallback has one token of mask 0, so that shapes hold.
    """
    assert done.ending is not None
    sample.tokens = [*done.prompts.tolist(), *done.responses.tolist()]
    sample.response_length = len(done.responses)
    sample.response = _text(done)
    sample.loss_mask = done.response_mask.tolist()
    sample.rollout_log_probs = done.rollout_log_prob.tolist()
    sample.weight_versions = [str(version) for version in _versions(done)]
    sample.reward = done.rewards
    sample.remove_sample = done.remove_sample
    sample.status = getattr(type(sample).Status, _status(done))
    sample.non_generation_time = done.facts.environment_s + done.facts.reward_s
    sample.metadata = {
        **(sample.metadata or {}),
        "start_rollout_id": (sample.metadata or {}).get("start_rollout_id", rollout_id),
        "agentflow": {
            "episode": str(done.episode),
            "cause": str(done.ending.cause),
            "termination": str(done.termination) if done.termination is not None else None,
            "turns": done.facts.turns,
        },
    }


def give_up(group: Sequence[Any], *, rollout_id: int) -> None:
    """Mark a group that was cut short; its episodes begin anew when it comes again."""
    for sample in group:
        sample.status = type(sample).Status.ABORTED
        sample.metadata = {"start_rollout_id": rollout_id, **(sample.metadata or {})}


def _status(done: RolloutSample) -> str:
    assert done.ending is not None
    if done.ending.cause.blame is Blame.INFRASTRUCTURE:
        return "FAILED"
    return "TRUNCATED" if done.ending.cause in _TRUNCATED else "COMPLETED"


def _text(done: RolloutSample) -> str:
    said = (
        m["content"]
        for m in done.facts.messages
        if m["role"] == "assistant" and not m.get("extra", {}).get("example")
    )
    return "\n\n".join(map(str, said))


def _versions(done: RolloutSample) -> Iterator[int]:
    """Weight versions in the order in which they generated, each run of one once."""
    generated = done.weight_versions[done.weight_versions != NO_VERSION].tolist()
    return (version for version, _ in groupby(generated))
