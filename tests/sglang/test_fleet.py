"""Several replicas, routers, load, metrics, health and https."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from support import MODEL, VOCAB, Sink, expected, pair, request

from agentflow.engine.fake_sglang import FakeOptions, FakeSglang
from agentflow.engine.rids import RidFactory
from agentflow.engine.sglang import SglangConfig, SglangEngine
from agentflow.engine.sglang.load import metrics_of
from agentflow.errors import ConfigError, EngineUnreachable
from agentflow.types import EpisodeId, GenerationRequest

if TYPE_CHECKING:
    from pathlib import Path


async def servers(stack: AsyncExitStack, *options: FakeOptions) -> list[FakeSglang]:
    """Start fake servers."""
    return [await stack.enter_async_context(FakeSglang(o)) for o in options]


def of_episode(rids: RidFactory, uid: str, n: int) -> GenerationRequest:
    """Make the n-th request of an episode."""
    made = request(max_new_tokens=3)
    rid = rids.make(EpisodeId(uid=uid), attempt=0, generation=n)
    return GenerationRequest(rid=rid, input_ids=made.input_ids, sampling=made.sampling)


async def test_an_episode_stays_on_its_replica() -> None:
    """Every generation of an episode finds the KV cache of the one before."""
    async with AsyncExitStack() as stack:
        both = await servers(stack, FakeOptions(model=MODEL), FakeOptions(model=MODEL))
        config = SglangConfig(urls=tuple(s.url for s in both), vocab_size=VOCAB)
        engine = await stack.enter_async_context(SglangEngine(config))
        rids = RidFactory()
        async with asyncio.TaskGroup() as group:
            for uid in "abcdef":
                group.create_task(engine.generate(of_episode(rids, uid, 0), Sink()))
        for uid in "abcdef":
            await engine.generate(of_episode(rids, uid, 1), Sink())
        homes = [{body["rid"].split("-")[1] for body in s.bodies} for s in both]
        assert [len(home) for home in homes] == [3, 3]
        assert not homes[0] & homes[1]


async def test_replicas_that_differ_are_refused() -> None:
    """Two models, or two versions of one, are not one engine."""
    async with AsyncExitStack() as stack:
        both = await servers(stack, FakeOptions(), FakeOptions(version="3"))
        config = SglangConfig(urls=tuple(s.url for s in both), vocab_size=VOCAB)
        engine = await stack.enter_async_context(SglangEngine(config))
        with pytest.raises(ConfigError, match="differ in weight_version: 0 and 3"):
            await engine.info()


@pytest.mark.parametrize(
    ("workers", "error"), [((), ConfigError), (("http://127.0.0.1:9",), EngineUnreachable)]
)
async def test_a_router_whose_workers_cannot_be_reached_is_refused(
    workers: tuple[str, ...], error: type[Exception]
) -> None:
    """That aborts would go nowhere is said at the start."""
    async with FakeSglang(FakeOptions(workers=workers)) as router:
        config = SglangConfig(urls=(router.url,), vocab_size=VOCAB)
        async with SglangEngine(config) as engine:
            with pytest.raises(error):
                await engine.info()


async def test_a_router_is_asked_again_when_a_worker_was_not_ready() -> None:
    """The first connection failed behind it; the next one goes on from there."""
    async with FakeSglang(FakeOptions()) as worker:
        worker.faults.failing_calls["/model_info"] = 1
        async with FakeSglang(FakeOptions(workers=(worker.url,))) as router:
            config = SglangConfig(urls=(router.url,), vocab_size=VOCAB)
            async with SglangEngine(config) as engine:
                with pytest.raises(EngineUnreachable, match="HTTP 500"):
                    await engine.info()
                assert (await engine.info()).name == "fake"
                assert [load.url for load in await engine.loads()] == [worker.url]


async def test_load_is_told() -> None:
    """Running, waiting and KV of every server."""
    async with pair(slots=1, step_s=0.004) as (_, engine):
        first = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.generate(request(0), first))
            await first.reached(1)
            group.create_task(engine.generate(request(1), Sink()))
            while (load := (await engine.loads())[0]).waiting == 0:
                pass
        assert (load.running, load.waiting, load.kv_tokens) == (1, 1, 65_536)
        assert 0 < load.token_usage < 1


async def test_metrics_count_nothing_twice() -> None:
    """With priorities on, totals come beside their parts."""
    async with pair(slots=1, step_s=0.004) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.generate(request(0), sink))
            await sink.reached(1)
            metrics = (await engine.metrics())[0]
        assert metrics["sglang:num_running_reqs"] == 1.0


def test_metrics_of_a_tensor_parallel_group_are_those_of_rank_0() -> None:
    """Ranks repeat each other; data-parallel ones add up; histograms are left out."""
    text = """
sglang:num_used_tokens{dp_rank="0",tp_rank="0"} 10.0
sglang:num_used_tokens{dp_rank="0",tp_rank="1"} 10.0
sglang:num_used_tokens{dp_rank="1",tp_rank="0"} 5.0
sglang:ttft_bucket{le="1.0"} 3.0
process_cpu_seconds_total 4.0
# HELP nothing
"""
    assert metrics_of(text) == {"sglang:num_used_tokens": 15.0}


def test_counters_that_come_in_parts_by_priority_alone_add_up() -> None:
    """Only gauges have a total beside their parts."""
    text = """
sglang:num_running_reqs{priority=""} 3.0
sglang:num_running_reqs{priority="0"} 2.0
sglang:num_running_reqs{priority="100"} 1.0
sglang:generation_tokens_total{is_streaming="false",priority="0"} 683.0
sglang:generation_tokens_total{is_streaming="true",priority="0"} 397.0
sglang:generation_tokens_total{is_streaming="false",priority="100"} 20.0
"""
    assert metrics_of(text) == {
        "sglang:num_running_reqs": 3.0,
        "sglang:generation_tokens_total": 1100.0,
    }


async def test_health_names_what_is_wrong() -> None:
    """A server that is paused is healthy; one that is gone is named."""
    async with pair() as (server, engine):
        server.scheduler.pause("in_place")
        assert await engine.unhealthy() == []
        await engine.wait_ready(timeout_s=10)
        assert "/health" not in server.calls  # while paused it would never be answered
        await server.die()
        (problem,) = await engine.unhealthy()
        assert server.url in problem
        with pytest.raises(EngineUnreachable, match=r"not ready after 0\.1 s"):
            await engine.wait_ready(timeout_s=0.1)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Make a certificate of our own and its key."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-nodes", "-days", "1", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return certificate, key


async def test_https_with_a_private_authority(certificate: tuple[Path, Path]) -> None:
    """With its certificate as `ca_file` an https server is served and checked."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with FakeSglang(FakeOptions(model=MODEL, tls=tls)) as server:
        trusted = SglangConfig(urls=(server.url,), vocab_size=VOCAB, ca_file=str(certificate[0]))
        async with SglangEngine(trusted) as engine:
            sink = Sink()
            await engine.generate(request(), sink)
            assert sink.ids == expected(32)
        async with SglangEngine(SglangConfig(urls=(server.url,), vocab_size=VOCAB)) as engine:
            with pytest.raises(EngineUnreachable, match="certificate"):
                await engine.info()
