"""Pause, update, flush, resume: exact versions in every mode, nothing left paused or hanging."""

from __future__ import annotations

import asyncio

import pytest
from support import MODEL, PROMPT, Sink, expected, fleet, pair, request, until

from agentflow.engine.sglang import Deadlines, PauseMode, SglangEngine
from agentflow.errors import EngineAdminFailed, GenerationAborted
from agentflow.types import FinishReason, GenerationResult


def check_tokens(sink: Sink) -> None:
    """Every token must be what the weights of its version say after those before it."""
    names = {0: "default"}
    ids = list(PROMPT)
    for token, version in zip(sink.ids, sink.versions, strict=True):
        name = names.get(version, str(version))
        assert token == MODEL.next_token(ids, len(ids), name)[0]
        ids.append(token)


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.RETRACT])
@pytest.mark.parametrize("incremental", [True, False])
async def test_decoding_goes_on_under_new_weights(mode: PauseMode, *, incremental: bool) -> None:
    """A running generation is not aborted, and each token has the version that generated it."""
    async with pair(step_s=0.004, incremental=incremental) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.generate(request(max_new_tokens=40), sink))
            await sink.reached(5)
            async with engine.paused(mode):
                await engine.update_weights_from_disk("/weights/1", version=1)
        assert task.result().retractions == (mode is PauseMode.RETRACT)
        assert len(sink.ids) == 40
        assert set(sink.versions) == {0, 1}
        check_tokens(sink)
        assert (await engine.info()).weight_version == 1


async def test_mode_abort_ends_what_runs_and_holds_what_comes() -> None:
    """Running generations end with their tokens; one begun while paused runs under new weights."""
    async with pair(step_s=0.004) as (_, engine):
        sink, late = Sink(), Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_ends(engine, 0, sink))
            await sink.reached(3)
            async with engine.paused(PauseMode.ABORT):
                assert isinstance(await task, GenerationAborted)
                second = group.create_task(_ends(engine, 1, late))
                await engine.update_weights_from_disk("/weights/1", version=1)
                await engine.flush()
                assert not second.done()
        check_tokens(sink)
        assert set(sink.versions) == {0}
        assert set(late.versions) == {1}
        check_tokens(late)


@pytest.mark.parametrize("flush", [True, False])
async def test_what_has_just_ended_is_in_no_updates_way(*, flush: bool) -> None:
    """The server is a step ahead of the answers: after a pause it can be flushed all the same."""
    async with pair(step_s=None) as (server, engine):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_ends(engine, 0, sink := Sink()))
            await until(lambda: server.scheduler.waiting != [])
            server.step()
            await sink.reached(1)
            await engine.abort(request(0).rid)
            await until(lambda: "/abort_request" in server.calls)
            server.step()
            assert isinstance(await task, GenerationAborted)
        async with engine.paused(PauseMode.ABORT):
            if flush:
                await engine.flush()
            await engine.update_weights_from_disk("/weights/1", version=1)


@pytest.mark.parametrize("incremental", [True, False])
async def test_what_is_aborted_while_retracted_keeps_its_tokens(*, incremental: bool) -> None:
    """It ends at once with every token it had, and goes on from there."""
    async with pair(step_s=0.004, incremental=incremental) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_ends(engine, 0, sink))
            await sink.reached(5)
            async with engine.paused(PauseMode.RETRACT):
                await engine.abort(request(0).rid)
                assert isinstance(await task, GenerationAborted)
        had = len(sink.ids)
        assert sink.ids == expected(had)
        going_on = request(1, [*PROMPT, *sink.ids], max_new_tokens=40 - had)
        await engine.generate(going_on, sink)
        assert sink.ids == expected(40)


async def _ends(engine: SglangEngine, n: int, sink: Sink) -> GenerationResult | GenerationAborted:
    try:
        return await engine.generate(request(n, max_new_tokens=40), sink)
    except GenerationAborted as error:
        return error


async def test_mode_drain_lets_running_ones_finish() -> None:
    """Nobody is aborted; new generations wait on this side and can be aborted there."""
    async with pair(step_s=0.004) as (server, engine):
        sink, late, never = Sink(), Sink(), Sink()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_ends(engine, 0, sink))
            await sink.reached(1)
            pausing = group.create_task(engine.pause(PauseMode.DRAIN))
            await asyncio.sleep(0)
            waiting = group.create_task(_ends(engine, 1, late))
            doomed = group.create_task(_ends(engine, 2, never))
            await pausing
            assert running.done()
            assert len(server.bodies) == 1
            await engine.abort(request(2).rid)
            assert isinstance(await doomed, GenerationAborted)
            await engine.update_weights_from_disk("/weights/1", version=1)
            await engine.resume()
        assert isinstance(running.result(), GenerationResult)
        assert isinstance(waiting.result(), GenerationResult)
        assert (set(sink.versions), set(late.versions)) == ({0}, {1})
        assert len(server.bodies) == 2


async def test_deadlines_stand_still_while_paused() -> None:
    """A pause longer than any silence allowed kills nothing, neither running nor new."""
    limits = Deadlines(first_token_s=0.2, between_tokens_s=0.2)
    async with pair(step_s=0.004, deadlines=limits) as (_, engine):
        sink, late = Sink(), Sink()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_ends(engine, 0, sink))
            await sink.reached(2)
            async with engine.paused(PauseMode.IN_PLACE):
                waiting = group.create_task(_ends(engine, 1, late))
                await asyncio.wait([running, waiting], timeout=0.5)
        for task in (running, waiting):
            result = task.result()
            assert isinstance(result, GenerationResult)
            assert result.finish is FinishReason.LENGTH
        check_tokens(sink)
        check_tokens(late)


async def test_a_version_bump_alone_aborts_nothing() -> None:
    """An update without a pause waits for running generations, which end by themselves."""
    async with pair(step_s=0.004) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_ends(engine, 0, sink))
            await sink.reached(1)
            await engine.update_weights_from_disk("/weights/1", version=1)
        assert isinstance(task.result(), GenerationResult)
        assert set(sink.versions) == {0}


async def test_an_update_that_somebody_else_made_is_seen() -> None:
    """A trainer that updates the server directly still gets exact versions."""
    async with pair() as (server, engine):
        await engine.info()
        server.scheduler.version = "7"
        sink = Sink()
        await engine.generate(request(), sink)
        assert set(sink.versions) == {7}
        assert sink.ids == expected(32, version="7")


async def test_a_refused_update_resumes_and_says_why() -> None:
    """The message of the server is in the error, and generating goes on under the old weights."""
    async with pair() as (server, engine):
        server.faults.refused_updates = 1
        with pytest.raises(EngineAdminFailed, match="no such file"):
            async with engine.paused(PauseMode.RETRACT):
                await engine.update_weights_from_disk("/nowhere", version=1)
        sink = Sink()
        await engine.generate(request(), sink)
        assert sink.ids == expected(32)


async def test_flushing_kv_that_was_kept_is_an_error() -> None:
    """While paused in place with something running the server refuses, and we say so."""
    async with pair(step_s=0.004) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(_ends(engine, 0, sink))
            await sink.reached(1)
            async with engine.paused(PauseMode.IN_PLACE):
                with pytest.raises(EngineAdminFailed, match="Flush cache failed"):
                    await engine.flush()


@pytest.mark.parametrize("second", [PauseMode.ABORT, PauseMode.DRAIN])
async def test_pausing_twice_is_an_error(second: PauseMode) -> None:
    """Two owners of a pause would resume under each other."""
    async with pair() as (_, engine), engine.paused(PauseMode.DRAIN):
        with pytest.raises(EngineAdminFailed, match="paused already, in mode drain"):
            await engine.pause(second)
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_ends(engine, 0, sink))
            await asyncio.wait([task], timeout=0.05)
            assert sink.ids == []
            await engine.abort(request(0).rid)


@pytest.mark.parametrize("second", [PauseMode.RETRACT, PauseMode.DRAIN])
async def test_a_drain_under_way_is_a_pause_already(second: PauseMode) -> None:
    """The second owner is refused and does not let new generations through."""
    async with pair(step_s=0.004) as (server, engine):
        first, late = Sink(), Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(_ends(engine, 0, first))
            await first.reached(1)
            pausing = group.create_task(engine.pause(PauseMode.DRAIN))
            await asyncio.sleep(0)
            with pytest.raises(EngineAdminFailed, match="mode drain is under way"):
                await engine.pause(second)
            waiting = group.create_task(_ends(engine, 1, late))
            await pausing
            assert len(server.bodies) == 1
            assert not waiting.done()
            await engine.resume()
        assert isinstance(waiting.result(), GenerationResult)


async def test_a_mode_may_be_its_name() -> None:
    """The name means the mode; any other name is refused before anything is paused."""
    async with pair(step_s=0.004) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_ends(engine, 0, sink))
            await sink.reached(1)
            async with engine.paused("drain"):
                assert running.done()
        with pytest.raises(ValueError, match="'drained'; it must be one of abort, in_place"):
            await engine.pause("drained")


async def test_a_pause_that_fails_on_one_replica_leaves_none_paused() -> None:
    """The error names the replica; both generate afterwards."""
    async with fleet(2) as ((one, two), engine):
        two.faults.failing_calls["/pause_generation"] = 1
        with pytest.raises(EngineAdminFailed, match=two.url):
            await engine.pause(PauseMode.RETRACT)
        assert (one.scheduler.pause_mode, two.scheduler.pause_mode) == (None, None)
        for n in range(4):
            sink = Sink()
            await engine.generate(request(n), sink)
            assert sink.ids == expected(32)


async def test_a_resume_that_fails_is_raised_and_can_be_repeated() -> None:
    """The caller learns which server may still be paused; trying again heals it."""
    async with pair() as (server, engine):
        server.faults.failing_calls["/continue_generation"] = 1
        with pytest.raises(EngineAdminFailed, match="/continue_generation"):
            async with engine.paused(PauseMode.RETRACT):
                pass
        await engine.resume()
        await engine.generate(request(), Sink())


async def test_every_replica_gets_the_new_weights() -> None:
    """Two replicas, one update: both generate under it."""
    async with fleet(2) as ((one, two), engine):
        async with engine.paused(PauseMode.ABORT):
            await engine.update_weights_from_disk("/weights/3", version=3)
        assert (one.scheduler.version, two.scheduler.version) == ("3", "3")


async def test_the_other_ways_to_update_reach_the_server() -> None:
    """Tensors and process groups go to their own calls, with the version."""
    async with pair() as (server, engine):
        await engine.init_weights_update_group(address="10.0.0.1", port=29500, world_size=2)
        await engine.update_weights_from_tensor(["AAAA"], version=4)
        assert server.scheduler.version == "4"
        await engine.update_weights_from_distributed(
            names=["w"], dtypes=["bfloat16"], shapes=[[2, 2]], version=5
        )
        assert server.scheduler.version == "5"
        await engine.destroy_weights_update_group()
        assert "/init_weights_update_group" in server.calls
        assert "/destroy_weights_update_group" in server.calls


@pytest.mark.parametrize("failing", ["/begin_weight_update", "/update_weights_from_tensor"])
async def test_an_update_that_fails_leaves_no_session_open(failing: str) -> None:
    """Whichever call fails on one of two replicas, the next update finds none in its way."""
    async with fleet(2) as ((one, two), engine):
        two.faults.failing_calls[failing] = 1
        with pytest.raises(EngineAdminFailed, match=f"{two.url}{failing}"):
            await engine.update_weights_from_tensor(["AAAA"], version=1)
        await engine.update_weights_from_tensor(["AAAA"], version=2)
        assert (one.scheduler.version, two.scheduler.version) == ("2", "2")


async def test_a_session_that_somebody_left_open_is_told_and_closed() -> None:
    """After a trainer that died in an update, or a close that failed, the next try works."""
    async with pair() as (server, engine):
        server.faults.failing_calls["/end_weight_update"] = 1
        with pytest.raises(EngineAdminFailed, match="/end_weight_update"):
            await engine.update_weights_from_tensor(["AAAA"], version=1)
        with pytest.raises(EngineAdminFailed, match="already open"):
            await engine.update_weights_from_tensor(["AAAA"], version=2)
        await engine.update_weights_from_tensor(["AAAA"], version=3)
        assert server.scheduler.version == "3"
