"""verl's LLM-server client over two replicas: a driver of `peers`, in verl's environment.

What is verl's: its client that resumes after an abort, its load balancer in a Ray actor, a call to
the replica's actor for every generation. A replica here is an actor that forwards to a fake server
instead of holding an engine; its processor time is not counted, nor is that of Ray's own daemons.
Every episode is a task of its own, as verl's agent loop makes them; containers are its only limit.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, GlobalRequestLoadBalancer
from verl.workers.rollout.replica import TokenOutput

from benchmarks.peer_work import Episode, Workload, load, report

_THREADS = 256


class CountedBalancer(GlobalRequestLoadBalancer):
    """verl's balancer, which tells its processor time."""

    def cpu_s(self) -> float:
        """Seconds of this actor's process."""
        return time.process_time()


@ray.remote(max_concurrency=_THREADS)
class FakeReplica:
    """Forwards a generation to a server."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc

    def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **_: Any,
    ) -> TokenOutput:
        """Generate; an aborted answer has what there was."""
        connection = http.client.HTTPConnection(self._netloc, timeout=600)
        params = {"max_new_tokens": sampling_params["max_new_tokens"], "ignore_eos": True}
        body = {"rid": request_id, "input_ids": prompt_ids, "sampling_params": params}
        connection.request("POST", "/generate", json.dumps({**body, "stream": True}))
        said: list[int] = []
        reason: dict[str, Any] = {}
        for line in connection.getresponse().read().splitlines():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                said += event["output_ids"]
                reason = event["meta_info"]["finish_reason"] or reason
        connection.close()
        how = "aborted" if reason["type"] == "abort" else "completed"
        return TokenOutput(token_ids=said, stop_reason=how, extra_fields={"global_steps": 0})


async def play(workload: Workload, client: FullyAsyncLLMServerClient) -> list[int]:
    """Play every episode as a task."""
    containers = asyncio.Semaphore(workload["containers"])
    numbers = itertools.count()

    async def one(episode: Episode) -> int:
        async with containers:
            return await _episode(episode, client, f"{episode['uid']}-{next(numbers)}")

    return list(await asyncio.gather(*map(one, workload["episodes"])))


async def _episode(episode: Episode, client: FullyAsyncLLMServerClient, name: str) -> int:
    await asyncio.sleep(episode["start_s"])
    ids, tokens = list(range(10, 10 + episode["prompt"])), 0
    for command_s in episode["commands_s"]:
        output = await client.generate(
            name, prompt_ids=ids, sampling_params={"max_new_tokens": episode["tokens"]}
        )
        tokens += len(output.token_ids)
        ids = [*ids, *output.token_ids, *[5] * episode["observation"]]
        await asyncio.sleep(command_s)
    return tokens


def main() -> None:
    """Play the workload on all servers."""
    workload, urls = load(sys.argv[1]), sys.argv[2:]
    ray.init(num_cpus=len(urls) + 1, include_dashboard=False, log_to_driver=False)
    replicas = {url: FakeReplica.remote(url) for url in urls}
    balancer = ray.remote(CountedBalancer).remote(servers=replicas)
    ray.get(balancer.cpu_s.remote())  # it is up
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "sglang"}}})
    client = FullyAsyncLLMServerClient(config, balancer)
    report(
        lambda: asyncio.run(play(workload, client)),
        lambda: time.process_time() + ray.get(balancer.cpu_s.remote()),
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
