"""RolloutBackend: what a trainer can rely on."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from holding import Holding, rows, uids
from world import Agent, Envs, turns

from agentflow.errors import ConfigError, EnvStartFailed
from agentflow.registry import import_any
from agentflow.types import Cause, Ending, EpisodeId, SyncMode
from executors.backend import BackendFailed, RolloutBackend
from executors.data.books import DeadGroups
from executors.data.journal import Journal
from executors.data.resuming import resumed_config
from executors.runs.session import Rollout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import ContainerEnv
    from agentflow.swe.sample import SWESample
    from agentflow.types import ContainerSpec, StepStatus
    from executors.data.groups import Group

PARTS = Path(__file__).parents[1] / "cli" / "parts.py"


def always_ls(config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> EngineAccess:
    """Make the engine of the plugged-in parts."""
    access: EngineAccess = import_any(f"{PARTS}:make_engine", builtin={})(config, tasks)
    return access


def tokens_close(backend: RolloutBackend) -> dict[str, float]:
    """Check that every token is in a column, and return the columns."""
    figures = {k: v for k, v in backend.metrics().items() if k.startswith("tokens/")}
    columns = sum(v for k, v in figures.items() if k != "tokens/received")
    assert figures["tokens/received"] == columns > 0
    return figures


async def collect(backend: RolloutBackend) -> list[Group]:
    """Take every group that comes."""
    return [group async for group in backend.groups()]


async def test_a_step_brings_complete_groups_in_the_order_of_its_prompts() -> None:
    """Exactly n members each, by replica; arrays of one length; every token in a column."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        prompts = [*rows("long", turns=6), *rows("a", "b", "c")]
        groups = await backend.step(prompts, n=3)
        assert uids(groups) == ["long", "a", "b", "c"]
        for group in groups:
            assert [s.episode.replica_index for s in group] == [0, 1, 2]
            for sample in group:
                length = len(sample.responses)
                assert length == len(sample.response_mask) == len(sample.rollout_log_prob) > 0
            await backend.ack(group)
        figures = tokens_close(backend)
        assert figures["tokens/received"] == figures["tokens/delivered"]
    assert not holding.envs.live


async def test_submitted_prompts_stream_out_as_groups_until_finish() -> None:
    """The trainer waits for groups; after `finish` the last one ends the loop."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        waiting = asyncio.create_task(collect(backend))
        await asyncio.sleep(0)
        backend.submit(rows("a", "b"))
        backend.submit(rows("a"))  # a second epoch: another group
        backend.finish()
        assert sorted(uids(await waiting)) == ["a", "a@1", "b"]


async def test_validation_goes_beside_the_stream_and_is_not_part_of_it() -> None:
    """Its groups come to its caller alone, are acknowledged, and never trained on."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        backend.submit(rows("a", "b"))
        (group,) = await backend.validate(rows("v"))
        assert (uids([group]), len(group), group[0].validate) == (["v"], 1, True)
        backend.finish()
        assert sorted(uids(await collect(backend))) == ["a", "b"]
        assert {p["uid"] for p in backend.state_dict()["open"]} == {"a", "b"}


async def test_a_validation_that_is_cancelled_does_not_come_to_be_trained_on() -> None:
    """What had ended of it and what had not is dropped, and waits for no acknowledgement."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        prompts = [*rows("v"), *rows("never", turns=10**9)]
        validating = asyncio.create_task(backend.validate(prompts))
        for _ in itertools.count():
            if backend.metrics()["coordinator/delivered"]:
                break
            await asyncio.sleep(0)
        validating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await validating
        backend.submit(rows("a"))
        backend.finish()
        assert uids(await collect(backend)) == ["a"]
        assert backend.metrics()["groups/open"] == 1
        tokens_close(backend)
    assert not holding.envs.live


async def test_enough_groups_end_the_step_and_the_rest_is_surplus() -> None:
    """What was begun for nothing is aborted, its environments go, its tokens are counted."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        prompts = [*rows("a", "b"), *rows("never", "ever", turns=10**9)]
        groups = await backend.step(prompts, enough=2)
        assert uids(groups) == ["a", "b"]
        assert backend.metrics()["coordinator/dropped"] == 4
        assert not await backend.step(rows("x"), enough=0)
        again = await backend.step(rows("c"))
        assert uids(again) == ["c"]
        assert tokens_close(backend)["tokens/surplus"] > 0
    assert not holding.envs.live


async def test_new_weights_between_pause_and_resume() -> None:
    """Generations stand still between the two; what was interrupted goes on; nothing is lost."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        backend.submit(rows("a", "b", "c", turns=8))
        for version, mode in enumerate(SyncMode, start=1):
            await backend.pause(mode)
            with pytest.raises(RuntimeError, match="paused already"):
                await backend.pause()
            backend.weights_updated(version)
            await backend.resume()
        with pytest.raises(ValueError, match="version 1 is below the last one, 4"):
            backend.weights_updated(1)
        backend.submit(rows("d"))  # however fast the others were
        backend.finish()
        groups = await collect(backend)
        assert sorted(uids(groups)) == ["a", "b", "c", "d"]
        newest = max(int(s.weight_versions.max()) for g in groups for s in g)
        assert newest == len(SyncMode)
        tokens_close(backend)
    assert not holding.envs.live


async def test_close_while_paused_and_while_episodes_run_leaves_nothing() -> None:
    """Whatever the trainer was doing, every environment is gone afterwards."""
    holding = Holding()
    async with asyncio.timeout(30):
        backend = holding.backend
        await backend.start()
        await backend.step(rows("a"))
        backend.submit(rows("never", turns=10**9))
        await backend.pause(SyncMode.ABORT)
        await backend.close()
        await backend.close()
    assert not holding.envs.live


class BuggyAgents:
    """Builds agents that raise what nobody expects."""

    def build(self, sample: SWESample) -> Agent:
        """Make one."""

        class Buggy(Agent):
            async def generation_step(self) -> tuple[StepStatus, str | None]:
                raise ZeroDivisionError("a bug")

        return Buggy(sample)


async def test_a_bug_in_an_episode_reaches_the_trainer_and_not_only_the_log() -> None:
    """Who waits for a group is told why none will come, and so is who asks later."""
    holding = Holding(agents=BuggyAgents())
    async with asyncio.timeout(30), holding.backend as backend:
        with pytest.raises(BackendFailed, match="ZeroDivisionError: a bug"):
            await backend.step(rows("a"))
        with pytest.raises(BackendFailed):
            await anext(backend.groups())


class BrokenEnvs(Envs):
    """Environments whose first starts, or all, fail for some tasks."""

    def __init__(self, failures: dict[str, int]) -> None:
        super().__init__(random.Random(0))
        self.failures = {EpisodeId(uid=uid).key: n for uid, n in failures.items()}
        self.attempts = 0

    async def start(self, spec: ContainerSpec) -> Any:
        """Fail while there are failures left; of replicas, the first alone."""
        self.attempts += 1
        key = spec.labels["agentflow.episode"]
        if self.failures.get(key, 0) > 0:
            self.failures[key] -= 1
            raise EnvStartFailed("no image")
        env: ContainerEnv = await super().start(spec)
        return env


async def test_a_failure_that_passes_is_tried_again() -> None:
    """Two failures of one kind are within the budget; the group is whole."""
    holding = Holding(envs=BrokenEnvs({"a": 2}))
    async with asyncio.timeout(30), holding.backend as backend:
        ((first, second),) = await backend.step(rows("a"))
        assert not first.remove_sample
        assert not second.remove_sample
        assert backend.metrics()["coordinator/retries"] == 2


async def test_a_failure_that_does_not_pass_is_dropped_with_its_cause_and_the_others_go_on() -> (
    None
):
    """The over-long prompt of the field: a small budget, then the refill goes on."""
    holding = Holding(envs=BrokenEnvs({"a": 10**9}))
    async with asyncio.timeout(30), holding.backend as backend:
        ((first, second), (third, _)) = await backend.step(rows("a", "b"))
        assert first.remove_sample
        assert first.ending is not None
        assert (first.ending.cause, first.ending.message) == (Cause.ENV_START_FAILED, "no image")
        assert not (second.remove_sample and third.remove_sample)
        assert backend.metrics()["coordinator/retries"] == 2


async def test_dead_groups_in_a_row_end_the_work_and_say_why() -> None:
    """Nothing can be learnt from masked samples: the trainer is told, not kept busy."""
    names = [f"t{i}" for i in range(6)]
    holding = Holding(
        envs=BrokenEnvs(dict.fromkeys(names, 10**9)), groups={"dead_in_a_row": 3, "retries": 1}
    )
    async with asyncio.timeout(30), holding.backend as backend:
        with pytest.raises(DeadGroups, match=r"3 groups in a row .*env_start_failed: no image"):
            await backend.step(rows(*names), n=1)
        with pytest.raises(DeadGroups):
            await backend.step(rows("more"))


async def test_a_dead_group_is_left_out_of_the_step() -> None:
    """A step does not wait for a group that cannot come, nor is it handed over."""
    holding = Holding(envs=BrokenEnvs({"a": 10**9}))
    async with asyncio.timeout(30), holding.backend as backend:
        assert uids(await backend.step(rows("a", "b"), n=1)) == ["b"]
        assert backend.metrics()["coordinator/groups_dead"] == 1
        assert [plain["uid"] for plain in backend.state_dict()["open"]] == ["b"]


async def test_a_checkpoint_brings_back_what_was_not_acknowledged_and_nothing_else() -> None:
    """Taken but not acknowledged, running, waiting: again; acknowledged: never."""
    holding = Holding()
    async with asyncio.timeout(30):
        async with holding.backend as backend:
            used, taken = await backend.step(rows("used", "taken"))
            await backend.ack(used)
            backend.submit(rows("running", turns=10**9), n=1)
            backend.weights_updated(7)
            state = backend.state_dict()
            with pytest.raises(ValueError, match="'used' waits for no acknowledgement"):
                await backend.ack(used)
        for plain in state["open"]:
            plain["task"]["turns"] = 2
        again = holding.again()
        again.load_state_dict(state)
        async with again:
            again.finish()
            groups = await collect(again)
            assert {g[0].episode.uid: len(g) for g in groups} == {"taken": 2, "running": 1}
            assert again.metrics()["weights/version"] == 7
            assert uids([taken]) == ["taken"]


def test_a_state_of_something_else_is_refused() -> None:
    """The schema says whose it is."""
    with pytest.raises(ConfigError, match="schema is None; it must be 'agentflow-backend/1'"):
        Holding().backend.load_state_dict({})
    with pytest.raises(ConfigError, match="state: checkpoints, issued, open is missing"):
        Holding().backend.load_state_dict({"schema": "agentflow-backend/1", "version": 1})
    with pytest.raises(ConfigError, match="schema is None"):
        Holding().backend.load_state_dict(None)  # type: ignore[arg-type]  # what is not to be given


async def test_wrong_prompts_are_refused_before_anything_is_issued() -> None:
    """One clear error names what is missing."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        with pytest.raises(ValueError, match="needs an instance_id; this one has repo"):
            backend.submit([{"repo": "x"}])
        with pytest.raises(ValueError, match="n is 0"):
            backend.submit(rows("a"), n=0)
        with pytest.raises(ValueError, match="n is '2'; it must be a whole number of at least 1"):
            backend.submit(rows("a"), n="2")  # type: ignore[arg-type]  # what is not to be given
        with pytest.raises(ValueError, match="prompts is a dict; it must be a list of task rows"):
            backend.submit(rows("a")[0])  # type: ignore[arg-type]  # as above
        with pytest.raises(ValueError, match="prompt: 'a' is no task row"):
            backend.submit(["a"])  # type: ignore[list-item]  # as above
        with pytest.raises(ValueError, match="needs an instance_id"):
            backend.submit([*rows("a"), {"repo": "x"}])
        with pytest.raises(ValueError, match="enough is -1; it must be a whole number"):
            await backend.step(rows("a"), enough=-1)
        assert backend.metrics()["groups/open"] == 0
        assert backend.submit(rows("a")) == ["a"]  # what was refused took no name


async def test_wrong_calls_are_told_what_would_be_right() -> None:
    """One clear error names the value, and changes nothing."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        with pytest.raises(ValueError, match="mode is 'softly'; it must be one of abort"):
            await backend.pause("softly")
        with pytest.raises(ValueError, match="version is '3'; it must be a whole number"):
            backend.weights_updated("3")  # type: ignore[arg-type]  # what is not to be given
        with pytest.raises(ValueError, match="waits for no acknowledgement"):
            await backend.ack([])
        assert uids(await backend.step(rows("a"))) == ["a"]
        backend.finish()
        with pytest.raises(RuntimeError, match="finish"):
            backend.submit(rows("b"))


async def test_a_row_that_is_none_is_refused_and_the_others_go_on() -> None:
    """The built-in runtime knows its rows; nothing is issued, and nothing ends."""
    config = {
        "tasks": {"source": "bundled", "limit": 1},
        "run": {"n": 1},
        "engine": {"url": "scripted:oracle"},
    }
    async with asyncio.timeout(60), RolloutBackend.from_config(config) as backend:
        with pytest.raises(ConfigError, match="task: mine: problem_statement is missing"):
            backend.submit([{"instance_id": "mine"}])
        lost = {**backend.tasks[0], "source": {"type": "dir", "path": "/no/such"}}
        with pytest.raises(ConfigError, match=r"prompt: .*'/no/such': no such folder"):
            backend.submit([lost])
        assert backend.metrics()["coordinator/queued"] == 0


async def test_who_waits_when_it_is_closed_hears_so() -> None:
    """Nobody waits for ever for a group that will not come; nothing more is taken in."""
    holding = Holding()
    async with asyncio.timeout(30):
        async with holding.backend as backend:
            waiting = asyncio.create_task(collect(backend))
            stepping = asyncio.create_task(backend.step(rows("never", turns=10**9)))
            await asyncio.sleep(0)
        for waits in (waiting, stepping):
            with pytest.raises(BackendFailed, match="the backend was closed"):
                await waits
        with pytest.raises(BackendFailed, match="the backend was closed"):
            backend.submit(rows("a"))


def test_code_without_a_loop_holds_the_same_backend() -> None:
    """Every call waits for its end; a failed start leaves no thread."""
    holding = Holding()
    with holding.backend.sync() as backend:
        (group,) = backend.step(rows("a"))
        backend.ack(group)
        backend.pause("in_place")
        backend.weights_updated(1)
        backend.resume()
        backend.submit(rows("b", "c"))
        assert [len(g) for g in backend.validate(rows("v"))] == [1]
        backend.finish()
        assert sorted(uids(list(backend.groups()))) == ["b", "c"]
        assert backend.metrics()["weights/version"] == 1
        assert backend.state_dict()["version"] == 1
    with pytest.raises(RuntimeError, match="call start"):
        backend.finish()
    assert not holding.envs.live


async def test_a_backend_with_a_run_directory_keeps_what_ended(tmp_path: Path) -> None:
    """Samples, their figures, and how it ended, as a run does."""
    out = tmp_path / "run"
    builders = {
        k: {"name": f"{PARTS}:{v}"}
        for k, v in {
            "agent": "AgentBuilder",
            "environment": "EnvBuilder",
            "runtime": "RuntimeBuilder",
        }.items()
    }
    config = {"engine": {"url": "parts"}, "run": {"out": str(out)}, "flow": builders}
    backend = RolloutBackend.from_config(config, make_engine=always_ls)
    async with asyncio.timeout(30), backend:
        (group,) = await backend.step(rows("a"), n=2)
        assert [s.rewards for s in group] == [1.0, 0.0]
    assert len((out / "samples.jsonl").read_text().splitlines()) == 2
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["episodes"], summary["samples"]["delivered"]) == (2, 2)
    assert summary["tokens"]["received"] == summary["tokens"]["delivered"] > 0
    assert summary["tokens"]["unaccounted"] == 0
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_ended")


def journalled(out: Path) -> RolloutBackend:
    """Make a backend of the plugged-in parts that keeps a journal."""
    builders = {"agent": "AgentBuilder", "environment": "EnvBuilder", "runtime": "RuntimeBuilder"}
    config = {
        "engine": {"url": "parts"},
        "run": {"out": str(out), "n": 2},
        "rollout": {"journal": True},
        "flow": {section: {"name": f"{PARTS}:{name}"} for section, name in builders.items()},
    }
    return RolloutBackend.from_config(config, make_engine=always_ls)


async def test_a_killed_backend_delivers_again_what_was_not_acknowledged(tmp_path: Path) -> None:
    """Acknowledged: never; taken or complete: as they were, not run again; the rest: now."""
    out, copy = tmp_path / "run", tmp_path / "copy"
    async with asyncio.timeout(60):
        async with journalled(out) as backend:
            used, taken, complete = await backend.step(rows("used", "taken", "complete"))
            await backend.ack(used)
            await backend.pause(SyncMode.IN_PLACE)
            backend.submit(rows("waiting"))
            await backend._running.journal.kept()  # type: ignore[union-attr]  # it has one
            shutil.copytree(out, copy)  # as a kill at this moment would leave it
            await backend.resume()
        again = RolloutBackend.from_run(copy, make_engine=always_ls)
        async with again:
            again.submit(rows("used"))
            again.finish()
            groups = {g[0].episode.uid: g for g in await collect(again)}
            assert sorted(groups) == ["complete", "taken", "used@1", "waiting"]
            for old in (taken, complete):
                new = groups[old[0].episode.uid]
                assert [s.rewards for s in new] == [s.rewards for s in old]
                assert [s.responses.tolist() for s in new] == [s.responses.tolist() for s in old]
            tokens_close(again)
    begun = [
        event["uid"]
        for event in map(json.loads, (copy / "events.jsonl").read_text().splitlines())
        if event["kind"] == "leased"
    ]
    assert begun.count("taken") <= 2
    keys = [json.loads(line)["key"] for line in (copy / "samples.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 10


async def test_a_checkpoint_takes_a_journal_back_to_where_the_trainer_was(tmp_path: Path) -> None:
    """Acknowledged since: again, with results. Issued since: the trainer issues that itself."""
    out, copy = tmp_path / "run", tmp_path / "copy"
    async with asyncio.timeout(60):
        async with journalled(out) as backend:
            first, second = await backend.step(rows("first", "second"))
            await backend.ack(first)
            state = backend.state_dict()
            await backend.ack(second)
            (later,) = await backend.step(rows("later"))
            await backend.ack(later)
            shutil.copytree(out, copy)
        again = RolloutBackend.from_run(copy, make_engine=always_ls)
        again.load_state_dict(state)
        async with again:
            again.submit(rows("later"))
            again.finish()
            groups = await collect(again)
            assert sorted(uids(groups)) == ["later@1", "second"]
            assert again.metrics()["groups/open"] == 2
    assert uids([second]) == ["second"]


async def test_a_group_that_was_dropped_before_a_crash_lends_its_name_to_no_other(
    tmp_path: Path,
) -> None:
    """Samples of it were kept; those of the next one for its prompt are others."""
    out, copy = tmp_path / "run", tmp_path / "copy"
    async with asyncio.timeout(60):
        async with journalled(out) as backend:
            backend.submit(rows("a"))
            for _ in itertools.count():
                if backend.metrics()["coordinator/groups_complete"]:
                    break
                await asyncio.sleep(0)
            backend._drop(["a"], Ending(cause=Cause.SURPLUS, phase="group"))
            await backend._running.journal.kept()  # type: ignore[union-attr]  # it has one
            shutil.copytree(out, copy)
        async with RolloutBackend.from_run(copy, make_engine=always_ls) as again:
            assert uids(await again.step(rows("a"))) == ["a@1"]
    keys = [json.loads(line)["key"] for line in (copy / "samples.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 4


async def test_what_a_trainer_held_is_not_gone_on_with_by_a_run(tmp_path: Path) -> None:
    """It would deliver to nobody and remove the journal at the end; nor the other way round."""
    out = tmp_path / "run"
    async with asyncio.timeout(60):
        async with journalled(out) as backend:
            await backend.step(rows("a"))
        run = json.loads((out / "run.json").read_text())
        (out / "run.json").write_text(json.dumps(run | {"status": "running"}))
        config = resumed_config(out)
        tasks = config.tasks.model_copy(update={"source": "bundled"})
        session = Rollout(config.model_copy(update={"tasks": tasks}), resume=True)
        with pytest.raises(ConfigError, match=r"a trainer's: go on with RolloutBackend\.from_run"):
            await session.run()
        (out / "journal.sqlite").unlink()
        journal = Journal(out / "journal.sqlite", keep_results=False)
        journal.open()
        journal.close()
        again = RolloutBackend.from_run(out, make_engine=always_ls)
        with pytest.raises(ConfigError, match="go on with `agentflow run --resume`"):
            await again.start()
        assert not (out / ".lock").exists()


def test_a_journal_needs_a_place(tmp_path: Path) -> None:
    """One clear error names the field."""
    backend = RolloutBackend.from_config(
        {"engine": {"url": "parts"}, "rollout": {"journal": True}}, make_engine=always_ls
    )
    with pytest.raises(ConfigError, match=r"rollout.journal: needs run.out"), backend.sync():
        raise AssertionError


async def test_a_new_version_by_itself_interrupts_nothing() -> None:
    """Publishing weights aborted 16 of 16 requests in the field; here it is a number."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        backend.submit(rows(*"abcd", turns=6), n=4)
        backend.finish()
        for version in range(1, 17):
            backend.weights_updated(version)
            await asyncio.sleep(0)
        assert len(await collect(backend)) == 4
        assert backend.metrics()["local/interrupted"] == 0


async def test_a_step_that_is_cancelled_loses_no_group() -> None:
    """Its groups come to whoever asks next, each once and whole."""
    holding = Holding()
    async with asyncio.timeout(30), holding.backend as backend:
        prompts = [*rows("a"), *rows("b", "c", turns=40)]
        step = asyncio.create_task(backend.step(prompts, n=2))
        while not backend._delivered:  # it has the first one
            await turns(1)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        backend.finish()
        groups = await collect(backend)
        assert sorted(uids(groups)) == ["a", "b", "c"]
        assert all(len(group) == 2 for group in groups)
