"""mini-swe-agent's own agent in a thread pool, as its batch runner drives it: a driver of `peers`.

One thread an episode, as many as there are containers; each holds its thread while its command runs
and while its request waits. What was generated when a request is aborted is gone: the library has
no notion of a partial answer, so that its model asks again, as it does after any failed call.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentflow.swe.agent.library import DefaultAgent, Submitted
from benchmarks.peer_work import Episode, load, report

if TYPE_CHECKING:
    from collections.abc import Mapping


class ServedModel:
    """The library's `Model` over a server: sends the whole context for every turn."""

    config: Any = None

    def __init__(self, url: str, episode: Episode) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
        self._episode = episode
        self._ids = list(range(10, 10 + episode["prompt"]))
        self._calls = itertools.count()
        self.tokens = 0

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:  # noqa: ARG002  # Model's
        """Ask until there is a whole answer."""
        aborted = True
        said: list[int] = []
        while aborted:
            said, aborted = self._ask()
        self.tokens += len(said)
        self._ids += said
        return {"role": "assistant", "content": f"{len(said)}", "extra": {"actions": [{}]}}

    def _ask(self) -> tuple[list[int], bool]:
        params = {"max_new_tokens": self._episode["tokens"], "ignore_eos": True}
        rid = f"{self._episode['uid']}-{next(self._calls):06d}"
        body = {"rid": rid, "input_ids": self._ids, "sampling_params": params, "stream": True}
        self._connection.request("POST", "/generate", json.dumps(body))
        said: list[int] = []
        reason: dict[str, Any] = {}
        for line in self._connection.getresponse().read().splitlines():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                said += event["output_ids"]
                reason = event["meta_info"]["finish_reason"] or reason
        return said, reason["type"] == "abort"

    def observe(self) -> None:
        """Append a command's output."""
        self._ids += [5] * self._episode["observation"]

    def format_message(self, **message: Any) -> dict[str, Any]:
        """Leave it."""
        return message

    def format_observation_messages(
        self,
        message: Mapping[str, Any],  # noqa: ARG002  # Model's
        outputs: list[dict[str, Any]],
        template_vars: Mapping[str, Any] | None = None,  # noqa: ARG002  # Model's
    ) -> list[dict[str, Any]]:
        """One for each output."""
        return [{"role": "user", "content": output["output"]} for output in outputs]

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        """None."""
        return {}

    def serialize(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class SleepingEnvironment:
    """The library's `Environment` whose commands take their time; the last one submits."""

    config: Any = None

    def __init__(self, model: ServedModel, episode: Episode) -> None:
        time.sleep(episode["start_s"])
        self._model = model
        self._commands = iter(episode["commands_s"])
        self._left = len(episode["commands_s"])

    def execute(self, action: Mapping[str, Any], cwd: str = "") -> dict[str, Any]:  # noqa: ARG002  # Environment's
        """Run."""
        time.sleep(next(self._commands))
        self._left -= 1
        if not self._left:
            raise Submitted({"role": "exit", "content": "", "extra": {}})
        self._model.observe()
        return {"output": "ok", "returncode": 0}

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        """None."""
        return {}

    def serialize(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def main() -> None:
    """Play the workload on the first server."""
    workload, url = load(sys.argv[1]), sys.argv[2]

    def play(episode: Episode) -> int:
        model = ServedModel(url, episode)
        environment = SleepingEnvironment(model, episode)
        agent = DefaultAgent(
            model,
            environment,
            system_template="s",
            instance_template="{{task}}",
            step_limit=0,
            cost_limit=0,
        )
        agent.run(episode["uid"])
        return model.tokens

    with ThreadPoolExecutor(workload["containers"]) as pool:
        report(lambda: list(pool.map(play, workload["episodes"])))


if __name__ == "__main__":
    main()
