"""The simulated engine against calculations made by hand (times in each test)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from engine_kit import Log, Outcome, ask, request, spec

from agentflow.errors import (
    ContextFull,
    EngineAdminFailed,
    EngineDied,
    EngineRejected,
    EngineUnreachable,
    GenerationAborted,
)
from agentflow.sim.clock import run_virtual
from agentflow.sim.engine import SimulatedEngine
from agentflow.types import FinishReason, SyncMode


def run_all(engine: SimulatedEngine, *asked: tuple[object, float]) -> list[Outcome]:
    """Send requests at their times; return their outcomes."""

    async def main() -> list[Outcome]:
        calls = (ask(engine, req, at=at) for req, at in asked)  # type: ignore[arg-type]
        return await asyncio.gather(*calls)

    return run_virtual(main())


def test_one_request_takes_its_prefill_and_its_steps() -> None:
    """10 new: 2 + 5 + 0.001·10·5 = 7.05; steps read 11 and 12: 1.21 + 1.22; in all 9.48."""
    (only,) = run_all(SimulatedEngine(spec()), (request("a", 10, 3), 0.0))
    assert only.at == pytest.approx(9.48)
    assert len(only.sink.ids) == 3


def test_the_first_token_comes_with_the_prefill() -> None:
    """One token needs no decode step: 7.05 s."""
    engine = SimulatedEngine(spec())
    (only,) = run_all(engine, (request("a", 10, 1), 0.0))
    assert only.at == pytest.approx(7.05)
    assert engine.use.steps == 0


def test_two_requests_share_a_prefill_batch_and_steps() -> None:
    """Prefill 2 + 2·5.05 = 12.1; a step of two reading 22 is 1 + .2 + .22; 13.52 for both."""
    a, b = run_all(SimulatedEngine(spec()), (request("a", 10, 2), 0.0), (request("b", 10, 2), 0.0))
    assert a.at == b.at == pytest.approx(12.1 + 1.42)


def test_a_late_prefill_stalls_the_running_decode() -> None:
    """`b` comes in the step 7.05 to 8.26; its prefill ends at 15.31; `a` steps on to 16.74.

    The joint step reads 12 + 11 tokens: 1 + .2 + .23 = 1.43.
    """
    a, b = run_all(SimulatedEngine(spec()), (request("a", 10, 3), 0.0), (request("b", 10, 2), 8.0))
    assert a.at == b.at == pytest.approx(8.26 + 7.05 + 1.43)


def test_a_full_engine_lets_the_next_one_wait_for_a_slot() -> None:
    """With one slot `b` starts when `a` has ended at 8.26, and ends 8.26 later."""
    a, b = run_all(
        SimulatedEngine(spec(slots=1)), (request("a", 10, 2), 0.0), (request("b", 10, 2), 0.0)
    )
    assert (a.at, b.at) == (pytest.approx(8.26), pytest.approx(16.52))


def test_a_follow_up_prefills_only_what_is_new() -> None:
    """The next turn holds 10 + 2 made ids + 5: of 17, 11 have KV (the last made one has not).

    Prefill of 6 over 11: 2 + 3 + 0.001·6·14 = 5.084.
    """
    engine = SimulatedEngine(spec())

    async def main() -> tuple[Outcome, float]:
        first = await ask(engine, request("a", 10, 2))
        began = asyncio.get_running_loop().time()
        ids = [*request("a", 10, 1).input_ids.tolist(), *first.sink.ids, 5, 6, 7, 8, 9]
        return await ask(engine, request("a2", ids, 1), at=began), began

    second, began = run_virtual(main())
    assert second.cached == 11
    assert second.at - began == pytest.approx(5.084)


def test_the_same_prompt_again_computes_its_last_token() -> None:
    """A match covers one token less than the prompt: 2 + .5 + 0.001·1·9.5 = 2.5095."""
    engine = SimulatedEngine(spec())

    async def main() -> tuple[Outcome, float]:
        await ask(engine, request("a", 10, 1))
        began = asyncio.get_running_loop().time()
        return await ask(engine, request("a2", 10, 1), at=began), began

    second, began = run_virtual(main())
    assert second.cached == 9
    assert second.at - began == pytest.approx(2.5095)


def test_a_long_prompt_is_cut_into_batches() -> None:
    """10 new in chunks of 4, 4, 2: three batches cost 3·2, the parts 5.05 as in one piece."""
    engine = SimulatedEngine(spec(prefill_chunk=4))
    (only,) = run_all(engine, (request("a", 10, 1), 0.0))
    assert only.at == pytest.approx(6 + 5.05)
    assert engine.use.prefill_batches == 3


def test_an_abort_lets_one_more_step_happen_and_keeps_the_kv() -> None:
    """Steps of `a` end at 8.26, 9.48, 10.71; an abort at 9 is read at 9.48, one more step ends it.

    It has the prefill's token and three steps' by then; a continuation finds all but the last.
    """
    engine = SimulatedEngine(spec())

    async def main() -> tuple[Outcome, Outcome]:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask(engine, request("a", 10, 100)))
            await asyncio.sleep(9)
            await engine.abort("a")
        got = first.result()
        ids = [*request("a", 10, 1).input_ids.tolist(), *got.sink.ids]
        return got, await ask(engine, request("a2", ids, 1), at=got.at)

    first, second = run_virtual(main())
    assert isinstance(first.error, GenerationAborted)
    assert first.at == pytest.approx(10.71)
    assert len(first.sink.ids) == 4
    assert second.cached == 13


def test_an_abort_in_the_queue_ends_at_the_next_pass_with_nothing() -> None:
    """`b` waits for the slot of `a`; aborted at 7.5 it ends with the step at 8.26, empty."""
    engine = SimulatedEngine(spec(slots=1))

    async def main() -> Outcome:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(engine, request("a", 10, 5)))
            waiting = group.create_task(ask(engine, request("b", 10, 5)))
            await asyncio.sleep(7.5)
            await engine.abort("b")
        return waiting.result()

    outcome = run_virtual(main())
    assert isinstance(outcome.error, GenerationAborted)
    assert outcome.at == pytest.approx(8.26)
    assert outcome.sink.ids == []


def test_an_abort_ends_every_request_whose_rid_starts_like_it_but_needs_an_exact_one() -> None:
    """As in SGLang, "a1" also ends "a10", and "a" ends nothing when no request is called so."""
    engine = SimulatedEngine(spec())

    async def main() -> list[Outcome]:
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(ask(engine, request(rid, 4, 5))) for rid in ("a1", "a10", "a2")
            ]
            await asyncio.sleep(1)
            await engine.abort("a")
            await engine.abort("a1")
        return [call.result() for call in calls]

    a1, a10, a2 = run_virtual(main())
    assert isinstance(a1.error, GenerationAborted)
    assert isinstance(a10.error, GenerationAborted)
    assert a2.error is None


def test_kv_shortage_retracts_the_shortest_output_and_prefills_it_again() -> None:
    """30 KV tokens: prompts of 10 and two runs; the pair needs 2 a step and 10 are free.

    `a` and `b` run at one pace, so outputs tie and the later one, `b`, is retracted when the
    room is used up after 5 steps; it goes on when `a` has ended, with its tokens intact.
    """
    log = Log()
    engine = SimulatedEngine(spec(kv_tokens=30, reserve_clip=1, reserve_ratio=0.0), events=log)
    a, b = run_all(engine, (request("a", 10, 12), 0.0), (request("b", 10, 12), 0.0))
    assert (a.error, b.error) == (None, None)
    assert (a.retractions, b.retractions) == (0, 1)
    assert len(a.sink.ids) == len(b.sink.ids) == 12
    assert a.at < b.at
    assert [line.split()[1:] for line in log.lines if "retracted" in line] == [["retracted", "b"]]
    undisturbed = run_all(SimulatedEngine(spec()), (request("b", 10, 12), 0.0))[0]
    assert b.sink.ids == undisturbed.sink.ids


def test_retraction_happens_at_the_step_that_memory_does_not_hold() -> None:
    """Prefill 12.1; five steps of two read 22, 24, .. 30: 5·1.2 + .01·130 = 7.3; `b` at 19.4."""
    log = Log()
    engine = SimulatedEngine(spec(kv_tokens=30, reserve_clip=1, reserve_ratio=0.0), events=log)
    run_all(engine, (request("a", 10, 12), 0.0), (request("b", 10, 12), 0.0))
    assert "19.4 retracted b" in log.lines


def test_admission_reserves_what_running_requests_may_still_need() -> None:
    """Of 100 KV tokens `a` holds 10 and may need 60·0.7 = 42 more: `b` with 10 + 60 must wait."""
    log = Log()
    engine = SimulatedEngine(spec(kv_tokens=100, reserve_decay_steps=10**9), events=log)
    run_all(engine, (request("a", 10, 60), 0.0), (request("b", 10, 60), 8.0))
    order = [line.split(" ", 1)[1] for line in log.lines]
    assert order.index("ended a") < order.index("admitted b")


def test_the_least_recently_used_prefix_is_evicted() -> None:
    """40 KV tokens hold three prompts; `a` is used again, so `d` costs `b` its KV."""
    engine = SimulatedEngine(spec(kv_tokens=40, reserve_clip=1))

    async def main() -> list[int]:
        for rid in ("a", "b", "c", "a2", "d"):
            now = asyncio.get_running_loop().time()
            await ask(engine, request(rid, 12, 1), at=now)
        again = [await ask(engine, request(rid, 12, 1), at=_now()) for rid in ("a3", "c2", "b2")]
        return [outcome.cached for outcome in again]

    assert run_virtual(main()) == [11, 11, 0]


def test_a_higher_priority_goes_first_and_preempts_only_beyond_the_threshold() -> None:
    """One slot: 10 more than the running 0 waits, 11 more throws it out; its tokens stay."""
    log = Log()
    engine = SimulatedEngine(spec(slots=1, priorities=True, preemption=True), events=log)
    outcomes = run_all(
        engine,
        (request("a", 10, 6, priority=0), 0.0),
        (request("b", 10, 2, priority=10), 8.0),
        (request("c", 10, 2, priority=11), 8.0),
    )
    order = [line.split()[2] for line in log.lines if " ended " in line]
    assert order == ["c", "b", "a"]
    assert [line.split()[2] for line in log.lines if "preempted" in line] == ["a"]
    assert [len(outcome.sink.ids) for outcome in outcomes] == [6, 2, 2]


def test_without_preemption_priority_only_orders_the_queue() -> None:
    """The running request ends first, then the waiting ones by priority."""
    log = Log()
    engine = SimulatedEngine(spec(slots=1, priorities=True), events=log)
    run_all(
        engine,
        (request("a", 10, 6, priority=0), 0.0),
        (request("b", 10, 2, priority=1), 8.0),
        (request("c", 10, 2, priority=99), 8.0),
    )
    assert [line.split()[2] for line in log.lines if " ended " in line] == ["a", "c", "b"]


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _under_pause(mode: SyncMode, engine: SimulatedEngine) -> tuple[Outcome, float]:
    """Pause at 9 while `a` runs (steps end at 8.26, 9.48, ..), load version 1, resume at 20."""
    async with asyncio.TaskGroup() as group:
        call = group.create_task(ask(engine, request("a", 10, 6)))
        await asyncio.sleep(9)
        await engine.pause(mode)
        paused_at = _now()
        await engine.update_weights_from_disk("weights", version=1)
        await asyncio.sleep(20 - _now())
        await engine.resume()
    return call.result(), paused_at


def test_pause_in_place_stands_still_and_goes_on_under_the_new_weights() -> None:
    """Paused after the step at 9.48 with 3 tokens; three more steps read 13, 14, 15: at 23.72."""
    outcome, paused_at = run_virtual(_under_pause(SyncMode.IN_PLACE, SimulatedEngine(spec())))
    assert paused_at == pytest.approx(9.48)
    assert outcome.at == pytest.approx(20 + 3 * 1.1 + 0.42)
    assert outcome.sink.versions == [0, 0, 0, 1, 1, 1]


def test_pause_retract_prefills_everything_again() -> None:
    """At 20 the 13 tokens are prefilled (2 + 6.5 + .0845), the flush having emptied the cache."""
    outcome, _ = run_virtual(_under_pause(SyncMode.RETRACT, SimulatedEngine(spec())))
    assert outcome.at == pytest.approx(20 + 8.5845 + 2 * 1.1 + 0.14 + 0.15)
    assert outcome.sink.versions == [0, 0, 0, 1, 1, 1]
    assert outcome.retractions == 0


def test_pause_abort_waits_for_the_last_request() -> None:
    """Read at 9.48, one more step: the request ends aborted at 10.71, and so the pause holds."""
    outcome, paused_at = run_virtual(_under_pause(SyncMode.ABORT, SimulatedEngine(spec())))
    assert isinstance(outcome.error, GenerationAborted)
    assert outcome.at == paused_at == pytest.approx(10.71)
    assert outcome.sink.versions == [0, 0, 0, 0]


def test_pause_drain_lets_the_last_request_end_by_itself() -> None:
    """Six tokens end after steps reading 11 .. 15: 7.05 + 5·1.1 + .65 = 13.2."""
    outcome, paused_at = run_virtual(_under_pause(SyncMode.DRAIN, SimulatedEngine(spec())))
    assert outcome.error is None
    assert outcome.at == paused_at == pytest.approx(13.2)


def test_new_requests_are_held_during_a_pause() -> None:
    """A request sent at 1 into an idle, paused engine starts at 5."""
    engine = SimulatedEngine(spec())

    async def main() -> Outcome:
        await engine.pause(SyncMode.RETRACT)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(ask(engine, request("a", 10, 1), at=1))
            await asyncio.sleep(5)
            await engine.resume()
        return call.result()

    assert run_virtual(main()).at == pytest.approx(5 + 7.05)


def test_an_update_without_pause_waits_for_running_requests_and_holds_new_ones() -> None:
    """`a` ends at 9.48 on version 0; `b`, sent before that, starts after the update."""
    engine = SimulatedEngine(spec(update_s=3.0))

    async def main() -> tuple[Outcome, Outcome]:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask(engine, request("a", 10, 3)))
            await asyncio.sleep(8)
            update = group.create_task(engine.update_weights_from_disk("weights", version=4))
            second = group.create_task(ask(engine, request("b", 10, 1), at=8.1))
            await update
        return first.result(), second.result()

    first, second = run_virtual(main())
    assert first.at == pytest.approx(9.48)
    assert first.sink.versions == [0, 0, 0]
    assert second.at == pytest.approx(9.48 + 3 + 7.05)
    assert second.sink.versions == [4]


def test_a_flush_is_refused_while_requests_stand_still_with_their_kv() -> None:
    """As in SGLang, which answers 400; the request is not harmed."""
    engine = SimulatedEngine(spec())

    async def main() -> Outcome:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(ask(engine, request("a", 10, 3)))
            await asyncio.sleep(8)
            async with engine.paused(SyncMode.IN_PLACE):
                with pytest.raises(EngineAdminFailed, match="1 requests use the cache"):
                    await engine.flush()
        return call.result()

    assert run_virtual(main()).error is None


def test_cancelling_keeps_exactly_the_tokens_of_finished_steps() -> None:
    """At 9.5 the prefill and the steps at 8.26 and 9.48 have ended: three tokens."""
    engine = SimulatedEngine(spec())

    async def main() -> tuple[int, int]:
        outcome = Outcome()
        call = asyncio.ensure_future(engine.generate(request("a", 10, 100), outcome.sink))
        await asyncio.sleep(9.5)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.sleep(10)
        return len(outcome.sink.ids), engine.in_flight

    assert run_virtual(main()) == (3, 0)


def test_death_ends_everything_with_its_tokens_and_revival_starts_cold() -> None:
    """At 9.5 `a` has three tokens; afterwards the engine is unreachable, later empty."""
    engine = SimulatedEngine(spec())

    async def main() -> tuple[Outcome, Outcome]:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(ask(engine, request("a", 10, 100)))
            await asyncio.sleep(9.5)
            engine.kill()
        with pytest.raises(EngineUnreachable):
            await engine.info()
        engine.revive()
        return call.result(), await ask(engine, request("a2", 10, 1), at=_now())

    first, second = run_virtual(main())
    assert isinstance(first.error, EngineDied)
    assert (first.at, len(first.sink.ids)) == (9.5, 3)
    assert second.cached == 0


def test_lengths_make_the_model_stop_by_itself_with_its_stop_token() -> None:
    """Told to say 4, it stops there though 9 were allowed; told 9 of 4 it is cut at 4."""
    engine = SimulatedEngine(spec(), lengths=lambda req: 4 if req.rid == "a" else 9)

    async def main() -> tuple[FinishReason, list[int], FinishReason, list[int]]:
        one, two = Outcome(), Outcome()
        stop = {"stop_token_ids": (7,)}
        first = await engine.generate(request("a", 3, 9, **stop), one.sink)
        second = await engine.generate(request("b", 3, 4, **stop), two.sink)
        assert first.matched == 7
        return first.finish, one.sink.ids, second.finish, two.sink.ids

    first, said, second, cut = run_virtual(main())
    assert (first, len(said), said.index(7)) == (FinishReason.STOP, 4, 3)
    assert (second, len(cut), 7 in cut) == (FinishReason.LENGTH, 4, False)


def test_what_the_server_would_refuse_is_refused() -> None:
    """An id outside the vocabulary, an empty prompt, a full context, a prompt above KV."""
    engine = SimulatedEngine(spec(context_length=50, kv_tokens=40))
    outcomes = run_all(
        engine,
        (request("a", [5, 1000], 1), 0.0),
        (request("b", [], 1), 0.0),
        (request("c", 50, 1), 0.0),
        (request("d", 39, 1), 0.0),
    )
    kinds = [type(outcome.error) for outcome in outcomes]
    assert kinds == [EngineRejected, EngineRejected, ContextFull, EngineRejected]
    assert "id 1000 is outside the vocabulary of 1000" in str(outcomes[0].error)


@pytest.mark.parametrize("page_size", [1, 8])
@pytest.mark.parametrize("seed", range(4))
def test_jumping_equals_stepping(seed: int, page_size: int) -> None:
    """A run with idle messages at every moment, so that no jump is long, ends at the same times."""
    rng = np.random.default_rng(seed)
    asked = [
        (request(f"{chr(97 + i)}", int(rng.integers(1, 30)), int(rng.integers(1, 40))),
         float(rng.integers(0, 60)))
        for i in range(8)
    ]  # fmt: skip
    plain, poked = (
        SimulatedEngine(spec(slots=4, kv_tokens=120, page_size=page_size)) for _ in range(2)
    )

    async def main() -> list[Outcome]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(ask(poked, req, at=at)) for req, at in asked]
            for _ in range(2000):
                await poked.abort("nobody")
                await asyncio.sleep(0.37)
        return [call.result() for call in calls]

    for one, other in zip(run_all(plain, *asked), run_virtual(main()), strict=True):
        assert one.at == pytest.approx(other.at)
        assert one.sink.ids == other.sink.ids
        assert one.cached == other.cached
    assert plain.use.steps == poked.use.steps
