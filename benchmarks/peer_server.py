"""A fake SGLang server in a process of its own, for `benchmarks.peers`, that counts its slots' use.

usage: python -m benchmarks.peer_server SLOTS STEP_S

Prints its url; ends when its input does, and prints what it did as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from agentflow.engine.fake_sglang import FakeModel, FakeOptions, FakeSglang

CONTEXT, VOCAB = 100_000, 32_000


class CountedSglang(FakeSglang):
    """FakeSglang that integrates running requests over time."""

    def __init__(self, options: FakeOptions) -> None:
        super().__init__(options)
        self.slot_s = 0.0
        self._looked_at: float | None = None
        self._running = 0

    def changed(self) -> None:
        """Count the time since the last change."""
        now = asyncio.get_running_loop().time()
        if self._looked_at is not None:
            self.slot_s += self._running * (now - self._looked_at)
        self._looked_at, self._running = now, len(self.scheduler.running)
        super().changed()


async def main(slots: int, step_s: float) -> None:
    """Serve until the input ends."""
    model = FakeModel(vocab_size=VOCAB, eos_id=VOCAB - 1, context_length=CONTEXT)
    options = FakeOptions(model=model, slots=slots, step_s=step_s, kv_tokens=1 << 20)
    async with CountedSglang(options) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        told = {"decoded": server.scheduler.decoded, "slot_s": server.slot_s}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
