"""Any order of generate, abort, continue, pause, update, cancel and kill keeps every token."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import MODEL, VOCAB, Sink

from agentflow.engine.fake_sglang import FakeOptions, FakeSglang
from agentflow.engine.sglang import PauseMode, SglangConfig, SglangEngine
from agentflow.errors import (
    EngineAdminFailed,
    EngineDied,
    EngineUnreachable,
    GenerationAborted,
)
from agentflow.types import GenerationRequest, GenerationResult, SamplingParams

DECODING = st.tuples(st.integers(0, 8), st.booleans())
"""Tokens that the server decodes for each request, and whether it sends them in one event."""

WHICH = st.integers(0, 99)
"""Of those at hand, counted round: how many there are depends on when bytes arrive, and a draw or
a precondition that did so would tell hypothesis two stories of one history."""

SETTLE = 40
"""Turns of the loop after which loopback traffic has mostly arrived; nothing depends on it."""


@dataclass
class Turn:
    """One turn over all its requests."""

    number: int
    prompt: list[int]
    budget: int
    sink: Sink = field(default_factory=Sink)
    requests: int = 0
    task: asyncio.Task[None] | None = None
    rid: str = ""
    result: GenerationResult | None = None

    @property
    def flying(self) -> bool:
        """Whether a request of it is in flight."""
        return self.task is not None and not self.task.done()

    @property
    def left(self) -> int:
        """What remains of its budget."""
        return self.budget - len(self.sink.ids)

    @property
    def can_go_on(self) -> bool:
        """Whether it may be continued."""
        ended = self.sink.ids[-1:] == [MODEL.eos_id] or self.left < 1
        return not self.flying and self.result is None and not ended


def _chosen(turns: list[Turn], which: int) -> list[Turn]:
    """Return one of them, or none where there is none."""
    return [turns[which % len(turns)]] if turns else []


class EngineMachine(RuleBasedStateMachine):
    """The client, a fake server, and everything that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.turns: list[Turn] = []
        self.rids: list[str] = []
        self.version = 0
        self.runner.run(self._start())

    # --- what happens -------------------------------------------------------------------------

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
        budget=st.integers(1, 60),
        decoding=DECODING,
    )
    def begin(self, prompt: list[int], budget: int, decoding: tuple[int, bool]) -> None:
        """Begin a turn, and let the server decode a little, as it does after all that follows."""
        turn = Turn(number=len(self.turns), prompt=prompt, budget=budget)
        self.turns.append(turn)
        self.runner.run(self._fly(turn))
        self._let_decode(decoding)

    @rule(which=WHICH, decoding=DECODING)
    def go_on(self, which: int, decoding: tuple[int, bool]) -> None:
        """Continue a turn that was interrupted."""
        for turn in _chosen([t for t in self.turns if t.can_go_on], which):
            self.runner.run(self._fly(turn))
        self._let_decode(decoding)

    @rule(decoding=DECODING)
    def decode(self, decoding: tuple[int, bool]) -> None:
        """Let the server decode."""
        self._let_decode(decoding)

    @rule(which=WHICH, settle=st.booleans())
    def abort(self, which: int, *, settle: bool) -> None:
        """Abort a request in flight."""
        for turn in _chosen([t for t in self.turns if t.flying], which):
            self.runner.run(self._abort(turn, settle=settle))

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        """Cancel a request in flight."""
        for turn in _chosen([t for t in self.turns if t.flying], which):
            self.runner.run(self._cancel(turn))

    @precondition(lambda self: not self.paused)
    @rule(mode=st.sampled_from(PauseMode))
    def pause(self, mode: PauseMode) -> None:
        """Pause; draining, once everything in flight has ended."""
        self.runner.run(self._pause(mode))
        self.paused = True

    @precondition(lambda self: not self.paused)
    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
        count=st.integers(0, 12),
        resume=st.booleans(),
    )
    def drain(self, prompt: list[int], count: int, *, resume: bool) -> None:
        """Begin to drain, begin a turn meanwhile, and drain on or think better of it."""
        turn = Turn(number=len(self.turns), prompt=prompt, budget=8)
        self.turns.append(turn)
        self.runner.run(self._drain(turn, count, resume=resume))
        self.paused = not resume

    @precondition(lambda self: self.paused)
    @rule()
    def update(self) -> None:
        """Load new weights while paused."""
        self.version += 1
        self.runner.run(self.engine.update_weights_from_disk("/w", version=self.version))

    @precondition(lambda self: self.paused)
    @rule(decoding=DECODING)
    def resume(self, decoding: tuple[int, bool]) -> None:
        """Resume."""
        self.runner.run(self.engine.resume())
        self.paused = False
        self._let_decode(decoding)

    @rule(
        fault=st.sampled_from(
            [
                *("lost_aborts", "overloaded", "duplicate_events"),
                *("cut_after_tokens", "garbage_after_tokens"),
            ]
        )
    )
    def fault(self, fault: str) -> None:
        """Prepare one fault; duplicates come until the server is killed."""
        setattr(self.server.faults, fault, 3 if fault.endswith("tokens") else 1)

    @rule(really=st.sampled_from([False, False, True]))
    def kill(self, *, really: bool) -> None:
        """Kill the server and start another one with the same weights; seldom, as it ends all."""
        if really:
            self.runner.run(self._restart())

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def tokens_are_exact(self) -> None:
        """Every token is what its weights say after those before it; ids and log-probs pair up."""
        for turn in self.turns:
            ids, sink = list(turn.prompt), turn.sink
            for at, token in enumerate(sink.ids):
                name = str(sink.versions[at]) if sink.versions[at] else "default"
                assert (token, sink.logprobs[at]) == MODEL.next_token(ids, len(ids), name)
                ids.append(token)
            assert len(sink.ids) <= turn.budget
            assert MODEL.eos_id not in sink.ids[:-1]

    @invariant()
    def rids_are_new(self) -> None:
        """No rid is used twice."""
        assert len(set(self.rids)) == len(self.rids)

    def teardown(self) -> None:
        """Every request ends once it may run, and a turn that ended by itself is whole."""
        self.runner.run(self._finish())
        for turn in self.turns:
            assert not turn.flying
            if turn.result is not None:
                assert turn.left == 0 or turn.sink.ids[-1] == MODEL.eos_id
        self.tokens_are_exact()
        self.runner.close()

    # --- how ----------------------------------------------------------------------------------

    def _let_decode(self, decoding: tuple[int, bool]) -> None:
        count, at_once = decoding
        self.runner.run(self._decode(count, at_once=at_once))

    async def _start(self) -> None:
        version = str(self.version) if self.version else "default"
        options = FakeOptions(model=MODEL, slots=3, step_s=None, version=version)
        self.server = await FakeSglang(options).__aenter__()
        self.engine = SglangEngine(SglangConfig(urls=(self.server.url,), vocab_size=VOCAB))
        await self.engine.info()
        self.paused = False

    async def _stop(self) -> None:
        await self.server.die()
        if self.paused:
            with pytest.raises(EngineAdminFailed):
                await self.engine.resume()  # whoever paused does so, and what waited goes on
        await asyncio.gather(*(t.task for t in self.turns if t.task is not None))
        await self.engine.close()

    async def _restart(self) -> None:
        await self._stop()
        await self._start()

    async def _fly(self, turn: Turn) -> None:
        turn.rid = f"{0:012x}-{turn.number:016x}-0000-{turn.requests:06x}"
        turn.requests += 1
        self.rids.append(turn.rid)
        turn.task = asyncio.get_running_loop().create_task(self._generate(turn))
        await self._settle()

    async def _generate(self, turn: Turn) -> None:
        request = GenerationRequest(
            rid=turn.rid,
            input_ids=np.asarray([*turn.prompt, *turn.sink.ids], np.int32),
            sampling=SamplingParams(temperature=0.0, max_new_tokens=turn.left),
        )
        try:
            turn.result = await self.engine.generate(request, turn.sink)
        except (GenerationAborted, EngineDied, EngineUnreachable, asyncio.CancelledError):
            return

    async def _decode(self, count: int, *, at_once: bool = False) -> None:
        for _ in range(count):
            self.server.step()
            if not at_once:
                await asyncio.sleep(0)
        await self._settle()

    async def _abort(self, turn: Turn, *, settle: bool) -> None:
        await self.engine.abort(turn.rid)
        if settle:
            await self._settle()

    async def _pause(self, mode: PauseMode) -> None:
        pausing = asyncio.get_running_loop().create_task(self.engine.pause(mode))
        async with asyncio.timeout(30):
            while not pausing.done():
                await self._decode(1)
        pausing.result()

    async def _drain(self, late: Turn, count: int, *, resume: bool) -> None:
        pausing = asyncio.get_running_loop().create_task(self.engine.pause(PauseMode.DRAIN))
        await asyncio.sleep(0)
        await self._fly(late)
        assert late.flying
        await self._decode(count)
        if resume:
            pausing.cancel()
            await asyncio.wait([pausing])
            await self.engine.resume()
            return
        async with asyncio.timeout(30):
            while not pausing.done():
                await self._decode(1)
        pausing.result()
        assert late.flying
        assert not late.sink.ids
        assert self.server.scheduler.running == []

    async def _cancel(self, turn: Turn) -> None:
        assert turn.task is not None
        turn.task.cancel()
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(SETTLE):
            await asyncio.sleep(0)

    async def _finish(self) -> None:
        await self.engine.resume()
        self.paused = False
        async with asyncio.timeout(30):
            while any(t.flying for t in self.turns):
                await self._decode(4)
        await self._stop()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
class TestEngineMachineAtLength(TestEngineMachine):  # type: ignore[misc, valid-type]
    """The same, ten times as often and over longer histories."""

    settings = settings(TestEngineMachine.settings, max_examples=120, stateful_step_count=40)
