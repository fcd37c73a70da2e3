"""A whole run, from configuration to run directory: what is kept however it ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import resource
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import parts
import pytest
import yaml

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess
from agentflow.errors import ConfigError
from agentflow.types import EpisodeId
from executors.runs.files import OutputError
from executors.runs.run_dir import RunDir
from executors.runs.session import Rollout, RolloutFailed
from executors.runs.summary import Summary

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from agentflow.types import RolloutSample


def rollout(config: AgentflowConfig, **more: Any) -> Rollout:
    """Make a run of the plugged-in parts."""
    keywords = {"make_engine": parts.make_engine, "load_tasks": parts.make_tasks} | more
    return Rollout(config, argv=["agentflow", "run"], **keywords)


def rows(out: Path) -> list[dict[str, Any]]:
    """Read samples.jsonl."""
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def read(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


async def test_a_run_keeps_everything_it_should(tmp_path: Path) -> None:
    """Every file of the run directory is there and agrees with the others."""
    out = tmp_path / "new" / "run"
    config = parts.make_config(out, run={"n": 2, "tag": "t"})
    summary = await rollout(config).run()
    assert (summary.planned, summary.episodes, summary.resolved) == (6, 6, 3)

    run = read(out / "run.json")
    assert (run["schema"], run["status"], run["error"]) == ("agentflow-run/1", "done", None)
    assert run["argv"] == ["agentflow", "run"]
    assert run["tag"] == "t"
    assert run["ended"] >= run["started"]
    assert yaml.safe_load((out / "config.yaml").read_text()) == config.model_dump(mode="json")

    figures = read(out / "summary.json")
    assert figures["by_class"]["resolved"] == figures["by_class"]["wrong_answer"] == 3
    assert figures["turns"] == 12
    assert figures["tokens"] == {
        "received": 36,
        "delivered": 36,
        "failed": 0,
        "restarted": 0,
        "forked": 0,
        "unfinished": 0,
        "stale": 0,
        "surplus": 0,
        "deadline": 0,
        "lost": 0,
        "unseen": None,
        "unaccounted": 0,
    }
    assert figures["samples"] == {
        "issued": 6,
        "queued": 0,
        "leased": 0,
        "partial": 0,
        "buffered": 0,
        "delivered": 6,
        "dropped": {},
        "late": 0,
        "revoked": 0,
        "unaccounted": 0,
    }

    assert len(rows(out)) == 6
    for row in rows(out):
        key = EpisodeId(uid=row["uid"], replica_index=row["replica_index"]).key
        assert row["tokens"] == f"tokens/{key}.npz"
        with np.load(out / row["tokens"]) as arrays:
            assert set(arrays) == {
                "prompts",
                "responses",
                "response_mask",
                "rollout_log_prob",
                "weight_versions",
            }
            assert int(arrays["response_mask"].sum()) == row["generated_tokens"] == 6
            assert len(arrays["prompts"]) == row["prompt_tokens"]
        trajectory = read(out / row["trajectory"])
        assert trajectory["trajectory_format"] == "mini-swe-agent-1.1"
        assert trajectory["messages"][-1]["role"] == "assistant"

    assert read(out / "preds.json")["task/1"] == {
        "model_name_or_path": "always-ls",
        "model_patch": "patch of task/1#0",
    }
    assert read(out / "preds.1.json")["task/1"]["model_patch"] == "patch of task/1#1"
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_ended")
    assert kinds.count("reward_ended") == 6
    assert not [path.name for path in out.rglob("*.tmp")]
    assert not (out / ".lock").exists()
    assert not parts.LIVE


async def test_a_second_run_into_the_same_directory_changes_nothing(tmp_path: Path) -> None:
    """It is refused as bad input, before an engine or an environment is touched."""
    out = tmp_path / "run"
    await rollout(parts.make_config(out)).run()
    before = {path: path.stat().st_mtime_ns for path in sorted(out.rglob("*"))}
    with pytest.raises(ConfigError, match="already holds a run; nothing was changed"):
        await rollout(parts.make_config(out)).run()
    assert {path: path.stat().st_mtime_ns for path in sorted(out.rglob("*"))} == before


async def test_a_directory_in_use_by_another_run_is_refused(tmp_path: Path) -> None:
    """The lock keeps a second process out even before the first has written anything."""
    out = tmp_path / "run"
    out.mkdir()
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="in use by another run"):
            await rollout(parts.make_config(out)).run()
    assert [entry.name for entry in out.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file/below", "Not a directory"),
        ("full", r"is not empty \(it holds 'notes.txt'\)"),
    ],
)
async def test_an_output_that_cannot_be_a_run_directory_is_named(
    tmp_path: Path, place: str, said: str
) -> None:
    """A path below a file and a folder with somebody's notes are bad input."""
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=said):
        await rollout(parts.make_config(tmp_path / place)).run()


async def test_an_unreachable_engine_is_bad_input_and_writes_nothing(tmp_path: Path) -> None:
    """The engine is asked before the directory is made."""

    def unreachable(*_: object) -> EngineAccess:
        engine = parts.Engine(reachable=False)
        return EngineAccess(engine=engine, renderer=parts.CharRenderer(), rids=RidFactory())

    with pytest.raises(ConfigError, match=r"engine\.url: 'parts' cannot be used: connection ref"):
        await rollout(parts.make_config(tmp_path / "run"), make_engine=unreachable).run()
    assert not (tmp_path / "run").exists()


async def test_a_provider_that_raises_is_bad_input_and_writes_nothing(tmp_path: Path) -> None:
    """A constructor's failure is told with its section and cause."""
    config = parts.make_config(tmp_path / "run")
    bad = tmp_path / "bad.py"
    bad.write_text("class Bad:\n    def __init__(self, conf):\n        raise OSError('no GPU')\n")
    agent = config.flow.model_copy(update={"agent": {"name": f"{bad}:Bad"}})
    with pytest.raises(ConfigError, match=r"agent '.*bad.py:Bad': OSError: no GPU"):
        await rollout(config.model_copy(update={"flow": agent})).run()
    assert not (tmp_path / "run").exists()


async def test_cancelling_keeps_what_has_ended_and_removes_every_environment(
    tmp_path: Path,
) -> None:
    """run.json says interrupted; the ledger closes with the tokens of the unfinished episodes."""
    out = tmp_path / "run"
    loop = asyncio.get_running_loop()

    class Watcher:
        def started(self, planned: int) -> None: ...

        def ended(self, sample: RolloutSample) -> None:
            loop.call_soon_threadsafe(work.cancel)

    work = asyncio.ensure_future(
        rollout(parts.make_config(out, run={"n": 50}), watcher=Watcher()).run()
    )
    with pytest.raises(asyncio.CancelledError):
        await work
    figures, run = read(out / "summary.json"), read(out / "run.json")
    assert run["status"] == "interrupted"
    assert 0 < figures["episodes"] == len(rows(out)) < figures["planned"] == 150
    assert figures["tokens"]["unaccounted"] == 0
    assert len(read(out / "preds.json")) > 0
    assert not parts.LIVE


async def test_a_bug_ends_the_run_with_one_error_and_keeps_the_rest(tmp_path: Path) -> None:
    """The message names the bug, the traceback is in the log, environments are removed."""
    out = tmp_path / "run"
    with pytest.raises(RolloutFailed, match="ZeroDivisionError: a bug in the agent"):
        await rollout(parts.make_config(out, agent={"bug": "task/2"})).run()
    run = read(out / "run.json")
    assert run["status"] == "failed"
    assert run["error"].startswith("ZeroDivisionError: a bug in the agent")
    assert "Traceback" in (out / "logs" / "agentflow.log").read_text()
    assert not parts.LIVE


async def test_a_run_in_which_no_environment_starts_has_failed(tmp_path: Path) -> None:
    """Episodes that end by the infrastructure are data, but all of them is a failed run."""
    out = tmp_path / "run"
    with pytest.raises(RolloutFailed, match="every episode ended by the infrastructure: env_st"):
        await rollout(parts.make_config(out, environment={"fail": True})).run()
    figures = read(out / "summary.json")
    assert figures["by_class"]["infra_sandbox"] == figures["masked"] == 3
    assert all(row["message"] == "no room" and row["remove_sample"] for row in rows(out))
    assert read(out / "run.json")["status"] == "failed"


async def test_output_that_can_no_longer_be_written_ends_the_run_with_one_error(
    tmp_path: Path,
) -> None:
    """A folder that vanishes in mid-run, as a full disk would, is named once."""
    out = tmp_path / "run"

    class Saboteur:
        def started(self, planned: int) -> None:
            (out / "tokens").rmdir()

        def ended(self, sample: RolloutSample) -> None: ...

    with pytest.raises(RolloutFailed, match=r"cannot write .*\.npz: No such file or directory"):
        await rollout(parts.make_config(out), watcher=Saboteur()).run()
    assert read(out / "run.json")["status"] == "failed"
    assert not parts.LIVE


async def test_a_removed_run_directory_ends_the_run_with_one_error(tmp_path: Path) -> None:
    """The log, too, was opened before, and cannot fail for want of its folder."""
    out = tmp_path / "run"

    class Saboteur:
        def started(self, planned: int) -> None:
            shutil.rmtree(out)

        def ended(self, sample: RolloutSample) -> None: ...

    with pytest.raises(RolloutFailed, match=r"cannot write .*: No such file or directory"):
        await rollout(parts.make_config(out), watcher=Saboteur()).run()
    assert not parts.LIVE


async def test_a_ledger_that_does_not_close_fails_the_run(tmp_path: Path) -> None:
    """Tokens that the engine sent and no sample has are an error, not a rounding."""

    class Lossy(parts.Engine):
        async def generate(self, request: Any, sink: Any) -> Any:
            result = await super().generate(request, sink)
            sink._counter[sink._key] += 5
            return result

    def lossy(*_: object) -> EngineAccess:
        return EngineAccess(engine=Lossy(), renderer=parts.CharRenderer(), rids=RidFactory())

    with pytest.raises(RolloutFailed, match="does not close: 30 tokens are unaccounted for"):
        await rollout(parts.make_config(tmp_path / "run"), make_engine=lossy).run()


def test_missing_values_are_all_named(tmp_path: Path) -> None:
    """Tasks, engine and output have no default."""
    config = parts.make_config(tmp_path)
    bare = config.model_copy(update={"engine": type(config.engine)()})
    with pytest.raises(ConfigError, match=r"^engine\.url: is missing"):
        rollout(bare)


def test_abandoning_says_so_in_run_json(tmp_path: Path) -> None:
    """A process that leaves at once still leaves the truth behind."""
    config = parts.make_config(tmp_path / "run")
    run = rollout(config)
    run.dir.open(config, argv=(), model="m")
    run.abandon()
    run.dir.close()
    assert read(tmp_path / "run" / "run.json")["status"] == "interrupted"


def test_abandoning_before_the_directory_is_ours_changes_nothing(tmp_path: Path) -> None:
    """A run that was still checking its input must not overwrite another's run.json."""
    out = tmp_path / "run"
    run = rollout(parts.make_config(out))
    run.abandon()
    assert not out.exists()
    out.mkdir()
    (out / "run.json").write_text("another's")
    run.abandon()
    assert (out / "run.json").read_text() == "another's"


def test_an_unopened_directory_can_be_closed(tmp_path: Path) -> None:
    """Taking down a run that never began touches nothing."""
    config = parts.make_config(tmp_path / "run")
    with RunDir(tmp_path / "run", runner=rollout(config)._runner):
        pass
    assert not (tmp_path / "run").exists()
    assert Summary(planned=0).to_json()["tokens"]["unaccounted"] == 0


def test_a_disk_that_is_full_at_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """What a failed start made is removed, parents included, so that the same --out works later."""
    config = parts.make_config(tmp_path / "new" / "run")
    run = rollout(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OutputError, match=r"cannot write .*\.reserve"):
            run.dir.open(config, argv=(), model="m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "new").exists()
    run.dir.open(config, argv=(), model="m")
    run.dir.close()
    assert read(tmp_path / "new" / "run" / "run.json")["status"] == "running"


def test_a_failed_start_keeps_the_folder_that_was_there(tmp_path: Path) -> None:
    """An empty directory of the user's stays, and is empty again."""
    config = parts.make_config(tmp_path)
    long_tag = config.run.model_copy(update={"tag": "x" * 200_000})
    run = rollout(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OutputError, match=r"cannot write .*config\.yaml"):
            run.dir.open(config.model_copy(update={"run": long_tag}), argv=(), model="m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


async def test_an_episode_that_never_had_an_agent_names_no_trajectory(tmp_path: Path) -> None:
    """Its line in samples.jsonl has null, and the plug-in's traceback is in the log."""
    out = tmp_path / "run"
    with pytest.raises(RolloutFailed, match="preprocess_failed"):
        await rollout(parts.make_config(out, agent={"build_fails": True})).run()
    assert [row["trajectory"] for row in rows(out)] == [None] * 3
    log = (out / "logs" / "agentflow.log").read_text()
    assert "task/0#0 failed: preprocess_failed" in log
    assert "LookupError: no such prompt" in log
    assert 'parts.py", line' in log


async def test_a_failed_environments_traceback_is_in_the_log(tmp_path: Path) -> None:
    """The sample has the message; where the plug-in raised it is for the log."""
    out = tmp_path / "run"
    with pytest.raises(RolloutFailed):
        await rollout(parts.make_config(out, environment={"bug": True})).run()
    log = (out / "logs" / "agentflow.log").read_text()
    assert "task/0#0 failed: env_start_failed" in log
    assert "PermissionError: no socket" in log


async def test_checking_raises_what_a_run_would_and_touches_nothing(tmp_path: Path) -> None:
    """A provider whose constructor raises and a used directory are found without a run."""
    good = parts.make_config(tmp_path / "run", run={"n": 2})
    assert await rollout(good).check() == 6
    assert not (tmp_path / "run").exists()
    bad = parts.make_config(tmp_path / "run", environment={"init_fails": True})
    with pytest.raises(ConfigError, match=r"environment '.*EnvBuilder': OSError: no engine"):
        await rollout(bad).check()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="already holds a run"):
        await rollout(good).check()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
